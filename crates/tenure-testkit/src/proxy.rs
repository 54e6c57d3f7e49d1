//! A TCP proxy on the loopback address that delays, swallows, resets and refuses.
//!
//! ```text
//!   client ──► [ to server: read ─ wait (delay, blackhole) ─ write ] ──► server
//!          ◄── [ to client: write ─ wait (delay, blackhole) ─ read ] ◄──
//! ```
//!
//! A blackhole *holds* bytes, as a broken network makes TCP do: nothing is lost, what was held
//! flows after [`Proxy::heal`] and the stream is intact, because the peers' kernels would have
//! retransmitted it. While it holds, the proxy soon reads nothing more, so a sender's window fills
//! up as on a dead link. A connection that must not come back is cut with [`Proxy::reset`].
//! [`Proxy::sever`] drops bytes for good: connections that exist are then dead for ever
//! in both directions and stay open, as after a firewall forgot them; new ones work.
//!
//! What differs from a dead link: this machine's kernel answers. It completes the handshake of new
//! connections (which then hang, and which the server never sees) and acknowledges what fits its
//! buffers, so `tcp_user_timeout` and keepalives do not notice.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpSocket, TcpStream,
        tcp::{ReadHalf, WriteHalf},
    },
    sync::{mpsc, watch},
    task::JoinHandle,
    time::{Instant, sleep_until, timeout},
};

use crate::{KitError, cluster::SUPERUSER, port::Port};

const CHUNK: usize = 16 * 1024;
/// Chunks on the wire, each way: what a link of long delay holds.
const WIRE: usize = 256;
const REFUSE_WAIT: Duration = Duration::from_secs(5);

/// Which way bytes flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server: requests get lost.
    ToServer,
    /// From the server to the client: answers get lost.
    ToClient,
    /// Both ways: a dead link.
    Both,
}

/// The state of the link; everything that moves bytes watches it.
#[derive(Debug, Clone, Copy, Default)]
struct Link {
    delay: Duration,
    hold_to_server: bool,
    hold_to_client: bool,
    refuse: bool,
    /// Connections up to this number are to be reset.
    reset: u64,
    /// Connections up to this number are dead but open.
    severed: u64,
}

#[derive(Debug, Default)]
struct Counters {
    accepted: AtomicU64,
    open: AtomicU64,
    to_server: AtomicU64,
    to_client: AtomicU64,
}

/// A proxy in front of one address. Dropped: its port is closed and its connections are reset.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    link: watch::Sender<Link>,
    listening: watch::Receiver<bool>,
    counters: Arc<Counters>,
    task: JoinHandle<()>,
}

impl Proxy {
    /// Listens on a port of its own and connects each client to `upstream`. Lives on the runtime it
    /// was started on.
    ///
    /// # Errors
    /// [`KitError::Io`].
    pub async fn start(upstream: SocketAddr) -> Result<Self, KitError> {
        let port = Port::reserve()?;
        let number = port.number();
        let (link, changes) = watch::channel(Link::default());
        let (tell, mut listening) = watch::channel(false);
        let counters = Arc::new(Counters::default());
        let task = tokio::spawn(serve(port, upstream, changes, tell, Arc::clone(&counters)));
        await_port(&mut listening, true).await?;
        Ok(Self { port: number, link, listening, counters, task })
    }

    /// Where clients connect.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// How to connect through it to a PostgreSQL database as superuser.
    #[must_use]
    pub fn dsn(&self, database: &str) -> String {
        format!("host=127.0.0.1 port={} dbname={database} user={SUPERUSER}", self.port)
    }

    /// Delivers everything that is read from now on this much later, each way, in order.
    pub fn delay(&self, delay: Duration) {
        self.link.send_modify(|link| link.delay = delay);
    }

