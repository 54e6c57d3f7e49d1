//! The fencing token of a role.

use std::fmt;

/// The fencing token of one acquisition of a role: strictly increasing, never reissued.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(transparent))]
pub struct Epoch(pub i64);

/// How far epochs jump when the database changed its timeline.
///
/// A promoted standby may have missed the last bumps. Nobody can tell how many, but no timeline
/// ever issues 2^40 of them (a bump every microsecond for twelve days), so the first multiple of
/// 2^40 above everything known is above everything lost. There is room for 2^23 such changes.
pub const GENERATION: i64 = 1 << 40;

impl Epoch {
    /// The epoch of a role that nobody ever held.
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
/// With `timeline_changed` (the system identifier or timeline is not the one stored at the last
/// bump) it is the next multiple of [`GENERATION`].
///
/// At the very end of `i64` it stays there. A claim requires its epoch to be strictly above the
/// row's, so such a role can no longer be claimed: it fails closed.
pub fn next_epoch(row: Epoch, seen: Epoch, timeline_changed: bool) -> Epoch {
    let known = row.0.max(seen.0).max(0);
    if timeline_changed {
        Epoch((known / GENERATION + 1).checked_mul(GENERATION).unwrap_or(i64::MAX))
    } else {
        Epoch(known.saturating_add(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ROOM: i64 = i64::MAX - 2 * GENERATION;

    proptest! {
        #[test]
        fn next_epoch_is_above_everything_known(row in i64::MIN..ROOM, seen in i64::MIN..ROOM, changed: bool) {
            let next = next_epoch(Epoch(row), Epoch(seen), changed);
            prop_assert!(next > Epoch(row) && next > Epoch(seen) && next > Epoch::ZERO);
        }

        #[test]
        fn bumps_lost_in_a_failover_are_never_reissued(row in 0..ROOM, lost in 1..GENERATION) {
            // The old timeline went on to `row + lost`, within its generation; the survivor
            // remembers only `row`.
            let ceiling = (row / GENERATION + 1) * GENERATION - 1;
            let issued = (row + lost).min(ceiling);
            prop_assert!(next_epoch(Epoch(row), Epoch::ZERO, true) > Epoch(issued));
        }

        #[test]
        fn an_epoch_without_failover_is_dense(row in 0..ROOM) {
            prop_assert_eq!(next_epoch(Epoch(row), Epoch::ZERO, false), Epoch(row + 1));
        }
    }

    #[test]
    fn a_changed_timeline_starts_a_generation() {
        assert_eq!(next_epoch(Epoch(0), Epoch(0), true), Epoch(GENERATION));
        assert_eq!(next_epoch(Epoch(41), Epoch(7), true), Epoch(GENERATION));
        assert_eq!(next_epoch(Epoch(GENERATION), Epoch(0), true), Epoch(2 * GENERATION));
        assert_eq!(next_epoch(Epoch(GENERATION), Epoch(0), false), Epoch(GENERATION + 1));
    }

    #[test]
    fn the_end_of_the_range_fails_closed() {
        assert_eq!(next_epoch(Epoch(i64::MAX), Epoch(0), false), Epoch(i64::MAX));
        assert_eq!(next_epoch(Epoch(i64::MAX), Epoch(0), true), Epoch(i64::MAX));
    }
}
