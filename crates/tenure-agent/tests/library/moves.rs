//! A schedule that moves from one role to another, as the tables decide it: terms and members written by hand.

use tenure::Member;
use tenure::config::Config;
use tenure_agent::schema;
use tenure_testkit::{Database, shared_cluster, until};
use tokio_postgres::Client;

/// The role `cron` is led by `one`, which runs a slot of `s` in epoch 3; `two` leads `batch` in epoch 1. Both have a
/// lease of a minute.
const GROUP: &str = "
    insert into tenure.role (name, key, policy, lease_ms, epoch, holder, debtor)
        values ('cron', 1, 'exclusive', 60000, 3, 'one', 'one'), ('batch', 2, 'exclusive', 60000, 1, 'two', 'two');
    insert into tenure.member (identity, host, pid, backend_pid, backend_start, seat, key, lease_ms, incarnation)
        select name, 'h', 1, 1, now(), '', 0, 60000, 'i' from unnest(array['one', 'two']) name;
    insert into tenure.term (role, epoch, member, acting_at)
        values ('cron', 3, 'one', now()), ('batch', 1, 'two', now());
    insert into tenure_agent.schedule (name, role, timing, definition, digest, epoch, watermark)
        values ('s', 'cron', '@every 1s', '{}', 'd', 3, now());
    insert into tenure_agent.slot (schedule, at, state, attempts, epoch, member)
        values ('s', to_timestamp(1000), 'running', 1, 3, 'one');
    insert into tenure_agent.attempt (schedule, at, number, epoch, member)
        values ('s', to_timestamp(1000), 1, 3, 'one');";
/// As a sentinel records a death: the session is gone, and nothing is known of the process.
const LOST: &str = "update tenure.member set left_at = now() where identity = 'one';";

async fn group() -> (Database, Client) {
    let database = shared_cluster().await.database().await.expect("a database");
    let config = Config::builder().dsn(database.dsn()).build().expect("valid");
    Member::start(config.clone())
        .await
        .expect("it starts")
        .shutdown(None)
        .await
        .expect("it leaves");
    schema::migrate(&config).await.expect("migrated");
    let client = database.client().await.expect("a session");
    client.batch_execute(GROUP).await.expect("a group");
    (database, client)
}

async fn is(client: &Client, sql: &str) -> bool {
    client.query_one(&format!("select ({sql})::boolean"), &[]).await.expect(sql).get(0)
}

/// Whether the leader of `batch` gets the schedule, with that having happened before; nothing of it stays.
async fn moves(client: &Client, before: &str) -> bool {
    client.batch_execute(&format!("begin; {before}")).await.expect(before);
    let got = r#"tenure_agent.define('batch', 1, '[{"name": "s", "timing": "@every 1s", "definition": {},
        "digest": "d"}]')->'schedules' ? 's'"#;
    let got = is(client, got).await;
    client.batch_execute("rollback").await.expect("as before");
    got
}

#[tokio::test]
async fn a_schedule_whose_run_may_go_on_after_a_lost_session_does_not_move() {
    let (_database, client) = group().await;
    assert!(!moves(&client, "").await, "a leader that acts has it");
    assert!(!moves(&client, LOST).await, "the work outlives a lost session by up to a lease");
    let let_go = "update tenure_agent.schedule set removed_at = now();";
    assert!(!moves(&client, let_go).await, "it is out of its leader's file, and a run goes on");
    assert!(!moves(&client, &format!("{LOST} {let_go}")).await);

    let over = "update tenure_agent.slot set state = 'succeeded';";
    assert!(moves(&client, &format!("{LOST} {over}")).await, "nothing runs");
    assert!(moves(&client, &format!("{let_go} {over}")).await);
    let silent = |ms: u32| {
        format!(
            "update tenure.member set seen_at = now() - {ms} * interval '1 ms' where identity = 'one';"
        )
    };
    let other_clock = "another server's clock may have been behind by a lease";
    assert!(!moves(&client, &format!("{LOST} {}", silent(120_500))).await, "{other_clock}");
    assert!(moves(&client, &format!("{LOST} {}", silent(121_500))).await, "its lease is over");
    let paid = "update tenure.role set debtor = null, holder = null where name = 'cron';";
    assert!(moves(&client, &format!("{LOST} {paid}")).await, "released with nothing in flight");
}

