//! What callers may take of a node: connections, bytes, time; and what they may call a request.

use std::time::Duration;

use serde_json::{Value, json};
use tenure_testkit::anvil::Anvil;
use tenure_testkit::shared_cluster;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

use crate::kit::{json_of, node, run};

async fn ask(stream: &mut BufReader<TcpStream>, question: &str) -> Value {
    stream.write_all(format!("{question}\n").as_bytes()).await.expect("written");
    let mut line = String::new();
    let read = timeout(Duration::from_secs(20), stream.read_line(&mut line)).await;
    read.expect("in time").expect("an answer");
    serde_json::from_str(&line).expect("JSON")
}

async fn connect(address: &str) -> BufReader<TcpStream> {
    BufReader::new(TcpStream::connect(address).await.expect("connects"))
}

/// The resident memory of a process, in MiB.
fn memory(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("a size");
    line.split_whitespace().nth(1).expect("a number").parse::<u64>().expect("KiB") / 1024
}

#[tokio::test]
async fn half_lines_and_idle_connections_neither_fill_the_memory_nor_shut_others_out() {
    let database = shared_cluster().await.database().await.expect("a database");
    let anvil = Anvil::start(&[]).await;
    let (child, address) = node(&["--dsn", &database.dsn()], &anvil).await;
    let before = memory(child.pid());
    // Each would be the longest line there is, but for its end.
    let mut half = Vec::new();
    for _ in 0..400 {
        let mut stream = connect(&address).await;
        // A node that refuses the line closes the connection.
        let _ = stream.write_all(&vec![b'x'; 500 << 10]).await;
        half.push(stream);
    }
    let mut idle = Vec::new();
    for _ in 0..400 {
        idle.push(connect(&address).await);
    }
    let call =
        json!({"to": format!("0x{:040x}", 0xaa07), "value": "0x5", "gas": 21_000}).to_string();
    let sent = run(&["send", "--node", &address, "--json", "--call", &call]).await;
    assert_eq!(json_of(&sent)[0]["nonce"], 0, "a caller is heard beside 800 that say nothing");
    let grown = memory(child.pid()).saturating_sub(before);
    assert!(grown < 150, "{grown} MiB for lines without an end");
    let open = std::fs::read_dir(format!("/proc/{}/fd", child.pid())).expect("it runs").count();
    assert!(open < 400, "{open} descriptors");
}

#[tokio::test]
async fn a_line_that_is_too_long_is_told_its_bound() {
    let database = shared_cluster().await.database().await.expect("a database");
    let anvil = Anvil::start(&[]).await;
    let (_child, address) = node(&["--dsn", &database.dsn()], &anvil).await;
    let mut stream = connect(&address).await;
    // Read while it is written: the node answers before the end, and closes.
    let id = r#"{"op":"send","request_id":"rent","call":""#;
    let long = [id.as_bytes(), &vec![b'x'; 2 << 20]].concat();
    let (mut read, mut write) = stream.get_mut().split();
    let mut line = String::new();
    let mut reader = BufReader::new(&mut read);
    let (_, answered) = tokio::join!(write.write_all(&long), reader.read_line(&mut line));
    answered.expect("the answer comes before the connection ends");
    let answer: Value = serde_json::from_str(&line).expect("JSON");
    assert_eq!(answer["error"]["code"], "too_large", "{answer}");
    assert_eq!(answer["error"]["request_id"], "rent", "no answer is without the id: {answer}");
    let data = "ab".repeat(200 << 10);
    let call =
        json!({"to": format!("0x{:040x}", 0xaa07), "data": format!("0x{data}"), "gas": 21_000});
    let mut stream = connect(&address).await;
    let answer = ask(&mut stream, &json!({"op": "send", "call": call}).to_string()).await;
    assert_eq!(answer["error"]["code"], "too_large", "{answer}");
    assert!(answer["error"]["request_id"].is_string(), "no answer is without the id: {answer}");
}

