//! Connections: who is called, who calls, and what becomes of what they send.

use std::{sync::Arc, time::Duration};

use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Semaphore, mpsc},
    task::JoinHandle,
    time::{Instant, timeout},
};

use super::{
    session::{Admission, Greeted, SessionError, Stream, greet},
    tls::Tls,
    wire::{Answer, Ask, Contact, Envelope, Role},
};
use crate::{
    identity::{Ed25519Keys, Keys as _, PeerId},
    message::Message,
};

/// How long a connection attempt may take.
const CONNECT: Duration = Duration::from_secs(2);
/// A connection without a frame for so long is closed; pings keep a quiet one open.
const SILENCE: Duration = Duration::from_secs(30);
/// Frames waiting to be written to one peer; more are dropped, as a network would.
const OUTGOING: usize = 1_024;
/// Frames a second from one peer in the long run, and at once.
const RATE: f64 = 5_000.0;
const BURST: f64 = 20_000.0;
/// Connections that have not proven anything yet, and all of them.
const GREETING_AT_ONCE: usize = 64;
const CONNECTIONS: usize = 1_024;

/// What links tell the core.
pub(super) enum FromLink {
    /// A session with a node is up.
    Up {
        peer: PeerId,
        link: u64,
        cluster: Option<[u8; 16]>,
        called: Option<String>,
        out: mpsc::Sender<Envelope>,
    },
    /// It is over.
    Down { peer: PeerId, link: u64 },
    /// A call failed.
    Failed { address: String, error: SessionError },
    /// A message of a namespace.
    Message { from: PeerId, namespace: String, message: Box<Message> },
    /// Contacts.
    Contacts(Vec<Contact>),
    /// A client's question, and where the answers go.
    Ask { ask: Ask, out: mpsc::Sender<Envelope> },
    /// A connection was closed because of what came through it.
    Misconduct(&'static str),
}

/// What every connection needs to know.
pub(super) struct Shared {
    pub(super) keys: Arc<Ed25519Keys>,
    pub(super) admission: Admission,
    pub(super) tls: Option<Tls>,
    pub(super) cluster: std::sync::Mutex<Option<[u8; 16]>>,
    pub(super) core: mpsc::Sender<FromLink>,
    pub(super) links: std::sync::atomic::AtomicU64,
}

impl Shared {
    fn cluster(&self) -> Option<[u8; 16]> {
        *self.cluster.lock().expect("nothing panics while it is held")
    }
}

/// Takes calls until it is dropped.
pub(super) fn listen(listener: TcpListener, shared: Arc<Shared>) -> JoinHandle<()> {
    tokio::spawn(async move {
        let greeting = Arc::new(Semaphore::new(GREETING_AT_ONCE));
        let all = Arc::new(Semaphore::new(CONNECTIONS));
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                // Out of file descriptors, most likely: others must close first.
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            let (Ok(greeting), Ok(place)) =
                (greeting.clone().try_acquire_owned(), all.clone().try_acquire_owned())
            else {
                // Full. Whoever is honest comes again.
                continue;
            };
            let shared = shared.clone();
            tokio::spawn(async move {
                let _place = place;
                let _ = stream.set_nodelay(true);
                let result = match &shared.tls {
                    Some(tls) => match timeout(CONNECT, tls.accept(stream)).await {
                        Ok(Ok(stream)) => answer_call(stream, &shared, greeting).await,
                        Ok(Err(e)) => Err(e.into()),
                        Err(_) => Err(SessionError::Timeout),
                    },
                    None => answer_call(stream, &shared, greeting).await,
                };
                report(&shared, result).await;
            });
        }
    })
}

/// Calls `address`; whoever answers must be `expected`, if that is known.
pub(super) fn call(address: String, expected: Option<PeerId>, shared: Arc<Shared>) {
    tokio::spawn(async move {
        let result = async {
            let stream = timeout(CONNECT, TcpStream::connect(&address))
                .await
                .map_err(|_| SessionError::Timeout)??;
            let _ = stream.set_nodelay(true);
            match &shared.tls {
                Some(tls) => {
                    let stream = timeout(CONNECT, tls.connect(&address, stream))
                        .await
                        .map_err(|_| SessionError::Timeout)??;
                    make_call(stream, &address, expected, &shared).await
                }
                None => make_call(stream, &address, expected, &shared).await,
            }
        }
        .await;
        if let Err(error) = result {
            let _ = shared.core.send(FromLink::Failed { address, error }).await;
        }
    });
}

async fn answer_call<S: Stream>(
    stream: S,
    shared: &Arc<Shared>,
    greeting: tokio::sync::OwnedSemaphorePermit,
) -> Result<(), SessionError> {
    let greeted =
        greet(stream, shared.keys.clone(), &shared.admission, Role::Node, shared.cluster(), false)
            .await?;
    drop(greeting);
    match greeted.theirs.role {
        Role::Node => run(greeted, None, shared).await,
        Role::Client => serve(greeted, shared).await,
    }
}

