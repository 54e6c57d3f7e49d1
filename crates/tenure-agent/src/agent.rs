//! The agent: a member, and what its leaders run.

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};
use std::thread::available_parallelism;
use std::time::Duration;

use tenure::config::Config;
use tenure::connect::dsn::ProcessEnv;
use tenure::shards::{Answer, Asked};
use tenure::{Identity, LeaderLock, Member, Notice, TenureError};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{Semaphore, broadcast, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout_at};

use crate::alerts::{self, ALERTS, Setup};
use crate::commander::{Commander, Commands};
use crate::event::{Event, Events};
use crate::plan::{Plan, differences};
use crate::retention::{self, MAINTENANCE, Retention};
use crate::schedules::{Roster, ScheduleStartError, forget, post};
use crate::store::Store;
use crate::work::Job;

/// Longer than any process runs.
const FOR_EVER: Duration = Duration::from_secs(100 * 365 * 86_400);

/// A member, with what its leaders run: the commands, schedules, shards, retention and alerts of a [`Plan`].
///
/// Dropping it ends everything at once: guardians end their children, and no run's end is recorded.
/// [`Agent::shutdown`] hands over first.
#[derive(Debug)]
pub struct Agent {
    member: Arc<Member>,
    plan: Plan,
    commands: watch::Sender<Arc<Commands>>,
    jobs: watch::Sender<Arc<Vec<Job>>>,
    retention: watch::Sender<Option<Retention>>,
    roster: Roster,
    /// The roles whose commands are run, or were.
    commanded: BTreeSet<String>,
    starts: Arc<Semaphore>,
    events: Events,
    alerts: Option<(watch::Sender<Arc<Setup>>, AbortHandle)>,
    refused: watch::Sender<Option<TenureError>>,
    /// Dropped when the member has left: nothing more is told of its roles.
    told: watch::Sender<()>,
    tasks: JoinSet<()>,
}

/// Sets of shards are looked at over the agent's one session.
struct Standings {
    store: Arc<Store>,
    events: Events,
}

impl Asked for Standings {
    fn ask<'a>(&'a self, sql: &'a str) -> Answer<'a> {
        Box::pin(async move {
            let answer = self.store.send(sql).await.map_err(|error| error.to_string())?;
            Ok(answer.unwrap_or_default())
        })
    }

    fn trouble(&self, why: &str) {
        self.events.tell(Event::said("error", why));
    }
}

impl Agent {
    /// Makes the member, and everything that runs what its leaders should run; [`Agent::campaign`] enters
    /// the races. The configuration must name the roles of [`Plan::specs`]. Where the plan runs programs, `main`
    /// must call [`tenure_guardian::run_if_guardian`] first. `events` is told what happens, see
    /// [`Events::channel`]. Must be called in a tokio runtime.
    ///
    /// # Errors
    /// What [`Member::start`] refuses, [`TenureError::UnknownRole`] for a role that the configuration lacks, or
    /// what keeps the store or a notifier from being made. Nothing runs then.
    pub async fn start(
        config: Config,
        plan: Plan,
        events: Events,
    ) -> Result<Self, ScheduleStartError> {
        let member = Member::start(config.clone()).await?;
        let name = format!("tenure agent {}", member.identity());
        let store = Arc::new(Store::new(&config, &name)?);
        let mut tasks = JoinSet::new();
        let (refused, led) = (watch::channel(None).0, watch::channel(0).0);
        let told = watch::channel(()).0;
        let (jobs, scheduled) = watch::channel(Arc::new(plan.jobs.clone()));
        let locks = member.locks();
        tasks.spawn(forget(
            locks.clone(),
            store.clone(),
            scheduled.clone(),
            led.subscribe(),
            events.clone(),
        ));
        for lock in locks {
            let (refused, led) = (refused.clone(), led.clone());
            let (store, events) = (store.clone(), events.clone());
            let told = told.subscribe();
            tasks.spawn(relay(lock.events(), lock, store, events, refused, led, told));
        }
        drop(led);
        for shards in &plan.shards {
            let asked = Standings { store: store.clone(), events: events.clone() };
            tasks.spawn(shards.spread(&member, Arc::new(asked))?);
        }
        let (retention, retained) = watch::channel(plan.retention);
        if plan.retention.is_some() {
            let lock = member.lock(MAINTENANCE)?;
            tasks.spawn(retention::serve(lock, config.clone(), retained, events.clone()));
        }
        let member = Arc::new(member);
        let mut alerts = None;
        if let Some(alerting) = &plan.alerting {
            let setup = Arc::new(alerting.open(&config, &ProcessEnv)?);
            let (sender, receiver) = watch::channel(setup);
            if !alerting.rules().is_empty() {
                let lock = member.lock(ALERTS)?;
                let served = alerts::serve(lock, config.clone(), receiver.clone(), events.clone());
                tasks.spawn(served);
            }
            let identity = member.identity().as_str().to_owned();
            let weak = Arc::downgrade(&member);
            let watched = alerts::watch_database(weak, identity, receiver, events.clone());
            alerts = Some((sender, tasks.spawn(watched)));
        }
        let cores = available_parallelism().map_or(1, usize::from);
        let mut agent = Agent {
            member,
            commands: watch::channel(Arc::new(plan.commands.clone())).0,
            jobs,
            retention,
            roster: Roster::new(store, scheduled, events.clone()),
            commanded: BTreeSet::new(),
            starts: Arc::new(Semaphore::new(cores * 2)),
            plan,
            alerts,
            refused,
            told,
            events,
            tasks,
        };
        agent.staff()?;
        Ok(agent)
    }

