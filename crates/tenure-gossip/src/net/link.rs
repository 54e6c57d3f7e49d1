//! Connections: calls that this node makes and takes, and what becomes of the frames that arrive.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::outbox::{Outbox, Outgoing, outbox};
use super::session::{Admission, Greeted, SessionError, Stream, greet};
use super::tls::Tls;
use super::wire::{Ask, Contact, Envelope, Role};
use crate::identity::{Ed25519Keys, Keys as _, PeerId};
use crate::message::Message;

/// How long a connection attempt may take.
const CONNECT: Duration = Duration::from_secs(2);
/// A connection without a frame for so long is closed; pings keep a quiet one open.
const SILENCE: Duration = Duration::from_secs(30);
/// KiB of frames that wait for the driver, of all connections together; a connection that brings more waits.
const INCOMING: u32 = 64 << 10;
/// Contacts in one frame: 64 that a node remembers, and its own.
const MAX_CONTACTS_AT_ONCE: usize = 65;
/// Connections that have not proven anything yet, and all of them.
const GREETING_AT_ONCE: usize = 64;
const CONNECTIONS: usize = 1_024;

/// What links tell the driver.
pub(crate) enum FromLink {
    /// A session with a node is up.
    Up { peer: PeerId, link: u64, cluster: Option<[u8; 16]>, called: Option<String>, out: Outbox },
    /// It is over.
    Down { peer: PeerId, link: u64 },
    /// A call failed.
    Failed { address: String, error: SessionError },
    /// A message of a namespace.
    Message { from: PeerId, link: u64, namespace: String, message: Box<Message> },
    /// Contacts.
    Contacts { link: u64, contacts: Vec<Contact> },
    /// A client's question, and where the answers go.
    Ask { ask: Ask, out: Outbox },
    /// One of the above, with the room it takes up until it is dealt with.
    Sized(Box<FromLink>, OwnedSemaphorePermit),
    /// A connection was closed because of what came through it.
    Misconduct(&'static str),
}

/// What every connection needs to know.
pub(crate) struct Shared {
    pub(crate) keys: Arc<Ed25519Keys>,
    pub(crate) admission: Admission,
    pub(crate) tls: Option<Tls>,
    pub(crate) cluster: std::sync::Mutex<Option<[u8; 16]>>,
    pub(crate) driver: mpsc::Sender<FromLink>,
    pub(crate) links: std::sync::atomic::AtomicU64,
    pub(crate) flood: Flood,
    pub(crate) room: Arc<Semaphore>,
}

/// More frames than this from one connection cost it the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flood {
    /// Frames a second in the long run (5,000). A busy node sends about four for every goal.
    pub per_second: u32,
    /// Frames at once (20,000).
    pub burst: u32,
}

impl Default for Flood {
    fn default() -> Self {
        Self { per_second: 5_000, burst: 20_000 }
    }
}

impl Shared {
    pub(crate) fn room() -> Arc<Semaphore> {
        Arc::new(Semaphore::new(INCOMING as usize))
    }

    /// Hands `event` of `size` bytes to the driver once there is room; `false` if there is no driver.
    async fn deliver(&self, event: FromLink, size: usize) -> bool {
        let kib = u32::try_from(size / 1_024 + 1).unwrap_or(INCOMING).min(INCOMING);
        let Ok(room) = self.room.clone().acquire_many_owned(kib).await else { return false };
        self.driver.send(FromLink::Sized(Box::new(event), room)).await.is_ok()
    }

    fn cluster(&self) -> Option<[u8; 16]> {
        *self.cluster.lock().expect("nothing panics while it is held")
    }
}

