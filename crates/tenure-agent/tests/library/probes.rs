//! The router of probes, in a program of its own.

use std::sync::Arc;
use std::time::Duration;

use tenure::Member;
use tenure::config::{Config, RoleSpec};
use tenure_agent::probes::{Render, router};
use tenure_testkit::{shared_cluster, until};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

async fn status(address: std::net::SocketAddr, path: &str) -> u16 {
    let mut stream = tokio::net::TcpStream::connect(address).await.expect("it listens");
    let request = format!("GET {path} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("text");
    answer.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status")
}

#[tokio::test]
async fn a_program_serves_the_probes_of_its_member() {
    let database = shared_cluster().await.database().await.expect("a database");
    let config = Config::builder().dsn(database.dsn()).role(RoleSpec::named("r")).build();
    let member = Arc::new(Member::start(config.expect("valid")).await.expect("it starts"));
    let render: Render = Arc::new(|| "up 1\n".to_owned());
    let routes = router(Arc::downgrade(&member), Some(render));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move { axum::serve(listener, routes).await });
    member.start_all().await.expect("it takes part");
    until("leadership", async || status(address, "/leader/r").await == 200).await;
    for (path, expected) in
        [("/leader/other", 404), ("/healthz", 200), ("/readyz", 200), ("/metrics", 200)]
    {
        assert_eq!(status(address, path).await, expected, "{path}");
    }
    // A member that is being shut down is alive, neither ready nor leading.
    let member = Arc::into_inner(member).expect("no probe holds it");
    for (path, expected) in [("/leader/r", 503), ("/healthz", 200), ("/readyz", 503)] {
        assert_eq!(status(address, path).await, expected, "{path}");
    }
    member.shutdown(Some(Duration::from_secs(30))).await.expect("it leaves");
    // A process that hangs after that is for its supervisor to end.
    assert_eq!(status(address, "/healthz").await, 503);
}
