//! What an operator asks and orders, from anywhere: a session of its own, no seat, no role.
//!
//! An order touches neither lock nor epoch: it is written down, the group is told, and the leader
//! carries it out itself. The exception is [`Operator::force_release`].

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure_core::key::{LockKey, RoleName};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use crate::config::Config;
use crate::connect::Connector;
use crate::error::TenureError;
use crate::line::{Heard, Line, LineError};
use crate::schema::SCHEMA;
use crate::seat::settings;
use crate::sql::{identifier, literal};

/// A role as the database knows it.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RoleStatus {
    /// Its name.
    pub role: String,
    /// Its advisory key.
    pub key: String,
    /// `exclusive` or `fenced`.
    pub policy: String,
    /// The lease its successors wait out, in milliseconds.
    pub lease_ms: u64,
    /// The last epoch issued.
    pub epoch: i64,
    /// Who holds it.
    pub holder: Option<String>,
    /// Whether the holder's gate may be open; false while it waits out another's lease.
    pub acting: bool,
    /// Since when it is held.
    pub since: Option<String>,
    /// When it was last released.
    pub released_at: Option<String>,
    /// Who held it before.
    pub last_holder: Option<String>,
    /// Whether an operator paused it.
    pub paused: bool,
    /// Whether a step-down was ordered and not yet carried out.
    pub step_down_ordered: bool,
    /// Time since the holder's last heartbeat.
    pub heartbeat_age_ms: Option<i64>,
    /// The other candidates and observers.
    pub waiting: Vec<Waiting>,
    /// The sessions that hold its lock, Tenure's or not.
    #[serde(default)]
    pub lock_held_by: Option<Vec<LockHolder>>,
}

/// A member that waits for a role.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Waiting {
    /// Who.
    pub member: String,
    /// A higher one gets a head start.
    pub priority: i32,
    /// Whether it is ready to lead.
    pub ready: bool,
    /// Whether it only watches.
    pub observer: bool,
    /// Time since its last heartbeat.
    pub heartbeat_age_ms: Option<i64>,
}

/// A session that holds an advisory lock.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LockHolder {
    /// Its server process.
    pub pid: i32,
    /// What it calls itself.
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
    /// The role.
    pub role: String,
    /// Its epoch.
    pub epoch: i64,
    /// Whose.
    pub member: String,
    /// When the lock was won.
    pub claimed_at: String,
    /// When its gate opened, if it did.
    pub acting_at: Option<String>,
    /// When it ended.
    pub ended_at: Option<String>,
    /// How: `released`, `abandoned` (it never acted), `replaced`, `forced`.
    pub how: Option<String>,
}

/// What an audit found.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Audit {
    /// How many terms were looked at.
    pub terms: i64,
    /// Of how many roles.
    pub roles: i64,
    /// Those that break a promise.
    pub violations: Vec<Violation>,
}

/// A term that breaks a promise.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Violation {
    /// The role.
    pub role: String,
    /// The term.
    pub epoch: i64,
    /// Whose.
    pub member: String,
    /// The term after it.
    pub next_epoch: Option<i64>,
    /// What is wrong.
    pub why: String,
}

/// Whom an order concerned.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Ordered {
    /// Who held the role.
    pub holder: Option<String>,
    /// Under which epoch.
    pub epoch: i64,
    /// How many sessions were ended by force.
    #[serde(default)]
    pub sessions_ended: Option<i64>,
}

/// A role's lease before and after [`Operator::lower_lease`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Lowered {
    /// Before.
    pub from_ms: i64,
    /// After.
    pub to_ms: i64,
}

/// A session for questions and orders.
pub struct Operator {
    line: Line,
    hears: mpsc::UnboundedReceiver<Heard>,
    channel: String,
    deadline: Duration,
    name: String,
}