/// Takes calls until it is dropped.
pub(crate) fn listen(listener: TcpListener, shared: Arc<Shared>) -> JoinHandle<()> {
    tokio::spawn(async move {
        let all = Arc::new(Semaphore::new(CONNECTIONS));
        let mut greeting: VecDeque<oneshot::Sender<()>> = VecDeque::new();
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                // Out of file descriptors, most likely: others must close first.
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            greeting.retain(|g| !g.is_closed());
            if greeting.len() >= GREETING_AT_ONCE {
                // The connection that has taken longest goes: an honest peer needs milliseconds, so a
                // crowd that connects and says nothing keeps no honest peer out.
                greeting.pop_front();
            }
            let Ok(place) = all.clone().try_acquire_owned() else {
                // Full. An honest peer calls again.
                continue;
            };
            let (stays, evicted) = oneshot::channel();
            greeting.push_back(stays);
            let shared = shared.clone();
            tokio::spawn(async move {
                let _place = place;
                // Not cancel-safe, and need not be: an evicted peer loses its connection.
                let greeted = tokio::select! {
                    greeted = answer_call(stream, &shared) => greeted,
                    _ = evicted => Err(SessionError::Timeout),
                };
                let result = match greeted {
                    Ok(greeted) => match greeted.theirs.role {
                        Role::Node => run(greeted, None, &shared).await,
                        Role::Client => serve(greeted, &shared).await,
                    },
                    Err(error) => Err(error),
                };
                report(&shared, result).await;
            });
        }
    })
}

/// Calls `address`; the node that answers must be `expected`, if that is known.
pub(crate) fn call(address: String, expected: Option<PeerId>, shared: Arc<Shared>) {
    tokio::spawn(async move {
        match make_call(&address, expected, &shared).await {
            Ok(greeted) => {
                let result = run(greeted, Some(address), &shared).await;
                report(&shared, result).await;
            }
            Err(error) => drop(shared.driver.send(FromLink::Failed { address, error }).await),
        }
    });
}

type Any = Box<dyn Stream>;

async fn answer_call(
    stream: TcpStream,
    shared: &Arc<Shared>,
) -> Result<Greeted<Any>, SessionError> {
    let _ = stream.set_nodelay(true);
    let stream: Any = match &shared.tls {
        Some(tls) => Box::new(
            timeout(CONNECT, tls.accept(stream)).await.map_err(|_| SessionError::Timeout)??,
        ),
        None => Box::new(stream),
    };
    let mine = shared.cluster();
    let greeted =
        greet(stream, shared.keys.clone(), &shared.admission, Role::Node, mine, false).await?;
    // A node that belongs nowhere yet joins the cluster of a seed that it calls itself, and no other:
    // until then it has nothing to say to nodes.
    if greeted.theirs.role == Role::Node && mine.is_none() {
        return Err(SessionError::NoCluster);
    }
    Ok(greeted)
}

async fn make_call(
    address: &str,
    expected: Option<PeerId>,
    shared: &Arc<Shared>,
) -> Result<Greeted<Any>, SessionError> {
    let connect = TcpStream::connect(address);
    let stream = timeout(CONNECT, connect).await.map_err(|_| SessionError::Timeout)??;
    let _ = stream.set_nodelay(true);
    let stream: Any = match &shared.tls {
        Some(tls) => Box::new(
            timeout(CONNECT, tls.connect(address, stream))
                .await
                .map_err(|_| SessionError::Timeout)??,
        ),
        None => Box::new(stream),
    };
    let greeted =
        greet(stream, shared.keys.clone(), &shared.admission, Role::Node, shared.cluster(), true)
            .await?;
    if let Some(expected) = expected
        && expected != greeted.theirs.id
    {
        return Err(SessionError::WrongPeer(greeted.theirs.id));
    }
    if greeted.theirs.cluster.is_none() {
        return Err(SessionError::NoCluster);
    }
    Ok(greeted)
}

