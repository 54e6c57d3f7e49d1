//! The member's hands: one task that carries out what [`tenure_core::engine`] decides.
//!
//! One round trip at a time on the seat; connecting, draining and the sentinel run beside it.
//! Nothing here decides anything about leadership.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tenure_core::clock::{Clock, Tick};
use tenure_core::gate::GateKeeper;
use tenure_core::key::{LockKey, RoleName};
use tenure_core::lifecycle::{Input, Lifecycle, LockState, Notice};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::sleep;

use crate::connect::Connector;
use crate::error::TenureError;
use crate::hub::Hub;
use crate::line::{Heard, Line, LineError};
use crate::metrics;
use crate::preflight;
use crate::seat::{Seat, Sitter, parse, settings};
use crate::sentinel::{Sentinel, Word, call_sign};
use crate::sql::literal;
use tenure_core::engine::{Candidacy, Engine, Output};
use tenure_core::protocol::{Done, Seated, millis};

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// What handles ask of their member.
pub(crate) enum Command {
    Add { spec: Candidacy, life: Box<Lifecycle>, keeper: GateKeeper, hub: Arc<Hub> },
    Start { role: RoleName, answer: oneshot::Sender<Result<(), TenureError>> },
    Stop { role: RoleName },
    StepDown { role: RoleName, to: Option<String>, within: Option<Duration> },
    Candidacy { role: RoleName, ready: Option<bool>, priority: Option<i32> },
    Health { answer: oneshot::Sender<Health> },
    Leave,
}

/// How a member is.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Health {
    /// Who it is.
    pub identity: String,
    /// Whether its seat is taken.
    pub connected: bool,
    /// Time since the last successful round trip was sent; none before the first.
    pub heartbeat_age: Option<Duration>,
    /// Its last trouble with the database, if it is not connected.
    pub error: Option<String>,
    /// Its roles.
    pub roles: Vec<RoleHealth>,
}

/// How one role of a member is.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RoleHealth {
    /// The role.
    pub role: RoleName,
    /// Its lifecycle state.
    pub state: LockState,
    /// Whether its gate is open.
    pub is_leader: bool,
    /// The epoch it holds.
    pub epoch: Option<tenure_core::epoch::Epoch>,
    /// What keeps this member from leading it that only an operator can end, with the remedy.
    pub trouble: Option<String>,
}

pub(crate) struct Actor {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) connector: Arc<Connector>,
    pub(crate) sitter: Sitter,
    pub(crate) engine: Engine,
    pub(crate) commands: mpsc::UnboundedReceiver<Command>,
    /// Whether to bring the schema up to date and look the server over at the first connection.
    pub(crate) prepare: bool,
    pub(crate) migrate: bool,
}

/// What lives as long as one run of the actor.
struct Hands {
    hubs: BTreeMap<RoleName, Arc<Hub>>,
    starts: BTreeMap<RoleName, Vec<oneshot::Sender<Result<(), TenureError>>>>,
    seat: Option<Arc<Seat>>,
    heard: mpsc::UnboundedReceiver<Heard>,
    op: Option<Boxed<Result<Done, LineError>>>,
    connecting: Option<Boxed<Result<Taken, TenureError>>>,
    drains: FuturesUnordered<Boxed<RoleName>>,
    side: FuturesUnordered<Boxed<Option<(RoleName, String)>>>,
    /// What stands before a role and cannot be ended from here.
    obstacles: BTreeMap<RoleName, String>,
    retry_at: Tick,
    /// When the seat was taken.
    seated_at: Tick,
    /// The last call of our sentinel that the seat heard, and one that it has not heard yet, which
    /// it must by then.
    heard_call: String,
    unheard: Option<(String, Tick)>,
    /// Tries to connect, and seats that did not last, since the last one that did.
    failures: u32,
    trouble: Option<String>,
    led_since: BTreeMap<RoleName, Tick>,
    /// When the lengths of the terms are told next.
    metered_at: Tick,
}

struct Taken {
    seat: Seat,
    seated: Seated,
    heard: mpsc::UnboundedReceiver<Heard>,
}

