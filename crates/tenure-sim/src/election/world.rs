//! The world of a run: members, their processes and clocks, the network, the server.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tenure_core::clock::{Clock, ManualClock, Tick};
use tenure_core::engine::{Candidacy, Engine, Output};
use tenure_core::gate::{Act, LeaderGate};
use tenure_core::identity::Identity;
use tenure_core::key::RoleName;
use tenure_core::lease::{Lease, LeaseSpec, TakeoverPolicy};
use tenure_core::lifecycle::{Input, Lifecycle, LifecycleOptions, LockState};
use tenure_core::model::{MemberSpec, SessionId};
use tenure_core::protocol::{Done, Op, ReleaseRow, Seated};
use tenure_core::retry::{ExponentialBackoff, FixedInterval};

use super::TROUBLE;
use super::database::Database;
use super::fault::{self, Fault};
use super::mistake::{Mistake, OldSightings};
use super::verdict::{Verdict, Yes};

const ROLES: [(&str, TakeoverPolicy); 2] =
    [("exclusive", TakeoverPolicy::Exclusive), ("fenced", TakeoverPolicy::Fenced)];
/// By how much a clock may run fast or slow.
const DRIFT: f64 = 0.04;

/// What is going to happen.
#[derive(Debug)]
pub(super) enum Event {
    /// A member's own timer.
    Wake(usize),
    /// A connection is made, as far as the network lets it.
    Join(usize, u64),
    Joined(usize, u64, SessionId, Seated),
    JoinTimedOut(usize, u64),
    /// A statement reaches the server.
    Arrive(usize, u64, SessionId, Op),
    /// The second half of a release.
    Unlock(usize, u64, SessionId, Vec<ReleaseRow>),
    Answer(usize, u64, Done),
    /// A statement's deadline at the member.
    Deadline(usize, u64, u64),
    /// The member hears that its session is gone.
    Closed(usize, u64),
    /// The server hears that the client is gone.
    HungUp(SessionId),
    /// The server's idle timer, and when it was started.
    Idle(SessionId, u64),
    Notified(usize, u64, RoleName, bool),
    Death(usize, String),
    Fault(Fault),
    Mend(usize),
    Quick,
    ServerUp,
    Start(usize),
    EndAct(usize),
    Reborn(usize),
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Link {
    pub(super) up: bool,
    pub(super) down: bool,
}

#[derive(Debug)]
enum Conn {
    None,
    Connecting(u64),
    Up { id: u64, session: SessionId, op: Option<u64> },
}

pub(super) struct Node {
    identity: String,
    spec: MemberSpec,
    engine: Engine,
    /// With that mistake: what this member remembers of its earlier sessions.
    sightings: Option<OldSightings>,
    lease: Lease,
    clock: ManualClock,
    rate: f64,
    roles: Vec<(RoleName, LeaderGate)>,
    conn: Conn,
    /// When the last message of this connection reaches the server: TCP keeps the order.
    sent_until: u64,
    heard_until: u64,
    retry_at: u64,
    failures: u32,
    pub(super) link: Link,
    paused_until: u64,
    /// The one timer that counts.
    wake_at: u64,
    /// Where the exclusive role stood after the last look.
    stage: (LockState, bool),
    alive: bool,
    act: Option<Act>,
}

impl Node {
    pub(super) fn session(&self) -> Option<SessionId> {
        match self.conn {
            Conn::Up { session, .. } => Some(session),
            Conn::None | Conn::Connecting(_) => None,
        }
    }

    fn is_on(&self, conn: u64) -> bool {
        matches!(self.conn, Conn::Up { id, .. } if id == conn)
    }

    fn now(&self) -> Tick {
        self.clock.now()
    }

