//! What every way of holding a role keeps.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::config::RoleSpec;
use tenure::{
    Epoch, Leadership, LockState, LostReason, NotLeader, Notice, Refusal, TakeoverPolicy,
    TenureError,
};
use tokio::sync::broadcast::Receiver;
use tokio::time::{Instant, timeout};

use crate::stage::{LEASE, Memory, PATIENCE, Postgres, Stage};

async fn leader<S: Stage>(stage: &S, role: RoleSpec) -> S::Lock {
    let lock = stage.candidate(role).await;
    lock.start().await.unwrap();
    assert!(lock.wait_for_leadership(Some(PATIENCE)).await, "nobody else is there");
    lock
}

async fn until(
    events: &mut Receiver<tenure::Event>,
    wanted: impl Fn(&Notice) -> bool,
) -> Vec<Notice> {
    let mut seen = Vec::new();
    let all = async {
        loop {
            let notice = events.recv().await.expect("an event").notice;
            let found = wanted(&notice);
            seen.push(notice);
            if found {
                return;
            }
        }
    };
    timeout(PATIENCE, all).await.expect("the event comes");
    seen
}

async fn only_one_of_many_leads_and_the_rest_take_over_in_turn<S: Stage>(stage: S) {
    let mut locks = Vec::new();
    for _ in 0..4 {
        let lock = stage.candidate(RoleSpec::named("r")).await;
        lock.start().await.unwrap();
        locks.push(lock);
    }
    let mut last = Epoch::ZERO;
    while !locks.is_empty() {
        let waits = locks.iter().map(|lock| Box::pin(lock.wait_for_leadership(Some(PATIENCE))));
        let (won, index, _) = futures_util::future::select_all(waits).await;
        assert!(won);
        assert_eq!(locks.iter().filter(|lock| lock.is_leader()).count(), 1);
        let lock = locks.swap_remove(index);
        let epoch = lock.gate().epoch().expect("it leads");
        assert!(epoch > last, "{epoch} after {last}");
        last = epoch;
        lock.shutdown(Some(PATIENCE)).await.unwrap();
        assert!(!lock.is_leader());
    }
}

async fn start_shutdown_and_step_down_may_be_repeated<S: Stage>(stage: S) {
    let lock = stage.candidate(RoleSpec::named("r").cool_down(Duration::ZERO)).await;
    assert_eq!(lock.state(), LockState::Stopped);
    lock.step_down(Some(PATIENCE)).await.unwrap();
    lock.shutdown(Some(PATIENCE)).await.unwrap();
    let (one, two) = tokio::join!(lock.start(), lock.start());
    one.and(two).unwrap();
    assert!(lock.wait_for_leadership(Some(PATIENCE)).await);
    lock.start().await.unwrap();
    assert_eq!(lock.gate().epoch(), Some(Epoch(1)), "a second start begins no second term");
    let (one, two) = tokio::join!(lock.step_down(Some(PATIENCE)), lock.step_down(Some(PATIENCE)));
    one.and(two).unwrap();
    assert!(lock.wait_for_leadership(Some(PATIENCE)).await);
    let (one, two) = tokio::join!(lock.shutdown(Some(PATIENCE)), lock.shutdown(Some(PATIENCE)));
    one.and(two).unwrap();
    assert_eq!(lock.state(), LockState::Stopped);
    lock.start().await.unwrap();
    assert!(lock.wait_for_leadership(Some(PATIENCE)).await, "it may be started again");
    lock.shutdown(Some(PATIENCE)).await.unwrap();
}

async fn events_tell_a_term_from_start_to_stop_in_order<S: Stage>(stage: S) {
    use LockState::{Acquiring, Follower, Leader, Releasing, Stopped};
    let lock = stage.candidate(RoleSpec::named("r")).await;
    let mut events = lock.events();
    lock.start().await.unwrap();
    assert!(lock.wait_for_leadership(Some(PATIENCE)).await);
    let epoch = lock.gate().epoch().unwrap();
    lock.shutdown(Some(PATIENCE)).await.unwrap();
    let seen = until(&mut events, |notice| *notice == Notice::Stopped).await;
    let change = |from, to| Notice::StateChange { from, to };
    let told = [
        change(Stopped, Follower),
        change(Follower, Acquiring),
        change(Acquiring, Leader),
        Notice::Acquired { epoch },
        change(Leader, Releasing),
        Notice::Released { epoch },
        change(Releasing, Stopped),
        Notice::Stopped,
    ];
    assert_eq!(seen, told);
}

