//! What an operator asks and orders about schedules, and what happened in the group.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tenure::config::Config;
use tenure::{Epoch, Identity, RoleName};
use tenure_connect::sql::literal;

pub use crate::engine::{How, SlotState};
use crate::store::{Store, StoreError};

/// A schedule, as its role's leader has it.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the names say it")]
pub struct Listed {
    pub name: String,
    pub role: RoleName,
    pub cron: String,
    pub timezone: String,
    pub definition: Value,
    pub next_at: Option<Timestamp>,
    /// Its leader's file does not have it, and another member's file does: it does not fire.
    #[serde(default)]
    pub removed: bool,
    /// The member that leads its role.
    pub leader: Option<Identity>,
    pub last: Option<Latest>,
    /// How many dead letters it has.
    pub dead: u64,
    /// The members whose files say otherwise.
    pub differs: Vec<Identity>,
}

/// The latest slot of a schedule.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the names say it")]
pub struct Latest {
    pub at: Timestamp,
    pub state: SlotState,
    pub ended_at: Option<Timestamp>,
}

/// A slot and its attempts.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the names say it")]
pub struct Recorded {
    pub schedule: String,
    pub at: Timestamp,
    pub state: SlotState,
    /// How many slots before it were missed with it.
    pub missed: u32,
    /// And more than that.
    pub more: bool,
    pub ordered_by: Option<String>,
    /// The number of that order.
    #[serde(default)]
    pub order_id: Option<i64>,
    pub epoch: Epoch,
    pub member: Identity,
    pub claimed_at: Timestamp,
    pub ended_at: Option<Timestamp>,
    pub retry_at: Option<Timestamp>,
    pub attempts: Vec<Attempted>,
}

/// One attempt of a slot.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the names say it")]
pub struct Attempted {
    pub number: u32,
    pub epoch: Epoch,
    pub member: Identity,
    pub started_at: Timestamp,
    pub ended_at: Option<Timestamp>,
    pub how: Option<How>,
    pub code: Option<i32>,
    pub reason: Option<String>,
    pub output: Option<String>,
}

/// Something that happened in the group.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the names say it")]
pub struct Happened {
    pub at: Timestamp,
    /// The same for the same event, however often it is asked for.
    pub key: String,
    pub role: Option<RoleName>,
    pub member: Option<Identity>,
    pub epoch: Option<Epoch>,
    pub event: String,
    #[serde(default)]
    pub schedule: Option<String>,
    #[serde(default)]
    pub slot: Option<Timestamp>,
    #[serde(default)]
    pub detail: Option<String>,
}

/// Why a question was not answered, or an order was not taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeskError {
    /// The group has no schedule of this name.
    #[error("there is no schedule {0}; `tenure schedule list` shows them")]
    UnknownSchedule(String),
    /// The schedule has no dead letter at the slot that was named.
    #[error("{0} has no dead letter of that slot; `tenure schedule dead` shows them")]
    NoDeadLetter(String),
    /// Ten orders of runs of the schedule wait already.
    #[error("ten orders for {0} wait already; is its role led? `tenure status` tells")]
    TooMany(String),
    /// No agent with schedules ever ran here.
    #[error("this group has no schedules; `tenure agent` with a [[schedule]] makes them")]
    NoSchedules,
    /// The database did not answer. An order may have been taken: see [`StoreError`].
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The database's answer to the order of a run.
#[derive(Deserialize)]
#[serde(untagged)]
enum Ordered {
    Taken { role: RoleName, id: i64 },
    Refused { error: RunRefusal },
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum RunRefusal {
    NoDeadLetter,
    TooMany,
    UnknownSchedule,
}

/// A session for questions and orders about schedules, and about what happened in the group.
#[derive(Debug)]
pub struct Desk {
    store: Store,
}

impl Desk {
    /// Makes one; it connects with the first question.
    ///
    /// # Errors
    /// [`DeskError::Store`] if no database is configured, or its TLS settings cannot be used.
    pub fn new(config: &Config) -> Result<Self, DeskError> {
        Ok(Desk { store: Store::new(config, "tenure operator")? })
    }

    /// All schedules, or the one of that name.
    ///
    /// # Errors
    /// [`DeskError::NoSchedules`], [`DeskError::Store`], and [`DeskError::UnknownSchedule`] for a name.
    pub async fn list(&self, name: Option<&str>) -> Result<Vec<Listed>, DeskError> {
        self.schedules().await?;
        let found: Vec<Listed> =
            self.query(&with_name(include_str!("../sql/list.sql"), name)).await?;
        match name {
            Some(name) if found.is_empty() => Err(DeskError::UnknownSchedule(name.to_owned())),
            Some(_) | None => Ok(found),
        }
    }

