use std::sync::Mutex;
use std::thread;

use super::*;
use crate::gossip::mistake::{Mistake, seeds_of};
use tenure_gossip::commit::CommitError;

/// Runs seeds on two threads; what broke, in order; and how many orders about members were taken, and old copies
/// found out.
fn broken(range: std::ops::Range<u64>) -> (Vec<(u64, Violation)>, u64, u64) {
    let found = Mutex::new(Vec::new());
    let sums = Mutex::new((0, 0));
    thread::scope(|scope| {
        for half in 0..2 {
            let (range, found, sums) = (range.clone(), &found, &sums);
            scope.spawn(move || {
                for seed in range.filter(|s| s % 2 == half) {
                    match storm(seed, None) {
                        Ok(Verdict { figures, .. }) => {
                            let mut sums = sums.lock().expect("no panic holds it");
                            sums.0 += figures.members_changed;
                            sums.1 += figures.expelled;
                        }
                        Err(v) => found.lock().expect("no panic holds it").push((seed, v)),
                    }
                }
            });
        }
    });
    let mut found = found.into_inner().expect("no panic held it");
    found.sort_by_key(|(s, _)| *s);
    let (changed, expelled) = sums.into_inner().expect("no panic held it");
    (found, changed, expelled)
}

/// `TENURE_SIM_SEEDS=10000` runs more than the 500 of every test run, `TENURE_SIM_FIRST=20000` others.
fn seeds() -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let first = number("TENURE_SIM_FIRST").unwrap_or(0);
    first..first + number("TENURE_SIM_SEEDS").unwrap_or(500)
}

#[test]
fn nothing_diverges_and_everything_recovers_in_a_storm_of_faults() {
    let range = seeds();
    let seeds = range.end - range.start;
    let (broken, changed, expelled) = broken(range);
    assert!(broken.is_empty(), "{} broken: {:?}", broken.len(), &broken[..broken.len().min(5)]);
    // The faults that need a leader and its group do happen.
    assert!(changed > seeds / 2 && expelled > seeds / 4, "{changed} orders, {expelled} old copies");
}

#[test]
fn one_seed_is_one_trace() {
    let trace = |seed| storm(seed, None).expect("a sound seed").trace;
    assert_eq!(trace(7), trace(7));
    assert_ne!(trace(7), trace(8));
}

/// Every seed on file for `mistake` breaks an invariant, or the liveness check, in these words.
fn assert_caught(mistake: Mistake, words: &str) {
    for seed in seeds_of(mistake) {
        match storm(seed, Some(mistake)) {
            Ok(_) => panic!("seed {seed}: {mistake:?} was not noticed"),
            Err(v) => assert!(v.what.contains(words), "seed {seed}: {mistake:?} caused: {v}"),
        }
        let sound = storm(seed, None);
        assert!(sound.is_ok(), "seed {seed} breaks without a mistake: {:?}", sound.err());
    }
}

/// Looks for seeds to put on file: `cargo test -p tenure-sim find_seeds -- --ignored --nocapture`;
/// `TENURE_SIM_MISTAKE` names one mistake.
#[test]
#[ignore = "prints seeds; it asserts nothing"]
#[allow(clippy::print_stdout, reason = "its output is what it is for")]
fn find_seeds() {
    let wanted = std::env::var("TENURE_SIM_MISTAKE").ok();
    for mistake in Mistake::ALL {
        if wanted.as_ref().is_some_and(|name| name != mistake.name()) {
            continue;
        }
        for seed in 0..40 {
            if let Err(v) = storm(seed, Some(mistake)) {
                println!("{} {seed} # {}", mistake.name(), v.what);
            }
        }
    }
}

#[test]
fn skipping_a_transaction_on_timeout_is_caught() {
    assert_caught(Mistake::SkipOnTimeout, "without having applied");
}

#[test]
fn voting_within_a_lease_is_caught() {
    assert_caught(Mistake::VoteWithinLease, "are open at once");
}

#[test]
fn sending_before_persisting_is_caught() {
    assert_caught(Mistake::SendBeforePersist, "applies another record");
}

