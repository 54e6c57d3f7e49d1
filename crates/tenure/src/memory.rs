//! Leadership among the tasks of one process, for a program's own tests.
//!
//! A [`MemoryGroup`] stands for the database and the network, and hands out the same [`LeaderLock`] that
//! a member on PostgreSQL does: engine and driver are the ones that run there, so lifecycle, gate,
//! events, leases, takeover policies, cool-down, priority and readiness are the same; the database is
//! a model of ours. Both pass one conformance suite.
//!
//! *Guaranteed*: what [`crate`] promises, within one process. *Not*: anything between processes, and
//! no fence, for there is no database to write to. The epoch in [`crate::LeaderToken`] is real.
//!
//! Time is that of the Tokio runtime: in a test that runs with paused time (`start_paused = true`) a
//! failover that takes seconds takes none.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), tenure::TenureError> {
//! use tenure::memory::MemoryGroup;
//!
//! let group = MemoryGroup::new();
//! let (first, second) = (group.lock("scheduler")?, group.lock("scheduler")?);
//! first.start().await?;
//! first.wait_for_leadership(None).await?;
//! second.start().await?;
//!
//! first.step_down(None).await?; // or: group.crash(&first).await, group.partition(&first)
//! second.wait_for_leadership(None).await?;
//! assert!(!first.is_leader());
//! # Ok(())
//! # }
//! ```

mod database;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_core::clock::{Clock, Tick};
use tenure_core::engine::Engine;
use tenure_core::identity::Identity;
use tenure_core::key::RoleName;
use tenure_core::lease::{Lease, LeaseError, LeaseSpec};
use tenure_core::model::MemberSpec;
use tenure_core::retry::ExponentialBackoff;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::config::{ConfigError, RoleSpec};
use crate::driver::{Driver, Handle};
use crate::error::TenureError;
use crate::lock::{LeaderLock, Observed};
use crate::seat::Profile;
use database::{CHANNEL, MemoryDatabase, Shared};

/// The members of one test, and the database they think they share. Clones are the same group.
#[derive(Debug, Clone)]
pub struct MemoryGroup {
    shared: Arc<Shared>,
    /// The members' drivers, by identity.
    drivers: Arc<Mutex<BTreeMap<String, JoinHandle<()>>>>,
}

impl Default for MemoryGroup {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryGroup {
    /// An empty group with the default timings.
    ///
    /// # Panics
    /// Outside a Tokio runtime.
    #[must_use]
    pub fn new() -> Self {
        Self::of(Lease::default())
    }

    /// An empty group with timings of its own.
    ///
    /// # Errors
    /// [`LeaseError`] if they contradict each other.
    ///
    /// # Panics
    /// Outside a Tokio runtime.
    pub fn with_lease(lease: LeaseSpec) -> Result<Self, LeaseError> {
        Ok(Self::of(lease.resolve()?))
    }

    fn of(lease: Lease) -> Self {
        let clock = Arc::new(RuntimeClock {
            runtime: tokio::runtime::Handle::current(),
            origin: Instant::now(),
        });
        MemoryGroup { shared: Arc::new(Shared::new(lease, clock)), drivers: Arc::default() }
    }

    /// A new member with that one role, not started yet.
    ///
    /// # Errors
    /// If no role can be called so.
    pub fn lock(&self, role: &str) -> Result<LeaderLock, TenureError> {
        self.candidate(RoleSpec::named(role))
    }

