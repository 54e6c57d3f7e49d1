//! The one task that owns the engine: feeds it, and carries out what it asks.
//!
//! Everything slow (signing, storing, the chain) happens in other tasks and comes back as a message
//! with the *generation* it belongs to. A new epoch, or a new reading of the table after a write of
//! unknown outcome, starts a new generation: answers to the old one are dropped, its watches end,
//! and the table decides what is there.
//!
//! A request is *pending* until its row is stored, and *open* from then on. What is open, the engine
//! knows; the driver keeps beside it only what the engine never looks at (`contents`), and adds and
//! removes it as the engine's effects say.

mod content;
mod effect;
mod health;
mod hold;
mod orders;
mod pending;
mod recovery;

use std::collections::{HashMap, HashSet};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use tenure_core::clock::{Clock, Tick};
use tenure_core::epoch::Epoch;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use crate::account::{SignError, Signed, Signer};
use crate::chain::{Chain, Head, Located, Outcome, Report};
use crate::election::Election;
use crate::engine::{Engine, Holds, Input, NonceError, Permit};
use crate::metrics;
use crate::service::{DrainOutcome, SendError, SendRequest, ServiceOptions};
use crate::status::Hash;
use crate::store::{Snapshot, Store, StoreError, StoredTransaction};
use crate::writer;
use content::{Content, Ending};
pub(crate) use health::Known;
use pending::{Pending, Reply};

/// What the service asks.
#[derive(Debug)]
pub(crate) enum Command {
    Send { request: SendRequest, reply: Reply },
    Cancel { which: Which, reply: Reply },
    Drain { reply: oneshot::Sender<DrainOutcome> },
    Open { reply: oneshot::Sender<usize> },
    IsPending { id: String, reply: oneshot::Sender<bool> },
    Recovered { reply: oneshot::Sender<Option<Duration>> },
}

/// A transaction, by one of its two names.
#[derive(Debug)]
pub(crate) enum Which {
    Nonce(u64),
    Request(String),
}

/// What other tasks bring back; or that one panicked, and brings back nothing.
enum Answer {
    Recovered {
        snapshot: Snapshot,
        head: Head,
    },
    Found {
        id: String,
        row: Result<Option<Box<StoredTransaction>>, SendError>,
    },
    Occupied {
        id: String,
        error: NonceError,
        row: Result<Option<Box<StoredTransaction>>, StoreError>,
    },
    Signed {
        nonce: u64,
        tip: u128,
        noop: Option<Permit>,
        signed: Result<Signed, SignError>,
    },
    Submitted {
        nonce: u64,
        hash: Hash,
        outcome: Outcome,
    },
    Status {
        nonce: u64,
        hash: Hash,
        report: Report,
    },
    WatchClosed {
        nonce: u64,
        hash: Hash,
    },
    Located(Vec<(u64, Located)>),
    Reexamined(Vec<(u64, String, Located)>),
    Head(Head),
    /// This node's chain, key or role is not the account's, as this says.
    Foreign(String),
    Panicked,
}

/// After so many heads in a row that lack what was final, the chain is taken to be another one.
const MAX_BEHIND: u8 = 3;

/// How often in a row a task panicked. What the other tasks achieve between two panics does not end the row:
/// only time does, or a task that panics at one row of many would never be slowed down.
#[derive(Debug, Default)]
struct Panics {
    count: u32,
    last: Option<Tick>,
}

impl Panics {
    /// After so much time without a panic the next one is the first of its row.
    const CALM: Duration = Duration::from_secs(60);

    fn note(&mut self, now: Tick) {
        if self.last.is_none_or(|last| now >= last + Self::CALM) {
            self.count = 0;
        }
        self.count = self.count.saturating_add(1);
        self.last = Some(now);
    }
}

/// How far this node's leadership is.
enum Phase {
    Following,
    /// Reading the table and the head.
    Recovering {
        since: Tick,
        /// What was known before: the handles of its callers go on.
        known: HashMap<u64, Content>,
        /// Why nothing is accepted: this node's chain, key or role is not the account's.
        foreign: Option<String>,
    },
    Leading {
        took: Duration,
    },
}

