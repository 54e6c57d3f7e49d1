//! What happened, and retention.

use serde_json::Value;
use tenure_testkit::{Child, Cluster, Signal, Stop};

use crate::commands::end;
use crate::kit::{MEMBER, SOON, Stage, agent_at, bare, event, event_of, finish, said, until};

#[tokio::test]
async fn events_of_terms_orders_and_schedules_are_one_stream_that_can_be_followed() {
    let stage = Stage::new().await;
    let text = "[[schedule]]\nname = 's'\nrole = 'cron'\ncron = '@every 1s'\nrun = 'true'\n";
    let file = stage.file("tenure.toml", text);
    let mut agent = stage.agent(&file, &[]);
    event(&mut agent, "run_ended").await;
    let mut follow = bare();
    follow.args(["events", "--follow", "--json", "--role", "cron", "--dsn", &stage.database.dsn()]);
    let mut follow = Child::spawn(follow).expect("it runs");
    let mut seen = Vec::new();
    for wanted in ["acquired", "slot_succeeded"] {
        event_of(&mut follow, wanted, |value| value["role"] == "cron").await;
    }
    let order = stage.ends(&["pause", "--role", "cron"]).await;
    assert_eq!(order.status.code(), Some(0), "{}", said(&order));
    event_of(&mut follow, "pause", |value| {
        value["detail"].as_str().is_some_and(|by| by.contains("asked by"))
    })
    .await;
    event_of(&mut follow, "released", |value| value["epoch"] == 1).await;
    for line in follow.lines() {
        let value: Value = serde_json::from_str(line).expect("JSON");
        let key = (value["at"].clone(), value["key"].clone());
        assert!(!seen.contains(&key), "{value} was shown twice");
        seen.push(key);
    }
    agent.signal(Signal::TERM);
    assert_eq!(agent.wait(SOON).await.expect("it ends").code(), Some(0));
}

#[tokio::test]
async fn prune_keeps_what_the_election_stands_on() {
    let stage = Stage::new().await;
    assert_eq!(stage.ends(&["migrate"]).await.status.code(), Some(0));
    stage
        .client
        .batch_execute(
            "insert into tenure.role (name, key, policy, lease_ms, epoch, debtor) values ('r', 7, 'exclusive', 1000, 2500, 'old');
             insert into tenure.term (role, epoch, member, claimed_at, acting_at, ended_at, how)
                 select 'r', n, case when n = 3 then 'old' else 'm' end, now() - interval '1 year', now() - interval '1 year',
                        now() - interval '1 year', 'replaced' from generate_series(1, 2500) n;
             insert into tenure.event (at, role, kind) values (now() - interval '1 year', 'r', 'pause'), (now(), 'r', 'resume')",
        )
        .await
        .expect("history");
    // What each statement deletes is counted.
    stage
        .client
        .batch_execute(
            "create table public.batch (size bigint);
             create function public.count_batch() returns trigger language plpgsql as
                 'begin insert into public.batch select count(*) from gone; return null; end';
             create trigger count_batch after delete on tenure.term referencing old table as gone
                 for each statement execute function public.count_batch()",
        )
        .await
        .expect("a trigger");
    let output = stage.ends(&["prune"]).await;
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert!(said(&output).contains("deleted 2497 terms, 1 event and 0 slots"), "{}", said(&output));
    assert_eq!(stage.count("select max(size) from public.batch").await, 1000);
    let left = "select count(*) from tenure.term where epoch in (3, 2499, 2500)";
    assert_eq!(
        (stage.count(left).await, stage.count("select count(*) from tenure.term").await),
        (3, 3)
    );
}

