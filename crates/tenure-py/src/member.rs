//! One member, and the operations that Python asks of it.
//!
//! Every operation returns at once. Its end is a letter with the number that the asker gave it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use tenure::config::Config;
use tenure::connect::Renewal;
use tenure::shards::{Shards, Spreading};
use tenure::{LeaderLock, TenureError};
use tokio::runtime::Handle;
use tokio::sync::broadcast::error::RecvError;

use crate::error;
use crate::fork::Own;
use crate::mailbox::{Answer, Letter, Mailbox, Post};
use crate::memory::MemoryGroup;
use crate::renewal::Wanted;
use crate::runtime;
use crate::settings;

/// A member and its roles, on the runtime.
pub(crate) struct Group {
    post: Arc<Post>,
    renewal: Arc<Wanted>,
    /// It has no tables, and hence no epochs.
    lock_only: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    member: Option<tenure::Member>,
    locks: Vec<LeaderLock>,
    /// What spreads its sets of shards.
    spreading: Vec<Spreading>,
    /// It was told to leave, perhaps before it had started.
    ended: bool,
}

impl Group {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a role's handle, and passes its events on from now on.
    fn add(&self, runtime: &Handle, lock: LeaderLock) -> usize {
        let mut state = self.state();
        let role = state.locks.len();
        let (post, mut events) = (self.post.clone(), lock.events());
        state.locks.push(lock);
        drop(state);
        runtime.spawn(async move {
            loop {
                match events.recv().await {
                    Ok(event) => post.send(Letter::Told { role, notice: event.notice }),
                    Err(RecvError::Lagged(count)) => post.send(Letter::Missed { role, count }),
                    Err(RecvError::Closed) => break,
                }
            }
        });
        role
    }

    /// Releases every role and leaves. Later calls find nothing to do.
    pub(crate) async fn end(self: Arc<Self>, within: Option<Duration>) -> Result<(), TenureError> {
        let (member, locks) = {
            let mut state = self.state();
            state.ended = true;
            state.spreading.clear();
            (state.member.take(), state.locks.clone())
        };
        match member {
            Some(member) => member.shutdown(within).await,
            None => {
                for lock in locks {
                    lock.shutdown(within).await?;
                }
                Ok(())
            }
        }
    }
}

/// A member of a group, in Python.
#[pyclass(frozen, module = "tenure._tenure")]
pub(crate) struct Member(Own<Arc<Group>>);

impl Member {
    fn group(&self, py: Python<'_>) -> PyResult<&Arc<Group>> {
        self.0.get().ok_or_else(|| error::forked(py))
    }

    pub(crate) fn lock(&self, py: Python<'_>, role: usize) -> PyResult<LeaderLock> {
        let lock = self.group(py)?.state().locks.get(role).cloned();
        lock.ok_or_else(|| error::raise(py, &TenureError::Stopped))
    }

