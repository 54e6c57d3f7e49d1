//! `bench tx`: how fast transactions are accepted, against what the database can do.
//!
//! Both halves run in the same database in the same run, in turns, so that a machine that is busy for
//! a while is busy for both. The raw half is the strongest simple client: as many sessions as
//! are in flight, a prepared single-row insert with its own commit on each, into a table of the same
//! payload that has a primary key and nothing else (no second index, no trigger, no fence). The other
//! half is the service with all it does: rows are signed, fenced, stored under four indexes and
//! announced, submitted to a chain that answers at once, and the answer is recorded; its clock stops
//! when the last one is submitted. Then 10,000 open rows are taken over.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use async_trait::async_trait;
use bytes::Bytes;
use clap::Args;
use futures_util::StreamExt as _;
use futures_util::stream;
use serde_json::json;
use tenure_core::clock::{BootClock, Tick};
use tenure_core::epoch::Epoch;
use tenure_core::gate::{GateKeeper, LeaderGate};
use tenure_core::identity::Identity;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_postgres::{Client, Statement};

use tenure::LeaderStateChanged;
use tenure::connect::Connector;
use tenure::connect::TlsOptions;
use tenure::connect::dsn::{Dsn, ProcessEnv};
use tenure_tx::account::{AccountId, SignError, Signed, Signer, Unsigned};
use tenure_tx::chain::{
    Chain, ChainError, ChainIdentity, Head, Inspected, Located, Sought, Submission,
};
use tenure_tx::election::Election;
use tenure_tx::engine::Attempt;
use tenure_tx::service::{Mode, SendRequest, ServiceOptions, TransactionService};
use tenure_tx::status::{Hash, TransactionStatus};
use tenure_tx::store::{NewTransaction, Store, StoreOptions};

use super::Database;
use crate::say;

/// How to measure.
#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    #[command(flatten)]
    database: Database,
    /// How long each half runs.
    #[arg(long, default_value = "5s", value_parser = crate::period)]
    pub(crate) seconds: Duration,
    /// How many are in flight.
    #[arg(long, default_value_t = 64)]
    pub(crate) in_flight: usize,
    /// How many open rows are taken over.
    #[arg(long, default_value_t = 10_000)]
    pub(crate) recover: u64,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// What was measured.
#[derive(Debug)]
struct Figures {
    raw: f64,
    accepted: f64,
    recovery: Duration,
}

