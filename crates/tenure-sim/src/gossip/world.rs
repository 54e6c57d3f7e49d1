//! Whole nodes with disks, clocks and a bad network, and the invariants they must keep.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::disk::Disk;
use super::keys::keys_of;
use super::mistake::{Consensus, Lie, Mistake};
use super::network::{Faults, Network};
use super::operations::Operations;
use super::queue::Queue;
use tenure_core::Tick;
use tenure_gossip::commit::{Commit as _, CommitError, MemberChange};
use tenure_gossip::engine::{Engine, EngineConfig, Event, Opened, Output, Sealed, Write};
use tenure_gossip::history::{Hash, Record, TxId};
use tenure_gossip::identity::PeerId;
use tenure_gossip::message::Message;
use tenure_gossip::{Kv, KvGoal, StateMachine as _};

/// How a world is made.
#[derive(Debug, Clone)]
pub struct WorldConfig {
    /// Everything random comes from it.
    pub seed: u64,
    /// How many nodes there are.
    pub nodes: usize,
    /// How many of them vote from the start; the rest may join.
    pub voters: usize,
    /// The network before anything else is done to it.
    pub faults: Faults,
    /// How much clock rates differ from true, at most, in thousandths.
    pub drift: u32,
    /// The nodes' configuration.
    pub node: EngineConfig,
    /// A mistake made on purpose.
    pub mistake: Option<Mistake>,
    /// Real signatures instead of stand-ins.
    pub real_keys: bool,
}

impl WorldConfig {
    /// `nodes` nodes, all of them voters, on a good network.
    #[must_use]
    pub fn calm(seed: u64, nodes: usize) -> Self {
        let mut node = EngineConfig::default();
        node.goal_timeout = Duration::from_secs(5);
        node.snapshot_every = 32;
        Self {
            seed,
            nodes,
            voters: nodes,
            faults: Faults::default(),
            drift: 20,
            node,
            mistake: None,
            real_keys: false,
        }
    }
}

/// One simulated node: the product's engine on the consensus of the simulation.
pub type Node = Engine<Kv, Consensus>;

/// What [`World::copy_disk`] makes.
#[derive(Debug, Clone)]
pub struct DiskCopy(Disk);

/// An invariant was broken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("at {at_ms} ms: {what}")]
pub struct Violation {
    /// When, in the simulation.
    pub at_ms: u64,
    /// Which promise was broken, and how.
    pub what: String,
}

enum Happening {
    Timer {
        node: usize,
        life: u64,
    },
    Arrival {
        from: usize,
        to: usize,
        message: Box<Message>,
    },
    /// A snapshot that was made beside the node is written.
    Sealed {
        node: usize,
        life: u64,
        sealed: Sealed,
    },
    /// A snapshot that a peer sent was read beside the node.
    Opened {
        node: usize,
        life: u64,
        opened: Option<Box<Opened<Kv>>>,
    },
}

struct Member {
    id: PeerId,
    node: Option<Node>,
    disk: Disk,
    life: u64,
    timer: u64,
    /// local clock in nanoseconds = offset + true time in microseconds · rate / 1,000
    offset: u64,
    rate: u64,
    paused_until: u64,
    /// The gate, as its program last set it: (epoch, true time until which it says yes).
    gate: Option<(u64, u64)>,
    seen_index: u64,
    /// It is about to move its stored index on without a record.
    skips: bool,
    /// Transactions that callers on this node wait for.
    callers: BTreeSet<TxId>,
    lie: Lie,
}

/// Figures of a run.
#[derive(Debug, Clone, Default)]
pub struct Figures {
    /// Messages delivered.
    pub delivered: u64,
    /// Records applied for the first time: commits.
    pub committed: u64,
    /// Changes of the hint on any node.
    pub hint_changes: u64,
    /// Terms in which a gate opened.
    pub terms_acted: u64,
    /// Goals that timed out on any node.
    pub goal_timeouts: u64,
    /// Histories asked for.
    pub history_requests: u64,
    /// The peers that were asked for history at once, at most.
    pub peers_asked: usize,
    /// Snapshots installed from a peer.
    pub snapshots_installed: u64,
    /// Orders about the members that a leader took.
    pub members_changed: u64,
    /// Old copies that were found out and removed.
    pub expelled: u64,
}

