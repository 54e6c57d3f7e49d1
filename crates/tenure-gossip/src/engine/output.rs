//! What an engine wants done, and what of it is stored.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Barred;
use crate::commit::{CommitWrite, SnapshotPoint};
use crate::election::{LeaderChange, Rejected};
use crate::history::{Chain, Hash, Record, TxId};
use crate::identity::PeerId;
use crate::machine::StateMachine;
use crate::message::Message;

/// What the consensus log says: the bytes of its commands.
#[derive(Serialize, Deserialize)]
#[doc(hidden)]
pub enum Command {
    /// The next record of the history.
    Record(Record),
    /// An operator removed this node: it must not become a member by itself.
    Bar(PeerId),
    /// This node has forgotten what it acknowledged: it can never be a member again.
    Expel(PeerId),
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
    /// The nodes that do not become members by themselves, as of that point.
    pub barred: BTreeMap<PeerId, Barred>,
    /// The frozen [`Chain`](crate::history::Chain).
    pub chain: Vec<u8>,
}

impl Snapshot {
    /// Its bytes and their hash.
    #[must_use]
    pub fn seal(&self) -> Sealed {
        let bytes = postcard::to_stdvec(self).expect("a snapshot can always be encoded");
        let hash = Hash(*blake3::hash(&bytes).as_bytes());
        Sealed { index: self.index, point: self.point.clone(), hash, bytes: Arc::new(bytes) }
    }
}

/// The bytes of a [`Snapshot`], with what must be known of it. Cheap to clone.
#[derive(Clone, PartialEq, Eq)]
pub struct Sealed {
    /// The last record it covers.
    pub index: u64,
    /// What it replaces of the consensus log.
    pub point: Option<SnapshotPoint>,
    /// The hash of the bytes.
    pub hash: Hash,
    /// As they are stored and sent.
    pub bytes: Arc<Vec<u8>>,
}

impl Sealed {
    /// The snapshot in these bytes, which must have this hash; `None` if they are damaged.
    #[must_use]
    pub fn open(hash: Hash, bytes: Vec<u8>) -> Option<(Self, Snapshot)> {
        let whole = *blake3::hash(&bytes).as_bytes() == hash.0;
        let snapshot: Snapshot = whole.then(|| postcard::from_bytes(&bytes).ok())??;
        let (index, point) = (snapshot.index, snapshot.point.clone());
        Some((Self { index, point, hash, bytes: Arc::new(bytes) }, snapshot))
    }

    /// The snapshot that was sealed.
    ///
    /// # Panics
    /// Never: what was sealed or opened can be read.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        postcard::from_bytes(&self.bytes).expect("it was sealed, or opened")
    }
}

impl std::fmt::Debug for Sealed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Sealed({}, {}, {} bytes)", self.index, self.hash, self.bytes.len())
    }
}

/// A snapshot that is due. Making its bytes takes time in proportion to the state: not on the thread
/// that runs the engine.
pub struct Draft<M> {
    pub(super) index: u64,
    pub(super) point: Option<SnapshotPoint>,
    pub(super) barred: BTreeMap<PeerId, Barred>,
    pub(super) chain: Chain<M>,
}

impl<M: StateMachine> Draft<M> {
    /// Makes the bytes.
    #[must_use]
    pub fn seal(self) -> Sealed {
        let Self { index, point, barred, chain } = self;
        Snapshot { index, point, barred, chain: chain.freeze() }.seal()
    }
}

/// A snapshot that a peer sent. To check and read it takes time in proportion to the state: not on the thread
/// that runs the engine.
pub struct Received<M> {
    pub(super) hash: Hash,
    pub(super) bytes: Vec<u8>,
    pub(super) state: PhantomData<fn() -> M>,
}

impl<M: StateMachine> Received<M> {
    /// Checks and reads it; `None` if it is damaged.
    #[must_use]
    pub fn open(self) -> Option<Opened<M>> {
        let (sealed, snapshot) = Sealed::open(self.hash, self.bytes)?;
        let chain = Chain::thaw(&snapshot.chain).ok()?;
        (chain.index() == snapshot.index).then_some(Opened { sealed, snapshot, chain })
    }
}

/// A snapshot that a peer sent, ready to be installed.
pub struct Opened<M> {
    pub(super) sealed: Sealed,
    pub(super) snapshot: Snapshot,
    pub(super) chain: Chain<M>,
}

impl<M> Opened<M> {
    /// What will be stored, if it is installed as it came.
    #[must_use]
    pub fn sealed(&self) -> &Sealed {
        &self.sealed
    }
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
    Snapshot(Sealed, Reset),
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
    /// The records between these two (both included) are part of a snapshot that was installed: they will
    /// not come as [`Output::Processed`]. A subscriber must not go on as if nothing was missing.
    Skipped(u64, u64),
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
    /// This node believes to be a member, and no member that it knows has answered for long.
    Stranded,
    /// This node met a contradiction and applies nothing any more.
    Halted(String),
}
