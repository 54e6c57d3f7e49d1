//! The commands of `tenure tx`.
//!
//! `node` runs one node of the group and answers on a local port; `send` and `drop` ask a node;
//! `list`, `show`, `watch` and `gaps` read the table and need no node at all.
//!
//! Exit codes: 0 done, 1 failed, 2 bad usage (by clap), 3 no node leads, 4 not found.

mod bench;
mod node;
mod report;
mod wire;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use tenure::connect::Connector;
use tenure::dsn::{Dsn, ProcessEnv};
use tenure::tls::TlsOptions;

use crate::account::AccountId;
use crate::store::{Store, StoreOptions};

pub use bench::BenchArgs;
pub use node::NodeArgs;
pub use report::{GapsArgs, ListArgs, ShowArgs, WatchArgs};
pub use wire::{DropArgs, SendArgs};

/// Nonce-ordered transactions of a leader/follower group.
#[derive(Debug, Subcommand)]
pub enum TxCommand {
    /// Run one node of the group (Ethereum JSON-RPC).
    Node(Box<NodeArgs>),
    /// Send a transaction through whichever node leads.
    Send(SendArgs),
    /// List the account's transactions.
    List(ListArgs),
    /// Show one transaction.
    Show(ShowArgs),
    /// Follow every change, on any node's behalf.
    Watch(WatchArgs),
    /// List nonces that nothing uses although higher ones are in use.
    Gaps(GapsArgs),
    /// Put a no-op in place of an open transaction, or into a gap.
    Drop(DropArgs),
}

/// Runs a command.
///
/// # Errors
/// Whatever went wrong, with its remedy; the program prints it and exits with 1.
pub async fn run(command: TxCommand) -> anyhow::Result<ExitCode> {
    match command {
        TxCommand::Node(args) => node::run(*args).await,
        TxCommand::Send(args) => wire::send(args).await,
        TxCommand::List(args) => report::list(args).await,
        TxCommand::Show(args) => report::show(args).await,
        TxCommand::Watch(args) => report::watch(args).await,
        TxCommand::Gaps(args) => report::gaps(args).await,
        TxCommand::Drop(args) => wire::drop_nonce(args).await,
    }
}

/// Runs `tenure bench tx`.
///
/// # Errors
/// If the database refuses.
pub async fn run_bench(args: BenchArgs) -> anyhow::Result<ExitCode> {
    bench::run(args).await
}

/// Which database.
#[derive(Debug, Clone, Args)]
pub struct DatabaseArgs {
    /// The group's database, as a PostgreSQL connection string.
    #[arg(long, env = "SH_PENDING_DB_URL", hide_env_values = true)]
    pub dsn: String,
    /// The role whose leader may write; by default `tx:<account>`.
    #[arg(long)]
    pub role: Option<String>,
}

impl DatabaseArgs {
    pub(crate) fn connector(&self) -> anyhow::Result<Connector> {
        let dsn = Dsn::parse(&self.dsn).context("the connection string")?;
        let tls = TlsOptions::from_env(&ProcessEnv).context("the TLS settings")?;
        Connector::new(&dsn, tls).context("the TLS settings")
    }

    pub(crate) fn role_of(&self, account: &AccountId) -> String {
        self.role.clone().unwrap_or_else(|| format!("tx:{account}"))
    }

    pub(crate) fn store(&self, account: AccountId, creator: &str) -> anyhow::Result<Store> {
        let options = StoreOptions {
            role: self.role_of(&account),
            account,
            creator: creator.to_owned(),
            deadline: Duration::from_secs(5),
        };
        Ok(Store::new(self.connector()?, options))
    }
}

/// Which account's transactions, for commands that only read.
#[derive(Debug, Clone, Args)]
pub struct ReadArgs {
    /// The database.
    #[command(flatten)]
    pub database: DatabaseArgs,
    /// The signing account, in hex.
    #[arg(long, env = "TENURE_TX_ACCOUNT")]
    pub account: AccountId,
    /// Print JSON, one object per line.
    #[arg(long)]
    pub json: bool,
}

impl ReadArgs {
    pub(crate) fn store(&self) -> anyhow::Result<Store> {
        self.database.store(self.account.clone(), "reader")
    }
}

/// A line on standard output. A closed pipe ends the program as it ends any other.
pub(crate) fn say(line: impl std::fmt::Display) -> anyhow::Result<()> {
    use std::io::Write as _;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()?;
    Ok(())
}
