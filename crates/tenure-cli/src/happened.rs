//! `tenure events`: what happened in the group, for people; and on, as it happens.

use std::collections::BTreeSet;
use std::time::Duration;

use clap::Args;
use tenure::operate::Operator;
use tenure::{BootClock, Clock};
use tenure_agent::desk::{Desk, Happened};
use tokio::time::sleep;

use crate::args::{Database, RoleArgs, period};
use crate::exit::{Exit, Failure};
use crate::output::{is_closed, out};
use crate::schedule::failed;
use crate::setting::Setting;
use crate::status::known;

/// Between two looks.
const LOOK: Duration = Duration::from_secs(1);
/// How far a look goes back: a transaction may commit later than it says.
const BACK: Duration = Duration::from_secs(30);
/// How many events one look shows at most.
const MANY: u32 = 10_000;

#[derive(Debug, Args)]
pub(crate) struct EventsArgs {
    #[command(flatten)]
    role: RoleArgs,
    #[command(flatten)]
    database: Database,
    /// How far back
    #[arg(long, value_name = "TIME", value_parser = period, default_value = "1d")]
    since: Duration,
    /// How many events, the latest
    #[arg(long, default_value_t = 50, value_name = "N")]
    limit: u32,
    /// Go on, as events happen
    #[arg(short, long)]
    follow: bool,
    /// One object per line
    #[arg(long)]
    json: bool,
}

pub(crate) async fn events(args: EventsArgs) -> Result<Exit, Failure> {
    let role = args.role.name()?;
    let setting = Setting::of(&args.database)?;
    let desk = Desk::new(&setting.config).map_err(failed)?;
    let mut shown = BTreeSet::new();
    let found = desk.events(role.as_ref(), args.since, args.limit).await.map_err(failed)?;
    // A role may be forgotten, and its events be kept.
    if let Some(role) = role.as_ref().filter(|_| found.is_empty()) {
        let operator = Operator::connect(&setting.config).await?;
        known(&operator, role).await?;
        operator.close().await;
    }
    for event in found {
        show(&event, args.json);
        shown.insert((event.at, event.key));
    }
    let mut looked = BootClock.now();
    while args.follow && !is_closed() {
        sleep(LOOK).await;
        let begun = BootClock.now();
        let back = BACK + begun.saturating_since(looked);
        let found = match desk.events(role.as_ref(), back, MANY).await {
            Ok(found) => {
                looked = begun;
                found
            }
            // A database that is away comes back; what happened meanwhile is shown then.
            Err(error) => {
                tracing::warn!("{error}");
                continue;
            }
        };
        let Some(oldest) = found.first().map(|event| event.at) else { continue };
        let newest = shown.last().map(|(at, _)| *at);
        for event in found {
            let key = (event.at, event.key.clone());
            // What was left out of the first page is not news.
            let is_news = newest.is_none_or(|newest| event.at + BACK >= newest);
            if is_news && shown.insert(key) {
                show(&event, args.json);
            }
        }
        // What no look can find again need not be remembered.
        shown.retain(|(at, _)| *at >= oldest);
    }
    Ok(Exit::Clean)
}

fn show(event: &Happened, json: bool) {
    if json {
        out!("{}", serde_json::to_string(event).unwrap_or_default());
        return;
    }
    let mut text = format!("{} {:<16}", event.at.strftime("%Y-%m-%dT%H:%M:%S%.3fZ"), event.event);
    let epoch = event.epoch.map(|epoch| format!("epoch {epoch}"));
    let schedule = event.schedule.as_ref().map(|name| format!("schedule {name}"));
    let slot = event.slot.map(|slot| format!("slot {slot}"));
    let detail = event
        .detail
        .as_ref()
        .filter(|detail| !detail.is_empty())
        .map(|detail| format!("({detail})"));
    let role = event.role.as_ref().map(ToString::to_string);
    let member = event.member.as_ref().map(ToString::to_string);
    for part in [role, member, epoch, schedule, slot, detail].into_iter().flatten() {
        text.push_str("  ");
        text.push_str(&part);
    }
    out!("{text}");
}
