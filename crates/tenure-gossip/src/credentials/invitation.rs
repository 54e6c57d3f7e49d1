//! First contact: 32 random bytes that an operator hands to one new node, operator or client.
//!
//! Both sides prove that they know them, over the TLS session they speak through. The joiner learns that it
//! speaks to the cluster it was invited to, the cluster that the key was invited; a program in between has
//! another TLS session with each side, so neither proof fits.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::{CredentialGoal, Right};
use crate::identity::PeerId;

/// The name of an invitation: it tells nothing of its secret.
pub(crate) type InvitationId = [u8; 16];

const PREFIX: &str = "tenure-invitation-1-";
/// Cluster, right, expiry, secret, check.
const LENGTH: usize = 16 + 1 + 8 + 32 + 4;

/// Lets one key in, once. Any process that has it can use it: hand it over as you would a password.
///
/// An operator makes one, submits its [`Invitation::goal`], and hands its [`Invitation::to_text`] over. The new
/// node has it in [`HostConfig::invitation`](crate::HostConfig::invitation); a new operator or client calls
/// [`Client::redeem`](crate::Client::redeem). Both sides prove over their TLS session that they know its secret:
/// the joiner learns that it speaks to the cluster it was invited to, the cluster that the key was invited.
#[derive(Clone, PartialEq, Eq)]
pub struct Invitation {
    /// The id of the cluster it leads to: [`Client::cluster`](crate::Client::cluster).
    pub cluster: [u8; 16],
    /// What the key that redeems it may do.
    pub right: Right,
    /// Until when it is good, in seconds since 1970.
    pub expires: u64,
    secret: [u8; 32],
}

impl fmt::Debug for Invitation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The secret is never shown.
        write!(f, "Invitation({}, until {})", self.right, self.expires)
    }
}

impl Invitation {
    /// A fresh one, good for `lifetime` from now on by the wall clock, in whole seconds. The cluster does not know
    /// it before its [`Invitation::goal`] is committed.
    #[must_use]
    pub fn new(cluster: [u8; 16], right: Right, lifetime: Duration) -> Self {
        let expires = unix_now().saturating_add(lifetime.as_secs());
        Self { cluster, right, expires, secret: rand::random() }
    }

    /// The goal that makes it known to the cluster.
    #[must_use]
    pub fn goal(&self) -> CredentialGoal {
        let (id, key) = (self.id(), self.key());
        CredentialGoal::Invite {
            id,
            key,
            right: self.right,
            expires: self.expires,
            now: unix_now(),
        }
    }

    pub(crate) fn id(&self) -> InvitationId {
        let whole = blake3::derive_key("tenure gossip 2026 invitation name", &self.secret);
        let mut id = [0; 16];
        id.copy_from_slice(&whole[..16]);
        id
    }

    pub(crate) fn key(&self) -> [u8; 32] {
        blake3::derive_key("tenure gossip 2026 invitation key", &self.secret)
    }

    /// As it is handed over: one word.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut bytes = self.cluster.to_vec();
        bytes.push(self.right as u8);
        bytes.extend(self.expires.to_be_bytes());
        bytes.extend(self.secret);
        bytes.extend(&blake3::hash(&bytes).as_bytes()[..4]);
        format!("{PREFIX}{}", hex::encode(bytes))
    }

    /// Reads what [`Invitation::to_text`] wrote; `None` if a character is missing or wrong.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = hex::decode(text.trim().strip_prefix(PREFIX)?).ok()?;
        let (said, check) = bytes.split_last_chunk::<4>()?;
        if bytes.len() != LENGTH || blake3::hash(said).as_bytes()[..4] != *check {
            return None;
        }
        let (cluster, rest) = said.split_first_chunk()?;
        let (right, rest) = rest.split_first()?;
        let (expires, secret) = rest.split_first_chunk()?;
        let right = [Right::Client, Right::Operator, Right::Node]
            .into_iter()
            .find(|known| *known as u8 == *right)?;
        Some(Self {
            cluster: *cluster,
            right,
            expires: u64::from_be_bytes(*expires),
            secret: secret.try_into().ok()?,
        })
    }
}

/// What the joiner `peer` says over a TLS session whose exported secret is `session`.
pub(crate) fn joiner_proof(key: &[u8; 32], session: &[u8; 32], peer: &PeerId) -> blake3::Hash {
    proof(key, b"tenure invitation joiner 1", session, peer)
}

/// What the node `peer` answers.
pub(crate) fn node_proof(key: &[u8; 32], session: &[u8; 32], peer: &PeerId) -> blake3::Hash {
    proof(key, b"tenure invitation node 1", session, peer)
}

fn proof(key: &[u8; 32], side: &[u8], session: &[u8; 32], peer: &PeerId) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new_keyed(key);
    hasher.update(side);
    hasher.update(session);
    hasher.update(&peer.0);
    hasher.finalize()
}

/// Seconds since 1970. It decides on the expiry of invitations, and on nothing that nodes must agree on.
pub(crate) fn unix_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
