//! The members of a namespace: nodes that ask become learners, learners that caught up become voters, and
//! operators change both.
//!
//! **No change relies on a voter that does not answer.** A learner gets a vote only while every voter
//! answers, and a removal only leaves voters of which a majority answers: otherwise one death more would
//! stop the group, or the change itself could never be committed. [`MemberChange::Replace`] is how a dead
//! voter's place is filled.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Command, Engine, Event, Output};
use crate::commit::{Commit, CommitError, CommitStatus, MemberChange};
use crate::identity::PeerId;
use crate::machine::StateMachine;
use crate::message::Message;
use tenure_core::Tick;

/// A learner that lacks no more entries than this has caught up: the rest is under way.
const NEARLY: u64 = 64;
/// So has one that has everything that the log had so long ago. Under a busy group no learner ever lacks only a few
/// entries, however quick it is.
const ROUND: Duration = Duration::from_millis(500);
/// How long the leader waits for the new node of a replacement to catch up.
const REPLACE_PATIENCE: Duration = Duration::from_secs(60);

/// Why a node does not become a member by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Barred {
    /// An operator removed it, and may add it again.
    Removed,
    /// It has forgotten what it acknowledged: no operator can make its vote mean anything again.
    Forgetful,
}

/// A replacement that waits until the new node has caught up.
#[derive(Debug, Clone, Copy)]
pub(super) struct Replacing {
    old: PeerId,
    new: PeerId,
    until: Tick,
}

/// How long the log was some time ago, while this node leads.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Rounds {
    /// When the present round began, and the last index then.
    present: Option<(Tick, u64)>,
    /// The same of the round before.
    before: Option<(Tick, u64)>,
}

impl Rounds {
    fn tick(&mut self, now: Tick, last_index: u64) {
        if self.present.is_none_or(|(began, _)| now.saturating_since(began) >= ROUND) {
            self.before = self.present.replace((now, last_index));
        }
    }

    /// Whether a learner that acknowledged `index` is at most some rounds behind. Rounds that are too old, because
    /// this node was stopped, say nothing.
    fn reached(&self, now: Tick, index: u64) -> bool {
        self.before
            .is_some_and(|(began, last)| index >= last && now.saturating_since(began) <= ROUND * 4)
    }
}

impl<M: StateMachine, C: Commit> Engine<M, C> {
    /// Changes the voters and learners, if this node leads. A node that is removed does not come back
    /// by itself, also under another leader: only an operator lets it in.
    ///
    /// # Errors
    /// See [`CommitError`].
    pub fn change_members(&mut self, now: Tick, change: MemberChange) -> Result<(), CommitError> {
        let status = self.commit.status(now);
        if status.acting_until.is_none() {
            return Err(CommitError::NotLeader);
        }
        if self.replacing.is_some() {
            return Err(CommitError::Busy);
        }
        let newcomer = match change {
            MemberChange::Learn(peer) | MemberChange::Promote(peer) => Some(peer),
            MemberChange::Replace { new, .. } => Some(new),
            MemberChange::Remove(_) => None,
        };
        if let Some(peer) = newcomer.filter(|p| self.barred.get(p) == Some(&Barred::Forgetful)) {
            return Err(CommitError::Forgetful(peer));
        }
        self.check_quorum(now, &status, &change)?;
        // A learner that lags, or is gone, would count and not help.
        if let MemberChange::Promote(peer) = change
            && status.members.learners.contains(&peer)
            && !self.has_caught_up(now, &status, &peer)
        {
            return Err(CommitError::Behind(peer));
        }
        match change {
            MemberChange::Remove(peer) => {
                self.propose_change(now, change, Some(Command::Bar(peer)))?;
            }
            MemberChange::Learn(peer) | MemberChange::Promote(peer) => {
                self.propose_change(now, change, Some(Command::Admit(peer)))?;
            }
            MemberChange::Replace { old, new } => self.begin_replacing(now, &status, old, new)?,
        }
        self.settle(now);
        Ok(())
    }

    fn begin_replacing(
        &mut self,
        now: Tick,
        status: &CommitStatus,
        old: PeerId,
        new: PeerId,
    ) -> Result<(), CommitError> {
        let members = &status.members;
        if members.reflect(&MemberChange::Replace { old, new }) {
            return Ok(());
        }
        if !members.voters.contains(&old) {
            return Err(CommitError::NoVoter(old));
        }
        if members.is_voter(&new) {
            // It was given a vote before the other's death was noticed: what is left is to let that one go.
            let change = MemberChange::Remove(old);
            self.check_quorum(now, status, &change)?;
            return self.propose_change(now, change, Some(Command::Bar(old)));
        }
        if !members.learners.contains(&new) {
            self.propose_change(now, MemberChange::Learn(new), Some(Command::Admit(new)))?;
        }
        self.replacing = Some(Replacing { old, new, until: now + REPLACE_PATIENCE });
        Ok(())
    }

