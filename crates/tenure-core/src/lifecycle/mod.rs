//! The life of one role on one member: `(state, input, now) → (state, effects)`.
//!
//! ```text
//!             Start             AcquireAttempt            AcquireSucceeded
//!  STOPPED ──────────► FOLLOWER ─────────────► ACQUIRING ──────────────────► LEADER ◄───────┐
//!     ▲  StopRequested │   ▲   AcquireFailed,      │  (waits, gate shut,     │ │ │         │
//!     │◄───────────────┘   └── DbError ────────────┤   until the last leader's │ │        │
//!     │                    ▲                       │   gate must be shut)    │ │ │  Reacquire-
//!     │                    │        StopRequested, │                         │ │ │  Succeeded
//!     │                    │      ReleaseRequested ▼     StopRequested,      │ │ │         │
//!     │◄───────────────────┼────────────────── RELEASING ◄─ReleaseRequested──┘ │ └► RECONNECTING
//!     │  ReleaseSucceeded, │  (after step_down)                                │        │
//!     │  ReleaseFailed     └──────────────── Lost ◄────────────────────────────┴────────┘
//! ```
//!
//! The table of the specification (§3.3) holds row by row, except where it is flawed:
//!
//! - `Lost` is told only to who led: an error while ACQUIRING is an `Error`, nothing more.
//! - Every way out of LEADER shuts (or drains) the gate first and asks afterwards.
//! - A step-down stays out of the race for the cool-down; a wake-up does not shorten it.
//! - Winning back under another epoch is a loss and a new term, not a recovery.
//! - A release that fails cycles the session, so that no lock leaks, and ends the term with `Lost`
//!   (a successor finds it unclean); after a step-down the role then follows, not stops.
//! - Stopping, or stepping down, while RECONNECTING tells `Lost`: every `Acquired` has its end.
//!
//! Three promises of the caller: effects are carried out in order; every request is answered, at the
//! latest at its own deadline; answers arrive in the order of the requests. What arrives although it
//! no longer fits the state is ignored, except a lock won too late, which is released.

mod vocabulary;

use std::time::Duration;

use crate::clock::Tick;
use crate::epoch::Epoch;
use crate::retry::RetryContext;

pub use vocabulary::{
    Effect, Input, LifecycleOptions, LockState, LockStateError, LostReason, NotAcquired, Notice,
};

/// Each state with what belongs to it alone.
#[derive(Clone, Debug)]
enum State {
    Stopped,
    Follower { next: Tick, cool_until: Option<Tick> },
    Acquiring(Claim),
    Leader { epoch: Epoch, well: bool },
    Reconnecting { epoch: Epoch, until: Tick, retry_at: Option<Tick> },
    Releasing(Releasing),
}

/// How far an acquisition has come.
#[derive(Copy, Clone, Debug)]
enum Claim {
    /// The lock is not ours yet.
    Trying,
    /// It is; the last leader's gate may still be open.
    Waiting { epoch: Epoch, open_at: Tick },
    /// The durable `acting` write is under way.
    Clearing { epoch: Epoch },
}

#[derive(Clone, Debug)]
struct Releasing {
    epoch: Epoch,
    to: Option<String>,
    deadline: Option<Tick>,
    phase: Phase,
    ending: Ending,
    then: Next,
}

#[derive(Copy, Clone, Debug)]
enum Phase {
    Draining { until: Tick },
    Unlocking { until: Tick },
}

/// What is still to be told about the term that a release ends.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Ending {
    /// It led, and the user has not heard of the end.
    Led,
    /// Nothing: it never led, or the loss was told.
    Told,
}

/// Where to go when the lock is gone.
#[derive(Clone, Debug)]
enum Next {
    Stop,
    CoolDown,
    Campaign,
    Retry { error: Option<String> },
}

/// A lock that was won when nobody wanted it any more, on its way back.
#[derive(Copy, Clone, Debug)]
struct Stray {
    until: Tick,
}

