//! One role's handle.

mod leader;
mod work;

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use tenure_core::clock::Tick;
use tenure_core::epoch::Epoch;
use tenure_core::gate::{Act, LeaderGate, LeaderToken, NotLeader};
use tenure_core::identity::Identity;
use tenure_core::key::{LockKey, RoleName};
use tenure_core::lifecycle::{LockState, LostReason, NotAcquired, Notice};
use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio::time::{Instant, timeout, timeout_at};

use crate::driver::{Answer, Command, Handle, Stopped};
use crate::error::TenureError;
use crate::publisher::{Event, LeaderStateChanged, Publisher};
pub use leader::Leader;
pub(crate) use leader::{LeaderSource, Observed, SideSession};

/// One role of one member. Cheap to clone; dropping the last handle does not stop the role as long
/// as its [`crate::Member`] lives.
#[derive(Clone)]
pub struct LeaderLock {
    pub(crate) publisher: Arc<Publisher>,
    /// What all roles of the member have in common: there may be ten thousand.
    pub(crate) member: Arc<Handle>,
}

/// Waits until then for so many answers to starts; the first refusal is told at once. A role without an answer takes
/// part all the same.
pub(crate) async fn started(
    mut answers: mpsc::UnboundedReceiver<Result<(), TenureError>>,
    number: usize,
    deadline: Instant,
) -> Result<(), TenureError> {
    for _ in 0..number {
        match timeout_at(deadline, answers.recv()).await {
            Ok(answer) => answer.unwrap_or(Err(TenureError::Stopped))?,
            Err(_) => break,
        }
    }
    Ok(())
}

impl std::fmt::Debug for LeaderLock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LeaderLock")
            .field("role", &self.publisher.name.as_str())
            .field("state", &self.publisher.view().state)
            .finish()
    }
}

impl LeaderLock {
    /// The name of the role that this is a handle of.
    pub fn role(&self) -> &RoleName {
        &self.publisher.name
    }

    /// The key of the role's advisory lock.
    pub fn key(&self) -> LockKey {
        self.publisher.key
    }

    /// How long the gate stays open after the last successful heartbeat was sent.
    pub fn lease(&self) -> Duration {
        self.member.lease.lease()
    }

    /// The member that this handle belongs to.
    pub fn identity(&self) -> &Identity {
        self.publisher.gate.identity()
    }

    /// Where the role's lifecycle stands. Only the gate says whether to act: a leader whose heartbeat is late
    /// is still in [`LockState::Leader`].
    pub fn state(&self) -> LockState {
        self.publisher.view().state
    }

    /// Whether this process leads at this instant: what the gate says.
    pub fn is_leader(&self) -> bool {
        self.publisher.gate.is_leader()
    }

    /// The gate that every act passes.
    pub fn gate(&self) -> LeaderGate {
        self.publisher.gate.clone()
    }

    /// Takes part in the race. Idempotent. A role that is released for a stop takes part again once it has stopped.
    ///
    /// A database that cannot be asked now is no error: the role follows, and is registered when the
    /// database answers.
    ///
    /// # Errors
    /// [`TenureError::Registration`] if the database knows the role otherwise,
    /// [`TenureError::Stopped`] if the member was shut down.
    pub async fn start(&self) -> Result<(), TenureError> {
        self.join(None).await
    }

    /// As [`LeaderLock::start`]; `stopped` tells of the first stop after it.
    async fn join(&self, stopped: Option<Stopped>) -> Result<(), TenureError> {
        let (answer, answers) = mpsc::unbounded_channel();
        self.ask_to_start(answer, stopped)?;
        started(answers, 1, Instant::now() + self.member.registration_wait()).await
    }

    /// Tells the driver to take part; its answer is waited for separately.
    pub(crate) fn ask_to_start(
        &self,
        answer: Answer,
        stopped: Option<Stopped>,
    ) -> Result<(), TenureError> {
        self.send(Command::Start { role: self.publisher.name.clone(), answer, stopped })
    }

    /// Why the database refused this role's last registration, if it did. A registration is renewed with
    /// every new session, so a role can be refused long after its start; it is then stopped.
    pub fn refusal(&self) -> Option<TenureError> {
        self.publisher.refusal()
    }

