//! What users of other electors ran into: at least one test for each complaint that applies to a
//! library.

use std::time::Duration;

use tenure::{Epoch, LockState, Member, TenureError, preflight::Refused};
use tenure_core::lease::Fault;
use tenure_testkit::{Cluster, ClusterOptions, PgBouncer, PoolMode, Proxy, history::now_ns};
use tokio::time::{Instant, sleep, timeout};
use tokio_postgres::Client;

use crate::{
    group::{Group, connect, number, own_server, seat_pid, shared_server, until},
    node::Setup,
    wire::Wire,
};

const PATIENCE: Duration = Duration::from_secs(15);

/// The advisory locks on roles, as many rows as holders.
const ROLE_LOCKS: &str = "select count(*) from pg_locks l join tenure.role r \
    on l.locktype = 'advisory' and l.granted \
    and l.classid = ((r.key >> 32) & 4294967295)::oid and l.objid = (r.key & 4294967295)::oid \
    and l.database = (select oid from pg_database where datname = current_database())";

async fn member(setup: &Setup) -> Member {
    let member = Member::start(setup.config()).await.expect("a member");
    member.start_all().await.expect("its roles");
    member
}

async fn leader(setup: &Setup) -> Member {
    let member = member(setup).await;
    for lock in member.locks() {
        assert!(lock.wait_for_leadership(Some(PATIENCE)).await.is_ok(), "{lock:?}");
    }
    member
}

async fn here() -> (Setup, Client) {
    let (database, _) = shared_server().await;
    (Setup::new("a", &database.dsn()), connect(&database.dsn()).await)
}

async fn gone(member: Member) {
    member.shutdown(Some(PATIENCE)).await.expect("it leaves");
}

/// Which of the two leads under a later epoch; either may, with a short cool-down.
async fn next_leader(members: &[&Member; 2], above: Epoch) -> (usize, Epoch) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        for (n, member) in members.iter().enumerate() {
            if let Some(epoch) = member.locks()[0].gate().epoch().filter(|epoch| *epoch > above) {
                return (n, epoch);
            }
        }
        assert!(Instant::now() < deadline, "no member leads after epoch {above}");
        sleep(Duration::from_millis(1)).await;
    }
}

fn named(setup: &Setup, name: &str) -> Setup {
    Setup { name: name.to_owned(), ..setup.clone() }
}

#[tokio::test]
async fn a_transaction_pooler_is_refused_and_strands_no_lock() {
    let (cluster, database) = own_server().await;
    let pooler = PgBouncer::start(&cluster, PoolMode::Transaction, &[]).await.expect("a pooler");
    let setup = Setup::new("a", &pooler.dsn(database.name()));
    match Member::start(setup.config()).await {
        Err(TenureError::Refused(refused)) => {
            assert!(matches!(*refused, Refused::Pooler { .. }), "{refused}");
        }
        other => panic!("{other:?}"),
    }
    let client = connect(&database.dsn()).await;
    let locks = "select count(*) from pg_locks where locktype = 'advisory'";
    assert_eq!(number(&client, locks).await, 0);
}

#[tokio::test]
async fn a_lost_session_is_never_taken_for_leadership() {
    let (setup, client) = here().await;
    let member = leader(&setup).await;
    let lock = member.locks().remove(0);
    let gate = lock.gate();
    let old = gate.epoch().expect("it leads");
    let mut events = lock.events();
    let end = "select count(pg_terminate_backend(backend_pid, 5000)) from tenure.member";
    number(&client, end).await;
    let lost = async {
        while !matches!(events.recv().await.expect("an event").notice, tenure::Notice::Lost { .. })
        {
        }
    };
    timeout(PATIENCE, lost).await.expect("it is told");
    // It may lead again by now, being alone; never under the epoch it had.
    assert!(gate.ensure_epoch(old).is_err(), "it still believes in its old session");
    gone(member).await;
}

#[tokio::test]
async fn a_beat_renews_its_own_seat_and_no_other() {
    let (setup, client) = here().await;
    let mut group = Group::start(&["a", "b"], &setup).await;
    let old = group.leader(0).await;
    // Another session has taken the seat of that name: same member, same backend, another token.
    let fault = now_ns();
    client
        .execute("update tenure.member set seat = 'other' where identity like 'a-%'", &[])
        .await
        .expect("done");
    group.nodes[0].wait_notice("is not the seat").await;
    group.fail_over("seat taken", Fault::BackendTerminated, fault, old.epoch).await;
}

