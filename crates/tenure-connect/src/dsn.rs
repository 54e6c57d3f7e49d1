//! Where the database is and how to log in: libpq's connection strings, whole.
//!
//! The driver's own parser refuses `sslmode=verify-full`, `sslrootcert`, `passfile`, `service` and
//! `target_session_attrs=primary`; this layer adds them and resolves everything the way libpq
//! does, each source filling what the one before left out:
//!
//! ```text
//! the DSN's text, then its service section, then PG* variables, then ~/.postgresql and ~/.pgpass
//! ```
//!
//! Three defaults differ from libpq's, each towards safety:
//!
//! * without `sslmode`, a host that is not this machine is `verify-full` (see [`crate::tls`]);
//! * without `sslrootcert` and `~/.postgresql/root.crt`, the system's trust store is used;
//! * with several hosts and no `target_session_attrs`, only a primary will do: an election cannot
//!   be held on a standby, so `any` could end in nothing but a refusal.
//!
//! A password is never shown: not by `Debug`, not by `Display`, not by an error.

mod env;
mod error;
mod keyword;
mod passfile;
mod secret;
mod service;
mod text;

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

pub use env::{Env, NoEnv, NotASwitch, ProcessEnv, switch};
pub use error::DsnError;
pub use keyword::{ChannelBinding, RootCert, SslMode, TargetSessionAttrs};
pub use secret::Secret;

/// The folder of the server's Unix socket on Debian and its relatives, and upstream's.
const SOCKET_FOLDERS: [&str; 2] = ["/var/run/postgresql", "/tmp"];

/// A resolved connection string. `Debug` and `Display` show it without the password.
#[derive(Clone, PartialEq, Eq)]
pub struct Dsn {
    pub(crate) hosts: Vec<Host>,
    pub(crate) user: String,
    pub(crate) password: Option<Secret>,
    pub(crate) passfile: Option<PathBuf>,
    pub(crate) database: String,
    pub(crate) options: Option<String>,
    pub(crate) application_name: Option<String>,
    pub(crate) ssl_mode: Option<SslMode>,
    pub(crate) ssl_direct: bool,
    pub(crate) root_cert: Option<RootCert>,
    pub(crate) client_cert: Option<ClientCert>,
    pub(crate) channel_binding: ChannelBinding,
    pub(crate) target: TargetSessionAttrs,
    pub(crate) connect_timeout: Option<Duration>,
    pub(crate) tcp_user_timeout: Option<Duration>,
    pub(crate) keepalives: bool,
    pub(crate) keepalives_idle: Option<Duration>,
    pub(crate) keepalives_interval: Option<Duration>,
    pub(crate) keepalives_count: Option<u32>,
    pub(crate) load_balance: bool,
}

/// One server of a DSN.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// A host name, an address, or the absolute path of a socket's folder; the name that
    /// `verify-full` checks.
    pub name: String,
    /// The address to use instead of looking `name` up.
    pub address: Option<IpAddr>,
    /// The port, also part of a socket's name.
    pub port: u16,
}

impl Host {
    /// Whether this is a Unix socket.
    #[must_use]
    pub fn is_unix(&self) -> bool {
        self.address.is_none() && self.name.starts_with('/')
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.name.contains(':') {
            write!(f, "[{}]:{}", self.name, self.port)
        } else {
            write!(f, "{}:{}", self.name, self.port)
        }
    }
}

/// A client certificate and its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ClientCert {
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
}

impl Dsn {
    /// Parses a URL or key=value text; what it leaves out comes from the process's environment.
    ///
    /// # Errors
    /// Any [`DsnError`]; none of them shows the text.
    pub fn parse(text: &str) -> Result<Self, DsnError> {
        Self::parse_with(text, &ProcessEnv)
    }

