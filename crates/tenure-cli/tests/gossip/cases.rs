//! The election and the history with real processes.

use std::time::{Duration, Instant};

use crate::kit::{BIN, Process, cluster, cluster_with, eventually, free_port, leader};
use serde_json::json;

#[test]
fn single_node_is_always_its_own_leader() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = cluster(dir.path(), 1);
    assert_eq!(leader(&nodes), 0);
    let record = nodes[0].submit(&["put", "a", "1"]);
    assert_eq!((record["index"].as_u64(), record["outcome"].as_str()), (Some(1), Some("done")));
    let main = nodes[0].main();
    assert_eq!(main["hint"], json!(nodes[0].id));
    assert_eq!(main["leader_changes"], json!(0));
}

#[test]
fn two_nodes_elect_one_stable_leader() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = cluster(dir.path(), 2);
    let first = leader(&nodes);
    eventually("gossip names the one that acts, on both", 15, || {
        nodes.iter().all(|n| n.main()["hint"] == json!(nodes[first].id))
    });
    let before: Vec<_> = nodes.iter().map(|n| n.main()["leader_changes"].clone()).collect();
    let term = nodes[first].main()["term"].clone();
    // A hundred goals take longer than several rounds; none of them moves the leader.
    for i in 0..100 {
        nodes[i % 2].submit(&["increment", "n"]);
    }
    let after: Vec<_> = nodes.iter().map(|n| n.main()["leader_changes"].clone()).collect();
    assert_eq!((before, &term), (after, &nodes[first].main()["term"]));
    assert_eq!(String::from_utf8_lossy(&nodes[0].ask(&["get", "n"]).stdout).trim(), "100");
}

#[test]
fn leader_failure_elects_another_within_three_seconds() {
    let dir = tempfile::tempdir().unwrap();
    let mut nodes = cluster(dir.path(), 3);
    let old = leader(&nodes);
    nodes[old].submit(&["put", "a", "1"]);
    nodes[old].kill();
    let dead = nodes.remove(old);
    let at = Instant::now();
    let record = nodes[0].submit(&["put", "a", "2"]);
    let took = at.elapsed();
    assert_eq!((record["outcome"].as_str(), record["index"].as_u64()), (Some("done"), Some(2)));
    assert!(took < Duration::from_secs(3), "{took:?}");
    // And the dead one comes back from its disk, as a follower, with all of it.
    let back = dead.restart();
    eventually("it has caught up", 15, || back.main()["index"] == json!(2));
    assert!(!back.acts());
}

#[test]
fn transaction_during_leader_change_commits_exactly_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut nodes = cluster(dir.path(), 3);
    let old = leader(&nodes);
    let other = (old + 1) % 3;
    let address = nodes[other].address.clone();
    let tx = "00000000000000000000000000000042";
    // Submitted on a follower, killed on the leader, at once.
    let submitting = std::thread::spawn(move || {
        crate::kit::ask(
            &address,
            &["submit", "--tx", "00000000000000000000000000000042", "increment", "n"],
        )
    });
    nodes[old].kill();
    assert!(submitting.join().unwrap().status.success());
    // The caller did not hear, and submits again, elsewhere.
    let third = (old + 2) % 3;
    let again = nodes[third].submit(&["--tx", tx, "increment", "n"]);
    assert_eq!(again["index"], json!(1));
    assert_eq!(String::from_utf8_lossy(&nodes[third].ask(&["get", "n"]).stdout).trim(), "1");
    let history = nodes[third].ask(&["history"]);
    let lines = String::from_utf8_lossy(&history.stdout);
    assert_eq!(lines.lines().filter(|l| l.contains(tx)).count(), 1, "{lines}");
}

#[test]
fn kill_nine_loses_nothing_that_was_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = cluster_with(dir.path(), 3, &["--snapshot-every", "16"]);
    for i in 0..40 {
        nodes[i % 3].submit(&["put", &format!("k{i}"), &i.to_string()]);
    }
    // All at once, as if the power went.
    let mut nodes: Vec<Process> = nodes
        .into_iter()
        .map(|mut n| {
            n.kill();
            n
        })
        .collect();
    nodes = nodes.into_iter().map(Process::restart).collect();
    let record = nodes[2].submit(&["increment", "after"]);
    assert_eq!(record["index"], json!(41));
    for node in &nodes {
        eventually("every node has everything", 15, || node.main()["index"] == json!(41));
        let all = String::from_utf8_lossy(&node.ask(&["get"]).stdout).into_owned();
        assert_eq!(all.lines().count(), 41);
    }
}

#[test]
fn graceful_stop_hands_over_in_less_than_the_lease() {
    let dir = tempfile::tempdir().unwrap();
    // Long enough to tell a hand-over on a busy machine from a wait for the lease.
    let mut nodes = cluster_with(dir.path(), 3, &["--lease", "6s"]);
    let old = leader(&nodes);
    let leaving = nodes.remove(old);
    let term = leaving.main()["term"].as_u64().unwrap();
    assert_eq!(leaving.terminate(), Some(0));
    let at = Instant::now();
    eventually("another acts", 20, || nodes.iter().any(Process::acts));
    assert!(at.elapsed() < Duration::from_secs(4), "{:?}", at.elapsed());
    assert!(nodes.iter().map(|n| n.main()["term"].as_u64().unwrap()).max() > Some(term));
}

