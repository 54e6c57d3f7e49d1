//! `tenure tx node`: one node of the group.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::{Args, ValueEnum};
use serde_json::json;
use tenure::config::{Config, RoleSpec};
use tenure::connect::dsn::ProcessEnv;
use tenure::{Member, TakeoverPolicy};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use super::{DatabaseArgs, Unshown, say, scrape, wire};
use tenure_tx::account::{AccountId, Signer};
use tenure_tx::chain::Chain;
use tenure_tx::chain::ethereum::{EthereumChain, EthereumOptions, EthereumSigner, Finality};
use tenure_tx::chain::substrate::{CommandSigner, SubstrateChain, account_of};
use tenure_tx::engine::EngineConfig;
use tenure_tx::service::{Mode, ServiceOptions, TransactionService};

/// `tenure tx node`
#[derive(Debug, Args)]
pub(crate) struct NodeArgs {
    /// The group's database; absent only with --standalone.
    #[command(flatten)]
    pub(crate) database: DatabaseArgs,
    /// Send without a group and without a table. Never run two of these with one key.
    #[arg(long, conflicts_with = "dsn")]
    pub(crate) standalone: bool,
    /// This instance's name.
    #[arg(long, env = "SH_NODE_INSTANCE_ID")]
    pub(crate) instance: Option<String>,
    /// What kind of chain it is.
    #[arg(long, value_enum, default_value_t = Kind::Ethereum)]
    pub(crate) chain: Kind,
    /// The chain's JSON-RPC address: http(s):// on Ethereum, ws(s):// on Substrate.
    #[arg(long, env = "TENURE_TX_RPC", hide_env_values = true)]
    pub(crate) rpc: Unshown,
    /// Ethereum: a file with the account's private key in hex.
    #[arg(long, conflicts_with = "key_env")]
    pub(crate) key_file: Option<PathBuf>,
    /// Ethereum: the name of an environment variable with the account's private key in hex.
    #[arg(long)]
    pub(crate) key_env: Option<String>,
    /// Substrate: the program that signs, with its arguments; see the guide for what it is asked.
    #[arg(long, conflicts_with_all = ["key_file", "key_env"])]
    pub(crate) signer_command: Option<Unshown>,
    /// Substrate: the signing account, in SS58 or hex.
    #[arg(long, env = "TENURE_TX_ACCOUNT", value_parser = account_of)]
    pub(crate) account: Option<AccountId>,
    /// Where callers ask.
    #[arg(long, default_value = "127.0.0.1:0")]
    pub(crate) listen: SocketAddr,
    /// Serve metrics for Prometheus here: an address, or a port of this machine alone.
    #[arg(long, value_name = "ADDR", value_parser = scrape::address_of)]
    pub(crate) metrics: Option<SocketAddr>,
    /// The tip of a first attempt, in wei per gas or in the chain's smallest unit [default:
    /// 1000000000 on Ethereum, 0 on Substrate]
    #[arg(long)]
    pub(crate) tip: Option<u128>,
    /// The most it may ever tip.
    #[arg(long)]
    pub(crate) max_tip: Option<u128>,
    /// When the lowest unmined nonce is sent again with a higher tip.
    #[arg(long, default_value = "60s", value_parser = humantime::parse_duration)]
    pub(crate) stuck_after: Duration,
    /// When an unused nonce below others is filled with a no-op.
    #[arg(long, default_value = "30s", value_parser = humantime::parse_duration)]
    pub(crate) gap_after: Duration,
    /// How often the chain is read.
    #[arg(long, default_value = "1s", value_parser = humantime::parse_duration)]
    pub(crate) poll: Duration,
    /// Ethereum: count a block as final after so many more, for chains without finality.
    #[arg(long)]
    pub(crate) confirmations: Option<u64>,
    /// The lease: how long a frozen leader is waited for.
    #[arg(long, default_value = "3s", value_parser = humantime::parse_duration)]
    pub(crate) lease: Duration,
}

/// What kind of chain a node works on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// HTTP JSON-RPC, EIP-1559; signs with a key of its own.
    Ethereum,
    /// WebSocket JSON-RPC; a program signs.
    Substrate,
}

