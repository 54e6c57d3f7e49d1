//! Three nodes, one account, one Substrate chain: as separate processes, under fire. The chain's pool is
//! imitated, or, with `make test-substrate`, it is a real node's.
//!
//! Every remark that a caller got a yes for is in the final chain exactly once, and the table says of each
//! what the chain says. `TENURE_TX_REMARKS=200` for a longer run.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rand::Rng as _;
use rand::rngs::StdRng;
use serde_json::{Value, json};
use tenure_testkit::{Child, Cluster, Database, Signal};
use tenure_tx::chain::substrate::{Key, Scheme, extrinsic_hash};
use tokio::process::Command;
use tokio::time::{sleep, timeout};

use crate::fire::{Blows, under_fire};
use crate::group::{ask, report};
use crate::kit::program;
use crate::substrate_chain::{Chain, Reader};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    Kill,
    Terminate,
    Freeze,
    StepDown,
    Database,
    ChainRestart,
    Fork,
    QuietFork,
    PoolLost,
}

const FAULTS: [Fault; 9] = [
    Fault::Kill,
    Fault::Terminate,
    Fault::Freeze,
    Fault::StepDown,
    Fault::Database,
    Fault::ChainRestart,
    Fault::Fork,
    Fault::QuietFork,
    Fault::PoolLost,
];

async fn launch(name: &str, dsn: &str, rpc: &str) -> (Child, SocketAddr) {
    let mut command = program();
    command
        .args(["node", "--chain", "substrate", "--rpc", rpc, "--dsn", dsn, "--instance", name])
        .args(["--key-env", "SURI", "--poll", "100ms", "--lease", "1500ms"])
        .args(["--gap-after", "2s", "--stuck-after", "8s", "--max-fee", "1000000000planck"])
        .env("SURI", "//Alice");
    let mut child = Child::spawn(command).expect("a node starts");
    let listening = |line: &str| line.contains("listening");
    let line = child.wait_line(listening, Duration::from_secs(30)).await.expect("it listens");
    let line: Value = serde_json::from_str(&line).expect("JSON");
    (child, line["address"].as_str().expect("an address").parse().expect("an address"))
}

struct Group {
    cluster: Cluster,
    database: Database,
    chain: Chain,
    nodes: Vec<Child>,
    addresses: Arc<Mutex<Vec<SocketAddr>>>,
}

impl Group {
    async fn start(chain: Chain) -> Self {
        let cluster = Cluster::start().await.expect("a cluster");
        let database = cluster.database().await.expect("a database");
        let (mut nodes, mut addresses) = (Vec::new(), Vec::new());
        for name in ["a", "b", "c"] {
            let (child, address) = launch(name, &database.dsn(), chain.url()).await;
            nodes.push(child);
            addresses.push(address);
        }
        let addresses = Arc::new(Mutex::new(addresses));
        Group { cluster, database, chain, nodes, addresses }
    }

    async fn leader(&self) -> usize {
        let found = async {
            loop {
                let addresses = self.addresses.lock().expect("unpoisoned").clone();
                for (index, address) in addresses.into_iter().enumerate() {
                    let status = json!({"op": "status"});
                    let answer = ask(address, &status, Duration::from_millis(500)).await;
                    if answer.is_some_and(|answer| answer["ok"]["role"] == "leader") {
                        return index;
                    }
                }
                sleep(Duration::from_millis(50)).await;
            }
        };
        timeout(Duration::from_secs(60), found).await.expect("a node leads")
    }

    /// Whether it came to pass.
    async fn inject(&mut self, fault: Fault, random: &mut StdRng) -> bool {
        let leader = self.leader().await;
        let victim = if random.random_bool(0.7) { leader } else { random.random_range(0..3) };
        match fault {
            Fault::Kill | Fault::Terminate => {
                let node = &mut self.nodes[victim];
                match fault {
                    Fault::Terminate => {
                        node.signal(Signal::TERM);
                        let ended = node.wait(Duration::from_secs(20)).await.expect("it ends");
                        assert!(ended.success(), "{ended:?}");
                    }
                    _ => drop(node.kill().await.expect("killed")),
                }
                let name = ["a", "b", "c"][victim];
                let (child, address) = launch(name, &self.database.dsn(), self.chain.url()).await;
                self.nodes[victim] = child;
                self.addresses.lock().expect("unpoisoned")[victim] = address;
            }
            Fault::Freeze => {
                self.nodes[victim].freeze();
                sleep(Duration::from_millis(random.random_range(200..3_000))).await;
                self.nodes[victim].thaw();
            }
            Fault::StepDown => return step_down(&self.database.dsn()).await,
            Fault::Database => self.cluster.restart().await.expect("restarts"),
            Fault::ChainRestart => self.chain.restart().await,
            Fault::Fork => return self.chain.fork(true).await,
            Fault::QuietFork => return self.chain.fork(false).await,
            Fault::PoolLost => self.chain.lose_pool().await,
        }
        true
    }

