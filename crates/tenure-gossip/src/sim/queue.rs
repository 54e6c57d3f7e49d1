//! What happens next: events in order of time, and of their making where times are equal.

use std::{cmp::Ordering, collections::BinaryHeap};

struct Item<E> {
    at: u64,
    seq: u64,
    event: E,
}

impl<E> PartialEq for Item<E> {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.seq) == (other.at, other.seq)
    }
}
impl<E> Eq for Item<E> {}
impl<E> PartialOrd for Item<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl<E> Ord for Item<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        // The heap gives the largest first: the earliest must be the largest.
        (other.at, other.seq).cmp(&(self.at, self.seq))
    }
}

/// Events by time, in microseconds of the simulation.
pub(super) struct Queue<E> {
    heap: BinaryHeap<Item<E>>,
    seq: u64,
}

impl<E> Queue<E> {
    pub(super) fn new() -> Self {
        Self { heap: BinaryHeap::new(), seq: 0 }
    }

    pub(super) fn push(&mut self, at: u64, event: E) {
        self.seq += 1;
        self.heap.push(Item { at, seq: self.seq, event });
    }

    pub(super) fn pop(&mut self) -> Option<(u64, E)> {
        self.heap.pop().map(|i| (i.at, i.event))
    }

    pub(super) fn next_at(&self) -> Option<u64> {
        self.heap.peek().map(|i| i.at)
    }
}
