//! A write under an old epoch cannot commit after a newer one was issued.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tenure::{Epoch, FenceError};
use tenure_testkit::Database;
use tokio_postgres::{Client, GenericClient};

use crate::stage::{PATIENCE, database, gone, leader, one, until};

const LEVELS: [&str; 3] = ["read committed", "repeatable read", "serializable"];

/// A role with epoch 1 and no holder, and a table to write to.
async fn role_at_epoch_one() -> (Database, Client) {
    let database = database().await;
    let (member, lock) = leader(&database, "r").await;
    assert_eq!(lock.gate().epoch(), Some(Epoch(1)));
    gone(member).await;
    let client = database.client().await.expect("a client");
    client.batch_execute("create table work (id serial, epoch bigint)").await.expect("a table");
    (database, client)
}

async fn bump(client: &Client) -> Result<u64, tokio_postgres::Error> {
    client.execute("update tenure.role set epoch = epoch + 1 where name = 'r'", &[]).await
}

/// Whether this transaction passed its fence without a look at the row.
async fn by_its_pass(client: &impl GenericClient) -> bool {
    let locks = "select (count(*) filter (where relation = 'tenure.role'::regclass))::int, \
                        (count(*) filter (where locktype = 'advisory' and mode = 'ShareLock'))::int \
                 from pg_locks where pid = pg_backend_pid()";
    let row = client.query_one(locks, &[]).await.expect("its locks");
    match (row.get::<_, i32>(0), row.get::<_, i32>(1)) {
        (0, 1..) => true,
        (1.., 0) => false,
        other => panic!("locks on the row and the key: {other:?}"),
    }
}

/// Each level, for a session without a pass and for one that has it.
fn ways() -> impl Iterator<Item = (&'static str, bool)> {
    LEVELS.into_iter().flat_map(|level| [(level, false), (level, true)])
}

/// A session at that level, which has a pass for role r with epoch 1 or has none.
async fn writer(database: &Database, level: &str, pass: bool) -> Client {
    let client = database.client().await.expect("a client");
    let set = format!("set default_transaction_isolation = '{level}'");
    client.batch_execute(&set).await.unwrap();
    if pass {
        client.batch_execute("select tenure.fence('r', 1)").await.expect("current");
    }
    client
}

#[tokio::test]
async fn a_stale_snapshot_cannot_pass_the_fence_at_any_isolation_level() {
    for (level, pass) in ways() {
        let (database, other) = role_at_epoch_one().await;
        let mut client = writer(&database, level, pass).await;
        let stale = client.transaction().await.unwrap();
        // The snapshot is taken now, before the bump.
        stale.batch_execute("select * from tenure.role").await.unwrap();
        bump(&other).await.expect("nothing holds it up yet");
        let error = tenure::fence(&stale, "r", Epoch(1)).await.expect_err(level);
        assert!(matches!(error, FenceError::Stale { .. }), "{level}: {error:?}");
        stale.rollback().await.unwrap();
        assert_eq!(one(&other, "select count(*) from work").await, "0");
    }
}

#[tokio::test]
async fn a_bump_waits_for_every_transaction_that_passed_the_fence() {
    for (level, pass) in ways() {
        let (database, other) = role_at_epoch_one().await;
        let mut client = writer(&database, level, pass).await;
        let fenced = client.transaction().await.unwrap();
        tenure::fence(&fenced, "r", Epoch(1)).await.expect("the epoch is current");
        assert_eq!(by_its_pass(&fenced).await, pass, "{level}");
        fenced.batch_execute("insert into work (epoch) values (1)").await.unwrap();
        other.batch_execute("set lock_timeout = 100").await.unwrap();
        let error = bump(&other).await.expect_err("it must wait");
        assert_eq!(error.code().map(|code| code.code()), Some("55P03"), "{level}");
        fenced.commit().await.expect("it was there first");
        bump(&other).await.expect("nothing is in the way any more");
        assert_eq!(one(&other, "select count(*) from work").await, "1", "{level}");
    }
}

