//! Founding, joining, voting and leaving, with real processes.

use serde_json::json;

use crate::kit::{self, BIN, Process, cluster_with, eventually, free_port, leader};

fn stderr(out: &std::process::Output) -> String {
    String::from_utf8_lossy(&out.stderr).into_owned()
}

#[test]
fn a_removed_voter_stays_out_until_it_is_added_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut nodes = cluster_with(dir.path(), 3, &["--snapshot-every", "16"]);
    let at = leader(&nodes);
    let gone = (at + 1) % 3;
    let id = nodes[gone].id.clone();
    // Asked of the one that goes: the order finds the leader by itself.
    let out = nodes[gone].ask(&["voter", "remove", &id]);
    assert!(out.status.success(), "{}", stderr(&out));
    eventually("two voters are left", 10, || nodes[at].voters() == 2);
    // Enough records that the removal is only in a snapshot, and another leader, which knows it from there.
    for i in 0..40 {
        nodes[at].submit(&["put", &format!("k{i}"), "1"]);
    }
    let back = nodes.remove(at).restart();
    nodes.insert(at, back);
    let back = nodes.remove(gone).restart();
    nodes.insert(gone, back);
    leader(&nodes);
    let out = nodes[at].ask(&["step-down"]);
    assert!(out.status.success(), "{}", stderr(&out));
    let now = leader(&nodes);
    assert_ne!(now, gone, "one that was removed does not lead");
    // It follows all the same, and asks five times a second to be let in while it does.
    for i in 0..3 {
        let record = nodes[gone].submit(&["put", "after", &i.to_string()]);
        eventually("the removed one follows", 15, || {
            nodes[gone].main()["index"] == record["index"]
        });
    }
    eventually("it has known whom to ask for three seconds", 30, || {
        nodes[gone].main()["hint_ms"].as_u64() >= Some(3_000)
    });
    let main = nodes[now].main();
    assert_eq!(main["removed"], json!([id]));
    assert_eq!(main["learners"], json!([]));
    assert!(!main["voters"].as_array().unwrap().contains(&json!(id)));

    let out = nodes[gone].ask(&["voter", "add", &id]);
    assert!(out.status.success(), "{}", stderr(&out));
    eventually("it votes again", 15, || {
        nodes[now].voters() == 3 && nodes[now].main()["removed"] == json!([])
    });
}

#[test]
fn one_that_joined_cannot_found_a_second_history() {
    let dir = tempfile::tempdir().unwrap();
    let a = Process::start(&dir.path().join("a"), free_port(), &["--bootstrap"]);
    a.submit(&["put", "x", "1"]);
    // An observer has the history and nothing of the engine: it must not take itself for fresh.
    let b =
        Process::start(&dir.path().join("b"), free_port(), &["--join", &a.address, "--observer"]);
    eventually("it has the history", 15, || b.main()["index"] == json!(1));
    assert!(b.restart_with(&["--bootstrap"]).is_none(), "a second founder of the same namespace");

    // The founder may found another namespace later, and goes on with the first.
    let a = a
        .restart_with(&["--bootstrap", "--namespace", "main", "--namespace", "more"])
        .expect("the founder may");
    assert_eq!(a.submit(&["--namespace", "more", "put", "y", "2"])["index"], json!(1));
    assert_eq!(a.get("x"), "1");
}

#[test]
fn one_that_joined_through_another_joiner_belongs_to_the_same_cluster() {
    let dir = tempfile::tempdir().unwrap();
    let port = free_port();
    let seed = format!("127.0.0.1:{port}");
    let b = Process::start(&dir.path().join("b"), free_port(), &["--join", &seed]);
    let c = Process::start(&dir.path().join("c"), free_port(), &["--join", &b.address]);
    let a = Process::start(&dir.path().join("a"), port, &["--bootstrap"]);
    eventually("three vote", 30, || a.voters() == 3 && c.voters() == 3);
    // It remembers where it belongs: without a word about it, it goes on there, and nowhere else.
    let c = c.restart_with(&[]).expect("it has a cluster");
    let other = Process::start(&dir.path().join("o"), free_port(), &["--bootstrap"]);
    let c = c.restart_with(&["--join", &other.address]).expect("it starts");
    let record = c.submit(&["put", "x", "1"]);
    eventually("the record is where it belongs", 10, || a.main()["index"] == record["index"]);
    assert_eq!(other.main()["index"], json!(0));
    assert_eq!(other.status()["connected"], json!([]));
}

