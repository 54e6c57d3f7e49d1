//! Sessions that hold a role's lock and are no member's, and rows that are not what a leader left.

use std::time::{Duration, Instant};

use tenure::config::{ConfigBuilder, RoleSpec};
use tenure::operate::{Change, Operator};
use tenure::{LockKey, RoleName};
use tenure_testkit::Database;
use tokio_postgres::Client;

use crate::stage::{PATIENCE, config, database, gone, leads, one, start, until};

/// Timings that make a debt short.
fn quick(database: &Database) -> ConfigBuilder {
    config(database).heartbeat(Duration::from_millis(200)).lease(Duration::from_secs(1))
}

fn r() -> RoleName {
    RoleName::new("r").expect("a good name")
}

/// A session that has taken a member's seat, and takes part in the role `r` with key 7.
async fn seat(database: &Database, member: &str, lease_ms: u32) -> Client {
    let client = database.client().await.unwrap();
    let key = i32::from(member.as_bytes()[0]) + 1_000_000;
    let take = format!(
        "select tenure.take_seat('{{\"identity\": \"{member}\", \"key\": {key}, \"seat\": \"s\", \
         \"host\": \"h\", \"pid\": 1, \"lease_ms\": {lease_ms}, \"grace_ms\": 0}}')"
    );
    one(&client, &take).await;
    assert_eq!(register(&client, member).await, "[{\"role\": \"r\", \"refused\": null}]");
    client
}

async fn register(client: &Client, member: &str) -> String {
    let row = "{\"role\": \"r\", \"key\": 7, \"pair\": false, \"policy\": \"exclusive\", \
               \"priority\": 0, \"ready\": true, \"observer\": false, \"withdraw\": false}";
    one(client, &format!("select tenure.register('{member}', '[{row}]')")).await
}

/// The outcome of a claim, and whether it acts at once.
async fn claim(client: &Client, member: &str) -> String {
    let row = "{\"role\": \"r\", \"key\": 7, \"pair\": false, \"seen\": 0, \"insist\": true}";
    let claim = format!(
        "select concat_ws(' ', c->'roles'->0->>'out', c->'roles'->0->>'acting') \
         from (select tenure.claim('{member}', '[{row}]', 1000, 10000) as c) x"
    );
    one(client, &claim).await
}

async fn debtor(client: &Client) -> String {
    one(
        client,
        "select coalesce(debtor, 'none') || ' ' || coalesce(holder, 'none') from tenure.role",
    )
    .await
}

async fn schema(database: &Database) -> Client {
    let client = database.client().await.unwrap();
    client.batch_execute(&tenure::schema::script()).await.expect("the schema");
    client
}

#[tokio::test]
async fn a_stranger_under_the_lock_is_owed_a_wait_although_the_row_names_a_dead_holder() {
    let database = database().await;
    let stranger = schema(&database).await;
    let (m, n) = (seat(&database, "m", 1000).await, seat(&database, "n", 1000).await);
    assert_eq!(claim(&m, "m").await, "won true");
    assert_eq!(claim(&n, "n").await, "held");
    assert_eq!(debtor(&stranger).await, "m m", "a member is no stranger");
    drop(m);
    until(&stranger, "select pg_try_advisory_lock(7)", "t").await;
    assert_eq!(claim(&n, "n").await, "held");
    assert_eq!(debtor(&stranger).await, "(unknown) m");
    stranger.batch_execute("select pg_advisory_unlock(7)").await.unwrap();
    assert_eq!(claim(&n, "n").await, "won false");
    assert_eq!(debtor(&stranger).await, "(unknown) n");
}

#[tokio::test]
async fn a_registration_beside_the_end_of_its_row_is_tried_again() {
    let database = database().await;
    let admin = schema(&database).await;
    let _short = seat(&database, "a", 1000).await;
    let long = seat(&database, "b", 2000).await;
    for _ in 0..25 {
        // The longer lease must be written, so that the registration waits for the row.
        let rest = "truncate tenure.role; insert into tenure.role (name, key, policy, lease_ms) \
                    values ('r', 7, 'exclusive', 1000); begin; delete from tenure.role";
        admin.batch_execute(rest).await.unwrap();
        let end = async {
            tokio::time::sleep(Duration::from_millis(8)).await;
            admin.batch_execute("commit").await.unwrap();
        };
        let (answer, ()) = tokio::join!(register(&long, "b"), end);
        assert!(!answer.contains("locks"), "{answer}");
    }
}

