//! Failover of the database itself: what was lost, and a primary that does not know it is none.

use std::time::{Duration, Instant};

use tenure_core::lease::Fault;
use tenure_testkit::{Cluster, Direction, Proxy, ReplicaOptions, history::now_ns};
use tokio::time::sleep;

use crate::{
    group::{Group, Node, connect, number, own_server, seat_pid, until},
    node::Setup,
};

/// Finds the primary among the servers, in this order.
fn dsn_of(servers: &[&Cluster]) -> String {
    let ports: Vec<String> = servers.iter().map(|server| server.port().to_string()).collect();
    let hosts = vec!["127.0.0.1"; servers.len()].join(",");
    format!(
        "host={hosts} port={} dbname=app user=postgres target_session_attrs=read-write",
        ports.join(",")
    )
}

async fn with_replica(sync: bool) -> (Cluster, Cluster) {
    let (primary, _) = own_server().await;
    let options = ReplicaOptions { sync, ..ReplicaOptions::default() };
    let replica = primary.replica(options).await.expect("a replica");
    (primary, replica)
}

/// With a link between them that can be cut: what the primary writes from then on, it alone has.
async fn with_cuttable_replica() -> (Cluster, Proxy, Cluster) {
    let (primary, _) = own_server().await;
    let link = Proxy::start(primary.addr()).await.expect("a proxy");
    let options = ReplicaOptions { via: Some(link.addr()), ..ReplicaOptions::default() };
    let replica = primary.replica(options).await.expect("a replica");
    (primary, link, replica)
}

async fn promoted(fenced: bool) {
    let (primary, replica) = with_replica(false).await;
    let setup = Setup { fenced, ..Setup::new("", &dsn_of(&[&primary, &replica])) };
    let mut group = Group::start(&["a", "b", "c"], &setup).await;
    let old = group.leader(0).await;
    replica.wait_caught_up(&primary).await.expect("caught up");
    primary.crash().await.expect("crashed");
    replica.promote().await.expect("promoted");
    let back = now_ns();
    let new = group.fail_over("promotion", Fault::DatabaseRestart, back, old.epoch).await;
    assert!(new.epoch >> 40 > old.epoch >> 40, "a new generation of epochs");
    group.watch_for(Duration::from_millis(300)).await;
}

#[tokio::test]
async fn after_a_promotion_one_member_leads_within_the_bound() {
    promoted(false).await;
}

#[tokio::test]
async fn after_a_promotion_one_member_leads_within_the_bound_when_fenced() {
    promoted(true).await;
}

/// The replica missed the last bumps, and no member that saw them is left.
#[tokio::test]
async fn epochs_stay_above_those_that_a_failover_lost() {
    let (primary, link, replica) = with_cuttable_replica().await;
    let setup = Setup {
        cool_down: Duration::from_millis(50),
        ..Setup::new("", &dsn_of(&[&primary, &replica]))
    };
    let mut group = Group::start(&["a", "b"], &setup).await;
    let mut lead = group.leader(0).await;
    replica.wait_caught_up(&primary).await.expect("caught up");
    link.blackhole(Direction::Both);
    let known = lead.epoch;
    for _ in 0..5 {
        group.nodes[lead.node].do_now("step_down").await.expect("stepped down");
        lead = group.leader(lead.epoch).await;
    }
    assert!(lead.epoch >= known + 5);
    for node in &mut group.nodes {
        node.kill().await;
    }
    primary.crash().await.expect("crashed");
    replica.promote().await.expect("promoted");
    let client = replica.client("app").await.expect("a session");
    let survived = number(&client, "select epoch from tenure.role").await.cast_unsigned();
    assert!(survived < lead.epoch, "the replica missed nothing");
    let back = now_ns();
    group.nodes.push(Node::start(Setup { name: "c".into(), ..setup }).await);
    let new =
        group.fail_over("promotion, bumps lost", Fault::DatabaseRestart, back, lead.epoch).await;
    assert!(new.epoch > lead.epoch, "{} was issued after {}", new.epoch, lead.epoch);
}

