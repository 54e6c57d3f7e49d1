//! What handles ask of their member's driver.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::clock::Clock;
use tenure_core::engine::Candidacy;
use tenure_core::epoch::Epoch;
use tenure_core::gate::{GateKeeper, LeaderGate, OnRefusal};
use tenure_core::identity::Identity;
use tenure_core::key::RoleName;
use tenure_core::lease::Lease;
use tenure_core::lifecycle::{Lifecycle, LifecycleOptions, LockState};
use tenure_core::retry::RetryStrategy;
use tokio::sync::{mpsc, oneshot};

use crate::config::RoleConfig;
use crate::error::TenureError;
use crate::lock::{LeaderLock, Observed};
use crate::metrics;
use crate::publisher::Publisher;

/// What became of a start. All starts of a member may share one: ten thousand channels would take more memory than
/// the roles.
pub(crate) type Answer = mpsc::UnboundedSender<Result<(), TenureError>>;

/// Answered, or dropped, when the role has stopped. A state that is looked at would not do: a start may follow the stop
/// before the task that waits has looked.
pub(crate) type Stopped = oneshot::Sender<()>;

pub(crate) enum Command {
    Add(Box<NewRole>),
    Start { role: RoleName, answer: Answer, stopped: Option<Stopped> },
    Stop { role: RoleName, stopped: Stopped },
    StepDown { role: RoleName, to: Option<String>, within: Option<Duration> },
    Candidacy { role: RoleName, ready: Option<bool>, priority: Option<i32> },
    Health { answer: oneshot::Sender<Health> },
    Leave,
}

/// A role on its way into the engine.
pub(crate) struct NewRole {
    pub(super) candidacy: Candidacy,
    pub(super) life: Lifecycle,
    pub(super) keeper: GateKeeper,
    pub(super) publisher: Arc<Publisher>,
}

/// The way to a member's driver, and what all roles of the member have in common.
pub(crate) struct Handle {
    pub(crate) commands: mpsc::UnboundedSender<Command>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) identity: Identity,
    pub(crate) lease: Lease,
    pub(crate) retry: Arc<dyn RetryStrategy>,
    /// Whether this member may lead at all.
    pub(crate) enabled: bool,
    /// How long `wait_for_leadership` waits by default.
    pub(crate) patience: Option<Duration>,
    pub(crate) observed: Arc<Observed>,
}

impl Handle {
    /// Hands a role to the driver, not started yet.
    pub(crate) fn add(self: &Arc<Self>, role: &RoleConfig) -> Result<LeaderLock, TenureError> {
        let name = role.name().clone();
        let refused: OnRefusal = Box::new(move || metrics::act_refused(&name));
        let (keeper, gate) =
            LeaderGate::counting(self.clock.clone(), self.identity.clone(), Some(refused));
        let publisher = Publisher::new(role.name().clone(), role.key(), gate);
        let life = Lifecycle::new(LifecycleOptions {
            auto_reacquire: role.auto_reacquire(),
            reconnect_grace: self.lease.reconnect_grace(),
            cool_down: role.cool_down(),
            drain_limit: role.drain_limit(),
            release_timeout: self.lease.lease(),
            retry: self.retry.clone(),
        });
        let candidacy = Candidacy {
            name: role.name().clone(),
            key: role.key(),
            policy: role.policy(),
            priority: role.priority(),
            ready: true,
            observer: !role.is_candidate() || !self.enabled,
            preempt: role.preempts(),
        };
        self.send(Command::Add(Box::new(NewRole {
            candidacy,
            life,
            keeper,
            publisher: publisher.clone(),
        })))?;
        Ok(LeaderLock { publisher, member: self.clone() })
    }

    /// How long a start waits for the database's answer before it goes on without.
    pub(crate) fn registration_wait(&self) -> Duration {
        self.lease.statement_deadline() * 4
    }

    pub(crate) fn send(&self, command: Command) -> Result<(), TenureError> {
        self.commands.send(command).map_err(|_| TenureError::Stopped)
    }
}

/// How a member is.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Health {
    /// The member.
    pub identity: Identity,
    /// Whether it has its session on the database. Without one no gate opens.
    pub connected: bool,
    /// Time since the last successful round trip was sent; none before the first.
    pub heartbeat_age: Option<Duration>,
    /// Its last trouble with the database, if it is not connected.
    pub error: Option<String>,
    /// Every role that this member takes part in.
    pub roles: Vec<RoleHealth>,
}

/// How one role of a member is.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RoleHealth {
    /// The role's name.
    pub role: RoleName,
    /// Its lifecycle state.
    pub state: LockState,
    /// Whether its gate is open.
    pub is_leader: bool,
    /// The epoch of the term that this member leads, waits for, wins back or releases; none while it follows.
    pub epoch: Option<Epoch>,
    /// What keeps this member from leading it that only an operator can end, with the remedy.
    pub trouble: Option<String>,
}
