//! What a newcomer types, and what is said to wrong words: one sentence and a remedy.

use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use crate::kit::{BIN, Process, cluster, free_port};

fn run(args: &[&str]) -> (Option<i32>, String) {
    let out = Command::new(BIN)
        .arg("gossip")
        .args(args)
        .env("TENURE_LOG", "error")
        .output()
        .expect("it runs");
    (out.status.code(), String::from_utf8_lossy(&out.stderr).into_owned())
}

#[test]
fn wrong_words_to_a_node_are_answered_with_a_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("d");
    let data = data.to_str().unwrap();
    let short = dir.path().join("short");
    std::fs::write(&short, "guess").unwrap();
    let short = short.to_str().unwrap();
    let node =
        |args: &[&str]| run(&[&["node", "--listen", "127.0.0.1:0", "--data", data], args].concat());
    for (args, says) in [
        (&[][..], "--bootstrap (once, on one node) or with --join"),
        (&["--bootstrap", "--goal-timeout", "1s"], "goal_timeout: 5 s to 15 s"),
        (&["--bootstrap", "--lease", "2m"], "lease: at most 60s"),
        (&["--bootstrap", "--lease", "10ms"], "lease: at least 100ms"),
        (&["--bootstrap", "--snapshot-every", "1"], "snapshot_every: at least 16"),
        (&["--bootstrap", "--namespace", ""], "must have 1 to 64 bytes"),
        (&["--join", "127.0.0.1:1", "--invitation", short], "not an invitation"),
        (
            &["--join", "127.0.0.1:1", "--invitation", "/nowhere/at/all"],
            "invitation /nowhere/at/all",
        ),
        (&["--bootstrap", "--tls-cert", "c", "--tls-key", "k", "--tls-ca", "a"], "tls"),
        (&["--join", "no-port"], "join: HOST:PORT"),
        (&["--bootstrap", "--advertise", "no-port"], "advertise: HOST:PORT"),
    ] {
        let (code, text) = node(args);
        assert_eq!(code, Some(2), "{args:?}: {text}");
        assert!(text.to_lowercase().contains(&says.to_lowercase()), "{args:?} says {text:?}");
        assert!(text.lines().count() == 1, "{args:?} says more than a line: {text:?}");
    }
    // An incomplete set of TLS files is never read as "without TLS".
    for part in ["--tls-cert", "--tls-key", "--tls-ca"] {
        let (code, text) = node(&["--bootstrap", part, "file"]);
        assert_eq!(code, Some(2), "{part}: {text}");
        assert!(text.contains("--tls-"), "{part} says {text:?}");
    }
    // A key that every user of the machine may read is no secret; a group may read it.
    let ca = tenure_testkit::Ca::new().unwrap();
    let (files, authority) = (ca.client("node").unwrap(), ca.file());
    std::fs::set_permissions(&files.key, std::fs::Permissions::from_mode(0o644)).unwrap();
    let [cert, key, ca] = [&files.cert, &files.key, &authority].map(|path| path.to_str().unwrap());
    let (code, text) = node(&["--bootstrap", "--tls-cert", cert, "--tls-key", key, "--tls-ca", ca]);
    let says = format!("{key}: every user of this machine may use it (mode 644); chmod 600 {key}");
    assert!(code == Some(2) && text.contains(&says) && text.lines().count() == 1, "{text}");
    let (code, text) = run(&["node", "--listen", "0.0.0.0:0", "--data", data, "--bootstrap"]);
    assert!(code == Some(2) && text.contains("advertise: an address"), "{text}");
    assert!(!std::path::Path::new(data).exists(), "a node that is refused leaves nothing behind");
    // A folder that cannot be made is no mistake of the words, and has its remedy too.
    let (code, text) =
        run(&["node", "--listen", "127.0.0.1:0", "--data", "/proc/no/folder", "--bootstrap"]);
    assert!(code == Some(1) && text.contains("name a folder that this program may make"), "{text}");
    // And so are clap's own.
    assert_eq!(node(&["--bootstrap", "--join", "127.0.0.1:1"]).0, Some(2));
    assert_eq!(node(&["--lease", "soon"]).0, Some(2));
    assert_eq!(run(&["node", "--listen", "here"]).0, Some(2));
}

