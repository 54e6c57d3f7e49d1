//! The mistakes that the simulation must catch. Each is made by a collaborator of the machine under
//! test: its consensus, its keys, its disk, its configuration, or the messages on their way.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure_core::Tick;
use tenure_gossip::commit::{
    Commit, CommitError, CommitOutput, CommitStatus, ConsensusMessage, MemberChange, Position,
    Raft, SnapshotPoint,
};
use tenure_gossip::election::{Beacon, ElectionConfig, TieBreak, Vote};
use tenure_gossip::engine::Command;
use tenure_gossip::history::Record;
use tenure_gossip::identity::{Keys, PeerId, Signature};

/// One mistake, made on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mistake {
    /// A goal that times out moves the stored index on without a record: the disk makes it.
    SkipOnTimeout,
    /// A coin breaks ties: the configuration makes it.
    RandomTie,
    /// A relay renews the leader's stamp: the messages on their way make it, and keys that believe them.
    RelayedStamps,
    /// Votes of neighbours long silent still count: a configuration in which nothing grows old makes it.
    StaleNeighbours,
    /// A voter forgets its promise at once and votes within the leader's lease: consensus makes it.
    VoteWithinLease,
    /// A message leaves before what it promises is on disk: a disk that does not sync makes it.
    SendBeforePersist,
    /// A goal is executed again although it is in the history: consensus makes it.
    ForgetTransactions,
    /// The gate follows the gossip hint instead of the committed leader: consensus makes it.
    GateOnHint,
    /// A leader believes a voter that has forgotten what it acknowledged: consensus does not tell it.
    BelieveTheForgetful,
    /// States are never compared: consensus drops the checkpoints.
    NoCheckpoints,
    /// A dead voter counts as one that answers, and the group grows past it: consensus makes it.
    GrowPastTheDead,
}

impl Mistake {
    /// Every mistake there is.
    pub const ALL: [Self; 11] = [
        Self::SkipOnTimeout,
        Self::RandomTie,
        Self::RelayedStamps,
        Self::StaleNeighbours,
        Self::VoteWithinLease,
        Self::SendBeforePersist,
        Self::ForgetTransactions,
        Self::GateOnHint,
        Self::BelieveTheForgetful,
        Self::NoCheckpoints,
        Self::GrowPastTheDead,
    ];

    /// The name in the file of seeds.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::SkipOnTimeout => "skip-on-timeout",
            Self::RandomTie => "random-tie",
            Self::RelayedStamps => "relayed-stamps",
            Self::StaleNeighbours => "stale-neighbours",
            Self::VoteWithinLease => "vote-within-lease",
            Self::SendBeforePersist => "send-before-persist",
            Self::ForgetTransactions => "forget-transactions",
            Self::GateOnHint => "gate-on-hint",
            Self::BelieveTheForgetful => "believe-the-forgetful",
            Self::NoCheckpoints => "no-checkpoints",
            Self::GrowPastTheDead => "grow-past-the-dead",
        }
    }

    /// The election's configuration with this mistake in it, if the configuration makes it.
    pub(super) fn configure(self, election: &mut ElectionConfig) {
        match self {
            Self::RandomTie => election.tie = TieBreak::Random,
            // No beacon and no vote grows too old within the simulation.
            Self::StaleNeighbours => election.diameter = 1 << 20,
            Self::SkipOnTimeout
            | Self::RelayedStamps
            | Self::VoteWithinLease
            | Self::SendBeforePersist
            | Self::ForgetTransactions
            | Self::GateOnHint
            | Self::BelieveTheForgetful
            | Self::NoCheckpoints
            | Self::GrowPastTheDead => {}
        }
    }

    /// What becomes of a vote on its way.
    pub(super) fn alter(self, vote: &mut Vote) {
        if self == Self::RelayedStamps && vote.beacon.leader != vote.voter {
            let stamp = vote.beacon.stamp + 1;
            vote.beacon = Arc::new(Beacon { stamp, ..(*vote.beacon).clone() });
            vote.age = 0;
        }
    }

    /// The keys of a node that makes this mistake.
    pub(super) fn keys(self, keys: Box<dyn Keys>) -> Box<dyn Keys> {
        if self == Self::RelayedStamps { Box::new(Credulous(keys)) } else { keys }
    }
}

/// Keys that believe every signature.
struct Credulous(Box<dyn Keys>);

impl Keys for Credulous {
    fn id(&self) -> PeerId {
        self.0.id()
    }

    fn sign(&self, message: &[u8]) -> Signature {
        self.0.sign(message)
    }

    fn verify(&self, _: &PeerId, _: &[u8], _: &Signature) -> bool {
        true
    }
}

/// The product's consensus, or one that makes a mistake.
pub struct Consensus {
    raft: Raft,
    me: PeerId,
    lease: Duration,
    hinted: Option<PeerId>,
    mistake: Option<Mistake>,
    lie: Lie,
}

/// A record that consensus on one node says is committed, although it is not.
pub(super) type Lie = Arc<Mutex<Option<Record>>>;

impl Consensus {
    pub(super) fn new(
        raft: Raft,
        me: PeerId,
        lease: Duration,
        mistake: Option<Mistake>,
        lie: Lie,
    ) -> Self {
        Self { raft, me, lease, hinted: None, mistake, lie }
    }
}

impl Commit for Consensus {
    fn bootstrap(&mut self, now: Tick, voters: &BTreeSet<PeerId>) -> Result<(), CommitError> {
        self.raft.bootstrap(now, voters)
    }

