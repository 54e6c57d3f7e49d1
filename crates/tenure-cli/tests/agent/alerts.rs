//! Alerts across failovers: one page for an incident, its end under the same key; a local server stands for
//! the services, and real requests reach it.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::routing::post;
use serde_json::{Value, json};
use tenure_testkit::{Child, Cluster, ClusterOptions, Direction, Proxy, Signal, shared_cluster};
use tokio::sync::watch;

use crate::commands::get;
use crate::kit::{MEMBER, SOON, Stage, agent_at, bare, event_of, finish, said, until};

const KEY: &str = "routing-key-that-no-log-may-hold";

/// A request that came.
#[derive(Debug, Clone)]
struct Call {
    path: String,
    authorization: String,
    body: Value,
}

/// Stands for the services; it may hold answers back, or refuse.
#[derive(Debug, Clone)]
struct Receiver {
    calls: Arc<Mutex<Vec<Call>>>,
    hold: Arc<watch::Sender<bool>>,
    refuse: Arc<Mutex<usize>>,
    address: SocketAddr,
}

async fn receive(
    State(receiver): State<Receiver>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> (StatusCode, String) {
    let authorization = headers.get("authorization").and_then(|value| value.to_str().ok());
    let call = Call {
        path: uri.path().to_owned(),
        authorization: authorization.unwrap_or_default().to_owned(),
        body: serde_json::from_slice(&body).expect("JSON"),
    };
    receiver.calls.lock().expect("whole").push(call);
    let mut hold = receiver.hold.subscribe();
    let _ = hold.wait_for(|held| !held).await;
    let mut refuse = receiver.refuse.lock().expect("whole");
    if *refuse > 0 {
        *refuse -= 1;
        return (StatusCode::SERVICE_UNAVAILABLE, String::new());
    }
    (StatusCode::ACCEPTED, json!({"ok": true, "status": "success"}).to_string())
}

impl Receiver {
    async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let receiver = Receiver {
            calls: Arc::default(),
            hold: Arc::new(watch::channel(false).0),
            refuse: Arc::default(),
            address: listener.local_addr().expect("an address"),
        };
        let router = Router::new().fallback(post(receive)).with_state(receiver.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        receiver
    }

    fn calls(&self) -> Vec<Call> {
        self.calls.lock().expect("whole").clone()
    }

    /// Action and key of PagerDuty's events, in the order of their coming.
    fn pages(&self) -> Vec<(String, String)> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let page = |call: &Call| (text(&call.body["event_action"]), text(&call.body["dedup_key"]));
        self.calls().iter().map(page).collect()
    }

    async fn at_least(&self, count: usize) {
        until("a request", async || self.calls().len() >= count).await;
    }
}

/// A file whose one rule fires while no member leads `x` and the test has paused it: on a busy machine `x` may be led
/// late, or its leader may be silent for a while, and that is no incident of the test.
fn file(stage: &Stage, receiver: &Receiver) -> std::path::PathBuf {
    let key = stage.path("key");
    std::fs::write(&key, format!("{KEY}\n")).expect("written");
    let text = format!(
        "[alerting]\ninterval = '1s'\n\
         [alerting.pagerduty]\nkey_file = '{key}'\nurl = 'http://{}/v2/enqueue'\n\
         [[role]]\nname = 'x'\n\
         [[alerts]]\nname = 'no_x_leader'\ncondition = \"sum(forge_leader_is_leader{{role='x'}}) == 0 \
         and sum(tenure_role_paused{{role='x'}}) == 1\"\n\
         for = '1s'\nseverity = 'critical'\nnotify = ['pagerduty']\n",
        receiver.address
    );
    stage.file("tenure.toml", &text)
}

