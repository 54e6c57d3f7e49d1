//! Tells the pool of each block, and a test when the pool has dealt with one: a block is best before
//! the pool has looked at it, and what is submitted in between is judged by the block before.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use jsonrpsee::RpcModule;
use jsonrpsee::types::ErrorObjectOwned;
use sc_client_api::BlockchainEvents as _;
use sc_service::TaskManager;
use sc_transaction_pool_api::{ChainEvent, MaintainedTransactionPool as _};
use tokio::sync::watch;

use crate::{Block, Client, Hash, Pool};

/// How long a test waits for the pool at most.
const PATIENCE: Duration = Duration::from_secs(20);

/// Blocks that the pool has dealt with; each once as a block, and once as a final one.
pub(crate) type Maintained = watch::Receiver<HashSet<(Hash, bool)>>;

/// What the SDK's `notification_future` does, with a note of what is done.
pub(crate) fn follow(
    client: &Arc<Client>,
    pool: Arc<Pool>,
    all_blocks: bool,
    tasks: &TaskManager,
) -> Maintained {
    let imports = client.import_notification_stream().filter_map(move |block| {
        let event = (all_blocks || block.is_new_best).then(|| ChainEvent::<Block>::from(block));
        futures::future::ready(event)
    });
    let finals = client.finality_notification_stream().map(ChainEvent::<Block>::from);
    let (done, seen) = watch::channel(HashSet::new());
    let work = futures::stream::select(imports.fuse(), finals.fuse()).for_each(move |event| {
        let (pool, done) = (Arc::clone(&pool), done.clone());
        async move {
            let note = match &event {
                ChainEvent::NewBlock { hash } | ChainEvent::NewBestBlock { hash, .. } => {
                    (*hash, false)
                }
                ChainEvent::Finalized { hash, .. } => (*hash, true),
            };
            pool.maintain(event).await;
            done.send_modify(|all| {
                all.insert(note);
            });
        }
    });
    tasks.spawn_handle().spawn("txpool-notifications", None, work);
    seen
}

/// `test_maintained(hash, is_final)`: true once the pool has dealt with that block.
pub(crate) fn module(maintained: Maintained) -> RpcModule<Maintained> {
    let mut module = RpcModule::new(maintained);
    module
        .register_async_method("test_maintained", |params, maintained, _| async move {
            let wanted: (Hash, bool) = params.parse()?;
            let mut maintained = (*maintained).clone();
            let wait = maintained.wait_for(|all| all.contains(&wanted));
            let in_time = tokio::time::timeout(PATIENCE, wait).await;
            Ok::<bool, ErrorObjectOwned>(in_time.is_ok_and(|seen| seen.is_ok()))
        })
        .expect("the method has one name");
    module
}
