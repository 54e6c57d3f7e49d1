//! The storm at the edge to the chain: three nodes as processes, each behind two gateways that lose
//! answers and speak in other clients' words, one anvil that is reorganised, whose pool is emptied, whose
//! fees spike and on which the account runs dry, while nodes and database are restarted.
//!
//! The verdict is the chain's: every accepted request executed once with its own content, or ended in
//! another way and executed never; and each caller heard the end that the chain tells.
//!
//! The short run is for every day; the long one is `make storm`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use rand::{Rng as _, SeedableRng as _};
use serde_json::{Value, json};
use tenure_testkit::anvil::{ADDRESS, Anvil, number};
use tenure_testkit::rpc_proxy::{Fault, RpcProxy, SEND};
use tenure_testkit::{Child, Cluster, Database, Signal};
use tenure_tx::chain::Chain as _;
use tenure_tx::chain::ethereum::{EthereumChain, EthereumOptions};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::group::{ask, decode, report};
use crate::kit::node_at;

/// A contract that fails whatever it is called with.
const FAILING: &str = "0x4000000000000000000000000000000000000001";

/// Enough for everything, and what the account has again after it ran dry.
const WEALTH: &str = "0x21e19e0c9bab2400000";

/// What is asked of the group, by the number of the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Pay,
    /// A call that fails in its block.
    Fail,
    /// Given up by order some time later.
    Drop,
    /// Given up by its own deadline.
    Deadline,
}

fn kind(index: usize) -> Kind {
    match index % 20 {
        3 => Kind::Fail,
        8 => Kind::Drop,
        13 => Kind::Deadline,
        _ => Kind::Pay,
    }
}

/// The content of request `index`; no two requests have the same.
fn call(index: usize) -> Value {
    match kind(index) {
        Kind::Fail => json!({"to": FAILING, "gas": 60_000, "data": format!("0x{index:064x}")}),
        Kind::Pay | Kind::Drop | Kind::Deadline => {
            json!({"to": receiver(index), "value": "0x1", "gas": 21_000})
        }
    }
}

fn receiver(index: usize) -> String {
    format!("0x2000000000000000000000000000{index:012x}")
}

/// Which request a transaction carries; `None` for a no-op.
fn request_of(tx: &Value) -> Option<usize> {
    let to = tx["to"].as_str().unwrap_or_default();
    let (text, radix) = match to {
        ADDRESS => return None,
        FAILING => (tx["input"].as_str().unwrap_or_default().get(50..).unwrap_or_default(), 16),
        _ => (to.get(30..).unwrap_or_default(), 16),
    };
    Some(usize::from_str_radix(text, radix).unwrap_or_else(|_| panic!("no request asked for {tx}")))
}

/// What a gateway does to one call: a tenth of all go wrong.
fn misbehave(method: &str, random: &mut StdRng) -> Fault {
    let say = |code: i64, text: &str| Fault::Say(code, text.to_owned());
    let pass_and_say = |text: &str| Fault::PassAndSay(-32000, text.to_owned());
    let percent = random.random_range(0..1_000);
    match (method, percent) {
        (SEND, 0..20) => Fault::LoseAnswer,
        (SEND, 20..40) => Fault::PassAndHttp(502),
        (SEND, 40..60) => pass_and_say("upstream request timed out"),
        (SEND, 60..80) => pass_and_say("AlreadyKnown"),
        (SEND, 80..90) => pass_and_say("tx already in mempool"),
        (SEND, 90..105) => Fault::Http(429),
        (SEND, 105..120) => Fault::Cut,
        (SEND, 120..130) => say(-32000, "txpool is full"),
        (SEND, 130..140) => {
            say(-32010, "InsufficientFunds, Account balance: 0, cumulative cost: 21000")
        }
        (SEND, 140..150) => say(-32004, "Upfront cost exceeds account balance"),
        (SEND, 150..160) => say(-32603, "internal error"),
        (SEND, 160..165) => say(-32000, "transaction underpriced"),
        ("eth_getTransactionByHash", 0..50) => Fault::Null,
        ("eth_getTransactionReceipt" | "eth_getBlockReceipts", 0..30) => Fault::Null,
        (_, 0..8) => Fault::Http(503),
        (_, 8..14) => Fault::Cut,
        (_, 14..20) => say(-32005, "limit exceeded"),
        _ => Fault::Pass,
    }
}

