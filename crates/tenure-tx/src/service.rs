//! The service: what an application holds.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tenure_core::clock::BootClock;
use tenure_core::epoch::Epoch;
use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::account::{SignError, Signer};
use crate::chain::{Chain, ChainError};
use crate::driver::{Command, Driver};
use crate::engine::{EngineConfig, NonceError};
use crate::events::{FollowerSync, keep_ready};
use crate::feed::{FeedItem, FeedOptions, View, feed};
use crate::leadership::{LeaderStateChanged, Leadership, NodeRole, Unready};
use crate::metrics;
use crate::status::{Hash, TransactionStatus};
use crate::store::{Store, StoreError, StoredTransaction};

/// How the service behaves.
#[derive(Debug, Clone)]
pub struct ServiceOptions {
    /// The state machine's patience.
    pub manager: EngineConfig,
    /// How often the chain's head is read. Default 1 s.
    pub head_every: Duration,
    /// How often time is looked at. Default 200 ms; it bounds how exact all waits are.
    pub tick: Duration,
    /// How many submissions may be under way at once. Default 64.
    pub in_flight: usize,
    /// How much of the lease must be left when bytes leave. Default 500 ms; above the lease,
    /// nothing is ever sent.
    pub act: Duration,
    /// How long one call of the signer may take. Default 10 s.
    pub sign: Duration,
    /// How long a caller waits for its request to be stored before it is told that the outcome is
    /// unknown. Default 30 s; a request given up by its caller may still be stored.
    pub accept: Duration,
    /// The largest call or signed transaction. Default 4 MiB.
    pub max_bytes: usize,
    /// How long ended rows are kept: for readers that were away, and for retries with a request
    /// id. Default one day.
    pub keep: Duration,
    /// The tip of a first attempt. Default 0.
    pub tip: u128,
    /// How the table is watched.
    pub feed: FeedOptions,
    /// How often a follower's hook is called. Default 1 s.
    pub sync_every: Duration,
}

impl Default for ServiceOptions {
    fn default() -> Self {
        ServiceOptions {
            manager: EngineConfig::default(),
            head_every: Duration::from_secs(1),
            tick: Duration::from_millis(200),
            in_flight: 64,
            act: Duration::from_millis(500),
            sign: Duration::from_secs(10),
            accept: Duration::from_secs(30),
            max_bytes: 4 << 20,
            keep: Duration::from_secs(86_400),
            tip: 0,
            feed: FeedOptions::default(),
            sync_every: Duration::from_secs(1),
        }
    }
}

/// What a service is made of.
pub struct Parts {
    /// Whether this node may act.
    pub leadership: Leadership,
    /// The table; `None` only for [`NodeRole::Standalone`].
    pub store: Option<Store>,
    /// The chain.
    pub chain: Arc<dyn Chain>,
    /// The key.
    pub signer: Arc<dyn Signer>,
    /// Keeps a follower's own data up.
    pub follower_sync: Option<Arc<dyn FollowerSync>>,
}

impl std::fmt::Debug for Parts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Parts").field("leadership", &self.leadership).finish_non_exhaustive()
    }
}

/// What to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Payload {
    /// A call in the chain's encoding: the service chooses the nonce, signs, and signs anew if it must.
    Call(Bytes),
    /// Bytes the caller signed with the group's account and a nonce of its own choice.
    Signed(Bytes),
}

/// A caller's request.
#[derive(Debug, Clone)]
pub struct SendRequest {
    /// What to send.
    pub payload: Payload,
    /// The caller's name for it, unique in the account: a retry with the same id never sends
    /// twice. Generated if absent.
    pub request_id: Option<String>,
    /// The tip of the first attempt, if not the default.
    pub tip: Option<u128>,
}

impl SendRequest {
    /// A call under a generated id.
    #[must_use]
    pub fn call(call: impl Into<Bytes>) -> Self {
        SendRequest { payload: Payload::Call(call.into()), request_id: None, tip: None }
    }

    /// Under the caller's id.
    #[must_use]
    pub fn with_id(self, id: impl Into<String>) -> Self {
        SendRequest { request_id: Some(id.into()), ..self }
    }
}

/// The state of a sent transaction, as its handle sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandleState {
    /// The current attempt, or the one that won.
    pub hash: Hash,
    /// Its status.
    pub status: TransactionStatus,
    /// Whether the duty is over.
    pub ended: bool,
}

