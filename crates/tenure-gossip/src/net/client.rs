//! Asking a node from outside.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use super::link::SILENCE;
use super::session::{Caller, Greeted, Receiver, Sender, SessionError, Stream, call};
use super::tls::{Tls, TlsError, TlsFiles};
use super::wire::{Answer, Ask, Envelope, Role};
use crate::backup::{Backup, Space};
use crate::commit::Position;
use crate::credentials::{Invitation, joiner_proof, node_proof};
use crate::driver::status::{NamespaceStatus, Status};
use crate::history::{Hash, Record};
use crate::identity::{Ed25519Keys, Keys as _, PeerId};

/// How long TCP, and then TLS, may take.
const CONNECT: Duration = Duration::from_secs(5);
/// An instant so far ahead can still be told.
const FOR_EVER: Duration = Duration::from_secs(100 * 365 * 86_400);

/// Which nodes a client believes.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Trust {
    /// The keys of the cluster's nodes (default: none; then only an open cluster is talked to, or a node that
    /// has joined none yet). A node with another key is not believed, whatever it says.
    pub nodes: Option<BTreeSet<PeerId>>,
    /// Certificates, where the cluster uses those of an authority.
    pub tls: Option<TlsFiles>,
}

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
    /// The files of an authority's certificates cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The node says no, and why.
    #[error("{0}")]
    Refused(String),
    /// The answer is not one to this question. Drop the client, and connect again.
    #[error("the node gave an answer to another question")]
    Confused,
    /// The node does not know the invitation that it took: it is not of the cluster.
    #[error(
        "the node at {0} could not prove that it belongs to the cluster of the invitation; is a program in between?"
    )]
    Impostor(String),
}

/// A session with one node.
///
/// ```no_run
/// use std::time::Duration;
/// use tenure_gossip::{Answer, Ask, Client, IdentityFolder, KvGoal, Trust, TxId};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let me = IdentityFolder::new("operator");
/// let mut trust = Trust::default();
/// trust.nodes = me.nodes()?;
/// let mut client = Client::connect("10.0.0.1:7400", me.keys()?, &trust).await?;
/// let goal = KvGoal::Increment { key: "jobs".into(), by: 1 }.to_bytes();
/// let submit = Ask::Submit { namespace: "main".into(), tx: TxId::random(), goal };
/// // Without an answer it may be decided all the same: ask again under the same transaction id.
/// if let Answer::Record(record) = client.ask(submit, Duration::from_secs(30)).await? {
///     println!("record {}: {:?}", record.index, record.outcome);
/// }
/// # Ok(()) }
/// ```
pub struct Client {
    keys: Arc<Ed25519Keys>,
    node: PeerId,
    cluster: Option<[u8; 16]>,
    open: bool,
    exported: [u8; 32],
    asked: u64,
    sender: Sender,
    receiver: Receiver,
}

impl Client {
    /// Connects to the node at `address` (`HOST:PORT`) as the key `keys`; TCP and TLS take 5 s each at most.
    /// What may be asked is decided by the right of that key.
    ///
    /// # Errors
    /// See [`ClientError`]; [`SessionError::UnknownNode`] if the node's key is not in `trust`.
    pub async fn connect(
        address: &str,
        keys: Ed25519Keys,
        trust: &Trust,
    ) -> Result<Self, ClientError> {
        let client = Self::connect_to_any(address, keys, trust.tls.as_ref()).await?;
        let known = match &trust.nodes {
            Some(nodes) => nodes.contains(&client.node),
            None => client.open || client.cluster.is_none(),
        };
        if known { Ok(client) } else { Err(SessionError::UnknownNode(client.node).into()) }
    }

