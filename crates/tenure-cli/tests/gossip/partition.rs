//! A cut network between real processes: nodes reach each other through relays that hold what they carry.

use std::{
    io::{Read as _, Write as _},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{Arc, Condvar, Mutex},
    time::{Duration, Instant},
};

use serde_json::json;

use crate::kit::{Process, eventually, free_port, leader};

/// The node that is cut off, if one is, by its key.
#[derive(Default)]
struct Cut {
    alone: Mutex<Option<Vec<u8>>>,
    changed: Condvar,
}

impl Cut {
    fn set(&self, alone: Option<&str>) {
        *self.alone.lock().unwrap() = alone.map(key);
        self.changed.notify_all();
    }

    /// Waits while the link between these two is cut. Bytes are held and not lost: TCP would send them again.
    fn pass(&self, ends: &[Vec<u8>; 2]) {
        let alone = self.alone.lock().unwrap();
        drop(
            self.changed
                .wait_while(alone, |alone| alone.as_ref().is_some_and(|a| ends.contains(a)))
                .unwrap(),
        );
    }
}

fn key(id: &str) -> Vec<u8> {
    (0..id.len()).step_by(2).map(|i| u8::from_str_radix(&id[i..i + 2], 16).unwrap()).collect()
}

/// Nodes by the port they listen on, told once they are known.
type Keys = Arc<Mutex<Vec<(u16, Vec<u8>)>>>;

fn relay(listener: TcpListener, to: u16, keys: Keys, cut: Arc<Cut>) {
    for caller in listener.incoming().map_while(Result::ok) {
        let (keys, cut) = (keys.clone(), cut.clone());
        std::thread::spawn(move || carry(caller, to, &keys, &cut));
    }
}

fn carry(mut caller: TcpStream, to: u16, keys: &Keys, cut: &Arc<Cut>) -> Option<()> {
    // The caller's first frame holds its key: so a link is known by both of its ends.
    let mut head = [0; 4];
    caller.read_exact(&mut head).ok()?;
    let mut hello = vec![0; u32::from_be_bytes(head).min(1_024) as usize];
    caller.read_exact(&mut hello).ok()?;
    let known = keys.lock().unwrap().clone();
    let from = known.iter().find(|(_, k)| hello.windows(k.len()).any(|w| w == k));
    let callee = known.iter().find(|(port, _)| *port == to);
    // A node that starts calls before its key is known here; it is cut with its callee.
    let end = |x: Option<&(u16, Vec<u8>)>| x.map(|(_, k)| k.clone()).unwrap_or_default();
    let ends = [end(from), end(callee)];
    cut.pass(&ends);
    let mut callee = TcpStream::connect(("127.0.0.1", to)).ok()?;
    callee.write_all(&head).ok()?;
    callee.write_all(&hello).ok()?;
    let back = (callee.try_clone().ok()?, caller.try_clone().ok()?);
    let (cut_back, ends_back) = (cut.clone(), ends.clone());
    std::thread::spawn(move || pump(back.0, back.1, &cut_back, &ends_back));
    pump(caller, callee, cut, &ends);
    Some(())
}

fn pump(mut from: TcpStream, mut to: TcpStream, cut: &Cut, ends: &[Vec<u8>; 2]) {
    let mut chunk = [0; 16 * 1_024];
    while let Ok(n @ 1..) = from.read(&mut chunk) {
        cut.pass(ends);
        if to.write_all(&chunk[..n]).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

#[test]
fn network_partition_heals_without_divergence() {
    let dir = tempfile::tempdir().unwrap();
    let (keys, cut) = (Keys::default(), Arc::new(Cut::default()));
    let mut nodes: Vec<Process> = Vec::new();
    let mut seed = None;
    for i in 0..3 {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (at, port) = (listener.local_addr().unwrap().to_string(), free_port());
        let (k, c) = (keys.clone(), cut.clone());
        std::thread::spawn(move || relay(listener, port, k, c));
        let start = seed.as_deref().map_or(vec!["--bootstrap"], |s| vec!["--join", s]);
        let args = [start, vec!["--advertise", at.as_str()]].concat();
        let node = Process::start(&dir.path().join(i.to_string()), port, &args);
        keys.lock().unwrap().push((port, key(&node.id)));
        nodes.push(node);
        seed.get_or_insert(at);
    }
    // Again, now that every key is known: each link has two names from here on.
    nodes = nodes.into_iter().map(Process::restart).collect();
    eventually("three vote and know the leader", 30, || {
        nodes.iter().all(|n| {
            let main = n.main();
            n.voters() == 3 && main["learners"] == json!([]) && main["leader"].is_string()
        })
    });
    let old = leader(&nodes);
    let first = nodes[old].submit(&["put", "before", "1"])["index"].clone();
    eventually("all have it", 10, || nodes.iter().all(|n| n.main()["index"] == first));
    let term = nodes[old].main()["term"].as_u64();

    cut.set(Some(&nodes[old].id));
    let at = Instant::now();
    eventually("the gate of the one that is alone shuts", 5, || !nodes[old].acts());
    // A lease of one second; the rest is for the questions on a busy machine.
    assert!(at.elapsed() < Duration::from_millis(2_500), "{:?}", at.elapsed());
    let rest: Vec<_> = (0..3).filter(|i| *i != old).collect();
    let lost = nodes[old].ask(&["submit", "--timeout", "1s", "put", "alone", "1"]);
    assert!(!lost.status.success(), "a minority commits nothing");
    for i in &rest {
        assert_eq!(nodes[*i].submit(&["increment", "during"])["outcome"], "done");
    }
    assert_eq!(nodes[old].main()["index"], first, "and hears of nothing");
    assert!(!nodes[old].acts());
    let successor = leader(&nodes);
    assert!(successor != old && nodes[successor].main()["term"].as_u64() > term);

    cut.set(None);
    // What was asked of the minority is decided now, once, by the others.
    eventually("all have the same, nothing is pending", 30, || {
        nodes.iter().all(|n| {
            let main = n.main();
            main["head"] == nodes[0].main()["head"]
                && main["pending"] == json!(0)
                && n.get("during") == "2"
                && n.get("alone") == "1"
        })
    });
    assert!(nodes.iter().all(|n| n.ask(&["history"]).status.success()), "the chain is verified");
}
