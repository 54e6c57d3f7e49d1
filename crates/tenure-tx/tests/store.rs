//! The table keeps its promises on a real PostgreSQL.

mod kit;

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use kit::pooler::Pooler;
use kit::{E1, account, attempt, bump, connector, database, hash, row, store, store_of};
use tenure_core::epoch::Epoch;
use tenure_testkit::{Cluster, Proxy, shared_cluster};
use tenure_tx::account::AccountId;
use tenure_tx::engine::Attempt;
use tenure_tx::feed::{FeedItem, FeedOptions, feed};
use tenure_tx::status::{End, EndKind, Note, State, TransactionStatus};
use tenure_tx::store::{
    NewTransaction, Replacement, Retention, StatusChange, Store, StoreError, StoreOptions,
};

fn change(nonce: u64, tag: u8, status: TransactionStatus, ended: bool) -> StatusChange {
    let note =
        Note { end: ended.then(|| Box::new(End::new(EndKind::Executed))), ..Note::default() };
    StatusChange { nonce, hash: hash(tag), status, note }
}

async fn state(store: &Store, nonce: u64) -> TransactionStatus {
    store.by_nonce(nonce).await.expect("readable").expect("there").status
}

/// Rows and ids are kept for equally long.
fn kept(time: Duration) -> Retention {
    Retention { rows: time, ids: time }
}

#[tokio::test]
async fn stale_epoch_cannot_write() {
    let db = database().await;
    let old = store(&db.dsn(), "a");
    old.accept(E1, 0, &[row(0, 1, "r0")]).await.expect("leads");
    bump(&db).await;
    let refused = old.accept(E1, 0, &[row(1, 2, "r1")]).await;
    assert!(matches!(refused, Err(StoreError::Stale)), "{refused:?}");
    let refused = old.record(E1, &[change(0, 1, TransactionStatus::Ready, false)]).await;
    assert!(matches!(refused, Err(StoreError::Stale)), "{refused:?}");
    let attempts = vec![attempt(1), attempt(3)];
    let replacement = Replacement { nonce: 0, attempts, raw: Bytes::from_static(b"x") };
    let refused = old.replace(E1, &[replacement]).await;
    assert!(matches!(refused, Err(StoreError::Stale)), "{refused:?}");
    let refused = old.cleanup(E1, 9, kept(Duration::ZERO)).await;
    assert!(matches!(refused, Err(StoreError::Stale)), "{refused:?}");
    assert_eq!(old.list(0).await.expect("reads need no epoch").len(), 1);
    assert_eq!(state(&old, 0).await, TransactionStatus::Future);
    old.accept(Epoch(2), 0, &[row(1, 2, "r1")]).await.expect("the new epoch may");
}

#[tokio::test]
async fn a_write_whose_outcome_is_unknown_is_over_before_the_next_statement() {
    let db = database().await;
    let mut options = StoreOptions::new(kit::ROLE.parse().expect("a name"), account(), "a");
    options.deadline = Duration::from_secs(1);
    let ours = Store::new(connector(&db.dsn()), options).for_the_writer();
    ours.accept(E1, 0, &[row(0, 1, "before")]).await.expect("leads");
    let mut client = db.client().await.expect("it answers");
    let held = client.transaction().await.expect("begun");
    let lock = "lock table tenure_tx.pending_transactions in share row exclusive mode";
    held.batch_execute(lock).await.expect("held");
    let unknown = ours.accept(E1, 0, &[row(1, 2, "held up")]).await;
    assert!(matches!(unknown, Err(StoreError::Lost(_))), "{unknown:?}");
    // The reading that follows is the truth: what was held up does not land after it.
    assert!(ours.by_nonce(1).await.expect("readable").is_none());
    held.rollback().await.expect("let go");
    let after = ours.accept(E1, 0, &[row(1, 3, "after")]).await.expect("leads");
    assert_eq!(after, [1], "the nonce is free");
    assert_eq!(ours.by_nonce(1).await.expect("readable").expect("there").request_id, "after");
}

/// Not even an error that has a code says for certain that nothing was written: a pooler does not know.
#[tokio::test]
async fn an_error_that_ends_the_session_is_no_word_on_the_write() {
    let db = database().await;
    let pooler = Pooler::start(shared_cluster().await.addr()).await;
    let ours = store(&pooler.dsn(db.name()), "a");
    ours.accept(E1, 0, &[row(0, 1, "before")]).await.expect("leads");
    pooler.lose_next();
    let unknown = ours.accept(E1, 0, &[row(1, 2, "carried out")]).await;
    assert!(matches!(unknown, Err(StoreError::Lost(_))), "{unknown:?}");
    assert!(ours.by_nonce(1).await.expect("readable").is_some(), "it is stored");
}