/// The agent that leads a role, once it acts.
async fn leader<'a>(stage: &Stage, role: &str, agents: &'a mut [Child]) -> &'a mut Child {
    let sql = format!(
        "select coalesce((select m.pid from tenure.role r join tenure.member m on m.identity = r.holder \
         where r.name = '{role}' and r.debtor = r.holder), 0)::bigint"
    );
    let mut pid = 0;
    let pids: Vec<i64> = agents.iter().map(|agent| i64::from(agent.pid())).collect();
    until("a leader", async || {
        pid = stage.count(&sql).await;
        pids.contains(&pid)
    })
    .await;
    agents.iter_mut().find(|agent| i64::from(agent.pid()) == pid).expect("one of ours")
}

/// Begins the incident: the role is paused, and its leader goes.
async fn unlead(stage: &Stage, agents: &mut [Child]) {
    leader(stage, "x", agents).await;
    leader(stage, "tenure:alerts", agents).await;
    let order = stage.ends(&["pause", "--role", "x"]).await;
    assert_eq!(order.status.code(), Some(0), "{}", said(&order));
}

/// Waits until a leader has evaluated again, some times.
async fn evaluated(stage: &Stage, epoch: i64, times: u32) {
    let sql = |after: &str| {
        format!(
            "select count(*) from tenure_agent.alert_round where epoch > {epoch} and evaluated_at > {after}"
        )
    };
    for _ in 0..times {
        stage.at_least(&sql("clock_timestamp() - interval '300 ms'"), 1).await;
        stage.at_least("select count(*) from tenure_agent.alert_round where evaluated_at < clock_timestamp() - interval '400 ms'", 1).await;
    }
}

#[tokio::test]
async fn a_run_that_failed_for_good_pages_once() {
    let (stage, receiver) = (Stage::new().await, Receiver::start().await);
    let key = stage.path("key");
    std::fs::write(&key, format!("{KEY}\n")).expect("written");
    let text = format!(
        "[alerting]\ninterval = '1s'\n\
         [alerting.pagerduty]\nkey_file = '{key}'\nurl = 'http://{}/v2/enqueue'\n\
         [[schedule]]\nname = 's'\nrole = 'x'\ncron = '0 0 0 1 1 *'\nrun = 'false'\n\
         [[alerts]]\nname = 'dead_letters'\nfor = '0s'\nseverity = 'critical'\nnotify = ['pagerduty']\n\
         condition = 'max by (schedule) (tenure_schedule_dead_letters) > 0'\n",
        receiver.address
    );
    let file = stage.file("tenure.toml", &text);
    let mut agents = [stage.agent(&file, &[])];
    leader(&stage, "tenure:alerts", &mut agents).await;
    stage.at_least("select count(*) from tenure_agent.schedule", 1).await;
    let order = stage.ends(&["schedule", "run", "s", "--wait", "30s"]).await;
    assert_eq!(order.status.code(), Some(1), "{}", said(&order));
    receiver.at_least(1).await;
    let epoch = stage.count(EPOCH).await - 1;
    evaluated(&stage, epoch, 2).await;
    let pages = receiver.pages();
    assert_eq!((pages.len(), pages[0].0.as_str()), (1, "trigger"), "{pages:?}");
    let summary = receiver.calls()[0].body["payload"].to_string();
    assert!(summary.contains("dead_letters"), "{summary}");
}

const EPOCH: &str = "select epoch from tenure.role where name = 'tenure:alerts'";

