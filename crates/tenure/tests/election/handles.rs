//! What a handle can change while its member runs.

use std::pin::Pin;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use tenure::config::{Config, RoleSpec};
use tenure::connect::dsn::NoEnv;
use tenure::connect::{Dsn, Renewal};
use tenure::operate::Operator;
use tenure::{Epoch, LockState, RetryContext, RetryStrategy, TenureError, preflight};

use crate::stage::{
    PATIENCE, candidate, config, database, follows, gone, leads, one, start, until,
};

#[tokio::test]
async fn a_role_that_is_added_at_run_time_is_led_like_the_others() {
    let database = database().await;
    let member = start(config(&database).role(RoleSpec::named("first"))).await;
    member.start_all().await.expect("it takes part");
    leads(&member.lock("first").expect("a role")).await;

    let added = member.add_role(RoleSpec::named("second").priority(3)).expect("a new role");
    assert!(!added.is_leader(), "it takes part when it is started");
    added.start().await.expect("it is taken");
    leads(&added).await;
    assert_eq!(added.gate().epoch(), Some(Epoch(1)));
    assert_eq!(member.locks().len(), 2);
    assert_eq!(member.lock("second").expect("it is known").identity(), member.identity());
    let client = database.client().await.expect("a session");
    let row = "select (select holder from tenure.role where name = 'second') || ' ' || priority \
               from tenure.candidate where role = 'second'";
    assert_eq!(one(&client, row).await, format!("{} 3", member.identity()));

    let again = member.add_role(RoleSpec::named("second"));
    assert!(matches!(again, Err(TenureError::DuplicateRole(_))), "{again:?}");
    let same_key = member.add_role(RoleSpec::named("third").key(added.key()));
    assert!(matches!(same_key, Err(TenureError::Registration { .. })), "{same_key:?}");
    gone(member).await;
    assert_eq!(one(&client, "select count(holder) from tenure.role").await, "0");
}

#[tokio::test]
async fn a_changed_priority_decides_the_next_race() {
    let database = database().await;
    let client = database.client().await.expect("a session");
    let spec = || RoleSpec::named("r").cool_down(Duration::ZERO);
    let (a, mut leader) = candidate(&database, spec()).await;
    leads(&leader).await;
    let (b, mut next) = candidate(&database, spec()).await;
    let (c, other) = candidate(&database, spec()).await;
    for (turn, priority) in (1..=3).zip([5, 7, 9]) {
        follows(&next).await;
        follows(&other).await;
        next.set_priority(priority).expect("it lives");
        let stored = "select max(priority) from tenure.candidate";
        until(&client, stored, &priority.to_string()).await;
        leader.step_down(Some(PATIENCE)).await.expect("it steps down");
        leads(&next).await;
        assert_eq!(next.gate().epoch(), Some(Epoch(turn + 1)), "no other led in between");
        std::mem::swap(&mut leader, &mut next);
    }
    for member in [a, b, c] {
        gone(member).await;
    }
}

/// While a role is observed, questions about its leader share the observer's session.
#[tokio::test]
async fn a_question_is_answered_although_the_kept_session_has_ended() {
    let database = database().await;
    let client = database.client().await.expect("a session");
    let (member, lock) = candidate(&database, RoleSpec::named("r")).await;
    leads(&lock).await;
    let mut leader = lock.observe();
    leader.wait_for(Option::is_some).await.expect("it is observed");
    for _ in 0..3 {
        let side = "select count(pg_terminate_backend(pid)) from pg_stat_activity \
                    where application_name like 'tenure side %' and datname = current_database()";
        assert_eq!(one(&client, side).await, "1");
        let left = "select count(*) from pg_stat_activity \
                    where application_name like 'tenure side %' and datname = current_database()";
        until(&client, left, "0").await;
        let now = lock.leader().await.expect("an answer");
        assert_eq!(now.map(|now| now.identity).as_ref(), Some(lock.identity()));
    }
    gone(member).await;
}

#[tokio::test]
async fn a_bad_name_and_an_unknown_role_are_two_errors() {
    let database = database().await;
    let member = start(config(&database).role(RoleSpec::named("r"))).await;
    let bad = member.lock("").expect_err("no name");
    assert!(matches!(bad, TenureError::RoleName(_)), "{bad:?}");
    let unknown = member.lock("s").expect_err("not one of ours");
    assert!(matches!(unknown, TenureError::UnknownRole(_)), "{unknown:?}");
    gone(member).await;
}

