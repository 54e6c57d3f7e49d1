//! The specification's own bugs, to be switched on by tests that show the simulator catches them.
//!
//! Outside tests and the feature `bugs` the switches are constant and cost nothing.

/// One mistake, put back in on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// A goal that times out advances the index without its diff.
    SkipOnTimeout,
    /// Ties are broken by a coin.
    RandomTie,
    /// A relay renews the leader's time stamp.
    RelayedStamps,
    /// Votes of neighbours long silent still count.
    StaleNeighbours,
    /// A vote is given although the leader's lease is not over.
    VoteWithinLease,
    /// A message leaves before what it promises is on disk.
    SendBeforePersist,
    /// A goal is executed again although its number is in the history.
    ForgetTransactions,
    /// The gate follows the gossip hint instead of the committed leader.
    GateOnHint,
}

impl Bug {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::SkipOnTimeout,
        Self::RandomTie,
        Self::RelayedStamps,
        Self::StaleNeighbours,
        Self::VoteWithinLease,
        Self::SendBeforePersist,
        Self::ForgetTransactions,
        Self::GateOnHint,
    ];
}

/// A set of bugs: empty unless a test says otherwise.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Bugs(#[cfg(any(test, feature = "bugs"))] u16);

impl Bugs {
    /// Just this one.
    #[cfg(any(test, feature = "bugs"))]
    pub const fn only(bug: Bug) -> Self {
        Self(1 << bug as u16)
    }

    /// Whether `bug` is switched on.
    #[cfg(any(test, feature = "bugs"))]
    pub(crate) const fn has(self, bug: Bug) -> bool {
        self.0 & (1 << bug as u16) != 0
    }

    #[cfg(not(any(test, feature = "bugs")))]
    pub(crate) const fn has(self, _: Bug) -> bool {
        false
    }
}