    /// Holds what flows in this direction, on connections old and new, until [`Proxy::heal`].
    pub fn blackhole(&self, direction: Direction) {
        self.link.send_modify(|link| match direction {
            Direction::ToServer => link.hold_to_server = true,
            Direction::ToClient => link.hold_to_client = true,
            Direction::Both => (link.hold_to_server, link.hold_to_client) = (true, true),
        });
    }

    /// Cuts the connections that exist with RST, to both sides. New ones are accepted.
    pub fn reset(&self) {
        let latest = self.accepted();
        self.link.send_modify(|link| link.reset = latest);
    }

    /// Drops for good what flows on the connections that exist, and keeps them open: to each side
    /// the other just fell silent. New connections work.
    pub fn sever(&self) {
        let latest = self.accepted();
        self.link.send_modify(|link| link.severed = latest);
    }

    /// Closes or opens the port: while it is closed, new connections are refused and old ones live
    /// on. Returns when it is so.
    ///
    /// # Errors
    /// [`KitError::TimedOut`].
    pub async fn refuse(&self, refuse: bool) -> Result<(), KitError> {
        self.link.send_modify(|link| link.refuse = refuse);
        await_port(&mut self.listening.clone(), !refuse).await
    }

    /// Ends delay, blackhole and refusal: what was held flows. Connections that were severed stay
    /// dead.
    pub fn heal(&self) {
        self.link.send_modify(|link| {
            *link = Link { reset: link.reset, severed: link.severed, ..Link::default() };
        });
    }

    /// Connections accepted so far.
    #[must_use]
    pub fn accepted(&self) -> u64 {
        self.counters.accepted.load(Ordering::SeqCst)
    }

    /// Connections open now.
    #[must_use]
    pub fn open(&self) -> u64 {
        self.counters.open.load(Ordering::SeqCst)
    }

    /// Bytes delivered so far to the server.
    #[must_use]
    pub fn bytes_to_server(&self) -> u64 {
        self.counters.to_server.load(Ordering::SeqCst)
    }

    /// Bytes delivered so far to clients.
    #[must_use]
    pub fn bytes_to_client(&self) -> u64 {
        self.counters.to_client.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // The connections see the link's sender go, and reset.
        self.task.abort();
    }
}

async fn await_port(listening: &mut watch::Receiver<bool>, open: bool) -> Result<(), KitError> {
    match timeout(REFUSE_WAIT, listening.wait_for(|now| *now == open)).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(_)) | Err(_) => Err(KitError::TimedOut {
            what: format!("the proxy's port to {}", if open { "open" } else { "close" }),
            after: REFUSE_WAIT,
            detail: String::new(),
        }),
    }
}

fn listen(port: u16) -> io::Result<TcpListener> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind((Ipv4Addr::LOCALHOST, port).into())?;
    socket.listen(256)
}

async fn serve(
    port: Port,
    upstream: SocketAddr,
    mut link: watch::Receiver<Link>,
    tell: watch::Sender<bool>,
    counters: Arc<Counters>,
) {
    let mut listener = None;
    loop {
        if link.borrow_and_update().refuse {
            listener = None;
        } else if listener.is_none() {
            // The port is reserved; a test that waits for it is told if it does not open.
            listener = listen(port.number()).ok();
        }
        tell.send_replace(listener.is_some());
        let accept = async {
            match &listener {
                Some(listener) => listener.accept().await,
                None => std::future::pending().await,
            }
        };
        // Both branches are cancel-safe: neither loses a connection or a change.
        tokio::select! {
            accepted = accept => {
                let Ok((client, _)) = accepted else { continue };
                let number = counters.accepted.fetch_add(1, Ordering::SeqCst) + 1;
                counters.open.fetch_add(1, Ordering::SeqCst);
                let (link, counters) = (link.clone(), Arc::clone(&counters));
                tokio::spawn(async move {
                    connection(client, upstream, number, link, &counters).await;
                    counters.open.fetch_sub(1, Ordering::SeqCst);
                });
            }
            changed = link.changed() => if changed.is_err() { return },
        }
    }
}

