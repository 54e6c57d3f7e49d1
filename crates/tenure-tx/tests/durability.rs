//! A request is accepted only where its commit survives: on real standbys.

mod kit;

use kit::{E1, account, connector, hash, prepare, row, store};
use tenure_testkit::{Cluster, Database, ReplicaOptions};
use tenure_tx::engine::Attempt;
use tenure_tx::store::{Replacement, Store, StoreError, StoreOptions};

/// A server of its own, with a database that has both schemas.
async fn server() -> (Cluster, Database) {
    let cluster = Cluster::start().await.expect("a cluster");
    let database = prepare(cluster.database().await.expect("a database")).await;
    (cluster, database)
}

fn why(refused: Result<Vec<u64>, StoreError>) -> String {
    match refused {
        Err(StoreError::MayBeLost(why)) => why,
        other => panic!("accepted where a failover forgets: {other:?}"),
    }
}

#[tokio::test]
async fn a_commit_that_no_standby_has_is_no_acceptance_unless_the_operator_says_so() {
    let (cluster, database) = server().await;
    let node = store(&database.dsn(), "a");
    // A lone server: there is nothing that could be promoted.
    assert_eq!(node.accept(E1, 0, &[row(0, 1, "alone")]).await.expect("a lone server"), [0]);

    let standby = cluster.replica(ReplicaOptions::default()).await.expect("a standby");
    let refused = why(node.accept(E1, 0, &[row(1, 2, "asynchronous")]).await);
    assert!(refused.contains(&standby.standby_name()), "{refused}");
    assert!(node.by_nonce(1).await.expect("readable").is_none(), "nothing was stored");
    let mut options = StoreOptions::new(kit::ROLE.parse().expect("a name"), account(), "b");
    options.accept_loss = true;
    let careless = Store::new(connector(&database.dsn()), options);
    let accepted = careless.accept(E1, 0, &[row(1, 2, "told so")]).await;
    assert_eq!(accepted.expect("the operator's word"), [1]);

    // Made synchronous at run time, and emptied at run time, on the session that is open.
    let names = format!("1 ({})", standby.standby_name());
    cluster.set(&[("synchronous_standby_names", &names)]).await.expect("set");
    settle(&database, &names).await;
    let accepted = node.accept(E1, 0, &[row(2, 3, "synchronous")]).await;
    assert_eq!(accepted.expect("every commit waits for the standby"), [2]);
    assert!(node.doubts().await.expect("answers").is_empty(), "every standby has every commit");
    let quorum = format!("ANY 1 ({}, another)", standby.standby_name());
    cluster.set(&[("synchronous_standby_names", &quorum)]).await.expect("set");
    settle(&database, &quorum).await;
    let doubts = store(&database.dsn(), "c").doubts().await.expect("answers");
    assert!(doubts.len() == 1 && doubts[0].contains("some of the standbys"), "{doubts:?}");
    cluster.set(&[("synchronous_standby_names", "")]).await.expect("set");
    settle(&database, "").await;
    why(node.accept(E1, 0, &[row(3, 4, "emptied")]).await);
    // A further form that a failover forgets would be a stranger to the next leader.
    why(node.replace(E1, &[further_form()]).await);
    let known = node.by_nonce(2).await.expect("readable").expect("stored");
    assert_eq!(known.attempts.len(), 1, "{known:?}");
    let stored = careless.replace(E1, &[further_form()]).await;
    assert_eq!(stored.expect("the operator's word"), [2]);
}

/// Of the request at nonce 2.
fn further_form() -> Replacement {
    let of = |tag| Attempt { hash: hash(tag), ..Attempt::default() };
    Replacement { nonce: 2, attempts: vec![of(3), of(9)], raw: "bytes".into() }
}

/// A session reads a changed file when it begins its next statement; a new one shows that the server has.
async fn settle(database: &Database, names: &str) {
    loop {
        let client = database.client().await.expect("it answers");
        let row = client.query_one("show synchronous_standby_names", &[]).await.expect("shown");
        if row.get::<_, &str>(0) == names {
            return;
        }
    }
}

#[tokio::test]
async fn a_standby_that_is_down_is_known_by_its_slot() {
    let (cluster, database) = server().await;
    let node = store(&database.dsn(), "a");
    let slot = "select pg_create_physical_replication_slot('standby')";
    cluster.sql(slot).await.expect("a slot");
    let refused = why(node.accept(E1, 0, &[row(0, 1, "slot")]).await);
    assert!(refused.contains("slot"), "{refused}");
    cluster.sql("select pg_drop_replication_slot('standby')").await.expect("dropped");
    assert_eq!(node.accept(E1, 0, &[row(0, 1, "alone")]).await.expect("a lone server"), [0]);
}

#[tokio::test]
async fn a_login_that_may_not_see_the_standbys_is_told_the_grant() {
    let (cluster, database) = server().await;
    let client = database.client().await.expect("it answers");
    let grants = tenure::schema::privileges_sql("app");
    let guide = include_str!("../../../docs/transactions.md");
    let ours: String = guide.lines().filter(|line| line.starts_with("grant ")).collect();
    client.batch_execute("create role app login").await.expect("a login");
    client.batch_execute(&grants).await.expect("the election's grants");
    client.batch_execute(&ours).await.expect("the guide's grants");
    let node = store(&database.dsn_for("app"), "a");
    assert_eq!(node.accept(E1, 0, &[row(0, 1, "alone")]).await.expect("a lone server"), [0]);
    let standby = cluster.replica(ReplicaOptions::default()).await.expect("a standby");
    let refused = why(node.accept(E1, 0, &[row(1, 2, "blind")]).await);
    assert!(refused.contains("grant pg_read_all_stats to app"), "{refused}");
    client.batch_execute("grant pg_read_all_stats to app").await.expect("granted");
    let refused = why(node.accept(E1, 0, &[row(1, 2, "seeing")]).await);
    assert!(refused.contains(&standby.standby_name()), "{refused}");
}

#[tokio::test]
async fn a_commit_that_the_server_warns_of_is_uncertain_and_the_table_decides() {
    let (cluster, database) = server().await;
    let node = store(&database.dsn(), "a");
    assert_eq!(node.accept(E1, 0, &[row(0, 1, "alone")]).await.expect("a lone server"), [0]);
    // Commits wait for a standby that never comes.
    cluster.set(&[("synchronous_standby_names", "absent")]).await.expect("set");
    settle(&database, "absent").await;
    let waiting = node.clone();
    let waiting = tokio::spawn(async move { waiting.accept(E1, 0, &[row(1, 2, "unsure")]).await });
    // Told to stop waiting, the server commits here alone, says so, and answers with success.
    let client = database.client().await.expect("it answers");
    let cancel = "select pg_cancel_backend(pid) from pg_stat_activity \
         where wait_event = 'SyncRep' and datname = current_database()";
    while !waiting.is_finished() {
        client.query(cancel, &[]).await.expect("asked");
    }
    let outcome = waiting.await.expect("no panic");
    assert!(matches!(outcome, Err(StoreError::Lost(_))), "{outcome:?}");
    let stored = node.by_request(&["unsure".to_owned()]).await.expect("on another session");
    assert_eq!(stored.iter().map(|row| row.nonce).collect::<Vec<_>>(), [1]);
}
