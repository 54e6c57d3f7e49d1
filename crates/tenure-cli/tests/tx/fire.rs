//! Callers that send their requests while one fault follows another.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rand::SeedableRng as _;
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::group::report;

/// How long callers may get nowhere in a calm.
const CALM: Duration = Duration::from_secs(120);

/// Faults in rounds: each kind once in every round, in an order that the seed decides.
pub(crate) struct Blows<F: 'static> {
    kinds: &'static [F],
    round: Vec<F>,
    pub(crate) random: StdRng,
    happened: BTreeMap<F, u32>,
}

impl<F: Copy + Ord + Debug> Blows<F> {
    pub(crate) fn new(kinds: &'static [F], seed: u64) -> Self {
        let random = StdRng::seed_from_u64(seed);
        Blows { kinds, round: Vec::new(), random, happened: BTreeMap::new() }
    }

    pub(crate) fn draw(&mut self) -> F {
        if self.round.is_empty() {
            self.round = self.kinds.to_vec();
            self.round.shuffle(&mut self.random);
        }
        self.round.pop().expect("refilled")
    }

    /// To be told at the end.
    pub(crate) fn count(&mut self, fault: F) {
        *self.happened.entry(fault).or_default() += 1;
    }

    pub(crate) fn told(&self) -> String {
        format!("faults {:?}", self.happened)
    }
}

/// Sends requests `0..requests` by so many callers, and strikes meanwhile.
///
/// A blow follows `after` acceptances: blows by the clock alone would come faster than a busy machine takes over.
/// Without a blow there is always progress, or the group is stuck.
pub(crate) async fn under_fire<S: Future<Output = ()> + Send + 'static>(
    requests: usize,
    callers: usize,
    after: usize,
    send: impl Fn(usize) -> S + Clone + Send + 'static,
    mut strike: impl AsyncFnMut(),
) {
    let started = Instant::now();
    let next = Arc::new(Mutex::new(0..requests));
    let mut calling = JoinSet::new();
    for _ in 0..callers {
        let (next, send) = (Arc::clone(&next), send.clone());
        calling.spawn(async move {
            loop {
                let index = next.lock().expect("unpoisoned").next();
                let Some(index) = index else { return };
                send(index).await;
                // Spread over the faults instead of all before the first.
                sleep(Duration::from_millis(300)).await;
            }
        });
    }
    let (mut struck, mut calm) = (0, Instant::now());
    while !calling.is_empty() {
        let asked = next.lock().expect("unpoisoned").start;
        // Cancel-safe: a join set and a timer.
        tokio::select! {
            done = calling.join_next() => done.expect("not empty").expect("no panic"),
            () = sleep(Duration::from_millis(600)) => {
                if asked < struck + after {
                    assert!(calm.elapsed() < CALM, "callers are stuck");
                    continue;
                }
                struck = asked;
                strike().await;
                calm = Instant::now();
            }
        }
    }
    report(&format!("all accepted after {:?}", started.elapsed()));
}
