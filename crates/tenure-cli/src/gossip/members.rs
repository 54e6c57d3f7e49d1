//! `tenure gossip voter | replace | step-down | found`: orders to the leader, and what became of them.
//!
//! Every namespace has voters of its own, and so have the credentials: without `--namespace` an order about a
//! node is given in each of them where it changes anything, so that it can be repeated until all have made it.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Value, json};
use tenure_gossip::{Answer, Ask, ClientError, CommitError, CredentialGoal, MemberChange, PeerId};

use super::credentials::decide;
use super::{NamespaceArgs, NodeAddress, known, resolve, spaces};
use crate::args::period;
use crate::exit::{Exit, Failure, chain};
use crate::output::out;

/// How long the leader may take over an order.
const ORDER: Duration = Duration::from_secs(30);
/// How long a namespace may be without an acting leader: a failover takes one and a half seconds.
const ELECTION: Duration = Duration::from_secs(10);
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
        let (mut votes, deadline) = (false, Instant::now() + args.timeout);
        for at in &spaces {
            votes |= leader_of(at, deadline).await?.space.voters.contains(&new);
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
                        Some(first) => both(&first, &Failure::new(failure.exit, why)),
                    });
                }
            }
        }
        failed.map_or(Ok(made), Err)
    }
}

/// Two failures as one. That an order may have been carried out must not be hidden by one that was not.
fn both(first: &Failure, second: &Failure) -> Failure {
    let exit = if second.exit == Exit::Uncertain { second.exit } else { first.exit };
    Failure::new(exit, format!("{}\n{}", first.message, second.message))
}

async fn give_in(
    at: &NamespaceArgs,
    node: &PeerId,
    order: &MemberOrder<'_>,
) -> Result<bool, Failure> {
    let deadline = Instant::now() + order.patience;
    let ask = Ask::Members { namespace: at.namespace.clone(), change: order.change };
    // The same change is made once, however often it is ordered: after an outcome that is not known, it is looked
    // whether it was made, and ordered again if not.
    let mut unknown = None;
    let leader = loop {
        // Whatever comes of a look or of another try: what was sent before may be made.
        let leader = match leader_of(at, deadline).await {
            Ok(leader) => leader,
            Err(failure) => return Err(unknown.unwrap_or(failure)),
        };
        if (order.is_made)(&leader.space) {
            if unknown.is_none() {
                return Ok(false);
            }
            break leader;
        }
        let given = match order_once(&leader, &ask, deadline).await {
            Ok(given) => given,
            Err(failure) => return Err(unknown.unwrap_or(failure)),
        };
        match given {
            Given::Done => break leader,
            Given::Pointless if unknown.is_some() => break leader,
            Given::Pointless => {
                return Err(Failure::new(Exit::Rejected, CommitError::Pointless.to_string()));
            }
            Given::NotNow(why) if Instant::now() >= deadline => {
                return Err(unknown.unwrap_or(why));
            }
            Given::NotNow(_) => {}
            Given::Unknown(why) => {
                let remedy = "repeat the order: what is made stays made";
                let why = format!("the change may or may not be made ({why}); {remedy}");
                let failure = Failure::new(Exit::Uncertain, why);
                if Instant::now() >= deadline {
                    return Err(failure);
                }
                unknown = Some(failure);
            }
        }
        tokio::time::sleep(BUSY).await;
    };
    let (name, done) = (&at.namespace, order.done);
    out!("namespace {name}: {node} {done}; {}", voters_left(at, &leader).await);
    Ok(true)
}

pub(super) async fn step_down(at: NamespaceArgs) -> Result<Exit, Failure> {
    let deadline = Instant::now() + ORDER;
    let ask = Ask::StepDown { namespace: at.namespace.clone() };
    loop {
        let leader = leader_of(&at, deadline).await?;
        match order_once(&leader, &ask, deadline).await? {
            Given::Done => {
                out!("{} gave leadership up", leader.id);
                return Ok(Exit::Clean);
            }
            Given::NotNow(_) if Instant::now() < deadline => tokio::time::sleep(BUSY).await,
            Given::NotNow(why) => return Err(why),
            // Ordered again, it could make the next leader step down too.
            Given::Unknown(why) => {
                let (id, node) = (leader.id, &at.at.node);
                let remedy = format!("`tenure gossip status --node {node}` names the leader");
                let why = format!("node {id} may or may not have stepped down ({why}); {remedy}");
                return Err(Failure::new(Exit::Uncertain, why));
            }
            Given::Pointless => {
                return Err(Failure::new(Exit::Rejected, CommitError::Pointless.to_string()));
            }
        }
    }
}

/// The leader of a namespace, which acts and answers.
struct Leader {
    id: PeerId,
    at: NodeAddress,
    /// The members as it has them: another node may be outside of consensus, or lag behind.
    space: Space,
}

