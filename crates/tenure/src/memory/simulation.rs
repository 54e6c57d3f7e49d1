//! Engines on the model of the database, in virtual time: one seed, one run, every time the same.
//!
//! The real [`tenure_core::engine::Engine`] of each member talks to [`tenure_core::model::Model`] over a network that
//! delays and loses, on clocks that run at different rates. Sessions are ended, processes pause, die
//! and come back, members step down and stop; the database restarts, crashes (losing what it had not
//! flushed) and fails over (losing what it had not replicated). After every single event:
//!
//! - under `exclusive` at most one gate says yes, and under the newest epoch;
//! - under any policy an epoch belongs to one member, for good.
//!
//! Then everything heals, and every role must have a leader within a bound. That the checks can fail is
//! shown by making known mistakes on purpose: each must be caught.

mod fault;
mod verdict;
mod world;

use std::time::Duration;

use tenure_core::model::past::Bug;
use verdict::Verdict;
use world::World;

/// How long things go wrong.
const TROUBLE: Duration = Duration::from_secs(25);
/// How long after the last fault a leader may be missing.
const RECOVERY: Duration = Duration::from_secs(15);

/// What a run is made of, besides its seed.
#[derive(Debug, Clone, Copy, Default)]
struct Setting {
    bug: Bug,
    /// In place of the default margin.
    margin: Option<Duration>,
}

fn run(seed: u64, setting: Setting) -> Verdict {
    let mut world = World::new(seed, setting);
    world.run_for(TROUBLE);
    world.heal();
    world.run_until_led(RECOVERY);
    world.verdict
}

/// How many seeds; more of them by hand.
fn seeds(default: u64) -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let first = number("TENURE_SIM_FIRST").unwrap_or(0);
    first..first + number("TENURE_SIM_SEEDS").unwrap_or(default)
}

#[test]
fn no_two_gates_open_epochs_increase_and_a_leader_comes_back() {
    let seeds = seeds(2000);
    let (mut terms, mut slowest) = (0, Duration::ZERO);
    // Two threads: the runs share nothing.
    let halves = std::thread::scope(|scope| {
        let half = |odd: u64| {
            let seeds = seeds.clone().filter(move |seed| seed % 2 == odd);
            scope.spawn(move || seeds.map(|seed| (seed, run(seed, Setting::default()))).collect())
        };
        let halves: [_; 2] = [half(0), half(1)];
        halves.map(|half| half.join().expect("no run panics"))
    });
    for (seed, verdict) in halves.into_iter().flat_map(|half: Vec<(u64, Verdict)>| half) {
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
        assert_eq!(run(seed, Setting::default()), run(seed, Setting::default()));
    }
}

fn caught(setting: Setting, mut seeds: std::ops::Range<u64>) {
    let tried = seeds.clone();
    let found = seeds.any(|seed| run(seed, setting).wrong.is_some());
    assert!(found, "{setting:?} was not caught by the seeds {tried:?}");
}

fn bug(bug: Bug) -> Setting {
    Setting { bug, ..Setting::default() }
}

#[test]
fn a_claim_that_ignores_the_debt_is_caught() {
    caught(bug(Bug::IgnoreTheDebt), 0..200);
}

#[test]
fn a_debt_that_moves_to_who_only_waits_is_caught() {
    caught(bug(Bug::DebtMovesWithTheClaim), 0..500);
}

#[test]
fn a_clean_release_that_outlives_an_incarnation_is_caught() {
    caught(bug(Bug::OneIncarnation), 0..500);
}

#[test]
fn sightings_that_outlive_their_session_are_caught() {
    caught(bug(Bug::OldSightings), 0..500);
}

#[test]
fn epochs_issued_again_after_a_failover_are_caught() {
    caught(bug(Bug::OneGeneration), 0..500);
}

#[test]
fn a_generation_that_two_failovers_in_a_row_issue_twice_is_caught() {
    caught(bug(Bug::NextGeneration), 0..500);
}

#[test]
fn a_term_taken_up_in_another_incarnation_is_caught() {
    caught(bug(Bug::KeepInAnyIncarnation), 0..500);
}

#[test]
fn an_acting_write_that_is_no_beat_is_caught() {
    // About one run in two thousand shows it: begun shortly before one that does.
    caught(bug(Bug::QuietAct), 3000..6000);
}

#[test]
fn a_margin_below_the_drift_of_the_clocks_is_caught() {
    // One per cent of the longest lease, the least that is allowed; the clocks differ by up to eight.
    let margin = Some(Duration::from_millis(40));
    caught(Setting { margin, ..Setting::default() }, 0..500);
}
