//! `tenure prune`: deletes old history, for groups without an agent.

use std::time::Duration;

use clap::Args;
use tenure_agent::retention::{Retention, RetentionError, SLOTS_KEPT, prune as prune_all};

use crate::args::{Database, some_time};
use crate::exit::{Exit, Failure};
use crate::output::out;
use crate::setting::Setting;
use crate::table::count;

#[derive(Debug, Args)]
pub(crate) struct Prune {
    #[command(flatten)]
    database: Database,
    /// Delete terms, events and runs that ended before that
    #[arg(long, value_name = "TIME", value_parser = some_time, default_value = "90d")]
    older_than: Duration,
    /// Keep at most so many terms of a role, and slots of a schedule
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(2..))]
    keep: u32,
}

pub(crate) async fn prune(args: Prune) -> Result<Exit, Failure> {
    let config = Setting::of(&args.database)?.config;
    let retention = Retention { age: args.older_than, terms: args.keep };
    let deleted = prune_all(&config, retention, || true).await.map_err(|error| match error {
        RetentionError::Operator(error) => error.into(),
        RetentionError::Store(error) if error.needs_an_owner() => {
            Failure::new(Exit::Refused, error.to_string())
        }
        other => Failure::new(Exit::Unreachable, format!("{other}; try again")),
    })?;
    out!(
        "deleted {}, {} and {}; every role keeps its last two terms",
        count(deleted.terms, "term"),
        count(deleted.events, "event"),
        count(deleted.slots, "slot")
    );
    if deleted.slots_kept {
        tracing::warn!("{SLOTS_KEPT}");
    }
    Ok(Exit::Clean)
}