pub(crate) async fn run(args: BenchArgs) -> anyhow::Result<ExitCode> {
    let account = AccountId::new(uuid::Uuid::new_v4().as_bytes().as_slice())?;
    let role = format!("bench:{account}");
    let connector =
        Connector::new(&Dsn::parse(&args.database.dsn)?, TlsOptions::from_env(&ProcessEnv)?)?;
    let options = StoreOptions::new(role.parse()?, account.clone(), "bench");
    let store = Store::new(connector.clone(), options);
    store.migrate().await?;
    let session = connector.connect("tenure bench", Duration::from_secs(5)).await?;
    let (client, connection) = (session.client, session.connection);
    let driver = tokio::spawn(connection);
    let fence: bool =
        client.query_one("select to_regproc('tenure.fence') is not null", &[]).await?.get(0);
    if !fence {
        client.batch_execute(&tenure::schema::script()).await.context("tenure's schema")?;
    }
    client
        .execute(
            "insert into tenure.role (name, key, policy, lease_ms, epoch) \
             values ($1, hashtextextended($1, 0), 'fenced', 3000, 1)",
            &[&role],
        )
        .await?;
    let measured = measure(&args, &connector, &store, &account).await;
    client.execute("delete from tenure.role where name = $1", &[&role]).await?;
    client
        // Not deleted row by row: the server would clean up behind this run beside the next one.
        .batch_execute(
            "truncate tenure_tx.pending_transactions, tenure_tx.account; \
             drop table if exists tenure_tx.bench_raw",
        )
        .await?;
    driver.abort();
    let Figures { raw, accepted, recovery } = measured?;
    let ratio = accepted / raw;
    if args.json {
        say(json!({
            "raw_inserts_per_s": raw.round(), "accepted_per_s": accepted.round(),
            "ratio": (ratio * 100.0).round() / 100.0,
            "in_flight": args.in_flight, "recovered_rows": args.recover,
            "recovery_ms": recovery.as_millis(),
        }))?;
    } else {
        say(format_args!("raw inserts        {raw:>10.0} /s   ({} in flight)", args.in_flight))?;
        say(format_args!(
            "accepted           {accepted:>10.0} /s   (signed, fenced, stored, submitted)"
        ))?;
        say(format_args!("accepted / raw     {ratio:>10.2}"))?;
        say(format_args!("recovery           {recovery:>10.0?}   ({} open rows)", args.recover))?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn measure(
    args: &BenchArgs,
    connector: &Connector,
    store: &Store,
    account: &AccountId,
) -> anyhow::Result<Figures> {
    let raw = Raw::open(args, connector).await?;
    let (_keeper, chain, service) = start(store, account, args.in_flight).await?;
    let service = Arc::new(service);
    service.recovered().await.context("the benchmark's node does not lead")?;
    let (mut inserts, mut accepts) = (Rate::default(), Rate::default());
    for _ in 0..TURNS {
        inserts.add(raw.turn(args.seconds / TURNS).await?);
        accepts.add(accept_turn(args, &service, &chain).await?);
    }
    drop(service);
    let recovery = recovery(args, store, account).await?;
    Ok(Figures { raw: inserts.per_second(), accepted: accepts.per_second(), recovery })
}

/// How often the halves take turns.
const TURNS: u32 = 5;

/// How much was done in how long.
#[derive(Debug, Default)]
struct Rate {
    count: u64,
    time: Duration,
}

impl Rate {
    fn add(&mut self, other: Rate) {
        self.count += other.count;
        self.time += other.time;
    }

    #[allow(clippy::cast_precision_loss, reason = "a rate")]
    fn per_second(&self) -> f64 {
        self.count as f64 / self.time.as_secs_f64()
    }
}

/// The raw half's sessions, with their statements.
struct Raw {
    sessions: Vec<Arc<(Client, Statement)>>,
    next: Arc<AtomicU64>,
}

impl Raw {
    async fn open(args: &BenchArgs, connector: &Connector) -> anyhow::Result<Self> {
        let mut sessions = Vec::new();
        for number in 0..args.in_flight {
            let session = connector.connect("tenure bench", Duration::from_secs(10)).await?;
            tokio::spawn(session.connection);
            if number == 0 {
                let create = "drop table if exists tenure_tx.bench_raw; \
                     create table tenure_tx.bench_raw (nonce bigint primary key, hash bytea, \
                     call bytea, raw bytea, state text, request text)";
                session.client.batch_execute(create).await?;
            }
            let insert = "insert into tenure_tx.bench_raw values ($1, $2, $3, $4, 'future', $5)";
            let insert = session.client.prepare(insert).await?;
            sessions.push(Arc::new((session.client, insert)));
        }
        Ok(Raw { sessions, next: Arc::default() })
    }

    async fn turn(&self, time: Duration) -> anyhow::Result<Rate> {
        let (started, first) = (Instant::now(), self.next.load(Ordering::Relaxed));
        let mut clients = tokio::task::JoinSet::new();
        for session in &self.sessions {
            let (session, next) = (Arc::clone(session), Arc::clone(&self.next));
            clients.spawn(async move {
                let (client, insert) = &*session;
                while started.elapsed() < time {
                    let nonce = next.fetch_add(1, Ordering::Relaxed);
                    let (nonce, id) = (i64::try_from(nonce).unwrap_or(i64::MAX), nonce.to_string());
                    let (hash, body) = ([7u8; 32].as_slice(), [7u8; 120].as_slice());
                    client.execute(insert, &[&nonce, &hash, &body, &body, &id]).await?;
                }
                Ok::<_, tokio_postgres::Error>(())
            });
        }
        while let Some(done) = clients.join_next().await {
            done??;
        }
        Ok(Rate { count: self.next.load(Ordering::Relaxed) - first, time: started.elapsed() })
    }
}

async fn accept_turn(
    args: &BenchArgs,
    service: &Arc<TransactionService>,
    chain: &NullChain,
) -> anyhow::Result<Rate> {
    let (started, time) = (Instant::now(), args.seconds / TURNS);
    let before = *chain.submitted.borrow();
    let mut senders = tokio::task::JoinSet::new();
    for _ in 0..args.in_flight {
        let service = Arc::clone(service);
        senders.spawn(async move {
            let mut accepted = 0u64;
            while started.elapsed() < time {
                service.send(SendRequest::call(Bytes::from_static(&[7; 120]))).await?;
                accepted += 1;
            }
            Ok::<_, tenure_tx::service::SendError>(accepted)
        });
    }
    let mut count = 0;
    while let Some(done) = senders.join_next().await {
        count += done??;
    }
    let mut submitted = chain.submitted.subscribe();
    let all = submitted.wait_for(|n| *n >= before + count);
    timeout(Duration::from_secs(10), all).await.context("accepted but not submitted")??;
    Ok(Rate { count, time: started.elapsed() })
}

/// Fills the table with open rows and takes them over, not counting the chain's answers.
async fn recovery(
    args: &BenchArgs,
    store: &Store,
    account: &AccountId,
) -> anyhow::Result<Duration> {
    let first = store.snapshot().await?.open.last().map_or(0, |row| row.nonce + 1);
    let there = u64::try_from(store.snapshot().await?.open.len()).unwrap_or(0);
    let missing: Vec<u64> = (first..first + args.recover.saturating_sub(there)).collect();
    for chunk in missing.chunks(500) {
        let rows: Vec<NewTransaction> = chunk
            .iter()
            .map(|&nonce| NewTransaction {
                nonce,
                attempt: Attempt { hash: hash_of(nonce), ..Attempt::default() },
                call: Some(Bytes::from_static(&[7; 120])),
                raw: Bytes::from_static(&[7; 120]),
                request_id: format!("recover-{nonce}"),
                deadline: None,
            })
            .collect();
        store.accept(Epoch(1), 0, &rows).await?;
    }
    let (_keeper, _, service) = start(store, account, args.in_flight).await?;
    service.recovered().await.context("the benchmark's node does not lead")
}

async fn start(
    store: &Store,
    account: &AccountId,
    in_flight: usize,
) -> anyhow::Result<(GateKeeper, Arc<NullChain>, TransactionService)> {
    let (mut keeper, gate) = LeaderGate::pair(Arc::new(BootClock), Identity::generate("bench")?);
    keeper.open(Epoch(1), Tick::MAX);
    let (changes, seen) = watch::channel(LeaderStateChanged::new(true, Some(Epoch(1))));
    drop(changes);
    let chain = Arc::new(NullChain::default());
    let election = Election::new(gate, seen, Duration::MAX, |_| ());
    let mode = Mode::Group { election, store: store.clone() };
    let signer = Arc::new(NullSigner(account.clone()));
    let mut options = ServiceOptions { in_flight, ..ServiceOptions::default() };
    options.engine.max_open = usize::MAX;
    // The gate shuts when its keeper goes.
    let service = TransactionService::builder(mode, chain.clone(), signer).options(options);
    Ok((keeper, chain, service.start().await?))
}

fn hash_of(nonce: u64) -> Hash {
    let mut bytes = [7; 32];
    bytes[..8].copy_from_slice(&nonce.to_be_bytes());
    Hash(bytes)
}

/// A chain that takes everything at once and never mines.
#[derive(Default)]
struct NullChain {
    submitted: watch::Sender<u64>,
}

#[async_trait]
impl Chain for NullChain {
    async fn head(&self, _: &AccountId) -> Result<Head, ChainError> {
        Ok(Head::default())
    }

    async fn submit(&self, _: &AccountId, _: u64, _: Bytes) -> Submission {
        self.submitted.send_modify(|count| *count += 1);
        let ready = stream::once(async { TransactionStatus::Ready.into() });
        Submission::watched(ready.chain(stream::pending()).boxed())
    }

    async fn identity(&self) -> Result<ChainIdentity, ChainError> {
        Ok(ChainIdentity { id: None, genesis: Hash([7; 32]) })
    }

    async fn locate(&self, _: &AccountId, sought: &[Sought]) -> Vec<Located> {
        vec![Located::Unknown; sought.len()]
    }

    fn inspect(&self, _: &[u8]) -> Result<Inspected, ChainError> {
        Err(ChainError::Malformed("this chain reads nothing".to_owned()))
    }
}

/// Signs with nothing: the benchmark is of the pipeline.
struct NullSigner(AccountId);

#[async_trait]
impl Signer for NullSigner {
    fn account(&self) -> &AccountId {
        &self.0
    }

    async fn sign(&self, unsigned: Unsigned<'_>) -> Result<Signed, SignError> {
        let raw = Bytes::from_static(&[7; 120]);
        Ok(Signed { raw, hash: hash_of(unsigned.nonce), valid_until: None, tip: None, bid: None })
    }
}
