//! Every `sslmode` against a real server with an authority of its own.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use tenure_connect::dsn::{Dsn, NoEnv};
use tenure_connect::tls::{TlsError, TlsOptions};
use tenure_connect::{ConnectError, Connector, Session};
use tenure_testkit::{Ca, Cluster, ClusterOptions, shared_cluster};
use tokio::sync::OnceCell;

use crate::env;
use crate::servers::ask;

const LONG: Duration = Duration::from_secs(20);
const IS_TLS: &str = "SELECT ssl::text FROM pg_stat_ssl WHERE pid = pg_backend_pid()";

struct Fixture {
    ca: Ca,
    /// Another authority, which signed nothing here.
    stranger: Ca,
    /// Its certificate names localhost and 127.0.0.1.
    cluster: Cluster,
    /// Its certificate names db.example.
    elsewhere: Cluster,
}

async fn fixture() -> &'static Fixture {
    static FIXTURE: OnceCell<Fixture> = OnceCell::const_new();
    FIXTURE
        .get_or_init(|| async {
            let (ca, stranger) = (Ca::new().unwrap(), Ca::new().unwrap());
            let start = |cert| {
                Cluster::start_with(ClusterOptions {
                    hba: Some(
                        "hostssl all certified all cert\n\
                         hostssl all leader all scram-sha-256\n\
                         hostssl all tlsonly all trust\n\
                         hostnossl all plainonly all trust\n\
                         host all postgres all trust"
                            .into(),
                    ),
                    tls: Some(cert),
                    ..ClusterOptions::default()
                })
            };
            let cluster = start(ca.localhost().unwrap()).await.unwrap();
            let elsewhere = start(ca.server(&["db.example"]).unwrap()).await.unwrap();
            cluster
                .sql(
                    "CREATE ROLE certified LOGIN; CREATE ROLE tlsonly LOGIN; \
                     CREATE ROLE plainonly LOGIN; CREATE ROLE leader LOGIN PASSWORD 'secret'",
                )
                .await
                .unwrap();
            Fixture { ca, stranger, cluster, elsewhere }
        })
        .await
}

async fn connect_with(dsn: &str, options: TlsOptions) -> Result<Session, ConnectError> {
    let dsn = Dsn::parse_with(dsn, &NoEnv).unwrap_or_else(|error| panic!("{error}"));
    Connector::new(&dsn, options)?.connect("tenure test", LONG).await
}

async fn connect(dsn: &str) -> Result<Session, ConnectError> {
    connect_with(dsn, TlsOptions::new()).await
}

/// Whether the session of a DSN that must work is encrypted.
async fn encrypted(dsn: &str) -> bool {
    let session = connect(dsn).await.unwrap_or_else(|error| panic!("{dsn}: {error}"));
    ask(session, IS_TLS).await == "true"
}

fn failed_check(result: Result<Session, ConnectError>) -> &'static str {
    match result.expect_err("the certificate must be refused") {
        error @ ConnectError::Certificate { check, .. } => {
            assert!(error.is_tls() && !error.is_auth() && !error.is_unreachable());
            check
        }
        other => panic!("{other}"),
    }
}

fn dsn(cluster: &Cluster, user: &str, rest: &str) -> String {
    format!("{} {rest}", cluster.dsn_for("postgres", user))
}

#[tokio::test]
async fn disable_uses_no_tls() {
    let f = fixture().await;
    assert!(!encrypted(&dsn(&f.cluster, "postgres", "sslmode=disable")).await);
}

#[tokio::test]
async fn allow_uses_tls_only_where_the_server_insists() {
    let f = fixture().await;
    assert!(!encrypted(&dsn(&f.cluster, "postgres", "sslmode=allow")).await);
    assert!(encrypted(&dsn(&f.cluster, "tlsonly", "sslmode=allow")).await);
}

#[tokio::test]
async fn prefer_uses_tls_where_it_can() {
    let f = fixture().await;
    assert!(encrypted(&dsn(&f.cluster, "postgres", "sslmode=prefer")).await);
    assert!(!encrypted(&dsn(&f.cluster, "plainonly", "sslmode=prefer")).await);
    let without = shared_cluster().await;
    assert!(!encrypted(&dsn(without, "postgres", "sslmode=prefer")).await);
}

