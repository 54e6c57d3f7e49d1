//! A gateway before a chain's node that misbehaves as the test says: it loses answers, answers for the
//! node in another client's words, or says that it is busy after it has passed the bytes on.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// What happens to one call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    Pass,
    /// The line breaks before the node has it.
    Cut,
    /// The line breaks after the node has it.
    LoseAnswer,
    /// An answer for the node, which never has it.
    Say(i64, String),
    /// An answer for the node, which has it.
    PassAndSay(i64, String),
    /// An HTTP error; the node never has it.
    Http(u16),
    /// An HTTP error; the node has it.
    PassAndHttp(u16),
    /// The result `null`.
    Null,
    /// This result, for the node, which never has the call.
    Answer(Value),
    /// Silence for ever.
    Hang,
}

/// The method that hands over signed bytes.
pub const SEND: &str = "eth_sendRawTransaction";

type Rule = Box<dyn Fn(&str, &Value) -> Fault + Send + Sync>;

/// The gateway; it serves until the runtime ends.
pub struct RpcProxy {
    /// Where it answers JSON-RPC.
    pub url: String,
    shared: Arc<Shared>,
}

struct Shared {
    node: Mutex<SocketAddr>,
    rule: Mutex<Rule>,
    requests: AtomicUsize,
    calls: AtomicUsize,
    sent: Mutex<BTreeSet<String>>,
}

impl std::fmt::Debug for RpcProxy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RpcProxy").field("url", &self.url).finish_non_exhaustive()
    }
}

impl RpcProxy {
    /// In front of a node, and well-behaved at first.
    ///
    /// # Panics
    /// If there is no port, or the node's address is not one.
    pub async fn start(node: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("bound"));
        let node = Mutex::new(address_of(node));
        let rule: Rule = Box::new(|_, _| Fault::Pass);
        let rule = Mutex::new(rule);
        let (requests, calls, sent) = Default::default();
        let shared = Arc::new(Shared { node, rule, requests, calls, sent });
        let serving = Arc::clone(&shared);
        tokio::spawn(async move {
            while let Ok((caller, _)) = listener.accept().await {
                let shared = Arc::clone(&serving);
                // A broken line is what a test asks for.
                tokio::spawn(async move { drop(serve(caller, &shared).await) });
            }
        });
        RpcProxy { url, shared }
    }

    /// In front of this node from now on; no line breaks.
    ///
    /// # Panics
    /// If the node's address is not one.
    pub fn lead_to(&self, node: &str) {
        *self.shared.node.lock().expect("unpoisoned") = address_of(node);
    }

    /// Misbehaves so from now on: the rule is asked about the method and the parameters of each call.
    ///
    /// # Panics
    /// If an earlier rule panicked.
    pub fn rule(&self, rule: impl Fn(&str, &Value) -> Fault + Send + Sync + 'static) {
        *self.shared.rule.lock().expect("unpoisoned") = Box::new(rule);
    }

    /// Behaves well from now on.
    pub fn well(&self) {
        self.rule(|_, _| Fault::Pass);
    }

    /// How many HTTP requests have come.
    #[must_use]
    pub fn requests(&self) -> usize {
        self.shared.requests.load(Ordering::Relaxed)
    }

    /// How many JSON-RPC calls have come: a request may hold many, and a provider counts each.
    #[must_use]
    pub fn calls(&self) -> usize {
        self.shared.calls.load(Ordering::Relaxed)
    }

    /// Waits until so many more HTTP requests have come.
    ///
    /// # Panics
    /// If they have not within half a minute.
    pub async fn asked(&self, more: usize) {
        let wanted = self.requests() + more;
        let wait = async {
            while self.requests() < wanted {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), wait).await.expect("asked");
    }

    /// All signed bytes that have come, in hex, whatever became of them.
    ///
    /// # Panics
    /// If a thread panicked while it noted some.
    #[must_use]
    pub fn sent(&self) -> BTreeSet<String> {
        self.shared.sent.lock().expect("unpoisoned").clone()
    }
}

