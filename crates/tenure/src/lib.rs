//! Exactly one acting leader per role, on the PostgreSQL you already run.

mod actor;
pub mod config;
pub mod connect;
pub mod dsn;
mod engine;
mod error;
mod fence;
mod hub;
mod line;
mod lock;
mod member;
pub mod metrics;
pub mod operate;
pub mod preflight;
pub mod schema;
mod seat;
mod sentinel;
mod sql;
pub mod tls;

pub use actor::{Health, RoleHealth};
pub use error::TenureError;
pub use fence::{FenceError, fence};
pub use hub::{Event, LeaderStateChanged};
pub use lock::{LeaderLock, Leadership};
pub use member::{Member, lead};
pub use tenure_core::clock::{BootClock, Clock, Tick};
pub use tenure_core::epoch::Epoch;
pub use tenure_core::gate::{Act, LeaderGate, LeaderToken, NotLeader, Refusal, Uncertain};
pub use tenure_core::identity::Identity;
pub use tenure_core::key::{LockKey, RoleName};
pub use tenure_core::lease::{Lease, LeaseSpec, TakeoverPolicy};
pub use tenure_core::lifecycle::{LockState, LostReason, NotAcquired, Notice};
pub use tenure_core::retry::{
    DecorrelatedJitter, ExponentialBackoff, FixedInterval, RetryContext, RetryStrategy,
};
