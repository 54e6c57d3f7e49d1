//! An etcd server and two clients of its lock service, over its JSON gateway.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::net::TcpStream;
use tokio::process::{Child, ChildStdout, Command};

/// base64 of "bench".
const NAME: &str = "YmVuY2g=";

pub(super) struct Etcd {
    _server: Child,
    _data: tempfile::TempDir,
    /// The first one holds the lock, under this key.
    clients: (Client, Client),
    key: String,
    address: String,
    /// The `etcdctl lock` that holds another lock, once there was a round of them.
    holder: Option<Process>,
}

/// An `etcdctl lock`.
struct Process {
    child: Child,
    out: Lines<BufReader<ChildStdout>>,
}

/// One connection that is kept.
struct Client {
    stream: BufReader<TcpStream>,
    lease: String,
}

impl Etcd {
    pub(super) async fn start(program: &Path) -> anyhow::Result<Self> {
        let data = tempfile::tempdir()?;
        let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let peers = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let (client, peer) =
            (format!("http://127.0.0.1:{port}"), format!("http://127.0.0.1:{peers}"));
        let server = Command::new(program)
            .arg("--data-dir")
            .arg(data.path())
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("default={peer}"), "--logger", "zap"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        let until = Instant::now() + Duration::from_secs(20);
        let (mut first, second) = loop {
            let both = async { anyhow::Ok((Client::new(port).await?, Client::new(port).await?)) };
            match both.await {
                Ok(both) => break both,
                Err(error) if Instant::now() > until => return Err(error),
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        };
        let key = first.lock().await?;
        let clients = (first, second);
        Ok(Etcd { _server: server, _data: data, clients, key, address: client, holder: None })
    }

    /// A second `etcdctl lock` waits, and the first one is told to end.
    pub(super) async fn hand_over_of_programs(
        &mut self,
        program: &Path,
    ) -> anyhow::Result<Duration> {
        let holder = match self.holder.take() {
            Some(holder) => holder,
            None => {
                let mut first = Process::start(program, &self.address)?;
                first.locked().await?;
                first
            }
        };
        let mut waits = Process::start(program, &self.address)?;
        // It waits by then.
        tokio::time::sleep(Duration::from_millis(500)).await;
        let begun = Instant::now();
        super::terminate(&holder.child)?;
        waits.locked().await?;
        let took = begun.elapsed();
        self.holder = Some(waits);
        Ok(took)
    }

    /// The second client waits for the lock, and the first one gives it back.
    pub(super) async fn hand_over(&mut self) -> anyhow::Result<Duration> {
        let (holds, waits) = &mut self.clients;
        let key = json!({"key": self.key});
        let gives = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            let begun = Instant::now();
            holds.ask("/v3/lock/unlock", &key).await.map(|_| begun)
        };
        let takes = async { anyhow::Ok((waits.lock().await?, Instant::now())) };
        let (begun, taken) = tokio::join!(gives, takes);
        let (key, end) = taken?;
        self.key = key;
        std::mem::swap(&mut self.clients.0, &mut self.clients.1);
        Ok(end.saturating_duration_since(begun?))
    }
}

impl Process {
    fn start(program: &Path, address: &str) -> anyhow::Result<Self> {
        let mut child = Command::new(program)
            .args(["--endpoints", address, "lock", "programs"])
            .env("ETCDCTL_API", "3")
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot run {}", program.display()))?;
        let out = child.stdout.take().context("it is piped")?;
        Ok(Process { child, out: BufReader::new(out).lines() })
    }

    async fn locked(&mut self) -> anyhow::Result<()> {
        let key = tokio::time::timeout(super::PATIENCE, self.out.next_line()).await??;
        key.map(drop).context("etcdctl ended without the lock")
    }
}

impl Client {
    async fn new(port: u16) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.set_nodelay(true)?;
        let mut client = Client { stream: BufReader::new(stream), lease: String::new() };
        let lease = client.ask("/v3/lease/grant", &json!({"TTL": 600})).await?;
        client.lease = lease["ID"].as_str().context("no lease")?.to_owned();
        Ok(client)
    }

    async fn lock(&mut self) -> anyhow::Result<String> {
        let ask = json!({"name": NAME, "lease": self.lease});
        let answer = self.ask("/v3/lock/lock", &ask).await?;
        Ok(answer["key"].as_str().context("no key")?.to_owned())
    }

    async fn ask(&mut self, path: &str, body: &Value) -> anyhow::Result<Value> {
        let body = body.to_string();
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: etcd\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n",
            body.len()
        );
        self.stream.get_mut().write_all(format!("{head}{body}").as_bytes()).await?;
        let (mut length, mut line) = (None, String::new());
        loop {
            line.clear();
            if self.stream.read_line(&mut line).await? == 0 {
                bail!("etcd closed the connection");
            }
            match line.trim_end().to_ascii_lowercase().split_once(": ") {
                Some(("content-length", value)) => length = Some(value.parse::<usize>()?),
                Some(_) => {}
                None if line.trim_end().is_empty() => break,
                None => {}
            }
        }
        let mut body = vec![0; length.context("etcd did not say how long its answer is")?];
        self.stream.read_exact(&mut body).await?;
        let answer: Value = serde_json::from_slice(&body)?;
        match answer.get("error") {
            Some(error) => bail!("etcd said {error}"),
            None => Ok(answer),
        }
    }
}
