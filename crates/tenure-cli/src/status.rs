//! `tenure status` and `tenure history`: what the database knows.

use std::time::Duration;

use tenure::operate::{LockHolder, Operator, RoleStatus, Waiting};
use tenure::{RoleName, TenureError};

use crate::args::{History, Status};
use crate::exit::{Exit, Failure};
use crate::output::{self, out, print_json};
use crate::setting::Setting;
use crate::signals::Signals;
use crate::table::{ago, moment, print, table};

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
    loop {
        if !args.json {
            // Home and clear, as `watch` does.
            out!("\x1b[H\x1b[2J");
        }
        show(&operator, &args).await?;
        if output::is_closed() {
            return Ok(Exit::Clean);
        }
        tokio::select! {
            () = signals.next() => return Ok(Exit::Clean),
            () = tokio::time::sleep(Duration::from_secs(1)) => {}
        }
    }
}

async fn show(operator: &Operator, args: &Status) -> Result<Exit, Failure> {
    let name = args.role.name()?;
    // A bare key needs no schema: it may be another program's lock altogether.
    if let (None, Some(key)) = (&args.role.role, args.role.lock_key()) {
        let holders = operator.lock_holders(key).await?;
        if args.json {
            print_json(&holders);
        } else if holders.is_empty() {
            out!("nobody holds lock {key}");
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
        print(&table(
            &["role", "epoch", "leader", "heartbeat", "since", "policy", "waiting", "state"],
            roles.iter().map(|role| {
                vec![
                    role.role.to_string(),
                    role.epoch.to_string(),
                    role.holder.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string),
                    role.heartbeat_age.map_or_else(|| "-".to_owned(), ago),
                    moment(role.since),
                    role.policy.to_string(),
                    waiting(&role.waiting),
                    state(role),
                ]
            }),
        ));
        for (role, holder) in strangers(&roles) {
            out!(
                "note: the lock of {role} is held by a program that is not Tenure: {} (pid {})",
                program(holder),
                holder.pid
            );
        }
    }
    match name {
        Some(name) if roles.is_empty() => Err(unknown(&name)),
        _ => Ok(Exit::Clean),
    }
}

/// A question about a role that the database does not know is a mistake, not an empty answer.
pub(crate) async fn known(operator: &Operator, role: &RoleName) -> Result<(), Failure> {
    if operator.status(Some(role)).await?.is_empty() { Err(unknown(role)) } else { Ok(()) }
}

pub(crate) fn unknown(role: &RoleName) -> Failure {
    TenureError::NoSuchRole(role.clone()).into()
}

fn state(role: &RoleStatus) -> String {
    let state = match (&role.holder, role.acting) {
        (None, _) => "vacant",
        (Some(_), true) => "led",
        (Some(_), false) => "waiting out the last lease",
    };
    let mut state = state.to_owned();
    if role.paused {
        state.push_str(", paused");
    }
    if role.step_down_ordered {
        state.push_str(", stepping down");
    }
    state
}

fn waiting(members: &[Waiting]) -> String {
    if members.is_empty() {
        return "-".to_owned();
    }
    let told = members.iter().map(|member| {
        let mut notes = Vec::new();
        if member.observer {
            notes.push("observer".to_owned());
        } else if !member.ready {
            notes.push("not ready".to_owned());
        }
        if member.priority != 0 {
            notes.push(format!("priority {}", member.priority));
        }
        notes.extend(member.heartbeat_age.map(ago));
        format!("{} ({})", member.member, notes.join(", "))
    });
    told.collect::<Vec<_>>().join("\n")
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
    operator.close().await;
    if args.json {
        print_json(&terms);
        return Ok(Exit::Clean);
    }
    print(&table(
        &["role", "epoch", "member", "claimed", "led from", "until", "how it ended"],
        terms.iter().map(|term| {
            vec![
                term.role.to_string(),
                term.epoch.to_string(),
                term.member.to_string(),
                moment(Some(term.claimed_at)),
                moment(term.acting_at),
                moment(term.ended_at),
                term.how.map_or_else(|| "-".to_owned(), |how| how.to_string()),
            ]
        }),
    ));
    Ok(Exit::Clean)
}
