//! Why a piece of the kit could not do its work.

/// A failure of the kit, not of what is tested. Tests simply `expect` it away.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KitError {
    /// The server did not start, stop or initialise.
    #[error(transparent)]
    Server(#[from] tenure_embedded::EmbeddedError),
    /// A file, process or socket operation failed.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// A statement of the kit failed; the cause is in the message, as the driver's own says little.
    #[error("{}", postgres_words(.0))]
    Postgres(#[from] tokio_postgres::Error),
    /// A certificate could not be made.
    #[error("cannot make the certificate: {0}")]
    Certificate(#[from] rcgen::Error),
    /// A tool is missing or did not do its work.
    #[error("{0}")]
    Setup(String),
    /// Something did not happen in time.
    #[error("waited {after:?} for {what}{detail}")]
    TimedOut {
        /// What was waited for.
        what: String,
        /// How long.
        after: std::time::Duration,
        /// What was seen instead.
        detail: String,
    },
}

fn postgres_words(error: &tokio_postgres::Error) -> String {
    use std::error::Error;
    error.source().map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"))
}
