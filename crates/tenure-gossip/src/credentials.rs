//! What a key may do. Replicated state, like any other: a namespace of its own that every node carries,
//! changed by goals that operators submit.

mod invitation;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use self::invitation::Invitation;
pub(crate) use self::invitation::{InvitationId, joiner_proof, node_proof, unix_now};
use crate::identity::PeerId;
use crate::machine::StateMachine;
use crate::net::wire::MAX_NAMESPACE;

/// The namespace of the credentials: what keys may do, as replicated state that every node carries. It is changed
/// by [`CredentialGoal`], and answers every question with a [`CredentialList`].
pub const CREDENTIALS: &str = "tenure.credentials";
/// Keys with a right, at most: the state stays small enough for one frame's diff and a quick snapshot.
const MAX_KEYS: usize = 16_384;
/// Invitations that are neither redeemed nor expired, at most.
const MAX_INVITATIONS: usize = 1_024;
/// Namespaces that are founded, at most: each costs every voter a log and a share of the heartbeats.
const MAX_NAMESPACES: usize = 256;
/// Voters that a namespace begins with, at most.
const MAX_FIRST_VOTERS: usize = 7;
/// The first byte of a snapshot of this state.
pub(crate) const SNAPSHOT_TAG: u8 = b'C';

/// What a key may do; each right includes the ones before it. A closed set: it is part of the replicated state.
///
/// A key without a right may do one thing: redeem an [`Invitation`]. What a peer claims to be counts for
/// nothing. In an *open* cluster every key has every right; it is founded so on purpose, on loopback or by
/// [`HostConfig::open`](crate::HostConfig::open).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Right {
    /// Submit goals; read, watch and follow the history of the application's namespaces.
    Client,
    /// Also change members, order a step-down, take backups, invite, grant and revoke.
    Operator,
    /// Also be a node: gossip, consensus, records.
    Node,
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // `pad`, so that a list of rights can have columns.
        f.pad(match self {
            Self::Client => "client",
            Self::Operator => "operator",
            Self::Node => "node",
        })
    }
}

/// A change of the credentials: a goal of the namespace [`CREDENTIALS`].
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum CredentialGoal {
    /// The first: the founder, and whether the cluster is open.
    Found {
        /// The node that founds the cluster.
        founder: PeerId,
        /// Whether every key has every right.
        open: bool,
    },
    /// Let one more key in, by an invitation.
    Invite {
        /// The invitation's name.
        id: [u8; 16],
        /// The key that proves it, from both sides.
        key: [u8; 32],
        /// What the new key may do.
        right: Right,
        /// Until when, in seconds since 1970.
        expires: u64,
        /// The time at the operator, in seconds since 1970: invitations that expired by then are forgotten.
        now: u64,
    },
    /// A key has shown an invitation.
    Redeem {
        /// The invitation's name.
        id: [u8; 16],
        /// The key that showed it.
        peer: PeerId,
        /// The time at the node that was shown it, in seconds since 1970.
        now: u64,
    },
    /// Give a known key a right, or another one than it has.
    Grant {
        /// The key.
        peer: PeerId,
        /// What it may do from now on.
        right: Right,
    },
    /// Take every right from a key. Its connections end.
    Revoke {
        /// The key.
        peer: PeerId,
    },
    /// Make an open cluster ask for credentials. Nodes that were granted nothing are shut out.
    Close,
    /// Found a namespace: the nodes that are its first voters carry it from then on. One name is founded once,
    /// because this is decided by consensus.
    Namespace {
        /// What clients call it.
        name: String,
        /// Its first voters.
        voters: BTreeSet<PeerId>,
    },
}

impl fmt::Debug for CredentialGoal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The key of an invitation is never shown.
        match self {
            Self::Found { founder, open } => write!(f, "Found({founder}, open: {open})"),
            Self::Invite { right, expires, .. } => write!(f, "Invite({right}, until {expires})"),
            Self::Redeem { peer, .. } => write!(f, "Redeem({peer})"),
            Self::Grant { peer, right } => write!(f, "Grant({peer}, {right})"),
            Self::Revoke { peer } => write!(f, "Revoke({peer})"),
            Self::Close => f.write_str("Close"),
            Self::Namespace { name, voters } => write!(f, "Namespace({name:?}, {voters:?})"),
        }
    }
}

impl CredentialGoal {
    /// The bytes to submit to the namespace [`CREDENTIALS`].
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        postcard::to_stdvec(self).expect("plain data can always be encoded")
    }

    fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        postcard::from_bytes(bytes).map_err(|_| "not a change of the credentials".to_owned())
    }
}