/// The attempts since the last success.
#[derive(Clone, Debug, Default)]
struct Cycle {
    attempt: u32,
    began: Option<Tick>,
    prev: Option<Duration>,
}

/// One call's surroundings and its output.
struct Step {
    now: Tick,
    random: f64,
    effects: Vec<Effect>,
}

impl Step {
    fn push(&mut self, effect: Effect) {
        self.effects.push(effect);
    }

    fn tell(&mut self, notice: Notice) {
        self.effects.push(Effect::Notify(notice));
    }
}

/// The lifecycle of one role. It does nothing by itself: feed it inputs, carry out its effects, and
/// call [`Lifecycle::handle_timeout`] at [`Lifecycle::next_timeout`].
#[derive(Clone, Debug)]
pub struct Lifecycle {
    opts: LifecycleOptions,
    state: State,
    cycle: Cycle,
    /// The highest epoch ever won here: terms strictly increase.
    highest: Epoch,
    stray: Option<Stray>,
}

impl Lifecycle {
    /// A stopped role.
    pub fn new(opts: LifecycleOptions) -> Self {
        Lifecycle {
            opts,
            state: State::Stopped,
            cycle: Cycle::default(),
            highest: Epoch::ZERO,
            stray: None,
        }
    }

    /// Where it stands.
    pub fn state(&self) -> LockState {
        match self.state {
            State::Stopped => LockState::Stopped,
            State::Follower { .. } => LockState::Follower,
            State::Acquiring(_) => LockState::Acquiring,
            State::Leader { .. } => LockState::Leader,
            State::Reconnecting { .. } => LockState::Reconnecting,
            State::Releasing(_) => LockState::Releasing,
        }
    }

    /// The epoch of the term that is waited for, led, won back or released.
    pub fn epoch(&self) -> Option<Epoch> {
        match self.state {
            State::Stopped | State::Follower { .. } | State::Acquiring(Claim::Trying) => None,
            State::Acquiring(Claim::Waiting { epoch, .. } | Claim::Clearing { epoch })
            | State::Leader { epoch, .. }
            | State::Reconnecting { epoch, .. } => Some(epoch),
            State::Releasing(ref releasing) => Some(releasing.epoch),
        }
    }

    /// Whether the role belongs in the next claim.
    pub fn wants_claim(&self) -> bool {
        matches!(self.state, State::Acquiring(Claim::Trying))
    }

    /// Whether this session holds the lock, as far as is known.
    pub fn holds_lock(&self) -> bool {
        match self.state {
            State::Stopped | State::Follower { .. } => self.stray.is_some(),
            State::Acquiring(Claim::Trying) | State::Reconnecting { .. } => false,
            State::Acquiring(Claim::Waiting { .. } | Claim::Clearing { .. })
            | State::Leader { .. }
            | State::Releasing(_) => true,
        }
    }

    /// When to call [`Lifecycle::handle_timeout`] at the latest, if nothing happens before.
    pub fn next_timeout(&self) -> Option<Tick> {
        let own = match self.state {
            State::Stopped
            | State::Acquiring(Claim::Trying | Claim::Clearing { .. })
            | State::Leader { .. } => None,
            // The attempt waits for the stray lock to be gone.
            State::Follower { next, .. } => self.stray.is_none().then_some(next),
            State::Acquiring(Claim::Waiting { open_at, .. }) => Some(open_at),
            State::Reconnecting { until, retry_at, .. } => {
                Some(retry_at.map_or(until, |at| at.min(until)))
            }
            State::Releasing(Releasing {
                phase: Phase::Draining { until } | Phase::Unlocking { until },
                ..
            }) => Some(until),
        };
        own.into_iter().chain(self.stray.map(|stray| stray.until)).min()
    }