#[tokio::test]
async fn other_updates_of_the_row_do_not_fail_the_rightful_leader() {
    for (level, pass) in ways() {
        let (database, other) = role_at_epoch_one().await;
        let mut client = writer(&database, level, pass).await;
        let fenced = client.transaction().await.unwrap();
        fenced.batch_execute("select * from tenure.role").await.unwrap();
        other.batch_execute("select tenure.set_paused('r', true, 'test')").await.unwrap();
        tenure::fence(&fenced, "r", Epoch(1)).await.expect(level);
        other.batch_execute("select tenure.set_paused('r', false, 'test')").await.expect(level);
        fenced.batch_execute("insert into work (epoch) values (1)").await.unwrap();
        fenced.commit().await.expect(level);
    }
}

#[tokio::test]
async fn the_form_insert_select_from_fence_is_refused_when_stale() {
    let (_database, client) = role_at_epoch_one().await;
    let insert = "insert into work (epoch) select e from tenure.fence('r', 1) e";
    client.batch_execute(insert).await.expect("current");
    bump(&client).await.unwrap();
    let error = client.batch_execute(insert).await.expect_err("stale");
    assert_eq!(error.code().map(|code| code.code()), Some("TN001"));
    // One that was never issued is refused alike, and not called stale.
    let error = client.batch_execute("select tenure.fence('r', 999)").await.expect_err("unknown");
    let said = error.as_db_error().expect("the server's own").message();
    assert_eq!(error.code().map(|code| code.code()), Some("TN001"));
    assert!(said.contains("is above the last one"), "{said}");
    assert_eq!(one(&client, "select count(*) from work").await, "1");
}

/// Puts the trigger for rows on the table.
async fn fence_rows(client: &Client) {
    client
        .batch_execute(
            "create trigger fenced before insert or update or delete on work for each row \
             execute function tenure.fenced('r', 'epoch')",
        )
        .await
        .expect("a trigger");
}

/// Runs it as one transaction and says what the server refused it with.
async fn refusal(client: &Client, sql: &str) -> Option<String> {
    let end = client.batch_execute(&format!("begin; {sql}; commit")).await;
    client.batch_execute("rollback").await.expect("a rollback");
    end.err().map(|error| error.code().map_or(error.to_string(), |code| code.code().to_owned()))
}

#[tokio::test]
async fn a_row_trigger_reads_the_epoch_of_an_insert_from_a_column() {
    let (_database, client) = role_at_epoch_one().await;
    fence_rows(&client).await;
    client.batch_execute("insert into work (epoch) values (1)").await.expect("current");
    for stale in ["0", "2", "null"] {
        let insert = format!("insert into work (epoch) values ({stale})");
        let error = client.batch_execute(&insert).await.expect_err(stale);
        assert_eq!(error.code().map(|code| code.code()), Some("TN001"), "{stale}");
    }
    let stamped = "select tenure.fence('r', 1); insert into work default values";
    assert_eq!(refusal(&client, stamped).await, None);
    assert_eq!(one(&client, "select string_agg(epoch::text, ' ') from work").await, "1 1");
}

#[tokio::test]
async fn a_stale_writer_cannot_update_or_delete_the_rows_of_the_current_term() {
    let (_database, client) = role_at_epoch_one().await;
    fence_rows(&client).await;
    bump(&client).await.unwrap();
    client.batch_execute("insert into work (epoch) values (2)").await.expect("current");
    // The old row carries the current epoch into the new one: that says nothing of the writer.
    for write in [
        "update work set id = id + 1",
        "update work set epoch = 2",
        "update work set epoch = 1",
        "delete from work",
        "set local tenure.epoch = '1'; update work set id = id + 1",
        "set local tenure.epoch = '1'; update work set epoch = 2",
        "set local tenure.epoch = '1'; delete from work",
        "select tenure.fence('r', 1); delete from work",
        "savepoint s; select tenure.fence('r', 2); rollback to s; delete from work",
    ] {
        assert_eq!(refusal(&client, write).await.as_deref(), Some("TN001"), "{write}");
    }
    assert_eq!(one(&client, "select count(*) from work where epoch = 2").await, "1");
}

