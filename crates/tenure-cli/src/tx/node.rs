//! `tenure tx node`: one node of the group.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde_json::json;
use tenure::config::{Config, RoleSpec};
use tenure::connect::dsn::Secret;
use tenure::{Lease, Member, TakeoverPolicy};
use tenure_tx::account::{AccountId, Signer, read_key_file};
use tenure_tx::chain::ethereum::{EthereumChain, EthereumOptions, EthereumSigner, Finality};
use tenure_tx::chain::substrate::{
    CommandSigner, Key, Period, Scheme, SubstrateChain, SubstrateSigner, account_of,
};
use tenure_tx::chain::{Chain, ChainError};
use tenure_tx::election::NodeRole;
use tenure_tx::engine::EngineConfig;
use tenure_tx::metrics;
use tenure_tx::service::{Mode, ServiceError, ServiceOptions, TransactionService};
use tenure_tx::store::StoreOptions;
use tokio::net::TcpSocket;

use super::amount::{Amount, Cap, amount, cap};
use super::follower::SyncCommand;
use super::{callers, role_of, store};
use crate::args::{Database, period, secret};
use crate::exit::{self, Exit, Failure};
use crate::listener::{self, Health, Listener};
use crate::output::out;
use crate::setting;
use crate::signals::Signals;