    /// When this member's clock shows `tick`, on the world's.
    fn when(&self, tick: Tick) -> u64 {
        (tick.as_nanos() as f64 / self.rate).ceil() as u64
    }
}

pub(super) struct World {
    now: u64,
    seq: u64,
    events: BTreeMap<(u64, u64), Event>,
    random: SmallRng,
    mistake: Option<Mistake>,
    pub(super) database: Database,
    server_rate: f64,
    server_is_up: bool,
    pub(super) slow: Duration,
    last_heard: BTreeMap<SessionId, u64>,
    pub(super) nodes: Vec<Node>,
    mixed: bool,
    grace: Option<Duration>,
    healed: bool,
    pub(super) verdict: Verdict,
}

impl World {
    pub(super) fn new(seed: u64, mistake: Option<Mistake>) -> Self {
        let mut random = SmallRng::seed_from_u64(seed);
        let mut world = World {
            now: 1,
            seq: 0,
            events: BTreeMap::new(),
            mistake,
            database: Database::new(mistake, false),
            server_rate: 1.0 + random.random_range(-DRIFT..DRIFT),
            server_is_up: true,
            slow: Duration::ZERO,
            last_heard: BTreeMap::new(),
            nodes: Vec::new(),
            mixed: random.random(),
            grace: random.random::<bool>().then_some(Duration::from_secs(1)),
            healed: false,
            verdict: Verdict::default(),
            random,
        };
        // Members with different leases need seats that survive a failover: docs/safety.md.
        world.database = Database::new(mistake, world.mixed);
        for index in 0..world.random.random_range(3..=5) {
            let node = world.node(index);
            world.nodes.push(node);
            let delay = Duration::from_millis(world.random.random_range(0..500));
            world.after(delay, Event::Start(index));
        }
        for _ in 0..world.random.random_range(3..10) {
            let at = world.random.random_range(Duration::ZERO..TROUBLE);
            let node = world.random.random_range(0..world.nodes.len());
            let fault = fault::any(&mut world.random, node);
            world.after(at, Event::Fault(fault));
        }
        world
    }

    fn node(&mut self, index: usize) -> Node {
        let uuid = uuid::Uuid::from_u128(self.random.random());
        let identity = Identity::new("sim", &format!("n{index}"), 1, uuid).expect("a good name");
        let scale = if self.mixed { [2, 3, 4][self.random.random_range(0..3)] } else { 3 };
        let lease = LeaseSpec {
            heartbeat: Some(Duration::from_millis(333) * scale),
            lease: Some(Duration::from_secs(1) * scale),
            margin: self.mistake.and_then(Mistake::margin),
            reconnect_grace: self.grace,
            ..LeaseSpec::default()
        };
        let lease = lease.resolve().expect("good timings");
        let rate = 1.0 + self.random.random_range(-DRIFT..DRIFT);
        let clock = ManualClock::new(Tick::from_nanos((self.now as f64 * rate) as u64));
        let mut own = SmallRng::seed_from_u64(self.random.random());
        let mut engine =
            Engine::new(lease, lease.lease(), None, false, Box::new(move || own.random()));
        let mut roles = Vec::new();
        for (name, policy) in ROLES {
            let name = RoleName::new(name).expect("a good name");
            let (keeper, gate) = LeaderGate::pair(Arc::new(clock.clone()), identity.clone());
            let life = Lifecycle::new(LifecycleOptions {
                reconnect_grace: self.grace,
                cool_down: lease.lease(),
                drain_limit: Duration::from_secs(1),
                release_timeout: lease.lease(),
                retry: Arc::new(FixedInterval { interval: lease.heartbeat() }),
                ..LifecycleOptions::default()
            });
            let spec = Candidacy {
                key: name.key(),
                name: name.clone(),
                policy,
                priority: 0,
                ready: true,
                observer: false,
                preempt: false,
            };
            engine.add(spec, life, keeper);
            roles.push((name, gate));
        }
        Node {
            spec: MemberSpec::new(identity.as_str(), &lease),
            identity: identity.as_str().to_owned(),
            engine,
            sightings: self.mistake.and_then(Mistake::sightings),
            lease,
            clock,
            rate,
            roles,
            conn: Conn::None,
            sent_until: 0,
            heard_until: 0,
            retry_at: 0,
            failures: 0,
            link: Link { up: true, down: true },
            paused_until: 0,
            wake_at: u64::MAX,
            stage: (LockState::Stopped, false),
            alive: true,
            act: None,
        }
    }

    // --- time ---

    pub(super) fn after(&mut self, delay: Duration, event: Event) {
        self.at(self.now + delay.as_nanos() as u64, event);
    }

    fn at(&mut self, at: u64, event: Event) {
        self.seq += 1;
        self.events.insert((at.max(self.now), self.seq), event);
    }

    pub(super) fn server_now(&self) -> Tick {
        Tick::from_nanos((self.now as f64 * self.server_rate) as u64)
    }

    pub(super) fn run_for(&mut self, time: Duration) {
        let until = self.now + time.as_nanos() as u64;
        while self.step(until) {}
        self.now = until;
    }

