//! What `run` tells of its role: one event per line, as text or as JSON.
//!
//! The JSON form is contract: every object has all of `event`, `time`, `role`, `member`, `epoch`,
//! `from`, `to`, `reason`, `pid`, `code` and `mono_ns` (null where there is nothing to say), and
//! `embedded` if the election is held on the private server of this machine. Readers must ignore what
//! they do not know. `time` is the wall clock's, for people; order and distance are `mono_ns`.

use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;
use tenure::{BootClock, Clock, Epoch, Notice, Tick};

use crate::args::Output;
use crate::output::err;

/// A line on its way out.
#[derive(Debug, Clone, Serialize)]
struct Line {
    event: &'static str,
    time: String,
    role: String,
    member: String,
    epoch: Option<i64>,
    from: Option<&'static str>,
    to: Option<&'static str>,
    reason: Option<String>,
    /// The child's.
    pid: Option<i32>,
    /// The child's exit code, 128 + n for signal n.
    code: Option<u8>,
    mono_ns: u64,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    embedded: bool,
}

/// What all events of a process have in common.
#[derive(Debug, Clone)]
pub(crate) struct Subject {
    pub(crate) role: String,
    pub(crate) member: String,
    /// The election is held on the private server of this machine.
    pub(crate) embedded: bool,
    /// There are no tables, hence no epochs: what the engine counts instead is no fencing token.
    pub(crate) lock_only: bool,
}

/// Where events go; cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Events {
    subject: Subject,
    quiet: bool,
    lines: mpsc::Sender<Line>,
}

/// Writes events on a thread of its own: a reader that does not read must not hold up the
/// supervisor of a child.
#[derive(Debug)]
pub(crate) struct Writer {
    thread: JoinHandle<()>,
}

impl Events {
    /// `to_stderr` when standard output belongs to a child.
    pub(crate) fn start(subject: Subject, output: Output, to_stderr: bool) -> (Self, Writer) {
        let (lines, inbox) = mpsc::channel::<Line>();
        let thread = std::thread::spawn(move || {
            let mut waiting = None;
            for line in inbox {
                let text = match output {
                    Output::Json => serde_json::to_string(&line).unwrap_or_default(),
                    Output::Text if line.is_stale(&mut waiting) => continue,
                    Output::Text => line.text(),
                    Output::Quiet => continue,
                };
                // Without a reader the election goes on all the same.
                let _ = if to_stderr {
                    // In one write: the child may write to the same place.
                    std::io::stderr().lock().write_all(format!("{text}\n").as_bytes())
                } else {
                    writeln!(std::io::stdout().lock(), "{text}")
                };
            }
        });
        (Events { subject, quiet: output == Output::Quiet, lines }, Writer { thread })
    }

    /// What the lifecycle says.
    pub(crate) fn notice(&self, notice: &Notice, epoch: Option<Epoch>, at: Tick) {
        let mut line = self.line("", epoch, at);
        line.event = match notice {
            Notice::StateChange { from, to } => {
                (line.from, line.to) = (Some(from.as_str()), Some(to.as_str()));
                "state_change"
            }
            Notice::Acquired { epoch } => line.under("acquired", *epoch),
            Notice::Released { epoch } => line.under("released", *epoch),
            Notice::Lost { epoch, reason } => {
                line.reason = Some(reason.to_string());
                line.under("lost", *epoch)
            }
            Notice::AcquireFailed { why } => {
                line.reason = Some(why.to_string());
                "acquire_failed"
            }
            Notice::Error(error) => {
                line.reason = Some(error.clone());
                "error"
            }
            Notice::Stopped => "stopped",
            Notice::Late { epoch } => line.under("late", *epoch),
            Notice::Well { epoch } => line.under("well", *epoch),
            Notice::Recovered { epoch } => line.under("recovered", *epoch),
        };
        self.send(line);
    }

