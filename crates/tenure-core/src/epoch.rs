//! The fencing token of a role.

use std::fmt;

/// The fencing token of one acquisition of a role: strictly increasing, never reissued.
#[derive(
    Copy,
    Clone,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Default,
    serde::Serialize,
    serde::Deserialize,
)]
#[serde(transparent)]
pub struct Epoch(pub i64);

/// How far epochs jump when the database changed its timeline.
///
/// A promoted standby may have missed the last bumps. How many is unknown, but no timeline
/// ever issues 2^40 of them (a bump every microsecond for twelve days), so a multiple of 2^40 that
/// belongs to the new timeline alone is above everything lost. There is room for 2^23 timelines.
pub const GENERATION: i64 = 1 << 40;

impl Epoch {
    /// The epoch of a role that no member ever held.
    pub const ZERO: Epoch = Epoch(0);

    /// The number that the database stores.
    pub const fn get(self) -> i64 {
        self.0
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<i64> for Epoch {
    fn from(n: i64) -> Self {
        Epoch(n)
    }
}

impl From<Epoch> for i64 {
    fn from(epoch: Epoch) -> Self {
        epoch.0
    }
}

/// The epoch of the next acquisition: strictly above the row's and above every one this member
/// ever saw.
///
/// With `moved_to` (the system identifier or timeline is not the one stored at the last bump; this
/// is the timeline's number) it begins a new [`GENERATION`]: the next one, and at least the timeline's
/// own. The next one alone would not do: a second failover may lose the first bump after the first.
///
/// At the very end of `i64` it stays there. A claim requires its epoch to be strictly above the
/// row's, so such a role can no longer be claimed: it fails closed.
pub fn next_epoch(row: Epoch, seen: Epoch, moved_to: Option<u32>) -> Epoch {
    let known = row.0.max(seen.0).max(0);
    match moved_to {
        Some(timeline) => {
            let generation = (known / GENERATION + 1).max(i64::from(timeline));
            Epoch(generation.checked_mul(GENERATION).unwrap_or(i64::MAX))
        }
        None => Epoch(known.saturating_add(1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ROOM: i64 = i64::MAX - 2 * GENERATION;

    proptest! {
        #[test]
        fn next_epoch_is_above_everything_known(row in i64::MIN..ROOM, seen in i64::MIN..ROOM, to in proptest::option::of(1..1000_u32)) {
            let next = next_epoch(Epoch(row), Epoch(seen), to);
            prop_assert!(next > Epoch(row) && next > Epoch(seen) && next > Epoch::ZERO);
        }

        #[test]
        fn bumps_lost_in_a_failover_are_never_reissued(row in 0..ROOM, lost in 1..GENERATION) {
            // The old timeline went on to `row + lost`, within its generation; the survivor
            // remembers only `row`.
            let ceiling = (row / GENERATION + 1) * GENERATION - 1;
            let issued = (row + lost).min(ceiling);
            prop_assert!(next_epoch(Epoch(row), Epoch::ZERO, Some(2)) > Epoch(issued));
        }

        #[test]
        fn a_second_failover_that_lost_the_first_bump_after_the_first_reissues_nothing(
            row in 0..1000_i64, timeline in 2..1000_u32, later in 1..5_u32, bumps in 0..1000_i64,
        ) {
            let lost = Epoch(next_epoch(Epoch(row), Epoch::ZERO, Some(timeline)).0 + bumps);
            prop_assert!(next_epoch(Epoch(row), Epoch::ZERO, Some(timeline + later)) > lost);
        }

        #[test]
        fn an_epoch_without_failover_is_dense(row in 0..ROOM) {
            prop_assert_eq!(next_epoch(Epoch(row), Epoch::ZERO, None), Epoch(row + 1));
        }
    }

    #[test]
    fn a_changed_timeline_starts_a_generation() {
        assert_eq!(next_epoch(Epoch(0), Epoch(0), Some(2)), Epoch(2 * GENERATION));
        assert_eq!(next_epoch(Epoch(41), Epoch(7), Some(3)), Epoch(3 * GENERATION));
        assert_eq!(next_epoch(Epoch(2 * GENERATION), Epoch(0), Some(1)), Epoch(3 * GENERATION));
        assert_eq!(next_epoch(Epoch(GENERATION), Epoch(0), None), Epoch(GENERATION + 1));
    }

    #[test]
    fn the_end_of_the_range_fails_closed() {
        assert_eq!(next_epoch(Epoch(i64::MAX), Epoch(0), None), Epoch(i64::MAX));
        assert_eq!(next_epoch(Epoch(i64::MAX), Epoch(0), Some(2)), Epoch(i64::MAX));
    }
}
