//! What `run` tells of its role: one event per line, as text or as JSON.
//!
//! The JSON form is contract: every object has all of `event`, `role`, `member`, `epoch`, `from`,
//! `to`, `reason` and `mono_ns` (null where there is nothing to say), and `embedded` if the election
//! is held on the private server of this machine. Readers must ignore what they do not know.

use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::Serialize;
use tenure::{BootClock, Clock, Epoch, Notice, Tick};

use crate::args::Output;

/// A line on its way out.
#[derive(Debug, Clone, Serialize)]
struct Line {
    event: &'static str,
    role: String,
    member: String,
    epoch: Option<i64>,
    from: Option<&'static str>,
    to: Option<&'static str>,
    reason: Option<String>,
    mono_ns: u64,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    embedded: bool,
}

/// Where events go; cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Events {
    role: String,
    member: String,
    embedded: bool,
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
    pub(crate) fn start(
        role: &str,
        member: &str,
        embedded: bool,
        output: Output,
        to_stderr: bool,
    ) -> (Self, Writer) {
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
                    writeln!(std::io::stderr().lock(), "{text}")
                } else {
                    writeln!(std::io::stdout().lock(), "{text}")
                };
            }
        });
        let (role, member) = (role.to_owned(), member.to_owned());
        let quiet = output == Output::Quiet;
        (Events { role, member, embedded, quiet, lines }, Writer { thread })
    }

    /// Whether events are not written at all.
    pub(crate) fn is_quiet(&self) -> bool {
        self.quiet
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

    /// What became of the child, a hook or a health check.
    pub(crate) fn tell(
        &self,
        event: &'static str,
        epoch: Option<Epoch>,
        reason: impl Into<String>,
    ) {
        let mut line = self.line(event, epoch, BootClock.now());
        line.reason = Some(reason.into());
        self.send(line);
    }

    fn line(&self, event: &'static str, epoch: Option<Epoch>, at: Tick) -> Line {
        Line {
            event,
            role: self.role.clone(),
            member: self.member.clone(),
            epoch: epoch.map(Epoch::get),
            from: None,
            to: None,
            reason: None,
            mono_ns: monotonic(at),
            embedded: self.embedded,
        }
    }

    fn send(&self, line: Line) {
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
        let mut text = format!("tenure: {:<14} {}", self.event, self.role);
        if let (Some(from), Some(to)) = (self.from, self.to) {
            text.push_str(&format!("  {from} -> {to}"));
        }
        if let Some(epoch) = self.epoch {
            text.push_str(&format!("  epoch {epoch}"));
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
        let events = Events { role, member, embedded: false, quiet: false, lines };
        events.notice(&Notice::Acquired { epoch: Epoch(7) }, None, BootClock.now());
        let value = serde_json::to_value(inbox.recv().expect("a line")).expect("JSON");
        let mut keys: Vec<&str> = value.as_object().expect("object").keys().map(|k| &**k).collect();
        keys.sort_unstable();
        assert_eq!(keys, ["epoch", "event", "from", "member", "mono_ns", "reason", "role", "to"]);
        assert_eq!((&value["event"], &value["epoch"]), (&"acquired".into(), &7.into()));
    }

    #[test]
    fn who_waits_is_told_once_why_and_again_when_that_changes() {
        let line = |event, from, to, reason: Option<&str>| Line {
            event,
            role: "r".to_owned(),
            member: "m".to_owned(),
            epoch: None,
            from,
            to,
            reason: reason.map(str::to_owned),
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
        let told: Vec<String> = story
            .chain([lost])
            .chain(attempt("paused"))
            .filter(|line| !line.is_stale(&mut waiting))
            .map(|line| line.reason.unwrap_or(line.event.to_owned()))
            .collect();
        assert_eq!(told, ["state_change", "held", "paused", "lost", "state_change", "paused"]);
    }

    #[test]
    fn a_moment_of_the_past_keeps_its_distance_on_the_other_clock() {
        let now = BootClock.now();
        let before = Tick::from_nanos(now.as_nanos() - 5_000_000_000);
        let apart = monotonic(now).abs_diff(monotonic(before));
        assert!(apart.abs_diff(5_000_000_000) < 500_000_000, "{apart}");
    }
}
