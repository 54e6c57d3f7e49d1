//! A claimant that goes away while it waits out another's lease leaves the debt as it was.

use std::time::Duration;

use tenure_core::lease::Fault;
use tenure_testkit::history::now_ns;

use crate::{
    group::{Group, connect, number, seat_pid, shared_server, until},
    node::Setup,
};

/// The first leader stalls with its gate open, its session is ended, and one of the others has won
/// the lock and waits. Returns the group, the epoch of the waiting claim, and the claimant.
async fn with_a_waiting_claimant() -> (Group, i64, usize) {
    let (database, _) = shared_server().await;
    let client = connect(&database.dsn()).await;
    let mut group = Group::start(&["a", "b", "c"], &Setup::new("", &database.dsn())).await;
    let old = group.leader(0).await;
    let pid = seat_pid(&client, &mut group.nodes[0]).await;
    group.nodes[0].order("stall 8000").await;
    group.nodes[0].wait_said("the stall", |said| said["say"] == "stalled").await;
    client.execute("select pg_terminate_backend($1)", &[&pid]).await.expect("terminated");
    let epoch = "select epoch from tenure.role";
    until("a claim", || async { number(&client, epoch).await > old.epoch.cast_signed() }).await;
    let row = client.query_one("select epoch, holder from tenure.role", &[]).await.expect("a row");
    let holder: String = row.get(1);
    let waits = if holder == group.nodes[1].identity() { 1 } else { 2 };
    assert_eq!(holder, group.nodes[waits].identity());
    (group, row.get(0), waits)
}

async fn claimant_goes(crash: bool) {
    let (mut group, epoch, waits) = with_a_waiting_claimant().await;
    let fault = now_ns();
    if crash {
        group.nodes[waits].kill().await;
    } else {
        group.nodes[waits].do_now("shutdown").await.expect("it shuts down");
    }
    let what = if crash { "claimant SIGKILL" } else { "claimant shutdown" };
    // The first leader's gate says yes until its own deadline: the checker sees any haste.
    let new = group.fail_over(what, Fault::Crash, fault, epoch.cast_unsigned()).await;
    assert_eq!(new.node, 3 - waits);
    let waited =
        group.nodes[waits].events().iter().any(|e| e.instant().epoch >= epoch.cast_unsigned());
    assert!(!waited, "the claimant's gate opened before it went");
    group.watch_for(Duration::from_millis(200)).await;
}

#[tokio::test]
async fn a_claimant_that_crashes_while_it_waits_leaves_the_debt() {
    claimant_goes(true).await;
}

#[tokio::test]
async fn a_claimant_that_shuts_down_while_it_waits_leaves_the_debt() {
    claimant_goes(false).await;
}

/// A claimant that lost its session while it waited claims again, and still owes the wait.
#[tokio::test]
async fn a_claimant_that_loses_its_session_while_it_waits_leaves_the_debt() {
    let (mut group, epoch, waits) = with_a_waiting_claimant().await;
    let client = connect(&group.nodes[0].setup.dsn).await;
    let pid = seat_pid(&client, &mut group.nodes[waits]).await;
    let fault = now_ns();
    client.execute("select pg_terminate_backend($1)", &[&pid]).await.expect("terminated");
    group.fail_over("claimant terminated", Fault::Crash, fault, epoch.cast_unsigned()).await;
    group.watch_for(Duration::from_millis(200)).await;
}

/// Frozen while it waits, it wakes up when its wait is over and its session is not its own any more.
#[tokio::test]
async fn a_claimant_frozen_while_it_waits_wakes_up_with_its_gate_shut() {
    let (mut group, epoch, waits) = with_a_waiting_claimant().await;
    let fault = group.nodes[waits].freeze();
    let what = "claimant SIGSTOP";
    let new = group.fail_over(what, Fault::Freeze, fault, epoch.cast_unsigned()).await;
    assert_eq!(new.node, 3 - waits);
    group.nodes[waits].thaw();
    group.watch_for(Duration::from_millis(500)).await;
    assert!(group.nodes[waits].events().is_empty(), "its gate opened");
}

/// The wait is the debtor's lease, not the claimant's own.
#[tokio::test]
async fn a_claimant_with_a_shorter_lease_waits_out_the_longer_one() {
    let (database, _) = shared_server().await;
    let client = connect(&database.dsn()).await;
    let long = Setup { lease: Duration::from_secs(3), ..Setup::new("a", &database.dsn()) };
    let short = Setup { name: "b".into(), lease: Duration::from_millis(1000), ..long.clone() };
    let mut group = Group::default();
    group.add(long.clone()).await;
    group.add(short).await;
    group.settle(2).await;
    let old = group.leader(0).await;
    let pid = seat_pid(&client, &mut group.nodes[0]).await;
    group.nodes[0].order("stall 8000").await;
    group.nodes[0].wait_said("the stall", |said| said["say"] == "stalled").await;
    let fault = now_ns();
    client.execute("select pg_terminate_backend($1)", &[&pid]).await.expect("terminated");
    let what = "a longer lease";
    let new = group.fail_over(what, Fault::BackendTerminated, fault, old.epoch).await;
    assert_eq!(new.node, 1);
    group.watch_for(Duration::from_millis(200)).await;
}
