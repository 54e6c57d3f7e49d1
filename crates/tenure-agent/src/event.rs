//! What an agent tells of itself, for a program to print or to keep.

use jiff::Timestamp;
use serde::Serialize;
use tenure::{Epoch, RoleName};
use tokio::sync::mpsc;

/// Something that happened in this agent.
#[derive(Debug, Clone, Default, Serialize)]
#[non_exhaustive]
pub struct Event {
    /// What happened: `acquired`, `lost`, `child_started`, `run_started`, `run_ended`, `error` and so on.
    pub event: &'static str,
    /// The role it is about, if it is about one.
    pub role: Option<RoleName>,
    /// The schedule it is about, if it is about one.
    pub schedule: Option<String>,
    /// The planned instant of the slot it is about.
    pub slot: Option<Timestamp>,
    /// The number of the attempt.
    pub attempt: Option<u32>,
    /// The epoch of the term.
    pub epoch: Option<Epoch>,
    /// The process that was started.
    pub pid: Option<i32>,
    /// Its exit code, 128 + n for signal n.
    pub code: Option<u8>,
    /// Why, or how it ended.
    pub reason: Option<String>,
}

/// Where events go; cheap to clone. Events without a reader are lost, and nothing waits for one.
#[derive(Debug, Clone)]
pub struct Events(mpsc::UnboundedSender<Event>);

impl Events {
    /// With the end at which they are read. Unbounded: an agent makes few events, and a slow reader must not
    /// hold up a leader.
    #[must_use]
    pub fn channel() -> (Self, mpsc::UnboundedReceiver<Event>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (Events(sender), receiver)
    }

    pub(crate) fn tell(&self, event: Event) {
        let _ = self.0.send(event);
    }
}

impl Event {
    pub(crate) fn new(event: &'static str) -> Self {
        Event { event, ..Event::default() }
    }

    pub(crate) fn of(event: &'static str, role: &RoleName, epoch: Option<Epoch>) -> Self {
        Event { event, role: Some(role.clone()), epoch, ..Event::default() }
    }

    /// Something that the program around the agent says.
    #[must_use]
    pub fn said(event: &'static str, reason: &str) -> Self {
        Event::new(event).because(reason)
    }

    pub(crate) fn because(mut self, reason: impl Into<String>) -> Self {
        self.reason = Some(reason.into());
        self
    }
}
