//! Orders to drop a request, while the database is slow or breaks off.

use std::time::Duration;

use futures_util::FutureExt as _;
use serde_json::json;
use tenure_testkit::anvil::{ADDRESS, Anvil};
use tenure_testkit::rpc_proxy::RpcProxy;
use tenure_testkit::{Database, until};
use tenure_tx::service::{Dropped, SendError, TransactionHandle};
use tenure_tx::status::EndKind;
use tokio::time::timeout;
use tokio_postgres::Client;

use crate::kit::database;
use crate::kit::node::Node;
use crate::{end, leader, send};

/// Sessions that wait for a lock.
pub(crate) const BLOCKED: &str = "from pg_locks l where not l.granted \
    and l.database = (select oid from pg_database where datname = current_database())";

/// Keeps all writes out, and no reading.
const WRITES: &str = "exclusive";

/// A request that the account cannot pay for, so that no node has it.
async fn unpaid(node: &Node, anvil: &Anvil) -> TransactionHandle {
    anvil.call("anvil_setBalance", json!([ADDRESS, "0x0"])).await;
    let mut handle = send(node, 1).await;
    let waits = async {
        while handle.state().note.answer.is_none() {
            handle.changed().await.expect("leads");
        }
    };
    timeout(Duration::from_secs(20), waits).await.expect("the node said no");
    handle
}

/// What this mode excludes waits from now on, until this client rolls back.
pub(crate) async fn locked(db: &Database, mode: &str) -> Client {
    let client = db.client().await.expect("it answers");
    let lock = format!("begin; lock table tenure_tx.pending_transactions in {mode} mode");
    client.batch_execute(&lock).await.expect("locked");
    client
}

pub(crate) async fn held_up(other: &Client) {
    let count = format!("select count(*) {BLOCKED}");
    let waits = async || other.query_one(&count, &[]).await.expect("readable").get::<_, i64>(0) > 0;
    until("a write that waits", waits).await;
}

#[tokio::test]
async fn an_end_that_the_chain_does_not_know_is_told_when_the_table_has_it() {
    let (db, anvil) = (database().await, Anvil::start(&["--no-mining"]).await);
    let gateway = RpcProxy::start(&anvil.url).await;
    let node = leader(&db.dsn(), &gateway).await;
    let handle = unpaid(&node, &anvil).await;
    let client = locked(&db, WRITES).await;
    let dropping = node.service.cancel(handle.nonce);
    tokio::pin!(dropping);
    let other = db.client().await.expect("it answers");
    // Cancel-safe: the drop is polled by reference.
    tokio::select! {
        dropped = &mut dropping => panic!("told before it was stored: {dropped:?}"),
        () = held_up(&other) => {}
    }
    assert!(!handle.state().ended(), "{:?}", handle.state());
    client.batch_execute("rollback").await.expect("unlocked");
    let dropped = timeout(Duration::from_secs(20), dropping).await.expect("answered");
    let Ok(Dropped::Ended(end)) = dropped else { panic!("{dropped:?}") };
    assert_eq!(end.kind, EndKind::Withdrawn);
    let row = node.store.by_nonce(handle.nonce).await.expect("read").expect("a row");
    assert!(row.ended && handle.state().ended());
}

#[tokio::test]
async fn an_order_whose_write_broke_off_is_carried_out_and_told() {
    let (db, anvil) = (database().await, Anvil::start(&["--no-mining"]).await);
    let gateway = RpcProxy::start(&anvil.url).await;
    let node = leader(&db.dsn(), &gateway).await;
    let handle = unpaid(&node, &anvil).await;
    let client = locked(&db, WRITES).await;
    let dropping = node.service.cancel(handle.nonce);
    tokio::pin!(dropping);
    let other = db.client().await.expect("it answers");
    // Cancel-safe: the drop is polled by reference.
    tokio::select! {
        dropped = &mut dropping => panic!("told before it was stored: {dropped:?}"),
        () = held_up(&other) => {}
    }
    // Its end is not stored: the table is read again, and the request is open there.
    let stop = format!("select pg_terminate_backend(l.pid) {BLOCKED}");
    other.query(&stop, &[]).await.expect("ended");
    client.batch_execute("rollback").await.expect("unlocked");
    // A node may have had it, as far as the table can tell: so a no-op takes its place.
    let dropped = timeout(Duration::from_secs(20), dropping).await.expect("answered");
    assert!(matches!(dropped, Ok(Dropped::Ordered { .. })), "{dropped:?}");
    anvil.call("anvil_setBalance", json!([ADDRESS, "0xde0b6b3a7640000"])).await;
    let row = node.service.find(&handle.request_id).await.expect("read").expect("a row");
    assert!(row.noop && !row.ended, "{row:?}");
    let mut again = send(&node, 1).await;
    assert_eq!(end(&anvil, &mut again).await.kind, EndKind::Replaced);
}

#[tokio::test]
async fn an_order_for_a_request_whose_acceptance_broke_off_is_carried_out() {
    let (db, anvil) = (database().await, Anvil::start(&["--no-mining"]).await);
    let gateway = RpcProxy::start(&anvil.url).await;
    let node = leader(&db.dsn(), &gateway).await;
    let client = locked(&db, WRITES).await;
    let other = db.client().await.expect("it answers");
    let sending = async {
        let mut handle = send(&node, 1).await;
        end(&anvil, &mut handle).await
    };
    let dropping = async {
        held_up(&other).await;
        let dropping = node.service.cancel(0);
        tokio::pin!(dropping);
        let taken = dropping.as_mut().now_or_never();
        assert!(taken.is_none(), "{taken:?}");
        // Heard after the order.
        node.service.open().await;
        let stop = format!("select pg_terminate_backend(l.pid) {BLOCKED}");
        other.query(&stop, &[]).await.expect("ended");
        client.batch_execute("rollback").await.expect("unlocked");
        dropping.await
    };
    let (end, dropped) = tokio::join!(sending, dropping);
    assert_eq!(end.kind, EndKind::Withdrawn, "{dropped:?}");
    // Its id is looked up before it is stored anew: meanwhile it is not known here.
    assert!(
        match &dropped {
            Ok(Dropped::Ended(told)) => told.kind == EndKind::Withdrawn,
            Err(SendError::Undecided { request_id, .. }) => request_id == "request-1",
            _ => false,
        },
        "{dropped:?}"
    );
    assert!(gateway.sent().is_empty(), "no node had it");
}