#[tokio::test]
async fn every_function_finds_its_names_whatever_the_callers_search_path_is() {
    let db = database().await;
    let client = db.client().await.expect("it answers");
    let open = "select coalesce(string_agg(oid::regprocedure::text, ', '), '') from pg_proc \
        where pronamespace = 'tenure_tx'::regnamespace and prosqlbody is null \
          and not 'search_path=pg_catalog, pg_temp' = any (coalesce(proconfig, '{}'))";
    let open = client.query_one(open, &[]).await.expect("readable");
    assert_eq!(open.get::<_, &str>(0), "");
    let all = "select count(*) from pg_proc where pronamespace = 'tenure_tx'::regnamespace";
    assert!(client.query_one(all, &[]).await.expect("readable").get::<_, i64>(0) > 12);
}

#[tokio::test]
async fn a_function_that_a_login_role_made_elsewhere_never_runs_with_an_operators_rights() {
    let db = database().await;
    store(&db.dsn(), "a").accept(E1, 0, &[row(0, 1, "r0")]).await.expect("leads");
    // As an operator has it: "$user", public.
    let client = db.client().await.expect("it answers");
    let attacker = format!("attacker_{}", db.name());
    client
        .batch_execute(&format!(
            "create role {attacker}; grant create on schema public to {attacker}; \
             create table public.ran (name text); set role {attacker}; \
             create function public.json_build_object(text, text, text, json) returns json \
                language plpgsql as \
                $$ begin insert into public.ran values ('build'); return '{{}}'; end $$; \
             create function public.format(text, text) returns text language plpgsql as \
                $$ begin insert into public.ran values ('format'); return ''; end $$; \
             create function public.make_interval(secs double precision) returns interval \
                language plpgsql as \
                $$ begin insert into public.ran values ('interval'); return '1 s'; end $$; \
             reset role"
        ))
        .await
        .expect("the trap is set");
    client
        .batch_execute(
            "update tenure_tx.pending_transactions set creator_id = 'operator'; \
             select tenure_tx.doubts(); select tenure_tx.refuse_loss(); \
             select tenure_tx.record('relayer', 1, decode(repeat('aa', 20), 'hex'), '{0}', \
                array[hash], '{ready}', '{null}', '{\"{}\"}', '{f}') \
                from tenure_tx.pending_transactions",
        )
        .await
        .expect("the operator works on");
    let ran = client.query_one("select count(*) from public.ran", &[]).await.expect("readable");
    assert_eq!(ran.get::<_, i64>(0), 0, "another login's function ran");
    let drop = format!("drop owned by {attacker}; drop role {attacker}");
    client.batch_execute(&drop).await.expect("dropped");
}

#[tokio::test]
async fn nodes_that_boot_together_migrate_once() {
    let db = shared_cluster().await.database().await.expect("a fresh database");
    let nodes: Vec<Store> = (0..6).map(|n| store(&db.dsn(), &format!("n{n}"))).collect();
    let done = futures_util::future::join_all(nodes.iter().map(Store::migrate)).await;
    assert!(done.iter().all(Result::is_ok), "{done:?}");
    let client = db.client().await.expect("it answers");
    let count = client.query_one("select count(*) from tenure_tx.migration", &[]).await;
    assert_eq!(count.expect("a table").get::<_, i64>(0), 2);
}

#[tokio::test]
async fn a_live_nonce_is_never_taken_over_and_a_dead_one_is() {
    let db = database().await;
    let store = store(&db.dsn(), "a");
    assert_eq!(store.accept(E1, 0, &[row(0, 1, "r0")]).await.expect("leads"), [0]);
    // Clashes with the row above: nothing is written for it, the other one is stored.
    let stored = store.accept(E1, 0, &[row(0, 2, "r1"), row(1, 3, "r2")]).await;
    assert_eq!(stored.expect("leads"), [1]);
    assert_eq!(store.by_nonce(0).await.expect("readable").expect("there").request_id, "r0");
    let invalid = TransactionStatus::Invalid(Some("no funds".into()));
    store.record(E1, &[change(0, 1, invalid.clone(), false)]).await.expect("leads");
    assert!(store.accept(E1, 0, &[row(0, 2, "r1")]).await.expect("leads").is_empty());
    store.record(E1, &[change(0, 1, invalid, true)]).await.expect("leads");
    assert_eq!(store.accept(E1, 0, &[row(0, 2, "r1")]).await.expect("leads"), [0]);
    let reused = store.by_nonce(0).await.expect("readable").expect("there");
    assert_eq!((reused.request_id.as_str(), reused.ended), ("r1", false));
}