#[tokio::test]
async fn the_rightful_writer_updates_and_deletes_and_its_updates_are_stamped() {
    let (_database, client) = role_at_epoch_one().await;
    fence_rows(&client).await;
    client.batch_execute("insert into work (epoch) values (1)").await.expect("current");
    bump(&client).await.unwrap();
    for writer in ["select tenure.fence('r', 2)", "set local tenure.epoch = '2'"] {
        client.batch_execute("alter table work disable trigger fenced").await.unwrap();
        client.batch_execute("update work set epoch = 1").await.unwrap();
        client.batch_execute("alter table work enable trigger fenced").await.unwrap();
        for set in ["id = id + 1", "epoch = 7", "epoch = null"] {
            let update = format!("{writer}; update work set {set}");
            assert_eq!(refusal(&client, &update).await, None, "{update}");
            assert_eq!(one(&client, "select epoch from work").await, "2", "{update}");
        }
    }
    client.batch_execute("create unique index on work (id)").await.unwrap();
    let upsert = "insert into work (id, epoch) select id, 2 from work \
                  on conflict (id) do update set epoch = 0";
    assert_eq!(refusal(&client, upsert).await, None);
    assert_eq!(one(&client, "select epoch from work").await, "2");
    assert_eq!(refusal(&client, "select tenure.fence('r', 2); delete from work").await, None);
    assert_eq!(one(&client, "select count(*) from work").await, "0");
}

#[tokio::test]
async fn what_another_transaction_remembers_of_its_fence_counts_for_nothing() {
    let (_database, client) = role_at_epoch_one().await;
    fence_rows(&client).await;
    client.batch_execute("insert into work (epoch) values (1)").await.expect("current");
    let remembers = "select tenure.fence('r', 1); \
                     select set_config('tenure.fenced', current_setting('tenure.fenced'), false)";
    assert_eq!(refusal(&client, remembers).await, None);
    assert_ne!(one(&client, "select current_setting('tenure.fenced')").await, "");
    assert_eq!(refusal(&client, "delete from work").await.as_deref(), Some("TN001"));
}

#[tokio::test]
async fn a_transaction_behind_two_fences_does_not_wait_for_itself() {
    let (database, other) = role_at_epoch_one().await;
    other
        .batch_execute(
            "insert into tenure.role (name, key, policy, lease_ms, epoch) \
             values ('s', 5, 'fenced', 3000, 1)",
        )
        .await
        .unwrap();
    let client = database.client().await.expect("a client");
    client.batch_execute("set statement_timeout = '5s'; begin").await.unwrap();
    client.batch_execute("select tenure.fence('r', 1), tenure.fence('s', 1)").await.unwrap();
    // As the session does that ends what holds up a claim.
    other
        .batch_execute("select pg_advisory_lock(tenure.barrier(name)) from tenure.role")
        .await
        .unwrap();
    client
        .batch_execute("select tenure.fence('r', 1), tenure.fence('s', 1), tenure.fence('r', 1)")
        .await
        .expect("it stands behind both fences already");
    client.batch_execute("commit").await.unwrap();
    let waits =
        client.batch_execute("set statement_timeout = '100ms'; select tenure.fence('r', 1)");
    assert_eq!(waits.await.expect_err("the barrier").code().map(|code| code.code()), Some("57014"));
}

#[tokio::test]
async fn a_statement_trigger_reads_the_epoch_from_the_transaction() {
    let (_database, client) = role_at_epoch_one().await;
    client
        .batch_execute(
            "create trigger fenced before insert or update or delete on work \
             for each statement execute function tenure.fenced('r')",
        )
        .await
        .unwrap();
    let with = |epoch: &str| {
        format!(
            "begin; set local tenure.epoch = '{epoch}'; insert into work default values; commit"
        )
    };
    client.batch_execute(&with("1")).await.expect("current");
    client.batch_execute(&with("7")).await.expect_err("not issued");
    client.batch_execute("rollback").await.unwrap();
    client.batch_execute("delete from work").await.expect_err("no epoch at all");
    assert_eq!(one(&client, "select count(*) from work").await, "1");
}

