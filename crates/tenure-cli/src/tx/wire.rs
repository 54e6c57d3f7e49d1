//! How a caller speaks to a node: one JSON object per line, over TCP.
//!
//! ```text
//! → {"op":"send","call":{"to":"0x…","value":"0x1","gas":21000},"request_id":"invoice-7"}
//! ← {"ok":{"nonce":12,"hash":"0x…","request_id":"invoice-7","state":"future","ended":false}}
//! ← {"error":{"code":"not_leader","message":"…"}}
//! ```

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep, timeout};

use tenure_tx::service::{HandleState, Payload, SendError, SendRequest, TransactionService};
use tenure_tx::status::{Hash, State, unhex};

use crate::args::period;
use crate::exit::{Exit, Failure};
use crate::output::out;

/// What a caller asks.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
enum Question {
    Send {
        /// The call in the signer's encoding.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        call: Option<Value>,
        /// Or signed bytes, in hex.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        signed: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        request_id: Option<String>,
    },
    Cancel {
        nonce: u64,
    },
    Status,
}

/// What a node answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Reply {
    Ok(Value),
    Error { code: String, message: String },
}

/// An accepted transaction.
#[derive(Debug, Serialize, Deserialize)]
struct Accepted {
    nonce: u64,
    hash: Hash,
    request_id: String,
    /// Where it stands: a repeated request may have come far already.
    state: State,
    ended: bool,
}

/// The longest line: a call of 4 MiB in hex, and some.
const MAX_LINE: u64 = 16 << 20;

/// Serves callers until the listener's task is dropped.
pub(super) async fn serve(listener: TcpListener, service: std::sync::Arc<TransactionService>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Out of descriptors, most likely: a pause lets some be closed.
            sleep(Duration::from_millis(100)).await;
            continue;
        };
        let service = std::sync::Arc::clone(&service);
        tokio::spawn(async move {
            if let Err(error) = converse(stream, &service).await {
                tracing::debug!(%error, "a caller's connection ended");
            }
        });
    }
}

async fn converse(stream: TcpStream, service: &TransactionService) -> std::io::Result<()> {
    use tokio::io::AsyncReadExt as _;
    let (read, mut write) = stream.into_split();
    let mut lines = BufReader::new(read);
    loop {
        let mut line = String::new();
        if (&mut lines).take(MAX_LINE).read_line(&mut line).await? == 0 {
            return Ok(());
        }
        let reply = match serde_json::from_str(&line) {
            Ok(question) => answer(question, service).await,
            Err(error) => malformed(&format!(
                "not a question ({error}); send one JSON object per line, with an \"op\""
            )),
        };
        let mut text = serde_json::to_string(&reply)?;
        text.push('\n');
        write.write_all(text.as_bytes()).await?;
    }
}

async fn answer(question: Question, service: &TransactionService) -> Reply {
    match question {
        Question::Send { call, signed, request_id } => {
            let payload = match (call, signed.as_deref().map(unhex)) {
                (Some(call), None) => match encoded(&call) {
                    Some(bytes) => Payload::Call(bytes),
                    None => return malformed("a call in text is hex, of an even number of digits"),
                },
                (None, Some(Some(raw))) => Payload::Signed(raw.into()),
                (None, None) | (Some(_), Some(_)) | (None, Some(None)) => {
                    return malformed("give either a call or signed bytes in hex");
                }
            };
            let request = SendRequest { payload, request_id, tip: None };
            match service.send(request).await {
                Ok(handle) => {
                    let HandleState { hash, status, ended, .. } = handle.state();
                    let (nonce, request_id) = (handle.nonce, handle.request_id);
                    ok(&Accepted { nonce, hash, request_id, state: status.state(), ended })
                }
                Err(error) => refused(&error),
            }
        }
        Question::Cancel { nonce } => match service.cancel(nonce).await {
            Ok(()) => ok(&nonce),
            Err(error) => refused(&error),
        },
        Question::Status => ok(&serde_json::json!({
            "role": service.role(),
            "epoch": service.epoch().map(|epoch| epoch.get()),
            "open": service.open().await,
            "stale": service.is_stale(),
        })),
    }
}

/// A call as the signer reads it: hex text stands for its bytes (SCALE), anything else for itself.
fn encoded(call: &Value) -> Option<Bytes> {
    match call {
        Value::String(text) => unhex(text).map(Bytes::from),
        other => Some(Bytes::from(other.to_string())),
    }
}

fn malformed(message: &str) -> Reply {
    Reply::Error { code: "malformed".into(), message: message.into() }
}

fn ok(value: &impl Serialize) -> Reply {
    Reply::Ok(serde_json::to_value(value).unwrap_or_default())
}

fn refused(error: &SendError) -> Reply {
    Reply::Error { code: error.code().to_owned(), message: error.to_string() }
}

/// Where the nodes are.
#[derive(Debug, Clone, Args)]
pub(crate) struct NodesArgs {
    /// The nodes' addresses; all are asked in turn until one leads
    #[arg(long = "node", env = "TENURE_TX_NODES", value_delimiter = ',', required = true)]
    pub(crate) nodes: Vec<SocketAddr>,
    /// How long to look for a leader
    #[arg(long, default_value = "30s", value_parser = period)]
    pub(crate) within: Duration,
}

