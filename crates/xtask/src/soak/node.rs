//! The nodes of a soak: real processes that are killed, frozen, replaced, and given a full disk.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use anyhow::{Context as _, bail};
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};
use serde_json::Value;
use tenure_gossip::{Answer, Ask, Client, Ed25519Keys, PeerId, Trust};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::net::TcpListener;
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::relay::{Network, Place};

/// How long a node may take over an answer.
const ANSWER: Duration = Duration::from_secs(5);

/// A node in its place.
pub(super) struct Node {
    child: Option<Child>,
    /// Where clients reach it, past the relays.
    pub(super) direct: String,
    /// Where the other nodes reach it.
    pub(super) relayed: String,
    pub(super) id: Option<PeerId>,
    pub(super) folder: PathBuf,
    place: Place,
}

impl Node {
    /// A place for a node: a port, a relay and a folder.
    pub(super) async fn settle(
        network: &Network,
        place: Place,
        folder: PathBuf,
    ) -> anyhow::Result<Self> {
        let port = free_port().await?;
        let relayed = network.relay(place, port).await?;
        let direct = format!("127.0.0.1:{port}");
        Ok(Self { child: None, direct, relayed, id: None, folder, place })
    }

    pub(super) async fn start(
        &mut self,
        network: &Network,
        program: &Path,
        args: &[&str],
    ) -> anyhow::Result<()> {
        self.start_by(network, Command::new(program), args).await
    }

    /// Starts it so that [`Node::fill`] makes its writes fail, and does not kill it by a signal.
    pub(super) async fn start_to_fill(
        &mut self,
        network: &Network,
        program: &Path,
    ) -> anyhow::Result<()> {
        let mut shell = Command::new("bash");
        shell.arg("-c").arg("trap '' XFSZ; exec \"$0\" \"$@\"").arg(program);
        self.start_by(network, shell, &[]).await
    }

    /// From now on no byte can be written: in place neither, as on a full disk that copies on write. The room that
    /// a store has kept inside its file would otherwise last for minutes.
    pub(super) fn fill(&self) -> anyhow::Result<()> {
        let pid = self.child.as_ref().and_then(Child::id).and_then(|pid| i32::try_from(pid).ok());
        let pid = pid.and_then(Pid::from_raw).context("it runs")?;
        let nothing = Rlimit { current: Some(0), maximum: None };
        prlimit(Some(pid), Resource::Fsize, nothing)?;
        Ok(())
    }

    async fn start_by(
        &mut self,
        network: &Network,
        mut command: Command,
        args: &[&str],
    ) -> anyhow::Result<()> {
        command
            .args(["gossip", "node", "--snapshot-every", "500", "--listen", &self.direct])
            .args(["--advertise", &self.relayed, "--open", "--data"])
            .arg(&self.folder)
            .args(args)
            .env("TENURE_LOG", "info")
            .stdout(Stdio::piped())
            .stderr(self.log()?)
            .kill_on_drop(true);
        let mut child = command.spawn()?;
        if let Some(pid) = child.id() {
            network.runs(self.place, pid);
        }
        let out = child.stdout.take().context("stdout is piped")?;
        let mut line = String::new();
        timeout(Duration::from_secs(30), BufReader::new(out).read_line(&mut line)).await??;
        let id = line.split_whitespace().nth(2).and_then(PeerId::from_hex);
        self.child = Some(child);
        if id.is_none() {
            bail!("node {} did not get ready", self.place);
        }
        self.id = id;
        Ok(())
    }

    /// What it says goes beside its folder: it is what a failed run leaves behind.
    fn log(&self) -> anyhow::Result<std::fs::File> {
        let path = self.folder.with_extension("log");
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)?;
        }
        Ok(std::fs::OpenOptions::new().create(true).append(true).open(path)?)
    }

    pub(super) async fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill().await;
        }
    }

    /// Whether it ends by itself within `patience`; if it does not, it is killed.
    pub(super) async fn ends(&mut self, patience: Duration) -> bool {
        let Some(child) = &mut self.child else { return true };
        let ended = timeout(patience, child.wait()).await.is_ok();
        self.kill().await;
        ended
    }

    pub(super) fn signal(&self, signal: Signal) {
        let pid = self.child.as_ref().and_then(Child::id).and_then(|pid| i32::try_from(pid).ok());
        if let Some(pid) = pid.and_then(Pid::from_raw) {
            // One that has ended already needs no signal.
            let _ = kill_process(pid, signal);
        }
    }

    pub(super) fn is_up(&self) -> bool {
        self.child.is_some()
    }

    /// The status of the namespace `main`.
    pub(super) async fn main(&self) -> anyhow::Result<Value> {
        self.space("main").await
    }

    /// The status of a namespace, or of the credentials.
    pub(super) async fn space(&self, name: &str) -> anyhow::Result<Value> {
        let mut client = connect(&self.direct).await?;
        let Answer::Status(text) = client.ask(Ask::Status, ANSWER).await? else {
            bail!("not a status")
        };
        let status: Value = serde_json::from_str(&text)?;
        let spaces = status["namespaces"].as_array().into_iter().flatten();
        let mut spaces = spaces.chain([&status["credentials"]]);
        let found = spaces.find(|space| space["namespace"] == *name).cloned();
        found.with_context(|| format!("it carries no namespace {name}"))
    }
}

/// A port below those that the system gives out by itself: a node that is killed must find its own again, and
/// seven nodes with their relays and callers open thousands of connections.
async fn free_port() -> anyhow::Result<u16> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    for _ in 0..10_000 {
        let port = 20_000 + (NEXT.fetch_add(1, Ordering::Relaxed) + offset()) % 10_000;
        if TcpListener::bind(("127.0.0.1", port)).await.is_ok() {
            return Ok(port);
        }
    }
    bail!("no port is free between 20,000 and 30,000")
}

/// Two soaks on one machine begin at different ports.
fn offset() -> u16 {
    u16::try_from(std::process::id() % 10_000).expect("below 10,000")
}

pub(super) async fn connect(address: &str) -> anyhow::Result<Client> {
    let trust = Trust::default();
    let connecting = Client::connect(address, Ed25519Keys::generate(), &trust);
    Ok(timeout(ANSWER, connecting).await??)
}
