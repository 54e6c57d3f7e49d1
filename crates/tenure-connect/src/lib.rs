//! From a DSN to a verified session of PostgreSQL.
//!
//! It knows nothing of leaders. A program that needs one dedicated session, made within a deadline
//! and verified, can use it alone; `tenure` and `tenure-tx` are built on it.
//!
//! ```text
//!  Dsn ───────────► Connector ──────► Session ──► Line ──► answers
//!  libpq's forms    several hosts,                simple queries,
//!  and files        TLS, deadline                 each with a deadline (Schema::migrate)
//! ```
//!
//! # What it guarantees
//!
//! - A connection string means what libpq says it means, with three defaults changed towards safety
//!   ([`dsn`]).
//! - A session was verified as its `sslmode` says; without one, a host that is not this machine must
//!   show a certificate that names it ([`tls`]).
//! - Everything counts against one deadline: name look-up, TCP, TLS, login ([`Connector::connect`]).
//! - Programs that boot together apply a schema once ([`migrate`]).
//! - A password is never shown: not by `Debug`, not by `Display`, not by an error.
//!
//! # What it does not
//!
//! It does not retry, does not pool, and does not look whether the server suits a purpose.
//!
//! # What went wrong
//!
//! [`ConnectError::remedy`] and [`line::LineError::remedy`] say what has to happen first:
//!
//! | remedy | for example | a retry |
//! |---|---|---|
//! | [`Remedy::Time`] | out of reach, starting up, too many connections, no primary yet | helps, after a pause |
//! | [`Remedy::Operator`] | a login that is refused, a certificate that expired | does not help, and may lock the account |
//! | [`Remedy::Input`] | no such database, no password, an unusable certificate file | does not help |
//!
//! # Example
//!
//! ```no_run
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//! use tenure_connect::{Connector, Dsn, TlsOptions};
//!
//! let dsn = Dsn::parse("postgresql://app@db1,db2/app?sslrootcert=/etc/ssl/db.pem")?;
//! let connector = Connector::new(&dsn, TlsOptions::new())?;
//! let session = connector.connect("report", Duration::from_secs(5)).await?;
//! tokio::spawn(session.connection);
//! let row = session.client.query_one("select now()::text", &[]).await?;
//! # let _: String = row.get(0);
//! # Ok(())
//! # }
//! ```

mod connector;
pub mod dsn;
mod error;
pub mod line;
pub mod migrate;
mod remedy;
pub mod socket;
pub mod sql;
pub mod tls;

pub use connector::{Connection, Connector, Renewal, Session};
pub use dsn::{Dsn, DsnError, Secret};
pub use error::ConnectError;
pub use remedy::Remedy;
pub use tls::{TlsError, TlsOptions};
