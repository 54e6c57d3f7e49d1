//! What an operator asks and orders.

use serde_json::Value;
use tenure_testkit::Signal;

use crate::kit::{
    SOON, code, database, ends, event, member, refuses, stderr, stdout, until, waiting,
};

async fn json(args: &[&str]) -> Value {
    let output = ends(args).await;
    serde_json::from_str(&stdout(&output))
        .unwrap_or_else(|error| panic!("{error}: {}", stderr(&output)))
}

#[tokio::test]
async fn status_shows_leader_epoch_heartbeat_and_the_members_that_wait() {
    let database = database().await;
    let dsn = database.dsn();
    let empty = ends(&["migrate", "--dsn", &dsn]).await;
    assert_eq!(code(&empty), 0, "{}", stderr(&empty));
    assert!(stdout(&ends(&["status", "--dsn", &dsn]).await).contains("no role is known"));
    let mut one = member(&["--role", "r", "--dsn", &dsn, "--instance", "one"]);
    event(&mut one, "acquired").await;
    let _two = member(&["--role", "r", "--dsn", &dsn, "--instance", "two", "--priority", "5"]);
    waiting(&database, "r", 1).await;
    let table = stdout(&ends(&["status", "--dsn", &dsn]).await);
    for word in ["ROLE", "EPOCH", "BEAT", "one-", "two-", "priority 5", "led", "Z "] {
        assert!(table.contains(word), "{word} is missing in:\n{table}");
    }
    assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
    assert!(!table.contains('\x1b'), "a pipe gets no control codes: {table}");
    let wide = stdout(&ends(&["status", "--wide", "--dsn", &dsn]).await);
    for word in ["tenure-one-", "tenure-two-", "POLICY", "exclusive"] {
        assert!(wide.contains(word), "{word} is missing in:\n{wide}");
    }
    let value = json(&["status", "--json", "--role", "r", "--dsn", &dsn]).await;
    assert_eq!((&value[0]["epoch"], &value[0]["acting"]), (&1.into(), &true.into()));
    assert!(value[0]["heartbeat_age_ms"].as_i64().expect("an age") < 20_000, "{value}");
}

#[tokio::test]
async fn status_tells_of_locks_held_by_other_programs() {
    let database = database().await;
    let dsn = database.dsn();
    assert_eq!(code(&ends(&["acquire", "--role", "r", "--key", "77", "--dsn", &dsn]).await), 0);
    let client = database.client().await.expect("a session");
    let sql = "set application_name = 'cron of old'; select pg_advisory_lock(77)";
    client.batch_execute(sql).await.expect("locked");
    let table = stdout(&ends(&["status", "--dsn", &dsn]).await);
    assert!(table.contains("not Tenure: cron of old"), "{table}");
    let output = ends(&["status", "--key", "77", "--dsn", &dsn]).await;
    assert!(stdout(&output).contains("cron of old"), "{}", stdout(&output));
    assert_eq!(code(&ends(&["status", "--key", "78", "--dsn", &dsn]).await), 1);
}

#[tokio::test]
async fn status_can_watch_until_interrupted() {
    let database = database().await;
    assert_eq!(code(&ends(&["migrate", "--dsn", &database.dsn()]).await), 0);
    let mut command = tokio::process::Command::new(crate::kit::program());
    command.env_clear().args(["status", "--watch", "--dsn", &database.dsn()]);
    let mut watch = tenure_testkit::Child::spawn(command).expect("it runs");
    for _ in 0..2 {
        watch.wait_line(|line| line.contains("no role is known"), SOON).await.expect("a look");
    }
    assert!(!watch.lines().concat().contains('\x1b'), "a pipe gets no control codes");
    watch.signal(Signal::INT);
    assert_eq!(watch.wait(SOON).await.expect("it ends").code(), Some(0));
}

