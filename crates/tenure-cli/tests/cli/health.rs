//! What the application says of itself: asked about a child that runs, counted anew for each.

use tenure_testkit::{Child, Signal};

use crate::kit::{SOON, command, database, event, member, until, waiting};

/// The obvious use: the check asks the child, which is slow to start, and a member that waits has none.
#[tokio::test]
async fn a_check_that_asks_a_slow_child_does_not_flap() {
    let database = database().await;
    let dsn = database.dsn();
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str| folder.path().join(name).display().to_string();
    let start = |name: &str| {
        // A child is well from 1.5 s on; what is left of an earlier one does not count.
        let child = format!("echo up; rm -f {0}; sleep 1.5; touch {0}; exec sleep 600", file(name));
        let check =
            format!("test -e {} && echo $TENURE_EPOCH >> {}.passed", file(name), file(name));
        let mut run = command(&["--role", "r", "--dsn", &dsn, "--instance", name]);
        run.args(["--health", &check, "--health-start", "2s", "--health-every", "200ms"]);
        run.args(["--health-failures", "2", "sh", "-c", &child]);
        Child::spawn(run).expect("it runs")
    };
    let passed = |name: &str, epoch: &str| {
        let lines = std::fs::read_to_string(format!("{}.passed", file(name))).unwrap_or_default();
        lines.lines().filter(|line| *line == epoch).count()
    };
    let mut one = start("one");
    one.wait_line(|line| line == "up", SOON).await.expect("the child is up");
    let mut two = start("two");
    waiting(&database, "r", 1).await;
    until("three good checks", async || passed("one", "1") >= 3).await;
    one.signal(Signal::TERM);
    assert_eq!(one.wait(SOON).await.expect("it ends").code(), Some(0));
    two.wait_line(|line| line == "up", SOON).await.expect("the child is up");
    until("five good checks", async || passed("two", "2") >= 5).await;
    let client = database.client().await.expect("a session");
    let terms = client.query_one("select max(epoch) from tenure.term", &[]).await.expect("a row");
    assert_eq!(terms.get::<_, i64>(0), 2, "each member led once");
    two.signal(Signal::TERM);
    assert_eq!(two.wait(SOON).await.expect("it ends").code(), Some(0));
}

#[tokio::test]
async fn failures_are_counted_anew_for_every_child() {
    let database = database().await;
    let dsn = database.dsn();
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("asked");
    let check = format!("echo >> {}; false", file.display());
    let asked = || std::fs::read_to_string(&file).map_or(0, |text| text.lines().count());
    let mut run = command(&["--role", "r", "--dsn", &dsn, "--restart", "--health", &check]);
    run.args(["--health-start", "0", "--health-every", "1h", "--health-failures", "2"]);
    // Each child is asked once, and ends only then.
    let child =
        "echo >> $0.begun; while [ $(wc -l < $0) -lt $(wc -l < $0.begun) ]; do sleep 0.02; done";
    std::fs::write(&file, "").expect("written");
    run.args(["sh", "-c", child]).arg(&file);
    let mut one = Child::spawn(run).expect("it runs");
    until("four children", async || asked() >= 4).await;
    one.signal(Signal::TERM);
    assert_eq!(one.wait(SOON).await.expect("it ends").code(), Some(0));
    let client = database.client().await.expect("a session");
    let terms = client.query_one("select max(epoch) from tenure.term", &[]).await.expect("a row");
    assert_eq!(terms.get::<_, i64>(0), 1, "no child failed twice");
}

#[tokio::test]
async fn a_member_that_is_not_ready_lets_a_ready_one_lead() {
    let database = database().await;
    let dsn = database.dsn();
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("ready");
    let check = format!("test -e {}", file.display());
    let with = ["--ready", &check, "--health-every", "100ms"];
    let run = |name: &str, more: &[&str]| {
        member(&[&["--role", "r", "--dsn", &dsn, "--instance", name][..], more].concat())
    };
    let mut one = run("one", &[]);
    event(&mut one, "acquired").await;
    let mut unready = run("unready", &with);
    let mut ready = run("ready", &[]);
    waiting(&database, "r", 2).await;
    one.signal(Signal::TERM);
    event(&mut ready, "acquired").await;
    // Alone it leads although it is not ready: a leader that is not ready is better than none.
    ready.signal(Signal::TERM);
    event(&mut unready, "acquired").await;
    let client = database.client().await.expect("a session");
    let sql = "select ready from tenure.candidate where member like 'tenure-unready-%'";
    assert!(!client.query_one(sql, &[]).await.expect("a row").get::<_, bool>(0));
    // What it says counts again once it waits.
    let mut other = run("other", &[]);
    waiting(&database, "r", 1).await;
    std::fs::write(&file, "").expect("written");
    let output = crate::kit::ends(&["step-down", "--role", "r", "--dsn", &dsn]).await;
    assert_eq!(crate::kit::code(&output), 0, "{}", crate::kit::stderr(&output));
    event(&mut unready, "ready").await;
    event(&mut other, "acquired").await;
    for child in [&mut unready, &mut other] {
        child.signal(Signal::TERM);
        assert_eq!(child.wait(SOON).await.expect("it ends").code(), Some(0));
    }
}
