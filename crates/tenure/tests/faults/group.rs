//! Several nodes on one database, and what must be true of what they did together.

use std::{collections::BTreeSet, net::SocketAddr, time::Duration};

use serde_json::Value;
use tenure_core::lease::{Fault, Lease};
use tenure_testkit::{
    Child, Cluster, Database, Signal,
    history::{self, Event, Instant, now_ns},
    shared_cluster,
};
use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpStream},
    process::Command,
    time::{Instant as Moment, sleep, timeout},
};

use crate::node::{Setup, VARIABLE};
pub(crate) use tenure_testkit::until;

/// What a slow or busy machine may add to the time to the next leader. Never to safety.
pub(crate) const SLACK: Duration = Duration::from_millis(1500);
/// The longest any single wait may take before the test has failed.
const PATIENCE: Duration = Duration::from_secs(20);
const LOOK: Duration = Duration::from_millis(3);

/// One node, seen from the test.
pub(crate) struct Node {
    pub(crate) setup: Setup,
    child: Child,
    control: TcpStream,
    read: usize,
    events: Vec<Event>,
    said: Vec<Value>,
}

/// A gate that opened.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lead {
    pub(crate) node: usize,
    pub(crate) epoch: u64,
    pub(crate) at_ns: u64,
}

/// Nodes that compete for the same roles.
#[derive(Default)]
pub(crate) struct Group {
    pub(crate) nodes: Vec<Node>,
}

impl Node {
    /// Starts a node and waits until it takes part.
    pub(crate) async fn start(setup: Setup) -> Self {
        let mut node = Self::launch(setup).await;
        node.wait_said("it to be ready", |said| said["say"] == "ready").await;
        node
    }

    /// Starts a node and does not wait.
    pub(crate) async fn launch(mut setup: Setup) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        setup.control = listener.local_addr().expect("bound").port();
        let mut command = Command::new(std::env::current_exe().expect("this binary"));
        command
            .args(["--exact", "node::main", "--nocapture", "--test-threads=1"])
            .env(VARIABLE, serde_json::to_string(&setup).expect("plain data"));
        let child = Child::spawn(command).expect("this binary runs");
        let accepted = timeout(PATIENCE, listener.accept()).await;
        let (control, _) = accepted.expect("the node connects in time").expect("it connects");
        Node { setup, child, control, read: 0, events: Vec::new(), said: Vec::new() }
    }

    fn take_in(&mut self) {
        let lines = self.child.lines();
        for line in &lines[self.read..] {
            if let Some(event) = Event::parse(line) {
                self.events.push(event);
            } else if let Ok(value @ Value::Object(_)) = serde_json::from_str(line) {
                self.said.push(value);
            }
        }
        self.read = lines.len();
    }

    pub(crate) fn events(&mut self) -> &[Event] {
        self.take_in();
        &self.events
    }

    pub(crate) fn said(&mut self) -> &[Value] {
        self.take_in();
        &self.said
    }

    pub(crate) fn identity(&mut self) -> String {
        let ready = self.said().iter().find(|said| said["say"] == "ready").expect("it is ready");
        ready["identity"].as_str().expect("a text").to_owned()
    }

    /// Whether its log has a line with these words.
    pub(crate) fn logged(&mut self, words: &str) -> bool {
        self.child.lines().iter().any(|line| line.contains(words))
    }

    /// The notices of the role's lifecycle so far.
    pub(crate) fn notices(&mut self) -> Vec<String> {
        let notices = self.said().iter().filter(|said| said["say"] == "notice");
        notices.filter_map(|said| said["notice"].as_str().map(str::to_owned)).collect()
    }

    pub(crate) async fn wait_said(&mut self, what: &str, like: impl Fn(&Value) -> bool) -> Value {
        let begun = Moment::now();
        loop {
            if let Some(found) = self.said().iter().find(|said| like(said)) {
                return found.clone();
            }
            assert!(begun.elapsed() < PATIENCE, "waited for {what} of {}", self.setup.name);
            sleep(LOOK).await;
        }
    }

    pub(crate) async fn wait_notice(&mut self, part: &str) {
        self.wait_said(part, |said| {
            said["say"] == "notice" && said["notice"].as_str().is_some_and(|n| n.contains(part))
        })
        .await;
    }

    /// Gives an order and does not wait.
    pub(crate) async fn order(&mut self, order: &str) {
        let line = format!("{order}\n");
        self.control.write_all(line.as_bytes()).await.expect("the node listens");
    }

    /// Gives an order and waits until it is carried out.
    pub(crate) async fn do_now(&mut self, order: &str) -> Result<(), String> {
        let is = |said: &Value| said["say"] == "done" && said["order"] == order;
        let before = self.said().iter().filter(|said| is(said)).count();
        self.order(order).await;
        let begun = Moment::now();
        loop {
            if let Some(done) = self.said().iter().filter(|said| is(said)).nth(before) {
                return done["error"].as_str().map_or(Ok(()), |error| Err(error.to_owned()));
            }
            assert!(begun.elapsed() < PATIENCE, "waited for {order} of {}", self.setup.name);
            sleep(LOOK).await;
        }
    }

    /// SIGSTOP: the instant after which it cannot have run.
    pub(crate) fn freeze(&self) -> u64 {
        self.child.freeze();
        now_ns()
    }

    pub(crate) fn thaw(&self) {
        self.child.thaw();
    }

    /// SIGKILL, and waits for its end.
    pub(crate) async fn kill(&mut self) {
        self.child.signal_group(Signal::KILL);
        self.child.wait(PATIENCE).await.expect("it can be killed");
    }

    pub(crate) fn signal(&self, signal: Signal) {
        self.child.signal(signal);
    }

    pub(crate) async fn wait_gone(&mut self) {
        self.child.wait(PATIENCE).await.expect("it ends by itself");
    }

    pub(crate) fn lease(&self) -> Lease {
        *self.setup.config().lease()
    }

    /// The last instant at which its gate is known to have said yes.
    pub(crate) fn last_yes(&mut self) -> Option<u64> {
        let yes = |event: &Event| match event {
            Event::Yes(instant) => Some(instant.at_ns),
            Event::Open(_) | Event::Shut(_) => None,
        };
        self.events().iter().filter_map(yes).max()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.take_in();
            // What a follower says all the time is left out too.
            let dull = ["\"event\"", "StateChange", "AcquireFailed"];
            let talk = |line: &&String| !dull.iter().any(|word| line.contains(word));
            let lines: Vec<&String> = self.child.lines().iter().filter(talk).collect();
            let tail = lines[lines.len().saturating_sub(40)..].iter();
            tell(&format!("--- {} said:", self.setup.name));
            tail.for_each(|line| tell(line));
        }
    }
}

