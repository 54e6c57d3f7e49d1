//! The thread that owns the engines, the store and the gates.

mod asks;
mod caller;
mod credentials;
mod links;
pub(crate) mod refusal;
pub(crate) mod status;
mod watchers;
mod work;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::SmallRng;
use tenure_core::{BootClock, Clock as _, Epoch, GateKeeper, Tick};
use tokio::sync::{broadcast, mpsc, oneshot, watch};

use self::caller::{Answerer, Caller};
use self::links::{Calls, Linked};
use self::refusal::Refusal;
use self::status::Status;
use self::watchers::Watcher;
use self::work::Work;
use crate::carried::Carried;
use crate::commit::{Commit as _, MemberChange};
use crate::credentials::{CREDENTIALS, Rights};
use crate::engine::{Engine, Event, Output, SubmitError, Write};
use crate::history::{Record, TxId};
use crate::host::{Gates, HostError, Opener};
use crate::identity::{Keys as _, PeerId};
use crate::machine::StateMachine;
use crate::metrics as names;
use crate::net::link::{FromLink, Shared};
use crate::net::wire::{Contact, Envelope};
use crate::storage::{Store, StoreError};

/// Inputs taken in before their outputs are carried out, at most: one sync for all of them.
const BATCH: usize = 256;
/// Records that a subscriber of the application may be behind.
const SUBSCRIBED: usize = 1_024;
/// How often it is looked whether the acts in flight have ended, while leadership is given up.
const DRAIN_LOOK: Duration = Duration::from_millis(2);
/// How long the nodes of its own cluster may take to answer a node that is told to join another one.
const MISPLACED_AFTER: Duration = Duration::from_secs(10);

/// What the application asks of the driver.
pub(crate) enum FromHost<M> {
    Submit { namespace: String, tx: TxId, goal: Vec<u8>, done: Answerer<Record> },
    Status(oneshot::Sender<Status>),
    Machine(String, Answerer<M>),
    Subscribe(String, Answerer<broadcast::Receiver<Record>>),
    Members(String, MemberChange, Answerer<()>),
    StepDown(String, Answerer<()>),
    History(String, u64, u64, Answerer<Vec<Record>>),
    Stop(oneshot::Sender<()>),
}

pub(crate) struct Namespace<M: StateMachine> {
    pub(crate) engine: Engine<Carried<M>>,
    pub(crate) keeper: GateKeeper,
    pub(crate) waiting: BTreeMap<TxId, Vec<Caller<Record>>>,
    pub(crate) watchers: Vec<Watcher>,
    pub(crate) events: broadcast::Sender<Record>,
    leaving: Option<Leaving>,
    /// Changes of the members that wait to be committed, with their term.
    changing: Vec<(MemberChange, u64, Caller<()>)>,
    joined: bool,
    /// Since when no leader is known.
    leaderless: Option<Tick>,
    /// After so long without one it may be cut off from the records.
    cut_off: Duration,
    pub(crate) changes: u64,
    pub(crate) timeouts: u64,
    pub(crate) requests: u64,
}

/// Leadership is being given up: acts in flight are waited for until then.
struct Leaving {
    until: Tick,
    callers: Vec<Caller<()>>,
}

impl<M: StateMachine> Namespace<M> {
    /// Lets no new act begin. Returns the callers that wait for the end.
    pub(crate) fn begin_leaving(&mut self, at: Tick) -> &mut Vec<Caller<()>> {
        self.keeper.begin_drain();
        let until = at + self.engine.lease();
        &mut self.leaving.get_or_insert(Leaving { until, callers: Vec::new() }).callers
    }

    /// Whether no act is in flight any more, or the time for them is over.
    fn is_drained(&self, at: Tick) -> bool {
        self.keeper.in_flight() == 0 || self.leaving.as_ref().is_some_and(|l| l.until <= at)
    }

    /// Whether a successor could be elected: while a change of the members is on its way to the others, the
    /// voters would elect none but this node, which has it. Waited for as long as for the acts.
    fn is_even(&self, at: Tick) -> bool {
        !self.engine.commit().status(at).changing
            || self.leaving.as_ref().is_some_and(|l| l.until <= at)
    }
}

/// What a driver is made of.
pub(crate) struct Parts<M: StateMachine> {
    pub(crate) address: String,
    pub(crate) seeds: Vec<String>,
    pub(crate) contacts: Vec<Contact>,
    pub(crate) store: Store,
    pub(crate) shared: Arc<Shared>,
    pub(crate) engines: BTreeMap<String, (Engine<Carried<M>>, GateKeeper)>,
    pub(crate) gates: Gates,
    pub(crate) opener: Opener,
    pub(crate) rights: watch::Sender<Rights>,
    /// Whether this node founds the cluster, and if so, whether openly.
    pub(crate) founds: Option<bool>,
    pub(crate) from_links: mpsc::Receiver<FromLink>,
    pub(crate) from_host: mpsc::Receiver<FromHost<M>>,
    pub(crate) runtime: tokio::runtime::Handle,
    pub(crate) cut_off: Duration,
}

