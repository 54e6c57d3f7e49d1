//! The history: every goal that was decided, in order, each bound to the one before by its hash.
//!
//! ```text
//! hash(n) = BLAKE3("tenure history 1" ‖ postcard(n, hash(n−1), term, leader, tx, goal, outcome))
//! ```
//!
//! A node applies a record only if its index is the next one and its `prev` is the hash of the last.
//! Nothing else moves the index: not a timeout, not a failed goal (which is committed as *rejected*).

use std::collections::VecDeque;
use std::fmt;

use rpds::RedBlackTreeMapSync;
use serde::{Deserialize, Serialize};

use crate::identity::PeerId;
use crate::machine::StateMachine;
use crate::message::{MAX_DIFF, MAX_REASON};

/// How many hashes are kept to recognise a record that comes a second time.
const RECENT: usize = 4_096;

/// A BLAKE3 hash: of a record, which binds all records before it, or of a snapshot. `Display` shows the first 6
/// bytes, [`Hash::to_hex`] all 32.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Hash(pub [u8; 32]);

impl Hash {
    /// The hash in hexadecimal.
    #[must_use]
    pub fn to_hex(&self) -> String {
        hex::encode(self.0)
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(&self.0[..6]))
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A transaction id, chosen by its caller: the same id commits once in a namespace.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TxId(pub [u8; 16]);

impl TxId {
    /// A random id, which no other caller will choose.
    #[must_use]
    pub fn random() -> Self {
        Self(rand::random())
    }

    /// Reads 32 hexadecimal digits, with or without hyphens; `None` if it is something else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let digits: String = text.chars().filter(|c| *c != '-').collect();
        let hexadecimal = digits.len() == 32 && digits.chars().all(|c| c.is_ascii_hexdigit());
        hexadecimal.then_some(())?;
        Some(Self(u128::from_str_radix(&digits, 16).ok()?.to_be_bytes()))
    }
}

impl fmt::Display for TxId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Debug for TxId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What became of a goal. A closed set: it is part of every record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// It changed the state by this diff.
    Done(Vec<u8>),
    /// It could not be reached, and why. The state is unchanged.
    Rejected(String),
}

/// One transaction of the history: a goal, and what became of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Its number: 1, 2, 3 …
    pub index: u64,
    /// The hash of the record before; all zero for the first.
    pub prev: Hash,
    /// The consensus term in which it was executed.
    pub term: u64,
    /// The node that executed it.
    pub leader: PeerId,
    /// The transaction id that its caller chose.
    pub tx: TxId,
    /// What was asked for.
    pub goal: Vec<u8>,
    /// What became of it.
    pub outcome: Outcome,
}

impl Record {
    /// The hash that binds this record and all before it.
    #[must_use]
    pub fn hash(&self) -> Hash {
        let mut hasher = blake3::Hasher::new();
        hasher.update(b"tenure history 1");
        hasher.update(&postcard::to_stdvec(self).expect("a record can always be encoded"));
        Hash(*hasher.finalize().as_bytes())
    }

    /// Its size in messages and on disk, in bytes, about.
    #[must_use]
    pub fn size(&self) -> usize {
        let outcome = match &self.outcome {
            Outcome::Done(diff) => diff.len(),
            Outcome::Rejected(why) => why.len(),
        };
        self.goal.len() + outcome + 128
    }
}

/// A record does not fit, and nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChainError {
    /// Records between are missing.
    #[error("record {got} came while {next} is the next; ask for the history in between")]
    Gap {
        /// The index that is due.
        next: u64,
        /// The index that came.
        got: u64,
    },
    /// It contradicts what was applied.
    #[error("record {0} contradicts the history applied here; one of the two stores is damaged")]
    Fork(u64),
    /// Its transaction id was used before.
    #[error("transaction {0} is in the history already")]
    Twice(TxId),
    /// The state machine did not take the diff.
    #[error(
        "the state machine refused the diff of record {0}: {1}; it must accept what it produced"
    )]
    Refused(u64, String),
}