#[tokio::test]
async fn a_leader_that_dies_between_firing_and_resolving_leaves_one_page_and_its_end() {
    let (stage, receiver) = (Stage::new().await, Receiver::start().await);
    let file = file(&stage, &receiver);
    let mut agents = [stage.agent(&file, &[]), stage.agent(&file, &[])];
    unlead(&stage, &mut agents).await;
    receiver.at_least(1).await;
    // The acknowledgement is written down.
    let told = "select count(*) from tenure_agent.incident where body #> '{deliveries,pagerduty,told,firing}' is not null";
    stage.at_least(told, 1).await;
    let epoch = stage.count(EPOCH).await;
    leader(&stage, "tenure:alerts", &mut agents).await.kill().await.expect("killed");
    evaluated(&stage, epoch, 2).await;
    assert_eq!(receiver.pages().len(), 1, "the successor pages no second time");
    let order = stage.ends(&["resume", "--role", "x"]).await;
    assert_eq!(order.status.code(), Some(0), "{}", said(&order));
    receiver.at_least(2).await;
    let pages = receiver.pages();
    assert_eq!(pages[0].0, "trigger");
    assert_eq!(pages[1], ("resolve".to_owned(), pages[0].1.clone()));
    stage.at_least("select count(*) from tenure_agent.incident where not owed", 1).await;
    assert_eq!(receiver.pages().len(), 2);
    assert_eq!(receiver.calls()[0].body["routing_key"], KEY);
    assert_eq!(receiver.calls()[0].body["payload"]["severity"], "critical");
    // For people, and for the page.
    let list = said(&stage.ends(&["alerts", "list"]).await);
    assert!(list.contains("no_x_leader") && list.contains("pagerduty yes"), "{list}");
    let events = said(&stage.ends(&["events"]).await);
    assert!(events.contains("alert_firing") && events.contains("alert_resolved"), "{events}");
    for agent in &mut agents {
        let lines = agent.lines().join("\n");
        assert!(!lines.contains(KEY), "a secret in the journal");
    }
    let stored =
        format!("select count(*) from tenure_agent.incident where body::text like '%{KEY}%'");
    assert_eq!(stage.count(&stored).await, 0);
}

#[tokio::test]
async fn a_leader_that_dies_before_the_acknowledgement_makes_a_second_page_with_the_same_key() {
    let (stage, receiver) = (Stage::new().await, Receiver::start().await);
    let file = file(&stage, &receiver);
    let mut agents = [stage.agent(&file, &[]), stage.agent(&file, &[])];
    receiver.hold.send_replace(true);
    unlead(&stage, &mut agents).await;
    receiver.at_least(1).await;
    leader(&stage, "tenure:alerts", &mut agents).await.kill().await.expect("killed");
    receiver.hold.send_replace(false);
    receiver.at_least(2).await;
    let order = stage.ends(&["resume", "--role", "x"]).await;
    assert_eq!(order.status.code(), Some(0), "{}", said(&order));
    receiver.at_least(3).await;
    stage.at_least("select count(*) from tenure_agent.incident where not owed", 1).await;
    let pages = receiver.pages();
    let actions: Vec<&str> = pages.iter().map(|page| page.0.as_str()).collect();
    assert_eq!(actions, ["trigger", "trigger", "resolve"]);
    assert!(pages.iter().all(|page| page.1 == pages[0].1), "{pages:?}");
}

#[tokio::test]
async fn an_acknowledgement_that_comes_while_the_database_goes_away_is_not_forgotten() {
    let (stage, receiver) = (Stage::new().await, Receiver::start().await);
    let file = file(&stage, &receiver);
    let proxy = Proxy::start(shared_cluster().await.addr()).await.expect("a proxy");
    let mut agents = [agent_at(&proxy.dsn(stage.database.name()), &file, &[])];
    receiver.hold.send_replace(true);
    unlead(&stage, &mut agents).await;
    receiver.at_least(1).await;
    let epoch = stage.count(EPOCH).await;
    // The answer comes while the leader's gate is open, and cannot be written down before it shuts.
    proxy.blackhole(Direction::Both);
    receiver.hold.send_replace(false);
    event_of(&mut agents[0], "notified", |_| true).await;
    event_of(&mut agents[0], "lost", |event| event["role"] == "tenure:alerts").await;
    proxy.sever();
    proxy.heal();
    // The same agent leads again, and knows.
    let told = "select count(*) from tenure_agent.incident where body #> '{deliveries,pagerduty,told,firing}' is not null";
    stage.at_least(told, 1).await;
    evaluated(&stage, epoch, 2).await;
    assert_eq!(receiver.pages().len(), 1, "paged again although no leader died");
}