    /// Takes in what happened. `unit_random` is a fresh random number in `0.0..1.0`.
    pub fn handle(&mut self, input: Input, now: Tick, unit_random: f64) -> Vec<Effect> {
        let mut step = Step { now, random: unit_random, effects: Vec::new() };
        match self.state {
            State::Stopped => self.when_stopped(input, &mut step),
            State::Follower { next, cool_until } => {
                self.when_follower(next, cool_until, input, &mut step);
            }
            State::Acquiring(Claim::Trying) => self.when_trying(input, &mut step),
            State::Acquiring(Claim::Waiting { epoch, .. }) => {
                self.when_waiting(epoch, false, input, &mut step);
            }
            State::Acquiring(Claim::Clearing { epoch }) => {
                self.when_waiting(epoch, true, input, &mut step);
            }
            State::Leader { epoch, well } => self.when_leader(epoch, well, input, &mut step),
            State::Reconnecting { epoch, until, retry_at } => {
                self.when_reconnecting(epoch, until, retry_at, input, &mut step);
            }
            State::Releasing(ref releasing) => {
                let releasing = releasing.clone();
                self.when_releasing(releasing, input, &mut step);
            }
        }
        step.effects
    }

    /// Takes in that time has passed. Does nothing if nothing is due.
    pub fn handle_timeout(&mut self, now: Tick, unit_random: f64) -> Vec<Effect> {
        let mut step = Step { now, random: unit_random, effects: Vec::new() };
        if self.stray.is_some_and(|stray| stray.until <= now) {
            self.stray_failed("a late win could not be released in time".to_owned(), &mut step);
        }
        match self.state {
            State::Follower { next, .. } if next <= now => {
                step.effects.extend(self.handle(Input::AcquireAttempt, now, unit_random));
            }
            State::Acquiring(Claim::Waiting { epoch, open_at }) if open_at <= now => {
                self.clear(epoch, &mut step);
            }
            State::Reconnecting { until, .. } if until <= now => {
                step.effects.extend(self.handle(Input::GraceExpired, now, unit_random));
            }
            State::Reconnecting { epoch, until, retry_at: Some(at) } if at <= now => {
                self.state = State::Reconnecting { epoch, until, retry_at: None };
                step.push(Effect::Reclaim { epoch });
            }
            State::Releasing(Releasing { phase: Phase::Draining { until }, .. })
                if until <= now =>
            {
                self.unlock(&mut step);
            }
            State::Releasing(Releasing { phase: Phase::Unlocking { until }, .. })
                if until <= now =>
            {
                step.effects.extend(self.handle(Input::ReleaseTimedOut, now, unit_random));
            }
            State::Stopped
            | State::Follower { .. }
            | State::Acquiring(_)
            | State::Leader { .. }
            | State::Reconnecting { .. }
            | State::Releasing(_) => {}
        }
        step.effects
    }

    fn when_stopped(&mut self, input: Input, step: &mut Step) {
        match input {
            Input::Start => {
                self.cycle = Cycle::default();
                step.push(Effect::Join);
                self.enter(State::Follower { next: step.now, cool_until: None }, step);
            }
            Input::AcquireSucceeded { epoch, .. } | Input::ReacquireSucceeded { epoch } => {
                self.release_stray(epoch, step);
            }
            Input::ReleaseSucceeded | Input::SessionLost { .. } => self.stray = None,
            Input::ReleaseFailed { error }
            | Input::DbError { error }
            | Input::HealthFailed { error } => self.stray_failed(error, step),
            Input::ReleaseTimedOut => self.stray_failed("the release timed out".to_owned(), step),
            Input::StopRequested
            | Input::AcquireAttempt
            | Input::Cleared { .. }
            | Input::AcquireFailed { .. }
            | Input::HealthOk
            | Input::HealthLate
            | Input::EpochMoved
            | Input::ReacquireFailed
            | Input::GraceExpired
            | Input::ReleaseRequested { .. }
            | Input::Drained => {}
        }
    }