#[tokio::test]
async fn a_watch_survives_a_restart_of_the_database() {
    let cluster = tenure_testkit::Cluster::start().await.expect("a cluster");
    assert_eq!(code(&ends(&["migrate", "--dsn", &cluster.dsn()]).await), 0);
    let mut command = tokio::process::Command::new(crate::kit::program());
    command.env_clear().args(["status", "--watch", "--dsn", &cluster.dsn()]);
    let mut watch = tenure_testkit::Child::spawn(command).expect("it runs");
    let look = |line: &str| line.contains("no role is known");
    watch.wait_line(look, SOON).await.expect("a look");
    cluster.stop(tenure_testkit::Stop::Fast).await.expect("stopped");
    cluster.start_again().await.expect("started");
    // What came before the restart is read already, but for a look or two.
    for _ in 0..4 {
        watch.wait_line(look, SOON).await.expect("a look after the restart");
    }
    watch.signal(Signal::INT);
    assert_eq!(watch.wait(SOON).await.expect("it ends").code(), Some(0));
}

#[tokio::test]
async fn a_dead_leader_is_not_shown_as_leading_and_is_not_asked_to_step_down() {
    let database = database().await;
    let dsn = database.dsn();
    let mut one = member(&["--role", "r", "--dsn", &dsn]);
    event(&mut one, "acquired").await;
    let led = json(&["status", "--json", "--role", "r", "--dsn", &dsn]).await;
    assert_eq!((&led[0]["state"], &led[0]["acting"]), (&"led".into(), &true.into()), "{led}");
    assert!(led[0]["since"].is_string(), "{led}");
    one.signal(Signal::KILL);
    one.wait(SOON).await.expect("it is dead");
    let status = ["status", "--json", "--role", "r", "--dsn", &dsn];
    until("the end of its session", async || json(&status).await[0]["state"] == "gone").await;
    let gone = json(&status).await;
    assert_eq!((&gone[0]["acting"], &gone[0]["since"]), (&false.into(), &Value::Null), "{gone}");
    let table = stdout(&ends(&["status", "--dsn", &dsn]).await);
    assert!(table.contains("leader gone") && !table.contains(" led "), "{table}");
    let terms = json(&["history", "--json", "--role", "r", "--dsn", &dsn]).await;
    let ended = (&terms[0]["gone"], &terms[0]["ended_at"], &terms[0]["how"]);
    assert_eq!(ended, (&true.into(), &Value::Null, &Value::Null), "{terms}");
    let table = stdout(&ends(&["history", "--role", "r", "--dsn", &dsn]).await);
    assert!(table.contains("leader gone"), "{table}");
    let begun = std::time::Instant::now();
    let output = ends(&["step-down", "--role", "r", "--dsn", &dsn]).await;
    refuses(&output, 6, "is gone; no order is needed");
    assert!(begun.elapsed().as_secs() < 10, "{:?}", begun.elapsed());
    // The next leader is told of as one.
    assert_eq!(code(&ends(&["acquire", "--role", "r", "--dsn", &dsn]).await), 0);
    let vacant = json(&status).await;
    assert_eq!((&vacant[0]["state"], &vacant[0]["since"]), (&"vacant".into(), &Value::Null));
    let terms = json(&["history", "--json", "--role", "r", "--dsn", &dsn]).await;
    let how: Vec<_> = [0, 1].map(|at| (&terms[at]["how"], &terms[at]["gone"])).into();
    let [released, replaced] = ["released".into(), "replaced".into()];
    assert_eq!(how, [(&released, &false.into()), (&replaced, &false.into())], "{terms}");
}

#[tokio::test]
async fn a_frozen_leader_is_silent_once_its_lease_is_over() {
    let database = database().await;
    let dsn = database.dsn();
    let mut one = member(&["--role", "r", "--dsn", &dsn]);
    event(&mut one, "acquired").await;
    one.signal(Signal::STOP);
    let status = ["status", "--json", "--role", "r", "--dsn", &dsn];
    // First its gate must be shut, then the server ends its session.
    until("its silence", async || json(&status).await[0]["acting"] == false).await;
    let state = json(&status).await[0]["state"].clone();
    assert!(state == "silent" || state == "gone", "{state}");
    let output = ends(&["step-down", "--role", "r", "--dsn", &dsn]).await;
    refuses(&output, 6, "no order is needed");
    one.signal(Signal::KILL);
}