#[derive(Debug, Args)]
pub(crate) struct SendArgs {
    /// The nodes.
    #[command(flatten)]
    pub(crate) nodes: NodesArgs,
    /// The call: on Ethereum {"to":"0x…","value":"0x1","data":"0x","gas":21000}, on Substrate the
    /// SCALE-encoded call in hex
    #[arg(long, conflicts_with = "signed", required_unless_present = "signed")]
    pub(crate) call: Option<String>,
    /// Signed bytes, in hex, instead of a call
    #[arg(long)]
    pub(crate) signed: Option<String>,
    /// Your name for it: a retry with the same id never sends twice. Generated if absent
    #[arg(long)]
    pub(crate) request_id: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DropArgs {
    /// The nodes.
    #[command(flatten)]
    pub(crate) nodes: NodesArgs,
    /// The nonce to fill with a no-op
    pub(crate) nonce: u64,
}

pub(super) async fn send(args: SendArgs) -> Result<Exit, Failure> {
    // Chosen here, so that asking the next node after a silence is the same request.
    let id = args.request_id.unwrap_or_else(|| uuid::Uuid::new_v4().to_string());
    let call = match args.call {
        Some(text) if text.starts_with("0x") => Some(Value::String(text)),
        Some(text) => Some(serde_json::from_str(&text).map_err(|_| {
            Failure::usage(
                "--call is neither JSON nor hex; on Ethereum give \
                 {\"to\":\"0x…\",\"value\":\"0x1\",\"gas\":21000}",
            )
        })?),
        None => None,
    };
    let question = Question::Send { call, signed: args.signed, request_id: Some(id) };
    match ask(&args.nodes, &question).await {
        Reply::Ok(value) if args.json => out!("{value}"),
        Reply::Ok(value) => {
            let Accepted { nonce, hash, request_id, state, ended } =
                serde_json::from_value(value).map_err(unreadable)?;
            let was = if ended { format!("ended as {state}") } else { "accepted".to_owned() };
            out!("{was}: nonce {nonce}, {hash} (request {request_id})");
        }
        Reply::Error { code, message } => return failed(&code, &message),
    }
    Ok(Exit::Clean)
}

pub(super) async fn drop_nonce(args: DropArgs) -> Result<Exit, Failure> {
    match ask(&args.nodes, &Question::Cancel { nonce: args.nonce }).await {
        Reply::Ok(_) => out!("a no-op takes the place of nonce {}", args.nonce),
        Reply::Error { code, message } => return failed(&code, &message),
    }
    Ok(Exit::Clean)
}

fn unreadable(error: serde_json::Error) -> Failure {
    Failure::failed(format!(
        "the node's answer cannot be read: {error}; use one version everywhere"
    ))
}

/// A node's refusal, or that none answers.
fn failed(code: &str, message: &str) -> Result<Exit, Failure> {
    Err(match code {
        "not_leader" | "draining" | "stopped" | "unreachable" => {
            Failure::new(Exit::NoLeader, format!("no node leads: {message}"))
        }
        "uncertain" | "store" => Failure::failed(message),
        // All others are about the request itself.
        _ => Failure::new(Exit::Rejected, message),
    })
}

/// How long one node may take: a frozen one is not waited for, the next is asked.
const ONE_NODE: Duration = Duration::from_secs(5);

/// Asks all nodes in turn until one answers for good. Only what a leader may answer differently
/// later is asked again; the request id makes that safe.
async fn ask(nodes: &NodesArgs, question: &Question) -> Reply {
    let until = Instant::now() + nodes.within;
    let mut line = serde_json::to_string(question).expect("a question has text for keys");
    line.push('\n');
    let addresses: Vec<String> = nodes.nodes.iter().map(ToString::to_string).collect();
    let message =
        format!("no node answers at {}; check that the nodes run there", addresses.join(", "));
    let mut last = Reply::Error { code: "unreachable".into(), message };
    loop {
        for address in &nodes.nodes {
            match timeout(ONE_NODE, ask_one(*address, &line)).await {
                Ok(Ok(Reply::Error { code, message }))
                    if ["not_leader", "draining", "stopped", "uncertain", "store"]
                        .contains(&code.as_str()) =>
                {
                    last = Reply::Error { code, message };
                }
                Ok(Ok(reply)) => return reply,
                // Not there, or gone in the middle of it.
                Ok(Err(_)) => {}
                Err(_) => {
                    let message = format!(
                        "{address} took the question and gave no answer within {ONE_NODE:?}; read \
                         its log, it may be waiting for the chain or the database"
                    );
                    last = Reply::Error { code: "unreachable".into(), message };
                }
            }
        }
        if Instant::now() >= until {
            return last;
        }
        sleep(Duration::from_millis(100)).await;
    }
}

async fn ask_one(address: SocketAddr, line: &str) -> std::io::Result<Reply> {
    let mut stream = BufReader::new(TcpStream::connect(address).await?);
    stream.write_all(line.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_line(&mut answer).await?;
    Ok(serde_json::from_str(&answer)?)
}
