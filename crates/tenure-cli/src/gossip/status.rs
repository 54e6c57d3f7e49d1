//! `tenure gossip status`: how a node stands, and how the members follow.

use clap::Args;
use serde_json::{Value, json};

use super::{NamespaceArgs, NodeAddress, spaces};
use crate::exit::{Exit, Failure};
use crate::output::out;

/// Which node's status.
#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    at: NodeAddress,
    /// As JSON
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(args: StatusArgs) -> Result<Exit, Failure> {
    let status = args.at.status().await?;
    if args.json {
        out!("{status}");
        return Ok(Exit::Clean);
    }
    out!("node       {}", status["id"].as_str().unwrap_or_default());
    out!("address    {}", status["address"].as_str().unwrap_or_default());
    out!("connected  {}", many(&status["connected"]));
    for ns in spaces(&status) {
        space(&args.at, &ns).await;
    }
    Ok(Exit::Clean)
}

async fn space(at: &NodeAddress, ns: &Value) {
    out!("namespace  {}", ns["namespace"].as_str().unwrap_or_default());
    if let Some(why) = ns["halted"].as_str() {
        out!("  HALTED   {why}");
    }
    if ns["stranded"] == json!(true) {
        out!(
            "  STRANDED no member that this node knows answers; removed while it was away, it needs a fresh folder"
        );
    }
    let acting = if ns["acting"] == json!(true) { ", this node acts" } else { "" };
    out!("  leader   {} (term {}{acting})", brief(&ns["leader"]), ns["term"]);
    out!("  hint     {} for {} ms", brief(&ns["hint"]), ns["hint_ms"]);
    out!("  voters   {}", many(&ns["voters"]));
    for (what, list) in [("learners", &ns["learners"]), ("removed ", &ns["removed"])] {
        if list.as_array().is_some_and(|a| !a.is_empty()) {
            out!("  {what} {}", many(list));
        }
    }
    for follower in followers(at, ns).await {
        let contact = follower["last_contact_ms"].as_u64().unwrap_or_default();
        let what = if follower["voter"] == json!(true) { "voter" } else { "learner" };
        let id = brief(&follower["id"]);
        let lag = &follower["lag"];
        if follower["silent"] == json!(true) {
            let seconds = contact / 1_000;
            out!(
                "  SILENT   {what} {id} for {seconds} s, lag {lag}: tenure gossip replace {id} NEW"
            );
        } else {
            out!("  follows  {what} {id}, last contact {contact} ms ago, lag {lag}");
        }
    }
    out!("  index    {} {}, kept from {}", ns["index"], brief(&ns["head"]), ns["oldest"]);
    out!("  pending  {}", ns["pending"]);
}

/// How the members follow: only the leader knows, so it is asked if another node was.
async fn followers(at: &NodeAddress, ns: &Value) -> Vec<Value> {
    let own = ns["followers"].as_array().cloned().unwrap_or_default();
    let Some(leader) = ns["leader_address"].as_str().filter(|_| own.is_empty()) else { return own };
    let at = NodeAddress { node: leader.to_owned(), ..at.clone() };
    // A leader that does not answer is no failure of the node that was asked.
    let status = at.status().await.unwrap_or(Value::Null);
    let same = spaces(&status).into_iter().find(|space| space["namespace"] == ns["namespace"]);
    same.and_then(|space| space["followers"].as_array().cloned()).unwrap_or_default()
}

/// A node of the namespace that keeps record `from`, and where it is reached.
pub(super) async fn keeper_of(at: &NamespaceArgs, from: u64) -> Option<String> {
    let space = at.space().await.ok()?;
    let mut addresses: Vec<_> = followers(&at.at, &space).await;
    addresses.push(json!({ "address": space["leader_address"] }));
    for follower in addresses {
        let Some(address) = follower["address"].as_str() else { continue };
        let other = NodeAddress { node: address.to_owned(), ..at.at.clone() };
        let other = NamespaceArgs { at: other, namespace: at.namespace.clone() };
        // A node that does not answer is not where they can be read.
        let Ok(space) = other.space().await else { continue };
        if space["oldest"].as_u64().is_some_and(|oldest| oldest <= from) {
            return Some(address.to_owned());
        }
    }
    None
}

fn brief(value: &Value) -> String {
    value.as_str().map_or("-".to_owned(), |text| text.chars().take(8).collect())
}

fn many(list: &Value) -> String {
    let items = list.as_array().into_iter().flatten().map(brief);
    items.collect::<Vec<_>>().join(" ")
}
