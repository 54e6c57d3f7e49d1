//! What the driver does with time and with requests that wait, on a clock and a chain that the test
//! moves. All else is tested on real chains and a real database, in `tests/`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{FutureExt as _, StreamExt as _, stream};
use tenure_core::clock::{Clock, ManualClock, Tick};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use super::Panics;
use crate::account::{AccountId, SignError, Signed, Signer, Unsigned};
use crate::chain::{
    Chain, ChainError, ChainIdentity, Head, Inspected, Located, Outcome, Report, Sought, Submission,
};
use crate::engine::{EngineConfig, NonceError};
use crate::service::{Dropped, Mode, SendError, SendRequest, ServiceOptions, TransactionService};
use crate::status::{Hash, TransactionStatus};

/// A clock that counts how often it is read: every reading is a turn of the driver, or more.
#[derive(Debug, Clone)]
struct WatchedClock {
    clock: ManualClock,
    readings: Arc<watch::Sender<u64>>,
}

impl Clock for WatchedClock {
    fn now(&self) -> Tick {
        self.readings.send_modify(|readings| *readings += 1);
        self.clock.now()
    }
}

/// A chain whose node never answers a submission, and that answers for its head when the test allows it. It
/// panics at its first submission if that is the call "panic at first".
struct Silent {
    submissions: watch::Sender<u64>,
    answers: watch::Sender<bool>,
}

impl Silent {
    fn new() -> Arc<Self> {
        let (submissions, answers) = (watch::Sender::new(0), watch::Sender::new(true));
        Arc::new(Silent { submissions, answers })
    }
}

#[async_trait]
impl Chain for Silent {
    async fn head(&self, _: &AccountId) -> Result<Head, ChainError> {
        let answers = self.answers.subscribe().wait_for(|answers| *answers).await.map(drop);
        answers.map_err(|_| ChainError::Unreachable("gone".to_owned()))?;
        Ok(Head::default())
    }

    async fn identity(&self) -> Result<ChainIdentity, ChainError> {
        Ok(ChainIdentity { id: None, genesis: Hash([7; 32]) })
    }

    async fn submit(&self, _: &AccountId, _: u64, raw: Bytes) -> Submission {
        self.submissions.send_modify(|count| *count += 1);
        let first = *self.submissions.borrow() == 1;
        assert!(!first || raw != "panic at first", "on purpose");
        Submission::answer(Outcome::Uncertain("silent".to_owned()))
    }

    async fn locate(&self, _: &AccountId, sought: &[Sought]) -> Vec<Located> {
        vec![Located::Free; sought.len()]
    }

    fn inspect(&self, _: &[u8]) -> Result<Inspected, ChainError> {
        Err(ChainError::Malformed("no bytes are signed elsewhere".to_owned()))
    }
}

/// A signer that panics at the call "panic".
struct Plain(AccountId);

impl Plain {
    fn new() -> Arc<Self> {
        Arc::new(Plain(AccountId::new([7; 20]).expect("20 bytes")))
    }
}

#[async_trait]
impl Signer for Plain {
    fn account(&self) -> &AccountId {
        &self.0
    }

    async fn sign(&self, unsigned: Unsigned<'_>) -> Result<Signed, SignError> {
        let call = unsigned.call.unwrap_or(b"no-op").to_vec();
        assert_ne!(call, b"panic", "on purpose");
        let hash = Hash([call.iter().fold(1, |sum, byte| byte.wrapping_add(sum)); 32]);
        Ok(Signed { raw: call.into(), hash, valid_until: None, tip: None, bid: None })
    }
}

/// A chain whose account cannot pay for the call "pay", and that does not answer when it is sent again. It panics
/// when it is first sent the call "break".
struct Unpaid {
    sent: watch::Sender<Vec<Bytes>>,
}

#[async_trait]
impl Chain for Unpaid {
    async fn head(&self, _: &AccountId) -> Result<Head, ChainError> {
        Ok(Head::default())
    }

