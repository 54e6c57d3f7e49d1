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
use tenure_core::{Lease, Tick};
use tokio::net::UnixStream;
use tokio::task::JoinHandle;

use crate::guardian;
use crate::kin;
use crate::wire::{Frame, Report, Word};

/// How long the orphans of a killed guardian are hunted before that is given up.
const HUNT: Duration = Duration::from_secs(5);

/// A child whose guardian will not let it outlive the lease.
pub struct Guarded {
    socket: UnixStream,
    guardian: Child,
    reserve: Duration,
    frame: Frame,
    /// Under way once the guardian is gone without one.
    hunt: Option<JoinHandle<bool>>,
}

/// What is heard of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum News {
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
    pub fn start(
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
        let (socket, frame) = (UnixStream::from_std(ours)?, Frame::default());
        Ok(Guarded { socket, guardian, reserve, frame, hunt: None })
    }

    /// A heartbeat succeeded.
    pub fn extend(&self, deadline: Tick) {
        self.say(Word::Deadline(deadline));
    }

    /// SIGTERM, this grace, SIGKILL; never beyond the lease.
    pub fn stop(&self, grace: Duration) {
        self.say(Word::Stop(grace));
    }

    /// Whether the guardian has had all the time it may need although nobody told of the end: it is
    /// frozen, or the child cannot be killed.
    pub fn is_overdue(&self, now: Tick, deadline: Tick) -> bool {
        now + self.reserve / 2 >= deadline
    }

    /// Ends a guardian that is not at its post. What it guarded falls to us and is killed by
    /// [`Guarded::next`].
    pub fn dismiss(&mut self) {
        // Once it is hunted its number may be somebody else's.
        if self.hunt.is_none() {
            let _ = self.guardian.kill();
        }
    }

    /// What happens next. Cancel-safe: a frame that came in part is kept, and so is a hunt that is
    /// under way; nothing is awaited between a whole frame and the return.
    pub async fn next(&mut self) -> News {
        loop {
            if let Some(hunt) = &mut self.hunt {
                return News::GuardianDied { swept: hunt.await.unwrap_or(false) };
            }
            if self.socket.readable().await.is_err() {
                self.hunt();
                continue;
            }
            match self.socket.try_read(self.frame.rest()) {
                Ok(0) => self.hunt(),
                Ok(read) => {
                    if let Some(report) = self.frame.filled(read).and_then(Report::read) {
                        return News::Report(report);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => self.hunt(),
            }
        }
    }

    /// Waits for the guardian's exit, which follows its last word; 100 looks are far more than that
    /// takes.
    pub async fn reap(mut self) {
        for _ in 0..100 {
            match self.guardian.try_wait() {
                Ok(None) => tokio::time::sleep(Duration::from_millis(5)).await,
                Ok(Some(_)) | Err(_) => return,
            }
        }
    }

    /// A word that does not get through only makes the child end sooner.
    fn say(&self, word: Word) {
        let _ = self.socket.try_write(&word.write());
    }

    /// Kills what a guardian that is gone has left to us, and reaps it too.
    fn hunt(&mut self) {
        self.hunt = Some(tokio::task::spawn_blocking(|| kin::end_all(HUNT)));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guardian::EndedBy;
    use std::io::Write;

    #[tokio::test]
    async fn the_last_word_is_heard_at_once_also_from_a_guardian_that_is_slow_to_exit() {
        let (ours, mut theirs) = Pair::pair().expect("a pair");
        ours.set_nonblocking(true).expect("set");
        let guardian = Command::new("sleep").arg("60").spawn().expect("sleep runs");
        let socket = UnixStream::from_std(ours).expect("a socket");
        let (reserve, frame) = (Duration::from_millis(1), Frame::default());
        let mut child = Guarded { socket, guardian, reserve, frame, hunt: None };
        let gone = Report::Gone { status: 0x700, why: EndedBy::Exited };
        theirs.write_all(&gone.write()).expect("said");
        drop(theirs);
        // Whoever waits beside other things gives up sooner, and must not lose it.
        let news = tokio::time::timeout(Duration::from_millis(50), child.next()).await;
        assert_eq!(news, Ok(News::Report(gone)));
        child.guardian.kill().expect("killed");
        child.guardian.wait().expect("reaped");
    }
}