/// What became of a record that fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Applied {
    /// It was the next, and is applied.
    New,
    /// It had been applied before.
    Known,
}

/// The state after the first `index` records. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Chain<M> {
    machine: M,
    index: u64,
    head: Hash,
    transactions: RedBlackTreeMapSync<TxId, Decided>,
    recent: VecDeque<Hash>,
}

/// Where a transaction stands, a short hash of its goal, and whether it was done: what a retry is told when the
/// record is gone.
type Decided = (u64, [u8; 8], bool);

#[derive(Serialize, Deserialize)]
struct Frozen {
    index: u64,
    head: Hash,
    machine: Vec<u8>,
    digest: [u8; 32],
    transactions: Vec<(TxId, Decided)>,
}

/// The hash of the last record that [`Chain::freeze`] covered.
pub(crate) fn frozen_head(bytes: &[u8]) -> Option<Hash> {
    postcard::from_bytes::<Frozen>(bytes).ok().map(|frozen| frozen.head)
}

fn goal_hash(goal: &[u8]) -> [u8; 8] {
    *blake3::hash(goal).as_bytes().first_chunk().expect("a hash has 32 bytes")
}

impl<M: StateMachine> Default for Chain<M> {
    fn default() -> Self {
        Self {
            machine: M::initial(),
            index: 0,
            head: Hash::default(),
            transactions: RedBlackTreeMapSync::default(),
            recent: VecDeque::new(),
        }
    }
}

impl<M: StateMachine> Chain<M> {
    /// How many records are applied.
    #[must_use]
    pub fn index(&self) -> u64 {
        self.index
    }

    /// The hash of the last.
    #[must_use]
    pub fn head(&self) -> Hash {
        self.head
    }

    /// The state.
    #[must_use]
    pub fn machine(&self) -> &M {
        &self.machine
    }

    /// Where `tx` stands in the history, if it does.
    #[must_use]
    pub fn find(&self, tx: &TxId) -> Option<u64> {
        self.transactions.get(tx).map(|(index, ..)| *index)
    }

    /// Whether `tx` was done, and not rejected, if it stands in the history.
    #[must_use]
    pub fn was_done(&self, tx: &TxId) -> Option<bool> {
        self.transactions.get(tx).map(|(_, _, done)| *done)
    }

    /// Whether `tx` stands in the history for this goal; `None` if it does not stand there at all.
    #[must_use]
    pub fn is_goal_of(&self, tx: &TxId, goal: &[u8]) -> Option<bool> {
        self.transactions.get(tx).map(|(_, hash, _)| *hash == goal_hash(goal))
    }

    /// The record that `goal` would make as the next one.
    #[must_use]
    pub fn execute(&self, term: u64, leader: PeerId, tx: TxId, goal: Vec<u8>) -> Record {
        let outcome = match self.machine.execute(&goal) {
            Ok(diff) if diff.len() <= MAX_DIFF => Outcome::Done(diff),
            Ok(diff) => Outcome::Rejected(format!(
                "the goal would change {} bytes, more than {MAX_DIFF}; split it",
                diff.len()
            )),
            Err(why) => Outcome::Rejected(why.chars().take(MAX_REASON).collect()),
        };
        Record { index: self.index + 1, prev: self.head, term, leader, tx, goal, outcome }
    }

    /// Applies the next record.
    ///
    /// # Errors
    /// See [`ChainError`]; the state is as before.
    pub fn apply(&mut self, record: &Record) -> Result<Applied, ChainError> {
        if record.index <= self.index {
            let back = (self.index - record.index) as usize;
            let known = self.recent.len().checked_sub(back + 1).and_then(|i| self.recent.get(i));
            return match known {
                Some(hash) if *hash != record.hash() => Err(ChainError::Fork(record.index)),
                Some(_) | None => Ok(Applied::Known),
            };
        }
        if record.index != self.index + 1 {
            return Err(ChainError::Gap { next: self.index + 1, got: record.index });
        }
        if record.prev != self.head {
            return Err(ChainError::Fork(record.index));
        }
        if self.transactions.contains_key(&record.tx) {
            return Err(ChainError::Twice(record.tx));
        }
        if let Outcome::Done(diff) = &record.outcome {
            self.machine.apply(diff).map_err(|why| ChainError::Refused(record.index, why))?;
        }
        self.index = record.index;
        self.head = record.hash();
        let done = matches!(record.outcome, Outcome::Done(_));
        self.transactions.insert_mut(record.tx, (record.index, goal_hash(&record.goal), done));
        self.recent.push_back(self.head);
        if self.recent.len() > RECENT {
            self.recent.pop_front();
        }
        Ok(Applied::New)
    }

