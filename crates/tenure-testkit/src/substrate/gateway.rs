//! What stands between a program and its Substrate node: it records what passes to a real one, or plays
//! the node from a recording. The test's own orders go through it too.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{broadcast, mpsc};
use tokio_tungstenite::tungstenite::Message;

use super::conversation::converse;
use super::development::DevelopmentNode;
use super::tape::{Event, Player, RESTART, Recorder};

/// The gateway; it serves until the runtime ends.
pub struct Gateway {
    /// Where the program finds its node.
    pub url: String,
    shared: Arc<Shared>,
}

impl std::fmt::Debug for Gateway {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gateway").field("url", &self.url).finish_non_exhaustive()
    }
}

struct Shared {
    source: Source,
    connections: AtomicUsize,
    cut: broadcast::Sender<()>,
}

enum Source {
    Node { node: Box<tokio::sync::Mutex<DevelopmentNode>>, url: String, recorder: Mutex<Recorder> },
    Tape(Mutex<Playback>),
}

struct Playback {
    player: Player,
    /// Where words about a subscription go.
    subscriptions: HashMap<String, mpsc::UnboundedSender<Value>>,
    missing: Vec<String>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("unpoisoned")
}

impl Playback {
    fn answer(&mut self, method: &str, params: &Value) -> Value {
        self.player.answer(method, params).unwrap_or_else(|| {
            let asked: String = format!("{method} {params}").chars().take(300).collect();
            let text = format!("{asked} is not in the recording: run make record-substrate");
            self.missing.push(text.clone());
            json!({"error": {"code": -32000, "message": text}})
        })
    }

    fn tell(&mut self) {
        for (subscription, result) in self.player.due() {
            let params = json!({"subscription": subscription, "result": result});
            let word =
                json!({"jsonrpc": "2.0", "method": "author_extrinsicUpdate", "params": params});
            if let Some(out) = self.subscriptions.get(&subscription.to_string()) {
                // The program may have left.
                let _ = out.send(word);
            }
        }
    }
}

impl Gateway {
    /// Before a real node; everything that passes is recorded.
    pub async fn before(node: DevelopmentNode) -> Self {
        let (url, recorder) = (node.url.clone(), Mutex::default());
        let node = Box::new(tokio::sync::Mutex::new(node));
        Self::start(Source::Node { node, url, recorder }).await
    }

    /// Instead of a node.
    pub async fn replay(events: Vec<Event>) -> Self {
        let player = Player::new(events);
        let (subscriptions, missing) = Default::default();
        Self::start(Source::Tape(Mutex::new(Playback { player, subscriptions, missing }))).await
    }

