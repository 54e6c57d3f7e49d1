//! The leader's side of replication: what each follower is sent, and what its answers say.

use noraft::{LogPosition, Message, NodeId, Term};
use tenure_core::Tick;

use super::{Echo, Raft, Wants};
use crate::commit::pace::Resume;
use crate::commit::wire::{beat, sent_at};
use crate::commit::{CommitOutput, ConsensusMessage, Entry, EntryKind, Position};
use crate::identity::PeerId;

impl Raft {
    /// Sends every follower what it has not been sent yet, as far as its window goes; and the commit
    /// index or the heartbeat, if they are due and no entries carry them.
    pub(super) fn replicate(&mut self) {
        let due = std::mem::take(&mut self.beat_due);
        if !self.leads() {
            return;
        }
        self.pace.enter(self.node.current_term().get());
        let config = self.node.config();
        self.pace.retain(|id| config.contains(id));
        let last = self.node.log().last_position().index.get();
        let commit = self.node.commit_index().get();
        let peers: Vec<_> = self.node.peers().collect();
        for id in peers {
            let mut told = false;
            loop {
                // A follower of which nothing is known is sent the last entry: its answer says the rest.
                let follower = self.pace.follower(id, last);
                let next = follower.next;
                if next > last || !follower.has_room() {
                    break;
                }
                let Some(after) = self.position(next - 1) else { break };
                if !self.send_append(id, after, self.config.batch.max(1)) {
                    break;
                }
                told = true;
            }
            let follower = self.pace.follower(id, last);
            if told || (!due && (follower.told >= commit || !follower.has_room())) {
                continue;
            }
            let upto = if follower.waits() { last } else { follower.next - 1 };
            let after = self.position(upto).unwrap_or(self.node.log().last_position());
            self.send_append(id, after, 0);
        }
    }

    /// The position of the entry at `index`, if the log still has it.
    fn position(&self, index: u64) -> Option<LogPosition> {
        let index = index.into();
        let term = self.node.log().entries().get_term(index)?;
        Some(LogPosition { term, index })
    }

    /// Sends what follows `after`, up to `limit` bytes (0: nothing). `false` if it cannot be read.
    fn send_append(&mut self, id: NodeId, after: LogPosition, limit: usize) -> bool {
        let Some(to) = self.names.peer(id) else { return false };
        let entries = if limit == 0 {
            Vec::new()
        } else {
            let Some(delta) = self.node.log().entries().since(after) else { return false };
            let Some(entries) = self.entries_out(&delta, limit) else { return false };
            entries
        };
        let bytes = entries.iter().map(size).sum();
        let end = after.index.get() + entries.len() as u64;
        let number = self.pace.number();
        let commit = self.node.commit_index().get();
        let follower = self.pace.follower(id, end);
        follower.sent(number, end, bytes);
        follower.told = commit.min(end);
        let append = ConsensusMessage::Append {
            term: self.node.current_term().get(),
            commit,
            after: after.into(),
            entries,
            beat: beat(self.clock),
            number,
            lease: self.config.lease.as_millis() as u32,
        };
        self.out.push_back(CommitOutput::Send(to, append));
        true
    }

    pub(super) fn echo_arrived(
        &mut self,
        now: Tick,
        from: PeerId,
        term: u64,
        last: Position,
        echo: Echo,
    ) {
        let id = self.names.number(from);
        let current = self.leads() && term == self.node.current_term().get();
        if current && self.pace.has_forgotten(id, echo.number, last.index) {
            // Neither its echo nor its log counts: what it promised may be forgotten as well.
            self.out.push_back(CommitOutput::Forgot(from));
            return;
        }
        if current {
            self.echoes.record(from, sent_at(echo.beat), now);
        }
        let awaited = if current { self.pace.take(id, echo.number) } else { None };
        self.wants = Wants::default();
        let reply = Message::AppendEntriesReply {
            from: id,
            term: Term::new(term),
            last_position: last.into(),
        };
        self.feed(now, &reply, None);
        let wants = std::mem::take(&mut self.wants);
        if !current || !self.leads() {
            return;
        }
        let matched = self.node.follower_match_index(id).map_or(0, |index| index.get());
        self.pace.matched(id, matched);
        // An answer that nothing waits for has told all it can: what it complains about was sent again.
        let Some(end) = awaited else { return };
        if matched >= end && !wants.snapshot {
            if self.pace.follower(id, end).waits() {
                self.pace.lost(id, Resume::From(matched + 1));
            }
        } else if wants.snapshot {
            self.pace.lost(id, Resume::Snapshot);
            self.out.push_back(CommitOutput::NeedsSnapshot(from));
        } else if let Some(differs) = wants.probe {
            self.pace.lost(id, Resume::Probe(differs.index.get()));
            self.send_append(id, differs, 0);
        } else {
            // It lacks what the message began with, or its log is longer than this one and differs: the next entries
            // begin after what it has proven to have, never before. A voter that has forgotten some of that would
            // get it again, and not be found out.
            let start = self.node.log().entries().prev_position().index.get();
            self.pace.lost(id, Resume::From(matched.max(start) + 1));
        }
    }
}

