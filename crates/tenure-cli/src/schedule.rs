//! `tenure schedule`: what the schedules of a group are, did and should do now.

use std::time::Duration;

use clap::{Args, Subcommand};
use jiff::Timestamp;
use tenure::Identity;
use tenure_agent::desk::{Attempted, Desk, DeskError, Recorded, SlotState};
use tenure_agent::store::StoreError;
use tokio::time::{Instant, sleep};

use crate::args::{Database, period};
use crate::exit::{Exit, Failure};
use crate::output::{out, print_json};
use crate::setting::Setting;
use crate::table::{ago, print, second, table_of};

/// Between two looks at an ordered run.
const LOOK: Duration = Duration::from_millis(200);

#[derive(Debug, Subcommand)]
pub(crate) enum ScheduleCommand {
    /// List the schedules: next and latest slot, dead letters, members whose files differ
    List(List),
    /// Order a run now; its role's leader carries it out
    Run(RunNow),
    /// List the latest slots, with how they ended
    History(History),
    /// List the dead letters: slots that failed for good or were interrupted
    Dead(Dead),
}

#[derive(Debug, Args)]
pub(crate) struct List {
    #[command(flatten)]
    database: Database,
    /// As JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct RunNow {
    /// The schedule
    name: String,
    #[command(flatten)]
    database: Database,
    /// A dead letter to run again: its slot, as `tenure schedule dead` shows it
    #[arg(long, value_name = "SLOT", value_parser = instant)]
    slot: Option<Timestamp>,
    /// Wait for the end of the run; exit 0 only if it succeeded
    #[arg(long, value_name = "TIME", value_parser = period)]
    wait: Option<Duration>,
}

fn instant(text: &str) -> Result<Timestamp, &'static str> {
    text.parse()
        .map_err(|_| "write an instant as `tenure schedule dead` shows it: 2026-07-01T03:00:00Z")
}

#[derive(Debug, Args)]
pub(crate) struct History {
    /// The schedule [default: all]
    name: Option<String>,
    #[command(flatten)]
    database: Database,
    /// How many slots, the latest first
    #[arg(long, default_value_t = 20, value_name = "N")]
    limit: u32,
    /// Also print what each attempt wrote
    #[arg(long)]
    outputs: bool,
    /// As JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Dead {
    /// The schedule [default: all]
    name: Option<String>,
    #[command(flatten)]
    database: Database,
    /// How many, the latest first
    #[arg(long, default_value_t = 100, value_name = "N")]
    limit: u32,
    /// As JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(command: ScheduleCommand) -> Result<Exit, Failure> {
    match command {
        ScheduleCommand::List(args) => list(args).await,
        ScheduleCommand::Run(args) => run_now(args).await,
        ScheduleCommand::History(args) => history(args).await,
        ScheduleCommand::Dead(args) => dead(args).await,
    }
}

async fn list(args: List) -> Result<Exit, Failure> {
    let schedules = desk(&args.database)?.list(None).await.map_err(failed)?;
    if args.json {
        print_json(&schedules);
        return Ok(Exit::Clean);
    }
    let rows = schedules.iter().map(|schedule| {
        let last = schedule.last.as_ref();
        let state = last.map_or("-".to_owned(), |last| last.state.to_string());
        let zone = if schedule.timezone == "UTC" {
            String::new()
        } else {
            format!(" {}", schedule.timezone)
        };
        vec![
            schedule.name.clone(),
            schedule.role.to_string(),
            format!("{}{zone}", schedule.cron),
            second(schedule.next_at),
            second(last.map(|last| last.at)),
            state,
            schedule.dead.to_string(),
        ]
    });
    print(&table_of(&["schedule", "role", "when", "next", "last", "state", "dead"], rows, false));
    for schedule in schedules.iter().filter(|schedule| schedule.removed) {
        let leader = schedule.leader.as_ref().map_or("its last leader", Identity::as_str);
        out!("{} does not fire: the file of {leader} does not have it", schedule.name);
    }
    let kept = || schedules.iter().filter(|schedule| !schedule.removed);
    for schedule in kept().filter(|schedule| !schedule.differs.is_empty()) {
        let differs: Vec<&str> = schedule.differs.iter().map(Identity::as_str).collect();
        out!("{} is defined otherwise by {}", schedule.name, differs.join(", "));
    }
    for schedule in kept().filter(|schedule| schedule.leader.is_none()) {
        out!("{} does not fire now: role {} has no leader", schedule.name, schedule.role);
    }
    Ok(Exit::Clean)
}

