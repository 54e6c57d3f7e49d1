//! A private PostgreSQL for one machine: find binaries, initialise, start, attach, stop.
//!
//! This is the only crate of the workspace that knows how a server is started. It links nothing of
//! PostgreSQL and downloads nothing: it runs the programs that are installed.
//!
//! ```text
//!   tenure process 1 ─┐                         ┌────────────────────────────┐
//!   tenure process 2 ─┼─ flock ─ start/attach ─►│ postgres, its own session, │
//!   tenure process n ─┘                         │ one unix socket, peer auth │
//!                                               └────────────────────────────┘
//! ```
//!
//! # What it guarantees
//!
//! - **One server per folder.** First starts are serialised by a file lock; below it stands
//!   PostgreSQL's own interlock (`postmaster.pid` and the shared memory segment).
//! - **Detached.** The server is in a session of its own, started by `pg_ctl`: no signal, exit
//!   or `kill -9` of the process that started it reaches it.
//! - **Private.** It listens on no TCP port. Its socket lies in a folder of mode 0700 and it asks the
//!   kernel for the caller's account (`peer`): only the account that initialised it is let in.
//! - **Bounded.** Every wait has a deadline; an error says what to do.
//!
//! # What it does not
//!
//! It is one server on one machine: it makes one leader per *machine*. It does not upgrade data
//! between major versions, and it does not stop the server when the last process leaves.
//!
//! # What is authoritative
//!
//! `postmaster.pid` in the data folder, believed only if the process it names lives and works in that
//! folder: after a reboot the number may belong to a stranger.
//!
//! # Example
//!
//! ```no_run
//! use tenure_embedded::Embedded;
//!
//! let server = Embedded::start_or_attach(None)?; // blocks: not on an async runtime's thread
//! println!("{}", server.dsn()?);
//! # Ok::<(), tenure_embedded::EmbeddedError>(())
//! ```
//!
//! # Failures
//!
//! | what happened | what the next call does |
//! |---|---|
//! | the starter was killed during `initdb` | removes the half-made folder, starts over |
//! | the starter was killed during the start | finds the server running, attaches |
//! | the server crashed | starts it; PostgreSQL recovers from its log |
//! | the machine was reset | ignores the stale `postmaster.pid`, starts |
//! | binaries of another major version | looks for the matching ones, else says which are missing |
//! | started as root | the server runs as `postgres`, else `nobody`, in `/var/lib/tenure` |

mod account;
mod binaries;
mod embedded;
mod error;
mod server;

pub use account::Account;
pub use binaries::{Binaries, Version};
pub use embedded::Embedded;
pub use error::EmbeddedError;
pub use server::{InitOptions, Instance, Phase, Server, Stop};
