//! One process taking part: one seat, one sentinel, any number of roles.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::clock::{BootClock, Clock};
use tenure_core::engine::Engine;
use tenure_core::identity::Identity;
use tenure_core::key::{LockKey, RoleName};
use tenure_core::protocol::RegisterRefusal;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::{Instant, timeout};

use crate::config::{Config, RoleConfig, RoleSpec};
use crate::connect::{Connector, Remedy};
use crate::driver::{Command, Driver, Handle, Health};
use crate::error::TenureError;
use crate::lock::{LeaderLock, Observed, SideSession, started};
use crate::postgres::Postgres;
use crate::seat::Profile;

/// How long a task that was aborted is waited for.
const ABORT: Duration = Duration::from_secs(1);
/// Longer than any process runs.
const FOR_EVER: Duration = Duration::from_secs(100 * 365 * 86_400);

/// A member of the group.
///
/// [`Member::shutdown`] lets every role go in good order and waits for it. When the member and all
/// its locks are dropped the same happens in the background, as far as the runtime lives.
pub struct Member {
    config: Config,
    handle: Arc<Handle>,
    task: JoinHandle<()>,
    locks: std::sync::Mutex<Locks>,
}

/// The roles' handles, by name and by key, in the order they were added.
#[derive(Default)]
struct Locks {
    all: Vec<LeaderLock>,
    by_name: HashMap<RoleName, usize>,
    by_key: HashMap<LockKey, usize>,
}

impl std::fmt::Debug for Member {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Member")
            .field("identity", &self.handle.identity.as_str())
            .finish_non_exhaustive()
    }
}

impl Member {
    /// Looks the server over, brings the schema up to date, and starts the member with the roles
    /// the configuration names (not started yet: see [`Member::start_all`]). Must be called in a tokio
    /// runtime. Connecting and each question to the server take a lease at most.
    ///
    /// A database that comes back by itself is no error (it cannot be reached, starts, recovers, is
    /// full, has no primary yet): the member follows, and keeps trying. See [`TenureError::remedy`].
    ///
    /// # Errors
    /// [`TenureError::Refused`] if the setup cannot hold the promises, [`TenureError::NoDatabase`] without a
    /// DSN, [`TenureError::Connect`] if the login is refused or the certificate does not fit, and what the
    /// configuration gets wrong. Nothing runs then.
    pub async fn start(config: Config) -> Result<Self, TenureError> {
        Self::start_with(config, Arc::new(BootClock), true).await
    }

    /// Like [`Member::start`] for a database whose schema is brought up to date in another way.
    ///
    /// # Errors
    /// See [`Member::start`]; also if the schema is missing or older than this library.
    pub async fn start_without_migrating(config: Config) -> Result<Self, TenureError> {
        Self::start_with(config, Arc::new(BootClock), false).await
    }

