//! Orders that are given in the moment in which a leader dies.

use serde_json::json;

use crate::kit::{Process, cluster, eventually, free_port, leader};

fn said(out: &std::process::Output) -> String {
    String::from_utf8_lossy(&[&out.stdout[..], &out.stderr[..]].concat()).into_owned()
}

/// The nodes as they were before a death: every voter answers, and one acts.
fn settle(nodes: &[Process]) -> usize {
    let mut at = 0;
    eventually("every voter answers", 30, || {
        // The leader may change meanwhile.
        let Some(acting) = nodes.iter().position(Process::acts) else { return false };
        at = acting;
        let main = nodes[at].main();
        let followers = main["followers"].as_array().cloned().unwrap_or_default();
        followers.len() + 1 >= nodes.len()
            && followers.iter().all(|f| f["silent"] == json!(false) && f["lag"] == json!(0))
    });
    at
}

#[test]
fn an_order_in_the_moment_of_a_leaders_death_is_carried_out_by_the_next_leader() {
    let dir = tempfile::tempdir().unwrap();
    let mut nodes = cluster(dir.path(), 3);
    let join = ["--join", nodes[0].address.as_str(), "--observer"];
    let new = Process::start(&dir.path().join("n"), free_port(), &join);
    eventually("it follows", 20, || new.main()["leader"].is_string());

    // A replacement of the dead leader itself, asked of another voter.
    let mut dead = nodes.remove(settle(&nodes));
    dead.kill();
    let out = nodes[0].ask(&["replace", &dead.id, &new.id]);
    assert_eq!(out.status.code(), Some(0), "{}", said(&out));
    nodes.push(new);
    drop(dead);

    // A step-down: the next leader acts, and makes room for the one after it.
    let mut dead = nodes.remove(settle(&nodes));
    let term = dead.main()["term"].as_u64().unwrap();
    dead.kill();
    let out = nodes[0].ask(&["step-down"]);
    assert_eq!(out.status.code(), Some(0), "{}", said(&out));
    let at = leader(&nodes);
    assert!(nodes[at].main()["term"].as_u64().unwrap() >= term + 2, "{}", nodes[at].main());
    nodes.push(dead.restart());

    // An invitation: a goal of the credentials, which may have another leader.
    let mut dead = nodes.remove(settle(&nodes));
    dead.kill();
    let out = nodes[1].ask(&["invite", "client"]);
    assert_eq!(out.status.code(), Some(0), "{}", said(&out));
    nodes.push(dead.restart());

    let mut dead = nodes.remove(settle(&nodes));
    dead.kill();
    let out = nodes[1].ask(&["voter", "remove", &dead.id]);
    assert_eq!(out.status.code(), Some(0), "{}", said(&out));
    assert!(said(&out).contains("2 nodes vote now"), "{}", said(&out));

    // No majority is left: the answer names the node that was asked, and what to do there.
    let mut dead = nodes.remove(settle(&nodes));
    dead.kill();
    let out = nodes[0].ask(&["step-down"]);
    assert_eq!(out.status.code(), Some(6), "{}", said(&out));
    let remedy = format!("tenure gossip status --node {}", nodes[0].address);
    assert!(said(&out).contains(&remedy), "{}", said(&out));
}

#[test]
fn an_order_that_was_sent_before_its_leader_died_may_be_made_also_if_no_other_is_elected() {
    let dir = tempfile::tempdir().unwrap();
    let mut nodes = cluster(dir.path(), 2);
    let join = ["--join", nodes[0].address.as_str(), "--observer"];
    let new = Process::start(&dir.path().join("n"), free_port(), &join);
    eventually("it follows", 20, || new.main()["leader"].is_string());
    // The lease may end before the order arrives: then nothing was sent.
    for _ in 0..5 {
        let at = settle(&nodes);
        // Without the other voter nothing is decided, and no other leader is elected.
        nodes[1 - at].signal("-STOP");
        let order = ["voter", "add", &new.id, "--namespace", "main"];
        let (sent, out) = std::thread::scope(|scope| {
            let asked = scope.spawn(|| new.ask(&order));
            let mut sent = false;
            eventually("it arrives, or finds no leader", 30, || {
                let learners = nodes[at].main()["learners"].as_array().cloned();
                sent = learners.is_some_and(|all| all.contains(&json!(new.id)));
                sent || asked.is_finished()
            });
            if sent {
                nodes[at].kill();
            }
            (sent, asked.join().unwrap())
        });
        nodes[1 - at].signal("-CONT");
        if sent {
            assert_eq!(out.status.code(), Some(10), "{}", said(&out));
            assert!(said(&out).contains("repeat the order"), "{}", said(&out));
            return;
        }
        assert_eq!(out.status.code(), Some(6), "{}", said(&out));
    }
    panic!("no order was sent in time");
}
