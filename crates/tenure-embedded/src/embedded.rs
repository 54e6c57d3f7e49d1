//! The embedded default: one private server per user and machine, shared by all their processes.
//!
//! ```text
//!  <folder>/       0700, owned by the server's account
//!    lock          held while one process initialises, starts or stops
//!    data/         the cluster            init-…/  a cluster being made, renamed to data/ when whole
//!    run/          0700, the unix socket  server.log
//! ```

use std::{
    fs::{self, File, TryLockError},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant, SystemTime},
};

use crate::{
    Account, Binaries, EmbeddedError, InitOptions, Instance, Server, Stop, account::caller_name,
};

/// Covers `initdb` on a slow disk by the process that holds the lock before us.
const LOCK_WAIT: Duration = Duration::from_secs(120);
/// Covers crash recovery after hours of work.
const START_WAIT: Duration = Duration::from_secs(60);
const STOP_WAIT: Duration = Duration::from_secs(20);
/// `sun_path` holds 108 bytes on Linux and 104 on macOS, with the final zero.
const SOCKET_PATH_MAX: usize = 103;
const SOCKET_NAME: &str = ".s.PGSQL.5432";
const USER: &str = "tenure";

/// The private server of this user on this machine.
#[derive(Debug, Clone)]
pub struct Embedded {
    folder: PathBuf,
    account: Account,
}

impl Embedded {
    /// Describes the private server in `folder`, or in the user's data folder: `$XDG_DATA_HOME/tenure`,
    /// else `~/.local/share/tenure`; for root `/var/lib/tenure` if the account that runs the server
    /// cannot reach that. Starts nothing and creates nothing.
    ///
    /// # Errors
    /// There is no such folder, no account to run a server, or no way for it to get there.
    pub fn at(folder: Option<PathBuf>) -> Result<Self, EmbeddedError> {
        let account = Account::for_server()?;
        let folder = match folder {
            Some(folder) => std::path::absolute(&folder)
                .map_err(EmbeddedError::file("cannot resolve", folder))?,
            None => default_folder(&account)?,
        };
        if !account.can_reach(&folder) {
            return Err(EmbeddedError::Unreachable {
                account: account.name().into(),
                path: folder,
            });
        }
        Ok(Self { folder, account })
    }

    /// The private server in `folder` (see [`Embedded::at`]), running: initialised if it never was,
    /// started if it is not, else attached to. Safe to call from any number of processes at once.
    /// Blocks; every wait in it is bounded.
    ///
    /// # Errors
    /// See [`EmbeddedError`]. A failed call leaves nothing half made that the next would trip over.
    pub fn start_or_attach(folder: Option<PathBuf>) -> Result<Self, EmbeddedError> {
        let this = Self::at(folder)?;
        // The common case takes no lock.
        if this.status()?.is_some_and(|instance| instance.accepts()) {
            return Ok(this);
        }
        this.account.private_dir(&this.folder)?;
        let _lock = this.lock()?;
        let server = this.server()?;
        if !server.data().join("PG_VERSION").exists() {
            this.initialise(&server)?;
        }
        this.start(&server)?;
        Ok(this)
    }

    /// The private server in `folder` (see [`Embedded::at`]) if it runs and takes sessions. Starts
    /// nothing and creates nothing.
    ///
    /// # Errors
    /// See [`Embedded::at`] and [`Embedded::status`].
    pub fn attach(folder: Option<PathBuf>) -> Result<Option<Self>, EmbeddedError> {
        let this = Self::at(folder)?;
        let runs = this.status()?.is_some_and(|instance| instance.accepts());
        Ok(runs.then_some(this))
    }

    /// The running server, if there is one.
    ///
    /// # Errors
    /// The folder exists and cannot be read.
    pub fn status(&self) -> Result<Option<Instance>, EmbeddedError> {
        if !self.folder.join("data").exists() {
            return Ok(None);
        }
        Ok(self.server()?.instance())
    }

