//! Gates in separate processes: the instants at which they said yes never overlap.

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use serde_json::json;
use tenure_gossip::{Host, HostConfig, Kv, Start};

use crate::kit::{Process, eventually, free_port};

/// Every yes of a gate: the epoch, and the tick of the boot clock that the gate compared. That clock is
/// the same for all processes of a machine, and counts while a process is frozen.
type Yes = (u64, u64);

fn said(folder: &Path) -> Vec<Yes> {
    let text = std::fs::read_to_string(folder.join("yes")).unwrap_or_default();
    // The last line may be half written.
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole
        .lines()
        .map(|l| {
            let (epoch, tick) = l.split_once(' ').expect("two words");
            (epoch.parse().expect("a number"), tick.parse().expect("a number"))
        })
        .collect()
}

/// Two gates that were open at once: a yes of an epoch after one of a later epoch.
fn overlap(mut all: Vec<Yes>) -> Option<(Yes, Yes)> {
    all.sort_by_key(|(_, tick)| *tick);
    all.windows(2).map(|w| (w[0], w[1])).find(|(a, b)| a.0 > b.0)
}

#[test]
fn the_check_for_overlaps_finds_one() {
    assert_eq!(overlap(vec![(1, 10), (1, 20), (2, 30), (4, 40)]), None);
    assert!(overlap(vec![(1, 10), (2, 30), (1, 31)]).is_some());
}

/// A node as an application embeds it: its own process, asking its gate all the time.
#[test]
#[ignore = "the program of the processes below, not a test"]
fn node() {
    let Ok(folder) = std::env::var("WITNESS_FOLDER").map(PathBuf::from) else { return };
    let listen = std::env::var("WITNESS_LISTEN").unwrap().parse().unwrap();
    let start = match std::env::var("WITNESS_JOIN") {
        Ok(seed) => Start::Join(vec![seed]),
        Err(_) => Start::Bootstrap,
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let host =
        runtime.block_on(Host::<Kv>::start(HostConfig::new(&folder, listen, start))).unwrap();
    let gate = host.gate("main").unwrap();
    let mut file = std::fs::File::create(folder.join("yes")).unwrap();
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "\nready {} {}", host.address(), host.id().to_hex()).unwrap();
    stdout.flush().unwrap();
    loop {
        // One epoch on both sides of the tick: the tick is of that epoch.
        if let (Some(before), Some(tick), Some(after)) =
            (gate.epoch(), gate.check_at(), gate.epoch())
            && before == after
        {
            writeln!(file, "{} {}", before.0, tick.as_nanos()).unwrap();
        }
        std::thread::sleep(Duration::from_micros(300));
    }
}

fn start(folder: &Path, seed: Option<&str>) -> Process {
    let port = free_port();
    let mut program = Command::new(std::env::current_exe().unwrap());
    program
        .args(["--exact", "witness::node", "--ignored", "--nocapture", "--"])
        .env("WITNESS_FOLDER", folder)
        .env("WITNESS_LISTEN", format!("127.0.0.1:{port}"));
    if let Some(seed) = seed {
        program.env("WITNESS_JOIN", seed);
    }
    Process::try_start_by(program, folder, port, &[]).expect("the node gets ready")
}

#[test]
fn a_leader_frozen_across_its_lease_never_says_yes_beside_its_successor() {
    let dir = tempfile::tempdir().unwrap();
    let folders: Vec<_> = (0..3).map(|i| dir.path().join(i.to_string())).collect();
    folders.iter().for_each(|f| std::fs::create_dir_all(f).unwrap());
    let first = start(&folders[0], None);
    let seed = first.address.clone();
    let nodes = [first, start(&folders[1], Some(&seed)), start(&folders[2], Some(&seed))];
    eventually("three vote", 30, || {
        nodes.iter().all(|n| n.voters() == 3 && n.main()["learners"] == json!([]))
    });
    let latest = || folders.iter().flat_map(|f| said(f)).map(|(e, _)| e).max().unwrap_or(0);
    for _ in 0..3 {
        let old = crate::kit::leader(&nodes);
        let epoch = latest();
        nodes[old].signal("-STOP");
        let others: Vec<_> = (0..3).filter(|i| *i != old).collect();
        let mut new = old;
        eventually("a successor says yes", 15, || {
            others.iter().any(|i| {
                new = *i;
                said(&folders[*i]).last().is_some_and(|(e, _)| *e > epoch)
            })
        });
        let yes = said(&folders[new]).len();
        nodes[old].signal("-CONT");
        // The old one, awake, asks its gate thousands of times while the successor goes on.
        eventually("the old one follows, the successor goes on", 15, || {
            nodes[old].main()["leader"] == json!(nodes[new].id)
                && said(&folders[new]).len() > yes + 100
        });
    }
    let all: Vec<_> = folders.iter().flat_map(|f| said(f)).collect();
    let epochs: std::collections::BTreeSet<_> = all.iter().map(|(e, _)| *e).collect();
    assert!(epochs.len() >= 4, "{epochs:?}");
    assert_eq!(overlap(all), None);
}
