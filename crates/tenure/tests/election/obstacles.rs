//! Rows that another session holds up: the harm stays with their role.

use std::time::Duration;

use tenure::config::RoleSpec;
use tenure::operate::Operator;
use tenure::{Epoch, LeaderLock, LockState, Member, Notice, RoleName};
use tenure_testkit::{Cluster, ClusterOptions, Database};
use tokio_postgres::Client;

use crate::stage::{PATIENCE, config, database, gone, leads, one, start, until};

/// A member with the roles `r1` and `r2`, taking part.
async fn two_roles(database: &Database, lease: Duration) -> (Member, LeaderLock, LeaderLock) {
    let roles = ["r1", "r2"].map(|role| RoleSpec::named(role).cool_down(Duration::ZERO));
    let [r1, r2] = roles;
    let member = start(config(database).lease(lease).role(r1).role(r2)).await;
    member.start_all().await.expect("both are taken");
    let locks = ["r1", "r2"].map(|role| member.lock(role).expect("its role"));
    let [r1, r2] = locks;
    (member, r1, r2)
}

/// A session that has locked the row of `r1` and does not let go.
async fn outsider(database: &Database) -> Client {
    let client = database.client().await.unwrap();
    client
        .batch_execute("begin; select from tenure.role where name = 'r1' for update")
        .await
        .unwrap();
    client
}

/// It changes whenever a member has to take its seat anew.
async fn seat(client: &Client) -> String {
    one(client, "select seat from tenure.member where left_at is null").await
}

const LEASE: Duration = Duration::from_secs(3);

#[tokio::test]
async fn a_release_of_a_row_that_is_held_up_costs_no_seat() {
    let database = database().await;
    let (member, r1, r2) = two_roles(&database, LEASE).await;
    leads(&r1).await;
    leads(&r2).await;
    let client = database.client().await.unwrap();
    let before = seat(&client).await;
    let outsider = outsider(&database).await;
    r1.step_down(Some(PATIENCE)).await.unwrap();
    assert_ne!(r1.state(), LockState::Leader);
    assert!(r2.is_leader());
    outsider.batch_execute("rollback").await.unwrap();
    leads(&r1).await;
    assert!(r1.gate().epoch() > Some(Epoch(1)));
    assert_eq!(r2.gate().epoch(), Some(Epoch(1)));
    assert_eq!(seat(&client).await, before, "the seat was lost");
    gone(member).await;
}

#[tokio::test]
async fn a_registration_of_a_row_that_is_held_up_delays_its_role_alone() {
    let database = database().await;
    let (first, r1, _) = two_roles(&database, Duration::from_secs(2)).await;
    leads(&r1).await;
    gone(first).await;
    // A longer lease has to be written down before it is used.
    let outsider = outsider(&database).await;
    let (member, r1, r2) = two_roles(&database, LEASE).await;
    leads(&r2).await;
    let client = database.client().await.unwrap();
    let before = seat(&client).await;
    assert!(r1.wait_for_leadership(Some(Duration::from_millis(600))).await.is_err());
    outsider.batch_execute("rollback").await.unwrap();
    leads(&r1).await;
    assert_eq!(one(&client, "select min(lease_ms) from tenure.role").await, "3000");
    assert_eq!(seat(&client).await, before, "the seat was lost");
    gone(member).await;
}

/// Both roles owe a ghost a wait, so that their claims are followed by an `acting` write; and `r1` is
/// held up between the two.
async fn about_to_act() -> (Database, Member, LeaderLock, LeaderLock, Client) {
    let database = database().await;
    let (first, r1, _) = two_roles(&database, LEASE).await;
    leads(&r1).await;
    gone(first).await;
    let client = database.client().await.unwrap();
    let debt = "update tenure.role set debtor = 'ghost', debtor_lease_ms = 3000, acted_in = 'once'";
    client.batch_execute(debt).await.unwrap();
    let (member, r1, r2) = two_roles(&database, LEASE).await;
    let claimed = "select count(*) from tenure.role where holder is not null and debtor = 'ghost'";
    until(&client, claimed, "2").await;
    let outsider = outsider(&database).await;
    (database, member, r1, r2, outsider)
}

#[tokio::test]
async fn an_acting_write_that_is_held_up_delays_its_role_alone() {
    let (database, member, r1, r2, outsider) = about_to_act().await;
    let client = database.client().await.unwrap();
    let before = seat(&client).await;
    leads(&r2).await;
    assert_eq!(r1.state(), LockState::Acquiring);
    assert!(!r1.is_leader(), "its word was not written");
    outsider.batch_execute("rollback").await.unwrap();
    leads(&r1).await;
    assert_eq!(one(&client, "select count(*) from tenure.role where debtor = 'ghost'").await, "0");
    assert_eq!(seat(&client).await, before, "the seat was lost");
    gone(member).await;
}

