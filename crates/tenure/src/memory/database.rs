//! The database that the members of a group think they share.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::future::BoxFuture;
use tenure_connect::line::Unasked;
use tenure_core::clock::{Clock, Tick};
use tenure_core::key::RoleName;
use tenure_core::lease::Lease;
use tenure_core::model::{MemberSpec, Model, SessionId};
use tenure_core::protocol::{Done, Op};
use tokio::sync::mpsc;
use tokio::time::sleep;

use crate::driver::{Blocked, Database, SentinelChannels, SentinelEvent, Taken};
use crate::error::TenureError;
use crate::lock::{Leader, LeaderSource};
use crate::sentinel::named;

pub(super) const CHANNEL: &str = "tenure";

/// What every member of a group reaches.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) lease: Lease,
    pub(super) clock: Arc<dyn Clock>,
    server: Mutex<Server>,
}

#[derive(Debug, Default)]
pub(super) struct Server {
    pub(super) model: Model,
    lines: BTreeMap<SessionId, Line>,
    /// The sentinels, by member.
    watches: BTreeMap<String, mpsc::UnboundedSender<SentinelEvent>>,
    /// Members that no packet reaches, or comes from.
    pub(super) cut: BTreeSet<String>,
}

/// The server's end of a session.
#[derive(Debug)]
struct Line {
    member: String,
    heard: mpsc::UnboundedSender<Unasked>,
}

impl Shared {
    pub(super) fn new(lease: Lease, clock: Arc<dyn Clock>) -> Self {
        Shared { lease, clock, server: Mutex::default() }
    }

    pub(super) fn server(&self) -> MutexGuard<'_, Server> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LeaderSource for Shared {
    fn leaders<'a>(
        &'a self,
        roles: &'a [RoleName],
        _again: &'a (dyn Fn() -> bool + Sync),
    ) -> BoxFuture<'a, Result<BTreeMap<RoleName, Leader>, TenureError>> {
        let server = self.server();
        let leader = |role| {
            let (member, epoch, acting) = server.model.leader(role)?;
            let identity = member.parse().expect("every member of a group has an identity");
            Some((role.clone(), Leader { identity, epoch, acting }))
        };
        Box::pin(std::future::ready(Ok(roles.iter().filter_map(leader).collect())))
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}

impl Server {
    pub(super) fn session_of(&self, member: &str) -> Option<SessionId> {
        self.lines.iter().find(|(_, line)| line.member == member).map(|(id, _)| *id)
    }

    /// A session ends: its member hears it if it can, the others' sentinels notice the death.
    pub(super) fn end(&mut self, session: SessionId, now: Tick) {
        let Some(member) = self.model.end(session) else { return };
        if let Some(line) = self.lines.remove(&session)
            && !self.cut.contains(&member)
        {
            let _ = line.heard.send(Unasked::Closed("the server ended the session".to_owned()));
        }
        self.model.record_death(&member, now);
        self.watches.retain(|_, events| !events.is_closed());
        for (watcher, events) in &self.watches {
            if *watcher != member && !self.cut.contains(watcher) {
                let _ = events.send(SentinelEvent::Died(member.clone()));
            }
        }
    }

    /// Every session ends, nothing else is lost.
    pub(super) fn restart(&mut self) {
        self.model.restart();
        for (_, line) in std::mem::take(&mut self.lines) {
            if !self.cut.contains(&line.member) {
                let _ = line.heard.send(Unasked::Closed("the server restarts".to_owned()));
            }
        }
    }

    /// Brings what was said to the sessions that listen.
    pub(super) fn deliver(&mut self) {
        for told in self.model.take_told() {
            if let Some(line) = self.lines.get(&told.session)
                && !self.cut.contains(&line.member)
            {
                let prefix = if told.named { named(&line.member) } else { String::new() };
                let (channel, payload) = (CHANNEL.to_owned(), format!("{prefix}{}", told.role));
                let _ = line.heard.send(Unasked::Notification { channel, payload });
            }
        }
    }
}

/// One member's way to the group's database.
pub(super) struct MemoryDatabase {
    pub(super) shared: Arc<Shared>,
    pub(super) spec: MemberSpec,
}

/// A seat in memory. Dropping it ends its session, as closing a socket does.
pub(super) struct MemorySeat {
    shared: Arc<Shared>,
    member: String,
    session: SessionId,
}

impl Drop for MemorySeat {
    fn drop(&mut self) {
        let now = self.shared.clock.now();
        let mut server = self.shared.server();
        if !server.cut.contains(&self.member) {
            server.end(self.session, now);
        }
    }
}

impl Database for MemoryDatabase {
    type Seat = MemorySeat;

    async fn take_seat(&self) -> Result<Taken<MemorySeat>, TenureError> {
        let member = self.spec.identity.clone();
        let now = self.shared.clock.now();
        let mut server = self.shared.server();
        if server.cut.contains(&member) {
            return Err(TenureError::Session("the database cannot be reached".to_owned()));
        }
        let (session, seated) = server.model.take_seat(&self.spec, now);
        // Its own old session ended with this.
        server.lines.retain(|_, line| line.member != member);
        let (sender, heard) = mpsc::unbounded_channel();
        server.lines.insert(session, Line { member: member.clone(), heard: sender });
        let seat = MemorySeat { shared: self.shared.clone(), member, session };
        Ok(Taken { seat, seated, heard })
    }

    async fn run(&self, seat: &MemorySeat, op: &Op) -> Result<Done, String> {
        // Other members have their turn, as they would while packets travel.
        tokio::task::yield_now().await;
        let answer = {
            let mut server = self.shared.server();
            (!server.cut.contains(&seat.member)).then(|| {
                let done = server.model.run(seat.session, op, self.shared.clock.now());
                server.deliver();
                done
            })
        };
        match answer {
            Some(answer) => answer,
            None => {
                sleep(self.shared.lease.statement_deadline()).await;
                Err("no answer in time".to_owned())
            }
        }
    }

    /// There is one server.
    fn pass_over(&self, _: &MemorySeat) {}

    async fn close(&self, seat: MemorySeat) {
        drop(seat);
    }

    async fn watch(&self, watch: SentinelChannels) {
        let member = self.spec.identity.clone();
        self.shared.server().watches.insert(member, watch.events);
        std::future::pending().await
    }

    /// No row here is ever held up by another transaction.
    async fn unblock(&self, _: Blocked) -> Option<String> {
        None
    }

    async fn preempt(&self, role: RoleName) {
        let mut server = self.shared.server();
        if !server.cut.contains(&self.spec.identity) {
            server.model.preempt(&role, &self.spec.identity);
            server.deliver();
        }
    }
}
