//! A key-value store of JSON values: the state machine that comes with the crate.

use std::ops::Bound;

use rpds::RedBlackTreeMapSync;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::machine::StateMachine;
use crate::number::inexact;

/// The longest key of a [`Kv`], in bytes.
pub const MAX_KEY: usize = 1_024;
/// Bytes of keys and values in one answer, beyond the first.
const PAGE: usize = 1 << 20;
/// Goals within one `all`.
const MAX_ALL: usize = 1_024;

/// What a caller wants of the store, submitted as JSON:
///
/// ```json
/// {"put":       {"key": "a", "value": {"any": "json"}}}
/// {"delete":    {"key": "a"}}
/// {"increment": {"key": "hits", "by": 1}}
/// {"cas":       {"key": "a", "expect": 0, "value": 1}}
/// {"all":       [ ...goals, all of them or none ]}
/// ```
///
/// `cas` without `expect` means "only if there is nothing"; `null` is a value like any other. A number that
/// neither a 64-bit integer nor a double can give back as it was written is refused. A key has 1 to [`MAX_KEY`]
/// bytes. A goal that breaks a rule, or is not JSON, is committed as rejected.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the names say it")]
pub enum KvGoal {
    /// Set a value.
    Put { key: String, value: Value },
    /// Remove a value; it need not exist.
    Delete { key: String },
    /// Add to an integer; a missing one counts as 0. Rejected if the value is no integer of 64 bits with a
    /// sign, or would become none.
    Increment {
        key: String,
        /// Default: 1.
        #[serde(default = "one")]
        by: i64,
    },
    /// Set a value only if it is what the caller expects.
    Cas {
        key: String,
        /// What it must be now; absent: it must not exist.
        #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
        expect: Option<Value>,
        value: Value,
    },
    /// All of them in order, or none; at most 1,024, without another `all` among them.
    All(Vec<KvGoal>),
}

fn one() -> i64 {
    1
}

/// A field that is there, be it null.
fn present<'de, D: serde::Deserializer<'de>>(value: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(value).map(Some)
}

impl KvGoal {
    /// The goal as bytes for [`Host::submit`](crate::Host::submit) or [`Ask::Submit`](crate::Ask::Submit).
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("strings and JSON values can be written as JSON")
    }
}

/// What can be asked of the store with [`Ask::Read`](crate::Ask::Read), as JSON: `{"get":"a"}`, or
/// `{"after":null}` for the first page. The answer is JSON too.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
#[non_exhaustive]
pub enum KvQuestion {
    /// The value of a key: an array with the value in it, or null if there is none.
    Get(String),
    /// The keys after this one (or from the first on) with their values: an array of pairs, in the order of the
    /// keys, as many as fit into 1 MiB and one at least. Empty: there are no more.
    After(Option<String>),
}

/// One change: a key and an array with its new value, or null: it is removed. An array, because the new
/// value may be null.
type Change = (String, Option<(Value,)>);

/// A key-value store of JSON values: the state machine that comes with the crate. It is changed by
/// [`KvGoal`], and asked by [`KvQuestion`] or, in the process, by [`Host::machine`](crate::Host::machine).
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Kv {
    values: RedBlackTreeMapSync<String, Value>,
    /// The sum of the hashes of all pairs: it follows every change at the cost of that change.
    sum: [u64; 4],
}

