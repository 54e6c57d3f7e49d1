//! The gossip commands on their own.

use std::io::IsTerminal as _;
use std::process::ExitCode;

use clap::Parser;
use tenure_gossip::cli::{GossipCommand, run};

/// Groups of nodes without a database.
#[derive(Parser)]
#[command(version, about)]
struct Arguments {
    #[command(subcommand)]
    command: GossipCommand,
}

#[tokio::main]
async fn main() -> ExitCode {
    let command = Arguments::parse().command;
    // Thousands of simulated leaders would drown the verdict.
    let usual = if matches!(command, GossipCommand::Sim(_)) { "warn" } else { "info" };
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(usual));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
    match run(command).await {
        Ok(code) => code,
        Err(e) => {
            tracing::error!("{e:#}");
            ExitCode::FAILURE
        }
    }
}
