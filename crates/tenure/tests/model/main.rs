//! The model of the database's answers, which the simulation and the in-memory group stand on, says
//! what the SQL says: both take the same random steps, and every answer and every row is compared.

mod sides;
mod walk;

use std::collections::BTreeSet;

use sides::Sides;
use walk::walk;

/// How many walks, each of sixty steps; `TENURE_MODEL_FIRST` and `TENURE_MODEL_WALKS` take others and
/// more of them.
fn seeds(default: u64) -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let first = number("TENURE_MODEL_FIRST").unwrap_or(0);
    first..first + number("TENURE_MODEL_WALKS").unwrap_or(default)
}

/// Walks that once showed a difference.
fn kept_seeds() -> impl Iterator<Item = u64> {
    let lines = include_str!("seeds.txt").lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| {
        let seed = line.split_whitespace().next().unwrap_or_default();
        seed.parse().expect("a number at the beginning of the line")
    })
}

#[tokio::test]
async fn the_model_answers_and_writes_what_the_sql_does() {
    let mut sides = Sides::new().await;
    let mut outcomes = BTreeSet::new();
    for seed in kept_seeds().chain(seeds(60)) {
        match walk(&mut sides, seed).await {
            Ok(seen) => outcomes.extend(seen),
            Err(difference) => panic!("seed {seed}: {difference}"),
        }
    }
    // Walks that never come to an outcome prove nothing of it.
    let all = [
        "Won at once",
        "Collision",
        "Held",
        "Key",
        "Kept",
        "Moved",
        "Paused",
        "Policy",
        "Unknown",
        "Won with a debt",
        "Won with a debt of no member",
        "Won with a debt that was waited for",
        "Won with a debt to a stranger",
        "Yield Priority",
        "Yield Ready",
        "Yield Successor",
        "not the seat",
    ];
    for outcome in all {
        assert!(outcomes.contains(outcome), "no walk came to {outcome:?}: {outcomes:?}");
    }
}

/// Mistakes in the SQL: a function, a part of its text, and what stands there instead.
const PLANTED: [(&str, &str, &str); 15] = [
    ("verdict", "then r.debtor_lease_ms", "then r.lease_ms"),
    (
        "verdict",
        "greatest(r.debtor_lease_ms, r.lease_ms, d.lease_ms,",
        "greatest(r.debtor_lease_ms,",
    ),
    ("verdict", "r.debtor = m.identity and r.acted_in = m.incarnation", "r.debtor = m.identity"),
    ("verdict", "and r.held_in = m.incarnation", ""),
    ("verdict", "greatest(r.epoch, q.seen,", "greatest(r.epoch, 0,"),
    ("verdict", "from tenure.term t where t.role = r.name", "from tenure.term t where false"),
    ("verdict", "|| d.beat,", "|| 'any',"),
    ("verdict", "case when r.debtor is null then '-' end", "'-'"),
    ("register", "'(unknown)', longest", "null, longest"),
    ("claim_rows", "debtor = '(unknown)', paid_in = null", "debtor = r.debtor, paid_in = null"),
    ("mark_acting", "waited_for = null, waited_ms = 0", "waited_ms = 0"),
    ("release", "and o.acted_in = m.incarnation", ""),
    ("better_candidates", "r.holder is null and", "false and"),
    ("beat", "/ 250.0", "/ 1000.0"),
    ("mark_acting", "paid_in = null", "paid_in = r.paid_in"),
];

#[tokio::test]
async fn a_difference_that_is_planted_in_the_sql_is_noticed() {
    let mut sides = Sides::new().await;
    for (function, part, instead) in PLANTED {
        let sound = sides.patch(function, part, instead).await;
        let mut noticed = false;
        for seed in 0..400 {
            noticed = walk(&mut sides, seed).await.is_err();
            if noticed {
                break;
            }
        }
        assert!(noticed, "in {function}, {instead:?} instead of {part:?} was not noticed");
        sides.restore(&sound).await;
    }
    assert_eq!(walk(&mut sides, 0).await.map(drop), Ok(()), "the SQL is sound again");
}
