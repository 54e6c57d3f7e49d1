//! The example of a storage provider: its leader proves, its follower is silent until it leads.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tenure_core::epoch::Epoch;
use tenure_testkit::shared_cluster;
use tenure_testkit::substrate::development::DevelopmentNode;
use tenure_testkit::substrate::{ScriptedNode, block_hash, storagehub_parachain};
use tenure_tx::account::Signer as _;
use tenure_tx::chain::substrate::{Scheme, SubstrateChain};
use tenure_tx::events::EventBus;
use tenure_tx::service::{Mode, TransactionService};
use tokio::sync::broadcast::Receiver;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::kit::{E1, ManualElection, bump, database, impatient, store_of};
use crate::stage::signer;
use crate::storagehub::{Event, Instance, prove, read, serve};

/// An instance that runs.
struct Running {
    task: JoinHandle<()>,
    stop: oneshot::Sender<()>,
}

impl Running {
    /// Ends it in good order.
    async fn stop(self) {
        self.stop.send(()).expect("it runs");
        tokio::time::timeout(Duration::from_secs(20), self.task)
            .await
            .expect("ends")
            .expect("well");
    }
}

fn start(database: &str, rpc: &str, key: &str, name: &str, folder: &Path) -> Running {
    let instance = Instance {
        database: database.to_owned(),
        rpc: rpc.to_owned(),
        kind: "msp".to_owned(),
        provider: "0x0101".to_owned(),
        name: name.to_owned(),
        key: key.to_owned(),
        files: (folder.join("all"), folder.join(name)),
    };
    let (stop, stopped) = oneshot::channel();
    let task = tokio::spawn(async move {
        serve(instance, async { drop(stopped.await) }).await.expect("goes on");
    });
    Running { task, stop }
}

async fn scripted() -> ScriptedNode {
    let node = ScriptedNode::start().await;
    node.ledger.lock().expect("unpoisoned").metadata = storagehub_parachain();
    node
}

/// Five final blocks: a proof is due.
fn fall_due(node: &ScriptedNode) {
    for _ in 0..5 {
        node.mine(&[]);
    }
    node.finalize();
}

/// The first extrinsic that proves this block; others are taken into the pool as well.
async fn proof(node: &mut ScriptedNode, number: u64) -> Vec<u8> {
    let wanted = format!("proof {number}");
    loop {
        let arrived = node.arrival().await;
        arrived.pool().status(json!("ready"));
        if arrived.raw.ends_with(wanted.as_bytes()) {
            return arrived.raw;
        }
        assert!(arrived.raw.ends_with(b"proof 5"), "only proofs that were due: {:?}", arrived.raw);
    }
}

/// A folder with one file of the provider.
fn files() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::create_dir(folder.path().join("all")).expect("made");
    std::fs::write(folder.path().join("all/file"), "data").expect("written");
    folder
}

/// The follower has its copy of the files before it is needed.
async fn copied(folder: &Path) {
    let copied = async {
        while !folder.join("b/file").exists() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), copied).await.expect("copied");
}

#[tokio::test]
async fn a_providers_leader_proves_and_after_its_death_the_follower_does() {
    let db = shared_cluster().await.database().await.expect("a database");
    let mut node = scripted().await;
    let folder = files();
    let leader = start(&db.dsn(), &node.url, "//Alice", "a", folder.path());
    fall_due(&node);
    let first = proof(&mut node, 5).await;
    let follower = start(&db.dsn(), &node.url, "//Alice", "b", folder.path());
    copied(folder.path()).await;
    leader.task.abort();
    // What the leader had sent is sent again by the next one, byte by byte, and then what is due.
    let again = proof(&mut node, 5).await;
    assert_eq!(again, first);
    fall_due(&node);
    proof(&mut node, 10).await;
    follower.stop().await;
    let client = db.client().await.expect("it answers");
    let roles = client.query("select name from tenure.role", &[]).await.expect("rows");
    let roles: Vec<String> = roles.iter().map(|row| row.get(0)).collect();
    let network = &block_hash(0)[..10];
    assert_eq!(roles, [format!("storagehub:{network}:0x0101:msp")]);
}

