//! Whether this node may act: the gate, and word of its changes.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use tenure::{LeaderLock, Leadership as _};
use tenure_core::clock::{BootClock, Tick};
use tenure_core::epoch::Epoch;
use tenure_core::gate::{GateKeeper, LeaderGate};
use tenure_core::identity::{Identity, IdentityError};
use tokio::sync::watch;

/// A node's part in the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeRole {
    /// Signs, stores, sends, fills gaps, cleans up.
    Leader,
    /// Watches the table; refuses to send.
    Follower,
    /// Sends without a group and without a table. Only by explicit choice.
    Standalone,
}

impl std::fmt::Display for NodeRole {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            NodeRole::Leader => "leader",
            NodeRole::Follower => "follower",
            NodeRole::Standalone => "standalone",
        })
    }
}

/// Leadership as it changes: true exactly while the gate is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaderStateChanged {
    /// Whether this node leads.
    pub is_leader: bool,
    /// Under which epoch.
    pub epoch: Option<Epoch>,
}

/// Why a node should not be promoted if another can be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Unready {
    /// The table cannot be read.
    StaleView,
    /// Its own data is behind.
    Behind,
}

/// What the service needs to know of an election.
#[derive(Clone)]
pub struct Leadership {
    gate: LeaderGate,
    changes: watch::Receiver<Option<Epoch>>,
    ready: Arc<dyn Fn(bool) + Send + Sync>,
    /// Why this node is not ready: it is when nothing is left here.
    unready: Arc<Mutex<BTreeSet<Unready>>>,
    standalone: Option<Arc<GateKeeper>>,
}

impl std::fmt::Debug for Leadership {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Leadership").field("gate", &self.gate).finish_non_exhaustive()
    }
}

impl Leadership {
    /// From a gate, word of the epoch under which it is open, and a switch for readiness.
    pub fn new(
        gate: LeaderGate,
        changes: watch::Receiver<Option<Epoch>>,
        ready: impl Fn(bool) + Send + Sync + 'static,
    ) -> Self {
        let (ready, unready) = (Arc::new(ready), Arc::default());
        Leadership { gate, changes, ready, unready, standalone: None }
    }

    /// From a role of a member. Needs a tokio runtime.
    #[must_use]
    pub fn of(lock: &LeaderLock) -> Self {
        let mut from = lock.changes();
        let epoch = |c: &tenure::LeaderStateChanged| c.epoch.filter(|_| c.is_leader);
        let (to, changes) = watch::channel(epoch(&from.borrow_and_update()));
        tokio::spawn(async move {
            // Ends with the lock; the receiver then sees that the sender is gone.
            while from.changed().await.is_ok() {
                let now = epoch(&from.borrow_and_update());
                if to.send(now).is_err() {
                    break;
                }
            }
        });
        let handle = lock.clone();
        let ready = move |ready| {
            if let Err(error) = handle.set_ready(ready) {
                tracing::debug!(%error, "readiness was not taken; the member has stopped");
            }
        };
        Self::new(lock.gate(), changes, ready)
    }

    /// A gate that is open for ever. For a node that has no group and never will.
    ///
    /// # Errors
    /// If the instance's name is no identity.
    pub fn standalone(instance: &str) -> Result<Self, IdentityError> {
        let (mut keeper, gate) =
            LeaderGate::pair(Arc::new(BootClock), Identity::generate(instance)?);
        let epoch = Epoch(1);
        keeper.open(epoch, Tick::MAX);
        let (_, changes) = watch::channel(Some(epoch));
        let standalone = Some(Arc::new(keeper));
        Ok(Leadership { standalone, ..Self::new(gate, changes, |_| ()) })
    }

    pub(crate) fn gate(&self) -> &LeaderGate {
        &self.gate
    }

    pub(crate) fn changes(&self) -> watch::Receiver<Option<Epoch>> {
        self.changes.clone()
    }

    /// Takes or clears one reason; tells the election what follows from all of them.
    pub(crate) fn set_unready(&self, reason: Unready, holds: bool) {
        let mut reasons = self.unready.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = if holds { reasons.insert(reason) } else { reasons.remove(&reason) };
        if changed {
            (self.ready)(reasons.is_empty());
        }
    }

    /// This node's part at this instant.
    #[must_use]
    pub fn role(&self) -> NodeRole {
        match (&self.standalone, self.gate.is_leader()) {
            (Some(_), _) => NodeRole::Standalone,
            (None, true) => NodeRole::Leader,
            (None, false) => NodeRole::Follower,
        }
    }
}