/// What an entry takes up in a message, about.
pub(super) fn size(entry: &Entry) -> usize {
    32 + match &entry.kind {
        EntryKind::Term => 0,
        EntryKind::Members(members) => 32 * members.all().len(),
        EntryKind::Command(bytes) => bytes.len(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use rand::SeedableRng;
    use rand::rngs::SmallRng;

    use super::*;
    use crate::commit::{Commit as _, CommitConfig};

    const VOTER: PeerId = PeerId([2; 32]);

    /// The last append to the voter.
    fn append(raft: &mut Raft) -> ConsensusMessage {
        raft.flush();
        let outputs = std::iter::from_fn(|| raft.poll_output());
        let appends = outputs.filter_map(|output| match output {
            CommitOutput::Send(VOTER, append @ ConsensusMessage::Append { .. }) => Some(append),
            _ => None,
        });
        appends.last().expect("it is sent something")
    }

    /// What a voter whose log ends at `end` answers.
    fn answer(append: &ConsensusMessage, end: &mut Position) -> ConsensusMessage {
        let ConsensusMessage::Append { term, after, entries, beat, number, .. } = append else {
            panic!("{append:?}");
        };
        if let Some(last) = entries.last().filter(|_| after.index <= end.index) {
            *end = last.position;
        }
        ConsensusMessage::Appended { term: *term, last: *end, beat: *beat, number: *number }
    }

    #[test]
    fn a_voter_that_forgot_is_found_out_though_it_first_answers_a_message_from_before_the_proof() {
        let now = Tick::ZERO + Duration::from_secs(1);
        let rng = SmallRng::seed_from_u64(1);
        let mut raft = Raft::fresh(PeerId([1; 32]), CommitConfig::default(), rng);
        let voters = BTreeSet::from([PeerId([1; 32]), VOTER, PeerId([3; 32])]);
        raft.bootstrap(now, &voters).expect("it is fresh");
        let yes = ConsensusMessage::Voted { term: 1, granted: true };
        raft.handle_message(now, VOTER, yes);
        let mut end = Position { term: 0, index: 1 };
        let first = append(&mut raft);
        raft.handle_message(now, VOTER, answer(&first, &mut end));
        let copy = end;

        raft.propose(now, vec![1]).expect("it leads");
        let second = append(&mut raft);
        raft.propose(now, vec![2]).expect("it leads");
        let third = append(&mut raft);
        raft.handle_message(now, VOTER, answer(&second, &mut end));
        assert!(end > copy, "it has proven to have more");

        // It goes on from the copy, and gets the third message.
        end = copy;
        let forgot = |raft: &mut Raft| {
            std::iter::from_fn(|| raft.poll_output()).any(|o| o == CommitOutput::Forgot(VOTER))
        };
        raft.handle_message(now, VOTER, answer(&third, &mut end));
        assert!(!forgot(&mut raft), "the second message may only be late");
        let next = append(&mut raft);
        raft.handle_message(now, VOTER, answer(&next, &mut end));
        assert!(forgot(&mut raft), "it got again what it had acknowledged, up to {end:?}");
    }

    #[test]
    fn a_heartbeat_that_is_due_is_not_put_off_by_proposals() {
        let mut now = Tick::ZERO + Duration::from_secs(1);
        let config = CommitConfig::default();
        let heartbeat = config.heartbeat;
        let mut raft = Raft::fresh(PeerId([1; 32]), config, SmallRng::seed_from_u64(1));
        raft.bootstrap(now, &BTreeSet::from([PeerId([1; 32])])).expect("it is fresh");
        for proposal in 0..100 {
            let due = raft.poll_timeout();
            now = due + Duration::from_millis(1);
            raft.propose(now, vec![proposal]).expect("it leads");
            assert_eq!(raft.poll_timeout(), due, "it is late, and still due");
            raft.handle_timeout(now);
            assert_eq!(raft.poll_timeout(), now + heartbeat);
        }
    }
}
