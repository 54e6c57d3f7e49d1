use std::ops::Range;
use std::thread;
use std::time::Duration;

use super::{Mistake, Verdict, run, seeds_of};

/// How many seeds; `TENURE_SIM_FIRST` and `TENURE_SIM_SEEDS` run others and more of them.
fn seeds(default: u64) -> Range<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let first = number("TENURE_SIM_FIRST").unwrap_or(0);
    first..first + number("TENURE_SIM_SEEDS").unwrap_or(default)
}

/// Runs seeds on two threads: the runs share nothing.
fn run_all(seeds: Range<u64>, mistake: Option<Mistake>) -> Vec<(u64, Verdict)> {
    thread::scope(|scope| {
        let half = |odd: u64| {
            let seeds = seeds.clone().filter(move |seed| seed % 2 == odd);
            scope.spawn(move || seeds.map(|seed| (seed, run(seed, mistake))).collect::<Vec<_>>())
        };
        let halves: [_; 2] = [half(0), half(1)];
        halves.into_iter().flat_map(|half| half.join().expect("no run panics")).collect()
    })
}

#[test]
fn no_two_gates_open_epochs_increase_and_a_leader_comes_back() {
    let seeds = seeds(2000);
    let (mut terms, mut slowest) = (0, Duration::ZERO);
    for (seed, verdict) in run_all(seeds.clone(), None) {
        if let Some(wrong) = verdict.wrong {
            panic!("seed {seed}: {wrong}");
        }
        terms += verdict.terms;
        slowest = slowest.max(verdict.recovered_after);
    }
    // A simulation in which nothing happens proves nothing.
    let runs = seeds.end - seeds.start;
    assert!(terms > 4 * runs, "only {terms} terms in {runs} runs");
    assert!(slowest > Duration::from_secs(1), "no run ever had to recover: {slowest:?}");
}

#[test]
fn the_same_seed_makes_the_same_run() {
    for seed in 0..20 {
        assert_eq!(run(seed, None), run(seed, None));
    }
}

/// Looks for seeds to put on file, which a change of the order of random numbers makes necessary:
/// `cargo test -p tenure-sim election::tests::find_seeds -- --ignored --nocapture`, with
/// `TENURE_SIM_SEEDS=20000` for the rare ones and `TENURE_SIM_MISTAKE=quiet-mark` for one alone.
#[test]
#[ignore = "prints seeds; it asserts nothing"]
#[allow(clippy::print_stdout, reason = "its output is what it is for")]
fn find_seeds() {
    let only = std::env::var("TENURE_SIM_MISTAKE").ok();
    for mistake in Mistake::ALL {
        if only.as_deref().is_some_and(|only| only != mistake.name()) {
            continue;
        }
        for (seed, verdict) in run_all(seeds(500), Some(mistake)) {
            if let Some(wrong) = verdict.wrong {
                println!("{} {seed} # {wrong}", mistake.name());
            }
        }
    }
}

/// Every seed on file for `mistake` breaks a promise, and none without it.
fn assert_caught(mistake: Mistake) {
    let seeds = seeds_of(mistake);
    assert!(!seeds.is_empty(), "no seed of {mistake:?} is on file");
    for seed in seeds {
        match run(seed, Some(mistake)).wrong {
            None => panic!("{mistake:?}: seed {seed} does not catch it"),
            // Each of them breaks a promise; that a leader is missing would have another cause.
            Some(wrong) => assert!(!wrong.starts_with("no member leads"), "seed {seed}: {wrong}"),
        }
        assert_eq!(run(seed, None).wrong, None, "seed {seed} without a mistake");
    }
}

#[test]
fn a_claim_that_ignores_the_debt_is_caught() {
    assert_caught(Mistake::IgnoreTheDebt);
}

#[test]
fn a_debt_that_moves_to_a_claimant_that_only_waits_is_caught() {
    assert_caught(Mistake::DebtMovesWithTheClaim);
}

#[test]
fn a_debt_that_forgets_its_lease_is_caught() {
    assert_caught(Mistake::ForgetTheLease);
}

#[test]
fn a_clean_release_that_outlives_an_incarnation_is_caught() {
    assert_caught(Mistake::OneIncarnation);
}

#[test]
fn a_debt_paid_in_another_incarnation_is_caught() {
    assert_caught(Mistake::PayInAnyIncarnation);
}

#[test]
fn a_term_taken_up_in_another_incarnation_is_caught() {
    assert_caught(Mistake::KeepInAnyIncarnation);
}

#[test]
fn epochs_issued_again_after_a_failover_are_caught() {
    assert_caught(Mistake::OneGeneration);
}

#[test]
fn a_generation_that_two_failovers_in_a_row_issue_twice_is_caught() {
    assert_caught(Mistake::NextGeneration);
}

#[test]
fn a_mark_that_is_no_beat_is_caught() {
    assert_caught(Mistake::QuietMark);
}

#[test]
fn sightings_that_outlive_their_session_are_caught() {
    assert_caught(Mistake::OldSightings);
}

#[test]
fn a_margin_below_the_drift_of_the_clocks_is_caught() {
    assert_caught(Mistake::NarrowMargin);
}
