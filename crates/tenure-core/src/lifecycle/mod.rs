//! The life of one role on one member: `(state, input, now) → (state, effects)`.
//!
//! ```text
//!             Start                Wake                 Claimed, nothing owed
//!  STOPPED ──────────► FOLLOWER ─────────► ACQUIRING ────────────────────────► LEADER ◄───────┐
//!     ▲  StopRequested │   ▲  ClaimFailed,    │ claims; waits, gate shut, until │ │ │         │
//!     │◄───────────────┘   └─ SessionLost ────┤ the debtor's gate must be shut; │ │ │  Reclaimed
//!     │                    ▲                  │ marks acting                    │ │ │         │
//!     │                    │                  ▼     StopRequested,              │ │ │         │
//!     │◄───────────────────┼──────────── RELEASING ◄─ReleaseRequested───────────┘ │ └► RECONNECTING
//!     │       Released     │  (after a step-down)                                 │        │
//!     │                    └─────────────── Lost ◄────────────────────────────────┴────────┘
//! ```
//!
//! `docs/lifecycle.md` has every row. What the rows have in common:
//!
//! - `Lost` is told only of a term that led: an error while ACQUIRING is an `Error`, nothing more.
//! - Every way out of LEADER shuts (or drains) the gate first and asks afterwards.
//! - A step-down stays out of the race for the cool-down; a wake-up does not shorten it.
//! - Winning back under another epoch is a loss and a new term, not a recovery.
//! - A release that takes too long cycles the session, so that no lock leaks, and ends the term with
//!   `Lost` (a successor finds it unclean); after a step-down the role then follows, not stops.
//! - Stopping, or stepping down, while RECONNECTING tells `Lost`: every `Acquired` has its end.
//!
//! Three promises of the caller: effects are carried out in order; every request is answered, at the
//! latest at its own deadline; answers arrive in the order of the requests. What arrives although it
//! no longer fits the state is ignored, except a lock won too late, which is released.

mod moves;
mod rows;
mod vocabulary;

use std::time::Duration;

use crate::clock::Tick;
use crate::epoch::Epoch;

pub use vocabulary::{
    Effect, Input, LifecycleOptions, LockState, LockStateError, LostReason, NotAcquired, Notice,
};

/// Each state with what belongs to it alone.
#[derive(Clone, Debug)]
enum State {
    Stopped,
    Follower { next: Tick, cool_until: Option<Tick> },
    Acquiring(Stage),
    Leader { epoch: Epoch, well: bool },
    Reconnecting { epoch: Epoch, until: Tick, retry_at: Option<Tick> },
    Releasing(Releasing),
}

/// How far an acquisition has come.
#[derive(Copy, Clone, Debug)]
enum Stage {
    /// The lock is not ours yet.
    Claiming,
    /// It is; the last leader's gate may still be open.
    Waiting { epoch: Epoch, open_at: Tick },
    /// The durable `acting` write is under way.
    MarkingActing { epoch: Epoch },
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
    Follow,
    Retry { error: Option<String> },
}

/// A lock that was won when the role no longer wanted it, on its way back.
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

    /// Whether the role is released for a stop: it ends in [`LockState::Stopped`], and a start before that is lost.
    pub fn is_stopping(&self) -> bool {
        matches!(self.state, State::Releasing(Releasing { then: Next::Stop, .. }))
    }

    /// The epoch of the term that is waited for, led, won back or released.
    pub fn epoch(&self) -> Option<Epoch> {
        match self.state {
            State::Stopped | State::Follower { .. } | State::Acquiring(Stage::Claiming) => None,
            State::Acquiring(Stage::Waiting { epoch, .. } | Stage::MarkingActing { epoch })
            | State::Leader { epoch, .. }
            | State::Reconnecting { epoch, .. } => Some(epoch),
            State::Releasing(ref releasing) => Some(releasing.epoch),
        }
    }

    /// Whether the role belongs in the next claim.
    pub fn wants_claim(&self) -> bool {
        matches!(self.state, State::Acquiring(Stage::Claiming))
    }

    /// Whether this session holds the lock, as far as is known.
    pub fn holds_lock(&self) -> bool {
        match self.state {
            State::Stopped | State::Follower { .. } => self.stray.is_some(),
            State::Acquiring(Stage::Claiming) | State::Reconnecting { .. } => false,
            State::Acquiring(Stage::Waiting { .. } | Stage::MarkingActing { .. })
            | State::Leader { .. }
            | State::Releasing(_) => true,
        }
    }

    /// When to call [`Lifecycle::handle_timeout`] at the latest, if nothing happens before.
    pub fn next_timeout(&self) -> Option<Tick> {
        let own = match self.state {
            State::Stopped
            | State::Acquiring(Stage::Claiming | Stage::MarkingActing { .. })
            | State::Leader { .. } => None,
            // The attempt waits for the stray lock to be gone.
            State::Follower { next, .. } => self.stray.is_none().then_some(next),
            State::Acquiring(Stage::Waiting { open_at, .. }) => Some(open_at),
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
            State::Follower { cool_until, .. } => self.when_follower(cool_until, input, &mut step),
            State::Acquiring(Stage::Claiming) => self.when_claiming(input, &mut step),
            State::Acquiring(Stage::Waiting { epoch, .. }) => {
                self.when_waiting(epoch, false, input, &mut step);
            }
            State::Acquiring(Stage::MarkingActing { epoch }) => {
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
                step.effects.extend(self.handle(Input::Wake, now, unit_random));
            }
            State::Acquiring(Stage::Waiting { epoch, open_at }) if open_at <= now => {
                self.mark_acting(epoch, &mut step);
            }
            State::Reconnecting { epoch, until, .. } if until <= now => {
                step.tell(Notice::Lost { epoch, reason: LostReason::GraceExpired });
                self.go(Next::Follow, &mut step);
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
                self.force("the release timed out".to_owned(), true, &mut step);
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
}
