//! Several servers: when each is tried, and for how long it is waited for.
//!
//! | a server | is tried |
//! |---|---|
//! | the first | at once |
//! | one after it | when the one before it has failed, has said nothing for 250 ms, or has talked for an equal share of the time |
//! | the one that was passed over | when all the others have failed or were given up: it may let in a session that is of no use |
//!
//! | a server | is given up |
//! |---|---|
//! | that has said nothing | after its part of the time: half of it, with three servers or more a third |
//! | the same, if every other one failed for good | at the deadline: a new attempt would come to nothing else |
//! | that talks | at the deadline; after half of the time if another one is untried |
//!
//! The first session wins. A refused login ends what is tried after it, and is the result once all before it have
//! ended without a session.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::select_all;
use tokio::time::{Instant, timeout_at};

use super::{Asked, Connector, Session, Stop};
use crate::ConnectError;
use crate::dsn::{Host, TargetSessionAttrs};
use crate::error::tens_of_millis;

/// How long a server may say nothing before the next one is tried beside it.
const HEAD_START: Duration = Duration::from_millis(250);

/// The servers in the order in which an attempt tries them.
pub(super) struct Servers<'a> {
    pub(super) hosts: Vec<&'a Host>,
    /// Whether the last of them was passed over.
    pub(super) last_is_passed_over: bool,
}

/// A server that is being tried.
struct Try<'a> {
    begun: Instant,
    /// Whether it has said anything.
    heard: Arc<AtomicBool>,
    session: Pin<Box<dyn Future<Output = Result<Session, Stop>> + Send + 'a>>,
}

impl Try<'_> {
    fn talks(&self) -> bool {
        self.heard.load(Ordering::Relaxed)
    }
}

struct Race<'a> {
    servers: &'a Servers<'a>,
    until: Instant,
    /// From the beginning to `until`.
    whole: Duration,
    /// The place of the next server to try.
    next: usize,
    /// By the place of the server.
    under_way: BTreeMap<usize, Try<'a>>,
    failures: BTreeMap<usize, Vec<ConnectError>>,
    /// The first refused login in the order of the servers.
    refusal: Option<ConnectError>,
}

impl Connector {
    /// Tries the servers as this module says.
    pub(super) async fn connect_any(
        &self,
        servers: &Servers<'_>,
        application_name: &str,
        wanted: TargetSessionAttrs,
        until: Instant,
    ) -> Result<Session, Stop> {
        let mut race = Race::new(servers, until);
        loop {
            while race.due().is_some_and(|at| at <= Instant::now()) {
                let heard = Arc::new(AtomicBool::new(false));
                let asked = Asked { application_name, wanted, heard: heard.clone() };
                let begun = Instant::now();
                let host = servers.hosts[race.next];
                let soon = until.min(begun + race.part());
                let session = Box::pin(self.connect_host(host, asked, soon, until));
                race.under_way.insert(race.next, Try { begun, heard, session });
                race.next += 1;
            }
            let Some(wake_at) = race.wake_at() else { return Err(race.lost()) };
            // Cancel-safe: the futures are kept and only borrowed here.
            let under_way = race.under_way.iter_mut().map(|(at, server)| {
                let at = *at;
                Box::pin(async move { (at, (&mut server.session).await) })
            });
            if let Ok(((at, done), ..)) = timeout_at(wake_at, select_all(under_way)).await {
                race.under_way.remove(&at);
                match done {
                    Ok(session) => return Ok(session),
                    Err(Stop::Here(error)) => race.refused(at, error),
                    Err(Stop::Next(more)) => drop(race.failures.insert(at, more)),
                }
            }
            race.give_up(Instant::now());
        }
    }
}

impl<'a> Race<'a> {
    fn new(servers: &'a Servers<'a>, until: Instant) -> Self {
        Race {
            servers,
            until,
            whole: until.saturating_duration_since(Instant::now()),
            next: 0,
            under_way: BTreeMap::new(),
            failures: BTreeMap::new(),
            refusal: None,
        }
    }

    /// How long a server that says nothing is waited for. It must not keep the attempt from its end when all the
    /// others have answered: one of them may be promoted meanwhile.
    fn part(&self) -> Duration {
        match self.servers.hosts.len() {
            0 | 1 => self.whole,
            2 => self.whole / 2,
            _ => self.whole / 3,
        }
    }

    fn has_untried(&self) -> bool {
        self.refusal.is_none() && self.next < self.servers.hosts.len()
    }

    /// When the next server is tried; none if that waits for the end of another one, or there is none.
    fn due(&self) -> Option<Instant> {
        if !self.has_untried() {
            return None;
        }
        if self.servers.last_is_passed_over && self.next + 1 == self.servers.hosts.len() {
            return self.under_way.is_empty().then(Instant::now);
        }
        let before = self.next.checked_sub(1).and_then(|at| self.under_way.get(&at));
        let Some(before) = before else { return Some(Instant::now()) };
        let count = u32::try_from(self.servers.hosts.len()).unwrap_or(u32::MAX);
        let equal = self.whole / count;
        Some(before.begun + if before.talks() { equal } else { equal.min(HEAD_START) })
    }

    /// When a server is given up.
    fn limit(&self, server: &Try<'_>) -> Instant {
        let within = match (server.talks(), self.has_untried()) {
            (true, false) => return self.until,
            (true, true) => self.whole / 2,
            (false, _) if self.is_last_hope() => return self.until,
            (false, _) => self.part(),
        };
        self.until.min(server.begun + within)
    }

    /// Whether one server is left, and none of the others may do better in a new attempt: be promoted, have started, or
    /// answer.
    fn is_last_hope(&self) -> bool {
        let may_do_better = |error: &ConnectError| {
            matches!(
                error,
                ConnectError::Target { .. }
                    | ConnectError::Server { .. }
                    | ConnectError::Deadline { .. }
            )
        };
        self.under_way.len() == 1
            && !self.has_untried()
            && !self.failures.values().flatten().any(may_do_better)
    }

    /// When there is something to do though no server has answered; none if none is tried any more.
    fn wake_at(&self) -> Option<Instant> {
        let limit = self.under_way.values().map(|server| self.limit(server)).min()?;
        Some(self.due().map_or(limit, |due| due.min(limit)))
    }

    fn refused(&mut self, at: usize, error: ConnectError) {
        self.under_way.retain(|other, _| *other < at);
        self.refusal = Some(error);
    }

    fn give_up(&mut self, now: Instant) {
        let late = |(at, server): (&usize, &Try<'_>)| {
            let limit = self.limit(server);
            (limit <= now).then(|| (*at, limit.saturating_duration_since(server.begun)))
        };
        let late: Vec<_> = self.under_way.iter().filter_map(late).collect();
        for (at, given) in late {
            self.under_way.remove(&at);
            let host = self.servers.hosts[at].to_string();
            let error = ConnectError::Deadline { host, waited: tens_of_millis(given) };
            self.failures.insert(at, vec![error]);
        }
    }

    /// What is told when no server is left.
    fn lost(self) -> Stop {
        match self.refusal {
            Some(error) => Stop::Here(error),
            None => Stop::Next(self.failures.into_values().flatten().collect()),
        }
    }
}
