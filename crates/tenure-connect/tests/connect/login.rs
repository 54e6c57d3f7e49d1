//! Logging in: SCRAM, password files, and what a refusal says.

use std::time::Duration;

use tenure_connect::dsn::{Dsn, Env};
use tenure_connect::tls::TlsOptions;
use tenure_connect::{ConnectError, Connector, Session};
use tenure_testkit::{Cluster, ClusterOptions};
use tokio::sync::OnceCell;

use crate::dsn::passfile;
use crate::{env, servers};

const LONG: Duration = Duration::from_secs(20);

/// A server that lets `leader` in by SCRAM only.
async fn scram() -> &'static Cluster {
    static CLUSTER: OnceCell<Cluster> = OnceCell::const_new();
    CLUSTER
        .get_or_init(|| async {
            let options = ClusterOptions {
                hba: Some("host all all all scram-sha-256".into()),
                ..ClusterOptions::default()
            };
            let cluster = Cluster::start_with(options).await.unwrap();
            cluster.sql("CREATE ROLE leader LOGIN PASSWORD 'right horse'").await.unwrap();
            cluster
        })
        .await
}

async fn connect(dsn: &str, env: &dyn Env) -> Result<Session, ConnectError> {
    let dsn = Dsn::parse_with(dsn, env).unwrap_or_else(|error| panic!("{error}"));
    Connector::new(&dsn, TlsOptions::new())?.connect("tenure test", LONG).await
}

#[tokio::test]
async fn scram_takes_the_right_password_and_refuses_the_wrong_one() {
    let cluster = scram().await;
    let dsn = cluster.dsn_for("postgres", "leader");
    let session = connect(&format!("{dsn} password='right horse'"), &env([])).await.unwrap();
    assert_eq!(servers::ask(session, "SELECT current_user::text").await, "leader");

    let error = connect(&format!("{dsn} password='wrong horse'"), &env([])).await.unwrap_err();
    assert!(error.is_auth() && !error.is_unreachable() && !error.is_tls(), "{error}");
    assert_eq!(error.sqlstate().map(|code| code.code()), Some("28P01"));
    let text = format!("{error} {error:?}");
    assert!(text.contains("leader") && text.contains("pg_hba.conf"), "{text}");
    assert!(!text.contains("wrong horse"), "{text}");
}

#[tokio::test]
async fn a_missing_password_says_where_to_put_one() {
    let dsn = scram().await.dsn_for("postgres", "leader");
    let error = connect(&dsn, &env([])).await.unwrap_err();
    assert!(matches!(error, ConnectError::NoPassword { .. }) && error.is_auth(), "{error}");
    assert!(error.to_string().contains("PGPASSWORD"), "{error}");
}

#[tokio::test]
async fn a_refused_login_is_not_tried_on_the_next_server() {
    let port = scram().await.port();
    let dsn =
        format!("host=127.0.0.1,127.0.0.1 port={port} user=leader dbname=postgres password=x");
    let error = connect(&dsn, &env([])).await.unwrap_err();
    assert!(matches!(error, ConnectError::Auth { .. }), "{error}");
}

#[tokio::test]
async fn pgpassword_and_a_private_password_file_are_used() {
    let cluster = scram().await;
    let dsn = cluster.dsn_for("postgres", "leader");
    connect(&dsn, &env([("PGPASSWORD", "right horse")])).await.unwrap();

    let folder = tempfile::tempdir().unwrap();
    let line = format!("127.0.0.1:{}:*:leader:right horse\n", cluster.port());
    let path = passfile(folder.path(), &line, 0o600);
    connect(&dsn, &env([("PGPASSFILE", &path)])).await.unwrap();
    connect(&format!("{dsn} passfile={path}"), &env([])).await.unwrap();

    std::fs::copy(&path, folder.path().join(".pgpass")).unwrap();
    connect(&dsn, &env([("HOME", folder.path().to_str().unwrap())])).await.unwrap();
}

#[tokio::test]
async fn a_password_file_that_others_may_read_is_ignored() {
    let cluster = scram().await;
    let folder = tempfile::tempdir().unwrap();
    let path = passfile(folder.path(), "*:*:*:*:right horse\n", 0o640);
    let dsn = format!("{} passfile={path}", cluster.dsn_for("postgres", "leader"));
    let error = connect(&dsn, &env([])).await.unwrap_err();
    assert!(matches!(error, ConnectError::NoPassword { .. }), "{error}");
}

#[tokio::test]
async fn a_rotated_password_file_is_read_by_the_next_connection() {
    let cluster = scram().await;
    let folder = tempfile::tempdir().unwrap();
    let path = passfile(folder.path(), "*:*:*:*:stale horse\n", 0o600);
    let text = format!("{} passfile={path}", cluster.dsn_for("postgres", "leader"));
    let dsn = Dsn::parse_with(&text, &env([])).unwrap();
    let connector = Connector::new(&dsn, TlsOptions::new()).unwrap();
    assert!(connector.connect("tenure test", LONG).await.unwrap_err().is_auth());
    passfile(folder.path(), "*:*:*:*:right horse\n", 0o600);
    connector.connect("tenure test", LONG).await.unwrap();
}

#[tokio::test]
async fn channel_binding_require_fails_without_tls() {
    let dsn = scram().await.dsn_for("postgres", "leader");
    for mode in ["disable", "prefer"] {
        let dsn = format!("{dsn} password='right horse' channel_binding=require sslmode={mode}");
        let error = connect(&dsn, &env([])).await.unwrap_err();
        assert!(matches!(error, ConnectError::ChannelBinding { .. }), "{mode}: {error:?}");
        assert!(error.is_tls());
    }
}
