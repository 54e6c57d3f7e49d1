//! Dead voters, old copies, lost majorities and backups, with real processes.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use crate::kit::{BIN, Process, cluster, cluster_with, eventually, free_port, leader};

fn stdout(out: &Output) -> String {
    String::from_utf8_lossy(&out.stdout).into_owned()
}

fn stderr(out: &Output) -> String {
    String::from_utf8_lossy(&out.stderr).into_owned()
}

/// A command that asks no node.
fn offline(args: &[&str]) -> Output {
    let mut command = Command::new(BIN);
    command.arg("gossip").args(args).env("TENURE_LOG", "error").output().expect("it runs")
}

/// Copies the folder of a node that is stopped, with its rights.
fn copy(from: &Path, to: &Path) {
    let done = Command::new("cp").arg("-a").arg(from).arg(to).status().expect("cp runs");
    assert!(done.success());
}

#[test]
fn a_dead_voter_is_shown_stops_growth_and_is_replaced_without_losing_the_majority() {
    let dir = tempfile::tempdir().unwrap();
    let mut nodes = cluster(dir.path(), 3);
    let at = leader(&nodes);
    let mut dead = nodes.remove((at + 1) % 3);
    let at = leader(&nodes);
    dead.kill();
    let (old, other) = (&dead.id[..8], nodes[1 - at].id.clone());
    eventually("any node shows the dead voter", 20, || {
        let said = stdout(&nodes[1 - at].ask(&["status"]));
        said.contains("SILENT") && said.contains(&format!("tenure gossip replace {old} NEW"))
    });
    // A newcomer learns and does not vote: two of four would be no majority.
    let new = Process::start(&dir.path().join("n"), free_port(), &["--join", &nodes[at].address]);
    eventually("it learns", 20, || nodes[at].main()["learners"] == json!([new.id]));
    let record = nodes[at].submit(&["put", "x", "1"]);
    eventually("it has caught up", 20, || new.main()["index"] == record["index"]);
    for change in [["add", &new.id], ["remove", &other]] {
        let out = nodes[at].ask(&["voter", change[0], change[1]]);
        assert_eq!(out.status.code(), Some(8), "{change:?}");
        assert!(stderr(&out).contains("does not answer"), "{}", stderr(&out));
    }
    assert_eq!(nodes[at].main()["learners"], json!([new.id]), "it was not promoted meanwhile");

    let out = nodes[1 - at].ask(&["replace", old, &new.id[..8]]);
    assert!(out.status.success(), "{}", stderr(&out));
    assert!(stdout(&out).contains("3 nodes vote now"), "{}", stdout(&out));
    let main = nodes[at].main();
    let voters = main["voters"].as_array().unwrap();
    assert!(voters.contains(&json!(new.id)) && !voters.contains(&json!(dead.id)), "{main}");
    // The next death is survived: the new voter counts.
    nodes[1 - at].kill();
    assert_eq!(nodes[at].submit(&["put", "y", "2"])["outcome"], json!("done"));
}