#[tokio::test]
async fn a_later_term_that_acts_lets_a_schedule_go_whose_run_it_waited_for() {
    let (_database, client) = group().await;
    let claimed = |member: &str, acting: &str| {
        format!(
            "{LOST} update tenure_agent.schedule set removed_at = now();
             update tenure.role set epoch = 4, holder = '{member}', debtor = '{member}' where name = 'cron';
             insert into tenure.term (role, epoch, member, acting_at) values ('cron', 4, '{member}', {acting});"
        )
    };
    assert!(!moves(&client, &claimed("two", "null")).await, "it waits for the debt itself");
    assert!(moves(&client, &claimed("two", "now()")).await);
    // The same member need not wait for itself: its own work may go on for a lease.
    assert!(!moves(&client, &claimed("one", "now()")).await);
    assert!(!moves(&client, &claimed("one", "now() - interval '67 s'")).await);
    assert!(moves(&client, &claimed("one", "now() - interval '121.5 s'")).await);
}

#[tokio::test]
async fn a_later_term_of_a_fenced_role_is_no_proof_that_a_run_has_ended() {
    let (_database, client) = group().await;
    // It takes over at once, while the gate and the work of the term before it live on.
    let claimed = |acting: &str| {
        format!(
            "{LOST} update tenure_agent.schedule set removed_at = now();
             update tenure.role set policy = 'fenced', epoch = 4, holder = 'two', debtor = 'two' where name = 'cron';
             insert into tenure.term (role, epoch, member, acting_at) values ('cron', 4, 'two', {acting});"
        )
    };
    let released = "update tenure.role set holder = null, debtor = null where name = 'cron';";
    assert!(!moves(&client, &claimed("now()")).await);
    let told = "the later term alone has nothing in flight";
    assert!(!moves(&client, &format!("{} {released}", claimed("now()"))).await, "{told}");
    assert!(moves(&client, &claimed("now() - interval '121.5 s'")).await);
    // Its own release is proof.
    let fenced = "update tenure.role set policy = 'fenced' where name = 'cron';";
    assert!(!moves(&client, &format!("{LOST} {fenced}")).await);
    assert!(moves(&client, &format!("{LOST} {fenced} {released}")).await);
}

/// Runs the second statement while the first is not committed, and returns its answer. It waits for the first.
async fn beside(database: &Database, first: &str, second: &str) -> bool {
    let (one, two, watching) = (
        database.client().await.expect("a session"),
        database.client().await.expect("a session"),
        database.client().await.expect("a session"),
    );
    one.batch_execute(&format!("begin; {first}")).await.expect("the first");
    let waits = "exists (select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock')";
    let (answer, ()) = tokio::join!(is(&two, second), async {
        until("the second waits", async || is(&watching, waits).await).await;
        one.batch_execute("commit").await.expect("committed");
    });
    answer
}

#[tokio::test]
async fn a_move_and_a_claim_see_each_other() {
    let nothing_runs = format!("{LOST} update tenure_agent.slot set state = 'succeeded';");
    let claim = r#"tenure_agent.claim('cron', 3, 'one',
        '[{"schedule": "s", "at": 2000000000, "state": "running"}]')"#;
    let define = r#"tenure_agent.define('batch', 1, '[{"name": "s", "timing": "@every 1s", "definition": {},
        "digest": "d"}]')"#;

    let (database, client) = group().await;
    client.batch_execute(&nothing_runs).await.expect("nothing runs");
    let first = format!("select {claim}");
    let moved = beside(&database, &first, &format!("{define}->'schedules' ? 's'")).await;
    assert!(!moved, "the slot runs");

    let (database, client) = group().await;
    client.batch_execute(&nothing_runs).await.expect("nothing runs");
    let first = format!("select {define}");
    let claimed = beside(&database, &first, &format!("{claim}->'answers' ? 'claimed'")).await;
    assert!(!claimed, "the schedule is another role's");
}

