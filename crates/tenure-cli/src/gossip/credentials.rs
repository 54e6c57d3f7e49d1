//! Invitations, and the rights of keys.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde_json::json;
use tenure_gossip::{
    Answer, Ask, CREDENTIALS, Client, ClientError, CredentialGoal, CredentialList, IdentityFolder,
    Invitation, Outcome, PeerId, Right, TxId,
};

use super::{ANSWER, NodeAddress, resolve};
use crate::args::period;
use crate::exit::{Exit, Failure, chain};
use crate::output::out;

/// How long a change of the credentials may take.
const DECIDED: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, Copy, ValueEnum)]
enum RightArg {
    /// Submit goals, read, watch
    Client,
    /// Also give orders, invite, grant and revoke
    Operator,
    /// Also be a node
    Node,
}

impl From<RightArg> for Right {
    fn from(right: RightArg) -> Self {
        match right {
            RightArg::Client => Self::Client,
            RightArg::Operator => Self::Operator,
            RightArg::Node => Self::Node,
        }
    }
}

/// Whom to let in.
#[derive(Debug, Args)]
pub(crate) struct InviteArgs {
    #[command(flatten)]
    at: NodeAddress,
    /// What the key that accepts it may do
    #[arg(value_enum)]
    right: RightArg,
    /// For how long it is good
    #[arg(long = "for", value_name = "TIME", default_value = "1h", value_parser = period)]
    lifetime: Duration,
}

/// How to be let in.
#[derive(Debug, Args)]
pub(crate) struct AcceptArgs {
    #[command(flatten)]
    at: NodeAddress,
    /// A file with the invitation; - for standard input
    #[arg(long, value_name = "FILE")]
    invitation: PathBuf,
}

/// What to grant.
#[derive(Debug, Args)]
pub(crate) struct GrantArgs {
    #[command(flatten)]
    at: NodeAddress,
    /// What the key may do from now on
    #[arg(value_enum)]
    right: RightArg,
    /// The key, or the first digits of one that has a right already
    id: String,
}

/// What to revoke.
#[derive(Debug, Args)]
pub(crate) struct RevokeArgs {
    #[command(flatten)]
    at: NodeAddress,
    /// The key, or the first digits of it
    id: String,
}

/// Which cluster.
#[derive(Debug, Args)]
pub(crate) struct CloseArgs {
    #[command(flatten)]
    at: NodeAddress,
}

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    at: NodeAddress,
    /// As JSON
    #[arg(long)]
    json: bool,
}

/// An invitation from a file: as an argument, every user of the machine would see it.
pub(super) fn read_invitation(path: &Path) -> Result<Invitation, Failure> {
    let place = path.display();
    let text = if path == Path::new("-") {
        std::io::read_to_string(std::io::stdin())
    } else {
        std::fs::read_to_string(path)
    };
    let text = text
        .map_err(|error| Failure::usage(format!("invitation {place}: {error}; check the file")))?;
    Invitation::parse(&text).ok_or_else(|| {
        let remedy = "copy the whole word that `gossip invite` printed";
        Failure::usage(format!("invitation {place}: not an invitation; {remedy}"))
    })
}

pub(super) async fn invite(args: InviteArgs) -> Result<Exit, Failure> {
    if args.lifetime < Duration::from_secs(1) {
        return Err(Failure::usage("for: at least 1s"));
    }
    let mut client = args.at.connect().await?;
    let cluster = client.cluster().ok_or_else(|| {
        let node = &args.at.node;
        Failure::new(Exit::NoLeader, format!("node {node} has not joined a cluster yet; try again"))
    })?;
    let invitation = Invitation::new(cluster, args.right.into(), args.lifetime);
    decide(&args.at, &mut client, &invitation.goal()).await?;
    out!("{}", invitation.to_text());
    Ok(Exit::Clean)
}

pub(super) async fn accept(args: AcceptArgs) -> Result<Exit, Failure> {
    let invitation = read_invitation(&args.invitation)?;
    let folder = args.at.identity.as_ref().ok_or_else(|| {
        Failure::usage("identity: name the folder to keep the identity in, by --identity FOLDER")
    })?;
    let folder = IdentityFolder::new(folder);
    let keys = folder.keys_or_new()?;
    let tls = args.at.access.tls();
    let nodes =
        Client::redeem(&args.at.node, keys.clone(), &invitation, tls.as_ref(), DECIDED).await;
    folder.believe(&nodes.map_err(|error| args.at.failure(&error))?)?;
    out!("accepted {} {}", invitation.right, keys.public().to_hex());
    Ok(Exit::Clean)
}

