//! Other versions of PostgreSQL, installed by `scripts/setup.sh`.

use tenure_testkit::{Cluster, ClusterOptions, Stop};

use crate::{connect, number};

async fn starts_and_stops(version: u32) {
    let options = ClusterOptions { version: Some(version), ..Default::default() };
    let cluster = Cluster::start_with(options).await.expect("scripts/setup.sh installs it");
    assert_eq!(cluster.version(), version);
    let client = connect(&cluster.dsn()).await.expect("connect");
    let running =
        number(&client, "SELECT current_setting('server_version_num')::bigint / 10000").await;
    assert_eq!(running, i64::from(version));
    cluster.stop(Stop::Fast).await.expect("stop");
    cluster.start_again().await.expect("start");
    cluster.crash().await.expect("crash");
    cluster.start_again().await.expect("start");
    connect(&cluster.dsn()).await.expect("connect");
}

#[tokio::test]
async fn postgresql_18_starts_stops_and_crashes() {
    starts_and_stops(18).await;
}

#[tokio::test]
async fn postgresql_13_starts_stops_and_crashes() {
    starts_and_stops(13).await;
}

#[tokio::test]
async fn a_version_that_is_not_there_is_an_error_with_a_remedy() {
    let options = ClusterOptions { version: Some(7), ..Default::default() };
    let error = Cluster::start_with(options).await.expect_err("not installed").to_string();
    assert!(error.contains("scripts/setup.sh"), "{error}");
}