#[tokio::test]
async fn require_encrypts_and_verifies_nothing_by_itself() {
    let f = fixture().await;
    assert!(encrypted(&dsn(&f.elsewhere, "postgres", "sslmode=require")).await);
}

#[tokio::test]
async fn require_fails_where_the_server_has_no_tls() {
    let error =
        connect(&dsn(shared_cluster().await, "postgres", "sslmode=require")).await.unwrap_err();
    assert!(matches!(error, ConnectError::NoTls { .. }) && error.is_tls(), "{error}");
    assert!(error.to_string().contains("sslmode=require"), "{error}");
}

#[tokio::test]
async fn require_with_root_certificates_verifies_the_chain_as_libpq_does() {
    let f = fixture().await;
    let wrong = format!("sslmode=require sslrootcert={}", f.stranger.file().display());
    assert_eq!(failed_check(connect(&dsn(&f.cluster, "postgres", &wrong)).await), "chain");
    let right = format!("sslmode=require sslrootcert={}", f.ca.file().display());
    assert!(encrypted(&dsn(&f.elsewhere, "postgres", &right)).await);
}

#[tokio::test]
async fn verify_ca_takes_any_host_of_the_authority() {
    let f = fixture().await;
    let right = format!("sslmode=verify-ca sslrootcert={}", f.ca.file().display());
    assert!(encrypted(&dsn(&f.elsewhere, "postgres", &right)).await);
    let wrong = format!("sslmode=verify-ca sslrootcert={}", f.stranger.file().display());
    assert_eq!(failed_check(connect(&dsn(&f.elsewhere, "postgres", &wrong)).await), "chain");
}

#[tokio::test]
async fn verify_full_refuses_a_certificate_for_another_host() {
    let f = fixture().await;
    let rest = format!("sslmode=verify-full sslrootcert={}", f.ca.file().display());
    assert!(encrypted(&dsn(&f.cluster, "postgres", &rest)).await);
    assert_eq!(failed_check(connect(&dsn(&f.elsewhere, "postgres", &rest)).await), "host name");
    let error = connect(&dsn(&f.elsewhere, "postgres", &rest)).await.unwrap_err().to_string();
    assert!(error.contains("db.example") && error.contains("verify-ca"), "{error}");
    // By the right name, wherever it is.
    let named = format!(
        "host=db.example hostaddr=127.0.0.1 port={} user=postgres dbname=postgres {rest}",
        f.elsewhere.port()
    );
    assert!(encrypted(&named).await);
}

#[tokio::test]
async fn a_name_with_several_addresses_is_tried_at_each() {
    let f = fixture().await;
    let rest = format!("sslmode=verify-full sslrootcert={}", f.ca.file().display());
    let by_name =
        format!("host=localhost port={} user=postgres dbname=postgres {rest}", f.cluster.port());
    assert!(encrypted(&by_name).await);
}

#[tokio::test]
async fn without_sslmode_loopback_is_not_verified_and_every_other_host_is() {
    let f = fixture().await;
    assert!(encrypted(&dsn(&f.elsewhere, "postgres", "")).await);
    assert!(!encrypted(&dsn(shared_cluster().await, "postgres", "")).await);
    // A name that is not this machine's, although its address is.
    let remote = |port| {
        format!("host=db.example hostaddr=127.0.0.1 port={port} user=postgres dbname=postgres")
    };
    let error = connect(&remote(shared_cluster().await.port())).await.unwrap_err();
    assert!(matches!(error, ConnectError::NoTls { mode: "verify-full", .. }), "{error}");
    assert_eq!(failed_check(connect(&remote(f.elsewhere.port())).await), "chain");
    let trusted = TlsOptions::new().ca_file(f.ca.file());
    connect_with(&remote(f.elsewhere.port()), trusted).await.unwrap();
}

#[tokio::test]
async fn the_systems_store_does_not_know_our_authority() {
    let f = fixture().await;
    for rest in
        ["sslmode=verify-full", "sslmode=verify-full sslrootcert=system", "sslmode=verify-ca"]
    {
        assert_eq!(
            failed_check(connect(&dsn(&f.cluster, "postgres", rest)).await),
            "chain",
            "{rest}"
        );
    }
}

