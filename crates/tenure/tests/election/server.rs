//! Servers and databases that are set up in ways people really set them up.

use std::time::Duration;

use tenure::config::RoleSpec;
use tenure::connect::Remedy;
use tenure::operate::Operator;
use tenure::{Member, RoleName};

use crate::stage::{
    PATIENCE, candidate, config, database, follows, gone, leader, leads, one, start,
};

/// After an upgrade of the operating system every login to such a database is greeted with a
/// warning. It says nothing about any statement of ours.
#[tokio::test]
async fn a_warning_at_login_does_not_cost_the_seat() {
    let database = database().await;
    let client = database.client().await.unwrap();
    let mismatch = "update pg_database set datcollversion = '0.1' \
                    where datname = current_database() returning datname";
    assert_eq!(one(&client, mismatch).await, database.name());
    let (member, _lock) = leader(&database, "r").await;
    gone(member).await;
}

#[tokio::test]
async fn the_whole_election_runs_whatever_the_databases_defaults_are() {
    let database = database().await;
    let client = database.client().await.unwrap();
    // The schema is there already: no member migrates a database that is read-only by default.
    gone(leader(&database, "before").await.0).await;
    for setting in [
        "default_transaction_read_only = on",
        "default_transaction_isolation = 'serializable'",
        "default_transaction_deferrable = on",
        "synchronous_commit = off",
        "statement_timeout = '80ms'",
        "lock_timeout = '1ms'",
        "idle_in_transaction_session_timeout = '1ms'",
        "standard_conforming_strings = off",
        "escape_string_warning = off",
        "search_path = 'nowhere'",
        "client_min_messages = 'debug1'",
        "row_security = off",
    ] {
        let sql = format!("alter database {} set {setting}", database.name());
        client.batch_execute(&sql).await.unwrap();
    }
    let role = r"a\'b";
    let (one_member, first) = candidate(&database, RoleSpec::named(role)).await;
    leads(&first).await;
    // A better one comes, and asks for the role by a session of its own.
    let spec = RoleSpec::named(role).priority(5).preempt(true);
    let (two_member, second) = candidate(&database, spec).await;
    leads(&second).await;
    assert!(!first.is_leader());
    let operator = Operator::connect(two_member.config()).await.unwrap();
    operator.step_down(&RoleName::new(role).unwrap(), None).await.unwrap();
    let mut changes = second.changes();
    let stepped = changes.wait_for(|now| !now.is_leader);
    assert!(tokio::time::timeout(PATIENCE, stepped).await.is_ok_and(|change| change.is_ok()));
    gone(one_member).await;
    gone(two_member).await;
}

#[tokio::test]
async fn a_schema_of_another_program_is_an_error_that_says_so() {
    let database = database().await;
    let client = database.client().await.unwrap();
    client
        .batch_execute("create schema tenure; create table tenure.member (professor text)")
        .await
        .unwrap();
    let build = config(&database).role(RoleSpec::named("r")).build().unwrap();
    let error = Member::start(build).await.expect_err("it is not ours");
    assert_ne!(error.remedy(), Remedy::Time, "{error}");
    let text = error.to_string();
    assert!(text.contains("schema tenure") || text.contains("already exists"), "{text}");
    // Nothing of ours was left in it.
    let ours = "select count(*) from pg_class c join pg_namespace n on n.oid = c.relnamespace \
                where n.nspname = 'tenure' and relkind = 'r'";
    assert_eq!(one(&client, ours).await, "1");
}

/// Members that come and go in good order leave no rows that every heartbeat has to read.
#[tokio::test]
async fn members_that_left_long_ago_are_forgotten() {
    let database = database().await;
    let client = database.client().await.unwrap();
    let (staying, lock) = leader(&database, "r").await;
    gone(candidate(&database, RoleSpec::named("r")).await.0).await;
    client
        .batch_execute(
            "insert into tenure.member (identity, host, pid, backend_pid, backend_start, seat, \
                 key, lease_ms, incarnation, left_at) \
             select 'old-' || n, 'h', 1, 1, now(), '', n, 3000, '', now() - interval '2 h' \
             from generate_series(1, 100) n",
        )
        .await
        .unwrap();
    gone(candidate(&database, RoleSpec::named("r")).await.0).await;
    let old = "select count(*) from tenure.member where identity like 'old-%'";
    assert_eq!(one(&client, old).await, "0");
    assert!(lock.is_leader());
    gone(staying).await;
}

/// The lease of a role follows its leaders: one member that once had a long one must not make every
/// later failover as long.
#[tokio::test]
async fn a_long_lease_of_long_ago_does_not_delay_a_failover() {
    let database = database().await;
    let long = config(&database).lease(Duration::from_secs(600)).role(RoleSpec::named("r"));
    let long = start(long).await;
    long.start_all().await.unwrap();
    leads(&long.locks()[0]).await;
    gone(long).await;

    let (one_member, first) = leader(&database, "r").await;
    let (two_member, second) = candidate(&database, RoleSpec::named("r")).await;
    follows(&second).await;
    let old = first.gate().epoch().expect("it leads");
    let (mut changes_of_first, mut changes_of_second) = (first.changes(), second.changes());
    let client = database.client().await.unwrap();
    one(
        &client,
        "select pg_terminate_backend(backend_pid) from tenure.member m \
         join tenure.role r on r.holder = m.identity",
    )
    .await;
    // Either of them may lead next; the first one's watch may still show the old term.
    let bound = Duration::from_secs(3) + Duration::from_millis(550) + PATIENCE / 4;
    let led = tokio::time::timeout(bound, async {
        tokio::select! {
            led = changes_of_first.wait_for(|now| now.is_leader && now.epoch > Some(old)) => led.is_ok(),
            led = changes_of_second.wait_for(|now| now.is_leader && now.epoch > Some(old)) => led.is_ok(),
        }
    });
    assert_eq!(led.await, Ok(true), "no member leads within {bound:?}");
    gone(one_member).await;
    gone(two_member).await;
}
