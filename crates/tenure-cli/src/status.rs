//! `tenure status` and `tenure history`: what the database knows.

use std::io::IsTerminal;
use std::time::Duration;

use comfy_table::{Cell, Table};
use jiff::Timestamp;
use tenure::operate::{LockHolder, Operator, RoleState, RoleStatus};
use tenure::{RoleName, TenureError};

use crate::args::{History, Status};
use crate::exit::{Exit, Failure};
use crate::output::{self, err, out, print_json};
use crate::setting::Setting;
use crate::signals::Signals;
use crate::table::{Hue, Names, ago, colour, moment, print, second, span, table, table_of};

/// The pause between two looks of `--watch`.
const AGAIN: Duration = Duration::from_secs(1);

pub(crate) async fn status(args: Status) -> Result<Exit, Failure> {
    args.role.name()?;
    let setting = Setting::of(&args.database)?;
    let operator = Operator::connect(&setting.config).await?;
    if !args.watch {
        let exit = show(&operator, &args).await;
        operator.close().await;
        return exit;
    }
    let mut signals = Signals::listen()?;
    let clears = !args.json && std::io::stdout().is_terminal();
    let mut session = Some(operator);
    loop {
        // A restart of the database is what a person watches for: it does not end the watch.
        let looked = async {
            let operator = match session.take() {
                Some(operator) => operator,
                None => Operator::connect(&setting.config).await?,
            };
            let shown = watch(&operator, &args, clears).await;
            if shown.is_ok() {
                session = Some(operator);
            }
            shown
        };
        let looked = tokio::select! {
            looked = looked => looked,
            () = signals.next() => return Ok(Exit::Clean),
        };
        match looked {
            Err(failure) if failure.exit == Exit::Unreachable => {
                err!("{failure} ({})", moment(Some(Timestamp::now())));
            }
            Err(failure) => return Err(failure),
            Ok(()) if output::is_closed() => return Ok(Exit::Clean),
            Ok(()) => {}
        }
        tokio::select! {
            () = signals.next() => return Ok(Exit::Clean),
            () = tokio::time::sleep(AGAIN) => {}
        }
    }
}

/// One look of many. The screen is cleared only when there is something to show in its place.
async fn watch(operator: &Operator, args: &Status, clears: bool) -> Result<(), Failure> {
    let name = args.role.name()?;
    operator.status(name.as_ref()).await?;
    if clears {
        // Home and clear, as `watch` does.
        out!("\x1b[H\x1b[2J");
    }
    show(operator, args).await.map(drop)
}

async fn show(operator: &Operator, args: &Status) -> Result<Exit, Failure> {
    let name = args.role.name()?;
    // A bare key needs no schema: it may be another program's lock altogether.
    if let (None, Some(key)) = (&args.role.role, args.role.lock_key()) {
        let holders = operator.lock_holders(key).await?;
        if args.json {
            print_json(&holders);
        } else if holders.is_empty() {
            out!("no session holds lock {key}");
        } else {
            let rows = holders.iter().map(|holder| {
                let user = holder.user.clone().unwrap_or_default();
                vec![holder.pid.to_string(), program(holder), user, yes(holder.tenure)]
            });
            print(&table(&["pid", "program", "user", "tenure"], rows));
        }
        return Ok(if holders.is_empty() { Exit::Failed } else { Exit::Clean });
    }
    let roles = operator.status(name.as_ref()).await?;
    if args.json {
        print_json(&roles);
    } else if roles.is_empty() && name.is_none() {
        out!("no role is known here yet; `tenure run --role NAME` makes one");
    } else if !roles.is_empty() {
        print(&overview(&roles, args.wide));
        for (role, holder) in strangers(&roles) {
            let program = program(holder);
            // A seat whose member is not the holder of record: one without tables, or one that takes over.
            let whose = if program.contains("tenure seat ") {
                "a session of Tenure that is not its leader's of record, a lock-only member's perhaps"
            } else {
                "a program that is not Tenure"
            };
            out!("note: the lock of {role} is held by {whose}: {program} (pid {})", holder.pid);
        }
    }
    match name {
        Some(name) if roles.is_empty() => Err(unknown(&name)),
        _ => Ok(Exit::Clean),
    }
}

/// A question about a role that the database does not know is a mistake, not an empty answer. A role that
/// was forgotten is known by the order that did it.
pub(crate) async fn known(operator: &Operator, role: &RoleName) -> Result<(), Failure> {
    let is_known = !operator.status(Some(role)).await?.is_empty()
        || !operator.orders(Some(role), 1).await?.is_empty();
    if is_known { Ok(()) } else { Err(unknown(role)) }
}

pub(crate) fn unknown(role: &RoleName) -> Failure {
    TenureError::NoSuchRole(role.clone()).into()
}

