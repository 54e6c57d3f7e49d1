//! Which member leads, which members follow, and how a role changes hands while no member dies.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tenure::config::RoleSpec;
use tenure::operate::{Operator, TermEnd};
use tenure::{
    Act, Epoch, Identity, LeaderLock, LockKey, LockState, Member, Notice, RoleName, TenureError,
};
use tenure_testkit::Database;

use crate::stage::{
    PATIENCE, candidate, config, database, follows, gone, leader, leads, one, start, until,
};

async fn advisory_locks(database: &Database) -> String {
    let client = database.client().await.unwrap();
    one(
        &client,
        "select count(*) from pg_locks where locktype = 'advisory' \
         and database = (select oid from pg_database where datname = current_database())",
    )
    .await
}

#[tokio::test]
async fn a_follower_takes_over_at_once_when_the_leader_lets_go() {
    let database = database().await;
    let (one_member, first) = leader(&database, "r").await;
    // It polls once a lease: within our patience only a notification can tell it.
    let seldom = config(&database).lease(PATIENCE * 2).role(RoleSpec::named("r"));
    let two_member = start(seldom).await;
    let second = two_member.locks().remove(0);
    second.start().await.unwrap();
    follows(&second).await;
    first.shutdown(Some(PATIENCE)).await.unwrap();
    leads(&second).await;
    assert_eq!(second.gate().epoch(), Some(Epoch(2)));
    gone(one_member).await;
    gone(two_member).await;
    assert_eq!(advisory_locks(&database).await, "0");
}

#[tokio::test]
async fn five_hundred_roles_cost_one_claim_and_one_beat_at_a_time() {
    let database = database().await;
    let mut builder = config(&database);
    for n in 0..500 {
        builder = builder.role(RoleSpec::named(format!("r{n}")));
    }
    let member = start(builder).await;
    member.start_all().await.unwrap();
    for lock in member.locks() {
        leads(&lock).await;
    }
    let client = database.client().await.unwrap();
    // Every round trip advances the beat by one: three registrations, a claim, a few beats.
    let trips: i64 = one(&client, "select beat from tenure.member").await.parse().unwrap();
    assert!(trips < 25, "{trips} round trips");
    let sessions = "select count(*) from pg_stat_activity \
                    where application_name like 'tenure %' and datname = current_database()";
    until(&client, sessions, "2").await;
    gone(member).await;
    assert_eq!(advisory_locks(&database).await, "0");
}

#[tokio::test]
async fn a_member_that_stepped_down_stays_out_for_the_cool_down() {
    let database = database().await;
    let spec = RoleSpec::named("r").cool_down(Duration::from_secs(2));
    let (member, lock) = candidate(&database, spec).await;
    leads(&lock).await;
    let before = Instant::now();
    lock.step_down(Some(PATIENCE)).await.unwrap();
    assert_eq!(lock.state(), LockState::Follower);
    assert!(!lock.is_leader());
    leads(&lock).await;
    assert!(before.elapsed() >= Duration::from_secs(2), "{:?}", before.elapsed());
    assert_eq!(lock.gate().epoch(), Some(Epoch(2)));
    gone(member).await;
}

#[tokio::test]
async fn a_step_down_in_the_moment_of_winning_is_not_lost() {
    let database = database().await;
    let spec = || RoleSpec::named("r").cool_down(Duration::from_millis(50));
    let (a, first) = candidate(&database, spec()).await;
    let (b, second) = candidate(&database, spec()).await;
    for _ in 0..20 {
        let won = tokio::select! {
            _ = first.wait_for_leadership(None) => &first,
            _ = second.wait_for_leadership(None) => &second,
        };
        let epoch = won.gate().epoch();
        won.step_down(Some(PATIENCE)).await.unwrap();
        assert!(won.gate().epoch() != epoch || epoch.is_none(), "it still leads");
    }
    gone(a).await;
    gone(b).await;
}