#[tokio::test]
async fn the_end_of_a_refused_request_is_seen_although_its_nonce_was_given_away() {
    let db = database().await;
    let store = store(&db.dsn(), "a");
    store.accept(E1, 0, &[row(0, 1, "refused")]).await.expect("leads");
    let invalid = TransactionStatus::Invalid(Some("no funds".into()));
    store.record(E1, &[change(0, 1, invalid.clone(), true)]).await.expect("leads");
    assert_eq!(store.accept(E1, 0, &[row(0, 2, "next")]).await.expect("leads"), [0]);
    // A reader that was away all the time.
    let seen = store.changes(0).await.expect("readable");
    let seen: Vec<_> = seen.iter().map(|t| (t.request_id.as_str(), &t.status, t.ended)).collect();
    assert_eq!(seen, [("refused", &invalid, true), ("next", &TransactionStatus::Future, false)]);
    // Kept as long as every ended row.
    store.cleanup(E1, 0, kept(Duration::from_secs(60))).await.expect("leads");
    assert_eq!(store.changes(0).await.expect("readable").len(), 2);
    store.cleanup(E1, 0, kept(Duration::ZERO)).await.expect("leads");
    assert_eq!(store.changes(0).await.expect("readable").len(), 1);
}

#[tokio::test]
async fn new_rows_and_statuses_of_others_are_one_commit() {
    let db = database().await;
    let store = store(&db.dsn(), "a");
    store.accept(E1, 0, &[row(0, 1, "r0")]).await.expect("leads");
    let ready = [change(0, 1, TransactionStatus::Ready, false)];
    let twice = store.accept_and_record(E1, 0, &[row(1, 2, "r0")], &ready).await;
    assert!(matches!(twice, Err(StoreError::DuplicateRequest)), "{twice:?}");
    assert_eq!(state(&store, 0).await, TransactionStatus::Future, "neither");
    let both = store.accept_and_record(E1, 0, &[row(1, 2, "r1")], &ready).await;
    assert_eq!(both.expect("leads").stored, [1]);
    assert_eq!(state(&store, 0).await, TransactionStatus::Ready, "both");
    bump(&db).await;
    let broadcast = [change(0, 1, TransactionStatus::Broadcast(vec![]), false)];
    let stale = store.accept_and_record(E1, 0, &[row(2, 3, "r2")], &broadcast).await;
    assert!(matches!(stale, Err(StoreError::Stale)), "{stale:?}");
    assert_eq!(state(&store, 0).await, TransactionStatus::Ready);
}

/// A writer's plans are made once, mostly while the table is empty.
#[tokio::test]
async fn what_a_row_costs_does_not_grow_with_the_table() {
    let db = database().await;
    let store = store(&db.dsn(), "a");
    for n in 0..100_u8 {
        let nonce = u64::from(n);
        store.accept(E1, 0, &[row(nonce, n, &format!("r{n}"))]).await.expect("leads");
        let ready = [change(nonce, n, TransactionStatus::Ready, false)];
        store.record(E1, &ready).await.expect("leads");
    }
    // A session tells what it did at its end.
    drop(store);
    let client = db.client().await.expect("a session");
    let of_table = "select (n_tup_ins = 100 and n_tup_upd = 100)::text from pg_stat_user_tables \
                    where relname = 'pending_transactions'";
    let of_index = "select idx_tup_read::text from pg_stat_user_indexes \
                    where indexrelname = 'pending_transactions_pkey'";
    tenure_testkit::until("the counts are there", async || {
        client.query_one(of_table, &[]).await.expect("a count").get::<_, String>(0) == "true"
    })
    .await;
    let read = client.query_one(of_index, &[]).await.expect("a count").get::<_, String>(0);
    assert!(read.parse::<u32>().expect("a number") < 1000, "{read} entries for 100 rows");
}

/// A replacement whose answer was lost may be stored later than it was given up for.
#[tokio::test]
async fn an_end_of_a_form_that_its_row_no_longer_has_is_told_also_beside_new_rows() {
    let db = database().await;
    let store = store(&db.dsn(), "a");
    store.accept(E1, 0, &[row(0, 1, "r0"), row(1, 2, "r1")]).await.expect("leads");
    let attempts = vec![attempt(1), attempt(7)];
    let late = Replacement { nonce: 0, attempts, raw: Bytes::from_static(b"late") };
    store.replace(E1, &[late]).await.expect("leads");
    let ends = [
        change(0, 1, TransactionStatus::Invalid(None), true),
        change(1, 2, TransactionStatus::Invalid(None), true),
    ];
    let accepted = store.accept_and_record(E1, 0, &[row(2, 3, "r2")], &ends).await.expect("leads");
    assert_eq!((accepted.stored, accepted.unplaced), (vec![2], vec![0]));
    assert_eq!(state(&store, 0).await, TransactionStatus::Future, "it has not ended");
    // Any other status may be overtaken.
    let ready = [change(0, 1, TransactionStatus::Ready, false)];
    let accepted = store.accept_and_record(E1, 0, &[row(3, 4, "r3")], &ready).await.expect("leads");
    assert_eq!((accepted.stored, accepted.unplaced), (vec![3], vec![]));
}

