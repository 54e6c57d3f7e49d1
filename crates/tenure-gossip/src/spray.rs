//! SPRAY: a partial view of the group whose size follows the logarithm of the group by itself.
//!
//! After Nédelec, Tanke, Frey, Molli and Mostéfaoui, *An Adaptive Peer-Sampling Protocol*. The view
//! is a **multiset of arcs** `(peer, age)`; the number of arcs in the whole group is what carries
//! the estimate of its logarithm, so arcs are moved, never made or lost, except where the algorithm
//! says so:
//!
//! - a joiner costs its contact one arc per arc of the contact's view (that is ln N on average);
//! - an exchange moves half a view each way between a node and its oldest neighbour;
//! - a dead peer's arcs are replaced by copies of living ones, with probability `1 − 1/|view|` each.
//!
//! Two things are added for networks that lose messages and split: a peer counts as dead only after
//! two exchanges in a row went unanswered, and a bounded memory of peers once met is probed now and
//! then, so that two halves which forgot each other during a partition find together again. A node without
//! neighbours does nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rand::Rng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use serde::{Deserialize, Serialize};

use crate::config::ConfigError;
use crate::identity::PeerId;
use tenure_core::Tick;

/// More arcs than a group of 10^27 nodes needs; what is beyond is dropped.
const MAX_VIEW: usize = 64;
/// The first exchanges of a node follow each other ten times as fast.
const BRISK: u32 = 8;
/// For how many exchanges the name of a silent peer is not taken from others.
const SILENCE: u32 = 20;

/// How the partial view of the group is kept: the few peers with which a node gossips, and those that it
/// remembers beside them.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SprayConfig {
    /// Time between two exchanges (default 3 s, with a fifth of jitter). Shorter mixes faster and costs more messages.
    pub period: Duration,
    /// How long an exchange may stay unanswered (default 1 s); must be below the period.
    pub patience: Duration,
    /// Distinct neighbours below which remembered peers are taken into the view (default 3; at least 1): a
    /// group of five has a logarithm of 1.6, too little to survive one lost peer.
    pub floor: usize,
    /// Peers remembered beyond the view (default 256; at least `floor`).
    pub memory: usize,
    /// Every how many exchanges a remembered stranger is chosen as the partner (default 4; at least 1). A node
    /// without neighbours chooses one every time.
    pub probe_every: u32,
}

impl Default for SprayConfig {
    fn default() -> Self {
        Self {
            period: Duration::from_secs(3),
            patience: Duration::from_secs(1),
            floor: 3,
            memory: 256,
            probe_every: 4,
        }
    }
}

impl SprayConfig {
    /// Checks the values against each other.
    ///
    /// # Errors
    /// The field, its bound and the reason.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if self.patience >= self.period {
            let bound = format!("below the period ({:?})", self.period);
            return Err(ConfigError::new("patience", bound, "one exchange is open at a time"));
        }
        if self.floor == 0 || self.probe_every == 0 {
            let field = if self.floor == 0 { "floor" } else { "probe_every" };
            let reason = "halves of a group would not find each other again";
            return Err(ConfigError::new(field, "at least 1", reason));
        }
        if self.memory < self.floor {
            let bound = format!("at least floor ({})", self.floor);
            return Err(ConfigError::new("memory", bound, "the view is filled from it"));
        }
        Ok(())
    }
}

/// What two nodes say to each other about their views.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SprayMessage {
    /// "I am new: tell your neighbours."
    Join,
    /// "This one is new: take it into your view."
    Forward(PeerId),
    /// Half of the sender's view.
    Exchange(Vec<PeerId>),
    /// Half of the answerer's view.
    Answer(Vec<PeerId>),
    /// "I am going away": the arcs to the sender are replaced at once.
    Leave,
}

#[derive(Debug, Clone)]
struct Arc {
    peer: PeerId,
    age: u32,
    /// Exchanges in a row that this peer left unanswered.
    missed: u8,
}

#[derive(Debug, Clone)]
struct Open {
    partner: PeerId,
    /// What was offered, as it stands in the view (the partner's own arc included).
    offered: Vec<PeerId>,
    until: Tick,
}

