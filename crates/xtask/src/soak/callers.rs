//! The callers of a soak: they submit, repeat what is uncertain under the same id, and write down what they
//! were told; and an auditor that reads the history as it is made.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rand::Rng as _;
use rand::seq::IndexedRandom as _;
use tenure_gossip::{Answer, Ask, Hash, KvGoal, Record, TxId};
use tenure_sim::gossip::operations::Operations;
use tokio::sync::watch;

use super::node::connect;

/// How long a caller waits for one answer before it asks another node.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long a caller repeats a goal before it gives it up as uncertain.
const GIVE_UP: Duration = Duration::from_secs(60);
/// Keys are used for so long, so that the history of one stays short enough to be judged.
const WINDOW: Duration = Duration::from_secs(2);
/// Keys in use at a time.
const KEYS: u32 = 4;

/// What all callers share.
pub(super) struct Ledger {
    pub(super) begun: Instant,
    pub(super) addresses: watch::Sender<Vec<String>>,
    pub(super) stop: watch::Sender<bool>,
    pub(super) seen: Mutex<Seen>,
}

/// What the callers and the auditor saw.
#[derive(Default)]
pub(super) struct Seen {
    pub(super) operations: Operations,
    /// What callers were told: the record of each transaction.
    pub(super) acknowledged: BTreeMap<TxId, Record>,
    pub(super) given_up: u64,
    /// The history as the auditor read it.
    pub(super) history: Vec<Record>,
    /// What the auditor found wrong with it.
    pub(super) broken: Vec<String>,
}

impl Ledger {
    fn now(&self) -> u64 {
        self.begun.elapsed().as_micros() as u64
    }

    fn any(&self) -> Option<String> {
        self.addresses.borrow().choose(&mut rand::rng()).cloned()
    }

    fn stopped(&self) -> bool {
        *self.stop.borrow()
    }

    fn goal(&self) -> KvGoal {
        let mut rng = rand::rng();
        let window = self.begun.elapsed().as_secs() / WINDOW.as_secs();
        let key = format!("{window}-{}", rng.random_range(0..KEYS));
        match rng.random_range(0..10) {
            0..5 => KvGoal::Increment { key, by: rng.random_range(1..9) },
            5..7 => KvGoal::Put { key, value: rng.random_range(0..9).into() },
            7..9 => {
                let expect = Some(rng.random_range(0..9).into());
                KvGoal::Cas { key, expect, value: rng.random_range(0..9).into() }
            }
            _ => KvGoal::Delete { key },
        }
    }

    /// One caller, until it is told to stop.
    pub(super) async fn call(self: Arc<Self>) {
        let mut client = None;
        while !self.stopped() {
            let (tx, goal) = (TxId::random(), self.goal());
            let since = Instant::now();
            self.lock().operations.begin(self.now(), tx, &goal);
            loop {
                if client.is_none() {
                    let Some(address) = self.any() else { return };
                    client = connect(&address).await.ok();
                }
                let ask = Ask::Submit { namespace: "main".into(), tx, goal: goal.to_bytes() };
                let asked = match &mut client {
                    Some(client) => client.ask(ask, PATIENCE).await.ok(),
                    None => None,
                };
                if let Some(Answer::Record(record)) = asked {
                    let mut seen = self.lock();
                    seen.operations.end(self.now(), &record);
                    seen.acknowledged.insert(tx, record);
                    break;
                }
                // Another node, under the same id: it commits once.
                client = None;
                if since.elapsed() > GIVE_UP {
                    self.lock().given_up += 1;
                    break;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            let pause = rand::rng().random_range(20..120);
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
    }

    /// Reads the history from any node, and checks that it is one chain.
    pub(super) async fn audit(self: Arc<Self>, until: watch::Receiver<u64>) {
        let mut head: Option<Hash> = None;
        loop {
            let next = self.lock().history.last().map_or(1, |record| record.index + 1);
            if next > *until.borrow() {
                return;
            }
            let Some(address) = self.any() else { return };
            let ask = Ask::History { namespace: "main".into(), from: next, upto: u64::MAX };
            let page = match connect(&address).await {
                Ok(mut client) => client.ask(ask, PATIENCE).await.ok(),
                Err(_) => None,
            };
            let Some(Answer::Records(page)) = page.filter(|answer| !is_empty(answer)) else {
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            let mut seen = self.lock();
            for record in page {
                if head.is_some_and(|hash| hash != record.prev) {
                    seen.broken.push(format!("record {} follows another head", record.index));
                }
                head = Some(record.hash());
                seen.history.push(record);
            }
        }
    }

    pub(super) fn lock(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.seen.lock().expect("nothing panics while it is held")
    }
}

fn is_empty(answer: &Answer) -> bool {
    matches!(answer, Answer::Records(page) if page.is_empty())
}
