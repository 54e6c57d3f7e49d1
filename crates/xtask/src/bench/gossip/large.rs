//! What a large state and readers that never pause cost: elections, the slowest commit, memory and disk.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use serde_json::{Value, json};
use tenure_gossip::{Answer, Ask, Client, KvQuestion};

use super::{Process, acting, found, put, wait};
use crate::quantile;

/// How long it is read and written at the same time.
const BOTH: Duration = Duration::from_secs(60);
/// How long a reader waits for one answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// Bytes of one value.
const VALUE: usize = 100_000;

pub(super) async fn state(
    program: &Path,
    folder: &Path,
    n: usize,
    megabytes: usize,
) -> anyhow::Result<Value> {
    let mut nodes = found(program, folder, n).await?;
    let at_first = terms(&nodes).await?;
    let leader = acting(&nodes).await?;
    let mut client = nodes[leader].client().await?;
    let keys = megabytes * 1_000_000 / VALUE;
    let filling = fill(&mut client, keys, |round| round < keys).await?;
    let filled = terms(&nodes).await?;
    let until = Instant::now() + BOTH;
    let readers = [
        tokio::spawn(read_values(nodes[leader].client().await?, until)),
        tokio::spawn(read_history(nodes[leader].client().await?, until)),
        tokio::spawn(read_snapshot(nodes[leader].client().await?, until)),
    ];
    let writing = fill(&mut client, keys, |_| Instant::now() < until).await?;
    let mut read = Vec::new();
    for reader in readers {
        read.push(reader.await?? >> 20);
    }
    let (after, standing) = (terms(&nodes).await?, of_all(&nodes, folder)?);
    // A file is compacted when its node starts.
    let index = nodes[leader].main().await?["index"].clone();
    for (i, node) in nodes.iter_mut().enumerate() {
        node.child.kill().await?;
        let listen = node.address.clone();
        *node = Process::start(program, &folder.join(i.to_string()), &listen, &[]).await?;
    }
    wait(120, || async {
        let mut all = true;
        for node in &nodes {
            all &= node.main().await.is_ok_and(|main| main["index"] == index);
        }
        all
    })
    .await?;
    let elections =
        |from: &[u64], to: &[u64]| to.iter().max().zip(from.iter().max()).map(|(t, f)| t - f);
    Ok(json!({
        "nodes": n, "state_mb": megabytes,
        "filling": filling, "elections_while_filling": elections(&at_first, &filled),
        "writing_while_read": writing, "elections_while_read": elections(&filled, &after),
        "read_mb": { "values": read[0], "history": read[1], "snapshot": read[2] },
        "standing": standing, "after_restart": of_all(&nodes, folder)?,
    }))
}

/// Writes values one after the other while `goes_on`; how long they took.
async fn fill(
    client: &mut Client,
    keys: usize,
    goes_on: impl Fn(usize) -> bool,
) -> anyhow::Result<Value> {
    let (begun, mut taken) = (Instant::now(), Vec::new());
    while goes_on(taken.len()) {
        let begun = Instant::now();
        put(client, &format!("k{}", taken.len() % keys.max(1)), VALUE).await?;
        taken.push(begun.elapsed().as_millis() as u64);
    }
    taken.sort_unstable();
    Ok(json!({
        "seconds": begun.elapsed().as_secs(), "commits": taken.len(),
        "commit_ms": { "p50": quantile(&taken, 0.5), "p99": quantile(&taken, 0.99), "max": taken.last() },
    }))
}

/// All values, page by page, over and over. How many bytes.
async fn read_values(mut client: Client, until: Instant) -> anyhow::Result<u64> {
    let (mut read, mut after) = (0, None::<String>);
    while Instant::now() < until {
        let question = serde_json::to_vec(&KvQuestion::After(after.take()))?;
        let ask = Ask::Read { namespace: "main".to_owned(), question };
        let Answer::State { bytes, .. } = client.ask(ask, PATIENCE).await? else {
            bail!("not a state")
        };
        read += bytes.len() as u64;
        let page: Vec<(String, Value)> = serde_json::from_slice(&bytes)?;
        after = page.into_iter().next_back().map(|(key, _)| key);
    }
    Ok(read)
}

/// The whole history, page by page, over and over. How many bytes of goals.
async fn read_history(mut client: Client, until: Instant) -> anyhow::Result<u64> {
    let (mut read, mut from) = (0, 1);
    while Instant::now() < until {
        let ask = Ask::History { namespace: "main".to_owned(), from, upto: u64::MAX };
        let Answer::Records(page) = client.ask(ask, PATIENCE).await? else { bail!("not records") };
        read += page.iter().map(|record| record.goal.len() as u64).sum::<u64>();
        from = page.last().map_or(1, |record| record.index + 1);
    }
    Ok(read)
}

/// The latest snapshot, piece by piece, over and over. How many bytes.
async fn read_snapshot(mut client: Client, until: Instant) -> anyhow::Result<u64> {
    let (mut read, mut offset) = (0, 0);
    while Instant::now() < until {
        let ask = Ask::Snapshot { namespace: "main".to_owned(), offset };
        let Answer::Piece { length, bytes, .. } = client.ask(ask, PATIENCE).await? else {
            bail!("not a piece")
        };
        read += bytes.len() as u64;
        offset += bytes.len() as u64;
        if offset >= length || bytes.is_empty() {
            offset = 0;
        }
    }
    Ok(read)
}

async fn terms(nodes: &[Process]) -> anyhow::Result<Vec<u64>> {
    let mut terms = Vec::new();
    for node in nodes {
        terms.push(node.main().await?["term"].as_u64().context("a status has a term")?);
    }
    Ok(terms)
}

/// Memory and disk of every node, in MB.
fn of_all(nodes: &[Process], folder: &Path) -> anyhow::Result<Vec<Value>> {
    let of = |(i, node): (usize, &Process)| {
        let pid = node.child.id().context("it runs")?;
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib: Option<u64> = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
        let mut bytes = 0;
        for file in std::fs::read_dir(folder.join(i.to_string()))? {
            bytes += file?.metadata()?.len();
        }
        Ok(json!({ "rss_mb": kib.map(|kib| kib >> 10), "disk_mb": bytes / 1_000_000 }))
    };
    nodes.iter().enumerate().map(of).collect()
}
