//! Where a scenario plays: the adapter before a real development node, or before its recording.
//!
//! `TENURE_SUBSTRATE=node` plays on a node, `record` also keeps what passed in the folder that
//! `TENURE_SUBSTRATE_RECORD` names; without it the recording of the repository is played.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tenure_testkit::substrate::development::DevelopmentNode;
use tenure_testkit::substrate::gateway::Gateway;
use tenure_testkit::substrate::tape::Event;
use tenure_testkit::substrate::unpacked;
use tenure_tx::account::{SignError, Signed, Signer as _, Unsigned};
use tenure_tx::chain::substrate::{
    Key, Period, Scheme, SubstrateCall, SubstrateChain, SubstrateSigner,
};
use tenure_tx::chain::{
    Chain as _, Head, Located, Outcome, Report, Sought, StatusStream, Submission,
};
use tenure_tx::status::{Hash, TransactionStatus};
use tokio::time::timeout;

/// How long a real node is waited for.
const PATIENCE: Duration = Duration::from_secs(120);

const HERE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/substrate");

/// What stands on the stage before the scenario begins.
#[derive(Clone, Copy)]
pub(crate) struct Setting {
    pub(crate) runtime: &'static str,
    /// Beside "no block without an order".
    pub(crate) arguments: &'static [&'static str],
    /// Whose funds are spent. A scheme whose signatures are the same each time.
    pub(crate) key: (&'static str, Scheme),
    /// The life of an extrinsic, in blocks.
    pub(crate) period: u64,
}

/// A chain with accounts of 32 bytes.
pub(crate) const USUAL: Setting =
    Setting { runtime: "dev32", arguments: &[], key: ("//Alice", Scheme::Ecdsa), period: 64 };

pub(crate) struct Stage {
    pub(crate) gateway: Gateway,
    pub(crate) chain: SubstrateChain,
    pub(crate) signer: SubstrateSigner,
    name: &'static str,
    /// The node's blocks, where it keeps them.
    _folder: tempfile::TempDir,
}

