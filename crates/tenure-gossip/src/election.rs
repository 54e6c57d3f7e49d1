//! The election by gossip: which leader the neighbours believe in, and which one to vote for.
//!
//! It is a **hint**. Two nodes may name two leaders at the same instant, and nothing that must not
//! diverge depends on it: that is the business of consensus.
//!
//! ```text
//!  round (Δr = 300 ms)
//!  ├── election, Δe = 100 ms ──┼── dissemination, Δd = 200 ms ──┤
//!  drop what is too old,        send my vote to
//!  sample 3 valid votes,        every neighbour
//!  decide
//! ```
//!
//! Until a leader is established all valid votes of the last round count, not three of them.
//!
//! A vote carries a *beacon*: the leader's own signed stamp, relayed unchanged, with the time it has
//! been on its way. A beacon is valid for `Δc + M·Δr` (M = 2 · diameter) after it was made, so a
//! leader that stops making new ones is forgotten by every node within that time, however often its
//! last beacon is passed on. No two clocks are compared: each relay adds the time it kept the beacon.

mod config;
mod vote;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rand::Rng;
use rand::rngs::SmallRng;
use rand::seq::{IndexedRandom, index};

pub use self::config::{ElectionConfig, TieBreak};
pub use self::vote::{Beacon, Vote};
use self::vote::{beacon_text, vote_text};
use crate::identity::{Keys, PeerId, Signature};
use tenure_core::Tick;

/// Votes sampled in a round.
const SAMPLE: usize = 3;
/// Neighbours whose votes are kept at most; a flood of identities evicts the oldest, no more.
const MAX_NEIGHBOURS: usize = 256;
/// Leaders whose stamps are remembered at most.
const MAX_SIGHTINGS: usize = 1_024;

/// Why a vote was thrown away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rejected {
    /// A signature does not fit, or another node than the voter sent it.
    Forged,
    /// A vote with this number or a later one was seen before.
    Replayed,
    /// The beacon is too old to count.
    Stale,
}

impl Rejected {
    /// The name used in metrics and status.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Forged => "forged",
            Self::Replayed => "replayed",
            Self::Stale => "stale",
        }
    }
}

#[derive(Debug, Clone)]
struct Neighbour {
    beacon: Arc<Beacon>,
    seq: u64,
    heard: Tick,
    hungry: bool,
}

#[derive(Debug, Clone)]
struct Sighting {
    beacon: Arc<Beacon>,
    /// When it was made, on this node's clock.
    made: Tick,
}

/// What changed in a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaderChange {
    /// The leader before.
    pub from: PeerId,
    /// The leader now.
    pub to: PeerId,
    /// How long the former was this node's leader.
    pub tenure: Duration,
}

/// One node's part in the election of one namespace.
pub struct Election {
    config: ElectionConfig,
    namespace: String,
    me: PeerId,
    my_term: u64,
    /// (incarnation << 40): makes stamps of a later start larger than all of an earlier one.
    base: u64,
    last_stamp: u64,
    started: Tick,
    neighbours: BTreeMap<PeerId, Neighbour>,
    sightings: BTreeMap<PeerId, Sighting>,
    current: PeerId,
    since: Tick,
    /// Whether the current leader was seen to be established.
    confirmed: bool,
    stable_until: Tick,
    round_at: Tick,
    send_at: Tick,
    rejected: BTreeMap<Rejected, u64>,
}

impl Election {
    /// A node that believes in itself until it hears of others. `incarnation` must grow with every
    /// start of this node.
    pub fn new(
        me: PeerId,
        namespace: &str,
        config: ElectionConfig,
        incarnation: u64,
        now: Tick,
        rng: &mut SmallRng,
    ) -> Self {
        let first =
            now + Duration::from_micros(rng.random_range(0..config.delta_r.as_micros() as u64));
        Self {
            namespace: namespace.to_owned(),
            me,
            my_term: 0,
            base: incarnation << 40,
            last_stamp: 0,
            started: now,
            neighbours: BTreeMap::new(),
            sightings: BTreeMap::new(),
            current: me,
            since: now,
            confirmed: false,
            stable_until: Tick::ZERO,
            round_at: first,
            send_at: Tick::MAX,
            rejected: BTreeMap::new(),
            config,
        }
    }

