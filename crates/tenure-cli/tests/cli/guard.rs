//! A child does not outlive the lease: not when `tenure` is killed or frozen, not when its database
//! is gone, whatever the child's own children do.
//!
//! A *worker* is this very binary, started again with a variable set. It ignores SIGTERM, starts
//! workers below it (one of which flees into a session of its own), and every process writes the
//! time into a file of its own every millisecond. So the last instant at which one of them was
//! alive is known, and compared with the instant at which the next member's gate opened.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::{Pid, test_kill_process};
use serde_json::Value;
use tenure_testkit::{Child, Database, Direction, Proxy, Signal, shared_cluster};

use crate::kit::{LEASE, SOON, command, database, event, member, until, waiting};

const FOLDER: &str = "TENURE_TEST_WORKER";
const KIND: &str = "TENURE_TEST_WORKER_KIND";

/// Not a test: what the child runs. Does nothing unless it was started as one.
#[test]
fn worker() {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else { return };
    let kind = std::env::var(KIND).unwrap_or_default();
    match kind.as_str() {
        "root" => {
            for kind in ["child", "fugitive"] {
                spawn_worker(kind);
            }
        }
        "child" => spawn_worker("grandchild"),
        "fugitive" => {
            rustix::process::setsid().expect("a session of its own");
            // Its parent lives on; this one is orphaned at once.
            spawn_worker("orphan-maker");
        }
        "orphan-maker" => {
            spawn_worker("orphan");
            return;
        }
        _ => {}
    }
    let file = File::create(folder.join(format!("{}.{kind}", std::process::id()))).expect("made");
    // Bounded, so that a test that fails leaves no process behind for long.
    for _ in 0..60_000 {
        file.write_all_at(&now_ns().to_le_bytes(), 0).expect("written");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[allow(clippy::zombie_processes, reason = "reaping them is the guardian's business")]
fn spawn_worker(kind: &str) {
    let program = std::env::current_exe().expect("a path");
    let _ =
        std::process::Command::new(program).args(WORKER).env(KIND, kind).spawn().expect("spawned");
}

const WORKER: [&str; 3] = ["--exact", "guard::worker", "--nocapture"];
/// Signals that are ignored stay ignored across exec and fork: no process below receives them.
const DEAF: [&str; 3] = ["sh", "-c", "trap '' TERM INT HUP; exec \"$0\" \"$@\""];
/// root, child, grandchild, fugitive, orphan.
const CROWD: usize = 5;

fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// Every process of a worker and the last instant it was alive.
fn stamps(folder: &Path) -> Vec<(Pid, u64)> {
    let entries = std::fs::read_dir(folder).expect("a folder").flatten();
    entries
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let pid = Pid::from_raw(name.split('.').next()?.parse().ok()?)?;
            let bytes: [u8; 8] = std::fs::read(entry.path()).ok()?.try_into().ok()?;
            Some((pid, u64::from_le_bytes(bytes)))
        })
        .collect()
}

fn alive(folder: &Path) -> usize {
    stamps(folder).iter().filter(|(pid, _)| test_kill_process(*pid).is_ok()).count()
}

/// A leader with a worker that is up, and a member that waits.
struct Scene {
    leader: Child,
    waiter: Child,
    folder: tempfile::TempDir,
}

async fn scene(database: &Database, leader: &[&str]) -> Scene {
    let folder = tempfile::tempdir().expect("a folder");
    let program = std::env::current_exe().expect("a path");
    let mut start = command(&[&["--role", "r", "--policy", "exclusive"], leader, &["--"]].concat());
    start.args(DEAF).arg(program).args(WORKER);
    start.env(FOLDER, folder.path()).env(KIND, "root");
    let leader = Child::spawn(start).expect("it runs");
    until("the worker", async || stamps(folder.path()).len() == CROWD).await;
    let waiter = member(&["--role", "r", "--dsn", &database.dsn(), "--instance", "waiter"]);
    waiting(database, "r", 1).await;
    Scene { leader, waiter, folder }
}

impl Scene {
    /// The promise: when the next gate opened, no process of it was alive any more. For how long, by the processes' own
    /// clocks.
    async fn no_process_overlaps(&mut self) -> Duration {
        let acquired: Value = event(&mut self.waiter, "acquired").await;
        let opened = acquired["mono_ns"].as_u64().expect("an instant");
        assert_eq!(alive(self.folder.path()), 0, "a process of the child lives on");
        let stamps = stamps(self.folder.path());
        assert_eq!(stamps.len(), CROWD);
        let last = stamps.iter().map(|(_, at)| *at).max().expect("stamps");
        assert!(
            last < opened,
            "alive {} ms after the next gate opened",
            (last - opened) / 1_000_000
        );
        Duration::from_nanos(opened - last)
    }
}

#[tokio::test]
async fn nothing_of_a_child_outlives_the_lease_when_tenure_is_killed() {
    let database = database().await;
    let mut scene = scene(&database, &["--dsn", &database.dsn()]).await;
    scene.leader.signal(Signal::KILL);
    // At once, not at the deadline: the next member waits for the whole lease.
    let gone = scene.no_process_overlaps().await;
    assert!(gone > LEASE / 2, "{gone:?}");
}

