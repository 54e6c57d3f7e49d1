//! `node`: a node in the foreground.

use std::{net::SocketAddr, path::PathBuf, process::ExitCode, time::Duration};

use anyhow::Context as _;
use clap::Args;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    signal::unix::{SignalKind, signal},
};

use super::{Access, say};
use tenure_gossip::{Admission, Host, HostConfig, Kv, PeerId, Start, TieBreak};

/// How to run a node.
#[derive(Debug, Args)]
pub(crate) struct NodeArgs {
    /// The folder of its identity and its store.
    #[arg(long, default_value = "tenure-gossip")]
    data: PathBuf,
    /// Where it listens.
    #[arg(long, default_value = "127.0.0.1:7400")]
    listen: SocketAddr,
    /// Where others reach it (default: where it listens).
    #[arg(long)]
    advertise: Option<String>,
    /// Found a new cluster: once, on one node. Of no effect on a node that has state.
    #[arg(long, conflicts_with = "join")]
    bootstrap: bool,
    /// Join the cluster of the node at this address. May be repeated.
    #[arg(long)]
    join: Vec<String>,
    /// A namespace to carry. May be repeated.
    #[arg(long = "namespace", default_value = "main")]
    namespaces: Vec<String>,
    /// Never become a voter.
    #[arg(long)]
    observer: bool,
    /// Only these nodes (whole ids) may connect. May be repeated.
    #[arg(long)]
    allow: Vec<String>,
    /// Serve metrics for Prometheus at this address.
    #[arg(long)]
    metrics: Option<SocketAddr>,
    /// How ties between leaders are broken.
    #[arg(long, value_enum, default_value = "ranked")]
    tie: Tie,
    /// Keep an established leader that is seen at least this long; 0s: off.
    #[arg(long, default_value = "3s", value_parser = humantime::parse_duration)]
    sticky: Duration,
    /// By how many of three votes a challenger must beat an established leader.
    #[arg(long, default_value_t = 0)]
    hysteresis: u32,
    /// The length of a round.
    #[arg(long, default_value = "300ms", value_parser = humantime::parse_duration)]
    round: Duration,
    /// How long a goal may go unanswered before history is asked for.
    #[arg(long, default_value = "10s", value_parser = humantime::parse_duration)]
    goal_timeout: Duration,
    /// How long a leader may act on what a majority has acknowledged.
    #[arg(long, default_value = "1s", value_parser = humantime::parse_duration)]
    lease: Duration,
    /// Records between two snapshots.
    #[arg(long, default_value_t = 8_192)]
    snapshot_every: u64,
    #[command(flatten)]
    access: Access,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Tie {
    Ranked,
    Random,
}

impl NodeArgs {
    fn config(&self) -> anyhow::Result<HostConfig> {
        let start = match (self.bootstrap, self.join.is_empty()) {
            (true, _) => Start::Bootstrap,
            (false, false) => Start::Join(self.join.clone()),
            (false, true) => Start::Resume,
        };
        let mut config = HostConfig::new(&self.data, self.listen, start);
        config.advertise = self.advertise.clone();
        config.namespaces = self.namespaces.clone();
        let allow: Option<Vec<_>> = self.allow.iter().map(|id| PeerId::from_hex(id)).collect();
        let allow = allow.context("allow: 64 hexadecimal digits, as `status` shows them")?;
        config.admission = Admission {
            secret: self.access.secret()?,
            allow: (!allow.is_empty()).then(|| allow.into_iter().collect()),
        };
        config.tls = self.access.tls();
        let phase = self.round / 3;
        let election = &mut config.engine.election;
        election.delta_e = phase;
        election.delta_d = phase * 2;
        election.delta_r = self.round;
        election.tie = match self.tie {
            Tie::Ranked => TieBreak::Ranked,
            Tie::Random => TieBreak::Random,
        };
        election.sticky = (!self.sticky.is_zero()).then_some(self.sticky);
        election.hysteresis = self.hysteresis;
        config.engine.goal_timeout = self.goal_timeout;
        config.engine.commit.lease = self.lease;
        config.engine.commit.heartbeat = self.lease / 4;
        config.engine.commit.margin = self.lease / 5;
        config.engine.snapshot_every = self.snapshot_every;
        config.engine.wants_vote = !self.observer;
        Ok(config)
    }
}

pub(super) async fn run(args: NodeArgs) -> anyhow::Result<ExitCode> {
    if let Some(address) = args.metrics {
        let recorder = metrics_exporter_prometheus::PrometheusBuilder::new()
            .install_recorder()
            .context("metrics")?;
        let listener =
            TcpListener::bind(address).await.with_context(|| format!("metrics on {address}"))?;
        tokio::spawn(serve_metrics(listener, recorder));
    }
    let config = args.config()?;
    if config.admission.is_open() && !config.listen.ip().is_loopback() {
        tracing::warn!(
            "no --secret-file and no --allow: whoever reaches {} can join this cluster",
            config.listen
        );
    }
    let mut host = Host::<Kv>::start(config).await?;
    say(format_args!("ready {} {}", host.address(), host.id().to_hex()))?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    // All three are cancel-safe: nothing is taken from where it would be missed.
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        failed = host.failed() => {
            failed?;
            return Ok(ExitCode::FAILURE);
        }
    }
    host.stop().await?;
    Ok(ExitCode::SUCCESS)
}

/// The least of HTTP that Prometheus needs: one path, one answer, one connection at a time each.
async fn serve_metrics(
    listener: TcpListener,
    recorder: metrics_exporter_prometheus::PrometheusHandle,
) {
    loop {
        let Ok((mut stream, _)) = listener.accept().await else {
            // Out of file descriptors, most likely: others must close first.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let recorder = recorder.clone();
        tokio::spawn(async move {
            let answer = async {
                let mut request = [0; 1_024];
                let _ = stream.read(&mut request).await?;
                let body = recorder.render();
                let head = format!(
                    "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                    body.len()
                );
                stream.write_all(head.as_bytes()).await?;
                stream.write_all(body.as_bytes()).await?;
                stream.shutdown().await
            };
            // A scraper that hangs up early loses its scrape and nothing else.
            let _ = tokio::time::timeout(Duration::from_secs(5), answer).await;
        });
    }
}
