//! What is known of a few hundred peers at most, in the order of their names.
//!
//! Every vote looks up its voter and its leader, so this is where an election spends its time. A
//! sorted vector keeps them together in memory, and since names are keys, spread evenly, the place of
//! a name follows from its first bytes: a look-up begins there and walks the few steps that are left.
//! Names chosen to stand close together cost a longer walk, and the bounds on the rolls keep that
//! below the price of checking one signature.

use std::cmp::Ordering;

use crate::identity::PeerId;

/// Peers and a `V` for each, sorted by name: iteration is the same in every run.
#[derive(Debug, Clone)]
pub(super) struct Roll<V> {
    /// The first bytes of the names, to be searched without touching the rest.
    heads: Vec<u64>,
    entries: Vec<(PeerId, V)>,
}

impl<V> Roll<V> {
    pub(super) const fn new() -> Self {
        Self { heads: Vec::new(), entries: Vec::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&PeerId, &V)> {
        self.entries.iter().map(|(peer, v)| (peer, v))
    }

    pub(super) fn get(&self, peer: &PeerId) -> Option<&V> {
        self.find(peer).ok().map(|i| &self.entries[i].1)
    }

    pub(super) fn get_mut(&mut self, peer: &PeerId) -> Option<&mut V> {
        self.find(peer).ok().map(|i| &mut self.entries[i].1)
    }

    pub(super) fn insert(&mut self, peer: PeerId, v: V) {
        match self.find(&peer) {
            Ok(i) => self.entries[i].1 = v,
            Err(i) => {
                self.heads.insert(i, peer.short());
                self.entries.insert(i, (peer, v));
            }
        }
    }

    pub(super) fn retain(&mut self, mut keep: impl FnMut(&PeerId, &V) -> bool) {
        self.entries.retain(|(peer, v)| keep(peer, v));
        if self.entries.len() < self.heads.len() {
            self.heads.clear();
            self.heads.extend(self.entries.iter().map(|(peer, _)| peer.short()));
        }
    }

    /// Strikes out the one with the smallest key, the first by name among equals.
    pub(super) fn remove_min<K: Ord>(&mut self, key: impl Fn(&V) -> K) {
        if let Some(i) = (0..self.len()).min_by_key(|i| key(&self.entries[*i].1)) {
            self.heads.remove(i);
            self.entries.remove(i);
        }
    }

    /// Where `peer` stands, or where it would.
    fn find(&self, peer: &PeerId) -> Result<usize, usize> {
        let (head, len) = (peer.short(), self.len());
        let mut i = ((u128::from(head) * len as u128) >> 64) as usize;
        while i > 0 && self.heads[i - 1] >= head {
            i -= 1;
        }
        while i < len && self.heads[i] < head {
            i += 1;
        }
        // Equal heads are the same peer, or an accident of one in 2^64.
        while i < len && self.heads[i] == head {
            match self.entries[i].0.cmp(peer) {
                Ordering::Less => i += 1,
                Ordering::Equal => return Ok(i),
                Ordering::Greater => break,
            }
        }
        Err(i)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever is done to it, a roll is a map in order, for names near and far.
        #[test]
        fn a_roll_is_an_ordered_map(steps in prop::collection::vec((0u8..4, 0u8..4, 0u8..6, 0u32..50), 0..200)) {
            let (mut roll, mut map) = (Roll::new(), BTreeMap::new());
            for (what, first, last, v) in steps {
                let mut name = [0; 32];
                (name[0], name[31]) = (first.wrapping_mul(85), last);
                let peer = PeerId(name);
                match what {
                    0 | 1 => {
                        roll.insert(peer, v);
                        map.insert(peer, v);
                    }
                    2 => {
                        roll.retain(|_, kept| *kept != v);
                        map.retain(|_, kept| *kept != v);
                    }
                    _ => {
                        roll.remove_min(|v| *v);
                        let min = map.iter().min_by_key(|(_, v)| **v).map(|(p, _)| *p);
                        min.map(|p| map.remove(&p));
                    }
                }
                prop_assert_eq!(roll.get(&peer), map.get(&peer));
                prop_assert_eq!(roll.get_mut(&peer), map.get_mut(&peer));
                prop_assert!(roll.iter().eq(map.iter()) && roll.len() == map.len());
            }
        }
    }
}