    /// What became of a hook, a check or the program itself.
    pub(crate) fn report(
        &self,
        event: &'static str,
        epoch: Option<Epoch>,
        reason: impl Into<String>,
    ) {
        let mut line = self.line(event, epoch, BootClock.now());
        line.reason = Some(reason.into());
        self.send(line);
    }

    /// An error that is said even where events are not written.
    pub(crate) fn trouble(&self, epoch: Option<Epoch>, reason: String) {
        if self.quiet {
            err!("{reason}");
        }
        self.report("error", epoch, reason);
    }

    pub(crate) fn child_started(&self, epoch: Epoch, pid: i32) {
        let mut line = self.line("child_started", Some(epoch), BootClock.now());
        line.pid = Some(pid);
        self.send(line);
    }

    pub(crate) fn child_gone(&self, epoch: Epoch, pid: i32, code: u8, reason: &str) {
        let mut line = self.line("child_gone", Some(epoch), BootClock.now());
        (line.pid, line.code) = (Some(pid), Some(code));
        line.reason = Some(reason.to_owned());
        self.send(line);
    }

    fn line(&self, event: &'static str, epoch: Option<Epoch>, at: Tick) -> Line {
        Line {
            event,
            time: wall(at),
            role: self.subject.role.clone(),
            member: self.subject.member.clone(),
            epoch: epoch.map(Epoch::get),
            from: None,
            to: None,
            reason: None,
            pid: None,
            code: None,
            mono_ns: monotonic(at),
            embedded: self.subject.embedded,
        }
    }

    fn send(&self, mut line: Line) {
        if self.subject.lock_only {
            line.epoch = None;
        }
        let _ = self.lines.send(line);
    }
}