    /// Like [`Member::start`] on another clock. It must count suspend, or nothing here holds: for
    /// tests that want to see exactly that.
    ///
    /// # Errors
    /// See [`Member::start`].
    #[doc(hidden)]
    pub async fn start_with_clock(
        config: Config,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, TenureError> {
        Self::start_with(config, clock, true).await
    }

    async fn start_with(
        config: Config,
        clock: Arc<dyn Clock>,
        migrate: bool,
    ) -> Result<Self, TenureError> {
        let dsn = config.dsn().ok_or(TenureError::NoDatabase)?;
        let lease = *config.lease();
        let connector = Connector::new(dsn, config.tls().clone())?
            .with_tcp_user_timeout(lease.idle_session_timeout())
            .with_renewal(config.renewal());
        let identity = config.identity()?;
        for warning in config.warnings() {
            tracing::warn!(member = %identity, "{warning}");
        }
        let profile = Profile {
            identity: identity.clone(),
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            pid: std::process::id(),
            lease,
            grace: lease.reconnect_grace().unwrap_or_default(),
            channel: config.channel().to_owned(),
            lock_only: config.is_lock_only(),
            roles: config.roles().len(),
        };
        let side = SideSession::new(connector.clone(), identity.clone(), lease);
        let database = Postgres::new(connector, profile.clone(), migrate, config.revive());
        match database.prepare().await {
            Ok(()) => {}
            Err(error) if error.remedy() == Remedy::Time => {
                tracing::warn!(member = %identity, "following until the database answers: {error}");
            }
            Err(error) => return Err(error),
        }
        let random = Box::new(rand::random::<f64>);
        let (poll, stale_after) = (config.poll(), config.stale_after());
        let engine = Engine::new(lease, poll, stale_after, profile.lock_only, random);
        let (commands, inbox) = mpsc::unbounded_channel();
        let reconnect = config.reconnect();
        let driver = Driver::new(database, profile, clock.clone(), engine, reconnect, inbox);
        let task = tokio::spawn(driver.run());
        let roles = config.roles().to_vec();
        let handle = Arc::new(Handle {
            commands,
            clock,
            identity,
            lease,
            retry: config.retry(),
            enabled: config.is_enabled(),
            patience: config.acquire_timeout(),
            observed: Observed::new(Arc::new(side), lease),
        });
        let member = Member { config, handle, task, locks: std::sync::Mutex::default() };
        for role in &roles {
            member.add(role)?;
        }
        Ok(member)
    }

    /// The identity of this process in the group. It is new at every start.
    pub fn identity(&self) -> &Identity {
        &self.handle.identity
    }

    /// What the member was started with; roles that were added since are not in it.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The handle of a role the configuration named, or that was added.
    ///
    /// # Errors
    /// [`TenureError::UnknownRole`], or [`TenureError::RoleName`] if no role can be called so.
    pub fn lock(&self, role: &str) -> Result<LeaderLock, TenureError> {
        let name = RoleName::new(role)?;
        let locks = self.locks.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        match locks.by_name.get(&name) {
            Some(at) => Ok(locks.all[*at].clone()),
            None => Err(TenureError::UnknownRole(name)),
        }
    }

    /// The handles of all roles, in the order in which they were named or added.
    pub fn locks(&self) -> Vec<LeaderLock> {
        self.locks.lock().unwrap_or_else(std::sync::PoisonError::into_inner).all.clone()
    }

    /// Adds a role at run time, not started yet: see [`LeaderLock::start`]. It stays for as long as the
    /// member lives; [`LeaderLock::shutdown`] stops it.
    ///
    /// # Errors
    /// [`TenureError::Config`] if it is not valid, [`TenureError::DuplicateRole`] if it is there already,
    /// [`TenureError::Registration`] if another role of this member has its key, [`TenureError::Stopped`].
    pub fn add_role(&self, role: RoleSpec) -> Result<LeaderLock, TenureError> {
        let role = role.validate(self.config.lease(), self.config.is_lock_only())?;
        self.add(&role)
    }

    fn add(&self, role: &RoleConfig) -> Result<LeaderLock, TenureError> {
        let mut locks = self.locks.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if locks.by_name.contains_key(role.name()) {
            return Err(TenureError::DuplicateRole(role.name().clone()));
        }
        if let Some(same) = locks.by_key.get(&role.key()) {
            let with = locks.all[*same].role().clone();
            let why = RegisterRefusal::Collision { with };
            return Err(TenureError::Registration { role: role.name().clone(), why });
        }
        let lock = self.handle.add(role)?;
        let at = locks.all.len();
        locks.by_name.insert(role.name().clone(), at);
        locks.by_key.insert(role.key(), at);
        locks.all.push(lock.clone());
        Ok(lock)
    }

    /// Starts every role: one registration and one claim for all of them. Waits for the database's answer
    /// for four statement deadlines at most; without one the roles follow, and are registered when it comes.
    /// It does not wait until they are led.
    ///
    /// # Errors
    /// The first refusal; the other roles take part all the same.
    pub async fn start_all(&self) -> Result<(), TenureError> {
        self.start_until(Instant::now() + self.handle.registration_wait()).await
    }

    /// As [`Member::start_all`], and waits until the database has taken every registration, however long that
    /// takes, or its role was stopped. Cancel-safe: the roles take part all the same.
    ///
    /// # Errors
    /// The first refusal; the other roles take part all the same.
    pub async fn register_all(&self) -> Result<(), TenureError> {
        self.start_until(Instant::now() + FOR_EVER).await
    }

    async fn start_until(&self, deadline: Instant) -> Result<(), TenureError> {
        let (answer, answers) = mpsc::unbounded_channel();
        let number = {
            let locks = self.locks.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            for lock in &locks.all {
                lock.ask_to_start(answer.clone(), None)?;
            }
            locks.all.len()
        };
        // The driver has the other ones: their end is its end.
        drop(answer);
        started(answers, number, deadline).await
    }

    /// How the member and its roles are, without asking the database. Cancel-safe.
    ///
    /// # Errors
    /// [`TenureError::Stopped`].
    pub async fn health(&self) -> Result<Health, TenureError> {
        let (answer, answered) = oneshot::channel();
        self.handle.send(Command::Health { answer })?;
        answered.await.map_err(|_| TenureError::Stopped)
    }

    /// Whether the member is at work, for a watcher that must not hold it.
    pub fn pulse(&self) -> Pulse {
        Pulse(self.task.abort_handle())
    }

    /// Drains and releases every role, says goodbye, closes both sessions. Without `within` it takes as long
    /// as the longest drain limit and a lease at most.
    ///
    /// # Errors
    /// [`TenureError::Timeout`] if that took longer than `within`: then everything is dropped, every gate
    /// shuts, and the server frees the locks at the latest when it notices. A call of the program's own that blocks
    /// the member, such as a [`RetryStrategy`](crate::RetryStrategy), is waited for one second longer; with its end
    /// everything is dropped.
    pub async fn shutdown(mut self, within: Option<Duration>) -> Result<(), TenureError> {
        let _ = self.handle.send(Command::Leave);
        match within {
            None => drop((&mut self.task).await),
            Some(limit) => {
                if timeout(limit, &mut self.task).await.is_err() {
                    self.task.abort();
                    // The roles stop where the task is dropped, which is another thread's work, and at once if the
                    // task waits. An abort does not interrupt a call that blocks it, such as a retry strategy's.
                    let _ = timeout(ABORT, &mut self.task).await;
                    return Err(TenureError::Timeout { what: "the shutdown", limit });
                }
            }
        }
        Ok(())
    }
}

/// Whether a member is at work, also while [`Member::shutdown`] has it. It holds nothing of the member.
#[derive(Debug, Clone)]
pub struct Pulse(AbortHandle);

impl Pulse {
    /// False once the member has left, or was dropped with all its locks and has left since.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        !self.0.is_finished()
    }
}

/// The single-role case in one line: a member with one role, started.
///
/// ```no_run
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let (member, lock) = tenure::lead("postgresql://localhost/app", "scheduler").await?;
/// lock.wait_for_leadership(None).await?;
/// let act = lock.begin_act(std::time::Duration::from_secs(1))?;
/// // … the one thing only the leader may do …
/// act.finish()?;
/// member.shutdown(None).await?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// See [`Member::start`].
pub async fn lead(dsn: &str, role: &str) -> Result<(Member, LeaderLock), TenureError> {
    let config = Config::builder()
        .env(tenure_connect::dsn::ProcessEnv)
        .dsn(dsn)
        .role(RoleSpec::named(role))
        .build()?;
    let member = Member::start(config).await?;
    let lock = member.lock(role)?;
    lock.start().await?;
    Ok((member, lock))
}
