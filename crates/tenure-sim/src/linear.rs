//! Whether a history of operations is linearizable: the algorithm of Wing and Gong, with Lowe's memory
//! of states already tried.
//!
//! An operation takes effect at one instant between its begin and its end. A history is linearizable if
//! there is an order of such instants in which every answer is the right one. An operation without an end
//! (its caller never heard) may have taken effect at any time after its begin, or never.
//!
//! Searched is depth first: of the operations that are left, each that began before the first end of them
//! may be the next. A set of operations that led to a state once is not tried again.

use std::collections::HashSet;
use std::hash::Hash;

/// What the operations act on.
pub trait Model {
    /// The state between two operations.
    type State: Clone + Eq + Hash;
    /// An operation with its answer.
    type Operation;
    /// The state before the first.
    fn initial() -> Self::State;
    /// The state after the operation; `None` if its answer is not the right one in `state`.
    fn step(state: &Self::State, operation: &Self::Operation) -> Option<Self::State>;
}

/// An operation and when it was under way.
#[derive(Debug, Clone)]
pub struct Timed<O> {
    /// When its caller began.
    pub begun: u64,
    /// When its caller had the answer; `None`: never.
    pub ended: Option<u64>,
    /// What was asked, with its answer.
    pub operation: O,
}

/// Whether there is an order of the operations in which every answer is right.
#[must_use]
pub fn is_linearizable<M: Model>(mut history: Vec<Timed<M::Operation>>) -> bool {
    history.sort_by_key(|timed| timed.begun);
    let end = |i: usize| history[i].ended.unwrap_or(u64::MAX);
    let mut done = vec![false; history.len()];
    let mut left = history.iter().filter(|timed| timed.ended.is_some()).count();
    let mut state = M::initial();
    let mut seen = HashSet::new();
    // What was chosen so far, with the state before it and the first that was left then.
    let mut path: Vec<(usize, M::State, usize)> = Vec::new();
    let (mut first, mut from) = (0, 0);
    while left > 0 {
        while first < done.len() && done[first] {
            first += 1;
        }
        let mut horizon = u64::MAX;
        for i in first..history.len() {
            if history[i].begun > horizon {
                break;
            }
            if !done[i] {
                horizon = horizon.min(end(i));
            }
        }
        let mut chosen = None;
        for i in first.max(from)..history.len() {
            if history[i].begun > horizon {
                break;
            }
            if done[i] {
                continue;
            }
            let Some(next) = M::step(&state, &history[i].operation) else { continue };
            done[i] = true;
            let start = (first..done.len()).find(|j| !done[*j]).unwrap_or(done.len());
            let beyond: Vec<usize> = (start..done.len())
                .take_while(|j| history[*j].begun <= horizon)
                .filter(|j| done[*j])
                .collect();
            if seen.insert((start, beyond, next.clone())) {
                chosen = Some((i, next));
                break;
            }
            done[i] = false;
        }
        if let Some((i, next)) = chosen {
            path.push((i, std::mem::replace(&mut state, next), first));
            left -= usize::from(history[i].ended.is_some());
            from = 0;
        } else {
            let Some((i, before, start)) = path.pop() else { return false };
            done[i] = false;
            left += usize::from(history[i].ended.is_some());
            (state, first, from) = (before, start, i + 1);
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    struct Register;

    #[derive(Debug, Clone, Copy)]
    enum Operation {
        Write(u64),
        Read(u64),
    }

    impl Model for Register {
        type State = u64;
        type Operation = Operation;

        fn initial() -> u64 {
            0
        }

        fn step(state: &u64, operation: &Operation) -> Option<u64> {
            match operation {
                Operation::Write(value) => Some(*value),
                Operation::Read(value) => (value == state).then_some(*state),
            }
        }
    }

    use Operation::{Read, Write};

    fn check(history: &[(u64, u64, Operation)]) -> bool {
        let timed = |(begun, ended, operation): &(u64, u64, Operation)| Timed {
            begun: *begun,
            ended: (*ended > 0).then_some(*ended),
            operation: *operation,
        };
        is_linearizable::<Register>(history.iter().map(timed).collect())
    }

    #[test]
    fn answers_in_order_are_linearizable() {
        assert!(check(&[]));
        assert!(check(&[(1, 2, Write(1)), (3, 4, Read(1)), (5, 6, Write(2)), (7, 8, Read(2))]));
    }

    #[test]
    fn operations_at_the_same_time_may_take_effect_in_any_order() {
        assert!(check(&[(1, 9, Write(1)), (2, 3, Read(0)), (4, 5, Read(1))]));
        assert!(check(&[(1, 9, Write(1)), (1, 9, Write(2)), (10, 11, Read(1))]));
        assert!(check(&[(1, 9, Write(1)), (1, 9, Write(2)), (10, 11, Read(2))]));
    }

    #[test]
    fn a_stale_read_is_noticed() {
        assert!(!check(&[(1, 2, Write(1)), (3, 4, Read(0))]));
    }

    #[test]
    fn a_lost_write_is_noticed() {
        assert!(!check(&[(1, 2, Write(1)), (3, 4, Write(2)), (5, 6, Read(1))]));
    }

    #[test]
    fn a_value_that_comes_and_goes_is_noticed() {
        let there = [(1, 9, Write(1)), (2, 3, Read(1)), (4, 5, Read(0))];
        assert!(!check(&there));
    }

    #[test]
    fn a_write_without_an_answer_may_count_or_not_but_not_both() {
        assert!(check(&[(1, 0, Write(1)), (3, 4, Read(0))]));
        assert!(check(&[(1, 0, Write(1)), (3, 4, Read(0)), (5, 6, Read(1))]));
        assert!(!check(&[(1, 0, Write(1)), (3, 4, Read(1)), (5, 6, Read(0))]));
        assert!(!check(&[(3, 4, Read(1)), (5, 0, Write(1))]), "not before it began");
    }

    /// A register that is sound: every operation takes effect at an instant of its own.
    fn sound(seed: u64, clients: u64, each: u64) -> Vec<(u64, u64, Operation)> {
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut effects = Vec::new();
        for client in 0..clients {
            let mut now = rng.random_range(1..20);
            for n in 0..each {
                let (begun, effect) = (now, now + rng.random_range(1..20));
                now = effect + rng.random_range(1..20);
                let write = rng.random_bool(0.4).then_some(client * each + n + 1);
                effects.push((effect, begun, now, write));
                now += rng.random_range(1..5);
            }
        }
        effects.sort_unstable();
        let mut value = 0;
        effects
            .into_iter()
            .map(|(_, begun, ended, write)| {
                value = write.unwrap_or(value);
                (begun, ended, write.map_or(Read(value), Write))
            })
            .collect()
    }

    #[test]
    fn long_histories_of_many_clients_are_judged_rightly() {
        for seed in 0..20 {
            let mut history = sound(seed, 8, 100);
            assert!(check(&history), "seed {seed}");
            // One read of a value that no client ever wrote: there is no order that explains it.
            let read = history.iter().rposition(|(_, _, o)| matches!(o, Read(_)));
            history[read.expect("some operations are reads")].2 = Read(u64::MAX);
            assert!(!check(&history), "seed {seed}");
        }
    }
}
