//! What a member and its database say to each other: every question, and every answer.
//!
//! One [`Op`] is one round trip. The SQL functions of the same names take its rows as JSON and
//! answer in JSON, from which a [`Done`] is read. An answer that does not fit these types is an
//! error, and an error drops the seat: what the server meant is unknown.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::epoch::Epoch;
use crate::key::{LockKey, RoleName};
use crate::lease::TakeoverPolicy;

/// A candidacy, as the database keeps it.
#[derive(Debug, Clone, Serialize)]
pub struct RegisterRow {
    pub role: RoleName,
    #[serde(flatten)]
    pub key: LockKey,
    pub policy: TakeoverPolicy,
    pub priority: i32,
    pub ready: bool,
    pub observer: bool,
    /// The member takes part in the role no more: its candidacy is deleted, and nothing is answered.
    pub withdraw: bool,
}

#[derive(Debug, Clone, Serialize)]
pub struct ClaimRow {
    pub role: RoleName,
    #[serde(flatten)]
    pub key: LockKey,
    /// The highest epoch this member ever saw of the role.
    pub seen: Epoch,
    /// Reclaim: only this epoch, which was ours, may be taken up again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep: Option<Epoch>,
    /// Do not yield to a better candidate any more.
    pub insist: bool,
}

#[derive(Debug, Clone, Serialize)]
pub struct TermRow {
    pub role: RoleName,
    pub epoch: Epoch,
    #[serde(flatten)]
    pub key: LockKey,
}

#[derive(Debug, Clone, Serialize)]
pub struct ReleaseRow {
    #[serde(flatten)]
    pub term: TermRow,
    /// No act was under way when the gate shut: the successor has nothing to wait for.
    pub clean: bool,
    /// The successor that was asked for.
    pub to: Option<String>,
    /// How long a term that never acted waited under the lock, on this member's clock: the next claimant
    /// need not wait that long again for the same debt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waited_ms: Option<u64>,
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
    MarkActing(Vec<TermRow>),
    Beat,
    Inspect(Vec<TermRow>),
    Release(Vec<ReleaseRow>),
    LeaveSeat,
}

/// What became of it.
#[derive(Debug, Clone)]
pub enum Done {
    Registered(Vec<Registered>),
    Claimed(Vec<Claimed>),
    MarkedActing(MarkedActing),
    Beaten(Beaten),
    /// The roles that are not ours any more.
    Inspected(Vec<RoleName>),
    Released,
    LeftSeat,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Registered {
    pub role: RoleName,
    pub refused: Option<RegisterRefusal>,
}

/// Why the database did not take a candidacy.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, thiserror::Error)]
#[serde(tag = "because", rename_all = "snake_case")]
#[non_exhaustive]
pub enum RegisterRefusal {
    /// Another role has the same lock key.
    #[error("its lock key is already used by role {with}; give one of them another key")]
    Collision { with: RoleName },
    /// The group knows the role with another lock key.
    #[error("the group knows it with lock key {known}; use the same key everywhere")]
    Key {
        #[serde(flatten)]
        known: LockKey,
    },
    /// The group knows the role with another policy.
    #[error("the group knows it with policy {known}; use the same policy everywhere")]
    Policy { known: TakeoverPolicy },
    /// Tenure never uses more than a quarter of the server's lock table.
    #[error(
        "the group has {room} roles already, a quarter of the server's lock table; raise \
         max_locks_per_transaction"
    )]
    Locks { room: i64 },
    /// A member without tables would not see what members with tables do, and they not what it does.
    #[error(
        "members with tables use its lock key, and a lock-only member beside them would lead at the same \
         time; take part without lock-only, or use another key"
    )]
    Tables,
    /// A member without tables cannot see whether members with tables use its lock key.
    #[error(
        "members with tables may use its lock key, and this login role may not see whether they do; \
         `grant usage on schema tenure` and `grant select on tenure.role` to it, or use another database"
    )]
    Unreadable,
    /// Another transaction holds the role's row: nothing happened, try again.
    #[error("another transaction holds the role's row; it is tried again")]
    Blocked,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Claimed {
    pub role: RoleName,
    #[serde(flatten)]
    pub claim: Claim,
}

