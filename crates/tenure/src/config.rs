//! The configuration: by builder, TOML file and environment.
//!
//! Each source says what it wants to say; the later one wins, field by field, whatever the order
//! of the calls:
//!
//! ```text
//! defaults  <  file  <  environment  <  builder (and command line)
//! ```
//!
//! Then everything is checked once, as a whole, and becomes a [`Config`] whose fields cannot be
//! changed any more: its timings fit each other. `docs/configuration.md` lists every key,
//! `docs/coming-from.md` the names that other systems have for them.
//!
//! ```
//! use std::time::Duration;
//! use tenure::config::{Config, RoleSpec};
//!
//! let config = Config::builder()
//!     .dsn("postgresql://leader@localhost/app")
//!     .heartbeat(Duration::from_secs(5))
//!     .role(RoleSpec::named("scheduler"))
//!     .build()?;
//! assert_eq!(config.lease().lease(), Duration::from_secs(15));
//! # Ok::<(), tenure::config::ConfigError>(())
//! ```

mod environment;
mod error;
mod period;
mod retry;
mod role;
mod written;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tenure_connect::dsn::{Dsn, Env, NoEnv, ProcessEnv, Secret};
use tenure_connect::{Renewal, TlsOptions};
use tenure_core::clock::spoken;
use tenure_core::identity::Identity;
use tenure_core::lease::{Lease, LeaseSpec};
use tenure_core::retry::RetryStrategy;

pub use environment::DSN_VARIABLES;
pub use error::ConfigError;
pub use period::parse_period;
pub use role::{RoleConfig, RoleSpec};

use period::Period;
use written::Written;

/// The longest name PostgreSQL keeps whole.
const MAX_CHANNEL_BYTES: usize = 63;

/// A configuration whose parts fit each other.
#[derive(Debug, Clone)]
pub struct Config {
    dsn: Option<Dsn>,
    application_dsn: Option<Dsn>,
    embedded: bool,
    revive: Option<Revive>,
    tls: TlsOptions,
    scope: String,
    instance: Option<String>,
    enabled: bool,
    lease: Lease,
    poll: Duration,
    acquire_timeout: Option<Duration>,
    stale_after: Option<Duration>,
    channel: String,
    lock_only: bool,
    roles: Vec<RoleConfig>,
    retry: Arc<dyn RetryStrategy>,
    renewal: Option<Arc<dyn Renewal>>,
    reconnect: Arc<dyn RetryStrategy>,
}

/// Starts the database's server again; see [`ConfigBuilder::revive`].
#[derive(Clone)]
pub(crate) struct Revive(Arc<dyn Fn() -> Result<(), String> + Send + Sync>);

impl Revive {
    /// Blocks.
    pub(crate) fn call(&self) -> Result<(), String> {
        (self.0)()
    }
}

impl std::fmt::Debug for Revive {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Revive")
    }
}

impl Config {
    /// Starts from the defaults alone; add a file, the environment or values.
    pub fn builder() -> ConfigBuilder {
        ConfigBuilder {
            file: Written::default(),
            env: Arc::new(NoEnv),
            own: Written::default(),
            retry: None,
            renewal: None,
            revive: None,
        }
    }

    /// From the process's environment, and the file that `TENURE_CONFIG` names, if any.
    ///
    /// # Errors
    /// Any [`ConfigError`].
    pub fn from_env() -> Result<Self, ConfigError> {
        let builder = Self::builder().env(ProcessEnv);
        match ProcessEnv.var("TENURE_CONFIG") {
            Some(path) => builder.file(path)?.build(),
            None => builder.build(),
        }
    }

    /// The database the election is held on. `None` if no source named one: the caller decides
    /// between an embedded server and an error.
    #[must_use]
    pub fn dsn(&self) -> Option<&Dsn> {
        self.dsn.as_ref()
    }

