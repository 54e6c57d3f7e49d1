//! TLS 1.3 below every session. Each side shows its raw ed25519 key (RFC 7250), and that key is its identity.
//! With certificates from an authority (X.509), the certificates are checked first, and the identity is
//! proven over the session's exported secret (see `session`).

mod rawkey;

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, RwLock};
use std::time::SystemTime;

use rustls::client::Resumption;
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{NoServerSessionStorage, VerifierBuilderError, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{ClientConfig, ConnectionCommon, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::session::{SessionError, Stream};
use crate::identity::{Ed25519Keys, PeerId};

/// The label of the secret that both sides of a TLS session export.
const EXPORTED: &[u8] = b"EXPORTER-tenure-gossip";

/// The PEM files of an authority's certificates.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    /// This node's certificate, and the certificates between it and the authority.
    pub cert: PathBuf,
    /// The key of that certificate.
    pub key: PathBuf,
    /// The authority that signs the certificates of all nodes.
    pub ca: PathBuf,
}

/// The files of an authority's certificates cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// One of them cannot be read as PEM.
    #[error("TLS: {}: {source}; it must be a PEM file that this program may read", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: pem::Error,
    },
    /// Every user of this machine may use the key. A group may, as certificates of a system are often kept.
    #[error("TLS: {}: every user of this machine may use it (mode {mode:o}); chmod 600 {}", path.display(), path.display())]
    Exposed {
        /// The file of the key.
        path: PathBuf,
        /// The permissions it has.
        mode: u32,
    },
    /// The authority's certificate is none that can sign others.
    #[error(
        "TLS: the authority cannot be used: {0}; name the certificate that signs those of all nodes"
    )]
    Authority(#[source] VerifierBuilderError),
    /// Certificate and key do not fit together, or are of a kind that is not known.
    #[error("TLS: {0}; certificate and key must belong together")]
    Rejected(#[from] rustls::Error),
}

/// A stream that TLS protects.
pub(crate) struct Secured {
    pub(crate) stream: Box<dyn Stream>,
    /// The key that the other side has proven, if it showed a raw key.
    pub(crate) peer: Option<PeerId>,
    /// A secret of this session that both sides know and no other program does.
    pub(crate) exported: [u8; 32],
}

#[derive(Clone)]
struct Loaded {
    acceptor: TlsAcceptor,
    connector: TlsConnector,
}

/// Both sides of TLS.
pub(crate) struct Tls {
    loaded: RwLock<Loaded>,
    files: Option<(TlsFiles, RwLock<Written>)>,
}

impl Tls {
    /// With the certificates in `files`, or with the raw key alone.
    pub(crate) fn new(keys: &Ed25519Keys, files: Option<&TlsFiles>) -> Result<Self, TlsError> {
        let loaded = match files {
            Some(files) => certified(files)?,
            None => rawkey::raw(keys)?,
        };
        let files = files.map(|files| (files.clone(), RwLock::new(written(files))));
        Ok(Self { loaded: RwLock::new(loaded), files })
    }

    /// Whether certificates of an authority are asked for, so that an identity must be proven besides.
    pub(crate) fn is_certified(&self) -> bool {
        self.files.is_some()
    }

    /// Reads the certificates again if one of the files changed; sessions that are up stay up. Returns
    /// whether it did.
    pub(crate) fn reload_if_changed(&self) -> Result<bool, TlsError> {
        let Some((files, read)) = &self.files else { return Ok(false) };
        let found = written(files);
        if found == *read.read().expect("nothing panics while it is held") {
            return Ok(false);
        }
        let loaded = certified(files)?;
        *self.loaded.write().expect("nothing panics while it is held") = loaded;
        *read.write().expect("nothing panics while it is held") = found;
        Ok(true)
    }

    fn loaded(&self) -> Loaded {
        self.loaded.read().expect("nothing panics while it is held").clone()
    }

    pub(crate) async fn accept<S: Stream>(&self, stream: S) -> Result<Secured, SessionError> {
        let stream = self.loaded().acceptor.accept(stream).await.map_err(broken)?;
        let (peer, exported) = self.proven(stream.get_ref().1)?;
        Ok(Secured { stream: Box::new(stream), peer, exported })
    }

    pub(crate) async fn connect<S: Stream>(
        &self,
        address: &str,
        stream: S,
    ) -> Result<Secured, SessionError> {
        // A raw key has no name; a certificate must be one for the host that was called.
        let host = if self.is_certified() {
            address.rsplit_once(':').map_or(address, |(host, _)| host)
        } else {
            "tenure"
        };
        let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned())
            .map_err(|error| SessionError::Tls(error.to_string()))?;
        let stream = self.loaded().connector.connect(name, stream).await.map_err(broken)?;
        let (peer, exported) = self.proven(stream.get_ref().1)?;
        Ok(Secured { stream: Box::new(stream), peer, exported })
    }

    /// The key that the other side has shown, and the secret of the session.
    fn proven<Side>(
        &self,
        session: &ConnectionCommon<Side>,
    ) -> Result<(Option<PeerId>, [u8; 32]), SessionError> {
        let peer = self.peer(session.peer_certificates())?;
        let exported = session.export_keying_material([0; 32], EXPORTED, None);
        Ok((peer, exported.map_err(|error| SessionError::Tls(error.to_string()))?))
    }

    fn peer(&self, shown: Option<&[CertificateDer<'_>]>) -> Result<Option<PeerId>, SessionError> {
        if self.is_certified() {
            return Ok(None);
        }
        let key = shown.and_then(|shown| shown.first()).and_then(|key| rawkey::identity(key));
        key.map(Some).ok_or(SessionError::Unproven)
    }
}

/// What the failure of a TLS handshake means.
fn broken(error: std::io::Error) -> SessionError {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        Some(rustls::Error::InvalidMessage(_)) => SessionError::NotTls,
        Some(rustls) => SessionError::Tls(rustls.to_string()),
        None if error.kind() == std::io::ErrorKind::UnexpectedEof => SessionError::Closed,
        None => SessionError::Io(error),
    }
}

