//! One role of one member, as Python holds it; `tenure.LeaderLock` is a subclass.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use tenure::{LeaderLock, LockState, TenureError};

use crate::error;
use crate::fork::Own;
use crate::gate::Gate;
use crate::member::Member;

/// Where a role's handle is once its member has started.
///
/// Only Python's threads lock it, while they hold the interpreter's lock: see [`crate::runtime`].
#[derive(Default)]
pub(crate) struct Place {
    bound: RwLock<Option<Own<LeaderLock>>>,
    /// Without tables no epoch is issued: the number of a term means nothing outside this process.
    lock_only: AtomicBool,
}

impl Place {
    /// Asks the lock of this process; the inner `None` is a lock of another process.
    pub(crate) fn ask<T>(&self, ask: impl FnOnce(&LeaderLock) -> T) -> Option<Option<T>> {
        let bound = self.bound.read().unwrap_or_else(PoisonError::into_inner);
        bound.as_ref().map(|own| own.get().map(ask))
    }

    /// Whether its terms have epochs.
    pub(crate) fn has_epochs(&self) -> bool {
        !self.lock_only.load(Ordering::Relaxed)
    }

    /// The lock of this process, if it is bound.
    pub(crate) fn lock(&self) -> Option<LeaderLock> {
        self.ask(LeaderLock::clone).flatten()
    }
}

/// The part of a lock that is read without the event loop.
#[pyclass(frozen, subclass, module = "tenure._tenure")]
pub(crate) struct Handle {
    place: Arc<Place>,
}

#[pymethods]
impl Handle {
    #[new]
    #[pyo3(signature = (*_arguments, **_options))]
    fn new(_arguments: &Bound<'_, PyTuple>, _options: Option<&Bound<'_, PyDict>>) -> Self {
        Handle { place: Arc::default() }
    }

    /// Whether this process leads at this instant: a plain call that never waits.
    #[getter]
    fn is_leader(&self) -> bool {
        self.place.ask(LeaderLock::is_leader) == Some(Some(true))
    }

    /// The gate that every act passes. It stays the same when the lock is started again.
    #[getter]
    fn gate(&self) -> Gate {
        Gate::new(self.place.clone())
    }

    /// The epoch under which this process leads, or `None`; with `lock_only` there is none.
    #[getter]
    fn epoch(&self) -> Option<i64> {
        self._number_of_term().filter(|_| self.place.has_epochs())
    }

    /// The number of the term in which this process leads: its epoch where there are epochs.
    fn _number_of_term(&self) -> Option<i64> {
        self.place.ask(|lock| lock.gate().epoch()).flatten().flatten().map(|epoch| epoch.get())
    }

    /// The lifecycle's state; a lock that is not started, or was started in another process, is
    /// stopped.
    fn _state(&self) -> &'static str {
        let state = self.place.ask(LeaderLock::state).flatten().unwrap_or(LockState::Stopped);
        state.as_str()
    }

    /// The member's identity in the group, while it is started.
    fn _identity(&self) -> Option<String> {
        self.place.lock().map(|lock| lock.identity().as_str().to_owned())
    }

    /// The role's name, while it is started.
    fn _role(&self) -> Option<String> {
        self.place.lock().map(|lock| lock.role().as_str().to_owned())
    }

    /// Becomes the handle of that role of the member.
    fn _bind(&self, py: Python<'_>, member: &Member, role: usize) -> PyResult<()> {
        let lock = member.lock(py, role)?;
        self.place.lock_only.store(member.lock_only(py)?, Ordering::Relaxed);
        *self.place.bound.write().unwrap_or_else(PoisonError::into_inner) = Some(Own::new(lock));
        Ok(())
    }

    /// Its member has ended, or another one will be started.
    fn _unbind(&self) {
        *self.place.bound.write().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Says whether this process is ready to lead.
    fn _set_ready(&self, py: Python<'_>, ready: bool) -> PyResult<()> {
        self.order(py, |lock| lock.set_ready(ready))
    }

    /// Changes the priority in the race.
    fn _set_priority(&self, py: Python<'_>, priority: i32) -> PyResult<()> {
        self.order(py, |lock| lock.set_priority(priority))
    }
}

impl Handle {
    /// Tells the lock of this process something.
    fn order(
        &self,
        py: Python<'_>,
        order: impl FnOnce(&LeaderLock) -> Result<(), TenureError>,
    ) -> PyResult<()> {
        let told = match self.place.ask(order) {
            Some(Some(told)) => told,
            Some(None) => return Err(error::forked(py)),
            None => Err(TenureError::Stopped),
        };
        told.map_err(|error| error::raise(py, &error))
    }
}