/// All nodes, their network and their disks, on one virtual clock.
pub struct World {
    config: WorldConfig,
    /// True time in microseconds.
    now: u64,
    queue: Queue<Happening>,
    network: Network,
    members: Vec<Member>,
    index_of: BTreeMap<PeerId, usize>,
    rng: SmallRng,
    // What must hold, over all nodes and all time
    hash_at: BTreeMap<u64, Hash>,
    state_at: BTreeMap<u64, Hash>,
    index_of_tx: BTreeMap<TxId, u64>,
    leader_of_term: BTreeMap<u64, usize>,
    highest_epoch: u64,
    violation: Option<Violation>,
    /// Of every thousand inputs, so many end in a crash between two outputs.
    pub crash_in_flight: u32,
    operations: Operations,
    /// Nodes with a damaged state: what they apply is not compared, and they may halt.
    damaged: BTreeSet<usize>,
    /// Nodes whose disk was put back to an earlier copy; they may halt.
    put_back: BTreeSet<usize>,
    /// Nodes whose folders an operator has removed.
    retired: BTreeSet<usize>,
    /// Figures so far.
    pub figures: Figures,
    trace: u64,
}

impl World {
    /// Nodes that know each other; node 0 bootstraps the cluster of the first `voters`.
    #[must_use]
    pub fn new(config: WorldConfig) -> Self {
        let mut rng = SmallRng::seed_from_u64(config.seed);
        let members = (0..config.nodes)
            .map(|i| {
                let mut disk = Disk::default();
                disk.lies = config.mistake == Some(Mistake::SendBeforePersist);
                Member {
                    id: keys_of(i, config.real_keys).id(),
                    node: None,
                    disk,
                    life: 0,
                    timer: u64::MAX,
                    offset: rng.random_range(0..1_000_000_000) * 1_000,
                    rate: 1_000_000 + u64::from(config.drift) * 500
                        - u64::from(rng.random_range(0..=config.drift)) * 1_000,
                    paused_until: 0,
                    gate: None,
                    seen_index: 0,
                    skips: false,
                    callers: BTreeSet::new(),
                    lie: Lie::default(),
                }
            })
            .collect::<Vec<_>>();
        let index_of = members.iter().enumerate().map(|(i, m)| (m.id, i)).collect();
        let mut world = Self {
            now: 0,
            queue: Queue::new(),
            network: Network::new(config.faults),
            members,
            index_of,
            rng,
            hash_at: BTreeMap::new(),
            state_at: BTreeMap::new(),
            index_of_tx: BTreeMap::new(),
            leader_of_term: BTreeMap::new(),
            highest_epoch: 0,
            violation: None,
            crash_in_flight: 0,
            operations: Operations::default(),
            damaged: BTreeSet::new(),
            put_back: BTreeSet::new(),
            retired: BTreeSet::new(),
            figures: Figures::default(),
            trace: 0xcbf2_9ce4_8422_2325,
            config,
        };
        for i in 0..world.config.voters {
            world.start(i);
        }
        let voters: BTreeSet<_> =
            world.members[..world.config.voters].iter().map(|m| m.id).collect();
        world.with(0, |node, now| {
            node.bootstrap(now, &voters).expect("a fresh node takes a bootstrap");
        });
        world
    }

