//! The example of a storage provider: its leader proves, its follower is silent until it leads.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use serde_json::json;
use tenure_testkit::substrate::development::DevelopmentNode;
use tenure_testkit::substrate::{ScriptedNode, storagehub_parachain};
use tenure_testkit::{Database, shared_cluster};
use tokio::task::JoinHandle;

use crate::storagehub::{Instance, serve};

fn start(db: &Database, rpc: &str, key: &str, name: &str, folder: &Path) -> JoinHandle<()> {
    let instance = Instance {
        database: db.dsn(),
        rpc: rpc.to_owned(),
        provider: "0x0101".to_owned(),
        name: name.to_owned(),
        key: key.to_owned(),
        files: (folder.join("all"), folder.join(name)),
    };
    tokio::spawn(async move { serve(instance).await.expect("goes on") })
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
    let mut node = ScriptedNode::start().await;
    node.ledger.lock().expect("unpoisoned").metadata = storagehub_parachain();
    let folder = files();
    let leader = start(&db, &node.url, "//Alice", "a", folder.path());
    for _ in 0..5 {
        node.mine(&[]);
    }
    node.finalize();
    let first = proof(&mut node, 5).await;
    let follower = start(&db, &node.url, "//Alice", "b", folder.path());
    copied(folder.path()).await;
    leader.abort();
    // What the leader had sent is sent again by the next one, byte by byte, and then what is due.
    let again = proof(&mut node, 5).await;
    assert_eq!(again, first);
    for _ in 0..5 {
        node.mine(&[]);
    }
    node.finalize();
    proof(&mut node, 10).await;
    assert!(!follower.is_finished());
    follower.abort();
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
    let leader = start(&db, &node.url, ALITH, "a", folder.path());
    let first = until_proven(&node, 0).await;
    let follower = start(&db, &node.url, ALITH, "b", folder.path());
    copied(folder.path()).await;
    let second = until_proven(&node, *first.keys().last().expect("the first proof")).await;
    leader.abort();
    let mut last = *second.keys().last().expect("the second proof");
    for _ in 0..3 {
        last = *until_proven(&node, last).await.keys().last().expect("one more");
    }
    let all = proofs(&node).await;
    assert!(all.values().all(|times| *times == 1), "{all:?}");
    assert!(!follower.is_finished());
    follower.abort();
}
