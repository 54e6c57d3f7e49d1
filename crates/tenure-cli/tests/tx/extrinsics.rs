//! A Substrate node from outside: calls by name through a program, runtimes that ask for too much, and an
//! old lock that another program holds.

use std::time::Duration;

use serde_json::{Value, json};
use tenure_testkit::substrate::{self, ScriptedNode, storagehub_parachain};
use tenure_testkit::{Child, Signal, shared_cluster};
use tokio::process::Command;
use tokio::time::timeout;

use crate::kit::{json_of, program, run};

const ALICE: &str = "5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQY";

async fn listening(command: Command) -> (Child, String) {
    let mut child = Child::spawn(command).expect("starts");
    let listening = |line: &str| line.contains("listening");
    let line = child.wait_line(listening, Duration::from_secs(30)).await.expect("listens");
    let line: Value = serde_json::from_str(&line).expect("JSON");
    let address = line["address"].as_str().expect("an address").to_owned();
    (child, address)
}

#[tokio::test]
async fn a_call_by_name_reaches_a_signing_program_in_scale() {
    let database = shared_cluster().await.database().await.expect("a database");
    let folder = tempfile::tempdir().expect("a folder");
    let signer = substrate::signer_script(folder.path());
    let remark = ["--pallet", "System", "--call", "remark", "--args", r#"{"remark":"0x676d"}"#];
    for metadata in [storagehub_parachain(), Vec::new()] {
        let can_encode = !metadata.is_empty();
        let mut chain = ScriptedNode::start().await;
        chain.ledger.lock().expect("unpoisoned").metadata = metadata;
        let mut command = program();
        command.args(["node", "--chain", "substrate", "--rpc", &chain.url, "--account", ALICE]);
        command.args(["--signer-command", &signer, "--dsn", &database.dsn(), "--poll", "100ms"]);
        let (mut child, address) = listening(command).await;
        let sent = run(&[&["send", "--node", &address, "--json"], &remark[..]].concat()).await;
        if can_encode {
            assert_eq!(json_of(&sent)[0]["nonce"], 0);
            let arrived = chain.arrival().await;
            // Its length, the nonce, the call.
            assert_eq!(arrived.raw, [24, 0, 0, 0, 8, 0x67, 0x6d]);
            arrived.pool().status(json!("ready"));
        } else {
            assert_eq!(sent.status.code(), Some(8), "{sent:?}");
            assert!(String::from_utf8_lossy(&sent.stdout).contains("SCALE"), "{sent:?}");
        }
        child.signal(Signal::TERM);
        assert!(child.wait(Duration::from_secs(20)).await.expect("ends").success());
    }
}

/// Linux hands a program no argument above 128 KiB.
#[tokio::test]
async fn a_call_that_is_too_long_for_an_argument_comes_from_a_file_or_standard_input() {
    let database = shared_cluster().await.database().await.expect("a database");
    let mut chain = ScriptedNode::start().await;
    chain.ledger.lock().expect("unpoisoned").metadata = storagehub_parachain();
    let mut command = program();
    command.args(["node", "--chain", "substrate", "--rpc", &chain.url, "--key-env", "SURI"]);
    command.args(["--dsn", &database.dsn(), "--poll", "100ms"]).env("SURI", "//Alice");
    let (mut child, address) = listening(command).await;
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("written");
        path
    };
    let data = "a7".repeat(200 << 10);
    let args = file("args", &json!({"remark": format!("0x{data}")}).to_string());
    // As a program prints it, with an end of the line.
    let scale = file("call", &format!("0x000002800c00{data}\n"));
    let named = ["send", "--node", &address, "--json", "--pallet", "System", "--call", "remark"];
    let plain = ["send", "--node", &address, "--json"];
    let at = |path: &std::path::Path| format!("@{}", path.display());
    let sends: [(&[&str], [String; 2], Option<&std::path::Path>); 3] = [
        (&named, ["--args".into(), at(&args)], None),
        (&named, ["--args".into(), "-".into()], Some(&args)),
        (&plain, ["--call".into(), at(&scale)], None),
    ];
    for (nonce, (head, tail, input)) in sends.into_iter().enumerate() {
        let mut command = program();
        command.args(head).args(tail);
        if let Some(path) = input {
            command.stdin(std::fs::File::open(path).expect("there"));
        }
        let sent = timeout(Duration::from_secs(60), command.output()).await.expect("ends");
        assert_eq!(json_of(&sent.expect("runs"))[0]["nonce"], nonce);
        let arrived = chain.arrival().await;
        assert!(arrived.raw.ends_with(&[0xa7; 200 << 10]), "{} bytes", arrived.raw.len());
        arrived.pool().status(json!("ready"));
    }
    child.signal(Signal::TERM);
    assert!(child.wait(Duration::from_secs(20)).await.expect("ends").success());
}