impl Stage {
    /// The scenario's name is that of its test.
    pub(crate) async fn open(name: &'static str, setting: Setting) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let gateway = if is_live() {
            let place = folder.path().display().to_string();
            let mut arguments = vec!["--finality-lag", "none"];
            arguments.extend(setting.arguments.iter().map(|word| match *word {
                "FOLDER" => place.as_str(),
                word => word,
            }));
            Gateway::before(DevelopmentNode::start(setting.runtime, &arguments).await).await
        } else {
            let all = recordings();
            let events = all.get(name).unwrap_or_else(|| {
                panic!("the scenario {name} was never recorded: run make record-substrate")
            });
            Gateway::replay(events.clone()).await
        };
        let chain = SubstrateChain::new(&gateway.url, Duration::from_secs(60)).expect("a URL");
        let signer = signer(&chain, setting.key, setting.period);
        Stage { gateway, chain, signer, name, _folder: folder }
    }

    /// Its end. What was asked and is not in the recording is a failure, and a recording is kept.
    pub(crate) fn close(self) {
        let missing = self.gateway.missing();
        assert!(missing.is_empty(), "{missing:#?}");
        let Some(folder) = std::env::var_os("TENURE_SUBSTRATE_RECORD") else { return };
        let events = self.gateway.recorded().expect("a node was recorded");
        let mut lines = format!("{}\n", json!({"scenario": self.name}));
        for event in events {
            lines += &format!("{}\n", serde_json::to_string(&event).expect("text"));
        }
        let path = PathBuf::from(&folder).join(format!("{}.jsonl", self.name));
        std::fs::write(path, lines).expect("written");
        let head = format!("{}\n", json!({"digest": digest()}));
        std::fs::write(Path::new(&folder).join("0.jsonl"), head).expect("written");
    }

    pub(crate) async fn head(&self) -> Head {
        self.chain.head(self.signer.account()).await.expect("the node answers")
    }

    /// On a line that may be broken, or to a node that has just begun.
    pub(crate) async fn head_after_a_break(&self) -> Head {
        let read = async {
            loop {
                match self.chain.head(self.signer.account()).await {
                    Ok(head) => return head,
                    Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
                }
            }
        };
        timeout(PATIENCE, read).await.expect("the node answers")
    }

    /// Signs with the key of the setting.
    pub(crate) async fn sign(&self, nonce: u64, tip: u128, call: &Bytes) -> Signed {
        self.sign_with(&self.signer, nonce, tip, call).await.expect("signs")
    }

    pub(crate) async fn sign_with(
        &self,
        signer: &SubstrateSigner,
        nonce: u64,
        tip: u128,
        call: &Bytes,
    ) -> Result<Signed, SignError> {
        let head = self.chain.head(signer.account()).await.expect("the node answers");
        let call = Some(&call[..]);
        signer.sign(Unsigned { nonce, tip, call, head: &head, replaces: None }).await
    }

    pub(crate) async fn submit(&self, nonce: u64, raw: &Bytes) -> Submission {
        self.chain.submit(self.signer.account(), nonce, raw.clone()).await
    }

    /// Submits bytes that the pool has to take.
    pub(crate) async fn pooled(&self, nonce: u64, signed: &Signed) -> Statuses {
        let submission = self.submit(nonce, &signed.raw).await;
        assert_eq!(submission.outcome, Outcome::Pooled);
        Statuses(submission.watch.expect("it is watched"))
    }

    /// Submits bytes that the pool does not take.
    pub(crate) async fn refused(&self, nonce: u64, raw: &Bytes) -> Outcome {
        let outcome = self.submit(nonce, raw).await.outcome;
        assert_ne!(outcome, Outcome::Pooled);
        outcome
    }

    pub(crate) async fn locate(&self, nonce: u64, attempts: &[Hash]) -> Located {
        let attempts = attempts.to_vec();
        let sought = [Sought { nonce, attempts, since: 0, block: None }];
        self.chain.locate(self.signer.account(), &sought).await.remove(0)
    }

    /// An order or a question of the test itself, which the node has to answer well.
    pub(crate) async fn call(&self, method: &str, params: Value) -> Value {
        let answer = timeout(PATIENCE, self.gateway.call(method, params)).await.expect("in time");
        answer.unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    /// A block with what is ready, on the best one; the pool knows it.
    pub(crate) async fn block(&self) -> Hash {
        let hash = self.sealed(json!([true, false, null])).await;
        self.maintained(hash, false).await;
        hash
    }

    /// A block on another one.
    pub(crate) async fn block_on(&self, parent: Hash) -> Hash {
        self.sealed(json!([true, false, parent])).await
    }

    async fn sealed(&self, params: Value) -> Hash {
        let made = self.call("engine_createBlock", params).await;
        made["hash"].as_str().and_then(|hash| hash.parse().ok()).expect("a hash")
    }

    /// Waits until the pool has dealt with a block, as one that is best or as one that is final.
    pub(crate) async fn maintained(&self, block: Hash, is_final: bool) {
        let done = self.call("test_maintained", json!([block, is_final])).await;
        assert_eq!(done, true, "the pool never dealt with {block}");
    }

    pub(crate) async fn finalize(&self, block: Hash) {
        self.call("engine_finalizeBlock", json!([block, null])).await;
        self.maintained(block, true).await;
    }

    /// So many empty blocks, all of them final.
    pub(crate) async fn pass(&self, blocks: u64) -> Hash {
        let mut last = None;
        for _ in 0..blocks {
            last = Some(self.block().await);
        }
        let last = last.expect("at least one");
        self.finalize(last).await;
        last
    }

    /// What is ready in the pool, as the node lists it.
    pub(crate) async fn listed(&self) -> usize {
        let all = self.call("author_pendingExtrinsics", json!([])).await;
        all.as_array().expect("a list").len()
    }
}

impl Drop for Stage {
    #[allow(clippy::print_stderr, reason = "the reason of a failure that looks like another one")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{:#?}", self.gateway.missing());
        }
    }
}