/// One node's view of the group.
#[derive(Debug, Clone)]
pub struct Spray {
    me: PeerId,
    config: SprayConfig,
    view: Vec<Arc>,
    known: BTreeSet<PeerId>,
    open: Option<Open>,
    next: Tick,
    exchanges: u32,
    /// Peers that went silent, and the exchange from which on their names are taken again.
    silent: BTreeMap<PeerId, u32>,
}

impl Spray {
    /// An empty view.
    pub fn new(me: PeerId, config: SprayConfig, now: Tick, rng: &mut SmallRng) -> Self {
        let next = now + jitter(config.period, rng) / 10;
        Self {
            me,
            config,
            view: Vec::new(),
            known: BTreeSet::new(),
            open: None,
            next,
            exchanges: 0,
            silent: BTreeMap::new(),
        }
    }

    /// The distinct neighbours.
    #[must_use]
    pub fn neighbours(&self) -> Vec<PeerId> {
        let mut out: Vec<_> = self.view.iter().map(|a| a.peer).collect();
        out.sort_unstable();
        out.dedup();
        out
    }

    /// The number of arcs: about ln N.
    #[must_use]
    pub fn arcs(&self) -> usize {
        self.view.len()
    }

    /// The peers that this node has met and still remembers.
    pub fn known(&self) -> impl Iterator<Item = &PeerId> {
        self.known.iter()
    }

    /// When [`Spray::handle_timeout`] wants to be called.
    #[must_use]
    pub fn poll_timeout(&self) -> Tick {
        self.open.as_ref().map_or(self.next, |o| o.until.min(self.next))
    }

    /// Remembers a peer, from configuration or from a connection, without an arc to it.
    pub fn learn(&mut self, peer: PeerId, rng: &mut SmallRng) {
        self.remember(peer, rng);
        self.top_up(rng);
    }

    fn remember(&mut self, peer: PeerId, rng: &mut SmallRng) {
        if peer == self.me || self.known.contains(&peer) {
            return;
        }
        if self.known.len() >= self.config.memory {
            let victim = *nth(&self.known, rng).expect("memory is full, so not empty");
            self.known.remove(&victim);
        }
        self.known.insert(peer);
    }

    /// Joins the group through `contact`.
    pub fn join(&mut self, contact: PeerId, rng: &mut SmallRng) -> Vec<(PeerId, SprayMessage)> {
        self.remember(contact, rng);
        self.add(contact);
        vec![(contact, SprayMessage::Join)]
    }

    /// Says goodbye to every neighbour.
    #[must_use]
    pub fn leave(&self) -> Vec<(PeerId, SprayMessage)> {
        self.neighbours().into_iter().map(|p| (p, SprayMessage::Leave)).collect()
    }

    /// A message from `from`.
    pub fn handle_message(
        &mut self,
        from: PeerId,
        message: SprayMessage,
        rng: &mut SmallRng,
    ) -> Vec<(PeerId, SprayMessage)> {
        if from == self.me {
            return Vec::new();
        }
        self.remember(from, rng);
        self.alive(from);
        match message {
            SprayMessage::Join => {
                let told: Vec<_> =
                    self.view.iter().map(|a| a.peer).filter(|p| *p != from).collect();
                if told.is_empty() {
                    self.add(from);
                }
                told.into_iter().map(|p| (p, SprayMessage::Forward(from))).collect()
            }
            SprayMessage::Forward(joiner) => {
                if joiner != self.me {
                    self.remember(joiner, rng);
                    self.add(joiner);
                }
                Vec::new()
            }
            SprayMessage::Exchange(theirs) => {
                let half = self.view.len().div_ceil(2);
                let mine = self.pick(half, rng);
                let answer = mine.iter().map(|p| if *p == from { self.me } else { *p }).collect();
                self.replace(&mine, theirs, from, rng);
                vec![(from, SprayMessage::Answer(answer))]
            }
            SprayMessage::Answer(theirs) => {
                if let Some(open) = self.open.take_if(|o| o.partner == from) {
                    self.replace(&open.offered, theirs, from, rng);
                }
                Vec::new()
            }
            SprayMessage::Leave => {
                self.known.remove(&from);
                self.down(from, rng);
                Vec::new()
            }
        }
    }

