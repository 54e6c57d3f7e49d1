//! `tenure gossip voter | replace | step-down | found`: orders to the leader, and what became of them.
//!
//! Every namespace has voters of its own, and so have the credentials: without `--namespace` an order about a
//! node is given in each of them where it changes anything, so that it can be repeated until all have made it.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::Value;
use tenure_gossip::{
    Answer, Ask, CREDENTIALS, ClientError, CommitError, CredentialGoal, MemberChange, Outcome,
    PeerId, Record, TxId,
};

use super::{NamespaceArgs, NodeAddress, known, resolve, spaces};
use crate::args::period;
use crate::exit::{Exit, Failure};
use crate::output::out;

/// How long the leader may take over an order.
const ORDER: Duration = Duration::from_secs(30);
/// How long a namespace may be without a leader: a failover takes one and a half seconds.
const ELECTION: Duration = Duration::from_secs(5);
/// Between two tries while another change of the members, or an election, is under way.
const BUSY: Duration = Duration::from_millis(200);

/// A node to ask, and the namespaces that an order is about.
#[derive(Debug, Args)]
pub(crate) struct SpacesArgs {
    #[command(flatten)]
    at: NodeAddress,
    /// The namespace (default: every one that the node to talk to carries, and the credentials)
    #[arg(long)]
    namespace: Option<String>,
}

/// Which change.
#[derive(Debug, Args)]
pub(crate) struct VoterArgs {
    #[command(flatten)]
    at: SpacesArgs,
    /// What to do.
    change: VoterChange,
    /// The node's id, or the first digits of it.
    id: String,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum VoterChange {
    /// Let it receive the log; it votes once it has caught up
    Add,
    /// It follows as an observer, and votes again only if it is added again
    Remove,
}

/// Which voter, and which node instead.
#[derive(Debug, Args)]
pub(crate) struct ReplaceArgs {
    #[command(flatten)]
    at: SpacesArgs,
    /// The voter that goes: its id, or the first digits of it.
    old: String,
    /// The node that comes: its id, or the first digits of it. It runs and has joined.
    new: String,
    /// How long the new node may take to catch up
    #[arg(long, default_value = "90s", value_parser = period)]
    timeout: Duration,
}

/// Which namespace.
#[derive(Debug, Args)]
pub(crate) struct FoundArgs {
    #[command(flatten)]
    at: NodeAddress,
    /// Its name.
    namespace: String,
}

pub(super) async fn voter(args: VoterArgs) -> Result<Exit, Failure> {
    let id = args.at.node_id(&args.id).await?;
    let order = match args.change {
        VoterChange::Add => MemberOrder {
            change: MemberChange::Learn(id),
            is_made: &|space| space.voters.contains(&id),
            done: "receives the log, and votes once it has caught up",
            patience: ORDER,
        },
        VoterChange::Remove => MemberOrder {
            change: MemberChange::Remove(id),
            is_made: &|space| !space.voters.contains(&id) && !space.learners.contains(&id),
            done: "is removed",
            patience: ORDER,
        },
    };
    if !args.at.give(&id, &order).await? {
        out!(
            "{id} {} already",
            if matches!(args.change, VoterChange::Add) { "votes" } else { "is no member" }
        );
    }
    Ok(Exit::Clean)
}

pub(super) async fn replace(args: ReplaceArgs) -> Result<Exit, Failure> {
    let (old, new) = (args.at.node_id(&args.old).await?, args.at.node_id(&args.new).await?);
    if old == new {
        return Err(Failure::usage("new: another node than the one that goes"));
    }
    let order = MemberOrder {
        change: MemberChange::Replace { old, new },
        // Where neither votes there is nothing to take over, but one namespace that is named must have the voter.
        is_made: &|space| {
            !space.voters.contains(&old)
                && (args.at.namespace.is_none() || space.voters.contains(&new))
        },
        done: &format!("votes instead of {old}"),
        patience: args.timeout,
    };
    if !args.at.give(&new, &order).await? {
        let spaces = args.at.spaces().await?;
        let mut votes = false;
        for at in &spaces {
            votes |= leaders_space(at).await?.voters.contains(&new);
        }
        if !votes {
            let why = format!("node {old} votes nowhere; `tenure gossip status` lists the voters");
            return Err(Failure::new(Exit::Rejected, why));
        }
        out!("{new} votes already, and {old} does not");
    }
    Ok(Exit::Clean)
}

/// A change of the members, the same in every namespace.
struct MemberOrder<'a> {
    change: MemberChange,
    /// Whether there is nothing to do.
    is_made: &'a (dyn Fn(&Space) -> bool + Sync),
    /// What is said of the node then.
    done: &'a str,
    patience: Duration,
}

/// The members of a namespace, as its leader has them.
#[derive(serde::Deserialize)]
struct Space {
    voters: Vec<PeerId>,
    learners: Vec<PeerId>,
}

impl SpacesArgs {
    /// Each namespace that is meant. The credentials come last: whether others can be let in depends on them.
    async fn spaces(&self) -> Result<Vec<NamespaceArgs>, Failure> {
        let names = match &self.namespace {
            Some(namespace) => vec![namespace.clone()],
            None => {
                let spaces = spaces(&self.at.status().await?);
                let name = |space: &Value| space["namespace"].as_str().map(ToOwned::to_owned);
                spaces.iter().filter_map(name).collect()
            }
        };
        let of = |namespace| NamespaceArgs { at: self.at.clone(), namespace };
        Ok(names.into_iter().map(of).collect())
    }

    /// The node that was meant by the first digits of its id
    async fn node_id(&self, text: &str) -> Result<PeerId, Failure> {
        if PeerId::from_hex(text).is_some() || text.len() < 4 {
            return resolve(text, []);
        }
        resolve(text, known(&self.at.status().await?))
    }

