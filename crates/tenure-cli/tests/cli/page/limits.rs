//! What the page may be asked, by whom, how often, and what it does not tell.

use std::time::Duration;

use serde_json::{Value, json};
use tenure_testkit::{Cluster, ClusterOptions, Signal, Stop};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{Answer, Served, talk};
use crate::kit::{SOON, code, database, deaf_to, ends, event, member, until};

#[tokio::test]
async fn a_line_that_is_taken_out_of_the_file_ends_its_session_and_its_stream() {
    let database = database().await;
    assert_eq!(code(&ends(&["migrate", "--dsn", &database.dsn()]).await), 0);
    let page = Served::new(&database.dsn(), &["--behind-proxy", "--name", "page.example"]).await;
    let (host, kind) = ("Host: page.example", "Content-Type: application/json");
    let signed =
        page.ask("POST", "/api/v1/session", &[host, kind], r#"{"token":"see-everything"}"#).await;
    let cookie = signed.header("set-cookie").expect("a cookie").split(';').next().expect("a pair");
    let cookie = format!("Cookie: {cookie}");
    let mut stream = page.watch_with(&format!("{host}\r\n{cookie}\r\n")).await;
    stream.next("hello", |_| true).await;
    assert_eq!(page.ask("GET", "/api/v1/snapshot", &[host, &cookie], "").await.status, 200);
    // A copy that keeps the file's time, as a deployment may make it.
    let path = page.folder.path().join("tokens");
    let text = std::fs::read_to_string(&path).expect("text");
    let left: String = text
        .lines()
        .filter(|line| !line.starts_with("grafana"))
        .map(|line| format!("{line}\n"))
        .collect();
    std::fs::write(&path, left).expect("written");
    let begun = std::time::Instant::now();
    stream.ends().await;
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    assert_eq!(page.ask("GET", "/api/v1/snapshot", &[host, &cookie], "").await.status, 401);
    let bearer = "Authorization: Bearer see-everything";
    assert_eq!(page.ask("GET", "/api/v1/snapshot", &[host, bearer], "").await.status, 401);
    let other = "Authorization: Bearer do-something";
    assert_eq!(page.ask("GET", "/api/v1/snapshot", &[host, other], "").await.status, 200);
}

/// How many of these clients' ports have a connection that its client has not closed. The server lists a session
/// until its backend has ended, which is a while after the goodbye.
fn still_open(ports: &[i32]) -> usize {
    let table = std::fs::read_to_string("/proc/net/tcp").expect("the connections");
    let open = |port: &&i32| {
        let local = format!(":{port:04X}");
        table.lines().any(|line| {
            let mut fields = line.split_whitespace().skip(1);
            fields.next().is_some_and(|at| at.ends_with(&local)) && fields.nth(1) == Some("01")
        })
    };
    ports.iter().filter(open).count()
}

#[tokio::test]
async fn many_orders_and_questions_at_once_cost_the_database_few_sessions() {
    let options = ClusterOptions::default().set("log_connections", "on");
    let cluster = Cluster::start_with(options).await.expect("a server");
    let dsn = cluster.dsn();
    let mut leader = member(&["--role", "export", "--instance", "north", "--dsn", &dsn]);
    event(&mut leader, "acquired").await;
    let page = Served::new(&dsn, &[]).await;
    until("a picture", async || page.get("/api/v1/snapshot").await.status == 200).await;
    // Questions that are broken off close no session, so that none is opened anew.
    assert_eq!(page.get("/api/v1/role/export").await.status, 200);
    let opened = || cluster.log().matches("connection authorized").count();
    let before = opened();
    for n in 0..100 {
        let mut stream = TcpStream::connect(&page.address).await.expect("a connection");
        let head = format!("GET /api/v1/role/r{n} HTTP/1.1\r\nHost: {}\r\n\r\n", page.address);
        stream.write_all(head.as_bytes()).await.expect("written");
        drop(stream);
    }
    assert_eq!(page.get("/api/v1/role/export").await.status, 200);
    assert!(opened() <= before + 2, "{} sessions for 100 questions", opened() - before);
    // Orders: each has a session of its own, few at a time.
    let client = cluster.client("postgres").await.expect("a session");
    let order = json!({"order": "pause", "role": "export"});
    let (mut asking, mut answers, mut most) = (JoinSet::new(), Vec::new(), 0);
    for _ in 0..60 {
        let (address, body) = (page.address.clone(), order.to_string());
        asking.spawn(async move {
            let head = ["Authorization: Bearer do-something", "Content-Type: application/json"];
            let stream = TcpStream::connect(&address).await.expect("a connection");
            talk(stream, &address, "POST", "/api/v1/orders", &head, &body).await
        });
    }
    while answers.len() < 60 {
        let sql = "select array_agg(client_port) from pg_stat_activity \
                   where application_name like '%tenure operator%'";
        let ports: Option<Vec<i32>> = client.query_one(sql, &[]).await.expect("ports").get(0);
        most = most.max(still_open(&ports.unwrap_or_default()));
        while let Some(answer) = asking.try_join_next() {
            answers.push(answer.expect("an answer"));
        }
    }
    let given = answers.iter().filter(|answer| answer.status == 200).count();
    assert!(given >= 4, "{given} orders were given");
    let busy =
        |answer: &&Answer| answer.status == 503 && answer.body.contains("nothing was ordered");
    assert_eq!(given + answers.iter().filter(busy).count(), 60, "an answer that is neither");
    assert!((1..=4).contains(&most), "{most} sessions at once");
    let recorded: i64 = client
        .query_one("select count(*) from tenure.event where kind = 'pause'", &[])
        .await
        .expect("a count")
        .get(0);
    assert_eq!(usize::try_from(recorded), Ok(given), "what was refused is not recorded");
}

#[tokio::test]
async fn a_page_that_is_ended_lets_an_order_come_to_its_end() {
    let database = database().await;
    let dsn = database.dsn();
    let mut leader = member(&["--role", "export", "--instance", "north", "--dsn", &dsn]);
    event(&mut leader, "acquired").await;
    let mut page = Served::new(&dsn, &[]).await;
    // The order waits for the role's row.
    let client = database.client().await.expect("a session");
    let watcher = database.client().await.expect("a session");
    let hold = "begin; select from tenure.role where name = 'export' for update";
    client.batch_execute(hold).await.expect("held");
    let address = page.address.clone();
    let order = tokio::spawn(async move {
        let head = ["Authorization: Bearer do-something", "Content-Type: application/json"];
        let stream = TcpStream::connect(&address).await.expect("a connection");
        let body = r#"{"order": "pause", "role": "export"}"#;
        talk(stream, &address, "POST", "/api/v1/orders", &head, body).await
    });
    let waits = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' \
                 and query like '%set_paused%' and datname = current_database()";
    until("an order that waits", async || {
        watcher.query_one(waits, &[]).await.is_ok_and(|row| row.get::<_, i64>(0) == 1)
    })
    .await;
    page.child.signal(Signal::TERM);
    client.batch_execute("commit").await.expect("let go");
    let answer = order.await.expect("an answer");
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert_eq!(page.child.wait(SOON).await.expect("it ends").code(), Some(0));
}

#[tokio::test]
async fn tables_that_must_not_be_read_take_nothing_else_away() {
    let cluster = Cluster::start().await.expect("a server");
    let dsn = cluster.dsn();
    assert_eq!(code(&ends(&["migrate", "--dsn", &dsn]).await), 0);
    // Transactions of another team, and schedules of which one table is closed.
    cluster
        .sql(
            "create schema tenure_tx; create table tenure_tx.pending_transactions (n int); \
             create table tenure_tx.account (n int); \
             create role viewer login; grant usage on schema tenure to viewer; \
             grant select on all tables in schema tenure to viewer; \
             create schema tenure_agent; grant usage on schema tenure_agent to viewer; \
             create table tenure_agent.slot (n int); create table tenure_agent.attempt (n int); \
             create table tenure_agent.schedule (n int); create table tenure_agent.run_order (n int); \
             grant select on tenure_agent.slot to viewer; \
             insert into tenure.role (name, key, policy, lease_ms, epoch) values ('export', 1, 'exclusive', 3000, 1)",
        )
        .await
        .expect("rows");
    let page = Served::new(&cluster.dsn_for("postgres", "viewer"), &[]).await;
    let mut stream = page.watch().await;
    stream.next("change", |_| true).await;
    let whole = page.get("/api/v1/snapshot").await;
    assert_eq!(whole.status, 200, "{}", whole.body);
    let whole = whole.json();
    assert_eq!((&whole["roles"][0][0], &whole["outage"]), (&json!("export"), &Value::Null));
    assert_eq!((&whole["tx"], &whole["schedules"]), (&Value::Null, &Value::Null));
    let log = cluster.log();
    assert!(!log.contains("permission denied"), "{log}");
}

#[tokio::test]
async fn nothing_of_the_connection_string_is_in_any_answer() {
    let cluster = Cluster::start().await.expect("a server");
    let made = "create role dbuser_q7 login password 'pa55word_q7'; create database dbname_q7 owner dbuser_q7";
    for sql in made.split("; ") {
        cluster.sql(sql).await.expect("made");
    }
    let port = cluster.port();
    let dsn =
        format!("host=localhost port={port} dbname=dbname_q7 user=dbuser_q7 password=pa55word_q7");
    assert_eq!(code(&ends(&["migrate", "--dsn", &dsn]).await), 0);
    let mut leader = member(&["--role", "export", "--instance", "north", "--dsn", &dsn]);
    event(&mut leader, "acquired").await;
    let page = Served::new(&dsn, &[]).await;
    let secrets = ["dbname_q7", "dbuser_q7", "pa55word_q7"].map(str::to_owned);
    let secrets = [&secrets[..], &[format!("port={port}"), format!(":{port}")]].concat();
    let look = async |when: &str| {
        let mut answers = Vec::new();
        for path in [
            "/",
            "/api/v1/snapshot",
            "/api/v1/role/export",
            "/api/v1/runs/x",
            "/api/v1/session",
            "/api/v1/openapi.json",
            "/main.js",
            "/nothing",
        ] {
            answers.push((path.to_owned(), page.get(path).await));
        }
        for order in [
            json!({"order": "step_down", "role": "export", "to": "nobody"}),
            json!({"order": "pause", "role": "nothing"}),
            json!({"order": "run", "schedule": "x"}),
            json!({"order": "run_again", "schedule": "x", "slot": "2026-01-31T04:00:00Z"}),
        ] {
            answers.push((order.to_string(), page.order("do-something", &order).await));
        }
        for (path, answer) in answers {
            for secret in &secrets {
                let there = answer.body.contains(secret) || answer.head.contains(secret);
                assert!(!there, "{secret} is in the answer of {path} {when}: {}", answer.body);
            }
        }
    };
    look("in good times").await;
    let mut stream = page.watch().await;
    stream.next("hello", |_| true).await;
    cluster.stop(Stop::Immediate).await.expect("it stops");
    let outage = stream.next("outage", |_| true).await.to_string();
    assert!(!secrets.iter().any(|secret| outage.contains(secret)), "{outage}");
    look("in an outage").await;
}

#[tokio::test]
async fn as_many_browsers_watch_and_clients_connect_as_may_and_no_more() {
    let page = Served::new(&database().await.dsn(), &[]).await;
    let mut streams = Vec::new();
    for _ in 0..100 {
        let mut stream = page.watch().await;
        stream.next("hello", |_| true).await;
        streams.push(stream);
    }
    let full = page.get("/api/v1/events").await;
    assert_eq!((full.status, full.header("retry-after")), (503, Some("30")), "{}", full.body);
    assert_eq!(page.get("/").await.status, 200, "the page itself is not full");
    drop(streams.pop());
    until("the place of one that left", async || {
        let mut stream = page.watch().await;
        let mut line = String::new();
        timeout(SOON, stream.0.read_line(&mut line)).await.expect("in time").expect("text");
        line.contains(" 200 ")
    })
    .await;
    drop(streams);

    // Connections that say nothing are closed after ten seconds; until then one too many waits.
    let begun = std::time::Instant::now();
    let mut silent = Vec::new();
    for _ in 0..256 {
        silent.push(TcpStream::connect(&page.address).await.expect("a connection"));
    }
    let late = page.get("/");
    tokio::pin!(late);
    let waited = timeout(Duration::from_millis(300), &mut late).await.is_err();
    assert!(waited || begun.elapsed() > Duration::from_secs(9), "it was served at once");
    drop(silent);
    assert_eq!(late.await.status, 200);
}

#[tokio::test]
async fn clients_that_do_not_read_do_not_keep_the_page_from_others() {
    let page = Served::new(&database().await.dsn(), &[]).await;
    let answer = page.get("/style.css").await.body.len();
    let mut deaf = Vec::new();
    for _ in 0..256 {
        deaf.push(deaf_to(&page.address, "/style.css", (1 << 20) / answer).await);
    }
    let begun = std::time::Instant::now();
    assert_eq!(page.get("/").await.status, 200);
    assert!(begun.elapsed() < Duration::from_secs(45), "{:?}", begun.elapsed());
}
