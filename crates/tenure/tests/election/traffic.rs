//! Much traffic, and a database that refuses.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tenure::RoleName;
use tenure::config::RoleSpec;
use tenure::operate::Operator;
use tokio::sync::watch;

use crate::stage::{PATIENCE, candidate, config, database, gone, leader, leads, one, start, until};

/// Orders come with heartbeats, so claims, however many, must not take their place.
#[tokio::test]
async fn an_order_is_heard_however_often_another_role_is_claimed() {
    let database = database().await;
    let (other, _y) = leader(&database, "y").await;
    let member =
        start(config(&database).role(RoleSpec::named("x")).role(RoleSpec::named("y"))).await;
    member.start_all().await.unwrap();
    let x = member.lock("x").unwrap();
    leads(&x).await;

    let noise = database.client().await.unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let (count, mut sent) = watch::channel(0);
    let loud = tokio::spawn({
        let stop = stop.clone();
        async move {
            while !stop.load(Ordering::Relaxed) {
                noise.batch_execute("select pg_notify('tenure', 'y')").await.unwrap();
                count.send_modify(|sent| *sent += 1);
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    });
    // The noise is under way, and each of its notifications is followed by a claim.
    sent.wait_for(|sent| *sent >= 5).await.expect("the noise goes on");
    // The order is written but its notification is lost: a heartbeat must bring it.
    let client = database.client().await.unwrap();
    one(&client, "select tenure.order_step_down('x', null, 'a test')").await;
    let asked = Instant::now();
    let mut changes = x.changes();
    let stepped = tokio::time::timeout(PATIENCE / 2, changes.wait_for(|now| !now.is_leader))
        .await
        .is_ok_and(|change| change.is_ok());
    stop.store(true, Ordering::Relaxed);
    loud.await.unwrap();
    assert!(stepped, "the leader did not hear of the order");
    assert!(asked.elapsed() < Duration::from_secs(3), "{:?}", asked.elapsed());
    gone(member).await;
    gone(other).await;
}

/// A seat that is refused at its first word is not taken again at once, and again.
#[tokio::test]
async fn a_database_that_refuses_is_not_stormed() {
    let database = database().await;
    let (member, lock) = leader(&database, "r").await;
    let client = database.client().await.unwrap();
    client.batch_execute("alter function tenure.register rename to register_away").await.unwrap();
    let logins = "select sessions from pg_stat_database where datname = current_database()";
    one(
        &client,
        "select pg_terminate_backend(backend_pid) from tenure.member where left_at is null",
    )
    .await;
    let before: i64 = one(&client, logins).await.parse().unwrap();
    // Time is the subject: so many logins in so long.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let after: i64 = one(&client, logins).await.parse().unwrap();
    client.batch_execute("alter function tenure.register_away rename to register").await.unwrap();
    assert!(after - before < 60, "{} logins in five seconds", after - before);
    leads(&lock).await;
    gone(member).await;
}

#[tokio::test]
async fn a_role_started_while_its_member_leaves_is_refused() {
    let database = database().await;
    let (member, lock) = leader(&database, "r").await;
    let again = tokio::spawn({
        let lock = lock.clone();
        async move {
            while lock.start().await.is_ok() {
                tokio::task::yield_now().await;
            }
        }
    });
    gone(member).await;
    tokio::time::timeout(PATIENCE, again).await.expect("it ends").unwrap();
    assert!(!lock.is_leader());
}

/// Fenced transactions that overlap without end hold up a claim for a while, not for ever.
#[tokio::test]
async fn a_stream_of_fenced_transactions_does_not_keep_the_role_vacant() {
    let database = database().await;
    let (first_member, first) = leader(&database, "r").await;
    let epoch = first.gate().epoch().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let mut writers = Vec::new();
    for n in 0..6_u64 {
        let client = database.client().await.unwrap();
        let stop = stop.clone();
        writers.push(tokio::spawn(async move {
            let sql =
                format!("begin; select tenure.fence('r', {epoch}); select pg_sleep(0.4); commit");
            tokio::time::sleep(Duration::from_millis(70 * n)).await;
            while !stop.load(Ordering::Relaxed) && client.batch_execute(&sql).await.is_ok() {}
        }));
    }
    let (second_member, second) = candidate(&database, RoleSpec::named("r")).await;
    let client = database.client().await.unwrap();
    one(
        &client,
        "select pg_terminate_backend(backend_pid) from tenure.member m \
         join tenure.role r on r.holder = m.identity",
    )
    .await;
    let newer = "select epoch from tenure.role where name = 'r'";
    let deadline = Instant::now() + PATIENCE;
    let mut now = one(&client, newer).await;
    while now == epoch.to_string() && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(50)).await;
        now = one(&client, newer).await;
    }
    stop.store(true, Ordering::Relaxed);
    for writer in writers {
        writer.await.unwrap();
    }
    assert_ne!(now, epoch.to_string(), "no member could claim the role");
    drop((first, second));
    gone(first_member).await;
    gone(second_member).await;
}

