//! The rows of the tables, as far as an answer depends on them.

use std::collections::BTreeMap;

use crate::clock::Tick;
use crate::epoch::Epoch;
use crate::key::{LockKey, RoleName};
use crate::lease::TakeoverPolicy;

use super::SessionId;

/// A line of history.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Lineage {
    /// Zero is the database in which the schema was born; every copy has a number of its own.
    pub copy: u32,
    /// From zero; PostgreSQL counts from one.
    pub timeline: u32,
}

/// What the tables hold. Everything that a crash may take back is in here, and nothing else.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Tables {
    pub members: BTreeMap<String, MemberRow>,
    pub roles: BTreeMap<RoleName, RoleRow>,
    pub candidates: BTreeMap<(RoleName, String), Candidate>,
    /// The highest epoch of each role that `tenure.term` knows; a deleted row does not take it along.
    pub terms: BTreeMap<RoleName, Epoch>,
}

/// A row of `tenure.member`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of the columns")]
pub struct MemberRow {
    pub session: SessionId,
    pub beat: i64,
    pub revoked: i64,
    pub lease_ms: u64,
    pub grace_ms: u64,
    pub incarnation: String,
    pub seen_at: Tick,
    pub left_at: Option<Tick>,
}

/// A row of `tenure.role`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of the columns")]
pub struct RoleRow {
    pub key: LockKey,
    pub policy: TakeoverPolicy,
    pub lease_ms: u64,
    pub epoch: Epoch,
    /// Where the epoch was last raised; none: never.
    pub lineage: Option<Lineage>,
    pub holder: Option<String>,
    pub held_in: Option<String>,
    pub last_holder: Option<String>,
    pub debtor: Option<String>,
    pub debtor_lease_ms: Option<u64>,
    pub acted_in: Option<String>,
    pub paid_in: Option<String>,
    pub waited_for: Option<String>,
    pub waited_ms: u64,
    /// The successor, and until when it has a head start.
    pub successor: Option<(String, Tick)>,
    pub paused: bool,
    /// The number of a step-down that was ordered, and to which member.
    pub order: Option<(i64, Option<String>)>,
}

/// A row of `tenure.candidate`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of the columns")]
pub struct Candidate {
    pub priority: i32,
    pub ready: bool,
    pub observer: bool,
}