    /// A new member with that one role, not started yet. With the last clone of its handle the member
    /// releases the role and leaves.
    ///
    /// # Errors
    /// If the role is not valid.
    pub fn candidate(&self, role: RoleSpec) -> Result<LeaderLock, TenureError> {
        let lease = self.shared.lease;
        let role = role.validate(&lease, false)?;
        let identity = Identity::generate("memory").map_err(ConfigError::from)?;
        let name = identity.as_str().to_owned();
        let profile = Profile {
            identity: identity.clone(),
            host: "memory".to_owned(),
            pid: std::process::id(),
            lease,
            grace: lease.reconnect_grace().unwrap_or_default(),
            channel: CHANNEL.to_owned(),
            lock_only: false,
            roles: 1,
        };
        let spec = MemberSpec::new(&name, &lease);
        let database = MemoryDatabase { shared: self.shared.clone(), spec };
        let random = Box::new(rand::random::<f64>);
        let engine = Engine::new(lease, lease.lease(), None, false, random);
        let (commands, inbox) = mpsc::unbounded_channel();
        let clock = self.shared.clock.clone();
        let pace = ExponentialBackoff::new(Duration::from_millis(40), lease.heartbeat());
        let reconnect = Arc::new(pace);
        let driver = Driver::new(database, profile, clock.clone(), engine, reconnect, inbox);
        self.drivers().insert(name, tokio::spawn(driver.run()));
        let retry = Arc::new(ExponentialBackoff::default());
        let observed = Observed::new(self.shared.clone(), lease);
        let handle = Arc::new(Handle {
            commands,
            clock,
            identity,
            lease,
            retry,
            enabled: true,
            patience: None,
            observed,
        });
        handle.add(&role)
    }

    /// Cuts a member off: nothing reaches it, nothing comes from it, and it does not notice. The
    /// server ends its session when the lease and the margin are over, as PostgreSQL does.
    pub fn partition(&self, lock: &LeaderLock) {
        let member = member_of(lock);
        let session = {
            let mut server = self.shared.server();
            server.cut.insert(member.clone());
            server.session_of(&member)
        };
        let shared = self.shared.clone();
        tokio::spawn(async move {
            tokio::time::sleep(shared.lease.idle_session_timeout()).await;
            let now = shared.clock.now();
            let mut server = shared.server();
            if let Some(session) = session.filter(|_| server.cut.contains(&member)) {
                server.end(session, now);
            }
        });
    }

    /// Ends a partition.
    pub fn heal(&self, lock: &LeaderLock) {
        self.shared.server().cut.remove(&member_of(lock));
    }

    /// The member's process dies, without releasing anything; its gate is shut when this returns.
    /// The handle is of no use any more: take a new one from the group.
    pub async fn crash(&self, lock: &LeaderLock) {
        let driver = self.drivers().remove(&member_of(lock));
        if let Some(driver) = driver {
            driver.abort();
            let _ = driver.await;
        }
        self.terminate(lock);
    }

    /// Ends a member's session, as `pg_terminate_backend` does.
    pub fn terminate(&self, lock: &LeaderLock) {
        let now = self.shared.clock.now();
        let mut server = self.shared.server();
        if let Some(session) = server.session_of(&member_of(lock)) {
            server.end(session, now);
        }
    }

    /// Restarts the database: every session ends, nothing else is lost.
    pub fn restart(&self) {
        self.shared.server().restart();
    }

    /// An operator's switch: while a role is paused no member claims it, and its leader drains.
    ///
    /// # Errors
    /// [`TenureError::NoSuchRole`] if no member has started that role yet, [`TenureError::RoleName`] if none can
    /// be called so.
    pub fn set_paused(&self, role: &str, paused: bool) -> Result<(), TenureError> {
        let mut server = self.shared.server();
        let role = RoleName::new(role)?;
        if !server.model.set_paused(&role, paused) {
            return Err(TenureError::NoSuchRole(role));
        }
        server.deliver();
        Ok(())
    }

    fn drivers(&self) -> MutexGuard<'_, BTreeMap<String, JoinHandle<()>>> {
        self.drivers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn member_of(lock: &LeaderLock) -> String {
    lock.identity().as_str().to_owned()
}

/// The runtime's own time, which a test may pause, from any thread.
#[derive(Debug)]
struct RuntimeClock {
    runtime: tokio::runtime::Handle,
    origin: Instant,
}

impl Clock for RuntimeClock {
    fn now(&self) -> Tick {
        let _inside = self.runtime.enter();
        // From one second on, so that no tick is the zero that means "never".
        Tick::from_nanos(1_000_000_000) + self.origin.elapsed()
    }
}
