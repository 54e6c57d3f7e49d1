//! The gate, from Python.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyAny;
use tenure::{BootClock, Clock, LeaderLock, LeaderToken};

use crate::error;
use crate::fork::{self, Own};
use crate::handle::Place;

/// The choke point that every act passes just before it happens. No method waits.
#[pyclass(frozen, module = "tenure._tenure")]
pub(crate) struct Gate {
    place: Arc<Place>,
}

impl Gate {
    pub(crate) fn new(place: Arc<Place>) -> Self {
        Gate { place }
    }

    /// Asks the lock; refuses for one that is not started, or was started in another process.
    fn ask<T>(
        &self,
        py: Python<'_>,
        ask: impl FnOnce(&LeaderLock) -> Result<T, tenure::NotLeader>,
    ) -> PyResult<T> {
        match self.place.ask(ask) {
            Some(Some(answer)) => answer.map_err(|refused| error::not_leader(py, refused)),
            Some(None) => Err(error::forked(py)),
            None => Err(error::shut(py)),
        }
    }
}

#[pymethods]
impl Gate {
    /// Whether this process leads at this instant.
    #[getter]
    fn is_leader(&self) -> bool {
        self.place.ask(LeaderLock::is_leader) == Some(Some(true))
    }

    /// What is left of the lease in seconds; 0 if this process does not lead.
    #[getter]
    fn remaining_s(&self) -> f64 {
        self.place.ask(|lock| lock.gate().remaining().as_secs_f64()).flatten().unwrap_or(0.0)
    }

    /// How many acts have begun and not ended.
    #[getter]
    fn in_flight(&self) -> usize {
        self.place.ask(|lock| lock.gate().in_flight()).flatten().unwrap_or(0)
    }

    /// A token whose epoch goes with every effect; raises `NotLeader`.
    fn require_leader(&self, py: Python<'_>) -> PyResult<Token> {
        let token = self.ask(py, |lock| lock.gate().require_leader())?;
        Ok(Token { generation: fork::generation(), has_epoch: self.place.has_epochs(), token })
    }

    /// Returns if this process leads under exactly this epoch; raises `NotLeader` otherwise.
    fn ensure_epoch(&self, py: Python<'_>, epoch: i64) -> PyResult<()> {
        self.ask(py, |lock| lock.gate().ensure_epoch(tenure::Epoch(epoch)))
    }

    /// Begins an act that takes at most `within_s`; a step-down waits for it. Use it with `with`.
    #[pyo3(signature = (within_s = 1.0))]
    fn begin_act(&self, py: Python<'_>, within_s: f64) -> PyResult<Act> {
        let within = Duration::try_from_secs_f64(within_s)
            .map_err(|_| error::value("within_s must be a number of seconds, 0 or more"))?;
        let act = self.ask(py, |lock| lock.begin_act(within))?;
        let epoch = self.place.has_epochs().then(|| act.epoch().get());
        Ok(Act { epoch, act: Own::new(Mutex::new(Some(act))) })
    }
}

/// Proof that the gate was open, as of the moment it was given.
#[pyclass(frozen, module = "tenure._tenure")]
pub(crate) struct Token {
    generation: u64,
    has_epoch: bool,
    token: LeaderToken,
}

#[pymethods]
impl Token {
    /// The fencing token: write it with every effect. `None` with `lock_only`.
    #[getter]
    fn epoch(&self) -> Option<i64> {
        self.has_epoch.then(|| self._number_of_term())
    }

    /// The number of the term: its epoch where there are epochs.
    fn _number_of_term(&self) -> i64 {
        self.token.epoch.get()
    }

    /// The member that leads.
    #[getter]
    fn holder_identity(&self) -> &str {
        self.token.holder_identity.as_str()
    }

    /// Seconds until the lease ends unless another heartbeat succeeds; 0 in another process.
    #[getter]
    fn remaining_s(&self) -> f64 {
        if self.generation != fork::generation() {
            return 0.0;
        }
        self.token.deadline().saturating_since(BootClock.now()).as_secs_f64()
    }

    fn __repr__(&self) -> String {
        let epoch = self.epoch().map_or_else(|| "None".to_owned(), |epoch| epoch.to_string());
        format!("LeaderToken(epoch={epoch}, holder_identity={:?})", self.holder_identity())
    }
}

/// A side effect in flight: a context manager.
#[pyclass(frozen, module = "tenure._tenure")]
pub(crate) struct Act {
    epoch: Option<i64>,
    /// Only Python's threads lock it, while they hold the interpreter's lock.
    act: Own<Mutex<Option<tenure::Act>>>,
}

impl Act {
    fn take(&self, py: Python<'_>) -> PyResult<Option<tenure::Act>> {
        let act = self.act.get().ok_or_else(|| error::forked(py))?;
        Ok(act.lock().unwrap_or_else(PoisonError::into_inner).take())
    }
}

#[pymethods]
impl Act {
    /// The epoch to write with the effect. `None` with `lock_only`.
    #[getter]
    fn epoch(&self) -> Option<i64> {
        self.epoch
    }

    /// Returns while the lease covers the act; raises `Uncertain` otherwise.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        let act = self.act.get().ok_or_else(|| error::forked(py))?;
        match &*act.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(act) => act.check().map_err(|late| error::uncertain(py, late)),
            None => Ok(()),
        }
    }

    /// Ends the act; raises `Uncertain` if the effect may have happened after the lease had ended.
    fn finish(&self, py: Python<'_>) -> PyResult<()> {
        match self.take(py)? {
            Some(act) => act.finish().map_err(|late| error::uncertain(py, late)),
            None => Ok(()),
        }
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    /// Ends the act. An exception of the block goes on as it is.
    #[pyo3(signature = (kind, _value, _traceback))]
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        if kind.is_none() {
            self.finish(py)?;
        } else {
            // Counted out without a verdict: the program knows already that its act failed.
            drop(self.take(py)?);
        }
        Ok(false)
    }
}
