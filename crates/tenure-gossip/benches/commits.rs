//! Commits per second of three nodes on this machine, and of three etcd nodes beside them.
//!
//! ```text
//! cargo bench -p tenure-gossip --bench commits -- --clients 1,8,32,128 --seconds 5 --rounds 3 --etcd /usr/bin/etcd
//! ```
//!
//! Each client has one connection to the leader, kept open, and one goal in flight: a `put` of 100 bytes.
//! etcd is asked through its HTTP gateway, the same way. Both sync before they answer. The runs alternate,
//! so what else happens on the machine meets both. One JSON line for each run.

#![allow(clippy::print_stdout, reason = "its output is what it is for")]

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tenure_gossip::{
    Answer, Ask, Client, Ed25519Keys, Host, HostConfig, Kv, KvGoal, Start, Trust, TxId,
};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const PATIENCE: Duration = Duration::from_secs(30);

struct Options {
    clients: Vec<usize>,
    seconds: u64,
    rounds: usize,
    etcd: Option<PathBuf>,
    folder: PathBuf,
}

fn options() -> Result<Options> {
    let folder = std::env::temp_dir().join(format!("commits-{}", std::process::id()));
    let mut options =
        Options { clients: vec![1, 8, 32, 128], seconds: 5, rounds: 1, etcd: None, folder };
    let mut args = std::env::args().skip(1).filter(|arg| arg != "--bench");
    while let Some(name) = args.next() {
        let value = args.next().ok_or("every option has a value")?;
        match name.as_str() {
            "--clients" => {
                let parsed: std::result::Result<_, _> = value.split(',').map(str::parse).collect();
                options.clients = parsed?;
            }
            "--seconds" => options.seconds = value.parse()?,
            "--rounds" => options.rounds = value.parse()?,
            "--etcd" => options.etcd = Some(value.into()),
            "--folder" => options.folder = value.into(),
            other => return Err(format!("{other} is no option of this bench").into()),
        }
    }
    Ok(options)
}

fn main() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let args: Vec<String> = std::env::args().collect();
    if args.get(1).is_some_and(|arg| arg == "node") {
        return runtime.block_on(node(&args[2], args.get(3)));
    }
    // `cargo test --benches` runs it too: without a word it measures nothing.
    if !args.iter().any(|arg| arg == "--bench" || arg.starts_with("--clients")) {
        return Ok(());
    }
    runtime.block_on(run(options()?))
}

/// One node in a process of its own, until its standard input ends.
async fn node(folder: &str, seed: Option<&String>) -> Result<()> {
    let start = seed.map_or(Start::Bootstrap, |seed| Start::Join(vec![seed.clone()]));
    let config = HostConfig::new(folder, "127.0.0.1:0".parse()?, start);
    let host = Host::<Kv>::start(config).await?;
    println!("{}", host.address());
    // It ends with the process that started it.
    tokio::task::spawn_blocking(|| std::io::copy(&mut std::io::stdin(), &mut std::io::sink()))
        .await??;
    Ok(host.stop().await?)
}

async fn run(options: Options) -> Result<()> {
    std::fs::create_dir_all(&options.folder)?;
    let ours = Ours::start(&options.folder.join("tenure")).await?;
    let etcd = match &options.etcd {
        Some(program) => Some(Etcd::start(program, &options.folder.join("etcd")).await?),
        None => None,
    };
    for round in 0..options.rounds {
        for clients in &options.clients {
            let took = Duration::from_secs(options.seconds);
            let leader = ours.leader().await?;
            let before = leader.bytes_sent();
            let mut taken = load(*clients, took, || ours.connect(&leader)).await?;
            let sent = (leader.bytes_sent() - before) as usize / taken.len().max(1);
            report("tenure", round, *clients, took, &mut taken, Some(sent));
            if let Some(etcd) = &etcd {
                let address = etcd.leader().await?;
                let mut taken = load(*clients, took, || Gateway::connect(address.clone())).await?;
                report("etcd", round, *clients, took, &mut taken, None);
            }
        }
    }
    std::fs::remove_dir_all(&options.folder)?;
    Ok(())
}

fn report(
    what: &str,
    round: usize,
    clients: usize,
    took: Duration,
    taken: &mut [u64],
    bytes: Option<usize>,
) {
    taken.sort_unstable();
    let at =
        |part: usize| taken.get((taken.len() * part / 1_000).min(taken.len().saturating_sub(1)));
    let line = json!({
        "what": what, "round": round, "clients": clients,
        "commits_per_s": taken.len() as u64 / took.as_secs().max(1),
        "p50_us": at(500), "p99_us": at(990), "leader_bytes_per_commit": bytes,
    });
    println!("{line}");
}