#[derive(Debug, Args)]
pub(crate) struct NodeArgs {
    #[command(flatten)]
    pub(crate) database: Database,
    /// The role whose leader may write [default: tx:ACCOUNT]
    #[arg(long, value_name = "NAME", conflicts_with = "standalone")]
    pub(crate) role: Option<String>,
    /// Send without a group: no other node finishes what this one accepts. Never run two of these
    /// with one key
    #[arg(long, conflicts_with_all = ["dsn", "config"])]
    pub(crate) standalone: bool,
    /// Standalone: the file that remembers requests and their ids [default: tenure/tx-ACCOUNT.journal
    /// in $XDG_DATA_HOME or ~/.local/share]
    #[arg(long, value_name = "FILE")]
    pub(crate) journal: Option<PathBuf>,
    /// This instance's name [default: TENURE_INSTANCE, SH_NODE_INSTANCE_ID, the file's, or the host's
    /// name]
    #[arg(long, conflicts_with = "standalone")]
    pub(crate) instance: Option<String>,
    /// What kind of chain it is
    #[arg(long, value_enum, default_value_t = Kind::Ethereum)]
    pub(crate) chain: Kind,
    /// The chain's JSON-RPC address: http(s):// on Ethereum, ws(s):// on Substrate. On Ethereum
    /// several, separated by commas: the first that answers is asked
    #[arg(long, env = "TENURE_TX_RPC", hide_env_values = true, value_parser = secret)]
    pub(crate) rpc: Secret,
    /// A file with the account's private key, which other users cannot read: in hex, or on Substrate
    /// as a secret phrase or SURI
    #[arg(long, conflicts_with = "key_env")]
    pub(crate) key_file: Option<PathBuf>,
    /// The name of an environment variable with the account's private key, written likewise
    #[arg(long)]
    pub(crate) key_env: Option<String>,
    /// Substrate: how the key signs: sr25519, ecdsa or ethereum [default: ethereum where accounts have
    /// 20 bytes, else sr25519]
    #[arg(long, value_name = "SCHEME", conflicts_with = "signer_command", value_parser = scheme)]
    pub(crate) key_scheme: Option<Scheme>,
    /// Substrate: for how many blocks an extrinsic is valid, a power of two from 4 to 4096 [default: 64]
    #[arg(long, value_name = "BLOCKS", conflicts_with = "signer_command", value_parser = mortal)]
    pub(crate) mortal: Option<Period>,
    /// Substrate: the program that signs instead, with its arguments; see the guide for what it is asked
    #[arg(long, conflicts_with_all = ["key_file", "key_env"], value_parser = secret)]
    pub(crate) signer_command: Option<Secret>,
    /// The signing account, in SS58 or hex. --signer-command needs it; a key must be its key
    #[arg(long, env = "TENURE_TX_ACCOUNT", value_parser = account_of)]
    pub(crate) account: Option<AccountId>,
    /// While this node follows: a program, with its arguments, that brings its own data (files, roots) up
    /// to the leader's. Exit code 0 says that this node could lead; with any other, one that could is
    /// preferred. It is run again and again
    #[arg(long, value_name = "COMMAND", conflicts_with = "standalone", value_parser = secret)]
    pub(crate) sync_command: Option<Secret>,
    /// Where callers ask. There is no login: whatever program reaches this address spends the
    /// account's money
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0", value_parser = listener::address)]
    pub(crate) listen: SocketAddr,
    /// Serve /metrics and /health here: an address, or a port of this machine alone
    #[arg(long, value_name = "ADDR", value_parser = listener::address)]
    pub(crate) metrics: Option<SocketAddr>,
    /// The tip of a first attempt, per gas on Ethereum [default: 1gwei on Ethereum, 0 on Substrate]
    #[arg(long, value_name = "AMOUNT", value_parser = amount)]
    pub(crate) tip: Option<Amount>,
    /// The most it may ever tip
    #[arg(long, value_name = "AMOUNT", value_parser = amount)]
    pub(crate) max_tip: Option<Amount>,
    /// Ethereum: the most that is ever paid for a unit of gas, base fee and tip together, or none; a
    /// base fee above it is waited out [default: 50gwei]
    #[arg(long, value_name = "AMOUNT", value_parser = cap)]
    pub(crate) max_fee_per_gas: Option<Cap>,
    /// The most that is ever paid for one transaction, or none: for its gas on Ethereum; on Substrate
    /// fee and tip, in the chain's smallest unit [default: 0.01eth on Ethereum, none on Substrate]
    #[arg(long, value_name = "AMOUNT", value_parser = cap)]
    pub(crate) max_fee: Option<Cap>,
    /// When the lowest unmined nonce is sent again with a higher tip
    #[arg(long, default_value = "60s", value_parser = period)]
    pub(crate) stuck_after: Duration,
    /// When an unused nonce below others is filled with a no-op
    #[arg(long, default_value = "30s", value_parser = period)]
    pub(crate) gap_after: Duration,
    /// How often the chain is read
    #[arg(long, default_value = "1s", value_parser = period)]
    pub(crate) poll: Duration,
    /// How long the chain's nodes may all be silent before this node lets another one lead
    #[arg(long, value_name = "TIME", default_value = "15s", value_parser = period)]
    pub(crate) chain_lost_after: Duration,
    /// Ethereum: count a block as final after so many more, for chains without finality; at least 1
    #[arg(long, value_name = "BLOCKS", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) confirmations: Option<u64>,
    /// How long ended requests stay stored with their bytes
    #[arg(long, default_value = "1d", value_parser = period)]
    pub(crate) keep: Duration,
    /// How long a request's id and its end are remembered; after that the same id is a new request
    #[arg(long, default_value = "90d", value_parser = period)]
    pub(crate) keep_ids: Duration,
    /// Accept requests also where the database has standbys and no commit waits for one: a failover
    /// may forget what was accepted, and a retry would then pay twice
    #[arg(long, conflicts_with = "standalone")]
    pub(crate) accept_loss: bool,
    /// The lease: how long a frozen leader is waited for [default: TENURE_LEASE, the file's, or 3s]
    #[arg(long, value_parser = period, conflicts_with = "standalone")]
    pub(crate) lease: Option<Duration>,
}

/// What kind of chain a node works on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// HTTP JSON-RPC, EIP-1559; signs with a key of its own
    Ethereum,
    /// WebSocket JSON-RPC; signs as the chain's metadata says, or has a program sign
    Substrate,
}

impl Kind {
    /// The largest call. Ethereum's nodes take transactions of up to 128 KiB, and a call is text:
    /// two digits for each byte of its data.
    fn max_bytes(self) -> usize {
        match self {
            Kind::Ethereum => 260 << 10,
            Kind::Substrate => 4 << 20,
        }
    }
}