#[tokio::test]
async fn an_epoch_that_moved_ends_the_term() {
    let (setup, client) = here().await;
    let mut group = Group::start(&["a", "b"], &setup).await;
    let old = group.leader(0).await;
    let moved = "update tenure.role set epoch = epoch + 1, holder = 'somebody'; \
                 update tenure.member set revoked = revoked + 1";
    client.batch_execute(moved).await.expect("moved");
    group.nodes[0].wait_notice("EpochMoved").await;
    let lead = group.leader(old.epoch + 1).await;
    assert!(lead.epoch > old.epoch + 1);
    group.verify();
}

#[tokio::test]
async fn followers_hold_no_snapshot_longer_than_a_heartbeat() {
    let (setup, client) = here().await;
    let mut members = vec![leader(&setup).await];
    for n in 0..4 {
        members.push(self::member(&named(&setup, &format!("f{n}"))).await);
    }
    client
        .batch_execute("create table t (n int); insert into t values (1)")
        .await
        .expect("a table");
    // A wait of ours never outlives a heartbeat, so whatever it pins it lets go of.
    let oldest = "select coalesce(max(extract(epoch from clock_timestamp() - query_start) * 1000), 0)::bigint \
                  from pg_stat_activity where backend_xmin is not null and application_name like 'tenure %' \
                  and datname = current_database()";
    let end = Instant::now() + Duration::from_millis(1500);
    while Instant::now() < end {
        let age = number(&client, oldest).await;
        assert!(age <= 250, "a snapshot of ours is {age} ms old");
        sleep(Duration::from_millis(2)).await;
    }
    let index = client.batch_execute("create index concurrently i on t (n)");
    timeout(Duration::from_secs(5), index).await.expect("not held up").expect("an index");
    for member in members {
        gone(member).await;
    }
}

#[tokio::test]
async fn the_lock_lives_on_the_seat_alone_and_goes_with_it() {
    let (setup, client) = here().await;
    let member = leader(&setup).await;
    let others = "select count(*) from pg_locks l join pg_stat_activity a using (pid) \
        where l.locktype = 'advisory' and l.mode = 'ExclusiveLock' and l.granted \
        and a.datname = current_database() and a.application_name not like 'tenure seat %'";
    assert_eq!(number(&client, ROLE_LOCKS).await, 1);
    assert_eq!(number(&client, others).await, 0);
    gone(member).await;
    assert_eq!(number(&client, ROLE_LOCKS).await, 0);
    let sessions = "select count(*) from pg_stat_activity \
        where datname = current_database() and application_name like 'tenure %'";
    until("its sessions to end", || async { number(&client, sessions).await == 0 }).await;
}

#[tokio::test]
async fn reacquiring_never_stacks_the_lock() {
    let (database, _) = shared_server().await;
    let client = connect(&database.dsn()).await;
    let setup = Setup { cool_down: Duration::from_millis(20), ..Setup::new("a", &database.dsn()) };
    let (one, two) = (leader(&setup).await, member(&named(&setup, "b")).await);
    let members = [&one, &two];
    let (mut leads, mut epoch) = next_leader(&members, Epoch::ZERO).await;
    for _ in 0..20 {
        // Wake-ups by the dozen while it holds the lock: none of them may take it again.
        let wake = "select pg_notify('tenure', '') from generate_series(1, 10)";
        client.batch_execute(wake).await.expect("told");
        members[leads].locks()[0].step_down(None).await.expect("stepped down");
        // One unlock freed it, or no member could follow.
        (leads, epoch) = next_leader(&members, epoch).await;
        assert_eq!(number(&client, ROLE_LOCKS).await, 1);
    }
    gone(one).await;
    gone(two).await;
    assert_eq!(number(&client, ROLE_LOCKS).await, 0);
}

#[tokio::test]
async fn a_dead_peer_holds_the_lock_no_longer_than_its_lease() {
    let (database, server) = shared_server().await;
    let proxy = Proxy::start(server).await.expect("a proxy");
    let setup = Setup { fenced: true, ..Setup::new("a", &proxy.dsn(database.name())) };
    let mut group = Group::default();
    group.add(setup.clone()).await;
    group.add(Setup { dsn: database.dsn(), ..named(&setup, "b") }).await;
    group.settle(2).await;
    let old = group.leader(0).await;
    // No FIN, no RST, no answer, as from a machine without power.
    let fault = group.nodes[0].freeze();
    proxy.sever();
    group.fail_over("dead peer", Fault::Freeze, fault, old.epoch).await;
}

