//! Roles that are led by an agent whose file has no schedule of them: the leader's file decides.

use std::time::Duration;

use serde_json::Value;
use tenure_testkit::{Child, Signal};

use crate::kit::{SOON, Stage, agent_at, event, event_of, said, until};

/// As leaders with other files left them: a schedule of each of these roles.
async fn scheduled(stage: &Stage, roles: &[&str]) {
    let made = stage.ends(&["migrate", "--agent"]).await;
    assert_eq!(made.status.code(), Some(0), "{}", said(&made));
    for role in roles {
        let row = format!(
            "insert into tenure_agent.schedule (name, role, timing, definition, digest, epoch, watermark) \
             values ('s{role}', '{role}', 'UTC 0 0 1 1 *', '{{}}', '', 0, now())"
        );
        stage.client.batch_execute(&row).await.expect("a schedule");
    }
}

/// What the agent told of rights that it lacks; a busy machine may bring other errors.
fn denied(agent: &mut Child) -> Vec<Value> {
    let is_denied = |error: &Value| {
        error["reason"].as_str().is_some_and(|why| why.contains("permission denied"))
    };
    told(agent, "error").into_iter().filter(is_denied).collect()
}

/// A login role with what a member needs, and no more.
async fn login(stage: &Stage, user: &str) {
    stage.client.batch_execute(&format!("create role {user} login")).await.expect("made");
    let grants = stage.ends(&["migrate", "--print-grants", user]).await;
    let grants = String::from_utf8(grants.stdout).expect("text");
    stage.client.batch_execute(&grants).await.expect("granted");
}

async fn away(stage: &Stage, user: &str) {
    let away = format!("drop owned by {user}; drop role {user}");
    stage.client.batch_execute(&away).await.expect("no login role is left");
}

fn told(agent: &mut Child, event: &str) -> Vec<Value> {
    let lines = agent.lines().iter().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter(|line| line["event"] == event).collect()
}

const COMMAND: &str =
    "[agent.retention]\nenabled = false\n[[command]]\nrole = 'r'\nrun = 'exec sleep 600'\n";

#[tokio::test]
async fn an_agent_without_schedules_needs_no_right_to_them_and_ends_when_asked() {
    let stage = Stage::new().await;
    let user = format!("bare_{}", std::process::id());
    scheduled(&stage, &["r"]).await;
    login(&stage, &user).await;
    let file = stage.file("tenure.toml", COMMAND);
    let mut agent = agent_at(&stage.database.dsn_for(&user), &file, &[]);
    event(&mut agent, "child_started").await;
    agent.signal(Signal::TERM);
    assert_eq!(agent.wait(SOON).await.expect("it ends").code(), Some(0));
    assert_eq!(denied(&mut agent), [Value::Null; 0]);
    away(&stage, &user).await;
}

#[tokio::test]
async fn schedules_that_cannot_be_removed_are_told_once_and_hold_up_no_shutdown() {
    let stage = Stage::new().await;
    let user = format!("barely_{}", std::process::id());
    scheduled(&stage, &["r"]).await;
    login(&stage, &user).await;
    // It may look, and not write.
    let looks = format!(
        "grant usage on schema tenure_agent to {user}; grant select on tenure_agent.schedule to {user}"
    );
    stage.client.batch_execute(&looks).await.expect("granted");
    let file = stage.file("tenure.toml", COMMAND);
    let mut agent = agent_at(&stage.database.dsn_for(&user), &file, &[]);
    until("the error", async || !denied(&mut agent).is_empty()).await;
    // Long enough for two more attempts. Time is the subject.
    tokio::time::sleep(Duration::from_secs(5)).await;
    agent.signal(Signal::TERM);
    assert_eq!(agent.wait(SOON).await.expect("it ends").code(), Some(0));
    let errors = denied(&mut agent);
    assert_eq!(errors.len(), 1, "{errors:?}");
    away(&stage, &user).await;
}

#[tokio::test]
async fn a_role_with_a_newer_term_does_not_keep_the_schedules_of_others_from_being_removed() {
    let stage = Stage::new().await;
    scheduled(&stage, &["a", "b"]).await;
    // To the first of them another term has come.
    let stale = "create function public.stale() returns trigger language plpgsql as \
            'begin raise exception ''stale'' using errcode = ''TN001''; end'; \
        create trigger stale before update on tenure_agent.schedule for each row when (old.role = 'a') \
            execute function public.stale()";
    stage.client.batch_execute(stale).await.expect("a trigger");
    let file = stage.file("tenure.toml", "[[role]]\nname = 'a'\n[[role]]\nname = 'b'\n");
    let mut agent = stage.agent(&file, &[]);
    event_of(&mut agent, "schedules_removed", |event| event["role"] == "b").await;
    agent.signal(Signal::TERM);
    assert_eq!(agent.wait(SOON).await.expect("it ends").code(), Some(0));
}