impl Kv {
    /// The value at `key`.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.values.get(key)
    }

    /// All keys and values, in the order of the keys.
    pub fn iter(&self) -> impl Iterator<Item = (&String, &Value)> {
        self.values.iter()
    }

    /// How many keys there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.values.size()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    fn plan(&self, goal: KvGoal, changes: &mut Vec<Change>) -> Result<(), String> {
        let key = match &goal {
            KvGoal::Put { key, .. }
            | KvGoal::Delete { key }
            | KvGoal::Increment { key, .. }
            | KvGoal::Cas { key, .. } => key.as_str(),
            KvGoal::All(_) => "all",
        };
        if key.is_empty() || key.len() > MAX_KEY {
            return Err(format!("a key has 1 to {MAX_KEY} bytes; this one has {}", key.len()));
        }
        match goal {
            KvGoal::Put { key, value } => changes.push((key, Some((value,)))),
            KvGoal::Delete { key } => changes.push((key, None)),
            KvGoal::Increment { key, by } => {
                let now = match self.values.get(&key) {
                    None => 0,
                    Some(v) => {
                        v.as_i64().ok_or_else(|| format!("the value of {key:?} is no integer"))?
                    }
                };
                let sum = now.checked_add(by).ok_or_else(|| format!("{key:?} would overflow"))?;
                changes.push((key, Some((sum.into(),))));
            }
            KvGoal::Cas { key, expect, value } => {
                let now = self.values.get(&key);
                if now != expect.as_ref() {
                    let now = now.map_or_else(|| "absent".to_owned(), Value::to_string);
                    return Err(format!("the value of {key:?} is {now}, not what was expected"));
                }
                changes.push((key, Some((value,))));
            }
            KvGoal::All(goals) => {
                if goals.len() > MAX_ALL {
                    return Err(format!("at most {MAX_ALL} goals in one"));
                }
                let mut ahead = self.clone();
                for goal in goals {
                    if matches!(goal, KvGoal::All(_)) {
                        return Err("`all` does not nest".to_owned());
                    }
                    let from = changes.len();
                    ahead.plan(goal, changes)?;
                    ahead.change(&changes[from..]);
                }
            }
        }
        Ok(())
    }

    fn change(&mut self, changes: &[Change]) {
        for (key, value) in changes {
            if let Some(old) = self.values.get(key) {
                let gone = pair_hash(key, old);
                self.sum = std::array::from_fn(|i| self.sum[i].wrapping_sub(gone[i]));
            }
            match value {
                Some((value,)) => self.insert(key.clone(), value.clone()),
                None => {
                    self.values.remove_mut(key);
                }
            }
        }
    }

    /// Adds a pair whose key is new, or whose old value was taken out of the sum.
    fn insert(&mut self, key: String, value: Value) {
        let new = pair_hash(&key, &value);
        self.sum = std::array::from_fn(|i| self.sum[i].wrapping_add(new[i]));
        self.values.insert_mut(key, value);
    }
}

/// A hash of one key with its value.
fn pair_hash(key: &str, value: &Value) -> [u64; 4] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&(key.len() as u64).to_le_bytes());
    hasher.update(key.as_bytes());
    let text = serde_json::to_vec(value).expect("a JSON value can be written as JSON");
    hasher.update(&text);
    let hash = hasher.finalize();
    let (words, _) = hash.as_bytes().as_chunks::<8>();
    std::array::from_fn(|i| u64::from_le_bytes(words[i]))
}

impl StateMachine for Kv {
    fn initial() -> Self {
        Self::default()
    }

    fn execute(&self, goal: &[u8]) -> Result<Vec<u8>, String> {
        if let Some(number) = inexact(goal) {
            return Err(format!(
                "the number {number} cannot be kept as it is written; write it as a string"
            ));
        }
        let goal = serde_json::from_slice(goal).map_err(|error| format!("not a goal: {error}"))?;
        let mut changes = Vec::new();
        self.plan(goal, &mut changes)?;
        serde_json::to_vec(&changes).map_err(|error| error.to_string())
    }

    fn apply(&mut self, diff: &[u8]) -> Result<(), String> {
        let changes: Vec<Change> =
            serde_json::from_slice(diff).map_err(|error| error.to_string())?;
        self.change(&changes);
        Ok(())
    }

    fn query(&self, question: &[u8]) -> Result<Vec<u8>, String> {
        let question =
            serde_json::from_slice(question).map_err(|error| format!("not a question: {error}"))?;
        let answer = match question {
            KvQuestion::Get(key) => serde_json::to_vec(&self.values.get(&key).map(|v| (v,))),
            KvQuestion::After(key) => {
                let from = key.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
                let mut size = 0;
                // One at least, or a large value could never be passed.
                let page: Vec<_> = self
                    .values
                    .range::<String, _>((from, Bound::Unbounded))
                    .take_while(|(k, v)| {
                        let first = size == 0;
                        size += k.len() + v.to_string().len();
                        first || size <= PAGE
                    })
                    .collect();
                serde_json::to_vec(&page)
            }
        };
        answer.map_err(|error| error.to_string())
    }

