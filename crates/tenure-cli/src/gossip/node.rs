//! `tenure gossip node`: a node in the foreground.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use tenure_gossip::{Host, HostConfig, HostError, Kv, NamespaceStatus, Start, Status, TieBreak};
use tokio::sync::{mpsc, oneshot};

use super::Access;
use super::credentials::read_invitation;
use crate::args::period;
use crate::exit::{Exit, Failure, chain};
use crate::listener::{self, Health, Listener};
use crate::output::out;
use crate::signals::Signals;

#[derive(Debug, Args)]
pub(crate) struct NodeArgs {
    /// The folder of its identity and its store
    #[arg(long, default_value = "tenure-gossip")]
    data: PathBuf,
    /// Where it listens
    #[arg(long, default_value = "127.0.0.1:7400", value_parser = listener::address)]
    listen: SocketAddr,
    /// Where others reach it (default: where it listens)
    #[arg(long)]
    advertise: Option<String>,
    /// Found a new cluster: once, on one node. Of no effect on a node that has state
    #[arg(long, conflicts_with_all = ["join", "invitation"])]
    bootstrap: bool,
    /// Join the cluster of the node at this address. May be repeated
    #[arg(long)]
    join: Vec<String>,
    /// A namespace to carry. May be repeated
    #[arg(long = "namespace", default_value = "main")]
    namespaces: Vec<String>,
    /// Never become a voter
    #[arg(long)]
    observer: bool,
    /// A file with the invitation that lets this node in, as `gossip invite node` made it; - for standard input
    #[arg(long, value_name = "FILE", requires = "join")]
    invitation: Option<PathBuf>,
    /// Found or carry a cluster that is open to every program that reaches it (default: on loopback alone)
    #[arg(long)]
    open: bool,
    /// Found a cluster that asks for credentials, also on loopback
    #[arg(long, conflicts_with = "open")]
    closed: bool,
    /// Serve /metrics and /health here: an address, or a port of this machine alone
    #[arg(long, value_name = "ADDR", value_parser = listener::address)]
    metrics: Option<SocketAddr>,
    /// How ties between leaders are broken
    #[arg(long, value_enum, default_value = "ranked")]
    tie: Tie,
    /// Keep an established leader that is seen at least this long; 0s: off
    #[arg(long, default_value = "3s", value_parser = period)]
    sticky: Duration,
    /// By how many of three votes a challenger must beat an established leader
    #[arg(long, default_value_t = 0)]
    hysteresis: u32,
    /// The length of a round
    #[arg(long, default_value = "300ms", value_parser = period)]
    round: Duration,
    /// How long a goal may go unanswered before history is asked for
    #[arg(long, default_value = "10s", value_parser = period)]
    goal_timeout: Duration,
    /// How long a leader may act on what a majority has acknowledged
    #[arg(long, default_value = "1s", value_parser = period)]
    lease: Duration,
    /// Records between two snapshots
    #[arg(long, default_value_t = 8_192)]
    snapshot_every: u64,
    /// Records to keep behind the latest snapshot (default: all of them)
    #[arg(long, value_name = "RECORDS")]
    keep_history: Option<u64>,
    #[command(flatten)]
    access: Access,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Tie {
    Ranked,
    Random,
}

impl NodeArgs {
    fn config(&self) -> Result<HostConfig, Failure> {
        let start = match (self.bootstrap, self.join.is_empty()) {
            (true, _) => Start::Bootstrap,
            (false, false) => Start::Join(self.join.clone()),
            (false, true) => Start::Resume,
        };
        let mut config = HostConfig::new(&self.data, self.listen, start);
        config.advertise = self.advertise.clone();
        config.namespaces = self.namespaces.clone();
        config.open = self.open || (config.open && !self.closed);
        config.invitation = self.invitation.as_deref().map(read_invitation).transpose()?;
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
        config.engine.keep_history = self.keep_history;
        config.engine.wants_vote = !self.observer;
        Ok(config)
    }
}

impl From<HostError> for Failure {
    fn from(error: HostError) -> Self {
        match &error {
            HostError::Config(_)
            | HostError::Tls(_)
            | HostError::NoState
            | HostError::Unfinished(_)
            | HostError::Identity(_)
            | HostError::Uninvited(_)
            | HostError::OpenCluster(_)
            | HostError::OtherCluster(_)
            | HostError::NotFounder(_) => Failure::usage(error.to_string()),
            // `HostError` may grow; whatever it says, the node does not run.
            _ => Failure::failed(chain(&error)),
        }
    }
}

pub(super) async fn run(args: NodeArgs) -> Result<Exit, Failure> {
    let mut signals = Signals::listen()?;
    let listener = match args.metrics {
        Some(address) => Some(Listener::bind(address).await?),
        None => None,
    };
    let config = args.config()?;
    let mut host = Host::<Kv>::start(config).await?;
    out!("ready {} {}", host.address(), host.id().to_hex());
    // The listener asks here, because the node is watched through `&mut`.
    let (asker, mut asked) = mpsc::channel::<oneshot::Sender<Health>>(1);
    if let Some(listener) = listener {
        listener.serve(move || ask(asker.clone()));
    }
    loop {
        // All are cancel-safe: nothing is taken from where it would be missed.
        tokio::select! {
            () = signals.next() => break,
            Some(reply) = asked.recv() => {
                let _ = reply.send(health(host.status().await));
            }
            failed = host.failed() => {
                failed?;
                return Ok(Exit::Failed);
            }
        }
    }
    host.stop().await?;
    Ok(Exit::Clean)
}

async fn ask(asker: mpsc::Sender<oneshot::Sender<Health>>) -> Health {
    let (reply, answer) = oneshot::channel();
    let _ = asker.send(reply).await;
    answer.await.unwrap_or_else(|_| health(Err(HostError::Stopped)))
}

/// A node that has halted, that hears no member, or that knows no leader, is not well.
fn health(status: Result<Status, HostError>) -> Health {
    match status {
        Ok(status) => {
            let well = |space: &NamespaceStatus| {
                space.halted.is_none() && !space.stranded && space.leader.is_some()
            };
            let healthy = status.namespaces.iter().all(well);
            Health { healthy, details: json!(status) }
        }
        Err(error) => Health { healthy: false, details: json!({"error": error.to_string()}) },
    }
}