#[tokio::test]
async fn an_idle_fenced_transaction_is_ended_after_the_lease() {
    for pass in [false, true] {
        let (database, other) = role_at_epoch_one().await;
        other.batch_execute("update tenure.role set lease_ms = 300").await.unwrap();
        let frozen = writer(&database, "read committed", pass).await;
        frozen.batch_execute("begin; select tenure.fence('r', 1)").await.unwrap();
        assert_eq!(by_its_pass(&frozen).await, pass);
        let before = one(&frozen, "select pg_backend_pid()").await;
        // From here on it says nothing, as a frozen process would.
        let gone = format!("select count(*) from pg_stat_activity where pid = {before}");
        until(&other, &gone, "0").await;
        bump(&other).await.expect("the way is free");
    }
}

#[tokio::test]
async fn the_limit_on_idling_ends_with_the_fenced_transaction_and_never_grows() {
    let (_database, client) = role_at_epoch_one().await;
    let show = "show idle_in_transaction_session_timeout";
    client.batch_execute("begin; select tenure.fence('r', 1)").await.unwrap();
    assert_eq!(one(&client, show).await, "3s");
    client.batch_execute("commit").await.unwrap();
    assert_eq!(one(&client, show).await, "0");
    for level in LEVELS {
        for (own, fenced) in [("1s", "1s"), ("3s", "3s"), ("1h", "3s"), ("0", "3s")] {
            let set = format!("set idle_in_transaction_session_timeout = '{own}'");
            client.batch_execute(&set).await.unwrap();
            let begin = format!("begin isolation level {level}; select tenure.fence('r', 1)");
            client.batch_execute(&begin).await.unwrap();
            assert_eq!(one(&client, show).await, fenced, "{own}, {level}");
            client.batch_execute("commit").await.unwrap();
            assert_eq!(one(&client, show).await, own, "{level}");
        }
    }
}

#[tokio::test]
async fn an_unknown_role_is_told_from_a_stale_epoch() {
    let (_database, client) = role_at_epoch_one().await;
    let error = tenure::fence(&client, "nobody's", Epoch(1)).await.expect_err("unknown");
    assert!(matches!(error, FenceError::UnknownRole { .. }), "{error:?}");
}

#[tokio::test]
async fn a_transaction_left_open_under_the_fence_cannot_keep_the_next_leader_out() {
    for pass in [false, true] {
        let (database, other) = role_at_epoch_one().await;
        // As a leader that froze inside its transaction leaves it; statements keep it from idling.
        let stuck = writer(&database, "read committed", pass).await;
        stuck.batch_execute("begin; select tenure.fence('r', 1)").await.unwrap();
        assert_eq!(by_its_pass(&stuck).await, pass);
        stuck.batch_execute("set local idle_in_transaction_session_timeout = 0").await.unwrap();
        let (member, lock) =
            crate::stage::candidate(&database, tenure::config::RoleSpec::named("r")).await;
        assert!(lock.wait_for_leadership(Some(PATIENCE)).await.is_ok(), "it must be ended");
        assert_eq!(lock.gate().epoch(), Some(Epoch(2)));
        stuck.batch_execute("commit").await.expect_err("its session is gone");
        assert_eq!(one(&other, "select epoch from tenure.role").await, "2");
        gone(member).await;
    }
}

#[tokio::test]
async fn a_pass_ends_with_every_change_of_any_epoch_and_with_the_row() {
    let (database, other) = role_at_epoch_one().await;
    let row = "insert into tenure.role (name, key, policy, lease_ms, epoch) \
               values ('s', 5, 'fenced', 3000, 1)";
    other.batch_execute(row).await.unwrap();
    let client = writer(&database, "read committed", true).await;
    let passes = async || {
        client.batch_execute("begin; select tenure.fence('r', 1)").await.expect("current");
        let pass = by_its_pass(&client).await;
        client.batch_execute("commit").await.unwrap();
        pass
    };
    assert!(passes().await && passes().await, "it has a pass");
    for (change, voids) in [
        ("update tenure.role set paused = not paused", false),
        ("update tenure.role set epoch = epoch where name = 's'", false),
        ("update tenure.role set epoch = 2 where name = 's'", true),
        ("select tenure.void_passes()", true),
        ("delete from tenure.role where name = 's'", true),
    ] {
        other.batch_execute(change).await.unwrap();
        assert_eq!(passes().await, !voids, "{change}");
        assert!(passes().await, "a new one: {change}");
    }
    // In a savepoint that is taken back nothing of the fence is left.
    client.batch_execute("begin; savepoint s; select tenure.fence('r', 1)").await.unwrap();
    client.batch_execute("rollback to s").await.unwrap();
    bump(&other).await.expect("the key was given back");
    client.batch_execute("rollback").await.unwrap();
    let fence = async || {
        let answer = client.batch_execute("select tenure.fence('r', 1)").await;
        answer.err().and_then(|error| error.code().map(|code| code.code().to_owned()))
    };
    assert_eq!(fence().await.as_deref(), Some("TN001"));
    other.batch_execute("update tenure.role set epoch = 1 where name = 'r'").await.unwrap();
    assert!(!passes().await && passes().await);
    other.batch_execute("truncate tenure.role").await.unwrap();
    assert_eq!(fence().await.as_deref(), Some("TN003"));
}

