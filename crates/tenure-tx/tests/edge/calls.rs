//! How often a chain's node is asked. Calls, not requests: providers count each.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::json;
use tenure_core::epoch::Epoch;
use tenure_testkit::anvil::{ADDRESS, Anvil};
use tenure_testkit::rpc_proxy::{Fault, RpcProxy, SEND};
use tenure_tx::service::ServiceOptions;
use tenure_tx::status::{EndKind, State};
use tenure_tx::store::{Store, StoredTransaction};
use tokio::time::sleep;

use super::kit::node::Node;
use super::kit::{E1, anvil, bump, database, impatient};
use super::{paid, send};

const ROWS: u64 = 300;

/// The pace of a product, not of a test.
fn paced() -> ServiceOptions {
    ServiceOptions {
        head_every: Duration::from_secs(1),
        tick: Duration::from_millis(200),
        engine: Default::default(),
        ..impatient()
    }
}

/// Waits until the table says so of every row.
async fn all_are(store: &Store, is: impl Fn(&StoredTransaction) -> bool) {
    tenure_testkit::until("the same of every row", async || {
        store.list(0).await.expect("readable").iter().all(&is)
    })
    .await;
}

fn is_executed(row: &StoredTransaction) -> bool {
    row.note.end.as_ref().is_some_and(|end| end.kind == EndKind::Executed)
}

/// What a gateway was asked from now on.
struct Count<'a> {
    gateway: &'a RpcProxy,
    before: usize,
    since: Instant,
}

impl<'a> Count<'a> {
    fn begin(gateway: &'a RpcProxy) -> Self {
        Count { gateway, before: gateway.calls(), since: Instant::now() }
    }

    /// At most five a second, the second that has begun included, and two for each new block.
    fn check(&self, blocks: usize) {
        let (calls, seconds) = self.so_far();
        assert!(calls <= 5 * seconds + 2 * blocks, "{calls} in {seconds} s, {blocks} new blocks");
    }

    fn so_far(&self) -> (usize, usize) {
        let seconds = usize::try_from(self.since.elapsed().as_secs()).expect("few") + 1;
        (self.gateway.calls() - self.before, seconds)
    }

    #[allow(clippy::print_stdout, reason = "with --nocapture it is the figure")]
    fn print(&self, what: &str, blocks: usize) {
        let (calls, _) = self.so_far();
        let seconds = self.since.elapsed().as_secs_f64();
        println!("{what}: {calls} calls in {seconds:.1} s with {blocks} new blocks");
    }
}

/// From the takeover to the end of all, however many blocks the rows are in: at most five calls a second
/// and two for each new block.
async fn takeover(what: &str, anvil: &Anvil, blocks_of_rows: u64, at_once: u64) {
    let db = database().await;
    let gateway = RpcProxy::start(&anvil.url).await;
    let old = Node::leader(&db.dsn(), anvil).await;
    let first = anvil.nonce().await;
    join_all((0..ROWS).map(|tag| send(&old, tag))).await;
    anvil.pooled(first + ROWS).await;
    // In blocks, and not final.
    anvil.mine(blocks_of_rows).await;
    all_are(&old.store, |row| row.status.state() == State::InBlock).await;
    let rows = old.store.list(0).await.expect("readable");
    let blocks: std::collections::BTreeSet<_> =
        rows.iter().filter_map(|row| row.status.block()).collect();
    assert_eq!(blocks.len() as u64, blocks_of_rows, "the rows are in so many blocks");
    old.election.depose();
    drop(old);
    bump(&db).await;
    let new = Node::on("b", &db.dsn(), anvil::paced(&gateway.url), paced()).await;
    // Which chain it is, is asked once in a process's life.
    let count = Count::begin(&gateway);
    new.election.lead(Epoch(2));
    new.service.recovered().await.expect("leads");
    // First nothing happens on the chain; then blocks come until all are final.
    // A rate is of time: these seconds are what is measured, and nothing waits for them.
    for _ in 0..3 {
        sleep(Duration::from_secs(1)).await;
        count.check(0);
    }
    count.print(&format!("{what}, a chain that stands still"), 0);
    let mut mined = 0;
    while new.service.open().await > 0 {
        assert!(mined < 400, "{:?} never ended", new.service.open().await);
        anvil.mine(at_once).await;
        mined += usize::try_from(at_once).expect("few");
        sleep(Duration::from_secs(1)).await;
        count.check(mined);
    }
    count.print(&format!("{what}, until all are final"), mined);
    all_are(&new.store, is_executed).await;
    paid(anvil, 0..ROWS).await;
}

