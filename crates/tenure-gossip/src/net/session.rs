//! Two programs prove their identities to each other, and sign every frame from then on.
//!
//! ```text
//!  dialler                          acceptor
//!     ── Hello (id, nonce) ────────────►
//!     ◄──────────── Hello (id, nonce) ──
//!     session = BLAKE3(both hellos)
//!     ── Proof: sign(session), mac(session) ─►
//!     ◄─ Proof: sign(session), mac(session) ──
//!  from here on: frame n = sign(session ‖ sender ‖ n ‖ payload) ‖ payload
//! ```
//!
//! A frame of another session, of the other direction, or one that is repeated, left out or put in
//! another place has a wrong signature.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::{SinkExt as _, StreamExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncWrite, ReadHalf, WriteHalf};
use tokio::time::timeout;
use tokio_util::codec::{FramedRead, FramedWrite, LengthDelimitedCodec};

use super::wire::{Envelope, Hello, MAX_FRAME, MAX_GREETING, Proof, Role};
use crate::identity::{Ed25519Keys, Keys as _, PeerId, Signature};

/// How long the greeting may take.
const GREETING: Duration = Duration::from_secs(5);
/// How long one frame may take to be written.
const WRITE: Duration = Duration::from_secs(10);

/// Any stream of bytes: TCP, or TLS on TCP.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin + 'static {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> Stream for T {}

/// Which nodes and clients may connect.
#[derive(Debug, Clone, Default)]
pub struct Admission {
    /// The cluster's secret, the same on every node and client. All zero (the default) is none: every
    /// program that reaches the port is admitted.
    pub secret: [u8; 32],
    /// If given, only these nodes and clients are admitted (default: all that know the secret).
    pub allow: Option<BTreeSet<PeerId>>,
}

impl Admission {
    /// Whether every program that reaches the port is admitted: neither a secret nor a list is set.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.secret == [0; 32] && self.allow.is_none()
    }
}

/// A session was refused or broken off.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The connection failed.
    #[error("connection: {0}")]
    Io(std::io::Error),
    /// The other side was too slow.
    #[error("the other side was silent for too long")]
    Timeout,
    /// The connection was closed.
    #[error("the other side closed the connection")]
    Closed,
    /// What came is not part of the protocol.
    #[error("the other side sent garbage")]
    Garbage,
    /// The proof is wrong.
    #[error("the other side could not prove its identity, or does not know the cluster's secret")]
    Unproven,
    /// Another node than the one called, or this node itself.
    #[error("the other side is {0}, not the node that was called")]
    WrongPeer(PeerId),
    /// The other side is not admitted.
    #[error("{0} is not on the list of nodes that may connect; add it there")]
    NotAllowed(PeerId),
    /// The other side is part of another cluster.
    #[error(
        "the other side belongs to another cluster; a cluster is bootstrapped once, others join it"
    )]
    OtherCluster,
    /// The other side is part of no cluster yet.
    #[error("the other side has not joined a cluster yet; it is called again until it has")]
    NoCluster,
    /// The other side speaks another version.
    #[error("the other side speaks version {0}, this one 1")]
    Version(u16),
    /// The other side sends too fast.
    #[error("the other side sends more than a node ever does")]
    Flood,
}

impl From<std::io::Error> for SessionError {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error)
    }
}

impl SessionError {
    /// The name used in metrics.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Io(_) => "io",
            Self::Timeout => "timeout",
            Self::Closed => "closed",
            Self::Garbage => "garbage",
            Self::Unproven => "unproven",
            Self::WrongPeer(_) => "wrong_peer",
            Self::NotAllowed(_) => "not_allowed",
            Self::OtherCluster => "other_cluster",
            Self::NoCluster => "no_cluster",
            Self::Version(_) => "version",
            Self::Flood => "flood",
        }
    }

    /// Whether the peer misbehaved, rather than the network.
    #[must_use]
    pub const fn is_misconduct(&self) -> bool {
        !matches!(self, Self::Io(_) | Self::Timeout | Self::Closed | Self::NoCluster)
    }
}

/// The receiving half of a session.
pub(crate) struct Receiver<S> {
    frames: FramedRead<ReadHalf<S>, LengthDelimitedCodec>,
    keys: Arc<Ed25519Keys>,
    session: [u8; 32],
    peer: PeerId,
    count: u64,
}

/// The sending half.
pub(crate) struct Sender<S> {
    frames: FramedWrite<WriteHalf<S>, LengthDelimitedCodec>,
    keys: Arc<Ed25519Keys>,
    session: [u8; 32],
    count: u64,
}

/// What the greeting came to.
pub(crate) struct Greeted<S> {
    pub(crate) theirs: Hello,
    pub(crate) sender: Sender<S>,
    pub(crate) receiver: Receiver<S>,
}

/// Greets the other side, within a deadline. `calling`: this side dialled.
pub(crate) async fn greet<S: Stream>(
    stream: S,
    keys: Arc<Ed25519Keys>,
    admission: &Admission,
    role: Role,
    cluster: Option<[u8; 16]>,
    calling: bool,
) -> Result<Greeted<S>, SessionError> {
    timeout(GREETING, greet_unbounded(stream, keys, admission, role, cluster, calling))
        .await
        .map_err(|_| SessionError::Timeout)?
}

