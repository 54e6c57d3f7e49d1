//! A node that is sent a large state goes on meanwhile.

use std::sync::{Condvar, Mutex};

use tenure_gossip::StateMachine;

use super::*;

/// How many restores have begun, and whether they may end.
static RESTORES: Mutex<(usize, bool)> = Mutex::new((0, false));
static CHANGED: Condvar = Condvar::new();

/// A state whose restore takes as long as the test wants.
#[derive(Clone)]
struct Slow(Kv);

impl StateMachine for Slow {
    fn initial() -> Self {
        Self(Kv::initial())
    }

    fn execute(&self, goal: &[u8]) -> Result<Vec<u8>, String> {
        self.0.execute(goal)
    }

    fn apply(&mut self, diff: &[u8]) -> Result<(), String> {
        self.0.apply(diff)
    }

    fn snapshot(&self) -> Vec<u8> {
        self.0.snapshot()
    }

    fn restore(bytes: &[u8]) -> Result<Self, String> {
        let mut restores = RESTORES.lock().unwrap();
        restores.0 += 1;
        let _ends = CHANGED.wait_while(restores, |(_, may_end)| !*may_end).unwrap();
        Kv::restore(bytes).map(Self)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_reads_a_snapshot_of_a_peer_answers_and_begins_to_vote_elsewhere_meanwhile() {
    let dir = tempfile::tempdir().unwrap();
    let config = |name: &str, start: Start| {
        let mut config = HostConfig::new(dir.path().join(name), any(), start);
        config.engine.snapshot_every = 16;
        config.engine.keep_history = Some(1);
        config
    };
    let a = Host::<Slow>::start(config("a", Start::Bootstrap)).await.unwrap();
    for n in 1..=40 {
        a.submit("main", TxId([n; 16]), put(n)).await.unwrap();
    }
    eventually("old records are gone", || async {
        a.status().await.unwrap().namespaces[0].oldest > 1
    })
    .await;
    let join = Start::Join(vec![a.address().to_owned()]);
    let b = Host::<Slow>::start(config("b", join)).await.unwrap();
    eventually("the snapshot is being read", || async { RESTORES.lock().unwrap().0 > 0 }).await;
    let status = timeout(SOON, b.status()).await.expect("it answers").unwrap();
    assert_eq!(status.namespaces[0].index, 0);
    eventually("it votes on the credentials meanwhile", || async {
        b.status().await.unwrap().credentials.voters.contains(&b.id())
    })
    .await;
    // What is committed meanwhile is not lost when the snapshot is there.
    a.submit("main", TxId([41; 16]), put(41)).await.unwrap();
    RESTORES.lock().unwrap().1 = true;
    CHANGED.notify_all();
    eventually("it has caught up, and votes", || async {
        let main = &b.status().await.unwrap().namespaces[0];
        main.index == 41 && main.voters.contains(&b.id()) && main.learners.is_empty()
    })
    .await;
    assert_eq!(b.machine("main").await.unwrap().0.get("k41"), Some(&41.into()));
}
