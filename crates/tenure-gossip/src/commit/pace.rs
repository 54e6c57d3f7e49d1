//! What the leader has sent to each follower and what is still unanswered: pure, without I/O.
//!
//! noraft sends everything again with every answer that is not up to date. Here an entry is sent once:
//! a follower has a window of unanswered messages, each with a number that its answer repeats.
//!
//! - An answer that reaches the end of its message frees the window up to there.
//! - An answer that falls short of it says that an earlier message was lost (or overtaken): everything
//!   unanswered counts as lost, and sending begins anew after what the follower has proven to have.
//! - A heartbeat is a message like any other, so a lost message is noticed within a heartbeat.
//! - An answer that falls short of what the same follower had *proven* to have, to a message that was
//!   sent after the proof arrived, says that the follower has forgotten what it acknowledged.

use std::collections::{BTreeMap, VecDeque};

use noraft::NodeId;

/// Unanswered messages to one follower, at most.
const WINDOW: usize = 16;
/// Bytes of entries in them, beyond the first.
const WINDOW_BYTES: usize = 4 << 20;
/// Messages remembered while none is answered: heartbeats go out although the window is full.
const REMEMBERED: usize = 2 * WINDOW;

/// All followers of one term.
#[derive(Debug, Default)]
pub(super) struct Pace {
    term: u64,
    number: u64,
    followers: BTreeMap<NodeId, Follower>,
}

impl Pace {
    /// Begins anew if `term` is another one.
    pub(super) fn enter(&mut self, term: u64) {
        if self.term != term {
            self.term = term;
            self.followers.clear();
        }
    }

    /// The follower `id`; a new one is first sent the entry at `next`.
    pub(super) fn follower(&mut self, id: NodeId, next: u64) -> &mut Follower {
        self.followers.entry(id).or_insert_with(|| Follower { next, ..Follower::default() })
    }

    /// Forgets followers that are no members any more.
    pub(super) fn retain(&mut self, keep: impl Fn(NodeId) -> bool) {
        self.followers.retain(|id, _| keep(*id));
    }

    /// The number of the next message, to any follower.
    pub(super) fn number(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    /// Takes the answer to message `number` in; `None` if it is not awaited. The result is where that
    /// message ended.
    pub(super) fn take(&mut self, id: NodeId, number: u64) -> Option<u64> {
        let follower = self.followers.get_mut(&id)?;
        let at = follower.unanswered.iter().position(|sent| sent.number == number)?;
        follower.unanswered.remove(at).map(|sent| sent.end)
    }

    /// The log of follower `id` was found to match up to `matched`, by an answer that just arrived.
    pub(super) fn matched(&mut self, id: NodeId, matched: u64) {
        let number = self.number;
        let Some(follower) = self.followers.get_mut(&id) else { return };
        follower.unanswered.retain(|sent| sent.end > matched);
        follower.next = follower.next.max(matched + 1);
        if matched > follower.proven {
            follower.proven = matched;
            follower.proven_before = number;
        }
    }

    /// Whether an answer to message `number` that ends at `last` shows that follower `id` has forgotten
    /// entries that it had acknowledged.
    pub(super) fn has_forgotten(&self, id: NodeId, number: u64, last: u64) -> bool {
        self.followers.get(&id).is_some_and(|f| last < f.proven && number > f.proven_before)
    }

    /// An answer fell short: what was sent since is lost.
    pub(super) fn lost(&mut self, id: NodeId, then: Resume) {
        let Some(follower) = self.followers.get_mut(&id) else { return };
        follower.unanswered.clear();
        follower.waits = !matches!(then, Resume::From(_));
        if let Resume::From(next) | Resume::Probe(next) = then {
            follower.next = next;
        }
    }
}

/// How sending goes on after a loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Resume {
    /// From this entry on.
    From(u64),
    /// The logs differ at this entry: nothing but heartbeats until they are found to agree.
    Probe(u64),
    /// The follower needs a snapshot first.
    Snapshot,
}

