//! An idle group disturbs nobody: no old snapshot, no line in the log, few statements.

use std::time::{Duration, Instant};

use tenure::config::RoleSpec;
use tenure_testkit::Cluster;

use crate::stage::{config, gone, leads, one, start};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_waiting_followers_hold_up_neither_vacuum_nor_a_concurrent_index() {
    let cluster = Cluster::start().await.unwrap();
    let database = cluster.database().await.unwrap();
    let mut members = Vec::new();
    for _ in 0..11 {
        let member = start(config(&database).role(RoleSpec::named("r"))).await;
        member.start_all().await.unwrap();
        members.push(member);
    }
    leads(&members[0].locks()[0]).await;
    let client = database.client().await.unwrap();
    client.batch_execute("create table t as select generate_series(1, 1000) as n").await.unwrap();
    client.batch_execute("delete from t").await.unwrap();

    // No snapshot of ours is older than one heartbeat interval (1 s here), at any look.
    let looks = Instant::now();
    while looks.elapsed() < Duration::from_secs(3) {
        let old = one(
            &client,
            "select count(*) from pg_stat_activity \
             where application_name like 'tenure %' and backend_xmin is not null \
               and query_start < clock_timestamp() - interval '1 s'",
        )
        .await;
        assert_eq!(old, "0");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let index = client.batch_execute("create index concurrently on t (n)");
    tokio::time::timeout(Duration::from_secs(10), index).await.expect("it finishes").unwrap();
    // Vacuum may remove what was deleted before those waits began.
    client.batch_execute("vacuum t").await.unwrap();
    let dead = one(&client, "select pg_relation_size('t')").await;
    assert_eq!(dead, "0", "the deleted rows are still held");
    for member in members {
        gone(member).await;
    }
}

#[tokio::test]
async fn an_idle_group_writes_no_line_to_the_servers_log() {
    let cluster = Cluster::start().await.unwrap();
    let database = cluster.database().await.unwrap();
    let mut members = Vec::new();
    for _ in 0..3 {
        let member = start(config(&database).role(RoleSpec::named("r"))).await;
        member.start_all().await.unwrap();
        members.push(member);
    }
    leads(&members[0].locks()[0]).await;
    let before = cluster.log();
    // Time is the subject here: several beats, waits and polls of every member.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let after = cluster.log();
    let new: Vec<&str> =
        after[before.len()..].lines().filter(|line| !line.contains("checkpoint")).collect();
    assert!(new.is_empty(), "{new:#?}");
    for member in members {
        gone(member).await;
    }
}
