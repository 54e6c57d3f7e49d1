//! Runs a program under a role's lock, with a guardian that ends it before the lease does.
//!
//! The guardian alone keeps the deadline, and gets every later one as soon as a heartbeat has moved it.
//! What is decided here can only end a child earlier. The caller holds the act for as long as this runs.

use std::ffi::OsString;
use std::future::pending;
use std::os::fd::OwnedFd;
use std::process::ExitStatus;
use std::time::Duration;

use tenure::{Act, BootClock, Clock, LeaderLock, Lease, Refusal, TakeoverPolicy, Tick};
use tenure_guardian::{EndedBy, Guarded, News, Times};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

/// How much of a run's output is kept: the end of it.
pub(crate) const OUTPUT: usize = 32 * 1024;
/// What a guardian may take beyond the grace before it counts as frozen; the lease may say so sooner.
const OVERDUE: Duration = Duration::from_secs(1);
/// How long to sleep at least and at most: a timer does not count suspend, a deadline does.
const LOOK: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));
/// How long the last words of a child may take to arrive once it is gone.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// A program to run, and what it is told.
#[derive(Debug, Clone)]
pub(crate) struct Program {
    pub(crate) command: Vec<OsString>,
    pub(crate) env: Vec<(&'static str, String)>,
    /// Whether its output is kept, and not passed on.
    pub(crate) keeps_output: bool,
    /// Whether it goes on while the role is handed over, until it is told to stop.
    pub(crate) outlasts_drain: bool,
}

/// How a child came to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum End {
    /// By itself, with this code.
    Exited(u8),
    /// It could not be started.
    NotStarted(String),
    /// It was told to stop; with this code.
    Stopped(u8),
    /// With the lease.
    Lost,
    /// Its guardian was killed; true: every process of it is gone.
    GuardianDied(bool),
}

/// A child's end, and what it wrote.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) end: End,
    pub(crate) output: Option<String>,
}

/// Where a role stands, for a task that holds an act of it.
#[derive(Debug, Clone)]
pub(crate) struct Post {
    pub(crate) lock: LeaderLock,
    pub(crate) lease: Lease,
    pub(crate) policy: TakeoverPolicy,
}

impl Post {
    /// Runs the program to its end. `started` is told its process id.
    pub(crate) async fn run(
        &self,
        act: &Act,
        program: &Program,
        mut stop: watch::Receiver<bool>,
        started: impl FnOnce(i32),
    ) -> std::io::Result<Ended> {
        let gate = self.lock.gate();
        let Some(mut fed) = act.deadline() else { return Ok(lost()) };
        let (reader, output) = if program.keeps_output { capture()? } else { (None, None) };
        let times = Times::of(&self.lease);
        let mut child = Guarded::start_into(&program.command, &program.env, times, fed, output)?;
        let mut started = Some(started);
        let (mut changes, mut deadlines) = (self.lock.changes(), self.lock.deadline());
        let grace = self.lease.kill_grace();
        // The end of the grace, once the child was told to stop.
        let mut stopping: Option<Tick> = None;
        let end = loop {
            // Every branch is cancel-safe.
            tokio::select! {
                news = child.next() => match news {
                    News::Started { pid } => {
                        if let Some(started) = started.take() {
                            started(pid);
                        }
                    }
                    News::NotStarted { errno } => break not_started(&program.command, errno),
                    News::Gone { status, by } => break gone(status, by),
                    News::GuardianDied { all_ended } => break End::GuardianDied(all_ended),
                },
                () = told(&mut stop) => {}
                // These only wake us: what counts is what the gate says now.
                Ok(()) = deadlines.changed() => {}
                Ok(()) = changes.changed() => {}
                () = sleep(match stopping {
                    None => until(fed).min(self.lease.heartbeat() / 4).max(LOOK.0),
                    Some(end) => until(fed.min(end)).min(self.lease.heartbeat() / 4).max(LOOK.0),
                }) => {}
            }
            // The act's: it moves on with the heartbeats also while the gate drains.
            if let Some(later) = act.deadline().filter(|later| *later > fed) {
                fed = later;
                child.extend(fed);
            }
            let over = match gate.peek() {
                Ok(token) => token.epoch != act.epoch(),
                Err(refused) => self.ends_child(refused.reason, program.outlasts_drain),
            };
            if (over || *stop.borrow()) && stopping.is_none() {
                stopping = Some(BootClock.now() + grace + OVERDUE);
                child.stop(grace);
            }
            // A frozen guardian must not let the child outlive the lease, nor hold up our end.
            let now = BootClock.now();
            if child.is_overdue(now, fed) || stopping.is_some_and(|end| now >= end) {
                child.dismiss();
            }
        };
        child.reap().await;
        let output = match reader {
            Some(reader) => Some(last_words(reader).await),
            None => None,
        };
        Ok(Ended { end, output })
    }

