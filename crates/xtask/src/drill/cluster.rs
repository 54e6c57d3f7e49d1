//! The servers of a drill: an etcd and three PostgreSQL under Patroni, one a machine.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use clap::ValueEnum;
use rustix::process::{Pid, Signal, kill_process};
use tenure_testkit::history::now_ns;
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_postgres::{Client, NoTls};

use super::children::operator;
use super::network::{address, on};

pub(super) const SERVERS: [&str; 3] = ["n1", "n2", "n3"];

const ACCOUNT: &str = "postgres";
/// True once it is committed, by as many servers as must.
const COMMIT: &str = "select pg_logical_emit_message(true, 'drill', '') is not null";
/// How often a server is asked whether it can commit, and for how long.
const PROBE_EVERY: Duration = Duration::from_millis(50);
const PROBE_LIMIT: Duration = Duration::from_secs(2);

/// How the standbys follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Setup {
    Asynchronous,
    Synchronous,
    Strict,
    Quorum,
}

impl Setup {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Setup::Asynchronous => "asynchronous",
            Setup::Synchronous => "synchronous",
            Setup::Strict => "strict",
            Setup::Quorum => "quorum",
        }
    }

    pub(super) const fn meaning(self) -> &'static str {
        match self {
            Setup::Asynchronous => {
                "no standby must acknowledge; two leaders are possible, and `check` says so"
            }
            Setup::Synchronous => "synchronous_mode: one of two standbys must acknowledge",
            Setup::Strict => "synchronous_mode_strict, both standbys must acknowledge",
            Setup::Quorum => "synchronous_mode: quorum, any one of two",
        }
    }

    /// Whether what Patroni promotes by itself always has every commit that was acknowledged.
    pub(super) const fn promises(self) -> bool {
        match self {
            Setup::Asynchronous => false,
            Setup::Synchronous | Setup::Strict | Setup::Quorum => true,
        }
    }

    /// How many standbys acknowledge in a cluster that is whole.
    const fn acknowledge(self) -> u8 {
        match self {
            Setup::Asynchronous => 0,
            Setup::Synchronous => 1,
            Setup::Strict | Setup::Quorum => 2,
        }
    }

    const fn settings(self) -> &'static str {
        match self {
            Setup::Asynchronous => "    synchronous_mode: false\n",
            Setup::Synchronous => "    synchronous_mode: true\n",
            Setup::Strict => {
                "    synchronous_mode: true\n    synchronous_mode_strict: true\n    \
                 synchronous_node_count: 2\n"
            }
            Setup::Quorum => "    synchronous_mode: quorum\n    synchronous_node_count: 1\n",
        }
    }
}

pub(super) struct Cluster {
    setup: Setup,
    folder: PathBuf,
    patroni: PathBuf,
    etcd: Child,
    nodes: Vec<Node>,
}

struct Node {
    name: &'static str,
    patroni: Child,
    probe: JoinHandle<()>,
    commits: Arc<Mutex<Vec<u64>>>,
}

impl Cluster {
    pub(super) async fn start(folder: &Path, patroni: &Path, setup: Setup) -> anyhow::Result<Self> {
        if folder.exists() {
            std::fs::remove_dir_all(folder).context("what an earlier drill left")?;
        }
        std::fs::create_dir_all(folder)?;
        let etcd = spawn_etcd(folder)?;
        // Not before it answers: a Patroni that finds no etcd waits for seconds.
        sleep(Duration::from_secs(2)).await;
        let mut cluster = Cluster {
            setup,
            folder: folder.to_owned(),
            patroni: patroni.to_owned(),
            etcd,
            nodes: Vec::new(),
        };
        for name in SERVERS {
            let home = cluster.home(name);
            std::fs::create_dir_all(&home)?;
            std::fs::write(home.join("patroni.yml"), cluster.written(name, setup))?;
            give(&home).await?;
            let commits = Arc::default();
            let probe = tokio::spawn(probe(home, Arc::clone(&commits)));
            let node = Node { name, patroni: cluster.spawn_patroni(name)?, probe, commits };
            cluster.nodes.push(node);
        }
        Ok(cluster)
    }

