//! Three agents and a schedule every second, while leaders are killed, frozen and cut off.
//!
//! `TENURE_AGENT_STORM` is how many seconds that goes on; default: 15.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use tenure_testkit::{Child, Direction, Proxy, shared_cluster};

use crate::kit::{Stage, agent_at, until};

struct Node {
    proxy: Proxy,
    agent: Child,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_slot_fires_twice_and_every_slot_is_accounted_for() {
    let seconds =
        std::env::var("TENURE_AGENT_STORM").ok().and_then(|text| text.parse().ok()).unwrap_or(15);
    let stage = Stage::new().await;
    let cluster = shared_cluster().await;
    let log = stage.path("log");
    let file = stage.file(
        "tenure.toml",
        &format!(
            "[[schedule]]\nname = 's'\nrole = 'cron'\ncron = '@every 1s'\noverlap = 'queue'\n\
             run = 'echo $TENURE_SLOT $TENURE_ATTEMPT >> {log}; sleep 0.2'\n"
        ),
    );
    let mut nodes = Vec::new();
    for _ in 0..3 {
        let proxy = Proxy::start(cluster.addr()).await.expect("a proxy");
        let agent = agent_at(&proxy.dsn(stage.database.name()), &file, &[]);
        nodes.push(Node { proxy, agent });
    }
    let done = "select count(*) from tenure_agent.slot where state = 'succeeded'";
    stage.at_least(done, 2).await;
    let begun = Instant::now();
    let mut fault = 0;
    // Each fault at least once, however slow the machine.
    while begun.elapsed() < Duration::from_secs(seconds) || fault < 3 {
        let Some(at) = leader(&stage, &nodes).await else { continue };
        let before = stage.count(done).await;
        let node = &mut nodes[at];
        match fault % 3 {
            0 => {
                node.agent.kill().await.expect("killed");
                node.agent = agent_at(&node.proxy.dsn(stage.database.name()), &file, &[]);
            }
            1 => {
                node.agent.freeze();
                progress(&stage, done, before + 2).await;
                nodes[at].agent.thaw();
            }
            _ => {
                node.proxy.blackhole(Direction::Both);
                progress(&stage, done, before + 2).await;
                nodes[at].proxy.heal();
            }
        }
        let before = stage.count(done).await;
        progress(&stage, done, before + 2).await;
        fault += 1;
    }
    let starts = stage.starts("log");
    let unique: BTreeSet<&String> = starts.iter().collect();
    assert_eq!(unique.len(), starts.len(), "a slot fired twice: {starts:?}");
    // Every start has its slot, and every second since the first one is accounted for.
    let unknown = "select count(*) from generate_series((select min(at) from tenure_agent.slot), \
        (select max(at) from tenure_agent.slot), interval '1 s') t \
        where not exists (select from tenure_agent.slot s where s.at = t)";
    assert_eq!(stage.count(unknown).await, 0);
    let attempts = stage.count("select count(*) from tenure_agent.attempt").await;
    assert!(attempts >= starts.len() as i64, "{attempts} attempts, {} starts", starts.len());
    // At rest no attempt of an ended term is open.
    until("the ends", async || {
        stage
            .count(
                "select count(*) from tenure_agent.attempt a where a.ended_at is null \
            and a.epoch < (select epoch from tenure.role where name = 'cron')",
            )
            .await
            == 0
    })
    .await;
    // What began either succeeded or is reported as interrupted.
    let otherwise = "select count(*) from tenure_agent.attempt \
        where ended_at is not null and how not in ('succeeded', 'interrupted')";
    assert_eq!(stage.count(otherwise).await, 0);
}

async fn progress(stage: &Stage, sql: &str, least: i64) {
    stage.at_least(sql, least).await;
}

/// Which node leads, if one does.
async fn leader(stage: &Stage, nodes: &[Node]) -> Option<usize> {
    let sql = "select m.pid from tenure.role r join tenure.member m on m.identity = r.holder \
               where r.name = 'cron' and r.debtor = r.holder";
    let pid: i32 = stage.client.query_opt(sql, &[]).await.ok().flatten()?.get(0);
    nodes.iter().position(|node| i64::from(node.agent.pid()) == i64::from(pid))
}
