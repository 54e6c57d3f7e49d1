//! For any sequence of sends, answers, losses, blocks, reorganisations, crashes and promotions: no
//! nonce carries two contents, no request has two nonces, nothing leaves before its row, and once
//! the world calms down every accepted request is in the finalised chain exactly once.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use proptest::prelude::*;
use tenure_core::clock::Tick;
use tenure_tx::chain::{Block, Head, Located, Outcome, Shortfall};
use tenure_tx::engine::{
    Attempt, Effect, Engine, EngineConfig, Input, NonceError, OpenTransaction, Permit, Provisional,
    Request,
};
use tenure_tx::status::{End, EndKind, Hash, Note, State, TransactionStatus};

/// What a signed transaction carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Content {
    Request(u32),
    NoOp,
}

#[derive(Debug, Clone)]
struct Row {
    request: Option<u32>,
    deadline: Option<Tick>,
    end: Option<End>,
    attempts: Vec<Attempt>,
    status: TransactionStatus,
    ended: bool,
    /// No block proves its end yet.
    provisional: bool,
}

impl Row {
    fn corrected(&mut self, hash: Hash, status: TransactionStatus, note: Note) {
        assert!(self.provisional, "only a provisional end is corrected");
        assert_eq!(note.corrected.as_deref(), self.end.as_ref(), "what was told is kept");
        self.provisional = false;
        self.attempts.sort_by_key(|a| a.hash == hash);
        (self.status, self.end) = (status, note.end.map(|end| *end));
    }
}

#[derive(Debug, Clone)]
enum Action {
    Send,
    /// With a deadline.
    SendDue(u64),
    /// A caller asks again under the id of the n-th open row.
    SendAgain(usize),
    /// Carry out the n-th outstanding effect; the fate decides how it goes.
    Deliver(usize, Fate),
    /// Hand over the n-th outstanding report of a watch.
    Report(usize),
    LoseWatch(usize),
    Mine(usize),
    Finalize(usize),
    Reorg(usize),
    LosePool,
    EvictOne(usize),
    Head,
    Tick(u64),
    Cancel(u64),
    /// The leader dies with all it had in flight; another takes over from the table.
    Crash,
    /// The leader loses its store for a moment and reads the table again.
    Resync,
}

#[derive(Debug, Clone, Copy)]
enum Fate {
    Well,
    /// Done, but the answer is lost (a store's: the leader has to read the table again).
    AnswerLost,
    NotDone,
    Refused,
    /// The node takes the bytes and calls them refused. It breaks what its answers promise: one content
    /// per nonce holds no more, but every end must still come true.
    Lied,
}

#[derive(Debug, Clone)]
struct Transaction {
    nonce: u64,
    content: Content,
    tip: u128,
    /// Some node took it into its pool at least once.
    lived: bool,
}

struct World {
    engine: Engine,
    now: Tick,
    rows: BTreeMap<u64, Row>,
    /// Rows whose nonce was given away.
    past: BTreeMap<u32, (u64, Row)>,
    signed: BTreeMap<Hash, Transaction>,
    pool: BTreeMap<u64, Hash>,
    /// The best chain, one hash list per block, with a tag that makes reorganised blocks differ.
    chain: Vec<(u32, Vec<Hash>)>,
    finalized: usize,
    effects: Vec<Effect>,
    reports: VecDeque<Input>,
    watches: BTreeSet<(u64, Hash)>,
    /// Requests with a nonce whose row is not stored yet: they were never accepted.
    wanted: BTreeMap<u64, u32>,
    accepted: BTreeSet<u32>,
    /// Nonces whose request was dropped by order.
    cancelled: BTreeSet<u64>,
    deadlines: BTreeMap<u32, Tick>,
    /// Nonces for which the leader has ordered a no-op: from then on no form of the request leaves.
    given_up: BTreeSet<u64>,
    serial: u32,
    /// Nodes lie: what their answers promise does not hold.
    lied: bool,
}

