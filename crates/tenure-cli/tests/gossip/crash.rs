//! `restore` and `force-recover`, ended or refused by the disk at every step that they take there.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::kit::{BIN, Process, free_port};

/// The system calls that change a disk, by their names on all machines. Not the single pages that the store writes
/// between two syncs: with TENURE_CRASH_PAGES=1 those too, which takes minutes.
const STEPS: &str = "?mkdir,?mkdirat,?chmod,?fchmodat,?ftruncate,?fsync,?fdatasync,?rename,?renameat,?renameat2,\
                     ?unlink,?unlinkat,?rmdir";

/// What a command has to work on: a folder with the state of a stopped node, a backup, and room for more.
struct Bench {
    dir: tempfile::TempDir,
    /// For the nodes that are started one after the other.
    port: u16,
}

/// One of the two commands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Which {
    Restore,
    ForceRecover,
}

impl Bench {
    /// A node that has a snapshot and records after it, stopped; and its backup.
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let port = free_port();
        let args = ["--bootstrap", "--snapshot-every", "16"];
        let mut node = Process::start(&dir.path().join("saved"), port, &args);
        for n in 0..20 {
            node.submit(&["put", "n", &n.to_string()]);
        }
        let backup = dir.path().join("backup");
        assert!(node.ask(&["backup", backup.to_str().unwrap()]).status.success());
        node.kill();
        Self { dir, port }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The folder of the stopped node as it was, and none for the new one.
    fn reset(&self) {
        for name in ["old", "new"] {
            let _ = std::fs::remove_dir_all(self.path(name));
        }
        let (from, to) = (self.path("saved"), self.path("old"));
        assert!(Command::new("cp").arg("-a").args([from, to]).status().unwrap().success());
    }

    /// The command, run by strace with these options.
    fn run(&self, which: Which, options: &[&str]) -> Output {
        let mut command = Command::new("strace");
        command.arg("-o").arg(self.path("trace")).args(options).arg(BIN).arg("gossip");
        match which {
            Which::Restore => {
                command.arg("restore").arg("--data").arg(self.path("new")).arg(self.path("backup"))
            }
            Which::ForceRecover => command
                .args(["force-recover", "--accept-data-loss", "--data"])
                .arg(self.path("old"))
                .arg("--into")
                .arg(self.path("new")),
        };
        command.env("TENURE_LOG", "error").output().expect("strace runs")
    }

    /// How often each step is taken by a run that nothing disturbs.
    fn steps(&self, which: Which) -> BTreeMap<String, usize> {
        self.reset();
        let pages =
            if std::env::var_os("TENURE_CRASH_PAGES").is_some() { ",?pwrite64" } else { "" };
        let out = self.run(which, &["-e", &format!("trace={STEPS}{pages}")]);
        assert!(out.status.success(), "{which:?}: {}", String::from_utf8_lossy(&out.stderr));
        let mut steps = BTreeMap::new();
        for line in std::fs::read_to_string(self.path("trace")).unwrap().lines() {
            if let Some((name, _)) = line.split_once('(') {
                *steps.entry(name.to_owned()).or_default() += 1;
            }
        }
        assert!(steps.contains_key("fsync"), "{steps:?}");
        steps
    }

    /// Starts a node in a folder; else what it says.
    fn start(&self, folder: &Path, args: &[&str]) -> Result<Process, String> {
        let log = self.path("log");
        let mut program = Command::new(BIN);
        program.stderr(std::fs::File::create(&log).unwrap());
        let started = Process::try_start_as(program, folder, self.port, args);
        started.ok_or_else(|| std::fs::read_to_string(&log).unwrap())
    }

    /// Whether the new cluster runs; it must have the whole state then.
    fn serves_all(&self) -> bool {
        let Ok(node) = self.start(&self.path("new"), &[]) else { return false };
        // What it has applied: no need to wait until it leads.
        assert_eq!(node.get("n"), "19");
        true
    }

