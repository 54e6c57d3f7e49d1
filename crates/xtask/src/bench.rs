//! What is measured.

mod gossip;
mod tx;

use std::process::ExitCode;

use clap::Subcommand;

#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// Commit latency and failover of a gossip group, with real processes
    Gossip(gossip::BenchArgs),
    /// Accepted transactions per second against raw inserts, and the takeover of open ones
    Tx(tx::BenchArgs),
}

pub(crate) async fn run(bench: Bench) -> anyhow::Result<ExitCode> {
    match bench {
        Bench::Gossip(args) => gossip::run(args).await,
        Bench::Tx(args) => tx::run(args).await,
    }
}
