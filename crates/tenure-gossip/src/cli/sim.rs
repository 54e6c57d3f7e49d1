//! `sim`: storms of faults, crowds of thousands, and the published figures and plots.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::{
    plot::{Series, lines},
    say,
};
use crate::{
    bug::Bugs,
    election::ElectionConfig,
    sim::{
        Faults,
        crowd::{Crowd, CrowdConfig},
        scenario::storm,
    },
};

/// What to simulate.
#[derive(Debug, Args)]
pub struct SimArgs {
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
        /// Threads.
        #[arg(long, default_value_t = 2)]
        threads: u64,
    },
    /// A crowd that runs gossip alone: how fast it agrees.
    Crowd {
        /// How many nodes.
        #[arg(long, default_value_t = 1_000)]
        nodes: usize,
        /// The seed.
        #[arg(long, default_value_t = 0)]
        seed: u64,
        /// The specification's election as documented, instead of the default one.
        #[arg(long)]
        documented: bool,
        /// Messages lost, of a thousand.
        #[arg(long, default_value_t = 0)]
        loss: u32,
        /// Nodes replaced by new ones every minute, of a thousand.
        #[arg(long, default_value_t = 0)]
        churn: u32,
        /// How long to go on after agreement.
        #[arg(long, default_value = "60s", value_parser = humantime::parse_duration)]
        time: Duration,
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
    },
}

pub(super) fn run(args: &SimArgs) -> anyhow::Result<ExitCode> {
    match &args.what {
        What::Storm { seeds, from, threads } => storms(*from, *seeds, (*threads).max(1)),
        What::Crowd { nodes, seed, documented, loss, churn, time } => {
            crowd(*nodes, *seed, *documented, *loss, *churn, *time)
        }
        What::Plot { out, seeds, largest } => plot(out, *seeds, *largest),
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
                    let verdict = storm(seed, Bugs::default());
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

fn crowd(
    nodes: usize,
    seed: u64,
    documented: bool,
    loss: u32,
    churn: u32,
    time: Duration,
) -> anyhow::Result<ExitCode> {
    let begun = Instant::now();
    let mut crowd = Crowd::new(config(nodes, seed, documented, loss, churn));
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
        "simulated_seconds": crowd.now_ms() / 1_000,
        "wall_seconds": begun.elapsed().as_secs_f64(),
    }))?;
    Ok(ExitCode::SUCCESS)
}

/// The most rounds anybody is given to agree.
const LIMIT: u32 = 400;

struct Point {
    cold: Vec<u64>,
    death: Vec<u64>,
    messages: f64,
    arcs: f64,
}

/// Cold start, then a leader's death, for each seed. What does not agree counts as the limit.
fn measure(nodes: usize, seeds: u64, documented: bool) -> Point {
    let mut point = Point { cold: Vec::new(), death: Vec::new(), messages: 0.0, arcs: 0.0 };
    for seed in 0..seeds {
        let mut crowd = Crowd::new(config(nodes, seed, documented, 0, 0));
        let cold = crowd.rounds_to_agreement(LIMIT);
        point.cold.push(cold.unwrap_or(LIMIT).into());
        let before = crowd.sent;
        crowd.run(crowd.round() * 20);
        point.messages += (crowd.sent - before) as f64 / nodes as f64 / 20.0 / seeds as f64;
        point.arcs += crowd.mean_view() / seeds as f64;
        if let Some(leader) = crowd.agreed()
            && nodes > 1
        {
            crowd.kill(leader);
            point.death.push(crowd.rounds_to_agreement(LIMIT).unwrap_or(LIMIT).into());
        }
    }
    point.cold.sort_unstable();
    point.death.sort_unstable();
    point
}

/// Changes an hour, as all nodes and as the plurality see them, after agreement.
fn stability(nodes: usize, documented: bool, loss: u32, churn: u32, time: Duration) -> (f64, f64) {
    let mut crowd = Crowd::new(config(nodes, 1, documented, loss, churn));
    crowd.rounds_to_agreement(LIMIT);
    crowd.run(Duration::from_secs(10));
    let before = crowd.changes;
    let (mut moves, mut leader) = (0, crowd.plurality().map(|(l, _)| l));
    let rounds = (time.as_secs_f64() / crowd.round().as_secs_f64()) as u32;
    for _ in 0..rounds {
        crowd.run(crowd.round());
        let now = crowd.plurality().map(|(l, _)| l);
        if now != leader {
            moves += 1;
            leader = now;
        }
    }
    let hours = time.as_secs_f64() / 3_600.0;
    ((crowd.changes - before) as f64 / nodes as f64 / hours, f64::from(moves) / hours)
}

