//! The agent's one session beside its member's: schedules, orders, and the database's clock.
//!
//! Every statement has a deadline. An answer that did not come is unknown, never a no: the session is
//! dropped, and the caller asks again.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tenure::config::Config;
use tenure::{BootClock, Clock, Epoch, Identity, RoleName, Tick};
use tenure_connect::line::{Line, LineError};
use tenure_connect::sql::{json as jsonb, literal, settings};
use tenure_connect::{ConnectError, Connector, TlsError};
use tokio::sync::mpsc;

use crate::definition::Schedule;
use crate::engine::{Answer, Effect, Fate, How, Open, RunOrder, Slot, SlotState, Stood, Then};
use crate::schema::SCHEMA;

/// How long a session may be silent before the server ends it. One that was silent for half as long is not
/// used again.
const IDLE: Duration = Duration::from_secs(3600);
/// How often the server looks whether the session is still there while it works for it.
const CHECK: Duration = Duration::from_secs(1);
/// How long bringing the schema up to date may take.
const MIGRATION: Duration = Duration::from_secs(30);

/// Why the store did not answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// No session; nothing was written.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// What was said about TLS cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// No database was named.
    #[error("no database is configured; give --dsn, or set TENURE_DSN")]
    NoDatabase,
    /// Another term has begun. Nothing was written.
    #[error("another member leads")]
    Stale,
    /// The server refused the statement. Nothing was written.
    #[error("{}{}", .0, remedy(.0))]
    Refused(LineError),
    /// No answer, or one that cannot be read: what was asked for may have been written.
    #[error("{0}")]
    Unknown(String),
}

/// What an owner has to do before the same statement can succeed; nothing if time alone may help.
fn remedy(error: &LineError) -> &'static str {
    match error.sqlstate() {
        Some("42501") => {
            "; an owner of the database runs `tenure migrate --agent`, and gives the grants that \
             `tenure migrate --agent --print-grants ROLE` prints"
        }
        Some("3F000" | "42P01") => {
            "; the schema is missing: run `tenure migrate`, for schedules and alerts `tenure migrate --agent`"
        }
        _ => "",
    }
}

impl StoreError {
    /// Whether a schema or a table is not there.
    pub(crate) fn lacks_schema(&self) -> bool {
        matches!(self, StoreError::Refused(error) if matches!(error.sqlstate(), Some("3F000" | "42P01")))
    }

    /// Whether trying again is of no use before an owner of the database has done something.
    #[must_use]
    pub fn needs_an_owner(&self) -> bool {
        matches!(self, StoreError::Refused(error) if !remedy(error).is_empty())
    }
}

/// The store of one agent.
pub struct Store {
    connector: Connector,
    name: String,
    deadline: Duration,
    /// With the instant at which it was last used.
    line: tokio::sync::Mutex<Option<(Line, Tick)>>,
    /// The database's time at an instant of ours, as the latest answer had it.
    clock: Mutex<Option<(Timestamp, Tick)>>,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A term of a role, as the fence knows it.
#[derive(Debug, Clone)]
pub struct FencedTerm {
    pub role: RoleName,
    pub epoch: Epoch,
    /// The member that leads.
    pub member: Identity,
}

/// What the database knows of a schedule.
#[derive(Debug, Clone)]
pub struct KnownSchedule {
    /// Every slot up to here is decided.
    pub watermark: Timestamp,
    /// What is not over.
    pub open: Vec<Open>,
}

/// An order that waits for its leader.
#[derive(Debug, Clone)]
pub struct WaitingOrder {
    /// The role whose leader carries it out.
    pub role: RoleName,
    /// The schedule that the order is about.
    pub schedule: String,
    /// What the operator asked for.
    pub order: RunOrder,
    pub given: Timestamp,
    /// The dead letter that it is about, and how many attempts that had.
    pub again: Option<(Timestamp, u32)>,
}

/// What a person may read of an attempt's end.
#[derive(Debug, Clone, Default)]
pub struct Details {
    pub code: Option<u8>,
    /// What went wrong.
    pub reason: Option<String>,
    /// What it wrote, or the end of it.
    pub output: Option<String>,
    /// Some of its processes could not be ended: no release of this term may be called clean.
    pub strays: bool,
}

impl Store {
    /// Makes a store; connects with the first question.
    ///
    /// # Errors
    /// If the configuration names no database, or a TLS file that cannot be used.
    pub fn new(config: &Config, name: &str) -> Result<Self, StoreError> {
        let dsn = config.dsn().ok_or(StoreError::NoDatabase)?;
        let connector = Connector::new(dsn, config.tls().clone())?.with_renewal(config.renewal());
        Ok(Store {
            connector,
            name: name.to_owned(),
            deadline: config.lease().lease().clamp(Duration::from_secs(2), Duration::from_secs(10)),
            line: tokio::sync::Mutex::default(),
            clock: Mutex::default(),
        })
    }

