//! What every way of holding a role keeps.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::config::RoleSpec;
use tenure::{
    Epoch, Leader, LockState, LostReason, NotLeader, Notice, Refusal, TakeoverPolicy, TenureError,
};
use tokio::sync::broadcast::Receiver;
use tokio::time::{Instant, timeout};

use crate::stage::{LEASE, Memory, PATIENCE, Postgres, Stage};

async fn leader<S: Stage>(stage: &S, role: RoleSpec) -> S::Lock {
    let lock = stage.candidate(role).await;
    lock.start().await.unwrap();
    assert!(lock.wait_for_leadership(Some(PATIENCE)).await.is_ok(), "no other candidate is there");
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
        won.expect("one of them leads");
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
    assert!(lock.wait_for_leadership(Some(PATIENCE)).await.is_ok());
    lock.start().await.unwrap();
    assert_eq!(lock.gate().epoch(), Some(Epoch(1)), "a second start begins no second term");
    let (one, two) = tokio::join!(lock.step_down(Some(PATIENCE)), lock.step_down(Some(PATIENCE)));
    one.and(two).unwrap();
    assert!(lock.wait_for_leadership(Some(PATIENCE)).await.is_ok());
    let (one, two) = tokio::join!(lock.shutdown(Some(PATIENCE)), lock.shutdown(Some(PATIENCE)));
    one.and(two).unwrap();
    assert_eq!(lock.state(), LockState::Stopped);
    lock.start().await.unwrap();
    assert!(lock.wait_for_leadership(Some(PATIENCE)).await.is_ok(), "it may be started again");
    lock.shutdown(Some(PATIENCE)).await.unwrap();
}

async fn events_tell_a_term_from_start_to_stop_in_order<S: Stage>(stage: S) {
    use LockState::{Acquiring, Follower, Leader, Releasing, Stopped};
    let lock = stage.candidate(RoleSpec::named("r")).await;
    let mut events = lock.events();
    lock.start().await.unwrap();
    assert!(lock.wait_for_leadership(Some(PATIENCE)).await.is_ok());
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
    assert!(lock.wait_for_leadership(Some(PATIENCE)).await.is_ok());
    lock.shutdown(Some(PATIENCE)).await.unwrap();
    let mut is_done = is_done;
    timeout(PATIENCE, is_done.wait_for(|done| *done)).await.expect("all are called").unwrap();
    let told = told.lock().unwrap().clone();
    assert_eq!(told, ["acquired", "second", "released", "error", "stopped"]);
}

async fn waiting_for_leadership_ends_when_its_time_is_over<S: Stage>(stage: S) {
    let first = leader(&stage, RoleSpec::named("r")).await;
    let second = stage.candidate(RoleSpec::named("r")).await;
    assert!(
        second.wait_for_leadership(Some(Duration::ZERO)).await.is_err(),
        "it was not even started"
    );
    second.start().await.unwrap();
    let before = Instant::now();
    assert!(second.wait_for_leadership(Some(Duration::from_millis(100))).await.is_err());
    assert!(before.elapsed() >= Duration::from_millis(100));
    assert!(!second.is_leader());
    let waits = second.wait_for_leadership(None);
    let (led, stopped) = tokio::join!(waits, first.shutdown(Some(PATIENCE)));
    stopped.unwrap();
    assert_eq!(led.expect("it leads").epoch, Epoch(2));
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
    assert!(second.wait_for_leadership(Some(PATIENCE)).await.is_ok());
}

async fn a_member_that_stepped_down_stays_out_for_its_cool_down<S: Stage>(stage: S) {
    let cool_down = Duration::from_millis(700);
    let lock = leader(&stage, RoleSpec::named("r").cool_down(cool_down)).await;
    let before = Instant::now();
    lock.step_down(Some(PATIENCE)).await.unwrap();
    assert!(!lock.is_leader());
    assert!(lock.wait_for_leadership(Some(PATIENCE)).await.is_ok());
    assert!(before.elapsed() >= cool_down, "{:?}", before.elapsed());
    assert_eq!(lock.gate().epoch(), Some(Epoch(2)));
}