/// A transaction this node accepted. Accepted means stored: whoever leads next finishes it.
#[derive(Debug, Clone)]
pub struct TransactionHandle {
    /// Its nonce.
    pub nonce: u64,
    /// Its request id.
    pub request_id: String,
    pub(crate) state: watch::Receiver<HandleState>,
}

impl TransactionHandle {
    /// What is known now.
    #[must_use]
    pub fn state(&self) -> HandleState {
        self.state.borrow().clone()
    }

    /// Waits for the next change. Cancel-safe. `None`: this node leads no more; follow the table
    /// ([`TransactionService::statuses`]) from here.
    pub async fn changed(&mut self) -> Option<HandleState> {
        self.state.changed().await.ok()?;
        Some(self.state.borrow_and_update().clone())
    }

    /// Waits for the end. Cancel-safe. `None`: this node leads no more.
    pub async fn ended(&mut self) -> Option<HandleState> {
        let state = self.state.wait_for(|s| s.ended).await.ok()?;
        Some(state.clone())
    }
}

/// A drain's result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DrainOutcome {
    /// Nothing was between acceptance and the node's answer any more.
    pub complete: bool,
    /// Transactions the next leader takes over from the table.
    pub handed_over: usize,
}

/// Sends transactions in nonce order while this node leads, and watches while it follows.
///
/// Dropping it stops it; [`TransactionService::shutdown`] drains first.
#[derive(Debug)]
pub struct TransactionService {
    leadership: Leadership,
    commands: mpsc::UnboundedSender<Command>,
    statuses: broadcast::Sender<Arc<StoredTransaction>>,
    stale: watch::Receiver<bool>,
    patience: Duration,
    tasks: JoinSet<()>,
}

impl TransactionService {
    /// Starts it: as a leader it takes over what is open, as a follower it watches.
    ///
    /// # Errors
    /// [`ServiceError`]. A database that cannot be reached is no error with a group: the node
    /// follows and says so loudly.
    pub async fn start(parts: Parts, options: ServiceOptions) -> Result<Self, ServiceError> {
        let Parts { leadership, store, chain, signer, follower_sync } = parts;
        match (&store, leadership.role()) {
            (None, NodeRole::Leader | NodeRole::Follower) => return Err(ServiceError::NoStore),
            (Some(_), NodeRole::Standalone) => return Err(ServiceError::StoreInStandalone),
            (Some(store), _) if store.account() != signer.account() => {
                return Err(ServiceError::ForeignAccount);
            }
            (Some(_), NodeRole::Leader | NodeRole::Follower) | (None, NodeRole::Standalone) => {}
        }
        let mut tasks = JoinSet::new();
        let (commands, inbox) = mpsc::unbounded_channel();
        let statuses = broadcast::Sender::new(4_096);
        let (stale_to, stale) = watch::channel(false);
        if let Some(store) = &store {
            if let Err(error) = store.migrate().await {
                match error {
                    StoreError::Unreachable(_) | StoreError::Lost(_) => {
                        tracing::error!(%error, "the database does not answer; following without a view");
                    }
                    other => return Err(ServiceError::Store(other)),
                }
            }
            let watching = watch_table(
                store.on_another_session(),
                options.feed.clone(),
                statuses.clone(),
                stale_to,
                leadership.clone(),
            );
            tasks.spawn(watching);
        }
        if let Some(hook) = follower_sync {
            tasks.spawn(keep_ready(leadership.clone(), hook, options.sync_every));
        }
        let patience = options.accept;
        let driver =
            Driver::new(leadership.clone(), store, chain, signer, options, Arc::new(BootClock));
        tasks.spawn(driver.run(inbox));
        Ok(TransactionService { leadership, commands, statuses, stale, patience, tasks })
    }

    /// This node's part at this instant.
    #[must_use]
    pub fn role(&self) -> NodeRole {
        self.leadership.role()
    }

    /// Leadership now.
    #[must_use]
    pub fn leader_state(&self) -> LeaderStateChanged {
        let epoch = self.leadership.gate().epoch();
        LeaderStateChanged { is_leader: epoch.is_some(), epoch }
    }

    /// Word of every change of leadership: the epoch while this node leads.
    #[must_use]
    pub fn leader_changes(&self) -> watch::Receiver<Option<Epoch>> {
        self.leadership.changes()
    }

    /// Whether the view of the table is stale: statuses may be old.
    #[must_use]
    pub fn is_stale(&self) -> bool {
        *self.stale.borrow()
    }

