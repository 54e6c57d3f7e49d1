//! What is measured.

mod audit;
mod election;
mod fence;
mod gossip;
mod idle;
mod tx;

use std::process::ExitCode;

use clap::{Args, Subcommand};

/// The database of a bench.
#[derive(Debug, Args)]
struct Database {
    /// A database for the bench alone: what is in it may be deleted. Never taken from the environment
    #[arg(long)]
    dsn: String,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// How long a role is without a leader: crash, step-down, the program; against a bare lock and etcd
    Election(election::BenchArgs),
    /// How many transactions idle members cost the database
    Idle(idle::BenchArgs),
    /// How long an audit of a million terms takes
    Audit(audit::BenchArgs),
    /// What `tenure.fence()` costs a transaction that inserts, with pgbench
    Fence(fence::BenchArgs),
    /// Commit latency and failover of a gossip group, with real processes
    Gossip(gossip::BenchArgs),
    /// Accepted transactions per second against raw inserts, and the takeover of open ones
    Tx(tx::BenchArgs),
}

pub(crate) async fn run(bench: Bench) -> anyhow::Result<ExitCode> {
    match bench {
        Bench::Election(args) => election::run(args).await,
        Bench::Idle(args) => idle::run(args).await,
        Bench::Audit(args) => audit::run(args).await,
        Bench::Fence(args) => fence::run(args).await,
        Bench::Gossip(args) => gossip::run(args).await,
        Bench::Tx(args) => tx::run(args).await,
    }
}