#[test]
fn forgetting_which_transactions_committed_is_caught() {
    assert_caught(Mistake::ForgetTransactions, "in the history already");
}

#[test]
fn a_gate_that_follows_the_hint_is_caught() {
    assert_caught(Mistake::GateOnHint, "are open at once");
}

// Five cases that every election of this kind must pass.

fn settled(nodes: usize) -> World {
    let mut world = World::new(WorldConfig::calm(11, nodes));
    let acting = world.run_until(10_000, |w| w.acting().is_some()).expect("no invariant breaks");
    assert!(acting, "no gate is open after ten seconds");
    world
}

fn tx(n: u8) -> TxId {
    TxId([n; 16])
}

fn increment() -> KvGoal {
    KvGoal::Increment { key: "n".into(), by: 1 }
}

#[test]
fn single_node_is_always_its_own_leader() {
    let mut world = settled(1);
    for n in 1..20 {
        assert!(world.submit(0, tx(n), &increment()));
        world.run(500).expect("sound");
        assert_eq!((world.acting(), world.hint(0)), (Some(0), Some(0)));
    }
    assert_eq!((world.figures.committed, world.figures.hint_changes), (19, 0));
}

#[test]
fn two_nodes_elect_one_stable_leader() {
    let mut world = settled(2);
    world.run(10_000).expect("sound");
    let (leader, terms) = (world.acting(), world.figures.terms_acted);
    let changes = world.figures.hint_changes;
    assert_eq!(world.hint(0), leader);
    assert_eq!(world.hint(1), leader);
    world.run(600_000).expect("sound");
    assert_eq!((world.acting(), world.figures.terms_acted), (leader, terms));
    assert_eq!(world.figures.hint_changes, changes);
}

#[test]
fn network_partition_heals_without_divergence() {
    let mut world = settled(5);
    let old = world.acting().expect("a leader");
    let other = (old + 1) % 5;
    world.split(&BTreeSet::from([old, other]));
    // Both sides take goals; only the majority's can commit.
    assert!(world.submit(old, tx(1), &increment()));
    let far = (0..5).find(|i| *i != old && *i != other).expect("three are left");
    assert!(world.submit(far, tx(2), &increment()));
    let committed = world.run_until(5_000, |w| w.committed(&tx(2)).is_some()).expect("sound");
    assert!(committed && world.committed(&tx(1)).is_none());
    assert_ne!(world.acting(), Some(old));
    world.heal(Faults::default());
    assert!(world.run_until(20_000, is_well).expect("sound"));
    assert!(world.committed(&tx(1)).is_some(), "what waited in the minority commits after healing");
}

#[test]
fn leader_failure_elects_another_within_three_seconds() {
    for seed in 0..20 {
        let mut world = World::new(WorldConfig::calm(seed, 3));
        assert!(world.run_until(10_000, |w| w.acting().is_some()).expect("sound"));
        let old = world.acting().expect("a leader");
        world.crash(old);
        let another = world.run_until(3_000, |w| w.acting().is_some()).expect("sound");
        assert!(another, "seed {seed}: no gate is open three seconds after the leader's death");
    }
}

#[test]
fn transaction_during_leader_change_commits_exactly_once() {
    for seed in 0..40 {
        let mut world = World::new(WorldConfig::calm(seed, 3));
        assert!(world.run_until(10_000, |w| w.acting().is_some()).expect("sound"));
        let old = world.acting().expect("a leader");
        let (near, far) = ((old + 1) % 3, (old + 2) % 3);
        assert!(world.submit(near, tx(1), &increment()));
        // Somewhere between the goal's departure and its result, a different place for every seed.
        world.run(seed).expect("sound");
        world.crash(old);
        assert!(world.submit(far, tx(1), &increment()), "the caller tries elsewhere");
        let done = world.run_until(10_000, |w| {
            [near, far].iter().all(|i| w.node(*i).is_some_and(|n| n.pending() == 0))
        });
        assert!(done.expect("sound"), "seed {seed}");
        let value = world.node(near).and_then(|n| n.chain().machine().get("n").cloned());
        assert_eq!(value, Some(json!(1)), "seed {seed}");
    }
}

