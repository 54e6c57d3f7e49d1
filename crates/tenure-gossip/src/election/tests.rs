use proptest::prelude::*;
use rand::SeedableRng;

use super::*;
use crate::identity::Ed25519Keys;

fn id(n: u8) -> PeerId {
    PeerId([n; 32])
}

fn at(ms: u64) -> Tick {
    Tick::ZERO + Duration::from_millis(1_000_000 + ms)
}

/// Keys that notice a wrong signer and a changed message, of a name that a test chooses.
struct StandInKeys(PeerId);

impl StandInKeys {
    fn tag(signer: &PeerId, message: &[u8]) -> [u8; 32] {
        *blake3::keyed_hash(&signer.0, message).as_bytes()
    }
}

impl Keys for StandInKeys {
    fn id(&self) -> PeerId {
        self.0
    }

    fn sign(&self, message: &[u8]) -> Signature {
        let mut signature = Signature::NONE;
        signature.0[..32].copy_from_slice(&Self::tag(&self.0, message));
        signature
    }

    fn verify(&self, signer: &PeerId, message: &[u8], signature: &Signature) -> bool {
        signature.0[..32] == Self::tag(signer, message)
    }
}

/// A node, its keys, and the means to vote as any other.
struct Scene {
    me: Election,
    keys: StandInKeys,
    rng: SmallRng,
    seq: u64,
}

impl Scene {
    fn with(config: ElectionConfig) -> Self {
        let mut rng = SmallRng::seed_from_u64(1);
        let me = Election::new(id(1), "ns", config, 1, at(0), &mut rng);
        Self { me, keys: StandInKeys(id(1)), rng, seq: 0 }
    }

    fn new() -> Self {
        Self::with(ElectionConfig::default())
    }

    fn beacon(leader: u8, term: u64, reign: u32, stamp: u64) -> Arc<Beacon> {
        let mut beacon =
            Beacon { leader: id(leader), term, reign, stamp, signature: Signature::NONE };
        beacon.signature = StandInKeys(id(leader)).sign(beacon_text("ns", &beacon).bytes());
        Arc::new(beacon)
    }

    fn vote(&mut self, voter: u8, beacon: Arc<Beacon>, age: u32) -> Vote {
        self.seq += 1;
        let mut vote = Vote {
            voter: id(voter),
            seq: self.seq,
            beacon,
            age,
            hungry: false,
            signature: Signature::NONE,
        };
        vote.signature = StandInKeys(id(voter)).sign(vote_text("ns", &vote).bytes());
        vote
    }

    fn hear(
        &mut self,
        now: Tick,
        voter: u8,
        beacon: Arc<Beacon>,
        age: u32,
    ) -> Result<(), Rejected> {
        let vote = self.vote(voter, beacon, age);
        self.me.handle_vote(now, id(voter), &vote, &self.keys)
    }

    /// Three neighbours vote for a leader, and a round passes.
    fn round(&mut self, now: Tick, beacon: &Arc<Beacon>, age: u32) -> Option<LeaderChange> {
        for voter in [11, 12, 13] {
            let _ = self.hear(now, voter, beacon.clone(), age);
        }
        self.me.round(now, &mut self.rng)
    }
}

#[test]
fn alone_one_leads_oneself() {
    let mut s = Scene::new();
    for ms in (0..60_000).step_by(300) {
        assert_eq!(s.me.round(at(ms), &mut s.rng), None);
    }
    assert_eq!(s.me.leader(), id(1));
}

#[test]
fn a_forged_vote_is_rejected_and_counted() {
    let mut s = Scene::new();
    let good = s.vote(2, Scene::beacon(9, 0, 0, 1), 0);
    let mut changed = good.clone();
    changed.age = 7;
    let mut lent = good.clone();
    Arc::make_mut(&mut lent.beacon).stamp = 99;
    lent.signature = StandInKeys(id(2)).sign(vote_text("ns", &lent).bytes());
    for (from, vote) in [(2, changed), (3, good.clone()), (2, lent)] {
        assert_eq!(s.me.handle_vote(at(0), id(from), &vote, &s.keys), Err(Rejected::Forged));
    }
    assert_eq!(s.me.rejected().get(&Rejected::Forged), Some(&3));
    assert_eq!(s.me.handle_vote(at(0), id(2), &good, &s.keys), Ok(()));
}

#[test]
fn a_vote_for_another_namespace_is_forged_here() {
    let mut s = Scene::new();
    let mut vote = s.vote(2, Scene::beacon(9, 0, 0, 1), 0);
    vote.signature = StandInKeys(id(2)).sign(vote_text("other", &vote).bytes());
    assert_eq!(s.me.handle_vote(at(0), id(2), &vote, &s.keys), Err(Rejected::Forged));
}