async fn greet_unbounded<S: Stream>(
    stream: S,
    keys: Arc<Ed25519Keys>,
    admission: &Admission,
    role: Role,
    cluster: Option<[u8; 16]>,
    calling: bool,
) -> Result<Greeted<S>, SessionError> {
    let codec = || LengthDelimitedCodec::builder().max_frame_length(MAX_GREETING).new_codec();
    let (read, write) = tokio::io::split(stream);
    let mut read = FramedRead::new(read, codec());
    let mut write = FramedWrite::new(write, codec());

    let mine = Hello { version: 1, role, id: keys.id(), nonce: rand::random(), cluster };
    write.send(encode(&mine)).await?;
    let theirs: Hello = decode(&next(&mut read).await?)?;
    if theirs.version != 1 {
        return Err(SessionError::Version(theirs.version));
    }
    if theirs.id == mine.id {
        return Err(SessionError::WrongPeer(theirs.id));
    }
    if admission.allow.as_ref().is_some_and(|a| !a.contains(&theirs.id)) {
        return Err(SessionError::NotAllowed(theirs.id));
    }
    let (first, second) = if calling { (&mine, &theirs) } else { (&theirs, &mine) };
    let mut hasher = blake3::Hasher::new();
    hasher.update(b"tenure session 1");
    hasher.update(&encode(first));
    hasher.update(&encode(second));
    let session = *hasher.finalize().as_bytes();

    let proof = Proof {
        signature: keys.sign(&proof_text(&session, &mine.id)),
        mac: mac(&admission.secret, &session, &mine.id),
    };
    write.send(encode(&proof)).await?;
    let proof: Proof = decode(&next(&mut read).await?)?;
    // blake3's hashes compare in constant time.
    let mac = blake3::Hash::from_bytes(mac(&admission.secret, &session, &theirs.id));
    if mac != blake3::Hash::from_bytes(proof.mac)
        || !keys.verify(&theirs.id, &proof_text(&session, &theirs.id), &proof.signature)
    {
        return Err(SessionError::Unproven);
    }
    if let (Some(a), Some(b)) = (mine.cluster, theirs.cluster)
        && a != b
    {
        return Err(SessionError::OtherCluster);
    }
    read.decoder_mut().set_max_frame_length(MAX_FRAME);
    write.encoder_mut().set_max_frame_length(MAX_FRAME);
    let peer = theirs.id;
    Ok(Greeted {
        theirs,
        sender: Sender { frames: write, keys: keys.clone(), session, count: 0 },
        receiver: Receiver { frames: read, keys, session, peer, count: 0 },
    })
}

impl<S: Stream> Sender<S> {
    /// Signs and sends, within a deadline. Not cancel-safe: a frame may be half written, so a caller
    /// that cancels must drop the session.
    pub(crate) async fn send(&mut self, envelope: &Envelope) -> Result<(), SessionError> {
        self.send_encoded(&encode(envelope)).await
    }

    /// The same, of what is encoded already.
    pub(crate) async fn send_encoded(&mut self, payload: &[u8]) -> Result<(), SessionError> {
        let text = frame_text(&self.session, &self.keys.id(), self.count, payload);
        self.count += 1;
        let signature = self.keys.sign(&text);
        let mut frame = BytesMut::with_capacity(Signature::LENGTH + payload.len());
        frame.extend_from_slice(&signature.0);
        frame.extend_from_slice(payload);
        timeout(WRITE, self.frames.send(frame.freeze()))
            .await
            .map_err(|_| SessionError::Timeout)??;
        Ok(())
    }
}

impl<S: Stream> Receiver<S> {
    /// The next frame, checked. Cancel-safe: a frame is taken whole or not at all.
    pub(crate) async fn next(&mut self, patience: Duration) -> Result<Envelope, SessionError> {
        Ok(self.next_sized(patience).await?.0)
    }

    /// The next frame and its length in bytes. Cancel-safe.
    pub(crate) async fn next_sized(
        &mut self,
        patience: Duration,
    ) -> Result<(Envelope, usize), SessionError> {
        let frame = timeout(patience, next(&mut self.frames))
            .await
            .map_err(|_| SessionError::Timeout)??;
        let (signature, payload) = frame.split_first_chunk().ok_or(SessionError::Garbage)?;
        let signature = Signature(*signature);
        let text = frame_text(&self.session, &self.peer, self.count, payload);
        self.count += 1;
        if !self.keys.verify(&self.peer, &text, &signature) {
            return Err(SessionError::Unproven);
        }
        Ok((decode(payload)?, frame.len()))
    }
}

async fn next<R: AsyncRead + Unpin>(
    frames: &mut FramedRead<R, LengthDelimitedCodec>,
) -> Result<BytesMut, SessionError> {
    match frames.next().await {
        Some(Ok(frame)) => Ok(frame),
        // A length beyond the limit.
        Some(Err(error)) if error.kind() == std::io::ErrorKind::InvalidData => {
            Err(SessionError::Garbage)
        }
        Some(Err(error)) => Err(error.into()),
        None => Err(SessionError::Closed),
    }
}

pub(crate) fn encode<T: Serialize>(value: &T) -> Bytes {
    postcard::to_stdvec(value).expect("plain data can always be encoded").into()
}

fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, SessionError> {
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Ok(value),
        Ok(_) | Err(_) => Err(SessionError::Garbage),
    }
}

fn proof_text(session: &[u8; 32], id: &PeerId) -> Vec<u8> {
    [b"tenure proof 1".as_slice(), session, &id.0].concat()
}

fn frame_text(session: &[u8; 32], id: &PeerId, count: u64, payload: &[u8]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(b"tenure frame 1");
    hasher.update(session);
    hasher.update(&id.0);
    hasher.update(&count.to_le_bytes());
    hasher.update(payload);
    *hasher.finalize().as_bytes()
}

fn mac(secret: &[u8; 32], session: &[u8; 32], id: &PeerId) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new_keyed(secret);
    hasher.update(b"tenure secret 1");
    hasher.update(session);
    hasher.update(&id.0);
    *hasher.finalize().as_bytes()
}

#[cfg(test)]
mod tests;
