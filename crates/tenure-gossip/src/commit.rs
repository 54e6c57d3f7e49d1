//! What must not diverge: an ordered log of commands, agreed by a majority of voters.
//!
//! [`Commit`] is all the rest of the crate knows of consensus. [`Raft`] implements it on noraft,
//! and adds what noraft leaves to its user:
//!
//! - **payloads**: noraft orders positions, this keeps the bytes at them;
//! - **a lease**: every append carries the instant it was sent and the lease; a follower that accepts
//!   it *promises* not to vote for another (nor to stand itself) for lease + margin. A leader
//!   whose instants a majority has echoed knows that no other can be elected before *the instant +
//!   lease*. Measured from before the request, on the leader's own clock; only rates are compared;
//! - **the promise survives a restart**: a node that comes back first keeps still for the longest
//!   lease whose promise may not have ended;
//! - **pre-vote**: a term is only raised by a voter that would win, so a node that was cut off does not
//!   depose a healthy leader when it returns;
//! - **release**: a leader that steps down shuts its gate, then frees the voters of their promise;
//! - **hint**: the voter that gossip names stands for election first.

mod lease;
mod pace;
mod raft;
mod wire;

use std::collections::BTreeSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use self::raft::{Raft, Restored};
pub use self::wire::{ConsensusMessage, Entry, EntryKind, Position};
use crate::config::ConfigError;
use crate::identity::PeerId;
use tenure_core::Tick;

/// The timing of consensus: of the lease, of failovers, and of what one message carries.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct CommitConfig {
    /// Time between a leader's heartbeats (250 ms). At most a third of the lease.
    pub heartbeat: Duration,
    /// How long a leader may act on a majority's echo (1 s; 100 ms to 60 s), counted from
    /// when the heartbeat was sent.
    pub lease: Duration,
    /// What followers add to the lease before they let another lead (200 ms; at least a tenth of the
    /// lease): it must cover the difference of clock *rates* over one lease.
    pub margin: Duration,
    /// The spread of election timeouts beyond the promise (600 ms; at least 60 ms): the voters have a
    /// turn each, the hinted one the first.
    pub spread: Duration,
    /// Bytes of entries in one message, beyond the first entry (1 MiB; above zero, or nothing is ever sent).
    pub batch: usize,
}

impl Default for CommitConfig {
    fn default() -> Self {
        Self {
            heartbeat: Duration::from_millis(250),
            lease: Duration::from_secs(1),
            margin: Duration::from_millis(200),
            spread: Duration::from_millis(600),
            batch: 1 << 20,
        }
    }
}

impl CommitConfig {
    /// Checks the values against each other.
    ///
    /// # Errors
    /// The field, its bound and the reason.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if self.lease < MIN_LEASE {
            let bound = format!("at least {MIN_LEASE:?}");
            return Err(ConfigError::new("lease", bound, "a disk and a network need that long"));
        }
        if self.heartbeat * 3 > self.lease {
            let bound = format!("at most a third of the lease ({:?})", self.lease / 3);
            let reason = "one lost heartbeat must not shut the gate";
            return Err(ConfigError::new("heartbeat", bound, reason));
        }
        if self.margin < self.lease / 10 {
            let bound = format!("at least a tenth of the lease ({:?})", self.lease / 10);
            let reason = "it covers clocks of different rates";
            return Err(ConfigError::new("margin", bound, reason));
        }
        if self.lease > MAX_LEASE {
            let bound = format!("at most {MAX_LEASE:?}");
            return Err(ConfigError::new("lease", bound, "a failover takes that long"));
        }
        if self.spread < Duration::from_millis(60) {
            let reason = "candidates would meet each other for ever";
            return Err(ConfigError::new("spread", "at least 60ms", reason));
        }
        Ok(())
    }

    /// How long a follower keeps still after it heard from a leader.
    pub(crate) fn promise(&self, lease: Duration) -> Duration {
        lease + self.margin.max(lease / 10)
    }
}

/// No lease is shorter: it must cover a sync and a round trip.
const MIN_LEASE: Duration = Duration::from_millis(100);
/// No lease is longer; a message that asks for more is cut down to it.
pub(crate) const MAX_LEASE: Duration = Duration::from_secs(60);

/// The nodes that take part in consensus.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Members {
    /// The nodes whose majority decides.
    pub voters: BTreeSet<PeerId>,
    /// During a change: the next voters, whose majority is needed as well.
    pub next: BTreeSet<PeerId>,
    /// The nodes that receive the whole log and decide nothing.
    pub learners: BTreeSet<PeerId>,
}

