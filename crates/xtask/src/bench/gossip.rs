//! `bench`: commit latency and failover with real processes on one machine.

mod large;

use std::{
    path::{Path, PathBuf},
    process::{ExitCode, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use clap::Args;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{Child, Command},
};

use tenure_gossip::{Answer, Ask, Client, Ed25519Keys, KvGoal, Trust, TxId};

use crate::{quantile, say};

/// What to measure.
#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// How many processes. May be repeated.
    #[arg(long = "nodes", default_values_t = [3, 5, 7])]
    sizes: Vec<usize>,
    /// How many commits to time.
    #[arg(long, default_value_t = 200)]
    commits: usize,
    /// How many leaders to kill.
    #[arg(long, default_value_t = 10)]
    kills: usize,
    /// Instead: fill the state with so many MB, then read it in three ways at full speed for a minute while it is
    /// written; elections, slowest commits, memory and disk.
    #[arg(long, value_name = "MB")]
    state: Option<usize>,
    /// A folder for the nodes; it must be empty.
    #[arg(long)]
    folder: PathBuf,
    /// The `tenure` program [default: the one beside this program]
    #[arg(long)]
    program: Option<PathBuf>,
}

struct Process {
    child: Child,
    address: String,
}

impl Process {
    async fn start(
        program: &Path,
        folder: &Path,
        listen: &str,
        args: &[&str],
    ) -> anyhow::Result<Self> {
        let mut child = Command::new(program)
            .args(["gossip", "node", "--listen", listen, "--data"])
            .arg(folder)
            .args(args)
            .env("TENURE_LOG", "error")
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let out = child.stdout.take().context("stdout is piped")?;
        let mut line = String::new();
        tokio::time::timeout(Duration::from_secs(10), BufReader::new(out).read_line(&mut line))
            .await??;
        let address =
            line.split_whitespace().nth(1).context("the node did not get ready")?.to_owned();
        Ok(Self { child, address })
    }

    async fn client(&self) -> anyhow::Result<Client> {
        Ok(Client::connect(&self.address, Ed25519Keys::generate(), &Trust::default()).await?)
    }

    async fn main(&self) -> anyhow::Result<Value> {
        let answer = self.client().await?.ask(Ask::Status, Duration::from_secs(5)).await?;
        let Answer::Status(text) = answer else { bail!("unexpected answer") };
        Ok(serde_json::from_str::<Value>(&text)?["namespaces"][0].clone())
    }
}

