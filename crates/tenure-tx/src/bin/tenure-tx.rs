//! `tenure-tx`: the commands of `tenure tx` as a program of their own.

use std::io::Write as _;
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
async fn main() -> ExitCode {
    let ended = match Program::parse().command {
        Command::Tx(command) => run(command).await,
        Command::Bench(args) => run_bench(args).await,
    };
    ended.unwrap_or_else(|error| {
        // One line, and no debug dump.
        let _ = writeln!(std::io::stderr().lock(), "tenure: {error:#}");
        ExitCode::FAILURE
    })
}
