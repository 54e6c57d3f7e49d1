//! What an operator orders: step-down, pause, resume, and release by force.

use std::time::Instant;

use tenure::operate::{Lowered, Operator, RoleState};
use tenure::{Identity, Lease, RoleName};

use crate::args::{OrderArgs, Release, StepDown};
use crate::exit::{Exit, Failure};
use crate::output::out;
use crate::setting::Setting;
use crate::status::unknown;
use crate::table::span;

async fn connect(order: &OrderArgs) -> Result<(Operator, RoleName), Failure> {
    let role = order.role.required()?;
    let setting = Setting::of(&order.database)?;
    Ok((Operator::connect(&setting.config).await?, role))
}

pub(crate) async fn step_down(args: StepDown) -> Result<Exit, Failure> {
    let (mut operator, role) = connect(&args.order).await?;
    let to = match &args.to {
        Some(part) => Some(member_called(&operator, &role, part).await?),
        None => None,
    };
    let lease = *Setting::of(&args.order.database)?.config.lease();
    reachable(&operator, &role, &lease).await?;
    let begun = Instant::now();
    let ordered = operator.step_down(&role, to.as_ref()).await?;
    let before = name(ordered.holder.as_ref());
    let successor = operator.await_successor(&role, ordered.epoch, args.timeout).await?;
    let took = begun.elapsed();
    operator.close().await;
    match successor {
        Some(now) => {
            let holder = name(now.holder.as_ref());
            let mut what = if holder == before {
                format!("{before} stepped down, and leads again")
            } else {
                format!("{holder} took over from {before}")
            };
            if let Some(to) = to.filter(|to| Some(to) != now.holder.as_ref()) {
                what += &format!(", because {to} did not claim it within a lease,");
            }
            out!(
                "{role}: {what} after {:.3} s (epoch {} -> {})",
                took.as_secs_f64(),
                ordered.epoch,
                now.epoch
            );
            Ok(Exit::Clean)
        }
        None => Err(Failure::failed(format!(
            "{before} was asked to step down from {role}, but no member leads it after {:?}; \
                 `tenure status` shows the members that wait",
            args.timeout
        ))),
    }
}

/// A leader that is gone or silent hears no order, and needs none.
async fn reachable(operator: &Operator, role: &RoleName, lease: &Lease) -> Result<(), Failure> {
    let roles = operator.status(Some(role)).await?;
    let Some(status) = roles.first() else { return Ok(()) };
    let holder = name(status.holder.as_ref());
    let longest = span(status.lease + lease.margin_for(status.lease));
    let why = match status.state {
        RoleState::Gone => format!(
            "{holder}, the last leader of {role}, is gone; no order is needed: a member that waits \
             leads within {longest} of its end"
        ),
        RoleState::Silent => format!(
            "{holder} has been silent for longer than its lease and leads {role} no more; no order \
             is needed: the server ends its session, at once with `tenure release --role {role} \
             --force`"
        ),
        _ => return Ok(()),
    };
    Err(Failure::new(Exit::NoLeader, format!("{why}; `tenure status` shows which members wait")))
}

fn name(member: Option<&Identity>) -> String {
    member.map_or_else(|| "no member".to_owned(), ToString::to_string)
}

/// The identity that `part` stands for among the role's candidates.
async fn member_called(
    operator: &Operator,
    role: &RoleName,
    part: &str,
) -> Result<Identity, Failure> {
    let roles = operator.status(Some(role)).await?;
    if roles.is_empty() {
        return Err(unknown(role));
    }
    let waiting = roles.iter().flat_map(|role| role.waiting.iter().map(|waiting| &waiting.member));
    let known = waiting.chain(roles.iter().filter_map(|role| role.holder.as_ref()));
    let alike: Vec<&Identity> = known.filter(|member| member.as_str().contains(part)).collect();
    match alike[..] {
        [only] => Ok(only.clone()),
        [] => Err(Failure::new(
            Exit::NotFound,
            format!("no member of role {role} is called {part}; `tenure status` lists them"),
        )),
        [..] => Err(Failure::failed(format!(
            "{part} is part of {} members' names; write more of it",
            alike.len()
        ))),
    }
}

pub(crate) async fn pause(order: OrderArgs) -> Result<Exit, Failure> {
    let (operator, role) = connect(&order).await?;
    let before = operator.status(Some(&role)).await?;
    let ordered = operator.pause(&role).await?;
    operator.close().await;
    let state = before.first().map(|status| status.state);
    match ordered.holder {
        Some(holder) if state == Some(RoleState::Gone) => {
            out!("{role} is paused; {holder}, its last leader, is gone");
        }
        Some(holder) if state == Some(RoleState::Silent) => {
            out!(
                "{role} is paused; {holder} has been silent for longer than its lease and leads it no more"
            );
        }
        Some(holder) => out!("{role} is paused; {holder} drains it"),
        None => out!("{role} is paused; no member leads it"),
    }
    Ok(Exit::Clean)
}

pub(crate) async fn resume(order: OrderArgs) -> Result<Exit, Failure> {
    let (operator, role) = connect(&order).await?;
    operator.resume(&role).await?;
    operator.close().await;
    out!("{role} is open again");
    Ok(Exit::Clean)
}

pub(crate) async fn lower_lease(order: OrderArgs) -> Result<Exit, Failure> {
    let (operator, role) = connect(&order).await?;
    let lowered = operator.lower_lease(&role).await?;
    operator.close().await;
    let Lowered { from, to, .. } = lowered;
    if from == to {
        out!("{role}: the lease stays {from:?}, the longest that takes part");
    } else {
        out!("{role}: the lease is {to:?} now, {from:?} before");
    }
    Ok(Exit::Clean)
}

pub(crate) async fn release(args: Release) -> Result<Exit, Failure> {
    if !args.force {
        return Err(Failure::usage(
            "release ends the session that holds the lock, of Tenure or of another program; add --force if \
             `tenure step-down` does not help",
        ));
    }
    let (operator, role) = connect(&args.order).await?;
    let ordered = operator.force_release(&role).await?;
    operator.close().await;
    let ended = ordered.sessions_ended.unwrap_or(0);
    if let Some(left @ 1..) = ordered.sessions_left {
        return Err(Failure::failed(format!(
            "the sessions that hold the lock of {role} did not end within two seconds ({left} left); nothing was \
             changed. Ask again, or end the server process itself"
        )));
    }
    if ended == 0 {
        return Err(Failure::failed(format!(
            "no session holds the lock of {role}, so none was ended; `tenure status --role {role}` tells why it \
             has no leader"
        )));
    }
    let sessions = if ended == 1 { "1 session".to_owned() } else { format!("{ended} sessions") };
    match ordered.holder {
        Some(holder) => out!(
            "{role}: {sessions} ended, the leader {holder} under epoch {}; under exclusive the next leader \
             still waits out its lease",
            ordered.epoch
        ),
        // What another program did under the lock is not known: the next winner owes it a wait.
        None => out!("{role}: {sessions} ended that no leader of ours held"),
    }
    Ok(Exit::Clean)
}