    /// With another deadline for each statement.
    pub(crate) fn patient(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// The database's time now, never ahead of it as long as the two clocks run alike; none before the
    /// first answer.
    pub fn now(&self) -> Option<Timestamp> {
        let (then, tick) = (*self.clock.lock().unwrap_or_else(PoisonError::into_inner))?;
        let since = BootClock.now().saturating_since(tick);
        then.checked_add(SignedDuration::try_from(since).ok()?).ok()
    }

    /// Brings the schema up to date.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn migrate(&self) -> Result<(), StoreError> {
        let mut slot = self.line.lock().await;
        let line = self.take(&mut slot).await?;
        let unlimited = format!("set statement_timeout = {}", MIGRATION.as_millis());
        line.ask(&unlimited, self.deadline).await.map_err(unknown)?;
        SCHEMA.migrate(&line, MIGRATION).await.map_err(unknown)?;
        let limited = format!("set statement_timeout = {}", self.deadline.as_millis());
        line.ask(&limited, self.deadline).await.map_err(unknown)?;
        *slot = Some((line, BootClock.now()));
        Ok(())
    }

    /// Tells the group what this member's file says.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn announce(
        &self,
        member: &Identity,
        schedules: &[Schedule],
    ) -> Result<(), StoreError> {
        let digests: BTreeMap<&str, String> =
            schedules.iter().map(|schedule| (schedule.name(), schedule.digest())).collect();
        let sql = format!(
            "select tenure_agent.announce({}, {})",
            literal(member.as_str()),
            jsonb(&digests)
        );
        self.ask::<Value>(&sql).await.map(drop)
    }

