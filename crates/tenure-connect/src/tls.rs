//! TLS to the database: verified unless the DSN says otherwise.
//!
//! | `sslmode` | without TLS? | certificate must |
//! |---|---|---|
//! | absent, Unix socket | yes | – (a socket of this machine is not encrypted, as in libpq) |
//! | absent, loopback | if the server has none | nothing: a program that can listen there is already on this machine |
//! | absent, any other host | never | chain to a trusted root and name the host (`verify-full`) |
//! | `disable` | always | – |
//! | `allow`, `prefer` | possible | nothing |
//! | `require` | never | nothing; with root certificates named, as `verify-ca` (libpq's rule) |
//! | `verify-ca` | never | chain to a trusted root |
//! | `verify-full` | never | chain to a trusted root and name the host |
//!
//! Trusted roots: `sslrootcert`, else `~/.postgresql/root.crt` if it exists, else `SH_DB_TLS_CA_FILE`, else
//! the system's store. A host is
//! looked for in the certificate's subject alternative names only; a common name does not count.
//! `SH_DB_TLS_INSECURE` takes the verification (not the encryption) away from every mode and is
//! logged as a warning.
//!
//! Files are read again for each connection, so that a rotated certificate is used by the next
//! one; the system's store is read once.

mod verify;

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use crate::dsn::{ClientCert, Dsn, Env, NotASwitch, RootCert, SslMode, switch};
use verify::{Check, Trust, Verifier};

/// What is said about TLS apart from the DSN. The variables that [`TlsOptions::from_env`] reads have
/// StorageHub's names (`docs/coming-from.md`).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[must_use]
pub struct TlsOptions {
    insecure: bool,
    ca_file: Option<PathBuf>,
}

impl TlsOptions {
    /// Verified, with the DSN's or the system's roots.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads `SH_DB_TLS_INSECURE` and `SH_DB_TLS_CA_FILE`.
    ///
    /// # Errors
    /// [`TlsError::Switch`] if `SH_DB_TLS_INSECURE` is neither a yes nor a no: a typing error must
    /// not switch verification off, nor go unnoticed.
    pub fn from_env(env: &dyn Env) -> Result<Self, TlsError> {
        let insecure = switch(env, "SH_DB_TLS_INSECURE").map_err(|NotASwitch| TlsError::Switch)?;
        Ok(Self {
            insecure: insecure.unwrap_or(false),
            ca_file: env.var("SH_DB_TLS_CA_FILE").map(PathBuf::from),
        })
    }

    /// Takes all verification of the server's certificate away. Default: false. For a
    /// developer's machine: any host that answers on the network may then pose as the database.
    pub fn insecure(mut self, insecure: bool) -> Self {
        self.insecure = insecure;
        self
    }

    /// The root certificates to trust where the DSN has no `sslrootcert` and there is no
    /// `~/.postgresql/root.crt`; a PEM file. Default: the system's.
    pub fn ca_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.ca_file = Some(path.into());
        self
    }
}

/// Why TLS could not be set up. Nothing was sent; a retry helps after the file was corrected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// `SH_DB_TLS_INSECURE` is unreadable.
    #[error("SH_DB_TLS_INSECURE must be true or false; correct it or unset it")]
    Switch,
    /// A PEM file is missing or malformed.
    #[error("{what} {} cannot be used: {reason}; check that the path is right and that the file holds {what} in PEM form", .path.display())]
    File {
        /// What the file should hold.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A private key that others may read.
    #[error("the private key {} is readable by others; set its mode to 0600 (or 0640 when root owns it)", .path.display())]
    KeyPermissions {
        /// The file.
        path: PathBuf,
    },
    /// The key does not belong to the certificate, or is of a kind that is not supported.
    #[error("the client certificate {} cannot be used with its key: {reason}; pair the right files", .path.display())]
    KeyPair {
        /// The certificate's file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The system's trust store is empty.
    #[error(
        "the system's trust store has no certificates; install the ca-certificates package, or name a file with sslrootcert"
    )]
    EmptyStore,
    /// rustls refused the set-up.
    #[error(
        "TLS cannot be set up: {reason}; check the files that sslrootcert, sslcert and sslkey name"
    )]
    Setup {
        /// What rustls said.
        reason: String,
    },
}

/// What a connection asks of TLS, once the mode is resolved for a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verify {
    Nothing,
    Chain,
    ChainAndName,
}

/// The TLS settings of one DSN.
#[derive(Debug)]
pub(crate) struct Tls {
    provider: Arc<CryptoProvider>,
    roots: Roots,
    client_cert: Option<ClientCert>,
    insecure: bool,
}

