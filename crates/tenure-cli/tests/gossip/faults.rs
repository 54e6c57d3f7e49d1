//! Processes that are killed all at once, frozen, cut off from their disk, or silent.

use std::{
    collections::BTreeSet,
    net::TcpListener,
    process::Command,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use serde_json::json;

use crate::kit::{self, BIN, Process, cluster, cluster_with, eventually, free_port, leader};

#[test]
fn kill_nine_of_all_nodes_under_load_loses_nothing_and_repeats_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut nodes = cluster_with(dir.path(), 3, &["--snapshot-every", "16"]);
    let addresses: Vec<_> = nodes.iter().map(|n| n.address.clone()).collect();
    let (acked, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let all = Arc::new(Mutex::new(BTreeSet::new()));
    // Each writer repeats a transaction, on another node each time, until it is acknowledged.
    let writers: Vec<_> = (0..3_usize)
        .map(|w| {
            let (acked, stop, all) = (acked.clone(), stop.clone(), all.clone());
            let addresses = addresses.clone();
            std::thread::spawn(move || {
                let mut turn = w;
                for n in 0.. {
                    let tx = format!("{:032x}", ((w as u128) << 64) | n);
                    if stop.load(Ordering::SeqCst) {
                        return;
                    }
                    let until = Instant::now() + Duration::from_secs(60);
                    loop {
                        turn += 1;
                        let args = ["submit", "--tx", &tx, "--timeout", "2s", "increment", "n"];
                        if kit::ask(&addresses[turn % 3], &args).status.success() {
                            break;
                        }
                        assert!(Instant::now() < until, "{tx} is never acknowledged");
                    }
                    acked.fetch_add(1, Ordering::SeqCst);
                    all.lock().unwrap().insert(tx);
                }
            })
        })
        .collect();
    for round in 1..=4 {
        eventually("goals are acknowledged", 60, || acked.load(Ordering::SeqCst) >= round * 10);
        nodes.iter().for_each(|n| n.signal("-KILL"));
        nodes = nodes.into_iter().map(Process::restart).collect();
    }
    stop.store(true, Ordering::SeqCst);
    writers.into_iter().for_each(|w| w.join().unwrap());

    let all = all.lock().unwrap();
    let last = nodes[0].submit(&["put", "end", "1"])["index"].clone();
    assert_eq!(last.as_u64(), Some(all.len() as u64 + 1), "each transaction is one record");
    for node in &nodes {
        eventually("every node has everything", 20, || node.main()["index"] == last);
        assert_eq!(node.get("n"), all.len().to_string());
        assert_eq!(node.main()["head"], nodes[0].main()["head"]);
    }
    let history = nodes[1].ask(&["history"]);
    let lines = String::from_utf8_lossy(&history.stdout).into_owned();
    for tx in all.iter() {
        assert_eq!(lines.lines().filter(|l| l.contains(tx)).count(), 1, "{tx}");
    }
}

#[test]
fn a_node_whose_disk_refuses_stops_says_why_and_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("a");
    // Files of this process may have 6 MiB; a write beyond fails as on a full disk.
    let mut limited = Command::new("sh");
    limited.args(["-c", "trap '' XFSZ; ulimit -f 12288; exec \"$0\" \"$@\"", BIN]);
    let mut node = Process::try_start_as(limited, &folder, free_port(), &["--bootstrap"])
        .expect("the node gets ready");
    let value = "x".repeat(100_000);
    let mut kept = 0;
    for i in 0..200 {
        let out = node.ask(&["submit", "--timeout", "5s", "put", &format!("k{i}"), &value]);
        if !out.status.success() {
            break;
        }
        kept = i + 1;
    }
    assert!((1..200).contains(&kept), "{kept}");
    assert_eq!(node.ends(15), Some(1), "it stops by itself: no gate of it is open");
    let back = node.restart_with(&[]).expect("with room again it goes on");
    eventually("it leads again", 15, || back.acts());
    for i in 0..kept {
        assert_eq!(back.get(&format!("k{i}")).len(), 100_002, "k{i}");
    }
}

