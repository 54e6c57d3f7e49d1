//! The one task that owns the engine: feeds it, and carries out what it asks.
//!
//! Everything slow (signing, storing, the chain) happens in other tasks and comes back as a message
//! with the *generation* it belongs to. A new term, or a new reading of the table after a write of
//! unknown outcome, starts a new generation: answers to the old one are dropped, its watches end,
//! and the table decides what is there.

mod effect;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tenure_core::clock::{Clock, Tick};
use tenure_core::epoch::Epoch;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::account::{SignError, Signed, Signer};
use crate::chain::{Chain, ChainError, Head, Located, Outcome};
use crate::engine::{Attempt, Engine, Input};
use crate::leadership::Leadership;
use crate::metrics;
use crate::service::{
    Drained, HandleState, Payload, SendError, SendRequest, ServiceOptions, TransactionHandle,
};
use crate::status::{Hash, TransactionStatus};
use crate::store::{CLEANUP_ROWS, Snapshot, Store, StoredTransaction};
use crate::writer::{self, Order};

pub(crate) type Reply = oneshot::Sender<Result<TransactionHandle, SendError>>;

/// What the service asks.
#[derive(Debug)]
pub(crate) enum Command {
    Send { request: SendRequest, reply: Reply },
    Cancel { nonce: u64, reply: oneshot::Sender<Result<(), SendError>> },
    Drain { reply: oneshot::Sender<Drained> },
    Open { reply: oneshot::Sender<usize> },
    Recovered { reply: oneshot::Sender<Option<Duration>> },
}

/// What other tasks bring back.
enum Answer {
    Recovered { snapshot: Snapshot, head: Head },
    Found { id: String, row: Option<Box<StoredTransaction>>, failed: Option<SendError> },
    Signed { nonce: u64, tip: u128, noop: bool, signed: Result<Signed, SignError> },
    Submitted { nonce: u64, hash: Hash, outcome: Outcome },
    Status { nonce: u64, hash: Hash, status: TransactionStatus },
    WatchClosed { nonce: u64, hash: Hash },
    Located { nonce: u64, located: Located },
    Head(Head),
}

/// What a nonce carries.
struct Content {
    request_id: String,
    call: Option<Bytes>,
    raw: Bytes,
    block: u64,
    handle: watch::Sender<HandleState>,
    /// The attempt being stored, with its bytes: what is not stored is never sent.
    storing: Option<(Attempt, Bytes)>,
    /// Until the row is stored: who asked for what.
    asked: Option<Asked>,
}

/// A request with all who wait for it, and how often its nonce turned out to be taken.
struct Asked {
    request: SendRequest,
    replies: Vec<Reply>,
    clashes: u8,
}

impl Asked {
    fn new(request: SendRequest, reply: Reply) -> Self {
        Asked { request, replies: vec![reply], clashes: 0 }
    }

    /// Takes in another who asks for the same; who asks for something else under the id is told.
    fn join(&mut self, id: String, other: Asked) {
        if self.request.payload == other.request.payload {
            self.replies.extend(other.replies);
        } else {
            other.answer(Err(SendError::RequestIdReused(id)));
        }
    }

    fn answer(self, answer: Result<TransactionHandle, SendError>) {
        for reply in self.replies {
            // Who no longer waits needs no answer.
            let _ = reply.send(answer.clone());
        }
    }
}

/// After so many clashes a caller is told instead of tried again.
const MAX_CLASHES: u8 = 3;

/// After so many heads in a row that lack what was final, the chain is taken to be another one.
const MAX_BEHIND: u8 = 3;

/// The longest pause before what is open is read again: a leader that waits sends nothing.
const RECOVER_MAX: Duration = Duration::from_secs(5);

/// How often old rows are removed.
const CLEANUP_EVERY: Duration = Duration::from_secs(60);

/// Why what is open cannot be taken over yet.
enum Trouble {
    Table(String),
    Chain(String),
    Behind { chain: u64, table: u64 },
}

