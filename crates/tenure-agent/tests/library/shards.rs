//! Shards spread over members of the library.
//!
//! `TENURE_SHARDS=1000` spreads as many over ten members; default: 100 over five.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tenure::config::{Config, RoleSpec};
use tenure::{Lease, Member};
use tenure_agent::placement::{Place, place};
use tenure_agent::{Shards, Spreading};
use tenure_testkit::{Database, shared_cluster};
use tokio::runtime::{Builder, Runtime};
use tokio_postgres::Client;

/// What a busy machine, and this test's own look, may take beyond a bound.
const SLACK: Duration = Duration::from_millis(1500);

const SOON: Duration = Duration::from_secs(120);

struct Group {
    database: Database,
    client: Client,
    shards: Shards,
    /// With how many shards and members; a small group is quick.
    is_large: bool,
}

/// A member with a runtime of its own, so that it can be killed.
struct Node {
    runtime: Runtime,
    member: Member,
    spreading: Spreading,
}

impl Node {
    fn place(&self) -> Place {
        let identity = self.member.identity();
        Place { member: identity.as_str().to_owned(), instance: identity.place().to_owned() }
    }

    fn lease(&self) -> Lease {
        *self.member.config().lease()
    }

    /// Its tasks end where they are and its sockets are closed, as with SIGKILL.
    fn kill(self) {
        self.runtime.shutdown_background();
    }

    async fn leave(self) {
        let Node { runtime, member, spreading } = self;
        drop(spreading);
        let left = runtime.spawn(member.shutdown(Some(SOON)));
        left.await.expect("no panic").expect("it leaves");
        runtime.shutdown_background();
    }
}

impl Group {
    async fn new(count: u32) -> Self {
        let database = shared_cluster().await.database().await.expect("a database");
        let client = database.client().await.expect("a session");
        Group { database, client, shards: Shards::new("ingest", count), is_large: count > 100 }
    }

    fn config(&self, instance: &str) -> Config {
        let mut config = Config::builder().dsn(self.database.dsn()).instance(instance);
        // The large one has the timings that a program has which gives none.
        if !self.is_large {
            let millis = Duration::from_millis;
            config =
                config.heartbeat(millis(500)).lease(millis(2000)).statement_deadline(millis(700));
        }
        self.shards.specs().fold(config, |config, role| config.role(role)).build().expect("valid")
    }

    async fn join(&self, instance: &str) -> Node {
        let runtime =
            Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
        let (config, shards) = (self.config(instance), self.shards.clone());
        let started = runtime.spawn(async move {
            let member = Member::start(config).await.expect("it starts");
            let spreading = shards.start(&member).expect("it starts");
            member.start_all().await.expect("it takes part");
            (member, spreading)
        });
        let (member, spreading) = started.await.expect("no panic");
        Node { runtime, member, spreading }
    }

    /// Which member acts in which shard.
    async fn holders(&self) -> BTreeMap<String, String> {
        let sql =
            "select name, holder from tenure.role where name like 'ingest-%' and debtor = holder";
        let rows = self.client.query(sql, &[]).await.expect("rows");
        rows.iter().map(|row| (row.get(0), row.get(1))).collect()
    }

    async fn terms(&self) -> i64 {
        let sql = "select count(*) from tenure.term where role like 'ingest-%'";
        self.client.query_one(sql, &[]).await.expect("a row").get(0)
    }

