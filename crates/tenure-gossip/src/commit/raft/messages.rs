//! One handler for each message of another member.

use std::collections::BTreeMap;
use std::time::Duration;

use noraft::{LogIndex, Message, Term};
use tenure_core::Tick;

use super::{Echo, Raft};
use crate::commit::{CommitOutput, ConsensusMessage, Entry, EntryKind, MAX_LEASE, Position};
use crate::identity::PeerId;

/// The fields of [`ConsensusMessage::Append`].
pub(super) struct Append {
    pub(super) term: u64,
    pub(super) commit: u64,
    pub(super) after: Position,
    pub(super) entries: Vec<Entry>,
    pub(super) echo: Echo,
    pub(super) lease: u32,
}

impl Raft {
    pub(super) fn append_arrived(&mut self, now: Tick, from: PeerId, append: Append) {
        let Append { term, commit, after, entries, echo, lease } = append;
        let from = self.names.number(from);
        let Some(log) = self.names.entries(after, &entries) else { return };
        if log.last_position().term.get() > term {
            return;
        }
        if term >= self.node.current_term().get() {
            self.promise(now, Duration::from_millis(lease.into()).min(MAX_LEASE));
        }
        // Entries already held at the same position are the same; the rest is only kept if noraft
        // takes them.
        let before = self.node.log().last_position();
        let new: Vec<_> = entries
            .into_iter()
            .filter(|e| !self.node.log().entries().contains(e.position.into()))
            .collect();
        let mut replaced = BTreeMap::new();
        for entry in new {
            if let EntryKind::Command(bytes) = entry.kind {
                let index = entry.position.index;
                replaced.insert(index, self.commands.insert(index, bytes));
            }
        }
        let call = Message::AppendEntriesCall {
            from,
            term: Term::new(term),
            commit_index: LogIndex::new(commit),
            entries: log.clone(),
        };
        self.feed(now, &call, Some(echo));
        if self.node.log().last_position() == before
            || !self.node.log().entries().contains(log.last_position())
        {
            for (index, old) in replaced {
                match old {
                    Some(bytes) => self.commands.insert(index, bytes),
                    None => self.commands.remove(&index),
                };
            }
        }
        if term >= self.node.current_term().get() {
            self.heard = Some(now);
        }
    }

    /// No vote is given and none is asked for until the leader's gate, which counts on `lease`, is shut.
    fn promise(&mut self, now: Tick, lease: Duration) {
        // The longest lease is forgotten once every promise that it made has ended; until then a node
        // that restarts must keep still for it.
        if lease >= self.hard.lease || now >= self.longest_until {
            self.longest_until = now + self.config.promise(lease);
            if lease != self.hard.lease {
                self.hard.lease = lease;
                self.save_hard();
            }
        }
        let still = now + self.config.promise(lease.max(self.config.lease));
        self.still_until = self.still_until.max(still);
    }

    pub(super) fn pre_vote_asked(&mut self, now: Tick, from: PeerId, term: u64, last: Position) {
        self.names.number(from);
        let mine = self.node.current_term().get();
        let open = term > mine || (term == mine && self.node.voted_for().is_none());
        let granted =
            open && !self.must_refuse(now) && self.node.log().last_position() <= last.into();
        let term = if granted { term } else { mine };
        let answer = ConsensusMessage::PreVoted { term, granted };
        self.out.push_back(CommitOutput::Send(from, answer));
    }

    pub(super) fn pre_vote_arrived(&mut self, now: Tick, from: PeerId, term: u64, granted: bool) {
        let number = self.names.number(from);
        if granted {
            if let Some((asked, yes)) = &mut self.prevotes
                && *asked == term
            {
                yes.insert(from);
            }
            self.stand_if_wanted(now);
        } else if self.prevotes.is_some() && term > self.node.current_term().get() && !self.leads()
        {
            self.learn_term(now, number, term);
        }
    }

    pub(super) fn vote_asked(&mut self, now: Tick, from: PeerId, term: u64, last: Position) {
        let from = self.names.number(from);
        // Not even the term is taken over within a lease: a leader that cannot be replaced yet must
        // not be disturbed.
        if self.must_refuse(now) {
            return;
        }
        let (term, last_position) = (Term::new(term), last.into());
        self.feed(now, &Message::RequestVoteCall { from, term, last_position }, None);
    }

    pub(super) fn vote_arrived(&mut self, now: Tick, from: PeerId, term: u64, granted: bool) {
        // One that does not stand has not asked: no answer moves it to another term.
        if !self.node.role().is_candidate() {
            return;
        }
        let from = self.names.number(from);
        let term = Term::new(term);
        self.feed(now, &Message::RequestVoteReply { from, term, vote_granted: granted }, None);
        if self.leads() {
            self.echoes.clear();
        }
    }

    pub(super) fn release_arrived(
        &mut self,
        now: Tick,
        from: PeerId,
        term: u64,
        successor: Option<PeerId>,
    ) {
        let from = self.names.number(from);
        if term == self.node.current_term().get() && self.node.voted_for() == Some(from) {
            self.still_until = Tick::ZERO;
            self.heard = None;
            self.timer = if successor == Some(self.me) { now } else { now + self.election_delay() };
        }
    }
}
