//! Shards: a set of roles that is spread evenly over the members, each led by exactly one of them.
//!
//! The election decides which member leads a shard, as with any role. What is added here are manners: a
//! member asks for a head start for the shards that belong to it (its priority is one higher), and hands
//! over what belongs to another ([`placement`] decides). At rest that is one statement per
//! heartbeat for the whole set, at most two a second.

pub mod placement;

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use tenure_connect::Connector;
use tenure_connect::line::Line;
use tenure_connect::sql::{literal, settings};
use tenure_core::clock::{BootClock, Clock};
use tenure_core::identity::Identity;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::config::{Config, RoleConfig, RoleSpec};
use crate::error::TenureError;
use crate::lock::LeaderLock;
use crate::member::Member;

use placement::{Holding, Mover, Place, Standing};

/// Between two looks while roles move.
const BREATH: Duration = Duration::from_millis(20);
/// Between two looks at rest, at least.
const LOOK: Duration = Duration::from_millis(500);
/// The largest set: a member may have as many roles.
pub const MOST: u32 = 10_000;

/// A set of roles `name-0`, `name-1`, …
///
/// ```no_run
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// use tenure::{Member, config::Config, shards::Shards};
///
/// let shards = Shards::new("ingest", 64);
/// let config = Config::builder().dsn("postgresql://localhost/app");
/// let config = shards.specs().fold(config, |config, role| config.role(role)).build()?;
/// let member = Member::start(config).await?;
/// let _spreading = shards.start(&member)?;
/// member.start_all().await?;
/// // … `member.lock("ingest-17")` and its fellows: `while_leading` runs each shard's work
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shards {
    name: String,
    count: u32,
}

/// Shards that are being spread; dropping it leaves them where they are.
#[must_use = "dropped, it spreads nothing"]
#[derive(Debug)]
pub struct Spreading(#[allow(dead_code, reason = "its tasks end with it")] JoinSet<()>);

impl Shards {
    /// A set of so many roles; more than 10,000 are taken as 10,000.
    #[must_use]
    pub fn new(name: &str, count: u32) -> Self {
        Shards { name: name.to_owned(), count: count.min(MOST) }
    }

    /// The roles' names, in their order.
    pub fn roles(&self) -> impl Iterator<Item = String> {
        (0..self.count).map(|number| format!("{}-{number}", self.name))
    }

    /// The roles as a configuration takes them.
    pub fn specs(&self) -> impl Iterator<Item = RoleSpec> {
        self.roles().map(|role| Self::spec(&role))
    }

    /// One of the roles as a configuration takes it.
    pub fn spec(role: &str) -> RoleSpec {
        // A hand-over is no failure: the member may win the shard back at once if the other is gone.
        RoleSpec::named(role).cool_down(Duration::ZERO)
    }

    /// How many roles there are.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The number of a role of this set.
    #[must_use]
    pub fn number(&self, role: &str) -> Option<u32> {
        let number = role.strip_prefix(&self.name)?.strip_prefix('-')?;
        number
            .parse()
            .ok()
            .filter(|number| *number < self.count && role == format!("{}-{number}", self.name))
    }

    /// Begins to spread them, over a session of its own; they must be roles of the member.
    ///
    /// # Errors
    /// [`TenureError::UnknownRole`], [`TenureError::ShardPreempts`], or [`TenureError::NoDatabase`] and
    /// [`TenureError::Tls`] as for the member.
    pub fn start(&self, member: &Member) -> Result<Spreading, TenureError> {
        let name = format!("tenure shards {}", member.identity());
        let session = Session::new(member.config(), name)?;
        let mut tasks = JoinSet::new();
        tasks.spawn(self.spread(member, Arc::new(session))?);
        Ok(Spreading(tasks))
    }

    /// What spreads the set until the member is shut down, over a session of the caller's.
    ///
    /// # Errors
    /// [`TenureError::UnknownRole`], or [`TenureError::ShardPreempts`].
    pub fn spread(
        &self,
        member: &Member,
        asked: Arc<dyn Asked>,
    ) -> Result<impl Future<Output = ()> + Send + 'static, TenureError> {
        let ours = |role: &&RoleConfig| self.number(role.name().as_str()).is_some();
        let configured = || member.config().roles().iter().filter(ours);
        if let Some(role) = configured().find(|role| role.preempts()) {
            return Err(TenureError::ShardPreempts(role.name().clone()));
        }
        let roles: Vec<String> = self.roles().collect();
        let locks = roles
            .iter()
            .map(|role| Ok((role.clone(), member.lock(role)?)))
            .collect::<Result<BTreeMap<String, LeaderLock>, TenureError>>()?;
        let priorities: BTreeMap<String, i32> =
            configured().map(|role| (role.name().as_str().to_owned(), role.priority())).collect();
        let lease = *member.config().lease();
        let mover = Mover::new(member.identity().as_str(), roles.clone(), lease.lease());
        let question = include_str!("../sql/standing.sql")
            .replace("{name}", &literal(&self.name))
            .replace("{count}", &self.count.to_string());
        Ok(Spreader { locks, priorities, mover, asked, question, wanted: BTreeSet::new() }
            .serve(lease.heartbeat()))
    }
}

/// The database, as it is asked where a set stands.
pub trait Asked: Send + Sync + 'static {
    /// Sends one statement that answers with text. An error says why there is no answer.
    fn ask<'a>(&'a self, sql: &'a str) -> Answer<'a>;

    /// Learns once that questions get no answer, until one does.
    fn trouble(&self, _why: &str) {}
}

