//! The leader's process dies, freezes, stalls, or lets go.

use std::time::Duration;

use tenure_core::lease::Fault;
use tenure_testkit::{
    Signal,
    history::{self, Violation, now_ns},
};
use tokio::time::sleep;

use crate::{
    group::{Group, connect, seat_pid, shared_server},
    node::Setup,
};

async fn setup(fenced: bool) -> Setup {
    let (database, _) = shared_server().await;
    Setup { fenced, ..Setup::new("", &database.dsn()) }
}

async fn killed(fenced: bool) {
    let mut group = Group::start(&["a", "b", "c"], &setup(fenced).await).await;
    let old = group.leader(0).await;
    let fault = now_ns();
    group.nodes[0].kill().await;
    let new = group.fail_over("SIGKILL", Fault::Crash, fault, old.epoch).await;
    assert_ne!(new.node, 0);
}

#[tokio::test]
async fn a_killed_leader_is_followed_within_the_bound() {
    killed(false).await;
}

#[tokio::test]
async fn a_killed_leader_is_followed_at_once_when_fenced() {
    killed(true).await;
}

async fn frozen(fenced: bool) {
    let mut group = Group::start(&["a", "b"], &setup(fenced).await).await;
    let old = group.leader(0).await;
    let fault = group.nodes[0].freeze();
    let new = if fenced {
        group.leader(old.epoch).await
    } else {
        group.fail_over("SIGSTOP", Fault::Freeze, fault, old.epoch).await
    };
    assert_eq!(new.node, 1);
    let woken = now_ns();
    group.nodes[0].thaw();
    // Its sampler runs before any task of it can have noticed anything; it says `shut` when asked.
    group.nodes[0].wait_notice("Lost").await;
    let last = group.nodes[0].last_yes().expect("it led");
    assert!(last < woken, "its gate said yes {} ns after it woke up", last.saturating_sub(woken));
    if fenced {
        group.judge("SIGSTOP", Fault::Freeze, fault, new);
    }
    group.watch_for(Duration::from_millis(300)).await;
}

#[tokio::test]
async fn a_frozen_leader_wakes_up_with_its_gate_shut() {
    frozen(false).await;
}

#[tokio::test]
async fn a_frozen_leader_wakes_up_with_its_gate_shut_when_fenced() {
    frozen(true).await;
}

/// Woken before the server ended its session, it may go on under the same epoch, but its gate was
/// shut in between.
#[tokio::test]
async fn a_leader_frozen_past_its_lease_but_not_its_session_goes_on_after_a_look() {
    let mut group = Group::start(&["a", "b"], &setup(false).await).await;
    let old = group.leader(0).await;
    let lease = group.nodes[0].lease();
    let frozen = group.nodes[0].freeze();
    sleep(lease.lease() + lease.margin() / 4).await;
    let woken = now_ns();
    group.nodes[0].thaw();
    group.nodes[0].wait_notice("Well").await;
    group.watch_for(Duration::from_millis(300)).await;
    let deadline = frozen + u64::try_from(lease.lease().as_nanos()).expect("short");
    let events = group.nodes[0].events().to_vec();
    assert!(events.iter().all(|event| event.instant().epoch == old.epoch));
    // What lies between the deadline and the wake-up can only be a yes that was said too late.
    let between = events.iter().map(|event| event.instant().at_ns);
    assert_eq!(between.filter(|at| *at > deadline && *at < woken).count(), 0);
}

async fn stalled(fenced: bool) {
    let mut group = Group::start(&["a", "b"], &setup(fenced).await).await;
    let old = group.leader(0).await;
    let fault = now_ns();
    group.nodes[0].order("stall 6000").await;
    group.nodes[0].wait_said("the stall", |said| said["say"] == "stalled").await;
    let new = group.leader(old.epoch).await;
    assert_eq!(new.node, 1);
    // Under `fenced` the old gate may be open until its lease ends: the fence, not the gate, is
    // what keeps them apart there.
    if !fenced {
        group.judge("stalled executor", Fault::Freeze, fault, new);
        group.watch_for(Duration::from_millis(300)).await;
    }
}

#[tokio::test]
async fn a_leader_whose_executor_stalls_has_its_gate_shut_by_the_clock_alone() {
    stalled(false).await;
}

#[tokio::test]
async fn a_leader_whose_executor_stalls_is_followed_when_fenced() {
    stalled(true).await;
}

