//! The series that a condition may name: what the tables know of every member.
//!
//! Names are those of the members' own metrics, where there is one, so that a rule means the same here and
//! in Prometheus. FORGE's names stand for ours. What the tables do not know (refused acts, errors, round
//! trips) cannot be evaluated here; Prometheus can.

/// Where the past of a series comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Past {
    /// A counter of terms or events: every evaluation rebuilds its range from the tables.
    Counted,
    /// Follows from the terms: a successor rebuilds the time before its own.
    Terms,
    /// Known only from samples: a successor's range begins with its own first sample.
    Sampled,
}

/// A series that can be evaluated.
#[derive(Debug)]
pub struct KnownSeries {
    /// As a condition writes it.
    pub name: &'static str,
    /// FORGE's name for it.
    pub forge: Option<&'static str>,
    /// The labels that a selector may ask for.
    pub labels: &'static [&'static str],
    /// Where its past comes from.
    pub past: Past,
    /// What it says.
    pub meaning: &'static str,
}

const ROLE: &[&str] = &["role", "instance"];

const fn of_role(
    name: &'static str,
    forge: Option<&'static str>,
    past: Past,
    meaning: &'static str,
) -> KnownSeries {
    KnownSeries { name, forge, labels: ROLE, past, meaning }
}

const fn of_group(
    name: &'static str,
    labels: &'static [&'static str],
    meaning: &'static str,
) -> KnownSeries {
    KnownSeries { name, forge: None, labels, past: Past::Sampled, meaning }
}

/// Every series, as docs/alerts.md lists them.
pub const KNOWN: &[KnownSeries] = &[
    of_role(
        "tenure_is_leader",
        Some("forge_leader_is_leader"),
        Past::Terms,
        "1 for the candidate that acts as leader, 0 for the others; a role without a live candidate has one series, at 0",
    ),
    of_role("tenure_acquired_total", None, Past::Counted, "terms that began to act"),
    of_role("tenure_released_total", None, Past::Counted, "terms that ended as asked for"),
    of_role("tenure_lost_total", None, Past::Counted, "terms that acted and ended otherwise"),
    of_role(
        "tenure_acquire_attempts_total",
        Some("forge_leader_elections_total"),
        Past::Counted,
        "claims that won the lock; one that did not leaves no trace in the tables",
    ),
    of_role(
        "tenure_failovers_total",
        Some("forge_leader_failovers_total"),
        Past::Counted,
        "terms taken over from a holder that had not released",
    ),
    of_role("tenure_late_total", None, Past::Counted, "late heartbeats that agents wrote down"),
    of_role(
        "tenure_tenure_seconds",
        Some("forge_leader_tenure_seconds"),
        Past::Terms,
        "how long the leader's term has lasted; 0 for the others",
    ),
    of_role(
        "tenure_epoch",
        None,
        Past::Sampled,
        "the epoch of the role, for the member that holds it",
    ),
    of_role(
        "tenure_leader_stale",
        None,
        Past::Sampled,
        "1 while the role's holder is silent for longer than its lease",
    ),
    of_group(
        "tenure_heartbeat_age_seconds",
        &["instance"],
        "since the member's last heartbeat, by the database's clock",
    ),
    of_group("tenure_connected", &["instance"], "1 while the member's session is there"),
    of_group("tenure_role_paused", &["role"], "1 while the role is paused by order"),
    of_group(
        "tenure_audit_violations",
        &["role"],
        "pairs among the role's latest 20 terms that break a promise, as `tenure audit` tells them",
    ),
    of_group(
        "tenure_schedule_late_seconds",
        &["schedule", "role"],
        "how long the schedule's next slot has been due",
    ),
    of_group("tenure_schedule_dead_letters", &["schedule", "role"], "slots that failed for good"),
    of_group(
        "tenure_tx_oldest_open_seconds",
        &["role"],
        "age of the oldest open transaction; 0 without one",
    ),
];

/// The series of that name, ours or FORGE's.
#[must_use]
pub fn known(name: &str) -> Option<&'static KnownSeries> {
    KNOWN.iter().find(|known| known.name == name || known.forge == Some(name))
}

/// Whether any series has that label.
#[must_use]
pub fn is_label(label: &str) -> bool {
    KNOWN.iter().any(|known| known.labels.contains(&label))
}
