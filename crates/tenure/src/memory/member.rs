//! A member of a group in memory: it carries out what [`tenure_core::engine`] decides, on the model.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tenure_core::clock::{Clock, Tick};
use tenure_core::gate::Drained;
use tenure_core::identity::Identity;
use tenure_core::lifecycle::{Input, LockState, Notice};
use tokio::sync::{mpsc, oneshot};

use super::{Heard, Line, Shared};
use crate::actor::{Command, Health, RoleHealth};
use crate::error::TenureError;
use crate::hub::{Hub, View};
use crate::metrics;
use tenure_core::engine::{Engine, Output};
use tenure_core::model::{Joiner, SessionId, joiner};

pub(super) struct MemoryMember {
    shared: Arc<Shared>,
    joiner: Joiner,
    engine: Engine,
    hub: Arc<Hub>,
    commands: mpsc::UnboundedReceiver<Command>,
    session: Option<SessionId>,
    heard: mpsc::UnboundedReceiver<Heard>,
    /// A round trip that nobody answers, and when that is too long.
    unanswered: Option<Tick>,
    retry_at: Tick,
    starts: Vec<oneshot::Sender<Result<(), TenureError>>>,
    drains: FuturesUnordered<Drained>,
}

/// Whether it ends well or is aborted: who looks finds the role stopped.
impl Drop for MemoryMember {
    fn drop(&mut self) {
        self.hub.view.send_replace(View { state: LockState::Stopped });
        self.hub.set_leading(None);
    }
}

impl MemoryMember {
    pub(super) fn new(
        shared: Arc<Shared>,
        identity: &Identity,
        engine: Engine,
        hub: Arc<Hub>,
        commands: mpsc::UnboundedReceiver<Command>,
    ) -> Self {
        let joiner = joiner(identity.as_str(), &shared.lease);
        MemoryMember {
            shared,
            joiner,
            engine,
            hub,
            commands,
            session: None,
            heard: mpsc::unbounded_channel().1,
            unanswered: None,
            retry_at: Tick::ZERO,
            starts: Vec::new(),
            drains: FuturesUnordered::new(),
        }
    }

    pub(super) async fn run(mut self) {
        let mut open = true;
        loop {
            let now = self.now();
            if self.unanswered.is_some_and(|until| until <= now) {
                self.lose_seat("no answer");
            }
            if self.engine.next_timeout().is_some_and(|at| at <= now) {
                self.engine.timeout(now);
            }
            self.outputs();
            self.begin();
            self.outputs();
            if self.engine.has_left() {
                break;
            }
            let now = self.now();
            let retry =
                (self.session.is_none() && self.engine.wants_seat()).then_some(self.retry_at);
            let wake = [self.engine.next_timeout(), self.unanswered, retry];
            let pause = wake
                .into_iter()
                .flatten()
                .min()
                .map_or(Duration::from_secs(3600), |at| at.saturating_since(now));
            let seated = self.session.is_some();
            // Every branch is cancel-safe: `recv`, `next` and `sleep` lose nothing when dropped.
            tokio::select! {
                biased;
                Some(heard) = self.heard.recv(), if seated => self.hear(heard),
                command = self.commands.recv(), if open => match command {
                    Some(command) => self.command(command),
                    None => {
                        open = false;
                        self.engine.leave(self.now());
                    }
                },
                Some(()) = self.drains.next(), if !self.drains.is_empty() => {
                    let now = self.now();
                    self.engine.drained(&self.hub.name, now);
                }
                () = tokio::time::sleep(pause) => {}
            }
        }
        if let Some(session) = self.session.take() {
            let now = self.now();
            self.shared.server().end(session, now);
        }
    }

    fn now(&self) -> Tick {
        self.shared.clock.now()
    }

    fn hear(&mut self, heard: Heard) {
        let now = self.now();
        match heard {
            Heard::Role(role) => self.engine.notified(role.as_str(), now),
            Heard::Death(member) => self.engine.died(&member, now),
            Heard::Closed => self.lose_seat("the server ended the session"),
        }
    }

    fn lose_seat(&mut self, error: &str) {
        let now = self.now();
        // The gate closes first.
        self.engine.seat_lost(error, now);
        self.unanswered = None;
        self.retry_at = now;
        self.heard = mpsc::unbounded_channel().1;
        let mut server = self.shared.server();
        if let Some(session) = self.session.take()
            && !server.cut.contains(&self.joiner.identity)
        {
            server.end(session, now);
        }
    }