    /// A copy that runs ahead: it shares the state and forgets the recent hashes.
    pub(crate) fn ahead(&self) -> Self {
        Self {
            recent: VecDeque::new(),
            machine: self.machine.clone(),
            transactions: self.transactions.clone(),
            ..*self
        }
    }

    /// The same state as the beginning of a new generation: the next record is `index + 1`, and its
    /// predecessor's hash is one that no record of the former generation has.
    pub(crate) fn leap(
        mut self,
        index: u64,
        cluster: &[u8; 16],
        change: impl FnOnce(&mut M),
    ) -> Self {
        let former = [cluster.as_slice(), &self.head.0, &self.index.to_le_bytes()].concat();
        self.head = Hash(blake3::derive_key("tenure gossip generation 1", &former));
        self.index = index;
        self.recent = VecDeque::from([self.head]);
        change(&mut self.machine);
        self
    }

    /// Everything as bytes.
    #[must_use]
    pub fn freeze(&self) -> Vec<u8> {
        let frozen = Frozen {
            index: self.index,
            head: self.head,
            machine: self.machine.snapshot(),
            digest: self.machine.digest(),
            transactions: self.transactions.iter().map(|(t, i)| (*t, *i)).collect(),
        };
        postcard::to_stdvec(&frozen).expect("a snapshot can always be encoded")
    }

