//! `tenure acquire`: once, or not at all.

use std::process::Stdio;

use tenure_testkit::{Child, Proxy, Signal, until};
use tokio::io::AsyncBufReadExt;

use crate::kit::{SOON, code, database, ends, event, member, program, refuses, stderr, stdout};

/// `tenure acquire`, to be signalled.
fn acquires(args: &[&str]) -> Child {
    let mut command = tokio::process::Command::new(program());
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command.arg("acquire").args(args);
    Child::spawn(command).expect("it runs")
}

#[tokio::test]
async fn a_free_role_is_won_and_let_go_again() {
    let database = database().await;
    let dsn = database.dsn();
    for epoch in 1..=2 {
        let output = ends(&["acquire", "--role", "r", "--dsn", &dsn]).await;
        assert_eq!(code(&output), 0);
        assert_eq!(stdout(&output), format!("acquired r epoch {epoch}, releasing it\n"));
    }
}

#[tokio::test]
async fn a_role_that_is_held_is_one_at_once_and_after_the_wait() {
    let database = database().await;
    let dsn = database.dsn();
    let mut one = member(&["--role", "r", "--dsn", &dsn]);
    event(&mut one, "acquired").await;
    let acquire = ["acquire", "--role", "r", "--dsn", &dsn];
    refuses(&ends(&acquire).await, 1, "another session holds the lock");
    let begun = std::time::Instant::now();
    refuses(&ends(&[&acquire[..], &["--wait", "700ms"]].concat()).await, 1, "was not acquired");
    assert!(begun.elapsed().as_millis() >= 700);
}

#[tokio::test]
async fn a_claim_that_the_database_cannot_carry_out_says_its_own_reason() {
    let database = database().await;
    let dsn = database.dsn();
    let acquire = ["acquire", "--role", "r", "--dsn", &dsn];
    assert_eq!(code(&ends(&acquire).await), 0);
    let client = database.client().await.expect("a session");
    let last = format!("update tenure.role set epoch = {}", i64::MAX);
    client.batch_execute(&last).await.expect("no epoch is left");
    refuses(&ends(&acquire).await, 1, "bigint out of range");
    let held = "select count(*) from pg_locks l join tenure.role r on l.locktype = 'advisory' \
                and l.classid = ((r.key >> 32) & 4294967295)::oid \
                and l.objid = (r.key & 4294967295)::oid";
    // The server notices the end of a session a moment after the program ended.
    until("no lock that is left", async || {
        client.query_one(held, &[]).await.expect("readable").get::<_, i64>(0) == 0
    })
    .await;
}

#[tokio::test]
async fn a_server_that_takes_the_session_and_never_answers_is_waited_for_no_longer_than_asked() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = silent.local_addr().expect("bound").port();
    // Every session is taken, kept, and left without a word.
    let takes = tokio::spawn(async move {
        let mut kept = Vec::new();
        while let Ok(taken) = silent.accept().await {
            kept.push(taken);
        }
    });
    let dsn = format!("postgresql://u@127.0.0.1:{port}/d?sslmode=disable");
    let begun = std::time::Instant::now();
    let timings = ["--heartbeat", "300ms", "--lease", "2500ms"];
    let acquire = ["acquire", "--role", "r", "--wait", "300ms", "--dsn", &dsn];
    let output = ends(&[&acquire[..], &timings].concat()).await;
    assert_eq!(code(&output), 5, "{}", stderr(&output));
    // The lease and its margin are 3 s. Without that bound the session and the registration are waited for one
    // after the other, which takes 6.5 s.
    assert!(begun.elapsed().as_millis() < 5500, "{:?}", begun.elapsed());
    takes.abort();
}

#[tokio::test]
async fn a_wait_ends_when_the_role_becomes_free() {
    let database = database().await;
    let dsn = database.dsn();
    let mut one = member(&["--role", "r", "--dsn", &dsn]);
    event(&mut one, "acquired").await;
    let args =
        ["acquire", "--role", "r", "--wait", "20s", "--dsn", &dsn, "--", "sh", "-c", "exit 6"];
    let (output, ()) = tokio::join!(ends(&args), async {
        crate::kit::waiting(&database, "r", 1).await;
        one.signal(Signal::TERM);
    });
    assert_eq!(code(&output), 6);
}

#[tokio::test]
async fn the_command_runs_once_under_the_lock() {
    let database = database().await;
    let dsn = database.dsn();
    let script = "echo $TENURE_EPOCH; exit 4";
    let output = ends(&["acquire", "--role", "r", "--dsn", &dsn, "--", "sh", "-c", script]).await;
    assert_eq!((code(&output), stdout(&output).as_str()), (4, "1\n"));
}

#[tokio::test]
async fn an_interrupted_command_never_looks_done() {
    let database = database().await;
    let dsn = database.dsn();
    for (answer, signal, expected) in [
        ("", Signal::TERM, 128 + 15),
        ("", Signal::INT, 128 + 2),
        ("trap 'exit 9' TERM;", Signal::TERM, 9),
        ("trap 'exit 0' TERM;", Signal::TERM, 128 + 15),
    ] {
        let script = format!("{answer} echo up; while :; do sleep 0.02; done");
        let mut one = acquires(&["--role", "r", "--dsn", &dsn, "--", "sh", "-c", &script]);
        one.wait_line(|line| line == "up", SOON).await.expect("the child is up");
        one.signal(signal);
        let code = one.wait(SOON).await.expect("it ends").code();
        assert_eq!(code, Some(expected), "{answer:?}");
    }
    // Also while it waits for its turn.
    let mut leader = member(&["--role", "r", "--dsn", &dsn]);
    event(&mut leader, "acquired").await;
    let mut two = acquires(&["--role", "r", "--dsn", &dsn, "--wait", "1h", "true"]);
    crate::kit::waiting(&database, "r", 1).await;
    two.signal(Signal::INT);
    assert_eq!(two.wait(SOON).await.expect("it ends").code(), Some(130));
}

