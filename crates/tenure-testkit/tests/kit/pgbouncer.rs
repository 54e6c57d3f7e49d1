//! PgBouncer in each mode, seen through session locks.

use tenure_testkit::{PgBouncer, PoolMode, shared_cluster};
use tokio_postgres::SimpleQueryMessage;

use crate::{connect, number};

#[tokio::test]
async fn a_session_pool_keeps_a_session_lock_with_its_client() {
    let cluster = shared_cluster().await;
    let database = cluster.database().await.expect("database");
    let pooler = PgBouncer::start(cluster, PoolMode::Session, &[]).await.expect("pooler");
    let (a, b) = (
        connect(&pooler.dsn(database.name())).await.expect("a"),
        connect(&pooler.dsn(database.name())).await.expect("b"),
    );
    let lock = "SELECT pg_try_advisory_lock(1)::int::bigint";
    assert_eq!((number(&a, lock).await, number(&b, lock).await), (1, 0));
}

#[tokio::test]
async fn a_transaction_pool_lets_two_clients_hold_the_same_session_lock() {
    let cluster = shared_cluster().await;
    let database = cluster.database().await.expect("database");
    let settings = [("default_pool_size", "1")];
    let pooler = PgBouncer::start(cluster, PoolMode::Transaction, &settings).await.expect("pooler");
    let (a, b) = (
        connect(&pooler.dsn(database.name())).await.expect("a"),
        connect(&pooler.dsn(database.name())).await.expect("b"),
    );
    for client in [&a, &b] {
        // A simple query: prepared statements do not survive such a pool.
        let answer = client.simple_query("SELECT pg_try_advisory_lock(1)").await.expect("query");
        let rows: Vec<_> = answer
            .iter()
            .filter_map(|message| match message {
                SimpleQueryMessage::Row(row) => row.get(0),
                _ => None,
            })
            .collect();
        assert_eq!(rows, ["t"]);
    }
}

#[tokio::test]
async fn a_statement_pool_refuses_transactions() {
    let cluster = shared_cluster().await;
    let pooler = PgBouncer::start(cluster, PoolMode::Statement, &[]).await.expect("pooler");
    let client = connect(&pooler.dsn("postgres")).await.expect("connect");
    assert!(client.batch_execute("BEGIN").await.is_err());
}

#[tokio::test]
async fn a_bad_setting_is_told_in_the_poolers_own_words() {
    let cluster = shared_cluster().await;
    let settings = [("pool_mode", "nonsense")];
    let error = PgBouncer::start(cluster, PoolMode::Session, &settings).await.expect_err("refused");
    assert!(
        error.to_string().contains("nonsense") || error.to_string().contains("pool_mode"),
        "{error}"
    );
}
