//! What an operator asks and orders, from any machine: a session of its own, no seat, no role.
//!
//! An order touches neither lock nor epoch: it is written down, the group is told, and the leader
//! carries it out itself. The exceptions are [`Operator::force_release`], and what is done to a role at
//! rest: [`Operator::forget`] and [`Operator::alter`].
//!
//! ```no_run
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//! use tenure::config::Config;
//! use tenure::operate::Operator;
//! use tenure::{RoleName, TenureError};
//!
//! let role = RoleName::new("scheduler")?;
//! let mut operator = Operator::connect(&Config::from_env()?).await?;
//! for status in operator.status(Some(&role)).await? {
//!     println!("{} is {:?}, led by {:?}", status.role, status.state, status.holder);
//! }
//! match operator.step_down(&role, None).await {
//!     Ok(order) => {
//!         let within = Duration::from_secs(30);
//!         let next = operator.await_successor(&role, order.epoch, within).await?;
//!         println!("led by {:?} now", next.and_then(|status| status.holder));
//!     }
//!     Err(TenureError::NoLeader(_)) => println!("no member leads it"),
//!     Err(error) => return Err(error.into()),
//! }
//! operator.close().await;
//! # Ok(())
//! # }
//! ```

mod audit;
mod order;
mod prune;
mod settle;

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tenure_core::epoch::Epoch;
use tenure_core::identity::Identity;
use tenure_core::key::{LockKey, RoleName};
use tenure_core::lease::{Lease, TakeoverPolicy};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use crate::config::Config;
use crate::connect::Connector;
use crate::error::TenureError;
use crate::line::{Line, LineError, Unasked};
use crate::schema::SCHEMA;
use crate::sql::{identifier, literal, settings};
use order::OrderRefusal;

pub use audit::Audit;
pub use order::{OrderKind, OrderRecord};
pub use prune::{BATCH, EVENTS, Pruned};
pub use settle::{Change, Forgotten};

/// A role as the database knows it.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RoleStatus {
    /// The role that this is about.
    pub role: RoleName,
    /// Its advisory key.
    #[serde(with = "text")]
    pub key: LockKey,
    /// What its next leader waits for.
    pub policy: TakeoverPolicy,
    /// The lease that its successors wait out.
    #[serde(rename = "lease_ms", with = "milliseconds")]
    pub lease: Duration,
    /// The last epoch issued; 0 before the first.
    pub epoch: Epoch,
    /// The member that holds it, as the last claim left it: [`RoleStatus::state`] says whether it leads.
    pub holder: Option<Identity>,
    /// Whether it is led, and what is in the way.
    pub state: RoleState,
    /// Whether the holder's gate may be open: [`RoleState::Led`].
    pub acting: bool,
    /// Since when its holder leads, by the database's clock, as all times here.
    pub since: Option<Timestamp>,
    /// When it was last released.
    pub released_at: Option<Timestamp>,
    /// The member that held it before.
    pub last_holder: Option<Identity>,
    /// Whether an operator paused it.
    pub paused: bool,
    /// Whether a step-down was ordered and not yet carried out.
    pub step_down_ordered: bool,
    /// The time since the holder's last heartbeat.
    #[serde(rename = "heartbeat_age_ms", with = "age")]
    pub heartbeat_age: Option<Duration>,
    /// The other candidates and observers.
    pub waiting: Vec<Waiting>,
    /// The sessions that hold its lock, Tenure's or not.
    #[serde(default)]
    pub lock_held_by: Option<Vec<LockHolder>>,
}

/// How a role stands, as far as the database can see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RoleState {
    /// No member holds it.
    Vacant,
    /// Its holder has the lock and waits until the last leader's gate must be shut.
    TakingOver,
    /// Its holder has the lock and has beaten within its lease.
    Led,
    /// Its holder has the lock and has not beaten within its lease: its gate is shut.
    Silent,
    /// Its holder never released it, and its session is gone: it leads no more.
    Gone,
}

