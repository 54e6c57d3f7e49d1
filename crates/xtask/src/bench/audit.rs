//! `bench audit`: how long an audit of many terms takes, and how old its oldest snapshot is.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::ensure;
use clap::Args;
use tenure::config::Config;
use tenure::operate::Operator;
use tokio_postgres::NoTls;

use super::Database;
use crate::say;

/// How often the audit's session is looked at.
const LOOK: Duration = Duration::from_millis(20);

/// What to measure.
#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    #[command(flatten)]
    database: Database,
    /// Of two roles together
    #[arg(long, default_value_t = 1_000_000)]
    terms: u32,
}

pub(crate) async fn run(args: BenchArgs) -> anyhow::Result<ExitCode> {
    let operator = Operator::connect(&Config::builder().dsn(&args.database.dsn).build()?).await?;
    operator.migrate().await?;
    let (client, connection) = tokio_postgres::connect(&args.database.dsn, NoTls).await?;
    tokio::spawn(connection);
    client
        .batch_execute(&format!(
            "truncate tenure.term; \
             insert into tenure.term (role, epoch, member, claimed_at, acting_at, ended_at, how) \
             select r, e, 'm', at, at, at + interval '1 second', 'released' \
             from unnest(array['a', 'b']) r, generate_series(1, {}) e, \
                 lateral (select timestamptz '2020-01-01' + e * interval '1 second' as at) t; \
             analyze tenure.term",
            args.terms / 2
        ))
        .await?;
    let begun = Instant::now();
    let audit = operator.audit(None);
    tokio::pin!(audit);
    let sql = "select coalesce(max(extract(epoch from clock_timestamp() - query_start)), 0)::float8 \
               from pg_stat_activity where application_name = 'tenure operator' \
               and datname = current_database() and backend_xmin is not null";
    let mut oldest = 0.0_f64;
    let audit = loop {
        tokio::select! {
            audit = &mut audit => break audit?,
            () = tokio::time::sleep(LOOK) => {
                oldest = oldest.max(client.query_one(sql, &[]).await?.get(0));
            }
        }
    };
    say(format!(
        "{} terms: {:.1} s (wanted: at most 60), the oldest snapshot {oldest:.2} s (wanted: at most 1)",
        audit.terms,
        begun.elapsed().as_secs_f64()
    ))?;
    ensure!(audit.violations.is_empty(), "terms that are sound break a promise");
    Ok(ExitCode::SUCCESS)
}