#[test]
fn one_that_meets_two_clusters_joins_one_and_never_hears_the_other() {
    let dir = tempfile::tempdir().unwrap();
    let a = Process::start(&dir.path().join("a"), free_port(), &["--bootstrap"]);
    let b = Process::start(&dir.path().join("b"), free_port(), &["--bootstrap"]);
    a.submit(&["put", "x", "1"]);
    b.submit(&["put", "x", "2"]);
    let args = ["--join", a.address.as_str(), "--join", b.address.as_str()];
    let c = Process::start(&dir.path().join("c"), free_port(), &args);
    eventually("it votes in one of them", 20, || c.voters() == 2);
    let (home, other) = if a.voters() == 2 { (&a, &b) } else { (&b, &a) };
    assert_eq!((other.voters(), other.status()["connected"].clone()), (1, json!([])));
    eventually("it has that one's history", 10, || c.main()["head"] == home.main()["head"]);
    assert_eq!(c.main()["halted"], json!(null));
}

#[test]
fn a_key_without_the_store_it_voted_with_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let a = Process::start(&dir.path().join("a"), free_port(), &["--bootstrap"]);
    let mut b = Process::start(&dir.path().join("b"), free_port(), &["--join", &a.address]);
    eventually("both vote", 20, || a.voters() == 2);
    b.kill();
    std::fs::remove_file(b.folder().join("node.redb")).unwrap();
    assert!(b.restart_with(&["--join", &a.address]).is_none(), "it could vote twice in a term");
}

#[test]
fn names_of_hosts_will_do_and_an_open_port_is_said_loudly() {
    let dir = tempfile::tempdir().unwrap();
    let start = |name: &str, args: &[&str]| {
        let (port, folder) = (free_port(), dir.path().join(name));
        let advertised = format!("localhost:{port}");
        let mut program = std::process::Command::new(BIN);
        program.args(["gossip", "node", "--listen", &format!("127.0.0.1:{port}"), "--data"]);
        program.arg(&folder).args(["--advertise", &advertised]).args(args);
        program.stderr(std::fs::File::create(dir.path().join(format!("{name}.log"))).unwrap());
        program.env("TENURE_LOG", "warn");
        let node = Process::try_start_by(program, &folder, port, args).expect("it gets ready");
        (node, advertised)
    };
    let (a, seed) = start("a", &["--bootstrap"]);
    let (b, there) = start("b", &["--join", &seed]);
    eventually("both vote", 20, || a.voters() == 2 && b.voters() == 2);
    assert!(kit::ask(&there, &["submit", "put", "x", "1"]).status.success());
    // The orders go to the leader by the address that it advertised.
    assert!(kit::ask(&there, &["step-down"]).status.success());
    assert_eq!(
        a.main()["leader_address"].as_str().map(|at| at.starts_with("localhost:")),
        Some(true)
    );
    let said = std::fs::read_to_string(dir.path().join("a.log")).unwrap();
    assert!(said.contains("this cluster is OPEN: every program that reaches the port"), "{said}");

    let (_c, _) = start("c", &["--bootstrap", "--closed"]);
    let said = std::fs::read_to_string(dir.path().join("c.log")).unwrap();
    assert!(!said.contains("OPEN"), "{said}");

    // With mutual TLS it is open to those that the authority has signed for, and to no other program.
    let ca = tenure_testkit::Ca::new().unwrap();
    let (files, authority) = (ca.client("node").unwrap(), ca.file());
    let [cert, key, ca] = [&files.cert, &files.key, &authority].map(|path| path.to_str().unwrap());
    let tls = ["--bootstrap", "--tls-cert", cert, "--tls-key", key, "--tls-ca", ca];
    let (_d, _) = start("d", &tls);
    let said = std::fs::read_to_string(dir.path().join("d.log")).unwrap();
    let who = "every program that reaches the port and has a certificate of the authority may";
    assert!(said.contains(who), "{said}");
}

