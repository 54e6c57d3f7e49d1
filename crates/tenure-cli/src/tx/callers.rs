//! A node's side of its callers' connections.
//!
//! It has no login, so what one caller may take is bounded: connections, the length of a line, the
//! bytes of all unfinished lines together, and time. A node that is short of memory or of file
//! descriptors could neither read the table nor hold its role.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use serde::Deserializer as _;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde_json::{Value, json};
use tenure_tx::election::NodeRole;
use tenure_tx::service::{Payload, SendError, SendRequest, TransactionService};
use tenure_tx::status::unhex;
use tokio::io::{AsyncBufRead, AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::unread;
use super::wire::{Drop, Progress, Question, Reply};

/// Connections at once. One more takes the place of the one that has been silent for longest.
const CONNECTIONS: usize = 256;
/// How long a connection may stay without a question.
const IDLE: Duration = Duration::from_secs(60);
/// How long a line may take from its first byte to its last.
const LINE: Duration = Duration::from_secs(10);
/// How long a caller may take to read its answer.
const ANSWER: Duration = Duration::from_secs(10);
/// Bytes of all lines together that are longer than [`SHORT`].
const BYTES: usize = 32 << 20;
/// A line up to this length needs no share of [`BYTES`].
const SHORT: usize = 8 << 10;
/// How long one question may wait for a request's end; a caller asks again.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// What a line may have beside the call itself.
const FRAME: usize = 4 << 10;

/// What all callers share.
struct Room {
    connections: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
    /// The longest line.
    longest: usize,
    silent: Mutex<Silent>,
}

/// The connections that wait for a line, or for the end of a request, the longest-waiting first;
/// dropping an entry ends one.
#[derive(Default)]
struct Silent {
    next: u64,
    waiting: BTreeMap<u64, oneshot::Sender<()>>,
}

impl Room {
    fn new(max_bytes: usize) -> Self {
        // Hex is twice as long as its bytes.
        let longest = (2 * max_bytes + FRAME).min(BYTES);
        Room {
            connections: Arc::new(Semaphore::new(CONNECTIONS)),
            bytes: Arc::new(Semaphore::new(BYTES)),
            longest,
            silent: Mutex::default(),
        }
    }

    fn silent(&self) -> std::sync::MutexGuard<'_, Silent> {
        self.silent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for one more connection, if need be that of one that says nothing, or only waits for an
    /// end: it may ask again. `None`: all are being answered.
    async fn place(&self) -> Option<OwnedSemaphorePermit> {
        if let Ok(place) = Arc::clone(&self.connections).try_acquire_owned() {
            return Some(place);
        }
        self.silent().waiting.pop_first()?;
        let place = Arc::clone(&self.connections).acquire_owned();
        timeout(Duration::from_secs(1), place).await.ok()?.ok()
    }
}

/// Serves callers until the listener's task is dropped.
pub(super) async fn serve(
    listener: TcpListener,
    service: Arc<TransactionService>,
    max_bytes: usize,
) {
    let room = Arc::new(Room::new(max_bytes));
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Out of descriptors, most likely: a pause lets some be closed.
            sleep(Duration::from_millis(100)).await;
            continue;
        };
        let Some(place) = room.place().await else {
            // Closed without an answer: writing one would be work for a caller beyond the bound.
            tracing::warn!(connections = CONNECTIONS, "too many callers at once; one was refused");
            continue;
        };
        let (service, room) = (Arc::clone(&service), Arc::clone(&room));
        tokio::spawn(async move {
            if let Err(error) = converse(stream, &service, &room).await {
                tracing::debug!(%error, "a caller's connection ended");
            }
            drop(place);
        });
    }
}