    async fn identity(&self) -> Result<ChainIdentity, ChainError> {
        Ok(ChainIdentity { id: None, genesis: Hash([7; 32]) })
    }

    async fn submit(&self, _: &AccountId, _: u64, raw: Bytes) -> Submission {
        self.sent.send_modify(|sent| sent.push(raw.clone()));
        let times = self.sent.borrow().iter().filter(|one| **one == raw).count();
        match (&raw[..], times) {
            (b"pay", 1) => Submission::answer(Outcome::Unfunded("too poor".to_owned())),
            (b"pay", _) => std::future::pending().await,
            (b"break", 1) => panic!("on purpose"),
            _ => Submission::answer(Outcome::Uncertain("silent".to_owned())),
        }
    }

    async fn locate(&self, _: &AccountId, sought: &[Sought]) -> Vec<Located> {
        vec![Located::Free; sought.len()]
    }

    fn inspect(&self, _: &[u8]) -> Result<Inspected, ChainError> {
        Err(ChainError::Malformed("no bytes are signed elsewhere".to_owned()))
    }
}

#[tokio::test]
async fn an_order_that_waits_for_its_decision_survives_a_new_reading_of_the_table() {
    let folder = tempfile::tempdir().expect("a folder");
    let chain = Arc::new(Unpaid { sent: watch::Sender::new(Vec::new()) });
    let mut sent = chain.sent.subscribe();
    let mode = Mode::Standalone { journal: folder.path().join("journal") };
    let service = TransactionService::builder(mode, chain, Plain::new());
    let service = service.start().await.expect("starts");
    service.send(SendRequest::call("pay")).await.expect("accepted");
    let asked_again = sent.wait_for(|sent| sent.len() == 2);
    timeout(Duration::from_secs(20), asked_again).await.expect("in time").expect("it lives");
    // The answer that is on its way decides whether a no-op is needed.
    let mut dropping = std::pin::pin!(service.cancel(0));
    assert!(dropping.as_mut().now_or_never().is_none());
    // Heard after the order; its panic makes the driver read again what is open.
    service.send(SendRequest::call("break")).await.expect("accepted");
    let dropped = timeout(Duration::from_secs(20), dropping).await.expect("in time");
    assert!(matches!(dropped, Ok(Dropped::Ordered { .. })), "{dropped:?}");
    let times = sent.borrow().iter().filter(|raw| **raw == "pay").count();
    assert_eq!(times, 2, "it is not sent again");
}

async fn reach(count: &mut watch::Receiver<u64>, wanted: u64) {
    let reached = count.wait_for(|count| *count >= wanted);
    timeout(Duration::from_secs(20), reached).await.expect("in time").expect("it lives");
}

#[tokio::test]
async fn a_wait_is_measured_on_the_clock_that_counts_suspend() {
    let (readings, mut read) = watch::channel(0);
    let clock = ManualClock::new(Tick::from_nanos(1));
    let watched = WatchedClock { clock: clock.clone(), readings: Arc::new(readings) };
    let chain = Silent::new();
    let mut submitted = chain.submissions.subscribe();
    let folder = tempfile::tempdir().expect("a folder");
    let mode = Mode::Standalone { journal: folder.path().join("journal") };
    let service = TransactionService::builder(mode, chain, Plain::new());
    let tick = Duration::from_millis(1);
    let options = ServiceOptions { tick, ..ServiceOptions::default() };
    let service = service.options(options).clock(Arc::new(watched)).start().await.expect("starts");
    service.send(SendRequest::call("pay")).await.expect("accepted");
    reach(&mut submitted, 1).await;
    // Many turns later the driver still waits: its clock stands still.
    let turns = *read.borrow() + 100;
    reach(&mut read, turns).await;
    assert_eq!(*submitted.borrow(), 1);
    // The machine slept for an hour: what was to be done by then is done at the next turn.
    clock.advance(Duration::from_secs(3_600));
    reach(&mut submitted, 2).await;
}