#[tokio::test]
async fn an_agent_that_no_longer_leads_the_alerts_stops_telling_what_it_saw() {
    let (stage, receiver) = (Stage::new().await, Receiver::start().await);
    let file = file(&stage, &receiver);
    let mut agents = [stage.agent(&file, &["--http", "0"]), stage.agent(&file, &["--http", "0"])];
    let mut addresses = Vec::new();
    for agent in &mut agents {
        let http = event_of(agent, "http", |_| true).await;
        let url = http["reason"].as_str().expect("an address").to_owned();
        addresses.push((agent.pid(), url.trim_start_matches("http://").to_owned()));
    }
    unlead(&stage, &mut agents).await;
    let first = leader(&stage, "tenure:alerts", &mut agents).await.pid();
    let address = |own: bool| {
        let mut found = addresses.iter().filter(|(pid, _)| (*pid == first) == own);
        found.next().expect("one of two").1.clone()
    };
    let tells = async |address: &str, value: &str| {
        let (_, text) = get(address, "/metrics").await;
        let paused = |line: &&str| line.starts_with("tenure_role_paused{role=\"x\"");
        text.lines().find(paused).is_some_and(|line| line.ends_with(value))
    };
    until("a paused role", async || tells(&address(true), " 1").await).await;
    let order = stage.ends(&["step-down", "--role", "tenure:alerts"]).await;
    assert_eq!(order.status.code(), Some(0), "{}", said(&order));
    until("the successor's word", async || tells(&address(false), " 1").await).await;
    assert!(tells(&address(true), " 0").await, "what it saw last is told for ever");
}

#[tokio::test]
async fn the_alerts_cost_one_question_in_each_interval() {
    let options = ClusterOptions::default().set("log_statement", "all");
    let cluster = Cluster::start_with(options).await.expect("a server");
    let (stage, receiver) = (Stage::new().await, Receiver::start().await);
    let path = file(&stage, &receiver);
    let text = std::fs::read_to_string(&path).expect("text");
    std::fs::write(&path, text.replace("interval = '1s'", "interval = '2s'")).expect("written");
    let _agents = [agent_at(&cluster.dsn(), &path, &[]), agent_at(&cluster.dsn(), &path, &[])];
    let asked = || cluster.log().matches("select tenure_agent.alerts_sample(").count();
    until("a first question", async || asked() > 0).await;
    let (begun, before) = (std::time::Instant::now(), asked());
    until("five more", async || asked() >= before + 5).await;
    // Of two agents one asks, and not more often than the file says: at best eight seconds, less what this test was
    // late in seeing the first one. With two that ask it is four.
    assert!(begun.elapsed() > Duration::from_secs(6), "{:?}", begun.elapsed());
}

#[tokio::test]
#[ignore = "slow: `make test-all` runs it"]
async fn a_service_that_refuses_is_asked_again_until_it_acknowledges() {
    let (stage, receiver) = (Stage::new().await, Receiver::start().await);
    let file = file(&stage, &receiver);
    let mut agents = [stage.agent(&file, &[])];
    *receiver.refuse.lock().expect("whole") = 2;
    unlead(&stage, &mut agents).await;
    receiver.at_least(3).await;
    let told = "select count(*) from tenure_agent.incident where body #> '{deliveries,pagerduty,told,firing}' is not null";
    stage.at_least(told, 1).await;
    let pages = receiver.pages();
    assert_eq!(pages.len(), 3);
    assert!(pages.iter().all(|page| *page == pages[0]), "{pages:?}");
    event_of(&mut agents[0], "notified", |_| true).await;
}