/// Chain and signer, as the arguments name them.
async fn chain(args: &NodeArgs) -> Result<(Arc<dyn Chain>, Arc<dyn Signer>), Failure> {
    match args.chain {
        Kind::Ethereum => {
            if args.key_scheme.is_some() || args.mortal.is_some() || args.signer_command.is_some() {
                return Err(Failure::usage(
                    "--key-scheme, --mortal and --signer-command are Substrate's; leave them out, or give \
                     --chain substrate",
                ));
            }
            for (option, cap) in
                [("--max-fee-per-gas", args.max_fee_per_gas), ("--max-fee", args.max_fee)]
            {
                if cap.and_then(Cap::most) == Some(0) {
                    return Err(Failure::usage(format!(
                        "{option} must be above zero: nothing would ever be sent; none lifts the cap"
                    )));
                }
            }
            let finality = args.confirmations.map_or(Finality::Tag, Finality::Confirmations);
            let usual = EthereumOptions::default();
            let options = EthereumOptions {
                poll: args.poll,
                finality,
                max_fee_per_gas: args.max_fee_per_gas.map_or(usual.max_fee_per_gas, Cap::most),
                max_fee: args.max_fee.map_or(usual.max_fee, Cap::most),
                ..usual
            };
            let chain = EthereumChain::with_endpoints(args.rpc.reveal().split(','), options)
                .map_err(wrong)?;
            // Before the chain is waited for: a bad key is known at once.
            let file = key_file(args)?;
            let key = |id| match (&file, &args.key_env) {
                (Some(text), _) => {
                    EthereumSigner::from_hex(text.reveal(), id, chain.fees()).map_err(wrong)
                }
                (None, Some(name)) => {
                    EthereumSigner::from_env(name, id, chain.fees()).map_err(wrong)
                }
                (None, None) => Err(Failure::usage("no key; give --key-file or --key-env")),
            };
            key(0)?;
            // The signature covers the chain's id: without it nothing can be signed.
            let signer = key(answered(async || chain.chain_id().await).await)?;
            Ok((Arc::new(chain), Arc::new(signer)))
        }
        Kind::Substrate => substrate(args).await,
    }
}

/// The key's text, read once: a pipe gives it only once.
fn key_file(args: &NodeArgs) -> Result<Option<Secret>, Failure> {
    let text = args.key_file.as_deref().map(read_key_file).transpose().map_err(wrong)?;
    Ok(text.map(Secret::new))
}

/// Waits for the chain: an account of another length is none of it. A chain whose metadata cannot be read is
/// the program's to know.
async fn fits(chain: &SubstrateChain, account: &AccountId) -> Result<(), Failure> {
    let length = answered(async || match chain.account_len().await {
        Err(ChainError::Unsupported(_)) => Ok(None),
        length => length.map(Some),
    });
    match length.await {
        Some(length) if length != account.as_bytes().len() => Err(Failure::usage(format!(
            "--account has {} bytes, and accounts of this chain have {length}; give the \
             address of this chain that --signer-command signs for",
            account.as_bytes().len()
        ))),
        _ => Ok(()),
    }
}

