//! The embedded default, with real servers and separate processes.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    os::unix::fs::{MetadataExt, PermissionsExt, chown},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use tenure_embedded::{Account, Embedded, EmbeddedError};

/// A folder for one test; the server in it is stopped at the end, also by a panic.
struct Place {
    temp: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        // Traversable, as the server may run as another account than the test.
        let temp = tempfile::tempdir_in("/tmp").expect("temp dir");
        fs::set_permissions(temp.path(), fs::Permissions::from_mode(0o755)).expect("chmod");
        Self { temp }
    }

    fn folder(&self) -> PathBuf {
        self.temp.path().join("tenure")
    }

    fn start(&self) -> Embedded {
        Embedded::start_or_attach(Some(self.folder())).expect("starts or attaches")
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Ok(embedded) = Embedded::at(Some(self.folder())) {
            let _ = embedded.stop();
        }
    }
}

fn psql(dsn: &str, sql: &str) -> Result<String, String> {
    let output =
        Command::new("psql").args(["-XAtc", sql, dsn]).output().expect("psql is installed");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

fn pid(embedded: &Embedded) -> i32 {
    embedded.status().expect("status").expect("runs").pid
}

fn signal(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).expect("a pid"), signal).expect("signal");
}

fn wait_until(what: &str, so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !so() {
        assert!(begun.elapsed() < Duration::from_secs(20), "waited too long until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Not a test but one of the processes that the tests start: attaches, says so, waits for a word on
/// its input, asks the server something, and ends.
#[test]
#[ignore = "started by the tests below"]
fn one_of_many_processes() {
    let folder = std::env::var_os("TEST_FOLDER").expect("TEST_FOLDER");
    let embedded = Embedded::start_or_attach(Some(folder.into())).expect("starts or attaches");
    let mut out = std::io::stdout();
    writeln!(out, "\nSERVER {}", pid(&embedded)).expect("print");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("read");
    let answer = psql(&embedded.dsn().expect("dsn"), "SELECT 6 * 7").expect("the server answers");
    writeln!(out, "\nANSWER {answer}").expect("print");
}

fn process(folder: &Path) -> Child {
    Command::new(std::env::current_exe().expect("own path"))
        .args(["--exact", "one_of_many_processes", "--ignored", "--nocapture"])
        .env("TEST_FOLDER", folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("starts")
}

fn word_after(child: &mut BufReader<std::process::ChildStdout>, key: &str) -> String {
    let mut line = String::new();
    while child.read_line(&mut line).expect("read") > 0 {
        if let Some(word) = line.trim().strip_prefix(key) {
            return word.trim().to_owned();
        }
        line.clear();
    }
    panic!("the process ended without saying {key}");
}

#[test]
fn ten_processes_that_start_at_once_share_one_server_that_outlives_any_of_them() {
    let place = Place::new();
    let mut children: Vec<_> = (0..10).map(|_| process(&place.folder())).collect();
    let mut outputs: Vec<_> = children
        .iter_mut()
        .map(|child| BufReader::new(child.stdout.take().expect("piped")))
        .collect();
    let servers: Vec<String> = outputs.iter_mut().map(|o| word_after(o, "SERVER")).collect();
    assert!(servers.iter().all(|server| *server == servers[0]), "{servers:?}");

    // One of them may be the one that started it: kill half, in the hardest way.
    for child in &mut children[..5] {
        child.kill().expect("SIGKILL");
        child.wait().expect("reaped");
    }
    for (child, output) in children.iter_mut().zip(&mut outputs).skip(5) {
        child.stdin.take().expect("piped").write_all(b"go\n").expect("written");
        assert_eq!(word_after(output, "ANSWER"), "42");
        assert!(child.wait().expect("ends").success());
    }
    assert_eq!(pid(&place.start()).to_string(), servers[0], "still the same server");
}

#[test]
fn a_crashed_server_is_started_again_with_its_data() {
    let place = Place::new();
    let embedded = place.start();
    let dsn = embedded.dsn().expect("dsn");
    psql(&dsn, "CREATE TABLE t AS SELECT 1 AS n").expect("create");
    let first = pid(&embedded);
    signal(first, Signal::KILL);
    wait_until("the server is gone", || embedded.status().expect("status").is_none());
    let again = place.start();
    assert_ne!(pid(&again), first);
    assert_eq!(psql(&dsn, "SELECT n FROM t").as_deref(), Ok("1"));
}

#[test]
fn a_pid_file_that_names_a_stranger_is_not_believed() {
    let place = Place::new();
    let embedded = place.start();
    embedded.stop().expect("stop");
    assert_eq!(embedded.status().expect("status"), None);
    // As after a reset: the number belongs to another living process of the server's account.
    let account = Account::for_server().expect("account");
    let mut stranger = account.command("sleep").arg("60").spawn().expect("sleep runs");
    let file = embedded.path().join("data/postmaster.pid");
    let text =
        format!("{}\n{}/data\n1\n5432\n\n\n\nready\n", stranger.id(), embedded.path().display());
    fs::write(&file, text).expect("write");
    chown(&file, Some(account.uid()), None).expect("chown");
    assert_eq!(embedded.status().expect("status"), None);
    let again = place.start();
    assert_ne!(pid(&again).unsigned_abs(), stranger.id());
    assert!(stranger.try_wait().expect("wait").is_none(), "the stranger was harmed");
    stranger.kill().expect("kill");
    stranger.wait().expect("reaped");
}

#[test]
fn a_half_made_cluster_is_swept_away() {
    let place = Place::new();
    let account = Account::for_server().expect("account");
    account.private_dir(&place.folder()).expect("folder");
    let half = place.folder().join("init-1-2");
    account.private_dir(&half).expect("half");
    fs::write(half.join("PG_VERSION"), "15\n").expect("write");
    let embedded = place.start();
    assert!(!half.exists());
    assert_eq!(psql(&embedded.dsn().expect("dsn"), "SELECT 1").as_deref(), Ok("1"));
}

#[test]
fn only_its_user_gets_in_and_only_through_the_socket() {
    let place = Place::new();
    let embedded = place.start();
    let dsn = embedded.dsn().expect("dsn");
    assert_eq!(psql(&dsn, "SHOW listen_addresses").as_deref(), Ok(""));
    let folder = fs::metadata(embedded.path()).expect("stat");
    assert_eq!(folder.mode() & 0o777, 0o700);
    assert_eq!(psql(&dsn, "SELECT current_user").as_deref(), Ok("tenure"));
    if rustix::process::geteuid().is_root() {
        // The account that runs the server reaches the folder, but is not the user.
        let account = Account::for_server().expect("account");
        let output =
            account.command("psql").args(["-XAtc", "SELECT 1", &dsn]).output().expect("psql");
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(words.contains("Peer authentication failed"), "{words}");
    }
}

#[test]
fn a_path_too_long_for_a_socket_gets_a_short_one() {
    let place = Place::new();
    let folder = place.folder().join("x".repeat(90)).join("y".repeat(20));
    fs::create_dir_all(folder.parent().expect("parent")).expect("mkdir");
    let embedded = Embedded::start_or_attach(Some(folder)).expect("starts");
    let dsn = embedded.dsn().expect("dsn");
    assert_eq!(psql(&dsn, "SELECT 1").as_deref(), Ok("1"));
    let sockets = embedded.status().expect("status").expect("runs").socket_dir.expect("socket");
    assert_eq!(fs::metadata(&sockets).expect("stat").mode() & 0o777, 0o700);
    embedded.stop().expect("stop");
    assert!(!sockets.exists(), "{} is left behind", sockets.display());
}

#[test]
fn data_of_a_version_that_is_not_installed_is_left_alone() {
    let place = Place::new();
    let embedded = place.start();
    embedded.stop().expect("stop");
    let file = embedded.path().join("data/PG_VERSION");
    fs::write(&file, "9\n").expect("write");
    let error = Embedded::start_or_attach(Some(place.folder())).expect_err("refused");
    assert!(matches!(error, EmbeddedError::DataVersion { .. }), "{error}");
    assert!(error.to_string().contains("install PostgreSQL 9"), "{error}");
}

#[test]
fn a_folder_the_server_cannot_reach_is_refused_before_anything_is_made() {
    if !rustix::process::geteuid().is_root() {
        return; // The server runs as the same account then.
    }
    let temp = tempfile::tempdir_in("/tmp").expect("temp dir");
    fs::set_permissions(temp.path(), fs::Permissions::from_mode(0o700)).expect("chmod");
    let folder = temp.path().join("tenure");
    let error = Embedded::start_or_attach(Some(folder.clone())).expect_err("refused");
    assert!(matches!(error, EmbeddedError::Unreachable { .. }), "{error}");
    assert!(!folder.exists());
}
