//! One namespace on one node: gossip, consensus and history put together. Sans-IO.
//!
//! ```text
//!             submit                                  subscribers
//!               │                                          ▲ Processed
//!               ▼        goal ──► leader                   │
//!  ┌─────────┐ pending ─────────► execute on the copy ─► propose ─► consensus ─► committed ─► Chain ─► history
//!  │ Gossip  │ hint ───────────────────────────────────────────────►┘             ▲
//!  └─────────┘                                             history of 3 peers ────┘ (gap, timeout, joiner)
//! ```
//!
//! The driver calls one input, then [`Engine::poll_output`] until it is dry, and carries the outputs
//! out **in order**: a `Persist` is durable (see [`Write::is_durable`]) before a later `Send` leaves.
//! After every input it reads [`Engine::acting`] and moves the gate accordingly, *before* it sends.

mod config;
mod error;
mod goals;
mod guard;
mod members;
mod output;
mod sync;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::SmallRng;

pub use self::config::EngineConfig;
pub use self::error::{OpenError, SubmitError};
use self::goals::{Parked, Pending};
use self::guard::Asked;
pub use self::members::Barred;
use self::members::{Replacing, Rounds};
#[doc(hidden)]
pub use self::output::Command;
pub use self::output::{Draft, Event, Opened, Output, Received, Reset, Sealed, Snapshot, Write};
use self::sync::Fetch;
use crate::commit::{Commit, CommitError, CommitOutput, CommitStatus, CommitWrite, Raft, Restored};
use crate::gossip::{Gossip, GossipOutput};
use crate::history::{Applied, Chain, ChainError, Record, TxId};
use crate::identity::{Keys, PeerId};
use crate::machine::StateMachine;
use crate::message::Message;
use tenure_core::Tick;

/// How often a node looks after what has no timer of its own.
const TICK: Duration = Duration::from_millis(200);

/// What was found on disk.
#[derive(Debug, Clone, Default)]
pub struct Found {
    /// Larger than at any earlier start.
    pub incarnation: u64,
    /// The consensus state.
    pub commit: Restored,
    /// The latest snapshot.
    pub snapshot: Option<Sealed>,
    /// The records after it.
    pub history: Vec<Record>,
}

/// How long this node may act, and as which term.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Acting {
    /// The consensus term: the epoch of the gate.
    pub term: u64,
    /// Until when, on this node's clock.
    pub until: Tick,
}

struct Lead<M> {
    term: u64,
    /// The last record whose state was put on record.
    checkpoint: u64,
    /// The state after everything proposed, committed or not.
    ahead: Chain<M>,
    in_flight: usize,
}

/// One namespace on one node.
pub struct Engine<M: StateMachine, C: Commit = Raft> {
    me: PeerId,
    config: EngineConfig,
    gossip: Gossip,
    commit: C,
    chain: Chain<M>,
    /// Position in the consensus log of the last command applied from it.
    applied_log: u64,
    /// The nodes that do not become members by themselves, as of `applied_log`.
    barred: BTreeMap<PeerId, Barred>,
    /// A replacement of a voter, on the leader that was ordered to make it.
    replacing: Option<Replacing>,
    rounds: Rounds,
    /// Bytes applied since the last snapshot: what consensus keeps in memory for members that are behind.
    unsnapped: usize,
    lead: Option<Lead<M>>,
    pending: BTreeMap<TxId, Pending>,
    parked: Parked,
    leader: Option<PeerId>,
    term: u64,
    /// The latest snapshot, ready to be sent.
    held: Option<Sealed>,
    /// The one that a peer began to fetch, as long as the log goes on from it.
    lent: Option<Sealed>,
    /// The next one, until the driver takes it.
    draft: Option<Draft<M>>,
    /// One is being made.
    drafting: bool,
    /// The oldest record in the store.
    oldest: u64,
    fetch: Option<Fetch>,
    /// A snapshot that was fetched, until the driver takes it.
    received: Option<Received<M>>,
    /// One is being read.
    opening: bool,
    asked: Asked,
    /// When a member was last heard, or there was none to hear; later by the time for which this node did not run.
    heard: Tick,
    stranded: bool,
    next_tick: Tick,
    next_sync: Tick,
    halted: Option<String>,
    /// It has given up what it led after it halted, and says nothing more in consensus.
    muted: bool,
    /// The instant of the last input.
    clock: Tick,
    /// There was an input since the followers were last sent what they are due.
    fresh: bool,
    out: VecDeque<Output>,
}

