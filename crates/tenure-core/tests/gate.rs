//! The promises of the gate, on a clock that moves when told.
#![cfg(not(loom))]

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use tenure_core::{Clock, Epoch, GateKeeper, Identity, LeaderGate, ManualClock, Refusal, Tick};

const MS: Duration = Duration::from_millis(1);

fn at(ms: u64) -> Tick {
    Tick::from_nanos(ms * 1_000_000)
}

fn shut_gate() -> (GateKeeper, LeaderGate, ManualClock) {
    let clock = ManualClock::new(at(1000));
    let identity = "test-host-1-6f1c1f5e-3b1a-4c55-9d6e-0a1b2c3d4e5f".parse::<Identity>().unwrap();
    let (keeper, gate) = LeaderGate::pair(Arc::new(clock.clone()), identity);
    (keeper, gate, clock)
}

/// Open under epoch 5 from tick 1000 ms to 4000 ms.
fn open_gate() -> (GateKeeper, LeaderGate, ManualClock) {
    let (mut keeper, gate, clock) = shut_gate();
    assert!(keeper.open(Epoch(5), at(4000)));
    (keeper, gate, clock)
}

fn why(gate: &LeaderGate) -> Refusal {
    gate.require_leader().unwrap_err().reason
}

#[test]
fn a_new_gate_is_shut() {
    let (_keeper, gate, _) = shut_gate();
    assert!(!gate.is_leader());
    assert_eq!(gate.epoch(), None);
    assert_eq!(gate.remaining(), Duration::ZERO);
    assert_eq!(why(&gate), Refusal::Shut);
}

#[test]
fn an_open_gate_hands_out_its_epoch_holder_and_deadline() {
    let (_keeper, gate, clock) = open_gate();
    let token = gate.require_leader().unwrap();
    assert_eq!((token.epoch, token.deadline()), (Epoch(5), at(4000)));
    assert_eq!(&token.holder_identity, gate.identity());
    assert_eq!(gate.check_at(), Some(clock.now()));
    assert_eq!(gate.remaining(), 3000 * MS);
}

#[test]
fn a_gate_shuts_at_its_deadline_without_any_task_running() {
    let (_keeper, gate, clock) = open_gate();
    clock.set(Tick::from_nanos(at(4000).as_nanos() - 1));
    assert!(gate.is_leader());
    clock.set(at(4000));
    assert!(!gate.is_leader());
    assert_eq!(why(&gate), Refusal::Expired);
}

#[test]
fn a_heartbeat_extends_only_its_own_epoch_and_only_to_later() {
    let (mut keeper, gate, clock) = open_gate();
    assert!(!keeper.extend(Epoch(4), at(9000)));
    assert!(!keeper.extend(Epoch(6), at(9000)));
    assert!(!keeper.extend(Epoch(5), at(3000)));
    assert_eq!(gate.remaining(), 3000 * MS);
    assert!(keeper.extend(Epoch(5), at(5000)));
    clock.set(at(4999));
    assert!(gate.is_leader());
}

#[test]
fn a_late_heartbeat_reopens_an_expired_gate_but_not_a_shut_one() {
    let (mut keeper, gate, clock) = open_gate();
    clock.set(at(4500));
    assert!(!gate.is_leader());
    assert!(keeper.extend(Epoch(5), at(5000)));
    assert!(gate.is_leader());
    keeper.shut();
    assert!(!keeper.extend(Epoch(5), at(6000)));
    assert!(!gate.is_leader());
    assert!(keeper.open(Epoch(5), at(6000)), "the same term goes on after a doubt");
    assert!(gate.is_leader());
}

#[test]
fn an_old_epoch_never_opens_again() {
    let (mut keeper, gate, _) = open_gate();
    keeper.shut();
    assert!(!keeper.open(Epoch(4), at(9000)));
    assert!(!gate.is_leader());
}