    /// Makes the role's schedules what the leader's file says, and answers with their state. A schedule that
    /// another role's leader still has is not in the answer.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn define(
        &self,
        term: &FencedTerm,
        schedules: &[Schedule],
    ) -> Result<BTreeMap<String, KnownSchedule>, StoreError> {
        if self.now().is_none() && !schedules.is_empty() {
            self.look(&[]).await?;
        }
        let next = |schedule: &Schedule| schedule.when().next(self.now()?);
        let rows: Vec<Value> = schedules
            .iter()
            .map(|schedule| {
                json!({
                    "name": schedule.name(),
                    "timing": schedule.timing(),
                    "definition": schedule.told(),
                    "digest": schedule.digest(),
                    "next": next(schedule).map(Timestamp::as_microsecond),
                })
            })
            .collect();
        let sql = format!(
            "select tenure_agent.define({}, {}, {})",
            literal(term.role.as_str()),
            term.epoch.get(),
            jsonb(&rows)
        );
        let answer: Defined = self.ask(&sql).await?;
        let known = |row: DefinedRow| {
            let open = row.open.iter().filter_map(OpenRow::read).collect();
            Some(KnownSchedule { watermark: instant(row.watermark)?, open })
        };
        let rows = answer.schedules.into_iter();
        Ok(rows.filter_map(|(name, row)| Some((name, known(row)?))).collect())
    }

    /// Claims slots, in one statement; one answer for each, none where the schedule has no row.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn claim(
        &self,
        term: &FencedTerm,
        claims: &[(Effect, Option<Timestamp>)],
    ) -> Result<Vec<Option<Answer>>, StoreError> {
        let rows: Vec<Value> =
            claims.iter().filter_map(|(effect, next)| claim_row(effect, *next)).collect();
        let sql = format!(
            "select tenure_agent.claim({}, {}, {}, {})",
            literal(term.role.as_str()),
            term.epoch.get(),
            literal(term.member.as_str()),
            jsonb(&rows)
        );
        let answer: Claimed = self.ask(&sql).await?;
        if answer.answers.len() != claims.len() {
            return Err(StoreError::Unknown("an answer for every slot is missing".to_owned()));
        }
        Ok(answer.answers.into_iter().map(Word::answer).collect())
    }

    /// Begins a further attempt; false: the slot is not what the caller thinks.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn attempt(
        &self,
        term: &FencedTerm,
        slot: &Slot,
        number: u32,
        order: Option<&RunOrder>,
    ) -> Result<bool, StoreError> {
        let sql = format!(
            "select tenure_agent.attempt({}, {}, {}, {}, {}, {number}, {})",
            literal(term.role.as_str()),
            term.epoch.get(),
            literal(term.member.as_str()),
            literal(&slot.schedule),
            slot.at.as_microsecond(),
            order.map_or_else(|| "null".to_owned(), |order| order.id.to_string()),
        );
        #[derive(Deserialize)]
        struct Began {
            began: bool,
        }
        self.ask::<Began>(&sql).await.map(|answer| answer.began)
    }

    /// Takes an attempt's row back whose work did not start; the slot waits for its turn again.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn requeue(
        &self,
        term: &FencedTerm,
        slot: &Slot,
        number: u32,
    ) -> Result<(), StoreError> {
        let sql = format!(
            "select tenure_agent.requeue({}, {}, {}, {}, {}, {number})",
            literal(term.role.as_str()),
            term.epoch.get(),
            literal(term.member.as_str()),
            literal(&slot.schedule),
            slot.at.as_microsecond(),
        );
        self.ask::<Value>(&sql).await.map(drop)
    }

    /// Records an end; false: the schedule is another role's by now, and nothing was written.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn finish(
        &self,
        term: &FencedTerm,
        slot: &Slot,
        number: u32,
        how: How,
        then: Then,
        details: &Details,
    ) -> Result<bool, StoreError> {
        let retry_at = match then {
            Then::Retry(at) => Some(at.as_microsecond()),
            Then::Over | Then::Dead => None,
        };
        let end = json!({
            "schedule": slot.schedule,
            "at": slot.at.as_microsecond(),
            "attempt": number,
            "how": how,
            "state": state_after(how, then),
            "retry_at": retry_at,
            "code": details.code,
            "reason": details.reason,
            "output": details.output,
        });
        let sql = format!(
            "select tenure_agent.finish({}, {}, {}, {})",
            literal(term.role.as_str()),
            term.epoch.get(),
            literal(term.member.as_str()),
            jsonb(&end)
        );
        #[derive(Deserialize)]
        struct Finished {
            recorded: bool,
        }
        self.ask::<Finished>(&sql).await.map(|answer| answer.recorded)
    }

    /// Which of these roles have schedules, or open slots of one, as their last leaders had it. None where there is no schema, or none that
    /// this login role may read: a member without schedules needs no right to it.
    ///
    /// # Errors
    /// [`StoreError`].
    pub(crate) async fn scheduled(&self, roles: &[RoleName]) -> Result<Vec<RoleName>, StoreError> {
        // In a schema that must not be used even the name of a table is an error.
        let readable = "select case when has_schema_privilege(to_regnamespace('tenure_agent'), 'usage') \
            then has_table_privilege(to_regclass('tenure_agent.schedule'), 'select') end";
        if self.send(readable).await?.as_deref() != Some("t") {
            return Ok(Vec::new());
        }
        let sql = format!(
            "select jsonb_build_object('roles', coalesce(jsonb_agg(distinct s.role), '[]')) \
             from tenure_agent.schedule s where {} ? s.role and (s.removed_at is null or exists (\
                 select from tenure_agent.slot o where o.schedule = s.name \
                 and o.state in ('queued', 'running', 'waiting')))",
            jsonb(&roles)
        );
        #[derive(Deserialize)]
        struct Scheduled {
            roles: Vec<RoleName>,
        }
        self.ask::<Scheduled>(&sql).await.map(|answer| answer.roles)
    }

    /// Whether the schema is there: a group without schedules has none.
    pub(crate) async fn is_there(&self) -> Result<bool, StoreError> {
        let there = self.send("select to_regclass('tenure_agent.slot') is not null").await?;
        Ok(there.as_deref() == Some("t"))
    }

    /// The orders for the roles that this agent leads; the answer also sets the clock.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn look(&self, roles: &[RoleName]) -> Result<Vec<WaitingOrder>, StoreError> {
        let answer: Looked =
            self.ask(&format!("select tenure_agent.look({})", jsonb(&roles))).await?;
        Ok(answer.orders.into_iter().filter_map(OrderRow::read).collect())
    }

    /// Writes down what happened to a member's role, for people.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn note(
        &self,
        role: &RoleName,
        member: &Identity,
        epoch: Option<Epoch>,
        kind: &str,
        detail: &str,
    ) -> Result<(), StoreError> {
        let epoch = epoch.map_or_else(|| "null".to_owned(), |epoch| epoch.get().to_string());
        let sql = format!(
            "insert into tenure.event (role, member, epoch, kind, detail) values ({}, {}, {epoch}, {}, {})",
            literal(role.as_str()),
            literal(member.as_str()),
            literal(kind),
            literal(detail),
        );
        self.send(&sql).await.map(drop)
    }

    /// Sends one statement that answers with text, or with nothing.
    pub(crate) async fn send(&self, sql: &str) -> Result<Option<String>, StoreError> {
        let mut slot = self.line.lock().await;
        let line = self.take(&mut slot).await?;
        let (answer, goes_on) = match line.ask(sql, self.deadline).await {
            Ok(text) => (Ok(text), true),
            Err(error) => match error.sqlstate() {
                Some("TN001") => (Err(StoreError::Stale), true),
                // A refusal leaves the session as it was, unless it was the session that was ended.
                Some(state) if !state.starts_with("57") && !state.starts_with("08") => {
                    (Err(StoreError::Refused(error)), true)
                }
                Some(_) | None => (Err(unknown(error)), false),
            },
        };
        *slot = goes_on.then(|| (line, BootClock.now()));
        answer
    }

    /// The session, taken out: a question that is cancelled closes it. One that the server is about to end,
    /// or has ended, for its silence is not used again: its answer would be unknown.
    async fn take(&self, slot: &mut Option<(Line, Tick)>) -> Result<Line, StoreError> {
        let fresh = |used: &Tick| BootClock.now().saturating_since(*used) < IDLE / 2;
        match slot.take().filter(|(_, used)| fresh(used)) {
            Some((line, _)) => Ok(line),
            None => self.connect().await,
        }
    }

    pub(crate) async fn ask<T: DeserializeOwned>(&self, sql: &str) -> Result<T, StoreError> {
        let text = self.send(sql).await?.unwrap_or_default();
        let received = BootClock.now();
        let value: Value =
            serde_json::from_str(&text).map_err(|error| StoreError::Unknown(error.to_string()))?;
        if let Some(now) = value["now"].as_i64().and_then(instant) {
            *self.clock.lock().unwrap_or_else(PoisonError::into_inner) = Some((now, received));
        }
        serde_json::from_value(value).map_err(|error| StoreError::Unknown(error.to_string()))
    }

    async fn connect(&self) -> Result<Line, StoreError> {
        let session = self.connector.connect(&self.name, self.deadline).await?;
        let line = Line::new(session, mpsc::unbounded_channel().0);
        let pins = settings(IDLE, self.deadline, CHECK);
        line.ask(&pins, self.deadline).await.map_err(unknown)?;
        Ok(line)
    }
}

