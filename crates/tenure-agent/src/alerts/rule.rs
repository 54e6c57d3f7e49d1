//! A rule as validated, the default rules, and rules as Prometheus reads them.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::condition::Condition;

/// How urgent an alert is. A closed set: PagerDuty's words.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// A person must act now.
    Critical,
    /// A person must act soon.
    Error,
    /// A person should look when there is time.
    #[default]
    Warning,
    /// Nothing is to be done.
    Info,
}

impl Severity {
    /// As files and messages have it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Severity::Critical => "critical",
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Info => "info",
        }
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A condition, and what becomes of it when it holds: how urgent it is, and which notifiers are told.
#[derive(Debug, Clone)]
#[must_use]
pub struct Rule {
    name: String,
    condition: Condition,
    hold: Duration,
    severity: Severity,
    notify: Vec<String>,
    summary: Option<String>,
}

impl Rule {
    /// A warning that fires at once, without notifiers. The name is not checked: see [`is_name`].
    pub fn new(name: &str, condition: Condition) -> Self {
        Rule {
            name: name.to_owned(),
            condition,
            hold: Duration::ZERO,
            severity: Severity::default(),
            notify: Vec::new(),
            summary: None,
        }
    }

    /// How long the condition must hold before it fires: the file's `for`. Default: it fires at once.
    pub fn holding(mut self, hold: Duration) -> Self {
        self.hold = hold;
        self
    }

    /// How urgent its alerts are. Default: warning.
    pub fn severe(mut self, severity: Severity) -> Self {
        self.severity = severity;
        self
    }

    /// The names of the notifiers. Default: none, and then an incident is only written down.
    pub fn notifying(mut self, notifiers: Vec<String>) -> Self {
        self.notify = notifiers;
        self
    }

    /// What a person should read first. Default: the rule's name.
    pub fn saying(mut self, summary: Option<String>) -> Self {
        self.summary = summary;
        self
    }

    /// What incidents and messages call it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What is evaluated; each element of the result is an alert.
    #[must_use]
    pub fn condition(&self) -> &Condition {
        &self.condition
    }

    /// How long the condition must hold before it fires: the file's `for`.
    #[must_use]
    pub fn hold(&self) -> Duration {
        self.hold
    }

    /// How urgent its alerts are.
    #[must_use]
    pub fn severity(&self) -> Severity {
        self.severity
    }

    /// The names of the notifiers that are told of its incidents.
    #[must_use]
    pub fn notify(&self) -> &[String] {
        &self.notify
    }

    /// What a person should read first; `None`: the rule's name is.
    #[must_use]
    pub fn summary(&self) -> Option<&str> {
        self.summary.as_deref()
    }
}

/// Whether a rule may be called that: 1 to 100 ASCII letters, digits, `_` and `-`, no digit or `-` first. Prometheus
/// takes it as an alert's name.
#[must_use]
pub fn is_name(name: &str) -> bool {
    let mut chars = name.chars();
    name.len() <= 100
        && chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || "_-".contains(c))
}

/// Name, condition, `for` in seconds, severity, words.
const DEFAULTS: &[(&str, &str, u64, Severity, &str)] = &[
    (
        "no_leader",
        "sum by (role) (tenure_is_leader) == 0 unless on (role) max by (role) (tenure_role_paused) == 1",
        30,
        Severity::Critical,
        "a role has no leader",
    ),
    (
        "two_leaders",
        "sum by (role) (tenure_is_leader) > 1",
        30,
        Severity::Critical,
        "two members act as leader of one role",
    ),
    (
        "audit_violation",
        "max by (role) (tenure_audit_violations) > 0",
        0,
        Severity::Critical,
        "terms of a role break a promise; `tenure audit` tells which",
    ),
    (
        "flapping",
        "sum by (role) (increase(tenure_acquired_total[10m])) > 10",
        0,
        Severity::Warning,
        "a role changes its leader again and again",
    ),
    (
        "late_heartbeat",
        "max by (role) (tenure_leader_stale) == 1 or sum by (role) (increase(tenure_late_total[10m])) > 2",
        10,
        Severity::Warning,
        "a leader's heartbeats are late",
    ),
    (
        "schedule_late",
        "max by (schedule) (tenure_schedule_late_seconds) > 60",
        0,
        Severity::Warning,
        "a schedule did not fire in time",
    ),
    (
        "dead_letters",
        "max by (schedule) (tenure_schedule_dead_letters) > 0",
        0,
        Severity::Warning,
        "runs of a schedule failed for good; `tenure schedule dead` lists them",
    ),
    (
        "transactions_stuck",
        "max by (role) (tenure_tx_oldest_open_seconds) > 900",
        0,
        Severity::Warning,
        "a transaction has been open for a quarter of an hour; `tenure tx list` shows it",
    ),
];

/// The default rules, with those notifiers: no leader, two leaders, a broken promise, flapping, late heartbeats, late
/// schedules, dead letters, stuck transactions. A file has them if `[alerting]` names a notifier.
pub fn defaults(notify: &[String]) -> Vec<Rule> {
    DEFAULTS
        .iter()
        .map(|(name, condition, hold, severity, summary)| {
            let condition = Condition::parse(condition).expect("a test reads every default rule");
            Rule::new(name, condition)
                .holding(Duration::from_secs(*hold))
                .severe(*severity)
                .notifying(notify.to_vec())
                .saying(Some((*summary).to_owned()))
        })
        .collect()
}

/// Rules as a file for Prometheus, with `interval` between two evaluations.
#[must_use]
pub fn export(rules: &[Rule], interval: Duration) -> String {
    // A JSON text is a YAML text.
    let text = |text: &str| serde_json::Value::from(text).to_string();
    let mut out = format!(
        "groups:\n  - name: tenure\n    interval: {}s\n    rules:\n",
        interval.as_secs().max(1)
    );
    for rule in rules {
        out += &format!("      - alert: {}\n", text(rule.name()));
        out += &format!("        expr: {}\n", text(rule.condition().prometheus()));
        if !rule.hold().is_zero() {
            out += &format!("        for: {}ms\n", rule.hold().as_millis());
        }
        out += &format!("        labels: {{severity: {}}}\n", rule.severity());
        if let Some(summary) = rule.summary() {
            // Braces are Prometheus' templates.
            let summary = summary.replace("{{", "{ {");
            out += &format!("        annotations: {{summary: {}}}\n", text(&summary));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_rule_is_read_and_exported() {
        let rules = defaults(&[]);
        assert_eq!(rules.len(), DEFAULTS.len());
        assert!(rules.iter().all(|rule| is_name(rule.name())));
        let text = export(&rules, Duration::from_secs(15));
        assert!(text.contains("alert: \"no_leader\"\n"), "{text}");
        assert!(text.contains("for: 30000ms\n"), "{text}");
    }
}
