//! `tenure bench tx`: how fast transactions are accepted, against what the database can do.
//!
//! Both halves run in the same database in the same run: plain single-row inserts of the same rows
//! with as many in flight, one connection each; then the service, whose rows are signed, fenced,
//! stored and submitted to a chain that answers at once. Then 10,000 open rows are taken over.

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

use super::{DatabaseArgs, say};
use crate::account::{AccountId, SignError, Signed, Signer, Unsigned};
use crate::chain::{Chain, ChainError, Head, Inspected, Located, Submission};
use crate::leadership::Leadership;
use crate::manager::Attempt;
use crate::service::{Parts, SendRequest, ServiceOptions, TransactionService};
use crate::status::{Hash, TransactionStatus};
use crate::store::{NewTransaction, Store};

/// `tenure bench tx`
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// The database. Its tables of this benchmark's account are emptied afterwards.
    #[command(flatten)]
    pub database: DatabaseArgs,
    /// How long each half runs.
    #[arg(long, default_value = "5s", value_parser = humantime::parse_duration)]
    pub seconds: Duration,
    /// How many are in flight.
    #[arg(long, default_value_t = 64)]
    pub in_flight: usize,
    /// How many open rows are taken over.
    #[arg(long, default_value_t = 10_000)]
    pub recover: u64,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// What was measured.
#[derive(Debug)]
struct Figures {
    raw: f64,
    accepted: f64,
    submitted: f64,
    recovery: Duration,
}