#[tokio::test]
async fn requests_that_wait_get_their_nonces_in_the_order_of_their_arrival() {
    let chain = Silent::new();
    chain.answers.send_replace(false);
    let folder = tempfile::tempdir().expect("a folder");
    let mode = Mode::Standalone { journal: folder.path().join("journal") };
    let service = TransactionService::builder(mode, chain.clone(), Plain::new());
    let service = service.start().await.expect("starts");
    let sends = (0..50u8).map(|tag| service.send(SendRequest::call(vec![tag])));
    let sends = futures_util::future::join_all(sends);
    let answer = async { chain.answers.send_replace(true) };
    // The sends are polled first, so all of them wait when the chain answers.
    let (handles, _) = tokio::join!(sends, answer);
    let nonces: Vec<u64> = handles.into_iter().map(|h| h.expect("accepted").nonce).collect();
    assert_eq!(nonces, (0..50).collect::<Vec<_>>());
}

#[tokio::test]
async fn no_more_requests_wait_for_a_chain_that_is_away_than_may_be_open() {
    let chain = Silent::new();
    chain.answers.send_replace(false);
    let folder = tempfile::tempdir().expect("a folder");
    let mode = Mode::Standalone { journal: folder.path().join("journal") };
    let engine = EngineConfig { max_open: 2, ..EngineConfig::default() };
    let options = ServiceOptions { engine, ..ServiceOptions::default() };
    let service = TransactionService::builder(mode, chain.clone(), Plain::new());
    let service = service.options(options).start().await.expect("starts");
    let send = |tag: u8| service.send(SendRequest::call(vec![tag]).with_id(tag.to_string()));
    let waiting = futures_util::future::join_all([1, 2, 1].map(send));
    let refused = async {
        let refused = timeout(Duration::from_secs(20), send(3)).await.expect("at once");
        chain.answers.send_replace(true);
        refused
    };
    // The first ones are polled first; one of them asks for what another has asked for.
    let (waiting, refused) = tokio::join!(waiting, refused);
    let nonces = waiting.into_iter().map(|sent| sent.expect("accepted").nonce);
    let nonces: Vec<u64> = nonces.collect();
    // Ids are looked up side by side.
    assert!(nonces == [0, 1, 0] || nonces == [1, 0, 1], "{nonces:?}");
    let too_many = SendError::Nonce(NonceError::TooManyOpen(2));
    assert_eq!(refused.map(drop).map_err(|error| error.to_string()), Err(too_many.to_string()));
}

async fn standalone(folder: &tempfile::TempDir, chain: Arc<Silent>) -> TransactionService {
    let mode = Mode::Standalone { journal: folder.path().join("journal") };
    let service = TransactionService::builder(mode, chain, Plain::new());
    service.start().await.expect("starts")
}

#[tokio::test]
async fn a_signer_that_panics_costs_its_own_request_and_no_other() {
    let folder = tempfile::tempdir().expect("a folder");
    let service = standalone(&folder, Silent::new()).await;
    let refused = service.send(SendRequest::call("panic")).await.expect_err("not signed");
    assert!(matches!(refused, SendError::Sign(SignError::Unavailable(_))), "{refused:?}");
    let next = service.send(SendRequest::call("pay")).await.expect("accepted");
    assert_eq!(next.nonce, 0, "no nonce is lost");
}

#[tokio::test]
async fn what_a_task_that_panicked_was_to_do_is_done_again() {
    let (folder, chain) = (tempfile::tempdir().expect("a folder"), Silent::new());
    let mut submitted = chain.submissions.subscribe();
    let service = standalone(&folder, chain).await;
    let handle = service.send(SendRequest::call("panic at first")).await.expect("accepted");
    reach(&mut submitted, 2).await;
    assert_eq!((handle.nonce, service.open().await), (0, 1), "it is open, and was sent again");
}