#[tokio::test]
async fn a_reason_no_database_can_hold_is_recorded_all_the_same() {
    let db = database().await;
    let store = store(&db.dsn(), "a");
    store.accept(E1, 0, &[row(0, 1, "r0")]).await.expect("leads");
    let reason = TransactionStatus::Invalid(Some("bad\0proof".into()));
    assert_eq!(store.record(E1, &[change(0, 1, reason, false)]).await.expect("leads"), [0]);
    let written = TransactionStatus::Invalid(Some("bad\u{fffd}proof".into()));
    assert_eq!(state(&store, 0).await, written);
}

/// Statuses are not flushed, so a crash loses some that a reader has seen: what is written after it
/// must not look old to that reader.
#[tokio::test]
async fn numbers_a_reader_saw_are_not_given_again_after_a_crash() {
    let cluster = Cluster::start().await.expect("a server of its own");
    // Nothing is flushed that no caller asked for.
    cluster.set(&[("wal_writer_delay", "10s")]).await.expect("reloads");
    let db = kit::prepare(cluster.database().await.expect("a database")).await;
    let writer = store(&db.dsn(), "writer");
    writer.accept(E1, 0, &[row(0, 1, "r0")]).await.expect("leads");
    // The session's first write is flushed; from then on the statuses are not.
    for _ in 0..100 {
        for status in [TransactionStatus::Ready, TransactionStatus::Dropped] {
            writer.record(E1, &[change(0, 1, status, false)]).await.expect("leads");
        }
    }
    let seen = writer.newest_change().await.expect("readable");
    cluster.crash().await.expect("crashes");
    cluster.start_again().await.expect("starts");
    let next = store(&db.dsn(), "next");
    let kept = next.newest_change().await.expect("readable");
    assert!(kept < seen, "the crash lost nothing, so this test shows nothing");
    let done = TransactionStatus::Finalized(hash(9));
    next.record(E1, &[change(0, 1, done, true)]).await.expect("leads");
    let fresh = next.changes(seen).await.expect("readable");
    assert_eq!(fresh.iter().map(|t| t.ended).collect::<Vec<_>>(), [true], "the end is news");
    assert!(fresh[0].change >= kept + 1_048_576, "far above what can have been lost");
}

/// A piece of SQL as the guide gives it.
fn from_the_guide(first_words: &str) -> String {
    let guide = include_str!("../../../docs/transactions.md");
    let block = guide.split("```sql\n").skip(1).filter_map(|rest| rest.split("```").next());
    block.into_iter().find(|sql| sql.contains(first_words)).expect("in the guide").to_owned()
}

/// Numbers are read by era: neither its boundary, nor another writer, nor a page's end hides one.
#[tokio::test]
async fn a_reader_that_goes_on_from_any_number_misses_nothing() {
    let db = database().await;
    let client = db.client().await.expect("it answers");
    let first = store(&db.dsn(), "first");
    let invalid = TransactionStatus::Invalid(None);
    first.accept(E1, 0, &[row(0, 1, "refused")]).await.expect("leads");
    // The last three numbers of an era, then the next.
    let edge = "select setval('tenure_tx.change', \
                ((select last_value from tenure_tx.change) / 4096 + 2) * 4096 - 4)";
    client.query_one(edge, &[]).await.expect("the owner may");
    first.record(E1, &[change(0, 1, invalid, true)]).await.expect("leads");
    for nonce in 0..6 {
        first.accept(E1, 0, &[row(nonce, 2, &format!("r{nonce}"))]).await.expect("leads");
    }
    let second = store(&db.dsn(), "second");
    let many: Vec<_> = (6..2_506).map(|n| row(n, 3, &format!("r{n}"))).collect();
    second.accept(E1, 0, &many).await.expect("leads");
    let mut all = Vec::new();
    let mut last = 0;
    loop {
        let page = second.changes(last).await.expect("readable");
        let Some(newest) = page.last() else { break };
        last = newest.change;
        all.extend(page.into_iter().map(|t| (t.change, t.request_id)));
    }
    assert_eq!(all.len(), 1 + 6 + 2_500);
    assert!(all.is_sorted_by(|a, b| a.0 < b.0));
    assert_eq!(all[0].1, "refused");
    let eras: Vec<i64> = all[..7].iter().map(|(change, _)| change / 4096).collect();
    assert!(eras[0] < eras[6] && eras[6] < all[7].0 / 4096, "{eras:?}: no boundary was met");
    let query = from_the_guide("order by era, change");
    let query = query.rsplit(';').find(|part| part.contains("select")).expect("a query");
    let query = query.replace("'\\x…'", &format!("'\\x{}'", "aa".repeat(20)));
    for at in (0..all.len()).filter(|at| *at < 8 || at % 500 == 0) {
        let after = second.changes(all[at].0).await.expect("readable");
        let seen: Vec<i64> = after.iter().map(|t| t.change).collect();
        let expected: Vec<i64> = all[at + 1..].iter().take(1_000).map(|row| row.0).collect();
        assert_eq!(seen, expected);
        let rows = client.query(&query.replace(":last", &all[at].0.to_string()), &[]).await;
        let seen: Vec<i64> = rows.expect("runs").iter().map(|r| r.get("change")).collect();
        let expected: Vec<i64> = all[at + 1..].iter().map(|row| row.0).collect();
        assert_eq!(seen, expected, "the guide's query");
    }
}

