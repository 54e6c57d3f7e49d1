//! Ends a child and every process it started before a lease ends. For Linux.
//!
//! ```text
//!   program ──── socket: deadlines, stop ───► tenure-guardian ── fork ──► child ──► its children …
//!           ◄─── started, gone ─────────────  (subreaper, own session)
//! ```
//!
//! The guardian is a process of its own because the program that leads may be frozen or killed at
//! any instant. It is the parent of the child because then the kernel does the book-keeping: a
//! process that is orphaned below a subreaper becomes its child, whatever session or group it fled
//! to. So "none is left" is one fact, not a search: `wait` says that there is no child.
//!
//! A program embeds it in two steps. [`run_if_guardian`] comes first in `main`: the guardian is the
//! same program, started under another name. Then [`Guarded::start`] starts a child, and every
//! later deadline goes to [`Guarded::extend`]. `lock.deadline()` of the crate `tenure` gives them;
//! `tenure_agent::child` puts the two together.
//!
//! # What it guarantees
//!
//! - No descendant of the child lives on when the deadline has come: SIGTERM to all of them at
//!   `deadline − grace`, SIGKILL from `deadline − reserve` on until none is left.
//! - The same, without grace, at once, when the program is gone (the socket says so, whatever killed
//!   the program).
//! - It makes no deadline of its own: it only receives later ones. No message ends the child.
//!
//! # What it does not
//!
//! - A pause of the whole machine or container stops the guardian too.
//! - A process under another user (set-uid), or in uninterruptible sleep, cannot be killed by it.
//! - What the child asked a daemon to do (`docker run`, `systemd-run`, `at`) is no descendant.
//! - If neither is at its post (both killed in the same instant, or the guardian killed while the
//!   program is frozen), only the child itself dies with the guardian. If both are frozen, no
//!   process ends.
//! - If a guardian is killed, the program ends every process below itself that is not below another
//!   guardian: it cannot tell an orphan of that child from another child of its own.
//!
//! | what happens | what is done |
//! |---|---|
//! | the program is killed | end of the socket: SIGKILL to all, at once |
//! | the program is frozen, or its database unreachable | no later deadline comes: SIGTERM, SIGKILL |
//! | the child exits, its children do not | SIGTERM to them, grace, SIGKILL |
//! | the guardian is frozen | the program kills it when it is overdue, and does as in the line after the next |
//! | the program is killed while the guardian is frozen | the kernel wakes the guardian up: SIGKILL to all, at once |
//! | the guardian is killed | the kernel kills the child; its orphans fall to the program, which kills them |
//! | SIGTERM to every process (a service manager) | blocked: the guardian is the last to leave |
//!
//! # What is authoritative
//!
//! The deadline is the gate's, on the clock that counts suspend ([`tenure_core::clock`]). The guardian
//! alone enforces it; what the program decides can only end a child earlier.
//!
//! # Example
//!
//! ```no_run
//! use std::process::ExitCode;
//! use tenure_core::{BootClock, Clock, Lease};
//! use tenure_guardian::{Guarded, News, Times};
//!
//! fn main() -> ExitCode {
//!     if let Some(code) = tenure_guardian::run_if_guardian() {
//!         return code;
//!     }
//!     let runtime = tokio::runtime::Runtime::new().expect("the machine has threads left");
//!     runtime.block_on(async {
//!         let lease = Lease::default();
//!         // In earnest this is the deadline of the token that the gate gave.
//!         let deadline = BootClock.now() + lease.lease();
//!         let command = ["sleep".into(), "60".into()];
//!         let Ok(mut child) = Guarded::start(&command, &[], Times::of(&lease), deadline) else {
//!             return ExitCode::FAILURE;
//!         };
//!         loop {
//!             match child.next().await {
//!                 News::Started { .. } => {}
//!                 News::Gone { status, .. } => return tenure_guardian::exit_code(status).into(),
//!                 News::NotStarted { .. } | News::GuardianDied { .. } => return ExitCode::FAILURE,
//!             }
//!         }
//!     })
//! }
//! ```

mod child;
mod descendants;
mod process;
mod watch;
mod wire;

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{ExitCode, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};

pub use child::{Guarded, News, Times};
pub use descendants::Strays;
pub use watch::EndedBy;

/// Whether this program, started under the guardian's name, is one.
static CAN_GUARD: AtomicBool = AtomicBool::new(false);

/// Runs the guardian if this process was started as one, and says with which code to exit.
///
/// Must come first in `main`, before any thread, runtime or log: the guardian is a single thread, and
/// it inherits nothing that the program has set up. A program that has not called it cannot start a
/// guardian: what it would start is itself, once more.
#[must_use]
pub fn run_if_guardian() -> Option<ExitCode> {
    CAN_GUARD.store(true, Ordering::Relaxed);
    let mut args = std::env::args_os();
    let called = args.next()?;
    let is_guardian = Path::new(&called).file_name() == Some(process::NAME.as_ref());
    is_guardian.then(|| process::main(args.collect::<Vec<OsString>>()))
}

/// The exit code that stands for how a process ended, as shells have it: its own, or 128 + signal.
#[must_use]
pub fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    u8::try_from(code).unwrap_or(1)
}