    fn when_follower(
        &mut self,
        next: Tick,
        cool_until: Option<Tick>,
        input: Input,
        step: &mut Step,
    ) {
        match input {
            Input::AcquireAttempt => {
                let cooling = cool_until.is_some_and(|until| step.now < until);
                if !cooling && self.stray.is_none() {
                    self.cycle.began.get_or_insert(step.now);
                    self.enter(State::Acquiring(Claim::Trying), step);
                    step.push(Effect::TryAcquire);
                }
            }
            Input::StopRequested => self.stop(step),
            Input::AcquireSucceeded { epoch, .. } | Input::ReacquireSucceeded { epoch } => {
                self.release_stray(epoch, step);
            }
            // The sessions could not be had: the next attempt is paced like any other.
            Input::DbError { error } if self.stray.is_none() => {
                step.tell(Notice::Error(error.clone()));
                self.back_off(Some(error), step);
                if let State::Follower { next: paced, cool_until: slot } = &mut self.state {
                    *paced = next.max(*paced);
                    *slot = cool_until;
                }
            }
            Input::ReleaseSucceeded | Input::SessionLost { .. } => self.stray = None,
            Input::ReleaseFailed { error }
            | Input::DbError { error }
            | Input::HealthFailed { error } => self.stray_failed(error, step),
            Input::ReleaseTimedOut => self.stray_failed("the release timed out".to_owned(), step),
            Input::Start
            | Input::Cleared { .. }
            | Input::AcquireFailed { .. }
            | Input::HealthOk
            | Input::HealthLate
            | Input::EpochMoved
            | Input::ReacquireFailed
            | Input::GraceExpired
            | Input::ReleaseRequested { .. }
            | Input::Drained => {}
        }
    }

    fn when_trying(&mut self, input: Input, step: &mut Step) {
        match input {
            Input::AcquireSucceeded { epoch, open_at } => self.won(epoch, open_at, step),
            Input::ReacquireSucceeded { epoch } => self.won(epoch, None, step),
            Input::AcquireFailed { why } => {
                step.tell(Notice::AcquireFailed { why });
                self.back_off(None, step);
            }
            // The outcome is unknown, so the lock may be ours: only a new session is sure.
            Input::DbError { error } | Input::HealthFailed { error } => {
                step.push(Effect::CycleSession);
                step.tell(Notice::Error(error.clone()));
                self.go(Next::Retry { error: Some(error) }, step);
            }
            Input::SessionLost { error } => {
                step.tell(Notice::Error(error.clone()));
                self.go(Next::Retry { error: Some(error) }, step);
            }
            Input::StopRequested => self.stop(step),
            Input::Start
            | Input::AcquireAttempt
            | Input::Cleared { .. }
            | Input::HealthOk
            | Input::HealthLate
            | Input::EpochMoved
            | Input::ReacquireFailed
            | Input::GraceExpired
            | Input::ReleaseRequested { .. }
            | Input::Drained
            | Input::ReleaseSucceeded
            | Input::ReleaseFailed { .. }
            | Input::ReleaseTimedOut => {}
        }
    }