#[tokio::test]
async fn the_guides_grants_are_enough_for_a_node_and_no_more() {
    let db = database().await;
    let client = db.client().await.expect("it answers");
    let login = format!("app_{}", db.name());
    client.batch_execute(&format!("create role {login} login")).await.expect("a login");
    let election = tenure::schema::privileges_sql(&login);
    client.batch_execute(&election).await.expect("the election's grants");
    let ours = from_the_guide("grant ").replace(" app", &format!(" {login}"));
    client.batch_execute(&ours).await.expect("the guide's grants");
    let node = store(&db.dsn_for(&login), "a");
    node.migrate().await.expect("nothing is left to do");
    // Everything a node does, a nonce given away and the clean-up among it.
    node.accept(E1, 0, &[row(0, 1, "refused"), row(1, 2, "done")]).await.expect("accepts");
    let attempts = vec![attempt(2), attempt(3)];
    let replacement = Replacement { nonce: 1, attempts, raw: Bytes::from_static(b"3") };
    assert_eq!(node.replace(E1, &[replacement]).await.expect("replaces"), [1]);
    let ends = [
        change(0, 1, TransactionStatus::Invalid(None), true),
        change(1, 3, TransactionStatus::Finalized(hash(9)), true),
    ];
    assert_eq!(node.record(E1, &ends).await.expect("records").len(), 2);
    assert_eq!(node.accept(E1, 0, &[row(0, 4, "next")]).await.expect("accepts"), [0]);
    assert_eq!(node.changes(0).await.expect("reads").len(), 3);
    assert_eq!(node.snapshot().await.expect("reads").open.len(), 1);
    node.open_account(E1, "a chain").await.expect("binds");
    assert_eq!(node.see("a", "a chain", 7).await.expect("told"), None, "no other member");
    assert_eq!(node.cleanup(E1, 2, kept(Duration::ZERO)).await.expect("removes"), 2);
    assert_eq!(node.changes(0).await.expect("reads").len(), 1);
    let set = format!("set role {login}");
    client.batch_execute(&set).await.expect("its rights");
    for forbidden in [
        "drop table tenure_tx.pending_transactions",
        "truncate tenure_tx.pending_transactions",
        "update tenure_tx.past_transactions set nonce = 0",
        "insert into tenure_tx.migration (version) values (9)",
        "alter table tenure_tx.pending_transactions disable trigger all",
        "create table tenure_tx.mine ()",
    ] {
        assert!(client.batch_execute(forbidden).await.is_err(), "{forbidden}");
    }
    let clean = format!("reset role; drop owned by {login}; drop role {login}");
    client.batch_execute(&clean).await.expect("a cluster without it");
}

#[tokio::test]
async fn a_request_id_is_stored_once_and_found_again() {
    let db = database().await;
    let store = store(&db.dsn(), "a");
    store.accept(E1, 0, &[row(0, 1, "pay-7")]).await.expect("leads");
    let twice = store.accept(E1, 0, &[row(1, 2, "pay-7")]).await;
    assert!(matches!(twice, Err(StoreError::DuplicateRequest)), "{twice:?}");
    let found = store.by_request(&["pay-7".into(), "nothing".into()]).await.expect("readable");
    assert_eq!(found.iter().map(|t| t.nonce).collect::<Vec<_>>(), [0]);
}

