//! One dedicated session, made within a deadline.
//!
//! A [`Connector`] tries the servers of a [`Dsn`] in order and returns the first session of the
//! wanted kind. *Everything* counts against the one deadline: name look-up, TCP, TLS, login and
//! the check of `target_session_attrs`. A server that says nothing for a quarter of a second (it is frozen, or
//! cut off) is waited for beside the next one: it must not hold up a failover. When each is tried, and for how
//! long, is told in `race`.
//!
//! | what happens | what follows |
//! |---|---|
//! | nothing is said for a while | the next server is tried too |
//! | no answer, refused, name unknown, TLS fails, "starting up", wrong kind | the next address, then the next server |
//! | login refused | the end (as in libpq: a wrong password is wrong everywhere, and retries lock accounts), once the servers before it have failed |
//! | deadline | the end, naming the server that was waited for |
//! | a caller could not use the session ([`Connector::pass_over`]) | the next attempts start at the server after that one, and come to it when the others have failed |
//!
//! It guarantees that a session it returns was verified as [`crate::tls`] says. It does not
//! retry, does not pool, and does not look whether the server can hold an election (preflight does).

mod race;

use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Once};
use std::task::Poll;
use std::time::Duration;

use rand::seq::SliceRandom;
use socket2::{SockRef, TcpKeepalive};
use tokio::time::{Instant, timeout_at};
use tokio_postgres::SimpleQueryMessage;
use tokio_postgres::config::{self as driver, SslNegotiation};
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::ConnectError;
use crate::dsn::{ChannelBinding, Dsn, Host, SslMode, TargetSessionAttrs};
use crate::error::{tens_of_millis, whole_millis};
use crate::socket::Socket;
use crate::tls::{Tls, TlsError, TlsOptions, Verify};
use race::Servers;

/// The driver's half of a session: nothing happens unless its owner polls it.
///
/// One type, with or without TLS.
pub type Connection =
    tokio_postgres::Connection<Socket, <MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream>;

/// A session that was just opened. Its connection is not polled yet: spawn it, or make a
/// [`Line`](crate::line::Line) of the session.
pub struct Session {
    /// Sends statements.
    pub client: tokio_postgres::Client,
    /// Moves the bytes; poll it, best with `poll_message`, which also yields notifications.
    pub connection: Connection,
    /// The server that answered.
    pub host: Host,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("host", &self.host).finish_non_exhaustive()
    }
}

/// Gives the connection string anew before every session, where its password is short-lived.
pub trait Renewal: Send + Sync + fmt::Debug {
    /// The connection string for the session that is about to be opened, or why there is none.
    ///
    /// It counts against the session's deadline. The error must not carry a secret.
    fn renew(&self) -> Pin<Box<dyn Future<Output = Result<Dsn, String>> + Send + '_>>;
}

/// Opens sessions to one database. Cheap to clone; clones pass over the same server.
#[derive(Debug, Clone)]
pub struct Connector {
    dsn: Dsn,
    tls: Arc<Tls>,
    tls_options: TlsOptions,
    tcp_user_timeout: Option<Duration>,
    renewal: Option<Arc<dyn Renewal>>,
    /// The place in the DSN of the server that is tried last.
    passed_over: Arc<AtomicUsize>,
}

/// No server is passed over.
const NONE: usize = usize::MAX;

impl Connector {
    /// Prepares connections; opens none.
    ///
    /// # Errors
    /// Any [`TlsError`]: a certificate file that cannot be used is reported now rather than at
    /// the first connection.
    pub fn new(dsn: &Dsn, tls: TlsOptions) -> Result<Self, TlsError> {
        let tls_options = tls;
        let tls = Tls::new(dsn, &tls_options);
        if tls.is_insecure() {
            // Once: with passwords that are renewed, every session has a connector of its own.
            static SAID: Once = Once::new();
            SAID.call_once(|| {
                tracing::warn!(
                    database = %dsn,
                    "SH_DB_TLS_INSECURE is set: the database's certificate is not verified"
                );
            });
        }
        let connector = Self {
            dsn: dsn.clone(),
            tls: Arc::new(tls),
            tls_options,
            tcp_user_timeout: None,
            renewal: None,
            passed_over: Arc::new(AtomicUsize::new(NONE)),
        };
        for host in dsn.hosts().iter().filter(|host| !host.is_unix()) {
            // A name's address is not known yet; whatever it is, the files are the same.
            let address = host.address.or_else(|| host.name.parse().ok());
            for plan in connector.plans(host, address) {
                if plan.tls != driver::SslMode::Disable {
                    connector.tls.client_config(plan.verify)?;
                }
            }
        }
        Ok(connector)
    }

