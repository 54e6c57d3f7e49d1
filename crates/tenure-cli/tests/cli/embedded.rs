//! The embedded default: no DSN, and it works.

use std::os::unix::fs::PermissionsExt;
use std::process::Output;

use tempfile::TempDir;
use tenure_testkit::{Child, Signal};

use crate::kit::{SOON, code, command, event, refuses, stderr, stdout, tenure};

/// A data folder of its own, which the server's account can reach; stopped when dropped.
struct Home(TempDir);

impl Home {
    fn new() -> Self {
        let passable = std::fs::Permissions::from_mode(0o711);
        Home(tempfile::Builder::new().permissions(passable).tempdir().expect("a folder"))
    }

    fn run(&self, args: &[&str]) -> Output {
        tenure(args).env("XDG_DATA_HOME", self.0.path()).output().expect("it runs")
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        self.run(&["embedded", "stop"]);
    }
}

#[test]
fn without_a_dsn_it_uses_a_private_server_and_says_so_loudly() {
    let home = Home::new();
    assert_eq!(code(&home.run(&["embedded", "status"])), 1);
    let script = "echo led $TENURE_EPOCH";
    let output = home.run(&["run", "--role", "r", "--", "sh", "-c", script]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert_eq!(stdout(&output), "led 1\n");
    assert!(stderr(&output).contains("one leader per MACHINE"), "{}", stderr(&output));
    let output = home.run(&["run", "--role", "r", "--output", "json", "--", "true"]);
    assert!(stderr(&output).lines().all(|line| {
        serde_json::from_str::<serde_json::Value>(line).is_ok_and(|v| v["embedded"] == true)
    }));
    let status = stdout(&home.run(&["embedded", "status"]));
    assert!(status.contains("running, pid"), "{status}");
    let path = stdout(&home.run(&["embedded", "path"]));
    assert!(path.starts_with(home.0.path().to_str().expect("text")), "{path}");
    assert!(stdout(&home.run(&["status"])).contains("vacant"));
    assert!(stdout(&home.run(&["embedded", "stop"])).contains("stopped"));
    assert!(stdout(&home.run(&["embedded", "stop"])).contains("not running"));
    // The data stayed: epochs go on.
    let output = home.run(&["acquire", "--role", "r"]);
    assert_eq!(stdout(&output), "acquired r epoch 3, releasing it\n", "{}", stderr(&output));
}

#[test]
fn a_command_that_asks_or_orders_makes_no_private_server() {
    let home = Home::new();
    for args in [
        &["status"][..],
        &["audit"],
        &["check"],
        &["migrate"],
        &["history", "--role", "r"],
        &["step-down", "--role", "r"],
        &["pause", "--role", "r"],
        &["release", "--role", "r", "--force"],
        // Those that take part do not either, if it is forbidden.
        &["run", "--role", "r", "--no-embedded"],
        &["acquire", "--role", "r", "--no-embedded"],
    ] {
        refuses(&home.run(args), 2, "--dsn");
        assert_eq!(std::fs::read_dir(home.0.path()).expect("a folder").count(), 0, "{args:?}");
    }
    let file = home.0.path().join("tenure.toml");
    std::fs::write(&file, "[database]\nembedded = false\n").expect("written");
    let file = file.to_str().expect("text");
    refuses(&home.run(&["acquire", "--role", "r", "--config", file]), 2, "--dsn");
}

/// An empty secret must not become a leader per machine.
#[test]
fn an_empty_dsn_is_an_error() {
    let home = Home::new();
    for variable in ["TENURE_DSN", "PG_DSN"] {
        let mut command = tenure(&["run", "--role", "r"]);
        let output = command.env("XDG_DATA_HOME", home.0.path()).env(variable, " ").output();
        refuses(&output.expect("it runs"), 2, variable);
    }
    refuses(&home.run(&["run", "--role", "r", "--dsn", ""]), 2, "--dsn");
    let file = home.0.path().join("tenure.toml");
    std::fs::write(&file, "[database]\ndsn = ''\n").expect("written");
    let file = file.to_str().expect("text");
    refuses(&home.run(&["run", "--role", "r", "--config", file]), 2, "database.dsn");
}

#[tokio::test]
async fn a_private_server_that_died_is_started_again_by_its_members() {
    let home = Home::new();
    let mut command = command(&["--role", "r"]);
    command.env("XDG_DATA_HOME", home.0.path());
    let mut member = Child::spawn(command).expect("it runs");
    let epoch = async |member: &mut Child| event(member, "acquired").await["epoch"].as_u64();
    let first = epoch(&mut member).await;
    let status = stdout(&home.run(&["embedded", "status"]));
    let pid = status.lines().find_map(|line| line.strip_prefix("running, pid ")).expect(&status);
    let killed = std::process::Command::new("kill").args(["-9", pid]).status();
    assert!(killed.expect("it runs").success());
    let second = epoch(&mut member).await;
    assert!(second > first, "{second:?} after {first:?}");
    member.signal(Signal::TERM);
    member.wait(SOON).await.expect("it ends");
}
