//! `soak`: a gossip group under fire for a long time. Seven nodes, thirty-two callers; kills, freezes,
//! partitions, step-downs, replacements of nodes and full disks. Afterwards:
//!
//! - every node has the same history, and every acknowledged transaction stands in it once, as it was told;
//! - what the callers were told is linearizable, key by key;
//! - the checks find a planted lie: an acknowledged record left out, and two answers exchanged.

mod callers;
mod node;
mod relay;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use clap::Args;
use rand::Rng as _;
use rustix::process::Signal;
use serde_json::json;
use tenure_gossip::{Answer, Ask, CREDENTIALS, MemberChange, PeerId, Record, TxId};
use tokio::sync::watch;

use self::callers::{Ledger, Seen};
use self::node::{Node, connect};
use self::relay::{Network, Place};
use crate::say;

/// How long the group may take to become well after the last fault.
const RECOVERY: Duration = Duration::from_secs(120);

/// What to do, and for how long.
#[derive(Debug, Args)]
pub(crate) struct SoakArgs {
    /// How long faults go on
    #[arg(long, default_value = "30m", value_parser = crate::period)]
    time: Duration,
    /// How many nodes
    #[arg(long, default_value_t = 7)]
    nodes: usize,
    /// How many callers
    #[arg(long, default_value_t = 32)]
    clients: usize,
    /// A folder for the nodes; it must be empty
    #[arg(long)]
    folder: PathBuf,
    /// The `tenure` program [default: the one beside this program]
    #[arg(long)]
    program: Option<PathBuf>,
}

struct Soak {
    network: Network,
    program: PathBuf,
    folder: PathBuf,
    nodes: Vec<Node>,
    /// How often each fault happened.
    faults: BTreeMap<&'static str, u64>,
    made: usize,
    ledger: Arc<Ledger>,
}

