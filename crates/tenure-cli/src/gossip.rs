//! The commands, as a library: `tenure gossip …` is made of them.
//!
//! Exit codes: 0 done; 1 failed or refused; 2 wrong usage; 3 the goal was decided, as *rejected*.

mod node;

use std::{io::Write as _, path::PathBuf, process::ExitCode, time::Duration};

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use tenure_gossip::{
    Admission, Answer, Ask, Client, ClientError, Ed25519Keys, KvGoal, KvQuestion, MemberChange,
    Outcome, PeerId, Record, TlsFiles, TxId, decode_hex, is_address,
};

/// Exit code for a goal that was decided, but not reached.
pub(crate) const REJECTED: u8 = 3;

/// Groups of nodes without a database.
#[derive(Debug, Subcommand)]
pub(crate) enum GossipCommand {
    /// Run a node.
    Node(node::NodeArgs),
    /// Submit a goal to the key-value store, and wait for its record.
    Submit(SubmitArgs),
    /// Read the key-value store as one node has it.
    Get(GetArgs),
    /// Follow the history as it is made.
    Watch(WatchArgs),
    /// How a node stands.
    Status(StatusArgs),
    /// Print and verify the history.
    History(HistoryArgs),
    /// Add or remove a voter. Any node will do: the order goes to the leader.
    Voter(VoterArgs),
    /// Make the leader give leadership up. Any node will do.
    StepDown(NamespaceArgs),
}

/// Which node, and how to be let in.
#[derive(Debug, Clone, Args)]
pub(crate) struct NodeAddress {
    /// The node to talk to.
    #[arg(long, env = "TENURE_GOSSIP_NODE", default_value = "127.0.0.1:7400")]
    node: String,
    #[command(flatten)]
    access: Access,
}

/// Secrets and certificates.
#[derive(Debug, Clone, Args)]
pub(crate) struct Access {
    /// A file with the cluster's secret: any text, the same on all nodes.
    #[arg(long, env = "TENURE_GOSSIP_SECRET_FILE")]
    secret_file: Option<PathBuf>,
    /// The folder of an identity to appear as (default: one made up for the occasion).
    #[arg(long)]
    identity: Option<PathBuf>,
    /// This side's certificate (PEM), for mutual TLS.
    #[arg(long, requires_all = ["tls_key", "tls_ca"])]
    tls_cert: Option<PathBuf>,
    /// Its key (PEM).
    #[arg(long)]
    tls_key: Option<PathBuf>,
    /// The authority of all certificates (PEM).
    #[arg(long)]
    tls_ca: Option<PathBuf>,
}

impl Access {
    pub(crate) fn secret(&self) -> anyhow::Result<[u8; 32]> {
        let Some(path) = &self.secret_file else { return Ok([0; 32]) };
        let text =
            std::fs::read(path).with_context(|| format!("secret file {}", path.display()))?;
        let text = text.trim_ascii();
        if text.len() < 16 {
            bail!("secret file {}: at least 16 bytes, or it can be guessed", path.display());
        }
        Ok(blake3::derive_key("tenure gossip 2026 cluster secret", text))
    }

    pub(crate) fn tls(&self) -> Option<TlsFiles> {
        let (cert, key, ca) = (self.tls_cert.clone()?, self.tls_key.clone()?, self.tls_ca.clone()?);
        Some(TlsFiles { cert, key, ca })
    }

    fn keys(&self) -> anyhow::Result<Ed25519Keys> {
        let Some(folder) = &self.identity else { return Ok(Ed25519Keys::generate()) };
        let path = folder.join("identity");
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let secret = decode_hex(&text).with_context(|| format!("{}: not a key", path.display()))?;
        Ok(Ed25519Keys::from_secret(&secret))
    }
}

impl NodeAddress {
    async fn connect(&self) -> anyhow::Result<Client> {
        if !is_address(&self.node) {
            bail!("node: HOST:PORT, not {:?}", self.node);
        }
        let admission = Admission { secret: self.access.secret()?, allow: None };
        let tls = self.access.tls();
        Client::connect(&self.node, self.access.keys()?, &admission, tls.as_ref()).await.map_err(
            |e| match e {
                e @ ClientError::Unreachable { .. } => e.into(),
                e => anyhow::Error::new(e).context(format!("node {}", self.node)),
            },
        )
    }