#[tokio::test]
async fn an_unreachable_database_is_told_by_every_agent_under_one_key() {
    let (stage, receiver) = (Stage::new().await, Receiver::start().await);
    let hook = format!("webhook:http://{}/hook", receiver.address);
    let text = format!(
        "{MEMBER}[alerting]\nnotify = ['{hook}']\ndefaults = false\ndatabase_after = '1s'\n[[role]]\nname = 'x'\n"
    );
    let path = stage.folder.path().join("tenure.toml");
    std::fs::write(&path, text).expect("written");
    let proxy = Proxy::start(shared_cluster().await.addr()).await.expect("a proxy");
    let dsn = proxy.dsn(stage.database.name());
    let mut agents = [agent_at(&dsn, &path, &[]), agent_at(&dsn, &path, &[])];
    stage.at_least("select count(*) from tenure.candidate where role = 'x'", 2).await;
    proxy.refuse(true).await.expect("refused");
    proxy.reset();
    receiver.at_least(2).await;
    proxy.refuse(false).await.expect("accepted");
    receiver.at_least(4).await;
    let calls = receiver.calls();
    let field = |name: &str| -> Vec<&str> {
        calls.iter().map(|call| call.body[name].as_str().unwrap_or_default()).collect()
    };
    let firing = field("status").iter().filter(|status| **status == "firing").count();
    assert_eq!((calls.len(), firing), (4, 2), "{calls:?}");
    assert!(field("key").iter().all(|key| *key == calls[0].body["key"]), "{calls:?}");
    assert!(field("rule").iter().all(|rule| *rule == "database_unreachable"));
    for agent in &mut agents {
        agent.signal(Signal::TERM);
        assert_eq!(agent.wait(SOON).await.expect("it ends").code(), Some(0));
    }
}

#[tokio::test]
async fn every_kind_of_notifier_is_tested_by_order_and_no_secret_is_shown() {
    let (stage, receiver) = (Stage::new().await, Receiver::start().await);
    let token = stage.path("token");
    std::fs::write(&token, "xoxb-secret").expect("written");
    let written = stage.path("written");
    let text = format!(
        "[alerting]\nnotify = ['slack:#ops', 'webhook:http://{address}/s3cret', 'command:cat > {written}']\n\
         [alerting.slack]\ntoken_file = '{token}'\nurl = 'http://{address}/chat'\n\
         [alerting.webhook]\ntoken_file = '{token}'\n[[role]]\nname = 'x'\n",
        address = receiver.address
    );
    let file = stage.file("tenure.toml", &text);
    let path = file.to_str().expect("text");
    let output = stage.ends(&["alerts", "test", "--config", path]).await;
    assert_eq!(output.status.code(), Some(1), "no tables yet: {}", said(&output));
    let mut agent = stage.agent(&file, &[]);
    stage
        .at_least("select count(*) from tenure.role where name = 'x' and debtor = holder", 1)
        .await;
    stage.at_least("select count(*) from pg_tables where tablename = 'incident'", 1).await;
    let output = stage.ends(&["alerts", "test", "--config", path, "--send", "--samples"]).await;
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let text = said(&output);
    assert!(text.contains("no_leader") && text.contains("quiet"), "{text}");
    assert!(text.contains("tenure_is_leader{instance="), "{text}");
    assert_eq!(text.matches("was acknowledged").count(), 6, "{text}");
    assert!(!text.contains("xoxb") && !text.contains("s3cret"), "{text}");
    let calls = receiver.calls();
    let chat: Vec<&Call> = calls.iter().filter(|call| call.path == "/chat").collect();
    assert_eq!(chat.len(), 2);
    assert_eq!(chat[0].body["channel"], "#ops");
    assert_eq!(chat[0].authorization, "Bearer xoxb-secret");
    let hooks: Vec<&Call> = calls.iter().filter(|call| call.path == "/s3cret").collect();
    assert_eq!(hooks[1].body["status"], "resolved");
    let command: Value = serde_json::from_str(&std::fs::read_to_string(&written).expect("written"))
        .expect("JSON on standard input");
    assert_eq!(command["rule"], "test");
    agent.signal(Signal::TERM);
    assert_eq!(agent.wait(SOON).await.expect("it ends").code(), Some(0));
    assert!(!agent.lines().join("\n").contains("s3cret"));
}