    /// The leader this node believes in: itself, if it knows no better.
    #[must_use]
    pub fn leader(&self) -> PeerId {
        self.current
    }

    /// Since when it does.
    #[must_use]
    pub fn since(&self) -> Tick {
        self.since
    }

    /// The consensus term the current leader claims.
    #[must_use]
    pub fn leader_term(&self) -> u64 {
        if self.current == self.me {
            self.my_term
        } else {
            self.sightings.get(&self.current).map_or(0, |s| s.beacon.term)
        }
    }

    /// The voters of the last two rounds, and whether they want a vote in return.
    pub fn recent_voters(&self, now: Tick) -> impl Iterator<Item = (PeerId, bool)> {
        let span = self.config.delta_r * 2;
        let recent =
            self.neighbours.iter().filter(move |(_, n)| now.saturating_since(n.heard) <= span);
        recent.map(|(p, n)| (*p, n.hungry))
    }

    /// How many votes were thrown away, and why.
    #[must_use]
    pub fn rejected(&self) -> &BTreeMap<Rejected, u64> {
        &self.rejected
    }

    /// Tells the election that this node leads by consensus in `term` (0: it does not).
    pub fn set_term(&mut self, term: u64) {
        self.my_term = term;
    }

    /// When [`Election::handle_timeout`] wants to be called.
    #[must_use]
    pub fn poll_timeout(&self) -> Tick {
        self.round_at.min(self.send_at)
    }

    /// Takes in a neighbour's vote that arrived from `from`.
    ///
    /// # Errors
    /// Why it was thrown away; nothing else happened then, but the count.
    pub fn handle_vote(
        &mut self,
        now: Tick,
        from: PeerId,
        vote: &Vote,
        keys: &dyn Keys,
    ) -> Result<(), Rejected> {
        let checked = self.check(now, from, vote, keys);
        if let Err(why) = checked {
            *self.rejected.entry(why).or_default() += 1;
            return checked;
        }
        let Vote { voter, seq, ref beacon, age, hungry, .. } = *vote;
        self.sight(beacon, now.saturating_sub(Duration::from_millis(age.into())));
        let neighbour = Neighbour { beacon: beacon.clone(), seq, heard: now, hungry };
        self.neighbours.insert(voter, neighbour);
        if self.neighbours.len() > MAX_NEIGHBOURS {
            remove_min(&mut self.neighbours, |n| n.heard);
        }
        Ok(())
    }

    /// Time has passed: runs the phases that are due. `Some(vote)` is to be sent to all neighbours.
    pub fn handle_timeout(
        &mut self,
        now: Tick,
        keys: &dyn Keys,
        rng: &mut SmallRng,
    ) -> (Option<LeaderChange>, Option<Vote>) {
        let mut change = None;
        if self.round_at <= now {
            // A node that slept through rounds does not make up for them.
            while self.round_at <= now {
                self.round_at = self.round_at + self.config.delta_r;
            }
            self.send_at = now + self.config.delta_e;
            change = self.round(now, rng);
        }
        let mut vote = None;
        if self.send_at <= now {
            self.send_at = Tick::MAX;
            vote = Some(self.vote(now, keys));
        }
        (change, vote)
    }

