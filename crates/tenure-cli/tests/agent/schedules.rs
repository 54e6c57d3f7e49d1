//! Schedules across failovers: at most once, missed and interrupted as configured, orders and dead letters.

use serde_json::Value;
use tenure_testkit::{Child, Signal};

use crate::kit::{SOON, Stage, agent_command, event, event_of, finish, said, until};

/// A schedule that writes each of its starts to a file, and then does `more`.
fn schedule(stage: &Stage, timing: &str, more: &str, options: &str) -> String {
    let log = stage.path("log");
    format!(
        "[[schedule]]\nname = 's'\nrole = 'cron'\ncron = '{timing}'\n\
         run = 'echo $TENURE_SLOT $TENURE_ATTEMPT $TENURE_EPOCH >> {log}; {more}'\n{options}"
    )
}

const DONE: &str = "select count(*) from tenure_agent.slot where state = 'succeeded'";

#[track_caller]
fn no_attempt_twice(stage: &Stage) {
    let starts = stage.starts("log");
    let mut seen = std::collections::BTreeSet::new();
    for line in &starts {
        let attempt = line.rsplit_once(' ').expect("slot, attempt, epoch").0;
        assert!(seen.insert(attempt.to_owned()), "{attempt} started twice: {starts:?}");
    }
}

async fn leader<'a>(stage: &Stage, agents: &'a mut [Child]) -> &'a mut Child {
    let sql = "select m.pid from tenure.role r join tenure.member m on m.identity = r.holder \
               where r.name = 'cron' and r.debtor = r.holder";
    let mut pid = 0;
    until("a leader", async || {
        pid = stage
            .client
            .query_opt(sql, &[])
            .await
            .ok()
            .flatten()
            .map_or(0, |row| row.get::<_, i32>(0));
        pid != 0
    })
    .await;
    agents.iter_mut().find(|agent| i64::from(agent.pid()) == i64::from(pid)).expect("one of ours")
}

/// Has the leader step down. A leader that a busy machine kept silent for longer than its lease hears no order: then
/// the next one is asked.
async fn step_down(stage: &Stage) {
    until("a leader that steps down", async || {
        let order = stage.ends(&["step-down", "--role", "cron"]).await;
        assert!(matches!(order.status.code(), Some(0 | 6)), "{}", said(&order));
        order.status.code() == Some(0)
    })
    .await;
}

#[tokio::test]
async fn dkron_541_a_leader_that_is_killed_in_a_run_does_not_make_the_slot_run_twice() {
    let stage = Stage::new().await;
    let slow = format!("while test -e {}; do sleep 0.05; done", stage.path("slow"));
    let file = stage.file("tenure.toml", &schedule(&stage, "@every 1s", &slow, ""));
    let mut agents = [stage.agent(&file, &[]), stage.agent(&file, &[])];
    stage.at_least(DONE, 1).await;
    let one = leader(&stage, &mut agents).await;
    // The run takes its time: the kill hits it.
    std::fs::write(stage.path("slow"), "").expect("written");
    let begun = stage.starts("log").len();
    until("a run", async || stage.starts("log").len() > begun).await;
    one.kill().await.expect("killed");
    std::fs::remove_file(stage.path("slow")).expect("removed");
    let after = stage.count(DONE).await;
    stage.at_least(DONE, after + 2).await;
    no_attempt_twice(&stage);
    // What was cut off is reported, and only that.
    let started = stage.starts("log").len() as i64;
    let ended = "select count(*) from tenure_agent.attempt where ended_at is not null";
    stage.at_least(ended, started).await;
    let output = stage.ends(&["schedule", "dead", "--json"]).await;
    let dead: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let dead = dead.as_array().expect("a list");
    assert_eq!(dead.len(), 1, "the run that the leader was killed in: {dead:?}");
    assert_eq!(dead[0]["state"], "interrupted", "{dead:?}");
}

