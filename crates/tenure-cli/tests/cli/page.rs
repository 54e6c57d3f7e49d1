//! `tenure serve`: the page's server and its API, as a browser and as a stranger meet them.

mod browser;
mod limits;
mod picture;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tenure_testkit::{Child, Cluster, ClusterOptions, Signal, Stop};
use tokio::io::{
    AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader,
};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::kit::{
    SOON, code, database, ends, event, member, program, refuses, stdout, until, waiting,
};

/// An answer: its status, its head, its body.
struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }
}

/// A served page.
struct Served {
    child: Child,
    address: String,
    folder: tempfile::TempDir,
}

/// The tokens of every page below.
const TOKENS: [(&str, &str, &str); 2] =
    [("grafana", "read", "see-everything"), ("deploy-bot", "order", "do-something")];

fn write_tokens(path: &Path) {
    let hex = |token: &str| hex::encode(Sha256::digest(token.as_bytes()));
    let lines = TOKENS.map(|(name, scope, token)| format!("{name} {scope} {}\n", hex(token)));
    std::fs::write(path, lines.concat()).expect("written");
}

impl Served {
    async fn new(dsn: &str, more: &[&str]) -> Self {
        Self::at("127.0.0.1:0", dsn, more).await
    }

    async fn at(listen: &str, dsn: &str, more: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let tokens = folder.path().join("tokens");
        write_tokens(&tokens);
        let mut command = tokio::process::Command::new(program());
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command
            .args(["serve", "--listen", listen, "--dsn", dsn, "--tokens"])
            .arg(tokens)
            .args(more);
        let mut child = Child::spawn(command).expect("it runs");
        let line = child
            .wait_line(|line| line.contains("the page is at"), SOON)
            .await
            .expect("an address");
        let address = line.split("listening on ").nth(1).or_else(|| line.split("://").nth(1));
        let address = address.expect("an address").trim_end_matches(['/', ')']).to_owned();
        Served { child, address, folder }
    }

    async fn ask(&self, method: &str, path: &str, head: &[&str], body: &str) -> Answer {
        let stream = TcpStream::connect(&self.address).await.expect("a connection");
        talk(stream, &self.address, method, path, head, body).await
    }

    async fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, &[], "").await
    }

    async fn order(&self, token: &str, order: &Value) -> Answer {
        let head =
            [&format!("Authorization: Bearer {token}")[..], "Content-Type: application/json"];
        self.ask("POST", "/api/v1/orders", &head, &order.to_string()).await
    }

    /// A browser that watches.
    async fn watch(&self) -> Stream {
        self.watch_with("").await
    }

    /// `head`: further lines, each with its end.
    async fn watch_with(&self, head: &str) -> Stream {
        let mut stream = TcpStream::connect(&self.address).await.expect("a connection");
        let host = if head.contains("Host:") {
            String::new()
        } else {
            format!("Host: {}\r\n", self.address)
        };
        let request = format!("GET /api/v1/events HTTP/1.1\r\n{host}{head}\r\n");
        stream.write_all(request.as_bytes()).await.expect("written");
        Stream(BufReader::new(stream))
    }

    /// The row of a role in the snapshot, by its columns.
    async fn role(&self, name: &str) -> Value {
        let whole = self.get("/api/v1/snapshot").await.json();
        let rows = whole["roles"].as_array().expect("rows").iter();
        let found = rows.into_iter().find(|row| row[0] == name).cloned().unwrap_or_default();
        json!({"state": found[1], "leader": found[2].as_u64().and_then(|n| whole["names"].get(n as usize).cloned())})
    }
}

async fn talk(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    host: &str,
    method: &str,
    path: &str,
    head: &[&str],
    body: &str,
) -> Answer {
    let has_host = head.iter().any(|line| line.to_ascii_lowercase().starts_with("host:"));
    let host = if has_host { String::new() } else { format!("Host: {host}\r\n") };
    let lines: String = head.iter().map(|line| format!("{line}\r\n")).collect();
    let request = format!(
        "{method} {path} HTTP/1.1\r\n{host}{lines}Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    let talk = async {
        // A request that is too large is answered before it is read to its end.
        let _ = stream.write_all(request.as_bytes()).await;
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        String::from_utf8_lossy(&answer).into_owned()
    };
    // It may wait for the places of clients that do not read: these have 30 s.
    let text = timeout(SOON * 3, talk).await.expect("in time");
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head: {text:?}"));
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
    Answer { status, head: head.to_owned(), body: body.to_owned() }
}

