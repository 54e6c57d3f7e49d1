//! What scripts and service managers rely on: last events, fields, graces, time limits, quiet.

use serde_json::Value;
use tenure_testkit::Child;
use tokio::io::AsyncBufReadExt;

use crate::kit::{
    code, command, database, end_seats, ends, event, finish, member, terminate, until, waiting,
};

#[tokio::test]
async fn stopped_is_the_last_event_and_the_childs_pid_and_code_are_fields() {
    let database = database().await;
    let client = database.client().await.expect("a session");
    let folder = tempfile::tempdir().expect("a folder");
    let up = folder.path().join("up");
    let dsn = database.dsn();
    let args = ["--role", "r", "--no-auto-reacquire", "--dsn", &dsn, "--"];
    let mut start = command(&args);
    let script = "trap 'sleep 0.3; exit 3' TERM; touch $0; while :; do sleep 0.02; done";
    start.args(["sh", "-c", script]).arg(&up);
    let (output, ()) = tokio::join!(finish(start), async {
        // Only a child that has set its trap can answer.
        until("the child", async || up.exists()).await;
        until("the leader", async || end_seats(&client).await == 1).await;
    });
    let (code, _, err) = output;
    assert_eq!(code, 4, "{err}");
    let events: Vec<Value> =
        err.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let names: Vec<&str> = events.iter().filter_map(|event| event["event"].as_str()).collect();
    assert_eq!(names.last(), Some(&"stopped"), "{names:?}");
    let of = |name: &str| events.iter().find(|event| event["event"] == name).expect("an event");
    let (started, gone) = (of("child_started"), of("child_gone"));
    assert!(started["pid"].as_i64().is_some_and(|pid| pid > 1), "{started}");
    assert_eq!((&gone["pid"], &gone["code"]), (&started["pid"], &3.into()), "{gone}");
    assert!(gone["time"].as_str().is_some_and(|time| time.ends_with('Z')), "{gone}");
}

#[tokio::test]
async fn a_long_grace_is_the_childs_to_its_end() {
    let database = database().await;
    let dsn = database.dsn();
    let script = "trap '' TERM; echo up; while :; do sleep 0.05; done";
    let mut one = tokio::process::Command::new(crate::kit::program());
    one.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
    one.args(["run", "--output", "json", "--role", "r", "--grace", "12s", "--lease", "18s"]);
    one.args(["--heartbeat", "2s", "--dsn", &dsn, "sh", "-c", script]);
    one.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let mut one = one.spawn().expect("it runs");
    let mut lines = tokio::io::BufReader::new(one.stdout.take().expect("piped")).lines();
    assert_eq!(lines.next_line().await.expect("text").as_deref(), Some("up"));
    let begun = std::time::Instant::now();
    let order = ["step-down", "--role", "r", "--timeout", "1s", "--dsn", &dsn];
    assert_eq!(code(&ends(&order).await), 1);
    let mut events = tokio::io::BufReader::new(one.stderr.take().expect("piped")).lines();
    let gone = loop {
        let line = events.next_line().await.expect("text").expect("an event");
        let event: Value = serde_json::from_str(&line).expect(&line);
        assert_ne!(event["event"], "error", "{event}");
        if event["event"] == "child_gone" {
            break event;
        }
    };
    assert_eq!(gone["code"], 128 + 9, "{gone}");
    assert!(begun.elapsed() >= std::time::Duration::from_secs(12), "{:?}", begun.elapsed());
    let _ = rustix::process::kill_process(
        rustix::process::Pid::from_raw(one.id().expect("it runs").cast_signed()).expect("a pid"),
        rustix::process::Signal::TERM,
    );
    assert_eq!(one.wait().await.expect("it ends").code(), Some(0));
}

#[tokio::test]
async fn a_quiet_run_writes_no_events_and_still_says_what_went_wrong() {
    let database = database().await;
    let run = ["run", "--quiet", "--role", "r", "--dsn", &database.dsn()];
    let output = ends(&[&run[..], &["sh", "-c", "exit 5"]].concat()).await;
    assert_eq!((code(&output), crate::kit::stderr(&output).as_str()), (5, ""));
    let output = ends(&[&run[..], &["/no/such/program"]].concat()).await;
    crate::kit::refuses(&output, 127, "/no/such/program");
}