/// What belongs to the other kind of chain is an error, not ignored.
async fn substrate(args: &NodeArgs) -> Result<(Arc<dyn Chain>, Arc<dyn Signer>), Failure> {
    if args.confirmations.is_some() || args.max_fee_per_gas.is_some() {
        return Err(Failure::usage(
            "--confirmations and --max-fee-per-gas are Ethereum's; a Substrate chain has finality, \
             and --max-fee caps what an extrinsic costs",
        ));
    }
    // On Ethereum a comma separates addresses; here the whole would be one that nothing answers at.
    if args.rpc.reveal().contains(',') {
        return Err(Failure::usage(
            "--rpc has several addresses, and --chain substrate takes one; give each member a node of its \
             own, or the address of a balancer",
        ));
    }
    let limit = Duration::from_secs(5);
    let chain = SubstrateChain::new(args.rpc.reveal(), limit).map_err(wrong)?;
    if let Some(command) = &args.signer_command {
        if args.max_fee.is_some() {
            return Err(Failure::usage(
                "--max-fee is for a key of this node; what --signer-command signs, it caps itself",
            ));
        }
        let account = args.account.clone().ok_or_else(|| {
            Failure::usage("no account; give --account with the address --signer-command signs for")
        })?;
        let signer = CommandSigner::new(account.clone(), command.reveal()).map_err(wrong)?;
        fits(&chain, &account).await?;
        let signer = signer.encoding_for(&chain);
        return Ok((Arc::new(chain), Arc::new(signer)));
    }
    let file = key_file(args)?;
    let key = |scheme| match (&file, &args.key_env) {
        (Some(text), _) => Key::from_suri(text.reveal(), scheme).map_err(wrong),
        (None, Some(name)) => Key::from_env(name, scheme).map_err(wrong),
        (None, None) => Err(Failure::usage(
            "no key; give --key-file or --key-env, or a program that signs with --signer-command",
        )),
    };
    // Before the chain is waited for: a bad key is known at once.
    key(args.key_scheme.unwrap_or(Scheme::Sr25519))?;
    let scheme = loop {
        match chain.scheme(args.key_scheme).await {
            Ok(scheme) => break scheme,
            Err(error @ ChainError::Unsupported(_)) => return Err(wrong(error)),
            Err(error) => tracing::warn!(%error, "waiting for the chain's node"),
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    };
    let signer = SubstrateSigner::new(&chain, key(scheme)?)
        .mortal(args.mortal.unwrap_or_default())
        .max_fee(args.max_fee.and_then(Cap::most));
    Ok((Arc::new(chain), Arc::new(signer)))
}

fn scheme(text: &str) -> Result<Scheme, String> {
    text.parse().map_err(|_| "write sr25519, ecdsa or ethereum".to_owned())
}

fn mortal(text: &str) -> Result<Period, String> {
    let blocks = text.parse().ok().filter(|blocks| Period::new(*blocks).blocks() == *blocks);
    blocks.map(Period::new).ok_or_else(|| "write a power of two from 4 to 4096".to_owned())
}

/// The journal that was named, or the account's own in the user's data folder.
fn journal(named: Option<PathBuf>, account: &AccountId) -> Result<PathBuf, Failure> {
    let folder = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let data = || {
        let share = || folder("HOME").map(|home| PathBuf::from(home).join(".local/share"));
        folder("XDG_DATA_HOME").map(PathBuf::from).or_else(share)
    };
    let path = named.or_else(|| Some(data()?.join(format!("tenure/tx-{account}.journal"))));
    let path = path.ok_or_else(|| {
        Failure::usage("no place for the journal of a standalone node; name it with --journal")
    })?;
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(|error| {
            let folder = folder.display();
            Failure::failed(format!("{folder} cannot be made: {error}; name another --journal"))
        })?;
    }
    Ok(path)
}

/// What was typed cannot be used.
fn wrong(error: impl std::error::Error) -> Failure {
    Failure::usage(exit::chain(&error))
}

/// An amount of another kind of chain is a mistake of many powers of ten.
fn check_units(args: &NodeArgs) -> Result<(), Failure> {
    let most = |cap: Option<Cap>| match cap {
        Some(Cap::Most(amount)) => Some(amount),
        Some(Cap::None) | None => None,
    };
    let amounts = [
        ("--tip", args.tip),
        ("--max-tip", args.max_tip),
        ("--max-fee-per-gas", most(args.max_fee_per_gas)),
        ("--max-fee", most(args.max_fee)),
    ];
    for (option, amount) in amounts {
        if let Some(amount) = amount {
            amount.check(option, args.chain).map_err(Failure::usage)?;
        }
    }
    Ok(())
}

