//! `bench idle`: how many transactions members that only wait cost the database.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use tenure::Member;
use tenure::config::{Config, RoleSpec};
use tokio_postgres::NoTls;

use super::Database;
use crate::say;

/// What to measure.
#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    #[command(flatten)]
    database: Database,
    #[arg(long, default_value_t = 100)]
    members: usize,
    /// How long to count
    #[arg(long, default_value = "30s", value_parser = crate::period)]
    time: Duration,
}

pub(crate) async fn run(args: BenchArgs) -> anyhow::Result<ExitCode> {
    let mut members = Vec::new();
    for _ in 0..args.members {
        let config = Config::builder()
            .dsn(&args.database.dsn)
            .role(RoleSpec::named("bench:idle"))
            .build()?;
        let member = Member::start(config).await?;
        member.start_all().await?;
        members.push(member);
    }
    let (client, connection) = tokio_postgres::connect(&args.database.dsn, NoTls).await?;
    tokio::spawn(connection);
    // Until every ring, poll and back-off has found its pace, and the members that started when the group was small
    // have called their own channel for the first time: each call wakes every listener once.
    tokio::time::sleep(Duration::from_secs(35)).await;
    let count = async || -> anyhow::Result<i64> {
        let sql = "select pg_stat_clear_snapshot()::text, xact_commit + xact_rollback \
                   from pg_stat_database where datname = current_database()";
        Ok(client.query_one(sql, &[]).await?.get(1))
    };
    let before = count().await?;
    tokio::time::sleep(args.time).await;
    let transactions = count().await? - before;
    let each = transactions as f64 / args.time.as_secs_f64() / args.members as f64;
    say(format!(
        "{} members: {transactions} transactions in {:?}, {each:.2} per member and second \
         (wanted: at most 3)",
        args.members, args.time
    ))?;
    for member in members {
        member.shutdown(Some(Duration::from_secs(10))).await?;
    }
    Ok(ExitCode::SUCCESS)
}
