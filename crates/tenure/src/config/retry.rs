//! The retry strategy as configured.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::retry::{DecorrelatedJitter, ExponentialBackoff, FixedInterval, RetryStrategy};

use super::ConfigError;
use super::written::{Retry, Strategy};

/// What is paced, with the shortest and the longest delay where nothing is written.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    base: Duration,
    max: Duration,
}

impl Pace {
    /// Claims. Hints wake a follower long before its back-off does.
    pub(super) const CLAIMS: Pace =
        Pace { base: Duration::from_millis(200), max: Duration::from_secs(5) };

    /// Attempts to connect: a member that sleeps for long comes back that much later after an outage.
    pub(super) const fn connecting(heartbeat: Duration) -> Pace {
        Pace { base: Duration::from_millis(40), max: heartbeat }
    }
}

pub(super) fn validate(written: &Retry, pace: Pace) -> Result<Arc<dyn RetryStrategy>, ConfigError> {
    let strategy = written.strategy.unwrap_or(match written.interval {
        Some(_) if written.base.is_none() => Strategy::Fixed,
        _ => Strategy::Exponential,
    });
    // A setting that the strategy ignores is a misunderstanding.
    let unused = match strategy {
        Strategy::Exponential => [written.interval.map(|_| "interval"), None, None],
        Strategy::Fixed => [
            written.base.or(written.max).map(|_| "base"),
            written.multiplier.map(|_| "multiplier"),
            written.jitter.map(|_| "jitter"),
        ],
        Strategy::Jitter => [
            written.interval.map(|_| "interval"),
            written.multiplier.map(|_| "multiplier"),
            written.jitter.map(|_| "jitter"),
        ],
    };
    if let Some(name) = unused.into_iter().flatten().next() {
        return Err(field(name, "absent with this strategy", "the strategy does not use it"));
    }
    let period = |value: Option<super::period::Period>, default| value.map_or(default, |p| p.0);
    let max = period(written.max, pace.max.max(period(written.base, pace.base)));
    let base = period(written.base, pace.base.min(max));
    if base.is_zero() {
        return Err(field("base", "above 0", "a failing database would be asked without a pause"));
    }
    if max < base {
        return Err(field("max", "at least base", "it is the longest delay"));
    }
    Ok(match strategy {
        Strategy::Exponential => {
            let multiplier = written.multiplier.unwrap_or(2.0);
            if !(1.0..=100.0).contains(&multiplier) {
                return Err(field("multiplier", "between 1 and 100", "delays must not shrink"));
            }
            let jitter = written.jitter.unwrap_or(0.2);
            if !(0.0..=1.0).contains(&jitter) {
                return Err(field("jitter", "between 0 and 1", "it is a fraction of the delay"));
            }
            Arc::new(ExponentialBackoff { base, max, multiplier, jitter })
        }
        Strategy::Fixed => {
            let interval = period(written.interval, FixedInterval::default().interval);
            if interval.is_zero() {
                return Err(field(
                    "interval",
                    "above 0",
                    "a failing database would be asked without a pause",
                ));
            }
            Arc::new(FixedInterval { interval })
        }
        Strategy::Jitter => Arc::new(DecorrelatedJitter { base, max }),
    })
}

fn field(name: &str, bound: &str, reason: &'static str) -> ConfigError {
    ConfigError::Field { field: format!("retry.{name}"), bound: bound.to_owned(), reason }
}