    /// The application's own database where it is another one (or the same through a pooler);
    /// default: [`Config::dsn`]. The election never uses it.
    #[must_use]
    pub fn application_dsn(&self) -> Option<&Dsn> {
        self.application_dsn.as_ref().or(self.dsn.as_ref())
    }

    /// Whether a program may fall back on a private server of this machine where no DSN is named.
    /// Default: true. The library itself never does.
    #[must_use]
    pub fn allows_embedded(&self) -> bool {
        self.embedded
    }

    pub(crate) fn revive(&self) -> Option<Revive> {
        self.revive.clone()
    }

    /// What is said about TLS apart from the DSNs.
    pub fn tls(&self) -> &TlsOptions {
        &self.tls
    }

    /// The first part of this member's identity: which application or network it belongs to.
    /// Default: `tenure`.
    #[must_use]
    pub fn scope(&self) -> &str {
        &self.scope
    }

    /// A fresh identity for this process: `<scope>-<instance or host name>-<pid>-<uuid4>`.
    ///
    /// # Errors
    /// None after [`ConfigBuilder::build`] accepted scope and instance, except where the host's
    /// name is extraordinarily long.
    pub fn identity(&self) -> Result<Identity, ConfigError> {
        Ok(match &self.instance {
            Some(instance) => {
                Identity::new(&self.scope, instance, std::process::id(), uuid::Uuid::new_v4())?
            }
            None => Identity::generate(&self.scope)?,
        })
    }

    /// Whether this member may lead at all; if not it follows every role. Default: true, except
    /// where nothing but `LEADER_LOCK_KEY` asks for a role: then `MSP_LEADER_ENABLED` must say so.
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// Every timing of the lease: heartbeat, lease, margin, deadlines, grace.
    #[must_use]
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// The longest time between two repair polls of a follower. Default and upper bound: the
    /// lease; at least 20 ms. It repairs what a lost notification missed; lower costs statements,
    /// higher delays only those repairs.
    #[must_use]
    pub fn poll(&self) -> Duration {
        self.poll
    }

    /// How long to wait for leadership where the caller gives no limit. Default: without end.
    #[must_use]
    pub fn acquire_timeout(&self) -> Option<Duration> {
        self.acquire_timeout
    }

    /// After which silence of the leader a follower reports it as stale. Default: none. It is
    /// for alerts alone and decides nothing; below 1.2 heartbeats every leader would be reported.
    #[must_use]
    pub fn stale_after(&self) -> Option<Duration> {
        self.stale_after
    }

    /// The notification channel. Default: `tenure`; 1 to 63 bytes. All members of a role must
    /// use the same: one that listens elsewhere is woken by the poll only.
    #[must_use]
    pub fn channel(&self) -> &str {
        &self.channel
    }

    /// Whether to do without tables. Default: false. It costs epochs, the fence, history,
    /// priorities and quick takeover: `docs/cli.md` has it under `--lock-only`.
    #[must_use]
    pub fn is_lock_only(&self) -> bool {
        self.lock_only
    }

    /// The roles, in the order they were named.
    #[must_use]
    pub fn roles(&self) -> &[RoleConfig] {
        &self.roles
    }

    /// How a role's claims are paced, and when it gives up. Default: exponential, 200 ms to 5 s,
    /// spread by 20 %. A hint (a notification, the sentinel, the poll) comes before it, and a seat
    /// that was just taken claims at once.
    #[must_use]
    pub fn retry(&self) -> Arc<dyn RetryStrategy> {
        self.retry.clone()
    }

    /// What gives the connection string anew before every session. Default: none, for a password
    /// that stays the same.
    #[must_use]
    pub fn renewal(&self) -> Option<Arc<dyn Renewal>> {
        self.renewal.clone()
    }

