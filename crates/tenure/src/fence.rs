//! The fence, from Rust: the caller's own transaction is tied to an epoch.
//!
//! ```no_run
//! # async fn run(client: &mut tokio_postgres::Client, gate: tenure::LeaderGate)
//! # -> Result<(), Box<dyn std::error::Error>> {
//! let token = gate.require_leader()?;
//! let transaction = client.transaction().await?;
//! tenure::fence(&transaction, "scheduler", token.epoch).await?;
//! transaction.execute("insert into job_run (job) values ($1)", &[&"nightly"]).await?;
//! transaction.commit().await?; // cannot succeed once a newer epoch was issued
//! # Ok(())
//! # }
//! ```
//!
//! In SQL, from any language: `select tenure.fence('scheduler', 7)` as a statement of its own,
//! outside any savepoint (a rollback to a savepoint gives the fence back); or
//! `insert into … select … from tenure.fence('scheduler', 7)`; or, recommended, the trigger
//! `tenure.fenced` on the table (`docs/fence.md` has its two forms and the traps). Not in a CTE that
//! nothing refers to: it never runs.

use tenure_core::epoch::Epoch;
use tokio_postgres::GenericClient;
use tokio_postgres::error::SqlState;

/// Why a fence did not stand.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FenceError {
    /// A newer epoch was issued. Roll back and stop acting.
    #[error("epoch {epoch} of role {role} is stale: another member leads; roll back")]
    Stale {
        /// The role that was given.
        role: String,
        /// The epoch that was given.
        epoch: Epoch,
    },
    /// The database knows no such role.
    #[error("the database knows no role {role}; register it before fencing with it")]
    UnknownRole {
        /// The role that was given.
        role: String,
    },
    /// The statement failed otherwise; the transaction is aborted.
    #[error("the fence could not be set")]
    Database(#[source] tokio_postgres::Error),
}

/// Ties the transaction that `client` is in to `epoch`: it can commit only if no newer epoch of the
/// role was issued before, and no newer one is issued until it has ended.
///
/// While it is open and idle for longer than the role's lease the server ends it, so that it never
/// holds up the next leader for long.
///
/// # Errors
/// [`FenceError`]; after each the transaction can only be rolled back.
pub async fn fence(
    client: &impl GenericClient,
    role: &str,
    epoch: Epoch,
) -> Result<(), FenceError> {
    match client.execute("select tenure.fence($1, $2)", &[&role, &epoch.get()]).await {
        Ok(_) => Ok(()),
        Err(error) => Err(match error.code().map(SqlState::code) {
            Some("TN001") => FenceError::Stale { role: role.to_owned(), epoch },
            Some("TN003") => FenceError::UnknownRole { role: role.to_owned() },
            _ => FenceError::Database(error),
        }),
    }
}