    /// Time has passed: gives up on an unanswered exchange, starts the next one.
    pub fn handle_timeout(&mut self, now: Tick, rng: &mut SmallRng) -> Vec<(PeerId, SprayMessage)> {
        if let Some(open) = self.open.take_if(|o| o.until <= now) {
            let dead = self
                .view
                .iter_mut()
                .filter(|a| a.peer == open.partner)
                .map(|a| {
                    a.missed += 1;
                    a.missed >= 2
                })
                .fold(false, |any, dead| any | dead);
            if dead {
                // Its name goes round among the others for a while; it is not taken back so soon.
                self.silent.insert(open.partner, self.exchanges + SILENCE);
                if self.silent.len() > MAX_VIEW {
                    self.silent.pop_first();
                }
                self.down(open.partner, rng);
            }
        }
        if now < self.next {
            return Vec::new();
        }
        self.exchanges = self.exchanges.wrapping_add(1);
        // A node that has just joined sits in a corner of the group, close to its contact: it mixes fast.
        let period = self.config.period / if self.exchanges < BRISK { 10 } else { 1 };
        self.next = now + jitter(period, rng);
        self.view.iter_mut().for_each(|a| a.age = a.age.saturating_add(1));
        self.silent.retain(|_, until| *until > self.exchanges);
        self.top_up(rng);

        let probe = self.view.is_empty() || self.exchanges.is_multiple_of(self.config.probe_every);
        let stranger = probe
            .then(|| {
                let strangers: BTreeSet<_> =
                    self.known.iter().copied().filter(|p| !self.has(p)).collect();
                nth(&strangers, rng).copied()
            })
            .flatten();
        let oldest = self.view.iter().max_by_key(|a| a.age).map(|a| a.peer);
        let Some(partner) = stranger.or(oldest) else {
            return Vec::new();
        };
        // Half of the view, the partner's own arc among it, which this node's own name replaces.
        let half = self.view.len().div_ceil(2);
        let mut offered = self.pick(half, rng);
        if !offered.contains(&partner) && self.has(&partner) {
            offered.pop();
            offered.push(partner);
        }
        let mut sample: Vec<_> =
            offered.iter().map(|p| if *p == partner { self.me } else { *p }).collect();
        if !sample.contains(&self.me) {
            // A stranger has no arc to give up: one of the others turns round instead.
            sample.pop();
            sample.push(self.me);
        }
        self.open = Some(Open { partner, offered, until: now + self.config.patience });
        vec![(partner, SprayMessage::Exchange(sample))]
    }

    /// A peer is gone: its arcs turn into copies of others, or vanish with probability 1/|view|.
    pub fn down(&mut self, peer: PeerId, rng: &mut SmallRng) {
        let before = self.view.len();
        self.view.retain(|a| a.peer != peer);
        let lost = before - self.view.len();
        for _ in 0..lost {
            if rng.random_range(0..before) != 0 {
                self.copy_one(rng);
            }
        }
        self.open.take_if(|o| o.partner == peer);
        self.top_up(rng);
    }

    fn copy_one(&mut self, rng: &mut SmallRng) {
        if !self.view.is_empty() {
            let copy = self.view[rng.random_range(0..self.view.len())].peer;
            self.add(copy);
        }
    }

    fn has(&self, peer: &PeerId) -> bool {
        self.view.iter().any(|a| a.peer == *peer)
    }

    fn add(&mut self, peer: PeerId) {
        if peer != self.me && self.view.len() < MAX_VIEW {
            self.view.push(Arc { peer, age: 0, missed: 0 });
        }
    }

    fn alive(&mut self, peer: PeerId) {
        self.silent.remove(&peer);
        self.view.iter_mut().filter(|a| a.peer == peer).for_each(|a| a.missed = 0);
    }

    /// Up to `count` arcs; arcs that are offered to another partner are left out.
    fn pick(&self, count: usize, rng: &mut SmallRng) -> Vec<PeerId> {
        let mut all: Vec<_> = self.view.iter().map(|a| a.peer).collect();
        for taken in self.open.iter().flat_map(|o| &o.offered) {
            if let Some(i) = all.iter().position(|p| p == taken) {
                all.swap_remove(i);
            }
        }
        all.shuffle(rng);
        all.truncate(count);
        all
    }

