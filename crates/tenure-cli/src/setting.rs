//! The command line as meant: a validated configuration, one role, one database.

use std::sync::Arc;
use std::time::Duration;

use tenure::config::{Config, ConfigBuilder, RoleSpec};
use tenure::connect::dsn::ProcessEnv;
use tenure::{ExponentialBackoff, LockKey, RoleName};
use tenure_embedded::Embedded;

use crate::args::{Database, RoleArgs, Taking};
use crate::exit::Failure;

/// A forgotten DSN must not look like a safe set-up.
pub(crate) const EMBEDDED: &str = "NO DATABASE CONFIGURED: using the private PostgreSQL of this \
    machine, so there is one leader per MACHINE, not per cluster; set TENURE_DSN for more";

/// What a command works with.
#[derive(Debug)]
pub(crate) struct Setting {
    pub(crate) config: Config,
    /// The database is the private one of this machine.
    pub(crate) embedded: bool,
}

impl Setting {
    /// Puts command line, environment and file together; without a DSN it starts the private
    /// server, or attaches to it.
    pub(crate) fn new(
        database: &Database,
        role: &RoleArgs,
        taking: &Taking,
        auto_reacquire: bool,
    ) -> Result<Self, Failure> {
        // The file or the environment may name the role, and the command line speak about it.
        let configured = builder(database, None, taking)?.build()?;
        let only = match configured.roles() {
            [only] => Some(only.name().as_str()),
            _ => None,
        };
        let grace = configured.lease().kill_grace();
        let role = role.spec(only, taking, auto_reacquire, grace);
        let config = builder(database, role.clone(), taking)?.build()?;
        if config.dsn().is_some() {
            return Ok(Setting { config, embedded: false });
        }
        let dsn = Embedded::start_or_attach(None)?.dsn()?;
        let config = builder(database, role, taking)?.dsn(dsn).build()?;
        Ok(Setting { config, embedded: true })
    }

    /// For a command that only asks or orders.
    pub(crate) fn of(database: &Database) -> Result<Self, Failure> {
        Setting::new(database, &RoleArgs::default(), &Taking::default(), true)
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

    /// As asked for, if anything was; `only` is the name of the one role configured elsewhere.
    fn spec(
        &self,
        only: Option<&str>,
        taking: &Taking,
        auto_reacquire: bool,
        grace: Duration,
    ) -> Option<RoleSpec> {
        let mut spec = match (self.role.as_deref(), self.lock_key()) {
            (Some(name), Some(key)) => RoleSpec::named(name).key(key),
            (Some(name), None) => RoleSpec::named(name),
            (None, Some(key)) => RoleSpec::keyed(key),
            (None, None) => RoleSpec::named(only?),
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
        // A drain must not be cut off before the child had its grace.
        if grace > Duration::from_secs(5) {
            spec = spec.drain_limit((grace * 2).min(Duration::from_secs(3600)));
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

/// What command line, environment and file say together; the private server is not started.
#[cfg(feature = "tx")]
pub(crate) fn configured(database: &Database) -> Result<Config, Failure> {
    Ok(builder(database, None, &Taking::default())?.build()?)
}

pub(crate) fn builder(
    database: &Database,
    role: Option<RoleSpec>,
    taking: &Taking,
) -> Result<ConfigBuilder, Failure> {
    let mut builder = Config::builder().env(ProcessEnv);
    let file =
        database.config.clone().or_else(|| std::env::var_os("TENURE_CONFIG").map(Into::into));
    if let Some(file) = file {
        builder = builder.file(file)?;
    }
    if let Some(dsn) = &database.dsn {
        builder = builder.dsn(dsn.reveal());
    }
    if let Some(role) = role {
        builder = builder.role(role);
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
        let setting = Setting::new(&database, &role, &Taking::default(), true).expect("valid");
        let grace = setting.config.lease().kill_grace();
        assert!(grace > Duration::from_secs(10), "{grace:?}");
        assert!(setting.config.roles()[0].drain_limit() > grace);
    }
}
