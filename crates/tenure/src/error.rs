//! What can go wrong at the library's own boundary.

use std::time::Duration;

use tenure_core::clock::spoken;
use tenure_core::key::{RoleName, RoleNameError};
use tenure_core::protocol::RegisterRefusal;

use crate::config::ConfigError;
use crate::connect::ConnectError;
use crate::line::LineError;
use crate::preflight::Refused;
use tenure_connect::Remedy;
use tenure_connect::tls::TlsError;

/// Why a member, a lock or an operator's session could not do what it was asked to.
///
/// No variant leaves a lock behind. Nothing was written either, except where a variant says that it is not
/// known. [`TenureError::remedy`] says what has to happen before the same call can succeed.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum TenureError {
    /// The configuration contradicts itself. A retry does not help.
    #[error(transparent)]
    Config(std::sync::Arc<ConfigError>),
    /// The TLS set-up cannot be used. A retry does not help.
    #[error(transparent)]
    Tls(std::sync::Arc<TlsError>),
    /// No database was named.
    #[error("no database is configured; set TENURE_DSN, or give a DSN")]
    NoDatabase,
    /// The database could not be reached, or did not let us in.
    #[error(transparent)]
    Connect(std::sync::Arc<ConnectError>),
    /// The setup cannot hold the promises. A retry helps once the setup is changed.
    #[error(transparent)]
    Refused(std::sync::Arc<Refused>),
    /// The database knows the role otherwise than we do.
    #[error("role {role} was refused: {why}")]
    Registration {
        /// The role that takes no part because of it.
        role: RoleName,
        /// What differs, and what to do.
        why: RegisterRefusal,
    },
    /// A session failed in the middle of something, or the server was busy. A retry helps. Whether an
    /// order was written down is not known then: look at the role's status before it is given again.
    #[error("the database session failed: {0}")]
    Session(String),
    /// The database refused a statement; nothing was written. A retry does not help.
    #[error("the database refused: {0}")]
    Statement(String),
    /// The login role lacks a privilege for this. A retry as another login role helps.
    #[error(
        "the database refused: {0}; run it as the schema's owner, or grant the login role what \
         `tenure migrate --print-grants` prints"
    )]
    Denied(String),
    /// It was not done in time; the call says whether it goes on in the background.
    #[error("{what} took longer than {}", spoken(.limit))]
    Timeout {
        /// What was not done, as a noun.
        what: &'static str,
        /// How long the caller was willing to wait.
        limit: Duration,
    },
    /// The member was shut down. Start another one.
    #[error("the member has been shut down; start another one")]
    Stopped,
    /// The role is not one of this member's.
    #[error("this member has no role {0}; add it first")]
    UnknownRole(RoleName),
    /// No role can be called so. A retry does not help.
    #[error("no role can be called so: {0}")]
    RoleName(#[from] RoleNameError),
    /// The role was added already.
    #[error("role {0} was added to this member already; keep its handle")]
    DuplicateRole(RoleName),
    /// A role is to be spread, and takes leadership from others besides. A retry does not help.
    #[error(
        "role {0} is a shard, which is handed over by placement and never preempts; take preempt out of it"
    )]
    ShardPreempts(RoleName),
    /// An order about a role that the database does not know.
    #[error("there is no role {0}; `tenure status` lists them")]
    NoSuchRole(RoleName),
    /// An order that names a member which does not take part in the role.
    #[error("that member is no candidate for role {0}; `tenure status` lists them")]
    NoSuchMember(RoleName),
    /// An order for a leader that there is not.
    #[error("role {0} has no leader now; there is none to ask")]
    NoLeader(RoleName),
    /// An operator's order could not be carried out.
    #[error("{0}")]
    Order(String),
}

impl TenureError {
    /// Whether the setup itself was refused: retrying without a change is in vain.
    pub fn is_refusal(&self) -> bool {
        matches!(self, TenureError::Refused(_))
    }

    /// What has to happen before the same call can succeed. [`Remedy::Time`] comes back by itself:
    /// a member waits for it.
    pub fn remedy(&self) -> Remedy {
        match self {
            TenureError::Connect(error) => error.remedy(),
            TenureError::Session(_) | TenureError::Timeout { .. } => Remedy::Time,
            TenureError::Refused(_)
            | TenureError::Registration { .. }
            | TenureError::Statement(_)
            | TenureError::Denied(_)
            | TenureError::NoLeader(_)
            | TenureError::Order(_) => Remedy::Operator,
            TenureError::Config(_)
            | TenureError::Tls(_)
            | TenureError::NoDatabase
            | TenureError::Stopped
            | TenureError::UnknownRole(_)
            | TenureError::RoleName(_)
            | TenureError::DuplicateRole(_)
            | TenureError::ShardPreempts(_)
            | TenureError::NoSuchRole(_)
            | TenureError::NoSuchMember(_) => Remedy::Input,
        }
    }

    /// A statement that a session did not carry out: what passes by itself is told from the rest.
    pub(crate) fn session(error: LineError) -> Self {
        match error.remedy() {
            Remedy::Time => TenureError::Session(error.to_string()),
            Remedy::Operator | Remedy::Input => TenureError::Statement(error.to_string()),
        }
    }
}

impl From<ConfigError> for TenureError {
    fn from(error: ConfigError) -> Self {
        TenureError::Config(error.into())
    }
}

impl From<TlsError> for TenureError {
    fn from(error: TlsError) -> Self {
        TenureError::Tls(error.into())
    }
}

impl From<ConnectError> for TenureError {
    fn from(error: ConnectError) -> Self {
        TenureError::Connect(error.into())
    }
}

impl From<Refused> for TenureError {
    fn from(error: Refused) -> Self {
        TenureError::Refused(error.into())
    }
}
