//! A storage provider as a group: one instance acts, the others are ready to.
//!
//! The provider's instances share its key, a database and nothing else. Start this three times, kill
//! any of them:
//!
//! ```sh
//! export PROVIDER_KEY=0x5fb92d6e98884f76de468fa3f6278f8807c48bebc13595d45af5bdc4da702133
//! cargo run -p tenure-tx --features ethereum,substrate --example storagehub -- \
//!     postgres://localhost/app ws://127.0.0.1:9944 msp 0x2e…01 /srv/files-a
//! ```
//!
//! with `standalone:/srv/journal` instead of the database for a provider that has one instance only.
//! What a real provider would do with proofs and files is a line each here: a proof is a remark, and
//! files are copied from a folder that all instances see.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use serde_json::json;
use tenure::config::{Config, RoleSpec};
use tenure::{Member, TakeoverPolicy};
use tenure_connect::{Connector, Dsn, TlsOptions};
use tenure_tx::chain::substrate::{Key, SubstrateCall, SubstrateChain, SubstrateSigner};
use tenure_tx::{
    AccountId, Chain as _, EventBus, FollowerSync, Mode, NodeRole, Readiness, SendError,
    SendRequest, ServiceOptions, Signer as _, Store, StoreError, StoreOptions, TransactionService,
};
use tokio::sync::broadcast::Receiver;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Every how many final blocks a proof is due.
const PROOF_EVERY: u64 = 5;

/// How many proofs that fell due while no instance led are sent late. A real provider asks the chain which
/// of its proofs are still accepted.
const OWED: u64 = 100;

/// How often the chain is read, and a proof that was not accepted is sent again.
const PAUSE: Duration = Duration::from_millis(200);

/// How long an instance that ends waits for what it has begun.
const DRAIN: Duration = Duration::from_secs(5);

/// What happens on the chain, as this provider's parts hear it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Event {
    /// A block is final: every instance brings its own state up.
    Finalized(u64),
    /// A proof is due: the leader alone sends it.
    ProofDue(u64),
}

/// A provider's instance.
pub(crate) struct Instance {
    /// A connection string, or `standalone:` and the journal's path.
    pub(crate) database: String,
    pub(crate) rpc: String,
    /// `msp` or `bsp`.
    pub(crate) kind: String,
    /// The provider's id, which its instances share.
    pub(crate) provider: String,
    /// This instance's name, unlike those of the others.
    pub(crate) name: String,
    /// The provider's key (SURI).
    pub(crate) key: String,
    /// Where the provider's files are, and this instance's own copy.
    pub(crate) files: (PathBuf, PathBuf),
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let log = tracing_subscriber::EnvFilter::try_from_default_env();
    let log = log.unwrap_or_else(|_| "info".into());
    tracing_subscriber::fmt().with_env_filter(log).with_writer(std::io::stderr).init();
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [database, rpc, kind, provider, own] = &words[..] else {
        return Err(
            "give the database, the chain's node, msp or bsp, the provider's id and a folder"
                .into(),
        );
    };
    let key = std::env::var("PROVIDER_KEY").map_err(|_| "set PROVIDER_KEY to the key")?;
    let instance = Instance {
        database: database.clone(),
        rpc: rpc.clone(),
        kind: kind.clone(),
        provider: provider.clone(),
        name: own.clone(),
        key,
        files: (PathBuf::from("/srv/files"), PathBuf::from(own)),
    };
    serve(instance, async { drop(tokio::signal::ctrl_c().await) }).await
}