/// Two failovers, each to a server that missed what was issued last, and no member that remembers.
#[tokio::test]
async fn a_second_failover_that_lost_the_first_ones_bump_issues_no_epoch_again() {
    let (first, second) = with_replica(false).await;
    let mut group = Group::default();
    group.add(Setup::new("a", &dsn_of(&[&first]))).await;
    let one = group.leader(0).await;
    second.wait_caught_up(&first).await.expect("caught up");
    group.nodes[0].kill().await;
    first.crash().await.expect("crashed");
    second.promote().await.expect("promoted");
    let link = Proxy::start(second.addr()).await.expect("a proxy");
    let options = ReplicaOptions { via: Some(link.addr()), ..ReplicaOptions::default() };
    let third = second.replica(options).await.expect("a replica");
    link.blackhole(Direction::Both);
    group.nodes.push(Node::start(Setup::new("b", &dsn_of(&[&second]))).await);
    let two = group.leader(one.epoch).await;
    group.nodes[1].kill().await;
    second.crash().await.expect("crashed");
    third.promote().await.expect("promoted");
    let client = third.client("app").await.expect("a session");
    let survived = number(&client, "select epoch from tenure.role").await.cast_unsigned();
    assert_eq!(survived, one.epoch, "the last server knows of the second term");
    group.nodes.push(Node::start(Setup::new("c", &dsn_of(&[&third]))).await);
    let three = group.leader(two.epoch).await;
    assert_eq!(three.node, 2);
    group.verify();
}

/// The replica has the clean release, but not the claim that followed it: "no term owes anything"
/// is not true any more.
#[tokio::test]
async fn a_failover_that_lost_the_claim_after_a_clean_release_makes_the_next_one_wait() {
    let (primary, link, replica) = with_cuttable_replica().await;
    // The release must not fail on a busy machine: it is what this is about.
    let statement_deadline = Duration::from_millis(1000);
    let setup = Setup { statement_deadline, ..Setup::new("", &dsn_of(&[&primary, &replica])) };
    let mut group = Group::start(&["a", "b"], &setup).await;
    group.nodes[1].freeze();
    group.nodes[0].do_now("shutdown").await.expect("released");
    replica.wait_caught_up(&primary).await.expect("caught up");
    link.blackhole(Direction::Both);
    group.nodes[1].thaw();
    let first = group.leader(0).await;
    let lost = group.leader(first.epoch).await;
    assert_eq!(lost.node, 1);
    group.nodes[1].order("stall 9000").await;
    group.nodes[1].wait_said("the stall", |said| said["say"] == "stalled").await;
    primary.crash().await.expect("crashed");
    replica.promote().await.expect("promoted");
    let client = replica.client("app").await.expect("a session");
    let row = "select count(*) from tenure.role where holder is null and debtor is null";
    assert_eq!(number(&client, row).await, 1, "the replica knows of the claim");
    let back = now_ns();
    group.nodes.push(Node::start(Setup { name: "c".into(), ..setup.clone() }).await);
    let new =
        group.fail_over("promotion, claim lost", Fault::DatabaseRestart, back, lost.epoch).await;
    let waited = Duration::from_nanos(new.at_ns - back);
    assert!(waited >= setup.lease, "it waited only {waited:?}");
}

/// Cancelled while it waits for a standby, a commit reports success with a warning. It is none.
#[tokio::test]
async fn a_beat_cancelled_while_it_waits_for_a_standby_has_failed() {
    let (primary, replica) = with_replica(true).await;
    let mut group = Group::start(&["a", "b"], &Setup::new("", &dsn_of(&[&primary]))).await;
    let old = group.leader(0).await;
    let client = primary.client("app").await.expect("a session");
    let pid = seat_pid(&client, &mut group.nodes[0]).await;
    replica.pause_receiving().await.expect("paused");
    let sql = format!(
        "select count(pg_cancel_backend(pid)) from pg_stat_activity \
         where pid = {pid} and wait_event = 'SyncRep'"
    );
    until("a beat that waits", || async { number(&client, &sql).await == 1 }).await;
    group.nodes[0].wait_notice("canceling wait for synchronous replication").await;
    let events = group.nodes[0].events();
    let after = events.iter().filter(|event| event.instant().epoch > old.epoch).count();
    assert_eq!(after, 0, "it won a term although no standby acknowledged it");
    replica.resume_receiving().await.expect("resumed");
    let back = now_ns();
    group.fail_over("standby back", Fault::DatabaseRestart, back, old.epoch).await;
}

/// The standby was promoted while the old primary runs on with a leader on it, which cannot see
/// the new one.
#[tokio::test]
async fn a_deposed_primary_that_still_runs_cannot_keep_a_leader() {
    let (primary, replica) = with_replica(true).await;
    let mut group = Group::default();
    let setup = Setup::new("a", &dsn_of(&[&primary]));
    group.add(setup.clone()).await;
    // The others look for the new primary first.
    let dsn = dsn_of(&[&replica, &primary]);
    group.add(Setup { name: "b".into(), dsn, ..setup }).await;
    group.settle(2).await;
    let old = group.leader(0).await;
    replica.promote().await.expect("promoted");
    let back = now_ns();
    // The other has to notice first that the old primary does not answer any more: one beat.
    let new = group.fail_over("deposed primary", Fault::Freeze, back, old.epoch).await;
    assert_eq!(new.node, 1);
    group.watch_for(Duration::from_secs(2)).await;
    assert!(group.nodes[0].last_yes() < Some(new.at_ns), "the deposed leader came back");
}

