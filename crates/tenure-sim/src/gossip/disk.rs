//! A disk that forgets, in a crash, what was not synced.

use std::collections::BTreeMap;

use rand::Rng;
use rand::rngs::SmallRng;

use tenure_gossip::commit::{CommitWrite, Entry, HardState, Restored};
use tenure_gossip::engine::{Found, Reset, Sealed, Snapshot, Write};
use tenure_gossip::history::{Hash, Record, TxId};
use tenure_gossip::{Kv, KvGoal, StateMachine as _};

/// A frozen chain: index, head, machine, digest, transactions.
type Frozen = (u64, Hash, Vec<u8>, [u8; 32], Vec<(TxId, (u64, [u8; 8], bool))>);

#[derive(Debug, Clone, Default)]
struct Platter {
    hard: HardState,
    log: BTreeMap<u64, Entry>,
    history: BTreeMap<u64, Record>,
    snapshot: Option<Sealed>,
}

impl Platter {
    fn write(&mut self, write: &Write) {
        match write {
            Write::Commit(CommitWrite::Hard(hard)) => self.hard = *hard,
            Write::Commit(CommitWrite::Append { after, entries }) => {
                self.log.split_off(&(after.index + 1));
                self.log.extend(entries.iter().map(|e| (e.position.index, e.clone())));
            }
            Write::History(record) => {
                self.history.insert(record.index, record.clone());
            }
            Write::Forget(upto) => self.history = self.history.split_off(&(upto + 1)),
            Write::Snapshot(snapshot, reset) => {
                if let Some(point) = &snapshot.point {
                    self.log = self.log.split_off(&(point.position.index + 1));
                }
                match reset {
                    Reset::Keep => {}
                    Reset::All => self.log.clear(),
                }
                self.snapshot = Some(snapshot.clone());
            }
        }
    }
}

/// One node's disk.
#[derive(Debug, Clone, Default)]
pub(super) struct Disk {
    synced: Platter,
    /// What the program believes to be there.
    cached: Platter,
    unsynced: Vec<Write>,
    starts: u64,
    /// A disk that lies: it never syncs by itself.
    pub(super) lies: bool,
}

impl Disk {
    pub(super) fn write(&mut self, write: Write) {
        self.cached.write(&write);
        let sync = write.is_durable() && !self.lies;
        self.unsynced.push(write);
        if sync || self.unsynced.len() > 64 {
            self.unsynced.drain(..).for_each(|w| self.synced.write(&w));
        }
    }

    /// The power goes: some first part of what was not synced may have made it.
    pub(super) fn crash(&mut self, rng: &mut SmallRng) {
        let kept = rng.random_range(0..=self.unsynced.len());
        self.unsynced.drain(..).take(kept).for_each(|w| self.synced.write(&w));
        self.cached = self.synced.clone();
    }

    /// Stores the chain as if it had one record more than it has.
    pub(super) fn skip_one(&mut self, chain: &[u8]) {
        let mut frozen: Frozen = postcard::from_bytes(chain).expect("a chain that was just frozen");
        frozen.0 += 1;
        let last = self.cached.snapshot.as_ref().map(Sealed::snapshot);
        let last = last.as_ref();
        let snapshot = Snapshot {
            index: frozen.0,
            point: last.and_then(|s| s.point.clone()),
            barred: last.map(|s| s.barred.clone()).unwrap_or_default(),
            chain: postcard::to_stdvec(&frozen).expect("plain data can always be encoded"),
        };
        self.write(Write::Snapshot(snapshot.seal(), Reset::Keep));
    }

    /// Changes one value in the stored snapshot as if it had always been another one. `false` if there is
    /// no snapshot, or no value in it.
    pub(super) fn rot(&mut self) -> bool {
        let Some(sealed) = &mut self.cached.snapshot else { return false };
        let mut snapshot = sealed.snapshot();
        let mut frozen: Frozen =
            postcard::from_bytes(&snapshot.chain).expect("a chain that was just frozen");
        let mut kv = Kv::restore(&frozen.2).expect("a store that was just written");
        let Some(key) = kv.iter().next().map(|(key, _)| key.clone()) else { return false };
        let goal = KvGoal::Put { key, value: "rot".into() }.to_bytes();
        let diff = kv.execute(&goal).expect("any value can be put");
        kv.apply(&diff).expect("its own diff");
        (frozen.2, frozen.3) = (kv.snapshot(), kv.digest());
        snapshot.chain = postcard::to_stdvec(&frozen).expect("plain data can always be encoded");
        *sealed = snapshot.seal();
        // What came after it is gone, so that nothing is applied on top before others are heard.
        self.cached.history.clear();
        self.synced = self.cached.clone();
        self.unsynced.clear();
        true
    }

    pub(super) fn found(&mut self) -> Found {
        self.starts += 1;
        let p = &self.cached;
        Found {
            incarnation: self.starts,
            commit: Restored {
                hard: p.hard,
                snapshot: None,
                entries: p.log.values().cloned().collect(),
            },
            snapshot: p.snapshot.clone(),
            history: p.history.values().cloned().collect(),
        }
    }

    pub(super) fn history(&self, from: u64, upto: u64) -> Vec<Record> {
        self.cached.history.range(from..=upto).map(|(_, r)| r.clone()).collect()
    }
}