    /// `view \ given ⊎ taken`, with no arc to oneself.
    fn replace(&mut self, given: &[PeerId], taken: Vec<PeerId>, from: PeerId, rng: &mut SmallRng) {
        for peer in given {
            if let Some(i) = self.view.iter().position(|a| a.peer == *peer) {
                self.view.swap_remove(i);
            }
        }
        for peer in taken.into_iter().take(MAX_VIEW) {
            let peer = if peer == self.me { from } else { peer };
            if self.silent.contains_key(&peer) {
                self.copy_one(rng);
            } else {
                self.remember(peer, rng);
                self.add(peer);
            }
        }
        self.top_up(rng);
    }

    /// Keeps a few distinct neighbours as long as enough peers are known.
    fn top_up(&mut self, rng: &mut SmallRng) {
        while self.view.len() < 2 * self.config.floor
            && self.neighbours().len() < self.config.floor.min(self.known.len())
        {
            let fresh: BTreeSet<_> = self
                .known
                .iter()
                .copied()
                .filter(|p| !self.has(p) && !self.silent.contains_key(p))
                .collect();
            let Some(peer) = nth(&fresh, rng).copied() else { return };
            self.add(peer);
        }
    }
}

fn nth<'a>(set: &'a BTreeSet<PeerId>, rng: &mut SmallRng) -> Option<&'a PeerId> {
    (!set.is_empty()).then(|| set.iter().nth(rng.random_range(0..set.len()))).flatten()
}