async fn a_named_successor_leads_although_it_stepped_down_a_moment_ago<S: Stage>(stage: S) {
    let role = || RoleSpec::named("r").cool_down(Duration::from_secs(600));
    let first = leader(&stage, role()).await;
    let second = stage.candidate(role()).await;
    second.start().await.unwrap();
    first.hand_over(Some(second.identity().clone()), Some(PATIENCE)).await.unwrap();
    assert!(second.wait_for_leadership(Some(PATIENCE)).await.is_ok());
    // Back and forth: each names a member that is in its cool-down.
    second.hand_over(Some(first.identity().clone()), Some(PATIENCE)).await.unwrap();
    assert!(first.wait_for_leadership(Some(PATIENCE)).await.is_ok());
    first.hand_over(Some(second.identity().clone()), Some(PATIENCE)).await.unwrap();
    assert!(second.wait_for_leadership(Some(PATIENCE)).await.is_ok());
    assert_eq!(second.gate().epoch(), Some(Epoch(4)), "no term in between");
    // It names itself: that is no successor, and no order to lead again.
    second.hand_over(Some(second.identity().clone()), Some(PATIENCE)).await.unwrap();
    let again = second.wait_for_leadership(Some(LEASE * 2)).await;
    assert!(matches!(again, Err(TenureError::Timeout { .. })), "{again:?}");
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
    assert!(second.wait_for_leadership(Some(PATIENCE)).await.is_ok());
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
    assert!(second.wait_for_leadership(Some(PATIENCE)).await.is_ok());
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
    assert!(high.wait_for_leadership(Some(PATIENCE)).await.is_ok());
    assert!(!low.is_leader() && !observer.is_leader());
    assert_eq!(high.gate().epoch(), Some(Epoch(2)), "no term in between");
}

async fn two_policies_of_one_role_are_refused<S: Stage>(stage: S) {
    let first = leader(&stage, RoleSpec::named("r")).await;
    let other = stage.candidate(RoleSpec::named("r").policy(TakeoverPolicy::Fenced)).await;
    let refused = other.start().await;
    assert!(matches!(refused, Err(TenureError::Registration { .. })), "{refused:?}");
    assert!(first.is_leader());
}

/// Counts one run of a piece of work in while it lives.
struct Running(Arc<AtomicUsize>);