impl std::fmt::Debug for Operator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Operator").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Operator {
    /// Connects.
    ///
    /// # Errors
    /// If the database cannot be reached.
    pub async fn connect(config: &Config) -> Result<Self, TenureError> {
        let dsn = config.dsn().ok_or(TenureError::NoDatabase)?;
        let connector = Connector::new(dsn, config.tls().clone())?;
        let deadline = config.lease().lease().max(Duration::from_secs(3));
        let session = connector.connect("tenure operator", deadline).await?;
        let (heard, hears) = mpsc::unbounded_channel();
        let line = Line::new(session, heard);
        let pins = settings(Duration::from_secs(3600), deadline, Duration::from_secs(1));
        line.ask(&pins, deadline).await.map_err(TenureError::session)?;
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let name = format!("operator on {host}, pid {}", std::process::id());
        Ok(Operator { line, hears, channel: config.channel().to_owned(), deadline, name })
    }

    /// The schema's version in the database; 0 if there is none.
    ///
    /// # Errors
    /// If the session fails.
    pub async fn schema_version(&self) -> Result<i32, TenureError> {
        SCHEMA.installed(&self.line, self.deadline).await.map_err(TenureError::session)
    }

    /// Brings the schema up to date; returns the versions that were applied.
    ///
    /// # Errors
    /// If the session fails, or the login role may not.
    pub async fn migrate(&self) -> Result<Vec<i32>, TenureError> {
        let within = Duration::from_secs(30);
        SCHEMA.migrate(&self.line, within).await.map_err(TenureError::session)
    }

    /// All roles, or one.
    ///
    /// # Errors
    /// If the session fails; an unknown role is an empty list.
    pub async fn status(&self, role: Option<&RoleName>) -> Result<Vec<RoleStatus>, TenureError> {
        self.query(&with_role(include_str!("../sql/status.sql"), role)).await
    }

    /// Who holds an advisory key, whatever program it is; needs no schema.
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

    /// The latest terms, newest first.
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

    /// Checks the durable terms: epochs strictly increase, no two terms of a role overlap.
    ///
    /// # Errors
    /// If the session fails.
    pub async fn audit(&self, role: Option<&RoleName>) -> Result<Audit, TenureError> {
        self.query(&with_role(include_str!("../sql/audit.sql"), role)).await
    }

    /// Asks a role's leader, wherever it runs, to drain and hand over, to `to` if one is named.
    ///
    /// # Errors
    /// If there is no such role, leader or member.
    pub async fn step_down(
        &self,
        role: &RoleName,
        to: Option<&str>,
    ) -> Result<Ordered, TenureError> {
        let to = to.map_or("null".to_owned(), literal);
        let call = format!("tenure.order_step_down({}, {to}, {})", name(role), self.by());
        self.order(role, &call).await
    }

    /// Waits until the role's epoch is above `epoch` and its new holder acts; returns that state,
    /// or none after `within`.
    ///
    /// # Errors
    /// If the session fails.
    pub async fn await_successor(
        &mut self,
        role: &RoleName,
        epoch: i64,
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
            // Nobody notifies when a gate opens, so a short look follows each notification.
            let pause = (Instant::now() + Duration::from_millis(20)).min(until);
            if Instant::now() >= until {
                return Ok(None);
            }
            let _ = timeout_at(pause, self.hears.recv()).await;
        }
    }

    /// Nobody claims the role any more, and its leader drains.
    ///
    /// # Errors
    /// If there is no such role.
    pub async fn pause(&self, role: &RoleName) -> Result<Ordered, TenureError> {
        let call = format!("tenure.set_paused({}, true, {})", name(role), self.by());
        self.order(role, &call).await
    }

    /// Ends a pause.
    ///
    /// # Errors
    /// If there is no such role.
    pub async fn resume(&self, role: &RoleName) -> Result<Ordered, TenureError> {
        let call = format!("tenure.set_paused({}, false, {})", name(role), self.by());
        self.order(role, &call).await
    }

    /// The last resort: ends every session that holds the role's lock, whoever's it is. The debt
    /// stays, so that under `exclusive` the successor still waits out the lease.
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
    /// If there is no such role, or nobody has led it since the database was started.
    pub async fn lower_lease(&self, role: &RoleName) -> Result<Lowered, TenureError> {
        self.order(role, &format!("tenure.lower_lease({}, {})", name(role), self.by())).await
    }

    async fn order<T: serde::de::DeserializeOwned>(
        &self,
        role: &RoleName,
        call: &str,
    ) -> Result<T, TenureError> {
        let value: serde_json::Value = self.query(&format!("select {call}")).await?;
        if let Some(error) = value.get("error").and_then(serde_json::Value::as_str) {
            return Err(match error {
                "unknown_role" => TenureError::NoSuchRole(role.clone()),
                "no_leader" => TenureError::NoLeader(role.clone()),
                "unknown_member" => TenureError::NoSuchMember(role.clone()),
                "not_settled" => TenureError::Order(format!(
                    "nobody has led role {role} since the database was started, so an earlier \
                     leader's lease may still run; try again when it has a leader"
                )),
                "already_leader" => {
                    TenureError::Order(format!("that member leads role {role} already"))
                }
                other => TenureError::Order(other.to_owned()),
            });
        }
        // In a transaction of its own that writes nothing.
        let tell = format!("select tenure.notify_role({}, {})", literal(&self.channel), name(role));
        self.ask(&tell).await?;
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
            Err(error) => Err(TenureError::session(error)),
        }
    }

    async fn query<T: serde::de::DeserializeOwned>(&self, sql: &str) -> Result<T, TenureError> {
        let text = self.ask(sql).await?.unwrap_or_default();
        serde_json::from_str(&text).map_err(|error| TenureError::Session(error.to_string()))
    }

    /// Closes the session.
    pub async fn close(self) {
        self.line.hang_up(self.deadline).await;
    }
}

fn name(role: &RoleName) -> String {
    literal(role.as_str())
}

fn with_role(sql: &str, role: Option<&RoleName>) -> String {
    sql.replace("{role}", &role.map_or("null".to_owned(), name))
}
