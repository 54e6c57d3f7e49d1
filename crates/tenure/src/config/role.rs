//! A role's configuration, as asked for and as validated.

use std::time::Duration;

use tenure_core::key::{LockKey, RoleName};
use tenure_core::lease::{Lease, TakeoverPolicy};

use super::ConfigError;
use super::period::Period;
use super::written::{self, Key};

/// How long a drain waits for acts in flight when nothing is said.
const DRAIN_LIMIT: Duration = Duration::from_secs(10);
/// No wait of a role may be longer: an operator would take it for hung.
const MAX_WAIT: Duration = Duration::from_secs(3600);

/// A role as asked for in code; what is not said comes from the file or the default.
#[derive(Debug, Clone)]
#[must_use]
pub struct RoleSpec(pub(super) written::Role);

impl RoleSpec {
    /// A role by its name (1 to 200 bytes); the name also gives the lock key.
    pub fn named(name: impl Into<String>) -> Self {
        Self(written::Role { name: Some(name.into()), ..written::Role::default() })
    }

    /// A role by its lock key alone, as other programs know it; it is called `lock:<key>`.
    pub fn keyed(key: LockKey) -> Self {
        Self(written::Role::default()).key(key)
    }

    /// The lock key, in place of the name's own. Default: derived from the name. Every program
    /// that uses the same key takes part, also one that is not Tenure.
    pub fn key(mut self, key: LockKey) -> Self {
        (self.0.key, self.0.key1, self.0.key2) = match key {
            LockKey::Big(key) => (Some(Key::Number(key)), None, None),
            LockKey::Pair(key1, key2) => (None, Some(key1), Some(key2)),
        };
        self
    }

    /// See [`RoleConfig::policy`].
    pub fn policy(mut self, policy: TakeoverPolicy) -> Self {
        self.0.policy = Some(policy);
        self
    }

    /// See [`RoleConfig::priority`].
    pub fn priority(mut self, priority: i32) -> Self {
        self.0.priority = Some(priority);
        self
    }

    /// See [`RoleConfig::is_candidate`].
    pub fn candidate(mut self, candidate: bool) -> Self {
        self.0.candidate = Some(candidate);
        self
    }

    /// See [`RoleConfig::preempts`].
    pub fn preempt(mut self, preempt: bool) -> Self {
        self.0.preempt = Some(preempt);
        self
    }

    /// See [`RoleConfig::auto_reacquire`].
    pub fn auto_reacquire(mut self, auto_reacquire: bool) -> Self {
        self.0.auto_reacquire = Some(auto_reacquire);
        self
    }

    /// See [`RoleConfig::cool_down`].
    pub fn cool_down(mut self, cool_down: Duration) -> Self {
        self.0.cool_down = Some(Period(cool_down));
        self
    }

    /// See [`RoleConfig::drain_limit`].
    pub fn drain_limit(mut self, drain_limit: Duration) -> Self {
        self.0.drain_limit = Some(Period(drain_limit));
        self
    }
}

/// A role as validated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoleConfig {
    name: RoleName,
    key: LockKey,
    policy: TakeoverPolicy,
    priority: i32,
    candidate: bool,
    preempt: bool,
    auto_reacquire: bool,
    cool_down: Duration,
    drain_limit: Duration,
}

impl RoleSpec {
    /// As validated, for a role that is added at run time.
    pub(crate) fn validate(
        self,
        lease: &Lease,
        lock_only: bool,
    ) -> Result<RoleConfig, ConfigError> {
        RoleConfig::validate(0, self.0, lease, lock_only)
    }
}

