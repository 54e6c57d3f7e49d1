//! The pure heart of Tenure: lifecycle, lease arithmetic, gate, retry, keys, identity, epochs.

pub mod clock;
pub mod epoch;
pub mod gate;
pub mod identity;
pub mod key;
pub mod lease;
pub mod lifecycle;
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