#[tokio::test]
async fn slots_and_events_are_pruned_by_age_and_by_count_and_open_ones_stay() {
    let stage = Stage::new().await;
    assert_eq!(stage.ends(&["migrate", "--agent"]).await.status.code(), Some(0));
    // Of `old` all but the open slot are a year old; of `many` 30 are beyond the 50 that are kept.
    stage
        .client
        .batch_execute(
            "insert into tenure_agent.slot (schedule, at, state, attempts, epoch, member, claimed_at, ended_at)
                 select 'old', now() - interval '1 year' + n * interval '1 s', 'succeeded', 5, 1, 'm', now() - interval '1 year',
                        now() - interval '1 year' from generate_series(2, 601) n
                 union all select 'old', now() - interval '1 year', 'waiting', 1, 1, 'm', now() - interval '1 year', null
                 union all select 'many', now() - n * interval '1 s', 'failed', 1, 1, 'm', now(), now() from generate_series(1, 80) n;
             insert into tenure_agent.attempt (schedule, at, number, epoch, member)
                 select s.schedule, s.at, n, 1, 'm' from tenure_agent.slot s, generate_series(1, s.attempts) n;
             insert into tenure.event (role, kind) select 'r', 'pause' from generate_series(1, 100100);
             create table public.batch (size bigint);
             create function public.count_batch() returns trigger language plpgsql as
                 'begin insert into public.batch select count(*) from gone; return null; end';
             create trigger count_batch after delete on tenure_agent.attempt referencing old table as gone
                 for each statement execute function public.count_batch()",
        )
        .await
        .expect("history");
    let output = stage.ends(&["prune", "--keep", "50"]).await;
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert!(
        said(&output).contains("deleted 0 terms, 100 events and 630 slots"),
        "{}",
        said(&output)
    );
    assert_eq!(
        stage.count("select count(*) from tenure_agent.slot where state = 'waiting'").await,
        1
    );
    assert_eq!(
        stage.count("select count(*) from tenure_agent.slot where schedule = 'many'").await,
        50
    );
    assert_eq!(stage.count("select count(*) from tenure_agent.attempt").await, 51);
    assert!(stage.count("select max(size) from public.batch").await <= 1000, "attempts count too");
}

#[tokio::test]
async fn a_slot_with_more_attempts_than_a_batch_takes_is_pruned_and_holds_up_no_other() {
    let stage = Stage::new().await;
    assert_eq!(stage.ends(&["migrate", "--agent"]).await.status.code(), Some(0));
    stage
        .client
        .batch_execute(
            "insert into tenure_agent.slot (schedule, at, state, attempts, epoch, member, claimed_at, ended_at)
                 select 's', now() - interval '1 year' + n * interval '1 s', 'failed', a, 1, 'm', now() - interval '1 year',
                        now() - interval '1 year' from (values (1, 1500), (2, 1), (3, 999), (4, 1)) v(n, a);
             insert into tenure_agent.attempt (schedule, at, number, epoch, member)
                 select s.schedule, s.at, n, 1, 'm' from tenure_agent.slot s, generate_series(1, s.attempts) n",
        )
        .await
        .expect("history");
    let output = stage.ends(&["prune"]).await;
    assert!(said(&output).contains("deleted 0 terms, 0 events and 4 slots"), "{}", said(&output));
    assert_eq!(stage.count("select count(*) from tenure_agent.attempt").await, 0);
}

#[tokio::test]
async fn a_role_without_a_debt_costs_a_batch_no_look_through_its_whole_history() {
    let stage = Stage::new().await;
    assert_eq!(stage.ends(&["migrate"]).await.status.code(), Some(0));
    let history = "insert into tenure.role (name, key, policy, lease_ms, epoch) values ('r', 7, 'exclusive', 1000, 20000);
        insert into tenure.term (role, epoch, member, claimed_at, acting_at, ended_at, how)
            select 'r', n, 'm', now(), now(), now(), 'released' from generate_series(1, 20000) n;
        analyze tenure.term, tenure.role";
    stage.client.batch_execute(history).await.expect("history");
    let sql = include_str!("../../../tenure/sql/prune.sql")
        .replace("{age_ms}", "3600000")
        .replace("{terms}", "100")
        .replace("{events}", "100")
        .replace("{batch}", "1000");
    let plan = stage.client.query(&format!("explain (analyze, timing off) {sql}"), &[]).await;
    let plan: Vec<String> = plan.expect("a plan").iter().map(|row| row.get(0)).collect();
    let removed = plan.iter().filter_map(|line| line.trim().strip_prefix("Rows Removed by "));
    let most = removed.filter_map(|line| line.rsplit(' ').next()?.parse::<u32>().ok()).max();
    assert!(most.unwrap_or(0) < 2000, "{}", plan.join("\n"));
    assert_eq!(stage.count("select count(*) from tenure.term").await, 19_000, "one batch");
}