async fn callbacks_come_in_order_and_a_panic_becomes_an_error<S: Stage>(stage: S) {
    let lock = stage.candidate(RoleSpec::named("r")).await;
    let told = Arc::new(Mutex::new(Vec::new()));
    let (done, is_done) = tokio::sync::watch::channel(false);
    let push = |word: &'static str| {
        let told = told.clone();
        move || told.lock().unwrap().push(word)
    };
    let (acquired, second, released, stopped, failed) =
        (push("acquired"), push("second"), push("released"), push("stopped"), push("error"));
    lock.on_acquired(move |_| acquired())
        .on_acquired(move |_| second())
        .on_released(move |_| {
            released();
            panic!("on purpose");
        })
        .on_error(move |_| failed())
        .on_stopped(move || {
            stopped();
            done.send_replace(true);
        });
    lock.start().await.unwrap();
    assert!(lock.wait_for_leadership(Some(PATIENCE)).await);
    lock.shutdown(Some(PATIENCE)).await.unwrap();
    let mut is_done = is_done;
    timeout(PATIENCE, is_done.wait_for(|done| *done)).await.expect("all are called").unwrap();
    let told = told.lock().unwrap().clone();
    assert_eq!(told, ["acquired", "second", "released", "error", "stopped"]);
}

async fn waiting_for_leadership_ends_when_its_time_is_over<S: Stage>(stage: S) {
    let first = leader(&stage, RoleSpec::named("r")).await;
    let second = stage.candidate(RoleSpec::named("r")).await;
    assert!(!second.wait_for_leadership(Some(Duration::ZERO)).await, "it was not even started");
    second.start().await.unwrap();
    let before = Instant::now();
    assert!(!second.wait_for_leadership(Some(Duration::from_millis(100))).await);
    assert!(before.elapsed() >= Duration::from_millis(100));
    assert!(!second.is_leader());
    let waits = second.wait_for_leadership(None);
    let (led, stopped) = tokio::join!(waits, first.shutdown(Some(PATIENCE)));
    stopped.unwrap();
    assert!(led);
}

async fn a_step_down_waits_for_the_act_and_begins_no_new_one<S: Stage>(stage: S) {
    let first = leader(&stage, RoleSpec::named("r").drain_limit(PATIENCE)).await;
    let second = stage.candidate(RoleSpec::named("r")).await;
    second.start().await.unwrap();
    let act = first.begin_act(Duration::ZERO).unwrap();
    let mut events = first.events();
    let stepping = first.step_down(Some(PATIENCE));
    tokio::pin!(stepping);
    let released =
        |notice: &Notice| matches!(notice, Notice::StateChange { to: LockState::Releasing, .. });
    tokio::select! {
        biased;
        _ = &mut stepping => panic!("it did not wait for the act"),
        _ = until(&mut events, released) => {}
    }
    assert!(matches!(
        first.begin_act(Duration::ZERO),
        Err(NotLeader { reason: Refusal::Draining, .. })
    ));
    assert!(!second.is_leader());
    act.finish().expect("the lease still covers it");
    stepping.await.unwrap();
    assert!(second.wait_for_leadership(Some(PATIENCE)).await);
}

async fn who_stepped_down_stays_out_for_its_cool_down<S: Stage>(stage: S) {
    let cool_down = Duration::from_millis(700);
    let lock = leader(&stage, RoleSpec::named("r").cool_down(cool_down)).await;
    let before = Instant::now();
    lock.step_down(Some(PATIENCE)).await.unwrap();
    assert!(!lock.is_leader());
    assert!(lock.wait_for_leadership(Some(PATIENCE)).await);
    assert!(before.elapsed() >= cool_down, "{:?}", before.elapsed());
    assert_eq!(lock.gate().epoch(), Some(Epoch(2)));
}