#[derive(Debug)]
enum Roots {
    System(OnceLock<RootCertStore>),
    File(PathBuf),
}

impl Tls {
    pub(crate) fn new(dsn: &Dsn, options: &TlsOptions) -> Self {
        let roots = match (&dsn.root_cert, &options.ca_file) {
            (Some(RootCert::File(path)), _) | (None, Some(path)) => Roots::File(path.clone()),
            (Some(RootCert::System), _) | (None, None) => Roots::System(OnceLock::new()),
        };
        Self {
            provider: Arc::new(rustls::crypto::ring::default_provider()),
            roots,
            client_cert: dsn.client_cert.clone(),
            insecure: options.insecure,
        }
    }

    pub(crate) fn is_insecure(&self) -> bool {
        self.insecure
    }

    /// What `mode` verifies here.
    pub(crate) fn verify(&self, mode: SslMode) -> Verify {
        if self.insecure {
            return Verify::Nothing;
        }
        match (mode, &self.roots) {
            (SslMode::Disable | SslMode::Allow | SslMode::Prefer, _)
            | (SslMode::Require, Roots::System(_)) => Verify::Nothing,
            (SslMode::Require, Roots::File(_)) | (SslMode::VerifyCa, _) => Verify::Chain,
            (SslMode::VerifyFull, _) => Verify::ChainAndName,
        }
    }

    /// A configuration that verifies as asked; reads the files anew.
    pub(crate) fn client_config(&self, verify: Verify) -> Result<ClientConfig, TlsError> {
        let builder = ClientConfig::builder_with_provider(self.provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| TlsError::Setup { reason: error.to_string() })?;
        let check = match verify {
            Verify::Nothing => Check::Nothing,
            Verify::Chain => Check::Chain(self.trust()?),
            Verify::ChainAndName => Check::ChainAndName(self.trust()?),
        };
        let verifier = Arc::new(Verifier { check, provider: self.provider.clone() });
        let builder = builder.dangerous().with_custom_certificate_verifier(verifier);
        let mut config = match &self.client_cert {
            None => builder.with_no_client_auth(),
            Some(files) => {
                let chain = certificates("a client certificate", &files.cert)?;
                let key = private_key(&files.key)?;
                builder.with_client_auth_cert(chain, key).map_err(|error| TlsError::KeyPair {
                    path: files.cert.clone(),
                    reason: error.to_string(),
                })?
            }
        };
        // Needed for sslnegotiation=direct, and harmless before PostgreSQL 17.
        config.alpn_protocols = vec![b"postgresql".to_vec()];
        Ok(config)
    }

    fn trust(&self) -> Result<Trust, TlsError> {
        match &self.roots {
            Roots::File(path) => {
                let named = certificates("root certificates", path)?;
                let mut roots = RootCertStore::empty();
                for certificate in &named {
                    roots.add(certificate.clone()).map_err(|error| TlsError::File {
                        what: "root certificates",
                        path: path.clone(),
                        reason: error.to_string(),
                    })?;
                }
                Ok(Trust { roots, named })
            }
            Roots::System(store) => {
                let store = store.get_or_init(|| {
                    let mut store = RootCertStore::empty();
                    let found = rustls_native_certs::load_native_certs();
                    for error in &found.errors {
                        tracing::warn!(%error, "part of the system's trust store cannot be read");
                    }
                    store.add_parsable_certificates(found.certs);
                    store
                });
                if store.is_empty() {
                    return Err(TlsError::EmptyStore);
                }
                Ok(Trust { roots: store.clone(), named: Vec::new() })
            }
        }
    }
}

fn certificates(what: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let bad = |reason: String| TlsError::File { what, path: path.to_owned(), reason };
    let found: Vec<_> = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|error| bad(error.to_string()))?;
    if found.is_empty() {
        return Err(bad("it holds no certificate".into()));
    }
    Ok(found)
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        // libpq's rule: private, or owned by root and readable by a group at most.
        if let Ok(metadata) = std::fs::metadata(path) {
            let forbidden = if metadata.uid() == 0 { 0o027 } else { 0o077 };
            if metadata.mode() & forbidden != 0 {
                return Err(TlsError::KeyPermissions { path: path.to_owned() });
            }
        }
    }
    PrivateKeyDer::from_pem_file(path).map_err(|error| TlsError::File {
        what: "a private key",
        path: path.to_owned(),
        // Not the parser's own words: they may quote the line it failed at.
        reason: match error {
            pem::Error::Io(error) => error.to_string(),
            pem::Error::NoItemsFound => "it holds no unencrypted private key".into(),
            _ => "it is malformed".into(),
        },
    })
}
