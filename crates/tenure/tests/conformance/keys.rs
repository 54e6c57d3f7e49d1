//! What the core computes, the database computes too.

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};
use tenure::{Epoch, LockKey};
use tenure_core::epoch::next_epoch;
use tenure_testkit::shared_cluster;

/// The published vectors of `tenure_core::key`.
const VECTORS: &[(&str, i64)] = &[
    ("scheduler", -6905248152981328462),
    ("msp-leader", -4486929126544047771),
    (
        "storagehub:polkadot:5FHneW46xGXgs5mUiveU4sbTyGBzmstUspZC92UhjJM694ty:msp",
        -3082125020877034169,
    ),
    ("aufgabe-größe", 2244942333873473668),
    ("役割", 6394879015369282685),
];

#[tokio::test]
async fn one_line_of_sql_computes_the_key_of_a_name() {
    let client = shared_cluster().await.client("postgres").await.unwrap();
    let mut names: Vec<String> = VECTORS.iter().map(|(name, _)| (*name).to_owned()).collect();
    for (name, key) in VECTORS {
        assert_eq!(LockKey::of_name(name), LockKey::Big(*key), "{name}");
    }
    let any = prop::collection::vec(
        prop_oneof![
            any::<char>().prop_filter("PostgreSQL has no NUL", |c| *c != '\0'),
            prop::sample::select(vec!['\'', '\\', '"', '$', ';', 'ß', '役', '🦀', ' ', '\n']),
        ],
        0..60,
    );
    let mut runner = TestRunner::new(Config::default());
    for _ in 0..100 {
        let chars = any.new_tree(&mut runner).unwrap().current();
        names.push(chars.into_iter().collect());
    }
    for standard in ["on", "off"] {
        let setting = format!("set standard_conforming_strings = {standard}");
        client.batch_execute(&setting).await.unwrap();
        for name in &names {
            let row = client.query_one(&LockKey::sql_for_name(name), &[]).await;
            let key: i64 = row.unwrap_or_else(|error| panic!("{name:?}: {error:?}")).get(0);
            assert_eq!(LockKey::of_name(name), LockKey::Big(key), "{name:?} with {standard}");
        }
    }
}

#[tokio::test]
async fn the_database_counts_epochs_as_the_core_does() {
    let database = shared_cluster().await.database().await.unwrap();
    let (member, _lock) = tenure::lead(&database.dsn(), "r").await.unwrap();
    let client = database.client().await.unwrap();
    let ask = client
        .prepare("select tenure.next_epoch(greatest($1::bigint, $2::bigint), $3::integer)")
        .await
        .unwrap();
    const GENERATION: i64 = tenure_core::epoch::GENERATION;
    let epoch = prop_oneof![
        0..1000_i64,
        (0..(1_i64 << 22), -2..=2_i64).prop_map(|(n, by)| (n * GENERATION + by).max(0)),
        0..(i64::MAX - 2 * GENERATION),
    ];
    let cases = (epoch.clone(), epoch, prop::option::of(1..5000_u32));
    let mut runner = TestRunner::new(Config::default());
    for _ in 0..300 {
        let (row, seen, moved) = cases.new_tree(&mut runner).unwrap().current();
        let counted: i64 = client
            .query_one(&ask, &[&row, &seen, &moved.map(|to| to as i32)])
            .await
            .unwrap()
            .get(0);
        assert_eq!(
            Epoch(counted),
            next_epoch(Epoch(row), Epoch(seen), moved),
            "{row} {seen} {moved:?}"
        );
    }
    member.shutdown(None).await.unwrap();
}