pub(crate) struct Driver {
    election: Election,
    store: Option<Store>,
    /// A session of its own, so that no reading waits behind the writes.
    reader: Option<Store>,
    chain: Arc<dyn Chain>,
    signer: Arc<dyn Signer>,
    options: ServiceOptions,
    clock: Arc<dyn Clock>,
    engine: Engine,
    phase: Phase,
    epoch: Epoch,
    generation: u64,
    head: Head,
    /// Of every nonce that is open in the engine, and of no other.
    contents: HashMap<u64, Content>,
    /// Requests whose end is on its way to the table, by nonce and form.
    ending: HashMap<(u64, Hash), Ending>,
    /// The requests that this term was ordered to drop, until the table has their end: what no row tells yet must
    /// not be forgotten when the table is read again.
    dropped: HashSet<String>,
    /// The best block when the first of the requests whose end is provisional was built, by nonce.
    provisional: HashMap<u64, u64>,
    /// How often in a row the table had to be read again because a write failed.
    rereads: u32,
    panics: Panics,
    /// Requests whose row is not stored yet, by id; none of them is open.
    pending: HashMap<String, Pending>,
    /// How many requests have come.
    arrivals: u64,
    /// All that wait until nothing is under way.
    draining: Vec<oneshot::Sender<DrainOutcome>>,
    refuse_new: bool,
    /// How far nonces are used for good by the table's word.
    known: Arc<health::Known>,
    /// How many heads in a row were below what the table knows to be final.
    behind: u8,
    /// What kept the account waiting when it was last told.
    holds: Holds,
    /// The nonce that was last told to be stuck.
    stuck: Option<u64>,
    waiting_recovered: Vec<oneshot::Sender<Option<Duration>>>,
    answers: mpsc::UnboundedSender<(u64, Answer)>,
    inbox: Option<mpsc::UnboundedReceiver<(u64, Answer)>>,
    writer: Option<mpsc::UnboundedSender<writer::Task>>,
    permits: Arc<Semaphore>,
    /// All tasks of this generation.
    tasks: JoinSet<()>,
}

impl Driver {
    pub(crate) fn new(
        election: Election,
        store: Option<Store>,
        chain: Arc<dyn Chain>,
        signer: Arc<dyn Signer>,
        options: ServiceOptions,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let mut options = options;
        options.engine.filler_tip = options.engine.filler_tip.max(options.tip);
        // Unbounded: what comes back is bounded by what is open (`max_open`).
        let (answers, inbox) = mpsc::unbounded_channel();
        Driver {
            engine: Engine::new(options.engine.clone()),
            permits: Arc::new(Semaphore::new(options.in_flight)),
            election,
            reader: store.as_ref().map(Store::on_another_session),
            store: store.as_ref().map(Store::for_the_writer),
            chain,
            signer,
            options,
            clock,
            phase: Phase::Following,
            epoch: Epoch::ZERO,
            generation: 0,
            head: Head::default(),
            contents: HashMap::new(),
            ending: HashMap::new(),
            dropped: HashSet::new(),
            provisional: HashMap::new(),
            rereads: 0,
            panics: Panics::default(),
            pending: HashMap::new(),
            arrivals: 0,
            draining: Vec::new(),
            refuse_new: false,
            known: Arc::default(),
            behind: 0,
            holds: Holds::default(),
            stuck: None,
            waiting_recovered: Vec::new(),
            answers,
            inbox: Some(inbox),
            writer: None,
            tasks: JoinSet::new(),
        }
    }

    /// What this node knows of its chain, as it changes.
    pub(crate) fn known(&self) -> Arc<Known> {
        Arc::clone(&self.known)
    }

