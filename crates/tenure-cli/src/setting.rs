//! The command line as meant: a validated configuration, one role, one database.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tenure::config::{Config, ConfigBuilder, ConfigError, RoleSpec};
use tenure::connect::dsn::ProcessEnv;
use tenure::{ExponentialBackoff, LockKey, RoleName};
use tenure_agent::Plan;
use tenure_embedded::Embedded;

use crate::args::{Behaviour, Database, RoleArgs, Taking};
use crate::exit::Failure;

/// A forgotten DSN must not look like a safe set-up.
pub(crate) const EMBEDDED: &str = "NO DATABASE CONFIGURED: using the private PostgreSQL of this \
    machine, so there is one leader per MACHINE, not per cluster; set TENURE_DSN for more";

/// A member that may not lead must not look like one that waits for its turn.
pub(crate) const NOT_ENABLED: &str = "this member follows and never leads: a bare LEADER_LOCK_KEY \
    leads only once MSP_LEADER_ENABLED or TENURE_ENABLED is true; set it, or give --role or --key";

const FORBIDDEN: &str = "no database is configured, and a private one is forbidden (--no-embedded); give \
    --dsn, or set TENURE_DSN";

/// What a command works with.
#[derive(Debug)]
pub(crate) struct Setting {
    pub(crate) config: Config,
    /// The database is the private one of this machine.
    pub(crate) embedded: bool,
}

impl Setting {
    /// For a command that takes part. Puts command line, environment and file together; without a
    /// DSN it starts the private server, or attaches to it.
    pub(crate) fn new(
        database: &Database,
        role: &RoleArgs,
        taking: &Taking,
        behaviour: &Behaviour,
        auto_reacquire: bool,
    ) -> Result<Self, Failure> {
        let file = File::read(database)?;
        let mut builder = builder_of(file.as_ref(), database, taking)?;
        // The file or the environment may name the role, and the command line speak about it.
        let configured = build(builder.clone(), taking)?;
        let named = role.name()?;
        if let (Some(file), Some(name)) = (&file, &named) {
            file.lists(name)?;
        }
        if let Some(spec) = role.spec(&configured, taking, behaviour, auto_reacquire) {
            builder = builder.role(spec);
        }
        // A role that only the environment asks for, by a bare key, is followed until the
        // environment also says that it may be led.
        if named.is_none() && !configured.is_enabled() {
            builder = builder.enabled(false);
        }
        Setting::on(builder, taking, |builder| {
            let dsn = Embedded::start_or_attach(None)?.dsn()?;
            // A private server that dies is started again by the members that use it.
            let start =
                || Embedded::start_or_attach(None).map(drop).map_err(|error| error.to_string());
            Ok(builder.dsn(dsn).revive(start))
        })
    }

    /// For a command that only asks or orders.
    pub(crate) fn of(database: &Database) -> Result<Self, Failure> {
        Setting::asking(database, &Taking::default())
    }

    /// For a command that only asks or orders: without a DSN it attaches to a private server that
    /// runs, and never makes one.
    pub(crate) fn asking(database: &Database, taking: &Taking) -> Result<Self, Failure> {
        let file = File::read(database)?;
        Setting::on(builder_of(file.as_ref(), database, taking)?, taking, |builder| {
            match Embedded::attach(None).ok().flatten() {
                Some(running) => Ok(builder.dsn(running.dsn()?)),
                None => Err(Failure::usage(
                    "no database is configured, and no private one runs on this machine; give --dsn, \
                     or set TENURE_DSN",
                )),
            }
        })
    }

    /// What the file says to an agent; none without a file, or if `tenure agent --check` has something to say of it.
    pub(crate) fn plan(database: &Database) -> Option<Plan> {
        let file = File::read(database).ok().flatten()?;
        Plan::from_toml(&file.text, &file.path).ok()
    }

    /// On the database that was named, else on the private one of this machine, which `private` adds.
    fn on(
        builder: ConfigBuilder,
        taking: &Taking,
        private: impl FnOnce(ConfigBuilder) -> Result<ConfigBuilder, Failure>,
    ) -> Result<Self, Failure> {
        let config = build(builder.clone(), taking)?;
        if config.dsn().is_some() {
            return Ok(Setting { config, embedded: false });
        }
        if !config.allows_embedded() {
            return Err(Failure::usage(FORBIDDEN));
        }
        let config = build(private(builder)?, taking)?;
        Ok(Setting { config, embedded: true })
    }

