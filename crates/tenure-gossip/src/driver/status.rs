//! How a node stands: what `status` shows.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Driver, Namespace, now};
use crate::commit::{Commit as _, CommitStatus};
use crate::credentials::CREDENTIALS;
use crate::identity::PeerId;
use crate::machine::StateMachine;
use tenure_core::Tick;

/// How a node stands, as it sees itself and the others. In JSON nodes are named by their whole key in hexadecimal.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the names say it")]
pub struct Status {
    pub id: PeerId,
    pub address: String,
    /// The cluster, in hexadecimal, if the node has joined one.
    pub cluster: Option<String>,
    /// Whether every program that reaches a port of the cluster may do everything.
    pub open: bool,
    /// Nodes connected to it.
    pub connected: Vec<PeerId>,
    pub namespaces: Vec<NamespaceStatus>,
    /// The namespace in which the rights of keys are decided.
    pub credentials: NamespaceStatus,
}

/// How a namespace stands on a node.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the names say it")]
pub struct NamespaceStatus {
    pub namespace: String,
    /// The leader that gossip names: a hint.
    pub hint: PeerId,
    /// For how many milliseconds it has been named.
    pub hint_ms: u64,
    /// The committed leader, as far as this node knows.
    pub leader: Option<PeerId>,
    /// Where it is reached, if this node knows.
    pub leader_address: Option<String>,
    /// The consensus term.
    pub term: u64,
    /// Whether this node's gate is open.
    pub acting: bool,
    /// The nodes whose majority decides.
    pub voters: Vec<PeerId>,
    /// The nodes that receive the log without voting.
    pub learners: Vec<PeerId>,
    /// On the leader: how each other member follows. Empty elsewhere.
    pub followers: Vec<FollowerStatus>,
    /// The nodes that an operator removed: they vote again only if an operator adds them.
    pub removed: Vec<PeerId>,
    /// The oldest record that this node keeps.
    pub oldest: u64,
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
    pub votes_rejected: BTreeMap<String, u64>,
    /// Whether this node believes to be a member, and no member that it knows has answered for half a minute.
    pub stranded: bool,
    /// Why the node has stopped applying, if it has.
    pub halted: Option<String>,
}

/// How a member follows, as its leader sees it.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the names say it")]
pub struct FollowerStatus {
    pub id: PeerId,
    /// Where it is reached, if the leader knows.
    pub address: Option<String>,
    pub voter: bool,
    /// How many milliseconds ago the leader sent the last message that it has answered; without any, how
    /// long the leader leads.
    pub last_contact_ms: u64,
    /// Entries of the consensus log that it is not known to have.
    pub lag: u64,
    /// Whether it has not answered for so long that the group grows no further until it is replaced.
    pub silent: bool,
}

impl<M: StateMachine> Driver<M> {
    pub(crate) fn status(&self) -> Status {
        let at = now();
        let of = |(name, ns): (&String, &Namespace<M>)| {
            let engine = &ns.engine;
            let s = engine.commit().status(at);
            let election = engine.gossip().election();
            NamespaceStatus {
                namespace: name.clone(),
                hint: election.leader(),
                hint_ms: at.saturating_since(election.since()).as_millis() as u64,
                leader: engine.leader(),
                leader_address: engine.leader().and_then(|l| self.address_of(&l)),
                term: s.term,
                acting: ns.keeper.gate().is_leader(),
                voters: s.members.deciding().into_iter().collect(),
                learners: s.members.learners.iter().copied().collect(),
                followers: self.followers(at, ns, &s),
                removed: engine.barred().keys().copied().collect(),
                oldest: engine.oldest(),
                index: engine.chain().index(),
                head: engine.chain().head().to_hex(),
                commit_index: s.commit_index,
                pending: engine.pending(),
                neighbours: engine.gossip().spray().neighbours().len(),
                leader_changes: ns.changes,
                goal_result_timeouts: ns.timeouts,
                history_requests: ns.requests,
                votes_rejected: election
                    .rejected()
                    .iter()
                    .map(|(r, n)| (r.name().to_owned(), *n))
                    .collect(),
                stranded: engine.is_stranded(),
                halted: engine.halted().map(ToOwned::to_owned),
            }
        };
        let application = self.namespaces.iter().filter(|(name, _)| *name != CREDENTIALS);
        let credentials = self.namespaces.get_key_value(CREDENTIALS);
        let cluster = *self.shared.cluster.lock().expect("nothing panics while it is held");
        Status {
            id: self.me,
            address: self.address.clone(),
            cluster: cluster.map(hex::encode),
            open: self.rights.borrow().is_open(),
            connected: self.links.keys().copied().collect(),
            namespaces: application.map(of).collect(),
            credentials: credentials.map(of).expect("every node carries the credentials"),
        }
    }

    fn followers(&self, at: Tick, ns: &Namespace<M>, s: &CommitStatus) -> Vec<FollowerStatus> {
        let others = s.members.all().into_iter().filter(|peer| *peer != self.me);
        let of = |id: PeerId| {
            let contact = ns.engine.commit().contact(&id)?;
            Some(FollowerStatus {
                id,
                address: self.address_of(&id),
                voter: s.members.is_voter(&id),
                last_contact_ms: at.saturating_since(contact).as_millis() as u64,
                lag: s.last_index - ns.engine.commit().progress(&id).unwrap_or(0).min(s.last_index),
                silent: ns.engine.is_silent(at, &id),
            })
        };
        others.filter_map(of).collect()
    }

    fn address_of(&self, peer: &PeerId) -> Option<String> {
        if *peer == self.me {
            return Some(self.address.clone());
        }
        self.contacts.get(peer).map(|c| c.address.clone())
    }
}