    /// How attempts to connect are paced, from the beginning of one to that of the next: as [`Config::retry`] where
    /// that is written. An attempt that took longer than its delay is followed by the next at once. Default:
    /// exponential, 40 ms to one heartbeat, spread by 20 %; a longest delay that is not written is one
    /// heartbeat.
    #[must_use]
    pub fn reconnect(&self) -> Arc<dyn RetryStrategy> {
        self.reconnect.clone()
    }

    /// What is allowed but unwise, in sentences for a log.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        self.lease.warnings().iter().map(ToString::to_string).collect()
    }
}

/// Gathers a configuration; see the [module](self) for which source wins.
#[must_use]
#[derive(Clone)]
pub struct ConfigBuilder {
    file: Written,
    env: Arc<dyn Env + Send + Sync>,
    own: Written,
    retry: Option<Arc<dyn RetryStrategy>>,
    renewal: Option<Arc<dyn Renewal>>,
    revive: Option<Revive>,
}

impl std::fmt::Debug for ConfigBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConfigBuilder")
            .field("file", &self.file)
            .field("own", &self.own)
            .finish_non_exhaustive()
    }
}

/// A setter of a value that the builder's own layer keeps.
macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident($value:ident: $kind:ty) => $section:ident = $wrap:expr;)+) => {
        $($(#[$doc])* pub fn $name(mut self, $value: $kind) -> Self {
            self.own.$section.$name = Some($wrap);
            self
        })+
    };
}

impl ConfigBuilder {
    /// Reads a TOML file; of several files the later wins.
    ///
    /// # Errors
    /// [`ConfigError::Read`], or [`ConfigError::File`] naming file, line and key.
    pub fn file(mut self, path: impl AsRef<Path>) -> Result<Self, ConfigError> {
        self.file.overlay(Written::read(path.as_ref())?);
        Ok(self)
    }

    /// Reads TOML text as if it were the file `name`.
    ///
    /// # Errors
    /// [`ConfigError::File`] naming file, line and key.
    pub fn toml(mut self, text: &str, name: impl AsRef<Path>) -> Result<Self, ConfigError> {
        self.file.overlay(Written::from_toml(text, name.as_ref())?);
        Ok(self)
    }

    /// The environment to read, both Tenure's variables and libpq's. Default: none is read.
    pub fn env(mut self, env: impl Env + Send + Sync + 'static) -> Self {
        self.env = Arc::new(env);
        self
    }

    setters! {
        /// See [`Config::dsn`].
        dsn(text: impl Into<String>) => database = Secret::new(text);
        /// See [`Config::application_dsn`].
        application_dsn(text: impl Into<String>) => database = Secret::new(text);
        /// See [`Config::allows_embedded`].
        embedded(allowed: bool) => database = allowed;
        /// See [`TlsOptions::insecure`].
        tls_insecure(insecure: bool) => database = insecure;
        /// See [`TlsOptions::ca_file`].
        tls_ca_file(path: impl Into<PathBuf>) => database = path.into();
        /// See [`Config::scope`].
        scope(scope: impl Into<String>) => member = scope.into();
        /// What stands for the host's name in the identity.
        instance(instance: impl Into<String>) => member = instance.into();
        /// See [`Config::is_enabled`].
        enabled(enabled: bool) => member = enabled;
        /// See [`LeaseSpec::heartbeat`].
        heartbeat(heartbeat: Duration) => member = Period(heartbeat);
        /// See [`LeaseSpec::lease`].
        lease(lease: Duration) => member = Period(lease);
        /// See [`LeaseSpec::margin`].
        margin(margin: Duration) => member = Period(margin);
        /// See [`LeaseSpec::statement_deadline`].
        statement_deadline(deadline: Duration) => member = Period(deadline);
        /// See [`LeaseSpec::kill_grace`].
        kill_grace(grace: Duration) => member = Period(grace);
        /// See [`LeaseSpec::reconnect_grace`].
        reconnect_grace(grace: Duration) => member = Period(grace);
        /// See [`Config::poll`].
        poll(poll: Duration) => member = Period(poll);
        /// See [`Config::acquire_timeout`].
        acquire_timeout(timeout: Duration) => member = Period(timeout);
        /// See [`Config::stale_after`].
        stale_after(silence: Duration) => member = Period(silence);
        /// See [`Config::channel`].
        channel(channel: impl Into<String>) => member = channel.into();
        /// See [`Config::is_lock_only`].
        lock_only(lock_only: bool) => member = lock_only;
    }

