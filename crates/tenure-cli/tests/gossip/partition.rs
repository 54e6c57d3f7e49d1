//! A cut network between real processes: nodes reach each other through relays that hold what they carry.

use std::{
    fs::{read_dir, read_link, read_to_string},
    io::{Read as _, Write as _},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{Arc, Condvar, Mutex},
    time::{Duration, Instant},
};

use serde_json::json;

use crate::kit::{Process, eventually, free_port, leader};

/// A node: its process, which calls, and its port, which is called.
#[derive(Clone, Copy)]
struct Node {
    pid: u32,
    port: u16,
}

/// A connection between two nodes: the process that calls, and the port that is called.
#[derive(Clone, Copy)]
struct Link {
    from: u32,
    to: u16,
}

/// The node that is cut off, if one is.
#[derive(Default)]
struct Cut {
    alone: Mutex<Option<Node>>,
    changed: Condvar,
}

impl Cut {
    fn set(&self, alone: Option<Node>) {
        *self.alone.lock().unwrap() = alone;
        self.changed.notify_all();
    }

    /// Waits while `link` is cut. Bytes are held and not lost: TCP would send them again.
    fn pass(&self, link: Link) {
        let alone = self.alone.lock().unwrap();
        let is_cut = |alone: &mut Option<Node>| {
            alone.is_some_and(|node| link.from == node.pid || link.to == node.port)
        };
        drop(self.changed.wait_while(alone, is_cut).unwrap());
    }
}

/// The process that called: keys are encrypted, so the kernel is asked. `None` if it has hung up already.
fn caller_of(stream: &TcpStream) -> Option<u32> {
    // A line: number, local address, remote address, state, queues, timer, retransmits, user, timeout, inode.
    let port = |address: &str| u16::from_str_radix(address.rsplit_once(':')?.1, 16).ok();
    let near = (stream.peer_addr().ok()?.port(), stream.local_addr().ok()?.port());
    let table = read_to_string("/proc/net/tcp").expect("a table of connections");
    let inode = table.lines().skip(1).find_map(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        ((port(fields[1])?, port(fields[2])?) == near).then(|| fields[9].to_owned())
    })?;
    let socket = format!("socket:[{inode}]");
    let processes = read_dir("/proc").expect("processes").flatten();
    let mut pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.find(|pid| {
        // Other users' processes cannot be looked into, and are no nodes.
        let Ok(files) = read_dir(format!("/proc/{pid}/fd")) else { return false };
        files.flatten().any(|file| {
            read_link(file.path()).is_ok_and(|target| target.as_os_str() == socket.as_str())
        })
    })
}

fn relay(listener: TcpListener, to: u16, cut: Arc<Cut>) {
    for caller in listener.incoming().map_while(Result::ok) {
        let cut = cut.clone();
        std::thread::spawn(move || carry(caller, to, &cut));
    }
}

fn carry(caller: TcpStream, to: u16, cut: &Arc<Cut>) -> Option<()> {
    let link = Link { from: caller_of(&caller)?, to };
    cut.pass(link);
    let callee = TcpStream::connect(("127.0.0.1", to)).ok()?;
    let back = (callee.try_clone().ok()?, caller.try_clone().ok()?);
    let cut_back = cut.clone();
    std::thread::spawn(move || pump(back.0, back.1, &cut_back, link));
    pump(caller, callee, cut, link);
    Some(())
}

fn pump(mut from: TcpStream, mut to: TcpStream, cut: &Cut, link: Link) {
    let mut chunk = [0; 16 * 1_024];
    while let Ok(n @ 1..) = from.read(&mut chunk) {
        cut.pass(link);
        if to.write_all(&chunk[..n]).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

#[test]
fn network_partition_heals_without_divergence() {
    let dir = tempfile::tempdir().unwrap();
    let cut = Arc::new(Cut::default());
    let mut ports = Vec::new();
    let mut nodes: Vec<Process> = Vec::new();
    let mut seed = None;
    for i in 0..3 {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (at, port) = (listener.local_addr().unwrap().to_string(), free_port());
        let relay_cut = cut.clone();
        std::thread::spawn(move || relay(listener, port, relay_cut));
        let start = seed.as_deref().map_or(vec!["--bootstrap"], |s| vec!["--join", s]);
        let args = [start, vec!["--advertise", at.as_str()]].concat();
        nodes.push(Process::start(&dir.path().join(i.to_string()), port, &args));
        ports.push(port);
        seed.get_or_insert(at);
    }
    // Again, from their disks: the founder is a node like the others from here on.
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

    cut.set(Some(Node { pid: nodes[old].pid(), port: ports[old] }));
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
