//! What an operator asks about alerts.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tenure::config::Config;

use crate::store::{Store, StoreError};

use super::engine::{Alert, Incident, Kind, Message};
use super::rule::{Rule, Severity};
use super::sample::Samples;
use super::sampler::Sampler;
use super::setup::INTERVAL;

/// The state of a group's alerts.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[non_exhaustive]
pub struct AlertOverview {
    /// When something was evaluated last while an alert was pending or firing.
    pub evaluated: Option<Timestamp>,
    /// What is pending or firing now.
    pub alerts: Vec<Alert>,
    /// The latest incidents, newest first.
    pub incidents: Vec<Incident>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AlertDeskError {
    /// No agent ever made the tables.
    #[error(
        "no agent ever ran with this database; `tenure agent` with an [[alerts]] makes the tables"
    )]
    NoTables,
    /// The database did not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A session for questions about alerts.
#[derive(Debug)]
pub struct AlertDesk {
    store: Store,
}

impl AlertDesk {
    /// Makes one; it connects with the first question.
    ///
    /// # Errors
    /// [`AlertDeskError::Store`] if no database is configured, or its TLS settings cannot be used.
    pub fn new(config: &Config) -> Result<Self, AlertDeskError> {
        Ok(AlertDesk { store: Store::new(config, "tenure operator")? })
    }

    /// One sample of every series, with as much of the past as the rules look back, and its instant in milliseconds
    /// since 1970, by the database's clock: what [`Condition::evaluate`](super::Condition::evaluate) takes.
    ///
    /// # Errors
    /// [`AlertDeskError`].
    pub async fn sample(&self, rules: &[Rule]) -> Result<(Samples, i64), AlertDeskError> {
        self.tables().await?;
        let mut sampler = Sampler::new(rules.iter(), INTERVAL);
        let answer = self.store.sample(sampler.back()).await?;
        Ok(sampler.take(&answer))
    }

    /// What is pending and firing, and the latest incidents, `limit` at most.
    ///
    /// # Errors
    /// [`AlertDeskError`].
    pub async fn overview(&self, limit: u32) -> Result<AlertOverview, AlertDeskError> {
        self.tables().await?;
        let sql = include_str!("../../sql/alerts.sql").replace("{limit}", &limit.to_string());
        Ok(self.store.ask(&sql).await?)
    }

    async fn tables(&self) -> Result<(), AlertDeskError> {
        let there =
            self.store.send("select to_regclass('tenure_agent.incident') is not null").await?;
        if there.as_deref() == Some("t") { Ok(()) } else { Err(AlertDeskError::NoTables) }
    }
}

/// A message of that kind that says that it is a test, under a deduplication key of its own: for
/// [`Notifiers::send`](super::notifier::Notifiers::send).
#[must_use]
pub fn test_message(notifier: &str, key: &str, kind: Kind, now: Timestamp) -> Message {
    Message {
        notifier: notifier.to_owned(),
        kind,
        key: key.to_owned(),
        rule: "test".to_owned(),
        severity: Severity::Info,
        summary: Some("a test of this notifier, by `tenure alerts test --send`".to_owned()),
        opened: now,
        resolved: (kind == Kind::Resolved).then_some(now),
        alerts: Vec::new(),
    }
}
