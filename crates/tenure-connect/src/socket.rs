//! The socket of a session, and the list of all that are open.
//!
//! A process that forks hands its child a copy of every descriptor. A copy of a session's socket
//! keeps the connection open although the parent has died: the server frees its locks only when
//! it has waited out the silence. So a program that may fork lists them here, in the child, and
//! closes them there. Closing a copy sends nothing: the connection is still the parent's.
//!
//! [`open`], [`pause`], [`resume`] and [`forget`] take no lock and allocate nothing, so that handlers of
//! `pthread_atfork` may call them.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpSocket, TcpStream, UnixSocket, UnixStream};

/// A member has three sessions at most; this is far above what one process can need.
const CELLS: usize = 4096;
const FREE: i32 = -1;
/// Taken, and not to be read yet.
const TAKEN: i32 = -2;

struct Cell {
    descriptor: AtomicI32,
    inode: AtomicU64,
}

static OPEN: [Cell; CELLS] =
    [const { Cell { descriptor: AtomicI32::new(FREE), inode: AtomicU64::new(0) } }; CELLS];
/// How many sockets exist that are not listed yet.
static OPENING: AtomicUsize = AtomicUsize::new(0);
/// How many forks are under way.
static PAUSED: AtomicUsize = AtomicUsize::new(0);

/// The descriptors of all sessions' sockets, each with its inode.
///
/// A descriptor whose inode is another one now was closed and belongs to another part of the program: leave it alone.
pub fn open() -> impl Iterator<Item = (RawFd, u64)> {
    OPEN.iter().filter_map(|cell| {
        let descriptor = cell.descriptor.load(Ordering::Acquire);
        (descriptor >= 0).then(|| (descriptor, cell.inode.load(Ordering::Relaxed)))
    })
}

/// Waits until every socket is listed, and lets no new one be made until [`resume`]. Before a fork.
pub fn pause() {
    PAUSED.fetch_add(1, Ordering::SeqCst);
    // Between the two there are two system calls and no await.
    while OPENING.load(Ordering::SeqCst) > 0 {
        std::thread::yield_now();
    }
}

/// Ends [`pause`]. After a fork, in the parent.
pub fn resume() {
    PAUSED.fetch_sub(1, Ordering::SeqCst);
}

/// Empties the list and ends [`pause`]. After a fork, in the child, which must never drop a session of
/// its parent: the place in the list may be taken by a session of its own.
pub fn forget() {
    for cell in &OPEN {
        cell.descriptor.store(FREE, Ordering::Release);
    }
    OPENING.store(0, Ordering::SeqCst);
    PAUSED.store(0, Ordering::SeqCst);
}

/// A place in the list; dropping it takes the socket off.
#[derive(Debug)]
struct Listed(usize);

impl Listed {
    /// Makes a socket and lists it, so that no fork falls between the two.
    fn make<S: AsFd>(make: impl FnOnce() -> io::Result<S>) -> io::Result<(S, Listed)> {
        loop {
            OPENING.fetch_add(1, Ordering::SeqCst);
            if PAUSED.load(Ordering::SeqCst) == 0 {
                break;
            }
            OPENING.fetch_sub(1, Ordering::SeqCst);
            std::thread::yield_now();
        }
        let made = make().and_then(|socket| {
            let inode = rustix::fs::fstat(&socket)?.st_ino;
            let listed = Listed::add(socket.as_fd().as_raw_fd(), inode)?;
            Ok((socket, listed))
        });
        OPENING.fetch_sub(1, Ordering::SeqCst);
        made
    }

    fn add(descriptor: RawFd, inode: u64) -> io::Result<Listed> {
        let take = |cell: &Cell| {
            cell.descriptor
                .compare_exchange(FREE, TAKEN, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        };
        let at = OPEN.iter().position(take).ok_or_else(|| {
            io::Error::other(format!("this process has {CELLS} sessions already; close some"))
        })?;
        OPEN[at].inode.store(inode, Ordering::Relaxed);
        OPEN[at].descriptor.store(descriptor, Ordering::Release);
        Ok(Listed(at))
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        OPEN[self.0].descriptor.store(FREE, Ordering::Release);
    }
}

/// The socket of one session.
#[derive(Debug)]
pub struct Socket {
    stream: Stream,
    /// Becomes true with the first that the server says.
    heard: Option<Arc<AtomicBool>>,
    _listed: Listed,
}

#[derive(Debug)]
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    pub(crate) async fn tcp(address: SocketAddr) -> io::Result<Self> {
        let (socket, listed) = Listed::make(|| match address {
            SocketAddr::V4(_) => TcpSocket::new_v4(),
            SocketAddr::V6(_) => TcpSocket::new_v6(),
        })?;
        let stream = socket.connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Socket { stream: Stream::Tcp(stream), heard: None, _listed: listed })
    }

    pub(crate) async fn unix(path: &Path) -> io::Result<Self> {
        let (socket, listed) = Listed::make(UnixSocket::new_stream)?;
        let stream = socket.connect(path).await?;
        Ok(Socket { stream: Stream::Unix(stream), heard: None, _listed: listed })
    }

    /// Sets `heard` when the server says its first word.
    pub(crate) fn tell_first_word(&mut self, heard: Arc<AtomicBool>) {
        self.heard = Some(heard);
    }

    /// The TCP stream, if it is one.
    pub(crate) fn as_tcp(&self) -> Option<&TcpStream> {
        match &self.stream {
            Stream::Tcp(stream) => Some(stream),
            Stream::Unix(_) => None,
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = match &mut self.stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_read(cx, buf),
            Stream::Unix(stream) => Pin::new(stream).poll_read(cx, buf),
        };
        if buf.filled().len() > before
            && let Some(heard) = self.heard.take()
        {
            heard.store(true, Ordering::Relaxed);
        }
        read
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_write(cx, buf),
            Stream::Unix(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Stream::Unix(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_socket_is_listed_while_it_is_open() {
        let server = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let socket = Socket::tcp(server.local_addr().expect("it is bound")).await.expect("listens");
        let stream = socket.as_tcp().expect("it is TCP");
        let inode = rustix::fs::fstat(stream).expect("it is open").st_ino;
        let own = (stream.as_raw_fd(), inode);
        assert!(open().any(|listed| listed == own));
        drop(socket);
        assert!(!open().any(|listed| listed == own));
    }

    #[tokio::test]
    async fn a_socket_that_could_not_connect_is_not_listed() {
        let path = Path::new("/nonexistent/.s.PGSQL.1");
        // One more than there are cells: a cell that stays behind each time would leave none.
        for _ in 0..=CELLS {
            let error = Socket::unix(path).await.expect_err("nothing listens there");
            assert_eq!(error.kind(), io::ErrorKind::NotFound, "{error}");
        }
    }
}
