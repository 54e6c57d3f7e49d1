//! The one HTTP listener, of the page and of the probes: plain or TLS, bounded in connections and time. A client
//! that hangs loses its own answer and nothing else.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

/// How much a listener gives to its clients.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// More connections at once wait.
    pub connections: usize,
    /// How long a request's head may take to come, and a TLS handshake.
    pub head: Duration,
    /// How long a connection may live; a client that still needs one opens another.
    pub lifetime: Duration,
}

/// The longest head of a request.
const HEAD_BYTES: usize = 16 * 1024;

/// Reads a certificate chain and its key.
pub(crate) fn acceptor(cert: &Path, key: &Path) -> Result<TlsAcceptor, String> {
    let said = |file: &Path, error: &dyn std::fmt::Display| {
        format!("{}: {error}; give a PEM file that this user can read", file.display())
    };
    let chain = CertificateDer::pem_file_iter(cert).map_err(|error| said(cert, &error))?;
    let chain = chain.collect::<Result<Vec<_>, _>>().map_err(|error| said(cert, &error))?;
    if chain.is_empty() {
        return Err(said(cert, &"it has no certificate"));
    }
    let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| said(key, &error))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| said(cert, &error))?
        .with_no_client_auth()
        .with_single_cert(chain, secret)
        .map_err(|error| said(cert, &error))?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Serves until it is dropped; connections that are open then go on, until their time is over.
pub async fn serve(socket: TcpListener, tls: Option<TlsAcceptor>, router: Router, limits: Limits) {
    let room = Arc::new(Semaphore::new(limits.connections));
    loop {
        let Ok(place) = Arc::clone(&room).acquire_owned().await else { return };
        match socket.accept().await {
            Ok((stream, _)) => {
                let (router, tls) = (router.clone(), tls.clone());
                tokio::spawn(async move {
                    let talk = async {
                        match tls {
                            None => converse(stream, router, limits.head).await,
                            Some(tls) => {
                                let stream = timeout(limits.head, tls.accept(stream)).await??;
                                converse(stream, router, limits.head).await
                            }
                        }
                    };
                    let _ = timeout(limits.lifetime, talk).await;
                    drop(place);
                });
            }
            // Out of file descriptors, most likely: others must close first.
            Err(_) => sleep(Duration::from_millis(100)).await,
        }
    }
}

async fn converse(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    router: Router,
    head: Duration,
) -> io::Result<()> {
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(head)
        .max_buf_size(HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router))
        .await
        .map_err(io::Error::other)
}