#[test]
fn a_goal_that_reaches_the_next_leader_before_it_acts_is_not_late() {
    for (nodes, seed) in [3, 5, 7].into_iter().flat_map(|n| (0..30).map(move |s| (n, s))) {
        let mut world = World::new(WorldConfig::calm(seed, nodes));
        assert!(world.run_until(10_000, |w| w.acting().is_some()).expect("sound"));
        world.run(3_000).expect("sound");
        let old = world.acting().expect("a leader");
        world.crash(old);
        let begun = world.now_ms();
        assert!(world.submit((old + 1) % nodes, tx(1), &increment()));
        assert!(world.run_until(10_000, |w| w.committed(&tx(1)).is_some()).expect("sound"));
        let took = world.now_ms() - begun;
        assert!(took <= 2_000, "{nodes} nodes, seed {seed}: decided after {took} ms");
    }
}

#[test]
fn three_peers_are_asked_for_history_when_a_goal_goes_unanswered() {
    let mut world = settled(7);
    let leader = world.acting().expect("a leader");
    let caller = (leader + 1) % 7;
    world.figures.peers_asked = 0;
    // Nothing that the caller sends arrives, and it hears everything: only its goal is lost.
    (0..7).filter(|i| *i != caller).for_each(|i| world.deafen(caller, i));
    assert!(world.submit(caller, tx(1), &increment()));
    world.run(6_000).expect("sound");
    assert_eq!((world.figures.goal_timeouts, world.figures.peers_asked), (1, 3));
}

// And what an operator relies on.

fn world_with(seed: u64, nodes: usize, mistake: Option<Mistake>) -> (World, usize) {
    let mut config = WorldConfig::calm(seed, nodes);
    config.mistake = mistake;
    let mut world = World::new(config);
    assert!(world.run_until(10_000, |w| w.acting().is_some()).expect("sound"));
    let leader = world.acting().expect("a leader");
    (world, leader)
}

/// Puts a voter back to an earlier copy. Whether it is removed; and the group goes on in any case.
fn removes_an_earlier_copy(seed: u64, mistake: Option<Mistake>) -> bool {
    let (mut world, leader) = world_with(seed, 3, mistake);
    let old = (leader + 1) % 3;
    let copy = world.copy_disk(old);
    for n in 1..20 {
        assert!(world.submit(leader, tx(n), &increment()));
        world.run(100).expect("sound");
    }
    world.crash(old);
    world.put_back(old, &copy);
    world.start(old);
    let id = world.node(old).expect("it runs").id();
    let removed = world.run_until(10_000, |w| {
        w.node(leader).is_some_and(|n| {
            let members = n.commit().status(Tick::ZERO).members;
            !members.contains(&id) && members.next.is_empty() && n.barred().contains_key(&id)
        })
    });
    if mistake.is_some() {
        // A broken invariant shows it as well.
        return removed.unwrap_or(false);
    }
    let removed = removed.expect("sound");
    assert!(world.submit(leader, tx(99), &increment()));
    assert!(world.run_until(2_000, |w| w.committed(&tx(99)).is_some()).expect("sound"));
    removed
}

#[test]
fn a_voter_put_back_to_an_earlier_copy_is_removed_and_the_others_go_on() {
    for seed in 0..10 {
        assert!(removes_an_earlier_copy(seed, None), "seed {seed}: it still votes");
    }
}

#[test]
fn believing_a_voter_that_forgot_is_caught() {
    for seed in seeds_of(Mistake::BelieveTheForgetful) {
        let mistake = Some(Mistake::BelieveTheForgetful);
        assert!(
            !removes_an_earlier_copy(seed, mistake),
            "seed {seed}: it was removed all the same"
        );
    }
}