    /// How long sent data may stay unacknowledged before the kernel ends the connection, where
    /// the DSN has no `tcp_user_timeout`. Default: the system's (about 15 minutes). It should be
    /// the lease: shorter ends sessions that would have recovered in time, longer keeps a dead
    /// one past the moment its gate shut. Keepalive probes are derived from it.
    #[must_use]
    pub fn with_tcp_user_timeout(mut self, timeout: Duration) -> Self {
        self.tcp_user_timeout = Some(timeout);
        self
    }

    /// Asks for the connection string anew before every session.
    #[must_use]
    pub fn with_renewal(mut self, renewal: Option<Arc<dyn Renewal>>) -> Self {
        self.renewal = renewal;
        self
    }

    /// The connection string that was resolved; a [`Renewal`] may since have given another one.
    #[must_use]
    pub fn dsn(&self) -> &Dsn {
        &self.dsn
    }

    /// From now on the attempts of this connector and its clones start at the server after this one,
    /// and come to it when all the others have failed. For a server that gave a session which could not be
    /// used: a deposed primary, for example, lets its clients in although none of their commits can finish.
    pub fn pass_over(&self, host: &Host) {
        if let Some(place) = self.dsn.hosts().iter().position(|other| other == host) {
            self.passed_over.store(place, Ordering::Relaxed);
        }
    }

    /// The server that is tried last, if one is passed over.
    #[must_use]
    pub fn passed_over(&self) -> Option<&Host> {
        self.dsn.hosts().get(self.passed_over.load(Ordering::Relaxed))
    }