/// Writers that fence by their passes and by the row, at every level, while the epoch moves all the time. Each
/// change counts the rows of the epoch that it ends: none may come later.
#[tokio::test]
async fn no_row_of_an_epoch_comes_after_its_end() {
    const CHANGES: i64 = 300;
    let (database, other) = role_at_epoch_one().await;
    other.batch_execute("create table ended (epoch bigint, rows bigint)").await.unwrap();
    let mut writers = tokio::task::JoinSet::new();
    for n in 0..6 {
        let client = writer(&database, LEVELS[n % 3], false).await;
        writers.spawn(async move {
            // As many as it can of the epoch that it believes in, and then of the next.
            let mut epoch = 1;
            while epoch <= CHANGES {
                let write = format!(
                    "begin; insert into work (epoch) values (tenure.fence('r', {epoch})); \
                     select pg_sleep(random() * 0.0006); commit"
                );
                match client.batch_execute(&write).await {
                    Ok(()) => {}
                    Err(error) if error.code().is_some_and(|code| code.code() == "TN001") => {
                        client.batch_execute("rollback").await.unwrap();
                        let now = "select epoch from tenure.role where name = 'r'";
                        epoch = client.query_one(now, &[]).await.unwrap().get(0);
                    }
                    Err(error) => panic!("{error:?}"),
                }
            }
        });
    }
    for epoch in 1..=CHANGES {
        let change = format!(
            "begin; update tenure.role set epoch = {epoch} + 1 where name = 'r'; \
             insert into ended (epoch, rows) select {epoch}, count(*) from work where epoch = {epoch}; \
             commit; select pg_sleep(random() * 0.006)"
        );
        other.batch_execute(&change).await.expect("a change");
    }
    while let Some(writer) = writers.join_next().await {
        writer.expect("no panic");
    }
    let late = "select count(*) from ended e \
                where rows <> (select count(*) from work w where w.epoch = e.epoch)";
    assert_eq!(one(&other, late).await, "0", "rows that came after the end of their epoch");
    let written = one(&other, "select count(*) from work").await;
    assert!(written.parse::<i64>().unwrap() > 3 * CHANGES, "{written} rows say little");
}

/// A change that gives up waiting for a transaction with a pass, just when that transaction ends, leaves no lock
/// behind: the fences of the role would wait for it as long as its session lives.
#[tokio::test]
async fn a_change_that_gives_up_leaves_no_lock() {
    let (database, other) = role_at_epoch_one().await;
    let stop = Arc::new(AtomicBool::new(false));
    let mut writers = tokio::task::JoinSet::new();
    for _ in 0..3 {
        let (client, stop) = (writer(&database, "read committed", false).await, stop.clone());
        writers.spawn(async move {
            let write = "begin; select tenure.fence('r', (select epoch from tenure.role)); \
                         select pg_sleep(random() * 0.004); commit";
            while !stop.load(Ordering::Relaxed) {
                if client.batch_execute(write).await.is_err() {
                    client.batch_execute("rollback").await.unwrap();
                }
            }
        });
    }
    other.batch_execute("set lock_timeout = 3").await.unwrap();
    let mut gave_up = 0;
    for _ in 0..400 {
        gave_up += usize::from(bump(&other).await.is_err());
        let held =
            "select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()";
        assert_eq!(one(&other, held).await, "0", "after {gave_up} that gave up");
    }
    stop.store(true, Ordering::Relaxed);
    while let Some(writer) = writers.join_next().await {
        writer.expect("no panic");
    }
    assert!(gave_up > 10, "{gave_up} changes that gave up say little");
}

