//! Why a connection could not be made.

use std::error::Error as StdError;
use std::time::Duration;

use rustls::CertificateError;
use tokio_postgres::error::SqlState;

use crate::dsn::{Host, TargetSessionAttrs};
use crate::remedy::Remedy;
use crate::tls::TlsError;

/// As people are told it: a millionth of a second says nothing to them.
pub(crate) fn whole_millis(time: Duration) -> Duration {
    time - Duration::from_nanos(u64::from(time.subsec_nanos() % 1_000_000))
}

/// As an outage tells it again and again: the same time must give the same text, whatever the timers added.
pub(crate) fn tens_of_millis(time: Duration) -> Duration {
    let tens = (time.as_millis() + 5) / 10;
    Duration::from_millis(u64::try_from(tens * 10).unwrap_or(u64::MAX))
}

/// Why there is no session. Nothing is left behind: every socket of the attempt is closed.
///
/// Ask the classifiers rather than match: [`remedy`](Self::remedy) says whether a retry helps,
/// [`is_auth`](Self::is_auth), [`is_tls`](Self::is_tls) and
/// [`is_unreachable`](Self::is_unreachable) what stood in the way.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// No answer in time: a dead host, a firewall that drops, or a server that hangs.
    #[error(
        "{host} did not answer within {waited:?}; check the address, the firewall, and whether the server hangs"
    )]
    Deadline {
        /// The server.
        host: String,
        /// How long it was given, in whole 10 ms.
        waited: Duration,
    },
    /// The name could not be looked up, or no program listens.
    #[error(
        "cannot reach {host}: {source}; check that the server runs there and that the name and port are right"
    )]
    Unreachable {
        /// The server.
        host: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The connection broke while it was being made.
    #[error(
        "{host} closed the connection while logging in: {reason}; check the server's log, and that PostgreSQL (not something else) listens there"
    )]
    Broken {
        /// The server.
        host: String,
        /// What broke.
        reason: String,
        /// The driver's error.
        source: Option<tokio_postgres::Error>,
    },
    /// The login was refused.
    #[error("{host} refused to log in `{user}`: {reason}; check user, password and pg_hba.conf")]
    Auth {
        /// The server.
        host: String,
        /// The login role.
        user: String,
        /// What the server or the driver said.
        reason: String,
        /// The driver's error.
        source: tokio_postgres::Error,
    },
    /// The server wants a password and there is none.
    #[error(
        "{host} asks for the password of `{user}` and none was given; put it into the DSN, PGPASSWORD or a password file of mode 0600"
    )]
    NoPassword {
        /// The server.
        host: String,
        /// The login role.
        user: String,
    },
    /// `channel_binding=require`, and the login was not bound to a TLS channel.
    #[error(
        "channel_binding=require, but {host} offers no SCRAM login over TLS; enable TLS and scram-sha-256 on the server, or drop channel_binding"
    )]
    ChannelBinding {
        /// The server.
        host: String,
    },
    /// TLS is demanded and the server has none.
    #[error(
        "{host} does not offer TLS and sslmode={mode} demands it; switch `ssl` on in the server, or set sslmode=disable if the network is trusted"
    )]
    NoTls {
        /// The server.
        host: String,
        /// The mode in force.
        mode: &'static str,
    },
    /// The server's certificate failed a check.
    #[error("the certificate of {host} failed the check of its {check}: {reason}; {remedy}")]
    Certificate {
        /// The server.
        host: String,
        /// Which check failed: `chain`, `host name`, `validity period`, ….
        check: &'static str,
        /// The verifier's words.
        reason: String,
        /// What to change.
        remedy: &'static str,
    },
    /// The handshake failed for another reason; the server may want a client certificate.
    #[error(
        "the TLS handshake with {host} failed: {reason}; check the server's log, and sslcert and sslkey if it asks for a client certificate"
    )]
    Handshake {
        /// The server.
        host: String,
        /// What the TLS library said.
        reason: String,
    },
    /// TLS could not be set up on this side.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The server answered with an error that is not about the login.
    #[error("{host} refused the session: {message} (SQLSTATE {}); {}", .sqlstate.code(), advice(.sqlstate))]
    Server {
        /// The server.
        host: String,
        /// Its error code.
        sqlstate: SqlState,
        /// Its words.
        message: String,
        /// The driver's error.
        source: tokio_postgres::Error,
    },
    /// The server is not of the wanted kind.
    #[error("{host} is not what target_session_attrs={} asks for; it may become so, or else list every server of the cluster in the DSN", .wanted.as_str())]
    Target {
        /// The server.
        host: String,
        /// What was asked for.
        wanted: TargetSessionAttrs,
    },
    /// The program gave no connection string for the session.
    #[error("there is no connection string for this session: {0}; check what renews it")]
    Renewal(String),
    /// Several servers were tried.
    #[error("none of the servers took the session: {}", list(.0))]
    Several(Vec<ConnectError>),
}