#[tokio::test]
async fn a_schedule_that_the_file_gets_while_it_is_asked_for_is_not_removed() {
    let stage = Stage::new().await;
    scheduled(&stage, &["r"]).await;
    // What asks for schedules waits for this.
    let hold = "begin; lock table tenure_agent.schedule in access exclusive mode";
    stage.client.batch_execute(hold).await.expect("locked");
    let role = "[[role]]\nname = 'r'\n";
    let file = stage.file("tenure.toml", role);
    let mut agent = stage.agent(&file, &[]);
    let waits = "select count(*) from pg_locks where relation = 'tenure_agent.schedule'::regclass and not granted";
    stage.at_least(waits, 1).await;
    let with =
        format!("{role}[[schedule]]\nname = 'sr'\nrole = 'r'\ncron = '@every 1s'\nrun = 'true'\n");
    stage.file("tenure.toml", &with);
    agent.signal(Signal::HUP);
    event(&mut agent, "reloaded").await;
    stage.client.batch_execute("commit").await.expect("let go");
    let done = "select count(*) from tenure_agent.slot where state = 'succeeded'";
    stage.at_least(done, 1).await;
    assert_eq!(told(&mut agent, "schedules_removed"), [Value::Null; 0]);
    until("the schedule", async || {
        stage.count("select count(*) from tenure_agent.schedule where removed_at is null").await
            == 1
    })
    .await;
    agent.signal(Signal::TERM);
    assert_eq!(agent.wait(SOON).await.expect("it ends").code(), Some(0));
}

#[tokio::test]
async fn a_run_whose_leader_died_is_a_dead_letter_although_the_next_leader_has_no_such_schedule() {
    let stage = Stage::new().await;
    let with = "[[role]]\nname = 'r'\n\
        [[schedule]]\nname = 's'\nrole = 'r'\ncron = '@every 1s'\nrun = 'exec sleep 600'\noverlap = 'queue'\n";
    let file = stage.file("tenure.toml", with);
    let mut agent = stage.agent(&file, &[]);
    event(&mut agent, "run_process").await;
    let queued = "select count(*) from tenure_agent.slot where state = 'queued'";
    stage.at_least(queued, 1).await;
    agent.kill().await.expect("killed");
    let file = stage.file("tenure.toml", "[[role]]\nname = 'r'\n");
    let mut agent = stage.agent(&file, &[]);
    event(&mut agent, "schedules_removed").await;
    let dead = stage.ends(&["schedule", "dead"]).await;
    assert!(said(&dead).contains("interrupted"), "{}", said(&dead));
    let open =
        "select count(*) from tenure_agent.slot where state in ('queued', 'running', 'waiting')";
    assert_eq!(stage.count(open).await, 0);
    // A busy machine may have cost the first agent a lease, and with it a run, before it was killed.
    let dead = "select count(*) from tenure_agent.slot where state = 'interrupted'";
    assert!(stage.count(dead).await >= 1);
    let not_started = format!("{dead} and attempts = 0");
    assert_eq!(stage.count(&not_started).await, 0, "what was not started is missed");
    agent.signal(Signal::TERM);
    assert_eq!(agent.wait(SOON).await.expect("it ends").code(), Some(0));
}

#[tokio::test]
async fn check_tells_what_a_login_role_lacks_for_schedules() {
    let stage = Stage::new().await;
    let user = format!("lacks_{}", std::process::id());
    assert_eq!(stage.ends(&["migrate"]).await.status.code(), Some(0));
    login(&stage, &user).await;
    let dsn = stage.database.dsn_for(&user);
    let text = "[[role]]\nname = 'r'\n[[schedule]]\nname = 's'\nrole = 'r'\ncron = '@every 1s'\nrun = 'true'\n";
    let file = stage.file("tenure.toml", text);
    let file = file.to_str().expect("text");
    let check = async |dsn: &str, more: &[&str]| {
        let output = stage.ends_at(dsn, &[&["check"], more].concat()).await;
        let line = said(&output);
        let line = line.lines().find(|line| line.contains(" schedules ")).unwrap_or_default();
        (output.status.code().expect("a code"), line.to_owned())
    };
    let with_file = ["--config", file];
    assert_eq!(check(&dsn, &[]).await, (0, String::new()), "a group without schedules");
    let (code, line) = check(&dsn, &with_file).await;
    assert_eq!(code, 3, "{line}");
    assert!(line.contains("an owner runs `tenure migrate --agent`"), "{line}");
    let (code, line) = check(&stage.database.dsn(), &with_file).await;
    assert!(code == 0 && line.contains("the first agent makes it"), "{line}");

    assert_eq!(stage.ends(&["migrate", "--agent"]).await.status.code(), Some(0));
    let (code, line) = check(&dsn, &[]).await;
    assert_eq!(code, 0, "{line}");
    assert!(line.starts_with("warning") && line.contains("lacks usage on schema"), "{line}");
    let (code, line) = check(&dsn, &with_file).await;
    assert_eq!(code, 3, "{line}");
    assert!(line.contains(&format!("--print-grants {user}")), "{line}");
    let usage = format!("grant usage on schema tenure_agent to {user}");
    stage.client.batch_execute(&usage).await.expect("granted");
    let (code, line) = check(&dsn, &with_file).await;
    assert!(code == 3 && line.contains("tenure_agent.alert") && line.contains(" more"), "{line}");

    let grants = stage.ends(&["migrate", "--agent", "--print-grants", &user]).await;
    let grants = String::from_utf8(grants.stdout).expect("text");
    stage.client.batch_execute(&grants).await.expect("granted");
    let (code, line) = check(&dsn, &with_file).await;
    assert!(code == 0 && line.starts_with("good"), "{line}");
    let question = "revoke execute on function has_schema_privilege(oid, text) from public";
    stage.client.batch_execute(question).await.expect("revoked");
    let (code, line) = check(&dsn, &with_file).await;
    assert!(code == 0 && line.starts_with("warning") && line.contains("not known"), "{line}");
    away(&stage, &user).await;
}