/// What a browser that watches hears.
struct Stream(BufReader<TcpStream>);

impl Stream {
    /// The data of the next event of that name that is as wanted.
    async fn next(&mut self, name: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let mut event = String::new();
        let read = async {
            loop {
                let mut line = String::new();
                assert!(self.0.read_line(&mut line).await.expect("text") > 0, "the stream ended");
                if let Some(name) = line.strip_prefix("event: ") {
                    event = name.trim().to_owned();
                } else if let Some(data) = line.strip_prefix("data: ") {
                    let data: Value = serde_json::from_str(data.trim()).expect("JSON");
                    if event == name && wanted(&data) {
                        return data;
                    }
                }
            }
        };
        timeout(SOON, read).await.unwrap_or_else(|_| panic!("no {name} came"))
    }

    /// Reads until the server ends it.
    async fn ends(&mut self) {
        let read = async {
            let mut line = String::new();
            // An answer in pieces ends with one of no length; the connection may go on.
            while self.0.read_line(&mut line).await.is_ok_and(|length| length > 0)
                && line.trim() != "0"
            {
                line.clear();
            }
        };
        timeout(SOON, read).await.expect("the stream goes on");
    }
}

#[tokio::test]
async fn a_failover_is_a_difference_on_the_stream() {
    let database = database().await;
    let dsn = database.dsn();
    let mut first = member(&["--role", "export", "--instance", "north", "--dsn", &dsn]);
    event(&mut first, "acquired").await;
    let _second = member(&["--role", "export", "--instance", "east", "--dsn", &dsn]);
    waiting(&database, "export", 1).await;
    let page = Served::new(&dsn, &[]).await;
    let mut stream = page.watch().await;
    stream.next("hello", |_| true).await;
    until("the leader on the page", async || {
        let role = page.role("export").await;
        role["state"] == "led" && role["leader"].to_string().contains("north")
    })
    .await;
    first.kill().await.expect("killed");
    let led = |change: &Value| {
        let role = &change["roles"][0];
        role["state"] == "led" && role["leader"].to_string().contains("east")
    };
    let change = stream.next("change", led).await;
    assert!(change["now"].as_i64() > Some(1_600_000_000_000), "the database's clock: {change}");
    let whole = page.get("/api/v1/snapshot?window=5m").await.json();
    assert_eq!(whole["terms"][0][1], 1, "the term that ended: {whole}");
    // One role in full.
    let role = page.get("/api/v1/role/export").await.json();
    assert_eq!(role["terms"].as_array().map(Vec::len), Some(2), "{role}");
    assert_eq!(page.get("/api/v1/role/nothing").await.status, 404);
}

