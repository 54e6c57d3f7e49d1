//! What a driver needs of a database: PostgreSQL ([`crate::postgres`]), or a group in memory.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tenure_connect::line::Unasked;
use tenure_core::key::{LockKey, RoleName};
use tenure_core::protocol::{Done, Op, Seated};
use tokio::sync::{Notify, mpsc, watch};

use crate::error::TenureError;

/// Where a member takes its seat.
pub(crate) trait Database: Send + Sync + 'static {
    /// A session that holds the member's locks. Dropping it closes it at once.
    type Seat: Send + Sync + 'static;

    /// Connects and takes the seat.
    fn take_seat(&self) -> impl Future<Output = Result<Taken<Self::Seat>, TenureError>> + Send;

    /// One round trip. After an error the outcome is unknown: the driver drops the seat.
    fn run(&self, seat: &Self::Seat, op: &Op) -> impl Future<Output = Result<Done, String>> + Send;

    /// The seat could not be kept. Where there are several servers, the next attempt starts at another.
    fn pass_over(&self, seat: &Self::Seat);

    /// Closes the session in good order.
    fn close(&self, seat: Self::Seat) -> impl Future<Output = ()> + Send;

    /// The sentinel: waits for other members' deaths until its task is aborted.
    fn watch(&self, watch: SentinelChannels) -> impl Future<Output = ()> + Send;

    /// Ends what stands before a claim, from a session beside the seat. What cannot be ended is
    /// returned, with the remedy.
    fn unblock(&self, blocked: Blocked) -> impl Future<Output = Option<String>> + Send;

    /// Asks the leader of a role to hand it to this member, if this member's priority is higher.
    fn preempt(&self, role: RoleName) -> impl Future<Output = ()> + Send;
}

/// A seat that was just taken.
pub(crate) struct Taken<S> {
    pub(crate) seat: S,
    pub(crate) seated: Seated,
    pub(crate) heard: mpsc::UnboundedReceiver<Unasked>,
}

/// What a sentinel is given.
pub(crate) struct SentinelChannels {
    pub(crate) events: mpsc::UnboundedSender<SentinelEvent>,
    /// The ring may have changed.
    pub(crate) look_again: Arc<Notify>,
    /// In lock-only mode: the locks to wait for.
    pub(crate) wanted: watch::Receiver<Vec<LockKey>>,
}

/// What a sentinel tells its driver.
#[derive(Debug)]
pub(crate) enum SentinelEvent {
    /// That member's session is gone.
    Died(String),
    /// The lock of a role that this member waits for is free (lock-only mode).
    Free,
    /// This was sent to our own channel, and the seat should hear it.
    Called(String),
}

/// A claim that another transaction holds up.
#[derive(Debug, Clone)]
pub(crate) struct Blocked {
    pub(crate) role: RoleName,
    /// The backend of our seat, which waits.
    pub(crate) seat_pid: i32,
    /// A transaction of this age may be ended.
    pub(crate) age: Duration,
    /// How long the claim waits.
    pub(crate) within: Duration,
}