    /// The servers in the order in which an attempt tries them.
    fn servers(&self) -> Servers<'_> {
        let mut hosts: Vec<&Host> = self.dsn.hosts().iter().collect();
        let last = self.passed_over.load(Ordering::Relaxed);
        let last_is_passed_over = last < hosts.len();
        if last_is_passed_over {
            hosts.rotate_left(last + 1);
        }
        if self.dsn.load_balance {
            let others = hosts.len() - usize::from(last_is_passed_over);
            hosts[..others].shuffle(&mut rand::rng());
        }
        Servers { hosts, last_is_passed_over }
    }

    /// Opens a session within `deadline`.
    ///
    /// `application_name` is shown in `pg_stat_activity`; if the DSN has one, it is put in front.
    /// Cancel-safe: dropping the future closes whatever was opened.
    ///
    /// # Errors
    /// Any [`ConnectError`]; with several servers or addresses [`ConnectError::Several`] unless a
    /// login failed.
    pub async fn connect(
        &self,
        application_name: &str,
        deadline: Duration,
    ) -> Result<Session, ConnectError> {
        let until = Instant::now() + deadline;
        match &self.renewal {
            None => self.connect_until(application_name, until).await,
            Some(renewal) => {
                let renewed = self.renewed(&**renewal, deadline, until).await?;
                renewed.connect_until(application_name, until).await
            }
        }
    }

    /// This connector with a new connection string.
    async fn renewed(
        &self,
        renewal: &dyn Renewal,
        deadline: Duration,
        until: Instant,
    ) -> Result<Self, ConnectError> {
        let dsn = match timeout_at(until, renewal.renew()).await {
            Ok(dsn) => dsn.map_err(ConnectError::Renewal)?,
            Err(_) => {
                return Err(ConnectError::Renewal(format!(
                    "no answer within {:?}",
                    whole_millis(deadline)
                )));
            }
        };
        let renewed = Self::new(&dsn, self.tls_options.clone())?;
        Ok(Self {
            tcp_user_timeout: self.tcp_user_timeout,
            passed_over: self.passed_over.clone(),
            ..renewed
        })
    }

    async fn connect_until(
        &self,
        application_name: &str,
        until: Instant,
    ) -> Result<Session, ConnectError> {
        let passes: &[_] = match self.dsn.target {
            TargetSessionAttrs::PreferStandby => {
                &[TargetSessionAttrs::Standby, TargetSessionAttrs::Any]
            }
            ref target => std::slice::from_ref(target),
        };
        let servers = self.servers();
        let mut failures = Vec::new();
        for (at, wanted) in passes.iter().enumerate() {
            let until = share(until, passes.len() - at);
            match self.connect_any(&servers, application_name, *wanted, until).await {
                Ok(session) => return Ok(session),
                Err(Stop::Here(error)) => return Err(error),
                Err(Stop::Next(more)) => failures.extend(more),
            }
        }
        match failures.len() {
            1 => Err(failures.swap_remove(0)),
            _ => Err(ConnectError::Several(failures)),
        }
    }

    /// Tries each address of a server: all but the last one before `soon`, when a server that has said nothing may be
    /// given up.
    async fn connect_host(
        &self,
        host: &Host,
        asked: Asked<'_>,
        soon: Instant,
        until: Instant,
    ) -> Result<Session, Stop> {
        let addresses =
            self.addresses(host, until).await.map_err(|error| Stop::Next(vec![error]))?;
        let mut failures = Vec::new();
        let count = addresses.len();
        for (at, address) in addresses.into_iter().enumerate() {
            let mut until = if at + 1 == count { until } else { share(soon, count - at) };
            if let Some(limit) = self.dsn.connect_timeout {
                until = until.min(Instant::now() + limit);
            }
            match self.connect_address(host, address, &asked, until).await {
                Ok(session) => return Ok(session),
                Err(error) if error.is_auth() => return Err(Stop::Here(error)),
                Err(error) => failures.push(error),
            }
        }
        Err(Stop::Next(failures))
    }

    /// The addresses of a server; one `None` for a Unix socket.
    ///
    /// A look-up that outlives the deadline goes on in a thread of the runtime, and its answer
    /// is dropped: the system's resolver cannot be interrupted.
    async fn addresses(
        &self,
        host: &Host,
        until: Instant,
    ) -> Result<Vec<Option<IpAddr>>, ConnectError> {
        if host.is_unix() {
            return Ok(vec![None]);
        }
        if let Some(address) = host.address.or_else(|| host.name.parse().ok()) {
            return Ok(vec![Some(address)]);
        }
        let given = until.saturating_duration_since(Instant::now());
        let lookup = tokio::net::lookup_host((host.name.as_str(), host.port));
        let unreachable = |source| ConnectError::Unreachable { host: host.to_string(), source };
        let mut found: Vec<_> = match timeout_at(until, lookup).await {
            Ok(found) => {
                found.map_err(unreachable)?.map(|address: SocketAddr| address.ip()).collect()
            }
            Err(_) => {
                return Err(ConnectError::Deadline {
                    host: host.to_string(),
                    waited: tens_of_millis(given),
                });
            }
        };
        if found.is_empty() {
            return Err(unreachable(std::io::Error::other("the name has no address")));
        }
        if self.dsn.load_balance {
            found.shuffle(&mut rand::rng());
        }
        Ok(found.into_iter().map(Some).collect())
    }

    /// Tries one address, in each way its `sslmode` allows.
    async fn connect_address(
        &self,
        host: &Host,
        address: Option<IpAddr>,
        asked: &Asked<'_>,
        until: Instant,
    ) -> Result<Session, ConnectError> {
        let given = until.saturating_duration_since(Instant::now());
        let mut failure = None;
        for plan in self.plans(host, address) {
            if failure.as_ref().is_some_and(|error| !worth_the_other_way(error)) {
                break;
            }
            let attempt = self.attempt(host, address, asked, plan);
            match timeout_at(until, attempt).await {
                Ok(Ok(session)) => return Ok(session),
                Ok(Err(error)) => failure = Some(error),
                Err(_) => {
                    failure = Some(ConnectError::Deadline {
                        host: host.to_string(),
                        waited: tens_of_millis(given),
                    });
                }
            }
        }
        // Every mode has at least one plan, so there is a failure here.
        Err(failure.unwrap_or_else(|| ConnectError::Broken {
            host: host.to_string(),
            reason: "nothing was tried".into(),
            source: None,
        }))
    }

    /// The `sslmode` for an address: the DSN's, else the safe default.
    ///
    /// Loopback needs both a local name and a local address: a public name that resolves to
    /// 127.0.0.1 may well be a tunnel's entrance.
    fn mode(&self, host: &Host, address: Option<IpAddr>) -> SslMode {
        if host.is_unix() {
            return SslMode::Disable;
        }
        let local_name = host.name == "localhost"
            || host.name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
        match self.dsn.ssl_mode {
            Some(mode) => mode,
            None if self.dsn.ssl_direct => SslMode::VerifyFull,
            None if local_name && address.is_none_or(|address| address.is_loopback()) => {
                SslMode::Prefer
            }
            None => SslMode::VerifyFull,
        }
    }

    fn plans(&self, host: &Host, address: Option<IpAddr>) -> Vec<Plan> {
        let mode = self.mode(host, address);
        let plan = |tls| Plan { mode, tls, verify: self.tls.verify(mode) };
        match mode {
            SslMode::Disable => vec![plan(driver::SslMode::Disable)],
            SslMode::Allow => vec![plan(driver::SslMode::Disable), plan(driver::SslMode::Require)],
            SslMode::Prefer => vec![plan(driver::SslMode::Prefer), plan(driver::SslMode::Disable)],
            SslMode::Require | SslMode::VerifyCa | SslMode::VerifyFull => {
                vec![plan(driver::SslMode::Require)]
            }
        }
    }

    async fn attempt(
        &self,
        host: &Host,
        address: Option<IpAddr>,
        asked: &Asked<'_>,
        plan: Plan,
    ) -> Result<Session, ConnectError> {
        if plan.tls == driver::SslMode::Disable
            && self.dsn.channel_binding == ChannelBinding::Require
        {
            return Err(ConnectError::ChannelBinding { host: host.to_string() });
        }
        let verify = match plan.tls {
            driver::SslMode::Disable => Verify::Nothing,
            _ => plan.verify,
        };
        let mut tls = MakeRustlsConnect::new(self.tls.client_config(verify)?);
        let driver_error =
            |error| ConnectError::from_driver(error, host, &self.dsn.user, plan.mode.as_str());
        let config = self.driver_config(host, asked.application_name, plan.tls);
        let unreachable = |source| ConnectError::Unreachable { host: host.to_string(), source };
        let mut socket = self.socket(host, address).await.map_err(unreachable)?;
        socket.tell_first_word(asked.heard.clone());
        let Ok(tls) = MakeTlsConnect::<Socket>::make_tls_connect(&mut tls, &host.name);
        let (client, connection) = config.connect_raw(socket, tls).await.map_err(driver_error)?;
        let mut session = Session { client, connection, host: host.clone() };
        let wanted = asked.wanted;
        if wanted != TargetSessionAttrs::Any
            && !is_wanted(&mut session, wanted).await.map_err(driver_error)?
        {
            return Err(ConnectError::Target { host: host.to_string(), wanted });
        }
        Ok(session)
    }

    /// A socket that is connected, and that the kernel gives up in time.
    async fn socket(&self, host: &Host, address: Option<IpAddr>) -> io::Result<Socket> {
        let Some(address) = address else {
            let path = Path::new(&host.name).join(format!(".s.PGSQL.{}", host.port));
            return Socket::unix(&path).await;
        };
        let socket = Socket::tcp(SocketAddr::new(address, host.port)).await?;
        if let Some(stream) = socket.as_tcp() {
            let stream = SockRef::from(stream);
            let limits = self.limits();
            #[cfg(any(target_os = "linux", target_os = "android"))]
            stream.set_tcp_user_timeout(limits.user_timeout)?;
            if let Some(probes) = limits.probes {
                stream.set_tcp_keepalive(&probes)?;
            }
        }
        Ok(socket)
    }

    fn limits(&self) -> Limits {
        let dsn = &self.dsn;
        let user_timeout = dsn.tcp_user_timeout.or(self.tcp_user_timeout);
        // Probes start while the peer can still be declared dead in time; the kernel counts in
        // whole seconds.
        let probe = user_timeout.map(|timeout| (timeout / 3).max(Duration::from_secs(1)));
        let mut probes = TcpKeepalive::new();
        // Two hours, libpq's and the system's own, where nothing is said.
        let idle = dsn.keepalives_idle.or(probe).unwrap_or(Duration::from_secs(7200));
        probes = probes.with_time(idle);
        if let Some(interval) = dsn.keepalives_interval.or(probe) {
            probes = probes.with_interval(interval);
        }
        if let Some(count) = dsn.keepalives_count.or(probe.map(|_| 3)) {
            probes = probes.with_retries(count);
        }
        Limits { user_timeout, probes: dsn.keepalives.then_some(probes) }
    }

    fn driver_config(
        &self,
        host: &Host,
        application_name: &str,
        tls: driver::SslMode,
    ) -> tokio_postgres::Config {
        let dsn = &self.dsn;
        let mut config = tokio_postgres::Config::new();
        config
            .user(&dsn.user)
            .dbname(&dsn.database)
            .ssl_mode(tls)
            .application_name(match &dsn.application_name {
                Some(own) => format!("{own} {application_name}"),
                None => application_name.to_owned(),
            })
            .channel_binding(match dsn.channel_binding {
                ChannelBinding::Disable => driver::ChannelBinding::Disable,
                ChannelBinding::Prefer => driver::ChannelBinding::Prefer,
                ChannelBinding::Require => driver::ChannelBinding::Require,
            });
        if dsn.ssl_direct && tls == driver::SslMode::Require {
            config.ssl_negotiation(SslNegotiation::Direct);
        }
        if let Some(password) = dsn.password_for(host) {
            config.password(password.reveal());
        }
        if let Some(options) = &dsn.options {
            config.options(options);
        }
        config
    }
}

