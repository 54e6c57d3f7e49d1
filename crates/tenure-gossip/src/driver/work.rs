//! Work that takes time in proportion to the state, off the driver's thread: snapshots and reads. The
//! lease of a leader must not depend on how large its state is, or on how much is read.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use tokio::sync::{Semaphore, mpsc};

use super::refusal::Refusal;
use super::watchers::Watcher;
use super::{Driver, now};
use crate::carried::Carried;
use crate::engine::{Opened, Sealed};
use crate::history::Record;
use crate::identity::PeerId;
use crate::machine::StateMachine;
use crate::message::{MAX_HISTORY_BYTES, Message};
use crate::net::outbox::Outbox;
use crate::net::wire::{Answer, Envelope};
use crate::storage::StoreError;

/// Reads that wait or are under way, at most.
const MAX_READS: usize = 256;

/// Reads of one key that wait or are under way, at most: one client at full speed leaves room for the others.
const MAX_READS_OF_ONE: usize = 32;

/// How many reads of each key wait or are under way.
#[derive(Clone, Default)]
struct Readers(Arc<Mutex<BTreeMap<PeerId, usize>>>);

impl Readers {
    /// A place for one read more of `key`, until it is dropped; `None` if it has as many as it may.
    fn enter(&self, key: PeerId) -> Option<Reader> {
        let mut counts = self.0.lock().expect("nothing panics while it is held");
        let count = counts.entry(key).or_default();
        if *count >= MAX_READS_OF_ONE {
            return None;
        }
        *count += 1;
        Some(Reader { key, readers: self.clone() })
    }
}

/// A place of one key among the reads.
struct Reader {
    key: PeerId,
    readers: Readers,
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut counts = self.readers.0.lock().expect("nothing panics while it is held");
        if let Some(count) = counts.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.key);
            }
        }
    }
}

/// A snapshot of a namespace is sealed and written.
pub(crate) struct Made {
    namespace: String,
    sealed: Result<Sealed, StoreError>,
}

/// Reads for other nodes that are under way, at most. What is asked beyond is lost, as in a network: it is asked again.
const MAX_PEERS_READS: usize = 16;

/// What was done beside the driver.
pub(crate) enum Done<M> {
    Snapshot(Made),
    /// A snapshot that a peer sent is read and written; `None` if it was damaged.
    Opened {
        namespace: String,
        opened: Result<Option<Box<Opened<Carried<M>>>>, StoreError>,
    },
    /// What another node asked for is read.
    History {
        namespace: String,
        to: PeerId,
        records: Result<Vec<Record>, StoreError>,
    },
    /// A watcher has read what was in the store.
    Caught {
        namespace: String,
        watcher: Watcher,
    },
}

/// What goes on beside the driver.
pub(crate) struct Work<M> {
    pub(super) made: mpsc::Sender<Done<M>>,
    pub(super) done: mpsc::Receiver<Done<M>>,
    /// A watcher that reads the past holds a place until it has caught up.
    pub(super) catching: Arc<Semaphore>,
    /// The same for what other nodes ask for.
    peers: Arc<Semaphore>,
    /// A read holds a place from its arrival to its answer.
    places: Arc<Semaphore>,
    readers: Readers,
    /// One read at a time: the other core is the driver's.
    pub(super) turn: Arc<Semaphore>,
}

impl<M> Work<M> {
    pub(super) fn new() -> Self {
        // One snapshot of a namespace is made, and one read, at a time, and watchers that catch up have places: what waits
        // here is bounded by their number.
        let (made, done) = mpsc::channel(64);
        let (places, turn) = (Semaphore::new(MAX_READS), Semaphore::new(1));
        let catching = Arc::new(Semaphore::new(MAX_READS));
        let (peers, readers) = (Semaphore::new(MAX_PEERS_READS), Readers::default());
        let (peers, places, turn) = (Arc::new(peers), Arc::new(places), Arc::new(turn));
        Self { made, done, catching, peers, places, readers, turn }
    }
}

impl<M: StateMachine> Driver<M> {
    /// Seals and writes the snapshots that are due.
    pub(super) fn start_snapshots(&mut self) {
        for (name, ns) in &mut self.namespaces {
            let Some(draft) = ns.engine.poll_draft() else { continue };
            let (store, made, namespace) =
                (self.store.clone(), self.work.made.clone(), name.clone());
            // Not cancelled when the node stops: what is written and never named is left out at the next start.
            self.runtime.spawn_blocking(move || {
                let sealed = draft.seal();
                let written = store.write_snapshot(&namespace, &sealed);
                let sealed = written.map(|()| sealed);
                let _ = made.blocking_send(Done::Snapshot(Made { namespace, sealed }));
            });
        }
    }

