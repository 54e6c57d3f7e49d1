//! The gate's protocol under the reorderings the memory model allows, and every interleaving with at
//! most three preemptions (without that bound it takes minutes instead of seconds).
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p tenure-core --release --test gate_loom`
#![cfg(loom)]

use std::sync::Arc;
use std::time::Duration;

use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;
use tenure_core::{Clock, Epoch, Identity, LeaderGate, Tick};

/// A clock that the model sees, so that "later" is something it can reason about: a thread that
/// reads a tick has seen everything that was done before the clock was moved there.
#[derive(Debug)]
struct ModelClock(Arc<AtomicU64>);

impl Clock for ModelClock {
    fn now(&self) -> Tick {
        Tick::from_nanos(self.0.load(Ordering::Acquire))
    }
}

struct World {
    ticks: Arc<AtomicU64>,
    keeper: tenure_core::GateKeeper,
    gate: LeaderGate,
}

fn world(at: u64) -> World {
    let ticks = Arc::new(AtomicU64::new(at));
    let identity = "test-host-1-6f1c1f5e-3b1a-4c55-9d6e-0a1b2c3d4e5f".parse::<Identity>().unwrap();
    let (keeper, gate) = LeaderGate::pair(Arc::new(ModelClock(ticks.clone())), identity);
    World { ticks, keeper, gate }
}

fn model(run: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(run);
}

fn tick(ticks: &AtomicU64, to: u64) {
    ticks.store(to, Ordering::Release);
}

#[test]
fn a_gate_never_says_yes_for_an_instant_before_it_opened_or_after_it_shut() {
    model(|| {
        let World { ticks, mut keeper, gate } = world(10);
        let reader = thread::spawn(move || gate.check_at());
        // Open from 20 on; a clean release before 30, long before the deadline.
        tick(&ticks, 20);
        keeper.open(Epoch(1), Tick::from_nanos(100));
        keeper.shut();
        tick(&ticks, 30);
        if let Some(yes) = reader.join().unwrap() {
            assert_eq!(yes, Tick::from_nanos(20));
        }
    });
}

#[test]
fn a_reader_never_pairs_one_terms_epoch_with_another_terms_deadline() {
    model(|| {
        let World { ticks: _ticks, mut keeper, gate } = world(10);
        // Two terms without a shut between them: the opening alone must keep them apart.
        let terms = [(Epoch(1), Tick::from_nanos(90)), (Epoch(2), Tick::from_nanos(100))];
        keeper.open(terms[0].0, terms[0].1);
        let reader = thread::spawn(move || gate.require_leader());
        keeper.open(terms[1].0, terms[1].1);
        if let Ok(token) = reader.join().unwrap() {
            assert!(terms.contains(&(token.epoch, token.deadline())), "{token:?}");
        }
    });
}

#[test]
fn a_gate_that_was_shut_and_opened_again_says_no_for_the_time_between() {
    model(|| {
        let World { ticks, mut keeper, gate } = world(10);
        keeper.open(Epoch(1), Tick::from_nanos(100));
        let reader = thread::spawn(move || gate.check_at());
        keeper.shut();
        tick(&ticks, 20);
        tick(&ticks, 30);
        keeper.open(Epoch(1), Tick::from_nanos(100));
        if let Some(yes) = reader.join().unwrap() {
            assert_ne!(yes, Tick::from_nanos(20), "shut, and no reader may have missed it");
        }
    });
}

#[test]
fn a_drain_sees_the_act_or_the_act_sees_the_drain() {
    model(|| {
        let World { ticks: _ticks, mut keeper, gate } = world(10);
        keeper.open(Epoch(1), Tick::from_nanos(100));
        let actor = thread::spawn(move || gate.begin_act(Duration::from_nanos(1)).ok());
        keeper.begin_drain();
        let seen = keeper.in_flight();
        let act = actor.join().unwrap();
        assert!(act.is_none() || seen == 1, "an act began that the drain did not wait for");
    });
}

#[test]
fn a_shut_sees_the_act_or_the_act_sees_the_shut() {
    model(|| {
        let World { ticks: _ticks, mut keeper, gate } = world(10);
        keeper.open(Epoch(1), Tick::from_nanos(100));
        let actor = thread::spawn(move || gate.begin_act(Duration::from_nanos(1)).ok());
        keeper.shut();
        let clean = keeper.in_flight() == 0;
        let act = actor.join().unwrap();
        assert!(act.is_none() || !clean, "released as clean with an act in flight");
    });
}

#[test]
fn the_end_of_the_last_act_is_never_slept_through() {
    model(|| {
        let World { ticks: _ticks, mut keeper, gate } = world(10);
        keeper.open(Epoch(1), Tick::from_nanos(100));
        let act = gate.begin_act(Duration::from_nanos(1)).unwrap();
        let actor = thread::spawn(move || drop(act));
        keeper.begin_drain();
        // A lost wake-up would be a deadlock, which the model reports.
        loom::future::block_on(keeper.drained());
        assert_eq!(keeper.in_flight(), 0);
        actor.join().unwrap();
    });
}