#[tokio::test]
async fn an_order_from_the_page_is_recorded_with_the_tokens_name() {
    let database = database().await;
    let dsn = database.dsn();
    let mut first = member(&["--role", "export", "--instance", "north", "--dsn", &dsn]);
    event(&mut first, "acquired").await;
    let mut second = member(&["--role", "export", "--instance", "east", "--dsn", &dsn]);
    waiting(&database, "export", 1).await;
    let page = Served::new(&dsn, &[]).await;
    let step_down = json!({"order": "step_down", "role": "export", "to": null});
    let bare = page
        .ask("POST", "/api/v1/orders", &["Content-Type: application/json"], &step_down.to_string())
        .await;
    assert_eq!(bare.status, 401, "{}", bare.body);
    assert_eq!(bare.header("www-authenticate"), Some("Bearer"));
    let reader = page.order("see-everything", &step_down).await;
    assert_eq!(reader.status, 403, "{}", reader.body);
    assert!(
        stdout(&ends(&["history", "--orders", "--dsn", &dsn]).await).find("step_down").is_none()
    );
    // With a cookie, as a browser does it: the origin must be the page's own.
    let kind = "Content-Type: application/json";
    let signed = page.ask("POST", "/api/v1/session", &[kind], r#"{"token": "do-something"}"#).await;
    assert_eq!(signed.status, 200, "{}", signed.body);
    let cookie = signed.header("set-cookie").expect("a cookie").to_owned();
    assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"), "{cookie}");
    assert!(!cookie.contains("do-something"), "{cookie}");
    let cookie = format!("Cookie: {}", cookie.split(';').next().expect("a pair"));
    let origin = format!("Origin: http://{}", page.address);
    let body = step_down.to_string();
    let without = page.ask("POST", "/api/v1/orders", &[kind, &cookie], &body).await;
    assert_eq!(without.status, 403, "{}", without.body);
    let foreign = page
        .ask("POST", "/api/v1/orders", &[kind, &cookie, "Origin: http://evil.example"], &body)
        .await;
    assert_eq!(foreign.status, 403, "{}", foreign.body);
    let done = page.ask("POST", "/api/v1/orders", &[kind, &cookie, &origin], &body).await;
    assert_eq!(done.status, 200, "{}", done.body);
    assert_eq!(done.json()["by"], "deploy-bot");
    event(&mut second, "acquired").await;
    let orders = stdout(&ends(&["history", "--orders", "--wide", "--dsn", &dsn]).await);
    assert!(orders.contains("deploy-bot"), "{orders}");
    assert_eq!(
        orders.matches("step_down").count(),
        1,
        "what was refused is not recorded: {orders}"
    );
    // What was confirmed for one leader does not meet the next one.
    for order in ["step_down", "pause"] {
        let late = json!({"order": order, "role": "export", "epoch": 1});
        let late = page.order("do-something", &late).await;
        assert_eq!(late.status, 409, "{}", late.body);
        assert!(late.body.contains("has changed its leader since"), "{}", late.body);
    }
    let orders = stdout(&ends(&["history", "--orders", "--wide", "--dsn", &dsn]).await);
    assert_eq!((orders.matches("step_down").count(), orders.matches("pause").count()), (1, 0));
    // Pause and resume, in the same name; what cannot be done is a conflict or not found.
    let pause = json!({"order": "pause", "role": "export", "epoch": 2});
    let pause = page.order("do-something", &pause).await;
    assert_eq!(pause.status, 200, "{}", pause.body);
    event(&mut second, "released").await;
    until("a paused role", async || page.role("export").await["state"] == "vacant").await;
    assert_eq!(page.order("do-something", &step_down).await.status, 409);
    assert_eq!(
        page.order("do-something", &json!({"order": "resume", "role": "export"})).await.status,
        200
    );
    assert_eq!(
        page.order("do-something", &json!({"order": "pause", "role": "nothing"})).await.status,
        404
    );
    assert_eq!(
        page.order("do-something", &json!({"order": "run", "schedule": "nothing"})).await.status,
        404
    );
    let nobody = json!({"order": "step_down", "role": "export", "to": "nobody"});
    assert_eq!(page.order("do-something", &nobody).await.status, 404);
    let shown = page.get("/api/v1/snapshot").await;
    assert!(shown.body.contains("asked by deploy-bot, by the page"), "{}", shown.body);
    assert!(!shown.body.contains("login role"), "{}", shown.body);
}

#[tokio::test]
async fn a_stranger_gets_nothing() {
    let database = database().await;
    let page = Served::new(&database.dsn(), &[]).await;
    let port = page.address.rsplit_once(':').expect("a port").1.to_owned();
    let status = async |method: &str, path: &str, head: &[&str], body: &str| {
        page.ask(method, path, head, body).await.status
    };
    let kind = "Content-Type: application/json";
    // DNS rebinding: a foreign name that leads to this machine.
    assert_eq!(status("GET", "/", &[&format!("Host: evil.example:{port}")], "").await, 421);
    assert_eq!(status("GET", "/api/v1/snapshot", &["Host: evil.example"], "").await, 421);
    assert_eq!(status("GET", "/api/v1/snapshot", &["Origin: http://evil.example"], "").await, 403);
    assert_eq!(status("GET", "/api/v1/events", &["Sec-Fetch-Site: cross-site"], "").await, 403);
    assert_eq!(status("POST", "/api/v1/session", &[kind, "Origin: null"], "{}").await, 403);
    // Not JSON, not an order, too large, too much of a head, no such path, no such method.
    assert_eq!(
        status("POST", "/api/v1/session", &["Content-Type: text/plain"], r#"{"token":"x"}"#).await,
        415
    );
    assert_eq!(status("POST", "/api/v1/session", &[kind], r#"{"token":1}"#).await, 400);
    assert_eq!(status("POST", "/api/v1/session", &[kind], r#"{"token":"wrong"}"#).await, 401);
    let large = format!(r#"{{"token":"{}"}}"#, "x".repeat(10_000));
    assert_eq!(status("POST", "/api/v1/session", &[kind], &large).await, 413);
    let bearer = "Authorization: Bearer do-something";
    for (bad, why) in [
        ("", "EOF"),
        ("[]", ""),
        (r#"{"order":"forget","role":"x"}"#, "unknown variant `forget`"),
        (r#"{"order":"pause","role":"x","more":1}"#, "unknown field `more`"),
        (r#"{"order":"pause"}"#, "missing field `role`"),
    ] {
        let answer = page.ask("POST", "/api/v1/orders", &[kind, bearer], bad).await;
        assert_eq!(answer.status, 400, "{bad}");
        let told = answer.json()["error"].as_str().expect("words").to_owned();
        assert!(told.contains("openapi.json") && told.contains(why), "{bad}: {told}");
    }
    let token = page.ask("POST", "/api/v1/session", &[kind], r#"{"s3cret":"s3cret"}"#).await;
    assert!(token.status == 400 && !token.body.contains("s3cret"), "{}", token.body);
    assert!(token.body.contains("`token`"), "{}", token.body);
    assert_eq!(status("GET", "/api/v1/snapshot?window=1y", &[], "").await, 400);
    assert_eq!(status("GET", "/nothing", &[], "").await, 404);
    assert_eq!(status("DELETE", "/api/v1/snapshot", &[], "").await, 405);
    assert_eq!(status("GET", "/", &[&format!("X-Long: {}", "x".repeat(40_000))], "").await, 431);
    // The page itself: nothing from elsewhere may run in it, and no page may frame it.
    let shown = page.get("/").await;
    assert_eq!(shown.status, 200);
    let policy = shown.header("content-security-policy").expect("a policy");
    assert!(policy.starts_with("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
    assert!(policy.contains("frame-ancestors 'none'"), "{policy}");
    assert!(
        !shown.body.contains("<script>")
            && !shown.body.contains("style=")
            && !shown.body.contains("://"),
        "{}",
        shown.body
    );
    let about = page.get("/api/v1/session").await.json();
    assert_eq!((&about["open_reading"], &about["scope"]), (&true.into(), &Value::Null));
    // Every path of the description is there, and what every path may answer is described.
    let described = page.get("/api/v1/openapi.json").await.json();
    let paths = described["paths"].as_object().expect("paths");
    for (path, methods) in paths {
        // A stream does not end: it has begun.
        let asked = path.replace("{role}", "x").replace("{schedule}", "x");
        let there = path == "/api/v1/events"
            || !page.get(&asked).await.body.contains("there is nothing here");
        assert!(there, "{path}");
        for (method, about) in methods.as_object().expect("methods") {
            for status in ["403", "421", "504"] {
                assert!(about["responses"].get(status).is_some(), "{method} {path}: {status}");
            }
        }
    }
    assert_eq!(paths.len(), 7);
    drop(page);
    // Behind a proxy every peer is this machine: reading needs a token too.
    let proxied = Served::new(&database.dsn(), &["--behind-proxy", "--name", "page.example"]).await;
    let host = "Host: page.example";
    for path in ["/api/v1/snapshot", "/api/v1/events", "/api/v1/role/x", "/api/v1/runs/x"] {
        assert_eq!(proxied.ask("GET", path, &[host], "").await.status, 401, "{path}");
    }
    let read = "Authorization: Bearer see-everything";
    assert_ne!(proxied.ask("GET", "/api/v1/snapshot", &[host, read], "").await.status, 401);
    assert_eq!(proxied.ask("GET", "/", &["Host: localhost"], "").await.status, 421);
}

#[tokio::test]
async fn incomplete_options_are_refused_before_anything_is_served() {
    let folder = tempfile::tempdir().expect("a folder");
    let tokens = folder.path().join("tokens");
    write_tokens(&tokens);
    let tokens = tokens.to_str().expect("text");
    let serve = async |more: &[&str]| {
        ends(&[&["serve", "--dsn", "host=localhost dbname=x"], more].concat()).await
    };
    refuses(
        &serve(&["--listen", "0.0.0.0:0"]).await,
        2,
        "not served beyond loopback in plain text",
    );
    refuses(&serve(&["--listen", "0.0.0.0:0", "--tokens", tokens]).await, 2, "in plain text");
    refuses(&serve(&["--behind-proxy"]).await, 2, "needs a token");
    refuses(&serve(&["--behind-proxy", "--tokens", tokens]).await, 2, "must know its name");
    refuses(&serve(&["--tokens", "/nowhere"]).await, 2, "give a file that this user can read");
    assert_eq!(code(&serve(&["--tls-cert", "cert.pem"]).await), 2);
    let cert = ["--tls-cert", "/nowhere", "--tls-key", "/nowhere", "--listen", "127.0.0.1:0"];
    refuses(&serve(&cert).await, 2, "give a PEM file");
    let empty = folder.path().join("empty");
    std::fs::write(&empty, "# nothing\n").expect("written");
    refuses(&serve(&["--tokens", empty.to_str().expect("text")]).await, 2, "has no token");
}

#[tokio::test]
async fn the_page_speaks_tls_with_its_own_certificate() {
    let database = database().await;
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    let folder = tempfile::tempdir().expect("a folder");
    let (chain, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    std::fs::write(&chain, made.cert.pem()).expect("written");
    std::fs::write(&key, made.signing_key.serialize_pem()).expect("written");
    let options =
        ["--tls-cert", chain.to_str().expect("text"), "--tls-key", key.to_str().expect("text")];
    let page = Served::new(&database.dsn(), &options).await;
    let mut roots = rustls::RootCertStore::empty();
    roots.add(made.cert.der().clone()).expect("a root");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let stream = TcpStream::connect(&page.address).await.expect("a connection");
    let name = ServerName::try_from("localhost").expect("a name");
    let stream = connector.connect(name, stream).await.expect("a handshake");
    let kind = "Content-Type: application/json";
    let signed = talk(
        stream,
        "localhost",
        "POST",
        "/api/v1/session",
        &[kind],
        r#"{"token":"see-everything"}"#,
    )
    .await;
    assert_eq!(signed.status, 200, "{}", signed.body);
    let cookie = signed.header("set-cookie").expect("a cookie");
    assert!(cookie.starts_with("__Host-tenure-") && cookie.contains("; Secure"), "{cookie}");
    // A renewed certificate is used without a restart: a client that knows the new one alone is answered.
    let renewed = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("another");
    std::fs::write(&chain, renewed.cert.pem()).expect("written");
    std::fs::write(&key, renewed.signing_key.serialize_pem()).expect("written");
    let mut roots = rustls::RootCertStore::empty();
    roots.add(renewed.cert.der().clone()).expect("a root");
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    until("the renewed certificate", async || {
        let stream = TcpStream::connect(&page.address).await.expect("a connection");
        let name = ServerName::try_from("localhost").expect("a name");
        connector.connect(name, stream).await.is_ok()
    })
    .await;
}

#[tokio::test]
async fn when_the_database_is_away_the_page_says_so_and_recovers_by_itself() {
    let cluster = Cluster::start().await.expect("a server");
    let mut leader = member(&["--role", "export", "--instance", "north", "--dsn", &cluster.dsn()]);
    event(&mut leader, "acquired").await;
    let page = Served::new(&cluster.dsn(), &[]).await;
    let mut stream = page.watch().await;
    until("a picture", async || page.get("/api/v1/snapshot").await.status == 200).await;
    cluster.stop(Stop::Immediate).await.expect("it stops");
    let outage = stream.next("outage", |_| true).await;
    assert_eq!(outage["why"], "the database does not answer", "{outage}");
    let shown = page.get("/api/v1/snapshot").await.json();
    assert!(shown["outage"]["age_ms"].as_u64().is_some(), "the age of what is shown: {shown}");
    assert_eq!(shown["roles"][0][0], "export", "what was last known: {shown}");
    let head = ["Authorization: Bearer do-something", "Content-Type: application/json"];
    let order =
        page.ask("POST", "/api/v1/orders", &head, r#"{"order":"pause","role":"export"}"#).await;
    assert_eq!(order.status, 503, "{}", order.body);
    assert!(
        !order.body.contains(&cluster.port().to_string()),
        "nothing of the DSN: {}",
        order.body
    );
    cluster.start_again().await.expect("it starts");
    stream.next("reload", |_| true).await;
    assert_eq!(page.get("/api/v1/snapshot").await.json()["outage"], Value::Null);
}

#[tokio::test]
async fn a_thousand_roles_and_thirty_browsers_cost_one_statement_a_second() {
    let options = ClusterOptions::default().set("log_statement", "all");
    let cluster = Cluster::start_with(options).await.expect("a server");
    let dsn = cluster.dsn();
    assert_eq!(code(&ends(&["migrate", "--dsn", &dsn]).await), 0);
    cluster
        .sql(
            "insert into tenure.role (name, key, policy, lease_ms, epoch, released_at) \
             select 'export:tenant-' || n, n, 'exclusive', 3000, 40, now() from generate_series(1, 1000) n; \
             insert into tenure.term (role, epoch, member, claimed_at, acting_at, ended_at, how) \
             select 'export:tenant-' || n, e, 'tenure-node-' || n % 10 || '-1-00000000-0000-4000-8000-000000000000', \
                    now() - (41 - e) * interval '1 minute', now() - (41 - e) * interval '1 minute', \
                    now() - (41 - e) * interval '1 minute' + interval '59 s', 'released' \
             from generate_series(1, 1000) n, generate_series(1, 40) e",
        )
        .await
        .expect("rows");
    let page = Served::new(&dsn, &[]).await;
    let looks = || cluster.log().matches("with locks as materialized").count();
    let first = page.get("/api/v1/snapshot?window=7d").await;
    assert_eq!(first.status, 200, "{}", first.body);
    assert!(first.body.len() < 200_000, "{} bytes", first.body.len());
    assert_eq!(first.json()["roles"].as_array().map(Vec::len), Some(1000));
    let mut streams = Vec::new();
    for _ in 0..30 {
        let mut stream = page.watch().await;
        stream.next("hello", |_| true).await;
        streams.push(stream);
    }
    let (begun, before) = (std::time::Instant::now(), looks());
    until("five looks", async || looks() >= before + 5).await;
    // A look per second, and one more for the first of these browsers; less what this test was late in seeing the
    // first. With one for each browser it is a moment.
    assert!(begun.elapsed() > Duration::from_secs(2), "{:?}", begun.elapsed());
    let client = cluster.client("postgres").await.expect("a session");
    let sql = "select count(*) from pg_stat_activity where application_name like '%tenure page%'";
    let sessions: i64 = client.query_one(sql, &[]).await.expect("a count").get(0);
    assert!(sessions <= 2, "{sessions} sessions");
    // The streams end, and so, after a while in which a browser may come back, do the looks.
    drop(streams);
    let calm = Duration::from_secs(3);
    until("no more looks", async || {
        let before = looks();
        tokio::time::sleep(calm).await;
        looks() == before
    })
    .await;
    // The page itself goes on: a browser that comes has one at once.
    let before = looks();
    let mut stream = page.watch().await;
    stream.next("change", |_| true).await;
    assert!(looks() > before);
    page.child.signal(Signal::TERM);
}
