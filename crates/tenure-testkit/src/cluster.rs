//! A throwaway PostgreSQL cluster that can be stopped, crashed, frozen and restarted.

use std::{
    fmt::Write as _,
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    process::Child,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use tenure_embedded::{Binaries, Server, Stop};
use tokio_postgres::{Client, NoTls};

use crate::{
    KitError, ServerCert,
    home::Home,
    port::Port,
    process::{self, Signal},
    template,
};

const START: Duration = Duration::from_secs(30);
const STOP: Duration = Duration::from_secs(20);
/// The database superuser of every cluster.
pub(crate) const SUPERUSER: &str = "postgres";

/// How a cluster is made. The default is PostgreSQL's own configuration without `fsync`.
#[derive(Debug, Clone, Default)]
pub struct ClusterOptions {
    /// Flush to disk as a real server does. Off: a crash of the *process* loses nothing by it,
    /// only a crash of the machine would.
    pub fsync: bool,
    /// Settings for `postgresql.conf`, as written there (`("max_connections", "20")`).
    pub settings: Vec<(String, String)>,
    /// Lines of `pg_hba.conf` for what comes over TCP, instead of `host all all all trust`. The
    /// kit's own way in (unix socket as superuser, replication) stays open.
    pub hba: Option<String>,
    /// Serve TLS with this certificate.
    pub tls: Option<ServerCert>,
    /// Major version, instead of the one named by `TENURE_TEST_PG`.
    pub version: Option<u32>,
    /// Run `initdb` for this cluster alone (about a second), so that its system identifier is its
    /// own: copies of the template all share one.
    pub own_identity: bool,
}

impl ClusterOptions {
    /// Adds a setting.
    #[must_use]
    pub fn set(mut self, name: &str, value: impl ToString) -> Self {
        self.settings.push((name.into(), value.to_string()));
        self
    }
}

/// A PostgreSQL server of its own on 127.0.0.1, that trusts every login and has a superuser
/// `postgres`. Dropped, also by a panic: killed and removed. Killed with its process: see the
/// watchdog in the crate's page.
#[derive(Debug)]
pub struct Cluster {
    pub(crate) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) server: Server,
    pub(crate) port: Port,
    pub(crate) folder: PathBuf,
    child: Mutex<Option<Child>>,
    /// Everything in `tenure.conf`; the last of a name wins, as in the file.
    settings: Mutex<Vec<(String, String)>>,
    pub(crate) sync_standbys: Mutex<Vec<String>>,
    databases: AtomicU32,
}

/// A database of a cluster, for one test: advisory locks and notifications are per database, so
/// tests in different databases do not meet.
#[derive(Debug, Clone)]
pub struct Database {
    name: String,
    port: u16,
}

impl Database {
    /// What the server calls it; unique within the cluster.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How to connect to it over TCP as superuser.
    #[must_use]
    pub fn dsn(&self) -> String {
        self.dsn_for(SUPERUSER)
    }

    /// How to connect to it over TCP as `user`.
    #[must_use]
    pub fn dsn_for(&self, user: &str) -> String {
        dsn(self.port, &self.name, user)
    }

    /// A session as superuser.
    ///
    /// # Errors
    /// [`KitError::Postgres`].
    pub async fn client(&self) -> Result<Client, KitError> {
        connect(&self.dsn()).await
    }
}

impl Cluster {
    /// A running cluster of the version that `TENURE_TEST_PG` names, else of the installed one.
    ///
    /// # Errors
    /// [`KitError`], with the end of the server's log.
    pub async fn start() -> Result<Self, KitError> {
        Self::start_with(ClusterOptions::default()).await
    }