/// Without tables a beat writes nothing that a standby could acknowledge, so it says something for the purpose.
#[tokio::test]
async fn a_deposed_primary_cannot_keep_a_leader_without_tables_either() {
    let (primary, replica) = with_replica(true).await;
    let mut group = Group::default();
    let setup = Setup { lock_only: true, ..Setup::new("a", &dsn_of(&[&primary])) };
    group.add(setup.clone()).await;
    group.leader(0).await;
    replica.promote().await.expect("promoted");
    // Its beat waits for a standby that follows no more. The other member knows nothing of it, and waits.
    let dsn = dsn_of(&[&replica]);
    group.nodes.push(Node::start(Setup { name: "b".into(), dsn, ..setup }).await);
    let until = Instant::now() + Duration::from_secs(20);
    let led = loop {
        if let Some(first) = group.nodes[1].events().first() {
            break first.instant().at_ns;
        }
        assert!(Instant::now() < until, "no leader on the new primary");
        sleep(Duration::from_millis(5)).await;
    };
    group.nodes[0].wait_notice("Lost").await;
    sleep(Duration::from_secs(1)).await;
    assert!(group.nodes[0].last_yes() < Some(led), "the deposed leader leads beside the new one");
}

/// A leader that stood still beyond its lease looks at its locks before its gate opens again. On a primary whose
/// standbys follow no more that look finds the locks as they were, and must not be enough.
#[tokio::test]
async fn without_tables_a_late_leader_is_not_let_in_again_by_a_deposed_primary() {
    let (primary, replica) = with_replica(true).await;
    // The server keeps the session for longer than the leader stands still.
    let margin = Some(Duration::from_secs(4));
    let setup = Setup { lock_only: true, margin, ..Setup::new("a", &dsn_of(&[&primary])) };
    let lease = setup.lease;
    let mut group = Group::default();
    group.add(setup).await;
    let client = primary.client("app").await.expect("a session");
    group.nodes[0].freeze();
    let frozen = Instant::now();
    let idle = "select count(*) from pg_stat_activity a join pg_locks l using (pid) \
                where l.locktype = 'advisory' and l.granted and a.state = 'idle'";
    until("its last beat to end", || async { number(&client, idle).await >= 1 }).await;
    replica.pause_receiving().await.expect("paused");
    tokio::time::sleep_until((frozen + lease + Duration::from_millis(300)).into()).await;
    assert!(number(&client, idle).await >= 1, "the server ended the session first");
    let thawed = now_ns();
    group.nodes[0].thaw();
    group.nodes[0].wait_notice("Lost").await;
    assert!(group.nodes[0].last_yes() < Some(thawed), "its gate opened again");
}

/// Every member lists the old primary first. It still lets them in as a read-write server, and none of
/// their commits there can finish.
#[tokio::test]
async fn a_deposed_primary_that_is_listed_first_does_not_keep_the_group() {
    let (primary, replica) = with_replica(true).await;
    let setup = Setup::new("", &dsn_of(&[&primary, &replica]));
    let mut group = Group::start(&["a", "b"], &setup).await;
    let old = group.leader(0).await;
    replica.promote().await.expect("promoted");
    let back = now_ns();
    // They have to notice first that the old primary does not answer any more: one beat.
    let new = group.fail_over("deposed primary first", Fault::Freeze, back, old.epoch).await;
    assert!(new.epoch >> 40 > old.epoch >> 40, "a new generation of epochs");
}

/// A claim that no standby acknowledged is not led under, however often it is tried.
#[tokio::test]
async fn without_its_standby_a_synchronous_primary_gets_no_leader() {
    let (primary, replica) = with_replica(true).await;
    let mut group = Group::start(&["a", "b"], &Setup::new("", &dsn_of(&[&primary]))).await;
    let old = group.leader(0).await;
    replica.pause_receiving().await.expect("paused");
    group.nodes[0].wait_notice("Lost").await;
    group.watch_for(Duration::from_millis(2500)).await;
    assert!(group.events().iter().all(|event| event.instant().epoch == old.epoch));
    replica.resume_receiving().await.expect("resumed");
    let back = now_ns();
    group.fail_over("standby back", Fault::DatabaseRestart, back, old.epoch).await;
    let client = connect(&primary.dsn_for("app", "postgres")).await;
    let locks = "select count(*) from pg_locks l join tenure.role r \
                 on l.locktype = 'advisory' and l.granted \
                 and l.classid = ((r.key >> 32) & 4294967295)::oid \
                 and l.objid = (r.key & 4294967295)::oid";
    assert_eq!(number(&client, locks).await, 1, "one lock, one holder");
}
