//! `sim`: storms of faults, crowds of thousands, and the published figures and plots.

mod figures;

use std::{
    collections::BTreeMap,
    path::PathBuf,
    process::ExitCode,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use clap::{Args, Subcommand};
use serde_json::json;

use tenure_gossip::ElectionConfig;
use tenure_sim::gossip::Faults;
use tenure_sim::gossip::crowd::{Crowd, CrowdConfig};
use tenure_sim::gossip::scenario::storm;

use crate::{quantile, say};

/// What to simulate.
#[derive(Debug, Args)]
pub(crate) struct SimArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Storms of faults over whole nodes: every seed must keep every invariant, and recover.
    Storm {
        /// How many seeds.
        #[arg(long, default_value_t = 500)]
        seeds: u64,
        /// The first one.
        #[arg(long, default_value_t = 0)]
        from: u64,
        /// On how many threads.
        #[arg(long, default_value_t = 2)]
        threads: u64,
    },
    /// A crowd that runs gossip alone: how fast it agrees.
    Crowd {
        /// How many nodes.
        #[arg(long, default_value_t = 1_000)]
        nodes: usize,
        /// Everything random comes from it.
        #[arg(long, default_value_t = 0)]
        seed: u64,
        /// The election without ranks and stickiness, instead of the default one.
        #[arg(long)]
        documented: bool,
        /// Messages lost, of a thousand.
        #[arg(long, default_value_t = 0)]
        loss: u32,
        /// Nodes replaced by new ones every minute, of a thousand.
        #[arg(long, default_value_t = 0)]
        churn: u32,
        /// How long to go on after agreement.
        #[arg(long, default_value = "60s", value_parser = crate::period)]
        time: Duration,
        /// Real ed25519 signatures instead of the simulator's cheap stand-ins: a thousand times slower.
        #[arg(long)]
        signed: bool,
    },
    /// Everything that docs/gossip.md publishes of the simulator, with its plots.
    Plot {
        /// Where to write `sim.json` and the plots.
        #[arg(long, default_value = "docs/gossip")]
        out: PathBuf,
        /// Seeds for each point.
        #[arg(long, default_value_t = 5)]
        seeds: u64,
        /// The largest crowd.
        #[arg(long, default_value_t = 10_000)]
        largest: usize,
        /// Threads: each runs crowds of its own, so they change no figure but the times.
        #[arg(long, default_value_t = 2)]
        threads: usize,
    },
}

pub(crate) fn run(args: &SimArgs) -> anyhow::Result<ExitCode> {
    match &args.what {
        What::Storm { seeds, from, threads } => storms(*from, *seeds, (*threads).max(1)),
        What::Crowd { nodes, seed, documented, loss, churn, time, signed } => {
            let mut config = config(*nodes, *seed, *documented, *loss, *churn);
            config.real_keys = *signed;
            crowd(config, *time)
        }
        What::Plot { out, seeds, largest, threads } => {
            figures::publish(out, *seeds, *largest, (*threads).max(1))
        }
    }
}

/// Figures by name, what broke, and the times to recover.
type Total = (BTreeMap<&'static str, u64>, Vec<String>, Vec<u64>);

fn storms(from: u64, seeds: u64, threads: u64) -> anyhow::Result<ExitCode> {
    let begun = Instant::now();
    let next = AtomicU64::new(from);
    let total: Mutex<Total> = Mutex::default();
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= from + seeds {
                        return;
                    }
                    let verdict = storm(seed, None);
                    let mut total = total.lock().expect("no panic holds it");
                    match verdict {
                        Ok(v) => {
                            let f = v.figures;
                            for (name, n) in [
                                ("messages", f.delivered),
                                ("commits", f.committed),
                                ("terms", f.terms_acted),
                                ("goal_timeouts", f.goal_timeouts),
                                ("history_requests", f.history_requests),
                                ("snapshots_installed", f.snapshots_installed),
                            ] {
                                *total.0.entry(name).or_default() += n;
                            }
                            total.2.push(v.recovery_ms);
                        }
                        Err(v) => total.1.push(format!("seed {seed}: {v}")),
                    }
                }
            });
        }
    });
    let (sums, broken, mut recovery) = total.into_inner().expect("no panic held it");
    recovery.sort_unstable();
    for line in &broken {
        say(line)?;
    }
    say(json!({
        "seeds": seeds,
        "broken": broken.len(),
        "seconds": begun.elapsed().as_secs(),
        "sums": sums,
        "recovery_ms": { "p50": quantile(&recovery, 0.5), "p99": quantile(&recovery, 0.99), "max": recovery.last() },
    }))?;
    Ok(if broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn config(nodes: usize, seed: u64, documented: bool, loss: u32, churn: u32) -> CrowdConfig {
    let mut config = CrowdConfig::calm(seed, nodes);
    if documented {
        config.election = ElectionConfig::documented();
    }
    config.faults = Faults { loss, ..Faults::default() };
    config.churn = churn;
    config
}

fn crowd(config: CrowdConfig, time: Duration) -> anyhow::Result<ExitCode> {
    let begun = Instant::now();
    let nodes = config.nodes;
    let mut crowd = Crowd::new(config);
    let rounds = crowd.rounds_to_agreement(200);
    let (sent, changes) = (crowd.sent, crowd.changes);
    crowd.run(time);
    let spent = time.as_secs_f64() / crowd.round().as_secs_f64();
    say(json!({
        "nodes": nodes,
        "rounds_to_agreement": rounds,
        "arcs_per_view": crowd.mean_view(),
        "messages_per_node_and_round": (crowd.sent - sent) as f64 / nodes as f64 / spent,
        "changes_after_agreement": crowd.changes - changes,
        "trace": format!("{:016x}", crowd.trace()),
        "simulated_seconds": crowd.now_ms() / 1_000,
        "wall_seconds": begun.elapsed().as_secs_f64(),
    }))?;
    Ok(ExitCode::SUCCESS)
}
