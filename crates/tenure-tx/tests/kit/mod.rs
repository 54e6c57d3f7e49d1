//! What the tests of this crate share: a database with a role in it, and rows to put there.
#![allow(dead_code, reason = "each test binary uses a part of it")]

#[cfg(feature = "ethereum")]
pub(crate) mod anvil;
pub(crate) mod log;
#[cfg(feature = "ethereum")]
pub(crate) mod node;
pub(crate) mod pooler;
#[cfg(feature = "substrate")]
pub(crate) mod substrate_node;
pub(crate) mod tap;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use tenure::LeaderStateChanged;
use tenure_connect::{Connector, Dsn, TlsOptions};
use tenure_core::clock::{BootClock, Tick};
use tenure_core::epoch::Epoch;
use tenure_core::gate::{GateKeeper, LeaderGate};
use tenure_core::identity::Identity;
use tenure_testkit::{Database, shared_cluster};
use tenure_tx::account::AccountId;
use tenure_tx::election::Election;
use tenure_tx::engine::{Attempt, EngineConfig};
use tenure_tx::service::{ServiceOptions, TransactionHandle};
use tenure_tx::status::{Hash, State, TransactionStatus};
use tenure_tx::store::{NewTransaction, Store, StoreOptions};
use tokio::sync::watch;
use tokio::time::timeout;

pub(crate) const ROLE: &str = "relayer";

pub(crate) fn account() -> AccountId {
    AccountId::new([0xaa; 20]).expect("20 bytes")
}

pub(crate) fn connector(dsn: &str) -> Connector {
    let dsn = Dsn::parse(dsn).expect("the kit's DSN");
    Connector::new(&dsn, TlsOptions::new()).expect("no certificate files are named")
}

/// A database with both schemas and a role at epoch 1.
pub(crate) async fn database() -> Database {
    prepare(shared_cluster().await.database().await.expect("a fresh database")).await
}

/// Puts both schemas and the role into an empty database.
pub(crate) async fn prepare(database: Database) -> Database {
    let client = database.client().await.expect("it answers");
    client.batch_execute(&tenure::schema::script()).await.expect("tenure's schema");
    client.batch_execute(&tenure_tx::schema::script()).await.expect("our schema");
    client
        .batch_execute(
            "insert into tenure.role (name, key, policy, lease_ms, epoch) \
             values ('relayer', 1, 'exclusive', 3000, 1)",
        )
        .await
        .expect("a role");
    database
}

/// Another leader was elected.
pub(crate) async fn bump(database: &Database) {
    let client = database.client().await.expect("it answers");
    let bump = "update tenure.role set epoch = epoch + 1 where name = 'relayer'";
    client.batch_execute(bump).await.expect("a new epoch");
}

pub(crate) fn store(dsn: &str, creator: &str) -> Store {
    store_of(dsn, creator, account())
}

pub(crate) fn store_of(dsn: &str, creator: &str, account: AccountId) -> Store {
    Store::new(connector(dsn), StoreOptions::new(ROLE.parse().expect("a name"), account, creator))
}

pub(crate) const E1: Epoch = Epoch(1);

pub(crate) fn hash(tag: u8) -> Hash {
    Hash([tag; 32])
}

pub(crate) fn attempt(tag: u8) -> Attempt {
    Attempt { hash: hash(tag), tip: 5, ..Attempt::default() }
}

pub(crate) fn row(nonce: u64, tag: u8, request: &str) -> NewTransaction {
    NewTransaction {
        nonce,
        attempt: attempt(tag),
        call: Some(Bytes::from_static(b"call")),
        raw: Bytes::from(vec![tag; 8]),
        request_id: request.to_owned(),
        deadline: None,
    }
}

/// An election that the test decides.
pub(crate) struct ManualElection {
    keeper: Mutex<GateKeeper>,
    changes: watch::Sender<LeaderStateChanged>,
    pub(crate) ready: watch::Receiver<bool>,
    pub(crate) gate: LeaderGate,
    pub(crate) election: Election,
}

impl ManualElection {
    pub(crate) fn new(name: &str) -> Self {
        let identity = Identity::generate(name).expect("a name");
        let (keeper, gate) = LeaderGate::pair(Arc::new(BootClock), identity);
        let (changes, seen) = watch::channel(LeaderStateChanged::new(false, None));
        let (ready, was_ready) = watch::channel(true);
        let lease = Duration::from_secs(3);
        let election = Election::new(gate.clone(), seen, lease, move |is_ready| {
            ready.send_replace(is_ready);
        });
        ManualElection { keeper: Mutex::new(keeper), changes, ready: was_ready, gate, election }
    }

    pub(crate) fn lead(&self, epoch: Epoch) {
        assert!(self.keeper.lock().expect("unpoisoned").open(epoch, Tick::MAX));
        self.changes.send_replace(LeaderStateChanged::new(true, Some(epoch)));
    }

    pub(crate) fn depose(&self) {
        self.keeper.lock().expect("unpoisoned").shut();
        self.changes.send_modify(|state| state.is_leader = false);
    }

    /// Waits until this node is ready to lead, or is not.
    pub(crate) async fn until_ready(&self, wanted: bool) {
        let mut ready = self.ready.clone();
        let wait = ready.wait_for(|is_ready| *is_ready == wanted);
        timeout(Duration::from_secs(20), wait).await.expect("in time").expect("lives");
    }
}

/// Quick enough for a test.
pub(crate) fn impatient() -> ServiceOptions {
    ServiceOptions {
        engine: EngineConfig {
            stuck_after: Duration::from_secs(3),
            gap_after: Duration::from_millis(500),
            retry: Duration::from_millis(50),
            retry_max: Duration::from_millis(500),
            ..EngineConfig::default()
        },
        head_every: Duration::from_millis(100),
        tick: Duration::from_millis(25),
        ..ServiceOptions::default()
    }
}

/// Waits until a transaction's status is as wanted.
pub(crate) async fn until(
    handle: &mut TransactionHandle,
    wanted: impl Fn(&TransactionStatus) -> bool,
) {
    let wait = async {
        while !wanted(&handle.state().status) {
            assert!(handle.changed().await.is_some(), "demoted at {:?}", handle.state());
        }
    };
    if timeout(Duration::from_secs(30), wait).await.is_err() {
        panic!("stuck at {:?}", handle.state());
    }
}

pub(crate) fn is(state: State) -> impl Fn(&TransactionStatus) -> bool {
    move |status| status.state() == state
}