#[tokio::test]
async fn a_takeover_of_many_rows_asks_the_node_little() {
    let anvil = Anvil::start(&["--no-mining"]).await;
    takeover("300 rows in one block", &anvil, 1, 1).await;
}

#[tokio::test]
async fn a_takeover_of_many_rows_in_many_blocks_asks_the_node_little() {
    // Blocks that hold three payments each, and are final 128 blocks later.
    let small = ["--no-mining", "--gas-limit", "63000", "--base-fee", "0"];
    let anvil = Anvil::start(&[&small[..], &["--slots-in-an-epoch", "64"]].concat()).await;
    // An account that has sent before: of one that has not, no head tells what is not final.
    anvil.call("anvil_setNonce", json!([ADDRESS, "0x1"])).await;
    anvil.mine(130).await;
    takeover("300 rows in 100 blocks", &anvil, ROWS / 3, 20).await;
}

/// Each row is sent once; from then on the node is asked about all of them together.
#[tokio::test]
async fn a_node_that_takes_nothing_is_asked_little_however_many_rows_wait() {
    let (db, anvil) = (database().await, Anvil::start(&["--no-mining"]).await);
    let gateway = RpcProxy::start(&anvil.url).await;
    let submissions = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&submissions);
    gateway.rule(move |method, _| match method {
        SEND => {
            counted.fetch_add(1, Ordering::Relaxed);
            Fault::Say(-32000, "txpool is full".to_owned())
        }
        _ => Fault::Pass,
    });
    let node = Node::on("a", &db.dsn(), anvil::paced(&gateway.url), paced()).await;
    node.election.lead(E1);
    node.service.recovered().await.expect("leads");
    join_all((0..ROWS).map(|tag| send(&node, tag))).await;
    all_are(&node.store, |row| row.note.answer.is_some()).await;
    let (count, sent) = (Count::begin(&gateway), submissions.load(Ordering::Relaxed));
    // A rate is of time: these seconds are what is measured, and nothing waits for them.
    for _ in 0..10 {
        sleep(Duration::from_secs(1)).await;
        count.check(0);
    }
    count.print("300 rows that the node does not take", 0);
    let again = submissions.load(Ordering::Relaxed) - sent;
    assert!(again > 0, "it is asked on");
    gateway.well();
    anvil.pooled(ROWS).await;
    // The node takes them now, and all of them within moments.
    while node.service.open().await > 0 {
        anvil.mine(1).await;
        sleep(Duration::from_millis(100)).await;
    }
    all_are(&node.store, is_executed).await;
    paid(&anvil, 0..ROWS).await;
}

/// What a node has forgotten is sent again, each once and many at a time, and what it has forgotten is
/// found with a few calls, however much it is: five for each poll, and the submissions.
#[tokio::test]
async fn a_pool_that_forgets_everything_is_filled_again_in_batches() {
    let (db, anvil) = (database().await, Anvil::start(&["--no-mining"]).await);
    let gateway = RpcProxy::start(&anvil.url).await;
    let submissions = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&submissions);
    gateway.rule(move |method, _| {
        counted.fetch_add(usize::from(method == SEND), Ordering::Relaxed);
        Fault::Pass
    });
    let poll = Duration::from_millis(300);
    let options = ServiceOptions { head_every: poll, engine: Default::default(), ..impatient() };
    let node = Node::on("a", &db.dsn(), anvil::polled(&gateway.url, poll), options).await;
    node.election.lead(E1);
    node.service.recovered().await.expect("leads");
    let rows = 300;
    join_all((0..rows).map(|tag| send(&node, tag))).await;
    anvil.pooled(rows).await;
    let sent = || submissions.load(Ordering::Relaxed);
    let (sent_before, calls_before, since) = (sent(), gateway.calls(), Instant::now());
    anvil.call("anvil_dropAllTransactions", json!([])).await;
    anvil.pooled(rows).await;
    let (sent, calls) = (sent() - sent_before, gateway.calls() - calls_before);
    let polls = since.elapsed().as_millis() / poll.as_millis() + 1;
    assert!(sent < 2 * rows as usize, "{sent} submissions of {rows} transactions");
    assert!((calls - sent) as u128 <= 5 * polls, "{} other calls in {polls} polls", calls - sent);
    anvil.mine(3).await;
    paid(&anvil, 0..rows).await;
}
