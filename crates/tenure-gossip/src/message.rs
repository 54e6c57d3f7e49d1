//! Everything one node of a namespace says to another.

use serde::{Deserialize, Serialize};

use crate::commit::ConsensusMessage;
use crate::election::Vote;
use crate::history::{Hash, Record, TxId};
use crate::spray::SprayMessage;

/// Longest goal in bytes.
pub const MAX_GOAL: usize = 256 << 10;
/// Longest diff in bytes. A goal whose diff is longer is rejected: a record must fit into a frame, or
/// it could never reach another node.
pub const MAX_DIFF: usize = 1 << 20;
/// Longest reason of a rejection in characters; more is cut off.
pub const MAX_REASON: usize = 1 << 10;
/// Records in one `ontology_history`.
pub const MAX_HISTORY_RECORDS: usize = 256;
/// Bytes of records in one `ontology_history`, beyond the first record.
pub const MAX_HISTORY_BYTES: usize = 1 << 20;
/// Bytes in one piece of a snapshot.
pub const SNAPSHOT_PIECE: usize = 256 << 10;

/// A message within a namespace. The names in the comments are the ones that metrics show.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// Peer sampling.
    Spray(SprayMessage),
    /// `leader_election_info`.
    Vote(Vote),
    /// Of the replicated log: votes, entries and their answers.
    Consensus(ConsensusMessage),
    /// The goal, on its way to the leader.
    Goal {
        tx: TxId,
        goal: Vec<u8>,
        /// How many more times it may be passed on.
        hops: u8,
    },
    /// The processed transaction with its diff. Sent only of what is committed.
    Processed(Record),
    /// `ontology_history_request`, both ends included.
    HistoryRequest { from: u64, upto: u64 },
    /// `ontology_history`: committed records in order.
    History {
        records: Vec<Record>,
        /// The last index the sender has applied.
        last: u64,
    },
    /// A snapshot is there to be fetched.
    SnapshotOffer {
        index: u64,
        /// How far into the consensus log it reaches; 0: not at all.
        log: u64,
        length: u64,
        hash: Hash,
    },
    /// Asks for the piece of an offered snapshot that begins at `offset`.
    SnapshotRequest { hash: Hash, offset: u64 },
    /// The bytes that were asked for, from `offset` on.
    SnapshotPiece { hash: Hash, offset: u64, bytes: Vec<u8> },
    /// "I want to receive the log and to vote."
    Enlist,
    /// The leader's answer to a node that has forgotten what it acknowledged: it never votes again.
    Expelled,
}

impl Message {
    /// The name used in metrics.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Spray(_) => "spray",
            Self::Vote(_) => "leader_election_info",
            Self::Consensus(_) => "consensus",
            Self::Goal { .. } => "goal",
            Self::Processed(_) => "transaction_processed",
            Self::HistoryRequest { .. } => "ontology_history_request",
            Self::History { .. } => "ontology_history",
            Self::SnapshotOffer { .. } => "snapshot_offer",
            Self::SnapshotRequest { .. } => "snapshot_request",
            Self::SnapshotPiece { .. } => "snapshot_piece",
            Self::Enlist => "enlist",
            Self::Expelled => "expelled",
        }
    }

    /// Whether it may have been sent by an honest node, as far as sizes go.
    #[must_use]
    pub fn within_limits(&self) -> bool {
        match self {
            Self::Spray(SprayMessage::Exchange(v) | SprayMessage::Answer(v)) => v.len() <= 128,
            Self::Goal { goal, .. } => goal.len() <= MAX_GOAL,
            Self::History { records, .. } => records.len() <= MAX_HISTORY_RECORDS,
            Self::SnapshotPiece { bytes, .. } => bytes.len() <= SNAPSHOT_PIECE,
            Self::HistoryRequest { from, upto } => from <= upto,
            Self::Spray(_)
            | Self::Vote(_)
            | Self::Consensus(_)
            | Self::Processed(_)
            | Self::SnapshotOffer { .. }
            | Self::SnapshotRequest { .. }
            | Self::Enlist
            | Self::Expelled => true,
        }
    }
}
