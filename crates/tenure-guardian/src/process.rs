//! The guardian's own process: one thread, one poll, every decision taken by [`Watch`].

use std::ffi::OsString;
use std::io::{self, IoSliceMut, Stdin, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use nix::sys::signal::SigSet;
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, recv, recvmsg, send,
};
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tenure_core::{BootClock, Clock, Tick};

use crate::descendants;
use crate::watch::{EndedBy, Measure, Watch};
use crate::wire::{Announcement, Frame, Instruction};

/// The name by which the guardian is started, and seen in `ps`.
pub(crate) const NAME: &str = "tenure-guardian";

/// Runs the guardian; `args` are the grace and the reserve in nanoseconds, then the command.
pub(crate) fn main(args: Vec<OsString>) -> ExitCode {
    match guard(args) {
        Ok(()) => ExitCode::SUCCESS,
        // Read only after a start by hand: the program sees the socket end.
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "{NAME}: {error}; it is not started by hand");
            ExitCode::from(2)
        }
    }
}

fn guard(args: Vec<OsString>) -> io::Result<()> {
    let mut args = args.into_iter();
    let mut nanos = || -> io::Result<Duration> {
        let text = args.next().ok_or_else(|| io::Error::other("it lacks its timings"))?;
        let nanos = text
            .to_string_lossy()
            .parse()
            .map_err(|_| io::Error::other("a timing is no number"))?;
        Ok(Duration::from_nanos(nanos))
    };
    let (grace, reserve) = (nanos()?, nanos()?);
    let program = args.next().ok_or_else(|| io::Error::other("it lacks a command"))?;
    let socket = std::io::stdin();
    let (deadline, stdin) = hello(&socket)?;

    rustix::thread::set_name(c"tenure-guardian")?;
    // Its own session: what is sent to the terminal's or the starter's group does not reach it.
    rustix::process::setsid()?;
    rustix::process::set_child_subreaper(Some(getpid()))?;
    // Should it be frozen when the program is killed, the kernel wakes it up.
    rustix::process::set_parent_process_death_signal(Some(Signal::CONT))?;
    // All signals wait, so that a service manager's SIGTERM to every process leaves it at its post.
    let all = SigSet::all();
    all.thread_block()?;
    let signals = SignalFd::with_flags(&all, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
    let timer = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC)?;

    let mut watch = Watch::new(deadline, grace, reserve);
    if watch.timeout(BootClock.now()) != Measure::Nothing {
        return tell(&socket, Announcement::Gone { status: 0, by: EndedBy::LeaseEnded });
    }
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::from(stdin)).process_group(0);
    prepare_child(&mut command);
    let child = match command.spawn() {
        Ok(child) => Pid::from_child(&child),
        Err(error) => {
            let errno = error.raw_os_error().unwrap_or(0);
            return tell(&socket, Announcement::NotStarted { errno });
        }
    };
    drop(command);
    tell(&socket, Announcement::Started { pid: child.as_raw_pid() })?;

    let mut frame = Frame::default();
    let mut status = None;
    let mut connected = true;
    let mut looks = 0_u32;
    loop {
        // Processes that ended are counted before anything is decided.
        let mut measure = watch.timeout(BootClock.now());
        while let Some((pid, ended)) = reap()? {
            if pid == child {
                status = Some(ended);
                measure = measure.max(watch.child_exited(BootClock.now()));
            }
        }
        carry_out(measure);
        if is_childless() {
            let status = status.unwrap_or_default();
            return tell(&socket, Announcement::Gone { status, by: watch.ended_by() });
        }
        let killing = watch.is_killing();
        if killing {
            carry_out(Measure::Kill);
            looks = looks.saturating_add(1);
        } else {
            arm(&timer, watch.next())?;
        }
        let wait = timespec(descendants::pause_before(looks))?;
        let mut fds =
            vec![PollFd::new(&timer, PollFlags::IN), PollFd::new(&signals, PollFlags::IN)];
        if connected {
            fds.push(PollFd::new(&socket, PollFlags::IN));
        }
        match poll(&mut fds, killing.then_some(&wait)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        while let Ok(Some(_)) = signals.read_signal() {}
        while connected {
            match recv(&socket, frame.rest(), RecvFlags::DONTWAIT) {
                Ok((_, 0)) => {
                    connected = false;
                    watch.orphaned();
                }
                Ok((_, read)) => match frame.filled(read).and_then(Instruction::read) {
                    Some(Instruction::Deadline(deadline)) => watch.extend(deadline),
                    Some(Instruction::Stop(grace)) => carry_out(watch.stop(grace, BootClock.now())),
                    None => {}
                },
                Err(Errno::AGAIN | Errno::INTR) => break,
                Err(_) => {
                    connected = false;
                    watch.orphaned();
                }
            }
        }
    }
}

/// The first deadline, and what is to be the child's standard input: the guardian's own is the
/// socket.
fn hello(socket: &Stdin) -> io::Result<(Tick, OwnedFd)> {
    let mut frame = Frame::default();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(frame.rest())];
    let got = recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let stdin = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    match (frame.filled(got.bytes).and_then(Instruction::read), stdin) {
        (Some(Instruction::Deadline(deadline)), Some(stdin)) => Ok((deadline, stdin)),
        _ => Err(io::Error::other("it was not told its deadline")),
    }
}

/// Gives the child back what the guardian took from itself, its signals; and spans the last net: if
/// the guardian itself is killed, the kernel kills the child.
#[allow(unsafe_code, reason = "the standard library sets neither a mask nor a parent-death signal")]
fn prepare_child(command: &mut Command) {
    // SAFETY: between fork and exec only async-signal-safe calls are allowed; these are bare system
    // calls that touch no memory of ours.
    unsafe {
        command.pre_exec(|| {
            SigSet::empty().thread_set_mask()?;
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
            Ok(())
        });
    }
}

fn tell(socket: &Stdin, announcement: Announcement) -> io::Result<()> {
    // A starter that is gone does not need to know.
    match send(socket.as_fd(), &announcement.write(), SendFlags::NOSIGNAL) {
        Ok(_) | Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn carry_out(measure: Measure) {
    match measure {
        Measure::Nothing => {}
        Measure::Terminate => {
            for pid in descendants::descendants(&[]) {
                let _ = kill_process(pid, Signal::TERM);
                // One that is stopped would not hear it.
                let _ = kill_process(pid, Signal::CONT);
            }
        }
        Measure::Kill => descendants::kill_all(&[]),
    }
}

/// One descendant that ended, and how.
fn reap() -> io::Result<Option<(Pid, i32)>> {
    match rustix::process::wait(WaitOptions::NOHANG) {
        Ok(Some((pid, status))) => Ok(Some((pid, status.as_raw()))),
        Ok(None) | Err(Errno::CHILD | Errno::INTR) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Orphans below a subreaper become its children: without a child there is no descendant.
fn is_childless() -> bool {
    use rustix::process::{WaitId, WaitIdOptions, waitid};
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    matches!(waitid(WaitId::All, look), Err(Errno::CHILD))
}

fn arm(timer: &OwnedFd, at: Tick) -> io::Result<()> {
    let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
    // A zero would disarm it.
    let at = Duration::from_nanos(at.as_nanos().max(1));
    let spec = Itimerspec { it_interval: zero, it_value: timespec(at)? };
    timerfd_settime(timer, TimerfdTimerFlags::ABSTIME, &spec)?;
    Ok(())
}

fn timespec(time: Duration) -> io::Result<Timespec> {
    Timespec::try_from(time).map_err(io::Error::other)
}