    /// The same, for a node that may have been started a moment ago.
    async fn connect_patiently(&self) -> anyhow::Result<Client> {
        let until = tokio::time::Instant::now() + Duration::from_secs(3);
        loop {
            let result = self.connect().await;
            let refused = result.as_ref().is_err_and(|e| {
                matches!(e.downcast_ref(), Some(ClientError::Unreachable { why, .. })
                    if why.kind() == std::io::ErrorKind::ConnectionRefused)
            });
            if !refused || tokio::time::Instant::now() > until {
                return result;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    async fn status(&self) -> anyhow::Result<Value> {
        let answer = self.connect().await?.ask(Ask::Status, Duration::from_secs(10)).await?;
        let Answer::Status(text) = answer else { bail!("unexpected answer {answer:?}") };
        Ok(serde_json::from_str(&text)?)
    }
}

/// A node and a namespace.
#[derive(Debug, Args)]
pub(crate) struct NamespaceArgs {
    #[command(flatten)]
    at: NodeAddress,
    /// The namespace.
    #[arg(long, default_value = "main")]
    namespace: String,
}

/// What to submit.
#[derive(Debug, Args)]
pub(crate) struct SubmitArgs {
    #[command(flatten)]
    to: NamespaceArgs,
    /// The transaction's id, 32 hexadecimal digits: the same id commits once, however often it is submitted.
    #[arg(long)]
    tx: Option<String>,
    /// How long to wait for the record.
    #[arg(long, default_value = "30s", value_parser = humantime::parse_duration)]
    timeout: Duration,
    #[command(subcommand)]
    goal: GoalArgs,
}

#[derive(Debug, Subcommand)]
enum GoalArgs {
    /// Set a value (JSON, or text).
    Put { key: String, value: String },
    /// Remove a value.
    Delete { key: String },
    /// Add to an integer.
    Increment {
        key: String,
        #[arg(default_value_t = 1, allow_negative_numbers = true)]
        by: i64,
    },
    /// Set a value only if it is what is expected now.
    Cas {
        key: String,
        value: String,
        /// What it must be now (default: nothing).
        #[arg(long)]
        expect: Option<String>,
    },
    /// A goal as JSON, for example {"all": [{"increment": {"key": "a"}}]}.
    Json { goal: String },
}

impl GoalArgs {
    fn bytes(&self) -> Vec<u8> {
        let value = |text: &String| serde_json::from_str(text).unwrap_or_else(|_| json!(text));
        match self {
            Self::Put { key, value: v } => {
                KvGoal::Put { key: key.clone(), value: value(v) }.to_bytes()
            }
            Self::Delete { key } => KvGoal::Delete { key: key.clone() }.to_bytes(),
            Self::Increment { key, by } => {
                KvGoal::Increment { key: key.clone(), by: *by }.to_bytes()
            }
            Self::Cas { key, value: v, expect } => {
                let expect = expect.as_ref().map(value);
                KvGoal::Cas { key: key.clone(), expect, value: value(v) }.to_bytes()
            }
            Self::Json { goal } => goal.clone().into_bytes(),
        }
    }
}

/// What to read.
#[derive(Debug, Args)]
pub(crate) struct GetArgs {
    #[command(flatten)]
    at: NamespaceArgs,
    /// The key; all of them if none is given.
    key: Option<String>,
}

/// What to follow.
#[derive(Debug, Args)]
pub(crate) struct WatchArgs {
    #[command(flatten)]
    at: NamespaceArgs,
    /// Stop after so many records.
    #[arg(long)]
    count: Option<u64>,
}

/// Whose status.
#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    at: NodeAddress,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

/// Which part of the history.
#[derive(Debug, Args)]
pub(crate) struct HistoryArgs {
    #[command(flatten)]
    at: NamespaceArgs,
    /// The first record.
    #[arg(long, default_value_t = 1)]
    from: u64,
    /// The last one.
    #[arg(long)]
    upto: Option<u64>,
}

/// Which change.
#[derive(Debug, Args)]
pub(crate) struct VoterArgs {
    #[command(flatten)]
    at: NamespaceArgs,
    /// What to do.
    change: VoterChange,
    /// The node's whole id.
    id: String,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum VoterChange {
    /// Let it receive the log; it votes once it has caught up.
    Add,
    /// Let it go. It follows as an observer, and votes again only if it is added again.
    Remove,
}

/// Runs a command.
///
/// # Errors
/// What went wrong, for people to read.
pub(crate) async fn run(command: GossipCommand) -> anyhow::Result<ExitCode> {
    match command {
        GossipCommand::Node(args) => node::run(args).await,
        GossipCommand::Submit(args) => submit(args).await,
        GossipCommand::Get(args) => get(args).await,
        GossipCommand::Watch(args) => watch(args).await,
        GossipCommand::Status(args) => status(args).await,
        GossipCommand::History(args) => history(args).await,
        GossipCommand::Voter(args) => {
            let id = PeerId::from_hex(&args.id)
                .context("id: 64 hexadecimal digits, as `status` shows them")?;
            let change = match args.change {
                VoterChange::Add => MemberChange::Learn(id),
                VoterChange::Remove => MemberChange::Remove(id),
            };
            order(&args.at, Ask::Members { namespace: args.at.namespace.clone(), change }).await
        }
        GossipCommand::StepDown(at) => {
            order(&at, Ask::StepDown { namespace: at.namespace.clone() }).await
        }
    }
}

pub(crate) fn say(line: impl std::fmt::Display) -> anyhow::Result<()> {
    // A closed pipe ends the program like any other error.
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

/// Gives an order to the leader of the namespace, wherever it is.
async fn order(at: &NamespaceArgs, ask: Ask) -> anyhow::Result<ExitCode> {
    let status = at.at.status().await?;
    let spaces = status["namespaces"].as_array().into_iter().flatten();
    let space = spaces
        .clone()
        .find(|ns| ns["namespace"] == json!(at.namespace))
        .with_context(|| format!("node {} carries no namespace {:?}", at.at.node, at.namespace))?;
    let leader = space["leader_address"].as_str().with_context(|| {
        format!("node {} knows no leader at the moment; try again, or ask another node", at.at.node)
    })?;
    let at = NodeAddress { node: leader.to_owned(), ..at.at.clone() };
    match at.connect().await?.ask(ask, Duration::from_secs(30)).await? {
        Answer::Done => Ok(ExitCode::SUCCESS),
        other => bail!("unexpected answer {other:?}"),
    }
}

async fn submit(args: SubmitArgs) -> anyhow::Result<ExitCode> {
    let tx = match &args.tx {
        Some(text) => TxId::parse(text).context("tx: 32 hexadecimal digits")?,
        None => TxId::random(),
    };
    let mut client = args.to.at.connect_patiently().await?;
    let ask = Ask::Submit { namespace: args.to.namespace.clone(), tx, goal: args.goal.bytes() };
    let answer = match client.ask(ask, args.timeout).await {
        Err(e @ ClientError::Refused(_)) => return Err(e.into()),
        other => other.with_context(|| {
            format!("transaction {tx} may or may not be decided; submit it again with --tx {tx}")
        })?,
    };
    let Answer::Record(record) = answer else { bail!("unexpected answer {answer:?}") };
    say(record_json(&record))?;
    Ok(match record.outcome {
        Outcome::Done(_) => ExitCode::SUCCESS,
        Outcome::Rejected(_) => ExitCode::from(REJECTED),
    })
}

async fn get(args: GetArgs) -> anyhow::Result<ExitCode> {
    let mut client = args.at.at.connect().await?;
    if let Some(key) = args.key {
        let question = KvQuestion::Get(key.clone());
        let (index, value): (_, Option<(Value,)>) = read(&mut client, &args.at, question).await?;
        let (value,) = value.with_context(|| format!("no {key:?} at index {index}"))?;
        say(value)?;
        return Ok(ExitCode::SUCCESS);
    }
    // Page by page: each is of one index, all of them may be of several.
    let mut after = None;
    loop {
        let question = KvQuestion::After(after);
        let (_, page): (_, Vec<(String, Value)>) = read(&mut client, &args.at, question).await?;
        let Some((last, _)) = page.last() else { return Ok(ExitCode::SUCCESS) };
        after = Some(last.clone());
        for (key, value) in page {
            say(format_args!("{key}\t{value}"))?;
        }
    }
}

async fn read<T: serde::de::DeserializeOwned>(
    client: &mut Client,
    at: &NamespaceArgs,
    question: KvQuestion,
) -> anyhow::Result<(u64, T)> {
    let question = serde_json::to_vec(&question)?;
    let ask = Ask::Read { namespace: at.namespace.clone(), question };
    let answer = client.ask(ask, Duration::from_secs(10)).await?;
    let Answer::State { index, bytes } = answer else { bail!("unexpected answer {answer:?}") };
    Ok((index, serde_json::from_slice(&bytes)?))
}

async fn watch(args: WatchArgs) -> anyhow::Result<ExitCode> {
    let mut client = args.at.at.connect_patiently().await?;
    let ask = Ask::Watch { namespace: args.at.namespace.clone() };
    let forever = Duration::from_secs(86_400 * 365);
    let mut answer = client.ask(ask, forever).await?;
    let mut seen = 0;
    loop {
        let Answer::Record(record) = answer else { bail!("unexpected answer {answer:?}") };
        say(record_json(&record))?;
        seen += 1;
        if args.count.is_some_and(|n| seen >= n) {
            return Ok(ExitCode::SUCCESS);
        }
        answer = client.next(forever).await?;
    }
}

async fn status(args: StatusArgs) -> anyhow::Result<ExitCode> {
    let status = args.at.status().await?;
    if args.json {
        say(status)?;
        return Ok(ExitCode::SUCCESS);
    }
    let brief = |v: &Value| v.as_str().map_or("-".to_owned(), |s| s.chars().take(8).collect());
    let many = |v: &Value| {
        v.as_array().map_or(String::new(), |a| a.iter().map(brief).collect::<Vec<_>>().join(" "))
    };
    say(format_args!("node       {}", status["id"].as_str().unwrap_or_default()))?;
    say(format_args!("address    {}", status["address"].as_str().unwrap_or_default()))?;
    say(format_args!("connected  {}", many(&status["connected"])))?;
    for ns in status["namespaces"].as_array().into_iter().flatten() {
        say(format_args!("namespace  {}", ns["namespace"].as_str().unwrap_or_default()))?;
        let acting = if ns["acting"] == json!(true) { ", this node acts" } else { "" };
        say(format_args!("  leader   {} (term {}{acting})", brief(&ns["leader"]), ns["term"]))?;
        say(format_args!("  hint     {} for {} ms", brief(&ns["hint"]), ns["hint_ms"]))?;
        say(format_args!("  voters   {}", many(&ns["voters"])))?;
        for (what, list) in [("learners", &ns["learners"]), ("removed ", &ns["removed"])] {
            if list.as_array().is_some_and(|a| !a.is_empty()) {
                say(format_args!("  {what} {}", many(list)))?;
            }
        }
        say(format_args!("  index    {} {}", ns["index"], brief(&ns["head"])))?;
        say(format_args!("  pending  {}", ns["pending"]))?;
        if let Some(why) = ns["halted"].as_str() {
            say(format_args!("  HALTED   {why}"))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn history(args: HistoryArgs) -> anyhow::Result<ExitCode> {
    let mut client = args.at.at.connect().await?;
    let mut from = args.from;
    let last = args.upto.unwrap_or(u64::MAX);
    let mut head = None;
    while from <= last {
        let ask = Ask::History { namespace: args.at.namespace.clone(), from, upto: last };
        let answer = client.ask(ask, Duration::from_secs(10)).await?;
        let Answer::Records(records) = answer else { bail!("unexpected answer {answer:?}") };
        if records.is_empty() {
            break;
        }
        for record in &records {
            // The chain is checked here too: the node is not believed.
            if head.is_some_and(|h| h != record.prev) || record.index < from {
                bail!("the chain is broken at record {}", record.index);
            }
            head = Some(record.hash());
            from = record.index + 1;
            say(record_json(record))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A record for people and programs: one line of JSON.
pub(crate) fn record_json(record: &Record) -> Value {
    let text = |bytes: &[u8]| {
        serde_json::from_slice(bytes).unwrap_or_else(|_| json!(String::from_utf8_lossy(bytes)))
    };
    let (outcome, detail): (&str, Value) = match &record.outcome {
        Outcome::Done(diff) => ("done", text(diff)),
        Outcome::Rejected(why) => ("rejected", json!(why)),
    };
    json!({
        "index": record.index,
        "tx": record.tx.to_string(),
        "term": record.term,
        "leader": record.leader.to_string(),
        "goal": text(&record.goal),
        "outcome": outcome,
        "detail": detail,
        "hash": record.hash().to_hex(),
    })
}
