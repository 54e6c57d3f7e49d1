//! Leadership among the tasks of one process, for a program's own tests.
//!
//! A [`MemoryGroup`] stands for the database and the network, a [`MemoryLock`] for one member with
//! one role. The member's mind is the one that runs on PostgreSQL, so lifecycle, gate, events,
//! leases, takeover policies, cool-down, priority and readiness are the same; the database is a model
//! of ours. Both pass one conformance suite.
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

mod member;
#[cfg(test)]
mod simulation;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tenure_core::clock::{Clock, Tick};
use tenure_core::gate::LeaderGate;
use tenure_core::identity::Identity;
use tenure_core::key::RoleName;
use tenure_core::lease::{Lease, LeaseError, LeaseSpec};
use tenure_core::lifecycle::{Lifecycle, LifecycleOptions};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::config::RoleSpec;
use crate::error::TenureError;
use crate::hub::Hub;
use crate::lock::LeaderLock;
use member::MemoryMember;
use tenure_core::engine::{Candidacy, Engine};
use tenure_core::model::{Model, SessionId};

/// The members of one test, and the database they think they share. Clones are the same group.
#[derive(Debug, Clone)]
pub struct MemoryGroup(Arc<Shared>);

/// What every member of a group reaches.
#[derive(Debug)]
struct Shared {
    lease: Lease,
    clock: Arc<RuntimeClock>,
    server: Mutex<Server>,
}

#[derive(Debug, Default)]
struct Server {
    model: Model,
    lines: BTreeMap<SessionId, Line>,
    /// Members that no packet reaches, or comes from.
    cut: BTreeSet<String>,
}

/// The server's end of a session.
#[derive(Debug)]
struct Line {
    member: String,
    heard: mpsc::UnboundedSender<Heard>,
}

