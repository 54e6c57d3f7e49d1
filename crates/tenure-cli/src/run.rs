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
//! clean; and the next child starts only after the guardian said that nobody of the last is left.
//! The guardian alone keeps the deadline. What is decided here can only end a child earlier.

use std::ffi::OsString;
use std::process::ExitStatus;
use std::sync::{Arc, Weak};
use std::time::Duration;

use serde_json::json;
use tenure::{
    Act, BootClock, Clock, Epoch, Event, LeaderLock, LockState, Member, Notice, Refusal, RoleName,
    TakeoverPolicy, TenureError, Tick,
};
use tenure_guardian::{EndedBy, Guarded, News, Strays, Times};
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use crate::args::{Hooks, Output, Run};
use crate::events::{Events, Writer};
use crate::exit::{Exit, Failure};
use crate::hooks::{self, HookRunner};
use crate::listener::{Health, Listener};
use crate::output::err;
use crate::setting::Setting;
use crate::signals::Signals;

/// How long the last lines may take.
const FLUSH: Duration = Duration::from_secs(1);
/// What a guardian may take beyond the grace before it counts as frozen; the lease may say so sooner.
const OVERDUE: Duration = Duration::from_secs(1);
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
    let mut campaign = tokio::select! {
        campaign = Campaign::join(&setting, &role, &args.hooks, args.output, with_child) => campaign?,
        // Nothing is held yet.
        () = signals.next() => return Ok(Exit::Clean),
    };
    if setting.embedded && with_child && args.output == Output::Json {
        campaign.events.tell("warning", None, EMBEDDED);
    }
    if let Some(listener) = listener {
        campaign.events.tell("metrics", None, format!("http://{}/metrics", listener.address()));
        let member = Arc::downgrade(&campaign.member);
        listener.serve(move || health(member.clone()));
    }
    let health = hooks::watch_health(
        args.hooks.clone(),
        campaign.lock.clone(),
        campaign.events.clone(),
        campaign.identity().to_owned(),
    );
    let health = tokio::spawn(health);
    let strays = tokio::spawn(reap_strays());
    let exit = campaign.serve(&args.command, args.restart, &mut signals).await;
    strays.abort();
    health.abort();
    let _ = health.await;
    campaign.leave().await;
    exit
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

/// Whoever forgot the DSN must not believe to be safe.
pub(crate) const EMBEDDED: &str = "NO DATABASE CONFIGURED: using the private PostgreSQL of this \
    machine, so there is one leader per MACHINE, not per cluster; set TENURE_DSN for more";

/// One role of one member, as a program takes part in it.
pub(crate) struct Campaign {
    member: Arc<Member>,
    pub(crate) lock: LeaderLock,
    policy: TakeoverPolicy,
    pub(crate) events: Events,
    writer: Writer,
    pub(crate) told: broadcast::Receiver<Event>,
    teller: tokio::task::JoinHandle<()>,
    lost: bool,
}

/// How a child came to its end.
pub(crate) enum Ended {
    /// By itself, with this code.
    Exited(u8),
    /// It could not be started.
    NotStarted(u8),
    /// Because leadership ended, or because we were told to end.
    Stopped,
}

impl Campaign {
    /// Starts the member and enters the race.
    pub(crate) async fn join(
        setting: &Setting,
        role: &RoleName,
        hooks: &Hooks,
        output: Output,
        to_stderr: bool,
    ) -> Result<Self, Failure> {
        let member = Arc::new(Member::start(setting.config.clone()).await?);
        let lock = member.lock(role.as_str())?;
        let configured = setting.config.roles().iter().find(|config| config.name() == role);
        let policy = configured.map_or_else(TakeoverPolicy::default, |role| role.policy());
        let identity = member.identity().as_str().to_owned();
        let (events, writer) =
            Events::start(role.as_str(), &identity, setting.embedded, output, to_stderr);
        let told = lock.events();
        let runner = HookRunner::start(hooks, &events, role.as_str(), &identity);
        let teller = tokio::spawn(tell(lock.events(), events.clone(), runner));
        lock.start().await?;
        Ok(Campaign { member, lock, policy, events, writer, told, teller, lost: false })
    }

    pub(crate) fn identity(&self) -> &str {
        self.member.identity().as_str()
    }

    /// Whether the database answers now, and what it said if not.
    pub(crate) async fn trouble(&self) -> Result<Option<String>, TenureError> {
        let health = self.member.health().await?;
        Ok(if health.connected { None } else { Some(health.error.unwrap_or_default()) })
    }