impl Trouble {
    /// A chain that catches up is one trouble, however far it is.
    fn is(&self, other: &Trouble) -> bool {
        match (self, other) {
            (Trouble::Table(one), Trouble::Table(other))
            | (Trouble::Chain(one), Trouble::Chain(other)) => one == other,
            (Trouble::Behind { .. }, Trouble::Behind { .. }) => true,
            (Trouble::Table(_) | Trouble::Chain(_) | Trouble::Behind { .. }, _) => false,
        }
    }

    fn say(&self) {
        match self {
            Trouble::Table(error) => {
                tracing::error!(error, "cannot read what is open; not acting until it can be read");
            }
            Trouble::Chain(error) => {
                tracing::warn!(error, "cannot read the chain's head; not acting until it answers");
            }
            Trouble::Behind { chain, table } => tracing::error!(
                chain,
                table,
                "THE CHAIN IS BEHIND THE TABLE: it has not used nonces that were final; not acting \
                 until it has. It may still be catching up, or be another chain, or have lost its \
                 state; if it was reset on purpose, remove the account's rows from \
                 tenure_tx.pending_transactions"
            ),
        }
    }
}

/// How far a term is.
enum Phase {
    Following,
    /// Reading the table and the head.
    Recovering {
        since: Tick,
    },
    Leading {
        took: Duration,
    },
}

pub(crate) struct Driver {
    leadership: Leadership,
    store: Option<Store>,
    /// A session of its own, so that no reading waits behind the writes.
    reader: Option<Store>,
    chain: Arc<dyn Chain>,
    signer: Arc<dyn Signer>,
    options: ServiceOptions,
    engine: Engine,
    phase: Phase,
    epoch: Epoch,
    generation: u64,
    head: Head,
    contents: HashMap<u64, Content>,
    /// Open request ids to nonces.
    requests: HashMap<String, u64>,
    /// Requests whose id is being looked up.
    lookups: HashMap<String, Asked>,
    /// Requests that wait for the table to be read.
    parked: Vec<Asked>,
    draining: Option<oneshot::Sender<Drained>>,
    refuse_new: bool,
    /// How many heads in a row were below what the table knows to be final.
    behind: u8,
    waiting_recovered: Vec<oneshot::Sender<Option<Duration>>>,
    clock: Arc<dyn Clock>,
    answers: mpsc::UnboundedSender<(u64, Answer)>,
    inbox: Option<mpsc::UnboundedReceiver<(u64, Answer)>>,
    orders: Option<mpsc::UnboundedSender<Order>>,
    permits: Arc<Semaphore>,
    /// All tasks of this generation.
    tasks: JoinSet<()>,
}

impl Driver {
    pub(crate) fn new(
        leadership: Leadership,
        store: Option<Store>,
        chain: Arc<dyn Chain>,
        signer: Arc<dyn Signer>,
        options: ServiceOptions,
        clock: Arc<dyn Clock>,
    ) -> Self {
        // Unbounded: what comes back is bounded by what is open (`max_open`).
        let (answers, inbox) = mpsc::unbounded_channel();
        Driver {
            engine: Engine::new(options.manager.clone()),
            permits: Arc::new(Semaphore::new(options.in_flight.max(1))),
            leadership,
            reader: store.as_ref().map(Store::on_another_session),
            store,
            chain,
            signer,
            options,
            phase: Phase::Following,
            epoch: Epoch::ZERO,
            generation: 0,
            head: Head::default(),
            contents: HashMap::new(),
            requests: HashMap::new(),
            lookups: HashMap::new(),
            parked: Vec::new(),
            draining: None,
            refuse_new: false,
            behind: 0,
            waiting_recovered: Vec::new(),
            clock,
            answers,
            inbox: Some(inbox),
            orders: None,
            tasks: JoinSet::new(),
        }
    }