impl Actor {
    pub(crate) async fn run(mut self) {
        let (words, mut said) = mpsc::unbounded_channel();
        let look_again = Arc::new(Notify::new());
        let (wanted, wanted_rx) = watch::channel(Vec::new());
        let sentinel = Sentinel {
            connector: self.connector.clone(),
            sitter: self.sitter.clone(),
            words,
            look_again: look_again.clone(),
            wanted: wanted_rx,
        };
        let mut sentinel = Some(sentinel);
        let mut watching: Option<AbortOnDrop> = None;
        let mut hands = Hands {
            hubs: BTreeMap::new(),
            starts: BTreeMap::new(),
            seat: None,
            heard: mpsc::unbounded_channel().1,
            op: None,
            connecting: None,
            drains: FuturesUnordered::new(),
            side: FuturesUnordered::new(),
            obstacles: BTreeMap::new(),
            retry_at: Tick::ZERO,
            seated_at: Tick::ZERO,
            heard_call: String::new(),
            unheard: None,
            failures: 0,
            trouble: None,
            led_since: BTreeMap::new(),
            metered_at: Tick::ZERO,
        };
        let mut open = true;
        loop {
            let now = self.clock.now();
            if self.engine.next_timeout().is_some_and(|at| at <= now) {
                self.engine.timeout(now);
            }
            if hands.unheard.as_ref().is_some_and(|(_, by)| *by <= now) {
                hands.unheard = None;
                // Who leads hears of orders by its beats, and does not give up its term for this.
                if self.engine.holds_nothing() {
                    self.seat_lost(&mut hands, "notifications do not arrive any more");
                }
            }
            self.outputs(&mut hands);
            self.begin(&mut hands);
            self.outputs(&mut hands);
            if self.engine.has_left() && hands.op.is_none() {
                break;
            }
            if hands.seat.is_some()
                && let Some(sentinel) = sentinel.take()
            {
                watching = Some(AbortOnDrop(tokio::spawn(sentinel.run())));
            }
            if self.sitter.lock_only {
                let keys = self.waiting_keys(&hands);
                wanted.send_if_modified(|old| {
                    let changed = *old != keys;
                    *old = keys;
                    changed
                });
            }
            let now = self.clock.now();
            if let Some(beat) = self.engine.last_beat() {
                metrics::heartbeat_age(now.saturating_since(beat));
            }
            // Not at every turn: there may be ten thousand of them.
            if now >= hands.metered_at {
                hands.metered_at = now + self.sitter.lease.heartbeat() / 2;
                for (role, since) in &hands.led_since {
                    metrics::tenure(role, now.saturating_since(*since));
                }
            }
            let mut wake = self.engine.next_timeout();
            if hands.seat.is_none() && hands.connecting.is_none() && self.engine.wants_seat() {
                wake = Some(wake.map_or(hands.retry_at, |at| at.min(hands.retry_at)));
            }
            if let Some((_, by)) = &hands.unheard {
                wake = Some(wake.map_or(*by, |at| at.min(*by)));
            }
            let pause = wake.map_or(Duration::from_secs(3600), |at| at.saturating_since(now));
            let seated = hands.seat.is_some();
            // Every branch is cancel-safe: the channels' `recv` are, and the futures are kept and
            // only borrowed here.
            tokio::select! {
                biased;
                // Before the notifications: anybody may send those, and as many as to keep an
                // answer waiting for longer than the lease.
                done = poll_some(&mut hands.op) => {
                    hands.op = None;
                    match done {
                        Ok(done) => self.engine.done(done, self.clock.now()),
                        Err(error) => self.seat_lost(&mut hands, &error.to_string()),
                    }
                }
                heard = hands.heard.recv(), if seated => {
                    if self.heard(&mut hands, heard) {
                        look_again.notify_one();
                    }
                }
                taken = poll_some(&mut hands.connecting) => {
                    hands.connecting = None;
                    self.connected(&mut hands, taken);
                }
                command = self.commands.recv(), if open => match command {
                    Some(command) => {
                        self.command(&mut hands, command);
                        // Those that came together are carried out together: a turn of this loop
                        // looks at every role, and ten thousand may be started at once.
                        while let Ok(command) = self.commands.try_recv() {
                            self.command(&mut hands, command);
                        }
                    }
                    None => {
                        // The last handle is gone: let everything go in good order.
                        open = false;
                        self.engine.leave(self.clock.now());
                    }
                },
                Some(word) = said.recv() => match word {
                    Word::Died(identity) => self.engine.died(&identity, self.clock.now()),
                    Word::Free => self.engine.notified("", self.clock.now()),
                    Word::Called(call) => {
                        let by = self.clock.now() + self.sitter.lease.lease();
                        hands.unheard =
                            (seated && call != hands.heard_call).then_some((call, by));
                    }
                },
                Some(role) = hands.drains.next(), if !hands.drains.is_empty() => {
                    self.engine.drained(&role, self.clock.now());
                }
                Some(found) = hands.side.next(), if !hands.side.is_empty() => {
                    if let Some((role, obstacle)) = found {
                        self.obstructed(&mut hands, role, obstacle);
                    }
                }
                () = sleep(pause) => {}
            }
        }
        drop(watching);
        if let Some(seat) = hands.seat.take().and_then(Arc::into_inner) {
            seat.stand_up().await;
        }
    }

