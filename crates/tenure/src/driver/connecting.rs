//! The way to the next seat: one attempt at a time, with growing pauses.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::clock::Tick;
use tenure_core::retry::{RetryContext, RetryStrategy};

use super::database::Taken;
use super::session::{Boxed, present};
use crate::error::TenureError;

/// After a strategy that gave up at its first question.
const LAST_PAUSE: Duration = Duration::from_secs(1);

pub(super) struct Connecting<S> {
    attempt: Option<Boxed<Result<Taken<S>, TenureError>>>,
    /// When the attempt began that has failed, or is under way.
    started: Option<Tick>,
    strategy: Arc<dyn RetryStrategy>,
    retry_at: Tick,
    /// Attempts that failed, and seats that did not last, since the last one that did.
    failures: u32,
    /// When the first of them began, and the pause after the last.
    began: Tick,
    pause: Option<Duration>,
    /// The last trouble with the database.
    pub(super) trouble: Option<String>,
}

impl<S> Connecting<S> {
    pub(super) fn new(strategy: Arc<dyn RetryStrategy>) -> Self {
        Connecting {
            attempt: None,
            started: None,
            strategy,
            retry_at: Tick::ZERO,
            failures: 0,
            began: Tick::ZERO,
            pause: None,
            trouble: None,
        }
    }

    /// When the next attempt is due; none while one is under way.
    pub(super) fn due_at(&self) -> Option<Tick> {
        self.attempt.is_none().then_some(self.retry_at)
    }

    pub(super) fn start(&mut self, attempt: Boxed<Result<Taken<S>, TenureError>>, now: Tick) {
        self.attempt = Some(attempt);
        self.started = Some(now);
    }

    /// The end of the attempt under way. Cancel-safe: it is kept and only borrowed here.
    pub(super) async fn next(&mut self) -> Result<Taken<S>, TenureError> {
        let taken = present(self.attempt.as_mut()).await;
        self.attempt = None;
        self.started = self.started.filter(|_| taken.is_err());
        taken
    }

    pub(super) fn failed(&mut self, trouble: String, now: Tick) {
        if self.failures == 0 {
            (self.began, self.pause) = (now, None);
        }
        self.failures = self.failures.saturating_add(1);
        let context = RetryContext {
            attempt: self.failures,
            elapsed: now.saturating_since(self.began),
            last_error: Some(trouble.clone()),
        };
        self.trouble = Some(trouble);
        // A strategy that gives up stops the roles, each by itself; for a role that goes on, or is
        // started later, the last pause serves.
        let next = self.strategy.next_delay(&context, self.pause, rand::random());
        let pause = next.or(self.pause).unwrap_or(LAST_PAUSE);
        self.pause = Some(pause);
        // The pause is between the beginnings: the time for which an attempt waited for a silent server counts.
        self.retry_at = now.max(self.started.take().unwrap_or(now) + pause);
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
