//! The agent's share of the configuration file: what each role's leader runs.
//!
//! ```toml
//! [[command]]                       # lives as long as the term
//! role = "relayer"
//! run = ["relayer", "--fast"]       # or one text, for `sh -c`
//!
//! [[schedule]]
//! name = "nightly"
//! role = "scheduler"
//! cron = "0 3 * * *"                # with seconds in front if wanted, or "@every 10s"
//! timezone = "Europe/Berlin"
//! run = "backup --all"
//!
//! [[shards]]                        # roles importer-0 to importer-7, spread over the members
//! name = "importer"
//! count = 8
//! run = "import"                    # told which by TENURE_SHARD and TENURE_SHARDS
//!
//! [agent]
//! http = "9464"                     # probes and metrics
//!
//! [agent.retention]
//! age = "90d"
//! terms = 10000
//!
//! [page]
//! listen = "127.0.0.1:7007"
//! ```
//!
//! [`alerts::setup`](crate::alerts::setup) has `[alerting]` and `[[alerts]]`. The sections of the election are
//! read by [`tenure::config`]. An error names the file, the line and the column.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use serde::de::IgnoredAny;
use tenure::config::{Config, ConfigError, RoleSpec, parse_period};
use tenure::shards::{MOST, Shards};
use tenure::{RoleName, TenureError};

use crate::alerts::setup::{WrittenAlert, WrittenAlerting};
use crate::alerts::{ALERTS, Alerting};
use crate::commander::Commands;
use crate::definition::{Missed, Overlap, Schedule, ScheduleError};
use crate::page::{LISTEN, PageError, PageOptions};
use crate::retention::{MAINTENANCE, Retention};
use crate::work::Job;

/// What the file says to the agent, as validated.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    pub(crate) commands: Commands,
    pub(crate) jobs: Vec<Job>,
    pub(crate) retention: Option<Retention>,
    pub(crate) shards: Vec<Shards>,
    pub(crate) alerting: Option<Alerting>,
    http: Option<String>,
    page: Option<PageOptions>,
    roles: BTreeSet<String>,
    election: Election,
}

/// The sections of the election as they are written: a running agent does not take them over.
#[derive(Clone, Default, PartialEq)]
struct Election(Vec<(&'static str, Option<toml::Value>)>);

impl fmt::Debug for Election {
    /// A password may be in them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Election")
    }
}

impl Election {
    fn of(text: &str) -> Self {
        let table: toml::Table = toml::from_str(text).unwrap_or_default();
        let sections = ["database", "member", "role", "retry", "cluster"];
        Election(sections.map(|name| (name, table.get(name).cloned())).into())
    }

    /// The sections that differ, as a file has them.
    fn differences(&self, other: &Self) -> impl Iterator<Item = String> {
        let both = self.0.iter().zip(&other.0).filter(|(old, new)| old != new);
        both.map(|((name, _), _)| match *name {
            "role" => "[[role]]".to_owned(),
            "cluster" => "[cluster.leader_election]".to_owned(),
            name => format!("[{name}]"),
        })
    }
}

/// What is wrong with a file, and where: the text names the file, the line and the column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanError {
    file: PathBuf,
    place: Option<(usize, usize)>,
    message: String,
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PlanError { file, place, message } = self;
        match place {
            Some((line, column)) => {
                write!(f, "{} line {line}, column {column}: {message}", file.display())
            }
            None => write!(f, "{}: {message}", file.display()),
        }
    }
}

