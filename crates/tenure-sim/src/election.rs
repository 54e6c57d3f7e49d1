//! Engines on the model of the database, in virtual time: one seed, one run, every time the same.
//!
//! The real [`tenure_core::engine::Engine`] of each member talks to [`tenure_core::model::Model`] over
//! a network that delays and loses, on clocks that run at different rates. Sessions are ended,
//! processes pause, die and come back, members step down and stop; the database restarts, crashes
//! (losing what it had not flushed) and fails over (losing what it had not replicated). After every
//! single event:
//!
//! - under `exclusive` at most one gate says yes, and under the newest epoch;
//! - under any policy an epoch belongs to one member, for good.
//!
//! Then everything heals, and every role must have a leader within a bound. That the checks can fail is
//! shown by planting known mistakes in the engine's collaborators: each must be caught, by the seeds
//! of the file `seeds/election.txt`.

mod database;
mod fault;
mod mistake;
#[cfg(test)]
mod tests;
mod verdict;
mod world;

use std::time::Duration;

pub use mistake::Mistake;
pub use verdict::Verdict;
use world::World;

/// How long things go wrong.
const TROUBLE: Duration = Duration::from_secs(25);
/// How long after the last fault a leader may be missing.
const RECOVERY: Duration = Duration::from_secs(15);

/// Runs one seed, with a mistake or without.
#[must_use]
pub fn run(seed: u64, mistake: Option<Mistake>) -> Verdict {
    let mut world = World::new(seed, mistake);
    world.run_for(TROUBLE);
    world.heal();
    world.run_until_led(RECOVERY);
    world.verdict
}

/// The seeds on file that must catch a mistake.
#[must_use]
pub fn seeds_of(mistake: Mistake) -> Vec<u64> {
    let lines = include_str!("../seeds/election.txt").lines();
    let seeds = lines.filter_map(|line| line.split_once(' '));
    seeds
        .filter(|(name, _)| *name == mistake.name())
        .map(|(_, seed)| seed.trim().parse().expect("a number in the file of seeds"))
        .collect()
}
