//! Programs under test, in processes of their own.

use std::{
    process::{ExitStatus, Stdio},
    time::Duration,
};

use rustix::process::{Pid, kill_process, kill_process_group};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::Command,
    sync::mpsc,
    time::{Instant, timeout, timeout_at},
};

use crate::{KitError, home::Home, process::Signal};

/// A running program in a process group of its own; the whole group is killed when this is
/// dropped, and when the test process dies.
#[derive(Debug)]
pub struct Child {
    child: tokio::process::Child,
    pid: u32,
    lines: mpsc::UnboundedReceiver<String>,
    seen: Vec<String>,
}

impl Child {
    /// Starts the program. Its standard output is read line by line from the beginning on, so it
    /// never blocks on a full pipe; its standard error goes where the test's goes.
    ///
    /// # Errors
    /// [`KitError::Io`] if it cannot be run.
    pub fn spawn(mut command: Command) -> Result<Self, KitError> {
        let mut child = command
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let pid =
            child.id().ok_or_else(|| KitError::Setup("the program has no process id".into()))?;
        Home::get()?.watch_group(pid)?;
        let stdout = child
            .stdout
            .take()
            .ok_or_else(|| KitError::Setup("the program has no standard output".into()))?;
        let (send, lines) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            let mut reader = BufReader::new(stdout).lines();
            while let Ok(Some(line)) = reader.next_line().await {
                if send.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Self { child, pid, lines, seen: Vec::new() })
    }

    /// Its process id, which is its group's as well.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The first line not yet waited past that `wanted` likes. Lines before it are skipped, but kept
    /// for [`Child::lines`].
    ///
    /// # Errors
    /// [`KitError::TimedOut`] with the lines that came instead, also when the output ended.
    pub async fn wait_line(
        &mut self,
        wanted: impl Fn(&str) -> bool,
        within: Duration,
    ) -> Result<String, KitError> {
        let deadline = Instant::now() + within;
        // Cancel-safe: a line is recorded in the same step in which it is received.
        while let Ok(Some(line)) = timeout_at(deadline, self.lines.recv()).await {
            self.seen.push(line.clone());
            if wanted(&line) {
                return Ok(line);
            }
        }
        Err(KitError::TimedOut {
            what: "a line of the program".into(),
            after: within,
            detail: format!("; it said {:?}", &self.seen[self.seen.len().saturating_sub(20)..]),
        })
    }

    /// Every line it has printed so far, waited for or not.
    pub fn lines(&mut self) -> &[String] {
        while let Ok(line) = self.lines.try_recv() {
            self.seen.push(line);
        }
        &self.seen
    }

    /// Sends a signal to the program alone.
    pub fn signal(&self, signal: Signal) {
        if let Some(pid) = self.raw().filter(|_| self.child.id().is_some()) {
            let _ = kill_process(pid, signal);
        }
    }

    /// Sends a signal to the program and all its descendants that stayed in its group.
    pub fn signal_group(&self, signal: Signal) {
        if let Some(pid) = self.raw() {
            let _ = kill_process_group(pid, signal);
        }
    }

    /// SIGSTOP to the group: a paused machine, seen from inside.
    pub fn freeze(&self) {
        self.signal_group(Signal::STOP);
    }

    /// SIGCONT to the group.
    pub fn thaw(&self) {
        self.signal_group(Signal::CONT);
    }

    /// SIGKILL to the group, and waits for its end.
    ///
    /// # Errors
    /// [`KitError::TimedOut`].
    pub async fn kill(&mut self) -> Result<ExitStatus, KitError> {
        self.signal_group(Signal::KILL);
        self.wait(Duration::from_secs(10)).await
    }

    /// Waits until the program has ended by itself and its output is read to the end.
    ///
    /// # Errors
    /// [`KitError::TimedOut`]; it then still runs.
    pub async fn wait(&mut self, within: Duration) -> Result<ExitStatus, KitError> {
        let status =
            timeout(within, self.child.wait()).await.map_err(|_| KitError::TimedOut {
                what: "the program to end".into(),
                after: within,
                detail: format!("; it said {:?}", self.seen.last()),
            })??;
        // A grandchild may hold the pipe open for longer; then what is there must do.
        while let Ok(Some(line)) = timeout(Duration::from_millis(200), self.lines.recv()).await {
            self.seen.push(line);
        }
        Ok(status)
    }

    fn raw(&self) -> Option<Pid> {
        i32::try_from(self.pid).ok().and_then(Pid::from_raw)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.signal_group(Signal::KILL);
        if let Ok(home) = Home::get() {
            home.forget_group(self.pid);
        }
    }
}