    /// The lock is ours, the gate is shut, nobody was told yet.
    fn when_waiting(&mut self, epoch: Epoch, clearing: bool, input: Input, step: &mut Step) {
        match input {
            Input::Cleared { epoch: cleared } => {
                if clearing && cleared == epoch {
                    self.lead(epoch, step);
                }
            }
            Input::DbError { error } | Input::HealthFailed { error } => {
                step.tell(Notice::Error(error.clone()));
                self.give_back(epoch, None, None, Next::Retry { error: Some(error) }, step);
            }
            Input::EpochMoved => self.give_back(epoch, None, None, Next::Campaign, step),
            Input::SessionLost { error } => {
                step.tell(Notice::Error(error.clone()));
                self.go(Next::Retry { error: Some(error) }, step);
            }
            Input::StopRequested => self.give_back(epoch, None, None, Next::Stop, step),
            Input::ReleaseRequested { to, deadline } => {
                self.give_back(epoch, to, deadline, Next::CoolDown, step);
            }
            Input::AcquireSucceeded { epoch: other, .. }
            | Input::ReacquireSucceeded { epoch: other } => {
                if other != epoch {
                    let error = Self::two_wins(epoch, other);
                    step.push(Effect::CycleSession);
                    step.tell(Notice::Error(error.clone()));
                    self.highest = self.highest.max(other);
                    self.go(Next::Retry { error: Some(error) }, step);
                }
            }
            Input::Start
            | Input::AcquireAttempt
            | Input::AcquireFailed { .. }
            | Input::HealthOk
            | Input::HealthLate
            | Input::ReacquireFailed
            | Input::GraceExpired
            | Input::Drained
            | Input::ReleaseSucceeded
            | Input::ReleaseFailed { .. }
            | Input::ReleaseTimedOut => {}
        }
    }

    fn when_leader(&mut self, epoch: Epoch, well: bool, input: Input, step: &mut Step) {
        match input {
            Input::HealthOk => {
                if !well {
                    self.state = State::Leader { epoch, well: true };
                    step.push(Effect::OpenGate { epoch });
                    step.tell(Notice::Well { epoch });
                }
            }
            Input::HealthLate => {
                if well {
                    self.state = State::Leader { epoch, well: false };
                    step.push(Effect::ShutGate);
                    step.tell(Notice::Late { epoch });
                }
            }
            Input::HealthFailed { error } | Input::DbError { error } => {
                step.push(Effect::ShutGate);
                step.push(Effect::CycleSession);
                self.session_died(epoch, error, step);
            }
            Input::SessionLost { error } => {
                step.push(Effect::ShutGate);
                self.session_died(epoch, error, step);
            }
            // No grace: somebody else's term has begun. The lock, if it is still ours, goes back.
            Input::EpochMoved => {
                step.push(Effect::ShutGate);
                step.tell(Notice::Lost { epoch, reason: LostReason::EpochMoved });
                self.give_back(epoch, None, None, Next::Campaign, step);
            }
            Input::StopRequested => self.begin_release(epoch, None, None, Next::Stop, step),
            Input::ReleaseRequested { to, deadline } => {
                self.begin_release(epoch, to, deadline, Next::CoolDown, step);
            }
            Input::AcquireSucceeded { epoch: other, .. }
            | Input::ReacquireSucceeded { epoch: other } => {
                if other != epoch {
                    step.push(Effect::ShutGate);
                    step.push(Effect::CycleSession);
                    step.tell(Notice::Error(Self::two_wins(epoch, other)));
                    step.tell(Notice::Lost { epoch, reason: LostReason::EpochMoved });
                    self.highest = self.highest.max(other);
                    self.go(Next::Campaign, step);
                }
            }
            Input::Start
            | Input::AcquireAttempt
            | Input::Cleared { .. }
            | Input::AcquireFailed { .. }
            | Input::ReacquireFailed
            | Input::GraceExpired
            | Input::Drained
            | Input::ReleaseSucceeded
            | Input::ReleaseFailed { .. }
            | Input::ReleaseTimedOut => {}
        }
    }

