//! What goes into a lifecycle and what comes out.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Tick;
use crate::epoch::Epoch;
use crate::retry::{ExponentialBackoff, RetryStrategy};

/// Where a role's lifecycle stands. A closed set: `docs/lifecycle.md` has every state and every way from one
/// to another, so a program may match on it without a catch-all.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LockState {
    /// Not running; the first and the last state.
    Stopped,
    /// Running, and waiting for the next attempt.
    Follower,
    /// Trying to win the lock, or holding it and waiting until the last leader's gate must be shut.
    Acquiring,
    /// Leading. The gate is open unless a heartbeat is late.
    Leader,
    /// The session died; within the grace period it may be won back. Not leading.
    Reconnecting,
    /// Letting go.
    Releasing,
}

impl LockState {
    /// Every state, in the order of a life.
    pub const ALL: [LockState; 6] = [
        LockState::Stopped,
        LockState::Follower,
        LockState::Acquiring,
        LockState::Leader,
        LockState::Reconnecting,
        LockState::Releasing,
    ];

    /// The name in lower case.
    pub const fn as_str(self) -> &'static str {
        match self {
            LockState::Stopped => "stopped",
            LockState::Follower => "follower",
            LockState::Acquiring => "acquiring",
            LockState::Leader => "leader",
            LockState::Reconnecting => "reconnecting",
            LockState::Releasing => "releasing",
        }
    }
}

impl fmt::Display for LockState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A text that names no state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[error(
    "{text:?} is no state; write stopped, follower, acquiring, leader, reconnecting or releasing"
)]
#[allow(missing_docs, reason = "the names say it")]
pub struct LockStateError {
    pub text: String,
}

impl FromStr for LockState {
    type Err = LockStateError;

    fn from_str(text: &str) -> Result<Self, LockStateError> {
        LockState::ALL
            .into_iter()
            .find(|state| state.as_str() == text)
            .ok_or_else(|| LockStateError { text: text.to_owned() })
    }
}

/// How a role behaves.
#[derive(Clone, Debug)]
pub struct LifecycleOptions {
    /// Whether to claim again after a loss or a step-down. Default true; false stops the role.
    pub auto_reacquire: bool,
    /// How long to try to win the role back after its session died, before it is a loss. Default
    /// none: a loss at once.
    pub reconnect_grace: Option<Duration>,
    /// How long to stay out of the race after a step-down. Default 5 s. If it is too short, the
    /// member that stepped down wins again before the others have heard of it.
    pub cool_down: Duration,
    /// How long a release waits for acts in flight. Default 10 s. When it is over the release goes
    /// ahead, not clean.
    pub drain_limit: Duration,
    /// How long the unlock itself may take before the session is cycled. Default 5 s.
    pub release_timeout: Duration,
    /// How attempts are paced, and when to give up.
    pub retry: Arc<dyn RetryStrategy>,
}

impl Default for LifecycleOptions {
    fn default() -> Self {
        LifecycleOptions {
            auto_reacquire: true,
            reconnect_grace: None,
            cool_down: Duration::from_secs(5),
            drain_limit: Duration::from_secs(10),
            release_timeout: Duration::from_secs(5),
            retry: Arc::new(ExponentialBackoff::default()),
        }
    }
}

/// Why a claim did not win.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NotAcquired {
    /// Another session holds the lock.
    Held,
    /// The role's row was locked by another transaction for too long.
    Blocked,
    /// An operator paused the role.
    Paused,
    /// It is kept free for a named successor, a higher priority or a reconnecting holder.
    Reserved,
    /// This member is an observer, or is not ready while others are.
    Ineligible,
    /// The database does not know the role any more; it is registered again.
    Unknown,
    /// The database failed to carry the claim out; an error event says why.
    Failed,
}

impl fmt::Display for NotAcquired {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NotAcquired::Held => "another session holds the lock",
            NotAcquired::Blocked => "the role's row is locked by another transaction",
            NotAcquired::Paused => "the role is paused",
            NotAcquired::Reserved => "the role is reserved for another member",
            NotAcquired::Ineligible => "this member may not lead now",
            NotAcquired::Unknown => "the database does not know the role any more",
            NotAcquired::Failed => "the database could not carry the claim out",
        })
    }
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Input {
    /// The user starts the role.
    Start,
    /// The user stops the role.
    StopRequested,
    /// A wake-up: notification, sentinel, poll or timer.
    Wake,
    /// The role was released with this member as its named successor.
    Named,
    /// The claim won the lock under `epoch`.
    Claimed {
        epoch: Epoch,
        /// `None`: there was no debt, and the claim itself recorded us as acting: lead at once.
        /// Otherwise when the last leader's gate must be shut; a tick in the past means now. Then
        /// [`Effect::MarkActing`] comes first.
        open_at: Option<Tick>,
    },
    /// The durable `acting` write succeeded.
    MarkedActing { epoch: Epoch },
    /// The claim did not win.
    ClaimFailed { why: NotAcquired },
    /// A heartbeat succeeded, and confirmed lock and epoch.
    BeatOk,
    /// A heartbeat is late on a session that still lives.
    BeatLate,
    /// The session is gone, and every lock with it: its socket is closed, its backend will be
    /// terminated by the next session.
    SessionLost { error: String },
    /// The row carries another epoch than ours.
    EpochMoved,
    /// The lock was won back.
    Reclaimed {
        /// Under which epoch; if not the old one, the old term was lost.
        epoch: Epoch,
    },
    /// The lock cannot be won back: another session holds it, or the incarnation is new. (A lost
    /// session is [`Input::SessionLost`], and is retried until the grace period ends.)
    ReclaimFailed,
    /// The user, or an operator, asks the leader to step down.
    ReleaseRequested {
        /// The successor, if one was named.
        to: Option<String>,
        /// By when the lock must be free, if need be by force.
        deadline: Option<Tick>,
    },
    /// No act is in flight any more.
    Drained,
    /// The lock is released.
    Released,
}