#[tokio::test]
async fn step_down_hands_over_to_the_member_that_was_named() {
    let database = database().await;
    let dsn = database.dsn();
    let mut one = member(&["--role", "r", "--dsn", &dsn, "--instance", "one"]);
    event(&mut one, "acquired").await;
    let _two = member(&["--role", "r", "--dsn", &dsn, "--instance", "two"]);
    let mut three = member(&["--role", "r", "--dsn", &dsn, "--instance", "three"]);
    waiting(&database, "r", 2).await;
    let output = ends(&["step-down", "--role", "r", "--to", "tenure-three", "--dsn", &dsn]).await;
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let said = stdout(&output);
    assert!(said.contains("tenure-three-") && said.contains("epoch 1 -> 2"), "{said}");
    event(&mut three, "acquired").await;
    let output = ends(&["step-down", "--role", "r", "--to", "tenure-", "--dsn", &dsn]).await;
    refuses(&output, 1, "write more of it");
}

#[tokio::test]
async fn step_down_without_a_successor_says_so() {
    let database = database().await;
    let dsn = database.dsn();
    let mut one = member(&["--role", "r", "--dsn", &dsn]);
    event(&mut one, "acquired").await;
    let output = ends(&["step-down", "--role", "r", "--timeout", "300ms", "--dsn", &dsn]).await;
    refuses(&output, 1, "no member leads it");
}

#[tokio::test]
async fn a_paused_role_has_no_leader_until_it_is_resumed() {
    let database = database().await;
    let dsn = database.dsn();
    let mut one = member(&["--role", "r", "--dsn", &dsn]);
    event(&mut one, "acquired").await;
    assert_eq!(code(&ends(&["pause", "--role", "r", "--dsn", &dsn]).await), 0);
    event(&mut one, "released").await;
    refuses(&ends(&["acquire", "--role", "r", "--dsn", &dsn]).await, 1, "the role is paused");
    assert!(stdout(&ends(&["status", "--dsn", &dsn]).await).contains("paused"));
    assert_eq!(code(&ends(&["resume", "--role", "r", "--dsn", &dsn]).await), 0);
    event(&mut one, "acquired").await;
}

#[tokio::test]
async fn release_needs_force_and_is_recorded() {
    let database = database().await;
    let dsn = database.dsn();
    let mut one = member(&["--role", "r", "--dsn", &dsn]);
    event(&mut one, "acquired").await;
    refuses(&ends(&["release", "--role", "r", "--dsn", &dsn]).await, 2, "add --force");
    let output = ends(&["release", "--role", "r", "--force", "--dsn", &dsn]).await;
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(stdout(&output).contains("r: 1 session ended"), "{}", stdout(&output));
    event(&mut one, "lost").await;
    let client = database.client().await.expect("a session");
    let sql = "select count(*) from tenure.event where kind = 'force_release' \
               and detail like 'asked by operator on %, user %, login role ' || session_user || '%'";
    assert_eq!(client.query_one(sql, &[]).await.expect("a row").get::<_, i64>(0), 1);
    // Where nothing is held nothing is ended, and no wait is told of.
    assert_eq!(code(&ends(&["acquire", "--role", "free", "--dsn", &dsn]).await), 0);
    let output = ends(&["release", "--role", "free", "--force", "--dsn", &dsn]).await;
    refuses(&output, 1, "no session holds the lock of free");
}

/// A session whose server process hangs does not end: the term goes on, and the order says so.
#[tokio::test]
async fn a_forced_release_of_a_session_that_does_not_end_ends_no_term() {
    let database = database().await;
    let dsn = database.dsn();
    let mut one = member(&["--role", "r", "--dsn", &dsn]);
    event(&mut one, "acquired").await;
    let client = database.client().await.expect("a session");
    let seat = "select backend_pid::text from tenure.member where left_at is null";
    let seat: String = client.query_one(seat, &[]).await.expect("a seat").get(0);
    let signal = |signal: &str| {
        let sent = std::process::Command::new("kill").args([signal, &seat]).status();
        assert!(sent.expect("it runs").success());
    };
    signal("-STOP");
    let output = ends(&["release", "--role", "r", "--force", "--dsn", &dsn]).await;
    let row = "select (select ended_at is null from tenure.term), \
               (select detail from tenure.event where kind = 'force_release')";
    let row = client.query_one(row, &[]).await;
    signal("-CONT");
    refuses(&output, 1, "did not end within two seconds (1 left)");
    let row = row.expect("one term and one order");
    assert!(row.get::<_, bool>(0), "the term is said to be over");
    let detail: String = row.get(1);
    assert!(detail.ends_with(", sessions ended: 0, not ended: 1"), "{detail}");
}