    /// Takes in what the seat heard, and what it heard since: a turn of the loop looks at every role,
    /// and a release of a thousand roles is told a thousand times. But no more than those: anybody
    /// may send notifications, and an answer must not wait behind them. True: the ring may have
    /// changed.
    fn heard(&mut self, hands: &mut Hands, first: Option<Heard>) -> bool {
        let (mut next, mut look) = (first, false);
        for _ in 0..1024 {
            match next {
                Some(Heard::Notification { channel, .. }) if channel != self.sitter.channel => {}
                Some(Heard::Notification { payload, .. }) => {
                    if payload.starts_with(&call_sign(&self.sitter)) {
                        hands.unheard.take_if(|(call, _)| *call == payload);
                        hands.heard_call = payload;
                    } else if !payload.is_empty() {
                        self.engine.notified(&payload, self.clock.now());
                    } else if !std::mem::replace(&mut look, true) {
                        self.engine.notified("", self.clock.now());
                    }
                }
                Some(Heard::Closed(error)) => self.seat_lost(hands, &error),
                None => self.seat_lost(hands, "the reader of the session ended"),
            }
            match hands.heard.try_recv() {
                Ok(heard) => next = Some(heard),
                Err(_) => break,
            }
        }
        look
    }

    fn waiting_keys(&self, hands: &Hands) -> Vec<LockKey> {
        hands
            .hubs
            .iter()
            .filter(|(name, _)| matches!(self.engine.state(name), Some((LockState::Follower, _))))
            .map(|(_, hub)| hub.key)
            .collect()
    }

    /// Starts what can be started: a connection, a round trip.
    fn begin(&mut self, hands: &mut Hands) {
        let now = self.clock.now();
        if hands.seat.is_none()
            && hands.connecting.is_none()
            && self.engine.wants_seat()
            && now >= hands.retry_at
        {
            hands.connecting = Some(Box::pin(take_seat(
                self.connector.clone(),
                self.sitter.clone(),
                self.prepare.then_some(self.migrate),
            )));
        }
        if hands.op.is_none()
            && let Some(seat) = hands.seat.clone()
            && let Some(op) = self.engine.next_op(self.clock.now())
        {
            let started = self.clock.now();
            let clock = self.clock.clone();
            hands.op = Some(Box::pin(async move {
                let done = seat.run(&op).await;
                metrics::round_trip(&op, clock.now().saturating_since(started), done.is_ok());
                done
            }));
        }
    }

    fn connected(&mut self, hands: &mut Hands, taken: Result<Taken, TenureError>) {
        let now = self.clock.now();
        match taken {
            Ok(Taken { seat, seated, heard }) => {
                self.prepare = false;
                hands.seated_at = now;
                // What was called before it listened it cannot have heard.
                hands.unheard = None;
                hands.trouble = None;
                hands.heard = heard;
                hands.seat = Some(Arc::new(seat));
                metrics::connected(true);
                self.engine.seat_taken(seated, now);
            }
            Err(error) => {
                let text = error.to_string();
                tracing::warn!(member = %self.sitter.identity, "no seat: {text}");
                metrics::connected(false);
                hands.trouble = Some(text.clone());
                hands.failures = hands.failures.saturating_add(1);
                hands.retry_at = now + self.pause_after(hands.failures);
                if error.is_refusal() {
                    // The setup cannot hold the promises: tell who waits, and keep asking slowly.
                    hands.retry_at = now + self.sitter.lease.lease();
                    for waiting in std::mem::take(&mut hands.starts).into_values().flatten() {
                        let _ = waiting.send(Err(error.clone()));
                    }
                }
                self.engine.unreachable(&text, now);
            }
        }
    }