/// What an error means to the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Unreachable,
    Auth,
    Tls,
    Refused,
    Several,
}

impl ConnectError {
    /// Whether the login itself was refused: a retry does not help, another credential may.
    #[must_use]
    pub fn is_auth(&self) -> bool {
        self.parts().iter().any(|error| error.class().0 == Class::Auth)
    }

    /// What has to happen before the same attempt can succeed. Of several servers one is enough.
    #[must_use]
    pub fn remedy(&self) -> Remedy {
        match self {
            Self::Deadline { .. }
            | Self::Unreachable { .. }
            | Self::Broken { .. }
            | Self::Renewal(_)
            // A standby may be promoted: while a cluster fails over it has no primary.
            | Self::Target { .. } => Remedy::Time,
            Self::Server { sqlstate, .. } => Remedy::of_sqlstate(sqlstate.code()),
            Self::Auth { .. }
            | Self::ChannelBinding { .. }
            | Self::NoTls { .. }
            | Self::Certificate { .. }
            | Self::Handshake { .. } => Remedy::Operator,
            Self::NoPassword { .. } | Self::Tls(_) => Remedy::Input,
            Self::Several(errors) => Remedy::any(errors.iter().map(Self::remedy)),
        }
    }

    /// Whether no server could be spoken to: a retry may help.
    #[must_use]
    pub fn is_unreachable(&self) -> bool {
        self.parts().iter().all(|error| error.class().0 == Class::Unreachable)
    }

    /// Whether TLS stood in the way: a retry does not help.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        self.parts().iter().any(|error| error.class().0 == Class::Tls)
    }

    /// The server's error code, where it sent one; of several servers the last one's.
    #[must_use]
    pub fn sqlstate(&self) -> Option<&SqlState> {
        self.parts().iter().rev().find_map(|error| error.class().1)
    }

    /// The table of what each error means, with the server's code where it sent one.
    fn class(&self) -> (Class, Option<&SqlState>) {
        match self {
            Self::Deadline { .. }
            | Self::Unreachable { .. }
            | Self::Broken { .. }
            | Self::Renewal(_) => (Class::Unreachable, None),
            Self::Auth { source, .. } => (Class::Auth, source.code()),
            Self::NoPassword { .. } => (Class::Auth, None),
            Self::ChannelBinding { .. }
            | Self::NoTls { .. }
            | Self::Certificate { .. }
            | Self::Handshake { .. }
            | Self::Tls(_) => (Class::Tls, None),
            Self::Server { sqlstate, .. } => (Class::Refused, Some(sqlstate)),
            Self::Target { .. } => (Class::Refused, None),
            Self::Several(_) => (Class::Several, None),
        }
    }

    /// One error for each server that was tried.
    fn parts(&self) -> &[Self] {
        match self {
            Self::Several(errors) => errors,
            one => std::slice::from_ref(one),
        }
    }

    /// Sorts a driver's error. The driver keeps its kind private and shows it in its first words
    /// only, so those are compared here, in this one place; the tests against a real server hold
    /// each of them.
    pub(crate) fn from_driver(
        error: tokio_postgres::Error,
        host: &Host,
        user: &str,
        mode: &'static str,
    ) -> Self {
        let host = host.to_string();
        if let Some(db) = error.as_db_error() {
            let sqlstate = db.code().clone();
            let message = db.message().to_owned();
            return if sqlstate.code().starts_with("28") {
                Self::Auth { host, user: user.to_owned(), reason: message, source: error }
            } else {
                Self::Server { host, sqlstate, message, source: error }
            };
        }
        if let Some(tls) = find_tls(&error) {
            return Self::from_rustls(tls, host);
        }
        let reason = deepest(&error);
        match error.to_string().as_str() {
            "error performing TLS handshake" if reason == "server does not support TLS" => {
                Self::NoTls { host, mode }
            }
            "error performing TLS handshake" => Self::Handshake { host, reason },
            "authentication error" if reason.contains("channel binding") => {
                Self::ChannelBinding { host }
            }
            "authentication error" => {
                Self::Auth { host, user: user.to_owned(), reason, source: error }
            }
            "invalid configuration" if reason == "password missing" => {
                Self::NoPassword { host, user: user.to_owned() }
            }
            "error connecting to server" => Self::Unreachable {
                host,
                source: match error.into_source().map(|source| source.downcast::<std::io::Error>())
                {
                    Some(Ok(source)) => *source,
                    Some(Err(source)) => std::io::Error::other(source),
                    None => std::io::Error::other(reason),
                },
            },
            _ => Self::Broken { host, reason, source: Some(error) },
        }
    }

    fn from_rustls(error: &rustls::Error, host: String) -> Self {
        let reason = error.to_string();
        let rustls::Error::InvalidCertificate(certificate) = error else {
            return Self::Handshake { host, reason };
        };
        let (check, remedy) = match certificate {
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                ("chain", "name the file of its certificate authority with sslrootcert")
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                (
                    "host name",
                    "use a host name that the certificate lists, or sslmode=verify-ca to leave the name unchecked",
                )
            }
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. } => {
                ("validity period", "renew the certificate, or correct this machine's clock")
            }
            CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
                ("purpose", "issue it for server authentication")
            }
            _ if format!("{certificate:?}").contains("CaUsedAsEndEntity") => {
                ("kind", "it is an authority's own certificate: issue a server certificate from it")
            }
            _ => ("contents", "issue a new certificate (X.509 v3 with subject alternative names)"),
        };
        Self::Certificate { host, check, reason, remedy }
    }
}