impl Group {
    /// Starts nodes of these names with the same setup, one after the other, and waits until the
    /// first one leads and all have beaten a few times.
    pub(crate) async fn start(names: &[&str], setup: &Setup) -> Self {
        let mut group = Group::default();
        for name in names {
            group.add(Setup { name: (*name).to_owned(), ..setup.clone() }).await;
        }
        group.settle(names.len()).await;
        group
    }

    /// Adds a node; the first one is waited for until it leads.
    pub(crate) async fn add(&mut self, setup: Setup) {
        self.nodes.push(Node::start(setup).await);
        if self.nodes.len() == 1 {
            assert_eq!(self.leader(0).await.node, 0);
        }
    }

    /// Waits until that many members have beaten a few times, so that each has seen the
    /// others and the ring is closed.
    pub(crate) async fn settle(&self, members: usize) {
        let client = connect(&self.nodes[0].setup.dsn).await;
        let members = i64::try_from(members).expect("a few");
        until("every member to beat", || async {
            let sql = "select count(*) from tenure.member where left_at is null and beat >= 4";
            client.query_one(sql, &[]).await.expect("a count").get::<_, i64>(0) >= members
        })
        .await;
    }

    /// The first gate of the first role that opens under an epoch above this one.
    pub(crate) async fn leader(&mut self, above: u64) -> Lead {
        let role = self.nodes[0].setup.roles[0].clone();
        self.leader_of(&role, above).await
    }

    pub(crate) async fn leader_of(&mut self, role: &str, above: u64) -> Lead {
        let begun = Moment::now();
        loop {
            let mut first: Option<Lead> = None;
            for (node, it) in self.nodes.iter_mut().enumerate() {
                for event in it.events() {
                    let at = event.instant();
                    if at.epoch > above
                        && at.role == role
                        && first.is_none_or(|first| at.at_ns < first.at_ns)
                    {
                        first = Some(Lead { node, epoch: at.epoch, at_ns: at.at_ns });
                    }
                }
            }
            if let Some(lead) = first {
                return lead;
            }
            assert!(begun.elapsed() < PATIENCE, "waited for a leader of {role} above {above}");
            sleep(LOOK).await;
        }
    }