#[tokio::test]
async fn an_end_that_is_told_after_a_move_or_for_an_earlier_attempt_changes_nothing() {
    let (_database, client) = group().await;
    let finish = |attempt: u32| {
        format!(
            r#"select tenure_agent.finish('cron', 3, 'one', '{{"schedule": "s", "at": 1000000000,
                "attempt": {attempt}, "how": "succeeded", "state": "succeeded"}}')"#
        )
    };
    let again = "update tenure_agent.attempt set ended_at = now(), how = 'interrupted';
        update tenure_agent.slot set attempts = 2, epoch = 1, member = 'two';
        insert into tenure_agent.attempt (schedule, at, number, epoch, member)
            values ('s', to_timestamp(1000), 2, 1, 'two');";
    let runs = "exists (select from tenure_agent.slot where state = 'running' and member = 'two')
        and exists (select from tenure_agent.attempt where number = 2 and ended_at is null)";
    // Another term tried it again: the late end of the first attempt is not that of the second.
    client.batch_execute(&format!("begin; {again} {}", finish(1))).await.expect("told");
    assert!(is(&client, runs).await, "the second attempt still runs");
    client.batch_execute("rollback").await.expect("as before");
    // It is the other role's now: this term has no say, whatever the attempt.
    let moved = "update tenure_agent.schedule set role = 'batch';";
    client.batch_execute(&format!("begin; {again} {moved}")).await.expect("moved");
    assert!(!is(&client, &format!("({})->'recorded'", finish(2))).await, "the caller is told");
    assert!(is(&client, runs).await, "the other role's leader runs it");
    client.batch_execute("rollback").await.expect("as before");
    assert!(is(&client, &format!("({})->'recorded'", finish(1))).await);
    let ended = "exists (select from tenure_agent.slot where state = 'succeeded')";
    assert!(is(&client, ended).await, "its own end counts");
}

#[tokio::test]
async fn nothing_of_a_removed_schedule_stays_open() {
    let (_database, client) = group().await;
    let more =
        "insert into tenure_agent.slot (schedule, at, state, attempts, epoch, member, retry_at)
        values ('s', to_timestamp(1001), 'queued', 0, 3, 'one', null),
               ('s', to_timestamp(1002), 'waiting', 1, 3, 'one', now())";
    client.batch_execute(more).await.expect("slots");
    let states = |expected: &str| {
        format!(
            "(select string_agg(state, ' ' order by at) from tenure_agent.slot) = '{expected}'
             and not exists (select from tenure_agent.slot
                             where (ended_at is null) <> (state in ('queued', 'running', 'waiting')))"
        )
    };
    // Its leader's file lets it go: what runs goes on, and this very term ends it.
    let removed = "begin; select tenure_agent.define('cron', 3, '[]')";
    client.batch_execute(removed).await.expect("removed");
    assert!(is(&client, &states("running missed waiting")).await);
    let claim = |state: &str, second: u32| {
        format!(
            r#"tenure_agent.claim('cron', 3, 'one', '[{{"schedule": "s", "at": {second}000000, "state": "{state}"}}]')->'answers'"#
        )
    };
    let taken = format!("{} ? 'taken'", claim("queued", 1003));
    assert!(is(&client, &taken).await, "nothing is claimed any more");
    let again = format!("{} ? 'claimed'", claim("running", 1000));
    assert!(is(&client, &again).await, "what was claimed before is told as that");
    let requeue = "select tenure_agent.requeue('cron', 3, 'one', 's', 1000000000, 1)";
    client.batch_execute(requeue).await.expect("put back");
    assert!(is(&client, &states("missed missed waiting")).await, "its work did not start");
    client.batch_execute("rollback").await.expect("as before");
    // Its leader is gone, and the file of the next one does not have it: also if it was removed before.
    for removed_at in ["null", "now()"] {
        let next = format!(
            "begin; update tenure_agent.schedule set removed_at = {removed_at};
             update tenure.role set epoch = 4, holder = 'two', debtor = 'two' where name = 'cron';
             select tenure_agent.define('cron', 4, '[]')"
        );
        client.batch_execute(&next).await.expect("the next leader");
        assert!(is(&client, &states("interrupted missed interrupted")).await);
        let told = "(select how = 'interrupted' and reason like '%does not have%' from tenure_agent.attempt)";
        assert!(is(&client, told).await);
        client.batch_execute("rollback").await.expect("as before");
    }
    // It moved to a role whose epochs are lower, or the same, and was removed there.
    for epoch in [1, 3] {
        let moved = format!(
            "begin; update tenure_agent.schedule set role = 'batch';
             update tenure.role set epoch = {epoch} where name = 'batch';
             select tenure_agent.define('batch', {epoch}, '[]')"
        );
        client.batch_execute(&moved).await.expect("moved");
        assert!(is(&client, &states("interrupted missed interrupted")).await, "epoch {epoch}");
        client.batch_execute("rollback").await.expect("as before");
    }
}

