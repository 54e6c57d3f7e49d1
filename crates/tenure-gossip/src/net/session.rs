//! The first words of a session, and the frames that follow. TLS has proven the keys of both sides, or the
//! certificates; nothing here is secret or signed besides.
//!
//! ```text
//!  caller                                   host
//!     ═══════════ TLS 1.3, both keys proven ═══════════
//!     ── version, Hello (role, cluster) ────────►
//!     ◄──────── version, Welcome (cluster, open, or why not) ──
//!     from here on: frames of at most 4 MiB
//! ```
//!
//! Where certificates of an authority are used, each side's first word also carries its identity: a
//! signature by its ed25519 key over the secret that both ends of this TLS session export (RFC 9266). It fits
//! no other session.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::{SinkExt as _, StreamExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncWrite, ReadHalf, WriteHalf};
use tokio::time::timeout;
use tokio_util::codec::{FramedRead, FramedWrite, LengthDelimitedCodec};

use super::tls::Secured;
use super::wire::{
    Denied, Envelope, Hello, MAX_FRAME, MAX_GREETING, Role, Signed, VERSION, Welcome,
};
use crate::identity::{Ed25519Keys, Keys as _, PeerId};

/// How long the first words may take.
const GREETING: Duration = Duration::from_secs(5);
/// How long one frame may take to be written.
const WRITE: Duration = Duration::from_secs(10);

/// Any stream of bytes: TCP, or TLS on TCP.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin + 'static {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> Stream for T {}

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
    /// The other side does not speak TLS.
    #[error("the other side does not speak TLS 1.3; is a node of this version running there?")]
    NotTls,
    /// TLS was refused by one of the sides.
    #[error("TLS: {0}; both sides need raw keys, or certificates of one authority")]
    Tls(String),
    /// The proof is wrong.
    #[error("the other side could not prove its identity")]
    Unproven,
    /// Another node than the one called, or this node itself.
    #[error("the other side is {0}, not the node that was called")]
    WrongPeer(PeerId),
    /// The other side has not the right.
    #[error(
        "the key {0} is no node's of this cluster; an operator lets a node in: tenure gossip invite node"
    )]
    NotANode(PeerId),
    /// This side has not the right.
    #[error("this key has no right in the cluster; an operator lets it in: tenure gossip invite")]
    NoRight,
    /// The other side has no place left for such a connection.
    #[error("the other side has no room for one more connection; try again, or ask another node")]
    Full,
    /// The other side asks for credentials, and its key is not known on this side.
    #[error(
        "the key {0} of the node is not known here; name an identity that accepted an invitation: tenure gossip accept"
    )]
    UnknownNode(PeerId),
    /// The cluster is open, and this side was not told that it may be.
    #[error(
        "the cluster is open to every program that reaches it; start with --open to join it all the same"
    )]
    Open,
    /// The other side is part of another cluster.
    #[error(
        "the other side belongs to another cluster; a cluster is bootstrapped once, others join it"
    )]
    OtherCluster,
    /// The other side is part of no cluster yet.
    #[error("the other side has not joined a cluster yet; it is called again until it has")]
    NoCluster,
    /// The other side speaks another version.
    #[error(
        "the other side speaks version {0} of the protocol, this one {VERSION}; use one version of tenure everywhere"
    )]
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

impl From<Denied> for SessionError {
    fn from(denied: Denied) -> Self {
        match denied {
            Denied::NoRight => Self::NoRight,
            Denied::OtherCluster => Self::OtherCluster,
            Denied::NoCluster => Self::NoCluster,
            Denied::Full => Self::Full,
        }
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
            Self::NotTls => "not_tls",
            Self::Tls(_) => "tls",
            Self::Unproven => "unproven",
            Self::WrongPeer(_) => "wrong_peer",
            Self::NotANode(_) | Self::NoRight => "no_right",
            Self::Full => "full",
            Self::UnknownNode(_) => "unknown_node",
            Self::Open => "open",
            Self::OtherCluster => "other_cluster",
            Self::NoCluster => "no_cluster",
            Self::Version(_) => "version",
            Self::Flood => "flood",
        }
    }

    /// Whether the peer misbehaved, rather than the network.
    #[must_use]
    pub const fn is_misconduct(&self) -> bool {
        !matches!(self, Self::Io(_) | Self::Timeout | Self::Closed | Self::NoCluster | Self::Full)
    }
}

type Any = Box<dyn Stream>;

/// The receiving half of a session.
pub(crate) struct Receiver {
    frames: FramedRead<ReadHalf<Any>, LengthDelimitedCodec>,
}

/// The sending half.
pub(crate) struct Sender {
    frames: FramedWrite<WriteHalf<Any>, LengthDelimitedCodec>,
}

/// A session that is up.
pub(crate) struct Greeted {
    /// The other side's proven key.
    pub(crate) peer: PeerId,
    pub(crate) role: Role,
    /// The cluster it belongs to, if it does already.
    pub(crate) cluster: Option<[u8; 16]>,
    /// Whether that cluster is open, if the other side is a node.
    pub(crate) open: bool,
    /// The secret of the TLS session below.
    pub(crate) exported: [u8; 32],
    pub(crate) sender: Sender,
    pub(crate) receiver: Receiver,
}

/// What a caller says of itself.
pub(crate) struct Caller<'a> {
    pub(crate) keys: &'a Arc<Ed25519Keys>,
    pub(crate) role: Role,
    pub(crate) cluster: Option<[u8; 16]>,
}