impl World {
    fn new() -> Self {
        let config = EngineConfig {
            stuck_after: Duration::from_secs(20),
            gap_after: Duration::from_secs(5),
            ..EngineConfig::default()
        };
        let mut world = World {
            engine: Engine::new(config),
            now: Tick::ZERO,
            rows: BTreeMap::new(),
            past: BTreeMap::new(),
            signed: BTreeMap::new(),
            pool: BTreeMap::new(),
            chain: vec![(0, vec![])],
            finalized: 1,
            effects: vec![],
            reports: VecDeque::new(),
            watches: BTreeSet::new(),
            wanted: BTreeMap::new(),
            accepted: BTreeSet::new(),
            cancelled: BTreeSet::new(),
            deadlines: BTreeMap::new(),
            given_up: BTreeSet::new(),
            serial: 0,
            lied: false,
        };
        world.promote(false);
        world
    }

    fn mined(&self, upto: usize) -> impl Iterator<Item = Hash> + '_ {
        self.chain[..upto].iter().flat_map(|(_, txs)| txs.iter().copied())
    }

    fn head(&self) -> Head {
        let best_nonce = self.mined(self.chain.len()).count() as u64;
        let mut pool_nonce = best_nonce;
        while self.pool.contains_key(&pool_nonce) {
            pool_nonce += 1;
        }
        Head {
            best: Block { number: self.chain.len() as u64, hash: self.block(self.chain.len() - 1) },
            finalized: Block {
                number: self.finalized as u64,
                hash: self.block(self.finalized - 1),
            },
            best_nonce,
            finalized_nonce: self.mined(self.finalized).count() as u64,
            pool_nonce,
            ..Head::default()
        }
    }

    fn block(&self, index: usize) -> Hash {
        let mut bytes = [0; 32];
        bytes[..4].copy_from_slice(&self.chain[index].0.to_be_bytes());
        bytes[4..12].copy_from_slice(&(index as u64).to_be_bytes());
        Hash(bytes)
    }

    fn block_of(&self, hash: Hash) -> Option<(Hash, bool)> {
        let index = self.chain.iter().position(|(_, txs)| txs.contains(&hash))?;
        Some((self.block(index), index < self.finalized))
    }

    fn feed(&mut self, input: Input) {
        let effects = self.engine.handle(self.now, input);
        self.take(effects);
    }

    fn take(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                // The table is written in order and at once; losing it is `Resync` and `Crash`.
                Effect::Record { nonce, hash, status, note } => {
                    self.record(nonce, hash, status, note);
                }
                Effect::Build { nonce, attempt: 1, noop: None, .. } => {
                    let id = self.engine.request_at(nonce).expect("a first attempt has a request");
                    let request = id.parse().expect("one of ours");
                    let before = self.wanted.insert(nonce, request);
                    assert!(before.is_none(), "one nonce, two requests");
                    self.effects.push(effect);
                }
                Effect::Free { nonce } => {
                    self.given_up.remove(&nonce);
                    self.wanted.remove(&nonce);
                }
                Effect::Refuse { request, error } => {
                    assert!(matches!(error, NonceError::Given(_)), "{request}: {error}");
                }
                Effect::Settle { nonce, request } => {
                    self.ended(nonce, &request).provisional = false
                }
                Effect::Correct { nonce, request, hash, status, note } => {
                    self.ended(nonce, &request).corrected(hash, status, note);
                }
                Effect::Build { nonce, noop: Some(_), .. } => {
                    self.given_up.insert(nonce);
                    self.effects.push(effect);
                }
                Effect::Submit { nonce, hash } => {
                    let is_noop = self.signed[&hash].content == Content::NoOp;
                    assert!(is_noop || !self.given_up.contains(&nonce), "{nonce} was given up");
                    self.effects.push(effect);
                }
                Effect::Build { .. } | Effect::Locate { .. } | Effect::Reexamine { .. } => {
                    self.effects.push(effect);
                }
            }
        }
    }

    /// The row of a request that has ended, wherever it is by now.
    fn ended(&mut self, nonce: u64, request: &str) -> &mut Row {
        let id: Option<u32> = request.parse().ok();
        let past = id.and_then(|id| self.past.get_mut(&id)).map(|(_, row)| row);
        let row = past.or_else(|| self.rows.get_mut(&nonce)).expect("a row");
        assert!(row.ended && row.request == id, "{request} is another row: {row:?}");
        row
    }

    fn record(&mut self, nonce: u64, hash: Hash, status: TransactionStatus, note: Note) {
        let ended = note.end.is_some();
        let row = self.rows.get_mut(&nonce).expect("a status is recorded only for a stored row");
        assert!(!row.ended, "nothing follows an end");
        assert!(row.attempts.iter().any(|a| a.hash == hash), "a foreign hash was recorded");
        row.status = status;
        row.ended = ended;
        row.provisional = ended && row.status.state() != State::Finalized && row.request.is_some();
        row.end = note.end.map(|end| *end);
        if ended {
            self.given_up.remove(&nonce);
            row.attempts.sort_by_key(|a| a.hash == hash);
            if row.status.state() == State::Finalized {
                let others = self.past.values_mut().filter(|(at, _)| *at == nonce);
                others.for_each(|(_, row)| row.provisional = false);
            }
        }
    }

    /// A new reading of the table: by another leader, or by the same one, which remembers the orders that it took.
    fn promote(&mut self, same: bool) {
        self.effects.clear();
        self.wanted.clear();
        self.given_up.clear();
        self.feed(Input::Demoted);
        let open = |(&nonce, row): (&u64, &Row)| OpenTransaction {
            request: row.request.map_or_else(|| format!("gap {nonce}"), |id| id.to_string()),
            nonce,
            attempts: row.attempts.clone(),
            status: row.status.clone(),
            resignable: true,
            deadline: row.deadline,
            dropped: same && self.cancelled.contains(&nonce),
        };
        let rows = self.rows.iter().filter(|(_, row)| !row.ended).map(open).collect();
        let used = |(nonce, row): (&u64, &Row)| {
            (row.ended && row.status.state() != State::Invalid).then_some(nonce + 1)
        };
        let consumed = self.rows.iter().filter_map(used).max().unwrap_or(0);
        let past = self.past.values().map(|(nonce, row)| (nonce, row));
        let provisional = self.rows.iter().chain(past).filter(|(_, row)| row.provisional);
        let provisional = provisional.map(|(&nonce, row)| Provisional {
            request: row.request.map_or_else(|| format!("gap {nonce}"), |id| id.to_string()),
            nonce,
            attempts: row.attempts.clone(),
            end: row.end.clone().expect("ended"),
        });
        let provisional = provisional.collect();
        self.feed(Input::Recovered { rows, consumed, provisional, head: self.head() });
    }

    fn not_built(&mut self, nonce: u64) {
        let (reason, too_dear) = ("away".to_owned(), nonce.is_multiple_of(2));
        self.feed(Input::BuildFailed { nonce, reason, too_dear });
    }

    fn build(&mut self, nonce: u64, attempt: u32, tip: u128, noop: Option<Permit>, fate: Fate) {
        // The store replaces only an open row: an older attempt may have won meanwhile.
        if attempt > 1 && self.rows[&nonce].ended {
            return self.not_built(nonce);
        }
        let request = self
            .wanted
            .get(&nonce)
            .copied()
            .or_else(|| self.rows.get(&nonce).filter(|row| !row.ended).and_then(|r| r.request));
        let content = match request {
            Some(request) if noop.is_none() => Content::Request(request),
            Some(_) | None => Content::NoOp,
        };
        if matches!(fate, Fate::NotDone | Fate::Refused) {
            self.wanted.remove(&nonce);
            return self.not_built(nonce);
        }
        self.serial += 1;
        let mut bytes = [0xee; 32];
        bytes[..4].copy_from_slice(&self.serial.to_be_bytes());
        let attempt = Attempt {
            hash: Hash(bytes),
            tip,
            noop: noop.is_some(),
            permit: noop,
            ..Attempt::default()
        };
        let lived = false;
        self.signed.insert(attempt.hash, Transaction { nonce, content, tip, lived });
        // Only a row that ended as never taken may be overwritten by another request.
        let reusable = self.rows.get(&nonce).is_none_or(|row| row.ended);
        if let Some(old) = self.rows.get(&nonce).filter(|row| row.ended) {
            assert_eq!(old.status.state(), State::Invalid, "a used nonce was reused");
            if let Some(id) = old.request {
                self.past.insert(id, (nonce, old.clone()));
            }
        }
        if reusable {
            let status = TransactionStatus::Future;
            let deadline = request.and_then(|request| self.deadlines.get(&request).copied());
            let (attempts, end) = (vec![], None);
            let (ended, provisional) = (false, false);
            let row = Row { request, deadline, end, attempts, status, ended, provisional };
            self.rows.insert(nonce, row);
        }
        self.wanted.remove(&nonce);
        self.accepted.extend(request);
        let row = self.rows.get_mut(&nonce).expect("just there");
        row.attempts.push(attempt.clone());
        row.status = TransactionStatus::Future;
        match fate {
            Fate::AnswerLost => self.promote(true),
            Fate::Well | Fate::NotDone | Fate::Refused | Fate::Lied => {
                self.feed(Input::Built { nonce, attempt });
            }
        }
    }

    fn submit(&mut self, nonce: u64, hash: Hash, fate: Fate) {
        let row = self.rows.get(&nonce).expect("nothing is sent before its row");
        assert!(row.attempts.iter().any(|a| a.hash == hash), "nothing is sent before its row");
        let next = self.mined(self.chain.len()).count() as u64;
        let outcome = match fate {
            Fate::NotDone => Outcome::Uncertain("cut before".into()),
            // A pool that had the bytes may want them no more.
            Fate::Refused if nonce.is_multiple_of(2) && self.signed[&hash].lived => {
                Outcome::Unwanted("banned".into())
            }
            Fate::Refused => Outcome::Refused("so it goes".into()),
            Fate::Lied => {
                if nonce >= next {
                    self.pooled(nonce, hash);
                }
                Outcome::Refused("so it seems".into())
            }
            Fate::Well | Fate::AnswerLost if nonce < next => Outcome::Outdated,
            Fate::Well | Fate::AnswerLost => self.pooled(nonce, hash),
        };
        let lost = matches!(fate, Fate::AnswerLost);
        if outcome == Outcome::Pooled && !lost {
            self.watches.insert((nonce, hash));
            let status = TransactionStatus::Ready;
            self.reports.push_back(Input::Status { nonce, hash, report: status.into() });
        }
        let outcome = if lost { Outcome::Uncertain("cut after".into()) } else { outcome };
        self.feed(Input::Submitted { nonce, hash, outcome });
    }

    fn pooled(&mut self, nonce: u64, hash: Hash) -> Outcome {
        if let Some(&other) = self.pool.get(&nonce) {
            if other == hash {
                return Outcome::AlreadyKnown;
            }
            if self.signed[&other].tip >= self.signed[&hash].tip {
                return Outcome::Underpriced(Shortfall::Outbid, "outbid".into());
            }
            let status = TransactionStatus::Usurped(Some(hash));
            self.say(other, status);
        }
        self.pool.insert(nonce, hash);
        self.signed.get_mut(&hash).expect("signed").lived = true;
        self.check();
        Outcome::Pooled
    }

    /// A watch, if there is one, has something to report.
    fn say(&mut self, hash: Hash, status: TransactionStatus) {
        let nonce = self.signed[&hash].nonce;
        if self.watches.contains(&(nonce, hash)) {
            if status.state().is_ended() {
                self.watches.remove(&(nonce, hash));
            }
            self.reports.push_back(Input::Status { nonce, hash, report: status.into() });
        }
    }

    fn locate(&mut self, nonce: u64, hashes: &[Hash], fate: Fate) {
        let located = self.find(nonce, hashes, fate);
        self.feed(Input::Located { nonce, located });
    }

    fn find(&self, nonce: u64, hashes: &[Hash], fate: Fate) -> Located {
        let head = self.head();
        let found = hashes.iter().find_map(|h| self.block_of(*h).map(|b| (*h, b)));
        match (fate, found) {
            (Fate::NotDone | Fate::AnswerLost, _) => Located::Unknown,
            (_, Some((hash, (block, finalized)))) => {
                Located::InBlock { hash, block, finalized, receipt: None }
            }
            (_, None) if nonce < head.finalized_nonce => Located::Usurped { by: None },
            (_, None) if nonce >= head.best_nonce => Located::Free,
            (_, None) => Located::Unknown,
        }
    }

    fn deliver(&mut self, index: usize, fate: Fate) {
        if self.effects.is_empty() {
            return;
        }
        let index = index % self.effects.len();
        match self.effects.remove(index) {
            Effect::Build { nonce, attempt, tip, noop } => {
                self.build(nonce, attempt, tip, noop, fate);
            }
            Effect::Submit { nonce, hash } => self.submit(nonce, hash, fate),
            Effect::Locate { nonce, hashes } => self.locate(nonce, &hashes, fate),
            Effect::Reexamine { nonce, request, hashes } => {
                let located = self.find(nonce, &hashes, fate);
                self.feed(Input::Reexamined { nonce, request, located });
            }
            Effect::Record { .. }
            | Effect::Free { .. }
            | Effect::Refuse { .. }
            | Effect::Settle { .. }
            | Effect::Correct { .. } => unreachable!("taken at once"),
        }
    }

    fn mine(&mut self, most: usize) {
        let mut nonce = self.mined(self.chain.len()).count() as u64;
        let mut block = vec![];
        while block.len() < most
            && let Some(hash) = self.pool.remove(&nonce)
        {
            block.push(hash);
            nonce += 1;
        }
        self.pool.retain(|n, _| *n >= nonce);
        self.serial += 1;
        self.chain.push((self.serial, block.clone()));
        let at = self.block(self.chain.len() - 1);
        for hash in block {
            self.say(hash, TransactionStatus::InBlock(at));
        }
    }

    fn finalize(&mut self, blocks: usize) {
        let upto = (self.finalized + blocks).min(self.chain.len());
        for index in self.finalized..upto {
            let at = self.block(index);
            for hash in self.chain[index].1.clone() {
                self.say(hash, TransactionStatus::Finalized(at));
            }
        }
        self.finalized = upto;
    }

    /// The last blocks are replaced by empty ones; some transactions return to the pool.
    fn reorg(&mut self, depth: usize) {
        let keep = self.chain.len().saturating_sub(depth).max(self.finalized);
        for index in keep..self.chain.len() {
            let at = self.block(index);
            for hash in self.chain[index].1.clone() {
                self.say(hash, TransactionStatus::Retracted(at));
                if index % 2 == 0 {
                    self.pool.entry(self.signed[&hash].nonce).or_insert(hash);
                }
            }
        }
        self.chain.truncate(keep);
    }

    fn send(&mut self, request: u32) {
        let id = request.to_string();
        self.feed(Input::Requested(Request {
            id,
            nonce: None,
            tip: 10,
            resignable: true,
            deadline: self.deadlines.get(&request).copied(),
        }));
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Send => {
                self.serial += 1;
                self.send(self.serial);
            }
            Action::SendDue(seconds) => {
                self.serial += 1;
                let due = self.now + Duration::from_secs(seconds);
                self.deadlines.insert(self.serial, due);
                self.send(self.serial);
            }
            Action::SendAgain(index) => {
                let open = self.rows.values().filter(|row| !row.ended);
                if let Some(request) = open.filter_map(|row| row.request).nth(index) {
                    let before = self.effects.len();
                    self.send(request);
                    assert_eq!(self.effects.len(), before, "one request, two nonces");
                }
            }
            Action::Deliver(index, fate) => self.deliver(index, fate),
            Action::Report(index) => {
                if !self.reports.is_empty() {
                    let index = index % self.reports.len();
                    let report = self.reports.remove(index).expect("in range");
                    self.feed(report);
                }
            }
            Action::LoseWatch(index) => {
                if let Some(&(nonce, hash)) = self.watches.iter().nth(index) {
                    self.watches.remove(&(nonce, hash));
                    self.reports.push_back(Input::WatchClosed { nonce, hash });
                }
            }
            Action::Mine(most) => self.mine(most),
            Action::Finalize(blocks) => self.finalize(blocks),
            Action::Reorg(depth) => self.reorg(depth),
            Action::LosePool => {
                for (_, hash) in std::mem::take(&mut self.pool) {
                    self.say(hash, TransactionStatus::Dropped);
                }
            }
            Action::EvictOne(index) => {
                if let Some(&nonce) = self.pool.keys().nth(index) {
                    let hash = self.pool.remove(&nonce).expect("just seen");
                    self.say(hash, TransactionStatus::Invalid(Some("evicted".into())));
                }
            }
            Action::Head => self.feed(Input::Head(self.head())),
            Action::Tick(seconds) => {
                self.now = self.now + Duration::from_secs(seconds);
                self.feed(Input::TimePassed);
            }
            Action::Cancel(nonce) => {
                if let Ok(effects) = self.engine.cancel(nonce) {
                    self.cancelled.insert(nonce);
                    self.take(effects);
                }
            }
            Action::Crash => {
                // A dead leader's watches die with it; its unread reports too.
                self.reports.clear();
                self.watches.clear();
                self.promote(false);
            }
            Action::Resync => self.promote(true),
        }
    }

    /// What must hold at every moment.
    fn check(&self) {
        if self.lied {
            return;
        }
        let mut contents: BTreeMap<u64, BTreeSet<Content>> = BTreeMap::new();
        let mut nonces: BTreeMap<u32, BTreeSet<u64>> = BTreeMap::new();
        for tx in self.signed.values().filter(|tx| tx.lived) {
            if let Content::Request(request) = tx.content {
                contents.entry(tx.nonce).or_default().insert(tx.content);
                nonces.entry(request).or_default().insert(tx.nonce);
            }
        }
        for (nonce, contents) in contents {
            assert!(contents.len() <= 1, "nonce {nonce} carried {contents:?}");
        }
        for (request, nonces) in nonces {
            assert!(nonces.len() <= 1, "request {request} lived under {nonces:?}");
        }
    }

    /// The world calms down: everything works from now on.
    fn settle(&mut self) {
        for _ in 0..400 {
            let past = self.past.values().map(|(nonce, row)| (nonce, row));
            let mut doubtful = self.rows.iter().chain(past).filter(|(_, row)| row.provisional);
            let used = self.head().finalized_nonce;
            let proved = !doubtful.any(|(nonce, _)| *nonce < used);
            if self.rows.values().all(|row| row.ended) && self.engine.open() == 0 && proved {
                return;
            }
            self.now = self.now + Duration::from_secs(7);
            self.feed(Input::TimePassed);
            for _ in 0..200 {
                if self.effects.is_empty() && self.reports.is_empty() {
                    break;
                }
                self.deliver(0, Fate::Well);
                if let Some(report) = self.reports.pop_front() {
                    self.feed(report);
                }
            }
            self.mine(100);
            self.finalize(usize::MAX / 2);
            self.feed(Input::Head(self.head()));
        }
        let open: Vec<_> = self.rows.iter().filter(|(_, row)| !row.ended).collect();
        panic!("never settled: {open:?}\nengine: {:?}", self.engine);
    }

    /// Whatever nodes said: every request that was told to be in a block is, and no other.
    fn every_end_is_true(&self) {
        let mined = |row: &Row| {
            let mine = |hash: &Hash| row.attempts.iter().any(|a| a.hash == *hash && !a.noop);
            self.mined(self.finalized).filter(mine).count()
        };
        let past = self.past.values().map(|(_, row)| row);
        for row in self.rows.values().chain(past).filter(|row| row.request.is_some()) {
            let end = row.end.as_ref().expect("every row has ended").kind;
            let told = matches!(end, EndKind::Executed | EndKind::Included | EndKind::Reverted);
            assert_eq!(usize::from(told), mined(row), "ended as {end}: {row:?}");
        }
    }

    fn verdict(&self) {
        let mut mined: BTreeMap<u32, u32> = BTreeMap::new();
        for (position, hash) in self.mined(self.finalized).enumerate() {
            let tx = &self.signed[&hash];
            assert_eq!(tx.nonce, position as u64, "nonces are contiguous");
            if let Content::Request(request) = tx.content {
                *mined.entry(request).or_default() += 1;
            }
        }
        for request in &self.accepted {
            let count = mined.get(request).copied().unwrap_or(0);
            assert!(count <= 1, "request {request} executed {count} times");
            let fate = self.rows.iter().find(|(_, row)| row.request == Some(*request));
            // Not executed: only because no node ever had it, or by order; and the row says so.
            if count == 0
                && let Some((nonce, row)) = fate
            {
                let ordered =
                    self.cancelled.contains(nonce) || self.deadlines.contains_key(request);
                let lived = |hash: &Hash| self.signed[hash].lived;
                let never = !row.attempts.iter().any(|a| !a.noop && lived(&a.hash));
                assert!(never || ordered, "request {request} was lost at nonce {nonce}: {row:?}");
            }
            if let Some((_, row)) = fate {
                let end = row.end.as_ref().expect("every row has ended").kind;
                let told = matches!(end, EndKind::Executed | EndKind::Included | EndKind::Reverted);
                assert_eq!(told, count == 1, "request {request} ended as {end}: {row:?}");
            }
        }
        for (nonce, row) in &self.rows {
            if row.status.state() == State::Finalized {
                let winner = row.attempts.last().expect("never empty").hash;
                let mined = self.mined(self.finalized).nth(*nonce as usize);
                assert_eq!(mined, Some(winner), "the row names the transaction that was mined");
            }
        }
    }
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![
        6 => Just(Fate::Well),
        1 => Just(Fate::AnswerLost),
        1 => Just(Fate::NotDone),
        1 => Just(Fate::Refused),
    ]
}

