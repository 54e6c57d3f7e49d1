//! Several servers: which one is taken, and that none can use up the others' time.

use std::time::{Duration, Instant};

use tenure_connect::dsn::{Dsn, NoEnv};
use tenure_connect::tls::TlsOptions;
use tenure_connect::{ConnectError, Connector, Session};
use tenure_testkit::{Cluster, Proxy, ReplicaOptions, shared_cluster};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

const LONG: Duration = Duration::from_secs(20);

/// Connects with a DSN and no environment.
pub async fn connect(dsn: &str, deadline: Duration) -> Result<Session, ConnectError> {
    let dsn = Dsn::parse_with(dsn, &NoEnv).unwrap_or_else(|error| panic!("{error}"));
    let connector = Connector::new(&dsn, TlsOptions::new())?;
    connector.connect("tenure test", deadline).await
}

/// The first column of the first row of a statement on a session.
pub async fn ask(session: Session, statement: &str) -> String {
    let Session { client, connection, .. } = session;
    let driver = tokio::spawn(connection);
    let row = client.query_one(statement, &[]).await.unwrap();
    let answer = row.get(0);
    drop(client);
    driver.await.unwrap().unwrap();
    answer
}

/// An address that accepts and never says a word.
pub async fn silent() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

#[tokio::test]
async fn a_server_that_accepts_and_says_nothing_ends_at_the_deadline() {
    let (_listener, port) = silent().await;
    let begun = Instant::now();
    let error = connect(&format!("host=127.0.0.1 port={port} user=u"), Duration::from_millis(300))
        .await
        .unwrap_err();
    let took = begun.elapsed();
    assert!(matches!(error, ConnectError::Deadline { .. }) && error.is_unreachable(), "{error}");
    assert!(took >= Duration::from_millis(290) && took < Duration::from_secs(2), "{took:?}");
    let ConnectError::Deadline { waited, .. } = error else { unreachable!("just seen") };
    // What timers add would make every attempt of an outage a new text.
    assert_eq!(waited, Duration::from_millis(300));
}

#[tokio::test]
async fn a_silent_first_server_does_not_hold_up_the_second() {
    let (_listener, silent) = silent().await;
    let cluster = shared_cluster().await;
    let dsn = format!("host=127.0.0.1,127.0.0.1 port={silent},{} user=postgres", cluster.port());
    let begun = Instant::now();
    let session = connect(&dsn, LONG).await.unwrap();
    assert_eq!(session.host.port, cluster.port());
    // An equal share of the time would be the half.
    assert!(begun.elapsed() < LONG / 4, "{:?}", begun.elapsed());
}

/// A server that refuses every session with this SQLSTATE.
async fn refusing(sqlstate: &'static str) -> u16 {
    let (listener, port) = silent().await;
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.read(&mut [0; 512]).await;
            let fields = format!("SFATAL\0C{sqlstate}\0Mno\0\0");
            let length = u32::try_from(fields.len() + 4).unwrap();
            let told = [b"E", &length.to_be_bytes()[..], fields.as_bytes()].concat();
            let _ = stream.write_all(&told).await;
        }
    });
    port
}

/// The shared cluster, far away: a session takes four of these delays, and its first word two.
async fn far_away(delay: Duration) -> (Proxy, u16) {
    let cluster = shared_cluster().await;
    let proxy = Proxy::start(([127, 0, 0, 1], cluster.port()).into()).await.unwrap();
    proxy.delay(delay);
    let port = proxy.addr().port();
    (proxy, port)
}

/// A DSN of the servers at these ports, without TLS.
fn at<const N: usize>(ports: [u16; N]) -> String {
    let ports = ports.map(|port| port.to_string()).join(",");
    let hosts = ["127.0.0.1"; N].join(",");
    format!("host={hosts} port={ports} user=postgres sslmode=disable target_session_attrs=primary")
}

