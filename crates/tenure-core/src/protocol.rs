//! What a member and its database say to each other: every question, and every answer.
//!
//! One [`Op`] is one round trip. The SQL functions of the same names take its rows as JSON and
//! answer in JSON; whoever carries a round trip out makes a [`Done`] of that.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::key::LockKey;

/// A key as the database's functions take it: for a pair, `key1 << 32 | key2`.
#[derive(Debug, Clone, Copy, Serialize, PartialEq, Eq)]
pub struct Key {
    pub key: i64,
    pub pair: bool,
}

impl From<LockKey> for Key {
    fn from(key: LockKey) -> Self {
        match key {
            LockKey::Big(key) => Key { key, pair: false },
            LockKey::Pair(high, low) => {
                Key { key: i64::from(high) << 32 | i64::from(low as u32), pair: true }
            }
        }
    }
}

#[derive(Debug, Clone, Serialize)]
pub struct RegisterRow {
    pub role: String,
    #[serde(flatten)]
    pub key: Key,
    pub policy: &'static str,
    pub priority: i32,
    pub ready: bool,
    pub observer: bool,
}

#[derive(Debug, Clone, Serialize)]
pub struct ClaimRow {
    pub role: String,
    #[serde(flatten)]
    pub key: Key,
    /// The highest epoch this member ever saw of the role.
    pub seen: i64,
    /// Only this epoch, which was ours, may be taken up again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep: Option<i64>,
    /// Do not stand back for a better candidate any more.
    pub insist: bool,
}

#[derive(Debug, Clone, Serialize)]
pub struct TermRow {
    pub role: String,
    pub epoch: i64,
    #[serde(flatten)]
    pub key: Key,
}

#[derive(Debug, Clone, Serialize)]
pub struct ReleaseRow {
    #[serde(flatten)]
    pub term: TermRow,
    pub clean: bool,
    pub to: Option<String>,
}

/// One round trip.
#[derive(Debug, Clone)]
pub enum Op {
    Register(Vec<RegisterRow>),
    Claim {
        rows: Vec<ClaimRow>,
        /// How long the first role that is held up may wait for its row.
        row_wait: Duration,
    },
    Act(Vec<TermRow>),
    Beat,
    Inspect(Vec<TermRow>),
    Release(Vec<ReleaseRow>),
    Leave,
}

/// What became of it.
#[derive(Debug, Clone)]
pub enum Done {
    Registered(Vec<Registered>),
    Claimed(Vec<Claimed>),
    /// The roles whose `acting` write went through, and those whose row somebody holds up.
    Acting {
        written: Vec<String>,
        blocked: Vec<String>,
    },
    Beaten(Beaten),
    /// The roles that are not ours any more.
    Inspected(Vec<String>),
    /// The roles whose lock was let go.
    Released,
    Left,
}

#[derive(Debug, Clone, Deserialize)]
pub struct Registered {
    pub role: String,
    pub refused: Option<String>,
}

#[derive(Debug, Clone, Deserialize, Default)]
pub struct Claimed {
    pub role: String,
    pub out: String,
    #[serde(default)]
    pub epoch: Option<i64>,
    #[serde(default)]
    pub holder: Option<String>,
    #[serde(default)]
    pub held_by_us: Option<bool>,
    #[serde(default)]
    pub acting: bool,
    #[serde(default)]
    pub debtor: Option<String>,
    #[serde(default)]
    pub debtor_beat: Option<i64>,
    #[serde(default)]
    pub debtor_lease_ms: Option<u64>,
    /// With `yield`: to whom (successor, ready, priority).
    #[serde(default)]
    pub to: Option<String>,
    #[serde(default)]
    pub sqlstate: Option<String>,
    #[serde(default)]
    pub error: Option<String>,
}

/// Another member as a beat shows it: identity, beat, grace in milliseconds.
#[derive(Debug, Clone, Deserialize)]
pub struct Other(pub String, pub i64, pub u64);

#[derive(Debug, Clone, Deserialize)]
pub struct Order {
    pub role: String,
    pub paused: bool,
    pub id: Option<i64>,
    pub to: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
pub struct Beaten {
    pub revoked: i64,
    #[serde(default)]
    pub others: Option<Vec<Other>>,
    #[serde(default)]
    pub orders: Option<Vec<Order>>,
}

/// What a member learns when it takes its seat.
#[derive(Debug, Clone, Deserialize)]
pub struct Seated {
    pub backend_pid: i32,
    #[serde(default)]
    pub revoked: i64,
}

/// The advisory key under which a member lives.
pub fn member_key(identity: &str) -> i64 {
    match LockKey::of_name(&format!("tenure member {identity}")) {
        LockKey::Big(key) => key,
        LockKey::Pair(..) => unreachable!("a name makes a bigint key"),
    }
}

pub fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
