//! How long to wait before the next attempt.
//!
//! A strategy is a pure function of what happened so far and one random number. Followers do not
//! rely on it to notice a vacancy (the ring, notifications and the repair poll wake them); it paces
//! attempts against a database that fails.
//!
//! [`ExponentialBackoff`] is also every back-off inside the product: each caller has its own base and
//! longest delay, and asks [`ExponentialBackoff::pause`], or [`ExponentialBackoff::bare`] where nothing is random.

use std::fmt;
use std::time::Duration;

/// What happened so far in this cycle of attempts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetryContext {
    /// Which attempt just failed, counted from 1.
    pub attempt: u32,
    /// The time since the first attempt of the cycle.
    pub elapsed: Duration,
    /// Why the last attempt failed; `None` if the lock was simply held by another.
    pub last_error: Option<String>,
}

/// Decides how long to wait before the next attempt.
pub trait RetryStrategy: Send + Sync + fmt::Debug {
    /// The delay before the next attempt; `None` gives up, which stops the role.
    ///
    /// An attempt to connect counts as a part of the delay: it is between the beginnings of two such attempts, and one
    /// that waited for a silent server for as long is followed by the next at once.
    ///
    /// `prev` is the delay given last in this cycle, `unit_random` a number in `0.0..1.0` drawn by
    /// the caller, so that the strategy itself stays a pure function.
    fn next_delay(
        &self,
        ctx: &RetryContext,
        prev: Option<Duration>,
        unit_random: f64,
    ) -> Option<Duration>;
}

/// `min(base × multiplier^(attempt − 1), max)`, spread by `± jitter`.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct ExponentialBackoff {
    /// The first delay. Default 1 s.
    pub base: Duration,
    /// No delay is longer, jitter included. Default 30 s.
    pub max: Duration,
    /// How much each delay is longer than the one before. Default 2.
    pub multiplier: f64,
    /// The fraction by which a delay is spread either way. Default 0.2; 0 gives the bare formula,
    /// at the price of members that retry in lockstep.
    pub jitter: f64,
}

impl Default for ExponentialBackoff {
    fn default() -> Self {
        ExponentialBackoff::new(Duration::from_secs(1), Duration::from_secs(30))
    }
}

impl ExponentialBackoff {
    /// Doubles from `base` to `max`, spread by a fifth either way.
    pub const fn new(base: Duration, max: Duration) -> Self {
        ExponentialBackoff { base, max, multiplier: 2.0, jitter: 0.2 }
    }

    /// The pause after that many failures in a row; none after no failure.
    ///
    /// `unit_random` is a number in `0.0..1.0`, as for [`RetryStrategy::next_delay`]; 0.5 gives the
    /// bare formula.
    pub fn pause(&self, failures: u32, unit_random: f64) -> Duration {
        let spread = 1.0 + self.jitter * (2.0 * unit_random - 1.0);
        seconds(self.bare(failures).as_secs_f64() * spread, self.max)
    }

    /// As [`pause`](Self::pause), without jitter: for a caller that waits alone, or that has no random numbers.
    pub fn bare(&self, failures: u32) -> Duration {
        let Some(exponent) = failures.checked_sub(1) else { return Duration::ZERO };
        seconds(self.base.as_secs_f64() * self.multiplier.powf(f64::from(exponent)), self.max)
    }
}

impl RetryStrategy for ExponentialBackoff {
    fn next_delay(
        &self,
        ctx: &RetryContext,
        _prev: Option<Duration>,
        unit_random: f64,
    ) -> Option<Duration> {
        Some(self.pause(ctx.attempt.max(1), unit_random))
    }
}

/// The same delay every time, counted as [`RetryStrategy::next_delay`] says.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct FixedInterval {
    /// The delay. Default 5 s.
    pub interval: Duration,
}

impl Default for FixedInterval {
    fn default() -> Self {
        FixedInterval { interval: Duration::from_secs(5) }
    }
}

impl RetryStrategy for FixedInterval {
    fn next_delay(&self, _: &RetryContext, _: Option<Duration>, _: f64) -> Option<Duration> {
        Some(self.interval)
    }
}

/// `min(max, random(base, 3 × previous delay))`: spreads out even members that failed together.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct DecorrelatedJitter {
    /// The shortest delay. Default 1 s.
    pub base: Duration,
    /// The longest delay. Default 30 s.
    pub max: Duration,
}

