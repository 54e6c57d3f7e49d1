//! Optional mutual TLS below the session.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

/// The PEM files of mutual TLS.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    /// This node's certificate, and those between it and the authority.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// The authority that signs the certificates of all nodes.
    pub ca: PathBuf,
}

/// Both sides of TLS.
#[derive(Clone)]
pub(crate) struct Tls {
    acceptor: TlsAcceptor,
    connector: TlsConnector,
}

impl Tls {
    pub(crate) fn load(files: &TlsFiles) -> Result<Self, String> {
        let certs = |path: &PathBuf| -> Result<Vec<CertificateDer<'static>>, String> {
            CertificateDer::pem_file_iter(path)
                .and_then(Iterator::collect)
                .map_err(|e| format!("{}: {e}", path.display()))
        };
        let chain = certs(&files.cert)?;
        let key = || {
            PrivateKeyDer::from_pem_file(&files.key)
                .map_err(|e| format!("{}: {e}", files.key.display()))
        };
        let mut roots = RootCertStore::empty();
        for ca in certs(&files.ca)? {
            roots.add(ca).map_err(|e| e.to_string())?;
        }
        let roots = Arc::new(roots);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone())
            .build()
            .map_err(|e| e.to_string())?;
        let server = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|e| e.to_string())?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain.clone(), key()?)
            .map_err(|e| e.to_string())?;
        let client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|e| e.to_string())?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key()?)
            .map_err(|e| e.to_string())?;
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
