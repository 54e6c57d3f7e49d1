//! `tenure serve`: the page in a browser, for a group that already runs.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use tenure_agent::page::{LISTEN, Page, PageError, PageOptions};

use crate::args::Database;
use crate::exit::{Exit, Failure};
use crate::listener;
use crate::output::{err, out};
use crate::setting::{EMBEDDED, Setting};
use crate::signals::Signals;

const NOTES: &str = "\
On loopback anyone on this machine may read; every order needs a token of scope `order`. Anywhere
else every request needs a token, and the page is served only with --tls-cert and --tls-key, or
with --behind-proxy. FILE has lines of `name scope sha256`: the scope is read or order, and the
digest is that of the token. To make one:
  openssl rand -hex 32 | tee token.txt | tr -d '\\n' | sha256sum
Orders are recorded with the token's name: `tenure history --orders` shows them.";

#[derive(Debug, Args)]
#[command(after_help = NOTES)]
pub(crate) struct Serve {
    #[command(flatten)]
    pub(crate) database: Database,
    #[command(flatten)]
    pub(crate) page: PageArgs,
}

/// Where the page is, and how a browser must prove itself.
#[derive(Debug, Clone, Args)]
pub(crate) struct PageArgs {
    /// Where to listen: an address, or a port of this machine alone
    #[arg(long, value_name = "ADDR", default_value = LISTEN, value_parser = listener::address)]
    pub(crate) listen: SocketAddr,
    /// Who may see and order: lines of `name scope sha256`
    #[arg(long, value_name = "FILE")]
    pub(crate) tokens: Option<PathBuf>,
    /// Speak TLS with this certificate chain (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// Its key (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// A proxy that speaks TLS stands before the page
    #[arg(long)]
    pub(crate) behind_proxy: bool,
    /// A name by which browsers reach the page, beside its address; may be repeated
    #[arg(long, value_name = "HOST")]
    pub(crate) name: Vec<String>,
    /// What the group is called, for a person with the pages of several
    #[arg(long, value_name = "TEXT")]
    pub(crate) title: Option<String>,
}

impl PageArgs {
    fn options(self) -> PageOptions {
        let mut options = PageOptions::at(self.listen);
        options.tokens = self.tokens;
        options.tls = self.tls_cert.zip(self.tls_key);
        options.behind_proxy = self.behind_proxy;
        options.names = self.name;
        options.title = self.title;
        options
    }
}

pub(crate) async fn serve(args: Serve) -> Result<Exit, Failure> {
    let mut signals = Signals::listen()?;
    let options = args.page.options();
    options.check().map_err(failed)?;
    let setting = Setting::of(&args.database)?;
    let page = Page::open(&setting.config, &options).await.map_err(failed)?;
    if setting.embedded {
        err!("{EMBEDDED}");
    }
    if options.behind_proxy {
        out!("the page is at {} (listening on {})", page.url(), page.address());
    } else {
        out!("the page is at {}", page.url());
    }
    signals.next().await;
    // An order that is being given comes to its end.
    page.close().await;
    Ok(Exit::Clean)
}

pub(crate) fn failed(error: PageError) -> Failure {
    match error {
        PageError::Listen { .. } => Failure::failed(error.to_string()),
        _ => Failure::usage(error.to_string()),
    }
}
