//! The program's side of a guarded child: starts the guardian, sends it deadlines, learns of the end.

use std::ffi::OsString;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as Pair;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::Pid;
use tenure_core::{Lease, Tick};
use tokio::net::UnixStream;
use tokio::task::JoinHandle;

use crate::descendants;
use crate::process;
use crate::watch::EndedBy;
use crate::wire::{Announcement, Frame, Instruction};

/// How long the program tries to end the orphans of a killed guardian before it gives up.
const HUNT: Duration = Duration::from_secs(5);

/// A child whose guardian will not let it outlive its deadline.
///
/// Dropping it ends the child and all its descendants at once, as the death of the program would.
#[derive(Debug)]
pub struct Guarded {
    socket: UnixStream,
    guardian: Child,
    reserve: Duration,
    frame: Frame,
    /// Under way once the guardian is gone without a last announcement.
    hunt: Option<JoinHandle<bool>>,
}

/// How long the child's end may take, before the deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    /// From SIGTERM to the deadline. Too short, and the child cannot finish; too long, and it ends
    /// although a heartbeat is only late. At least the reserve is used.
    pub grace: Duration,
    /// From SIGKILL to the deadline: what the killing itself may take. Never zero; more on a machine
    /// that is heavily loaded.
    pub reserve: Duration,
}

impl Times {
    /// The lease's own grace, and as reserve a quarter of it, at least a fortieth of the lease.
    pub fn of(lease: &Lease) -> Self {
        let grace = lease.kill_grace();
        Times { grace, reserve: (grace / 4).max(lease.lease() / 40) }
    }
}

/// What [`Guarded::next`] tells of the child. A closed set: a program must know what to do about each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum News {
    /// The child runs.
    Started {
        /// Its process id.
        pid: i32,
    },
    /// The child could not be started. Nothing runs.
    NotStarted {
        /// What the system said, for [`io::Error::from_raw_os_error`].
        errno: i32,
    },
    /// Neither the child nor any of its descendants is alive.
    Gone {
        /// How the child itself ended.
        status: ExitStatus,
        /// What ended it.
        by: EndedBy,
    },
    /// The guardian was killed, and the program has killed what it guarded.
    GuardianDied {
        /// False: a process could not be killed and is left.
        all_ended: bool,
    },
}

impl From<Announcement> for News {
    fn from(announcement: Announcement) -> Self {
        match announcement {
            Announcement::Started { pid } => News::Started { pid },
            Announcement::NotStarted { errno } => News::NotStarted { errno },
            Announcement::Gone { status, by } => {
                News::Gone { status: ExitStatus::from_raw(status), by }
            }
        }
    }
}

impl Guarded {
    /// Starts the guardian, which starts the command, with these variables beside the program's own.
    /// From now on [`Guarded::extend`] must be called with every later deadline, or the child ends.
    ///
    /// The program becomes a subreaper: orphans of any of its descendants fall to it (see
    /// [`Strays`](crate::Strays)). Must be called in a tokio runtime.
    ///
    /// # Errors
    /// If no guardian can be started, among others because `main` does not call
    /// [`run_if_guardian`](crate::run_if_guardian); nothing runs then. A command that cannot be started is
    /// [`News::NotStarted`].
    pub fn start(
        command: &[OsString],
        env: &[(&str, String)],
        times: Times,
        deadline: Tick,
    ) -> io::Result<Self> {
        Self::start_into(command, env, times, deadline, None)
    }

    /// As [`Guarded::start`]; what the child writes to its standard output and standard error goes to
    /// `output`, if there is one. Its other end is at its end once the guardian is gone.
    ///
    /// # Errors
    /// See [`Guarded::start`].
    pub fn start_into(
        command: &[OsString],
        env: &[(&str, String)],
        times: Times,
        deadline: Tick,
        output: Option<OwnedFd>,
    ) -> io::Result<Self> {
        if !crate::CAN_GUARD.load(Ordering::Relaxed) {
            return Err(io::Error::other(
                "this program cannot be its own guardian; let `main` call \
                 tenure_guardian::run_if_guardian first",
            ));
        }
        // If the guardian is killed, its orphans fall to us and not to init.
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
        let (ours, theirs) = Pair::pair()?;
        let Times { grace, reserve } = times;
        let mut start = Command::new(own_program());
        start
            .arg0(process::NAME)
            .args([grace, reserve].map(|time| time.as_nanos().to_string()))
            .args(command)
            .envs(env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::from(OwnedFd::from(theirs)));
        if let Some(output) = output {
            start.stdout(output.try_clone()?).stderr(output);
        }
        let mut guardians = descendants::guardians();
        let guardian = start.spawn()?;
        guardians.push(Pid::from_child(&guardian));
        drop(guardians);
        // Its end of the socket must be open nowhere else, or its death would go unnoticed.
        drop(start);
        let socket = hello(&ours, deadline)
            .and_then(|()| ours.set_nonblocking(true))
            .and_then(|()| UnixStream::from_std(ours));
        match socket {
            Ok(socket) => {
                Ok(Guarded { socket, guardian, reserve, frame: Frame::default(), hunt: None })
            }
            Err(error) => {
                forget(&guardian);
                Err(error)
            }
        }
    }