#[tokio::test]
async fn a_forced_release_of_a_role_that_no_session_holds_promises_no_wait() {
    let database = database().await;
    let dsn = database.dsn();
    assert_eq!(code(&ends(&["acquire", "--role", "r", "--dsn", &dsn]).await), 0);
    let output = ends(&["release", "--role", "r", "--force", "--dsn", &dsn]).await;
    refuses(&output, 1, "no session holds the lock of r");
    assert_eq!(stdout(&output), "");
}

#[tokio::test]
async fn a_lease_comes_down_to_the_longest_that_takes_part() {
    let database = database().await;
    let dsn = database.dsn();
    let mut one = member(&["--role", "r", "--dsn", &dsn]);
    event(&mut one, "acquired").await;
    let client = database.client().await.expect("a session");
    client.execute("update tenure.role set lease_ms = 9000", &[]).await.expect("longer");
    let lower = ["lower-lease", "--role", "r", "--dsn", &dsn];
    assert_eq!(stdout(&ends(&lower).await), "r: the lease is 3s now, 9s before\n");
    assert_eq!(stdout(&ends(&lower).await), "r: the lease stays 3s, the longest that takes part\n");
    refuses(&ends(&["lower-lease", "--role", "q", "--dsn", &dsn]).await, 7, "there is no role q");
    assert_eq!(code(&ends(&["acquire", "--role", "alone", "--dsn", &dsn]).await), 0);
    let alone = ends(&["lower-lease", "--role", "alone", "--dsn", &dsn]).await;
    refuses(&alone, 1, "no member takes part in role alone");
}

#[tokio::test]
async fn history_lists_terms_and_audit_judges_them() {
    let database = database().await;
    let dsn = database.dsn();
    for _ in 0..3 {
        assert_eq!(code(&ends(&["acquire", "--role", "r", "--dsn", &dsn]).await), 0);
    }
    let terms = json(&["history", "--role", "r", "--limit", "2", "--json", "--dsn", &dsn]).await;
    let epochs: Vec<i64> =
        terms.as_array().expect("a list").iter().map(|t| t["epoch"].as_i64().unwrap()).collect();
    assert_eq!(epochs, [3, 2]);
    let table = stdout(&ends(&["history", "--role", "r", "--dsn", &dsn]).await);
    assert!(table.contains("released"), "{table}");
    assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
    let good = ends(&["audit", "--dsn", &dsn]).await;
    assert_eq!(code(&good), 0);
    assert!(stdout(&good).contains("3 terms of 1 role:"), "{}", stdout(&good));
    // An overlap, made by hand.
    let client = database.client().await.expect("a session");
    let sql =
        "update tenure.term set ended_at = clock_timestamp() + interval '1 hour' where epoch = 1";
    client.execute(sql, &[]).await.expect("updated");
    let bad = ends(&["audit", "--role", "r", "--dsn", &dsn]).await;
    assert_eq!(code(&bad), 1, "{}", stdout(&bad));
    assert!(stdout(&bad).contains("break a promise"), "{}", stdout(&bad));
}

#[tokio::test]
async fn check_goes_line_by_line() {
    let database = database().await;
    let dsn = database.dsn();
    assert_eq!(code(&ends(&["migrate", "--dsn", &dsn]).await), 0);
    let output = ends(&["check", "--dsn", &dsn]).await;
    assert_eq!(code(&output), 0, "{}", stdout(&output));
    for word in ["server", "pooler", "notify", "schema", "privileges", "fence", "clock"] {
        assert!(stdout(&output).contains(word), "{word}");
    }
    let value = json(&["check", "--json", "--dsn", &dsn]).await;
    assert!(value.as_array().expect("a list").iter().all(|line| line["verdict"] != "refused"));
}