    /// The one role that was meant: the one of the command line, else the only one configured.
    pub(crate) fn only_role(&self, role: &RoleArgs) -> Result<RoleName, Failure> {
        let roles = self.config.roles();
        let wanted = role.name()?;
        let found = match (&wanted, roles) {
            (Some(name), _) => roles.iter().find(|role| role.name() == name),
            (None, [only]) => Some(only),
            (None, []) => None,
            (None, _) => {
                return Err(Failure::usage(
                    "the configuration names several roles; choose one with --role",
                ));
            }
        };
        found
            .map(|role| role.name().clone())
            .ok_or_else(|| Failure::usage("no role was named; give --role NAME or --key KEY"))
    }
}

impl RoleArgs {
    pub(crate) fn lock_key(&self) -> Option<LockKey> {
        self.key.or(self.key1.zip(self.key2).map(|(key1, key2)| LockKey::Pair(key1, key2)))
    }

    /// As asked for, if anything was; `configured` is what was said elsewhere.
    fn spec(
        &self,
        configured: &Config,
        taking: &Taking,
        behaviour: &Behaviour,
        auto_reacquire: bool,
    ) -> Option<RoleSpec> {
        let roles = configured.roles();
        let only = match roles {
            [only] => Some(only),
            _ => None,
        };
        let mut spec = match (self.role.as_deref(), self.lock_key()) {
            (Some(name), Some(key)) => RoleSpec::named(name).key(key),
            (Some(name), None) => RoleSpec::named(name),
            (None, Some(key)) => RoleSpec::keyed(key),
            (None, None) => RoleSpec::named(only?.name().as_str()),
        };
        if let Some(policy) = taking.policy {
            spec = spec.policy(policy);
        }
        if let Some(priority) = taking.priority {
            spec = spec.priority(priority);
        }
        if !auto_reacquire {
            spec = spec.auto_reacquire(false);
        }
        if behaviour.preempt {
            spec = spec.preempt(true);
        }
        if behaviour.observer {
            spec = spec.candidate(false);
        }
        if let Some(cool_down) = behaviour.cool_down {
            spec = spec.cool_down(cool_down);
        }
        // Unless it was said here, a drain must not be cut off before the child had its grace.
        let grace = configured.lease().kill_grace();
        let written = match self.role.as_deref() {
            Some(name) => roles.iter().find(|role| role.name().as_str() == name),
            None => only,
        };
        let limit = written.map_or(Duration::ZERO, |role| role.drain_limit());
        if let Some(limit) = behaviour.drain_limit {
            spec = spec.drain_limit(limit);
        } else if grace > Duration::from_secs(5) {
            spec = spec.drain_limit((grace * 2).max(limit).min(Duration::from_secs(3600)));
        }
        Some(spec)
    }

    /// What the role is called, if it was named by name or key.
    pub(crate) fn name(&self) -> Result<Option<RoleName>, Failure> {
        let name = match (&self.role, self.lock_key()) {
            (Some(name), _) => name.clone(),
            (None, Some(key)) => format!("lock:{key}"),
            (None, None) => return Ok(None),
        };
        RoleName::new(&name).map(Some).map_err(|error| Failure::usage(format!("--role: {error}")))
    }

    /// For a command that needs one.
    pub(crate) fn required(&self) -> Result<RoleName, Failure> {
        self.name()?
            .ok_or_else(|| Failure::usage("no role was named; give --role NAME or --key KEY"))
    }
}

/// The configuration file, read once: every step of a command goes by the same text.
struct File {
    path: PathBuf,
    text: String,
}

impl File {
    /// The one that the command line names, else the environment.
    fn read(database: &Database) -> Result<Option<Self>, Failure> {
        let named = database.config.clone();
        let Some(path) = named.or_else(|| std::env::var_os("TENURE_CONFIG").map(Into::into)) else {
            return Ok(None);
        };
        match std::fs::read_to_string(&path) {
            Ok(text) => Ok(Some(File { path, text })),
            Err(source) => Err(ConfigError::Read { path, source }.into()),
        }
    }

    /// A file that lists roles lists all of them: another name is most likely a slip, and would make a
    /// role that no other member knows.
    fn lists(&self, name: &RoleName) -> Result<(), Failure> {
        let written = Config::builder().toml(&self.text, &self.path)?.build()?;
        let names: Vec<&str> = written.roles().iter().map(|role| role.name().as_str()).collect();
        if names.is_empty() || names.contains(&name.as_str()) {
            return Ok(());
        }
        Err(Failure::usage(format!(
            "{} does not list role {name}, only {}; add it there, or correct the name",
            self.path.display(),
            names.join(", ")
        )))
    }
}