/// The database's verdict on one claim. Only `Won` and `Kept` hold the role's lock.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(tag = "out", rename_all = "snake_case")]
pub enum Claim {
    /// A new term is ours.
    Won(Won),
    /// The reclaimed term is still ours.
    Kept { epoch: Epoch, holder: Option<String> },
    /// The term that was to be reclaimed is over.
    Moved { epoch: Epoch, holder: Option<String> },
    /// Another session has the lock.
    Held {
        epoch: Option<Epoch>,
        holder: Option<String>,
        /// The row names us as the holder: the session may be an old one of ours.
        held_by_us: Option<bool>,
    },
    /// A better candidate is there.
    Yield { epoch: Epoch, holder: Option<String>, to: Better },
    /// An operator has paused the role.
    Paused { epoch: Epoch, holder: Option<String> },
    /// Another transaction holds the role's row.
    Blocked { epoch: Option<Epoch>, holder: Option<String> },
    /// The database does not know the role, or knows it with another key.
    Unknown,
    /// The claim failed; the database undid it and gave the lock back.
    #[serde(rename = "error")]
    Failed { sqlstate: String, error: String },
}

/// A new term.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(from = "WonRow")]
pub struct Won {
    pub epoch: Epoch,
    /// The member that held the role and never released it.
    pub holder: Option<String>,
    /// What must be waited out before the gate opens; none: it is marked acting already.
    pub debt: Option<Debt>,
}

/// The last member whose gate may still be open, as far as the database knows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Debt {
    pub debtor: Option<String>,
    pub beat: Option<i64>,
    pub lease: Option<Duration>,
    /// How long claimants that gave up have waited for exactly this beat, under the lock.
    pub waited: Duration,
}

/// [`Won`] as the database prints it.
#[derive(Deserialize)]
struct WonRow {
    epoch: Epoch,
    holder: Option<String>,
    acting: bool,
    debtor: Option<String>,
    debtor_beat: Option<i64>,
    debtor_lease_ms: Option<u64>,
    #[serde(default)]
    waited_ms: u64,
}

impl From<WonRow> for Won {
    fn from(row: WonRow) -> Self {
        let debt = Debt {
            debtor: row.debtor,
            beat: row.debtor_beat,
            lease: row.debtor_lease_ms.map(Duration::from_millis),
            waited: Duration::from_millis(row.waited_ms),
        };
        Won { epoch: row.epoch, holder: row.holder, debt: (!row.acting).then_some(debt) }
    }
}

/// What makes another candidate the better one, from the strongest reason to the weakest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Better {
    /// The last leader named it.
    Successor,
    /// It is ready and we are not.
    Ready,
    /// Its priority is higher.
    Priority,
}

impl Claim {
    /// The highest epoch of the role that the answer tells of.
    pub fn epoch(&self) -> Option<Epoch> {
        match self {
            Claim::Won(won) => Some(won.epoch),
            Claim::Kept { epoch, .. }
            | Claim::Moved { epoch, .. }
            | Claim::Yield { epoch, .. }
            | Claim::Paused { epoch, .. } => Some(*epoch),
            Claim::Held { epoch, .. } | Claim::Blocked { epoch, .. } => *epoch,
            Claim::Unknown | Claim::Failed { .. } => None,
        }
    }