    /// Drains, releases the role and stops taking part. Idempotent. [`LeaderLock::start`] takes part again.
    ///
    /// The drain takes the role's [drain limit](crate::config::RoleConfig::drain_limit) at most, the release
    /// a lease. Dropping the future does not take the order back.
    ///
    /// # Errors
    /// [`TenureError::Timeout`] if that took longer than `within`; it goes on in the background.
    pub async fn shutdown(&self, within: Option<Duration>) -> Result<(), TenureError> {
        let (stopped, told) = oneshot::channel();
        if self.send(Command::Stop { role: self.publisher.name.clone(), stopped }).is_err() {
            return Ok(());
        }
        // Answered or dropped: either way the role is stopped.
        let stopped = told.map(drop);
        match within {
            None => stopped.await,
            Some(limit) => {
                let done = timeout(limit, stopped).await;
                done.map_err(|_| TenureError::Timeout { what: "the shutdown", limit })?;
            }
        }
        Ok(())
    }

    /// Drains, releases the role and stays out of the race for the
    /// [cool-down](crate::config::RoleConfig::cool_down). Returns when the term is over. A member that does
    /// not lead does nothing.
    ///
    /// Acts in flight are waited for within the role's [drain
    /// limit](crate::config::RoleConfig::drain_limit), and within three quarters of `within` if that is
    /// shorter. An act that outlasts the wait becomes uncertain, and the next leader waits out the lease.
    /// Past `within` the lock is freed by force.
    ///
    /// # Errors
    /// [`TenureError::Stopped`] if the member was shut down.
    pub async fn step_down(&self, within: Option<Duration>) -> Result<(), TenureError> {
        self.hand_over(None, within).await
    }

    /// Waits until this process leads, at most `within` (default: the configured acquire timeout, or
    /// for ever). Cancel-safe. The role must be started for that to happen.
    ///
    /// # Errors
    /// [`TenureError::Timeout`] after `within`, [`TenureError::Stopped`] if the member was shut down.
    pub async fn wait_for_leadership(
        &self,
        within: Option<Duration>,
    ) -> Result<LeaderToken, TenureError> {
        match within.or(self.member.patience) {
            None => self.opened(None).await,
            Some(limit) => {
                let what = "waiting for leadership";
                let late = |_| Err(TenureError::Timeout { what, limit });
                timeout(limit, self.opened(None)).await.unwrap_or_else(late)
            }
        }
    }

    /// Waits until this process leads, whatever the configured acquire timeout is. Cancel-safe.
    ///
    /// # Errors
    /// [`TenureError::Stopped`] if the member was shut down.
    pub async fn led(&self) -> Result<LeaderToken, TenureError> {
        self.opened(None).await
    }

    /// Leadership as it changes: it shows the latest state, so a short term may be missed. The gate may say
    /// no sooner: it shuts by itself at its deadline.
    pub fn changes(&self) -> watch::Receiver<LeaderStateChanged> {
        self.publisher.watch_leading()
    }

    /// The gate's deadline as heartbeats move it, none while the gate is shut or drains.
    ///
    /// A deadline passes without a change: compare it with the clock
    /// ([`BootClock`](tenure_core::clock::BootClock)).
    pub fn deadline(&self) -> watch::Receiver<Option<Tick>> {
        self.publisher.watch_deadline()
    }

    /// Begins an act, as [`LeaderGate::begin_act`] does. The gate counts what it refuses.
    ///
    /// # Errors
    /// [`NotLeader`].
    pub fn begin_act(&self, within: Duration) -> Result<Act, NotLeader> {
        self.publisher.gate.begin_act(within)
    }

    /// Everything the lifecycle says, from now on. A receiver that is more than 64 events behind misses
    /// some and is told how many; [`LeaderLock::changes`] always has the latest state.
    pub fn events(&self) -> broadcast::Receiver<Event> {
        self.publisher.subscribe()
    }