#[tokio::test]
async fn a_follower_gives_news_and_no_task_and_as_the_leader_finds_what_fell_due() {
    let (db, node) = (database().await, scripted().await);
    let chain = SubstrateChain::new(&node.url, Duration::from_secs(5)).expect("a URL");
    let signer = signer(&chain, ("//Alice", Scheme::Ecdsa), 64);
    let account = signer.account().clone();
    let election = ManualElection::new("a");
    let store = store_of(&db.dsn(), "a", account.clone());
    let mode = Mode::Group { election: election.election.clone(), store };
    let service = TransactionService::builder(mode, Arc::new(chain.clone()), Arc::new(signer));
    let service = service.options(impatient()).start().await.expect("starts");
    let bus = EventBus::new(service.gate(), 64);
    let (mut news, mut tasks) = (bus.news(), bus.tasks());
    let script = async {
        let next = async |events: &mut Receiver<Event>| {
            let next = tokio::time::timeout(Duration::from_secs(20), events.recv()).await;
            next.expect("in time").expect("the bus lives")
        };
        let until_final = async |news: &mut Receiver<Event>, last: u64| {
            while next(news).await != Event::Finalized(last) {}
        };
        election.lead(E1);
        fall_due(&node);
        assert_eq!(next(&mut tasks).await, Event::ProofDue(5), "a new provider's first");
        // Accepted under its id.
        let sent = async { while service.find("proof-5").await.expect("reads").is_none() {} };
        tokio::time::timeout(Duration::from_secs(20), sent).await.expect("it is sent");
        election.depose();
        until_final(&mut news, 5).await;
        fall_due(&node);
        until_final(&mut news, 10).await;
        fall_due(&node);
        until_final(&mut news, 15).await;
        // While it led, it may have told more than once of the proof that was not accepted yet.
        while let Ok(task) = tasks.try_recv() {
            assert_eq!(task, Event::ProofDue(5), "a follower makes nothing act");
        }
        bump(&db).await;
        election.lead(Epoch(2));
        // Both fell due while no instance led.
        assert_eq!(next(&mut tasks).await, Event::ProofDue(10));
        assert_eq!(next(&mut tasks).await, Event::ProofDue(15));
        fall_due(&node);
        while next(&mut tasks).await != Event::ProofDue(20) {}
    };
    // Cancel-safe: the first two never end by themselves.
    tokio::select! {
        ended = read(&chain, &account, &service, &bus) => panic!("{ended:?}"),
        ended = prove(&service, bus.tasks()) => panic!("{ended:?}"),
        () = script => {}
    }
}

#[tokio::test]
async fn a_standalone_provider_goes_on_from_its_journal() {
    let mut node = scripted().await;
    let folder = files();
    let journal = format!("standalone:{}", folder.path().join("journal").display());
    let instance = start(&journal, &node.url, "//Alice", "a", folder.path());
    fall_due(&node);
    let first = proof(&mut node, 5).await;
    instance.stop().await;
    let again = start(&journal, &node.url, "//Alice", "a", folder.path());
    assert_eq!(proof(&mut node, 5).await, first);
    fall_due(&node);
    proof(&mut node, 10).await;
    again.stop().await;
}

async fn ask(node: &DevelopmentNode, method: &str, params: serde_json::Value) -> serde_json::Value {
    node.call(method, &params).await.unwrap_or_else(|error| panic!("{method}: {error}"))
}

/// The proofs in the blocks of the chain, and how often each is there.
async fn proofs(node: &DevelopmentNode) -> BTreeMap<u64, usize> {
    let mut found = BTreeMap::new();
    let head = ask(node, "chain_getHeader", json!([])).await;
    let last = head["number"].as_str().and_then(|text| text.strip_prefix("0x"));
    let last = last.and_then(|digits| u64::from_str_radix(digits, 16).ok()).expect("a number");
    for number in 1..=last {
        let hash = ask(node, "chain_getBlockHash", json!([number])).await;
        let block = ask(node, "chain_getBlock", json!([hash])).await;
        for extrinsic in block["block"]["extrinsics"].as_array().expect("a list") {
            let raw = extrinsic.as_str().and_then(|text| text.strip_prefix("0x"));
            let raw = raw.and_then(|digits| hex::decode(digits).ok()).expect("bytes");
            let text = String::from_utf8_lossy(&raw);
            if let Some((_, due)) = text.rsplit_once("proof ") {
                *found.entry(due.parse().expect("a block")).or_default() += 1;
            }
        }
    }
    found
}

/// Makes final blocks until a proof is there that was due after `after`.
async fn until_proven(node: &DevelopmentNode, after: u64) -> BTreeMap<u64, usize> {
    let proven = async {
        loop {
            ask(node, "engine_createBlock", json!([true, true, null])).await;
            let found = proofs(node).await;
            if found.last_key_value().is_some_and(|(due, _)| *due > after) {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(120), proven).await.expect("a proof is in a block")
}

/// StorageHub's accounts have twenty bytes, as Ethereum's have.
#[tokio::test]
#[ignore = "needs the development node: make test-substrate"]
async fn on_a_real_chain_a_providers_proofs_go_on_after_its_leaders_death_each_once() {
    const ALITH: &str = "0x5fb92d6e98884f76de468fa3f6278f8807c48bebc13595d45af5bdc4da702133";
    let db = shared_cluster().await.database().await.expect("a database");
    let node = DevelopmentNode::start("dev20", &["--finality-lag", "none"]).await;
    let folder = files();
    let leader = start(&db.dsn(), &node.url, ALITH, "a", folder.path());
    let first = until_proven(&node, 0).await;
    let follower = start(&db.dsn(), &node.url, ALITH, "b", folder.path());
    copied(folder.path()).await;
    let second = until_proven(&node, *first.keys().last().expect("the first proof")).await;
    leader.task.abort();
    // Two fall due before another instance leads.
    for _ in 0..10 {
        ask(&node, "engine_createBlock", json!([true, true, null])).await;
    }
    let mut last = *second.keys().last().expect("the second proof");
    for _ in 0..4 {
        last = *until_proven(&node, last).await.keys().last().expect("one more");
    }
    let all = proofs(&node).await;
    let begin = *all.keys().next().expect("the first proof");
    let expected = (begin..=last).step_by(5).map(|due| (due, 1)).collect();
    assert_eq!(all, expected, "none is missing, none is there twice");
    follower.stop().await;
}