    /// A running cluster.
    ///
    /// # Errors
    /// [`KitError`], with the end of the server's log.
    pub async fn start_with(options: ClusterOptions) -> Result<Self, KitError> {
        blocking(move || {
            let binaries = find_binaries(options.version)?;
            let home = Home::get()?;
            let folder = home.folder("pg")?;
            let data = folder.join("data");
            let server =
                Server::new(binaries, home.account().clone(), data, folder.join("server.log"));
            template::fill(home, &server, options.own_identity)?;
            let mut settings = vec![("fsync".into(), on_off(options.fsync))];
            if let Some(cert) = &options.tls {
                settings.extend(cert.install(&server)?);
            }
            settings.extend(options.settings);
            server.write("pg_hba.conf", &hba(options.hba.as_deref()))?;
            let cluster = Self::assemble(server, folder, settings)?;
            cluster.inner.launch()?;
            Ok(cluster)
        })
        .await
    }

    /// Puts a cluster whose data folder is filled under the kit's control.
    pub(crate) fn assemble(
        server: Server,
        folder: PathBuf,
        settings: Vec<(String, String)>,
    ) -> Result<Self, KitError> {
        let inner = Inner {
            server,
            port: Port::reserve()?,
            folder,
            child: Mutex::new(None),
            settings: Mutex::new(settings),
            sync_standbys: Mutex::new(Vec::new()),
            databases: AtomicU32::new(0),
        };
        inner.write_settings()?;
        Ok(Self { inner: Arc::new(inner) })
    }

    /// How to connect over TCP to the database `postgres` as superuser.
    #[must_use]
    pub fn dsn(&self) -> String {
        self.dsn_for("postgres", SUPERUSER)
    }

    /// How to connect over TCP.
    #[must_use]
    pub fn dsn_for(&self, database: &str, user: &str) -> String {
        dsn(self.port(), database, user)
    }

    /// How to connect over the unix socket as superuser: the way in that no `hba` closes.
    #[must_use]
    pub fn socket_dsn(&self, database: &str) -> String {
        format!(
            "host={} port={} dbname={database} user={SUPERUSER}",
            self.inner.folder.display(),
            self.port()
        )
    }