impl Members {
    /// Whether `peer` receives the log from the leader.
    #[must_use]
    pub fn contains(&self, peer: &PeerId) -> bool {
        self.is_voter(peer) || self.learners.contains(peer)
    }

    /// Whether `peer` votes, now or in the change under way.
    #[must_use]
    pub fn is_voter(&self, peer: &PeerId) -> bool {
        self.voters.contains(peer) || self.next.contains(peer)
    }

    /// The nodes that vote, now or in the change under way, each once.
    #[must_use]
    pub fn deciding(&self) -> BTreeSet<PeerId> {
        self.voters.union(&self.next).copied().collect()
    }

    /// Whether `change` is made in them.
    #[must_use]
    pub fn reflect(&self, change: &MemberChange) -> bool {
        match change {
            MemberChange::Learn(peer) => self.contains(peer),
            MemberChange::Promote(peer) => self.is_voter(peer),
            MemberChange::Remove(peer) => !self.contains(peer),
            MemberChange::Replace { old, new } => self.is_voter(new) && !self.contains(old),
        }
    }

    /// The voters once `change` is made.
    #[must_use]
    pub fn voters_after(&self, change: &MemberChange) -> BTreeSet<PeerId> {
        let mut voters = self.voters.clone();
        match change {
            MemberChange::Learn(_) => {}
            MemberChange::Promote(peer) => drop(voters.insert(*peer)),
            MemberChange::Remove(peer) => drop(voters.remove(peer)),
            MemberChange::Replace { old, new } => {
                voters.remove(old);
                voters.insert(*new);
            }
        }
        voters
    }

    /// Every member once.
    #[must_use]
    pub fn all(&self) -> BTreeSet<PeerId> {
        self.voters.iter().chain(&self.next).chain(&self.learners).copied().collect()
    }
}

/// A change of the members, one at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum MemberChange {
    /// Let this node receive the log without a vote.
    Learn(PeerId),
    /// Let this learner vote.
    Promote(PeerId),
    /// Remove this node: it neither votes nor receives the log, until an operator adds it again.
    Remove(PeerId),
    /// Let `new` vote instead of `old`, in one step: `new` learns first, and the change is proposed only
    /// once it has caught up, so the number of voters that answer never falls.
    Replace {
        /// A voter, dead or alive.
        old: PeerId,
        /// A node that runs and does not vote.
        new: PeerId,
    },
}

/// Consensus refused; nothing was changed, unless it says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CommitError {
    /// Only the leader takes commands.
    #[error("this node does not lead; send it to the leader")]
    NotLeader,
    /// A change of members is under way, or the leader is too new.
    #[error("another change of the members is not committed yet; try again in a moment")]
    Busy,
    /// The members are already as the change would make them.
    #[error("the members are like that already; `tenure gossip status` lists them")]
    Pointless,
    /// No other node votes, so none could lead or decide instead.
    #[error(
        "no other node votes, so this one cannot be spared; let another node join and vote first"
    )]
    Alone,
    /// The leader changed before the change was committed.
    #[error(
        "leadership changed before the change was committed; it may have been made or not: look at the status"
    )]
    Uncertain,
    /// A voter does not answer, and the change would rely on one voter more.
    #[error(
        "voter {0} does not answer, and this change would bring the group closer to losing its majority; bring it back, or put another node in its place: tenure gossip replace {0} NEW"
    )]
    Silent(PeerId),
    /// The node has not caught up with the log.
    #[error(
        "node {0} has not caught up, and was given no vote; it learns for now: see that it runs and reaches the leader, then repeat the order"
    )]
    Behind(PeerId),
    /// The order needs a voter, and this node has no vote.
    #[error("node {0} is no voter; `tenure gossip status` lists the voters")]
    NoVoter(PeerId),
    /// The node has forgotten what it acknowledged, so its vote means nothing any more.
    #[error(
        "node {0} runs from an old copy of its folder, or twice, and can never vote again; remove that folder, and join with a fresh one"
    )]
    Forgetful(PeerId),
    /// There is a log already.
    #[error("this node already belongs to a cluster; a cluster is bootstrapped once")]
    NotFresh,
}

/// What consensus wants done, in this order: a `Persist` must be durable before any later `Send`
/// leaves the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommitOutput {
    /// Make durable.
    Persist(CommitWrite),
    /// Send; may be lost.
    Send(PeerId, ConsensusMessage),
    /// The entry at this position is committed. In order, without gaps among commands.
    Committed {
        /// Where it stands in the consensus log.
        position: Position,
        /// The bytes that were proposed.
        command: Vec<u8>,
    },
    /// This peer is too far behind the log: give it a snapshot.
    NeedsSnapshot(PeerId),
    /// This peer has forgotten entries that it had acknowledged: its disk was put back to an earlier
    /// copy, or a copy of it runs elsewhere. Its votes and acknowledgements mean nothing any more.
    Forgot(PeerId),
}

