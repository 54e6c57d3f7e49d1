//! Shards with real children.

use std::collections::BTreeSet;
use std::fs;
use std::thread::available_parallelism;
use std::time::Instant;

use tenure_testkit::Child;

use crate::commands::end;
use crate::kit::{SOON, Stage, said, until};

/// The processes that this one started and that are alive.
fn children(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let lists: Vec<String> = lists.collect();
    lists.iter().flat_map(|list| list.split_whitespace()).flat_map(str::parse).collect()
}

/// How many guardians of an agent have not started their child. Each of them was in that state at the moment
/// at which the list of them was complete. One that has had a child and has none is ending.
fn starting(agent: &Child, parents: &mut BTreeSet<u32>) -> usize {
    let guardians = children(agent.pid());
    let (childless, others): (Vec<u32>, Vec<u32>) =
        guardians.into_iter().partition(|guardian| children(*guardian).is_empty());
    parents.extend(others);
    childless.into_iter().filter(|guardian| !parents.contains(guardian)).count()
}

#[tokio::test]
async fn three_agents_share_thirty_shards_and_a_killed_ones_are_taken_over() {
    let stage = Stage::new().await;
    let run = "[[shards]]\nname = 'ingest'\ncount = 30\n\
        run = 'echo shard $TENURE_SHARD of $TENURE_SHARDS; exec sleep 602'\n";
    let file = stage.file("tenure.toml", run);
    let mut agents: Vec<Child> =
        (0..3).map(|n| stage.agent(&file, &["--instance", &format!("host-{n}")])).collect();
    let even = "select count(*) from (select holder from tenure.role where name like 'ingest-%' \
        and debtor = holder group by holder having count(*) = 10) even";
    let limit = available_parallelism().map_or(1, usize::from) * 2;
    let (begun, mut most, mut parents) = (Instant::now(), 0, BTreeSet::new());
    while stage.count(even).await < 3 {
        assert!(begun.elapsed() < SOON, "they are not spread");
        for agent in &agents {
            most = most.max(starting(agent, &mut parents));
        }
        assert!(most <= limit, "{most} children were starting at once");
    }
    // Each shard's child runs under its own number, and on one agent alone.
    until("thirty children", async || {
        let alive: usize = agents
            .iter()
            .map(|agent| children(agent.pid()).into_iter().flat_map(children).count())
            .sum();
        alive == 30
    })
    .await;
    until("a line of each shard", async || {
        let lines = agents.iter_mut().flat_map(|agent| agent.lines().to_vec());
        let told = lines.filter(|line| line.starts_with("shard ") && line.ends_with(" of 30"));
        told.collect::<BTreeSet<String>>().len() == 30
    })
    .await;
    agents[0].kill().await.expect("killed");
    let shared = "select count(*) from (select holder from tenure.role where name like 'ingest-%' \
        and debtor = holder and holder not like '%host-0%' group by holder having count(*) = 15) even";
    stage.at_least(shared, 2).await;
    for agent in &mut agents[1..] {
        end(agent).await;
    }
}

#[tokio::test]
async fn a_set_that_cannot_be_spread_is_refused() {
    let stage = Stage::new().await;
    let set = "[[shards]]\nname = 'ingest'\ncount = 2\nrun = 'true'\n";
    for (text, why) in [
        (format!("{set}[[role]]\nname = 'ingest-1'\npreempt = true\n"), "never preempts"),
        (format!("{set}{set}"), "has a command already"),
        (set.replace("= 2", "= 0"), "line 7, column 9"),
        (set.replace("= 2", "= 10001"), "1 to 10000 shards"),
    ] {
        let file = stage.file("bad.toml", &text);
        let output =
            stage.ends(&["agent", "--check", "--config", file.to_str().expect("text")]).await;
        assert_eq!(output.status.code(), Some(2), "{}", said(&output));
        assert!(said(&output).contains(why), "{why}: {}", said(&output));
    }
}
