//! Which member leads a role, as the database knows it.
//!
//! A member's own sessions do not tell: a follower learns of the holder only when it claims, and an
//! observer never claims. So a question costs one short statement on a session of its own.
//! [`LeaderLock::leader`] opens that session and closes it again. [`LeaderLock::observe`] keeps one for
//! all observed roles of a member, and asks once a heartbeat for all of them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use tenure_connect::Connector;
use tenure_connect::line::{Line, LineError};
use tenure_connect::sql::json;
use tenure_core::epoch::Epoch;
use tenure_core::identity::Identity;
use tenure_core::key::RoleName;
use tenure_core::lease::Lease;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep};

use super::LeaderLock;
use crate::driver::Command;
use crate::error::TenureError;
use crate::sql::settings;

/// The leader of a role, as the database knows it.
///
/// It is news, not proof: the leader may be gone by the time that it is read. Only a
/// [gate](crate::LeaderGate) proves leadership, and only its own member's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Leader {
    /// The member that holds the role.
    pub identity: Identity,
    /// The epoch under which it holds the role.
    pub epoch: Epoch,
    /// Whether its gate may be open; false while it waits out the lease of the leader before it.
    pub acting: bool,
}

/// Answers which members lead which roles.
pub(crate) trait LeaderSource: Send + Sync {
    /// The leaders of these roles; a role without a leader is missing. `again` says whether a question
    /// will be asked soon; it is called when the answer is there.
    fn leaders<'a>(
        &'a self,
        roles: &'a [RoleName],
        again: &'a (dyn Fn() -> bool + Sync),
    ) -> BoxFuture<'a, Result<BTreeMap<RoleName, Leader>, TenureError>>;

    /// No question will be asked soon.
    fn close(&self) -> BoxFuture<'_, ()>;
}

/// A session of a member for such questions.
pub(crate) struct SideSession {
    connector: Connector,
    identity: Identity,
    lease: Lease,
    line: tokio::sync::Mutex<Option<Line>>,
}

impl SideSession {
    pub(crate) fn new(connector: Connector, identity: Identity, lease: Lease) -> Self {
        SideSession { connector, identity, lease, line: tokio::sync::Mutex::default() }
    }

    async fn connect(&self) -> Result<Line, TenureError> {
        let name = format!("tenure side {}", self.identity);
        let session = self.connector.connect(&name, self.lease.lease()).await?;
        let line = Line::new(session, mpsc::unbounded_channel().0);
        let deadline = self.lease.statement_deadline();
        let pins = settings(self.lease.idle_session_timeout(), deadline, self.lease.heartbeat());
        line.ask(&pins, deadline).await.map_err(TenureError::session)?;
        Ok(line)
    }
}

impl LeaderSource for SideSession {
    fn leaders<'a>(
        &'a self,
        roles: &'a [RoleName],
        again: &'a (dyn Fn() -> bool + Sync),
    ) -> BoxFuture<'a, Result<BTreeMap<RoleName, Leader>, TenureError>> {
        Box::pin(async move {
            let mut slot = self.line.lock().await;
            let deadline = self.lease.statement_deadline();
            let sql = include_str!("../../sql/leaders.sql").replace("{roles}", &json(&roles));
            // Taken out: a question that is cancelled closes its session.
            let kept = match slot.take() {
                Some(line) => match line.ask(&sql, deadline).await {
                    // Mostly the session ended since the last question. It costs nothing to ask again, but time.
                    Err(error) if !matches!(error, LineError::Deadline(_)) => None,
                    answered => Some((line, answered)),
                },
                None => None,
            };
            let (line, answered) = match kept {
                Some(answered) => answered,
                None => {
                    let line = self.connect().await?;
                    let answered = line.ask(&sql, deadline).await;
                    (line, answered)
                }
            };
            let answer = answered.map_err(TenureError::session)?;
            if again() {
                *slot = Some(line);
            } else {
                line.hang_up(deadline).await;
            }
            let text = answer.unwrap_or_default();
            serde_json::from_str(&text).map_err(|error| TenureError::Session(error.to_string()))
        })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            // After a question that is under way: it may have kept the session.
            let _ = self.line.lock().await.take();
        })
    }
}

/// The observed roles of one member.
pub(crate) struct Observed {
    source: Arc<dyn LeaderSource>,
    lease: Lease,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    roles: BTreeMap<RoleName, watch::Sender<Option<Leader>>>,
    /// A task asks for them.
    asks: bool,
}

impl Observed {
    pub(crate) fn new(source: Arc<dyn LeaderSource>, lease: Lease) -> Arc<Self> {
        Arc::new(Observed { source, lease, state: Mutex::default() })
    }

