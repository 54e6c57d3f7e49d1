//! A retry strategy that is written in Python.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use tenure::{ExponentialBackoff, RetryContext, RetryStrategy};
use tokio::runtime::Handle;
use tokio::task::block_in_place;

/// Where no strategy can be asked, and above which no strategy may wait.
const FALLBACK: ExponentialBackoff =
    ExponentialBackoff::new(Duration::from_millis(200), Duration::from_secs(5));
const LONGEST: Duration = Duration::from_secs(24 * 3600);
/// What a strategy of 0 seconds means: a member that never pauses would do nothing else.
pub(crate) const SHORTEST: Duration = Duration::from_millis(10);

/// How long the member waits for its strategy, in each period of that length.
///
/// A member of one role asks only while that role does not lead, so no lease waits for the answer. A
/// member of many roles may lead others meanwhile: it gives its strategy a fifth of every heartbeat,
/// and has the other four for the heartbeat itself.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    period: Duration,
    share: Duration,
}

impl Patience {
    pub(crate) fn of_one_role() -> Self {
        let long = Duration::from_secs(10);
        Patience { period: long, share: long }
    }

    pub(crate) fn of_many_roles(heartbeat: Duration) -> Self {
        Patience { period: heartbeat, share: heartbeat / 5 }
    }
}

/// Asks a callable: `pace(attempt, elapsed_s, last_error) -> seconds or None`.
///
/// It runs on a thread of the runtime that nothing else depends on, under the interpreter's lock. Where
/// the answer does not come in time, the attempt is paced by the default back-off.
pub(crate) struct PythonStrategy {
    pace: Arc<Py<PyAny>>,
    runtime: Handle,
    patience: Patience,
    /// Since when a period runs, and how much of it was waited for answers.
    waited: Mutex<(Instant, Duration)>,
    /// A question is unanswered: the next one would only queue behind it.
    asking: Arc<AtomicBool>,
}

impl PythonStrategy {
    pub(crate) fn new(pace: Py<PyAny>, runtime: Handle, patience: Patience) -> Self {
        PythonStrategy {
            pace: Arc::new(pace),
            runtime,
            patience,
            waited: Mutex::new((Instant::now(), Duration::ZERO)),
            asking: Arc::default(),
        }
    }

    /// Asks on another thread. The channel is empty until the callable has answered, and closed without an
    /// answer if it raised, or if the interpreter ends.
    fn ask(&self, ctx: &RetryContext) -> Option<Receiver<Option<f64>>> {
        if self.asking.swap(true, Ordering::AcqRel) {
            return None;
        }
        let (answer, answered) = sync_channel(1);
        let (pace, asking) = (self.pace.clone(), self.asking.clone());
        let asked = (ctx.attempt, ctx.elapsed.as_secs_f64(), ctx.last_error.clone());
        self.runtime.spawn_blocking(move || {
            // `None`: the interpreter ends.
            Python::try_attach(|py| {
                let delay = pace.call1(py, asked).and_then(|delay| delay.extract(py));
                if let Ok(delay) = delay {
                    // The member may have gone on without it.
                    let _ = answer.send(delay);
                }
                // An exception: the callable tells the user of it by itself.
            });
            asking.store(false, Ordering::Release);
        });
        Some(answered)
    }

    /// What is left of this period's patience.
    fn left(&self) -> Duration {
        let mut waited = self.waited.lock().unwrap_or_else(PoisonError::into_inner);
        if waited.0.elapsed() >= self.patience.period {
            *waited = (Instant::now(), Duration::ZERO);
        }
        self.patience.share.saturating_sub(waited.1)
    }
}

impl fmt::Debug for PythonStrategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a strategy in Python")
    }
}

impl RetryStrategy for PythonStrategy {
    fn next_delay(
        &self,
        ctx: &RetryContext,
        _prev: Option<Duration>,
        unit_random: f64,
    ) -> Option<Duration> {
        let fallback = Some(FALLBACK.pause(ctx.attempt.max(1), unit_random));
        let left = self.left();
        let answered = match left.is_zero() {
            true => None,
            false => self.ask(ctx),
        };
        let Some(answered) = answered else { return fallback };
        let begun = Instant::now();
        // The other tasks of this thread go on elsewhere meanwhile.
        let answer = block_in_place(|| answered.recv_timeout(left));
        self.waited.lock().unwrap_or_else(PoisonError::into_inner).1 += begun.elapsed();
        match answer {
            Ok(None) => None,
            Ok(Some(seconds)) => {
                let delay = Duration::try_from_secs_f64(seconds).unwrap_or(LONGEST);
                Some(delay.clamp(SHORTEST, LONGEST))
            }
            Err(_) => fallback,
        }
    }
}
