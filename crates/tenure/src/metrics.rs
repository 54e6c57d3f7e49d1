//! Metrics and the `tracing` events of transitions: names are contract.
//!
//! | name | kind | labels | what |
//! |---|---|---|---|
//! | `tenure_acquired_total` | counter | role | terms that began |
//! | `tenure_lost_total` | counter | role | terms that ended otherwise than asked for |
//! | `tenure_released_total` | counter | role | terms that ended as asked for |
//! | `tenure_acquire_attempts_total` | counter | role | claims |
//! | `tenure_acts_refused_total` | counter | role | acts that the gate refused (`require_leader`, `ensure_epoch`, `begin_act`) |
//! | `tenure_is_leader` | gauge | role | 1 while the gate is open |
//! | `tenure_epoch` | gauge | role | the epoch of the last term led here |
//! | `tenure_heartbeat_age_seconds` | gauge | – | since the last successful round trip was sent |
//! | `tenure_acquire_seconds` | histogram | – | round trips that claimed |
//! | `tenure_heartbeat_seconds` | histogram | – | round trips that were heartbeats |
//! | `tenure_tenure_seconds` | gauge | role | how long the term has lasted, late heartbeats and recovered sessions included; 0 without one |
//! | `tenure_failovers_total` | counter | role | terms taken over from a holder that did not release |
//! | `tenure_late_total` | counter | role | gates shut because a heartbeat was late |
//! | `tenure_errors_total` | counter | role | errors told |
//! | `tenure_connected` | gauge | – | 1 while the seat is taken |
//! | `tenure_leader_stale` | gauge | role | 1 while the leader has been silent for too long |
//!
//! What other systems call them: `docs/metrics.md`.
//!
//! They go to the recorder of the crate `metrics`: install one before the first role is added, because
//! every series of a role begins at zero there. Times are in seconds, as Prometheus wants it. The events
//! of transitions go to `tracing`, with role, member, key, epoch and reason as fields.

use std::time::Duration;

use metrics::{counter, gauge, histogram};
use tenure_core::epoch::Epoch;
use tenure_core::key::{LockKey, RoleName};
use tenure_core::lifecycle::Notice;

use tenure_core::protocol::Op;

/// Every metric's name, in the order of the table above.
pub const NAMES: &[&str] = &[
    "tenure_acquired_total",
    "tenure_lost_total",
    "tenure_released_total",
    "tenure_acquire_attempts_total",
    "tenure_acts_refused_total",
    "tenure_is_leader",
    "tenure_epoch",
    "tenure_heartbeat_age_seconds",
    "tenure_acquire_seconds",
    "tenure_heartbeat_seconds",
    "tenure_tenure_seconds",
    "tenure_failovers_total",
    "tenure_late_total",
    "tenure_errors_total",
    "tenure_connected",
    "tenure_leader_stale",
];

fn label(role: &RoleName) -> String {
    role.as_str().to_owned()
}

/// A role that is new to this process has every series of its own, from zero: an alert on a series that
/// is not there yet never fires.
pub(crate) fn role_added(role: &RoleName) {
    for name in [
        "tenure_acquired_total",
        "tenure_lost_total",
        "tenure_released_total",
        "tenure_acquire_attempts_total",
        "tenure_acts_refused_total",
        "tenure_failovers_total",
        "tenure_late_total",
        "tenure_errors_total",
    ] {
        counter!(name, "role" => label(role)).increment(0);
    }
    for name in ["tenure_is_leader", "tenure_epoch", "tenure_tenure_seconds", "tenure_leader_stale"]
    {
        gauge!(name, "role" => label(role)).set(0.0);
    }
}

pub(crate) fn gate(role: &RoleName, epoch: Option<Epoch>) {
    gauge!("tenure_is_leader", "role" => label(role)).set(if epoch.is_some() { 1.0 } else { 0.0 });
    if let Some(epoch) = epoch {
        gauge!("tenure_epoch", "role" => label(role)).set(epoch.get() as f64);
    }
}

pub(crate) fn connected(yes: bool) {
    gauge!("tenure_connected").set(if yes { 1.0 } else { 0.0 });
}

