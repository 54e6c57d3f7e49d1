//! `tenure gossip`: groups of nodes without a database.
//!
//! `node` runs one node; every other command asks a node over its own port.

mod credentials;
mod members;
mod node;
mod recovery;
mod status;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use tenure_gossip::{
    Answer, Ask, Client, ClientError, Ed25519Keys, IdentityError, IdentityFolder, KvGoal,
    KvQuestion, Outcome, PeerId, Record, SessionError, TlsFiles, Trust, TxId, is_address,
    typed_value,
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
    Status(status::StatusArgs),
    /// Print and verify the history
    History(HistoryArgs),
    /// Add or remove a voter. Any node will do: the order goes to the leader
    Voter(members::VoterArgs),
    /// Put a new node in the place of a voter, dead or alive. Any node will do
    Replace(members::ReplaceArgs),
    /// Make the leader give leadership up. Any node will do
    StepDown(NamespaceArgs),
    /// Found a namespace while the nodes run. Any node will do
    Found(members::FoundArgs),
    /// Write the whole state of a running node into a file
    Backup(recovery::BackupArgs),
    /// Make a new cluster of a backup, in a folder of its own
    Restore(recovery::RestoreArgs),
    /// Make a new cluster of the folder of a survivor, when a majority of the voters is lost for good. Offline
    ForceRecover(recovery::RecoverArgs),
    /// Make an invitation for one new node, operator or client, and print it
    Invite(credentials::InviteArgs),
    /// Accept an invitation as an operator or a client, and keep the identity
    Accept(credentials::AcceptArgs),
    /// Give a key a right, or another one than it has
    Grant(credentials::GrantArgs),
    /// Take every right from a key; its connections end
    Revoke(credentials::RevokeArgs),
    /// Make an open cluster ask for credentials
    Close(credentials::CloseArgs),
    /// What each key may do
    Credentials(credentials::ListArgs),
}

/// Which node, and how to be let in.
#[derive(Debug, Clone, Args)]
pub(crate) struct NodeAddress {
    /// The node to talk to
    #[arg(long, env = "TENURE_GOSSIP_NODE", default_value = "127.0.0.1:7400")]
    node: String,
    #[command(flatten)]
    access: Access,
    /// The folder of an identity to appear as: one that accepted an invitation, or a node's own (default: one
    /// made up for the occasion, which only an open cluster listens to)
    #[arg(long, env = "TENURE_GOSSIP_IDENTITY")]
    identity: Option<PathBuf>,
}

/// How long a node may take over an answer that it has at hand.
const ANSWER: Duration = Duration::from_secs(10);
/// How long a node that was started a moment ago may need until it lets its own operator in
const STARTING: Duration = Duration::from_secs(3);

/// Certificates of an authority, where the cluster uses them.
#[derive(Debug, Clone, Args)]
pub(crate) struct Access {
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
    pub(crate) fn tls(&self) -> Option<TlsFiles> {
        let (cert, key, ca) = (self.tls_cert.clone()?, self.tls_key.clone()?, self.tls_ca.clone()?);
        Some(TlsFiles { cert, key, ca })
    }
}

impl From<IdentityError> for Failure {
    fn from(error: IdentityError) -> Self {
        Failure::usage(error.to_string())
    }
}

impl NodeAddress {
    /// Ready to connect: what was typed is right
    fn checked(&self) -> Result<(Ed25519Keys, Trust), Failure> {
        if !is_address(&self.node) {
            return Err(Failure::usage(format!("node: HOST:PORT, not {:?}", self.node)));
        }
        let mut trust = Trust::default();
        trust.tls = self.access.tls();
        let Some(folder) = &self.identity else { return Ok((Ed25519Keys::generate(), trust)) };
        let folder = IdentityFolder::new(folder);
        trust.nodes = folder.nodes()?;
        Ok((folder.keys()?, trust))
    }

    async fn connect(&self) -> Result<Client, Failure> {
        self.connect_while(|_| false).await
    }

