//! The nodes that this one is connected to: calls, contacts, and what arrives.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rand::Rng;
use rand::seq::IteratorRandom;
use tenure_core::{ExponentialBackoff, Tick};

use super::{Driver, MISPLACED_AFTER, now};
use crate::commit::{Commit as _, MemberChange};
use crate::credentials::{CREDENTIALS, Right};
use crate::identity::PeerId;
use crate::machine::StateMachine;
use crate::metrics as names;
use crate::net::link::{FromLink, call};
use crate::net::outbox::Outbox;
use crate::net::session::SessionError;
use crate::net::wire::{Contact, Envelope};
use crate::storage::StoreError;

/// Contacts remembered.
const MAX_CONTACTS: usize = 1_024;
/// So many contacts are written to disk as they come, more with the next round.
const FIRST_CONTACTS: usize = 16;
/// The pauses before a node is called again that did not answer.
const CALL_AGAIN: ExponentialBackoff =
    ExponentialBackoff::new(Duration::from_millis(100), Duration::from_secs(5));
/// A call that failed so long ago counts as never made.
const FORGET_CALLS: Duration = Duration::from_secs(60);

/// The connections to one node: the one that this node made, and the one that it took. Two nodes often call each
/// other in the same moment, and each then hears of the two connections in its own order: if the later one
/// replaced the earlier one, each side could end the connection that the other has kept.
#[derive(Default)]
pub(crate) struct Linked {
    made: Option<Link>,
    taken: Option<Link>,
}

struct Link {
    number: u64,
    out: Outbox,
}

impl Linked {
    fn add(&mut self, number: u64, out: Outbox, made: bool) {
        let place = if made { &mut self.made } else { &mut self.taken };
        // Without its outbox an earlier one ends: the peer was started anew.
        *place = Some(Link { number, out });
    }

    /// Whether none is left.
    fn remove(&mut self, number: u64) -> bool {
        for place in [&mut self.made, &mut self.taken] {
            place.take_if(|link| link.number == number);
        }
        self.made.is_none() && self.taken.is_none()
    }

    /// Through the later one: it is the surer one.
    fn put(&self, envelope: &Envelope) -> bool {
        let links = [&self.made, &self.taken].into_iter().flatten();
        links.max_by_key(|link| link.number).is_some_and(|link| link.out.put(envelope))
    }
}

/// Calls that are under way or must wait.
#[derive(Default)]
pub(super) struct Calls {
    open: BTreeSet<String>,
    /// With the number of failures in a row.
    not_before: BTreeMap<String, (Tick, u32)>,
}

impl<M: StateMachine> Driver<M> {
    pub(super) fn send(&mut self, to: PeerId, envelope: Envelope) {
        match self.links.get(&to) {
            Some(linked) => {
                if !linked.put(&envelope) {
                    // Losing a message is what every part of the protocol expects.
                    metrics::counter!(names::DROPPED).increment(1);
                }
            }
            None => self.call(to),
        }
    }

    fn call(&mut self, to: PeerId) {
        if let Some(contact) = self.contacts.get(&to) {
            let address = contact.address.clone();
            self.call_address(address, Some(to));
        }
    }

    fn call_address(&mut self, address: String, expected: Option<PeerId>) {
        let soon = self.calls.not_before.get(&address).is_some_and(|(t, _)| now() < *t);
        if !soon && self.calls.open.insert(address.clone()) {
            let _enter = self.runtime.enter();
            call(address, expected, self.shared.clone());
        }
    }

    pub(super) fn handle_link(&mut self, event: FromLink) -> Result<(), StoreError> {
        match event {
            FromLink::Up { peer, link, cluster, open, called, out } => {
                self.up(peer, link, cluster.filter(|_| open || self.is_member()), called, out)?
            }
            FromLink::Down { peer, link } => {
                self.accepted.remove(&link);
                if self.links.get_mut(&peer).is_some_and(|linked| linked.remove(link)) {
                    self.links.remove(&peer);
                }
            }
            FromLink::Failed { address, error } => {
                self.calls.open.remove(&address);
                let before =
                    self.calls.not_before.get(&address).map_or(0, |(_, failures)| *failures);
                if matches!(error, SessionError::OtherCluster) && self.is_member() {
                    self.met_another_cluster(&address);
                } else if before == 0 && self.seeds.contains(&address) {
                    tracing::warn!(address, %error, "the node to join through does not let us in yet; trying on");
                } else {
                    tracing::debug!(address, %error, "call failed");
                }
                let failures = before.saturating_add(1);
                let wait = CALL_AGAIN.pause(failures, self.rng.random());
                self.calls.not_before.insert(address, (now() + wait, failures));
            }
            FromLink::Sized(event, _room) => self.handle_link(*event)?,
            FromLink::Message { link, .. } | FromLink::Contacts { link, .. }
                if !self.accepted.contains(&link) => {}
            FromLink::Message { from, namespace, message, .. } => {
                if let Some(ns) = self.namespaces.get_mut(&namespace) {
                    ns.engine.handle_message(now(), from, *message);
                }
            }
            FromLink::Contacts { contacts, .. } => {
                for contact in contacts {
                    let known =
                        self.contacts.get(&contact.id).is_some_and(|c| c.stamp >= contact.stamp);
                    if !known && contact.id != self.me && contact.is_genuine(&*self.shared.keys) {
                        self.learn(contact);
                    }
                }
                // A node that is killed in its first second must still find its first neighbours again.
                if self.contacts.len() <= FIRST_CONTACTS {
                    self.save_contacts()?;
                }
            }
            FromLink::Ask { asker, ask, out } => self.ask(&asker, ask, out)?,
            FromLink::Misconduct(reason) => {
                metrics::counter!(names::MISCONDUCT, "reason" => reason).increment(1);
            }
        }
        Ok(())
    }