#[tokio::test]
async fn dkron_998_schedules_go_on_after_every_change_of_leader() {
    let stage = Stage::new().await;
    let text = schedule(&stage, "@every 1s", "true", "overlap = 'queue'\n");
    let file = stage.file("tenure.toml", &text);
    let mut agents = [stage.agent(&file, &[]), stage.agent(&file, &[])];
    stage.at_least("select count(*) from tenure.candidate where role = 'cron'", 2).await;
    stage.at_least(DONE, 1).await;
    for _ in 0..3 {
        leader(&stage, &mut agents).await;
        let done = stage.count(DONE).await;
        stage.at_least(DONE, done + 1).await;
        step_down(&stage).await;
        let done = stage.count(DONE).await;
        stage.at_least(DONE, done + 1).await;
    }
    // The first end after a step-down may be the old leader's.
    stage.at_least("select count(distinct epoch) from tenure_agent.attempt", 4).await;
    no_attempt_twice(&stage);
    // No slot was lost to a change of leader.
    let lost = "select count(*) from tenure_agent.slot where state not in ('succeeded', 'running', 'queued')";
    assert_eq!(stage.count(lost).await, 0);
    for agent in &mut agents {
        agent.signal(Signal::TERM);
        assert_eq!(agent.wait(SOON).await.expect("it ends").code(), Some(0));
    }
}

#[tokio::test]
async fn dkron_1210_a_slot_that_is_due_during_the_election_fires_after_it() {
    let stage = Stage::new().await;
    let file =
        stage.file("tenure.toml", &schedule(&stage, "@every 1s", "true", "overlap = 'queue'\n"));
    let mut agents = [stage.agent(&file, &[]), stage.agent(&file, &[])];
    stage.at_least(DONE, 1).await;
    stage.at_least("select count(*) from tenure.candidate where role = 'cron'", 2).await;
    leader(&stage, &mut agents).await.kill().await.expect("killed");
    let killed = stage.count("select extract(epoch from clock_timestamp())::bigint").await;
    // The lease is 2.5 s: slots were due while no member led.
    stage
        .at_least(
            &format!(
                "select count(*) from tenure_agent.slot where at > to_timestamp({killed} + 4)"
            ),
            1,
        )
        .await;
    let gap = format!(
        "select count(*) from generate_series(0, 3) n where not exists (\
             select from tenure_agent.slot s where s.at = to_timestamp({killed} + n))"
    );
    assert_eq!(stage.count(&gap).await, 0, "every slot of the election is there");
    no_attempt_twice(&stage);
}

#[tokio::test]
async fn members_whose_clocks_are_off_by_minutes_fire_by_the_databases_clock() {
    let stage = Stage::new().await;
    let text = schedule(&stage, "@every 1s", "true", "overlap = 'queue'\n");
    let file = stage.file("tenure.toml", &text);
    let mut library = tokio::process::Command::new("faketime");
    library.args(["-f", "+0", "printenv", "LD_PRELOAD"]);
    let library = finish(library).await.stdout;
    let library = String::from_utf8(library).expect("text");
    // Their wall clocks alone: what measures leases is no wall clock.
    let off = |by: &str| {
        let mut command = agent_command(&stage.database.dsn(), &file, &[]);
        command.env("LD_PRELOAD", library.trim()).env("FAKETIME", by);
        command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        Child::spawn(command).expect("it runs")
    };
    let mut agents = [off("+7m"), off("-7m")];
    stage.at_least("select count(*) from tenure.candidate where role = 'cron'", 2).await;
    for _ in 0..2 {
        let began = event(leader(&stage, &mut agents).await, "run_started").await;
        // The clock was off: the line's own time is the member's.
        let instant = |key: &str| {
            began[key].as_str().expect("text").parse::<jiff::Timestamp>().expect("an instant")
        };
        let apart = instant("time").duration_since(instant("slot")).abs();
        assert!(apart.as_secs() > 360, "{began}");
        let done = stage.count(DONE).await;
        stage.at_least(DONE, done + 2).await;
        step_down(&stage).await;
    }
    // As if no clock had been wrong: in time, none in the future, none missed, none twice.
    let wrong = "select count(*) from tenure_agent.slot where state not in ('succeeded', 'running', 'queued') \
        or claimed_at < at or claimed_at > at + interval '20 s'";
    assert_eq!(stage.count(wrong).await, 0);
    no_attempt_twice(&stage);
}

