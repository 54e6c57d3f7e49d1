//! What the callers of a store saw, and whether one store could have answered so.

use std::collections::BTreeMap;

use serde_json::Value;
use tenure_gossip::KvGoal;
use tenure_gossip::history::{Outcome, Record, TxId};

use crate::linear::{Model, Timed, is_linearizable};

/// The operations of all callers, by transaction.
#[derive(Debug, Clone, Default)]
pub struct Operations(BTreeMap<TxId, Seen>);

#[derive(Debug, Clone)]
struct Seen {
    begun: u64,
    ended: Option<u64>,
    goal: KvGoal,
    outcome: Option<Outcome>,
}

impl Operations {
    /// A caller submits; the same transaction may be submitted again.
    pub fn begin(&mut self, now: u64, tx: TxId, goal: &KvGoal) {
        let fresh = || Seen { begun: now, ended: None, goal: goal.clone(), outcome: None };
        self.0.entry(tx).or_insert_with(fresh);
    }

    /// The transaction is decided, whether or not a caller will hear of it.
    pub fn decide(&mut self, record: &Record) {
        if let Some(seen) = self.0.get_mut(&record.tx) {
            seen.outcome.get_or_insert_with(|| record.outcome.clone());
        }
    }

    /// A caller that waits for this transaction has its record.
    pub fn end(&mut self, now: u64, record: &Record) {
        if let Some(seen) = self.0.get_mut(&record.tx).filter(|seen| seen.ended.is_none()) {
            seen.ended = Some(now);
            seen.outcome = Some(record.outcome.clone());
        }
    }

    /// The keys whose answers no single store could have given. Asked when nothing is under way: what is
    /// not decided then never took effect.
    #[must_use]
    pub fn contradictions(&self) -> Vec<String> {
        let mut by_key: BTreeMap<&str, Vec<Timed<Answered>>> = BTreeMap::new();
        for seen in self.0.values().filter(|seen| seen.outcome.is_some()) {
            let key = match &seen.goal {
                KvGoal::Put { key, .. }
                | KvGoal::Delete { key }
                | KvGoal::Increment { key, .. }
                | KvGoal::Cas { key, .. } => key,
                // Goals over several keys are not compared, nor are kinds that come later.
                _ => continue,
            };
            let operation = Answered { goal: seen.goal.clone(), outcome: seen.outcome.clone() };
            let timed = Timed { begun: seen.begun, ended: seen.ended, operation };
            by_key.entry(key).or_default().push(timed);
        }
        let wrong = by_key.into_iter().filter(|(_, all)| !is_linearizable::<OneKey>(all.clone()));
        wrong.map(|(key, _)| key.to_owned()).collect()
    }
}

impl Operations {
    /// The same, with the answers to two successive increments of one key exchanged: a lie that
    /// [`Operations::contradictions`] must find.
    #[must_use]
    pub fn exchanged(&self) -> Self {
        let mut lying = self.clone();
        let mut done: BTreeMap<&str, Vec<(u64, u64, TxId)>> = BTreeMap::new();
        for (tx, seen) in &self.0 {
            if let (KvGoal::Increment { key, .. }, Some(Outcome::Done(_)), Some(ended)) =
                (&seen.goal, &seen.outcome, seen.ended)
            {
                done.entry(key).or_default().push((seen.begun, ended, *tx));
            }
        }
        for all in done.values_mut() {
            all.sort_unstable();
            // The second began when the first had been answered, and both say another value.
            let pair = all.iter().enumerate().find_map(|(i, (_, ended, one))| {
                let later = all[i..].iter().find(|(begun, _, _)| begun > ended);
                let later = later.map(|(_, _, other)| (*one, *other));
                later.filter(|(one, other)| self.0[one].outcome != self.0[other].outcome)
            });
            if let Some((one, other)) = pair {
                let outcomes = (self.0[&one].outcome.clone(), self.0[&other].outcome.clone());
                for (tx, outcome) in [(one, outcomes.1), (other, outcomes.0)] {
                    lying.0.get_mut(&tx).expect("it was seen").outcome = outcome;
                }
                return lying;
            }
        }
        lying
    }
}