#[test]
fn ensure_epoch_tells_another_term_from_no_term() {
    let (mut keeper, gate, _) = open_gate();
    let token = gate.require_leader().unwrap();
    assert_eq!(gate.ensure_epoch(token.epoch), Ok(()));
    keeper.shut();
    keeper.open(Epoch(8), at(4000));
    let told = gate.ensure_epoch(token.epoch).unwrap_err();
    assert_eq!(told.reason, Refusal::OtherEpoch { current: Epoch(8) });
    keeper.shut();
    assert_eq!(gate.ensure_epoch(Epoch(8)).unwrap_err().reason, Refusal::Shut);
}

#[test]
fn an_act_must_fit_into_the_lease() {
    let (keeper, gate, _) = open_gate();
    assert_eq!(gate.begin_act(3000 * MS).unwrap().epoch(), Epoch(5));
    let told = gate.begin_act(3001 * MS).unwrap_err();
    assert_eq!(told.reason, Refusal::LeaseTooShort { remaining: 3000 * MS });
    assert!(gate.begin_act(Duration::MAX).is_err());
    assert_eq!(keeper.in_flight(), 0, "refused and ended acts are counted out");
}

#[test]
fn an_act_that_outlives_its_lease_is_uncertain() {
    let (mut keeper, gate, clock) = open_gate();
    let act = gate.begin_act(MS).unwrap();
    assert_eq!(act.check(), Ok(()));
    clock.set(at(4000));
    assert_eq!(act.finish().unwrap_err().reason, Refusal::Expired);

    keeper.extend(Epoch(5), at(9000));
    let act = gate.begin_act(MS).unwrap();
    keeper.shut();
    assert_eq!(act.check().unwrap_err().reason, Refusal::Shut);
    keeper.open(Epoch(5), at(9000));
    assert_eq!(act.check(), Ok(()), "no other term in between: the epoch is the same");
    keeper.open(Epoch(6), at(9000));
    let told = act.finish().unwrap_err();
    assert_eq!((told.epoch, told.reason), (Epoch(5), Refusal::OtherEpoch { current: Epoch(6) }));
}

#[test]
fn a_drain_admits_no_new_act_and_leaves_those_in_flight_their_term() {
    let (mut keeper, gate, clock) = open_gate();
    let act = gate.begin_act(MS).unwrap();
    keeper.begin_drain();
    assert_eq!(why(&gate), Refusal::Draining);
    assert_eq!(gate.begin_act(MS).unwrap_err().reason, Refusal::Draining);
    assert_eq!(act.check(), Ok(()));
    assert!(keeper.extend(Epoch(5), at(6000)), "heartbeats go on while acts end");
    clock.set(at(5000));
    assert_eq!(act.finish(), Ok(()));
    assert_eq!(keeper.in_flight(), 0);
    keeper.begin_drain();
    keeper.shut();
    keeper.begin_drain();
    assert_eq!(why(&gate), Refusal::Shut, "a shut gate does not drain");
}

#[test]
fn a_dropped_keeper_shuts_the_gate() {
    let (keeper, gate, _) = open_gate();
    drop(keeper);
    assert!(!gate.is_leader());
}

#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn drained_resolves_when_the_last_act_ends() {
    let (mut keeper, gate, _) = open_gate();
    let (first, second) = (gate.begin_act(MS).unwrap(), gate.begin_act(MS).unwrap());
    keeper.begin_drain();
    let wakes = Arc::new(Wakes::default());
    let waker = Waker::from(wakes.clone());
    let mut drained = pin!(keeper.drained());
    let mut poll = || drained.as_mut().poll(&mut Context::from_waker(&waker));
    assert_eq!(poll(), Poll::Pending);
    drop(first);
    assert_eq!(wakes.0.load(Ordering::SeqCst), 0);
    drop(second);
    assert_eq!(wakes.0.load(Ordering::SeqCst), 1);
    assert_eq!(poll(), Poll::Ready(()));
}

#[test]
fn checks_and_acts_are_shareable_across_threads_and_awaits() {
    fn is_send_sync<T: Send + Sync + 'static>() {}
    is_send_sync::<LeaderGate>();
    is_send_sync::<GateKeeper>();
    is_send_sync::<tenure_core::Act>();
    is_send_sync::<tenure_core::Drained>();
}
