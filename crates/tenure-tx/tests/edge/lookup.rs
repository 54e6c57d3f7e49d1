//! A request that is asked for again while the database breaks off.

use tenure_testkit::anvil::Anvil;
use tenure_tx::service::{SendError, SendRequest};
use tenure_tx::status::EndKind;

use crate::kit::anvil::pay;
use crate::kit::database;
use crate::kit::node::Node;
use crate::orders::{BLOCKED, held_up, locked};
use crate::{end, send};

#[tokio::test]
async fn a_request_whose_id_cannot_be_looked_up_is_not_said_to_be_unknown() {
    let (db, anvil) = (database().await, Anvil::start(&["--no-mining"]).await);
    let node = Node::leader(&db.dsn(), &anvil).await;
    let mut handle = send(&node, 1).await;
    assert_eq!(end(&anvil, &mut handle).await.kind, EndKind::Executed);
    let client = locked(&db, "access exclusive").await;
    let again = node.service.send(SendRequest::call(pay(1, 1)).with_id("request-1"));
    let broken = async {
        let other = db.client().await.expect("it answers");
        held_up(&other).await;
        let stop = format!("select pg_terminate_backend(l.pid) {BLOCKED}");
        other.query(&stop, &[]).await.expect("ended");
        client.batch_execute("rollback").await.expect("unlocked");
    };
    let (again, ()) = tokio::join!(again, broken);
    let told = match again {
        Err(SendError::Uncertain { request_id, .. }) => request_id,
        Ok(handle) => handle.request_id,
        Err(other) => panic!("it has executed: {other:?}"),
    };
    assert_eq!(told, "request-1");
}