/// The statuses of one submission.
pub(crate) struct Statuses(StatusStream);

impl Statuses {
    pub(crate) async fn report(&mut self) -> Report {
        timeout(PATIENCE, self.0.next()).await.expect("in time").expect("the watch goes on")
    }

    pub(crate) async fn next(&mut self) -> TransactionStatus {
        self.report().await.status
    }

    /// The line breaks.
    pub(crate) async fn ended(&mut self) {
        let last = timeout(PATIENCE, self.0.next()).await.expect("in time");
        assert_eq!(last, None);
    }
}

pub(crate) fn signer(
    chain: &SubstrateChain,
    (suri, scheme): (&str, Scheme),
    period: u64,
) -> SubstrateSigner {
    let key = Key::from_suri(suri, scheme).expect("a key");
    SubstrateSigner::new(chain, key).mortal(Period::new(period))
}

pub(crate) fn call(pallet: &str, call: &str, args: Value) -> Bytes {
    SubstrateCall { pallet: pallet.to_owned(), call: call.to_owned(), args }.encode()
}

pub(crate) fn remark(text: &str) -> Bytes {
    call("System", "remark", json!({"remark": format!("0x{}", hex::encode(text))}))
}

pub(crate) fn is_live() -> bool {
    match std::env::var("TENURE_SUBSTRATE").as_deref() {
        Ok("node" | "record") => true,
        Ok(other) => panic!("TENURE_SUBSTRATE={other}: node or record"),
        Err(_) => false,
    }
}

/// What a recording depends on.
fn digest() -> String {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../substrate"));
    let mut files: Vec<PathBuf> = std::fs::read_dir(root.join("blobs"))
        .expect("the runtimes")
        .map(|entry| entry.expect("readable").path())
        .collect();
    files.sort();
    files.push(root.join("node/Cargo.lock"));
    files.push(Path::new(HERE).join("scenario.rs"));
    let mut digest = Sha256::new();
    for file in files {
        digest.update(std::fs::read(file).expect("readable"));
    }
    hex::encode(digest.finalize())
}

fn recordings() -> &'static HashMap<String, Vec<Event>> {
    static ALL: OnceLock<HashMap<String, Vec<Event>>> = OnceLock::new();
    ALL.get_or_init(|| {
        let packed = std::fs::read(Path::new(HERE).join("recordings.jsonl.zst"));
        let packed = packed.expect("the recordings are in the repository");
        let text = String::from_utf8(unpacked(&packed)).expect("lines of JSON");
        parsed(&text, &digest())
    })
}

/// The recordings by their scenarios, if they are of what has this digest.
fn parsed(text: &str, digest: &str) -> HashMap<String, Vec<Event>> {
    let (mut all, mut name) = (HashMap::new(), String::new());
    for line in text.lines() {
        let value: Value = serde_json::from_str(line).expect("JSON");
        if let Some(recorded) = value["digest"].as_str() {
            let stale = "the recordings are of another scenario, runtime or node";
            assert_eq!(recorded, digest, "{stale}: run make record-substrate");
        } else if let Some(scenario) = value["scenario"].as_str() {
            scenario.clone_into(&mut name);
            all.insert(name.clone(), Vec::new());
        } else {
            let event = serde_json::from_value(value).expect("an event");
            all.get_mut(&name).expect("after its name").push(event);
        }
    }
    all
}

#[test]
#[should_panic(expected = "make record-substrate")]
fn recordings_of_another_runtime_node_or_scenario_are_refused() {
    parsed(&json!({"digest": "another"}).to_string(), &digest());
}

#[tokio::test]
async fn what_was_not_recorded_is_refused_and_fails_the_scenario() {
    let gateway = Gateway::replay(Vec::new()).await;
    let chain = SubstrateChain::new(&gateway.url, Duration::from_secs(20)).expect("a URL");
    let error = chain.identity().await.expect_err("nothing was recorded").to_string();
    assert!(error.contains("chain_getBlockHash") && error.contains("make record-substrate"));
    assert_eq!(gateway.missing().len(), 1);
}
