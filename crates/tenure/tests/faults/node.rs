//! One member in a process of its own, told what to do over a TCP connection, one line each.
//!
//! It says what happens on its standard output, one JSON line each: the checker's `yes` and `shut`,
//! and `{"say": …}` for the rest. Anything else there is its log.

use std::{
    collections::BTreeMap,
    io::Write as _,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tenure::{
    Act, BootClock, Clock, Epoch, FixedInterval, LeaderGate, LeaderLock, Member, TakeoverPolicy,
    Tick,
    config::{Config, RoleSpec},
};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    net::TcpStream,
};
use tokio_postgres::NoTls;

/// The variable that makes this binary a node.
pub(crate) const VARIABLE: &str = "TENURE_FAULT_NODE";

/// What a node is told at its start.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Setup {
    /// The first part of its identity: nodes stand in the ring in this order.
    pub(crate) name: String,
    pub(crate) dsn: String,
    pub(crate) roles: Vec<String>,
    pub(crate) fenced: bool,
    pub(crate) heartbeat: Duration,
    pub(crate) lease: Duration,
    pub(crate) statement_deadline: Duration,
    pub(crate) margin: Option<Duration>,
    pub(crate) grace: Option<Duration>,
    pub(crate) cool_down: Duration,
    pub(crate) drain_limit: Duration,
    /// Between attempts, instead of the default's back-off.
    pub(crate) retry: Option<Duration>,
    pub(crate) candidate: bool,
    pub(crate) priority: i32,
    /// How often its gates are asked.
    pub(crate) ask_every: Duration,
    /// A gate that stays open says so at least this often.
    pub(crate) say_every: Duration,
    /// Where it listens for orders.
    pub(crate) control: u16,
    /// Its clock stands still while the process is frozen.
    pub(crate) clock_lies: bool,
    /// It takes part without tables.
    pub(crate) lock_only: bool,
}

impl Setup {
    /// Short timings that one busy core can still keep.
    pub(crate) fn new(name: &str, dsn: &str) -> Self {
        Setup {
            name: name.to_owned(),
            dsn: dsn.to_owned(),
            roles: vec!["role".to_owned()],
            fenced: false,
            heartbeat: Duration::from_millis(250),
            lease: Duration::from_millis(1500),
            statement_deadline: Duration::from_millis(400),
            margin: None,
            grace: None,
            cool_down: Duration::from_secs(30),
            drain_limit: Duration::from_secs(5),
            retry: None,
            candidate: true,
            priority: 0,
            ask_every: Duration::from_millis(1),
            say_every: Duration::from_millis(20),
            control: 0,
            clock_lies: false,
            lock_only: false,
        }
    }

    pub(crate) fn policy(&self) -> TakeoverPolicy {
        if self.fenced { TakeoverPolicy::Fenced } else { TakeoverPolicy::Exclusive }
    }

    pub(crate) fn config(&self) -> Config {
        let mut builder = Config::builder()
            .dsn(&self.dsn)
            .scope(&self.name)
            .heartbeat(self.heartbeat)
            .lease(self.lease)
            .statement_deadline(self.statement_deadline)
            .kill_grace(Duration::from_millis(100))
            .lock_only(self.lock_only);
        if let Some(margin) = self.margin {
            builder = builder.margin(margin);
        }
        if let Some(interval) = self.retry {
            builder = builder.retry(Arc::new(FixedInterval { interval }));
        }
        if let Some(grace) = self.grace {
            builder = builder.reconnect_grace(grace);
        }
        for role in &self.roles {
            builder = builder.role(
                RoleSpec::named(role)
                    .policy(self.policy())
                    .candidate(self.candidate)
                    .priority(self.priority)
                    .cool_down(self.cool_down)
                    .drain_limit(self.drain_limit),
            );
        }
        builder.build().expect("the timings fit each other")
    }
}