/// Runs until it is told to stop, or cannot go on. A leader that stops drains, and then hands over.
pub(crate) async fn serve(
    instance: Instance,
    stop: impl Future<Output = ()>,
) -> Result<(), Failure> {
    let chain = SubstrateChain::new(&instance.rpc, Duration::from_secs(5))?;
    // Ethereum's accounts or others: the chain's metadata says which, and the key must fit.
    let key = Key::from_suri(&instance.key, chain.scheme(None).await?)?;
    let signer = SubstrateSigner::new(&chain, key);
    let account = signer.account().clone();

    let (member, mode) = mode(&instance, &chain, &account).await?;
    let service = TransactionService::builder(mode, Arc::new(chain.clone()), Arc::new(signer))
        .options(ServiceOptions { tip: 0, ..ServiceOptions::default() })
        .follower_sync(Arc::new(Files(instance.files)))
        .start()
        .await?;

    // Everything that acts hears of tasks, which a follower never emits; what only reads hears of news.
    let bus = EventBus::new(service.gate(), 64);
    // Cancel-safe: each of the five is dropped only with this whole instance.
    let ended = tokio::select! {
        ended = prove(&service, bus.tasks()) => ended,
        ended = follow(bus.news()) => ended,
        ended = read(&chain, &account, &service, &bus) => ended,
        ended = tell(&service) => ended,
        () = stop => Ok(()),
    };
    // The gate is shut last: what was begun is finished, and the next leader finds the rest in the table.
    let drained = service.shutdown(DRAIN).await;
    tracing::info!(open = drained.handed_over, complete = drained.complete, "drained");
    if let Some(member) = member {
        member.shutdown(Some(DRAIN)).await?;
    }
    ended
}

/// A group on its database, or by explicit choice a single instance with a journal. A group whose
/// database is away waits: it never becomes standalone.
async fn mode(
    instance: &Instance,
    chain: &SubstrateChain,
    account: &AccountId,
) -> Result<(Option<Member>, Mode), Failure> {
    if let Some(journal) = instance.database.strip_prefix("standalone:") {
        return Ok((None, Mode::Standalone { journal: PathBuf::from(journal) }));
    }
    let role = role(instance, chain).await?;
    let config = Config::builder()
        .dsn(instance.database.clone())
        .instance(instance.name.clone())
        .role(RoleSpec::named(&role).policy(TakeoverPolicy::Fenced))
        .build()?;
    let member = Member::start(config).await?;
    let lock = member.lock(&role)?;
    lock.start().await?;
    let connector = Connector::new(&Dsn::parse(&instance.database)?, TlsOptions::new())?;
    let options = StoreOptions::new(lock.role().clone(), account.clone(), instance.name.clone());
    Ok((Some(member), Mode::group(&lock, Store::new(connector, options))))
}

/// One role per network, provider and kind: neither the same id on another network nor an MSP and a BSP of
/// one id share it. The network is named by the first bytes of its first block's hash.
async fn role(instance: &Instance, chain: &SubstrateChain) -> Result<String, Failure> {
    let (provider, kind) = (&instance.provider, &instance.kind);
    if !matches!(kind.as_str(), "msp" | "bsp") {
        return Err(format!("a provider is an msp or a bsp, not {kind}").into());
    }
    let genesis = chain.identity().await?.genesis.to_string();
    Ok(format!("storagehub:{}:{provider}:{kind}", &genesis[..10]))
}

