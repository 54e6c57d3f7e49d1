//! Whether this node may act: the gate, and how it changes.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenure::{LeaderLock, LeaderStateChanged, RoleName};
use tenure_core::clock::{BootClock, Tick};
use tenure_core::epoch::Epoch;
use tenure_core::gate::{GateKeeper, LeaderGate};
use tenure_core::identity::{Identity, IdentityError};
use tokio::sync::watch;

/// A node's part in the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, strum::Display)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
#[non_exhaustive]
pub enum NodeRole {
    /// Signs, stores, sends, fills gaps, cleans up.
    Leader,
    /// Watches the table; refuses to send. Also a leader whose gate is shut for a moment.
    Follower,
    /// Sends without a group, with a journal in place of the table. Only by explicit choice.
    Standalone,
}

/// Why a node should not be promoted if another can be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Unready {
    /// The table cannot be read.
    StaleView,
    /// Its own data is behind.
    Behind,
    /// No node of the chain answers.
    Chain,
    /// The task that acts has panicked.
    Broken,
}

/// What the service needs of an election: the gate, its changes, its lease, and a switch for
/// readiness. Made from a role of a member: `Election::from(&lock)`, as [`Mode::group`](crate::Mode::group)
/// does. Cheap to clone.
#[derive(Clone)]
pub struct Election {
    gate: LeaderGate,
    changes: watch::Receiver<LeaderStateChanged>,
    lease: Option<Duration>,
    set_ready: Arc<dyn Fn(bool) + Send + Sync>,
    step_down: Arc<dyn Fn() + Send + Sync>,
    /// Takes part no more; without it a step-down must do.
    leave: Option<Arc<dyn Fn() + Send + Sync>>,
    /// Why this node is not ready: it is when nothing is left here.
    unready: Arc<Mutex<BTreeSet<Unready>>>,
    /// Keeps the gate of a standalone node open.
    standalone: Option<Arc<GateKeeper>>,
    /// The role, if the election knows its name.
    name: Option<RoleName>,
}

impl std::fmt::Debug for Election {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Election").field("gate", &self.gate).finish_non_exhaustive()
    }
}

impl From<&LeaderLock> for Election {
    fn from(lock: &LeaderLock) -> Self {
        let handle = lock.clone();
        let set_ready = move |ready| {
            if let Err(error) = handle.set_ready(ready) {
                tracing::debug!(%error, "readiness was not taken; the member has stopped");
            }
        };
        let handle = lock.clone();
        let step_down = move || {
            let handle = handle.clone();
            // It takes as long as the acts in flight; the caller goes on meanwhile.
            tokio::spawn(async move {
                if let Err(error) = handle.step_down(None).await {
                    tracing::debug!(%error, "did not step down; the member has stopped");
                }
            });
        };
        let handle = lock.clone();
        let leave = move || {
            let handle = handle.clone();
            tokio::spawn(async move {
                if let Err(error) = handle.shutdown(None).await {
                    tracing::debug!(%error, "did not leave; the member has stopped");
                }
            });
        };
        let election = Self::new(lock.gate(), lock.changes(), lock.lease(), set_ready);
        Election {
            name: Some(lock.role().clone()),
            leave: Some(Arc::new(leave)),
            ..election.with_step_down(step_down)
        }
    }
}

impl Election {
    /// From its parts, for an election of another kind: the gate of the role, its changes (the sender
    /// must live as long as the election), the role's lease, and a switch that is told whether this
    /// node should be promoted. The switch must not block.
    pub fn new(
        gate: LeaderGate,
        changes: watch::Receiver<LeaderStateChanged>,
        lease: Duration,
        set_ready: impl Fn(bool) + Send + Sync + 'static,
    ) -> Self {
        Election {
            gate,
            changes,
            lease: Some(lease),
            set_ready: Arc::new(set_ready),
            step_down: Arc::new(|| ()),
            leave: None,
            unready: Arc::default(),
            standalone: None,
            name: None,
        }
    }

    /// The same with a way to give the leadership up; without one a leader that lost its chain leads
    /// on. It must not block, and is called in a tokio runtime.
    #[must_use]
    pub fn with_step_down(self, step_down: impl Fn() + Send + Sync + 'static) -> Self {
        Election { step_down: Arc::new(step_down), ..self }
    }

    /// A gate that is open for ever, for a node that has no group.
    pub(crate) fn standalone() -> Result<Self, IdentityError> {
        let identity = Identity::generate("standalone")?;
        let (mut keeper, gate) = LeaderGate::pair(Arc::new(BootClock), identity);
        let epoch = Epoch(1);
        keeper.open(epoch, Tick::MAX);
        let (_, changes) = watch::channel(LeaderStateChanged::new(true, Some(epoch)));
        Ok(Election {
            lease: None,
            standalone: Some(Arc::new(keeper)),
            ..Self::new(gate, changes, Duration::ZERO, |_| ())
        })
    }

    /// The role's name; `None` of an election of another kind.
    pub(crate) fn name(&self) -> Option<&RoleName> {
        self.name.as_ref()
    }

    pub(crate) fn gate(&self) -> &LeaderGate {
        &self.gate
    }

    pub(crate) fn changes(&self) -> watch::Receiver<LeaderStateChanged> {
        self.changes.clone()
    }

    /// How long the gate stays open after a heartbeat; a standalone node has no bound.
    pub(crate) fn lease(&self) -> Option<Duration> {
        self.lease
    }

    /// Takes or clears one reason; tells the election what follows from all of them.
    pub(crate) fn set_unready(&self, reason: Unready, holds: bool) {
        let mut reasons = self.unready.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = if holds { reasons.insert(reason) } else { reasons.remove(&reason) };
        if changed {
            (self.set_ready)(reasons.is_empty());
        }
    }

    /// Gives the leadership up, if this node has it.
    pub(crate) fn step_down(&self) {
        (self.step_down)();
    }

    /// Gives the leadership up and is not elected again: this node cannot act.
    pub(crate) fn leave(&self) {
        self.set_unready(Unready::Broken, true);
        match &self.leave {
            Some(leave) => leave(),
            None => self.step_down(),
        }
    }

    pub(crate) fn role(&self) -> NodeRole {
        match (&self.standalone, self.gate.is_leader()) {
            (Some(_), _) => NodeRole::Standalone,
            (None, true) => NodeRole::Leader,
            (None, false) => NodeRole::Follower,
        }
    }
}