impl<M: StateMachine> Engine<M, Raft> {
    /// A node on noraft, as `found` on disk (or nothing, if it is new).
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(
        keys: Box<dyn Keys>,
        namespace: &str,
        config: EngineConfig,
        found: Found,
        now: Tick,
        seed: u64,
    ) -> Result<Self, OpenError> {
        Self::open_with(keys, namespace, config, found, now, seed, |raft| raft)
    }
}

impl<M: StateMachine, C: Commit> Engine<M, C> {
    /// The same, on what `consensus` makes of it.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open_with(
        keys: Box<dyn Keys>,
        namespace: &str,
        config: EngineConfig,
        found: Found,
        now: Tick,
        seed: u64,
        consensus: impl FnOnce(Raft) -> C,
    ) -> Result<Self, OpenError> {
        let me = keys.id();
        let rng = SmallRng::seed_from_u64(seed);
        let raft_rng = SmallRng::seed_from_u64(seed ^ 0xc0_77_17);
        let mut restored = found.commit;
        let snapshot = found.snapshot.as_ref().map(Sealed::snapshot);
        restored.snapshot = snapshot.as_ref().and_then(|s| s.point.clone());
        let applied_log = restored.snapshot.as_ref().map_or(0, |p| p.position.index);
        let commit = Raft::restore(me, config.commit.clone(), raft_rng, now, restored)
            .map(consensus)
            .ok_or(OpenError::Hole)?;
        let mut chain = match &snapshot {
            Some(s) => Chain::thaw(&s.chain).map_err(OpenError::Snapshot)?,
            None => Chain::default(),
        };
        let mut oldest = chain.index() + 1;
        for record in &found.history {
            oldest = oldest.min(record.index);
            match chain.apply(record) {
                Ok(_) => {}
                // A record that was not yet on disk when the power went: what follows it is fetched again.
                Err(ChainError::Gap { .. }) => break,
                Err(error) => return Err(error.into()),
            }
        }
        let gossip = Gossip::new(
            keys,
            namespace,
            config.election.clone(),
            config.spray.clone(),
            found.incarnation,
            now,
            rng,
        );
        let mut node = Self {
            me,
            config,
            gossip,
            commit,
            chain,
            applied_log,
            barred: snapshot.map(|s| s.barred).unwrap_or_default(),
            replacing: None,
            rounds: Rounds::default(),
            unsnapped: 0,
            lead: None,
            pending: BTreeMap::new(),
            parked: Parked::default(),
            leader: None,
            term: 0,
            held: None,
            lent: None,
            draft: None,
            drafting: false,
            oldest,
            fetch: None,
            received: None,
            opening: false,
            asked: Asked::default(),
            heard: now,
            stranded: false,
            next_tick: now + TICK,
            next_sync: now + TICK,
            halted: None,
            muted: false,
            clock: now,
            fresh: true,
            out: VecDeque::new(),
        };
        if let Some(sealed) = found.snapshot {
            node.hold(sealed);
        }
        node.settle(now);
        Ok(node)
    }
}

impl<M: StateMachine, C: Commit> Engine<M, C> {
    // Getters

    /// This node.
    #[must_use]
    pub fn id(&self) -> PeerId {
        self.me
    }

    /// The gossip: view and hint.
    #[must_use]
    pub fn gossip(&self) -> &Gossip {
        &self.gossip
    }

    /// Consensus.
    #[must_use]
    pub fn commit(&self) -> &C {
        &self.commit
    }

    /// The history and the state it made.
    #[must_use]
    pub fn chain(&self) -> &Chain<M> {
        &self.chain
    }

    /// The leader that goals are sent to: the committed one, or for a node outside of consensus, the one
    /// that gossip names.
    #[must_use]
    pub fn leader(&self) -> Option<PeerId> {
        self.leader
    }

    /// How long a leader may act on a majority's echo.
    #[must_use]
    pub fn lease(&self) -> Duration {
        self.config.commit.lease
    }

    /// Goals waiting here.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// The nodes that do not become members by themselves, as far as this node knows.
    #[must_use]
    pub fn barred(&self) -> &BTreeMap<PeerId, Barred> {
        &self.barred
    }

