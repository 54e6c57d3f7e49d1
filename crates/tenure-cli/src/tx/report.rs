//! `list`, `show`, `watch` and `gaps`: what the table says.

use std::collections::BTreeSet;

use clap::Args;
use jiff::Timestamp;
use serde_json::{Value, json};
use tenure_tx::feed::{FeedItem, FeedOptions, feed};
use tenure_tx::status::{End, State};
use tenure_tx::store::{Store, StoredTransaction};

use super::{ReadArgs, ask};
use crate::exit::{Exit, Failure};
use crate::output::{self, err, out};
use crate::table::{ago, moment, print, table_of};

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
    /// Every column, unshortened
    #[arg(long)]
    pub(crate) wide: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    #[command(flatten)]
    pub(crate) read: ReadArgs,
    /// A request id or a nonce, if it can mean only one of them
    #[arg(required_unless_present_any = ["id", "nonce"])]
    pub(crate) which: Option<String>,
    /// The request with this id
    #[arg(long, conflicts_with_all = ["which", "nonce"])]
    pub(crate) id: Option<String>,
    /// The transaction with this nonce
    #[arg(long, conflicts_with = "which")]
    pub(crate) nonce: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct WatchArgs {
    #[command(flatten)]
    pub(crate) read: ReadArgs,
    /// Stop when this nonce has ended; the exit code tells how
    #[arg(long, value_name = "NONCE", conflicts_with = "until_id")]
    pub(crate) until: Option<u64>,
    /// Stop when the request with this id has ended; the exit code tells how
    #[arg(long, value_name = "ID")]
    pub(crate) until_id: Option<String>,
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
        "end": row.note.end,
        "corrected": row.note.corrected,
        "answer": row.note.answer,
        "noop": row.noop,
        "attempts": row.attempts,
        "request_id": row.request_id,
        "creator_id": row.creator_id,
        "epoch": row.epoch.get(),
        "created_at": row.created_at.to_string(),
        "updated_at": row.updated_at.to_string(),
        "deadline_in_s": row.deadline.map(|left| left.as_secs()),
        "change": row.change,
    })
}

/// How it ended, or where it stands, in a word or two.
fn standing(row: &StoredTransaction) -> String {
    match (&row.note.end, row.noop) {
        (Some(end), _) => end.kind.to_string(),
        (None, true) => format!("{} (no-op)", row.status.state()),
        (None, false) => row.status.state().to_string(),
    }
}

/// The exit code of a row that has ended.
fn exit_of(row: &StoredTransaction) -> Exit {
    row.note.end.as_ref().map_or(Exit::NotExecuted, |end| ask::exit_of(end))
}

/// The beginning and the end of a text that is longer than `most` characters.
fn short(text: &str, most: usize) -> String {
    let length = text.chars().count();
    if length <= most {
        return text.to_owned();
    }
    let (head, tail) = (most / 2, most - most / 2 - 1);
    let begin: String = text.chars().take(head).collect();
    let end: String = text.chars().skip(length - tail).collect();
    format!("{begin}…{end}")
}

pub(super) async fn list(args: ListArgs) -> Result<Exit, Failure> {
    let store = args.read.store()?;
    let mut from = args.from;
    let mut rows = Vec::new();
    // The lowest nonce that the chain's node does not take: all behind it wait for it.
    let mut held: Option<String> = None;
    let now = Timestamp::now();
    loop {
        let page = store.list(from).await?;
        let Some(last) = page.last() else { break };
        from = last.nonce + 1;
        for row in page.iter().filter(|row| !(args.open && row.ended)) {
            if let Some(answer) = row.note.answer.as_ref().filter(|_| !row.ended && held.is_none())
            {
                let (nonce, id) = (row.nonce, &row.request_id);
                held = Some(format!(
                    "nonce {nonce} waits, and all behind it; the chain's node said: {answer}\n\
                     to give it up: tenure tx drop --request-id {id}"
                ));
            }
            if args.read.json {
                out!("{}", object(row));
                continue;
            }
            let updated = row.updated_at;
            let (nonce, attempts) = (row.nonce.to_string(), row.attempts.len().to_string());
            rows.push(if args.wide {
                vec![
                    nonce,
                    standing(row),
                    row.hash.to_string(),
                    row.request_id.clone(),
                    row.creator_id.clone(),
                    row.epoch.to_string(),
                    attempts,
                    moment(Some(updated)),
                    block_of(row),
                    end_of(row, |end| end.fee.map(|fee| fee.to_string())),
                    end_of(row, |end| end.reason.clone()),
                ]
            } else {
                let age = now.duration_since(updated).unsigned_abs();
                vec![
                    nonce,
                    standing(row),
                    short(&row.hash.to_string(), 13),
                    short(&row.request_id, 20),
                    attempts,
                    ago(age),
                ]
            });
        }
    }
    if !args.read.json {
        let wide = [
            "nonce", "state", "hash", "request", "creator", "epoch", "attempts", "updated",
            "block", "fee", "reason",
        ];
        let narrow = ["nonce", "state", "hash", "request", "tries", "changed"];
        if rows.is_empty() && !args.open && args.from == 0 {
            err!("account {} has no transactions in this table", args.read.account);
        }
        print(&table_of(if args.wide { &wide } else { &narrow }, rows, args.wide));
        if let Some(held) = held {
            out!("{held}");
        }
    }
    Ok(Exit::Clean)
}

