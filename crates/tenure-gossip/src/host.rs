//! A node as the application holds it.

pub(crate) mod folder;
mod join;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure_core::{BootClock, GateKeeper, Identity, LeaderGate};
use tokio::net::TcpListener;
use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio_util::task::AbortOnDropHandle;

use self::folder::Folder;
use crate::backup::survivor::RETIRED;
use crate::carried::{Carried, first_credentials};
use crate::commit::MemberChange;
use crate::config::{ConfigError, HostConfig, Start};
use crate::credentials::{CREDENTIALS, Rights};
use crate::driver::refusal::Refusal;
use crate::driver::status::Status;
use crate::driver::{Driver, FromHost, Parts, now};
use crate::engine::{Engine, EngineConfig, OpenError};
use crate::history::{Record, TxId};
use crate::identity::{Ed25519Keys, Keys as _, PeerId};
use crate::identity_file::{self, IdentityError};
use crate::machine::StateMachine;
use crate::net::client::ClientError;
use crate::net::link::{Shared, listen};
use crate::net::tls::{Tls, TlsError};
use crate::net::wire::Contact;
use crate::storage::{Store, StoreError};

/// How often it is looked whether certificates changed.
const RELOAD: Duration = Duration::from_secs(5);
/// Inputs that wait for the driver; a task that brings more waits.
const QUEUE: usize = 4_096;

/// A node could not be started, or has stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// A setting out of its bounds.
    #[error("configuration: {0}")]
    Config(#[from] ConfigError),
    /// The files of an authority's certificates cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// [`Start::Resume`] on a node that neither founded nor joined a cluster.
    #[error(
        "this node has no state: start it with --bootstrap (once, on one node) or with --join ADDRESS; it never founds a cluster by itself"
    )]
    NoState,
    /// The cluster asks for credentials, and this node has none.
    #[error(
        "the cluster at {0} asks for an invitation: let an operator make one by `tenure gossip invite node`, and start with --invitation FILE"
    )]
    Uninvited(String),
    /// The invitation did not let it in.
    #[error("the invitation does not let this node in: {0}")]
    NotLetIn(#[source] ClientError),
    /// The cluster is open, and [`HostConfig::open`] does not allow that.
    #[error(
        "the cluster is open: every program that reaches {0} could do everything; start with --open if that is meant, or close the cluster by `tenure gossip close`"
    )]
    OpenCluster(String),
    /// It joined a cluster and wants to found a namespace in it.
    #[error(
        "this node joined a cluster that another one founded: start it without --bootstrap, and found namespace {0:?} while the nodes run: tenure gossip found {0}"
    )]
    NotFounder(String),
    /// The node to join through belongs to another cluster, and none of this node's own answers.
    #[error(
        "this folder belongs to another cluster than the node at {0}, and no node of its own answers; if that cluster was recovered or restored from this one, join it with a fresh folder (--data), else name a node of this one by --join"
    )]
    OtherCluster(String),
    /// A command that filled its folder was cut short.
    #[error(
        "{}: `tenure gossip restore` or `force-recover` was cut short while it filled this folder; run it again with the same arguments",
        .0.display()
    )]
    Unfinished(PathBuf),
    /// Its state was recovered into another generation.
    #[error(
        "the state of this folder was recovered into a new cluster, and this node can take part in neither; remove the folder, and join the new cluster with a fresh one"
    )]
    Retired,
    /// The key and the store do not belong together.
    #[error(
        "{0}: this key was used with another store, which may remember a vote that this one does not; restore that store, or remove the whole folder and join as a new node"
    )]
    Forgotten(PathBuf),
    /// The store failed; the node stops rather than promise what it cannot keep.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The store can be read, but what is in it cannot be continued.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The port cannot be had.
    #[error(
        "cannot listen on {address}: {why}; choose an address of this machine and a port that is free"
    )]
    Listen {
        /// The address that was asked for.
        address: SocketAddr,
        /// What the system said.
        why: io::Error,
    },
    /// A file cannot be used.
    #[error("{what}: {why}")]
    Io {
        /// What was tried.
        what: String,
        /// Why it failed.
        why: io::Error,
    },
    /// Its folder, or a file in it, can be read by other users.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// No record within [`HostConfig::submit_timeout`].
    #[error("transaction {0} may or may not be decided; submit it again under the same id")]
    Undecided(TxId),
    /// The node has stopped.
    #[error("the node has stopped; see its log")]
    Stopped,
    /// The node said no; nothing was changed.
    #[error(transparent)]
    Refused(#[from] Refusal),
}