/// A member that waits for a role.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Waiting {
    /// The identity of the member that waits.
    pub member: Identity,
    /// A higher one gets a head start.
    pub priority: i32,
    /// Whether it is ready to lead.
    pub ready: bool,
    /// Whether it only watches.
    pub observer: bool,
    /// The time since its last heartbeat.
    #[serde(rename = "heartbeat_age_ms", with = "age")]
    pub heartbeat_age: Option<Duration>,
}

/// A session that holds an advisory lock.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LockHolder {
    /// Its server process.
    pub pid: i32,
    /// Its `application_name`.
    pub program: Option<String>,
    /// Its login role.
    pub user: Option<String>,
    /// Whether it is the seat of a member.
    pub tenure: Option<bool>,
}

/// One term of a role.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Term {
    /// The role whose term it is.
    pub role: RoleName,
    /// The epoch of the term.
    pub epoch: Epoch,
    /// The member that won it.
    pub member: Identity,
    /// When the lock was won.
    pub claimed_at: Timestamp,
    /// When its gate opened, if it did.
    pub acting_at: Option<Timestamp>,
    /// When it ended; none: it goes on, or its end is not known yet.
    pub ended_at: Option<Timestamp>,
    /// How it ended; none as long as it goes on.
    pub how: Option<TermEnd>,
    /// Its end is not on record, and its member's session does not hold the lock any more: the member died,
    /// and the next one that wins the role ends the term.
    pub gone: bool,
}

/// How a term ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum TermEnd {
    /// The member released the role.
    Released,
    /// The member released the role before its gate had opened.
    Abandoned,
    /// Another member won the role, which had not been released. The end on record is when that member won it:
    /// the term itself ended before, at the latest when its lease did.
    Replaced,
    /// An operator ended it by force.
    Forced,
}

impl std::fmt::Display for TermEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            TermEnd::Released => "released",
            TermEnd::Abandoned => "abandoned",
            TermEnd::Replaced => "replaced",
            TermEnd::Forced => "forced",
        })
    }
}

/// A term that breaks a promise.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Violation {
    /// The role whose term it is.
    pub role: RoleName,
    /// The epoch of the term.
    pub epoch: Epoch,
    /// The member that won it. As text: a row that breaks a promise may name anything.
    pub member: String,
    /// The epoch of the term after it.
    pub next_epoch: Option<Epoch>,
    /// Which promise it breaks.
    pub why: String,
}

/// The term that an order concerned.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Ordered {
    /// The member that held the role.
    pub holder: Option<Identity>,
    /// The epoch under which it did.
    pub epoch: Epoch,
    /// How many sessions were ended by force.
    #[serde(default)]
    pub sessions_ended: Option<u64>,
    /// How many of them did not end in time: the role is still held.
    #[serde(default)]
    pub sessions_left: Option<u64>,
}

/// A role's lease before and after [`Operator::lower_lease`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the names say it")]
pub struct Lowered {
    #[serde(rename = "from_ms", with = "milliseconds")]
    pub from: Duration,
    #[serde(rename = "to_ms", with = "milliseconds")]
    pub to: Duration,
}

/// A session for questions and orders.
///
/// Every question has a deadline: the configured lease, at least 3 s. A future that is dropped, or that ends
/// with [`TenureError::Session`], does not take its order back: the database may have carried it out.
pub struct Operator {
    line: Line,
    hears: mpsc::UnboundedReceiver<Unasked>,
    channel: String,
    deadline: Duration,
    lease: Lease,
    name: String,
}