/// Times and bounds, checked: `lease` is that of the group.
fn options(args: &NodeArgs, lease: Option<Duration>) -> Result<ServiceOptions, Failure> {
    let max_tip = args.max_tip.map_or(u128::MAX, |tip| tip.smallest);
    let usual_tip = match args.chain {
        Kind::Ethereum => 1_000_000_000,
        Kind::Substrate => 0,
    };
    let options = ServiceOptions {
        max_bytes: args.chain.max_bytes(),
        engine: EngineConfig {
            stuck_after: args.stuck_after,
            gap_after: args.gap_after,
            min_tip_bump: 1_000_000,
            max_tip,
            ..EngineConfig::default()
        },
        head_every: args.poll,
        chain_lost_after: args.chain_lost_after,
        act: lease.unwrap_or_else(|| Lease::default().lease()) / 6,
        keep: args.keep,
        keep_ids: args.keep_ids,
        tip: args.tip.map_or(usual_tip.min(max_tip), |tip| tip.smallest),
        ..ServiceOptions::default()
    };
    options.check(lease).map_err(|error| {
        let option = match error.field {
            "head_every" => "--poll",
            "chain_lost_after" => "--chain-lost-after",
            "keep_ids" => "--keep-ids",
            "tip" => "--tip",
            "engine.stuck_after" => "--stuck-after",
            field => field,
        };
        let bound = error.bound.replace("engine.max_tip", "--max-tip").replace("keep", "--keep");
        Failure::usage(format!("{option} must be {bound}: {}", error.reason))
    })?;
    Ok(options)
}

/// The member's configuration, with its role, and the instance's name.
fn config(args: &NodeArgs, role: &str) -> Result<Config, Failure> {
    // Every effect carries the epoch or a nonce that is used once, so the next leader need not wait
    // for the last one's lease.
    let mut builder = setting::builder(&args.database)?
        .role(RoleSpec::named(role).policy(TakeoverPolicy::Fenced));
    if let Some(instance) = &args.instance {
        builder = builder.instance(instance.clone());
    }
    // What the environment and the file say of the timings counts unless the option says more.
    if let Some(lease) = args.lease {
        builder = builder.lease(lease);
    }
    Ok(builder.build()?)
}

/// The callers' address, bound and not yet listened to: one that is taken is known before this node
/// takes part, and no caller's question is left unread meanwhile.
fn reserve(address: SocketAddr) -> Result<TcpSocket, Failure> {
    if !address.ip().is_loopback() {
        tracing::warn!(
            %address,
            "THE CALLERS' ADDRESS IS NOT THIS MACHINE'S ALONE: there is no login, and whatever program \
             reaches it spends the account's money; keep it on a private network"
        );
    }
    let bound = || {
        let socket = match address {
            SocketAddr::V4(_) => TcpSocket::new_v4()?,
            SocketAddr::V6(_) => TcpSocket::new_v6()?,
        };
        // A restart must not wait for the last process's connections.
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        Ok::<_, io::Error>(socket)
    };
    bound().map_err(|error| taken(&error))
}

fn taken(error: &io::Error) -> Failure {
    Failure::failed(format!("the callers' address: {error}; choose another --listen"))
}

