//! `send`, `wait` and `drop`: a caller's side of the conversation with the nodes.

use std::fs::File;
use std::io::Read;
use std::time::Duration;

use clap::{ArgGroup, Args};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

use tenure_tx::service::{Dropped, SendRequest};
use tenure_tx::status::{End, EndKind, State};

use super::wire::{Drop, Progress, Question, Reply};
use crate::args::{period, some_time};
use crate::exit::{Exit, Failure};
use crate::output::{err, out};

/// Where the nodes are.
#[derive(Debug, Clone, Args)]
pub(crate) struct NodesArgs {
    /// The nodes, as HOST:PORT; all are asked in turn until one leads
    #[arg(long = "node", env = "TENURE_TX_NODES", value_delimiter = ',', required = true)]
    #[arg(value_name = "HOST:PORT", value_parser = node_address)]
    pub(crate) nodes: Vec<String>,
    /// How long to look for a node that answers, and for a leader where one is needed
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = period)]
    pub(crate) within: Duration,
}

/// A name or an address, with a port; a name is looked up when it is asked.
fn node_address(text: &str) -> Result<String, String> {
    let port = text.rsplit_once(':').filter(|(host, _)| {
        // An address of version 6 stands in brackets, or its last part would be the port.
        !host.is_empty() && (host.starts_with('[') == host.contains(':'))
    });
    match port.map(|(_, port)| port.parse::<u16>()) {
        Some(Ok(_)) => Ok(text.to_owned()),
        Some(Err(_)) | None => {
            Err("write a host and a port, as relayer1:7001, 10.0.0.7:7001 or [::1]:7001".to_owned())
        }
    }
}

