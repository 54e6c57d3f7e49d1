//! The leader's connection is blackholed, reset, or forgotten.

use std::time::Duration;

use tenure_core::lease::Fault;
use tenure_testkit::{Direction, Proxy, history::now_ns};

use crate::{
    group::{Group, shared_server},
    node::Setup,
};

/// Two nodes, the first of which, the leader, is behind a proxy.
async fn group_with_a_proxied_leader(fenced: bool) -> (Group, Proxy) {
    let (database, server) = shared_server().await;
    let proxy = Proxy::start(server).await.expect("a proxy");
    let setup = Setup { fenced, ..Setup::new("a", &proxy.dsn(database.name())) };
    let mut group = Group::default();
    group.add(setup.clone()).await;
    group.add(Setup { name: "b".into(), dsn: database.dsn(), ..setup }).await;
    group.settle(2).await;
    (group, proxy)
}

async fn blackholed(what: &str, direction: Direction, fenced: bool) {
    let (mut group, proxy) = group_with_a_proxied_leader(fenced).await;
    let old = group.leader(0).await;
    let fault = now_ns();
    proxy.blackhole(direction);
    let new = group.fail_over(what, Fault::Freeze, fault, old.epoch).await;
    assert_eq!(new.node, 1);
    proxy.heal();
    group.watch_for(Duration::from_millis(700)).await;
    assert!(group.nodes[0].last_yes() < Some(new.at_ns) || fenced, "the old leader came back");
}

#[tokio::test]
async fn a_leader_whose_requests_are_lost_is_followed_within_the_bound() {
    blackholed("requests lost", Direction::ToServer, false).await;
}

#[tokio::test]
async fn a_leader_whose_answers_are_lost_is_followed_within_the_bound() {
    blackholed("answers lost", Direction::ToClient, false).await;
}

#[tokio::test]
async fn a_partitioned_leader_is_followed_within_the_bound() {
    blackholed("partition", Direction::Both, false).await;
}

#[tokio::test]
async fn a_partitioned_leader_is_followed_within_the_bound_when_fenced() {
    blackholed("partition", Direction::Both, true).await;
}

#[tokio::test]
async fn a_leader_whose_answers_are_lost_is_followed_within_the_bound_when_fenced() {
    blackholed("answers lost", Direction::ToClient, true).await;
}

/// Frozen *and* cut off: the server gets not so much as a FIN.
#[tokio::test]
async fn a_leader_whose_host_is_gone_is_followed_within_the_bound() {
    let (mut group, proxy) = group_with_a_proxied_leader(false).await;
    let old = group.leader(0).await;
    let fault = now_ns();
    proxy.sever();
    group.nodes[0].kill().await;
    let new = group.fail_over("host loss", Fault::Freeze, fault, old.epoch).await;
    assert_eq!(new.node, 1);
}

#[tokio::test]
async fn a_reset_connection_is_a_loss_and_a_new_term() {
    let (mut group, proxy) = group_with_a_proxied_leader(false).await;
    let old = group.leader(0).await;
    let fault = now_ns();
    proxy.reset();
    group.fail_over("connection reset", Fault::BackendTerminated, fault, old.epoch).await;
    group.watch_for(Duration::from_millis(300)).await;
}

/// Its old session lives on in the server until the member, connected again, ends it.
#[tokio::test]
async fn a_half_open_connection_is_given_up_and_its_backend_ended() {
    let (mut group, proxy) = group_with_a_proxied_leader(false).await;
    let old = group.leader(0).await;
    let fault = now_ns();
    proxy.sever();
    group.fail_over("half-open connection", Fault::Freeze, fault, old.epoch).await;
    group.watch_for(Duration::from_millis(300)).await;
}

/// Slow is not dead: below the statement deadline nothing is lost.
#[tokio::test]
async fn a_slow_network_does_not_cost_the_leader_its_term() {
    let (mut group, proxy) = group_with_a_proxied_leader(false).await;
    let old = group.leader(0).await;
    proxy.delay(Duration::from_millis(60));
    group.watch_for(Duration::from_secs(2)).await;
    assert!(group.events().iter().all(|event| event.instant().epoch == old.epoch));
    let quiet = now_ns() - group.nodes[0].last_yes().expect("it leads");
    assert!(quiet < 200_000_000, "its gate has been shut for {quiet} ns");
}