    fn when_reconnecting(
        &mut self,
        epoch: Epoch,
        until: Tick,
        retry_at: Option<Tick>,
        input: Input,
        step: &mut Step,
    ) {
        let lost = |reason| Notice::Lost { epoch, reason };
        match input {
            Input::ReacquireSucceeded { epoch: won }
            | Input::AcquireSucceeded { epoch: won, .. }
                if won == epoch =>
            {
                self.cycle = Cycle::default();
                step.push(Effect::OpenGate { epoch });
                self.enter(State::Leader { epoch, well: true }, step);
                step.tell(Notice::Recovered { epoch });
            }
            Input::ReacquireSucceeded { epoch: won } => {
                step.tell(lost(LostReason::EpochMoved));
                self.won(won, None, step);
            }
            Input::AcquireSucceeded { epoch: won, open_at } => {
                step.tell(lost(LostReason::EpochMoved));
                self.won(won, open_at, step);
            }
            Input::ReacquireFailed | Input::AcquireFailed { .. } => {
                step.tell(lost(LostReason::Taken));
                self.go(Next::Campaign, step);
            }
            Input::EpochMoved => {
                step.tell(lost(LostReason::EpochMoved));
                self.go(Next::Campaign, step);
            }
            Input::GraceExpired => {
                step.tell(lost(LostReason::GraceExpired));
                self.go(Next::Campaign, step);
            }
            Input::DbError { error } | Input::HealthFailed { error } => {
                step.push(Effect::CycleSession);
                self.reclaim_later(epoch, until, retry_at, error, step);
            }
            Input::SessionLost { error } => {
                self.reclaim_later(epoch, until, retry_at, error, step);
            }
            Input::StopRequested => {
                step.tell(lost(LostReason::Stopped));
                self.stop(step);
            }
            Input::ReleaseRequested { .. } => {
                step.tell(lost(LostReason::SteppedDown));
                self.go(Next::CoolDown, step);
            }
            Input::Start
            | Input::AcquireAttempt
            | Input::Cleared { .. }
            | Input::HealthOk
            | Input::HealthLate
            | Input::Drained
            | Input::ReleaseSucceeded
            | Input::ReleaseFailed { .. }
            | Input::ReleaseTimedOut => {}
        }
    }

    fn when_releasing(&mut self, releasing: Releasing, input: Input, step: &mut Step) {
        let draining = matches!(releasing.phase, Phase::Draining { .. });
        match input {
            Input::Drained | Input::HealthLate => {
                if draining {
                    self.unlock(step);
                }
            }
            Input::EpochMoved => {
                if draining {
                    self.unlock(step);
                    self.tell_end(LostReason::EpochMoved, step);
                }
            }
            Input::ReleaseSucceeded => {
                if !draining {
                    if releasing.ending == Ending::Led {
                        step.tell(Notice::Released { epoch: releasing.epoch });
                    }
                    self.go(releasing.then, step);
                }
            }
            Input::ReleaseFailed { error } => {
                if !draining {
                    self.force(error, true, step);
                }
            }
            Input::ReleaseTimedOut => {
                self.force("the release timed out".to_owned(), true, step);
            }
            Input::DbError { error } | Input::HealthFailed { error } => {
                self.force(error, true, step);
            }
            Input::SessionLost { error } => self.force(error, false, step),
            // A step-down under way becomes a stop; a stop never becomes a step-down.
            Input::StopRequested => {
                self.state = State::Releasing(Releasing { then: Next::Stop, ..releasing });
            }
            Input::AcquireSucceeded { epoch: other, .. }
            | Input::ReacquireSucceeded { epoch: other } => {
                if other != releasing.epoch {
                    self.highest = self.highest.max(other);
                    self.force(Self::two_wins(releasing.epoch, other), true, step);
                }
            }
            Input::Start
            | Input::AcquireAttempt
            | Input::Cleared { .. }
            | Input::AcquireFailed { .. }
            | Input::HealthOk
            | Input::ReacquireFailed
            | Input::GraceExpired
            | Input::ReleaseRequested { .. } => {}
        }
    }

    /// The lock was won.
    fn won(&mut self, epoch: Epoch, open_at: Option<Tick>, step: &mut Step) {
        if epoch <= self.highest {
            // An answer from another time. Nobody may act under it, but the lock may be ours.
            let error = format!(
                "a claim won epoch {epoch}, which is not above {}: released again",
                self.highest
            );
            step.tell(Notice::Error(error.clone()));
            self.give_back(epoch, None, None, Next::Retry { error: Some(error) }, step);
            return;
        }
        self.highest = epoch;
        match open_at {
            None => self.lead(epoch, step),
            Some(open_at) if open_at > step.now => {
                self.enter(State::Acquiring(Claim::Waiting { epoch, open_at }), step);
            }
            Some(_) => self.clear(epoch, step),
        }
    }