/// One connection that is kept open.
trait Connection: Send + 'static {
    fn put(&mut self, key: &str, value: &str) -> impl Future<Output = Result<()>> + Send;
}

/// Puts of so many clients for so long; what each took, in microseconds.
async fn load<C, F>(clients: usize, time: Duration, connect: impl Fn() -> F) -> Result<Vec<u64>>
where
    C: Connection,
    F: Future<Output = Result<C>>,
{
    let mut connections = Vec::new();
    for _ in 0..clients {
        connections.push(connect().await?);
    }
    let end = Instant::now() + time;
    let tasks: Vec<_> = connections
        .into_iter()
        .enumerate()
        .map(|(n, mut connection)| {
            tokio::spawn(async move {
                let (key, value) = (format!("client-{n}"), "v".repeat(100));
                let mut taken = Vec::new();
                while Instant::now() < end {
                    let begun = Instant::now();
                    connection.put(&key, &value).await?;
                    taken.push(begun.elapsed().as_micros() as u64);
                }
                Ok::<_, Box<dyn std::error::Error + Send + Sync>>(taken)
            })
        })
        .collect();
    let mut all = Vec::new();
    for task in tasks {
        all.extend(task.await??);
    }
    Ok(all)
}

// Tenure

struct Process {
    _child: Child,
    pid: u32,
    address: String,
}

struct Ours(Vec<Process>);

#[derive(Clone)]
struct Leader {
    address: String,
    pid: u32,
}

impl Leader {
    /// Bytes that the process has sent through sockets that are still open.
    fn bytes_sent(&self) -> u64 {
        let out = std::process::Command::new("ss").args(["-tinpHO"]).output();
        let text = out.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).unwrap_or_default();
        let mine = format!("pid={},", self.pid);
        let sent = |line: &str| {
            line.split_whitespace()
                .find_map(|word| word.strip_prefix("bytes_sent:")?.parse::<u64>().ok())
        };
        text.lines().filter(|line| line.contains(&mine)).filter_map(sent).sum::<u64>()
    }
}

impl Ours {
    async fn start(folder: &Path) -> Result<Self> {
        let mut nodes: Vec<Process> = Vec::new();
        for n in 0..3 {
            let mut command = Command::new(std::env::current_exe()?);
            command.arg("node").arg(folder.join(n.to_string()));
            command.args(nodes.first().map(|seed| seed.address.clone()));
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
            std::fs::create_dir_all(folder.join(n.to_string()))?;
            let mut child = command.spawn()?;
            let out = child.stdout.take().ok_or("stdout is piped")?;
            let mut line = String::new();
            tokio::time::timeout(PATIENCE, BufReader::new(out).read_line(&mut line)).await??;
            let pid = child.id().ok_or("it runs")?;
            nodes.push(Process { _child: child, pid, address: line.trim().to_owned() });
        }
        let ours = Self(nodes);
        let until = Instant::now() + PATIENCE;
        while !ours.is_ready().await? {
            if Instant::now() > until {
                return Err("three voters did not come together in time".into());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(ours)
    }

    async fn namespace(address: &str) -> Result<Value> {
        let mut client = client(address).await?;
        let Answer::Status(text) = client.ask(Ask::Status, PATIENCE).await? else {
            return Err("an answer to another question".into());
        };
        Ok(serde_json::from_str::<Value>(&text)?["namespaces"][0].clone())
    }

    async fn is_ready(&self) -> Result<bool> {
        let mut ready = true;
        for node in &self.0 {
            let main = Self::namespace(&node.address).await?;
            ready &= main["voters"].as_array().is_some_and(|v| v.len() == 3);
            ready &= main["leader"].is_string();
        }
        Ok(ready)
    }

    async fn leader(&self) -> Result<Leader> {
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            for node in &self.0 {
                if Self::namespace(&node.address).await?["acting"] == json!(true) {
                    return Ok(Leader { address: node.address.clone(), pid: node.pid });
                }
            }
        }
        Err("no node acts".into())
    }

    fn connect(&self, leader: &Leader) -> impl Future<Output = Result<Client>> + use<> {
        let address = leader.address.clone();
        async move { client(&address).await }
    }
}

async fn client(address: &str) -> Result<Client> {
    Ok(Client::connect(address, Ed25519Keys::generate(), &Trust::default()).await?)
}

impl Connection for Client {
    async fn put(&mut self, key: &str, value: &str) -> Result<()> {
        let goal = KvGoal::Put { key: key.to_owned(), value: value.into() }.to_bytes();
        let ask = Ask::Submit { namespace: "main".to_owned(), tx: TxId::random(), goal };
        match self.ask(ask, PATIENCE).await? {
            Answer::Record(_) => Ok(()),
            other => Err(format!("unexpected answer {other:?}").into()),
        }
    }
}

// etcd

struct Etcd {
    addresses: Vec<String>,
    _children: Vec<Child>,
}

impl Etcd {
    async fn start(program: &Path, folder: &Path) -> Result<Self> {
        let port = |n: usize| -> Result<u16> {
            let _ = n;
            Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
        };
        let ports: Vec<(u16, u16)> =
            (0..3).map(|n| Ok((port(n)?, port(n)?))).collect::<Result<_>>()?;
        let cluster: Vec<_> = ports
            .iter()
            .enumerate()
            .map(|(n, (_, peer))| format!("n{n}=http://127.0.0.1:{peer}"))
            .collect();
        std::fs::create_dir_all(folder)?;
        let mut children = Vec::new();
        for (n, (client, peer)) in ports.iter().enumerate() {
            let client = format!("http://127.0.0.1:{client}");
            let peer = format!("http://127.0.0.1:{peer}");
            let child = Command::new(program)
                .args(["--name", &format!("n{n}"), "--initial-cluster", &cluster.join(",")])
                .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
                .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
                .args(["--data-dir", &folder.join(n.to_string()).to_string_lossy()])
                .args(["--initial-cluster-state", "new", "--log-level", "error"])
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .kill_on_drop(true)
                .spawn()?;
            children.push(child);
        }
        let addresses = ports.iter().map(|(client, _)| format!("127.0.0.1:{client}")).collect();
        Ok(Self { addresses, _children: children })
    }