    fn up(
        &mut self,
        peer: PeerId,
        link: u64,
        cluster: Option<[u8; 16]>,
        called: Option<String>,
        out: Outbox,
    ) -> Result<(), StoreError> {
        if let Some(address) = &called {
            self.calls.open.remove(address);
            self.calls.not_before.remove(address);
        }
        {
            let mut mine = self.shared.cluster.lock().expect("nothing panics while it is held");
            match (*mine, cluster) {
                (None, Some(theirs)) if called.as_ref().is_some_and(|a| self.seeds.contains(a)) => {
                    // This node joins the cluster of the seed it called; from now on no other.
                    // Without an invitation it is an open one: no other lets it in.
                    self.store.put("joined_open", &true)?;
                    self.store.put("cluster", &theirs)?;
                    *mine = Some(theirs);
                }
                // A joiner that called two seeds at once may meet two clusters; the first one counts.
                // Without its outbox the link ends, and it was never allowed to speak.
                (Some(a), Some(b)) if a != b => {
                    tracing::error!(%peer, address = ?called, "a node to join through belongs to another cluster than the one joined");
                    return Ok(());
                }
                (Some(_), Some(_) | None) => {}
                (None, _) => return Ok(()),
            }
        }
        let own = Contact::new(
            &*self.shared.keys,
            self.address.clone(),
            (self.start_stamp(), now().as_nanos() / 1_000),
        );
        let others = self.contacts.values().choose_multiple(&mut self.rng, 64);
        let contacts = others.into_iter().cloned().chain([own]).collect();
        out.put(&Envelope::Contacts(contacts));
        self.accepted.insert(link);
        self.was_linked = true;
        self.links.entry(peer).or_default().add(link, out, called.is_some());
        let seed = called.is_some_and(|a| self.seeds.contains(&a));
        for ns in self.namespaces.values_mut() {
            if seed && !ns.joined {
                ns.joined = true;
                ns.engine.join(peer);
            } else {
                ns.engine.learn(peer);
            }
        }
        Ok(())
    }

    /// Another cluster answers at `address`, where a node of this node's own was expected.
    fn met_another_cluster(&mut self, address: &str) {
        if !self.foreign.insert(address.to_owned()) {
            return;
        }
        let remedy =
            "if that cluster was recovered or restored from this one, join it with a fresh folder";
        if self.seeds.iter().any(|seed| seed == address) {
            tracing::error!(
                address,
                remedy,
                "the node to join through belongs to another cluster than this folder, and will never let it in"
            );
        } else {
            tracing::warn!(
                address,
                remedy,
                "a node of another cluster answers where a node of this one was known"
            );
        }
    }

    /// A node to join through, if all of them belong to another cluster and there is no sign of this node's own: it
    /// would try on for ever. One that does not answer may be a node of its own that is being started. A node that
    /// leads alone, or knows a leader, does its work all the same.
    pub(super) fn misplaced(&self, at: Tick) -> Option<String> {
        let waited = at.saturating_since(self.started) >= MISPLACED_AFTER;
        let led = || self.namespaces.values().any(|ns| ns.engine.leader().is_some());
        let all_foreign = || self.seeds.iter().all(|seed| self.foreign.contains(seed));
        let alone = waited && !self.was_linked && all_foreign() && !led();
        self.seeds.first().filter(|_| alone).cloned()
    }

    /// Whether this node belongs to a cluster.
    fn is_member(&self) -> bool {
        self.shared.cluster.lock().expect("nothing panics while it is held").is_some()
    }

    /// Grows with every start: a contact of a later start replaces contacts of earlier ones.
    fn start_stamp(&self) -> u64 {
        self.store.get::<u64>("starts").ok().flatten().unwrap_or(0)
    }

    pub(super) fn learn(&mut self, contact: Contact) {
        if self.contacts.len() >= MAX_CONTACTS && !self.contacts.contains_key(&contact.id) {
            let victim = self.contacts.keys().choose(&mut self.rng).copied();
            victim.map(|v| self.contacts.remove(&v));
        }
        let id = contact.id;
        self.contacts.insert(id, contact);
        self.namespaces.values_mut().for_each(|ns| ns.engine.learn(id));
    }

