//! What operators do to roles: retire and change them, end a term by force, and read the record.

use std::time::Duration;

use tenure::config::{ConfigBuilder, RoleSpec};
use tenure::operate::{Change, Operator};
use tenure::{Epoch, LeaderLock, Member, RoleName, TakeoverPolicy};
use tenure_testkit::Database;

use crate::stage::{PATIENCE, config, database, follows, gone, leads, one, start, until};

/// Timings that make a debt short.
fn quick(database: &Database) -> ConfigBuilder {
    config(database).heartbeat(Duration::from_millis(200)).lease(Duration::from_secs(1))
}

async fn operator(database: &Database) -> Operator {
    Operator::connect(&quick(database).build().expect("good")).await.expect("an operator")
}

async fn leader(builder: ConfigBuilder, role: RoleSpec) -> (Member, LeaderLock) {
    let member = start(builder.role(role)).await;
    member.start_all().await.expect("it takes part");
    let lock = member.locks().remove(0);
    leads(&lock).await;
    (member, lock)
}

fn r() -> RoleName {
    RoleName::new("r").expect("a good name")
}

#[tokio::test]
async fn a_role_is_forgotten_only_at_rest_and_its_name_continues_above_its_epochs() {
    let database = database().await;
    let client = database.client().await.unwrap();
    let operator = operator(&database).await;
    let (member, lock) = leader(quick(&database), RoleSpec::named("r")).await;
    let refused = operator.forget(&r()).await.expect_err("it is led");
    assert!(refused.to_string().contains("not paused"), "{refused}");
    operator.pause(&r()).await.expect("paused");
    follows(&lock).await;
    let refused = operator.forget(&r()).await.expect_err("a member takes part");
    assert!(refused.to_string().contains("members still take part"), "{refused}");
    gone(member).await;
    let forgotten = operator.forget(&r()).await.expect("it is at rest");
    assert_eq!((forgotten.epoch, forgotten.terms), (Epoch(1), 1));
    for table in ["role", "term", "candidate"] {
        assert_eq!(one(&client, &format!("select count(*) from tenure.{table}")).await, "0");
    }
    assert_eq!(
        one(
            &client,
            "select count(*) from pg_locks l join pg_database d on d.oid = l.database \
        where locktype = 'advisory' and datname = current_database()"
        )
        .await,
        "0",
        "a lock is left"
    );
    let (member, lock) = leader(quick(&database), RoleSpec::named("r")).await;
    assert_eq!(lock.gate().epoch(), Some(Epoch(2)));
    // It was led once: the row that was made anew owes a wait.
    let waited = "select acting_at - claimed_at >= interval '1 second' from tenure.term";
    assert_eq!(one(&client, waited).await, "t");
    gone(member).await;
}

#[tokio::test]
async fn a_debt_is_waited_out_before_a_role_is_forgotten() {
    let database = database().await;
    let client = database.client().await.unwrap();
    let operator = operator(&database).await;
    let (member, _) = leader(quick(&database), RoleSpec::named("r")).await;
    gone(member).await;
    client
        .batch_execute(
            "update tenure.role set paused = true, debtor = 'm', debtor_lease_ms = 700, paid_in = null, \
             acted_in = null",
        )
        .await
        .unwrap();
    let begun = std::time::Instant::now();
    operator.forget(&r()).await.expect("forgotten");
    assert!(begun.elapsed() >= Duration::from_secs(1), "the role's lease is 1 s");
}

#[tokio::test]
async fn policy_key_and_lease_of_a_role_at_rest_are_changed_by_order() {
    let database = database().await;
    let operator = operator(&database).await;
    let (member, lock) = leader(quick(&database), RoleSpec::named("r")).await;
    operator.pause(&r()).await.expect("paused");
    follows(&lock).await;
    gone(member).await;
    let key = tenure::LockKey::Big(77);
    let change = Change {
        policy: Some(TakeoverPolicy::Fenced),
        key: Some(key),
        lease: Some(Duration::from_millis(800)),
    };
    operator.alter(&r(), change).await.expect("changed");
    operator.resume(&r()).await.expect("open again");
    let spec = RoleSpec::named("r").policy(TakeoverPolicy::Fenced).key(key);
    let (member, lock) = leader(quick(&database), spec).await;
    assert_eq!(lock.gate().epoch(), Some(Epoch(2)));
    let status = operator.status(Some(&r())).await.unwrap().remove(0);
    assert_eq!((status.policy, status.key), (TakeoverPolicy::Fenced, key));
    let orders = operator.orders(Some(&r()), 10).await.unwrap();
    let kinds: Vec<&str> = orders.iter().map(|order| order.kind.as_str()).collect();
    assert_eq!(kinds, ["resume", "alter", "pause"]);
    assert!(orders.iter().all(|order| order.detail.contains("asked by operator on")), "{orders:?}");
    gone(member).await;
}