fn plot(out: &Path, seeds: u64, largest: usize) -> anyhow::Result<ExitCode> {
    std::fs::create_dir_all(out).with_context(|| out.display().to_string())?;
    let sizes = [3, 5, 7, 10, 30, 100, 300, 1_000, 3_000, 10_000];
    let mut rows: Vec<Value> = Vec::new();
    let mut series: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
    for nodes in sizes.into_iter().filter(|n| *n <= largest) {
        for documented in [false, true] {
            // The documented election does not agree in crowds: its limit is all there is to see.
            if documented && nodes > 1_000 {
                continue;
            }
            let begun = Instant::now();
            let p = measure(nodes, seeds, documented);
            let (n, worst) = (nodes as f64, |v: &[u64]| v.last().copied().unwrap_or(0));
            let names = if documented {
                ["cold documented", "death documented"]
            } else {
                ["cold default", "death default"]
            };
            series.entry(names[0]).or_default().push((n, worst(&p.cold) as f64));
            series.entry(names[1]).or_default().push((n, worst(&p.death) as f64));
            if !documented {
                series.entry("messages").or_default().push((n, p.messages));
                series.entry("arcs").or_default().push((n, p.arcs));
            }
            let row = json!({
                "nodes": nodes, "documented": documented, "seeds": seeds,
                "cold_rounds": { "p50": quantile(&p.cold, 0.5), "max": worst(&p.cold) },
                "death_rounds": { "p50": quantile(&p.death, 0.5), "max": worst(&p.death), "seeds": p.death.len() },
                "messages_per_node_and_round": p.messages, "arcs_per_view": p.arcs,
                "wall_seconds": begun.elapsed().as_secs_f64(),
            });
            say(&row)?;
            rows.push(row);
        }
    }
    let mut stable: Vec<Value> = Vec::new();
    let hour = Duration::from_secs(3_600);
    for (nodes, time) in
        [(3, hour), (7, hour), (30, hour / 2), (100, hour / 10), (1_000, hour / 60)]
    {
        for documented in [false, true] {
            for (loss, churn) in [(0, 0), (100, 0), (300, 0), (0, 20), (100, 20)] {
                let (each, all) = stability(nodes, documented, loss, churn, time);
                let row = json!({
                    "nodes": nodes, "documented": documented, "loss_percent": loss / 10,
                    "churn_percent_per_minute": churn / 10, "minutes": time.as_secs() / 60,
                    "changes_per_node_and_hour": each, "plurality_changes_per_hour": all,
                });
                say(&row)?;
                stable.push(row);
                if (churn == 0) && !(documented && nodes > 100) {
                    let name = match (documented, loss) {
                        (false, 0) => "default, 0 %",
                        (false, 100) => "default, 10 %",
                        (false, _) => "default, 30 %",
                        (true, 0) => "documented, 0 %",
                        (true, 100) => "documented, 10 %",
                        (true, _) => "documented, 30 %",
                    };
                    series.entry(name).or_default().push((nodes as f64, each));
                }
            }
        }
    }
    let pick = |name: &str, label: &str| Series {
        name: label.to_owned(),
        points: series.get(name).cloned().unwrap_or_default(),
        dashed: name.contains("documented"),
    };
    let write = |name: &str, text: String| {
        let path = out.join(name);
        std::fs::write(&path, text).with_context(|| path.display().to_string())
    };
    let both = |kind: &str| {
        [
            pick(&format!("{kind} default"), "default"),
            pick(&format!("{kind} documented"), "documented"),
        ]
    };
    write(
        "cold-start.svg",
        lines(
            "Rounds to agreement from cold start (worst seed)",
            "nodes",
            "rounds",
            true,
            &both("cold"),
        ),
    )?;
    write(
        "leader-death.svg",
        lines(
            "Rounds to agreement after the leader's death (worst seed)",
            "nodes",
            "rounds",
            true,
            &both("death"),
        ),
    )?;
    let cost = [pick("messages", "messages"), pick("arcs", "arcs in a view")];
    write("messages.svg", lines("Messages per node and round", "nodes", "per node", true, &cost))?;
    let calm: Vec<_> = [
        "default, 0 %",
        "default, 10 %",
        "default, 30 %",
        "documented, 0 %",
        "documented, 10 %",
        "documented, 30 %",
    ]
    .into_iter()
    .map(|name| pick(name, name))
    .collect();
    write(
        "leader-changes.svg",
        lines("Leader changes per node and hour, by loss", "nodes", "changes", true, &calm),
    )?;
    write(
        "sim.json",
        serde_json::to_string_pretty(&json!({ "agreement": rows, "stability": stable }))? + "\n",
    )?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn quantile(sorted: &[u64], q: f64) -> Option<u64> {
    let last = sorted.len().checked_sub(1)?;
    sorted.get((last as f64 * q).ceil() as usize).copied()
}
