//! Runs a child under the lock, with a guardian that ends it before the lease does.
//!
//! The guardian alone keeps the deadline, and gets every later one as soon as a heartbeat has moved
//! it. What is decided here can only end a child earlier.

use std::ffi::OsString;
use std::process::ExitStatus;
use std::time::Duration;

use tenure::{Act, BootClock, Clock, Epoch, LockState, Refusal, TakeoverPolicy, Tick};
use tenure_guardian::{EndedBy, Guarded, News, Times};
use tokio::time::sleep;

use crate::candidacy::Candidacy;
use crate::exit::Failure;
use crate::hooks;
use crate::output::err;
use crate::signals::Signals;

/// What a guardian may take beyond the grace before it counts as frozen; the lease may say so sooner.
const OVERDUE: Duration = Duration::from_secs(1);
/// How long to sleep at most and at least: a timer does not count suspend, a deadline does.
const LOOK: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// How a child came to its end.
pub(crate) enum Ended {
    /// By itself, with this code.
    Exited(u8),
    /// It could not be started.
    NotStarted(u8),
    /// Because leadership ended, or because we were told to end.
    Stopped,
}

impl Candidacy {
    /// Runs a child to its end under the lock; none if leadership had gone before it began. Also
    /// says whether a signal asked us to end.
    pub(crate) async fn child(
        &mut self,
        command: &[OsString],
        signals: &mut Signals,
    ) -> Result<Option<(Ended, bool)>, Failure> {
        let gate = self.lock.gate();
        let Ok(token) = gate.require_leader() else { return Ok(None) };
        // In flight as long as a process of the child lives: the release is clean or it is not.
        let Ok(act) = gate.begin_act(Duration::ZERO) else { return Ok(None) };
        let epoch = token.epoch;
        let lease = *self.config().lease();
        let env = hooks::variables(self.lock.role().as_str(), self.identity(), Some(epoch));
        let mut child = Guarded::start(command, &env, Times::of(&lease), token.deadline())?;
        let (mut changes, mut deadlines) = (self.lock.changes(), self.lock.deadline());
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
                // These only wake us: what counts is what the gate says now.
                Ok(()) = deadlines.changed() => {}
                Ok(()) = changes.changed() => {}
                // A gate shuts by itself at its deadline, and a guardian may be overdue then.
                () = sleep(until(stopping.map_or(fed, |end| fed.min(end)))) => {}
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
    /// may be won back, or a beat that is late, does not yet let another in under `exclusive`.
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

    /// The guardian was killed, and its orphans were killed here; the term ends, cleanly if they
    /// were all reached.
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
}

fn stop(child: &Guarded, stopping: &mut Option<Tick>, grace: Duration) {
    if stopping.is_none() {
        *stopping = Some(BootClock.now() + grace + OVERDUE);
        child.stop(grace);
    }
}

/// How long to sleep before the gate and the guardian are looked at again.
fn until(end: Tick) -> Duration {
    let left = end.as_nanos().saturating_sub(BootClock.now().as_nanos());
    Duration::from_nanos(left).clamp(LOOK.0, LOOK.1)
}
