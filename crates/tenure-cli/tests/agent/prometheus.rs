//! The evaluator beside a real Prometheus on the same samples, and exported rules beside a real promtool.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use serde_json::Value;
use tempfile::TempDir;
use tenure_agent::alerts::Condition;
use tenure_agent::alerts::sample::{Labels, NAME, Point, Samples, Series, labels, written};
use tenure_testkit::Child;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::kit::{SOON, bare, finish, said, until};

const STEP: i64 = 15_000;
/// Two hours of samples, ending at a round hour some hours ago.
const POINTS: i64 = 480;

fn tool(name: &str) -> PathBuf {
    let unpacked = concat!(env!("CARGO_MANIFEST_DIR"), "/../../.tools/prometheus/usr/bin");
    let folder =
        std::env::var_os("TENURE_PROMETHEUS").map_or_else(|| unpacked.into(), PathBuf::from);
    let path = folder.join(name);
    // Otherwise that of PATH.
    if path.exists() { path } else { name.into() }
}

fn promtool(args: &[&str]) {
    let output =
        Command::new(tool("promtool")).args(args).stdin(Stdio::null()).output().expect(
            "promtool is missing: run scripts/setup.sh prometheus, or set TENURE_PROMETHEUS",
        );
    assert!(output.status.success(), "promtool {args:?}: {}", said(&output));
}

fn end() -> i64 {
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().expect("after 1970").as_secs();
    i64::try_from(now / 3600 * 3600 - 4 * 3600).expect("in range") * 1000
}

/// Counters that reset, gauges, series that pause and series that end.
fn samples(random: &mut StdRng) -> Samples {
    let mut samples = Samples::default();
    let mut add = |labels: Labels, random: &mut StdRng| {
        let name = labels[NAME].clone();
        let mut total = f64::from(random.random_range(0..50));
        let mut points = Vec::new();
        let mut paused = 0;
        for n in 0..POINTS {
            let value = match name.as_str() {
                "tenure_failovers_total" | "tenure_acquired_total" => {
                    if random.random_bool(0.02) {
                        total = 0.0;
                    }
                    total += f64::from(random.random_range(0..3));
                    total
                }
                "tenure_is_leader" | "tenure_role_paused" | "tenure_connected" => {
                    f64::from(random.random_range(0..2))
                }
                _ => f64::from(random.random_range(-40..400)) / 16.0,
            };
            if paused == 0 && random.random_bool(0.02) {
                paused = random.random_range(1..40);
            }
            paused = (paused - 1).max(0);
            if paused == 0 {
                points.push(Point { at: end() - (POINTS - 1 - n) * STEP, value: Some(value) });
            }
        }
        samples.add(Series { labels, points });
    };
    for role in ["a", "b", "c d"] {
        for instance in ["x", "y"] {
            for name in [
                "tenure_is_leader",
                "tenure_failovers_total",
                "tenure_acquired_total",
                "tenure_epoch",
            ] {
                add(labels(name, [("role", role), ("instance", instance)]), random);
            }
        }
        add(labels("tenure_role_paused", [("role", role)]), random);
    }
    for instance in ["x", "y"] {
        add(labels("tenure_connected", [("instance", instance)]), random);
        add(labels("tenure_heartbeat_age_seconds", [("instance", instance)]), random);
    }
    samples
}

fn open_metrics(samples: &Samples) -> String {
    let mut text = String::new();
    for series in samples.all() {
        for point in &series.points {
            let value = point.value.expect("no gap is marked");
            let seconds = point.at / 1000;
            writeln!(text, "{} {value} {seconds}", written(&series.labels)).expect("to memory");
        }
    }
    text + "# EOF\n"
}

/// A real server on these samples.
struct Prometheus {
    _child: Child,
    port: u16,
    _folder: TempDir,
}