pub(crate) async fn run(args: SoakArgs) -> anyhow::Result<ExitCode> {
    let beside = || std::env::current_exe().map(|path| path.with_file_name("tenure"));
    let program = args.program.clone().map_or_else(beside, Ok)?;
    if !program.exists() {
        bail!("{} is missing; build it with `cargo build -p tenure-cli`", program.display());
    }
    if !(3..=7).contains(&args.nodes) {
        bail!("nodes: 3 to 7 that vote, not {}", args.nodes);
    }
    let ledger = Arc::new(Ledger {
        begun: Instant::now(),
        addresses: watch::channel(Vec::new()).0,
        stop: watch::channel(false).0,
        seen: Mutex::default(),
    });
    let mut soak = Soak {
        network: Network::new(),
        program,
        folder: args.folder.clone(),
        nodes: Vec::new(),
        faults: BTreeMap::new(),
        made: 0,
        ledger: ledger.clone(),
    };
    soak.found(args.nodes).await?;
    let (until, last) = watch::channel(u64::MAX);
    let auditor = tokio::spawn(ledger.clone().audit(last));
    let callers: Vec<_> = (0..args.clients).map(|_| tokio::spawn(ledger.clone().call())).collect();
    let end = Instant::now() + args.time;
    while Instant::now() < end {
        soak.fault().await?;
        let pause = rand::rng().random_range(500..4_000);
        tokio::time::sleep(Duration::from_millis(pause)).await;
    }
    soak.network.cut(BTreeSet::new());
    ledger.stop.send_replace(true);
    for caller in callers {
        caller.await?;
    }
    let (index, took) = soak.agree().await?;
    until.send_replace(index);
    auditor.await?;
    let verdict = judge(&ledger.lock());
    say(json!({
        "nodes": args.nodes, "clients": args.clients, "seconds": args.time.as_secs(),
        "faults": soak.faults, "records": index, "well_after_ms": took.as_millis() as u64,
        "acknowledged": verdict.acknowledged, "uncertain": verdict.given_up, "lost": verdict.lost,
        "twice": verdict.twice, "broken": verdict.broken, "contradictions": verdict.contradictions,
        "controls": verdict.controls,
    }))?;
    Ok(if verdict.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Soak {
    async fn found(&mut self, nodes: usize) -> anyhow::Result<()> {
        if self.folder.read_dir().is_ok_and(|mut files| files.next().is_some()) {
            bail!("folder: {} is not empty; name a new one", self.folder.display());
        }
        for place in 0..nodes {
            let folder = self.fresh_folder();
            let mut node = Node::settle(&self.network, place, folder).await?;
            let seed = self.nodes.first().map(|first| first.relayed.clone());
            let args = match &seed {
                None => vec!["--bootstrap"],
                Some(seed) => vec!["--join", seed.as_str()],
            };
            node.start(&self.network, &self.program, &args).await?;
            self.nodes.push(node);
        }
        let until = Instant::now() + RECOVERY;
        while self.voters("main").await != Some(nodes)
            || self.voters(CREDENTIALS).await != Some(nodes)
        {
            if Instant::now() > until {
                bail!("not all nodes vote within {RECOVERY:?}");
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        self.publish();
        Ok(())
    }

    fn fresh_folder(&mut self) -> PathBuf {
        self.made += 1;
        self.folder.join(self.made.to_string())
    }

    async fn voters(&self, space: &str) -> Option<usize> {
        let space = self.nodes[0].space(space).await.ok()?;
        let learners = space["learners"].as_array()?.len();
        (learners == 0).then(|| space["voters"].as_array().map(Vec::len))?
    }

    fn publish(&self) {
        let addresses = self.nodes.iter().map(|node| node.direct.clone()).collect();
        self.ledger.addresses.send_replace(addresses);
    }

    /// The place of the node that acts in `space`, if one says so.
    async fn leader(&self, space: &str) -> Option<Place> {
        for (place, node) in self.nodes.iter().enumerate() {
            if node.is_up() && node.space(space).await.is_ok_and(|s| s["acting"] == json!(true)) {
                return Some(place);
            }
        }
        None
    }

    /// One fault, from its begin to its end.
    async fn fault(&mut self) -> anyhow::Result<()> {
        let any = rand::rng().random_range(0..self.nodes.len());
        let place = match rand::rng().random_bool(0.5) {
            true => self.leader("main").await.unwrap_or(any),
            false => any,
        };
        let pause = Duration::from_millis(rand::rng().random_range(200..5_000));
        let name = match rand::rng().random_range(0..100) {
            0..30 => {
                self.nodes[place].kill().await;
                tokio::time::sleep(pause).await;
                self.restart(place).await?;
                "kill -9"
            }
            30..50 => {
                self.nodes[place].signal(Signal::STOP);
                tokio::time::sleep(pause).await;
                self.nodes[place].signal(Signal::CONT);
                "freeze"
            }
            50..75 => {
                let size = rand::rng().random_range(1..=self.nodes.len() / 2);
                let places = (0..size).map(|n| (place + n) % self.nodes.len());
                self.network.cut(places.collect());
                tokio::time::sleep(pause).await;
                self.network.cut(BTreeSet::new());
                "partition"
            }
            75..80 => {
                let ask = Ask::StepDown { namespace: "main".into() };
                if let Ok(mut client) = connect(&self.nodes[place].direct).await {
                    // A node that does not lead says so: that is an answer too.
                    let _ = client.ask(ask, Duration::from_secs(5)).await;
                }
                "step-down"
            }
            80..90 => self.fill_disk(place).await?,
            _ => self.replace(place).await?,
        };
        *self.faults.entry(name).or_default() += 1;
        Ok(())
    }

    async fn restart(&mut self, place: Place) -> anyhow::Result<()> {
        self.nodes[place].start(&self.network, &self.program, &[]).await
    }

    /// The node's disk fills up under load: it stops by itself, and goes on when there is room again.
    async fn fill_disk(&mut self, place: Place) -> anyhow::Result<&'static str> {
        self.nodes[place].kill().await;
        self.nodes[place].start_to_fill(&self.network, &self.program).await?;
        // It takes part again before its disk is full.
        tokio::time::sleep(Duration::from_secs(2)).await;
        self.nodes[place].fill()?;
        if !self.nodes[place].ends(Duration::from_secs(20)).await {
            bail!("node {place} went on for 20 s without a disk to write to");
        }
        self.restart(place).await?;
        Ok("full disk")
    }

    /// The node dies with its disk; a fresh one takes its place and its vote.
    async fn replace(&mut self, place: Place) -> anyhow::Result<&'static str> {
        self.nodes[place].kill().await;
        let old = self.nodes[place].id.context("it ran")?;
        std::fs::remove_dir_all(&self.nodes[place].folder)?;
        let seeds: Vec<_> = self.nodes.iter().map(|node| node.relayed.clone()).collect();
        let seeds: Vec<_> = seeds.iter().enumerate().filter(|(i, _)| *i != place).collect();
        let args: Vec<_> = seeds.iter().flat_map(|(_, seed)| ["--join", seed.as_str()]).collect();
        let folder = self.fresh_folder();
        let mut node = Node::settle(&self.network, place, folder).await?;
        node.start(&self.network, &self.program, &args).await?;
        let new = node.id.context("it runs")?;
        self.nodes[place] = node;
        self.publish();
        for space in ["main", CREDENTIALS] {
            self.order_replacement(space, old, new).await?;
        }
        Ok("replacement")
    }

    async fn order_replacement(&self, space: &str, old: PeerId, new: PeerId) -> anyhow::Result<()> {
        let until = Instant::now() + RECOVERY;
        let change = MemberChange::Replace { old, new };
        let mut said = "no leader".to_owned();
        while Instant::now() < until {
            if let Some(leader) = self.leader(space).await
                && let Ok(mut client) = connect(&self.nodes[leader].direct).await
            {
                let ask = Ask::Members { namespace: space.into(), change };
                match client.ask(ask, Duration::from_secs(90)).await {
                    Ok(Answer::Done) => return Ok(()),
                    Ok(other) => bail!("{other:?}"),
                    // Busy, or leadership changed: the order may be repeated until it is made.
                    Err(error) => said = error.to_string(),
                }
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        let standing = self.standing(space).await;
        bail!("{space}: {old} was not replaced by {new} within {RECOVERY:?}: {said}\n{standing}")
    }

    /// How each node stands, a line each.
    async fn standing(&self, space: &str) -> String {
        let mut lines = Vec::new();
        for node in &self.nodes {
            let status =
                node.space(space).await.map_or_else(|error| error.to_string(), |s| s.to_string());
            lines.push(format!("{}: {status}", node.folder.display()));
        }
        lines.join("\n")
    }

    /// Waits until every node has the same history. Its length, and how long that took.
    async fn agree(&self) -> anyhow::Result<(u64, Duration)> {
        let since = Instant::now();
        let mut said = Vec::new();
        while since.elapsed() < RECOVERY {
            said.clear();
            for node in &self.nodes {
                let main = node.main().await.unwrap_or_default();
                if let Some(why) = main["halted"].as_str() {
                    bail!("a node halted: {why}");
                }
                said.push((main["index"].as_u64(), main["head"].clone(), main["pending"].clone()));
            }
            let first = said.first().cloned().context("there are nodes")?;
            if let (Some(index), _, pending) = &first
                && *pending == json!(0)
                && said.iter().all(|one| *one == first)
            {
                return Ok((*index, since.elapsed()));
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        let standing = self.standing("main").await;
        bail!("the nodes do not agree within {RECOVERY:?}: {said:?}\n{standing}")
    }
}

/// What the checks say.
struct Verdict {
    acknowledged: usize,
    given_up: u64,
    lost: Vec<String>,
    twice: Vec<String>,
    broken: Vec<String>,
    contradictions: Vec<String>,
    /// Whether each planted lie was found.
    controls: BTreeMap<&'static str, bool>,
}

impl Verdict {
    fn is_good(&self) -> bool {
        let wrong = [&self.lost, &self.twice, &self.broken, &self.contradictions];
        wrong.iter().all(|list| list.is_empty()) && self.controls.values().all(|found| *found)
    }
}

fn judge(seen: &Seen) -> Verdict {
    let mut operations = seen.operations.clone();
    seen.history.iter().for_each(|record| operations.decide(record));
    let mut twice = BTreeSet::new();
    let mut by_tx = BTreeMap::new();
    for record in &seen.history {
        if by_tx.insert(record.tx, record).is_some() {
            twice.insert(record.tx.to_string());
        }
    }
    let mut without = by_tx.clone();
    let first = seen.acknowledged.keys().next().copied();
    first.map(|tx| without.remove(&tx));
    let controls = BTreeMap::from([
        ("an acknowledged record left out", !lost(seen, &without).is_empty()),
        ("two answers exchanged", !operations.exchanged().contradictions().is_empty()),
    ]);
    Verdict {
        acknowledged: seen.acknowledged.len(),
        given_up: seen.given_up,
        lost: lost(seen, &by_tx),
        twice: twice.into_iter().collect(),
        broken: seen.broken.clone(),
        contradictions: operations.contradictions(),
        controls,
    }
}

/// The transactions that do not stand in the history as their callers were told.
fn lost(seen: &Seen, by_tx: &BTreeMap<TxId, &Record>) -> Vec<String> {
    let kept = |(tx, told): &(&TxId, &Record)| by_tx.get(tx).is_some_and(|found| *found == *told);
    let lost = seen.acknowledged.iter().filter(|pair| !kept(pair));
    lost.map(|(tx, _)| tx.to_string()).collect()
}
