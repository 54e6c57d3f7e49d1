//! Catching up: history in chunks, snapshots in pieces.

use std::marker::PhantomData;
use std::time::Duration;

use super::{Draft, Engine, Event, Opened, Output, Received, Reset, Sealed, Snapshot, Write};
use crate::commit::Commit;
use crate::history::{Hash, Record};
use crate::identity::PeerId;
use crate::machine::StateMachine;
use crate::message::{MAX_HISTORY_RECORDS, Message, SNAPSHOT_PIECE};
use tenure_core::Tick;

/// Largest snapshot that is fetched.
const MAX_SNAPSHOT: u64 = 4 << 30;
/// Bytes of records after which a snapshot is due, however few they are: the log since the last one is
/// kept in memory.
const MAX_UNSNAPPED: usize = 64 << 20;
/// Without a piece for so long, a fetch is given up.
const FETCH_PATIENCE: Duration = Duration::from_secs(2);
/// Time between two looks for missed records, for a node outside of consensus.
const SYNC_EVERY: Duration = Duration::from_secs(1);

/// Without a word from a member for so long, a node that believes to be one is stranded.
const STRANDED_AFTER: Duration = Duration::from_secs(30);

/// A snapshot being fetched.
#[derive(Debug, Clone)]
pub(super) struct Fetch {
    from: PeerId,
    hash: Hash,
    length: u64,
    bytes: Vec<u8>,
    until: Tick,
}

impl<M: StateMachine, C: Commit> Engine<M, C> {
    /// Asks `peers` of the view for what comes after the last record applied. A member asks other members: it
    /// believes no other node.
    pub(super) fn request_history(&mut self, now: Tick, peers: usize) {
        let from = self.chain.index() + 1;
        let upto = self.chain.index() + MAX_HISTORY_RECORDS as u64;
        let asked = self.peers_to_ask(now, peers);
        if asked.is_empty() {
            return;
        }
        self.next_sync = now + SYNC_EVERY;
        self.out.push_back(Output::Event(Event::HistoryRequested(from, asked.len())));
        for peer in asked {
            self.out.push_back(Output::Send(peer, Message::HistoryRequest { from, upto }));
        }
    }

    fn peers_to_ask(&mut self, now: Tick, count: usize) -> Vec<PeerId> {
        let members = self.commit.status(now).members;
        if !members.contains(&self.me) {
            return self.gossip.sample(count);
        }
        let mut peers: Vec<_> = members.all().into_iter().filter(|peer| *peer != self.me).collect();
        self.gossip.shuffle(&mut peers);
        peers.truncate(count);
        peers
    }

    /// A record that a peer says is committed.
    pub(super) fn record_arrived(&mut self, now: Tick, record: Record) {
        let gap = record.index > self.chain.index() + 1;
        if !self.apply(now, record) && gap && self.next_sync <= now + SYNC_EVERY / 2 {
            self.request_history(now, 3);
        }
    }

    pub(super) fn history_asked(&mut self, to: PeerId, from: u64, upto: u64) {
        let last = self.chain.index();
        if from > last {
            self.out.push_back(Output::Send(to, Message::History { records: Vec::new(), last }));
            return;
        }
        let snapshot = self.held.as_ref().filter(|s| s.index >= from);
        let far = last - from > self.config.snapshot_every * 2;
        if (from < self.oldest || far) && snapshot.is_some() {
            self.offer_snapshot(to);
        } else if from >= self.oldest {
            let upto = upto.min(last).min(from.saturating_add(MAX_HISTORY_RECORDS as u64 - 1));
            self.out.push_back(Output::ReadHistory { to, from, upto });
        }
    }

    pub(super) fn history_arrived(
        &mut self,
        now: Tick,
        from: PeerId,
        records: Vec<Record>,
        last: u64,
    ) {
        let before = self.chain.index();
        for record in records {
            if !self.apply(now, record) {
                break;
            }
        }
        self.snapshot_if_due();
        // More where that came from.
        if self.chain.index() > before && self.chain.index() < last {
            let first = self.chain.index() + 1;
            let upto = self.chain.index() + MAX_HISTORY_RECORDS as u64;
            self.out.push_back(Output::Send(from, Message::HistoryRequest { from: first, upto }));
        }
    }

    /// Passes a new record on to neighbours that are outside of consensus; the members have it from there.
    pub(super) fn spread(&mut self, record: &Record, now: Tick) {
        let members = self.commit.status(now).members;
        for peer in self.gossip.spray().neighbours() {
            if !members.contains(&peer) && !members.voters.is_empty() {
                self.out.push_back(Output::Send(peer, Message::Processed(record.clone())));
            }
        }
        if members.voters.is_empty() {
            // A node outside of consensus does not know its members. A node that it does not reach
            // notices the gap by the next record, or within a second by asking.
            for peer in self.gossip.sample(2) {
                self.out.push_back(Output::Send(peer, Message::Processed(record.clone())));
            }
        }
    }

