//! [`Commit`] on noraft.

mod messages;
mod replicate;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use noraft::{
    Action, Log, LogEntries, LogEntry, LogIndex, LogPosition, Message, Node, NodeId, Term,
};
use rand::Rng;
use rand::rngs::SmallRng;

use self::messages::Append;
use super::lease::Echoes;
use super::pace::Pace;
use super::wire::Names;
use super::{
    Commit, CommitConfig, CommitError, CommitOutput, CommitStatus, CommitWrite, ConsensusMessage,
    Entry, EntryKind, HardState, MemberChange, Members, Position, SnapshotPoint,
};
use crate::identity::PeerId;
use tenure_core::Tick;

/// Numbers from the network beyond this are refused: nothing honest counts that far, and sums stay
/// clear of overflow.
const MAX_NUMBER: u64 = 1 << 60;

/// How many commands before a snapshot are kept for followers, at most, and how many bytes of them. Without them a follower
/// that has just taken a snapshot of a busy group would find the log gone on, and need the next one, without end.
const TRAIL: usize = 10_000;
const TRAIL_BYTES: usize = 16 << 20;

/// What was found on disk.
#[derive(Debug, Clone, Default)]
pub struct Restored {
    /// Term, vote, lease.
    pub hard: HardState,
    /// Where the log begins: the latest snapshot, if there is one.
    pub snapshot: Option<SnapshotPoint>,
    /// The log after it.
    pub entries: Vec<Entry>,
}

/// noraft with payloads, lease, pre-vote, release and hint.
pub struct Raft {
    me: PeerId,
    config: CommitConfig,
    node: Node,
    names: Names,
    rng: SmallRng,
    /// The commands of the log by index.
    commands: BTreeMap<u64, Vec<u8>>,
    /// Commands up to here were handed out.
    delivered: u64,
    hard: HardState,
    /// When the election timer (for a leader: the heartbeat) runs out.
    timer: Tick,
    /// Before this instant no vote is given and none is asked for.
    still_until: Tick,
    /// When the last promise of the longest lease ends.
    longest_until: Tick,
    /// When the leader of the present term was last heard: none with every new term.
    heard: Option<Tick>,
    echoes: Echoes,
    /// The term that this node led last, and since when.
    led: (u64, Tick),
    /// The voters that would vote for this node in the term it asks about.
    prevotes: Option<(u64, BTreeSet<PeerId>)>,
    hinted: Option<PeerId>,
    /// What the followers were sent, while this node leads.
    pace: Pace,
    /// The heartbeat is due for every follower.
    beat_due: bool,
    /// What noraft wants of the follower whose answer is being handled.
    wants: Wants,
    /// The instant of the last input: no later than anything that is sent now.
    clock: Tick,
    out: VecDeque<CommitOutput>,
}

/// What noraft wants to send to a follower after its answer, apart from entries.
#[derive(Debug, Default)]
struct Wants {
    /// The logs differ here: the follower must drop its entry.
    probe: Option<LogPosition>,
    snapshot: bool,
}

/// What the answer to an append repeats of it.
#[derive(Debug, Clone, Copy, Default)]
struct Echo {
    beat: u64,
    number: u64,
}

impl Raft {
    /// Consensus on a node that has never been part of anything.
    #[must_use]
    pub fn fresh(me: PeerId, config: CommitConfig, rng: SmallRng) -> Self {
        let mut names = Names::default();
        let node = Node::start(names.number(me));
        Self {
            me,
            config,
            node,
            names,
            rng,
            commands: BTreeMap::new(),
            delivered: 0,
            hard: HardState::default(),
            timer: Tick::MAX,
            still_until: Tick::ZERO,
            longest_until: Tick::ZERO,
            heard: None,
            echoes: Echoes::default(),
            led: (0, Tick::ZERO),
            prevotes: None,
            hinted: None,
            pace: Pace::default(),
            beat_due: false,
            wants: Wants::default(),
            clock: Tick::ZERO,
            out: VecDeque::new(),
        }
    }

