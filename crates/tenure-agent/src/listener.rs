//! The one HTTP listener, of the page and of the probes: plain or TLS, bounded in connections and time. A client
//! that hangs, or does not read, loses its own answer and nothing else.

use std::collections::HashMap;
use std::future::Future as _;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Sleep, sleep, timeout};
use tokio_rustls::TlsAcceptor;

use crate::page::{PageError, Stamp, stamp};

/// How much a listener gives to its clients.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// More connections at once wait.
    pub connections: usize,
    /// Of one address, so that one client cannot take the place of all others; one more is closed. A listener on
    /// loopback has clients of one address only, and does not look at this.
    pub of_one: usize,
    /// How long a request's head may take to come, and a TLS handshake.
    pub head: Duration,
    /// How long a client may take to read an answer, or one event of a stream; then its connection is closed.
    pub answer: Duration,
    /// How long a connection may live; a client that still needs one opens another.
    pub lifetime: Duration,
}

/// Between two looks at whether certificate and key have changed.
const LOOK: Duration = Duration::from_secs(1);
/// The longest head of a request.
const HEAD_BYTES: usize = 16 * 1024;

fn acceptor(cert: &Path, key: &Path) -> Result<TlsAcceptor, PageError> {
    let said = |file: &Path, error: &dyn std::fmt::Display| {
        format!("{}: {error}; give a PEM file that this user can read", file.display())
    };
    let bad = |error: &dyn std::fmt::Display| PageError::Certificate(said(cert, error));
    let chain = CertificateDer::pem_file_iter(cert).map_err(|error| bad(&error))?;
    let chain = chain.collect::<Result<Vec<_>, _>>().map_err(|error| bad(&error))?;
    if chain.is_empty() {
        return Err(bad(&"it has no certificate"));
    }
    let secret =
        PrivateKeyDer::from_pem_file(key).map_err(|error| PageError::Key(said(key, &error)))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| bad(&error))?
        .with_no_client_auth()
        .with_single_cert(chain, secret)
        .map_err(|error| bad(&error))?;
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
    pub(crate) fn open(cert: &Path, key: &Path) -> Result<Self, PageError> {
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
    /// None if the address has as many as it may. All of loopback is one address: this machine.
    fn enter(self: &Arc<Self>, peer: IpAddr, most: usize) -> Option<Place> {
        let peer = if peer.is_loopback() { Ipv4Addr::LOCALHOST.into() } else { peer };
        let mut peers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = peers.entry(peer).or_default();
        if *count >= most {
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
    let at_home = socket.local_addr().is_ok_and(|address| address.ip().is_loopback());
    let of_one = if at_home { limits.connections } else { limits.of_one };
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
                let Some(of_peer) = peers.enter(peer, of_one) else { continue };
                let router = router.clone().layer(Extension(Peer(peer)));
                let tls = tls.as_ref().map(Tls::current);
                talks.spawn(async move {
                    let talk = async {
                        match tls {
                            None => converse(stream, router, limits).await,
                            Some(tls) => {
                                let stream = timeout(limits.head, tls.accept(stream)).await??;
                                converse(stream, router, limits).await
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
    limits: Limits,
) -> io::Result<()> {
    let stream = Heard { stream, within: limits.answer, late: None };
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        .max_buf_size(HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router))
        .await
        .map_err(io::Error::other)
}

/// A connection whose client must read: what was written and is not flushed in time is an error. The time counts
/// from the first write that has to wait until everything is flushed, so that a client that reads a byte now and then
/// has no more of it.
struct Heard<S> {
    stream: S,
    within: Duration,
    late: Option<Pin<Box<Sleep>>>,
}

impl<S> Heard<S> {
    fn bounded<T>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            return written;
        }
        let within = self.within;
        let late = self.late.get_or_insert_with(|| Box::pin(sleep(within)));
        late.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Heard<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, into)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Heard<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.bounded(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bytes);
        self.bounded(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        if flushed.is_ready() {
            // The server flushes when it has written all that it has.
            self.late = None;
        }
        self.bounded(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let ended = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.bounded(cx, ended)
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use axum::body::{Body, Bytes};
    use axum::routing::get;
    use futures_util::stream;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpSocket, TcpStream};

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
        let home = |n: u8| -> IpAddr { [127, 0, 0, n].into() };
        let at_home: Vec<_> = (0..64).map(|n| peers.enter(home(n), OF_ONE)).collect();
        assert!(at_home.iter().all(Option::is_some));
        assert!(peers.enter(home(200), OF_ONE).is_none(), "this machine is one address");
        places.pop();
        assert!(peers.enter(far, OF_ONE).is_some(), "one has left");
        drop((places, at_home));
        assert!(peers.0.lock().expect("whole").is_empty());
    }

    /// A listener with four places, which serves much, without an end, and little; `ahead` is how much is written ahead of
    /// a client, about, and `answer` how long a client may take to read an answer.
    fn listening(ahead: u32, answer: Duration) -> (SocketAddr, JoinSet<()>) {
        let limits = Limits {
            connections: 4,
            of_one: 1,
            head: Duration::from_secs(60),
            answer,
            lifetime: Duration::from_secs(600),
        };
        let events = async || {
            Body::from_stream(stream::repeat_with(|| {
                Ok::<_, io::Error>(Bytes::from_static(&[b'x'; 65_536]))
            }))
        };
        let router = Router::new()
            .route("/much", get(async || vec![b'x'; 4 << 20]))
            .route("/stream", get(events))
            .route("/little", get(async || "little"));
        let socket = TcpSocket::new_v4().expect("a socket");
        // Connections inherit it.
        socket.set_send_buffer_size(ahead).expect("set");
        socket.bind(([127, 0, 0, 1], 0).into()).expect("a port");
        let socket = socket.listen(64).expect("it listens");
        let address = socket.local_addr().expect("an address");
        let mut tasks = JoinSet::new();
        tasks.spawn(serve(socket, None, router, limits));
        (address, tasks)
    }

    async fn asked(address: SocketAddr, path: &str) -> TcpStream {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.set_recv_buffer_size(2048).expect("set");
        let mut stream = socket.connect(address).await.expect("a connection");
        let head = format!("GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).await.expect("written");
        stream
    }

    #[tokio::test]
    async fn clients_that_do_not_read_lose_their_places_to_others() {
        for path in ["/much", "/stream"] {
            let (address, _tasks) = listening(1 << 20, Duration::from_secs(1));
            let mut deaf = Vec::new();
            for _ in 0..4 {
                deaf.push(asked(address, path).await);
            }
            let mut text = String::new();
            let mut reader = asked(address, "/little").await;
            let answered = timeout(Duration::from_secs(20), reader.read_to_string(&mut text));
            answered.await.expect(path).expect("text");
            assert!(text.ends_with("little"), "{path}: {text}");
        }
    }

    #[tokio::test]
    async fn clients_that_read_a_little_now_and_then_have_no_more_time() {
        let (address, _tasks) = listening(16 << 10, Duration::from_secs(1));
        let mut slow = JoinSet::new();
        for _ in 0..4 {
            let mut stream = asked(address, "/much").await;
            slow.spawn(async move {
                // More often than a write may wait, and for longer than the test.
                while let Ok(1..) = stream.read(&mut [0; 1024]).await {
                    sleep(Duration::from_millis(20)).await;
                }
            });
        }
        let mut text = String::new();
        let mut reader = asked(address, "/little").await;
        let answered = timeout(Duration::from_secs(20), reader.read_to_string(&mut text));
        answered.await.expect("in time").expect("text");
        assert!(text.ends_with("little"), "{text}");
    }

    #[tokio::test]
    async fn a_client_that_reads_gets_all_of_a_large_answer() {
        // However busy the machine is.
        let (address, _tasks) = listening(1 << 20, Duration::from_secs(30));
        let mut stream = TcpStream::connect(address).await.expect("a connection");
        let head = "GET /much HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
        stream.write_all(head.as_bytes()).await.expect("written");
        let mut body = Vec::new();
        stream.read_to_end(&mut body).await.expect("an answer");
        assert!(body.len() > 4 << 20, "{}", body.len());
    }
}