#[tokio::test]
async fn the_leader_of_maintenance_prunes_for_the_group() {
    let stage = Stage::new().await;
    assert_eq!(stage.ends(&["migrate"]).await.status.code(), Some(0));
    let old = "insert into tenure.event (at, role, kind) values (now() - interval '1 year', 'r', 'pause')";
    stage.client.batch_execute(old).await.expect("history");
    let file = stage.file("tenure.toml", "[[role]]\nname = 'r'\n");
    let mut agent = stage.agent(&file, &[]);
    let pruned = event(&mut agent, "pruned").await;
    assert_eq!(pruned["role"], "tenure:maintenance", "{pruned}");
    until("the end of the old event", async || {
        stage.count("select count(*) from tenure.event where kind = 'pause'").await == 0
    })
    .await;
}

#[tokio::test]
async fn an_agent_with_a_members_grants_prunes_all_but_slots_and_says_so_once() {
    let stage = Stage::new().await;
    let user = format!("members_{}", std::process::id());
    assert_eq!(stage.ends(&["migrate", "--agent"]).await.status.code(), Some(0));
    let old = "insert into tenure.event (at, role, kind) values (now() - interval '200 days', 'r', 'pause')";
    stage.client.batch_execute(&format!("create role {user} login; {old}")).await.expect("made");
    let grants = stage.ends(&["migrate", "--print-grants", &user]).await;
    let grants = String::from_utf8(grants.stdout).expect("text");
    stage.client.batch_execute(&grants).await.expect("granted");
    let by_hand =
        stage.ends_at(&stage.database.dsn_for(&user), &["prune", "--older-than", "300d"]).await;
    let text = said(&by_hand);
    assert!(by_hand.status.success() && text.contains("deleted 0 terms"), "{text}");
    assert!(text.contains("slots of schedules are not pruned"), "{text}");
    let file = stage.file("tenure.toml", "[[role]]\nname = 'r'\n");
    let mut agent = agent_at(&stage.database.dsn_for(&user), &file, &[]);
    let pruned = event(&mut agent, "pruned").await;
    assert_eq!(pruned["role"], "tenure:maintenance", "{pruned}");
    let error = event(&mut agent, "error").await;
    let why = error["reason"].as_str().expect("a reason");
    assert!(why.contains("tenure migrate --agent --print-grants"), "{error}");
    end(&mut agent).await;
    let away = format!("drop owned by {user}; drop role {user}");
    stage.client.batch_execute(&away).await.expect("no login role is left");
}

