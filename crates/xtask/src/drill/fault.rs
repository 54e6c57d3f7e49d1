//! The faults of a drill, one after the other, each on a cluster that is whole.

use std::time::{Duration, Instant};

use clap::ValueEnum;
use rustix::process::Signal;
use tenure_testkit::history::now_ns;
use tokio::time::sleep;

use super::children::Members;
use super::cluster::{Cluster, SERVERS};
use super::network::Network;

/// Longer than Patroni's TTL (20 s), what it needs to promote, and what a member needs to lead.
const FAILOVER: Duration = Duration::from_secs(60);
/// Longer than a lease and its margin.
const LEASE: Duration = Duration::from_secs(5);
/// Longer than Patroni's patience with an etcd that does not answer.
const ETCD: Duration = Duration::from_secs(16);
/// Longer than a primary waits for a standby that does not answer (`wal_sender_timeout`, 15 s), and shorter
/// than what Patroni needs to take note of it.
const STANDBY: Duration = Duration::from_secs(25);
/// Long enough for a standby to fall behind.
const LAG: Duration = Duration::from_secs(3);

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Fault {
    Switchover,
    Failover,
    KillPostmaster,
    KillPatroniAndPostmaster,
    KillMachine,
    StopServer,
    StopMachine,
    StopPatroni,
    Partition,
    PartitionWithLeader,
    PartitionWithLeaderPatroniHung,
    RestartAll,
    KillAllServers,
    LostCommits,
    LaggingStandby,
    TwoAtOnce,
    LeaderFrozen,
    EtcdFrozen,
    StandbyFrozen,
    StandbyKilled,
}

