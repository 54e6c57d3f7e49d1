//! `tenure gossip`: groups of nodes without a database.
//!
//! `node` runs one node; every other command asks a node over its own port.

mod node;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use tenure_gossip::{
    Admission, Answer, Ask, Client, ClientError, Ed25519Keys, KvGoal, KvQuestion, MemberChange,
    Outcome, PeerId, Record, SessionError, TlsFiles, TxId, decode_hex, is_address,
};

use crate::args::period;
use crate::exit::{Exit, Failure, chain};
use crate::output::{self, out};

#[derive(Debug, Subcommand)]
pub(crate) enum GossipCommand {
    /// Run a node
    Node(node::NodeArgs),
    /// Submit a goal to the key-value store, and wait for its record
    Submit(SubmitArgs),
    /// Read the key-value store as one node has it
    Get(GetArgs),
    /// Follow the history as it is made
    Watch(WatchArgs),
    /// How a node stands
    Status(StatusArgs),
    /// Print and verify the history
    History(HistoryArgs),
    /// Add or remove a voter. Any node will do: the order goes to the leader
    Voter(VoterArgs),
    /// Make the leader give leadership up. Any node will do
    StepDown(NamespaceArgs),
}

/// Which node, and how to be let in.
#[derive(Debug, Clone, Args)]
pub(crate) struct NodeAddress {
    /// The node to talk to
    #[arg(long, env = "TENURE_GOSSIP_NODE", default_value = "127.0.0.1:7400")]
    node: String,
    #[command(flatten)]
    access: Access,
}

/// How long a node may take over an answer that it has at hand.
const ANSWER: Duration = Duration::from_secs(10);

/// Secrets and certificates.
#[derive(Debug, Clone, Args)]
pub(crate) struct Access {
    /// A file with the cluster's secret: any text, the same on all nodes
    #[arg(long, env = "TENURE_GOSSIP_SECRET_FILE")]
    secret_file: Option<PathBuf>,
    /// The folder of an identity to appear as (default: one made up for the occasion)
    #[arg(long)]
    identity: Option<PathBuf>,
    /// This side's certificate (PEM), for mutual TLS
    #[arg(long, requires_all = ["tls_key", "tls_ca"])]
    tls_cert: Option<PathBuf>,
    /// Its key (PEM)
    #[arg(long, requires_all = ["tls_cert", "tls_ca"])]
    tls_key: Option<PathBuf>,
    /// The authority of all certificates (PEM)
    #[arg(long, requires_all = ["tls_cert", "tls_key"])]
    tls_ca: Option<PathBuf>,
}

impl Access {
    pub(crate) fn secret(&self) -> Result<[u8; 32], Failure> {
        let Some(path) = &self.secret_file else { return Ok([0; 32]) };
        let place = path.display();
        let text = std::fs::read(path).map_err(|error| {
            Failure::usage(format!("secret file {place}: {error}; check --secret-file"))
        })?;
        let text = text.trim_ascii();
        if text.len() < 16 {
            let why = "at least 16 bytes, or it can be guessed";
            return Err(Failure::usage(format!("secret file {place}: {why}")));
        }
        Ok(blake3::derive_key("tenure gossip 2026 cluster secret", text))
    }

    pub(crate) fn tls(&self) -> Option<TlsFiles> {
        let (cert, key, ca) = (self.tls_cert.clone()?, self.tls_key.clone()?, self.tls_ca.clone()?);
        Some(TlsFiles { cert, key, ca })
    }

    fn keys(&self) -> Result<Ed25519Keys, Failure> {
        let Some(folder) = &self.identity else { return Ok(Ed25519Keys::generate()) };
        let path = folder.join("identity");
        let wrong =
            |why: &str| Failure::usage(format!("{}: {why}; name a node's folder", path.display()));
        let text = std::fs::read_to_string(&path).map_err(|error| wrong(&error.to_string()))?;
        let secret = decode_hex(&text).ok_or_else(|| wrong("not a key"))?;
        Ok(Ed25519Keys::from_secret(&secret))
    }
}

impl NodeAddress {
    /// Ready to connect: what was typed is right
    fn checked(&self) -> Result<(Ed25519Keys, Admission, Option<TlsFiles>), Failure> {
        if !is_address(&self.node) {
            return Err(Failure::usage(format!("node: HOST:PORT, not {:?}", self.node)));
        }
        let admission = Admission { secret: self.access.secret()?, allow: None };
        Ok((self.access.keys()?, admission, self.access.tls()))
    }