/// All that can be refused is looked at before this node takes part: a node that leads and then ends
/// over its own options would cost the group a change of leaders with each start.
pub(super) async fn run(args: NodeArgs) -> Result<Exit, Failure> {
    check_units(&args)?;
    // Clap takes a flag that is not given for one that is: `requires` would let it pass.
    if args.journal.is_some() && !args.standalone {
        return Err(Failure::usage(
            "--journal is a standalone node's; give --standalone, or leave it out: a group has its table",
        ));
    }
    let mut signals = Signals::listen()?;
    let lease = match args.standalone {
        true => None,
        // The account is not known yet, so this may be another role's name: the lease is the same.
        false => {
            let role = args.role.as_deref().unwrap_or("tx:");
            Some(config(&args, role)?.lease().lease())
        }
    };
    let options = options(&args, lease)?;
    let sync = args.sync_command.as_ref().map(|command| {
        SyncCommand::new(command.reveal())
            .ok_or_else(|| Failure::usage("--sync-command is empty; name a program"))
    });
    let sync = sync.transpose()?;
    let max_bytes = options.max_bytes;
    let listener = match args.metrics {
        Some(address) => {
            let listener = Listener::bind(address).await?;
            metrics::begin_at_zero();
            Some(listener)
        }
        None => None,
    };
    let socket = reserve(args.listen)?;
    // Both branches are cancel-safe: nothing is begun yet.
    let (chain, signer) = tokio::select! {
        made = chain(&args) => made?,
        () = signals.next() => return Ok(Exit::Clean),
    };
    let account = signer.account().clone();
    if let Some(named) = args.account.as_ref().filter(|named| **named != account) {
        return Err(Failure::usage(format!(
            "the key is of account {account}, and --account (or TENURE_TX_ACCOUNT) names {named}; \
             give that one's key, or unset the account"
        )));
    }
    let (member, mode) = if args.standalone {
        let journal = journal(args.journal.clone(), &account)?;
        (None, Mode::Standalone { journal })
    } else {
        if args.accept_loss {
            tracing::warn!(
                "--accept-loss: a failover of the database may forget accepted requests"
            );
        }
        let role = args.role.clone().unwrap_or_else(|| role_of(&account));
        let config = config(&args, &role)?;
        let identity = config.identity()?;
        let creator = identity.hostname(config.scope()).unwrap_or(identity.place()).to_owned();
        let mut options = StoreOptions::new(super::role(&role)?, account.clone(), creator);
        options.accept_loss = args.accept_loss;
        let store = store(&args.database, options).map_err(|failure| {
            let message = format!("{failure}; or send without a group: --standalone");
            Failure::new(failure.exit, message)
        })?;
        let member = Member::start(config).await?;
        let lock = member.lock(&role)?;
        lock.start().await?;
        (Some(member), Mode::group(&lock, store))
    };
    let mut builder = TransactionService::builder(mode, chain, signer).options(options);
    if let Some(sync) = sync {
        builder = builder.follower_sync(Arc::new(sync));
    }
    let service = match builder.start().await {
        Ok(service) => Arc::new(service),
        Err(error) => {
            // What the table refuses is known only now: the role is released, not left to its lease.
            if let Some(member) = member {
                let _ = member.shutdown(Some(Duration::from_secs(5))).await;
            }
            return Err(match error {
                ServiceError::Store(error) => Failure::from(error),
                other => Failure::usage(other.to_string()),
            });
        }
    };
    let socket = socket.listen(1024).map_err(|error| taken(&error))?;
    let mut listening = json!({"event": "listening", "address": socket.local_addr()?,
                               "account": account.to_string(), "standalone": args.standalone});
    if let Some(listener) = listener {
        listening["metrics"] = json!(listener.address());
        let service = Arc::clone(&service);
        listener.serve(move || health(Arc::clone(&service)));
    }
    out!("{listening}");
    let serving = tokio::spawn(callers::serve(socket, Arc::clone(&service), max_bytes));
    until_end(&service, signals.next()).await;
    // Callers first, then what is in flight, then the role.
    serving.abort();
    ended(&service, member).await
}

/// Tells how this node's leadership changes, until it is told to stop or can act no more.
async fn until_end(service: &TransactionService, stop: impl Future<Output = ()>) {
    let mut stop = std::pin::pin!(stop);
    let mut changes = service.leader_changes();
    // It may lead already, before anybody looked. A standalone node tells of no change.
    if changes.has_changed().is_ok() && changes.borrow().is_leader {
        changes.mark_changed();
    }
    let mut elected = true;
    loop {
        // All branches are cancel-safe: watches, and a future that is polled by reference.
        tokio::select! {
            changed = changes.changed(), if elected => {
                elected = changed.is_ok();
                let change = *changes.borrow_and_update();
                let epoch = change.epoch.filter(|_| change.is_leader).map(|epoch| epoch.get());
                let event = json!({"event": "leader_state_changed", "epoch": epoch,
                                   "is_leader": change.is_leader});
                out!("{event}");
            }
            () = service.broken() => return,
            () = &mut stop => return,
        }
    }
}

