//! A real PgBouncer in front of a cluster.

use std::{
    fmt::Write as _,
    fs,
    net::{Ipv4Addr, SocketAddr, TcpStream},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Stdio},
    time::{Duration, Instant},
};

use crate::{
    Cluster, KitError,
    cluster::{SUPERUSER, blocking},
    home::Home,
    port::Port,
};

const START: Duration = Duration::from_secs(10);

/// When a server session goes back to the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolMode {
    /// When the client disconnects: session locks work.
    Session,
    /// After every transaction: session locks are stranded.
    Transaction,
    /// After every statement.
    Statement,
}

/// A running PgBouncer; killed when dropped. Any database of the cluster can be reached through it,
/// as superuser.
#[derive(Debug)]
pub struct PgBouncer {
    port: Port,
    child: Child,
    folder: PathBuf,
}

impl PgBouncer {
    /// Starts a pooler in front of `cluster`. `settings` go into its `[pgbouncer]` section, after the
    /// kit's own (`("server_round_robin", "1")`).
    ///
    /// # Errors
    /// [`KitError::Setup`] if PgBouncer is not installed or does not start.
    pub async fn start(
        cluster: &Cluster,
        mode: PoolMode,
        settings: &[(&str, &str)],
    ) -> Result<Self, KitError> {
        let upstream = cluster.port();
        let settings: Vec<(String, String)> =
            settings.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        blocking(move || Self::launch(upstream, mode, &settings)).await
    }

    /// How to connect to `database` through the pooler.
    #[must_use]
    pub fn dsn(&self, database: &str) -> String {
        format!("host=127.0.0.1 port={} dbname={database} user={SUPERUSER}", self.port.number())
    }

    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port.number()).into()
    }

    fn launch(
        upstream: u16,
        mode: PoolMode,
        settings: &[(String, String)],
    ) -> Result<Self, KitError> {
        let home = Home::get()?;
        let folder = home.folder("pgbouncer")?;
        let port = Port::reserve()?;
        let mode = match mode {
            PoolMode::Session => "session",
            PoolMode::Transaction => "transaction",
            PoolMode::Statement => "statement",
        };
        let users = folder.join("users.txt");
        fs::write(&users, format!("\"{SUPERUSER}\" \"\"\n"))?;
        let log = folder.join("log");
        let mut text = format!(
            "[databases]\n* = host=127.0.0.1 port={upstream}\n[pgbouncer]\n\
             listen_addr = 127.0.0.1\nlisten_port = {}\nunix_socket_dir =\npool_mode = {mode}\n\
             auth_type = trust\nauth_file = {}\nadmin_users = {SUPERUSER}\nlogfile = {}\n\
             ignore_startup_parameters = extra_float_digits\n",
            port.number(),
            users.display(),
            log.display(),
        );
        for (name, value) in settings {
            let _ = writeln!(text, "{name} = {value}");
        }
        let config = folder.join("pgbouncer.ini");
        fs::write(&config, text)?;
        // The distribution puts it where only root's PATH looks.
        let program = if Path::new("/usr/sbin/pgbouncer").exists() {
            "/usr/sbin/pgbouncer"
        } else {
            "pgbouncer"
        };
        let mut child = home
            .account()
            .command(program)
            .arg("-q")
            .arg(&config)
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|e| {
                KitError::Setup(format!("cannot run pgbouncer: {e}; run scripts/setup.sh"))
            })?;
        home.watch_group(child.id())?;
        let begun = Instant::now();
        let failed = loop {
            if TcpStream::connect((Ipv4Addr::LOCALHOST, port.number())).is_ok() {
                return Ok(Self { port, child, folder });
            }
            if child.try_wait()?.is_some() || begun.elapsed() > START {
                break fs::read_to_string(&log).unwrap_or_default();
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        end(&mut child, &folder);
        Err(KitError::Setup(format!("pgbouncer does not start; its log says: {failed}")))
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        end(&mut self.child, &self.folder);
    }
}

fn end(child: &mut Child, folder: &Path) {
    let _ = child.kill();
    let _ = child.wait();
    if let Ok(home) = Home::get() {
        home.forget_group(child.id());
    }
    let _ = fs::remove_dir_all(folder);
}
