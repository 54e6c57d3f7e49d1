//! A node of a group on anvil, elected by the test.

use std::sync::Arc;

use tenure_testkit::anvil::Anvil;
use tenure_tx::account::Signer as _;
use tenure_tx::chain::ethereum::EthereumChain;
use tenure_tx::service::{Mode, ServiceBuilder, ServiceOptions, TransactionService};
use tenure_tx::store::Store;

use super::anvil::{chain, signer};
use super::{E1, ManualElection, impatient, store_of};

pub(crate) struct Node {
    pub(crate) election: ManualElection,
    pub(crate) service: TransactionService,
    /// A session of the test's own.
    pub(crate) store: Store,
}

impl Node {
    /// What a node is made of.
    pub(crate) async fn builder(
        name: &str,
        dsn: &str,
        anvil: &Anvil,
    ) -> (ManualElection, ServiceBuilder) {
        let manual = ManualElection::new(name);
        let chain = chain(anvil);
        let signer = signer(&chain).await;
        let store = store_of(dsn, name, signer.account().clone());
        let mode = Mode::Group { election: manual.election.clone(), store };
        (manual, TransactionService::builder(mode, Arc::new(chain), Arc::new(signer)))
    }

    pub(crate) async fn follower(
        name: &str,
        dsn: &str,
        anvil: &Anvil,
        options: ServiceOptions,
    ) -> Self {
        Self::on(name, dsn, chain(anvil), options).await
    }

    /// A follower on this chain.
    pub(crate) async fn on(
        name: &str,
        dsn: &str,
        chain: EthereumChain,
        options: ServiceOptions,
    ) -> Self {
        let election = ManualElection::new(name);
        let signer = signer(&chain).await;
        let store = store_of(dsn, name, signer.account().clone());
        let mode = Mode::Group { election: election.election.clone(), store: store.clone() };
        let builder = TransactionService::builder(mode, Arc::new(chain), Arc::new(signer));
        let service = builder.options(options).start().await.expect("starts");
        Node { election, service, store: store.on_another_session() }
    }

    /// A node that leads at epoch 1 and has taken over what is open.
    pub(crate) async fn leader(dsn: &str, anvil: &Anvil) -> Self {
        let node = Self::follower("a", dsn, anvil, impatient()).await;
        node.election.lead(E1);
        node.service.recovered().await.expect("leads");
        node
    }
}