    async fn start(source: Source) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("ws://{}", listener.local_addr().expect("bound"));
        let (connections, cut) = (AtomicUsize::new(0), broadcast::Sender::new(4));
        let shared = Arc::new(Shared { source, connections, cut });
        let serving = Arc::clone(&shared);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                serving.connections.fetch_add(1, Ordering::Relaxed);
                let (shared, cut) = (Arc::clone(&serving), serving.cut.subscribe());
                tokio::spawn(async move {
                    match &shared.source {
                        Source::Node { url, recorder, .. } => pass(stream, url, recorder).await,
                        Source::Tape(playback) => {
                            let respond = |request: &Value, out: &_| {
                                respond(&mut locked(playback), request, out);
                            };
                            converse(stream, cut, respond).await;
                        }
                    }
                });
            }
        });
        Gateway { url, shared }
    }

    /// An order or a question of the test itself.
    ///
    /// # Errors
    /// The node's error object.
    pub async fn call(&self, method: &str, params: Value) -> Result<Value, Value> {
        let answer = match &self.shared.source {
            Source::Node { node, recorder, .. } => {
                let place = locked(recorder).asked(method, &params);
                let answer = match node.lock().await.call(method, &params).await {
                    Ok(result) => json!({"result": result}),
                    Err(error) => json!({"error": error}),
                };
                locked(recorder).answered(place, answer.clone());
                answer
            }
            Source::Tape(playback) => {
                let mut playback = locked(playback);
                let answer = playback.answer(method, &params);
                playback.tell();
                answer
            }
        };
        match answer.get("error") {
            Some(error) => Err(error.clone()),
            None => Ok(answer["result"].clone()),
        }
    }

    /// Ends the node and starts it again; all connections break.
    pub async fn restart(&self) {
        match &self.shared.source {
            Source::Node { node, recorder, .. } => {
                let place = locked(recorder).asked(RESTART, &json!([]));
                node.lock().await.restart().await;
                locked(recorder).answered(place, json!({"result": null}));
            }
            Source::Tape(playback) => {
                let mut playback = locked(playback);
                playback.answer(RESTART, &json!([]));
                playback.subscriptions.clear();
                let _ = self.shared.cut.send(());
            }
        }
    }

    /// How many connections the program has opened.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::Relaxed)
    }

    /// What passed, if there is a node.
    #[must_use]
    pub fn recorded(&self) -> Option<Vec<Event>> {
        match &self.shared.source {
            Source::Node { recorder, .. } => Some(locked(recorder).events()),
            Source::Tape(_) => None,
        }
    }

    /// What was asked and is not in the recording.
    #[must_use]
    pub fn missing(&self) -> Vec<String> {
        match &self.shared.source {
            Source::Node { .. } => Vec::new(),
            Source::Tape(playback) => locked(playback).missing.clone(),
        }
    }
}

/// When a program lets go of a subscription is a matter of chance, so that is never recorded.
const LET_GO: &str = "author_unwatchExtrinsic";

async fn pass(stream: TcpStream, url: &str, recorder: &Mutex<Recorder>) {
    let Ok(near) = tokio_tungstenite::accept_async(stream).await else { return };
    let Ok((far, _)) = tokio_tungstenite::connect_async(url).await else { return };
    let ((mut to_near, mut from_near), (mut to_far, mut from_far)) = (near.split(), far.split());
    let mut open: HashMap<String, usize> = HashMap::new();
    loop {
        // Both branches are cancel-safe: streams of whole messages.
        let sent = tokio::select! {
            message = from_near.next() => {
                let Some(Ok(message)) = message else { return };
                // Pings are answered by either end itself.
                if !message.is_text() {
                    continue;
                }
                let request = json_of(&message);
                let method = request["method"].as_str().unwrap_or_default();
                if method != LET_GO {
                    let place = locked(recorder).asked(method, &request["params"]);
                    open.insert(request["id"].to_string(), place);
                }
                to_far.send(message).await
            }
            message = from_far.next() => {
                let Some(Ok(message)) = message else { return };
                if !message.is_text() {
                    continue;
                }
                let mut answer = json_of(&message);
                if let Some(place) = open.remove(&answer["id"].to_string()) {
                    let part = if answer.get("error").is_some() { "error" } else { "result" };
                    locked(recorder).answered(place, json!({part: answer[part].take()}));
                } else if answer.get("method").is_some() {
                    let params = &mut answer["params"];
                    let (name, word) = (params["subscription"].take(), params["result"].take());
                    locked(recorder).told(name, word);
                }
                to_near.send(message).await
            }
        };
        if sent.is_err() {
            return;
        }
    }
}

fn respond(playback: &mut Playback, request: &Value, out: &mpsc::UnboundedSender<Value>) {
    let method = request["method"].as_str().unwrap_or_default();
    let mut answer = match method {
        LET_GO => json!({"result": true}),
        _ => playback.answer(method, &request["params"]),
    };
    answer["jsonrpc"] = json!("2.0");
    answer["id"] = request["id"].clone();
    if let Some(subscription) = answer.get("result").filter(|_| method == super::tape::SUBMIT) {
        playback.subscriptions.insert(subscription.to_string(), out.clone());
    }
    // The subscription's name first, and what is said about it afterwards.
    let _ = out.send(answer);
    playback.tell();
}

fn json_of(message: &Message) -> Value {
    message.to_text().ok().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}