#[tokio::test]
async fn an_odd_id_gets_a_clear_answer_at_once_and_every_answer_carries_the_id() {
    let database = shared_cluster().await.database().await.expect("a database");
    let anvil = Anvil::start(&["--no-mining"]).await;
    let (_child, address) = node(&["--dsn", &database.dsn()], &anvil).await;
    let call = json!({"to": format!("0x{:040x}", 0xaa07), "value": "0x5", "gas": 21_000});
    let mut stream = connect(&address).await;
    for odd in ["", "a\0b", "a\nb", "\u{1b}[2J", &"x".repeat(201)] {
        let question = json!({"op": "send", "call": call, "request_id": odd});
        let answer = ask(&mut stream, &question.to_string()).await;
        assert_eq!(answer["error"]["code"], "bad_request_id", "{odd:?}: {answer}");
        assert_eq!(answer["error"]["request_id"], odd);
    }
    for fine in ["0", "ünïcode 🙂", "a'b\"; drop table --"] {
        let question = json!({"op": "send", "call": call, "request_id": fine});
        let answer = ask(&mut stream, &question.to_string()).await;
        assert_eq!(answer["ok"]["request_id"], fine, "{answer}");
    }
    let answer = ask(&mut stream, &json!({"op": "send", "call": call}).to_string()).await;
    assert_eq!(answer["ok"]["nonce"], 3, "{answer}");
    let id = answer["ok"]["request_id"].as_str().expect("a generated id");
    let question = json!({"op": "send", "call": call, "request_id": id});
    let again = ask(&mut stream, &question.to_string()).await;
    assert_eq!(again["ok"]["nonce"], 3, "its id makes a retry the same request: {again}");
    let bare = ask(&mut stream, r#"{"op":"send"}"#).await;
    assert_eq!(bare["error"]["code"], "malformed", "{bare}");
    // Also of a question that is none.
    for wrong in [
        json!({"op": "send", "request_id": "rent"}),
        json!({"op": "send", "call": "0xabc", "request_id": "rent"}),
        json!({"op": "send", "call": call, "surprise": 1, "request_id": "rent"}),
        json!({"op": "send", "call": call, "deadline_ms": -1, "request_id": "rent"}),
        json!({"op": "cancel", "nonce": 1, "request_id": "rent"}),
        json!({"op": "guess", "request_id": "rent"}),
    ] {
        let answer = ask(&mut stream, &wrong.to_string()).await;
        assert_eq!(answer["error"]["code"], "malformed", "{wrong}: {answer}");
        assert_eq!(answer["error"]["request_id"], "rent", "{wrong}: {answer}");
    }
    for op in ["wait", "cancel"] {
        let question = json!({"op": op, "request_id": "a\0b"});
        let answer = ask(&mut stream, &question.to_string()).await;
        assert_eq!(answer["error"]["code"], "bad_request_id", "{answer}");
        assert_eq!(answer["error"]["request_id"], "a\0b", "{answer}");
    }
    let dropped = ask(&mut stream, &json!({"op": "cancel", "nonce": 0}).to_string()).await;
    assert_eq!(dropped["ok"]["request_id"], "0", "the request at that nonce: {dropped}");
}

#[tokio::test]
async fn a_node_is_found_by_its_host_name_and_an_unanswered_request_is_told_its_id() {
    let database = shared_cluster().await.database().await.expect("a database");
    let anvil = Anvil::start(&["--no-mining"]).await;
    let (mut child, address) = node(&["--dsn", &database.dsn()], &anvil).await;
    let named = address.replace("127.0.0.1", "localhost");
    let call =
        json!({"to": format!("0x{:040x}", 0xaa07), "value": "0x5", "gas": 21_000}).to_string();
    let sent = run(&["send", "--node", &named, "--json", "--call", &call]).await;
    assert_eq!(json_of(&sent)[0]["nonce"], 0);
    // A node that takes the question and does not answer: the request may be accepted later.
    child.signal(tenure_testkit::Signal::STOP);
    let sent = run(&["send", "--node", &named, "--within", "0s", "--call", &call]).await;
    child.signal(tenure_testkit::Signal::CONT);
    let said = String::from_utf8_lossy(&sent.stderr).into_owned();
    assert_eq!(sent.status.code(), Some(10), "{said}");
    assert!(said.contains("--request-id") && !said.contains("no node leads"), "{said}");
    let id = said.rsplit("--request-id ").next().expect("the id").trim();
    let again = ["send", "--node", &named, "--request-id", id, "--json", "--call", &call];
    assert_eq!(json_of(&run(&again).await)[0]["nonce"], 1, "once, whichever attempt it was");
    child.kill().await.expect("killed");
}

#[tokio::test]
async fn a_request_is_given_up_by_its_id() {
    let database = shared_cluster().await.database().await.expect("a database");
    let dsn = database.dsn();
    let anvil = Anvil::start(&["--no-mining"]).await;
    let (_child, address) = node(&["--dsn", &dsn], &anvil).await;
    let call =
        json!({"to": format!("0x{:040x}", 0xaa07), "value": "0x5", "gas": 21_000}).to_string();
    let sent = run(&["send", "--node", &address, "--request-id", "rent", "--call", &call]).await;
    assert!(sent.status.success(), "{sent:?}");
    let unknown = run(&["drop", "--node", &address, "--request-id", "food"]).await;
    assert_eq!(unknown.status.code(), Some(7), "{unknown:?}");
    let dropped = run(&["drop", "--node", &address, "--request-id", "rent"]).await;
    assert!(dropped.status.success(), "{dropped:?}");
    assert!(String::from_utf8_lossy(&dropped.stdout).contains("nonce 0"), "{dropped:?}");
}

#[tokio::test]
async fn an_address_that_never_takes_a_connection_was_not_asked() {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind("127.0.0.1:0".parse().expect("an address")).expect("bound");
    let listener = socket.listen(1).expect("listens");
    let address = listener.local_addr().expect("bound").to_string();
    // Its queue is full when a connection does not come about: it accepts none.
    let mut queue = Vec::new();
    let full = async {
        loop {
            match timeout(Duration::from_millis(500), TcpStream::connect(&address)).await {
                Ok(connected) => queue.push(connected.expect("connects")),
                Err(_) => return,
            }
        }
    };
    timeout(Duration::from_secs(20), full).await.expect("full");
    let call = json!({"to": format!("0x{:040x}", 0xaa07), "value": "0x5", "gas": 21_000});
    let send = ["send", "--node", &address, "--within", "0s", "--request-id", "rent", "--call"];
    let sent = run(&[&send[..], &[&call.to_string()]].concat()).await;
    let said = String::from_utf8_lossy(&sent.stderr).into_owned();
    assert_eq!(sent.status.code(), Some(6), "{said}");
    assert!(said.contains("no node answers"), "{said}");
}
