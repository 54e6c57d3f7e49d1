//! An incarnation ends with every loss of acknowledged writes.

use std::collections::BTreeSet;
use std::time::Duration;

use tenure_testkit::Cluster;

async fn leader_of(cluster: &Cluster) -> (tenure::Member, tenure::LeaderLock) {
    tenure::lead(&cluster.dsn(), "r").await.expect("a member")
}

async fn incarnation(cluster: &Cluster) -> String {
    let client = cluster.client("postgres").await.expect("a session");
    client.query_one("select tenure.incarnation()", &[]).await.expect("an answer").get(0)
}

#[tokio::test]
async fn a_row_that_a_restore_wrote_is_another_incarnation() {
    let cluster = tenure_testkit::shared_cluster().await;
    let database = cluster.database().await.expect("a database");
    let client = database.client().await.expect("a session");
    client.batch_execute(&tenure::schema::script()).await.expect("the schema");
    let mut seen = BTreeSet::new();
    for table in ["boot", "origin"] {
        let ask = "select tenure.incarnation()";
        let now: String = client.query_one(ask, &[]).await.expect("an answer").get(0);
        assert_eq!(client.query_one(ask, &[]).await.expect("an answer").get::<_, String>(0), now);
        assert!(seen.insert(now));
        let restore = format!(
            "begin; create temp table saved on commit drop as select * from tenure.{table}; \
             delete from tenure.{table}; insert into tenure.{table} select * from saved; commit"
        );
        client.batch_execute(&restore).await.expect("restored");
        let then: String = client.query_one(ask, &[]).await.expect("an answer").get(0);
        assert!(!seen.contains(&then), "{table} was restored");
    }
}

/// The server goes on after a backend was killed, with its start time, but without the commits that
/// were not flushed: what was seen of beats before is void.
#[tokio::test]
async fn a_killed_backend_is_a_crash_although_the_server_keeps_its_start_time() {
    let cluster = Cluster::start().await.expect("a server");
    let (member, lock) = leader_of(&cluster).await;
    assert!(lock.wait_for_leadership(Some(Duration::from_secs(20))).await.is_ok());
    let before = incarnation(&cluster).await;
    assert_eq!(incarnation(&cluster).await, before, "it stays as long as the server does");

    let mut seen = BTreeSet::from([before.clone()]);
    let client = cluster.client("postgres").await.unwrap();
    let pid: i32 = client.query_one("select pg_backend_pid()", &[]).await.unwrap().get(0);
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(pid).expect("a process"),
        rustix::process::Signal::KILL,
    )
    .unwrap();
    let mut changes = lock.changes();
    changes.wait_for(|change| !change.is_leader).await.unwrap();
    tenure_testkit::until("the server", async || cluster.sql("select 1").await.is_ok()).await;
    assert!(seen.insert(incarnation(&cluster).await), "a killed backend");
    cluster.restart().await.unwrap();
    assert!(seen.insert(incarnation(&cluster).await), "a restart");
    cluster.crash().await.unwrap();
    cluster.start_again().await.unwrap();
    assert!(seen.insert(incarnation(&cluster).await), "a crash");
    assert!(
        lock.wait_for_leadership(Some(Duration::from_secs(30))).await.is_ok(),
        "and it leads again"
    );
    member.shutdown(Some(Duration::from_secs(20))).await.unwrap();
}
