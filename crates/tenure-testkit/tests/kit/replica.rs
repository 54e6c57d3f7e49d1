//! Replicas: streaming, synchronous, paused, promoted.

use std::time::Duration;

use tenure_testkit::{Cluster, Direction, Proxy, ReplicaOptions};
use tokio::time::timeout;

use crate::{connect, number};

const SOON: Duration = Duration::from_millis(400);

#[tokio::test]
async fn a_replica_follows_and_leads_on_a_new_timeline_after_promotion() {
    let primary = Cluster::start().await.expect("primary");
    primary.sql("CREATE TABLE t (n int)").await.expect("create");
    let replica = primary.replica(ReplicaOptions::default()).await.expect("replica");
    primary.sql("INSERT INTO t VALUES (1)").await.expect("insert");
    replica.wait_caught_up(&primary).await.expect("caught up");
    let client = connect(&replica.dsn()).await.expect("connect");
    assert_eq!(number(&client, "SELECT count(*) FROM t").await, 1);
    assert!(client.batch_execute("INSERT INTO t VALUES (2)").await.is_err(), "read-only");

    primary.crash().await.expect("crash");
    replica.promote().await.expect("promote");
    client.batch_execute("INSERT INTO t VALUES (2)").await.expect("now a primary");
    let row = client
        .query_one("SELECT substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)", &[])
        .await
        .expect("timeline");
    assert_eq!(row.get::<_, &str>(0), "00000002");
}

#[tokio::test]
async fn commits_wait_for_a_synchronous_replica_that_does_not_receive() {
    let primary = Cluster::start().await.expect("primary");
    primary.sql("CREATE TABLE t (n int)").await.expect("create");
    let replica = primary
        .replica(ReplicaOptions { sync: true, ..Default::default() })
        .await
        .expect("replica");
    primary.sql("INSERT INTO t VALUES (1)").await.expect("acknowledged");
    replica.pause_receiving().await.expect("pause");
    let client = connect(&primary.dsn()).await.expect("connect");
    let insert = client.batch_execute("INSERT INTO t VALUES (2)");
    tokio::pin!(insert);
    assert!(timeout(SOON, &mut insert).await.is_err(), "committed without its standby");
    replica.resume_receiving().await.expect("resume");
    timeout(Duration::from_secs(10), insert).await.expect("in time").expect("committed");
}

#[tokio::test]
async fn all_synchronous_replicas_must_acknowledge() {
    let primary = Cluster::start().await.expect("primary");
    primary.sql("CREATE TABLE t (n int)").await.expect("create");
    let sync = || ReplicaOptions { sync: true, ..Default::default() };
    let _first = primary.replica(sync()).await.expect("first");
    let second = primary.replica(sync()).await.expect("second");
    primary.sql("INSERT INTO t VALUES (1)").await.expect("both acknowledge");
    second.freeze();
    let client = connect(&primary.dsn()).await.expect("connect");
    let insert = client.batch_execute("INSERT INTO t VALUES (2)");
    tokio::pin!(insert);
    assert!(timeout(SOON, &mut insert).await.is_err(), "committed without the second standby");
    second.thaw();
    timeout(Duration::from_secs(10), insert).await.expect("in time").expect("committed");
}

#[tokio::test]
async fn a_replica_behind_a_dead_link_misses_the_last_commits() {
    let primary = Cluster::start().await.expect("primary");
    primary.sql("CREATE TABLE t (n int)").await.expect("create");
    let proxy = Proxy::start(primary.addr()).await.expect("proxy");
    let options = ReplicaOptions { via: Some(proxy.addr()), ..Default::default() };
    let replica = primary.replica(options).await.expect("replica");
    primary.sql("INSERT INTO t VALUES (1)").await.expect("insert");
    replica.wait_caught_up(&primary).await.expect("caught up");
    proxy.blackhole(Direction::Both);
    primary.sql("INSERT INTO t VALUES (2)").await.expect("lost");
    replica.promote().await.expect("promote");
    let client = connect(&replica.dsn()).await.expect("connect");
    assert_eq!(number(&client, "SELECT count(*) FROM t").await, 1);
}

#[tokio::test]
async fn paused_replay_hides_what_arrives() {
    let primary = Cluster::start().await.expect("primary");
    primary.sql("CREATE TABLE t (n int)").await.expect("create");
    let replica = primary.replica(ReplicaOptions::default()).await.expect("replica");
    replica.wait_caught_up(&primary).await.expect("caught up");
    replica.pause_replay().await.expect("pause");
    primary.sql("INSERT INTO t VALUES (1)").await.expect("insert");
    let client = connect(&replica.dsn()).await.expect("connect");
    assert_eq!(number(&client, "SELECT count(*) FROM t").await, 0);
    replica.resume_replay().await.expect("resume");
    replica.wait_caught_up(&primary).await.expect("caught up");
    assert_eq!(number(&client, "SELECT count(*) FROM t").await, 1);
}