    /// The role's holder before this claim, as far as the answer tells.
    pub fn holder(&self) -> Option<&str> {
        match self {
            Claim::Won(Won { holder, .. })
            | Claim::Kept { holder, .. }
            | Claim::Moved { holder, .. }
            | Claim::Held { holder, .. }
            | Claim::Yield { holder, .. }
            | Claim::Paused { holder, .. }
            | Claim::Blocked { holder, .. } => holder.as_deref(),
            Claim::Unknown | Claim::Failed { .. } => None,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct MarkedActing {
    /// The roles that are marked.
    #[serde(rename = "roles")]
    pub marked: Vec<RoleName>,
    /// The roles whose row another transaction holds.
    pub blocked: Vec<RoleName>,
}

/// Another member as a beat shows it: identity, beat, grace in milliseconds.
#[derive(Debug, Clone, Deserialize)]
pub struct Other(pub String, pub i64, pub u64);

/// What an operator wants of a role that this member holds.
#[derive(Debug, Clone, Deserialize)]
pub struct Order {
    pub role: RoleName,
    pub paused: bool,
    pub id: Option<i64>,
    pub to: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
pub struct Beaten {
    pub revoked: i64,
    /// For how many roles the rows name us; none: there are no rows.
    #[serde(default)]
    pub held: Option<i64>,
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

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json, to_value};

    use super::*;

    fn role() -> RoleName {
        RoleName::new("r").expect("a good name")
    }

    #[test]
    fn a_key_is_packed_as_the_server_shows_it() {
        let row = |key| to_value(TermRow { role: role(), epoch: Epoch(7), key }).expect("JSON");
        let big = json!({"role": "r", "epoch": 7, "key": -5, "pair": false});
        assert_eq!(row(LockKey::Big(-5)), big);
        let pair = json!({"role": "r", "epoch": 7, "key": 0x1_0000_0002_i64, "pair": true});
        assert_eq!(row(LockKey::Pair(1, 2)), pair);
        for key in [LockKey::Pair(-1, -1), LockKey::Pair(i32::MIN, i32::MAX), LockKey::Big(-1)] {
            let packed = to_value(key).expect("JSON");
            assert_eq!(from_value::<LockKey>(packed).expect("a key"), key);
        }
    }

    #[test]
    fn each_verdict_is_read_with_what_belongs_to_it() {
        let read = |text| from_value::<Claimed>(text).expect("a verdict").claim;
        let owed = json!({"role": "r", "out": "won", "epoch": 3, "holder": "a", "acting": false,
            "debtor": "a", "debtor_beat": 9, "debtor_lease_ms": 3000, "waited_ms": 700});
        let debt = Debt {
            debtor: Some("a".to_owned()),
            beat: Some(9),
            lease: Some(Duration::from_secs(3)),
            waited: Duration::from_millis(700),
        };
        let won = Won { epoch: Epoch(3), holder: Some("a".to_owned()), debt: Some(debt) };
        assert_eq!(read(owed), Claim::Won(won));
        let paid = json!({"role": "r", "out": "won", "epoch": 3, "holder": null, "acting": true});
        assert_eq!(read(paid), Claim::Won(Won { epoch: Epoch(3), holder: None, debt: None }));
        let held = json!({"role": "r", "out": "held", "epoch": null, "holder": null,
            "held_by_us": null});
        assert_eq!(read(held), Claim::Held { epoch: None, holder: None, held_by_us: None });
        let yields = json!({"role": "r", "out": "yield", "epoch": 1, "to": "ready"});
        let to = Better::Ready;
        assert_eq!(read(yields), Claim::Yield { epoch: Epoch(1), holder: None, to });
        assert_eq!(read(json!({"role": "r", "out": "unknown"})), Claim::Unknown);
    }

    #[test]
    fn a_verdict_that_is_not_known_or_not_whole_is_an_error() {
        for text in [
            json!({"role": "r", "out": "granted", "epoch": 3}),
            json!({"role": "r", "epoch": 3}),
            json!({"role": "r", "out": "won", "epoch": 3}),
            json!({"role": "r", "out": "won", "acting": true}),
            json!({"role": "r", "out": "yield", "epoch": 3, "to": "anyone"}),
            json!({"role": "", "out": "unknown"}),
        ] {
            assert!(from_value::<Claimed>(text.clone()).is_err(), "{text}");
        }
    }

    #[test]
    fn a_refusal_is_read_as_it_is_meant() {
        let read = |text| from_value::<Registered>(text).expect("an answer").refused;
        assert_eq!(read(json!({"role": "r", "refused": null})), None);
        let key = json!({"role": "r", "refused":
            {"because": "key", "key": 0x1_0000_0002_i64, "pair": true}});
        assert_eq!(read(key), Some(RegisterRefusal::Key { known: LockKey::Pair(1, 2) }));
        let odd = json!({"role": "r", "refused": {"because": "weather"}});
        assert!(from_value::<Registered>(odd).is_err());
    }
}
