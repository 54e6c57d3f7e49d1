//! A real Substrate node without a network: the SDK's client, transaction pool and RPC around the
//! runtime that it is given, with blocks that the tests make. It listens on 127.0.0.1 only.

mod account;
mod interface;
mod maintenance;
mod options;
mod payment;

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::channel::mpsc;
use futures::{SinkExt as _, StreamExt as _};
use jsonrpsee::RpcModule;
use sc_client_api::{BlockchainEvents as _, Finalizer as _};
use sc_consensus_manual_seal::rpc::{EngineCommand, ManualSeal, ManualSealApiServer as _};
use sc_consensus_manual_seal::{ManualSealParams, run_manual_seal};
use sc_executor::WasmExecutor;
use sc_rpc::author::AuthorApiServer as _;
use sc_rpc::chain::ChainApiServer as _;
use sc_rpc::state::StateApiServer as _;
use sc_rpc::system::{Request, SystemApiServer as _};
use sc_service::{ClientConfig, GenesisBlockBuilder, TFullBackend, TFullClient, TaskManager};
use sc_transaction_pool::{TransactionPoolOptions, TransactionPoolType};
use sp_blockchain::HeaderBackend as _;
use sp_core::traits::SpawnNamed;
use sp_runtime::traits::BlakeTwo256;
use sp_runtime::{OpaqueExtrinsic, generic};
use substrate_frame_rpc_system::{System as AccountRpc, SystemApiServer};

use crate::account::AnyAccount;
use crate::maintenance::Maintained;
use crate::options::Options;

type Header = generic::Header<u32, BlakeTwo256>;
type Block = generic::Block<Header, OpaqueExtrinsic>;
type Hash = sp_core::H256;
type Backend = TFullBackend<Block>;
type Executor = WasmExecutor<sp_io::SubstrateHostFunctions>;
type Client = TFullClient<Block, interface::RuntimeApi, Executor>;
type Pool = sc_transaction_pool::TransactionPoolHandle<Block, Client>;
type Seals = mpsc::Sender<EngineCommand<Hash>>;
type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

