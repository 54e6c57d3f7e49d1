//! A storage provider as a group: one instance acts, the others are ready to.
//!
//! The provider's instances share its key, a database and nothing else. Start this three times, kill
//! any of them:
//!
//! ```sh
//! export PROVIDER_KEY=0x5fb92d6e98884f76de468fa3f6278f8807c48bebc13595d45af5bdc4da702133
//! cargo run -p tenure-tx --features ethereum,substrate --example storagehub -- \
//!     postgres://localhost/app ws://127.0.0.1:9944 0x2e…01 /srv/files-a
//! ```
//!
//! with `standalone:/srv/journal` instead of the database for a provider that has one instance only.
//! What a real provider would do with proofs and files is a line each here: a proof is a remark, and
//! files are copied from a folder that all instances see.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::json;
use tenure::config::{Config, RoleSpec};
use tenure::{Member, TakeoverPolicy};
use tenure_connect::{Connector, Dsn, TlsOptions};
use tenure_tx::chain::substrate::{Key, SubstrateCall, SubstrateChain, SubstrateSigner};
use tenure_tx::{
    AccountId, Chain as _, EventBus, FollowerSync, Mode, Readiness, SendError, SendRequest,
    ServiceOptions, Signer as _, Store, StoreOptions, TransactionService,
};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Every how many final blocks a proof is due.
const PROOF_EVERY: u64 = 5;

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
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [database, rpc, provider, own] = &words[..] else {
        return Err("give the database, the chain's node, the provider's id and a folder".into());
    };
    let key = std::env::var("PROVIDER_KEY").map_err(|_| "set PROVIDER_KEY to the key")?;
    serve(Instance {
        database: database.clone(),
        rpc: rpc.clone(),
        provider: provider.clone(),
        name: own.clone(),
        key,
        files: (PathBuf::from("/srv/files"), PathBuf::from(own)),
    })
    .await
}

/// Runs until it is dropped, or cannot go on.
pub(crate) async fn serve(instance: Instance) -> Result<(), Failure> {
    let chain = SubstrateChain::new(&instance.rpc, Duration::from_secs(5))?;
    // Ethereum's accounts or others: the chain's metadata says which, and the key must fit.
    let key = Key::from_suri(&instance.key, chain.scheme(None).await?)?;
    let signer = SubstrateSigner::new(&chain, key);
    let account = signer.account().clone();

    // One role per provider, so that a provider's id is all that its instances must agree on. The
    // member is kept: with it the leadership would end.
    let (_member, mode) = mode(&instance, &account).await?;
    let service = TransactionService::builder(mode, Arc::new(chain.clone()), Arc::new(signer))
        .options(ServiceOptions { tip: 0, ..ServiceOptions::default() })
        .follower_sync(Arc::new(Files(instance.files)))
        .start()
        .await?;

    // Everything that acts hears of tasks, which a follower never emits; what only reads hears of news.
    let bus = EventBus::new(service.gate(), 64);
    let proofs = prove(&service, bus.tasks());
    let forest = follow(bus.news());
    let reader = read(&chain, &account, &bus);
    // Cancel-safe: each of the three is dropped only with this whole instance.
    tokio::select! {
        ended = proofs => ended,
        ended = forest => ended,
        ended = reader => ended,
    }
}

/// A group on its database, or by explicit choice a single instance with a journal. A group whose
/// database is away waits: it never becomes standalone.
async fn mode(instance: &Instance, account: &AccountId) -> Result<(Option<Member>, Mode), Failure> {
    if let Some(journal) = instance.database.strip_prefix("standalone:") {
        return Ok((None, Mode::Standalone { journal: PathBuf::from(journal) }));
    }
    let role = format!("storagehub:{}", instance.provider);
    let config = Config::builder()
        .dsn(instance.database.clone())
        .instance(instance.name.clone())
        .role(RoleSpec::named(&role).policy(TakeoverPolicy::Fenced))
        .build()?;
    let member = Member::start(config).await?;
    let lock = member.lock(&role)?;
    lock.start().await?;
    let connector = Connector::new(&Dsn::parse(&instance.database)?, TlsOptions::new())?;
    let options = StoreOptions::new(role, account.clone(), instance.name.clone());
    Ok((Some(member), Mode::group(&lock, Store::new(connector, options))))
}

/// Reads the chain, on every instance.
async fn read(
    chain: &SubstrateChain,
    account: &AccountId,
    bus: &EventBus<Event>,
) -> Result<(), Failure> {
    let mut seen = None;
    loop {
        if let Ok(head) = chain.head(account).await {
            let last = head.finalized.number;
            for number in seen.map_or(last, |seen: u64| seen + 1)..=last {
                bus.inform(Event::Finalized(number));
                if number.is_multiple_of(PROOF_EVERY) {
                    bus.trigger(Event::ProofDue(number));
                }
            }
            seen = Some(last);
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Sends the proofs that are due. A proof is named by its block: after a takeover the new leader may hear of
/// the same one again, and it is sent once.
async fn prove(
    service: &TransactionService,
    mut tasks: tokio::sync::broadcast::Receiver<Event>,
) -> Result<(), Failure> {
    loop {
        // A receiver that lagged goes on with the next one; the bus lives as long as this task.
        let Ok(Event::ProofDue(number)) = tasks.recv().await else { continue };
        let proof = format!("0x{}", hex::encode(format!("proof {number}")));
        let call = SubstrateCall {
            pallet: "System".to_owned(),
            call: "remark".to_owned(),
            args: json!({"remark": proof}),
        };
        match service
            .send(SendRequest::call(call.encode()).with_id(format!("proof-{number}")))
            .await
        {
            Ok(_) | Err(SendError::NotLeader) => {}
            Err(error) => tracing::warn!(number, %error, "the proof was not accepted"),
        }
    }
}

/// Keeps this instance's own view of the chain, leader or not.
async fn follow(mut news: tokio::sync::broadcast::Receiver<Event>) -> Result<(), Failure> {
    loop {
        if let Ok(Event::Finalized(number)) = news.recv().await {
            tracing::debug!(number, "the forest is brought up to this block");
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
