//! The sentinel: a member's second session, which waits for another member's death.
//!
//! Members form a ring by identity; each watches the next. A wait is bounded by less than one
//! heartbeat interval, so no snapshot of ours is ever older than that, and it ends the moment the
//! watched session does, which tells the group. Then the sentinel tells its member, records the death, tells
//! the group once more, and moves on to the next in the ring. A hint only: the repair poll bounds what it misses.

use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use tokio::sync::mpsc;
use tokio::time::sleep;

use crate::connect::Connector;
use crate::driver::{SentinelChannels, SentinelEvent};
use crate::line::{Line, LineError};
use crate::seat::{Profile, parse};
use crate::sql::{literal, settings};
use tenure_core::protocol::millis;
use tenure_core::retry::ExponentialBackoff;

/// After how many waits the member's own listening is tried out again, times the members that take part.
///
/// PostgreSQL wakes every listening session of the database for a notification, whatever its channel. So
/// the members share the calls out: the group calls at one rate, however many they are.
const CALL_EVERY: usize = 20;
/// Without tables the members cannot be counted.
const LOCK_ONLY_MEMBERS: usize = 10;
/// How long a death that was told is not yet recorded: the heir's claim has the server to itself meanwhile. The
/// record, and the second telling that wakes every member, are for members that the first one did not help.
const HEIR_FIRST: Duration = Duration::from_millis(20);
/// A session that lasted this many waits was a good one.
const STEADY: usize = 3;

pub(crate) struct Sentinel {
    pub(crate) connector: Arc<Connector>,
    pub(crate) profile: Profile,
    pub(crate) watch: SentinelChannels,
}

/// How a call of this member begins. No role is called so: every other member ignores it.
pub(crate) fn call_sign(profile: &Profile) -> String {
    format!("? {} ", profile.identity)
}

/// How `tenure.await_death` begins the news of a death, before the dead member's identity. No role is called so.
pub(crate) const DEATH: &str = "! ";

/// How `tenure.unlock` tells a member that a role was released to it, before the role's name. No role is called so.
pub(crate) fn named(identity: &str) -> String {
    format!("> {identity} ")
}

/// What `tenure.await_death` answers.
#[derive(Deserialize)]
struct Next {
    identity: String,
    key: i64,
    members: usize,
    dead: bool,
}

impl Sentinel {
    /// Runs until its task is aborted or its member is gone.
    pub(crate) async fn run(mut self) {
        let pace =
            ExponentialBackoff::new(Duration::from_millis(50), self.profile.lease.heartbeat());
        let mut failures = 0_u32;
        while !self.watch.events.is_closed() {
            let mut waits = 0;
            let error = match self.watch_others(&mut waits).await {
                Ok(never) => match never {},
                Err(error) => error,
            };
            failures = if waits >= STEADY { 1 } else { failures.saturating_add(1) };
            tracing::debug!(member = %self.profile.identity, "the sentinel lost its session: {error}");
            sleep(pace.pause(failures, rand::random())).await;
        }
    }

    /// Counts its waits.
    async fn watch_others(
        &mut self,
        waits: &mut usize,
    ) -> Result<std::convert::Infallible, LineError> {
        let lease = self.profile.lease;
        let deadline = lease.statement_deadline();
        let name = format!("tenure sentinel {}", self.profile.identity);
        let session = self
            .connector
            .connect(&name, lease.lease())
            .await
            .map_err(|error| LineError::Closed(error.to_string()))?;
        let host = session.host.clone();
        let passed_over = self.connector.passed_over().cloned();
        let (heard, mut hears) = mpsc::unbounded_channel();
        let line = Line::new(session, heard);
        // Below the interval, so that its snapshot is younger than that when the wait ends.
        let wait = lease.heartbeat().mul_f64(0.9);
        let pins = settings(lease.idle_session_timeout(), wait + deadline, lease.heartbeat());
        line.ask(&pins, deadline).await?;
        let mut turn = 0_usize;
        let mut call_in: Option<usize> = None;
        loop {
            *waits = waits.saturating_add(1);
            // A watch hears nothing, but its reader must not pile up what a server might say.
            while hears.try_recv().is_ok() {}
            if self.watch.events.is_closed() {
                return Err(LineError::Closed("the member is gone".to_owned()));
            }
            // A seat that left this server watches nothing here any more.
            let now = self.connector.passed_over();
            if now != passed_over.as_ref() && now == Some(&host) {
                return Err(LineError::Closed("the seat is on another server".to_owned()));
            }
            let members = if self.profile.lock_only {
                self.await_lock(&line, wait, deadline, &mut turn).await?;
                LOCK_ONLY_MEMBERS
            } else {
                self.await_death(&line, wait, deadline).await?
            };
            let between = CALL_EVERY.saturating_mul(members.max(1));
            // The first one at random: members that started together, or lost their sessions together, would all
            // call together for ever. Whether notifications arrive at all was tried before the start.
            let left = call_in.unwrap_or_else(|| rand::random_range(1..=between));
            call_in = Some(left.saturating_sub(1));
            if left <= 1 {
                call_in = Some(between);
                self.call(&line, deadline).await?;
            }
        }
    }