#[tokio::test]
async fn a_slot_that_was_claimed_is_decided_for_every_later_term_also_when_its_row_is_gone() {
    let (_database, client) = group().await;
    let claim = |second: u32, state: &str| {
        format!(
            r#"select tenure_agent.claim('cron', 3, 'one', '[{{"schedule": "s", "at": {second}000000, "state": "{state}"}}]');"#
        )
    };
    let claimed = format!(
        "update tenure_agent.schedule set watermark = to_timestamp(1500); {} {}",
        claim(2000, "skipped"),
        claim(1800, "missed")
    );
    client.batch_execute(&claimed).await.expect("claimed");
    // Retention deletes what is over, and another member leads.
    let later = "delete from tenure_agent.slot;
        update tenure.role set epoch = 4, holder = 'two', debtor = 'two' where name = 'cron'";
    client.batch_execute(later).await.expect("later");
    let define = r#"(tenure_agent.define('cron', 4, '[{"name": "s", "timing": "@every 1s", "definition": {},
        "digest": "d"}]')->'schedules'->'s'->>'watermark')::bigint = 2000000000"#;
    assert!(is(&client, define).await, "nothing up to it fires again");
}

#[tokio::test]
async fn the_end_of_a_run_is_recorded_although_the_row_of_its_schedule_is_gone() {
    let (_database, client) = group().await;
    client.batch_execute("delete from tenure_agent.schedule").await.expect("deleted by hand");
    let finish = r#"tenure_agent.finish('cron', 3, 'one', '{"schedule": "s", "at": 1000000000,
        "attempt": 1, "how": "succeeded", "state": "succeeded"}')->'recorded'"#;
    assert!(is(&client, finish).await);
    assert!(is(&client, "exists (select from tenure_agent.slot where state = 'succeeded')").await);
    let claim = r#"tenure_agent.claim('cron', 3, 'one',
        '[{"schedule": "s", "at": 2000000000, "state": "running"}]')->'answers' ? 'gone'"#;
    assert!(is(&client, claim).await);
}

#[tokio::test]
async fn a_slot_has_its_turn_although_the_row_of_its_schedule_is_gone() {
    let (_database, client) = group().await;
    let waits =
        "update tenure_agent.slot set state = 'waiting', retry_at = now(); update tenure_agent.attempt
        set ended_at = now(), how = 'failed'";
    client.batch_execute(waits).await.expect("a retry");
    let attempt = "tenure_agent.attempt('cron', 3, 'one', 's', 1000000000, 2, null)->'began'";
    let moved = "begin; update tenure_agent.schedule set role = 'batch'";
    client.batch_execute(moved).await.expect("moved");
    assert!(!is(&client, attempt).await, "it is another role's");
    client.batch_execute("rollback").await.expect("as before");
    client.batch_execute("delete from tenure_agent.schedule").await.expect("deleted by hand");
    assert!(is(&client, attempt).await);
    let runs = "exists (select from tenure_agent.slot where state = 'running' and attempts = 2)";
    assert!(is(&client, runs).await);
}

#[tokio::test]
async fn a_schedule_that_moves_goes_on_where_it_was() {
    let (_database, client) = group().await;
    let let_go = "update tenure_agent.slot set state = 'succeeded', ended_at = now();
        update tenure_agent.schedule set watermark = now() - interval '30 s'";
    let define = |role: &str, epoch: u32| {
        format!(
            r#"select tenure_agent.define('{role}', {epoch}, '[{{"name": "s", "timing": "@every 1s", "definition": {{}},
                "digest": "d"}}]')"#
        )
    };
    let kept = "watermark < now() - interval '20 s' from tenure_agent.schedule";
    // The old leader's file lets it go; the other role's leader has it a moment later.
    let moved = format!("begin; {let_go}, removed_at = now(); {}", define("batch", 1));
    client.batch_execute(&moved).await.expect("moved");
    assert!(is(&client, &format!("select {kept}")).await, "what fell due meanwhile is late");
    client.batch_execute("rollback").await.expect("as before");
    // One that comes back to its own role, or after long, begins anew.
    for (role, epoch, away) in [("cron", 3, "0 s"), ("batch", 1, "2 days")] {
        let back = format!(
            "begin; {let_go}, removed_at = now() - interval '{away}'; {}",
            define(role, epoch)
        );
        client.batch_execute(&back).await.expect("back");
        assert!(!is(&client, &format!("select {kept}")).await, "{role}: nothing of the past fires");
        client.batch_execute("rollback").await.expect("as before");
    }
}
