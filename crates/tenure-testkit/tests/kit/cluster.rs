//! Clusters: made, stopped, crashed, frozen, restarted, removed.

use std::time::{Duration, Instant};

use tenure_testkit::{Cluster, ClusterOptions, Stop, shared_cluster, until};
use tokio::time::timeout;
use tokio_postgres::Client;

use crate::connect;

async fn show(client: &Client, name: &str) -> String {
    client.query_one(&format!("SHOW {name}"), &[]).await.expect("show").get(0)
}

#[tokio::test]
async fn a_cluster_is_up_in_less_than_two_seconds_after_the_first() {
    let mut cluster = Cluster::start().await.expect("first");
    let mut best = Duration::MAX;
    // The best of five: other tests use the machine at the same time.
    for _ in 0..5 {
        let begun = Instant::now();
        cluster = Cluster::start().await.expect("another");
        best = best.min(begun.elapsed());
    }
    assert!(best < Duration::from_secs(2), "took {best:?}");
    let client = connect(&cluster.dsn()).await.expect("tcp");
    assert_eq!(show(&client, "fsync").await, "off");
    assert_eq!(show(&client, "synchronous_commit").await, "on");
    assert_eq!(show(&client, "full_page_writes").await, "on");
}

#[tokio::test]
async fn settings_and_access_rules_are_the_callers() {
    let options = ClusterOptions {
        fsync: true,
        hba: Some("host all all all scram-sha-256".into()),
        ..ClusterOptions::default()
    };
    let cluster = Cluster::start_with(options.set("max_connections", 17)).await.expect("start");
    let client = cluster.client("postgres").await.expect("the kit's way in");
    assert_eq!(show(&client, "max_connections").await, "17");
    assert_eq!(show(&client, "fsync").await, "on");
    assert!(connect(&cluster.dsn()).await.is_err(), "no password, no session");
    cluster.set(&[("work_mem", "3MB")]).await.expect("set");
    until("the setting to be reloaded", async || show(&client, "work_mem").await == "3MB").await;
}

#[tokio::test]
async fn it_comes_back_on_its_port_with_its_data_after_every_kind_of_end() {
    let cluster = Cluster::start().await.expect("start");
    let port = cluster.port();
    cluster.sql("CREATE TABLE t (n int)").await.expect("create");
    for (n, how) in
        [Some(Stop::Fast), Some(Stop::Immediate), Some(Stop::Smart), None].into_iter().enumerate()
    {
        cluster.sql(&format!("INSERT INTO t VALUES ({n})")).await.expect("insert");
        match how {
            Some(how) => cluster.stop(how).await.expect("stop"),
            None => cluster.crash().await.expect("crash"),
        }
        assert_eq!(cluster.pid(), None);
        assert!(connect(&cluster.dsn()).await.is_err(), "down means down");
        cluster.start_again().await.expect("start again");
        assert_eq!(cluster.port(), port);
        let client = connect(&cluster.dsn()).await.expect("connect");
        let rows: i64 =
            client.query_one("SELECT count(*) FROM t", &[]).await.expect("count").get(0);
        assert_eq!(usize::try_from(rows).ok(), Some(n + 1), "after {how:?}");
        drop(client);
    }
}

#[tokio::test]
async fn a_frozen_server_answers_nobody_and_a_thawed_one_goes_on() {
    let cluster = Cluster::start().await.expect("start");
    let client = connect(&cluster.dsn()).await.expect("connect");
    let backend: i32 = client.query_one("SELECT pg_backend_pid()", &[]).await.expect("pid").get(0);
    cluster.freeze();
    let short = Duration::from_millis(300);
    assert!(timeout(short, client.simple_query("SELECT 1")).await.is_err(), "old session");
    assert!(timeout(short, connect(&cluster.dsn())).await.is_err(), "new session");
    cluster.thaw();
    let same: i32 =
        timeout(Duration::from_secs(5), client.query_one("SELECT pg_backend_pid()", &[]))
            .await
            .expect("thawed")
            .expect("answer")
            .get(0);
    assert_eq!(same, backend);
}

#[tokio::test]
async fn dropped_also_while_frozen_or_by_a_panic_it_leaves_nothing() {
    for freeze in [false, true] {
        let cluster = Cluster::start().await.expect("start");
        let (pid, data) = (cluster.pid().expect("runs"), cluster.data_dir().to_path_buf());
        let panicked = std::thread::spawn(move || {
            if freeze {
                cluster.freeze();
            }
            assert!(cluster.pid().is_none(), "this test panics on purpose");
        })
        .join();
        assert!(panicked.is_err());
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists(), "server still there");
        assert!(!data.exists(), "folder still there");
    }
}

#[tokio::test]
async fn tests_that_share_a_cluster_do_not_meet() {
    let cluster = shared_cluster().await;
    let (a, b) = (cluster.database().await.expect("a"), cluster.database().await.expect("b"));
    assert_ne!(a.name(), b.name());
    for database in [&a, &b] {
        let client = database.client().await.expect("connect");
        let row = client.query_one("SELECT pg_try_advisory_lock(7)", &[]).await.expect("lock");
        assert!(row.get::<_, bool>(0), "another database's lock is in the way");
    }
}

#[tokio::test]
async fn copies_share_a_system_identifier_unless_told_otherwise() {
    let own = ClusterOptions { own_identity: true, ..ClusterOptions::default() };
    let (a, b, c) = (
        Cluster::start().await.expect("a"),
        Cluster::start().await.expect("b"),
        Cluster::start_with(own).await.expect("c"),
    );
    let mut ids = Vec::new();
    for cluster in [&a, &b, &c] {
        let client = cluster.client("postgres").await.expect("connect");
        let row = client
            .query_one("SELECT system_identifier FROM pg_control_system()", &[])
            .await
            .expect("query");
        ids.push(row.get::<_, i64>(0));
    }
    assert_eq!(ids[0], ids[1]);
    assert_ne!(ids[0], ids[2]);
}