    pub(crate) async fn run(mut self, mut commands: mpsc::UnboundedReceiver<Command>) {
        let Some(mut inbox) = self.inbox.take() else { return };
        let (orders, from) = mpsc::unbounded_channel();
        let (to, mut reports) = mpsc::unbounded_channel();
        self.orders = Some(orders);
        let mut writer = JoinSet::new();
        writer.spawn(writer::run(self.store.clone(), from, to));
        let mut changes = self.leadership.changes();
        let mut elected = true;
        let mut tick = interval(self.options.tick);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        self.reconsider();
        loop {
            // All branches are cancel-safe: channels, a watch and a timer.
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
                Some(report) = reports.recv() => self.written(report),
                command = commands.recv() => match command {
                    Some(command) => self.commanded(command),
                    None => return,
                },
                _ = tick.tick() => {
                    self.reconsider();
                    let effects = self.engine.handle(self.now(), Input::TimePassed);
                    self.carry_out(effects);
                    metrics::set(metrics::OPEN, self.engine.open());
                }
            }
            self.check_drained();
            // Finished tasks are dropped from the set.
            while self.tasks.try_join_next().is_some() {}
        }
    }

    fn now(&self) -> Tick {
        self.clock.now()
    }

    // Terms.

    /// Compares the gate with the phase.
    fn reconsider(&mut self) {
        match (self.leadership.gate().epoch(), &self.phase) {
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
        self.recover();
    }

    /// Stops acting at once. What is open stays in the table.
    fn end(&mut self, why: &str) {
        tracing::info!(epoch = %self.epoch, why, open = self.engine.open(), "following");
        self.reset();
        self.phase = Phase::Following;
        self.requests.clear();
        for content in std::mem::take(&mut self.contents).into_values() {
            let Some(asked) = content.asked else { continue };
            let (request_id, reason) = (content.request_id, why.to_owned());
            asked.answer(Err(match content.storing {
                Some(_) => SendError::Uncertain { request_id, reason },
                None => SendError::NotLeader,
            }));
        }
        for asked in std::mem::take(&mut self.parked) {
            asked.answer(Err(SendError::NotLeader));
        }
        for reply in self.waiting_recovered.drain(..) {
            let _ = reply.send(None);
        }
    }

    /// Forgets what the memory knows and drops all answers under way.
    fn reset(&mut self) {
        self.generation += 1;
        self.tasks.abort_all();
        self.engine.handle(self.now(), Input::Demoted);
        self.parked.extend(std::mem::take(&mut self.lookups).into_values());
    }

    /// Reads the table and the head, again and again until both answer, ever more slowly.
    fn recover(&mut self) {
        self.reset();
        self.behind = 0;
        self.phase = Phase::Recovering { since: self.now() };
        let (store, chain, account) =
            (self.reader.clone(), Arc::clone(&self.chain), self.signer.account().clone());
        let mut pause = self.options.manager.retry;
        let longest = self.options.manager.retry_max.min(RECOVER_MAX);
        self.spawn(async move |answers, generation| {
            // Each trouble is said once, or it would drown the one that comes after it.
            let mut said: Option<Trouble> = None;
            loop {
                let snapshot = async {
                    match &store {
                        Some(store) => store.snapshot().await,
                        None => Ok(Snapshot { open: Vec::new(), consumed: 0 }),
                    }
                };
                let trouble = match tokio::join!(snapshot, chain.head(&account)) {
                    (Ok(snapshot), Ok(head)) if head.best_nonce >= snapshot.consumed => {
                        let _ = answers.send((generation, Answer::Recovered { snapshot, head }));
                        return;
                    }
                    (Ok(snapshot), Ok(head)) => {
                        Trouble::Behind { chain: head.best_nonce, table: snapshot.consumed }
                    }
                    (Err(error), _) => Trouble::Table(error.to_string()),
                    (Ok(_), Err(error)) => Trouble::Chain(error.to_string()),
                };
                if said.as_ref().is_none_or(|last| !last.is(&trouble)) {
                    trouble.say();
                    said = Some(trouble);
                }
                sleep(pause).await;
                pause = (pause * 2).min(longest);
            }
        });
    }

    fn recovered(&mut self, snapshot: Snapshot, head: Head) {
        let Phase::Recovering { since } = self.phase else { return };
        self.head = head;
        let rows = snapshot.open.iter().map(StoredTransaction::open).collect();
        let mut before = std::mem::take(&mut self.contents);
        self.requests.clear();
        // What was not stored goes back into the queue under its id: should the write still
        // arrive, the id is in the table and the second one finds it.
        let parked: Vec<(String, Asked)> = before
            .values_mut()
            .filter_map(|c| Some((c.request_id.clone(), c.asked.take()?)))
            .collect();
        for row in snapshot.open {
            let old = before.remove(&row.nonce).filter(|c| c.request_id == row.request_id);
            self.adopt(row, old);
        }
        for (request_id, mut asked) in parked {
            if let Some(handle) = self.handle_of(&request_id) {
                asked.answer(Ok(handle));
            } else {
                asked.request.request_id = Some(request_id);
                self.parked.push(asked);
            }
        }
        let input = Input::Recovered { rows, consumed: snapshot.consumed, head };
        let effects = self.engine.handle(self.now(), input);
        let took = self.now().saturating_since(since);
        tracing::info!(epoch = %self.epoch, open = self.engine.open(), ?took, "took over");
        self.phase = Phase::Leading { took };
        for reply in self.waiting_recovered.drain(..) {
            let _ = reply.send(Some(took));
        }
        self.carry_out(effects);
        self.follow_head();
        for asked in std::mem::take(&mut self.parked) {
            self.admit(asked);
        }
    }

    fn adopt(&mut self, row: StoredTransaction, old: Option<Content>) {
        let state = HandleState { hash: row.hash, status: row.status, ended: false };
        let handle = match old {
            Some(old) => {
                old.handle.send_replace(state);
                old.handle
            }
            None => watch::Sender::new(state),
        };
        self.requests.insert(row.request_id.clone(), row.nonce);
        let content = Content {
            request_id: row.request_id,
            call: row.call,
            raw: row.raw.unwrap_or_default(),
            block: row.built_at_block,
            handle,
            storing: None,
            asked: None,
        };
        self.contents.insert(row.nonce, content);
    }

    /// Reads the head again and again; cleans up as finality moves.
    fn follow_head(&mut self) {
        let (chain, account) = (Arc::clone(&self.chain), self.signer.account().clone());
        let (store, epoch, keep) = (self.store.clone(), self.epoch, self.options.keep);
        let (every, clock) = (self.options.head_every, Arc::clone(&self.clock));
        self.spawn(async move |answers, generation| {
            let mut cleaned = clock.now();
            loop {
                sleep(every).await;
                match chain.head(&account).await {
                    Ok(head) => {
                        if answers.send((generation, Answer::Head(head))).is_err() {
                            return;
                        }
                        if let Some(store) = &store
                            && clock.now() > cleaned + CLEANUP_EVERY
                        {
                            match store.cleanup(epoch, head.finalized_nonce, keep).await {
                                // More are due: not in a minute, or a busy table only grows.
                                Ok(gone) if gone >= CLEANUP_ROWS => continue,
                                Ok(_) => {}
                                Err(error) => {
                                    tracing::debug!(%error, "old rows were not removed");
                                }
                            }
                            cleaned = clock.now();
                        }
                    }
                    Err(error) => tracing::warn!(%error, "cannot read the chain's head"),
                }
            }
        });
    }

    // Commands.

    fn commanded(&mut self, command: Command) {
        match command {
            Command::Send { request, reply } => self.send(Asked::new(request, reply)),
            Command::Cancel { nonce, reply } => {
                let outcome = self.engine.cancel(nonce).map_err(SendError::from);
                let answer = match outcome {
                    Ok(effects) => {
                        self.carry_out(effects);
                        Ok(())
                    }
                    Err(error) => Err(error),
                };
                let _ = reply.send(answer);
            }
            Command::Drain { reply } => {
                self.refuse_new = true;
                self.draining = Some(reply);
            }
            Command::Open { reply } => drop(reply.send(self.engine.open())),
            Command::Recovered { reply } => match self.phase {
                Phase::Following => drop(reply.send(None)),
                Phase::Recovering { .. } => self.waiting_recovered.push(reply),
                Phase::Leading { took } => drop(reply.send(Some(took))),
            },
        }
    }

    fn check_drained(&mut self) {
        if self.draining.is_none() {
            return;
        }
        let busy = !self.lookups.is_empty()
            || !self.parked.is_empty()
            || self.engine.unsettled() > 0
            || matches!(self.phase, Phase::Recovering { .. });
        if !busy && let Some(reply) = self.draining.take() {
            let _ = reply.send(Drained { complete: true, handed_over: self.engine.open() });
        }
    }

    fn send(&mut self, asked: Asked) {
        if self.refuse_new {
            return asked.answer(Err(SendError::Draining));
        }
        match self.phase {
            Phase::Following => asked.answer(Err(SendError::NotLeader)),
            Phase::Recovering { .. } => self.parked.push(asked),
            Phase::Leading { .. } => self.admit(asked),
        }
    }

    fn admit(&mut self, asked: Asked) {
        let size = match &asked.request.payload {
            Payload::Call(bytes) | Payload::Signed(bytes) => bytes.len(),
        };
        let limit = self.options.max_bytes;
        if size > limit {
            return asked.answer(Err(SendError::TooLarge { size, limit }));
        }
        let Some(id) = asked.request.request_id.clone() else {
            // Nobody else can know this one, so there is nothing to look up.
            return self.accept(uuid::Uuid::new_v4().to_string(), asked);
        };
        if id.is_empty() || id.chars().count() > 200 {
            return asked.answer(Err(SendError::BadRequestId));
        }
        let nonce = self.requests.get(&id);
        if let Some(waiting) = nonce.and_then(|n| self.contents.get_mut(n)?.asked.as_mut()) {
            waiting.join(id, asked);
        } else if let Some(handle) = self.handle_of(&id) {
            let call = self.contents.get(&handle.nonce).and_then(|c| c.call.as_ref());
            let attempts = self.engine.attempts(handle.nonce);
            let same = self.is_same(&asked.request.payload, call, attempts);
            asked.answer(if same { Ok(handle) } else { Err(SendError::RequestIdReused(id)) });
        } else if let Some(waiting) = self.lookups.get_mut(&id) {
            waiting.join(id, asked);
        } else if let Some(store) = self.reader.clone() {
            self.lookups.insert(id.clone(), asked);
            self.spawn(async move |answers, generation| {
                let found = store.by_request(std::slice::from_ref(&id)).await;
                let (row, failed) = match found {
                    Ok(rows) => (rows.into_iter().next().map(Box::new), None),
                    Err(error) => (None, Some(SendError::Store(Arc::new(error)))),
                };
                let _ = answers.send((generation, Answer::Found { id, row, failed }));
            });
        } else {
            self.accept(id, asked);
        }
    }

    fn found(
        &mut self,
        id: String,
        row: Option<Box<StoredTransaction>>,
        failed: Option<SendError>,
    ) {
        let Some(asked) = self.lookups.remove(&id) else { return };
        match (failed, row) {
            (Some(error), _) => asked.answer(Err(error)),
            (None, Some(row)) => {
                let same = self.is_same(&asked.request.payload, row.call.as_ref(), &row.attempts);
                let handle = self.handle_of(&id).unwrap_or_else(|| finished(&row));
                asked.answer(if same { Ok(handle) } else { Err(SendError::RequestIdReused(id)) });
            }
            (None, None) => self.accept(id, asked),
        }
    }

    /// Whether a request asks for what its id stands for already: an id that is used for a second
    /// payment must not swallow it.
    fn is_same(&self, payload: &Payload, call: Option<&Bytes>, attempts: &[Attempt]) -> bool {
        match payload {
            Payload::Call(asked) => call == Some(asked),
            Payload::Signed(raw) => {
                let hash = self.chain.inspect(raw).map(|seen| seen.hash);
                call.is_none() && attempts.iter().any(|a| hash == Ok(a.hash))
            }
        }
    }

    /// Takes a nonce and signs.
    fn accept(&mut self, id: String, asked: Asked) {
        let (nonce, tip, given) = match self.reserve(&asked.request) {
            Ok(reserved) => reserved,
            Err(error) => return asked.answer(Err(error)),
        };
        let call = match &asked.request.payload {
            Payload::Call(call) => Some(call.clone()),
            Payload::Signed(_) => None,
        };
        self.requests.insert(id.clone(), nonce);
        self.contents.insert(nonce, self.content(id, call, Some(asked)));
        match given {
            Some(signed) => self.signed(nonce, tip, false, Ok(signed)),
            None => self.sign(nonce, tip, false),
        }
    }

    fn content(&self, request_id: String, call: Option<Bytes>, asked: Option<Asked>) -> Content {
        let status = TransactionStatus::Future;
        let state = HandleState { hash: Hash::default(), status, ended: false };
        Content {
            request_id,
            call,
            raw: Bytes::new(),
            block: self.head.best.number,
            handle: watch::Sender::new(state),
            storing: None,
            asked,
        }
    }

    fn reserve(&mut self, request: &SendRequest) -> Result<(u64, u128, Option<Signed>), SendError> {
        let tip = request.tip.unwrap_or(self.options.tip);
        match &request.payload {
            Payload::Call(_) => Ok((self.engine.reserve(None, tip, true)?, tip, None)),
            Payload::Signed(raw) => {
                let seen = self.chain.inspect(raw)?;
                if let Some(account) = seen.account.filter(|a| a != self.signer.account()) {
                    return Err(SendError::ForeignAccount(account.to_string()));
                }
                let Some(nonce) = seen.nonce else {
                    let message = "these bytes do not tell their nonce; send the call instead";
                    return Err(ChainError::Malformed(message.to_owned()).into());
                };
                let tip = seen.tip.unwrap_or(tip);
                let nonce = self.engine.reserve(Some(nonce), tip, false)?;
                let signed = Signed { raw: raw.clone(), hash: seen.hash, valid_until: None };
                Ok((nonce, tip, Some(signed)))
            }
        }
    }

    fn handle_of(&self, request_id: &str) -> Option<TransactionHandle> {
        let nonce = *self.requests.get(request_id)?;
        let content = self.contents.get(&nonce)?;
        let request_id = request_id.to_owned();
        Some(TransactionHandle { nonce, request_id, state: content.handle.subscribe() })
    }

    fn answered(&mut self, answer: Answer) {
        let input = match answer {
            Answer::Recovered { snapshot, head } => return self.recovered(snapshot, head),
            Answer::Found { id, row, failed } => return self.found(id, row, failed),
            Answer::Signed { nonce, tip, noop, signed } => {
                return self.signed(nonce, tip, noop, signed);
            }
            Answer::Submitted { nonce, hash, outcome } => Input::Submitted { nonce, hash, outcome },
            Answer::Status { nonce, hash, status } => Input::Status { nonce, hash, status },
            Answer::WatchClosed { nonce, hash } => Input::WatchClosed { nonce, hash },
            Answer::Located { nonce, located } => Input::Located { nonce, located },
            Answer::Head(head) => {
                self.head = head;
                // Nonces above what the chain will ever reach are sent in vain, and another chain
                // must not get them. One late node behind a shared address is no proof.
                let behind = head.best_nonce < self.engine.consumed();
                self.behind = if behind { self.behind + 1 } else { 0 };
                if self.behind >= MAX_BEHIND && self.store.is_some() {
                    return self.recover();
                }
                Input::Head(head)
            }
        };
        let effects = self.engine.handle(self.now(), input);
        self.carry_out(effects);
    }

    /// Starts a task of this generation.
    fn spawn<F, T>(&mut self, work: F)
    where
        F: FnOnce(mpsc::UnboundedSender<(u64, Answer)>, u64) -> T,
        T: Future<Output = ()> + Send + 'static,
    {
        self.tasks.spawn(work(self.answers.clone(), self.generation));
    }
}

/// A handle of a row that needs nobody's care any more.
fn finished(row: &StoredTransaction) -> TransactionHandle {
    let state = HandleState { hash: row.hash, status: row.status.clone(), ended: row.ended };
    let (_, state) = watch::channel(state);
    TransactionHandle { nonce: row.nonce, request_id: row.request_id.clone(), state }
}

fn outcome_name(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Accepted => "accepted",
        Outcome::AlreadyKnown => "already_known",
        Outcome::Outdated => "outdated",
        Outcome::Underpriced => "underpriced",
        Outcome::Expired => "expired",
        Outcome::Busy(_) => "busy",
        Outcome::Refused(_) => "refused",
        Outcome::Unreachable(_) => "unreachable",
    }
}
