//! The embedded default: no DSN, and it works.

use std::os::unix::fs::PermissionsExt;
use std::process::Output;

use tempfile::TempDir;

use crate::kit::{code, stderr, stdout, tenure};

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
    assert_eq!(stdout(&output), "acquired r epoch 3\n", "{}", stderr(&output));
}