async fn connect_passing_over_the_first(dsn: &str, deadline: Duration) -> u16 {
    let dsn = Dsn::parse_with(dsn, &NoEnv).unwrap_or_else(|error| panic!("{error}"));
    let connector = Connector::new(&dsn, TlsOptions::new()).unwrap();
    connector.pass_over(&dsn.hosts()[0]);
    connector.connect("tenure test", deadline).await.unwrap().host.port
}

#[tokio::test]
async fn a_server_that_was_passed_over_does_not_win_because_it_is_near() {
    let near = shared_cluster().await.port();
    let (_proxy, far) = far_away(Duration::from_millis(500)).await;
    assert_eq!(connect_passing_over_the_first(&at([near, far]), LONG).await, far);
}

#[tokio::test]
async fn a_server_that_was_passed_over_is_taken_when_the_others_fail_or_say_nothing() {
    let (_listener, silent) = silent().await;
    let port = shared_cluster().await.port();
    assert_eq!(connect_passing_over_the_first(&at([port, 1]), LONG).await, port);
    let deadline = Duration::from_secs(6);
    assert_eq!(connect_passing_over_the_first(&at([port, silent, 1]), deadline).await, port);
}

#[tokio::test]
async fn a_login_that_the_second_server_refuses_does_not_break_off_the_first() {
    let (_listener, silent) = silent().await;
    let (_proxy, far) = far_away(Duration::from_millis(200)).await;
    let refusing = refusing("28000").await;
    let session = connect(&at([far, refusing]), LONG).await.unwrap();
    assert_eq!(session.host.port, far);
    for first in [1, silent] {
        let error = connect(&at([first, refusing, far]), Duration::from_secs(2)).await.unwrap_err();
        assert!(error.is_auth(), "{error}");
    }
}

#[tokio::test]
async fn the_only_server_that_is_left_has_the_rest_of_the_time() {
    // A third of the time is less than its first word takes.
    let (_proxy, far) = far_away(Duration::from_millis(800)).await;
    let session = connect(&at([1, 2, far]), Duration::from_millis(4500)).await.unwrap();
    assert_eq!(session.host.port, far);
}

#[tokio::test]
async fn a_server_that_talks_has_the_rest_of_the_time() {
    // A third of the time is enough for its first word alone.
    let (_proxy, far) = far_away(Duration::from_millis(500)).await;
    let starting = refusing("57P03").await;
    let session = connect(&at([starting, starting, far]), Duration::from_secs(4)).await.unwrap();
    assert_eq!(session.host.port, far);
}

#[tokio::test]
async fn a_silent_server_does_not_keep_an_attempt_from_its_end_when_another_one_may_be_promoted() {
    let (_listener, silent) = silent().await;
    let starting = refusing("57P03").await;
    for ports in [[silent, starting], [starting, silent]] {
        let begun = Instant::now();
        let error = connect(&at(ports), Duration::from_secs(6)).await.unwrap_err();
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
        assert!(error.to_string().contains("did not answer within 3s"), "{error}");
    }
}

#[tokio::test]
async fn connect_timeout_bounds_each_server() {
    let (_listener, silent) = silent().await;
    let dsn = format!("host=127.0.0.1 port={silent} user=u connect_timeout=1");
    let begun = Instant::now();
    let error = connect(&dsn, LONG).await.unwrap_err();
    assert!(error.is_unreachable() && begun.elapsed() < LONG / 2, "{error}");
}

#[tokio::test]
async fn an_unknown_host_and_a_closed_port_are_unreachable() {
    for dsn in ["host=no-such-host.invalid user=u", "host=127.0.0.1 port=1 user=u"] {
        let error = connect(dsn, LONG).await.unwrap_err();
        assert!(matches!(error, ConnectError::Unreachable { .. }), "{dsn}: {error}");
        assert!(error.to_string().contains("check that the server runs"), "{error}");
    }
    let error = connect("host=/no/such/folder user=u", LONG).await.unwrap_err();
    assert!(error.is_unreachable() && error.to_string().contains("/no/such/folder"), "{error}");
}

