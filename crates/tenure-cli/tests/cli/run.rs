//! `tenure run`: events, exit codes, children, hooks.

use serde_json::Value;
use tenure_testkit::{Child, Signal};

use crate::kit::{
    LEASE, SOON, command, database, end_seats, event, finish, member, terminate, until, waiting,
};

#[tokio::test]
async fn events_are_objects_with_the_fields_of_the_contract() {
    let database = database().await;
    let mut one = member(&["--role", "r", "--dsn", &database.dsn()]);
    let acquired = event(&mut one, "acquired").await;
    assert_eq!(terminate(&mut one).await, 0);
    assert_eq!(acquired["role"], "r");
    assert_eq!(acquired["epoch"], 1);
    assert!(acquired["member"].as_str().expect("text").starts_with("tenure-"), "{acquired}");
    let events: Vec<Value> =
        one.lines().iter().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    for value in &events {
        for field in ["event", "role", "member", "epoch", "from", "to", "reason", "mono_ns"] {
            assert!(value.get(field).is_some(), "{field} is missing in {value}");
        }
        assert!(value["mono_ns"].as_u64().expect("a number") > 0);
    }
    let names: Vec<&str> = events.iter().map(|value| value["event"].as_str().unwrap()).collect();
    let told = ["state_change", "acquired", "released", "stopped"];
    assert!(told.iter().all(|name| names.contains(name)), "{names:?}");
    let times: Vec<u64> = events.iter().map(|v| v["mono_ns"].as_u64().unwrap()).collect();
    assert!(times.is_sorted(), "{times:?}");
}

#[tokio::test]
async fn the_child_learns_role_epoch_and_member_and_its_output_is_untouched() {
    let database = database().await;
    let script = "echo \"$TENURE_ROLE $TENURE_EPOCH $TENURE_MEMBER\"; echo oops >&2; cat; exit 7";
    let (code, out, err) =
        finish(command(&["--role", "r", "--dsn", &database.dsn(), "--", "sh", "-c", script])).await;
    assert_eq!(code, 7, "{err}");
    let words: Vec<&str> = out.split_whitespace().collect();
    assert_eq!(words[..2], ["r", "1"], "{out}");
    assert!(words[2].starts_with("tenure-"), "{out}");
    assert!(err.contains("oops") && err.contains("\"acquired\""), "{err}");
}

#[tokio::test]
async fn the_childs_end_is_passed_on_as_shells_do() {
    let database = database().await;
    let folder = tempfile::tempdir().expect("a folder");
    let plain = folder.path().join("plain");
    std::fs::write(&plain, "no program").expect("written");
    let plain = plain.to_str().expect("text");
    for (child, expected) in [
        (&["true"][..], 0),
        (&["sh", "-c", "kill -9 $$"], 128 + 9),
        (&["sh", "-c", "kill -15 $$"], 128 + 15),
        (&["/nowhere/program"], 127),
        (&[plain], 126),
    ] {
        let dsn = database.dsn();
        let args = [&["--role", "r", "--dsn", &dsn, "--"], child].concat();
        let (code, _, err) = finish(command(&args)).await;
        assert_eq!(code, expected, "{child:?}: {err}");
    }
}

#[tokio::test]
async fn sigterm_and_sigint_end_the_child_and_exit_clean() {
    let database = database().await;
    for signal in [Signal::TERM, Signal::INT] {
        let script = "trap 'echo ended; exit 3' TERM; echo up; while :; do sleep 0.02; done";
        let dsn = database.dsn();
        let mut one = member(&["--role", "r", "--dsn", &dsn, "--", "sh", "-c", script]);
        one.wait_line(|line| line == "up", SOON).await.expect("the child is up");
        one.signal(signal);
        assert_eq!(one.wait(SOON).await.expect("it ends").code(), Some(0));
        assert!(one.lines().contains(&"ended".to_owned()), "{:?}", one.lines());
    }
}

#[tokio::test]
async fn restart_starts_the_child_again() {
    let database = database().await;
    let dsn = database.dsn();
    let mut one =
        member(&["--role", "r", "--restart", "--dsn", &dsn, "--", "sh", "-c", "echo up; exit 1"]);
    for _ in 0..3 {
        one.wait_line(|line| line == "up", SOON).await.expect("it is up again");
    }
    assert_eq!(terminate(&mut one).await, 0);
}