    /// The same, for a node that may have been started a moment ago
    async fn connect_patiently(&self) -> Result<Client, Failure> {
        self.connect_while(|error| {
            matches!(error, ClientError::Unreachable { why, .. }
                if why.kind() == std::io::ErrorKind::ConnectionRefused)
        })
        .await
    }

    /// Connects, for a while again and again as long as `may_pass` says so of what went wrong, or the identity is
    /// the node's own and its folder did not say yet which nodes there are: a founder writes that down as soon as
    /// its rights are in force.
    async fn connect_while(
        &self,
        may_pass: impl Fn(&ClientError) -> bool,
    ) -> Result<Client, Failure> {
        let until = tokio::time::Instant::now() + STARTING;
        loop {
            // Judged is what was read before the attempt: the founder may write at any moment.
            let (keys, trust) = self.checked()?;
            let (own, nodes) = (keys.public(), &trust.nodes);
            let error = match Client::connect(&self.node, keys, &trust).await {
                Ok(client) => return Ok(self.learn(client, nodes.as_ref()).await),
                Err(error) => error,
            };
            let is_founding = nodes.is_none()
                && matches!(&error, ClientError::Session(SessionError::UnknownNode(node)) if *node == own);
            if !(is_founding || may_pass(&error)) || tokio::time::Instant::now() >= until {
                return Err(self.failure(&error));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// A node that is believed says which nodes there are now: others may be gone tomorrow.
    async fn learn(&self, mut client: Client, known: Option<&BTreeSet<PeerId>>) -> Client {
        if let (Some(known), Some(folder)) = (known, &self.identity)
            && let Ok(Answer::Nodes(nodes)) = client.ask(Ask::Nodes, ANSWER).await
        {
            let nodes: BTreeSet<_> = nodes.into_iter().collect();
            if nodes != *known && !nodes.is_empty() {
                // A folder that cannot be written still lets the present nodes be asked.
                let _ = IdentityFolder::new(folder).believe(&nodes);
            }
        }
        client
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
            ClientError::Unreachable { .. } => Failure::new(
                Exit::NoLeader,
                format!("{} Else name another node by --node", chain(error)),
            ),
            ClientError::Session(
                SessionError::Io(_) | SessionError::Timeout | SessionError::Closed,
            ) => Failure::new(
                Exit::NoLeader,
                format!("node {node}: {}; try again, or ask another node", chain(error)),
            ),
            ClientError::Refused(why) => Failure::new(Exit::Rejected, why.clone()),
            ClientError::Session(SessionError::UnknownNode(_)) if self.identity.is_none() => {
                let remedy =
                    "name your identity by --identity FOLDER; `tenure gossip accept` makes one";
                Failure::usage(format!("node {node} asks for credentials; {remedy}"))
            }
            ClientError::Session(SessionError::UnknownNode(key)) => {
                let remedy = "if it joined since, ask a node that you asked before: \
                              `tenure gossip status --node` of that one brings the keys of all nodes";
                Failure::failed(format!(
                    "node {node} has the key {key}, which your identity does not know; {remedy}"
                ))
            }
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
    Put {
        /// Its name
        key: String,
        /// JSON, or text
        value: String,
    },
    /// Remove a value
    Delete {
        /// Its name
        key: String,
    },
    /// Add to an integer
    Increment {
        /// Its name
        key: String,
        /// How much; negative subtracts
        #[arg(default_value_t = 1, allow_negative_numbers = true, value_parser = whole)]
        by: i64,
    },
    /// Set a value only if it is what is expected now
    Cas {
        /// Its name
        key: String,
        /// JSON, or text
        value: String,
        /// What it must be now [default: the key must be absent]
        #[arg(long)]
        expect: Option<String>,
    },
    /// A goal as JSON, for example {"all": [{"increment": {"key": "a"}}]}
    Json { goal: String },
}

fn whole(text: &str) -> Result<i64, &'static str> {
    text.parse().map_err(|_| "write a whole number of at most 63 bits")
}

impl GoalArgs {
    fn bytes(&self) -> Result<Vec<u8>, Failure> {
        let value = |text: &String| {
            typed_value(text).map_err(|why| Failure::usage(format!("value: {why}")))
        };
        Ok(match self {
            Self::Put { key, value: v } => {
                KvGoal::Put { key: key.clone(), value: value(v)? }.to_bytes()
            }
            Self::Delete { key } => KvGoal::Delete { key: key.clone() }.to_bytes(),
            Self::Increment { key, by } => {
                KvGoal::Increment { key: key.clone(), by: *by }.to_bytes()
            }
            Self::Cas { key, value: v, expect } => {
                let expect = expect.as_ref().map(value).transpose()?;
                KvGoal::Cas { key: key.clone(), expect, value: value(v)? }.to_bytes()
            }
            Self::Json { goal } => goal.clone().into_bytes(),
        })
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
    /// Begin with this record of the past (default: the next one)
    #[arg(long, value_name = "INDEX")]
    from: Option<u64>,
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

pub(crate) async fn run(command: GossipCommand) -> Result<Exit, Failure> {
    match command {
        GossipCommand::Node(args) => node::run(args).await,
        GossipCommand::Submit(args) => submit(args).await,
        GossipCommand::Get(args) => get(args).await,
        GossipCommand::Watch(args) => watch(args).await,
        GossipCommand::Status(args) => status::run(args).await,
        GossipCommand::History(args) => history(args).await,
        GossipCommand::Backup(args) => recovery::backup(args).await,
        GossipCommand::Restore(args) => recovery::restore(&args),
        GossipCommand::ForceRecover(args) => recovery::force_recover(&args),
        GossipCommand::Invite(args) => credentials::invite(args).await,
        GossipCommand::Accept(args) => credentials::accept(args).await,
        GossipCommand::Grant(args) => credentials::grant(args).await,
        GossipCommand::Revoke(args) => credentials::revoke(args).await,
        GossipCommand::Close(args) => credentials::close(args).await,
        GossipCommand::Credentials(args) => credentials::list(args).await,
        GossipCommand::Voter(args) => members::voter(args).await,
        GossipCommand::Replace(args) => members::replace(args).await,
        GossipCommand::Found(args) => members::found(args).await,
        GossipCommand::StepDown(at) => members::step_down(at).await,
    }
}

/// The key that `text` begins, if it is one of `known` alone; a whole key need not be known.
fn resolve(text: &str, known: impl IntoIterator<Item = PeerId>) -> Result<PeerId, Failure> {
    if let Some(id) = PeerId::from_hex(text) {
        return Ok(id);
    }
    let digits = text.len() >= 4 && text.chars().all(|c| c.is_ascii_hexdigit());
    if !digits {
        let bound = "at least 4 of its 64 hexadecimal digits, as `gossip status` shows them";
        return Err(Failure::usage(format!("id: {bound}, not {text:?}")));
    }
    let text = text.to_ascii_lowercase();
    let found: BTreeSet<_> =
        known.into_iter().filter(|id| id.to_hex().starts_with(&text)).collect();
    match (found.first(), found.len()) {
        (Some(id), 1) => Ok(*id),
        (None, _) => Err(Failure::new(
            Exit::NotFound,
            format!(
                "no node whose id begins with {text}; see `gossip status`, or give the whole id"
            ),
        )),
        (Some(_), many) => Err(Failure::usage(format!(
            "id: {many} ids begin with {text}; give more of its digits"
        ))),
    }
}

/// How each namespace stands, by the status of a node. The credentials come last.
fn spaces(status: &Value) -> Vec<Value> {
    let application = status["namespaces"].as_array().into_iter().flatten();
    application.chain([&status["credentials"]]).cloned().collect()
}

/// Every node that a status names.
fn known(status: &Value) -> Vec<PeerId> {
    let lists = spaces(status)
        .into_iter()
        .flat_map(|space| ["voters", "learners", "removed"].map(|list| space[list].clone()));
    let lists = lists.chain([status["connected"].clone(), json!([status["id"]])]);
    lists.flat_map(|list| serde_json::from_value::<Vec<PeerId>>(list).unwrap_or_default()).collect()
}

impl NamespaceArgs {
    /// The status of the namespace on the node that was asked
    async fn space(&self) -> Result<Value, Failure> {
        let status = self.at.status().await?;
        let mut spaces = spaces(&status).into_iter();
        let found = spaces.find(|space| space["namespace"] == json!(self.namespace));
        found.ok_or_else(|| {
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
    let goal = args.goal.bytes()?;
    let mut client = args.to.at.connect_patiently().await?;
    let ask = Ask::Submit { namespace: args.to.namespace.clone(), tx, goal };
    let answer = match client.ask(ask, args.timeout).await {
        Ok(answer) => answer,
        Err(error @ ClientError::Refused(_)) => return Err(args.to.failure(error).await),
        Err(error) => {
            // The goal was sent: whether it is decided is not known, whatever the error.
            let exit = Exit::Uncertain;
            let remedy = format!("submit it again with --tx {tx}");
            let why = chain(&error);
            return Err(Failure::new(
                exit,
                format!("transaction {tx} may or may not be decided ({why}); {remedy}"),
            ));
        }
    };
    let done = match answer {
        Answer::Record(record) => {
            out!("{}", object(&record));
            matches!(record.outcome, Outcome::Done(_))
        }
        // Decided before; the node has the record only as part of a snapshot, and knows how it ended.
        Answer::Decided { index, done } => {
            let outcome = if done { "done" } else { "rejected" };
            out!("{}", json!({ "index": index, "tx": tx.to_string(), "outcome": outcome }));
            done
        }
        other => return Err(args.to.unexpected(&other)),
    };
    Ok(if done { Exit::Clean } else { Exit::Rejected })
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
    // The first record is named, so that whatever ends this can be gone on from.
    let mut next = match args.from {
        Some(from) => from.max(1),
        None => args.at.space().await?["index"].as_u64().unwrap_or_default() + 1,
    };
    let forever = Duration::from_secs(86_400 * 365);
    let ask = Ask::Watch { namespace: args.at.namespace.clone(), from: Some(next) };
    let mut answer = client.ask(ask, forever).await;
    let mut seen = 0;
    loop {
        let record = match answer {
            Ok(Answer::Record(record)) => record,
            Ok(other) => return Err(args.at.unexpected(&other)),
            Err(error @ ClientError::Session(_)) => {
                let (node, why) = (&args.at.at.node, chain(&error));
                let remedy = format!("go on here or at another: tenure gossip watch --from {next}");
                return Err(Failure::new(Exit::NoLeader, format!("node {node}: {why}; {remedy}")));
            }
            Err(error) => return Err(args.at.failure(error).await),
        };
        out!("{}", object(&record));
        next = record.index + 1;
        seen += 1;
        if args.count.is_some_and(|count| seen >= count) || output::is_closed() {
            return Ok(Exit::Clean);
        }
        answer = client.next(forever).await;
    }
}

async fn history(args: HistoryArgs) -> Result<Exit, Failure> {
    let mut client = args.at.at.connect().await?;
    let mut from = args.from;
    let last = args.upto.unwrap_or(u64::MAX);
    let mut head = None;
    while from <= last {
        let ask = Ask::History { namespace: args.at.namespace.clone(), from, upto: last };
        let answer = match args.at.ask(&mut client, ask, ANSWER).await {
            Ok(answer) => answer,
            Err(failure) if failure.exit == Exit::Rejected => {
                let kept = status::keeper_of(&args.at, from).await;
                let Some(address) = kept else { return Err(failure) };
                return Err(Failure::new(
                    Exit::Rejected,
                    format!(
                        "node {} does not keep record {from}; node {address} does: ask it by --node {address}",
                        args.at.at.node
                    ),
                ));
            }
            Err(failure) => return Err(failure),
        };
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