    /// Waits until no row is open, as long as there are ever fewer.
    async fn settle(&self) {
        let (mut least, mut since) = (i64::MAX, Instant::now());
        loop {
            let open = "select count(*) from tenure_tx.pending_transactions where ended_at is null";
            let open: i64 = match self.database.client().await {
                Ok(client) => client.query_one(open, &[]).await.map_or(i64::MAX, |row| row.get(0)),
                Err(_) => i64::MAX,
            };
            if open == 0 {
                return;
            }
            if open < least {
                (least, since) = (open, Instant::now());
            }
            assert!(since.elapsed() < Duration::from_secs(60), "{open} transactions never end");
            sleep(Duration::from_millis(200)).await;
        }
    }

    async fn verdict(&self, requests: usize) {
        let read: Reader = self.chain.reader().await;
        let mut places: BTreeMap<String, (String, String)> = BTreeMap::new();
        let mut noops = 0;
        for (position, (raw, block)) in self.chain.finalized().await.into_iter().enumerate() {
            let fields = read(&raw).expect("an extrinsic");
            assert_eq!(fields.nonce, position as u64, "nonces are contiguous");
            match raw.windows(5).rposition(|part| part == b"mark-") {
                Some(at) => {
                    let text = String::from_utf8_lossy(&raw[at..]).into_owned();
                    let place = (block, extrinsic_hash(&raw).to_string());
                    let twice = places.insert(text.clone(), place);
                    assert!(twice.is_none(), "{text} executed twice");
                }
                None => noops += 1,
            }
        }
        let client = self.database.client().await.expect("it answers");
        let rows = "select request_id, state, '0x' || encode(block_hash, 'hex'), \
                    '0x' || encode(hash, 'hex'), status_metadata::text \
                    from tenure_tx.pending_transactions";
        let mut told = 0;
        for row in client.query(rows, &[]).await.expect("rows") {
            let (id, state): (String, String) = (row.get(0), row.get(1));
            let place: (Option<String>, String) = (row.get(2), row.get(3));
            let note: String = row.get(4);
            if id.starts_with("mark-") {
                assert_eq!(state, "finalized", "{id}: {note}");
                let found = places.get(&id).cloned();
                let found = found.map(|(block, hash)| (Some(block), hash));
                assert_eq!(found, Some(place), "{id}: {note}");
                assert!(note.contains("executed"), "{id}: {note}");
                told += 1;
            }
        }
        assert_eq!((places.len(), told), (requests, requests), "each exactly once, each told");
        report(&format!("{requests} remarks, each once, {noops} no-ops"));
    }
}

/// An operator's order to the leader; whether another one, or the same one anew, leads after it.
async fn step_down(dsn: &str) -> bool {
    let alice = Key::from_suri("//Alice", Scheme::Sr25519).expect("a key");
    let role = format!("tx:{}", alice.account());
    let mut order = Command::new(env!("CARGO_BIN_EXE_tenure"));
    order.args(["step-down", "--role", &role, "--dsn", dsn, "--timeout", "20s"]);
    let ordered = timeout(Duration::from_secs(60), order.output()).await.expect("ends");
    ordered.expect("runs").status.success()
}

/// Asks all nodes until one says yes. The id makes repeating harmless.
async fn send(addresses: &Mutex<Vec<SocketAddr>>, index: usize) {
    let id = format!("mark-{index:06}");
    let remark = format!("0x{}", hex::encode(&id));
    let call = json!({"pallet": "System", "call": "remark", "args": {"remark": remark}});
    let question = json!({"op": "send", "call": call, "request_id": id});
    loop {
        let all = addresses.lock().expect("unpoisoned").clone();
        for address in all {
            let answer = ask(address, &question, Duration::from_secs(4)).await;
            let Some(answer) = answer else { continue };
            if answer.get("ok").is_some() {
                return;
            }
            let code = answer["error"]["code"].as_str().unwrap_or_default();
            let passing =
                ["not_leader", "draining", "stopped", "uncertain", "store", "signer_unavailable"];
            assert!(passing.contains(&code), "request {index}: {answer}");
        }
        sleep(Duration::from_millis(50)).await;
    }
}

fn size(usual: usize) -> usize {
    let size = std::env::var("TENURE_TX_REMARKS").ok();
    size.and_then(|size| size.parse().ok()).unwrap_or(usual)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_accepted_remark_is_final_once_while_nodes_database_and_chain_fail() {
    fire(Chain::imitated().await, size(50)).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the development node: make test-substrate"]
async fn every_accepted_remark_is_final_once_on_a_real_chain_under_fire() {
    fire(Chain::real().await, size(1_000)).await;
}

async fn fire(chain: Chain, requests: usize) {
    let mut group = Group::start(chain).await;
    group.leader().await;
    let addresses = Arc::clone(&group.addresses);
    let send = move |index| {
        let addresses = Arc::clone(&addresses);
        async move { send(&addresses, index).await }
    };
    let mut blows = Blows::new(&FAULTS, 15);
    under_fire(requests, 8, 5, send, async || {
        let fault = blows.draw();
        if group.inject(fault, &mut blows.random).await {
            blows.count(fault);
        }
    })
    .await;
    report(&blows.told());
    group.settle().await;
    group.verdict(requests).await;
}
