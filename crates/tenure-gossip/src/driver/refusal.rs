//! Why a node says no to the application or to a client.

use crate::commit::CommitError;
use crate::engine::SubmitError;

/// A node said no. Nothing was changed; each sentence says what to do.
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
    /// The goal was decided so long ago that its record is gone.
    #[error(
        "decided before, as record {0}, which this node has only as part of a snapshot; read the state, or ask another node"
    )]
    OnlyInSnapshot(u64),
    /// The state machine does not answer the question.
    #[error("{0}")]
    Question(String),
    /// It has no room for one more.
    #[error("too many watch this node already; watch another")]
    TooManyWatchers,
    /// The answer is larger than a frame.
    #[error("the answer does not fit; ask for less")]
    AnswerTooLarge,
}
