//! Connections: calls that this node makes and takes, and what becomes of the frames that arrive.

use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::outbox::{Outbox, Outgoing, outbox};
use super::places::{Place, Places};
use super::session::{Caller, Greeted, Sender, SessionError, call as call_session, host};
use super::tls::Tls;
use super::wire::{Ask, Contact, Denied, Envelope, Hello, Role, Welcome};
use crate::credentials::{Right, Rights};
use crate::identity::{Ed25519Keys, Keys as _, PeerId};
use crate::message::Message;

/// How long a connection attempt may take.
const CONNECT: Duration = Duration::from_secs(2);
/// A connection without a frame for so long is closed; pings keep a quiet one open.
pub(crate) const SILENCE: Duration = Duration::from_secs(30);
/// A client that asks nothing for so long, and waits for nothing, loses its connection.
const IDLE: Duration = Duration::from_secs(600);
/// A key without a right has so long to be let in by an invitation.
const STRANGER: Duration = Duration::from_secs(60);
/// KiB of frames that wait for the driver, of all connections together; a connection that brings more waits.
const INCOMING: u32 = 64 << 10;
/// Contacts in one frame: 64 that a node remembers, and its own.
const MAX_CONTACTS_AT_ONCE: usize = 65;

/// What links tell the driver.
pub(crate) enum FromLink {
    /// A session with a node is up.
    Up {
        peer: PeerId,
        link: u64,
        cluster: Option<[u8; 16]>,
        open: bool,
        called: Option<String>,
        out: Outbox,
    },
    /// It is over.
    Down { peer: PeerId, link: u64 },
    /// A call failed.
    Failed { address: String, error: SessionError },
    /// A message of a namespace.
    Message { from: PeerId, link: u64, namespace: String, message: Box<Message> },
    /// Where other nodes can be reached, as the peer knows them.
    Contacts { link: u64, contacts: Vec<Contact> },
    /// A client's question, and where the answers go.
    Ask { asker: Asker, ask: Ask, out: Outbox },
    /// One of the above, with the room it takes up until it is dealt with.
    Sized(Box<FromLink>, OwnedSemaphorePermit),
    /// A connection was closed because of what came through it.
    Misconduct(&'static str),
}

/// The program that asks a question.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asker {
    pub(crate) id: PeerId,
    /// The secret of the TLS session that it asks through.
    pub(crate) exported: [u8; 32],
}

