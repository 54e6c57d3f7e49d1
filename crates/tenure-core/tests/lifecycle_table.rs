//! Every row of the table in `docs/lifecycle.md`.
#![cfg(not(loom))]

use std::sync::Arc;
use std::time::Duration;

use tenure_core::{
    Effect, Epoch, ExponentialBackoff, FixedInterval, Input, Lifecycle, LifecycleOptions,
    LockState, LostReason, NotAcquired, Notice, RetryContext, RetryStrategy, Tick,
};

use Effect::*;
use LockState::*;

const SEC: Duration = Duration::from_secs(1);
const E: Epoch = Epoch(7);

fn at(secs: u64) -> Tick {
    Tick::from_nanos(secs * 1_000_000_000)
}

/// Effects without their notices, and the notices.
fn split(effects: Vec<Effect>) -> (Vec<Effect>, Vec<Notice>) {
    let (mut does, mut tells) = (Vec::new(), Vec::new());
    for effect in effects {
        match effect {
            Notify(notice) => tells.push(notice),
            other => does.push(other),
        }
    }
    (does, tells)
}

struct Role {
    life: Lifecycle,
    now: Tick,
}

impl Role {
    fn new(opts: LifecycleOptions) -> Self {
        Role { life: Lifecycle::new(opts), now: at(100) }
    }

    fn give(&mut self, input: Input) -> (Vec<Effect>, Vec<Notice>) {
        let from = self.life.state();
        let (does, mut tells) = split(self.life.handle(input, self.now, 0.5));
        let to = self.life.state();
        let change = tells.iter().position(|n| matches!(n, Notice::StateChange { .. }));
        // A state change is told exactly when there is one; the rows below need not repeat it.
        match change.map(|i| tells.remove(i)) {
            Some(told) => assert_eq!(told, Notice::StateChange { from, to }),
            None => assert_eq!(from, to, "an untold change"),
        }
        (does, tells)
    }

    fn wait(&mut self, by: Duration) -> (Vec<Effect>, Vec<Notice>) {
        self.now = self.now + by;
        split(self.life.handle_timeout(self.now, 0.5))
    }

    fn put(opts: LifecycleOptions, state: LockState) -> Self {
        let mut role = Role::new(opts);
        let path: &[Input] = match state {
            Stopped => &[],
            Follower => &[Input::Start],
            Acquiring => &[Input::Start, Input::Wake],
            Leader => &[Input::Start, Input::Wake, won(7)],
            Reconnecting => {
                role = Role::new(LifecycleOptions { reconnect_grace: Some(10 * SEC), ..options() });
                &[Input::Start, Input::Wake, won(7), lost()]
            }
            Releasing => &[Input::Start, Input::Wake, won(7), step_down(), Input::Drained],
        };
        for input in path {
            role.give(input.clone());
        }
        assert_eq!(role.life.state(), state);
        role
    }

    fn waiting() -> Self {
        let mut role = Role::put(options(), Acquiring);
        let open_at = Some(role.now + 3 * SEC);
        assert_eq!(role.give(Input::Claimed { epoch: E, open_at }), (vec![], vec![]));
        role
    }
}

fn options() -> LifecycleOptions {
    let retry = Arc::new(FixedInterval { interval: 4 * SEC });
    LifecycleOptions { retry, ..Default::default() }
}

fn no_reacquire() -> LifecycleOptions {
    LifecycleOptions { auto_reacquire: false, ..options() }
}

fn with_grace() -> LifecycleOptions {
    LifecycleOptions { reconnect_grace: Some(10 * SEC), ..options() }
}

const fn won(epoch: i64) -> Input {
    Input::Claimed { epoch: Epoch(epoch), open_at: None }
}

fn lost() -> Input {
    Input::SessionLost { error: "gone".into() }
}

fn step_down() -> Input {
    Input::ReleaseRequested { to: None, deadline: None }
}

fn gone() -> Notice {
    Notice::Error("gone".into())
}

