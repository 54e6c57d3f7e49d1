//! Runs a role's command: started when the gate opens, ended before the lease does, started again when it
//! exits by itself.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tenure_guardian::EndedBy;
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, sleep};

use crate::child::{ChildEnd, Post, Program, Restarts, Stop, not_started};
use crate::event::{Event, Events};

/// The commands of an agent, by role.
pub(crate) type Commands = BTreeMap<String, Vec<String>>;

/// What runs the command of one role on one member.
#[derive(Debug)]
pub(crate) struct Commander {
    pub(crate) post: Post,
    pub(crate) commands: watch::Receiver<Arc<Commands>>,
    /// Variables beside the role's own.
    pub(crate) env: Vec<(&'static str, String)>,
    pub(crate) events: Events,
    /// How many children of the agent may be starting at once.
    pub(crate) starts: Arc<Semaphore>,
}

impl Commander {
    /// Runs until the role has stopped.
    pub(crate) async fn serve(mut self) {
        let lock = self.post.lock.clone();
        let mut restarts = Restarts::default();
        while lock.led().await.is_ok() {
            let begun = Instant::now();
            if self.term().await {
                sleep(restarts.pause(begun.elapsed())).await;
            } else {
                restarts.reset();
            }
        }
    }

    fn command(&self) -> Option<Vec<String>> {
        self.commands.borrow().get(self.post.lock.role().as_str()).cloned()
    }

    /// Runs the command once; true: it ended by itself.
    async fn term(&mut self) -> bool {
        let Some(command) = self.command() else {
            // Taken out of the file: the role is led, and nothing runs.
            let changed = self.commands.changed();
            tokio::select! {
                _ = changed => {}
                () = sleep(Duration::from_secs(1)) => {}
            }
            return false;
        };
        let Ok(permit) = self.starts.clone().acquire_owned().await else { return false };
        let lock = self.post.lock.clone();
        // In flight as long as a process of the child lives: the release is clean or it is not.
        let Ok(act) = lock.begin_act(Duration::ZERO) else { return false };
        let epoch = act.epoch();
        let role = lock.role();
        let mut env = vec![
            ("TENURE_ROLE", role.as_str().to_owned()),
            ("TENURE_MEMBER", lock.identity().as_str().to_owned()),
            ("TENURE_EPOCH", epoch.get().to_string()),
        ];
        env.extend(self.env.iter().cloned());
        let program = Program {
            command: command.iter().map(OsString::from).collect(),
            env,
            keeps_output: false,
            outlasts_drain: false,
        };
        let (stop, stopped) = watch::channel(Stop::No);
        let started = {
            let (events, mut event) =
                (self.events.clone(), Event::of("child_started", role, Some(epoch)));
            move |pid| {
                drop(permit);
                event.pid = Some(pid);
                events.tell(event);
            }
        };
        let post = self.post.clone();
        let ended = {
            let mut run = pin!(post.run(&act, &program, stopped, started));
            loop {
                tokio::select! {
                    ended = &mut run => break ended,
                    // Another command is started in its place once this one is gone.
                    Ok(()) = self.commands.changed() => {
                        if self.command().as_ref() != Some(&command) {
                            stop.send_replace(Stop::WithGrace);
                        }
                    }
                }
            }
        };
        let mut event = Event::of("child_gone", role, Some(epoch));
        let end = match ended {
            Ok(ended) => ended.end,
            Err(error) => {
                self.events
                    .tell(event.because(format!("the guardian could not be started: {error}")));
                return true;
            }
        };
        let (reason, by_itself) = said(&end, &program);
        if let ChildEnd::Gone(status, EndedBy::Exited | EndedBy::Stopped) = end {
            event.code = Some(tenure_guardian::exit_code(status));
        }
        self.events.tell(event.because(reason));
        if let ChildEnd::GuardianDied(all_ended) = end {
            if all_ended {
                drop(act);
            } else {
                // In flight for ever: no release of this term may be called clean.
                std::mem::forget(act);
            }
            let _ = lock.step_down(None).await;
        }
        by_itself
    }
}

/// How a command ended, for people; and whether it did so by itself.
fn said(end: &ChildEnd, program: &Program) -> (String, bool) {
    let (reason, by_itself) = match end {
        ChildEnd::NotStarted(errno) => return (not_started(&program.command, *errno), true),
        ChildEnd::Gone(_, EndedBy::Exited) => ("it exited by itself", true),
        ChildEnd::Gone(_, EndedBy::Stopped) => ("it was stopped", false),
        ChildEnd::TooLate | ChildEnd::Gone(_, EndedBy::LeaseEnded | EndedBy::Orphaned) => {
            ("the lease was about to end", false)
        }
        ChildEnd::GuardianDied(true) => ("its guardian was killed, and it with it", false),
        ChildEnd::GuardianDied(false) => {
            ("its guardian was killed; some processes are left", false)
        }
    };
    (reason.to_owned(), by_itself)
}
