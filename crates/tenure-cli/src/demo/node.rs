//! A member in a process of its own: `tenure run --output json`.

use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;

use super::{HEARTBEAT, LEASE, ROLE};

/// One event of a member.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct MemberEvent {
    pub(super) event: String,
    pub(super) epoch: Option<i64>,
    pub(super) reason: Option<String>,
    pub(super) mono_ns: u64,
}

/// Killed when dropped.
pub(super) struct Node {
    index: usize,
    name: &'static str,
    dsn: String,
    events: mpsc::UnboundedSender<(usize, MemberEvent)>,
    child: Child,
}

impl Node {
    pub(super) fn start(
        index: usize,
        name: &'static str,
        dsn: &str,
        events: mpsc::UnboundedSender<(usize, MemberEvent)>,
    ) -> anyhow::Result<Self> {
        let child = spawn(index, name, dsn, events.clone())?;
        Ok(Node { index, name, dsn: dsn.to_owned(), events, child })
    }

    pub(super) async fn kill(&mut self) {
        let _ = self.child.kill().await;
    }

    pub(super) fn start_again(&mut self) -> anyhow::Result<()> {
        self.child = spawn(self.index, self.name, &self.dsn, self.events.clone())?;
        Ok(())
    }

    pub(super) fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    pub(super) fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        // No id once it was reaped: the number may be another's by then.
        if let Some(pid) = self.child.id().and_then(|id| Pid::from_raw(id.cast_signed())) {
            let _ = kill_process(pid, signal);
        }
    }
}

fn spawn(
    index: usize,
    name: &str,
    dsn: &str,
    events: mpsc::UnboundedSender<(usize, MemberEvent)>,
) -> anyhow::Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["run", "--role", ROLE, "--output", "json", "--instance", name, "--dsn", dsn]);
    for (option, time) in [("--heartbeat", HEARTBEAT), ("--lease", LEASE)] {
        command.arg(option).arg(format!("{}ms", time.as_millis()));
    }
    // Whatever the caller configured is not for the demo.
    command.env_clear().stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    // Ctrl-C is for the demo, which then ends its members.
    let mut child = command.process_group(0).kill_on_drop(true).spawn()?;
    if let Some(stdout) = child.stdout.take() {
        tokio::spawn(async move {
            let mut lines = BufReader::new(stdout).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                if let Ok(event) = serde_json::from_str(&line)
                    && events.send((index, event)).is_err()
                {
                    return;
                }
            }
        });
    }
    Ok(child)
}