#[tokio::test]
async fn a_named_successor_comes_before_the_others() {
    let database = database().await;
    let (a, first) = leader(&database, "r").await;
    let (b, second) = candidate(&database, RoleSpec::named("r")).await;
    let (c, third) = candidate(&database, RoleSpec::named("r")).await;
    follows(&second).await;
    follows(&third).await;
    for (from, to, wanted) in [(&first, &c, &third), (&third, &b, &second)] {
        from.hand_over(Some(to.identity().clone()), Some(PATIENCE)).await.unwrap();
        leads(wanted).await;
    }
    for member in [a, b, c] {
        gone(member).await;
    }
}

#[tokio::test]
async fn an_observer_watches_and_never_leads() {
    let database = database().await;
    let (a, first) = leader(&database, "r").await;
    let (b, watcher) = candidate(&database, RoleSpec::named("r").candidate(false)).await;
    follows(&watcher).await;
    first.shutdown(Some(PATIENCE)).await.unwrap();
    let client = database.client().await.unwrap();
    until(&client, "select holder is null from tenure.role", "t").await;
    assert!(watcher.wait_for_leadership(Some(Duration::from_secs(4))).await.is_err());
    gone(a).await;
    gone(b).await;
}

#[tokio::test]
async fn the_higher_priority_wins_the_race_but_pre_empts_no_leader() {
    let database = database().await;
    let (a, first) = leader(&database, "r").await;
    let (b, low) = candidate(&database, RoleSpec::named("r")).await;
    let (c, high) = candidate(&database, RoleSpec::named("r").priority(10)).await;
    follows(&low).await;
    follows(&high).await;
    assert!(first.is_leader(), "a healthy leader stays");
    first.shutdown(Some(PATIENCE)).await.unwrap();
    leads(&high).await;
    assert!(!low.is_leader());
    for member in [a, b, c] {
        gone(member).await;
    }
}

#[tokio::test]
async fn a_higher_priority_pre_empts_if_it_is_told_to() {
    let database = database().await;
    let (a, first) = leader(&database, "r").await;
    let (b, high) = candidate(&database, RoleSpec::named("r").priority(10).preempt(true)).await;
    leads(&high).await;
    assert!(!first.is_leader());
    gone(a).await;
    gone(b).await;
}

#[tokio::test]
async fn a_member_that_is_not_ready_leads_only_if_no_ready_one_is_there() {
    let database = database().await;
    let (a, first) = leader(&database, "r").await;
    let (b, unready) = candidate(&database, RoleSpec::named("r")).await;
    unready.set_ready(false).unwrap();
    let (c, ready) = candidate(&database, RoleSpec::named("r")).await;
    let client = database.client().await.unwrap();
    until(&client, "select count(*) from tenure.candidate where not ready", "1").await;
    follows(&ready).await;
    first.shutdown(Some(PATIENCE)).await.unwrap();
    leads(&ready).await;
    ready.shutdown(Some(PATIENCE)).await.unwrap();
    gone(c).await;
    leads(&unready).await;
    gone(a).await;
    gone(b).await;
}

#[tokio::test]
async fn a_paused_role_drains_and_no_member_claims_it_until_it_is_resumed() {
    let database = database().await;
    let (a, first) = leader(&database, "r").await;
    let (b, second) = candidate(&database, RoleSpec::named("r")).await;
    let operator = Operator::connect(a.config()).await.unwrap();
    let role = RoleName::new("r").unwrap();
    operator.pause(&role).await.unwrap();
    let client = database.client().await.unwrap();
    until(&client, "select holder is null from tenure.role", "t").await;
    assert!(!first.is_leader());
    let nobody = async {
        tokio::select! {
            _ = first.wait_for_leadership(None) => {}
            _ = second.wait_for_leadership(None) => {}
        }
    };
    tokio::time::timeout(Duration::from_secs(4), nobody).await.expect_err("it is paused");
    operator.resume(&role).await.unwrap();
    // Either may win now: the first one's cool-down is over.
    let somebody = async {
        tokio::select! {
            led = first.wait_for_leadership(None) => led.is_ok(),
            led = second.wait_for_leadership(None) => led.is_ok(),
        }
    };
    assert!(tokio::time::timeout(PATIENCE, somebody).await.expect("a member leads"));
    gone(a).await;
    gone(b).await;
}