#[test]
fn every_node_is_replaced_in_turn_and_the_group_still_lets_others_in() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().expect("text").to_owned();
    let a = Process::start(&dir.path().join("0"), free_port(), &["--bootstrap", "--closed"]);
    // The folder of the founder is the first operator; it is used from here on, whichever node is lost.
    let operator = path("operator");
    let invite = |node: &Process, right: &str, identity: &str| {
        let out = node.ask(&["invite", right, "--identity", identity]);
        assert!(out.status.success(), "{}", stderr(&out));
        let file = path(&format!("invitation-{right}"));
        std::fs::write(&file, out.stdout).unwrap();
        file
    };
    eventually("the cluster is founded", 20, || {
        a.ask(&["status", "--identity", &path("0")]).status.success()
    });
    let file = invite(&a, "operator", &path("0"));
    assert!(a.ask(&["accept", "--invitation", &file, "--identity", &operator]).status.success());
    let status = |node: &Process| {
        let out = node.ask(&["status", "--json", "--identity", &operator]);
        serde_json::from_slice::<Value>(&out.stdout).unwrap_or_default()
    };
    // How many vote on the application's records, and on the credentials.
    let voters = |node: &Process| {
        let status = status(node);
        let count = |space: &Value| space["voters"].as_array().map_or(0, Vec::len);
        (count(&status["namespaces"][0]), count(&status["credentials"]))
    };
    let mut nodes = vec![a];
    for n in 1..=5 {
        let file = invite(&nodes[0], "node", &operator);
        let join = ["--join", &nodes[0].address, "--closed", "--invitation", &file];
        if n <= 2 {
            let node = Process::start(&dir.path().join(n.to_string()), free_port(), &join);
            nodes.push(node);
            let all = nodes.len();
            eventually("it votes", 20, || nodes.iter().all(|node| voters(node) == (all, all)));
            continue;
        }
        let dead = nodes.remove(0);
        let old = dead.id.clone();
        drop(dead);
        let join = ["--join", &nodes[0].address, "--closed", "--invitation", &file];
        let new = Process::start(&dir.path().join(n.to_string()), free_port(), &join);
        // At once: the dead node may have led, and the next leader carries the order out.
        let out = nodes[0].ask(&["replace", &old[..8], &new.id, "--identity", &operator]);
        assert!(out.status.success(), "{}{}", stdout(&out), stderr(&out));
        nodes.push(new);
        eventually("every node has heard of it", 20, || {
            let removed = |space: &Value| space["removed"].to_string().contains(&old);
            nodes.iter().all(|node| {
                let status = status(node);
                removed(&status["namespaces"][0]) && removed(&status["credentials"])
            }) && voters(&nodes[0]) == (3, 3)
        });
    }
    // Not one of the first three is left, and each of these needs a majority of the credentials.
    invite(&nodes[0], "client", &operator);
    let out = nodes[1].ask(&["found", "more", "--identity", &operator]);
    assert!(out.status.success(), "{}", stderr(&out));
    let out = nodes[2].ask(&["submit", "--identity", &operator, "put", "x", "1"]);
    assert!(out.status.success(), "{}", stderr(&out));
    let said = stdout(&nodes[2].ask(&["status", "--identity", &operator]));
    assert!(said.contains("namespace  tenure.credentials"), "{said}");
}

#[test]
fn an_old_copy_and_a_copy_beside_it_are_stopped_and_rejoin_under_a_new_identity() {
    let dir = tempfile::tempdir().unwrap();
    let mut nodes = cluster(dir.path(), 3);
    let saved = dir.path().join("saved");
    for twice in [false, true] {
        let at = leader(&nodes);
        let mut old = nodes.remove((at + 1) % 3);
        let at = leader(&nodes);
        old.kill();
        copy(old.folder(), &saved);
        let mut old = old.restart();
        let record = nodes[at].submit(&["put", "before", "1"]);
        eventually("it acknowledged what the copy lacks", 15, || {
            old.main()["index"] == record["index"]
        });
        let id = old.id.clone();
        let join = ["--join", nodes[at].address.as_str()];
        if !twice {
            old.kill();
            std::fs::remove_dir_all(old.folder()).unwrap();
        }
        let copied = Process::start(&saved, free_port(), &join);
        assert_eq!(copied.id, id, "the same identity");
        let mut watching = Command::new(BIN)
            .args(["gossip", "watch", "--node", &copied.address, "--from", "1"])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut n = 0;
        eventually("the copy halts, says why, and votes no more", 30, || {
            n += 1;
            nodes[at].submit(&["put", "during", &n.to_string()]);
            let halted = copied.main()["halted"].as_str().is_some_and(|why| why.contains("copy"));
            halted && nodes[at].main()["removed"].as_array().unwrap().contains(&json!(id))
        });
        eventually("a watcher is told", 10, || watching.try_wait().unwrap().is_some());
        let told = watching.wait_with_output().unwrap();
        assert_eq!(told.status.code(), Some(8));
        assert!(stderr(&told).contains("has halted"), "{}", stderr(&told));
        let told = copied.ask(&["watch"]);
        assert!(stderr(&told).contains("has halted"), "{}", stderr(&told));
        let out = nodes[at].ask(&["voter", "add", &id]);
        assert_eq!(out.status.code(), Some(8));
        assert!(stderr(&out).contains("can never vote again"), "{}", stderr(&out));
        drop((copied, old));
        std::fs::remove_dir_all(&saved).unwrap();
        let folder = dir.path().join(format!("fresh {twice}"));
        let fresh = Process::start(&folder, free_port(), &join);
        assert_ne!(fresh.id, id);
        eventually("a fresh one votes in its place", 20, || nodes[at].voters() == 3);
        nodes.push(fresh);
    }
}