    /// Like [`Dsn::parse`], with the environment handed in.
    ///
    /// ```
    /// use tenure_connect::dsn::{Dsn, NoEnv};
    ///
    /// let dsn = Dsn::parse_with("postgresql://leader:s3cret@db1,db2:5433/app", &NoEnv)?;
    /// assert_eq!(dsn.to_string(), "postgresql://leader:***@db1:5432,db2:5433/app");
    /// # Ok::<(), tenure_connect::dsn::DsnError>(())
    /// ```
    ///
    /// # Errors
    /// Any [`DsnError`]; none of them shows the text.
    pub fn parse_with(text: &str, env: &dyn Env) -> Result<Self, DsnError> {
        keyword::check_variables(env)?;
        let mut values = BTreeMap::new();
        for (key, value) in text::parse(text)? {
            keyword::check(&key)?;
            values.insert(key, value);
        }
        // An empty value means "not given" everywhere, so that the next source may fill it.
        values.retain(|_, value| !value.is_empty());
        let service = values.get("service").cloned().or_else(|| env.var("PGSERVICE"));
        if let Some(service) = service {
            for (key, value) in service::lookup(&service, env)? {
                values.entry(key).or_insert(value);
            }
        }
        for (key, variable) in keyword::variables() {
            if let Some(value) = env.var(variable) {
                values.entry(key.to_owned()).or_insert(value);
            }
        }
        Self::resolve(&Values(values), env)
    }

    fn resolve(values: &Values, env: &dyn Env) -> Result<Self, DsnError> {
        let home = env.var("HOME").map(PathBuf::from);
        let dot_file = |name: &str| {
            let path = home.as_ref()?.join(".postgresql").join(name);
            path.exists().then_some(path)
        };
        let hosts = hosts(values)?;
        let user = match values.text("user") {
            Some(user) => user,
            None => whoami::username().map_err(|_| DsnError::Value {
                key: "user",
                expected: "given, because this process's user has no name",
            })?,
        };
        let ssl_mode = values.text("sslmode").map(|text| SslMode::parse(&text)).transpose()?;
        let root_cert = match values.text("sslrootcert").as_deref() {
            Some("system") => Some(RootCert::System),
            Some(path) => Some(RootCert::File(expand(path, home.as_deref()))),
            None => dot_file("root.crt").map(RootCert::File),
        };
        // A public trust store without a name check trusts every owner of a domain.
        if root_cert == Some(RootCert::System)
            && ssl_mode.is_some_and(|mode| mode != SslMode::VerifyFull)
        {
            return Err(DsnError::Value {
                key: "sslmode",
                expected: "verify-full (or absent) with sslrootcert=system",
            });
        }
        let cert = values.text("sslcert").map(|path| expand(&path, home.as_deref()));
        let key = values.text("sslkey").map(|path| expand(&path, home.as_deref()));
        let client_cert = match (cert.or_else(|| dot_file("postgresql.crt")), key) {
            (Some(cert), Some(key)) => Some(ClientCert { cert, key }),
            (Some(cert), None) => Some(ClientCert {
                cert,
                key: dot_file("postgresql.key").ok_or(DsnError::Value {
                    key: "sslkey",
                    expected: "given together with sslcert",
                })?,
            }),
            (None, Some(_)) => {
                return Err(DsnError::Value {
                    key: "sslcert",
                    expected: "given together with sslkey",
                });
            }
            (None, None) => None,
        };
        let target = match values.text("target_session_attrs") {
            Some(text) => TargetSessionAttrs::parse(&text)?,
            None if hosts.len() > 1 => TargetSessionAttrs::Primary,
            None => TargetSessionAttrs::Any,
        };
        values.one_of(
            "gssencmode",
            &["disable", "prefer"],
            "disable or prefer (there is no GSSAPI here)",
        )?;
        values.one_of(
            "client_encoding",
            &["UTF8", "utf8", "UTF-8", "utf-8", "auto"],
            "UTF8 or absent",
        )?;
        let negotiation =
            values.one_of("sslnegotiation", &["postgres", "direct"], "postgres or direct")?;
        let ssl_direct = negotiation == Some(1);
        if ssl_direct
            && matches!(ssl_mode, Some(SslMode::Disable | SslMode::Allow | SslMode::Prefer))
        {
            return Err(DsnError::Value {
                key: "sslmode",
                expected: "require, verify-ca or verify-full with sslnegotiation=direct",
            });
        }
        let balance =
            values.one_of("load_balance_hosts", &["disable", "random"], "disable or random")?;
        Ok(Self {
            hosts,
            database: values.text("dbname").unwrap_or_else(|| user.clone()),
            user,
            password: values.text("password").map(Secret::new),
            passfile: match values.text("passfile") {
                Some(path) => Some(expand(&path, home.as_deref())),
                None => home.as_ref().map(|home| home.join(".pgpass")),
            },
            options: values.text("options"),
            application_name: values
                .text("application_name")
                .or_else(|| values.text("fallback_application_name")),
            ssl_mode,
            ssl_direct,
            root_cert,
            client_cert,
            channel_binding: match values.text("channel_binding") {
                Some(text) => ChannelBinding::parse(&text)?,
                None => ChannelBinding::Prefer,
            },
            target,
            // 0 and below mean "no limit" to libpq, and 1 means 2: resolution was once poor.
            connect_timeout: values
                .number::<i64>("connect_timeout", "a number of seconds")?
                .and_then(|seconds| u64::try_from(seconds).ok())
                .filter(|seconds| *seconds > 0)
                .map(Duration::from_secs),
            tcp_user_timeout: values
                .number::<u64>("tcp_user_timeout", "a number of milliseconds")?
                .filter(|milliseconds| *milliseconds > 0)
                .map(Duration::from_millis),
            keepalives: values.number::<i64>("keepalives", "0 or 1")? != Some(0),
            keepalives_idle: values.seconds("keepalives_idle")?,
            keepalives_interval: values.seconds("keepalives_interval")?,
            keepalives_count: match values.number("keepalives_count", "a count")? {
                Some(count) => Some(count),
                None => values.number("keepalives_retries", "a count")?,
            },
            load_balance: balance == Some(1),
        })
    }