#[tokio::test]
async fn an_operator_orders_a_hand_over_from_anywhere() {
    let database = database().await;
    let (a, _) = leader(&database, "r").await;
    let (b, second) = candidate(&database, RoleSpec::named("r")).await;
    follows(&second).await;
    let mut operator = Operator::connect(a.config()).await.unwrap();
    let role = RoleName::new("r").unwrap();
    let stranger = Identity::generate("stranger").unwrap();
    let nobody = operator.step_down(&role, Some(&stranger)).await.expect_err("no such member");
    assert!(nobody.to_string().contains("no candidate"), "{nobody}");
    let unknown = RoleName::new("unknown").unwrap();
    operator.step_down(&unknown, None).await.expect_err("no such role");
    let ordered = operator.step_down(&role, Some(b.identity())).await.unwrap();
    assert_eq!(ordered.holder.as_ref(), Some(a.identity()));
    let next = operator.await_successor(&role, ordered.epoch, PATIENCE).await.unwrap();
    assert_eq!(next.unwrap().holder.as_ref(), Some(b.identity()));
    let terms = operator.history(Some(&role), 10).await.unwrap();
    assert_eq!(terms.iter().map(|term| term.epoch).collect::<Vec<_>>(), [Epoch(2), Epoch(1)]);
    assert_eq!(terms[1].how, Some(TermEnd::Released));
    assert!(operator.audit(None).await.unwrap().violations.is_empty());
    gone(a).await;
    gone(b).await;
}

#[tokio::test]
async fn an_audit_finds_terms_that_overlap() {
    let database = database().await;
    let (a, lock) = leader(&database, "r").await;
    lock.shutdown(Some(PATIENCE)).await.unwrap();
    let client = database.client().await.unwrap();
    client
        .batch_execute(
            "insert into tenure.term (role, epoch, member, claimed_at, acting_at) \
             select role, 2, 'x', claimed_at, acting_at + (ended_at - acting_at) / 2 \
             from tenure.term",
        )
        .await
        .unwrap();
    let operator = Operator::connect(a.config()).await.unwrap();
    let audit = operator.audit(None).await.unwrap();
    assert_eq!(audit.violations.len(), 1, "{audit:?}");
    gone(a).await;
}

#[tokio::test]
async fn a_program_that_is_not_ours_contends_for_the_same_key() {
    let database = database().await;
    let stranger = database.client().await.unwrap();
    let key = LockKey::Pair(-7, 42);
    stranger.batch_execute("select pg_advisory_lock(-7, 42)").await.unwrap();
    let (member, lock) = candidate(&database, RoleSpec::named("r").key(key)).await;
    follows(&lock).await;
    assert!(lock.wait_for_leadership(Some(Duration::from_millis(300))).await.is_err());
    let operator = Operator::connect(member.config()).await.unwrap();
    let holders = operator.lock_holders(key).await.unwrap();
    assert_eq!(holders.len(), 1);
    assert_eq!(holders[0].tenure, Some(false));
    stranger.batch_execute("select pg_advisory_unlock(-7, 42)").await.unwrap();
    leads(&lock).await;
    assert_eq!(one(&stranger, "select pg_try_advisory_lock(-7, 42)").await, "f");
    gone(member).await;
}