/// Chain and signer, as the arguments name them.
async fn chain(args: &NodeArgs) -> anyhow::Result<(Arc<dyn Chain>, Arc<dyn Signer>)> {
    match args.chain {
        Kind::Ethereum => {
            let finality = args.confirmations.map_or(Finality::Tag, Finality::Confirmations);
            let options = EthereumOptions { poll: args.poll, finality, ..Default::default() };
            let chain = EthereumChain::new(args.rpc.text(), options)?;
            // Before the chain is waited for: a bad key is known at once.
            let key = |id| match (&args.key_file, &args.key_env) {
                (Some(path), _) => Ok(EthereumSigner::from_file(path, id, chain.fees())?),
                (None, Some(name)) => Ok(EthereumSigner::from_env(name, id, chain.fees())?),
                (None, None) => bail!("no key; give --key-file or --key-env"),
            };
            key(0)?;
            let signer = key(chain_id(&chain).await)?;
            Ok((Arc::new(chain), Arc::new(signer)))
        }
        Kind::Substrate => {
            if args.confirmations.is_some() || args.key_file.is_some() || args.key_env.is_some() {
                bail!(
                    "--confirmations, --key-file and --key-env are Ethereum's; a Substrate chain \
                     has finality, and --signer-command signs"
                );
            }
            let account = args.account.clone().context(
                "no account; give --account with the address --signer-command signs for",
            )?;
            let command = args
                .signer_command
                .as_ref()
                .context("no signer; give --signer-command with a program that signs extrinsics")?;
            let signer = CommandSigner::new(account, command.text())?;
            let chain = SubstrateChain::new(args.rpc.text(), Duration::from_secs(5))?;
            Ok((Arc::new(chain), Arc::new(signer)))
        }
    }
}

pub(super) async fn run(args: NodeArgs) -> anyhow::Result<ExitCode> {
    // First of all: what is counted before there is a recorder is lost.
    let metrics = match args.metrics {
        Some(address) => Some(scrape::start(address).await?),
        None => None,
    };
    let (chain, signer) = chain(&args).await?;
    let account = signer.account().clone();
    if let Some(named) = args.account.as_ref().filter(|named| **named != account) {
        bail!("the key is of account {account}, not of {named}; give that one's key");
    }
    let instance = args.instance.clone().unwrap_or_else(|| format!("node-{}", std::process::id()));
    let (member, mode) = if args.standalone {
        (None, Mode::Standalone)
    } else {
        let database = &args.database;
        let dsn = database.text().context("a node needs its group's table, or --standalone")?;
        let role = database.role_of(&account);
        // Every effect carries the epoch or a nonce that is used once, so the next leader need
        // not wait for the last one's lease.
        let config = Config::builder()
            .env(ProcessEnv)
            .dsn(dsn)
            .instance(instance.clone())
            .lease(args.lease)
            .heartbeat(args.lease / 3)
            .role(RoleSpec::named(&role).policy(TakeoverPolicy::Fenced))
            .build()?;
        let member = Member::start(config).await?;
        let lock = member.lock(&role)?;
        lock.start().await?;
        let store = database.store(account.clone(), &instance)?;
        (Some(member), Mode::group(&lock, store))
    };
    let options = ServiceOptions {
        engine: EngineConfig {
            stuck_after: args.stuck_after,
            gap_after: args.gap_after,
            min_tip_bump: 1_000_000,
            max_tip: args.max_tip.unwrap_or(u128::MAX),
            ..EngineConfig::default()
        },
        head_every: args.poll,
        act: args.lease / 6,
        tip: args.tip.unwrap_or(match args.chain {
            Kind::Ethereum => 1_000_000_000,
            Kind::Substrate => 0,
        }),
        ..ServiceOptions::default()
    };
    let service = TransactionService::builder(mode, chain, signer).options(options).start().await?;
    let service = Arc::new(service);
    let listener = TcpListener::bind(args.listen).await.context("the callers' address")?;
    let address = listener.local_addr()?;
    let mut listening =
        json!({"event": "listening", "address": address, "account": account.to_string()});
    if let Some(metrics) = metrics {
        listening["metrics"] = json!(metrics);
    }
    say(listening)?;
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
                let change = *changes.borrow_and_update();
                let epoch = change.epoch.filter(|_| change.is_leader);
                say(json!({"event": "leader_state_changed", "is_leader": change.is_leader,
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