#[test]
fn a_goal_for_a_node_that_is_just_starting_waits_for_it() {
    let dir = tempfile::tempdir().unwrap();
    let port = free_port();
    let address = format!("127.0.0.1:{port}");
    // As the README is pasted: the goal may be there before the node.
    let goal = std::thread::spawn({
        let address = address.clone();
        move || crate::kit::ask(&address, &["submit", "put", "a", "1"])
    });
    let _node = Process::start(dir.path(), port, &["--bootstrap"]);
    let out = goal.join().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}

#[test]
fn wrong_words_to_a_client_are_answered_with_a_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = cluster(dir.path(), 1);
    let a = nodes[0].address.as_str();
    let nobody = format!("127.0.0.1:{}", free_port());
    for (args, exit, says) in [
        (
            vec!["submit", "--node", a, "--namespace", "x", "put", "a", "1"],
            7,
            "carries no namespace \"x\"",
        ),
        (vec!["submit", "--node", a, "--tx", "42", "put", "a", "1"], 2, "32 hexadecimal digits"),
        (
            vec!["submit", "--node", a, "put", "n", "1e400"],
            2,
            "number 1e400 cannot be kept exactly",
        ),
        (
            vec!["submit", "--node", a, "cas", "n", "18446744073709551616"],
            2,
            "cannot be kept exactly",
        ),
        (vec!["replace", "--node", a, &nodes[0].id[..8], &nodes[0].id], 2, "another node"),
        (vec!["node", "--data", "d", "--listen", a, "--bootstrap"], 1, "a port that is free"),
        (vec!["restore", "--data", "d", "/nowhere/at/all"], 1, "/nowhere/at/all"),
        (vec!["get", "--node", a, "nothing"], 7, "no \"nothing\" at index"),
        (vec!["get", "--node", a, "--namespace", "x"], 7, "carries no namespace"),
        (vec!["history", "--node", a, "--namespace", "x"], 7, "carries no namespace"),
        (vec!["watch", "--node", a, "--namespace", "x"], 7, "carries no namespace"),
        (vec!["voter", "--node", a, "remove", "abc"], 2, "at least 4 of its 64 hexadecimal digits"),
        (vec!["voter", "--node", a, "remove", "00000000"], 7, "no node whose id begins with"),
        (vec!["voter", "--node", a, "remove", &nodes[0].id[..8]], 8, "no other node votes"),
        (vec!["step-down", "--node", a], 8, "no other node votes"),
        (vec!["step-down", "--node", a, "--namespace", "x"], 7, "carries no namespace"),
        (vec!["status", "--node", nobody.as_str()], 6, "is a node running there"),
        (vec!["status", "--node", "no-port"], 2, "HOST:PORT"),
        (vec!["submit", "--node", a, "increment", "n", "x"], 2, "write a whole number"),
        (vec!["invite", "--node", nobody.as_str(), "--for", "0s", "client"], 2, "at least 1s"),
    ] {
        let (code, text) = run(&args);
        assert_eq!(code, Some(exit), "{args:?}: {text}");
        assert!(text.contains(says), "{args:?} says {text:?}");
        assert!(text.matches("os error").count() <= 1, "{args:?} says it twice: {text:?}");
        assert!(!text.contains("may or may not be decided"), "{args:?} says {text:?}");
    }
    // A goal that cannot be reached is decided: it has an exit code of its own.
    let rejected = nodes[0].ask(&["submit", "json", "{\"fly\": {}}"]);
    assert_eq!(rejected.status.code(), Some(8));
    // Without a majority the caller is told how to go on, under the same name.
    let b = Process::start(&dir.path().join("b"), free_port(), &["--join", a]);
    crate::kit::eventually("both vote", 20, || nodes[0].voters() == 2 && b.voters() == 2);
    drop(b);
    let (code, text) = run(&["submit", "--node", a, "--timeout", "1s", "put", "a", "1"]);
    assert_eq!(code, Some(10));
    assert!(text.contains("submit it again with --tx "), "{text}");
}
