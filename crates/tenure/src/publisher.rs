//! What the driver publishes of a role: its state, its events, its callbacks.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use tenure_core::clock::Tick;
use tenure_core::epoch::Epoch;
use tenure_core::gate::LeaderGate;
use tenure_core::key::{LockKey, RoleName};
use tenure_core::lifecycle::{LockState, Notice};
use tokio::runtime::Handle;
use tokio::sync::futures::Notified;
use tokio::sync::{Notify, broadcast, mpsc, watch};

use crate::error::TenureError;

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
    /// The role whose lifecycle it is.
    pub role: RoleName,
    /// What happened.
    pub notice: Notice,
    /// When, on the member's clock.
    pub at: Tick,
}

/// What a role looks like from outside.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RoleView {
    pub(crate) state: LockState,
    pub(crate) leading: LeaderStateChanged,
}

/// How many events may wait for a slow callback.
const CALLBACK_BACKLOG: usize = 1024;
/// How many events may wait for a slow subscriber. One that falls behind this far misses events and
/// is told so; the watches always carry the latest state.
const SUBSCRIBER_BACKLOG: usize = 64;

type Callback = Arc<dyn Fn(&Notice) + Send + Sync>;

/// What the driver publishes of one role to its handles. Subscribers, watches and callbacks cost memory
/// only where there are any: a member may have ten thousand roles.
pub(crate) struct Publisher {
    pub(crate) name: RoleName,
    pub(crate) key: LockKey,
    pub(crate) gate: LeaderGate,
    view: Mutex<RoleView>,
    /// Wakes the tasks that wait for another view, or for a gate that opens.
    changed: Notify,
    leading: OnceLock<watch::Sender<LeaderStateChanged>>,
    deadline: OnceLock<watch::Sender<Option<Tick>>>,
    events: OnceLock<broadcast::Sender<Event>>,
    callbacks: OnceLock<Callbacks>,
    runtime: Handle,
    /// Why the database refused the last registration; boxed, as there may be ten thousand roles.
    refusal: Mutex<Option<Box<TenureError>>>,
}

/// The callbacks of a role, and the way to the task that runs them.
struct Callbacks {
    list: Arc<Mutex<Vec<Callback>>>,
    inbox: mpsc::Sender<Event>,
}

impl Publisher {
    /// # Panics
    /// Outside a Tokio runtime, on which callbacks will run.
    pub(crate) fn new(name: RoleName, key: LockKey, gate: LeaderGate) -> Arc<Self> {
        Arc::new(Publisher {
            name,
            key,
            gate,
            view: Mutex::new(RoleView {
                state: LockState::Stopped,
                leading: LeaderStateChanged::new(false, None),
            }),
            changed: Notify::new(),
            leading: OnceLock::new(),
            deadline: OnceLock::new(),
            events: OnceLock::new(),
            callbacks: OnceLock::new(),
            runtime: Handle::current(),
            refusal: Mutex::new(None),
        })
    }

    pub(crate) fn view(&self) -> RoleView {
        *self.view.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends with the next change of the view or of the gate's deadline after this call, not after the
    /// first poll: so whatever is looked at in between is not missed.
    pub(crate) fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }

    /// Waits for such a view. Cancel-safe.
    pub(crate) async fn until(&self, so: impl Fn(RoleView) -> bool) {
        loop {
            let changed = self.changed();
            if so(self.view()) {
                return;
            }
            changed.await;
        }
    }

    /// Under the view's lock, so that the watch follows every change from its beginning on.
    pub(crate) fn watch_leading(&self) -> watch::Receiver<LeaderStateChanged> {
        let view = self.view.lock().unwrap_or_else(PoisonError::into_inner);
        self.leading.get_or_init(|| watch::Sender::new(view.leading)).subscribe()
    }

    fn set_state(&self, state: LockState) {
        self.view.lock().unwrap_or_else(PoisonError::into_inner).state = state;
        self.changed.notify_waiters();
    }

    pub(crate) fn subscribe(&self) -> broadcast::Receiver<Event> {
        self.events.get_or_init(|| broadcast::Sender::new(SUBSCRIBER_BACKLOG)).subscribe()
    }

    pub(crate) fn watch_deadline(&self) -> watch::Receiver<Option<Tick>> {
        let deadline = self.deadline.get_or_init(|| watch::Sender::new(None)).subscribe();
        self.publish_deadline();
        deadline
    }

    pub(crate) fn add_callback(&self, callback: Callback) {
        let callbacks = self.callbacks.get_or_init(|| {
            let (inbox, events) = mpsc::channel(CALLBACK_BACKLOG);
            let list = Arc::default();
            // Ends with the publisher, and so with the last handle.
            self.runtime.spawn(run_callbacks(Arc::clone(&list), events));
            Callbacks { list, inbox }
        });
        callbacks.list.lock().unwrap_or_else(PoisonError::into_inner).push(callback);
    }

    /// Tells subscribers and callbacks, without waiting for any of them.
    pub(crate) fn publish(&self, notice: Notice, at: Tick) {
        if let Notice::StateChange { to, .. } = &notice {
            self.set_state(*to);
        }
        let event = Event { role: self.name.clone(), notice, at };
        if let Some(callbacks) = self.callbacks.get()
            && let Err(mpsc::error::TrySendError::Full(lost)) =
                callbacks.inbox.try_send(event.clone())
        {
            // Only behind a callback that does not return. The watches above stay true.
            tracing::error!(role = %lost.role, "callbacks are stuck; one event is not told to them");
        }
        if let Some(events) = self.events.get() {
            let _ = events.send(event);
        }
    }

    pub(crate) fn set_refusal(&self, refusal: Option<TenureError>) {
        *self.refusal.lock().unwrap_or_else(PoisonError::into_inner) = refusal.map(Box::new);
    }

    pub(crate) fn refusal(&self) -> Option<TenureError> {
        let refusal = self.refusal.lock().unwrap_or_else(PoisonError::into_inner);
        refusal.as_deref().cloned()
    }

    pub(crate) fn set_leading(&self, epoch: Option<Epoch>) {
        let mut view = self.view.lock().unwrap_or_else(PoisonError::into_inner);
        if epoch.is_some() {
            // With the open gate: a step-down that follows must find a leader.
            view.state = LockState::Leader;
        }
        view.leading = LeaderStateChanged::new(epoch.is_some(), epoch.or(view.leading.epoch));
        if let Some(leading) = self.leading.get() {
            let next = view.leading;
            leading.send_if_modified(|now| std::mem::replace(now, next) != next);
        }
        drop(view);
        self.publish_deadline();
    }

    /// The driver has ended: handles find the role stopped.
    pub(crate) fn stop(&self) {
        self.set_state(LockState::Stopped);
        self.set_leading(None);
    }

    /// The gate has opened or shut, or a heartbeat has moved its deadline.
    pub(crate) fn publish_deadline(&self) {
        self.changed.notify_waiters();
        let Some(deadline) = self.deadline.get().filter(|sender| sender.receiver_count() > 0)
        else {
            return;
        };
        let new = self.gate.peek().ok().map(|token| token.deadline());
        deadline.send_if_modified(|now| std::mem::replace(now, new) != new);
    }
}

/// Runs the user's callbacks in order, off the lifecycle: a slow one delays only later callbacks,
/// a panicking one becomes an `Error` notice.
async fn run_callbacks(list: Arc<Mutex<Vec<Callback>>>, mut events: mpsc::Receiver<Event>) {
    while let Some(event) = events.recv().await {
        let callbacks = list.lock().unwrap_or_else(PoisonError::into_inner).clone();
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