#[test]
fn a_replayed_vote_is_rejected_and_counted() {
    let mut s = Scene::new();
    let vote = s.vote(2, Scene::beacon(9, 0, 0, 1), 0);
    assert_eq!(s.me.handle_vote(at(0), id(2), &vote, &s.keys), Ok(()));
    assert_eq!(s.me.handle_vote(at(9), id(2), &vote, &s.keys), Err(Rejected::Replayed));
    assert_eq!(s.me.rejected().get(&Rejected::Replayed), Some(&1));
}

#[test]
fn a_stale_beacon_is_rejected_from_every_relay_and_whatever_age_it_claims() {
    let mut s = Scene::new();
    let beacon = Scene::beacon(9, 0, 0, 1);
    assert_eq!(s.hear(at(0), 2, beacon.clone(), 5_000), Err(Rejected::Stale));
    assert_eq!(s.hear(at(0), 2, beacon.clone(), 0), Ok(()));
    // Fresh again, says the relay; the stamp says otherwise.
    let late = at(0) + s.me.config.validity() + Duration::from_millis(1);
    assert_eq!(s.hear(late, 3, beacon, 0), Err(Rejected::Stale));
    assert_eq!(s.me.rejected().get(&Rejected::Stale), Some(&2));
}

#[test]
fn a_leader_without_new_stamps_is_forgotten_after_the_validity() {
    let mut s = Scene::new();
    let beacon = Scene::beacon(9, 0, 5, 1);
    assert!(s.round(at(0), &beacon, 0).is_some());
    let mut now = at(0);
    while now.saturating_since(at(0)) <= s.me.config.validity() {
        assert_eq!(s.me.leader(), id(9));
        now = now + Duration::from_millis(300);
        let age = now.saturating_since(at(0)).as_millis() as u32;
        s.round(now, &beacon, age);
    }
    assert_eq!(s.me.leader(), id(1));
}

#[test]
fn a_later_consensus_term_wins_against_any_reign_and_any_majority() {
    let mut s = Scene::new();
    s.round(at(0), &Scene::beacon(8, 3, 1_000, 1), 0);
    assert_eq!(s.me.leader(), id(8));
    s.hear(at(300), 21, Scene::beacon(7, 4, 0, 1), 0).expect("a good vote");
    s.me.neighbours.retain(|p, _| *p == id(21));
    s.me.round(at(310), &mut s.rng);
    assert_eq!(s.me.leader(), id(7));
}

#[test]
fn an_established_leader_is_not_displaced_by_a_newcomer() {
    let mut s = Scene::new();
    s.round(at(0), &Scene::beacon(8, 0, 3, 1), 0);
    for n in 30..60 {
        s.round(at(u64::from(n) * 10), &Scene::beacon(n, 0, 0, 1), 0);
    }
    assert_eq!(s.me.leader(), id(8));
}

#[test]
fn a_sticky_leader_is_kept_for_its_time_while_it_is_seen() {
    let mut s = Scene::new();
    s.round(at(0), &Scene::beacon(8, 0, 1, 1), 0);
    s.round(at(300), &Scene::beacon(8, 0, 1, 2), 0);
    let older = |stamp| Scene::beacon(9, 0, 50, stamp);
    s.round(at(600), &older(1), 0);
    assert_eq!(s.me.leader(), id(8), "within the sticky time");
    s.round(at(3_400), &older(2), 0);
    assert_eq!(s.me.leader(), id(9), "after it");
    // And not a moment beyond its life.
    let mut s = Scene::with(ElectionConfig {
        sticky: Some(Duration::from_secs(60)),
        ..ElectionConfig::default()
    });
    s.round(at(0), &Scene::beacon(8, 0, 1, 1), 0);
    s.round(at(300), &Scene::beacon(8, 0, 1, 2), 0);
    s.round(at(6_000), &older(1), 0);
    assert_eq!(s.me.leader(), id(9), "a dead leader is not stuck to");
}

#[test]
fn hysteresis_wants_more_votes_than_the_current_leader_has() {
    let config = ElectionConfig { hysteresis: 2, sticky: None, ..ElectionConfig::default() };
    let mut s = Scene::with(config);
    s.round(at(0), &Scene::beacon(8, 0, 1, 1), 0);
    s.round(at(300), &Scene::beacon(8, 0, 1, 2), 0);
    // Two of three for the older one: a lead of one, too little.
    for (voter, leader) in [(11, 9), (12, 9), (13, 8)] {
        s.hear(at(600), voter, Scene::beacon(leader, 0, u32::from(leader) * 10, 9), 0)
            .expect("good");
    }
    s.me.round(at(610), &mut s.rng);
    assert_eq!(s.me.leader(), id(8));
    s.round(at(900), &Scene::beacon(9, 0, 90, 10), 0);
    assert_eq!(s.me.leader(), id(9));
}