    /// The servers, in the order they are tried.
    #[must_use]
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// The database user; without one in the DSN, the name of the process's user.
    #[must_use]
    pub fn user(&self) -> &str {
        &self.user
    }

    /// The database's name; without one in the DSN, the user's.
    #[must_use]
    pub fn database(&self) -> &str {
        &self.database
    }

    /// The `sslmode` that was asked for; without one it depends on the host (see [`crate::tls`]).
    #[must_use]
    pub fn ssl_mode(&self) -> Option<SslMode> {
        self.ssl_mode
    }

    /// Which of several servers will do.
    #[must_use]
    pub fn target_session_attrs(&self) -> TargetSessionAttrs {
        self.target
    }

    /// The `application_name` the user chose.
    #[must_use]
    pub fn application_name(&self) -> Option<&str> {
        self.application_name.as_deref()
    }

    /// The password for `host`: the one given, else the password file's, which is read each time
    /// so that a rotated password is found by the next connection.
    pub(crate) fn password_for(&self, host: &Host) -> Option<Secret> {
        if let Some(password) = &self.password {
            return Some(password.clone());
        }
        let default_socket = SOCKET_FOLDERS.contains(&host.name.as_str());
        passfile::lookup(
            self.passfile.as_deref()?,
            &passfile::Subject {
                host: if default_socket { "localhost" } else { &host.name },
                port: host.port,
                database: &self.database,
                user: &self.user,
            },
        )
    }
}

/// A URL with the password starred out; enough to recognise the database by.
impl fmt::Display for Dsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let password = if self.password.is_some() { ":***" } else { "" };
        write!(f, "postgresql://{}{password}@", text::encode(&self.user))?;
        for (at, host) in self.hosts.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            if host.is_unix() {
                // A slash would end the host: in this form psql and our own parser take it.
                write!(f, "{comma}{}:{}", text::encode(&host.name), host.port)?;
            } else {
                write!(f, "{comma}{host}")?;
            }
        }
        write!(f, "/{}", text::encode(&self.database))?;
        if let Some(mode) = self.ssl_mode {
            write!(f, "?sslmode={}", mode.as_str())?;
        }
        Ok(())
    }
}

impl fmt::Debug for Dsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Dsn({self})")
    }
}

struct Values(BTreeMap<String, String>);

