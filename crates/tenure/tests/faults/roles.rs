//! Many roles on one seat, and roles whose row another session holds up.

use std::time::{Duration, Instant as Moment};

use tenure_core::lease::Fault;
use tenure_testkit::history::now_ns;
use tokio_postgres::Client;

use crate::{
    group::{Group, Lead, Node, SLACK, connect, number, seat_pid, shared_server, until},
    node::Setup,
};

/// How many of the roles' locks that backend holds.
async fn role_locks(client: &Client, pid: i32) -> i64 {
    let sql = format!(
        "select count(*) from pg_locks l join tenure.role r on l.locktype = 'advisory' \
         and l.classid = ((r.key >> 32) & 4294967295)::oid \
         and l.objid = (r.key & 4294967295)::oid and l.objsubid = 1 \
         where l.granted and l.pid = {pid} \
         and l.database = (select oid from pg_database where datname = current_database())"
    );
    number(client, &sql).await
}

async fn led_by(node: &mut Node, roles: usize, above: u64) -> bool {
    let mut led = std::collections::BTreeSet::new();
    for event in node.events() {
        let instant = event.instant();
        if instant.epoch > above {
            led.insert(instant.role.clone());
        }
    }
    led.len() >= roles
}

/// Of five roles one is held up and one fails: the other three are won at once, nothing leaks, and
/// the two are won when they can be.
#[tokio::test]
async fn a_claim_that_fails_half_way_leaks_no_lock_and_wins_the_rest() {
    let (database, _) = shared_server().await;
    let client = connect(&database.dsn()).await;
    let roles: Vec<String> = (1..=5).map(|n| format!("r{n}")).collect();
    // A seat that a busy machine costs it would be another test.
    let statement_deadline = Duration::from_millis(1000);
    let setup =
        Setup { roles, fenced: true, statement_deadline, ..Setup::new("", &database.dsn()) };
    let mut group = Group::start(&["a", "b"], &setup).await;
    until("all five", || async {
        number(&client, "select count(*) from tenure.role where holder like 'a-%'").await == 5
    })
    .await;
    client
        .batch_execute(
            "create function fail() returns trigger language plpgsql as $$ begin
                 raise exception 'no' using errcode = '23514'; end $$;
             create trigger fail before update on tenure.role for each row
                 when (new.name = 'r4' and new.epoch > old.epoch) execute function fail();",
        )
        .await
        .expect("a trigger");
    let blocker = connect(&database.dsn()).await;
    let block = "begin; select from tenure.role where name = 'r2' for update";
    blocker.batch_execute(block).await.expect("held up");
    let fault = now_ns();
    group.nodes[0].kill().await;
    for role in ["r1", "r3", "r5"] {
        let lead = group.leader_of(role, 1).await;
        group.judge("half a claim", Fault::Crash, fault, lead);
    }
    let pid = seat_pid(&client, &mut group.nodes[1]).await;
    // A claim that is under way holds the lock of the role it waits for.
    until("no lock to leak", || async { role_locks(&client, pid).await == 3 }).await;
    blocker.batch_execute("rollback").await.expect("given back");
    client.batch_execute("drop trigger fail on tenure.role").await.expect("dropped");
    for role in ["r2", "r4"] {
        group.leader_of(role, 1).await;
    }
    assert_eq!(role_locks(&client, pid).await, 5);
    group.verify();
}

async fn frozen_in_a_fenced_transaction(fenced: bool) {
    let (database, _) = shared_server().await;
    let setup = Setup { fenced, ..Setup::new("", &database.dsn()) };
    let mut group = Group::start(&["a", "b"], &setup).await;
    let old = group.leader(0).await;
    group.nodes[0].do_now("fence").await.expect("fenced");
    let fault = group.nodes[0].freeze();
    let what = "SIGSTOP in a fenced transaction";
    let new = group.fail_over(what, Fault::Freeze, fault, old.epoch).await;
    assert_eq!(new.node, 1);
    // The server ended that transaction by itself; no member had to.
    assert!(!group.nodes[1].logged("stood before a claim"), "the fence set no limit on idling");
}

#[tokio::test]
async fn a_leader_frozen_inside_a_fenced_transaction_is_followed_within_the_bound() {
    frozen_in_a_fenced_transaction(false).await;
}

#[tokio::test]
async fn a_leader_frozen_inside_a_fenced_transaction_is_followed_within_the_bound_when_fenced() {
    frozen_in_a_fenced_transaction(true).await;
}

/// A fenced transaction that is busy, not idle: no timer ends it, so the claimant that it holds up does,
/// after one more lease.
#[tokio::test]
async fn a_fenced_transaction_that_never_ends_is_ended_by_the_member_it_holds_up() {
    let (database, _) = shared_server().await;
    let setup = Setup { fenced: true, ..Setup::new("", &database.dsn()) };
    let mut group = Group::start(&["a", "b"], &setup).await;
    let old = group.leader(0).await;
    let busy = connect(&database.dsn()).await;
    let fence = format!("begin; select tenure.fence('role', {})", old.epoch);
    busy.batch_execute(&fence).await.expect("fenced");
    let sleeps = tokio::spawn(async move { busy.batch_execute("select pg_sleep(600)").await });
    let fault = now_ns();
    group.nodes[0].kill().await;
    let new = group.leader(old.epoch).await;
    assert!(sleeps.await.expect("no panic").is_err(), "the transaction was not ended");
    let took = Duration::from_nanos(new.at_ns - fault);
    let bound = setup.lease + setup.heartbeat * 2 + setup.statement_deadline + SLACK;
    assert!(took < bound, "{took:?}");
    group.verify();
}