    fn home(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn written(&self, name: &str, setup: Setup) -> String {
        let (home, here) = (self.home(name), address(name));
        let home = home.display();
        let mut text = format!(
            "scope: drill\nname: {name}\n\
             restapi:\n  listen: {here}:8008\n  connect_address: {here}:8008\n\
             etcd3:\n  hosts: {}:2379\n\
             bootstrap:\n  dcs:\n    ttl: 20\n    loop_wait: 2\n    retry_timeout: 3\n",
            address("etcd")
        );
        text.push_str(setup.settings());
        let _ = write!(
            text,
            "    postgresql:\n      use_pg_rewind: true\n      use_slots: true\n      parameters:\n        \
             wal_sender_timeout: 15s\n        wal_receiver_timeout: 15s\n        \
             wal_log_hints: 'on'\n        shared_buffers: 16MB\n  \
             initdb:\n  - encoding: UTF8\n  - locale: C\n\
             postgresql:\n  listen: {here}:5432\n  connect_address: {here}:5432\n  \
             data_dir: {home}/data\n  bin_dir: {}\n  pgpass: {home}/pgpass\n  \
             authentication:\n    superuser: {{username: postgres}}\n    \
             replication: {{username: replicator, password: drill}}\n    \
             rewind: {{username: postgres}}\n  \
             parameters:\n    unix_socket_directories: {home}\n  \
             pg_hba:\n  - local all all trust\n  - host all all 10.99.77.0/24 trust\n  \
             - host replication all 10.99.77.0/24 trust\n",
            binaries()
        );
        text
    }

    fn spawn_patroni(&self, name: &'static str) -> anyhow::Result<Child> {
        let home = self.home(name);
        let log =
            std::fs::File::options().create(true).append(true).open(home.join("patroni.log"))?;
        let mut command = on(name, "setpriv");
        command
            .args(["--reuid", ACCOUNT, "--regid", ACCOUNT, "--clear-groups"])
            .arg(self.patroni.join("patroni"))
            .arg(home.join("patroni.yml"))
            .current_dir(&home)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0)
            .kill_on_drop(true);
        command.spawn().with_context(|| format!("Patroni of {name}"))
    }

    // --- questions ---

