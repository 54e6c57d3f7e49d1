//! The driver: one task that carries out what [`tenure_core::engine`] decides.
//!
//! One round trip at a time on the seat; connecting, draining and the sentinel run beside it.
//! Nothing here decides anything about leadership. Each turn takes one event in, reads the clock
//! once, after the event and before what is sent because of it, and hands the engine's outputs on.

mod command;
mod connecting;
mod database;
mod roles;
mod session;

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tenure_connect::line::Unasked;
use tenure_core::clock::{Clock, Tick};
use tenure_core::engine::{Engine, Lost, Output};
use tenure_core::key::{LockKey, RoleName};
use tenure_core::lifecycle::{Input, LockState, Notice};
use tenure_core::protocol::TermRow;
use tenure_core::retry::RetryStrategy;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

use crate::error::TenureError;
use crate::metrics;
use crate::seat::Profile;
use crate::sentinel::{DEATH, call_sign, named};

pub(crate) use command::{Answer, Command, Handle, Stopped};
pub use command::{Health, RoleHealth};
pub(crate) use database::{Blocked, Database, SentinelChannels, SentinelEvent, Taken};

use command::NewRole;
use connecting::Connecting;
use roles::Roles;
use session::{Boxed, Session, SessionEvent, present};

/// How many notifications one turn takes in: any session may send them, and an answer must not wait
/// behind them.
const HEARD_AT_ONCE: usize = 1024;

pub(crate) struct Driver<D: Database> {
    clock: Arc<dyn Clock>,
    profile: Profile,
    engine: Engine,
    database: Arc<D>,
    /// None when the last handle is gone.
    commands: Option<mpsc::UnboundedReceiver<Command>>,
    session: Option<Session<D::Seat>>,
    connecting: Connecting<D::Seat>,
    roles: Roles,
    sentinel: SentinelHandle,
    calls: Calls,
    drains: FuturesUnordered<Boxed<RoleName>>,
    /// What is done on sessions beside the seat: the role, and what cannot be ended.
    side: FuturesUnordered<Boxed<Option<(RoleName, String)>>>,
    /// When the lengths of the terms are told next.
    metered_at: Tick,
}

/// The driver's end of its sentinel.
struct SentinelHandle {
    /// None once it was started.
    watch: Option<SentinelChannels>,
    task: Option<AbortOnDropHandle<()>>,
    events: mpsc::UnboundedReceiver<SentinelEvent>,
    look_again: Arc<Notify>,
    wanted: watch::Sender<Vec<LockKey>>,
}

/// The calls of our sentinel to our own channel, which show that notifications arrive.
#[derive(Default)]
struct Calls {
    /// The last one that the seat heard.
    heard: String,
    /// One that it has not heard yet, which it must by then.
    awaited: Option<(String, Tick)>,
}

enum Event<S> {
    Session(SessionEvent),
    Connected(Result<Taken<S>, TenureError>),
    Command(Option<Command>),
    Sentinel(SentinelEvent),
    Drained(RoleName),
    Side(Option<(RoleName, String)>),
    Time,
}

impl<D: Database> Driver<D> {
    pub(crate) fn new(
        database: D,
        profile: Profile,
        clock: Arc<dyn Clock>,
        engine: Engine,
        reconnect: Arc<dyn RetryStrategy>,
        commands: mpsc::UnboundedReceiver<Command>,
    ) -> Self {
        Driver {
            connecting: Connecting::new(reconnect),
            clock,
            profile,
            engine,
            database: Arc::new(database),
            commands: Some(commands),
            session: None,
            roles: Roles::default(),
            sentinel: SentinelHandle::new(),
            calls: Calls::default(),
            drains: FuturesUnordered::new(),
            side: FuturesUnordered::new(),
            metered_at: Tick::ZERO,
        }
    }

    pub(crate) async fn run(mut self) {
        metrics::connected(false);
        let mut now = self.clock.now();
        while !self.turn(now) {
            let event = self.next_event().await;
            now = self.clock.now();
            self.take_in(event, now);
        }
        drop(self.sentinel.task.take());
        if let Some(seat) = self.session.take().and_then(Session::into_seat) {
            self.database.close(seat).await;
        }
    }

    /// Every branch is cancel-safe: the channels' `recv` are, and the futures are kept and only
    /// borrowed here.
    async fn next_event(&mut self) -> Event<D::Seat> {
        let pause = self
            .next_timeout()
            .map_or(Duration::from_secs(3600), |at| at.saturating_since(self.clock.now()));
        tokio::select! {
            biased;
            event = present(self.session.as_mut().map(Session::next)) => Event::Session(event),
            taken = self.connecting.next() => Event::Connected(taken),
            command = present(self.commands.as_mut().map(mpsc::UnboundedReceiver::recv)) => {
                Event::Command(command)
            }
            Some(event) = self.sentinel.events.recv() => Event::Sentinel(event),
            Some(role) = self.drains.next() => Event::Drained(role),
            Some(found) = self.side.next() => Event::Side(found),
            () = sleep(pause) => Event::Time,
        }
    }

