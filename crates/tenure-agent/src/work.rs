//! What a schedule runs: a program under a guardian, or a call in this process.

use std::ffi::OsString;
use std::fmt;
use std::future::{Future, pending, poll_fn};
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use jiff::Timestamp;
use tenure::{Act, BootClock, Clock, Epoch, RoleName};
use tenure_guardian::EndedBy;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::child::{ChildEnd, Ended, Post, Program, Stop, not_started};
use crate::definition::Schedule;
use crate::engine::Outcome;
use crate::store::Details;

/// How often the act is looked at although nothing wakes the task: timers do not count suspend.
const LOOK: Duration = Duration::from_millis(500);

/// One attempt of a slot, as the work is told of it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Run {
    /// The name of the schedule.
    pub schedule: String,
    /// The planned instant; of a run that an operator ordered, the instant of the order.
    pub slot: Timestamp,
    /// 1, or more for a retry.
    pub attempt: u32,
    /// The role whose leader runs it.
    pub role: RoleName,
    /// The fencing token of its term: what the run writes passes the fence under it.
    pub epoch: Epoch,
}

type Call = Arc<dyn Fn(Run) -> BoxFuture<'static, Result<(), String>> + Send + Sync>;

/// A schedule and what it runs.
#[derive(Clone)]
pub struct Job {
    pub(crate) schedule: Schedule,
    pub(crate) work: Work,
}

#[derive(Clone)]
pub(crate) enum Work {
    Program(Vec<OsString>),
    Call(Call),
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job").field("schedule", &self.schedule.name()).finish_non_exhaustive()
    }
}

impl Job {
    /// A schedule that runs a program with its arguments, without a shell. `main` must call
    /// [`tenure_guardian::run_if_guardian`] first: without a guardian no attempt starts. Exit code 0 is success.
    ///
    /// The program has the variables `TENURE_ROLE`, `TENURE_MEMBER`, `TENURE_EPOCH`, `TENURE_SCHEDULE`,
    /// `TENURE_SLOT` and `TENURE_ATTEMPT` beside those of this process. The last 32 KiB of its output are kept
    /// with the attempt. It is ended, with all it started, before the lease ends.
    pub fn program(schedule: Schedule, command: Vec<String>) -> Self {
        let schedule = schedule.work(command.join(" "));
        let command = command.into_iter().map(OsString::from).collect();
        Job { schedule, work: Work::Program(command) }
    }

    /// A schedule that calls a closure. An error is text for people; a panic is a failure too.
    ///
    /// The future is dropped at an `await` when the lease ends or the run is told to stop; what must not
    /// happen then is written through the fence, under [`Run::epoch`].
    pub fn call<F, R, E>(schedule: Schedule, call: F) -> Self
    where
        F: Fn(Run) -> R + Send + Sync + 'static,
        R: Future<Output = Result<(), E>> + Send + 'static,
        E: fmt::Display,
    {
        let call: Call = Arc::new(move |run| {
            let work = call(run);
            async move { work.await.map_err(|error| error.to_string()) }.boxed()
        });
        Job { schedule, work: Work::Call(call) }
    }
}

impl Work {
    /// Runs it to its end; nothing of it runs any more afterwards.
    pub(crate) async fn carry_out(
        &self,
        post: &Post,
        act: &Act,
        run: Run,
        stop: watch::Receiver<Stop>,
        started: impl FnOnce(i32),
    ) -> (Outcome, Details) {
        match self {
            Work::Program(command) => {
                let program = Program {
                    command: command.clone(),
                    env: variables(&run, post.lock.identity().as_str()),
                    keeps_output: true,
                    outlasts_drain: true,
                };
                match post.run(act, &program, stop, started).await {
                    Ok(ended) => told(ended, command),
                    Err(error) => {
                        let reason = format!("the guardian could not be started: {error}");
                        (
                            Outcome::Ended(false),
                            Details { reason: Some(reason), ..Details::default() },
                        )
                    }
                }
            }
            Work::Call(call) => called(call, act, run, stop).await,
        }
    }
}