    /// The oldest record that can be served to others.
    #[must_use]
    pub fn oldest(&self) -> u64 {
        self.oldest
    }

    /// Why this node has stopped, if it has.
    #[must_use]
    pub fn halted(&self) -> Option<&str> {
        self.halted.as_deref()
    }

    /// Until when this node may act as leader. Never on the hint alone: the term's first entry is
    /// committed, and a majority of the voters has promised to elect no other for so long.
    #[must_use]
    pub fn acting(&self, now: Tick) -> Option<Acting> {
        let status = self.commit.status(now);
        let until = status.acting_until.filter(|_| self.halted.is_none())?;
        Some(Acting { term: status.term, until })
    }

    // Inputs

    /// Starts a new cluster of `voters` from here. Once, on one node.
    ///
    /// # Errors
    /// [`CommitError::NotFresh`] if this node has a log.
    pub fn bootstrap(&mut self, now: Tick, voters: &BTreeSet<PeerId>) -> Result<(), CommitError> {
        self.commit.bootstrap(now, voters)?;
        self.settle(now);
        Ok(())
    }

    /// Joins the group through a peer that is connected.
    pub fn join(&mut self, contact: PeerId) {
        self.gossip.join(contact);
        self.flush_gossip();
    }

    /// Remembers a peer.
    pub fn learn(&mut self, peer: PeerId) {
        self.gossip.learn(peer);
    }

    /// Says goodbye to the neighbours; the voters and learners stay as they are.
    pub fn leave(&mut self, now: Tick) {
        self.release(now);
        self.gossip.leave();
        self.flush_gossip();
    }

    /// Gives leadership up. The driver shuts the gate before it sends what this puts out.
    pub fn release(&mut self, now: Tick) {
        let successor = self.successor(&self.commit.status(now));
        self.commit.release(now, successor);
        self.settle(now);
    }

    /// A message from `from`, whose identity the link has proven.
    pub fn handle_message(&mut self, now: Tick, from: PeerId, message: Message) {
        if from == self.me || !message.within_limits() || !self.counts(now, from, &message) {
            return;
        }
        if let Message::Consensus(_) | Message::History { .. } = message {
            self.heard = now;
        }
        match message {
            Message::Spray(m) => self.gossip.handle_spray(from, m),
            Message::Vote(v) => {
                if let Err(why) = self.gossip.handle_vote(now, from, v) {
                    self.out.push_back(Output::Event(Event::VoteRejected(from, why)));
                }
            }
            // A node whose state is damaged has no say in what others commit, and gives nothing of it away.
            Message::Consensus(_)
            | Message::HistoryRequest { .. }
            | Message::SnapshotRequest { .. }
            | Message::Goal { .. }
                if self.halted.is_some() => {}
            Message::Consensus(m) => self.commit.handle_message(now, from, m),
            Message::Goal { tx, goal, hops } => self.goal_arrived(now, from, tx, goal, hops),
            Message::Processed(record) => self.record_arrived(now, record),
            Message::HistoryRequest { from: first, upto } => self.history_asked(from, first, upto),
            Message::History { records, last } => self.history_arrived(now, from, records, last),
            Message::SnapshotOffer { index, log, length, hash } => {
                self.snapshot_offered(now, from, index, log, length, hash);
            }
            Message::SnapshotRequest { hash, offset } => self.snapshot_asked(from, hash, offset),
            Message::SnapshotPiece { hash, offset, bytes } => {
                self.snapshot_piece(now, from, hash, offset, bytes);
            }
            Message::Enlist => self.enlist(now, from),
            Message::Expelled => self.expelled(from),
        }
        self.settle(now);
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Tick) {
        self.gossip.handle_timeout(now);
        if !self.muted && self.commit.poll_timeout() <= now {
            self.commit.handle_timeout(now);
        }
        self.settle(now);
        if self.next_tick <= now {
            // A node that was suspended could hear nothing: that time does not count.
            let away = now.saturating_since(self.next_tick);
            self.heard = (self.heard + away).min(now);
            self.next_tick = now + TICK;
            self.checkpoint(now);
            self.tick_goals(now);
            self.tick_sync(now);
            self.tick_members(now);
            self.settle(now);
        }
    }

    // Polls

