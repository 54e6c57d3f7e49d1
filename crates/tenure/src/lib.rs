//! Exactly one acting leader per role, on the PostgreSQL you already run.
//!
//! ```no_run
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//!
//! let (member, lock) = tenure::lead("postgresql://localhost/app", "scheduler").await?;
//! lock.wait_for_leadership(None).await?;
//! let act = lock.begin_act(Duration::from_secs(1))?; // refused unless the lease covers it
//! // … what only the leader may do, with act.epoch() as its fencing token …
//! act.finish()?;                                     // or: the effect is uncertain
//! member.shutdown(None).await?;
//! # Ok(())
//! # }
//! ```
//!
//! It runs on tokio. What a program usually does next:
//!
//! | to | use |
//! |---|---|
//! | run work for as long as this process leads | [`LeaderLock::while_leading`] |
//! | have the database refuse the writes of a former leader | [`fence()`], or the trigger of `docs/fence.md` |
//! | have many roles, or settings from a file and the environment | [`config`], [`Member::start`], [`Member::start_all`] |
//! | spread many roles evenly over the members | [`shards::Shards`] |
//! | be told of terms | [`LeaderLock::changes`], [`LeaderLock::events`], [`LeaderLock::on_acquired`] and its fellows |
//! | know which member leads | [`LeaderLock::leader`], [`LeaderLock::observe`] |
//! | ask and order from outside | [`operate`], or the program `tenure` |
//! | watch it | [`metrics`], [`Member::health`] |
//! | look a server over before it is used | [`preflight::check`] |
//! | test the program without a database | [`memory::MemoryGroup`] |
//!
//! The folder `examples` has a server, a worker, many roles and a hand-over.
//!
//! # What it guarantees
//!
//! 1. **Exclusive.** For one role there are never two open gates at the same instant: not after a
//!    crash, freeze, partition, half-open TCP, terminated session, database restart, crash or
//!    failover, in any order.
//! 2. **Fenced.** Epochs of a role strictly increase, also across a failover that lost commits. A
//!    write fenced with an old epoch cannot commit after a newer one was issued ([`fence`]).
//! 3. **Prompt.** A new leader acts within the bounds below.
//! 4. **Fail closed.** Any doubt shuts the gate first and asks afterwards.
//! 5. **No leak.** A lock is held once or not at all; every way out releases.
//! 6. **Quiet.** Two sessions and a few short statements per heartbeat, whatever the number of roles.
//! 7. **Honest.** A setup on which this cannot hold is refused at start ([`preflight`]).
//!
//! It assumes that clock *rates* differ by less than the margin (10 % + 250 ms of 3 s), that the clock
//! runs on while a virtual machine is paused, and that the database has one primary at a time, or
//! that every standby that may be promoted must acknowledge commits.
//!
//! # What it does not guarantee
//!
//! A process may be paused between the gate's yes and its effect. No check inside the process can
//! prevent that; the fence in the database can, and an [`Act`] tells afterwards that its effect is
//! *uncertain*.
//!
//! # Which side is authoritative
//!
//! The database decides which member holds a role: a session advisory lock, and a row that carries the epoch.
//! A clock of ours only ever *shortens* trust: the gate's deadline is the time a successful heartbeat
//! was **sent**, plus the lease. No wall clock takes part in any decision about safety.
//!
//! ```text
//!             seat: role locks, member lock, heartbeat, LISTEN
//!  member A ───────────────────────────────────────────────────►  PostgreSQL
//!             sentinel: waits for member B's death                 idle_session_timeout
//!                                                                  = lease + margin
//!
//!  gate of A open    |======beat====beat====beat====|             deadline = last sent + lease
//!  A frozen                            ^ last beat sent            |
//!  server ends A's seat                |--- lease + margin --->|   |
//!  B saw that beat                      ^ ≤ 1.2 heartbeats later
//!  gate of B opens                        |---- lease + margin --->|=====
//! ```
//!
//! | fault | `exclusive` | `fenced` |
//! |---|---|---|
//! | step-down, shutdown | one notification (ms) | ms |
//! | crash, terminated session | ≤ lease + margin (+ 1.2 heartbeats) | ms |
//! | freeze, partition, host loss | ≤ lease + 2 margins + 1.2 heartbeats | ≤ lease + margin |
//! | database restart, crash, failover | reconnect + lease + margin | reconnect |
//!
//! # Where things are
//!
//! [`Member`] is one process, [`LeaderLock`] one role of it, [`LeaderGate`] the choke point every
//! act passes. Inside: the engine of `tenure-core` decides (pure), `driver` carries out, `seat` and `sentinel` speak to
//! the database over a `line`, and the SQL functions in `sql/` are the other half of the protocol.

pub mod config;
mod driver;
mod error;
mod fence;
mod lock;
mod member;
pub mod memory;
pub mod metrics;
pub mod operate;
mod postgres;
pub mod preflight;
mod publisher;
pub mod schema;
mod seat;
mod sentinel;
pub mod shards;

/// From a DSN to a session: connection strings, TLS, errors.
pub use tenure_connect as connect;
use tenure_connect::{line, sql};

pub use driver::{Health, RoleHealth};
pub use error::TenureError;
pub use fence::{FenceError, fence};
pub use lock::{Leader, LeaderLock};
pub use member::{Member, Pulse, lead};
pub use publisher::{Event, LeaderStateChanged};
pub use tenure_core::clock::{BootClock, Clock, Tick};
pub use tenure_core::epoch::Epoch;
pub use tenure_core::gate::{Act, LeaderGate, LeaderToken, NotLeader, Refusal, Uncertain};
pub use tenure_core::identity::Identity;
pub use tenure_core::key::{LockKey, RoleName};
pub use tenure_core::lease::{Lease, LeaseSpec, TakeoverPolicy};
pub use tenure_core::lifecycle::{LockState, LostReason, NotAcquired, Notice};
pub use tenure_core::protocol::RegisterRefusal;
pub use tenure_core::retry::{
    DecorrelatedJitter, ExponentialBackoff, FixedInterval, RetryContext, RetryStrategy,
};