/// What a session hears without having asked.
#[derive(Debug)]
enum Heard {
    Role(RoleName),
    Death(String),
    Closed,
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
        MemoryGroup(Arc::new(Shared { lease, clock, server: Mutex::default() }))
    }

    /// A new member with that one role, not started yet.
    ///
    /// # Errors
    /// If no role can be called so.
    pub fn lock(&self, role: &str) -> Result<MemoryLock, TenureError> {
        self.candidate(RoleSpec::named(role))
    }

    /// A new member with that one role, not started yet.
    ///
    /// # Errors
    /// If the role is not valid.
    pub fn candidate(&self, role: RoleSpec) -> Result<MemoryLock, TenureError> {
        let lease = self.0.lease;
        let role = role.validate(&lease, false)?;
        let identity = Identity::generate("memory")
            .map_err(|error| TenureError::Order(format!("no identity: {error}")))?;
        let clock: Arc<dyn Clock> = self.0.clock.clone();
        let (keeper, gate) = LeaderGate::pair(clock.clone(), identity.clone());
        let hub = Hub::new(role.name().clone(), role.key(), gate);
        let life = Lifecycle::new(LifecycleOptions {
            auto_reacquire: role.auto_reacquire(),
            reconnect_grace: lease.reconnect_grace(),
            cool_down: role.cool_down(),
            drain_limit: role.drain_limit(),
            release_timeout: lease.lease(),
            ..LifecycleOptions::default()
        });
        let random = Box::new(rand::random::<f64>);
        let mut engine = Engine::new(lease, lease.lease(), None, false, random);
        let candidacy = Candidacy {
            name: role.name().clone(),
            key: role.key(),
            policy: role.policy(),
            priority: role.priority(),
            ready: true,
            observer: !role.is_candidate(),
            preempt: role.preempts(),
        };
        engine.add(candidacy, life, keeper);
        let (commands, inbox) = mpsc::unbounded_channel();
        let member = MemoryMember::new(self.0.clone(), &identity, engine, hub.clone(), inbox);
        let task = tokio::spawn(member.run());
        let lease = lease.lease();
        let lock = LeaderLock { hub, commands, patience: None, registration_wait: lease, lease };
        let member = Arc::new(Process { task: Mutex::new(Some(task)) });
        Ok(MemoryLock { lock, member })
    }

    /// Cuts a member off: nothing reaches it, nothing comes from it, and it does not notice. The
    /// server ends its session when the lease and the margin are over, as PostgreSQL does.
    pub fn partition(&self, lock: &MemoryLock) {
        let member = lock.identity().as_str().to_owned();
        let session = {
            let mut server = self.0.server();
            server.cut.insert(member.clone());
            server.lines.iter().find(|(_, line)| line.member == member).map(|(id, _)| *id)
        };
        let shared = self.0.clone();
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
    pub fn heal(&self, lock: &MemoryLock) {
        self.0.server().cut.remove(lock.identity().as_str());
    }

    /// The member's process dies, without letting anything go; its gate is shut when this returns.
    /// The handle is of no use any more: take a new one from the group.
    pub async fn crash(&self, lock: &MemoryLock) {
        let task = lock.member.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(task) = task {
            task.abort();
            let _ = task.await;
        }
        self.terminate(lock);
    }

    /// Ends a member's session, as `pg_terminate_backend` does.
    pub fn terminate(&self, lock: &MemoryLock) {
        let now = self.0.clock.now();
        let mut server = self.0.server();
        let member = lock.identity().as_str();
        let session =
            server.lines.iter().find(|(_, line)| line.member == member).map(|(id, _)| *id);
        if let Some(session) = session {
            server.end(session, now);
        }
    }

    /// Restarts the database: every session ends, nothing else is lost.
    pub fn restart(&self) {
        let mut server = self.0.server();
        server.model.restart();
        for (_, line) in std::mem::take(&mut server.lines) {
            if !server.cut.contains(&line.member) {
                let _ = line.heard.send(Heard::Closed);
            }
        }
    }

    /// An operator's switch: while a role is paused nobody claims it, and its leader drains.
    ///
    /// # Errors
    /// [`TenureError::Order`] if no member has started that role yet.
    pub fn set_paused(&self, role: &str, paused: bool) -> Result<(), TenureError> {
        let now = self.0.clock.now();
        let mut server = self.0.server();
        let known =
            RoleName::new(role).is_ok_and(|role| server.model.set_paused(&role, paused, now));
        if !known {
            return Err(TenureError::Order(format!(
                "nobody knows a role {role:?}; start it first"
            )));
        }
        server.deliver();
        Ok(())
    }
}

impl Shared {
    fn server(&self) -> MutexGuard<'_, Server> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Server {
    /// A session ends: its member hears it if it can, the others hear of the death.
    fn end(&mut self, session: SessionId, now: Tick) {
        let Some(member) = self.model.end(session) else { return };
        if let Some(line) = self.lines.remove(&session)
            && !self.cut.contains(&member)
        {
            let _ = line.heard.send(Heard::Closed);
        }
        self.model.record_death(&member, now);
        for line in self.lines.values().filter(|line| !self.cut.contains(&line.member)) {
            let _ = line.heard.send(Heard::Death(member.clone()));
        }
    }

    /// Brings what was said to the sessions that listen.
    fn deliver(&mut self) {
        for told in self.model.take_told() {
            if let Some(line) = self.lines.get(&told.session)
                && !self.cut.contains(&line.member)
            {
                let _ = line.heard.send(Heard::Role(told.role));
            }
        }
    }
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

/// One role of one member of a [`MemoryGroup`]. It has all of [`LeaderLock`]: events, callbacks,
/// acts, readiness. Cheap to clone; with the last handle the member lets the role go and leaves.
#[derive(Debug, Clone)]
pub struct MemoryLock {
    lock: LeaderLock,
    member: Arc<Process>,
}

#[derive(Debug)]
struct Process {
    task: Mutex<Option<JoinHandle<()>>>,
}

impl Deref for MemoryLock {
    type Target = LeaderLock;

    fn deref(&self) -> &LeaderLock {
        &self.lock
    }
}