    /// Consensus as it was found on disk. It keeps still for the longest lease of which a promise may not have
    /// ended: it does not remember to which leader, or since when.
    pub fn restore(
        me: PeerId,
        config: CommitConfig,
        rng: SmallRng,
        now: Tick,
        found: Restored,
    ) -> Option<Self> {
        let mut raft = Self::fresh(me, config, rng);
        let (after, members) = match &found.snapshot {
            Some(s) => (s.position, s.members.clone()),
            None => (Position::default(), Members::default()),
        };
        let entries = raft.names.entries(after, &found.entries)?;
        let log = Log::new(raft.names.config(&members), entries);
        let voted_for = found.hard.voted_for.map(|p| raft.names.number(p));
        let id = raft.names.number(me);
        raft.node = Node::restart(id, Term::new(found.hard.term), voted_for, log);
        raft.delivered = after.index;
        raft.hard = found.hard;
        raft.keep(found.entries);
        if found.hard.term > 0 {
            let lease = found.hard.lease.max(raft.config.lease);
            raft.still_until = now + raft.config.promise(lease);
            raft.longest_until = raft.still_until;
        }
        raft.drain(now, None);
        Some(raft)
    }

    fn members(&self) -> Members {
        self.names.members(self.node.config())
    }

    fn leads(&self) -> bool {
        self.node.role().is_leader()
    }

    /// Whether the first entry of this leader's own term is committed: only then it knows all that was.
    fn settled(&self) -> bool {
        self.leads()
            && self.node.log().entries().get_term(self.node.commit_index())
                == Some(self.node.current_term())
    }

    fn acting_until(&self, now: Tick) -> Option<Tick> {
        if !self.settled() {
            return None;
        }
        self.echoes.acting_until(self.me, &self.members(), self.config.lease, now)
    }

    /// Whether this node must not vote: it leads within its lease, or promised another one to keep still.
    fn must_refuse(&self, now: Tick) -> bool {
        let leading = self.leads()
            && self
                .echoes
                .acting_until(self.me, &self.members(), self.config.lease, now)
                .is_some_and(|until| now < until);
        leading || now < self.still_until
    }

    fn keep(&mut self, entries: Vec<Entry>) {
        for entry in entries {
            if let EntryKind::Command(bytes) = entry.kind {
                self.commands.insert(entry.position.index, bytes);
            }
        }
    }

    /// The wire form of noraft's entries; `None` if a command is missing (it cannot be, but a
    /// message with a hole must not be sent).
    fn entries_out(&self, entries: &LogEntries, limit: usize) -> Option<Vec<Entry>> {
        let (mut out, mut size) = (Vec::new(), 0);
        for (position, entry) in entries.iter_with_positions() {
            let kind = match entry {
                LogEntry::Term(_) => EntryKind::Term,
                LogEntry::ClusterConfig(c) => EntryKind::Members(self.names.members(&c)),
                LogEntry::Command => {
                    EntryKind::Command(self.commands.get(&position.index.get())?.clone())
                }
            };
            let entry = Entry { position: position.into(), kind };
            size += replicate::size(&entry);
            if size > limit && !out.is_empty() {
                break;
            }
            out.push(entry);
        }
        Some(out)
    }

    fn send(&mut self, to: NodeId, message: &Message, echo: Echo) {
        let Some(to) = self.names.peer(to) else { return };
        let message = match message {
            // The pace decides what a follower is sent, and when.
            Message::AppendEntriesCall { .. } => return,
            Message::AppendEntriesReply { term, last_position, .. } => ConsensusMessage::Appended {
                term: term.get(),
                last: (*last_position).into(),
                beat: echo.beat,
                number: echo.number,
            },
            Message::RequestVoteCall { term, last_position, .. } => {
                ConsensusMessage::RequestVote { term: term.get(), last: (*last_position).into() }
            }
            Message::RequestVoteReply { term, vote_granted, .. } => {
                ConsensusMessage::Voted { term: term.get(), granted: *vote_granted }
            }
        };
        self.out.push_back(CommitOutput::Send(to, message));
    }

    /// Carries out what noraft asked for, after every single call into it. `incoming` is the append
    /// that caused it: its echo belongs into the answer.
    fn drain(&mut self, now: Tick, incoming: Option<Echo>) {
        self.clock = now;
        let echo = incoming.unwrap_or_default();
        let mut hard = false;
        // Term and vote go to disk as one word, so they are gathered before anything is sent.
        let mut sends = Vec::new();
        while let Some(action) = self.node.actions_mut().next() {
            match action {
                Action::SetElectionTimeout => self.set_timer(now),
                Action::SaveCurrentTerm | Action::SaveVotedFor => hard = true,
                Action::AppendLogEntries(entries) => {
                    let after = entries.prev_position().into();
                    let entries = self
                        .entries_out(&entries, usize::MAX)
                        .expect("the bytes of a command are kept before noraft hears of it");
                    self.out
                        .push_back(CommitOutput::Persist(CommitWrite::Append { after, entries }));
                }
                Action::BroadcastMessage(Message::AppendEntriesCall { entries, .. }) => {
                    // Entries go out by the pace; without any it is the heartbeat.
                    self.beat_due |= entries.is_empty();
                }
                Action::BroadcastMessage(message) => {
                    let peers: Vec<_> = self.node.peers().collect();
                    sends.extend(peers.into_iter().map(|p| (p, message.clone())));
                }
                Action::SendMessage(_, Message::AppendEntriesCall { entries, .. }) => {
                    self.wants.probe = entries.is_empty().then(|| entries.prev_position());
                }
                Action::SendMessage(to, message) => sends.push((to, message)),
                Action::InstallSnapshot(_) => self.wants.snapshot = true,
            }
        }
        if hard {
            self.save_hard();
        }
        let term = self.node.current_term().get();
        if self.leads() && self.led.0 != term {
            self.led = (term, now);
        }
        for (to, message) in sends {
            self.send(to, &message, echo);
        }
        self.deliver();
    }