impl RoleConfig {
    pub(super) fn validate(
        index: usize,
        role: written::Role,
        lease: &Lease,
        lock_only: bool,
    ) -> Result<Self, ConfigError> {
        let called = role.name.clone().unwrap_or_else(|| format!("role[{index}]"));
        let field = |field: &str, bound: &str, reason| ConfigError::Field {
            field: format!("role[{index}].{field}"),
            bound: bound.to_owned(),
            reason,
        };
        let key = match (role.key, role.key1, role.key2) {
            (None, None, None) => None,
            (Some(Key::Number(key)), None, None) => Some(LockKey::Big(key)),
            (Some(Key::Text(text)), None, None) => {
                Some(text.parse().map_err(|source| ConfigError::Key { role: called, source })?)
            }
            (None, Some(key1), Some(key2)) => Some(LockKey::Pair(key1, key2)),
            (None, Some(_), None) => {
                return Err(field("key2", "given together with key1", "the lock has two keys"));
            }
            (None, None, Some(_)) => {
                return Err(field("key1", "given together with key2", "the lock has two keys"));
            }
            (Some(_), Some(_), _) | (Some(_), _, Some(_)) => {
                return Err(field(
                    "key",
                    "given alone, without key1 and key2",
                    "one lock has one key",
                ));
            }
        };
        let name = match (role.name, key) {
            (Some(name), _) => name,
            (None, Some(key)) => format!("lock:{key}"),
            (None, None) => return Err(field("name", "given, or a key", "a role needs one")),
        };
        let name =
            RoleName::new(&name).map_err(|source| ConfigError::RoleName { index, source })?;
        let wait = |name: &str, value: Option<Period>, default: Duration| {
            let value = value.map_or(default, |period| period.0);
            if value > MAX_WAIT {
                return Err(field(name, "at most 1h", "an operator would take it for hung"));
            }
            Ok(value)
        };
        let validated = Self {
            key: key.unwrap_or_else(|| name.key()),
            policy: role.policy.unwrap_or_default(),
            priority: role.priority.unwrap_or(0),
            candidate: role.candidate.unwrap_or(true),
            preempt: role.preempt.unwrap_or(false),
            auto_reacquire: role.auto_reacquire.unwrap_or(true),
            cool_down: wait("cool_down", role.cool_down, lease.lease())?,
            drain_limit: wait("drain_limit", role.drain_limit, DRAIN_LIMIT)?,
            name,
        };
        if lock_only {
            const NO_TABLES: &str = "lock_only has no tables, hence no epoch and no candidates";
            if validated.policy == TakeoverPolicy::Fenced {
                return Err(field("policy", "exclusive with member.lock_only", NO_TABLES));
            }
            if validated.priority != 0 {
                return Err(field("priority", "0 with member.lock_only", NO_TABLES));
            }
            if validated.preempt {
                return Err(field("preempt", "false with member.lock_only", NO_TABLES));
            }
        }
        Ok(validated)
    }

    /// What the role is called.
    #[must_use]
    pub fn name(&self) -> &RoleName {
        &self.name
    }

    /// The key of its advisory lock: the one that was given, else the one that its name stands for.
    #[must_use]
    pub fn key(&self) -> LockKey {
        self.key
    }

    /// `exclusive` or `fenced`. Default: exclusive. All members must agree. Exclusive costs a
    /// lease and a margin after a crash; fenced is safe only if every effect carries the epoch.
    #[must_use]
    pub fn policy(&self) -> TakeoverPolicy {
        self.policy
    }

    /// Where this member stands among the candidates. Default: 0; any `i32`. The highest gets a head start
    /// when the role is vacant; the lower ones wait a moment before they claim.
    #[must_use]
    pub fn priority(&self) -> i32 {
        self.priority
    }

    /// Whether this member may lead. Default: true; an observer watches and never claims.
    #[must_use]
    pub fn is_candidate(&self) -> bool {
        self.candidate
    }

    /// Whether this member asks a healthy leader of lower priority to step down. Default: false. If it does, each
    /// return of the preferred member costs a handover.
    #[must_use]
    pub fn preempts(&self) -> bool {
        self.preempt
    }

    /// Whether to campaign again after a loss or a step-down. Default: true; false stops the role
    /// after its first term.
    #[must_use]
    pub fn auto_reacquire(&self) -> bool {
        self.auto_reacquire
    }

    /// How long to stay out of the race after a step-down. Default: the lease; at most 1 h.
    /// Shorter than a heartbeat, and the member that stepped down may win again; longer leaves the
    /// role vacant when there is no other candidate.
    #[must_use]
    pub fn cool_down(&self) -> Duration {
        self.cool_down
    }

    /// How long a step-down waits for acts in flight. Default: 10 s; at most 1 h. Too short cuts
    /// acts off and makes the release unclean; too long delays the handover.
    #[must_use]
    pub fn drain_limit(&self) -> Duration {
        self.drain_limit
    }
}
