//! `tenure tx`: nonce-ordered transactions of a leader and its followers.
//!
//! `node` runs one node of the group and answers on a local port; `send`, `wait` and `drop` ask a node;
//! `list`, `show`, `watch` and `gaps` read the table and need no node at all.

mod amount;
mod ask;
mod callers;
mod follower;
mod node;
mod report;
mod wire;

use clap::{Args, Subcommand};
use tenure::RoleName;
use tenure::connect::{ConnectError, Connector};
use tenure_tx::account::AccountId;
use tenure_tx::chain::substrate::account_of;
use tenure_tx::store::{Store, StoreError, StoreOptions};
use tokio_postgres::error::SqlState;

use crate::args::Database;
use crate::exit::{Exit, Failure, chain};
use crate::setting;

#[derive(Debug, Subcommand)]
pub(crate) enum TxCommand {
    /// Run one node of the group
    Node(Box<node::NodeArgs>),
    /// Send a transaction through whichever node leads
    Send(ask::SendArgs),
    /// Wait for the end of a request, through any node
    Wait(ask::WaitArgs),
    /// List the account's transactions
    List(report::ListArgs),
    /// Show one transaction
    Show(report::ShowArgs),
    /// Follow every change, on any node's behalf
    Watch(report::WatchArgs),
    /// List nonces that nothing uses although higher ones are in use
    Gaps(report::GapsArgs),
    /// Put a no-op in place of an open transaction, or into a gap
    Drop(ask::DropArgs),
}

pub(crate) async fn run(command: TxCommand) -> Result<Exit, Failure> {
    match command {
        TxCommand::Node(args) => node::run(*args).await,
        TxCommand::Send(args) => ask::send(args).await,
        TxCommand::Wait(args) => ask::wait(args).await,
        TxCommand::List(args) => report::list(args).await,
        TxCommand::Show(args) => report::show(args).await,
        TxCommand::Watch(args) => report::watch(args).await,
        TxCommand::Gaps(args) => report::gaps(args).await,
        TxCommand::Drop(args) => ask::drop_nonce(args).await,
    }
}

/// The role of an account's group, unless another is named.
fn role_of(account: &AccountId) -> String {
    format!("tx:{account}")
}

fn role(name: &str) -> Result<RoleName, Failure> {
    name.parse().map_err(|error| Failure::usage(format!("--role: {error}; choose another name")))
}

fn store(database: &Database, options: StoreOptions) -> Result<Store, Failure> {
    let config = setting::configured(database)?;
    let dsn = config.dsn().ok_or_else(no_database)?;
    let connector = Connector::new(dsn, config.tls().clone())
        .map_err(|error| Failure::usage(format!("TLS: {}", chain(&error))))?;
    Ok(Store::new(connector, options))
}

/// The private server is no place for a group's table: it would be another one on each machine.
fn no_database() -> Failure {
    Failure::usage("no database is named; give --dsn or --config, or set TENURE_DSN")
}

/// Which account's transactions, for commands that only read.
#[derive(Debug, Clone, Args)]
pub(crate) struct ReadArgs {
    #[command(flatten)]
    pub(crate) database: Database,
    /// The signing account, in hex or SS58; `tx node` names it when it starts
    #[arg(long, env = "TENURE_TX_ACCOUNT", value_parser = account_of)]
    pub(crate) account: AccountId,
    /// As JSON, one object per line
    #[arg(long)]
    pub(crate) json: bool,
}

impl ReadArgs {
    fn store(&self) -> Result<Store, Failure> {
        // No reader writes, so any role will do.
        let role = role(&role_of(&self.account))?;
        store(&self.database, StoreOptions::new(role, self.account.clone(), "reader"))
    }
}

/// Why the table was not read. The error's own words are about a write, whose outcome may be unknown.
fn unread(error: &StoreError) -> String {
    match error {
        StoreError::Lost(why) => format!(
            "the database did not answer ({why}): it is slow, stops, or a session has locked the table; \
             nothing was changed, ask again"
        ),
        other => other.to_string(),
    }
}

/// For commands that only read.
impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        match &error {
            StoreError::Unreachable(why) => why.into(),
            StoreError::Bound(_) => Failure::usage(error.to_string()),
            StoreError::MayBeLost(_) => Failure::new(Exit::Refused, error.to_string()),
            StoreError::Lost(_) => Failure::new(Exit::Unreachable, unread(&error)),
            // A database on which no node ever ran is the commonest mistake.
            StoreError::Database(refused)
                if refused.code().is_some_and(|code| {
                    *code == SqlState::UNDEFINED_TABLE
                        || *code == SqlState::UNDEFINED_FUNCTION
                        || *code == SqlState::INVALID_SCHEMA_NAME
                }) =>
            {
                Failure::new(
                    Exit::NotFound,
                    "this database has no table of transactions; start a node on it first, or \
                     check the connection string",
                )
            }
            // `StoreError` may grow; whatever it says, nothing was read.
            _ => Failure::failed(error.to_string()),
        }
    }
}

/// It says itself what to do, once.
impl From<&ConnectError> for Failure {
    fn from(error: &ConnectError) -> Self {
        Failure::new(Exit::Unreachable, error.to_string())
    }
}