    fn next_timeout(&self) -> Option<Tick> {
        let connect = match &self.session {
            None if self.engine.wants_seat() => self.connecting.due_at(),
            None | Some(_) => None,
        };
        let call = self.calls.awaited.as_ref().map(|(_, by)| *by);
        [self.engine.next_timeout(), connect, call].into_iter().flatten().min()
    }

    fn take_in(&mut self, event: Event<D::Seat>, now: Tick) {
        match event {
            Event::Session(SessionEvent::Done(Ok(done))) => self.engine.done(done, now),
            Event::Session(SessionEvent::Done(Err(error))) => self.seat_lost(&error, now),
            Event::Session(SessionEvent::Unasked(heard)) => self.heard(heard, now),
            Event::Connected(taken) => self.connected(taken, now),
            Event::Command(Some(command)) => {
                self.command(command, now);
                // Those that came together are carried out together: a turn looks at every role,
                // and ten thousand may be started at once.
                while let Some(command) =
                    self.commands.as_mut().and_then(|commands| commands.try_recv().ok())
                {
                    self.command(command, now);
                }
            }
            Event::Command(None) => {
                // The last handle is gone: everything is released in good order.
                self.commands = None;
                self.engine.leave(now);
            }
            Event::Sentinel(SentinelEvent::Died(identity)) => self.engine.died(&identity, now),
            Event::Sentinel(SentinelEvent::Free) => self.engine.notified("", now),
            Event::Sentinel(SentinelEvent::Called(call)) => {
                let by = now + self.profile.lease.lease();
                let missed = self.session.is_some() && call != self.calls.heard;
                self.calls.awaited = missed.then_some((call, by));
            }
            Event::Drained(role) => self.engine.drained(&role, now),
            Event::Side(Some((role, obstacle))) => {
                // Tried again slowly: every try costs a session beside the seat.
                self.engine.obstructed(&role, now);
                let text = obstacle.clone();
                if self.roles.obstructed(&role, obstacle, now) {
                    tracing::error!(member = %self.profile.identity, %role, "{text}");
                }
            }
            Event::Side(None) | Event::Time => {}
        }
    }

    /// What is due and what follows. True: everything was released, and the driver may end.
    fn turn(&mut self, now: Tick) -> bool {
        if self.engine.next_timeout().is_some_and(|at| at <= now) {
            self.engine.timeout(now);
        }
        // A leader learns of orders from its heartbeat's answer, and does not give up its term
        // because notifications stay away.
        if self.calls.awaited.take_if(|(_, by)| *by <= now).is_some() && self.engine.holds_nothing()
        {
            self.seat_lost("notifications do not arrive any more", now);
        }
        self.outputs(now);
        self.begin(now);
        self.outputs(now);
        if self.engine.has_left() && !self.session.as_ref().is_some_and(Session::is_busy) {
            return true;
        }
        if self.session.is_some() {
            self.sentinel.start(&self.database);
        }
        if self.profile.lock_only {
            let keys = self.roles.waiting_keys(&self.engine);
            self.sentinel.wanted.send_if_modified(|old| {
                let changed = *old != keys;
                *old = keys;
                changed
            });
        }
        if let Some(beat) = self.engine.last_beat() {
            metrics::heartbeat_age(now.saturating_since(beat));
        }
        // Not at every turn: there may be ten thousand of them.
        if now >= self.metered_at {
            self.metered_at = now + self.profile.lease.heartbeat() / 2;
            self.roles.meter(now);
        }
        false
    }

    /// Starts what can be started: a connection, a round trip.
    fn begin(&mut self, now: Tick) {
        let database = self.database.clone();
        match &mut self.session {
            None => {
                let due = self.connecting.due_at().is_some_and(|at| at <= now);
                if due && self.engine.wants_seat() {
                    let attempt = async move { database.take_seat().await };
                    self.connecting.start(Box::pin(attempt), now);
                }
            }
            Some(session) if !session.is_busy() => {
                if let Some(op) = self.engine.next_op(now) {
                    let clock = self.clock.clone();
                    session.start(|seat| async move {
                        let done = database.run(&seat, &op).await;
                        let took = clock.now().saturating_since(now);
                        metrics::round_trip(&op, took, done.is_ok());
                        done
                    });
                }
            }
            Some(_) => {}
        }
    }

