//! The one HTTP listener, of the page and of the probes: plain or TLS, bounded in connections and time. A client
//! that hangs loses its own answer and nothing else.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use crate::page::{Stamp, stamp};

/// How much a listener gives to its clients.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// More connections at once wait.
    pub connections: usize,
    /// Of one address beyond loopback, so that one client cannot take the place of all others; one more is closed.
    pub of_one: usize,
    /// How long a request's head may take to come, and a TLS handshake.
    pub head: Duration,
    /// How long a connection may live; a client that still needs one opens another.
    pub lifetime: Duration,
}

/// Between two looks at whether certificate and key have changed.
const LOOK: Duration = Duration::from_secs(1);
/// The longest head of a request.
const HEAD_BYTES: usize = 16 * 1024;

fn acceptor(cert: &Path, key: &Path) -> Result<TlsAcceptor, String> {
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

/// The address that a request came from: the proxy's, if there is one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer(pub(crate) IpAddr);

/// Certificate and key, as they are now: a renewed certificate is used without a restart.
pub struct Tls {
    files: [PathBuf; 2],
    kept: Mutex<(TlsAcceptor, [Option<Stamp>; 2], Instant)>,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").field("files", &self.files).finish_non_exhaustive()
    }
}

impl Tls {
    /// Reads a certificate chain and its key.
    pub(crate) fn open(cert: &Path, key: &Path) -> Result<Self, String> {
        let files = [cert.to_owned(), key.to_owned()];
        let stamps = files.each_ref().map(|file| stamp(file));
        let kept = Mutex::new((acceptor(cert, key)?, stamps, Instant::now()));
        Ok(Tls { files, kept })
    }

    /// What a new connection is greeted with. Files that cannot be used leave the old certificate in place.
    fn current(&self) -> TlsAcceptor {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let (acceptor_, stamps, looked) = &mut *kept;
        if looked.elapsed() > LOOK {
            *looked = Instant::now();
            let now = self.files.each_ref().map(|file| stamp(file));
            if now != *stamps {
                *stamps = now;
                match acceptor(&self.files[0], &self.files[1]) {
                    Ok(fresh) => *acceptor_ = fresh,
                    Err(why) => tracing::error!("the page keeps its old certificate: {why}"),
                }
            }
        }
        acceptor_.clone()
    }
}

/// How many connections each address has.
#[derive(Debug, Default)]
struct Peers(Mutex<HashMap<IpAddr, usize>>);

/// A connection's place among those of its address.
struct Place(Arc<Peers>, IpAddr);

impl Peers {
    /// None if the address has as many as it may. Loopback may have all: a proxy, and every person of this machine.
    fn enter(self: &Arc<Self>, peer: IpAddr, most: usize) -> Option<Place> {
        let mut peers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = peers.entry(peer).or_default();
        if *count >= most && !peer.is_loopback() {
            return None;
        }
        *count += 1;
        Some(Place(Arc::clone(self), peer))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut peers = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = peers.get_mut(&self.1) {
            *count -= 1;
            if *count == 0 {
                peers.remove(&self.1);
            }
        }
    }
}

/// Serves until it is dropped, and its connections with it.
pub async fn serve(socket: TcpListener, tls: Option<Tls>, router: Router, limits: Limits) {
    let room = Arc::new(Semaphore::new(limits.connections));
    let peers = Arc::new(Peers::default());
    let mut talks = JoinSet::new();
    loop {
        let Ok(place) = Arc::clone(&room).acquire_owned().await else { return };
        while talks.try_join_next().is_some() {}
        match socket.accept().await {
            Ok((stream, peer)) => {
                let peer = peer.ip().to_canonical();
                // One too many is closed at once.
                let Some(of_peer) = peers.enter(peer, limits.of_one) else { continue };
                let router = router.clone().layer(Extension(Peer(peer)));
                let tls = tls.as_ref().map(Tls::current);
                talks.spawn(async move {
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
                    drop((place, of_peer));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_cannot_take_the_place_of_all_others() {
        const OF_ONE: usize = 64;
        let peers = Arc::new(Peers::default());
        let far: IpAddr = [203, 0, 113, 7].into();
        let mut places: Vec<_> = (0..OF_ONE).map(|_| peers.enter(far, OF_ONE)).collect();
        assert!(places.iter().all(Option::is_some));
        assert!(peers.enter(far, OF_ONE).is_none(), "one too many");
        assert!(peers.enter([203, 0, 113, 8].into(), OF_ONE).is_some(), "another address");
        let home: IpAddr = [127, 0, 0, 1].into();
        let at_home: Vec<_> = (0..OF_ONE * 4).map(|_| peers.enter(home, OF_ONE)).collect();
        assert!(at_home.iter().all(Option::is_some), "this machine has all of them");
        places.pop();
        assert!(peers.enter(far, OF_ONE).is_some(), "one has left");
        drop((places, at_home));
        assert!(peers.0.lock().expect("whole").is_empty());
    }
}