/// A death is told by name, before it is recorded: members of other roles need not claim.
#[tokio::test]
async fn a_death_is_told_by_name() {
    let database = database().await;
    let (first, lock) = leader(&database, "r").await;
    let (second, heir) = candidate(&database, RoleSpec::named("r")).await;
    let dead = first.identity().to_string();
    let (client, mut connection) =
        tokio_postgres::connect(&database.dsn(), tokio_postgres::NoTls).await.unwrap();
    let (told, mut hears) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(Ok(message)) = std::future::poll_fn(|cx| connection.poll_message(cx)).await {
            if let tokio_postgres::AsyncMessage::Notification(note) = message {
                let _ = told.send(note.payload().to_owned());
            }
        }
    });
    client.batch_execute("listen tenure").await.unwrap();
    let end = "select pg_terminate_backend(backend_pid) from tenure.member m \
               join tenure.role r on r.holder = m.identity";
    one(&client, end).await;
    let heard = loop {
        let payload = tokio::time::timeout(PATIENCE, hears.recv()).await.expect("it is told");
        let payload = payload.expect("the session lives on");
        // Before it: a sentinel's own call.
        if !payload.starts_with("? ") {
            break payload;
        }
    };
    assert_eq!(heard, format!("! {dead}"));
    drop((lock, heir));
    gone(first).await;
    gone(second).await;
}

/// Two thousand roles on one member: held, looked at in full, and let go.
#[tokio::test]
async fn everything_that_is_held_can_be_looked_at_within_the_deadline() {
    let cluster = tenure_testkit::Cluster::start_with(
        tenure_testkit::ClusterOptions::default().set("max_locks_per_transaction", 200),
    )
    .await
    .unwrap();
    let database = cluster.database().await.unwrap();
    let mut builder = config(&database);
    for n in 0..2000 {
        builder = builder.role(RoleSpec::named(format!("r{n}")));
    }
    let member = start(builder).await;
    let began = Instant::now();
    member.start_all().await.unwrap();
    let last = member.lock("r1999").unwrap();
    leads(&last).await;
    for lock in member.locks() {
        leads(&lock).await;
    }
    let claimed = began.elapsed();
    let client = database.client().await.unwrap();
    let seat = "select backend_pid from tenure.member where left_at is null";
    let before = one(&client, seat).await;
    // "Something of yours was taken": it looks at everything.
    let revoke = "update tenure.member set revoked = revoked + 1";
    client.batch_execute(revoke).await.unwrap();
    let looked = format!(
        "select count(*) from pg_stat_activity \
         where pid = {before} and state = 'idle' and query like 'select tenure.inspect(%'"
    );
    until(&client, &looked, "1").await;
    assert_eq!(one(&client, seat).await, before, "the seat was lost");
    let open = member.locks().iter().filter(|lock| lock.is_leader()).count();
    assert_eq!(open, 2000, "after {claimed:?}");
    gone(member).await;
    let role = RoleName::new("r1").unwrap();
    let build = config(&database).build().unwrap();
    let operator = Operator::connect(&build).await.unwrap();
    let status = operator.status(Some(&role)).await.unwrap();
    assert_eq!(status[0].holder, None);
}
