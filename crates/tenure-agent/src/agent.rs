//! The agent: a member, and what its leaders run.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::thread::available_parallelism;
use std::time::Duration;

use tenure::config::Config;
use tenure::{LeaderLock, Member, Notice, TenureError};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{Semaphore, broadcast, watch};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::commander::{Commander, Commands};
use crate::event::{Event, Events};
use crate::plan::{Plan, differences};
use crate::retention::{self, MAINTENANCE, Retention};
use crate::schedules::{ScheduleStartError, post, serve};
use crate::store::Store;
use crate::work::Job;

/// An agent at work.
#[derive(Debug)]
pub struct Agent {
    member: Arc<Member>,
    plan: Plan,
    commands: watch::Sender<Arc<Commands>>,
    jobs: watch::Sender<Arc<Vec<Job>>>,
    retention: watch::Sender<Option<Retention>>,
    tasks: JoinSet<()>,
}

impl Agent {
    /// Joins the group, campaigns for the plan's roles and runs what each leader should run. The
    /// configuration must name the roles of [`Plan::specs`].
    ///
    /// # Errors
    /// As [`Member::start`]; also a role that the database knows otherwise.
    pub async fn start(
        config: Config,
        plan: Plan,
        events: Events,
    ) -> Result<Self, ScheduleStartError> {
        let member = Member::start(config.clone()).await?;
        let name = format!("tenure agent {}", member.identity());
        let store = Arc::new(Store::new(&config, &name)?);
        let (commands, commanded) = watch::channel(Arc::new(plan.commands.clone()));
        let (jobs, scheduled) = watch::channel(Arc::new(plan.jobs.clone()));
        let (retention, retained) = watch::channel(plan.retention);
        let mut tasks = JoinSet::new();
        for lock in member.locks() {
            tasks.spawn(relay(lock.events(), lock.clone(), store.clone(), events.clone()));
        }
        let cores = available_parallelism().map_or(1, usize::from);
        let starts = Arc::new(Semaphore::new(cores * 2));
        for role in plan.commands.keys() {
            let commander = Commander {
                post: post(&member, role)?,
                commands: commanded.clone(),
                env: Vec::new(),
                events: events.clone(),
                starts: starts.clone(),
            };
            tasks.spawn(commander.serve());
        }
        serve(&member, store, &scheduled, &events, &mut tasks)?;
        if plan.retention.is_some() {
            let lock = member.lock(MAINTENANCE)?;
            tasks.spawn(retention::serve(lock, config, retained, events.clone()));
        }
        let agent = Agent { member: Arc::new(member), plan, commands, jobs, retention, tasks };
        agent.member.start_all().await?;
        Ok(agent)
    }

    /// Its member, for probes. Held weakly: a shutdown does not wait for a probe.
    #[must_use]
    pub fn member(&self) -> Weak<Member> {
        Arc::downgrade(&self.member)
    }

    /// Its identity in the group.
    #[must_use]
    pub fn identity(&self) -> &str {
        self.member.identity().as_str()
    }

    /// Takes over another plan: commands, schedules and retention. Says what it cannot take over.
    pub fn reload(&mut self, plan: Plan) -> Vec<&'static str> {
        let left = differences(&self.plan, &plan);
        let known = |role: &str| self.member.lock(role).is_ok();
        let commands: BTreeMap<_, _> = plan
            .commands
            .iter()
            .filter(|(role, _)| self.plan.commands.contains_key(*role))
            .map(|(role, run)| (role.clone(), run.clone()))
            .collect();
        let led = |job: &&Job| {
            let role = job.schedule.role();
            known(role.as_str()) && self.plan.jobs.iter().any(|old| old.schedule.role() == role)
        };
        let jobs: Vec<Job> = plan.jobs.iter().filter(led).cloned().collect();
        self.commands.send_replace(Arc::new(commands));
        self.jobs.send_replace(Arc::new(jobs));
        self.retention.send_replace(plan.retention);
        left
    }

    /// Drains and releases every role, waits for every child and run, and leaves the group. Past `within`
    /// everything is dropped: guardians end their children at once, and the server frees the locks.
    ///
    /// # Errors
    /// [`TenureError::Timeout`].
    pub async fn shutdown(self, within: Duration) -> Result<(), TenureError> {
        let Agent { mut member, mut tasks, commands, jobs, retention, .. } = self;
        let member = loop {
            match Arc::try_unwrap(member) {
                Ok(member) => break member,
                // A probe is being answered.
                Err(shared) => member = shared,
            }
            sleep(Duration::from_millis(1)).await;
        };
        let left = member.shutdown(Some(within)).await;
        if left.is_ok() {
            while tasks.join_next().await.is_some() {}
        }
        drop((commands, jobs, retention));
        left
    }

    /// The longest that a shutdown may take.
    #[must_use]
    pub fn patience(&self) -> Duration {
        let config = self.member.config();
        let drain = config.roles().iter().map(|role| role.drain_limit()).max().unwrap_or_default();
        drain + config.lease().lease() * 2 + Duration::from_secs(15)
    }
}

/// Passes on what a role's lifecycle says, and writes down for people what no other table has.
async fn relay(
    mut notices: broadcast::Receiver<tenure::Event>,
    lock: LeaderLock,
    store: Arc<Store>,
    events: Events,
) {
    let role = lock.role().as_str().to_owned();
    loop {
        let notice = match notices.recv().await {
            Ok(event) => event.notice,
            Err(RecvError::Lagged(missed)) => {
                let why = format!("{missed} events were missed");
                events.tell(Event::of("error", &role, None).because(why));
                continue;
            }
            Err(RecvError::Closed) => return,
        };
        let event = match &notice {
            Notice::Acquired { epoch } => Event::of("acquired", &role, Some(*epoch)),
            Notice::Released { epoch } => Event::of("released", &role, Some(*epoch)),
            Notice::Lost { epoch, reason } => {
                Event::of("lost", &role, Some(*epoch)).because(reason.to_string())
            }
            Notice::Late { epoch } => Event::of("late", &role, Some(*epoch)),
            Notice::Well { epoch } => Event::of("well", &role, Some(*epoch)),
            Notice::Recovered { epoch } => Event::of("recovered", &role, Some(*epoch)),
            Notice::Error(error) => Event::of("error", &role, None).because(error.clone()),
            Notice::Stopped => {
                events.tell(Event::of("stopped", &role, None));
                return;
            }
            Notice::StateChange { .. } | Notice::AcquireFailed { .. } => continue,
        };
        let noted = match &notice {
            Notice::Late { epoch } => {
                Some((*epoch, "late", "no heartbeat succeeded within the lease"))
            }
            Notice::Well { epoch } => {
                Some((*epoch, "well", "a heartbeat confirmed lock and epoch"))
            }
            Notice::Recovered { epoch } => {
                Some((*epoch, "recovered", "won back within the grace period"))
            }
            Notice::Acquired { .. }
            | Notice::Released { .. }
            | Notice::Lost { .. }
            | Notice::Error(_)
            | Notice::Stopped
            | Notice::StateChange { .. }
            | Notice::AcquireFailed { .. } => None,
        };
        events.tell(event);
        if let Some((epoch, kind, detail)) = noted {
            let member = lock.identity().as_str();
            // For people: a note that is lost costs nothing else.
            let _ = store.note(&role, member, Some(epoch), kind, detail).await;
        }
    }
}