#[tokio::test]
async fn without_tables_the_lock_alone_elects_and_every_term_waits_out_a_lease() {
    let database = database().await;
    let lock_only = || {
        config(&database).lease(Duration::from_secs(1)).lock_only(true).role(RoleSpec::named("r"))
    };
    let (a, b) = (start(lock_only()).await, start(lock_only()).await);
    let before = Instant::now();
    a.start_all().await.unwrap();
    let (first, second) = (a.locks().remove(0), b.locks().remove(0));
    leads(&first).await;
    assert!(before.elapsed() >= Duration::from_secs(1));
    b.start_all().await.unwrap();
    follows(&second).await;
    let released = Instant::now();
    first.shutdown(Some(PATIENCE)).await.unwrap();
    leads(&second).await;
    assert!(released.elapsed() >= Duration::from_secs(1));
    let client = database.client().await.unwrap();
    assert_eq!(one(&client, "select to_regnamespace('tenure') is null").await, "t");
    gone(a).await;
    gone(b).await;
    assert_eq!(advisory_locks(&database).await, "0");
}

#[tokio::test]
async fn a_release_waits_for_the_act_in_flight() {
    let database = database().await;
    let (a, first) = leader(&database, "r").await;
    let (b, second) = candidate(&database, RoleSpec::named("r")).await;
    follows(&second).await;
    let act = first.begin_act(Duration::from_millis(100)).expect("it leads");
    let releasing = tokio::spawn({
        let first = first.clone();
        async move { first.step_down(Some(PATIENCE)).await }
    });
    // The gate lets no new act in, and the old one keeps its term.
    let mut changes = first.changes();
    changes.wait_for(|change| !change.is_leader).await.unwrap();
    first.begin_act(Duration::ZERO).expect_err("draining");
    act.check().expect("the lease covers it");
    assert!(!second.is_leader());
    act.finish().expect("it was covered to its end");
    releasing.await.unwrap().unwrap();
    leads(&second).await;
    gone(a).await;
    gone(b).await;
}

#[tokio::test]
async fn an_act_that_outlives_the_drain_makes_the_successor_wait_out_the_lease() {
    let database = database().await;
    let spec = || RoleSpec::named("r").drain_limit(Duration::from_millis(200));
    let (a, first) = candidate(&database, spec()).await;
    leads(&first).await;
    let (b, second) = candidate(&database, spec()).await;
    follows(&second).await;
    let act = first.begin_act(Duration::from_millis(100)).expect("it leads");
    first.step_down(Some(PATIENCE)).await.unwrap();
    let released = Instant::now();
    leads(&second).await;
    assert!(released.elapsed() > Duration::from_secs(2), "{:?}", released.elapsed());
    act.finish().expect_err("its effect is not known");
    gone(a).await;
    gone(b).await;
}

#[tokio::test]
async fn a_lost_session_within_the_grace_keeps_its_epoch_and_is_not_told() {
    let database = database().await;
    let member =
        start(config(&database).reconnect_grace(Duration::from_secs(5)).role(RoleSpec::named("r")))
            .await;
    member.start_all().await.unwrap();
    let lock = member.locks().remove(0);
    leads(&lock).await;
    let mut events = lock.events();
    let client = database.client().await.unwrap();
    let kill = "select count(pg_terminate_backend(backend_pid)) from tenure.member";
    assert_eq!(one(&client, kill).await, "1");
    let mut seen = Vec::new();
    loop {
        match events.recv().await.unwrap().notice {
            Notice::Recovered { epoch } => {
                assert_eq!(epoch, Epoch(1));
                break;
            }
            other => seen.push(other),
        }
    }
    let told = |n: &Notice| matches!(n, Notice::Lost { .. } | Notice::Acquired { .. });
    assert!(!seen.iter().any(told), "{seen:?}");
    leads(&lock).await;
    gone(member).await;
}

#[tokio::test]
async fn a_lost_session_without_grace_is_a_loss_and_a_new_epoch() {
    let database = database().await;
    let (member, lock) = leader(&database, "r").await;
    let mut events = lock.events();
    let client = database.client().await.unwrap();
    one(&client, "select count(pg_terminate_backend(backend_pid)) from tenure.member").await;
    loop {
        if let Notice::Lost { epoch, .. } = events.recv().await.unwrap().notice {
            assert_eq!(epoch, Epoch(1));
            assert!(!lock.is_leader());
            break;
        }
    }
    leads(&lock).await;
    assert_eq!(lock.gate().epoch(), Some(Epoch(2)));
    gone(member).await;
}

