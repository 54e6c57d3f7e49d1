//! Why a node says no to the application or to a client.

use crate::commit::CommitError;
use crate::credentials::Right;
use crate::engine::SubmitError;
use crate::identity::PeerId;
use crate::storage::StoreError;

/// A node said no. Nothing was changed, unless it says so; each sentence says what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// It does not carry the namespace.
    #[error("this node carries no namespace {0:?}; ask a node that was started with it")]
    NoNamespace(String),
    /// It did not take the goal.
    #[error(transparent)]
    Submit(#[from] SubmitError),
    /// It cannot change the members or step down.
    #[error(transparent)]
    Commit(#[from] CommitError),
    /// The goal was decided before, and its record is not kept as one on this node.
    #[error(
        "decided before, as record {index} ({}), which this node has only as part of a snapshot",
        if *done { "done" } else { "rejected" }
    )]
    OnlyInSnapshot {
        /// The number of the record.
        index: u64,
        /// Whether the goal was done, and not rejected.
        done: bool,
    },
    /// The state machine does not answer the question.
    #[error("{0}")]
    Question(String),
    /// The key that asks has not the right.
    #[error("the key {key} is not {needed} here; an operator grants it: tenure gossip grant {needed} {}", key.to_hex())]
    NoRight {
        /// The key that asked.
        key: PeerId,
        /// What it would have to be.
        needed: Right,
    },
    /// The invitation is not known, was used, or has expired.
    #[error(
        "the invitation is used, expired or unknown; ask an operator for another: tenure gossip invite"
    )]
    Invitation,
    /// As many clients watch the namespace on this node, or catch up there, as it serves.
    #[error("too many watch this node already; watch another")]
    TooManyWatchers,
    /// A watcher did not read for too long; with the first record that it was not sent.
    #[error(
        "records came faster than this client reads them; go on from where it was cut off: tenure gossip watch --from {0}"
    )]
    TooSlow(u64),
    /// Records came as part of a snapshot; with the first and the last of them.
    #[error(
        "records {0} to {1} came to this node as a snapshot and cannot be watched; watch another node: tenure gossip watch --from {0}"
    )]
    Skipped(u64, u64),
    /// The node has halted; with the first record that was not seen.
    #[error(
        "this node has halted, and applies no record any more (`tenure gossip status` says why); watch another node: tenure gossip watch --from {0}"
    )]
    Halted(u64),
    /// The node has heard no leader for long.
    #[error(
        "this node has heard no leader for {seconds} s, so that it may miss records; watch another node: tenure gossip watch --from {from}"
    )]
    CutOff {
        /// For how long.
        seconds: u64,
        /// The first record that was not seen.
        from: u64,
    },
    /// More is being read on this node than it can answer.
    #[error("this node has more to read than it can answer; try again, or ask another")]
    TooManyReads,
    /// Its store cannot be read.
    #[error("this node cannot read its store ({0}); see its log, and ask another")]
    Unreadable(String),
    /// It does not keep the records that are asked for; with the oldest that it keeps.
    #[error(
        "this node keeps no record before {0}: it began with a snapshot, or keeps no more; ask another node, or begin at {0}"
    )]
    Forgotten(u64),
    /// The answer is larger than a frame.
    #[error("the answer does not fit; ask for less")]
    AnswerTooLarge,
}

impl Refusal {
    pub(super) fn unreadable(error: StoreError) -> Self {
        Self::Unreadable(error.to_string())
    }
}