fn lying_fate() -> impl Strategy<Value = Fate> {
    prop_oneof![3 => fate(), 2 => Just(Fate::Lied)]
}

fn action(fate: impl Strategy<Value = Fate> + 'static) -> impl Strategy<Value = Action> {
    prop_oneof![
        8 => Just(Action::Send),
        1 => (0u64..40).prop_map(Action::SendDue),
        1 => (0usize..8).prop_map(Action::SendAgain),
        20 => (0usize..8, fate).prop_map(|(i, f)| Action::Deliver(i, f)),
        8 => (0usize..8).prop_map(Action::Report),
        1 => (0usize..4).prop_map(Action::LoseWatch),
        5 => (0usize..4).prop_map(Action::Mine),
        3 => (0usize..3).prop_map(Action::Finalize),
        2 => (1usize..4).prop_map(Action::Reorg),
        1 => Just(Action::LosePool),
        1 => (0usize..4).prop_map(Action::EvictOne),
        4 => Just(Action::Head),
        6 => (0u64..15).prop_map(Action::Tick),
        1 => (0u64..20).prop_map(Action::Cancel),
        1 => Just(Action::Crash),
        1 => Just(Action::Resync),
    ]
}

proptest! {

    #[test]
    fn every_accepted_request_is_mined_exactly_once_whatever_happens(
        actions in proptest::collection::vec(action(fate()), 1..160)
    ) {
        let mut world = World::new();
        for action in actions {
            world.act(action);
            world.check();
        }
        world.settle();
        world.verdict();
        world.every_end_is_true();
    }

    #[test]
    fn every_end_comes_true_also_where_nodes_lie(
        actions in proptest::collection::vec(action(lying_fate()), 1..160)
    ) {
        let mut world = World::new();
        world.lied = true;
        for action in actions {
            world.act(action);
        }
        world.settle();
        world.every_end_is_true();
    }
}