#[tokio::test]
async fn nothing_of_a_child_outlives_the_lease_when_tenure_is_frozen() {
    let database = database().await;
    let mut scene = scene(&database, &["--dsn", &database.dsn()]).await;
    // The whole process group, as a terminal or a supervisor would.
    scene.leader.freeze();
    scene.no_process_overlaps().await;
    scene.leader.thaw();
    // It finds its child gone and goes on as a follower.
    waiting(&database, "r", 1).await;
}

#[tokio::test]
async fn nothing_of_a_child_outlives_the_lease_when_the_database_is_blackholed() {
    let database = database().await;
    let proxy = Proxy::start(shared_cluster().await.addr()).await.expect("a proxy");
    let mut scene = scene(&database, &["--dsn", &proxy.dsn(database.name())]).await;
    proxy.blackhole(Direction::Both);
    scene.no_process_overlaps().await;
}

#[tokio::test]
async fn nothing_of_a_child_outlives_the_lease_when_its_backend_is_terminated() {
    let database = database().await;
    let mut scene = scene(&database, &["--dsn", &database.dsn(), "--no-auto-reacquire"]).await;
    end_leaders(&database).await;
    scene.no_process_overlaps().await;
    assert_eq!(scene.leader.wait(SOON).await.expect("it ends").code(), Some(4));
}

#[tokio::test]
async fn a_killed_guardian_takes_its_child_along_and_the_role_moves_on() {
    let database = database().await;
    let mut scene = scene(&database, &["--dsn", &database.dsn()]).await;
    let guardian = guardian_of(&scene.leader);
    rustix::process::kill_process(guardian, Signal::KILL).expect("killed");
    scene.no_process_overlaps().await;
}