#[tokio::test]
async fn a_request_is_found_by_its_id_after_its_nonce_was_given_away_and_after_its_row_is_gone() {
    let db = database().await;
    let store = store(&db.dsn(), "a");
    store.accept(E1, 0, &[row(0, 1, "refused"), row(1, 2, "paid")]).await.expect("leads");
    let invalid = TransactionStatus::Invalid(Some("too big".into()));
    let paid = TransactionStatus::Finalized(hash(9));
    let ends = [change(0, 1, invalid.clone(), true), change(1, 2, paid.clone(), true)];
    store.record(E1, &ends).await.expect("leads");
    store.accept(E1, 0, &[row(0, 3, "next")]).await.expect("leads");
    let retention = Retention { rows: Duration::ZERO, ids: Duration::from_secs(3_600) };
    assert_eq!(store.cleanup(E1, 2, retention).await.expect("leads"), 1);
    assert_eq!(store.list(0).await.expect("readable").len(), 1, "only what is open");
    let ids = ["refused", "paid", "next"].map(str::to_owned);
    let found = store.by_request(&ids).await.expect("readable");
    let found: BTreeMap<_, _> = found.iter().map(|t| (t.request_id.as_str(), t)).collect();
    assert_eq!((&found["refused"].status, found["refused"].nonce), (&invalid, 0));
    assert_eq!((&found["paid"].status, found["paid"].nonce), (&paid, 1));
    for gone in ["refused", "paid"] {
        assert!(found[gone].ended && found[gone].raw.is_none() && found[gone].call.is_none());
        assert!(found[gone].is_call(b"call") && !found[gone].is_call(b"another"));
    }
    assert!(found["next"].is_call(b"call"));
    let by_nonce = store.by_nonce(1).await.expect("readable").expect("it left the table");
    assert_eq!(by_nonce.request_id, "paid");
    let by_nonce = store.by_nonce(0).await.expect("readable").expect("there");
    assert_eq!(by_nonce.request_id, "next", "the newest of a nonce that was given away");
    let snapshot = store.snapshot().await.expect("readable");
    assert_eq!(snapshot.consumed, 2, "what left the table was used all the same");
    // A reader that was away meanwhile hears every end.
    let seen = store.changes(0).await.expect("readable");
    assert_eq!(seen.iter().filter(|t| t.ended).count(), 2);
    store.cleanup(E1, 2, kept(Duration::ZERO)).await.expect("leads");
    assert_eq!(store.by_request(&ids).await.expect("readable").len(), 1, "forgotten in the end");
}

#[tokio::test]
async fn what_has_left_the_table_is_no_news_to_a_reader_that_begins_now() {
    let db = database().await;
    let store = store(&db.dsn(), "a");
    store.accept(E1, 0, &[row(0, 1, "paid")]).await.expect("leads");
    let paid = TransactionStatus::Finalized(hash(9));
    store.record(E1, &[change(0, 1, paid, true)]).await.expect("leads");
    let retention = Retention { rows: Duration::ZERO, ids: Duration::from_secs(3_600) };
    assert_eq!(store.cleanup(E1, 1, retention).await.expect("leads"), 1);
    assert_eq!(store.changes(0).await.expect("readable").len(), 1, "it is remembered");
    let now = store.newest_change().await.expect("readable");
    assert!(store.changes(now).await.expect("readable").is_empty());
}

#[tokio::test]
async fn an_account_belongs_to_one_role_and_one_chain() {
    let db = database().await;
    let ours = store(&db.dsn(), "a");
    ours.open_account(E1, "1 0xaa").await.expect("the first");
    ours.open_account(E1, "1 0xaa").await.expect("the same again");
    ours.check_account("1 0xaa").await.expect("bound to each other");
    let other = ours.check_account("777 0xbb").await.expect_err("another chain");
    assert!(matches!(other, StoreError::Bound(_)), "{other}");
    let other = ours.open_account(E1, "777 0xbb").await.expect_err("another chain");
    assert!(matches!(&other, StoreError::Bound(why) if why.contains("777 0xbb")), "{other}");
    let key = AccountId::new([0xbb; 20]).expect("20 bytes");
    let second = store_of(&db.dsn(), "b", key).open_account(E1, "1 0xaa").await;
    let second = second.expect_err("a second key under one role");
    assert!(matches!(&second, StoreError::Bound(why) if why.contains("0xaaaa")), "{second}");
    assert!(second.to_string().contains("was changed on purpose"), "{second}");
    let client = db.client().await.expect("it answers");
    client
        .batch_execute(
            "insert into tenure.role (name, key, policy, lease_ms, epoch) \
             values ('another', 2, 'exclusive', 3000, 1)",
        )
        .await
        .expect("a role");
    let options = StoreOptions::new("another".parse().expect("a name"), account(), "c");
    let moved = Store::new(connector(&db.dsn()), options).open_account(E1, "1 0xaa").await;
    let moved = moved.expect_err("one account under two roles");
    assert!(matches!(&moved, StoreError::Bound(why) if why.contains("another")), "{moved}");
    bump(&db).await;
    let stale = ours.open_account(E1, "1 0xaa").await;
    assert!(matches!(stale, Err(StoreError::Stale)), "{stale:?}");
}

