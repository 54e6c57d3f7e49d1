//! How a node stands: what `status` shows.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{Driver, now};
use crate::commit::Commit as _;
use crate::identity::PeerId;
use crate::machine::StateMachine;

/// How a node stands. Nodes are named by their whole key in hexadecimal.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the names say it")]
pub struct Status {
    pub id: String,
    pub address: String,
    /// Nodes connected to it.
    pub connected: Vec<String>,
    pub namespaces: Vec<NamespaceStatus>,
}

/// How a namespace stands on a node.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the names say it")]
pub struct NamespaceStatus {
    pub namespace: String,
    /// The leader that gossip names: a hint.
    pub hint: String,
    /// For how many milliseconds it has been named.
    pub hint_ms: u64,
    /// The committed leader, as far as this node knows.
    pub leader: Option<String>,
    /// Where it is reached, if this node knows.
    pub leader_address: Option<String>,
    /// The consensus term.
    pub term: u64,
    /// Whether this node's gate is open.
    pub acting: bool,
    /// The nodes whose majority decides.
    pub voters: Vec<String>,
    /// The nodes that receive the log without voting.
    pub learners: Vec<String>,
    /// The nodes that an operator removed: they vote again only if an operator adds them.
    pub removed: Vec<String>,
    /// The last record applied.
    pub index: u64,
    /// Its hash.
    pub head: String,
    /// The last committed entry of the consensus log.
    pub commit_index: u64,
    /// Goals waiting here.
    pub pending: usize,
    /// Distinct neighbours in the view.
    pub neighbours: usize,
    /// Changes of the hint since the start.
    pub leader_changes: u64,
    /// Goals that timed out here since the start.
    pub goal_result_timeouts: u64,
    /// Histories asked for since the start.
    pub history_requests: u64,
    /// Votes thrown away since the start, by reason.
    pub votes_rejected: BTreeMap<&'static str, u64>,
    /// Why the node has stopped applying, if it has.
    pub halted: Option<String>,
}

impl<M: StateMachine> Driver<M> {
    pub(crate) fn status(&self) -> Status {
        let at = now();
        let namespaces = self.namespaces.iter().map(|(name, ns)| {
            let engine = &ns.engine;
            let s = engine.commit().status(at);
            let election = engine.gossip().election();
            NamespaceStatus {
                namespace: name.clone(),
                hint: election.leader().to_hex(),
                hint_ms: at.saturating_since(election.since()).as_millis() as u64,
                leader: engine.leader().map(|l| l.to_hex()),
                leader_address: engine.leader().and_then(|l| self.address_of(&l)),
                term: s.term,
                acting: ns.keeper.gate().is_leader(),
                voters: s.members.deciding().iter().map(PeerId::to_hex).collect(),
                learners: s.members.learners.iter().map(PeerId::to_hex).collect(),
                removed: engine.barred().iter().map(PeerId::to_hex).collect(),
                index: engine.chain().index(),
                head: engine.chain().head().to_hex(),
                commit_index: s.commit_index,
                pending: engine.pending(),
                neighbours: engine.gossip().spray().neighbours().len(),
                leader_changes: ns.changes,
                goal_result_timeouts: ns.timeouts,
                history_requests: ns.requests,
                votes_rejected: election.rejected().iter().map(|(r, n)| (r.name(), *n)).collect(),
                halted: engine.halted().map(ToOwned::to_owned),
            }
        });
        Status {
            id: self.me.to_hex(),
            address: self.address.clone(),
            connected: self.links.keys().map(PeerId::to_hex).collect(),
            namespaces: namespaces.collect(),
        }
    }

    fn address_of(&self, peer: &PeerId) -> Option<String> {
        if *peer == self.me {
            return Some(self.address.clone());
        }
        self.contacts.get(peer).map(|c| c.address.clone())
    }
}