#[tokio::test]
async fn a_handover_ends_the_child_first_and_takes_less_than_a_lease() {
    let database = database().await;
    let dsn = database.dsn();
    let script = "trap 'sleep 0.1; echo ended; exit 0' TERM; echo up; while :; do sleep 0.02; done";
    let mut one =
        member(&["--role", "r", "--dsn", &dsn, "--instance", "one", "--", "sh", "-c", script]);
    one.wait_line(|line| line == "up", SOON).await.expect("the child is up");
    let mut two = member(&["--role", "r", "--dsn", &dsn, "--instance", "two"]);
    waiting(&database, "r", 1).await;
    let begun = std::time::Instant::now();
    let output = crate::kit::ends(&["step-down", "--role", "r", "--dsn", &dsn]).await;
    let said = crate::kit::stdout(&output);
    assert!(said.contains("tenure-two-"), "{said}");
    event(&mut two, "acquired").await;
    // It was ended and seen to be gone, so the successor did not wait out its lease.
    assert!(begun.elapsed() < LEASE, "{:?}", begun.elapsed());
    assert!(one.lines().contains(&"ended".to_owned()));
    assert_eq!(terminate(&mut two).await, 0);
}

#[tokio::test]
async fn a_loss_that_is_final_is_four() {
    for child in [&[][..], &["--", "sleep", "600"]] {
        let database = database().await;
        let client = database.client().await.expect("a session");
        let dsn = database.dsn();
        let args = [&["--role", "r", "--no-auto-reacquire", "--dsn", &dsn], child].concat();
        let mut one = member(&args);
        until("the leader", async || end_seats(&client).await == 1).await;
        assert_eq!(one.wait(SOON).await.expect("it ends").code(), Some(4));
    }
}

#[tokio::test]
async fn the_childs_code_is_kept_although_another_leads_next() {
    let database = database().await;
    let dsn = database.dsn();
    let mut two;
    let mut one =
        member(&["--role", "r", "--dsn", &dsn, "--", "sh", "-c", "echo up; sleep 1; exit 9"]);
    one.wait_line(|line| line == "up", SOON).await.expect("up");
    two = member(&["--role", "r", "--dsn", &dsn]);
    event(&mut two, "acquired").await;
    assert_eq!(one.wait(SOON).await.expect("it ends").code(), Some(9));
    assert_eq!(terminate(&mut two).await, 0);
}

#[tokio::test]
async fn hooks_run_with_the_event_and_the_epoch() {
    let database = database().await;
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("hooks");
    let hook = format!("echo $TENURE_EVENT $TENURE_ROLE $TENURE_EPOCH >> {}", file.display());
    let dsn = database.dsn();
    let mut one = member(&[
        "--role",
        "r",
        "--dsn",
        &dsn,
        "--on-acquired",
        &hook,
        "--on-lost",
        &hook,
        "--on-released",
        &hook,
    ]);
    event(&mut one, "acquired").await;
    let client = database.client().await.expect("a session");
    assert_eq!(end_seats(&client).await, 1);
    event(&mut one, "lost").await;
    event(&mut one, "acquired").await;
    assert_eq!(terminate(&mut one).await, 0);
    let told = std::fs::read_to_string(&file).expect("hooks ran");
    let lines: Vec<&str> = told.lines().collect();
    assert_eq!(lines, ["acquired r 1", "lost r 1", "acquired r 2", "released r 2"]);
}

#[tokio::test]
async fn an_ill_application_steps_down() {
    let database = database().await;
    let dsn = database.dsn();
    let folder = tempfile::tempdir().expect("a folder");
    let well = folder.path().join("well");
    std::fs::write(&well, "").expect("written");
    let check = format!("test -e {}", well.display());
    let mut one = member(&[
        "--role",
        "r",
        "--dsn",
        &dsn,
        "--health",
        &check,
        "--health-start",
        "0",
        "--health-every",
        "50ms",
        "--health-failures",
        "2",
    ]);
    event(&mut one, "acquired").await;
    let mut two = member(&["--role", "r", "--dsn", &dsn]);
    waiting(&database, "r", 1).await;
    std::fs::remove_file(&well).expect("removed");
    event(&mut one, "released").await;
    event(&mut two, "acquired").await;
    assert_eq!(terminate(&mut one).await, 0);
    assert_eq!(terminate(&mut two).await, 0);
}