    /// Every change of every row of the account, on every node, from now on (the first receiver may
    /// also see those of the last moment). A receiver that lags misses changes and is told how many; [`crate::feed::feed`] misses none.
    #[must_use]
    pub fn statuses(&self) -> broadcast::Receiver<Arc<StoredTransaction>> {
        self.statuses.subscribe()
    }

    /// Accepts a transaction: chooses its nonce, signs, stores it under this node's epoch, and
    /// then sends it. Returns when it is stored.
    ///
    /// Dropping the future does not take it back: retry with the same request id.
    ///
    /// # Errors
    /// [`SendError`].
    pub async fn send(&self, request: SendRequest) -> Result<TransactionHandle, SendError> {
        self.require_leader()?;
        let named = request.request_id.clone();
        let (reply, answer) = oneshot::channel();
        let command = Command::Send { request, reply };
        self.commands.send(command).map_err(|_| SendError::Stopped)?;
        match timeout(self.patience, answer).await {
            Ok(answer) => answer.map_err(|_| SendError::Stopped)?,
            Err(_) => Err(SendError::Uncertain {
                request_id: named.unwrap_or_else(|| "without an id".to_owned()),
                reason: format!(
                    "no answer within {:?}: the database, the chain's node or the signer is slow \
                     or away",
                    self.patience
                ),
            }),
        }
    }

    /// Only a leader acts: anybody else says so, loudly, and is counted.
    fn require_leader(&self) -> Result<(), SendError> {
        if let Err(refused) = self.leadership.gate().require_leader() {
            metrics::count(metrics::REFUSED_NOT_LEADER);
            tracing::warn!(role = %self.role(), %refused, "refused to send: this node does not lead");
            return Err(SendError::NotLeader);
        }
        Ok(())
    }

    /// Puts a no-op in place of an open transaction, or into a gap. If the original is mined
    /// first, it wins.
    ///
    /// # Errors
    /// [`SendError`].
    pub async fn cancel(&self, nonce: u64) -> Result<(), SendError> {
        self.require_leader()?;
        let (reply, answer) = oneshot::channel();
        let command = Command::Cancel { nonce, reply };
        self.commands.send(command).map_err(|_| SendError::Stopped)?;
        match answer.await.map_err(|_| SendError::Stopped)? {
            // Elected, but what is open is still being read: as good as not leading yet.
            Err(SendError::Nonce(NonceError::NotLeading)) => Err(SendError::NotLeader),
            answer => answer,
        }
    }

    /// Accepts nothing new and waits until nothing is between acceptance and the node's answer, at
    /// most `within`. What is open then is in the table, for the next leader.
    pub async fn drain(&self, within: Duration) -> DrainOutcome {
        let (reply, answer) = oneshot::channel();
        let nothing = DrainOutcome { complete: true, handed_over: 0 };
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

    /// Waits until this node has taken over all open rows. `None` if it does not lead.
    pub async fn recovered(&self) -> Option<Duration> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(Command::Recovered { reply }).ok()?;
        answer.await.ok()?
    }

    /// Drains, then stops. The election's own shutdown comes after it.
    pub async fn shutdown(mut self, within: Duration) -> DrainOutcome {
        let drained = self.drain(within).await;
        self.tasks.shutdown().await;
        drained
    }
}

/// Hands the table's changes to all who subscribed, and says loudly when it cannot.
///
/// While nobody has, the rows are not read: only that they could be.
async fn watch_table(
    store: Store,
    options: FeedOptions,
    statuses: broadcast::Sender<Arc<StoredTransaction>>,
    stale: watch::Sender<bool>,
    leadership: Leadership,
) {
    let mut after = 0;
    let mut view = View::new(options.stale_after, Arc::new(BootClock));
    let health = |item| match item {
        FeedItem::Row(_) => {}
        FeedItem::Stale(reason) => {
            tracing::error!(
                role = %leadership.role(), reason,
                "THE VIEW OF THE TRANSACTIONS IS STALE AND UNRELIABLE: the database cannot be \
                 read; this node will not be promoted until it can"
            );
            metrics::set(metrics::VIEW_STALE, 1);
            leadership.set_unready(Unready::StaleView, true);
            stale.send_replace(true);
        }
        FeedItem::Fresh => {
            tracing::warn!(role = %leadership.role(), "the transactions can be read again");
            metrics::set(metrics::VIEW_STALE, 0);
            leadership.set_unready(Unready::StaleView, false);
            stale.send_replace(false);
        }
    };
    loop {
        // A stale view is looked after here until it is fresh: the feed would start with a view of
        // its own and never say that this one is over.
        if statuses.receiver_count() == 0 || view.is_stale() {
            let news = match store.newest_change().await {
                Ok(newest) => {
                    // What subscribers have not seen is theirs, also of those who came while the
                    // table was asked.
                    if statuses.receiver_count() == 0 {
                        after = newest;
                    }
                    view.read()
                }
                Err(error) => view.failed(&error.to_string()),
            };
            news.into_iter().for_each(health);
            sleep(options.poll.min(QUIET)).await;
            continue;
        }
        let mut items = feed(store.clone(), after, options.clone());
        while let Some(item) = items.recv().await {
            match item {
                FeedItem::Row(row) => {
                    after = row.change;
                    if statuses.send(Arc::from(row)).is_err() {
                        break;
                    }
                }
                other @ (FeedItem::Stale(_) | FeedItem::Fresh) => health(other),
            }
        }
    }
}

