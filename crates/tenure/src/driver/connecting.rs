//! The way to the next seat: one attempt at a time, with growing pauses.

use std::time::Duration;

use tenure_core::clock::Tick;
use tenure_core::lease::Lease;
use tenure_core::retry::ExponentialBackoff;

use super::database::Taken;
use super::session::{Boxed, present};
use crate::error::TenureError;

pub(super) struct Connecting<S> {
    attempt: Option<Boxed<Result<Taken<S>, TenureError>>>,
    backoff: ExponentialBackoff,
    retry_at: Tick,
    /// Attempts that failed, and seats that did not last, since the last one that did.
    failures: u32,
    /// The last trouble with the database.
    pub(super) trouble: Option<String>,
}

impl<S> Connecting<S> {
    /// From 40 ms, doubled, spread, never much above the heartbeat interval.
    pub(super) fn new(lease: &Lease) -> Self {
        let backoff = ExponentialBackoff {
            base: Duration::from_millis(40),
            max: lease.heartbeat(),
            jitter: 0.2,
            ..ExponentialBackoff::default()
        };
        Connecting { attempt: None, backoff, retry_at: Tick::ZERO, failures: 0, trouble: None }
    }

    /// When the next attempt is due; none while one is under way.
    pub(super) fn due_at(&self) -> Option<Tick> {
        self.attempt.is_none().then_some(self.retry_at)
    }

    pub(super) fn start(&mut self, attempt: Boxed<Result<Taken<S>, TenureError>>) {
        self.attempt = Some(attempt);
    }

    /// The end of the attempt under way. Cancel-safe: it is kept and only borrowed here.
    pub(super) async fn next(&mut self) -> Result<Taken<S>, TenureError> {
        let taken = present(self.attempt.as_mut()).await;
        self.attempt = None;
        taken
    }

    pub(super) fn failed(&mut self, trouble: String, now: Tick) {
        self.trouble = Some(trouble);
        self.failures = self.failures.saturating_add(1);
        self.retry_at = now + self.backoff.pause(self.failures, rand::random());
    }

    /// The setup was refused: an operator has to change it first.
    pub(super) fn refused(&mut self, pause: Duration, now: Tick) {
        self.retry_at = now + pause;
    }

    /// A seat that had lasted was lost: the next attempt is made at once.
    pub(super) fn lost(&mut self, trouble: String, now: Tick) {
        self.trouble = Some(trouble);
        self.failures = 0;
        self.retry_at = now;
    }
}