    /// Enters the race for every role, and waits until the database has taken every registration, however long
    /// that takes. Cancel-safe: the roles take part all the same.
    ///
    /// # Errors
    /// A role that the database knows otherwise.
    pub async fn campaign(&self) -> Result<(), TenureError> {
        self.member.register_all().await
    }

    /// Waits until the database refuses a role that it had taken before, and returns why: the role is stopped then.
    /// Cancel-safe.
    pub async fn refused(&self) -> TenureError {
        let mut refused = self.refused.subscribe();
        let found = refused.wait_for(Option::is_some).await;
        found.ok().and_then(|error| error.clone()).unwrap_or(TenureError::Stopped)
    }

    /// Starts what runs the commands and schedules of roles that had none before.
    fn staff(&mut self) -> Result<(), TenureError> {
        let commands = self.commands.borrow().clone();
        for role in commands.keys().filter(|role| !self.commanded.contains(*role)) {
            let env = self.plan.shard(role).map_or_else(Vec::new, |(number, count)| {
                vec![("TENURE_SHARD", number.to_string()), ("TENURE_SHARDS", count.to_string())]
            });
            let commander = Commander {
                post: post(&self.member, role)?,
                commands: self.commands.subscribe(),
                env,
                events: self.events.clone(),
                starts: self.starts.clone(),
            };
            self.tasks.spawn(commander.serve());
        }
        self.commanded.extend(commands.keys().cloned());
        self.roster.staff(&self.member, &mut self.tasks)
    }

    /// Its member, for probes. Held weakly: a shutdown does not wait for a probe.
    #[must_use]
    pub fn member(&self) -> Weak<Member> {
        Arc::downgrade(&self.member)
    }

    /// Its member's identity in the group.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        self.member.identity()
    }

    /// Takes over another plan: commands, schedules, retention and alerts of the roles that the member has. Returns
    /// what it cannot take over, one text each, as the file has it; empty if it took over all of it. What is left
    /// needs a restart. It reads the files of secrets, and blocks for as long as the disk does.
    pub fn reload(&mut self, plan: Plan) -> Vec<String> {
        let mut left = differences(&self.plan, &plan, self.member.config());
        let known = |role: &str| self.member.lock(role).is_ok();
        let is_taken = |role: &str| known(role) && plan.is_shard(role) == self.plan.is_shard(role);
        let commands = plan.commands.iter().filter(|(role, _)| is_taken(role));
        let commands: Commands = commands.map(|(role, run)| (role.clone(), run.clone())).collect();
        let led = |job: &&Job| known(job.schedule.role().as_str());
        let jobs: Vec<Job> = plan.jobs.iter().filter(led).cloned().collect();
        self.commands.send_replace(Arc::new(commands));
        self.jobs.send_replace(Arc::new(jobs));
        self.retention.send_replace(plan.retention);
        if let (Some((sender, _)), Some(alerting)) = (&self.alerts, &plan.alerting) {
            // The caller has opened them once already; a secret that is gone since changes nothing.
            match alerting.open(self.member.config(), &ProcessEnv) {
                Ok(setup) => drop(sender.send_replace(Arc::new(setup))),
                Err(_) => left.push("a secret of [alerting]".to_owned()),
            }
        }
        if let Err(error) = self.staff() {
            left.push(error.to_string());
        }
        left
    }

    /// Drains and releases every role, waits for every child and run, and leaves the group. Past `within`
    /// everything is dropped: guardians end their children at once, and the server frees the locks that are held.
    /// `within` begins when no probe holds the member any more, which takes 5 s at most. Dropping the future drops
    /// everything too. [`Agent::patience`] is a good limit.
    ///
    /// # Errors
    /// [`TenureError::Timeout`] if it took longer than `within`.
    pub async fn shutdown(self, within: Duration) -> Result<(), TenureError> {
        let Agent { mut member, mut tasks, commands, jobs, retention, alerts, told, .. } = self;
        let member = loop {
            match Arc::try_unwrap(member) {
                Ok(member) => break member,
                // A probe is being answered.
                Err(shared) => member = shared,
            }
            sleep(Duration::from_millis(1)).await;
        };
        // What it would tell is over.
        if let Some((_, watching)) = &alerts {
            watching.abort();
        }
        let until = Instant::now() + within.min(FOR_EVER);
        let mut left = member.shutdown(Some(within)).await;
        drop(told);
        if left.is_ok() {
            let ended = timeout_at(until, async { while tasks.join_next().await.is_some() {} });
            let late =
                TenureError::Timeout { what: "the end of what its leaders ran", limit: within };
            left = ended.await.map_err(|_| late);
        }
        drop((commands, jobs, retention, alerts));
        left
    }

    /// The longest that a shutdown should take: the longest drain limit of a role, two leases and 15 s.
    #[must_use]
    pub fn patience(&self) -> Duration {
        let config = self.member.config();
        let drain = config.roles().iter().map(|role| role.drain_limit()).max().unwrap_or_default();
        drain + config.lease().lease() * 2 + Duration::from_secs(15)
    }
}