/// `period` give or take a fifth, so that nodes started together drift apart.
pub(crate) fn jitter(period: Duration, rng: &mut SmallRng) -> Duration {
    let micros = period.as_micros() as u64;
    Duration::from_micros(micros * 4 / 5 + rng.random_range(0..=micros * 2 / 5))
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use rand::SeedableRng;

    use super::*;

    fn id(n: u32) -> PeerId {
        let mut b = [0; 32];
        b[..4].copy_from_slice(&n.to_be_bytes());
        PeerId(b)
    }

    struct Group {
        nodes: BTreeMap<PeerId, Spray>,
        rng: SmallRng,
        now: Tick,
    }

    impl Group {
        fn of(n: u32, seed: u64) -> Self {
            let mut g = Self {
                nodes: BTreeMap::new(),
                rng: SmallRng::seed_from_u64(seed),
                now: Tick::ZERO,
            };
            let config = SprayConfig { memory: 32, floor: 1, ..SprayConfig::default() };
            for i in 0..n {
                let mut node = Spray::new(id(i), config.clone(), g.now, &mut g.rng);
                let out = if i > 0 {
                    let contact = id(g.rng.random_range(0..i));
                    node.join(contact, &mut g.rng)
                } else {
                    Vec::new()
                };
                g.nodes.insert(id(i), node);
                g.deliver(id(i), out);
            }
            g
        }

        fn deliver(&mut self, from: PeerId, out: Vec<(PeerId, SprayMessage)>) {
            let mut queue: VecDeque<_> = out.into_iter().map(|(to, m)| (from, to, m)).collect();
            while let Some((from, to, m)) = queue.pop_front() {
                if let Some(node) = self.nodes.get_mut(&to) {
                    let out = node.handle_message(from, m, &mut self.rng);
                    queue.extend(out.into_iter().map(|(next, m)| (to, next, m)));
                }
            }
        }

        fn run(&mut self, periods: u32) {
            let end = self.now + Duration::from_secs(3) * periods;
            while self.now < end {
                self.now = self.now + Duration::from_millis(200);
                for peer in self.nodes.keys().copied().collect::<Vec<_>>() {
                    let node = self.nodes.get_mut(&peer).expect("listed");
                    let out = node.handle_timeout(self.now, &mut self.rng);
                    self.deliver(peer, out);
                }
            }
        }

        fn reachable(&self) -> usize {
            let first = *self.nodes.keys().next().expect("a group");
            let mut seen = BTreeSet::from([first]);
            let mut queue = vec![first];
            while let Some(p) = queue.pop() {
                for q in self.nodes[&p].neighbours() {
                    if self.nodes.contains_key(&q) && seen.insert(q) {
                        queue.push(q);
                    }
                }
            }
            seen.len()
        }
    }

    #[test]
    fn the_view_follows_the_logarithm_of_the_group() {
        for (n, low, high) in [(50u32, 2.0, 7.0), (1_000, 4.5, 10.0)] {
            let mut g = Group::of(n, 7);
            g.run(10);
            let mean = g.nodes.values().map(|s| s.arcs()).sum::<usize>() as f64 / f64::from(n);
            assert!(
                (low..high).contains(&mean),
                "{n} nodes: {mean} arcs, ln is {}",
                f64::from(n).ln()
            );
            assert_eq!(g.reachable(), n as usize, "the group is connected");
        }
    }

    #[test]
    fn no_node_is_its_own_neighbour() {
        let mut g = Group::of(60, 3);
        g.run(12);
        assert!(g.nodes.iter().all(|(p, s)| !s.neighbours().contains(p)));
    }

    #[test]
    fn the_dead_leave_every_view_and_the_rest_stays_connected() {
        let mut g = Group::of(200, 11);
        g.run(5);
        let dead: Vec<_> = (0..60).map(id).collect();
        dead.iter().for_each(|d| drop(g.nodes.remove(d)));
        g.run(60);
        assert_eq!(g.reachable(), 140);
        let stale =
            g.nodes.values().filter(|s| s.neighbours().iter().any(|p| dead.contains(p))).count();
        assert!(stale <= 35, "{stale} of 140 views still name a dead node");
    }

    #[test]
    fn two_nodes_that_took_all_others_for_dead_find_each_other_within_ten_periods() {
        for seed in 0..20 {
            let mut g = Group::of(0, seed);
            let mut alone = |me: u32, others: [u32; 3]| {
                let mut node = Spray::new(id(me), SprayConfig::default(), g.now, &mut g.rng);
                others.into_iter().for_each(|n| node.learn(id(n), &mut g.rng));
                g.nodes = BTreeMap::from([(id(me), node)]);
                g.run(14);
                assert!(g.nodes[&id(me)].neighbours().is_empty(), "nothing answers it");
                g.nodes.pop_first()
            };
            // Nodes 2 and 3 are dead; 0 and 1 do not reach each other for a while.
            let two = [alone(0, [1, 2, 3]), alone(1, [0, 2, 3])];
            g.nodes = two.into_iter().flatten().collect();
            g.run(10);
            assert_eq!(g.reachable(), 2, "seed {seed}");
        }
    }

    #[test]
    fn a_node_that_leaves_is_forgotten_at_once_by_its_neighbours() {
        let mut g = Group::of(20, 5);
        g.run(5);
        let gone = g.nodes.remove(&id(4)).expect("there");
        let told = gone.neighbours();
        g.deliver(id(4), gone.leave());
        assert!(told.iter().all(|p| !g.nodes[p].neighbours().contains(&id(4))));
    }

    #[test]
    fn a_group_of_which_half_takes_its_leave_shrinks_its_views_and_stays_connected() {
        let mut g = Group::of(600, 9);
        g.run(5);
        let mean = |g: &Group| {
            g.nodes.values().map(Spray::arcs).sum::<usize>() as f64 / g.nodes.len() as f64
        };
        let before = mean(&g);
        for gone in (0..300).map(id) {
            let node = g.nodes.remove(&gone).expect("there");
            g.deliver(gone, node.leave());
        }
        g.run(40);
        let after = mean(&g);
        // A node whose last arc is just on its way names itself in its next exchange.
        assert!(g.reachable() >= 297, "{} of 300", g.reachable());
        assert!(after < before && after > 0.6 * 300f64.ln(), "{before} arcs, then {after}");
    }

    #[test]
    fn an_oversized_sample_does_not_grow_the_view_without_bound() {
        let mut rng = SmallRng::seed_from_u64(1);
        let mut s = Spray::new(id(0), SprayConfig::default(), Tick::ZERO, &mut rng);
        for k in 0..10 {
            let flood = (1 + k * 1000..1000 + k * 1000).map(id).collect();
            s.handle_message(id(1), SprayMessage::Exchange(flood), &mut rng);
        }
        assert!(s.arcs() <= MAX_VIEW && s.known().count() <= SprayConfig::default().memory);
    }
}