pub(crate) async fn run(args: BenchArgs) -> anyhow::Result<ExitCode> {
    let beside = || std::env::current_exe().map(|path| path.with_file_name("tenure"));
    let program = args.program.clone().map_or_else(beside, Ok)?;
    if !program.exists() {
        bail!("{} is missing; build it with `cargo build -p tenure-cli`", program.display());
    }
    if let Some(bad) = args.sizes.iter().find(|n| !(2..=7).contains(*n)) {
        bail!("nodes: 2 to 7 that vote, not {bad}");
    }
    if args.folder.read_dir().is_ok_and(|mut d| d.next().is_some()) {
        bail!("folder: {} is not empty; name a new one", args.folder.display());
    }
    for n in &args.sizes {
        if let Some(megabytes) = args.state {
            say(large::state(&program, &args.folder.join(n.to_string()), *n, megabytes).await?)?;
            continue;
        }
        say(cluster(&program, &args.folder.join(n.to_string()), *n, args.commits, args.kills)
            .await?)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Starts `n` nodes, and waits until all of them vote.
async fn found(program: &Path, folder: &Path, n: usize) -> anyhow::Result<Vec<Process>> {
    let mut nodes: Vec<Process> = Vec::new();
    for i in 0..n {
        let seed = nodes.first().map(|p| p.address.clone());
        let start: Vec<&str> = match &seed {
            None => vec!["--bootstrap"],
            Some(seed) => vec!["--join", seed],
        };
        nodes.push(
            Process::start(program, &folder.join(i.to_string()), "127.0.0.1:0", &start).await?,
        );
    }
    wait(60, || async {
        let mut all = true;
        for node in &nodes {
            let main = node.main().await.unwrap_or_default();
            all &= main["voters"].as_array().is_some_and(|v| v.len() == n)
                && main["learners"].as_array().is_some_and(Vec::is_empty)
                && main["leader"].is_string();
        }
        all
    })
    .await?;
    Ok(nodes)
}

async fn put(client: &mut Client, key: &str, bytes: usize) -> anyhow::Result<()> {
    let goal = KvGoal::Put { key: key.to_owned(), value: "x".repeat(bytes).into() }.to_bytes();
    let ask = Ask::Submit { namespace: "main".to_owned(), tx: TxId::random(), goal };
    match client.ask(ask, Duration::from_secs(30)).await? {
        Answer::Record(_) => Ok(()),
        other => bail!("unexpected answer {other:?}"),
    }
}

async fn cluster(
    program: &Path,
    folder: &Path,
    n: usize,
    commits: usize,
    kills: usize,
) -> anyhow::Result<Value> {
    let mut nodes = found(program, folder, n).await?;
    let mut latency = Vec::new();
    for from_leader in [true, false] {
        let leader = acting(&nodes).await?;
        let at = if from_leader { leader } else { (leader + 1) % n };
        let mut client = nodes[at].client().await?;
        let mut taken = Vec::new();
        for _ in 0..commits {
            let begun = Instant::now();
            submit(&mut client).await?;
            taken.push(begun.elapsed().as_micros() as u64);
        }
        taken.sort_unstable();
        latency.push(json!({
            "submitted_on": if from_leader { "leader" } else { "follower" },
            "p50_us": quantile(&taken, 0.5), "p99_us": quantile(&taken, 0.99),
        }));
    }

    let mut failover = Vec::new();
    for _ in 0..kills {
        let leader = acting(&nodes).await?;
        let witness = (leader + 1) % n;
        let mut client = nodes[witness].client().await?;
        submit(&mut client).await?;
        let begun = Instant::now();
        nodes[leader].child.kill().await?;
        submit(&mut client).await?;
        failover.push(begun.elapsed().as_millis() as u64);
        let listen = nodes[leader].address.clone();
        nodes[leader] =
            Process::start(program, &folder.join(leader.to_string()), &listen, &[]).await?;
        let index = nodes[witness].main().await?["index"].clone();
        wait(30, || async { nodes[leader].main().await.is_ok_and(|m| m["index"] == index) })
            .await?;
    }
    failover.sort_unstable();
    Ok(json!({
        "nodes": n, "commits": commits, "commit": latency, "kills": kills,
        "failover_ms": { "p50": quantile(&failover, 0.5), "p95": quantile(&failover, 0.95), "p99": quantile(&failover, 0.99), "max": failover.last(), "all": failover },
    }))
}

async fn submit(client: &mut Client) -> anyhow::Result<()> {
    let goal = KvGoal::Increment { key: "n".to_owned(), by: 1 }.to_bytes();
    let ask = Ask::Submit { namespace: "main".to_owned(), tx: TxId::random(), goal };
    match client.ask(ask, Duration::from_secs(30)).await? {
        Answer::Record(_) => Ok(()),
        other => bail!("unexpected answer {other:?}"),
    }
}

async fn acting(nodes: &[Process]) -> anyhow::Result<usize> {
    let until = Instant::now() + Duration::from_secs(30);
    while Instant::now() < until {
        for (i, node) in nodes.iter().enumerate() {
            if node.main().await.is_ok_and(|m| m["acting"] == json!(true)) {
                return Ok(i);
            }
        }
    }
    bail!("no leader within 30 s")
}

async fn wait<F: Future<Output = bool>>(
    seconds: u64,
    mut condition: impl FnMut() -> F,
) -> anyhow::Result<()> {
    let until = Instant::now() + Duration::from_secs(seconds);
    while !condition().await {
        if Instant::now() > until {
            bail!("the cluster did not get ready within {seconds} s");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}