/// Speaks the first words as the side that called, within a deadline.
pub(crate) async fn call(secured: Secured, caller: Caller<'_>) -> Result<Greeted, SessionError> {
    timeout(GREETING, async {
        let Secured { stream, peer, exported } = secured;
        let (mut read, mut write) = split(stream);
        let signed = peer.is_none().then(|| Signed::new(&**caller.keys, &exported, b"caller"));
        let hello = Hello { role: caller.role, cluster: caller.cluster, signed };
        write.send(versioned(&hello)).await?;
        let welcome: Welcome = unversioned(&next(&mut read).await?)?;
        if let Some(denied) = welcome.denied {
            return Err(denied.into());
        }
        let peer = proven(peer, welcome.signed.as_ref(), caller.keys, &exported, b"host")?;
        let mine = caller.cluster.zip(welcome.cluster);
        if mine.is_some_and(|(mine, theirs)| mine != theirs) {
            return Err(SessionError::OtherCluster);
        }
        let Welcome { cluster, open, .. } = welcome;
        let (receiver, sender) = wide(read, write);
        Ok(Greeted { peer, role: Role::Node, cluster, open, exported, sender, receiver })
    })
    .await
    .map_err(|_| SessionError::Timeout)?
}

/// Speaks the first words as the side that was called, within a deadline. `decide` says what this node is,
/// or why it does not talk to the caller.
pub(crate) async fn host(
    secured: Secured,
    keys: &Arc<Ed25519Keys>,
    decide: impl FnOnce(&PeerId, &Hello) -> (Welcome, Result<(), SessionError>),
) -> Result<Greeted, SessionError> {
    timeout(GREETING, async {
        let Secured { stream, peer, exported } = secured;
        let certified = peer.is_none();
        let (mut read, mut write) = split(stream);
        let hello: Hello = match unversioned(&next(&mut read).await?) {
            Ok(hello) => hello,
            Err(error) => {
                // The other side is told which version is spoken here.
                let _ = write.send(Bytes::copy_from_slice(&VERSION.to_be_bytes())).await;
                return Err(error);
            }
        };
        let peer = proven(peer, hello.signed.as_ref(), keys, &exported, b"caller")?;
        // A node's own folder may ask the node, but a node does not talk to itself.
        if peer == keys.id() && hello.role == Role::Node {
            return Err(SessionError::WrongPeer(peer));
        }
        let (mut welcome, verdict) = decide(&peer, &hello);
        welcome.signed = certified.then(|| Signed::new(&**keys, &exported, b"host"));
        write.send(versioned(&welcome)).await?;
        verdict?;
        let (receiver, sender) = wide(read, write);
        let Hello { role, cluster, .. } = hello;
        Ok(Greeted { peer, role, cluster, open: false, exported, sender, receiver })
    })
    .await
    .map_err(|_| SessionError::Timeout)?
}

/// The other side's key: from TLS itself, or by its signature over this TLS session.
fn proven(
    shown: Option<PeerId>,
    signed: Option<&Signed>,
    keys: &Arc<Ed25519Keys>,
    exported: &[u8; 32],
    side: &[u8],
) -> Result<PeerId, SessionError> {
    match (shown, signed) {
        (Some(peer), None) => Ok(peer),
        (None, Some(signed)) if signed.is_genuine(&**keys, exported, side) => Ok(signed.id),
        (Some(_) | None, Some(_)) | (None, None) => Err(SessionError::Unproven),
    }
}

type Read = FramedRead<ReadHalf<Any>, LengthDelimitedCodec>;
type Write = FramedWrite<WriteHalf<Any>, LengthDelimitedCodec>;

fn split(stream: Any) -> (Read, Write) {
    let codec = || LengthDelimitedCodec::builder().max_frame_length(MAX_GREETING).new_codec();
    let (read, write) = tokio::io::split(stream);
    (FramedRead::new(read, codec()), FramedWrite::new(write, codec()))
}

fn wide(mut read: Read, mut write: Write) -> (Receiver, Sender) {
    read.decoder_mut().set_max_frame_length(MAX_FRAME);
    write.encoder_mut().set_max_frame_length(MAX_FRAME);
    (Receiver { frames: read }, Sender { frames: write })
}

impl Sender {
    /// Sends, within a deadline. Not cancel-safe: a frame may be half written, so a caller that cancels
    /// must drop the session.
    pub(crate) async fn send(&mut self, envelope: &Envelope) -> Result<(), SessionError> {
        self.send_encoded(encode(envelope)).await
    }

    /// The same, of what is encoded already.
    pub(crate) async fn send_encoded(&mut self, frame: Bytes) -> Result<(), SessionError> {
        timeout(WRITE, self.frames.send(frame)).await.map_err(|_| SessionError::Timeout)??;
        Ok(())
    }
}

impl Receiver {
    /// The next frame. Cancel-safe: a frame is taken whole or not at all.
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
        Ok((decode(&frame)?, frame.len()))
    }
}

async fn next<R: AsyncRead + Unpin>(
    frames: &mut FramedRead<R, LengthDelimitedCodec>,
) -> Result<BytesMut, SessionError> {
    match frames.next().await {
        Some(Ok(frame)) => Ok(frame),
        // A length beyond the limit, or a record that TLS refuses.
        Some(Err(error)) if error.kind() == std::io::ErrorKind::InvalidData => {
            Err(SessionError::Garbage)
        }
        Some(Err(error)) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
            Err(SessionError::Closed)
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

/// The version stands in front, where every version reads it.
fn versioned<T: Serialize>(value: &T) -> Bytes {
    let mut bytes = VERSION.to_be_bytes().to_vec();
    bytes.extend(encode(value));
    bytes.into()
}

fn unversioned<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, SessionError> {
    let (version, rest) = bytes.split_first_chunk().ok_or(SessionError::Garbage)?;
    let version = u16::from_be_bytes(*version);
    if version != VERSION {
        return Err(SessionError::Version(version));
    }
    decode(rest)
}

#[cfg(test)]
mod tests;