    /// Stops the server for all its processes, and waits until it is gone. The data stays. Blocks; every
    /// wait in it is bounded. Does nothing if no server runs.
    ///
    /// # Errors
    /// [`EmbeddedError::TimedOut`] if it still runs.
    pub fn stop(&self) -> Result<(), EmbeddedError> {
        if self.status()?.is_none() {
            return Ok(());
        }
        let _lock = self.lock()?;
        let server = self.server()?;
        server.stop(Stop::Fast, STOP_WAIT).or_else(|_| server.stop(Stop::Immediate, STOP_WAIT))?;
        let sockets = self.socket_dir()?;
        if !sockets.starts_with(&self.folder) {
            // It is empty now, and outside of the folder that holds everything else.
            let _ = fs::remove_dir(sockets);
        }
        Ok(())
    }

    /// The folder that holds everything.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.folder
    }

    /// The file that the server's messages go to.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.folder.join("server.log")
    }

    /// How to connect, in libpq's `key=value` form. It holds no secret: the kernel tells the server the
    /// caller's account.
    ///
    /// # Errors
    /// [`EmbeddedError::File`] if the socket's folder cannot be determined.
    pub fn dsn(&self) -> Result<String, EmbeddedError> {
        let folder = self.socket_dir()?.display().to_string();
        let quoted = folder.replace('\\', "\\\\").replace('\'', "\\'");
        Ok(format!("host='{quoted}' port=5432 user={USER} dbname=postgres"))
    }

    fn lock(&self) -> Result<File, EmbeddedError> {
        let path = self.folder.join("lock");
        let file = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .map_err(EmbeddedError::file("cannot open", &path))?;
        let begun = Instant::now();
        // The kernel frees the lock when its holder dies, however it dies; a server does not
        // inherit it because Rust opens files close-on-exec.
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::WouldBlock) if begun.elapsed() < LOCK_WAIT => {
                    thread::sleep(Duration::from_millis(20));
                }
                Err(TryLockError::WouldBlock) => {
                    return Err(EmbeddedError::TimedOut {
                        doing: "waiting for another process that starts the server",
                        after: LOCK_WAIT,
                        log: self.log(),
                    });
                }
                Err(TryLockError::Error(e)) => {
                    return Err(EmbeddedError::file("cannot lock", path)(e));
                }
            }
        }
    }

    /// The server on our data, with binaries of the version that made the data.
    fn server(&self) -> Result<Server, EmbeddedError> {
        let data = self.folder.join("data");
        let binaries = match fs::read_to_string(data.join("PG_VERSION")) {
            Ok(text) => fitting(&data, text.trim())?,
            Err(_) => Binaries::find()?,
        };
        Ok(Server::new(binaries, self.account.clone(), data, self.log()))
    }

    fn initialise(&self, server: &Server) -> Result<(), EmbeddedError> {
        // Half-made clusters of starters that were killed. One whose `initdb` still runs fails, and
        // no process waits for it: we hold the lock.
        for entry in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with("init-") {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
        let nanos = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |d| d.as_nanos());
        let making = self.folder.join(format!("init-{}-{nanos}", std::process::id()));
        let draft = Server::new(
            server.binaries().clone(),
            self.account.clone(),
            making.clone(),
            self.log(),
        );
        draft.initialise(&InitOptions { superuser: USER.into(), sync: true })?;
        let caller = caller_name()?.replace('"', "\"\"");
        draft.write("pg_hba.conf", "local all all peer map=tenure\n")?;
        draft.write("pg_ident.conf", &format!("tenure \"{caller}\" {USER}\n"))?;
        for name in ["pg_hba.conf", "pg_ident.conf"] {
            // `initdb` has flushed its own files; these are written once and must last as well.
            let path = making.join(name);
            File::open(&path)
                .and_then(|file| file.sync_all())
                .map_err(EmbeddedError::file("cannot flush", path))?;
        }
        fs::rename(&making, server.data())
            .map_err(EmbeddedError::file("cannot move into place", server.data()))
    }

    fn start(&self, server: &Server) -> Result<(), EmbeddedError> {
        let begun = Instant::now();
        loop {
            match server.instance() {
                Some(instance) if instance.accepts() => return Ok(()),
                // A starter that was killed left it on its way up, or another process stops it.
                Some(_) => thread::sleep(Duration::from_millis(50)),
                None => {
                    let sockets = self.socket_dir()?;
                    self.account.private_dir(&sockets)?;
                    server.write("postgresql.conf", &settings(&sockets))?;
                    match server.start(START_WAIT) {
                        Ok(_) => return Ok(()),
                        // Backends of a crashed server hold its shared memory until they notice; a
                        // server that a killed starter left behind may have won.
                        Err(EmbeddedError::StartFailed { .. })
                            if begun.elapsed() < Duration::from_secs(10) => {}
                        Err(e) => return Err(e),
                    }
                }
            }
            if begun.elapsed() > START_WAIT {
                return Err(EmbeddedError::TimedOut {
                    doing: "starting the server",
                    after: START_WAIT,
                    log: self.log(),
                });
            }
        }
    }

    /// `run/` below our folder, or a private folder of a short name where the socket's path would be
    /// too long for the kernel.
    fn socket_dir(&self) -> Result<PathBuf, EmbeddedError> {
        let run = self.folder.join("run");
        if run.as_os_str().len() + 1 + SOCKET_NAME.len() <= SOCKET_PATH_MAX {
            return Ok(run);
        }
        // Device and inode name our folder: the same for every process, no hash needed.
        let meta =
            fs::metadata(&self.folder).map_err(EmbeddedError::file("cannot read", &self.folder))?;
        Ok(PathBuf::from(format!(
            "/tmp/tenure-{}-{:x}-{:x}",
            self.account.uid(),
            meta.dev(),
            meta.ino()
        )))
    }
}

