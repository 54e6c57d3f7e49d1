//! A node as the application holds it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure_core::{BootClock, Identity, LeaderGate};
use tokio::net::TcpListener;
use tokio::sync::{broadcast, mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::commit::{CommitError, MemberChange};
use crate::driver::status::Status;
use crate::driver::{Driver, FromHost, now};
use crate::engine::{Engine, EngineConfig, OpenError};
use crate::history::{Record, TxId};
use crate::identity::{Ed25519Keys, Keys as _, PeerId, decode_hex};
use crate::machine::StateMachine;
use crate::net::is_address;
use crate::net::link::{Flood, Shared, listen};
use crate::net::session::Admission;
use crate::net::tls::{Tls, TlsFiles};
use crate::net::wire::{Contact, MAX_NAMESPACE};
use crate::storage::{Store, StoreError};

/// Inputs waiting for the driver; whoever brings more waits.
const QUEUE: usize = 4_096;

/// How a node that has no state yet comes to a cluster. One that has goes on with what it has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Start {
    /// It founds one: once, on one node.
    Bootstrap,
    /// It joins one through these addresses.
    Join(Vec<String>),
    /// It has been part of one before; without state it refuses to start.
    Resume,
}

/// How a node is run.
#[derive(Debug, Clone)]
pub struct HostConfig {
    /// Where its identity and its store are.
    pub folder: PathBuf,
    /// Where it listens.
    pub listen: SocketAddr,
    /// Where others reach it (default: where it listens).
    pub advertise: Option<String>,
    /// How it comes to a cluster.
    pub start: Start,
    /// The namespaces it carries (default: `main`).
    pub namespaces: Vec<String>,
    /// Who may talk to it.
    pub admission: Admission,
    /// Mutual TLS.
    pub tls: Option<TlsFiles>,
    /// How much one connection may send.
    pub flood: Flood,
    /// The protocol.
    pub node: EngineConfig,
}

impl HostConfig {
    /// A node in `folder` that listens on `listen`.
    pub fn new(folder: impl Into<PathBuf>, listen: SocketAddr, start: Start) -> Self {
        Self {
            folder: folder.into(),
            listen,
            advertise: None,
            start,
            namespaces: vec!["main".to_owned()],
            admission: Admission::default(),
            tls: None,
            flood: Flood::default(),
            node: EngineConfig::default(),
        }
    }
}

/// A node could not be started, or has stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// A value that cannot be.
    #[error("configuration: {0}")]
    Config(String),
    /// Neither founded nor joined.
    #[error(
        "this node has no state: start it with --bootstrap (once, on one node) or with --join ADDRESS; it never founds a cluster by itself"
    )]
    NoState,
    /// It joined a cluster and wants to found a namespace in it.
    #[error(
        "this node joined a cluster that another one founded: start it without --bootstrap; namespace {0:?} is founded on the node that founded the cluster"
    )]
    NotFounder(String),
    /// The key and the store do not belong together.
    #[error(
        "{0}: this key was used with another store, which may remember a vote that this one does not; restore that store, or remove the whole folder and join as a new node"
    )]
    Forgotten(PathBuf),
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The store can be read, but what is in it cannot be continued.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A file or the port.
    #[error("{what}: {why}")]
    Io {
        /// What was tried.
        what: String,
        /// Why it failed.
        why: io::Error,
    },
    /// The node has stopped.
    #[error("the node has stopped; see its log")]
    Stopped,
    /// A goal was refused, or the namespace is not carried.
    #[error("{0}")]
    Refused(String),
    /// Consensus refused.
    #[error(transparent)]
    Commit(#[from] CommitError),
}

/// A running node. Dropping it stops the node without a farewell; [`Host::stop`] says one.
pub struct Host<M: StateMachine> {
    id: PeerId,
    address: String,
    driver: mpsc::Sender<FromHost<M>>,
    gates: BTreeMap<String, LeaderGate>,
    listener: JoinHandle<()>,
    thread: Option<std::thread::JoinHandle<Result<(), StoreError>>>,
}