#[tokio::test]
async fn a_step_down_lets_a_run_end_and_a_drain_limit_ends_it() {
    let stage = Stage::new().await;
    let up = stage.path("up");
    let text = schedule(&stage, "@every 1s", &format!("touch {up}; sleep 2; echo done"), "");
    let file = stage.file("tenure.toml", &text);
    let mut agents = [stage.agent(&file, &[])];
    until("the run", async || std::path::Path::new(&up).exists()).await;
    let one = leader(&stage, &mut agents).await;
    one.signal(Signal::TERM);
    assert_eq!(one.wait(SOON).await.expect("it ends").code(), Some(0));
    assert!(stage.count(DONE).await >= 1, "a run that had begun ended well");
    let output = stage.ends(&["schedule", "history", "--outputs"]).await;
    assert!(said(&output).contains("done"), "{}", said(&output));

    let stage = Stage::new().await;
    let up = stage.path("up");
    let options = "drain_limit = '300ms'\n";
    let text = schedule(&stage, "@every 1s", &format!("touch {up}; exec sleep 600"), options);
    let file = stage.file("tenure.toml", &text);
    let mut agents = [stage.agent(&file, &[])];
    until("the run", async || std::path::Path::new(&up).exists()).await;
    let one = leader(&stage, &mut agents).await;
    one.signal(Signal::TERM);
    assert_eq!(one.wait(SOON).await.expect("it ends").code(), Some(0));
    let interrupted = "select count(*) from tenure_agent.slot where state = 'interrupted'";
    assert_eq!(stage.count(interrupted).await, 1);
}

#[tokio::test]
async fn a_failure_is_tried_again_becomes_a_dead_letter_and_runs_again_by_order() {
    let stage = Stage::new().await;
    let good = stage.path("good");
    // Only by order: the slots of a year's first second.
    let text = schedule(
        &stage,
        "0 0 0 1 1 *",
        &format!("echo out; test -e {good}"),
        "retries = 1\nbackoff = '100ms'\n",
    );
    let file = stage.file("tenure.toml", &text);
    let mut agent = stage.agent(&file, &[]);
    event_of(&mut agent, "acquired", |event| event["role"] == "cron").await;
    stage.at_least("select count(*) from tenure_agent.schedule", 1).await;
    // Its first slot is known before it comes.
    let output = stage.ends(&["schedule", "list", "--json"]).await;
    let list: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(
        list[0]["next_at"].as_str().is_some_and(|next| next.contains("-01-01T00:00:00")),
        "{list}"
    );
    let output = stage.ends(&["schedule", "run", "s", "--wait", "30s"]).await;
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let output = stage.ends(&["schedule", "dead", "--json"]).await;
    let dead: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(dead[0]["attempts"].as_array().expect("a list").len(), 2, "{dead}");
    assert_eq!((&dead[0]["state"], &dead[0]["attempts"][1]["code"]), (&"failed".into(), &1.into()));
    assert_eq!(dead[0]["attempts"][1]["output"], "out\n");
    std::fs::write(&good, "").expect("written");
    let slot = dead[0]["at"].as_str().expect("text").to_owned();
    let output = stage.ends(&["schedule", "run", "s", "--slot", &slot, "--wait", "30s"]).await;
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert!(said(&stage.ends(&["schedule", "dead"]).await).contains("no dead letters"));
    no_attempt_twice(&stage);
    let output = stage.ends(&["schedule", "run", "nothing"]).await;
    assert_eq!(output.status.code(), Some(7), "{}", said(&output));
    let list = said(&stage.ends(&["schedule", "list"]).await);
    assert!(list.contains("0 0 0 1 1 *"), "{list}");
    agent.signal(Signal::TERM);
    assert_eq!(agent.wait(SOON).await.expect("it ends").code(), Some(0));
}