/// A running node. `M` is the state of every namespace that it carries.
///
/// Dropping it stops the node at once: the gates shut, the other nodes are not told, and a successor is
/// elected after the promise. [`Host::stop`] hands leadership on first.
pub struct Host<M: StateMachine> {
    id: PeerId,
    address: String,
    driver: mpsc::Sender<FromHost<M>>,
    gates: Gates,
    submit_timeout: Duration,
    listener: AbortOnDropHandle<()>,
    _tasks: [AbortOnDropHandle<()>; 2],
    thread: Option<std::thread::JoinHandle<Result<(), HostError>>>,
}

impl<M: StateMachine> Host<M> {
    /// Starts a node: binds its port, reads its folder, and starts its thread. Must be called within a
    /// tokio runtime; reading a large folder blocks. It does not wait until the node has joined or leads: see
    /// [`Host::status`]. With an invitation it waits up to 20 s, and one answer more, to be let in.
    ///
    /// # Errors
    /// See [`HostError`]; nothing runs then. A node that has no state yet leaves none behind.
    pub async fn start(config: HostConfig) -> Result<Self, HostError> {
        config.validate()?;
        let (listener, address) = bind(&config).await?;
        join::probe(&config).await?;
        let folder = Folder::open(&config.folder, config.start == Start::Resume)?;
        let opened = async {
            let tls = Tls::new(&folder.keys, config.tls.as_ref())?;
            join::redeem(&config, &folder.store, &folder.keys).await?;
            let stored = Stored::load(&folder.store, &config.start)?;
            let opened = open_engines::<M>(&config, &folder.store, &folder.keys, &stored)?;
            refuse_open(&config, &opened, &stored)?;
            Ok((tls, stored, opened))
        };
        // A node that was refused leaves nothing behind that a later start would take for a state.
        let (tls, stored, engines) = match opened.await {
            Ok(opened) => opened,
            Err(error) => {
                folder.discard_if_new();
                return Err(error);
            }
        };
        let Folder { store, keys, .. } = folder;
        let gates = Gates::default();
        let opener = Opener { config: config.engine.clone(), keys: (*keys).clone() };

        let (to_driver, from_links) = mpsc::channel(QUEUE);
        let (driver, from_host) = mpsc::channel(QUEUE);
        let (rights, rights_seen) = watch::channel(Rights {
            pinned: stored.pinned.clone(),
            open_at_first: stored.is_open_at_first(&config),
            ..Rights::default()
        });
        let shared = Arc::new(Shared {
            keys: keys.clone(),
            cluster: Mutex::new(stored.cluster),
            tls,
            driver: to_driver,
            links: AtomicU64::new(0),
            flood: config.flood,
            room: Shared::room(),
            rights: rights_seen,
        });
        let parts = Parts {
            address: address.clone(),
            seeds: config.seeds(),
            contacts: stored.contacts,
            store,
            shared: shared.clone(),
            engines,
            gates: gates.clone(),
            opener,
            rights,
            founds: stored.founder.then_some(config.open),
            from_links,
            from_host,
            runtime: tokio::runtime::Handle::current(),
            cut_off: config.cut_off,
        };
        let thread = std::thread::Builder::new()
            .name("tenure-gossip".to_owned())
            .spawn(move || Driver::new(parts).run())
            .map_err(|why| HostError::Io { what: "thread".to_owned(), why })?;
        let reloading = AbortOnDropHandle::new(tokio::spawn(reload(shared.clone())));
        let published = publish(config.folder.clone(), shared.rights.clone());
        let publishing = AbortOnDropHandle::new(tokio::spawn(published));
        let listener = AbortOnDropHandle::new(listen(listener, shared));
        let host = Self {
            id: keys.id(),
            address,
            driver,
            gates,
            submit_timeout: config.submit_timeout,
            listener,
            _tasks: [reloading, publishing],
            thread: Some(thread),
        };
        // The first answer comes after the first write.
        host.status().await?;
        Ok(host)
    }

    /// The node's identity: the public key in its folder.
    #[must_use]
    pub fn id(&self) -> PeerId {
        self.id
    }

    /// Where others reach it, as `HOST:PORT`: [`HostConfig::advertise`], or where it listens, with the port
    /// that it was given.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The gate of a namespace; `None` if it is not carried. It opens only while this node is the committed
    /// leader, that leader's first entry is committed, and a majority of voters has promised to elect no
    /// other: the same guarantee as on PostgreSQL, *exclusive*. The gossip hint alone never opens it. Its
    /// epoch is the consensus term.
    #[must_use]
    pub fn gate(&self, namespace: &str) -> Option<LeaderGate> {
        self.gates.lock().expect("nothing panics while it is held").get(namespace).cloned()
    }