    fn save_hard(&mut self) {
        self.hard.term = self.node.current_term().get();
        self.hard.voted_for = self.node.voted_for().and_then(|id| self.names.peer(id));
        self.out.push_back(CommitOutput::Persist(CommitWrite::Hard(self.hard)));
    }

    fn deliver(&mut self) {
        while self.delivered < self.node.commit_index().get() {
            self.delivered += 1;
            let index = LogIndex::new(self.delivered);
            if self.node.log().entries().get_entry(index) != Some(LogEntry::Command) {
                continue;
            }
            let term = self.node.log().entries().get_term(index).map_or(0, Term::get);
            let command = self.commands.get(&self.delivered).cloned().unwrap_or_default();
            let position = Position { term, index: self.delivered };
            self.out.push_back(CommitOutput::Committed { position, command });
        }
    }

    fn set_timer(&mut self, now: Tick) {
        if self.node.role().is_leader() {
            // A heartbeat that is due, or is soon, stays due: noraft puts it off with every proposal, and a follower
            // that waits for a snapshot is sent nothing else.
            self.timer = self.timer.min(now + self.config.heartbeat);
            return;
        }
        let base = now.max(self.still_until).max(now + self.config.heartbeat);
        self.timer = base + self.election_delay();
    }

    /// Every voter has a turn of its own, so that two do not stand at the same time and split the votes:
    /// the hinted voter first, the others in the order of their names, the former leader last. Half a
    /// turn lies between two, and the first one begins a little late: the others' promises to the former
    /// leader end when its last message reached *them*.
    fn election_delay(&mut self) -> Duration {
        let members = self.members();
        let former = self.node.voted_for().and_then(|id| self.names.peer(id));
        let place = |peer: PeerId| (former == Some(peer), self.hinted != Some(peer), peer);
        let voters = members.deciding();
        let rank = voters.iter().filter(|p| place(**p) < place(self.me)).count() as u64;
        let turn = self.config.spread.as_micros() as u64 / (voters.len() as u64).max(6);
        let within = self.rng.random_range(turn / 4..=turn * 3 / 4);
        Duration::from_micros(turn * rank + within)
    }

    /// Asks the other voters whether they would vote for this node.
    fn start_pre_vote(&mut self, now: Tick) {
        let members = self.members();
        if !members.is_voter(&self.me) {
            self.timer = Tick::MAX;
            return;
        }
        if now < self.still_until {
            self.timer = self.still_until + self.election_delay();
            return;
        }
        let term = self.node.current_term().get() + 1;
        let last = self.node.log().last_position().into();
        self.prevotes = Some((term, BTreeSet::from([self.me])));
        // Asking raises no term: it is done again soon.
        self.timer = now + self.config.spread / 6 + self.election_delay();
        for peer in members.all().into_iter().filter(|p| *p != self.me && members.is_voter(p)) {
            self.out.push_back(CommitOutput::Send(peer, ConsensusMessage::PreVote { term, last }));
        }
        self.stand_if_wanted(now);
    }

    fn stand_if_wanted(&mut self, now: Tick) {
        let Some((term, yes)) = &self.prevotes else { return };
        let members = self.members();
        let enough = |set: &BTreeSet<PeerId>| {
            set.is_empty() || set.iter().filter(|v| yes.contains(v)).count() > set.len() / 2
        };
        // A leader that was heard in between is not to be disturbed.
        let current =
            *term == self.node.current_term().get() + 1 && now >= self.still_until && !self.leads();
        if current && enough(&members.voters) && enough(&members.next) {
            self.prevotes = None;
            self.echoes.clear();
            // The leader that was heard is one of the term before. With its word a candidate, which has voted for
            // itself, would name itself as leader, and take the winner of this term for a second one.
            self.heard = None;
            self.node.handle_election_timeout();
            self.drain(now, None);
        }
    }