impl Prometheus {
    async fn start(samples: &Samples) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name).to_str().expect("text").to_owned();
        std::fs::write(at("samples"), open_metrics(samples)).expect("written");
        std::fs::write(at("config.yml"), "{}\n").expect("written");
        promtool(&["tsdb", "create-blocks-from", "openmetrics", &at("samples"), &at("data")]);
        let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = free.local_addr().expect("an address").port();
        drop(free);
        let mut command = tokio::process::Command::new(tool("prometheus"));
        command.args([
            format!("--config.file={}", at("config.yml")),
            format!("--storage.tsdb.path={}", at("data")),
            format!("--web.listen-address=127.0.0.1:{port}"),
            "--storage.tsdb.retention.time=10y".to_owned(),
            "--log.level=error".to_owned(),
        ]);
        let child = Child::spawn(command).expect("it runs");
        let server = Prometheus { _child: child, port, _folder: folder };
        until("Prometheus", async || {
            server.get("/-/ready").await.is_some_and(|(code, _)| code == 200)
        })
        .await;
        server
    }

    /// HTTP/1.0, so that the answer is not cut into pieces.
    async fn get(&self, path: &str) -> Option<(u16, String)> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).await.ok()?;
        stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).await.ok()?;
        let mut answer = Vec::new();
        tokio::time::timeout(SOON, stream.read_to_end(&mut answer)).await.ok()?.ok()?;
        let answer = String::from_utf8(answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        let code = head.split(' ').nth(1)?.parse().ok()?;
        Some((code, body.to_owned()))
    }

    /// What an expression is at an instant; none: an error of its evaluation.
    async fn query(&self, text: &str, at: i64) -> Option<BTreeMap<Labels, f64>> {
        let encoded: String = text.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let path = format!("/api/v1/query?time={}.{:03}&query={encoded}", at / 1000, at % 1000);
        let (code, body) = self.get(&path).await.expect("an answer");
        let answer: Value = serde_json::from_str(&body).expect("JSON");
        if code == 422 {
            return None;
        }
        assert_eq!(answer["status"], "success", "{text}: {body}");
        let element = |one: &Value| {
            let labels: Labels = serde_json::from_value(one["metric"].clone()).expect("labels");
            let value = one["value"][1].as_str().expect("text");
            let value = match value {
                "+Inf" => f64::INFINITY,
                "-Inf" => f64::NEG_INFINITY,
                other => other.parse().expect("a number"),
            };
            (labels, value)
        };
        let result = &answer["data"]["result"];
        Some(result.as_array().expect("a vector").iter().map(element).collect())
    }
}

/// A random expression of the documented subset, a vector.
fn expression(random: &mut StdRng, depth: u32) -> String {
    let of_role =
        ["tenure_is_leader", "tenure_failovers_total", "tenure_acquired_total", "tenure_epoch"];
    let selector = |random: &mut StdRng| {
        let name = of_role.choose(random).expect("some");
        let matcher = [
            "",
            "{role='a'}",
            "{role!='a'}",
            "{role=~'a|c d'}",
            "{instance!~'y.*'}",
            "{role='none'}",
        ];
        format!("{name}{}", matcher.choose(random).expect("some"))
    };
    if depth == 0 {
        return match random.random_range(0..8) {
            0 => "tenure_role_paused".to_owned(),
            1 => "tenure_connected".to_owned(),
            2 => "tenure_heartbeat_age_seconds".to_owned(),
            3 => "forge_leader_failovers_total".to_owned(),
            _ => selector(random),
        };
    }
    let number = |random: &mut StdRng| format!("{}", f64::from(random.random_range(-8..40)) / 4.0);
    match random.random_range(0..10) {
        0 | 1 => {
            let functions = [
                "rate",
                "increase",
                "delta",
                "changes",
                "resets",
                "min_over_time",
                "max_over_time",
                "avg_over_time",
                "sum_over_time",
                "count_over_time",
                "last_over_time",
            ];
            let ranges = ["15s", "1m", "5m", "7m", "1h", "20s"];
            let function = functions.choose(random).expect("some");
            let range = ranges.choose(random).expect("some");
            format!("{function}({}[{range}])", selector(random))
        }
        2 | 3 => {
            let how = ["sum", "min", "max", "avg", "count"].choose(random).expect("some");
            let grouping =
                ["", "by (role) ", "by (instance) ", "without (role) ", "by (role, instance) "];
            let grouping = grouping.choose(random).expect("some");
            format!("{how} {grouping}({})", expression(random, depth - 1))
        }
        4 => {
            let operator = [
                "+", "-", "*", "/", "%", "^", "==", "!=", ">", "<", ">=", "<=", "> bool", "== bool",
            ];
            let operator = operator.choose(random).expect("some");
            let (vector, number) = (expression(random, depth - 1), number(random));
            match random.random_bool(0.3) {
                true => format!("{number} {operator} ({vector})"),
                false => format!("({vector}) {operator} {number}"),
            }
        }
        5 | 6 => {
            let operator = ["+", "-", "*", "/", "==", "!=", ">", "<=", "< bool"];
            let operator = operator.choose(random).expect("some");
            let matching =
                ["", "on (role)", "ignoring (instance)", "on (role, instance)", "on (instance)"];
            let matching = matching.choose(random).expect("some");
            let (left, right) = (expression(random, depth - 1), expression(random, depth - 1));
            format!("({left}) {operator} {matching} ({right})")
        }
        7 => {
            let operator = ["and", "or", "unless"].choose(random).expect("some");
            let matching = ["", "on (role)", "ignoring (instance)", "on (instance)"];
            let matching = matching.choose(random).expect("some");
            let (left, right) = (expression(random, depth - 1), expression(random, depth - 1));
            format!("({left}) {operator} {matching} ({right})")
        }
        8 => {
            let function = ["abs", "ceil", "floor", "-"].choose(random).expect("some");
            format!("{function}({})", expression(random, depth - 1))
        }
        _ => format!("absent({})", expression(random, depth - 1)),
    }
}