#[tokio::test]
async fn a_file_with_a_wrong_condition_or_without_a_secret_is_refused_with_its_place() {
    let stage = Stage::new().await;
    let rule = "[[alerts]]\nname = 'a'\ncondition = 'sum(nonsense) > 0'\nnotify = ['pagerduty']\n";
    let file = stage.file("tenure.toml", rule);
    let check = async |file: &std::path::Path| {
        let mut command = bare();
        command
            .args(["agent", "--check", "--dsn", "postgresql://localhost/none", "--config"])
            .arg(file);
        finish(command).await
    };
    let output = check(&file).await;
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(
        said(&output)
            .contains("line 7, column 13: `alerts[0].condition`: there is no series `nonsense`"),
        "{}",
        said(&output)
    );
    let file = stage.file("tenure.toml", &rule.replace("nonsense", "tenure_is_leader"));
    let output = check(&file).await;
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("set TENURE_PAGERDUTY_KEY"), "{}", said(&output));
}

/// A hundred roles lose their leader at once: that is one page.
#[tokio::test]
#[ignore = "slow: `make test-all` runs it"]
async fn many_roles_without_a_leader_are_one_page() {
    let (stage, receiver) = (Stage::new().await, Receiver::start().await);
    let hook = format!("webhook:http://{}/hook", receiver.address);
    let roles: String = (0..100).map(|n| format!("[[role]]\nname = 'r{n}'\n")).collect();
    let text = format!(
        "[alerting]\ninterval = '1s'\n{roles}[[alerts]]\nname = 'no_leader'\nnotify = ['{hook}']\n\
         condition = \"sum by (role) (tenure_is_leader{{role=~'r.*'}}) == 0\"\nfor = '2s'\n"
    );
    let file = stage.file("tenure.toml", &text);
    let mut agents = [stage.agent(&file, &[])];
    leader(&stage, "tenure:alerts", &mut agents).await;
    stage
        .at_least("select count(*) from tenure.role where name like 'r%' and debtor = holder", 100)
        .await;
    let pause = "update tenure.role set paused = true where name like 'r%'";
    stage.client.batch_execute(pause).await.expect("paused");
    receiver.at_least(1).await;
    let epoch = stage.count(EPOCH).await;
    evaluated(&stage, epoch - 1, 2).await;
    let calls = receiver.calls();
    assert_eq!(calls.len(), 1, "{calls:?}");
    assert!(
        calls[0].body["alerts"].as_array().is_some_and(|alerts| !alerts.is_empty()),
        "{}",
        calls[0].body
    );
    tokio::time::timeout(Duration::from_secs(60), agents[0].kill())
        .await
        .expect("in time")
        .expect("killed");
}

/// Ten roles that flap for an hour as no lease lets them, each time under another member.
#[tokio::test]
async fn a_restless_history_makes_a_bounded_sample() {
    let stage = Stage::new().await;
    let receiver = Receiver::start().await;
    let _agent = stage.agent(&file(&stage, &receiver), &[]);
    stage.at_least("select count(*) from pg_proc where proname = 'alerts_sample'", 1).await;
    let history = "insert into tenure.term (role, epoch, member, claimed_at, acting_at, ended_at, how) \
        select 'restless-' || n, e, 'tenure-x-' || e, t, t, t + interval '1 s', 'replaced' \
        from generate_series(1, 10) n, generate_series(1, 3000) e, \
            lateral (select now() - (3000 - e) * interval '1 s' as t) x";
    stage.client.batch_execute(history).await.expect("terms");
    let count = async |what: &str, back: i64| {
        let sql = format!(
            "select jsonb_array_length(tenure_agent.alerts_sample({back}) -> '{what}')::bigint"
        );
        stage.count(&sql).await
    };
    assert_eq!(count("terms", 3_600_000).await, 20_000);
    assert_eq!(count("totals", 3_600_000).await, 20_000);
    // Members that are gone, and whose terms lie before the range, are not told.
    assert!(count("totals", 60_000).await <= 620);
    assert!(count("terms", 60_000).await <= 620);
}
