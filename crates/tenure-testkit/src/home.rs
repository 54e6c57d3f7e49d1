//! The folder of this test process, and the watchdog that outlives it.
//!
//! Everything the kit creates lies below one folder per process. A `Drop` removes it piece by
//! piece; a static is never dropped and a killed process drops nothing, so a tiny shell waits on a
//! pipe that only this process holds open: at its end, however that came, the shell ends the
//! servers and process groups that are left and removes the folder. A pipe, not
//! `PR_SET_PDEATHSIG`: that fires when the *thread* which started the child ends, and every test has
//! a thread of its own.

use std::{
    fs,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{ChildStdin, Command, Stdio},
    sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering},
    },
};

use tenure_embedded::Account;

use crate::KitError;

/// Servers get the chance to remove their shared memory (immediate shutdown) before they are killed.
const WATCHDOG: &str = r#"
cat >/dev/null
cd "$1" || exit 0
for group in groups/*; do
  [ -e "$group" ] && kill -s KILL -- "-${group#groups/}" 2>/dev/null
done
pids=
for file in */data/postmaster.pid; do
  [ -e "$file" ] && read -r pid <"$file" || continue
  pids="$pids $pid"
  kids=$(cat "/proc/$pid/task/$pid/children" 2>/dev/null)
  kill -QUIT "$pid" 2>/dev/null
  kill -CONT "$pid" $kids 2>/dev/null
done
tries=0
while [ $tries -lt 50 ] && ls */data/postmaster.pid >/dev/null 2>&1; do
  sleep 0.1
  tries=$((tries + 1))
done
for pid in $pids; do
  case $(tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null) in
    *"$1"*) kill -KILL $(cat "/proc/$pid/task/$pid/children" 2>/dev/null) "$pid" 2>/dev/null ;;
  esac
done
for file in */data/postmaster.pid; do
  [ -e "$file" ] && set -- "$1" $(sed -n 7p "$file") && ipcrm -m "$3" 2>/dev/null
done
cd / && rm -rf "$1"
"#;

/// The folder of this process.
pub(crate) struct Home {
    path: PathBuf,
    root: PathBuf,
    account: Account,
    next: AtomicU32,
    /// Open until this process ends. Close-on-exec, so no child keeps it open.
    _watchdog: ChildStdin,
}

impl Home {
    /// This process's folder, made at the first call.
    pub(crate) fn get() -> Result<&'static Self, KitError> {
        static HOME: OnceLock<Result<Home, String>> = OnceLock::new();
        HOME.get_or_init(|| Self::create().map_err(|e| e.to_string()))
            .as_ref()
            .map_err(|message| KitError::Setup(message.clone()))
    }

    /// The folder that all test processes of this user share: templates and port reservations.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// The account that servers run as.
    pub(crate) fn account(&self) -> &Account {
        &self.account
    }

    /// A new folder that belongs to the servers' account.
    pub(crate) fn folder(&self, kind: &str) -> Result<PathBuf, KitError> {
        let n = self.next.fetch_add(1, Ordering::Relaxed);
        let path = self.path.join(format!("{kind}{n}"));
        fs::create_dir(&path)?;
        self.account.own(&path)?;
        Ok(path)
    }

    /// Has the watchdog kill this process group, until [`Home::forget_group`].
    pub(crate) fn watch_group(&self, group: u32) -> Result<(), KitError> {
        Ok(fs::write(self.path.join("groups").join(group.to_string()), "")?)
    }

    /// The group has ended, and its number may be given to others.
    pub(crate) fn forget_group(&self, group: u32) {
        let _ = fs::remove_file(self.path.join("groups").join(group.to_string()));
    }

    fn create() -> Result<Self, KitError> {
        let account = Account::for_server()?;
        let temp = places()
            .into_iter()
            .find(|path| path.is_dir() && account.can_reach(path))
            .ok_or_else(|| KitError::Setup("no temporary folder that a server can reach".into()))?;
        let user = rustix::process::geteuid().as_raw();
        let root = fs::canonicalize(temp)?.join(format!("tenure-kit-{user}"));
        fs::create_dir_all(root.join("ports"))?;
        let started = std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(0, |d| d.subsec_nanos());
        let path = root.join(format!("{}-{started}", std::process::id()));
        fs::create_dir_all(path.join("groups"))?;
        let mut watchdog = Command::new("/bin/sh")
            .args(["-c", WATCHDOG, "watchdog"])
            .arg(&path)
            // A group of its own: a signal to the test's group must not take it along.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let stdin = watchdog
            .stdin
            .take()
            .ok_or_else(|| KitError::Setup("the watchdog has no standard input".into()))?;
        Ok(Self { path, root, account, next: AtomicU32::new(0), _watchdog: stdin })
    }
}

/// Where clusters may lie: in memory if there is room (a copy takes a tenth of the time), unless
/// `TMPDIR` says otherwise.
fn places() -> Vec<PathBuf> {
    const ROOM: u64 = 2 << 30;
    let memory = PathBuf::from("/dev/shm");
    let room = rustix::fs::statvfs(&memory).map_or(0, |fs| fs.f_bavail.saturating_mul(fs.f_frsize));
    let mut places: Vec<PathBuf> = std::env::var_os("TMPDIR").map(Into::into).into_iter().collect();
    if room >= ROOM {
        places.push(memory);
    }
    places.extend([std::env::temp_dir(), "/tmp".into()]);
    places
}
