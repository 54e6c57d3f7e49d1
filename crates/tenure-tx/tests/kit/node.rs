//! A node of a group on anvil, elected by the test.

use std::sync::Arc;

use tenure_testkit::anvil::Anvil;
use tenure_tx::account::Signer as _;
use tenure_tx::service::{Mode, ServiceBuilder, ServiceOptions, TransactionService};

use super::anvil::{chain, signer};
use super::{E1, ManualElection, impatient, store_of};

pub(crate) struct Node {
    pub(crate) election: ManualElection,
    pub(crate) service: TransactionService,
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
        let (election, builder) = Self::builder(name, dsn, anvil).await;
        let service = builder.options(options).start().await.expect("starts");
        Node { election, service }
    }

    /// A node that leads at epoch 1 and has taken over what is open.
    pub(crate) async fn leader(dsn: &str, anvil: &Anvil) -> Self {
        let node = Self::follower("a", dsn, anvil, impatient()).await;
        node.election.lead(E1);
        node.service.recovered().await.expect("leads");
        node
    }
}
