//! An agent serves the page, if its file says so.

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::kit::{SOON, Stage, event, said, until};

const COMMAND: &str = "[[command]]\nrole = 'export'\nrun = 'sleep 100'\n";

async fn snapshot(address: &str) -> Option<Value> {
    let (status, body) = ask(address, "GET", "/api/v1/snapshot", "", "").await?;
    (status == 200).then_some(body)
}

/// A request to the page; its status and what it says.
async fn ask(
    address: &str,
    method: &str,
    path: &str,
    token: &str,
    body: &str,
) -> Option<(u16, Value)> {
    let mut stream = TcpStream::connect(address).await.ok()?;
    let token =
        if token.is_empty() { String::new() } else { format!("Authorization: Bearer {token}\r\n") };
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\n{token}Content-Type: application/json\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    let talk = async {
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.ok()?;
        Some(answer)
    };
    let answer = tokio::time::timeout(SOON, talk).await.ok()??;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some((head.split(' ').nth(1)?.parse().ok()?, serde_json::from_str(body).ok()?))
}

/// An agent with a page; its address.
async fn with_page(stage: &Stage, text: &str) -> (tenure_testkit::Child, String) {
    let file = stage.file("tenure.toml", text);
    let mut agent = stage.agent(&file, &[]);
    let page = event(&mut agent, "page").await;
    let url = page["reason"].as_str().expect("an address");
    let address = url.trim_start_matches("http://").trim_end_matches('/').to_owned();
    assert!(address.starts_with("127.0.0.1:"), "{url}");
    (agent, address)
}

#[tokio::test]
async fn an_agent_serves_the_page_of_its_file() {
    let stage = Stage::new().await;
    let (mut agent, address) = with_page(&stage, &format!("[page]\nlisten = '0'\n{COMMAND}")).await;
    until("its role on its page", async || {
        snapshot(&address).await.is_some_and(|picture| {
            let rows = picture["roles"].as_array().cloned().unwrap_or_default();
            rows.iter().any(|row| row[0] == "export" && row[1] == "led")
        })
    })
    .await;
    // A statement that is slow on a busy machine may be told; that there is no schema yet may not.
    let log = agent.lines();
    let troubled =
        |line: &&String| line.contains("the page sees nothing") && line.contains("does not exist");
    assert_eq!(log.iter().find(troubled), None, "a fresh database is no trouble");
}

#[tokio::test]
async fn a_page_that_must_not_be_served_stops_the_agent_before_it_campaigns() {
    let stage = Stage::new().await;
    let file = stage.file("tenure.toml", &format!("[page]\nlisten = '0.0.0.0:0'\n{COMMAND}"));
    let file = file.to_str().expect("text");
    let output = stage.ends(&["agent", "--config", file]).await;
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("beyond loopback"), "{}", said(&output));
}

#[tokio::test]
async fn an_order_that_is_being_given_when_the_agent_ends_has_its_answer() {
    let mut stage = Stage::new().await;
    let tokens = stage.path("tokens");
    let digest = hex::encode(Sha256::digest(b"do-something"));
    std::fs::write(&tokens, format!("deploy-bot order {digest}\n")).expect("written");
    let text = format!("[page]\nlisten = '0'\ntokens = '{tokens}'\n{COMMAND}");
    let (mut agent, address) = with_page(&stage, &text).await;
    let leads = "select count(*) from tenure.role where name = 'export' and debtor = holder";
    stage.at_least(leads, 1).await;
    // Another transaction holds the row that the order is about.
    let spare = "insert into tenure.role (name, key, policy, lease_ms) values ('spare', 42, 'exclusive', 3000)";
    stage.client.batch_execute(spare).await.expect("a role");
    let holder = stage.client.transaction().await.expect("a transaction");
    holder
        .execute("select from tenure.role where name = 'spare' for update", &[])
        .await
        .expect("held");
    let order = json!({"order": "pause", "role": "spare"}).to_string();
    let given = tokio::spawn(async move {
        ask(&address, "POST", "/api/v1/orders", "do-something", &order).await
    });
    let count =
        async |sql: &str| -> i64 { holder.query_one(sql, &[]).await.expect("a count").get(0) };
    let waits = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()";
    until("the order waits", async || {
        // A transaction sees the sessions as they were when it looked first.
        holder.execute("select pg_stat_clear_snapshot()", &[]).await.expect("cleared");
        count(waits).await == 1
    })
    .await;
    agent.signal(tenure_testkit::Signal::TERM);
    let gone = "select count(*) from tenure.role where name = 'export' and holder is null";
    until("the role is given back", async || count(gone).await == 1).await;
    holder.commit().await.expect("let go");
    let (status, said) = given.await.expect("whole").expect("an answer");
    assert_eq!(status, 200, "{said}");
    assert_eq!(agent.wait(SOON).await.expect("it ends").code(), Some(0));
}

