//! Commands that live as long as a term, probes, and reload.

use serde_json::Value;
use tenure_testkit::{Child, Signal};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::kit::{SOON, Stage, agent_at, event, event_of, said, until};

/// Status and body of a GET.
pub(crate) async fn get(address: &str, path: &str) -> (u16, String) {
    let mut stream = tokio::net::TcpStream::connect(address).await.expect("it listens");
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("text");
    let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
    (status, answer.split_once("\r\n\r\n").map_or(String::new(), |(_, body)| body.to_owned()))
}

fn address(event: &Value) -> String {
    event["reason"].as_str().expect("an address").trim_start_matches("http://").to_owned()
}

pub(crate) async fn end(agent: &mut Child) {
    agent.signal(Signal::TERM);
    assert_eq!(agent.wait(SOON).await.expect("it ends").code(), Some(0));
}

#[tokio::test]
async fn one_of_two_agents_runs_a_command_and_the_other_takes_over() {
    let stage = Stage::new().await;
    let run = "[[command]]\nrole = 'worker'\nrun = 'echo up $TENURE_ROLE $TENURE_EPOCH; exec sleep 600'\n";
    let file = stage.file("tenure.toml", run);
    let mut one = stage.agent(&file, &["--http", "0"]);
    let probes = address(&event(&mut one, "http").await);
    let first = event(&mut one, "child_started").await;
    // In whatever order the two lines came.
    until("the child's own output", async || one.lines().iter().any(|line| line == "up worker 1"))
        .await;
    let mut two = stage.agent(&file, &["--http", "0"]);
    let others = address(&event(&mut two, "http").await);
    stage.at_least("select count(*) from tenure.candidate where role = 'worker'", 2).await;

    assert_eq!(get(&probes, "/leader/worker").await.0, 200);
    assert_eq!(get(&others, "/leader/worker").await.0, 503);
    assert_eq!(get(&others, "/leader/other").await.0, 404);
    assert_eq!(get(&others, "/readyz").await.0, 200);
    assert_eq!(get(&others, "/healthz").await.0, 200);
    let (status, text) = get(&probes, "/metrics").await;
    assert!(status == 200 && text.contains("tenure_is_leader{role=\"worker\"} 1"), "{text}");

    let order = stage.ends(&["step-down", "--role", "worker"]).await;
    assert_eq!(order.status.code(), Some(0), "{order:?}");
    let gone = event(&mut one, "child_gone").await;
    assert_eq!(gone["epoch"], first["epoch"]);
    event(&mut two, "child_started").await;
    until("the probe", async || get(&others, "/leader/worker").await.0 == 200).await;
    assert_eq!(get(&probes, "/leader/worker").await.0, 503);
    end(&mut two).await;
    end(&mut one).await;
}

#[tokio::test]
async fn a_command_that_exits_is_started_again_and_a_killed_agent_leaves_no_child() {
    let stage = Stage::new().await;
    let run = "[[command]]\nrole = 'worker'\nrun = ['sleep', '0.05']\n\
        [[command]]\nrole = 'other'\nrun = ['sleep', '601']\n";
    let file = stage.file("tenure.toml", run);
    let mut one = stage.agent(&file, &[]);
    let started = event_of(&mut one, "child_started", |event| event["role"] == "other").await;
    for _ in 0..2 {
        let gone = event_of(&mut one, "child_gone", |event| event["role"] == "worker").await;
        assert_eq!(gone["code"], 0, "{gone}");
    }
    let child = started["pid"].as_i64().expect("a pid");
    one.kill().await.expect("killed");
    let alive = format!("/proc/{child}/cmdline");
    until("the child's end", async || {
        std::fs::read(&alive).map_or(true, |line| !line.starts_with(b"sleep\x00601"))
    })
    .await;
}

#[tokio::test]
async fn sighup_takes_commands_and_schedules_over_and_says_what_it_cannot() {
    let stage = Stage::new().await;
    let command =
        |text: &str| format!("[[command]]\nrole = 'worker'\nrun = 'echo {text}; exec sleep 600'\n");
    let schedule = "[[schedule]]\nname = 's'\nrole = 'worker'\ncron = '@every 1s'\nrun = 'true'\n";
    let file = stage.file("tenure.toml", &format!("{}{schedule}", command("one")));
    let mut agent = stage.agent(&file, &[]);
    agent.wait_line(|line| line == "one", SOON).await.expect("the first command");
    event(&mut agent, "run_ended").await;
    // A wrong file changes nothing.
    stage.file("tenure.toml", "[[command]]\nrole = 7\n");
    agent.signal(Signal::HUP);
    let error = event_of(&mut agent, "error", |event| {
        event["reason"].as_str().is_some_and(|why| why.starts_with("not reloaded"))
    })
    .await;
    assert!(error["reason"].as_str().expect("text").contains("line"), "{error}");
    stage.file(
        "tenure.toml",
        &format!(
            "{}{}[[command]]\nrole = 'new'\nrun = 'true'\n",
            command("two"),
            schedule.replace("'s'", "'t'")
        ),
    );
    agent.signal(Signal::HUP);
    event(&mut agent, "reloaded").await;
    let warning = event(&mut agent, "warning").await;
    assert!(warning["reason"].as_str().expect("text").contains("the set of roles"), "{warning}");
    assert!(!warning["reason"].as_str().expect("text").contains("[member]"), "{warning}");
    agent.wait_line(|line| line == "two", SOON).await.expect("the second command");
    event_of(&mut agent, "run_ended", |event| event["schedule"] == "t").await;
    // What is read at a start only is named where it changed.
    let text = std::fs::read_to_string(&file).expect("the file");
    std::fs::write(
        &file,
        format!("{}[[role]]\nname = 'worker'\npriority = 3\n", text.replace("800ms", "700ms")),
    )
    .expect("written");
    agent.signal(Signal::HUP);
    let named = |event: &Value| {
        let why = event["reason"].as_str().unwrap_or_default();
        why.contains("[member]") && why.contains("[[role]]") && !why.contains("[database]")
    };
    event_of(&mut agent, "warning", named).await;
    stage.at_least("select count(*) from tenure_agent.schedule where name = 's' and removed_at is not null", 1).await;
    end(&mut agent).await;
}

