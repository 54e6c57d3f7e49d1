//! The log: what is said without any switch, and that nothing waits for its reader.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use tenure_testkit::{Child, Cluster, ReplicaOptions, Signal, Stop};

use crate::kit::{SOON, code, command, database, ends, event, until};

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

#[tokio::test]
async fn a_database_that_goes_away_is_logged_without_a_switch_and_the_childs_output_is_its_own() {
    let cluster = Cluster::start().await.expect("a server");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("stderr");
    let mut command = tokio::process::Command::new(crate::kit::program());
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command.args(["run", "--role", "r", "--heartbeat", "500ms", "--lease", "5s"]);
    command.args(["--dsn", &cluster.dsn(), "--", "sh", "-c", "echo mine; exec sleep 60"]);
    command.stderr(File::create(&path).expect("a file"));
    let mut child = Child::spawn(command).expect("it runs");
    child.wait_line(|line| line == "mine", SOON).await.expect("the child runs");
    // A virtual machine's clock may be warned of at every start.
    let warning = || {
        let log = text(&path);
        let mut lines = log.lines().filter(|line| line.contains("WARN"));
        lines.find(|line| !line.contains("clock: ")).map(str::to_owned)
    };
    assert_eq!(warning(), None, "all is well");
    cluster.stop(Stop::Immediate).await.expect("it stops");
    until("a warning", async || warning().is_some()).await;
    let log = text(&path);
    let warning = warning().expect("just seen");
    assert!(warning.contains("the seat is lost"), "{log}");
    assert!(!log.contains('\x1b'), "no colours in a file: {log}");
    child.signal(Signal::TERM);
    child.wait(SOON).await.expect("it ends");
    assert_eq!(child.lines(), ["mine"], "standard output is the child's alone");
}

#[tokio::test]
async fn an_outage_is_one_warning_however_many_tries_it_takes() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("stderr");
    let mut command = tokio::process::Command::new(crate::kit::program());
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command.env("TENURE_LOG", "tenure::driver=debug");
    command.args(["run", "--role", "r", "--dsn", "postgresql://x@127.0.0.1:1/x", "--", "true"]);
    command.stderr(File::create(&path).expect("a file"));
    let mut child = Child::spawn(command).expect("it runs");
    until("three more tries", async || text(&path).matches("still no seat").count() >= 3).await;
    child.signal(Signal::TERM);
    child.wait(SOON).await.expect("it ends");
    let log = text(&path);
    let warnings = log.lines().filter(|line| line.contains("WARN")).count();
    assert_eq!(warnings, 1, "{log}");
}

#[tokio::test]
async fn where_standard_error_is_for_objects_the_log_is_objects() {
    let cluster = Cluster::start().await.expect("a server");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("stderr");
    let mut command = command(&["--role", "r", "--dsn", &cluster.dsn(), "--", "sleep", "60"]);
    command.stderr(File::create(&path).expect("a file"));
    let mut child = Child::spawn(command).expect("it runs");
    until("the child", async || text(&path).contains("child_started")).await;
    cluster.stop(Stop::Immediate).await.expect("it stops");
    until("a warning", async || text(&path).contains("\"WARN\"")).await;
    child.signal(Signal::TERM);
    child.wait(SOON).await.expect("it ends");
    for line in text(&path).lines() {
        serde_json::from_str::<serde_json::Value>(line).unwrap_or_else(|_| panic!("{line}"));
    }
}

#[tokio::test]
async fn a_log_that_is_not_read_does_not_hold_up_the_election() {
    let database = database().await;
    let dsn = database.dsn();
    let (reader, writer) = std::io::pipe().expect("a pipe");
    let size = rustix::pipe::fcntl_setpipe_size(writer.as_fd(), 4_096).expect("a small one");
    let mut command = command(&["--role", "r", "--dsn", &dsn]);
    command.env("TENURE_LOG", "trace").stderr(Stdio::from(writer));
    let mut child = Child::spawn(command).expect("it runs");
    event(&mut child, "acquired").await;
    until("the pipe is full", async || {
        rustix::io::ioctl_fionread(reader.as_fd()).is_ok_and(|there| there + 1_024 > size as u64)
    })
    .await;
    // Several leases long it must beat, and then obey.
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(7) {
        let client = database.client().await.expect("a session");
        let led = "select holder is not null from tenure.role where name = 'r'";
        let led: bool = client.query_one(led, &[]).await.expect("it answers").get(0);
        assert!(led, "the role was lost after {:?}", begun.elapsed());
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert!(!child.lines().iter().any(|line| line.contains("\"late\"")), "{:?}", child.lines());
    assert_eq!(code(&ends(&["pause", "--role", "r", "--dsn", &dsn]).await), 0);
    event(&mut child, "released").await;
    child.signal(Signal::TERM);
    let ended = child.wait(SOON).await.expect("it ends");
    assert!(ended.success(), "{ended:?}");
    drop(reader);
}

#[tokio::test]
async fn a_log_level_that_is_none_is_wrong_usage() {
    let output = tokio::task::spawn_blocking(|| {
        crate::kit::tenure(&["key", "r"]).env("TENURE_LOG", "tenure=loud").output()
    });
    let output = output.await.expect("joined").expect("it runs");
    crate::kit::refuses(&output, 2, "TENURE_LOG");
}

/// What `tenure check` would warn of is seen by operators that never run it.
#[tokio::test]
async fn a_member_that_starts_where_standbys_do_not_acknowledge_says_so() {
    let primary = Cluster::start().await.expect("a server");
    if primary.version() != 15 {
        return; // Only the distribution's server brings what a replica needs.
    }
    let _standby = primary.replica(ReplicaOptions::default()).await.expect("a replica");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("stderr");
    let mut command = command(&["--role", "r", "--dsn", &primary.dsn(), "--", "sleep", "60"]);
    command.stderr(File::create(&path).expect("a file"));
    let mut child = Child::spawn(command).expect("it runs");
    until("the child", async || text(&path).contains("child_started")).await;
    let log = text(&path);
    let warns = |line: &str| {
        line.contains("\"WARN\"") && line.contains("failover: standbys do not acknowledge commits")
    };
    assert!(log.lines().any(warns), "{log}");
    child.signal(Signal::TERM);
    child.wait(SOON).await.expect("it ends");
}