impl Default for DecorrelatedJitter {
    fn default() -> Self {
        DecorrelatedJitter { base: Duration::from_secs(1), max: Duration::from_secs(30) }
    }
}

impl RetryStrategy for DecorrelatedJitter {
    fn next_delay(
        &self,
        _: &RetryContext,
        prev: Option<Duration>,
        unit_random: f64,
    ) -> Option<Duration> {
        let low = self.base.as_secs_f64();
        let high = (3.0 * prev.unwrap_or(self.base).as_secs_f64()).max(low);
        Some(seconds(low + (high - low) * unit_random, self.max))
    }
}

/// A delay from a float: never above `max`, and `max` for what is no number.
fn seconds(value: f64, max: Duration) -> Duration {
    Duration::try_from_secs_f64(value).unwrap_or(max).min(max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn after(attempt: u32) -> RetryContext {
        RetryContext { attempt, elapsed: Duration::ZERO, last_error: None }
    }

    #[test]
    fn bare_exponential_backoff_doubles_from_one_second_to_thirty() {
        let bare = ExponentialBackoff { jitter: 0.0, ..Default::default() };
        for (attempt, secs) in [(1, 1), (2, 2), (3, 4), (4, 8), (5, 16), (6, 30), (4_000_000, 30)] {
            for random in [0.0, 0.5, 0.99] {
                let delay = bare.next_delay(&after(attempt), None, random);
                assert_eq!(delay, Some(Duration::from_secs(secs)), "attempt {attempt}");
            }
        }
    }

    #[test]
    fn default_backoff_is_spread_by_a_fifth_either_way() {
        let delay = |random| ExponentialBackoff::default().next_delay(&after(2), None, random);
        assert_eq!(delay(0.0), Some(Duration::from_millis(1600)));
        assert_eq!(delay(0.5), Some(Duration::from_millis(2000)));
        assert!(delay(0.999).unwrap() > Duration::from_millis(2390));
    }

    #[test]
    fn a_pause_doubles_with_every_failure_and_ends_at_its_bound() {
        let backoff =
            ExponentialBackoff::new(Duration::from_millis(20), Duration::from_millis(200));
        let pauses: Vec<u128> =
            [0, 1, 2, 3, 4, 5, u32::MAX].map(|n| backoff.pause(n, 0.5).as_millis()).into();
        assert_eq!(pauses, [0, 20, 40, 80, 160, 200, 200]);
        assert_eq!([0, 2, 9].map(|n| backoff.bare(n).as_millis()), [0, 40, 200]);
        assert_eq!(backoff.pause(2, 0.0), Duration::from_millis(32));
        assert_eq!(backoff.pause(9, 0.99), Duration::from_millis(200), "jitter included");
    }

    #[test]
    fn fixed_interval_is_five_seconds_for_ever() {
        for attempt in [1, 2, u32::MAX] {
            let delay = FixedInterval::default().next_delay(&after(attempt), None, 0.7);
            assert_eq!(delay, Some(Duration::from_secs(5)));
        }
    }

    #[test]
    fn decorrelated_jitter_reaches_from_base_to_three_times_the_previous_delay() {
        let strategy = DecorrelatedJitter::default();
        let prev = Some(Duration::from_secs(4));
        assert_eq!(strategy.next_delay(&after(3), prev, 0.0), Some(Duration::from_secs(1)));
        assert_eq!(strategy.next_delay(&after(3), prev, 0.5), Some(Duration::from_millis(6500)));
        let long = Some(Duration::from_secs(29));
        assert_eq!(strategy.next_delay(&after(9), long, 0.9), Some(Duration::from_secs(30)));
    }

    proptest! {
        #[test]
        fn no_strategy_ever_exceeds_its_bounds(
            attempt in 1u32.., prev in proptest::option::of(0u64..60_000), random in 0.0..1.0f64,
        ) {
            let prev = prev.map(Duration::from_millis);
            let ctx = after(attempt);
            let exponential = ExponentialBackoff::default();
            let delay = exponential.next_delay(&ctx, prev, random).unwrap();
            prop_assert!(delay >= exponential.base.mul_f64(0.79) && delay <= exponential.max);
            let jitter = DecorrelatedJitter::default();
            let delay = jitter.next_delay(&ctx, prev, random).unwrap();
            prop_assert!(delay >= jitter.base && delay <= jitter.max);
        }
    }
}
