//! Tenure for Python: the extension module behind the package `tenure`.
//!
//! # What it guarantees
//!
//! - Importing it starts no thread. The first member of a process starts the runtime.
//! - No thread of the runtime runs Python code, with one exception that is told below. What it has
//!   to say goes into a [mailbox](mailbox), and a descriptor becomes readable; so a blocked event
//!   loop, a long hold of the interpreter's lock or an interpreter that ends costs no heartbeat and
//!   hangs nothing.
//! - A gate check is a plain call: one atomic for the fork, the gate's own atomics, one clock read.
//! - After a fork every gate of the child is shut before `fork` returns there, and the sockets of the
//!   sessions are closed without a word to the server ([`fork`]).
//!
//! The exception: a retry strategy that is written in Python is asked on a thread of the runtime that
//! nothing else runs on. A member of one role waits for the answer, for it does not lead then; a member of
//! many roles waits a fifth of its heartbeat at most, and goes on with the default pace.
//!
//! # Where things are
//!
//! ```text
//!  Python:  LeaderLock, Member ── ask(op) ──► Member ──► runtime ──► tenure
//!                ▲                                                     │
//!                └───── descriptor, Mailbox.take() ◄── letters ────────┘
//!           lock.is_leader, gate.require_leader ──► the gate's atomics
//! ```

mod error;
mod fork;
mod gate;
mod handle;
mod log;
mod mailbox;
mod member;
mod memory;
mod renewal;
mod retry;
mod runtime;
mod settings;

use pyo3::prelude::*;

/// The extension module. Forks are safe because what is inherited is locked only under the interpreter's
/// lock: an interpreter without one must take it for this module.
#[pymodule(gil_used = true)]
mod _tenure {
    use pyo3::prelude::*;

    #[pymodule_export]
    use super::{generation, key, privileges_sql, schema_sql, take_log};
    #[pymodule_export]
    use crate::gate::{Act, Gate, Token};
    #[pymodule_export]
    use crate::handle::Handle;
    #[pymodule_export]
    use crate::mailbox::Mailbox;
    #[pymodule_export]
    use crate::member::Member;
    #[pymodule_export]
    use crate::memory::MemoryGroup;
    #[pymodule_export]
    use crate::runtime::end_all;

    #[pymodule_init]
    fn init(_module: &Bound<'_, PyModule>) -> PyResult<()> {
        crate::fork::watch()
    }
}

/// A number that is another one after every fork.
#[pyfunction]
fn generation() -> u64 {
    fork::generation()
}

/// The advisory key of a named role.
#[pyfunction]
fn key(role: &str) -> PyResult<i64> {
    let name = tenure::RoleName::new(role).map_err(|error| error::value(error.to_string()))?;
    match name.key() {
        tenure::LockKey::Big(key) => Ok(key),
        pair @ tenure::LockKey::Pair(..) => {
            Err(error::value(format!("a named role has one key, not {pair}")))
        }
    }
}

/// The SQL that makes the schema, for an administrator.
#[pyfunction]
fn schema_sql() -> String {
    tenure::schema::script()
}

/// The SQL that lets a login role take part, for the schema's owner.
#[pyfunction]
fn privileges_sql(login: &str) -> String {
    tenure::schema::privileges_sql(login)
}

/// What the library had to say since the last call: level and text.
#[pyfunction]
fn take_log() -> Vec<(String, String)> {
    log::take()
}