    /// The server that is the primary, as the servers themselves say.
    pub(super) async fn primary(&self) -> anyhow::Result<&'static str> {
        for name in SERVERS {
            if self.says(name, "select not pg_is_in_recovery()").await {
                return Ok(name);
            }
        }
        bail!("no server is the primary")
    }

    pub(super) async fn standbys(&self) -> anyhow::Result<Vec<&'static str>> {
        let primary = self.primary().await?;
        Ok(SERVERS.into_iter().filter(|name| *name != primary).collect())
    }

    pub(super) async fn says(&self, name: &str, question: &str) -> bool {
        let asked = async {
            let client = client(&self.home(name)).await.ok()?;
            client.query_one(question, &[]).await.ok()?.try_get::<_, bool>(0).ok()
        };
        timeout(PROBE_LIMIT, asked).await.ok().flatten().unwrap_or(false)
    }

    /// Whether a server other than this one is a primary that commits.
    pub(super) async fn commits_beside(&self, name: &str) -> bool {
        for other in SERVERS.into_iter().filter(|other| *other != name) {
            if self.says(other, "select not pg_is_in_recovery()").await
                && self.says(other, COMMIT).await
            {
                return true;
            }
        }
        false
    }

    /// Waits for one primary that commits, and two standbys that stream and acknowledge as they should.
    pub(super) async fn whole(&self, within: Duration) -> anyhow::Result<()> {
        let begun = Instant::now();
        loop {
            if let Ok(primary) = self.primary().await {
                let streams = format!(
                    "select count(*) = 2 and count(*) filter (where sync_state in ('sync', 'quorum')) >= {} \
                     from pg_stat_replication where state = 'streaming'",
                    self.setup.acknowledge()
                );
                if self.says(primary, &streams).await && self.says(primary, COMMIT).await {
                    return Ok(());
                }
            }
            if begun.elapsed() > within {
                bail!("the cluster is not whole after {within:?}; see {}", self.folder.display());
            }
            sleep(Duration::from_millis(500)).await;
        }
    }

    /// When each server could commit, since then.
    pub(super) fn commits(&self, since: u64) -> BTreeMap<&'static str, Vec<u64>> {
        let of = |node: &Node| {
            let all = node.commits.lock().unwrap_or_else(PoisonError::into_inner);
            (node.name, all.iter().copied().filter(|at| *at >= since).collect())
        };
        self.nodes.iter().map(of).collect()
    }

    // --- orders ---

    pub(super) async fn migrate(&self, program: &Path) -> anyhow::Result<()> {
        for order in ["migrate", "check"] {
            let output =
                timeout(Duration::from_secs(30), operator(program, &[order]).output()).await??;
            std::fs::write(self.folder.join(format!("{order}.txt")), &output.stdout)?;
            let words = String::from_utf8_lossy(&output.stderr);
            ensure!(output.status.success() || order == "check", "{order}: {}", words.trim());
        }
        Ok(())
    }

    /// `patronictl` on the operator's machine. What it says is in the log; whether it did anything, the
    /// servers tell.
    pub(super) async fn patronictl(&self, args: &[&str]) -> anyhow::Result<()> {
        let mut command = on("op", self.patroni.join("patronictl"));
        command.arg("-c").arg(self.home("n1").join("patroni.yml")).args(args).stdin(Stdio::null());
        let output = timeout(Duration::from_secs(60), command.output()).await??;
        let mut log = output.stdout;
        log.extend(output.stderr);
        std::fs::write(self.folder.join("patronictl.txt"), log)?;
        Ok(())
    }

    pub(super) fn signal_patroni(&self, name: &str, signal: Signal) {
        let node = self.nodes.iter().find(|node| node.name == name);
        send(node.and_then(|node| node.patroni.id()), signal);
    }

    /// The postmaster alone.
    pub(super) fn signal_postmaster(&self, name: &str, signal: Signal) {
        send(self.postmaster(name), signal);
    }

    /// The postmaster and every backend.
    pub(super) fn signal_server(&self, name: &str, signal: Signal) {
        if let Some(postmaster) = self.postmaster(name) {
            for pid in children_of(postmaster) {
                send(Some(pid), signal);
            }
            send(Some(postmaster), signal);
        }
    }

    fn postmaster(&self, name: &str) -> Option<u32> {
        let text = std::fs::read_to_string(self.home(name).join("data/postmaster.pid")).ok()?;
        let pid: u32 = text.lines().next()?.trim().parse().ok()?;
        // A file that a crash left may name a process of another program.
        let program = std::fs::read_link(format!("/proc/{pid}/exe")).ok()?;
        program.file_name().is_some_and(|name| name == "postgres").then_some(pid)
    }

    pub(super) fn signal_etcd(&self, signal: Signal) {
        send(self.etcd.id(), signal);
    }

    pub(super) async fn sql(&self, name: &str, statement: &str) -> anyhow::Result<()> {
        let done = async { client(&self.home(name)).await?.batch_execute(statement).await };
        Ok(timeout(PROBE_LIMIT, done).await??)
    }

    /// What stands still goes on, what ended is started again.
    pub(super) async fn mend(&mut self) -> anyhow::Result<()> {
        self.signal_etcd(Signal::CONT);
        for name in SERVERS {
            self.signal_server(name, Signal::CONT);
            self.signal_patroni(name, Signal::CONT);
        }
        for index in 0..self.nodes.len() {
            if self.nodes[index].patroni.try_wait()?.is_some() {
                self.nodes[index].patroni = self.spawn_patroni(self.nodes[index].name)?;
            }
        }
        for name in SERVERS {
            let _ = self
                .sql(name, "select case when pg_is_in_recovery() then pg_wal_replay_resume() end")
                .await;
        }
        Ok(())
    }

    pub(super) async fn end(mut self) {
        for node in &mut self.nodes {
            node.probe.abort();
            let _ = node.patroni.kill().await;
        }
        for name in SERVERS {
            self.signal_postmaster(name, Signal::QUIT);
        }
        let _ = self.etcd.kill().await;
        // Their sockets keep the namespaces.
        sleep(Duration::from_secs(2)).await;
    }
}