/// Finds the leader of the namespace. An election is waited for: the node that is asked may name a leader that died
/// a moment ago, or one that does not act yet.
async fn leader_of(at: &NamespaceArgs, deadline: Instant) -> Result<Leader, Failure> {
    let until = deadline.min(Instant::now() + ELECTION);
    loop {
        let why = match at.space().await?["leader_address"].as_str() {
            None => "it knows none".to_owned(),
            Some(address) => match leader_at(at, address).await {
                Ok(Some(leader)) => return Ok(leader),
                Ok(None) => format!("the node at {address}, which it names, does not act"),
                Err(failure) if failure.exit == Exit::NoLeader => {
                    format!("the node at {address}, which it names, does not answer")
                }
                Err(failure) => return Err(failure),
            },
        };
        if Instant::now() >= until {
            let (name, node) = (&at.namespace, &at.at.node);
            let remedy = format!(
                "see which voters run: tenure gossip status --node {node}; a majority of them elects one"
            );
            let why = format!(
                "node {node} answers, but finds no acting leader of namespace {name}: {why}; {remedy}"
            );
            return Err(Failure::new(Exit::NoLeader, why));
        }
        tokio::time::sleep(BUSY).await;
    }
}

/// The node at `address`, if it acts as the leader of the namespace.
async fn leader_at(at: &NamespaceArgs, address: &str) -> Result<Option<Leader>, Failure> {
    let node = NodeAddress { node: address.to_owned(), ..at.at.clone() };
    let status = node.status().await?;
    let of = |space: &Value| space["namespace"] == json!(at.namespace);
    let Some(space) = spaces(&status).into_iter().find(of) else { return Ok(None) };
    if space["acting"] != json!(true) {
        return Ok(None);
    }
    let wrong = |error| node.unexpected(&format!("a status, but {error}"));
    let id = serde_json::from_value(status["id"].clone()).map_err(wrong)?;
    let space = serde_json::from_value(space).map_err(wrong)?;
    Ok(Some(Leader { id, at: node, space }))
}

/// What a leader made of an order.
enum Given {
    Done,
    /// The members were like that already.
    Pointless,
    /// Nothing was done, and the same order may be given again.
    NotNow(Failure),
    /// It was sent, and whether it is carried out is not known.
    Unknown(String),
}

/// Gives an order to a leader, once.
async fn order_once(leader: &Leader, ask: &Ask, deadline: Instant) -> Result<Given, Failure> {
    let at = &leader.at;
    let mut client = match at.connect().await {
        Ok(client) => client,
        Err(failure) if failure.exit == Exit::NoLeader => return Ok(Given::NotNow(failure)),
        Err(failure) => return Err(failure),
    };
    let left = deadline.saturating_duration_since(Instant::now());
    match client.ask(ask.clone(), left).await {
        Ok(Answer::Done) => Ok(Given::Done),
        Ok(other) => Err(sent(&at.unexpected(&format!("{other:?}")))),
        Err(error @ ClientError::Refused(_)) => {
            let failure = at.failure(&error);
            let is = |known: CommitError| failure.message == known.to_string();
            if is(CommitError::Uncertain) {
                return Ok(Given::Unknown("leadership changed meanwhile".to_owned()));
            }
            if is(CommitError::Pointless) {
                return Ok(Given::Pointless);
            }
            if is(CommitError::Busy) {
                return Ok(Given::NotNow(Failure::failed(failure.message)));
            }
            if is(CommitError::NotLeader) {
                let node = &at.node;
                let why = format!("the node at {node} does not lead any more; repeat the order");
                return Ok(Given::NotNow(Failure::new(Exit::NoLeader, why)));
            }
            Err(failure)
        }
        Err(ClientError::Session(error)) => Ok(Given::Unknown(chain(&error))),
        Err(error) => Err(sent(&at.failure(&error))),
    }
}

/// The failure of an order that was sent and has no answer of use: asked again, the node would give no other.
fn sent(failure: &Failure) -> Failure {
    let why = format!("the change may or may not be made: {}", failure.message);
    Failure::new(Exit::Uncertain, why)
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
    decide(at, &mut at.connect().await?, &goal).await?;
    out!("namespace {} is founded; its voters are those of the credentials", args.namespace);
    Ok(Exit::Clean)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outcome_that_is_not_known_in_one_namespace_is_not_hidden_by_another() {
        let (no, unknown) =
            (Failure::new(Exit::Rejected, "no"), Failure::new(Exit::Uncertain, "perhaps"));
        for (first, second) in [(&no, &unknown), (&unknown, &no)] {
            let failure = both(first, second);
            assert_eq!(failure.exit, Exit::Uncertain);
            assert_eq!(failure.message, format!("{}\n{}", first.message, second.message));
        }
        assert_eq!(both(&no, &no).exit, Exit::Rejected);
    }
}