    fn propose_change(
        &mut self,
        now: Tick,
        change: MemberChange,
        note: Option<Command>,
    ) -> Result<(), CommitError> {
        self.commit.change_members(now, change, note.map(|note| note.to_bytes()))
    }

    /// Whether the voters after `change` are a group that can decide, and no closer to its end than before.
    fn check_quorum(
        &self,
        now: Tick,
        status: &CommitStatus,
        change: &MemberChange,
    ) -> Result<(), CommitError> {
        let silent = |peer: &&PeerId| self.is_silent(now, peer);
        match change {
            // An operator who adds a node means it to vote: it is better to say no at once.
            MemberChange::Learn(_) | MemberChange::Promote(_) => {
                let dead = status.members.voters.iter().find(silent);
                dead.map_or(Ok(()), |peer| Err(CommitError::Silent(*peer)))
            }
            MemberChange::Remove(_) => {
                let after = status.members.voters_after(change);
                let dead: Vec<_> = after.iter().filter(silent).collect();
                match dead.first() {
                    Some(peer) if dead.len() * 2 >= after.len() => Err(CommitError::Silent(**peer)),
                    Some(_) | None => Ok(()),
                }
            }
            // As many voters that answer as before, or one more: the new one has just caught up.
            MemberChange::Replace { .. } => Ok(()),
        }
    }

    /// Whether `peer` has answered none of this leader's heartbeats for two promises.
    #[must_use]
    pub fn is_silent(&self, now: Tick, peer: &PeerId) -> bool {
        let patience = self.config.commit.promise(self.config.commit.lease) * 2;
        let contact = self.commit.contact(peer).filter(|_| *peer != self.me);
        contact.is_some_and(|at| now.saturating_since(at) > patience)
    }

    /// Whether `peer` receives the log and has nearly all of it.
    fn has_caught_up(&self, now: Tick, status: &CommitStatus, peer: &PeerId) -> bool {
        let near =
            |at: u64| at > 0 && (at + NEARLY >= status.last_index || self.rounds.reached(now, at));
        self.commit.progress(peer).is_some_and(near) && !self.is_silent(now, peer)
    }

    /// What became of a change of the members that this node proposed in `term`; `None`: it is not
    /// committed yet.
    #[must_use]
    pub fn changed_members(
        &self,
        now: Tick,
        term: u64,
        change: &MemberChange,
    ) -> Option<Result<(), CommitError>> {
        let status = self.commit.status(now);
        if status.settled && status.term == term {
            if !status.changing && status.members.reflect(change) {
                return Some(Ok(()));
            }
            // A replacement that is neither under way nor made was given up.
            return match change {
                MemberChange::Replace { new, .. }
                    if self.replacing.is_none() && !status.changing =>
                {
                    Some(Err(CommitError::Behind(*new)))
                }
                MemberChange::Replace { .. }
                | MemberChange::Learn(_)
                | MemberChange::Promote(_)
                | MemberChange::Remove(_) => None,
            };
        }
        // A leader that takes its own vote away leads until the change is committed.
        let goes = match change {
            MemberChange::Remove(peer) => *peer == self.me,
            MemberChange::Replace { old, .. } => *old == self.me,
            MemberChange::Learn(_) | MemberChange::Promote(_) => false,
        };
        let committed = goes && !status.changing && status.members.reflect(change);
        Some(if committed { Ok(()) } else { Err(CommitError::Uncertain) })
    }

    /// A member has forgotten what it acknowledged: it is removed, and told why when it asks.
    pub(super) fn expel(&mut self, now: Tick, peer: PeerId) {
        if self.barred.get(&peer) == Some(&Barred::Forgetful) {
            return;
        }
        self.out.push_back(Output::Event(Event::Forgot(peer)));
        // Busy is an answer: the next of its answers brings it up again.
        let _ = self.propose_change(now, MemberChange::Remove(peer), Some(Command::Expel(peer)));
    }

