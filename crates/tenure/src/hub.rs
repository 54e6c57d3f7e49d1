//! What a role's handles and its member share: the state as others may see it, and who is told.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use tenure_core::clock::Tick;
use tenure_core::epoch::Epoch;
use tenure_core::gate::LeaderGate;
use tenure_core::key::{LockKey, RoleName};
use tenure_core::lifecycle::{LockState, Notice};
use tokio::sync::{broadcast, mpsc, watch};

/// Leadership of one role as it changes: true exactly while the gate is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeaderStateChanged {
    /// Whether this process leads.
    pub is_leader: bool,
    /// The epoch under which it leads, or led last.
    pub epoch: Option<Epoch>,
}

impl LeaderStateChanged {
    /// For an election of another kind.
    pub const fn new(is_leader: bool, epoch: Option<Epoch>) -> Self {
        LeaderStateChanged { is_leader, epoch }
    }
}

/// Something a role's lifecycle did.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Event {
    /// The role.
    pub role: RoleName,
    /// What happened.
    pub notice: Notice,
    /// When, on the member's clock.
    pub at: Tick,
}

/// What a role looks like from outside.
#[derive(Debug, Clone, Copy)]
pub(crate) struct View {
    pub(crate) state: LockState,
}

/// How many events may wait for a slow callback.
const CALLBACK_BACKLOG: usize = 1024;

type Callback = Arc<dyn Fn(&Notice) + Send + Sync>;

/// Shared by the handles of a role, its member and its dispatcher.
pub(crate) struct Hub {
    pub(crate) name: RoleName,
    pub(crate) key: LockKey,
    pub(crate) gate: LeaderGate,
    pub(crate) view: watch::Sender<View>,
    pub(crate) leading: watch::Sender<LeaderStateChanged>,
    pub(crate) deadline: watch::Sender<Option<Tick>>,
    pub(crate) events: broadcast::Sender<Event>,
    callbacks: Mutex<Vec<Callback>>,
    dispatch: mpsc::Sender<Event>,
}

impl Hub {
    /// Also starts the role's dispatcher, which ends with the last handle.
    pub(crate) fn new(name: RoleName, key: LockKey, gate: LeaderGate) -> Arc<Self> {
        let (dispatch, inbox) = mpsc::channel(CALLBACK_BACKLOG);
        let hub = Arc::new(Hub {
            name,
            key,
            gate,
            view: watch::Sender::new(View { state: LockState::Stopped }),
            leading: watch::Sender::new(LeaderStateChanged { is_leader: false, epoch: None }),
            deadline: watch::Sender::new(None),
            // A subscriber that falls behind this far misses events and is told so; the watches
            // above always carry the latest state.
            events: broadcast::Sender::new(64),
            callbacks: Mutex::new(Vec::new()),
            dispatch,
        });
        tokio::spawn(run_callbacks(Arc::downgrade(&hub), inbox));
        hub
    }

    pub(crate) fn add_callback(&self, callback: Callback) {
        self.callbacks.lock().unwrap_or_else(PoisonError::into_inner).push(callback);
    }

    fn callbacks(&self) -> Vec<Callback> {
        self.callbacks.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Tells everybody, without waiting for anybody.
    pub(crate) fn tell(&self, notice: Notice, at: Tick) {
        if let Notice::StateChange { to, .. } = &notice {
            self.view.send_replace(View { state: *to });
        }
        let event = Event { role: self.name.clone(), notice, at };
        let _ = self.events.send(event.clone());
        if let Err(mpsc::error::TrySendError::Full(lost)) = self.dispatch.try_send(event) {
            // Only behind a callback that does not return. The watches above stay true.
            tracing::error!(role = %lost.role, "callbacks are stuck; one event is not told to them");
        }
    }

    pub(crate) fn set_leading(&self, epoch: Option<Epoch>) {
        if epoch.is_some() {
            // Before anybody hears of the open gate: who then asks to step down must find a leader.
            self.view.send_replace(View { state: LockState::Leader });
        }
        self.leading.send_if_modified(|now| {
            let next =
                LeaderStateChanged { is_leader: epoch.is_some(), epoch: epoch.or(now.epoch) };
            let changed = *now != next;
            *now = next;
            changed
        });
        self.publish_deadline();
    }

    /// The gate has opened or shut, or a heartbeat has moved its deadline.
    pub(crate) fn publish_deadline(&self) {
        if self.deadline.receiver_count() == 0 {
            return;
        }
        let new = self.gate.require_leader().ok().map(|token| token.deadline());
        self.deadline.send_if_modified(|now| std::mem::replace(now, new) != new);
    }
}

/// Runs the user's callbacks in order, off the lifecycle: a slow one delays only later callbacks,
/// a panicking one becomes an `Error` notice.
async fn run_callbacks(hub: std::sync::Weak<Hub>, mut inbox: mpsc::Receiver<Event>) {
    while let Some(event) = inbox.recv().await {
        let Some(callbacks) = hub.upgrade().map(|hub| hub.callbacks()) else { return };
        if callbacks.is_empty() {
            continue;
        }
        // On a blocking thread: a callback that blocks must not hold up a beat, not even on a
        // single-threaded runtime.
        let run = tokio::task::spawn_blocking(move || {
            for callback in &callbacks {
                if let Err(panic) = catch_unwind(AssertUnwindSafe(|| callback(&event.notice))) {
                    let text = panic
                        .downcast_ref::<&str>()
                        .map(|text| (*text).to_owned())
                        .or_else(|| panic.downcast_ref::<String>().cloned())
                        .unwrap_or_else(|| "no message".to_owned());
                    tracing::error!(role = %event.role, "a callback panicked: {text}");
                    if !matches!(event.notice, Notice::Error(_)) {
                        let error = Notice::Error(format!("a callback panicked: {text}"));
                        for other in &callbacks {
                            let _ = catch_unwind(AssertUnwindSafe(|| other(&error)));
                        }
                    }
                }
            }
        });
        let _ = run.await;
    }
}