#[tokio::test]
async fn a_session_that_holds_up_an_acting_write_for_longer_than_a_lease_is_ended() {
    let (database, member, r1, r2, outsider) = about_to_act().await;
    let client = database.client().await.unwrap();
    let before = seat(&client).await;
    leads(&r2).await;
    leads(&r1).await;
    outsider.batch_execute("select 1").await.expect_err("it was ended");
    assert_eq!(seat(&client).await, before, "the seat was lost");
    gone(member).await;
}

/// A failover may have lost the term that came after ours. So a debt of ours that is older than this incarnation is
/// paid by waiting, not by stepping down while we wait.
#[tokio::test]
async fn a_member_that_steps_down_while_it_waits_leaves_a_debt_from_before_a_failover() {
    let (database, member, r1, r2, outsider) = about_to_act().await;
    outsider.batch_execute("rollback").await.unwrap();
    let client = database.client().await.unwrap();
    // Paused, so that it does not claim again.
    let held = "update tenure.role set debtor = holder, paused = true where debtor = 'ghost'";
    assert_eq!(client.execute(held, &[]).await.unwrap(), 2, "both still wait");
    for lock in [&r1, &r2] {
        lock.step_down(Some(PATIENCE)).await.unwrap();
    }
    until(&client, "select count(*) from tenure.role where holder is null", "2").await;
    let paid = "select count(*) from tenure.role where debtor is null";
    assert_eq!(one(&client, paid).await, "0", "the next leader would not wait");
    gone(member).await;
}

/// The first of the queue is an old transaction that holds nothing yet.
#[tokio::test]
async fn a_session_that_only_waits_for_the_same_row_is_not_ended() {
    let database = database().await;
    let (member, r1, _) = two_roles(&database, Duration::from_secs(1)).await;
    leads(&r1).await;
    gone(member).await;
    let client = database.client().await.unwrap();
    let outsider = outsider(&database).await;
    let innocent = database.client().await.unwrap();
    let waits = tokio::spawn(async move {
        let sql = "begin; select from tenure.role where name = 'r1' for update; commit";
        innocent.batch_execute(sql).await
    });
    let queued = "select count(*) from pg_locks where locktype = 'tuple' and granted";
    until(&client, queued, "1").await;
    let (member, r1, _) = two_roles(&database, Duration::from_secs(1)).await;
    leads(&r1).await;
    outsider.batch_execute("select 1").await.expect_err("it was ended");
    waits.await.unwrap().expect("it held up no member");
    gone(member).await;
}

/// All together they would take longer than the seat's deadline.
#[tokio::test]
async fn a_thousand_rows_that_are_held_up_cost_no_seat() {
    let database = database().await;
    let (member, r1, _) = two_roles(&database, LEASE).await;
    leads(&r1).await;
    let client = database.client().await.unwrap();
    client
        .batch_execute(
            "insert into tenure.role (name, key, policy, lease_ms) \
             select 'x' || n, n, 'exclusive', 1000 from generate_series(1, 1000) n",
        )
        .await
        .unwrap();
    let outsider = database.client().await.unwrap();
    outsider.batch_execute("begin; select from tenure.role for update").await.unwrap();
    client
        .batch_execute(
            "set statement_timeout = '500ms'; \
             select tenure.lock_rows(array(select name from tenure.role))",
        )
        .await
        .expect("within the deadline of a seat");
    outsider.batch_execute("rollback").await.unwrap();
    gone(member).await;
}

/// An operator that lowers a lease and finds the row held up is not in the way of members that register.
#[tokio::test]
async fn lowering_a_lease_that_is_held_up_delays_no_registration() {
    let database = database().await;
    let (member, r1, _) = two_roles(&database, LEASE).await;
    leads(&r1).await;
    let outsider = outsider(&database).await;
    let operator = Operator::connect(member.config()).await.unwrap();
    let lowering =
        tokio::spawn(async move { operator.lower_lease(&RoleName::new("r1").unwrap()).await });
    let client = database.client().await.unwrap();
    let waits = "select count(*) from pg_stat_activity \
                 where wait_event_type = 'Lock' and query like '%lower_lease%' and pid <> pg_backend_pid()";
    until(&client, waits, "1").await;
    let free = "select pg_try_advisory_xact_lock_shared(tenure.lease_key())";
    assert_eq!(one(&client, free).await, "t");
    outsider.batch_execute("rollback").await.unwrap();
    lowering.await.unwrap().expect("the row came free");
    gone(member).await;
}

