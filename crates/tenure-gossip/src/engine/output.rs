//! What an engine wants done, and what of it is stored.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::commit::{CommitWrite, SnapshotPoint};
use crate::election::{LeaderChange, Rejected};
use crate::history::{Record, TxId};
use crate::identity::PeerId;
use crate::message::Message;

/// What the consensus log says: the bytes of its commands.
#[derive(Serialize, Deserialize)]
#[doc(hidden)]
pub enum Command {
    /// The next record of the history.
    Record(Record),
    /// An operator removed this node: it must not become a member by itself.
    Bar(PeerId),
    /// An operator added it again.
    Admit(PeerId),
    /// The leader's state after record `index`, which precedes this entry in the log. A node that is at
    /// that record and in another state has a damaged one.
    Checkpoint {
        /// The last record in the state.
        index: u64,
        /// Its [`StateMachine::digest`](crate::StateMachine::digest).
        digest: [u8; 32],
    },
}

impl Command {
    /// The bytes as they are proposed.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        postcard::to_stdvec(self).expect("plain data can always be encoded")
    }
}

/// A snapshot as it is stored and sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The last record it covers.
    pub index: u64,
    /// What it replaces of the consensus log, if its maker had one.
    pub point: Option<SnapshotPoint>,
    /// The nodes that were removed, as of that point.
    pub barred: BTreeSet<PeerId>,
    /// The frozen [`Chain`](crate::history::Chain).
    pub chain: Vec<u8>,
}

/// What must be stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Write {
    /// What consensus must find again.
    Commit(CommitWrite),
    /// A record that was applied.
    History(Record),
    /// Drop the history up to this index: a snapshot took its place, and what is served must have no hole.
    Forget(u64),
    /// A snapshot; the log up to its point may be dropped, and all of it if `reset`.
    Snapshot(Arc<Snapshot>, Reset),
}

/// What a snapshot does to the log on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reset {
    /// The log continues after it.
    Keep,
    /// The log does not reach it: drop all of it.
    All,
}

impl Write {
    /// Whether it must survive a crash before the next message leaves. Records need not: they are in
    /// the consensus log, or with the peers.
    #[must_use]
    pub fn is_durable(&self) -> bool {
        match self {
            Self::Commit(_) | Self::Snapshot(..) => true,
            Self::History(_) | Self::Forget(_) => false,
        }
    }
}

/// What a node wants done, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Store.
    Persist(Write),
    /// Send; may be lost.
    Send(PeerId, Message),
    /// `transaction_processed`: the next record is applied. For subscribers.
    Processed(Record),
    /// A goal that was submitted had been decided before, as this record.
    Known(TxId, u64),
    /// A goal that waits here carries the name of another goal, which was decided as this record. It is
    /// not decided, and never will be under this name.
    Conflict(TxId, u64),
    /// Read these records from the history and send them to the peer as [`Message::History`].
    ReadHistory { to: PeerId, from: u64, upto: u64 },
    /// Something to tell the operator.
    Event(Event),
}

/// What an operator may want to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Gossip names another leader.
    HintChanged(LeaderChange),
    /// The committed leader changed; `None`: there is none for now.
    LeaderChanged {
        leader: Option<PeerId>,
        term: u64,
        /// Goals that were waiting for the former one, and are sent on.
        waiting: usize,
    },
    /// A goal went unanswered for the goal timeout; history was asked for.
    GoalTimedOut(TxId),
    /// History was asked for, from this index on, from so many peers.
    HistoryRequested(u64, usize),
    /// A vote was thrown away.
    VoteRejected(PeerId, Rejected),
    /// A snapshot was taken or installed.
    Snapshot {
        /// The last record it covers.
        index: u64,
        /// Whether it came from a peer.
        installed: bool,
    },
    /// A member has forgotten what it acknowledged (its disk was put back to an earlier copy, or a copy
    /// of it runs elsewhere): it is being removed.
    Forgot(PeerId),
    /// This node met a contradiction and applies nothing any more.
    Halted(String),
}
