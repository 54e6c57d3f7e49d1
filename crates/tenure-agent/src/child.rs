//! Runs a program under a role's lock, with a guardian that ends it before the lease does.
//!
//! The guardian alone keeps the deadline, and gets every later one as soon as a heartbeat has moved it.
//! What is decided here can only end a child earlier. The caller holds the act for as long as this runs.

use std::ffi::OsString;
use std::future::pending;
use std::os::fd::OwnedFd;
use std::process::ExitStatus;
use std::time::Duration;

use tenure::{
    Act, BootClock, Clock, ExponentialBackoff, LeaderLock, Lease, Refusal, TakeoverPolicy, Tick,
};
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

/// A child that ran this long is no longer one that fails at once.
const STEADY: Duration = Duration::from_secs(10);
/// The pauses before a child is started again.
const RESTART: ExponentialBackoff =
    ExponentialBackoff::new(Duration::from_millis(200), Duration::from_secs(10));

/// The pauses between a child that exits by itself and its next start: 200 ms, doubled up to 10 s for one that fails at
/// once again.
#[derive(Debug, Default)]
pub struct Restarts(u32);

impl Restarts {
    /// The pause after a child that exited by itself and had run for `ran`. One that ran for 10 s or more did not
    /// fail at once: the pause is the first again.
    pub fn pause(&mut self, ran: Duration) -> Duration {
        self.0 = if ran >= STEADY { 1 } else { self.0.saturating_add(1) };
        RESTART.pause(self.0, 0.5)
    }

    /// Begins again with the first pause: a child ended otherwise than by itself.
    pub fn reset(&mut self) {
        self.0 = 0;
    }
}

/// A program to run, and what it is told.
#[derive(Debug, Clone)]
pub struct Program {
    /// Its name and its arguments; no shell reads them.
    pub command: Vec<OsString>,
    /// Variables beside this process's own.
    pub env: Vec<(&'static str, String)>,
    /// Whether the last 32 KiB of its output are kept, and not passed on.
    pub keeps_output: bool,
    /// Whether it goes on while the role is handed over, until it is told to stop.
    pub outlasts_drain: bool,
}

/// What a child is told by the program that runs it. A closed set, the mildest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stop {
    /// To go on.
    No,
    /// To end within the member's kill grace: SIGTERM, then SIGKILL.
    WithGrace,
    /// To end at once: SIGKILL.
    AtOnce,
}

/// How a child came to its end. Nothing of it runs any more, except where that is said. A closed set: a program must
/// decide for each what it does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChildEnd {
    /// It was not started: the lease was about to end.
    TooLate,
    /// It could not be started; with the system's error number.
    NotStarted(i32),
    /// It ran and is gone; with its status and what ended it.
    Gone(ExitStatus, EndedBy),
    /// Its guardian was killed; false: some of its processes are left.
    GuardianDied(bool),
}

/// A child's end, and what it wrote.
#[derive(Debug)]
pub struct Ended {
    /// How it ended.
    pub end: ChildEnd,
    /// The end of its output, if that was to be kept.
    pub output: Option<String>,
}

/// What a child runs under: a role's lock, the member's lease, the role's policy.
#[derive(Debug, Clone)]
pub struct Post {
    /// The role's lock.
    pub lock: LeaderLock,
    /// The member's lease.
    pub lease: Lease,
    /// The role's policy.
    pub policy: TakeoverPolicy,
}

impl Post {
    /// Runs the program to its end, under an act of the role that the caller holds for as long as this takes.
    /// `started` is told its process id; `stop` ends it earlier. Where [`tenure_guardian::run_if_guardian`] was not
    /// called first in `main`, no child starts. If the future is dropped, the guardian ends the child.
    ///
    /// # Errors
    /// If no guardian can be started; nothing runs then.
    pub async fn run(
        &self,
        act: &Act,
        program: &Program,
        mut stop: watch::Receiver<Stop>,
        started: impl FnOnce(i32),
    ) -> std::io::Result<Ended> {
        let gate = self.lock.gate();
        let Some(mut fed) = act.deadline() else {
            return Ok(Ended { end: ChildEnd::TooLate, output: None });
        };
        let (reader, output) = if program.keeps_output { capture()? } else { (None, None) };
        let times = Times::of(&self.lease);
        let mut child = Guarded::start_into(&program.command, &program.env, times, fed, output)?;
        let mut started = Some(started);
        let (mut changes, mut deadlines) = (self.lock.changes(), self.lock.deadline());
        let grace = self.lease.kill_grace();
        // The end of the grace, once the child was told to stop.
        let mut stopping: Option<Tick> = None;
        let mut told = Stop::No;
        let mut is_open = true;
        let end = loop {
            // A gate shuts by itself at its deadline, and a guardian may be overdue then. While the gate
            // drains nothing else tells of a later deadline.
            let pause = match stopping {
                None if is_open => until(fed),
                None => until(fed).min(self.lease.heartbeat() / 4).max(LOOK.0),
                Some(end) => until(fed.min(end)).min(self.lease.heartbeat() / 4).max(LOOK.0),
            };
            // Every branch is cancel-safe.
            tokio::select! {
                news = child.next() => match news {
                    News::Started { pid } => {
                        if let Some(started) = started.take() {
                            started(pid);
                        }
                    }
                    News::NotStarted { errno } => break ChildEnd::NotStarted(errno),
                    News::Gone { status, by } => break ChildEnd::Gone(status, by),
                    News::GuardianDied { all_ended } => break ChildEnd::GuardianDied(all_ended),
                },
                () = more(&mut stop, told) => {}
                // These only wake us: what counts is what the gate says now.
                Ok(()) = deadlines.changed() => {}
                Ok(()) = changes.changed() => {}
                () = sleep(pause) => {}
            }
            // The act's, not the gate's: it moves on with the heartbeats also while the gate drains.
            if let Some(later) = act.deadline().filter(|later| *later > fed) {
                fed = later;
                child.extend(fed);
            }
            let look = gate.peek();
            is_open = look.is_ok();
            let over = match look {
                Ok(token) => token.epoch != act.epoch(),
                Err(refused) => self.ends_child(refused.reason, program.outlasts_drain),
            };
            let wanted = (*stop.borrow()).max(if over { Stop::WithGrace } else { Stop::No });
            if wanted > told {
                told = wanted;
                let grace = if told == Stop::AtOnce { Duration::ZERO } else { grace };
                child.stop(grace);
                stopping.get_or_insert(BootClock.now() + grace + OVERDUE);
            }
            // A frozen guardian must not let the child outlive the lease, nor hold up our end. Only before
            // the lease's end is time kept back for the killing: the whole grace is the child's.
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

/// Ends when the child is told more than it was.
async fn more(stop: &mut watch::Receiver<Stop>, told: Stop) {
    // A sender that is gone has no more to say.
    if stop.wait_for(|stop| *stop > told).await.is_err() {
        pending::<()>().await;
    }
}

/// Why a program could not be started, and what to do.
#[must_use]
pub fn not_started(command: &[OsString], errno: i32) -> String {
    let why = std::io::Error::from_raw_os_error(errno);
    let program = command.first().map(|name| name.to_string_lossy()).unwrap_or_default();
    format!("`{program}` cannot be run: {why}; check its name and permissions")
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