pub(crate) fn heartbeat_age(age: Duration) {
    gauge!("tenure_heartbeat_age_seconds").set(age.as_secs_f64());
}

pub(crate) fn tenure(role: &RoleName, held: Duration) {
    gauge!("tenure_tenure_seconds", "role" => label(role)).set(held.as_secs_f64());
}

pub(crate) fn failover(role: &RoleName) {
    counter!("tenure_failovers_total", "role" => label(role)).increment(1);
}

pub(crate) fn leader_stale(role: &RoleName, stale: bool) {
    gauge!("tenure_leader_stale", "role" => label(role)).set(if stale { 1.0 } else { 0.0 });
}

pub(crate) fn act_refused(role: &RoleName) {
    counter!("tenure_acts_refused_total", "role" => label(role)).increment(1);
}

pub(crate) fn round_trip(op: &Op, took: Duration, succeeded: bool) {
    match op {
        Op::Claim { rows, .. } => {
            for row in rows {
                counter!("tenure_acquire_attempts_total", "role" => label(&row.role)).increment(1);
            }
            if succeeded {
                histogram!("tenure_acquire_seconds").record(took.as_secs_f64());
            }
        }
        Op::Beat | Op::Inspect(_) => {
            if succeeded {
                histogram!("tenure_heartbeat_seconds").record(took.as_secs_f64());
            }
        }
        Op::Register(_) | Op::MarkActing(_) | Op::Release(_) | Op::LeaveSeat => {}
    }
}

/// Counts and logs what a lifecycle says, with role, member, epoch, key and reason, and on `acquired` the
/// number of the attempt that won. An error that is `logged` already is no second warning.
pub(crate) fn notice(
    role: &RoleName,
    member: &str,
    key: LockKey,
    epoch: Option<Epoch>,
    attempt: u32,
    notice: &Notice,
    logged: bool,
) {
    let now = epoch.map_or(0, Epoch::get);
    match notice {
        Notice::StateChange { from, to } => {
            tracing::info!(%role, member, %key, epoch = now, %from, %to, "state_change");
        }
        Notice::Acquired { epoch } => {
            counter!("tenure_acquired_total", "role" => label(role)).increment(1);
            let reason = "the lock is won and no other gate is open";
            tracing::info!(%role, member, %key, epoch = epoch.get(), attempt, reason, "acquired");
        }
        Notice::Released { epoch } => {
            counter!("tenure_released_total", "role" => label(role)).increment(1);
            let reason = "asked for";
            tracing::info!(%role, member, %key, epoch = epoch.get(), reason, "released");
        }
        Notice::Lost { epoch, reason } => {
            counter!("tenure_lost_total", "role" => label(role)).increment(1);
            tracing::warn!(%role, member, %key, epoch = epoch.get(), %reason, "lost");
        }
        Notice::AcquireFailed { why } => {
            tracing::debug!(%role, member, %key, epoch = now, reason = %why, "acquire_failed");
        }
        Notice::Error(error) if logged => {
            counter!("tenure_errors_total", "role" => label(role)).increment(1);
            tracing::debug!(%role, member, %key, epoch = now, reason = %error, "error");
        }
        Notice::Error(error) => {
            counter!("tenure_errors_total", "role" => label(role)).increment(1);
            tracing::warn!(%role, member, %key, epoch = now, reason = %error, "error");
        }
        Notice::Stopped => {
            let reason = "asked for, or nothing more to try";
            tracing::info!(%role, member, %key, epoch = now, reason, "stopped");
        }
        Notice::Late { epoch } => {
            counter!("tenure_late_total", "role" => label(role)).increment(1);
            let reason = "no heartbeat succeeded within the lease";
            tracing::warn!(%role, member, %key, epoch = epoch.get(), reason, "late");
        }
        Notice::Well { epoch } => {
            let reason = "a heartbeat confirmed lock and epoch";
            tracing::info!(%role, member, %key, epoch = epoch.get(), reason, "well");
        }
        Notice::Recovered { epoch } => {
            let reason = "won back within the grace period";
            tracing::info!(%role, member, %key, epoch = epoch.get(), reason, "recovered");
        }
    }
}