/// A voter dies and a fourth node joins. Whether it stays a learner: two of four would be no majority.
fn grows_no_further(seed: u64, mistake: Option<Mistake>) -> bool {
    let mut config = WorldConfig::calm(seed, 4);
    (config.voters, config.node.max_voters, config.mistake) = (3, 4, mistake);
    let mut world = World::new(config);
    assert!(world.run_until(10_000, |w| w.acting().is_some()).expect("sound"));
    let leader = world.acting().expect("a leader");
    world.crash((leader + 1) % 3);
    world.run(5_000).expect("sound");
    let leader = world.acting().unwrap_or(leader);
    world.start(3);
    let id = world.node(3).expect("it runs").id();
    let members = |w: &World| w.node(leader).map(|n| n.commit().status(Tick::ZERO).members);
    let learns = world.run_until(10_000, |w| members(w).is_some_and(|m| m.contains(&id)));
    assert!(learns.expect("sound"), "seed {seed}: it does not even learn");
    world.run(10_000).expect("sound");
    !members(&world).expect("it runs").is_voter(&id)
}

#[test]
fn a_group_with_a_dead_voter_grows_no_further() {
    for seed in 0..10 {
        assert!(grows_no_further(seed, None), "seed {seed}");
    }
}

#[test]
fn growing_past_a_dead_voter_is_caught() {
    for seed in seeds_of(Mistake::GrowPastTheDead) {
        assert!(!grows_no_further(seed, Some(Mistake::GrowPastTheDead)), "seed {seed}");
    }
}

/// With a single voter the joint majority would never come.
#[test]
fn a_learner_that_is_gone_gets_no_vote() {
    let mut config = WorldConfig::calm(1, 2);
    (config.voters, config.node.max_voters) = (1, 1);
    let mut world = World::new(config);
    assert!(world.run_until(10_000, |w| w.acting().is_some()).expect("sound"));
    let leader = world.acting().expect("a leader");
    world.start(1 - leader);
    let id = world.id(1 - leader);
    world.change_members(leader, MemberChange::Learn(id)).expect("it leads");
    let learns = world.run_until(10_000, |w| {
        members_at(w, leader).is_some_and(|members| members.learners.contains(&id))
    });
    assert!(learns.expect("sound"));
    world.crash(1 - leader);
    world.run(10_000).expect("sound");
    let refused = world.change_members(leader, MemberChange::Promote(id));
    assert_eq!(refused, Err(CommitError::Behind(id)));
    assert!(world.submit(leader, tx(1), &increment()));
    assert!(world.run_until(5_000, |w| w.committed(&tx(1)).is_some()).expect("sound"));
}

#[test]
fn a_goal_reaches_the_leader_through_a_neighbour_when_only_the_direct_line_is_cut() {
    for seed in 0..10 {
        let mut world = World::new(WorldConfig::calm(seed, 3));
        assert!(world.run_until(10_000, |w| w.acting().is_some()).expect("sound"));
        world.run(3_000).expect("sound");
        let leader = world.acting().expect("a leader");
        let caller = (leader + 1) % 3;
        world.deafen(leader, caller);
        world.deafen(caller, leader);
        assert!(world.submit(caller, tx(1), &increment()));
        let done = world.run_until(8_000, |w| w.node(caller).is_some_and(|n| n.pending() == 0));
        assert!(done.expect("sound"), "seed {seed}: its caller still waits");
        assert!(world.committed(&tx(1)).is_some());
    }
}

#[test]
fn a_change_of_the_members_counts_when_it_is_committed() {
    let mut world = settled(5);
    let leader = world.acting().expect("a leader");
    let id = world.node((leader + 1) % 5).expect("it runs").id();
    let change = MemberChange::Remove(id);
    world.split(&BTreeSet::from([leader]));
    world.change_members(leader, change).expect("it leads within its lease");
    let term = world.node(leader).expect("it runs").commit().status(Tick::ZERO).term;
    let outcome =
        |w: &World| w.node(leader).and_then(|n| n.changed_members(Tick::ZERO, term, &change));
    world.run(500).expect("sound");
    assert_eq!(outcome(&world), None, "no other node has it");
    world.heal(Faults::default());
    assert!(world.run_until(5_000, |w| outcome(w).is_some()).expect("sound"));
    assert_eq!(outcome(&world), Some(Ok(())));
}