#[test]
fn a_lost_majority_is_recovered_into_a_generation_that_no_survivor_joins() {
    let dir = tempfile::tempdir().unwrap();
    let mut nodes = cluster_with(dir.path(), 3, &["--snapshot-every", "16"]);
    let tx = "00000000000000000000000000000042";
    let before = nodes[0].submit(&["--tx", tx, "put", "kept", "1"]);
    let rejected = "00000000000000000000000000000043";
    nodes[0].submit(&["--tx", rejected, "cas", "kept", "2", "--expect", "7"]);
    for i in 0..30 {
        nodes[0].submit(&["put", "n", &i.to_string()]);
    }
    eventually("the survivor has all", 10, || nodes[1].get("n") == "29");
    let term = nodes[1].main()["term"].as_u64().unwrap();
    let last = nodes[1].main()["index"].as_u64().unwrap();
    let (data, into) = (dir.path().join("1"), dir.path().join("new"));
    let (data, into) = (data.to_str().unwrap(), into.to_str().unwrap());
    let recover = ["force-recover", "--data", data, "--into", into];
    let running = offline(&[&recover[..], &["--accept-data-loss"]].concat());
    assert_eq!(running.status.code(), Some(1), "{}", stderr(&running));
    nodes.iter_mut().for_each(Process::kill);
    let asked = offline(&recover);
    assert_eq!(asked.status.code(), Some(2));
    assert!(stdout(&asked).contains(&format!("main: up to record {last}")), "{}", stdout(&asked));
    assert!(stderr(&asked).contains("will be lost"), "{}", stderr(&asked));
    let done = offline(&[&recover[..], &["--accept-data-loss"]].concat());
    assert!(done.status.success(), "{}", stderr(&done));
    let twice = dir.path().join("twice");
    let twice = ["force-recover", "--data", data, "--into", twice.to_str().unwrap()];
    let twice = offline(&[&twice[..], &["--accept-data-loss"]].concat());
    assert_eq!(twice.status.code(), Some(2), "two generations with the same terms");
    assert!(stderr(&twice).contains("recovered into a new cluster before"), "{}", stderr(&twice));

    let new = Process::start(Path::new(into), free_port(), &[]);
    eventually("the new generation acts", 20, || new.acts());
    assert_eq!((new.get("kept"), new.get("n")), ("1".to_owned(), "29".to_owned()));
    assert!(new.main()["term"].as_u64().unwrap() > term + 1_000_000, "no epoch is issued again");
    // The records are gone; how each ended is not.
    let again = new.submit(&["--tx", tx, "put", "kept", "1"]);
    assert_eq!((&again["index"], &again["outcome"]), (&before["index"], &json!("done")));
    let again = new.ask(&["submit", "--tx", rejected, "cas", "kept", "2", "--expect", "7"]);
    assert_eq!(again.status.code(), Some(8), "{}", stderr(&again));
    assert!(stdout(&again).contains("rejected"), "{}", stdout(&again));
    assert!(new.submit(&["put", "n", "30"])["index"].as_u64().unwrap() > last + 1_000_000);
    let past = new.ask(&["watch", "--from", &(last + 5).to_string()]);
    assert!(stderr(&past).contains("keeps no record before"), "{}", stderr(&past));

    // The recovered folder is left behind; another survivor starts, and is let in nowhere.
    let retired = nodes.remove(1);
    assert!(retired.restart_with(&[]).is_none(), "it was recovered into another cluster");
    let join = ["--join", new.address.as_str()];
    let log = dir.path().join("survivor.log");
    let mut program = Command::new(BIN);
    let folder = dir.path().join("2");
    let port = free_port();
    program.args(["gossip", "node", "--listen", &format!("127.0.0.1:{port}"), "--data"]);
    program.arg(&folder).args(join).stderr(std::fs::File::create(&log).unwrap());
    drop(nodes);
    let mut survivor = Process::try_start_by(program, &folder, port, &join).expect("it starts");
    let fresh = Process::start(&dir.path().join("fresh"), free_port(), &join);
    eventually("a fresh node votes", 20, || new.voters() == 2 && fresh.get("n") == "30");
    assert_eq!(new.status()["connected"], json!([fresh.id]));
    // It would try on for ever: it says so at once, and ends with the remedy.
    assert_eq!(survivor.ends(20), Some(2));
    let said = std::fs::read_to_string(&log).unwrap();
    assert_eq!(said.matches("will never let it in").count(), 1, "{said}");
    assert!(said.contains("join it with a fresh folder (--data)"), "{said}");
}

