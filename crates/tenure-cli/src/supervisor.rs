//! Runs a child under the lock, with a guardian that ends it before the lease does, and tells of it.

use std::ffi::OsString;
use std::pin::pin;
use std::process::ExitStatus;
use std::time::Duration;

use tenure::{Act, Epoch};
use tenure_agent::child::{ChildEnd, Post, Program, Stop, not_started};
use tenure_guardian::EndedBy;
use tokio::sync::{oneshot, watch};

use crate::candidacy::Candidacy;
use crate::exit::Failure;
use crate::hooks;
use crate::signals::Signals;

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
        // In flight as long as a process of the child lives: the release is clean or it is not.
        let Ok(act) = self.lock.gate().begin_act(Duration::ZERO) else { return Ok(None) };
        let epoch = act.epoch();
        let post =
            Post { lock: self.lock.clone(), lease: *self.config().lease(), policy: self.policy };
        let role = self.lock.role().as_str();
        let program = Program {
            command: command.to_vec(),
            env: hooks::variables(role, self.identity(), self.fencing(epoch)),
            keeps_output: false,
            outlasts_drain: false,
        };
        let (stop, stopped) = watch::channel(Stop::No);
        let (told, mut started) = oneshot::channel();
        let mut signal = None;
        let ended = {
            let tell = |pid| {
                self.serves(true);
                self.events.child_started(epoch, pid);
                let _ = told.send(pid);
            };
            let mut run = pin!(post.run(&act, &program, stopped, tell));
            loop {
                // Every branch is cancel-safe.
                tokio::select! {
                    ended = &mut run => break ended?,
                    number = signals.number() => {
                        let again = signal.is_some();
                        stop.send_replace(if again { Stop::AtOnce } else { Stop::WithGrace });
                        signal = signal.or(Some(number));
                    }
                }
            }
        };
        let process = started.try_recv().ok();
        let ended = match ended.end {
            ChildEnd::TooLate => return Ok(None),
            ChildEnd::NotStarted(errno) => self.not_started(command, epoch, errno),
            ChildEnd::Gone(status, by) => self.gone(epoch, process, status, by),
            ChildEnd::GuardianDied(all_ended) => {
                self.guardian_died(epoch, all_ended, act).await;
                return Ok(Some(Course { ended: Ended::Stopped { answer: None }, signal }));
            }
        };
        drop(act);
        Ok(Some(Course { ended, signal }))
    }

    fn not_started(&self, command: &[OsString], epoch: Epoch, errno: i32) -> Ended {
        self.events.trouble(Some(epoch), not_started(command, errno));
        let why = std::io::Error::from_raw_os_error(errno);
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
