//! `tenure acquire`: once, or not at all.

use crate::kit::{code, database, ends, event, member, refuses, stdout};
use tenure_testkit::Signal;

#[tokio::test]
async fn a_free_role_is_won_and_let_go_again() {
    let database = database().await;
    let dsn = database.dsn();
    for epoch in 1..=2 {
        let output = ends(&["acquire", "--role", "r", "--dsn", &dsn]).await;
        assert_eq!(code(&output), 0);
        assert_eq!(stdout(&output), format!("acquired r epoch {epoch}\n"));
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
