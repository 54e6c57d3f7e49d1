//! The sentinel: a member's second session, which waits for another member's death.
//!
//! Members form a ring by identity; each watches the next. A wait is bounded by less than one
//! heartbeat interval, so no snapshot of ours is ever older than that, and it ends the moment the
//! watched session does. Then the sentinel tells its member, records the death, tells the group,
//! and moves on to the next in the ring. A hint only: the repair poll bounds what it misses.

use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use tokio::sync::mpsc;
use tokio::time::sleep;

use crate::connect::Connector;
use crate::driver::{SentinelEvent, Watch};
use crate::line::{Line, LineError};
use crate::seat::{Profile, settings};
use crate::sql::literal;
use tenure_core::protocol::millis;

/// Every how many waits the member's own listening is tried out.
const CALL_EVERY: usize = 20;

pub(crate) struct Sentinel {
    pub(crate) connector: Arc<Connector>,
    pub(crate) profile: Profile,
    pub(crate) watch: Watch,
}

/// How a call of this member begins. No role is called so: every other member ignores it.
pub(crate) fn call_sign(profile: &Profile) -> String {
    format!("? {} ", profile.identity)
}

#[derive(Deserialize)]
struct Next {
    identity: String,
    key: i64,
}

impl Sentinel {
    /// Runs until its task is aborted or its member is gone.
    pub(crate) async fn run(mut self) {
        let mut pause = Duration::from_millis(50);
        while !self.watch.events.is_closed() {
            let error = match self.watch_others().await {
                Ok(never) => match never {},
                Err(error) => error,
            };
            tracing::debug!(member = %self.profile.identity, "the sentinel lost its session: {error}");
            sleep(pause).await;
            pause = (pause * 2).min(self.profile.lease.heartbeat());
        }
    }

    async fn watch_others(&mut self) -> Result<std::convert::Infallible, LineError> {
        let lease = self.profile.lease;
        let deadline = lease.statement_deadline();
        let name = format!("tenure sentinel {}", self.profile.identity);
        let session = self
            .connector
            .connect(&name, lease.lease())
            .await
            .map_err(|error| LineError::Closed(error.to_string()))?;
        let (heard, mut hears) = mpsc::unbounded_channel();
        let line = Line::new(session, heard);
        // Below the interval, so that its snapshot is younger than that when the wait ends.
        let wait = lease.heartbeat().mul_f64(0.8);
        let pins = settings(lease.idle_session_timeout(), wait + deadline, lease.heartbeat());
        line.ask(&pins, deadline).await?;
        let (mut turn, mut waits) = (0_usize, 0_usize);
        loop {
            waits += 1;
            if waits.is_multiple_of(CALL_EVERY) {
                let call = format!("{}{:08x}", call_sign(&self.profile), rand::random::<u32>());
                let notify = |call| {
                    format!(
                        "select pg_notify({}, {})",
                        literal(&self.profile.channel),
                        literal(call)
                    )
                };
                line.ask(&notify(&call), deadline).await?;
                let _ = self.watch.events.send(SentinelEvent::Called(call));
            }
            // A watch hears nothing, but its reader must not pile up what a server might say.
            while hears.try_recv().is_ok() {}
            if self.watch.events.is_closed() {
                return Err(LineError::Closed("the member is gone".to_owned()));
            }
            if self.profile.lock_only {
                self.await_lock(&line, wait, deadline, &mut turn).await?;
            } else {
                self.await_death(&line, wait, deadline).await?;
            }
        }
    }

    async fn await_death(
        &self,
        line: &Line,
        wait: Duration,
        deadline: Duration,
    ) -> Result<(), LineError> {
        let me = literal(&self.profile.identity);
        let next = line.ask(&format!("select tenure.successor_of({me})"), deadline).await?;
        let Some(next) = next.and_then(|json| serde_json::from_str::<Next>(&json).ok()) else {
            // Alone. `notified` is cancel-safe; a permit that was stored wakes us at once.
            let _ = tokio::time::timeout(wait, self.watch.look_again.notified()).await;
            return Ok(());
        };
        let ask = format!("select tenure.await_death({}, {})", next.key, millis(wait));
        if line.ask(&ask, wait + deadline).await?.as_deref() != Some("t") {
            return Ok(());
        }
        let _ = self.watch.events.send(SentinelEvent::Died(next.identity.clone()));
        let record =
            format!("select tenure.record_death({}, {})", literal(&next.identity), next.key);
        if line.ask(&record, deadline).await?.as_deref() == Some("t") {
            // In a transaction that writes nothing: NOTIFY takes a cluster-wide lock at commit.
            let tell = format!("select pg_notify({}, '')", literal(&self.profile.channel));
            line.ask(&tell, deadline).await?;
        }
        Ok(())
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
        let ms = millis(wait);
        let ask = format!(
            "do $$ begin \
               perform set_config('lock_timeout', '{ms}', true); \
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
