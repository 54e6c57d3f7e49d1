//! `list`, `show`, `watch` and `gaps`: what the table says.

use std::collections::BTreeSet;

use clap::Args;
use serde_json::{Value, json};
use tenure_tx::feed::{FeedItem, FeedOptions, feed};
use tenure_tx::status::State;
use tenure_tx::store::StoredTransaction;

use super::ReadArgs;
use crate::exit::{Exit, Failure};
use crate::output::{self, out};
use crate::table::{moment, print, table};

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    pub(crate) read: ReadArgs,
    /// Only open ones
    #[arg(long)]
    pub(crate) open: bool,
    /// From this nonce on
    #[arg(long, default_value_t = 0)]
    pub(crate) from: u64,
}

#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    #[command(flatten)]
    pub(crate) read: ReadArgs,
    /// A nonce, or a request id
    pub(crate) which: String,
}

#[derive(Debug, Args)]
pub(crate) struct WatchArgs {
    #[command(flatten)]
    pub(crate) read: ReadArgs,
    /// Stop when this nonce has ended
    #[arg(long)]
    pub(crate) until: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct GapsArgs {
    #[command(flatten)]
    pub(crate) read: ReadArgs,
}

fn object(row: &StoredTransaction) -> Value {
    json!({
        "nonce": row.nonce,
        "hash": row.hash,
        "state": row.status.state(),
        "block_hash": row.status.block(),
        "status_metadata": row.status.metadata(),
        "ended": row.ended,
        "noop": row.noop,
        "attempts": row.attempts,
        "request_id": row.request_id,
        "creator_id": row.creator_id,
        "epoch": row.epoch.get(),
        "created_at": row.created_at,
        "updated_at": row.updated_at,
        "change": row.change,
    })
}

pub(super) async fn list(args: ListArgs) -> Result<Exit, Failure> {
    let store = args.read.store()?;
    let mut from = args.from;
    let mut rows = Vec::new();
    loop {
        let page = store.list(from).await?;
        let Some(last) = page.last() else { break };
        from = last.nonce + 1;
        for row in page.iter().filter(|row| !(args.open && row.ended)) {
            if args.read.json {
                out!("{}", object(row));
                continue;
            }
            let state = if row.noop {
                format!("{} (no-op)", row.status.state())
            } else {
                row.status.state().to_string()
            };
            rows.push(vec![
                row.nonce.to_string(),
                state,
                row.hash.to_string(),
                row.request_id.clone(),
                row.creator_id.clone(),
                row.epoch.to_string(),
                row.attempts.len().to_string(),
                moment(row.updated_at.parse().ok()),
            ]);
        }
    }
    if !args.read.json {
        let header =
            ["nonce", "state", "hash", "request", "creator", "epoch", "attempts", "updated"];
        print(&table(&header, rows));
    }
    Ok(Exit::Clean)
}

pub(super) async fn show(args: ShowArgs) -> Result<Exit, Failure> {
    let store = args.read.store()?;
    let row = match args.which.parse() {
        Ok(nonce) => store.by_nonce(nonce).await?,
        Err(_) => {
            let rows = store.by_request(std::slice::from_ref(&args.which)).await;
            rows?.into_iter().next()
        }
    };
    let Some(row) = row else {
        let (which, account) = (&args.which, &args.read.account);
        return Err(Failure::new(
            Exit::NotFound,
            format!("no transaction {which} of account {account}; see `tenure tx list`"),
        ));
    };
    let mut value = object(&row);
    value["raw"] =
        row.raw.as_deref().map_or(Value::Null, |raw| format!("0x{}", hex::encode(raw)).into());
    value["call"] = row.call.as_deref().map_or(Value::Null, |call| {
        std::str::from_utf8(call)
            .map_or_else(|_| format!("0x{}", hex::encode(call)), str::to_owned)
            .into()
    });
    if args.read.json {
        out!("{value}");
    } else {
        for (name, value) in value.as_object().into_iter().flatten() {
            match value {
                Value::String(text) => out!("{name:16} {text}"),
                other => out!("{name:16} {other}"),
            }
        }
    }
    Ok(Exit::Clean)
}

pub(super) async fn watch(args: WatchArgs) -> Result<Exit, Failure> {
    let store = args.read.store()?;
    let after = match args.until {
        // What has happened already counts.
        Some(_) => 0,
        None => store.newest_change().await?,
    };
    let mut items = feed(store, after, FeedOptions::default());
    while let Some(item) = items.recv().await {
        if output::is_closed() {
            break;
        }
        match item {
            FeedItem::Row(row) => {
                if args.until.is_none_or(|nonce| nonce == row.nonce) {
                    if args.read.json {
                        out!("{}", object(&row));
                    } else {
                        let state = row.status.state();
                        let block = row.status.block().map(|b| format!(" {b}")).unwrap_or_default();
                        out!("{:>8} {state:16} {}{block}", row.nonce, row.hash);
                    }
                }
                if row.ended && args.until == Some(row.nonce) {
                    return Ok(Exit::Clean);
                }
            }
            FeedItem::Stale(reason) => tracing::error!(reason, "the view is stale"),
            FeedItem::Fresh => tracing::warn!("the view is fresh again"),
            // `FeedItem` may grow.
            other => tracing::debug!(?other, "an item this command does not know"),
        }
    }
    Ok(Exit::Clean)
}

pub(super) async fn gaps(args: GapsArgs) -> Result<Exit, Failure> {
    let store = args.read.store()?;
    let snapshot = store.snapshot().await?;
    let used: BTreeSet<u64> = snapshot.open.iter().map(|row| row.nonce).collect();
    // What is below every open row is the chain's past, unless the table says that it ended unused.
    // Such rows are few, and none is below what was used for good.
    let lowest = used.first().copied().unwrap_or(snapshot.consumed).max(snapshot.consumed);
    let highest = used.last().copied().unwrap_or(0);
    let mut gaps: Vec<u64> =
        (lowest..highest).filter(|nonce| !used.contains(nonce)).take(1_000).collect();
    for row in store.list(snapshot.consumed).await? {
        if row.ended && row.status.state() == State::Invalid && row.nonce < highest {
            gaps.push(row.nonce);
        }
    }
    gaps.sort_unstable();
    gaps.dedup();
    if args.read.json {
        out!("{}", json!({ "gaps": gaps }));
    } else if gaps.is_empty() {
        out!("no gaps");
    } else {
        for gap in gaps {
            out!("{gap}");
        }
    }
    Ok(Exit::Clean)
}
