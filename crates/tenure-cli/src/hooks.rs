//! What else `run` runs: hooks on events.
//!
//! Hooks are short words to the outside, run one after another in the order of events. They are not
//! guarded: what must not outlive the lease belongs into CMD.

use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tenure::{Epoch, Notice};
use tokio::process::Command;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::args::Hooks;
use crate::events::Events;
use crate::table::span;

/// A hook that takes longer is killed.
pub(crate) const HOOK_LIMIT: Duration = Duration::from_secs(10);

/// Runs hooks beside the election.
#[derive(Debug)]
pub(crate) struct HookRunner {
    hooks: Hooks,
    queue: mpsc::UnboundedSender<(String, &'static str, Epoch)>,
    task: tokio::task::JoinHandle<()>,
}

impl HookRunner {
    /// Without `epochs` no hook is told one.
    pub(crate) fn start(
        hooks: &Hooks,
        events: &Events,
        role: &str,
        member: &str,
        epochs: bool,
    ) -> Self {
        let (queue, mut inbox) = mpsc::unbounded_channel::<(String, &'static str, Epoch)>();
        let (events, role, member) = (events.clone(), role.to_owned(), member.to_owned());
        let task = tokio::spawn(async move {
            while let Some((command, event, epoch)) = inbox.recv().await {
                let env = variables(&role, &member, Some(epoch).filter(|_| epochs));
                if let Err(why) = shell(&command, &env, event, HOOK_LIMIT).await {
                    events.report("error", Some(epoch), format!("the hook of `{event}` {why}"));
                }
            }
        });
        HookRunner { hooks: hooks.clone(), queue, task }
    }

    pub(crate) fn notice(&self, notice: &Notice) {
        let (hook, event, epoch) = match notice {
            Notice::Acquired { epoch } => (&self.hooks.on_acquired, "acquired", *epoch),
            Notice::Lost { epoch, .. } => (&self.hooks.on_lost, "lost", *epoch),
            Notice::Released { epoch } => (&self.hooks.on_released, "released", *epoch),
            Notice::StateChange { .. }
            | Notice::AcquireFailed { .. }
            | Notice::Error(_)
            | Notice::Stopped
            | Notice::Late { .. }
            | Notice::Well { .. }
            | Notice::Recovered { .. } => return,
        };
        if let Some(hook) = hook {
            let _ = self.queue.send((hook.clone(), event, epoch));
        }
    }

    /// Runs what is still queued.
    pub(crate) async fn finish(self) {
        let HookRunner { queue, mut task, .. } = self;
        drop(queue);
        if timeout(HOOK_LIMIT, &mut task).await.is_err() {
            task.abort();
            let _ = task.await;
        }
    }
}

/// What every program we start is told.
pub(crate) fn variables(
    role: &str,
    member: &str,
    epoch: Option<Epoch>,
) -> Vec<(&'static str, String)> {
    let mut env = vec![("TENURE_ROLE", role.to_owned()), ("TENURE_MEMBER", member.to_owned())];
    if let Some(epoch) = epoch {
        env.push(("TENURE_EPOCH", epoch.get().to_string()));
    }
    env
}

/// Runs a shell command to its end; its output goes to standard error, so that it never mixes with
/// events or with a child's output. Dropped, it kills what it runs.
pub(crate) async fn shell(
    command: &str,
    env: &[(&'static str, String)],
    event: &str,
    within: Duration,
) -> Result<(), String> {
    let stderr =
        rustix::io::dup(rustix::stdio::stderr()).map_err(|error| format!("failed: {error}"))?;
    let mut child = Command::new("/bin/sh")
        .args(["-c", command])
        .envs(env.iter().map(|(name, value)| (name, value)))
        .env("TENURE_EVENT", event)
        .stdin(Stdio::null())
        .stdout(Stdio::from(stderr))
        .process_group(0)
        .spawn()
        .map_err(|error| format!("could not be started: {error}"))?;
    let mut hanging = Hanging(child.id().and_then(|id| Pid::from_raw(id.cast_signed())));
    let ended = timeout(within, child.wait()).await;
    if ended.is_ok() {
        hanging.0 = None;
    }
    match ended {
        Ok(Ok(status)) if status.success() => Ok(()),
        Ok(Ok(status)) => Err(format!("failed ({status})")),
        Ok(Err(error)) => Err(format!("failed: {error}")),
        Err(_) => {
            drop(hanging);
            let _ = child.wait().await;
            Err(format!("took longer than {}", span(within)))
        }
    }
}

/// A shell that has not ended, and what it runs: killed together, also when we end first.
struct Hanging(Option<Pid>);

impl Drop for Hanging {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}