    /// Nodes that asked become learners, and learners that caught up become voters.
    pub(super) fn tick_members(&mut self, now: Tick) {
        let status = self.commit.status(now);
        if status.acting_until.is_some() {
            self.rounds.tick(now, status.last_index);
        } else {
            self.rounds = Rounds::default();
        }
        if status.acting_until.is_some() && status.members.next.is_empty() {
            match self.replacing {
                Some(replacing) => self.tick_replacing(now, &status, replacing),
                None => self.promote_one(now, &status),
            }
        } else if !self.attached(&status)
            && self.config.wants_vote
            && let Some(leader) = self.leader
            && leader != self.me
        {
            self.out.push_back(Output::Send(leader, Message::Enlist));
        }
        // A lease that lapsed for a moment is no end of the term: the order is not to be told as given up.
        if !status.settled {
            self.replacing = None;
        }
    }

    fn promote_one(&mut self, now: Tick, status: &CommitStatus) {
        let mut learners = status.members.learners.iter();
        let ready = learners.find(|p| self.has_caught_up(now, status, p)).copied();
        let Some(peer) = ready.filter(|_| status.members.voters.len() < self.config.max_voters)
        else {
            return;
        };
        let change = MemberChange::Promote(peer);
        // Held back while a voter is silent; and Busy is an answer: the next tick tries again.
        if self.check_quorum(now, status, &change).is_ok() {
            let _ = self.propose_change(now, change, None);
        }
    }

    fn tick_replacing(&mut self, now: Tick, status: &CommitStatus, replacing: Replacing) {
        let Replacing { old, new, until } = replacing;
        if self.has_caught_up(now, status, &new) {
            let change = MemberChange::Replace { old, new };
            if self.propose_change(now, change, Some(Command::Bar(old))) != Err(CommitError::Busy) {
                self.replacing = None;
            }
        } else if until <= now {
            self.replacing = None;
        }
    }

    pub(super) fn enlist(&mut self, now: Tick, peer: PeerId) {
        let status = self.commit.status(now);
        if status.acting_until.is_none() || status.members.contains(&peer) {
            return;
        }
        match self.barred.get(&peer) {
            Some(Barred::Forgetful) => {
                self.out.push_back(Output::Send(peer, Message::Expelled));
                return;
            }
            Some(Barred::Removed) => return,
            None => {}
        }
        let members = status.members.voters.len() + status.members.learners.len();
        if members < self.config.max_voters {
            let _ = self.propose_change(now, MemberChange::Learn(peer), None);
        }
    }

