//! An idle group does not disturb its server: no old snapshot, no line in the log, few statements.

use std::time::{Duration, Instant};

use tenure::Notice;
use tenure::config::{Config, RoleSpec};
use tenure::preflight::{self, Verdict};
use tenure_testkit::{Cluster, ClusterOptions};

use crate::stage::{PATIENCE, candidate, config, database, gone, leader, leads, one, start};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_waiting_followers_hold_up_neither_vacuum_nor_a_concurrent_index() {
    let cluster = Cluster::start().await.unwrap();
    let database = cluster.database().await.unwrap();
    let mut members = Vec::new();
    for _ in 0..11 {
        let member = start(config(&database).role(RoleSpec::named("r"))).await;
        member.start_all().await.unwrap();
        members.push(member);
    }
    leads(&members[0].locks()[0]).await;
    let client = database.client().await.unwrap();
    client.batch_execute("create table t as select generate_series(1, 1000) as n").await.unwrap();
    client.batch_execute("delete from t").await.unwrap();

    // No snapshot of ours is older than one heartbeat interval (1 s here), at any look.
    let looks = Instant::now();
    while looks.elapsed() < Duration::from_secs(3) {
        let old = one(
            &client,
            "select count(*) from pg_stat_activity \
             where application_name like 'tenure %' and backend_xmin is not null \
               and query_start < clock_timestamp() - interval '1 s'",
        )
        .await;
        assert_eq!(old, "0");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let index = client.batch_execute("create index concurrently on t (n)");
    tokio::time::timeout(Duration::from_secs(10), index).await.expect("it finishes").unwrap();
    // Vacuum may remove what was deleted before those waits began.
    client.batch_execute("vacuum t").await.unwrap();
    let dead = one(&client, "select pg_relation_size('t')").await;
    assert_eq!(dead, "0", "the deleted rows are still held");
    for member in members {
        gone(member).await;
    }
}

/// What three idle members make the server log in five seconds.
async fn logged(settings: &[(&str, &str)], lock_only: bool) -> Vec<String> {
    let mut options = ClusterOptions::default();
    for (name, value) in settings {
        options = options.set(name, value);
    }
    let cluster = Cluster::start_with(options).await.unwrap();
    let database = cluster.database().await.unwrap();
    let mut members = Vec::new();
    for _ in 0..3 {
        let member = start(config(&database).lock_only(lock_only).role(RoleSpec::named("r"))).await;
        member.start_all().await.unwrap();
        members.push(member);
    }
    leads(&members[0].locks()[0]).await;
    let before = cluster.log();
    // Time is the subject here: several beats, waits and polls of every member.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let after = cluster.log();
    let lines = after[before.len()..].lines().filter(|line| !line.contains("checkpoint"));
    let lines = lines.map(str::to_owned).collect();
    for member in members {
        gone(member).await;
    }
    lines
}

#[tokio::test]
async fn an_idle_group_writes_no_line_to_the_servers_log() {
    let lines = logged(&[], false).await;
    assert!(lines.is_empty(), "{lines:#?}");
}

/// A busy machine may make any one statement slow; each wait of a sentinel that is logged makes many.
fn only_a_busy_machine(lines: &[String]) -> bool {
    lines
        .iter()
        .filter(|line| line.contains("await_death") || line.contains("still waiting"))
        .count()
        <= 3
}

#[tokio::test]
async fn waits_are_shorter_than_what_the_server_logs_as_slow() {
    let lines = logged(&[("log_min_duration_statement", "500")], false).await;
    assert!(only_a_busy_machine(&lines), "{lines:#?}");
}

#[tokio::test]
async fn waits_are_shorter_than_what_the_server_logs_as_waiting_for_a_lock() {
    let settings = [("log_lock_waits", "on"), ("deadlock_timeout", "300ms")];
    let (tables, none) = tokio::join!(logged(&settings, false), logged(&settings, true));
    assert!(only_a_busy_machine(&tables), "{tables:#?}");
    assert!(only_a_busy_machine(&none), "{none:#?}");
}

/// Where shorter waits do not help, the remedy is a setting of the login role.
#[tokio::test]
async fn a_server_that_logs_every_statement_is_told_of_with_the_remedy() {
    let database = database().await;
    let client = database.client().await.unwrap();
    let user = format!("logged_{}", std::process::id());
    let finding = async || {
        let build = Config::builder().dsn(database.dsn_for(&user)).build().unwrap();
        let findings = preflight::check(&build).await.unwrap();
        let log = findings.all.into_iter().find(|finding| finding.what == "log");
        log.expect("it looks at the log")
    };
    client
        .batch_execute(&format!(
            "create role {user} superuser login; \
             alter role {user} set log_min_duration_statement = 0"
        ))
        .await
        .unwrap();
    gone(candidate(&database, RoleSpec::named("r")).await.0).await;
    let told = finding().await;
    assert_eq!(told.verdict, Verdict::Warning, "{}", told.text);
    let (_, remedy) = told.text.split_once("as a superuser: ").expect("a remedy");
    client.batch_execute(remedy).await.unwrap();
    assert_eq!(finding().await.verdict, Verdict::Good);
    client.batch_execute(&format!("drop role {user}")).await.unwrap();
}

/// Our own old session hangs: the next seat waits for it without an error in the server's log.
#[tokio::test]
async fn a_seat_that_hangs_is_waited_for_without_a_line_in_the_log() {
    let cluster = Cluster::start().await.unwrap();
    let database = cluster.database().await.unwrap();
    let (member, lock) = leader(&database, "r").await;
    let client = database.client().await.unwrap();
    let seat = one(&client, "select backend_pid from tenure.member where left_at is null").await;
    let before = cluster.log();
    signal(&seat, "-STOP");
    let mut events = lock.events();
    let mut tries = 0;
    let hangs = async {
        while tries < 4 {
            if let Ok(event) = events.recv().await
                && let Notice::Error(error) = event.notice
                && error.contains("still holds this member's seat")
            {
                tries += 1;
            }
        }
    };
    let tried = tokio::time::timeout(PATIENCE, hangs).await;
    let log = cluster.log();
    signal(&seat, "-CONT");
    tried.unwrap_or_else(|_| panic!("it does not try again; the log: {}", &log[before.len()..]));
    let errors: Vec<&str> = log[before.len()..]
        .lines()
        .filter(|line| line.contains("ERROR") || line.contains("WARNING"))
        .collect();
    assert!(errors.is_empty(), "{errors:#?}");
    leads(&lock).await;
    gone(member).await;
}

fn signal(pid: &str, signal: &str) {
    let sent = std::process::Command::new("kill").args([signal, pid]).status();
    assert!(sent.expect("it runs").success());
}