    fn clear(&mut self, epoch: Epoch, step: &mut Step) {
        self.enter(State::Acquiring(Claim::Clearing { epoch }), step);
        step.push(Effect::WriteActing { epoch });
    }

    fn lead(&mut self, epoch: Epoch, step: &mut Step) {
        self.cycle = Cycle::default();
        step.push(Effect::OpenGate { epoch });
        self.enter(State::Leader { epoch, well: true }, step);
        step.tell(Notice::Acquired { epoch });
    }

    /// The leader's session is gone. The gate is shut already.
    fn session_died(&mut self, epoch: Epoch, error: String, step: &mut Step) {
        match self.opts.reconnect_grace {
            Some(grace) if !grace.is_zero() => {
                let until = step.now + grace;
                self.enter(State::Reconnecting { epoch, until, retry_at: None }, step);
                step.push(Effect::Reclaim { epoch });
            }
            Some(_) | None => {
                step.tell(Notice::Lost { epoch, reason: LostReason::Session(error) });
                self.go(Next::Campaign, step);
            }
        }
    }

    fn reclaim_later(
        &mut self,
        epoch: Epoch,
        until: Tick,
        retry_at: Option<Tick>,
        error: String,
        step: &mut Step,
    ) {
        if retry_at.is_some() {
            return;
        }
        match self.next_delay(Some(error), step) {
            Some(delay) => {
                let retry_at = Some(step.now + delay);
                self.state = State::Reconnecting { epoch, until, retry_at };
            }
            None => {
                step.tell(Notice::Lost { epoch, reason: LostReason::GaveUp });
                self.stop(step);
            }
        }
    }

    /// The leader lets go: no new acts, then the unlock.
    fn begin_release(
        &mut self,
        epoch: Epoch,
        to: Option<String>,
        deadline: Option<Tick>,
        then: Next,
        step: &mut Step,
    ) {
        // A quarter of the time to a deadline is kept for the unlock itself.
        let allowed = deadline.map_or(Duration::MAX, |at| at.saturating_since(step.now) / 4 * 3);
        let limit = self.opts.drain_limit.min(allowed);
        let phase = Phase::Draining { until: step.now + limit };
        let ending = Ending::Led;
        let state = State::Releasing(Releasing { epoch, to, deadline, phase, ending, then });
        if limit.is_zero() {
            step.push(Effect::ShutGate);
            self.enter(state, step);
            self.unlock(step);
        } else {
            step.push(Effect::DrainGate { limit });
            self.enter(state, step);
        }
    }

    /// Gives back a lock under which nobody acts.
    fn give_back(
        &mut self,
        epoch: Epoch,
        to: Option<String>,
        deadline: Option<Tick>,
        then: Next,
        step: &mut Step,
    ) {
        let phase = Phase::Unlocking { until: self.unlock_until(deadline, step) };
        let release = Effect::Release { epoch, to: to.clone() };
        let ending = Ending::Told;
        self.enter(State::Releasing(Releasing { epoch, to, deadline, phase, ending, then }), step);
        step.push(release);
    }

    /// From draining to unlocking.
    fn unlock(&mut self, step: &mut Step) {
        if let State::Releasing(releasing) = &self.state {
            let until = self.unlock_until(releasing.deadline, step);
            let mut releasing = releasing.clone();
            releasing.phase = Phase::Unlocking { until };
            step.push(Effect::ShutGate);
            let (epoch, to) = (releasing.epoch, releasing.to.clone());
            step.push(Effect::Release { epoch, to });
            self.state = State::Releasing(releasing);
        }
    }