#[tokio::test]
async fn every_drain_waits_until_nothing_is_under_way() {
    let (folder, chain) = (tempfile::tempdir().expect("a folder"), Silent::new());
    chain.answers.send_replace(false);
    let service = standalone(&folder, chain.clone()).await;
    let within = Duration::from_secs(20);
    let mut first = std::pin::pin!(service.drain(within));
    let mut second = std::pin::pin!(service.drain(within));
    assert!(first.as_mut().now_or_never().is_none() && second.as_mut().now_or_never().is_none());
    // Both were heard when this is answered, and the chain has not answered yet.
    service.open().await;
    assert!(first.as_mut().now_or_never().is_none(), "the table is still being read");
    chain.answers.send_replace(true);
    let (first, second) = tokio::join!(first, second);
    assert!(first.complete && second.complete);
}

/// A chain that has nonce 0 in another block at every look, and panics a moment after nonce 1 was submitted: by
/// then the table has that block.
struct Restless {
    looks: AtomicU8,
    submissions: watch::Sender<u64>,
}

impl Restless {
    fn block(&self) -> Hash {
        Hash([self.looks.fetch_add(1, Ordering::Relaxed); 32])
    }
}

#[async_trait]
impl Chain for Restless {
    async fn head(&self, _: &AccountId) -> Result<Head, ChainError> {
        Ok(Head::default())
    }

    async fn identity(&self) -> Result<ChainIdentity, ChainError> {
        Ok(ChainIdentity { id: None, genesis: Hash([7; 32]) })
    }

    async fn submit(&self, _: &AccountId, nonce: u64, _: Bytes) -> Submission {
        if nonce == 0 {
            let seen = Report::from(TransactionStatus::InBlock(self.block()));
            let seen = stream::once(async { seen }).chain(stream::pending());
            return Submission::watched(seen.boxed());
        }
        self.submissions.send_modify(|count| *count += 1);
        // On a clock that stands still while a disk works.
        sleep(Duration::from_millis(50)).await;
        panic!("on purpose, at nonce {nonce}");
    }

    async fn locate(&self, _: &AccountId, sought: &[Sought]) -> Vec<Located> {
        let located = |one: &Sought| match one.nonce {
            0 => Located::InBlock {
                hash: one.attempts[0],
                block: self.block(),
                finalized: false,
                receipt: None,
            },
            _ => Located::Free,
        };
        sought.iter().map(located).collect()
    }

    fn inspect(&self, _: &[u8]) -> Result<Inspected, ChainError> {
        Err(ChainError::Malformed("no bytes are signed elsewhere".to_owned()))
    }
}

#[tokio::test(start_paused = true)]
async fn a_task_that_panics_again_and_again_is_slowed_down_whatever_else_succeeds() {
    let folder = tempfile::tempdir().expect("a folder");
    let chain = Arc::new(Restless { looks: AtomicU8::new(0), submissions: watch::Sender::new(0) });
    let mut submitted = chain.submissions.subscribe();
    let mode = Mode::Standalone { journal: folder.path().join("journal") };
    let service = TransactionService::builder(mode, chain.clone(), Plain::new());
    let service = service.start().await.expect("starts");
    let begun = Instant::now();
    for call in ["one", "two"] {
        service.send(SendRequest::call(call)).await.expect("accepted");
    }
    let panics = submitted.wait_for(|count| *count >= 8);
    panics.await.map(drop).expect("it lives");
    let took = begun.elapsed();
    assert!(took > Duration::from_secs(10), "8 panics in {took:?}");
    assert!(chain.looks.load(Ordering::Relaxed) >= 8, "each time the other row was seen elsewhere");
}

#[test]
fn only_time_ends_a_row_of_panics() {
    let mut panics = Panics::default();
    let at = |seconds| Tick::ZERO + Duration::from_secs(seconds);
    let counts = [0, 1, 59, 118, 178, 179].map(|second| {
        panics.note(at(second));
        panics.count
    });
    assert_eq!(counts, [1, 2, 3, 4, 1, 2]);
}
