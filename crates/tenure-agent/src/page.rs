//! The page: which member leads what, since when, and what needs a person; with orders, for a token that may give them.
//!
//! ```text
//!  browsers ──► listener ──► guard ──► routes ──► poller ──► one question a second, two sessions
//!                                        └─ orders ──► the operators' functions, in a token's name
//! ```
//!
//! # What it guarantees
//!
//! - It never decides which member leads: it reads tables, and orders go the way of `tenure step-down` and its fellows.
//! - The database has one question a second of it however many browsers watch, and none while none does.
//! - It listens beyond loopback only with TLS, or with `behind_proxy`; there, every request needs a token.
//! - Nothing of the connection string, and no command line of a schedule, is in any answer.
//! - What it shows carries the database's clock. When the database is away it says so, with the age of what it
//!   shows, and recovers by itself.
//!
//! # What it does not
//!
//! - Prove leadership: only a gate does. A picture is up to a second old.

mod guard;
mod orders;
mod picture;
mod poller;
mod routes;
mod tokens;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tenure::config::Config;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::listener::{self, Limits, Tls};
use crate::store::StoreError;
use guard::{Guard, Reach};
use poller::Poller;
use routes::Site;
use tokens::TokenFile;

/// A browser that still looks after the lifetime of its connection opens another one.
const LIMITS: Limits = Limits {
    connections: 256,
    of_one: 64,
    head: Duration::from_secs(10),
    // Several megabytes, on a slow link.
    answer: Duration::from_secs(30),
    lifetime: Duration::from_secs(900),
};

pub use tokens::TokenError;
pub(crate) use tokens::{Stamp, stamp};

/// Where the page is without being told: the port of this machine alone.
pub const LISTEN: &str = "127.0.0.1:7007";

/// How to serve the page, as written.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PageOptions {
    /// Where to listen. Beyond loopback it needs `tls` or `behind_proxy`, and `tokens`.
    pub listen: SocketAddr,
    /// The file of tokens: lines of `name scope sha256`, with the scope `read` or `order`, which includes `read`,
    /// and the SHA-256 of the token in hex. It is read again when it changes. Without it the page is for reading,
    /// on loopback.
    pub tokens: Option<PathBuf>,
    /// Certificate chain and key, PEM files. Excludes `behind_proxy`.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// A proxy that speaks TLS stands before it. Needs `tokens` and `names`.
    pub behind_proxy: bool,
    /// The names by which browsers reach it, beside the address itself: hosts alone, without scheme or port. Needed
    /// behind a proxy, and where it listens on every address.
    pub names: Vec<String>,
    /// What the group is called, for a person with the pages of several: one line of at most 60 characters.
    pub title: Option<String>,
}

impl PageOptions {
    /// A page at an address, for reading.
    #[must_use]
    pub fn at(listen: SocketAddr) -> Self {
        PageOptions {
            listen,
            tokens: None,
            tls: None,
            behind_proxy: false,
            names: Vec::new(),
            title: None,
        }
    }

    /// Whether these options belong together; an incomplete set is an error, never a weaker mode.
    ///
    /// # Errors
    /// [`PageError::Options`], in the words of the command line.
    pub fn check(&self) -> Result<(), PageError> {
        let far = !self.listen.ip().is_loopback();
        let bad = |why| Err(PageError::Options(why));
        if self.tls.is_some() && self.behind_proxy {
            return bad(
                "--tls-cert and --behind-proxy exclude each other: TLS ends in one place; give one of them",
            );
        }
        if far && self.tls.is_none() && !self.behind_proxy {
            return bad(
                "the page is not served beyond loopback in plain text; give --tls-cert and --tls-key, or \
                 --behind-proxy if a proxy in front of it speaks TLS",
            );
        }
        if self.tokens.is_none() && far {
            return bad("beyond loopback every request needs a token; give --tokens FILE");
        }
        if self.tokens.is_none() && self.behind_proxy {
            return bad("behind a proxy every request needs a token; give --tokens FILE");
        }
        if self.names.is_empty() && self.behind_proxy {
            return bad(
                "behind a proxy the page must know its name; give --name, as browsers write it",
            );
        }
        if self.names.is_empty() && self.listen.ip().is_unspecified() {
            return bad(
                "on every address the page must know its name; give --name, as browsers write it",
            );
        }
        let odd = |name: &String| {
            name.is_empty()
                || name.len() > 255
                || name.contains(|c: char| c.is_whitespace() || "/@:*".contains(c))
        };
        if self.names.iter().any(odd) {
            return bad(
                "a --name is a host's name alone, without scheme, port or path, as tenure.example.org",
            );
        }
        let long = |title: &String| {
            title.trim().is_empty()
                || title.chars().count() > 60
                || title.contains(char::is_control)
        };
        if self.title.as_ref().is_some_and(long) {
            return bad("a --title is one line of at most 60 characters, as orders-prod");
        }
        Ok(())
    }
}

impl PageOptions {
    /// Whether the files can be used as they are now.
    pub(crate) fn check_files(&self) -> Result<(), PageError> {
        self.open_files().map(drop)
    }

    fn open_files(&self) -> Result<(Option<TokenFile>, Option<Tls>), PageError> {
        let tokens = self.tokens.as_deref().map(TokenFile::open).transpose()?;
        let tls = self.tls.as_ref().map(|(cert, key)| Tls::open(cert, key));
        Ok((tokens, tls.transpose()?))
    }
}