pub(crate) struct Driver<M: StateMachine> {
    pub(crate) me: PeerId,
    pub(crate) address: String,
    pub(crate) store: Store,
    pub(crate) shared: Arc<Shared>,
    pub(crate) seeds: Vec<String>,
    pub(crate) from_links: mpsc::Receiver<FromLink>,
    pub(crate) from_host: mpsc::Receiver<FromHost<M>>,
    pub(crate) runtime: tokio::runtime::Handle,
    cut_off: Duration,
    pub(crate) namespaces: BTreeMap<String, Namespace<M>>,
    gates: Gates,
    opener: Opener,
    pub(crate) rights: watch::Sender<Rights>,
    founds: Option<bool>,
    /// The namespaces that this founder was started with are to be put on record.
    registers: bool,
    /// The credentials changed, and with them perhaps what is to be carried.
    founded_changed: bool,
    pub(crate) links: BTreeMap<PeerId, Linked>,
    /// The links whose messages count: the ones to nodes of this cluster.
    accepted: BTreeSet<u64>,
    pub(crate) contacts: BTreeMap<PeerId, Contact>,
    calls: Calls,
    /// Where nodes of another cluster answered; each is said once.
    foreign: BTreeSet<String>,
    /// Whether a node of its own cluster was connected since the start.
    was_linked: bool,
    started: Tick,
    rng: SmallRng,
    next_round: Tick,
    work: Work<M>,
    pub(crate) stopping: Option<oneshot::Sender<()>>,
}

/// This machine's clock, as the protocol sees it.
pub(crate) fn now() -> Tick {
    BootClock.now()
}

impl<M: StateMachine> Driver<M> {
    pub(crate) fn new(parts: Parts<M>) -> Self {
        let Parts {
            address,
            seeds,
            contacts,
            store,
            shared,
            engines,
            gates,
            opener,
            rights,
            founds,
            from_links,
            from_host,
            runtime,
            cut_off,
        } = parts;
        let me = shared.keys.id();
        let mut driver = Self {
            me,
            address,
            store,
            shared,
            seeds,
            from_links,
            from_host,
            runtime,
            cut_off,
            namespaces: BTreeMap::new(),
            gates,
            opener,
            rights,
            founds,
            registers: founds.is_some(),
            founded_changed: true,
            links: BTreeMap::new(),
            accepted: BTreeSet::new(),
            contacts: BTreeMap::new(),
            calls: Calls::default(),
            foreign: BTreeSet::new(),
            was_linked: false,
            started: now(),
            rng: SmallRng::from_os_rng(),
            next_round: Tick::ZERO,
            work: Work::new(),
            stopping: None,
        };
        metrics::counter!(names::DROPPED).increment(0);
        for (name, (engine, keeper)) in engines {
            driver.carry(name, engine, keeper);
        }
        contacts.into_iter().for_each(|c| driver.learn(c));
        driver
    }

    /// Carries one namespace more.
    fn carry(&mut self, name: String, engine: Engine<Carried<M>>, keeper: GateKeeper) {
        // What has not happened yet is counted as zero, so that an alert on it can be written and tested.
        for counter in [names::LEADER_CHANGES, names::GOAL_TIMEOUTS, names::HISTORY_REQUESTS] {
            metrics::counter!(counter, "namespace" => name.clone()).increment(0);
        }
        let mut gates = self.gates.lock().expect("nothing panics while it is held");
        gates.insert(name.clone(), keeper.gate());
        let (events, _) = broadcast::channel(SUBSCRIBED);
        let ns = Namespace {
            engine,
            keeper,
            waiting: BTreeMap::new(),
            watchers: Vec::new(),
            events,
            leaving: None,
            changing: Vec::new(),
            joined: false,
            leaderless: None,
            cut_off: self.cut_off,
            changes: 0,
            timeouts: 0,
            requests: 0,
        };
        self.namespaces.insert(name, ns);
    }