#[tokio::test]
async fn a_pass_is_void_also_after_what_goes_round_ordinary_updates() {
    let (database, other) = role_at_epoch_one().await;
    let client = writer(&database, "read committed", true).await;
    let fence = async |role: &str| {
        let answer = client.batch_execute(&format!("select tenure.fence({role}, 1)")).await;
        answer.err().and_then(|error| error.code().map(|code| code.code().to_owned()))
    };
    // As a subscriber or a restore writes.
    other.batch_execute("set session_replication_role = replica").await.unwrap();
    bump(&other).await.unwrap();
    assert_eq!(fence("'r'").await.as_deref(), Some("TN001"));
    other.batch_execute("update tenure.role set epoch = 1").await.unwrap();
    assert_eq!(fence("'r'").await, None);
    // All roles at once.
    client.batch_execute("begin; select tenure.fence('r', 1)").await.unwrap();
    assert!(by_its_pass(&client).await);
    other.batch_execute("set lock_timeout = 100").await.unwrap();
    let error = other.batch_execute("truncate tenure.role").await.expect_err("it must wait");
    assert_eq!(error.code().map(|code| code.code()), Some("55P03"));
    client.batch_execute("commit").await.unwrap();
    // A name that is the same in another collation is another role.
    other
        .batch_execute(
            "create collation public.any_case (provider = icu, locale = 'und-u-ks-level2', \
             deterministic = false)",
        )
        .await
        .unwrap();
    assert_eq!(fence("'R' collate public.any_case").await.as_deref(), Some("TN003"));
    let twice = "'r' collate public.any_case, 1), tenure.fence('r' collate public.any_case";
    assert_eq!(fence(twice).await, None);
    // A schema that was made anew, from a dump of the day before, counts as far as it did.
    assert_eq!(fence("'r'").await, None);
    let moves = one(&other, "select last_value from tenure.moves").await;
    other.batch_execute("drop schema tenure cascade").await.unwrap();
    other.batch_execute(&tenure::schema::script()).await.unwrap();
    other
        .batch_execute(&format!(
            "insert into tenure.role (name, key, policy, lease_ms, epoch) \
             values ('r', 5, 'fenced', 3000, 2); select setval('tenure.moves', {moves})"
        ))
        .await
        .unwrap();
    assert_eq!(fence("'r'").await.as_deref(), Some("TN001"));
}

#[tokio::test]
async fn a_claim_of_many_roles_leaves_alone_the_one_that_a_pass_holds() {
    let database = database().await;
    let roles: Vec<String> = (0..12).map(|n| format!("r{n:02}")).collect();
    let member = async || {
        let builder = roles.iter().fold(crate::stage::config(&database), |builder, role| {
            builder.role(tenure::config::RoleSpec::named(role.as_str()))
        });
        let member = crate::stage::start(builder).await;
        member.start_all().await.unwrap();
        member
    };
    let first = member().await;
    for lock in first.locks() {
        crate::stage::leads(&lock).await;
    }
    gone(first).await;
    let client = database.client().await.expect("a client");
    client.batch_execute("select tenure.fence('r03', 1)").await.unwrap();
    client.batch_execute("begin; select tenure.fence('r03', 1)").await.unwrap();
    assert!(by_its_pass(&client).await);
    let second = member().await;
    for lock in second.locks().iter().filter(|lock| lock.role().as_str() != "r03") {
        crate::stage::leads(lock).await;
    }
    assert_eq!(one(&client, "select epoch from tenure.role where name = 'r03'").await, "1");
    client.batch_execute("commit").await.expect("no claim overtook it");
    for lock in second.locks() {
        crate::stage::leads(&lock).await;
    }
    gone(second).await;
}