#[tokio::test]
async fn a_timeout_ends_a_run_and_members_with_another_definition_are_shown() {
    let stage = Stage::new().await;
    let text = schedule(&stage, "@every 1s", "exec sleep 600", "timeout = '200ms'\n");
    let file = stage.file("one.toml", &text);
    let mut agents = [stage.agent(&file, &[])];
    let ended = event(&mut agents[0], "run_ended").await;
    assert_eq!(ended["reason"], "timeout", "{ended}");
    let other = stage.file("two.toml", &text.replace("200ms", "300ms"));
    let _two = stage.agent(&other, &["--instance", "differs"]);
    until("the difference", async || {
        said(&stage.ends(&["schedule", "list"]).await)
            .contains("defined otherwise by tenure-differs")
    })
    .await;
}

#[tokio::test]
async fn a_changed_timing_never_fires_the_past_and_what_is_late_is_missed() {
    let stage = Stage::new().await;
    let hourly = schedule(&stage, "@every 1s", "true", "missed = 'run_once'\n");
    let file = stage.file("tenure.toml", &hourly);
    let mut agent = stage.agent(&file, &[]);
    stage.at_least(DONE, 1).await;
    agent.kill().await.expect("killed");
    // As if the group had been away for an hour.
    let away = "update tenure_agent.schedule set watermark = watermark - interval '1 hour'";
    stage
        .client
        .batch_execute(&format!("{away}; delete from tenure_agent.slot"))
        .await
        .expect("set back");
    stage.client.batch_execute("delete from tenure_agent.attempt").await.expect("set back");
    let mut agent = stage.agent(&file, &[]);
    stage
        .at_least(
            "select count(*) from tenure_agent.slot where state = 'missed' and missed > 30",
            1,
        )
        .await;
    // The latest of those that are too late runs.
    let late = "select count(*) from tenure_agent.slot where state = 'succeeded' \
                and at < claimed_at - interval '60 s'";
    stage.at_least(late, 1).await;
    assert_eq!(stage.count(late).await, 1);
    agent.kill().await.expect("killed");
    stage.client.batch_execute(away).await.expect("set back");
    let before = stage.count("select count(*) from tenure_agent.slot").await;
    stage.file("tenure.toml", &hourly.replace("@every 1s", "@every 2s"));
    let _agent = stage.agent(&file, &[]);
    stage.at_least("select count(*) from tenure_agent.slot where claimed_at > clock_timestamp() - interval '3 s' \
        and state = 'succeeded'", 1).await;
    let past = format!(
        "select count(*) - {before} from tenure_agent.slot where claimed_at - at > interval '60 s' \
        and state <> 'succeeded'"
    );
    assert!(stage.count(&past).await <= 0, "nothing of the past was fired or told again");
    assert_eq!(stage.count(late).await, 1);
}

/// Statements so far: each is a transaction of its own. The test's own is one of them.
async fn statements(stage: &Stage) -> i64 {
    let sql = "select xact_commit + xact_rollback from pg_stat_database where datname = current_database()";
    stage.count(sql).await
}