/// An invitation that was not redeemed yet.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Outstanding {
    key: [u8; 32],
    right: Right,
    expires: u64,
}

#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct State {
    founded: bool,
    open: bool,
    keys: BTreeMap<PeerId, Right>,
    invitations: BTreeMap<InvitationId, Outstanding>,
    /// The namespaces that were founded, with their first voters.
    namespaces: BTreeMap<String, BTreeSet<PeerId>>,
}

/// The credentials of a cluster. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Credentials(Arc<State>);

/// What [`CREDENTIALS`] answers to any question, as JSON.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CredentialList {
    /// Whether every key has every right.
    pub open: bool,
    /// What each key may do.
    pub keys: BTreeMap<PeerId, Right>,
    /// The invitations that were not redeemed: right, and expiry in seconds since 1970.
    pub invitations: Vec<(Right, u64)>,
}

impl Credentials {
    pub(crate) fn is_founded(&self) -> bool {
        self.0.founded
    }

    fn nodes(&self) -> BTreeSet<PeerId> {
        let nodes = self.0.keys.iter().filter(|(_, right)| **right == Right::Node);
        nodes.map(|(peer, _)| *peer).collect()
    }

    /// The namespaces that were founded, with their first voters.
    pub(crate) fn namespaces(&self) -> &BTreeMap<String, BTreeSet<PeerId>> {
        &self.0.namespaces
    }

    /// The key that proves an invitation, if it is good at `now`.
    pub(crate) fn invitation(&self, id: &InvitationId, now: u64) -> Option<[u8; 32]> {
        self.0.invitations.get(id).filter(|i| now < i.expires).map(|i| i.key)
    }

    /// A new generation: the nodes of the former one are none any more, and open invitations, which name the
    /// former cluster, are void.
    pub(crate) fn refound(&mut self, founder: PeerId) {
        let state = Arc::make_mut(&mut self.0);
        state.keys.retain(|_, right| *right != Right::Node);
        state.keys.insert(founder, Right::Node);
        state.invitations.clear();
        state.namespaces.values_mut().for_each(|voters| *voters = BTreeSet::from([founder]));
    }

    fn check(&self, goal: &CredentialGoal) -> Result<(), String> {
        let state = &*self.0;
        if !state.founded && !matches!(goal, CredentialGoal::Found { .. }) {
            return Err("the cluster is being founded; try again in a moment".to_owned());
        }
        let room = |peer: &PeerId| {
            if state.keys.len() < MAX_KEYS || state.keys.contains_key(peer) {
                return Ok(());
            }
            Err(format!("{MAX_KEYS} keys have rights already; revoke some"))
        };
        let last_node = |peer: &PeerId| self.nodes().iter().all(|node| node == peer);
        match goal {
            CredentialGoal::Found { .. } if state.founded => {
                Err("the cluster is founded already".to_owned())
            }
            CredentialGoal::Found { .. } => Ok(()),
            CredentialGoal::Invite { expires, now, .. } => {
                let open = state.invitations.values().filter(|i| *now < i.expires).count();
                if expires <= now {
                    Err("the invitation would be expired already; check the clock".to_owned())
                } else if open >= MAX_INVITATIONS {
                    Err(format!("{MAX_INVITATIONS} invitations are open; let them expire"))
                } else {
                    Ok(())
                }
            }
            CredentialGoal::Redeem { id, peer, now } => {
                room(peer)?;
                match state.invitations.get(id) {
                    Some(found) if *now < found.expires => Ok(()),
                    Some(_) | None => Err("the invitation is used or expired; ask an operator for another: tenure gossip invite".to_owned()),
                }
            }
            CredentialGoal::Grant { peer, right } if *right < Right::Node && last_node(peer) => {
                Err("it is the only node that has the right; grant it to another first".to_owned())
            }
            CredentialGoal::Grant { peer, .. } => room(peer),
            CredentialGoal::Revoke { peer } if last_node(peer) => {
                Err("it is the only node that has the right; grant it to another first".to_owned())
            }
            CredentialGoal::Revoke { peer } if !state.keys.contains_key(peer) => {
                Err("this key has no right".to_owned())
            }
            CredentialGoal::Revoke { .. } => Ok(()),
            CredentialGoal::Close if !state.open => Err("the cluster is not open".to_owned()),
            CredentialGoal::Close => Ok(()),
            CredentialGoal::Namespace { name, voters } => {
                if name.is_empty() || name.len() > MAX_NAMESPACE || name == CREDENTIALS {
                    Err(format!(
                        "a namespace has 1 to {MAX_NAMESPACE} bytes, and is not the cluster's own"
                    ))
                } else if state.namespaces.contains_key(name) {
                    Err(format!("the namespace {name:?} is founded already"))
                } else if state.namespaces.len() >= MAX_NAMESPACES {
                    Err(format!("{MAX_NAMESPACES} namespaces are founded, more are not carried"))
                } else if voters.is_empty() || voters.len() > MAX_FIRST_VOTERS {
                    Err(format!("a namespace begins with 1 to {MAX_FIRST_VOTERS} voters"))
                } else {
                    Ok(())
                }
            }
        }
    }
}

