//! A member on PostgreSQL: its seat, its sentinel, and short sessions beside them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::Deserialize;
use tenure_connect::Connector;
use tenure_connect::line::{Line, LineError};
use tenure_connect::sql::{literal, settings};
use tenure_core::key::RoleName;
use tenure_core::protocol::{Done, Op, millis};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

use crate::config::Revive;
use crate::driver::{Blocked, Database, SentinelChannels, Taken};
use crate::error::TenureError;
use crate::preflight;
use crate::seat::{Profile, Seat, parse};
use crate::sentinel::Sentinel;

pub(crate) struct Postgres {
    connector: Arc<Connector>,
    profile: Profile,
    migrate: bool,
    /// The server was looked over, and the schema is up to date.
    prepared: AtomicBool,
    revive: Option<Revive>,
    /// The last attempt found no server.
    absent: AtomicBool,
}

impl Postgres {
    pub(crate) fn new(
        connector: Connector,
        profile: Profile,
        migrate: bool,
        revive: Option<Revive>,
    ) -> Self {
        let connector = Arc::new(connector);
        let (prepared, absent) = (AtomicBool::new(false), AtomicBool::new(false));
        Postgres { connector, profile, migrate, prepared, revive, absent }
    }

    /// Starts a server of ours again that the last attempt did not find.
    async fn revive(&self) {
        let Some(revive) = self.revive.clone() else { return };
        if !self.absent.swap(false, Ordering::Relaxed) {
            return;
        }
        let member = &self.profile.identity;
        match tokio::task::spawn_blocking(move || revive.call()).await {
            Ok(Ok(())) => tracing::warn!(%member, "the server was gone, and runs again"),
            Ok(Err(error)) => tracing::warn!(%member, "the server cannot be started: {error}"),
            Err(_) => tracing::warn!(%member, "the server cannot be started: a panic"),
        }
    }

    async fn connect_seat(&self) -> Result<Taken<Seat>, TenureError> {
        self.prepare().await?;
        let profile = &self.profile;
        let name = format!("tenure seat {}", profile.identity);
        let session = self.connector.connect(&name, profile.lease.lease()).await?;
        let host = session.host.clone();
        let (sender, heard) = mpsc::unbounded_channel();
        let token = uuid::Uuid::new_v4().to_string();
        match Seat::take(session, sender, profile.clone(), &token).await {
            Ok((seat, seated)) => Ok(Taken { seat, seated, heard }),
            Err(error) => {
                self.connector.pass_over(&host);
                Err(TenureError::session(error))
            }
        }
    }