#[test]
fn the_first_operator_waits_for_a_founder_that_has_just_begun() {
    let dir = tempfile::tempdir().unwrap();
    let a = Process::start(&dir.path().join("a"), free_port(), &["--bootstrap", "--closed"]);
    let folder = a.folder().to_str().unwrap().to_owned();
    assert!(a.ask(&["invite", "operator", "--identity", &folder]).status.success());
    // As in its first moment: its folder does not say yet which nodes there are.
    let (nodes, aside) = (a.folder().join("nodes"), dir.path().join("nodes"));
    std::fs::rename(&nodes, &aside).unwrap();
    let mut inviting = std::process::Command::new(BIN)
        .args(["gossip", "invite", "operator", "--node", &a.address, "--identity", &folder])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    // Time is the subject.
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert!(inviting.try_wait().unwrap().is_none(), "it gave up");
    std::fs::rename(&aside, &nodes).unwrap();
    let said = inviting.wait_with_output().unwrap();
    assert!(said.status.success() && said.stdout.starts_with(b"tenure-invitation-"), "{said:?}");
}

#[test]
fn one_name_for_two_goals_is_refused_on_another_node_too() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = cluster_with(dir.path(), 3, &[]);
    let at = leader(&nodes);
    let (other, third) = (&nodes[(at + 1) % 3], &nodes[(at + 2) % 3]);
    let tx = "00000000000000000000000000000042";
    let first = other.submit(&["--tx", tx, "put", "x", "1"]);
    // Another node, before or after it has heard of the record.
    let out = third.ask(&["submit", "--tx", tx, "put", "x", "2"]);
    assert_eq!(out.status.code(), Some(8), "{}", stderr(&out));
    let again = third.submit(&["--tx", tx, "put", "x", "1"]);
    assert_eq!(again["index"], first["index"]);
    assert_eq!(nodes[at].get("x"), "1");
}

#[test]
fn stepping_down_can_be_asked_of_any_node() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = cluster_with(dir.path(), 3, &[]);
    let old = leader(&nodes);
    let term = nodes[old].main()["term"].as_u64();
    assert!(nodes[(old + 1) % 3].ask(&["step-down"]).status.success());
    eventually("a later term", 10, || {
        nodes.iter().any(|n| n.acts() && n.main()["term"].as_u64() > term)
    });
}

#[test]
fn a_namespace_is_founded_once_from_any_node_while_all_run() {
    let dir = tempfile::tempdir().unwrap();
    let mut nodes = cluster_with(dir.path(), 3, &[]);
    // The credentials decide, and have voters of their own: without the founder two of three are a majority.
    let voters =
        |node: &Process| node.status()["credentials"]["voters"].as_array().map_or(0, Vec::len);
    eventually("all vote on the credentials", 20, || nodes.iter().all(|node| voters(node) == 3));
    nodes.remove(0).kill();
    let away = dir.path().join("0");
    // The founder is gone; a voter that is left founds.
    let out = nodes[1].ask(&["found", "more"]);
    assert!(out.status.success(), "{}", stderr(&out));
    for (name, says) in [("more", "founded already"), ("main", "founded already")] {
        let out = nodes[0].ask(&["found", name]);
        assert_eq!(out.status.code(), Some(8), "{name}");
        assert!(stderr(&out).contains(says), "{}", stderr(&out));
    }
    let mut submit = ["submit", "--namespace", "more", "put", "y", "2"];
    let carried = |node: &Process| node.status()["namespaces"].as_array().map_or(0, Vec::len);
    eventually("all that run carry it", 10, || nodes.iter().all(|node| carried(node) == 2));
    let out = nodes[0].ask(&submit);
    assert!(out.status.success(), "{}", stderr(&out));
    // A voter that was away carries it when it returns, also after a restart.
    let back = Process::start(&away, free_port(), &[]);
    let has = |node: &Process| {
        String::from_utf8_lossy(&node.ask(&["get", "--namespace", "more", "y"]).stdout).trim()
            == "2"
    };
    eventually("it follows", 20, || has(&back));
    let back = back.restart();
    eventually("it carries it by itself", 20, || has(&back));
    submit[5] = "3";
    assert!(back.ask(&submit).status.success());
}