#[tokio::test]
async fn a_bare_lock_key_of_the_environment_follows_until_it_may_lead() {
    let database = database().await;
    let dsn = database.dsn();
    let start = |enabled: &str| {
        let mut start = command(&["--dsn", &dsn]);
        start.env("LEADER_LOCK_KEY", "43").env("MSP_LEADER_ENABLED", enabled);
        start
    };
    let mut follower = start("");
    follower.env_remove("MSP_LEADER_ENABLED");
    let mut follower = Child::spawn(follower).expect("it runs");
    let warning = event(&mut follower, "warning").await;
    assert!(warning["reason"].as_str().expect("text").contains("MSP_LEADER_ENABLED"), "{warning}");
    let mut leader = Child::spawn(start("true")).expect("it runs");
    assert_eq!(event(&mut leader, "acquired").await["role"], "lock:43");
    assert_eq!(terminate(&mut leader).await, 0);
    let client = database.client().await.expect("a session");
    let terms = client.query_one("select count(*) from tenure.term", &[]).await.expect("a row");
    assert_eq!(terms.get::<_, i64>(0), 1, "the follower never claimed");
    assert_eq!(terminate(&mut follower).await, 0);
    let output = tokio::task::spawn_blocking(move || {
        let mut acquire = crate::kit::tenure(&["acquire", "--dsn", &dsn]);
        acquire.env("LEADER_LOCK_KEY", "43").output().expect("it runs")
    });
    crate::kit::refuses(&output.await.expect("joined"), 2, "follows and never leads");
}

#[tokio::test]
async fn an_acquire_timeout_ends_a_run_that_does_not_lead_in_time() {
    let database = database().await;
    let dsn = database.dsn();
    let mut one = member(&["--role", "r", "--dsn", &dsn]);
    event(&mut one, "acquired").await;
    for child in [&[][..], &["true"]] {
        let mut two = command(&[&["--role", "r", "--dsn", &dsn][..], child].concat());
        two.env("TENURE_ACQUIRE_TIMEOUT", "700ms");
        let begun = std::time::Instant::now();
        let (code, _, err) = finish(two).await;
        assert_eq!(code, 1, "{err}");
        assert!(err.contains("was not acquired within 700ms (acquire_timeout)"), "{err}");
        assert!(begun.elapsed().as_millis() >= 700);
    }
    assert_eq!(terminate(&mut one).await, 0);
    // A free role is led, and the child runs for as long as it likes.
    let mut two = command(&["--role", "r", "--dsn", &dsn, "sh", "-c", "sleep 1; exit 7"]);
    two.env("TENURE_ACQUIRE_TIMEOUT", "700ms");
    assert_eq!(finish(two).await.0, 7);
}

#[tokio::test]
async fn the_options_of_a_candidate_reach_the_group() {
    let database = database().await;
    let dsn = database.dsn();
    let mut low =
        member(&["--role", "r", "--dsn", &dsn, "--cool-down", "1h", "--drain-limit", "2s"]);
    event(&mut low, "acquired").await;
    let mut watcher = member(&["--role", "r", "--dsn", &dsn, "--observer"]);
    waiting(&database, "r", 1).await;
    let client = database.client().await.expect("a session");
    let sql = "select count(*) from tenure.candidate where observer";
    assert_eq!(client.query_one(sql, &[]).await.expect("a row").get::<_, i64>(0), 1);
    let mut high = member(&["--role", "r", "--dsn", &dsn, "--priority", "9", "--preempt"]);
    event(&mut high, "acquired").await;
    event(&mut low, "released").await;
    // Its cool-down is an hour, and the other one only watches.
    assert_eq!(terminate(&mut high).await, 0);
    let acquire = ["acquire", "--role", "r", "--dsn", &dsn];
    assert_eq!(code(&ends(&acquire).await), 0);
    for child in [&mut low, &mut watcher] {
        assert_eq!(terminate(child).await, 0);
    }
    let wrong = ["run", "--role", "r", "--observer", "--dsn", &dsn, "true"];
    assert_eq!(code(&ends(&wrong).await), 2);
}