#[tokio::test]
async fn sh_db_tls_insecure_encrypts_without_verifying() {
    let f = fixture().await;
    let options = TlsOptions::from_env(&env([("SH_DB_TLS_INSECURE", "true")])).unwrap();
    let strict = format!("sslmode=verify-full sslrootcert={}", f.stranger.file().display());
    let session = connect_with(&dsn(&f.elsewhere, "postgres", &strict), options).await.unwrap();
    assert_eq!(ask(session, IS_TLS).await, "true");
    assert!(matches!(
        TlsOptions::from_env(&env([("SH_DB_TLS_INSECURE", "ture")])),
        Err(TlsError::Switch)
    ));
}

#[tokio::test]
async fn sh_db_tls_ca_file_is_trusted_and_sslrootcert_overrules_it() {
    let f = fixture().await;
    let file = |ca: &Ca| ca.file().to_str().unwrap().to_owned();
    let options = |ca: &Ca| TlsOptions::from_env(&env([("SH_DB_TLS_CA_FILE", &file(ca))])).unwrap();
    let full = dsn(&f.cluster, "postgres", "sslmode=verify-full");
    connect_with(&full, options(&f.ca)).await.unwrap();
    assert_eq!(failed_check(connect_with(&full, options(&f.stranger)).await), "chain");
    let own = format!("{full} sslrootcert={}", file(&f.ca));
    connect_with(&own, options(&f.stranger)).await.unwrap();
}

#[tokio::test]
async fn a_client_certificate_logs_in() {
    let f = fixture().await;
    let files = f.ca.client("certified").unwrap();
    let rest = |cert: &Path, key: &Path| {
        format!(
            "sslmode=verify-full sslrootcert={} sslcert={} sslkey={}",
            f.ca.file().display(),
            cert.display(),
            key.display()
        )
    };
    let good = dsn(&f.cluster, "certified", &rest(&files.cert, &files.key));
    let session = connect(&good).await.unwrap();
    assert_eq!(ask(session, "SELECT current_user::text").await, "certified");

    // None at all, and one of a stranger.
    let bare = format!("sslmode=verify-full sslrootcert={}", f.ca.file().display());
    let error = connect(&dsn(&f.cluster, "certified", &bare)).await.unwrap_err();
    assert!(error.is_auth(), "{error}");
    let forged = f.stranger.client("certified").unwrap();
    let error =
        connect(&dsn(&f.cluster, "certified", &rest(&forged.cert, &forged.key))).await.unwrap_err();
    assert!(error.is_tls(), "{error:?}");

    // A key of another certificate, and one that others may read.
    let other = f.ca.client("postgres").unwrap();
    let error = connect(&dsn(&f.cluster, "certified", &rest(&files.cert, &other.key))).await;
    assert!(matches!(error.unwrap_err(), ConnectError::Tls(TlsError::KeyPair { .. })));
    let folder = tempfile::tempdir().unwrap();
    let open = folder.path().join("open.key");
    fs::copy(&files.key, &open).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o644)).unwrap();
    let error =
        connect(&dsn(&f.cluster, "certified", &rest(&files.cert, &open))).await.unwrap_err();
    assert!(matches!(error, ConnectError::Tls(TlsError::KeyPermissions { .. })), "{error}");
    assert!(error.to_string().contains("0600"), "{error}");
}

#[tokio::test]
async fn channel_binding_require_works_over_tls() {
    let f = fixture().await;
    let rest = "password=secret sslmode=require channel_binding=require";
    let session = connect(&dsn(&f.cluster, "leader", rest)).await.unwrap();
    assert_eq!(ask(session, IS_TLS).await, "true");
    // A login that is not SCRAM has nothing to bind.
    let error = connect(&dsn(&f.cluster, "tlsonly", rest)).await.unwrap_err();
    assert!(matches!(error, ConnectError::ChannelBinding { .. }), "{error}");
}

#[tokio::test]
async fn scram_over_tls_refuses_the_wrong_password() {
    let f = fixture().await;
    let error =
        connect(&dsn(&f.cluster, "leader", "password=wrong sslmode=require")).await.unwrap_err();
    assert_eq!(error.sqlstate().map(|code| code.code()), Some("28P01"));
    assert!(error.is_auth() && !error.is_tls());
}