pub(super) async fn run(args: BenchArgs) -> anyhow::Result<ExitCode> {
    let account = AccountId::new(uuid::Uuid::new_v4().as_bytes().as_slice())?;
    let role = format!("bench:{account}");
    let database = DatabaseArgs { role: Some(role.clone()), ..args.database.clone() };
    let store = database.store(account.clone(), "bench")?;
    store.migrate().await?;
    let session = database.connector()?.connect("tenure bench", Duration::from_secs(5)).await?;
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
    let measured = measure(&args, &database, &store, &account).await;
    client.execute("delete from tenure.role where name = $1", &[&role]).await?;
    client
        .batch_execute(&format!(
            "delete from tenure_tx.pending_transactions where account_id = '\\x{}'; \
             drop table if exists tenure_tx.bench_raw",
            crate::status::hex(account.as_bytes())
        ))
        .await?;
    driver.abort();
    let Figures { raw, accepted, submitted, recovery } = measured?;
    let ratio = accepted / raw;
    if args.json {
        say(json!({
            "raw_inserts_per_s": raw.round(), "accepted_per_s": accepted.round(),
            "submitted_per_s": submitted.round(), "ratio": (ratio * 100.0).round() / 100.0,
            "in_flight": args.in_flight, "recovered_rows": args.recover,
            "recovery_ms": recovery.as_millis(),
        }))?;
    } else {
        say(format_args!("raw inserts        {raw:>10.0} /s   ({} in flight)", args.in_flight))?;
        say(format_args!("accepted           {accepted:>10.0} /s   (signed, fenced, stored)"))?;
        say(format_args!("submitted          {submitted:>10.0} /s"))?;
        say(format_args!("accepted / raw     {ratio:>10.2}"))?;
        say(format_args!("recovery           {recovery:>10.0?}   ({} open rows)", args.recover))?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn measure(
    args: &BenchArgs,
    database: &DatabaseArgs,
    store: &Store,
    account: &AccountId,
) -> anyhow::Result<Figures> {
    let raw = raw_inserts(args, database).await?;
    let (accepted, submitted) = service_rate(args, store, account).await?;
    let recovery = recovery(args, store, account).await?;
    Ok(Figures { raw, accepted, submitted, recovery })
}

/// Single-row inserts of rows as large as ours, one connection per insert in flight.
async fn raw_inserts(args: &BenchArgs, database: &DatabaseArgs) -> anyhow::Result<f64> {
    let connector = database.connector()?;
    let open = async || -> anyhow::Result<_> {
        let session = connector.connect("tenure bench", Duration::from_secs(10)).await?;
        tokio::spawn(session.connection);
        Ok(session.client)
    };
    let first = open().await?;
    first
        .batch_execute(
            "drop table if exists tenure_tx.bench_raw; create table tenure_tx.bench_raw \
             (nonce bigint primary key, hash bytea, call bytea, raw bytea, state text, request text)",
        )
        .await?;
    let next = Arc::new(AtomicU64::new(0));
    let started = Instant::now();
    let until = started + args.seconds;
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..args.in_flight {
        let (client, next) = (open().await?, Arc::clone(&next));
        clients.spawn(async move {
            let insert = "insert into tenure_tx.bench_raw values ($1, $2, $3, $4, 'future', $5)";
            let insert = client.prepare(insert).await?;
            while Instant::now() < until {
                let nonce = next.fetch_add(1, Ordering::Relaxed);
                let (nonce, id) = (i64::try_from(nonce).unwrap_or(i64::MAX), nonce.to_string());
                let (hash, body) = ([7u8; 32].as_slice(), [7u8; 120].as_slice());
                client.execute(&insert, &[&nonce, &hash, &body, &body, &id]).await?;
            }
            Ok::<_, tokio_postgres::Error>(())
        });
    }
    while let Some(done) = clients.join_next().await {
        done??;
    }
    #[allow(clippy::cast_precision_loss, reason = "a rate")]
    Ok(next.load(Ordering::Relaxed) as f64 / started.elapsed().as_secs_f64())
}

async fn service_rate(
    args: &BenchArgs,
    store: &Store,
    account: &AccountId,
) -> anyhow::Result<(f64, f64)> {
    let (_keeper, chain, service) = start(store, account, args.in_flight).await?;
    let service = Arc::new(service);
    service.recovered().await.context("the benchmark's node does not lead")?;
    let started = Instant::now();
    let until = started + args.seconds;
    let mut senders = tokio::task::JoinSet::new();
    for _ in 0..args.in_flight {
        let service = Arc::clone(&service);
        senders.spawn(async move {
            let mut accepted = 0u64;
            while Instant::now() < until {
                service.send(SendRequest::call(Bytes::from_static(&[7; 120]))).await?;
                accepted += 1;
            }
            Ok::<_, crate::service::SendError>(accepted)
        });
    }
    let mut accepted = 0;
    while let Some(done) = senders.join_next().await {
        accepted += done??;
    }
    let elapsed = started.elapsed().as_secs_f64();
    let submitted = chain.submitted.load(Ordering::Relaxed);
    #[allow(clippy::cast_precision_loss, reason = "a rate")]
    Ok((accepted as f64 / elapsed, submitted as f64 / elapsed))
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
                attempt: Attempt { hash: hash_of(nonce), tip: 0, noop: false, valid_until: None },
                call: Some(Bytes::from_static(&[7; 120])),
                raw: Bytes::from_static(&[7; 120]),
                request_id: format!("recover-{nonce}"),
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
    let (changes, seen) = watch::channel(Some(Epoch(1)));
    drop(changes);
    let chain = Arc::new(NullChain::default());
    let parts = Parts {
        leadership: Leadership::new(gate, seen, |_| ()),
        store: Some(store.clone()),
        chain: Arc::clone(&chain) as Arc<dyn Chain>,
        signer: Arc::new(NullSigner(account.clone())),
        follower_sync: None,
    };
    let mut options = ServiceOptions { in_flight, ..ServiceOptions::default() };
    options.manager.max_open = usize::MAX;
    // The gate shuts when its keeper goes.
    Ok((keeper, chain, TransactionService::start(parts, options).await?))
}

fn hash_of(nonce: u64) -> Hash {
    let mut bytes = [7; 32];
    bytes[..8].copy_from_slice(&nonce.to_be_bytes());
    Hash(bytes)
}

/// A chain that takes everything at once and never mines.
#[derive(Default)]
struct NullChain {
    submitted: AtomicU64,
}

#[async_trait]
impl Chain for NullChain {
    async fn head(&self, _: &AccountId) -> Result<Head, ChainError> {
        Ok(Head::default())
    }

    async fn submit(&self, _: &AccountId, _: u64, _: Bytes) -> Submission {
        self.submitted.fetch_add(1, Ordering::Relaxed);
        let ready = stream::once(async { TransactionStatus::Ready });
        Submission::watched(ready.chain(stream::pending()).boxed())
    }

    async fn locate(&self, _: &AccountId, _: u64, _: &[Hash], _: u64) -> Located {
        Located::Unknown
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
        Ok(Signed { raw, hash: hash_of(unsigned.nonce), valid_until: None })
    }
}