fn variables(run: &Run, member: &str) -> Vec<(&'static str, String)> {
    vec![
        ("TENURE_ROLE", run.role.as_str().to_owned()),
        ("TENURE_MEMBER", member.to_owned()),
        ("TENURE_EPOCH", run.epoch.get().to_string()),
        ("TENURE_SCHEDULE", run.schedule.clone()),
        ("TENURE_SLOT", run.slot.to_string()),
        ("TENURE_ATTEMPT", run.attempt.to_string()),
    ]
}

fn told(ended: Ended, command: &[OsString]) -> (Outcome, Details) {
    let Ended { end, output } = ended;
    let details = |code, reason: Option<&str>| Details {
        code,
        reason: reason.map(str::to_owned),
        output: output.filter(|text| !text.is_empty()),
        strays: false,
    };
    match end {
        ChildEnd::Gone(status, EndedBy::Exited) => {
            let code = tenure_guardian::exit_code(status);
            (Outcome::Ended(code == 0), details(Some(code), None))
        }
        ChildEnd::Gone(status, EndedBy::Stopped) => {
            let code = tenure_guardian::exit_code(status);
            (Outcome::Stopped, details(Some(code), Some("it was told to stop")))
        }
        ChildEnd::NotStarted(errno) => {
            (Outcome::Ended(false), details(None, Some(&not_started(command, errno))))
        }
        ChildEnd::TooLate => (Outcome::NotStarted, details(None, None)),
        ChildEnd::Gone(_, EndedBy::LeaseEnded | EndedBy::Orphaned) => {
            (Outcome::Lost, details(None, Some("the lease was about to end")))
        }
        ChildEnd::GuardianDied(true) => {
            (Outcome::Lost, details(None, Some("its guardian was killed")))
        }
        ChildEnd::GuardianDied(false) => {
            let why = "its guardian was killed, and some processes are left";
            (Outcome::Lost, Details { strays: true, ..details(None, Some(why)) })
        }
    }
}

/// Polls the call to its end, until its term is over, or until it is told to stop.
async fn called(
    call: &Call,
    act: &Act,
    run: Run,
    mut stop: watch::Receiver<Stop>,
) -> (Outcome, Details) {
    let ended = |outcome, reason: Option<String>| {
        (
            outcome,
            Details {
                reason: reason.map(|text| text.replace('\0', "\u{fffd}")),
                ..Details::default()
            },
        )
    };
    let mut work = pin!(AssertUnwindSafe(async move { call(run).await }).catch_unwind());
    loop {
        let left =
            act.deadline().map_or(Duration::ZERO, |end| end.saturating_since(BootClock.now()));
        // The gate is asked before every poll: work that was frozen over its deadline is not polled again.
        let step = poll_fn(|context| {
            if act.check().is_err() {
                return Poll::Ready(None);
            }
            work.as_mut().poll(context).map(Some)
        });
        tokio::select! {
            biased;
            () = told_to_stop(&mut stop) => return ended(Outcome::Stopped, Some("it was told to stop".to_owned())),
            () = sleep(left.min(LOOK)) => {
                if act.check().is_err() {
                    return ended(Outcome::Lost, Some("the lease ended".to_owned()));
                }
            }
            step = step => return match step {
                None => ended(Outcome::Lost, Some("the lease ended".to_owned())),
                Some(Ok(Ok(()))) => ended(Outcome::Ended(true), None),
                Some(Ok(Err(error))) => ended(Outcome::Ended(false), Some(error)),
                Some(Err(_)) => ended(Outcome::Ended(false), Some("it panicked".to_owned())),
            },
        }
    }
}

async fn told_to_stop(stop: &mut watch::Receiver<Stop>) {
    if stop.wait_for(|stop| *stop > Stop::No).await.is_err() {
        pending::<()>().await;
    }
}
