//! Faults at random, several at once, on everything there is; then quiet, and a leader.
//!
//! One seed makes one sequence of faults, though not one history: real processes and servers have a
//! will of their own. `TENURE_CHAOS_SEED` repeats a sequence, `TENURE_CHAOS_SECONDS` prolongs it.

use std::time::Duration;

use rand::{Rng, SeedableRng, rngs::StdRng};
use tenure_testkit::{Cluster, Database, Direction, Proxy, Stop, history::now_ns};
use tokio::time::{Instant, sleep};

use crate::{
    group::{Group, Node, own_server},
    node::Setup,
};

fn from_env(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

struct Chaos {
    random: StdRng,
    cluster: Cluster,
    database: Database,
    group: Group,
    /// The members that take part now: each one's place in the group, and its link to the server.
    members: Vec<(usize, Proxy)>,
    /// What is to be undone, and when.
    undo: Vec<(Instant, Undo)>,
    born: usize,
}

#[derive(Clone, Copy, Debug)]
enum Undo {
    Thaw(usize),
    Heal(usize),
    ThawServer,
}

impl Chaos {
    async fn start(seed: u64) -> Self {
        let (cluster, database) = own_server().await;
        let random = StdRng::seed_from_u64(seed);
        let (group, members) = (Group::default(), Vec::new());
        let undo = Vec::new();
        let mut chaos = Chaos { random, cluster, database, group, members, undo, born: 0 };
        for _ in 0..3 {
            chaos.join().await;
        }
        chaos.group.leader(0).await;
        chaos
    }

    async fn join(&mut self) {
        let proxy = Proxy::start(self.cluster.addr()).await.expect("a proxy");
        self.born += 1;
        let name = format!("m{}", self.born);
        let grace = self.random.random_bool(0.5).then_some(Duration::from_millis(800));
        let setup = Setup { grace, ..Setup::new(&name, &proxy.dsn(self.database.name())) };
        self.group.nodes.push(Node::launch(setup).await);
        self.members.push((self.group.nodes.len() - 1, proxy));
    }

    fn later(&mut self, most: u64, undo: Undo) {
        let after = Duration::from_millis(self.random.random_range(50..most));
        self.undo.push((Instant::now() + after, undo));
    }

    /// One fault, to whomever it hits.
    async fn strike(&mut self) -> &'static str {
        let member = self.random.random_range(0..self.members.len());
        let at = self.members[member].0;
        match self.random.random_range(0..12) {
            0 | 1 => {
                self.group.nodes[at].freeze();
                self.later(3000, Undo::Thaw(at));
                "SIGSTOP"
            }
            2 | 3 => {
                let all = [Direction::ToServer, Direction::ToClient, Direction::Both];
                self.members[member].1.blackhole(all[self.random.random_range(0..3)]);
                self.later(3000, Undo::Heal(at));
                "blackhole"
            }
            4 => {
                self.members[member].1.reset();
                "reset"
            }
            5 => {
                self.members[member].1.sever();
                "sever"
            }
            6 => {
                let ms = self.random.random_range(100..3000);
                self.group.nodes[at].order(&format!("stall {ms}")).await;
                "stall"
            }
            7 => {
                self.group.nodes[at].order("resign").await;
                "step-down"
            }
            8 => {
                self.group.nodes[at].kill().await;
                self.members.remove(member);
                self.join().await;
                "SIGKILL and a new member"
            }
            9 => {
                // One process of the server dies, and all sessions with it.
                self.end_backend(at, true).await;
                "killed backend"
            }
            10 => {
                self.end_backend(at, false).await;
                "terminated backend"
            }
            _ => self.strike_server().await,
        }
    }

    async fn strike_server(&mut self) -> &'static str {
        match self.random.random_range(0..3) {
            0 => {
                self.thaw_server();
                let how = if self.random.random() { Stop::Fast } else { Stop::Immediate };
                self.cluster.stop(how).await.expect("stopped");
                self.cluster.start_again().await.expect("started");
                "database restart"
            }
            1 => {
                self.thaw_server();
                self.cluster.crash().await.expect("crashed");
                self.cluster.start_again().await.expect("started");
                "database crash"
            }
            _ => {
                self.cluster.freeze();
                self.later(2500, Undo::ThawServer);
                "database hangs"
            }
        }
    }

    fn thaw_server(&mut self) {
        self.undo.retain(|(_, undo)| !matches!(undo, Undo::ThawServer));
        self.cluster.thaw();
    }

    /// Ends a seat's backend, in order or not. Not while the server cannot be asked.
    async fn end_backend(&mut self, at: usize, kill: bool) {
        if self.undo.iter().any(|(_, undo)| matches!(undo, Undo::ThawServer)) {
            return;
        }
        let Ok(client) = self.cluster.client(self.database.name()).await else { return };
        let name = self.group.nodes[at].setup.name.clone();
        let sql = "select pid from pg_stat_activity where application_name like $1";
        let row = client.query_opt(sql, &[&format!("tenure seat {name}-%")]).await;
        let Ok(Some(row)) = row else { return };
        let pid: i32 = row.get(0);
        if kill {
            let pid = rustix::process::Pid::from_raw(pid).expect("a pid");
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        } else {
            let _ = client.execute("select pg_terminate_backend($1)", &[&pid]).await;
        }
    }

    fn undo(&mut self, all: bool) {
        let now = Instant::now();
        let (due, rest) = self.undo.drain(..).partition(|(at, _)| all || *at <= now);
        self.undo = rest;
        for (_, undo) in due as Vec<(Instant, Undo)> {
            match undo {
                Undo::Thaw(at) => self.group.nodes[at].thaw(),
                Undo::Heal(at) => {
                    let member = self.members.iter().find(|(node, _)| *node == at);
                    member.into_iter().for_each(|(_, proxy)| proxy.heal());
                }
                Undo::ThawServer => self.cluster.thaw(),
            }
        }
    }
}