impl Fault {
    pub(super) fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    pub(super) const fn meaning(self) -> &'static str {
        match self {
            Fault::Switchover => "an operator moves the primary",
            Fault::Failover => "an operator fails over to a standby",
            Fault::KillPostmaster => "SIGKILL of the primary's postmaster",
            Fault::KillPatroniAndPostmaster => "SIGKILL of both on the primary's machine",
            Fault::KillMachine => "SIGKILL of everything on the primary's machine",
            Fault::StopServer => {
                "every process of the primary stands still, and goes on after the failover"
            }
            Fault::StopMachine => "Patroni too; the server goes on before Patroni does",
            Fault::StopPatroni => "Patroni of the primary stands still",
            Fault::Partition => "the primary is cut off",
            Fault::PartitionWithLeader => "the primary and the leader are cut off together",
            Fault::PartitionWithLeaderPatroniHung => "the same, and Patroni there does not demote",
            Fault::RestartAll => "every server is restarted",
            Fault::KillAllServers => "SIGKILL of every postmaster at once",
            Fault::LostCommits => "the standbys are cut off, then the primary is killed",
            Fault::LaggingStandby => "a standby replays nothing, then the primary is killed",
            Fault::TwoAtOnce => "the primary's machine and the leader are killed",
            Fault::LeaderFrozen => "the leader stands still over a switchover",
            Fault::EtcdFrozen => "etcd stands still",
            Fault::StandbyFrozen => "every process of a standby stands still",
            Fault::StandbyKilled => "SIGKILL of everything on a standby's machine",
        }
    }

    /// Breaks it, and waits until what follows has followed. The caller mends everything.
    pub(super) async fn strike(
        self,
        network: &Network,
        cluster: &Cluster,
        members: &mut Members,
    ) -> anyhow::Result<()> {
        let primary = cluster.primary().await?;
        let standbys = cluster.standbys().await?;
        let leader = members.leader()?.unwrap_or("m1");
        match self {
            Fault::Switchover => switchover(cluster).await?,
            Fault::Failover => {
                // One that has every commit: Patroni promotes any other only by force.
                let to = synchronous(cluster, &standbys, primary).await;
                cluster.patronictl(&["failover", "drill", "--candidate", to, "--force"]).await?;
                sleep(LEASE).await;
            }
            Fault::KillPostmaster => {
                cluster.signal_postmaster(primary, Signal::KILL);
                sleep(LEASE * 2).await;
            }
            Fault::KillPatroniAndPostmaster => {
                cluster.signal_patroni(primary, Signal::KILL);
                cluster.signal_postmaster(primary, Signal::KILL);
                failover(cluster, members, primary).await?;
            }
            Fault::KillMachine => {
                kill_machine(cluster, primary);
                failover(cluster, members, primary).await?;
            }
            Fault::StopServer => {
                cluster.signal_server(primary, Signal::STOP);
                failover(cluster, members, primary).await?;
            }
            Fault::StopMachine => {
                cluster.signal_patroni(primary, Signal::STOP);
                cluster.signal_server(primary, Signal::STOP);
                failover(cluster, members, primary).await?;
                cluster.signal_server(primary, Signal::CONT);
                sleep(LEASE).await;
            }
            Fault::StopPatroni => {
                cluster.signal_patroni(primary, Signal::STOP);
                failover(cluster, members, primary).await?;
            }
            Fault::Partition => {
                network.cut_off(&[primary]).await?;
                failover(cluster, members, primary).await?;
            }
            Fault::PartitionWithLeader => {
                network.cut_off(&[primary, leader]).await?;
                failover(cluster, members, primary).await?;
            }
            Fault::PartitionWithLeaderPatroniHung => {
                cluster.signal_patroni(primary, Signal::STOP);
                network.cut_off(&[primary, leader]).await?;
                failover(cluster, members, primary).await?;
            }
            Fault::RestartAll => {
                cluster.patronictl(&["restart", "drill", "--force"]).await?;
                sleep(LEASE).await;
            }
            Fault::KillAllServers => {
                for name in SERVERS {
                    cluster.signal_postmaster(name, Signal::KILL);
                }
                sleep(LEASE * 2).await;
            }
            Fault::LostCommits => {
                network.cut_off(&standbys).await?;
                sleep(LAG).await;
                kill_machine(cluster, primary);
                network.heal().await?;
                failover(cluster, members, primary).await?;
            }
            Fault::LaggingStandby => {
                cluster.sql(standbys[0], "select pg_wal_replay_pause()").await?;
                sleep(LAG).await;
                kill_machine(cluster, primary);
                failover(cluster, members, primary).await?;
            }
            Fault::TwoAtOnce => {
                kill_machine(cluster, primary);
                members.kill(leader);
                failover(cluster, members, primary).await?;
            }
            Fault::LeaderFrozen => {
                members.freeze(leader);
                switchover(cluster).await?;
            }
            Fault::EtcdFrozen => {
                cluster.signal_etcd(Signal::STOP);
                sleep(ETCD).await;
            }
            Fault::StandbyFrozen => {
                cluster.signal_server(standbys[0], Signal::STOP);
                sleep(STANDBY).await;
            }
            Fault::StandbyKilled => {
                kill_machine(cluster, standbys[0]);
                sleep(LEASE * 2).await;
            }
        }
        Ok(())
    }
}

/// Until another server is the primary and a child has acted since, and a moment more. A cluster that does not
/// fail over is given up on; what became of it, the row tells.
async fn failover(cluster: &Cluster, members: &Members, from: &str) -> anyhow::Result<()> {
    let until = Instant::now() + FAILOVER;
    let mut commits = None;
    while Instant::now() < until {
        if commits.is_none() && cluster.commits_beside(from).await {
            commits = Some(now_ns());
        }
        if commits.is_some_and(|at| members.last_act().is_ok_and(|act| act > at)) {
            break;
        }
        sleep(Duration::from_millis(200)).await;
    }
    sleep(LEASE).await;
    Ok(())
}

fn kill_machine(cluster: &Cluster, name: &str) {
    cluster.signal_patroni(name, Signal::KILL);
    cluster.signal_server(name, Signal::KILL);
}

async fn switchover(cluster: &Cluster) -> anyhow::Result<()> {
    cluster.patronictl(&["switchover", "drill", "--force"]).await?;
    sleep(LEASE).await;
    Ok(())
}

/// A standby that acknowledges commits; any, if none must.
async fn synchronous(cluster: &Cluster, standbys: &[&'static str], primary: &str) -> &'static str {
    for name in standbys {
        let question = format!(
            "select exists (select from pg_stat_replication where application_name = '{name}' \
             and sync_state in ('sync', 'quorum'))"
        );
        if cluster.says(primary, &question).await {
            return name;
        }
    }
    standbys[0]
}