    /// Takes in what the seat heard, and what it heard since: a turn looks at every role, and a
    /// release of a thousand roles is told a thousand times.
    fn heard(&mut self, first: Option<Unasked>, now: Tick) {
        let (mut next, mut look_again, mut ring_changed) = (first, false, false);
        for _ in 0..HEARD_AT_ONCE {
            match next {
                Some(Unasked::Notification { channel, .. }) if channel != self.profile.channel => {}
                Some(Unasked::Notification { payload, .. }) => {
                    if payload.starts_with(&call_sign(&self.profile)) {
                        self.calls.awaited.take_if(|(call, _)| *call == payload);
                        self.calls.heard = payload;
                    } else if let Some(dead) = payload.strip_prefix(DEATH) {
                        ring_changed = true;
                        self.engine.died(dead, now);
                    } else if let Some(role) =
                        payload.strip_prefix(&named(self.profile.identity.as_str()))
                    {
                        self.engine.named(role, now);
                    } else if !payload.is_empty() {
                        self.engine.notified(&payload, now);
                    } else if !std::mem::replace(&mut look_again, true) {
                        self.engine.notified("", now);
                    }
                }
                Some(Unasked::Closed(error)) => self.seat_closed(&error, now),
                None => self.seat_lost("the reader of the session ended", now),
            }
            let Some(heard) = self.session.as_mut().and_then(Session::try_heard) else { break };
            next = Some(heard);
        }
        if look_again || ring_changed {
            self.sentinel.look_again.notify_one();
        }
    }

    fn connected(&mut self, taken: Result<Taken<D::Seat>, TenureError>, now: Tick) {
        match taken {
            Ok(Taken { seat, seated, heard }) => {
                // What was called before it listened it cannot have heard.
                self.calls.awaited = None;
                self.connecting.trouble = None;
                self.session = Some(Session::new(seat, heard, now));
                metrics::connected(true);
                self.engine.seat_taken(seated, now);
            }
            Err(error) => {
                let text = error.to_string();
                // An outage is one warning for each reason, however many tries it takes.
                if self.connecting.trouble.as_deref() == Some(text.as_str()) {
                    tracing::debug!(member = %self.profile.identity, "still no seat: {text}");
                } else {
                    tracing::warn!(member = %self.profile.identity, "no seat: {text}");
                }
                metrics::connected(false);
                self.engine.unreachable(&text, now);
                self.connecting.failed(text, now);
                if error.is_refusal() {
                    // The setup cannot hold the promises: callers that wait are told, and the
                    // database is asked again slowly.
                    self.connecting.refused(self.profile.lease.lease(), now);
                    self.roles.refused(&error);
                }
            }
        }
    }

    /// The server did not answer, or not as it should: another one, if there is one, may do better.
    fn seat_lost(&mut self, error: &str, now: Tick) {
        if let Some((session, _)) = self.drop_seat(error, now) {
            self.database.pass_over(session.seat());
        }
    }

    /// The session was ended. A server that kept it for a lease is as good as before, or is gone and
    /// refuses the next one at once.
    fn seat_closed(&mut self, error: &str, now: Tick) {
        if let Some((session, false)) = self.drop_seat(error, now) {
            self.database.pass_over(session.seat());
        }
    }

    /// Returns the session that was there, and whether it had lasted.
    fn drop_seat(&mut self, error: &str, now: Tick) -> Option<(Session<D::Seat>, bool)> {
        // The gate closes first; the socket goes with the seat and the round trip on it.
        let Lost { terms: held, first } = self.engine.seat_lost(error, now);
        let session = self.session.take()?;
        let lasted = now.saturating_since(session.since) >= self.profile.lease.lease();
        if lasted {
            self.connecting.lost(error.to_owned(), now);
        } else {
            // Taken and lost at once, perhaps because the database refuses what a seat says: coming
            // back at once, and again, would only add to its trouble.
            self.connecting.failed(error.to_owned(), now);
        }
        metrics::connected(false);
        let member = &self.profile.identity;
        match first {
            Some(TermRow { role, key, epoch }) => tracing::warn!(
                %member, held, %role, %key, epoch = epoch.get(), error, "the seat is lost: {error}"
            ),
            None => tracing::warn!(%member, held, error, "the seat is lost: {error}"),
        }
        Some((session, lasted))
    }