    /// Every second: seeds while alone, contacts for a neighbour, gauges, contacts to disk.
    pub(super) fn look_around(&mut self, at: Tick) -> Result<(), StoreError> {
        self.next_round = at + Duration::from_secs(1);
        if self.links.is_empty() || self.namespaces.values().any(|ns| !ns.joined) {
            for seed in self.seeds.clone() {
                self.call_address(seed, None);
            }
        }
        // A member of consensus without a link is called, whether or not there is anything to say.
        let members: BTreeSet<_> = self
            .namespaces
            .values()
            .flat_map(|ns| ns.engine.commit().status(at).members.all())
            .collect();
        for peer in members {
            if peer != self.me && !self.links.contains_key(&peer) {
                self.call(peer);
            }
        }
        if let Some(linked) = self.links.values().choose(&mut self.rng) {
            let some = self.contacts.values().choose_multiple(&mut self.rng, 32);
            linked.put(&Envelope::Contacts(some.into_iter().cloned().collect()));
        }
        self.remove_revoked(at);
        self.namespaces.values_mut().for_each(|ns| ns.look_for_leader(at));
        self.calls.not_before.retain(|_, (t, _)| at.saturating_since(*t) < FORGET_CALLS);
        for (name, ns) in &self.namespaces {
            let label = || name.clone();
            let status = ns.engine.commit().status(at);
            let acting = if ns.keeper.gate().is_leader() { 1.0 } else { 0.0 };
            let tenure = at.saturating_since(ns.engine.gossip().election().since());
            metrics::gauge!(names::LEADER_TENURE, "namespace" => label()).set(tenure.as_secs_f64());
            metrics::gauge!(names::PENDING, "namespace" => label()).set(ns.engine.pending() as f64);
            metrics::gauge!(names::INDEX, "namespace" => label())
                .set(ns.engine.chain().index() as f64);
            metrics::gauge!(names::TERM, "namespace" => label()).set(status.term as f64);
            metrics::gauge!(names::ACTING, "namespace" => label()).set(acting);
        }
        self.save_contacts()
    }

    /// Members whose key lost the right to be a node are removed: their connections have ended, and a voter
    /// that can never answer must not count. Only while the credentials here are those of a known leader, so
    /// that a right is not missed because this node lags behind.
    fn remove_revoked(&mut self, at: Tick) {
        let rights = self.rights.borrow().clone();
        let current = self
            .namespaces
            .get(CREDENTIALS)
            .is_some_and(|space| space.engine.commit().status(at).leader.is_some());
        if !current || !rights.is_decided() {
            return;
        }
        for (name, ns) in &mut self.namespaces {
            let status = ns.engine.commit().status(at);
            let revoked = |peer: &PeerId| *peer != self.me && rights.of(peer) < Some(Right::Node);
            let gone = status.members.all().into_iter().find(revoked);
            if let Some(peer) = gone.filter(|_| status.acting_until.is_some()) {
                tracing::warn!(namespace = name, %peer, "its key is no node's any more: it is removed");
                // A refusal (another change is under way, a majority would not answer) is tried again in a second.
                if let Err(why) = ns.engine.change_members(at, MemberChange::Remove(peer)) {
                    tracing::info!(namespace = name, %peer, %why, "it cannot be removed yet");
                }
            }
        }
    }

    pub(super) fn save_contacts(&self) -> Result<(), StoreError> {
        let contacts: Vec<_> = self.contacts.values().cloned().collect();
        if self.store.get::<Vec<Contact>>("contacts")?.is_none_or(|old| old != contacts) {
            self.store.put("contacts", &contacts)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::outbox::{Outgoing, outbox};

    async fn is_over(outgoing: &mut Outgoing) -> bool {
        tokio::time::timeout(Duration::ZERO, outgoing.next())
            .await
            .is_ok_and(|frame| frame.is_none())
    }

    #[tokio::test]
    async fn two_nodes_that_call_each_other_at_once_keep_what_the_other_keeps() {
        let ((first, mut first_out), (second, mut second_out)) = (outbox(), outbox());
        let mut linked = Linked::default();
        linked.add(1, first, true);
        linked.add(2, second, false);
        // Either may be the one that the peer uses.
        assert!(!is_over(&mut first_out).await && !is_over(&mut second_out).await);
        assert!(linked.put(&Envelope::Ping));
        assert!(!linked.remove(2), "one is left");
        assert!(linked.put(&Envelope::Ping));
        assert!(linked.remove(1));
        assert!(!linked.put(&Envelope::Ping));
    }

    #[tokio::test]
    async fn a_peer_that_was_started_anew_replaces_its_connection() {
        let ((first, mut first_out), (second, mut second_out)) = (outbox(), outbox());
        let mut linked = Linked::default();
        linked.add(1, first, false);
        linked.add(2, second, false);
        assert!(is_over(&mut first_out).await && !is_over(&mut second_out).await);
        assert!(!linked.remove(1), "the end of the replaced one is heard late");
        assert!(linked.remove(2));
    }
}
