//! Streaming replicas: asynchronous or synchronous, paused, promoted.
//!
//! A replica is a [`Cluster`] like any other. PostgreSQL's npm packages carry no `pg_basebackup`, so
//! replicas need a complete installation.

use std::{
    net::SocketAddr,
    sync::PoisonError,
    time::{Duration, Instant},
};

use tenure_embedded::Server;

use crate::{
    Cluster, KitError,
    cluster::{SUPERUSER, blocking, hba},
    home::Home,
    process::{self, Signal},
};

const WAIT: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(10);

/// How a replica follows its primary.
#[derive(Debug, Clone, Default)]
pub struct ReplicaOptions {
    /// Every commit on the primary waits until this replica has it on disk: it joins the primary's
    /// `synchronous_standby_names`, of which all must acknowledge.
    pub sync: bool,
    /// Follow through this address (a [`crate::Proxy`] in front of the primary) instead of the
    /// primary's unix socket.
    pub via: Option<SocketAddr>,
    /// Further settings.
    pub settings: Vec<(String, String)>,
}

impl Cluster {
    /// A hot standby of this server, copied with `pg_basebackup` and streaming when this returns.
    ///
    /// # Errors
    /// [`KitError`], e.g. because the installation has no `pg_basebackup`.
    pub async fn replica(&self, options: ReplicaOptions) -> Result<Self, KitError> {
        let source = std::sync::Arc::clone(&self.inner);
        let ReplicaOptions { sync, via, settings } = options;
        let replica = blocking(move || {
            let home = Home::get()?;
            let folder = home.folder("pg")?;
            let binaries = source.server.binaries().clone();
            let program = binaries.program("pg_basebackup");
            let data = folder.join("data");
            let output = home
                .account()
                .command(&program)
                .args(["-c", "fast", "-X", "stream", "--no-sync", "-U", SUPERUSER, "-h"])
                .arg(&source.folder)
                .args(["-p", &source.port.number().to_string(), "-D"])
                .arg(&data)
                .output()
                .map_err(|e| {
                    KitError::Setup(format!(
                        "cannot run {}: {e}; use a complete PostgreSQL installation",
                        program.display()
                    ))
                })?;
            if !output.status.success() {
                let words = String::from_utf8_lossy(&output.stderr);
                return Err(KitError::Setup(format!("pg_basebackup failed: {}", words.trim())));
            }
            let log = folder.join("server.log");
            let server = Server::new(binaries, home.account().clone(), data, log);
            let (host, port) = match via {
                Some(addr) => (addr.ip().to_string(), addr.port()),
                None => (source.folder.display().to_string(), source.port.number()),
            };
            // Its folder's name is its name.
            let name =
                folder.file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned());
            let upstream =
                format!("host={host} port={port} user={SUPERUSER} application_name={name}");
            // What the primary was told applies here as well (a standby needs its max_connections),
            // but for its own synchronous standbys.
            let mut all = source.lock_settings().clone();
            all.retain(|(name, _)| name != "synchronous_standby_names");
            all.push(("primary_conninfo".into(), upstream));
            all.push(("wal_retrieve_retry_interval".into(), "100ms".into()));
            all.extend(settings);
            server.write("pg_hba.conf", &hba(None))?;
            server.write("standby.signal", "")?;
            let replica = Self::assemble(server, folder, all)?;
            replica.inner.launch()?;
            Ok(replica)
        })
        .await?;
        let name = replica.standby_name();
        self.until("the replica to stream", &format!(
            "SELECT EXISTS (SELECT FROM pg_stat_replication WHERE application_name = '{name}' AND state = 'streaming')"
        ))
        .await?;
        if sync {
            let wanted = {
                let mut names =
                    self.inner.sync_standbys.lock().unwrap_or_else(PoisonError::into_inner);
                names.push(name.clone());
                format!("{} ({})", names.len(), names.join(", "))
            };
            self.set(&[("synchronous_standby_names", &wanted)]).await?;
            self.until("the replica to become synchronous", &format!(
                "SELECT EXISTS (SELECT FROM pg_stat_replication WHERE application_name = '{name}' AND sync_state = 'sync')"
            ))
            .await?;
        }
        Ok(replica)
    }

    /// The `application_name` under which this replica is known to its primary.
    #[must_use]
    pub fn standby_name(&self) -> String {
        self.inner.folder.file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned())
    }

    /// Waits until this replica has replayed everything that `primary` has written by now.
    ///
    /// # Errors
    /// [`KitError::TimedOut`].
    pub async fn wait_caught_up(&self, primary: &Self) -> Result<(), KitError> {
        let client = primary.client("postgres").await?;
        // A commit flushes all that was written before it, asynchronous commits included, which
        // might otherwise stay in memory for long; it waits for no standby.
        client
            .batch_execute(
                "SET synchronous_commit = local; SELECT pg_logical_emit_message(true, 'kit', '')",
            )
            .await?;
        let row = client.query_one("SELECT pg_current_wal_flush_lsn()::text", &[]).await?;
        let written: String = row.get(0);
        self.until(
            "the replica to catch up",
            &format!("SELECT coalesce(pg_last_wal_replay_lsn() >= '{written}', false)"),
        )
        .await
    }

    /// Makes this replica a primary on a new timeline. Its old primary, if it runs, knows nothing
    /// of it.
    ///
    /// # Errors
    /// [`KitError::TimedOut`], [`KitError::Postgres`].
    pub async fn promote(&self) -> Result<(), KitError> {
        self.sql("SELECT pg_promote(true, 20)").await?;
        self.until("the promotion", "SELECT NOT pg_is_in_recovery()").await
    }

    /// Stops this replica's WAL receiver with SIGSTOP: nothing more arrives, the connection stays
    /// open, and commits that need this replica's word wait.
    ///
    /// # Errors
    /// [`KitError::Setup`] if it does not receive.
    pub async fn pause_receiving(&self) -> Result<(), KitError> {
        process::signal(self.receiver().await?, Signal::STOP);
        Ok(())
    }

    /// Lets the WAL receiver go on.
    ///
    /// # Errors
    /// [`KitError::Setup`] if there is none.
    pub async fn resume_receiving(&self) -> Result<(), KitError> {
        process::signal(self.receiver().await?, Signal::CONT);
        Ok(())
    }

    /// Stops replaying: what arrives is kept and acknowledged, but not visible.
    ///
    /// # Errors
    /// [`KitError::Postgres`].
    pub async fn pause_replay(&self) -> Result<(), KitError> {
        self.sql("SELECT pg_wal_replay_pause()").await?;
        self.until("replay to pause", "SELECT pg_get_wal_replay_pause_state() = 'paused'").await
    }

    /// Replays again.
    ///
    /// # Errors
    /// [`KitError::Postgres`].
    pub async fn resume_replay(&self) -> Result<(), KitError> {
        self.sql("SELECT pg_wal_replay_resume()").await
    }

    async fn receiver(&self) -> Result<i32, KitError> {
        let client = self.client("postgres").await?;
        let row = client.query_opt("SELECT pid FROM pg_stat_wal_receiver", &[]).await?;
        row.map(|row| row.get(0))
            .ok_or_else(|| KitError::Setup("this server receives from no primary".into()))
    }

    /// Polls a question that is answered by one boolean.
    async fn until(&self, what: &str, question: &str) -> Result<(), KitError> {
        let client = self.client("postgres").await?;
        let begun = Instant::now();
        while !client.query_one(question, &[]).await?.get::<_, bool>(0) {
            if begun.elapsed() > WAIT {
                let detail = format!("; the log ends with: {}", self.inner.server.log_tail());
                return Err(KitError::TimedOut { what: what.into(), after: WAIT, detail });
            }
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }
}
