//! How patient the engine is, and how far it goes.

use std::time::Duration;

use tenure_core::retry::ExponentialBackoff;

/// When a transaction is sent again, replaced or given up, and how many may be open. Part of
/// [`ServiceOptions`](crate::ServiceOptions), which checks the bounds.
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
    /// How often one nonce may be replaced by a higher tip although it offers as much as the chain
    /// asks. Default 10. A base fee that outgrew the offer is followed however often it does, up to
    /// the caps.
    pub max_replacements: u32,
    /// The least time between two replacements of one nonce; a new block must have come as well.
    /// Default 10 s.
    pub replace_every: Duration,
    /// How much each replacement adds to the tip, in percent. Default 25 (most pools ask for 10).
    pub tip_bump_percent: u32,
    /// The least a replacement adds, in the unit of the tip, so that a tip of zero grows. Default 1; at least
    /// 1.
    pub min_tip_bump: u128,
    /// The most an attempt may ever tip. Default: no bound here; the signer's caps on fees hold as well.
    pub max_tip: u128,
    /// The tip of a no-op that fills a gap, if the chain's recent blocks were not tipped more. Default
    /// 0; the service raises it to [`ServiceOptions::tip`](crate::ServiceOptions::tip).
    pub filler_tip: u128,
    /// How often a transaction that no node can have is signed anew after a refusal, before its
    /// request is given up. Default 3; at least 1.
    pub max_refusals: u32,
    /// How many blocks must become final, all attempts missing, before a used nonce is called
    /// uncertain aloud, and before an order to drop it ends it. Default 12.
    pub missing_blocks: u64,
    /// How much time must pass as well: some chains make twelve blocks in three seconds, and a node
    /// indexes its past at its own pace. Default 60 s.
    pub missing_for: Duration,
    /// How many transactions may be open before a new one is refused; as many requests may wait for the table or the
    /// chain to be read. Default 50,000; at least 1.
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
            replace_every: Duration::from_secs(10),
            tip_bump_percent: 25,
            min_tip_bump: 1,
            max_tip: u128::MAX,
            filler_tip: 0,
            max_refusals: 3,
            missing_blocks: 12,
            missing_for: Duration::from_secs(60),
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