/// What the row's end says of one thing.
fn end_of(row: &StoredTransaction, what: impl Fn(&End) -> Option<String>) -> String {
    row.note.end.as_deref().and_then(what).unwrap_or_else(|| "-".to_owned())
}

/// The number of the block that it ended in, else the hash of the one it was last seen in.
fn block_of(row: &StoredTransaction) -> String {
    let number = row.note.end.as_ref().and_then(|end| end.block_number);
    let hash = || row.status.block().map(|block| block.to_string());
    number.map(|number| number.to_string()).or_else(hash).unwrap_or_else(|| "-".to_owned())
}

/// The row that is meant.
async fn find(args: &ShowArgs, store: &Store) -> Result<Option<StoredTransaction>, Failure> {
    let by_id = async |id: &str| {
        let rows = store.by_request(&[id.to_owned()]).await?;
        Ok::<_, Failure>(rows.into_iter().next_back())
    };
    let (id, nonce) = match &args.which {
        Some(which) => (Some(which), which.parse().ok()),
        None => (args.id.as_ref(), args.nonce),
    };
    let named = match id {
        Some(id) => by_id(id).await?,
        None => None,
    };
    let numbered = match nonce {
        Some(nonce) => store.by_nonce(nonce).await?,
        None => None,
    };
    match (named, numbered) {
        (Some(named), Some(numbered)) if named.request_id != numbered.request_id => {
            let (id, nonce) = (named.request_id, named.nonce);
            Err(Failure::usage(format!(
                "{id} is the id of a request (nonce {nonce}) and the nonce of another; say --id or \
                 --nonce"
            )))
        }
        (Some(row), _) | (None, Some(row)) => Ok(Some(row)),
        (None, None) => Ok(None),
    }
}

pub(super) async fn show(args: ShowArgs) -> Result<Exit, Failure> {
    let store = args.read.store()?;
    let Some(row) = find(&args, &store).await? else {
        let nonce = args.nonce.map(|nonce| nonce.to_string());
        let which = args.which.or(args.id).or(nonce).unwrap_or_default();
        let account = &args.read.account;
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
        return Ok(Exit::Clean);
    }
    // What people look for first.
    let stands = row.note.end.as_ref().map_or_else(|| standing(&row), ToString::to_string);
    out!("{:16} {stands}", "stands");
    if let Some(told) = &row.note.corrected {
        out!("{:16} {told}", "told before");
    }
    for (name, value) in value.as_object().into_iter().flatten() {
        match value {
            Value::Null => {}
            Value::String(text) => out!("{name:16} {text}"),
            other => out!("{name:16} {other}"),
        }
    }
    Ok(Exit::Clean)
}

pub(super) async fn watch(args: WatchArgs) -> Result<Exit, Failure> {
    let store = args.read.store()?;
    let bounded = args.until.is_some() || args.until_id.is_some();
    // Asked in either case: a table that is not there, or cannot be reached, is told at once.
    let newest = store.newest_change().await?;
    // What has happened already counts.
    let after = if bounded { 0 } else { newest };
    let mut items = feed(store, after, FeedOptions::default());
    while let Some(item) = items.recv().await {
        if output::is_closed() {
            break;
        }
        match item {
            FeedItem::Row(row) => {
                let meant = args.until.is_none_or(|nonce| nonce == row.nonce)
                    && args.until_id.as_ref().is_none_or(|id| *id == row.request_id);
                if !meant {
                    continue;
                }
                if args.read.json {
                    out!("{}", object(&row));
                } else {
                    let stands = standing(&row);
                    let again = if row.note.corrected.is_some() { " corrected:" } else { "" };
                    let told = row.note.end.as_ref().map(|end| format!("{again} {end}"));
                    let block = row.status.block().map(|block| format!(" {block}"));
                    let rest = told.or(block).unwrap_or_default();
                    out!("{:>8} {stands:16} {}{rest}", row.nonce, row.hash);
                }
                // A refused request whose nonce was given away is not the end of its nonce.
                if row.ended && bounded && (args.until.is_none() || !is_given_away(&row)) {
                    return Ok(exit_of(&row));
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

/// Whether another request may have, or get, this one's nonce.
fn is_given_away(row: &StoredTransaction) -> bool {
    row.ended && row.status.state() == State::Invalid && row.call_digest.is_some()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_keeps_its_beginning_and_its_end() {
        assert_eq!(short("invoice-7", 20), "invoice-7");
        assert_eq!(
            short(&format!("0x{}", "ab".repeat(32)), 13),
            "0xabab…bababab"[..].replace("bababab", "ababab")
        );
        assert_eq!(short("äöüäöüäöü", 5).chars().count(), 5);
    }
}