    /// Moves to a later term without voting in it.
    fn learn_term(&mut self, now: Tick, from: NodeId, term: u64) {
        let message =
            Message::RequestVoteReply { from, term: Term::new(term), vote_granted: false };
        self.feed(now, &message, None);
    }

    fn feed(&mut self, now: Tick, message: &Message, echo: Option<Echo>) {
        let before = self.node.current_term();
        if self.node.handle_message(message).is_err() {
            // The snapshot here contradicts the leader's log: a voter that has proven itself wrong
            // must not speak again. It stays mute; the node above sees no progress and says so.
            tracing::error!(node = %self.me, "the log on disk contradicts the leader; this node needs a fresh store");
            self.timer = Tick::MAX;
            self.still_until = Tick::MAX;
            return;
        }
        if self.node.current_term() != before {
            self.prevotes = None;
            self.echoes.clear();
            self.heard = None;
        }
        self.drain(now, echo);
    }

    /// Whether a configuration stands after the commit index: a change that is under way.
    fn changing(&self) -> bool {
        let entries = self.node.log().entries();
        let open = self.node.commit_index().get() + 1..=self.node.log().last_position().index.get();
        let is_config = |index: u64| {
            matches!(entries.get_entry(index.into()), Some(LogEntry::ClusterConfig(_)))
        };
        self.node.config().is_joint_consensus() || open.into_iter().any(is_config)
    }
}

impl Commit for Raft {
    fn bootstrap(&mut self, now: Tick, voters: &BTreeSet<PeerId>) -> Result<(), CommitError> {
        let ids: Vec<_> = voters.iter().map(|p| self.names.number(*p)).collect();
        if self.node.create_cluster(&ids).is_invalid() {
            return Err(CommitError::NotFresh);
        }
        self.drain(now, None);
        Ok(())
    }

    fn handle_message(&mut self, now: Tick, from: PeerId, message: ConsensusMessage) {
        if message.largest_number() > MAX_NUMBER {
            return;
        }
        match message {
            ConsensusMessage::Append { term, commit, after, entries, beat, number, lease } => {
                let echo = Echo { beat, number };
                let append = Append { term, commit, after, entries, echo, lease };
                self.append_arrived(now, from, append);
            }
            ConsensusMessage::Appended { term, last, beat, number } => {
                self.echo_arrived(now, from, term, last, Echo { beat, number });
            }
            ConsensusMessage::PreVote { term, last } => self.pre_vote_asked(now, from, term, last),
            ConsensusMessage::PreVoted { term, granted } => {
                self.pre_vote_arrived(now, from, term, granted);
            }
            ConsensusMessage::RequestVote { term, last } => self.vote_asked(now, from, term, last),
            ConsensusMessage::Voted { term, granted } => {
                self.vote_arrived(now, from, term, granted)
            }
            ConsensusMessage::Release { term, successor } => {
                self.release_arrived(now, from, term, successor);
            }
        }
    }

    fn handle_timeout(&mut self, now: Tick) {
        if now < self.timer {
            return;
        }
        if self.leads() {
            // This one is sent now.
            self.timer = now + self.config.heartbeat;
            self.node.handle_election_timeout();
            self.drain(now, None);
        } else {
            self.start_pre_vote(now);
        }
    }

    fn propose(&mut self, now: Tick, command: Vec<u8>) -> Result<Position, CommitError> {
        if !self.leads() {
            return Err(CommitError::NotLeader);
        }
        let next = self.node.log().last_position().index.get() + 1;
        self.commands.insert(next, command);
        let at = self.node.propose_command();
        debug_assert_eq!(at.index.get(), next);
        self.drain(now, None);
        Ok(at.into())
    }