/// What to do about it, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Effect {
    /// The role needs the member's sessions from now on.
    Join,
    /// Put the role in the next claim. Answer once, with `Claimed`, `ClaimFailed` or `SessionLost`;
    /// drop it if [`super::Lifecycle::wants_claim`] has turned false.
    Claim,
    /// Record durably that this member's gate is about to open. Answer with `MarkedActing`,
    /// `EpochMoved` or `SessionLost`.
    MarkActing { epoch: Epoch },
    /// Open the gate, until the lease of the last successful heartbeat ends.
    OpenGate { epoch: Epoch },
    /// Shut the gate now, before anything else.
    ShutGate,
    /// Admit no new act; answer with `Drained` when none is in flight.
    DrainGate {
        /// How long the lifecycle will wait for that.
        limit: Duration,
    },
    /// Get a session and win the lock back under the same epoch. Answer with `Reclaimed`,
    /// `ReclaimFailed` or `SessionLost`.
    Reclaim { epoch: Epoch },
    /// Release the lock; clean only if no act is in flight. Answer with `Released` or `SessionLost`.
    Release {
        /// The epoch to release, so that a late release cannot touch a successor's row.
        epoch: Epoch,
        to: Option<String>,
    },
    /// Drop the session and terminate its backend: the one sure way to free a lock in doubt.
    CycleSession,
    /// The role no longer needs the member's sessions (after what was asked for before this).
    Leave,
    /// Tell the user.
    Notify(Notice),
}

/// Why a term ended against the leader's will.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LostReason {
    /// The session died or a heartbeat failed.
    Session(String),
    /// The row carries another epoch.
    EpochMoved,
    /// After the session had died, another member was faster, or the database is a new incarnation.
    Taken,
    /// After the session had died, it could not be won back in time.
    GraceExpired,
    /// The strategy gave up reconnecting.
    GaveUp,
    /// Stopped while reconnecting.
    Stopped,
    /// Stepped down while reconnecting.
    SteppedDown,
    /// The release did not go through, so the session was dropped; a successor must wait.
    ReleaseFailed(String),
}

impl fmt::Display for LostReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LostReason::Session(error) => write!(f, "session lost: {error}"),
            LostReason::EpochMoved => f.write_str("the role has another epoch"),
            LostReason::Taken => f.write_str("the role could not be won back"),
            LostReason::GraceExpired => f.write_str("the grace period ended"),
            LostReason::GaveUp => f.write_str("the retry strategy gave up"),
            LostReason::Stopped => f.write_str("stopped while reconnecting"),
            LostReason::SteppedDown => f.write_str("stepped down while reconnecting"),
            LostReason::ReleaseFailed(error) => write!(f, "the release failed: {error}"),
        }
    }
}

/// What the user is told: the callbacks and a few events more.
///
/// Exhaustive on purpose, unlike the reasons within it. Programs stop their work on some notices and go on
/// through others; a new kind should be an error of their compiler, not a silent `_` arm.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Notice {
    /// `on_state_change`.
    StateChange { from: LockState, to: LockState },
    /// `on_acquired`: a term begins, its gate is open.
    Acquired { epoch: Epoch },
    /// `on_released`: the term ended as asked for.
    Released { epoch: Epoch },
    /// `on_lost`: the term ended otherwise.
    Lost { epoch: Epoch, reason: LostReason },
    /// `on_acquire_failed`.
    AcquireFailed { why: NotAcquired },
    /// `on_error`.
    Error(String),
    /// `on_stopped`.
    Stopped,
    /// A heartbeat is late: the gate is shut, the term goes on.
    Late { epoch: Epoch },
    /// Heartbeats are in time again: the gate is open.
    Well { epoch: Epoch },
    /// Won back after a lost session: the same term goes on.
    Recovered { epoch: Epoch },
}