    /// Tells the guardian a later deadline of the gate. An earlier one changes nothing. Does not wait.
    pub fn extend(&self, deadline: Tick) {
        self.send(Instruction::Deadline(deadline));
    }

    /// Ends the child: SIGTERM, this grace, SIGKILL; never beyond the deadline. Does not wait:
    /// [`Guarded::next`] tells of the end. A second call can only shorten the
    /// grace; zero kills at once.
    pub fn stop(&self, grace: Duration) {
        self.send(Instruction::Stop(grace));
    }

    /// Whether the guardian has had all the time it may need and has not told of the end: it is
    /// frozen, or the child cannot be killed.
    pub fn is_overdue(&self, now: Tick, deadline: Tick) -> bool {
        now + self.reserve / 2 >= deadline
    }

    /// Kills a guardian that is overdue. What it guarded falls to the program and is killed by
    /// [`Guarded::next`].
    pub fn dismiss(&mut self) {
        // Once it has been reaped its number may be another process's.
        if self.hunt.is_none() {
            let _ = self.guardian.kill();
        }
    }

    /// What happens next. Cancel-safe: a frame that came in part is kept, and so is a hunt that is
    /// under way; nothing is awaited between a whole frame and the return.
    ///
    /// [`News::Gone`], [`News::NotStarted`] and [`News::GuardianDied`] are the last news of a child.
    pub async fn next(&mut self) -> News {
        loop {
            if let Some(hunt) = &mut self.hunt {
                return News::GuardianDied { all_ended: hunt.await.unwrap_or(false) };
            }
            if self.socket.readable().await.is_err() {
                self.hunt();
                continue;
            }
            match self.socket.try_read(self.frame.rest()) {
                Ok(0) => self.hunt(),
                Ok(read) => {
                    if let Some(announcement) = self.frame.filled(read).and_then(Announcement::read)
                    {
                        return announcement.into();
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => self.hunt(),
            }
        }
    }

    /// Waits for the guardian's exit, which follows its last announcement, so that it leaves no zombie: half a
    /// second at most, far more than that takes.
    pub async fn reap(mut self) {
        for _ in 0..100 {
            match self.guardian.try_wait() {
                Ok(None) => tokio::time::sleep(Duration::from_millis(5)).await,
                Ok(Some(_)) | Err(_) => return,
            }
        }
    }

    /// An instruction that does not get through only makes the child end sooner.
    fn send(&self, instruction: Instruction) {
        let _ = self.socket.try_write(&instruction.write());
    }

    /// Kills what a guardian that is gone has left to the program, and reaps it too.
    fn hunt(&mut self) {
        forget(&self.guardian);
        self.hunt = Some(tokio::task::spawn_blocking(|| descendants::end_all(HUNT)));
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        forget(&self.guardian);
    }
}

/// It is not at its post any more, or need not be.
fn forget(guardian: &Child) {
    let gone = Pid::from_child(guardian);
    descendants::guardians().retain(|pid| *pid != gone);
}

/// This very program, also after an upgrade has replaced its file.
fn own_program() -> std::path::PathBuf {
    let linux = std::path::PathBuf::from("/proc/self/exe");
    if linux.exists() { linux } else { std::env::current_exe().unwrap_or(linux) }
}

/// The first deadline, and our standard input for the child: the guardian's own is the socket.
fn hello(socket: &Pair, deadline: Tick) -> io::Result<()> {
    let stdin = io::stdin();
    let fds = [stdin.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(io::Error::other("the descriptor does not fit its message"));
    }
    let bytes = Instruction::Deadline(deadline).write();
    sendmsg(socket, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use tenure_core::{BootClock, Clock};

    /// This program of tests has a `main` that never asks whether it is a guardian.
    #[tokio::test]
    async fn a_program_that_cannot_be_its_own_guardian_starts_nothing() {
        let deadline = BootClock.now() + Duration::from_secs(60);
        let started = Guarded::start(&["true".into()], &[], Times::of(&Lease::default()), deadline);
        let refused = started.expect_err("it would start this program once more");
        assert!(refused.to_string().contains("run_if_guardian"), "{refused}");
    }

    #[tokio::test]
    async fn the_last_report_arrives_at_once_also_from_a_guardian_that_is_slow_to_exit() {
        let (ours, mut theirs) = Pair::pair().expect("a pair");
        ours.set_nonblocking(true).expect("set");
        let guardian = Command::new("sleep").arg("60").spawn().expect("sleep runs");
        let socket = UnixStream::from_std(ours).expect("a socket");
        let (reserve, frame) = (Duration::from_millis(1), Frame::default());
        let mut child = Guarded { socket, guardian, reserve, frame, hunt: None };
        let gone = Announcement::Gone { status: 0x700, by: EndedBy::Exited };
        theirs.write_all(&gone.write()).expect("said");
        drop(theirs);
        // A task that waits beside other things gives up sooner, and must not lose it.
        let news = tokio::time::timeout(Duration::from_millis(50), child.next()).await;
        assert_eq!(news, Ok(News::from(gone)));
        child.guardian.kill().expect("killed");
        child.guardian.wait().expect("reaped");
    }
}