/// What consensus must find again after a crash.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum CommitWrite {
    /// Term, vote, and the longest lease whose promise may not have ended.
    Hard(HardState),
    /// Drop everything after `after`, then append.
    Append {
        /// The entry before the first.
        after: Position,
        /// What follows it.
        entries: Vec<Entry>,
    },
}

/// What a voter must never forget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct HardState {
    /// The latest term seen.
    pub term: u64,
    /// The node it voted for in that term.
    pub voted_for: Option<PeerId>,
    /// The longest lease it promised to respect, of the promises that may not have ended.
    pub lease: Duration,
}

/// How consensus stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitStatus {
    /// The latest term seen.
    pub term: u64,
    /// Whether this node leads that term and knows everything committed before it.
    pub settled: bool,
    /// The leader of that term, as far as this node knows and heard of recently.
    pub leader: Option<PeerId>,
    /// If this node leads and its first entry is committed: until when it may act.
    pub acting_until: Option<Tick>,
    /// The voters and learners as of the last entry.
    pub members: Members,
    /// Whether the last change of them is not committed yet.
    pub changing: bool,
    /// Last committed entry.
    pub commit_index: u64,
    /// Last entry.
    pub last_index: u64,
    /// The term of the last entry: the latest term that certainly had a leader. A later one may have had only
    /// candidates.
    pub last_term: u64,
}

/// Everything a snapshot must say about the log it replaces.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotPoint {
    /// The last entry it covers.
    pub position: Position,
    /// The members at that entry.
    pub members: Members,
}

/// Consensus: an agreement on a log. Sans-IO: inputs, then [`Commit::poll_output`] until it is dry.
pub trait Commit: Send + 'static {
    /// Makes this node the first of a new cluster of `voters`.
    ///
    /// # Errors
    /// [`CommitError::NotFresh`] if there is a log.
    fn bootstrap(&mut self, now: Tick, voters: &BTreeSet<PeerId>) -> Result<(), CommitError>;
    /// A message of another member.
    fn handle_message(&mut self, now: Tick, from: PeerId, message: ConsensusMessage);
    /// Time has passed.
    fn handle_timeout(&mut self, now: Tick);
    /// Appends a command, if this node leads.
    ///
    /// # Errors
    /// [`CommitError::NotLeader`].
    fn propose(&mut self, now: Tick, command: Vec<u8>) -> Result<Position, CommitError>;
    /// Changes the members, if this node leads. `note` is a command that goes into the log just
    /// before the change, so that the change is never committed without it.
    ///
    /// # Errors
    /// See [`CommitError`]; then the note is not in the log either.
    fn change_members(
        &mut self,
        now: Tick,
        change: MemberChange,
        note: Option<Vec<u8>>,
    ) -> Result<(), CommitError>;
    /// How far the leader's log has reached `peer`.
    fn progress(&self, peer: &PeerId) -> Option<u64>;
    /// While this node leads: when it sent the last message that `peer` has answered, or when its term
    /// began, if `peer` has answered none.
    fn contact(&self, peer: &PeerId) -> Option<Tick>;
    /// The leader that gossip names.
    fn hint(&mut self, leader: Option<PeerId>);
    /// Gives leadership up: the gate must be shut before. The voters are freed of their promise.
    fn release(&mut self, now: Tick, successor: Option<PeerId>);
    /// What a snapshot of everything up to `index` has to say about the log.
    fn snapshot_point(&self, index: u64) -> Option<SnapshotPoint>;
    /// A snapshot that reaches to `point` is durable: forget the log before it, or take the point over.
    /// `false` if it does not fit, and nothing was changed.
    fn snapshot_done(&mut self, point: &SnapshotPoint) -> bool;
    /// A snapshot of everything up to `index` is durable: forget the log well before it. What is left lets a follower
    /// that takes this snapshot, or is only a little behind, go on with the log. Returns the last index forgotten.
    fn compact(&mut self, index: u64) -> u64;
    /// How consensus stands at `now`.
    fn status(&self, now: Tick) -> CommitStatus;
    /// Puts out what the followers are due. Called when no further input waits, so that everything
    /// proposed since the last call travels together.
    fn flush(&mut self);
    /// The next thing to be done.
    fn poll_output(&mut self) -> Option<CommitOutput>;
    /// When [`Commit::handle_timeout`] wants to be called.
    fn poll_timeout(&self) -> Tick;
}