    /// Until a signal, the child's exit, or a loss that is final.
    async fn serve(
        &mut self,
        command: &[OsString],
        restart: bool,
        signals: &mut Signals,
    ) -> Result<Exit, Failure> {
        let mut pause = RESTART_PAUSE.0;
        loop {
            tokio::select! {
                () = signals.next() => return Ok(Exit::Clean),
                exit = Self::stopped(&mut self.told, &self.lock, &mut self.lost) => return Ok(exit),
                // Cancel-safe: it only looks.
                () = leads(&self.lock), if !command.is_empty() => {}
            }
            let began = Instant::now();
            let Some((ended, signalled)) = self.child(command, signals).await? else { continue };
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

    /// Runs a child to its end under the lock; none if leadership had gone before it began. Also
    /// says whether a signal asked us to end.
    pub(crate) async fn child(
        &mut self,
        command: &[OsString],
        signals: &mut Signals,
    ) -> Result<Option<(Ended, bool)>, Failure> {
        let gate = self.lock.gate();
        let Ok(token) = gate.require_leader() else { return Ok(None) };
        // In flight as long as anybody of the child lives: the release is clean or it is not.
        let Ok(act) = gate.begin_act(Duration::ZERO) else { return Ok(None) };
        let epoch = token.epoch;
        let lease = *self.member.config().lease();
        let env = hooks::variables(self.lock.role().as_str(), self.identity(), Some(epoch));
        let mut child = Guarded::start(command, &env, Times::of(&lease), token.deadline())?;
        // Often enough that the guardian never lags a heartbeat by more than a twentieth of it.
        let mut look = interval(
            (lease.heartbeat() / 20).clamp(Duration::from_millis(2), Duration::from_millis(50)),
        );
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut changes = self.lock.changes();
        let mut signalled = false;
        // The end of the grace, once the child was told to stop.
        let mut stopping = None;
        let mut fed = token.deadline();
        let ended = loop {
            tokio::select! {
                news = child.next() => match news {
                    News::Started { pid } => {
                        self.events.tell("child_started", Some(epoch), format!("pid {pid}"));
                    }
                    News::NotStarted { errno } => {
                        break self.not_started(command, epoch, errno);
                    }
                    News::Gone { status, by } => {
                        break self.gone(epoch, status, by);
                    }
                    News::GuardianDied { all_ended } => {
                        self.guardian_died(epoch, all_ended, act).await;
                        return Ok(Some((Ended::Stopped, signalled)));
                    }
                },
                () = signals.next() => {
                    if signalled {
                        child.stop(Duration::ZERO);
                    }
                    stop(&child, &mut stopping, lease.kill_grace());
                    signalled = true;
                }
                // Both only wake us: what counts is what the gate says now. A member that is gone
                // leaves a gate that is shut.
                _ = changes.changed() => {}
                _ = look.tick() => {}
            }
            match gate.require_leader() {
                Ok(token) if token.epoch == epoch => {
                    if token.deadline() > fed {
                        fed = token.deadline();
                        child.extend(fed);
                    }
                }
                Ok(_) => stop(&child, &mut stopping, lease.kill_grace()),
                Err(refused) if self.ends_child(refused.reason) => {
                    stop(&child, &mut stopping, lease.kill_grace());
                }
                Err(_) => {}
            }
            // A frozen guardian must not let the child outlive the lease, nor hold up our end.
            let end = stopping.map_or(fed, |end| fed.min(end));
            if child.is_overdue(BootClock.now(), end) {
                child.dismiss();
            }
        };
        drop(act);
        child.reap().await;
        Ok(Some((ended, signalled)))
    }

    /// Whether a gate that says no ends the child now, or leaves it to the deadline: a session that
    /// may be won back, or a beat that is late, does not yet let anybody else in under `exclusive`.
    fn ends_child(&self, refusal: Refusal) -> bool {
        if refusal == Refusal::Draining || self.policy == TakeoverPolicy::Fenced {
            return true;
        }
        match self.lock.state() {
            LockState::Leader | LockState::Reconnecting => false,
            LockState::Stopped
            | LockState::Follower
            | LockState::Acquiring
            | LockState::Releasing => true,
        }
    }

    fn not_started(&self, command: &[OsString], epoch: Epoch, errno: i32) -> Ended {
        let why = std::io::Error::from_raw_os_error(errno);
        let program = command.first().map(|name| name.to_string_lossy()).unwrap_or_default();
        let told = format!("`{program}` cannot be run: {why}; check its name and permissions");
        if self.events.is_quiet() {
            err!("{told}");
        }
        self.events.tell("error", Some(epoch), told);
        let missing = why.kind() == std::io::ErrorKind::NotFound;
        Ended::NotStarted(if missing { 127 } else { 126 })
    }

    fn gone(&self, epoch: Epoch, status: ExitStatus, by: EndedBy) -> Ended {
        let code = tenure_guardian::exit_code(status);
        let (reason, ended) = match by {
            EndedBy::Exited => ("it exited by itself", Ended::Exited(code)),
            EndedBy::Stopped => ("it was stopped", Ended::Stopped),
            EndedBy::LeaseEnded => ("the lease was about to end", Ended::Stopped),
            EndedBy::Orphaned => ("the guardian lost touch", Ended::Stopped),
        };
        self.events.tell("child_gone", Some(epoch), format!("{reason}, code {code}"));
        ended
    }

    /// Somebody killed the guardian. Its orphans were killed; the term ends, cleanly if they were
    /// all reached.
    async fn guardian_died(&self, epoch: Epoch, all_ended: bool, act: Act) {
        let left = if all_ended { "its processes were killed" } else { "some processes are left" };
        self.events.tell("error", Some(epoch), format!("the guardian was killed; {left}"));
        if all_ended {
            drop(act);
        } else {
            // In flight for ever: no release of this term may be called clean.
            std::mem::forget(act);
        }
        let _ = self.lock.step_down(None).await;
    }

    /// Ends when the role has stopped for good, and says with which code. Cancel-safe: what was
    /// learned is kept in `lost`.
    async fn stopped(
        told: &mut broadcast::Receiver<Event>,
        lock: &LeaderLock,
        lost: &mut bool,
    ) -> Exit {
        loop {
            match told.recv().await {
                Ok(event) => match event.notice {
                    Notice::Lost { .. } => *lost = true,
                    Notice::Acquired { .. } | Notice::Released { .. } => *lost = false,
                    Notice::Stopped => break,
                    Notice::StateChange { .. }
                    | Notice::AcquireFailed { .. }
                    | Notice::Error(_)
                    | Notice::Late { .. }
                    | Notice::Well { .. }
                    | Notice::Recovered { .. } => {}
                },
                // What was missed shows in the state.
                Err(RecvError::Lagged(_)) if lock.state() != LockState::Stopped => {}
                Err(RecvError::Lagged(_) | RecvError::Closed) => break,
            }
        }
        if *lost { Exit::Lost } else { Exit::Clean }
    }

    /// Releases, says goodbye, and writes the last lines. A release that did not go through costs the
    /// others a lease, and us no other exit code.
    pub(crate) async fn leave(self) {
        let Campaign { member, lock, events, writer, teller, .. } = self;
        let within = member.config().lease().lease() * 2 + Duration::from_secs(15);
        let left = alone(member).await.shutdown(Some(within)).await;
        drop(lock);
        // It ends with the role's last word and the last hook.
        let _ = tokio::time::timeout(hooks::HOOK_LIMIT + FLUSH, teller).await;
        drop(events);
        writer.finish(FLUSH);
        if let Err(error) = left {
            err!("{error}; the server frees the role when its lease is over");
        }
    }
}

fn stop(child: &Guarded, stopping: &mut Option<Tick>, grace: Duration) {
    if stopping.is_none() {
        *stopping = Some(BootClock.now() + grace + OVERDUE);
        child.stop(grace);
    }
}

/// The member once no question about its health holds it any more.
async fn alone(mut member: Arc<Member>) -> Member {
    loop {
        match Arc::try_unwrap(member) {
            Ok(member) => return member,
            Err(shared) => member = shared,
        }
        sleep(Duration::from_millis(1)).await;
    }
}

/// What hooks leave behind falls to us, see [`Guarded::start`].
async fn reap_strays() {
    let mut strays = Strays::default();
    loop {
        sleep(Duration::from_secs(1)).await;
        strays.reap();
    }
}

/// Waits for an open gate. The watch may be ahead of a gate whose deadline passed: look again soon.
async fn leads(lock: &LeaderLock) {
    let mut changes = lock.changes();
    loop {
        if changes.wait_for(|change| change.is_leader).await.is_err() {
            return std::future::pending().await;
        }
        if lock.is_leader() {
            return;
        }
        sleep(Duration::from_millis(5)).await;
    }
}

/// Tells everything the lifecycle says, until its last word.
async fn tell(mut told: broadcast::Receiver<Event>, events: Events, runner: HookRunner) {
    let mut epoch = None;
    loop {
        match told.recv().await {
            Ok(event) => {
                if let Notice::Acquired { epoch: new } = &event.notice {
                    epoch = Some(*new);
                }
                events.notice(&event.notice, epoch, event.at);
                runner.notice(&event.notice);
                if matches!(event.notice, Notice::Stopped) {
                    break;
                }
            }
            Err(RecvError::Lagged(missed)) => {
                events.tell("error", epoch, format!("{missed} events were missed"));
            }
            Err(RecvError::Closed) => break,
        }
    }
    runner.finish().await;
}