/// Why there is no page. Nothing is served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PageError {
    /// The options do not belong together.
    #[error("{0}")]
    Options(&'static str),
    /// The file of tokens cannot be used.
    #[error(transparent)]
    Tokens(#[from] TokenError),
    /// The certificate cannot be used, or not with its key.
    #[error("{0}")]
    Certificate(String),
    /// The certificate's key cannot be used.
    #[error("{0}")]
    Key(String),
    /// The address cannot be used.
    #[error(
        "{address}: {source}; choose another address: --listen, or `listen` of [page] in an agent's file"
    )]
    #[allow(missing_docs, reason = "the names say it")]
    Listen { address: SocketAddr, source: io::Error },
    /// No database is configured, or its TLS settings cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A page that is served; dropping it ends that, and every connection. [`Page::close`] lets orders come to their end.
pub struct Page {
    url: String,
    address: SocketAddr,
    site: Arc<Site>,
    _tasks: JoinSet<()>,
}

impl std::fmt::Debug for Page {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Page").field("url", &self.url).finish_non_exhaustive()
    }
}

impl Page {
    /// Listens and serves, in tasks of its own, until it is dropped or closed. A database that is away is no error:
    /// the page says so. Must be called in a tokio runtime.
    ///
    /// # Errors
    /// [`PageError`].
    pub async fn open(config: &Config, options: &PageOptions) -> Result<Self, PageError> {
        options.check()?;
        let (tokens, tls) = options.open_files()?;
        let poller = Arc::new(Poller::new(config)?);
        let failed = |source| PageError::Listen { address: options.listen, source };
        let socket = TcpListener::bind(options.listen).await.map_err(failed)?;
        let address = socket.local_addr().map_err(failed)?;
        let reach = match (&tls, options.behind_proxy) {
            (_, true) => Reach::Proxy,
            (Some(_), false) => Reach::Tls,
            (None, false) => Reach::Plain,
        };
        let scheme = if reach == Reach::Tls { "https" } else { "http" };
        let url = match options.names.first() {
            Some(name) if reach == Reach::Proxy => format!("https://{name}/"),
            Some(name) => format!("{scheme}://{name}:{}/", address.port()),
            None => format!("{scheme}://{address}/"),
        };
        let guard = Guard::new(reach, address, &options.names, tokens);
        let title = options.title.clone();
        let site = Arc::new(Site::new(guard, poller.clone(), config.clone(), title));
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { poller.run().await });
        let router = routes::router(site.clone());
        // Behind a proxy all connections come from one address.
        let of_one = if options.behind_proxy { LIMITS.connections } else { LIMITS.of_one };
        tasks.spawn(listener::serve(socket, tls, router, Limits { of_one, ..LIMITS }));
        Ok(Page { url, address, site, _tasks: tasks })
    }

    /// Ends it when the orders that are being given have their answers, within five seconds.
    pub async fn close(self) {
        self.site.settle().await;
    }

    /// Where it listens, with the port that it was given.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its address, as a browser takes it.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(listen: &str, change: impl FnOnce(&mut PageOptions)) -> Result<(), String> {
        let mut options = PageOptions::at(listen.parse().expect("an address"));
        change(&mut options);
        options.check().map_err(|error| error.to_string())
    }

    #[test]
    fn an_incomplete_set_of_options_is_an_error() {
        let tokens = || Some(PathBuf::from("tokens"));
        let tls = || Some((PathBuf::from("cert"), PathBuf::from("key")));
        let name = || vec!["page.example".to_owned()];
        assert_eq!(options("127.0.0.1:1", |_| {}), Ok(()));
        assert_eq!(options("[::1]:1", |o| o.tokens = tokens()), Ok(()));
        assert_eq!(options("127.0.0.1:1", |o| o.tls = tls()), Ok(()));
        assert_eq!(options("10.0.0.1:1", |o| (o.tokens, o.tls) = (tokens(), tls())), Ok(()));
        let proxied =
            |o: &mut PageOptions| (o.tokens, o.behind_proxy, o.names) = (tokens(), true, name());
        assert_eq!(options("10.0.0.1:1", proxied), Ok(()));
        assert_eq!(options("127.0.0.1:1", proxied), Ok(()));
        for (listen, change, words) in [
            ("10.0.0.1:1", (|_| {}) as fn(&mut PageOptions), "in plain text"),
            ("0.0.0.0:1", |o| o.tokens = Some("t".into()), "in plain text"),
            ("10.0.0.1:1", |o| o.tls = Some(("c".into(), "k".into())), "needs a token"),
            ("10.0.0.1:1", |o| o.behind_proxy = true, "needs a token"),
            ("127.0.0.1:1", |o| o.behind_proxy = true, "needs a token"),
            (
                "127.0.0.1:1",
                |o| (o.behind_proxy, o.tokens) = (true, Some("t".into())),
                "know its name",
            ),
            (
                "0.0.0.0:1",
                |o| (o.tls, o.tokens) = (Some(("c".into(), "k".into())), Some("t".into())),
                "know its name",
            ),
            (
                "127.0.0.1:1",
                |o| (o.tls, o.behind_proxy) = (Some(("c".into(), "k".into())), true),
                "exclude",
            ),
            ("127.0.0.1:1", |o| o.names = vec!["http://a".into()], "host's name alone"),
            ("127.0.0.1:1", |o| o.names = vec!["a:1".into()], "host's name alone"),
            ("127.0.0.1:1", |o| o.names = vec![String::new()], "host's name alone"),
            ("127.0.0.1:1", |o| o.title = Some("a\nb".into()), "one line"),
            ("127.0.0.1:1", |o| o.title = Some(" ".into()), "one line"),
        ] {
            let error = options(listen, change).expect_err(words);
            assert!(error.contains(words), "{listen}: {error}");
        }
    }
}