    /// The next thing to be done.
    pub fn poll_output(&mut self) -> Option<Output> {
        if std::mem::take(&mut self.fresh) {
            self.flush_replication();
        }
        let output = self.out.pop_front()?;
        self.asked.note(&output);
        Some(output)
    }

    /// No input waits: what was proposed since the last time travels together. A leader may send its
    /// entries before they are on its own disk, so that its sync and the followers' go on at the same
    /// time: it counts itself only with the answers, and those it hears after its own sync. Not so if it
    /// decides alone (then the message says that they are committed), or if its term is not on disk yet.
    fn flush_replication(&mut self) {
        let others = self.commit.status(self.clock).members.deciding();
        let early = others.len() > 1
            && !self.out.iter().any(|output| {
                matches!(
                    output,
                    Output::Persist(
                        Write::Commit(CommitWrite::Hard(_))
                            | Write::Snapshot(..)
                            | Write::Forget(_)
                    )
                )
            });
        let behind = std::mem::take(&mut self.out);
        self.commit.flush();
        self.flush_commit(self.clock);
        if early {
            self.out.extend(behind);
        } else {
            let sends = std::mem::replace(&mut self.out, behind);
            self.out.extend(sends);
        }
    }

    /// When [`Engine::handle_timeout`] wants to be called.
    #[must_use]
    pub fn poll_timeout(&self) -> Tick {
        let commit = if self.muted { Tick::MAX } else { self.commit.poll_timeout() };
        self.gossip.poll_timeout().min(commit).min(self.next_tick)
    }

    // Below: what happens after every input

    /// Brings gossip, consensus, history and leadership into line with each other.
    fn settle(&mut self, now: Tick) {
        self.clock = now;
        self.fresh = true;
        self.flush_gossip();
        self.flush_commit(now);
        let status = self.commit.status(now);
        self.follow_leadership(now, &status);
        let acting = status.acting_until.is_some() && self.halted.is_none();
        if !self.parked.is_empty() && (acting || self.leader.is_some_and(|l| l != self.me)) {
            self.unpark(now);
        }
        // What was executed just now is in the queue of consensus.
        self.flush_commit(now);
        self.gossip.set_term(if acting { status.term } else { 0 });
        if self.halted.is_some() && !self.muted {
            // The others must not wait for this node: its gate is shut, so it can free them at once.
            let successor = self.successor(&status);
            self.commit.release(now, successor);
            self.muted = true;
            self.flush_commit(now);
        }
    }

    /// Puts the state after everything proposed so far on record.
    fn checkpoint(&mut self, now: Tick) {
        let acting = self.commit.status(now).acting_until.is_some();
        let Some(lead) = self.lead.as_mut().filter(|l| acting && l.checkpoint < l.ahead.index())
        else {
            return;
        };
        let (index, digest) = (lead.ahead.index(), lead.ahead.machine().digest());
        lead.checkpoint = index;
        let command = Command::Checkpoint { index, digest }.to_bytes();
        if self.commit.propose(now, command).is_err() {
            self.lead = None;
        }
    }

    /// The voter that should stand when this node gives leadership up.
    fn successor(&self, status: &CommitStatus) -> Option<PeerId> {
        let hint = self.gossip.election().leader();
        let voters = status.members.voters.iter().filter(|p| **p != self.me);
        voters.max_by_key(|p| (self.commit.progress(p), **p == hint)).copied()
    }

    fn flush_gossip(&mut self) {
        while let Some(output) = self.gossip.poll_output() {
            match output {
                GossipOutput::Send(to, message) => self.out.push_back(Output::Send(to, message)),
                GossipOutput::Leader(change) => {
                    self.commit.hint(Some(change.to));
                    self.out.push_back(Output::Event(Event::HintChanged(change)));
                }
            }
        }
    }

    fn flush_commit(&mut self, now: Tick) {
        while let Some(output) = self.commit.poll_output() {
            match output {
                CommitOutput::Persist(write) => {
                    self.out.push_back(Output::Persist(Write::Commit(write)));
                }
                CommitOutput::Send(to, message) => {
                    self.out.push_back(Output::Send(to, Message::Consensus(message)));
                }
                CommitOutput::Committed { position, command } => {
                    self.committed(now, position.index, &command);
                }
                CommitOutput::NeedsSnapshot(to) => self.offer_snapshot(to),
                CommitOutput::Forgot(peer) => self.expel(now, peer),
            }
        }
    }

