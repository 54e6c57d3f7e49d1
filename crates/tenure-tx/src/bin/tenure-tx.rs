//! `tenure-tx`: the commands of `tenure tx` as a program of their own.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tenure_tx::cli::{BenchArgs, TxCommand, run, run_bench};

#[derive(Debug, Parser)]
#[command(version, about)]
struct Program {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    #[command(flatten)]
    Tx(TxCommand),
    /// Measure accepted transactions per second against raw inserts.
    Bench(BenchArgs),
}

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_default_env()
                .unwrap_or_else(|_| "warn,tenure=info,tenure_tx=info".into()),
        )
        .with_writer(std::io::stderr)
        .init();
    match Program::parse().command {
        Command::Tx(command) => run(command).await,
        Command::Bench(args) => run_bench(args).await,
    }
}
