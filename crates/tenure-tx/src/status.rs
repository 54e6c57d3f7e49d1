//! The ten statuses of a transaction, as a pool reports them and as the table stores them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use strum::{Display, EnumDiscriminants, EnumString, IntoStaticStr, VariantArray};

/// A 32-byte hash: of a transaction or of a block.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Hash(pub [u8; 32]);

impl Hash {
    /// Reads a hash from raw bytes.
    ///
    /// # Errors
    /// [`MalformedHash`] unless there are exactly 32 of them.
    pub fn from_slice(bytes: &[u8]) -> Result<Self, MalformedHash> {
        bytes.try_into().map(Hash).map_err(|_| MalformedHash(bytes.len()))
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{}", hex::encode(self.0))
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Hash {
    type Err = MalformedHash;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        unhex(text).map_or(Err(MalformedHash(text.len())), |b| Hash::from_slice(&b))
    }
}

impl Serialize for Hash {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Hash {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// The text or the bytes are not a hash of 32 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "a hash is 32 bytes (64 hex digits after an optional 0x), not {0} units; pass the full hash"
)]
pub struct MalformedHash(usize);

/// Bytes of a hex text with or without `0x`; `None` if it is not one.
#[doc(hidden)]
pub fn unhex(text: &str) -> Option<Vec<u8>> {
    hex::decode(text.strip_prefix("0x").unwrap_or(text)).ok()
}

/// What is known of a transaction, with what each status carries. A closed set: a reader decides for each whether
/// it still waits.
///
/// `Future` is also the status of an *intent*: committed to the table, not yet seen in a pool.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EnumDiscriminants)]
#[strum_discriminants(
    name(State),
    doc = "The name of a status, as stored in the column `state`.",
    derive(PartialOrd, Ord, Hash, Serialize, Deserialize),
    derive(Display, EnumString, IntoStaticStr, VariantArray),
    serde(rename_all = "snake_case"),
    strum(serialize_all = "snake_case"),
    strum(parse_err_ty = UnknownState, parse_err_fn = UnknownState::named),
    allow(missing_docs, reason = "each is the status of the same name")
)]
pub enum TransactionStatus {
    /// Accepted, waiting for an earlier nonce or for its first submission.
    Future,
    /// In the pool, the next of its account or right behind it.
    Ready,
    /// Handed to these peers.
    Broadcast(Vec<String>),
    /// In this block of the best chain.
    InBlock(Hash),
    /// The block that held it left the best chain.
    Retracted(Hash),
    /// In this block, and the block was not finalised in the time the node watches.
    FinalityTimeout(Hash),
    /// In this block, for good.
    Finalized(Hash),
    /// Another transaction took its nonce: that one's hash, if it is known.
    Usurped(Option<Hash>),
    /// A pool no longer holds it. It may still be mined, and is sent again.
    Dropped,
    /// A pool or the chain refused it; the reason, if one was given.
    Invalid(Option<String>),
}

impl State {
    /// The text in the table.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// Whether a pool's watch ends with it. The leader may still owe work: a transaction that a pool
    /// dropped may yet be mined. The duty is over when
    /// [`StoredTransaction::ended`](crate::StoredTransaction::ended) says so.
    #[must_use]
    pub const fn is_ended(self) -> bool {
        match self {
            State::Future | State::Ready | State::Broadcast | State::InBlock | State::Retracted => {
                false
            }
            State::FinalityTimeout
            | State::Finalized
            | State::Usurped
            | State::Dropped
            | State::Invalid => true,
        }
    }
}

/// The table holds a state this version does not know.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown transaction state {0:?}; a newer version wrote this row: upgrade this node")]
pub struct UnknownState(pub String);

impl UnknownState {
    fn named(text: &str) -> Self {
        UnknownState(text.to_owned())
    }
}

impl TransactionStatus {
    /// The name of this status, without what it carries.
    #[must_use]
    pub fn state(&self) -> State {
        State::from(self)
    }

    /// The block it names, if it names one.
    #[must_use]
    pub const fn block(&self) -> Option<Hash> {
        match self {
            TransactionStatus::InBlock(block)
            | TransactionStatus::Retracted(block)
            | TransactionStatus::FinalityTimeout(block)
            | TransactionStatus::Finalized(block) => Some(*block),
            TransactionStatus::Future
            | TransactionStatus::Ready
            | TransactionStatus::Broadcast(_)
            | TransactionStatus::Usurped(_)
            | TransactionStatus::Dropped
            | TransactionStatus::Invalid(_) => None,
        }
    }

