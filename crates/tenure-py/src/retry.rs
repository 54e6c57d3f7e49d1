//! A retry strategy that is written in Python.

use std::fmt;
use std::time::Duration;

use pyo3::prelude::*;
use tenure::{ExponentialBackoff, RetryContext, RetryStrategy};

/// Where no strategy can be asked, and above which no strategy may wait.
const FALLBACK: ExponentialBackoff =
    ExponentialBackoff::new(Duration::from_millis(200), Duration::from_secs(5));
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// Asks a callable: `pace(attempt, elapsed_s, last_error) -> seconds or None`.
///
/// It runs on a thread of the runtime, under the interpreter's lock. Only a member of one role has
/// one, and it is asked only while that role does not lead: no lease waits for it.
pub(crate) struct PythonStrategy(Py<PyAny>);

impl PythonStrategy {
    pub(crate) fn new(pace: Py<PyAny>) -> Self {
        PythonStrategy(pace)
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
        // `None`: the interpreter ends.
        Python::try_attach(|py| {
            let asked = (ctx.attempt, ctx.elapsed.as_secs_f64(), ctx.last_error.clone());
            let delay = self.0.call1(py, asked).and_then(|delay| delay.extract::<Option<f64>>(py));
            match delay {
                Ok(None) => None,
                Ok(Some(seconds)) => {
                    Some(Duration::try_from_secs_f64(seconds).unwrap_or(LONGEST).min(LONGEST))
                }
                // The callable tells the user of exceptions itself.
                Err(_) => fallback,
            }
        })
        .unwrap_or(fallback)
    }
}