impl Running {
    fn begin(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Running(count.clone())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

async fn work_runs_while_its_member_leads_and_never_beside_its_successor<S: Stage>(stage: S) {
    let (first, second) = tokio::join!(
        stage.candidate(RoleSpec::named("r").cool_down(Duration::ZERO)),
        stage.candidate(RoleSpec::named("r").cool_down(Duration::ZERO)),
    );
    let running = Arc::new(AtomicUsize::new(0));
    let (begun, mut terms) = tokio::sync::mpsc::unbounded_channel();
    let mut tasks = Vec::new();
    for lock in [&first, &second] {
        let (lock, running, begun) = ((**lock).clone(), running.clone(), begun.clone());
        tasks.push(tokio::spawn(async move {
            lock.while_leading(|term| {
                let run = Running::begin(&running);
                assert_eq!(running.load(Ordering::SeqCst), 1, "the work before it is gone");
                begun.send((term.holder_identity.clone(), term.epoch)).unwrap();
                async move {
                    let _run = run;
                    std::future::pending::<()>().await;
                }
            })
            .await
        }));
    }
    // A busy machine may take long over a registration, and one candidate may have all four terms meanwhile.
    tenure_testkit::until("both take part", async || {
        [&first, &second].iter().all(|lock| lock.state() != LockState::Stopped)
    })
    .await;
    let mut last = Epoch::ZERO;
    for _ in 0..4 {
        let (leader, epoch) = timeout(PATIENCE, terms.recv()).await.expect("in time").unwrap();
        assert!(epoch > last, "{epoch} after {last}");
        last = epoch;
        let lock = if first.identity() == &leader { &first } else { &second };
        assert_eq!(lock.state(), LockState::Leader, "a step-down must find a leader");
        lock.step_down(Some(PATIENCE)).await.unwrap();
    }
    for lock in [&first, &second] {
        lock.shutdown(Some(PATIENCE)).await.unwrap();
    }
    for task in tasks {
        let ended = timeout(PATIENCE, task).await.expect("it returns when the role stops");
        ended.unwrap().unwrap();
    }
    assert_eq!(running.load(Ordering::SeqCst), 0);
}

async fn work_that_returns_is_called_again_in_the_next_term_only<S: Stage>(stage: S) {
    let lock = stage.candidate(RoleSpec::named("r").cool_down(Duration::ZERO)).await;
    let (begun, mut terms) = tokio::sync::mpsc::unbounded_channel();
    let work = lock.while_leading(|term| {
        begun.send(term.epoch).unwrap();
        std::future::ready(())
    });
    let drive = async {
        assert_eq!(terms.recv().await, Some(Epoch(1)));
        let again = timeout(LEASE, terms.recv()).await;
        assert!(again.is_err(), "the same term goes on: {again:?}");
        assert!(lock.is_leader(), "the work's end does not end the term");
        lock.step_down(Some(PATIENCE)).await.unwrap();
        assert_eq!(terms.recv().await, Some(Epoch(2)));
        lock.shutdown(Some(PATIENCE)).await.unwrap();
    };
    let (worked, ()) = timeout(PATIENCE, async { tokio::join!(work, drive) }).await.unwrap();
    worked.unwrap();
}

async fn an_act_of_the_work_may_end_before_a_step_down_drops_it<S: Stage>(stage: S) {
    let lock = stage.candidate(RoleSpec::named("r").drain_limit(PATIENCE)).await;
    let (begun, mut is_begun) = tokio::sync::mpsc::unbounded_channel();
    let finished = Arc::new(AtomicUsize::new(0));
    let inner = (*lock).clone();
    let work = lock.while_leading(|_| {
        let (lock, begun, finished) = (inner.clone(), begun.clone(), finished.clone());
        async move {
            let act = lock.begin_act(Duration::ZERO).unwrap();
            begun.send(()).unwrap();
            let mut changes = lock.changes();
            changes.wait_for(|change| !change.is_leader).await.unwrap();
            tokio::time::sleep(LEASE / 10).await;
            act.finish().expect("the drain waits for it");
            finished.fetch_add(1, Ordering::SeqCst);
            std::future::pending::<()>().await;
        }
    });
    let drive = async {
        is_begun.recv().await.unwrap();
        lock.shutdown(Some(PATIENCE)).await.unwrap();
    };
    let (worked, ()) = timeout(PATIENCE, async { tokio::join!(work, drive) }).await.unwrap();
    worked.unwrap();
    assert_eq!(finished.load(Ordering::SeqCst), 1, "it was not cut off in its act");
}

async fn the_deadline_moves_with_every_heartbeat_and_goes_with_the_term<S: Stage>(stage: S) {
    let lock = leader(&stage, RoleSpec::named("r")).await;
    let mut deadline = lock.deadline();
    let mut last = deadline.borrow_and_update().expect("the gate is open");
    for _ in 0..3 {
        let moved = timeout(LEASE, deadline.wait_for(|now| *now > Some(last))).await;
        last = moved.expect("in time").unwrap().expect("later");
        assert_eq!(lock.gate().require_leader().unwrap().deadline(), last);
    }
    lock.shutdown(Some(PATIENCE)).await.unwrap();
    assert_eq!(*deadline.borrow_and_update(), None);
}

async fn every_handle_of_a_role_can_tell_its_leader<S: Stage>(stage: S) {
    let first = leader(&stage, RoleSpec::named("r").cool_down(Duration::ZERO)).await;
    let watcher = stage.candidate(RoleSpec::named("r").candidate(false)).await;
    let led = watcher.leader().await.unwrap().expect("the first leads");
    assert_eq!((&led.identity, led.epoch, led.acting), (first.identity(), Epoch(1), true));
    let mut leader = watcher.observe();
    let seen = timeout(PATIENCE, leader.wait_for(|leader| leader.is_some())).await.unwrap();
    assert_eq!(*seen.unwrap(), Some(led));
    let second = stage.candidate(RoleSpec::named("r")).await;
    second.start().await.unwrap();
    first.shutdown(Some(PATIENCE)).await.unwrap();
    let is_second =
        |leader: &Option<Leader>| leader.as_ref().is_some_and(|now| now.epoch == Epoch(2));
    let seen = timeout(PATIENCE, leader.wait_for(is_second)).await.expect("in time").unwrap();
    assert_eq!(&seen.as_ref().expect("a leader").identity, second.identity());
    drop(seen);
    // A holder whose session is gone leads no more, although no member has claimed the role since.
    stage.end_session(&second).await;
    second.shutdown(Some(PATIENCE)).await.unwrap();
    timeout(PATIENCE, leader.wait_for(|leader| leader.is_none())).await.expect("in time").unwrap();
    assert_eq!(watcher.leader().await.unwrap(), None);
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
    a_member_that_stepped_down_stays_out_for_its_cool_down,
    a_named_successor_leads_although_it_stepped_down_a_moment_ago,
    changes_show_every_term_and_no_epoch_twice,
    a_lost_session_is_a_loss_and_exclusive_waits_the_lease_out,
    fenced_takes_over_without_waiting,
    an_observer_never_leads_and_priority_goes_first,
    two_policies_of_one_role_are_refused,
    work_runs_while_its_member_leads_and_never_beside_its_successor,
    work_that_returns_is_called_again_in_the_next_term_only,
    an_act_of_the_work_may_end_before_a_step_down_drops_it,
    every_handle_of_a_role_can_tell_its_leader,
    the_deadline_moves_with_every_heartbeat_and_goes_with_the_term,
];