    /// The metadata column: what the state and the block hash alone do not say.
    #[must_use]
    pub fn metadata(&self) -> StatusMetadata {
        let mut metadata = StatusMetadata::default();
        match self {
            TransactionStatus::Broadcast(peers) => metadata.peers = Some(peers.clone()),
            TransactionStatus::Usurped(by) => metadata.usurped_by = *by,
            TransactionStatus::Invalid(reason) => metadata.reason = reason.clone(),
            TransactionStatus::Future
            | TransactionStatus::Ready
            | TransactionStatus::InBlock(_)
            | TransactionStatus::Retracted(_)
            | TransactionStatus::FinalityTimeout(_)
            | TransactionStatus::Finalized(_)
            | TransactionStatus::Dropped => {}
        }
        metadata
    }

    /// Rebuilds a status from its stored parts. A missing block hash reads as zero: the
    /// table's check constraint keeps it from being missing.
    #[must_use]
    pub fn from_parts(state: State, block: Option<Hash>, metadata: StatusMetadata) -> Self {
        let hash = block.unwrap_or_default();
        match state {
            State::Future => TransactionStatus::Future,
            State::Ready => TransactionStatus::Ready,
            State::Broadcast => TransactionStatus::Broadcast(metadata.peers.unwrap_or_default()),
            State::InBlock => TransactionStatus::InBlock(hash),
            State::Retracted => TransactionStatus::Retracted(hash),
            State::FinalityTimeout => TransactionStatus::FinalityTimeout(hash),
            State::Finalized => TransactionStatus::Finalized(hash),
            State::Usurped => TransactionStatus::Usurped(metadata.usurped_by),
            State::Dropped => TransactionStatus::Dropped,
            State::Invalid => TransactionStatus::Invalid(metadata.reason),
        }
    }
}

/// How a request ended. A closed set: a caller that pays must know what each of them means for it.
///
/// The first four are proved by a final block. `Withdrawn`, `Refused`, `Usurped`, and `Expired` without a no-op
/// rest on what nodes said: they are provisional until the nonce is final. Should the chain then prove such an
/// end wrong, the row is corrected ([`Note::corrected`]) and every reader hears of it. A caller that asks
/// anew under another id before that may pay twice.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    Serialize,
    Deserialize,
    Display,
    EnumString,
    IntoStaticStr,
    VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum EndKind {
    /// Its own content is in a final block, and succeeded there.
    Executed,
    /// Its own content is in a final block, and the node does not say whether it succeeded there.
    Included,
    /// Its own content is in a final block, and failed there: the fee is paid, nothing else happened.
    Reverted,
    /// A no-op is in a final block in its place, by an order to drop it. It did not execute and never will.
    Replaced,
    /// Dropped by order before any node had it: it did not execute, and its nonce is free. Provisional.
    Withdrawn,
    /// No node took it: it did not execute, and its nonce is free. Provisional.
    Refused,
    /// Its deadline passed first. A no-op is in a final block in its place: it did not execute and never
    /// will. Or no node ever had it: that is provisional.
    Expired,
    /// Another transaction used its nonce, so it did not execute. Provisional.
    Usurped,
}

/// How a request ended, as its caller is told. It is provisional unless the request itself, or the no-op in
/// its place, is in a final block: see [`EndKind`].
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub struct End {
    /// How the request ended.
    pub kind: EndKind,
    /// Why, in words; of a reverted one what the chain gave as its reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The transaction that used the nonce, if one did and it is known: a form of the request, the
    /// no-op, or another program's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash: Option<Hash>,
    /// The block that holds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block: Option<Hash>,
    /// The height of that block.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_number: Option<u64>,
    /// What the account paid for it, in the chain's smallest unit; without what the call itself moved.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "amount_text")]
    pub fee: Option<u128>,
}

impl End {
    /// An end of which nothing more is known.
    #[must_use]
    pub const fn new(kind: EndKind) -> Self {
        End { kind, reason: None, hash: None, block: None, block_number: None, fee: None }
    }

    /// The same end with its reason.
    #[must_use]
    pub fn because(self, reason: impl Into<String>) -> Self {
        End { reason: Some(reason.into()), ..self }
    }
}

/// One sentence for people.
impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.kind {
            EndKind::Executed => "executed",
            EndKind::Included => "included, perhaps without success,",
            EndKind::Reverted => "reverted",
            EndKind::Replaced => "not executed, replaced by a no-op",
            EndKind::Withdrawn => "not executed, withdrawn",
            EndKind::Refused => "not executed, refused",
            EndKind::Expired => "not executed, expired",
            EndKind::Usurped => "not executed, its nonce was used by another transaction",
        };
        f.write_str(what)?;
        if let Some(hash) = self.hash.filter(|_| self.kind == EndKind::Usurped) {
            write!(f, " {hash}")?;
        }
        match (self.block_number, self.block) {
            (Some(number), _) => write!(f, " in block {number}")?,
            (None, Some(block)) => write!(f, " in block {block}")?,
            (None, None) => {}
        }
        if let Some(fee) = self.fee {
            write!(f, " for a fee of {fee}")?;
        }
        match &self.reason {
            Some(reason) => write!(f, ": {reason}"),
            None => Ok(()),
        }
    }
}