impl Line {
    fn under(&mut self, event: &'static str, epoch: Epoch) -> &'static str {
        self.epoch = Some(epoch.get());
        event
    }

    /// Whether a person has read this already: a member that waits tries again and again, and
    /// says once why it waits. `waiting` is that reason.
    fn is_stale(&self, waiting: &mut Option<String>) -> bool {
        match (self.event, self.from, self.to) {
            ("state_change", Some("follower"), Some("acquiring"))
            | ("state_change", Some("acquiring"), Some("follower")) => waiting.is_some(),
            ("acquire_failed", ..) => {
                std::mem::replace(waiting, self.reason.clone()) == self.reason
            }
            _ => {
                *waiting = None;
                false
            }
        }
    }

    fn text(&self) -> String {
        let mut text = format!("tenure: {} {:<14} {}", self.time, self.event, self.role);
        if let (Some(from), Some(to)) = (self.from, self.to) {
            text.push_str(&format!("  {from} -> {to}"));
        }
        if let Some(epoch) = self.epoch {
            text.push_str(&format!("  epoch {epoch}"));
        }
        if let Some(pid) = self.pid {
            text.push_str(&format!("  pid {pid}"));
        }
        if let Some(code) = self.code {
            text.push_str(&format!("  code {code}"));
        }
        if let Some(reason) = &self.reason {
            text.push_str(&format!("  ({reason})"));
        }
        text
    }
}

impl Writer {
    /// Waits until everything is written, but not for ever. Drop every [`Events`] first.
    pub(crate) fn finish(self, within: Duration) {
        let begun = Instant::now();
        while !self.thread.is_finished() && begun.elapsed() < within {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// The same moment on the wall clock, in UTC to the millisecond.
fn wall(at: Tick) -> String {
    let ago = BootClock.now().saturating_since(at);
    let now = Timestamp::now();
    // A wall clock near the end of its range is set wrong: then the present will do.
    let at = SignedDuration::try_from(ago).ok().and_then(|ago| now.checked_sub(ago).ok());
    at.unwrap_or(now).strftime("%Y-%m-%dT%H:%M:%S%.3fZ").to_string()
}

/// The same moment on `CLOCK_MONOTONIC`, which other programs' clocks can be compared with.
fn monotonic(at: Tick) -> u64 {
    use rustix::time::{ClockId, clock_gettime};
    /// How far the clocks are apart. Only a suspend changes that; the nanoseconds between two
    /// readings must not put events out of order.
    static APART: AtomicU64 = AtomicU64::new(0);
    const SUSPEND: u64 = 1_000_000;
    let mono = clock_gettime(ClockId::Monotonic);
    let mono = mono.tv_sec.unsigned_abs() * 1_000_000_000 + mono.tv_nsec.unsigned_abs();
    let apart = BootClock.now().as_nanos().saturating_sub(mono);
    let known = APART.load(Ordering::Relaxed);
    let apart = if known.abs_diff(apart) < SUSPEND {
        known
    } else {
        APART.store(apart, Ordering::Relaxed);
        apart
    };
    at.as_nanos().saturating_sub(apart)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_json_event_has_every_field_of_the_contract() {
        let (lines, inbox) = mpsc::channel();
        let (role, member) = ("r".to_owned(), "m".to_owned());
        let subject = Subject { role, member, embedded: false, lock_only: false };
        let mut events = Events { subject, quiet: false, lines };
        events.notice(&Notice::Acquired { epoch: Epoch(7) }, None, BootClock.now());
        let value = serde_json::to_value(inbox.recv().expect("a line")).expect("JSON");
        let mut keys: Vec<&str> = value.as_object().expect("object").keys().map(|k| &**k).collect();
        keys.sort_unstable();
        let contract = [
            "code", "epoch", "event", "from", "member", "mono_ns", "pid", "reason", "role", "time",
            "to",
        ];
        assert_eq!(keys, contract);
        assert_eq!((&value["event"], &value["epoch"]), (&"acquired".into(), &7.into()));
        let time = value["time"].as_str().expect("text");
        assert!(time.ends_with('Z') && time.parse::<Timestamp>().is_ok(), "{time}");
        events.subject.lock_only = true;
        events.notice(&Notice::Acquired { epoch: Epoch(7) }, None, BootClock.now());
        assert_eq!(inbox.recv().expect("a line").epoch, None, "no tables, no epochs");
    }

    #[test]
    fn an_event_of_the_past_has_the_time_of_the_past() {
        let now = BootClock.now();
        let past = Tick::from_nanos(now.as_nanos() - 1_000_000_000);
        let at = |tick| wall(tick).parse::<Timestamp>().expect("a time");
        let apart = at(now).duration_since(at(past));
        assert!((apart - SignedDuration::from_secs(1)).abs() < SignedDuration::from_millis(500));
    }

    #[test]
    fn a_member_that_waits_says_once_why_and_again_when_that_changes() {
        let line = |event, from, to, reason: Option<&str>| Line {
            event,
            time: String::new(),
            role: "r".to_owned(),
            member: "m".to_owned(),
            epoch: None,
            from,
            to,
            reason: reason.map(str::to_owned),
            pid: None,
            code: None,
            mono_ns: 0,
            embedded: false,
        };
        let attempt = |why| {
            [
                line("state_change", Some("follower"), Some("acquiring"), None),
                line("acquire_failed", None, None, Some(why)),
                line("state_change", Some("acquiring"), Some("follower"), None),
            ]
        };
        let lost = line("lost", None, None, None);
        let story = [attempt("held"), attempt("held"), attempt("paused")].concat().into_iter();
        let mut waiting = None;
        let shown: Vec<String> = story
            .chain([lost])
            .chain(attempt("paused"))
            .filter(|line| !line.is_stale(&mut waiting))
            .map(|line| line.reason.unwrap_or(line.event.to_owned()))
            .collect();
        assert_eq!(shown, ["state_change", "held", "paused", "lost", "state_change", "paused"]);
    }

    #[test]
    fn a_moment_of_the_past_keeps_its_distance_on_the_other_clock() {
        let now = BootClock.now();
        let before = Tick::from_nanos(now.as_nanos() - 5_000_000_000);
        let apart = monotonic(now).abs_diff(monotonic(before));
        assert!(apart.abs_diff(5_000_000_000) < 500_000_000, "{apart}");
    }
}
