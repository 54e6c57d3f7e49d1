//! The service's own promises: faults of the database, drains, readiness, events, takeover time.
#![cfg(feature = "ethereum")]

mod kit;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use kit::anvil::{chain, chain_at, pay, signer};
use kit::node::Node;
use kit::tap::Tap;
use kit::{E1, ManualElection, bump, database, impatient, store_of};
use tenure_core::clock::{ManualClock, Tick};
use tenure_core::epoch::Epoch;
use tenure_testkit::anvil::{ADDRESS, Anvil};
use tenure_testkit::rpc_proxy::{Fault, RpcProxy, SEND};
use tenure_testkit::{Meter, Proxy, shared_cluster};
use tenure_tx::account::{AccountId, SignError, Signed, Signer, Unsigned};
use tenure_tx::chain::ethereum::{EthereumChain, EthereumSigner};
use tenure_tx::chain::{
    Chain, ChainError, ChainIdentity, Head, Inspected, Located, Outcome, Sought, Submission,
};
use tenure_tx::election::NodeRole;
use tenure_tx::events::{EventBus, FollowerSync, Readiness};
use tenure_tx::feed::FeedOptions;
use tenure_tx::service::{
    Mode, Payload, SendError, SendRequest, ServiceOptions, TransactionService,
};
use tenure_tx::status::{End, EndKind, Note, TransactionStatus};
use tenure_tx::store::{StatusChange, StoreError, StoredTransaction};
use tokio::sync::watch;
use tokio::time::timeout;

/// A view that is stale after a moment.
fn quickly_stale() -> ServiceOptions {
    let (poll, stale_after) = (Duration::from_millis(50), Duration::from_millis(200));
    ServiceOptions { feed: FeedOptions { poll, stale_after }, ..impatient() }
}