    /// Between tries to connect: from 20 ms, doubled, jittered, never above the heartbeat interval.
    fn pause_after(&self, failures: u32) -> Duration {
        let base = Duration::from_millis(20) * 2_u32.saturating_pow(failures.min(10));
        base.min(self.sitter.lease.heartbeat()).mul_f64(0.8 + 0.4 * rand::random::<f64>())
    }

    fn seat_lost(&mut self, hands: &mut Hands, error: &str) {
        // The gate closes first; the socket goes with the seat and the round trip on it.
        self.engine.seat_lost(error, self.clock.now());
        hands.op = None;
        hands.seat = None;
        hands.heard = mpsc::unbounded_channel().1;
        hands.trouble = Some(error.to_owned());
        let now = self.clock.now();
        if now.saturating_since(hands.seated_at) >= self.sitter.lease.lease() {
            hands.failures = 0;
            hands.retry_at = now;
        } else {
            // Taken and lost at once, perhaps because the database refuses what a seat says:
            // who comes back at once, and again, only adds to its trouble.
            hands.failures = hands.failures.saturating_add(1);
            hands.retry_at = now + self.pause_after(hands.failures);
        }
        metrics::connected(false);
        tracing::warn!(member = %self.sitter.identity, "the seat is lost: {error}");
    }

    /// Told once, and tried again slowly: every try costs a session beside the seat.
    fn obstructed(&mut self, hands: &mut Hands, role: RoleName, obstacle: String) {
        let now = self.clock.now();
        self.engine.obstructed(&role, now);
        if hands.obstacles.get(&role) != Some(&obstacle) {
            tracing::error!(member = %self.sitter.identity, %role, "{obstacle}");
            if let Some(hub) = hands.hubs.get(&role) {
                hub.tell(Notice::Error(obstacle.clone()), now);
            }
            hands.obstacles.insert(role, obstacle);
        }
    }

    fn command(&mut self, hands: &mut Hands, command: Command) {
        let now = self.clock.now();
        match command {
            Command::Add { spec, life, keeper, hub } => {
                if !self.engine.has_role(&spec.name) {
                    hands.hubs.insert(spec.name.clone(), hub);
                    self.engine.add(spec, *life, keeper);
                }
            }
            Command::Start { answer, .. } if self.engine.is_leaving() => {
                drop(answer.send(Err(TenureError::Stopped)));
            }
            Command::Start { role, answer } => {
                match self.engine.state(&role) {
                    Some((LockState::Stopped, _)) => {
                        // Answered when the database has taken the registration, or could not
                        // be asked.
                        hands.starts.entry(role.clone()).or_default().push(answer);
                    }
                    Some(_) => drop(answer.send(Ok(()))),
                    None => drop(answer.send(Err(TenureError::Stopped))),
                }
                self.engine.input(&role, Input::Start, now);
            }
            Command::Stop { role } => self.engine.input(&role, Input::StopRequested, now),
            Command::StepDown { role, to, within } => {
                let deadline = within.map(|within| now + within);
                self.engine.input(&role, Input::ReleaseRequested { to, deadline }, now);
            }
            Command::Candidacy { role, ready, priority } => {
                self.engine.set_candidacy(&role, ready, priority, now);
            }
            Command::Health { answer } => {
                let _ = answer.send(self.health(hands, now));
            }
            Command::Leave => self.engine.leave(now),
        }
    }

