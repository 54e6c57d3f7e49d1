//! Schedules of the library, with closures.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tenure::config::{Config, RoleSpec};
use tenure::{Member, RoleName};
use tenure_agent::{Overlap, Run, Schedule, Schedules};
use tenure_testkit::{Database, shared_cluster, until};
use tokio::sync::mpsc;
use tokio::time::timeout;

const SOON: Duration = Duration::from_secs(30);

async fn member(database: &Database) -> Member {
    let config = Config::builder()
        .dsn(database.dsn())
        .heartbeat(Duration::from_millis(500))
        .lease(Duration::from_millis(2500))
        .statement_deadline(Duration::from_millis(800))
        .role(RoleSpec::named("cron"))
        .build()
        .expect("valid");
    Member::start(config).await.expect("it starts")
}

fn schedule(name: &str) -> Schedule {
    let role = RoleName::new("cron").expect("a name");
    Schedule::new(name, role, "@every 1s").expect("valid")
}

async fn next(runs: &mut mpsc::UnboundedReceiver<(&'static str, Run)>) -> (&'static str, Run) {
    timeout(SOON, runs.recv()).await.expect("a run").expect("a sender")
}

#[tokio::test]
async fn two_schedules_of_one_name_are_refused() {
    let database = shared_cluster().await.database().await.expect("a database");
    let member = member(&database).await;
    let work = |_| async { Ok::<(), String>(()) };
    let twice = Schedules::new().add(schedule("s"), work).add(schedule("s"), work);
    let Err(refused) = twice.start(&member) else { panic!("one name, two schedules") };
    assert!(refused.to_string().contains("two schedules are called s"), "{refused}");
    member.shutdown(None).await.expect("it leaves");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closures_run_on_the_member_that_leads_and_each_slot_once() {
    let database = shared_cluster().await.database().await.expect("a database");
    let (told, mut runs) = mpsc::unbounded_channel();
    let mut members = Vec::new();
    for name in ["one", "two"] {
        let member = member(&database).await;
        let told = told.clone();
        let serving = Schedules::new()
            .add(schedule("s"), move |run| {
                let told = told.clone();
                async move {
                    told.send((name, run)).expect("a reader");
                    Ok::<(), String>(())
                }
            })
            .start(&member)
            .expect("it starts");
        member.start_all().await.expect("it takes part");
        members.push((member, serving));
    }
    let (leader, first) = next(&mut runs).await;
    let (same, second) = next(&mut runs).await;
    assert_eq!(leader, same);
    assert_eq!(second.slot.as_second(), first.slot.as_second() + 1);
    // The one that leads leaves: the other goes on, and no slot comes again.
    let at = if leader == "one" { 0 } else { 1 };
    let (member, serving) = members.remove(at);
    member.shutdown(Some(SOON)).await.expect("it leaves");
    serving.finished().await;
    let mut slots = vec![first.slot, second.slot];
    loop {
        let (name, run) = next(&mut runs).await;
        assert!(!slots.contains(&run.slot), "{} came twice", run.slot);
        slots.push(run.slot);
        if name != leader {
            assert!(run.epoch > first.epoch);
            break;
        }
    }
    let (member, serving) = members.remove(0);
    member.shutdown(Some(SOON)).await.expect("it leaves");
    serving.finished().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_error_and_a_panic_are_failures_and_a_timeout_drops_the_future() {
    struct Dropped(mpsc::UnboundedSender<()>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            let _ = self.0.send(());
        }
    }
    let database = shared_cluster().await.database().await.expect("a database");
    let client = database.client().await.expect("a session");
    let member = member(&database).await;
    let (dropped, mut drops) = mpsc::unbounded_channel();
    let calls = AtomicUsize::new(0);
    let dropped = Mutex::new(dropped);
    let limited = schedule("hangs").timeout(Duration::from_millis(100)).expect("valid");
    let serving = Schedules::new()
        .add(schedule("fails"), move |_| {
            let call = calls.fetch_add(1, Ordering::SeqCst);
            async move {
                assert!(call != 0, "the first one panics");
                Err::<(), _>("out of paper\0")
            }
        })
        .add(limited, move |_| {
            let guard = Dropped(dropped.lock().expect("whole").clone());
            async move {
                let _guard = guard;
                std::future::pending::<Result<(), String>>().await
            }
        })
        .start(&member)
        .expect("it starts");
    member.start_all().await.expect("it takes part");
    timeout(SOON, drops.recv()).await.expect("in time").expect("it was dropped");
    let sql = "select count(distinct reason) from tenure_agent.attempt where how = 'failed' \
               and reason in ('it panicked', 'out of paper\u{fffd}')";
    until("both ends to be recorded", async || {
        client.query_one(sql, &[]).await.is_ok_and(|row| row.get::<_, i64>(0) == 2)
    })
    .await;
    member.shutdown(Some(SOON)).await.expect("it leaves");
    serving.finished().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_term_that_is_over_writes_nothing_and_a_slot_of_another_term_is_taken() {
    let database = shared_cluster().await.database().await.expect("a database");
    let client = database.client().await.expect("a session");
    let member = member(&database).await;
    let (told, mut runs) = mpsc::unbounded_channel();
    let serving = Schedules::new()
        .add(schedule("s"), move |run| {
            told.send(("one", run)).expect("a reader");
            async { Ok::<(), String>(()) }
        })
        .start(&member)
        .expect("it starts");
    member.start_all().await.expect("it takes part");
    let (_, run) = next(&mut runs).await;
    let (slot, epoch) = (run.slot.as_microsecond(), run.epoch.get());
    let claim = |epoch: i64, member: &str| {
        let one = format!(r#"[{{"schedule": "s", "at": {slot}, "state": "running"}}]"#);
        format!("select tenure_agent.claim('cron', {epoch}, '{member}', '{one}')::text")
    };
    let end = format!(
        r#"{{"schedule": "s", "at": {slot}, "attempt": 1, "how": "failed", "state": "failed"}}"#
    );
    let before = epoch - 1;
    for late in [
        claim(before, "other"),
        format!("select tenure_agent.define('cron', {before}, '[]')::text"),
        format!(
            "select tenure_agent.attempt('cron', {before}, 'other', 's', {slot}, 2, null)::text"
        ),
        format!("select tenure_agent.finish('cron', {before}, 'other', '{end}')::text"),
    ] {
        let error = client.query_one(&late, &[]).await.expect_err(&late);
        assert_eq!(error.code().map(|code| code.code()), Some("TN001"), "{late}: {error}");
    }
    // The fence holds, and yet the slot is another's: the primary key says so.
    let answer = client.query_one(&claim(epoch, "other"), &[]).await.expect("an answer");
    assert!(answer.get::<_, String>(0).contains(r#""answers": ["taken"]"#));
    member.shutdown(Some(SOON)).await.expect("it leaves");
    serving.finished().await;
}

/// dkron's issue 1210: runs were lost exactly at a change of leader.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dkron_1210_a_slot_that_is_claimed_while_its_leader_hands_over_is_run_by_the_next() {
    let database = shared_cluster().await.database().await.expect("a database");
    let client = database.client().await.expect("a session");
    let (told, mut runs) = mpsc::unbounded_channel();
    let mut members = Vec::new();
    for name in ["one", "two"] {
        let member = member(&database).await;
        let told = told.clone();
        let serving = Schedules::new()
            .add(schedule("s").overlap(Overlap::Queue), move |run| {
                let told = told.clone();
                async move {
                    told.send((name, run)).expect("a reader");
                    Ok::<(), String>(())
                }
            })
            .start(&member)
            .expect("it starts");
        member.start_all().await.expect("it takes part");
        members.push((name, member, serving));
    }
    let mut slots = Vec::new();
    for _ in 0..3 {
        let (leader, run) = next(&mut runs).await;
        slots.push(run.slot);
        // From here on a claim takes long enough for its leader to begin a hand-over meanwhile.
        let slow = "create function public.slow() returns trigger language plpgsql as \
            'begin perform pg_sleep(0.7); return new; end'; \
            create trigger slow before insert on tenure_agent.slot for each row execute function public.slow()";
        client.batch_execute(slow).await.expect("slow");
        let claiming = "select count(*) from pg_stat_activity where datname = current_database() \
            and query like 'select tenure_agent.claim%' and wait_event = 'PgSleep'";
        until("a claim that is under way", async || count(&client, claiming).await > 0).await;
        let leads = members.iter().find(|(name, ..)| *name == leader).expect("one of them");
        let lock = leads.1.lock("cron").expect("its role");
        lock.step_down(None).await.expect("it steps down");
        client.batch_execute("drop function public.slow() cascade").await.expect("as before");
        loop {
            let (name, run) = next(&mut runs).await;
            slots.push(run.slot);
            if name != leader {
                break;
            }
        }
    }
    let mut once = slots.clone();
    once.sort();
    once.dedup();
    assert_eq!(once.len(), slots.len(), "no slot came twice: {slots:?}");
    let lost = "select count(*) from tenure_agent.slot where state not in ('succeeded', 'running', 'queued')";
    assert_eq!(count(&client, lost).await, 0, "none was lost");
    for (_, member, serving) in members {
        member.shutdown(Some(SOON)).await.expect("it leaves");
        serving.finished().await;
    }
}

async fn count(client: &tokio_postgres::Client, sql: &str) -> i64 {
    client.query_one(sql, &[]).await.map_or(-1, |row| row.get(0))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_schedule_that_moves_to_another_role_is_never_run_by_two_terms_at_once() {
    let database = shared_cluster().await.database().await.expect("a database");
    let client = database.client().await.expect("a session");
    let (told, mut runs) = mpsc::unbounded_channel();
    let (go, gone) = tokio::sync::watch::channel(false);
    let start = async |role: &'static str, hangs: bool| {
        let config = Config::builder()
            .dsn(database.dsn())
            .heartbeat(Duration::from_millis(500))
            .lease(Duration::from_millis(2500))
            .statement_deadline(Duration::from_millis(800))
            .role(RoleSpec::named(role))
            .build()
            .expect("valid");
        let member = Member::start(config).await.expect("it starts");
        let name = RoleName::new(role).expect("a name");
        let schedule = Schedule::new("s", name, "@every 1s").expect("valid");
        let (told, gone) = (told.clone(), gone.clone());
        let serving = Schedules::new()
            .add(schedule.retries(1).expect("valid"), move |run| {
                let (told, mut gone) = (told.clone(), gone.clone());
                async move {
                    told.send((role, run)).expect("a reader");
                    if hangs {
                        let _ = gone.wait_for(|gone| *gone).await;
                    }
                    Ok::<(), String>(())
                }
            })
            .start(&member)
            .expect("it starts");
        member.start_all().await.expect("it takes part");
        (member, serving)
    };
    let (old, serving) = start("cron", true).await;
    let (_, first) = next(&mut runs).await;
    // Another file has it under another role; the leader of the first role still runs it.
    let (new, other) = start("batch", false).await;
    let leads = "select count(*) from tenure.role where name = 'batch' and debtor = holder";
    until("the other leader", async || count(&client, leads).await == 1).await;
    let asked = "select tenure_agent.define('batch', (select epoch from tenure.role where name = 'batch'), \
        (select jsonb_agg(jsonb_build_object('name', name, 'timing', timing, 'definition', definition, \
         'digest', digest)) from tenure_agent.schedule))->'schedules' = '{}'";
    let refused = client.query_one(asked, &[]).await.expect("an answer");
    assert!(refused.get::<_, bool>(0), "it is still the other role's");
    let running = "select count(*) from tenure_agent.slot where state = 'running' and attempts = 1";
    assert_eq!(count(&client, running).await, 1, "the run was not taken for interrupted");
    go.send_replace(true);
    old.shutdown(Some(SOON)).await.expect("it leaves");
    serving.finished().await;
    let moved = async {
        loop {
            let (role, run) = next(&mut runs).await;
            if role == "batch" {
                return run;
            }
        }
    };
    let run = moved.await;
    assert!(run.slot > first.slot && run.attempt == 1, "{run:?}");
    let lost = "select count(*) from tenure_agent.slot where state = 'interrupted' or attempts > 1";
    assert_eq!(count(&client, lost).await, 0);
    new.shutdown(Some(SOON)).await.expect("it leaves");
    other.finished().await;
}
