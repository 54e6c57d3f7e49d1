//! Three nodes, one account, one chain: as separate processes, under fire.
//!
//! Every transaction a caller got a yes for is mined exactly once, nonces have no hole, and no
//! two nodes ever sent different content under one nonce (read off the wire, node by node).
//!
//! The seeded short run is for every day; the long one is
//! `TENURE_TX_RUN=2000 cargo test -p tenure-cli --test tx --release -- group --nocapture`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rand::Rng as _;
use rand::rngs::StdRng;
use serde_json::{Value, json};
use tenure_testkit::anvil::{ADDRESS, Anvil, KEY, number};
use tenure_testkit::{Child, Cluster, Database, Signal};
use tenure_tx::chain::Chain as _;
use tenure_tx::chain::ethereum::{EthereumChain, EthereumOptions};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;
use tokio::time::{sleep, timeout};

use crate::fire::{Blows, under_fire};

/// Signed bytes a node sent, as seen on its own line to the chain.
type Wire = Arc<Mutex<BTreeSet<String>>>;

struct Node {
    child: Child,
    address: SocketAddr,
    wire: Wire,
    upstream: SocketAddr,
    dsn: String,
    name: String,
}

impl Node {
    async fn start(name: &str, dsn: &str, anvil: SocketAddr) -> Self {
        let wire = Wire::default();
        let upstream = tap(anvil, Arc::clone(&wire)).await;
        let (child, address) = launch(name, dsn, upstream).await;
        Node { child, address, wire, upstream, dsn: dsn.to_owned(), name: name.to_owned() }
    }

    async fn restart(&mut self) {
        self.child.kill().await.expect("killed");
        (self.child, self.address) = launch(&self.name, &self.dsn, self.upstream).await;
    }

    /// Told to end, it finishes what it began, leaves the rest to the next leader, and says so.
    async fn terminate(&mut self) {
        self.child.signal(Signal::TERM);
        let ended = self.child.wait(Duration::from_secs(20)).await.expect("it ends");
        assert!(ended.success(), "{ended:?}");
        assert!(self.child.lines().iter().any(|line| line.contains("drained")));
        (self.child, self.address) = launch(&self.name, &self.dsn, self.upstream).await;
    }

    async fn status(&self) -> Option<Value> {
        ask(self.address, &json!({"op": "status"}), Duration::from_millis(500)).await
    }
}

async fn launch(name: &str, dsn: &str, chain: SocketAddr) -> (Child, SocketAddr) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
    command
        .args(["tx", "node", "--dsn", dsn, "--instance", name, "--rpc", &format!("http://{chain}")])
        .args(["--key-env", "RELAYER_KEY", "--poll", "200ms", "--lease", "1500ms"])
        .args(["--gap-after", "2s", "--stuck-after", "8s"])
        .env("RELAYER_KEY", KEY)
        .env("TENURE_LOG", std::env::var("TENURE_LOG").unwrap_or_else(|_| "error".into()));
    let mut child = Child::spawn(command).expect("a node starts");
    let line = child
        .wait_line(|line| line.contains("listening"), Duration::from_secs(30))
        .await
        .expect("it listens");
    let line: Value = serde_json::from_str(&line).expect("JSON");
    (child, line["address"].as_str().expect("an address").parse().expect("an address"))
}

/// A line to the chain that notes what is sent over it.
async fn tap(chain: SocketAddr, wire: Wire) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(async move {
        while let Ok((near, _)) = listener.accept().await {
            let wire = Arc::clone(&wire);
            tokio::spawn(async move {
                let Ok(far) = TcpStream::connect(chain).await else { return };
                let (mut near_read, mut near_write) = near.into_split();
                let (mut far_read, mut far_write) = far.into_split();
                let back =
                    async { tokio::io::copy(&mut far_read, &mut near_write).await.map(drop) };
                let forth = async {
                    let (mut seen, mut buffer) = (Vec::new(), vec![0; 64 << 10]);
                    loop {
                        let read = near_read.read(&mut buffer).await?;
                        if read == 0 {
                            return Ok::<_, std::io::Error>(());
                        }
                        seen.extend_from_slice(&buffer[..read]);
                        note(&mut seen, &wire);
                        far_write.write_all(&buffer[..read]).await?;
                    }
                };
                // Either end's end is the end of both.
                tokio::select! { _ = back => {} _ = forth => {} }
            });
        }
    });
    address
}