    /// What must hold after a run that was cut short.
    fn check(&self, which: Which, what: &str) {
        let new = self.path("new");
        let done = self.serves_all();
        if !done && std::fs::read_dir(&new).is_ok_and(|mut files| files.next().is_some()) {
            // Whatever an operator tries: what is half done is no state, and is not taken for a fresh folder.
            for args in [&[][..], &["--bootstrap"], &["--join", "127.0.0.1:1"]] {
                let refused = self.start(&new, args).err();
                let said = refused.unwrap_or_else(|| panic!("{what}: {args:?} starts a node"));
                assert!(said.contains("run it again"), "{what}, {args:?}: {said}");
            }
        }
        if which == Which::ForceRecover {
            let old = self.start(&self.path("old"), &[]);
            assert!(!(done && old.is_ok()), "{what}: the old node and the new one start");
        }
        let again = self.run(which, &["-e", "trace=none"]);
        let said = String::from_utf8_lossy(&again.stderr);
        match (done, which) {
            (false, _) => {
                assert!(again.status.success(), "{what}: not the second time either: {said}");
                assert!(self.serves_all(), "{what}: the second run left no node");
            }
            (true, Which::Restore) => assert!(said.contains("does not exist"), "{what}: {said}"),
            (true, Which::ForceRecover) => {
                assert!(said.contains("start that one"), "{what}: {said}")
            }
        }
        if which == Which::ForceRecover {
            assert!(self.start(&self.path("old"), &[]).is_err(), "{what}: the old node starts");
        }
    }
}

/// Whether processes can be stopped at a system call here. Where they cannot, the library's own tests of folders that were
/// cut short are all there is.
#[allow(clippy::print_stderr, reason = "what is left out is said")]
fn can_trace() -> bool {
    let traced = Command::new("strace").args(["-o", "/dev/null", "true"]).status();
    let can = traced.is_ok_and(|status| status.success());
    if !can {
        eprintln!("left out: strace is not installed, or may not trace here");
    }
    can
}

#[test]
fn a_crash_at_any_step_leaves_the_old_folder_or_the_new_one_and_the_command_run_again_completes() {
    if !can_trace() {
        return;
    }
    let bench = Bench::new();
    for which in [Which::Restore, Which::ForceRecover] {
        for (step, count) in bench.steps(which) {
            for n in 1..=count {
                bench.reset();
                let inject = format!("inject={step}:signal=KILL:when={n}");
                let out = bench.run(which, &["-e", &format!("trace={step}"), "-e", &inject]);
                let what = format!("{which:?} killed at {step} {n} of {count}");
                assert_eq!(out.status.signal(), Some(9), "{what}");
                bench.check(which, &what);
            }
        }
    }
}

#[test]
fn a_disk_that_fails_at_any_step_leaves_no_half_of_a_folder_and_the_command_run_again_completes() {
    if !can_trace() {
        return;
    }
    let bench = Bench::new();
    for which in [Which::Restore, Which::ForceRecover] {
        for (step, count) in bench.steps(which) {
            for n in 1..=count {
                bench.reset();
                // From there on: a disk that is full stays so.
                let inject = format!("inject={step}:error=ENOSPC:when={n}+");
                let out = bench.run(which, &["-e", &format!("trace={step}"), "-e", &inject]);
                let what = format!("{which:?} without room at {step} {n} of {count}");
                if !out.status.success() {
                    bench.check(which, &what);
                }
            }
        }
    }
}

#[test]
fn a_backup_that_finds_no_room_leaves_no_part_of_a_file() {
    let bench = Bench::new();
    let node = bench.start(&bench.path("saved"), &[]).expect("it starts");
    let file = bench.path("next");
    // The shell lets no file grow: a write fails instead of ending the process.
    let mut command = Command::new("sh");
    command.args(["-c", r#"trap "" XFSZ; ulimit -f 0; exec "$@""#, "sh", BIN, "gossip", "backup"]);
    let full = command.args(["--node", &node.address]).arg(&file).output().unwrap();
    let said = String::from_utf8_lossy(&full.stderr);
    assert_eq!(full.status.code(), Some(1), "{said}");
    assert!(said.contains("next") && !file.exists(), "{said}");
    assert!(node.ask(&["backup", file.to_str().unwrap()]).status.success());
}