#[tokio::test]
async fn something_that_is_not_postgresql_is_told_apart() {
    let (listener, port) = silent().await;
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ =
                tokio::io::AsyncWriteExt::write_all(&mut stream, b"HTTP/1.1 400 Bad\r\n\r\n").await;
        }
    });
    let dsn = format!("host=127.0.0.1 port={port} user=u sslmode=disable");
    let error = connect(&dsn, Duration::from_secs(5)).await.unwrap_err();
    assert!(error.is_unreachable() && !error.is_auth(), "{error:?}");
}

#[tokio::test]
async fn of_several_failures_each_is_told() {
    let error = connect("host=127.0.0.1,127.0.0.2 port=1,2 user=u", LONG).await.unwrap_err();
    let text = error.to_string();
    assert!(text.contains("127.0.0.1:1") && text.contains("127.0.0.2:2"), "{text}");
    assert!(error.is_unreachable());
}

#[tokio::test]
async fn target_session_attrs_finds_the_right_server() {
    let primary = Cluster::start().await.unwrap();
    let standby = primary.replica(ReplicaOptions::default()).await.unwrap();
    let (p, s) = (primary.port(), standby.port());
    for (order, target, expected) in [
        ([s, p], "primary", p),
        ([s, p], "read-write", p),
        ([p, s], "standby", s),
        ([p, s], "read-only", s),
        ([p, s], "prefer-standby", s),
        ([s, p], "any", s),
        ([p, s], "any", p),
    ] {
        let dsn = format!(
            "host=127.0.0.1,127.0.0.1 port={},{} user=postgres target_session_attrs={target}",
            order[0], order[1]
        );
        let session = connect(&dsn, LONG).await.unwrap_or_else(|error| panic!("{target}: {error}"));
        assert_eq!(session.host.port, expected, "{target} of {order:?}");
    }
    // Without a word about it, an election looks for the primary.
    let dsn = format!("host=127.0.0.1,127.0.0.1 port={s},{p} user=postgres");
    assert_eq!(connect(&dsn, LONG).await.unwrap().host.port, p);

    let alone = format!("host=127.0.0.1 port={s} user=postgres target_session_attrs=primary");
    let error = connect(&alone, LONG).await.unwrap_err();
    assert!(matches!(error, ConnectError::Target { .. }), "{error}");
    assert!(!error.is_unreachable() && !error.is_auth());
    let fallback =
        format!("host=127.0.0.1 port={p} user=postgres target_session_attrs=prefer-standby");
    assert_eq!(connect(&fallback, LONG).await.unwrap().host.port, p);
}

#[tokio::test]
async fn a_database_that_does_not_exist_is_the_servers_own_word() {
    let cluster = shared_cluster().await;
    let error = connect(&cluster.dsn_for("absent", "postgres"), LONG).await.unwrap_err();
    assert_eq!(error.sqlstate().map(|code| code.code()), Some("3D000"));
    assert!(error.to_string().contains("absent"), "{error}");
    assert!(error.to_string().contains("create the database"), "{error}");
}

#[tokio::test]
async fn the_session_is_named_after_the_dsn_and_the_caller() {
    let cluster = shared_cluster().await;
    let statement = "SELECT current_setting('application_name')";
    let session = connect(&cluster.dsn(), LONG).await.unwrap();
    assert_eq!(ask(session, statement).await, "tenure test");
    let dsn = format!("{} application_name=billing", cluster.dsn());
    let session = connect(&dsn, LONG).await.unwrap();
    assert_eq!(ask(session, statement).await, "billing tenure test");
}

#[tokio::test]
async fn options_reach_the_server() {
    let cluster = shared_cluster().await;
    let dsn = format!("{} options='-c statement_timeout=4321'", cluster.dsn());
    let session = connect(&dsn, LONG).await.unwrap();
    assert_eq!(ask(session, "SELECT current_setting('statement_timeout')").await, "4321ms");
}