    fn unlock_until(&self, deadline: Option<Tick>, step: &Step) -> Tick {
        let own = step.now + self.opts.release_timeout;
        deadline.map_or(own, |at| own.min(at.max(step.now)))
    }

    /// The lock did not go back as it should: the session goes, and the lock with it.
    fn force(&mut self, error: String, cycle: bool, step: &mut Step) {
        // Once unlocking, it is shut already.
        if matches!(&self.state, State::Releasing(r) if matches!(r.phase, Phase::Draining { .. })) {
            step.push(Effect::ShutGate);
        }
        if cycle {
            step.push(Effect::CycleSession);
        }
        step.tell(Notice::Error(error.clone()));
        self.tell_end(LostReason::ReleaseFailed(error), step);
        if let State::Releasing(releasing) = &self.state {
            let then = releasing.then.clone();
            self.go(then, step);
        }
    }

    /// Tells the loss of a term that is being released, once.
    fn tell_end(&mut self, reason: LostReason, step: &mut Step) {
        if let State::Releasing(releasing) = &mut self.state
            && releasing.ending == Ending::Led
        {
            releasing.ending = Ending::Told;
            step.tell(Notice::Lost { epoch: releasing.epoch, reason });
        }
    }

    /// Releases a lock that nobody waits for, without a state of its own: the user has moved on.
    fn release_stray(&mut self, epoch: Epoch, step: &mut Step) {
        self.highest = self.highest.max(epoch);
        self.stray = Some(Stray { until: step.now + self.opts.release_timeout });
        step.push(Effect::Release { epoch, to: None });
    }

    fn stray_failed(&mut self, error: String, step: &mut Step) {
        if self.stray.take().is_some() {
            step.push(Effect::CycleSession);
            step.tell(Notice::Error(error));
        }
    }

    /// Where a role goes that holds nothing any more.
    fn go(&mut self, next: Next, step: &mut Step) {
        match next {
            Next::CoolDown if self.opts.auto_reacquire => {
                let until = step.now + self.opts.cool_down;
                self.enter(State::Follower { next: until, cool_until: Some(until) }, step);
            }
            Next::Campaign if self.opts.auto_reacquire => {
                self.enter(State::Follower { next: step.now, cool_until: None }, step);
            }
            Next::Retry { error } if self.opts.auto_reacquire => self.back_off(error, step),
            Next::Stop | Next::CoolDown | Next::Campaign | Next::Retry { .. } => self.stop(step),
        }
    }

    fn back_off(&mut self, error: Option<String>, step: &mut Step) {
        match self.next_delay(error, step) {
            Some(delay) => {
                let next = step.now + delay;
                self.enter(State::Follower { next, cool_until: None }, step);
            }
            None => self.stop(step),
        }
    }

    fn next_delay(&mut self, last_error: Option<String>, step: &Step) -> Option<Duration> {
        self.cycle.attempt = self.cycle.attempt.saturating_add(1);
        let began = *self.cycle.began.get_or_insert(step.now);
        let elapsed = step.now.saturating_since(began);
        let ctx = RetryContext { attempt: self.cycle.attempt, elapsed, last_error };
        let delay = self.opts.retry.next_delay(&ctx, self.cycle.prev, step.random);
        self.cycle.prev = delay;
        delay
    }

    fn stop(&mut self, step: &mut Step) {
        self.enter(State::Stopped, step);
        step.push(Effect::Leave);
        step.tell(Notice::Stopped);
    }

    fn enter(&mut self, state: State, step: &mut Step) {
        let from = self.state();
        self.state = state;
        let to = self.state();
        if from != to {
            step.tell(Notice::StateChange { from, to });
        }
    }

    fn two_wins(held: Epoch, other: Epoch) -> String {
        format!("epoch {other} was won while epoch {held} was held; dropping the session")
    }
}
