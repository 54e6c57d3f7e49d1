//! How this process takes part in one role: it joins, tells what happens, and leaves.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tenure::config::Config;
use tenure::{Event, LeaderLock, LockState, Member, Notice, RoleName, TakeoverPolicy, TenureError};
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{sleep, timeout};

use crate::args::{Hooks, Output};
use crate::events::{Events, Writer};
use crate::exit::{Exit, Failure};
use crate::hooks::{self, HookRunner};
use crate::output::err;
use crate::setting::Setting;

/// How long the last lines may take.
const FLUSH: Duration = Duration::from_secs(1);

/// One role of one member, as a program takes part in it.
pub(crate) struct Candidacy {
    member: Arc<Member>,
    pub(crate) lock: LeaderLock,
    pub(crate) policy: TakeoverPolicy,
    pub(crate) events: Events,
    writer: Writer,
    /// From before the start on, so that not even the first attempt is missed.
    pub(crate) told: broadcast::Receiver<Event>,
    teller: tokio::task::JoinHandle<()>,
    lost: bool,
}

impl Candidacy {
    /// Starts the member and enters the race.
    pub(crate) async fn join(
        setting: &Setting,
        role: &RoleName,
        hooks: &Hooks,
        output: Output,
        to_stderr: bool,
    ) -> Result<Self, Failure> {
        let member = Arc::new(Member::start(setting.config.clone()).await?);
        let lock = member.lock(role.as_str())?;
        let configured = setting.config.roles().iter().find(|config| config.name() == role);
        let policy = configured.map_or_else(TakeoverPolicy::default, |role| role.policy());
        let identity = member.identity().as_str().to_owned();
        let (events, writer) =
            Events::start(role.as_str(), &identity, setting.embedded, output, to_stderr);
        let told = lock.events();
        let runner = HookRunner::start(hooks, &events, role.as_str(), &identity);
        let teller = tokio::spawn(tell(lock.events(), events.clone(), runner));
        lock.start().await?;
        Ok(Candidacy { member, lock, policy, events, writer, told, teller, lost: false })
    }

    pub(crate) fn identity(&self) -> &str {
        self.member.identity().as_str()
    }

    /// Whether the database answers now, and what it said if not.
    pub(crate) async fn trouble(&self) -> Result<Option<String>, TenureError> {
        let health = self.member.health().await?;
        Ok(if health.connected { None } else { Some(health.error.unwrap_or_default()) })
    }

    pub(crate) fn member(&self) -> Weak<Member> {
        Arc::downgrade(&self.member)
    }

    pub(crate) fn config(&self) -> &Config {
        self.member.config()
    }

    /// Ends when the role has stopped for good, and says with which code. Cancel-safe: what was
    /// learned is kept.
    pub(crate) async fn stopped(&mut self) -> Exit {
        loop {
            match self.told.recv().await {
                Ok(event) => match event.notice {
                    Notice::Lost { .. } => self.lost = true,
                    Notice::Acquired { .. } | Notice::Released { .. } => self.lost = false,
                    Notice::Stopped => break,
                    Notice::StateChange { .. }
                    | Notice::AcquireFailed { .. }
                    | Notice::Error(_)
                    | Notice::Late { .. }
                    | Notice::Well { .. }
                    | Notice::Recovered { .. } => {}
                },
                // What was missed shows in the state.
                Err(RecvError::Lagged(_)) if self.lock.state() != LockState::Stopped => {}
                Err(RecvError::Lagged(_) | RecvError::Closed) => break,
            }
        }
        if self.lost { Exit::Lost } else { Exit::Clean }
    }

    /// Releases, says goodbye, and writes the last lines. A release that did not go through costs the
    /// others a lease, and us no other exit code.
    pub(crate) async fn leave(self) {
        let Candidacy { member, lock, events, writer, teller, .. } = self;
        let within = member.config().lease().lease() * 2 + Duration::from_secs(15);
        let left = alone(member).await.shutdown(Some(within)).await;
        drop(lock);
        // It ends with the role's last word and the last hook.
        let _ = timeout(hooks::HOOK_LIMIT + FLUSH, teller).await;
        drop(events);
        writer.finish(FLUSH);
        if let Err(error) = left {
            err!("{error}; the server frees the role when its lease is over");
        }
    }
}

/// The member once no question about its health holds it any more.
async fn alone(mut member: Arc<Member>) -> Member {
    loop {
        match Arc::try_unwrap(member) {
            Ok(member) => return member,
            Err(shared) => member = shared,
        }
        sleep(Duration::from_millis(1)).await;
    }
}

/// Tells everything the lifecycle says, until its last word.
async fn tell(mut told: broadcast::Receiver<Event>, events: Events, runner: HookRunner) {
    let mut epoch = None;
    loop {
        match told.recv().await {
            Ok(event) => {
                if let Notice::Acquired { epoch: new } = &event.notice {
                    epoch = Some(*new);
                }
                events.notice(&event.notice, epoch, event.at);
                runner.notice(&event.notice);
                if matches!(event.notice, Notice::Stopped) {
                    break;
                }
            }
            Err(RecvError::Lagged(missed)) => {
                events.tell("error", epoch, format!("{missed} events were missed"));
            }
            Err(RecvError::Closed) => break,
        }
    }
    runner.finish().await;
}