fn default_folder(account: &Account) -> Result<PathBuf, EmbeddedError> {
    let var = |name| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let home = var("XDG_DATA_HOME").or_else(|| var("HOME").map(|home| home.join(".local/share")));
    let system = PathBuf::from("/var/lib/tenure");
    match home.map(|home| home.join("tenure")) {
        Some(folder) if account.can_reach(&folder) => Ok(folder),
        Some(_) => Ok(system),
        None if rustix::process::geteuid().is_root() => Ok(system),
        None => Err(EmbeddedError::NoHome),
    }
}

/// Binaries of the major version that made `data`.
fn fitting(data: &Path, made_by: &str) -> Result<Binaries, EmbeddedError> {
    let all = Binaries::all();
    let found = all.iter().map(|b| b.version().to_string()).collect::<Vec<_>>().join(", ");
    all.into_iter().find(|b| b.version().major.to_string() == made_by).ok_or_else(|| {
        EmbeddedError::DataVersion {
            data: data.into(),
            made_by: made_by.into(),
            found: if found.is_empty() { "no version".into() } else { found },
        }
    })
}

/// The whole configuration: what is not here is PostgreSQL's default.
fn settings(sockets: &Path) -> String {
    let sockets = sockets.display().to_string().replace('\'', "''");
    format!(
        "# Written at every start. Put your own settings into tenure.conf beside this file.\n\
         listen_addresses = ''\n\
         port = 5432\n\
         unix_socket_directories = '{sockets}'\n\
         unix_socket_permissions = 0700\n\
         # Two sessions per member and a few for the rest.\n\
         max_connections = 300\n\
         shared_buffers = 32MB\n\
         dynamic_shared_memory_type = posix\n\
         timezone = 'UTC'\n\
         log_timezone = 'UTC'\n\
         log_checkpoints = off\n\
         log_line_prefix = '%m [%p] '\n\
         include_if_exists = 'tenure.conf'\n"
    )
}
