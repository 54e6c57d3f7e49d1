//! What can go wrong with the table, and what it leaves behind.

use tenure_connect::ConnectError;
use tenure_connect::line::LineError;
use tokio_postgres::error::{Severity, SqlState};

use crate::status::UnknownState;

/// What a development chain's reset, or another change that is meant, asks for.
pub(super) const RESET: &str = "if a development chain was reset on purpose, stop every node, delete the \
    account's rows from tenure_tx.pending_transactions, tenure_tx.past_transactions and tenure_tx.account, and \
    start them again";

/// The table could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the names say it")]
pub enum StoreError {
    /// Another leader's epoch is newer. Nothing was written; stop acting.
    #[error("another leader has a newer epoch; nothing was written, this node must stop acting")]
    Stale,
    /// The connection broke, was ended by the server or a pooler, or was too slow. A write may have happened: read before
    /// writing again.
    #[error("the outcome is unknown: {0}; read the table before trying again")]
    Lost(String),
    /// No connection. Nothing was written.
    #[error("the database cannot be reached; check that it runs and the connection string")]
    Unreachable(#[from] ConnectError),
    /// Another row has this request id. Nothing was written.
    #[error("a row with the same request id exists; look it up by that id")]
    DuplicateRequest,
    /// The database would forget what is accepted now. Nothing was written.
    #[error("{0}; make the standbys synchronous, or accept that a failover forgets requests")]
    MayBeLost(String),
    /// Role, account and chain are bound to others. Nothing was written, and nothing may be sent.
    #[error(
        "{0}; use the group's key, role and chain, or, if the key or the role was changed on purpose, wait until \
         `tenure tx list` shows nothing open, stop every node, and delete the bound account's row \
         from tenure_tx.account, or, {RESET}"
    )]
    Bound(String),
    /// A row that a newer version of this program wrote: upgrade this node.
    #[error("row with nonce {nonce}: {source}")]
    UnknownState { nonce: u64, source: UnknownState },
    /// A row that no version of this program writes.
    #[error("row with nonce {nonce} is damaged: {what}; repair or remove it by hand")]
    Corrupt { nonce: u64, what: String },
    /// A row without a signed form.
    #[error("nonce {0} has no attempt; the row is damaged, repair or remove it by hand")]
    NoAttempt(u64),
    /// A number PostgreSQL cannot hold.
    #[error("{0} is beyond a bigint; no chain counts that far, check the input")]
    TooLarge(u64),
    /// The journal of a node without a group cannot be used. Nothing was written.
    #[error("the journal {0}")]
    Journal(String),
    /// The journal of a node without a group is bound to another chain. Nothing was written, and nothing may be sent.
    #[error("the journal {0}")]
    JournalBound(String),
    /// The schema could not be brought up to date. Nothing was written.
    #[error(
        "the schema tenure_tx cannot be brought up to date: {0}; apply its script as its owner"
    )]
    Schema(String),
    /// The server refused. Nothing was written.
    #[error("the database refused: {}", message(.0))]
    Database(#[source] tokio_postgres::Error),
}

/// The driver's own text is only "db error".
fn message(error: &tokio_postgres::Error) -> String {
    error.as_db_error().map_or_else(|| error.to_string(), |db| db.message().to_owned())
}

/// Whether the session is over with this error. It says nothing of the statement then: a pooler that lost its server
/// does not know what that had done.
fn ends_session(error: &tokio_postgres::Error) -> bool {
    let Some(db) = error.as_db_error() else { return true };
    let fatal = matches!(db.parsed_severity(), Some(Severity::Fatal | Severity::Panic));
    // A pooler need not tell the severity in the field that is never translated.
    fatal || matches!(db.severity(), "FATAL" | "PANIC") || db.code().code().starts_with("08")
}

fn with_hint(error: &tokio_postgres::Error) -> String {
    match error.as_db_error().and_then(|db| db.hint()) {
        Some(hint) => format!("{} ({hint})", message(error)),
        None => message(error),
    }
}

impl From<tokio_postgres::Error> for StoreError {
    fn from(error: tokio_postgres::Error) -> Self {
        let Some(code) = error.code() else {
            return StoreError::Lost(error.to_string());
        };
        if ends_session(&error) {
            StoreError::Lost(message(&error))
        } else if code.code() == "TN001" {
            StoreError::Stale
        } else if code.code() == "TN102" {
            StoreError::MayBeLost(with_hint(&error))
        } else if code.code() == "TN103" {
            StoreError::Bound(message(&error))
        } else if *code == SqlState::UNIQUE_VIOLATION {
            StoreError::DuplicateRequest
        } else {
            StoreError::Database(error)
        }
    }
}

impl From<LineError> for StoreError {
    fn from(error: LineError) -> Self {
        match error {
            LineError::Refused { .. } => StoreError::Schema(error.to_string()),
            LineError::Deadline(_)
            | LineError::Closed(_)
            | LineError::Warned(_)
            | LineError::Unreadable(_) => StoreError::Lost(error.to_string()),
        }
    }
}