#[tokio::test]
async fn a_hundred_idle_roles_and_schedules_cost_no_statement_of_their_own() {
    let (one, hundred) = (Stage::new().await, Stage::new().await);
    let mut agents = Vec::new();
    for (stage, count) in [(&one, 1), (&hundred, 100)] {
        let text: String = (0..count)
            .map(|n| {
                format!(
                    "[[schedule]]\nname = 's{n}'\nrole = 'r{n}'\ncron = '0 0 1 1 *'\nrun = 'true'\n"
                )
            })
            .collect();
        let file = stage.file("tenure.toml", &text);
        agents.push(stage.agent(&file, &[]));
        stage.at_least("select count(*) from tenure_agent.schedule", count).await;
    }
    // Once the start is over, and as statistics are written: with a delay. Time is the subject.
    let window = std::time::Duration::from_secs(4);
    let mut spent = (0, 0);
    for _ in 0..6 {
        let before = (statements(&one).await, statements(&hundred).await);
        tokio::time::sleep(window).await;
        spent = (statements(&one).await - before.0, statements(&hundred).await - before.1);
        // Not even one a second more, where one for each role or schedule would be a hundred.
        if spent.1 <= spent.0 + 3 {
            return;
        }
    }
    panic!("{} statements with one of each, {} with a hundred, in {window:?}", spent.0, spent.1);
}

#[tokio::test]
async fn a_leader_whose_file_lacks_the_schedule_removes_it_and_the_list_says_so() {
    let stage = Stage::new().await;
    let role = "[[role]]\nname = 'cron'\n";
    let with =
        stage.file("with.toml", &format!("{role}{}", schedule(&stage, "@every 1s", "true", "")));
    let without = stage.file("without.toml", role);
    let mut agents = [stage.agent(&with, &["--instance", "with"])];
    stage.at_least(DONE, 1).await;
    let mut other = stage.agent(&without, &["--instance", "without"]);
    // A candidate that would not fire it is shown before it leads.
    until("the difference", async || {
        said(&stage.ends(&["schedule", "list"]).await)
            .contains("defined otherwise by tenure-without")
    })
    .await;
    step_down(&stage).await;
    let removed = event(&mut other, "schedules_removed").await;
    assert_eq!(removed["role"], "cron", "{removed}");
    let list = said(&stage.ends(&["schedule", "list"]).await);
    assert!(list.contains("s does not fire: the file of tenure-without"), "{list}");
    // And it comes back with a leader that has it.
    let done = stage.count(DONE).await;
    other.signal(Signal::TERM);
    other.wait(SOON).await.expect("it ends");
    stage.at_least(DONE, done + 1).await;
    agents[0].signal(Signal::TERM);
    agents[0].wait(SOON).await.expect("it ends");
}

#[tokio::test]
async fn an_order_is_waited_for_by_its_number_and_ends_with_its_schedule() {
    let stage = Stage::new().await;
    let text = schedule(&stage, "0 0 0 1 1 *", "test $TENURE_ATTEMPT = 2", "");
    let file = stage.file("tenure.toml", &text);
    let mut agent = stage.agent(&file, &[]);
    stage.at_least("select count(*) from tenure_agent.schedule", 1).await;
    // An earlier order in the name of every process of this host would have answered for a later one.
    let output = stage.ends(&["schedule", "run", "s", "--wait", "30s"]).await;
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let older = "insert into tenure_agent.slot (schedule, at, state, epoch, member, claimed_at, ended_at) \
        select 's', now() - interval '1 day' + n * interval '1 s', 'failed', 1, 't-h-1-00000000-0000-4000-8000-000000000000', now(), now() \
        from generate_series(1, 1001) n";
    stage.client.batch_execute(older).await.expect("dead letters");
    let first =
        "update tenure_agent.slot set at = at - interval '2 days' where order_id is not null";
    let same = first
        .replace("tenure_agent.slot", "tenure_agent.attempt")
        .replace(" where order_id is not null", "");
    stage.client.batch_execute(&format!("{same}; {first}")).await.expect("far back");
    let slot: String = stage
        .client
        .query_one(
            "select to_char(at at time zone 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"') \
            from tenure_agent.slot where order_id is not null",
            &[],
        )
        .await
        .expect("the slot")
        .get(0);
    let output = stage.ends(&["schedule", "run", "s", "--slot", &slot, "--wait", "30s"]).await;
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    // An order for a schedule that is gone does not fire when the name comes back.
    agent.signal(Signal::TERM);
    agent.wait(SOON).await.expect("it ends");
    let output = stage.ends(&["schedule", "run", "s"]).await;
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    stage.file("tenure.toml", "[[role]]\nname = 'cron'\n");
    let mut agent = stage.agent(&file, &[]);
    event(&mut agent, "schedules_removed").await;
    assert_eq!(stage.count("select count(*) from tenure_agent.run_order").await, 0);
    agent.signal(Signal::TERM);
    agent.wait(SOON).await.expect("it ends");
}