#[test]
fn a_leader_that_halts_gives_way_to_a_healthy_node() {
    for seed in 0..10 {
        let mut world = World::new(WorldConfig::calm(seed, 3));
        assert!(world.run_until(10_000, |w| w.acting().is_some()).expect("sound"));
        world.run(3_000).expect("sound");
        let leader = world.acting().expect("a leader");
        let other = (leader + 1) % 3;
        let fake = {
            let node = world.node(leader).expect("it leads");
            node.chain().execute(1, node.id(), tx(66), increment().to_bytes())
        };
        world.mislead(leader, fake);
        assert!(world.submit(other, tx(1), &increment()));
        let decided = world.run_until(3_000, |w| w.committed(&tx(1)).is_some()).expect("sound");
        assert!(decided, "seed {seed}: the others wait for a leader that has halted");
        assert!(world.node(leader).is_some_and(|n| n.halted().is_some()));
        assert_ne!(world.acting(), Some(leader));
        // The first goal may have been the halted leader's last; the next one needs another leader.
        assert!(world.submit(other, tx(2), &increment()));
        let decided = world.run_until(1_000, |w| w.committed(&tx(2)).is_some()).expect("sound");
        assert!(decided, "seed {seed}: no other node leads, though it was freed at once");
    }
}

/// The stored state of a node is damaged. Whether it halts; and the others go on.
fn halts_with_another_state(seed: u64, mistake: Option<Mistake>) -> bool {
    let (mut world, leader) = world_with(seed, 3, mistake);
    let other = (leader + 1) % 3;
    for n in 1..60 {
        let goal = KvGoal::Put { key: format!("k{n}"), value: (f64::from(n) / 3.0).into() };
        assert!(world.submit(leader, tx(n), &goal));
        world.run(50).expect("sound");
    }
    world.crash(other);
    assert!(world.rot(other), "a snapshot was taken after 32 records");
    world.start(other);
    assert!(world.submit(leader, tx(100), &increment()));
    let halted = world.run_until(5_000, |w| w.node(other).is_some_and(|n| n.halted().is_some()));
    let halted = halted.expect("sound");
    assert!(world.submit(leader, tx(101), &increment()));
    assert!(world.run_until(2_000, |w| w.committed(&tx(101)).is_some()).expect("sound"));
    halted
}

#[test]
fn a_node_whose_state_is_another_halts_at_the_next_checkpoint() {
    for seed in [11, 12, 13] {
        assert!(halts_with_another_state(seed, None), "its state differs, and it serves it");
    }
}

#[test]
fn states_that_are_never_compared_are_caught() {
    for seed in seeds_of(Mistake::NoCheckpoints) {
        assert!(!halts_with_another_state(seed, Some(Mistake::NoCheckpoints)), "seed {seed}");
    }
}

#[test]
fn a_graceful_release_hands_over_in_well_under_the_lease() {
    for seed in 0..20 {
        let mut world = World::new(WorldConfig::calm(seed, 3));
        assert!(world.run_until(10_000, |w| w.acting().is_some()).expect("sound"));
        let old = world.acting().expect("a leader");
        world.release(old);
        assert_eq!(world.acting(), None, "its gate is shut at once");
        let another = world.run_until(500, |w| w.acting().is_some_and(|i| i != old));
        assert!(another.expect("sound"), "seed {seed}");
    }
}

#[test]
fn a_lagging_voter_and_an_observer_catch_up_by_snapshot_and_history() {
    let mut config = WorldConfig::calm(3, 4);
    config.voters = 3;
    config.node.max_voters = 3;
    let mut world = World::new(config);
    assert!(world.run_until(10_000, |w| w.acting().is_some()).expect("sound"));
    let leader = world.acting().expect("a leader");
    let lagging = (leader + 1) % 3;
    world.crash(lagging);
    let mut load = Load::new(5);
    for _ in 0..300 {
        load.work_on(&mut world, leader);
        world.run(20).expect("sound");
    }
    world.start(lagging);
    world.start(3);
    assert!(world.run_until(30_000, is_well).expect("sound"), "{}", what_is_wrong(&world));
    assert!(world.figures.snapshots_installed > 0);
}
