//! An agent serves the page, if its file says so.

use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::kit::{Stage, event, said, until};

const COMMAND: &str = "[[command]]\nrole = 'export'\nrun = 'sleep 100'\n";

async fn snapshot(address: &str) -> Option<Value> {
    let mut stream = TcpStream::connect(address).await.ok()?;
    let request =
        format!("GET /api/v1/snapshot HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.ok()?;
    serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()
}

#[tokio::test]
async fn an_agent_serves_the_page_of_its_file() {
    let stage = Stage::new().await;
    let file = stage.file("tenure.toml", &format!("[page]\nlisten = '0'\n{COMMAND}"));
    let mut agent = stage.agent(&file, &[]);
    let page = event(&mut agent, "page").await;
    let url = page["reason"].as_str().expect("an address");
    let address = url.trim_start_matches("http://").trim_end_matches('/');
    assert!(address.starts_with("127.0.0.1:"), "{url}");
    until("its role on its page", async || {
        snapshot(address).await.is_some_and(|picture| {
            let rows = picture["roles"].as_array().cloned().unwrap_or_default();
            rows.iter().any(|row| row[0] == "export" && row[1] == "led")
        })
    })
    .await;
}

#[tokio::test]
async fn a_page_that_must_not_be_served_stops_the_agent_before_it_campaigns() {
    let stage = Stage::new().await;
    let file = stage.file("tenure.toml", &format!("[page]\nlisten = '0.0.0.0:0'\n{COMMAND}"));
    let file = file.to_str().expect("text");
    let output = stage.ends(&["agent", "--config", file]).await;
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("beyond loopback"), "{}", said(&output));
}
