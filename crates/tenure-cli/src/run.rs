//! `tenure run`: takes part, tells what happens, and lets a child run only while it leads.
//!
//! ```text
//!  follow ──gate opens──► child starts ──exits──► release, exit with its code (or --restart)
//!    ▲                        │
//!    └── gone ◄── stop ◄──────┤ gate drains (step-down), shuts (loss), SIGTERM
//!        gone ◄── guardian ◄──┘ no news of a later deadline
//! ```
//!
//! While a child lives an *act* is in flight, so a step-down waits for its end and the release is
//! clean; and the next child starts only after the guardian said that no process of the last is left.
//! The guardian alone keeps the deadline. What is decided here can only end a child earlier.

use std::ffi::OsString;
use std::sync::Weak;
use std::time::Duration;

use serde_json::json;
use tenure::Member;
use tenure_guardian::Strays;
use tokio::time::{Instant, sleep};

use crate::args::{Output, Run};
use crate::candidacy::Candidacy;
use crate::exit::{Exit, Failure};
use crate::hooks;
use crate::listener::{Health, Listener};
use crate::output::err;
use crate::setting::{EMBEDDED, Setting};
use crate::signals::Signals;
use crate::supervisor::Ended;

/// A child that ran this long is no longer one that fails at once.
const STEADY: Duration = Duration::from_secs(10);
const RESTART_PAUSE: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));

pub(crate) async fn run(args: Run) -> Result<Exit, Failure> {
    let mut signals = Signals::listen()?;
    let listener = match args.metrics {
        Some(address) => Some(Listener::bind(address).await?),
        None => None,
    };
    let setting = Setting::new(&args.database, &args.role, &args.taking, !args.no_auto_reacquire)?;
    let role = setting.only_role(&args.role)?;
    let with_child = !args.command.is_empty();
    // Standard error is for objects only when both of these are so.
    if setting.embedded && !(with_child && args.output == Output::Json) {
        err!("{EMBEDDED}");
    }
    let mut candidacy = tokio::select! {
        candidacy = Candidacy::join(&setting, &role, &args.hooks, args.output, with_child) => candidacy?,
        // Nothing is held yet.
        () = signals.next() => return Ok(Exit::Clean),
    };
    if setting.embedded && with_child && args.output == Output::Json {
        candidacy.events.tell("warning", None, EMBEDDED);
    }
    if let Some(listener) = listener {
        candidacy.events.tell("metrics", None, format!("http://{}/metrics", listener.address()));
        let member = candidacy.member();
        listener.serve(move || health(member.clone()));
    }
    let health = hooks::watch_health(
        args.hooks.clone(),
        candidacy.lock.clone(),
        candidacy.events.clone(),
        candidacy.identity().to_owned(),
    );
    let health = tokio::spawn(health);
    let strays = tokio::spawn(reap_strays());
    let exit = serve(&mut candidacy, &args.command, args.restart, &mut signals).await;
    strays.abort();
    health.abort();
    let _ = health.await;
    candidacy.leave().await;
    exit
}

/// Until a signal, the child's exit, or a loss that is final.
async fn serve(
    candidacy: &mut Candidacy,
    command: &[OsString],
    restart: bool,
    signals: &mut Signals,
) -> Result<Exit, Failure> {
    let mut pause = RESTART_PAUSE.0;
    let lock = candidacy.lock.clone();
    loop {
        let ended = candidacy.stopped();
        tokio::select! {
            () = signals.next() => return Ok(Exit::Clean),
            exit = ended => return Ok(exit),
            // Cancel-safe. A member that was shut down never leads again: the role's end follows.
            Ok(_) = lock.wait_for_leadership(None), if !command.is_empty() => {}
        }
        let began = Instant::now();
        let Some((ended, signalled)) = candidacy.child(command, signals).await? else { continue };
        match ended {
            _ if signalled => return Ok(Exit::Clean),
            Ended::Exited(_) if restart => {
                if began.elapsed() >= STEADY {
                    pause = RESTART_PAUSE.0;
                }
                tokio::select! {
                    () = signals.next() => return Ok(Exit::Clean),
                    () = sleep(pause) => {}
                }
                pause = (pause * 2).min(RESTART_PAUSE.1);
            }
            Ended::Exited(code) | Ended::NotStarted(code) => return Ok(Exit::Child(code)),
            Ended::Stopped => {}
        }
    }
}

/// A member that has no session is not well; whether it leads says nothing about that.
async fn health(member: Weak<Member>) -> Health {
    let health = match member.upgrade() {
        Some(member) => member.health().await.ok(),
        None => None,
    };
    let Some(health) = health else {
        return Health { healthy: false, details: json!({"error": "the member has ended"}) };
    };
    let roles = health.roles.iter().map(|role| {
        json!({"role": role.role.as_str(), "state": role.state.as_str(), "is_leader": role.is_leader})
    });
    let details = json!({
        "member": health.identity,
        "connected": health.connected,
        "heartbeat_age_ms": health.heartbeat_age.map(|age| age.as_millis()),
        "error": health.error,
        "roles": roles.collect::<Vec<_>>(),
    });
    Health { healthy: health.connected, details }
}

/// What hooks leave behind falls to this process, see [`tenure_guardian::Guarded::start`].
async fn reap_strays() {
    let mut strays = Strays::default();
    loop {
        sleep(Duration::from_secs(1)).await;
        strays.reap();
    }
}