    /// What [`Chain::freeze`] wrote.
    ///
    /// # Errors
    /// What is wrong with the bytes.
    pub fn thaw(bytes: &[u8]) -> Result<Self, String> {
        let f: Frozen = postcard::from_bytes(bytes).map_err(|error| error.to_string())?;
        let machine = M::restore(&f.machine)?;
        if machine.digest() != f.digest {
            return Err("the state is not the one that was frozen".to_owned());
        }
        Ok(Self {
            machine,
            index: f.index,
            head: f.head,
            transactions: f.transactions.into_iter().collect(),
            recent: VecDeque::from([f.head]),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::{Kv, KvGoal};

    fn put(chain: &Chain<Kv>, n: u8) -> Record {
        let goal = KvGoal::Put { key: format!("k{n}"), value: n.into() };
        chain.execute(1, PeerId([1; 32]), TxId([n; 16]), goal.to_bytes())
    }

    fn grown(n: u8) -> (Chain<Kv>, Vec<Record>) {
        let mut chain = Chain::default();
        let records = (1..=n)
            .map(|i| {
                let r = put(&chain, i);
                chain.apply(&r).expect("the next record");
                r
            })
            .collect();
        (chain, records)
    }

    #[test]
    fn the_same_records_make_the_same_state_and_head() {
        let (a, records) = grown(20);
        let mut b = Chain::<Kv>::default();
        for r in &records {
            b.apply(r).expect("in order");
        }
        assert_eq!((a.index(), a.head(), a.machine()), (b.index(), b.head(), b.machine()));
    }

    #[test]
    fn a_gap_is_refused_and_changes_nothing() {
        let (_, records) = grown(5);
        let mut b = Chain::<Kv>::default();
        assert_eq!(b.apply(&records[2]), Err(ChainError::Gap { next: 1, got: 3 }));
        assert_eq!(b.index(), 0);
    }

    #[test]
    fn a_record_that_follows_another_head_is_a_fork() {
        let (mut a, _) = grown(3);
        let mut other = put(&a, 9);
        other.prev = Hash([7; 32]);
        assert_eq!(a.apply(&other), Err(ChainError::Fork(4)));
    }

    #[test]
    fn a_second_time_is_known_and_a_changed_second_time_is_a_fork() {
        let (mut a, records) = grown(3);
        assert_eq!(a.apply(&records[1]), Ok(Applied::Known));
        let changed = Record { term: 99, ..records[1].clone() };
        assert_eq!(a.apply(&changed), Err(ChainError::Fork(2)));
    }

    #[test]
    fn a_transaction_commits_once() {
        let (mut a, _) = grown(3);
        let again = Record { tx: TxId([2; 16]), ..put(&a, 9) };
        assert_eq!(a.apply(&again), Err(ChainError::Twice(TxId([2; 16]))));
        assert_eq!(a.index(), 3);
    }

    #[test]
    fn a_failed_goal_takes_its_place_and_changes_no_value() {
        let (mut a, _) = grown(1);
        let before = a.machine().clone();
        let r = a.execute(1, PeerId([1; 32]), TxId([9; 16]), b"rubbish".to_vec());
        assert!(matches!(r.outcome, Outcome::Rejected(_)));
        assert_eq!(a.apply(&r), Ok(Applied::New));
        assert_eq!((a.index(), a.machine()), (2, &before));
    }

    #[test]
    fn no_record_outgrows_a_frame_whatever_the_machine_answers() {
        #[derive(Clone)]
        struct Windy;
        impl StateMachine for Windy {
            fn initial() -> Self {
                Self
            }
            fn execute(&self, goal: &[u8]) -> Result<Vec<u8>, String> {
                if goal.is_empty() { Err("é".repeat(9 << 20)) } else { Ok(vec![0; 9 << 20]) }
            }
            fn apply(&mut self, _: &[u8]) -> Result<(), String> {
                Ok(())
            }
            fn snapshot(&self) -> Vec<u8> {
                Vec::new()
            }
            fn restore(_: &[u8]) -> Result<Self, String> {
                Ok(Self)
            }
        }
        let chain = Chain::<Windy>::default();
        for goal in [vec![], vec![1; crate::message::MAX_GOAL]] {
            let r = chain.execute(1, PeerId([1; 32]), TxId([1; 16]), goal);
            assert!(matches!(r.outcome, Outcome::Rejected(_)));
            assert!(r.size() < crate::net::wire::MAX_FRAME / 2, "{}", r.size());
        }
    }

    #[test]
    fn a_transaction_id_is_32_hexadecimal_digits() {
        assert!(TxId::parse("00000000-0000-0000-0000-0000000000ff").is_some());
        for bad in
            ["", "ff", "+0000000000000000000000000000042", "g0000000000000000000000000000000"]
        {
            assert!(TxId::parse(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn every_field_is_bound_by_the_hash() {
        let (_, records) = grown(2);
        let r = records[1].clone();
        let h = r.hash();
        for changed in [
            Record { index: 3, ..r.clone() },
            Record { prev: Hash([1; 32]), ..r.clone() },
            Record { term: 2, ..r.clone() },
            Record { leader: PeerId([2; 32]), ..r.clone() },
            Record { tx: TxId([0; 16]), ..r.clone() },
            Record { goal: vec![], ..r.clone() },
            Record { outcome: Outcome::Rejected(String::new()), ..r.clone() },
        ] {
            assert_ne!(changed.hash(), h);
        }
    }

    #[test]
    fn a_frozen_chain_thaws_to_the_same_and_continues() {
        let (mut a, _) = grown(10);
        let mut b = Chain::<Kv>::thaw(&a.freeze()).expect("just frozen");
        let next = put(&a, 99);
        a.apply(&next).expect("next");
        b.apply(&next).expect("next");
        assert_eq!((a.head(), a.machine()), (b.head(), b.machine()));
        assert!(Chain::<Kv>::thaw(b"no").is_err());
    }
}