    /// The leader says that this node has forgotten what it acknowledged.
    pub(super) fn expelled(&mut self, from: PeerId) {
        if self.leader == Some(from) {
            self.halt(
                "this folder is an old copy, or a copy of it runs elsewhere: it has forgotten what it promised; remove the folder, and join with a fresh one"
                    .to_owned(),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rand::SeedableRng;
    use rand::rngs::SmallRng;

    use super::*;
    use crate::commit::{ConsensusMessage, Entry, EntryKind, Position};
    use crate::engine::{EngineConfig, Found};
    use crate::gossip::Gossip;
    use crate::identity::{Ed25519Keys, Keys as _};
    use crate::kv::Kv;

    /// What a node says by gossip that leads `term`.
    fn vote(keys: Ed25519Keys, term: u64, now: Tick) -> Message {
        let EngineConfig { election, spray, .. } = EngineConfig::default();
        let rng = SmallRng::seed_from_u64(1);
        let mut gossip = Gossip::new(Box::new(keys), "main", election, spray, 1, Tick::ZERO, rng);
        gossip.set_term(term);
        gossip.handle_timeout(now);
        loop {
            gossip.handle_timeout(gossip.poll_timeout());
            if let Some((_, vote)) = gossip.poll_vote() {
                return Message::Vote(vote);
            }
        }
    }

    #[test]
    fn a_removed_voter_that_stood_in_vain_finds_the_leader_of_the_term_before() {
        let [mine, theirs, former] = [(); 3].map(|()| Ed25519Keys::generate());
        let (leader, old, voter) = (theirs.id(), former.id(), PeerId([1; 32]));
        let voters = BTreeSet::from([mine.id(), leader, old, voter]);
        let found = Found { incarnation: 1, ..Found::default() };
        let (config, start) = (EngineConfig::default(), Tick::ZERO);
        let mut engine =
            Engine::<Kv>::open(Box::new(mine), "main", config, found, start, 1).unwrap();
        engine.bootstrap(start, &voters).unwrap();
        let entry = Entry { position: Position { term: 3, index: 2 }, kind: EntryKind::Term };
        let append = ConsensusMessage::Append {
            term: 3,
            commit: 2,
            after: Position { term: 0, index: 1 },
            entries: vec![entry],
            beat: 1,
            number: 1,
            lease: 1_000,
        };
        engine.handle_message(start, leader, Message::Consensus(append));
        assert_eq!(engine.leader(), Some(leader));

        // It is cut off from the leader, which removes it; two others would have voted for it.
        let now = start + Duration::from_secs(10);
        engine.handle_timeout(now);
        for from in [old, voter] {
            let yes = ConsensusMessage::PreVoted { term: 4, granted: true };
            engine.handle_message(now, from, Message::Consensus(yes));
        }
        assert_eq!(engine.commit().status(now).term, 4);
        assert_eq!(engine.leader(), None);

        engine.handle_message(now, old, vote(former, 2, now));
        let now = now + Duration::from_secs(1);
        engine.handle_timeout(now);
        assert_eq!(engine.gossip().election().leader(), old);
        assert_eq!(engine.leader(), None, "the log has an entry of a later leader");
        engine.handle_message(now, leader, vote(theirs, 3, now));
        engine.handle_timeout(now + Duration::from_secs(1));
        assert_eq!(engine.leader(), Some(leader), "no other leader is known since");
    }

    #[test]
    fn a_replacement_outlives_a_lapse_of_the_lease_and_ends_with_the_term() {
        let keys = Ed25519Keys::generate();
        let (voter, old, new) = (PeerId([1; 32]), PeerId([2; 32]), PeerId([3; 32]));
        let voters = BTreeSet::from([keys.id(), voter, old]);
        let (config, mut now) = (EngineConfig::default(), Tick::ZERO);
        let found = Found { incarnation: 1, ..Found::default() };
        let mut engine = Engine::<Kv>::open(Box::new(keys), "main", config, found, now, 1).unwrap();
        engine.bootstrap(now, &voters).unwrap();
        let term = engine.commit().status(now).term;
        let yes = ConsensusMessage::Voted { term, granted: true };
        engine.handle_message(now, voter, Message::Consensus(yes));
        // The voter answers whatever it was sent.
        let answer = |engine: &mut Engine<Kv>, now: Tick| {
            while let Some(output) = engine.poll_output() {
                let Output::Send(to, Message::Consensus(sent)) = output else { continue };
                let ConsensusMessage::Append { after, entries, beat, number, .. } = sent else {
                    continue;
                };
                let last = entries.last().map_or(after, |entry| entry.position);
                let echo = ConsensusMessage::Appended { term, last, beat, number };
                if to == voter {
                    engine.handle_message(now, voter, Message::Consensus(echo));
                }
            }
        };
        answer(&mut engine, now);
        assert!(engine.acting(now).is_some());
        let change = MemberChange::Replace { old, new };
        engine.change_members(now, change).unwrap();
        answer(&mut engine, now);

        now = now + Duration::from_secs(2);
        engine.handle_timeout(now);
        assert!(engine.acting(now).is_none(), "no voter has answered for longer than a lease");
        assert_eq!(engine.changed_members(now, term, &change), None, "it goes on when they answer");
        answer(&mut engine, now);
        assert!(engine.acting(now).is_some());
        assert_eq!(engine.changed_members(now, term, &change), None);
        engine.release(now);
        engine.handle_timeout(now + Duration::from_secs(1));
        let uncertain = Some(Err(CommitError::Uncertain));
        assert_eq!(engine.changed_members(now, term, &change), uncertain);
        assert!(engine.replacing.is_none());
    }

    /// 10,000 entries a second for two seconds from `since` on. Whether a learner that is `lag` behind counts as near
    /// at the end.
    fn busy(rounds: &mut Rounds, since: Tick, lag: Duration) -> bool {
        let length = |at: Tick| at.saturating_since(Tick::ZERO).as_millis() as u64 * 10;
        let mut now = since;
        for _ in 0..10 {
            now = now + super::super::TICK;
            rounds.tick(now, length(now));
        }
        rounds.reached(now, length(now).saturating_sub(lag.as_millis() as u64 * 10))
    }

    #[test]
    fn a_learner_that_keeps_up_with_a_busy_group_has_caught_up_and_one_that_lags_has_not() {
        let since = Tick::ZERO + Duration::from_secs(60);
        assert!(busy(&mut Rounds::default(), since, Duration::from_millis(300)));
        assert!(!busy(&mut Rounds::default(), since, Duration::from_secs(2)));
    }

    #[test]
    fn rounds_from_before_a_stop_say_nothing() {
        let mut rounds = Rounds::default();
        let since = Tick::ZERO + Duration::from_secs(60);
        assert!(busy(&mut rounds, since, Duration::from_millis(300)));
        let later = since + Duration::from_secs(30);
        assert!(!rounds.reached(later, u64::MAX));
        rounds.tick(later, u64::MAX);
        assert!(!rounds.reached(later, u64::MAX - 1), "the round before is too old");
    }
}
