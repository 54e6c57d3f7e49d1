//! What goes into the engine and what comes out.

use tenure_core::clock::Tick;

use super::NonceError;
use crate::chain::{Head, Located, Outcome, Report};
use crate::status::{End, Hash, Note, TransactionStatus};

/// What happens to the engine.
#[derive(Debug, Clone)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Input {
    /// This process leads: `rows` are all open rows, `consumed` is one above the highest nonce
    /// the table knows to be used for good.
    Recovered {
        rows: Vec<OpenTransaction>,
        /// One above the highest nonce whose row ended finalized or usurped.
        consumed: u64,
        /// Ended rows whose end no block has proved yet.
        provisional: Vec<Provisional>,
        head: Head,
    },
    /// This process leads no more.
    Demoted,
    /// A caller's request wants a nonce; answered with the first [`Effect::Build`], or with
    /// [`Effect::Refuse`].
    Requested(Request),
    /// The row with this attempt is committed under our epoch.
    Built { nonce: u64, attempt: Attempt },
    /// The attempt asked for was not stored, for certain.
    BuildFailed {
        nonce: u64,
        /// Why, in one sentence.
        reason: String,
        /// It would cost more than the account pays.
        too_dear: bool,
    },
    /// The node answered a submission, or did not.
    Submitted { nonce: u64, hash: Hash, outcome: Outcome },
    /// A watch reports.
    Status { nonce: u64, hash: Hash, report: Report },
    /// A watch ended without an ended status.
    WatchClosed { nonce: u64, hash: Hash },
    /// The chain was asked where a nonce's attempts are.
    Located { nonce: u64, located: Located },
    /// The chain was asked about a request whose end is provisional.
    Reexamined { nonce: u64, request: String, located: Located },
    /// The chain moved.
    Head(Head),
    /// Some time passed: `now` has moved, and nothing else happened.
    TimePassed,
}

/// What the engine wants done.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Effect {
    /// Sign the content of `nonce` with `tip` and commit the row; answer with `Built` or `BuildFailed`.
    Build {
        nonce: u64,
        /// Which attempt it will be, from 1.
        attempt: u32,
        tip: u128,
        /// A no-op instead of the request, and what permits it.
        noop: Option<Permit>,
    },
    /// Tell the caller that the request got no nonce. Nothing changed.
    Refuse { request: String, error: NonceError },
    /// Forget what `nonce` carried: its first attempt was not stored, and nothing uses it now.
    Free { nonce: u64 },
    /// Send the stored bytes and watch them; answer with `Submitted`, then `Status`, then perhaps `WatchClosed`.
    Submit { nonce: u64, hash: Hash },
    /// Find out which attempt, if any, is in a block; answer with `Located`.
    Locate { nonce: u64, hashes: Vec<Hash> },
    /// Store a status. With an end in its note the duty is over and the entry is gone.
    Record {
        nonce: u64,
        /// Which attempt; the current one, or the older one that won.
        hash: Hash,
        status: TransactionStatus,
        note: Note,
    },
    /// Find out whether a form of a request that has ended is in a final block after all; answer with
    /// `Reexamined`.
    Reexamine { nonce: u64, request: String, hashes: Vec<Hash> },
    /// The chain has proved a provisional end: it is looked at no more.
    Settle { nonce: u64, request: String },
    /// The chain has proved another end than the one that was told: store it, and say so.
    Correct { nonce: u64, request: String, hash: Hash, status: TransactionStatus, note: Note },
}

/// A caller's request, as far as the engine needs to know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Its id, unique in the account.
    pub id: String,
    /// The nonce it was signed for, if the caller signed it.
    pub nonce: Option<u64>,
    /// The tip of the first attempt.
    pub tip: u128,
    /// Whether its content can be signed anew.
    pub resignable: bool,
    /// When it is to be given up, if it is not in a block by then.
    pub deadline: Option<Tick>,
}

/// What permits a no-op in a request's place. A closed set: nothing else ever does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Permit {
    /// Nothing used the nonce.
    Gap,
    /// An operator or the caller dropped the request.
    Drop,
    /// The request's deadline has passed.
    Deadline,
}

/// One signed form of a nonce's content.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Attempt {
    pub hash: Hash,
    #[serde(with = "tip_text")]
    pub tip: u128,
    /// Whether it is a no-op in place of the request.
    #[serde(default)]
    pub noop: bool,
    /// The last block it is valid in, if it is mortal.
    #[serde(default)]
    pub valid_until: Option<u64>,
    /// Of a no-op: what permitted it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permit: Option<Permit>,
    /// The most it pays for each unit of work, tip and the chain's own fee together.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "bid_text")]
    pub bid: Option<u128>,
}

/// As `tip_text`, for a number that may be absent.
mod bid_text {
    use serde::Deserialize as _;

    pub(super) fn serialize<S: serde::Serializer>(
        bid: &Option<u128>,
        s: S,
    ) -> Result<S::Ok, S::Error> {
        match bid {
            Some(bid) => s.collect_str(bid),
            None => s.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: serde::Deserializer<'de>>(
        d: D,
    ) -> Result<Option<u128>, D::Error> {
        let text = Option::<String>::deserialize(d)?;
        text.map(|text| text.parse().map_err(serde::de::Error::custom)).transpose()
    }
}

/// JSON numbers lose tips above 2^53: they travel as text.
mod tip_text {
    use serde::Deserialize as _;

    pub(super) fn serialize<S: serde::Serializer>(tip: &u128, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(tip)
    }

    pub(super) fn deserialize<'de, D: serde::Deserializer<'de>>(d: D) -> Result<u128, D::Error> {
        String::deserialize(d)?.parse().map_err(serde::de::Error::custom)
    }
}

/// An open row, as the store loads it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct OpenTransaction {
    /// The request's id.
    pub request: String,
    pub nonce: u64,
    /// All its signed forms, the current one last. Never empty.
    pub attempts: Vec<Attempt>,
    pub status: TransactionStatus,
    /// Whether the call is stored, so that it can be signed anew.
    pub resignable: bool,
    /// When it is to be given up, if it is not in a block by then.
    pub deadline: Option<Tick>,
    /// An order to drop it was taken before the table was read again, and the table has nothing of it yet.
    pub dropped: bool,
}

/// A request that ended although no block proves it: as one that no node had, or as one whose nonce
/// another transaction used.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Provisional {
    pub request: String,
    pub nonce: u64,
    pub attempts: Vec<Attempt>,
    /// The end that was told.
    pub end: End,
}
