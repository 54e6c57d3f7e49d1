//! The configuration as written: what a file, the environment or a builder says, unchecked.
//!
//! Each source gives one [`Written`]; [`Written::overlay`] lets the later one win, field by field.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::IgnoredAny;
use tenure_core::lease::TakeoverPolicy;

use super::ConfigError;
use super::period::Period;
use tenure_connect::dsn::Secret;

/// One source's share.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Written {
    pub(super) database: Database,
    pub(super) member: Member,
    pub(super) role: Vec<Role>,
    pub(super) retry: Retry,
    /// FORGE's own place for the member's timings, so that its section works as it is.
    cluster: Option<Cluster>,
    /// Sections of other commands: one file serves them all, so none is unknown here.
    tx: IgnoredAny,
    gossip: IgnoredAny,
    agent: IgnoredAny,
    alerting: IgnoredAny,
    alerts: IgnoredAny,
    command: IgnoredAny,
    schedule: IgnoredAny,
    shards: IgnoredAny,
    page: IgnoredAny,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Cluster {
    leader_election: Member,
}

/// Lets each named field of a later source replace the earlier one's.
macro_rules! overlay {
    ($base:expr, $over:expr, $($field:ident),+ $(,)?) => {
        $(if let Some(value) = $over.$field { $base.$field = Some(value); })+
    };
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Database {
    #[serde(deserialize_with = "secret")]
    pub(super) dsn: Option<Secret>,
    #[serde(deserialize_with = "secret")]
    pub(super) application_dsn: Option<Secret>,
    pub(super) embedded: Option<bool>,
    pub(super) tls_insecure: Option<bool>,
    pub(super) tls_ca_file: Option<PathBuf>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Member {
    pub(super) scope: Option<String>,
    pub(super) instance: Option<String>,
    pub(super) enabled: Option<bool>,
    #[serde(alias = "refresh_interval", alias = "health_interval_s")]
    pub(super) heartbeat: Option<Period>,
    #[serde(alias = "lease_duration")]
    pub(super) lease: Option<Period>,
    pub(super) margin: Option<Period>,
    pub(super) statement_deadline: Option<Period>,
    pub(super) kill_grace: Option<Period>,
    #[serde(alias = "reconnect_grace_s")]
    pub(super) reconnect_grace: Option<Period>,
    #[serde(alias = "check_interval")]
    pub(super) poll: Option<Period>,
    #[serde(alias = "lock_timeout")]
    pub(super) acquire_timeout: Option<Period>,
    pub(super) stale_after: Option<Period>,
    pub(super) channel: Option<String>,
    pub(super) lock_only: Option<bool>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Role {
    pub(super) name: Option<String>,
    pub(super) key: Option<Key>,
    pub(super) key1: Option<i32>,
    pub(super) key2: Option<i32>,
    pub(super) policy: Option<TakeoverPolicy>,
    pub(super) priority: Option<i32>,
    pub(super) candidate: Option<bool>,
    pub(super) preempt: Option<bool>,
    pub(super) auto_reacquire: Option<bool>,
    pub(super) cool_down: Option<Period>,
    pub(super) drain_limit: Option<Period>,
}

/// A key: a number, or text such as `"0x2a"` or `"1,100"`.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged, expecting = "an integer, or a string such as \"0x2a\" or \"1,100\"")]
pub(super) enum Key {
    Number(i64),
    Text(String),
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Retry {
    #[serde(alias = "retry_strategy")]
    pub(super) strategy: Option<Strategy>,
    #[serde(alias = "base_s")]
    pub(super) base: Option<Period>,
    #[serde(alias = "max_s")]
    pub(super) max: Option<Period>,
    pub(super) multiplier: Option<f64>,
    pub(super) jitter: Option<f64>,
    #[serde(alias = "interval_s")]
    pub(super) interval: Option<Period>,
}

/// The strategies by our short names and by the class names of pgleaderlock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Strategy {
    #[serde(alias = "ExponentialBackoff")]
    Exponential,
    #[serde(alias = "FixedInterval")]
    Fixed,
    #[serde(alias = "DecorrelatedJitter")]
    Jitter,
}

impl Written {
    /// Reads a TOML file.
    pub(super) fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        Self::from_toml(&text, path)
    }

    /// Reads TOML text; `file` is what errors call it.
    pub(super) fn from_toml(text: &str, file: &Path) -> Result<Self, ConfigError> {
        let bad = |error: &toml::de::Error, path: String| ConfigError::File {
            file: file.to_owned(),
            line: before(text, error).map(|before| 1 + before.matches('\n').count()),
            column: before(text, error)
                .map(|before| 1 + before.chars().rev().take_while(|c| *c != '\n').count()),
            message: explained(without_values(error.message()), &path),
            path,
        };
        let deserializer = toml::Deserializer::parse(text).map_err(|e| bad(&e, String::new()))?;
        let mut written: Self =
            serde_path_to_error::deserialize(deserializer).map_err(|error| {
                let path = error.path().to_string();
                bad(error.inner(), if path == "." { String::new() } else { path })
            })?;
        if let Some(cluster) = written.cluster.take() {
            // In a file of its own [member] wins where both speak: it is the newer name.
            let member = std::mem::replace(&mut written.member, cluster.leader_election);
            written.member.overlay(member);
        }
        Ok(written)
    }

    /// Lets `later` win, field by field; roles are matched by name.
    pub(super) fn overlay(&mut self, later: Self) {
        overlay!(
            self.database,
            later.database,
            dsn,
            application_dsn,
            embedded,
            tls_insecure,
            tls_ca_file,
        );
        self.member.overlay(later.member);
        overlay!(self.retry, later.retry, strategy, base, max, multiplier, jitter, interval);
        // Within one source a name that comes twice stays twice, and is refused later.
        let earlier_roles = self.role.len();
        for role in later.role {
            // Roles without a name are told apart by their keys: they are never the same.
            let same = |earlier: &&mut Role| role.name.is_some() && earlier.name == role.name;
            match self.role[..earlier_roles].iter_mut().find(same) {
                Some(earlier) => earlier.overlay(role),
                None => self.role.push(role),
            }
        }
    }
}

impl Member {
    fn overlay(&mut self, later: Self) {
        overlay!(
            self,
            later,
            scope,
            instance,
            enabled,
            heartbeat,
            lease,
            margin,
            statement_deadline,
            kill_grace,
            reconnect_grace,
            poll,
            acquire_timeout,
            stale_after,
            channel,
            lock_only,
        );
    }
}

impl Role {
    pub(super) fn overlay(&mut self, later: Self) {
        // A later key replaces an earlier one in whatever form it was given.
        if later.key.is_some() || later.key1.is_some() || later.key2.is_some() {
            (self.key, self.key1, self.key2) = (None, None, None);
        }
        overlay!(
            self,
            later,
            key,
            key1,
            key2,
            policy,
            priority,
            candidate,
            preempt,
            auto_reacquire,
            cool_down,
            drain_limit,
        );
    }
}

fn secret<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Secret>, D::Error> {
    Ok(Some(Secret::new(String::deserialize(deserializer)?)))
}

/// The text before the place that an error is about.
fn before<'a>(text: &'a str, error: &toml::de::Error) -> Option<&'a str> {
    text.get(..error.span()?.start)
}

/// The parser's own words where they name what is expected, else ours.
fn explained(message: String, path: &str) -> String {
    let list = path == "role" && message.contains("expected a sequence");
    let number = message.contains("as i128") || message.contains("as u128");
    if list {
        "a role is written `[[role]]`, with two brackets, once for each role".to_owned()
    } else if number && path.ends_with("key") {
        "a key is an integer of 64 bits, or text such as \"0x2a\" or \"1,100\"".to_owned()
    } else if number {
        "the number is too large".to_owned()
    } else {
        message
    }
}

/// A parser's message without the values it quotes: one of them may be a DSN in the wrong place.
fn without_values(message: &str) -> String {
    let mut kept = String::new();
    let mut inside = false;
    let text = message.trim().replace('\n', " ");
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '"' => {
                if !inside {
                    kept.push_str("\"…\"");
                }
                inside = !inside;
            }
            // Values are quoted the way Rust does it: \" does not end one.
            '\\' if inside => {
                chars.next();
            }
            c if !inside => kept.push(c),
            _ => {}
        }
    }
    kept
}