    /// Whether a gate that says no ends the child now, or leaves it to the deadline: a session that may be
    /// won back, or a beat that is late, does not yet let another in under `exclusive`.
    fn ends_child(&self, refusal: Refusal, outlasts_drain: bool) -> bool {
        match refusal == Refusal::Draining {
            true => !outlasts_drain,
            false => self.policy.lets_another_in(self.lock.state()),
        }
    }
}

/// Ends when the child is told to stop; never again after that.
async fn told(stop: &mut watch::Receiver<bool>) {
    // A sender that is gone, or has spoken, has no more to say.
    if *stop.borrow_and_update() || stop.changed().await.is_err() {
        pending::<()>().await;
    }
}

fn lost() -> Ended {
    Ended { end: End::Lost, output: None }
}

fn gone(status: ExitStatus, by: EndedBy) -> End {
    let code = tenure_guardian::exit_code(status);
    match by {
        EndedBy::Exited => End::Exited(code),
        EndedBy::Stopped => End::Stopped(code),
        EndedBy::LeaseEnded | EndedBy::Orphaned => End::Lost,
    }
}

fn not_started(command: &[OsString], errno: i32) -> End {
    let why = std::io::Error::from_raw_os_error(errno);
    let program = command.first().map(|name| name.to_string_lossy()).unwrap_or_default();
    End::NotStarted(format!("`{program}` cannot be run: {why}; check its name and permissions"))
}

/// How long to sleep before the gate and the guardian are looked at again.
fn until(end: Tick) -> Duration {
    let left = end.as_nanos().saturating_sub(BootClock.now().as_nanos());
    Duration::from_nanos(left).clamp(LOOK.0, LOOK.1)
}

/// A pipe: the task that reads it, and the end for the child.
fn capture() -> std::io::Result<(Option<JoinHandle<String>>, Option<OwnedFd>)> {
    let (ours, theirs) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    let receiver = Receiver::from_owned_fd(ours)?;
    Ok((Some(tokio::spawn(read(receiver))), Some(theirs)))
}

async fn last_words(mut reader: JoinHandle<String>) -> String {
    match timeout(LAST_WORDS, &mut reader).await {
        Ok(text) => text.unwrap_or_default(),
        Err(_) => {
            reader.abort();
            "(a process that could not be ended holds the output open)".to_owned()
        }
    }
}

/// Reads to the end and keeps the last part.
async fn read(mut pipe: Receiver) -> String {
    let mut kept: Vec<u8> = Vec::new();
    let mut cut = false;
    let mut chunk = [0_u8; 8192];
    while let Ok(read @ 1..) = pipe.read(&mut chunk).await {
        kept.extend_from_slice(&chunk[..read]);
        if kept.len() > 2 * OUTPUT {
            kept.drain(..kept.len() - OUTPUT);
            cut = true;
        }
    }
    if kept.len() > OUTPUT {
        kept.drain(..kept.len() - OUTPUT);
        cut = true;
    }
    // The database's JSON knows no NUL.
    let text = String::from_utf8_lossy(&kept).replace('\0', "\u{fffd}");
    if cut { format!("(cut) {text}") } else { text }
}