/// When the kernel gives a connection up.
struct Limits {
    user_timeout: Option<Duration>,
    probes: Option<TcpKeepalive>,
}

/// One way to speak to an address.
#[derive(Debug, Clone, Copy)]
struct Plan {
    mode: SslMode,
    tls: driver::SslMode,
    verify: Verify,
}

/// What a server is asked for.
struct Asked<'a> {
    application_name: &'a str,
    wanted: TargetSessionAttrs,
    /// Becomes true with the first that the server says.
    heard: Arc<AtomicBool>,
}

/// What a server's failure means for the others.
enum Stop {
    Next(Vec<ConnectError>),
    Here(ConnectError),
}

/// Whether `allow` and `prefer` should try the other way, with or without TLS: the handshake
/// failed, or pg_hba.conf has no line for this way (28000; a wrong password is 28P01).
fn worth_the_other_way(error: &ConnectError) -> bool {
    error.is_tls() || error.sqlstate().is_some_and(|code| code.code() == "28000")
}

/// When the next of `turns` must be done for all to get an equal share of the time left.
fn share(until: Instant, turns: usize) -> Instant {
    let now = Instant::now();
    let turns = u32::try_from(turns.max(1)).unwrap_or(u32::MAX);
    now + until.saturating_duration_since(now) / turns
}

