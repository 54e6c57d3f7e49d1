//! The runtime of this process: made when the first member starts, never dropped.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use tokio::runtime::{Builder, Handle, Runtime};

use crate::fork;
use crate::log;
use crate::member::Group;

/// One generation's runtime, and the members on it.
struct Live {
    generation: u64,
    runtime: Runtime,
    members: Mutex<Vec<Weak<Group>>>,
}

/// Only Python's threads lock it, each while it holds the interpreter's lock and never while it gives
/// that up. A fork from Python holds that lock too, so no child inherits this one locked.
static LIVE: Mutex<Option<&'static Live>> = Mutex::new(None);

/// The runtime of this process.
pub(crate) fn handle() -> PyResult<Handle> {
    Ok(live()?.runtime.handle().clone())
}

/// Remembers a member, for the end of the interpreter.
pub(crate) fn remember(group: &Arc<Group>) -> PyResult<()> {
    let mut members = live()?.members.lock().unwrap_or_else(PoisonError::into_inner);
    members.retain(|member| member.strong_count() > 0);
    members.push(Arc::downgrade(group));
    Ok(())
}

fn live() -> PyResult<&'static Live> {
    let mut live = LIVE.lock().unwrap_or_else(PoisonError::into_inner);
    match *live {
        Some(live) if live.generation == fork::generation() => Ok(live),
        // The parent's is left as it is: its threads do not exist here.
        _ => {
            log::listen();
            let runtime = Builder::new_multi_thread()
                .worker_threads(2)
                .max_blocking_threads(8)
                .thread_name("tenure")
                .on_thread_start(block_signals)
                .enable_all()
                .build()
                .map_err(|error| {
                    PyRuntimeError::new_err(format!("the runtime does not start: {error}"))
                })?;
            let made: &'static Live = Box::leak(Box::new(Live {
                generation: fork::generation(),
                runtime,
                members: Mutex::default(),
            }));
            *live = Some(made);
            Ok(made)
        }
    }
}

/// Python's signals belong to its own threads: a sleeping main thread must be woken by them.
fn block_signals() {
    // SAFETY: both fill or read a set that lives here.
    unsafe {
        let mut all = std::mem::MaybeUninit::uninit();
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), std::ptr::null_mut());
    }
}

/// Lets every member of this process release its roles and leave, for `timeout_s` at most. For the
/// end of the interpreter.
#[pyfunction]
pub(crate) fn end_all(py: Python<'_>, timeout_s: f64) {
    let generation = fork::generation();
    let live = *LIVE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(live) = live.filter(|live| live.generation == generation) else { return };
    let limit = Duration::try_from_secs_f64(timeout_s).unwrap_or(Duration::from_secs(10));
    py.detach(|| {
        let members: Vec<_> = {
            let members = live.members.lock().unwrap_or_else(PoisonError::into_inner);
            members.iter().filter_map(Weak::upgrade).collect()
        };
        live.runtime.block_on(async {
            let ends: Vec<_> =
                members.into_iter().map(|member| tokio::spawn(member.end(Some(limit)))).collect();
            for end in ends {
                let _ = end.await;
            }
        });
    });
}