/// What a person asks first: which member leads, since when, and which ones wait.
fn overview(roles: &[RoleStatus], wide: bool) -> Table {
    let members = roles.iter().flat_map(|role| {
        role.holder.iter().chain(role.waiting.iter().map(|waiting| &waiting.member))
    });
    let names = Names::of(members, wide);
    let mut header = vec!["role", "epoch", "leader", "state", "since", "beat", "waiting"];
    if wide {
        header.extend(["policy", "lease", "key"]);
    }
    let rows = roles.iter().map(|role| {
        let mut row = vec![
            Cell::new(role.role.as_str()),
            Cell::new(role.epoch),
            Cell::new(role.holder.as_ref().map_or("-", |holder| names.short(holder))),
            colour(Cell::new(state(role)), verdict(role)),
            Cell::new(if wide { moment(role.since) } else { second(role.since) }),
            Cell::new(role.heartbeat_age.map_or_else(|| "-".to_owned(), ago)),
            Cell::new(waiting(role, &names)),
        ];
        if wide {
            row.push(Cell::new(role.policy));
            row.push(Cell::new(span(role.lease)));
            row.push(Cell::new(role.key));
        }
        row
    });
    table_of(&header, rows, wide)
}

/// Good while a role is led, bad while a dead or silent member is in the way of the next leader.
fn verdict(role: &RoleStatus) -> Hue {
    match role.state {
        RoleState::Led if !role.paused => Hue::Good,
        RoleState::Gone | RoleState::Silent => Hue::Bad,
        _ => Hue::Care,
    }
}

fn state(role: &RoleStatus) -> String {
    let mut state = match role.state {
        RoleState::Vacant => "vacant",
        RoleState::TakingOver => "taking over",
        RoleState::Led => "led",
        RoleState::Silent => "silent",
        RoleState::Gone => "leader gone",
        // `RoleState` may grow.
        _ => "unknown",
    }
    .to_owned();
    if role.paused {
        state.push_str(", paused");
    }
    if role.step_down_ordered {
        state.push_str(", stepping down");
    }
    state
}

fn waiting(role: &RoleStatus, names: &Names) -> String {
    if role.waiting.is_empty() {
        return "-".to_owned();
    }
    let lines = role.waiting.iter().map(|member| {
        let mut notes = Vec::new();
        if member.observer {
            notes.push("observer".to_owned());
        } else if !member.ready {
            notes.push("not ready".to_owned());
        }
        if member.priority != 0 {
            notes.push(format!("priority {}", member.priority));
        }
        // The age of a heartbeat matters only if it is too old.
        if let Some(age) = member.heartbeat_age.filter(|age| *age > role.lease) {
            notes.push(format!("silent {}", ago(age)));
        }
        let name = names.short(&member.member);
        if notes.is_empty() { name.to_owned() } else { format!("{name} ({})", notes.join(", ")) }
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn strangers(roles: &[RoleStatus]) -> impl Iterator<Item = (&str, &LockHolder)> {
    roles.iter().flat_map(|role| {
        let holders = role.lock_held_by.as_deref().unwrap_or_default();
        let others = holders.iter().filter(|holder| holder.tenure != Some(true));
        others.map(|holder| (role.role.as_str(), holder))
    })
}

fn program(holder: &LockHolder) -> String {
    match holder.program.as_deref() {
        None | Some("") => "(no name)".to_owned(),
        Some(name) => name.to_owned(),
    }
}

fn yes(is: Option<bool>) -> String {
    if is == Some(true) { "yes" } else { "no" }.to_owned()
}

pub(crate) async fn history(args: History) -> Result<Exit, Failure> {
    let name = args.order.role.name()?;
    let setting = Setting::of(&args.order.database)?;
    let operator = Operator::connect(&setting.config).await?;
    if let Some(name) = &name {
        known(&operator, name).await?;
    }
    let terms = operator.history(name.as_ref(), args.limit).await?;
    let orders = operator.orders(name.as_ref(), args.limit).await?;
    operator.close().await;
    if args.json && args.orders {
        print_json(&orders);
        return Ok(Exit::Clean);
    }
    if args.json {
        print_json(&terms);
        return Ok(Exit::Clean);
    }
    let time = |at| if args.wide { moment(at) } else { second(at) };
    if args.orders || !orders.is_empty() {
        print(&table_of(
            &["role", "ordered", "what", "epoch", "by"],
            orders.iter().map(|order| {
                vec![
                    order.role.to_string(),
                    time(Some(order.at)),
                    order.kind.to_string(),
                    order.epoch.map_or_else(|| "-".to_owned(), |epoch| epoch.to_string()),
                    order.detail.clone(),
                ]
            }),
            args.wide,
        ));
    }
    if args.orders {
        return Ok(Exit::Clean);
    }
    let names = Names::of(terms.iter().map(|term| &term.member), args.wide);
    let mut header = vec!["role", "epoch", "member", "led from", "until", "how it ended"];
    if args.wide {
        header.push("claimed");
    }
    let rows = terms.iter().map(|term| {
        let mut row = vec![
            term.role.to_string(),
            term.epoch.to_string(),
            names.short(&term.member).to_owned(),
            time(term.acting_at),
            time(term.ended_at),
            match term.how {
                Some(how) => how.to_string(),
                None if term.gone => "leader gone".to_owned(),
                None => "-".to_owned(),
            },
        ];
        if args.wide {
            row.push(moment(Some(term.claimed_at)));
        }
        row
    });
    print(&table_of(&header, rows, args.wide));
    Ok(Exit::Clean)
}
