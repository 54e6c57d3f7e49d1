//! `tenure acquire`: leads once, or says that somebody else does.

use std::time::Duration;

use tenure::Notice;
use tokio::time::{Instant, sleep_until};

use crate::args::{Acquire, Hooks, Output};
use crate::exit::{Exit, Failure};
use crate::output::{err, out};
use crate::run::{Campaign, EMBEDDED, Ended};
use crate::setting::Setting;
use crate::signals::Signals;

pub(crate) async fn acquire(args: Acquire) -> Result<Exit, Failure> {
    let mut signals = Signals::listen()?;
    let setting = Setting::new(&args.database, &args.role, &args.taking, false)?;
    let role = setting.only_role(&args.role)?;
    if setting.embedded {
        err!("{EMBEDDED}");
    }
    let hooks = Hooks::default();
    let mut campaign = tokio::select! {
        campaign = Campaign::join(&setting, &role, &hooks, Output::Quiet, true) => campaign?,
        () = signals.next() => return Ok(Exit::Failed),
    };
    let exit = attempt(&mut campaign, &args, &mut signals).await;
    campaign.leave().await;
    exit
}

async fn attempt(
    campaign: &mut Campaign,
    args: &Acquire,
    signals: &mut Signals,
) -> Result<Exit, Failure> {
    let refused = tokio::select! {
        refused = win(campaign, args.wait) => refused?,
        () = signals.next() => return Ok(Exit::Failed),
    };
    if let Some(why) = refused {
        let role = campaign.lock.role();
        let message = format!("role {role} was not acquired: {why}; --wait waits for it");
        return Err(Failure::failed(message));
    }
    if args.command.is_empty() {
        let epoch = campaign.lock.gate().epoch();
        out!("acquired {} epoch {}", campaign.lock.role(), epoch.map_or(0, |epoch| epoch.get()));
        return Ok(Exit::Clean);
    }
    match campaign.child(&args.command, signals).await? {
        Some((_, true)) => Ok(Exit::Clean),
        Some((Ended::Exited(code) | Ended::NotStarted(code), false)) => Ok(Exit::Child(code)),
        Some((Ended::Stopped, false)) | None => Err(Failure::new(
            Exit::Lost,
            "leadership was lost while the command ran, and it was ended; run it again",
        )),
    }
}

/// None once the gate is open; why not, when the first attempt failed or `wait` is over.
async fn win(campaign: &mut Campaign, wait: Option<Duration>) -> Result<Option<String>, Failure> {
    let until = Instant::now() + wait.unwrap_or(Duration::from_secs(365 * 86_400));
    let mut changes = campaign.lock.changes();
    let mut why = "nobody was asked yet".to_owned();
    loop {
        if campaign.lock.is_leader() {
            return Ok(None);
        }
        let failed = tokio::select! {
            _ = changes.changed() => false,
            // From before the start on, so that not even the first attempt is missed.
            event = campaign.told.recv() => match event.map(|event| event.notice) {
                Ok(Notice::AcquireFailed { why: reason }) => {
                    why = reason.to_string();
                    true
                }
                Ok(Notice::Lost { reason, .. }) => {
                    why = reason.to_string();
                    true
                }
                Ok(Notice::Stopped) => true,
                Ok(Notice::Error(_)) => campaign.trouble().await?.is_some(),
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
                wait.is_none() && campaign.trouble().await?.is_some_and(|why| !why.is_empty())
            }
            () = sleep_until(until) => true,
        };
        if failed && (wait.is_none() || Instant::now() >= until) {
            return match campaign.trouble().await? {
                Some(why) if !why.is_empty() => {
                    Err(Failure::new(Exit::Unreachable, format!("{why}; nothing was acquired")))
                }
                Some(_) | None => Ok(Some(why)),
            };
        }
    }
}