    async fn leader(&self, role: &RoleName) -> Result<Option<Leader>, TenureError> {
        let again = || self.state().asks;
        let mut leaders = self.source.leaders(std::slice::from_ref(role), &again).await?;
        Ok(leaders.remove(role))
    }

    fn observe(
        self: &Arc<Self>,
        role: &RoleName,
        member: mpsc::WeakUnboundedSender<Command>,
    ) -> watch::Receiver<Option<Leader>> {
        let mut state = self.state();
        let receiver = state.roles.entry(role.clone()).or_default().subscribe();
        if !std::mem::replace(&mut state.asks, true) {
            tokio::spawn(self.clone().run(member));
        }
        receiver
    }

    /// The roles that have receivers; none is left: the task ends.
    fn next_round(&self) -> Vec<RoleName> {
        let mut state = self.state();
        state.roles.retain(|_, leader| leader.receiver_count() > 0);
        state.asks = !state.roles.is_empty();
        state.roles.keys().cloned().collect()
    }

    fn publish(&self, leaders: &BTreeMap<RoleName, Leader>) {
        for (role, sender) in &self.state().roles {
            let new = leaders.get(role);
            sender.send_if_modified(|now| {
                let changed = now.as_ref() != new;
                if changed {
                    *now = new.cloned();
                }
                changed
            });
        }
    }

    async fn run(self: Arc<Self>, member: mpsc::WeakUnboundedSender<Command>) {
        let mut answered = Instant::now();
        loop {
            let roles = self.next_round();
            if roles.is_empty() {
                break;
            }
            if member.upgrade().is_none_or(|member| member.is_closed()) {
                // The receivers see that their sender is gone.
                *self.state() = State::default();
                break;
            }
            match self.source.leaders(&roles, &|| true).await {
                Ok(leaders) => {
                    answered = Instant::now();
                    self.publish(&leaders);
                }
                Err(error) => {
                    tracing::debug!(%error, "the leaders of the observed roles are unknown");
                    if answered.elapsed() > self.lease.lease() {
                        self.publish(&BTreeMap::new());
                    }
                }
            }
            sleep(self.lease.heartbeat()).await;
        }
        self.source.close().await;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LeaderLock {
    /// Which member leads the role now, whatever member it is. None: no member does.
    ///
    /// Costs one short session and one statement; connecting takes a lease at most, each answer a statement
    /// deadline. The role need not be started.
    ///
    /// # Errors
    /// If the database cannot be asked.
    pub async fn leader(&self) -> Result<Option<Leader>, TenureError> {
        self.member.observed.leader(&self.publisher.name).await
    }

    /// Which member leads the role, as that changes. None: no member does, or the database has not
    /// answered for a lease.
    ///
    /// A change is seen within a heartbeat; a leader that led for less than that may be missed. While
    /// there are receivers, the member has one session and sends one statement a heartbeat more,
    /// whatever the number of observed roles.
    pub fn observe(&self) -> watch::Receiver<Option<Leader>> {
        self.member.observed.observe(&self.publisher.name, self.member.commands.downgrade())
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::Notify;

    use super::*;

    /// Answers its first question at once, and the next one when it is told to.
    #[derive(Default)]
    struct Slow {
        asked: Notify,
        answer: Notify,
        closed: Notify,
        kept: Mutex<Vec<bool>>,
    }

    impl LeaderSource for Slow {
        fn leaders<'a>(
            &'a self,
            _roles: &'a [RoleName],
            again: &'a (dyn Fn() -> bool + Sync),
        ) -> BoxFuture<'a, Result<BTreeMap<RoleName, Leader>, TenureError>> {
            Box::pin(async move {
                let is_first = self.kept.lock().unwrap().is_empty();
                self.asked.notify_one();
                if !is_first {
                    self.answer.notified().await;
                }
                self.kept.lock().unwrap().push(again());
                Ok(BTreeMap::new())
            })
        }

        fn close(&self) -> BoxFuture<'_, ()> {
            self.closed.notify_one();
            Box::pin(std::future::ready(()))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_question_that_outlasts_the_observing_does_not_keep_the_session() {
        let source = Arc::new(Slow::default());
        let observed = Observed::new(source.clone(), Lease::default());
        let (commands, _inbox) = mpsc::unbounded_channel();
        let role = RoleName::new("r").unwrap();
        let receiver = observed.observe(&role, commands.downgrade());
        source.asked.notified().await;
        let question = tokio::spawn({
            let observed = observed.clone();
            async move { observed.leader(&role).await }
        });
        source.asked.notified().await;
        drop(receiver);
        source.closed.notified().await;
        source.answer.notify_one();
        assert_eq!(question.await.unwrap().unwrap(), None);
        assert_eq!(*source.kept.lock().unwrap(), [true, false]);
    }
}