    /// Reads and writes the snapshots that other nodes sent.
    pub(super) fn open_snapshots(&mut self) {
        for (name, ns) in &mut self.namespaces {
            let Some(received) = ns.engine.poll_received() else { continue };
            let (store, made, namespace) =
                (self.store.clone(), self.work.made.clone(), name.clone());
            // Not cancelled when the node stops, as above.
            self.runtime.spawn_blocking(move || {
                let opened = received.open().map(|opened| {
                    store.write_snapshot(&namespace, opened.sealed()).map(|()| Box::new(opened))
                });
                let _ = made.blocking_send(Done::Opened { namespace, opened: opened.transpose() });
            });
        }
    }

    pub(super) fn work_done(&mut self, done: Done<M>) -> Result<(), StoreError> {
        match done {
            Done::Snapshot(made) => self.snapshot_made(made),
            Done::Opened { namespace, opened } => {
                let opened = opened?.map(|opened| *opened);
                if let Some(ns) = self.namespaces.get_mut(&namespace) {
                    ns.engine.opened(now(), opened);
                }
                Ok(())
            }
            Done::History { namespace, to, records } => {
                let records = records?;
                let last =
                    self.namespaces.get(&namespace).map_or(0, |ns| ns.engine.chain().index());
                let history = Message::History { records, last };
                self.send(to, Envelope::Namespace(namespace, history));
                Ok(())
            }
            Done::Caught { namespace, watcher } => {
                self.caught_up(&namespace, watcher);
                Ok(())
            }
        }
    }

    /// Reads what another node asked for, and sends it.
    pub(super) fn read_for_peer(&mut self, name: &str, to: PeerId, from: u64, upto: u64) {
        let Ok(place) = self.work.peers.clone().try_acquire_owned() else { return };
        let (store, made) = (self.store.clone(), self.work.made.clone());
        let namespace = name.to_owned();
        self.runtime.spawn_blocking(move || {
            let records = store.history(&namespace, from, upto, MAX_HISTORY_BYTES);
            let _ = made.blocking_send(Done::History { namespace, to, records });
            drop(place);
        });
    }

    fn snapshot_made(&mut self, made: Made) -> Result<(), StoreError> {
        let sealed = made.sealed?;
        if let Some(ns) = self.namespaces.get_mut(&made.namespace) {
            ns.engine.drafted(now(), sealed);
        }
        Ok(())
    }

    /// Answers a client after `read`, which runs on another thread. Cheap copies go in; no answer is
    /// later than the state it was asked of.
    pub(super) fn read_beside(
        &mut self,
        key: PeerId,
        out: Outbox,
        read: impl FnOnce() -> Result<Answer, Refusal> + Send + 'static,
    ) {
        let place = self.work.places.clone().try_acquire_owned().ok();
        let Some(place) = place.zip(self.work.readers.enter(key)) else {
            out.refuse(&Refusal::TooManyReads);
            return;
        };
        let turn = self.work.turn.clone();
        self.runtime.spawn(async move {
            let Ok(turn) = turn.acquire_owned().await else { return };
            let answered = tokio::task::spawn_blocking(move || {
                let sent = match read() {
                    Ok(answer) => out.answer(answer),
                    Err(why) => out.refuse(&why),
                };
                if !sent {
                    out.refuse(&Refusal::AnswerTooLarge);
                }
            });
            let _ = answered.await;
            drop((turn, place));
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_key_cannot_take_all_places_of_the_reads() {
        let (readers, greedy, other) = (Readers::default(), PeerId([1; 32]), PeerId([2; 32]));
        let mut held: Vec<_> = std::iter::from_fn(|| readers.enter(greedy)).collect();
        assert_eq!(held.len(), MAX_READS_OF_ONE);
        assert!(MAX_READS_OF_ONE < MAX_READS && readers.enter(other).is_some());
        held.pop();
        assert!(readers.enter(greedy).is_some(), "an answer makes room");
        drop(held);
        assert!(readers.0.lock().unwrap().is_empty(), "no key is remembered without a read");
    }
}
