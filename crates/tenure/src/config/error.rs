//! What may be wrong with a configuration.

use std::path::PathBuf;

use tenure_core::identity::IdentityError;
use tenure_core::key::{KeyError, RoleNameError};
use tenure_core::lease::LeaseError;

use tenure_connect::{DsnError, TlsError};

/// Why a configuration was refused. Nothing was opened or started; change the named place.
///
/// No variant carries a DSN's text or a value that could be one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration file {}: {source}; check the path and its permissions", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is not what it should be.
    #[error("{}{}: {}{message}; correct the file", .file.display(), at_line(.line, .column), at_path(.path))]
    File {
        /// The path, as it was given.
        file: PathBuf,
        /// The line, counted from 1, where known.
        line: Option<usize>,
        /// The column, counted from 1, where the line is known.
        column: Option<usize>,
        /// The key's path, such as `role[0].policy`; empty at the top.
        path: String,
        /// What is wrong; quoted values are left out.
        message: String,
    },
    /// A variable has a value that cannot be read.
    #[error("the environment variable {variable} must be {expected}; correct it or unset it")]
    Variable {
        /// Its name.
        variable: &'static str,
        /// What is accepted.
        expected: &'static str,
    },
    /// A field is outside its bounds or contradicts another.
    #[error("`{field}` must be {bound}: {reason}")]
    Field {
        /// The field's path, such as `member.channel`.
        field: String,
        /// What is accepted.
        bound: String,
        /// What the bound is for.
        reason: &'static str,
    },
    /// A DSN is malformed.
    #[error("`{field}`: {source}")]
    Dsn {
        /// `database.dsn` or `database.application_dsn`.
        field: &'static str,
        /// What is wrong.
        source: DsnError,
    },
    /// A TLS variable cannot be read.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// Timings contradict each other.
    #[error("[member]: {0}")]
    Lease(#[from] LeaseError),
    /// A role's name is bad.
    #[error("`role[{index}].name`: {source}")]
    RoleName {
        /// Which role, counted from 0.
        index: usize,
        /// What is wrong.
        source: RoleNameError,
    },
    /// A role's key is bad.
    #[error("the lock key of role `{role}`: {source}")]
    Key {
        /// The role's name, or its place in the file.
        role: String,
        /// What is wrong.
        source: KeyError,
    },
    /// Scope or instance cannot be part of an identity.
    #[error("[member]: {0}")]
    Identity(#[from] IdentityError),
}

fn at_line(line: &Option<usize>, column: &Option<usize>) -> String {
    match (line, column) {
        (Some(line), Some(column)) => format!(" line {line}, column {column}"),
        (Some(line), None) => format!(" line {line}"),
        (None, _) => String::new(),
    }
}

fn at_path(path: &str) -> String {
    if path.is_empty() { String::new() } else { format!("`{path}`: ") }
}