async fn converse(stream: TcpStream, service: &TransactionService, room: &Room) -> io::Result<()> {
    let (read, mut write) = stream.into_split();
    let mut reader = BufReader::with_capacity(SHORT, read);
    loop {
        let (ticket, mut evicted) = oneshot::channel();
        let number = {
            let mut silent = room.silent();
            silent.next += 1;
            let number = silent.next;
            silent.waiting.insert(number, ticket);
            number
        };
        // What was read of a line is lost with the connection in either other branch.
        let line = tokio::select! {
            line = next_line(&mut reader, room) => line,
            _ = &mut evicted => return Ok(()),
        };
        let asked = match &line {
            Ok(Next::Line(line)) => Some(serde_json::from_slice(&line.bytes)),
            Ok(Next::End | Next::TooLong(_) | Next::Busy(_)) | Err(_) => None,
        };
        // A wait changes nothing, so it may lose its place while it is answered, like a silent caller.
        let waits = matches!(asked, Some(Ok(Question::Wait { .. })));
        if !waits {
            room.silent().waiting.remove(&number);
        }
        let reply = async {
            match asked? {
                Ok(question) => Some(answer(question, service).await),
                Err(error) => {
                    let id = match &line {
                        Ok(Next::Line(line)) => id_in(&line.bytes),
                        Ok(Next::End | Next::TooLong(_) | Next::Busy(_)) | Err(_) => None,
                    };
                    let message = format!(
                        "not a question ({error}); send one JSON object per line, with an \"op\""
                    );
                    Some(malformed(id, &message))
                }
            }
        };
        // What was answered to a wait is lost with the connection in the other branch.
        let reply = tokio::select! {
            reply = reply => reply,
            _ = &mut evicted, if waits => return Ok(()),
        };
        room.silent().waiting.remove(&number);
        let (reply, go_on) = match (line?, reply) {
            (Next::Line(_), Some(reply)) => (reply, true),
            (Next::Line(_) | Next::End, _) => return Ok(()),
            (Next::TooLong(id), _) => {
                let message = format!(
                    "a line has at most {} bytes on this node; send less at once",
                    room.longest
                );
                (Reply::about(id, "too_large", message), false)
            }
            (Next::Busy(id), _) => {
                let message = "too many long requests are on their way; ask again in a moment";
                (Reply::about(id, "busy", message), false)
            }
        };
        let mut text = serde_json::to_string(&reply)?;
        text.push('\n');
        timeout(ANSWER, write.write_all(text.as_bytes())).await??;
        if !go_on {
            // The rest of the line is read, not kept: what is left unread would reset the connection, and
            // the caller might lose its answer.
            let rest = async {
                while discard(&mut reader).await? > 0 {}
                io::Result::Ok(())
            };
            let _ = timeout(ANSWER, rest).await;
            return Ok(());
        }
    }
}

/// What a caller's connection brings next.
enum Next {
    Line(Line),
    /// It ended, or was silent for too long.
    End,
    /// With the id of its request, if what was read of it has one.
    TooLong(Option<String>),
    /// Other callers' long lines leave no room for this one.
    Busy(Option<String>),
}

/// A line with its share of the bytes that all callers have together.
struct Line {
    bytes: Vec<u8>,
    _share: Vec<OwnedSemaphorePermit>,
}

/// Reads a line within its bounds. Not cancel-safe: what was read of it is lost.
async fn next_line<R: AsyncBufRead + Unpin>(reader: &mut R, room: &Room) -> io::Result<Next> {
    let (mut bytes, mut share) = (Vec::new(), Vec::new());
    let mut reserved = SHORT;
    let mut until = Instant::now() + IDLE;
    loop {
        let Ok(chunk) = timeout_at(until, reader.fill_buf()).await else { return Ok(Next::End) };
        let chunk = chunk?;
        if chunk.is_empty() {
            return Ok(Next::End);
        }
        if bytes.is_empty() {
            until = Instant::now() + LINE;
        }
        let end = chunk.iter().position(|byte| *byte == b'\n');
        let taken = end.map_or(chunk.len(), |at| at + 1);
        let length = bytes.len() + taken;
        if length > room.longest {
            return Ok(Next::TooLong(id_in_part(&bytes, chunk)));
        }
        if length > reserved {
            // Twice as much each time, as the vector grows.
            let more = reserved.max(length - reserved);
            let permits = u32::try_from(more).unwrap_or(u32::MAX);
            match Arc::clone(&room.bytes).try_acquire_many_owned(permits) {
                Ok(permit) => share.push(permit),
                Err(_) => return Ok(Next::Busy(id_in_part(&bytes, chunk))),
            }
            reserved += more;
        }
        bytes.extend_from_slice(&chunk[..taken]);
        reader.consume(taken);
        if end.is_some() {
            return Ok(Next::Line(Line { bytes, _share: share }));
        }
    }
}

