//! From a seed to a verdict: faults, then healing, then the question whether the group is well again.

use std::collections::BTreeSet;

use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use serde_json::json;
use tenure_core::Tick;

use super::mistake::Mistake;
use super::network::Faults;
use super::world::{Figures, Violation, World, WorldConfig};
use tenure_gossip::KvGoal;
use tenure_gossip::commit::{Commit as _, MemberChange, Members};
use tenure_gossip::history::TxId;
use tenure_gossip::identity::PeerId;

/// How long the faults last, in milliseconds of the simulation.
const STORM: u64 = 20_000;
/// How long the group has to become well again.
const RECOVERY: u64 = 30_000;

/// What a seed came to.
#[derive(Debug, Clone)]
pub struct Verdict {
    /// Figures of the run.
    pub figures: Figures,
    /// A hash of everything that happened.
    pub trace: u64,
    /// How long the group took to become well after healing, in milliseconds.
    pub recovery_ms: u64,
}

/// Runs one seed: a storm of faults over 3 or 5 voters and up to two joiners, then liveness.
///
/// # Errors
/// The invariant that broke, or what was still not well when time was up.
pub fn storm(seed: u64, mistake: Option<Mistake>) -> Result<Verdict, Violation> {
    let mut rng = SmallRng::seed_from_u64(seed ^ 0x5eed);
    let voters = if rng.random_bool(0.6) { 3 } else { 5 };
    let nodes = voters + rng.random_range(0..=2);
    let mut config = WorldConfig::calm(seed, nodes);
    config.voters = voters;
    config.mistake = mistake;
    config.node.max_voters = if rng.random_bool(0.5) { nodes } else { voters };
    config.node.snapshot_every = rng.random_range(16..64);
    config.faults = Faults {
        loss: *[0, 0, 50, 200].choose(&mut rng).expect("a choice"),
        duplicates: *[0, 50, 200].choose(&mut rng).expect("a choice"),
        stragglers: *[0, 10, 100].choose(&mut rng).expect("a choice"),
        delay: (200, *[2_000, 20_000, 80_000].choose(&mut rng).expect("a choice")),
    };
    let faults = config.faults;
    let mut world = World::new(config);
    world.crash_in_flight = *[0, 0, 5].choose(&mut rng).expect("a choice");
    let mut load = Load::new(rng.random());

    world.run(1_500)?;
    let mut until = world.now_ms() + STORM;
    while world.now_ms() < until {
        strike(&mut world, &mut rng, &mut load, faults)?;
        // Between two strikes: work.
        for _ in 0..rng.random_range(2..8) {
            load.work(&mut world);
            world.run(rng.random_range(20..300))?;
        }
    }

    // Everything heals.
    world.crash_in_flight = 0;
    world.heal(Faults::default());
    (0..world.size()).for_each(|i| world.start(i));
    until = world.now_ms();
    let well = world.run_until(RECOVERY, is_well)?;
    let recovery_ms = world.now_ms() - until;
    if !well {
        return Err(Violation { at_ms: world.now_ms(), what: what_is_wrong(&world) });
    }
    // And it works: a goal commits, on every node.
    let one = world.acting().unwrap_or_default();
    let tx = load.work_on(&mut world, one);
    if !world.run_until(15_000, |w| w.committed(&tx).is_some() && is_well(w))? {
        return Err(Violation {
            at_ms: world.now_ms(),
            what: "a goal after healing does not commit".into(),
        });
    }
    let wrong = world.contradictions();
    if !wrong.is_empty() {
        let what = format!("no single store could have answered as it was for {wrong:?}");
        return Err(Violation { at_ms: world.now_ms(), what });
    }
    Ok(Verdict { figures: world.figures.clone(), trace: world.trace(), recovery_ms })
}

fn strike(
    world: &mut World,
    rng: &mut SmallRng,
    load: &mut Load,
    faults: Faults,
) -> Result<(), Violation> {
    let n = world.size();
    let any = rng.random_range(0..n);
    match rng.random_range(0..15) {
        0 | 1 => world.crash(any),
        2 => (0..n).for_each(|i| world.start(i)),
        3 => {
            // The leader, of all.
            let leader = world.acting().unwrap_or(any);
            world.crash(leader);
        }
        4 => {
            let group: BTreeSet<_> = (0..n).filter(|_| rng.random_bool(0.5)).collect();
            world.split(&group);
        }
        5 => {
            let leader = world.acting().unwrap_or(any);
            world.split(&BTreeSet::from([leader]));
        }
        6 => (0..3).for_each(|_| world.deafen(rng.random_range(0..n), rng.random_range(0..n))),
        7 => {
            let who = if rng.random_bool(0.5) { world.acting().unwrap_or(any) } else { any };
            world.pause(who, rng.random_range(100..4_000));
        }
        8 => world.start(any),
        9 => {
            if let Some(leader) = world.acting() {
                world.release(leader);
            }
        }
        10 => {
            // An operator removes a voter; it only follows until an operator adds it again.
            if let Some(leader) = world.acting()
                && let Some(id) = world.node(any).map(|x| x.id())
                && world
                    .node(leader)
                    .is_some_and(|l| l.commit().status(Tick::ZERO).members.voters.len() > 3)
            {
                let _ = world.change_members(leader, MemberChange::Remove(id));
            }
        }
        11 => {
            // An operator replaces a voter, dead or alive, by a node that runs and does not vote.
            if let Some(leader) = world.acting()
                && let Some(members) = members_at(world, leader)
                && let Some(new) = without_a_vote(world, &members)
            {
                let old = world.id(any);
                let _ = world.change_members(leader, MemberChange::Replace { old, new });
            }
        }
        12 => {
            // An operator gives a learner its vote, however many vote already, or lets a node learn.
            if let Some(leader) = world.acting()
                && let Some(members) = members_at(world, leader)
            {
                let learner = members.learners.first().copied();
                let change = learner
                    .map(MemberChange::Promote)
                    .or_else(|| without_a_vote(world, &members).map(MemberChange::Learn));
                let _ = change.map(|change| world.change_members(leader, change));
            }
        }
        13 => old_copy(world, rng, load, faults)?,
        _ => world.heal(faults),
    }
    Ok(())
}

