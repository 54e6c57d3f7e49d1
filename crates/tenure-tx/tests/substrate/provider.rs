//! The example of a storage provider: its leader proves, its follower is silent until it leads.

use std::path::Path;

use serde_json::json;
use tenure_testkit::substrate::{ScriptedNode, storagehub_parachain};
use tenure_testkit::{Database, shared_cluster};
use tokio::task::JoinHandle;

use crate::storagehub::{Instance, serve};

fn start(db: &Database, node: &ScriptedNode, name: &str, folder: &Path) -> JoinHandle<()> {
    let instance = Instance {
        database: db.dsn(),
        rpc: node.url.clone(),
        provider: "0x0101".to_owned(),
        name: name.to_owned(),
        key: "//Alice".to_owned(),
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

#[tokio::test]
async fn a_providers_leader_proves_and_after_its_death_the_follower_does() {
    let db = shared_cluster().await.database().await.expect("a database");
    let mut node = ScriptedNode::start().await;
    node.ledger.lock().expect("unpoisoned").metadata = storagehub_parachain();
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::create_dir(folder.path().join("all")).expect("made");
    std::fs::write(folder.path().join("all/file"), "data").expect("written");
    let leader = start(&db, &node, "a", folder.path());
    for _ in 0..5 {
        node.mine(&[]);
    }
    node.finalize();
    let first = proof(&mut node, 5).await;
    let follower = start(&db, &node, "b", folder.path());
    // The follower has its copy of the files before it is needed.
    let copied = async {
        while !folder.path().join("b/file").exists() {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(20), copied).await.expect("copied");
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
