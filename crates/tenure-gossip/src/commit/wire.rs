//! The consensus messages as they travel, and their translation to and from noraft's.

use std::collections::{BTreeMap, BTreeSet};

use noraft::{ClusterConfig, LogEntries, LogEntry, LogIndex, LogPosition, NodeId, Term};
use serde::{Deserialize, Serialize};

use super::Members;
use crate::identity::PeerId;
use tenure_core::Tick;

/// A place in the log.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct Position {
    /// The term of the entry.
    pub term: u64,
    /// Its number.
    pub index: u64,
}

/// An entry of the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its place.
    pub position: Position,
    /// What it says.
    pub kind: EntryKind,
}

/// What an entry says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum EntryKind {
    /// A new leader's first entry.
    Term,
    /// The members from here on.
    Members(Members),
    /// Bytes for the state machine.
    Command(Vec<u8>),
}

/// What the voters say to each other. The sender's name comes from the authenticated link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ConsensusMessage {
    /// Entries, or none: a heartbeat.
    Append {
        term: u64,
        /// What is committed.
        commit: u64,
        /// The entry before the first.
        after: Position,
        /// What follows it.
        entries: Vec<Entry>,
        /// When it was sent, on the leader's clock; echoed unchanged.
        beat: u64,
        /// The number of the message; echoed unchanged.
        number: u64,
        /// The lease the leader counts on, in milliseconds.
        lease: u32,
    },
    /// The answer.
    Appended {
        term: u64,
        /// Its last entry.
        last: Position,
        beat: u64,
        number: u64,
    },
    /// "Would you vote for me?" It raises no term.
    PreVote {
        /// The term it would stand in.
        term: u64,
        /// Its last entry.
        last: Position,
    },
    /// The answer.
    PreVoted {
        /// The term that was asked about, if granted; the answerer's own, if not.
        term: u64,
        granted: bool,
    },
    /// "Vote for me."
    RequestVote {
        /// The term it stands in.
        term: u64,
        /// Its last entry.
        last: Position,
    },
    /// The answer.
    Voted { term: u64, granted: bool },
    /// The leader of `term` has shut its gate and frees the voters of their promise.
    Release {
        /// The term that ends.
        term: u64,
        /// The voter that may stand at once.
        successor: Option<PeerId>,
    },
}

impl ConsensusMessage {
    /// The largest of its numbers that are added to others.
    pub(super) fn largest_number(&self) -> u64 {
        match self {
            Self::Append { term, commit, after, .. } => {
                (*term).max(*commit).max(after.term).max(after.index)
            }
            Self::Appended { term, last, .. }
            | Self::PreVote { term, last }
            | Self::RequestVote { term, last } => (*term).max(last.term).max(last.index),
            Self::PreVoted { term, .. } | Self::Voted { term, .. } | Self::Release { term, .. } => {
                *term
            }
        }
    }
}

/// The names behind the numbers of consensus.
#[derive(Debug, Clone, Default)]
pub(super) struct Names(BTreeMap<NodeId, PeerId>);

impl Names {
    pub(super) fn number(&mut self, peer: PeerId) -> NodeId {
        let id = NodeId::new(peer.short());
        self.0.insert(id, peer);
        id
    }

    pub(super) fn peer(&self, id: NodeId) -> Option<PeerId> {
        self.0.get(&id).copied()
    }

    pub(super) fn config(&mut self, members: &Members) -> ClusterConfig {
        let mut numbers =
            |set: &BTreeSet<PeerId>| set.iter().map(|p| self.number(*p)).collect::<BTreeSet<_>>();
        let mut config = ClusterConfig::new();
        config.voters = numbers(&members.voters);
        config.new_voters = numbers(&members.next);
        config.non_voters = numbers(&members.learners);
        config
    }

    pub(super) fn members(&self, config: &ClusterConfig) -> Members {
        let peers = |set: &BTreeSet<NodeId>| set.iter().filter_map(|id| self.peer(*id)).collect();
        Members {
            voters: peers(&config.voters),
            next: peers(&config.new_voters),
            learners: peers(&config.non_voters),
        }
    }

    /// The wire's entries as noraft's, or `None` if they are not one unbroken run after `after`.
    pub(super) fn entries(&mut self, after: Position, entries: &[Entry]) -> Option<LogEntries> {
        let mut out = LogEntries::new(after.into());
        let (mut term, mut index) = (after.term, after.index);
        for entry in entries {
            index = index.checked_add(1)?;
            let first_of_term = matches!(entry.kind, EntryKind::Term);
            let at = entry.position;
            if at.index != index || at.term < term || (at.term > term) != first_of_term {
                return None;
            }
            term = at.term;
            out.push(match &entry.kind {
                EntryKind::Term => LogEntry::Term(Term::new(term)),
                EntryKind::Members(m) => LogEntry::ClusterConfig(self.config(m)),
                EntryKind::Command(_) => LogEntry::Command,
            });
        }
        Some(out)
    }
}

impl From<Position> for LogPosition {
    fn from(p: Position) -> Self {
        Self::new(Term::new(p.term), LogIndex::new(p.index))
    }
}

impl From<LogPosition> for Position {
    fn from(p: LogPosition) -> Self {
        Self { term: p.term.get(), index: p.index.get() }
    }
}

/// A beat travels as microseconds of the leader's own clock.
pub(super) fn beat(now: Tick) -> u64 {
    now.as_nanos() / 1_000
}

/// When an echoed beat was sent, rounded down: never later than it was.
pub(super) fn sent_at(beat: u64) -> Tick {
    Tick::from_nanos(beat.saturating_mul(1_000))
}
