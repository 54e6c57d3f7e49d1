//! The credentials on this node: founded once, followed as they are applied, asked before every answer.

use super::Driver;
use super::caller::Caller;
use super::refusal::Refusal;
use crate::credentials::{
    CREDENTIALS, CredentialGoal, InvitationId, Right, joiner_proof, node_proof, unix_now,
};
use crate::history::TxId;
use crate::identity::PeerId;
use crate::machine::StateMachine;
use crate::net::link::Asker;
use crate::net::outbox::Outbox;
use crate::net::wire::{Answer, Ask};
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

    /// Makes known to all sessions what keys may do now. Sessions without their right end.
    pub(super) fn follow_credentials(&mut self) {
        let space = self.namespaces.get(CREDENTIALS);
        let state = space.and_then(|space| space.engine.chain().machine().credentials()).cloned();
        if let Some(state) = state {
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
            Ask::Members { .. } | Ask::StepDown { .. } => Right::Operator,
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
