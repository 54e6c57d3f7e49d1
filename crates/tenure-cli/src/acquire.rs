//! `tenure acquire`: leads once, or says that another member does.

use std::time::Duration;

use tenure::Notice;
use tokio::time::{Instant, sleep_until};

use crate::args::{Acquire, Hooks, Output};
use crate::candidacy::Candidacy;
use crate::exit::{Exit, Failure};
use crate::output::{err, out};
use crate::setting::{EMBEDDED, Setting};
use crate::signals::Signals;
use crate::supervisor::Ended;

pub(crate) async fn acquire(args: Acquire) -> Result<Exit, Failure> {
    let mut signals = Signals::listen()?;
    let setting = Setting::new(&args.database, &args.role, &args.taking, false)?;
    let role = setting.only_role(&args.role)?;
    if setting.embedded {
        err!("{EMBEDDED}");
    }
    let hooks = Hooks::default();
    let mut candidacy = tokio::select! {
        candidacy = Candidacy::join(&setting, &role, &hooks, Output::Quiet, true) => candidacy?,
        () = signals.next() => return Ok(Exit::Failed),
    };
    let exit = attempt(&mut candidacy, &args, &mut signals).await;
    candidacy.leave().await;
    exit
}

async fn attempt(
    candidacy: &mut Candidacy,
    args: &Acquire,
    signals: &mut Signals,
) -> Result<Exit, Failure> {
    tokio::select! {
        won = win(candidacy, args.wait) => won?,
        () = signals.next() => return Ok(Exit::Failed),
    }
    if args.command.is_empty() {
        let epoch = candidacy.lock.gate().epoch();
        out!("acquired {} epoch {}", candidacy.lock.role(), epoch.map_or(0, |epoch| epoch.get()));
        return Ok(Exit::Clean);
    }
    match candidacy.child(&args.command, signals).await? {
        Some((_, true)) => Ok(Exit::Clean),
        Some((Ended::Exited(code) | Ended::NotStarted(code), false)) => Ok(Exit::Child(code)),
        Some((Ended::Stopped, false)) | None => Err(Failure::new(
            Exit::Lost,
            "leadership was lost while the command ran, and it was ended; run it again",
        )),
    }
}

/// Returns once the gate is open; fails when the first attempt failed or `wait` is over.
async fn win(candidacy: &mut Candidacy, wait: Option<Duration>) -> Result<(), Failure> {
    let until = Instant::now() + wait.unwrap_or(Duration::from_secs(365 * 86_400));
    let mut changes = candidacy.lock.changes();
    let mut why = "the database was not asked yet".to_owned();
    loop {
        if candidacy.lock.is_leader() {
            return Ok(());
        }
        let failed = tokio::select! {
            _ = changes.changed() => false,
            event = candidacy.told.recv() => match event.map(|event| event.notice) {
                Ok(Notice::AcquireFailed { why: reason }) => {
                    why = reason.to_string();
                    true
                }
                Ok(Notice::Lost { reason, .. }) => {
                    why = reason.to_string();
                    true
                }
                Ok(Notice::Stopped) => true,
                Ok(Notice::Error(_)) => candidacy.trouble().await?.is_some(),
                Ok(
                    Notice::StateChange { .. }
                    | Notice::Acquired { .. }
                    | Notice::Released { .. }
                    | Notice::Late { .. }
                    | Notice::Well { .. }
                    | Notice::Recovered { .. },
                ) => false,
                // Missed events: the repair is to look again.
                Err(_) => false,
            },
            // Nothing may ever come: look at the database's health now and then.
            () = tokio::time::sleep(Duration::from_millis(100)) => {
                wait.is_none() && candidacy.trouble().await?.is_some_and(|why| !why.is_empty())
            }
            () = sleep_until(until) => true,
        };
        if failed && (wait.is_none() || Instant::now() >= until) {
            return match candidacy.trouble().await? {
                Some(why) if !why.is_empty() => {
                    Err(Failure::new(Exit::Unreachable, format!("{why}; nothing was acquired")))
                }
                Some(_) | None => {
                    let role = candidacy.lock.role();
                    Err(Failure::failed(format!(
                        "role {role} was not acquired: {why}; --wait waits for it"
                    )))
                }
            };
        }
    }
}
