//! What happens next: events in order of time, and of their making where times are equal.
//!
//! A crowd has tens of thousands of events ahead of it, half a million to a simulated second. They
//! wait unsorted in slots of a quarter of a millisecond; a slot is sorted when its time has come.

use std::collections::BTreeMap;

/// Microseconds in a slot, as a power of two.
const SLOT: u32 = 8;

struct Item<E> {
    at: u64,
    seq: u64,
    event: E,
}

/// Events by time, in microseconds of the simulation.
pub(super) struct Queue<E> {
    /// The events of the slot `current` and of the slots before it, the next one last.
    due: Vec<Item<E>>,
    current: u64,
    later: BTreeMap<u64, Vec<Item<E>>>,
    seq: u64,
}

impl<E> Queue<E> {
    pub(super) fn new() -> Self {
        Self { due: Vec::new(), current: 0, later: BTreeMap::new(), seq: 0 }
    }

    pub(super) fn push(&mut self, at: u64, event: E) {
        self.seq += 1;
        let item = Item { at, seq: self.seq, event };
        if at >> SLOT > self.current {
            self.later.entry(at >> SLOT).or_default().push(item);
        } else {
            // The youngest of all: it comes after everything that is due at the same time.
            let i = self.due.partition_point(|other| other.at > at);
            self.due.insert(i, item);
        }
    }

    pub(super) fn pop(&mut self) -> Option<(u64, E)> {
        self.next_at()?;
        self.due.pop().map(|i| (i.at, i.event))
    }

    pub(super) fn next_at(&mut self) -> Option<u64> {
        if self.due.is_empty() {
            (self.current, self.due) = self.later.pop_first()?;
            self.due.sort_unstable_by_key(|i| std::cmp::Reverse((i.at, i.seq)));
        }
        self.due.last().map(|i| i.at)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// By time, then by making; also what is pushed for now, or for earlier, while others wait.
        #[test]
        fn events_come_in_order_of_time_then_of_making(ahead in prop::collection::vec((0u64..2_000, 0u8..3), 0..300)) {
            let (mut queue, mut model, mut now) = (Queue::new(), Vec::new(), 0);
            for (made, (ahead, pops)) in ahead.into_iter().enumerate() {
                queue.push(now + ahead, made);
                model.push((now + ahead, made));
                for _ in 0..pops {
                    model.sort_unstable();
                    let expected = (!model.is_empty()).then(|| model.remove(0));
                    prop_assert_eq!(queue.next_at(), expected.map(|e| e.0));
                    prop_assert_eq!(queue.pop(), expected);
                    now = expected.map_or(now, |e| e.0);
                }
            }
        }
    }
}