    /// Submits a goal of up to 256 KiB and waits for its record, on any node, for
    /// [`HostConfig::submit_timeout`] at most. Cancel-safe in this sense: the goal may be decided although
    /// no caller waits; submit it again under the same `tx` to learn how.
    ///
    /// A goal that the state machine rejects has a record too: look at [`Record::outcome`].
    ///
    /// # Errors
    /// [`HostError::Refused`] if it was not taken, or if it was decided so long ago that the record is gone
    /// ([`Refusal::OnlyInSnapshot`]). [`HostError::Undecided`] if it is not known whether it is decided.
    /// [`HostError::Stopped`]: it may be decided all the same.
    pub async fn submit(
        &self,
        namespace: &str,
        tx: TxId,
        goal: Vec<u8>,
    ) -> Result<Record, HostError> {
        let namespace = namespace.to_owned();
        let asked = self.ask(|done| FromHost::Submit { namespace, tx, goal, done });
        let decided = tokio::time::timeout(self.submit_timeout, asked).await;
        decided.map_err(|_| HostError::Undecided(tx))??.map_err(HostError::Refused)
    }

    /// The node's cluster, and the leader and history of each namespace, as far as it knows. Cancel-safe.
    ///
    /// # Errors
    /// [`HostError::Stopped`].
    pub async fn status(&self) -> Result<Status, HostError> {
        self.ask(FromHost::Status).await
    }

    /// A copy of the state as this node has applied it: it may lag behind the leader's. Cancel-safe.
    ///
    /// # Errors
    /// [`HostError::Refused`] if the namespace is not carried, [`HostError::Stopped`].
    pub async fn machine(&self, namespace: &str) -> Result<M, HostError> {
        let name = namespace.to_owned();
        Ok(self.ask(|done| FromHost::Machine(name, done)).await??)
    }

    /// Every record from now on, as it is applied. A receiver more than 1,024 records behind is told how many it
    /// missed; [`Host::history`] has them. The receiver is closed when records came to this node as part of a
    /// snapshot, and when the namespace halts or the node stops: it never goes on with a hole. Subscribe again
    /// then, and look at [`Host::status`].
    ///
    /// # Errors
    /// [`HostError::Refused`] if the namespace is not carried, [`HostError::Stopped`].
    pub async fn subscribe(
        &self,
        namespace: &str,
    ) -> Result<broadcast::Receiver<Record>, HostError> {
        let name = namespace.to_owned();
        Ok(self.ask(|done| FromHost::Subscribe(name, done)).await??)
    }

    /// Records `from..=upto`, as many as fit into 1 MiB, one at least; none if `from` is beyond the last.
    /// Records before the latest snapshot may be gone: see
    /// [`EngineConfig::keep_history`](crate::EngineConfig::keep_history). Cancel-safe.
    ///
    /// # Errors
    /// [`HostError::Refused`] if the namespace is not carried, if `from` is before the oldest record that this
    /// node keeps ([`Refusal::Forgotten`]), or if the store cannot be read; [`HostError::Stopped`].
    pub async fn history(
        &self,
        namespace: &str,
        from: u64,
        upto: u64,
    ) -> Result<Vec<Record>, HostError> {
        let name = namespace.to_owned();
        Ok(self.ask(|done| FromHost::History(name, from, upto, done)).await??)
    }

    /// Adds or removes a voter or a learner, if this node leads. Returns when the change is committed, or is known
    /// not to be; without a limit of its own. If the future is dropped, the change may be made all the same.
    ///
    /// # Errors
    /// [`HostError::Refused`] with a [`CommitError`](crate::CommitError), [`HostError::Stopped`].
    pub async fn change_members(
        &self,
        namespace: &str,
        change: MemberChange,
    ) -> Result<(), HostError> {
        let name = namespace.to_owned();
        Ok(self.ask(|done| FromHost::Members(name, change, done)).await??)
    }

    /// Gives leadership up: no act begins any more, acts in flight are waited for (one lease at most),
    /// then the gate is shut and the voters are free to elect another. If the future is dropped, it is given up
    /// all the same.
    ///
    /// # Errors
    /// [`HostError::Refused`] if this node does not lead or is alone, [`HostError::Stopped`].
    pub async fn step_down(&self, namespace: &str) -> Result<(), HostError> {
        let name = namespace.to_owned();
        Ok(self.ask(|done| FromHost::StepDown(name, done)).await??)
    }