    /// Runs until it is told to stop, the store fails, or it finds itself in the wrong cluster. Gates are shut when
    /// it returns, whatever happened.
    pub(crate) fn run(mut self) -> Result<(), HostError> {
        // A timer of its own: the application's runtime may be shut down before this node is.
        let timer = tokio::runtime::Builder::new_current_thread().enable_time().build();
        let timer = timer.map_err(|error| StoreError::Io(Box::new(error)))?;
        self.follow_credentials();
        // What the start itself decided (a bootstrap) is on disk before any caller is answered.
        self.carry_out()?;
        loop {
            let due = self.namespaces.values().map(|n| n.engine.poll_timeout()).min();
            let due = due.unwrap_or(Tick::MAX).min(self.next_round);
            let leaving = self.namespaces.values().any(|ns| ns.leaving.is_some());
            let wait = if leaving { DRAIN_LOOK } else { Duration::from_secs(1) };
            let wait = due.saturating_since(now()).min(wait);
            // `recv` is cancel-safe: what is not taken now is taken next time.
            let (link, host, made) = timer.block_on(async {
                tokio::select! {
                    l = self.from_links.recv() => (l, None, None),
                    h = self.from_host.recv() => (None, Some(h), None),
                    m = self.work.done.recv() => (None, None, m),
                    () = tokio::time::sleep(wait) => (None, None, None),
                }
            });
            if let Some(done) = made {
                self.work_done(done)?;
            }
            match host {
                Some(None) => self.stopping = Some(oneshot::channel().0),
                Some(Some(input)) => self.handle_host(input)?,
                None => {}
            }
            if let Some(event) = link {
                self.handle_link(event)?;
            }
            for _ in 0..BATCH {
                let Ok(event) = self.from_links.try_recv() else { break };
                self.handle_link(event)?;
            }
            for _ in 0..BATCH {
                let Ok(input) = self.from_host.try_recv() else { break };
                self.handle_host(input)?;
            }
            let at = now();
            for ns in self.namespaces.values_mut() {
                if ns.engine.poll_timeout() <= at {
                    ns.engine.handle_timeout(at);
                }
            }
            if self.next_round <= at {
                self.look_around(at)?;
                if let Some(seed) = self.misplaced(at) {
                    return Err(HostError::OtherCluster(seed));
                }
            }
            self.found_credentials(at);
            self.register(at);
            self.carry_founded(at)?;
            let stops = self.leave_when_drained(at);
            self.carry_out()?;
            if stops && let Some(stopped) = self.stopping.take() {
                // The farewells are in the writers' queues; they have a moment to leave.
                timer.block_on(async { tokio::time::sleep(Duration::from_millis(100)).await });
                self.store.flush()?;
                let _ = stopped.send(());
                return Ok(());
            }
        }
    }

    /// Gives up what is to be given up and has no act in flight. Whether the node may stop now.
    fn leave_when_drained(&mut self, at: Tick) -> bool {
        let stops = self.stopping.is_some();
        for ns in self.namespaces.values_mut() {
            if stops {
                ns.begin_leaving(at);
            } else if ns.leaving.is_some() && ns.is_drained(at) && ns.is_even(at) {
                ns.keeper.shut();
                ns.engine.release(at);
                let callers = ns.leaving.take().into_iter().flat_map(|l| l.callers);
                callers.for_each(|caller| caller.answer(Ok(())));
            }
        }
        let stops = stops && self.namespaces.values().all(|ns| ns.is_drained(at));
        if stops {
            for ns in self.namespaces.values_mut() {
                ns.keeper.shut();
                ns.engine.leave(at);
            }
        }
        stops
    }

    /// Shut gates, store, open gates, send, answer: in this order.
    fn carry_out(&mut self) -> Result<(), StoreError> {
        let at = now();
        let mut writes: Vec<(String, Write)> = Vec::new();
        let mut later: Vec<(String, Output)> = Vec::new();
        let mut early: Vec<(String, Output)> = Vec::new();
        let mut acting = Vec::new();
        for (name, ns) in &mut self.namespaces {
            let may = ns.engine.acting(at);
            let open = ns.keeper.gate().epoch().map(|e| e.0 as u64);
            if may.is_none() || open.is_some_and(|e| may.is_some_and(|a| a.term != e)) {
                ns.keeper.shut();
            }
            let mut writes_begun = false;
            while let Some(output) = ns.engine.poll_output() {
                match output {
                    Output::Persist(write) => {
                        writes_begun = true;
                        writes.push((name.clone(), write));
                    }
                    // What comes before the first write need not wait for it.
                    Output::Send(..) if !writes_begun => early.push((name.clone(), output)),
                    other => later.push((name.clone(), other)),
                }
            }
            acting.extend(may.map(|a| (name.clone(), a)));
        }
        for (name, output) in early {
            self.output(&name, output)?;
        }
        self.store.commit(&writes)?;
        for (name, a) in acting {
            if let Some(ns) = self.namespaces.get_mut(&name) {
                let epoch = Epoch(a.term as i64);
                if !ns.keeper.extend(epoch, a.until)
                    && ns.leaving.is_none()
                    && ns.keeper.gate().epoch() != Some(epoch)
                {
                    ns.keeper.open(epoch, a.until);
                }
            }
        }
        for (name, output) in later {
            self.output(&name, output)?;
        }
        self.answer_changes();
        self.start_snapshots();
        self.open_snapshots();
        Ok(())
    }