    /// Everything mends; no new fault comes.
    pub(super) fn heal(&mut self) {
        self.healed = true;
        self.slow = Duration::ZERO;
        self.events.retain(|_, event| !matches!(event, Event::Fault(_)));
        for index in 0..self.nodes.len() {
            self.nodes[index].link = Link { up: true, down: true };
            self.nodes[index].paused_until = 0;
            self.nodes[index].act = None;
            self.after(Duration::ZERO, Event::EndAct(index));
            self.after(Duration::ZERO, Event::Start(index));
            if !self.nodes[index].alive {
                self.after(Duration::ZERO, Event::Reborn(index));
            }
        }
        self.after(Duration::ZERO, Event::ServerUp);
    }

    pub(super) fn run_until_led(&mut self, bound: Duration) {
        let healed = self.now;
        let until = healed + bound.as_nanos() as u64;
        while self.verdict.wrong.is_none() && !self.is_led() {
            if !self.step(until) {
                let states: Vec<_> = self
                    .nodes
                    .iter()
                    .map(|node| {
                        let state = |(name, _): &(RoleName, _)| node.engine.state(name);
                        (&node.conn, node.roles.iter().map(state).collect::<Vec<_>>())
                    })
                    .collect();
                self.verdict.wrong =
                    Some(format!("no member leads {bound:?} after everything healed: {states:?}"));
            }
        }
        self.verdict.recovered_after = Duration::from_nanos(self.now - healed);
    }

    fn is_led(&self) -> bool {
        (0..ROLES.len()).all(|role| self.nodes.iter().any(|node| node.roles[role].1.is_leader()))
    }

    fn step(&mut self, until: u64) -> bool {
        if self.verdict.wrong.is_some() {
            return false;
        }
        let Some(entry) = self.events.first_entry().filter(|entry| entry.key().0 <= until) else {
            return false;
        };
        let ((at, _), event) = entry.remove_entry();
        self.now = at;
        for node in &self.nodes {
            node.clock.set(Tick::from_nanos((at as f64 * node.rate) as u64));
        }
        self.handle(event);
        for (role, (name, policy)) in ROLES.into_iter().enumerate() {
            let open: Vec<Yes<'_>> = self
                .nodes
                .iter()
                .filter(|node| node.alive)
                .filter_map(|node| {
                    let epoch = node.roles[role].1.epoch()?;
                    Some(Yes { member: &node.identity, epoch })
                })
                .collect();
            self.verdict.look(Duration::from_nanos(at), name, policy, &open);
        }
        true
    }

    // --- events ---