/// What a leader knows of one follower.
#[derive(Debug, Default)]
pub(super) struct Follower {
    /// The next entry to be sent.
    pub(super) next: u64,
    /// The commit index that it was last told.
    pub(super) told: u64,
    /// No entries are sent for now.
    waits: bool,
    unanswered: VecDeque<Sent>,
    /// What it acknowledged in this term.
    proven: u64,
    /// The number of the last message that was sent before that was known.
    proven_before: u64,
}

#[derive(Debug)]
struct Sent {
    number: u64,
    end: u64,
    bytes: usize,
}

impl Follower {
    /// Whether its window has room for entries.
    pub(super) fn has_room(&self) -> bool {
        let bytes: usize = self.unanswered.iter().map(|sent| sent.bytes).sum();
        !self.waits && self.unanswered.len() < WINDOW && bytes < WINDOW_BYTES
    }

    /// Whether entries are held back until its log is found to agree.
    pub(super) fn waits(&self) -> bool {
        self.waits
    }

    /// Message `number`, which ends at `end`, was sent.
    pub(super) fn sent(&mut self, number: u64, end: u64, bytes: usize) {
        self.unanswered.push_back(Sent { number, end, bytes });
        if self.unanswered.len() > REMEMBERED {
            self.unanswered.pop_front();
        }
        self.next = self.next.max(end + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const F: NodeId = NodeId::new(2);

    fn send(pace: &mut Pace, end: u64) -> u64 {
        let number = pace.number();
        pace.follower(F, 1).sent(number, end, 100);
        number
    }

    #[test]
    fn what_was_sent_is_not_sent_again_until_an_answer_falls_short() {
        let mut pace = Pace::default();
        pace.enter(1);
        let first = send(&mut pace, 10);
        let second = send(&mut pace, 20);
        assert_eq!(pace.follower(F, 1).next, 21);
        assert_eq!(pace.take(F, first), Some(10));
        pace.matched(F, 10);
        assert_eq!(pace.follower(F, 1).next, 21);
        assert_eq!(pace.take(F, second), Some(20));
        pace.lost(F, Resume::From(11));
        assert_eq!(pace.follower(F, 1).next, 11);
        assert_eq!(pace.take(F, second), None, "its answer is not awaited any more");
    }

    #[test]
    fn a_full_window_waits_and_a_later_answer_frees_the_earlier_messages() {
        let mut pace = Pace::default();
        pace.enter(1);
        let numbers: Vec<_> = (1..=WINDOW as u64).map(|end| send(&mut pace, end)).collect();
        assert!(!pace.follower(F, 1).has_room());
        assert_eq!(pace.take(F, numbers[9]), Some(10));
        pace.matched(F, 10);
        let follower = pace.follower(F, 1);
        assert!(follower.has_room());
        assert_eq!(follower.unanswered.len(), WINDOW - 10);
        follower.sent(99, 99, WINDOW_BYTES);
        assert!(!follower.has_room(), "bytes are counted too");
    }

    #[test]
    fn heartbeats_to_a_silent_follower_do_not_pile_up() {
        let mut pace = Pace::default();
        pace.enter(1);
        for _ in 0..1_000 {
            send(&mut pace, 5);
        }
        assert_eq!(pace.follower(F, 1).unanswered.len(), REMEMBERED);
    }

    #[test]
    fn only_an_answer_to_a_message_sent_after_the_proof_shows_that_entries_were_forgotten() {
        let mut pace = Pace::default();
        pace.enter(1);
        let early = send(&mut pace, 10);
        let also_early = send(&mut pace, 10);
        pace.take(F, early);
        pace.matched(F, 10);
        assert!(!pace.has_forgotten(F, also_early, 5), "it may have been overtaken");
        let late = send(&mut pace, 10);
        assert!(!pace.has_forgotten(F, late, 10));
        assert!(pace.has_forgotten(F, late, 9));
    }

    #[test]
    fn another_term_begins_anew() {
        let mut pace = Pace::default();
        pace.enter(1);
        send(&mut pace, 10);
        pace.enter(2);
        assert_eq!(pace.follower(F, 7).next, 7);
    }
}
