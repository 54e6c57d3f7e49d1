//! The credentials on this node: founded once, followed as they are applied, asked before every answer.

use std::collections::BTreeSet;

use super::caller::Caller;
use super::refusal::Refusal;
use super::{Driver, Namespace};
use crate::commit::Commit as _;
use crate::credentials::{
    CREDENTIALS, CredentialGoal, InvitationId, Right, joiner_proof, node_proof, unix_now,
};
use crate::history::TxId;
use crate::host::HostError;
use crate::identity::PeerId;
use crate::machine::StateMachine;
use crate::net::link::Asker;
use crate::net::outbox::Outbox;
use crate::net::wire::{Answer, Ask};
use crate::storage::StoreError;
use tenure_core::Tick;

impl<M: StateMachine> Driver<M> {
    /// The founder's first record, as soon as it may decide.
    pub(super) fn found_credentials(&mut self, at: Tick) {
        let Some(open) = self.founds else { return };
        let (founder, space) = (self.me, self.namespaces.get_mut(CREDENTIALS));
        let Some(space) = space.filter(|space| space.engine.acting(at).is_some()) else { return };
        self.founds = None;
        if space.engine.chain().index() == 0 {
            let goal = CredentialGoal::Found { founder, open }.to_bytes();
            // A refusal can only mean that the namespace is founded: the goal is repeated until it is decided.
            let _ = space.engine.submit(at, TxId::random(), goal);
        }
    }

    /// Carries the namespaces that were founded with this node as a voter. Each of the first voters begins with
    /// the same first entry, so it does not matter which of them hears of it first.
    pub(super) fn carry_founded(&mut self, at: Tick) -> Result<(), StoreError> {
        if !std::mem::take(&mut self.founded_changed) {
            return Ok(());
        }
        let founded = self.rights.borrow().state.namespaces().clone();
        for (name, voters) in founded {
            if !voters.contains(&self.me) {
                continue;
            }
            if let Some(ns) = self.namespaces.get_mut(&name) {
                // A node that was configured to carry it before it was founded.
                if ns.engine.commit().status(at).last_index == 0 {
                    let _ = ns.engine.bootstrap(at, &voters);
                }
                continue;
            }
            let fresh = !self.store.namespaces()?.contains(&name);
            let (mut engine, keeper) = match self.opener.open(&name, &self.store) {
                Ok(opened) => opened,
                Err(HostError::Store(error)) => return Err(error),
                Err(error) => {
                    tracing::error!(namespace = name, %error, "this namespace cannot be carried");
                    continue;
                }
            };
            if fresh && let Err(error) = engine.bootstrap(at, &voters) {
                tracing::error!(namespace = name, %error, "this namespace cannot be founded");
                continue;
            }
            for peer in self.links.keys().chain(self.contacts.keys()) {
                engine.learn(*peer);
            }
            tracing::info!(namespace = name, "carried from now on");
            self.carry(name, engine, keeper);
        }
        Ok(())
    }

    /// The founder puts the namespaces that it was started with on record, so that no other node founds them.
    pub(super) fn register(&mut self, at: Tick) {
        let led =
            self.namespaces.get(CREDENTIALS).is_some_and(|space| space.engine.leader().is_some());
        if !self.registers || !led || !self.rights.borrow().is_decided() {
            return;
        }
        self.registers = false;
        let known = self.rights.borrow().state.namespaces().clone();
        let has_log = |ns: &Namespace<M>| ns.engine.commit().status(at).last_index > 0;
        let own = self.namespaces.iter().filter(|(name, ns)| *name != CREDENTIALS && has_log(ns));
        let own: Vec<_> = own.map(|(name, _)| name.clone()).collect();
        for name in own.into_iter().filter(|name| !known.contains_key(name)) {
            let goal = CredentialGoal::Namespace { name, voters: BTreeSet::from([self.me]) };
            if let Some(space) = self.namespaces.get_mut(CREDENTIALS) {
                // A refusal means that too much waits here; the next start tries again.
                let _ = space.engine.submit(at, TxId::random(), goal.to_bytes());
            }
        }
    }

    /// Makes known to all sessions what keys may do now. Sessions without their right end.
    pub(super) fn follow_credentials(&mut self) {
        let space = self.namespaces.get(CREDENTIALS);
        let state = space.and_then(|space| space.engine.chain().machine().credentials()).cloned();
        if let Some(state) = state {
            self.founded_changed = true;
            self.rights.send_modify(|rights| rights.state = state);
        }
    }

    /// Whether `asker` may ask this.
    pub(super) fn may_ask(&self, asker: &PeerId, ask: &Ask) -> Result<(), Refusal> {
        let needed = match ask {
            // The only way in.
            Ask::Redeem { .. } => return Ok(()),
            // The names and rights of all keys are the operators' business.
            Ask::Submit { namespace, .. }
            | Ask::History { namespace, .. }
            | Ask::Watch { namespace, .. }
            | Ask::Read { namespace, .. }
                if namespace == CREDENTIALS =>
            {
                Right::Operator
            }
            Ask::Members { .. } | Ask::StepDown { .. } | Ask::Snapshot { .. } => Right::Operator,
            Ask::Submit { .. }
            | Ask::Status
            | Ask::History { .. }
            | Ask::Watch { .. }
            | Ask::Read { .. }
            | Ask::Nodes => Right::Client,
        };
        if self.rights.borrow().of(asker) >= Some(needed) {
            return Ok(());
        }
        Err(Refusal::NoRight { key: *asker, needed })
    }

    /// Lets the key of `asker` in, if it has proven an invitation. Answered when it is committed.
    pub(super) fn redeem(&mut self, asker: &Asker, id: InvitationId, proof: [u8; 32], out: Outbox) {
        let (time, rights) = (unix_now(), self.rights.borrow().clone());
        let key = rights.state.invitation(&id, time);
        // Hashes of blake3 compare in constant time.
        let proven = key.filter(|key| {
            joiner_proof(key, &asker.exported, &asker.id) == blake3::Hash::from_bytes(proof)
        });
        let Some(key) = proven else {
            out.refuse(&Refusal::Invitation);
            return;
        };
        let mut nodes = rights.nodes();
        nodes.insert(self.me);
        let proof = *node_proof(&key, &asker.exported, &self.me).as_bytes();
        let welcome = Answer::Welcome { proof, nodes: nodes.into_iter().collect() };
        let goal = CredentialGoal::Redeem { id, peer: asker.id, now: time }.to_bytes();
        self.submit(CREDENTIALS, TxId::random(), goal, Caller::Joiner { out, welcome });
    }
}