    /// Everything all gates did. Safety: no two open at once, epochs increase. No slack.
    ///
    /// Under `fenced` a new gate opens without waiting for the old one: there every epoch has one
    /// member, and a higher epoch never begins before a lower one.
    pub(crate) fn verify(&mut self) {
        let mut events = self.events();
        if self.nodes[0].setup.fenced {
            events.sort_by_key(|event| event.instant().at_ns);
            let mut begun = BTreeSet::new();
            events.retain(|event| {
                let Instant { role, epoch, member, .. } = event.instant();
                begun.insert((role.clone(), *epoch, member.clone()))
            });
        }
        history::check(&events).unwrap_or_else(|violation| panic!("{violation}"));
    }

    pub(crate) fn events(&mut self) -> Vec<Event> {
        self.nodes.iter_mut().flat_map(|node| node.events().to_vec()).collect()
    }

    /// The next leader after a fault: within the bound of the design, and no other beside it.
    pub(crate) async fn fail_over(
        &mut self,
        what: &str,
        fault: Fault,
        fault_ns: u64,
        above: u64,
    ) -> Lead {
        let lead = self.leader(above).await;
        self.judge(what, fault, fault_ns, lead);
        // What the old gate said meanwhile may still be on its way.
        self.watch_for(Duration::from_millis(100)).await;
        lead
    }

    pub(crate) fn judge(&mut self, what: &str, fault: Fault, fault_ns: u64, lead: Lead) {
        let setup = &self.nodes[0].setup;
        let bound = setup.config().lease().failover_bound(fault, setup.policy());
        self.judge_within(what, bound, fault_ns, lead);
    }

    pub(crate) fn judge_within(&mut self, what: &str, bound: Duration, fault_ns: u64, lead: Lead) {
        let policy = self.nodes[0].setup.policy();
        let took = Duration::from_nanos(lead.at_ns.saturating_sub(fault_ns));
        tell(&format!("figure: {what}, {policy}: {} ms (bound {bound:?})", took.as_millis()));
        self.verify();
        assert!(took <= bound + SLACK, "{what}: {took:?}, bound {bound:?} + {SLACK:?}");
    }

    pub(crate) fn say(&self, figure: &str) {
        tell(figure);
    }

    /// Lets the group run on for a while, watched: what happens in it is checked afterwards.
    pub(crate) async fn watch_for(&mut self, time: Duration) {
        let until = Moment::now() + time;
        while Moment::now() < until {
            sleep(LOOK * 5).await;
            self.verify();
        }
    }
}

/// A session of the test itself.
pub(crate) async fn connect(dsn: &str) -> tokio_postgres::Client {
    let (client, connection) =
        tokio_postgres::connect(dsn, tokio_postgres::NoTls).await.expect("the server answers");
    tokio::spawn(connection);
    client
}

/// One number from the database.
pub(crate) async fn number(client: &tokio_postgres::Client, sql: &str) -> i64 {
    client.query_one(sql, &[]).await.expect("an answer").get(0)
}

/// The backend of a node's seat.
pub(crate) async fn seat_pid(client: &tokio_postgres::Client, node: &mut Node) -> i32 {
    let sql = "select backend_pid from tenure.member where identity = $1";
    client.query_one(sql, &[&node.identity()]).await.expect("a member").get(0)
}

/// A server of its own, for a test that breaks it, with a database.
pub(crate) async fn own_server() -> (Cluster, Database) {
    let cluster = Cluster::start().await.expect("a server");
    let database = cluster.create_database("app").await.expect("a database");
    (cluster, database)
}

/// A database on the server that most tests share, and its address.
pub(crate) async fn shared_server() -> (Database, SocketAddr) {
    let cluster = shared_cluster().await;
    (cluster.database().await.expect("a database"), cluster.addr())
}

#[allow(clippy::print_stdout, reason = "figures and logs belong to the test's output")]
fn tell(text: &str) {
    println!("{text}");
}