    /// The same, whichever node answers.
    pub(crate) async fn connect_to_any(
        address: &str,
        keys: Ed25519Keys,
        files: Option<&TlsFiles>,
    ) -> Result<Self, ClientError> {
        let stream = timeout(CONNECT, TcpStream::connect(address))
            .await
            .unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()))
            .map_err(|why| ClientError::Unreachable { address: address.to_owned(), why })?;
        let _ = stream.set_nodelay(true);
        Self::over(address, stream, keys, files).await
    }

    /// The same, over a stream that is connected.
    pub(crate) async fn over<S: Stream>(
        address: &str,
        stream: S,
        keys: Ed25519Keys,
        files: Option<&TlsFiles>,
    ) -> Result<Self, ClientError> {
        let tls = Tls::new(&keys, files)?;
        let secured = timeout(CONNECT, tls.connect(address, stream))
            .await
            .map_err(|_| SessionError::Timeout)??;
        let keys = Arc::new(keys);
        let caller = Caller { keys: &keys, role: Role::Client, cluster: None };
        let greeted = call(secured, caller).await?;
        let Greeted { peer: node, cluster, open, exported, sender, receiver, .. } = greeted;
        Ok(Self { keys, node, cluster, open, exported, asked: 0, sender, receiver })
    }

    /// Has the key `keys` let in by the node at `address`, and returns the keys of the cluster's nodes: what
    /// [`Trust::nodes`] needs. TCP and TLS take 5 s each at most, the answer `patience`. If the future is
    /// dropped, the key may be let in all the same. A second time, for the same key, it says that the
    /// invitation is used.
    ///
    /// # Errors
    /// See [`ClientError`]; [`SessionError::OtherCluster`] if the node says that it is of another cluster than
    /// the invitation, [`ClientError::Impostor`] if it cannot prove that it is of that one.
    pub async fn redeem(
        address: &str,
        keys: Ed25519Keys,
        invitation: &Invitation,
        files: Option<&TlsFiles>,
        patience: Duration,
    ) -> Result<BTreeSet<PeerId>, ClientError> {
        let mut client = Self::connect_to_any(address, keys, files).await?;
        if client.cluster != Some(invitation.cluster) {
            return Err(SessionError::OtherCluster.into());
        }
        let key = invitation.key();
        let proof = *joiner_proof(&key, &client.exported, &client.keys.id()).as_bytes();
        let ask = Ask::Redeem { id: invitation.id(), proof };
        let Answer::Welcome { proof, nodes } = client.ask(ask, patience).await? else {
            return Err(ClientError::Confused);
        };
        // Hashes of blake3 compare in constant time.
        if node_proof(&key, &client.exported, &client.node) != blake3::Hash::from_bytes(proof) {
            return Err(ClientError::Impostor(address.to_owned()));
        }
        Ok(nodes.into_iter().collect())
    }

    /// The node's key.
    #[must_use]
    pub fn node(&self) -> PeerId {
        self.node
    }

    /// The id of the node's cluster, if it had joined one when this client connected.
    #[must_use]
    pub fn cluster(&self) -> Option<[u8; 16]> {
        self.cluster
    }

    /// Whether the node's cluster was open when this client connected: every key has every right there.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// Asks one question and waits for the answer, `patience` at most. A question that was given up may
    /// still be answered: such an answer is thrown away, and never taken for that of a later question.
    /// Not cancel-safe while the question is written: drop the client then. [`Ask::Watch`] has no answer
    /// before the next record.
    ///
    /// # Errors
    /// [`ClientError::Refused`] if the node says no; [`SessionError::Timeout`] if no answer came in
    /// time: a goal may be decided all the same, ask again under its transaction id. After any other error the
    /// client is of no use: connect again.
    pub async fn ask(&mut self, ask: Ask, patience: Duration) -> Result<Answer, ClientError> {
        self.asked += 1;
        self.sender.send(&Envelope::Ask(self.asked, ask)).await?;
        self.next(patience).await
    }

    /// A backup of every namespace that the node carries: its latest snapshot, and the records since. All of it
    /// is held in memory. Each answer is waited for `patience` at most. Only an operator may ask for it.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn backup(&mut self, patience: Duration) -> Result<Backup, ClientError> {
        let Answer::Status(text) = self.ask(Ask::Status, patience).await? else {
            return Err(ClientError::Confused);
        };
        let status: Status = serde_json::from_str(&text).map_err(|_| ClientError::Confused)?;
        let cluster = self.cluster.ok_or(ClientError::Confused)?;
        let mut spaces = Vec::new();
        for space in status.namespaces.iter().chain([&status.credentials]) {
            spaces.push(self.backup_of(space, patience).await?);
        }
        Ok(Backup::new(cluster, spaces))
    }

    async fn backup_of(
        &mut self,
        status: &NamespaceStatus,
        patience: Duration,
    ) -> Result<Space, ClientError> {
        let name = status.namespace.clone();
        let (mut whole, mut covered) = (None::<(Hash, Vec<u8>)>, 0);
        loop {
            let offset = whole.as_ref().map_or(0, |(_, bytes)| bytes.len() as u64);
            let ask = Ask::Snapshot { namespace: name.clone(), offset };
            let Answer::Piece { index, hash, length, bytes } = self.ask(ask, patience).await?
            else {
                return Err(ClientError::Confused);
            };
            if length == 0 {
                break;
            }
            // A newer one may have taken its place: then from the beginning.
            let same = whole.take().filter(|(known, _)| *known == hash);
            let Some((hash, mut all)) = same.or((offset == 0).then(|| (hash, Vec::new()))) else {
                continue;
            };
            all.extend(bytes);
            let done = all.len() as u64 >= length;
            whole = Some((hash, all));
            covered = index;
            if done {
                break;
            }
        }
        let mut records: Vec<Record> = Vec::new();
        loop {
            let from = records.last().map_or(covered, |record| record.index) + 1;
            let ask = Ask::History { namespace: name.clone(), from, upto: u64::MAX };
            let Answer::Records(page) = self.ask(ask, patience).await? else {
                return Err(ClientError::Confused);
            };
            if page.first().is_none_or(|record| record.index != from) {
                break;
            }
            records.extend(page);
        }
        let term = records.last().map_or(status.term, |record| record.term.max(status.term));
        let last = Position { term, index: status.commit_index };
        // Of a cluster that runs the leases are its own business: it goes on beside what is restored.
        let lease = Duration::ZERO;
        Ok(Space { name, term, lease, last, snapshot: whole, records })
    }

    /// The next answer to the latest question: to an [`Ask::Watch`] there are many. Cancel-safe. A node that is
    /// alive gives a sign of it every 10 s; after 30 s without any, however long `patience` is, it is taken for
    /// dead.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn next(&mut self, patience: Duration) -> Result<Answer, ClientError> {
        let until = Instant::now() + patience.min(FOR_EVER);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.receiver.next(left.min(SILENCE)).await? {
                // To a question that was given up.
                Envelope::Answer(number, _) if number < self.asked => {}
                Envelope::Answer(_, Answer::Refused(why)) => return Err(ClientError::Refused(why)),
                Envelope::Answer(_, answer) => return Ok(answer),
                Envelope::Ping => {}
                Envelope::Namespace(..) | Envelope::Contacts(_) | Envelope::Ask(..) => {
                    return Err(ClientError::Confused);
                }
            }
        }
    }
}