impl<M: StateMachine> Host<M> {
    /// Starts a node. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// See [`HostError`]; nothing runs then.
    pub async fn start(config: HostConfig) -> Result<Self, HostError> {
        config.node.validate().map_err(HostError::Config)?;
        if config.namespaces.is_empty() {
            return Err(HostError::Config("namespaces: at least one".to_owned()));
        }
        if let Some(bad) =
            config.namespaces.iter().find(|n| n.is_empty() || n.len() > MAX_NAMESPACE)
        {
            return Err(HostError::Config(format!(
                "namespaces: {bad:?} must have 1 to {MAX_NAMESPACE} bytes"
            )));
        }
        let seeds = match &config.start {
            Start::Join(seeds) => seeds.clone(),
            Start::Bootstrap | Start::Resume => Vec::new(),
        };
        if let Some(bad) = seeds.iter().find(|a| !is_address(a)) {
            return Err(HostError::Config(format!("join: HOST:PORT, not {bad:?}")));
        }
        if let Some(bad) = config.advertise.as_ref().filter(|a| !is_address(a)) {
            return Err(HostError::Config(format!("advertise: HOST:PORT, not {bad:?}")));
        }
        let tls = config.tls.as_ref().map(Tls::load).transpose();
        let tls = tls.map_err(|e| HostError::Config(format!("tls: {e}")))?;
        std::fs::create_dir_all(&config.folder)
            .map_err(|why| HostError::Io { what: config.folder.display().to_string(), why })?;
        let store = Store::open(&config.folder.join("node.redb"))?;
        let keys = Arc::new(load_identity(&config.folder, &store)?);
        let listener = TcpListener::bind(config.listen)
            .await
            .map_err(|why| HostError::Io { what: format!("listen on {}", config.listen), why })?;
        let local = listener
            .local_addr()
            .map_err(|why| HostError::Io { what: "listen".to_owned(), why })?;
        let address = config.advertise.clone().unwrap_or_else(|| local.to_string());

        let mut cluster: Option<[u8; 16]> = store.get("cluster")?;
        let with_state = store.namespaces()?;
        if config.start == Start::Resume && cluster.is_none() {
            return Err(HostError::NoState);
        }
        if config.start == Start::Bootstrap && cluster.is_none() {
            let fresh: [u8; 16] = rand::random();
            store.put("founder", &true)?;
            store.put("cluster", &fresh)?;
            cluster = Some(fresh);
        }
        let founder = store.get::<bool>("founder")?.unwrap_or(false);
        let starts = store.get::<u64>("starts")?.unwrap_or(0) + 1;
        store.put("starts", &starts)?;

        let mut engines = BTreeMap::new();
        let mut gates = BTreeMap::new();
        for name in &config.namespaces {
            let found = store.found(name)?;
            let mut engine = Engine::<M>::open(
                Box::new((*keys).clone()),
                name,
                config.node.clone(),
                found,
                now(),
                rand::random(),
            )?;
            if config.start == Start::Bootstrap && !with_state.contains(name) {
                // Two founders of one namespace would be two histories of it.
                if !founder {
                    return Err(HostError::NotFounder(name.clone()));
                }
                engine.bootstrap(now(), &BTreeSet::from([keys.id()]))?;
            }
            let identity = Identity::generate(&format!("gossip:{name}"))
                .map_err(|e| HostError::Config(format!("namespaces: {e}")))?;
            let (keeper, gate) = LeaderGate::pair(Arc::new(BootClock), identity);
            gates.insert(name.clone(), gate);
            engines.insert(name.clone(), (engine, keeper));
        }
        let contacts = store.get::<Vec<Contact>>("contacts")?.unwrap_or_default();

        let (to_driver, from_links) = mpsc::channel(QUEUE);
        let (asks, from_host) = mpsc::channel(QUEUE);
        let shared = Arc::new(Shared {
            keys: keys.clone(),
            admission: config.admission,
            tls,
            cluster: Mutex::new(cluster),
            driver: to_driver,
            links: AtomicU64::new(0),
            flood: config.flood,
            room: Shared::room(),
        });
        let runtime = tokio::runtime::Handle::current();
        let driver = Driver::new(
            address.clone(),
            store,
            shared.clone(),
            seeds,
            from_links,
            from_host,
            runtime,
            engines,
            contacts,
        );
        let listener = listen(listener, shared);
        let thread = std::thread::Builder::new()
            .name("tenure-gossip".to_owned())
            .spawn(move || driver.run())
            .map_err(|why| HostError::Io { what: "thread".to_owned(), why })?;
        let host =
            Self { id: keys.id(), address, driver: asks, gates, listener, thread: Some(thread) };
        // The first answer comes after the first write.
        host.status().await?;
        Ok(host)
    }

    /// The node's name.
    pub fn id(&self) -> PeerId {
        self.id
    }

    /// Where others reach it.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The gate of a namespace. It opens only while this node is the committed leader, that leader's
    /// first entry is committed, and a majority of voters has promised to elect nobody else: the same
    /// guarantee as on PostgreSQL, *exclusive*. The gossip hint alone never opens it. Its epoch is the
    /// consensus term.
    pub fn gate(&self, namespace: &str) -> Option<LeaderGate> {
        self.gates.get(namespace).cloned()
    }

    /// Submits a goal and waits for its record. Cancel-safe in this sense: the goal may be decided
    /// although nobody waits; submit it again under the same `tx` to learn how.
    ///
    /// # Errors
    /// [`HostError::Refused`] if it was not taken, [`HostError::Stopped`].
    pub async fn submit(
        &self,
        namespace: &str,
        tx: TxId,
        goal: Vec<u8>,
    ) -> Result<Record, HostError> {
        let namespace = namespace.to_owned();
        self.ask(|done| FromHost::Submit { namespace, tx, goal, done })
            .await?
            .map_err(HostError::Refused)
    }

    /// How the node stands.
    ///
    /// # Errors
    /// [`HostError::Stopped`].
    pub async fn status(&self) -> Result<Status, HostError> {
        self.ask(FromHost::Status).await
    }

