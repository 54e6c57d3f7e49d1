//! What travels in a frame.

use serde::{Deserialize, Serialize};

use crate::commit::MemberChange;
use crate::history::{Hash, Record, TxId};
use crate::identity::{Keys, PeerId, Signature};
use crate::message::Message;
use crate::net::{is_address, is_unspecified};

/// Largest frame in bytes, once both sides have proven their identity.
pub(crate) const MAX_FRAME: usize = 4 << 20;
/// Largest frame in bytes before that.
pub(crate) const MAX_GREETING: usize = 1 << 10;
/// Longest namespace in bytes.
pub(crate) const MAX_NAMESPACE: usize = 64;

/// The version of all this, and of the snapshots that it carries. 1 had no TLS of its own; 2 did not say in a snapshot
/// which transactions were rejected.
pub(crate) const VERSION: u16 = 3;

/// The first word of the side that calls.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hello {
    /// What it wants to be: whether it may is decided by the credentials.
    pub(crate) role: Role,
    /// The cluster it belongs to, if it does already.
    pub(crate) cluster: Option<[u8; 16]>,
    /// Its identity, where TLS has proven a certificate instead of the key.
    pub(crate) signed: Option<Signed>,
}

/// The first word of the side that was called.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Welcome {
    /// The cluster it belongs to, if it does already.
    pub(crate) cluster: Option<[u8; 16]>,
    /// Whether every key has every right there.
    pub(crate) open: bool,
    /// Why it does not talk to the caller, if it does not.
    pub(crate) denied: Option<Denied>,
    /// Its identity, where TLS has proven a certificate instead of the key.
    pub(crate) signed: Option<Signed>,
}

/// Why a caller is sent away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Denied {
    /// Its key has not the right.
    NoRight,
    /// It belongs to another cluster.
    OtherCluster,
    /// The node that was called has not joined a cluster yet.
    NoCluster,
    /// There is no place left.
    Full,
}

/// What the other side of a session is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Role {
    /// A node of the group.
    Node,
    /// A program that asks one.
    Client,
}

/// An identity, signed over one TLS session and one side of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Signed {
    pub(crate) id: PeerId,
    pub(crate) signature: Signature,
}

impl Signed {
    pub(crate) fn new(keys: &dyn Keys, exported: &[u8; 32], side: &[u8]) -> Self {
        let id = keys.id();
        Self { id, signature: keys.sign(&Self::text(&id, exported, side)) }
    }

    pub(crate) fn is_genuine(&self, keys: &dyn Keys, exported: &[u8; 32], side: &[u8]) -> bool {
        keys.verify(&self.id, &Self::text(&self.id, exported, side), &self.signature)
    }

    fn text(id: &PeerId, exported: &[u8; 32], side: &[u8]) -> Vec<u8> {
        [b"tenure identity 2".as_slice(), exported, &id.0, side].concat()
    }
}

/// The age of a contact: the node's start, then the microseconds of its clock. Two numbers, so that neither
/// runs into the other however long the node runs or however often it starts.
pub(crate) type Stamp = (u64, u64);

/// Where a node can be reached, signed by the node itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Contact {
    pub(crate) id: PeerId,
    /// `HOST:PORT`.
    pub(crate) address: String,
    /// Later ones replace earlier ones.
    pub(crate) stamp: Stamp,
    pub(crate) signature: Signature,
}

impl Contact {
    /// A contact of the node that `keys` speak for.
    pub(crate) fn new(keys: &dyn Keys, address: String, stamp: Stamp) -> Self {
        let id = keys.id();
        let signature = keys.sign(&Self::text(&id, &address, stamp));
        Self { id, address, stamp, signature }
    }

    /// Whether the node that it names has signed it.
    pub(crate) fn is_genuine(&self, keys: &dyn Keys) -> bool {
        self.address.len() <= 256
            && is_address(&self.address)
            && !is_unspecified(&self.address)
            && keys.verify(
                &self.id,
                &Self::text(&self.id, &self.address, self.stamp),
                &self.signature,
            )
    }

