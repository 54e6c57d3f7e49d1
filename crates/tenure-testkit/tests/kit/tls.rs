//! The certificate authority, judged by PostgreSQL's own client.

use std::process::Output;

use tenure_testkit::{Ca, Cluster, ClusterOptions};
use tokio::process::Command;

async fn psql(dsn: &str) -> Output {
    let mut command = Command::new("psql");
    command.args([
        "-X",
        "-A",
        "-t",
        "-c",
        "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()",
    ]);
    command.arg(dsn).output().await.expect("psql runs")
}

#[tokio::test]
async fn a_client_that_verifies_accepts_our_authority_and_no_other() {
    let ca = Ca::new().expect("authority");
    let options = ClusterOptions { tls: Some(ca.localhost().expect("cert")), ..Default::default() };
    let cluster = Cluster::start_with(options).await.expect("start");
    let verify = |ca: &Ca| {
        format!("{} sslmode=verify-full sslrootcert={}", cluster.dsn(), ca.file().display())
    };
    let output = psql(&verify(&ca)).await;
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "t", "{output:?}");
    let stranger = Ca::new().expect("another authority");
    assert!(!psql(&verify(&stranger)).await.status.success());
}

#[tokio::test]
async fn a_certificate_for_another_host_is_refused_by_verify_full_alone() {
    let ca = Ca::new().expect("authority");
    let wrong = ca.server(&["elsewhere.example"]).expect("cert");
    let options = ClusterOptions { tls: Some(wrong), ..Default::default() };
    let cluster = Cluster::start_with(options).await.expect("start");
    let mode =
        |mode| format!("{} sslmode={mode} sslrootcert={}", cluster.dsn(), ca.file().display());
    assert!(psql(&mode("verify-ca")).await.status.success());
    let output = psql(&mode("verify-full")).await;
    assert!(String::from_utf8_lossy(&output.stderr).contains("elsewhere.example"), "{output:?}");
}

#[tokio::test]
async fn a_client_certificate_lets_its_user_in() {
    let ca = Ca::new().expect("authority");
    let options = ClusterOptions {
        tls: Some(ca.localhost().expect("cert")),
        hba: Some("hostssl all all all cert".into()),
        ..Default::default()
    };
    let cluster = Cluster::start_with(options).await.expect("start");
    let files = ca.client("postgres").expect("client cert");
    let base = format!("{} sslmode=verify-full sslrootcert={}", cluster.dsn(), ca.file().display());
    let with = format!("{base} sslcert={} sslkey={}", files.cert.display(), files.key.display());
    let output = psql(&with).await;
    assert!(output.status.success(), "{output:?}");
    assert!(!psql(&base).await.status.success(), "without a certificate");
}
