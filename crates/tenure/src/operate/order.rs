//! Orders: what was written down of them, and why the database will not carry one out.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tenure_core::epoch::Epoch;
use tenure_core::identity::Identity;
use tenure_core::key::RoleName;

use crate::error::TenureError;

/// An order, as it was written down.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[non_exhaustive]
pub struct OrderRecord {
    /// When it was given, by the database's clock.
    pub at: Timestamp,
    /// The role it is about.
    pub role: RoleName,
    /// The member that held the role; of `ready` and `not_ready`, the candidate.
    pub member: Option<Identity>,
    /// The role's epoch.
    pub epoch: Option<Epoch>,
    /// What was ordered.
    pub kind: OrderKind,
    /// The person or program that gave it, and what it changed.
    pub detail: String,
}

/// What was ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum OrderKind {
    /// The leader was to hand the role over.
    StepDown,
    /// No member was to lead the role.
    Pause,
    /// A pause was over.
    Resume,
    /// The sessions that held the lock were ended.
    ForceRelease,
    /// The lease that successors wait out was lowered.
    LowerLease,
    /// The role's policy, key or lease was changed.
    Alter,
    /// The role was deleted.
    Forget,
    /// A schedule of the role was to run now.
    RunSchedule,
    /// A kind that only a newer version knows.
    #[serde(other)]
    Unknown,
}

impl OrderKind {
    /// Its name, as the database and JSON have it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            OrderKind::StepDown => "step_down",
            OrderKind::Pause => "pause",
            OrderKind::Resume => "resume",
            OrderKind::ForceRelease => "force_release",
            OrderKind::LowerLease => "lower_lease",
            OrderKind::Alter => "alter",
            OrderKind::Forget => "forget",
            OrderKind::RunSchedule => "run_schedule",
            OrderKind::Unknown => "unknown",
        }
    }
}

impl fmt::Display for OrderKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why the database will not carry an order out; `error` in the answers of `sql/0006_operate.sql`. One that is not
/// known is an answer that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum OrderRefusal {
    UnknownRole,
    NoLeader,
    UnknownMember,
    NotSettled,
    NoMember,
    AlreadyLeader,
    AnotherEpoch,
    NotPaused,
    Candidates,
    Held,
    KeyHeld,
    Changed,
    Collision,
}

impl OrderRefusal {
    /// The refusal of an order about `role`, with the way out.
    pub(super) fn of(self, role: &RoleName) -> TenureError {
        TenureError::Order(match self {
            OrderRefusal::UnknownRole => return TenureError::NoSuchRole(role.clone()),
            OrderRefusal::NoLeader => return TenureError::NoLeader(role.clone()),
            OrderRefusal::UnknownMember => return TenureError::NoSuchMember(role.clone()),
            OrderRefusal::NotSettled => format!(
                "no member has led role {role} since the database was started, so an earlier \
                 leader's lease may still run; try again when it has a leader"
            ),
            OrderRefusal::NoMember => format!(
                "no member takes part in role {role}, so that there is no lease to come down to; \
                 `tenure alter --role {role} --lease 3s` sets one"
            ),
            OrderRefusal::AlreadyLeader => format!("that member leads role {role} already"),
            OrderRefusal::AnotherEpoch => {
                format!("role {role} has changed its leader since; look at it again, then order")
            }
            OrderRefusal::NotPaused => {
                format!("role {role} is not paused; run `tenure pause --role {role}` first")
            }
            OrderRefusal::Candidates => format!(
                "members still take part in role {role}; stop them first, `tenure status` lists them"
            ),
            OrderRefusal::Held => {
                format!("a session holds the lock of role {role}; `tenure status` names it")
            }
            OrderRefusal::KeyHeld => format!(
                "a session holds the new lock key of role {role}; end it, or choose another key"
            ),
            OrderRefusal::Changed => format!(
                "role {role} changed while its last lease was waited out; nothing was done, try again"
            ),
            OrderRefusal::Collision => {
                format!("another role has that lock key already; give role {role} another one")
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_written_as_it_is_told() {
        let kinds =
            ["step_down", "pause", "resume", "force_release", "lower_lease", "alter", "forget"];
        for name in kinds.into_iter().chain(["run_schedule"]) {
            let kind: OrderKind = serde_json::from_value(name.into()).unwrap();
            assert_eq!(kind.as_str(), name);
            assert_eq!(serde_json::to_value(kind).unwrap(), name);
        }
        let newer: OrderKind = serde_json::from_value("weather".into()).unwrap();
        assert_eq!(newer, OrderKind::Unknown);
    }
}