    /// Looks the server over and brings the schema up to date, once.
    pub(crate) async fn prepare(&self) -> Result<(), TenureError> {
        if !self.prepared.load(Ordering::Relaxed) {
            preflight::prepare(&self.connector, &self.profile, self.migrate).await?;
            self.prepared.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// A short-lived session beside the seat, for one talk.
    async fn beside<T>(
        &self,
        within: Duration,
        talk: impl AsyncFnOnce(&Line) -> Result<T, LineError>,
    ) -> Result<T, TenureError> {
        let lease = &self.profile.lease;
        let name = format!("tenure beside {}", self.profile.identity);
        let session = self.connector.connect(&name, lease.lease()).await?;
        let line = Line::new(session, mpsc::unbounded_channel().0);
        let deadline = lease.statement_deadline();
        let pins = settings(lease.idle_session_timeout(), within, lease.heartbeat());
        let answer = async {
            line.ask(&pins, deadline).await?;
            talk(&line).await
        }
        .await
        .map_err(TenureError::session);
        line.hang_up(deadline).await;
        answer
    }

    /// Ends what stands before a claim, as far as this login role may.
    async fn end_obstacles(&self, blocked: &Blocked) -> Result<Found, TenureError> {
        let Blocked { role, seat_pid, age, within } = blocked;
        let name = literal(role.as_str());
        let barrier = format!("select pg_try_advisory_lock(tenure.barrier({name}))");
        let epoch = format!("select epoch from tenure.role where name = {name}");
        let (age_ms, within_ms) = (millis(*age), millis(*within));
        let sql = format!("select tenure.unblock({seat_pid}, {age_ms}, {within_ms})");
        let limit = self.profile.lease.statement_deadline() + *within;
        self.beside(limit, async |line| {
            // No new fence is set while the barrier is held and no pass is left, so that what stands
            // before the claim ends by itself or becomes old enough to be ended. The barrier goes with
            // this session. A fence that is being set may be in the way of the first tries; another
            // member, of all.
            let mut tries = 0;
            while line.ask(&barrier, limit).await?.as_deref() != Some("t") {
                tries += 1;
                if tries == 50 {
                    return Ok(Found::default());
                }
                sleep(Duration::from_millis(2)).await;
            }
            line.ask("select tenure.void_passes()", limit).await?;
            let before = line.ask(&epoch, limit).await?;
            let mut found = Found::default();
            let until = Instant::now() + *age + *within * 2;
            while Instant::now() < until && line.ask(&epoch, limit).await? == before {
                found = parse(line.ask(&sql, limit).await?)?;
                if found.prepared.is_some() {
                    break;
                }
            }
            Ok(found)
        })
        .await
    }
}

/// What stood before a claim.
#[derive(Debug, Default, Deserialize)]
struct Found {
    ended: Vec<serde_json::Value>,
    /// A session that we may not end.
    refused: Option<i32>,
    /// The name of a prepared transaction.
    prepared: Option<String>,
}

impl Database for Postgres {
    type Seat = Seat;

    async fn take_seat(&self) -> Result<Taken<Seat>, TenureError> {
        self.revive().await;
        let taken = self.connect_seat().await;
        let absent = matches!(&taken, Err(TenureError::Connect(error)) if error.is_unreachable());
        self.absent.store(absent, Ordering::Relaxed);
        taken
    }

    async fn run(&self, seat: &Seat, op: &Op) -> Result<Done, String> {
        seat.run(op).await.map_err(|error| error.to_string())
    }

    fn pass_over(&self, seat: &Seat) {
        self.connector.pass_over(seat.host());
    }

    async fn close(&self, seat: Seat) {
        seat.close().await;
    }

    async fn watch(&self, watch: SentinelChannels) {
        let (connector, profile) = (self.connector.clone(), self.profile.clone());
        Sentinel { connector, profile, watch }.run().await;
    }

    async fn unblock(&self, blocked: Blocked) -> Option<String> {
        let (member, role) = (&self.profile.identity, &blocked.role);
        match self.end_obstacles(&blocked).await {
            Ok(Found { prepared: Some(gid), .. }) => {
                let gid = literal(&gid);
                return Some(format!(
                    "the prepared transaction {gid} holds up role {role} and has no session that \
                     could be ended; run `rollback prepared {gid}` (or `commit prepared {gid}`)"
                ));
            }
            Ok(Found { ended, refused, prepared: None }) => tracing::warn!(
                %member, %role, ?ended, ?refused,
                "a claim was held up for longer than the lease"
            ),
            Err(error) => tracing::warn!(%member, "could not unblock: {error}"),
        }
        None
    }

    async fn preempt(&self, role: RoleName) {
        let (me, name) = (literal(self.profile.identity.as_str()), literal(role.as_str()));
        let sql = format!(
            "select tenure.order_step_down({name}, {me}, {me}) where exists (\
               select from tenure.role r \
                 join tenure.candidate c on c.role = r.name and c.member = r.holder \
                 join tenure.candidate mine on mine.role = r.name and mine.member = {me} \
               where r.name = {name} and c.priority < mine.priority); \
             select tenure.notify_role({}, {name})",
            literal(&self.profile.channel)
        );
        let within = self.profile.lease.statement_deadline();
        let asked = self.beside(within, async |line| line.ask(&sql, within).await).await;
        if let Err(error) = asked {
            let member = &self.profile.identity;
            tracing::debug!(%member, %role, "could not ask for the role: {error}");
        }
    }
}