#[test]
fn a_node_without_bootstrap_or_join_refuses_to_found_a_cluster() {
    let dir = tempfile::tempdir().unwrap();
    assert!(Process::try_start(dir.path(), free_port(), &[]).is_none());
}

#[test]
fn two_that_bootstrapped_apart_never_become_one() {
    let dir = tempfile::tempdir().unwrap();
    let a = Process::start(&dir.path().join("a"), free_port(), &["--bootstrap"]);
    let b = Process::start(&dir.path().join("b"), free_port(), &["--bootstrap"]);
    let b = {
        let port: u16 = b.address.rsplit_once(':').unwrap().1.parse().unwrap();
        drop(b);
        Process::start(&dir.path().join("b"), port, &["--join", &a.address])
    };
    a.submit(&["put", "x", "1"]);
    b.submit(&["put", "x", "2"]);
    assert_eq!(a.status()["connected"], json!([]));
    assert_eq!(String::from_utf8_lossy(&b.ask(&["get", "x"]).stdout).trim(), "2");
}

#[test]
fn a_joiner_catches_up_by_snapshot_and_history() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = cluster_with(dir.path(), 1, &["--snapshot-every", "16"]);
    let tx = "00000000000000000000000000000042";
    let first = nodes[0].submit(&["--tx", tx, "put", "k0", "1"]);
    for i in 1..50 {
        nodes[0].submit(&["put", &format!("k{i}"), "1"]);
    }
    let late = Process::start(
        &dir.path().join("late"),
        free_port(),
        &["--join", &nodes[0].address, "--snapshot-every", "16"],
    );
    eventually("the joiner has everything, and votes", 20, || {
        let main = late.main();
        main["index"] == json!(50) && main["voters"].as_array().is_some_and(|v| v.len() == 2)
    });
    // It says where the records before its snapshot are kept.
    let out = late.ask(&["history"]);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(8), "{said}");
    assert!(said.contains(&format!("ask it by --node {}", nodes[0].address)), "{said}");
    // A retry is answered where the record is gone; another goal under the name is refused on every node.
    let again = late.submit(&["--tx", tx, "put", "k0", "1"]);
    assert_eq!((&again["index"], &again["outcome"]), (&first["index"], &json!("done")));
    let other = late.ask(&["submit", "--tx", tx, "put", "k0", "2"]);
    assert_eq!(other.status.code(), Some(8));
    // An observer follows by history, without ever voting.
    let observer = Process::start(
        &dir.path().join("o"),
        free_port(),
        &["--join", &nodes[0].address, "--observer"],
    );
    eventually("the observer has everything", 20, || observer.main()["index"] == json!(50));
    let record = observer.submit(&["put", "from", "observer"]);
    assert_eq!(record["index"], json!(51));
    assert!(observer.main()["voters"].as_array().is_some_and(|v| !v.contains(&json!(observer.id))));
}

#[test]
fn a_voter_is_removed_at_run_time() {
    let dir = tempfile::tempdir().unwrap();
    let mut nodes = cluster(dir.path(), 3);
    let at = leader(&nodes);
    let gone = (at + 1) % 3;
    nodes[gone].kill();
    let id = nodes[gone].id.clone();
    let out = nodes[at].ask(&["voter", "remove", &id]);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    eventually("two voters are left", 10, || {
        nodes[at].main()["voters"].as_array().is_some_and(|v| v.len() == 2)
    });
    nodes[at].submit(&["put", "a", "1"]);
}

#[test]
fn namespaces_have_their_own_leaders_and_histories() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = cluster_with(dir.path(), 3, &["--namespace", "a", "--namespace", "b"]);
    let space = |i: usize, n: usize| nodes[i].status()["namespaces"][n].clone();
    eventually("both namespaces have three voters", 30, || {
        (0..2).all(|n| space(0, n)["voters"].as_array().is_some_and(|v| v.len() == 3))
    });
    assert_eq!(nodes[1].submit(&["--namespace", "a", "put", "x", "1"])["index"], json!(1));
    assert_eq!(nodes[2].submit(&["--namespace", "b", "put", "x", "2"])["index"], json!(1));
    let terms = || (0..2).map(|n| space(0, n)["term"].as_u64().unwrap()).collect::<Vec<_>>();
    let before = terms();
    let out = nodes[0].ask(&["step-down", "--namespace", "a"]);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    assert_eq!(nodes[0].submit(&["--namespace", "a", "put", "y", "1"])["index"], json!(2));
    eventually("one has another term", 10, || terms()[0] > before[0]);
    assert_eq!(terms()[1], before[1], "the other namespace is not touched");
    let get = |n: &str| nodes[0].ask(&["get", "--namespace", n, "x"]).stdout;
    eventually("each has its own value", 10, || get("a") == b"1\n" && get("b") == b"2\n");
    assert!(!nodes[0].ask(&["get", "--namespace", "c", "x"]).status.success());
}