    fn check(&self, now: Tick, from: PeerId, vote: &Vote, keys: &dyn Keys) -> Result<(), Rejected> {
        if vote.voter != from || vote.voter == self.me {
            return Err(Rejected::Forged);
        }
        if self.neighbours.get(&vote.voter).is_some_and(|n| vote.seq <= n.seq) {
            return Err(Rejected::Replayed);
        }
        let sighting = self.sightings.get(&vote.beacon.leader);
        let known = sighting.filter(|s| s.beacon.stamp == vote.beacon.stamp);
        let made = now
            .saturating_sub(Duration::from_millis(vote.age.into()))
            .min(known.map_or(Tick::MAX, |s| s.made));
        if now.saturating_since(made) > self.config.validity() {
            return Err(Rejected::Stale);
        }
        let text = vote_text(&self.namespace, vote);
        if !keys.verify(&vote.voter, text.bytes(), &vote.signature) {
            return Err(Rejected::Forged);
        }
        // The same beacon arrives from every neighbour: it is checked once.
        if known.is_some_and(|s| s.beacon == vote.beacon) {
            return Ok(());
        }
        let text = beacon_text(&self.namespace, &vote.beacon);
        if vote.beacon.leader == self.me && vote.beacon.stamp > self.stamp_now(now) {
            return Err(Rejected::Forged);
        }
        if !keys.verify(&vote.beacon.leader, text.bytes(), &vote.beacon.signature) {
            return Err(Rejected::Forged);
        }
        Ok(())
    }

    fn sight(&mut self, beacon: &Arc<Beacon>, made: Tick) {
        if beacon.leader == self.me {
            return;
        }
        match self.sightings.get_mut(&beacon.leader) {
            // A stamp seen before is never made younger; an older stamp tells nothing new.
            Some(s) if beacon.stamp < s.beacon.stamp => {}
            Some(s) if beacon.stamp == s.beacon.stamp => s.made = s.made.min(made),
            Some(s) => *s = Sighting { beacon: beacon.clone(), made: made.max(s.made) },
            None => {
                if self.sightings.len() >= MAX_SIGHTINGS {
                    remove_min(&mut self.sightings, |s| s.made);
                }
                self.sightings.insert(beacon.leader, Sighting { beacon: beacon.clone(), made });
            }
        }
    }

    /// Whether `leader` made a beacon recently enough.
    fn alive(&self, leader: &PeerId, now: Tick) -> bool {
        *leader == self.me
            || self
                .sightings
                .get(leader)
                .is_some_and(|s| now.saturating_since(s.made) <= self.config.validity())
    }

    fn round(&mut self, now: Tick, rng: &mut SmallRng) -> Option<LeaderChange> {
        let validity = self.config.validity();
        // Nearly all of them name the current leader: it is looked up once.
        let current_lives = self.alive(&self.current, now);
        let mut neighbours = std::mem::take(&mut self.neighbours);
        neighbours.retain(|_, n| {
            let leader = &n.beacon.leader;
            now.saturating_since(n.heard) <= validity
                && if *leader == self.current { current_lives } else { self.alive(leader, now) }
        });
        self.neighbours = neighbours;
        // Sightings stay, up to their bound: a node that forgot a stamp would take it for new again.
        let votes: Vec<PeerId> = {
            // A vote of ten rounds ago is valid, but its voter has thought on since: the latest
            // votes are sampled first. (With random ties, any valid one is.)
            let lately = self.config.delta_r * 5 / 4;
            let valid = || self.neighbours.values();
            let mut all: Vec<_> =
                valid().filter(|n| now.saturating_since(n.heard) <= lately).collect();
            if all.len() < SAMPLE || self.config.tie == TieBreak::Random {
                all = valid().collect();
            }
            // While no leader is established nothing is to be kept calm: every vote at hand is counted, so that
            // the best candidate spreads as fast as votes travel. (With random ties, three as documented.)
            let settled = current_lives && self.established(&self.current, now);
            if !settled && self.config.tie == TieBreak::Ranked {
                all.iter().map(|n| n.beacon.leader).collect()
            } else {
                let drawn = index::sample(rng, all.len(), SAMPLE.min(all.len()));
                drawn.iter().map(|i| all[i].beacon.leader).collect()
            }
        };
        let next = self.decide(now, &votes, rng);

        if next == self.current && !self.confirmed && self.established(&next, now) {
            self.confirmed = true;
            self.stable_until = self.config.sticky.map_or(Tick::ZERO, |s| now + s);
        }
        if next == self.current {
            return None;
        }
        let change =
            LeaderChange { from: self.current, to: next, tenure: now.saturating_since(self.since) };
        self.current = next;
        self.since = now;
        self.confirmed = false;
        self.stable_until = Tick::ZERO;
        Some(change)
    }