#[tokio::test]
async fn a_leader_whose_row_is_deleted_learns_of_it_with_its_next_beat() {
    let database = database().await;
    let member = start(quick(&database).role(RoleSpec::named("r"))).await;
    member.start_all().await.expect("it takes part");
    let lock = member.locks().remove(0);
    leads(&lock).await;
    let mut changes = lock.changes();
    let client = database.client().await.unwrap();
    client.batch_execute("delete from tenure.role").await.unwrap();
    // Everything is looked at with every thirtieth beat, after six seconds.
    let lost = changes.wait_for(|change| !change.is_leader);
    tokio::time::timeout(Duration::from_secs(3), lost).await.expect("it learns").expect("it lives");
    gone(member).await;
}

#[tokio::test]
async fn orders_leave_a_debt_to_a_session_that_is_no_members() {
    let database = database().await;
    let operator = Operator::connect(&quick(&database).build().expect("good")).await.unwrap();
    let member = start(quick(&database).role(RoleSpec::named("r").key(LockKey::Big(7)))).await;
    member.start_all().await.expect("it takes part");
    leads(&member.locks()[0]).await;
    gone(member).await;
    let client = database.client().await.unwrap();
    assert_eq!(debtor(&client).await, "none none");
    operator.pause(&r()).await.expect("paused");
    let change = Change { key: Some(LockKey::Big(8)), ..Change::default() };
    client.batch_execute("select pg_advisory_lock(8)").await.unwrap();
    let refused = operator.alter(&r(), change).await.expect_err("a stranger has that lock");
    assert!(refused.to_string().contains("holds the new lock key"), "{refused}");
    client.batch_execute("select pg_advisory_unlock(8)").await.unwrap();
    operator.alter(&r(), change).await.expect("changed");
    assert_eq!(
        debtor(&client).await,
        "(unknown) none",
        "what was done under the new key is not known"
    );
    client.batch_execute("update tenure.role set debtor = null").await.unwrap();
    let stranger = database.client().await.unwrap();
    stranger.batch_execute("select pg_advisory_lock(8)").await.unwrap();
    operator.force_release(&r()).await.expect("ended");
    assert_eq!(debtor(&client).await, "(unknown) none");
}

#[tokio::test]
async fn a_lock_only_member_that_may_not_read_the_tables_is_refused() {
    let database = database().await;
    let client = schema(&database).await;
    let user = format!("poor_{}", database.name());
    client.batch_execute(&format!("create role {user} login")).await.unwrap();
    let builder = || tenure::config::Config::builder().dsn(database.dsn_for(&user)).lock_only(true);
    let member = start(builder().lease(Duration::from_secs(1)).role(RoleSpec::named("r"))).await;
    let refused = member.start_all().await.expect_err("refused").to_string();
    assert!(refused.contains("grant select on tenure.role"), "{refused}");
    let grant =
        format!("grant usage on schema tenure to {user}; grant select on tenure.role to {user}");
    client.batch_execute(&grant).await.unwrap();
    let member = start(builder().lease(Duration::from_secs(1)).role(RoleSpec::named("r"))).await;
    member.start_all().await.expect("no member with tables uses the key");
    gone(member).await;
}

#[tokio::test]
async fn a_role_that_a_member_stops_can_be_forgotten_while_the_member_lives() {
    let database = database().await;
    let operator = Operator::connect(&quick(&database).build().expect("good")).await.unwrap();
    let roles = ["r", "s"].map(RoleSpec::named);
    let [r_spec, s_spec] = roles;
    let member = start(quick(&database).role(r_spec).role(s_spec)).await;
    member.start_all().await.expect("both are taken");
    for lock in member.locks() {
        leads(&lock).await;
    }
    member.lock("r").expect("its role").shutdown(Some(PATIENCE)).await.expect("stopped");
    let client = database.client().await.unwrap();
    until(&client, "select string_agg(role, ' ') from tenure.candidate", "s").await;
    operator.pause(&r()).await.expect("paused");
    // A member of another role, whose lease has nothing to do with this one.
    let other = "insert into tenure.member (identity, host, pid, backend_pid, backend_start, seat, key, \
                 lease_ms, incarnation) select 'x', 'h', 1, 0, now(), '', 0, 600000, incarnation \
                 from tenure.member limit 1; \
                 update tenure.role set debtor = 'm', debtor_lease_ms = 700 where name = 'r'";
    client.batch_execute(other).await.unwrap();
    let begun = Instant::now();
    operator.forget(&r()).await.expect("forgotten");
    assert!(begun.elapsed() >= Duration::from_millis(700), "a debt is waited out");
    assert!(begun.elapsed() < PATIENCE, "and no more than that");
    gone(member).await;
    let member = start(quick(&database).role(RoleSpec::named("r"))).await;
    member.start_all().await.expect("it takes part");
    leads(&member.locks()[0]).await;
    assert_eq!(one(&client, "select lease_ms from tenure.role where name = 'r'").await, "1000");
    gone(member).await;
}
