//! Real processes: started, asked, stopped, killed.
#![allow(unreachable_pub, reason = "a kit for the tests beside it")]

use std::{
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use serde_json::Value;

pub const BIN: &str = env!("CARGO_BIN_EXE_tenure");

pub use tenure_testkit::free_port;

/// A node as a process of its own; killed when dropped.
pub struct Process {
    child: Child,
    pub address: String,
    pub id: String,
    folder: PathBuf,
    args: Vec<String>,
}

impl Process {
    /// Starts a node and waits until it says that it is ready.
    pub fn start(folder: &Path, port: u16, args: &[&str]) -> Self {
        Self::try_start(folder, port, args).expect("the node gets ready")
    }

    pub fn try_start(folder: &Path, port: u16, args: &[&str]) -> Option<Self> {
        Self::try_start_as(Command::new(BIN), folder, port, args)
    }

    /// Starts a node by another command: it gets the arguments of `tenure gossip node`.
    pub fn try_start_as(
        mut program: Command,
        folder: &Path,
        port: u16,
        args: &[&str],
    ) -> Option<Self> {
        let address = format!("127.0.0.1:{port}");
        program.args(["gossip", "node", "--listen", &address, "--data"]).arg(folder).args(args);
        Self::try_start_by(program, folder, port, args)
    }

    /// Starts a node by a whole command, and waits for its line `ready ADDRESS ID`.
    pub fn try_start_by(
        mut program: Command,
        folder: &Path,
        port: u16,
        args: &[&str],
    ) -> Option<Self> {
        if program.get_envs().all(|(name, _)| name != "TENURE_LOG") {
            let level = std::env::var("TENURE_LOG").unwrap_or_else(|_| "error".into());
            program.env("TENURE_LOG", level);
        }
        let mut child = program.stdout(Stdio::piped()).spawn().expect("the program runs");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let ready = lines.map_while(Result::ok).find(|l| l.starts_with("ready "));
        let Some(id) = ready.and_then(|l| l.split(' ').nth(2).map(ToOwned::to_owned)) else {
            let _ = child.wait();
            return None;
        };
        let args = args.iter().map(ToString::to_string).collect();
        let address = format!("127.0.0.1:{port}");
        Some(Self { child, address, id, folder: folder.to_owned(), args })
    }

    /// The same node again, from what it left on disk.
    pub fn restart(self) -> Self {
        let args: Vec<String> = self.args.iter().filter(|a| *a != "--bootstrap").cloned().collect();
        self.restart_with(&args.iter().map(String::as_str).collect::<Vec<_>>())
            .expect("the node gets ready")
    }

    /// The same with other arguments; `None` if it refuses to start.
    pub fn restart_with(mut self, args: &[&str]) -> Option<Self> {
        self.kill();
        let port = self.address.rsplit_once(':').expect("host:port").1.parse().expect("a port");
        let folder = self.folder.clone();
        drop(self);
        Self::try_start(&folder, port, args)
    }

    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    pub fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args([signal, &pid]).status().expect("kill runs");
        assert!(sent.success());
    }

    /// The exit code of one that ends by itself.
    pub fn ends(&mut self, seconds: u64) -> Option<i32> {
        let mut code = None;
        eventually("the process ends", seconds, || {
            code = self.child.try_wait().expect("a child of ours");
            code.is_some()
        });
        code.and_then(|c| c.code())
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub fn get(&self, key: &str) -> String {
        String::from_utf8_lossy(&self.ask(&["get", key]).stdout).trim().to_owned()
    }

    pub fn voters(&self) -> usize {
        self.main()["voters"].as_array().map_or(0, Vec::len)
    }

    /// SIGTERM, and its exit code.
    pub fn terminate(mut self) -> Option<i32> {
        self.signal("-TERM");
        self.child.wait().expect("it ends").code()
    }

    /// Runs another command against this node.
    pub fn ask(&self, args: &[&str]) -> Output {
        ask(&self.address, args)
    }

    /// Submits, and gives the record.
    pub fn submit(&self, args: &[&str]) -> Value {
        let out = self.ask(&[&["submit"], args].concat());
        assert!(
            out.status.success() || out.status.code() == Some(8),
            "submit {args:?}: {}",
            String::from_utf8_lossy(&out.stderr)
        );
        serde_json::from_slice(&out.stdout).expect("a record as JSON")
    }

    pub fn status(&self) -> Value {
        let out = self.ask(&["status", "--json"]);
        serde_json::from_slice(&out.stdout).unwrap_or(Value::Null)
    }

    /// The status of the namespace `main`.
    pub fn main(&self) -> Value {
        self.status()["namespaces"][0].clone()
    }

    pub fn acts(&self) -> bool {
        self.main()["acting"] == Value::Bool(true)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

pub fn ask(address: &str, args: &[&str]) -> Output {
    // The address goes after the first word: it belongs to the subcommand.
    let (first, rest) = args.split_first().expect("a command");
    Command::new(BIN)
        .args(["gossip", first, "--node", address])
        .args(rest)
        .env("TENURE_LOG", "error")
        .output()
        .expect("the program runs")
}

/// Waits until `condition` holds.
pub fn eventually(what: &str, seconds: u64, mut condition: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(seconds);
    while !condition() {
        assert!(Instant::now() < until, "not within {seconds} s: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A cluster of `n` nodes in which all vote and one acts.
pub fn cluster(folder: &Path, n: usize) -> Vec<Process> {
    cluster_with(folder, n, &[])
}

pub fn cluster_with(folder: &Path, n: usize, args: &[&str]) -> Vec<Process> {
    let first = free_port();
    let mut nodes =
        vec![Process::start(&folder.join("0"), first, &[&["--bootstrap"], args].concat())];
    let seed = nodes[0].address.clone();
    for i in 1..n {
        let folder = folder.join(i.to_string());
        nodes.push(Process::start(
            &folder,
            free_port(),
            &[&["--join", seed.as_str()], args].concat(),
        ));
    }
    // In the credentials too: an order about the members is given in both.
    eventually("all nodes vote and know the leader", 30, || {
        nodes.iter().all(|node| {
            let status = node.status();
            [&status["namespaces"][0], &status["credentials"]].iter().all(|space| {
                space["voters"].as_array().is_some_and(|v| v.len() == n)
                    && space["learners"].as_array().is_some_and(Vec::is_empty)
                    && space["leader"].is_string()
            })
        })
    });
    nodes
}

/// The position of the one that acts.
pub fn leader(nodes: &[Process]) -> usize {
    let mut found = None;
    eventually("one node acts", 15, || {
        found = nodes.iter().position(Process::acts);
        found.is_some()
    });
    found.expect("just found")
}