fn advice(sqlstate: &SqlState) -> &'static str {
    match sqlstate.code() {
        "3D000" => "create the database or correct its name",
        "53200" => "raise max_locks_per_transaction or free memory",
        "53300" => "raise max_connections or close idle sessions",
        "57P03" => "wait until the server has started",
        "42501" => "grant CONNECT on the database",
        _ => "see the server's log",
    }
}

fn list(errors: &[ConnectError]) -> String {
    let texts: Vec<_> = errors.iter().map(ToString::to_string).collect();
    texts.join("; ")
}

/// The last error of the chain: the driver's own words stop at "db error".
fn deepest(error: &tokio_postgres::Error) -> String {
    let mut last: &dyn StdError = error;
    while let Some(next) = last.source() {
        last = next;
    }
    last.to_string()
}

/// rustls' error travels inside an `io::Error`, which hides it from `source()`.
fn find_tls(error: &tokio_postgres::Error) -> Option<&rustls::Error> {
    let mut next = error.source();
    while let Some(current) = next {
        if let Some(found) = current.downcast_ref::<rustls::Error>() {
            return Some(found);
        }
        if let Some(inner) = current.downcast_ref::<std::io::Error>().and_then(|io| io.get_ref())
            && let Some(found) = inner.downcast_ref::<rustls::Error>()
        {
            return Some(found);
        }
        next = current.source();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_certificate_names_the_check_that_failed() {
        for (error, expected) in [
            (CertificateError::UnknownIssuer, "chain"),
            (CertificateError::BadSignature, "chain"),
            (CertificateError::NotValidForName, "host name"),
            (CertificateError::Expired, "validity period"),
            (CertificateError::NotValidYet, "validity period"),
            (CertificateError::InvalidPurpose, "purpose"),
            (CertificateError::BadEncoding, "contents"),
        ] {
            let told = ConnectError::from_rustls(&error.clone().into(), "db:5432".into());
            let ConnectError::Certificate { check, .. } = told else { panic!("{told}") };
            assert_eq!(check, expected, "{error:?}");
        }
        let alert = rustls::Error::AlertReceived(rustls::AlertDescription::CertificateRequired);
        let told = ConnectError::from_rustls(&alert, "db:5432".into());
        assert!(told.is_tls() && told.to_string().contains("sslcert"), "{told}");
    }
}