/// Checks the whole. What is wrong is told in the words of the command line, where that was what asked for it.
fn build(builder: ConfigBuilder, taking: &Taking) -> Result<Config, Failure> {
    let Taking { heartbeat, lease, grace, reconnect_grace, instance, .. } = taking;
    builder.build().map_err(|error| match error {
        ConfigError::Lease(error)
            if [heartbeat, lease, grace, reconnect_grace].iter().any(|time| time.is_some()) =>
        {
            Failure::usage(error.with_names(|timing| match timing {
                "heartbeat" => "--heartbeat",
                "lease" => "--lease",
                "kill_grace" => "--grace",
                "reconnect_grace" => "--reconnect-grace",
                other => other,
            }))
        }
        ConfigError::Identity(error) if instance.is_some() => {
            Failure::usage(format!("--instance: {error}"))
        }
        error => error.into(),
    })
}

/// What command line, environment and file say together; the private server is not started.
#[cfg(feature = "tx")]
pub(crate) fn configured(database: &Database) -> Result<Config, Failure> {
    Ok(builder(database)?.build()?)
}

/// Command line, environment and file, for a command that adds to them.
#[cfg(feature = "tx")]
pub(crate) fn builder(database: &Database) -> Result<ConfigBuilder, Failure> {
    builder_of(File::read(database)?.as_ref(), database, &Taking::default())
}

fn builder_of(
    file: Option<&File>,
    database: &Database,
    taking: &Taking,
) -> Result<ConfigBuilder, Failure> {
    let mut builder = Config::builder().env(ProcessEnv);
    if let Some(file) = file {
        builder = builder.toml(&file.text, &file.path)?;
    }
    if let Some(dsn) = &database.dsn {
        if dsn.reveal().trim().is_empty() {
            return Err(Failure::usage("--dsn is empty; give a connection string"));
        }
        builder = builder.dsn(dsn.reveal());
    }
    if database.no_embedded {
        builder = builder.embedded(false);
    }
    let Taking { heartbeat, lease, grace, reconnect_grace, .. } = taking;
    if let Some(heartbeat) = *heartbeat {
        builder = builder.heartbeat(heartbeat);
    }
    if let Some(lease) = *lease {
        builder = builder.lease(lease);
    }
    if let Some(grace) = *grace {
        builder = builder.kill_grace(grace);
    }
    if let Some(grace) = *reconnect_grace {
        builder = builder.reconnect_grace(grace);
    }
    if taking.lock_only {
        builder = builder.lock_only(true);
    }
    if let Some(instance) = &taking.instance {
        builder = builder.instance(instance);
    }
    if taking.retry_base.is_some() || taking.retry_max.is_some() {
        let max = taking.retry_max.unwrap_or(Duration::from_secs(5));
        let base = taking.retry_base.unwrap_or(Duration::from_millis(200).min(max));
        if base.is_zero() || base > max {
            return Err(Failure::usage(format!(
                "--retry-base is {base:?}; it must be above 0 and at most --retry-max ({max:?})"
            )));
        }
        builder =
            builder.retry(Arc::new(ExponentialBackoff { base, max, multiplier: 2.0, jitter: 0.2 }));
    }
    Ok(builder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drain_is_not_cut_off_before_the_grace_wherever_the_lease_was_written() {
        let file = tempfile::Builder::new().suffix(".toml").tempfile().expect("a file");
        let text = "[database]\ndsn = 'postgresql://nobody@localhost/none'\n\
                    [member]\nheartbeat = '30s'\nlease = '120s'\n";
        std::fs::write(file.path(), text).expect("written");
        let database = Database { config: Some(file.path().to_owned()), ..Database::default() };
        let role = RoleArgs { role: Some("r".to_owned()), ..RoleArgs::default() };
        let (taking, behaviour) = (Taking::default(), Behaviour::default());
        let setting = Setting::new(&database, &role, &taking, &behaviour, true).expect("valid");
        let grace = setting.config.lease().kill_grace();
        assert!(grace > Duration::from_secs(10), "{grace:?}");
        assert!(setting.config.roles()[0].drain_limit() > grace);
    }
}
