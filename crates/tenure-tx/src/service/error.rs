//! Why a service was not started, and why a transaction was not accepted.

use std::sync::Arc;

use tenure_core::identity::IdentityError;
use tenure_core::key::RoleName;

use super::options::InvalidOption;
use crate::account::SignError;
use crate::chain::ChainError;
use crate::engine::NonceError;
use crate::status::End;
use crate::store::StoreError;

/// A service was not started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServiceError {
    /// An option that cannot be meant. Nothing was started.
    #[error(transparent)]
    Option(#[from] InvalidOption),
    /// A standalone node found no identity to run under.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// Key and table are for different accounts.
    #[error("the signer's account is not the table's; use the group's key")]
    ForeignAccount,
    /// Lock and table are for different roles.
    #[error(
        "the lock is of role {elected}, the table's writes are fenced by role {fenced}; name one role for both"
    )]
    ForeignRole {
        /// The role of the lock.
        elected: RoleName,
        /// The role in the store's options.
        fenced: RoleName,
    },
    /// The database refused the schema or the table; a server that is away is no error.
    #[error("the table cannot be used")]
    Store(#[source] StoreError),
}

/// A transaction was not accepted, or an order to drop one was not taken.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the names say it")]
pub enum SendError {
    /// This node follows. Nothing was done.
    #[error("this node does not lead and never sends; send through the leader")]
    NotLeader,
    /// This node's chain, key or role is not the account's, as the text says. Nothing was done.
    #[error("{0}")]
    Foreign(String),
    /// This node was told to drain. Nothing was done.
    #[error("this node is draining; send through the next leader")]
    Draining,
    /// The service has stopped. Nothing was done.
    #[error("the service has stopped")]
    Stopped,
    /// There is no nonce for it, or nothing to drop at that nonce. Nothing was done.
    #[error(transparent)]
    Nonce(#[from] NonceError),
    /// The call or the signed bytes are longer than
    /// [`ServiceOptions::max_bytes`](crate::ServiceOptions::max_bytes). Nothing was done.
    #[error("{size} bytes are more than the limit of {limit}; split the call or raise max_bytes")]
    TooLarge { size: usize, limit: usize },
    /// A request id that cannot be one. Nothing was done.
    #[error(
        "a request id has 1 to 200 characters, none of them a control character; choose another"
    )]
    BadRequestId,
    /// No transaction has this request id. Nothing was done.
    #[error("no transaction has the request id {0}; it was not accepted, or its id is forgotten")]
    NotOpen(String),
    /// The signer did not sign it. Nothing was done.
    #[error(transparent)]
    Sign(#[from] SignError),
    /// Signed bytes that are no transaction of this chain, or whose nonce cannot be read. Nothing was done.
    #[error(transparent)]
    Chain(#[from] ChainError),
    /// Signed for another account. Nothing was done.
    #[error("signed by {0}, which is not this group's account; sign with the group's key")]
    ForeignAccount(String),
    /// The id stands for another transaction. Nothing was done.
    #[error(
        "request id {0} stands for another transaction; repeat that one unchanged, or choose a new id"
    )]
    RequestIdReused(String),
    /// These signed bytes are another request already. Nothing was done.
    #[error("these bytes are request {request_id} already{}", standing(end.as_deref()))]
    SameBytes {
        request_id: String,
        /// How that one ended; `None` while it is open.
        end: Option<Box<End>>,
    },
    /// Another creator's live row has the nonce. Nothing was stored; the table is read again.
    #[error("nonce {0} belongs to another live transaction in the table; retry")]
    Clash(u64),
    /// It may or may not be stored. A retry with the same id is safe.
    #[error(
        "it is unknown whether request {request_id} was stored ({reason}); retry with the same id"
    )]
    Uncertain {
        /// The id to retry with: the caller's, or the one that the request was given.
        request_id: String,
        reason: String,
    },
    /// An order to drop a request was given, and what came of it is not known. It may be given again.
    #[error("it is unknown whether request {request_id} is dropped ({reason}); order it again")]
    Undecided { request_id: String, reason: String },
    /// The database refused; nothing was stored. Of an order to drop: what became of it could not be read.
    #[error("not stored: {0}")]
    Store(Arc<StoreError>),
}

/// What is to be done about bytes that are a request already.
fn standing(end: Option<&End>) -> String {
    match end {
        Some(end) => format!(", which has ended: {end}; look at that one before you sign again"),
        None => "; ask for that one, and sign nothing again".to_owned(),
    }
}

impl SendError {
    /// A short name of the variant, such as `not_leader`: stable, for programs.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::NotLeader | Self::Nonce(NonceError::NotLeading) => "not_leader",
            Self::Foreign(_) => "foreign",
            Self::Draining => "draining",
            Self::Stopped => "stopped",
            Self::Nonce(NonceError::TooManyOpen(_)) => "too_many_open",
            Self::Clash(_) => "clash",
            Self::Nonce(
                NonceError::BelowChain { .. }
                | NonceError::Taken(_)
                | NonceError::TooFarAhead { .. }
                | NonceError::Given(_),
            ) => "nonce",
            Self::TooLarge { .. } => "too_large",
            Self::BadRequestId => "bad_request_id",
            Self::NotOpen(_) | Self::Nonce(NonceError::NotOpen(_)) => "not_found",
            Self::RequestIdReused(_) => "request_id_reused",
            Self::SameBytes { .. } => "same_bytes",
            Self::Sign(SignError::Unavailable(_)) => "signer_unavailable",
            Self::Sign(SignError::TooDear { .. }) => "too_dear",
            Self::Sign(SignError::Key(_) | SignError::Mismatch(_)) => "no_key",
            Self::Sign(SignError::Malformed(_)) | Self::Chain(_) => "malformed",
            Self::ForeignAccount(_) => "foreign_account",
            Self::Uncertain { .. } | Self::Undecided { .. } => "uncertain",
            Self::Store(error) => match **error {
                StoreError::MayBeLost(_) => "may_be_lost",
                _ => "store",
            },
        }
    }
}