#[tokio::test]
async fn the_database_comes_from_the_variables_in_their_order() {
    let database = database().await;
    let bad = "postgresql://127.0.0.1:1/none";
    for (variables, expected) in [
        (&[("TENURE_DSN", true), ("PG_DSN", false), ("PG_CONN_STRING", false)][..], 0),
        (&[("PG_DSN", true), ("PG_CONN_STRING", false)], 0),
        (&[("PG_CONN_STRING", true)], 0),
        (&[("TENURE_DSN", false), ("PG_DSN", true)], 5),
    ] {
        let dsn = database.dsn();
        let variables: Vec<(&str, String)> = variables
            .iter()
            .map(|(name, good)| (*name, if *good { dsn.clone() } else { bad.to_owned() }))
            .collect();
        let output = tokio::task::spawn_blocking(move || {
            let mut command = crate::kit::tenure(&["acquire", "--role", "r"]);
            command.envs(variables).output().expect("it runs")
        });
        assert_eq!(crate::kit::code(&output.await.expect("joined")), expected);
    }
}

#[tokio::test]
async fn a_key_alone_is_a_role_and_contends_with_any_program() {
    let database = database().await;
    let dsn = database.dsn();
    let client = database.client().await.expect("a session");
    client.execute("select pg_advisory_lock(7, 9)", &[]).await.expect("locked");
    let mut one = member(&["--key1", "7", "--key2", "9", "--dsn", &dsn]);
    event(&mut one, "acquire_failed").await;
    client.execute("select pg_advisory_unlock(7, 9)", &[]).await.expect("unlocked");
    let acquired = event(&mut one, "acquired").await;
    assert_eq!(acquired["role"], "lock:7,9");
    assert_eq!(terminate(&mut one).await, 0);
}

#[tokio::test]
async fn lock_only_needs_no_tables() {
    let database = database().await;
    let dsn = database.dsn();
    let mut one = member(&[
        "--role",
        "r",
        "--lock-only",
        "--dsn",
        &dsn,
        "--",
        "sh",
        "-c",
        "echo up ${TENURE_EPOCH-none}; sleep 600",
    ]);
    // No tables, no epochs: a made-up one would pass for a fencing token.
    one.wait_line(|line| line == "up none", SOON).await.expect("up");
    let client = database.client().await.expect("a session");
    let row = client.query_one("select to_regnamespace('tenure') is null", &[]).await.expect("row");
    assert!(row.get::<_, bool>(0));
    assert_eq!(terminate(&mut one).await, 0);
}

#[tokio::test]
async fn a_role_of_the_file_is_run_with_what_the_command_line_adds() {
    let database = database().await;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("tenure.toml");
    let text = format!("[database]\ndsn = \"{}\"\n[[role]]\nname = \"filed\"\n", database.dsn());
    std::fs::write(&path, text).expect("written");
    let path = path.to_str().expect("text");
    let mut one = member(&["--config", path, "--policy", "fenced"]);
    assert_eq!(event(&mut one, "acquired").await["role"], "filed");
    let client = database.client().await.expect("a session");
    let row = client.query_one("select policy from tenure.role", &[]).await.expect("a row");
    assert_eq!(row.get::<_, String>(0), "fenced");
    assert_eq!(terminate(&mut one).await, 0);
}

#[tokio::test]
async fn without_a_database_it_follows_and_leads_when_one_comes() {
    let cluster = tenure_testkit::Cluster::start().await.expect("a cluster");
    let dsn = cluster.dsn();
    cluster.stop(tenure_testkit::Stop::Fast).await.expect("stopped");
    let mut one = member(&["--role", "r", "--dsn", &dsn]);
    event(&mut one, "state_change").await;
    cluster.start_again().await.expect("started");
    event(&mut one, "acquired").await;
    assert_eq!(terminate(&mut one).await, 0);
}

#[tokio::test]
async fn a_dead_database_does_not_hold_up_the_exit() {
    let database = database().await;
    let cluster = tenure_testkit::shared_cluster().await;
    let proxy = tenure_testkit::Proxy::start(cluster.addr()).await.expect("a proxy");
    let dsn = proxy.dsn(database.name());
    let mut one = member(&["--role", "r", "--dsn", &dsn]);
    event(&mut one, "acquired").await;
    proxy.blackhole(tenure_testkit::Direction::Both);
    let begun = std::time::Instant::now();
    assert_eq!(terminate(&mut one).await, 0);
    assert!(begun.elapsed() < LEASE * 2, "{:?}", begun.elapsed());
}

