use super::*;
use crate::gossip::mistake::{Mistake, seeds_of};
use tenure_gossip::election::TieBreak;

fn crowd(seed: u64, nodes: usize, change: impl FnOnce(&mut CrowdConfig)) -> Crowd {
    let mut config = CrowdConfig::calm(seed, nodes);
    change(&mut config);
    Crowd::new(config)
}

/// Rounds until every node agrees again after the leader is gone.
fn after_death(crowd: &mut Crowd, limit: u32) -> Option<u32> {
    crowd.rounds_to_agreement(60)?;
    crowd.run(Duration::from_secs(5));
    crowd.kill(crowd.agreed()?);
    crowd.rounds_to_agreement(limit)
}

#[test]
fn a_cold_start_agrees_within_nine_rounds_up_to_a_thousand_nodes() {
    for nodes in [1, 2, 3, 5, 7, 10, 30, 100, 300, 1_000] {
        for seed in 0..5 {
            let rounds = crowd(seed, nodes, |_| ()).rounds_to_agreement(60);
            assert!(rounds.is_some_and(|r| r <= 9), "{nodes} nodes, seed {seed}: {rounds:?}");
        }
    }
}

#[test]
fn a_cold_start_of_ten_thousand_nodes_agrees_within_twelve_rounds() {
    let rounds = crowd(0, 10_000, |_| ()).rounds_to_agreement(60);
    assert!(rounds.is_some_and(|r| r <= 12), "{rounds:?}");
}

/// The distribution on the page: `cargo test … --lib -- distribution --ignored --nocapture`.
#[test]
#[ignore = "a measurement: minutes"]
#[allow(clippy::print_stdout, reason = "it is what this is for")]
fn distribution_of_cold_starts() {
    for (nodes, seeds) in [(100, 20), (300, 20), (1_000, 20), (10_000, 5)] {
        let of = |seed| crowd(seed, nodes, |_| ()).rounds_to_agreement(60);
        let rounds: Vec<_> = (0..seeds).map(of).collect();
        println!("{nodes} nodes: {rounds:?}");
    }
}

#[test]
fn a_dead_leader_is_replaced_by_all_within_thirty_rounds() {
    for nodes in [3, 5, 30, 300, 1_000] {
        for seed in 0..3 {
            let rounds = after_death(&mut crowd(seed, nodes, |_| ()), 60);
            assert!(rounds.is_some_and(|r| r <= 30), "{nodes} nodes, seed {seed}: {rounds:?}");
        }
    }
}

#[test]
fn an_hour_at_ten_percent_loss_sees_no_change_of_leader() {
    for nodes in [3, 7, 30] {
        let mut c = crowd(1, nodes, |c| c.faults.loss = 100);
        c.rounds_to_agreement(60).expect("agreement");
        c.run(Duration::from_secs(5));
        let before = c.changes;
        c.run(Duration::from_secs(3_600));
        assert_eq!(c.changes - before, 0, "{nodes} nodes");
    }
}

#[test]
fn two_halves_agree_again_after_a_partition() {
    for nodes in [4, 20, 100] {
        let mut c = crowd(3, nodes, |_| ());
        c.rounds_to_agreement(60).expect("agreement");
        c.split(nodes / 2);
        c.run(Duration::from_secs(30));
        assert!(c.agreed().is_none(), "{nodes} nodes: two halves have two leaders");
        c.split(0);
        let rounds = c.rounds_to_agreement(400);
        assert!(rounds.is_some(), "{nodes} nodes never agree again");
    }
}

#[test]
fn real_signatures_change_nothing() {
    let rounds = crowd(5, 40, |c| c.real_keys = true).rounds_to_agreement(60);
    assert!(rounds.is_some_and(|r| r <= 12), "{rounds:?}");
}

#[test]
fn a_random_tie_is_caught_by_the_time_to_agreement() {
    for seed in seeds_of(Mistake::RandomTie) {
        let mut slow = crowd(seed, 1_000, |c| c.mistake = Some(Mistake::RandomTie));
        let rounds = slow.rounds_to_agreement(12);
        assert_eq!(rounds, None, "seed {seed}: random ties agreed as fast as ranked ones");
    }
}

#[test]
fn relayed_time_stamps_are_caught_by_a_leader_that_does_not_die() {
    for seed in seeds_of(Mistake::RelayedStamps) {
        let mut c = crowd(seed, 30, |c| c.mistake = Some(Mistake::RelayedStamps));
        assert_eq!(after_death(&mut c, 60), None, "seed {seed}: the dead leader was forgotten");
    }
}

#[test]
fn votes_of_stale_neighbours_are_caught_by_a_leader_that_does_not_die() {
    for seed in seeds_of(Mistake::StaleNeighbours) {
        let mut c = crowd(seed, 30, |c| c.mistake = Some(Mistake::StaleNeighbours));
        assert_eq!(after_death(&mut c, 60), None, "seed {seed}: the dead leader was forgotten");
    }
}

#[test]
fn random_ties_agree_in_a_small_group() {
    let mut c = crowd(2, 5, |c| c.election = ElectionConfig::documented());
    assert_eq!(c.config.election.tie, TieBreak::Random);
    assert!(c.rounds_to_agreement(200).is_some());
}

#[test]
fn one_seed_is_one_trace_also_with_loss_and_churn() {
    let trace = |seed| {
        let mut c = crowd(seed, 200, |c| {
            c.faults = Faults { loss: 100, duplicates: 50, stragglers: 20, ..Faults::default() };
            c.churn = 100;
        });
        c.run(Duration::from_secs(30));
        (c.trace(), c.sent, c.changes)
    };
    assert_eq!(trace(7), trace(7));
    assert_ne!(trace(7).0, trace(8).0);
}

#[test]
fn longer_rounds_agree_in_as_many_of_them() {
    let mut c = crowd(4, 100, |c| c.election.delta_r = Duration::from_secs(1));
    let rounds = c.rounds_to_agreement(60);
    assert!(rounds.is_some_and(|r| r <= 12), "{rounds:?}");
    assert!(c.now_ms() >= u64::from(rounds.unwrap_or(0)) * 1_000, "rounds of a second");
}

#[test]
fn hysteresis_and_stickiness_delay_no_cold_start_and_keep_no_dead_leader() {
    let mut c = crowd(6, 100, |c| {
        c.election.hysteresis = 3;
        c.election.sticky = Some(Duration::from_secs(60));
    });
    let cold = c.rounds_to_agreement(60);
    assert!(cold.is_some_and(|r| r <= 12), "{cold:?}");
    c.run(Duration::from_secs(20));
    c.kill(c.agreed().expect("a calm crowd"));
    let again = c.rounds_to_agreement(60);
    assert!(again.is_some_and(|r| r <= 30), "{again:?}");
}

#[test]
fn the_view_stays_near_the_logarithm_while_a_tenth_of_the_nodes_is_replaced_every_minute() {
    for nodes in [100, 1_000] {
        let mut c = crowd(2, nodes, |c| c.churn = 100);
        c.run(Duration::from_secs(180));
        let (view, ln) = (c.mean_view(), (nodes as f64).ln());
        assert!((0.7 * ln..1.7 * ln).contains(&view), "{nodes} nodes: {view} arcs, ln is {ln}");
        let (_, most) = c.plurality().expect("a node is named");
        assert!(most * 10 >= nodes * 9, "{nodes} nodes: {most} of them name the same leader");
    }
}