    /// The latest slots, newest first, `limit` at most; of one schedule or of all, all of them or only dead
    /// letters. None of a schedule that is not known.
    ///
    /// # Errors
    /// [`DeskError::NoSchedules`], [`DeskError::Store`].
    pub async fn history(
        &self,
        name: Option<&str>,
        dead: bool,
        limit: u32,
    ) -> Result<Vec<Recorded>, DeskError> {
        self.recorded(name, dead, None, limit).await
    }

    /// The slot that an order made run, by the order's number; `None` until its role's leader has taken the order.
    ///
    /// # Errors
    /// [`DeskError::NoSchedules`], [`DeskError::Store`].
    pub async fn ordered(&self, order: i64) -> Result<Option<Recorded>, DeskError> {
        Ok(self.recorded(None, false, Some(order), 1).await?.pop())
    }

    async fn recorded(
        &self,
        name: Option<&str>,
        dead: bool,
        order: Option<i64>,
        limit: u32,
    ) -> Result<Vec<Recorded>, DeskError> {
        self.schedules().await?;
        let order = order.map_or_else(|| "null".to_owned(), |order| order.to_string());
        let sql = include_str!("../sql/history.sql")
            .replace("{limit}", &limit.to_string())
            .replace("{order}", &order)
            .replace("{dead}", if dead { "true" } else { "false" });
        self.query(&with_name(&sql, name)).await
    }

    /// Orders a run beside the planned ones, or, with `slot`, that dead letter again; the role's leader carries it
    /// out, within about two seconds. `by` names the operator, for people. Returns the role, and the order's
    /// number for [`Desk::ordered`], without waiting for the run.
    ///
    /// # Errors
    /// [`DeskError`]; nothing was ordered, unless a [`DeskError::Store`] says that it may have been.
    pub async fn order_run(
        &self,
        name: &str,
        slot: Option<Timestamp>,
        by: &str,
    ) -> Result<(RoleName, i64), DeskError> {
        self.schedules().await?;
        let slot = slot.map_or_else(|| "null".to_owned(), |at| literal(&at.to_string()));
        let sql =
            format!("select tenure_agent.order_run({}, {slot}, {})", literal(name), literal(by));
        match self.query::<Ordered>(&sql).await? {
            Ordered::Taken { role, id } => Ok((role, id)),
            Ordered::Refused { error } => Err(match error {
                RunRefusal::NoDeadLetter => DeskError::NoDeadLetter(name.to_owned()),
                RunRefusal::TooMany => DeskError::TooMany(name.to_owned()),
                RunRefusal::UnknownSchedule => DeskError::UnknownSchedule(name.to_owned()),
            }),
        }
    }

    /// What happened to a role, or to all, in the last `back` by the database's clock (in whole seconds, one at
    /// least), oldest first, the latest `limit` of it.
    ///
    /// # Errors
    /// [`DeskError::Store`].
    pub async fn events(
        &self,
        role: Option<&RoleName>,
        back: Duration,
        limit: u32,
    ) -> Result<Vec<Happened>, DeskError> {
        let slots =
            if self.has_schedules().await? { include_str!("../sql/events_slots.sql") } else { "" };
        let seconds = SignedDuration::try_from(back).map_or(i64::MAX, |back| back.as_secs().max(1));
        let since = format!("(clock_timestamp() - {seconds} * interval '1 s')");
        let role = role.map_or_else(|| "null".to_owned(), |role| literal(role.as_str()));
        let sql = include_str!("../sql/events.sql")
            .replace("{slots}", slots)
            .replace("{since}", &since)
            .replace("{role}", &role)
            .replace("{limit}", &limit.to_string());
        self.query(&sql).await
    }

    async fn has_schedules(&self) -> Result<bool, DeskError> {
        Ok(self.store.is_there().await?)
    }

    async fn schedules(&self) -> Result<(), DeskError> {
        if self.has_schedules().await? { Ok(()) } else { Err(DeskError::NoSchedules) }
    }

    async fn query<T: DeserializeOwned>(&self, sql: &str) -> Result<T, DeskError> {
        let text = self.store.send(sql).await?.unwrap_or_default();
        let unreadable = |error: serde_json::Error| StoreError::Unknown(error.to_string());
        Ok(serde_json::from_str(&text).map_err(unreadable)?)
    }
}

fn with_name(sql: &str, name: Option<&str>) -> String {
    sql.replace("{name}", &name.map_or_else(|| "null".to_owned(), literal))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_to_an_order_that_is_not_known_is_no_refusal() {
        let read = serde_json::from_str::<Ordered>;
        assert!(matches!(read(r#"{"id": 7, "role": "r"}"#), Ok(Ordered::Taken { id: 7, .. })));
        let refused = read(r#"{"error": "no_dead_letter"}"#);
        assert!(matches!(refused, Ok(Ordered::Refused { error: RunRefusal::NoDeadLetter })));
        assert!(read(r#"{"error": "weather"}"#).is_err());
    }
}
