//! `tenure tx node`: one node of the group.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use serde_json::json;
use tenure::config::{Config, RoleSpec};
use tenure::dsn::ProcessEnv;
use tenure::{Leadership as _, Member, TakeoverPolicy};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use super::{DatabaseArgs, say, wire};
use crate::account::Signer as _;
use crate::chain::ethereum::{EthereumChain, EthereumOptions, EthereumSigner, Finality};
use crate::leadership::Leadership;
use crate::manager::ManagerConfig;
use crate::service::{Parts, ServiceOptions, TransactionService};

/// `tenure tx node`
#[derive(Debug, Args)]
pub struct NodeArgs {
    /// The database; absent only with --standalone.
    #[arg(long, env = "SH_PENDING_DB_URL", hide_env_values = true)]
    pub dsn: Option<String>,
    /// The role whose leader sends; by default `tx:<account>`.
    #[arg(long)]
    pub role: Option<String>,
    /// Send without a group and without a table. Never run two of these with one key.
    #[arg(long, conflicts_with = "dsn")]
    pub standalone: bool,
    /// This instance's name.
    #[arg(long, env = "SH_NODE_INSTANCE_ID")]
    pub instance: Option<String>,
    /// The chain's JSON-RPC address.
    #[arg(long, env = "TENURE_TX_RPC")]
    pub rpc: String,
    /// A file with the account's private key in hex.
    #[arg(long, conflicts_with = "key_env", required_unless_present = "key_env")]
    pub key_file: Option<PathBuf>,
    /// The name of an environment variable with the account's private key in hex.
    #[arg(long)]
    pub key_env: Option<String>,
    /// Where callers ask.
    #[arg(long, default_value = "127.0.0.1:0")]
    pub listen: SocketAddr,
    /// The tip of a first attempt, in wei per gas.
    #[arg(long, default_value_t = 1_000_000_000)]
    pub tip: u128,
    /// The most it may ever tip, in wei per gas.
    #[arg(long)]
    pub max_tip: Option<u128>,
    /// When the lowest unmined nonce is sent again with a higher tip.
    #[arg(long, default_value = "60s", value_parser = humantime::parse_duration)]
    pub stuck_after: Duration,
    /// When an unused nonce below others is filled with a no-op.
    #[arg(long, default_value = "30s", value_parser = humantime::parse_duration)]
    pub gap_after: Duration,
    /// How often the chain is read.
    #[arg(long, default_value = "1s", value_parser = humantime::parse_duration)]
    pub poll: Duration,
    /// Count a block as final after so many more, for chains without finality.
    #[arg(long)]
    pub confirmations: Option<u64>,
    /// The lease: how long a frozen leader is waited for.
    #[arg(long, default_value = "3s", value_parser = humantime::parse_duration)]
    pub lease: Duration,
}

pub(super) async fn run(args: NodeArgs) -> anyhow::Result<ExitCode> {
    let finality = args.confirmations.map_or(Finality::Tag, Finality::Confirmations);
    let options = EthereumOptions { poll: args.poll, finality, ..EthereumOptions::default() };
    let chain = EthereumChain::new(&args.rpc, options)?;
    let id = chain_id(&chain).await;
    let signer = match (&args.key_file, &args.key_env) {
        (Some(path), _) => EthereumSigner::from_file(path, id, chain.fees())?,
        (None, name) => {
            EthereumSigner::from_env(name.as_deref().unwrap_or_default(), id, chain.fees())?
        }
    };
    let account = signer.account().clone();
    let instance = args.instance.clone().unwrap_or_else(|| format!("node-{}", std::process::id()));
    let (member, leadership, store) = if args.standalone {
        (None, Leadership::standalone(&instance)?, None)
    } else {
        let dsn = args.dsn.clone().context(
            "no database: set SH_PENDING_DB_URL or --dsn, or choose --standalone explicitly",
        )?;
        let database = DatabaseArgs { dsn, role: args.role.clone() };
        let role = database.role_of(&account);
        // Every effect carries the epoch or a nonce that is used once, so the next leader need
        // not wait for the last one's lease.
        let config = Config::builder()
            .env(ProcessEnv)
            .dsn(database.dsn.clone())
            .instance(instance.clone())
            .lease(args.lease)
            .heartbeat(args.lease / 3)
            .role(RoleSpec::named(&role).policy(TakeoverPolicy::Fenced))
            .build()?;
        let member = Member::start(config).await?;
        let lock = member.lock(&role)?;
        lock.start().await?;
        let store = database.store(account.clone(), &instance)?;
        (Some(member), Leadership::of(&lock), Some(store))
    };
    let service = ServiceOptions {
        manager: ManagerConfig {
            stuck_after: args.stuck_after,
            gap_after: args.gap_after,
            min_tip_bump: 1_000_000,
            max_tip: args.max_tip.unwrap_or(u128::MAX),
            ..ManagerConfig::default()
        },
        head_every: args.poll,
        act: args.lease / 6,
        tip: args.tip,
        ..ServiceOptions::default()
    };
    let parts = Parts {
        leadership,
        store,
        chain: Arc::new(chain),
        signer: Arc::new(signer),
        follower_sync: None,
    };
    let service = Arc::new(TransactionService::start(parts, service).await?);
    let listener = TcpListener::bind(args.listen).await.context("the callers' address")?;
    let address = listener.local_addr()?;
    say(json!({"event": "listening", "address": address, "account": account.to_string()}))?;
    let serving = tokio::spawn(wire::serve(listener, Arc::clone(&service)));
    let mut changes = service.leader_changes();
    let mut term = signal(SignalKind::terminate())?;
    let mut int = signal(SignalKind::interrupt())?;
    let mut elected = true;
    loop {
        // All branches are cancel-safe: a watch and signals.
        tokio::select! {
            changed = changes.changed(), if elected => {
                elected = changed.is_ok();
                let epoch = *changes.borrow_and_update();
                say(json!({"event": "leader_state_changed", "is_leader": epoch.is_some(),
                           "epoch": epoch.map(|e| e.get())}))?;
            }
            _ = term.recv() => break,
            _ = int.recv() => break,
        }
    }
    // Callers first, then what is in flight, then the role.
    serving.abort();
    let drained = service.drain(Duration::from_secs(5)).await;
    say(
        json!({"event": "drained", "complete": drained.complete, "handed_over": drained.handed_over}),
    )?;
    if let Some(member) = member {
        member.shutdown(Some(Duration::from_secs(5))).await?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The signature covers the chain's id: without it nothing can be signed, so wait for the node.
async fn chain_id(chain: &EthereumChain) -> u64 {
    loop {
        match chain.chain_id().await {
            Ok(id) => return id,
            Err(error) => tracing::warn!(%error, "waiting for the chain's node"),
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}