/// In a PID namespace that was entered from outside, our session and group are number 0.
#[test]
fn a_killed_guardian_takes_its_child_along_in_a_container_too() {
    let isolated = ["--pid", "--fork", "--mount-proc", "--kill-child"];
    let unshare = |program: &std::ffi::OsStr| {
        let mut command = std::process::Command::new("unshare");
        command.args(isolated).arg(program);
        command
    };
    if !unshare("true".as_ref()).status().is_ok_and(|status| status.success()) {
        // Only root may make a PID namespace.
        return;
    }
    let name = "guard::a_killed_guardian_takes_its_child_along_and_the_role_moves_on";
    let program = std::env::current_exe().expect("a path");
    let output = unshare(program.as_os_str()).args(["--exact", name]).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

#[tokio::test]
async fn a_stubborn_crowd_is_gone_before_the_release() {
    let database = database().await;
    let mut scene = scene(&database, &["--dsn", &database.dsn()]).await;
    let begun = std::time::Instant::now();
    scene.leader.signal(Signal::TERM);
    assert_eq!(scene.leader.wait(SOON).await.expect("it ends").code(), Some(0));
    assert_eq!(alive(scene.folder.path()), 0);
    scene.no_process_overlaps().await;
    // Released clean: the successor did not wait out the lease.
    assert!(begun.elapsed() < LEASE, "{:?}", begun.elapsed());
}

#[tokio::test]
async fn what_a_child_leaves_behind_goes_with_it() {
    let database = database().await;
    let folder = tempfile::tempdir().expect("a folder");
    let program = std::env::current_exe().expect("a path");
    let mut start = command(&["--role", "r", "--dsn", &database.dsn(), "--"]);
    // The orphan maker exits at once; its orphan blocks SIGTERM.
    start.args(DEAF).arg(program).args(WORKER);
    start.env(FOLDER, folder.path()).env(KIND, "orphan-maker");
    let mut leader = Child::spawn(start).expect("it runs");
    assert_eq!(leader.wait(SOON).await.expect("it ends").code(), Some(0));
    assert_eq!(alive(folder.path()), 0);
}

#[tokio::test]
async fn under_fenced_the_old_child_overlaps_by_its_grace_at_most() {
    let database = database().await;
    let folder = tempfile::tempdir().expect("a folder");
    let program = std::env::current_exe().expect("a path");
    let dsn = database.dsn();
    let fenced = ["--role", "r", "--policy", "fenced", "--grace", "200ms", "--dsn", &dsn];
    let mut start = command(&[&fenced[..], &["--no-auto-reacquire", "--"]].concat());
    start.args(DEAF).arg(program).args(WORKER);
    start.env(FOLDER, folder.path()).env(KIND, "root");
    let mut leader = Child::spawn(start).expect("it runs");
    until("the worker", async || stamps(folder.path()).len() == CROWD).await;
    let mut waiter = member(&fenced);
    waiting(&database, "r", 1).await;
    end_leaders(&database).await;
    let opened = event(&mut waiter, "acquired").await["mono_ns"].as_u64().expect("an instant");
    assert_eq!(leader.wait(SOON).await.expect("it ends").code(), Some(4));
    assert_eq!(alive(folder.path()), 0);
    let last = stamps(folder.path()).iter().map(|(_, at)| *at).max().expect("stamps");
    // The grace, and as much again for a busy machine: far from a lease.
    assert!(last.saturating_sub(opened) < 400_000_000, "{} ns", last.saturating_sub(opened));
}

#[tokio::test]
async fn a_session_that_is_won_back_keeps_its_child() {
    let database = database().await;
    let dsn = database.dsn();
    let script = "echo up $TENURE_EPOCH; while :; do sleep 0.05; echo tick; done";
    let mut one = member(&[
        "--role",
        "r",
        "--reconnect-grace",
        "1s",
        "--dsn",
        &dsn,
        "--",
        "sh",
        "-c",
        script,
    ]);
    one.wait_line(|line| line == "up 1", SOON).await.expect("the child is up");
    end_leaders(&database).await;
    // Well beyond the old deadline.
    for _ in 0..100 {
        one.wait_line(|line| line == "tick", SOON).await.expect("it goes on");
    }
    let ups = one.lines().iter().filter(|line| line.starts_with("up")).count();
    assert_eq!(ups, 1, "the child was started again");
}

async fn end_leaders(database: &Database) {
    let client = database.client().await.expect("a session");
    let sql = "select pg_terminate_backend(m.backend_pid) from tenure.member m \
               join tenure.role r on r.holder = m.identity";
    assert_eq!(client.execute(sql, &[]).await.expect("terminated"), 1);
}

#[tokio::test]
async fn a_frozen_guardian_does_not_let_the_child_outlive_the_lease() {
    let database = database().await;
    let proxy = Proxy::start(shared_cluster().await.addr()).await.expect("a proxy");
    let mut scene = scene(&database, &["--dsn", &proxy.dsn(database.name())]).await;
    let guardian = guardian_of(&scene.leader);
    rustix::process::kill_process(guardian, Signal::STOP).expect("frozen");
    proxy.blackhole(Direction::Both);
    scene.no_process_overlaps().await;
}

#[tokio::test]
async fn a_frozen_guardian_wakes_up_when_tenure_is_killed() {
    let database = database().await;
    let mut scene = scene(&database, &["--dsn", &database.dsn()]).await;
    let guardian = guardian_of(&scene.leader);
    rustix::process::kill_process(guardian, Signal::STOP).expect("frozen");
    scene.leader.signal(Signal::KILL);
    scene.no_process_overlaps().await;
}

#[tokio::test]
async fn a_frozen_guardian_does_not_hold_up_the_end() {
    let database = database().await;
    let mut scene = scene(&database, &["--dsn", &database.dsn()]).await;
    let guardian = guardian_of(&scene.leader);
    rustix::process::kill_process(guardian, Signal::STOP).expect("frozen");
    scene.leader.signal(Signal::TERM);
    assert_eq!(scene.leader.wait(SOON).await.expect("it ends").code(), Some(0));
    scene.no_process_overlaps().await;
}

/// Each generation forks the next and exits: no list of processes is ever up to date. Bounded by
/// time, should nothing end it.
const COMET: &str = r#"$0 = "comet"; $| = 1; $SIG{TERM} = "IGNORE"; print "up\n"; my $end = time + 30;
    while (time < $end) { exit if fork; FLEE; open(F, ">", $ARGV[0]) && print F $$; close F }"#;

#[tokio::test]
async fn a_process_that_forks_and_exits_without_end_is_gone_before_the_release() {
    for flee in ["", "setpgrp(0, 0)"] {
        let database = database().await;
        let folder = tempfile::tempdir().expect("a folder");
        let trace = folder.path().join("trace");
        let mut start = command(&["--role", "r", "--dsn", &database.dsn(), "--"]);
        start.args(["perl", "-e", &COMET.replace("FLEE", flee)]).arg(&trace);
        let mut leader = Child::spawn(start).expect("it runs");
        until("the comet", async || trace.exists()).await;
        // Its first generation has exited: the rest gets the grace, and is killed.
        assert_eq!(leader.wait(SOON).await.expect("it ends").code(), Some(0));
        // Within the lease: a term that was lost, or let go with something in flight, leaves a debt.
        let client = database.client().await.expect("a session");
        let sql = "select holder is null and debtor is null from tenure.role where name = 'r'";
        let clean: bool = client.query_one(sql, &[]).await.expect("the role").get(0);
        assert!(clean, "{flee}");
        let last = std::fs::read(&trace).expect("a trace");
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(std::fs::read(&trace).expect("a trace"), last, "it flies on ({flee})");
    }
}

fn guardian_of(leader: &Child) -> Pid {
    let pid = leader.pid();
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let guardian = children.expect("readable").split_whitespace().next().map(str::to_owned);
    let guardian: i32 = guardian.expect("a guardian").parse().expect("a number");
    let name = std::fs::read_to_string(format!("/proc/{guardian}/comm")).expect("a name");
    assert_eq!(name.trim(), "tenure-guardian");
    Pid::from_raw(guardian).expect("a pid")
}