async fn changes_show_every_term_and_no_epoch_twice<S: Stage>(stage: S) {
    let lock = stage.candidate(RoleSpec::named("r").cool_down(Duration::ZERO)).await;
    let mut changes = lock.changes();
    assert!(!changes.borrow_and_update().is_leader);
    lock.start().await.unwrap();
    for term in 1..=3 {
        let wait = changes.wait_for(|change| change.is_leader);
        let led = *timeout(PATIENCE, wait).await.expect("a term").unwrap();
        assert_eq!(led.epoch, Some(Epoch(term)));
        lock.gate().ensure_epoch(Epoch(term)).unwrap();
        lock.step_down(Some(PATIENCE)).await.unwrap();
        let wait = changes.wait_for(|change| !change.is_leader || change.epoch > led.epoch);
        timeout(PATIENCE, wait).await.expect("its end").unwrap();
        assert!(lock.gate().ensure_epoch(Epoch(term)).is_err(), "an old token is no good");
    }
}

async fn a_lost_session_is_a_loss_and_exclusive_waits_the_lease_out<S: Stage>(stage: S) {
    let first = leader(&stage, RoleSpec::named("r").auto_reacquire(false)).await;
    let second = stage.candidate(RoleSpec::named("r")).await;
    second.start().await.unwrap();
    let mut events = first.events();
    let before = Instant::now();
    stage.end_session(&first).await;
    let lost = |notice: &Notice| {
        matches!(notice, Notice::Lost { epoch: Epoch(1), reason: LostReason::Session(_) })
    };
    until(&mut events, lost).await;
    assert!(!first.is_leader());
    assert!(second.wait_for_leadership(Some(PATIENCE)).await);
    // The last beat may be a heartbeat old when the session ends.
    assert!(before.elapsed() >= LEASE / 2, "{:?}", before.elapsed());
    assert_eq!(second.gate().epoch(), Some(Epoch(2)));
}

async fn fenced_takes_over_without_waiting<S: Stage>(stage: S) {
    let role = || RoleSpec::named("r").policy(TakeoverPolicy::Fenced);
    let first = leader(&stage, role().auto_reacquire(false)).await;
    let second = stage.candidate(role()).await;
    second.start().await.unwrap();
    stage.end_session(&first).await;
    assert!(second.wait_for_leadership(Some(PATIENCE)).await);
    assert_eq!(second.gate().epoch(), Some(Epoch(2)));
}

async fn an_observer_never_leads_and_priority_goes_first<S: Stage>(stage: S) {
    let first = leader(&stage, RoleSpec::named("r")).await;
    let observer = stage.candidate(RoleSpec::named("r").candidate(false)).await;
    let low = stage.candidate(RoleSpec::named("r").priority(1)).await;
    let high = stage.candidate(RoleSpec::named("r").priority(2)).await;
    for lock in [&observer, &low, &high] {
        lock.start().await.unwrap();
    }
    first.shutdown(Some(PATIENCE)).await.unwrap();
    assert!(high.wait_for_leadership(Some(PATIENCE)).await);
    assert!(!low.is_leader() && !observer.is_leader());
    assert_eq!(high.gate().epoch(), Some(Epoch(2)), "nobody led in between");
}

async fn two_policies_of_one_role_are_refused<S: Stage>(stage: S) {
    let first = leader(&stage, RoleSpec::named("r")).await;
    let other = stage.candidate(RoleSpec::named("r").policy(TakeoverPolicy::Fenced)).await;
    let refused = other.start().await;
    assert!(matches!(refused, Err(TenureError::Registration { .. })), "{refused:?}");
    assert!(first.is_leader());
}

macro_rules! suite {
    ($($promise:ident),* $(,)?) => {
        mod postgres {
            use super::{Postgres, Stage};
            $(#[tokio::test]
            async fn $promise() {
                super::$promise(Postgres::open().await).await;
            })*
        }
        mod memory {
            use super::{Memory, Stage};
            $(#[tokio::test(start_paused = true)]
            async fn $promise() {
                super::$promise(Memory::open().await).await;
            })*
        }
    };
}

suite![
    only_one_of_many_leads_and_the_rest_take_over_in_turn,
    start_shutdown_and_step_down_may_be_repeated,
    events_tell_a_term_from_start_to_stop_in_order,
    callbacks_come_in_order_and_a_panic_becomes_an_error,
    waiting_for_leadership_ends_when_its_time_is_over,
    a_step_down_waits_for_the_act_and_begins_no_new_one,
    who_stepped_down_stays_out_for_its_cool_down,
    changes_show_every_term_and_no_epoch_twice,
    a_lost_session_is_a_loss_and_exclusive_waits_the_lease_out,
    fenced_takes_over_without_waiting,
    an_observer_never_leads_and_priority_goes_first,
    two_policies_of_one_role_are_refused,
];
