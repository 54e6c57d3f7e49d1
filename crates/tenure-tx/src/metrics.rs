//! The names of this crate's metrics: contract, in one place.

use metrics::{counter, gauge, histogram};

/// Counter: transactions accepted (stored under our epoch).
pub const ACCEPTED: &str = "tenure_tx_accepted_total";
/// Counter: sends refused because this node does not lead.
pub const REFUSED_NOT_LEADER: &str = "tenure_tx_refused_not_leader_total";
/// Counter: submissions to the chain's node, by `outcome`.
pub const SUBMISSIONS: &str = "tenure_tx_submissions_total";
/// Counter: transactions whose duty ended, by `end`.
pub const ENDED: &str = "tenure_tx_ended_total";
/// Counter: ends that were told and that the chain proved wrong.
pub const CORRECTED: &str = "tenure_tx_corrected_total";
/// Counter: further attempts that were begun for a nonce that had one.
pub const REPLACEMENTS: &str = "tenure_tx_replacements_total";
/// Counter: task events a follower did not emit.
pub const TASKS_SUPPRESSED: &str = "tenure_tx_task_events_suppressed_total";
/// Counter: acts whose lease ended before their answer came.
pub const UNCERTAIN: &str = "tenure_tx_uncertain_submissions_total";
/// Gauge: open transactions of the leader.
pub const OPEN: &str = "tenure_tx_open";
/// Gauge: 1 while this node's view of the table is stale.
pub const VIEW_STALE: &str = "tenure_tx_view_stale";
/// Gauge: nonces whose last answer of the chain's node says nothing for certain.
pub const UNCERTAIN_NONCES: &str = "tenure_tx_uncertain_nonces";
/// Gauge: nonces that the account cannot pay for.
pub const UNFUNDED_NONCES: &str = "tenure_tx_unfunded_nonces";
/// Gauge: 1 while the chain's base fee is above the cap on fees.
pub const FEE_ABOVE_CAP: &str = "tenure_tx_fee_above_cap";
/// Gauge: for how many seconds the lowest nonce in no block has been the lowest; 0 if there is none.
pub const LOWEST_OPEN: &str = "tenure_tx_lowest_open_seconds";
/// Gauge: what the account owns, in the chain's smallest unit.
pub const BALANCE: &str = "tenure_tx_balance";
/// Gauge: 1 while this node reaches no node of its chain.
pub const CHAIN_LOST: &str = "tenure_tx_chain_lost";
/// Histogram: rows per commit.
pub const BATCH: &str = "tenure_tx_rows_per_commit";

/// Registers the counters and gauges without labels at zero: an alert on a rate needs the first step.
/// Call it once, after the recorder is installed.
pub fn begin_at_zero() {
    for name in [ACCEPTED, REFUSED_NOT_LEADER, CORRECTED, REPLACEMENTS, TASKS_SUPPRESSED, UNCERTAIN]
    {
        counter!(name).increment(0);
    }
    set(OPEN, 0);
    set(VIEW_STALE, 0);
    set(UNCERTAIN_NONCES, 0);
    set(UNFUNDED_NONCES, 0);
    set(FEE_ABOVE_CAP, 0);
    set(LOWEST_OPEN, 0);
    set(CHAIN_LOST, 0);
}

pub(crate) fn count(name: &'static str) {
    counter!(name).increment(1);
}

pub(crate) fn count_by(name: &'static str, label: &'static str, value: &'static str) {
    counter!(name, label => value).increment(1);
}

#[allow(clippy::cast_precision_loss, reason = "a gauge is a float")]
pub(crate) fn set(name: &'static str, value: usize) {
    gauge!(name).set(value as f64);
}

#[allow(clippy::cast_precision_loss, reason = "a gauge is a float")]
pub(crate) fn set_amount(name: &'static str, amount: u128) {
    gauge!(name).set(amount as f64);
}

pub(crate) fn set_seconds(name: &'static str, time: std::time::Duration) {
    gauge!(name).set(time.as_secs_f64());
}

#[allow(clippy::cast_precision_loss, reason = "a histogram is of floats")]
pub(crate) fn observe(name: &'static str, value: usize) {
    histogram!(name).record(value as f64);
}
