//! Programs in processes of their own.

use std::{
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    time::Duration,
};

use tenure_testkit::{Child, Signal};
use tokio::process::Command;

const LONG: Duration = Duration::from_secs(10);
const SOON: Duration = Duration::from_millis(300);

fn shell(script: &str) -> Child {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", script]);
    Child::spawn(command).expect("sh runs")
}

fn process(line: &str) -> PathBuf {
    Path::new("/proc").join(line)
}

async fn gone(path: &Path) -> bool {
    for _ in 0..500 {
        // A zombie whose parent is gone is reaped by the process that adopts it, in its own time.
        let stat = std::fs::read_to_string(path.join("stat")).unwrap_or_default();
        if stat.is_empty() || stat.contains(") Z ") {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    false
}

#[tokio::test]
async fn lines_are_waited_for_in_order_and_all_are_kept() {
    let mut child = shell("echo one; echo two; echo three; exit 3");
    assert_eq!(child.wait_line(|l| l.starts_with('t'), LONG).await.expect("line"), "two");
    assert_eq!(child.wait_line(|l| l.starts_with('t'), LONG).await.expect("line"), "three");
    let status = child.wait(LONG).await.expect("ends");
    assert_eq!(status.code(), Some(3));
    assert_eq!(child.lines(), ["one", "two", "three"]);
    let error = child.wait_line(|_| true, SOON).await.expect_err("no more").to_string();
    assert!(error.contains("three"), "says what came instead: {error}");
}

#[tokio::test]
async fn a_frozen_program_is_silent_until_thawed() {
    let mut child = shell("i=0; while :; do i=$((i+1)); echo $i; sleep 0.02; done");
    child.wait_line(|_| true, LONG).await.expect("runs");
    child.freeze();
    // What it had written before the signal may still be on its way.
    let mut last = child.lines().len();
    let mut quiet = false;
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let now = child.lines().len();
        quiet = now == last;
        if quiet {
            break;
        }
        last = now;
    }
    assert!(quiet, "still talking");
    child.thaw();
    child.wait_line(|_| true, LONG).await.expect("goes on");
}

#[tokio::test]
async fn a_signal_reaches_the_program_and_a_kill_the_whole_group() {
    let mut child =
        shell("trap 'echo got it; exit 0' TERM; echo ready; while :; do sleep 0.02; done");
    child.wait_line(|l| l == "ready", LONG).await.expect("ready");
    child.signal(Signal::TERM);
    child.wait_line(|l| l == "got it", LONG).await.expect("heard");
    assert!(child.wait(LONG).await.expect("ends").success());

    let mut child = shell("sleep 300 & echo $!; wait");
    let grandchild = process(&child.wait_line(|_| true, LONG).await.expect("pid"));
    assert!(grandchild.exists());
    assert_eq!(child.kill().await.expect("killed").signal(), Some(9));
    assert!(gone(&grandchild).await, "the grandchild survived");
}

#[tokio::test]
async fn dropping_it_kills_the_whole_group() {
    let mut child = shell("sleep 300 & echo $!; wait");
    let grandchild = process(&child.wait_line(|_| true, LONG).await.expect("pid"));
    let itself = process(&child.pid().to_string());
    drop(child);
    assert!(gone(&grandchild).await && gone(&itself).await);
}