#[tokio::test]
async fn migrate_prints_what_it_would_run_and_the_printed_script_works() {
    let database = database().await;
    let dsn = database.dsn();
    let script = stdout(&ends(&["migrate", "--print"]).await);
    let client = database.client().await.expect("a session");
    client.batch_execute(&script).await.expect("the script runs");
    let output = ends(&["migrate", "--dsn", &dsn]).await;
    assert!(stdout(&output).contains("up to date"), "{}", stdout(&output));
    let grants = stdout(&ends(&["migrate", "--print-grants", "app"]).await);
    assert!(grants.contains("to \"app\""), "{grants}");
}

#[tokio::test]
async fn doctor_tells_everything_but_the_password() {
    let database = database().await;
    let dsn = format!("{} password=hunter2", database.dsn());
    assert_eq!(code(&ends(&["acquire", "--role", "r", "--dsn", &dsn]).await), 0);
    let output = ends(&["doctor", "--dsn", &dsn]).await;
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let told = stdout(&output);
    for word in ["tenure 0.", "timings:", "checks:", "schema: version", "\"role\": \"r\"", ":***@"]
    {
        assert!(told.contains(word), "{word} is missing in:\n{told}");
    }
    assert!(!told.contains("hunter2") && !stderr(&output).contains("hunter2"));
}

#[tokio::test]
async fn a_priority_gets_a_head_start() {
    let database = database().await;
    let dsn = database.dsn();
    let mut one = member(&["--role", "r", "--dsn", &dsn, "--instance", "one"]);
    event(&mut one, "acquired").await;
    let _low = member(&["--role", "r", "--dsn", &dsn, "--instance", "low", "--priority", "-1"]);
    let mut high = member(&["--role", "r", "--dsn", &dsn, "--instance", "high", "--priority", "9"]);
    waiting(&database, "r", 2).await;
    one.signal(Signal::TERM);
    event(&mut high, "acquired").await;
    until("the end of the first", async || one.wait(SOON).await.is_ok()).await;
}

#[tokio::test]
async fn a_reader_that_has_read_enough_is_no_error() {
    use tokio::io::{AsyncBufReadExt, BufReader};
    let mut command = tokio::process::Command::new(crate::kit::program());
    command.env_clear().args(["migrate", "--print"]);
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let mut child = command.spawn().expect("it runs");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    lines.next_line().await.expect("text").expect("a line");
    drop(lines);
    let output = child.wait_with_output().await.expect("it ends");
    assert_eq!((code(&output), stderr(&output).as_str()), (0, ""));
}

#[tokio::test]
async fn a_role_at_rest_is_changed_and_forgotten() {
    let database = database().await;
    let dsn = database.dsn();
    assert_eq!(code(&ends(&["acquire", "--role", "r", "--dsn", &dsn]).await), 0);
    let refused = ends(&["forget", "--role", "r", "--dsn", &dsn]).await;
    assert_ne!(code(&refused), 0);
    assert!(stderr(&refused).contains("tenure pause --role r"), "{}", stderr(&refused));
    assert_eq!(code(&ends(&["pause", "--role", "r", "--dsn", &dsn]).await), 0);
    assert_eq!(code(&ends(&["alter", "--role", "r", "--dsn", &dsn]).await), 2);
    let altered = ends(&["alter", "--role", "r", "--policy", "fenced", "--dsn", &dsn]).await;
    assert_eq!(code(&altered), 0, "{}", stderr(&altered));
    let told = stdout(&ends(&["history", "--role", "r", "--orders", "--dsn", &dsn]).await);
    assert!(told.contains("alter") && told.contains("asked by operator on"), "{told}");
    let forgotten = ends(&["forget", "--role", "r", "--dsn", &dsn]).await;
    assert!(stdout(&forgotten).contains("continues above epoch 1"), "{}", stdout(&forgotten));
    assert_eq!(code(&ends(&["forget", "--role", "r", "--dsn", &dsn]).await), 7);
    // What became of it is still told.
    let told = ends(&["history", "--role", "r", "--orders", "--dsn", &dsn]).await;
    assert_eq!(code(&told), 0, "{}", stderr(&told));
    assert!(stdout(&told).contains("forget"), "{}", stdout(&told));
    assert_eq!(code(&ends(&["audit", "--role", "r", "--dsn", &dsn]).await), 0);
}