/// Throws away what has arrived; how much it was.
async fn discard<R: AsyncBufRead + Unpin>(reader: &mut R) -> io::Result<usize> {
    let length = reader.fill_buf().await?.len();
    reader.consume(length);
    Ok(length)
}

async fn answer(question: Question, service: &TransactionService) -> Reply {
    let standalone = service.role() == NodeRole::Standalone;
    match question {
        Question::Send { call, signed, request_id, deadline_ms } => {
            let payload = match (call, signed.as_deref().map(unhex)) {
                (Some(call), None) => match encoded(&call) {
                    Some(bytes) => Payload::Call(bytes),
                    None => {
                        let message = "a call in text is hex, of an even number of digits";
                        return malformed(request_id, message);
                    }
                },
                (None, Some(Some(raw))) => Payload::Signed(raw.into()),
                (None, Some(None)) => {
                    let message = "signed bytes are hex, of an even number of digits";
                    return malformed(request_id, message);
                }
                (None, None) | (Some(_), Some(_)) => {
                    return malformed(request_id, "give either a call or signed bytes");
                }
            };
            let mut request = SendRequest::new(payload);
            request.request_id = request_id;
            request.deadline = deadline_ms.map(Duration::from_millis);
            // Named before it is queued, so that every answer carries the id.
            let (request, id) = request.named();
            match service.send(request).await {
                Ok(handle) => {
                    let state = handle.state();
                    Reply::ok(&Progress {
                        nonce: handle.nonce,
                        hash: state.hash,
                        request_id: id,
                        state: state.status.state(),
                        noop: state.noop,
                        ended: state.ended(),
                        end: state.note.end.map(|end| *end),
                        answer: state.note.answer,
                        corrected: state.note.corrected.map(|end| *end),
                        standalone,
                    })
                }
                Err(error) => refused(&error, Some(id)),
            }
        }
        Question::Cancel { nonce, request_id } => {
            let answer = match (nonce, &request_id) {
                (Some(nonce), None) => {
                    let dropped = service.cancel_nonce(nonce).await;
                    dropped.map(|(id, dropped)| (nonce, id, dropped))
                }
                (None, Some(id)) => {
                    let dropped = service.cancel_request(id).await;
                    dropped.map(|(nonce, dropped)| (nonce, id.clone(), dropped))
                }
                (None, None) | (Some(_), Some(_)) => {
                    return malformed(request_id, "give either a nonce or a request_id");
                }
            };
            match answer {
                Ok((nonce, id, dropped)) => {
                    Reply::ok(&Drop { nonce, request_id: Some(id), dropped })
                }
                Err(error) => refused(&error, request_id),
            }
        }
        Question::Wait { request_id, within_ms } => {
            if let Err(error) = SendRequest::check_id(&request_id) {
                return refused(&error, Some(request_id));
            }
            let within = Duration::from_millis(within_ms).min(LONGEST_WAIT);
            let pending = service.is_pending(&request_id).await;
            match service.wait(&request_id, within).await {
                Ok(Some(row)) => Reply::ok(&Progress::of(row, standalone)),
                Ok(None) if pending => {
                    let message = format!(
                        "request {request_id} waits to be accepted, or was refused by now; ask again under \
                         the same id"
                    );
                    Reply::about(Some(request_id), "uncertain", message)
                }
                Ok(None) => {
                    let message = format!(
                        "no request has the id {request_id}; it was not accepted, or its id is forgotten; \
                         if its outcome was unknown, send it again under the same id, never under another"
                    );
                    Reply::about(Some(request_id), "not_found", message)
                }
                Err(error) => Reply::about(Some(request_id), "store", unread(&error)),
            }
        }
        Question::Status => Reply::ok(&json!({
            "role": service.role(),
            "standalone": standalone,
            "epoch": service.epoch().map(|epoch| epoch.get()),
            "open": service.open().await,
            "stale": service.is_stale(),
            "chain_lost": service.is_chain_lost(),
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

/// The id that a line which is no question names.
fn id_in(line: &[u8]) -> Option<String> {
    let line: Value = serde_json::from_slice(line).ok()?;
    let id = line.get("request_id")?.as_str()?;
    SendRequest::check_id(id).ok().map(|()| id.to_owned())
}

/// The id in a line of which only the beginning is there.
fn id_in_part(read: &[u8], chunk: &[u8]) -> Option<String> {
    let part = if read.is_empty() { chunk } else { read };
    let mut id = None;
    // It fails where the beginning ends, and has seen what was before.
    let _ = serde_json::Deserializer::from_slice(part).deserialize_map(OwnId(&mut id));
    id.filter(|id| SendRequest::check_id(id).is_ok())
}

/// Notes the `request_id` of the question itself: a call may have an argument of that name.
struct OwnId<'a>(&'a mut Option<String>);

impl<'de> Visitor<'de> for OwnId<'_> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a question")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut question: A) -> Result<(), A::Error> {
        while let Some(name) = question.next_key::<String>()? {
            match name.as_str() {
                "request_id" => *self.0 = Some(question.next_value()?),
                _ => drop(question.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }
}

fn malformed(id: Option<String>, message: &str) -> Reply {
    Reply::about(id, "malformed", message)
}

fn refused(error: &SendError, id: Option<String>) -> Reply {
    // Of a nonce that was named the node knows the request.
    let known = match error {
        SendError::Uncertain { request_id, .. } | SendError::Undecided { request_id, .. } => {
            Some(request_id.clone())
        }
        _ => None,
    };
    Reply::about(id.or(known), error.code(), error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room() -> Room {
        Room::new(128 << 10)
    }

    async fn read(text: &[u8], room: &Room) -> Next {
        next_line(&mut BufReader::with_capacity(SHORT, text), room).await.expect("no error")
    }

    #[tokio::test]
    async fn a_line_is_read_up_to_its_end() {
        let room = room();
        let long = [vec![b'x'; 100 << 10], vec![b'\n', b'y']].concat();
        let Next::Line(line) = read(&long, &room).await else { panic!("a line") };
        assert_eq!(line.bytes.len(), (100 << 10) + 1);
        assert!(room.bytes.available_permits() < BYTES, "it has its share");
        drop(line);
        assert_eq!(room.bytes.available_permits(), BYTES, "and gives it back");
    }

    #[tokio::test]
    async fn a_line_without_an_end_is_no_line_and_an_endless_one_is_refused() {
        let room = room();
        assert!(matches!(read(b"{\"op\":", &room).await, Next::End));
        assert!(matches!(read(&vec![b'x'; 1 << 20], &room).await, Next::TooLong(_)));
        assert_eq!(room.bytes.available_permits(), BYTES);
    }

    #[test]
    fn the_id_of_a_line_that_is_cut_short_is_the_questions_own() {
        let id = |part: &str| id_in_part(part.as_bytes(), b"");
        let rent = Some("rent".to_owned());
        assert_eq!(id(r#"{"op":"send","request_id":"rent","call":"0xab"#), rent);
        assert_eq!(id(r#"{ "request_id" : "rent" , "call": {"to": "0xab"#), rent);
        let nested = r#"{"op":"send","call":{"request_id":"theirs","data":"0xab"#;
        assert_eq!(id(nested), None, "an argument of the call is no id");
        let both = r#"{"call":{"request_id":"theirs","more":["}"]},"request_id":"rent","x":"0x"#;
        assert_eq!(id(both), rent);
        let said = r#"{"call":"\"request_id\":\"theirs\"","deadline_ms":1"#;
        assert_eq!(id(said), None, "nor are its words");
        assert_eq!(id(r#"{"op":"send","request_id":"re"#), None, "half an id is none");
        assert_eq!(id(r#"{"op":"send","request_id":7,"call":"#), None);
        assert_eq!(
            id_in_part(b"", br#"{"request_id":"rent","call":""#),
            rent,
            "in its first chunk"
        );
    }

    #[tokio::test]
    async fn long_lines_share_a_bounded_number_of_bytes_and_short_ones_need_none() {
        let room = room();
        let all = Arc::clone(&room.bytes).try_acquire_many_owned(BYTES as u32).expect("free");
        assert!(matches!(read(&[b'x'; 20 << 10], &room).await, Next::Busy(_)));
        assert!(matches!(read(b"{\"op\":\"status\"}\n", &room).await, Next::Line(_)));
        drop(all);
    }
}