fn members_at(world: &World, i: usize) -> Option<Members> {
    world.node(i).map(|node| node.commit().status(Tick::ZERO).members)
}

/// A node that runs and does not vote.
fn without_a_vote(world: &World, members: &Members) -> Option<PeerId> {
    world.running().map(|(_, node)| node.id()).find(|id| !members.is_voter(id))
}

/// A voter gets an earlier copy of its disk back, once in a run, while the others are well: with one that forgot
/// in a bare majority no protocol could help. The leader whose acknowledgements it forgot finds it out, removes it
/// and goes on; then an operator removes the folder.
fn old_copy(
    world: &mut World,
    rng: &mut SmallRng,
    load: &mut Load,
    faults: Faults,
) -> Result<(), Violation> {
    if world.retired() > 0 {
        return Ok(());
    }
    let crashes = std::mem::take(&mut world.crash_in_flight);
    world.heal(Faults::default());
    (0..world.size()).for_each(|i| world.start(i));
    let well = world.run_until(RECOVERY, is_well)?;
    if let Some(leader) = world.acting().filter(|_| well)
        && let Some(members) = members_at(world, leader).filter(|m| m.voters.len() >= 3)
        && let Some(old) = (0..world.size()).find(|i| {
            *i != leader && world.node(*i).is_some() && members.voters.contains(&world.id(*i))
        })
    {
        let copy = world.copy_disk(old);
        let index = |world: &World| world.node(old).map_or(0, |node| node.chain().index());
        let before = index(world);
        for _ in 0..rng.random_range(5..20) {
            load.work_on(world, leader);
            world.run(100)?;
        }
        let acknowledged = index(world) > before;
        world.crash(old);
        world.put_back(old, &copy);
        world.start(old);
        let id = world.id(old);
        let gone = world.run_until(10_000, |world| {
            members_at(world, leader).is_some_and(|m| !m.contains(&id) && m.next.is_empty())
        })?;
        world.retire(old);
        if gone {
            world.figures.expelled += 1;
        } else if acknowledged && world.acting() == Some(leader) {
            let what = format!("node {old} has forgotten records, and still votes");
            return Err(Violation { at_ms: world.now_ms(), what });
        }
    }
    world.crash_in_flight = crashes;
    world.heal(faults);
    Ok(())
}

/// Goals, some of them sent again on another node under the same name.
pub(crate) struct Load {
    rng: SmallRng,
    next: u64,
}

impl Load {
    pub(crate) fn new(seed: u64) -> Self {
        Self { rng: SmallRng::seed_from_u64(seed), next: 0 }
    }

    pub(crate) fn work(&mut self, world: &mut World) {
        let i = self.rng.random_range(0..world.size());
        self.work_on(world, i);
    }

    pub(crate) fn work_on(&mut self, world: &mut World, i: usize) -> TxId {
        let again = self.next > 0 && self.rng.random_bool(0.2);
        if !again {
            self.next += 1;
        }
        let mut tx = [0; 16];
        tx[..8].copy_from_slice(&self.next.to_be_bytes());
        let tx = TxId(tx);
        let key = format!("k{}", self.next % 7);
        let goal = match self.next % 5 {
            0 => KvGoal::Put { key, value: fraction(self.next) },
            1 => KvGoal::Delete { key },
            2 => KvGoal::Cas {
                key,
                expect: Some(fraction(self.next.wrapping_sub(7))),
                value: fraction(self.next),
            },
            _ => KvGoal::Increment { key: "sum".into(), by: self.next as i64 },
        };
        // A node that is down or busy does not take it; the caller gives up, or tries again later.
        world.submit(i, tx, &goal);
        tx
    }
}

/// A double with all its digits: printing and parsing it must not change it.
fn fraction(n: u64) -> serde_json::Value {
    json!(n as f64 / 3.0e29)
}

/// One leader acts, gossip names one and the same living node, every node has applied the same, none is
/// paused, and nothing waits any more.
pub(crate) fn is_well(world: &World) -> bool {
    let Some(acting) = world.acting() else { return false };
    let mut nodes = world.running();
    let Some((one, first)) = nodes.next() else { return false };
    let same = (first.chain().index(), first.chain().head());
    world.running().all(|(i, n)| {
        (n.chain().index(), n.chain().head()) == same
            && n.pending() == 0
            && !world.is_paused(i)
            && n.leader() == world.node(acting).map(|a| a.id())
            && world.hint(i) == world.hint(one)
    })
}

fn what_is_wrong(world: &World) -> String {
    let nodes: Vec<_> = world
        .running()
        .map(|(i, n)| {
            format!(
                "{i}: index {} pending {} leader {:?} hint {:?}",
                n.chain().index(),
                n.pending(),
                n.leader(),
                world.hint(i)
            )
        })
        .collect();
    format!(
        "not well {} s after healing: acting {:?}; {}",
        RECOVERY / 1_000,
        world.acting(),
        nodes.join("; ")
    )
}

#[cfg(test)]
mod tests;