#[tokio::test]
async fn a_fence_in_a_prepared_transaction_is_named_with_its_remedy() {
    prepared_fence(false).await;
}

#[tokio::test]
async fn a_fence_that_was_passed_by_a_pass_is_named_too() {
    prepared_fence(true).await;
}

async fn prepared_fence(pass: bool) {
    let options = ClusterOptions::default().set("max_prepared_transactions", 5);
    let cluster = Cluster::start_with(options).await.expect("a cluster");
    let database = cluster.database().await.expect("a database");
    let (first, r1, _) = two_roles(&database, LEASE).await;
    leads(&r1).await;
    let client = database.client().await.unwrap();
    let epoch = r1.gate().epoch().unwrap();
    if pass {
        client.batch_execute(&format!("select tenure.fence('r1', {epoch})")).await.unwrap();
    }
    client
        .batch_execute(&format!(
            "begin; select tenure.fence('r1', {epoch}); prepare transaction 'it''s stuck'"
        ))
        .await
        .unwrap();
    gone(first).await;
    let (member, r1, r2) = two_roles(&database, LEASE).await;
    let mut events = r1.events();
    leads(&r2).await;
    let before = seat(&client).await;
    let remedy = "rollback prepared 'it''s stuck'";
    let told = async {
        loop {
            match events.recv().await.expect("it goes on").notice {
                Notice::Error(text) if text.contains(remedy) => break,
                _ => {}
            }
        }
    };
    tokio::time::timeout(PATIENCE, told).await.expect("the obstacle is named");
    let health = member.health().await.unwrap();
    assert!(health.roles[0].trouble.as_deref().is_some_and(|text| text.contains(remedy)));
    assert!(health.roles[1].trouble.is_none());
    let findings = tenure::preflight::check(member.config()).await.unwrap();
    let found = findings.all.iter().find(|finding| finding.what == "prepared");
    assert!(found.is_some_and(|finding| finding.text.contains("'it''s stuck'")), "{found:?}");
    client.batch_execute(remedy).await.unwrap();
    leads(&r1).await;
    assert!(member.health().await.unwrap().roles[0].trouble.is_none());
    assert_eq!(seat(&client).await, before, "the seat was lost");
    gone(member).await;
}

#[tokio::test]
async fn a_lease_is_lowered_to_the_longest_that_takes_part_and_never_below() {
    let database = database().await;
    let member = |lease| {
        let role = RoleSpec::named("r").candidate(lease == 2);
        start(config(&database).lease(Duration::from_secs(lease)).role(role))
    };
    let (short, middle, long) = (member(2).await, member(4).await, member(6).await);
    for member in [&short, &middle, &long] {
        member.start_all().await.unwrap();
    }
    leads(&short.locks()[0]).await;
    let operator = Operator::connect(short.config()).await.unwrap();
    let role = RoleName::new("r").unwrap();
    let lowered = operator.lower_lease(&role).await.unwrap();
    assert_eq!(
        (lowered.from, lowered.to),
        (Duration::from_secs(6), Duration::from_secs(6)),
        "the longest still takes part"
    );
    gone(long).await;
    // A registration in progress cannot be seen: no operator lowers the lease under it.
    let registering = database.client().await.unwrap();
    registering
        .batch_execute("begin; select pg_advisory_xact_lock_shared(tenure.lease_key())")
        .await
        .unwrap();
    operator.lower_lease(&role).await.expect_err("it waits for the registration");
    registering.batch_execute("rollback").await.unwrap();
    let lowered = operator.lower_lease(&role).await.unwrap();
    assert_eq!((lowered.from, lowered.to), (Duration::from_secs(6), Duration::from_secs(4)));
    gone(middle).await;
    assert_eq!(operator.lower_lease(&role).await.unwrap().to, Duration::from_secs(2));
    // A longer lease comes back and is written down before it is used.
    let long = member(6).await;
    long.start_all().await.unwrap();
    let client = database.client().await.unwrap();
    assert_eq!(one(&client, "select lease_ms from tenure.role").await, "6000");
    // Of another incarnation's leader nothing is known.
    gone(long).await;
    client.batch_execute("update tenure.role set acted_in = 'once'").await.unwrap();
    let error = operator.lower_lease(&role).await.expect_err("not settled");
    assert!(error.to_string().contains("since the database was started"), "{error}");
    gone(short).await;
}
