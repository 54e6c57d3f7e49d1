//! `tenure`'s side of a guarded child: starts the guardian, feeds it deadlines, hears of the end.

use std::ffi::OsString;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as Pair;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use tenure::{Lease, Tick};
use tokio::net::UnixStream;

use crate::guardian::{
    self, kin,
    wire::{Frame, Report, Word},
};

/// How long the orphans of a killed guardian are hunted before that is given up.
const HUNT: Duration = Duration::from_secs(5);

/// A child whose guardian will not let it outlive the lease.
pub(crate) struct Guarded {
    socket: UnixStream,
    guardian: Child,
    frame: Frame,
}

/// What is heard of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum News {
    /// The guardian's own word.
    Report(Report),
    /// The guardian was killed, and what it guarded has been killed; false: somebody is left.
    GuardianDied { swept: bool },
}

impl Guarded {
    /// Starts the guardian, which starts the command. From now on [`Guarded::extend`] must be
    /// called with every later deadline, or the child ends.
    ///
    /// # Errors
    /// If no process can be started; nothing runs then.
    pub(crate) fn start(
        command: &[OsString],
        env: &[(&str, String)],
        lease: &Lease,
        deadline: Tick,
    ) -> io::Result<Self> {
        // If the guardian is killed, its orphans fall to us and not to init.
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
        let (ours, theirs) = Pair::pair()?;
        let (grace, reserve) = (lease.kill_grace(), reserve(lease));
        let mut start = Command::new(own_program());
        start
            .arg0(guardian::NAME)
            .args([grace, reserve].map(|time| time.as_nanos().to_string()))
            .args(command)
            .envs(env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::from(OwnedFd::from(theirs)));
        let guardian = start.spawn()?;
        // Its end of the socket must be open nowhere else, or its death would go unheard.
        drop(start);
        hello(&ours, deadline)?;
        ours.set_nonblocking(true)?;
        Ok(Guarded { socket: UnixStream::from_std(ours)?, guardian, frame: Frame::default() })
    }

    /// A heartbeat succeeded.
    pub(crate) fn extend(&self, deadline: Tick) {
        self.say(Word::Deadline(deadline));
    }

    /// SIGTERM, this grace, SIGKILL; never beyond the lease.
    pub(crate) fn stop(&self, grace: Duration) {
        self.say(Word::Stop(grace));
    }

    /// What happens next. Cancel-safe: a frame that came in part is kept.
    pub(crate) async fn next(&mut self) -> News {
        loop {
            if self.socket.readable().await.is_err() {
                return self.died().await;
            }
            match self.socket.try_read(self.frame.rest()) {
                Ok(0) => return self.died().await,
                Ok(read) => {
                    if let Some(report) = self.frame.filled(read).and_then(Report::read) {
                        if !matches!(report, Report::Started { .. }) {
                            self.reap().await;
                        }
                        return News::Report(report);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return self.died().await,
            }
        }
    }

    /// A word that does not get through only makes the child end sooner.
    fn say(&self, word: Word) {
        let _ = self.socket.try_write(&word.write());
    }

    async fn died(&mut self) -> News {
        self.reap().await;
        let swept = tokio::task::spawn_blocking(|| kin::end_all(HUNT)).await.unwrap_or(false);
        News::GuardianDied { swept }
    }

    /// It exits right after its last word; 100 looks are far more than that takes.
    async fn reap(&mut self) {
        for _ in 0..100 {
            match self.guardian.try_wait() {
                Ok(None) => tokio::time::sleep(Duration::from_millis(5)).await,
                Ok(Some(_)) | Err(_) => return,
            }
        }
    }
}

/// What the killing itself may take: a quarter of the grace, and never nothing.
fn reserve(lease: &Lease) -> Duration {
    (lease.kill_grace() / 4).max(lease.lease() / 40)
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
    let bytes = Word::Deadline(deadline).write();
    sendmsg(socket, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}
