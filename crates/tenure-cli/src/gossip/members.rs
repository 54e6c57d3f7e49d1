//! `tenure gossip voter | replace | step-down | found`: orders to the leader, and what became of them.

use std::collections::BTreeSet;
use std::time::Duration;

use clap::Args;
use serde_json::Value;
use tenure_gossip::{
    Answer, Ask, CREDENTIALS, CredentialGoal, MemberChange, Outcome, PeerId, Record, TxId,
};

use super::{NamespaceArgs, NodeAddress};
use crate::args::period;
use crate::exit::{Exit, Failure};
use crate::output::out;

/// How long the leader may take over an order.
const ORDER: Duration = Duration::from_secs(30);

/// Which change.
#[derive(Debug, Args)]
pub(crate) struct VoterArgs {
    #[command(flatten)]
    at: NamespaceArgs,
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
    at: NamespaceArgs,
    /// The voter that goes: its id, or the first digits of it.
    old: String,
    /// The node that comes: its id, or the first digits of it. It runs and has joined, and does not vote.
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
    let change = match args.change {
        VoterChange::Add => MemberChange::Learn(id),
        VoterChange::Remove => MemberChange::Remove(id),
    };
    let ask = Ask::Members { namespace: args.at.namespace.clone(), change };
    let leader = order(&args.at, ask, ORDER).await?;
    match args.change {
        VoterChange::Add => out!("{id} receives the log, and votes once it has caught up"),
        VoterChange::Remove => out!("{id} is removed; {}", voters_left(&args.at, &leader).await),
    }
    Ok(Exit::Clean)
}

pub(super) async fn replace(args: ReplaceArgs) -> Result<Exit, Failure> {
    let (old, new) = (args.at.node_id(&args.old).await?, args.at.node_id(&args.new).await?);
    if old == new {
        return Err(Failure::usage("new: another node than the one that goes"));
    }
    let change = MemberChange::Replace { old, new };
    let ask = Ask::Members { namespace: args.at.namespace.clone(), change };
    let leader = order(&args.at, ask, args.timeout).await?;
    out!("{new} votes instead of {old}; {}", voters_left(&args.at, &leader).await);
    Ok(Exit::Clean)
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

/// Gives an order to the leader of the namespace, wherever it is.
async fn order(at: &NamespaceArgs, ask: Ask, patience: Duration) -> Result<Leader, Failure> {
    let space = at.space().await?;
    let address = space["leader_address"].as_str().ok_or_else(|| {
        let node = &at.at.node;
        let why = format!("node {node} knows no leader at the moment; try again, or ask another");
        Failure::new(Exit::NoLeader, why)
    })?;
    let at = NodeAddress { node: address.to_owned(), ..at.at.clone() };
    let mut client = at.connect().await?;
    let id = client.node();
    let answer = client.ask(ask, patience).await;
    match answer.map_err(|error| at.failure(&error))? {
        Answer::Done => Ok(Leader { id, at }),
        other => Err(at.unexpected(&format!("{other:?}"))),
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
