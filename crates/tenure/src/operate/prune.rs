//! Deletes old history, in batches.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Operator;
use crate::error::TenureError;

/// How many rows of a kind one statement deletes at most: it must not hold locks for long.
pub const BATCH: u64 = 1000;
/// How many events of the whole group are kept at most.
pub const EVENTS: u64 = 100_000;

/// What one batch deleted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the names say it")]
pub struct Pruned {
    pub terms: u64,
    pub events: u64,
}

impl Operator {
    /// Deletes a batch of terms and events that are older than `age`, of terms beyond the latest `terms` of
    /// their role, and of events beyond the latest [`EVENTS`]. Call it until it deletes nothing.
    ///
    /// A role's last two terms stay, and those that its epoch or its debt refers to.
    ///
    /// # Errors
    /// If the session fails, or the login role may not delete.
    pub async fn prune(&self, age: Duration, terms: u32) -> Result<Pruned, TenureError> {
        let sql = include_str!("../../sql/prune.sql")
            .replace("{age_ms}", &age.as_millis().to_string())
            .replace("{terms}", &terms.to_string())
            .replace("{events}", &EVENTS.to_string())
            .replace("{batch}", &BATCH.to_string());
        self.query(&sql).await
    }
}