/// Members and alerts write events too, and a restless group writes many.
#[tokio::test]
async fn what_members_tell_of_themselves_is_no_order() {
    let database = database().await;
    let client = database.client().await.unwrap();
    let operator = operator(&database).await;
    let (member, lock) = leader(quick(&database), RoleSpec::named("r")).await;
    operator.pause(&r()).await.expect("paused");
    for (ready, told) in [(false, "1"), (true, "2")] {
        lock.set_ready(ready).expect("it runs");
        let all = "select count(*) from tenure.event where kind in ('ready', 'not_ready')";
        until(&client, all, told).await;
    }
    operator.resume(&r()).await.expect("resumed");
    let orders = operator.orders(Some(&r()), 20).await.expect("readable");
    let kinds: Vec<_> = orders.iter().map(|order| order.kind.as_str()).collect();
    assert_eq!(kinds, ["resume", "pause"]);
    assert_eq!(operator.orders(None, 1).await.expect("readable")[0].kind.as_str(), "resume");
    gone(member).await;
}

#[tokio::test]
async fn a_refusal_that_is_not_known_is_an_answer_that_cannot_be_read() {
    let database = database().await;
    let client = database.client().await.unwrap();
    let operator = operator(&database).await;
    let (member, _) = leader(quick(&database), RoleSpec::named("r")).await;
    client
        .batch_execute(
            "create or replace function tenure.set_paused(p_role text, p_paused boolean, p_by text,
                    p_epoch bigint default null)
                returns jsonb language sql as $$ select '{\"error\": \"weather\"}'::jsonb $$",
        )
        .await
        .unwrap();
    let error = operator.pause(&r()).await.expect_err("it says nothing that is known");
    assert!(matches!(error, tenure::TenureError::Session(_)), "{error:?}");
    assert!(error.to_string().contains("weather"), "{error}");
    gone(member).await;
}

#[tokio::test]
async fn a_term_that_was_ended_by_force_is_over_also_for_a_leader_that_reconnects() {
    let database = database().await;
    let client = database.client().await.unwrap();
    let operator = operator(&database).await;
    let builder = quick(&database).reconnect_grace(Duration::from_millis(800));
    let (member, lock) = leader(builder, RoleSpec::named("r")).await;
    let mut changes = lock.changes();
    let ordered = operator.force_release(&r()).await.expect("ended");
    assert_eq!(
        (ordered.epoch, ordered.sessions_ended, ordered.sessions_left),
        (Epoch(1), Some(1), Some(0))
    );
    let lost = changes.wait_for(|change| !change.is_leader);
    tokio::time::timeout(PATIENCE, lost).await.expect("it notices").expect("it lives");
    leads(&lock).await;
    assert_eq!(lock.gate().epoch(), Some(Epoch(2)), "the term was taken up again");
    let end = "select how || ' ' || (ended_at is not null) from tenure.term where epoch = 1";
    assert_eq!(one(&client, end).await, "forced true");
    assert!(operator.audit(None).await.unwrap().violations.is_empty());
    gone(member).await;
}

#[tokio::test]
async fn an_audit_goes_page_by_page_and_misses_nothing_between_two_of_them() {
    let database = database().await;
    let client = database.client().await.unwrap();
    let operator = operator(&database).await;
    client.batch_execute(&tenure::schema::script()).await.expect("the schema");
    client
        .batch_execute(
            "insert into tenure.term (role, epoch, member, claimed_at, acting_at, ended_at, how) \
             select r, e, 'm', at, at, at + interval '1 second', 'released' \
             from unnest(array['a', 'b']) r, generate_series(1, 14999) e, \
                 lateral (select timestamptz '2026-01-01' + e * interval '1 second' as at) t",
        )
        .await
        .unwrap();
    let sound = operator.audit(None).await.unwrap();
    assert_eq!((sound.terms, sound.roles, sound.broken), (29_998, 2, 0));
    assert_eq!(sound.since, "2026-01-01T00:00:01Z".parse().ok());
    // The last terms of the first and second page, and the one in between.
    for epoch in ["10000", "10001", "5001"] {
        let long = format!(
            "update tenure.term set ended_at = ended_at + interval '1 ms' \
             where epoch = {epoch} and role = '{}'",
            if epoch == "5001" { "b" } else { "a" }
        );
        client.batch_execute(&long).await.unwrap();
    }
    let audit = operator.audit(None).await.unwrap();
    let found: Vec<(&str, i64)> =
        audit.violations.iter().map(|bad| (bad.role.as_str(), bad.epoch.get())).collect();
    assert_eq!(found, [("a", 10_000), ("a", 10_001), ("b", 5_001)]);
    assert_eq!((audit.terms, audit.broken), (29_998, 3));
    assert_eq!(operator.audit(Some(&r())).await.unwrap().terms, 0);
}

#[tokio::test]
async fn roles_in_which_no_member_takes_part_use_up_no_locks() {
    let database = database().await;
    let client = database.client().await.unwrap();
    client.batch_execute(&tenure::schema::script()).await.expect("the schema");
    client
        .batch_execute(
            "insert into tenure.role (name, key, policy, lease_ms) \
             select 'old' || n, n, 'exclusive', 1000 from generate_series(1, 20000) n",
        )
        .await
        .unwrap();
    let (member, _) = leader(quick(&database), RoleSpec::named("r")).await;
    until(&client, "select count(*) from tenure.role where holder is not null", "1").await;
    gone(member).await;
}
