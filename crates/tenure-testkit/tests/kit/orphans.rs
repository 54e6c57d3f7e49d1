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
    writeln!(
        std::io::stdout(),
        "IDS {} {} {} {}",
        cluster.pid().expect("runs"),
        frozen.pid().expect("runs"),
        child.pid(),
        cluster.data_dir().display()
    )
    .expect("print");
    std::future::pending::<()>().await;
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
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("left behind: {paths:?}");
}
