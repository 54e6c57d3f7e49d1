//! How this process takes part in one role: it joins, tells what happens, and leaves.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tenure::config::Config;
use tenure::{
    BootClock, Clock, Epoch, Event, LeaderLock, LockState, Member, Notice, RoleName,
    TakeoverPolicy, TenureError,
};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, watch};
use tokio::time::{sleep, timeout};

use crate::args::{Hooks, Output};
use crate::events::{Events, Subject, Writer};
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
    pub(crate) notices: broadcast::Receiver<Event>,
    /// Ends with the role, and says whether it did.
    relay: tokio::task::JoinHandle<bool>,
    lost: bool,
    /// Whether the child runs, or the process leads without one.
    serving: watch::Sender<bool>,
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
        let subject = Subject {
            role: role.as_str().to_owned(),
            member: identity.clone(),
            embedded: setting.embedded,
            lock_only: setting.config.is_lock_only(),
        };
        let epochs = !subject.lock_only;
        let (events, writer) = Events::start(subject, output, to_stderr);
        let notices = lock.events();
        let runner = HookRunner::start(hooks, &events, role.as_str(), &identity, epochs);
        let relay = tokio::spawn(relay(lock.events(), events.clone(), runner));
        if hooks.ready.is_some() {
            // Until the check has passed once: a ready member must not lose the race to this one.
            lock.set_ready(false)?;
        }
        lock.start().await?;
        let (serving, _) = watch::channel(false);
        Ok(Candidacy { member, lock, policy, events, writer, notices, relay, lost: false, serving })
    }

    /// The fencing token of a term; none without tables, where there are no epochs.
    pub(crate) fn fencing(&self, epoch: Epoch) -> Option<Epoch> {
        (!self.config().is_lock_only()).then_some(epoch)
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

    /// Whether the application serves, for the checks of its health.
    pub(crate) fn serving(&self) -> watch::Receiver<bool> {
        self.serving.subscribe()
    }

    pub(crate) fn serves(&self, serves: bool) {
        self.serving.send_replace(serves);
    }

    pub(crate) fn config(&self) -> &Config {
        self.member.config()
    }

    /// Ends when the role has stopped for good, and says with which code. A role that was refused after
    /// its start fails as one that is refused at its start. Cancel-safe: what was learned is kept.
    pub(crate) async fn stopped(&mut self) -> Result<Exit, Failure> {
        loop {
            match self.notices.recv().await {
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
        match self.lock.refusal() {
            Some(refusal) => Err(refusal.into()),
            None => Ok(if self.lost { Exit::Lost } else { Exit::Clean }),
        }
    }

    /// Releases, says goodbye, and writes the last lines. A release that did not go through costs the
    /// others a lease, and us no other exit code.
    pub(crate) async fn leave(self) {
        let Candidacy { member, lock, events, writer, relay, .. } = self;
        let within = member.config().lease().lease() * 2 + Duration::from_secs(15);
        let left = alone(member).await.shutdown(Some(within)).await;
        drop(lock);
        // It ends with the role and the last hook. The child is gone too: nothing comes after this.
        if let Ok(Ok(true)) = timeout(hooks::HOOK_LIMIT + FLUSH, relay).await {
            events.notice(&Notice::Stopped, None, BootClock.now());
        }
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

/// Passes on everything the lifecycle says until the role has stopped, and returns whether it has: the
/// child may still be ending then, and `stopped` is the last event of all.
async fn relay(
    mut notices: broadcast::Receiver<Event>,
    events: Events,
    runner: HookRunner,
) -> bool {
    let mut epoch = None;
    let stopped = loop {
        match notices.recv().await {
            Ok(Event { notice: Notice::Stopped, .. }) => break true,
            Ok(event) => {
                if let Notice::Acquired { epoch: new } = &event.notice {
                    epoch = Some(*new);
                }
                events.notice(&event.notice, epoch, event.at);
                runner.notice(&event.notice);
            }
            Err(RecvError::Lagged(missed)) => {
                events.report("error", epoch, format!("{missed} events were missed"));
            }
            Err(RecvError::Closed) => break false,
        }
    };
    runner.finish().await;
    stopped
}