#[tokio::test]
async fn sighup_takes_over_the_first_schedule_and_the_first_command_of_a_role() {
    let stage = Stage::new().await;
    let role = "[[role]]\nname = 'worker'\n";
    let file = stage.file("tenure.toml", role);
    let mut agent = stage.agent(&file, &[]);
    event_of(&mut agent, "acquired", |event| event["role"] == "worker").await;
    stage.file(
        "tenure.toml",
        &format!(
            "{role}[[schedule]]\nname = 's'\nrole = 'worker'\ncron = '@every 1s'\nrun = 'true'\n\
             drain_limit = '30m'\n[[command]]\nrole = 'worker'\nrun = 'echo here; exec sleep 600'\n"
        ),
    );
    agent.signal(Signal::HUP);
    event(&mut agent, "reloaded").await;
    // Its role was given less time at the start.
    let warning = event(&mut agent, "warning").await;
    assert!(warning["reason"].as_str().expect("text").contains("drain_limit"), "{warning}");
    // In whatever order the lines came.
    until("the command", async || agent.lines().iter().any(|line| line == "here")).await;
    event_of(&mut agent, "run_ended", |event| event["schedule"] == "s").await;
    end(&mut agent).await;
}

#[tokio::test]
async fn every_function_of_the_agent_finds_its_names_whatever_the_callers_search_path_is() {
    let stage = Stage::new().await;
    let run = "[[schedule]]\nname = 's'\nrole = 'cron'\ncron = '@daily'\nrun = 'true'\n";
    let file = stage.file("a.toml", run);
    let mut agent = stage.agent(&file, &[]);
    stage
        .at_least(
            "select count(*) from pg_proc where pronamespace = 'tenure_agent'::regnamespace",
            5,
        )
        .await;
    let open = "select count(*) from pg_proc where pronamespace = 'tenure_agent'::regnamespace \
        and prosqlbody is null \
        and not 'search_path=pg_catalog, pg_temp' = any (coalesce(proconfig, '{}'))";
    assert_eq!(stage.count(open).await, 0);
    agent.signal(Signal::TERM);
    agent.wait(SOON).await.expect("it ends");
}

#[tokio::test]
async fn an_agent_that_hands_over_is_alive_until_its_run_has_ended() {
    let stage = Stage::new().await;
    let (up, go) = (stage.path("up"), stage.path("go"));
    let file = stage.file(
        "tenure.toml",
        &format!(
            "[[schedule]]\nname = 's'\nrole = 'cron'\ncron = '@every 1s'\n\
             run = 'touch {up}; until test -e {go}; do sleep 0.05; done'\n"
        ),
    );
    let mut agent = stage.agent(&file, &["--http", "0"]);
    let probes = address(&event(&mut agent, "http").await);
    until("the run", async || std::path::Path::new(&up).exists()).await;
    assert_eq!(get(&probes, "/leader/cron").await.0, 200);
    agent.signal(Signal::TERM);
    until("the hand-over", async || get(&probes, "/leader/cron").await.0 == 503).await;
    until("the member's goodbye", async || get(&probes, "/readyz").await.0 == 503).await;
    assert_eq!(get(&probes, "/healthz").await.0, 200, "a restart would cut the run short");
    std::fs::write(&go, "").expect("written");
    assert_eq!(agent.wait(SOON).await.expect("it ends").code(), Some(0));
    let done = "select count(*) from tenure_agent.slot where state = 'succeeded'";
    assert_eq!(stage.count(done).await, 1);
}

#[tokio::test]
async fn a_login_role_with_the_printed_grants_fires_schedules_and_prunes() {
    let stage = Stage::new().await;
    let user = format!("agents_{}", std::process::id());
    let made = stage.ends(&["migrate", "--agent"]).await;
    assert_eq!(made.status.code(), Some(0), "{}", said(&made));
    let old = "insert into tenure.event (at, role, kind) values (now() - interval '1 year', 'r', 'pause')";
    stage.client.batch_execute(&format!("create role {user} login; {old}")).await.expect("made");
    let grants = stage.ends(&["migrate", "--agent", "--print-grants", &user]).await;
    let grants = String::from_utf8(grants.stdout).expect("text");
    stage.client.batch_execute(&grants).await.expect("granted");
    let file = stage.file(
        "tenure.toml",
        "[[schedule]]\nname = 's'\nrole = 'cron'\ncron = '@every 1s'\nrun = 'true'\n",
    );
    let mut agent = agent_at(&stage.database.dsn_for(&user), &file, &[]);
    let done = "select count(*) from tenure_agent.slot where state = 'succeeded'";
    stage.at_least(done, 1).await;
    until("the end of the old event", async || {
        stage.count("select count(*) from tenure.event where kind = 'pause'").await == 0
    })
    .await;
    end(&mut agent).await;
    let away = format!("drop owned by {user}; drop role {user}");
    stage.client.batch_execute(&away).await.expect("no login role is left");
}