fn unknown(error: LineError) -> StoreError {
    match error {
        LineError::Refused { .. } => StoreError::Refused(error),
        LineError::Deadline(_)
        | LineError::Closed(_)
        | LineError::Warned(_)
        | LineError::Unreadable(_) => StoreError::Unknown(error.to_string()),
    }
}

fn claim_row(effect: &Effect, next: Option<Timestamp>) -> Option<Value> {
    let Effect::Claim { slot, fate, missed, more, order } = effect else { return None };
    Some(json!({
        "schedule": slot.schedule,
        "at": slot.at.as_microsecond(),
        "state": match fate {
            Fate::Run => SlotState::Running,
            Fate::Queue => SlotState::Queued,
            Fate::Missed => SlotState::Missed,
            Fate::Skipped => SlotState::Skipped,
        },
        "missed": missed,
        "more": more,
        "order": order.as_ref().map(|order| order.id),
        "by": order.as_ref().map(|order| &order.by),
        "next": next.map(Timestamp::as_microsecond),
    }))
}

fn state_after(how: How, then: Then) -> SlotState {
    match (then, how) {
        (Then::Retry(_), _) => SlotState::Waiting,
        (Then::Over | Then::Dead, How::Succeeded) => SlotState::Succeeded,
        (Then::Over | Then::Dead, How::Failed | How::Timeout) => SlotState::Failed,
        (Then::Over | Then::Dead, How::Interrupted) => SlotState::Interrupted,
        (Then::Over | Then::Dead, How::Replaced) => SlotState::Replaced,
    }
}