/// What becomes of a question.
pub type Answer<'a> = Pin<Box<dyn Future<Output = Result<String, String>> + Send + 'a>>;

/// How long a session may be silent before the server ends it; a set is looked at far more often.
const IDLE: Duration = Duration::from_secs(3600);
/// How often the server looks whether the session is still there while it works for it.
const CHECK: Duration = Duration::from_secs(1);

/// A session of its own, opened anew after any failure.
struct Session {
    connector: Connector,
    name: String,
    deadline: Duration,
    line: tokio::sync::Mutex<Option<Line>>,
}

impl Session {
    fn new(config: &Config, name: String) -> Result<Self, TenureError> {
        let dsn = config.dsn().ok_or(TenureError::NoDatabase)?;
        let connector = Connector::new(dsn, config.tls().clone())?.with_renewal(config.renewal());
        let deadline =
            config.lease().lease().clamp(Duration::from_secs(2), Duration::from_secs(10));
        Ok(Session { connector, name, deadline, line: tokio::sync::Mutex::default() })
    }

    async fn connect(&self) -> Result<Line, String> {
        let session = self.connector.connect(&self.name, self.deadline).await;
        let line =
            Line::new(session.map_err(|error| error.to_string())?, mpsc::unbounded_channel().0);
        let pins = settings(IDLE, self.deadline, CHECK);
        line.ask(&pins, self.deadline).await.map_err(|error| error.to_string())?;
        Ok(line)
    }
}

impl Asked for Session {
    fn ask<'a>(&'a self, sql: &'a str) -> Answer<'a> {
        Box::pin(async move {
            let mut slot = self.line.lock().await;
            // Taken out: a question that fails, or is cancelled, closes the session.
            let line = match slot.take() {
                Some(line) => line,
                None => self.connect().await?,
            };
            let answer = line.ask(sql, self.deadline).await.map_err(|error| error.to_string())?;
            *slot = Some(line);
            Ok(answer.unwrap_or_default())
        })
    }
}

struct Spreader {
    locks: BTreeMap<String, LeaderLock>,
    /// As configured.
    priorities: BTreeMap<String, i32>,
    mover: Mover,
    asked: Arc<dyn Asked>,
    question: String,
    /// The roles for which this member has asked for the head start.
    wanted: BTreeSet<String>,
}

#[derive(Deserialize)]
struct Found {
    places: Vec<Identity>,
    held: BTreeMap<String, BTreeMap<String, i64>>,
    unled: usize,
}

impl Spreader {
    async fn serve(mut self, heartbeat: Duration) {
        let mut moves = JoinSet::new();
        let (mut trouble, mut breath) = (false, BREATH);
        loop {
            match self.look().await {
                Ok((standing, members)) => {
                    trouble = false;
                    self.decide(&standing, &members, &mut moves);
                }
                Err(error) => {
                    if !std::mem::replace(&mut trouble, true) {
                        let why = format!("shards stay where they are: {error}");
                        tracing::warn!("{why}");
                        self.asked.trouble(&why);
                    }
                }
            }
            // As long as there is something to move, the next look follows the end of half of the moves; what
            // takes its time then is looked at less often.
            if !trouble && self.mover.is_moving() {
                let (begun, half) = (moves.len(), moves.len() / 2);
                // Cancel-safe: `join_next` is.
                let ended =
                    async { while moves.len() > half && moves.join_next().await.is_some() {} };
                let in_time = timeout(heartbeat, ended).await.is_ok() && begun > 0;
                while moves.try_join_next().is_some() {}
                breath = if in_time { BREATH } else { breath * 2 };
                breath = breath.min(heartbeat / 8);
                sleep(breath).await;
            } else {
                sleep(heartbeat.max(LOOK)).await;
            }
            let Some(lock) = self.locks.values().next() else { return };
            let leads = lock.wait_for_leadership(Some(Duration::ZERO)).await;
            if matches!(leads, Err(TenureError::Stopped)) {
                return;
            }
        }
    }

    async fn look(&self) -> Result<(Standing, BTreeMap<String, Identity>), String> {
        let text = self.asked.ask(&self.question).await?;
        let found: Found = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        let place = |member: &Identity| Place {
            member: member.as_str().to_owned(),
            instance: member.place().to_owned(),
        };
        let places = found.places.iter().map(place).collect();
        let members =
            found.places.into_iter().map(|member| (member.as_str().to_owned(), member)).collect();
        let held = found.held.into_iter().flat_map(|(member, roles)| {
            roles
                .into_iter()
                .map(move |(role, epoch)| (role, Holding { member: member.clone(), epoch }))
        });
        Ok((Standing { places, held: held.collect(), unled: found.unled }, members))
    }

    fn decide(
        &mut self,
        standing: &Standing,
        members: &BTreeMap<String, Identity>,
        moves: &mut JoinSet<()>,
    ) {
        let wishes = self.mover.decide(standing, BootClock.now());
        for (role, lock) in &self.locks {
            let (before, after) = (self.wanted.contains(role), wishes.wanted.contains(role));
            if before != after {
                let base = self.priorities.get(role).copied().unwrap_or(0);
                // A member that was shut down is found out below.
                let _ = lock.set_priority(base.saturating_add(i32::from(after)));
            }
        }
        self.wanted = wishes.wanted;
        for (role, to) in wishes.moves {
            let (Some(lock), Some(to)) = (self.locks.get(&role), members.get(&to)) else {
                continue;
            };
            let (lock, to) = (lock.clone(), to.clone());
            moves.spawn(async move {
                let _ = lock.hand_over(Some(to), None).await;
            });
        }
    }
}