    /// The TCP port, the same after every restart.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.inner.port.number()
    }

    /// The TCP address, e.g. for a [`crate::Proxy`].
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port()).into()
    }

    /// The data folder.
    #[must_use]
    pub fn data_dir(&self) -> &Path {
        self.inner.server.data()
    }

    /// Major version of the server.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.inner.server.binaries().version().major
    }

    /// Everything the server has logged so far.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(self.inner.server.log()).unwrap_or_default()
    }

    /// The postmaster's process id, or `None` while the server is down.
    #[must_use]
    pub fn pid(&self) -> Option<i32> {
        self.inner.child().as_ref().and_then(|child| i32::try_from(child.id()).ok())
    }

    /// A session as superuser over the unix socket, its connection driven by a task of this runtime.
    ///
    /// # Errors
    /// [`KitError::Postgres`].
    pub async fn client(&self, database: &str) -> Result<Client, KitError> {
        connect(&self.socket_dsn(database)).await
    }

    /// Runs statements as superuser in the database `postgres`.
    ///
    /// # Errors
    /// [`KitError::Postgres`].
    pub async fn sql(&self, statements: &str) -> Result<(), KitError> {
        Ok(self.client("postgres").await?.batch_execute(statements).await?)
    }

    /// A new, empty database with a name of its own.
    ///
    /// # Errors
    /// [`KitError::Postgres`].
    pub async fn database(&self) -> Result<Database, KitError> {
        let n = self.inner.databases.fetch_add(1, Ordering::Relaxed);
        self.create_database(&format!("test_{n}")).await
    }

    /// A new, empty database.
    ///
    /// # Errors
    /// [`KitError::Postgres`], e.g. because it exists.
    pub async fn create_database(&self, name: &str) -> Result<Database, KitError> {
        self.sql(&format!("CREATE DATABASE \"{}\"", name.replace('"', "\"\""))).await?;
        Ok(Database { name: name.into(), port: self.port() })
    }

    /// Changes settings and has the server reload them, if it runs. Some need a restart.
    ///
    /// # Errors
    /// [`KitError::Server`] if the file cannot be written.
    pub async fn set(&self, settings: &[(&str, &str)]) -> Result<(), KitError> {
        self.inner.lock_settings().extend(settings.iter().map(|(k, v)| ((*k).into(), (*v).into())));
        self.inner.write_settings()?;
        if let Some(pid) = self.pid() {
            process::signal(pid, Signal::HUP);
        }
        Ok(())
    }

    /// Starts the server again after a stop or a crash, on the same port.
    ///
    /// # Errors
    /// [`KitError::Server`] with the end of the log.
    pub async fn start_again(&self) -> Result<(), KitError> {
        let inner = Arc::clone(&self.inner);
        blocking(move || inner.launch()).await
    }

    /// Ends the server in order and waits until it is gone.
    ///
    /// # Errors
    /// [`KitError::Server`] if it still runs.
    pub async fn stop(&self, how: Stop) -> Result<(), KitError> {
        let inner = Arc::clone(&self.inner);
        blocking(move || inner.stop(how)).await
    }

    /// Kills every process of the server at once with SIGKILL, as an out-of-memory killer or a
    /// power cut would: nothing is flushed, no client is told. Waits until they are gone.
    ///
    /// # Errors
    /// [`KitError::TimedOut`].
    pub async fn crash(&self) -> Result<(), KitError> {
        let inner = Arc::clone(&self.inner);
        blocking(move || inner.kill_all()).await
    }

    /// Stops (fast) and starts again.
    ///
    /// # Errors
    /// As for its two halves.
    pub async fn restart(&self) -> Result<(), KitError> {
        self.stop(Stop::Fast).await?;
        self.start_again().await
    }

    /// Stops every process of the server with SIGSTOP: a hung database. Sessions stay open and get
    /// no answer; new ones are accepted by the kernel and get none either.
    pub fn freeze(&self) {
        let Some(postmaster) = self.pid() else { return };
        // The postmaster first: then no new child can appear behind our back.
        process::signal(postmaster, Signal::STOP);
        for child in process::children(postmaster) {
            process::signal(child, Signal::STOP);
        }
    }

    /// Lets a frozen server go on.
    pub fn thaw(&self) {
        let Some(postmaster) = self.pid() else { return };
        for child in process::children(postmaster) {
            process::signal(child, Signal::CONT);
        }
        process::signal(postmaster, Signal::CONT);
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // An immediate shutdown removes the server's shared memory, which a kill leaves behind.
        self.thaw();
        if self.inner.stop(Stop::Immediate).is_err() {
            let _ = self.inner.kill_all();
        }
        self.inner.remove_shared_memory();
        let _ = fs::remove_dir_all(&self.inner.folder);
    }
}

