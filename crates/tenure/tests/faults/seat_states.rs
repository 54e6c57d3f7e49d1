//! The server's idle timer is its half of the lease, and there are states of a session in which it
//! does not run. A frozen leader whose seat was left in any of them is followed all the same.

use std::time::Duration;

use tenure_core::lease::Fault;
use tenure_testkit::{ReplicaOptions, history::now_ns};

use crate::{
    group::{Group, connect, number, own_server, seat_pid, shared_server, until},
    node::Setup,
    wire::{Tamper, Wire},
};

/// A group whose leader's seat goes through a wire, and the test's own session.
async fn wired() -> (Group, Wire, tokio_postgres::Client) {
    let (database, server) = shared_server().await;
    let wire = Wire::start(server).await;
    let setup = Setup::new("a", &wire.dsn(database.name()));
    let mut group = Group::default();
    group.add(setup.clone()).await;
    group.add(Setup { name: "b".into(), dsn: database.dsn(), ..setup }).await;
    group.settle(2).await;
    (group, wire, connect(&database.dsn()).await)
}

/// Freezes the leader, leaves its seat in that state, checks that it is, and awaits the next leader.
async fn left(what: &str, tamper: Tamper, state: &str) {
    let (mut group, wire, client) = wired().await;
    let old = group.leader(0).await;
    let pid = seat_pid(&client, &mut group.nodes[0]).await;
    // No beat of it may be under way.
    let idle =
        format!("select count(*) from pg_stat_activity where pid = {pid} and state = 'idle'");
    group.nodes[0].freeze();
    until("the seat to be idle", || async { number(&client, &idle).await == 1 }).await;
    let fault = now_ns();
    wire.tamper(tamper);
    let so = format!("select count(*) from pg_stat_activity where pid = {pid} and {state}");
    until(what, || async { number(&client, &so).await == 1 }).await;
    let new = group.fail_over(what, Fault::Freeze, fault, old.epoch).await;
    assert_eq!(new.node, 1);
    group.nodes[0].thaw();
    group.watch_for(Duration::from_millis(300)).await;
}

#[tokio::test]
async fn a_seat_left_idle_is_ended() {
    left("left idle", Tamper::Pass, "state = 'idle'").await;
}

#[tokio::test]
async fn a_seat_left_in_a_transaction_is_ended() {
    left("left in a transaction", Tamper::Inject("begin".into()), "state like 'idle in tr%'").await;
}

#[tokio::test]
async fn a_seat_left_in_an_aborted_transaction_is_ended() {
    let tamper = Tamper::Inject("begin; select 1/0".into());
    left("left in an aborted transaction", tamper, "state like '%(aborted)'").await;
}

#[tokio::test]
async fn a_seat_left_in_a_statement_is_ended() {
    let tamper = Tamper::Inject("select pg_sleep(3600)".into());
    left("left in a statement", tamper, "wait_event = 'PgSleep'").await;
}

#[tokio::test]
async fn a_seat_left_with_half_a_message_is_ended() {
    left("left with half a message", Tamper::Half, "state = 'idle'").await;
}

/// It cannot be told anything: what it sends is not read.
#[tokio::test]
async fn a_seat_whose_client_does_not_read_is_ended() {
    let tamper =
        Tamper::InjectUnread("select repeat('x', 8000) from generate_series(1, 5000)".into());
    left("client does not read", tamper, "wait_event = 'ClientWrite'").await;
}

/// Waiting for a lock that another session holds and does not give back.
#[tokio::test]
async fn a_seat_left_waiting_for_a_row_lock_is_ended() {
    let (mut group, _wire, client) = wired().await;
    let old = group.leader(0).await;
    let pid = seat_pid(&client, &mut group.nodes[0]).await;
    let me = group.nodes[0].identity();
    let block = format!("begin; select from tenure.member where identity = '{me}' for update");
    client.batch_execute(&block).await.expect("locked");
    let watcher = connect(&group.nodes[1].setup.dsn).await;
    let so = format!(
        "select count(*) from pg_stat_activity where pid = {pid} and wait_event_type = 'Lock'"
    );
    until("a beat to wait for its row", || async { number(&watcher, &so).await == 1 }).await;
    let fault = group.nodes[0].freeze();
    let new = group.fail_over("left waiting for a row", Fault::Freeze, fault, old.epoch).await;
    assert_eq!(new.node, 1);
    client.batch_execute("rollback").await.expect("given back");
}

/// Waiting for a standby that does not answer: no timer runs until it does. No other session can commit
/// until then either, so nothing is lost by it: the bound counts from the standby's return.
#[tokio::test]
async fn a_seat_left_waiting_for_a_standby_is_ended() {
    let (primary, database) = own_server().await;
    let options = ReplicaOptions { sync: true, ..ReplicaOptions::default() };
    let replica = primary.replica(options).await.expect("a replica");
    let mut group = Group::start(&["a", "b"], &Setup::new("", &database.dsn())).await;
    let old = group.leader(0).await;
    let client = connect(&database.dsn()).await;
    let pid = seat_pid(&client, &mut group.nodes[0]).await;
    replica.pause_receiving().await.expect("paused");
    let so = format!(
        "select count(*) from pg_stat_activity where pid = {pid} and wait_event = 'SyncRep'"
    );
    until("a beat to wait for the standby", || async { number(&client, &so).await == 1 }).await;
    group.nodes[0].freeze();
    group.watch_for(group.nodes[0].lease().lease()).await;
    assert_eq!(number(&client, &so).await, 1, "it does not wait any more");
    replica.resume_receiving().await.expect("resumed");
    let back = now_ns();
    let new = group.fail_over("left waiting for a standby", Fault::Freeze, back, old.epoch).await;
    assert_eq!(new.node, 1);
    group.nodes[0].thaw();
    group.watch_for(Duration::from_millis(300)).await;
}