    fn decide(&self, now: Tick, votes: &[PeerId], rng: &mut SmallRng) -> PeerId {
        let seen = self.alive(&self.current, now);
        let current = if seen { self.current } else { self.me };
        let count = |who: &PeerId| votes.iter().filter(|l| *l == who).count();
        match self.config.tie {
            TieBreak::Ranked => {
                let rank = |who: &PeerId| match self.sightings.get(who) {
                    Some(s) => (s.beacon.term, s.beacon.reign, who.rank()),
                    None if *who == self.me => (self.my_term, self.my_reign(now), who.rank()),
                    None => (0, 0, who.rank()),
                };
                // A node that leads by consensus stands by itself, or no other would ever hear of its term.
                let me = (self.my_term > 0).then_some(self.me);
                let best = votes.iter().copied().chain(me).max_by_key(rank).unwrap_or(current);
                if best == current || rank(&best) <= rank(&current) {
                    return current;
                }
                if rank(&best).0 > rank(&current).0 {
                    return best;
                }
                let lead = count(&best) as i64 - count(&current) as i64;
                let calm = now < self.stable_until
                    || (self.confirmed && lead < i64::from(self.config.hysteresis));
                if seen && calm { current } else { best }
            }
            TieBreak::Random => {
                if seen && current != self.me && now < self.stable_until {
                    return current;
                }
                if let Some(most) = votes.iter().find(|l| count(l) >= 2) {
                    return *most;
                }
                votes.choose(rng).copied().unwrap_or(current)
            }
        }
    }

    /// A node that leads by consensus, or has led the gossip for a validity time: before, a leader is a
    /// candidate that happens to be ahead, and no node should stick to it.
    fn established(&self, leader: &PeerId, now: Tick) -> bool {
        if *leader == self.me {
            return self.my_term > 0 || self.my_reign(now) > 0;
        }
        self.sightings.get(leader).is_some_and(|s| s.beacon.term > 0 || s.beacon.reign > 0)
    }

    /// Counted in validity times: a leader younger than one is as good as any candidate.
    fn my_reign(&self, now: Tick) -> u32 {
        if self.current != self.me {
            return 0;
        }
        (now.saturating_since(self.since).as_micros() / self.config.validity().as_micros()) as u32
    }

    fn stamp_now(&self, now: Tick) -> u64 {
        self.base + now.saturating_since(self.started).as_millis() as u64 + 1
    }

    fn vote(&mut self, now: Tick, keys: &dyn Keys) -> Vote {
        let fresh = self.stamp_now(now).max(self.last_stamp + 1);
        self.last_stamp = fresh;
        let relayed = self.sightings.get(&self.current).filter(|_| self.current != self.me);
        let (beacon, age) = match relayed {
            Some(s) => (s.beacon.clone(), now.saturating_since(s.made).as_millis() as u32),
            None => {
                let mut beacon = Beacon {
                    leader: self.me,
                    term: self.my_term,
                    reign: self.my_reign(now),
                    stamp: fresh,
                    signature: Signature::NONE,
                };
                beacon.signature = keys.sign(beacon_text(&self.namespace, &beacon).bytes());
                (Arc::new(beacon), 0)
            }
        };
        let mut vote = Vote {
            voter: self.me,
            seq: fresh,
            beacon,
            age,
            hungry: self.recent_voters(now).take(SAMPLE).count() < SAMPLE,
            signature: Signature::NONE,
        };
        vote.signature = keys.sign(vote_text(&self.namespace, &vote).bytes());
        vote
    }
}

/// Removes the entry with the smallest key, the first by name among equals.
fn remove_min<V, K: Ord>(map: &mut BTreeMap<PeerId, V>, key: impl Fn(&V) -> K) {
    if let Some(peer) = map.iter().min_by_key(|(_, v)| key(v)).map(|(peer, _)| *peer) {
        map.remove(&peer);
    }
}

#[cfg(test)]
mod tests;