#[tokio::test]
async fn what_a_run_writes_is_kept_up_to_a_bound() {
    let stage = Stage::new().await;
    let write = "head -c 1000000 /dev/zero | tr \\\\0 x; echo the end >&2";
    let file = stage.file("tenure.toml", &schedule(&stage, "@every 1s", write, ""));
    let _agent = stage.agent(&file, &[]);
    stage.at_least(DONE, 1).await;
    let kept = "select max(octet_length(output))::bigint from tenure_agent.attempt where how = 'succeeded'";
    let kept = stage.count(kept).await;
    assert!((32 * 1024..33 * 1024).contains(&kept), "{kept} bytes");
    let ends = "select count(*) from tenure_agent.attempt where output like '(cut) x%xthe end\n'";
    assert!(stage.count(ends).await >= 1, "the end of both streams is kept");
}

#[tokio::test]
async fn a_later_slot_replaces_a_run_and_what_was_missed_is_run_in_turn() {
    let stage = Stage::new().await;
    let text = schedule(&stage, "@every 1s", "exec sleep 600", "overlap = 'replace'\n");
    let file = stage.file("tenure.toml", &text);
    let mut agent = stage.agent(&file, &[]);
    stage.at_least("select count(*) from tenure_agent.slot where state = 'replaced'", 2).await;
    no_attempt_twice(&stage);
    agent.kill().await.expect("killed");
    // As if the group had been away for some minutes.
    let away = "delete from tenure_agent.attempt; delete from tenure_agent.slot; \
        update tenure_agent.schedule set watermark = watermark - interval '90 s'";
    stage.client.batch_execute(away).await.expect("set back");
    std::fs::remove_file(stage.path("log")).expect("removed");
    let text =
        text.replace("exec sleep 600", "true").replace("'replace'", "'queue'\nmissed = 'run_all'");
    stage.file("tenure.toml", &text);
    let _agent = stage.agent(&file, &[]);
    let late = "select count(*) from tenure_agent.slot where state = 'succeeded' \
                and at < claimed_at - interval '60 s'";
    stage.at_least(late, 25).await;
    no_attempt_twice(&stage);
    let slots: Vec<String> = stage.starts("log");
    assert!(slots.is_sorted(), "each in its turn: {slots:?}");
}

#[tokio::test]
async fn a_schedule_whose_row_is_deleted_by_hand_is_defined_again_and_loses_no_slot() {
    let stage = Stage::new().await;
    let text = schedule(&stage, "@every 1s", "true", "overlap = 'queue'\n");
    let file = stage.file("tenure.toml", &text);
    let mut agent = stage.agent(&file, &[]);
    stage.at_least(DONE, 1).await;
    stage.client.batch_execute("delete from tenure_agent.schedule").await.expect("deleted");
    let is_told =
        |event: &Value| event["reason"].as_str().is_some_and(|why| why.contains("made again"));
    event_of(&mut agent, "error", is_told).await;
    let done = stage.count(DONE).await;
    stage.at_least(DONE, done + 2).await;
    let holes = "select count(*) from (select at - lag(at) over (order by at) as step from tenure_agent.slot) s \
                 where step > interval '1 s'";
    assert_eq!(stage.count(holes).await, 0, "every slot has its row");
    no_attempt_twice(&stage);
    agent.signal(Signal::TERM);
    assert_eq!(agent.wait(SOON).await.expect("it ends").code(), Some(0));
}

