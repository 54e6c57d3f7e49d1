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

/// The seeds that stand in the file after `name`: "found", for walks that once showed a difference, or the name
/// of a planted mistake, for walks that must notice it.
fn kept_seeds(name: &str) -> impl Iterator<Item = u64> {
    let lines = include_str!("seeds.txt").lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(move |line| {
        let mut words = line.split_whitespace();
        (words.next() == Some(name)).then(|| {
            let seed = words.next().and_then(|seed| seed.parse().ok());
            seed.expect("a number after the name")
        })
    })
}

#[tokio::test]
async fn the_model_answers_and_writes_what_the_sql_does() {
    let mut sides = Sides::new().await;
    let mut outcomes = BTreeSet::new();
    for seed in kept_seeds("found").chain(seeds(60)) {
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
        "Held against an operator",
        "Key",
        "Kept",
        "Moved",
        "Paused",
        "Policy",
        "Settled after a wait",
        "Settled at once",
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

/// A mistake in the SQL: in a function, what stands there instead of a part of its text.
struct Planted {
    name: &'static str,
    function: &'static str,
    part: &'static str,
    instead: &'static str,
}

const fn planted(
    name: &'static str,
    function: &'static str,
    part: &'static str,
    instead: &'static str,
) -> Planted {
    Planted { name, function, part, instead }
}

const PLANTED: [Planted; 18] = [
    planted("lease-of-the-role", "owed", "then r.debtor_lease_ms", "then r.lease_ms"),
    planted(
        "lease-of-the-debt",
        "owed",
        "greatest(r.debtor_lease_ms, r.lease_ms, d.lease_ms,",
        "greatest(r.debtor_lease_ms,",
    ),
    planted("lost-registration", "owed", "o.incarnation <> p_incarnation", "false"),
    planted(
        "settled-in-any-incarnation",
        "owed",
        "and r.paid_in is not distinct from p_incarnation",
        "",
    ),
    planted(
        "settles-by-a-rule-of-its-own",
        "settle",
        "else o.ms end",
        "else coalesce(r.debtor_lease_ms, r.lease_ms) end",
    ),
    planted(
        "debtor-in-any-incarnation",
        "verdict",
        "r.debtor = m.identity and r.acted_in = m.incarnation",
        "r.debtor = m.identity",
    ),
    planted("kept-in-any-incarnation", "verdict", "and r.held_in = m.incarnation", ""),
    planted("epoch-not-seen", "verdict", "greatest(r.epoch, q.seen,", "greatest(r.epoch, 0,"),
    planted(
        "epoch-not-in-history",
        "verdict",
        "from tenure.term t where t.role = r.name",
        "from tenure.term t where false",
    ),
    planted("any-beat", "verdict", "|| d.beat,", "|| 'any',"),
    planted("wait-for-no-member", "verdict", "case when r.debtor is null then '-' end", "'-'"),
    planted("role-without-debt", "register", "'(unknown)', longest", "null, longest"),
    planted(
        "stranger-without-debt",
        "claim_rows",
        "debtor = '(unknown)', paid_in = null",
        "debtor = r.debtor, paid_in = null",
    ),
    planted("wait-kept", "mark_acting", "waited_for = null, waited_ms = 0", "waited_ms = 0"),
    planted("released-in-any-incarnation", "release_rows", "and o.acted_in = m.incarnation", ""),
    planted("yields-to-the-last", "better_candidates", "r.holder is null and", "false and"),
    planted("dead-forgotten", "beat", "/ 250.0", "/ 1000.0"),
    planted("paid-twice", "mark_acting", "paid_in = null", "paid_in = r.paid_in"),
];

#[tokio::test]
async fn a_difference_that_is_planted_in_the_sql_is_noticed() {
    let mut sides = Sides::new().await;
    for Planted { name, function, part, instead } in PLANTED {
        let sound = sides.patch(function, part, instead).await;
        assert!(kept_seeds(name).next().is_some(), "no seed of {name} is on file");
        for seed in kept_seeds(name) {
            let walked = walk(&mut sides, seed).await;
            assert!(walked.is_err(), "seed {seed} does not notice {name}");
        }
        sides.restore(&sound).await;
        for seed in kept_seeds(name) {
            assert_eq!(
                walk(&mut sides, seed).await.map(drop),
                Ok(()),
                "{name}: the SQL is sound again"
            );
        }
    }
}

/// Looks for seeds to put on file, which a change of the steps makes necessary:
/// `cargo test -p tenure --test model find_seeds -- --ignored --nocapture`.
#[tokio::test]
#[ignore = "prints seeds; it asserts nothing"]
#[allow(clippy::print_stdout, reason = "its output is what it is for")]
async fn find_seeds() {
    let mut sides = Sides::new().await;
    for Planted { name, function, part, instead } in PLANTED {
        let sound = sides.patch(function, part, instead).await;
        let mut found = 0;
        for seed in seeds(2000) {
            if let Err(difference) = walk(&mut sides, seed).await {
                println!("{name} {seed} # {}", difference.lines().next().unwrap_or_default());
                found += 1;
            }
            if found == 2 {
                break;
            }
        }
        sides.restore(&sound).await;
    }
}