    fn change_members(
        &mut self,
        now: Tick,
        change: MemberChange,
        note: Option<Vec<u8>>,
    ) -> Result<(), CommitError> {
        if !self.leads() {
            return Err(CommitError::NotLeader);
        }
        if !self.settled() || self.changing() {
            return Err(CommitError::Busy);
        }
        let mut config = self.node.config().clone();
        match change {
            MemberChange::Learn(peer) => {
                let id = self.names.number(peer);
                if config.contains(id) {
                    return Err(CommitError::Pointless);
                }
                config.non_voters.insert(id);
            }
            MemberChange::Promote(peer) => {
                let id = self.names.number(peer);
                if config.voters.contains(&id) {
                    return Err(CommitError::Pointless);
                }
                // A voter that has the log only in part would count and not help: it learns first.
                if !config.non_voters.contains(&id) {
                    return Err(CommitError::Behind(peer));
                }
                config = config.to_joint_consensus(&[id], &[]);
            }
            MemberChange::Replace { old, new } => {
                let (from, to) = (self.names.number(old), self.names.number(new));
                if !config.voters.contains(&from) {
                    return Err(CommitError::NoVoter(old));
                }
                if !config.non_voters.contains(&to) {
                    return Err(CommitError::Behind(new));
                }
                config = config.to_joint_consensus(&[to], &[from]);
            }
            MemberChange::Remove(peer) => {
                let id = self.names.number(peer);
                if config.non_voters.remove(&id) {
                    // A learner decides nothing: no joint majority is needed to let it go.
                } else if !config.voters.contains(&id) {
                    return Err(CommitError::Pointless);
                } else if config.voters.len() == 1 {
                    return Err(CommitError::Alone);
                } else {
                    config = config.to_joint_consensus(&[], &[id]);
                }
            }
        }
        if let Some(note) = note {
            self.propose(now, note)?;
        }
        if self.node.propose_config(config).is_invalid() {
            return Err(CommitError::Busy);
        }
        self.drain(now, None);
        Ok(())
    }

    fn progress(&self, peer: &PeerId) -> Option<u64> {
        self.node.follower_match_index(NodeId::new(peer.short())).map(LogIndex::get)
    }

    fn contact(&self, peer: &PeerId) -> Option<Tick> {
        self.leads().then(|| self.echoes.last(peer).unwrap_or(self.led.1))
    }

    fn hint(&mut self, leader: Option<PeerId>) {
        self.hinted = leader;
    }

    fn release(&mut self, now: Tick, successor: Option<PeerId>) {
        if !self.leads() {
            return;
        }
        let term = self.node.current_term().get();
        let others: Vec<_> = self.members().all().into_iter().filter(|p| *p != self.me).collect();
        for peer in &others {
            self.out.push_back(CommitOutput::Send(
                *peer,
                ConsensusMessage::Release { term, successor },
            ));
        }
        // noraft has no way to step down but a later term: this node moves to it without voting, so
        // that the successor can still have its vote there.
        if let Some(peer) = others.first() {
            let number = self.names.number(*peer);
            self.learn_term(now, number, term + 1);
            self.still_until = Tick::ZERO;
            self.timer = now + self.config.promise(self.config.lease) * 2;
        }
    }

    fn snapshot_point(&self, index: u64) -> Option<SnapshotPoint> {
        let index = LogIndex::new(index.min(self.node.commit_index().get()));
        let (position, config) = self.node.log().get_position_and_config(index)?;
        Some(SnapshotPoint { position: position.into(), members: self.names.members(config) })
    }

    fn snapshot_done(&mut self, point: &SnapshotPoint) -> bool {
        let config = self.names.config(&point.members);
        if !self.node.handle_snapshot_installed(point.position.into(), config) {
            return false;
        }
        self.commands = self.commands.split_off(&(point.position.index + 1));
        self.delivered = self.delivered.max(point.position.index);
        true
    }

    fn compact(&mut self, index: u64) -> u64 {
        let mut size = 0;
        let kept = self.commands.range(..=index).rev().take(TRAIL).take_while(|(_, command)| {
            size += command.len();
            size <= TRAIL_BYTES
        });
        let first = kept.last().map_or(index, |(first, _)| first - 1);
        if let Some(point) = self.snapshot_point(first) {
            self.snapshot_done(&point);
        }
        self.node.log().entries().prev_position().index.get()
    }

    fn status(&self, now: Tick) -> CommitStatus {
        let acting_until = self.acting_until(now).filter(|until| now < *until);
        let leader = if self.node.role().is_leader() {
            acting_until.map(|_| self.me)
        } else {
            let heard = self.heard.is_some_and(|t| {
                now.saturating_since(t)
                    <= self.config.promise(self.config.lease) + self.config.spread
            });
            self.node.voted_for().filter(|_| heard).and_then(|id| self.names.peer(id))
        };
        let last = self.node.log().last_position();
        CommitStatus {
            settled: self.settled(),
            term: self.node.current_term().get(),
            leader,
            acting_until,
            members: self.members(),
            changing: self.changing(),
            commit_index: self.node.commit_index().get(),
            last_index: last.index.get(),
            last_term: last.term.get(),
        }
    }

    fn flush(&mut self) {
        self.replicate();
    }

    fn poll_output(&mut self) -> Option<CommitOutput> {
        self.out.pop_front()
    }

    fn poll_timeout(&self) -> Tick {
        self.timer
    }
}