    fn handle(&mut self, event: Event) {
        // A process that stands still hears it when it goes on.
        let for_process = match &event {
            Event::Wake(node)
            | Event::Joined(node, ..)
            | Event::JoinTimedOut(node, _)
            | Event::Answer(node, ..)
            | Event::Deadline(node, ..)
            | Event::Closed(node, _)
            | Event::Notified(node, ..)
            | Event::Death(node, _)
            | Event::Start(node)
            | Event::EndAct(node) => Some(*node),
            Event::Join(..)
            | Event::Arrive(..)
            | Event::Unlock(..)
            | Event::HungUp(_)
            | Event::Idle(..)
            | Event::Fault(_)
            | Event::Mend(_)
            | Event::Quick
            | Event::ServerUp
            | Event::Reborn(_) => None,
        };
        if let Some(index) = for_process {
            if !self.nodes[index].alive {
                return;
            }
            if self.nodes[index].paused_until > self.now {
                return self.at(self.nodes[index].paused_until, event);
            }
        }
        match event {
            Event::Wake(index) => {
                if self.nodes[index].wake_at <= self.now {
                    self.nodes[index].wake_at = u64::MAX;
                    self.pump(index);
                }
            }
            Event::Join(index, id) => self.join(index, id),
            Event::Joined(index, id, session, seated) => {
                let node = &mut self.nodes[index];
                if matches!(node.conn, Conn::Connecting(waited) if waited == id) {
                    node.conn = Conn::Up { id, session, op: None };
                    node.failures = 0;
                    let now = node.now();
                    let at = node.sightings.as_mut().map_or(now, |old| old.seat_taken(now));
                    node.engine.seat_taken(seated, at);
                } else {
                    self.after(Duration::ZERO, Event::HungUp(session));
                }
                self.pump(index);
            }
            Event::JoinTimedOut(index, id) => {
                let node = &mut self.nodes[index];
                if matches!(node.conn, Conn::Connecting(waited) if waited == id) {
                    node.conn = Conn::None;
                    node.failures += 1;
                    let backoff =
                        ExponentialBackoff::new(Duration::from_millis(40), node.lease.heartbeat());
                    let pause = backoff.bare(node.failures);
                    node.retry_at = self.now + pause.as_nanos() as u64;
                    let now = node.now();
                    node.engine.unreachable("no connection", now);
                }
                self.pump(index);
            }
            Event::Arrive(index, conn, session, op) => self.arrive(index, conn, session, op),
            Event::Unlock(index, conn, session, rows) => {
                if let Ok(done) = self.database.unlock(session, &rows) {
                    self.answer(index, conn, done);
                }
                self.tell();
            }
            Event::Answer(index, conn, mut done) => {
                let node = &mut self.nodes[index];
                if let Conn::Up { id, op, .. } = &mut node.conn
                    && *id == conn
                {
                    *op = None;
                    let now = node.now();
                    let at = node.sightings.as_mut().map_or(now, |old| old.answer(&mut done, now));
                    node.engine.done(done, at);
                }
                self.pump(index);
            }
            Event::Deadline(index, conn, of) => {
                if matches!(self.nodes[index].conn, Conn::Up { id, op: Some(op), .. }
                    if id == conn && op == of)
                {
                    self.lose_seat(index, "a statement took too long");
                }
                self.pump(index);
            }
            Event::Closed(index, conn) => {
                if self.nodes[index].is_on(conn) {
                    self.lose_seat(index, "closed by the server");
                }
                self.pump(index);
            }
            Event::HungUp(session) => self.end_session(session),
            Event::Idle(session, since) => self.idle(session, since),
            Event::Notified(index, conn, role, named) => {
                let node = &mut self.nodes[index];
                if node.is_on(conn) {
                    let now = node.now();
                    if named {
                        node.engine.named(role.as_str(), now);
                    } else {
                        node.engine.notified(role.as_str(), now);
                    }
                }
                self.pump(index);
            }
            Event::Death(index, identity) => {
                if self.server_is_up {
                    let now = self.server_now();
                    self.database.record_death(&identity, now);
                }
                let node = &mut self.nodes[index];
                let now = node.now();
                node.engine.died(&identity, now);
                self.pump(index);
            }
            Event::Fault(fault) => self.strike(fault),
            Event::Mend(index) => self.nodes[index].link = Link { up: true, down: true },
            Event::Quick => self.slow = Duration::ZERO,
            Event::ServerUp => self.server_is_up = true,
            Event::Start(index) => {
                self.input(index, &Input::Start);
            }
            Event::EndAct(index) => {
                let node = &mut self.nodes[index];
                node.act = None;
                let now = node.now();
                for (name, _) in node.roles.clone() {
                    node.engine.drained(&name, now);
                }
                self.pump(index);
            }
            Event::Reborn(index) => {
                if !self.nodes[index].alive {
                    let link = self.nodes[index].link;
                    self.nodes[index] = self.node(index);
                    self.nodes[index].link = link;
                    self.after(Duration::ZERO, Event::Start(index));
                }
            }
        }
    }

    // --- the server's side ---

    fn join(&mut self, index: usize, id: u64) {
        if !self.server_is_up {
            return;
        }
        let spec = self.nodes[index].spec.clone();
        let now = self.server_now();
        let (session, seated) = self.database.take_seat(&spec, now);
        self.heard(session, index);
        let delay = self.delay();
        if self.nodes[index].link.down {
            self.after(delay, Event::Joined(index, id, session, seated));
        }
    }

    fn arrive(&mut self, index: usize, conn: u64, session: SessionId, op: Op) {
        if !self.database.is_alive(session) {
            return;
        }
        self.heard(session, index);
        let now = self.server_now();
        if let Op::Release(rows) = op {
            if self.database.release(session, &rows, now).is_ok() {
                let pause = Duration::from_micros(self.random.random_range(10..3000));
                self.after(pause, Event::Unlock(index, conn, session, rows));
            }
            return;
        }
        match self.database.run(session, &op, now) {
            Ok(done) => {
                if let Done::Claimed(rows) = &done {
                    for row in rows {
                        self.verdict.granted(Duration::from_nanos(self.now), row);
                    }
                }
                self.answer(index, conn, done);
            }
            Err(_) => {
                let delay = self.delay();
                if self.nodes[index].link.down {
                    self.after(delay, Event::Closed(index, conn));
                }
            }
        }
        self.tell();
    }