impl StateMachine for Credentials {
    fn initial() -> Self {
        Self::default()
    }

    fn execute(&self, goal: &[u8]) -> Result<Vec<u8>, String> {
        self.check(&CredentialGoal::from_bytes(goal)?)?;
        Ok(goal.to_vec())
    }

    fn apply(&mut self, diff: &[u8]) -> Result<(), String> {
        let goal = CredentialGoal::from_bytes(diff)?;
        let state = Arc::make_mut(&mut self.0);
        match goal {
            CredentialGoal::Found { founder, open } => {
                state.founded = true;
                state.open = open;
                state.keys.insert(founder, Right::Node);
            }
            CredentialGoal::Invite { id, key, right, expires, now } => {
                state.invitations.retain(|_, found| now < found.expires);
                state.invitations.insert(id, Outstanding { key, right, expires });
            }
            CredentialGoal::Redeem { id, peer, .. } => {
                if let Some(found) = state.invitations.remove(&id) {
                    let right = state.keys.entry(peer).or_insert(found.right);
                    *right = found.right.max(*right);
                }
            }
            CredentialGoal::Grant { peer, right } => drop(state.keys.insert(peer, right)),
            CredentialGoal::Revoke { peer } => drop(state.keys.remove(&peer)),
            CredentialGoal::Close => state.open = false,
            CredentialGoal::Namespace { name, voters } => {
                state.namespaces.insert(name, voters);
            }
        }
        Ok(())
    }

    fn query(&self, _: &[u8]) -> Result<Vec<u8>, String> {
        let list = CredentialList {
            open: self.0.open,
            keys: self.0.keys.clone(),
            invitations: self.0.invitations.values().map(|i| (i.right, i.expires)).collect(),
        };
        serde_json::to_vec(&list).map_err(|error| error.to_string())
    }

    fn snapshot(&self) -> Vec<u8> {
        let mut bytes = vec![SNAPSHOT_TAG];
        bytes.extend(postcard::to_stdvec(&*self.0).expect("plain data can always be encoded"));
        bytes
    }

    fn restore(bytes: &[u8]) -> Result<Self, String> {
        let (tag, rest) = bytes.split_first().ok_or("nothing")?;
        if *tag != SNAPSHOT_TAG {
            return Err("not a state of credentials".to_owned());
        }
        postcard::from_bytes(rest).map(|s| Self(Arc::new(s))).map_err(|error| error.to_string())
    }
}

/// What keys may do on this node at the moment. Until the credentials have reached it, a node trusts the
/// nodes that its invitation named, and no other.
#[derive(Clone, Default)]
pub(crate) struct Rights {
    pub(crate) state: Credentials,
    /// The nodes that were named when this node joined.
    pub(crate) pinned: BTreeSet<PeerId>,
    /// Whether this node came to an open cluster.
    pub(crate) open_at_first: bool,
}

impl Rights {
    /// Whether every key has every right.
    pub(crate) fn is_open(&self) -> bool {
        if self.state.is_founded() { self.state.0.open } else { self.open_at_first }
    }

    /// Whether the credentials have reached this node.
    pub(crate) fn is_decided(&self) -> bool {
        self.state.is_founded()
    }

    /// What `peer` may do.
    pub(crate) fn of(&self, peer: &PeerId) -> Option<Right> {
        if self.is_open() {
            Some(Right::Node)
        } else if self.state.is_founded() {
            self.state.0.keys.get(peer).copied()
        } else {
            self.pinned.contains(peer).then_some(Right::Node)
        }
    }

    /// The keys of the cluster's nodes.
    pub(crate) fn nodes(&self) -> BTreeSet<PeerId> {
        if self.state.is_founded() { self.state.nodes() } else { self.pinned.clone() }
    }
}

#[cfg(test)]
mod tests;