    /// Gives the order in every namespace where it changes something; whether there was one. A namespace that
    /// cannot make it does not keep the others from it.
    async fn give(&self, node: &PeerId, order: &MemberOrder<'_>) -> Result<bool, Failure> {
        let mut made = false;
        let mut failed: Option<Failure> = None;
        for at in self.spaces().await? {
            match give_in(&at, node, order).await {
                Ok(changed) => made |= changed,
                Err(failure) => {
                    let why = format!("namespace {}: {}", at.namespace, failure.message);
                    failed = Some(match failed.take() {
                        None => Failure::new(failure.exit, why),
                        Some(first) => {
                            Failure::new(first.exit, format!("{}\n{why}", first.message))
                        }
                    });
                }
            }
        }
        failed.map_or(Ok(made), Err)
    }
}

async fn give_in(
    at: &NamespaceArgs,
    node: &PeerId,
    order: &MemberOrder<'_>,
) -> Result<bool, Failure> {
    if (order.is_made)(&leaders_space(at).await?) {
        return Ok(false);
    }
    let ask = Ask::Members { namespace: at.namespace.clone(), change: order.change };
    let leader = self::order(at, ask, order.patience).await?;
    let (name, done) = (&at.namespace, order.done);
    out!("namespace {name}: {node} {done}; {}", voters_left(at, &leader).await);
    Ok(true)
}

/// The members as the leader knows them: another node may be outside of consensus, or lag behind.
async fn leaders_space(at: &NamespaceArgs) -> Result<Space, Failure> {
    let leader = NodeAddress { node: leader_of(at).await?, ..at.at.clone() };
    let at = NamespaceArgs { at: leader, namespace: at.namespace.clone() };
    serde_json::from_value(at.space().await?)
        .map_err(|error| at.at.unexpected(&format!("a status, but {error}")))
}

pub(super) async fn step_down(at: NamespaceArgs) -> Result<Exit, Failure> {
    let leader = order(&at, Ask::StepDown { namespace: at.namespace.clone() }, ORDER).await?;
    out!("{} gave leadership up", leader.id);
    Ok(Exit::Clean)
}

/// The leader that an order went to.
struct Leader {
    id: PeerId,
    at: NodeAddress,
}

/// Where the leader of the namespace is reached. An election that is under way is waited for: the node that the
/// order is about may have led this namespace.
async fn leader_of(at: &NamespaceArgs) -> Result<String, Failure> {
    let deadline = Instant::now() + ELECTION;
    loop {
        if let Some(address) = at.space().await?["leader_address"].as_str() {
            return Ok(address.to_owned());
        }
        if Instant::now() >= deadline {
            let node = &at.at.node;
            let why =
                format!("node {node} knows no leader at the moment; try again, or ask another");
            return Err(Failure::new(Exit::NoLeader, why));
        }
        tokio::time::sleep(BUSY).await;
    }
}

/// Gives an order to the leader of the namespace, wherever it is. A change of the members that is under way, as
/// while nodes join, is waited for.
async fn order(at: &NamespaceArgs, ask: Ask, patience: Duration) -> Result<Leader, Failure> {
    let deadline = Instant::now() + patience;
    loop {
        let at = NodeAddress { node: leader_of(at).await?, ..at.at.clone() };
        let mut client = at.connect().await?;
        let id = client.node();
        let left = deadline.saturating_duration_since(Instant::now());
        match client.ask(ask.clone(), left).await {
            Ok(Answer::Done) => return Ok(Leader { id, at }),
            Ok(other) => return Err(at.unexpected(&format!("{other:?}"))),
            Err(ClientError::Refused(why))
                if why == CommitError::Busy.to_string() && left > BUSY =>
            {
                tokio::time::sleep(BUSY).await;
            }
            Err(error) => return Err(at.failure(&error)),
        }
    }
}

/// How many vote now, as the leader that made the change says.
async fn voters_left(at: &NamespaceArgs, leader: &Leader) -> String {
    let at = NamespaceArgs { at: leader.at.clone(), namespace: at.namespace.clone() };
    // The change is made, whether or not the leader can be asked once more.
    let space = at.space().await.unwrap_or(Value::Null);
    match space["voters"].as_array().map(Vec::len) {
        Some(1) => "1 node votes now".to_owned(),
        Some(many) => format!("{many} nodes vote now"),
        None => "`tenure gossip status` lists the voters".to_owned(),
    }
}

/// Founds a namespace on the nodes that vote on the credentials.
pub(super) async fn found(args: FoundArgs) -> Result<Exit, Failure> {
    let at = &args.at;
    let status = at.status().await?;
    let voters: BTreeSet<PeerId> = serde_json::from_value(status["credentials"]["voters"].clone())
        .map_err(|error| at.unexpected(&format!("a status, but {error}")))?;
    let goal = CredentialGoal::Namespace { name: args.namespace.clone(), voters };
    let (namespace, tx, goal) = (CREDENTIALS.to_owned(), TxId::random(), goal.to_bytes());
    let asked = at.connect().await?.ask(Ask::Submit { namespace, tx, goal }, ORDER).await;
    match asked.map_err(|error| at.failure(&error))? {
        Answer::Record(Record { outcome: Outcome::Done(_), .. }) => {
            out!(
                "namespace {} is founded; its voters are those of the credentials",
                args.namespace
            );
            Ok(Exit::Clean)
        }
        Answer::Record(Record { outcome: Outcome::Rejected(why), .. }) => {
            Err(Failure::new(Exit::Rejected, why))
        }
        other => Err(at.unexpected(&format!("{other:?}"))),
    }
}