/// Not a test of its own: returns at once unless it was started as a node.
#[test]
fn main() {
    let Ok(setup) = std::env::var(VARIABLE) else { return };
    let setup: Setup = serde_json::from_str(&setup).expect("the test wrote it");
    // The harness has begun a line of its own.
    line("");
    let writer = std::io::stdout;
    tracing_subscriber::fmt()
        .with_env_filter("warn,tenure::metrics=off,tenure=debug")
        .with_ansi(false)
        .with_writer(writer)
        .init();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(run(setup));
    std::process::exit(0);
}

fn line(text: &str) {
    let mut out = std::io::stdout().lock();
    // The test may be over, and listens no more.
    let _ = writeln!(out, "{text}").and_then(|()| out.flush());
}

fn say(value: Value) {
    line(&value.to_string());
}

async fn run(setup: Setup) {
    let orders = TcpStream::connect(("127.0.0.1", setup.control)).await.expect("the test listens");
    let clock: Arc<dyn Clock> =
        if setup.clock_lies { Arc::new(StandingClock::default()) } else { Arc::new(BootClock) };
    let member = match Member::start_with_clock(setup.config(), clock).await {
        Ok(member) => member,
        Err(error) => return say(json!({"say": "refused", "error": error.to_string()})),
    };
    let identity = member.identity().to_string();
    let over = Arc::new(AtomicBool::new(false));
    let sampler = {
        let gates = member.locks().iter().map(|l| (l.role().to_string(), l.gate())).collect();
        let (setup, identity, over) = (setup.clone(), identity.clone(), over.clone());
        std::thread::spawn(move || sample(gates, &identity, &setup, &over))
    };
    for lock in member.locks() {
        tell(&lock);
    }
    if let Err(error) = member.start_all().await {
        say(json!({"say": "refused", "error": error.to_string()}));
    }
    say(json!({"say": "ready", "identity": identity}));
    obey(&setup, member, orders).await;
    over.store(true, Ordering::SeqCst);
    sampler.join().expect("the sampler does not panic");
    say(json!({"say": "gone"}));
}

fn tell(lock: &LeaderLock) {
    let (mut events, role) = (lock.events(), lock.role().to_string());
    tokio::spawn(async move {
        while let Ok(event) = events.recv().await {
            let (notice, at_ns) = (format!("{:?}", event.notice), event.at.as_nanos());
            say(json!({"say": "notice", "role": role, "notice": notice, "at_ns": at_ns}));
        }
    });
}

/// Carries out orders until the connection ends or it is told to go.
async fn obey(setup: &Setup, member: Member, orders: TcpStream) {
    let mut acts: Vec<Act> = Vec::new();
    let mut sessions = Vec::new();
    let mut lines = BufReader::new(orders).lines();
    while let Ok(Some(order)) = lines.next_line().await {
        let words: Vec<&str> = order.split(' ').collect();
        let lock = |n: usize| {
            let name = words.get(n).copied().unwrap_or(&setup.roles[0]);
            member.lock(name).expect("a role of ours")
        };
        let result = match words[0] {
            "step_down" => lock(1).step_down(None).await.map_err(|e| e.to_string()),
            // The same, without waiting for it.
            "resign" => {
                let lock = lock(1);
                tokio::spawn(async move { lock.step_down(None).await });
                Ok(())
            }
            "begin" => lock(1)
                .begin_act(Duration::ZERO)
                .map(|act| acts.push(act))
                .map_err(|e| e.to_string()),
            "finish" => acts
                .pop()
                .ok_or_else(|| "no act".to_owned())
                .and_then(|act| act.finish().map_err(|e| e.to_string())),
            // The runtime has one thread: no task of this process runs meanwhile.
            "stall" => {
                say(json!({"say": "stalled"}));
                let ms = words[1].parse().expect("a number");
                std::thread::sleep(Duration::from_millis(ms));
                Ok(())
            }
            "fence" => match fenced(&setup.dsn, &lock(1)).await {
                Ok(session) => {
                    sessions.push(session);
                    Ok(())
                }
                Err(error) => Err(error.to_string()),
            },
            "shutdown" => {
                let gone = member.shutdown(Some(Duration::from_secs(10))).await;
                return say(
                    json!({"say": "done", "order": order, "error": gone.err().map(|e| e.to_string())}),
                );
            }
            other => Err(format!("no such order: {other}")),
        };
        say(json!({"say": "done", "order": order, "error": result.err()}));
    }
}

