//! A schedule as validated: when it fires, and what becomes of a slot that is late, overlaps or fails.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tenure::{ExponentialBackoff, RoleName};

use crate::when::{When, WhenError};

/// A slot that is later than this is missed.
pub const MISSED_AFTER: Duration = Duration::from_secs(60);
/// How many missed slots `run_all` runs at most, the latest ones.
pub const RUN_ALL: usize = 100;
/// How many slots `queue` lets wait at most.
pub const QUEUE: usize = 10;
/// How many attempts a slot may have beside its first.
const RETRIES: u32 = 100;
/// No wait of a schedule may be longer than a role's own drain.
const LONGEST_DRAIN: Duration = Duration::from_secs(3600);
/// The longest pause before a retry.
const LONGEST_PAUSE: Duration = Duration::from_secs(3600);

/// What becomes of slots that no leader fired in time. A closed set: each is a policy of the file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Missed {
    /// They are written down as missed.
    #[default]
    Skip,
    /// The latest of them runs; the others are written down as missed.
    RunOnce,
    /// The latest of them run, up to 100, one after another.
    RunAll,
}

/// What becomes of a slot that is due while an earlier one has not ended. A closed set: each is a policy of the file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Overlap {
    /// It is written down as skipped.
    #[default]
    Forbid,
    /// It waits for its turn; at most 10 slots wait, and a further one is written down as skipped.
    Queue,
    /// The earlier one is ended first.
    Replace,
}

/// Work of a role's leader, and the instants at which it is due.
#[derive(Debug, Clone)]
#[must_use]
pub struct Schedule {
    name: String,
    role: RoleName,
    when: When,
    missed: Missed,
    overlap: Overlap,
    timeout: Option<Duration>,
    retries: u32,
    backoff: Duration,
    drain_limit: Duration,
    work: String,
}

/// Why a schedule was refused. Nothing was started; change the named field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScheduleError {
    /// A field is outside its bounds.
    #[error("`{field}` must be {bound}")]
    Field {
        /// The field's name, as the file has it.
        field: &'static str,
        /// What is accepted.
        bound: &'static str,
    },
    /// The instants cannot be read.
    #[error(transparent)]
    When(#[from] WhenError),
}

impl ScheduleError {
    /// The field that is wrong.
    #[must_use]
    pub fn field(&self) -> &'static str {
        match self {
            ScheduleError::Field { field, .. } => field,
            ScheduleError::When(WhenError::Zone { .. }) => "timezone",
            ScheduleError::When(_) => "cron",
        }
    }
}

impl Schedule {
    /// A schedule in UTC that skips what was missed, forbids overlap, has no time limit and no retries.
    ///
    /// `name` has 1 to 100 bytes without control characters, and is one schedule's in the group. `cron` is a
    /// pattern of five fields (`0 3 * * *`), of six with seconds in front, or `@every 10s`, `@daily` and the like.
    ///
    /// # Errors
    /// [`ScheduleError`], for `name` or `cron`.
    pub fn new(name: &str, role: RoleName, cron: &str) -> Result<Self, ScheduleError> {
        if name.is_empty() || name.len() > 100 || name.chars().any(char::is_control) {
            let bound = "1 to 100 bytes without control characters";
            return Err(ScheduleError::Field { field: "name", bound });
        }
        Ok(Schedule {
            name: name.to_owned(),
            role,
            when: When::new(cron, "UTC")?,
            missed: Missed::default(),
            overlap: Overlap::default(),
            timeout: None,
            retries: 0,
            backoff: Duration::from_secs(10),
            drain_limit: Duration::from_secs(600),
            work: String::new(),
        })
    }

    /// The zone of a pattern's wall-clock times, by its IANA name. Default: UTC.
    ///
    /// # Errors
    /// [`ScheduleError::When`].
    pub fn timezone(mut self, zone: &str) -> Result<Self, ScheduleError> {
        self.when = When::new(self.when.text(), zone)?;
        Ok(self)
    }

    /// What becomes of slots that are later than 60 s. Default: skip.
    pub fn missed(mut self, missed: Missed) -> Self {
        self.missed = missed;
        self
    }

    /// What becomes of a slot that is due while an earlier one has not ended. Default: forbid.
    pub fn overlap(mut self, overlap: Overlap) -> Self {
        self.overlap = overlap;
        self
    }

    /// How long an attempt may take before it is ended. Default: no limit.
    ///
    /// # Errors
    /// If it is zero.
    pub fn timeout(mut self, timeout: Duration) -> Result<Self, ScheduleError> {
        if timeout.is_zero() {
            return Err(ScheduleError::Field { field: "timeout", bound: "more than zero" });
        }
        self.timeout = Some(timeout);
        Ok(self)
    }