/// One client's connection, until both ends have closed it or it is reset.
async fn connection(
    mut client: TcpStream,
    upstream: SocketAddr,
    number: u64,
    link: watch::Receiver<Link>,
    counters: &Counters,
) {
    let (mut cut, mut silence, mut link) = (link.clone(), link.clone(), link);
    let mut server = None;
    let in_order = tokio::select! {
        // Cancelling it loses what is on the wire, and so does a reset.
        result = relay(&mut client, &mut server, upstream, &mut link, counters) => Some(result.is_ok()),
        () = until(&mut cut, |link| link.reset >= number) => Some(false),
        () = until(&mut silence, |link| link.severed >= number) => None,
    };
    let in_order = match in_order {
        Some(in_order) => in_order,
        None => {
            until(&mut cut, |link| link.reset >= number).await;
            false
        }
    };
    if !in_order {
        // Closing a socket that does not linger sends RST instead of FIN.
        let _ = client.set_zero_linger();
        if let Some(server) = &server {
            let _ = server.set_zero_linger();
        }
    }
}

async fn relay(
    client: &mut TcpStream,
    server: &mut Option<TcpStream>,
    upstream: SocketAddr,
    link: &mut watch::Receiver<Link>,
    counters: &Counters,
) -> io::Result<()> {
    client.set_nodelay(true)?;
    // A SYN does not get through a dead link either.
    passable(link, Direction::ToServer).await?;
    let server = server.insert(TcpStream::connect(upstream).await?);
    server.set_nodelay(true)?;
    let (from_client, to_client) = client.split();
    let (from_server, to_server) = server.split();
    tokio::try_join!(
        pump(from_client, to_server, Direction::ToServer, link.clone(), &counters.to_server),
        pump(from_server, to_client, Direction::ToClient, link.clone(), &counters.to_client),
    )?;
    Ok(())
}

/// Moves bytes one way, the end of the stream included; the channel is the wire.
async fn pump(
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    direction: Direction,
    mut link: watch::Receiver<Link>,
    delivered: &AtomicU64,
) -> io::Result<()> {
    let (wire, mut arriving) = mpsc::channel::<(Instant, Vec<u8>)>(WIRE);
    let mut sending = link.clone();
    let send = async move {
        let mut buffer = vec![0; CHUNK];
        loop {
            passable(&mut sending, direction).await?;
            let n = from.read(&mut buffer).await?;
            let due = Instant::now() + sending.borrow().delay;
            // An empty chunk is the end of the stream: it takes its time as well.
            if wire.send((due, buffer[..n].to_vec())).await.is_err() || n == 0 {
                return Ok(());
            }
        }
    };
    let deliver = async {
        while let Some((due, bytes)) = arriving.recv().await {
            sleep_until(due).await;
            passable(&mut link, direction).await?;
            if bytes.is_empty() {
                return to.shutdown().await;
            }
            to.write_all(&bytes).await?;
            delivered.fetch_add(bytes.len() as u64, Ordering::SeqCst);
        }
        Ok(())
    };
    tokio::try_join!(send, deliver)?;
    Ok(())
}

/// Waits until the link is so, or the proxy is dropped. Cancel-safe: it only looks.
async fn until(link: &mut watch::Receiver<Link>, so: impl FnMut(&Link) -> bool) {
    let _ = link.wait_for(so).await;
}

/// Waits until the link lets bytes pass in this direction.
async fn passable(link: &mut watch::Receiver<Link>, direction: Direction) -> io::Result<()> {
    let held = |link: &Link| match direction {
        Direction::ToServer => link.hold_to_server,
        Direction::ToClient => link.hold_to_client,
        Direction::Both => link.hold_to_server || link.hold_to_client,
    };
    match link.wait_for(|link| !held(link)).await {
        Ok(_) => Ok(()),
        Err(_) => Err(io::ErrorKind::ConnectionReset.into()),
    }
}
