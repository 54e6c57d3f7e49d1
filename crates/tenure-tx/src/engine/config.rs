//! How patient the engine is, and how far it goes.

use std::time::Duration;

use tenure_core::retry::ExponentialBackoff;

/// How patient the engine is.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// How long the lowest unmined nonce may wait before it is sent again with a higher tip.
    /// Default 60 s; above zero. Below a few block times it pays for nothing; too high delays everything behind it.
    pub stuck_after: Duration,
    /// How long a nonce below others may stay unused before a no-op fills it. Default 30 s.
    /// New requests take a gap first, so this matters only when none come.
    pub gap_after: Duration,
    /// First pause before a resubmission; doubles up to `retry_max`. Default 500 ms; above zero.
    pub retry: Duration,
    /// Longest pause between resubmissions. Default 30 s; at least `retry`.
    pub retry_max: Duration,
    /// How often one nonce may be replaced by a higher tip. Default 10.
    pub max_replacements: u32,
    /// How much each replacement adds to the tip, in percent. Default 25 (most pools ask for 10).
    pub tip_bump_percent: u32,
    /// The least a replacement adds, so that a tip of zero grows. Default 1; at least 1.
    pub min_tip_bump: u128,
    /// The most it may ever tip. Default: no bound but `max_replacements`.
    pub max_tip: u128,
    /// How often a refused transaction is signed anew before its request is given up. Default 3; at
    /// least 1.
    pub max_refusals: u32,
    /// How many transactions may be open before a new one is refused. Default 50,000; at least 1.
    pub max_open: usize,
}

impl Default for EngineConfig {
    fn default() -> Self {
        EngineConfig {
            stuck_after: Duration::from_secs(60),
            gap_after: Duration::from_secs(30),
            retry: Duration::from_millis(500),
            retry_max: Duration::from_secs(30),
            max_replacements: 10,
            tip_bump_percent: 25,
            min_tip_bump: 1,
            max_tip: u128::MAX,
            max_refusals: 3,
            max_open: 50_000,
        }
    }
}

impl EngineConfig {
    /// The pauses between attempts at a node that does not take a transaction.
    pub(crate) fn backoff(&self) -> ExponentialBackoff {
        ExponentialBackoff::new(self.retry, self.retry_max)
    }
}
