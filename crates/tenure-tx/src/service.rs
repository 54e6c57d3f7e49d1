//! The service: what an application holds.

mod error;
mod options;
mod request;
mod view;

use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::FutureExt as _;
use tenure::{LeaderLock, LeaderStateChanged};
use tenure_core::clock::{BootClock, Clock};
use tenure_core::epoch::Epoch;
use tenure_core::gate::LeaderGate;
use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::account::Signer;
use crate::chain::Chain;
use crate::driver::{Command, Driver, Known, Which};
use crate::election::{Election, NodeRole};
use crate::engine::NonceError;
use crate::events::{FollowerSync, keep_ready};
use crate::metrics;
use crate::store::{Store, StoreError, StoredTransaction};
pub use error::{SendError, ServiceError};
pub use options::{InvalidOption, ServiceOptions};
pub use request::{Dropped, HandleState, Payload, SendRequest, TransactionHandle};

/// Whether a node is one of several.
#[derive(Debug)]
#[non_exhaustive]
pub enum Mode {
    /// One of a group: it acts while it leads, and the table says what is owed. A group whose
    /// database is away waits; it never becomes standalone.
    Group {
        /// The election of the account's role, the same role as in
        /// [`StoreOptions`](crate::StoreOptions).
        election: Election,
        /// The table of the signer's account.
        store: Store,
    },
    /// One node without a group: no other one finishes what it has accepted. Never run two of these
    /// with one key.
    Standalone {
        /// A file in a table's place: made if it is not there, locked, and flushed before anything
        /// is sent. It remembers requests and their ids over a restart.
        journal: PathBuf,
    },
}

impl Mode {
    /// One of a group, elected by a role of its member. The lock takes part once
    /// [`LeaderLock::start`] was called; until then this node follows.
    #[must_use]
    pub fn group(lock: &LeaderLock, store: Store) -> Self {
        Mode::Group { election: lock.into(), store }
    }
}

/// What a service is made of; [`ServiceBuilder::start`] starts it.
#[must_use = "a service does nothing until it is started"]
pub struct ServiceBuilder {
    mode: Mode,
    chain: Arc<dyn Chain>,
    signer: Arc<dyn Signer>,
    options: ServiceOptions,
    follower_sync: Option<Arc<dyn FollowerSync>>,
    clock: Arc<dyn Clock>,
}

impl std::fmt::Debug for ServiceBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServiceBuilder").field("mode", &self.mode).finish_non_exhaustive()
    }
}

impl ServiceBuilder {
    /// Times and bounds; [`ServiceOptions::default`] without it. [`ServiceBuilder::start`] checks them.
    pub fn options(self, options: ServiceOptions) -> Self {
        ServiceBuilder { options, ..self }
    }

    /// A hook that keeps a follower's own data up to date. While it says [`Readiness::Behind`], this node
    /// is not promoted if another can be. Without a hook a follower is ready while it can read the table
    /// and the chain.
    ///
    /// [`Readiness::Behind`]: crate::Readiness::Behind
    pub fn follower_sync(self, hook: Arc<dyn FollowerSync>) -> Self {
        ServiceBuilder { follower_sync: Some(hook), ..self }
    }

    /// Another clock than the machine's, for tests.
    pub fn clock(self, clock: Arc<dyn Clock>) -> Self {
        ServiceBuilder { clock, ..self }
    }

