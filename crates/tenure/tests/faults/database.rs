//! The database restarts, crashes, hangs, or forgets what it acknowledged.

use std::time::Duration;

use tenure_core::lease::Fault;
use tenure_testkit::{Cluster, Direction, Proxy, Signal, Stop, history::now_ns};
use tokio::time::sleep;

use crate::{
    group::{Group, connect, number, own_server, until},
    node::Setup,
};

enum How {
    FastRestart,
    ImmediateRestart,
    Kill,
    Hang,
}

async fn broken(what: &str, how: How, fenced: bool) {
    let (cluster, database) = own_server().await;
    let setup = Setup { fenced, ..Setup::new("", &database.dsn()) };
    let mut group = Group::start(&["a", "b", "c"], &setup).await;
    let old = group.leader(0).await;
    match how {
        How::FastRestart => cluster.stop(Stop::Fast).await.expect("stopped"),
        How::ImmediateRestart => cluster.stop(Stop::Immediate).await.expect("stopped"),
        How::Kill => cluster.crash().await.expect("crashed"),
        How::Hang => {
            cluster.freeze();
            // Long enough for every gate to shut.
            group.watch_for(setup.lease + Duration::from_millis(200)).await;
            let quiet = now_ns() - group.nodes[0].last_yes().expect("it led");
            assert!(quiet > 100_000_000, "a gate is open on a hung database");
            cluster.thaw();
        }
    }
    if !matches!(how, How::Hang) {
        cluster.start_again().await.expect("started");
    }
    // Members reconnect within their pause between tries, at most 1.2 heartbeats.
    let back = now_ns();
    group.fail_over(what, Fault::DatabaseRestart, back, old.epoch).await;
    group.watch_for(Duration::from_millis(300)).await;
}

#[tokio::test]
async fn after_a_database_restart_one_member_leads_within_the_bound() {
    broken("database restart", How::FastRestart, false).await;
}

#[tokio::test]
async fn after_a_database_restart_one_member_leads_within_the_bound_when_fenced() {
    broken("database restart", How::FastRestart, true).await;
}

#[tokio::test]
async fn after_an_immediate_stop_one_member_leads_within_the_bound() {
    broken("immediate stop", How::ImmediateRestart, false).await;
}

#[tokio::test]
async fn after_a_database_crash_one_member_leads_within_the_bound() {
    broken("database crash", How::Kill, false).await;
}

#[tokio::test]
async fn after_a_database_crash_one_member_leads_within_the_bound_when_fenced() {
    broken("database crash", How::Kill, true).await;
}

#[tokio::test]
async fn a_hung_database_shuts_every_gate_and_one_opens_when_it_is_back() {
    broken("hung database", How::Hang, false).await;
}

/// Nothing can be asked, so no member leads; and every member finds its way back by itself.
#[tokio::test]
async fn while_the_database_is_down_no_member_leads() {
    let (cluster, database) = own_server().await;
    let mut group = Group::start(&["a", "b"], &Setup::new("", &database.dsn())).await;
    let old = group.leader(0).await;
    cluster.stop(Stop::Fast).await.expect("stopped");
    let down = now_ns();
    group.watch_for(Duration::from_secs(2)).await;
    assert!(group.nodes[0].last_yes() < Some(down), "its gate is open without a database");
    cluster.start_again().await.expect("started");
    let back = now_ns();
    group.fail_over("long outage", Fault::DatabaseRestart, back, old.epoch).await;
}

/// The server's process that writes asynchronous commits to disk.
async fn wal_writer(cluster: &Cluster) -> i32 {
    let client = cluster.client("postgres").await.expect("a session");
    let sql = "select pid from pg_stat_activity where backend_type = 'walwriter'";
    client.query_one(sql, &[]).await.expect("one walwriter").get(0)
}

fn signal(pid: i32, signal: Signal) {
    let pid = rustix::process::Pid::from_raw(pid).expect("a pid");
    rustix::process::kill_process(pid, signal).expect("it runs");
}

/// The leader's last beats were acknowledged and lost; a claimant remembers only older ones. If it
/// trusted its memory it would open its gate before the leader's is shut.
async fn beats_lost(whole_server: bool) {
    let (cluster, database) = own_server().await;
    let proxy = Proxy::start(cluster.addr()).await.expect("a proxy");
    let setup = Setup {
        heartbeat: Duration::from_millis(400),
        margin: Some(Duration::from_millis(50)),
        lease: Duration::from_millis(2000),
        ..Setup::new("a", &database.dsn())
    };
    let mut group = Group::default();
    group.add(setup.clone()).await;
    group.add(Setup { name: "b".into(), dsn: proxy.dsn(database.name()), ..setup }).await;
    group.settle(2).await;
    let old = group.leader(0).await;
    let client = connect(&database.dsn()).await;
    let writer = wal_writer(&cluster).await;
    signal(writer, Signal::STOP);
    let beat = "select beat from tenure.member where identity like 'a-%'";
    // The other sees nothing from here on, while the leader beats three times more.
    proxy.blackhole(Direction::Both);
    let before = number(&client, beat).await;
    until("three beats", || async { number(&client, beat).await >= before + 3 }).await;
    group.nodes[0].order("stall 8000").await;
    group.nodes[0].wait_said("the stall", |said| said["say"] == "stalled").await;
    if whole_server {
        cluster.crash().await.expect("crashed");
        cluster.start_again().await.expect("started");
    } else {
        // One process of the server dies: it ends every session and recovers by itself, without
        // a new postmaster.
        signal(writer, Signal::KILL);
    }
    proxy.reset();
    proxy.heal();
    let back = now_ns();
    let new = group.fail_over("lost beats", Fault::DatabaseRestart, back, old.epoch).await;
    assert_eq!(new.node, 1);
    let client = connect(&database.dsn()).await;
    let after = number(&client, beat).await;
    assert!(after < before + 3, "no beat was lost: {before} before, {after} after");
    sleep(Duration::from_millis(100)).await;
    group.verify();
}

#[tokio::test]
async fn a_crash_that_lost_acknowledged_beats_voids_what_was_seen_of_them() {
    beats_lost(true).await;
}

#[tokio::test]
async fn a_recovery_within_the_same_postmaster_voids_what_was_seen_before_it() {
    beats_lost(false).await;
}