    fn handle_message(&mut self, now: Tick, from: PeerId, message: ConsensusMessage) {
        let promised = match &message {
            ConsensusMessage::Append { term, .. } => Some(*term),
            ConsensusMessage::Appended { .. }
            | ConsensusMessage::PreVote { .. }
            | ConsensusMessage::PreVoted { .. }
            | ConsensusMessage::RequestVote { .. }
            | ConsensusMessage::Voted { .. }
            | ConsensusMessage::Release { .. } => None,
        };
        self.raft.handle_message(now, from, message);
        if let Some(term) = promised
            && self.mistake == Some(Mistake::VoteWithinLease)
        {
            // Only a release ends a promise early; this voter believes to have heard one.
            let release = ConsensusMessage::Release { term, successor: None };
            self.raft.handle_message(now, from, release);
        }
    }

    fn handle_timeout(&mut self, now: Tick) {
        self.raft.handle_timeout(now);
    }

    fn propose(&mut self, now: Tick, command: Vec<u8>) -> Result<Position, CommitError> {
        let again = match self.mistake {
            Some(Mistake::ForgetTransactions) => executed_again(&command),
            Some(_) | None => None,
        };
        let position = self.raft.propose(now, command)?;
        if let Some(again) = again {
            self.raft.propose(now, again)?;
        }
        Ok(position)
    }

    fn change_members(
        &mut self,
        now: Tick,
        change: MemberChange,
        note: Option<Vec<u8>>,
    ) -> Result<(), CommitError> {
        self.raft.change_members(now, change, note)
    }

    fn progress(&self, peer: &PeerId) -> Option<u64> {
        self.raft.progress(peer)
    }

    fn contact(&self, peer: &PeerId) -> Option<Tick> {
        let contact = self.raft.contact(peer);
        if self.mistake == Some(Mistake::GrowPastTheDead) {
            return contact.map(|_| Tick::MAX);
        }
        contact
    }

    fn hint(&mut self, leader: Option<PeerId>) {
        self.hinted = leader;
        self.raft.hint(leader);
    }

    fn release(&mut self, now: Tick, successor: Option<PeerId>) {
        self.raft.release(now, successor);
    }

    fn snapshot_point(&self, index: u64) -> Option<SnapshotPoint> {
        self.raft.snapshot_point(index)
    }

    fn snapshot_done(&mut self, point: &SnapshotPoint) -> bool {
        self.raft.snapshot_done(point)
    }

    fn compact(&mut self, index: u64) -> u64 {
        self.raft.compact(index)
    }

    fn status(&self, now: Tick) -> CommitStatus {
        let mut status = self.raft.status(now);
        if self.mistake == Some(Mistake::GateOnHint)
            && status.term > 0
            && self.hinted == Some(self.me)
        {
            status.acting_until = Some(now + self.lease);
        }
        status
    }

    fn flush(&mut self) {
        self.raft.flush();
    }

    fn poll_output(&mut self) -> Option<CommitOutput> {
        if let Some(record) = self.lie.lock().expect("no panic holds it").take() {
            let status = self.raft.status(Tick::ZERO);
            let position = Position { term: status.term, index: status.commit_index };
            let command = Command::Record(record).to_bytes();
            return Some(CommitOutput::Committed { position, command });
        }
        loop {
            let output = self.raft.poll_output()?;
            let dropped = match (&output, self.mistake) {
                (CommitOutput::Forgot(_), Some(Mistake::BelieveTheForgetful)) => true,
                (CommitOutput::Committed { command, .. }, Some(Mistake::NoCheckpoints)) => {
                    matches!(postcard::from_bytes(command), Ok(Command::Checkpoint { .. }))
                }
                _ => false,
            };
            if !dropped {
                return Some(output);
            }
        }
    }

    fn poll_timeout(&self) -> Tick {
        self.raft.poll_timeout()
    }
}

/// The command that a leader proposes when it has forgotten that it executed the goal of `command`:
/// the same transaction once more, as the next record.
fn executed_again(command: &[u8]) -> Option<Vec<u8>> {
    match postcard::from_bytes(command).ok()? {
        Command::Record(record) => {
            let next = Record { index: record.index + 1, prev: record.hash(), ..record };
            Some(Command::Record(next).to_bytes())
        }
        Command::Bar(_) | Command::Expel(_) | Command::Admit(_) | Command::Checkpoint { .. } => {
            None
        }
    }
}

/// The seeds on file that must catch `mistake`; there is one at least.
#[cfg(test)]
pub(super) fn seeds_of(mistake: Mistake) -> Vec<u64> {
    let seeds: Vec<u64> = include_str!("../../seeds/gossip.txt")
        .lines()
        .filter_map(|line| line.split('#').next()?.split_once(' '))
        .filter(|(name, _)| *name == mistake.name())
        .map(|(_, seed)| seed.trim().parse().expect("a mistake and a seed in every line"))
        .collect();
    assert!(!seeds.is_empty(), "no seed is on file for {}", mistake.name());
    seeds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mistake_has_a_seed_on_file_and_every_seed_a_mistake() {
        let known = Mistake::ALL.map(|mistake| {
            assert!(!seeds_of(mistake).is_empty());
            mistake.name()
        });
        for line in include_str!("../../seeds/gossip.txt").lines() {
            let name = line.split(' ').next().unwrap_or_default();
            assert!(line.starts_with('#') || known.contains(&name), "{line}");
        }
    }
}
