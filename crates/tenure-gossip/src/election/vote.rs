//! What nodes tell each other in an election, and what of it is signed.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::identity::{PeerId, Signature};

/// A leader's own sign that it lives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Beacon {
    pub leader: PeerId,
    /// The consensus term it leads, or 0.
    pub term: u64,
    /// For how many validity times it has believed in itself without a break.
    pub reign: u32,
    /// Strictly increasing with every beacon of this leader, also across restarts.
    pub stamp: u64,
    /// The leader's signature over all of the above and the namespace.
    pub signature: Signature,
}

/// `leader_election_info`: what a node tells its neighbours every round.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vote {
    pub voter: PeerId,
    /// Strictly increasing with every vote of this voter.
    pub seq: u64,
    /// The leader voted for. Shared: every node relays the same beacon.
    pub beacon: Arc<Beacon>,
    /// Milliseconds since the beacon was made, as far as the voter knows.
    pub age: u32,
    /// The voter heard of too few others lately, and would like a vote in return.
    pub hungry: bool,
    /// The voter's signature over all of the above and the namespace.
    pub signature: Signature,
}

/// What is signed, laid out on the stack: this runs for every vote of every neighbour.
pub(super) struct Text {
    buf: [u8; 256],
    len: usize,
}

impl Text {
    fn new(domain: &str, namespace: &str) -> Self {
        let mut text = Self { buf: [0; 256], len: 0 };
        text.put(domain.as_bytes());
        // A namespace is at most 64 bytes; its length keeps it apart from what follows.
        text.put(&[namespace.len() as u8]);
        text.put(&namespace.as_bytes()[..namespace.len().min(64)]);
        text
    }

    fn put(&mut self, bytes: &[u8]) {
        self.buf[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.buf[..self.len]
    }
}

pub(super) fn beacon_text(namespace: &str, b: &Beacon) -> Text {
    let mut text = Text::new("tenure beacon 1", namespace);
    text.put(&b.leader.0);
    text.put(&b.term.to_le_bytes());
    text.put(&b.reign.to_le_bytes());
    text.put(&b.stamp.to_le_bytes());
    text
}

pub(super) fn vote_text(namespace: &str, v: &Vote) -> Text {
    let mut text = Text::new("tenure vote 1", namespace);
    text.put(&v.voter.0);
    text.put(&v.seq.to_le_bytes());
    text.put(&v.age.to_le_bytes());
    text.put(&[u8::from(v.hungry)]);
    text.put(&v.beacon.leader.0);
    text.put(&v.beacon.term.to_le_bytes());
    text.put(&v.beacon.stamp.to_le_bytes());
    text
}