#[tokio::test]
async fn a_login_role_with_the_grants_of_a_member_is_told_what_only_the_owner_may() {
    let database = database().await;
    let dsn = database.dsn();
    let client = database.client().await.expect("a session");
    // Nothing is granted on the database: it may not create a schema.
    let user = format!("app_{}", std::process::id());
    client.batch_execute(&format!("create role {user} login")).await.expect("a login role");
    let app = database.dsn_for(&user);
    assert_eq!(code(&ends(&["check", "--dsn", &app]).await), 3);
    let fresh = ends(&["check", "--dsn", &dsn]).await;
    assert_eq!(code(&fresh), 0, "its owner makes the schema: {}", stdout(&fresh));
    assert!(stdout(&fresh).contains("the first member that starts makes it"), "{}", stdout(&fresh));
    let denied = ends(&["migrate", "--dsn", &app]).await;
    refuses(&denied, 3, "run it as the schema's owner");
    assert_eq!(code(&ends(&["acquire", "--role", "r", "--dsn", &dsn]).await), 0);
    let grants = stdout(&ends(&["migrate", "--print-grants", &user]).await);
    client.batch_execute(&grants).await.expect("granted");
    assert_eq!(code(&ends(&["acquire", "--role", "r", "--dsn", &app]).await), 0);
    assert_eq!(code(&ends(&["pause", "--role", "r", "--dsn", &app]).await), 0);
    refuses(
        &ends(&["forget", "--role", "r", "--dsn", &app]).await,
        1,
        "run it as the schema's owner",
    );
    let views = format!(
        "set role {user}; select from tenure.msp_leader_state; select from tenure.forge_leaders; reset role"
    );
    client.batch_execute(&views).await.expect("a member's login role reads the views");
    let away = format!("drop owned by {user}; drop role {user}");
    client.batch_execute(&away).await.expect("no login role is left");
}

#[tokio::test]
async fn a_pause_of_a_role_whose_leader_is_dead_drains_nothing() {
    let database = database().await;
    let dsn = database.dsn();
    let mut one = member(&["--role", "r", "--dsn", &dsn]);
    event(&mut one, "acquired").await;
    one.signal(Signal::KILL);
    one.wait(SOON).await.expect("it is dead");
    until("the end of its session", async || {
        let value = json(&["status", "--json", "--role", "r", "--dsn", &dsn]).await;
        value[0]["state"] == "gone"
    })
    .await;
    let output = ends(&["pause", "--role", "r", "--dsn", &dsn]).await;
    assert!(stdout(&output).contains("its last leader, is gone"), "{}", stdout(&output));
}

#[tokio::test]
async fn a_member_that_waits_out_its_own_last_lease_does_not_lead_yet() {
    let cluster = tenure_testkit::Cluster::start().await.expect("a cluster");
    let dsn = cluster.dsn();
    let mut one = member(&["--role", "r", "--dsn", &dsn, "--retry-base", "20ms"]);
    event(&mut one, "acquired").await;
    cluster.stop(tenure_testkit::Stop::Fast).await.expect("stopped");
    cluster.start_again().await.expect("started");
    // It claims again under a new epoch, and is its own debtor: another may have led in between.
    let (mut led_early, mut taking_over) = (0, 0);
    until("the next term", async || {
        let value = json(&["status", "--json", "--role", "r", "--dsn", &dsn]).await;
        let role = &value[0];
        if role["epoch"] == 2 && role["since"].is_null() {
            led_early += u32::from(role["acting"] == true || role["state"] == "led");
            taking_over += u32::from(role["state"] == "taking_over");
        }
        role["epoch"] == 2 && role["acting"] == true && !role["since"].is_null()
    })
    .await;
    assert_eq!(led_early, 0);
    assert!(taking_over > 0, "the wait was not seen");
}
