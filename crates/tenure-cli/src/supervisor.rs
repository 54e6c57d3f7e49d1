//! Runs a child under the lock, with a guardian that ends it before the lease does.
//!
//! The guardian alone keeps the deadline, and gets every later one as soon as a heartbeat has moved
//! it. What is decided here can only end a child earlier.

use std::ffi::OsString;
use std::process::ExitStatus;
use std::time::Duration;

use tenure::{Act, BootClock, Clock, Epoch, Refusal, Tick};
use tenure_guardian::{EndedBy, Guarded, News, Times};
use tokio::time::sleep;

use crate::candidacy::Candidacy;
use crate::exit::Failure;
use crate::hooks;
use crate::signals::Signals;

/// What a guardian may take beyond the grace before it counts as frozen; the lease may say so sooner.
const OVERDUE: Duration = Duration::from_secs(1);
/// How long to sleep at least and at most: a timer does not count suspend, a deadline does.
const LOOK: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// How a child came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// By itself, with this code.
    Exited(u8),
    /// It could not be started.
    NotStarted(u8),
    /// Because leadership ended, or because a signal told us to end.
    Stopped {
        /// The code with which it answered; none if a signal killed it.
        answer: Option<u8>,
    },
}

/// A child's end, and the signal that told us to end while it ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Course {
    pub(crate) ended: Ended,
    pub(crate) signal: Option<u8>,
}

impl Candidacy {
    /// Runs a child to its end under the lock; none if leadership had gone before it began.
    pub(crate) async fn child(
        &mut self,
        command: &[OsString],
        signals: &mut Signals,
    ) -> Result<Option<Course>, Failure> {
        let course = self.supervise(command, signals).await;
        self.serves(false);
        course
    }

    async fn supervise(
        &mut self,
        command: &[OsString],
        signals: &mut Signals,
    ) -> Result<Option<Course>, Failure> {
        let gate = self.lock.gate();
        let Ok(token) = gate.peek() else { return Ok(None) };
        // In flight as long as a process of the child lives: the release is clean or it is not.
        let Ok(act) = gate.begin_act(Duration::ZERO) else { return Ok(None) };
        let epoch = token.epoch;
        let lease = *self.config().lease();
        let env = hooks::variables(self.lock.role().as_str(), self.identity(), self.fencing(epoch));
        let mut child = Guarded::start(command, &env, Times::of(&lease), token.deadline())?;
        let (mut changes, mut deadlines) = (self.lock.changes(), self.lock.deadline());
        let mut signal = None;
        // The end of the grace, once the child was told to stop.
        let mut stopping = None;
        let mut fed = token.deadline();
        let mut process = None;
        let ended = loop {
            tokio::select! {
                news = child.next() => match news {
                    News::Started { pid } => {
                        process = Some(pid);
                        self.serves(true);
                        self.events.child_started(epoch, pid);
                    }
                    News::NotStarted { errno } => {
                        break self.not_started(command, epoch, errno);
                    }
                    News::Gone { status, by } => {
                        break self.gone(epoch, process, status, by);
                    }
                    News::GuardianDied { all_ended } => {
                        self.guardian_died(epoch, all_ended, act).await;
                        return Ok(Some(Course { ended: Ended::Stopped { answer: None }, signal }));
                    }
                },
                number = signals.number() => {
                    if signal.is_some() {
                        child.stop(Duration::ZERO);
                    }
                    stop(&child, &mut stopping, lease.kill_grace());
                    signal = signal.or(Some(number));
                }
                // These only wake us: what counts is what the gate says now.
                Ok(()) = deadlines.changed() => {}
                Ok(()) = changes.changed() => {}
                // A gate shuts by itself at its deadline, and a guardian may be overdue then. While
                // the gate drains nothing else tells of a later deadline.
                () = sleep(match stopping {
                    None => until(fed),
                    Some(end) => until(fed.min(end)).min(lease.heartbeat() / 4).max(LOOK.0),
                }) => {}
            }
            // The act's, not the token's: a child that ends while the gate drains has its grace as
            // long as heartbeats succeed.
            if let Some(later) = act.deadline().filter(|later| *later > fed) {
                fed = later;
                child.extend(fed);
            }
            match gate.peek() {
                Ok(token) if token.epoch == epoch => {}
                Ok(_) => stop(&child, &mut stopping, lease.kill_grace()),
                Err(refused) if self.ends_child(refused.reason) => {
                    stop(&child, &mut stopping, lease.kill_grace());
                }
                Err(_) => {}
            }
            // A frozen guardian must not let the child outlive the lease, nor hold up our end. Only
            // before the lease's end is time kept back for the killing: the whole grace is the child's.
            let now = BootClock.now();
            if child.is_overdue(now, fed) || stopping.is_some_and(|end| now >= end) {
                child.dismiss();
            }
        };
        drop(act);
        child.reap().await;
        Ok(Some(Course { ended, signal }))
    }

    /// Whether a gate that says no ends the child now, or leaves it to the deadline: a session that
    /// may be won back, or a beat that is late, does not yet let another in under `exclusive`.
    fn ends_child(&self, refusal: Refusal) -> bool {
        refusal == Refusal::Draining || self.policy.lets_another_in(self.lock.state())
    }

    fn not_started(&self, command: &[OsString], epoch: Epoch, errno: i32) -> Ended {
        let why = std::io::Error::from_raw_os_error(errno);
        let program = command.first().map(|name| name.to_string_lossy()).unwrap_or_default();
        let reason = format!("`{program}` cannot be run: {why}; check its name and permissions");
        self.events.trouble(Some(epoch), reason);
        let missing = why.kind() == std::io::ErrorKind::NotFound;
        Ended::NotStarted(if missing { 127 } else { 126 })
    }

    fn gone(&self, epoch: Epoch, pid: Option<i32>, status: ExitStatus, by: EndedBy) -> Ended {
        let code = tenure_guardian::exit_code(status);
        let answer = status.code().and_then(|code| u8::try_from(code).ok());
        let stopped = Ended::Stopped { answer };
        let (reason, ended) = match by {
            EndedBy::Exited => ("it exited by itself", Ended::Exited(code)),
            EndedBy::Stopped => ("it was stopped", stopped),
            EndedBy::LeaseEnded => ("the lease was about to end", stopped),
            EndedBy::Orphaned => ("the guardian lost touch", stopped),
        };
        match pid {
            Some(pid) => self.events.child_gone(epoch, pid, code, reason),
            // The guardian may find the lease nearly over before it has started anything.
            None => {
                let reason = format!("the child was not started: {reason}");
                self.events.report("warning", Some(epoch), reason);
            }
        }
        ended
    }

    /// The guardian was killed, and its orphans were killed here; the term ends, cleanly if they
    /// were all reached.
    async fn guardian_died(&self, epoch: Epoch, all_ended: bool, act: Act) {
        let left = if all_ended { "its processes were killed" } else { "some processes are left" };
        self.events.trouble(Some(epoch), format!("the guardian was killed; {left}"));
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