    async fn connect(&self) -> Result<Client, Failure> {
        let (keys, admission, tls) = self.checked()?;
        let client = Client::connect(&self.node, keys, &admission, tls.as_ref()).await;
        client.map_err(|error| self.failure(&error))
    }

    /// The same, for a node that may have been started a moment ago
    async fn connect_patiently(&self) -> Result<Client, Failure> {
        let until = tokio::time::Instant::now() + Duration::from_secs(3);
        loop {
            let (keys, admission, tls) = self.checked()?;
            match Client::connect(&self.node, keys, &admission, tls.as_ref()).await {
                Ok(client) => return Ok(client),
                Err(ClientError::Unreachable { why, .. })
                    if why.kind() == std::io::ErrorKind::ConnectionRefused
                        && tokio::time::Instant::now() < until =>
                {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                Err(error) => return Err(self.failure(&error)),
            }
        }
    }

    async fn status(&self) -> Result<Value, Failure> {
        let answer = self.connect().await?.ask(Ask::Status, ANSWER).await;
        match answer.map_err(|error| self.failure(&error))? {
            Answer::Status(text) => serde_json::from_str(&text)
                .map_err(|error| self.unexpected(&format!("a status, but {error}"))),
            other => Err(self.unexpected(&format!("{other:?}"))),
        }
    }

    /// What a client's error means for a script
    fn failure(&self, error: &ClientError) -> Failure {
        let node = &self.node;
        match error {
            ClientError::Unreachable { .. } => Failure::new(Exit::NoLeader, chain(error)),
            ClientError::Session(
                SessionError::Io(_) | SessionError::Timeout | SessionError::Closed,
            ) => Failure::new(
                Exit::NoLeader,
                format!("node {node}: {}; try again, or ask another node", chain(error)),
            ),
            ClientError::Refused(why) => Failure::new(Exit::Rejected, why.clone()),
            ClientError::Tls(_) => Failure::usage(format!("node {node}: {error}")),
            // `ClientError` may grow; whatever it says, the node did not answer the question.
            _ => Failure::failed(format!("node {node}: {}", chain(error))),
        }
    }

    fn unexpected(&self, answer: &str) -> Failure {
        let node = &self.node;
        let remedy = "use one version of tenure everywhere";
        Failure::failed(format!("node {node} gave an unexpected answer, {answer}; {remedy}"))
    }
}

/// A node and a namespace.
#[derive(Debug, Args)]
pub(crate) struct NamespaceArgs {
    #[command(flatten)]
    at: NodeAddress,
    /// The namespace
    #[arg(long, default_value = "main")]
    namespace: String,
}

/// What to submit.
#[derive(Debug, Args)]
pub(crate) struct SubmitArgs {
    #[command(flatten)]
    to: NamespaceArgs,
    /// The transaction's id, 32 hexadecimal digits: the same id commits once, however often it is submitted
    #[arg(long)]
    tx: Option<String>,
    /// How long to wait for the record
    #[arg(long, default_value = "30s", value_parser = period)]
    timeout: Duration,
    #[command(subcommand)]
    goal: GoalArgs,
}

#[derive(Debug, Subcommand)]
enum GoalArgs {
    /// Set a value (JSON, or text)
    Put { key: String, value: String },
    /// Remove a value
    Delete { key: String },
    /// Add to an integer
    Increment {
        key: String,
        #[arg(default_value_t = 1, allow_negative_numbers = true)]
        by: i64,
    },
    /// Set a value only if it is what is expected now
    Cas {
        key: String,
        value: String,
        /// What it must be now (default: nothing)
        #[arg(long)]
        expect: Option<String>,
    },
    /// A goal as JSON, for example {"all": [{"increment": {"key": "a"}}]}
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
    /// Stop after so many records
    #[arg(long)]
    count: Option<u64>,
}

/// Which node's status.
#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    at: NodeAddress,
    /// As JSON
    #[arg(long)]
    json: bool,
}

/// Which part of the history.
#[derive(Debug, Args)]
pub(crate) struct HistoryArgs {
    #[command(flatten)]
    at: NamespaceArgs,
    /// The first record
    #[arg(long, default_value_t = 1)]
    from: u64,
    /// The last one
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
    /// Let it receive the log; it votes once it has caught up
    Add,
    /// It follows as an observer, and votes again only if it is added again
    Remove,
}

