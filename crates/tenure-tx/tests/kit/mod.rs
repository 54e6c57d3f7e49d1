//! What the tests of this crate share: a database with a role in it, and rows to put there.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::time::Duration;

use bytes::Bytes;
use tenure::connect::Connector;
use tenure::dsn::Dsn;
use tenure::tls::TlsOptions;
use tenure_core::epoch::Epoch;
use tenure_testkit::{Database, shared_cluster};
use tenure_tx::account::AccountId;
use tenure_tx::manager::Attempt;
use tenure_tx::status::Hash;
use tenure_tx::store::{NewTransaction, Store, StoreOptions};

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
    let database = shared_cluster().await.database().await.expect("a fresh database");
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
    let options = StoreOptions {
        role: ROLE.to_owned(),
        account: account(),
        creator: creator.to_owned(),
        deadline: Duration::from_secs(5),
    };
    Store::new(connector(dsn), options)
}

pub(crate) const E1: Epoch = Epoch(1);

pub(crate) fn hash(tag: u8) -> Hash {
    Hash([tag; 32])
}

pub(crate) fn attempt(tag: u8) -> Attempt {
    Attempt { hash: hash(tag), tip: 5, noop: false, valid_until: None }
}

pub(crate) fn row(nonce: u64, tag: u8, request: &str) -> NewTransaction {
    NewTransaction {
        nonce,
        attempt: attempt(tag),
        call: Some(Bytes::from_static(b"call")),
        raw: Bytes::from(vec![tag; 8]),
        request_id: request.to_owned(),
    }
}