fn instant(micros: i64) -> Option<Timestamp> {
    Timestamp::from_microsecond(micros).ok()
}

#[derive(Deserialize)]
struct Defined {
    schedules: BTreeMap<String, DefinedRow>,
}

#[derive(Deserialize)]
struct DefinedRow {
    watermark: i64,
    open: Vec<OpenRow>,
}

#[derive(Deserialize)]
struct OpenRow {
    at: i64,
    state: SlotState,
    attempts: u32,
    retry_at: Option<i64>,
    stays: bool,
}

impl OpenRow {
    fn read(&self) -> Option<Open> {
        let stood = match self.state {
            SlotState::Queued => Stood::Queued,
            SlotState::Waiting => Stood::Waiting(instant(self.retry_at?)?),
            SlotState::Running
            | SlotState::Succeeded
            | SlotState::Failed
            | SlotState::Interrupted
            | SlotState::Replaced
            | SlotState::Missed
            | SlotState::Skipped => Stood::Running,
        };
        Some(Open { at: instant(self.at)?, attempts: self.attempts, stood, stays: self.stays })
    }
}

#[derive(Deserialize)]
struct Claimed {
    answers: Vec<Word>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Word {
    Claimed,
    Taken,
    Early,
    Gone,
}

impl Word {
    fn answer(self) -> Option<Answer> {
        match self {
            Word::Claimed => Some(Answer::Claimed),
            Word::Taken => Some(Answer::Taken),
            Word::Early => Some(Answer::Early),
            Word::Gone => None,
        }
    }
}

#[derive(Deserialize)]
struct Looked {
    orders: Vec<OrderRow>,
}

#[derive(Deserialize)]
struct OrderRow {
    id: i64,
    role: RoleName,
    schedule: String,
    by: String,
    at: Option<i64>,
    given_at: i64,
    attempts: Option<u32>,
}

impl OrderRow {
    fn read(self) -> Option<WaitingOrder> {
        let again = match self.at {
            Some(at) => Some((instant(at)?, self.attempts?)),
            None => None,
        };
        Some(WaitingOrder {
            role: self.role,
            schedule: self.schedule,
            order: RunOrder { id: self.id, by: self.by },
            given: instant(self.given_at)?,
            again,
        })
    }
}