#[tokio::test]
async fn a_status_of_an_older_attempt_is_ignored_unless_it_finalised() {
    let db = database().await;
    let store = store(&db.dsn(), "a");
    store.accept(E1, 0, &[row(0, 1, "r0")]).await.expect("leads");
    let newer = Attempt { tip: 9, noop: true, ..attempt(2) };
    let replacement =
        Replacement { nonce: 0, attempts: vec![attempt(1), newer], raw: Bytes::from_static(b"2") };
    assert_eq!(store.replace(E1, &[replacement]).await.expect("leads"), [0]);
    let block = hash(50);
    for status in [TransactionStatus::InBlock(block), TransactionStatus::Dropped] {
        let written = store.record(E1, &[change(0, 1, status, false)]).await;
        assert!(written.expect("leads").is_empty(), "about the old attempt");
    }
    let foreign = change(0, 9, TransactionStatus::Finalized(block), true);
    assert!(store.record(E1, &[foreign]).await.expect("leads").is_empty());
    let won = change(0, 1, TransactionStatus::Finalized(block), true);
    assert_eq!(store.record(E1, std::slice::from_ref(&won)).await.expect("leads"), [0]);
    let row = store.by_nonce(0).await.expect("readable").expect("there");
    assert_eq!((row.hash, row.noop, row.raw, row.ended), (hash(1), false, None, true));
    assert!(store.record(E1, &[won]).await.expect("leads").is_empty(), "nothing follows an end");
}

#[tokio::test]
async fn the_snapshot_holds_what_is_owed_and_how_far_the_nonces_are_used() {
    let db = database().await;
    let store = store(&db.dsn(), "a");
    let rows: Vec<_> = (0..5).map(|n| row(n, n as u8 + 1, &format!("r{n}"))).collect();
    store.accept(E1, 7, &rows).await.expect("leads");
    let block = hash(50);
    store
        .record(
            E1,
            &[
                change(0, 1, TransactionStatus::Finalized(block), true),
                change(1, 2, TransactionStatus::Usurped(None), true),
                change(2, 3, TransactionStatus::Dropped, false),
                change(3, 4, TransactionStatus::FinalityTimeout(block), false),
                change(4, 5, TransactionStatus::Invalid(None), true),
            ],
        )
        .await
        .expect("leads");
    let snapshot = store.snapshot().await.expect("readable");
    assert_eq!(snapshot.consumed, 2);
    let open: Vec<_> = snapshot.open.iter().map(|t| (t.nonce, t.status.state())).collect();
    assert_eq!(open, [(2, State::Dropped), (3, State::FinalityTimeout)]);
    assert_eq!(snapshot.open[0].raw.as_deref(), Some([3; 8].as_slice()));
    assert_eq!(snapshot.open[0].built_at_block, 7);
    // Below the finalised nonce, ended, and old enough: nothing else goes.
    assert_eq!(store.cleanup(E1, 5, kept(Duration::from_secs(60))).await.expect("leads"), 0);
    assert_eq!(store.cleanup(E1, 2, kept(Duration::ZERO)).await.expect("leads"), 2);
    assert_eq!(store.list(0).await.expect("readable").len(), 3);
}

#[tokio::test]
async fn an_unknown_state_in_the_table_is_named() {
    let db = database().await;
    let store = store(&db.dsn(), "a");
    store.accept(E1, 0, &[row(3, 1, "r0")]).await.expect("leads");
    let client = db.client().await.expect("it answers");
    client
        .batch_execute(
            "alter table tenure_tx.pending_transactions drop constraint known_state; \
             update tenure_tx.pending_transactions set state = 'teleported'",
        )
        .await
        .expect("a newer version was here");
    let error = store.snapshot().await.expect_err("cannot be read");
    assert!(matches!(error, StoreError::UnknownState { nonce: 3, .. }), "{error:?}");
    assert!(error.to_string().contains("teleported"));
}

#[tokio::test]
async fn a_transaction_of_one_mebibyte_is_stored_and_announced_with_keys_only() {
    let db = database().await;
    let store = store(&db.dsn(), "a");
    let mut updates = feed(store.clone(), 0, FeedOptions::default());
    let big = Bytes::from(vec![7; 1 << 20]);
    let large = NewTransaction { raw: big.clone(), call: Some(big.clone()), ..row(0, 1, "big") };
    store.accept(E1, 0, &[large]).await.expect("leads");
    let item = tokio::time::timeout(Duration::from_secs(10), updates.recv()).await;
    let Ok(Some(FeedItem::Row(row))) = item else { panic!("expected the row, got {item:?}") };
    assert_eq!(row.raw, Some(big));
    // A batch whose keys would not fit into one notification either.
    let many: Vec<_> = (1..2_001).map(|n| kit::row(n, 2, &format!("r{n}"))).collect();
    store.accept(E1, 0, &many).await.expect("leads");
    let mut seen = 0;
    while seen < 2_000 {
        let item = tokio::time::timeout(Duration::from_secs(10), updates.recv()).await;
        assert!(matches!(item, Ok(Some(FeedItem::Row(_)))), "{item:?}");
        seen += 1;
    }
}

