//! Schedules of a member: the library's face, with closures or programs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tenure::config::Config;
use tenure::{Identity, LeaderLock, Member, RoleName, TakeoverPolicy, TenureError};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout_at};

use crate::child::Post;
use crate::crew::Crew;
use crate::definition::Schedule;
use crate::event::{Event, Events};
use crate::store::{FencedTerm, Store, StoreError, WaitingOrder};
use crate::work::{Job, Run};

/// How often the orders and the database's clock are asked for, by an agent that leads.
const LOOK: Duration = Duration::from_secs(2);
/// Pause before another attempt to bring the schema up to date.
const PAUSE: Duration = Duration::from_secs(1);

/// The schedules of a program that has a member of its own. [`Agent`](crate::Agent) does the same for a file.
///
/// ```no_run
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// use tenure::RoleName;
/// use tenure_agent::{Schedule, Schedules};
///
/// let (member, _lock) = tenure::lead("postgresql://localhost/app", "scheduler").await?;
/// let role = RoleName::new("scheduler")?;
/// let serving = Schedules::new()
///     .add(Schedule::new("nightly", role, "0 3 * * *")?.timezone("Europe/Berlin")?, |run| async move {
///         println!("{} of {}, epoch {}", run.schedule, run.slot, run.epoch);
///         Ok::<(), std::io::Error>(())
///     })
///     .start(&member)?;
/// // … until the program ends:
/// member.shutdown(None).await?;
/// serving.finished().await;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Default)]
#[must_use]
pub struct Schedules {
    jobs: Vec<Job>,
    events: Option<Events>,
}

impl Schedules {
    /// Without a schedule.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a schedule that calls a closure; see [`Job::call`]. A slot is called at most once, unless the
    /// schedule has retries.
    pub fn add<F, R, E>(self, schedule: Schedule, call: F) -> Self
    where
        F: Fn(Run) -> R + Send + Sync + 'static,
        R: Future<Output = Result<(), E>> + Send + 'static,
        E: fmt::Display,
    {
        self.job(Job::call(schedule, call))
    }

    /// Adds a schedule with its work: a closure or a program.
    pub fn job(mut self, job: Job) -> Self {
        self.jobs.push(job);
        self
    }

    /// Where to tell what happens. Default: nowhere.
    pub fn events(mut self, events: Events) -> Self {
        self.events = Some(events);
        self
    }

    /// Begins; the schedules' roles must be roles of the member. A role's `drain_limit` should be at least
    /// that of its schedules: it bounds them all. It does not wait for the database: one that is away is told to
    /// [`Schedules::events`], and asked again.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    ///
    /// # Errors
    /// [`TenureError::UnknownRole`], two schedules of one name, or what keeps the store from being made. Nothing
    /// fires then.
    pub fn start(self, member: &Member) -> Result<Serving, ScheduleStartError> {
        let mut names = BTreeSet::new();
        if let Some(job) = self.jobs.iter().find(|job| !names.insert(job.schedule.name())) {
            return Err(ScheduleStartError::SameName(job.schedule.name().to_owned()));
        }
        let events = self.events.unwrap_or_else(|| Events::channel().0);
        let (jobs, watched) = watch::channel(Arc::new(self.jobs));
        let mut tasks = JoinSet::new();
        let store =
            Arc::new(Store::new(member.config(), &format!("tenure agent {}", member.identity()))?);
        Roster::new(store, watched, events).staff(member, &mut tasks)?;
        Ok(Serving { _jobs: jobs, tasks })
    }
}