    fn answer(&mut self, index: usize, conn: u64, done: Done) {
        let delay = self.delay();
        let node = &mut self.nodes[index];
        if node.link.down {
            let at = (self.now + delay.as_nanos() as u64).max(node.heard_until + 1);
            node.heard_until = at;
            self.at(at, Event::Answer(index, conn, done));
        }
    }

    /// The server's idle timer starts again.
    fn heard(&mut self, session: SessionId, index: usize) {
        self.last_heard.insert(session, self.now);
        let timeout = self.nodes[index].lease.idle_session_timeout();
        self.after(timeout.div_f64(self.server_rate), Event::Idle(session, self.now));
    }

    fn idle(&mut self, session: SessionId, since: u64) {
        // Unless a later message has started the timer again.
        if self.last_heard.get(&session) == Some(&since) {
            self.end_session(session);
        }
    }

    pub(super) fn end_session(&mut self, session: SessionId) {
        let Some(identity) = self.database.end(session) else { return };
        self.last_heard.remove(&session);
        if let Some(index) = self.nodes.iter().position(|node| node.session() == Some(session)) {
            let Conn::Up { id, .. } = self.nodes[index].conn else { return };
            let delay = self.delay();
            if self.nodes[index].link.down {
                self.after(delay, Event::Closed(index, id));
            }
        }
        // One sentinel notices.
        let watcher = self.random.random_range(0..self.nodes.len());
        let watcher_node = &self.nodes[watcher];
        if watcher_node.identity != identity && watcher_node.link.down && watcher_node.link.up {
            let delay = self.delay();
            self.after(delay, Event::Death(watcher, identity));
        }
    }

    fn tell(&mut self) {
        for told in self.database.take_told() {
            let to = self.nodes.iter().position(|node| node.session() == Some(told.session));
            let delay = self.delay();
            if let Some(index) = to
                && self.nodes[index].link.down
                && let Conn::Up { id, .. } = self.nodes[index].conn
            {
                self.after(delay, Event::Notified(index, id, told.role, told.named));
            }
        }
    }

    pub(super) fn server_down(&mut self, time: Duration) {
        self.server_is_up = false;
        self.after(time, Event::ServerUp);
        for index in 0..self.nodes.len() {
            if let Conn::Up { id, .. } = self.nodes[index].conn {
                let delay = self.delay();
                if self.nodes[index].link.down {
                    self.after(delay, Event::Closed(index, id));
                }
            }
        }
    }

    fn delay(&mut self) -> Duration {
        let usual = Duration::from_micros(self.random.random_range(50..3000));
        let slow = if self.random.random_ratio(1, 30) {
            Duration::from_millis(self.random.random_range(0..600))
        } else {
            Duration::ZERO
        };
        if self.healed { usual } else { usual + slow + self.slow }
    }

    // --- the member's side ---

    pub(super) fn pause(&mut self, index: usize, lasts: Duration) {
        self.nodes[index].paused_until = self.now + lasts.as_nanos() as u64;
    }

    pub(super) fn die(&mut self, index: usize, closes: bool, back_after: Duration) {
        let node = &mut self.nodes[index];
        if !node.alive {
            return;
        }
        node.alive = false;
        node.act = None;
        let (session, up) = (node.session(), node.link.up);
        node.conn = Conn::None;
        if let Some(session) = session
            && closes
            && up
        {
            let delay = self.delay();
            self.after(delay, Event::HungUp(session));
        }
        self.after(back_after, Event::Reborn(index));
    }

    pub(super) fn step_down(&mut self, index: usize) {
        self.input(index, &Input::ReleaseRequested { to: None, deadline: None });
    }

    pub(super) fn stop(&mut self, index: usize) {
        self.input(index, &Input::StopRequested);
    }

    pub(super) fn begin_act(&mut self, index: usize) -> bool {
        let node = &mut self.nodes[index];
        let begun = node.roles[0].1.begin_act(Duration::ZERO).ok().filter(|_| node.alive);
        let is_new = begun.is_some() && node.act.is_none();
        if is_new {
            node.act = begun;
        }
        is_new
    }