#[tokio::test]
async fn no_time_to_wait_is_enough_for_a_role_that_is_free() {
    let database = database().await;
    let dsn = database.dsn();
    for wait in ["0", "1ms"] {
        let args = ["acquire", "--role", "r", "--wait", wait, "--dsn", &dsn, "sh", "-c", "exit 6"];
        let output = ends(&args).await;
        assert_eq!(code(&output), 6, "{}", stderr(&output));
    }
}

#[tokio::test]
async fn the_rest_of_a_crashed_leaders_lease_is_waited_out_beyond_the_wait() {
    let database = database().await;
    let dsn = database.dsn();
    let mut one = member(&["--role", "r", "--dsn", &dsn]);
    event(&mut one, "acquired").await;
    one.signal(Signal::KILL);
    one.wait(SOON).await.expect("it is dead");
    // A claimant with a shorter lease waits out the longer one, and says so.
    let args = ["acquire", "--role", "r", "--wait", "100ms", "--lease", "2500ms", "--dsn", &dsn];
    let output = ends(&args).await;
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert_eq!(stdout(&output), "acquired r epoch 2, releasing it\n");
    let said = stderr(&output);
    assert!(said.contains("its lease is waited out, up to 3s 5"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
}

#[tokio::test]
async fn the_configured_patience_is_that_of_a_command_line_without_one() {
    let database = database().await;
    let dsn = database.dsn();
    let mut one = member(&["--role", "r", "--dsn", &dsn]);
    event(&mut one, "acquired").await;
    let begun = std::time::Instant::now();
    let output = tokio::task::spawn_blocking(move || {
        let mut acquire = crate::kit::tenure(&["acquire", "--role", "r", "--dsn", &dsn]);
        acquire.env("TENURE_ACQUIRE_TIMEOUT", "700ms").output().expect("it runs")
    });
    refuses(&output.await.expect("joined"), 1, "not acquired within 700ms: another session");
    assert!(begun.elapsed().as_millis() >= 700);
}

/// A restart makes even a role that was released owe a wait: what led after the release may have been lost.
#[tokio::test]
async fn scripts_that_give_up_after_a_restart_get_there_together() {
    let cluster = tenure_testkit::Cluster::start().await.expect("a cluster");
    let dsn = cluster.dsn();
    let args = ["acquire", "--role", "r", "--lease", "4s", "--dsn", &dsn, "true"];
    assert_eq!(code(&ends(&args).await), 0);
    cluster.restart().await.expect("restarted");
    let client = cluster.client("postgres").await.expect("a session");
    let waited = async || -> i64 {
        let sql = "select waited_ms from tenure.role where name = 'r'";
        client.query_one(sql, &[]).await.expect("a row").get(0)
    };
    for _ in 0..2 {
        let before = waited().await;
        let mut one = acquires(&args[1..]);
        crate::kit::until("a claim that waits", async || {
            let sql = "select holder is not null from tenure.role where name = 'r'";
            client.query_one(sql, &[]).await.expect("a row").get(0)
        })
        .await;
        tokio::time::sleep(std::time::Duration::from_millis(300)).await;
        one.signal(Signal::TERM);
        assert_eq!(one.wait(SOON).await.expect("it ends").code(), Some(128 + 15));
        let after = waited().await;
        assert!(after >= before + 250, "it waited, and {before} ms became {after} ms");
    }
}

#[tokio::test]
async fn a_database_that_is_away_is_waited_for_as_long_as_asked() {
    let cluster = tenure_testkit::shared_cluster().await;
    let database = database().await;
    let proxy = Proxy::start(cluster.addr()).await.expect("a proxy");
    proxy.refuse(true).await.expect("refused");
    let dsn = proxy.dsn(database.name());
    let acquire = |wait, deadline| {
        let mut command = tokio::process::Command::new(program());
        command.env_clear().args(["acquire", "--role", "r", "--wait", wait, "--dsn", &dsn]);
        command.env("TENURE_STATEMENT_DEADLINE", deadline).kill_on_drop(true);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("it runs")
    };
    let output = acquire("1s", "100ms").wait_with_output().await.expect("it ends");
    assert_eq!(code(&output), 5, "{}", stderr(&output));
    assert!(stderr(&output).contains("nothing was acquired"), "{}", stderr(&output));

    let mut waits = acquire("1m", "1s");
    let mut log = tokio::io::BufReader::new(waits.stderr.take().expect("piped")).lines();
    while !log.next_line().await.expect("text").expect("it is told").contains("no seat") {}
    // A member that leads once has lost its first attempt by now.
    proxy.refuse(false).await.expect("healed");
    let output = waits.wait_with_output().await.expect("it ends");
    assert_eq!((code(&output), stdout(&output).lines().count()), (0, 1));
}