    pub(super) fn tick_sync(&mut self, now: Tick) {
        if self.fetch.as_ref().is_some_and(|f| f.until <= now) {
            self.fetch = None;
        }
        let status = self.commit.status(now);
        let attached = self.attached(&status);
        if attached || !status.members.contains(&self.me) || status.members.all().len() == 1 {
            self.heard = now;
        }
        let stranded = now.saturating_since(self.heard) >= STRANDED_AFTER;
        if stranded && !self.stranded {
            self.out.push_back(Output::Event(Event::Stranded));
        }
        self.stranded = stranded;
        if !attached && self.next_sync <= now && self.fetch.is_none() && !self.opening {
            self.request_history(now, 1);
        }
    }

    /// Whether this node believes to be a member, and none of the members that it knows has answered for long: they are
    /// away, or it was removed while it was away itself, and all of them were since.
    #[must_use]
    pub fn is_stranded(&self) -> bool {
        self.stranded
    }

    // Snapshots

    /// The latest snapshot.
    #[must_use]
    pub fn held(&self) -> Option<&Sealed> {
        self.held.as_ref()
    }

    /// Keeps the latest snapshot ready to be sent.
    pub(super) fn hold(&mut self, sealed: Sealed) {
        self.held = Some(sealed);
    }

    pub(super) fn snapshot_if_due(&mut self) {
        let last = self.held.as_ref().map_or(0, |s| s.index);
        let size = self.held.as_ref().map_or(0, |s| s.bytes.len());
        // A large state is not written again for a few small records: what is written stays
        // proportional to what happened.
        let many = self.chain.index() >= last + self.config.snapshot_every;
        let due = (many && self.unsnapped >= size / 2) || self.unsnapped >= MAX_UNSNAPPED.max(size);
        if self.halted.is_some() || self.drafting || !due {
            return;
        }
        // The consensus log may lag behind the chain (records can come by history): a snapshot says
        // how far into the log it reaches, and entries it covers twice are recognised.
        let draft = Draft {
            index: self.chain.index(),
            point: self.commit.snapshot_point(self.applied_log),
            barred: self.barred.clone(),
            chain: self.chain.ahead(),
        };
        self.unsnapped = 0;
        self.drafting = true;
        self.draft = Some(draft);
    }

    /// A snapshot whose bytes are to be made with [`Draft::seal`], on another thread, and then handed to
    /// [`Engine::drafted`]. One at a time.
    pub fn poll_draft(&mut self) -> Option<Draft<M>> {
        self.draft.take()
    }

    /// The draft is sealed (and, if the store can do that beside the engine, written).
    pub fn drafted(&mut self, now: Tick, sealed: Sealed) {
        self.drafting = false;
        // One that was installed in the meantime reaches further, and the log begins after it.
        let older = self.held.as_ref().is_some_and(|held| held.index >= sealed.index);
        if older || self.halted.is_some() {
            return;
        }
        self.out.push_back(Output::Persist(Write::Snapshot(sealed.clone(), Reset::Keep)));
        if let Some(point) = &sealed.point {
            let forgotten = self.commit.compact(point.position.index);
            let reaches = |lent: &Sealed| {
                lent.point.as_ref().is_some_and(|point| point.position.index >= forgotten)
            };
            self.lent = self.lent.take().filter(reaches);
        }
        self.out
            .push_back(Output::Event(Event::Snapshot { index: sealed.index, installed: false }));
        self.forget_old(sealed.index);
        self.hold(sealed);
        self.settle(now);
    }

    /// Drops records that are no longer kept.
    fn forget_old(&mut self, index: u64) {
        let Some(keep) = self.config.keep_history else { return };
        let upto = index.saturating_sub(keep);
        if upto >= self.oldest {
            self.oldest = upto + 1;
            self.out.push_back(Output::Persist(Write::Forget(upto)));
        }
    }

    pub(super) fn offer_snapshot(&mut self, to: PeerId) {
        if let Some(Sealed { index, point, hash, bytes }) = &self.held {
            let log = point.as_ref().map_or(0, |p| p.position.index);
            let length = bytes.len() as u64;
            let offer = Message::SnapshotOffer { index: *index, log, length, hash: *hash };
            self.out.push_back(Output::Send(to, offer));
        }
    }

    pub(super) fn snapshot_offered(
        &mut self,
        now: Tick,
        from: PeerId,
        index: u64,
        log: u64,
        length: u64,
        hash: Hash,
    ) {
        // A member whose chain is ahead (by history) may still need the place in the log.
        let status = self.commit.status(now);
        let wanted = index > self.chain.index() || (status.term > 0 && log > status.commit_index);
        if wanted && self.fetch.is_none() && !self.opening && length <= MAX_SNAPSHOT {
            self.fetch =
                Some(Fetch { from, hash, length, bytes: Vec::new(), until: now + FETCH_PATIENCE });
            self.out.push_back(Output::Send(from, Message::SnapshotRequest { hash, offset: 0 }));
        }
    }