/// Takes complete `eth_sendRawTransaction` parameters out of the bytes seen.
fn note(seen: &mut Vec<u8>, wire: &Wire) {
    const CALL: &str = "\"eth_sendRawTransaction\",\"params\":[\"";
    let text = String::from_utf8_lossy(seen).into_owned();
    let mut rest = text.as_str();
    while let Some(at) = rest.find(CALL) {
        let raw = &rest[at + CALL.len()..];
        let Some(end) = raw.find('"') else {
            *seen = rest.as_bytes()[at..].to_vec();
            return;
        };
        wire.lock().expect("unpoisoned").insert(raw[..end].to_owned());
        rest = &raw[end..];
    }
    let tail = rest.len().saturating_sub(CALL.len());
    *seen = rest.as_bytes()[tail..].to_vec();
}

pub(crate) async fn ask(address: SocketAddr, question: &Value, within: Duration) -> Option<Value> {
    let talk = async {
        let mut stream = BufReader::new(TcpStream::connect(address).await.ok()?);
        stream.write_all(format!("{question}\n").as_bytes()).await.ok()?;
        let mut line = String::new();
        stream.read_line(&mut line).await.ok()?;
        serde_json::from_str(&line).ok()
    };
    timeout(within, talk).await.ok()?
}

/// The receiver of request `index`: each request pays another address.
fn receiver(index: usize) -> String {
    format!("0x2000000000000000000000000000{index:012x}")
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    Kill,
    Terminate,
    Freeze,
    Database,
    Chain,
}

type Addresses = Arc<Mutex<Vec<SocketAddr>>>;

/// Asks all nodes until one says yes. The id makes repeating harmless.
async fn send(nodes: &Addresses, index: usize) {
    let call = json!({"to": receiver(index), "value": "0x1", "gas": 21_000});
    let question = json!({"op": "send", "call": call, "request_id": format!("request-{index}")});
    loop {
        let addresses = nodes.lock().expect("unpoisoned").clone();
        for address in addresses {
            let answer = ask(address, &question, Duration::from_secs(4)).await;
            let Some(answer) = answer else { continue };
            if answer.get("ok").is_some() {
                return;
            }
            let code = answer["error"]["code"].as_str().unwrap_or_default();
            let passing = ["not_leader", "draining", "stopped", "uncertain", "store"];
            assert!(passing.contains(&code), "request {index}: {answer}");
        }
        sleep(Duration::from_millis(50)).await;
    }
}

struct Group {
    cluster: Cluster,
    database: Database,
    anvil: Anvil,
    nodes: Vec<Node>,
    addresses: Addresses,
}

impl Group {
    async fn start(state: &str) -> Self {
        let cluster = Cluster::start().await.expect("a cluster");
        let database = cluster.database().await.expect("a database");
        let arguments = ["--block-time", "1", "--state", state, "--preserve-historical-states"];
        let anvil = Anvil::start(&arguments).await;
        let chain = anvil.url.trim_start_matches("http://").parse().expect("an address");
        let mut nodes = Vec::new();
        for name in ["a", "b", "c"] {
            nodes.push(Node::start(name, &database.dsn(), chain).await);
        }
        let addresses = nodes.iter().map(|n| n.address).collect();
        let addresses = Arc::new(Mutex::new(addresses));
        Group { cluster, database, anvil, nodes, addresses }
    }

    async fn leader(&self) -> usize {
        let found = async {
            loop {
                for (index, node) in self.nodes.iter().enumerate() {
                    if node.status().await.is_some_and(|s| s["ok"]["role"] == "leader") {
                        return index;
                    }
                }
                sleep(Duration::from_millis(50)).await;
            }
        };
        timeout(Duration::from_secs(60), found).await.expect("a node leads")
    }

    async fn inject(&mut self, fault: Fault, random: &mut StdRng) {
        // Most faults hit the leader: that is where it hurts.
        let leader = self.leader().await;
        let victim = if random.random_bool(0.7) { leader } else { random.random_range(0..3) };
        match fault {
            Fault::Kill | Fault::Terminate => {
                match fault {
                    Fault::Terminate => self.nodes[victim].terminate().await,
                    _ => self.nodes[victim].restart().await,
                }
                let address = self.nodes[victim].address;
                self.addresses.lock().expect("unpoisoned")[victim] = address;
            }
            Fault::Freeze => {
                self.nodes[victim].child.freeze();
                sleep(Duration::from_millis(random.random_range(200..4_000))).await;
                self.nodes[victim].child.thaw();
            }
            Fault::Database => self.cluster.restart().await.expect("restarts"),
            Fault::Chain => self.anvil.restart().await,
        }
    }