    /// The state as this node has applied it: it may lag behind the leader's.
    ///
    /// # Errors
    /// [`HostError::Refused`] if the namespace is not carried, [`HostError::Stopped`].
    pub async fn machine(&self, namespace: &str) -> Result<M, HostError> {
        let name = namespace.to_owned();
        let machine = self.ask(|done| FromHost::Machine(name, done)).await?;
        machine.ok_or_else(|| HostError::Refused(format!("no namespace {namespace:?} here")))
    }

    /// `transaction_processed`: every record from now on. A receiver more than 1,024 records behind
    /// is told how many it missed; the history has them.
    ///
    /// # Errors
    /// [`HostError::Refused`] if the namespace is not carried, [`HostError::Stopped`].
    pub async fn subscribe(
        &self,
        namespace: &str,
    ) -> Result<broadcast::Receiver<Record>, HostError> {
        let name = namespace.to_owned();
        let receiver = self.ask(|done| FromHost::Subscribe(name, done)).await?;
        receiver.ok_or_else(|| HostError::Refused(format!("no namespace {namespace:?} here")))
    }

    /// Records `from..=upto`, as many as fit into one answer.
    ///
    /// # Errors
    /// [`HostError::Stopped`].
    pub async fn history(
        &self,
        namespace: &str,
        from: u64,
        upto: u64,
    ) -> Result<Vec<Record>, HostError> {
        let name = namespace.to_owned();
        self.ask(|done| FromHost::History(name, from, upto, done)).await
    }

    /// Adds or removes a voter, if this node leads.
    ///
    /// # Errors
    /// [`HostError::Commit`], [`HostError::Stopped`].
    pub async fn change_members(
        &self,
        namespace: &str,
        change: MemberChange,
    ) -> Result<(), HostError> {
        let name = namespace.to_owned();
        Ok(self.ask(|done| FromHost::Members(name, change, done)).await??)
    }

    /// Gives leadership up: no act begins any more, those in flight are waited for (one lease at most),
    /// then the gate is shut and the voters are free to elect another.
    ///
    /// # Errors
    /// [`HostError::Commit`] if this node does not lead or is alone, [`HostError::Stopped`].
    pub async fn step_down(&self, namespace: &str) -> Result<(), HostError> {
        let name = namespace.to_owned();
        Ok(self.ask(|done| FromHost::StepDown(name, done)).await??)
    }

    /// Stops: shuts the gates, hands leadership on, says goodbye.
    ///
    /// # Errors
    /// What the driver died of, if it did.
    pub async fn stop(mut self) -> Result<(), HostError> {
        let _ = tokio::time::timeout(Duration::from_secs(5), self.ask(FromHost::Stop)).await;
        self.listener.abort();
        self.wait_for_driver().await
    }

    /// Waits until the driver stops by itself: the store failed.
    ///
    /// # Errors
    /// What it died of.
    pub async fn failed(&mut self) -> Result<(), HostError> {
        self.driver.closed().await;
        self.wait_for_driver().await
    }

    async fn wait_for_driver(&mut self) -> Result<(), HostError> {
        let Some(thread) = self.thread.take() else { return Ok(()) };
        let joined = tokio::task::spawn_blocking(move || thread.join()).await;
        match joined {
            Ok(Ok(Ok(()))) => Ok(()),
            Ok(Ok(Err(e))) => Err(e.into()),
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

impl<M: StateMachine> Drop for Host<M> {
    fn drop(&mut self) {
        self.listener.abort();
    }
}

/// The keys in `folder`, made at the first start, readable by their owner only. A key without the
/// store it voted with could vote twice in a term, so each knows the other.
fn load_identity(folder: &Path, store: &Store) -> Result<Ed25519Keys, HostError> {
    let path = folder.join("identity");
    let fail = |why| HostError::Io { what: path.display().to_string(), why };
    match std::fs::read_to_string(&path) {
        Ok(text) => {
            let secret = decode_hex(&text).ok_or_else(|| {
                fail(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "not a key of 64 hexadecimal digits; restore it, or remove the whole folder and join as a new node",
                ))
            })?;
            let keys = Ed25519Keys::from_secret(&secret);
            if store.get::<PeerId>("identity")? != Some(keys.id()) {
                return Err(HostError::Forgotten(path));
            }
            Ok(keys)
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            use std::io::Write as _;
            use std::os::unix::fs::OpenOptionsExt as _;
            // A start that was cut short may have left a name without its key; it has joined nothing.
            if store.get::<[u8; 16]>("cluster")?.is_some() {
                return Err(HostError::Forgotten(path));
            }
            let keys = Ed25519Keys::generate();
            store.put("identity", &keys.id())?;
            let text = PeerId(keys.secret()).to_hex();
            // Written whole under another name first: half a key after a crash would be a new identity.
            let draft = folder.join("identity.new");
            let mut file = std::fs::OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(&draft)
                .map_err(fail)?;
            file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(fail)?;
            std::fs::rename(&draft, &path).map_err(fail)?;
            // The name of the file is as durable as what the store will say under it.
            std::fs::File::open(folder).and_then(|d| d.sync_all()).map_err(fail)?;
            Ok(keys)
        }
        Err(e) => Err(fail(e)),
    }
}
