//! Why an engine cannot start, or does not take a goal.

use crate::history::ChainError;
use crate::message::MAX_GOAL;

/// A goal was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// Too many goals are waiting here.
    #[error(
        "too many goals are waiting on this node; slow down and try again with the same transaction id"
    )]
    Busy,
    /// The goal is longer than 256 KiB.
    #[error("the goal has more than {} bytes; split it", MAX_GOAL)]
    TooLarge,
    /// The transaction id was used for another goal.
    #[error(
        "this transaction id stands for another goal already; leave --tx out, or name a new one, for a new goal"
    )]
    OtherGoal,
    /// The node met a contradiction in its history and applies nothing any more.
    #[error("this node has halted after a contradiction; see its log and give it a fresh store")]
    Halted,
}

/// What was found on disk cannot be continued. Nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Entries of the consensus log are missing.
    #[error("the consensus log on disk has a hole; give this node a fresh folder and join again")]
    Hole,
    /// The state machine does not take its snapshot back.
    #[error(
        "the snapshot on disk cannot be restored ({0}); give this node a fresh folder and join again"
    )]
    Snapshot(String),
    /// The records contradict each other.
    #[error("the history on disk is damaged ({0}); give this node a fresh folder and join again")]
    History(#[from] ChainError),
}