    pub(crate) fn lock_only(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.group(py)?.lock_only)
    }

    /// Carries an operation out on the runtime; its end is a letter.
    fn spawn<F>(&self, py: Python<'_>, op: u64, work: F) -> PyResult<()>
    where
        F: Future<Output = Result<Answer, TenureError>> + Send + 'static,
    {
        let post = self.group(py)?.post.clone();
        runtime::handle()?.spawn(async move {
            let outcome = work.await;
            post.send(Letter::done(op, outcome));
        });
        Ok(())
    }

    /// As `spawn`, for an operation that begins by telling the driver and then waits: the telling is done
    /// here and now, and not when a thread of the runtime gets to it.
    fn begin<F>(&self, py: Python<'_>, op: u64, work: F) -> PyResult<()>
    where
        F: Future<Output = Result<Answer, TenureError>> + Send + 'static,
    {
        let runtime = runtime::handle()?;
        let mut work = Box::pin(work);
        let first = {
            // Its timers want a runtime. The task below asks again, so no wake-up is lost with this waker.
            let _inside = runtime.enter();
            work.as_mut().poll(&mut Context::from_waker(Waker::noop()))
        };
        self.spawn(py, op, async move {
            match first {
                Poll::Ready(outcome) => outcome,
                Poll::Pending => work.await,
            }
        })
    }
}

#[pymethods]
impl Member {
    /// Checks the settings, and starts a member. Its roles are not started yet.
    #[new]
    #[pyo3(signature = (mailbox, settings, op))]
    fn new(
        py: Python<'_>,
        mailbox: &Mailbox,
        settings: &Bound<'_, PyDict>,
        op: u64,
    ) -> PyResult<Self> {
        let post = mailbox.post(py)?;
        let asks = |key: &str| -> PyResult<bool> {
            Ok(settings.get_item(key)?.is_some_and(|value| value.is_truthy().unwrap_or(false)))
        };
        let renewal = Wanted::new(post.clone());
        let source: Option<Arc<dyn Renewal>> =
            if asks("renew")? { Some(renewal.clone()) } else { None };
        let config = settings::config(settings, source)?;
        let sets = settings::sets(settings)?;
        let migrate = asks("migrate")?;
        let runtime = runtime::handle()?;
        let lock_only = config.is_lock_only();
        let group = Arc::new(Group { post, renewal, lock_only, state: Mutex::default() });
        runtime::remember(&group)?;
        let member = Member(Own::new(group.clone()));
        member.spawn(py, op, start(runtime, group, config, sets, migrate))?;
        Ok(member)
    }

    /// A member of a group in memory, with that one role.
    #[staticmethod]
    fn in_memory(
        py: Python<'_>,
        mailbox: &Mailbox,
        memory: &MemoryGroup,
        role: &Bound<'_, PyDict>,
    ) -> PyResult<Self> {
        let runtime = runtime::handle()?;
        let _inside = runtime.enter();
        let spec = settings::role(role)?;
        let lock = memory.group(py)?.candidate(spec).map_err(|error| error::raise(py, &error))?;
        let post = mailbox.post(py)?;
        let renewal = Wanted::new(post.clone());
        let group = Arc::new(Group { post, renewal, lock_only: false, state: Mutex::default() });
        runtime::remember(&group)?;
        group.add(&runtime, lock);
        Ok(Member(Own::new(group)))
    }

    /// Adds a role; returns its number.
    fn add_role(&self, py: Python<'_>, role: &Bound<'_, PyDict>) -> PyResult<usize> {
        let runtime = runtime::handle()?;
        let _inside = runtime.enter();
        let group = self.group(py)?;
        let spec = settings::role(role)?;
        let added = match &group.state().member {
            Some(member) => member.add_role(spec),
            None => Err(TenureError::Stopped),
        };
        let lock = added.map_err(|error| error::raise(py, &error))?;
        Ok(group.add(&runtime, lock))
    }

    /// Takes part in the race for a role.
    fn start_role(&self, py: Python<'_>, role: usize, op: u64) -> PyResult<()> {
        let lock = self.lock(py, role)?;
        self.begin(py, op, async move { lock.start().await.map(|()| Answer::Nothing) })
    }

    /// Releases a role, to a member of that identity if one is named.
    #[pyo3(signature = (role, op, to, timeout_s))]
    fn step_down(
        &self,
        py: Python<'_>,
        role: usize,
        op: u64,
        to: Option<String>,
        timeout_s: Option<f64>,
    ) -> PyResult<()> {
        let (lock, within) = (self.lock(py, role)?, within(timeout_s)?);
        let to = to
            .map(|member| member.parse::<tenure::Identity>())
            .transpose()
            .map_err(|error| error::value(format!("`to` is no member's identity: {error}")))?;
        self.begin(
            py,
            op,
            async move { lock.hand_over(to, within).await.map(|()| Answer::Nothing) },
        )
    }

    /// Asks the database which member leads a role.
    fn leader(&self, py: Python<'_>, role: usize, op: u64) -> PyResult<()> {
        let lock = self.lock(py, role)?;
        self.spawn(py, op, async move { lock.leader().await.map(Answer::Leader) })
    }

    /// Releases every role and leaves.
    #[pyo3(signature = (op, timeout_s))]
    fn shutdown(&self, py: Python<'_>, op: u64, timeout_s: Option<f64>) -> PyResult<()> {
        let (group, within) = (self.group(py)?.clone(), within(timeout_s)?);
        self.spawn(py, op, async move { group.end(within).await.map(|()| Answer::Nothing) })
    }

    /// The same in the background. Nothing happens in a child of the process that started it.
    fn leave(&self) -> PyResult<()> {
        if let Some(group) = self.0.get() {
            runtime::handle()?.spawn(group.clone().end(None));
        }
        Ok(())
    }

    /// The connection string that a session waits for, or why there is none.
    #[pyo3(signature = (id, dsn, error))]
    fn renewed(
        &self,
        py: Python<'_>,
        id: u64,
        dsn: Option<String>,
        error: Option<String>,
    ) -> PyResult<()> {
        let given = dsn.ok_or_else(|| error.unwrap_or_else(|| "connect_fn gave none".to_owned()));
        self.group(py)?.renewal.answer(id, given);
        Ok(())
    }
}

async fn start(
    runtime: Handle,
    group: Arc<Group>,
    config: Config,
    sets: Vec<Shards>,
    migrate: bool,
) -> Result<Answer, TenureError> {
    let member = match migrate {
        true => tenure::Member::start(config).await?,
        false => tenure::Member::start_without_migrating(config).await?,
    };
    let spreading = match sets.iter().map(|set| set.start(&member)).collect::<Result<Vec<_>, _>>() {
        Ok(spreading) => spreading,
        Err(error) => {
            member.shutdown(None).await?;
            return Err(error);
        }
    };
    for lock in member.locks() {
        group.add(&runtime, lock);
    }
    let late = {
        let mut state = group.state();
        if state.ended {
            Some(member)
        } else {
            state.spreading = spreading;
            state.member.replace(member)
        }
    };
    match late {
        // It was told to leave while it started.
        Some(member) => {
            member.shutdown(None).await?;
            Err(TenureError::Stopped)
        }
        None => Ok(Answer::Nothing),
    }
}

fn within(timeout_s: Option<f64>) -> PyResult<Option<Duration>> {
    timeout_s
        .map(|value| {
            Duration::try_from_secs_f64(value)
                .map_err(|_| error::value("timeout_s must be a number of seconds, 0 or more"))
        })
        .transpose()
}