#[test]
fn a_frozen_follower_slows_nobody_down_and_catches_up() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = cluster_with(dir.path(), 3, &["--snapshot-every", "16"]);
    let at = leader(&nodes);
    let frozen = (at + 1) % 3;
    nodes[frozen].signal("-STOP");
    let value = "x".repeat(50_000);
    let mut taken: Vec<_> = (0..40)
        .map(|i| {
            let begun = Instant::now();
            nodes[at].submit(&["put", &format!("k{i}"), &value]);
            begun.elapsed()
        })
        .collect();
    // A leader that waited for the frozen one would do so every time; a busy machine is slow now and then.
    taken.sort();
    assert!(taken[20] < Duration::from_secs(3), "{taken:?}");
    nodes[frozen].signal("-CONT");
    eventually("it has caught up", 20, || nodes[frozen].main()["index"] == json!(40));
    assert_eq!(nodes[frozen].main()["head"], nodes[at].main()["head"]);
}

#[test]
fn a_goal_nobody_can_decide_times_out_skips_nothing_and_is_decided_later() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = cluster_with(dir.path(), 3, &["--goal-timeout", "5s"]);
    nodes[0].submit(&["put", "a", "1"]);
    eventually("all have it", 10, || nodes.iter().all(|n| n.main()["index"] == json!(1)));
    let at = leader(&nodes);
    let (alone, others) = ((at + 1) % 3, [at, (at + 2) % 3]);
    others.iter().for_each(|i| nodes[*i].signal("-STOP"));
    let address = nodes[alone].address.clone();
    let goal = std::thread::spawn(move || {
        kit::ask(&address, &["submit", "--timeout", "40s", "increment", "n"])
    });
    eventually("the goal times out, and history is asked for", 15, || {
        let main = nodes[alone].main();
        main["goal_result_timeouts"].as_u64() >= Some(1)
            && main["history_requests"].as_u64() >= Some(1)
    });
    let main = nodes[alone].main();
    assert_eq!((&main["index"], &main["pending"]), (&json!(1), &json!(1)), "nothing is skipped");
    others.iter().for_each(|i| nodes[*i].signal("-CONT"));
    let out = goal.join().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    eventually("all have the same", 15, || {
        nodes.iter().all(|n| n.main()["index"] == json!(2) && n.get("n") == "1")
    });
}

#[test]
fn a_peer_that_accepts_and_says_nothing_keeps_nobody_from_joining() {
    let dir = tempfile::tempdir().unwrap();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent_at = silent.local_addr().unwrap().to_string();
    let a = Process::start(&dir.path().join("a"), free_port(), &["--bootstrap"]);
    let args = ["--join", silent_at.as_str(), "--join", a.address.as_str()];
    let b = Process::start(&dir.path().join("b"), free_port(), &args);
    eventually("it joined through the other", 10, || b.voters() == 2);
    assert_eq!(b.submit(&["put", "x", "1"])["outcome"], json!("done"));
}

#[test]
fn a_node_far_behind_catches_up_by_snapshot_and_one_near_by_log() {
    let dir = tempfile::tempdir().unwrap();
    let mut nodes = cluster_with(dir.path(), 3, &["--snapshot-every", "16"]);
    let at = leader(&nodes);
    let (near, far) = ((at + 1) % 3, (at + 2) % 3);
    nodes[far].kill();
    for i in 0..120 {
        nodes[at].submit(&["put", &format!("k{i}"), "1"]);
    }
    nodes[near].kill();
    let back = nodes.remove(far).restart();
    nodes.insert(far, back);
    let last = nodes[at].submit(&["put", "with", "far"])["index"].clone();
    let back = nodes.remove(near).restart();
    nodes.insert(near, back);
    for i in [near, far] {
        eventually("it has caught up", 20, || nodes[i].main()["index"] == last);
        assert_eq!(nodes[i].main()["head"], nodes[at].main()["head"]);
    }
}

#[test]
fn a_state_larger_than_a_frame_is_read_whole() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = cluster(dir.path(), 1);
    let value = "x".repeat(100_000);
    for i in 0..45 {
        nodes[0].submit(&["put", &format!("k{i:02}"), &value]);
    }
    let out = nodes[0].ask(&["get"]);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    assert_eq!(String::from_utf8_lossy(&out.stdout).lines().count(), 45);
    assert_eq!(nodes[0].get("k07").len(), 100_002);
}
