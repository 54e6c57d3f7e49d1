//! What travels in a frame.

use serde::{Deserialize, Serialize};

use crate::commit::MemberChange;
use crate::history::{Record, TxId};
use crate::identity::{Keys, PeerId, Signature};
use crate::message::Message;
use crate::net::{is_address, is_unspecified};

/// Largest frame in bytes, once both sides have proven their identity.
pub(crate) const MAX_FRAME: usize = 4 << 20;
/// Largest frame in bytes before that.
pub(crate) const MAX_GREETING: usize = 1 << 10;
/// Longest namespace in bytes.
pub(crate) const MAX_NAMESPACE: usize = 64;

/// The first message of either side.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hello {
    /// The version of all this: 1.
    pub(crate) version: u16,
    /// A node of the group, or a client.
    pub(crate) role: Role,
    /// The name of the side that says it.
    pub(crate) id: PeerId,
    /// Never used before.
    pub(crate) nonce: [u8; 32],
    /// The cluster it belongs to, if it does already.
    pub(crate) cluster: Option<[u8; 16]>,
}

/// What the other side of a session is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Role {
    /// A node of the group.
    Node,
    /// A program that asks one.
    Client,
}

/// The second message: proof of the first, over both sides' first messages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Proof {
    /// Signature over the session.
    pub(crate) signature: Signature,
    /// Keyed hash over the session with the cluster's secret.
    pub(crate) mac: [u8; 32],
}

/// Where a node can be reached, signed by the node itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Contact {
    pub(crate) id: PeerId,
    /// `HOST:PORT`.
    pub(crate) address: String,
    /// Later ones replace earlier ones.
    pub(crate) stamp: u64,
    pub(crate) signature: Signature,
}

impl Contact {
    /// A contact of the node that `keys` speak for.
    pub(crate) fn new(keys: &dyn Keys, address: String, stamp: u64) -> Self {
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

    fn text(id: &PeerId, address: &str, stamp: u64) -> Vec<u8> {
        let mut text = b"tenure contact 1".to_vec();
        text.extend_from_slice(&id.0);
        text.extend_from_slice(&stamp.to_le_bytes());
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
    /// A client's question.
    Ask(Ask),
    /// A node's answer to a client.
    Answer(Answer),
    /// Nothing: the connection is alive.
    Ping,
}

/// What a client asks of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the names say it")]
pub enum Ask {
    /// Decide this goal; answered by [`Answer::Record`] when it is.
    Submit { namespace: String, tx: TxId, goal: Vec<u8> },
    /// How the node stands; answered by [`Answer::Status`].
    Status,
    /// Records of the history, both ends included; answered by [`Answer::Records`].
    History { namespace: String, from: u64, upto: u64 },
    /// Every record from now on, as it is applied; each is an [`Answer::Record`], read with
    /// [`Client::next`](crate::Client::next).
    Watch { namespace: String },
    /// A question to the state as this node has it; answered by [`Answer::State`].
    Read {
        namespace: String,
        /// As the state machine reads it.
        question: Vec<u8>,
    },
    /// Change the members; only the leader can. Answered by [`Answer::Done`] when it is committed.
    Members { namespace: String, change: MemberChange },
    /// Give leadership up; only the leader can. Answered by [`Answer::Done`] when it is given up.
    StepDown { namespace: String },
}

/// What a node answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Answer {
    /// A record: the goal's, or the next one watched.
    Record(Record),
    /// Records of the history; fewer than asked for if they do not fit.
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
    /// It is done.
    Done,
    /// It cannot be done, and why. A [`Client`](crate::Client) returns it as an error.
    Refused(String),
}

#[cfg(test)]
mod tests;