#[tokio::test]
async fn a_healthy_leader_and_a_bystander_are_never_terminated() {
    let (setup, client) = here().await;
    let mut group = Group::start(&["a", "b", "c"], &setup).await;
    let old = group.leader(0).await;
    let before = seat_pid(&client, &mut group.nodes[0]).await;
    // It fences its writes all the time, which holds up no member.
    let end = Instant::now() + setup.lease * 2;
    while Instant::now() < end {
        client
            .batch_execute(&format!("begin; select tenure.fence('role', {}); commit", old.epoch))
            .await
            .expect("fenced");
        sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(seat_pid(&client, &mut group.nodes[0]).await, before);
    assert!(group.events().iter().all(|event| event.instant().epoch == old.epoch));
    // A pid that belongs to another session by now is not "our old session".
    let mine: i32 = client.query_one("select pg_backend_pid()", &[]).await.expect("a pid").get(0);
    client
        .execute("update tenure.member set backend_pid = $1 where identity like 'a-%'", &[&mine])
        .await
        .expect("done");
    let fault = now_ns();
    group.fail_over("another pid", Fault::BackendTerminated, fault, old.epoch).await;
    let still: i32 = client.query_one("select pg_backend_pid()", &[]).await.expect("alive").get(0);
    assert_eq!(still, mine, "a bystander was terminated");
}

#[tokio::test]
async fn a_handover_takes_milliseconds_and_waits_for_the_work() {
    let (setup, _) = here().await;
    let mut group = Group::start(&["a", "b"], &setup).await;
    let old = group.leader(0).await;
    group.nodes[0].do_now("begin").await.expect("it leads");
    group.nodes[0].do_now("resign").await.expect("asked");
    group.nodes[0].wait_notice("Releasing").await;
    group.watch_for(Duration::from_millis(500)).await;
    assert!(group.nodes[1].events().is_empty(), "released before the work was drained");
    let fault = now_ns();
    group.nodes[0].do_now("finish").await.expect("the lease covered it");
    let new = group.fail_over("handover after drain", Fault::StepDown, fault, old.epoch).await;
    assert_eq!(new.node, 1);
}

#[tokio::test]
async fn roles_of_one_schema_have_leaders_of_their_own() {
    let (setup, _) = here().await;
    let only = |name: &str, roles: &[&str]| Setup {
        roles: roles.iter().map(|role| (*role).to_owned()).collect(),
        ..named(&setup, name)
    };
    let one = leader(&only("a", &["x"])).await;
    let two = leader(&only("b", &["y"])).await;
    // Opting out, and coming first.
    let observer = member(&Setup { candidate: false, ..only("c", &["x", "y"]) }).await;
    let low = member(&only("d", &["x"])).await;
    let high = member(&Setup { priority: 5, ..only("e", &["x"]) }).await;
    one.lock("x").expect("a role").step_down(None).await.expect("stepped down");
    assert!(high.lock("x").expect("a role").wait_for_leadership(Some(PATIENCE)).await.is_ok());
    assert!(two.lock("y").expect("a role").is_leader(), "another role's change cost it its own");
    assert!(observer.locks().iter().all(|lock| lock.state() == LockState::Follower));
    for member in [one, two, observer, low, high] {
        gone(member).await;
    }
}

#[tokio::test]
async fn an_application_that_uses_up_every_connection_starves_no_heartbeat() {
    let options = ClusterOptions::default().set("max_connections", 20);
    let cluster = Cluster::start_with(options).await.expect("a server");
    let database = cluster.create_database("app").await.expect("a database");
    cluster.sql("create role app login").await.expect("a role");
    let mut group = Group::start(&["a", "b"], &Setup::new("", &database.dsn())).await;
    let old = group.leader(0).await;
    let mut pool = Vec::new();
    while let Ok((client, connection)) =
        tokio_postgres::connect(&database.dsn_for("app"), tokio_postgres::NoTls).await
    {
        tokio::spawn(connection);
        client.batch_execute("begin").await.expect("a transaction");
        pool.push(client);
        assert!(pool.len() < 40, "the server has no limit");
    }
    group.watch_for(group.nodes[0].setup.lease * 2).await;
    assert!(group.events().iter().all(|event| event.instant().epoch == old.epoch));
    let quiet = now_ns() - group.nodes[0].last_yes().expect("it leads");
    assert!(quiet < 300_000_000, "its gate has been shut for {quiet} ns");
    assert!(!group.nodes[0].notices().iter().any(|notice| notice.contains("Late")));
}

#[tokio::test]
async fn a_listener_that_hears_nothing_is_repaired_by_the_poll() {
    let (database, server) = shared_server().await;
    let wire = Wire::start(server).await;
    // A leader that might come back for its role within a grace, and does not.
    let grace = Some(Duration::from_secs(1));
    let setup = Setup { grace, ..Setup::new("a", &database.dsn()) };
    let mut group = Group::default();
    group.add(setup.clone()).await;
    group.add(Setup { dsn: wire.dsn(database.name()), ..named(&setup, "b") }).await;
    group.settle(2).await;
    let old = group.leader(0).await;
    wire.deafen();
    let fault = now_ns();
    group.nodes[0].do_now("step_down").await.expect("stepped down");
    let new = group.leader(old.epoch).await;
    assert_eq!(new.node, 1);
    group.judge_within("deaf listener", setup.lease, fault, new);
}

#[tokio::test]
async fn a_listener_that_hears_nothing_is_replaced() {
    let (database, server) = shared_server().await;
    let client = connect(&database.dsn()).await;
    let wire = Wire::start(server).await;
    let setup = Setup::new("a", &database.dsn());
    let mut group = Group::default();
    group.add(setup.clone()).await;
    group.add(Setup { dsn: wire.dsn(database.name()), ..named(&setup, "b") }).await;
    group.settle(2).await;
    let old = group.leader(0).await;
    let deaf = seat_pid(&client, &mut group.nodes[1]).await;
    wire.deafen();
    let pid = "select backend_pid::bigint from tenure.member where identity like 'b-%'";
    until("another seat", || async { number(&client, pid).await != i64::from(deaf) }).await;
    assert!(group.nodes[1].logged("notifications do not arrive"));
    // The new one hears, and no term ended over it.
    let fault = now_ns();
    group.nodes[0].do_now("step_down").await.expect("stepped down");
    let new = group.fail_over("replaced listener", Fault::StepDown, fault, old.epoch).await;
    assert_eq!(new.node, 1);
}

#[tokio::test]
async fn a_short_stall_and_a_quick_reconnect_cost_no_member_its_term() {
    let (setup, client) = here().await;
    let grace = Some(Duration::from_secs(1));
    let mut group = Group::start(&["a", "b", "c"], &Setup { grace, ..setup.clone() }).await;
    let old = group.leader(0).await;
    group.nodes[0].freeze();
    sleep(setup.lease / 2).await;
    group.nodes[0].thaw();
    group.watch_for(Duration::from_millis(500)).await;
    let pid = seat_pid(&client, &mut group.nodes[0]).await;
    client.execute("select pg_terminate_backend($1)", &[&pid]).await.expect("terminated");
    group.nodes[0].wait_notice("Recovered").await;
    group.watch_for(Duration::from_secs(1)).await;
    assert!(group.events().iter().all(|event| event.instant().epoch == old.epoch), "it flapped");
    let notices = group.nodes[0].notices();
    assert!(!notices.iter().any(|notice| notice.contains("Lost")), "{notices:?}");
}

#[tokio::test]
async fn two_hundred_roles_take_two_sessions() {
    let (setup, client) = here().await;
    let roles = (0..200).map(|n| format!("role-{n}")).collect();
    let member = leader(&Setup { roles, ..setup }).await;
    let sessions = "select count(*) from pg_stat_activity \
        where datname = current_database() and application_name like 'tenure %'";
    assert_eq!(number(&client, sessions).await, 2);
    assert_eq!(number(&client, ROLE_LOCKS).await, 200);
    gone(member).await;
}

#[tokio::test]
async fn the_record_shows_every_term_and_that_none_overlapped() {
    let (setup, client) = here().await;
    let mut group = Group::start(&["a", "b", "c"], &setup).await;
    let first = group.leader(0).await;
    group.nodes[first.node].do_now("step_down").await.expect("stepped down");
    let second = group.leader(first.epoch).await;
    group.nodes[second.node].kill().await;
    let third = group.leader(second.epoch).await;
    group.verify();
    let rows = client
        .query(
            "select epoch, member, acting_at, ended_at, how from tenure.term order by epoch",
            &[],
        )
        .await
        .expect("the record");
    let epochs: Vec<u64> = rows.iter().map(|row| row.get::<_, i64>(0).cast_unsigned()).collect();
    assert_eq!(epochs, [first.epoch, second.epoch, third.epoch]);
    let how: Vec<Option<String>> = rows.iter().map(|row| row.get(4)).collect();
    assert_eq!(how, [Some("released".into()), Some("replaced".into()), None]);
    let overlaps = "select count(*) from tenure.term a join tenure.term b \
        on a.role = b.role and a.epoch < b.epoch where a.ended_at is null or a.ended_at > b.acting_at";
    assert_eq!(number(&client, overlaps).await, 0);
}

#[tokio::test]
async fn a_snapshot_from_before_the_bump_cannot_pass_the_fence() {
    let (setup, client) = here().await;
    let setup = Setup { cool_down: Duration::from_millis(20), ..setup };
    let (one, two) = (leader(&setup).await, member(&named(&setup, "b")).await);
    let members = [&one, &two];
    let (mut leads, mut epoch) = next_leader(&members, Epoch::ZERO).await;
    let old = epoch;
    for level in ["read committed", "repeatable read", "serializable"] {
        let stale = connect(&setup.dsn).await;
        let begin = format!("begin isolation level {level}; select count(*) from tenure.role");
        stale.batch_execute(&begin).await.expect("a snapshot");
        let held = epoch;
        members[leads].locks()[0].step_down(None).await.expect("stepped down");
        (leads, epoch) = next_leader(&members, held).await;
        let fenced = tenure::fence(&stale, "role", held).await;
        assert!(matches!(fenced, Err(tenure::FenceError::Stale { .. })), "{level}: {fenced:?}");
    }
    gone(one).await;
    gone(two).await;
    // No member leads any more, and still no old epoch passes: the fence is not reset by a resignation.
    let fenced = tenure::fence(&client, "role", old).await;
    assert!(matches!(fenced, Err(tenure::FenceError::Stale { .. })), "{fenced:?}");
}

#[tokio::test]
async fn a_member_that_is_woken_finds_the_lock_free() {
    let (setup, _) = here().await;
    let setup = Setup { roles: (0..10).map(|n| format!("role-{n}")).collect(), ..setup };
    let (one, two) = (leader(&setup).await, member(&named(&setup, "b")).await);
    let mut late = 0;
    for (from, to) in one.locks().iter().zip(two.locks()) {
        let told = Instant::now();
        from.step_down(None).await.expect("stepped down");
        assert!(to.wait_for_leadership(Some(PATIENCE)).await.is_ok());
        // The repair poll comes half a lease after the last one at the earliest.
        late += usize::from(told.elapsed() > setup.lease / 3);
    }
    assert!(late <= 1, "{late} of 10 wake-ups met a held lock");
    gone(one).await;
    gone(two).await;
}

/// The other half of 18: a claim whose row could not be written leaves no lock.
#[tokio::test]
async fn a_claim_whose_record_fails_leaves_no_lock() {
    let (setup, client) = here().await;
    let first = leader(&setup).await;
    gone(first).await;
    client
        .batch_execute("alter table tenure.term add constraint no check (epoch < 2) not valid")
        .await
        .expect("a constraint");
    let second = member(&named(&setup, "b")).await;
    let lock = second.locks().remove(0);
    let mut events = lock.events();
    let failed = async {
        loop {
            let event = events.recv().await.expect("an event");
            if matches!(&event.notice, tenure::Notice::Error(error) if error.contains("23514")) {
                return;
            }
        }
    };
    timeout(PATIENCE, failed).await.expect("the claim fails");
    assert_eq!(number(&client, ROLE_LOCKS).await, 0, "the lock stayed");
    client.batch_execute("alter table tenure.term drop constraint no").await.expect("dropped");
    assert!(lock.wait_for_leadership(Some(PATIENCE)).await.is_ok());
    gone(second).await;
}