/// What is known beside a status.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Note {
    /// The last answer of the chain's node that was not a yes, in its own words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<String>,
    /// The form that the status is about, if it is an older one than the current.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub form: Option<Hash>,
    /// How it ended; `None` while it is open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<Box<End>>,
    /// The end that was told first, if the chain has since proved another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub corrected: Option<Box<End>>,
}

/// JSON numbers lose amounts above 2^53: they travel as text.
mod amount_text {
    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(fee: &Option<u128>, to: S) -> Result<S::Ok, S::Error> {
        match fee {
            Some(fee) => to.collect_str(fee),
            None => to.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<u128>, D::Error> {
        let text = Option::<String>::deserialize(from)?;
        text.map(|text| text.parse().map_err(serde::de::Error::custom)).transpose()
    }
}

/// The column `status_metadata`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusMetadata {
    /// Of `broadcast`: the peers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peers: Option<Vec<String>>,
    /// Of `usurped`: by which transaction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usurped_by: Option<Hash>,
    /// Of `invalid`: why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Of any status.
    #[serde(flatten)]
    pub note: Note,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_survives_the_table() {
        let block = Hash([7; 32]);
        let all = [
            TransactionStatus::Future,
            TransactionStatus::Ready,
            TransactionStatus::Broadcast(vec!["peer".into()]),
            TransactionStatus::InBlock(block),
            TransactionStatus::Retracted(block),
            TransactionStatus::FinalityTimeout(block),
            TransactionStatus::Finalized(block),
            TransactionStatus::Usurped(Some(Hash([9; 32]))),
            TransactionStatus::Dropped,
            TransactionStatus::Invalid(Some("bad signature".into())),
        ];
        for status in all {
            let metadata = serde_json::to_string(&status.metadata()).expect("plain data");
            let state: State = status.state().as_str().parse().expect("a known state");
            let back = TransactionStatus::from_parts(
                state,
                status.block(),
                serde_json::from_str(&metadata).expect("what was just written"),
            );
            assert_eq!(back, status);
        }
    }

    #[test]
    fn an_end_survives_the_table_with_all_its_parts() {
        let end = End {
            hash: Some(Hash([1; 32])),
            block: Some(Hash([2; 32])),
            block_number: Some(7),
            fee: Some(u128::MAX),
            ..End::new(EndKind::Reverted).because("out of gas")
        };
        let note = Note {
            answer: Some("busy".into()),
            form: Some(Hash([3; 32])),
            end: Some(Box::new(end)),
            corrected: Some(Box::new(End::new(EndKind::Refused).because("bad luck"))),
        };
        let metadata = StatusMetadata { note, ..StatusMetadata::default() };
        let text = serde_json::to_string(&metadata).expect("plain data");
        assert_eq!(serde_json::from_str::<StatusMetadata>(&text).expect("just written"), metadata);
        assert_eq!(serde_json::to_string(&StatusMetadata::default()).expect("plain data"), "{}");
    }

    #[test]
    fn an_end_is_told_in_one_sentence() {
        let end = End {
            block: Some(Hash([2; 32])),
            block_number: Some(7),
            fee: Some(21_000),
            ..End::new(EndKind::Reverted).because("out of gas")
        };
        assert_eq!(end.to_string(), "reverted in block 7 for a fee of 21000: out of gas");
        let refused = End::new(EndKind::Refused).because("intrinsic gas too low");
        assert_eq!(refused.to_string(), "not executed, refused: intrinsic gas too low");
        assert_eq!(End::new(EndKind::Executed).to_string(), "executed");
    }

    #[test]
    fn the_ten_names_are_those_of_the_table() {
        let names: Vec<&str> = State::VARIANTS.iter().map(|state| state.as_str()).collect();
        let sql = include_str!("../sql/0001_pending_transactions.sql");
        assert_eq!(names.len(), 10);
        for name in names {
            assert!(sql.contains(&format!("'{name}'")), "{name}");
            let json = serde_json::to_string(&name.parse::<State>().expect("one of them"));
            assert_eq!(json.expect("plain data"), format!("\"{name}\""));
        }
    }

    #[test]
    fn an_unknown_state_is_named_not_guessed() {
        let error = "teleported".parse::<State>().expect_err("no such state");
        assert!(error.to_string().contains("teleported"));
    }

    #[test]
    fn a_hash_round_trips_as_text_and_refuses_other_lengths() {
        let hash = Hash([0xab; 32]);
        assert_eq!(hash.to_string().parse::<Hash>(), Ok(hash));
        assert!("0xabc".parse::<Hash>().is_err());
        assert!("zz".repeat(32).parse::<Hash>().is_err());
    }
}