    fn health(&self, hands: &Hands, now: Tick) -> Health {
        Health {
            identity: self.sitter.identity.clone(),
            connected: hands.seat.is_some(),
            heartbeat_age: self.engine.last_beat().map(|at| now.saturating_since(at)),
            error: hands.seat.is_none().then(|| hands.trouble.clone()).flatten(),
            roles: hands
                .hubs
                .iter()
                .filter_map(|(role, hub)| {
                    let (state, epoch) = self.engine.state(role)?;
                    let is_leader = hub.gate.is_leader();
                    let trouble = hands.obstacles.get(role).cloned();
                    let trouble = trouble.filter(|_| self.engine.is_blocked(role));
                    Some(RoleHealth { role: role.clone(), state, is_leader, epoch, trouble })
                })
                .collect(),
        }
    }

    fn outputs(&mut self, hands: &mut Hands) {
        while let Some(output) = self.engine.next_output() {
            let now = self.clock.now();
            match output {
                Output::Notice(role, notice) => {
                    let Some(hub) = hands.hubs.get(&role) else { continue };
                    let (_, epoch) = self.engine.state(&role).unwrap_or((LockState::Stopped, None));
                    metrics::notice(&role, &self.sitter.identity, hub.key, epoch, &notice);
                    if matches!(notice, Notice::Stopped) {
                        hub.set_leading(None);
                    }
                    hub.tell(notice, now);
                }
                Output::Gate(role, epoch) => {
                    if epoch.is_some() {
                        hands.obstacles.remove(&role);
                    }
                    if let Some(hub) = hands.hubs.get(&role) {
                        hub.set_leading(epoch);
                        metrics::gate(&role, epoch);
                        match epoch {
                            Some(_) => drop(hands.led_since.entry(role).or_insert(now)),
                            None => drop(hands.led_since.remove(&role)),
                        }
                    }
                }
                Output::Renewed => hands.hubs.values().for_each(|hub| hub.publish_deadline()),
                Output::Registered(role, result) => {
                    let result =
                        result.map_err(|why| TenureError::Registration { role: role.clone(), why });
                    if let Err(error) = &result
                        && let Some(hub) = hands.hubs.get(&role)
                    {
                        hub.tell(Notice::Error(error.to_string()), now);
                    }
                    for waiting in hands.starts.remove(&role).unwrap_or_default() {
                        let _ = waiting.send(result.clone());
                    }
                }
                Output::AwaitDrain(role, drained) => hands.drains.push(Box::pin(async move {
                    drained.await;
                    role
                })),
                Output::TookOver(role) => metrics::failover(&role),
                Output::Stale(role, stale) => {
                    metrics::leader_stale(&role, stale);
                    if stale {
                        tracing::warn!(%role, "the leader has been silent for too long");
                    }
                }
                Output::DropSeat(why) => self.seat_lost(hands, &why),
                Output::Unblock { role, seat_pid, age, within } => {
                    hands.side.push(Box::pin(unblock(
                        self.connector.clone(),
                        self.sitter.clone(),
                        role,
                        seat_pid,
                        age,
                        within,
                    )));
                }
                Output::Preempt(role) => {
                    hands.side.push(Box::pin(preempt(
                        self.connector.clone(),
                        self.sitter.clone(),
                        role,
                    )));
                }
            }
        }
    }
}

struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Polls a future that may not be there; never ready without one.
async fn poll_some<T>(slot: &mut Option<Boxed<T>>) -> T {
    match slot {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}

/// Connects, and the first time looks the server over and brings the schema up to date.
async fn take_seat(
    connector: Arc<Connector>,
    sitter: Sitter,
    prepare: Option<bool>,
) -> Result<Taken, TenureError> {
    let lease = sitter.lease;
    if let Some(migrate) = prepare {
        preflight::prepare(&connector, &sitter, migrate).await?;
    }
    let name = format!("tenure seat {}", sitter.identity);
    let session = connector.connect(&name, lease.lease()).await?;
    let (heard, hears) = mpsc::unbounded_channel();
    let token = uuid::Uuid::new_v4().to_string();
    let (seat, seated) =
        Seat::take(session, heard, sitter, &token).await.map_err(TenureError::session)?;
    Ok(Taken { seat, seated, heard: hears })
}

/// A short-lived session beside the seat, for one talk.
async fn aside<T>(
    connector: &Connector,
    sitter: &Sitter,
    within: Duration,
    talk: impl AsyncFnOnce(&Line) -> Result<T, LineError>,
) -> Result<T, TenureError> {
    let name = format!("tenure aside {}", sitter.identity);
    let session = connector.connect(&name, sitter.lease.lease()).await?;
    let line = Line::new(session, mpsc::unbounded_channel().0);
    let deadline = sitter.lease.statement_deadline();
    let pins = settings(sitter.lease.idle_session_timeout(), within, sitter.lease.heartbeat());
    let answer = async {
        line.ask(&pins, deadline).await?;
        talk(&line).await
    }
    .await
    .map_err(TenureError::session);
    line.hang_up(deadline).await;
    answer
}

async fn unblock(
    connector: Arc<Connector>,
    sitter: Sitter,
    role: RoleName,
    seat_pid: i32,
    age: Duration,
    within: Duration,
) -> Option<(RoleName, String)> {
    let name = literal(role.as_str());
    let barrier = format!("select pg_try_advisory_lock(tenure.barrier({name}))");
    let epoch = format!("select epoch from tenure.role where name = {name}");
    let sql = format!("select tenure.unblock({seat_pid}, {}, {})", millis(age), millis(within));
    let limit = sitter.lease.statement_deadline() + within;
    let found = aside(&connector, &sitter, limit, async |line| {
        // No new fence is set while the barrier is held, so that what stands before the claim ends
        // by itself or becomes old enough to be ended. It goes with this session. A fence that just
        // passes may be in the way of the first tries; another one of us, of all.
        let mut tries = 0;
        while line.ask(&barrier, limit).await?.as_deref() != Some("t") {
            tries += 1;
            if tries == 50 {
                return Ok(Found::default());
            }
            sleep(Duration::from_millis(2)).await;
        }
        let before = line.ask(&epoch, limit).await?;
        let mut found = Found::default();
        let until = tokio::time::Instant::now() + age + within * 2;
        while tokio::time::Instant::now() < until && line.ask(&epoch, limit).await? == before {
            found = parse(line.ask(&sql, limit).await?)?;
            if found.prepared.is_some() {
                break;
            }
        }
        Ok(found)
    })
    .await;
    match found {
        Ok(Found { prepared: Some(gid), .. }) => {
            let gid = literal(&gid);
            let obstacle = format!(
                "the prepared transaction {gid} holds up role {role} and has no session that could \
                 be ended; run `rollback prepared {gid}` (or `commit prepared {gid}`)"
            );
            return Some((role, obstacle));
        }
        Ok(Found { ended, refused, prepared: None }) => tracing::warn!(
            member = %sitter.identity,
            %role,
            ended = ?ended,
            refused = ?refused,
            "a claim was held up for longer than the lease"
        ),
        Err(error) => tracing::warn!(member = %sitter.identity, "could not unblock: {error}"),
    }
    None
}

/// What stood before a claim.
#[derive(Debug, Default, serde::Deserialize)]
struct Found {
    ended: Vec<serde_json::Value>,
    /// A session that we may not end.
    refused: Option<i32>,
    /// The name of a prepared transaction.
    prepared: Option<String>,
}

async fn preempt(
    connector: Arc<Connector>,
    sitter: Sitter,
    role: RoleName,
) -> Option<(RoleName, String)> {
    let (me, name) = (literal(&sitter.identity), literal(role.as_str()));
    let sql = format!(
        "select tenure.order_step_down({name}, {me}, {me}) where exists (\
           select from tenure.role r \
             join tenure.candidate c on c.role = r.name and c.member = r.holder \
             join tenure.candidate mine on mine.role = r.name and mine.member = {me} \
           where r.name = {name} and c.priority < mine.priority); \
         select tenure.notify_role({}, {name})",
        literal(&sitter.channel)
    );
    let within = sitter.lease.statement_deadline();
    let asked = aside(&connector, &sitter, within, async |line| line.ask(&sql, within).await).await;
    if let Err(error) = asked {
        tracing::debug!(member = %sitter.identity, %role, "could not ask for the role: {error}");
    }
    None
}

/// Bounds how long `start` waits for the registration.
pub(crate) fn registration_wait(sitter: &Sitter) -> Duration {
    sitter.lease.statement_deadline() * 4
}