fn lost_for(reason: LostReason) -> Notice {
    Notice::Lost { epoch: E, reason }
}

/// One row: from, input, to, what is done, what is told (besides the change of state).
struct Row(&'static str, LifecycleOptions, LockState, Input, LockState, Vec<Effect>, Vec<Notice>);

#[test]
fn every_row_of_the_table_holds() {
    let session = || LostReason::Session("gone".into());
    let stopped = || vec![Notice::Stopped];
    let forced = || lost_for(LostReason::ReleaseFailed("gone".into()));
    let rows = [
        Row(
            "STOPPED | start | FOLLOWER",
            options(),
            Stopped,
            Input::Start,
            Follower,
            vec![Join],
            vec![],
        ),
        Row(
            "FOLLOWER | wake | ACQUIRING",
            options(),
            Follower,
            Input::Wake,
            Acquiring,
            vec![Claim],
            vec![],
        ),
        Row(
            "FOLLOWER | named | ACQUIRING",
            options(),
            Follower,
            Input::Named,
            Acquiring,
            vec![Claim],
            vec![],
        ),
        Row(
            "FOLLOWER | stop | STOPPED",
            options(),
            Follower,
            Input::StopRequested,
            Stopped,
            vec![Leave],
            stopped(),
        ),
        Row(
            "ACQUIRING | claimed, nothing is owed | LEADER",
            options(),
            Acquiring,
            won(7),
            Leader,
            vec![OpenGate { epoch: E }],
            vec![Notice::Acquired { epoch: E }],
        ),
        Row(
            "ACQUIRING | claim failed | FOLLOWER",
            options(),
            Acquiring,
            Input::ClaimFailed { why: NotAcquired::Held },
            Follower,
            vec![],
            vec![Notice::AcquireFailed { why: NotAcquired::Held }],
        ),
        // No loss is told, because it never led.
        Row(
            "ACQUIRING | session lost | FOLLOWER",
            options(),
            Acquiring,
            lost(),
            Follower,
            vec![],
            vec![gone()],
        ),
        Row(
            "ACQUIRING | session lost | STOPPED without auto_reacquire",
            no_reacquire(),
            Acquiring,
            lost(),
            Stopped,
            vec![Leave],
            vec![gone(), Notice::Stopped],
        ),
        Row(
            "ACQUIRING | stop | STOPPED",
            options(),
            Acquiring,
            Input::StopRequested,
            Stopped,
            vec![Leave],
            stopped(),
        ),
        Row("LEADER | beat ok | LEADER", options(), Leader, Input::BeatOk, Leader, vec![], vec![]),
        Row(
            "LEADER | session lost | RECONNECTING with a grace period",
            with_grace(),
            Leader,
            lost(),
            Reconnecting,
            vec![ShutGate, Reclaim { epoch: E }],
            vec![gone()],
        ),
        Row(
            "LEADER | session lost | FOLLOWER",
            options(),
            Leader,
            lost(),
            Follower,
            vec![ShutGate],
            vec![gone(), lost_for(session())],
        ),
        Row(
            "LEADER | session lost | STOPPED without auto_reacquire",
            no_reacquire(),
            Leader,
            lost(),
            Stopped,
            vec![ShutGate, Leave],
            vec![gone(), lost_for(session()), Notice::Stopped],
        ),
        // Acts in flight are drained before the unlock.
        Row(
            "LEADER | stop | RELEASING",
            options(),
            Leader,
            Input::StopRequested,
            Releasing,
            vec![DrainGate { limit: 10 * SEC }],
            vec![],
        ),
        Row(
            "LEADER | release requested | RELEASING",
            options(),
            Leader,
            step_down(),
            Releasing,
            vec![DrainGate { limit: 10 * SEC }],
            vec![],
        ),
        Row(
            "RECONNECTING | reclaimed, same epoch | LEADER",
            with_grace(),
            Reconnecting,
            Input::Reclaimed { epoch: E },
            Leader,
            vec![OpenGate { epoch: E }],
            vec![Notice::Recovered { epoch: E }],
        ),
        Row(
            "RECONNECTING | reclaim failed | FOLLOWER",
            with_grace(),
            Reconnecting,
            Input::ReclaimFailed,
            Follower,
            vec![],
            vec![lost_for(LostReason::Taken)],
        ),
        // The loss is told too: every on_acquired has its on_lost or on_released.
        Row(
            "RECONNECTING | stop | STOPPED",
            with_grace(),
            Reconnecting,
            Input::StopRequested,
            Stopped,
            vec![Leave],
            vec![lost_for(LostReason::Stopped), Notice::Stopped],
        ),
        Row(
            "RELEASING | released, after a step-down | FOLLOWER",
            options(),
            Releasing,
            Input::Released,
            Follower,
            vec![],
            vec![Notice::Released { epoch: E }],
        ),
        Row(
            "RELEASING | released | STOPPED without auto_reacquire",
            no_reacquire(),
            Releasing,
            Input::Released,
            Stopped,
            vec![Leave],
            vec![Notice::Released { epoch: E }, Notice::Stopped],
        ),
        // The lock went with the session. The end of the term is told as a loss, because a successor
        // will find it unclean.
        Row(
            "RELEASING | session lost, step-down | FOLLOWER",
            options(),
            Releasing,
            lost(),
            Follower,
            vec![],
            vec![gone(), forced()],
        ),
        Row(
            "RELEASING | session lost | STOPPED without auto_reacquire",
            no_reacquire(),
            Releasing,
            lost(),
            Stopped,
            vec![Leave],
            vec![gone(), forced(), Notice::Stopped],
        ),
    ];
    for Row(quote, opts, from, input, to, does, tells) in rows {
        let mut role = Role::put(opts, from);
        assert_eq!(role.give(input), (does, tells), "{quote}");
        assert_eq!(role.life.state(), to, "{quote}");
    }
}

#[test]
fn losses_without_auto_reacquire_stop_the_role() {
    // Footnote ¹ for the rows that leave RECONNECTING.
    for input in [Input::ReclaimFailed, Input::EpochMoved] {
        let opts = LifecycleOptions { auto_reacquire: false, ..with_grace() };
        let mut role = Role::new(opts);
        for before in [Input::Start, Input::Wake, won(7), lost()] {
            role.give(before);
        }
        let (does, tells) = role.give(input);
        assert_eq!((role.life.state(), does), (Stopped, vec![Leave]));
        assert!(matches!(tells[..], [Notice::Lost { .. }, Notice::Stopped]));
    }
}

#[test]
fn a_start_schedules_its_attempt_at_once_and_a_failure_the_next_after_the_delay() {
    let mut role = Role::put(options(), Follower);
    assert_eq!(role.life.next_timeout(), Some(role.now));
    assert_eq!(role.wait(Duration::ZERO).0, [Claim]);
    assert!(role.life.wants_claim());
    role.give(Input::ClaimFailed { why: NotAcquired::Held });
    assert_eq!(role.life.next_timeout(), Some(role.now + 4 * SEC));
    assert_eq!(role.wait(3 * SEC), (vec![], vec![]));
    assert_eq!(role.wait(SEC).0, [Claim]);
    role.give(Input::ClaimFailed { why: NotAcquired::Held });
    assert_eq!(role.give(Input::Wake).0, [Claim], "a wake-up does not wait");
}

#[derive(Debug)]
struct GivesUpAfter(u32, std::sync::Mutex<Vec<RetryContext>>);

impl RetryStrategy for GivesUpAfter {
    fn next_delay(&self, ctx: &RetryContext, _: Option<Duration>, _: f64) -> Option<Duration> {
        self.1.lock().unwrap().push(ctx.clone());
        (ctx.attempt < self.0).then_some(SEC)
    }
}

#[test]
fn a_strategy_that_gives_up_stops_the_role_and_hears_what_happened() {
    let strategy = Arc::new(GivesUpAfter(2, Default::default()));
    let mut role = Role::new(LifecycleOptions { retry: strategy.clone(), ..options() });
    role.give(Input::Start);
    role.give(Input::Wake);
    role.give(Input::ClaimFailed { why: NotAcquired::Held });
    role.wait(SEC);
    let (does, tells) = role.give(lost());
    assert_eq!((role.life.state(), does), (Stopped, vec![Leave]));
    assert_eq!(tells, [gone(), Notice::Stopped]);
    let heard = strategy.1.lock().unwrap().clone();
    let context = |attempt, elapsed, last_error| RetryContext { attempt, elapsed, last_error };
    let zero = Duration::ZERO;
    assert_eq!(heard, [context(1, zero, None), context(2, SEC, Some("gone".into()))]);
}

#[test]
fn a_strategy_that_gives_up_while_reconnecting_ends_the_term_first() {
    let retry = Arc::new(GivesUpAfter(1, Default::default()));
    let mut role = Role::new(LifecycleOptions { retry, ..with_grace() });
    for input in [Input::Start, Input::Wake, won(7), lost()] {
        role.give(input);
    }
    let (_, tells) = role.give(lost());
    assert_eq!(tells, [lost_for(LostReason::GaveUp), Notice::Stopped]);
}

#[test]
fn leading_resets_the_retry_state() {
    let retry = Arc::new(ExponentialBackoff { jitter: 0.0, ..Default::default() });
    let mut role = Role::new(LifecycleOptions { retry, ..options() });
    role.give(Input::Start);
    let fail = |role: &mut Role| {
        role.give(Input::Wake);
        role.give(Input::ClaimFailed { why: NotAcquired::Held });
        role.life.next_timeout().unwrap().saturating_since(role.now)
    };
    assert_eq!([fail(&mut role), fail(&mut role), fail(&mut role)], [SEC, 2 * SEC, 4 * SEC]);
    role.give(Input::Wake);
    role.give(won(7));
    role.give(lost());
    assert_eq!(fail(&mut role), SEC);
}

#[test]
fn a_lock_won_before_the_old_lease_is_over_leads_only_after_the_durable_write() {
    let mut role = Role::waiting();
    assert_eq!((role.life.state(), role.life.epoch()), (Acquiring, Some(E)));
    assert!(role.life.holds_lock() && !role.life.wants_claim());
    assert_eq!(role.give(Input::MarkedActing { epoch: E }), (vec![], vec![]), "not asked for yet");
    assert_eq!(role.give(Input::Wake), (vec![], vec![]), "never claimed twice");
    assert_eq!(role.wait(2 * SEC), (vec![], vec![]));
    assert_eq!(role.wait(SEC), (vec![MarkActing { epoch: E }], vec![]));
    assert_eq!(role.life.state(), Acquiring);
    assert_eq!(role.give(Input::MarkedActing { epoch: Epoch(6) }), (vec![], vec![]), "another's");
    let led = (vec![OpenGate { epoch: E }], vec![Notice::Acquired { epoch: E }]);
    assert_eq!(role.give(Input::MarkedActing { epoch: E }), led);
    assert_eq!(role.life.state(), Leader);
}

#[test]
fn an_open_at_in_the_past_writes_at_once() {
    let mut role = Role::put(options(), Acquiring);
    let open_at = Some(role.now);
    let (does, _) = role.give(Input::Claimed { epoch: E, open_at });
    assert_eq!(does, [MarkActing { epoch: E }]);
}

#[test]
fn a_lock_that_is_waited_with_goes_back_without_a_loss() {
    let release = || vec![Release { epoch: E, to: None }];
    let cases = [
        (Input::EpochMoved, vec![], Follower),
        (step_down(), vec![], Follower),
        (Input::StopRequested, vec![], Stopped),
    ];
    for (input, tells, then) in cases {
        let mut role = Role::waiting();
        assert_eq!(role.give(input.clone()), (release(), tells), "{input:?}");
        assert_eq!(role.life.state(), Releasing);
        let (_, tells) = role.give(Input::Released);
        assert!(!tells.contains(&Notice::Released { epoch: E }), "it never led");
        assert_eq!(role.life.state(), then, "{input:?}");
    }
    let mut role = Role::waiting();
    assert_eq!(role.give(lost()), (vec![], vec![gone()]));
    assert_eq!(role.life.state(), Follower, "the lock went with the session");
}

#[test]
fn a_late_heartbeat_shuts_the_gate_once_and_the_next_good_one_opens_it() {
    let mut role = Role::put(options(), Leader);
    assert_eq!(role.give(Input::BeatLate), (vec![ShutGate], vec![Notice::Late { epoch: E }]));
    assert_eq!(role.give(Input::BeatLate), (vec![], vec![]));
    assert_eq!(role.life.state(), Leader);
    let well = (vec![OpenGate { epoch: E }], vec![Notice::Well { epoch: E }]);
    assert_eq!(role.give(Input::BeatOk), well);
    assert_eq!(role.give(Input::BeatOk), (vec![], vec![]));
}

#[test]
fn a_moved_epoch_is_a_loss_even_with_grace_and_gives_the_lock_back() {
    let mut role = Role::put(with_grace(), Leader);
    let (does, tells) = role.give(Input::EpochMoved);
    assert_eq!(does, [ShutGate, Release { epoch: E, to: None }]);
    assert_eq!(tells, [lost_for(LostReason::EpochMoved)]);
    assert_eq!(role.give(Input::Released), (vec![], vec![]), "its end was told");
    assert_eq!(role.life.state(), Follower);
}

#[test]
fn a_lost_session_is_not_cycled_again() {
    let mut role = Role::put(with_grace(), Leader);
    assert_eq!(role.give(lost()).0, [ShutGate, Reclaim { epoch: E }]);
}

#[test]
fn reconnecting_retries_errors_until_the_grace_period_ends() {
    let mut role = Role::put(with_grace(), Reconnecting);
    assert_eq!(role.give(lost()), (vec![], vec![]));
    assert_eq!(role.wait(4 * SEC).0, [Reclaim { epoch: E }]);
    assert_eq!(role.give(lost()), (vec![], vec![]));
    assert_eq!(role.wait(4 * SEC).0, [Reclaim { epoch: E }]);
    assert_eq!(role.life.next_timeout(), Some(role.now + 2 * SEC));
    let (_, tells) = role.wait(2 * SEC);
    assert!(tells.contains(&lost_for(LostReason::GraceExpired)));
    assert_eq!(role.life.state(), Follower);
}

#[test]
fn winning_back_under_another_epoch_is_a_loss_and_a_new_term() {
    // Another member may have led in between; its gate may still be open, so a win that has to wait
    // waits like any other.
    let lost = lost_for(LostReason::EpochMoved);
    let mut role = Role::put(with_grace(), Reconnecting);
    let (does, tells) = role.give(Input::Reclaimed { epoch: Epoch(9) });
    assert_eq!(does, [OpenGate { epoch: Epoch(9) }]);
    assert_eq!(tells, [lost.clone(), Notice::Acquired { epoch: Epoch(9) }]);

    let mut role = Role::put(with_grace(), Reconnecting);
    let open_at = Some(role.now + SEC);
    let waits = role.give(Input::Claimed { epoch: Epoch(9), open_at });
    assert_eq!((waits, role.life.state()), ((vec![], vec![lost]), Acquiring));
}

#[test]
fn a_step_down_while_reconnecting_ends_the_term_and_cools_down() {
    let mut role = Role::put(with_grace(), Reconnecting);
    assert_eq!(role.give(step_down()).1, [lost_for(LostReason::SteppedDown)]);
    assert_eq!(role.give(Input::Wake), (vec![], vec![]));
    // What the reclaim wins all the same goes back, and no attempt is made before it is gone.
    let late = role.give(Input::Reclaimed { epoch: E });
    assert_eq!(late.0, [Release { epoch: E, to: None }]);
    assert_eq!(role.life.next_timeout(), Some(role.now + 5 * SEC));
}

#[test]
fn a_release_drains_then_unlocks_and_names_the_successor() {
    let mut role = Role::put(options(), Leader);
    let to = Some("b".to_owned());
    role.give(Input::ReleaseRequested { to: to.clone(), deadline: None });
    assert_eq!(role.give(Input::Released), (vec![], vec![]), "nothing was asked for yet");
    assert_eq!(role.give(Input::Drained).0, [ShutGate, Release { epoch: E, to }]);
    assert_eq!(role.give(Input::Drained), (vec![], vec![]));
}

#[test]
fn acts_that_do_not_end_hold_up_a_release_no_longer_than_the_limit() {
    let mut role = Role::put(options(), Leader);
    role.give(step_down());
    assert_eq!(role.wait(9 * SEC).0, []);
    assert_eq!(role.wait(SEC).0, [ShutGate, Release { epoch: E, to: None }]);
}

#[test]
fn a_deadline_shortens_the_drain_and_keeps_a_quarter_for_the_unlock() {
    let mut role = Role::put(options(), Leader);
    let deadline = Some(role.now + 4 * SEC);
    let (does, _) = role.give(Input::ReleaseRequested { to: None, deadline });
    assert_eq!(does, [DrainGate { limit: 3 * SEC }]);
    assert_eq!(role.wait(3 * SEC).0, [ShutGate, Release { epoch: E, to: None }]);
    let (does, tells) = role.wait(SEC);
    assert_eq!(does, [CycleSession], "a timeout frees the lock by force");
    assert!(matches!(tells[..2], [Notice::Error(_), Notice::Lost { .. }]));

    let mut role = Role::put(options(), Leader);
    let (does, _) = role.give(Input::ReleaseRequested { to: None, deadline: Some(role.now) });
    assert_eq!(does[0], ShutGate, "no time at all: no drain");
}

#[test]
fn a_doubt_while_draining_shuts_the_gate_first() {
    let broken = |error: &str| lost_for(LostReason::ReleaseFailed(error.into()));
    let cases = [
        (Input::BeatLate, vec![ShutGate, Release { epoch: E, to: None }], vec![]),
        (
            Input::EpochMoved,
            vec![ShutGate, Release { epoch: E, to: None }],
            vec![lost_for(LostReason::EpochMoved)],
        ),
        (lost(), vec![ShutGate], vec![Notice::Error("gone".into()), broken("gone")]),
    ];
    for (input, does, tells) in cases {
        let mut role = Role::put(options(), Leader);
        role.give(step_down());
        assert_eq!(role.give(input.clone()), (does, tells), "{input:?}");
    }
    // An end that was told is not told again.
    let mut role = Role::put(options(), Leader);
    role.give(step_down());
    role.give(Input::EpochMoved);
    assert_eq!(role.give(Input::Released), (vec![], vec![]));
}

#[test]
fn a_step_down_stays_out_of_the_race_for_the_cool_down() {
    // A member that resumed at once would win again before any other member has heard.
    let mut role = Role::put(options(), Releasing);
    role.give(Input::Released);
    role.now = role.now + 4 * SEC;
    assert_eq!(role.give(Input::Wake), (vec![], vec![]), "a wake-up does not shorten it");
    assert_eq!(role.wait(SEC).0, [Claim]);
    // A step-down that names it is an order to lead.
    let mut role = Role::put(options(), Releasing);
    role.give(Input::Released);
    role.now = role.now + SEC;
    assert_eq!(role.give(Input::Named).0, [Claim]);
}

#[test]
fn start_stop_and_step_down_are_idempotent() {
    for state in [Follower, Acquiring, Leader, Reconnecting, Releasing] {
        assert_eq!(Role::put(options(), state).give(Input::Start), (vec![], vec![]), "{state}");
    }
    for state in [Stopped, Follower, Acquiring, Releasing] {
        assert_eq!(Role::put(options(), state).give(step_down()), (vec![], vec![]), "{state}");
    }
    for state in [Stopped, Releasing] {
        let mut role = Role::put(options(), state);
        assert_eq!(role.give(Input::StopRequested), (vec![], vec![]), "{state}");
    }
}

#[test]
fn a_stop_during_a_step_down_stops_and_a_step_down_during_a_stop_does_not_undo_it() {
    let mut role = Role::put(options(), Leader);
    role.give(step_down());
    role.give(Input::StopRequested);
    role.give(step_down());
    role.give(Input::Start);
    role.give(Input::Drained);
    let (does, tells) = role.give(Input::Released);
    assert_eq!((does, role.life.state()), (vec![Leave], Stopped));
    assert_eq!(tells, [Notice::Released { epoch: E }, Notice::Stopped]);
}

#[test]
fn a_release_at_shutdown_that_is_not_answered_stops_and_cycles_the_session() {
    let mut role = Role::put(options(), Leader);
    role.give(Input::StopRequested);
    role.give(Input::Drained);
    let (does, tells) = role.wait(5 * SEC);
    assert_eq!((does, role.life.state()), (vec![CycleSession, Leave], Stopped));
    let late = "the release timed out".to_owned();
    let forced = lost_for(LostReason::ReleaseFailed(late.clone()));
    let change = Notice::StateChange { from: Releasing, to: Stopped };
    assert_eq!(tells, [Notice::Error(late), forced, change, Notice::Stopped]);
}

#[test]
fn a_lock_won_after_the_stop_goes_back_and_holds_up_the_next_start() {
    let mut role = Role::put(options(), Acquiring);
    role.give(Input::StopRequested);
    assert_eq!(role.give(won(7)), (vec![Release { epoch: E, to: None }], vec![]));
    assert_eq!(role.life.state(), Stopped);
    role.give(Input::Start);
    assert!(role.life.holds_lock());
    assert_eq!(role.give(Input::Wake), (vec![], vec![]));
    role.give(Input::Released);
    assert_eq!(role.wait(Duration::ZERO).0, [Claim]);
}

#[test]
fn a_late_win_that_cannot_be_released_cycles_the_session() {
    let mut role = Role::put(options(), Acquiring);
    role.give(Input::StopRequested);
    role.give(won(7));
    role.give(Input::Released);
    assert_eq!((role.life.holds_lock(), role.life.next_timeout()), (false, None), "it could");
    let mut role = Role::put(options(), Acquiring);
    role.give(Input::StopRequested);
    role.give(won(7));
    assert_eq!(role.wait(5 * SEC).0, [CycleSession], "nor may the answer stay away");
    assert_eq!(role.life.next_timeout(), None);
}

#[test]
fn an_epoch_that_does_not_increase_never_leads() {
    let mut role = Role::put(options(), Leader);
    role.give(lost());
    role.give(Input::Wake);
    let (does, tells) = role.give(won(7));
    assert_eq!(does, [Release { epoch: E, to: None }]);
    assert!(matches!(tells[..], [Notice::Error(_)]));
}

#[test]
fn two_wins_at_once_are_a_doubt_and_cost_the_session() {
    for state in [Leader, Releasing] {
        let mut role = Role::put(options(), state);
        assert_eq!(role.give(won(7)), (vec![], vec![]), "the same answer twice is harmless");
        let (does, tells) = role.give(won(8));
        assert!(does.contains(&CycleSession), "{state}: {does:?}");
        assert!(tells.iter().any(|n| matches!(n, Notice::Lost { .. })), "{state}: {tells:?}");
    }
}

#[test]
fn states_are_written_in_lower_case_and_read_back() {
    let names = LockState::ALL.map(|s| s.to_string()).join(" ");
    assert_eq!(names, "stopped follower acquiring leader reconnecting releasing");
    for state in LockState::ALL {
        assert_eq!(state.as_str().parse(), Ok(state));
    }
    assert!("LEADER".parse::<LockState>().unwrap_err().to_string().contains("releasing"));
}