    /// Adds a role, or changes the one of the same name in the file.
    pub fn role(mut self, role: RoleSpec) -> Self {
        self.own.role.push(role.0);
        self
    }

    /// Starts the database's server again, for a program that owns it: a member that finds no server
    /// calls this before its next attempt, on a thread of its own. It may block; its waits must be
    /// bounded. Its error is a sentence for the log.
    pub fn revive(
        mut self,
        start: impl Fn() -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        self.revive = Some(Revive(Arc::new(start)));
        self
    }

    /// See [`Config::retry`] and [`Config::reconnect`].
    pub fn retry(mut self, strategy: Arc<dyn RetryStrategy>) -> Self {
        self.retry = Some(strategy);
        self
    }

    /// See [`Config::renewal`].
    pub fn renewal(mut self, renewal: Arc<dyn Renewal>) -> Self {
        self.renewal = Some(renewal);
        self
    }

    /// Puts the sources together and checks the whole.
    ///
    /// # Errors
    /// Any [`ConfigError`], naming the field, the bound and the reason.
    pub fn build(self) -> Result<Config, ConfigError> {
        let Self { file: mut written, env, mut own, retry, renewal, revive } = self;
        let env: &dyn Env = &*env;
        if own.database.dsn.is_none() {
            environment::refuse_blank_dsn(env)?;
        }
        if written.database.dsn.as_ref().is_some_and(|dsn| dsn.reveal().trim().is_empty()) {
            return Err(field(
                "database.dsn",
                "a connection string".to_owned(),
                "an empty one would mean whatever server this machine has",
            ));
        }
        written.overlay(environment::read(env)?);
        let asked_for = role_of_environment(&mut written.role, &mut own.role, env)?;
        written.overlay(own);

        let member = written.member;
        let lease = LeaseSpec {
            heartbeat: member.heartbeat.map(|period| period.0),
            lease: member.lease.map(|period| period.0),
            margin: member.margin.map(|period| period.0),
            statement_deadline: member.statement_deadline.map(|period| period.0),
            kill_grace: member.kill_grace.map(|period| period.0),
            reconnect_grace: member.reconnect_grace.map(|period| period.0),
        }
        .resolve()?;
        let poll = member.poll.map_or(lease.lease(), |period| period.0);
        if poll > lease.lease() || poll < Duration::from_millis(20) {
            return Err(field(
                "member.poll",
                format!("between 20ms and the lease ({})", spoken(&lease.lease())),
                "a repair that comes later than the lease repairs nothing",
            ));
        }
        let stale_after = member.stale_after.map(|period| period.0);
        if stale_after.is_some_and(|silence| silence < lease.longest_interval()) {
            return Err(field(
                "member.stale_after",
                format!("at least 1.2 heartbeats ({})", spoken(&lease.longest_interval())),
                "every healthy leader would be reported as stale",
            ));
        }
        let channel = member.channel.unwrap_or_else(|| "tenure".into());
        if channel.is_empty()
            || channel.len() > MAX_CHANNEL_BYTES
            || channel.chars().any(char::is_control)
        {
            return Err(field(
                "member.channel",
                format!("1 to {MAX_CHANNEL_BYTES} bytes without control characters"),
                "PostgreSQL takes no other channel name",
            ));
        }
        let lock_only = member.lock_only.unwrap_or(false);
        let roles = written
            .role
            .into_iter()
            .enumerate()
            .map(|(index, role)| RoleConfig::validate(index, role, &lease, lock_only))
            .collect::<Result<Vec<_>, _>>()?;
        check_distinct(&roles)?;

        let scope = member.scope.unwrap_or_else(|| "tenure".into());
        let instance = member.instance.as_deref().unwrap_or("localhost");
        // Checked with the longest pid, so that what is accepted here works in every process.
        Identity::new(&scope, instance, u32::MAX, uuid::Uuid::nil())?;

        let parse = |name: &'static str, text: Option<Secret>| {
            text.map(|text| {
                Dsn::parse_with(text.reveal(), env)
                    .map_err(|source| ConfigError::Dsn { field: name, source })
            })
            .transpose()
        };
        let paces = [retry::Pace::CLAIMS, retry::Pace::connecting(lease.heartbeat())];
        let [claims, connecting] = match retry {
            Some(retry) => [retry.clone(), retry],
            None => {
                let [claims, connecting] = paces.map(|pace| retry::validate(&written.retry, pace));
                [claims?, connecting?]
            }
        };
        let mut tls = TlsOptions::new().insecure(written.database.tls_insecure.unwrap_or(false));
        if let Some(path) = written.database.tls_ca_file {
            tls = tls.ca_file(path);
        }
        Ok(Config {
            dsn: parse("database.dsn", written.database.dsn)?,
            application_dsn: parse("database.application_dsn", written.database.application_dsn)?,
            embedded: written.database.embedded.unwrap_or(true),
            revive,
            tls,
            scope,
            instance: member.instance,
            enabled: member.enabled.unwrap_or(asked_for),
            lease,
            poll,
            acquire_timeout: member.acquire_timeout.map(|period| period.0),
            stale_after,
            channel,
            lock_only,
            roles,
            renewal,
            retry: claims,
            reconnect: connecting,
        })
    }
}