    pub(super) fn snapshot_asked(&mut self, to: PeerId, hash: Hash, offset: u64) {
        if offset == 0 {
            self.lent = self.held.clone().filter(|held| held.hash == hash).or(self.lent.take());
        }
        // A busy group makes the next one while this one is fetched.
        let Some(held) = [&self.held, &self.lent].into_iter().flatten().find(|s| s.hash == hash)
        else {
            self.offer_snapshot(to);
            return;
        };
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(held.bytes.len());
        let bytes = held.bytes[from..(from + SNAPSHOT_PIECE).min(held.bytes.len())].to_vec();
        self.out.push_back(Output::Send(to, Message::SnapshotPiece { hash, offset, bytes }));
    }

    pub(super) fn snapshot_piece(
        &mut self,
        now: Tick,
        from: PeerId,
        hash: Hash,
        offset: u64,
        bytes: Vec<u8>,
    ) {
        let Some(fetch) = self.fetch.as_mut().filter(|f| f.from == from && f.hash == hash) else {
            return;
        };
        if offset != fetch.bytes.len() as u64 || bytes.is_empty() {
            return;
        }
        fetch.bytes.extend_from_slice(&bytes);
        fetch.until = now + FETCH_PATIENCE;
        let have = fetch.bytes.len() as u64;
        if have < fetch.length {
            self.out.push_back(Output::Send(from, Message::SnapshotRequest { hash, offset: have }));
            return;
        }
        let Some(fetch) = self.fetch.take() else { return };
        self.opening = true;
        self.received = Some(Received { hash, bytes: fetch.bytes, state: PhantomData });
    }

    /// A snapshot that was fetched, to be read with [`Received::open`], on another thread, and then handed to
    /// [`Engine::opened`]. One at a time.
    pub fn poll_received(&mut self) -> Option<Received<M>> {
        self.received.take()
    }

    /// The snapshot is read (and, if the store can do that beside the engine, written); `None` if it was damaged. What
    /// came in the meantime counts: it is installed only if it still reaches further than what is here.
    pub fn opened(&mut self, now: Tick, opened: Option<Opened<M>>) {
        self.opening = false;
        if let Some(opened) = opened.filter(|_| self.halted.is_none()) {
            self.install(now, opened);
        }
        self.settle(now);
    }

    fn install(&mut self, now: Tick, opened: Opened<M>) {
        let Opened { sealed, snapshot, chain } = opened;
        let before = self.commit.status(now);
        let mut reset = Reset::Keep;
        let mut moved = false;
        if let Some(point) = snapshot.point.as_ref().filter(|_| before.term > 0)
            && point.position.index > before.commit_index
            && self.commit.snapshot_done(point)
        {
            moved = true;
            self.barred = snapshot.barred.clone();
            self.applied_log = self.applied_log.max(point.position.index);
            // What consensus kept of its log after the point is still right on disk; if it kept
            // nothing, nothing of the old log may come back after a crash.
            if self.commit.status(now).last_index == point.position.index {
                reset = Reset::All;
            }
        }
        let ahead = chain.index() > self.chain.index();
        if !ahead && !moved {
            return;
        }
        let sealed = if ahead {
            self.oldest = chain.index() + 1;
            self.out.push_back(Output::Persist(Write::Forget(chain.index())));
            self.out.push_back(Output::Skipped(self.chain.index() + 1, chain.index()));
            let decided: Vec<_> =
                self.pending.keys().filter_map(|t| chain.find(t).map(|i| (*t, i))).collect();
            for (tx, index) in decided {
                let goal = self.pending.remove(&tx).map(|waiting| waiting.goal).unwrap_or_default();
                let same = chain.is_goal_of(&tx, &goal) == Some(true);
                self.out.push_back(match same {
                    true => Output::Known(tx, index),
                    false => Output::Conflict(tx, index),
                });
            }
            self.chain = chain;
            if moved {
                sealed
            } else {
                // The peer's log may be behind its records, and then its place in the log lies before the
                // beginning of the log here: what is stored must say where *this* log goes on, or a restart
                // would find a hole. Outside of consensus there is no log to go on.
                let point = self.commit.snapshot_point(self.applied_log);
                let point = point.filter(|point| point.position.index > 0);
                if let Some(point) = &point {
                    self.commit.snapshot_done(point);
                }
                let (index, barred) = (snapshot.index, self.barred.clone());
                Snapshot { index, point, barred, chain: snapshot.chain }.seal()
            }
        } else {
            let (point, barred) = (snapshot.point, snapshot.barred);
            Snapshot { index: self.chain.index(), point, barred, chain: self.chain.freeze() }.seal()
        };
        self.lead = None;
        self.unsnapped = 0;
        self.out.push_back(Output::Persist(Write::Snapshot(sealed.clone(), reset)));
        self.out.push_back(Output::Event(Event::Snapshot { index: sealed.index, installed: true }));
        self.hold(sealed);
    }
}