/// Why schedules, or an agent, did not start. Nothing fires.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ScheduleStartError {
    /// The member did not start, or it does not have a role of the schedules.
    #[error(transparent)]
    Member(#[from] TenureError),
    /// The configuration names no database, or its TLS settings cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Two schedules have this name.
    #[error("two schedules are called {0}; a name belongs to one schedule of the database")]
    SameName(String),
    /// A notifier of alerts cannot be used.
    #[error(transparent)]
    Notifier(#[from] crate::alerts::NotifierError),
}

/// Schedules at work. Dropping it ends what runs, at once and without a record of its end; shut the member
/// down first.
#[must_use = "dropped, it fires nothing"]
#[derive(Debug)]
pub struct Serving {
    _jobs: watch::Sender<Arc<Vec<Job>>>,
    tasks: JoinSet<()>,
}

impl Serving {
    /// Waits until the roles have stopped and every run has ended: shut the member down first, or it waits for
    /// ever. Not cancel-safe: dropping the future ends what runs, as dropping [`Serving`] does.
    pub async fn finished(mut self) {
        while self.tasks.join_next().await.is_some() {}
    }
}

/// A role of a member, with what a child of it needs to know.
pub(crate) fn post(member: &Member, role: &str) -> Result<Post, TenureError> {
    Ok(Post {
        lock: member.lock(role)?,
        lease: *member.config().lease(),
        policy: policy(member.config(), role),
    })
}

fn policy(config: &Config, role: &str) -> TakeoverPolicy {
    let found = config.roles().iter().find(|config| config.name().as_str() == role);
    found.map_or_else(TakeoverPolicy::default, |role| role.policy())
}

/// A role's lock, and where its crew takes orders.
type Inbox = (LeaderLock, mpsc::UnboundedSender<WaitingOrder>);
type Inboxes = BTreeMap<RoleName, Inbox>;

/// The crews of a member: one for each role that the jobs name, or have named.
#[derive(Debug)]
pub(crate) struct Roster {
    store: Arc<Store>,
    jobs: watch::Receiver<Arc<Vec<Job>>>,
    events: Events,
    inboxes: watch::Sender<Inboxes>,
}

impl Roster {
    pub(crate) fn new(
        store: Arc<Store>,
        jobs: watch::Receiver<Arc<Vec<Job>>>,
        events: Events,
    ) -> Self {
        Roster { store, jobs, events, inboxes: watch::channel(Inboxes::new()).0 }
    }

    /// Starts the crews of the roles that have none yet and that the jobs name now; with the first of them
    /// the task that looks for orders.
    pub(crate) fn staff(
        &self,
        member: &Member,
        tasks: &mut JoinSet<()>,
    ) -> Result<(), TenureError> {
        let mut inboxes = self.inboxes.borrow().clone();
        let known = inboxes.len();
        for job in self.jobs.borrow().iter() {
            let role = job.schedule.role();
            if inboxes.contains_key(role) {
                continue;
            }
            let post = post(member, role.as_str())?;
            let (inbox, orders) = mpsc::unbounded_channel();
            let lock = post.lock.clone();
            let (store, jobs, events) =
                (self.store.clone(), self.jobs.clone(), self.events.clone());
            tasks.spawn(Crew { post, store, jobs, orders, events }.serve());
            inboxes.insert(role.clone(), (lock, inbox));
        }
        if inboxes.len() > known {
            self.inboxes.send_replace(inboxes);
            if known == 0 {
                let identity = member.identity().clone();
                let (store, jobs, events) =
                    (self.store.clone(), self.jobs.clone(), self.events.clone());
                tasks.spawn(look(store, identity, jobs, self.inboxes.subscribe(), events));
            }
        }
        Ok(())
    }
}

/// Brings the schema up to date, tells the group what this file says, and then asks for orders: one
/// statement for all roles, and only while one of them is led here.
async fn look(
    store: Arc<Store>,
    member: Identity,
    mut jobs: watch::Receiver<Arc<Vec<Job>>>,
    inboxes: watch::Receiver<Inboxes>,
    events: Events,
) {
    let mut migrated = false;
    let mut announced = false;
    let mut told = None;
    loop {
        let now: Inboxes = inboxes.borrow().clone();
        if now.values().all(|(_, inbox)| inbox.is_closed()) {
            return;
        }
        let done = async {
            if !migrated {
                store.migrate().await?;
                migrated = true;
            }
            if !announced {
                let schedules: Vec<Schedule> =
                    jobs.borrow_and_update().iter().map(|job| job.schedule.clone()).collect();
                store.announce(&member, &schedules).await?;
                announced = true;
            }
            let led = now.iter().filter(|(_, (lock, _))| lock.is_leader());
            let led: Vec<RoleName> = led.map(|(role, _)| role.clone()).collect();
            if led.is_empty() {
                return Ok(Vec::new());
            }
            store.look(&led).await
        };
        let pause = match done.await {
            Ok(orders) => {
                told = None;
                for order in orders {
                    if let Some((_, inbox)) = now.get(&order.role) {
                        // A crew that has ended leads no more; the order stays for its successor.
                        let _ = inbox.send(order);
                    }
                }
                LOOK
            }
            Err(error) => {
                let text: String = StoreError::to_string(&error);
                if told.as_ref() != Some(&text) {
                    events.tell(Event::new("error").because(text.clone()));
                    told = Some(text);
                }
                PAUSE
            }
        };
        // Every branch is cancel-safe.
        tokio::select! {
            () = sleep(pause) => {}
            Ok(()) = jobs.changed() => announced = false,
            () = closed(&now) => {}
        }
    }
}

/// Removes the schedules of roles that this member begins to lead and whose schedules its file does not have: the
/// leader's file decides. Asks once after roles were acquired, for all of them; never at rest. Ends with the last
/// sender of `led`.
pub(crate) async fn forget(
    locks: Vec<LeaderLock>,
    store: Arc<Store>,
    jobs: watch::Receiver<Arc<Vec<Job>>>,
    mut led: watch::Receiver<u64>,
    events: Events,
) {
    let (mut is_due, mut told) = (false, None);
    loop {
        if !is_due && led.changed().await.is_err() {
            return;
        }
        let pause = match remove_bare(&locks, &store, &jobs, &events).await {
            Ok(()) => {
                (is_due, told) = (false, None);
                PAUSE
            }
            Err(error) => {
                is_due = true;
                let text = error.to_string();
                if told.as_ref() != Some(&text) {
                    let why = format!("schedules that this file does not have stay: {text}");
                    events.tell(Event::new("error").because(why));
                    told = Some(text);
                }
                LOOK
            }
        };
        let until = Instant::now() + pause;
        // A sender that is gone has no more to say, whatever is due.
        while let Ok(changed) = timeout_at(until, led.changed()).await {
            if changed.is_err() {
                return;
            }
            is_due = true;
        }
    }
}

/// One look: the roles that are led here, and that no job names.
async fn remove_bare(
    locks: &[LeaderLock],
    store: &Store,
    jobs: &watch::Receiver<Arc<Vec<Job>>>,
    events: &Events,
) -> Result<(), StoreError> {
    let is_named = |role: &RoleName| jobs.borrow().iter().any(|job| job.schedule.role() == role);
    let named: BTreeSet<RoleName> =
        jobs.borrow().iter().map(|job| job.schedule.role().clone()).collect();
    let is_bare = |lock: &&LeaderLock| lock.is_leader() && !named.contains(lock.role());
    let bare: Vec<RoleName> =
        locks.iter().filter(is_bare).map(|lock| lock.role().clone()).collect();
    if bare.is_empty() {
        return Ok(());
    }
    for role in store.scheduled(&bare).await? {
        let lock = locks.iter().find(|lock| *lock.role() == role);
        let Some((lock, epoch)) = lock.and_then(|lock| Some((lock, lock.gate().epoch()?))) else {
            continue;
        };
        // The file may have been read again meanwhile.
        if is_named(&role) {
            continue;
        }
        let member = lock.identity().clone();
        match store.define(&FencedTerm { role: role.clone(), epoch, member }, &[]).await {
            Ok(_) => {
                let why = "this leader's file has no schedule of the role";
                events.tell(Event::of("schedules_removed", &role, Some(epoch)).because(why));
            }
            // Another term of this role has begun.
            Err(StoreError::Stale) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Ends when every crew has.
async fn closed(inboxes: &Inboxes) {
    for (_, inbox) in inboxes.values() {
        inbox.closed().await;
    }
}
