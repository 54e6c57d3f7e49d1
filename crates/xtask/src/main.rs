//! What the project does with itself and users need not: benches, drills, long simulations, plots.
//!
//! ```text
//! cargo run --release -p xtask -- sim storm       storms of faults over whole nodes
//! cargo run --release -p xtask -- sim crowd       how fast a crowd agrees by gossip
//! cargo run --release -p xtask -- sim plot        the figures and plots of docs/gossip.md
//! cargo run --release -p xtask -- soak            a gossip group under fire, judged
//! cargo run --release -p xtask -- bench election  how long a role is without a leader
//! cargo run --release -p xtask -- bench idle      what idle members cost the database
//! cargo run --release -p xtask -- bench audit     how long an audit of a million terms takes
//! cargo run --release -p xtask -- bench gossip    commit latency and failover, real processes
//! cargo run --release -p xtask -- bench fence     what the fence costs an insert, with pgbench
//! cargo run --release -p xtask -- bench tx        accepted transactions against raw inserts
//! cargo run -p xtask -- drill                     faults of a Patroni cluster under real members
//! ```

mod bench;
mod drill;
mod plot;
mod sim;
mod soak;

use std::fmt::Display;
use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use tenure::config::parse_period;

/// Benches, simulations and plots of the project
#[derive(Debug, Parser)]
#[command(max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Simulate: storms of faults, crowds of thousands, plots
    Sim(sim::SimArgs),
    /// A gossip group under fire for half an hour, and whether it lost, doubled or confused anything
    Soak(soak::SoakArgs),
    /// Measure
    #[command(subcommand)]
    Bench(bench::Bench),
    /// Break a Patroni cluster, one fault at a time, and look at what the members' children did
    Drill(drill::DrillArgs),
    /// The child of a drill's members
    #[command(hide = true)]
    Tick(drill::TickArgs),
}

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    match Arguments::parse().task {
        Task::Sim(args) => tokio::task::spawn_blocking(move || sim::run(&args)).await?,
        Task::Soak(args) => soak::run(args).await,
        Task::Bench(bench) => bench::run(bench).await,
        Task::Drill(args) => drill::run(args).await,
        Task::Tick(args) => drill::tick(&args).map(|()| ExitCode::SUCCESS),
    }
}

/// A line on standard output. A closed pipe ends the program like any other error.
fn say(line: impl Display) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

/// The value below which that part of the sorted values lies.
fn quantile(sorted: &[u64], part: f64) -> Option<u64> {
    let last = sorted.len().checked_sub(1)?;
    sorted.get((last as f64 * part).ceil() as usize).copied()
}

/// A length of time, as every option of the program takes one.
fn period(text: &str) -> Result<Duration, &'static str> {
    parse_period(text).ok_or("a length of time is wanted (`3s`, `250ms`, or a number of seconds)")
}