    fn committed(&mut self, now: Tick, log_index: u64, command: &[u8]) {
        if self.halted.is_some() {
            return;
        }
        match postcard::from_bytes::<Command>(command) {
            Ok(Command::Record(record)) => {
                if let Some(lead) = &mut self.lead {
                    lead.in_flight = lead.in_flight.saturating_sub(1);
                }
                self.apply(now, record);
            }
            Ok(Command::Bar(peer)) => drop(self.barred.insert(peer, Barred::Removed)),
            Ok(Command::Expel(peer)) => drop(self.barred.insert(peer, Barred::Forgetful)),
            Ok(Command::Admit(peer)) => drop(self.barred.remove(&peer)),
            // Records that came by history may be ahead of the log: then the next checkpoint counts.
            Ok(Command::Checkpoint { index, digest }) => {
                if index == self.chain.index() && digest != self.chain.machine().digest() {
                    self.halt(format!(
                        "the state after record {index} is not the leader's; the store is damaged"
                    ));
                }
            }
            Err(error) => {
                self.halt(format!("entry {log_index} of the consensus log is no record: {error}"))
            }
        }
        self.applied_log = log_index;
        self.snapshot_if_due();
    }

    /// Applies a record that is known to be committed. `false` if it does not fit yet.
    fn apply(&mut self, now: Tick, record: Record) -> bool {
        if self.halted.is_some() {
            return false;
        }
        match self.chain.apply(&record) {
            Ok(Applied::Known) => true,
            Ok(Applied::New) => {
                if let Some(waiting) = self.pending.remove(&record.tx) {
                    tracing::debug!(tx = %record.tx, index = record.index, "goal decided");
                    if waiting.goal != record.goal {
                        self.out.push_back(Output::Conflict(record.tx, record.index));
                    }
                }
                self.unsnapped += record.size();
                self.out.push_back(Output::Persist(Write::History(record.clone())));
                self.spread(&record, now);
                self.out.push_back(Output::Processed(record));
                true
            }
            Err(ChainError::Gap { .. }) => false,
            Err(error @ (ChainError::Fork(_) | ChainError::Twice(_) | ChainError::Refused(..))) => {
                self.halt(error.to_string());
                false
            }
        }
    }

    fn halt(&mut self, why: String) {
        if self.halted.is_none() {
            tracing::error!(node = %self.me, why, "halted: nothing is applied any more");
            self.out.push_back(Output::Event(Event::Halted(why.clone())));
            self.halted = Some(why);
            self.lead = None;
        }
    }

    fn follow_leadership(&mut self, now: Tick, status: &CommitStatus) {
        // The copy that runs ahead is good for as long as this node leads the same term without a
        // break, whether or not its lease holds at the moment: what it proposed may still commit.
        if !status.settled || self.lead.as_ref().is_some_and(|l| l.term != status.term) {
            self.lead = None;
        }
        if status.settled && self.lead.is_none() && self.halted.is_none() {
            // Everything before this term's first entry is applied: nothing can come in between.
            let (term, checkpoint) = (status.term, self.chain.index());
            self.lead = Some(Lead { term, checkpoint, ahead: self.chain.ahead(), in_flight: 0 });
        }

        let attached = self.attached(status);
        let hint = self.gossip.election().leader();
        // Gossip is slower than consensus: a leader of an earlier term than that of the last entry is history. A
        // later term without an entry is no reason to doubt the hint: a voter that stood in vain and was then
        // removed is alone in that term for ever.
        let hint_term = self.gossip.election().leader_term();
        let named = (hint_term > 0 && hint_term >= status.last_term).then_some(hint);
        // A node that was removed while it was away still believes to be a member: gossip tells it.
        let leader = if attached { status.leader } else { named.filter(|l| *l != self.me) };
        if leader != self.leader || (attached && status.term != self.term) {
            self.leader = leader;
            self.term = if attached { status.term } else { self.gossip.election().leader_term() };
            let waiting = self.pending.len();
            self.out.push_back(Output::Event(Event::LeaderChanged {
                leader,
                term: self.term,
                waiting,
            }));
            if leader.is_some() {
                self.reroute_all(now);
            }
        }
    }

    /// Whether the committed leader counts this node in, as far as it can know.
    fn attached(&self, status: &CommitStatus) -> bool {
        status.members.contains(&self.me) && status.leader.is_some()
    }
}
