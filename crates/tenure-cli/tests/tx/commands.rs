//! The program from outside: node, send, list, show, watch, gaps, drop.

use std::process::{Output, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tenure_testkit::anvil::{ADDRESS, Anvil, KEY};
use tenure_testkit::substrate::{self, ScriptedNode};
use tenure_testkit::{Child, Cluster, Signal, Stop, shared_cluster};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::kit::{json_of, lines_of, node, program, run};

#[tokio::test]
async fn a_transaction_can_be_sent_listed_shown_dropped_and_watched_to_its_end() {
    let database = shared_cluster().await.database().await.expect("a database");
    let dsn = database.dsn();
    let anvil = Anvil::start(&["--no-mining"]).await;
    let (mut child, address) = node(&["--dsn", &dsn, "--instance", "a"], &anvil).await;
    let call =
        json!({"to": format!("0x{:040x}", 0xaa07), "value": "0x5", "gas": 21_000}).to_string();
    let send = ["send", "--node", &address, "--json", "--request-id", "seven", "--call", &call];
    let first = json_of(&run(&send).await);
    assert_eq!(first[0]["nonce"], 0);
    let again = json_of(&run(&send).await);
    assert_eq!(again[0]["nonce"], 0, "the same id is the same transaction");
    let plain = run(&["send", "--node", &address, "--call", &call]).await;
    assert!(String::from_utf8_lossy(&plain.stdout).contains("nonce 1"), "{plain:?}");

    let read = ["--dsn", &dsn, "--account", ADDRESS];
    let with = |head: &[&'static str]| {
        let mut all: Vec<String> = head.iter().map(ToString::to_string).collect();
        all.extend(read.iter().map(ToString::to_string));
        all
    };
    let ask = async |head: &[&'static str]| {
        let arguments = with(head);
        run(&arguments.iter().map(String::as_str).collect::<Vec<_>>()).await
    };
    let listed = json_of(&ask(&["list", "--json", "--open"]).await);
    assert_eq!(
        listed.iter().map(|row| row["nonce"].as_u64()).collect::<Vec<_>>(),
        [Some(0), Some(1)]
    );
    assert_eq!(listed[0]["request_id"], "seven");
    assert_eq!(listed[0]["creator_id"], "a");
    let table = ask(&["list"]).await;
    assert!(String::from_utf8_lossy(&table.stdout).contains("seven"));
    let wide = ask(&["list", "--wide"]).await;
    let wide = String::from_utf8_lossy(&wide.stdout).into_owned();
    assert_eq!(wide.lines().count(), 3, "one line for each row, for a program to read: {wide}");
    let shown = json_of(&ask(&["show", "seven", "--json"]).await);
    assert!(shown[0]["raw"].as_str().is_some_and(|raw| raw.starts_with("0x02")));
    assert_eq!(ask(&["show", "nothing"]).await.status.code(), Some(7));
    assert_eq!(json_of(&ask(&["gaps", "--json"]).await)[0]["gaps"], json!([]));

    anvil.pooled(2).await;
    let dropped = run(&["drop", "--node", &address, "1"]).await;
    assert!(dropped.status.success(), "{dropped:?}");
    let missing = run(&["drop", "--node", &address, "99"]).await;
    assert_eq!(missing.status.code(), Some(7), "{missing:?}");
    let replaced =
        async { while json_of(&ask(&["show", "1", "--json"]).await)[0]["noop"] != json!(true) {} };
    timeout(Duration::from_secs(20), replaced).await.expect("replaced");
    let watching = tokio::spawn({
        let arguments = with(&["watch", "--json", "--until", "1"]);
        async move { run(&arguments.iter().map(String::as_str).collect::<Vec<_>>()).await }
    });
    // Blocks until both are final.
    while !watching.is_finished() {
        anvil.mine(1).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let watched = watching.await.expect("no panic");
    assert_eq!(watched.status.code(), Some(9), "not executed: {watched:?}");
    let seen = lines_of(&watched);
    let last = seen.last().expect("something was seen");
    assert_eq!((&last["state"], &last["noop"]), (&json!("finalized"), &json!(true)));
    let mined = anvil.mined().await;
    assert_eq!(mined.len(), 2);
    assert_eq!(mined[0]["value"], "0x5");
    assert_eq!(mined[1]["to"], ADDRESS, "the no-op");

    child.signal(Signal::TERM);
    let status = child.wait(Duration::from_secs(20)).await.expect("ends");
    assert!(status.success(), "{status:?}");
    assert!(child.lines().iter().any(|line| line.contains("drained")));
    let nobody = run(&["send", "--node", &address, "--within", "1s", "--call", &call]).await;
    assert!(!nobody.status.success());
}

#[tokio::test]
async fn any_node_may_be_named_first_and_a_killed_leader_is_replaced() {
    let database = shared_cluster().await.database().await.expect("a database");
    let dsn = database.dsn();
    let anvil = Anvil::start(&["--no-mining"]).await;
    let lease = ["--dsn", &dsn, "--lease", "1500ms", "--instance"];
    let mut nodes = Vec::new();
    for name in ["a", "b", "c"] {
        nodes.push(node(&[&lease[..], &[name]].concat(), &anvil).await);
    }
    let call =
        json!({"to": format!("0x{:040x}", 0xaa07), "value": "0x5", "gas": 21_000}).to_string();
    // With each of the nodes named first, the leader is found.
    for turn in 0..3 {
        nodes.rotate_left(1);
        let all = nodes.iter().map(|(_, a)| a.as_str()).collect::<Vec<_>>().join(",");
        let sent = run(&["send", "--node", &all, "--json", "--call", &call]).await;
        assert_eq!(json_of(&sent)[0]["nonce"], turn);
        let dropped = run(&["drop", "--node", &all, &turn.to_string()]).await;
        assert!(dropped.status.success(), "{dropped:?}");
    }
    let leader = async {
        loop {
            for (index, (_, address)) in nodes.iter().enumerate() {
                let one = run(&[
                    "send",
                    "--node",
                    address,
                    "--within",
                    "0s",
                    "--request-id",
                    "probe",
                    "--call",
                    &call,
                ])
                .await;
                match one.status.code() {
                    Some(0) => return index,
                    // A follower says so, with the exit code for it.
                    code => assert_eq!(code, Some(6), "{one:?}"),
                }
            }
        }
    };
    let leader = timeout(Duration::from_secs(30), leader).await.expect("a node leads");
    nodes[leader].0.kill().await.expect("killed");
    let all = nodes.iter().map(|(_, a)| a.as_str()).collect::<Vec<_>>().join(",");
    let sent = run(&["send", "--node", &all, "--json", "--call", &call]).await;
    assert_eq!(json_of(&sent)[0]["nonce"], 4);
    let read = ["--dsn", &dsn, "--account", ADDRESS, "--json"];
    let watch = [&["watch", "--until", "4"], &read[..]].concat();
    let seen = json_of(&run_while(&watch, async || anvil.mine(1).await).await);
    assert_eq!(seen.last().map(|row| row["state"].clone()), Some(json!("finalized")));
    let rows = json_of(&run(&[&["list"], &read[..]].concat()).await);
    assert_eq!(rows.iter().filter(|row| row["noop"] == true).count(), 3);
    assert_eq!(anvil.mined().await.len(), 5);
}

/// Runs a command and does something again and again until it ends.
async fn run_while(arguments: &[&str], mut work: impl AsyncFnMut()) -> Output {
    let running = run(arguments);
    tokio::pin!(running);
    loop {
        // Cancel-safe: the command is polled by reference, and the timer may be dropped.
        tokio::select! {
            output = &mut running => return output,
            () = tokio::time::sleep(Duration::from_millis(100)) => work().await,
        }
    }
}

#[tokio::test]
async fn a_substrate_node_signs_through_a_program() {
    let database = shared_cluster().await.database().await.expect("a database");
    let dsn = database.dsn();
    let mut chain = ScriptedNode::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    let signer = substrate::signer_script(folder.path());
    let alice = "5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQY";
    let mut command = program();
    command.args(["node", "--chain", "substrate", "--rpc", &chain.url, "--account", alice]);
    command.args(["--signer-command", &signer, "--dsn", &dsn, "--poll", "100ms"]);
    let mut child = Child::spawn(command).expect("starts");
    let listening = |line: &str| line.contains("listening");
    let line = child.wait_line(listening, Duration::from_secs(30)).await.expect("listens");
    let line: Value = serde_json::from_str(&line).expect("JSON");
    let address = line["address"].as_str().expect("an address").to_owned();
    let sent = run(&["send", "--node", &address, "--json", "--call", "0xbeef"]).await;
    assert_eq!(json_of(&sent)[0]["nonce"], 0);
    let first = chain.arrival().await;
    assert_eq!(first.raw, [12, 0, 0xbe, 0xef], "its length, the nonce, the call");
    first.pool().status(json!("ready"));
    let sent = run(&["send", "--node", &address, "--call", "0xcafe"]).await;
    assert!(sent.status.success(), "{sent:?}");
    let second = chain.arrival().await;
    second.pool().status(json!("ready"));
    let dropped = run(&["drop", "--node", &address, "1"]).await;
    assert!(dropped.status.success(), "{dropped:?}");
    let filler = chain.arrival().await;
    assert_eq!(filler.raw, [4, 1], "no call");
    filler.pool();
    let block = chain.mine(&[&first.raw, &filler.raw]);
    chain.finalize();
    first.status(json!({"finalized": block}));
    filler.status(json!({"finalized": block}));
    let read = ["--dsn", &dsn, "--account", alice, "--json"];
    for nonce in ["0", "1"] {
        let seen = lines_of(&run(&[&["watch", "--until", nonce], &read[..]].concat()).await);
        let last = seen.last().expect("something");
        assert_eq!((&last["state"], &last["block_hash"]), (&json!("finalized"), &json!(block)));
    }
    let malformed = run(&["send", "--node", &address, "--call", "0xbee"]).await;
    assert_eq!(malformed.status.code(), Some(8), "{malformed:?}");
    // A signer that calls the call malformed will say so again; one that is away may come back, and
    // the request has a nonce only then.
    let script = folder.path().join("sign.sh");
    let works = std::fs::read(&script).expect("the signer");
    let send = ["send", "--node", &address, "--within", "1s", "--json", "--request-id", "later"];
    let send = [&send[..], &["--call", "0xf00d"]].concat();
    std::fs::write(&script, "exit 65\n").expect("written");
    let malformed = run(&send).await;
    assert_eq!(malformed.status.code(), Some(8), "{malformed:?}");
    std::fs::write(&script, "exit 1\n").expect("written");
    let away = run(&send).await;
    assert_eq!(away.status.code(), Some(1), "{away:?}");
    let said = lines_of(&away).remove(0)["error"].clone();
    let message = said["message"].as_str().unwrap_or_default();
    assert!(message.contains("the signer's command ended with exit status: 1"), "{said}");
    assert!(message.contains("ask again with --request-id later"), "{said}");
    std::fs::write(&script, works).expect("written");
    assert_eq!(json_of(&run(&send).await)[0]["nonce"], 2, "nothing had its nonce");
    child.signal(Signal::TERM);
    assert!(child.wait(Duration::from_secs(20)).await.expect("ends").success());
}

#[tokio::test]
async fn a_substrate_node_signs_with_its_own_key_and_takes_calls_by_name() {
    let database = shared_cluster().await.database().await.expect("a database");
    let dsn = database.dsn();
    let mut chain = ScriptedNode::start().await;
    chain.ledger.lock().expect("unpoisoned").metadata = substrate::storagehub_parachain();
    let mut command = program();
    command.args(["node", "--chain", "substrate", "--rpc", &chain.url, "--key-env", "SURI"]);
    command.args(["--key-scheme", "ecdsa", "--dsn", &dsn, "--poll", "100ms"]);
    command.args(["--max-fee", "1000planck"]).env("SURI", "//Alice");
    let mut child = Child::spawn(command).expect("starts");
    let listening = |line: &str| line.contains("listening");
    let line = child.wait_line(listening, Duration::from_secs(30)).await.expect("listens");
    let line: Value = serde_json::from_str(&line).expect("JSON");
    let address = line["address"].as_str().expect("an address").to_owned();
    let send = ["send", "--node", &address, "--json", "--pallet", "System", "--call"];
    let args = ["--args", r#"{"remark":"0x676d"}"#];
    let sent = run(&[&send[..], &["remark"], &args].concat()).await;
    assert_eq!(json_of(&sent)[0]["nonce"], 0);
    let arrived = chain.arrival().await;
    assert!(arrived.raw.ends_with(&[0, 0, 8, 0x67, 0x6d]), "the call: {:?}", arrived.raw);
    arrived.pool().status(json!("ready"));
    let unknown = run(&[&send[..], &["remrk"], &args].concat()).await;
    assert_eq!(unknown.status.code(), Some(8), "{unknown:?}");
    chain.ledger.lock().expect("unpoisoned").fee = 1_001;
    let dear = run(&[&send[..], &["remark"], &args].concat()).await;
    // Not on its merits: the chain may ask for less later.
    assert_eq!(dear.status.code(), Some(1), "{dear:?}");
    assert!(String::from_utf8_lossy(&dear.stderr).contains("--max-fee"), "{dear:?}");
    child.signal(Signal::TERM);
    assert!(child.wait(Duration::from_secs(20)).await.expect("ends").success());
}

#[tokio::test]
async fn every_mistake_is_one_sentence_with_a_remedy_and_no_secret() {
    let anvil = Anvil::start(&[]).await;
    let database = shared_cluster().await.database().await.expect("a database");
    let empty = database.dsn();
    let rpc = anvil.url.as_str();
    let call = r#"{"to":"0x00000000000000000000000000000000000000aa","gas":21000}"#;
    let away = "postgresql://app:hunter2@127.0.0.1:1/app";
    let read = ["--dsn", &empty, "--account", ADDRESS];
    let node = ["node", "--dsn", away, "--rpc", rpc];
    let substrate = ["node", "--dsn", away, "--chain", "substrate", "--rpc", "ws://127.0.0.1:1"];
    let several = ["ws://127.0.0.1:1,ws://127.0.0.1:2"];
    let several = [&substrate[..6], &several].concat();
    let remark = ["send", "--node", "127.0.0.1:1", "--pallet", "System", "--call", "remark"];
    let key = ["--key-env", "RELAYER_KEY"];
    let alone = ["node", "--standalone", "--rpc", rpc, "--key-env", "RELAYER_KEY"];
    let chain = rpc.trim_start_matches("http://");
    let not_a_node =
        ["send", "--node", chain, "--within", "0s", "--request-id", "7", "--call", call];
    let away_node = "127.0.0.1:1";
    // What is typed, the exit code, and a word of the remedy.
    let cases: &[(Vec<&str>, i32, &str)] = &[
        (node.to_vec(), 2, "--key-file"),
        ([&node[..], &["--key-env", "UNSET"]].concat(), 2, "UNSET is not set"),
        ([&node[..], &["--key-env", "BAD_KEY"]].concat(), 2, "64 hex digits"),
        ([&node[..], &["--key-file", "/nowhere/key"]].concat(), 2, "/nowhere/key"),
        ([&node[..], &key, &["--account", "0xaa"]].concat(), 2, "TENURE_TX_ACCOUNT"),
        ([&node[..], &key, &["--poll", "0s"]].concat(), 2, "--poll must be above zero"),
        ([&node[..], &key, &["--tip", "2gwei", "--max-tip", "1gwei"]].concat(), 2, "--max-tip"),
        ([&node[..], &key, &["--keep", "9d", "--keep-ids", "1d"]].concat(), 2, "at least --keep"),
        ([&node[..], &key, &["--confirmations", "0"]].concat(), 2, "0 is not in 1.."),
        (vec!["drop", "--node", "127.0.0.1:1"], 2, "--request-id"),
        ([&["node", "--rpc", rpc], &key[..]].concat(), 2, "--standalone"),
        ([&["node", "--rpc", "hunter2"], &key[..]].concat(), 2, "http://"),
        ([&node[..], &["--metrics", "here"]].concat(), 2, "localhost:9464"),
        (substrate.to_vec(), 2, "--key-file"),
        ([&substrate[..], &["--account", "0xaa"]].concat(), 2, "--signer-command"),
        ([&substrate[..], &["--signer-command", "./sign"]].concat(), 2, "--account"),
        ([&substrate[..], &["--key-env", "BAD_KEY"]].concat(), 2, "secret phrase"),
        ([&substrate[..], &["--key-env", "BAD_KEY", "--mortal", "65"]].concat(), 2, "power of two"),
        ([&substrate[..], &["--key-env", "BAD_KEY", "--key-scheme", "rsa"]].concat(), 2, "sr25519"),
        ([&node[..], &key, &["--mortal", "64"]].concat(), 2, "--chain substrate"),
        ([&node[..], &["--signer-command", "./sign"]].concat(), 2, "--chain substrate"),
        ([&node[..], &key, &["--max-fee", "0"]].concat(), 2, "none lifts the cap"),
        ([&substrate[..], &["--key-env", "SURI", "--max-fee", "0.01eth"]].concat(), 2, "planck"),
        (
            [&substrate[..], &["--key-env", "SURI", "--tip", "1gwei"]].concat(),
            2,
            "--tip is in gwei",
        ),
        ([&node[..], &key, &["--max-fee-per-gas", "5planck"]].concat(), 2, "50gwei"),
        ([&several[..], &["--key-env", "SURI"]].concat(), 2, "takes one"),
        (vec!["send", "--node", away_node, "--pallet", "System"], 2, "--call"),
        ([&remark[..], &["--args", "@/nowhere/args"]].concat(), 2, "/nowhere/args"),
        ([&remark[..], &["--args", "{"]].concat(), 2, "--args is not JSON"),
        ([&remark[..], &["--args", "-"]].concat(), 2, "--args is not JSON"),
        (vec!["list", "--account", ADDRESS], 2, "TENURE_DSN"),
        (vec!["list", "--account", ADDRESS, "--dsn", away], 5, "check that the server runs"),
        (vec!["list", "--account", "0xzz", "--dsn", away], 2, "full address"),
        ([&["list"], &read[..]].concat(), 7, "start a node"),
        ([&["gaps"], &read[..]].concat(), 7, "start a node"),
        ([&["watch", "--until", "3"], &read[..]].concat(), 7, "start a node"),
        (vec!["watch", "--until-id", "7", "--account", ADDRESS, "--dsn", away], 5, "server runs"),
        (vec!["send", "--call", call], 2, "--node"),
        (
            vec![
                "send",
                "--node",
                away_node,
                "--request-id",
                "7",
                "--within",
                "0s",
                "--call",
                call,
            ],
            6,
            "7",
        ),
        (vec!["send", "--node", "127.0.0.1:1", "--call", "pay"], 2, "neither JSON nor hex"),
        (vec!["send", "--node", away_node, "--call", call, "--request-id", ""], 2, "1 to 200"),
        (
            vec!["send", "--node", away_node, "--call", call, "--deadline", "0s"],
            2,
            "more than zero",
        ),
        (not_a_node.to_vec(), 10, "check --node"),
        ([&node[..], &key, &["--journal", "j"]].concat(), 2, "give --standalone"),
        ([&node[..], &["--key-file", "/"]].concat(), 2, "name a file with the key"),
        ([&alone[..], &["--role", "r"]].concat(), 2, "'--standalone'"),
        ([&alone[..], &["--lease", "3s"]].concat(), 2, "'--standalone'"),
        ([&alone[..], &["--instance", "i"]].concat(), 2, "'--standalone'"),
        ([&alone[..], &["--journal", "/"]].concat(), 1, "name another file"),
        ([&["list", "--role", "r"], &read[..]].concat(), 2, "--role"),
        (vec!["drop", "--node", "127.0.0.1:1", "--within", "0s", "3"], 6, "nodes run"),
    ];
    for (arguments, code, remedy) in cases {
        let mut command = program();
        command.env("BAD_KEY", "hunter2").env("SURI", "//Alice").stdin(Stdio::null());
        command.env_remove("TENURE_DSN").args(arguments);
        let output = timeout(Duration::from_secs(60), command.output()).await;
        let output = output.unwrap_or_else(|_| panic!("{arguments:?} hangs")).expect("runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(*code), "{arguments:?}: {said}");
        assert!(said.contains(remedy), "{arguments:?}: {said}");
        // Clap's own has its usage below it.
        let clap = said.starts_with("error: ");
        assert!(clap || said.trim_end().lines().count() == 1, "{arguments:?}: {said}");
        assert!(!said.contains("hunter2") && !said.contains(&KEY[..8]), "{arguments:?}: {said}");
    }
}

#[tokio::test]
async fn the_database_is_named_as_for_every_other_command() {
    let database = shared_cluster().await.database().await.expect("a database");
    let dsn = database.dsn();
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("tenure.toml");
    std::fs::write(&file, format!("[database]\ndsn = {dsn:?}\n")).expect("written");
    let named = [("PG_DSN", dsn.clone()), ("TENURE_CONFIG", file.display().to_string())];
    for (variable, value) in named {
        let mut command = program();
        command.env_remove("PG_DSN").env(variable, value);
        let output = command.args(["list", "--account", ADDRESS]).output().await.expect("runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(7), "{variable} reaches an empty database: {said}");
    }
}

#[tokio::test]
async fn another_role_another_key_or_another_chain_is_refused_with_its_reason() {
    let database = shared_cluster().await.database().await.expect("a database");
    let dsn = database.dsn();
    let (anvil, foreign) =
        (Anvil::start(&["--no-mining"]).await, Anvil::start(&["--chain-id", "777"]).await);
    let (_child, address) = node(&["--dsn", &dsn, "--role", "payments"], &anvil).await;
    let call = json!({"to": ADDRESS, "value": "0x1", "gas": 21_000}).to_string();
    let sent = run(&["send", "--node", &address, "--call", &call]).await;
    assert!(sent.status.success(), "bound by its first leader: {sent:?}");
    let second = "0x59c6995e998f97a5a0044966f0945389dc9e86dae88c7a8412f4603b6b78690d";
    for (rpc, role, key, reason) in [
        (&anvil.url, "wages", KEY, "belongs to role \"payments\""),
        (&anvil.url, "payments", second, "signs with account"),
        (&foreign.url, "payments", KEY, "is used on chain 31337"),
    ] {
        let mut command = program();
        command.args(["node", "--rpc", rpc, "--dsn", &dsn, "--role", role]);
        command.args(["--key-env", "OTHER_KEY"]).env("OTHER_KEY", key);
        let refused = timeout(Duration::from_secs(30), command.output()).await;
        let refused = refused.expect("ends").expect("runs");
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(2), "{reason}: {said}");
        assert!(said.contains(reason) && !said.contains(key), "{said}");
    }
}

#[tokio::test]
async fn a_node_whose_database_goes_away_says_so_loudly_and_when_it_is_back() {
    let cluster = Cluster::start().await.expect("a cluster");
    let database = cluster.database().await.expect("a database");
    let anvil = Anvil::start(&[]).await;
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("log");
    let mut command = program();
    command.args(["node", "--rpc", &anvil.url, "--key-env", "RELAYER_KEY", "--poll", "100ms"]);
    command.args(["--dsn", &database.dsn(), "--lease", "1500ms"]).env("TENURE_LOG", "warn");
    command.stderr(std::fs::File::create(&log).expect("a file"));
    let mut child = Child::spawn(command).expect("starts");
    let line = |word: &'static str| move |line: &str| line.contains(word);
    let listening = child.wait_line(line("listening"), Duration::from_secs(30)).await;
    let listening: Value = serde_json::from_str(&listening.expect("listens")).expect("JSON");
    let leads = line("\"is_leader\":true");
    let told = || std::fs::read_to_string(&log).expect("a log");
    let led = child.wait_line(&leads, Duration::from_secs(30)).await;
    led.unwrap_or_else(|error| panic!("it does not lead: {error}; its log: {}", told()));
    cluster.stop(Stop::Fast).await.expect("stops");
    child.wait_line(line("\"is_leader\":false"), Duration::from_secs(30)).await.expect("follows");
    let says = async |words: &str| {
        let heard = async {
            while !told().contains(words) {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        timeout(Duration::from_secs(30), heard).await.unwrap_or_else(|_| panic!("no {words:?}"));
    };
    says("THE VIEW OF THE TRANSACTIONS IS STALE").await;
    // And it does not send, although the chain is there.
    let call =
        json!({"to": format!("0x{:040x}", 0xaa07), "value": "0x5", "gas": 21_000}).to_string();
    let address = listening["address"].as_str().expect("an address");
    let sent = run(&["send", "--node", address, "--within", "0s", "--call", &call]).await;
    assert_eq!(sent.status.code(), Some(6), "{sent:?}");
    assert_eq!(anvil.nonce().await, 0);
    cluster.start_again().await.expect("starts");
    says("can be read again").await;
    child.wait_line(&leads, Duration::from_secs(30)).await.expect("leads again");
    let sent = run(&["send", "--node", address, "--call", &call]).await;
    assert!(sent.status.success(), "{sent:?}");
}

/// What a scraper gets, head and body.
async fn get(address: &str, path: &str) -> String {
    let got = async {
        let mut stream = TcpStream::connect(address).await?;
        let head = format!("GET {path} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        std::io::Result::Ok(answer)
    };
    timeout(Duration::from_secs(10), got).await.expect("in time").expect("an answer")
}

#[tokio::test]
async fn a_node_serves_the_metrics_the_guide_names() {
    let anvil = Anvil::start(&[]).await;
    let database = shared_cluster().await.database().await.expect("a database");
    let mut command = program();
    command.args(["node", "--rpc", &anvil.url, "--key-env", "RELAYER_KEY", "--poll", "100ms"]);
    command.args(["--dsn", &database.dsn(), "--metrics", "0"]);
    let mut child = Child::spawn(command).expect("starts");
    let listening = |line: &str| line.contains("listening");
    let line = child.wait_line(listening, Duration::from_secs(30)).await.expect("listens");
    let line: Value = serde_json::from_str(&line).expect("JSON");
    let metrics = line["metrics"].as_str().expect("an address");
    assert!(metrics.starts_with("127.0.0.1:"), "a port alone is this machine's own: {metrics}");
    // Before anything happened: zero, not absent.
    let first = get(metrics, "/metrics").await;
    let (head, body) = first.split_once("\r\n\r\n").expect("a head");
    assert!(head.starts_with("HTTP/1.1 200 ") && head.contains("text/plain; version=0.0.4"));
    let length = format!("content-length: {}\r\n", body.len());
    assert!(head.to_lowercase().contains(&length), "{head}");
    assert!(body.contains("\ntenure_tx_accepted_total 0\n"), "{body}");
    let answer = get(metrics, "/health").await;
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    assert!(head.starts_with("HTTP/1.1 200 "), "{answer}");
    let health: Value = serde_json::from_str(body).expect("JSON");
    assert_eq!(health["stale"], json!(false), "{health}");
    let call =
        json!({"to": format!("0x{:040x}", 0xaa07), "value": "0x5", "gas": 21_000}).to_string();
    let node = line["address"].as_str().expect("an address");
    let sent = run(&["send", "--node", node, "--call", &call]).await;
    assert!(sent.status.success(), "{sent:?}");
    let guide = include_str!("../../../../docs/transactions.md");
    let names = || guide.split('`').filter(|w| w.starts_with("tenure_tx_") && !w.contains(' '));
    let complete = async {
        loop {
            // It becomes final by the blocks after it, whenever it was sent.
            anvil.mine(1).await;
            let page = get(metrics, "/metrics").await;
            let there = |name: &str| match name.split_once('{') {
                Some((name, label)) => {
                    page.contains(&format!("\n{name}{{{}=", &label[..label.len() - 1]))
                }
                None => {
                    page.contains(&format!("\n{name} "))
                        || page.contains(&format!("\n{name}_count "))
                }
            };
            if names().all(there) {
                return page;
            }
        }
    };
    let page = timeout(Duration::from_secs(30), complete).await.expect("all of them");
    for line in [
        "\ntenure_tx_accepted_total 1\n",
        "\ntenure_tx_submissions_total{outcome=\"pooled\"} 1\n",
        "\ntenure_tx_ended_total{end=\"executed\"} 1\n",
        "\ntenure_tx_view_stale 0\n",
    ] {
        assert!(page.contains(line), "{line}: {page}");
    }
}

#[tokio::test]
async fn a_standalone_node_says_so_and_pays_an_id_once_whatever_becomes_of_it() {
    let anvil = Anvil::start(&[]).await;
    let refused = run(&["node", "--rpc", &anvil.url, "--key-env", "RELAYER_KEY"]).await;
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--standalone"));
    let folder = tempfile::tempdir().expect("a folder");
    let journal = folder.path().join("journal").display().to_string();
    let alone = ["--standalone", "--journal", &journal];
    let call =
        json!({"to": format!("0x{:040x}", 0xaa07), "value": "0x5", "gas": 21_000}).to_string();
    for turn in 0..3 {
        let (mut child, address) = node(&alone, &anvil).await;
        if turn == 0 {
            let second = [&["node", "--rpc", &anvil.url, "--key-env", "RELAYER_KEY"], &alone[..]];
            let second = run(&second.concat()).await;
            let said = String::from_utf8_lossy(&second.stderr).into_owned();
            assert!(!second.status.success() && said.contains("another node"), "{said}");
        }
        let send = ["send", "--node", &address, "--request-id", "inv-1", "--call", &call];
        let sent = json_of(&run(&[&send[..], &["--json"]].concat()).await);
        assert_eq!((&sent[0]["nonce"], &sent[0]["standalone"]), (&json!(0), &json!(true)));
        let plain = run(&send).await;
        assert!(String::from_utf8_lossy(&plain.stdout).contains("standalone"), "{plain:?}");
        // To finality, then again under the same id.
        let ended = async {
            loop {
                anvil.mine(1).await;
                let sent = run(&[&send[..], &["--json"]].concat()).await;
                if json_of(&sent)[0]["ended"] == json!(true) {
                    return;
                }
            }
        };
        timeout(Duration::from_secs(30), ended).await.expect("ends");
        assert!(child.lines().iter().any(|line| line.contains("\"standalone\":true")));
        child.kill().await.expect("killed");
    }
    assert_eq!(anvil.mined().await.len(), 1, "paid once");
    // What was accepted and not mined is finished after a crash.
    anvil.call("evm_setAutomine", json!([false])).await;
    let (mut child, address) = node(&alone, &anvil).await;
    let sent = run(&["send", "--node", &address, "--request-id", "inv-2", "--call", &call]).await;
    assert!(sent.status.success(), "{sent:?}");
    child.kill().await.expect("killed");
    anvil.call("anvil_dropAllTransactions", json!([])).await;
    let (_child, _address) = node(&alone, &anvil).await;
    anvil.pooled(2).await;
    anvil.mine(1).await;
    assert_eq!(anvil.mined().await.len(), 2, "finished by the same node, started again");
}

#[tokio::test]
async fn a_node_that_cannot_run_never_takes_part() {
    let database = shared_cluster().await.database().await.expect("a database");
    let dsn = database.dsn();
    let anvil = Anvil::start(&["--no-mining"]).await;
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = taken.local_addr().expect("bound").to_string();
    // The account belongs to another role: the one that its key would have is vacant.
    let (mut child, address) = node(&["--dsn", &dsn, "--role", "other"], &anvil).await;
    let call = json!({"to": ADDRESS, "value": "0x1", "gas": 21_000}).to_string();
    let sent = run(&["send", "--node", &address, "--call", &call]).await;
    assert!(sent.status.success(), "bound by its first leader: {sent:?}");
    child.signal(Signal::TERM);
    child.wait(Duration::from_secs(20)).await.expect("ends");
    let start = ["node", "--dsn", &dsn, "--rpc", &anvil.url, "--key-env", "RELAYER_KEY"];
    for wrong in [&["--poll", "0s"][..], &["--listen", &taken]] {
        let refused = run(&[&start[..], wrong].concat()).await;
        assert!(matches!(refused.status.code(), Some(1 | 2)), "{wrong:?}: {refused:?}");
    }
    let client = database.client().await.expect("it answers");
    let terms = "select count(*) from tenure.term where role <> 'other'";
    let terms = client.query_one(terms, &[]).await.expect("readable");
    assert_eq!(terms.get::<_, i64>(0), 0, "none of them led");
}

#[tokio::test]
async fn a_node_that_waits_for_its_chain_ends_when_it_is_told_to() {
    let mut command = program();
    command.args(["node", "--standalone", "--rpc", "http://127.0.0.1:1"]);
    command.args(["--key-env", "RELAYER_KEY"]).env("TENURE_LOG", "warn");
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("log");
    command.stderr(std::fs::File::create(&log).expect("a file"));
    let mut child = Child::spawn(command).expect("starts");
    tenure_testkit::until("the wait for the chain", async || {
        std::fs::read_to_string(&log).expect("a log").contains("waiting for the chain")
    })
    .await;
    child.signal(Signal::TERM);
    let status = child.wait(Duration::from_secs(20)).await.expect("ends");
    assert!(status.success(), "{status:?}");
}