/// A session between nodes, until it breaks.
async fn run(
    greeted: Greeted<Any>,
    called: Option<String>,
    shared: &Arc<Shared>,
) -> Result<(), SessionError> {
    let Greeted { theirs, sender, mut receiver } = greeted;
    let link = shared.links.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let (out, outgoing) = outbox();
    let up = FromLink::Up { peer: theirs.id, link, cluster: theirs.cluster, called, out };
    if shared.driver.send(up).await.is_err() {
        return Ok(());
    }
    let mut writer = tokio::spawn(write(sender, outgoing));
    let mut bucket = Bucket::new(shared.flood);
    let result = loop {
        // Both branches are cancel-safe: a frame is taken whole or not at all, and a JoinHandle can
        // be awaited again.
        let (envelope, size) = tokio::select! {
            frame = receiver.next_sized(SILENCE) => match frame {
                Ok(sized) => sized,
                Err(error) => break Err(error),
            },
            _ = &mut writer => break Err(SessionError::Closed),
        };
        if !bucket.take() {
            break Err(SessionError::Flood);
        }
        let event = match envelope {
            Envelope::Namespace(namespace, message) => {
                if !message.within_limits() {
                    break Err(SessionError::Garbage);
                }
                let message = Box::new(message);
                FromLink::Message { from: theirs.id, link, namespace, message }
            }
            Envelope::Contacts(contacts) if contacts.len() <= MAX_CONTACTS_AT_ONCE => {
                FromLink::Contacts { link, contacts }
            }
            Envelope::Ping => continue,
            Envelope::Contacts(_) | Envelope::Ask(_) | Envelope::Answer(_) => {
                break Err(SessionError::Garbage);
            }
        };
        // Waiting here is the back-pressure: the socket is not read while the driver is behind.
        if !shared.deliver(event, size).await {
            break Ok(());
        }
    };
    writer.abort();
    let _ = shared.driver.send(FromLink::Down { peer: theirs.id, link }).await;
    result
}

/// A client's session: questions in, answers out.
async fn serve(greeted: Greeted<Any>, shared: &Arc<Shared>) -> Result<(), SessionError> {
    let Greeted { sender, mut receiver, .. } = greeted;
    let (out, outgoing) = outbox();
    let mut writer = tokio::spawn(write(sender, outgoing));
    let mut bucket = Bucket::new(shared.flood);
    let result = loop {
        // Cancel-safe, as above.
        let (envelope, size) = tokio::select! {
            frame = receiver.next_sized(Duration::from_secs(600)) => match frame {
                Ok(sized) => sized,
                Err(error) => break Err(error),
            },
            _ = &mut writer => break Err(SessionError::Closed),
        };
        if !bucket.take() {
            break Err(SessionError::Flood);
        }
        match envelope {
            Envelope::Ask(ask) => {
                if !shared.deliver(FromLink::Ask { ask, out: out.clone() }, size).await {
                    break Ok(());
                }
            }
            Envelope::Ping => {}
            Envelope::Namespace(..) | Envelope::Contacts(_) | Envelope::Answer(_) => {
                break Err(SessionError::Garbage);
            }
        }
    };
    writer.abort();
    result
}

async fn write(mut sender: super::session::Sender<Any>, mut outgoing: Outgoing) {
    loop {
        // `next` is cancel-safe; a frame that was taken is written to its end.
        let sent = match timeout(SILENCE / 3, outgoing.next()).await {
            Ok(Some(frame)) => sender.send_encoded(&frame).await,
            Ok(None) => return,
            Err(_) => sender.send(&Envelope::Ping).await,
        };
        if sent.is_err() {
            return;
        }
    }
}

async fn report(shared: &Arc<Shared>, result: Result<(), SessionError>) {
    if let Err(error) = result
        && error.is_misconduct()
    {
        tracing::warn!(node = %shared.keys.id(), %error, "connection closed");
        let _ = shared.driver.send(FromLink::Misconduct(error.reason())).await;
    }
}

/// So many frames a second, and some more at once.
struct Bucket {
    limit: Flood,
    left: f64,
    at: Instant,
}

impl Bucket {
    fn new(limit: Flood) -> Self {
        Self { limit, left: limit.burst.into(), at: Instant::now() }
    }

    fn take(&mut self) -> bool {
        let now = Instant::now();
        let earned = now.duration_since(self.at).as_secs_f64() * f64::from(self.limit.per_second);
        self.left = (self.left + earned).min(self.limit.burst.into()) - 1.0;
        self.at = now;
        self.left > 0.0
    }
}