async fn run_now(args: RunNow) -> Result<Exit, Failure> {
    let desk = desk(&args.database)?;
    let by = tenure::operate::this_operator();
    let ordered = desk.order_run(&args.name, args.slot, &by).await;
    let (role, order) = ordered.map_err(|error| match error {
        DeskError::Store(StoreError::Unknown(why)) => Failure::new(
            Exit::Uncertain,
            format!(
                "it is not known whether {} was ordered ({why}); `tenure schedule history {}` tells",
                args.name, args.name
            ),
        ),
        other => failed(other),
    })?;
    let Some(wait) = args.wait else {
        out!("{} is ordered; the leader of {role} runs it", args.name);
        return Ok(Exit::Clean);
    };
    let until = Instant::now() + wait;
    loop {
        // The order is taken: a database that is away for a while does not end the wait.
        let slot = desk.ordered(order).await;
        let away = slot.as_ref().err().map(ToString::to_string);
        if let Some(slot) = slot.ok().flatten().filter(|slot| slot.ended_at.is_some()) {
            out!("{} {} {}", slot.schedule, slot.at, slot.state);
            return Ok(if slot.state == SlotState::Succeeded { Exit::Clean } else { Exit::Failed });
        }
        if Instant::now() >= until {
            let why = away.map(|why| format!(" ({why})")).unwrap_or_default();
            return Err(Failure::failed(format!(
                "{} has not ended yet, as far as is known{why}; the order stays, `tenure schedule history {}` \
                 tells how it ends",
                args.name, args.name
            )));
        }
        sleep(LOOK).await;
    }
}

async fn history(args: History) -> Result<Exit, Failure> {
    let desk = desk(&args.database)?;
    if let Some(name) = &args.name {
        desk.list(Some(name)).await.map_err(failed)?;
    }
    let slots = desk.history(args.name.as_deref(), false, args.limit).await.map_err(failed)?;
    if args.json {
        print_json(&slots);
        return Ok(Exit::Clean);
    }
    show_times(&slots, args.name.is_some());
    if args.outputs {
        for slot in &slots {
            for attempt in &slot.attempts {
                let output = attempt.output.as_deref().unwrap_or("(nothing)");
                out!("--- {} {} attempt {}", slot.schedule, slot.at, attempt.number);
                out!("{}", output.trim_end());
            }
        }
    }
    Ok(Exit::Clean)
}

async fn dead(args: Dead) -> Result<Exit, Failure> {
    let slots = desk(&args.database)?;
    let slots = slots.history(args.name.as_deref(), true, args.limit).await.map_err(failed)?;
    if args.json {
        print_json(&slots);
    } else if slots.is_empty() {
        out!("no dead letters");
    } else {
        show(&slots);
        out!("run one again: tenure schedule run SCHEDULE --slot SLOT");
    }
    Ok(Exit::Clean)
}

fn show(slots: &[Recorded]) {
    let rows = slots.iter().map(|slot| {
        let code = slot.attempts.last().and_then(|attempt| attempt.code);
        vec![
            slot.schedule.clone(),
            slot.at.to_string(),
            slot.state.to_string(),
            slot.attempts.len().to_string(),
            code.map_or("-".to_owned(), |code| code.to_string()),
            why(slot).unwrap_or_default(),
        ]
    });
    print(&table_of(&["schedule", "slot", "state", "attempts", "code", "why"], rows, false));
}

/// With when the last attempt began, in UTC, and how long it took. A schedule that was named need not be shown.
fn show_times(slots: &[Recorded], is_named: bool) {
    let took = |attempt: &Attempted| {
        Duration::try_from(attempt.ended_at?.duration_since(attempt.started_at)).ok().map(ago)
    };
    let rows = slots.iter().map(|slot| {
        let last = slot.attempts.last();
        let code = last.and_then(|attempt| attempt.code).filter(|code| *code != 0);
        let why = why(slot).or(code.map(|code| format!("exit code {code}")));
        let mut row = vec![
            slot.schedule.clone(),
            slot.at.to_string(),
            slot.state.to_string(),
            second(last.map(|attempt| attempt.started_at)),
            last.and_then(took).unwrap_or_else(|| "-".to_owned()),
            slot.attempts.len().to_string(),
            why.unwrap_or_default(),
        ];
        if is_named {
            row.remove(0);
        }
        row
    });
    let header = ["schedule", "slot", "state", "started", "took", "tries", "why"];
    print(&table_of(&header[usize::from(is_named)..], rows, false));
}

fn why(slot: &Recorded) -> Option<String> {
    let reason = slot.attempts.last().and_then(|attempt| attempt.reason.clone());
    let missed = (slot.missed > 0).then(|| {
        format!("and {}{} before it", slot.missed, if slot.more { " or more" } else { "" })
    });
    reason.or(missed)
}

fn desk(database: &Database) -> Result<Desk, Failure> {
    Desk::new(&Setting::of(database)?.config).map_err(failed)
}

pub(crate) fn failed(error: DeskError) -> Failure {
    let exit = match &error {
        DeskError::UnknownSchedule(_) | DeskError::NoDeadLetter(_) => Exit::NotFound,
        DeskError::NoSchedules | DeskError::TooMany(_) => Exit::Failed,
        DeskError::Store(error) if error.needs_an_owner() => Exit::Refused,
        // `DeskError` may grow; whatever it says, the database did not do it.
        _ => Exit::Unreachable,
    };
    let remedy = if exit == Exit::Unreachable { "; try again" } else { "" };
    Failure::new(exit, format!("{error}{remedy}"))
}