#[tokio::test]
async fn faults_at_random_never_open_two_gates_and_quiet_brings_a_leader() {
    let seed = from_env("TENURE_CHAOS_SEED").unwrap_or_else(rand::random);
    let time = Duration::from_secs(from_env("TENURE_CHAOS_SECONDS").unwrap_or(10));
    let mut chaos = Chaos::start(seed).await;
    let mut struck = Vec::new();
    let end = Instant::now() + time;
    while Instant::now() < end {
        let what = chaos.strike().await;
        struck.push(what);
        let pause = Duration::from_millis(chaos.random.random_range(0..2200));
        let until = Instant::now() + pause;
        while Instant::now() < until {
            chaos.undo(false);
            sleep(Duration::from_millis(10)).await;
        }
        let events = chaos.group.events();
        let checked = tenure_testkit::history::check(&events);
        assert!(checked.is_ok(), "seed {seed}, after {struck:?}: {checked:?}");
    }
    chaos.undo(true);
    // No claim may owe anything to a stall that is still under way: then one leads, and goes on.
    let quiet = now_ns();
    let wait = Duration::from_secs(12);
    let end = Instant::now() + wait;
    let leads = loop {
        let latest = chaos.group.nodes.iter_mut().filter_map(Node::last_yes).max().unwrap_or(0);
        if latest > quiet + 4_000_000_000 {
            break true;
        }
        if Instant::now() > end {
            break false;
        }
        sleep(Duration::from_millis(20)).await;
        chaos.group.verify();
    };
    assert!(leads, "seed {seed}, after {struck:?}: no member leads");
    let epochs = chaos.group.events().iter().map(|e| e.instant().epoch).max().unwrap_or(0);
    chaos
        .group
        .say(&format!("figure: chaos, seed {seed}: {} faults, epoch {epochs}", struck.len()));
}