/// How long a first subscriber may wait for the feed to start.
const QUIET: Duration = Duration::from_millis(250);

/// A service was not started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServiceError {
    /// A group without a table.
    #[error("a group needs the database; set SH_PENDING_DB_URL, or choose standalone explicitly")]
    NoStore,
    /// Standalone with a table.
    #[error("standalone keeps no table; remove the database or join the group")]
    StoreInStandalone,
    /// Key and table are for different accounts.
    #[error("the signer's account is not the table's; use the group's key")]
    ForeignAccount,
    /// The table cannot be used.
    #[error("the table cannot be used")]
    Store(#[source] StoreError),
}

/// A transaction was not accepted.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// This node follows. Nothing was done.
    #[error("this node does not lead and never sends; send through the leader")]
    NotLeader,
    /// This node is about to let go. Nothing was done.
    #[error("this node is draining; send through the next leader")]
    Draining,
    /// The service has stopped. Nothing was done.
    #[error("the service has stopped")]
    Stopped,
    /// No nonce. Nothing was done.
    #[error(transparent)]
    Nonce(#[from] NonceError),
    /// Too large. Nothing was done.
    #[error("{size} bytes are more than the limit of {limit}; split the call or raise max_bytes")]
    TooLarge {
        /// Its size.
        size: usize,
        /// The limit.
        limit: usize,
    },
    /// A request id that cannot be one. Nothing was done.
    #[error("a request id has 1 to 200 characters")]
    BadRequestId,
    /// Not signed. Nothing was done.
    #[error(transparent)]
    Sign(#[from] SignError),
    /// Bytes that are no transaction. Nothing was done.
    #[error(transparent)]
    Chain(#[from] ChainError),
    /// Signed by somebody else. Nothing was done.
    #[error("signed by {0}, which is not this group's account; sign with the group's key")]
    ForeignAccount(String),
    /// The id stands for another transaction. Nothing was done.
    #[error(
        "request id {0} stands for another transaction; repeat that one unchanged, or choose a new id"
    )]
    RequestIdReused(String),
    /// Another creator's live row has the nonce. Nothing was stored; the table is read again.
    #[error("nonce {0} belongs to another live transaction in the table; retry")]
    Clash(u64),
    /// It may or may not be stored.
    #[error(
        "it is unknown whether request {request_id} was stored ({reason}); retry with the same id"
    )]
    Uncertain {
        /// The id to retry with.
        request_id: String,
        /// What happened.
        reason: String,
    },
    /// The database refused. Nothing was stored.
    #[error("not stored: {0}")]
    Store(Arc<StoreError>),
}

impl SendError {
    /// Its name on the wire between a caller and a node.
    pub fn code(&self) -> &'static str {
        match self {
            Self::NotLeader | Self::Nonce(NonceError::NotLeading) => "not_leader",
            Self::Draining => "draining",
            Self::Stopped => "stopped",
            Self::Nonce(_) | Self::Clash(_) => "nonce",
            Self::TooLarge { .. } => "too_large",
            Self::BadRequestId => "bad_request_id",
            Self::RequestIdReused(_) => "request_id_reused",
            Self::Sign(_) => "not_signed",
            Self::Chain(_) => "malformed",
            Self::ForeignAccount(_) => "foreign_account",
            Self::Uncertain { .. } => "uncertain",
            Self::Store(_) => "store",
        }
    }
}