/// What every connection needs to know.
pub(crate) struct Shared {
    pub(crate) keys: Arc<Ed25519Keys>,
    pub(crate) tls: Tls,
    /// What keys may do; the driver sends every change, and sessions that lose their right end.
    pub(crate) rights: watch::Receiver<Rights>,
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
        let mut places = Places::default();
        loop {
            let Ok((stream, from)) = listener.accept().await else {
                // Out of file descriptors, most likely: others must close first.
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            let (place, evicted) = places.take(from.ip());
            let shared = shared.clone();
            tokio::spawn(async move {
                // Not cancel-safe, and need not be: an evicted peer loses its connection.
                let greeted = tokio::select! {
                    greeted = answer_call(stream, &place, &shared) => greeted,
                    _ = evicted => Err(SessionError::Timeout),
                };
                let result = match greeted {
                    Ok(greeted) => match greeted.role {
                        Role::Node => run(greeted, None, &shared).await,
                        Role::Client => serve(greeted, &shared).await,
                    },
                    Err(error) => Err(error),
                };
                drop(place);
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

async fn answer_call(
    stream: TcpStream,
    place: &Place,
    shared: &Arc<Shared>,
) -> Result<Greeted, SessionError> {
    let _ = stream.set_nodelay(true);
    let secured =
        timeout(CONNECT, shared.tls.accept(stream)).await.map_err(|_| SessionError::Timeout)??;
    host(secured, &shared.keys, |peer, hello| {
        let (cluster, open) = (shared.cluster(), shared.rights.borrow().is_open());
        let denied = denied(shared, place, peer, hello);
        let verdict = match denied {
            // Named on this side: it is the caller that lacks the right.
            Some(Denied::NoRight) => Err(SessionError::NotANode(*peer)),
            Some(denied) => Err(denied.into()),
            None => Ok(()),
        };
        (Welcome { cluster, open, denied, signed: None }, verdict)
    })
    .await
}

/// Whether this node talks to `peer`, by its credentials and by the places that are left.
fn denied(shared: &Shared, place: &Place, peer: &PeerId, hello: &Hello) -> Option<Denied> {
    let mine = shared.cluster();
    if mine.zip(hello.cluster).is_some_and(|(mine, theirs)| mine != theirs) {
        return Some(Denied::OtherCluster);
    }
    let (right, open) = {
        let rights = shared.rights.borrow();
        (rights.of(peer), rights.is_open())
    };
    let placed = match hello.role {
        // A node that belongs nowhere yet joins the cluster of a seed that it calls itself, and no other:
        // until then it has nothing to say to nodes.
        Role::Node if mine.is_none() => return Some(Denied::NoCluster),
        Role::Node if right != Some(Right::Node) => return Some(Denied::NoRight),
        Role::Node => place.keep_as_node(),
        // A key without a right may still redeem an invitation.
        Role::Client if right.is_none() => place.keep_as_stranger(),
        Role::Client => place.keep_as_client(!open && right >= Some(Right::Operator)),
    };
    (!placed).then_some(Denied::Full)
}

async fn make_call(
    address: &str,
    expected: Option<PeerId>,
    shared: &Arc<Shared>,
) -> Result<Greeted, SessionError> {
    let connect = TcpStream::connect(address);
    let stream = timeout(CONNECT, connect).await.map_err(|_| SessionError::Timeout)??;
    let _ = stream.set_nodelay(true);
    let secured = timeout(CONNECT, shared.tls.connect(address, stream))
        .await
        .map_err(|_| SessionError::Timeout)??;
    let mine = shared.cluster();
    let caller = Caller { keys: &shared.keys, role: Role::Node, cluster: mine };
    let greeted = call_session(secured, caller).await?;
    if let Some(expected) = expected
        && expected != greeted.peer
    {
        return Err(SessionError::WrongPeer(greeted.peer));
    }
    if greeted.cluster.is_none() {
        return Err(SessionError::NoCluster);
    }
    let rights = shared.rights.borrow();
    // A node that belongs nowhere yet has no credentials to ask; it joins an open cluster alone.
    if mine.is_none() && !(greeted.open && rights.is_open()) {
        return Err(if greeted.open { SessionError::Open } else { SessionError::NoRight });
    }
    if mine.is_some() && rights.of(&greeted.peer) != Some(Right::Node) {
        return Err(SessionError::NotANode(greeted.peer));
    }
    drop(rights);
    Ok(greeted)
}

/// Whether the right of `peer` is still at least `least`.
fn still(rights: &mut watch::Receiver<Rights>, peer: &PeerId, least: Option<Right>) -> bool {
    rights.borrow_and_update().of(peer) >= least
}

/// A session between nodes, until it breaks.
async fn run(
    greeted: Greeted,
    called: Option<String>,
    shared: &Arc<Shared>,
) -> Result<(), SessionError> {
    let Greeted { peer, cluster, open, sender, mut receiver, .. } = greeted;
    let mut rights = shared.rights.clone();
    let link = shared.links.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let (out, outgoing) = outbox();
    let up = FromLink::Up { peer, link, cluster, open, called, out };
    if shared.driver.send(up).await.is_err() {
        return Ok(());
    }
    let mut writer = tokio::spawn(write(sender, outgoing));
    let mut bucket = Bucket::new(shared.flood);
    let result = loop {
        // All are cancel-safe: a frame is taken whole or not at all, a JoinHandle can be awaited again,
        // and a change of rights is looked at by the next turn.
        let (envelope, size) = tokio::select! {
            frame = receiver.next_sized(SILENCE) => match frame {
                Ok(sized) => sized,
                Err(error) => break Err(error),
            },
            _ = &mut writer => break Err(SessionError::Closed),
            Ok(()) = rights.changed() => {
                if still(&mut rights, &peer, Some(Right::Node)) {
                    continue;
                }
                break Err(SessionError::NotANode(peer));
            }
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
                FromLink::Message { from: peer, link, namespace, message }
            }
            Envelope::Contacts(contacts) if contacts.len() <= MAX_CONTACTS_AT_ONCE => {
                FromLink::Contacts { link, contacts }
            }
            Envelope::Ping => continue,
            Envelope::Contacts(_) | Envelope::Ask(..) | Envelope::Answer(..) => {
                break Err(SessionError::Garbage);
            }
        };
        // Waiting here is the back-pressure: the socket is not read while the driver is behind.
        if !shared.deliver(event, size).await {
            break Ok(());
        }
    };
    writer.abort();
    let _ = shared.driver.send(FromLink::Down { peer, link }).await;
    result
}

/// A client's session: questions in, answers out.
async fn serve(greeted: Greeted, shared: &Arc<Shared>) -> Result<(), SessionError> {
    let Greeted { peer, exported, sender, mut receiver, .. } = greeted;
    let mut rights = shared.rights.clone();
    let mut right = rights.borrow_and_update().of(&peer);
    let asker = Asker { id: peer, exported };
    let (out, outgoing) = outbox();
    let mut writer = tokio::spawn(write(sender, outgoing));
    let mut bucket = Bucket::new(shared.flood);
    let end = right.is_none().then(|| Instant::now() + STRANGER);
    let result = loop {
        let patience = end.map_or(IDLE, |end| end.saturating_duration_since(Instant::now()));
        // Cancel-safe, as above.
        let (envelope, size) = tokio::select! {
            frame = receiver.next_sized(patience) => match frame {
                Ok(sized) => sized,
                // Quiet, and not idle: it waits for an answer, or watches. That it still reads is seen by
                // the writer, which sends a sign of life every ten seconds.
                Err(SessionError::Timeout) if end.is_none() && out.is_waited_for() => continue,
                Err(error) => break Err(error),
            },
            _ = &mut writer => break Err(SessionError::Closed),
            Ok(()) = rights.changed() => {
                // A client that loses a right also loses what it watches.
                if still(&mut rights, &peer, right) {
                    right = rights.borrow().of(&peer);
                    continue;
                }
                break Err(SessionError::NoRight);
            }
        };
        if !bucket.take() {
            break Err(SessionError::Flood);
        }
        match envelope {
            Envelope::Ask(number, ask) => {
                let out = out.for_question(number);
                if !shared.deliver(FromLink::Ask { asker, ask, out }, size).await {
                    break Ok(());
                }
            }
            Envelope::Ping => {}
            Envelope::Namespace(..) | Envelope::Contacts(_) | Envelope::Answer(..) => {
                break Err(SessionError::Garbage);
            }
        }
    };
    writer.abort();
    result
}

async fn write(mut sender: Sender, mut outgoing: Outgoing) {
    loop {
        // `next` is cancel-safe; a frame that was taken is written to its end.
        let sent = match timeout(SILENCE / 3, outgoing.next()).await {
            Ok(Some(frame)) => sender.send_encoded(frame).await,
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

#[cfg(test)]
mod tests {
    use tokio::io::duplex;

    use super::*;
    use crate::net::client::{Client, ClientError};
    use crate::net::wire::Answer;

    const HOUR: Duration = Duration::from_secs(3_600);

    /// A client, its question as the driver got it, and the session that serves it.
    async fn served(open: bool) -> (Client, Outbox, JoinHandle<Result<(), SessionError>>) {
        let keys = Arc::new(Ed25519Keys::generate());
        let rights = Rights { open_at_first: open, ..Rights::default() };
        let (driver, mut to_driver) = mpsc::channel(16);
        let shared = Arc::new(Shared {
            tls: Tls::new(&keys, None).expect("raw keys need no file"),
            keys,
            rights: watch::channel(rights).1,
            cluster: std::sync::Mutex::default(),
            driver,
            links: std::sync::atomic::AtomicU64::new(0),
            flood: Flood::default(),
            room: Shared::room(),
        });
        let (near, far) = duplex(1 << 20);
        let session = tokio::spawn(async move {
            let secured = shared.tls.accept(far).await?;
            let welcome = Welcome { cluster: None, open, denied: None, signed: None };
            let greeted = host(secured, &shared.keys, |_, _| (welcome, Ok(()))).await?;
            serve(greeted, &shared).await
        });
        let mut client =
            Client::over("there:1", near, Ed25519Keys::generate(), None).await.expect("greeted");
        let ask = Ask::Watch { namespace: "main".into(), from: None };
        // Given up at once: the question is on its way.
        let asked = client.ask(ask, Duration::ZERO).await;
        assert!(matches!(asked, Err(ClientError::Session(SessionError::Timeout))));
        let Some(FromLink::Sized(event, _)) = to_driver.recv().await else { panic!("a question") };
        let FromLink::Ask { out, .. } = *event else { panic!("a question") };
        (client, out, session)
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_watches_stays_however_quiet_and_an_idle_one_goes() {
        let (mut client, out, session) = served(true).await;
        let begun = Instant::now();
        assert!(client.next(HOUR).await.is_err(), "nothing happens for an hour");
        assert!(begun.elapsed() >= HOUR, "{:?}", begun.elapsed());
        assert!(!session.is_finished());
        assert!(out.answer(Answer::Done));
        assert!(matches!(client.next(HOUR).await, Ok(Answer::Done)));
        drop(out);
        tokio::time::sleep(IDLE * 2).await;
        assert!(session.is_finished());
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_without_a_right_goes_whatever_it_waits_for() {
        let (_client, _out, session) = served(false).await;
        tokio::time::sleep(STRANGER * 2).await;
        assert!(session.is_finished());
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_notices_a_node_that_went_silent() {
        let (near, far) = duplex(1 << 20);
        let frozen = tokio::spawn(async move {
            let keys = Arc::new(Ed25519Keys::generate());
            let secured = Tls::new(&keys, None).expect("raw keys").accept(far).await.expect("TLS");
            let welcome = Welcome { cluster: None, open: true, denied: None, signed: None };
            let _greeted = host(secured, &keys, |_, _| (welcome, Ok(()))).await.expect("greeted");
            // As if the process were stopped: the connection stays, and nothing comes through it.
            std::future::pending::<()>().await;
        });
        let keys = Ed25519Keys::generate();
        let mut client = Client::over("there:1", near, keys, None).await.expect("greeted");
        let begun = Instant::now();
        let ask = Ask::Watch { namespace: "main".into(), from: None };
        let silent = client.ask(ask, HOUR).await;
        assert!(matches!(silent, Err(ClientError::Session(SessionError::Timeout))));
        assert!(begun.elapsed() <= SILENCE + Duration::from_secs(1), "{:?}", begun.elapsed());
        frozen.abort();
    }
}
