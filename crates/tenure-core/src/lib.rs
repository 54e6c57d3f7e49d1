//! The pure heart of Tenure: values, lifecycle, lease arithmetic, gate, retry, and the member's engine
//! with the protocol it speaks.
//!
//! No task, no socket, no SQL, no random numbers: what happens goes in as values, what is to be done
//! comes out as values, and time is an argument. A driver (`tenure` for PostgreSQL) carries it out.
//!
//! A program that leads uses `tenure`, which re-exports what it meets: gate, epoch, keys, timings, states,
//! retry strategies. This crate is for a driver of another kind, and for tools that compare ticks or keys.
//!
//! # What it guarantees
//!
//! - **One term, one gate.** A [`LeaderGate`] says yes only between the opening of its term and the
//!   earlier of its deadline and its shutting, judged by the tick it compared ([`gate`]).
//! - **The lease only ever shortens trust.** The holder counts from *before* it sent its heartbeat,
//!   a claimant from *after* it first saw that heartbeat: the claimant waits longer ([`lease`]).
//! - **Epochs strictly increase**, also over a failover that lost some of them ([`epoch`]).
//! - **Every term that begins ends once**, with `Released` or `Lost`; every way out of LEADER shuts
//!   the gate first; no lock is claimed while one is held; a lock won too late goes back
//!   ([`lifecycle`]).
//!
//! # What it does not
//!
//! - It cannot stop a process that is paused between the gate's yes and its effect. The fence in the
//!   database can; [`Act::finish`] at least tells that it may have happened.
//! - It believes its caller: that an answer is what the database said, that effects are carried out
//!   in order, and that the [`Clock`] counts suspend.
//! - Clock *rates* that differ by more than the margin are outside the promise.
//!
//! # Which side is authoritative
//!
//! | question | answer |
//! |---|---|
//! | which member holds the role? | the database: the lock and the row |
//! | may I act now? | my gate: the last heartbeat the database confirmed, and my own clock |
//! | may a write commit? | the database: the fence compares epochs |
//! | what happened? | the database: the history of terms |
//!
//! # The states
//!
//! ```text
//! STOPPED ⇄ FOLLOWER ⇄ ACQUIRING → LEADER ⇄ RECONNECTING
//!                 ▲                   │            │
//!                 └──── RELEASING ◄───┘            └──► FOLLOWER (lost)
//! ```
//!
//! # The timing
//!
//! ```text
//! gate open    while   now < sent(last good heartbeat) + lease              (holder's clock)
//! server ends  at      last message + lease + margin                        (server's clock)
//! takeover     at      max(first saw the latest beat, first contact) + lease + margin
//!                                                                           (claimant's clock)
//! checked:     1.2 × heartbeat + statement deadline + kill grace ≤ lease
//! ```
//!
//! # What happens when
//!
//! | fault | gate | lifecycle | told |
//! |---|---|---|---|
//! | heartbeat late | shuts at the deadline at the latest | stays LEADER | `Late`, then `Well` |
//! | heartbeat fails, session lost | shuts at once | RECONNECTING, or FOLLOWER without grace | `Recovered` or `Lost` |
//! | process frozen | shut when it wakes up, before any task runs | as session lost | `Lost` |
//! | epoch moved | shuts at once | lock given back, FOLLOWER | `Lost` |
//! | step-down, shutdown | drains, then shuts | RELEASING, then FOLLOWER or STOPPED | `Released` |
//! | release takes too long | shut | session cycled | `Error`, `Lost` |
//! | session lost while acquiring | never opened | FOLLOWER | `Error` |
//!
//! # Example
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//! use tenure_core::{
//!     Clock, Effect, Epoch, Identity, Input, LeaderGate, Lease, Lifecycle, LifecycleOptions,
//!     ManualClock, Tick,
//! };
//! # use uuid::Uuid;
//!
//! let lease = Lease::default();
//! let clock = ManualClock::new(Tick::from_nanos(1));
//! let me = Identity::new("scheduler", "host-a", 42, Uuid::nil())?;
//! let (mut keeper, gate) = LeaderGate::pair(Arc::new(clock.clone()), me);
//! let mut role = Lifecycle::new(LifecycleOptions::default());
//!
//! role.handle(Input::Start, clock.now(), 0.5);
//! let sent = clock.now();
//! assert!(role.handle_timeout(sent, 0.5).contains(&Effect::Claim));
//! // The driver claims; the database says: yours, under epoch 7, and no debt is owed.
//! let won = Input::Claimed { epoch: Epoch(7), open_at: None };
//! for effect in role.handle(won, clock.now(), 0.5) {
//!     if let Effect::OpenGate { epoch } = effect {
//!         keeper.open(epoch, lease.gate_deadline(sent));
//!     }
//! }
//!
//! let token = gate.require_leader()?;
//! let act = gate.begin_act(Duration::from_secs(1))?;
//! gate.ensure_epoch(token.epoch)?; // just before the send
//! act.finish()?;
//!
//! clock.advance(lease.lease()); // no heartbeat for a whole lease
//! assert!(!gate.is_leader());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod clock;
#[cfg(not(loom))]
#[doc(hidden)]
pub mod engine;
pub mod epoch;
pub mod gate;
pub mod identity;
pub mod key;
pub mod lease;
pub mod lifecycle;
#[cfg(all(feature = "model", not(loom)))]
#[doc(hidden)]
pub mod model;
#[doc(hidden)]
pub mod protocol;
pub mod retry;

#[cfg(feature = "boot-clock")]
pub use clock::BootClock;
pub use clock::{Clock, ManualClock, Tick};
pub use epoch::{Epoch, GENERATION, next_epoch};
pub use gate::{Act, Drained, GateKeeper, LeaderGate, LeaderToken, NotLeader, Refusal, Uncertain};
pub use identity::{Identity, IdentityError};
pub use key::{KeyError, LockKey, RoleName, RoleNameError};
pub use lease::{Fault, Lease, LeaseError, LeaseSpec, LeaseWarning, PolicyError, TakeoverPolicy};
pub use lifecycle::{
    Effect, Input, Lifecycle, LifecycleOptions, LockState, LockStateError, LostReason, NotAcquired,
    Notice,
};
pub use retry::{
    DecorrelatedJitter, ExponentialBackoff, FixedInterval, RetryContext, RetryStrategy,
};