/// The same scenario and the same assertion as above, with one clock that does not count the time for
/// which its process is frozen: it must be caught, or the assertion proves nothing.
#[tokio::test]
async fn the_checker_catches_a_clock_that_stands_still_while_its_process_is_frozen() {
    let setup = setup(false).await;
    let mut group = Group::default();
    group.add(Setup { name: "a".into(), clock_lies: true, ..setup.clone() }).await;
    let old = group.leader(0).await;
    group.add(Setup { name: "b".into(), ..setup }).await;
    group.settle(2).await;
    // No task runs, as in a paused process, but the sampler's thread does once it is thawed.
    group.nodes[0].order("stall 9000").await;
    group.nodes[0].wait_said("the stall", |said| said["say"] == "stalled").await;
    group.nodes[0].freeze();
    let new = group.leader(old.epoch).await;
    assert_eq!(new.node, 1);
    group.nodes[0].thaw();
    let end = std::time::Instant::now() + Duration::from_secs(5);
    let caught = loop {
        match history::check(&group.events()) {
            Err(violation) => break Some(violation),
            Ok(_) if std::time::Instant::now() > end => break None,
            Ok(_) => sleep(Duration::from_millis(5)).await,
        }
    };
    assert!(matches!(caught, Some(Violation::Overlap { .. })), "{caught:?}");
}

async fn terminated(fenced: bool) {
    let setup = setup(fenced).await;
    let client = connect(&setup.dsn).await;
    let mut group = Group::start(&["a", "b"], &setup).await;
    let old = group.leader(0).await;
    let pid = seat_pid(&client, &mut group.nodes[0]).await;
    let fault = now_ns();
    client.execute("select pg_terminate_backend($1)", &[&pid]).await.expect("terminated");
    // Either may follow: the old leader, connected again, or the other.
    let what = "pg_terminate_backend";
    group.fail_over(what, Fault::BackendTerminated, fault, old.epoch).await;
    group.watch_for(Duration::from_millis(300)).await;
}

#[tokio::test]
async fn a_terminated_backend_is_a_loss_and_a_new_term() {
    terminated(false).await;
}

#[tokio::test]
async fn a_terminated_backend_is_a_loss_and_a_new_term_when_fenced() {
    terminated(true).await;
}

async fn handed_over(fenced: bool, order: &str) {
    let mut group = Group::start(&["a", "b"], &setup(fenced).await).await;
    let old = group.leader(0).await;
    let fault = now_ns();
    group.nodes[0].do_now(order).await.expect(order);
    let new = group.fail_over(order, Fault::StepDown, fault, old.epoch).await;
    assert_eq!(new.node, 1);
    if order == "shutdown" {
        group.nodes[0].wait_gone().await;
        group.verify();
    }
}

#[tokio::test]
async fn a_leader_that_steps_down_is_followed_at_once() {
    handed_over(false, "step_down").await;
}

#[tokio::test]
async fn a_leader_that_steps_down_is_followed_at_once_when_fenced() {
    handed_over(true, "step_down").await;
}

#[tokio::test]
async fn a_leader_that_shuts_down_is_followed_at_once() {
    handed_over(false, "shutdown").await;
}

/// No process can finish an act in flight when the leader dies: the successor waits all the same.
#[tokio::test]
async fn a_leader_killed_while_it_drains_is_followed_as_after_a_crash() {
    let mut group = Group::start(&["a", "b"], &setup(false).await).await;
    let old = group.leader(0).await;
    group.nodes[0].do_now("begin").await.expect("it leads");
    group.nodes[0].do_now("resign").await.expect("asked");
    group.nodes[0].wait_notice("Releasing").await;
    let fault = now_ns();
    group.nodes[0].signal(Signal::KILL);
    let new = group.fail_over("SIGKILL while draining", Fault::Crash, fault, old.epoch).await;
    assert_eq!(new.node, 1);
    let earliest = group.nodes[1].lease().lease() / 2;
    assert!(Duration::from_nanos(new.at_ns - fault) > earliest, "it did not wait for the debt");
}

/// With a lease so long that the repair poll comes too late, and no other attempts: the ring notices
/// a death, and a notification a release.
#[tokio::test]
async fn neither_a_death_nor_a_release_waits_for_the_poll() {
    let setup = Setup {
        lease: Duration::from_secs(20),
        heartbeat: Duration::from_millis(300),
        retry: Some(Duration::from_secs(60)),
        ..setup(true).await
    };
    let mut group = Group::start(&["a", "b", "c"], &setup).await;
    let first = group.leader(0).await;
    let fault = now_ns();
    group.nodes[0].kill().await;
    let second = group.fail_over("SIGKILL, by the ring", Fault::Crash, fault, first.epoch).await;
    let fault = now_ns();
    group.nodes[second.node].do_now("step_down").await.expect("stepped down");
    group.fail_over("step_down, by notification", Fault::StepDown, fault, second.epoch).await;
}
