//! What the runtime's threads tell Python, without running any.
//!
//! A letter goes into a queue, and a byte into a pipe. An event loop watches the pipe's other end.
//! Neither the writer nor the reader ever waits for the other.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use rustix::pipe::{PipeFlags, pipe_with};
use tenure::{Leader, Notice, TenureError};

use crate::error;
use crate::fork::Own;

/// How many events of one role may wait for a loop that does not read. Counted for each role, because
/// thousands of roles that start together have thousands of events. Answers are not counted: each has an
/// asker.
const BACKLOG: usize = 256;

/// One message.
pub(crate) enum Letter {
    /// An operation is over.
    Done { op: u64, outcome: Result<Answer, (&'static str, String)> },
    /// The lifecycle of a role did something.
    Told { role: usize, notice: Notice },
    /// Events of a role that could not be told.
    Missed { role: usize, count: u64 },
    /// A session is about to be opened and needs a connection string.
    Renew { id: u64 },
}

/// What an operation has for an answer.
pub(crate) enum Answer {
    Nothing,
    Leader(Option<Leader>),
}

impl Letter {
    pub(crate) fn done(op: u64, outcome: Result<Answer, TenureError>) -> Self {
        let outcome = outcome.map_err(|error| (error::class(&error), error::text(&error)));
        Letter::Done { op, outcome }
    }
}

/// What waits for the loop.
#[derive(Default)]
struct Letters {
    queue: VecDeque<Letter>,
    /// How many events of each role are in the queue.
    events: HashMap<usize, usize>,
    /// How many events of a role are not. They are told last: the role's state is then looked at anew.
    missed: BTreeMap<usize, u64>,
}

impl Letters {
    fn add(&mut self, letter: Letter) {
        match &letter {
            Letter::Told { role, .. } => {
                let events = self.events.entry(*role).or_default();
                if *events >= BACKLOG {
                    *self.missed.entry(*role).or_default() += 1;
                    return;
                }
                *events += 1;
            }
            Letter::Done { .. } | Letter::Missed { .. } | Letter::Renew { .. } => {}
        }
        self.queue.push_back(letter);
    }

    /// All of them, in order.
    fn into_letters(self) -> impl Iterator<Item = Letter> {
        let missed = self.missed.into_iter();
        self.queue.into_iter().chain(missed.map(|(role, count)| Letter::Missed { role, count }))
    }
}

/// The writers' side.
pub(crate) struct Post {
    letters: Mutex<Letters>,
    ear: OwnedFd,
    bell: OwnedFd,
}

impl Post {
    fn letters(&self) -> MutexGuard<'_, Letters> {
        self.letters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a letter. Never waits.
    pub(crate) fn send(&self, letter: Letter) {
        let mut letters = self.letters();
        // An event is missed only behind others, so an empty queue is an empty mailbox.
        let first = letters.queue.is_empty();
        letters.add(letter);
        drop(letters);
        if first {
            // A full pipe is readable already.
            let _ = rustix::io::write(&self.bell, &[1]);
        }
    }

    fn take(&self) -> Letters {
        let mut bytes = [0; 64];
        while matches!(rustix::io::read(&self.ear, &mut bytes), Ok(64)) {}
        std::mem::take(&mut *self.letters())
    }
}

/// The readers' side of a mailbox, in Python.
#[pyclass(frozen, module = "tenure._tenure")]
pub(crate) struct Mailbox(Own<Arc<Post>>);

impl Mailbox {
    pub(crate) fn post(&self, py: Python<'_>) -> PyResult<Arc<Post>> {
        self.0.get().cloned().ok_or_else(|| error::forked(py))
    }
}

#[pymethods]
impl Mailbox {
    #[new]
    fn new() -> PyResult<Self> {
        let (ear, bell) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)
            .map_err(|error| std::io::Error::from_raw_os_error(error.raw_os_error()))?;
        Ok(Mailbox(Own::new(Arc::new(Post { letters: Mutex::default(), ear, bell }))))
    }

    /// The descriptor that is readable while there are letters.
    fn fileno(&self, py: Python<'_>) -> PyResult<i32> {
        Ok(self.post(py)?.ear.as_raw_fd())
    }

    /// All letters, in order; never waits. In a child of the process that made it: none.
    fn take<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        if let Some(post) = self.0.get() {
            for letter in post.take().into_letters() {
                list.append(written(py, letter)?)?;
            }
        }
        Ok(list)
    }
}

/// A letter as Python reads it: a tuple whose first element says what it is.
fn written(py: Python<'_>, letter: Letter) -> PyResult<Bound<'_, PyTuple>> {
    match letter {
        Letter::Done { op, outcome: Ok(Answer::Nothing) } => {
            ("done", op, py.None(), py.None()).into_pyobject(py)
        }
        Letter::Done { op, outcome: Ok(Answer::Leader(leader)) } => {
            let leader = leader.map(|leader| {
                (leader.identity.as_str().to_owned(), leader.epoch.get(), leader.acting)
            });
            ("done", op, leader, py.None()).into_pyobject(py)
        }
        Letter::Done { op, outcome: Err((class, text)) } => {
            ("done", op, py.None(), (class, text)).into_pyobject(py)
        }
        Letter::Renew { id } => ("renew", id).into_pyobject(py),
        Letter::Missed { role, count } => ("told", role, "missed", count).into_pyobject(py),
        Letter::Told { role, notice } => told(py, role, notice),
    }
}

fn told(py: Python<'_>, role: usize, notice: Notice) -> PyResult<Bound<'_, PyTuple>> {
    match notice {
        Notice::StateChange { from, to } => {
            ("told", role, "state_change", from.as_str(), to.as_str()).into_pyobject(py)
        }
        Notice::Acquired { epoch } => ("told", role, "acquired", epoch.get()).into_pyobject(py),
        Notice::Released { epoch } => ("told", role, "released", epoch.get()).into_pyobject(py),
        Notice::Lost { epoch, reason } => {
            ("told", role, "lost", epoch.get(), reason.to_string()).into_pyobject(py)
        }
        Notice::AcquireFailed { why } => {
            ("told", role, "acquire_failed", why.to_string()).into_pyobject(py)
        }
        Notice::Error(text) => ("told", role, "error", text).into_pyobject(py),
        Notice::Stopped => ("told", role, "stopped").into_pyobject(py),
        Notice::Late { epoch } => ("told", role, "late", epoch.get()).into_pyobject(py),
        Notice::Well { epoch } => ("told", role, "well", epoch.get()).into_pyobject(py),
        Notice::Recovered { epoch } => ("told", role, "recovered", epoch.get()).into_pyobject(py),
    }
}
