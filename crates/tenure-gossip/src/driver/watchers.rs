//! Clients that follow the history: each record once, in order, from where they asked. A subscription never
//! goes on with a hole: it ends with the reason, and with the index to go on from.

use std::time::Duration;

use super::refusal::Refusal;
use super::work::Done;
use super::{Driver, Namespace, now};
use crate::history::Record;
use crate::machine::StateMachine;
use crate::message::{MAX_HISTORY_BYTES, MAX_HISTORY_RECORDS};
use crate::net::outbox::Outbox;
use crate::net::wire::Answer;
use crate::storage::StoreError;
use tenure_core::Tick;

/// Watchers of a namespace, at most.
const MAX_WATCHERS: usize = 4_096;
/// How long a watcher that reads the past may leave its connection full.
const SLOW: Duration = Duration::from_secs(30);
/// How often it is looked whether there is room again.
const LOOK: Duration = Duration::from_millis(20);

/// A client that has everything before `next`.
pub(crate) struct Watcher {
    pub(super) out: Outbox,
    pub(super) next: u64,
}

impl Watcher {
    /// Sends the record, if it is the next one. `false` if the subscription has ended.
    pub(super) fn tell(&mut self, record: &Record) -> bool {
        if record.index < self.next {
            return true;
        }
        // Half of the room is left for the refusal, which must always fit.
        if self.out.has_room() && self.out.answer(Answer::Record(record.clone())) {
            self.next = record.index + 1;
            return true;
        }
        self.out.refuse(&Refusal::TooSlow(self.next));
        false
    }
}

impl<M: StateMachine> Namespace<M> {
    /// Ends every subscription of a client, each with the reason.
    pub(super) fn end_watches(&mut self, why: impl Fn(u64) -> Refusal) {
        for watcher in self.watchers.drain(..) {
            watcher.out.refuse(&why(watcher.next));
        }
    }

    /// Why no record can be expected here, if so; `next` is the one that is waited for.
    fn deaf(&self, next: u64, at: Tick) -> Option<Refusal> {
        if self.engine.halted().is_some() {
            return Some(Refusal::Halted(next));
        }
        let alone = self.leaderless.map(|since| at.saturating_since(since));
        alone
            .filter(|alone| *alone >= self.cut_off)
            .map(|alone| Refusal::CutOff { seconds: alone.as_secs(), from: next })
    }

    /// Notes since when there is no leader, and ends the subscriptions that would wait in vain.
    pub(super) fn look_for_leader(&mut self, at: Tick) {
        if self.engine.leader().is_some() {
            self.leaderless = None;
        } else {
            self.leaderless.get_or_insert(at);
        }
        if let Some(Refusal::CutOff { seconds, .. }) = self.deaf(0, at) {
            self.end_watches(|from| Refusal::CutOff { seconds, from });
        }
    }
}

impl<M: StateMachine> Driver<M> {
    pub(super) fn watch(
        &mut self,
        name: &str,
        from: Option<u64>,
        out: Outbox,
    ) -> Result<(), Refusal> {
        let ns = self.carried(name)?;
        ns.watchers.retain(|watcher| !watcher.out.is_closed());
        if ns.watchers.len() >= MAX_WATCHERS {
            return Err(Refusal::TooManyWatchers);
        }
        let next = from.unwrap_or(ns.engine.chain().index() + 1).max(1);
        self.go_on(name, Watcher { out, next })
    }

    /// A watcher has read what was in the store.
    pub(super) fn caught_up(&mut self, name: &str, watcher: Watcher) {
        let out = watcher.out.clone();
        if let Err(why) = self.go_on(name, watcher) {
            out.refuse(&why);
        }
    }

    /// Live from here on, or first what is in the store.
    fn go_on(&mut self, name: &str, watcher: Watcher) -> Result<(), Refusal> {
        let ns: &mut Namespace<M> = self.carried(name)?;
        if let Some(why) = ns.deaf(watcher.next, now()) {
            return Err(why);
        }
        if watcher.next > ns.engine.chain().index() {
            ns.watchers.push(watcher);
            return Ok(());
        }
        let oldest = ns.engine.oldest();
        if watcher.next < oldest {
            return Err(Refusal::Forgotten(oldest));
        }
        let Ok(place) = self.work.catching.clone().try_acquire_owned() else {
            return Err(Refusal::TooManyWatchers);
        };
        let (store, made, turn) =
            (self.store.clone(), self.work.made.clone(), self.work.turn.clone());
        let namespace = name.to_owned();
        self.runtime.spawn(async move {
            let Watcher { out, mut next } = watcher;
            while wait_for_room(&out).await {
                let Ok(turn) = turn.clone().acquire_owned().await else { return };
                let (store, name, first) = (store.clone(), namespace.clone(), next);
                let read = tokio::task::spawn_blocking(move || {
                    let upto = first + MAX_HISTORY_RECORDS as u64 - 1;
                    store.history(&name, first, upto, MAX_HISTORY_BYTES)
                });
                let page: Result<Vec<Record>, StoreError> = match read.await {
                    Ok(page) => page,
                    Err(_) => return,
                };
                drop(turn);
                let page = match page {
                    Ok(page) => page,
                    Err(error) => {
                        out.refuse(&Refusal::Unreadable(error.to_string()));
                        return;
                    }
                };
                if page.first().is_none_or(|record| record.index != next) {
                    drop(place);
                    let watcher = Watcher { out, next };
                    let _ = made.send(Done::Caught { namespace, watcher }).await;
                    return;
                }
                for record in page {
                    next = record.index + 1;
                    out.answer(Answer::Record(record));
                }
            }
            out.refuse(&Refusal::TooSlow(next));
        });
        Ok(())
    }
}

/// Whether there is room for a page, now or soon.
async fn wait_for_room(out: &Outbox) -> bool {
    let until = tokio::time::Instant::now() + SLOW;
    while !out.has_room() {
        if out.is_closed() || tokio::time::Instant::now() >= until {
            return false;
        }
        tokio::time::sleep(LOOK).await;
    }
    !out.is_closed()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Hash, Outcome, TxId};
    use crate::identity::PeerId;
    use crate::net::outbox::outbox;
    use crate::net::wire::Envelope;

    fn record(index: u64) -> Record {
        let (prev, term, leader) = (Hash::default(), 1, PeerId([1; 32]));
        let outcome = Outcome::Done(vec![0; 100_000]);
        Record { index, prev, term, leader, tx: TxId([1; 16]), goal: Vec::new(), outcome }
    }

    #[tokio::test]
    async fn a_watcher_that_does_not_read_is_told_where_it_was_cut_off() {
        let (out, mut outgoing) = outbox();
        let mut watcher = Watcher { out, next: 5 };
        let told = (3..1_000).take_while(|index| watcher.tell(&record(*index))).count();
        assert!((20..200).contains(&told), "{told}");
        drop(watcher);
        let mut next = 5;
        while let Some(frame) = outgoing.next().await {
            let Ok(Envelope::Answer(_, answer)) = postcard::from_bytes(&frame) else {
                panic!("not an answer")
            };
            let why = match answer {
                Answer::Record(record) => {
                    assert_eq!(record.index, next, "each once, in order");
                    next += 1;
                    continue;
                }
                Answer::Refused(why) => why,
                other => panic!("{other:?}"),
            };
            assert!(why.contains(&format!("tenure gossip watch --from {next}")), "{why}");
            assert_eq!(next, 3 + told as u64);
            assert!(outgoing.next().await.is_none(), "nothing comes after the reason");
            return;
        }
        panic!("it was never told");
    }
}
