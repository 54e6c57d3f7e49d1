//! The arithmetic of the lease: pure, so that it can be read and tested on its own.
//!
//! Leader:   `acting until = (the instant a majority of every voter set has echoed) + lease`
//! Follower: `still until  = (arrival of the append) + lease + margin`
//!
//! An append arrives after it was sent, and the margin covers the rates of the clocks, so at least
//! one voter of any majority keeps still until the leader's gate is shut.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::commit::Members;
use crate::identity::PeerId;
use tenure_core::Tick;

/// The leader's side: what the voters have echoed in this term.
#[derive(Debug, Clone, Default)]
pub(super) struct Echoes(BTreeMap<PeerId, Tick>);

impl Echoes {
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// `peer` echoed the beat that was sent at `beat`. Echoes arrive in any order.
    pub(super) fn record(&mut self, peer: PeerId, beat: Tick, now: Tick) {
        // An echo of the future is a lie or a mix-up; it must not lengthen anything.
        if beat <= now {
            let latest = self.0.entry(peer).or_default();
            *latest = beat.max(*latest);
        }
    }

    /// When the last beat that `peer` echoed was sent.
    pub(super) fn last(&self, peer: &PeerId) -> Option<Tick> {
        self.0.get(peer).copied()
    }

    /// Until when the leader `me` may act, if a majority has echoed anything at all.
    pub(super) fn acting_until(
        &self,
        me: PeerId,
        members: &Members,
        lease: Duration,
        now: Tick,
    ) -> Option<Tick> {
        let old = self.majority(me, &members.voters, now)?;
        let new =
            if members.next.is_empty() { old } else { self.majority(me, &members.next, now)? };
        Some(old.min(new) + lease)
    }

    /// The latest instant that a majority of `voters` has echoed.
    fn majority(&self, me: PeerId, voters: &BTreeSet<PeerId>, now: Tick) -> Option<Tick> {
        let mut beats: Vec<Tick> = voters
            .iter()
            .filter_map(|v| if *v == me { Some(now) } else { self.0.get(v).copied() })
            .collect();
        beats.sort_unstable_by(|a, b| b.cmp(a));
        beats.get(voters.len() / 2).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u8) -> PeerId {
        PeerId([n; 32])
    }

    fn voters(n: std::ops::RangeInclusive<u8>) -> BTreeSet<PeerId> {
        n.map(id).collect()
    }

    const LEASE: Duration = Duration::from_millis(1_000);

    fn at(ms: u64) -> Tick {
        Tick::ZERO + Duration::from_millis(ms)
    }

    #[test]
    fn a_minority_of_echoes_gives_no_lease() {
        let members = Members { voters: voters(1..=5), ..Members::default() };
        let mut e = Echoes::default();
        e.record(id(2), at(10), at(20));
        assert_eq!(e.acting_until(id(1), &members, LEASE, at(20)), None);
        e.record(id(3), at(12), at(20));
        assert_eq!(e.acting_until(id(1), &members, LEASE, at(20)), Some(at(1_010)));
    }

    #[test]
    fn the_lease_counts_from_the_sending_not_from_the_echo() {
        let members = Members { voters: voters(1..=3), ..Members::default() };
        let mut e = Echoes::default();
        e.record(id(2), at(100), at(900));
        assert_eq!(e.acting_until(id(1), &members, LEASE, at(900)), Some(at(1_100)));
    }

    #[test]
    fn an_echo_of_the_future_or_an_old_one_lengthens_nothing() {
        let members = Members { voters: voters(1..=3), ..Members::default() };
        let mut e = Echoes::default();
        e.record(id(2), at(100), at(150));
        e.record(id(2), at(50), at(160));
        e.record(id(3), at(9_000), at(170));
        assert_eq!(e.acting_until(id(1), &members, LEASE, at(170)), Some(at(1_100)));
    }

    #[test]
    fn during_a_change_both_majorities_are_needed() {
        let members = Members { voters: voters(1..=3), next: voters(3..=7), ..Members::default() };
        let mut e = Echoes::default();
        e.record(id(2), at(10), at(20));
        assert_eq!(e.acting_until(id(1), &members, LEASE, at(20)), None);
        for n in [3, 4, 5] {
            e.record(id(n), at(5), at(20));
        }
        assert_eq!(e.acting_until(id(1), &members, LEASE, at(20)), Some(at(1_005)));
    }

    #[test]
    fn a_single_voter_needs_no_other() {
        let members = Members { voters: voters(1..=1), ..Members::default() };
        let e = Echoes::default();
        assert_eq!(e.acting_until(id(1), &members, LEASE, at(7)), Some(at(1_007)));
    }
}