impl Inner {
    pub(crate) fn launch(&self) -> Result<(), KitError> {
        let mut slot = self.child();
        if slot.is_some() {
            return Ok(());
        }
        let mut child = self.server.spawn()?;
        match self.server.wait_ready(&mut child, START) {
            Ok(_) => {
                *slot = Some(child);
                Ok(())
            }
            Err(e) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(e.into())
            }
        }
    }

    fn stop(&self, how: Stop) -> Result<(), KitError> {
        let mut slot = self.child();
        let Some(child) = slot.as_mut() else { return Ok(()) };
        self.server.stop(how, STOP)?;
        child.wait()?;
        *slot = None;
        Ok(())
    }

    fn kill_all(&self) -> Result<(), KitError> {
        let mut slot = self.child();
        let Some(child) = slot.as_mut() else { return Ok(()) };
        let postmaster = i32::try_from(child.id()).unwrap_or(0);
        process::signal(postmaster, Signal::STOP);
        let family = process::children(postmaster);
        for pid in family.iter().copied().chain([postmaster]) {
            process::signal(pid, Signal::KILL);
        }
        child.wait()?;
        *slot = None;
        let begun = Instant::now();
        while family.iter().any(|pid| process::alive(*pid)) {
            if begun.elapsed() > STOP {
                return Err(KitError::TimedOut {
                    what: "the killed server's processes to end".into(),
                    after: STOP,
                    detail: String::new(),
                });
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Removes the System V segment that a killed server left: its number is in the pid file, which
    /// only a server that ended in order removes.
    fn remove_shared_memory(&self) {
        let file = self.server.data().join("postmaster.pid");
        let text = fs::read_to_string(file).unwrap_or_default();
        if let Some(id) = text.lines().nth(6).and_then(|line| line.split_whitespace().nth(1)) {
            let _ = std::process::Command::new("ipcrm").args(["-m", id]).output();
        }
    }

    fn write_settings(&self) -> Result<(), KitError> {
        // Shared memory as files of the data folder: a killed server leaves none elsewhere.
        let mut text = format!(
            "dynamic_shared_memory_type = mmap\nlisten_addresses = '127.0.0.1'\nport = {}\n\
             unix_socket_directories = '{}'\n",
            self.port.number(),
            self.folder.display()
        );
        for (name, value) in self.lock_settings().iter() {
            let _ = writeln!(text, "{name} = '{}'", value.replace('\'', "''"));
        }
        Ok(self.server.write("tenure.conf", &text)?)
    }

    fn child(&self) -> MutexGuard<'_, Option<Child>> {
        self.child.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    pub(crate) fn lock_settings(&self) -> MutexGuard<'_, Vec<(String, String)>> {
        self.settings.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// The cluster that the tests of one binary share, started by the first that asks. Each test takes a
/// [`Cluster::database`] of its own; a test that stops or breaks its server starts its own instead.
///
/// # Panics
/// If it cannot be started.
pub async fn shared_cluster() -> &'static Cluster {
    static SHARED: tokio::sync::OnceCell<Cluster> = tokio::sync::OnceCell::const_new();
    SHARED
        .get_or_init(|| async {
            Cluster::start_with(ClusterOptions::default().set("max_connections", 400))
                .await
                .unwrap_or_else(|e| panic!("the shared cluster does not start: {e}"))
        })
        .await
}

/// A database for one test, on the [shared cluster](shared_cluster).
///
/// # Panics
/// If it cannot be made.
pub async fn database() -> Database {
    shared_cluster().await.database().await.expect("a database")
}

/// Runs blocking work off the runtime's threads: a test's own tasks go on meanwhile.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, KitError> + Send + 'static,
) -> Result<T, KitError> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|e| KitError::Setup(format!("the kit's own task failed: {e}")))?
}

pub(crate) async fn connect(dsn: &str) -> Result<Client, KitError> {
    let (client, connection) = tokio_postgres::connect(dsn, NoTls).await?;
    // Ends with the session; a broken session shows up at the client's next call.
    tokio::spawn(async move {
        let _ = connection.await;
    });
    Ok(client)
}

fn dsn(port: u16, database: &str, user: &str) -> String {
    format!("host=127.0.0.1 port={port} dbname={database} user={user}")
}

fn on_off(value: bool) -> String {
    if value { "on" } else { "off" }.into()
}

pub(crate) fn hba(tcp: Option<&str>) -> String {
    format!(
        "local all {SUPERUSER} trust\nlocal replication {SUPERUSER} trust\n\
         host replication {SUPERUSER} 127.0.0.1/32 trust\n{}\n",
        tcp.unwrap_or("local all all trust\nhost all all all trust")
    )
}

/// Binaries of the wanted major version: the distribution's, or those of `.tools/pg<major>` that
/// `scripts/setup.sh` installs.
fn find_binaries(version: Option<u32>) -> Result<Binaries, KitError> {
    let wanted = match version {
        Some(major) => Some(major),
        None => match std::env::var("TENURE_TEST_PG") {
            Ok(text) if !text.is_empty() => Some(text.parse().map_err(|_| {
                KitError::Setup(format!(
                    "TENURE_TEST_PG is {text:?}; give a major version, like 15"
                ))
            })?),
            Ok(_) | Err(_) => None,
        },
    };
    let Some(wanted) = wanted else { return Ok(Binaries::find()?) };
    if let Some(found) = Binaries::all().into_iter().find(|b| b.version().major == wanted) {
        return Ok(found);
    }
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .find_map(|dir| {
            Binaries::at(dir.join(".tools").join(format!("pg{wanted}")).join("bin")).ok()
        })
        .ok_or_else(|| {
            KitError::Setup(format!("PostgreSQL {wanted} is not installed; run scripts/setup.sh"))
        })
}