#[test]
fn nodes_operators_and_clients_are_let_in_by_invitations() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let a = Process::start(&dir.path().join("a"), free_port(), &["--bootstrap", "--closed"]);
    let refused = a.ask(&["status"]);
    assert_eq!(refused.status.code(), Some(2));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("asks for credentials") && said.contains("--identity"), "{said}");
    assert!(
        Process::try_start(&dir.path().join("s"), free_port(), &["--join", &a.address]).is_none()
    );
    assert!(!dir.path().join("s").exists(), "a node that is refused leaves nothing behind");

    // The founder's own folder is the first operator.
    let invite = |right: &str, who: &str| {
        let out = a.ask(&["invite", right, "--identity", who]);
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        let file = path(&format!("invitation-{right}"));
        std::fs::write(&file, out.stdout).unwrap();
        file
    };
    let operator = path("operator");
    let file = invite("operator", &path("a"));
    assert!(a.ask(&["accept", "--invitation", &file, "--identity", &operator]).status.success());
    let client = path("client");
    let file = invite("client", &operator);
    assert!(a.ask(&["accept", "--invitation", &file, "--identity", &client]).status.success());
    let again = a.ask(&["accept", "--invitation", &file, "--identity", &path("late")]);
    assert_eq!(again.status.code(), Some(8), "single use");

    let file = invite("node", &operator);
    let b = Process::start(
        &dir.path().join("b"),
        free_port(),
        &["--join", &a.address, "--closed", "--invitation", &file],
    );
    let as_client = ["--identity", client.as_str()];
    // An identity believes the nodes that it was told of; a node that it believes tells it of a new one.
    let unknown = b.ask(&[&["status"], &as_client[..]].concat());
    assert_eq!(unknown.status.code(), Some(1));
    let said = String::from_utf8_lossy(&unknown.stderr).into_owned();
    assert!(said.contains("ask a node that you asked before"), "{said}");
    for identity in [&client, &operator] {
        assert!(a.ask(&["status", "--identity", identity]).status.success());
    }
    eventually("both vote", 20, || {
        let out = b.ask(&[&["status", "--json"], &as_client[..]].concat());
        let status: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap_or_default();
        status["namespaces"][0]["voters"].as_array().is_some_and(|voters| voters.len() == 2)
    });
    assert!(b.ask(&[&["submit"], &as_client[..], &["put", "k", "1"]].concat()).status.success());
    let order = b.ask(&[&["step-down"], &as_client[..]].concat());
    assert_eq!(order.status.code(), Some(8), "{}", String::from_utf8_lossy(&order.stderr));
    assert!(b.ask(&["step-down", "--identity", &operator]).status.success());

    let id = a.ask(&["credentials", "--identity", &operator]).stdout;
    let id = String::from_utf8(id).unwrap();
    let id =
        id.lines().find_map(|line| line.strip_prefix("client    ")).expect("a client").to_owned();
    assert!(a.ask(&["revoke", &id[..8], "--identity", &operator]).status.success());
    eventually("the client is shut out everywhere", 20, || {
        b.ask(&[&["get"], &as_client[..]].concat()).status.code() == Some(8)
    });
}

#[test]
fn watch_follows_and_metrics_are_served() {
    use std::io::{BufRead as _, BufReader, Read as _, Write as _};
    let dir = tempfile::tempdir().unwrap();
    let port = free_port();
    let at = format!("127.0.0.1:{port}");
    let node = Process::start(dir.path(), free_port(), &["--bootstrap", "--metrics", &at]);
    let mut watch = std::process::Command::new(BIN)
        .args(["gossip", "watch", "--node", &node.address, "--count", "1"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    // Whether the watcher is there yet cannot be seen from outside: submit until it is served.
    let (done, served) = std::sync::mpsc::channel();
    let out = watch.stdout.take().unwrap();
    std::thread::spawn(move || {
        let mut line = String::new();
        let _ = BufReader::new(out).read_line(&mut line);
        let _ = done.send(line);
    });
    let mut line = None;
    eventually("the watcher sees a record", 15, || {
        node.submit(&["increment", "n"]);
        line = served.try_recv().ok();
        line.is_some()
    });
    assert!(line.unwrap().contains("increment"));
    assert!(watch.wait().unwrap().success());

    let get = |path: &str| {
        let mut stream = std::net::TcpStream::connect(&at).unwrap();
        stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    };
    let answer = get("/health");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    assert!(head.starts_with("HTTP/1.0 200 "), "{answer}");
    let health: serde_json::Value = serde_json::from_str(body).expect("JSON");
    assert_eq!(health["namespaces"][0]["leader"], json!(node.id), "{health}");

    eventually("the metrics are there", 10, || {
        let text = get("/metrics");
        let expected = [
            "leader_changes_total",
            "leader_tenure_seconds",
            "goal_result_timeouts_total",
            "history_requests_total",
            "pending_transactions",
            "acting",
        ];
        expected
            .iter()
            .all(|name| text.contains(&format!("tenure_gossip_{name}{{namespace=\"main\"}}")))
    });
}