fn alike(ours: f64, theirs: f64) -> bool {
    ours == theirs
        || (ours.is_nan() && theirs.is_nan())
        || (ours - theirs).abs() <= 1e-9 * ours.abs().max(theirs.abs()).max(1e-3)
}

#[tokio::test]
async fn the_evaluator_says_what_prometheus_says_about_random_expressions() {
    let seed = 20_261_116;
    let mut random = StdRng::seed_from_u64(seed);
    let samples = samples(&mut random);
    let server = Prometheus::start(&samples).await;
    let count =
        std::env::var("TENURE_PROMQL").ok().and_then(|text| text.parse().ok()).unwrap_or(400);
    let (mut values, mut errors) = (0, 0);
    for n in 0..count {
        let text = expression(&mut random, n % 4);
        // At a sample, or between two; never before an hour of samples.
        let at = end() - random.random_range(0..3_500) * 1000;
        let condition = Condition::parse(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
        let ours = condition.evaluate(&samples, at);
        let theirs = server.query(condition.prometheus(), at).await;
        let (found, theirs) = match (ours, theirs) {
            (Ok(found), Some(theirs)) => (found, theirs),
            (Err(_), None) => {
                errors += 1;
                continue;
            }
            (ours, theirs) => panic!("{text} at {at}: {ours:?}, and Prometheus: {theirs:?}"),
        };
        let ours: BTreeMap<Labels, f64> =
            found.into_iter().map(|element| (element.labels, element.value)).collect();
        assert_eq!(
            ours.keys().collect::<Vec<_>>(),
            theirs.keys().collect::<Vec<_>>(),
            "labels of {text} at {at}"
        );
        for (labels, value) in &ours {
            let other = theirs[labels];
            assert!(
                alike(*value, other),
                "{text} at {at}: {labels:?} is {value}, and Prometheus: {other}"
            );
            values += 1;
        }
    }
    let told = format!("{count} expressions: {values} values alike, {errors} errors alike");
    assert!(values > count && errors > 0 && errors < count / 4, "that compares little: {told}");
}

async fn exported(file: Option<&Path>) -> String {
    let mut command = bare();
    command.args(["alerts", "export"]);
    if let Some(file) = file {
        command.arg("--config").arg(file);
    }
    let output = finish(command).await;
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    String::from_utf8(output.stdout).expect("text")
}

#[tokio::test]
async fn exported_rules_are_what_promtool_accepts_and_fire_there_as_they_do_here() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let text = "[[alerts]]\nname = 'no_scheduler_leader'\n\
        condition = \"sum(forge_leader_is_leader{role='scheduler'}) == 0\"\nfor = '30s'\n\
        severity = 'critical'\nnotify = []\nsummary = 'say \"{{ no }}\": # ok'\n\
        [[alerts]]\nname = 'frequent_failovers'\nnotify = []\n\
        condition = 'rate(forge_leader_failovers_total[5m]) > 5'\nseverity = 'warning'\n";
    std::fs::write(at("forge.toml"), text).expect("written");
    for (name, file) in [("own.yml", Some(at("forge.toml"))), ("default.yml", None)] {
        std::fs::write(at(name), exported(file.as_deref()).await).expect("written");
        promtool(&["check", "rules", "--lint-fatal", at(name).to_str().expect("text")]);
    }
    // The default rules fire in Prometheus on the members' series, with the same labels.
    let test = "rule_files: [default.yml, own.yml]\nevaluation_interval: 15s\ntests:\n\
        - interval: 15s\n  input_series:\n\
        \x20   - {series: 'tenure_is_leader{role=\"scheduler\", instance=\"x\"}', values: '1 0x20'}\n\
        \x20   - {series: 'tenure_is_leader{role=\"other\", instance=\"x\"}', values: '1x20'}\n\
        \x20   - {series: 'tenure_schedule_dead_letters{schedule=\"nightly\", role=\"scheduler\"}', values: '0 1x20'}\n\
        \x20 alert_rule_test:\n\
        \x20   - {eval_time: 30s, alertname: no_leader, exp_alerts: []}\n\
        \x20   - {eval_time: 45s, alertname: no_leader, exp_alerts: [{exp_labels: {severity: critical, role: scheduler}, exp_annotations: {summary: a role has no leader}}]}\n\
        \x20   - {eval_time: 45s, alertname: no_scheduler_leader, exp_alerts: [{exp_labels: {severity: critical}, exp_annotations: {summary: 'say \"{ { no }}\": # ok'}}]}\n\
        \x20   - {eval_time: 60s, alertname: dead_letters, exp_alerts: [{exp_labels: {severity: warning, schedule: nightly}, exp_annotations: {summary: 'runs of a schedule failed for good; `tenure schedule dead` lists them'}}]}\n";
    std::fs::write(at("test.yml"), test).expect("written");
    promtool(&["test", "rules", at("test.yml").to_str().expect("text")]);
}

