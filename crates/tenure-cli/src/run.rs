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
use std::time::Duration;

use tenure::config::Config;
use tenure::{LeaderLock, LockState};
use tenure_agent::child::Restarts;
use tenure_guardian::Strays;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Instant, sleep};

use crate::acquire::silence;
use crate::args::{Output, Run};
use crate::candidacy::Candidacy;
use crate::exit::{Exit, Failure};
use crate::health::Checks;
use crate::listener::Listener;
use crate::output::err;
use crate::setting::{EMBEDDED, NOT_ENABLED, Setting};
use crate::signals::Signals;
use crate::supervisor::{Course, Ended};
use crate::table::span;

pub(crate) async fn run(args: Run) -> Result<Exit, Failure> {
    let mut signals = Signals::listen()?;
    let listener = match args.http {
        Some(address) => Some(Listener::bind(address).await?),
        None => None,
    };
    let Run { database, taking, behaviour, hooks, .. } = &args;
    let setting = Setting::new(database, &args.role, taking, behaviour, !args.no_auto_reacquire)?;
    let role = setting.only_role(&args.role)?;
    let with_child = !args.command.is_empty();
    let output = args.form();
    // Standard error is for objects only when both of these are so.
    let objects = with_child && output == Output::Json;
    if setting.embedded && !objects {
        err!("{EMBEDDED}");
    }
    let mut candidacy = tokio::select! {
        candidacy = Candidacy::join(&setting, &role, hooks, output, with_child) => candidacy?,
        // Nothing is held yet.
        () = signals.next() => return Ok(Exit::Clean),
        silence = unanswered(&setting.config) => return Err(silence),
    };
    if setting.embedded && objects {
        candidacy.events.report("warning", None, EMBEDDED);
    }
    if !setting.config.is_enabled() {
        candidacy.events.report("warning", None, NOT_ENABLED);
    }
    if let Some(listener) = listener {
        let address = listener.address();
        candidacy.events.report("metrics", None, format!("http://{address}/metrics"));
        listener.probe(candidacy.member());
    }
    let health = tokio::spawn(Checks::of(&candidacy, hooks).watch(candidacy.serving()));
    let strays = tokio::spawn(reap_strays());
    let exit = serve(&mut candidacy, &args.command, args.restart, &mut signals).await;
    strays.abort();
    health.abort();
    let _ = health.await;
    candidacy.leave().await;
    exit
}

/// With a configured patience, the failure of a database that never answers; without one, never.
async fn unanswered(config: &Config) -> Failure {
    match config.acquire_timeout() {
        Some(patience) => silence(config, patience).await,
        None => std::future::pending().await,
    }
}

/// Until a signal, the child's exit, or a loss that is final.
async fn serve(
    candidacy: &mut Candidacy,
    command: &[OsString],
    restart: bool,
    signals: &mut Signals,
) -> Result<Exit, Failure> {
    let mut restarts = Restarts::default();
    let lock = candidacy.lock.clone();
    let patience = candidacy.config().acquire_timeout();
    loop {
        // All branches are cancel-safe.
        tokio::select! {
            () = signals.next() => return Ok(Exit::Clean),
            exit = candidacy.stopped() => return exit,
            won = won(&lock, patience) => won?,
        }
        if command.is_empty() {
            candidacy.serves(true);
            let mut changes = lock.changes();
            let ended = tokio::select! {
                () = signals.next() => Some(Ok(Exit::Clean)),
                exit = candidacy.stopped() => Some(exit),
                _ = changes.wait_for(|change| !change.is_leader) => None,
            };
            candidacy.serves(false);
            match ended {
                Some(exit) => return exit,
                None => continue,
            }
        }
        let began = Instant::now();
        let Some(Course { ended, signal }) = candidacy.child(command, signals).await? else {
            continue;
        };
        match ended {
            _ if signal.is_some() => return Ok(Exit::Clean),
            Ended::Exited(_) if restart => {
                tokio::select! {
                    () = signals.next() => return Ok(Exit::Clean),
                    () = sleep(restarts.pause(began.elapsed())) => {}
                }
            }
            Ended::Exited(code) | Ended::NotStarted(code) => return Ok(Exit::Child(code)),
            Ended::Stopped { .. } => {}
        }
    }
}

/// Returns once this process leads. Fails when another member still leads after the configured
/// patience; what is left of a crashed leader's lease is waited out beyond it. Cancel-safe.
async fn won(lock: &LeaderLock, patience: Option<Duration>) -> Result<(), Failure> {
    let mut led = Box::pin(async {
        if lock.led().await.is_err() {
            // A member that was shut down never leads again: the role's end follows.
            std::future::pending().await
        }
    });
    let Some(patience) = patience else {
        led.await;
        return Ok(());
    };
    // All branches are cancel-safe.
    tokio::select! {
        biased;
        () = &mut led => return Ok(()),
        () = sleep(patience) => {}
    }
    tokio::select! {
        biased;
        () = led => Ok(()),
        () = follows(lock) => Err(Failure::failed(format!(
            "role {} was not acquired within {} (acquire_timeout); raise it, or leave it out to \
             wait without end",
            lock.role(),
            span(patience)
        ))),
    }
}

/// Returns once this process is a follower; a state is published before its event.
async fn follows(lock: &LeaderLock) {
    let mut events = lock.events();
    while lock.state() != LockState::Follower {
        if let Err(RecvError::Closed) = events.recv().await {
            // The member has ended: the role's end follows.
            std::future::pending().await
        }
    }
}

/// What hooks leave behind falls to this process, see [`tenure_guardian::Guarded::start`].
async fn reap_strays() {
    let mut strays = Strays::default();
    loop {
        sleep(Duration::from_secs(1)).await;
        strays.reap();
    }
}
