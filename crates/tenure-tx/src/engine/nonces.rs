//! Which nonce comes next, and which were left out.

use std::time::Duration;

use tenure_core::clock::Tick;

use super::entry::Entry;
use super::{Effect, EngineConfig, Leading, Permit};
use crate::chain::Head;
use crate::status::State;

/// How many gaps are looked at in one go: a row with an absurd nonce must not make us count to it.
const GAPS_AT_ONCE: usize = 64;

/// How far above the next nonce a caller's own nonce may be. Each nonce in between costs a no-op.
const MAX_AHEAD: u64 = 1_024;

/// The widest gap that is filled without an order: no wider than a caller's own nonce may open. What is
/// wider comes of a node that was wrong, and each nonce of it would cost a no-op.
const WIDEST: usize = 1_024;

/// A nonce was not given.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the names say it")]
pub enum NonceError {
    /// This node does not lead, or stopped leading before the nonce was given.
    #[error("this node does not lead; send through the leader")]
    NotLeading,
    /// As many transactions are open as [`EngineConfig::max_open`] allows.
    #[error("{0} transactions are open already; retry when some have ended, or raise max_open")]
    TooManyOpen(usize),
    /// The chain is past this nonce.
    #[error(
        "nonce {nonce} is below the account's next nonce {next}; sign again with a current one"
    )]
    BelowChain { nonce: u64, next: u64 },
    /// Another transaction has this nonce.
    #[error("nonce {0} carries another open transaction; sign again with a free one")]
    Taken(u64),
    /// It is more than 1,024 above the next free nonce: each nonce in between could cost a no-op.
    #[error(
        "nonce {nonce} is too far above the next free nonce {next}; sign again with a nearer one"
    )]
    TooFarAhead { nonce: u64, next: u64 },
    /// The request has a nonce already.
    #[error("this request has nonce {0} already; look it up by its id")]
    Given(u64),
    /// Nothing open is at this nonce.
    #[error("nonce {0} has no open transaction and is not a gap; see `tx gaps` and `tx list`")]
    NotOpen(u64),
}

impl Leading {
    pub(super) fn insert(&mut self, nonce: u64, entry: Entry) {
        if let Some(request) = &entry.request {
            self.requests.insert(request.clone(), nonce);
        }
        self.entries.insert(nonce, entry);
    }

    /// Forgets a nonce and its request; returns what was there.
    pub(super) fn remove(&mut self, nonce: u64) -> Option<Entry> {
        let entry = self.entries.remove(&nonce)?;
        if let Some(request) = &entry.request {
            self.requests.remove(request);
        }
        Some(entry)
    }

    /// The lowest nonce a new transaction could have: below it the chain or a pool has one. A pool that
    /// claims to be absurdly far ahead is not believed: each nonce in between would cost a no-op.
    fn floor(&self) -> u64 {
        let mined = self.consumed.max(self.head.best_nonce);
        let highest = self.entries.last_key_value().map_or(0, |(nonce, _)| nonce + 1);
        let believed = mined.max(highest).saturating_add(MAX_AHEAD);
        mined.max(Some(self.head.pool_nonce).filter(|pool| *pool <= believed).unwrap_or(0))
    }

    fn above_all(&self) -> u64 {
        let highest = self.entries.last_key_value().map_or(0, |(n, _)| n + 1);
        self.floor().max(highest)
    }

    pub(super) fn next_nonce(&self) -> u64 {
        let gap = self.gaps(1);
        gap.first().copied().unwrap_or_else(|| self.above_all())
    }

    pub(super) fn check_exact(&self, nonce: u64) -> Result<u64, NonceError> {
        let next = self.consumed.max(self.head.best_nonce);
        if nonce < next {
            return Err(NonceError::BelowChain { nonce, next });
        }
        if self.entries.contains_key(&nonce) {
            return Err(NonceError::Taken(nonce));
        }
        let next = self.above_all();
        if nonce > next.saturating_add(MAX_AHEAD) {
            return Err(NonceError::TooFarAhead { nonce, next });
        }
        Ok(nonce)
    }