/// Ends what is in flight, gives the role back, and says why this node ended.
async fn ended(service: &TransactionService, member: Option<Member>) -> Result<Exit, Failure> {
    let drained = service.drain(Duration::from_secs(5)).await;
    let event = json!({"event": "drained", "complete": drained.complete,
                       "handed_over": drained.handed_over});
    out!("{event}");
    if let Some(member) = member {
        member.shutdown(Some(Duration::from_secs(5))).await?;
    }
    if service.is_broken() {
        return Err(Failure::failed(
            "the task that sends panicked; start this node again: what was accepted is stored",
        ));
    }
    Ok(Exit::Clean)
}

/// A node that cannot read the table, or its chain, is not well, whichever role it has.
async fn health(service: Arc<TransactionService>) -> Health {
    let stale = service.is_stale();
    let chain_lost = service.is_chain_lost();
    let broken = service.is_broken();
    let epoch = service.epoch().map(|epoch| epoch.get());
    Health {
        healthy: !stale && !chain_lost && !broken,
        details: json!({"role": service.role(), "standalone": service.role() == NodeRole::Standalone,
                        "epoch": epoch, "stale": stale, "chain_lost": chain_lost, "broken": broken}),
    }
}

/// Asks the chain's node until it answers. What it waits for is told when it changes, not every second.
async fn answered<T>(ask: impl AsyncFn() -> Result<T, ChainError>) -> T {
    let mut told = String::new();
    loop {
        match ask().await {
            Ok(answer) => return answer,
            Err(error) => {
                let error = error.to_string();
                if error != told {
                    tracing::warn!(%error, "waiting for the chain's node");
                    told = error;
                }
            }
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use bytes::Bytes;
    use tenure_tx::account::{SignError, Signed, Unsigned};
    use tenure_tx::chain::{ChainIdentity, Head, Inspected, Located, Sought, Submission};
    use tokio::time::timeout;

    use super::*;

    /// A chain whose code is wrong: whatever it is asked, it panics.
    struct Broken;

    #[async_trait]
    impl Chain for Broken {
        async fn head(&self, _: &AccountId) -> Result<Head, ChainError> {
            panic!("on purpose")
        }

        async fn identity(&self) -> Result<ChainIdentity, ChainError> {
            panic!("on purpose")
        }

        async fn submit(&self, _: &AccountId, _: u64, _: Bytes) -> Submission {
            panic!("on purpose")
        }

        async fn locate(&self, _: &AccountId, _: &[Sought]) -> Vec<Located> {
            panic!("on purpose")
        }

        fn inspect(&self, _: &[u8]) -> Result<Inspected, ChainError> {
            panic!("on purpose")
        }
    }

    struct Unused(AccountId);

    #[async_trait]
    impl Signer for Unused {
        fn account(&self) -> &AccountId {
            &self.0
        }

        async fn sign(&self, _: Unsigned<'_>) -> Result<Signed, SignError> {
            Err(SignError::Unavailable("nothing is signed here".to_owned()))
        }
    }

    #[tokio::test]
    async fn a_node_whose_task_panicked_ends_by_itself_with_code_1_and_says_so() {
        let folder = tempfile::tempdir().expect("a folder");
        let mode = Mode::Standalone { journal: folder.path().join("journal") };
        let signer = Unused(AccountId::new([7; 20]).expect("20 bytes"));
        let service = TransactionService::builder(mode, Arc::new(Broken), Arc::new(signer));
        let service = Arc::new(service.start().await.expect("starts"));
        let end = until_end(&service, std::future::pending());
        timeout(Duration::from_secs(20), end).await.expect("it ends, and no signal came");
        assert!(!health(Arc::clone(&service)).await.healthy);
        let failure = ended(&service, None).await.expect_err("not clean");
        assert_eq!(failure.exit.code(), 1);
        assert!(failure.to_string().contains("panicked; start this node again"), "{failure}");
    }
}