    /// Waits until one of these members acts in every shard; how long that took.
    async fn led(&self, nodes: &[Node], since: Instant) -> Duration {
        let places: Vec<Place> = nodes.iter().map(Node::place).collect();
        let count = self.shards.roles().count();
        loop {
            let holders = self.holders().await;
            let is_there = |member: &String| places.iter().any(|place| place.member == *member);
            if holders.values().filter(|member| is_there(member)).count() == count {
                return since.elapsed();
            }
            assert!(since.elapsed() < SOON, "{} of {count} are led", holders.len());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until no member has more than its share, at most five leases after the last change.
    async fn even(&self, nodes: &[Node], since: Instant) -> Duration {
        let count = self.shards.roles().count();
        let most = count.div_ceil(nodes.len());
        let limit = nodes[0].lease().lease() * 5;
        loop {
            let mut shares = BTreeMap::<String, usize>::new();
            let holders = self.holders().await;
            let led = holders.len();
            for holder in holders.into_values() {
                *shares.entry(holder).or_default() += 1;
            }
            if led == count && shares.values().all(|share| *share <= most) {
                return since.elapsed();
            }
            assert!(since.elapsed() < limit, "more than {most} after {limit:?}: {shares:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Waits until these members hold exactly what is placed with them; how many terms began since.
    async fn placed(&self, nodes: &[Node], terms: i64) -> i64 {
        let mut places: Vec<Place> = nodes.iter().map(Node::place).collect();
        places.sort();
        let roles: Vec<String> = self.shards.roles().collect();
        let placed = place(&roles, &places);
        let wanted: BTreeMap<String, String> = roles
            .into_iter()
            .zip(placed)
            .map(|(role, at)| (role, places[at].member.clone()))
            .collect();
        let begun = Instant::now();
        loop {
            let holders = self.holders().await;
            if holders == wanted {
                return self.terms().await - terms;
            }
            let apart =
                wanted.iter().filter(|(role, member)| holders.get(*role) != Some(member)).count();
            assert!(begun.elapsed() < SOON, "{apart} shards of {} are elsewhere", wanted.len());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[allow(clippy::print_stdout, reason = "its figures are what the large one is for")]
async fn shards_are_spread_and_a_join_a_leave_or_a_death_moves_little_more_than_it_must() {
    let count =
        std::env::var("TENURE_SHARDS").ok().and_then(|text| text.parse().ok()).unwrap_or(100);
    let group = Group::new(count).await;
    if group.is_large {
        // A seat that is lost is told.
        tracing_subscriber::fmt().with_max_level(tracing::Level::WARN).init();
    }
    let members = if group.is_large { 10 } else { 5 };
    let mut nodes = Vec::new();
    for instance in 0..members {
        nodes.push(group.join(&format!("host-{instance}")).await);
    }
    let took = group.even(&nodes, Instant::now()).await;
    println!("{count} shards, {members} members: even after {took:?}");
    group.placed(&nodes, 0).await;
    // Half again as many as must move.
    let bound = i64::from(count.div_ceil(members)) * 3 / 2;

    let terms = group.terms().await;
    nodes.remove(0).leave().await;
    let took = group.even(&nodes, Instant::now()).await;
    let moves = group.placed(&nodes, terms).await;
    println!("one left: even after {took:?}, {moves} moves");
    assert!(moves <= bound, "{moves} of {count} moved when one left");

    let terms = group.terms().await;
    nodes.push(group.join("host-0").await);
    let took = group.even(&nodes, Instant::now()).await;
    let moves = group.placed(&nodes, terms).await;
    println!("one came: even after {took:?}, {moves} moves");
    assert!(moves <= bound, "{moves} of {count} moved when one came");

    let terms = group.terms().await;
    let lease = nodes[0].lease();
    let killed = Instant::now();
    nodes.remove(0).kill();
    let took = group.led(&nodes, killed).await;
    // The documented bound of a crash.
    let limit = lease.lease() + lease.margin() + lease.heartbeat() * 6 / 5;
    println!("one was killed: led again after {took:?} (bound {limit:?})");
    assert!(took <= limit + SLACK, "led again after {took:?}");
    let took = group.even(&nodes, killed).await;
    let moves = group.placed(&nodes, terms).await;
    println!("one was killed: even after {took:?}, {moves} moves");

    // A member that comes and goes every second: time is the subject.
    let terms = group.terms().await;
    for _ in 0..if group.is_large { 10 } else { 2 } {
        let begun = Instant::now();
        let restless = group.join("restless").await;
        tokio::time::sleep(Duration::from_secs(1).saturating_sub(begun.elapsed())).await;
        restless.leave().await;
    }
    assert_eq!(group.terms().await, terms, "it moved shards");
    for node in nodes {
        node.leave().await;
    }
}

#[tokio::test]
async fn a_shard_that_preempts_is_refused() {
    let group = Group::new(2).await;
    let config = Config::builder()
        .dsn(group.database.dsn())
        .role(RoleSpec::named("ingest-0"))
        .role(RoleSpec::named("ingest-1").preempt(true))
        .build()
        .expect("valid");
    let member = Member::start(config).await.expect("it starts");
    let error = group.shards.start(&member).expect_err("refused");
    assert!(error.to_string().contains("preempt"), "{error}");
}
