//! `tenure run --metrics`: what Prometheus and a supervisor read.

use tenure_testkit::{Child, Cluster, Signal, Stop};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::kit::{SOON, deaf_to, event, member, until};

/// The status line and the body.
async fn get(address: &str, path: &str) -> (String, String) {
    let talk = async {
        let mut stream = TcpStream::connect(address).await?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        std::io::Result::Ok(answer)
    };
    let answer = timeout(SOON, talk).await.expect("in time").expect("answered");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    (head.lines().next().unwrap_or_default().to_owned(), body.to_owned())
}

async fn address_of(child: &mut Child) -> String {
    let event = event(child, "metrics").await;
    let url = event["reason"].as_str().expect("an address").to_owned();
    url.trim_start_matches("http://").trim_end_matches("/metrics").to_owned()
}

#[tokio::test]
async fn the_probes_tell_leadership_readiness_and_life_apart_and_no_secret() {
    let cluster = Cluster::start().await.expect("a server");
    let dsn = format!("{} password=hunter2", cluster.dsn());
    let mut child = member(&["--role", "a/b", "--dsn", &dsn, "--http", "0"]);
    let address = address_of(&mut child).await;
    event(&mut child, "acquired").await;
    let status = async |path: &str| -> u16 {
        let (line, body) = get(&address, path).await;
        assert!(!body.contains("hunter2"), "{path}: {body}");
        line.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status")
    };
    for (path, expected) in [
        ("/leader/a/b", 200),
        ("/leader/other", 404),
        ("/healthz", 200),
        ("/readyz", 200),
        ("/metrics", 200),
    ] {
        assert_eq!(status(path).await, expected, "{path}");
    }
    cluster.stop(Stop::Immediate).await.expect("it stops");
    until("the end of its readiness", async || status("/readyz").await == 503).await;
    until("the end of its lease", async || status("/leader/a/b").await == 503).await;
    assert_eq!(status("/healthz").await, 200, "a restart would not help");
    assert_eq!(status("/leader/other").await, 404);
    child.signal(Signal::TERM);
    child.wait(SOON).await.expect("it ends");
}

#[tokio::test]
async fn a_member_serves_its_metrics_and_its_health() {
    let cluster = Cluster::start().await.expect("a server");
    let mut child = member(&["--role", "r", "--dsn", &cluster.dsn(), "--metrics", "0"]);
    let address = address_of(&mut child).await;
    assert!(address.starts_with("127.0.0.1:"), "a port alone is this machine's: {address}");
    event(&mut child, "acquired").await;
    let (status, page) = get(&address, "/metrics").await;
    assert_eq!(status, "HTTP/1.1 200 OK");
    assert!(page.contains("\ntenure_acquired_total{role=\"r\"} 1\n"), "{page}");
    let (status, health) = get(&address, "/health").await;
    assert_eq!(status, "HTTP/1.1 200 OK", "{health}");
    let health: serde_json::Value = serde_json::from_str(&health).expect("JSON");
    assert_eq!(
        (&health["connected"], &health["roles"][0]["is_leader"]),
        (&true.into(), &true.into())
    );
    assert_eq!(get(&address, "/nothing").await.0, "HTTP/1.1 404 Not Found");
    cluster.stop(Stop::Immediate).await.expect("it stops");
    until("a health of 503", async || {
        get(&address, "/health").await.0 == "HTTP/1.1 503 Service Unavailable"
    })
    .await;
    child.signal(Signal::TERM);
    child.wait(SOON).await.expect("it ends");
}

#[tokio::test]
async fn clients_that_hang_leave_room_for_others() {
    let database = crate::kit::database().await;
    let mut child = member(&["--role", "r", "--dsn", &database.dsn(), "--metrics", "0"]);
    let address = address_of(&mut child).await;
    let mut hanging = Vec::new();
    // More than are served at once; each says half a request and no more.
    for _ in 0..70 {
        let mut stream = TcpStream::connect(&address).await.expect("it listens");
        stream.write_all(b"GET /metrics HT").await.expect("written");
        hanging.push(stream);
    }
    let (status, _) = get(&address, "/metrics").await;
    assert_eq!(status, "HTTP/1.1 200 OK");
}

#[tokio::test]
async fn clients_that_do_not_read_leave_room_for_others() {
    let database = crate::kit::database().await;
    let mut child = member(&["--role", "r", "--dsn", &database.dsn(), "--http", "0"]);
    let address = address_of(&mut child).await;
    event(&mut child, "acquired").await;
    let answer = get(&address, "/metrics").await.1.len();
    let mut deaf = Vec::new();
    // As many as are served at once, each with more answers than its connection can hold.
    for _ in 0..64 {
        deaf.push(deaf_to(&address, "/metrics", (1 << 20) / answer).await);
    }
    let (status, _) = get(&address, "/healthz").await;
    assert_eq!(status, "HTTP/1.1 200 OK");
}

/// The names are contract, and the manual is where people look them up.
#[test]
fn the_manual_lists_every_metric() {
    let manual = include_str!("../../../../docs/metrics.md");
    let sources = [
        include_str!("../../../tenure/src/metrics.rs"),
        include_str!("../../../tenure-tx/src/metrics.rs"),
        include_str!("../../../tenure-gossip/src/metrics.rs"),
    ];
    let words = sources.iter().flat_map(|source| source.split('"'));
    let is_name = |word: &&str| {
        word.starts_with("tenure_") && word.chars().all(|c| c == '_' || c.is_ascii_lowercase())
    };
    let names: Vec<&str> = words.filter(is_name).collect();
    assert!(names.len() > 30, "{names:?}");
    for name in names {
        assert!(manual.contains(&format!("| `{name}` |")), "docs/metrics.md lacks {name}");
    }
}