impl std::error::Error for PlanError {}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Written {
    agent: Agent,
    alerting: WrittenAlerting,
    alerts: Vec<WrittenAlert>,
    page: Option<WrittenPage>,
    command: Vec<WrittenCommand>,
    schedule: Vec<WrittenSchedule>,
    shards: Vec<WrittenShards>,
    /// Sections of the election and of other commands: one file serves them all.
    database: IgnoredAny,
    member: IgnoredAny,
    role: IgnoredAny,
    retry: IgnoredAny,
    cluster: IgnoredAny,
    tx: IgnoredAny,
    gossip: IgnoredAny,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Agent {
    http: Option<String>,
    retention: Keep,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Keep {
    enabled: Option<bool>,
    age: Option<String>,
    terms: Option<u32>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenPage {
    listen: Option<String>,
    tokens: Option<PathBuf>,
    tls_cert: Option<PathBuf>,
    tls_key: Option<PathBuf>,
    #[serde(default)]
    behind_proxy: bool,
    #[serde(default)]
    names: Vec<String>,
    title: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenCommand {
    role: String,
    run: Words,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenShards {
    name: String,
    count: u32,
    run: Words,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenSchedule {
    name: String,
    role: String,
    cron: String,
    run: Words,
    timezone: Option<String>,
    missed: Option<Missed>,
    overlap: Option<Overlap>,
    timeout: Option<String>,
    retries: Option<u32>,
    backoff: Option<String>,
    drain_limit: Option<String>,
}

/// A program and its arguments, or one text for a shell.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "a text for `sh -c`, or a list of a program and its arguments")]
enum Words {
    Shell(String),
    Program(Vec<String>),
}

impl Words {
    fn command(self) -> Option<Vec<String>> {
        match self {
            Words::Shell(text) if text.trim().is_empty() => None,
            Words::Shell(text) => Some(vec!["/bin/sh".to_owned(), "-c".to_owned(), text]),
            Words::Program(words) if words.first().is_none_or(String::is_empty) => None,
            Words::Program(words) => Some(words),
        }
    }
}

impl Plan {
    /// Reads the agent's share of a file's text; `file` is what errors call it, it is not opened. Secrets of
    /// notifiers are found later, by [`Agent::start`](crate::Agent::start).
    ///
    /// # Errors
    /// [`PlanError`], for the first mistake.
    pub fn from_toml(text: &str, file: &Path) -> Result<Self, PlanError> {
        let reader = Reader { text, file };
        let written = reader.read()?;
        let mut plan = Plan { election: Election::of(text), ..Plan::default() };
        plan.http = written.agent.http.map(|text| reader.http(text)).transpose()?;
        plan.page = written.page.map(|page| reader.page(page)).transpose()?;
        plan.retention = reader.retention(written.agent.retention)?;
        if plan.retention.is_some() {
            plan.roles.insert(MAINTENANCE.to_owned());
        }
        plan.alerting = Alerting::validated(written.alerting, written.alerts)
            .map_err(|(path, why)| reader.bad(&path, why))?;
        if plan.alerting.as_ref().is_some_and(|alerting| !alerting.rules().is_empty()) {
            plan.roles.insert(ALERTS.to_owned());
        }
        for (index, command) in written.command.into_iter().enumerate() {
            let at = |field: &str| format!("command[{index}].{field}");
            let role = reader.role(&command.role, &at("role"))?;
            let run = command.run.command().ok_or_else(|| reader.bad(&at("run"), NO_COMMAND))?;
            let role = role.as_str().to_owned();
            if plan.commands.insert(role.clone(), run).is_some() {
                return Err(
                    reader.bad(&at("role"), "a role has one command; give each its own role")
                );
            }
            plan.roles.insert(role);
        }
        for (index, shards) in written.shards.into_iter().enumerate() {
            let at = |field: &str| format!("shards[{index}].{field}");
            if !(1..=MOST).contains(&shards.count) {
                return Err(reader.bad(&at("count"), format!("a set has 1 to {MOST} shards")));
            }
            let run = shards.run.command().ok_or_else(|| reader.bad(&at("run"), NO_COMMAND))?;
            let set = Shards::new(&shards.name, shards.count);
            for role in set.roles() {
                reader.role(&role, &at("name"))?;
                if plan.commands.insert(role.clone(), run.clone()).is_some() {
                    return Err(
                        reader.bad(&at("name"), format!("role {role} has a command already"))
                    );
                }
                plan.roles.insert(role);
            }
            plan.shards.push(set);
        }
        let mut names = BTreeSet::new();
        for (index, schedule) in written.schedule.into_iter().enumerate() {
            if !names.insert(schedule.name.clone()) {
                let at = format!("schedule[{index}].name");
                return Err(reader.bad(&at, "a schedule of that name is there already"));
            }
            let job = reader.schedule(index, schedule)?;
            plan.roles.insert(job.schedule.role().as_str().to_owned());
            plan.jobs.push(job);
        }
        Ok(plan)
    }

    /// The roles that the agent is a candidate for, beside those of the file's `[[role]]`, each with the drain
    /// limit that it needs at least. A role of schedules drains for as long as the longest of them may; the others
    /// have none.
    pub fn roles(&self) -> impl Iterator<Item = (&str, Option<Duration>)> {
        self.roles.iter().map(|role| {
            let jobs = self.jobs.iter().filter(|job| job.schedule.role().as_str() == role);
            (role.as_str(), jobs.map(|job| job.schedule.drain()).max())
        })
    }

    /// Where to serve probes and metrics, if the file says so: a port, or an address or name with one, as written.
    #[must_use]
    pub fn http(&self) -> Option<&str> {
        self.http.as_deref()
    }

    /// Whether the agent needs the schema `tenure_agent`.
    #[must_use]
    pub fn needs_schema(&self) -> bool {
        !self.jobs.is_empty() || self.alerting.is_some()
    }

    /// Whether the files that `[page]` names can be used as they are now: tokens, certificate and key.
    ///
    /// # Errors
    /// [`PlanError`], with the place of the key that names the file.
    pub fn check_page_files(&self, text: &str, file: &Path) -> Result<(), PlanError> {
        let Some(page) = &self.page else { return Ok(()) };
        page.check_files().map_err(|error| {
            let path = match error {
                PageError::Certificate(_) => "page.tls_cert",
                PageError::Key(_) => "page.tls_key",
                _ => "page.tokens",
            };
            Reader { text, file }.bad(path, error)
        })
    }

    /// How to serve the page, if the file says so.
    #[must_use]
    pub fn page(&self) -> Option<&PageOptions> {
        self.page.as_ref()
    }

    /// Whether there is no command, no schedule, no set of shards and no alert. Retention alone does not count.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.commands.is_empty() && self.jobs.is_empty() && self.alerting.is_none()
    }

    /// What the file says about alerts, if it says anything.
    #[must_use]
    pub fn alerting(&self) -> Option<&Alerting> {
        self.alerting.as_ref()
    }

    /// The roles as a configuration takes them; without the drain limits of [`Plan::roles`].
    pub fn specs(&self) -> impl Iterator<Item = RoleSpec> {
        self.roles.iter().map(|role| self.spec(role))
    }

    /// One of the roles as a configuration takes it.
    pub fn spec(&self, role: &str) -> RoleSpec {
        match self.shard(role) {
            Some(_) => Shards::spec(role),
            None => RoleSpec::named(role),
        }
    }

    /// Whether a role is one of a set of shards.
    #[must_use]
    pub fn is_shard(&self, role: &str) -> bool {
        self.shard(role).is_some()
    }

    /// The number of a shard's role, and how many its set has.
    pub(crate) fn shard(&self, role: &str) -> Option<(u32, u32)> {
        self.shards.iter().find_map(|set| Some((set.number(role)?, set.count())))
    }
}

const NO_COMMAND: &str =
    "an empty command; write a text for `sh -c`, or a list of a program and its arguments";

struct Reader<'a> {
    text: &'a str,
    file: &'a Path,
}

impl Reader<'_> {
    fn read(&self) -> Result<Written, PlanError> {
        let said = |error: &toml::de::Error, path: String| {
            let place = error.span().map(|span| position(self.text, span.start));
            let message = error.message().trim().replace('\n', " ");
            let message = if path.is_empty() || path == "." {
                message
            } else {
                format!("`{path}`: {message}")
            };
            PlanError {
                file: self.file.to_owned(),
                place,
                message: format!("{message}; correct the file"),
            }
        };
        let deserializer =
            toml::Deserializer::parse(self.text).map_err(|error| said(&error, String::new()))?;
        serde_path_to_error::deserialize(deserializer)
            .map_err(|error| said(error.inner(), error.path().to_string()))
    }

    fn bad(&self, path: &str, message: impl fmt::Display) -> PlanError {
        PlanError {
            file: self.file.to_owned(),
            place: place_of(self.text, path),
            message: format!("`{path}`: {message}"),
        }
    }

    fn role(&self, name: &str, path: &str) -> Result<RoleName, PlanError> {
        if name.starts_with("tenure:") {
            return Err(
                self.bad(path, "names that begin with `tenure:` are Tenure's own; choose another")
            );
        }
        RoleName::new(name).map_err(|error| self.bad(path, error))
    }

    fn period(&self, text: Option<&str>, path: &str) -> Result<Option<Duration>, PlanError> {
        let Some(text) = text else { return Ok(None) };
        let period = parse_period(text);
        let wrong = || self.bad(path, "a time is written 3s, 10m, 1h 30m or 90d");
        period.ok_or_else(wrong).map(Some)
    }

    fn schedule(&self, index: usize, written: WrittenSchedule) -> Result<Job, PlanError> {
        let at = |field: &str| format!("schedule[{index}].{field}");
        let role = self.role(&written.role, &at("role"))?;
        let run = written.run.command().ok_or_else(|| self.bad(&at("run"), NO_COMMAND))?;
        let timeout = self.period(written.timeout.as_deref(), &at("timeout"))?;
        let backoff = self.period(written.backoff.as_deref(), &at("backoff"))?;
        let drain_limit = self.period(written.drain_limit.as_deref(), &at("drain_limit"))?;
        let build = || -> Result<Schedule, ScheduleError> {
            let mut schedule = Schedule::new(&written.name, role, &written.cron)?
                .missed(written.missed.unwrap_or_default())
                .overlap(written.overlap.unwrap_or_default())
                .retries(written.retries.unwrap_or(0))?;
            if let Some(zone) = &written.timezone {
                schedule = schedule.timezone(zone)?;
            }
            if let Some(timeout) = timeout {
                schedule = schedule.timeout(timeout)?;
            }
            if let Some(backoff) = backoff {
                schedule = schedule.backoff(backoff)?;
            }
            if let Some(limit) = drain_limit {
                schedule = schedule.drain_limit(limit)?;
            }
            Ok(schedule)
        };
        let schedule = build().map_err(|error| self.bad(&at(error.field()), &error))?;
        Ok(Job::program(schedule, run))
    }

    /// A name is looked up when the agent starts.
    fn http(&self, text: String) -> Result<String, PlanError> {
        let is_port = |text: &str| text.parse::<u16>().is_ok();
        let named =
            text.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && is_port(port));
        if named || is_port(&text) {
            return Ok(text);
        }
        Err(self
            .bad("agent.http", "write a port, or an address or name with one, as localhost:9464"))
    }

    fn page(&self, written: WrittenPage) -> Result<PageOptions, PlanError> {
        let text = written.listen.as_deref().unwrap_or(LISTEN);
        let port = text.parse().map(|port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        let listen = port.or_else(|_| text.parse()).map_err(|_| {
            self.bad("page.listen", "write a port, or an address with one, as 127.0.0.1:7007")
        })?;
        let mut page = PageOptions::at(listen);
        page.tls = match (written.tls_cert, written.tls_key) {
            (None, None) => None,
            (Some(cert), Some(key)) => Some((cert, key)),
            (Some(_), None) => {
                return Err(self.bad("page.tls_cert", "a certificate needs its tls_key"));
            }
            (None, Some(_)) => {
                return Err(self.bad("page.tls_key", "a key needs its tls_cert"));
            }
        };
        page.tokens = written.tokens;
        page.behind_proxy = written.behind_proxy;
        page.names = written.names;
        page.title = written.title;
        page.check().map_err(|error| self.bad("page", error))?;
        Ok(page)
    }

    fn retention(&self, keep: Keep) -> Result<Option<Retention>, PlanError> {
        if keep.enabled == Some(false) {
            return Ok(None);
        }
        let mut retention = Retention::default();
        if let Some(age) = self.period(keep.age.as_deref(), "agent.retention.age")? {
            if age < Duration::from_secs(3600) {
                return Err(self.bad("agent.retention.age", "at least 1h is kept"));
            }
            retention.age = age;
        }
        if let Some(terms) = keep.terms {
            if terms < 2 {
                return Err(self.bad("agent.retention.terms", "at least 2 are kept"));
            }
            retention.terms = terms;
        }
        Ok(Some(retention))
    }
}

/// A refused configuration with the place in the file that it is about, where that can be found.
#[must_use]
pub fn placed(error: &ConfigError, text: &str, file: &Path) -> PlanError {
    let paths: Vec<String> = match error {
        ConfigError::Field { field, .. } => vec![field.clone()],
        ConfigError::Dsn { field, .. } => vec![(*field).to_owned()],
        ConfigError::RoleName { index, .. } => vec![format!("role[{index}].name")],
        ConfigError::Key { role, .. } => vec![role_path(text, role, "key")],
        ConfigError::Lease(_) => {
            ["lease", "heartbeat", "kill_grace", "statement_deadline", "margin"]
                .map(|field| format!("member.{field}"))
                .into()
        }
        ConfigError::Identity(_) => vec!["member.scope".to_owned(), "member.instance".to_owned()],
        _ => Vec::new(),
    };
    let found =
        paths.iter().find_map(|path| place_of(text, path).or_else(|| elsewhere(text, path)));
    let place = found.or_else(|| {
        let section = paths.first()?.split('.').next()?;
        place_of(text, section)
    });
    PlanError { file: file.to_owned(), place, message: error.to_string() }
}

/// That a role of a set of shards preempts, with the place in the file that says so.
#[must_use]
pub fn preempts(role: &RoleName, text: &str, file: &Path) -> PlanError {
    let place = place_of(text, &role_path(text, role.as_str(), "preempt"));
    let message = TenureError::ShardPreempts(role.clone()).to_string();
    PlanError { file: file.to_owned(), place, message }
}

/// The path of a field of a role's `[[role]]`; the file's first one if it has none of that name.
fn role_path(text: &str, role: &str, field: &str) -> String {
    let table: toml::Table = toml::from_str(text).unwrap_or_default();
    let roles = table.get("role").and_then(toml::Value::as_array);
    let is_it = |entry: &toml::Value| entry.get("name").and_then(toml::Value::as_str) == Some(role);
    let index = roles.and_then(|roles| roles.iter().position(is_it)).unwrap_or(0);
    format!("role[{index}].{field}")
}

/// The same field under the names of FORGE's own section.
fn elsewhere(text: &str, path: &str) -> Option<(usize, usize)> {
    let field = path.strip_prefix("member.")?;
    let theirs = match field {
        "lease" => "lease_duration",
        "heartbeat" => "refresh_interval",
        "poll" => "check_interval",
        "acquire_timeout" => "lock_timeout",
        other => other,
    };
    [theirs, field]
        .iter()
        .find_map(|name| place_of(text, &format!("cluster.leader_election.{name}")))
}

/// Line and column of a key's value, by its path, such as `schedule[1].cron`.
fn place_of(text: &str, path: &str) -> Option<(usize, usize)> {
    use toml::de::{DeTable, DeValue};
    let root = DeTable::parse(text).ok()?;
    let mut at = root.span().start;
    let mut table: Option<&DeTable<'_>> = Some(root.get_ref());
    for step in path.split('.') {
        let (name, index) = match step.split_once('[') {
            Some((name, index)) => (name, index.trim_end_matches(']').parse::<usize>().ok()),
            None => (step, None),
        };
        let Some((_, value)) = table?.iter().find(|(key, _)| key.get_ref() == name) else {
            // The section is there and the key is not: the section's own place.
            return if index.is_none() && at > 0 { Some(position(text, at)) } else { None };
        };
        let value = match (value.get_ref(), index) {
            (DeValue::Array(list), Some(index)) => list.get(index)?,
            _ => value,
        };
        at = value.span().start;
        table = match value.get_ref() {
            DeValue::Table(inner) => Some(inner),
            _ => None,
        };
    }
    Some(position(text, at))
}

fn position(text: &str, at: usize) -> (usize, usize) {
    let before = text.get(..at).unwrap_or(text);
    let line = 1 + before.matches('\n').count();
    (line, 1 + before.chars().rev().take_while(|c| *c != '\n').count())
}

/// What differs between two plans that a running agent cannot take over.
pub(crate) fn differences(old: &Plan, new: &Plan, config: &Config) -> Vec<String> {
    let mut found = Vec::new();
    let listed =
        |roles: Vec<&String>| roles.into_iter().map(String::as_str).collect::<Vec<_>>().join(", ");
    let has = |role: &&String| config.roles().iter().any(|known| known.name().as_str() == **role);
    let added: Vec<&String> = new.roles.iter().filter(|role| !has(role)).collect();
    if !added.is_empty() {
        found.push(format!("the set of roles ({} are new)", listed(added)));
    }
    let gone: Vec<&String> = old.roles.difference(&new.roles).collect();
    if !gone.is_empty() {
        found.push(format!("the set of roles ({} are led on, without work)", listed(gone)));
    }
    found.extend(old.election.differences(&new.election));
    if old.shards != new.shards {
        found.push("[[shards]]".to_owned());
    }
    if old.alerting.is_some() != new.alerting.is_some() {
        found.push("whether there are alerts".to_owned());
    }
    if old.http != new.http {
        found.push("agent.http".to_owned());
    }
    for (role, drain) in new.roles() {
        let known = config.roles().iter().find(|known| known.name().as_str() == role);
        if known.is_some_and(|known| drain.is_some_and(|drain| drain > known.drain_limit())) {
            found.push(format!("drain_limit of the schedules of {role}"));
        }
    }
    if old.page != new.page {
        found.push("[page]".to_owned());
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        Plan::from_toml(text, Path::new("tenure.toml")).expect_err("refused").to_string()
    }

    #[test]
    fn a_page_is_read_and_an_incomplete_one_is_refused_with_its_place() {
        let read = |text: &str| {
            Plan::from_toml(text, Path::new("tenure.toml")).map(|plan| plan.page().cloned())
        };
        let page = read("[page]\n").expect("it is read").expect("a page");
        assert_eq!(page, PageOptions::at(LISTEN.parse().expect("an address")));
        let page = read("[page]\nlisten = '8000'\ntokens = 't'\n").expect("it is read");
        assert_eq!(page.expect("a page").listen.to_string(), "127.0.0.1:8000");
        for (text, words) in [
            ("[page]\nlisten = 'here'\n", "line 2, column 10: `page.listen`: write a port"),
            ("[page]\nlisten = '0.0.0.0:1'\n", "`page`: the page is not served beyond loopback"),
            ("[page]\ntls_cert = 'c'\n", "`page.tls_cert`: a certificate needs its tls_key"),
            ("[page]\ntls_key = 'k'\n", "`page.tls_key`: a key needs its tls_cert"),
            ("[page]\nbehind_proxy = true\n", "needs a token"),
            ("[page]\ntoken = 't'\n", "unknown field `token`"),
        ] {
            let error = refused(text);
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    #[test]
    fn a_plan_is_read_and_other_sections_are_left_to_others() {
        let text = "[database]\ndsn = 'postgresql://localhost/app'\n\
            [cluster.leader_election]\nlease_duration = '60s'\n\
            [[command]]\nrole = 'relayer'\nrun = ['relayer', '--fast']\n\
            [[schedule]]\nname = 'nightly'\nrole = 'scheduler'\ncron = '0 3 * * *'\n\
            timezone = 'Europe/Berlin'\nrun = 'backup --all'\nretries = 2\ndrain_limit = '20m'\n\
            missed = 'run_once'\noverlap = 'queue'\n";
        let plan = Plan::from_toml(text, Path::new("tenure.toml")).expect("valid");
        assert_eq!(plan.commands["relayer"], ["relayer", "--fast"]);
        assert_eq!(plan.jobs.len(), 1);
        let roles: Vec<_> = plan.roles().collect();
        let drain = Some(Duration::from_secs(1200));
        assert_eq!(roles, [("relayer", None), ("scheduler", drain), ("tenure:maintenance", None)]);
    }

    #[test]
    fn an_error_names_file_line_and_column() {
        let error = refused("[agent]\n  htp = '1'\n");
        assert!(error.starts_with("tenure.toml line 2, column 3: "), "{error}");
        let error =
            refused("[[schedule]]\nname = 'a'\nrole = 'r'\nrun = 'x'\ncron = '61 * * * *'\n");
        assert!(error.starts_with("tenure.toml line 5, column 8: `schedule[0].cron`"), "{error}");
        let error = refused(
            "[[schedule]]\nname = 'a'\nrole = 'r'\nrun = 'x'\ncron = '@daily'\ntimezone = 'Mars'\n",
        );
        assert!(
            error.starts_with("tenure.toml line 6, column 12: `schedule[0].timezone`"),
            "{error}"
        );
        let error = refused("[[command]]\nrole = 'tenure:x'\nrun = 'x'\n");
        assert!(error.starts_with("tenure.toml line 2, column 8: `command[0].role`"), "{error}");
        let error = refused("[[command]]\nrole = 'x'\nrun = []\n");
        assert!(error.contains("line 3, column 7"), "{error}");
        let error = refused("[[schedule]]\nname = 'a'\n");
        assert!(error.contains("line 1") && error.contains("missing field"), "{error}");
    }

    #[test]
    fn alerts_are_read_and_a_condition_that_cannot_be_evaluated_is_refused_where_it_stands() {
        let text = "[[alerts]]\nname = 'no_scheduler_leader'\n\
            condition = \"sum(forge_leader_is_leader{role='scheduler'}) == 0\"\n\
            for = '30s'\nseverity = 'critical'\nnotify = ['pagerduty']\n";
        let plan = Plan::from_toml(text, Path::new("forge.toml")).expect("valid");
        let alerting = plan.alerting().expect("alerts");
        assert_eq!(alerting.rules().len(), 1);
        assert!(plan.roles().any(|(role, _)| role == "tenure:alerts"));
        let error = refused(&text.replace("forge_leader_is_leader", "forge_leader_is_lader"));
        assert!(
            error.starts_with(
                "tenure.toml line 3, column 13: `alerts[0].condition`: there is no series"
            ),
            "{error}"
        );
        let error = refused(&text.replace("'pagerduty'", "'pagerduty', 'mail:me'"));
        assert!(
            error.starts_with("tenure.toml line 6, column 24: `alerts[0].notify[1]`"),
            "{error}"
        );
        let error = refused("[alerting]\ndefaults = true\n");
        assert!(error.contains("names no notifier"), "{error}");
        let error = refused(&text.replace("notify = ['pagerduty']\n", ""));
        assert!(
            error.contains("line 2, column 8") && error.contains("names no notifier"),
            "{error}"
        );
        let own = format!(
            "[alerting]\nnotify = ['slack:#ops']\n{}",
            text.replace("no_scheduler_leader", "flapping")
        );
        let plan = Plan::from_toml(&own, Path::new("forge.toml")).expect("valid");
        let rules = plan.alerting().expect("alerts").rules();
        let flapping: Vec<_> = rules.iter().filter(|rule| rule.name() == "flapping").collect();
        assert_eq!(
            (rules.len(), flapping.len()),
            (8, 1),
            "the default rules, one of them the file's own"
        );
        assert_eq!(flapping[0].notify(), ["pagerduty"]);
    }

    #[test]
    fn contradictory_timings_are_placed_where_they_are_written() {
        let text = "[cluster.leader_election]\nrefresh_interval = '60s'\nlease_duration = '10s'\n";
        let error = tenure::config::Config::builder()
            .toml(text, "forge.toml")
            .expect("readable")
            .build()
            .expect_err("contradictory");
        let error = placed(&error, text, Path::new("forge.toml")).to_string();
        assert!(error.starts_with("forge.toml line 3, column 18: "), "{error}");
    }
}
