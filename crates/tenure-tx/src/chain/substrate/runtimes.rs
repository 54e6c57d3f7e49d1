//! The runtimes that were read, and which of them is the chain's present one.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::clock::Tick;

use super::metadata::{Runtime, RuntimeError, Version};
use crate::chain::Block;
use crate::status::Hash;

/// How many runtimes are kept beside the present one: those that open extrinsics may be of.
const RUNTIMES: usize = 4;

/// A chain that was reset, or whose node was wrong once, may never reach the newer runtime again. A node behind
/// a balancer that is behind by more is of little use.
const GIVES_IN: Duration = Duration::from_secs(60);

/// What tells a runtime from another. Its version alone would not: an override of the code, or an upgrade
/// without checks, may keep it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) version: Version,
    /// The hash of its code, if the node says it.
    pub(super) code: Option<Hash>,
}

pub(super) type Reading = Result<Arc<Runtime>, RuntimeError>;

/// What was read of the chain's runtimes.
#[derive(Default)]
pub(super) struct Runtimes {
    /// Those that were read or cannot be, the highest version first: a receipt of an old block may have
    /// read an old one last.
    known: Vec<(Mark, Reading)>,
    present: Option<Present>,
}

/// The best block, and the runtime of its state.
struct Present {
    block: Block,
    reading: Reading,
    /// Since when every look has found an older runtime, at a block that is not higher.
    older_since: Option<Tick>,
}

impl Runtimes {
    pub(super) fn find(&self, mark: Mark) -> Option<Reading> {
        self.known.iter().find(|(known, _)| *known == mark).map(|(_, reading)| reading.clone())
    }

    pub(super) fn keep(&mut self, mark: Mark, reading: Reading) {
        // Of two with one version, the one that was read last comes first.
        self.known.insert(0, (mark, reading));
        self.known.sort_by_key(|(mark, _)| std::cmp::Reverse(mark.version.spec));
        self.known.truncate(RUNTIMES);
    }

    /// Takes in a look at a best block. One that is not higher and has an older runtime is most often of a node
    /// that is behind, or a look that took longer than the one after it: the newer runtime stays the present
    /// one, until a higher block has the older one, or nothing else was seen for [`GIVES_IN`].
    pub(super) fn look(&mut self, block: Block, reading: Reading, now: Tick) {
        if let Some(present) = &mut self.present
            && block.number <= present.block.number
            && let (Ok(seen), Ok(known)) = (&reading, &present.reading)
            && seen.version.spec < known.version.spec
            && now < *present.older_since.get_or_insert(now) + GIVES_IN
        {
            return;
        }
        self.present = Some(Present { block, reading, older_since: None });
    }

    /// The runtime of a block, if it is the one that was looked at last.
    pub(super) fn seen_at(&self, block: Hash) -> Option<Reading> {
        let seen = self.present.as_ref().filter(|seen| seen.block.hash == block);
        seen.map(|seen| seen.reading.clone())
    }

    /// The present one first: under another one its bytes may read well and mean something else. None, where
    /// the present one cannot be read.
    pub(super) fn in_order(&self) -> Vec<Arc<Runtime>> {
        let first = match &self.present {
            Some(Present { reading: Ok(present), .. }) => Some(present),
            Some(Present { reading: Err(_), .. }) => return Vec::new(),
            None => None,
        };
        let known = self.known.iter().filter_map(|(_, reading)| reading.as_ref().ok());
        let others = known.filter(|one| first.is_none_or(|first| !Arc::ptr_eq(first, one)));
        first.into_iter().chain(others).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use tenure_testkit::substrate::storagehub_parachain;

    use super::*;

    fn reading(spec: u32) -> Reading {
        let version = Version { spec, transaction: 1 };
        Ok(Arc::new(Runtime::read(&storagehub_parachain(), version, Hash([1; 32]))?))
    }

    fn block(number: u64, fork: u8) -> Block {
        Block { number, hash: Hash([fork; 32]) }
    }

    fn at(seconds: u64) -> Tick {
        Tick::ZERO + Duration::from_secs(seconds)
    }

    fn spec(runtimes: &Runtimes) -> u32 {
        runtimes.in_order()[0].version.spec
    }

    #[test]
    fn a_node_that_is_behind_does_not_bring_the_older_runtime_back() {
        let (mut runtimes, old, new) = (Runtimes::default(), reading(7), reading(8));
        runtimes.look(block(10, 1), old.clone(), at(0));
        assert_eq!(spec(&runtimes), 7);
        runtimes.look(block(12, 2), new.clone(), at(1));
        assert_eq!(spec(&runtimes), 8, "an upgrade");
        // Two nodes behind one address, for an hour: one of them is always behind.
        for second in 2..3_600 {
            runtimes.look(block(11, 3), old.clone(), at(second));
            assert_eq!(spec(&runtimes), 8, "after {second} s");
            if second % 50 == 0 {
                runtimes.look(block(12, 2), new.clone(), at(second));
            }
        }
        assert!(runtimes.seen_at(Hash([2; 32])).is_some());
        assert!(runtimes.seen_at(Hash([3; 32])).is_none(), "that one was not taken in");
    }

    #[test]
    fn the_chain_itself_may_go_back() {
        let (mut runtimes, old, new) = (Runtimes::default(), reading(7), reading(8));
        runtimes.look(block(12, 2), new.clone(), at(0));
        // A fork without the upgrade: not while it is no longer, then at once.
        runtimes.look(block(12, 3), old.clone(), at(1));
        assert_eq!(spec(&runtimes), 8);
        runtimes.look(block(13, 4), old.clone(), at(2));
        assert_eq!(spec(&runtimes), 7);
        // A chain that was reset, below the block that was seen: after a minute.
        runtimes.look(block(20, 5), new, at(3));
        runtimes.look(block(1, 6), old.clone(), at(10));
        runtimes.look(block(2, 7), old.clone(), at(69));
        assert_eq!(spec(&runtimes), 8);
        runtimes.look(block(3, 8), old, at(70));
        assert_eq!(spec(&runtimes), 7);
    }
}