    /// Stops: lets acts in flight end, shuts the gates, hands leadership on, says goodbye. It waits 5 s
    /// for that at most, then for its thread to end. If the future is dropped, the node stops without the rest.
    ///
    /// # Errors
    /// Why the node had stopped before, if it had: [`HostError::Store`], [`HostError::OtherCluster`], or [`HostError::Stopped`] after a
    /// panic.
    pub async fn stop(mut self) -> Result<(), HostError> {
        let _ = tokio::time::timeout(Duration::from_secs(5), self.ask(FromHost::Stop)).await;
        self.listener.abort();
        self.wait_for_driver().await
    }

    /// Waits until the node stops by itself: the store failed, or it is told to join another cluster than its own,
    /// of which no node answers. Watch it beside your own work, and end
    /// the program when it returns. Cancel-safe while the node runs; why it stopped is told once, and a later
    /// call returns `Ok`.
    ///
    /// # Errors
    /// Why the node stopped: [`HostError::Store`], [`HostError::OtherCluster`], or [`HostError::Stopped`] after a panic.
    pub async fn failed(&mut self) -> Result<(), HostError> {
        self.driver.closed().await;
        self.wait_for_driver().await
    }

    async fn wait_for_driver(&mut self) -> Result<(), HostError> {
        let Some(thread) = self.thread.take() else { return Ok(()) };
        let joined = tokio::task::spawn_blocking(move || thread.join()).await;
        match joined {
            Ok(Ok(Ok(()))) => Ok(()),
            Ok(Ok(Err(error))) => Err(error),
            Ok(Err(_)) | Err(_) => Err(HostError::Stopped),
        }
    }

    async fn ask<T>(
        &self,
        input: impl FnOnce(oneshot::Sender<T>) -> FromHost<M>,
    ) -> Result<T, HostError> {
        let (done, answer) = oneshot::channel();
        self.driver.send(input(done)).await.map_err(|_| HostError::Stopped)?;
        answer.await.map_err(|_| HostError::Stopped)
    }
}

type Engines<M> = BTreeMap<String, (Engine<Carried<M>>, GateKeeper)>;
/// The gates by namespace; the driver adds those of namespaces that are founded while it runs.
pub(crate) type Gates = Arc<Mutex<BTreeMap<String, LeaderGate>>>;

/// The port, and where others reach it.
async fn bind(config: &HostConfig) -> Result<(TcpListener, String), HostError> {
    let fail = |why| HostError::Listen { address: config.listen, why };
    let listener = TcpListener::bind(config.listen).await.map_err(fail)?;
    let local = listener.local_addr().map_err(fail)?;
    Ok((listener, config.advertise.clone().unwrap_or_else(|| local.to_string())))
}

/// What the store says of the cluster.
struct Stored {
    /// The cluster this node belongs to, if it does already.
    cluster: Option<[u8; 16]>,
    /// Whether this node founded it.
    founder: bool,
    /// The namespaces that have a log or a history here.
    with_state: BTreeSet<String>,
    contacts: Vec<Contact>,
    /// The nodes that an invitation named.
    pinned: BTreeSet<PeerId>,
    /// Whether it joined an open cluster.
    joined_open: bool,
}

impl Stored {
    /// Whether every key has every right here until the credentials say what they may do.
    fn is_open_at_first(&self, config: &HostConfig) -> bool {
        config.open && (self.founder || self.joined_open || self.cluster.is_none())
    }

    /// Reads it, founds a cluster if that is what this start is for, and counts the start.
    fn load(store: &Store, start: &Start) -> Result<Self, HostError> {
        if store.get(RETIRED)? == Some(true) {
            return Err(HostError::Retired);
        }
        let mut cluster: Option<[u8; 16]> = store.get("cluster")?;
        match (start, cluster) {
            (Start::Resume, None) => return Err(HostError::NoState),
            (Start::Bootstrap, None) => {
                let fresh: [u8; 16] = rand::random();
                store.put("founder", &true)?;
                store.put("cluster", &fresh)?;
                cluster = Some(fresh);
            }
            (Start::Join(_), None) | (_, Some(_)) => {}
        }
        let starts = store.get::<u64>("starts")?.unwrap_or(0) + 1;
        store.put("starts", &starts)?;
        Ok(Self {
            cluster,
            founder: store.get("founder")?.unwrap_or(false),
            with_state: store.namespaces()?,
            contacts: store.get("contacts")?.unwrap_or_default(),
            pinned: store.get("pinned")?.unwrap_or_default(),
            joined_open: store.get("joined_open")?.unwrap_or(false),
        })
    }
}

