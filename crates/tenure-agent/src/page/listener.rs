//! The page's own listener: plain or TLS, bounded in connections and time. A client that hangs loses its own
//! answer and nothing else.

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

/// More at once wait.
const CONNECTIONS: usize = 256;
/// How long a request's head may take to come, and a TLS handshake.
const HEAD: Duration = Duration::from_secs(10);
/// How long a connection may live; a browser that still looks opens another one.
const LIFETIME: Duration = Duration::from_secs(900);
/// The longest head of a request.
const HEAD_BYTES: usize = 16 * 1024;

/// Reads a certificate chain and its key.
pub(super) fn acceptor(cert: &Path, key: &Path) -> Result<TlsAcceptor, String> {
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

/// Serves until it is dropped.
pub(super) async fn serve(socket: TcpListener, tls: Option<TlsAcceptor>, router: Router) {
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(place) = Arc::clone(&room).acquire_owned().await else { return };
        match socket.accept().await {
            Ok((stream, _)) => {
                let (router, tls) = (router.clone(), tls.clone());
                tokio::spawn(async move {
                    let talk = async {
                        match tls {
                            None => converse(stream, router).await,
                            Some(tls) => {
                                let stream = timeout(HEAD, tls.accept(stream)).await??;
                                converse(stream, router).await
                            }
                        }
                    };
                    let _ = timeout(LIFETIME, talk).await;
                    drop(place);
                });
            }
            // Out of file descriptors, most likely: others must close first.
            Err(_) => sleep(Duration::from_millis(100)).await,
        }
    }
}

async fn converse(stream: impl AsyncRead + AsyncWrite + Unpin, router: Router) -> io::Result<()> {
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router))
        .await
        .map_err(io::Error::other)
}