    /// Takes a seat if there is none, and sends what is to be sent, until nothing is.
    fn begin(&mut self) {
        let now = self.now();
        if self.session.is_none() && self.engine.wants_seat() && now >= self.retry_at {
            self.connect(now);
        }
        while let Some(session) = self.session
            && self.unanswered.is_none()
            && let Some(op) = self.engine.next_op(self.now())
        {
            let now = self.now();
            let mut server = self.shared.server();
            if server.cut.contains(&self.joiner.identity) {
                self.unanswered = Some(now + self.shared.lease.statement_deadline());
                return;
            }
            let done = server.model.run(session, &op, now);
            server.deliver();
            drop(server);
            metrics::round_trip(&op, Duration::ZERO, done.is_ok());
            match done {
                Ok(done) => self.engine.done(done, now),
                Err(error) => self.lose_seat(&error),
            }
            self.outputs();
        }
    }

    fn connect(&mut self, now: Tick) {
        let mut server = self.shared.server();
        if server.cut.contains(&self.joiner.identity) {
            drop(server);
            self.retry_at = now + self.shared.lease.heartbeat();
            self.engine.unreachable("the database cannot be reached", now);
            for waiting in self.starts.drain(..) {
                // It follows, and registers when it can.
                let _ = waiting.send(Ok(()));
            }
            return;
        }
        let (session, seated) = server.model.take_seat(&self.joiner, now);
        let (heard, hears) = mpsc::unbounded_channel();
        // Its own old session ended with this.
        server.lines.retain(|_, line| line.member != self.joiner.identity);
        server.lines.insert(session, Line { member: self.joiner.identity.clone(), heard });
        drop(server);
        self.session = Some(session);
        self.heard = hears;
        self.engine.seat_taken(seated, now);
    }

    fn command(&mut self, command: Command) {
        let now = self.now();
        match command {
            Command::Add { .. } => unreachable!("its one role was there from the beginning"),
            Command::Start { role, answer } => {
                match self.engine.state(&role) {
                    Some((LockState::Stopped, _)) => self.starts.push(answer),
                    _ => drop(answer.send(Ok(()))),
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
                let role = self.hub.name.clone();
                let (state, epoch) = self.state();
                let is_leader = self.hub.gate.is_leader();
                let _ = answer.send(Health {
                    identity: self.joiner.identity.clone(),
                    connected: self.session.is_some(),
                    heartbeat_age: self.engine.last_beat().map(|at| now.saturating_since(at)),
                    error: None,
                    roles: vec![RoleHealth { role, state, is_leader, epoch, trouble: None }],
                });
            }
            Command::Leave => self.engine.leave(now),
        }
    }

    fn state(&self) -> (LockState, Option<tenure_core::epoch::Epoch>) {
        self.engine.state(&self.hub.name).unwrap_or((LockState::Stopped, None))
    }

    fn outputs(&mut self) {
        while let Some(output) = self.engine.next_output() {
            let now = self.now();
            match output {
                Output::Notice(role, notice) => {
                    let (_, epoch) = self.state();
                    metrics::notice(&role, &self.joiner.identity, self.hub.key, epoch, &notice);
                    if matches!(notice, Notice::Stopped) {
                        self.hub.set_leading(None);
                    }
                    self.hub.tell(notice, now);
                }
                Output::Gate(role, epoch) => {
                    self.hub.set_leading(epoch);
                    metrics::gate(&role, epoch);
                }
                Output::Renewed => self.hub.publish_deadline(),
                Output::Registered(role, result) => {
                    let result =
                        result.map_err(|why| TenureError::Registration { role: role.clone(), why });
                    if let Err(error) = &result {
                        self.hub.tell(Notice::Error(error.to_string()), now);
                    }
                    for waiting in self.starts.drain(..) {
                        let _ = waiting.send(result.clone());
                    }
                }
                Output::AwaitDrain(_, drained) => self.drains.push(drained),
                Output::TookOver(role) => metrics::failover(&role),
                Output::Stale(role, stale) => metrics::leader_stale(&role, stale),
                Output::DropSeat(why) => self.lose_seat(&why),
                // No row here is ever held up by somebody else's transaction.
                Output::Unblock { .. } => {}
                Output::Preempt(role) => {
                    let mut server = self.shared.server();
                    if !server.cut.contains(&self.joiner.identity) {
                        server.model.preempt(&role, &self.joiner.identity, now);
                        server.deliver();
                    }
                }
            }
        }
    }
}
