//! The election in memory, for users' own tests.

use std::time::Duration;

use pyo3::prelude::*;
use tenure::LeaseSpec;
use tenure::memory;

use crate::error;
use crate::fork::Own;
use crate::member::Member;
use crate::runtime;

/// The members of one test, and the database they think they share.
#[pyclass(frozen, module = "tenure._tenure")]
pub(crate) struct MemoryGroup(Own<memory::MemoryGroup>);

impl MemoryGroup {
    pub(crate) fn group(&self, py: Python<'_>) -> PyResult<&memory::MemoryGroup> {
        self.0.get().ok_or_else(|| error::forked(py))
    }
}

#[pymethods]
impl MemoryGroup {
    #[new]
    #[pyo3(signature = (heartbeat_s, lease_s))]
    fn new(heartbeat_s: f64, lease_s: Option<f64>) -> PyResult<Self> {
        let handle = runtime::handle()?;
        let _inside = handle.enter();
        let period = |value: f64| {
            Duration::try_from_secs_f64(value)
                .map_err(|_| error::value("heartbeat_s and lease_s must be seconds above 0"))
        };
        let spec = LeaseSpec {
            heartbeat: Some(period(heartbeat_s)?),
            lease: lease_s.map(period).transpose()?,
            ..LeaseSpec::default()
        };
        let group = memory::MemoryGroup::with_lease(spec)
            .map_err(|error| error::value(error.to_string()))?;
        Ok(MemoryGroup(Own::new(group)))
    }

    /// Cuts a member off: it does not notice, and its session ends with lease and margin.
    fn partition(&self, py: Python<'_>, member: &Member) -> PyResult<()> {
        let handle = runtime::handle()?;
        let _inside = handle.enter();
        self.group(py)?.partition(&member.lock(py, 0)?);
        Ok(())
    }

    /// Ends a partition.
    fn heal(&self, py: Python<'_>, member: &Member) -> PyResult<()> {
        self.group(py)?.heal(&member.lock(py, 0)?);
        Ok(())
    }

    /// The member's process dies without releasing anything.
    fn crash(&self, py: Python<'_>, member: &Member) -> PyResult<()> {
        let (handle, lock, group) =
            (runtime::handle()?, member.lock(py, 0)?, self.group(py)?.clone());
        py.detach(|| handle.block_on(group.crash(&lock)));
        Ok(())
    }

    /// Ends a member's session, as `pg_terminate_backend` does.
    fn terminate(&self, py: Python<'_>, member: &Member) -> PyResult<()> {
        self.group(py)?.terminate(&member.lock(py, 0)?);
        Ok(())
    }

    /// Restarts the database: every session ends, nothing else is lost.
    fn restart(&self, py: Python<'_>) -> PyResult<()> {
        self.group(py)?.restart();
        Ok(())
    }

    /// An operator's switch: while a role is paused no member claims it, and its leader drains.
    fn set_paused(&self, py: Python<'_>, role: &str, paused: bool) -> PyResult<()> {
        self.group(py)?.set_paused(role, paused).map_err(|error| error::raise(py, &error))
    }
}