#[tokio::test]
async fn orders_from_the_page_run_a_schedule_now_and_a_dead_letter_again() {
    let stage = Stage::new().await;
    let digest = |token: &str| hex::encode(Sha256::digest(token.as_bytes()));
    let (tokens, log, good) = (stage.path("tokens"), stage.path("log"), stage.path("good"));
    let lines =
        format!("grafana read {}\ndeploy-bot order {}\n", digest("see"), digest("do-something"));
    std::fs::write(&tokens, lines).expect("written");
    // Only by order: the slots of a year's first second.
    let text = format!(
        "[page]\nlisten = '0'\ntokens = '{tokens}'\n[[schedule]]\nname = 's'\nrole = 'cron'\n\
         cron = '0 0 0 1 1 *'\nrun = 'echo $TENURE_SLOT $TENURE_ATTEMPT >> {log}; test -e {good}'\n"
    );
    let (_agent, address) = with_page(&stage, &text).await;
    stage.at_least("select count(*) from tenure_agent.schedule", 1).await;
    let order = async |token: &str, order: Value| {
        let asked = ask(&address, "POST", "/api/v1/orders", token, &order.to_string()).await;
        asked.expect("an answer")
    };
    let runs = async |state: &str| {
        let shown = snapshot(&address).await.unwrap_or_default();
        let runs = shown["schedules"]["list"][0]["runs"].as_array().cloned().unwrap_or_default();
        runs.into_iter().filter(|run| run[1] == state).collect::<Vec<_>>()
    };
    let now = json!({"order": "run", "schedule": "s"});
    assert_eq!(order("", now.clone()).await.0, 401);
    assert_eq!(order("see", now.clone()).await.0, 403);
    let history = async || ask(&address, "GET", "/api/v1/runs/s", "", "").await.expect("an answer");
    assert_eq!(history().await.0, 404, "no run yet");
    let (status, done) = order("do-something", now.clone()).await;
    assert_eq!((status, &done["by"], &done["role"]), (200, &"deploy-bot".into(), &"cron".into()));
    // It runs, once, on the role's leader; and the page shows by whose order.
    until("the failed run on the page", async || runs("failed").await.len() == 1).await;
    assert_eq!(history().await.0, 200, "an answer is never older than the picture");
    assert_eq!(runs("failed").await[0][3], "deploy-bot, by the page");
    assert_eq!(stage.starts("log").len(), 1, "{:?}", stage.starts("log"));

    std::fs::write(&good, "").expect("written");
    let shown = snapshot(&address).await.expect("a picture");
    let dead = &shown["schedules"]["dead"][0];
    assert_eq!((&dead["schedule"], &dead["attempts"]), (&"s".into(), &1.into()), "{dead}");
    let again = json!({"order": "run_again", "schedule": "s", "slot": dead["at"]});
    let (status, done) = order("do-something", again.clone()).await;
    assert_eq!((status, &done["by"]), (200, &"deploy-bot".into()), "{done}");
    until("the run on the page", async || runs("succeeded").await.len() == 1).await;
    let starts = stage.starts("log");
    let slot = starts[0].strip_suffix(" 1").expect("the first attempt");
    assert_eq!(starts, [format!("{slot} 1"), format!("{slot} 2")], "the same slot, once more");
    let shown = snapshot(&address).await.expect("a picture");
    assert_eq!(shown["schedules"]["dead_count"], 0, "{shown}");
    let said = shown["events"].to_string();
    assert_eq!(said.matches("asked by deploy-bot, by the page, schedule s").count(), 2, "{said}");
    let (_, told) = history().await;
    assert_eq!(told[0]["ordered_by"], "deploy-bot, by the page", "{told}");
    assert_eq!(order("do-something", again).await.0, 404, "it is no dead letter any more");

    // While the role is paused orders wait, ten of them at most; then each is carried out, once.
    assert_eq!(order("do-something", json!({"order": "pause", "role": "cron"})).await.0, 200);
    stage
        .at_least("select count(*) from tenure.role where name = 'cron' and holder is null", 1)
        .await;
    for _ in 0..10 {
        assert_eq!(order("do-something", now.clone()).await.0, 200);
    }
    assert_eq!(order("do-something", now).await.0, 409);
    assert_eq!(order("do-something", json!({"order": "resume", "role": "cron"})).await.0, 200);
    until("all that was ordered", async || runs("succeeded").await.len() == 11).await;
    let mut starts = stage.starts("log");
    starts.sort();
    starts.dedup();
    assert_eq!((starts.len(), stage.starts("log").len()), (12, 12));
}
