//! What the application says of itself: its health while it serves, its readiness while it waits.
//!
//! ```text
//!   waits ──► --ready, again and again: not ready, the member lets a ready one lead
//!     │ ▲
//!     ▼ │ the child is gone
//!   serves ──► --health-start, then --health: so many failures in a row, and the leader steps down
//! ```
//!
//! Only a child that runs can be ill: what a check says while none runs is not asked for, and every
//! child is counted anew.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use tenure::{Epoch, LeaderLock};
use tenure_agent::store::Store;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::args::Hooks;
use crate::candidacy::Candidacy;
use crate::events::Events;
use crate::hooks::{shell, variables};

/// The checks of one candidacy.
#[derive(Debug)]
pub(crate) struct Checks {
    hooks: Hooks,
    lock: LeaderLock,
    events: Events,
    member: String,
    /// Without tables there are none to hand on.
    epochs: bool,
    /// Connected to when there is something to note; none without tables.
    store: Option<Arc<Store>>,
}

impl Checks {
    pub(crate) fn of(candidacy: &Candidacy, hooks: &Hooks) -> Self {
        let epochs = !candidacy.config().is_lock_only();
        // The member's own session has just been made with the same configuration.
        let store = Store::new(candidacy.config(), "tenure health").ok().filter(|_| epochs);
        Checks {
            hooks: hooks.clone(),
            lock: candidacy.lock.clone(),
            events: candidacy.events.clone(),
            member: candidacy.identity().to_owned(),
            epochs,
            store: store.map(Arc::new),
        }
    }

    /// Asks until the candidacy ends. `serving` is true while the child runs.
    pub(crate) async fn watch(self, mut serving: watch::Receiver<bool>) {
        // As the candidacy began: see [`Candidacy::join`].
        let mut ready = self.hooks.ready.is_none();
        loop {
            let serves = *serving.borrow_and_update();
            let asking = async {
                if serves {
                    self.ask_health().await;
                } else {
                    self.ask_readiness(&mut ready).await;
                }
            };
            // A check that is dropped is killed with what it runs, and what it would have said is
            // about a child that is gone.
            tokio::select! {
                changed = serving.changed() => if changed.is_err() { return },
                () = asking => {}
            }
        }
    }

    /// Of one child, from its start to its end.
    async fn ask_health(&self) {
        let Some(command) = &self.hooks.health else { return pending().await };
        sleep(self.hooks.health_start).await;
        let limit = self.hooks.health_failures;
        let mut failures = 0;
        loop {
            let epoch = self.lock.gate().epoch();
            match self.ask(command, "health", self.hooks.health_timeout).await {
                Ok(()) if failures > 0 => {
                    self.events.report("healthy", epoch, "the health check passes again");
                    failures = 0;
                }
                Ok(()) => {}
                Err(why) => {
                    failures += 1;
                    let reason = format!("the health check {why} ({failures} of {limit})");
                    self.events.report("unhealthy", epoch, reason);
                }
            }
            if failures >= limit {
                let reason = "stepping down: the health check keeps failing".to_owned();
                self.events.trouble(epoch, reason.clone());
                self.note(epoch, reason);
                let _ = self.lock.step_down(None).await;
                failures = 0;
            }
            sleep(self.hooks.health_every).await;
        }
    }

    /// For people who read the group's events. Nothing waits for it, and it may be lost.
    fn note(&self, epoch: Option<Epoch>, detail: String) {
        let Some(store) = self.store.clone() else { return };
        let lock = self.lock.clone();
        tokio::spawn(async move {
            let (role, member) = (lock.role(), lock.identity());
            let noted = store.note(role, member, epoch, "unhealthy", &detail).await;
            if let Err(error) = noted {
                tracing::warn!("the event was not noted: {error}");
            }
        });
    }

    /// Of a member that waits. `ready` is what the group knows, and outlives this call.
    async fn ask_readiness(&self, ready: &mut bool) {
        let Some(command) = &self.hooks.ready else { return pending().await };
        loop {
            let answer = self.ask(command, "ready", self.hooks.health_timeout).await;
            if answer.is_ok() != *ready && self.lock.set_ready(answer.is_ok()).is_ok() {
                *ready = answer.is_ok();
                match answer {
                    Ok(()) => self.events.report("ready", None, "the readiness check passes"),
                    Err(why) => {
                        let reason = format!("the readiness check {why}");
                        self.events.report("not_ready", None, reason);
                    }
                }
            }
            sleep(self.hooks.health_every).await;
        }
    }

    async fn ask(&self, command: &str, event: &str, within: Duration) -> Result<(), String> {
        let epoch = self.lock.gate().epoch().filter(|_| self.epochs);
        let env = variables(self.lock.role().as_str(), &self.member, epoch);
        shell(command, &env, event, within).await
    }
}
