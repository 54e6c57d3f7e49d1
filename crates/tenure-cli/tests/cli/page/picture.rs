//! The picture of the page in the README, and others beside it, of a group that does not exist: `make picture`.

use std::process::Stdio;
use std::time::Duration;

use tenure_testkit::Cluster;
use tokio::task::JoinSet;
use tokio::time::{interval, timeout};
use tokio_postgres::Client;

use super::Served;
use super::browser::{root, transactions};
use crate::kit::{code, ends};

/// A session that stands for a member: it holds the locks of what the member leads, and beats.
async fn stand_for(client: Client, member: &str) {
    let mine = format!("identity like 'tenure-{member}-%'");
    let sql = format!(
        "update tenure.member set backend_pid = pg_backend_pid(), seen_at = clock_timestamp() where {mine}; \
         select count(pg_advisory_lock(r.key)) from tenure.role r join tenure.member m on m.identity = r.holder where {mine}"
    );
    client.batch_execute(&sql).await.expect("its locks");
    let beat = format!("update tenure.member set seen_at = clock_timestamp() where {mine}");
    let mut tick = interval(Duration::from_millis(500));
    loop {
        tick.tick().await;
        if client.batch_execute(&beat).await.is_err() {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs node and Chromium: `make picture`"]
async fn picture() {
    let cluster = Cluster::start().await.expect("a server");
    let dsn = cluster.dsn();
    assert_eq!(code(&ends(&["migrate", "--dsn", &dsn]).await), 0);
    let client = cluster.client("postgres").await.expect("a session");
    client.batch_execute("create schema tenure_agent").await.expect("a schema");
    for file in ["0001_schedules.sql", "0002_alerts.sql"] {
        let path = root().join("crates/tenure-agent/sql").join(file);
        let sql = std::fs::read_to_string(path).expect("a file");
        client.batch_execute(&sql).await.expect("tables");
    }
    client.batch_execute(include_str!("bad_day.sql")).await.expect("a bad day");
    transactions(&client, "relayer:mainnet").await;
    let mut members = JoinSet::new();
    for member in ["north", "east", "south", "west"] {
        members.spawn(stand_for(cluster.client("postgres").await.expect("a session"), member));
    }
    let page = Served::new(&dsn, &["--title", "orders-prod"]).await;
    let mut command = tokio::process::Command::new("node");
    command.arg(root().join("crates/tenure-agent/page/browser/picture.mjs"));
    command.env("TENURE_PAGE", format!("http://{}/", page.address)).stdin(Stdio::null());
    let drawn = timeout(Duration::from_secs(120), command.status()).await.expect("in time");
    assert!(drawn.expect("node runs; scripts/setup.sh page installs it").success());
}