    /// Sends something to our own channel that the seat should hear.
    async fn call(&self, line: &Line, deadline: Duration) -> Result<(), LineError> {
        let call = format!("{}{:08x}", call_sign(&self.profile), rand::random::<u32>());
        let channel = literal(&self.profile.channel);
        line.ask(&format!("select pg_notify({channel}, {})", literal(&call)), deadline).await?;
        let _ = self.watch.events.send(SentinelEvent::Called(call));
        Ok(())
    }

    /// Returns how many members take part.
    async fn await_death(
        &self,
        line: &Line,
        wait: Duration,
        deadline: Duration,
    ) -> Result<usize, LineError> {
        let me = literal(self.profile.identity.as_str());
        let channel = literal(&self.profile.channel);
        let ask = format!("select tenure.await_death({me}, {}, {channel})", millis(wait));
        let Some(answer) = line.ask(&ask, wait + deadline).await? else {
            // Alone. `notified` is cancel-safe; a permit that was stored wakes us at once.
            let _ = tokio::time::timeout(wait, self.watch.look_again.notified()).await;
            return Ok(1);
        };
        let Next { identity, key, members, dead } = parse(Some(answer))?;
        if !dead {
            return Ok(members);
        }
        let _ = self.watch.events.send(SentinelEvent::Died(identity.clone()));
        sleep(HEIR_FIRST).await;
        let record = format!("select tenure.record_death({}, {key})", literal(&identity));
        if line.ask(&record, deadline).await?.as_deref() == Some("t") {
            // Once more, and to all: until it was recorded, a member may have yielded to the dead one, and a member
            // that missed a notification knows another holder. In a transaction that writes nothing: NOTIFY takes a
            // cluster-wide lock at commit.
            let tell = format!("select pg_notify({channel}, '')");
            line.ask(&tell, deadline).await?;
        }
        Ok(members)
    }

    /// Without tables there is no ring: it waits for the roles' own locks, in turn.
    async fn await_lock(
        &mut self,
        line: &Line,
        wait: Duration,
        deadline: Duration,
        turn: &mut usize,
    ) -> Result<(), LineError> {
        let key = {
            let wanted = self.watch.wanted.borrow_and_update();
            *turn = turn.wrapping_add(1);
            (!wanted.is_empty()).then(|| wanted[*turn % wanted.len()])
        };
        let Some(key) = key else {
            // Cancel-safe: a change that was missed is seen by the next look.
            let _ = tokio::time::timeout(wait, self.watch.wanted.changed()).await;
            return Ok(());
        };
        let args = key.args();
        let quiet = quiet_ms(millis(wait));
        let ask = format!(
            "do $$ begin \
               perform set_config('lock_timeout', {quiet}::text, true); \
               perform pg_advisory_xact_lock_shared({args}); \
               perform set_config('tenure.free', 'yes', false); \
             exception when lock_not_available then \
               perform set_config('tenure.free', 'no', false); \
             end $$; select current_setting('tenure.free')"
        );
        if line.ask(&ask, wait + deadline).await?.as_deref() == Some("yes") {
            let _ = self.watch.events.send(SentinelEvent::Free);
            // It stays free until a claimant takes it; do not spin meanwhile.
            sleep(self.profile.lease.heartbeat() / 4).await;
        }
        Ok(())
    }
}

/// What `tenure.quiet_ms` computes, where there is no schema.
fn quiet_ms(ms: u64) -> String {
    format!(
        "(select least({ms}, min(ms)::integer) from (values \
            (extract(epoch from current_setting('log_min_duration_statement')::interval) * 800), \
            (case when current_setting('log_lock_waits')::boolean then \
                extract(epoch from current_setting('deadlock_timeout')::interval) * 800 end)) v(ms) \
          where ms >= 100)"
    )
}