/// When each file was written: a renewed one may be older than the one in use, as `cp -p` leaves it.
type Written = [Option<SystemTime>; 3];

fn written(files: &TlsFiles) -> Written {
    [&files.cert, &files.key, &files.ca]
        .map(|path| std::fs::metadata(path).and_then(|found| found.modified()).ok())
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|source| TlsError::File { path: path.to_owned(), source })
}

fn key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let mode = std::fs::metadata(path).map_or(0, |found| found.permissions().mode() & 0o777);
    if mode & 0o007 != 0 {
        return Err(TlsError::Exposed { path: path.to_owned(), mode });
    }
    PrivateKeyDer::from_pem_file(path)
        .map_err(|source| TlsError::File { path: path.to_owned(), source })
}

/// Mutual TLS with certificates.
fn certified(files: &TlsFiles) -> Result<Loaded, TlsError> {
    let chain = certificates(&files.cert)?;
    let mut roots = RootCertStore::empty();
    for authority in certificates(&files.ca)? {
        roots.add(authority)?;
    }
    let roots = Arc::new(roots);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone())
        .build()
        .map_err(TlsError::Authority)?;
    let server = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain.clone(), key(&files.key)?)?;
    let client = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key(&files.key)?)?;
    Ok(finished(server, client))
}

/// A session is never resumed: every connection proves its key anew, so a revoked key is out at once.
fn finished(mut server: ServerConfig, mut client: ClientConfig) -> Loaded {
    server.session_storage = Arc::new(NoServerSessionStorage {});
    server.send_tls13_tickets = 0;
    client.resumption = Resumption::disabled();
    Loaded { acceptor: Arc::new(server).into(), connector: Arc::new(client).into() }
}