pub(super) async fn grant(args: GrantArgs) -> Result<Exit, Failure> {
    let mut client = args.at.connect().await?;
    let peer = key(&args.at, &mut client, &args.id).await?;
    let right = args.right.into();
    decide(&args.at, &mut client, &CredentialGoal::Grant { peer, right }).await?;
    out!("granted {right} {}", peer.to_hex());
    Ok(Exit::Clean)
}

pub(super) async fn revoke(args: RevokeArgs) -> Result<Exit, Failure> {
    let mut client = args.at.connect().await?;
    let peer = key(&args.at, &mut client, &args.id).await?;
    decide(&args.at, &mut client, &CredentialGoal::Revoke { peer }).await?;
    out!("revoked {}", peer.to_hex());
    Ok(Exit::Clean)
}

pub(super) async fn close(args: CloseArgs) -> Result<Exit, Failure> {
    let mut client = args.at.connect().await?;
    decide(&args.at, &mut client, &CredentialGoal::Close).await?;
    out!("closed");
    Ok(Exit::Clean)
}

pub(super) async fn list(args: ListArgs) -> Result<Exit, Failure> {
    let mut client = args.at.connect().await?;
    let list = read(&args.at, &mut client).await?;
    if args.json {
        out!("{}", json!(list));
        return Ok(Exit::Clean);
    }
    if list.open {
        out!("OPEN      every program that reaches a node may do everything");
    }
    for (peer, right) in &list.keys {
        out!("{right:<9} {}", peer.to_hex());
    }
    for (right, expires) in &list.invitations {
        out!("invited   {right}, until {expires} (seconds since 1970)");
    }
    Ok(Exit::Clean)
}

/// The key that was typed, or the one that has a right and begins so.
async fn key(at: &NodeAddress, client: &mut Client, text: &str) -> Result<PeerId, Failure> {
    if PeerId::from_hex(text).is_some() {
        return resolve(text, []);
    }
    let list = read(at, client).await?;
    resolve(text, list.keys.into_keys())
}

async fn read(at: &NodeAddress, client: &mut Client) -> Result<CredentialList, Failure> {
    let ask = Ask::Read { namespace: CREDENTIALS.to_owned(), question: Vec::new() };
    let answer = client.ask(ask, ANSWER).await.map_err(|error| at.failure(&error))?;
    let Answer::State { bytes, .. } = &answer else {
        return Err(at.unexpected(&format!("{answer:?}")));
    };
    serde_json::from_slice(bytes).map_err(|error| at.unexpected(&error.to_string()))
}

/// Has a change of the credentials decided. While there is no leader it waits for one.
pub(super) async fn decide(
    at: &NodeAddress,
    client: &mut Client,
    goal: &CredentialGoal,
) -> Result<(), Failure> {
    let (namespace, tx) = (CREDENTIALS.to_owned(), TxId::random());
    let ask = Ask::Submit { namespace, tx, goal: goal.to_bytes() };
    let answer = match client.ask(ask, DECIDED).await {
        Ok(answer) => answer,
        Err(error @ ClientError::Refused(_)) => return Err(at.failure(&error)),
        Err(error) => return Err(undecided(at, &chain(&error))),
    };
    let Answer::Record(record) = &answer else {
        return Err(undecided(at, &at.unexpected(&format!("{answer:?}")).message));
    };
    match &record.outcome {
        Outcome::Done(_) => Ok(()),
        Outcome::Rejected(why) => Err(Failure::new(Exit::Rejected, why.clone())),
    }
}

/// The goal was sent, and the node goes on with it as long as it runs.
fn undecided(at: &NodeAddress, why: &str) -> Failure {
    let node = &at.node;
    let remedy = format!(
        "`tenure gossip status --node {node}` shows whether a leader is known; then repeat the command"
    );
    let why = format!("node {node}: the change may or may not be decided ({why}); {remedy}");
    Failure::new(Exit::Uncertain, why)
}