#[tokio::test]
async fn all_ten_statuses_reach_a_reader_with_their_blocks() {
    let db = database().await;
    let store = store(&db.dsn(), "a");
    let block = hash(50);
    let all = [
        TransactionStatus::Future,
        TransactionStatus::Ready,
        TransactionStatus::Broadcast(vec!["p1".into(), "p2".into()]),
        TransactionStatus::InBlock(block),
        TransactionStatus::Retracted(block),
        TransactionStatus::FinalityTimeout(block),
        TransactionStatus::Finalized(block),
        TransactionStatus::Usurped(Some(hash(9))),
        TransactionStatus::Dropped,
        TransactionStatus::Invalid(Some("bad proof".into())),
    ];
    let rows: Vec<_> = (0..10).map(|n| row(n, n as u8 + 1, &format!("r{n}"))).collect();
    store.accept(E1, 0, &rows).await.expect("leads");
    let changes: Vec<_> =
        (0u64..).zip(&all).skip(1).map(|(n, s)| change(n, n as u8 + 1, s.clone(), false)).collect();
    assert_eq!(store.record(E1, &changes).await.expect("leads").len(), 9);
    let mut updates = feed(kit::store(&db.dsn(), "reader"), 0, FeedOptions::default());
    let mut seen = BTreeMap::new();
    while seen.len() < 10 {
        let item = tokio::time::timeout(Duration::from_secs(10), updates.recv()).await;
        let Ok(Some(FeedItem::Row(row))) = item else { panic!("expected a row, got {item:?}") };
        seen.insert(row.nonce, row.status);
    }
    assert_eq!(seen.into_values().collect::<Vec<_>>(), all);
}

/// The writer writes on a healthy line while the reader's is cut again and again.
#[tokio::test]
async fn a_reader_that_survives_any_cut_sees_every_final_state() {
    let db = database().await;
    let writer = store(&db.dsn(), "writer");
    let cluster = shared_cluster().await;
    let proxy = Proxy::start(cluster.addr()).await.expect("a proxy");
    let reader = store(&proxy.dsn(db.name()), "reader");
    let poll = Duration::from_millis(200);
    let mut updates = feed(reader, 0, FeedOptions { poll, stale_after: Duration::from_secs(60) });
    for nonce in 0..60 {
        let tag = nonce as u8 + 1;
        writer.accept(E1, 0, &[row(nonce, tag, &format!("r{nonce}"))]).await.expect("leads");
        if nonce % 7 == 3 {
            proxy.reset();
        }
        let done = TransactionStatus::Finalized(hash(tag));
        writer.record(E1, &[change(nonce, tag, done, true)]).await.expect("leads");
    }
    let mut last = BTreeMap::new();
    let finished = |last: &BTreeMap<u64, TransactionStatus>| {
        last.len() == 60 && last.values().all(|s| s.state() == State::Finalized)
    };
    while !finished(&last) {
        let item = tokio::time::timeout(Duration::from_secs(20), updates.recv()).await;
        match item {
            Ok(Some(FeedItem::Row(row))) => {
                last.insert(row.nonce, row.status);
            }
            Ok(Some(_)) => {}
            Ok(None) | Err(_) => panic!("the feed stopped at {last:?}"),
        }
    }
}

#[tokio::test]
async fn a_reader_says_that_its_view_is_stale_and_when_it_is_fresh_again() {
    let db = database().await;
    let cluster = shared_cluster().await;
    let proxy = Proxy::start(cluster.addr()).await.expect("a proxy");
    let reader = store(&proxy.dsn(db.name()), "reader");
    let (poll, stale_after) = (Duration::from_millis(50), Duration::from_millis(100));
    let mut updates = feed(reader, 0, FeedOptions { poll, stale_after });
    proxy.refuse(true).await.expect("refuses");
    proxy.reset();
    let item = tokio::time::timeout(Duration::from_secs(20), updates.recv()).await;
    assert!(matches!(item, Ok(Some(FeedItem::Stale(_)))), "{item:?}");
    proxy.refuse(false).await.expect("accepts");
    let item = tokio::time::timeout(Duration::from_secs(20), updates.recv()).await;
    assert!(matches!(item, Ok(Some(FeedItem::Fresh))), "{item:?}");
}

#[tokio::test]
async fn an_end_that_the_chain_does_not_know_is_flushed() {
    let db = database().await;
    store(&db.dsn(), "a").accept(E1, 0, &[row(0, 1, "r0")]).await.expect("leads");
    let client = db.client().await.expect("it answers");
    client.batch_execute("begin").await.expect("begun");
    let record = "select tenure_tx.record('relayer', 1, t.account_id, array[t.nonce], \
         array[t.hash], array['invalid'], array[null::bytea], array['{}'], array[true]) \
         from tenure_tx.pending_transactions t";
    assert_eq!(client.query(record, &[]).await.expect("recorded").len(), 1);
    let setting = "select current_setting('synchronous_commit')";
    let setting = client.query_one(setting, &[]).await.expect("readable");
    assert_eq!(setting.get::<_, &str>(0), "on");
}