    async fn leader(&self) -> Result<String> {
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            for address in &self.addresses {
                let Ok(mut gateway) = Gateway::connect(address.clone()).await else { continue };
                let Ok(status) = gateway.post("/v3/maintenance/status", "{}").await else {
                    continue;
                };
                let status: Value = serde_json::from_str(&status).unwrap_or_default();
                if status["leader"].is_string() && status["leader"] == status["header"]["member_id"]
                {
                    return Ok(address.clone());
                }
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Err("etcd has no leader".into())
    }
}

/// etcd's HTTP gateway over one connection.
struct Gateway {
    stream: BufReader<TcpStream>,
}

impl Gateway {
    async fn connect(address: String) -> Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream: BufReader::new(stream) })
    }

    async fn post(&mut self, path: &str, body: &str) -> Result<String> {
        let length = body.len();
        let request =
            format!("POST {path} HTTP/1.1\r\nHost: etcd\r\nContent-Length: {length}\r\n\r\n{body}");
        self.stream.get_mut().write_all(request.as_bytes()).await?;
        let mut line = String::new();
        self.stream.read_line(&mut line).await?;
        if !line.contains(" 200 ") {
            return Err(format!("etcd said {line}").into());
        }
        let mut length = 0;
        loop {
            line.clear();
            self.stream.read_line(&mut line).await?;
            let header = line.trim().to_ascii_lowercase();
            if header.is_empty() {
                break;
            }
            if let Some(value) = header.strip_prefix("content-length:") {
                length = value.trim().parse()?;
            }
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).await?;
        Ok(String::from_utf8(body)?)
    }
}

impl Connection for Gateway {
    async fn put(&mut self, key: &str, value: &str) -> Result<()> {
        let body = json!({ "key": base64(key), "value": base64(value) }).to_string();
        self.post("/v3/kv/put", &body).await.map(drop)
    }
}

fn base64(text: &str) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for chunk in text.as_bytes().chunks(3) {
        let word = chunk.iter().fold(0u32, |word, byte| word << 8 | u32::from(*byte));
        let word = word << (8 * (3 - chunk.len()));
        for place in 0..4 {
            let digit = DIGITS[(word >> (18 - 6 * place)) as usize & 63];
            out.push(if place <= chunk.len() { char::from(digit) } else { '=' });
        }
    }
    out
}