    fn text(id: &PeerId, address: &str, stamp: Stamp) -> Vec<u8> {
        let mut text = b"tenure contact 2".to_vec();
        text.extend_from_slice(&id.0);
        text.extend_from_slice(&stamp.0.to_le_bytes());
        text.extend_from_slice(&stamp.1.to_le_bytes());
        text.extend_from_slice(address.as_bytes());
        text
    }
}

/// The content of a frame.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Envelope {
    /// Between nodes of a namespace.
    Namespace(String, Message),
    /// Where others can be reached.
    Contacts(Vec<Contact>),
    /// A client's question, with a number of its own.
    Ask(u64, Ask),
    /// A node's answer to the question with that number.
    Answer(u64, Answer),
    /// Nothing: the connection is alive.
    Ping,
}

/// What a client asks of a node. Changes of members, step-downs and snapshots, and all that concerns the
/// namespace [`CREDENTIALS`](crate::CREDENTIALS), need the right of an [operator](crate::Right::Operator); the
/// rest, but [`Ask::Redeem`], that of a [client](crate::Right::Client).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the names say it")]
pub enum Ask {
    /// Decide this goal; answered by [`Answer::Record`] when it is, or by [`Answer::Decided`].
    Submit { namespace: String, tx: TxId, goal: Vec<u8> },
    /// How the node stands; answered by [`Answer::Status`].
    Status,
    /// Records of the history, both ends included, at most 256 and 1 MiB; answered by [`Answer::Records`].
    History { namespace: String, from: u64, upto: u64 },
    /// Every record from `from` on (`None`: from now on), as it is applied; each is an [`Answer::Record`],
    /// read with [`Client::next`](crate::Client::next). It ends with a refusal if the records cannot be had
    /// without a hole: a client that reads too slowly is told from where to watch again.
    Watch { namespace: String, from: Option<u64> },
    /// A question to the state as this node has it; answered by [`Answer::State`].
    Read {
        namespace: String,
        /// As the state machine reads it.
        question: Vec<u8>,
    },
    /// A piece of the node's latest snapshot, from `offset` on; answered by [`Answer::Piece`]. See
    /// [`Client::backup`](crate::Client::backup).
    Snapshot { namespace: String, offset: u64 },
    /// Change the members; only the leader can. Answered by [`Answer::Done`] when it is committed.
    Members { namespace: String, change: MemberChange },
    /// Give leadership up; only the leader can. Answered by [`Answer::Done`] when it is given up.
    StepDown { namespace: String },
    /// Which keys are nodes of the cluster; answered by [`Answer::Nodes`].
    Nodes,
    /// Let the key that asks in; the only question of a key without a right. Answered by
    /// [`Answer::Welcome`] when it is committed. See [`Client::redeem`](crate::Client::redeem).
    Redeem {
        /// The invitation's name.
        id: [u8; 16],
        /// Proof that the asker has it, over this session.
        proof: [u8; 32],
    },
}

/// What a node answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Answer {
    /// A record: the goal's, or the next one watched.
    Record(Record),
    /// Records of the history; fewer than asked for if they do not fit, none if there are no more.
    Records(Vec<Record>),
    /// A [`Status`](crate::Status), as JSON.
    Status(String),
    /// What the state says.
    State {
        /// The last record in the state.
        index: u64,
        /// As the state machine writes it.
        bytes: Vec<u8>,
    },
    /// A piece of a snapshot.
    Piece {
        /// The last record in the snapshot; 0 if there is none.
        index: u64,
        /// The hash of all its bytes.
        hash: Hash,
        /// How many bytes there are in all.
        length: u64,
        /// These, from where was asked.
        bytes: Vec<u8>,
    },
    /// The order was carried out; there is nothing more to say.
    Done,
    /// The keys of the cluster's nodes.
    Nodes(Vec<PeerId>),
    /// The key is in.
    Welcome {
        /// Proof that the node knows the invitation, over this session.
        proof: [u8; 32],
        /// The keys of the cluster's nodes.
        nodes: Vec<PeerId>,
    },
    /// It cannot be done, and why. A [`Client`](crate::Client) returns it as an error.
    Refused(String),
    /// The goal was decided before, and this node has its record only as part of a snapshot.
    Decided {
        /// The number of the record.
        index: u64,
        /// Whether the goal was done, and not rejected.
        done: bool,
    },
}

#[cfg(test)]
mod tests;