#[tokio::test]
async fn the_command_line_of_pgleaderlock_works_as_it_is() {
    let database = database().await;
    let mut command = tokio::process::Command::new(crate::kit::program());
    command.env_clear().env("PG_DSN", database.dsn());
    command.args(["run", "--key1", "1234", "--key2", "5678", "--health-interval", "5.0"]);
    command.args(["--retry-base", "1.0", "--retry-max", "30.0", "--reconnect-grace", "2"]);
    let mut one = Child::spawn(command).expect("it runs");
    one.wait_line(|line| line.contains("acquired"), SOON).await.expect("it leads");
    assert_eq!(terminate(&mut one).await, 0);
}

#[tokio::test]
async fn a_program_that_cannot_be_run_is_told_of_as_an_object() {
    let database = database().await;
    let args = ["--role", "r", "--dsn", &database.dsn(), "--", "/no/such/program"];
    let (code, _, err) = finish(command(&args)).await;
    assert_eq!(code, 127);
    let events: Vec<Value> =
        err.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    let told =
        |value: &&Value| value["reason"].as_str().is_some_and(|why| why.contains("/no/such"));
    assert_eq!(events.iter().filter(told).count(), 1, "{err}");
}

#[tokio::test]
async fn a_hangup_that_was_ignored_at_the_start_stays_ignored() {
    let database = database().await;
    let run = command(&["--role", "r", "--dsn", &database.dsn()]);
    let mut start = tokio::process::Command::new("sh");
    start.args(["-c", "trap '' HUP; exec \"$0\" \"$@\""]);
    start.arg(run.as_std().get_program()).args(run.as_std().get_args());
    let mut one = Child::spawn(start).expect("it runs");
    event(&mut one, "acquired").await;
    let status = std::fs::read_to_string(format!("/proc/{}/status", one.pid())).expect("status");
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).expect("a mask");
    let mask = u64::from_str_radix(mask.trim(), 16).expect("a number");
    assert_eq!(mask & 1, 1, "{mask:x}");
    assert_eq!(terminate(&mut one).await, 0);
}

#[tokio::test]
async fn a_health_check_that_hangs_takes_what_it_runs_along() {
    let database = database().await;
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("pid");
    let health = format!("sleep 600 & echo $! > {}; wait", file.display());
    let dsn = database.dsn();
    let limits = ["--health-timeout", "300ms", "--health-every", "1h", "--health", &health];
    let start = ["--role", "r", "--dsn", &dsn, "--health-start", "0"];
    let mut one = member(&[&start[..], &limits].concat());
    event(&mut one, "unhealthy").await;
    let pid = std::fs::read_to_string(&file).expect("it ran");
    until("its end", async || !runs(pid.trim())).await;
    assert_eq!(terminate(&mut one).await, 0);
}

#[tokio::test]
async fn what_a_hook_leaves_behind_is_reaped() {
    let database = database().await;
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("pid");
    // Ends only after the child, and with it the guardian, is up.
    let hook = format!("sleep 2 & echo $! > {}; sleep 1", file.display());
    let args = ["--role", "r", "--dsn", &database.dsn(), "--on-acquired", &hook, "--"];
    let mut start = command(&args);
    start.args(["sh", "-c", "echo up; exec sleep 600"]);
    let mut one = Child::spawn(start).expect("it runs");
    one.wait_line(|line| line == "up", SOON).await.expect("the child is up");
    until("the hook", async || std::fs::read_to_string(&file).is_ok_and(|t| !t.is_empty())).await;
    let pid = std::fs::read_to_string(&file).expect("it ran");
    until("its reaping", async || !std::path::Path::new("/proc").join(pid.trim()).exists()).await;
    assert_eq!(terminate(&mut one).await, 0);
}

/// Whether that process is there and not only waits to be reaped.
fn runs(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}

#[tokio::test]
async fn a_role_that_is_refused_after_the_start_fails_as_at_the_start() {
    let database = database().await;
    let dsn = database.dsn();
    let mut one = member(&["--role", "r", "--dsn", &dsn]);
    event(&mut one, "acquired").await;
    let mut two = member(&["--role", "r", "--dsn", &dsn, "--instance", "two"]);
    waiting(&database, "r", 1).await;
    let client = database.client().await.expect("a session");
    // What `tenure alter` does to a role while a member is away.
    let sql = "update tenure.role set policy = 'fenced'; \
               select pg_terminate_backend(backend_pid) from tenure.member where identity like 'tenure-two-%'";
    client.batch_execute(sql).await.expect("altered");
    let refused = event(&mut two, "error").await;
    let code = two.wait(SOON).await.expect("it ends").code();
    assert_eq!(code, Some(3), "{refused}");
}
