//! What docs/gossip.md publishes of the simulator: the figures as JSON, and the plots made of them.

use std::{
    path::Path,
    process::ExitCode,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use serde_json::{Value, json};

use tenure_sim::gossip::crowd::Crowd;

use super::config;
use crate::{
    plot::{Chart, Point, Series},
    quantile, say,
};

const SIZES: [usize; 9] = [3, 5, 10, 30, 100, 300, 1_000, 3_000, 10_000];

/// A crowd that starts, agrees, and loses its leader.
#[derive(Clone, Copy)]
struct Trial {
    nodes: usize,
    documented: bool,
    signed: bool,
    seed: u64,
}

/// Rounds, or none if they did not agree within the limit.
struct Outcome {
    cold: Option<u32>,
    /// Tried only where a leader was agreed on.
    death: Option<Option<u32>>,
    messages: f64,
    arcs: f64,
    seconds: f64,
}

impl Trial {
    /// The most rounds it is given: the documented election needs more than that in large crowds, where
    /// a hundred rounds take half a minute.
    fn limit(&self) -> u32 {
        if self.nodes > 1_000 { 60 } else { 400 }
    }

    fn run(&self) -> Outcome {
        let begun = Instant::now();
        let mut config = config(self.nodes, self.seed, self.documented, 0, 0);
        config.real_keys = self.signed;
        let mut crowd = Crowd::new(config);
        let cold = crowd.rounds_to_agreement(self.limit());
        let before = crowd.sent;
        crowd.run(crowd.round() * 20);
        let messages = (crowd.sent - before) as f64 / self.nodes as f64 / 20.0;
        let arcs = crowd.mean_view();
        let death = crowd.agreed().map(|leader| {
            crowd.kill(leader);
            crowd.rounds_to_agreement(self.limit())
        });
        Outcome { cold, death, messages, arcs, seconds: begun.elapsed().as_secs_f64() }
    }
}

/// Loss and churn over a time, after agreement.
#[derive(Clone, Copy)]
struct CalmTrial {
    nodes: usize,
    documented: bool,
    loss: u32,
    churn: u32,
    time: Duration,
}

struct Calm {
    /// Changes of leader on a node, an hour.
    each: f64,
    /// Changes of the leader that most nodes name, an hour.
    most: f64,
    arcs: f64,
}

impl CalmTrial {
    fn run(&self) -> Calm {
        let mut crowd = Crowd::new(config(self.nodes, 1, self.documented, self.loss, self.churn));
        // The documented election may never agree; then it is watched as it is.
        crowd.rounds_to_agreement(100);
        crowd.run(Duration::from_secs(10));
        let before = crowd.changes;
        let (mut moves, mut leader) = (0, crowd.plurality().map(|(l, _)| l));
        let rounds = (self.time.as_secs_f64() / crowd.round().as_secs_f64()) as u32;
        for _ in 0..rounds {
            crowd.run(crowd.round());
            let now = crowd.plurality().map(|(l, _)| l);
            moves += u32::from(now != leader);
            leader = now;
        }
        let hours = self.time.as_secs_f64() / 3_600.0;
        Calm {
            each: (crowd.changes - before) as f64 / self.nodes as f64 / hours,
            most: f64::from(moves) / hours,
            arcs: crowd.mean_view(),
        }
    }
}

pub(crate) fn publish(
    out: &Path,
    seeds: u64,
    largest: usize,
    threads: usize,
) -> anyhow::Result<ExitCode> {
    std::fs::create_dir_all(out).with_context(|| out.display().to_string())?;
    let agreement = agreement(seeds, largest, threads)?;
    let stability = stability(largest, threads)?;
    let write = |name: &str, text: String| {
        let path = out.join(name);
        std::fs::write(&path, text).with_context(|| path.display().to_string())
    };
    let rounds = |title, what: &str, targets| {
        let series = [("default", false), ("documented", true)].map(|(name, documented)| Series {
            name: name.into(),
            dashed: documented,
            points: agreement
                .iter()
                .filter(|r| r["documented"] == documented && r["signed"] == false)
                .filter_map(|r| {
                    let (worst, late) = (&r[what]["max"], r[what]["not_agreed"].as_u64()?);
                    let y = if late > 0 { r["limit"].as_f64()? } else { worst.as_f64()? };
                    Some(Point { x: r["nodes"].as_f64()?, y, beyond: late > 0 })
                })
                .collect(),
        });
        Chart { title, x: "nodes", y: "rounds of 300 ms, worst seed", log_y: true, targets }
            .draw(&series)
    };
    write(
        "cold-start.svg",
        rounds(
            "Rounds until all nodes agree, from a cold start",
            "cold_rounds",
            &[(12.0, "target, 1,000: 12"), (15.0, "target, 10,000: 15")],
        ),
    )?;
    write(
        "leader-death.svg",
        rounds(
            "Rounds until all nodes agree, after the leader's death",
            "death_rounds",
            &[(30.0, "target: 30")],
        ),
    )?;
    let cost = [
        ("votes and view messages", "messages_per_node_and_round", false),
        ("arcs in a view", "arcs_per_view", false),
        ("ln of the nodes", "ln_nodes", true),
    ]
    .map(|(name, field, dashed)| Series {
        name: name.into(),
        dashed,
        points: agreement
            .iter()
            .filter(|r| r["documented"] == false && r["signed"] == false)
            .filter_map(|r| Some(Point::new(r["nodes"].as_f64()?, r[field].as_f64()?)))
            .collect(),
    });
    let title = "Messages sent by a node in a round, and the size of its view";
    write(
        "messages.svg",
        Chart { title, x: "nodes", y: "per node", log_y: false, targets: &[] }.draw(&cost),
    )?;
    let kinds = [(0, 0), (10, 0), (30, 0), (0, 2), (10, 2)];
    let calm: Vec<_> = [false, true]
        .into_iter()
        .flat_map(|documented| kinds.map(|(loss, churn)| (documented, loss, churn)))
        .map(|(documented, loss, churn)| Series {
            name: match (documented, churn) {
                (false, 0) => format!("default, {loss} % loss"),
                (false, _) => format!("default, {loss} %, churn"),
                (true, 0) => format!("documented, {loss} % loss"),
                (true, _) => format!("documented, {loss} %, churn"),
            },
            dashed: documented,
            points: stability
                .iter()
                .filter(|r| {
                    r["documented"] == documented
                        && r["loss_percent"] == loss
                        && r["churn_percent_per_minute"] == churn
                })
                .filter_map(|r| {
                    let y = r["changes_per_node_and_hour"].as_f64()?;
                    Some(Point::new(r["nodes"].as_f64()?, y))
                })
                .collect(),
        })
        .collect();
    let title = "Changes of leader by loss, and with 2 % of the nodes replaced every minute";
    let y = "changes per node and hour";
    write(
        "leader-changes.svg",
        Chart { title, x: "nodes", y, log_y: true, targets: &[] }.draw(&calm),
    )?;
    let all = json!({ "round_ms": 300, "agreement": agreement, "stability": stability });
    write("sim.json", serde_json::to_string_pretty(&all)? + "\n")?;
    Ok(ExitCode::SUCCESS)
}

fn agreement(seeds: u64, largest: usize, threads: usize) -> anyhow::Result<Vec<Value>> {
    let mut rows = Vec::new();
    for nodes in SIZES.into_iter().filter(|n| *n <= largest) {
        // Real signatures once, in a crowd of middling size.
        let kinds = [(false, false), (true, false), (false, true)];
        for (documented, signed) in kinds.into_iter().filter(|k| !k.1 || nodes == 300) {
            let seeds = match (documented, signed) {
                (_, true) => 1,
                (true, _) if nodes > 1_000 => 1,
                _ => seeds,
            };
            let trials: Vec<_> =
                (0..seeds).map(|seed| Trial { nodes, documented, signed, seed }).collect();
            let done = on_threads(threads, &trials, Trial::run);
            let row = json!({
                "nodes": nodes, "documented": documented, "signed": signed, "seeds": seeds,
                "limit": trials[0].limit(),
                "cold_rounds": rounds(done.iter().map(|o| o.cold)),
                "death_rounds": rounds(done.iter().filter_map(|o| o.death)),
                "messages_per_node_and_round": mean(done.iter().map(|o| o.messages)),
                "arcs_per_view": mean(done.iter().map(|o| o.arcs)),
                "ln_nodes": (nodes as f64).ln(),
                "wall_seconds_per_seed": mean(done.iter().map(|o| o.seconds)),
            });
            say(&row)?;
            rows.push(row);
        }
    }
    Ok(rows)
}

fn stability(largest: usize, threads: usize) -> anyhow::Result<Vec<Value>> {
    let hour = Duration::from_secs(3_600);
    let spans = [(3, hour), (10, hour), (100, hour), (1_000, hour / 20), (10_000, hour / 60)];
    let mut watches = Vec::new();
    let kinds = [(0, 0), (100, 0), (300, 0), (0, 20), (100, 20)];
    for (nodes, time) in spans.into_iter().filter(|(n, _)| *n <= largest) {
        for documented in [false, true] {
            for (loss, churn) in kinds {
                // A minute of the largest crowd costs about one: only what matters most.
                if nodes <= 1_000
                    || (!documented && [(100, 0), (300, 0), (0, 20)].contains(&(loss, churn)))
                {
                    watches.push(CalmTrial { nodes, documented, loss, churn, time });
                }
            }
        }
    }
    // The longest first, so that no thread is left alone with one at the end.
    watches.sort_by_key(|w| std::cmp::Reverse(w.nodes));
    let done = on_threads(threads, &watches, CalmTrial::run);
    let mut rows = Vec::new();
    for (w, calm) in watches.iter().zip(done) {
        let row = json!({
            "nodes": w.nodes, "documented": w.documented, "loss_percent": w.loss / 10,
            "churn_percent_per_minute": w.churn / 10, "minutes": w.time.as_secs() / 60,
            "changes_per_node_and_hour": calm.each, "plurality_changes_per_hour": calm.most,
            "arcs_per_view": calm.arcs,
        });
        say(&row)?;
        rows.push(row);
    }
    rows.reverse();
    Ok(rows)
}

fn rounds(of: impl Iterator<Item = Option<u32>>) -> Value {
    let all: Vec<_> = of.collect();
    let mut agreed: Vec<u64> = all.iter().flatten().map(|r| u64::from(*r)).collect();
    agreed.sort_unstable();
    json!({
        "p50": quantile(&agreed, 0.5), "max": agreed.last(), "tried": all.len(),
        "not_agreed": all.len() - agreed.len(),
    })
}

fn mean(of: impl ExactSizeIterator<Item = f64>) -> f64 {
    let n = of.len().max(1) as f64;
    (of.sum::<f64>() / n * 1_000.0).round() / 1_000.0
}

/// The results in the order of the jobs, whatever thread took which.
fn on_threads<J: Sync, R: Send>(threads: usize, jobs: &[J], work: fn(&J) -> R) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some((i, job)) = {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    jobs.get(i).map(|job| (i, job))
                } {
                    let result = work(job);
                    done.lock().expect("no panic holds it").push((i, result));
                }
            });
        }
    });
    let mut done = done.into_inner().expect("no panic held it");
    done.sort_by_key(|(i, _)| *i);
    done.into_iter().map(|(_, result)| result).collect()
}