async fn make_call<S: Stream>(
    stream: S,
    address: &str,
    expected: Option<PeerId>,
    shared: &Arc<Shared>,
) -> Result<(), SessionError> {
    let greeted =
        greet(stream, shared.keys.clone(), &shared.admission, Role::Node, shared.cluster(), true)
            .await?;
    if let Some(expected) = expected
        && expected != greeted.theirs.id
    {
        return Err(SessionError::WrongPeer(greeted.theirs.id));
    }
    let result = run(greeted, Some(address.to_owned()), shared).await;
    report(shared, result).await;
    Ok(())
}

/// A session between nodes, until it breaks.
async fn run<S: Stream>(
    greeted: Greeted<S>,
    called: Option<String>,
    shared: &Arc<Shared>,
) -> Result<(), SessionError> {
    let Greeted { theirs, sender, mut receiver } = greeted;
    let link = shared.links.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let (out, outgoing) = mpsc::channel(OUTGOING);
    let up = FromLink::Up { peer: theirs.id, link, cluster: theirs.cluster, called, out };
    if shared.core.send(up).await.is_err() {
        return Ok(());
    }
    let mut writer = tokio::spawn(write(sender, outgoing));
    let mut bucket = Bucket::new();
    let result = loop {
        // Both branches are cancel-safe: a frame is taken whole or not at all, and a JoinHandle can
        // be awaited again.
        let envelope = tokio::select! {
            frame = receiver.next(SILENCE) => match frame {
                Ok(envelope) => envelope,
                Err(e) => break Err(e),
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
                FromLink::Message { from: theirs.id, namespace, message: Box::new(message) }
            }
            Envelope::Contacts(contacts) if contacts.len() <= 256 => FromLink::Contacts(contacts),
            Envelope::Ping => continue,
            Envelope::Contacts(_) | Envelope::Ask(_) | Envelope::Answer(_) => {
                break Err(SessionError::Garbage);
            }
        };
        // Waiting here is the back-pressure: the socket is not read while the core is behind.
        if shared.core.send(event).await.is_err() {
            break Ok(());
        }
    };
    writer.abort();
    let _ = shared.core.send(FromLink::Down { peer: theirs.id, link }).await;
    result
}

/// A client's session: questions in, answers out.
async fn serve<S: Stream>(greeted: Greeted<S>, shared: &Arc<Shared>) -> Result<(), SessionError> {
    let Greeted { sender, mut receiver, .. } = greeted;
    let (out, outgoing) = mpsc::channel(OUTGOING);
    let mut writer = tokio::spawn(write(sender, outgoing));
    let mut bucket = Bucket::new();
    let result = loop {
        // Cancel-safe, as above.
        let envelope = tokio::select! {
            frame = receiver.next(Duration::from_secs(600)) => match frame {
                Ok(envelope) => envelope,
                Err(e) => break Err(e),
            },
            _ = &mut writer => break Err(SessionError::Closed),
        };
        if !bucket.take() {
            break Err(SessionError::Flood);
        }
        match envelope {
            Envelope::Ask(ask) => {
                if shared.core.send(FromLink::Ask { ask, out: out.clone() }).await.is_err() {
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

async fn write<S: Stream>(
    mut sender: super::session::Sender<S>,
    mut outgoing: mpsc::Receiver<Envelope>,
) {
    loop {
        // `recv` is cancel-safe; a frame that was taken is written to its end.
        let envelope = match timeout(SILENCE / 3, outgoing.recv()).await {
            Ok(Some(envelope)) => envelope,
            Ok(None) => return,
            Err(_) => Envelope::Ping,
        };
        if sender.send(&envelope).await.is_err() {
            return;
        }
    }
}

async fn report(shared: &Arc<Shared>, result: Result<(), SessionError>) {
    if let Err(e) = result
        && e.is_misconduct()
    {
        tracing::warn!(node = %shared.keys.id(), error = %e, "connection closed");
        let _ = shared.core.send(FromLink::Misconduct(e.reason())).await;
    }
}

/// So many frames a second, and some more at once.
struct Bucket {
    left: f64,
    at: Instant,
}

impl Bucket {
    fn new() -> Self {
        Self { left: BURST, at: Instant::now() }
    }

    fn take(&mut self) -> bool {
        let now = Instant::now();
        self.left = (self.left + now.duration_since(self.at).as_secs_f64() * RATE).min(BURST) - 1.0;
        self.at = now;
        self.left > 0.0
    }
}

/// An answer as it is sent to a client.
pub(super) fn answer(out: &mpsc::Sender<Envelope>, answer: Answer) -> bool {
    out.try_send(Envelope::Answer(answer)).is_ok()
}
