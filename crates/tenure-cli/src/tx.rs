//! The commands of `tenure tx`.
//!
//! `node` runs one node of the group and answers on a local port; `send` and `drop` ask a node;
//! `list`, `show`, `watch` and `gaps` read the table and need no node at all.
//!
//! Exit codes: 0 done, 1 failed, 2 bad usage (by clap), 3 no node leads, 4 not found.

mod node;
mod report;
mod scrape;
mod wire;

use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use tenure::connect::Connector;
use tenure::connect::TlsOptions;
use tenure::connect::dsn::{Dsn, ProcessEnv};

use tenure_tx::account::AccountId;
use tenure_tx::chain::substrate::account_of;
use tenure_tx::store::{Store, StoreOptions};

pub(crate) use node::NodeArgs;
pub(crate) use report::{GapsArgs, ListArgs, ShowArgs, WatchArgs};
pub(crate) use wire::{DropArgs, SendArgs};

/// Nonce-ordered transactions of a leader/follower group.
#[derive(Debug, Subcommand)]
pub(crate) enum TxCommand {
    /// Run one node of the group.
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
pub(crate) async fn run(command: TxCommand) -> anyhow::Result<ExitCode> {
    speak();
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

/// Warnings must be heard: unless the program has set up its own log, they go to standard error.
fn speak() {
    if tracing::dispatcher::has_been_set() {
        return;
    }
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| "warn,tenure=info,tenure_tx=info".into());
    let colours = std::io::stderr().is_terminal();
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(colours);
    log.with_writer(std::io::stderr).init();
}

/// An argument that may hold a secret (a connection string, an address with a key in it): it is
/// never shown.
#[derive(Clone)]
pub(crate) struct Unshown(String);

impl Unshown {
    pub(crate) fn text(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Unshown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("…")
    }
}

impl std::str::FromStr for Unshown {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Unshown(text.to_owned()))
    }
}

/// Which database.
#[derive(Debug, Clone, Args)]
pub(crate) struct DatabaseArgs {
    /// The group's database, as a PostgreSQL connection string; without it and its variable,
    /// $TENURE_DSN counts.
    #[arg(long, env = "SH_PENDING_DB_URL", hide_env_values = true)]
    pub(crate) dsn: Option<Unshown>,
    /// The role whose leader may write; by default `tx:<account>`.
    #[arg(long)]
    pub(crate) role: Option<String>,
}

impl DatabaseArgs {
    /// The connection string.
    ///
    /// # Errors
    /// If there is none.
    pub(crate) fn text(&self) -> anyhow::Result<String> {
        let named = self.dsn.as_ref().map(|dsn| dsn.text().to_owned());
        named
            .or_else(|| std::env::var("TENURE_DSN").ok())
            .filter(|dsn| !dsn.is_empty())
            .context("no database is named; give --dsn, or set SH_PENDING_DB_URL or TENURE_DSN")
    }

    pub(crate) fn connector(&self) -> anyhow::Result<Connector> {
        let dsn = Dsn::parse(&self.text()?).context("the connection string")?;
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
pub(crate) struct ReadArgs {
    /// The database.
    #[command(flatten)]
    pub(crate) database: DatabaseArgs,
    /// The signing account, in hex or SS58; `tx node` names it when it starts.
    #[arg(long, env = "TENURE_TX_ACCOUNT", value_parser = account_of)]
    pub(crate) account: AccountId,
    /// Print JSON, one object per line.
    #[arg(long)]
    pub(crate) json: bool,
}

impl ReadArgs {
    pub(crate) fn store(&self) -> anyhow::Result<Store> {
        self.database.store(self.account.clone(), "reader")
    }
}

/// A complaint on standard error.
pub(crate) fn complain(line: impl std::fmt::Display) {
    use std::io::Write as _;
    let _ = writeln!(std::io::stderr().lock(), "tenure: {line}");
}

/// A line on standard output. A closed pipe ends the program as it ends any other.
pub(crate) fn say(line: impl std::fmt::Display) -> anyhow::Result<()> {
    use std::io::Write as _;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()?;
    Ok(())
}
