//! The environment's share of the configuration.
//!
//! Where two variables mean the same, ours (`TENURE_…`) wins over the one of another system
//! (`docs/coming-from.md`).

use std::time::Duration;

use super::ConfigError;
use super::period::{self, Period};
use super::written::{Key, Role, Strategy, Written};
use tenure_connect::dsn::{self, Env, NotASwitch, Secret};

/// The variables that may hold the DSN; the first that is set wins.
pub const DSN_VARIABLES: [&str; 4] =
    ["TENURE_DSN", "PG_DSN", "PG_CONN_STRING", "SH_PENDING_DB_URL"];

/// libpq's variables that say where a database is; one of them is enough to need no DSN.
const LIBPQ_PLACES: [&str; 4] = ["PGHOST", "PGHOSTADDR", "PGSERVICE", "PGDATABASE"];

pub(super) fn read(env: &dyn Env) -> Result<Written, ConfigError> {
    let mut written = Written::default();
    let text = |names: &[&'static str]| names.iter().find_map(|name| env.var(name));
    written.database.dsn = text(&DSN_VARIABLES)
        .or_else(|| text(&LIBPQ_PLACES).map(|_| String::new()))
        .map(Secret::new);
    written.database.embedded = switch(env, "TENURE_EMBEDDED")?;
    written.database.tls_insecure = switch(env, "SH_DB_TLS_INSECURE")?;
    written.database.tls_ca_file = env.var("SH_DB_TLS_CA_FILE").map(Into::into);
    written.database.application_dsn = env.var("TENURE_APPLICATION_DSN").map(Secret::new);

    let member = &mut written.member;
    member.scope = env.var("TENURE_SCOPE");
    member.instance = text(&["TENURE_INSTANCE", "SH_NODE_INSTANCE_ID"]);
    member.channel = text(&["TENURE_CHANNEL", "PG_LISTEN_CHANNEL"]);
    member.enabled = either(switch(env, "TENURE_ENABLED")?, || switch(env, "MSP_LEADER_ENABLED"))?;
    member.lock_only = switch(env, "TENURE_LOCK_ONLY")?;
    member.heartbeat =
        either(period(env, "TENURE_HEARTBEAT")?, || milliseconds(env, "HEARTBEAT_INTERVAL_MS"))?;
    member.lease =
        either(period(env, "TENURE_LEASE")?, || milliseconds(env, "HEARTBEAT_LATE_THRESHOLD_MS"))?;
    member.margin = period(env, "TENURE_MARGIN")?;
    member.statement_deadline = period(env, "TENURE_STATEMENT_DEADLINE")?;
    member.kill_grace = period(env, "TENURE_KILL_GRACE")?;
    member.reconnect_grace = period(env, "TENURE_RECONNECT_GRACE")?;
    member.poll = period(env, "TENURE_POLL")?;
    member.acquire_timeout = period(env, "TENURE_ACQUIRE_TIMEOUT")?;
    member.stale_after = either(period(env, "TENURE_STALE_AFTER")?, || {
        milliseconds(env, "EPOCH_STALE_THRESHOLD_MS")
    })?;

    // A follower's delay is drawn at random between the two.
    written.retry.base = milliseconds(env, "ACQUIRE_BACKOFF_MS_MIN")?;
    written.retry.max = milliseconds(env, "ACQUIRE_BACKOFF_MS_MAX")?;
    if written.retry.base.is_some() || written.retry.max.is_some() {
        written.retry.strategy = Some(Strategy::Jitter);
    }
    Ok(written)
}

/// A variable for the DSN that is set to nothing is most likely a secret that is missing: it must not
/// lead to a database of this machine alone.
pub(super) fn refuse_blank_dsn(env: &dyn Env) -> Result<(), ConfigError> {
    match DSN_VARIABLES.into_iter().find(|variable| env.is_blank(variable)) {
        Some(variable) => {
            let expected = "a connection string, and is empty";
            Err(ConfigError::Variable { variable, expected })
        }
        None => Ok(()),
    }
}

/// The one role the environment may speak of, and whether it was named.
pub(super) fn role(env: &dyn Env) -> Option<Role> {
    let name = env.var("TENURE_ROLE");
    let key = ["TENURE_KEY", "LEADER_LOCK_KEY"].iter().find_map(|name| env.var(name));
    (name.is_some() || key.is_some()).then(|| Role {
        name,
        key: key.map(Key::Text),
        ..Role::default()
    })
}

fn either<T>(
    first: Option<T>,
    second: impl FnOnce() -> Result<Option<T>, ConfigError>,
) -> Result<Option<T>, ConfigError> {
    match first {
        Some(first) => Ok(Some(first)),
        None => second(),
    }
}

fn period(env: &dyn Env, variable: &'static str) -> Result<Option<Period>, ConfigError> {
    env.var(variable)
        .map(|text| {
            Period::parse(&text)
                .ok_or(ConfigError::Variable { variable, expected: period::EXPECTED })
        })
        .transpose()
}

fn milliseconds(env: &dyn Env, variable: &'static str) -> Result<Option<Period>, ConfigError> {
    let expected = "a number of milliseconds";
    env.var(variable)
        .map(|text| match text.trim().parse() {
            Ok(milliseconds) => Ok(Period(Duration::from_millis(milliseconds))),
            Err(_) => Err(ConfigError::Variable { variable, expected }),
        })
        .transpose()
}

fn switch(env: &dyn Env, variable: &'static str) -> Result<Option<bool>, ConfigError> {
    dsn::switch(env, variable)
        .map_err(|NotASwitch| ConfigError::Variable { variable, expected: "true or false" })
}
