//! The seat that is taken, and the round trip under way on it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use tenure_connect::line::Unasked;
use tenure_core::clock::Tick;
use tenure_core::protocol::Done;
use tokio::sync::mpsc;

pub(super) type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

pub(super) struct Session<S> {
    seat: Arc<S>,
    heard: mpsc::UnboundedReceiver<Unasked>,
    op: Option<Boxed<Result<Done, String>>>,
    /// When the seat was taken.
    pub(super) since: Tick,
}

/// What a session brings.
pub(super) enum SessionEvent {
    /// The round trip ended.
    Done(Result<Done, String>),
    /// The server said something unasked; nothing: its reader ended.
    Unasked(Option<Unasked>),
}

impl<S> Session<S> {
    pub(super) fn new(seat: S, heard: mpsc::UnboundedReceiver<Unasked>, since: Tick) -> Self {
        Session { seat: Arc::new(seat), heard, op: None, since }
    }

    pub(super) fn seat(&self) -> &S {
        &self.seat
    }

    pub(super) fn is_busy(&self) -> bool {
        self.op.is_some()
    }

    /// Starts a round trip. There is one at a time.
    pub(super) fn start<F>(&mut self, round_trip: impl FnOnce(Arc<S>) -> F)
    where
        F: Future<Output = Result<Done, String>> + Send + 'static,
    {
        self.op = Some(Box::pin(round_trip(self.seat.clone())));
    }

    /// Cancel-safe: `recv` is, and the round trip is kept and only borrowed here.
    pub(super) async fn next(&mut self) -> SessionEvent {
        tokio::select! {
            biased;
            // Before the notifications: any session may send those, and as many as to keep an
            // answer waiting for longer than the lease.
            done = present(self.op.as_mut()) => {
                self.op = None;
                SessionEvent::Done(done)
            }
            heard = self.heard.recv() => SessionEvent::Unasked(heard),
        }
    }

    /// What has been heard already.
    pub(super) fn try_heard(&mut self) -> Option<Unasked> {
        self.heard.try_recv().ok()
    }

    /// The seat itself, if no round trip uses it.
    pub(super) fn into_seat(self) -> Option<S> {
        drop(self.op);
        Arc::into_inner(self.seat)
    }
}

/// Waits for a future that may not be there; never ready without one.
pub(super) async fn present<T>(future: Option<impl Future<Output = T>>) -> T {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}
