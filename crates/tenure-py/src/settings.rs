//! A configuration from Python's keyword arguments.

use std::sync::Arc;
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::{PyAny, PyDict};
use tenure::config::{Config, RoleSpec};
use tenure::connect::Renewal;
use tenure::connect::dsn::{Env, ProcessEnv};
use tenure::shards::Shards;
use tenure::{DecorrelatedJitter, ExponentialBackoff, FixedInterval};
use tenure::{LockKey, RetryStrategy, TakeoverPolicy};

use crate::error;
use crate::retry::{Patience, PythonStrategy, SHORTEST};
use crate::runtime;

/// The environment as libpq reads it. Tenure's own variables are for its command line: a Python
/// program says what it wants in code.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Libpq;

impl Libpq {
    fn reads(name: &str) -> bool {
        (name.starts_with("PG") && !name.starts_with("PG_")) || name == "HOME"
    }
}

impl Env for Libpq {
    fn var(&self, name: &str) -> Option<String> {
        Libpq::reads(name).then(|| ProcessEnv.var(name)).flatten()
    }

    fn is_blank(&self, name: &str) -> bool {
        Libpq::reads(name) && ProcessEnv.is_blank(name)
    }
}

/// Reads one key of a dictionary; a missing one and `None` are the same.
fn get<'py, T>(from: &Bound<'py, PyDict>, key: &str) -> PyResult<Option<T>>
where
    T: for<'a> FromPyObject<'a, 'py, Error: Into<PyErr>>,
{
    match from.get_item(key)? {
        Some(value) if !value.is_none() => value.extract::<T>().map(Some).map_err(Into::into),
        _ => Ok(None),
    }
}

fn seconds(from: &Bound<'_, PyDict>, key: &str) -> PyResult<Option<Duration>> {
    get::<f64>(from, key)?
        .map(|value| {
            Duration::try_from_secs_f64(value).map_err(|_| {
                error::value(format!("{key} must be a number of seconds, 0 or more, not {value}"))
            })
        })
        .transpose()
}

/// A role: `name`, `key`, `key1`, `key2`, `policy`, `priority`, ….
pub(crate) fn role(from: &Bound<'_, PyDict>) -> PyResult<RoleSpec> {
    let key = match (get::<i32>(from, "key1")?, get::<i32>(from, "key2")?, get(from, "key")?) {
        (Some(key1), Some(key2), None) => Some(LockKey::Pair(key1, key2)),
        (None, None, Some(key)) => Some(LockKey::Big(key)),
        (None, None, None) => None,
        _ => return Err(error::value("give key1 and key2, or key, or none of them")),
    };
    let mut spec = match (get::<String>(from, "name")?, key) {
        (Some(name), None) => RoleSpec::named(name),
        (Some(name), Some(key)) => RoleSpec::named(name).key(key),
        (None, Some(key)) => RoleSpec::keyed(key),
        (None, None) => return Err(error::value("a role needs a name, or key1 and key2")),
    };
    if let Some(policy) = get::<String>(from, "policy")? {
        let policy = policy.parse::<TakeoverPolicy>();
        spec = spec.policy(policy.map_err(|why| error::value(format!("policy: {why}")))?);
    }
    if let Some(priority) = get(from, "priority")? {
        spec = spec.priority(priority);
    }
    if let Some(candidate) = get(from, "candidate")? {
        spec = spec.candidate(candidate);
    }
    if let Some(preempt) = get(from, "preempt")? {
        spec = spec.preempt(preempt);
    }
    if let Some(auto_reacquire) = get(from, "auto_reacquire")? {
        spec = spec.auto_reacquire(auto_reacquire);
    }
    if let Some(cool_down) = seconds(from, "cool_down_s")? {
        spec = spec.cool_down(cool_down);
    }
    if let Some(drain_limit) = seconds(from, "drain_limit_s")? {
        spec = spec.drain_limit(drain_limit);
    }
    Ok(spec)
}

/// A strategy: `("exponential", base, max, multiplier)`, `("fixed", interval)`, `("jitter", base, max)`
/// or a callable.
fn strategy(from: &Bound<'_, PyAny>, patience: Patience) -> PyResult<Arc<dyn RetryStrategy>> {
    if from.is_callable() {
        let asked = PythonStrategy::new(from.clone().unbind(), runtime::handle()?, patience);
        return Ok(Arc::new(asked));
    }
    let (kind, numbers): (String, Vec<f64>) = from.extract()?;
    let period = |at: usize| {
        let value = numbers.get(at).copied().unwrap_or(f64::NAN);
        Duration::try_from_secs_f64(value)
            .map(|period| period.max(SHORTEST))
            .map_err(|_| error::value("a retry strategy's times must be 0 seconds or more"))
    };
    Ok(match kind.as_str() {
        "exponential" => {
            let own = ExponentialBackoff::new(period(0)?, period(1)?);
            Arc::new(ExponentialBackoff {
                multiplier: numbers.get(2).copied().unwrap_or(2.0).clamp(1.0, 100.0),
                ..own
            })
        }
        "fixed" => Arc::new(FixedInterval { interval: period(0)? }),
        _ => Arc::new(DecorrelatedJitter { base: period(0)?, max: period(1)? }),
    })
}

/// The sets of shards that a member spreads: `[(name, count)]`.
pub(crate) fn sets(from: &Bound<'_, PyDict>) -> PyResult<Vec<Shards>> {
    let sets = get::<Vec<(String, u32)>>(from, "spread")?.unwrap_or_default();
    Ok(sets.iter().map(|(name, count)| Shards::new(name, *count)).collect())
}

/// The whole of a member.
pub(crate) fn config(
    from: &Bound<'_, PyDict>,
    renewal: Option<Arc<dyn Renewal>>,
) -> PyResult<Config> {
    let mut builder = Config::builder().env(Libpq);
    if let Some(renewal) = renewal {
        builder = builder.renewal(renewal);
    }
    if let Some(dsn) = get::<String>(from, "dsn")? {
        builder = builder.dsn(dsn);
    }
    let heartbeat = seconds(from, "heartbeat_s")?;
    if let Some(heartbeat) = heartbeat {
        builder = builder.heartbeat(heartbeat);
    }
    if let Some(lease) = seconds(from, "lease_s")? {
        builder = builder.lease(lease);
    }
    if let Some(deadline) = seconds(from, "statement_deadline_s")? {
        builder = builder.statement_deadline(deadline);
    }
    if let Some(grace) = seconds(from, "reconnect_grace_s")? {
        builder = builder.reconnect_grace(grace);
    }
    if let Some(lock_only) = get(from, "lock_only")? {
        builder = builder.lock_only(lock_only);
    }
    if let Some(scope) = get::<String>(from, "scope")? {
        builder = builder.scope(scope);
    }
    if let Some(instance) = get::<String>(from, "instance")? {
        builder = builder.instance(instance);
    }
    if let Some(retry) = from.get_item("retry")?.filter(|retry| !retry.is_none()) {
        let patience = match get(from, "many_roles")?.unwrap_or(false) {
            true => Patience::of_many_roles(heartbeat.unwrap_or(Duration::from_secs(1))),
            false => Patience::of_one_role(),
        };
        builder = builder.retry(strategy(&retry, patience)?);
    }
    for spec in get::<Vec<Bound<'_, PyDict>>>(from, "roles")?.unwrap_or_default() {
        builder = builder.role(role(&spec)?);
    }
    builder.build().map_err(|error| error::raise(from.py(), &error.into()))
}