    /// How often a run that failed or was interrupted is run again. Default: 0, and then a slot runs at
    /// most once; with more it may run as often as that.
    ///
    /// # Errors
    /// Above 100.
    pub fn retries(mut self, retries: u32) -> Result<Self, ScheduleError> {
        if retries > RETRIES {
            return Err(ScheduleError::Field { field: "retries", bound: "at most 100" });
        }
        self.retries = retries;
        Ok(self)
    }

    /// The pause before the first retry; it doubles with each, up to an hour. Default: 10 s.
    ///
    /// # Errors
    /// If it is zero or above an hour.
    pub fn backoff(mut self, backoff: Duration) -> Result<Self, ScheduleError> {
        if backoff.is_zero() || backoff > LONGEST_PAUSE {
            let bound = "more than zero and at most 1h";
            return Err(ScheduleError::Field { field: "backoff", bound });
        }
        self.backoff = backoff;
        Ok(self)
    }

    /// How long a run may go on after its leader was asked to hand over. Default: 10 min, so that a deploy
    /// does not kill a backup; too long delays the handover.
    ///
    /// # Errors
    /// Above 1 h.
    pub fn drain_limit(mut self, limit: Duration) -> Result<Self, ScheduleError> {
        if limit > LONGEST_DRAIN {
            return Err(ScheduleError::Field { field: "drain_limit", bound: "at most 1h" });
        }
        self.drain_limit = limit;
        Ok(self)
    }

    /// What runs, in words: a change of it is a change of the definition.
    pub(crate) fn work(mut self, work: String) -> Self {
        self.work = work;
        self
    }

    /// What orders, rows and events call it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The role whose leader fires it.
    #[must_use]
    pub fn role(&self) -> &RoleName {
        &self.role
    }

    /// When its slots are.
    #[must_use]
    pub fn when(&self) -> &When {
        &self.when
    }

    pub(crate) fn on_missed(&self) -> Missed {
        self.missed
    }

    pub(crate) fn on_overlap(&self) -> Overlap {
        self.overlap
    }

    pub(crate) fn limit(&self) -> Option<Duration> {
        self.timeout
    }

    pub(crate) fn drain(&self) -> Duration {
        self.drain_limit
    }

    /// The pause before attempt `number`, counted from 2; none: there is no such attempt.
    pub(crate) fn pause_before(&self, number: u32) -> Option<Duration> {
        if number > self.retries.saturating_add(1) {
            return None;
        }
        Some(ExponentialBackoff::new(self.backoff, LONGEST_PAUSE).bare(number - 1))
    }

    /// Pattern and zone: when this changes, what was missed before is over.
    pub(crate) fn timing(&self) -> String {
        format!("{} {}", self.when.text(), self.when.zone())
    }

    /// Everything that a person would call the definition.
    pub(crate) fn told(&self) -> Value {
        json!({
            "role": self.role.as_str(),
            "cron": self.when.text(),
            "timezone": self.when.zone(),
            "missed": self.missed,
            "overlap": self.overlap,
            "timeout_ms": self.timeout.map(|limit| limit.as_millis()),
            "retries": self.retries,
            "backoff_ms": self.backoff.as_millis(),
            "drain_limit_ms": self.drain_limit.as_millis(),
            "run": self.work,
        })
    }

    /// Two members whose definitions have the same digest do the same.
    pub(crate) fn digest(&self) -> String {
        hex::encode(&Sha256::digest(self.told().to_string())[..8])
    }
}

impl fmt::Display for Missed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Missed::Skip => "skip",
            Missed::RunOnce => "run_once",
            Missed::RunAll => "run_all",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_an_hour_and_end_with_the_retries() {
        let role = RoleName::new("r").expect("a name");
        let schedule = Schedule::new("s", role, "@every 1s").expect("valid");
        assert_eq!(schedule.pause_before(2), None);
        let schedule =
            schedule.retries(20).expect("valid").backoff(Duration::from_secs(5)).expect("valid");
        let pauses: Vec<_> = (2..=5).map(|number| schedule.pause_before(number)).collect();
        let seconds = |s| Some(Duration::from_secs(s));
        assert_eq!(pauses, [seconds(5), seconds(10), seconds(20), seconds(40)]);
        assert_eq!(schedule.pause_before(21), seconds(3600));
        assert_eq!(schedule.pause_before(22), None);
    }

    #[test]
    fn a_digest_changes_with_the_work_and_the_timing_does_not() {
        let role = RoleName::new("r").expect("a name");
        let one = Schedule::new("s", role, "@every 1s").expect("valid");
        let other = one.clone().work("sleep 1".to_owned());
        assert_eq!(one.timing(), other.timing());
        assert_ne!(one.digest(), other.digest());
    }
}