#[tokio::test]
async fn a_runtime_with_an_extension_that_is_not_known_is_refused_at_the_start_by_its_name() {
    let database = shared_cluster().await.database().await.expect("a database");
    let chain = ScriptedNode::start().await;
    // As long as the name it had.
    let mut metadata = storagehub_parachain();
    let places: Vec<usize> =
        (0..metadata.len() - 10).filter(|&at| &metadata[at..at + 10] == b"CheckNonce").collect();
    for at in places {
        metadata[at..at + 10].copy_from_slice(b"CheckOther");
    }
    chain.ledger.lock().expect("unpoisoned").metadata = metadata;
    let mut command = program();
    command.args(["node", "--chain", "substrate", "--rpc", &chain.url, "--key-env", "SURI"]);
    command.args(["--dsn", &database.dsn()]).env("SURI", "//Alice");
    let refused = timeout(Duration::from_secs(60), command.output()).await.expect("ends");
    let refused = refused.expect("runs");
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("CheckOther") && said.contains("--signer-command"), "{said}");
}

#[tokio::test]
async fn an_account_of_another_length_than_the_chains_is_refused_at_the_start() {
    let chain = ScriptedNode::start().await;
    chain.ledger.lock().expect("unpoisoned").metadata = storagehub_parachain();
    let short = "0x1111111111111111111111111111111111111111";
    let mut command = program();
    command.args(["node", "--chain", "substrate", "--rpc", &chain.url, "--account", short]);
    command.args(["--signer-command", "./sign", "--dsn", "host=127.0.0.1 port=1"]);
    let refused = timeout(Duration::from_secs(60), command.output()).await.expect("ends");
    let refused = refused.expect("runs");
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("20 bytes") && said.contains("have 32"), "{said}");
}

#[tokio::test]
async fn a_key_is_read_once_from_a_pipe() {
    let database = shared_cluster().await.database().await.expect("a database");
    let chain = ScriptedNode::start().await;
    chain.ledger.lock().expect("unpoisoned").metadata = storagehub_parachain();
    let folder = tempfile::tempdir().expect("a folder");
    let pipe = folder.path().join("key").display().to_string();
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().expect("runs");
    assert!(made.success());
    let writer = std::thread::spawn({
        let pipe = pipe.clone();
        move || std::fs::write(pipe, "//Alice\n")
    });
    let mut command = program();
    command.args(["node", "--chain", "substrate", "--rpc", &chain.url, "--key-file", &pipe]);
    command.args(["--dsn", &database.dsn()]);
    let (mut child, _) = listening(command).await;
    writer.join().expect("no panic").expect("read");
    child.signal(Signal::TERM);
    assert!(child.wait(Duration::from_secs(20)).await.expect("ends").success());
}

/// What an instance of a provider has, whose lock was made by hand.
async fn role(address: &str) -> Option<String> {
    let address = address.parse().expect("an address");
    let answer =
        crate::group::ask(address, &json!({"op": "status"}), Duration::from_secs(20)).await?;
    answer["ok"]["role"].as_str().map(str::to_owned)
}

#[tokio::test]
async fn with_the_key_of_an_old_lock_a_node_waits_until_the_old_leader_is_gone() {
    let database = shared_cluster().await.database().await.expect("a database");
    let old = database.client().await.expect("the old leader's session");
    old.batch_execute("select pg_advisory_lock(42)").await.expect("it leads");
    let chain = ScriptedNode::start().await;
    chain.ledger.lock().expect("unpoisoned").metadata = storagehub_parachain();
    let mut command = program();
    command.args(["node", "--chain", "substrate", "--rpc", &chain.url, "--key-env", "SURI"]);
    command.args(["--dsn", &database.dsn(), "--poll", "100ms", "--lease", "1500ms"]);
    command.env("SURI", "//Alice").env("LEADER_LOCK_KEY", "42");
    let (mut child, address) = listening(command).await;
    // Two seconds are longer than a lease: without the old lock it would lead by then.
    let send = ["send", "--node", &address, "--within", "2s", "--call", "0x000000"];
    let refused = run(&send).await;
    assert_eq!(refused.status.code(), Some(6), "{refused:?}");
    assert_eq!(role(&address).await.as_deref(), Some("follower"));
    drop(old);
    tenure_testkit::until("the lead", async || role(&address).await.as_deref() == Some("leader"))
        .await;
    child.signal(Signal::TERM);
    assert!(child.wait(Duration::from_secs(20)).await.expect("ends").success());
}