    fn command(&mut self, command: Command, now: Tick) {
        match command {
            Command::Add(role) => {
                let NewRole { candidacy, life, keeper, publisher } = *role;
                if !self.engine.has_role(&candidacy.name) {
                    self.roles.add(publisher);
                    self.engine.add(candidacy, life, keeper);
                }
            }
            Command::Start { answer, .. } if self.engine.is_leaving() => {
                drop(answer.send(Err(TenureError::Stopped)));
            }
            Command::Start { role, answer, stopped } => {
                // A stop before this start is told first: it is not the one that `stopped` waits for.
                self.outputs(now);
                if self.engine.is_stopping(&role) {
                    // The release takes its time, and the lifecycle takes no start meanwhile.
                    self.roles.hold_start(&role, answer, stopped);
                    return;
                }
                match self.engine.state(&role) {
                    Some((LockState::Stopped, _)) => self.roles.await_registration(&role, answer),
                    Some(_) => drop(answer.send(Ok(()))),
                    None => drop(answer.send(Err(TenureError::Stopped))),
                }
                self.engine.input(&role, Input::Start, now);
                if let Some(stopped) = stopped {
                    self.roles.await_stop(&role, stopped);
                }
            }
            Command::Stop { role, stopped } => {
                self.outputs(now);
                if !matches!(self.engine.state(&role), Some((LockState::Stopped, _))) {
                    self.roles.take_back_starts(&role);
                    self.roles.await_stop(&role, stopped);
                }
                self.engine.input(&role, Input::StopRequested, now);
            }
            Command::StepDown { role, to, within } => {
                let deadline = within.map(|within| now + within);
                self.engine.input(&role, Input::ReleaseRequested { to, deadline }, now);
            }
            Command::Candidacy { role, ready, priority } => {
                self.engine.set_candidacy(&role, ready, priority, now);
            }
            Command::Health { answer } => drop(answer.send(self.health(now))),
            Command::Leave => self.engine.leave(now),
        }
    }

    fn health(&self, now: Tick) -> Health {
        Health {
            identity: self.profile.identity.clone(),
            connected: self.session.is_some(),
            heartbeat_age: self.engine.last_beat().map(|at| now.saturating_since(at)),
            error: self.connecting.trouble.clone().filter(|_| self.session.is_none()),
            roles: self.roles.health(&self.engine),
        }
    }

    fn outputs(&mut self, now: Tick) {
        while let Some(output) = self.engine.next_output() {
            match output {
                Output::Notice(role, notice) => {
                    let epoch = self.engine.state(&role).and_then(|(_, epoch)| epoch);
                    // The driver has logged its own trouble, once for all roles.
                    let trouble = self.connecting.trouble.as_ref();
                    let logged = matches!(&notice, Notice::Error(error) if trouble == Some(error));
                    let member = self.profile.identity.as_str();
                    let has_stopped = matches!(notice, Notice::Stopped);
                    self.roles.notice(&role, member, epoch, notice, logged, now);
                    if has_stopped {
                        for (answer, stopped) in self.roles.held_starts(&role) {
                            let role = role.clone();
                            self.command(Command::Start { role, answer, stopped }, now);
                        }
                    }
                }
                Output::Gate(role, epoch) => self.roles.gate(&role, epoch),
                Output::Renewed => self.roles.renewed(),
                Output::Registered(role, result) => self.roles.registered(&role, result, now),
                Output::AwaitDrain(role, drained) => self.drains.push(Box::pin(async move {
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
                Output::DropSeat(why) => self.seat_lost(&why, now),
                Output::Unblock { role, seat_pid, age, within } => {
                    let database = self.database.clone();
                    let blocked = Blocked { role: role.clone(), seat_pid, age, within };
                    self.side.push(Box::pin(async move {
                        database.unblock(blocked).await.map(|obstacle| (role, obstacle))
                    }));
                }
                Output::Preempt(role) => {
                    let database = self.database.clone();
                    self.side.push(Box::pin(async move {
                        database.preempt(role).await;
                        None
                    }));
                }
            }
        }
    }
}

impl SentinelHandle {
    fn new() -> Self {
        let (sender, events) = mpsc::unbounded_channel();
        let look_again = Arc::new(Notify::new());
        let (wanted, receiver) = watch::channel(Vec::new());
        let watch =
            SentinelChannels { events: sender, look_again: look_again.clone(), wanted: receiver };
        SentinelHandle { watch: Some(watch), task: None, events, look_again, wanted }
    }

    /// Once, with the first seat: a sentinel without a seat has nothing to tell.
    fn start<D: Database>(&mut self, database: &Arc<D>) {
        if let Some(watch) = self.watch.take() {
            let database = database.clone();
            let task = tokio::spawn(async move { database.watch(watch).await });
            self.task = Some(AbortOnDropHandle::new(task));
        }
    }
}