#[derive(Debug, Clone)]
struct Answered {
    goal: KvGoal,
    outcome: Option<Outcome>,
}

/// One key of the store; its value as JSON text.
struct OneKey;

impl Model for OneKey {
    type State = Option<String>;
    type Operation = Answered;

    fn initial() -> Self::State {
        None
    }

    fn step(state: &Self::State, operation: &Answered) -> Option<Self::State> {
        let text = |value: &Value| Some(value.to_string());
        // What a single store would do: its next value, or a refusal.
        let next = match &operation.goal {
            KvGoal::Put { value, .. } => Ok(text(value)),
            KvGoal::Delete { .. } => Ok(None),
            KvGoal::Cas { expect, value, .. } => {
                if expect.as_ref().and_then(text) == *state {
                    Ok(text(value))
                } else {
                    Err(())
                }
            }
            KvGoal::Increment { by, .. } => {
                let now = state.as_ref().map_or(Some(0), |text| text.parse::<i64>().ok());
                now.and_then(|n| n.checked_add(*by)).map(|n| Some(n.to_string())).ok_or(())
            }
            _ => Err(()),
        };
        match (&operation.outcome, next) {
            (None | Some(Outcome::Done(_)), Ok(next)) => {
                let same = match &operation.outcome {
                    Some(Outcome::Done(diff)) => is_diff_of(diff, next.as_deref()),
                    Some(Outcome::Rejected(_)) | None => true,
                };
                same.then_some(next)
            }
            (None | Some(Outcome::Rejected(_)), Err(())) => Some(state.clone()),
            (Some(Outcome::Done(_)), Err(())) | (Some(Outcome::Rejected(_)), Ok(_)) => None,
        }
    }
}

/// Whether `diff` sets the one key in it to `value`.
fn is_diff_of(diff: &[u8], value: Option<&str>) -> bool {
    let Ok(changes) = serde_json::from_slice::<Vec<(String, Option<(Value,)>)>>(diff) else {
        return false;
    };
    let [(_, change)] = changes.as_slice() else { return false };
    change.as_ref().map(|(v,)| v.to_string()).as_deref() == value
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_gossip::Kv;
    use tenure_gossip::history::Chain;
    use tenure_gossip::identity::PeerId;

    /// Increments one after the other, each answered before the next begins.
    fn increments(n: u8) -> (Operations, Vec<Record>) {
        let (mut operations, mut chain, mut records) =
            (Operations::default(), Chain::<Kv>::default(), Vec::new());
        for i in 1..=n {
            let goal = KvGoal::Increment { key: "n".into(), by: 1 };
            let tx = TxId([i; 16]);
            operations.begin(u64::from(i) * 10, tx, &goal);
            let record = chain.execute(1, PeerId([1; 32]), tx, goal.to_bytes());
            chain.apply(&record).expect("the next record");
            operations.end(u64::from(i) * 10 + 5, &record);
            records.push(record);
        }
        (operations, records)
    }

    #[test]
    fn what_a_single_store_answers_is_no_contradiction() {
        assert!(increments(20).0.contradictions().is_empty());
    }

    #[test]
    fn answers_in_another_order_than_the_callers_are_noticed() {
        let (mut operations, records) = increments(20);
        for (tx, other) in [(4, 9), (9, 4)] {
            let seen = operations.0.get_mut(&TxId([tx; 16])).expect("it was submitted");
            seen.outcome = Some(records[other - 1].outcome.clone());
        }
        assert_eq!(operations.contradictions(), ["n"]);
    }

    #[test]
    fn an_acknowledged_write_that_is_gone_is_noticed() {
        let (mut operations, _) = increments(20);
        let goal = KvGoal::Cas { key: "n".into(), expect: Some(19.into()), value: 0.into() };
        let chain = Chain::<Kv>::default();
        operations.begin(900, TxId([99; 16]), &goal);
        let mut record = chain.execute(1, PeerId([1; 32]), TxId([99; 16]), goal.to_bytes());
        record.outcome = Outcome::Done(br#"[["n",[0]]]"#.to_vec());
        operations.end(950, &record);
        assert_eq!(operations.contradictions(), ["n"], "the last increment was forgotten");
    }
}
