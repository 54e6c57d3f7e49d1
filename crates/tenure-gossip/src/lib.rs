//! A gossip election and a replicated history that cannot diverge, for groups without a database.
//!
//! A program holds a [`Host`]: a node of a cluster. It carries *namespaces*, and each of them has a leader
//! with a gate, a history of records, and a state. A *goal* is what a caller wants of the state; its *record*
//! is what was decided. A node has a folder of its own, in which its identity and its store are.
//!
//! # What it guarantees
//!
//! 1. **One history.** Two nodes that have applied record *n* have applied the same record *n*, and
//!    are in the same state after it: through loss, duplication, delay, reordering, partitions in one
//!    or both directions, pauses, clocks of different rates, and crashes that lose what was not synced.
//! 2. **Once.** A transaction id commits once, however often and wherever it is submitted.
//! 3. **No skip.** Nothing but the next record moves the index: not a timeout, not a failed goal (it is
//!    committed as *rejected*, with its reason), not a change of leader.
//! 4. **One open gate.** The [`LeaderGate`](tenure_core::LeaderGate) of a namespace is open on one node
//!    at most, its epochs strictly increase. It opens on the *committed* leader within its lease.
//! 5. **Bad input costs the peer its connection**, and nothing else.
//!
//! # What it does not
//!
//! - The gossip election is a **hint**: two nodes may name two leaders at the same instant.
//! - Nodes are trusted to follow the protocol once an operator let them in: keys and rights keep clients and
//!   strangers from it, they do not make it Byzantine fault tolerant.
//! - Without a majority of the voters nothing commits and no gate is open.
//! - A process can be paused between the gate's yes and its effect; only a fence can help there.
//!
//! # What is authoritative
//!
//! ```text
//!   SPRAY view ──► election by gossip ──hint──► consensus (noraft)     ──► history ──► state machine
//!   (known peers)  (believed leader)            (what is decided:          (hash       (what it
//!                                                a majority of voters)      chain)      means)
//!                                                      │
//!                                                      └── lease ──► gate
//! ```
//!
//! Consensus decides; gossip only says which voter should stand first. The rooms, in that order: `spray`,
//! `election`, `gossip`, `commit`, `history`; `engine` puts them together without I/O, `driver` runs an
//! engine for every namespace on a thread, with `storage` and `net`; [`Host`] is what an application
//! holds, [`Client`] asks a node from outside. `tenure-sim` runs the same engines under a clock, a
//! network and disks of its own.
//!
//! # Timing (defaults)
//!
//! | | |
//! |---|---|
//! | a beacon counts for | Δc + 2·diameter·Δr = 50 ms + 16 · 300 ms = 4.85 s |
//! | a leader acts until | (when it sent what a majority echoed) + lease = 1 s |
//! | voters keep still for | lease + margin = 1.2 s after they heard of a leader, and after a restart |
//! | crash failover | promise + spread + two round trips ≤ 1.2 s + 0.6 s + … |
//!
//! # When something fails
//!
//! | fault | what happens |
//! |---|---|
//! | leader crashes, freezes, is cut off | its gate shuts by the clock; another node is elected after the promise |
//! | leader stops or steps down | no new act; acts in flight end (one lease at most); voters freed, successor in milliseconds |
//! | voter is removed | it follows by history, and votes again only if it is added again |
//! | goal unanswered | sent again every second, also through a neighbour; after the goal timeout, history from 3 peers |
//! | node behind | log from the leader, history in chunks, or a snapshot in pieces |
//! | disk fails | the node stops; its gate shuts |
//! | contradiction in the history, or another state than the leader's at a checkpoint | the node halts: it gives up leadership, applies and serves nothing, says why |
//! | voter dead | shown as silent; no learner gets a vote until it is replaced, removed or back |
//! | majority lost for good | nothing commits; an operator makes a new generation of a survivor's folder |
//! | voter put back to an old copy of its folder, or a copy beside it | the leader notices what it forgot and takes its vote for good; it halts |
//! | snapshot on disk damaged | the node does not start |
//!
//! # Example
//!
//! ```no_run
//! use tenure_gossip::{Host, HostConfig, Kv, KvGoal, Start, TxId};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! // The first node founds the cluster; the others `Start::Join` it. With state, both go on from there.
//! let config = HostConfig::new("data", "127.0.0.1:7400".parse()?, Start::Bootstrap);
//! let host = Host::<Kv>::start(config).await?;
//! let goal = KvGoal::Increment { key: "jobs".into(), by: 1 }.to_bytes();
//! let record = host.submit("main", TxId::random(), goal).await?;
//! let gate = host.gate("main").expect("the namespace is carried");
//! if let Ok(token) = gate.require_leader() {
//!     // act as the only one, in this epoch
//!     gate.ensure_epoch(token.epoch)?;
//! }
//! host.stop().await?;
//! # let _ = record; Ok(()) }
//! ```
//!
//! What a program usually does next:
//!
//! | to | use |
//! |---|---|
//! | keep a state of its own | [`StateMachine`], in the place of [`Kv`] |
//! | be told of every record | [`Host::subscribe`], [`Host::history`] |
//! | see which nodes vote, lead and lag | [`Host::status`], [`metrics`] |
//! | ask a node from another process | [`Client`] |
//! | let keys of other machines in | [`Invitation`], [`HostConfig::invitation`], [`CredentialGoal`] |
//! | survive the loss of a majority | [`Backup`] |
//! | end | [`Host::stop`]; watch [`Host::failed`] meanwhile |

mod backup;
mod carried;
#[doc(hidden)]
pub mod commit;
mod config;
mod credentials;
mod driver;
#[doc(hidden)]
pub mod election;
#[doc(hidden)]
pub mod engine;
#[doc(hidden)]
pub mod gossip;
#[doc(hidden)]
pub mod history;
mod host;
#[doc(hidden)]
pub mod identity;
mod identity_file;
mod kv;
mod machine;
#[doc(hidden)]
pub mod message;
pub mod metrics;
mod net;
mod number;
#[doc(hidden)]
pub mod spray;
mod storage;

pub use self::backup::survivor::Survivor;
pub use self::backup::{Backup, BackupError, Generation, Reach};
pub use self::commit::{CommitConfig, CommitError, MemberChange};
pub use self::config::{ConfigError, HostConfig, Start};
pub use self::credentials::{CREDENTIALS, CredentialGoal, CredentialList, Invitation, Right};
pub use self::driver::refusal::Refusal;
pub use self::driver::status::{FollowerStatus, NamespaceStatus, Status};
pub use self::election::{ElectionConfig, TieBreak};
pub use self::engine::{EngineConfig, OpenError, SubmitError};
pub use self::history::{ChainError, Hash, Outcome, Record, TxId};
pub use self::host::{Host, HostError};
#[doc(hidden)]
pub use self::identity::decode_hex;
pub use self::identity::{Ed25519Keys, PeerId};
pub use self::identity_file::{IdentityError, IdentityFolder};
pub use self::kv::{Kv, KvGoal, KvQuestion, MAX_KEY};
pub use self::machine::StateMachine;
pub use self::net::client::{Client, ClientError, Trust};
#[doc(hidden)]
pub use self::net::is_address;
pub use self::net::link::Flood;
pub use self::net::session::SessionError;
pub use self::net::tls::{TlsError, TlsFiles};
pub use self::net::wire::{Answer, Ask};
#[doc(hidden)]
pub use self::number::typed_value;
pub use self::spray::SprayConfig;
pub use self::storage::StoreError;