/// Asks the server what it is.
async fn is_wanted(
    session: &mut Session,
    wanted: TargetSessionAttrs,
) -> Result<bool, tokio_postgres::Error> {
    const WHAT: &str = "SELECT pg_catalog.pg_is_in_recovery(), \
                        pg_catalog.current_setting('transaction_read_only')";
    let Session { client, connection, .. } = session;
    let mut query = pin!(client.simple_query(WHAT));
    let mut open = true;
    let answer = poll_fn(|cx| {
        if let Poll::Ready(answer) = query.as_mut().poll(cx) {
            return Poll::Ready(answer);
        }
        // Notices of the login are dropped here: the session has no listener yet.
        while open {
            match connection.poll_message(cx) {
                Poll::Ready(Some(Ok(_))) => {}
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(error)),
                // The query then fails with "connection closed".
                Poll::Ready(None) => open = false,
                Poll::Pending => break,
            }
        }
        query.as_mut().poll(cx)
    })
    .await?;
    let row = answer.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    });
    let Some(row) = row else { return Ok(false) };
    let standby = row.try_get(0)? == Some("t");
    let read_only = row.try_get(1)? == Some("on");
    Ok(match wanted {
        TargetSessionAttrs::Any | TargetSessionAttrs::PreferStandby => true,
        TargetSessionAttrs::ReadWrite => !read_only,
        TargetSessionAttrs::ReadOnly => read_only,
        TargetSessionAttrs::Primary => !standby,
        TargetSessionAttrs::Standby => standby,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dsn::NoEnv;

    fn limits(dsn: &str, timeout: Option<Duration>) -> Limits {
        let dsn = Dsn::parse_with(dsn, &NoEnv).expect("a good DSN");
        let mut connector = Connector::new(&dsn, TlsOptions::new()).expect("no files are named");
        connector.tcp_user_timeout = timeout;
        connector.limits()
    }

    /// What the kernel says of a socket with these limits.
    async fn told(dsn: &str, timeout: Option<Duration>) -> (Duration, Duration, u32) {
        let server = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let at = server.local_addr().expect("it is bound");
        let dsn = Dsn::parse_with(&format!("{dsn} port={}", at.port()), &NoEnv).expect("good");
        let mut connector = Connector::new(&dsn, TlsOptions::new()).expect("no files are named");
        connector.tcp_user_timeout = timeout;
        let socket = connector.socket(&dsn.hosts()[0], Some(at.ip())).await.expect("it listens");
        let socket = SockRef::from(socket.as_tcp().expect("it is TCP"));
        (
            socket.tcp_user_timeout().expect("Linux tells").unwrap_or_default(),
            socket.tcp_keepalive_time().expect("the kernel tells"),
            socket.tcp_keepalive_retries().expect("the kernel tells"),
        )
    }

    /// Gives a port on which nothing listens, or fails.
    #[derive(Debug)]
    struct Tokens(std::sync::atomic::AtomicUsize);

    impl Renewal for Tokens {
        fn renew(&self) -> Pin<Box<dyn Future<Output = Result<Dsn, String>> + Send + '_>> {
            let turn = self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            Box::pin(async move {
                match turn {
                    0 => Ok(Dsn::parse_with("host=127.0.0.1 port=1", &NoEnv).expect("good")),
                    1 => Err("the vault is sealed".to_owned()),
                    _ => std::future::pending().await,
                }
            })
        }
    }

    #[tokio::test]
    async fn the_connection_string_is_renewed_before_every_session_and_within_its_deadline() {
        let dsn = Dsn::parse_with("host=127.0.0.1 port=2", &NoEnv).expect("a good DSN");
        let connector = Connector::new(&dsn, TlsOptions::new()).expect("no files are named");
        let connector = connector.with_renewal(Some(Arc::new(Tokens(0.into()))));
        let mut told = Vec::new();
        for _ in 0..3 {
            let error = connector.connect("test", Duration::from_millis(50)).await;
            told.push(error.expect_err("nothing listens").to_string());
        }
        assert!(told[0].contains("127.0.0.1:1"), "{told:?}");
        assert!(told[1].contains("the vault is sealed"), "{told:?}");
        assert!(told[2].contains("no answer within 50ms"), "{told:?}");
    }

    #[test]
    fn a_server_that_was_passed_over_is_tried_last() {
        let ports = |text: &str, passed_over: &[usize]| -> Vec<u16> {
            let dsn = Dsn::parse_with(text, &NoEnv).expect("a good DSN");
            let connector = Connector::new(&dsn, TlsOptions::new()).expect("no files are named");
            for place in passed_over {
                connector.clone().pass_over(&dsn.hosts()[*place]);
            }
            connector.servers().hosts.iter().map(|host| host.port).collect()
        };
        let three = "host=127.0.0.1,127.0.0.1,127.0.0.1 port=1,2,3";
        assert_eq!(ports(three, &[]), [1, 2, 3]);
        assert_eq!(ports(three, &[0]), [2, 3, 1]);
        assert_eq!(ports(three, &[0, 1]), [3, 1, 2]);
        assert_eq!(ports(three, &[2]), [1, 2, 3]);
        assert_eq!(ports("host=127.0.0.1 port=1", &[0]), [1]);
        for _ in 0..20 {
            let random = ports(&format!("{three} load_balance_hosts=random"), &[1]);
            assert_eq!(random[2], 2, "{random:?}");
        }
    }

    #[tokio::test]
    async fn the_kernel_is_told_to_give_up_in_time_unless_the_dsn_says_when() {
        let ours = told("host=127.0.0.1", Some(Duration::from_secs(6))).await;
        assert_eq!(ours, (Duration::from_secs(6), Duration::from_secs(2), 3));

        let text = "host=127.0.0.1 tcp_user_timeout=1500 keepalives_idle=7 keepalives_count=9";
        let theirs = told(text, Some(Duration::from_secs(6))).await;
        assert_eq!(theirs, (Duration::from_millis(1500), Duration::from_secs(7), 9));
        assert!(limits("host=127.0.0.1 keepalives=0", None).probes.is_none());
    }
}