#[tokio::test]
async fn an_epoch_that_moves_under_a_leader_ends_its_term() {
    let database = database().await;
    let (member, lock) = leader(&database, "r").await;
    let client = database.client().await.unwrap();
    // What a restored backup or a meddling hand would do.
    client
        .batch_execute(
            "update tenure.role set epoch = 40, holder = 'stranger'; \
             update tenure.member set revoked = revoked + 1",
        )
        .await
        .unwrap();
    let mut changes = lock.changes();
    changes.wait_for(|change| !change.is_leader).await.unwrap();
    leads(&lock).await;
    assert!(lock.gate().epoch().unwrap() > Epoch(40));
    gone(member).await;
}

#[tokio::test]
async fn callbacks_come_in_order_and_a_panicking_one_crashes_nothing() {
    let database = database().await;
    let member = start(config(&database).role(RoleSpec::named("r"))).await;
    let lock = member.locks().remove(0);
    let log: Arc<Mutex<Vec<String>>> = Arc::default();
    let note = |text: &'static str| {
        let log = log.clone();
        move || log.lock().unwrap().push(text.to_owned())
    };
    let (acquired, also, released, stopped, errors) =
        (note("acquired"), note("also"), note("released"), note("stopped"), note("error"));
    lock.on_acquired(move |_| acquired())
        .on_acquired(move |_| also())
        .on_acquired(|_| panic!("on purpose"))
        .on_released(move |_| released())
        .on_error(move |error| {
            assert!(error.contains("on purpose"));
            errors();
        })
        .on_stopped(stopped);
    lock.start().await.unwrap();
    leads(&lock).await;
    lock.shutdown(Some(PATIENCE)).await.unwrap();
    let wanted = ["acquired", "also", "error", "released", "stopped"];
    let deadline = Instant::now() + PATIENCE;
    while log.lock().unwrap().len() < wanted.len() && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(*log.lock().unwrap(), wanted);
    gone(member).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_and_repeated_calls_do_no_harm() {
    let database = database().await;
    let (member, lock) = leader(&database, "r").await;
    let calls = (0..30).map(|n| {
        let lock = lock.clone();
        tokio::spawn(async move {
            match n % 3 {
                0 => lock.start().await,
                1 => lock.step_down(Some(PATIENCE)).await,
                _ => lock.shutdown(Some(PATIENCE)).await,
            }
        })
    });
    for call in futures_util::future::join_all(calls).await {
        call.unwrap().expect("no call fails");
    }
    lock.shutdown(Some(PATIENCE)).await.unwrap();
    assert_eq!(lock.state(), LockState::Stopped);
    lock.start().await.unwrap();
    leads(&lock).await;
    gone(member).await;
    assert_eq!(advisory_locks(&database).await, "0");
}

/// Both orders are there before the member looks, so the stop has come and gone before its caller runs again.
#[tokio::test]
async fn a_shutdown_ends_although_a_start_follows_it_at_once() {
    let database = database().await;
    let (member, _) = leader(&database, "r").await;
    let other = start(config(&database).role(RoleSpec::named("r"))).await;
    let lock = other.locks().remove(0);
    lock.start().await.unwrap();
    let (stopped, started) = tokio::join!(lock.shutdown(Some(PATIENCE)), lock.start());
    stopped.expect("the stop was carried out");
    started.unwrap();
    assert_ne!(lock.state(), LockState::Stopped);
    gone(other).await;
    gone(member).await;
}

/// As above: the work must end although the role is started again before its task looks.
#[tokio::test]
async fn work_ends_with_the_stop_although_a_start_follows_it_at_once() {
    let database = database().await;
    let (member, _) = leader(&database, "r").await;
    let other = start(config(&database).role(RoleSpec::named("r"))).await;
    let lock = other.locks().remove(0);
    let works = lock.clone();
    let work = tokio::spawn(async move { works.while_leading(|_| std::future::pending()).await });
    follows(&lock).await;
    let (stopped, started) = tokio::join!(lock.shutdown(Some(PATIENCE)), lock.start());
    stopped.unwrap();
    started.unwrap();
    let ended = tokio::time::timeout(PATIENCE, work).await.expect("it ends");
    ended.expect("no panic").expect("no error");
    assert_ne!(lock.state(), LockState::Stopped);
    gone(other).await;
    gone(member).await;
}

