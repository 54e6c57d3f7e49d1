//! The `tenure` program: run a program only while it leads.
//!
//! A thin face on the library. Each command has a file; arguments as typed ([`args`]) become a
//! setting as meant ([`setting`]); everything ends in an exit code of one table ([`exit`]).
//!
//! # What it guarantees
//!
//! - A child runs only while this process leads, and all its descendants are gone before the lease
//!   ends: see [`tenure_guardian`], which is a process of its own.
//! - Events and exit codes are contract: see [`events`] and [`exit`].
//! - It prints no password, and no debug dump.
//!
//! # What it does not guarantee
//!
//! What no process of this machine can see: a pause of the whole machine or container. What is under
//! another user, or was handed to a daemon. The failure table is in [`tenure_guardian`].
//!
//! # Which side is authoritative
//!
//! The database about which member leads, the library's gate about whether this process does, the guardian
//! about when a child must end. Nothing here decides any of that.

mod acquire;
mod agent;
mod alerts;
mod args;
mod candidacy;
mod check;
mod demo;
mod embedded;
mod events;
mod exit;
#[cfg(feature = "gossip")]
mod gossip;
mod happened;
mod health;
mod hooks;
mod listener;
mod log;
mod manual;
mod order;
mod output;
mod prune;
mod retirement;
mod run;
mod schedule;
mod serve;
mod setting;
mod signals;
mod status;
mod supervisor;
mod table;
#[cfg(feature = "tx")]
mod tx;

use std::process::ExitCode;

use clap::Parser;

use crate::args::{Cli, Command};
use crate::exit::{Exit, Failure};
use crate::output::err;

fn main() -> ExitCode {
    // Before anything else: the guardian stays small.
    if let Some(code) = tenure_guardian::run_if_guardian() {
        return code;
    }
    let cli = Cli::parse();
    let ended = log::start(cli.command.log(), cli.command.tells_losses()).and_then(|log| {
        let ended = dispatch(cli.command);
        // Its last lines come before ours.
        drop(log);
        ended
    });
    ended.map(ExitCode::from).unwrap_or_else(|failure| {
        err!("{failure}");
        failure.exit.into()
    })
}

fn dispatch(command: Command) -> Result<Exit, Failure> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let exit = runtime.block_on(async {
        match command {
            Command::Run(args) => run::run(args).await,
            Command::Acquire(args) => acquire::acquire(args).await,
            Command::Agent(args) => agent::agent(args).await,
            Command::Schedule(command) => schedule::run(command).await,
            Command::Alerts(command) => alerts::run(command).await,
            Command::Events(args) => happened::events(args).await,
            Command::Serve(args) => serve::serve(args).await,
            Command::Prune(args) => prune::prune(args).await,
            Command::Status(args) => status::status(args).await,
            Command::StepDown(args) => order::step_down(args).await,
            Command::History(args) => status::history(args).await,
            Command::Audit(args) => check::audit(args).await,
            Command::Check(args) => check::check(args).await,
            Command::Pause(args) => order::pause(args).await,
            Command::Resume(args) => order::resume(args).await,
            Command::Release(args) => order::release(args).await,
            Command::LowerLease(args) => order::lower_lease(args).await,
            Command::Alter(args) => retirement::alter(args).await,
            Command::Forget(args) => retirement::forget(args).await,
            Command::Doctor(args) => check::doctor(args).await,
            Command::Migrate(args) => check::migrate(args).await,
            Command::Key(args) => manual::key(&args),
            Command::Embedded(args) => embedded::embedded(args.action),
            Command::Demo(args) => demo::demo(args).await,
            Command::Completions(args) => manual::completions(&args),
            Command::Man(args) => manual::man(&args),
            #[cfg(feature = "gossip")]
            Command::Gossip(command) => gossip::run(command).await,
            #[cfg(feature = "tx")]
            Command::Tx(command) => tx::run(command).await,
        }
    });
    // A task that still waits for a dead database must not hold up the exit.
    runtime.shutdown_background();
    exit
}