    /// True time in milliseconds.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        self.now / 1_000
    }

    /// A hash of everything that happened: the same for the same seed.
    #[must_use]
    pub fn trace(&self) -> u64 {
        self.trace
    }

    /// How many nodes there are, running or not.
    #[must_use]
    pub fn size(&self) -> usize {
        self.members.len()
    }

    /// The node, if it runs.
    #[must_use]
    pub fn node(&self, i: usize) -> Option<&Node> {
        self.members[i].node.as_ref()
    }

    /// The identity of a node, running or not.
    #[must_use]
    pub fn id(&self, i: usize) -> PeerId {
        self.members[i].id
    }

    /// The running nodes.
    pub fn running(&self) -> impl Iterator<Item = (usize, &Node)> {
        self.members.iter().enumerate().filter_map(|(i, m)| m.node.as_ref().map(|n| (i, n)))
    }

    /// Whether node `i` does nothing at the moment.
    #[must_use]
    pub fn is_paused(&self, i: usize) -> bool {
        self.now < self.members[i].paused_until
    }

    /// The node whose gate is open, if there is one.
    #[must_use]
    pub fn acting(&self) -> Option<usize> {
        self.members.iter().position(|m| m.gate.is_some_and(|(_, until)| self.now < until))
    }

    /// Where a transaction was committed.
    #[must_use]
    pub fn committed(&self, tx: &TxId) -> Option<u64> {
        self.index_of_tx.get(tx).copied()
    }

    /// The keys whose answers to callers no single store could have given.
    #[must_use]
    pub fn contradictions(&self) -> Vec<String> {
        self.operations.contradictions()
    }

    /// The leader that gossip names on node `i`.
    #[must_use]
    pub fn hint(&self, i: usize) -> Option<usize> {
        let leader = self.members[i].node.as_ref()?.gossip().election().leader();
        self.index_of.get(&leader).copied()
    }

    // Things that happen to nodes

    /// Starts node `i` from its disk; it meets the nodes that run.
    pub fn start(&mut self, i: usize) {
        if self.members[i].node.is_some() || self.retired.contains(&i) {
            return;
        }
        let seed = self.rng.random();
        let now = self.local(i);
        let found = self.members[i].disk.found();
        let keys = keys_of(i, self.config.real_keys);
        let (me, config, mistake) = (keys.id(), self.config.node.clone(), self.config.mistake);
        let lease = config.commit.lease;
        let lie = self.members[i].lie.clone();
        let consensus = |raft| Consensus::new(raft, me, lease, mistake, lie);
        let mut node = match Node::open_with(keys, "sim", config, found, now, seed, consensus) {
            Ok(node) => node,
            Err(what) => return self.fail(format!("node {i} cannot start from its disk: {what}")),
        };
        let contacts: Vec<_> =
            self.running().filter(|(j, _)| *j != i).map(|(_, n)| n.id()).collect();
        for peer in &contacts {
            node.learn(*peer);
        }
        if !contacts.is_empty() {
            node.join(contacts[self.rng.random_range(0..contacts.len())]);
        }
        self.members[i].life += 1;
        self.members[i].paused_until = 0;
        self.members[i].timer = u64::MAX;
        self.members[i].node = Some(node);
        self.after(i);
    }

    /// The power of node `i` goes.
    pub fn crash(&mut self, i: usize) {
        let m = &mut self.members[i];
        m.node = None;
        m.gate = None;
        m.callers.clear();
        m.life += 1;
        m.disk.crash(&mut self.rng);
    }

    /// A copy of node `i`'s disk, as a backup makes it.
    #[must_use]
    pub fn copy_disk(&self, i: usize) -> DiskCopy {
        DiskCopy(self.members[i].disk.clone())
    }

    /// Node `i`, which must not run, gets an earlier copy of its disk back.
    pub fn put_back(&mut self, i: usize, copy: &DiskCopy) {
        assert!(self.members[i].node.is_none(), "a running node keeps its disk");
        self.members[i].disk = copy.0.clone();
        self.members[i].seen_index = 0;
        self.put_back.insert(i);
    }

    /// Node `i` ends for good.
    pub fn retire(&mut self, i: usize) {
        self.crash(i);
        self.retired.insert(i);
    }

    /// How many nodes have ended for good.
    #[must_use]
    pub fn retired(&self) -> usize {
        self.retired.len()
    }

    /// Consensus on node `i` says that `record` is committed: its state is damaged from here on.
    pub fn mislead(&mut self, i: usize, record: Record) {
        self.damaged.insert(i);
        *self.members[i].lie.lock().expect("no panic holds it") = Some(record);
    }

    /// One value in the snapshot on node `i`'s disk changes, and nothing on the disk tells of it. `false`
    /// if there is no snapshot yet. The node must not run.
    pub fn rot(&mut self, i: usize) -> bool {
        assert!(self.members[i].node.is_none(), "a running node would not notice");
        let rotten = self.members[i].disk.rot();
        if rotten {
            self.damaged.insert(i);
        }
        rotten
    }

    /// Node `i` does nothing for a while, and does not notice. Its gate stays as it was.
    pub fn pause(&mut self, i: usize, millis: u64) {
        self.members[i].paused_until = self.now + millis * 1_000;
    }

    /// Cuts `group` off from the rest.
    pub fn split(&mut self, group: &BTreeSet<usize>) {
        self.network.split(group, self.members.len());
    }

    /// What `from` sends does not reach `to`.
    pub fn deafen(&mut self, from: usize, to: usize) {
        self.network.deafen(from, to);
    }

    /// The network is whole again.
    pub fn heal(&mut self, faults: Faults) {
        self.network.heal();
        self.network.faults = faults;
    }

    /// Submits a goal on node `i`; `false` if it does not run or did not take it.
    pub fn submit(&mut self, i: usize, tx: TxId, goal: &KvGoal) -> bool {
        let bytes = goal.to_bytes();
        let mut taken = false;
        if self.members[i].node.is_some() && !self.is_paused(i) {
            self.operations.begin(self.now, tx, goal);
            self.with(i, |node, now| taken = node.submit(now, tx, bytes).is_ok());
            if taken {
                self.members[i].callers.insert(tx);
            }
        }
        taken
    }

    /// Changes the members through node `i`.
    ///
    /// # Errors
    /// As [`Engine::change_members`].
    pub fn change_members(&mut self, i: usize, change: MemberChange) -> Result<(), CommitError> {
        let mut result = Err(CommitError::NotLeader);
        self.with(i, |node, now| result = node.change_members(now, change));
        self.figures.members_changed += u64::from(result.is_ok());
        result
    }

    /// Node `i` gives leadership up.
    pub fn release(&mut self, i: usize) {
        self.with(i, |node, now| node.release(now));
    }

    /// Lets `millis` pass.
    ///
    /// # Errors
    /// The first invariant that broke.
    pub fn run(&mut self, millis: u64) -> Result<(), Violation> {
        let end = self.now + millis * 1_000;
        while self.queue.next_at().is_some_and(|at| at <= end) && self.violation.is_none() {
            self.step();
        }
        self.now = end;
        self.violation.clone().map_or(Ok(()), Err)
    }

    /// Lets time pass until `goal` holds, `millis` at most. `false` if it never did.
    ///
    /// # Errors
    /// The first invariant that broke.
    pub fn run_until(
        &mut self,
        millis: u64,
        goal: impl Fn(&Self) -> bool,
    ) -> Result<bool, Violation> {
        let end = self.now + millis * 1_000;
        while self.now < end {
            if goal(self) {
                return Ok(true);
            }
            self.run(50)?;
        }
        Ok(goal(self))
    }

    // The machinery

    fn step(&mut self) {
        let Some((at, happening)) = self.queue.pop() else { return };
        self.now = at;
        match happening {
            Happening::Timer { node, life } => {
                let m = &mut self.members[node];
                if m.life != life || m.timer != at {
                    return;
                }
                m.timer = u64::MAX;
                if m.paused_until > at {
                    let later = m.paused_until;
                    m.timer = later;
                    self.queue.push(later, Happening::Timer { node, life });
                    return;
                }
                self.mark(node as u64 ^ at << 8);
                self.with(node, |n, now| n.handle_timeout(now));
            }
            Happening::Sealed { node, life, sealed } => {
                if self.members[node].life == life {
                    self.with(node, |n, now| n.drafted(now, sealed));
                }
            }
            Happening::Opened { node, life, opened } => {
                if self.members[node].life == life {
                    self.with(node, |n, now| n.opened(now, opened.map(|opened| *opened)));
                }
            }
            Happening::Arrival { from, to, message } => {
                if self.members[to].paused_until > at {
                    let later = self.members[to].paused_until;
                    self.queue.push(later, Happening::Arrival { from, to, message });
                    return;
                }
                let id = self.members[from].id;
                if self.members[to].node.is_some() {
                    self.mark((from as u64) << 4 ^ to as u64 ^ at << 8);
                    self.figures.delivered += 1;
                    self.with(to, |n, now| n.handle_message(now, id, *message));
                }
            }
        }
    }

    fn mark(&mut self, word: u64) {
        self.trace = (self.trace ^ word).wrapping_mul(0x0100_0000_01b3);
    }

    fn local(&self, i: usize) -> Tick {
        let m = &self.members[i];
        Tick::from_nanos(m.offset + (u128::from(self.now) * u128::from(m.rate) / 1_000) as u64)
    }

    /// The first true instant at which node `i`'s clock shows `local` or more.
    fn true_time(&self, i: usize, local: Tick) -> u64 {
        let m = &self.members[i];
        let past = u128::from(local.as_nanos().saturating_sub(m.offset));
        (past * 1_000).div_ceil(u128::from(m.rate)) as u64
    }

    fn with(&mut self, i: usize, input: impl FnOnce(&mut Node, Tick)) {
        let now = self.local(i);
        if let Some(node) = self.members[i].node.as_mut() {
            input(node, now);
            self.after(i);
        }
    }

    /// Carries out what node `i` wants done: the gate is shut first, opened last.
    fn after(&mut self, i: usize) {
        let now = self.local(i);
        let Some(node) = self.members[i].node.as_ref() else { return };
        let acting = node.acting(now);
        let status = node.commit().status(now);
        if status.settled {
            let first = *self.leader_of_term.entry(status.term).or_insert(i);
            if first != i {
                return self.fail(format!("nodes {first} and {i} both lead term {}", status.term));
            }
        }
        if acting.is_none_or(|a| self.members[i].gate.is_some_and(|(epoch, _)| epoch != a.term)) {
            self.members[i].gate = None;
        }
        let crash_after = (self.crash_in_flight > 0
            && self.rng.random_range(0..10_000) < self.crash_in_flight)
            .then(|| self.rng.random_range(0..4));
        let mut done = 0;
        while let Some(output) = self.members[i].node.as_mut().and_then(Node::poll_output) {
            if crash_after == Some(done) {
                self.crash(i);
                return;
            }
            done += 1;
            self.carry_out(i, output);
        }
        if let Some(draft) = self.members[i].node.as_mut().and_then(Node::poll_draft) {
            let (life, sealed) = (self.members[i].life, draft.seal());
            let at = self.now + self.rng.random_range(0..500_000);
            self.queue.push(at, Happening::Sealed { node: i, life, sealed });
        }
        if let Some(received) = self.members[i].node.as_mut().and_then(Node::poll_received) {
            let (life, opened) = (self.members[i].life, received.open().map(Box::new));
            let at = self.now + self.rng.random_range(0..500_000);
            self.queue.push(at, Happening::Opened { node: i, life, opened });
        }
        if let Some(a) = acting {
            self.open_gate(i, a.term, self.true_time(i, a.until));
        }
        self.check_index(i);
        self.schedule(i);
        if std::mem::take(&mut self.members[i].skips) {
            self.skip_one(i);
        }
    }

    /// The mistake [`Mistake::SkipOnTimeout`]: node `i` comes back with an index one further.
    fn skip_one(&mut self, i: usize) {
        let Some(chain) = self.members[i].node.as_ref().map(|n| n.chain().freeze()) else { return };
        self.members[i].disk.skip_one(&chain);
        self.crash(i);
        self.start(i);
    }

    fn schedule(&mut self, i: usize) {
        let Some(node) = self.members[i].node.as_ref() else { return };
        let at = self.true_time(i, node.poll_timeout()).max(self.now + 1);
        let m = &mut self.members[i];
        if at < m.timer {
            m.timer = at;
            self.queue.push(at, Happening::Timer { node: i, life: m.life });
        }
    }

    fn carry_out(&mut self, i: usize, output: Output) {
        match output {
            Output::Persist(write) => {
                // A record on disk counts, also if the power goes before another node hears of it.
                if let Write::History(record) = &write {
                    self.decided(i, record);
                }
                self.members[i].disk.write(write);
            }
            Output::Send(to, message) => {
                let Some(to) = self.index_of.get(&to).copied() else { return };
                let arrivals: Vec<_> = self.network.deliveries(i, to, &mut self.rng).collect();
                for delay in arrivals {
                    let message = Box::new(message.clone());
                    self.queue.push(self.now + delay, Happening::Arrival { from: i, to, message });
                }
            }
            Output::Processed(record) => self.applied(i, &record),
            Output::Skipped(first, last) => {
                if first > last {
                    self.fail(format!("node {i} skips backwards, from {first} to {last}"));
                }
            }
            Output::Known(tx, index) => {
                if self.index_of_tx.get(&tx).is_some_and(|at| *at != index) {
                    self.fail(format!(
                        "node {i} finds transaction {tx} at {index}, not where it was committed"
                    ));
                }
            }
            Output::Conflict(tx, index) => {
                self.fail(format!("transaction {tx} stands for another goal, as record {index}"));
            }
            Output::ReadHistory { to, from, upto } => {
                let records = self.members[i].disk.history(from, upto);
                let last = self.members[i].node.as_ref().map_or(0, |n| n.chain().index());
                self.carry_out(i, Output::Send(to, Message::History { records, last }));
            }
            Output::Event(event) => self.event(i, &event),
        }
    }

    fn event(&mut self, i: usize, event: &Event) {
        match event {
            Event::HintChanged(_) => self.figures.hint_changes += 1,
            Event::GoalTimedOut(_) => {
                self.figures.goal_timeouts += 1;
                self.members[i].skips = self.config.mistake == Some(Mistake::SkipOnTimeout);
            }
            Event::HistoryRequested(_, peers) => {
                self.figures.history_requests += 1;
                self.figures.peers_asked = self.figures.peers_asked.max(*peers);
            }
            Event::Forgot(peer) => {
                let put_back = self.index_of.get(peer).is_some_and(|j| self.put_back.contains(j));
                if !put_back && self.config.mistake.is_none() {
                    self.fail(format!("node {i} says of {peer}, wrongly, that it forgot entries"));
                }
            }
            Event::Snapshot { installed: true, .. } => self.figures.snapshots_installed += 1,
            Event::Halted(_) if self.damaged.contains(&i) || self.put_back.contains(&i) => {}
            Event::Halted(why) => self.fail(format!("node {i} halted: {why}")),
            Event::Snapshot { .. }
            | Event::LeaderChanged { .. }
            | Event::VoteRejected(..)
            | Event::Stranded => {}
        }
    }

    // What must hold

    fn fail(&mut self, what: String) {
        self.violation.get_or_insert(Violation { at_ms: self.now / 1_000, what });
    }

    /// Every node applies the same record at the same index, and no transaction twice.
    fn decided(&mut self, i: usize, record: &Record) {
        if self.damaged.contains(&i) {
            return;
        }
        let hash = record.hash();
        let first = *self.hash_at.entry(record.index).or_insert_with(|| {
            self.figures.committed += 1;
            hash
        });
        if first != hash {
            return self
                .fail(format!("node {i} applies another record {} than others did", record.index));
        }
        self.operations.decide(record);
        let at = *self.index_of_tx.entry(record.tx).or_insert(record.index);
        if at != record.index {
            self.fail(format!("transaction {} is at {at} and at {}", record.tx, record.index));
        }
    }

    /// And comes to the same state by it.
    fn applied(&mut self, i: usize, record: &Record) {
        self.mark(record.index);
        if self.damaged.contains(&i) {
            return;
        }
        if self.members[i].callers.remove(&record.tx) {
            self.operations.end(self.now, record);
        }
        let Some(node) = self.members[i].node.as_ref() else { return };
        // Outputs lag behind the state if one input applied several records: compare when level.
        let state = (node.chain().index() == record.index)
            .then(|| Hash(*blake3::hash(&node.chain().machine().snapshot()).as_bytes()));
        if let Some(state) = state
            && *self.state_at.entry(record.index).or_insert(state) != state
        {
            self.fail(format!("node {i} is in another state after record {}", record.index));
        }
    }

    /// What a node says it has applied is what was committed there.
    fn check_index(&mut self, i: usize) {
        if self.damaged.contains(&i) {
            return;
        }
        let Some(node) = self.members[i].node.as_ref() else { return };
        let (index, head) = (node.chain().index(), node.chain().head());
        if index == self.members[i].seen_index {
            return;
        }
        self.members[i].seen_index = index;
        if index > 0 && self.hash_at.get(&index) != Some(&head) {
            self.fail(format!(
                "node {i} stands at index {index} without having applied record {index}"
            ));
        }
    }

    /// Never two open gates, and epochs only grow.
    fn open_gate(&mut self, i: usize, epoch: u64, until: u64) {
        if until <= self.now {
            self.members[i].gate = None;
            return;
        }
        let other = self
            .members
            .iter()
            .enumerate()
            .find(|(j, m)| *j != i && m.gate.is_some_and(|(_, until)| until > self.now));
        if let Some((j, m)) = other {
            let theirs = m.gate.map_or(0, |(e, _)| e);
            return self.fail(format!(
                "gates of {i} (epoch {epoch}) and {j} (epoch {theirs}) are open at once"
            ));
        }
        let opening = self.members[i].gate.is_none();
        if opening {
            let again = self.leader_of_term.get(&epoch) == Some(&i) && epoch == self.highest_epoch;
            if epoch < self.highest_epoch || (epoch == self.highest_epoch && !again) {
                return self.fail(format!(
                    "the gate of {i} opens with epoch {epoch} after {}",
                    self.highest_epoch
                ));
            }
            if epoch > self.highest_epoch {
                self.figures.terms_acted += 1;
                self.highest_epoch = epoch;
            }
        }
        self.members[i].gate = Some((epoch, until));
    }
}
