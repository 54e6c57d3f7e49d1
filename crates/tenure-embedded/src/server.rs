//! One cluster in one data folder, and the server that may run on it.

use std::{
    fs,
    io::Read,
    os::unix::{fs::OpenOptionsExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

use crate::{Account, Binaries, EmbeddedError};

const POLL: Duration = Duration::from_millis(10);

/// How `initdb` makes a cluster. Always UTF-8 with the C locale: the same on every machine.
#[derive(Debug, Clone)]
pub struct InitOptions {
    /// The database superuser's name.
    pub superuser: String,
    /// Whether the new files are flushed to disk before the call returns.
    pub sync: bool,
}

/// How a server is asked to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stop {
    /// Waits for the clients to leave.
    Smart,
    /// Ends the clients' sessions, writes a checkpoint.
    Fast,
    /// Ends at once, without a checkpoint: the next start recovers.
    Immediate,
}

/// How far a server is, in its own words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Phase {
    /// Recovering, or not yet listening.
    Starting,
    /// Accepting sessions.
    Ready,
    /// Accepting read-only sessions: a hot standby.
    Standby,
    /// On its way down.
    Stopping,
}

/// A server that lives, as its `postmaster.pid` describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Instance {
    /// The postmaster's process id.
    pub pid: i32,
    /// The port, also part of the socket's name.
    pub port: u16,
    /// The folder of the unix socket, if there is one.
    pub socket_dir: Option<PathBuf>,
    /// How far it is.
    pub phase: Phase,
}

impl Instance {
    /// Whether it accepts sessions.
    #[must_use]
    pub fn accepts(&self) -> bool {
        match self.phase {
            Phase::Ready | Phase::Standby => true,
            Phase::Starting | Phase::Stopping => false,
        }
    }
}

/// A data folder with the programs and the account that may serve it. Cheap to clone; dropping it
/// does nothing to the server.
#[derive(Debug, Clone)]
pub struct Server {
    binaries: Binaries,
    account: Account,
    data: PathBuf,
    log: PathBuf,
}

impl Server {
    /// Describes a server; touches nothing. `data` must be absolute.
    #[must_use]
    pub fn new(binaries: Binaries, account: Account, data: PathBuf, log: PathBuf) -> Self {
        Self { binaries, account, data, log }
    }

    /// The data folder.
    #[must_use]
    pub fn data(&self) -> &Path {
        &self.data
    }

    /// The file that the server's messages go to.
    #[must_use]
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// The programs it runs.
    #[must_use]
    pub fn binaries(&self) -> &Binaries {
        &self.binaries
    }

    /// The account it runs as.
    #[must_use]
    pub fn account(&self) -> &Account {
        &self.account
    }

    /// Makes the cluster with `initdb`. The folder must not exist or be empty.
    ///
    /// # Errors
    /// [`EmbeddedError::Program`] with `initdb`'s own words.
    pub fn initialise(&self, options: &InitOptions) -> Result<(), EmbeddedError> {
        let mut command = self.account.command(self.binaries.program("initdb"));
        command
            .arg("-D")
            .arg(&self.data)
            .args(["-U", &options.superuser])
            // Trust only until the caller has written its own pg_hba.conf: nothing listens yet.
            .args(["--encoding=UTF8", "--locale=C", "--auth=trust"]);
        if !options.sync {
            command.arg("--no-sync");
        }
        run(&mut command).map(drop)
    }