    pub(crate) async fn run(mut self, mut commands: mpsc::UnboundedReceiver<Command>) {
        let Some(mut inbox) = self.inbox.take() else { return };
        let (writes, from) = mpsc::unbounded_channel();
        let (to, mut results) = mpsc::unbounded_channel();
        self.writer = Some(writes);
        let mut beside = JoinSet::new();
        beside.spawn(writer::run(self.store.clone(), from, to));
        beside.spawn(health::watch(
            Arc::clone(&self.chain),
            self.signer.account().clone(),
            Arc::clone(&self.known),
            self.election.clone(),
            self.reader.as_ref().map(Store::on_another_session),
            self.options.chain_lost_after,
            Arc::clone(&self.clock),
        ));
        let mut changes = self.election.changes();
        let mut elected = true;
        // The timer may stand still while the machine is suspended; it only wakes this loop, and
        // the clock that is read then has counted that time.
        let mut tick = interval(self.options.tick);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        self.reconsider();
        loop {
            // All branches are cancel-safe: channels, a watch, a set of tasks and a timer.
            tokio::select! {
                // Losing the gate comes before anything that would act.
                biased;
                changed = changes.changed(), if elected => {
                    // Without a sender nothing changes any more; the gate still decides.
                    elected = changed.is_ok();
                    self.reconsider();
                }
                Some((generation, answer)) = inbox.recv() => {
                    if generation == self.generation {
                        self.answered(answer);
                    }
                }
                Some(result) = results.recv() => self.written(result),
                // Without the writer, or the watch of the chain, this driver must not go on.
                Some(Err(ended)) = beside.join_next() => {
                    if ended.is_panic() {
                        std::panic::resume_unwind(ended.into_panic());
                    }
                }
                command = commands.recv() => match command {
                    Some(command) => self.commanded(command),
                    None => return,
                },
                _ = tick.tick() => {
                    self.reconsider();
                    self.feed(Input::TimePassed);
                    metrics::set(metrics::OPEN, self.engine.open());
                    self.tell_holds();
                }
            }
            debug_assert_eq!(self.contents.len(), self.engine.open(), "one content per open nonce");
            self.check_drained();
            // Finished tasks are dropped from the set.
            while self.tasks.try_join_next().is_some() {}
        }
    }

    fn now(&self) -> Tick {
        self.clock.now()
    }

    fn feed(&mut self, input: Input) {
        let effects = self.engine.handle(self.now(), input);
        self.carry_out(effects);
    }

    // Leadership.

    /// Compares the gate with the phase.
    fn reconsider(&mut self) {
        match (self.election.gate().epoch(), &self.phase) {
            (Some(epoch), Phase::Following) => self.begin(epoch),
            (Some(epoch), Phase::Recovering { .. } | Phase::Leading { .. })
                if epoch != self.epoch =>
            {
                self.end("the epoch moved");
                self.begin(epoch);
            }
            (None, Phase::Recovering { .. } | Phase::Leading { .. }) => {
                self.end("the gate is shut")
            }
            (Some(_), Phase::Recovering { .. } | Phase::Leading { .. })
            | (None, Phase::Following) => {}
        }
    }

    fn begin(&mut self, epoch: Epoch) {
        tracing::info!(%epoch, "leading: reading what is open");
        self.epoch = epoch;
        self.refuse_new = false;
        self.panics = Panics::default();
        self.recover();
    }

    /// Stops acting at once. What is open stays in the table.
    fn end(&mut self, why: &str) {
        tracing::info!(epoch = %self.epoch, why, open = self.engine.open(), "following");
        self.reset();
        self.phase = Phase::Following;
        self.contents.clear();
        // The next leader does not know what is not stored of them: the callers that wait are told.
        self.dropped.clear();
        for (id, pending) in std::mem::take(&mut self.pending) {
            pending.lose(id, why);
        }
        for reply in self.waiting_recovered.drain(..) {
            let _ = reply.send(None);
        }
    }

    /// Forgets what the engine knows and drops all answers under way.
    fn reset(&mut self) {
        self.generation += 1;
        // Their handles are left without an answer: the table knows whether they have ended.
        self.ending.clear();
        self.provisional.clear();
        self.tasks.abort_all();
        self.engine.handle(self.now(), Input::Demoted);
    }

    // Commands.