/// A drill that fails or is interrupted leaves no server behind.
impl Drop for Cluster {
    fn drop(&mut self) {
        for node in &self.nodes {
            node.probe.abort();
            send(node.patroni.id(), Signal::KILL);
        }
        for name in SERVERS {
            self.signal_server(name, Signal::CONT);
            self.signal_postmaster(name, Signal::QUIT);
        }
    }
}

fn spawn_etcd(folder: &Path) -> anyhow::Result<Child> {
    let here = address("etcd");
    let log = std::fs::File::create(folder.join("etcd.log"))?;
    let (client, peer) = (format!("http://{here}:2379"), format!("http://{here}:2380"));
    let mut command = on("etcd", "etcd");
    command
        .arg("--data-dir")
        .arg(folder.join("etcd"))
        .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
        .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
        .args(["--initial-cluster", &format!("default={peer}")])
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .process_group(0)
        .kill_on_drop(true);
    command.spawn().context("etcd does not run; run `scripts/setup.sh drill`")
}

/// PostgreSQL refuses root: the folder is the account's.
async fn give(folder: &Path) -> anyhow::Result<()> {
    let status = Command::new("chown").args(["-R", ACCOUNT]).arg(folder).status().await?;
    ensure!(status.success(), "{} cannot be given to {ACCOUNT}", folder.display());
    Ok(())
}

/// The newest PostgreSQL of the distribution.
fn binaries() -> String {
    let all = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut folders: Vec<PathBuf> = all.map(|entry| entry.path().join("bin")).collect();
    folders.sort();
    folders.pop().map_or_else(|| "/usr/bin".to_owned(), |folder| folder.display().to_string())
}

fn send(pid: Option<u32>, signal: Signal) {
    if let Some(pid) = pid.and_then(|pid| Pid::from_raw(pid.cast_signed())) {
        let _ = kill_process(pid, signal);
    }
}

fn children_of(parent: u32) -> Vec<u32> {
    let file = format!("/proc/{parent}/task/{parent}/children");
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// By the socket in the server's folder: files know no namespace.
async fn client(home: &Path) -> Result<Client, tokio_postgres::Error> {
    let mut config = tokio_postgres::Config::new();
    config.host_path(home).user(ACCOUNT).dbname(ACCOUNT).connect_timeout(PROBE_LIMIT);
    let (client, connection) = config.connect(NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// Notes when a commit succeeded. It waits for standbys as any commit does.
async fn probe(home: PathBuf, commits: Arc<Mutex<Vec<u64>>>) {
    loop {
        if let Ok(Ok(client)) = timeout(PROBE_LIMIT, client(&home)).await {
            let commit =
                || client.execute("select pg_logical_emit_message(true, 'drill', '')", &[]);
            while let Ok(Ok(_)) = timeout(PROBE_LIMIT, commit()).await {
                commits.lock().unwrap_or_else(PoisonError::into_inner).push(now_ns());
                sleep(PROBE_EVERY).await;
            }
        }
        sleep(PROBE_EVERY).await;
    }
}
