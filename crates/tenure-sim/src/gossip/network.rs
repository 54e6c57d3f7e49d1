//! A network that does what networks do.

use std::collections::BTreeSet;

use rand::Rng;
use rand::rngs::SmallRng;

/// How bad the network is.
#[derive(Debug, Clone, Copy)]
pub struct Faults {
    /// Messages lost, of a thousand.
    pub loss: u32,
    /// Messages that arrive twice, of a thousand.
    pub duplicates: u32,
    /// Messages held up for up to two seconds, of a thousand: all others overtake them.
    pub stragglers: u32,
    /// Shortest and longest delay of the others, in microseconds.
    pub delay: (u64, u64),
}

impl Default for Faults {
    fn default() -> Self {
        Self { loss: 0, duplicates: 0, stragglers: 0, delay: (500, 10_000) }
    }
}

pub(super) struct Network {
    pub(super) faults: Faults,
    /// Pairs of nodes of which the first does not reach the second.
    cut: BTreeSet<(usize, usize)>,
}

impl Network {
    pub(super) fn new(faults: Faults) -> Self {
        Self { faults, cut: BTreeSet::new() }
    }

    /// No node of `group` reaches a node outside of it, or is reached by one.
    pub(super) fn split(&mut self, group: &BTreeSet<usize>, all: usize) {
        for a in 0..all {
            for b in 0..all {
                if group.contains(&a) != group.contains(&b) {
                    self.cut.insert((a, b));
                }
            }
        }
    }

    /// What `from` sends does not reach `to`; the other direction works.
    pub(super) fn deafen(&mut self, from: usize, to: usize) {
        self.cut.insert((from, to));
    }

    pub(super) fn heal(&mut self) {
        self.cut.clear();
    }

    /// When copies of a message sent now arrive: none, one or two delays.
    pub(super) fn deliveries(
        &self,
        from: usize,
        to: usize,
        rng: &mut SmallRng,
    ) -> impl Iterator<Item = u64> + use<> {
        let f = self.faults;
        let lost = (!self.cut.is_empty() && self.cut.contains(&(from, to)))
            || (f.loss > 0 && rng.random_range(0..1_000) < f.loss);
        let mut one = || {
            if f.stragglers > 0 && rng.random_range(0..1_000) < f.stragglers {
                rng.random_range(f.delay.1..2_000_000)
            } else {
                rng.random_range(f.delay.0..=f.delay.1)
            }
        };
        let first = (!lost).then(&mut one);
        let twice = !lost && f.duplicates > 0;
        let second = if twice {
            let delay = one();
            (rng.random_range(0..1_000) < f.duplicates).then_some(delay)
        } else {
            None
        };
        first.into_iter().chain(second)
    }
}
