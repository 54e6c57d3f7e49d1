//! `list`, `show`, `watch` and `gaps`: what the table says.

use std::collections::BTreeSet;
use std::process::ExitCode;

use clap::Args;
use comfy_table::{Table, presets};
use serde_json::{Value, json};
use tokio_postgres::error::SqlState;

use super::{ReadArgs, complain, say};
use tenure_tx::feed::{FeedItem, FeedOptions, feed};
use tenure_tx::status::State;
use tenure_tx::store::{StoreError, StoredTransaction};

/// `tenure tx list`
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Whose.
    #[command(flatten)]
    pub(crate) read: ReadArgs,
    /// Only open ones.
    #[arg(long)]
    pub(crate) open: bool,
    /// From this nonce on.
    #[arg(long, default_value_t = 0)]
    pub(crate) from: u64,
}

/// `tenure tx show`
#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// Whose.
    #[command(flatten)]
    pub(crate) read: ReadArgs,
    /// A nonce, or a request id.
    pub(crate) which: String,
}

/// `tenure tx watch`
#[derive(Debug, Args)]
pub(crate) struct WatchArgs {
    /// Whose.
    #[command(flatten)]
    pub(crate) read: ReadArgs,
    /// Stop when this nonce has ended.
    #[arg(long)]
    pub(crate) until: Option<u64>,
}

/// `tenure tx gaps`
#[derive(Debug, Args)]
pub(crate) struct GapsArgs {
    /// Whose.
    #[command(flatten)]
    pub(crate) read: ReadArgs,
}

/// A database on which no node ever ran is the commonest mistake.
fn explain(error: StoreError) -> anyhow::Error {
    match &error {
        StoreError::Database(refused)
            if [
                SqlState::UNDEFINED_TABLE,
                SqlState::UNDEFINED_FUNCTION,
                SqlState::INVALID_SCHEMA_NAME,
            ]
            .iter()
            .any(|code| refused.code() == Some(code)) =>
        {
            anyhow::anyhow!(
                "this database has no table of transactions; start a node on it first, or check \
                 the connection string"
            )
        }
        _ => error.into(),
    }
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

pub(super) async fn list(args: ListArgs) -> anyhow::Result<ExitCode> {
    let store = args.read.store()?;
    let mut from = args.from;
    let mut table = Table::new();
    table.load_preset(presets::UTF8_HORIZONTAL_ONLY);
    table.set_header([
        "nonce", "state", "hash", "request", "creator", "epoch", "attempts", "updated",
    ]);
    loop {
        let rows = store.list(from).await.map_err(explain)?;
        let Some(last) = rows.last() else { break };
        from = last.nonce + 1;
        for row in rows.iter().filter(|row| !(args.open && row.ended)) {
            if args.read.json {
                say(object(row))?;
                continue;
            }
            let state = if row.noop {
                format!("{} (no-op)", row.status.state())
            } else {
                row.status.state().to_string()
            };
            let (nonce, epoch) = (row.nonce.to_string(), row.epoch.get().to_string());
            let attempts = row.attempts.len().to_string();
            let hash = row.hash.to_string();
            table.add_row([
                &nonce,
                &state,
                &hash,
                &row.request_id,
                &row.creator_id,
                &epoch,
                &attempts,
                &row.updated_at,
            ]);
        }
    }
    if !args.read.json {
        say(table)?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn show(args: ShowArgs) -> anyhow::Result<ExitCode> {
    let store = args.read.store()?;
    let row = match args.which.parse() {
        Ok(nonce) => store.by_nonce(nonce).await.map_err(explain)?,
        Err(_) => {
            let rows = store.by_request(std::slice::from_ref(&args.which)).await;
            rows.map_err(explain)?.into_iter().next()
        }
    };
    let Some(row) = row else {
        complain(format_args!(
            "no transaction {} of account {}; see `tx list`",
            args.which, args.read.account
        ));
        return Ok(ExitCode::from(4));
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
        say(value)?;
    } else {
        for (name, value) in value.as_object().into_iter().flatten() {
            match value {
                Value::String(text) => say(format_args!("{name:16} {text}"))?,
                other => say(format_args!("{name:16} {other}"))?,
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn watch(args: WatchArgs) -> anyhow::Result<ExitCode> {
    let store = args.read.store()?;
    let after = match args.until {
        // What has happened already counts.
        Some(_) => 0,
        None => store.newest_change().await.map_err(explain)?,
    };
    let mut items = feed(store, after, FeedOptions::default());
    while let Some(item) = items.recv().await {
        match item {
            FeedItem::Row(row) => {
                if args.until.is_none_or(|nonce| nonce == row.nonce) {
                    if args.read.json {
                        say(object(&row))?;
                    } else {
                        let state = row.status.state();
                        let block = row.status.block().map(|b| format!(" {b}")).unwrap_or_default();
                        say(format_args!("{:>8} {state:16} {}{block}", row.nonce, row.hash))?;
                    }
                }
                if row.ended && args.until == Some(row.nonce) {
                    return Ok(ExitCode::SUCCESS);
                }
            }
            FeedItem::Stale(reason) => tracing::error!(reason, "the view is stale"),
            FeedItem::Fresh => tracing::warn!("the view is fresh again"),
            other => tracing::debug!(?other, "an item this command does not know"),
        }
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn gaps(args: GapsArgs) -> anyhow::Result<ExitCode> {
    let store = args.read.store()?;
    let snapshot = store.snapshot().await.map_err(explain)?;
    let used: BTreeSet<u64> = snapshot.open.iter().map(|row| row.nonce).collect();
    // What is below every open row is the chain's past, unless the table says that it ended unused.
    // Such rows are few, and none is below what was used for good.
    let lowest = used.first().copied().unwrap_or(snapshot.consumed).max(snapshot.consumed);
    let highest = used.last().copied().unwrap_or(0);
    let mut gaps: Vec<u64> =
        (lowest..highest).filter(|nonce| !used.contains(nonce)).take(1_000).collect();
    for row in store.list(snapshot.consumed).await.map_err(explain)? {
        if row.ended && row.status.state() == State::Invalid && row.nonce < highest {
            gaps.push(row.nonce);
        }
    }
    gaps.sort_unstable();
    gaps.dedup();
    if args.read.json {
        say(json!({ "gaps": gaps }))?;
    } else if gaps.is_empty() {
        say("no gaps")?;
    } else {
        for gap in gaps {
            say(gap)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
