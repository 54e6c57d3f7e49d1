//! The keys of a DSN and the types of their values.

use super::{DsnError, Env};

/// Every key that is honoured, with the libpq variable that fills it in when the DSN is silent.
const KNOWN: &[(&str, Option<&str>)] = &[
    ("application_name", Some("PGAPPNAME")),
    ("channel_binding", Some("PGCHANNELBINDING")),
    ("client_encoding", Some("PGCLIENTENCODING")),
    ("connect_timeout", Some("PGCONNECT_TIMEOUT")),
    ("dbname", Some("PGDATABASE")),
    ("fallback_application_name", None),
    ("gssencmode", Some("PGGSSENCMODE")),
    ("host", Some("PGHOST")),
    ("hostaddr", Some("PGHOSTADDR")),
    ("keepalives", None),
    ("keepalives_count", None),
    ("keepalives_idle", None),
    ("keepalives_interval", None),
    ("keepalives_retries", None),
    ("load_balance_hosts", Some("PGLOADBALANCEHOSTS")),
    ("options", Some("PGOPTIONS")),
    ("passfile", Some("PGPASSFILE")),
    ("password", Some("PGPASSWORD")),
    ("port", Some("PGPORT")),
    ("service", Some("PGSERVICE")),
    ("sslcert", Some("PGSSLCERT")),
    ("sslkey", Some("PGSSLKEY")),
    ("sslmode", Some("PGSSLMODE")),
    ("sslnegotiation", Some("PGSSLNEGOTIATION")),
    ("sslrootcert", Some("PGSSLROOTCERT")),
    ("target_session_attrs", Some("PGTARGETSESSIONATTRS")),
    ("tcp_user_timeout", None),
    ("user", Some("PGUSER")),
];

/// Keys of libpq that would change the meaning of a connection if they were dropped in silence.
const UNSUPPORTED: &[(&str, &str)] = &[
    ("gssdelegation", "there is no GSSAPI here"),
    ("gsslib", "there is no GSSAPI here"),
    ("krbsrvname", "there is no Kerberos here"),
    ("replication", "an election needs an ordinary session"),
    ("require_auth", "the method cannot be restricted; use channel_binding=require"),
    ("requirepeer", "the peer of a Unix socket is not checked"),
    ("requiressl", "it is obsolete; use sslmode"),
    ("ssl_max_protocol_version", "TLS 1.2 and 1.3 are always offered"),
    ("ssl_min_protocol_version", "TLS 1.2 and 1.3 are always offered"),
    ("sslcertmode", "a certificate is sent when there is one and the server asks"),
    ("sslcompression", "TLS compression is never used"),
    ("sslcrl", "revocation lists are not read"),
    ("sslcrldir", "revocation lists are not read"),
    ("sslkeylogfile", "session keys are never written"),
    ("sslpassword", "encrypted keys are not read; decrypt the key file"),
    ("sslsni", "the server name is always sent"),
];

/// Variables that make libpq stricter: to ignore one in silence would be laxer than asked for.
const STRICTER: &[(&str, &str)] = &[
    ("PGREQUIREAUTH", "require_auth"),
    ("PGREQUIREPEER", "requirepeer"),
    ("PGSSLCRL", "sslcrl"),
    ("PGSSLCRLDIR", "sslcrldir"),
];

/// Refuses a variable that asks for more than can be given.
pub(super) fn check_variables(env: &dyn Env) -> Result<(), DsnError> {
    let Some((variable, key)) = STRICTER.iter().find(|(name, _)| env.var(name).is_some()) else {
        return Ok(());
    };
    check(key).map_err(|error| match error {
        DsnError::Unsupported { reason, .. } => {
            DsnError::Unsupported { key: (*variable).to_owned(), reason }
        }
        other => other,
    })
}

pub(super) fn is_known(key: &str) -> bool {
    KNOWN.iter().any(|(known, _)| *known == key)
}

pub(super) fn variables() -> impl Iterator<Item = (&'static str, &'static str)> {
    KNOWN.iter().filter_map(|(key, variable)| variable.map(|variable| (*key, variable)))
}

/// Refuses a key that is not honoured, saying which and why.
pub(super) fn check(key: &str) -> Result<(), DsnError> {
    if is_known(key) {
        return Ok(());
    }
    Err(match UNSUPPORTED.iter().find(|(known, _)| *known == key) {
        Some((_, reason)) => DsnError::Unsupported { key: key.to_owned(), reason },
        None => DsnError::UnknownKey { key: key.to_owned() },
    })
}

/// How TLS is used, with libpq's names and meanings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SslMode {
    /// Never.
    Disable,
    /// Only if the server refuses a session without.
    Allow,
    /// If the server offers it; nothing is verified.
    Prefer,
    /// Always; the chain is verified if root certificates are named, the host never.
    Require,
    /// Always; the chain is verified, the host name is not.
    VerifyCa,
    /// Always; chain and host name are verified.
    VerifyFull,
}

impl SslMode {
    /// The name in a DSN.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Disable => "disable",
            Self::Allow => "allow",
            Self::Prefer => "prefer",
            Self::Require => "require",
            Self::VerifyCa => "verify-ca",
            Self::VerifyFull => "verify-full",
        }
    }

    pub(super) fn parse(text: &str) -> Result<Self, DsnError> {
        [Self::Disable, Self::Allow, Self::Prefer, Self::Require, Self::VerifyCa, Self::VerifyFull]
            .into_iter()
            .find(|mode| mode.as_str() == text)
            .ok_or(DsnError::Value {
                key: "sslmode",
                expected: "disable, allow, prefer, require, verify-ca or verify-full",
            })
    }
}

/// Which of several servers will do, with libpq's names and meanings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum TargetSessionAttrs {
    /// The first that answers, in the order of the DSN.
    Any,
    /// One that accepts writes.
    ReadWrite,
    /// One that refuses writes.
    ReadOnly,
    /// One that is not in recovery.
    Primary,
    /// One that is in recovery.
    Standby,
    /// A standby if there is one, else any.
    PreferStandby,
}

impl TargetSessionAttrs {
    /// The name in a DSN.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Any => "any",
            Self::ReadWrite => "read-write",
            Self::ReadOnly => "read-only",
            Self::Primary => "primary",
            Self::Standby => "standby",
            Self::PreferStandby => "prefer-standby",
        }
    }

    pub(super) fn parse(text: &str) -> Result<Self, DsnError> {
        [
            Self::Any,
            Self::ReadWrite,
            Self::ReadOnly,
            Self::Primary,
            Self::Standby,
            Self::PreferStandby,
        ]
        .into_iter()
        .find(|attrs| attrs.as_str() == text)
        .ok_or(DsnError::Value {
            key: "target_session_attrs",
            expected: "any, read-write, read-only, primary, standby or prefer-standby",
        })
    }
}

/// Whether SCRAM is bound to the TLS channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChannelBinding {
    /// Never.
    Disable,
    /// If both sides can.
    Prefer,
    /// Always: a session without TLS, or a login that is not SCRAM, fails.
    Require,
}

impl ChannelBinding {
    pub(super) fn parse(text: &str) -> Result<Self, DsnError> {
        match text {
            "disable" => Ok(Self::Disable),
            "prefer" => Ok(Self::Prefer),
            "require" => Ok(Self::Require),
            _ => Err(DsnError::Value {
                key: "channel_binding",
                expected: "disable, prefer or require",
            }),
        }
    }
}

/// Which certificates are trusted.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum RootCert {
    /// The system's trust store.
    System,
    /// The certificates of a PEM file.
    File(std::path::PathBuf),
}