#[derive(Debug, Args)]
#[command(group(ArgGroup::new("content").required(true).args(["call", "signed"])))]
pub(crate) struct SendArgs {
    #[command(flatten)]
    pub(crate) nodes: NodesArgs,
    /// The call: on Ethereum {"to":"0x…","value":"0x1","data":"0x","gas":21000}, on Substrate the
    /// SCALE-encoded call in hex, or with --pallet its name. @FILE reads it from a file, - from standard
    /// input
    #[arg(long)]
    pub(crate) call: Option<String>,
    /// Substrate: the pallet of the call that --call names
    #[arg(long, value_name = "NAME", requires = "call", conflicts_with = "signed")]
    pub(crate) pallet: Option<String>,
    /// Substrate: the arguments of the call that --call names, as {"remark":"0x676d"}; @FILE or - as for
    /// --call
    #[arg(long, value_name = "JSON", requires = "pallet")]
    pub(crate) args: Option<String>,
    /// Signed bytes, in hex, instead of a call; @FILE or - as for --call
    #[arg(long, value_name = "HEX")]
    pub(crate) signed: Option<String>,
    /// Your name for it: a retry with the same id never sends twice. Generated if absent, and said on
    /// standard error before anything is sent
    #[arg(long)]
    pub(crate) request_id: Option<String>,
    /// Give it up after so long, if it is in no block by then
    #[arg(long, value_name = "TIME", value_parser = some_time)]
    pub(crate) deadline: Option<Duration>,
    /// Wait so long for its end; the exit code tells how it ended
    #[arg(long, value_name = "TIME", value_parser = period)]
    pub(crate) wait: Option<Duration>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct WaitArgs {
    /// The nodes: any of them answers
    #[command(flatten)]
    pub(crate) nodes: NodesArgs,
    /// The request's id
    pub(crate) request_id: String,
    /// How long to wait for its end
    #[arg(long = "for", value_name = "TIME", default_value = "10m", value_parser = period)]
    pub(crate) patience: Duration,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(group(ArgGroup::new("which").required(true).args(["nonce", "request_id"])))]
pub(crate) struct DropArgs {
    #[command(flatten)]
    pub(crate) nodes: NodesArgs,
    /// The nonce to fill with a no-op
    pub(crate) nonce: Option<u64>,
    /// The request to give up, by its id
    #[arg(long, value_name = "ID")]
    pub(crate) request_id: Option<String>,
    /// Wait so long for what became of it; the exit code tells whether it was dropped
    #[arg(long, value_name = "TIME", conflicts_with = "nonce", value_parser = period)]
    pub(crate) wait: Option<Duration>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// The longest text that is read from a file: above the largest call of any chain.
const LONGEST_TEXT: u64 = 64 << 20;

/// What an option says: its text, that of a file (`@FILE`), or standard input (`-`). Linux hands a program
/// no argument above 128 KiB, and calls are longer.
fn read(option: &str, given: String) -> Result<String, Failure> {
    let (place, read): (&str, Box<dyn Read>) = match given.strip_prefix('@') {
        Some(path) => {
            let file = File::open(path).map_err(|error| {
                Failure::usage(format!("{option}: {path}: {error}; name a file that can be read"))
            })?;
            (path, Box::new(file))
        }
        None if given == "-" => ("standard input", Box::new(std::io::stdin())),
        None => return Ok(given),
    };
    let mut text = String::new();
    let read = read.take(LONGEST_TEXT + 1).read_to_string(&mut text);
    read.map_err(|error| {
        Failure::usage(format!("{option}: {place}: {error}; it is to hold the text of the option"))
    })?;
    if text.len() as u64 > LONGEST_TEXT {
        let most = LONGEST_TEXT >> 20;
        return Err(Failure::usage(format!(
            "{option}: {place} has more than {most} MiB; send less"
        )));
    }
    Ok(text.trim().to_owned())
}

pub(super) async fn send(args: SendArgs) -> Result<Exit, Failure> {
    let signed = args.signed.map(|signed| read("--signed", signed)).transpose()?;
    let call = match args.call {
        Some(call) if args.pallet.is_some() => {
            let given = args.args.unwrap_or_else(|| "{}".to_owned());
            let given: Value = serde_json::from_str(&read("--args", given)?).map_err(|error| {
                Failure::usage(format!(
                    "--args is not JSON: {error}; give {{\"remark\":\"0x676d\"}}"
                ))
            })?;
            Some(json!({"pallet": args.pallet, "call": call, "args": given}))
        }
        Some(text) => match read("--call", text)? {
            text if text.starts_with("0x") => Some(Value::String(text)),
            text => Some(serde_json::from_str(&text).map_err(|_| {
                Failure::usage(
                    "--call is neither JSON nor hex; on Ethereum give \
                     {\"to\":\"0x…\",\"value\":\"0x1\",\"gas\":21000}",
                )
            })?),
        },
        None => None,
    };
    // Chosen here, so that asking the next node after a silence is the same request. Said before
    // anything is sent, so that it is known however this process ends.
    let id = args.request_id.unwrap_or_else(|| {
        let id = SendRequest::fresh_id();
        err!("this is request {id}; to ask for it again, give --request-id {id}");
        id
    });
    SendRequest::check_id(&id).map_err(|error| Failure::usage(error.to_string()))?;
    let deadline_ms = args.deadline.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
    let request_id = Some(id.clone());
    let question = Question::Send { call, signed, request_id, deadline_ms };
    // Whatever became of it, the id makes the next try safe.
    let named = |failure: Failure| {
        let again = match failure.exit {
            Exit::NoLeader | Exit::Uncertain | Exit::Failed => {
                format!("; ask again with --request-id {id}")
            }
            _ => format!(" (request {id})"),
        };
        let failure = Failure::new(failure.exit, format!("{failure}{again}"));
        also_in_json(args.json, failure, Some(&id))
    };
    let accepted = match ask(&args.nodes, args.nodes.within, &question).await {
        Reply::Ok(value) => progress(value).map_err(named)?,
        Reply::Error { code, message, .. } => return Err(named(failed(&code, &message))),
    };
    match args.wait {
        Some(patience) if !accepted.ended => {
            let ended = wait_for(&args.nodes, &id, patience).await.map_err(|failure| {
                // It is stored, so no failure to hear of its end is a no.
                let nonce = accepted.nonce;
                let message =
                    format!("accepted as nonce {nonce}, but its end is unknown: {failure}");
                named(Failure::new(Exit::Uncertain, message))
            })?;
            Ok(told(&ended, args.json))
        }
        Some(_) | None if accepted.ended => Ok(told(&accepted, args.json)),
        Some(_) | None => {
            // Stored, and that was asked for.
            told(&accepted, args.json);
            Ok(Exit::Clean)
        }
    }
}

/// A program that reads JSON gets a failure so too.
fn also_in_json(json: bool, failure: Failure, request_id: Option<&str>) -> Failure {
    if json {
        let (exit, message) = (failure.exit.code(), failure.to_string());
        out!("{}", json!({"error": {"exit": exit, "message": message, "request_id": request_id}}));
    }
    failure
}

fn progress(value: Value) -> Result<Progress, Failure> {
    serde_json::from_value(value).map_err(unreadable)
}

/// Prints where a request stands; the exit code is that of its end.
fn told(progress: &Progress, json: bool) -> Exit {
    let Progress { nonce, hash, request_id, state, noop, end, answer, standalone, .. } = progress;
    let corrected = progress.corrected.as_ref();
    let corrected = corrected.map(|end| format!("; corrected, told before: {end}"));
    if json {
        out!("{}", serde_json::to_string(progress).expect("its keys are texts"));
    } else {
        let was = match end {
            Some(end) => end.to_string(),
            None if *noop => format!("open ({state}), a no-op is to take its place"),
            None if *state == State::Future && answer.is_none() => "accepted".to_owned(),
            None => format!("accepted ({state})"),
        };
        let alone = if *standalone { ", by a standalone node" } else { "" };
        let said = answer.as_ref().filter(|_| end.is_none());
        let said = said.map(|said| format!("; the chain's node said: {said}")).unwrap_or_default();
        out!(
            "{was}{alone}: nonce {nonce}, {hash} (request {request_id}){said}{}",
            corrected.unwrap_or_default()
        );
    }
    match end {
        Some(end) => exit_of(end),
        None => Exit::Uncertain,
    }
}

/// The exit code of an end.
pub(super) fn exit_of(end: &End) -> Exit {
    match end.kind {
        EndKind::Executed => Exit::Clean,
        // Whether it succeeded, the node did not say.
        EndKind::Included => Exit::Uncertain,
        EndKind::Reverted
        | EndKind::Replaced
        | EndKind::Withdrawn
        | EndKind::Refused
        | EndKind::Expired
        | EndKind::Usurped => Exit::NotExecuted,
    }
}

pub(super) async fn wait(args: WaitArgs) -> Result<Exit, Failure> {
    let progress = wait_for(&args.nodes, &args.request_id, args.patience).await;
    let progress = progress.map_err(|it| also_in_json(args.json, it, Some(&args.request_id)))?;
    Ok(told(&progress, args.json))
}

/// Asks for a request until it has ended, or the time is over: then as it stands. A node that answers
/// is looked for as long as the time allows, and no longer than for any other question.
async fn wait_for(nodes: &NodesArgs, id: &str, patience: Duration) -> Result<Progress, Failure> {
    let until = Instant::now() + patience;
    let left = || until.saturating_duration_since(Instant::now());
    // Each node is asked for what is left when it is its turn, and has a moment more for its answer.
    let turn = || {
        let within = left().min(ONE_NODE / 2);
        let within_ms = u64::try_from(within.as_millis()).unwrap_or(u64::MAX);
        let line = line_of(&Question::Wait { request_id: id.to_owned(), within_ms });
        // Any node's answer is as good as another's.
        Turn { line, limit: within + LAST_LOOK, is_last: within.is_zero() }
    };
    loop {
        let within = left();
        match ask_in_turn(nodes, nodes.within.min(within), turn).await {
            Reply::Ok(value) => {
                let progress = progress(value)?;
                if progress.ended || within.is_zero() {
                    return Ok(progress);
                }
            }
            // The node could not look it up: what became of the request is not known.
            Reply::Error { code, message, .. } if code == "store" => {
                return Err(Failure::new(Exit::Uncertain, message));
            }
            Reply::Error { code, message, .. } => return Err(failed(&code, &message)),
        }
    }
}

pub(super) async fn drop_nonce(args: DropArgs) -> Result<Exit, Failure> {
    let (json, id) = (args.json, args.request_id.clone());
    ordered(args).await.map_err(|failure| also_in_json(json, failure, id.as_deref()))
}

async fn ordered(args: DropArgs) -> Result<Exit, Failure> {
    let question = Question::Cancel { nonce: args.nonce, request_id: args.request_id.clone() };
    let Drop { nonce, request_id, dropped } =
        match ask(&args.nodes, args.nodes.within, &question).await {
            Reply::Ok(value) => serde_json::from_value(value).map_err(unreadable)?,
            Reply::Error { code, message, .. } => return Err(failed(&code, &message)),
        };
    // A block may leave the chain again: it is not final yet that the request counts.
    let stands = match &dropped {
        Dropped::Ordered { .. } => Some("a no-op is stored for"),
        Dropped::Mined { .. } => Some("a block has"),
        _ => None,
    };
    if let (Some(stands), Some(id), Some(patience)) = (stands, &args.request_id, args.wait) {
        let progress = wait_for(&args.nodes, id, patience).await.map_err(|failure| {
            let message = format!(
                "{stands} nonce {nonce}, but what counts in the end is unknown: {failure}; ask again with \
                 `tenure tx wait {id}`"
            );
            Failure::new(Exit::Uncertain, message)
        })?;
        told(&progress, args.json);
        return Ok(progress.end.as_ref().map_or(Exit::Uncertain, |end| given_up(end.kind)));
    }
    let exit = match &dropped {
        Dropped::Ordered { .. } => Exit::Clean,
        Dropped::Ended(end) => given_up(end.kind),
        _ => Exit::Failed,
    };
    if args.json {
        let drop = Drop { nonce, request_id, dropped };
        out!("{}", serde_json::to_string(&drop).expect("an answer has text for keys"));
        return Ok(exit);
    }
    match &dropped {
        Dropped::Ordered { hash } => out!(
            "ordered: a no-op ({hash}) is stored for nonce {nonce}; whichever of the two is final \
             first counts, and `tenure tx show --nonce {nonce}` tells"
        ),
        Dropped::Mined { hash, block } => {
            out!("not dropped: nonce {nonce} is in block {block} already, as {hash}")
        }
        Dropped::Ended(end) if exit == Exit::Clean => out!("dropped: nonce {nonce}: {end}"),
        Dropped::Ended(end) => out!("not dropped: nonce {nonce} has ended: {end}"),
        // `Dropped` may grow.
        other => out!("nonce {nonce}: {other:?}"),
    }
    Ok(exit)
}

/// Whether a request that was to be dropped has not executed.
fn given_up(end: EndKind) -> Exit {
    match end {
        EndKind::Replaced | EndKind::Withdrawn | EndKind::Expired | EndKind::Refused => Exit::Clean,
        EndKind::Executed | EndKind::Included | EndKind::Reverted | EndKind::Usurped => {
            Exit::Failed
        }
    }
}

fn unreadable(error: serde_json::Error) -> Failure {
    Failure::failed(format!(
        "the node's answer cannot be read: {error}; use one version everywhere"
    ))
}

/// A node's refusal, or that none answers.
fn failed(code: &str, message: &str) -> Failure {
    match code {
        "not_leader" | "draining" | "stopped" => {
            Failure::new(Exit::NoLeader, format!("no node leads: {message}"))
        }
        "unreachable" => Failure::new(Exit::NoLeader, message),
        "uncertain" | "silent" => Failure::new(Exit::Uncertain, message),
        // Nothing was done, and it is not the request's fault: the same again may do.
        "store" | "busy" | "clash" | "too_many_open" | "signer_unavailable" | "too_dear"
        | "no_key" | "foreign" => Failure::failed(message),
        "may_be_lost" => {
            let remedy = "or start the nodes with --accept-loss";
            Failure::new(Exit::Refused, format!("{message}; {remedy}"))
        }
        "not_found" => Failure::new(Exit::NotFound, message),
        // All others are about the request itself.
        _ => Failure::new(Exit::Rejected, message),
    }
}

/// How long one node may take: a frozen one is not waited for, the next is asked.
const ONE_NODE: Duration = Duration::from_secs(5);

/// What a node has beyond the time that it is to wait for an end: at least one look is made, however short
/// that time is, and a look may take a node one second.
const LAST_LOOK: Duration = Duration::from_secs(2);

/// The longest answer that is read: what answers at a mistyped address may have no end.
const LONGEST_ANSWER: u64 = 64 << 20;

/// The codes of answers that a node may give differently a moment later.
const PASSING: [&str; 10] = [
    "not_leader",
    "draining",
    "stopped",
    "busy",
    "uncertain",
    "store",
    "clash",
    "too_many_open",
    "signer_unavailable",
    "foreign",
];

/// Asks all nodes in turn until one answers for good. Only what a leader may answer differently
/// later is asked again; the request id makes that safe.
async fn ask(nodes: &NodesArgs, within: Duration, question: &Question) -> Reply {
    let line = line_of(question);
    let turn = || Turn { line: line.clone(), limit: ONE_NODE, is_last: false };
    ask_in_turn(nodes, within, turn).await
}

fn line_of(question: &Question) -> String {
    let mut line = serde_json::to_string(question).expect("a question has text for keys");
    line.push('\n');
    line
}

/// What one node is asked when it is its turn.
struct Turn {
    line: String,
    /// How long this node may take.
    limit: Duration,
    /// The time is over: it is asked only if no other node has answered.
    is_last: bool,
}

/// The same with a question of its own for each node.
async fn ask_in_turn(nodes: &NodesArgs, within: Duration, turn: impl Fn() -> Turn) -> Reply {
    let (begun, until) = (Instant::now(), Instant::now() + within);
    let all = nodes.nodes.join(", ");
    let message = format!("no node answers at {all}; check that the nodes run there");
    // Once a node may have taken the request, no later refusal, of this node or another one, is the whole truth.
    let (mut silent, mut doubt, mut last) = (None, None, None);
    let mut answered = false;
    loop {
        // A follower knows what is accepted; only the leader knows what waits for it.
        let (mut absent, mut waits) = (None, false);
        for address in &nodes.nodes {
            let Turn { line, limit, is_last } = turn();
            if is_last && answered {
                break;
            }
            match timeout(limit, ask_one(address, &line)).await {
                Ok(Ok(Reply::Error { code, message, request_id }))
                    if PASSING.contains(&code.as_str()) =>
                {
                    waits |= code == "uncertain";
                    let place = if code == "uncertain" { &mut doubt } else { &mut last };
                    *place = Some(Reply::Error { code, message, request_id });
                    answered = true;
                }
                Ok(Ok(Reply::Error { code, message, request_id })) if code == "not_found" => {
                    absent = Some(Reply::Error { code, message, request_id });
                    answered = true;
                }
                Ok(Ok(reply)) => return reply,
                Ok(Err(Unanswered::NotAsked)) => {}
                Ok(Err(Unanswered::Silent)) => {
                    silent = Some(format!("{address} took the question and went away"));
                }
                Ok(Err(Unanswered::Strange)) => {
                    silent = Some(format!(
                        "{address} gave an answer that no node of this version gives; check --node"
                    ));
                }
                Err(_) => {
                    silent = Some(format!(
                        "{address} took the question and gave no answer; read its log, it may be \
                         waiting for the chain or the database"
                    ));
                }
            }
        }
        if let Some(absent) = absent.filter(|_| !waits) {
            return absent;
        }
        if Instant::now() >= until {
            return match silent {
                Some(silence) => {
                    let asked = begun.elapsed().as_secs_f64();
                    let message =
                        format!("the outcome is unknown after {asked:.1} s of asking: {silence}");
                    Reply::error("silent", message)
                }
                None => doubt.or(last).unwrap_or_else(|| Reply::error("unreachable", message)),
            };
        }
        sleep(Duration::from_millis(100)).await;
    }
}

/// A node gave no answer.
enum Unanswered {
    /// It was not there.
    NotAsked,
    /// It may have read the question.
    Silent,
    /// It answered something else.
    Strange,
}

async fn ask_one(address: &str, line: &str) -> Result<Reply, Unanswered> {
    // An address at which no machine answers has not taken the question.
    let stream = match timeout(ONE_NODE / 3, TcpStream::connect(address)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(_)) | Err(_) => return Err(Unanswered::NotAsked),
    };
    let mut stream = BufReader::new(stream);
    stream.write_all(line.as_bytes()).await.map_err(|_| Unanswered::Silent)?;
    let mut answer = String::new();
    let read = stream.take(LONGEST_ANSWER).read_line(&mut answer).await;
    read.map_err(|_| Unanswered::Silent)?;
    // Half a line is of a node that went away.
    let whole = answer.ends_with('\n');
    let unread = if whole { Unanswered::Strange } else { Unanswered::Silent };
    serde_json::from_str(&answer).map_err(|_| unread)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_named_by_host_and_port() {
        for good in ["localhost:7001", "10.0.0.7:7001", "[::1]:7001", "relayer-1.internal:1"] {
            assert_eq!(node_address(good).as_deref(), Ok(good));
        }
        for bad in ["", "7001", "localhost", ":7001", "::1", "localhost:", "localhost:70010", "a:b"]
        {
            assert!(node_address(bad).is_err(), "{bad}");
        }
    }
}