    pub(super) fn gaps(&self, limit: usize) -> Vec<u64> {
        let mut gaps = Vec::new();
        let mut next = self.floor();
        // The common case, without a walk: the entries are one unbroken run that covers the floor.
        if let (Some((first, _)), Some((last, _))) =
            (self.entries.first_key_value(), self.entries.last_key_value())
            && *first <= next
            && usize::try_from(last - first).is_ok_and(|span| span + 1 == self.entries.len())
        {
            return gaps;
        }
        for &nonce in self.entries.range(next..).map(|(n, _)| n) {
            while next < nonce && gaps.len() < limit {
                gaps.push(next);
                next += 1;
            }
            next = nonce + 1;
            if gaps.len() >= limit {
                break;
            }
        }
        gaps
    }

    pub(super) fn is_gap(&self, nonce: u64) -> bool {
        nonce >= self.floor() && nonce < self.above_all() && !self.entries.contains_key(&nonce)
    }

    pub(super) fn is_wide(&self) -> bool {
        self.gaps(WIDEST + 1).len() > WIDEST
    }

    /// Whether a head is further ahead of all that is known than any pool is believed to be.
    pub(super) fn is_leap(&self, head: &Head) -> bool {
        head.best_nonce.max(head.finalized_nonce) > self.above_all().saturating_add(MAX_AHEAD)
    }

    /// Remembers since when the lowest nonce in no block is the lowest.
    pub(super) fn age_lowest(&mut self, now: Tick) {
        let mut open = self.entries.range(self.head.best_nonce.max(self.consumed)..);
        let lowest = open.find(|(_, entry)| entry.status.state() != State::InBlock);
        let lowest = lowest.map(|(nonce, _)| *nonce);
        if self.lowest.map(|(nonce, _)| nonce) != lowest {
            self.lowest = lowest.map(|nonce| (nonce, now));
        }
    }

    /// Asks again about some of those whose time has come: looks by their time, and submissions by
    /// their nonce, for the lower ones make room for the others.
    pub(super) fn repeat(
        &mut self,
        mut repeated: Vec<(bool, Tick, u64)>,
        now: Tick,
        config: &EngineConfig,
        out: &mut Vec<Effect>,
    ) {
        repeated.sort_unstable_by_key(|(look, until, nonce)| (look.then_some(*until), *nonce));
        let (mut sends, mut looks) = (true, true);
        for (look, _, nonce) in repeated {
            // Each costs a handful of calls: a look may have to search the past.
            let (pace, every, open) = match look {
                true => (&mut self.looks, config.retry * 4, &mut looks),
                false => (&mut self.sends, config.retry * 2, &mut sends),
            };
            *open = *open && pace.take(now, every);
            if !*open {
                continue;
            }
            if let Some(entry) = self.entries.get_mut(&nonce) {
                entry.examine(nonce, &self.head, now, config, out);
            }
        }
    }

    /// Remembers when each gap was first seen and forgets those that closed.
    pub(super) fn age_gaps(&mut self, now: Tick) {
        let open = self.gaps(GAPS_AT_ONCE);
        self.gaps.retain(|gap, _| open.binary_search(gap).is_ok());
        for gap in open {
            self.gaps.entry(gap).or_insert(now);
        }
    }

    pub(super) fn gaps_older_than(&self, now: Tick, age: Duration) -> Vec<u64> {
        let old = |(&gap, &since): (&u64, &Tick)| (now >= since + age).then_some(gap);
        self.gaps.iter().filter_map(old).collect()
    }

    /// Asks about provisional ends whose nonce is final.
    pub(super) fn ask_doubts(&mut self, now: Tick, out: &mut Vec<Effect>) {
        let (entries, below) = (&self.entries, self.head.finalized_nonce);
        self.doubts.ask(below, now, |nonce| entries.contains_key(&nonce), out);
    }

    /// Puts a no-op at a free nonce.
    pub(super) fn fill(&mut self, nonce: u64, config: &EngineConfig, out: &mut Vec<Effect>) {
        self.gaps.remove(&nonce);
        // What recent blocks were tipped: a pool takes no less.
        let tip = config.filler_tip.max(self.head.tip.min(config.max_tip));
        self.insert(nonce, Entry::filler(tip));
        out.push(Effect::Build { nonce, attempt: 1, tip, noop: Some(Permit::Gap) });
    }
}