/// An engine and a gate for every namespace: the configured ones, and those that were founded with this node.
fn open_engines<M: StateMachine>(
    config: &HostConfig,
    store: &Store,
    keys: &Ed25519Keys,
    stored: &Stored,
) -> Result<Engines<M>, HostError> {
    let opener = Opener { config: config.engine.clone(), keys: keys.clone() };
    let mut engines: Engines<M> = BTreeMap::new();
    let mut founded = BTreeMap::new();
    for name in [CREDENTIALS].into_iter().chain(config.namespaces.iter().map(String::as_str)) {
        let (mut engine, keeper) = opener.open(name, store)?;
        if let Some(credentials) = engine.chain().machine().credentials() {
            founded = credentials.namespaces().clone();
        }
        // One that is on record was founded by consensus, and begins as it was decided there.
        let on_record = founded.contains_key(name);
        if config.start == Start::Bootstrap && !on_record && !stored.with_state.contains(name) {
            // Two founders of one namespace would be two histories of it.
            if !stored.founder {
                return Err(HostError::NotFounder(name.to_owned()));
            }
            engine.bootstrap(now(), &BTreeSet::from([keys.id()])).map_err(Refusal::Commit)?;
        }
        engines.insert(name.to_owned(), (engine, keeper));
    }
    Ok(engines)
}

/// What opens the engine of a namespace, at the start or later.
pub(crate) struct Opener {
    config: EngineConfig,
    keys: Ed25519Keys,
}

impl Opener {
    /// The engine of a namespace as the store has it, and its gate.
    ///
    /// # Errors
    /// See [`HostError`].
    pub(crate) fn open<M: StateMachine>(
        &self,
        name: &str,
        store: &Store,
    ) -> Result<(Engine<Carried<M>>, GateKeeper), HostError> {
        let mut found = store.found(name)?;
        if name == CREDENTIALS && found.snapshot.is_none() {
            found.snapshot = Some(first_credentials());
        }
        let (signer, seed) = (Box::new(self.keys.clone()), rand::random());
        let engine = Engine::open(signer, name, self.config.clone(), found, now(), seed)?;
        let identity = Identity::generate(&format!("gossip:{name}")).map_err(|error| {
            ConfigError::new("namespaces", error.to_string(), "a gate is named after it")
        })?;
        let (keeper, _) = LeaderGate::pair(Arc::new(BootClock), identity);
        Ok((engine, keeper))
    }
}

/// An open cluster is carried on a port that other machines reach only by an explicit word.
fn refuse_open<M: StateMachine>(
    config: &HostConfig,
    engines: &Engines<M>,
    stored: &Stored,
) -> Result<(), HostError> {
    let state = engines.get(CREDENTIALS).and_then(|(e, _)| e.chain().machine().credentials());
    // Once the credentials are founded they alone say it.
    let (open, at_first) = match state.filter(|state| state.is_founded()) {
        Some(state) => (Rights { state: state.clone(), ..Rights::default() }.is_open(), false),
        None => (stored.joined_open, stored.is_open_at_first(config)),
    };
    if open && !config.open {
        return Err(HostError::OpenCluster(config.listen.to_string()));
    }
    if open || at_first {
        let who = match config.tls {
            Some(_) => "every program that reaches the port and has a certificate of the authority",
            None => "every program that reaches the port",
        };
        tracing::warn!(
            listen = %config.listen,
            "this cluster is OPEN: {who} may do everything; see `tenure gossip close`"
        );
    }
    Ok(())
}

/// Keeps the file `nodes` in the folder: with the key beside it, the folder is the identity of an operator
/// that knows which nodes to believe.
async fn publish(folder: PathBuf, mut rights: watch::Receiver<Rights>) {
    let mut written = BTreeSet::new();
    loop {
        let nodes = rights.borrow_and_update().nodes();
        if nodes != written {
            if let Err(error) = identity_file::write_nodes(&folder, &nodes) {
                tracing::warn!(%error, "the file of the cluster's nodes cannot be written");
            }
            written = nodes;
        }
        if rights.changed().await.is_err() {
            return;
        }
    }
}

/// Certificates that were renewed are used from the next connection on.
async fn reload(shared: Arc<Shared>) {
    loop {
        tokio::time::sleep(RELOAD).await;
        match shared.tls.reload_if_changed() {
            Ok(true) => tracing::info!("the certificates changed and are in use"),
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(%error, "the changed certificates cannot be used; the former ones stay");
            }
        }
    }
}