    /// Writes a file of the data folder, as the server's account, readable by it alone.
    ///
    /// # Errors
    /// [`EmbeddedError::File`].
    pub fn write(&self, name: &str, text: &str) -> Result<(), EmbeddedError> {
        let path = self.data.join(name);
        // A new file moved into place: a reader, or a server that reloads, never sees half of it.
        let new = self.data.join(format!("{name}.new"));
        let _ = fs::remove_file(&new);
        let mut file = fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&new)
            .map_err(EmbeddedError::file("cannot create", &new))?;
        std::io::Write::write_all(&mut file, text.as_bytes())
            .map_err(EmbeddedError::file("cannot write", &new))?;
        self.account.own(&new)?;
        fs::rename(&new, &path).map_err(EmbeddedError::file("cannot replace", path))
    }

    /// Starts the server in a session of its own and waits until it accepts sessions.
    ///
    /// # Errors
    /// [`EmbeddedError::StartFailed`] with the end of the log, [`EmbeddedError::TimedOut`].
    pub fn start(&self, within: Duration) -> Result<Instance, EmbeddedError> {
        self.remove_stale_pid()?;
        let mut command = self.account.command(self.binaries.program("pg_ctl"));
        // `pg_ctl` forks and calls setsid(), which detaches the server from this process.
        command.args(["start", "-s", "-w", "-t", &within.as_secs().max(1).to_string(), "-D"]);
        command.arg(&self.data).arg("-l").arg(&self.log);
        match (run(&mut command), self.instance()) {
            (Ok(_), Some(instance)) => Ok(instance),
            // Still on its way up, or another starter's server was there first.
            (Err(_), Some(instance)) if instance.accepts() => Ok(instance),
            (Err(_), Some(_)) => Err(self.timed_out("starting the server", within)),
            (Ok(_) | Err(_), None) => Err(self.start_failed()),
        }
    }

    /// Starts the server as a child of this process, in a process group of its own, without
    /// waiting. Follow with [`Server::wait_ready`]. Made for tests, which reap their servers.
    ///
    /// # Errors
    /// [`EmbeddedError::File`] if the log cannot be opened or the program cannot be run.
    pub fn spawn(&self) -> Result<Child, EmbeddedError> {
        self.remove_stale_pid()?;
        let log = fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(&self.log)
            .map_err(EmbeddedError::file("cannot open", &self.log))?;
        self.account.own(&self.log)?;
        let program = self.binaries.program("postgres");
        let err = log.try_clone().map_err(EmbeddedError::file("cannot open", &self.log))?;
        self.account
            .command(&program)
            .arg("-D")
            .arg(&self.data)
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(err)
            .spawn()
            .map_err(EmbeddedError::file("cannot run", program))
    }

    /// Waits until the spawned server accepts sessions.
    ///
    /// # Errors
    /// [`EmbeddedError::StartFailed`] as soon as the child has ended, [`EmbeddedError::TimedOut`].
    pub fn wait_ready(
        &self,
        child: &mut Child,
        within: Duration,
    ) -> Result<Instance, EmbeddedError> {
        let begun = Instant::now();
        loop {
            if !matches!(child.try_wait(), Ok(None)) {
                return Err(self.start_failed());
            }
            match self.instance() {
                Some(instance)
                    if instance.accepts() && instance.pid.unsigned_abs() == child.id() =>
                {
                    return Ok(instance);
                }
                Some(_) | None => {}
            }
            if begun.elapsed() > within {
                return Err(self.timed_out("starting the server", within));
            }
            thread::sleep(POLL / 2);
        }
    }

    /// The server that runs on this folder now, if one does.
    #[must_use]
    pub fn instance(&self) -> Option<Instance> {
        self.recorded().filter(|instance| self.is_ours(instance.pid))
    }

    /// Stops the server, if one runs, and waits until it is gone.
    ///
    /// # Errors
    /// [`EmbeddedError::TimedOut`]: the server still runs.
    pub fn stop(&self, how: Stop, within: Duration) -> Result<(), EmbeddedError> {
        let Some(instance) = self.instance() else { return Ok(()) };
        let signal = match how {
            Stop::Smart => Signal::TERM,
            Stop::Fast => Signal::INT,
            Stop::Immediate => Signal::QUIT,
        };
        if let Some(pid) = Pid::from_raw(instance.pid) {
            // It may have ended since: the wait below sees that.
            let _ = kill_process(pid, signal);
        }
        let begun = Instant::now();
        while self.is_ours(instance.pid) {
            if begun.elapsed() > within {
                return Err(self.timed_out("stopping the server", within));
            }
            thread::sleep(POLL);
        }
        Ok(())
    }

    /// The last lines of the log.
    #[must_use]
    pub fn log_tail(&self) -> String {
        let mut text = String::new();
        if let Ok(mut file) = fs::File::open(&self.log) {
            let _ = file.read_to_string(&mut text);
        }
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(6)..].join(" | ")
    }

    /// What `postmaster.pid` says, true or not.
    fn recorded(&self) -> Option<Instance> {
        let text = fs::read_to_string(self.data.join("postmaster.pid")).ok()?;
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        // pid, folder, start, port, socket folder, address, shared memory, phase: it is written in
        // that order while the server starts, so the later lines may be missing.
        let phase = match lines.get(7).copied() {
            Some("ready") => Phase::Ready,
            Some("standby") => Phase::Standby,
            Some("stopping") => Phase::Stopping,
            Some(_) | None => Phase::Starting,
        };
        Some(Instance {
            // A negative number is a single-user backend.
            pid: lines.first()?.parse().ok().filter(|pid: &i32| *pid > 0)?,
            port: lines.get(3).and_then(|s| s.parse().ok()).unwrap_or(0),
            socket_dir: lines.get(4).filter(|s| !s.is_empty()).map(PathBuf::from),
            phase,
        })
    }

    /// Whether the process lives and is a server on this folder, not a stranger that was given the
    /// number after a reboot.
    fn is_ours(&self, pid: i32) -> bool {
        let Some(id) = Pid::from_raw(pid) else { return false };
        if cfg!(target_os = "linux") {
            let proc = PathBuf::from(format!("/proc/{pid}"));
            match fs::read_link(proc.join("cwd")) {
                // A postmaster works in its data folder.
                Ok(cwd) => fs::canonicalize(&self.data).is_ok_and(|data| data == cwd),
                // Root in a container may not look; the command line is open to all.
                Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => {
                    fs::read_to_string(proc.join("cmdline")).is_ok_and(|line| {
                        line.split('\0').next().is_some_and(|p| p.contains("postgres"))
                    })
                }
                // Gone, or a zombie that its parent has not yet reaped.
                Err(_) => false,
            }
        } else {
            !matches!(rustix::process::test_kill_process(id), Err(rustix::io::Errno::SRCH))
        }
    }

    /// PostgreSQL itself removes a pid file whose process is dead, but not one whose number now
    /// belongs to another process of the same account.
    fn remove_stale_pid(&self) -> Result<(), EmbeddedError> {
        if let Some(recorded) = self.recorded()
            && !self.is_ours(recorded.pid)
        {
            let path = self.data.join("postmaster.pid");
            match fs::remove_file(&path) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                    return Err(EmbeddedError::file("cannot remove the stale", path)(e));
                }
                Ok(()) | Err(_) => {}
            }
        }
        Ok(())
    }

    fn start_failed(&self) -> EmbeddedError {
        EmbeddedError::StartFailed { log: self.log.clone(), tail: self.log_tail() }
    }

    fn timed_out(&self, doing: &'static str, after: Duration) -> EmbeddedError {
        EmbeddedError::TimedOut { doing, after, log: self.log.clone() }
    }
}

/// Runs a program to its end; its words become the error.
fn run(command: &mut Command) -> Result<String, EmbeddedError> {
    let program = PathBuf::from(command.get_program());
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(EmbeddedError::file("cannot run", &program))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let message = String::from_utf8_lossy(&output.stderr).trim().replace('\n', " | ");
    Err(EmbeddedError::Program { program, message })
}
