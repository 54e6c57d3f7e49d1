//! Nonce-ordered transactions for a leader/follower group.
//!
//! Several nodes share one signing account. One leads: it chooses nonces, signs, stores, sends,
//! replaces what is stuck and fills gaps. The others watch the same table, and one of them takes over
//! at any moment. A transaction that was accepted from a caller executes once at most, and is pursued
//! to its end, whichever node dies at whichever moment.
//!
//! ```text
//!   caller ──send──▶ service ──▶ engine (pure: which nonce, what next)
//!                       │  intent first                │ effects
//!                       ▼                              ▼
//!        writer ── INSERT, fenced ──▶ PostgreSQL     chain (Ethereum, Substrate)
//!                                        │ NOTIFY + poll
//!                       followers ◀──────┘
//! ```
//!
//! ```no_run
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use tenure::config::{Config, RoleSpec};
//! use tenure::connect::{Connector, Dsn, TlsOptions};
//! use tenure::{Member, TakeoverPolicy};
//! use tenure_tx::{Chain, Mode, SendRequest, Signer, Store, StoreOptions, TransactionService};
//!
//! # async fn pay(chain: Arc<dyn Chain>, signer: Arc<dyn Signer>)
//! #     -> Result<(), Box<dyn std::error::Error>> {
//! // The election: one role for the account. The table: fenced by the same role.
//! let dsn = "postgresql://localhost/app";
//! let role = RoleSpec::named("payments").policy(TakeoverPolicy::Fenced);
//! let member = Member::start(Config::builder().dsn(dsn).role(role).build()?).await?;
//! let lock = member.lock("payments")?;
//! lock.start().await?;
//! let connector = Connector::new(&Dsn::parse(dsn)?, TlsOptions::new())?;
//! let options = StoreOptions::new(lock.role().clone(), signer.account().clone(), "node-1");
//! let group = Mode::group(&lock, Store::new(connector, options));
//!
//! let service = TransactionService::builder(group, chain, signer).start().await?;
//! let request = SendRequest::call("the call, as the chain encodes it").with_id("invoice-7");
//! // On a follower: `SendError::NotLeader`.
//! let mut handle = service.send(request).await?; // stored: the next leader would finish it
//! if handle.ended().await.is_none() {
//!     // This node cannot tell any more. The table can, on any node.
//!     service.wait("invoice-7", Duration::from_secs(600)).await?;
//! }
//! let drained = service.shutdown(Duration::from_secs(5)).await;
//! member.shutdown(None).await?;
//! # let _ = drained;
//! # Ok(())
//! # }
//! ```
//!
//! | to | use |
//! |---|---|
//! | choose the chain and the key | `chain::ethereum`, `chain::substrate`: with the features `ethereum` and `substrate` of this crate |
//! | use another chain or another key | implement [`Chain`], [`Signer`] |
//! | send without a group | [`Mode::Standalone`] |
//! | make a payment once, whatever fails | [`SendRequest::with_id`]: ask again under the same id |
//! | learn how it ended, on any node | [`TransactionService::find`], [`TransactionService::wait`], [`EndKind`] |
//! | follow every change, across restarts | [`feed()`](feed::feed) |
//! | give a request up | [`SendRequest::with_deadline`], [`TransactionService::cancel_request`] |
//! | stop without loss | [`TransactionService::shutdown`], then the member's |
//!
//! # What it guarantees
//!
//! 1. **Stored before sent.** A row with the signed bytes is committed under the leader's epoch
//!    before the bytes leave. What was accepted is finished by the next leader.
//! 2. **One content per nonce, one nonce per request.** A nonce carries one caller's request, all of
//!    its replacements carry the same one, and the only other content is a no-op. So a request
//!    cannot execute twice, and no two nodes send different content under one nonce.
//! 3. **No hole stays.** A nonce that nothing uses is given to the next request, or filled with a
//!    no-op when none comes.
//! 4. **A stale leader cannot write.** Every write passes `tenure.fence(role, epoch)` in its own
//!    transaction; every send passes the gate.
//! 5. **A follower never sends.** Its send is an error, a warning and a count. So is that of a node
//!    whose database does not answer: there is no fallback to sending alone.
//! 6. **Every end comes true.** An end that no block proves is compared with the chain once its nonce is
//!    final. If a node was wrong, the row is corrected, and every reader hears of it.
//! 7. **Every end is seen.** A reader of the table that survives any cut sees the last status of
//!    every transaction, for as long as rows are kept.
//!
//! # What it does not
//!
//! * It does not make a call succeed: what failed on chain ends as [`status::EndKind::Reverted`].
//! * A request that no node can have, because each refused it on its merits, ends as
//!   [`status::EndKind::Refused`]; try again under another id. Bytes that a node may have are given up
//!   only when the request is dropped or its deadline has passed.
//! * If another program uses the account, its transaction may take a nonce: ours ends as
//!   [`status::EndKind::Usurped`].
//! * With `Finality::Confirmations` on Ethereum, a block is final after as many blocks as you say;
//!   a deeper reorganisation makes a finalised status wrong.
//!
//! # What is authoritative
//!
//! The finalised chain on what happened; the table on what is owed; the gate on whether a node may act;
//! the memory on nothing: after a write of unknown outcome it is thrown away and the table is read.
//!
//! # When things fail
//!
//! | what fails | what happens |
//! |---|---|
//! | leader crashes before the row is stored | nothing was accepted; the caller asks again under the same id |
//! | leader crashes after it | the next leader sends the stored bytes |
//! | leader freezes and wakes up | its gate is shut, its epoch is old; at worst it repeats stored bytes |
//! | database away | nothing new is accepted; what was sent goes on; the table is read again |
//! | write of unknown outcome | the table decides; the request goes back into the queue under its id |
//! | node of the chain away, pool lost | sent again when it answers |
//! | a node's answer is not understood | looked up, sent again; never a refusal |
//! | the account cannot pay, the base fee is above the cap | waited out, aloud |
//! | dropped, invalid, retracted, finality timeout | pursued until the nonce is final |
//! | stuck | same nonce, higher tip, bounded |
//! | expired (mortal era) | same nonce, signed anew |
//!
//! Recovery of *n* open rows is one query and *n* submissions, [`service::ServiceOptions::in_flight`]
//! at a time. A failed leader is replaced within the bound of its role's policy (`fenced`:
//! milliseconds after a crash, lease + margin after a freeze): every effect here carries the epoch
//! or a nonce, so `fenced` is the policy to choose.

pub mod account;
pub mod chain;
mod driver;
pub mod election;
#[doc(hidden)]
pub mod engine;
pub mod events;
pub mod feed;
pub mod metrics;
pub mod schema;
pub mod service;
pub mod status;
pub mod store;
mod writer;

pub use account::{AccountId, SignError, Signed, Signer, Unsigned};
pub use chain::{Chain, ChainError};
pub use election::{Election, NodeRole};
pub use engine::{Attempt, EngineConfig, NonceError, Permit};
pub use events::{EventBus, FollowerSync, Readiness};
pub use feed::{FeedItem, FeedOptions, feed};
pub use service::{
    DrainOutcome, Dropped, HandleState, InvalidOption, Mode, Payload, SendError, SendRequest,
    ServiceBuilder, ServiceError, ServiceOptions, TransactionHandle, TransactionService,
};
pub use status::{End, EndKind, Hash, Note, State, TransactionStatus};
pub use store::{Store, StoreError, StoreOptions, StoredTransaction};