pub(crate) async fn run(command: GossipCommand) -> Result<Exit, Failure> {
    match command {
        GossipCommand::Node(args) => node::run(args).await,
        GossipCommand::Submit(args) => submit(args).await,
        GossipCommand::Get(args) => get(args).await,
        GossipCommand::Watch(args) => watch(args).await,
        GossipCommand::Status(args) => status(args).await,
        GossipCommand::History(args) => history(args).await,
        GossipCommand::Voter(args) => {
            let id = PeerId::from_hex(&args.id).ok_or_else(|| {
                Failure::usage("id: 64 hexadecimal digits, as `gossip status` shows them")
            })?;
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

/// Gives an order to the leader of the namespace, wherever it is.
async fn order(at: &NamespaceArgs, ask: Ask) -> Result<Exit, Failure> {
    let space = at.space().await?;
    let leader = space["leader_address"].as_str().ok_or_else(|| {
        let node = &at.at.node;
        let why = format!("node {node} knows no leader at the moment; try again, or ask another");
        Failure::new(Exit::NoLeader, why)
    })?;
    let at = NodeAddress { node: leader.to_owned(), ..at.at.clone() };
    let answer = at.connect().await?.ask(ask, Duration::from_secs(30)).await;
    match answer.map_err(|error| at.failure(&error))? {
        Answer::Done => Ok(Exit::Clean),
        other => Err(at.unexpected(&format!("{other:?}"))),
    }
}

impl NamespaceArgs {
    /// The status of the namespace on the node that was asked
    async fn space(&self) -> Result<Value, Failure> {
        let status = self.at.status().await?;
        let mut spaces = status["namespaces"].as_array().into_iter().flatten();
        let found = spaces.find(|space| space["namespace"] == json!(self.namespace));
        found.cloned().ok_or_else(|| {
            let (node, name) = (&self.at.node, &self.namespace);
            let message = format!("node {node} carries no namespace {name:?}; see `gossip status`");
            Failure::new(Exit::NotFound, message)
        })
    }

    /// What a client's error means, where the namespace may not be there at all
    async fn failure(&self, error: ClientError) -> Failure {
        if let ClientError::Refused(_) = error
            && let Err(failure) = self.space().await
            && failure.exit == Exit::NotFound
        {
            return failure;
        }
        self.at.failure(&error)
    }

    async fn ask(&self, client: &mut Client, ask: Ask, wait: Duration) -> Result<Answer, Failure> {
        match client.ask(ask, wait).await {
            Ok(answer) => Ok(answer),
            Err(error) => Err(self.failure(error).await),
        }
    }

    fn unexpected(&self, answer: &Answer) -> Failure {
        self.at.unexpected(&format!("{answer:?}"))
    }
}

async fn submit(args: SubmitArgs) -> Result<Exit, Failure> {
    let tx = match &args.tx {
        Some(text) => TxId::parse(text)
            .ok_or_else(|| Failure::usage(format!("tx: 32 hexadecimal digits, not {text:?}")))?,
        None => TxId::random(),
    };
    let mut client = args.to.at.connect_patiently().await?;
    let ask = Ask::Submit { namespace: args.to.namespace.clone(), tx, goal: args.goal.bytes() };
    let answer = match client.ask(ask, args.timeout).await {
        Ok(answer) => answer,
        Err(error @ ClientError::Refused(_)) => return Err(args.to.failure(error).await),
        Err(error) => {
            let Failure { exit, .. } = args.to.at.failure(&error);
            let remedy = format!("submit it again with --tx {tx}");
            let why = chain(&error);
            return Err(Failure::new(
                exit,
                format!("transaction {tx} may or may not be decided ({why}); {remedy}"),
            ));
        }
    };
    let Answer::Record(record) = answer else { return Err(args.to.unexpected(&answer)) };
    out!("{}", object(&record));
    Ok(match record.outcome {
        Outcome::Done(_) => Exit::Clean,
        Outcome::Rejected(_) => Exit::Rejected,
    })
}

async fn get(args: GetArgs) -> Result<Exit, Failure> {
    let mut client = args.at.at.connect().await?;
    if let Some(key) = args.key {
        let question = KvQuestion::Get(key.clone());
        let (index, value): (_, Option<(Value,)>) = read(&mut client, &args.at, question).await?;
        let (value,) = value.ok_or_else(|| {
            let message = format!("no {key:?} at index {index}; `gossip get` lists all");
            Failure::new(Exit::NotFound, message)
        })?;
        out!("{value}");
        return Ok(Exit::Clean);
    }
    // Page by page: each is of one index, all of them may be of several.
    let mut after = None;
    loop {
        let question = KvQuestion::After(after);
        let (_, page): (_, Vec<(String, Value)>) = read(&mut client, &args.at, question).await?;
        let Some((last, _)) = page.last() else { return Ok(Exit::Clean) };
        after = Some(last.clone());
        for (key, value) in page {
            out!("{key}\t{value}");
        }
    }
}

async fn read<T: serde::de::DeserializeOwned>(
    client: &mut Client,
    at: &NamespaceArgs,
    question: KvQuestion,
) -> Result<(u64, T), Failure> {
    let question = serde_json::to_vec(&question).expect("a question has text for keys");
    let ask = Ask::Read { namespace: at.namespace.clone(), question };
    let answer = at.ask(client, ask, ANSWER).await?;
    let Answer::State { index, bytes } = &answer else { return Err(at.unexpected(&answer)) };
    let value = serde_json::from_slice(bytes).map_err(|_| at.unexpected(&answer))?;
    Ok((*index, value))
}

async fn watch(args: WatchArgs) -> Result<Exit, Failure> {
    let mut client = args.at.at.connect_patiently().await?;
    let ask = Ask::Watch { namespace: args.at.namespace.clone() };
    let forever = Duration::from_secs(86_400 * 365);
    let mut answer = args.at.ask(&mut client, ask, forever).await?;
    let mut seen = 0;
    loop {
        let Answer::Record(record) = answer else { return Err(args.at.unexpected(&answer)) };
        out!("{}", object(&record));
        seen += 1;
        if args.count.is_some_and(|count| seen >= count) || output::is_closed() {
            return Ok(Exit::Clean);
        }
        answer = client.next(forever).await.map_err(|error| args.at.at.failure(&error))?;
    }
}

async fn status(args: StatusArgs) -> Result<Exit, Failure> {
    let status = args.at.status().await?;
    if args.json {
        out!("{status}");
        return Ok(Exit::Clean);
    }
    let brief = |v: &Value| v.as_str().map_or("-".to_owned(), |s| s.chars().take(8).collect());
    let many = |v: &Value| {
        v.as_array().map_or(String::new(), |a| a.iter().map(brief).collect::<Vec<_>>().join(" "))
    };
    out!("node       {}", status["id"].as_str().unwrap_or_default());
    out!("address    {}", status["address"].as_str().unwrap_or_default());
    out!("connected  {}", many(&status["connected"]));
    for ns in status["namespaces"].as_array().into_iter().flatten() {
        out!("namespace  {}", ns["namespace"].as_str().unwrap_or_default());
        let acting = if ns["acting"] == json!(true) { ", this node acts" } else { "" };
        out!("  leader   {} (term {}{acting})", brief(&ns["leader"]), ns["term"]);
        out!("  hint     {} for {} ms", brief(&ns["hint"]), ns["hint_ms"]);
        out!("  voters   {}", many(&ns["voters"]));
        for (what, list) in [("learners", &ns["learners"]), ("removed ", &ns["removed"])] {
            if list.as_array().is_some_and(|a| !a.is_empty()) {
                out!("  {what} {}", many(list));
            }
        }
        out!("  index    {} {}", ns["index"], brief(&ns["head"]));
        out!("  pending  {}", ns["pending"]);
        if let Some(why) = ns["halted"].as_str() {
            out!("  HALTED   {why}");
        }
    }
    Ok(Exit::Clean)
}

async fn history(args: HistoryArgs) -> Result<Exit, Failure> {
    let mut client = args.at.at.connect().await?;
    let mut from = args.from;
    let last = args.upto.unwrap_or(u64::MAX);
    let mut head = None;
    while from <= last {
        let ask = Ask::History { namespace: args.at.namespace.clone(), from, upto: last };
        let answer = args.at.ask(&mut client, ask, ANSWER).await?;
        let Answer::Records(records) = answer else { return Err(args.at.unexpected(&answer)) };
        if records.is_empty() {
            break;
        }
        for record in &records {
            // The chain is checked here too: the node is not believed.
            if head.is_some_and(|hash| hash != record.prev) || record.index < from {
                return Err(Failure::failed(format!(
                    "the chain is broken at record {}; compare with another node",
                    record.index
                )));
            }
            head = Some(record.hash());
            from = record.index + 1;
            out!("{}", object(record));
        }
        if output::is_closed() {
            break;
        }
    }
    Ok(Exit::Clean)
}

/// A record for people and programs: one line of JSON.
fn object(record: &Record) -> Value {
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
