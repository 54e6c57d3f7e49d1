//! What an agent tells on standard error: one event per line, as text or as JSON.
//!
//! The JSON form is contract: every object has `event`, `time`, `member`, `role`, `schedule`, `slot`,
//! `attempt`, `epoch`, `pid`, `code` and `reason` (null where there is nothing to say), and `embedded` if the
//! election is held on the private server of this machine.

use std::io::Write;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde::Serialize;
use tenure_agent::Event;
use tokio::sync::mpsc::UnboundedReceiver;

use crate::args::Output;

/// How long the last lines may take.
const FLUSH: Duration = Duration::from_secs(1);

#[derive(Debug, Serialize)]
struct Line {
    time: String,
    member: String,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    embedded: bool,
    #[serde(flatten)]
    event: Event,
}

/// Writes on a thread of its own: a reader that does not read must not hold up a leader.
#[derive(Debug)]
pub(super) struct Journal {
    lines: mpsc::Sender<Line>,
    member: String,
    embedded: bool,
    thread: JoinHandle<()>,
    relay: tokio::task::JoinHandle<()>,
}

impl Journal {
    pub(super) fn start(
        member: &str,
        output: Output,
        embedded: bool,
        mut inbox: UnboundedReceiver<Event>,
    ) -> Self {
        let (lines, written) = mpsc::channel::<Line>();
        let thread = std::thread::spawn(move || {
            for line in written {
                let text = match output {
                    Output::Json => serde_json::to_string(&line).unwrap_or_default(),
                    Output::Text => line.text(),
                    Output::Quiet if line.event.event == "error" => line.text(),
                    Output::Quiet => continue,
                };
                // Without a reader the election goes on all the same.
                // In one write: a child may write to the same place.
                let _ = std::io::stderr().lock().write_all(format!("{text}\n").as_bytes());
            }
        });
        let member = member.to_owned();
        let relay = {
            let (lines, member) = (lines.clone(), member.clone());
            tokio::spawn(async move {
                while let Some(event) = inbox.recv().await {
                    let _ = lines.send(Line::new(event, &member, embedded));
                }
            })
        };
        Journal { lines, member, embedded, thread, relay }
    }

    pub(super) fn say(&self, event: &'static str, reason: &str) {
        let event = Event::said(event, reason);
        let _ = self.lines.send(Line::new(event, &self.member, self.embedded));
    }

    /// Waits until everything is written, but not for ever.
    pub(super) fn finish(self) {
        let Journal { lines, thread, relay, .. } = self;
        let begun = Instant::now();
        while !relay.is_finished() && begun.elapsed() < FLUSH {
            std::thread::sleep(Duration::from_millis(1));
        }
        relay.abort();
        drop(lines);
        while !thread.is_finished() && begun.elapsed() < 2 * FLUSH {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Line {
    fn new(event: Event, member: &str, embedded: bool) -> Self {
        let time = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S%.3fZ").to_string();
        Line { time, member: member.to_owned(), embedded, event }
    }

    fn text(&self) -> String {
        let Event { event, role, schedule, slot, attempt, epoch, pid, code, reason, .. } =
            &self.event;
        let mut text = format!("tenure: {} {event:<14}", self.time);
        let mut add = |part: Option<String>| {
            if let Some(part) = part {
                text.push_str("  ");
                text.push_str(&part);
            }
        };
        add(role.as_ref().map(ToString::to_string));
        add(schedule.as_ref().map(|name| format!("schedule {name}")));
        add(slot.map(|slot| format!("slot {slot}")));
        add(attempt.filter(|number| *number > 1).map(|number| format!("attempt {number}")));
        add(epoch.map(|epoch| format!("epoch {epoch}")));
        add(pid.map(|pid| format!("pid {pid}")));
        add(code.map(|code| format!("code {code}")));
        add(reason.as_ref().map(|reason| format!("({reason})")));
        text
    }
}