    fn output(&mut self, name: &str, output: Output) -> Result<(), StoreError> {
        match output {
            Output::Persist(_) => {}
            Output::Send(to, message) => {
                self.send(to, Envelope::Namespace(name.to_owned(), message))
            }
            Output::Processed(record) => self.processed(name, record),
            Output::Skipped(first, last) => {
                if let Some(ns) = self.namespaces.get_mut(name) {
                    // No subscription goes on with a hole: each ends with the reason, or as closed.
                    ns.end_watches(|_| Refusal::Skipped(first, last));
                    ns.events = broadcast::channel(SUBSCRIBED).0;
                }
            }
            Output::Known(tx, index) => {
                let record = self.store.history(name, index, index, usize::MAX)?.pop();
                let Some(ns) = self.namespaces.get_mut(name) else { return Ok(()) };
                let done = ns.engine.chain().was_done(&tx).unwrap_or(false);
                for caller in ns.waiting.remove(&tx).into_iter().flatten() {
                    let gone = Refusal::OnlyInSnapshot { index, done };
                    caller.answer(record.clone().ok_or(gone));
                }
            }
            Output::Conflict(tx, _) => {
                let waiting = self.namespaces.get_mut(name).and_then(|ns| ns.waiting.remove(&tx));
                for caller in waiting.into_iter().flatten() {
                    caller.answer(Err(SubmitError::OtherGoal.into()));
                }
            }
            Output::ReadHistory { to, from, upto } => self.read_for_peer(name, to, from, upto),
            Output::Event(event) => self.event(name, &event),
        }
        Ok(())
    }

    fn processed(&mut self, name: &str, record: Record) {
        if name == CREDENTIALS {
            self.follow_credentials();
        }
        let Some(ns) = self.namespaces.get_mut(name) else { return };
        for caller in ns.waiting.remove(&record.tx).into_iter().flatten() {
            caller.answer(Ok(record.clone()));
        }
        // A watcher that does not read loses its subscription, not this node its memory.
        ns.watchers.retain_mut(|watcher| watcher.tell(&record));
        let _ = ns.events.send(record);
    }

    fn event(&mut self, name: &str, event: &Event) {
        let Some(ns) = self.namespaces.get_mut(name) else { return };
        let label = name.to_owned();
        match event {
            Event::HintChanged(change) => {
                ns.changes += 1;
                metrics::counter!(names::LEADER_CHANGES, "namespace" => label).increment(1);
                tracing::info!(namespace = name, from = %change.from, to = %change.to, "gossip names another leader");
            }
            Event::LeaderChanged { leader, term, waiting } => {
                tracing::info!(namespace = name, leader = ?leader, term, waiting, "the committed leader changed");
            }
            Event::GoalTimedOut(tx) => {
                ns.timeouts += 1;
                metrics::counter!(names::GOAL_TIMEOUTS, "namespace" => label).increment(1);
                tracing::warn!(namespace = name, %tx, "no result for a goal yet; asking for history");
            }
            Event::HistoryRequested(..) => {
                ns.requests += 1;
                metrics::counter!(names::HISTORY_REQUESTS, "namespace" => label).increment(1);
            }
            Event::VoteRejected(_, why) => {
                metrics::counter!(names::VOTES_REJECTED, "namespace" => label, "reason" => why.name()).increment(1);
            }
            Event::Snapshot { index, installed } => {
                tracing::info!(namespace = name, index, installed, "snapshot");
                if *installed && name == CREDENTIALS {
                    self.follow_credentials();
                }
            }
            Event::Forgot(peer) => {
                tracing::error!(namespace = name, %peer, "this node has forgotten what it acknowledged (an old copy of its folder, or a copy that runs beside it); it is removed and must join again with a fresh folder");
            }
            Event::Stranded => {
                tracing::warn!(
                    namespace = name,
                    "no member that this node knows answers; if it was removed while it was away, start it with a fresh folder and let it join again"
                );
            }
            Event::Halted(why) => {
                ns.keeper.shut();
                ns.end_watches(Refusal::Halted);
                ns.events = broadcast::channel(SUBSCRIBED).0;
                tracing::error!(namespace = name, why, "halted");
            }
        }
    }
}