/// Reads the chain, on every instance. One that has become the leader also finds what fell due while no
/// instance led.
pub(crate) async fn read(
    chain: &SubstrateChain,
    account: &AccountId,
    service: &TransactionService,
    bus: &EventBus<Event>,
) -> Result<(), Failure> {
    let mut changes = service.leader_changes();
    let (mut seen, mut caught_up): (Option<u64>, bool) = (None, false);
    loop {
        // Also where it leads again: in between, tasks were dropped.
        caught_up &= !changes.has_changed().unwrap_or(false);
        changes.borrow_and_update();
        let leads = service.role() != NodeRole::Follower;
        if let Ok(head) = chain.head(account).await {
            let last = head.finalized.number;
            let new = seen.map_or(last, |seen| seen + 1)..=last;
            new.clone().for_each(|number| bus.inform(Event::Finalized(number)));
            seen = Some(last);
            let due = if leads && !caught_up {
                // A table that cannot be read is read at the next look.
                owed(service, last).await.inspect(|_| caught_up = true).unwrap_or_default()
            } else {
                new.filter(|number| number.is_multiple_of(PROOF_EVERY)).collect()
            };
            for number in due {
                bus.trigger(Event::ProofDue(number));
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// The proofs that fell due after the last one that was accepted. A provider that never sent one begins
/// with the newest.
async fn owed(service: &TransactionService, last: u64) -> Result<Vec<u64>, StoreError> {
    let newest = last - last % PROOF_EVERY;
    let mut owed = Vec::new();
    for number in (0..OWED).map_while(|back| newest.checked_sub(back * PROOF_EVERY)) {
        if service.find(&id(number)).await?.is_some() {
            owed.reverse();
            return Ok(owed);
        }
        owed.extend(Some(number).filter(|number| *number > 0));
    }
    owed.truncate(1);
    Ok(owed)
}

/// A proof is named by its block: whoever hears of it again, it is sent once.
fn id(number: u64) -> String {
    format!("proof-{number}")
}

/// Sends the proofs that are due.
pub(crate) async fn prove(
    service: &TransactionService,
    mut tasks: Receiver<Event>,
) -> Result<(), Failure> {
    let mut proofs = FuturesUnordered::new();
    loop {
        // Both branches are cancel-safe: a channel and a stream.
        tokio::select! {
            // A receiver that lagged goes on with the next one; the bus lives as long as this task.
            task = tasks.recv() => {
                if let Ok(Event::ProofDue(number)) = task {
                    proofs.push(prove_one(service, number));
                }
            }
            Some(()) = proofs.next() => {}
        }
    }
}

/// Sends one proof until it is accepted, or until this instance leads no more: the next leader finds that
/// it is owed.
async fn prove_one(service: &TransactionService, number: u64) {
    let proof = format!("0x{}", hex::encode(format!("proof {number}")));
    let call = SubstrateCall {
        pallet: "System".to_owned(),
        call: "remark".to_owned(),
        args: json!({"remark": proof}),
    };
    loop {
        let request = SendRequest::call(call.encode()).with_id(id(number));
        match service.send(request).await {
            Ok(handle) => {
                tracing::info!(number, nonce = handle.nonce, "the proof was accepted");
                return;
            }
            Err(SendError::NotLeader | SendError::Draining | SendError::Stopped) => return,
            // The database, the chain's node or the fee: its id makes it harmless to ask again.
            Err(error) => tracing::warn!(number, %error, "the proof was not accepted yet"),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Keeps this instance's own view of the chain, leader or not.
async fn follow(mut news: Receiver<Event>) -> Result<(), Failure> {
    loop {
        if let Ok(Event::Finalized(number)) = news.recv().await {
            tracing::debug!(number, "the forest is brought up to this block");
        }
    }
}

/// Tells its operator what part this instance has, and on every instance what becomes of the proofs.
async fn tell(service: &TransactionService) -> Result<(), Failure> {
    let (mut changes, mut statuses) = (service.leader_changes(), service.statuses());
    changes.mark_changed();
    loop {
        // Both branches are cancel-safe: a watch and a channel.
        tokio::select! {
            Ok(()) = changes.changed() => {
                let now = *changes.borrow_and_update();
                let epoch = now.epoch.map(|epoch| epoch.to_string());
                tracing::info!(role = %service.role(), is_leader = now.is_leader, epoch, "LeaderStateChanged");
            }
            // A receiver that lagged goes on with the next one.
            status = statuses.recv() => {
                if let Ok(row) = status {
                    let (id, state) = (&row.request_id, row.status.state());
                    tracing::info!(role = %service.role(), id, %state, "status");
                }
            }
        }
    }
}

/// The provider's files, and this instance's copy of them.
struct Files((PathBuf, PathBuf));

#[async_trait]
impl FollowerSync for Files {
    async fn sync(&self) -> Readiness {
        let (all, own) = &self.0;
        match copy_one(all, own) {
            Ok(None) => Readiness::Ready,
            Ok(Some(name)) => Readiness::Behind(format!("{name} was missing")),
            Err(error) => Readiness::Behind(format!("the files cannot be read: {error}")),
        }
    }
}

/// Copies one file that is missing, and names it.
fn copy_one(all: &Path, own: &Path) -> std::io::Result<Option<String>> {
    std::fs::create_dir_all(own)?;
    for entry in std::fs::read_dir(all)? {
        let (path, name) = entry.map(|entry| (entry.path(), entry.file_name()))?;
        if !own.join(&name).exists() {
            // Whole or not at all: a file that is half there would pass for the file.
            let half = own.join(".half");
            std::fs::copy(&path, &half)?;
            std::fs::rename(&half, own.join(&name))?;
            return Ok(Some(name.to_string_lossy().into_owned()));
        }
    }
    Ok(None)
}