/// Adds what the environment says of a role; tells whether it names a role.
///
/// A bare `LEADER_LOCK_KEY` is the key of the only role there is.
fn role_of_environment(
    file: &mut Vec<written::Role>,
    own: &mut [written::Role],
    env: &dyn Env,
) -> Result<bool, ConfigError> {
    let asked_for = !file.is_empty() || !own.is_empty();
    let Some(role) = environment::role(env) else { return Ok(true) };
    if role.name.is_some() {
        match file.iter_mut().find(|earlier| earlier.name == role.name) {
            Some(earlier) => earlier.overlay(role),
            None => file.push(role),
        }
        return Ok(true);
    }
    let only = match (&mut file[..], own) {
        ([], []) => {
            file.push(role);
            return Ok(false);
        }
        ([only], []) => only,
        ([only], [same]) if only.name.is_some() && only.name == same.name => only,
        // The builder's own key is later than the environment's.
        ([], [only]) if only.key.is_none() && only.key1.is_none() => only,
        ([], [_]) => return Ok(true),
        _ => {
            return Err(ConfigError::Variable {
                variable: "LEADER_LOCK_KEY",
                expected: "unset when there are several roles; give each its key in the file",
            });
        }
    };
    only.overlay(role);
    Ok(asked_for)
}

/// Two roles with one lock would exclude each other, and the second claim would stack the lock.
fn check_distinct(roles: &[RoleConfig]) -> Result<(), ConfigError> {
    for (at, role) in roles.iter().enumerate() {
        for earlier in &roles[..at] {
            if earlier.name() == role.name() {
                return Err(field(
                    &format!("role[{at}].name"),
                    format!("another than `{}`", role.name()),
                    "each role is named once",
                ));
            }
            if earlier.key() == role.key() {
                return Err(field(
                    &format!("role[{at}].key"),
                    format!("another than {}, the key of `{}`", role.key(), earlier.name()),
                    "two roles with one lock would shut each other out",
                ));
            }
        }
    }
    Ok(())
}

fn field(name: &str, bound: String, reason: &'static str) -> ConfigError {
    ConfigError::Field { field: name.to_owned(), bound, reason }
}
