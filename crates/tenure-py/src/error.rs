//! Errors as Python knows them: the classes of `tenure.errors`.

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyModule;
use tenure::preflight::Refused;
use tenure::{NotLeader, Refusal, TenureError, Uncertain};

/// A bad argument.
pub(crate) fn value(text: impl Into<String>) -> PyErr {
    PyValueError::new_err(text.into())
}

/// Which class of `tenure.errors` stands for an error.
pub(crate) fn class(error: &TenureError) -> &'static str {
    match error {
        TenureError::Connect(_)
        | TenureError::Session(_)
        | TenureError::Tls(_)
        | TenureError::NoDatabase => "ConnectionError",
        TenureError::Config(_) | TenureError::RoleName(_) | TenureError::ShardPreempts(_) => {
            "ConfigError"
        }
        TenureError::Refused(_) => "RefusedError",
        TenureError::Timeout { .. } => "ShutdownError",
        _ => "LockError",
    }
}

/// The same as a Python exception.
pub(crate) fn raise(py: Python<'_>, error: &TenureError) -> PyErr {
    named(py, class(error), (text(error),))
}

/// What an error says, with a remedy that a program in Python has: there is no command line, and Tenure's own
/// variables are not read.
pub(crate) fn text(error: &TenureError) -> String {
    match error {
        TenureError::NoDatabase => {
            "no database is named; give a dsn, or set PGHOST or PGSERVICE".to_owned()
        }
        TenureError::Refused(refused) => match &**refused {
            Refused::SchemaMissing => "the schema is missing; run the SQL of tenure.schema_sql() as the \
                                       database's owner, or grant create on the database to this login role"
                .to_owned(),
            Refused::SchemaOlder { have, need } => format!(
                "the schema is at version {have}, this package needs {need}; run the SQL of \
                 tenure.schema_sql() as the schema's owner"
            ),
            Refused::Privileges { user, missing } => format!(
                "the login role {user} lacks privileges ({missing}); run the SQL of \
                 tenure.privileges_sql({user:?}) as the schema's owner"
            ),
            Refused::Execute { user, missing } => format!(
                "the login role {user} may not execute {missing}; run the SQL of \
                 tenure.privileges_sql({user:?}) as the schema's owner"
            ),
            other => other.to_string(),
        },
        other => other.to_string(),
    }
}

pub(crate) fn not_leader(py: Python<'_>, error: NotLeader) -> PyErr {
    let text = error.to_string();
    named(py, "NotLeader", (text, reason(error.reason)))
}

pub(crate) fn uncertain(py: Python<'_>, error: Uncertain) -> PyErr {
    named(py, "Uncertain", (error.to_string(), error.epoch.get(), reason(error.reason)))
}

/// Something that was made in another process is used in this one.
pub(crate) fn forked(py: Python<'_>) -> PyErr {
    let text = "this lock was started in another process, of which this one is a fork; make a new \
                LeaderLock in this process";
    named(py, "ForkError", (text,))
}

fn reason(refusal: Refusal) -> &'static str {
    match refusal {
        Refusal::Shut => "shut",
        Refusal::Expired => "expired",
        Refusal::Draining => "draining",
        Refusal::OtherEpoch { .. } => "other_epoch",
        Refusal::LeaseTooShort { .. } => "lease_too_short",
        _ => "other",
    }
}

fn named<'py, A>(py: Python<'py>, class: &str, arguments: A) -> PyErr
where
    A: pyo3::call::PyCallArgs<'py>,
{
    let made = PyModule::import(py, "tenure.errors")
        .and_then(|errors| errors.getattr(class))
        .and_then(|class| class.call1(arguments));
    match made {
        Ok(exception) => PyErr::from_value(exception),
        Err(error) => {
            let failure = PyRuntimeError::new_err(format!("tenure.errors.{class} is missing"));
            failure.set_cause(py, Some(error));
            failure
        }
    }
}

/// The gate of a lock that is not started.
pub(crate) fn shut(py: Python<'_>) -> PyErr {
    named(py, "NotLeader", ("not the leader: the lock is not started", "shut"))
}