#[tokio::main]
async fn main() -> Outcome<()> {
    let begun = Instant::now();
    let options = Options::read()?;
    let levels = std::env::var("RUST_LOG").unwrap_or_else(|_| "off".to_owned());
    sc_tracing::logging::LoggerBuilder::new(levels).init().map_err(|error| error.to_string())?;
    let tasks = TaskManager::new(tokio::runtime::Handle::current(), None)?;
    let (client, backend) = client(&options, &tasks)?;
    let (pool, maintained) = pool(&options, &client, &tasks);
    let seals = seal(&options, &client, &backend, &pool, &tasks);
    if let Some(lag) = options.finality_lag {
        tokio::spawn(finalize(Arc::clone(&client), lag));
    }
    let modules = modules(&client, &pool, seals, maintained, &tasks)?;
    let server = sc_rpc_server::start_server(sc_rpc_server::Config {
        endpoints: vec![sc_rpc_server::RpcEndpoint {
            listen_addr: ([127, 0, 0, 1], options.port).into(),
            batch_config: sc_rpc_server::BatchRequestConfig::Unlimited,
            max_connections: 100,
            max_payload_in_mb: 15,
            max_payload_out_mb: 15,
            max_subscriptions_per_connection: options.subscriptions,
            max_buffer_capacity_per_connection: 1024,
            rate_limit: None,
            rate_limit_trust_proxy_headers: false,
            rate_limit_whitelisted_ips: vec![],
            cors: None,
            rpc_methods: sc_rpc_server::RpcMethods::Unsafe,
            is_optional: false,
            retry_random_port: false,
        }],
        metrics: None,
        rpc_api: modules,
        id_provider: None,
        request_logger_limit: 1024,
        rpc_runtime: sc_rpc_server::create_rpc_runtime(100)?,
    })
    .await?;
    let (address, genesis) = (server.listen_addrs()[0], client.info().genesis_hash);
    println!("listening on ws://{address} genesis {genesis:?} after {:?}", begun.elapsed());
    let mut end = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    // Both branches are cancel-safe: signals.
    tokio::select! {
        _ = end.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
    Ok(())
}

fn client(options: &Options, tasks: &TaskManager) -> Outcome<(Arc<Client>, Arc<Backend>)> {
    let code = std::fs::read(&options.runtime)?;
    let genesis = sc_chain_spec::GenesisConfigBuilderRuntimeCaller::<()>::new(&code);
    let mut storage = genesis.get_storage_for_named_preset(Some(&options.preset))?;
    storage.top.insert(sp_core::storage::well_known_keys::CODE.to_vec(), code);
    let source = match &options.folder {
        Some(path) => sc_client_db::DatabaseSource::ParityDb { path: path.into() },
        // Without the flag a database in memory is taken for one that lost its settings.
        None => sc_client_db::DatabaseSource::Custom {
            db: Arc::new(sp_database::MemDb::new()),
            require_create_flag: true,
        },
    };
    let backend = sc_service::new_db_backend(sc_client_db::DatabaseSettings {
        trie_cache_maximum_size: Some(64 << 20),
        state_pruning: Some(match options.states {
            Some(blocks) => sc_client_db::PruningMode::blocks_pruning(blocks),
            None => sc_client_db::PruningMode::ArchiveAll,
        }),
        source,
        blocks_pruning: sc_client_db::BlocksPruning::KeepAll,
        pruning_filters: vec![],
        metrics_registry: None,
    })?;
    let executor: Executor =
        WasmExecutor::builder().with_allow_missing_host_functions(true).build();
    let builder = GenesisBlockBuilder::<Block, _, _>::new_with_storage(
        storage,
        true,
        Arc::clone(&backend),
        executor.clone(),
    )?;
    let client = sc_service::new_client(
        Arc::clone(&backend),
        executor.clone(),
        builder,
        Default::default(),
        Default::default(),
        sc_client_api::execution_extensions::ExecutionExtensions::new(None, Arc::new(executor)),
        Box::new(tasks.spawn_handle()),
        None,
        None,
        ClientConfig::default(),
    )?;
    Ok((Arc::new(client), backend))
}

fn pool(options: &Options, client: &Arc<Client>, tasks: &TaskManager) -> (Arc<Pool>, Maintained) {
    let kind = match options.single_state {
        true => TransactionPoolType::SingleState,
        false => TransactionPoolType::ForkAware,
    };
    let settings = TransactionPoolOptions::new_with_params(
        options.pool_limit,
        20 << 20,
        Some(options.ban_seconds),
        kind,
        true,
        false,
    );
    let all_blocks = settings.use_all_block_notifications();
    let essential = tasks.spawn_essential_handle();
    let pool = sc_transaction_pool::Builder::new(essential, Arc::clone(client), true.into());
    let pool = Arc::new(pool.with_options(settings).build());
    let maintained = maintenance::follow(client, Arc::clone(&pool), all_blocks, tasks);
    (pool, maintained)
}

/// Blocks, by order of a test or by time.
fn seal(
    options: &Options,
    client: &Arc<Client>,
    backend: &Arc<Backend>,
    pool: &Arc<Pool>,
    tasks: &TaskManager,
) -> Seals {
    let (seals, orders) = mpsc::channel::<EngineCommand<Hash>>(64);
    if options.block_ms > 0 {
        let (mut seals, every) = (seals.clone(), Duration::from_millis(options.block_ms));
        tokio::spawn(async move {
            let mut ticks = tokio::time::interval(every);
            loop {
                ticks.tick().await;
                let order = EngineCommand::SealNewBlock {
                    create_empty: true,
                    finalize: false,
                    parent_hash: None,
                    sender: None,
                };
                if seals.send(order).await.is_err() {
                    return;
                }
            }
        });
    }
    let proposers = sc_basic_authorship::ProposerFactory::new(
        tasks.spawn_handle(),
        Arc::clone(client),
        Arc::clone(pool),
        None,
        None,
    );
    let sealing = run_manual_seal(ManualSealParams {
        block_import: Arc::clone(client),
        env: proposers,
        client: Arc::clone(client),
        pool: Arc::clone(pool),
        commands_stream: orders,
        select_chain: sc_consensus::LongestChain::new(Arc::clone(backend)),
        consensus_data_provider: None,
        create_inherent_data_providers: |_, ()| async move {
            Ok(sp_timestamp::InherentDataProvider::from_system_time())
        },
    });
    tasks.spawn_essential_handle().spawn_blocking("manual-seal", None, sealing);
    seals
}

/// Follows the best block at a distance.
async fn finalize(client: Arc<Client>, lag: u32) {
    let mut imports = client.import_notification_stream();
    while imports.next().await.is_some() {
        let info = client.info();
        let Some(number) = info.best_number.checked_sub(lag) else { continue };
        if number > info.finalized_number
            && let Ok(Some(hash)) = client.hash(number)
        {
            // A fork may have taken the block away: the next one is asked again.
            let _ = client.finalize_block(hash, None, true);
        }
    }
}

fn modules(
    client: &Arc<Client>,
    pool: &Arc<Pool>,
    seals: Seals,
    maintained: Maintained,
    tasks: &TaskManager,
) -> Outcome<RpcModule<()>> {
    let spawn: Arc<dyn SpawnNamed> = Arc::new(tasks.spawn_handle());
    let (questions, mut asked) = sc_utils::mpsc::tracing_unbounded("system-rpc", 100);
    tokio::spawn(async move {
        while let Some(question) = asked.next().await {
            if let Request::Health(answer) = question {
                let (peers, is_syncing, should_have_peers) = (0, false, false);
                let health = sc_rpc::system::Health { peers, is_syncing, should_have_peers };
                let _ = answer.send(health);
            }
        }
    });
    let mut all = RpcModule::new(());
    all.merge(sc_rpc::chain::new_full::<Block, _>(Arc::clone(client), spawn.clone()).into_rpc())?;
    let (state, _child) =
        sc_rpc::state::new_full::<Backend, Block, _>(Arc::clone(client), spawn.clone(), None);
    all.merge(state.into_rpc())?;
    let keys = Arc::new(sc_keystore::LocalKeystore::in_memory());
    let author =
        sc_rpc::author::Author::new(Arc::clone(client), Arc::clone(pool), keys, spawn.clone());
    all.merge(author.into_rpc())?;
    let info = sc_rpc::system::SystemInfo {
        impl_name: env!("CARGO_PKG_NAME").into(),
        impl_version: env!("CARGO_PKG_VERSION").into(),
        chain_name: "Development".into(),
        properties: Default::default(),
        chain_type: sc_chain_spec::ChainType::Development,
    };
    all.merge(sc_rpc::system::System::<Block>::new(info, questions).into_rpc())?;
    let accounts = AccountRpc::<_, _, Block>::new(Arc::clone(client), Arc::clone(pool));
    all.merge(SystemApiServer::<_, AnyAccount, u32>::into_rpc(accounts))?;
    all.merge(payment::module(Arc::clone(client)))?;
    all.merge(ManualSeal::new(seals).into_rpc())?;
    all.merge(maintenance::module(maintained))?;
    Ok(all)
}
