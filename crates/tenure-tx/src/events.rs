//! Two classes of events, and readiness to take over.
//!
//! *Tasks* make a receiver act (submit a proof, answer a storage request): only the leader emits them.
//! *News* only inform (a new block, a forest root): every node emits them.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt as _;
use tenure_core::gate::LeaderGate;
use tokio::sync::broadcast;
use tokio::time::sleep;

use crate::election::{Election, Unready};
use crate::metrics;

/// A bus for an application's own events, within one process. It may be cloned: all clones are one bus.
#[derive(Debug, Clone)]
pub struct EventBus<E> {
    gate: LeaderGate,
    tasks: broadcast::Sender<E>,
    news: broadcast::Sender<E>,
}

impl<E: Clone> EventBus<E> {
    /// A bus that keeps `capacity` events of each class for slow receivers.
    ///
    /// # Panics
    /// If `capacity` is zero.
    #[must_use]
    pub fn new(gate: LeaderGate, capacity: usize) -> Self {
        EventBus {
            gate,
            tasks: broadcast::Sender::new(capacity),
            news: broadcast::Sender::new(capacity),
        }
    }

    /// Emits an event that makes its receivers act, if this node leads. A follower's event is dropped
    /// and counted: the leader emits its own. Returns whether this node led; nothing is kept for receivers
    /// that come later.
    pub fn trigger(&self, event: E) -> bool {
        if !self.gate.is_leader() {
            metrics::count(metrics::TASKS_SUPPRESSED);
            return false;
        }
        // No receiver is no error: there is no task for it.
        let _ = self.tasks.send(event);
        true
    }

    /// Emits an event that only informs.
    pub fn inform(&self, event: E) {
        let _ = self.news.send(event);
    }

    /// The tasks from now on; a receiver that lags is told how many it missed. A receiver that acts checks the gate
    /// again just before it does.
    #[must_use]
    pub fn tasks(&self) -> broadcast::Receiver<E> {
        self.tasks.subscribe()
    }

    /// The news from now on; a receiver that lags is told how many it missed.
    #[must_use]
    pub fn news(&self) -> broadcast::Receiver<E> {
        self.news.subscribe()
    }
}

/// How far a follower's own data is.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Readiness {
    /// It could lead now.
    Ready,
    /// It lacks something, which is named for the log.
    Behind(String),
}

/// Keeps a follower's own data (forest roots, files) up with the leader's.
#[async_trait]
pub trait FollowerSync: Send + Sync + 'static {
    /// Takes the next step and says how far it is. Called again and again while this node follows, with
    /// a pause of [`ServiceOptions::sync_every`](crate::ServiceOptions::sync_every). The future is
    /// dropped at any await when this node's leadership changes. It has no deadline, and until it first
    /// answers this node does not count as ready.
    async fn sync(&self) -> Readiness;
}

/// Runs the hook while this node follows, and tells the election whether it is ready.
pub(crate) async fn keep_ready(
    election: Election,
    hook: std::sync::Arc<dyn FollowerSync>,
    every: Duration,
) {
    let mut changes = election.changes();
    let mut known = None;
    // Nothing is known of its data yet.
    election.set_unready(Unready::Behind, true);
    loop {
        if election.gate().is_leader() {
            // A leader goes on leading, ready or not. Its end is a change; no sender is the end.
            if changes.changed().await.is_err() {
                return;
            }
            continue;
        }
        tokio::select! {
            readiness = AssertUnwindSafe(hook.sync()).catch_unwind() => {
                let readiness = readiness.unwrap_or_else(|_| Readiness::Behind("its check panicked".to_owned()));
                if known.as_ref() != Some(&readiness) {
                    tracing::info!(?readiness, "this follower's own data");
                    election.set_unready(Unready::Behind, readiness != Readiness::Ready);
                    known = Some(readiness);
                }
            }
            // Cancel-safe for us; the hook's contract says that it may be dropped.
            changed = changes.changed() => {
                if changed.is_err() {
                    return;
                }
                continue;
            }
        }
        sleep(every).await;
    }
}