    fn snapshot(&self) -> Vec<u8> {
        let all: Vec<_> = self.values.iter().collect();
        serde_json::to_vec(&all).expect("strings and JSON values can be written as JSON")
    }

    fn restore(bytes: &[u8]) -> Result<Self, String> {
        let all: Vec<(String, Value)> =
            serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        let mut kv = Self::default();
        for (key, value) in all {
            if kv.values.contains_key(&key) {
                return Err(format!("the key {key:?} is there twice"));
            }
            kv.insert(key, value);
        }
        Ok(kv)
    }

    fn digest(&self) -> [u8; 32] {
        let mut bytes = [0; 32];
        for (part, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(self.sum) {
            *part = word.to_le_bytes();
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn run(kv: &mut Kv, goal: Value) -> Result<(), String> {
        let diff = kv.execute(&serde_json::to_vec(&goal).expect("json"))?;
        kv.apply(&diff)
    }

    #[test]
    fn values_are_put_read_deleted() {
        let mut kv = Kv::initial();
        run(&mut kv, json!({"put": {"key": "a", "value": {"x": [1, null]}}})).unwrap();
        assert_eq!(kv.get("a"), Some(&json!({"x": [1, null]})));
        run(&mut kv, json!({"delete": {"key": "a"}})).unwrap();
        assert!(kv.is_empty());
    }

    #[test]
    fn increment_counts_from_nothing_and_refuses_what_is_no_number() {
        let mut kv = Kv::initial();
        run(&mut kv, json!({"increment": {"key": "n"}})).unwrap();
        run(&mut kv, json!({"increment": {"key": "n", "by": -5}})).unwrap();
        assert_eq!(kv.get("n"), Some(&json!(-4)));
        run(&mut kv, json!({"put": {"key": "s", "value": "text"}})).unwrap();
        assert!(run(&mut kv, json!({"increment": {"key": "s"}})).is_err());
        run(&mut kv, json!({"put": {"key": "m", "value": i64::MAX}})).unwrap();
        assert!(run(&mut kv, json!({"increment": {"key": "m"}})).unwrap_err().contains("overflow"));
    }

    #[test]
    fn compare_and_swap_needs_the_expected_value() {
        let mut kv = Kv::initial();
        run(&mut kv, json!({"cas": {"key": "a", "value": 1}})).unwrap();
        assert!(run(&mut kv, json!({"cas": {"key": "a", "value": 2}})).is_err());
        assert!(run(&mut kv, json!({"cas": {"key": "a", "expect": 9, "value": 2}})).is_err());
        run(&mut kv, json!({"cas": {"key": "a", "expect": 1, "value": 2}})).unwrap();
        assert_eq!(kv.get("a"), Some(&json!(2)));
    }

    #[test]
    fn all_or_none() {
        let mut kv = Kv::initial();
        let failing =
            json!({"all": [{"put": {"key": "a", "value": 1}}, {"cas": {"key": "a", "value": 2}}]});
        assert!(run(&mut kv, failing).is_err());
        assert!(kv.is_empty());
        run(&mut kv, json!({"all": [{"increment": {"key": "a"}}, {"increment": {"key": "a"}}]}))
            .unwrap();
        assert_eq!(kv.get("a"), Some(&json!(2)));
    }

    #[test]
    fn null_is_a_value_and_not_a_deletion() {
        let mut kv = Kv::initial();
        run(&mut kv, json!({"put": {"key": "a", "value": null}})).unwrap();
        assert_eq!(kv.get("a"), Some(&Value::Null));
        assert!(run(&mut kv, json!({"cas": {"key": "a", "value": 1}})).is_err());
        run(&mut kv, json!({"cas": {"key": "a", "expect": null, "value": 1}})).unwrap();
        assert!(run(&mut kv, json!({"cas": {"key": "b", "expect": null, "value": 1}})).is_err());
        let goal = KvGoal::Cas { key: "k".into(), expect: Some(Value::Null), value: json!(1) };
        assert_eq!(serde_json::from_slice::<KvGoal>(&goal.to_bytes()).unwrap(), goal);
        let goal = KvGoal::Cas { key: "k".into(), expect: None, value: json!(1) };
        assert_eq!(serde_json::from_slice::<KvGoal>(&goal.to_bytes()).unwrap(), goal);
        run(
            &mut kv,
            json!({"all": [{"put": {"key": "n", "value": null}},
            {"cas": {"key": "n", "expect": null, "value": 2}}]}),
        )
        .unwrap();
        assert_eq!(kv.get("n"), Some(&json!(2)));
    }

    #[test]
    fn a_number_that_cannot_be_kept_is_refused_with_its_text() {
        let kv = Kv::initial();
        let why = kv.execute(br#"{"put":{"key":"a","value":[1e400]}}"#).unwrap_err();
        assert!(why.contains("1e400"), "{why}");
        assert!(kv.execute(br#"{"put":{"key":"1e400","value":"1e400"}}"#).is_ok());
    }

    #[test]
    fn the_digest_depends_on_the_content_alone() {
        let mut there = Kv::initial();
        for n in 0..50 {
            run(
                &mut there,
                json!({"put": {"key": format!("k{}", n % 7), "value": n as f64 / 3.0}}),
            )
            .unwrap();
        }
        run(&mut there, json!({"delete": {"key": "k3"}})).unwrap();
        let mut here = Kv::initial();
        for (key, value) in there.iter() {
            run(&mut here, json!({"put": {"key": key, "value": value}})).unwrap();
        }
        assert_eq!(here.digest(), there.digest());
        assert_eq!(Kv::restore(&there.snapshot()).unwrap().digest(), there.digest());
        run(&mut here, json!({"put": {"key": "k1", "value": 0}})).unwrap();
        assert_ne!(here.digest(), there.digest());
    }

    #[test]
    fn a_snapshot_restores_the_same_store() {
        let mut kv = Kv::initial();
        for n in 0..50 {
            run(&mut kv, json!({"put": {"key": format!("k{n}"), "value": n}})).unwrap();
        }
        let back = Kv::restore(&kv.snapshot()).unwrap();
        assert_eq!(back, kv);
        assert_eq!(back.snapshot(), kv.snapshot());
    }

    #[test]
    fn a_large_store_is_read_page_by_page() {
        let mut kv = Kv::initial();
        for n in 0..100 {
            let value = "x".repeat(100_000);
            run(&mut kv, json!({"put": {"key": format!("k{n:03}"), "value": value}})).unwrap();
        }
        let ask = |q: &KvQuestion| kv.query(&serde_json::to_vec(q).unwrap()).unwrap();
        let (mut seen, mut after) = (Vec::new(), None);
        loop {
            let page = ask(&KvQuestion::After(after.clone()));
            assert!(page.len() < crate::net::wire::MAX_FRAME / 2);
            let page: Vec<(String, Value)> = serde_json::from_slice(&page).unwrap();
            let Some((last, _)) = page.last() else { break };
            after = Some(last.clone());
            seen.extend(page);
        }
        assert!(seen.iter().map(|(k, v)| (k, v)).eq(kv.iter()));
        let one: Option<(Value,)> =
            serde_json::from_slice(&ask(&KvQuestion::Get("k007".into()))).unwrap();
        assert_eq!(one, Some((json!("x".repeat(100_000)),)));
        assert_eq!(ask(&KvQuestion::Get("none".into())), b"null");
        assert!(kv.query(b"what?").is_err());
    }

    #[test]
    fn rubbish_is_a_reason_not_a_panic() {
        let mut kv = Kv::initial();
        assert!(kv.execute(b"\xff{").is_err());
        assert!(run(&mut kv, json!({"put": {"key": "", "value": 1}})).is_err());
        assert!(run(&mut kv, json!({"put": {"key": "k".repeat(2000), "value": 1}})).is_err());
        assert!(run(&mut kv, json!({"all": [{"all": []}]})).is_err());
        assert!(run(&mut kv, json!({"drop": {"key": "a"}})).is_err());
    }
}
