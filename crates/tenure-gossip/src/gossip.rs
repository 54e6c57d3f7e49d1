//! Peer sampling and election together: the part of a node that needs no agreement.

use std::borrow::Borrow;
use std::collections::VecDeque;

use rand::rngs::SmallRng;
use rand::seq::SliceRandom;

use crate::election::{Election, ElectionConfig, LeaderChange, Rejected, Vote};
use crate::identity::{Keys, PeerId};
use crate::message::Message;
use crate::spray::{Spray, SprayConfig, SprayMessage};
use tenure_core::Tick;

/// How many of the voters that are not in the view get a vote in return each round: so many at least,
/// and more if they hear of too few others, up to a bound.
const ANSWERED: usize = 3;
const MAX_ANSWERED: usize = 32;

/// What gossip wants done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GossipOutput {
    /// Send; may be lost.
    Send(PeerId, Message),
    /// This node believes in another leader than before.
    Leader(LeaderChange),
}

/// One node's gossip in one namespace. Sans-IO: inputs, then [`Gossip::poll_output`] until it is dry.
pub struct Gossip {
    /// The view.
    spray: Spray,
    election: Election,
    keys: Box<dyn Keys>,
    rng: SmallRng,
    out: VecDeque<GossipOutput>,
    /// The vote of this round and the peers that it still has to be sent to.
    ballot: Option<(Vec<PeerId>, Vote)>,
}

impl Gossip {
    /// A node that knows no other yet. `incarnation` must grow with every start of this node.
    pub fn new(
        keys: Box<dyn Keys>,
        namespace: &str,
        election: ElectionConfig,
        spray: SprayConfig,
        incarnation: u64,
        now: Tick,
        mut rng: SmallRng,
    ) -> Self {
        let me = keys.id();
        Self {
            spray: Spray::new(me, spray, now, &mut rng),
            election: Election::new(me, namespace, election, incarnation, now, &mut rng),
            keys,
            rng,
            out: VecDeque::new(),
            ballot: None,
        }
    }

    /// This node.
    #[must_use]
    pub fn id(&self) -> PeerId {
        self.keys.id()
    }

    /// The election's state.
    #[must_use]
    pub fn election(&self) -> &Election {
        &self.election
    }

    /// The view's state.
    #[must_use]
    pub fn spray(&self) -> &Spray {
        &self.spray
    }

    /// Tells the neighbours, from the next vote on, that this node leads by consensus in `term`; 0: it does not.
    pub fn set_term(&mut self, term: u64) {
        self.election.set_term(term);
    }

    /// Remembers a peer.
    pub fn learn(&mut self, peer: PeerId) {
        self.spray.learn(peer, &mut self.rng);
    }

    /// Joins the group through `contact`.
    pub fn join(&mut self, contact: PeerId) {
        let sends = self.spray.join(contact, &mut self.rng);
        self.queue(sends);
    }

    /// Says goodbye.
    pub fn leave(&mut self) {
        let sends = self.spray.leave();
        self.queue(sends);
    }

    /// A peer's connection is refused or lost for good.
    pub fn down(&mut self, peer: PeerId) {
        self.spray.down(peer, &mut self.rng);
    }

    /// Up to `count` distinct peers, drawn from the view, or from memory if the view is too small.
    pub fn sample(&mut self, count: usize) -> Vec<PeerId> {
        let mut peers = self.spray.neighbours();
        peers.shuffle(&mut self.rng);
        if peers.len() < count {
            let mut more: Vec<_> =
                self.spray.known().copied().filter(|p| !peers.contains(p)).collect();
            more.shuffle(&mut self.rng);
            peers.extend(more);
        }
        peers.truncate(count);
        peers
    }

    /// Puts peers into a random order.
    pub(crate) fn shuffle(&mut self, peers: &mut [PeerId]) {
        peers.shuffle(&mut self.rng);
    }

    /// A view message from `from`.
    pub fn handle_spray(&mut self, from: PeerId, message: SprayMessage) {
        let sends = self.spray.handle_message(from, message, &mut self.rng);
        self.queue(sends);
    }

    /// A vote from `from`.
    ///
    /// # Errors
    /// Why it was thrown away.
    pub fn handle_vote(
        &mut self,
        now: Tick,
        from: PeerId,
        vote: impl Borrow<Vote>,
    ) -> Result<(), Rejected> {
        self.election.handle_vote(now, from, vote.borrow(), &*self.keys)
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Tick) {
        if self.spray.poll_timeout() <= now {
            let sends = self.spray.handle_timeout(now, &mut self.rng);
            self.queue(sends);
        }
        if self.election.poll_timeout() <= now {
            let (change, vote) = self.election.handle_timeout(now, &*self.keys, &mut self.rng);
            self.out.extend(change.map(GossipOutput::Leader));
            if let Some(vote) = vote {
                // Arcs have a direction, and a node to which none leads would hear nothing: it says
                // so in its votes, and is answered.
                let mut to = self.spray.neighbours();
                let mut back: Vec<_> =
                    self.election.recent_voters(now).filter(|(p, _)| !to.contains(p)).collect();
                back.shuffle(&mut self.rng);
                back.sort_by_key(|(_, hungry)| !hungry);
                let hungry = back.iter().filter(|(_, hungry)| *hungry).count();
                back.truncate(hungry.clamp(ANSWERED, MAX_ANSWERED));
                to.extend(back.into_iter().map(|(p, _)| p));
                self.ballot = Some((to, vote));
            }
        }
    }

    /// The next thing to be done.
    pub fn poll_output(&mut self) -> Option<GossipOutput> {
        if let Some(output) = self.out.pop_front() {
            return Some(output);
        }
        let (to, vote) = self.ballot.as_mut()?;
        let next = to.pop().map(|peer| GossipOutput::Send(peer, Message::Vote(vote.clone())));
        if next.is_none() {
            self.ballot = None;
        }
        next
    }

    /// The vote to be sent and its receivers, for a driver that can send one message to many. Other
    /// drivers get it from [`Gossip::poll_output`], copy by copy.
    pub fn poll_vote(&mut self) -> Option<(Vec<PeerId>, Vote)> {
        self.ballot.take()
    }

    /// When [`Gossip::handle_timeout`] wants to be called.
    #[must_use]
    pub fn poll_timeout(&self) -> Tick {
        self.spray.poll_timeout().min(self.election.poll_timeout())
    }

    fn queue(&mut self, sends: Vec<(PeerId, SprayMessage)>) {
        self.out.extend(sends.into_iter().map(|(to, m)| GossipOutput::Send(to, Message::Spray(m))));
    }
}