/// A leader whose release waits for the act, and that has been told to stop.
async fn stopping(lock: &LeaderLock) -> Act {
    let mut events = lock.events();
    let act = lock.begin_act(Duration::from_millis(1)).unwrap();
    let late = lock.shutdown(Some(Duration::from_millis(1))).await;
    assert!(matches!(late, Err(TenureError::Timeout { .. })), "{late:?}");
    let releases = async {
        while lock.state() != LockState::Releasing {
            let _ = events.recv().await;
        }
    };
    tokio::time::timeout(PATIENCE, releases).await.expect("it releases");
    act
}

#[tokio::test]
async fn a_start_while_the_role_is_released_for_a_stop_is_carried_out_after_it() {
    let database = database().await;
    let (member, lock) = leader(&database, "r").await;
    let mut events = lock.events();
    let act = stopping(&lock).await;
    let (started, ()) = tokio::join!(lock.start(), async { drop(act) });
    started.unwrap();
    let token = lock.wait_for_leadership(Some(PATIENCE)).await.expect("it leads again");
    assert_eq!(token.epoch, Epoch(2));
    let stops = std::iter::from_fn(|| events.try_recv().ok())
        .filter(|event| matches!(event.notice, Notice::Stopped));
    assert_eq!(stops.count(), 1, "the stop was carried out first");
    gone(member).await;
}

#[tokio::test]
async fn a_stop_after_such_a_start_takes_it_back() {
    let database = database().await;
    let (member, lock) = leader(&database, "r").await;
    let act = stopping(&lock).await;
    let (started, stopped, ()) =
        tokio::join!(lock.start(), lock.shutdown(Some(PATIENCE)), async { drop(act) });
    started.unwrap();
    stopped.unwrap();
    assert_eq!(lock.state(), LockState::Stopped);
    gone(member).await;
}

#[tokio::test]
async fn work_that_begins_while_the_role_is_released_for_a_stop_runs_after_it() {
    let database = database().await;
    let (member, lock) = leader(&database, "r").await;
    let act = stopping(&lock).await;
    let (told, mut runs) = tokio::sync::mpsc::unbounded_channel();
    let work = lock.while_leading(|term| {
        told.send(term.epoch).unwrap();
        std::future::pending()
    });
    let (worked, ()) = tokio::join!(work, async {
        drop(act);
        let run = tokio::time::timeout(PATIENCE, runs.recv()).await.expect("it runs");
        assert_eq!(run, Some(Epoch(2)));
        lock.shutdown(Some(PATIENCE)).await.unwrap();
    });
    worked.unwrap();
    gone(member).await;
}

#[tokio::test]
async fn health_tells_role_epoch_and_the_age_of_the_heartbeat() {
    let database = database().await;
    let (member, _) = leader(&database, "r").await;
    let health = member.health().await.unwrap();
    assert!(health.connected && health.error.is_none());
    assert!(health.heartbeat_age.unwrap() < Duration::from_secs(3));
    assert_eq!(health.roles.len(), 1);
    assert!(health.roles[0].is_leader);
    assert_eq!(health.roles[0].epoch, Some(Epoch(1)));
    assert_eq!(health.roles[0].state, LockState::Leader);
    gone(member).await;
}

#[tokio::test]
async fn a_dropped_member_lets_its_roles_go() {
    let database = database().await;
    let (member, lock): (Member, _) = leader(&database, "r").await;
    drop(lock);
    drop(member);
    let client = database.client().await.unwrap();
    until(&client, "select holder is null and debtor is null from tenure.role", "t").await;
}
