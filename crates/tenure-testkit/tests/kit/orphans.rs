//! A test process that is killed leaves nothing behind.

use std::{
    io::Write,
    path::{Path, PathBuf},
    time::Duration,
};

use tenure_testkit::{Child, Cluster, Signal};
use tokio::process::Command;

/// Not a test but the process that one kills.
#[tokio::test]
#[ignore = "started by the test below"]
async fn process_to_be_killed() {
    let cluster = Cluster::start().await.expect("cluster");
    let mut sleeper = Command::new("sleep");
    sleeper.arg("300");
    let child = Child::spawn(sleeper).expect("sleep runs");
    let frozen = Cluster::start().await.expect("another");
    frozen.freeze();
    let crashed = Cluster::start().await.expect("a third");
    let segment = shared_memory(crashed.data_dir()).expect("has shared memory");
    crashed.crash().await.expect("crash");
    writeln!(
        std::io::stdout(),
        "IDS {} {} {} {} {segment}",
        cluster.pid().expect("runs"),
        frozen.pid().expect("runs"),
        child.pid(),
        cluster.data_dir().display()
    )
    .expect("print");
    std::future::pending::<()>().await;
}

/// The number of a server's System V segment, from its pid file.
fn shared_memory(data: &Path) -> Option<String> {
    let text = std::fs::read_to_string(data.join("postmaster.pid")).ok()?;
    text.lines().nth(6)?.split_whitespace().nth(1).map(str::to_owned)
}

fn segments() -> Vec<String> {
    let text = std::fs::read_to_string("/proc/sysvipc/shm").expect("readable");
    text.lines().filter_map(|line| line.split_whitespace().nth(1).map(str::to_owned)).collect()
}

#[tokio::test]
async fn a_crashed_server_that_is_dropped_leaves_no_shared_memory() {
    let cluster = Cluster::start().await.expect("start");
    let segment = shared_memory(cluster.data_dir()).expect("has shared memory");
    cluster.crash().await.expect("crash");
    assert!(segments().contains(&segment), "a kill leaves it");
    drop(cluster);
    assert!(!segments().contains(&segment));
}

#[tokio::test]
async fn servers_children_and_folders_of_a_killed_test_go_with_it() {
    let mut command = Command::new(std::env::current_exe().expect("own path"));
    command.args(["--exact", "orphans::process_to_be_killed", "--ignored", "--nocapture"]);
    let mut victim = Child::spawn(command).expect("starts");
    let line =
        victim.wait_line(|l| l.contains("IDS "), Duration::from_secs(30)).await.expect("it is up");
    let ids: Vec<&str> = line.split("IDS ").nth(1).expect("ids").split(' ').collect();
    let mut paths: Vec<PathBuf> = ids[..3].iter().map(|pid| Path::new("/proc").join(pid)).collect();
    paths.push(ids[3].into());
    assert!(paths.iter().all(|path| path.exists()), "{paths:?}");
    victim.signal(Signal::KILL);
    for _ in 0..1_500 {
        paths.retain(|path| {
            let stat = std::fs::read_to_string(path.join("stat")).unwrap_or_default();
            path.exists() && !stat.contains(") Z ")
        });
        if paths.is_empty() {
            assert!(!segments().contains(&ids[4].to_owned()), "shared memory is left behind");
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("left behind: {paths:?}");
}