#[tokio::test]
async fn the_health_of_a_plain_member_is_among_the_events() {
    let stage = Stage::new().await;
    let file = stage.file("tenure.toml", "");
    let ill = stage.path("ill");
    let mut command = bare();
    command.args(["run", "--role", "r", "--dsn", &stage.database.dsn(), "--config"]).arg(&file);
    command.args(["--ready", "true", "--health", &format!("test ! -e {ill}")]);
    command.args(["--health-start", "0s", "--health-every", "50ms", "--health-failures", "2"]);
    command.args(["--", "sleep", "600"]);
    let mut plain = Child::spawn(command).expect("it runs");
    stage.at_least("select count(*) from tenure.term where acting_at is not null", 1).await;
    std::fs::write(&ill, "").expect("written");
    stage
        .at_least("select count(*) from tenure.event where kind = 'unhealthy' and epoch = 1", 1)
        .await;
    std::fs::remove_file(&ill).expect("removed");
    let output = stage.ends(&["events", "--role", "r"]).await;
    let said = said(&output);
    // Not ready until its check has passed once.
    for wanted in ["ready", "acquired", "unhealthy"] {
        assert!(said.lines().any(|line| line.contains(&format!(" {wanted} "))), "{wanted}: {said}");
    }
    plain.signal(Signal::TERM);
    plain.wait(SOON).await.expect("it ends");
}

#[tokio::test]
async fn events_of_a_role_that_there_is_not_are_not_found() {
    let stage = Stage::new().await;
    assert_eq!(stage.ends(&["migrate"]).await.status.code(), Some(0));
    let row = "insert into tenure.role (name, key, policy, lease_ms) values ('calm', 7, 'exclusive', 1000)";
    stage.client.batch_execute(row).await.expect("a role without events");
    for (role, code) in [("nope", 7), ("calm", 0)] {
        let output = stage.ends(&["events", "--role", role]).await;
        assert_eq!(output.status.code(), Some(code), "{role}: {}", said(&output));
    }
    let output = stage.ends(&["events", "--role", "nope"]).await;
    assert!(said(&output).contains("nope"), "{}", said(&output));
}

#[tokio::test]
async fn a_loss_is_one_line_and_a_wait_for_an_ordered_run_outlasts_the_database() {
    let cluster = Cluster::start().await.expect("a server");
    let folder = tempfile::tempdir().expect("a folder");
    let text = format!(
        "{MEMBER}[agent.retention]\nenabled = false\n[[schedule]]\nname = 's'\nrole = 'cron'\ncron = '0 0 0 1 1 *'\n\
         retries = 1\nbackoff = '1s'\nrun = 'test $TENURE_ATTEMPT = 2 || exec sleep 600'\n"
    );
    let file = folder.path().join("tenure.toml");
    std::fs::write(&file, text).expect("written");
    let dsn = cluster.dsn();
    let mut agent = agent_at(&dsn, &file, &[]);
    let client = cluster.client("postgres").await.expect("a session");
    until("the schedule", async || {
        client.query_one("select name from tenure_agent.schedule", &[]).await.is_ok()
    })
    .await;
    let mut wait = bare();
    wait.args(["schedule", "run", "s", "--wait", "50s", "--dsn", &dsn]);
    let waited = tokio::spawn(finish(wait));
    event(&mut agent, "run_process").await;
    cluster.stop(Stop::Immediate).await.expect("it stops");
    event(&mut agent, "lost").await;
    assert!(!waited.is_finished(), "the order is taken: it waits on");
    cluster.start_again().await.expect("it starts");
    let waited = waited.await.expect("it ran");
    assert_eq!(waited.status.code(), Some(0), "{}", said(&waited));
    assert!(said(&waited).contains("succeeded"), "{}", said(&waited));
    agent.signal(Signal::TERM);
    assert_eq!(agent.wait(SOON).await.expect("it ends").code(), Some(0));
    let log = agent.lines().join("\n");
    assert!(!log.contains("tenure::metrics"), "{log}");
    let history = finish({
        let mut history = bare();
        history.args(["schedule", "history", "s", "--dsn", &dsn]);
        history
    });
    let shown = said(&history.await);
    let header: Vec<&str> = shown.lines().next().unwrap_or_default().split_whitespace().collect();
    assert_eq!(header, ["SLOT", "STATE", "STARTED", "TOOK", "TRIES", "WHY"], "{shown}");
    let started = shown.split_whitespace().filter(|word| word.ends_with('Z')).count();
    assert!(started >= 2, "the slot, and when it began: {shown}");
}