#[tokio::test]
async fn a_rotated_root_file_is_read_by_the_next_connection() {
    let f = fixture().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("root.crt");
    fs::copy(f.stranger.file(), &file).unwrap();
    let text =
        dsn(&f.cluster, "postgres", &format!("sslmode=verify-full sslrootcert={}", file.display()));
    let parsed = Dsn::parse_with(&text, &NoEnv).unwrap();
    let connector = Connector::new(&parsed, TlsOptions::new()).unwrap();
    assert_eq!(failed_check(connector.connect("tenure test", LONG).await), "chain");
    fs::copy(f.ca.file(), &file).unwrap();
    connector.connect("tenure test", LONG).await.unwrap();
}

#[test]
fn a_root_file_that_cannot_be_used_is_refused_before_any_connection() {
    let folder = tempfile::tempdir().unwrap();
    let empty = folder.path().join("empty.pem");
    fs::write(&empty, "not a certificate").unwrap();
    for path in [empty.as_path(), Path::new("/no/such/file.pem")] {
        let text = format!("host=db.example user=u sslrootcert={}", path.display());
        let parsed = Dsn::parse_with(&text, &NoEnv).unwrap();
        let error = Connector::new(&parsed, TlsOptions::new()).unwrap_err();
        assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
    }
}

#[tokio::test]
async fn direct_negotiation_works_from_postgresql_17_on() {
    let f = fixture().await;
    let rest = "sslmode=require sslnegotiation=direct";
    let result = connect(&dsn(&f.cluster, "postgres", rest)).await;
    if f.cluster.version() >= 17 {
        assert_eq!(ask(result.unwrap(), IS_TLS).await, "true");
    } else {
        let error = result.unwrap_err();
        assert!(error.is_unreachable() || error.is_tls(), "{error:?}");
    }
}

/// Has a running server present a self-signed certificate, made as PostgreSQL's manual does it,
/// and returns the certificate's file.
async fn self_signed(cluster: &Cluster, not_after: i32) -> std::path::PathBuf {
    let mut params = rcgen::CertificateParams::new(vec!["db.example".to_owned()]).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    params.not_before = rcgen::date_time_ymd(2020, 1, 1);
    params.not_after = rcgen::date_time_ymd(not_after, 1, 1);
    let key = rcgen::KeyPair::generate().unwrap();
    let cert = params.self_signed(&key).unwrap().pem();
    let data = cluster.data_dir();
    let owner = fs::metadata(data).unwrap();
    for (name, text) in [("self.crt", &cert), ("self.key", &key.serialize_pem())] {
        let path = data.join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        std::os::unix::fs::chown(&path, Some(owner.uid()), Some(owner.gid())).unwrap();
    }
    cluster
        .set(&[("ssl", "on"), ("ssl_cert_file", "self.crt"), ("ssl_key_file", "self.key")])
        .await
        .unwrap();
    cluster.restart().await.unwrap();
    data.join("self.crt")
}

#[tokio::test]
async fn a_self_signed_certificate_is_trusted_where_it_is_named_itself() {
    let cluster = Cluster::start().await.unwrap();
    let file = self_signed(&cluster, 4000).await;
    let by_name = |host: &str, rest: &str| {
        format!(
            "host={host} hostaddr=127.0.0.1 port={} user=postgres dbname=postgres {rest}",
            cluster.port()
        )
    };
    let full = format!("sslmode=verify-full sslrootcert={}", file.display());
    assert!(encrypted(&by_name("db.example", &full)).await);
    assert_eq!(failed_check(connect(&by_name("db.other", &full)).await), "host name");
    // Not named, it is an authority's certificate in a server's place.
    let other = Ca::new().unwrap();
    let wrong = format!("sslmode=verify-full sslrootcert={}", other.file().display());
    let error = connect(&by_name("db.example", &wrong)).await.unwrap_err();
    assert!(matches!(error, ConnectError::Certificate { .. }), "{error}");

    let expired = self_signed(&cluster, 2021).await;
    let full = format!("sslmode=verify-full sslrootcert={}", expired.display());
    assert_eq!(failed_check(connect(&by_name("db.example", &full)).await), "validity period");
}
