//! `bench fence`: what the fence costs a transaction that inserts, with pgbench, in turns.
//!
//! The same transaction runs without a fence, with a statement that does nothing, with `select tenure.fence(…)`, and
//! with the fence as a value of the first insert; one after the other, round by round, so that a machine that is busy for a
//! while is busy for all. The empty statement is the floor of what a statement of its own can cost. Run it against a server with
//! `fsync` on and against one with it off: the second shows the fence, the first what a user notices.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use tenure::connect::Connector;
use tenure::connect::TlsOptions;
use tenure::connect::dsn::{Dsn, ProcessEnv};
use tokio::process::Command;

use super::Database;
use crate::say;

const TABLE: &str = "create table if not exists tenure_bench_fence (id bigserial primary key, v text, epoch bigint)";
const INSERT: &str = "insert into tenure_bench_fence (v, epoch) values ('x', 1);\n";

/// How to measure.
#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    #[command(flatten)]
    database: Database,
    /// How long each half of a round runs.
    #[arg(long, default_value = "3s", value_parser = crate::period)]
    pub(crate) seconds: Duration,
    /// How many rounds; the best of each half counts.
    #[arg(long, default_value_t = 3)]
    pub(crate) rounds: u32,
    /// The program pgbench.
    #[arg(long, default_value = "pgbench")]
    pub(crate) pgbench: String,
}

pub(crate) async fn run(args: BenchArgs) -> anyhow::Result<ExitCode> {
    let connector =
        Connector::new(&Dsn::parse(&args.database.dsn)?, TlsOptions::from_env(&ProcessEnv)?)?;
    let session = connector.connect("tenure bench", Duration::from_secs(5)).await?;
    let (client, connection) = (session.client, session.connection);
    let driver = tokio::spawn(connection);
    client.batch_execute(&tenure::schema::script()).await.context("tenure's schema")?;
    client.batch_execute(TABLE).await?;
    // No colon: pgbench would take what follows for a variable of its own.
    let role = format!("bench-{}", uuid::Uuid::new_v4());
    client
        .execute(
            "insert into tenure.role (name, key, policy, lease_ms, epoch) \
             values ($1, hashtextextended($1, 0), 'fenced', 3000, 1)",
            &[&role],
        )
        .await?;
    let measured = measure(&args, &role).await;
    client.execute("delete from tenure.role where name = $1", &[&role]).await?;
    client.batch_execute("drop table tenure_bench_fence").await?;
    driver.abort();
    measured?;
    Ok(ExitCode::SUCCESS)
}

async fn measure(args: &BenchArgs, role: &str) -> anyhow::Result<()> {
    let fence = format!("select tenure.fence('{role}', 1);\n");
    let fenced = INSERT.replace("1)", &format!("tenure.fence('{role}', 1))"));
    say("rows  clients  without/s   empty   fence  in the insert")?;
    for rows in [1, 10] {
        let (first, others) = (INSERT, INSERT.repeat(rows - 1));
        let scripts = [
            format!("begin;\n{first}{others}commit;\n"),
            format!("begin;\nselect 1;\n{first}{others}commit;\n"),
            format!("begin;\n{fence}{first}{others}commit;\n"),
            format!("begin;\n{fenced}{others}commit;\n"),
        ];
        for clients in [1, 8] {
            let mut best = [0.0_f64; 4];
            for _ in 0..args.rounds {
                for (best, script) in best.iter_mut().zip(&scripts) {
                    *best = best.max(pgbench(args, script, clients).await?);
                }
            }
            let [without, empty, fence, fenced] = best;
            let [empty, fence, fenced] = [empty, fence, fenced].map(|with| with / without);
            say(format!(
                "{rows:>4}  {clients:>7}  {without:>9.0}  {empty:>6.2}  {fence:>6.2}  {fenced:>13.2}"
            ))?;
        }
    }
    Ok(())
}

/// Transactions in a second.
async fn pgbench(args: &BenchArgs, script: &str, clients: u32) -> anyhow::Result<f64> {
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), script)?;
    let output = Command::new(&args.pgbench)
        .args(["--no-vacuum", "--protocol=prepared", "--jobs=1", "--file"])
        .arg(file.path())
        .arg(format!("--client={clients}"))
        .arg(format!("--time={}", args.seconds.as_secs().max(1)))
        .arg(&args.database.dsn)
        .output()
        .await
        .context("pgbench does not run; name it with --pgbench")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().find(|line| line.starts_with("tps = ")).with_context(|| {
        format!("pgbench said: {}", String::from_utf8_lossy(&output.stderr).trim())
    })?;
    let figure = line.split_whitespace().nth(2).and_then(|text| text.parse().ok());
    figure.context("a figure of pgbench")
}