    fn input(&mut self, index: usize, input: &Input) {
        let node = &mut self.nodes[index];
        // A command to a process that stands still is none.
        if !node.alive || node.paused_until > self.now {
            return;
        }
        let now = node.now();
        for (name, _) in node.roles.clone() {
            node.engine.input(&name, input.clone(), now);
        }
        self.pump(index);
    }

    fn lose_seat(&mut self, index: usize, error: &str) {
        let node = &mut self.nodes[index];
        let (session, up) = (node.session(), node.link.up);
        node.conn = Conn::None;
        node.retry_at = self.now;
        let now = node.now();
        node.engine.seat_lost(error, now);
        if let Some(session) = session
            && up
        {
            let delay = self.delay();
            self.after(delay, Event::HungUp(session));
        }
    }

    /// What the driver does between two events.
    fn pump(&mut self, index: usize) {
        let now = self.nodes[index].now();
        if self.nodes[index].engine.next_timeout().is_some_and(|at| at <= now) {
            self.nodes[index].engine.timeout(now);
        }
        self.outputs(index);
        self.begin(index);
        self.outputs(index);
        self.ambush(index);
        let node = &self.nodes[index];
        let wants = matches!(node.conn, Conn::None) && node.engine.wants_seat();
        let retry = wants.then_some(node.retry_at);
        let timer = node.engine.next_timeout().map(|at| node.when(at));
        if let Some(at) = timer.into_iter().chain(retry).min() {
            let at = at.max(self.now + 1000);
            if at < self.nodes[index].wake_at {
                self.nodes[index].wake_at = at;
                self.at(at, Event::Wake(index));
            }
        }
    }

    /// Mistakes hide where a term has just begun, or waits to begin: faults are aimed there.
    fn ambush(&mut self, index: usize) {
        let node = &mut self.nodes[index];
        let Some((state, epoch)) = node.engine.state(&node.roles[0].0) else { return };
        let stage = (state, epoch.is_some());
        if std::mem::replace(&mut node.stage, stage) == stage || self.healed {
            return;
        }
        let limit = if self.random.random() { 1500 } else { 20 };
        let soon = Duration::from_millis(self.random.random_range(0..limit));
        match stage {
            (LockState::Acquiring, true) if self.random.random_ratio(1, 2) => {
                let fault = fault::any(&mut self.random, index);
                self.after(soon, Event::Fault(fault));
            }
            (LockState::Leader, _) if self.random.random_ratio(1, 2) => {
                let deaf = fault::deafness(&mut self.random, index);
                self.after(soon, Event::Fault(deaf));
                let then = Duration::from_millis(self.random.random_range(0..1500));
                let cut = fault::severance(&mut self.random, index);
                self.after(soon + then, Event::Fault(cut));
            }
            _ => {}
        }
    }

    fn outputs(&mut self, index: usize) {
        while let Some(output) = self.nodes[index].engine.next_output() {
            match output {
                Output::DropSeat(why) => self.lose_seat(index, &why),
                Output::Notice(..)
                | Output::Registered(..)
                | Output::Gate(..)
                | Output::AwaitDrain(..)
                | Output::Unblock { .. }
                | Output::TookOver(_)
                | Output::Stale(..)
                | Output::Preempt(_)
                | Output::Renewed => {}
            }
        }
    }

    fn begin(&mut self, index: usize) {
        let delay = self.delay();
        self.seq += 1;
        let id = self.seq;
        let node = &mut self.nodes[index];
        let now = node.now();
        match &mut node.conn {
            Conn::None if node.engine.wants_seat() && self.now >= node.retry_at => {
                node.conn = Conn::Connecting(id);
                let (up, limit) = (node.link.up, node.lease.lease());
                if up {
                    self.after(delay, Event::Join(index, id));
                }
                self.after(limit, Event::JoinTimedOut(index, id));
            }
            Conn::Up { id: conn, session, op: slot @ None } => {
                let Some(op) = node.engine.next_op(now) else { return };
                *slot = Some(id);
                let (conn, session) = (*conn, *session);
                let deadline = node.when(now + node.lease.statement_deadline());
                let at = (self.now + delay.as_nanos() as u64).max(node.sent_until + 1);
                node.sent_until = at;
                if node.link.up {
                    self.at(at, Event::Arrive(index, conn, session, op));
                }
                self.at(deadline, Event::Deadline(index, conn, id));
            }
            Conn::None | Conn::Connecting(_) | Conn::Up { .. } => {}
        }
    }
}