#[test]
fn random_ties_pick_one_of_the_sampled() {
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..50 {
        let mut s = Scene::with(ElectionConfig::documented());
        s.rng = SmallRng::seed_from_u64(seed);
        for n in [21, 22, 23] {
            s.hear(at(0), n, Scene::beacon(n, 0, 0, 1), 0).expect("good");
        }
        s.me.round(at(10), &mut s.rng);
        seen.insert(s.me.leader());
    }
    assert_eq!(seen.len(), 3);
}

#[test]
fn without_stickiness_and_hysteresis_rank_alone_decides() {
    let mut s = Scene::with(ElectionConfig { sticky: None, ..ElectionConfig::default() });
    s.round(at(0), &Scene::beacon(8, 0, 1, 1), 0);
    s.round(at(300), &Scene::beacon(8, 0, 1, 2), 0);
    s.round(at(600), &Scene::beacon(9, 0, 50, 1), 0);
    assert_eq!(s.me.leader(), id(9));
}

#[test]
fn longer_rounds_vote_as_often_as_they_are_long_and_remember_for_longer() {
    let second = Duration::from_secs(1);
    let mut s = Scene::with(ElectionConfig { delta_r: second, ..ElectionConfig::default() });
    let mut sent = Vec::new();
    while s.me.poll_timeout() <= at(20_000) {
        let now = s.me.poll_timeout();
        sent.extend(s.me.handle_timeout(now, &s.keys, &mut s.rng).1.map(|_| now));
    }
    assert!(
        sent.len() >= 19 && sent.windows(2).all(|w| w[1].saturating_since(w[0]) == second),
        "{sent:?}"
    );
    assert_eq!(s.me.config.validity(), Duration::from_millis(16_050));
}

#[test]
fn bad_parameters_are_named() {
    let bad = |c: ElectionConfig| c.validate().unwrap_err().field;
    let d = ElectionConfig::default;
    assert!(d().validate().is_ok() && ElectionConfig::documented().validate().is_ok());
    assert_eq!(bad(ElectionConfig { diameter: 0, ..d() }), "diameter");
    assert_eq!(bad(ElectionConfig { delta_r: Duration::from_millis(200), ..d() }), "delta_r");
    assert_eq!(bad(ElectionConfig { hysteresis: 4, ..d() }), "hysteresis");
    assert_eq!(d().validity(), Duration::from_millis(50 + 16 * 300));
}

#[test]
fn real_signatures_are_checked_the_same_way() {
    let (a, b) = (Ed25519Keys::generate(), Ed25519Keys::generate());
    let mut rng = SmallRng::seed_from_u64(1);
    let mut mine = Election::new(a.id(), "ns", ElectionConfig::default(), 1, at(0), &mut rng);
    let mut theirs = Election::new(b.id(), "ns", ElectionConfig::default(), 1, at(0), &mut rng);
    let vote = theirs.vote(at(10), &b);
    let mut forged = vote.clone();
    Arc::make_mut(&mut forged.beacon).reign = 1_000_000;
    assert_eq!(mine.handle_vote(at(20), b.id(), &forged, &a), Err(Rejected::Forged));
    assert_eq!(mine.handle_vote(at(20), b.id(), &vote, &a), Ok(()));
}

proptest! {
    /// However often and through however many nodes a dead leader's last beacon is passed on, no node follows it for
    /// longer than its validity after it was first seen.
    #[test]
    fn a_dead_leader_cannot_be_kept_alive(ages in prop::collection::vec((0u32..4_000, 2u8..40, 1u64..900), 1..80)) {
        let mut s = Scene::new();
        let beacon = Scene::beacon(200, 7, 9, 1);
        s.hear(at(0), 99, beacon.clone(), 0).expect("the last true word");
        let mut now = at(0);
        for (age, voter, wait) in ages {
            now = now + Duration::from_millis(wait);
            let _ = s.hear(now, voter, beacon.clone(), age);
            s.me.round(now, &mut s.rng);
            if now.saturating_since(at(0)) > s.me.config.validity() {
                prop_assert_ne!(s.me.leader(), id(200));
            }
        }
    }
}
