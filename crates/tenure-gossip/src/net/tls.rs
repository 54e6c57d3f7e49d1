//! Optional mutual TLS below the session.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

/// The PEM files of mutual TLS.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    /// This node's certificate, and the certificates between it and the authority.
    pub cert: PathBuf,
    /// The key of that certificate.
    pub key: PathBuf,
    /// The authority that signs the certificates of all nodes.
    pub ca: PathBuf,
}

/// The files of mutual TLS cannot be used.
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
    /// The authority's certificate is none that can sign others.
    #[error(
        "TLS: the authority cannot be used: {0}; name the certificate that signs those of all nodes"
    )]
    Authority(#[source] VerifierBuilderError),
    /// Certificate and key do not fit together, or are of a kind that is not known.
    #[error("TLS: {0}; certificate and key must belong together")]
    Rejected(#[from] rustls::Error),
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|source| TlsError::File { path: path.to_owned(), source })
}

fn key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_file(path)
        .map_err(|source| TlsError::File { path: path.to_owned(), source })
}

/// Both sides of TLS.
#[derive(Clone)]
pub(crate) struct Tls {
    acceptor: TlsAcceptor,
    connector: TlsConnector,
}

impl Tls {
    pub(crate) fn load(files: &TlsFiles) -> Result<Self, TlsError> {
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
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain.clone(), key(&files.key)?)?;
        let client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key(&files.key)?)?;
        Ok(Self { acceptor: Arc::new(server).into(), connector: Arc::new(client).into() })
    }

    pub(crate) async fn accept(&self, stream: TcpStream) -> std::io::Result<TlsStream<TcpStream>> {
        Ok(self.acceptor.accept(stream).await?.into())
    }

    pub(crate) async fn connect(
        &self,
        address: &str,
        stream: TcpStream,
    ) -> std::io::Result<TlsStream<TcpStream>> {
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned())
            .map_err(std::io::Error::other)?;
        Ok(self.connector.connect(name, stream).await?.into())
    }
}
