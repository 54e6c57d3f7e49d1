//! What keeps an account waiting, and how far a head is believed.

use std::time::Duration;

use tenure_core::clock::Tick;

use super::entry::{Entry, Hold, Phase};
use super::{Engine, Leading};
use crate::chain::Head;
use crate::status::State;

/// After so many heads in a row that are far ahead of all that is known, they are believed.
pub(super) const LEAPS: u8 = 3;

/// What keeps an account waiting.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Holds {
    /// Nonces whose last answer says nothing for certain.
    pub uncertain: usize,
    /// The lowest of them.
    pub lowest_uncertain: Option<u64>,
    /// Nonces that the account cannot pay for, as a node said, and no pool took since.
    pub unfunded: usize,
    /// The lowest of them.
    pub lowest_unfunded: Option<u64>,
    /// The next block asks for more than the account pays.
    pub above_cap: bool,
    /// The lowest nonce that a cap keeps from offering what the next block asks for, or from being signed.
    pub lowest_capped: Option<u64>,
    /// The lowest nonce of a gap that is too wide to be filled without an order.
    pub wide_gap: Option<u64>,
}

impl Engine {
    /// What keeps nonces from the pool.
    #[must_use]
    pub fn holds(&self) -> Holds {
        let Some(leading) = &self.leading else { return Holds::default() };
        let (entries, head, config) = (&leading.entries, &leading.head, &self.config);
        let count = |is: &dyn Fn(&Entry) -> bool| entries.values().filter(|e| is(e)).count();
        let lowest = |is: &dyn Fn(&Entry) -> bool| {
            entries.iter().find(|(_, entry)| is(entry)).map(|(nonce, _)| *nonce)
        };
        let capped = lowest(&|entry| entry.too_dear || entry.is_capped(head, config));
        Holds {
            uncertain: count(&|entry| entry.hold == Some(Hold::Uncertain)),
            lowest_uncertain: lowest(&|entry| entry.hold == Some(Hold::Uncertain)),
            unfunded: count(&|entry| entry.unpaid),
            lowest_unfunded: lowest(&|entry| entry.unpaid),
            above_cap: capped.is_some() || (!entries.is_empty() && head.is_above_cap()),
            lowest_capped: capped,
            wide_gap: leading.gaps(1).first().copied().filter(|_| leading.wide),
        }
    }

    /// The lowest nonce that is in no block, and for how long it has been the lowest. All others wait
    /// for it.
    #[must_use]
    pub fn lowest_open(&self, now: Tick) -> Option<(u64, Duration)> {
        let (nonce, since) = self.leading.as_ref()?.lowest?;
        Some((nonce, now.saturating_since(since)))
    }

    /// Whether a head claims so many more nonces than are known that it is not believed yet: an address
    /// that for a moment leads to another network would make the next request wait for ever.
    #[must_use]
    pub fn disbelieves(&self, head: &Head) -> bool {
        let leading = self.leading.as_ref();
        leading.is_some_and(|leading| leading.is_leap(head) && leading.leaps + 1 < LEAPS)
    }
}

impl Leading {
    /// Nothing waits any more for a nonce that the account could not pay for. If it is `funded` now, what
    /// nodes said of others before proves nothing.
    pub(super) fn resume(&mut self, now: Tick, funded: bool) {
        self.paused = None;
        let open = self.entries.values_mut();
        for entry in open.filter(|entry| entry.status.state() != State::InBlock) {
            if funded && entry.hold == Some(Hold::Unfunded) {
                (entry.hold, entry.unpaid) = (None, false);
            }
            if let Phase::Waiting { until } = &mut entry.phase {
                *until = now.min(*until);
            }
        }
    }
}