/// Under its own name and under the one that FORGE has for it.
#[tokio::test]
async fn a_wait_without_a_limit_ends_at_the_configured_one() {
    let database = database().await;
    let (first, _lock) = candidate(&database, RoleSpec::named("r")).await;
    leads(&first.lock("r").expect("a role")).await;
    for key in ["acquire_timeout", "lock_timeout"] {
        let text = format!("[member]\n{key} = '300ms'\n");
        let build = config(&database).toml(&text, "tenure.toml").expect("good TOML");
        let second = start(build.role(RoleSpec::named("r"))).await;
        let lock = second.lock("r").expect("a role");
        lock.start().await.expect("it takes part");
        let waited = lock.wait_for_leadership(None).await;
        let limit = Duration::from_millis(300);
        assert!(
            matches!(&waited, Err(TenureError::Timeout { limit: told, .. }) if *told == limit),
            "{key}: {waited:?}"
        );
        gone(second).await;
    }
    gone(first).await;
}

/// Gives the one connection string that leads anywhere.
#[derive(Debug)]
struct Renewed(String);

impl Renewal for Renewed {
    fn renew(&self) -> Pin<Box<dyn Future<Output = Result<Dsn, String>> + Send + '_>> {
        Box::pin(async { Dsn::parse_with(&self.0, &NoEnv).map_err(|error| error.to_string()) })
    }
}

#[tokio::test]
async fn members_operators_and_the_preflight_ask_for_the_connection_string_anew() {
    let database = database().await;
    let builder = || {
        let expired = "postgresql://nobody@127.0.0.1:1/expired";
        Config::builder().dsn(expired).renewal(Arc::new(Renewed(database.dsn())))
    };
    let member = start(builder().role(RoleSpec::named("r"))).await;
    member.start_all().await.expect("it takes part");
    leads(&member.lock("r").expect("a role")).await;
    let config = builder().build().expect("a good configuration");
    let operator = Operator::connect(&config).await.expect("a session");
    assert_eq!(operator.status(None).await.expect("an answer").len(), 1);
    operator.close().await;
    let findings = preflight::check(&config).await.expect("a look");
    assert!(findings.refusal().is_none(), "{findings:?}");
    gone(member).await;
}

/// Blocks its thread when it is asked, until the test lets it go.
#[derive(Debug)]
struct Blocks {
    asked: mpsc::Sender<()>,
    go: Mutex<mpsc::Receiver<()>>,
}

impl RetryStrategy for Blocks {
    fn next_delay(&self, _: &RetryContext, _: Option<Duration>, _: f64) -> Option<Duration> {
        let _ = self.asked.send(());
        // The rest of the runtime goes on: a thread that blocks by itself may be the one that keeps its timers.
        let _ = tokio::task::block_in_place(|| self.go.lock().unwrap().recv());
        Some(Duration::from_millis(50))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shutdown_returns_although_a_strategy_blocks_the_member() {
    let database = database().await;
    let client = database.client().await.unwrap();
    let ((asked, was_asked), (go, gone)) = (mpsc::channel(), mpsc::channel());
    let strategy = Arc::new(Blocks { asked, go: Mutex::new(gone) });
    let member = start(config(&database).role(RoleSpec::named("r")).retry(strategy)).await;
    let lock = member.locks().remove(0);
    lock.start().await.unwrap();
    leads(&lock).await;
    // A seat that is lost before it has lasted for a lease asks the strategy.
    tenure_testkit::until("the strategy is asked", async || {
        let end = "select count(pg_terminate_backend(pid)) from pg_stat_activity \
            where datname = current_database() and pid <> pg_backend_pid()";
        client.query_one(end, &[]).await.unwrap();
        was_asked.try_recv().is_ok()
    })
    .await;
    let limit = Duration::from_millis(100);
    let left = tokio::time::timeout(PATIENCE, member.shutdown(Some(limit))).await;
    // Before anything can fail: the runtime waits for its threads.
    drop(go);
    let left = left.expect("it returns");
    assert!(matches!(left, Err(TenureError::Timeout { .. })), "{left:?}");
    tenure_testkit::until("the role stops", async || lock.state() == LockState::Stopped).await;
}
