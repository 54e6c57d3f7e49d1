//! Metrics and `tracing` events are contract: a scripted life on a real server shows every one.

mod ear;

use std::collections::BTreeSet;
use std::time::Duration;

use tenure::config::{Config, RoleSpec};
use tenure::{Epoch, Member, Notice};
use tenure_testkit::{Cluster, Meter, Stop};

const PATIENCE: Duration = Duration::from_secs(30);
const LEASE: Duration = Duration::from_secs(3);

async fn member(dsn: String) -> Member {
    let config = Config::builder()
        .dsn(dsn)
        .lease(LEASE)
        .stale_after(Duration::from_millis(1300))
        .role(RoleSpec::named("r").cool_down(Duration::ZERO));
    let member = Member::start(config.build().expect("a good configuration")).await;
    member.expect("a member")
}

#[tokio::test]
async fn every_metric_and_every_transition_is_told_with_its_labels() {
    let meter = Meter::install();
    let heard = ear::install();
    let cluster = Cluster::start().await.unwrap();
    // A runtime of its own with one thread, so that this member can stand still.
    let apart = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let apart = apart.unwrap();
    let first = apart.spawn(member(cluster.dsn())).await.unwrap();
    let lock = first.lock("r").unwrap();
    // Every series of the role is there from its beginning on, at zero.
    let counted = |name: &str| meter.counted(name, "role=r");
    let shows = |name: &str| meter.gauge(name, "role=r");
    first.health().await.expect("it runs");
    for name in tenure::metrics::NAMES.iter().filter(|name| name.ends_with("_total")) {
        assert_eq!(counted(name), Some(0), "{name}");
    }
    for name in ["tenure_is_leader", "tenure_tenure_seconds", "tenure_leader_stale"] {
        assert_eq!(shows(name), Some(0.0), "{name}");
    }
    // An act is refused and counted, whichever way it asks; a look is none.
    assert!(lock.begin_act(Duration::ZERO).is_err());
    assert!(lock.gate().require_leader().is_err());
    assert!(lock.gate().ensure_epoch(Epoch(1)).is_err());
    assert!(lock.gate().peek().is_err() && !lock.is_leader());
    assert_eq!(counted("tenure_acts_refused_total"), Some(3));
    lock.start().await.unwrap();
    assert!(lock.wait_for_leadership(Some(PATIENCE)).await.is_ok());
    let mut events = lock.events();
    lock.step_down(Some(PATIENCE)).await.unwrap();
    assert!(lock.wait_for_leadership(Some(PATIENCE)).await.is_ok());
    // The gate opens before the event is told: the first term's may still be on its way.
    let second = |notice: &Notice| matches!(notice, Notice::Acquired { epoch } if epoch.get() == 2);
    let again = async { while !second(&events.recv().await.unwrap().notice) {} };
    tokio::time::timeout(PATIENCE, again).await.expect("the second term");
    assert_eq!(counted("tenure_acquired_total"), Some(2));
    assert_eq!(counted("tenure_released_total"), Some(1));
    assert_eq!(shows("tenure_is_leader"), Some(1.0));
    assert_eq!(shows("tenure_epoch"), Some(2.0));
    assert_eq!(counted("tenure_acts_refused_total"), Some(3), "waiting is no act");

    // A stall for longer than the lease, shorter than lease and margin: late, then well again. One
    // that meets a round trip under way, or a busy machine, ends in a loss instead: once more then.
    let mut events = lock.events();
    let stall = || apart.spawn(async { std::thread::sleep(LEASE + Duration::from_millis(100)) });
    let mut well = false;
    for _ in 0..20 {
        stall();
        let end = async {
            loop {
                match events.recv().await.unwrap().notice {
                    Notice::Well { .. } => break true,
                    Notice::Lost { .. } => break false,
                    _ => {}
                }
            }
        };
        well = tokio::time::timeout(PATIENCE, end).await.expect("late or lost");
        assert!(lock.wait_for_leadership(Some(PATIENCE)).await.is_ok());
        if well {
            break;
        }
    }
    assert!(well, "late, and well again");
    // People read it among the group's events.
    let client = cluster.client("postgres").await.unwrap();
    let sql = "select count(distinct kind) from tenure.event where kind in ('late', 'well') and role = 'r'";
    let kinds: i64 = client.query_one(sql, &[]).await.unwrap().get(0);
    assert_eq!(kinds, 2);
    // The term went on meanwhile, and so does its length.
    let until = tokio::time::Instant::now() + PATIENCE;
    while shows("tenure_tenure_seconds") < Some(LEASE.as_secs_f64()) {
        assert!(tokio::time::Instant::now() < until, "{:?}", shows("tenure_tenure_seconds"));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(counted("tenure_late_total") >= Some(1));

    // The second member sees the silence.
    let second = member(cluster.dsn()).await;
    let other = second.lock("r").unwrap();
    other.start().await.unwrap();
    meter.times("tenure_heartbeat_seconds", 3, PATIENCE).await;
    stall();
    meter.until("tenure_leader_stale", PATIENCE).await;
    while lock.wait_for_leadership(Some(LEASE)).await.is_err() {
        other.step_down(Some(PATIENCE)).await.unwrap();
    }
    let mut events = lock.events();

    // A lost session; the server goes away and comes back.
    let client = cluster.client("postgres").await.unwrap();
    let end = "select pg_terminate_backend(backend_pid) from tenure.member where identity = $1";
    let leader = first.identity().as_str().to_owned();
    client.execute(end, &[&leader]).await.unwrap();
    drop(client);
    let lost =
        async { while !matches!(events.recv().await.unwrap().notice, Notice::Lost { .. }) {} };
    tokio::time::timeout(PATIENCE, lost).await.expect("a loss");
    meter.until("tenure_failovers_total", PATIENCE).await;
    cluster.stop(Stop::Fast).await.unwrap();
    meter.until("tenure_errors_total", PATIENCE).await;
    cluster.start_again().await.unwrap();
    // One of them leads again, so that its shutdown is a release.
    let led = tokio::select! {
        led = lock.wait_for_leadership(Some(PATIENCE)) => led,
        led = other.wait_for_leadership(Some(PATIENCE)) => led,
    };
    assert!(led.is_ok(), "{led:?}");
    first.shutdown(Some(PATIENCE)).await.unwrap();
    second.shutdown(Some(PATIENCE)).await.unwrap();
    apart.shutdown_background();

    // Every term that began has ended, one way or the other.
    assert_eq!(shows("tenure_is_leader"), Some(0.0));
    assert_eq!(shows("tenure_tenure_seconds"), Some(0.0));
    let ended = counted("tenure_lost_total").zip(counted("tenure_released_total"));
    assert_eq!(counted("tenure_acquired_total"), ended.map(|(lost, released)| lost + released));
    assert!(
        counted("tenure_lost_total") >= Some(1) && counted("tenure_failovers_total") >= Some(1)
    );
    assert!(counted("tenure_errors_total") >= Some(1), "a lost session is an error");
    let seen = meter.seen();
    for name in tenure::metrics::NAMES {
        let labels =
            seen.get(*name).unwrap_or_else(|| panic!("{name} was never emitted: {seen:#?}"));
        let alone = [
            "tenure_heartbeat_age_seconds",
            "tenure_acquire_seconds",
            "tenure_heartbeat_seconds",
            "tenure_connected",
        ];
        let wanted = if alone.contains(name) { "" } else { "role=r" };
        assert_eq!(labels.iter().map(String::as_str).collect::<Vec<_>>(), [wanted], "{name}");
    }
    let ours = |name: &&String| name.starts_with("tenure_");
    let unnamed: Vec<_> = seen
        .keys()
        .filter(ours)
        .filter(|name| !tenure::metrics::NAMES.contains(&name.as_str()))
        .collect();
    assert!(unnamed.is_empty(), "not in the contract: {unnamed:?}");

    let told = heard.told();
    for wanted in [
        "state_change",
        "acquired",
        "released",
        "lost",
        "acquire_failed",
        "error",
        "late",
        "well",
        "stopped",
    ] {
        let fields = told.get(wanted).unwrap_or_else(|| panic!("no {wanted}: {:?}", told.keys()));
        let mut names = vec!["role", "member", "key", "epoch"];
        names.extend(if wanted == "state_change" {
            ["from", "to"].as_slice()
        } else {
            &["reason"]
        });
        names.extend((wanted == "acquired").then_some("attempt"));
        for name in names {
            assert!(fields.contains(name), "{wanted} has no {name}: {fields:?}");
        }
    }
    // A seat that was lost tells which term went with it.
    let lost: Vec<_> =
        told.iter().filter(|(words, _)| words.starts_with("the seat is lost")).collect();
    let names = ["member", "held", "error", "role", "key", "epoch"];
    let tells = |fields: &BTreeSet<String>| names.iter().all(|name| fields.contains(*name));
    assert!(lost.iter().any(|(_, fields)| tells(fields)), "{lost:?}");
}

/// A name that changes breaks a user's dashboard: it is a decision, not an accident.
#[test]
fn the_names_are_these() {
    assert_eq!(
        tenure::metrics::NAMES,
        [
            "tenure_acquired_total",
            "tenure_lost_total",
            "tenure_released_total",
            "tenure_acquire_attempts_total",
            "tenure_acts_refused_total",
            "tenure_is_leader",
            "tenure_epoch",
            "tenure_heartbeat_age_seconds",
            "tenure_acquire_seconds",
            "tenure_heartbeat_seconds",
            "tenure_tenure_seconds",
            "tenure_failovers_total",
            "tenure_late_total",
            "tenure_errors_total",
            "tenure_connected",
            "tenure_leader_stale",
        ]
    );
}

/// The page people read names every metric.
#[test]
fn the_page_names_every_metric() {
    let page = include_str!("../../../../docs/metrics.md");
    for name in tenure::metrics::NAMES {
        assert!(page.contains(&format!("`{name}`")), "{name}");
    }
    for name in [
        "leader_acquired_total",
        "leadership_lost_total",
        "acquire_attempts_total",
        "extrinsic_blocked_not_leader_total",
        "is_leader",
        "leader_epoch",
        "heartbeat_age_ms",
        "acquire_latency_ms",
        "heartbeat_update_ms",
        "forge_leader_is_leader",
        "forge_leader_elections_total",
        "forge_leader_tenure_seconds",
        "forge_leader_failovers_total",
    ] {
        assert!(page.contains(&format!("`{name}`")), "{name} of another system");
    }
}