#[test]
fn a_node_that_does_its_work_goes_on_although_it_is_told_to_join_another_cluster() {
    let dir = tempfile::tempdir().unwrap();
    let other = Process::start(&dir.path().join("o"), free_port(), &["--bootstrap"]);
    // It leads alone: no node of its own will ever answer, and none has to.
    let alone = Process::start(&dir.path().join("a"), free_port(), &["--bootstrap"]);
    // A voter of two whose other voter is away: that one may come back.
    let mut two = cluster_with(&dir.path().join("two"), 2, &[]);
    two[0].kill();
    let join = ["--join", &other.address, "--join", &two[0].address.clone()];
    let began = std::time::Instant::now();
    let alone = alone.restart_with(&["--join", &other.address]).expect("it starts");
    let patient = two.remove(1).restart_with(&join).expect("it starts");
    eventually("it has met the other cluster for more than ten seconds", 30, || {
        began.elapsed().as_secs() >= 14
    });
    assert_eq!(alone.submit(&["put", "x", "1"])["outcome"], json!("done"));
    let back = two.remove(0).restart();
    eventually("the two agree again", 20, || patient.acts() || back.acts());
    assert_eq!(patient.submit(&["put", "x", "1"])["outcome"], json!("done"));
}

#[test]
fn a_backup_of_a_running_node_becomes_a_cluster_of_its_own_and_little_history_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["--bootstrap", "--snapshot-every", "16", "--keep-history", "8"];
    let a = Process::start(&dir.path().join("a"), free_port(), &args);
    for i in 0..40 {
        a.submit(&["put", &format!("k{i}"), &i.to_string()]);
    }
    eventually("old records are dropped", 10, || a.main()["oldest"].as_u64() > Some(16));
    let out = a.ask(&["history"]);
    assert_eq!(out.status.code(), Some(8));
    assert!(stderr(&out).contains("keeps no record before"), "{}", stderr(&out));
    let (file, data) = (dir.path().join("file"), dir.path().join("b"));
    let (file, data) = (file.to_str().unwrap(), data.to_str().unwrap());
    let out = a.ask(&["backup", file]);
    assert!(out.status.success(), "{}", stderr(&out));
    assert!(stdout(&out).contains("main: up to record 40"), "{}", stdout(&out));
    a.submit(&["put", "k0", "later"]);
    let out = offline(&["restore", "--data", data, file]);
    assert!(out.status.success(), "{}", stderr(&out));
    assert_eq!(offline(&["restore", "--data", data, file]).status.code(), Some(2), "not twice");
    let b = Process::start(Path::new(data), free_port(), &[]);
    eventually("it acts", 20, || b.acts());
    assert_eq!((b.get("k0"), b.get("k39")), ("0".to_owned(), "39".to_owned()));
    assert_eq!(a.get("k0"), "\"later\"");
    assert_ne!(a.status()["cluster"], b.status()["cluster"]);
}

#[test]
fn a_restore_brings_revoked_rights_back_until_they_are_revoked_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().expect("text").to_owned();
    let a = Process::start(&dir.path().join("a"), free_port(), &["--bootstrap", "--closed"]);
    let done = |node: &Process, args: &[&str]| {
        let out = node.ask(args);
        assert!(out.status.success(), "{args:?}: {}", stderr(&out));
        stdout(&out)
    };
    let (of_a, of_b, client) = (path("a"), path("b"), path("client"));
    let invitation = done(&a, &["invite", "client", "--identity", &of_a]);
    std::fs::write(path("invitation"), invitation).unwrap();
    let accept = ["accept", "--invitation", &path("invitation"), "--identity", &client];
    let key = done(&a, &accept).trim().rsplit(' ').next().expect("a key").to_owned();
    done(&a, &["backup", &path("file"), "--identity", &of_a]);
    done(&a, &["revoke", &key, "--identity", &of_a]);

    assert!(offline(&["restore", "--data", &of_b, &path("file")]).status.success());
    let b = Process::start(Path::new(&of_b), free_port(), &["--closed"]);
    let rights = || done(&b, &["credentials", "--identity", &of_b]);
    assert!(rights().contains(&key), "it is in the backup");
    done(&b, &["revoke", &key[..8], "--identity", &of_b]);
    assert!(!rights().contains(&key));
    // Nor does anything of the former cluster help: not its key, nor the invitation that was used there.
    for identity in [&of_a, &client, &path("nobody")] {
        let accept = ["accept", "--invitation", &path("invitation"), "--identity", identity];
        assert!(!b.ask(&accept).status.success());
        let submit = ["submit", "--timeout", "2s", "--identity", identity, "put", "x", "1"];
        assert!(!b.ask(&submit).status.success(), "{identity}");
    }
}