    /// Starts the service: as a leader it takes over what is open, as a follower it watches. In a group it
    /// brings the schema `tenure_tx` up to date first; a standalone node opens its journal, which blocks
    /// for as long as the disk does. Must be called in a tokio runtime. Dropping the future starts nothing.
    ///
    /// # Errors
    /// [`ServiceError`]; nothing runs then. A database or a chain that cannot be reached is no error: the
    /// node follows, or waits, and logs that.
    pub async fn start(self) -> Result<TransactionService, ServiceError> {
        let ServiceBuilder { mode, chain, signer, options, follower_sync, clock } = self;
        let (election, store) = match mode {
            Mode::Group { store, .. } if store.account() != signer.account() => {
                return Err(ServiceError::ForeignAccount);
            }
            Mode::Group { election, store } => {
                let fenced = &store.options().role;
                // The fence would look at another role's epoch than the gate.
                if let Some(elected) = election.name().filter(|name| *name != fenced) {
                    let (elected, fenced) = (elected.clone(), fenced.clone());
                    return Err(ServiceError::ForeignRole { elected, fenced });
                }
                (election, Some(store))
            }
            Mode::Standalone { journal } => {
                tracing::warn!(
                    journal = %journal.display(),
                    "STANDALONE: this node has no group; no other one finishes what it accepts, and \
                     a second one with the same key would send against it"
                );
                let store = Store::journal(&journal, signer.account().clone());
                (Election::standalone()?, Some(store.map_err(ServiceError::Store)?))
            }
        };
        options.check(election.lease())?;
        let mut tasks = JoinSet::new();
        let (commands, inbox) = mpsc::unbounded_channel();
        let statuses = broadcast::Sender::new(4_096);
        let (stale_to, stale) = watch::channel(false);
        if let Some(store) = store.as_ref().filter(|_| election.lease().is_some()) {
            match store.migrate().await {
                Ok(()) => {
                    // A server that cannot be asked now is asked inside every accept.
                    for doubt in store.doubts().await.unwrap_or_default() {
                        tracing::warn!("{doubt}");
                    }
                    // A chain that does not answer now is asked again before anything is sent.
                    if let Ok(identity) = chain.identity().await
                        && let Err(error @ StoreError::Bound(_)) =
                            store.check_account(&identity.to_string()).await
                    {
                        return Err(ServiceError::Store(error));
                    }
                }
                Err(error @ (StoreError::Unreachable(_) | StoreError::Lost(_))) => {
                    tracing::error!(%error, "the database does not answer; following without a view");
                }
                Err(error) => return Err(ServiceError::Store(error)),
            }
            let store = store.on_another_session();
            let (feed, statuses) = (options.feed.clone(), statuses.clone());
            let (election, clock) = (election.clone(), Arc::clone(&clock));
            tasks.spawn(view::watch(store, feed, statuses, stale_to, election, clock));
        }
        if let Some(hook) = follower_sync {
            tasks.spawn(keep_ready(election.clone(), hook, options.sync_every));
        }
        let accept_within = options.accept_within;
        let reader = store.as_ref().map(Store::on_another_session);
        let driver = Driver::new(election.clone(), store, chain, signer, options, clock);
        let known = driver.known();
        let (breaks, broken) = watch::channel(false);
        let (driving, leads) =
            (AssertUnwindSafe(driver.run(inbox)).catch_unwind(), election.clone());
        tasks.spawn(async move {
            if driving.await.is_err() {
                tracing::error!(
                    "THE TASK THAT SENDS PANICKED: this node cannot act until it is started anew, and \
                     leaves its election"
                );
                leads.leave();
                let _ = breaks.send(true);
            }
        });
        Ok(TransactionService {
            election,
            commands,
            statuses,
            stale,
            accept_within,
            reader,
            known,
            broken,
            tasks,
        })
    }
}

/// How often a row is looked at while its end is waited for, whatever is heard of it.
const LOOK: Duration = Duration::from_secs(1);
/// An instant so far ahead can still be told.
const FOR_EVER: Duration = Duration::from_secs(100 * 365 * 86_400);

/// What [`TransactionService::drain`] came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "it says what is left to the next leader"]
#[non_exhaustive]
pub struct DrainOutcome {
    /// Nothing was between acceptance and the node's answer any more; `false`: the time was over first.
    pub complete: bool,
    /// How many transactions are open: the next leader takes them over from the table, a standalone node
    /// from its journal at its next start. 0 on a follower.
    pub handed_over: usize,
}

/// Sends transactions in nonce order while this node leads, and watches while it follows.
///
/// Dropping it stops it; [`TransactionService::shutdown`] drains first.
#[derive(Debug)]
pub struct TransactionService {
    election: Election,
    commands: mpsc::UnboundedSender<Command>,
    statuses: broadcast::Sender<Arc<StoredTransaction>>,
    stale: watch::Receiver<bool>,
    accept_within: Duration,
    /// For questions about single requests, on a session of its own.
    reader: Option<Store>,
    known: Arc<Known>,
    /// Whether the task that sends has panicked.
    broken: watch::Receiver<bool>,
    tasks: JoinSet<()>,
}

impl TransactionService {
    /// Begins a service for the signer's account on this chain, with [`ServiceOptions::default`] and
    /// without a follower's hook.
    pub fn builder(mode: Mode, chain: Arc<dyn Chain>, signer: Arc<dyn Signer>) -> ServiceBuilder {
        let (options, clock) = (ServiceOptions::default(), Arc::new(BootClock));
        ServiceBuilder { mode, chain, signer, options, follower_sync: None, clock }
    }

    /// This node's part at this instant.
    #[must_use]
    pub fn role(&self) -> NodeRole {
        self.election.role()
    }