#[tokio::test]
async fn a_write_of_unknown_outcome_is_settled_by_the_table() {
    let (db, anvil) = (database().await, Anvil::start(&[]).await);
    let proxy = Proxy::start(shared_cluster().await.addr()).await.expect("a proxy");
    let Node { election: _election, service, .. } =
        Node::leader(&proxy.dsn(db.name()), &anvil).await;
    let service = Arc::new(service);
    let mut senders = tokio::task::JoinSet::new();
    for tag in 0..60 {
        let service = Arc::clone(&service);
        senders.spawn(async move {
            let request = SendRequest::call(pay(tag, 1)).with_id(format!("r{tag}"));
            // A caller that is told "unreachable" asks again under its id.
            loop {
                match service.send(request.clone()).await {
                    Ok(handle) => return handle.nonce,
                    Err(SendError::Uncertain { .. }) => {}
                    Err(SendError::Store(error))
                        if matches!(*error, StoreError::Unreachable(_)) => {}
                    Err(other) => panic!("{other:?}"),
                }
            }
        });
        if tag % 10 == 5 {
            proxy.reset();
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let mut nonces = BTreeSet::new();
    let all = async {
        while let Some(nonce) = senders.join_next().await {
            assert!(nonces.insert(nonce.expect("no panic")), "one nonce for two requests");
        }
    };
    timeout(Duration::from_secs(60), all).await.expect("all are accepted");
    anvil.used(60).await;
    let receivers: BTreeSet<String> =
        anvil.mined().await.iter().map(|tx| tx["to"].to_string()).collect();
    assert_eq!(receivers.len(), 60, "each once");
    assert_eq!(nonces.into_iter().collect::<Vec<_>>(), (0..60).collect::<Vec<_>>());
}

#[tokio::test]
async fn one_request_id_is_one_transaction_however_often_it_is_sent() {
    let (db, anvil) = (database().await, Anvil::start(&[]).await);
    let Node { election, service, .. } = Node::follower("a", &db.dsn(), &anvil, impatient()).await;
    // Sent before the table is read: they wait for it.
    election.lead(E1);
    let request = SendRequest::call(pay(1, 1)).with_id("once");
    let sends = (0..20).map(|_| service.send(request.clone()));
    let handles = futures_util::future::join_all(sends).await;
    for handle in handles {
        assert_eq!(handle.expect("accepted").nonce, 0);
    }
    let other = service.send(SendRequest::call(pay(2, 1))).await.expect("accepted");
    assert_eq!(other.nonce, 1);
}

#[tokio::test]
async fn a_request_id_with_other_content_is_refused_and_never_swallowed() {
    let (db, anvil) = (database().await, Anvil::start(&["--no-mining"]).await);
    let Node { election: _election, service, .. } = Node::leader(&db.dsn(), &anvil).await;
    let invoice = |tag, id: &str| service.send(SendRequest::call(pay(tag, 1)).with_id(id));
    let reused = |outcome| matches!(outcome, Err(SendError::RequestIdReused(id)) if id == "seven");
    // At once, so that the second meets the first on its way into the table.
    let (first, second) = tokio::join!(invoice(1, "seven"), invoice(2, "seven"));
    assert_eq!(first.expect("accepted").nonce, 0);
    assert!(reused(second));
    assert!(reused(invoice(3, "seven").await), "open");
    assert_eq!(invoice(1, "seven").await.expect("the same").nonce, 0);
    // Dropped for a no-op: the id stands for what was asked, not for what took its place.
    service.cancel(0).await.expect("open");
    assert!(reused(invoice(3, "seven").await), "cancelled");
    anvil.pooled(1).await;
    let ended = async {
        while service.open().await > 0 {
            anvil.mine(1).await;
        }
    };
    timeout(Duration::from_secs(30), ended).await.expect("final");
    let written = async { while !reused(invoice(3, "seven").await) {} };
    timeout(Duration::from_secs(10), written).await.expect("ended");
    assert_eq!(invoice(1, "seven").await.expect("the same").nonce, 0);
    assert_eq!(invoice(3, "eight").await.expect("a new id").nonce, 1);
}

#[tokio::test]
async fn a_follower_refuses_to_cancel_as_it_refuses_to_send() {
    let (db, anvil) = (database().await, Anvil::start(&[]).await);
    let Node { election: _election, service, .. } =
        Node::follower("b", &db.dsn(), &anvil, impatient()).await;
    assert!(matches!(service.cancel(0).await, Err(SendError::NotLeader)));
    assert!(matches!(service.send(SendRequest::call(pay(1, 1))).await, Err(SendError::NotLeader)));
}

#[tokio::test]
async fn a_caller_is_told_when_nothing_answers_instead_of_waiting_for_ever() {
    let db = database().await;
    let anvil = Anvil::start(&[]).await;
    let options = ServiceOptions { accept_within: Duration::from_millis(300), ..impatient() };
    let Node { election, service, .. } = Node::follower("a", &db.dsn(), &anvil, options).await;
    drop(anvil);
    election.lead(E1);
    let sent = service.send(SendRequest::call(pay(1, 1)).with_id("one"));
    let sent = timeout(Duration::from_secs(10), sent).await.expect("bounded");
    assert!(
        matches!(&sent, Err(SendError::Uncertain { request_id, .. }) if request_id == "one"),
        "{sent:?}"
    );
}

#[tokio::test]
async fn a_live_row_of_another_creator_is_stepped_around_and_finished_too() {
    let (db, anvil) = (database().await, Anvil::start(&[]).await);
    let Node { election: _election, service, .. } = Node::leader(&db.dsn(), &anvil).await;
    // Behind the leader's back another creator takes the nonce it would give next.
    let chain = chain(&anvil);
    let ours = signer(&chain).await;
    let head = chain.head(ours.account()).await.expect("answers");
    let call = pay(1, 1);
    let unsigned =
        Unsigned { nonce: 0, tip: 1_000_000_000, call: Some(&call), head: &head, replaces: None };
    let signed = ours.sign(unsigned).await.expect("signs");
    let mut row = kit::row(0, 1, "theirs");
    (row.raw, row.attempt.hash, row.call) = (signed.raw, signed.hash, Some(call));
    let other = store_of(&db.dsn(), "other", ours.account().clone());
    assert_eq!(other.accept(E1, 0, &[row]).await.expect("the epoch is right"), [0]);
    let sent = service.send(SendRequest::call(pay(2, 1)).with_id("ours"));
    let sent = timeout(Duration::from_secs(20), sent).await.expect("in time");
    assert_eq!(sent.expect("accepted").nonce, 1);
    anvil.used(2).await;
}

#[tokio::test]
async fn a_row_of_an_unknown_state_stops_a_new_leader_until_it_is_repaired() {
    let (said, _listening) = kit::log::listen();
    let (db, anvil) = (database().await, Anvil::start(&[]).await);
    let ours = signer(&chain(&anvil)).await;
    let store = store_of(&db.dsn(), "old", ours.account().clone());
    store.accept(E1, 0, &[kit::row(0, 1, "odd")]).await.expect("leads");
    let client = db.client().await.expect("it answers");
    let odd = "alter table tenure_tx.pending_transactions drop constraint known_state; \
               update tenure_tx.pending_transactions set state = 'pondering'";
    client.batch_execute(odd).await.expect("a newer version's state");
    let Node { election, service, .. } = Node::follower("a", &db.dsn(), &anvil, impatient()).await;
    election.lead(E1);
    tenure_testkit::until("its complaint", async || {
        !said.lines_with("cannot read what is open").is_empty()
    })
    .await;
    let early = timeout(Duration::from_millis(500), service.recovered()).await;
    assert!(early.is_err(), "what is owed is not known: {early:?}");
    // Read again and again, and complained of once.
    let complaints = said.lines_with("cannot read what is open");
    assert_eq!(complaints.len(), 1, "{complaints:?}");
    assert!(complaints[0].contains("ERROR") && complaints[0].contains("pondering"));
    let repair = "update tenure_tx.pending_transactions set state = 'future'";
    client.batch_execute(repair).await.expect("repaired");
    let took = timeout(Duration::from_secs(20), service.recovered()).await;
    assert!(took.expect("goes on").is_some());
    assert_eq!(service.open().await, 1, "nothing was lost");
}

#[tokio::test]
async fn a_stale_leader_stops_at_its_first_write() {
    let (db, anvil) = (database().await, Anvil::start(&[]).await);
    let Node { election: _election, service, .. } = Node::leader(&db.dsn(), &anvil).await;
    // Another leader was elected and this node's gate has not noticed.
    bump(&db).await;
    let refused = service.send(SendRequest::call(pay(1, 1))).await;
    assert!(
        matches!(refused, Err(SendError::Uncertain { .. } | SendError::NotLeader)),
        "{refused:?}"
    );
    assert_eq!(anvil.nonce().await, 0, "nothing left this node");
}

#[tokio::test]
async fn a_drain_finishes_what_is_in_flight_and_refuses_what_is_new() {
    let (db, anvil) = (database().await, Anvil::start(&["--no-mining"]).await);
    let Node { election: _election, service, .. } = Node::leader(&db.dsn(), &anvil).await;
    let sends = (0..20).map(|tag| service.send(SendRequest::call(pay(tag, 1))));
    for sent in futures_util::future::join_all(sends).await {
        sent.expect("accepted");
    }
    let drained = service.drain(Duration::from_secs(10)).await;
    assert!(drained.complete);
    assert_eq!(drained.handed_over, 20, "open, in the table, for the next leader");
    anvil.pooled(20).await;
    let refused = service.send(SendRequest::call(pay(99, 1))).await;
    assert!(matches!(refused, Err(SendError::Draining)), "{refused:?}");
}

#[tokio::test]
async fn only_a_leader_emits_tasks_and_every_node_emits_news() {
    let (leader, follower) = (ManualElection::new("a"), ManualElection::new("b"));
    leader.lead(E1);
    let buses = [&leader, &follower].map(|node| EventBus::<&str>::new(node.gate.clone(), 8));
    let mut tasks = buses.each_ref().map(EventBus::tasks);
    let mut news = buses.each_ref().map(EventBus::news);
    assert!(buses[0].trigger("submit a proof"));
    assert!(!buses[1].trigger("submit a proof"));
    for bus in &buses {
        bus.inform("a new root");
    }
    assert_eq!(tasks[0].try_recv(), Ok("submit a proof"));
    assert!(tasks[1].try_recv().is_err());
    assert_eq!(news[0].try_recv(), Ok("a new root"));
    assert_eq!(news[1].try_recv(), Ok("a new root"));
    // Promoted and deposed: the class follows the gate.
    leader.depose();
    follower.lead(Epoch(2));
    assert!(!buses[0].trigger("again"));
    assert!(buses[1].trigger("again"));
}

struct Hook(AtomicBool);

#[async_trait]
impl FollowerSync for Hook {
    async fn sync(&self) -> Readiness {
        match self.0.load(Ordering::Relaxed) {
            true => Readiness::Ready,
            false => Readiness::Behind("3 roots missing".into()),
        }
    }
}

#[tokio::test]
async fn a_follower_is_ready_when_its_own_data_is() {
    let (db, anvil) = (database().await, Anvil::start(&[]).await);
    let (election, builder) = Node::builder("b", &db.dsn(), &anvil).await;
    let hook = Arc::new(Hook(AtomicBool::new(false)));
    let options = ServiceOptions { sync_every: Duration::from_millis(10), ..impatient() };
    let service = builder.options(options).follower_sync(hook.clone()).start().await;
    let service = service.expect("starts");
    election.until_ready(false).await;
    hook.0.store(true, Ordering::Relaxed);
    election.until_ready(true).await;
    assert_eq!(service.role(), NodeRole::Follower);
}

#[tokio::test]
async fn a_follower_whose_database_is_away_says_so_and_is_not_ready() {
    let (db, anvil) = (database().await, Anvil::start(&[]).await);
    let proxy = Proxy::start(shared_cluster().await.addr()).await.expect("a proxy");
    let Node { election, service, .. } =
        Node::follower("b", &proxy.dsn(db.name()), &anvil, quickly_stale()).await;
    assert!(!service.is_stale());
    proxy.refuse(true).await.expect("refuses");
    proxy.reset();
    election.until_ready(false).await;
    assert!(service.is_stale());
    proxy.refuse(false).await.expect("accepts");
    election.until_ready(true).await;
    assert!(!service.is_stale());
}

#[tokio::test]
async fn a_view_that_went_stale_unheard_is_fresh_again_for_a_subscriber_that_came_meanwhile() {
    let (db, anvil) = (database().await, Anvil::start(&[]).await);
    let proxy = Proxy::start(shared_cluster().await.addr()).await.expect("a proxy");
    let Node { election, service, .. } =
        Node::follower("b", &proxy.dsn(db.name()), &anvil, quickly_stale()).await;
    proxy.refuse(true).await.expect("refuses");
    proxy.reset();
    election.until_ready(false).await;
    let mut statuses = service.statuses();
    // Written while the follower cannot see it.
    let leader = store_of(&db.dsn(), "leader", signer(&chain(&anvil)).await.account().clone());
    leader.accept(E1, 0, &[kit::row(0, 1, "unseen")]).await.expect("leads");
    proxy.refuse(false).await.expect("accepts");
    election.until_ready(true).await;
    assert!(!service.is_stale());
    let row = timeout(Duration::from_secs(20), statuses.recv()).await.expect("in time");
    assert_eq!(row.expect("a row").request_id, "unseen");
}

/// How quickly, `bench` tells: this is about what a takeover may cost at all.
#[tokio::test]
async fn ten_thousand_open_rows_are_taken_over_in_a_handful_of_statements() {
    let (db, anvil) = (database().await, Anvil::start(&["--no-mining"]).await);
    let chain = chain(&anvil);
    let store = store_of(&db.dsn(), "old", signer(&chain).await.account().clone());
    for chunk in 0..20u64 {
        let rows: Vec<_> = (chunk * 500..(chunk + 1) * 500)
            .map(|nonce| {
                let mut row = kit::row(nonce, 1, &format!("r{nonce}"));
                row.attempt.hash.0[..8].copy_from_slice(&nonce.to_be_bytes());
                row
            })
            .collect();
        assert_eq!(store.accept(E1, 0, &rows).await.expect("leads").len(), 500);
    }
    let tap = Tap::start(shared_cluster().await.addr()).await;
    // The view is read, and the chain compared with other members', when a node starts and then not before
    // a minute is over.
    let feed = FeedOptions { poll: Duration::from_secs(60), ..FeedOptions::default() };
    let chain_lost_after = Duration::from_secs(180);
    let options = ServiceOptions { feed, chain_lost_after, ..impatient() };
    let Node { election, service, .. } =
        Node::follower("new", &tap.dsn(db.name()), &anvil, options).await;
    let before = tap.statements();
    election.lead(E1);
    let took = timeout(Duration::from_secs(30), service.recovered()).await.expect("in time");
    assert!(took.is_some(), "leads");
    let statements = tap.statements() - before;
    assert_eq!(service.open().await, 10_000);
    // Of each session its settings and preparations; the queries; the view's first reading, and the
    // chain's first comparison.
    assert!((2..=32).contains(&statements), "{statements} statements");
}

/// A chain during whose answer the lease ends, unnoticed.
struct Lapsing {
    chain: EthereumChain,
    election: Arc<ManualElection>,
    lapse: AtomicBool,
}

#[async_trait]
impl Chain for Lapsing {
    async fn head(&self, account: &AccountId) -> Result<Head, ChainError> {
        self.chain.head(account).await
    }

    async fn submit(&self, account: &AccountId, nonce: u64, raw: Bytes) -> Submission {
        let submission = self.chain.submit(account, nonce, raw).await;
        if self.lapse.load(Ordering::Relaxed) {
            self.election.depose();
        }
        submission
    }

    async fn identity(&self) -> Result<ChainIdentity, ChainError> {
        self.chain.identity().await
    }

    async fn locate(&self, account: &AccountId, sought: &[Sought]) -> Vec<Located> {
        self.chain.locate(account, sought).await
    }

    fn inspect(&self, raw: &[u8]) -> Result<Inspected, ChainError> {
        self.chain.inspect(raw)
    }
}

/// A chain whose node is of another network for one head, a minute after the one before. It panics at
/// bytes that are signed elsewhere.
struct Leaping {
    clock: ManualClock,
    leaps: AtomicBool,
    /// How many heads were asked for, and which of them leapt.
    heads: watch::Sender<(u64, Option<u64>)>,
}

impl Leaping {
    fn new(clock: &ManualClock) -> Self {
        let heads = watch::Sender::new((0, None));
        Leaping { clock: clock.clone(), leaps: AtomicBool::new(false), heads }
    }
}

#[async_trait]
impl Chain for Leaping {
    async fn head(&self, _: &AccountId) -> Result<Head, ChainError> {
        let leaps = self.leaps.swap(false, Ordering::Relaxed);
        self.heads.send_modify(|(heads, leapt)| {
            *heads += 1;
            *leapt = leapt.or(leaps.then_some(*heads));
        });
        let head = Head { best_nonce: 9, finalized_nonce: 3, pool_nonce: 9, ..Head::default() };
        if !leaps {
            return Ok(head);
        }
        self.clock.advance(Duration::from_secs(61));
        Ok(Head { best_nonce: 1_000_000, finalized_nonce: 1_000_000, ..head })
    }

    async fn submit(&self, _: &AccountId, _: u64, _: Bytes) -> Submission {
        Submission::answer(Outcome::Busy("not asked here".to_owned()))
    }

    async fn identity(&self) -> Result<ChainIdentity, ChainError> {
        Ok(ChainIdentity { id: None, genesis: kit::hash(7) })
    }

    async fn locate(&self, _: &AccountId, sought: &[Sought]) -> Vec<Located> {
        vec![Located::Unknown; sought.len()]
    }

    fn inspect(&self, _: &[u8]) -> Result<Inspected, ChainError> {
        panic!("on purpose");
    }
}

#[tokio::test]
async fn no_row_is_put_away_by_the_word_of_a_head_that_is_not_believed() {
    let (db, anvil) = (database().await, Anvil::start(&[]).await);
    let signer = signer(&chain(&anvil)).await;
    let store = store_of(&db.dsn(), "a", signer.account().clone());
    for (nonce, tag, id) in [(2, 1, "final"), (5, 2, "not final")] {
        store.accept(E1, 0, &[kit::row(nonce, tag, id)]).await.expect("leads");
        let end = Some(Box::new(End::new(EndKind::Executed)));
        let note = Note { end, ..Note::default() };
        let status = TransactionStatus::Finalized(kit::hash(9));
        let change = StatusChange { nonce, hash: kit::hash(tag), status, note };
        store.record(E1, &[change]).await.expect("leads");
    }
    let clock = ManualClock::new(Tick::from_nanos(1));
    let leaping = Arc::new(Leaping::new(&clock));
    let mut read = leaping.heads.subscribe();
    let election = ManualElection::new("a");
    let mode = Mode::Group { election: election.election.clone(), store: store.clone() };
    let service = TransactionService::builder(mode, leaping.clone(), Arc::new(signer));
    let (keep, chain_lost_after) = (Duration::ZERO, Duration::from_secs(600));
    let options = ServiceOptions { keep, chain_lost_after, ..impatient() };
    let service = service.options(options).clock(Arc::new(clock)).start().await.expect("starts");
    election.lead(E1);
    service.recovered().await.expect("leads");
    let mut reach = async |wanted: fn(&(u64, Option<u64>)) -> bool| {
        let reached = timeout(Duration::from_secs(20), read.wait_for(wanted)).await;
        reached.expect("in time").map(drop).expect("lives");
    };
    // From now on only one task of the leader asks for heads, and it removes old rows in between.
    reach(|(heads, _)| *heads >= 5).await;
    leaping.leaps.store(true, Ordering::Relaxed);
    reach(|(heads, leapt)| leapt.is_some_and(|leapt| *heads > leapt)).await;
    let client = db.client().await.expect("it answers");
    let left = "select nonce from tenure_tx.pending_transactions order by nonce";
    let left: Vec<i64> =
        client.query(left, &[]).await.expect("readable").iter().map(|row| row.get(0)).collect();
    assert_eq!(left, [5], "what is final is put away, and nothing else");
}

#[tokio::test]
async fn a_leader_that_panicked_gives_up_and_says_so() {
    let (db, anvil) = (database().await, Anvil::start(&[]).await);
    let signer = signer(&chain(&anvil)).await;
    let store = store_of(&db.dsn(), "a", signer.account().clone());
    let (election, steps) = (ManualElection::new("a"), watch::Sender::new(0));
    let (mut stepped, step) = (steps.subscribe(), move || steps.send_modify(|steps| *steps += 1));
    let mode = Mode::Group { election: election.election.clone().with_step_down(step), store };
    let leaping = Leaping::new(&ManualClock::new(Tick::from_nanos(1)));
    let service = TransactionService::builder(mode, Arc::new(leaping), Arc::new(signer));
    let service = service.options(impatient()).start().await.expect("starts");
    election.lead(E1);
    service.recovered().await.expect("leads");
    let signed = SendRequest::new(Payload::Signed(Bytes::from_static(b"signed elsewhere")));
    let sent = service.send(signed).await;
    // Whether it was stored is not known, and its id is told.
    assert!(matches!(sent, Err(SendError::Uncertain { .. })), "{sent:?}");
    let after = service.send(SendRequest::call(pay(1, 1))).await;
    assert!(matches!(after, Err(SendError::Stopped)), "{after:?}");
    election.until_ready(false).await;
    let stepped = stepped.wait_for(|steps| *steps > 0);
    timeout(Duration::from_secs(20), stepped).await.expect("in time").expect("lives");
    timeout(Duration::from_secs(20), service.broken()).await.expect("told");
    assert!(service.is_broken());
    let drained = service.drain(Duration::from_secs(1)).await;
    assert!(!drained.complete, "what was under way is not known");
}

#[tokio::test]
async fn the_metrics_are_those_the_guide_names_and_a_life_emits_them_all() {
    let meter = Meter::default();
    // Of this thread: the whole life runs on it, other tests do not.
    let _recording = metrics::set_default_local_recorder(&meter);
    let (db, anvil) = (database().await, Anvil::start(&["--no-mining"]).await);
    let proxy = Proxy::start(shared_cluster().await.addr()).await.expect("a proxy");
    let election = Arc::new(ManualElection::new("a"));
    let gateway = RpcProxy::start(&anvil.url).await;
    let chain = chain_at(&[&gateway.url]);
    let signer = signer(&chain).await;
    let store = store_of(&proxy.dsn(db.name()), "a", signer.account().clone());
    let lapse = AtomicBool::new(false);
    let lapsing = Arc::new(Lapsing { chain, election: Arc::clone(&election), lapse });
    let mode = Mode::Group { election: election.election.clone(), store };
    let service = TransactionService::builder(mode, lapsing.clone(), Arc::new(signer));
    let service = service.options(quickly_stale()).start().await.expect("starts");
    // As a follower.
    service.send(SendRequest::call(pay(1, 1))).await.expect_err("follows");
    EventBus::<()>::new(election.gate.clone(), 1).trigger(());
    // As a leader: sent, replaced, final.
    election.lead(E1);
    service.recovered().await.expect("leads");
    let mut handle = service.send(SendRequest::call(pay(1, 1))).await.expect("accepted");
    anvil.pooled(1).await;
    service.cancel(0).await.expect("open");
    let ended = async {
        while !handle.state().ended() {
            anvil.mine(1).await;
            let _ = timeout(Duration::from_millis(100), handle.changed()).await;
        }
    };
    timeout(Duration::from_secs(30), ended).await.expect("final");
    // A node that takes what it refuses.
    gateway.rule(|method, _| match method {
        SEND => Fault::PassAndSay(-32000, "intrinsic gas too low".to_owned()),
        "eth_getTransactionByHash" => Fault::Null,
        _ => Fault::Pass,
    });
    let refused = SendRequest::call(pay(3, 1)).with_id("refused");
    let mut handle = service.send(refused).await.expect("accepted");
    timeout(Duration::from_secs(20), handle.ended()).await.expect("ends").expect("leads");
    gateway.well();
    let corrected = async {
        let corrected = |row: StoredTransaction| row.note.corrected.is_some();
        while !service.find("refused").await.expect("readable").is_some_and(corrected) {
            anvil.mine(1).await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(Duration::from_secs(60), corrected).await.expect("corrected");
    // A lease that ends while the bytes are on their way.
    lapsing.lapse.store(true, Ordering::Relaxed);
    service.send(SendRequest::call(pay(2, 1))).await.expect("accepted");
    // A database that goes away.
    proxy.refuse(true).await.expect("refuses");
    proxy.reset();
    election.until_ready(false).await;

    let guide = include_str!("../../../docs/transactions.md");
    let named: BTreeSet<String> = guide
        .split('`')
        .filter(|word| word.starts_with("tenure_tx_") && !word.contains(' '))
        .map(str::to_owned)
        .collect();
    let all = |wanted: &BTreeSet<String>| meter.names().is_superset(wanted);
    let emitted = async {
        while !all(&named) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let late = timeout(Duration::from_secs(10), emitted).await.is_err();
    assert!(!late && meter.names() == named, "{:#?}\n{named:#?}", meter.names());
}

/// What holds the account up is said in the log, with the nonce and the request, and in gauges.
#[tokio::test]
async fn whatever_holds_the_account_up_is_loud() {
    let meter = Meter::default();
    let _recording = metrics::set_default_local_recorder(&meter);
    let (log, _listening) = kit::log::listen();
    let (db, anvil) = (database().await, Anvil::start(&["--no-mining"]).await);
    let gateway = RpcProxy::start(&anvil.url).await;
    let mut options = impatient();
    options.engine.stuck_after = Duration::from_millis(500);
    let chain = kit::anvil::capped(&gateway.url, 20_000_000_000);
    let node = Node::on("a", &db.dsn(), chain, options).await;
    node.election.lead(E1);
    node.service.recovered().await.expect("leads");
    let told = async |event: &str, gauge: &str| {
        let said = || log.lines_with(&format!("event=\"{event}\"")).pop();
        let shown = || meter.gauge(gauge, "").is_some_and(|value| value > 0.0);
        let both = async {
            while said().is_none() || !shown() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        if timeout(Duration::from_secs(30), both).await.is_err() {
            panic!("{event}: {:?}, {gauge}: {:?}", said(), meter.gauge(gauge, ""));
        }
        said().expect("just seen")
    };
    let says = |code: i64, words: &'static str| {
        gateway.rule(move |method, _| match method {
            SEND => Fault::Say(code, words.to_owned()),
            _ => Fault::Pass,
        });
    };
    let names_it = |line: &str| line.contains("nonce=0") && line.contains("rent");
    says(-32_000, "the moon is wrong");
    node.service.send(SendRequest::call(pay(1, 1)).with_id("rent")).await.expect("accepted");
    let line = told("tx_uncertain", "tenure_tx_uncertain_nonces").await;
    assert!(names_it(&line), "{line}");
    // An answer that is certain, and blocks all the same.
    says(-32_000, "txpool is full");
    let line = told("tx_stuck", "tenure_tx_lowest_open_seconds").await;
    assert!(names_it(&line), "{line}");
    told("tx_certain", "tenure_tx_open").await;
    assert_eq!(meter.gauge("tenure_tx_uncertain_nonces", ""), Some(0.0));
    says(-32_010, "InsufficientFunds, balance is 0");
    let line = told("tx_unfunded", "tenure_tx_unfunded_nonces").await;
    assert!(names_it(&line), "{line}");
    assert!(meter.gauge("tenure_tx_balance", "").is_some_and(|balance| balance > 0.0));
    anvil.call("anvil_setNextBlockBaseFeePerGas", serde_json::json!(["0xba43b7400"])).await;
    anvil.mine(1).await;
    told("tx_fee_above_cap", "tenure_tx_fee_above_cap").await;
}

/// A retry without the first id is no reason to sign, and pay, again.
#[tokio::test]
async fn signed_bytes_of_a_request_that_has_ended_are_told_its_end() {
    let (db, anvil) = (database().await, Anvil::start(&["--no-mining"]).await);
    let node = Node::leader(&db.dsn(), &anvil).await;
    let chain = chain(&anvil);
    let (signer, call) = (signer(&chain).await, pay(1, 1));
    let head = chain.head(signer.account()).await.expect("answers");
    let sign = async |nonce, tip| {
        let unsigned = Unsigned { nonce, tip, call: Some(&call), head: &head, replaces: None };
        signer.sign(unsigned).await.expect("signs").raw
    };
    let raw = sign(0, 1_000_000_000).await;
    let mut handle = node.service.send(SendRequest::signed(raw.clone())).await.expect("accepted");
    // While it is open this node knows it without the table.
    let client = db.client().await.expect("it answers");
    let hidden = "begin; lock table tenure_tx.pending_transactions in access exclusive mode";
    client.batch_execute(hidden).await.expect("locked");
    let again = SendRequest::signed(raw.clone()).with_id(handle.request_id.clone() + " again");
    let again = timeout(Duration::from_secs(20), node.service.send(again)).await.expect("in time");
    assert!(!matches!(again, Err(SendError::Nonce(_))), "nothing is to be signed again: {again:?}");
    client.batch_execute("rollback").await.expect("let go");
    let ended = async {
        while !handle.state().ended() {
            anvil.mine(1).await;
            let _ = timeout(Duration::from_millis(100), handle.changed()).await;
        }
    };
    timeout(Duration::from_secs(30), ended).await.expect("final");
    // The table has the end a moment after the handle.
    let told = async {
        loop {
            let again = node.service.send(SendRequest::signed(raw.clone())).await;
            let Err(error @ SendError::SameBytes { .. }) = again else { panic!("{again:?}") };
            if let SendError::SameBytes { request_id, end: Some(end) } = &error {
                assert_eq!((request_id, end.kind), (&handle.request_id, EndKind::Executed));
                assert!(error.to_string().contains("executed"), "{error}");
                return;
            }
        }
    };
    timeout(Duration::from_secs(20), told).await.expect("its end");
    // Other bytes of that nonce are another matter.
    let other = node.service.send(SendRequest::signed(sign(0, 2_000_000_000).await)).await;
    assert!(matches!(other, Err(SendError::Nonce(_))), "{other:?}");
}

/// A key that can be locked away, as in a device.
struct Device {
    signer: EthereumSigner,
    locked: AtomicBool,
    asked: AtomicUsize,
}

#[async_trait]
impl Signer for Device {
    fn account(&self) -> &AccountId {
        self.signer.account()
    }

    async fn sign(&self, unsigned: Unsigned<'_>) -> Result<Signed, SignError> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        match self.locked.load(Ordering::Relaxed) {
            true => Err(SignError::Unavailable("the device is locked".to_owned())),
            false => self.signer.sign(unsigned).await,
        }
    }
}

#[tokio::test]
async fn a_signature_that_fails_again_and_again_is_logged_once() {
    let (log, _listening) = kit::log::listen();
    let (db, anvil) = (database().await, Anvil::start(&["--no-mining"]).await);
    let gateway = RpcProxy::start(&anvil.url).await;
    let chain = chain_at(&[&gateway.url]);
    let signer = signer(&chain).await;
    let (locked, asked) = Default::default();
    let device = Arc::new(Device { signer, locked, asked });
    let election = ManualElection::new("a");
    let store = store_of(&db.dsn(), "a", device.account().clone());
    let mode = Mode::Group { election: election.election.clone(), store };
    let service = TransactionService::builder(mode, Arc::new(chain), device.clone());
    let service = service.options(impatient()).start().await.expect("starts");
    election.lead(E1);
    service.recovered().await.expect("leads");
    // Such bytes are signed anew.
    gateway.rule(|method, _| match method {
        SEND => Fault::Say(-32_000, "max fee per gas less than block base fee".to_owned()),
        _ => Fault::Pass,
    });
    let mut handle = service.send(SendRequest::call(pay(1, 1))).await.expect("accepted");
    device.locked.store(true, Ordering::Relaxed);
    let before = device.asked.load(Ordering::Relaxed);
    tenure_testkit::until("question after question", async || {
        device.asked.load(Ordering::Relaxed) >= before + 6
    })
    .await;
    let said = |event: &str| log.lines_with(&format!("event=\"{event}\""));
    assert_eq!(said("tx_not_signed").len(), 1, "{:?}", said("tx_not_signed"));
    assert_eq!(said("tx_not_replaced").len(), 0, "{:?}", said("tx_not_replaced"));
    device.locked.store(false, Ordering::Relaxed);
    gateway.well();
    kit::until(&mut handle, kit::is(tenure_tx::status::State::Ready)).await;
}

/// The gauge of a node that led would keep its last value.
#[tokio::test]
async fn a_follower_tells_what_the_account_owns_now() {
    let meter = Meter::default();
    let _recording = metrics::set_default_local_recorder(&meter);
    let (db, anvil) = (database().await, Anvil::start(&["--no-mining"]).await);
    let options = ServiceOptions { chain_lost_after: Duration::from_millis(300), ..impatient() };
    let node = Node::follower("a", &db.dsn(), &anvil, options).await;
    node.election.lead(E1);
    node.service.recovered().await.expect("leads");
    node.election.depose();
    anvil.call("anvil_setBalance", serde_json::json!([ADDRESS, "0x7"])).await;
    tenure_testkit::until("the balance by a node that follows", async || {
        meter.gauge("tenure_tx_balance", "") == Some(7.0)
    })
    .await;
}