impl Values {
    fn text(&self, key: &str) -> Option<String> {
        self.0.get(key).filter(|value| !value.is_empty()).cloned()
    }

    fn number<T: FromStr>(
        &self,
        key: &'static str,
        expected: &'static str,
    ) -> Result<Option<T>, DsnError> {
        self.text(key)
            .map(|text| text.trim().parse().map_err(|_| DsnError::Value { key, expected }))
            .transpose()
    }

    fn seconds(&self, key: &'static str) -> Result<Option<Duration>, DsnError> {
        let seconds = self.number::<u64>(key, "a number of seconds")?;
        Ok(seconds.filter(|seconds| *seconds > 0).map(Duration::from_secs))
    }

    fn one_of(
        &self,
        key: &'static str,
        accepted: &[&str],
        expected: &'static str,
    ) -> Result<Option<usize>, DsnError> {
        self.text(key)
            .map(|text| {
                accepted
                    .iter()
                    .position(|value| *value == text)
                    .ok_or(DsnError::Value { key, expected })
            })
            .transpose()
    }
}

fn hosts(values: &Values) -> Result<Vec<Host>, DsnError> {
    let list = |key: &str| -> Vec<String> {
        let text = values.text(key).unwrap_or_default();
        text.split(',').map(|entry| entry.trim().to_owned()).collect()
    };
    let (names, addresses, ports) = (list("host"), list("hostaddr"), list("port"));
    let given = |entries: &[String]| entries.iter().any(|entry| !entry.is_empty());
    let count = if given(&names) { names.len() } else { addresses.len() };
    if given(&names) && given(&addresses) && addresses.len() != count {
        return Err(DsnError::Count { key: "hostaddr", hosts: count, others: addresses.len() });
    }
    if ports.len() > 1 && ports.len() != count {
        return Err(DsnError::Count { key: "port", hosts: count, others: ports.len() });
    }
    (0..count)
        .map(|at| {
            let address = match addresses.get(at).filter(|text| !text.is_empty()) {
                Some(text) => Some(text.parse::<IpAddr>().map_err(|_| DsnError::Value {
                    key: "hostaddr",
                    expected: "numeric addresses, separated by commas",
                })?),
                None => None,
            };
            let name = match (names.get(at).filter(|name| !name.is_empty()), address) {
                (Some(name), _) => name.clone(),
                (None, Some(address)) => address.to_string(),
                (None, None) => default_host(),
            };
            let port = match ports.get(at).or(ports.first()).map(String::as_str) {
                None | Some("") => 5432,
                Some(text) => {
                    text.parse().ok().filter(|port| *port > 0).ok_or(DsnError::Value {
                        key: "port",
                        expected: "a number between 1 and 65535",
                    })?
                }
            };
            Ok(Host { name, address, port })
        })
        .collect()
}

/// The server's socket on this machine, as libpq without a host.
fn default_host() -> String {
    let [debian, upstream] = SOCKET_FOLDERS;
    if Path::new(debian).is_dir() { debian } else { upstream }.to_owned()
}

/// People that write `~/` in a path of a DSN or variable expect a shell.
fn expand(path: &str, home: Option<&Path>) -> PathBuf {
    match (path.strip_prefix("~/"), home) {
        (Some(rest), Some(home)) => home.join(rest),
        _ => PathBuf::from(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_can_be_used_again() {
        for text in [
            "host=/tmp/a/run port=5433 user=tenure dbname=postgres",
            "host=/tmp/a,db.example port=5432,5433 user='o''brien@x' dbname='a/b c'",
            "postgresql://leader@[::1]:6000/app?sslmode=disable",
        ] {
            let text = text.replace("''", "\\'");
            let dsn = Dsn::parse_with(&text, &NoEnv).expect("valid");
            let again = Dsn::parse_with(&dsn.to_string(), &NoEnv).expect("what is shown is valid");
            let parts = |dsn: &Dsn| (dsn.hosts.clone(), dsn.user.clone(), dsn.database.clone());
            assert_eq!(parts(&again), parts(&dsn), "{dsn}");
        }
    }
}