    /// Waits until no row is open.
    async fn settle(&self, within: Duration) {
        let until = Instant::now() + within;
        loop {
            let open = "select count(*) from tenure_tx.pending_transactions where ended_at is null";
            let open: i64 = match self.database.client().await {
                Ok(client) => client.query_one(open, &[]).await.map_or(-1, |row| row.get(0)),
                Err(_) => -1,
            };
            if open == 0 {
                return;
            }
            assert!(Instant::now() < until, "{open} transactions never ended");
            sleep(Duration::from_millis(200)).await;
        }
    }

    async fn verdict(&self, requests: usize) {
        let mined = self.anvil.mined().await;
        let mut times: BTreeMap<String, usize> = BTreeMap::new();
        for (position, tx) in mined.iter().enumerate() {
            assert_eq!(number(&tx["nonce"]), position as u64, "nonces are contiguous");
            *times.entry(tx["to"].as_str().unwrap_or_default().to_owned()).or_default() += 1;
        }
        let fillers = times.remove(ADDRESS).unwrap_or(0);
        for index in 0..requests {
            let count = times.remove(&receiver(index)).unwrap_or(0);
            assert_eq!(count, 1, "request {index} was mined {count} times");
        }
        assert!(times.is_empty(), "no request asked for {times:?}");
        let content = self.content_by_nonce();
        for (nonce, contents) in &content {
            assert!(contents.len() <= 1, "nonce {nonce} left with {contents:?}");
        }
        let sent: usize = self.nodes.iter().map(|n| n.wire.lock().expect("unpoisoned").len()).sum();
        let senders =
            self.nodes.iter().filter(|n| !n.wire.lock().expect("unpoisoned").is_empty()).count();
        let summary = format!(
            "{requests} requests, {} mined, {fillers} no-ops, {sent} transactions on the wire by \
             {senders} nodes",
            mined.len()
        );
        report(&summary);
    }

    /// What left any node under each nonce, no-ops apart.
    fn content_by_nonce(&self) -> BTreeMap<u64, BTreeSet<String>> {
        let chain = EthereumChain::new(&self.anvil.url, EthereumOptions::default()).expect("a URL");
        let mut contents: BTreeMap<u64, BTreeSet<String>> = BTreeMap::new();
        for node in &self.nodes {
            for raw in node.wire.lock().expect("unpoisoned").iter() {
                let bytes = decode(raw);
                let seen = chain.inspect(&bytes).expect("a transaction");
                assert_eq!(seen.account.map(|a| a.to_string()).as_deref(), Some(ADDRESS));
                let entry = contents.entry(seen.nonce.expect("a nonce")).or_default();
                // The receiver is in the bytes as it is: every request has its own.
                if let Some(at) = raw.find("2000000000000000000000000000") {
                    entry.insert(raw[at..at + 40].to_owned());
                }
            }
        }
        contents
    }
}

pub(crate) fn decode(text: &str) -> Vec<u8> {
    hex::decode(text.trim_start_matches("0x")).expect("hex")
}

#[allow(clippy::print_stderr, reason = "the figures of a run")]
pub(crate) fn report(line: &str) {
    eprintln!("{line}");
}

async fn fire(requests: usize, seed: u64, kinds: &'static [Fault]) {
    let dir = tempfile::tempdir().expect("a folder");
    let state = dir.path().join("chain.json");
    let mut group = Group::start(state.to_str().expect("plain")).await;
    group.leader().await;
    let addresses = Arc::clone(&group.addresses);
    let send = move |index| {
        let addresses = Arc::clone(&addresses);
        async move { send(&addresses, index).await }
    };
    let mut blows = Blows::new(kinds, seed);
    under_fire(requests, 16, 16, send, async || {
        let fault = blows.draw();
        group.inject(fault, &mut blows.random).await;
        blows.count(fault);
    })
    .await;
    report(&blows.told());
    group.settle(Duration::from_secs(120)).await;
    group.verdict(requests).await;
}

fn size(default: usize) -> usize {
    std::env::var("TENURE_TX_RUN").ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_accepted_transaction_is_mined_once_while_nodes_and_database_fail() {
    fire(size(400), 7, &[Fault::Kill, Fault::Terminate, Fault::Freeze, Fault::Database]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_accepted_transaction_is_mined_once_while_the_chain_restarts_too() {
    fire(
        size(200),
        11,
        &[Fault::Kill, Fault::Freeze, Fault::Terminate, Fault::Database, Fault::Chain],
    )
    .await;
}