    fn commanded(&mut self, command: Command) {
        match command {
            Command::Send { request, reply } => self.send(request, reply),
            Command::Cancel { which, reply } => drop(reply.send(self.cancel(which))),
            Command::Drain { reply } => {
                self.refuse_new = true;
                self.draining.push(reply);
            }
            Command::Open { reply } => drop(reply.send(self.engine.open())),
            Command::IsPending { id, reply } => {
                let _ = reply.send(self.pending.contains_key(&id));
            }
            Command::Recovered { reply } => match self.phase {
                Phase::Following => drop(reply.send(None)),
                Phase::Recovering { .. } => self.waiting_recovered.push(reply),
                Phase::Leading { took } => drop(reply.send(Some(took))),
            },
        }
    }

    fn check_drained(&mut self) {
        if self.draining.is_empty() {
            return;
        }
        let busy = !self.pending.is_empty()
            || self.engine.unsettled() > 0
            || matches!(self.phase, Phase::Recovering { .. });
        if busy {
            return;
        }
        for reply in self.draining.drain(..) {
            let _ = reply.send(DrainOutcome { complete: true, handed_over: self.engine.open() });
        }
    }

    // Answers.

    fn answered(&mut self, answer: Answer) {
        let input = match answer {
            Answer::Recovered { snapshot, head } => return self.recovered(snapshot, head),
            Answer::Found { id, row } => return self.found(id, row),
            Answer::Occupied { id, error, row } => return self.occupied(&id, error, row),
            Answer::Signed { nonce, tip, noop, signed } => {
                return self.signed(nonce, tip, noop, signed);
            }
            Answer::Submitted { nonce, hash, outcome } => {
                self.tell(nonce, &outcome);
                Input::Submitted { nonce, hash, outcome }
            }
            Answer::Panicked => {
                tracing::error!("A TASK PANICKED: what is open is read again");
                self.panics.note(self.now());
                return self.recover();
            }
            Answer::Foreign(why) => return self.disown(why),
            Answer::Status { nonce, hash, report } => Input::Status { nonce, hash, report },
            Answer::WatchClosed { nonce, hash } => Input::WatchClosed { nonce, hash },
            Answer::Located(all) => {
                for (nonce, located) in all {
                    self.feed(Input::Located { nonce, located });
                }
                return;
            }
            Answer::Reexamined(all) => {
                for (nonce, request, located) in all {
                    self.feed(Input::Reexamined { nonce, request, located });
                }
                return;
            }
            // The engine counts it; this node acts on nothing of it.
            Answer::Head(head) if self.engine.disbelieves(&head) => {
                let (claimed, known) = (head.best_nonce, self.head.best_nonce);
                tracing::warn!(
                    event = "tx_head_disbelieved",
                    claimed,
                    known,
                    "the chain's node claims far more nonces than are known: asked again"
                );
                self.chain.distrust();
                Input::Head(head)
            }
            Answer::Head(head) => {
                self.believe(head);
                // Nonces above what the chain will ever reach are sent in vain, and another chain
                // must not get them. One late node behind a shared address is no proof.
                let behind = head.best_nonce < self.engine.consumed();
                self.behind = if behind { self.behind + 1 } else { 0 };
                if behind {
                    self.chain.distrust();
                }
                if self.behind >= MAX_BEHIND && self.store.is_some() {
                    return self.recover();
                }
                Input::Head(head)
            }
        };
        self.feed(input);
    }

    /// Starts a task of this generation.
    fn spawn<F, T>(&mut self, work: F)
    where
        F: FnOnce(mpsc::UnboundedSender<(u64, Answer)>, u64) -> T,
        T: Future<Output = ()> + Send + 'static,
    {
        let (answers, generation) = (self.answers.clone(), self.generation);
        let work = AssertUnwindSafe(work(answers.clone(), generation)).catch_unwind();
        self.tasks.spawn(async move {
            // Nothing that is open waits for an answer that never comes.
            if work.await.is_err() {
                let _ = answers.send((generation, Answer::Panicked));
            }
        });
    }
}

#[cfg(test)]
mod tests;