impl std::fmt::Debug for Operator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Operator").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Operator {
    /// Opens the session. It needs neither the schema nor a role of the configuration.
    ///
    /// # Errors
    /// [`TenureError::NoDatabase`] without a DSN, [`TenureError::Tls`], or [`TenureError::Connect`] if the
    /// database cannot be reached or does not let us in.
    pub async fn connect(config: &Config) -> Result<Self, TenureError> {
        let dsn = config.dsn().ok_or(TenureError::NoDatabase)?;
        let connector = Connector::new(dsn, config.tls().clone())?.with_renewal(config.renewal());
        let deadline = config.lease().lease().max(Duration::from_secs(3));
        let session = connector.connect("tenure operator", deadline).await?;
        let (heard, hears) = mpsc::unbounded_channel();
        let line = Line::new(session, heard);
        let pins = settings(Duration::from_secs(3600), deadline, Duration::from_secs(1));
        line.ask(&pins, deadline).await.map_err(TenureError::session)?;
        let login =
            line.ask("select session_user", deadline).await.map_err(TenureError::session)?;
        let name = format!("{}, login role {}", this_operator(), login.unwrap_or_default());
        let (channel, lease) = (config.channel().to_owned(), *config.lease());
        Ok(Operator { line, hears, channel, deadline, lease, name })
    }

    /// Orders are recorded in this name from now on, for a program that gives them for other people. Without
    /// it they are recorded with the host, the process, its user and the login role.
    #[must_use]
    pub fn in_the_name_of(mut self, name: &str) -> Self {
        name.clone_into(&mut self.name);
        self
    }

    /// The schema's version in the database; 0 if there is none.
    ///
    /// # Errors
    /// If the session fails.
    pub async fn schema_version(&self) -> Result<i32, TenureError> {
        SCHEMA.installed(&self.line, self.deadline).await.map_err(TenureError::session)
    }

    /// Brings the schema up to date; returns the versions that were applied. Waits at most 30 s for a
    /// migration that is under way elsewhere.
    ///
    /// # Errors
    /// If the session fails, or [`TenureError::Denied`] if the login role may not.
    pub async fn migrate(&self) -> Result<Vec<i32>, TenureError> {
        let within = Duration::from_secs(30);
        SCHEMA.migrate(&self.line, within).await.map_err(refused)
    }

    /// All roles by name, or one. An unknown role is an empty list.
    ///
    /// # Errors
    /// If the session fails, or the schema is missing.
    pub async fn status(&self, role: Option<&RoleName>) -> Result<Vec<RoleStatus>, TenureError> {
        self.query(&with_role(include_str!("../sql/status.sql"), role)).await
    }

    /// The sessions that hold an advisory key, of whatever program; needs no schema.
    ///
    /// # Errors
    /// If the session fails.
    pub async fn lock_holders(&self, key: LockKey) -> Result<Vec<LockHolder>, TenureError> {
        let (class, object, sub) = key.pg_locks_columns();
        let sql = include_str!("../sql/lock_status.sql")
            .replace("{class}", &class.to_string())
            .replace("{object}", &object.to_string())
            .replace("{sub}", &sub.to_string());
        self.query(&sql).await
    }

    /// The latest terms, newest first, `limit` at most; of one role or of all.
    ///
    /// # Errors
    /// If the session fails.
    pub async fn history(
        &self,
        role: Option<&RoleName>,
        limit: u32,
    ) -> Result<Vec<Term>, TenureError> {
        let sql = include_str!("../sql/history.sql").replace("{limit}", &limit.to_string());
        self.query(&with_role(&sql, role)).await
    }

    /// The latest orders, newest first, `limit` at most; of one role or of all.
    ///
    /// # Errors
    /// If the session fails.
    pub async fn orders(
        &self,
        role: Option<&RoleName>,
        limit: u32,
    ) -> Result<Vec<OrderRecord>, TenureError> {
        let sql = include_str!("../sql/orders.sql").replace("{limit}", &limit.to_string());
        self.query(&with_role(&sql, role)).await
    }

    /// Asks a role's leader, wherever it runs, to drain and hand over, to `to` if one is named. Returns when
    /// the order is written down; [`Operator::await_successor`] waits for what comes of it.
    ///
    /// # Errors
    /// [`TenureError::NoSuchRole`], [`TenureError::NoLeader`], [`TenureError::NoSuchMember`], or a session
    /// that fails.
    pub async fn step_down(
        &self,
        role: &RoleName,
        to: Option<&Identity>,
    ) -> Result<Ordered, TenureError> {
        self.order_step_down(role, to, None).await
    }

    /// [`Operator::step_down`] of the leader of one epoch alone: if the role has had another one since, nothing
    /// is ordered. For a person who confirms what was shown a while ago.
    ///
    /// # Errors
    /// As there, and [`TenureError::Order`] if the role's epoch is another one.
    pub async fn step_down_of(
        &self,
        role: &RoleName,
        epoch: Epoch,
        to: Option<&Identity>,
    ) -> Result<Ordered, TenureError> {
        self.order_step_down(role, to, Some(epoch)).await
    }

    async fn order_step_down(
        &self,
        role: &RoleName,
        to: Option<&Identity>,
        epoch: Option<Epoch>,
    ) -> Result<Ordered, TenureError> {
        let to = to.map_or("null".to_owned(), |member| literal(member.as_str()));
        let (role_, by, epoch) = (name(role), self.by(), number(epoch));
        let call = format!("tenure.order_step_down({role_}, {to}, {by}, {epoch})");
        self.order(role, &call).await
    }

    /// Waits until the role's epoch is above `epoch` and its new holder acts; returns that state,
    /// or none after `within`. Meanwhile it asks about fifty times a second.
    ///
    /// # Errors
    /// If the session fails.
    pub async fn await_successor(
        &mut self,
        role: &RoleName,
        epoch: Epoch,
        within: Duration,
    ) -> Result<Option<RoleStatus>, TenureError> {
        let until = Instant::now() + within;
        let listen = format!("listen {}", identifier(&self.channel));
        self.ask(&listen).await?;
        loop {
            let found = self.status(Some(role)).await?.into_iter().next();
            if let Some(status) = found
                && status.epoch > epoch
                && status.acting
            {
                return Ok(Some(status));
            }
            // No notification is sent when a gate opens, so a short look follows each one.
            let pause = (Instant::now() + Duration::from_millis(20)).min(until);
            if Instant::now() >= until {
                return Ok(None);
            }
            let _ = timeout_at(pause, self.hears.recv()).await;
        }
    }

    /// From now on no member claims the role, and its leader drains and releases it. Returns when the order
    /// is written down.
    ///
    /// # Errors
    /// [`TenureError::NoSuchRole`], or a session that fails.
    pub async fn pause(&self, role: &RoleName) -> Result<Ordered, TenureError> {
        self.set_paused(role, true, None).await
    }

    /// [`Operator::pause`] if the role's epoch is still this one.
    ///
    /// # Errors
    /// As there, and [`TenureError::Order`] if the role's epoch is another one.
    pub async fn pause_of(&self, role: &RoleName, epoch: Epoch) -> Result<Ordered, TenureError> {
        self.set_paused(role, true, Some(epoch)).await
    }

    /// Ends a pause. A member that stepped down because of it stays out for what is left of its cool-down.
    ///
    /// # Errors
    /// [`TenureError::NoSuchRole`], or a session that fails.
    pub async fn resume(&self, role: &RoleName) -> Result<Ordered, TenureError> {
        self.set_paused(role, false, None).await
    }

    async fn set_paused(
        &self,
        role: &RoleName,
        paused: bool,
        epoch: Option<Epoch>,
    ) -> Result<Ordered, TenureError> {
        let (role_, by, epoch) = (name(role), self.by(), number(epoch));
        self.order(role, &format!("tenure.set_paused({role_}, {paused}, {by}, {epoch})")).await
    }

    /// The last resort: ends every session that holds the role's lock, of whatever program, and the term
    /// with it: its holder cannot take it up again. The debt stays, so that under `exclusive` another
    /// member still waits out the lease. If a session does not end, nothing is changed.
    ///
    /// # Errors
    /// If there is no such role, or the login role may not end that session.
    pub async fn force_release(&self, role: &RoleName) -> Result<Ordered, TenureError> {
        let call = format!("tenure.force_release({}, {})", name(role), self.by());
        self.order(role, &call).await
    }

    /// Lowers the lease that a role's successors wait out after a restart or failover of the
    /// database to the longest one that still takes part: for when a group's lease was made shorter.
    /// A member that was away meanwhile and comes back with a longer one raises it again.
    ///
    /// # Errors
    /// If there is no such role, or no member has led it since the database was started.
    pub async fn lower_lease(&self, role: &RoleName) -> Result<Lowered, TenureError> {
        let call = format!("tenure.lower_lease({}, {})", name(role), self.by());
        let lowered = self.order(role, &call).await?;
        // The passes of sessions that fence still limit their idling to the lease before. Not worth an error: so
        // they do until the next change of a leader.
        let _ = self.line.ask("select tenure.void_passes()", self.deadline).await;
        Ok(lowered)
    }

    /// An order that the group is told of.
    async fn order<T: serde::de::DeserializeOwned>(
        &self,
        role: &RoleName,
        call: &str,
    ) -> Result<T, TenureError> {
        let done = self.demand(role, call).await?;
        // In a transaction of its own that writes nothing.
        let tell = format!("select tenure.notify_role({}, {})", literal(&self.channel), name(role));
        self.ask(&tell).await?;
        Ok(done)
    }

    /// One call; what the database will not do is an error.
    async fn demand<T: serde::de::DeserializeOwned>(
        &self,
        role: &RoleName,
        call: &str,
    ) -> Result<T, TenureError> {
        let value: serde_json::Value = self.query(&format!("select {call}")).await?;
        if let Some(refusal) = value.get("error") {
            let refusal = OrderRefusal::deserialize(refusal);
            let refusal = refusal.map_err(|error| TenureError::Session(error.to_string()))?;
            return Err(refusal.of(role));
        }
        serde_json::from_value(value).map_err(|error| TenureError::Session(error.to_string()))
    }

    fn by(&self) -> String {
        literal(&self.name)
    }

    async fn ask(&self, sql: &str) -> Result<Option<String>, TenureError> {
        match self.line.ask(sql, self.deadline).await {
            Ok(answer) => Ok(answer),
            // No schema, table or function of ours.
            Err(LineError::Refused { sqlstate, .. })
                if ["3F000", "42P01", "42883"].contains(&sqlstate.as_str()) =>
            {
                Err(crate::preflight::Refused::SchemaMissing.into())
            }
            Err(error) => Err(refused(error)),
        }
    }

    async fn query<T: serde::de::DeserializeOwned>(&self, sql: &str) -> Result<T, TenureError> {
        let text = self.ask(sql).await?.unwrap_or_default();
        serde_json::from_str(&text).map_err(|error| TenureError::Session(error.to_string()))
    }

    /// Says goodbye. Dropping the operator closes the session too, and leaves it to the server to notice.
    pub async fn close(self) {
        self.line.hang_up(self.deadline).await;
    }
}