fn address_of(url: &str) -> SocketAddr {
    url.trim_start_matches("http://").parse().expect("an address")
}

async fn serve(caller: TcpStream, shared: &Shared) -> std::io::Result<()> {
    let (read, mut write) = caller.into_split();
    let mut read = BufReader::new(read);
    loop {
        let Some(body) = body_of(&mut read).await? else { return Ok(()) };
        shared.requests.fetch_add(1, Ordering::Relaxed);
        let asked: Value = serde_json::from_slice(&body)?;
        let calls = match &asked {
            Value::Array(calls) => calls.clone(),
            one => vec![one.clone()],
        };
        let node = *shared.node.lock().expect("unpoisoned");
        let mut answers = Vec::new();
        for call in &calls {
            let method = call["method"].as_str().unwrap_or_default();
            shared.calls.fetch_add(1, Ordering::Relaxed);
            if let Some(raw) = call["params"][0].as_str().filter(|_| method == SEND) {
                shared.sent.lock().expect("unpoisoned").insert(raw.to_owned());
            }
            let fault = (shared.rule.lock().expect("unpoisoned"))(method, &call["params"]);
            let say = |code: i64, text: &str| {
                let error = json!({"code": code, "message": text});
                json!({"jsonrpc": "2.0", "id": call["id"], "error": error})
            };
            match fault {
                Fault::Pass => answers.push(forward(node, call).await?),
                Fault::Cut => return Ok(()),
                Fault::LoseAnswer => {
                    forward(node, call).await?;
                    return Ok(());
                }
                Fault::Say(code, text) => answers.push(say(code, &text)),
                Fault::PassAndSay(code, text) => {
                    forward(node, call).await?;
                    answers.push(say(code, &text));
                }
                Fault::Http(status) => return refuse(&mut write, status).await,
                Fault::PassAndHttp(status) => {
                    forward(node, call).await?;
                    return refuse(&mut write, status).await;
                }
                Fault::Null => {
                    answers.push(json!({"jsonrpc": "2.0", "id": call["id"], "result": null}));
                }
                Fault::Answer(result) => {
                    answers.push(json!({"jsonrpc": "2.0", "id": call["id"], "result": result}));
                }
                Fault::Hang => std::future::pending().await,
            }
        }
        let answer = match &asked {
            Value::Array(_) => Value::Array(answers),
            _ => answers.pop().unwrap_or_default(),
        };
        respond(&mut write, 200, &answer.to_string()).await?;
    }
}

async fn refuse(to: &mut (impl tokio::io::AsyncWrite + Unpin), status: u16) -> std::io::Result<()> {
    respond(to, status, "<html>no</html>").await
}

async fn respond(
    to: &mut (impl tokio::io::AsyncWrite + Unpin),
    status: u16,
    body: &str,
) -> std::io::Result<()> {
    let head = format!(
        "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    to.write_all(head.as_bytes()).await?;
    to.write_all(body.as_bytes()).await?;
    to.flush().await
}

/// The body of the next message; `None` at the end of the line.
async fn body_of(
    from: &mut BufReader<impl tokio::io::AsyncRead + Unpin>,
) -> std::io::Result<Option<Vec<u8>>> {
    let mut length = 0;
    loop {
        let mut line = String::new();
        if from.read_line(&mut line).await? == 0 {
            return Ok(None);
        }
        let line = line.trim().to_lowercase();
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().expect("a length");
        }
        if line.is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    from.read_exact(&mut body).await?;
    Ok(Some(body))
}

/// Asks the node one call, on a line of its own.
async fn forward(node: SocketAddr, call: &Value) -> std::io::Result<Value> {
    let stream = TcpStream::connect(node).await?;
    let (read, mut write) = stream.into_split();
    let body = call.to_string();
    let head = format!(
        "POST / HTTP/1.1\r\nhost: node\r\ncontent-type: application/json\r\n\
         connection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    write.write_all(head.as_bytes()).await?;
    let mut read = BufReader::new(read);
    let body = body_of(&mut read).await?.unwrap_or_default();
    Ok(serde_json::from_slice(&body)?)
}