#[tokio::test]
async fn a_schedule_that_the_file_loses_while_its_slot_is_claimed_is_removed_and_the_slot_missed() {
    let stage = Stage::new().await;
    let file = stage.file("tenure.toml", &schedule(&stage, "@every 1s", "true", ""));
    let mut agent = stage.agent(&file, &[]);
    stage.at_least(DONE, 1).await;
    // The next claim waits for this.
    let hold = "begin; lock table tenure_agent.slot in access exclusive mode";
    stage.client.batch_execute(hold).await.expect("locked");
    let waits = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' \
        and datname = current_database() and query like '%tenure_agent.claim(%'";
    until("the claim", async || {
        // A transaction sees the sessions as they were when it looked first.
        stage.client.batch_execute("select pg_stat_clear_snapshot()").await.expect("cleared");
        stage.count(waits).await == 1
    })
    .await;
    stage.file("tenure.toml", "[[role]]\nname = 'cron'\n");
    agent.signal(Signal::HUP);
    event(&mut agent, "reloaded").await;
    stage.client.batch_execute("commit").await.expect("let go");
    let removed = "select count(*) from tenure_agent.schedule where removed_at is not null";
    stage.at_least(removed, 1).await;
    let missed = "select count(*) from tenure_agent.slot where state = 'missed'";
    stage.at_least(missed, 1).await;
    agent.signal(Signal::TERM);
    assert_eq!(agent.wait(SOON).await.expect("it ends").code(), Some(0));
    let put_back = agent.lines().iter().filter(|line| line.contains("run_requeued")).count();
    assert!(put_back < 5, "it is asked for {put_back} times");
}

#[tokio::test]
async fn slots_that_wait_for_their_turn_are_missed_and_not_dead_when_their_schedule_is_removed() {
    let stage = Stage::new().await;
    let text = schedule(&stage, "@every 1s", "exec sleep 3", "overlap = 'queue'\n");
    let file = stage.file("tenure.toml", &text);
    let mut agent = stage.agent(&file, &[]);
    stage.at_least("select count(*) from tenure_agent.slot where state = 'queued'", 2).await;
    stage.file("tenure.toml", "[[role]]\nname = 'cron'\n");
    agent.signal(Signal::HUP);
    event(&mut agent, "run_ended").await;
    let open =
        "select count(*) from tenure_agent.slot where state in ('queued', 'running', 'waiting')";
    until("the end of the run", async || stage.count(open).await == 0).await;
    let states = "select count(*) filter (where state = 'missed') * 1000 \
        + count(*) filter (where state = 'interrupted') from tenure_agent.slot";
    let states = stage.count(states).await;
    assert!(states >= 2000 && states % 1000 == 0, "missed, and no dead letter: {states}");
    agent.signal(Signal::TERM);
    assert_eq!(agent.wait(SOON).await.expect("it ends").code(), Some(0));
}

#[tokio::test]
async fn a_slot_whose_schedule_cannot_be_defined_again_holds_up_no_hand_over() {
    let stage = Stage::new().await;
    let file = stage.file("tenure.toml", &schedule(&stage, "@every 1s", "true", ""));
    let mut agent = stage.agent(&file, &[]);
    stage.at_least(DONE, 1).await;
    let gone = "create function public.refuse() returns trigger language plpgsql as \
            'begin raise exception ''not now''; end'; \
        create trigger refuse before insert on tenure_agent.schedule for each row execute function public.refuse(); \
        delete from tenure_agent.schedule";
    stage.client.batch_execute(gone).await.expect("deleted");
    let is_told =
        |event: &Value| event["reason"].as_str().is_some_and(|why| why.contains("not now"));
    event_of(&mut agent, "error", is_told).await;
    agent.signal(Signal::TERM);
    assert_eq!(agent.wait(SOON).await.expect("it ends").code(), Some(0));
}
