//! Asking a node from outside.

use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use super::session::{Admission, Greeted, Receiver, Sender, SessionError, Stream, greet};
use super::tls::{Tls, TlsError, TlsFiles};
use super::wire::{Answer, Ask, Envelope, Role};
use crate::identity::Ed25519Keys;

/// A client was not answered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The connection or the greeting failed.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// No node listens there.
    #[error("no node answers at {address} ({why}); is a node running there?")]
    Unreachable {
        /// The address that was called.
        address: String,
        /// What the system said.
        why: std::io::Error,
    },
    /// The files of mutual TLS cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The node says no, and why.
    #[error("{0}")]
    Refused(String),
    /// The answer is not one to this question.
    #[error("the node gave an answer to another question")]
    Confused,
}

type Any = Box<dyn Stream>;

/// A session with one node.
pub struct Client {
    sender: Sender<Any>,
    receiver: Receiver<Any>,
}

impl Client {
    /// Connects to the node at `address` (`HOST:PORT`); TCP and TLS take 5 s each at most. The node's
    /// identity is not known beforehand: only the cluster's secret, or TLS, proves that it is one of
    /// the cluster's.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn connect(
        address: &str,
        keys: Ed25519Keys,
        admission: &Admission,
        tls: Option<&TlsFiles>,
    ) -> Result<Self, ClientError> {
        let limit = Duration::from_secs(5);
        let stream = timeout(limit, TcpStream::connect(address))
            .await
            .unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()))
            .map_err(|why| ClientError::Unreachable { address: address.to_owned(), why })?;
        let _ = stream.set_nodelay(true);
        let stream: Any = match tls {
            Some(files) => {
                let tls = Tls::load(files)?;
                let connected = timeout(limit, tls.connect(address, stream)).await;
                Box::new(connected.map_err(|_| SessionError::Timeout)?.map_err(SessionError::Io)?)
            }
            None => Box::new(stream),
        };
        // A client proves itself as a node does. It does not know which node it called, so it takes
        // the node's word for its name.
        let admission = Admission { allow: None, ..admission.clone() };
        let Greeted { sender, receiver, .. } =
            greet(stream, Arc::new(keys), &admission, Role::Client, None, true).await?;
        Ok(Self { sender, receiver })
    }

    /// Asks one question and waits for the answer, `patience` at most. Not cancel-safe: drop the
    /// client if you give up, or the next answer is that of this question. [`Ask::Watch`] has no answer
    /// before the next record.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn ask(&mut self, ask: Ask, patience: Duration) -> Result<Answer, ClientError> {
        self.sender.send(&Envelope::Ask(ask)).await?;
        self.next(patience).await
    }

    /// The next answer to an [`Ask::Watch`]. Cancel-safe.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn next(&mut self, patience: Duration) -> Result<Answer, ClientError> {
        let until = Instant::now() + patience;
        loop {
            match self.receiver.next(until.saturating_duration_since(Instant::now())).await? {
                Envelope::Answer(Answer::Refused(why)) => return Err(ClientError::Refused(why)),
                Envelope::Answer(answer) => return Ok(answer),
                Envelope::Ping => {}
                Envelope::Namespace(..) | Envelope::Contacts(_) | Envelope::Ask(_) => {
                    return Err(ClientError::Confused);
                }
            }
        }
    }
}