/// The free roles are led before a claimant would end the session that holds the others up, which is
/// after a lease: so this lease is a long one.
async fn blocked_among(total: usize, blocked: usize) {
    let (database, _) = shared_server().await;
    let client = connect(&database.dsn()).await;
    let roles: Vec<String> = (0..total).map(|n| format!("role-{n:04}")).collect();
    let setup = Setup {
        roles,
        fenced: true,
        heartbeat: Duration::from_millis(500),
        lease: Duration::from_secs(15),
        statement_deadline: Duration::from_secs(1),
        ask_every: Duration::from_millis(20),
        say_every: Duration::from_secs(10),
        ..Setup::new("", &database.dsn())
    };
    let mut group = Group::default();
    let begun = Moment::now();
    group.add(Setup { name: "a".into(), ..setup.clone() }).await;
    let held = "select count(*) from tenure.role where holder like 'a-%'";
    let all = i64::try_from(total).expect("few");
    until("all roles", || async { number(&client, held).await == all }).await;
    let without_fault = begun.elapsed();
    group.add(Setup { name: "b".into(), ..setup.clone() }).await;
    group.settle(2).await;
    let blocker = connect(&database.dsn()).await;
    // As fences hold them up: half by their rows, half by passes.
    let rows = blocked.div_ceil(2);
    let block = format!(
        "begin; select from tenure.role where name in \
         (select name from tenure.role order by key limit {rows}) for key share; \
         select pg_advisory_xact_lock_shared(tenure.pass_key(name)) from \
         (select name from tenure.role order by key limit {} offset {rows}) r",
        blocked - rows
    );
    blocker.batch_execute(&block).await.expect("held up");
    let fault = now_ns();
    group.nodes[0].kill().await;
    let begun = Moment::now();
    while !led_by(&mut group.nodes[1], total - blocked, 1).await {
        assert!(begun.elapsed() < Duration::from_secs(20), "the rest is held up too");
        tokio::time::sleep(Duration::from_millis(40)).await;
    }
    let last = group.nodes[1].events().iter().map(|e| e.instant().at_ns).max().expect("it leads");
    let lead = Lead { node: 1, epoch: 2, at_ns: last };
    let what = format!("{} of {total} roles", total - blocked);
    // The bound does not count the round trips of the claims themselves: about twice what they took,
    // on this machine, when there was no leader to succeed.
    group.judge_within(&what, setup.statement_deadline + without_fault * 2, fault, lead);
    blocker.batch_execute("rollback").await.expect("given back");
    let begun = Moment::now();
    while !led_by(&mut group.nodes[1], total, 1).await {
        assert!(begun.elapsed() < Duration::from_secs(20), "the held up role stays without leader");
        tokio::time::sleep(Duration::from_millis(40)).await;
    }
    group.verify();
}

#[tokio::test]
async fn of_a_thousand_roles_one_blocked_role_does_not_delay_the_others() {
    blocked_among(1000, 1).await;
}

#[tokio::test]
async fn of_two_hundred_roles_forty_blocked_ones_do_not_delay_the_others() {
    blocked_among(200, 40).await;
}

/// Transactions that two idle members commit in a while, with that many roles.
async fn idle_transactions(roles: usize) -> i64 {
    let (database, _) = shared_server().await;
    let client = connect(&database.dsn()).await;
    let roles = (0..roles).map(|n| format!("role-{n:04}")).collect();
    let setup = Setup {
        roles,
        // So long that the repair poll does not come: what is left is the back-off of each role.
        lease: Duration::from_secs(60),
        heartbeat: Duration::from_millis(500),
        ask_every: Duration::from_millis(50),
        say_every: Duration::from_secs(60),
        ..Setup::new("", &database.dsn())
    };
    let group = Group::start(&["a", "b"], &setup).await;
    let sql = "select pg_stat_force_next_flush(), xact_commit from pg_stat_database \
               where datname = current_database()";
    let count = || async {
        let row = client.query_one(sql, &[]).await.expect("a count");
        row.get::<_, i64>(1)
    };
    let before = count().await;
    // Time is the subject: so many transactions in so long.
    tokio::time::sleep(Duration::from_secs(4)).await;
    let after = count().await;
    drop(group);
    after - before
}

#[tokio::test]
async fn five_hundred_idle_roles_cost_no_more_round_trips_than_one() {
    let (one, many) = (idle_transactions(1).await, idle_transactions(500).await);
    assert!(many < one * 2, "{one} transactions with one role, {many} with five hundred");
}