struct Member {
    name: &'static str,
    child: Child,
    address: SocketAddr,
    gateways: [RpcProxy; 2],
    dsn: String,
}

impl Member {
    async fn start(name: &'static str, dsn: &str, anvil: &Anvil, seed: u64) -> Self {
        let gateways = [RpcProxy::start(&anvil.url).await, RpcProxy::start(&anvil.url).await];
        let (child, address) = launch(name, dsn, &gateways).await;
        for (number, gateway) in (0..).zip(&gateways) {
            let random = Mutex::new(StdRng::seed_from_u64(seed + number));
            gateway
                .rule(move |method, _| misbehave(method, &mut random.lock().expect("unpoisoned")));
        }
        Member { name, child, address, gateways, dsn: dsn.to_owned() }
    }

    async fn again(&mut self) {
        (self.child, self.address) = launch(self.name, &self.dsn, &self.gateways).await;
    }
}

async fn launch(name: &str, dsn: &str, gateways: &[RpcProxy; 2]) -> (Child, SocketAddr) {
    let rpc = format!("{},{}", gateways[0].url, gateways[1].url);
    let arguments = [
        ["--dsn", dsn],
        ["--instance", name],
        ["--lease", "3s"],
        ["--gap-after", "2s"],
        ["--stuck-after", "8s"],
        ["--max-fee-per-gas", "50gwei"],
        ["--chain-lost-after", "3s"],
    ];
    let (child, address) = node_at(&rpc, &arguments.concat()).await;
    (child, address.parse().expect("an address"))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Weather {
    /// Blocks leave the chain, and their transactions leave the pool.
    Reorg,
    /// The pool forgets everything.
    Forget,
    /// The base fee is above the cap for a while.
    Spike,
    /// The account owns nothing for a while.
    Dry,
    Kill,
    Terminate,
    Freeze,
    Database,
}

const WEATHER: [Weather; 8] = [
    Weather::Reorg,
    Weather::Forget,
    Weather::Spike,
    Weather::Dry,
    Weather::Kill,
    Weather::Terminate,
    Weather::Freeze,
    Weather::Database,
];

type Addresses = Arc<Mutex<Vec<SocketAddr>>>;

/// What each caller heard of its request.
type Heard = Arc<Mutex<BTreeMap<usize, Value>>>;

struct Storm {
    cluster: Cluster,
    database: Database,
    anvil: Arc<Anvil>,
    /// Held while a block is made, and while blocks are taken back: an anvil that does both at once loses
    /// some for good.
    chain: Arc<tokio::sync::Mutex<()>>,
    _miner: JoinSet<()>,
    members: Vec<Member>,
    addresses: Addresses,
}

/// A block every third of a second: what the callers wait for is finality, eight blocks later.
async fn mine(anvil: Arc<Anvil>, chain: Arc<tokio::sync::Mutex<()>>) {
    loop {
        let still = chain.lock().await;
        anvil.mine(1).await;
        drop(still);
        sleep(Duration::from_millis(300)).await;
    }
}

impl Storm {
    async fn begin(seed: u64) -> Self {
        let cluster = Cluster::start().await.expect("a cluster");
        let database = cluster.database().await.expect("a database");
        // Final is eight below the latest: reorganisations are less deep.
        let anvil = Arc::new(Anvil::start(&["--no-mining", "--slots-in-an-epoch", "4"]).await);
        let chain = Arc::default();
        let mut miner = JoinSet::new();
        miner.spawn(mine(Arc::clone(&anvil), Arc::clone(&chain)));
        anvil.call("anvil_setCode", json!([FAILING, "0x5f5ffd"])).await;
        let mut members = Vec::new();
        for (number, name) in (0..).zip(["a", "b", "c"]) {
            members.push(Member::start(name, &database.dsn(), &anvil, seed + 10 * number).await);
        }
        let addresses = members.iter().map(|member| member.address).collect();
        let addresses = Arc::new(Mutex::new(addresses));
        Storm { cluster, database, anvil, chain, _miner: miner, members, addresses }
    }

    /// The member that leads, or any if none does just now.
    async fn victim(&self, random: &mut StdRng) -> usize {
        for (index, member) in self.members.iter().enumerate() {
            let status = ask(member.address, &json!({"op": "status"}), SOON).await;
            if status.is_some_and(|status| status["ok"]["role"] == "leader") {
                return if random.random_bool(0.7) { index } else { random.random_range(0..3) };
            }
        }
        random.random_range(0..3)
    }

    async fn strike(&mut self, weather: Weather, random: &mut StdRng) {
        let victim = self.victim(random).await;
        match weather {
            Weather::Reorg => {
                let latest = number(&self.anvil.call("eth_blockNumber", json!([])).await);
                let depth = random.random_range(1..=6).min(latest.saturating_sub(1));
                if depth > 0 {
                    let _still = self.chain.lock().await;
                    self.anvil.call("anvil_reorg", json!([depth, []])).await;
                    // The chain is back at an older state, perhaps at one in which the account was dry.
                    self.anvil.call("anvil_setBalance", json!([ADDRESS, WEALTH])).await;
                }
            }
            Weather::Forget => drop(self.anvil.call("anvil_dropAllTransactions", json!([])).await),
            Weather::Spike => {
                let fee = |fee: &str| json!([fee]);
                let method = "anvil_setNextBlockBaseFeePerGas";
                self.anvil.call(method, fee("0x2e90edd000")).await;
                sleep(Duration::from_millis(random.random_range(500..2_500))).await;
                self.anvil.call(method, fee("0x3b9aca00")).await;
            }
            Weather::Dry => {
                self.anvil.call("anvil_setBalance", json!([ADDRESS, "0x0"])).await;
                sleep(Duration::from_millis(random.random_range(500..2_500))).await;
                self.anvil.call("anvil_setBalance", json!([ADDRESS, WEALTH])).await;
            }
            Weather::Kill => {
                self.members[victim].child.kill().await.expect("killed");
                self.restart(victim).await;
            }
            Weather::Terminate => {
                self.members[victim].child.signal(Signal::TERM);
                let ended = self.members[victim].child.wait(Duration::from_secs(30)).await;
                assert!(ended.expect("it ends").success());
                self.restart(victim).await;
            }
            Weather::Freeze => {
                self.members[victim].child.freeze();
                sleep(Duration::from_millis(random.random_range(200..3_000))).await;
                self.members[victim].child.thaw();
            }
            Weather::Database => self.cluster.restart().await.expect("restarts"),
        }
    }

    /// What the nodes and the table say of themselves, for a storm that is stuck.
    async fn standing(&self) -> String {
        let mut told = Vec::new();
        for member in &self.members {
            let status = ask(member.address, &json!({"op": "status"}), SOON).await;
            told.push(format!("{}: {status:?}", member.name));
        }
        let rows = "select nonce, state, request_id, status_metadata::text, updated_at::text \
             from tenure_tx.pending_transactions where ended_at is null order by nonce limit 5";
        let client = self.database.client().await.expect("it answers");
        for row in client.query(rows, &[]).await.expect("readable") {
            let (nonce, state): (i64, String) = (row.get(0), row.get(1));
            let (id, note, at): (String, String, String) = (row.get(2), row.get(3), row.get(4));
            told.push(format!("{nonce} {state} {id} {note} {at}"));
        }
        let next = self.anvil.nonce().await;
        told.push(format!("the chain's nonce is {next}"));
        // Ends above it are either false, or of blocks whose accounts the node has forgotten.
        let ended = "select nonce, state, status_metadata::text from tenure_tx.pending_transactions \
             where ended_at is not null and state <> 'invalid' and nonce >= $1 order by nonce limit 5";
        let from = i64::try_from(next).expect("a nonce");
        for row in client.query(ended, &[&from]).await.expect("readable") {
            let (nonce, state, note): (i64, String, String) = (row.get(0), row.get(1), row.get(2));
            told.push(format!("ended above: {nonce} {state} {note}"));
        }
        let mined = self.anvil.mined().await;
        let above: Vec<_> = mined.iter().filter(|tx| number(&tx["nonce"]) >= next).collect();
        told.push(format!("{} in blocks, those above: {above:?}", mined.len()));
        told.join("\n")
    }

    async fn restart(&mut self, victim: usize) {
        self.members[victim].again().await;
        self.addresses.lock().expect("unpoisoned")[victim] = self.members[victim].address;
    }

    /// Compares what the callers heard, the table and the chain.
    async fn verdict(&self, requests: usize, heard: &BTreeMap<usize, Value>) -> String {
        let mut executed: BTreeMap<usize, Vec<Value>> = BTreeMap::new();
        let mut noops = BTreeSet::new();
        for (position, tx) in self.anvil.mined().await.into_iter().enumerate() {
            assert_eq!(number(&tx["nonce"]), position as u64, "nonces are contiguous");
            match request_of(&tx) {
                Some(index) => executed.entry(index).or_default().push(tx),
                None => drop(noops.insert(tx["hash"].to_string())),
            }
        }
        let client = self.database.client().await.expect("it answers");
        let rows = "select status_metadata::text, request_id, ended_at is not null, '0x' || \
             encode(hash, 'hex') from tenure_tx.pending_transactions union all select \
             status_metadata::text, request_id, true, '0x' || encode(hash, 'hex') from \
             tenure_tx.past_transactions";
        let mut table = BTreeMap::new();
        for row in client.query(rows, &[]).await.expect("readable") {
            let note: Value = serde_json::from_str(row.get(0)).expect("JSON");
            assert!(row.get::<_, bool>(2), "open for ever: {note}");
            table.insert(row.get::<_, String>(1), note["end"].clone());
        }
        let mut ends: BTreeMap<String, usize> = BTreeMap::new();
        for index in 0..requests {
            let end = heard.get(&index).unwrap_or_else(|| panic!("{index} never heard its end"));
            let stored = table.get(&name(index)).unwrap_or_else(|| panic!("{index} has no row"));
            assert_eq!(end["kind"], stored["kind"], "request {index}: {end}, {stored}");
            let on_chain = executed.remove(&index).unwrap_or_default();
            assert!(on_chain.len() <= 1, "request {index} was executed twice: {on_chain:?}");
            let told = end["kind"].as_str().unwrap_or_default();
            match (told, on_chain.first()) {
                ("executed" | "reverted", Some(tx)) => {
                    let failing = kind(index) == Kind::Fail;
                    assert_eq!(told == "reverted", failing, "request {index}: {end}");
                    assert_eq!(end["hash"], tx["hash"], "request {index}: {end}");
                    assert_eq!(end["block"], tx["blockHash"], "request {index}: {end}");
                }
                ("replaced" | "withdrawn", None) => {
                    assert_eq!(kind(index), Kind::Drop, "no order dropped {index}: {end}");
                    let seen = end["hash"].is_null() || noops.contains(&end["hash"].to_string());
                    assert!(seen, "request {index}: no such no-op on the chain: {end}");
                }
                ("expired", None) => {
                    assert_eq!(kind(index), Kind::Deadline, "{index} had no deadline: {end}");
                    let seen = end["hash"].is_null() || noops.contains(&end["hash"].to_string());
                    assert!(seen, "request {index}: no such no-op on the chain: {end}");
                }
                (_, on_chain) => panic!("request {index}: told {end}, on the chain {on_chain:?}"),
            }
            *ends.entry(told.to_owned()).or_default() += 1;
        }
        assert!(executed.is_empty(), "no request asked for {executed:?}");
        let forms = self.check_contents(heard);
        format!("{requests} requests ended as {ends:?}; {} no-ops; {forms} forms sent", noops.len())
    }

    /// What left the nodes under each nonce: one request's content, unless another one's was given up
    /// before any node had it. Returns how many signed forms there were.
    fn check_contents(&self, heard: &BTreeMap<usize, Value>) -> usize {
        let chain = EthereumChain::new(&self.anvil.url, EthereumOptions::default()).expect("a URL");
        let mut contents: BTreeMap<u64, BTreeSet<usize>> = BTreeMap::new();
        let mut forms = BTreeSet::new();
        for gateway in self.members.iter().flat_map(|member| &member.gateways) {
            forms.extend(gateway.sent());
        }
        for raw in &forms {
            let seen = chain.inspect(&decode(raw)).expect("a transaction");
            let at = |prefix: &str, length: usize| {
                let begin = raw.find(prefix)? + prefix.len();
                usize::from_str_radix(raw.get(begin..begin + length)?, 16).ok()
            };
            let index = at("2000000000000000000000000000", 12)
                .or_else(|| at(&format!("{}{}", &FAILING[2..], "80a0"), 64));
            contents.entry(seen.nonce.expect("a nonce")).or_default().extend(index);
        }
        for (nonce, indices) in contents {
            let lives = |index: &&usize| {
                let kind = heard.get(index).map(|end| end["kind"].clone()).unwrap_or_default();
                !matches!(kind.as_str(), Some("replaced" | "withdrawn" | "expired"))
            };
            let living: Vec<_> = indices.iter().filter(lives).collect();
            assert!(living.len() <= 1, "nonce {nonce} left with the content of {indices:?}");
        }
        forms.len()
    }
}

const SOON: Duration = Duration::from_millis(500);

fn name(index: usize) -> String {
    format!("request-{index}")
}

/// Asks all nodes until one answers for good.
async fn ask_all(nodes: &Addresses, question: &Value, within: Duration) -> Value {
    loop {
        let addresses = nodes.lock().expect("unpoisoned").clone();
        for address in addresses {
            let Some(answer) = ask(address, question, within).await else { continue };
            let code = answer["error"]["code"].as_str().unwrap_or_default();
            let passing = ["not_leader", "draining", "stopped", "uncertain", "store", "busy"];
            if !passing.contains(&code) {
                return answer;
            }
        }
        sleep(Duration::from_millis(50)).await;
    }
}

/// One caller's whole conversation: it sends, perhaps gives up, and waits for the end.
async fn converse(nodes: Addresses, index: usize, patience: Duration) -> (usize, Value) {
    let id = name(index);
    let mut send = json!({"op": "send", "call": call(index), "request_id": id});
    if kind(index) == Kind::Deadline {
        send["deadline_ms"] = json!(patience.as_millis() as u64);
    }
    let accepted = ask_all(&nodes, &send, Duration::from_secs(4)).await;
    assert!(accepted.get("ok").is_some(), "request {index}: {accepted}");
    if kind(index) == Kind::Drop {
        sleep(patience).await;
        let drop = json!({"op": "cancel", "request_id": id});
        // It may have ended by now; the verdict is about what is told in the end.
        ask_all(&nodes, &drop, Duration::from_secs(8)).await;
    }
    let wait = json!({"op": "wait", "request_id": id, "within_ms": 2_000});
    loop {
        let answer = ask_all(&nodes, &wait, Duration::from_secs(5)).await;
        assert!(answer.get("ok").is_some(), "request {index}: {answer}");
        if answer["ok"]["ended"] == json!(true) {
            return (index, answer["ok"]["end"].clone());
        }
    }
}

/// How long a group may go without an end while nothing strikes it: then it is stuck, and no blow is to
/// blame.
const CALM: Duration = Duration::from_secs(90);

/// The blows follow the ends: the next one falls when some callers have heard theirs since the last. Blows
/// by the clock alone would come faster than a slow machine takes over, and measure only the machine.
async fn storm(requests: usize, at_once: usize, seed: u64) {
    let mut storm = Storm::begin(seed).await;
    let started = Instant::now();
    let step = (at_once / 50).max(1);
    let (mut ends, mut struck) = (0, Instant::now());
    let mut longest = Duration::ZERO;
    let heard = Heard::default();
    let mut random = StdRng::seed_from_u64(seed);
    let mut callers = JoinSet::new();
    let mut next = 0;
    let mut strikes: BTreeMap<Weather, u32> = BTreeMap::new();
    let mut round: Vec<Weather> = Vec::new();
    let mut strike_at = Instant::now() + Duration::from_millis(600);
    while next < requests || !callers.is_empty() {
        while next < requests && callers.len() < at_once {
            let patience = Duration::from_millis(random.random_range(0..4_000));
            callers.spawn(converse(Arc::clone(&storm.addresses), next, patience));
            next += 1;
        }
        let pause = strike_at.saturating_duration_since(Instant::now());
        let due = strikes.is_empty() || ends >= step;
        // Cancel-safe: a join set and a timer.
        tokio::select! {
            Some(done) = callers.join_next() => {
                let (index, end) = done.expect("no panic");
                heard.lock().expect("unpoisoned").insert(index, end);
                (ends, longest) = (ends + 1, longest.max(struck.elapsed()));
                struck = Instant::now();
            }
            () = sleep(CALM.saturating_sub(struck.elapsed())) => {
                let told = heard.lock().expect("unpoisoned").len();
                panic!("{told} ends, and none within {CALM:?} of calm: {}", storm.standing().await);
            }
            // The storm ends when all have asked: what is left is to be settled.
            () = sleep(pause), if due && (next < requests || strikes.len() < WEATHER.len()) => {
                if round.is_empty() {
                    round = WEATHER.to_vec();
                    round.shuffle(&mut random);
                }
                let weather = round.pop().expect("refilled");
                storm.strike(weather, &mut random).await;
                *strikes.entry(weather).or_default() += 1;
                (ends, struck) = (0, Instant::now());
                strike_at = Instant::now() + Duration::from_millis(600);
            }
        }
    }
    let took = started.elapsed();
    // What fills gaps behind the last request has to end too.
    let settled = async {
        let open = "select count(*) from tenure_tx.pending_transactions where ended_at is null";
        loop {
            let open: i64 = match storm.database.client().await {
                Ok(client) => client.query_one(open, &[]).await.map_or(-1, |row| row.get(0)),
                Err(_) => -1,
            };
            if open == 0 {
                return;
            }
            sleep(Duration::from_millis(200)).await;
        }
    };
    timeout(Duration::from_secs(120), settled).await.expect("everything ends");
    let heard = heard.lock().expect("unpoisoned").clone();
    let verdict = storm.verdict(requests, &heard).await;
    report(&format!("{verdict}; {took:.0?}, {longest:.0?} without an end; {strikes:?}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_end_is_true_in_a_storm_at_the_edge_to_the_chain() {
    let wanted = std::env::var("TENURE_TX_STORM").ok().and_then(|count| count.parse().ok());
    let seed = std::env::var("TENURE_TX_SEED").ok().and_then(|seed| seed.parse().ok());
    match wanted {
        Some(requests) => {
            // All at once would leave no caller to strike at.
            storm(requests, (requests / 10).clamp(40, 600), seed.unwrap_or(1)).await;
        }
        None => storm(100, 40, seed.unwrap_or(1)).await,
    }
}