/// insufficient_privilege has a remedy of its own: an operator may come as any login role.
fn refused(error: LineError) -> TenureError {
    match error.sqlstate() {
        Some("42501") => TenureError::Denied(error.to_string()),
        Some(_) | None => TenureError::session(error),
    }
}

/// How an order of this process is signed: its host, its pid, and its person.
#[must_use]
pub fn this_operator() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("operator on {host}, pid {}, user {}", std::process::id(), person())
}

/// The person at the terminal, as far as the system says.
fn person() -> String {
    let named = std::env::var("USER").ok().filter(|user| !user.is_empty() && user.len() <= 64);
    named.unwrap_or_else(|| format!("uid {}", rustix::process::getuid().as_raw()))
}

fn name(role: &RoleName) -> String {
    literal(role.as_str())
}

fn number(epoch: Option<Epoch>) -> String {
    epoch.map_or("null".to_owned(), |epoch| epoch.get().to_string())
}

fn with_role(sql: &str, role: Option<&RoleName>) -> String {
    sql.replace("{role}", &role.map_or("null".to_owned(), name))
}

/// Lengths of time as the database counts them.
mod milliseconds {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use tenure_core::protocol::millis;

    pub(super) fn serialize<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
        millis(*time).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        u64::deserialize(from).map(Duration::from_millis)
    }
}

/// The same where there may be none. A clock that was set back makes no negative age.
mod age {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use tenure_core::protocol::millis;

    pub(super) fn serialize<S: Serializer>(
        age: &Option<Duration>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        age.map(millis).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Duration>, D::Error> {
        let ms = Option::<i64>::deserialize(from)?;
        Ok(ms.map(|ms| Duration::from_millis(u64::try_from(ms).unwrap_or(0))))
    }
}

/// A key as people write it.
mod text {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};
    use tenure_core::key::LockKey;

    pub(super) fn serialize<S: Serializer>(key: &LockKey, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(key)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<LockKey, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}