/// Opens a transaction, fences it, and leaves it open.
async fn fenced(
    dsn: &str,
    lock: &LeaderLock,
) -> Result<tokio_postgres::Client, Box<dyn std::error::Error>> {
    let (client, connection) = tokio_postgres::connect(dsn, NoTls).await?;
    tokio::spawn(connection);
    let token = lock.gate().require_leader()?;
    client.batch_execute("begin").await?;
    tenure::fence(&client, lock.role().as_str(), token.epoch).await?;
    Ok(client)
}

/// A clock that does not count what it did not see, as one that does not count suspend.
#[derive(Debug, Default)]
struct StandingClock(Mutex<Unseen>);

#[derive(Debug, Default)]
struct Unseen {
    seen: Tick,
    missed: Duration,
}

impl Clock for StandingClock {
    fn now(&self) -> Tick {
        let mut state = self.0.lock().expect("no reader panics");
        let now = BootClock.now();
        let before = std::mem::replace(&mut state.seen, now);
        let unseen = now.saturating_since(before);
        if before > Tick::ZERO && unseen > Duration::from_millis(500) {
            state.missed += unseen;
        }
        Tick::from_nanos(now.as_nanos() - state.missed.as_nanos() as u64)
    }
}

struct Seen {
    epoch: Epoch,
    last: Tick,
    said: Tick,
}

/// Asks every gate over and over, and says when it said yes: the first time, every now and then,
/// and the last time.
fn sample(gates: BTreeMap<String, LeaderGate>, member: &str, setup: &Setup, over: &AtomicBool) {
    let mut open: BTreeMap<&str, Seen> = BTreeMap::new();
    let report = |event: &str, role: &str, epoch: Epoch, at: u64| {
        say(json!({
            "event": event, "role": role, "epoch": epoch.get(), "member": member, "at_ns": at,
        }));
    };
    let shut = |role: &str, seen: &Seen| {
        report("yes", role, seen.epoch, seen.last.as_nanos());
        report("shut", role, seen.epoch, seen.last.as_nanos() + 1);
    };
    while !over.load(Ordering::SeqCst) {
        for (role, gate) in &gates {
            // The epoch on both sides of the instant: a term is not given another's yes.
            let before = gate.epoch();
            // On the true clock, whatever the gate's own says.
            let now = BootClock.now();
            let yes = gate.check_at().map(|at| if setup.clock_lies { now } else { at });
            let after = gate.epoch();
            let known = open.get(role.as_str()).map(|seen| seen.epoch);
            let Some(at) = yes else {
                if let Some(seen) = open.remove(role.as_str()) {
                    shut(role, &seen);
                }
                continue;
            };
            let epoch = before.or(after).or(known).expect("a gate that said yes has an epoch");
            match open.get_mut(role.as_str()) {
                Some(seen) if seen.epoch == epoch => {
                    seen.last = at;
                    if at.saturating_since(seen.said) >= setup.say_every {
                        seen.said = at;
                        report("yes", role, epoch, at.as_nanos());
                    }
                }
                _ => {
                    if let Some(seen) = open.insert(role, Seen { epoch, last: at, said: at }) {
                        shut(role, &seen);
                    }
                    report("yes", role, epoch, at.as_nanos());
                }
            }
        }
        std::thread::sleep(setup.ask_every);
    }
    for (role, seen) in &open {
        shut(role, seen);
    }
}