/// Passes on what a role's lifecycle says, and writes down for people what no other table has, until the role has
/// stopped or all is `told`: a role that was never started tells of no stop. `led` counts how often the role's gate
/// opened.
async fn relay(
    mut notices: broadcast::Receiver<tenure::Event>,
    lock: LeaderLock,
    store: Arc<Store>,
    events: Events,
    refused: watch::Sender<Option<TenureError>>,
    led: watch::Sender<u64>,
    mut told: watch::Receiver<()>,
) {
    let role = lock.role().clone();
    loop {
        // Both branches are cancel-safe. What was said before the end comes first.
        let said = tokio::select! {
            biased;
            said = notices.recv() => said,
            _ = told.changed() => return,
        };
        let notice = match said {
            Ok(event) => event.notice,
            Err(RecvError::Lagged(missed)) => {
                let why = format!("{missed} events were missed");
                events.tell(Event::of("error", &role, None).because(why));
                // The gate may have opened meanwhile.
                led.send_modify(|count| *count += 1);
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
                if let Some(error) = lock.refusal() {
                    refused.send_replace(Some(error));
                }
                return;
            }
            Notice::StateChange { .. } | Notice::AcquireFailed { .. } => continue,
        };
        events.tell(event);
        if let Notice::Acquired { .. } | Notice::Well { .. } | Notice::Recovered { .. } = notice {
            led.send_modify(|count| *count += 1);
        }
        if let Notice::Recovered { epoch } = notice {
            let detail = "won back within the grace period";
            // For people: a note that is lost costs nothing else.
            let _ = store.note(&role, lock.identity(), Some(epoch), "recovered", detail).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use tenure::LeaseSpec;
    use tenure::memory::MemoryGroup;
    use tokio::time::timeout;

    use super::*;

    /// On the group's own time.
    const SOON: Duration = Duration::from_secs(600);

    async fn reaches(count: u64, openings: &mut watch::Receiver<u64>) {
        let reached = timeout(SOON, openings.wait_for(|openings| *openings >= count)).await;
        reached.expect("the gate opens").expect("the relay runs");
    }

    #[tokio::test(start_paused = true)]
    async fn every_opening_of_a_gate_is_counted_also_one_of_the_same_term() {
        let grace = Some(Duration::from_secs(1));
        let lease = LeaseSpec { reconnect_grace: grace, ..LeaseSpec::default() };
        let group = MemoryGroup::with_lease(lease).expect("valid");
        let lock = group.lock("r").expect("a name");
        let config = Config::builder().dsn("postgresql://localhost:1/none").build().expect("valid");
        let store = Arc::new(Store::new(&config, "test").expect("a store"));
        let (led, mut openings) = watch::channel(0);
        let (events, refused) = (Events::channel().0, watch::channel(None).0);
        let (_told, told) = watch::channel(());
        tokio::spawn(relay(lock.events(), lock.clone(), store, events, refused, led, told));
        lock.start().await.expect("it takes part");
        reaches(1, &mut openings).await;
        group.terminate(&lock);
        reaches(2, &mut openings).await;
        assert_eq!(lock.gate().epoch().map(tenure::Epoch::get), Some(1), "the same term goes on");
    }
}