    /// Like [`LeaderLock::step_down`], naming the member (by identity) that should lead next. The role is
    /// kept free for it for one lease, and a cool-down of its own does not keep it out; a member that takes no part
    /// in the role, and this one, are as good as none.
    ///
    /// # Errors
    /// See [`LeaderLock::step_down`].
    pub async fn hand_over(
        &self,
        to: Option<Identity>,
        within: Option<Duration>,
    ) -> Result<(), TenureError> {
        let leads = |state| {
            matches!(state, LockState::Leader | LockState::Releasing | LockState::Reconnecting)
        };
        let before = self.publisher.view();
        if !leads(before.state) {
            return Ok(());
        }
        let to = to.filter(|to| to != self.identity()).map(|member| member.as_str().to_owned());
        self.send(Command::StepDown { role: self.publisher.name.clone(), to, within })?;
        // A view shows the latest state alone: without a cool-down the next term may have begun
        // before this task looked, and then the old one is over too.
        let led = before.leading.epoch;
        self.publisher
            .until(|view| !leads(view.state) || view.leading.is_leader && view.leading.epoch > led)
            .await;
        Ok(())
    }

    /// Says whether this member is ready to lead. One that is not ready leads only if no ready
    /// candidate is there; a leader that becomes unready goes on leading.
    ///
    /// # Errors
    /// [`TenureError::Stopped`].
    pub fn set_ready(&self, ready: bool) -> Result<(), TenureError> {
        let role = self.publisher.name.clone();
        self.send(Command::Candidacy { role, ready: Some(ready), priority: None })
    }

    /// Changes the [priority](crate::config::RoleConfig::priority) in the race, until the process ends. It
    /// decides the next race; a leader is asked to step down only by a role that
    /// [preempts](crate::config::RoleConfig::preempts).
    ///
    /// # Errors
    /// [`TenureError::Stopped`].
    pub fn set_priority(&self, priority: i32) -> Result<(), TenureError> {
        let role = self.publisher.name.clone();
        self.send(Command::Candidacy { role, ready: None, priority: Some(priority) })
    }

    /// Calls back when a term begins: the gate is open.
    ///
    /// Callbacks of a role run one after another, in the order of events, on a thread of their own:
    /// they may block, and they cannot hold up a heartbeat. A panic becomes an error event. Behind a callback
    /// that does not return 1,024 events wait; later ones are not told to callbacks.
    ///
    /// A callback comes after the fact: the gate may have shut meanwhile. Work that must end with the term
    /// belongs into [`LeaderLock::while_leading`].
    pub fn on_acquired(&self, call: impl Fn(Epoch) + Send + Sync + 'static) -> &Self {
        self.on(move |notice| {
            if let Notice::Acquired { epoch } = notice {
                call(*epoch);
            }
        })
    }

    /// Calls back when a term ended as asked for.
    pub fn on_released(&self, call: impl Fn(Epoch) + Send + Sync + 'static) -> &Self {
        self.on(move |notice| {
            if let Notice::Released { epoch } = notice {
                call(*epoch);
            }
        })
    }

    /// Calls back when a term ended otherwise. The gate is shut already.
    pub fn on_lost(&self, call: impl Fn(Epoch, &LostReason) + Send + Sync + 'static) -> &Self {
        self.on(move |notice| {
            if let Notice::Lost { epoch, reason } = notice {
                call(*epoch, reason);
            }
        })
    }

    /// Calls back when a claim did not win.
    pub fn on_acquire_failed(&self, call: impl Fn(NotAcquired) + Send + Sync + 'static) -> &Self {
        self.on(move |notice| {
            if let Notice::AcquireFailed { why } = notice {
                call(*why);
            }
        })
    }

    /// Calls back on every change of state: from, to.
    pub fn on_state_change(
        &self,
        call: impl Fn(LockState, LockState) + Send + Sync + 'static,
    ) -> &Self {
        self.on(move |notice| {
            if let Notice::StateChange { from, to } = notice {
                call(*from, *to);
            }
        })
    }

    /// Calls back on errors, those of callbacks included.
    pub fn on_error(&self, call: impl Fn(&str) + Send + Sync + 'static) -> &Self {
        self.on(move |notice| {
            if let Notice::Error(error) = notice {
                call(error);
            }
        })
    }

    /// Calls back when the role has stopped.
    pub fn on_stopped(&self, call: impl Fn() + Send + Sync + 'static) -> &Self {
        self.on(move |notice| {
            if matches!(notice, Notice::Stopped) {
                call();
            }
        })
    }

    fn on(&self, call: impl Fn(&Notice) + Send + Sync + 'static) -> &Self {
        self.publisher.add_callback(Arc::new(call));
        self
    }

    fn send(&self, command: Command) -> Result<(), TenureError> {
        self.member.send(command)
    }
}