#[test]
fn the_dashboard_asks_for_series_that_exist_and_promql_that_can_be_read() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/grafana/tenure.json");
    let text = std::fs::read_to_string(path).expect("the dashboard");
    let dashboard: Value = serde_json::from_str(&text).expect("JSON");
    let metrics = include_str!("../../../../docs/metrics.md");
    let alerts = include_str!("../../../../docs/alerts.md");
    let panels = dashboard["panels"].as_array().expect("panels").iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    let notes = dashboard["annotations"]["list"].as_array().into_iter().flatten();
    let (mut count, mut rules) = (0, String::from("groups:\n- name: dashboard\n  rules:\n"));
    for (place, target) in targets.chain(notes).enumerate() {
        let Some(expr) = target["expr"].as_str() else { continue };
        let quoted = serde_json::to_string(expr).expect("text");
        writeln!(rules, "  - {{record: 'dashboard:{place}', expr: {quoted}}}").expect("a String");
        let names = expr.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        for name in names.filter(|word| word.starts_with("tenure_")) {
            let known = [metrics, alerts].iter().any(|page| page.contains(&format!("`{name}`")));
            assert!(known, "{name} of {expr} is in no page");
            count += 1;
        }
    }
    assert!(count >= 8, "{count} series");
    // Each expression as a rule: a real promtool reads them.
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("dashboard.yml");
    std::fs::write(&path, rules).expect("written");
    promtool(&["check", "rules", path.to_str().expect("text")]);
}