    /// The epoch under which this node leads; `None` while it does not.
    #[must_use]
    pub fn epoch(&self) -> Option<Epoch> {
        self.election.gate().epoch()
    }

    /// The gate that every send passes, for an [`EventBus`](crate::EventBus). A standalone node's is
    /// always open.
    #[must_use]
    pub fn gate(&self) -> LeaderGate {
        self.election.gate().clone()
    }

    /// This node's leadership as it changes.
    #[must_use]
    pub fn leader_changes(&self) -> watch::Receiver<LeaderStateChanged> {
        self.election.changes()
    }

    /// Whether the view of the table is stale: it could not be read for
    /// [`FeedOptions::stale_after`](crate::FeedOptions::stale_after), and statuses may be old. Never on a
    /// standalone node.
    #[must_use]
    pub fn is_stale(&self) -> bool {
        *self.stale.borrow()
    }

    /// Whether the chain's head has not been readable, or of use, for
    /// [`ServiceOptions::chain_lost_after`]: this node cannot act.
    #[must_use]
    pub fn is_chain_lost(&self) -> bool {
        self.known.lost.load(Ordering::Relaxed)
    }

    /// Whether the task that sends has panicked: this node has left its election, and cannot act until it is
    /// started anew.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        *self.broken.borrow()
    }

    /// Returns when [`TransactionService::is_broken`]. Cancel-safe.
    pub async fn broken(&self) {
        let mut broken = self.broken.clone();
        if broken.wait_for(|broken| *broken).await.is_err() {
            // It has ended in good order.
            std::future::pending().await
        }
    }

    /// Every change of every row of the account, on every node of a group, from now on (the first
    /// receiver may also see earlier ones). A receiver that is more than 4,096 changes behind misses some
    /// and is told how many; [`crate::feed::feed`] misses none.
    ///
    /// A standalone node sends nothing here: use the [`TransactionHandle`], or
    /// [`TransactionService::wait`].
    #[must_use]
    pub fn statuses(&self) -> broadcast::Receiver<Arc<StoredTransaction>> {
        self.statuses.subscribe()
    }

    /// Accepts a transaction: chooses its nonce, signs, stores it under this node's epoch, and
    /// then sends it. Returns when it is stored.
    ///
    /// Waits [`ServiceOptions::accept_within`] at most. A request whose id has a row already is not sent
    /// again: the handle is that row's. Dropping the future does not take the request back: retry with
    /// the same request id.
    ///
    /// # Errors
    /// [`SendError`]; each variant says whether anything was done.
    pub async fn send(&self, request: SendRequest) -> Result<TransactionHandle, SendError> {
        self.require_leader()?;
        // Before it is queued: an answer without the id would leave no safe retry.
        let (request, request_id) = request.named();
        SendRequest::check_id(&request_id)?;
        let (reply, answer) = oneshot::channel();
        let command = Command::Send { request, reply };
        self.commands.send(command).map_err(|_| SendError::Stopped)?;
        match timeout(self.accept_within, answer).await {
            Ok(Ok(answer)) => answer,
            // Its task ended in the middle of it.
            Ok(Err(_)) => Err(SendError::Uncertain {
                request_id,
                reason: "this node stopped before it answered".to_owned(),
            }),
            Err(_) => Err(SendError::Uncertain {
                request_id,
                reason: format!(
                    "no answer within {:?}: the database, the chain's node or the signer is slow \
                     or away",
                    self.accept_within
                ),
            }),
        }
    }

    /// Only a leader acts: a refusal is logged and counted.
    fn require_leader(&self) -> Result<(), SendError> {
        if let Err(refused) = self.election.gate().require_leader() {
            metrics::count(metrics::REFUSED_NOT_LEADER);
            tracing::warn!(role = %self.role(), %refused, "refused to send: this node does not lead");
            return Err(SendError::NotLeader);
        }
        Ok(())
    }

    /// Puts a no-op in place of an open transaction, or into a gap. Returns when that is stored, or
    /// cannot be done any more; if the original is mined first, it wins, and its end tells. Waits
    /// [`ServiceOptions::accept_within`] at most. Dropping the future does not take the order back; it may
    /// be given again.
    ///
    /// # Errors
    /// [`SendError::NotLeader`], or [`SendError::Nonce`] if nothing is, or ever was, at `nonce`: nothing was
    /// done. [`SendError::Store`]: nothing is open at `nonce`, and the table could not be asked how it ended.
    /// [`SendError::Undecided`]: this node stopped leading before the no-op was stored, and the next leader does not
    /// know the order; it was not signed or not stored; or it took too long. [`SendError::Stopped`]: the service
    /// has stopped.
    pub async fn cancel(&self, nonce: u64) -> Result<Dropped, SendError> {
        self.cancel_nonce(nonce).await.map(|(_, dropped)| dropped)
    }

    /// As [`TransactionService::cancel`]; returns the id of the request at the nonce as well.
    ///
    /// # Errors
    /// As [`TransactionService::cancel`].
    pub async fn cancel_nonce(&self, nonce: u64) -> Result<(String, Dropped), SendError> {
        match self.cancel_which(Which::Nonce(nonce)).await {
            Err(SendError::Nonce(NonceError::NotOpen(unknown))) => {
                let ended = |row: StoredTransaction| Some((row.request_id, row.note.end?));
                let row = self.at_nonce(nonce).await;
                let row = row.map_err(|error| SendError::Store(Arc::new(error)))?;
                let (id, end) = row.and_then(ended).ok_or(NonceError::NotOpen(unknown))?;
                Ok((id, Dropped::Ended(*end)))
            }
            decided => decided.map(|(handle, dropped)| (handle.request_id, dropped)),
        }
    }

    /// As [`TransactionService::cancel`], for the request with this id; returns its nonce as well.
    ///
    /// # Errors
    /// As [`TransactionService::cancel`]; [`SendError::NotOpen`] if there is no request with this id, and
    /// [`SendError::BadRequestId`] if there can be none: nothing was done. [`SendError::Undecided`] also if
    /// the request is being accepted at this moment: ask again.
    pub async fn cancel_request(&self, id: &str) -> Result<(u64, Dropped), SendError> {
        SendRequest::check_id(id)?;
        match self.cancel_which(Which::Request(id.to_owned())).await {
            // An order whose answer was lost is given again: how the request ended is its answer.
            Err(SendError::NotOpen(unknown)) => {
                let ended = |row: StoredTransaction| Some((row.nonce, row.note.end?));
                let row = self.find(id).await.map_err(|error| SendError::Undecided {
                    request_id: id.to_owned(),
                    reason: format!("how it ended could not be read: {error}"),
                })?;
                let (nonce, end) = row.and_then(ended).ok_or(SendError::NotOpen(unknown))?;
                Ok((nonce, Dropped::Ended(*end)))
            }
            decided => decided.map(|(handle, dropped)| (handle.nonce, dropped)),
        }
    }

    async fn cancel_which(&self, which: Which) -> Result<(TransactionHandle, Dropped), SendError> {
        self.require_leader()?;
        let until = Instant::now() + self.accept_within;
        let mut handle = self.order(which).await?;
        loop {
            let decided = handle.state.wait_for(|state| state.dropped().is_some());
            let dropped = timeout_at(until, decided).await.map(|state| state.ok()?.dropped());
            let undecided = |reason: &str| SendError::Undecided {
                request_id: handle.request_id.clone(),
                reason: reason.to_owned(),
            };
            match dropped {
                Ok(Some(dropped)) => return Ok((handle, dropped)),
                Err(_) => return Err(undecided("the no-op was not stored in time")),
                // The table is read again and decides what is open; or this node leads no more.
                Ok(None) => {}
            }
            match timeout_at(until, self.recovered()).await {
                Ok(Some(_)) => {}
                Ok(None) => {
                    return Err(undecided("this node stopped leading before it was stored"));
                }
                Err(_) => return Err(undecided("the table could not be read again in time")),
            }
            // By its id: another request may have the nonce by now.
            match self.order(Which::Request(handle.request_id.clone())).await {
                Ok(taken) => handle = taken,
                Err(SendError::NotOpen(id)) => {
                    let row = self.find(&id).await.map_err(|error| {
                        undecided(&format!("how it ended could not be read: {error}"))
                    })?;
                    let Some(end) = row.and_then(|row| row.note.end) else {
                        let why = "its no-op was not signed, or not stored; the log says why";
                        return Err(undecided(why));
                    };
                    return Ok((handle, Dropped::Ended(*end)));
                }
                // Read once more.
                Err(SendError::NotLeader) => {}
                Err(again @ SendError::Undecided { .. }) => return Err(again),
                Err(other) => return Err(undecided(&other.to_string())),
            }
        }
    }

    /// Has an order taken.
    async fn order(&self, which: Which) -> Result<TransactionHandle, SendError> {
        let (reply, answer) = oneshot::channel();
        let command = Command::Cancel { which, reply };
        self.commands.send(command).map_err(|_| SendError::Stopped)?;
        answer.await.map_err(|_| SendError::Stopped)?
    }

    /// The request with this id, as it stands: on any node, also after its row has left the table. `None`:
    /// it was not accepted, or is being accepted, or its id is older than [`ServiceOptions::keep_ids`].
    ///
    /// # Errors
    /// [`StoreError`]; nothing is known then.
    pub async fn find(&self, id: &str) -> Result<Option<StoredTransaction>, StoreError> {
        let Some(reader) = &self.reader else { return Ok(None) };
        Ok(reader.by_request(&[id.to_owned()]).await?.into_iter().next_back())
    }

    /// Whether a request with this id waits on this node to be accepted: it is in no table, and may be in a moment, or
    /// once the database and the chain answer. Asked before [`TransactionService::find`], the two miss no request of
    /// this node.
    pub async fn is_pending(&self, id: &str) -> bool {
        let (reply, answer) = oneshot::channel();
        let asked = self.commands.send(Command::IsPending { id: id.to_owned(), reply });
        asked.is_ok() && answer.await.unwrap_or(false)
    }

    async fn at_nonce(&self, nonce: u64) -> Result<Option<StoredTransaction>, StoreError> {
        match &self.reader {
            Some(reader) => reader.by_nonce(nonce).await,
            None => Ok(None),
        }
    }

    /// Waits until the request with this id has ended, for `within` at most; returns it as it stands
    /// then: look at [`StoredTransaction::ended`]. On any node. `None`, at once, if there is no such request
    /// (see [`TransactionService::find`]), and if it [waits on this node](TransactionService::is_pending) all the time.
    /// Cancel-safe.
    ///
    /// # Errors
    /// [`StoreError`], if the last look failed.
    pub async fn wait(
        &self,
        id: &str,
        within: Duration,
    ) -> Result<Option<StoredTransaction>, StoreError> {
        let until = Instant::now() + within.min(FOR_EVER);
        let mut changes = self.statuses.subscribe();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let late = || StoreError::Lost("no answer in time".to_owned());
            let pending = self.is_pending(id).await;
            let found =
                timeout(left.max(LOOK), self.find(id)).await.unwrap_or_else(|_| Err(late()));
            let left = until.saturating_duration_since(Instant::now());
            let over = match &found {
                Ok(Some(row)) => row.ended,
                Ok(None) => !pending,
                Err(_) => false,
            };
            if over || left.is_zero() {
                return found;
            }
            // A change of this row, or a second: the channel may lag, and the table decides.
            let changed = async {
                while let Ok(row) = changes.recv().await {
                    if row.request_id == id {
                        return;
                    }
                }
                sleep(LOOK).await;
            };
            let _ = timeout(left.min(LOOK), changed).await;
        }
    }

    /// Accepts nothing new and waits until nothing is between acceptance and the node's answer, at
    /// most `within`. What is open then is in the table, for the next leader. The service goes on
    /// refusing, with [`SendError::Draining`], until this node's gate has shut and opened again; also if
    /// the future is dropped.
    pub async fn drain(&self, within: Duration) -> DrainOutcome {
        let (reply, answer) = oneshot::channel();
        // What was under way when the task panicked is not known here.
        let nothing = DrainOutcome { complete: !self.is_broken(), handed_over: 0 };
        if self.commands.send(Command::Drain { reply }).is_err() {
            return nothing;
        }
        match timeout(within, answer).await {
            Ok(drained) => drained.unwrap_or(nothing),
            Err(_) => DrainOutcome { complete: false, handed_over: self.open().await },
        }
    }

    /// How many transactions are open on this node; zero on a follower.
    pub async fn open(&self) -> usize {
        let (reply, answer) = oneshot::channel();
        if self.commands.send(Command::Open { reply }).is_err() {
            return 0;
        }
        answer.await.unwrap_or(0)
    }

    /// Waits until this node has read all open rows and the chain's head, and goes on with them; returns
    /// how long that took. `None` if it does not lead, or no longer. Cancel-safe. It may take as long as the
    /// database or the chain is away.
    pub async fn recovered(&self) -> Option<Duration> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(Command::Recovered { reply }).ok()?;
        answer.await.ok()?
    }

    /// Drains for `within` at most, then stops. Shut the member down after it, not before: a node
    /// that does not lead has nothing to drain. Dropping the future stops the service at once.
    pub async fn shutdown(mut self, within: Duration) -> DrainOutcome {
        let drained = self.drain(within).await;
        self.tasks.shutdown().await;
        drained
    }
}
