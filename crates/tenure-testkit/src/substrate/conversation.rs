//! One caller's web socket, as the test's own nodes serve it.

use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::sync::{broadcast, mpsc};
use tokio_tungstenite::tungstenite::Message;

/// Hands each request to `respond`, with a way to say something now or later, until the caller leaves or the line is cut.
pub(super) async fn converse(
    stream: TcpStream,
    mut cut: broadcast::Receiver<()>,
    mut respond: impl FnMut(&Value, &mpsc::UnboundedSender<Value>),
) {
    let Ok(socket) = tokio_tungstenite::accept_async(stream).await else { return };
    let (mut sink, mut source) = socket.split();
    let (out, mut outbox) = mpsc::unbounded_channel::<Value>();
    loop {
        // All branches are cancel-safe: channels and a stream.
        tokio::select! {
            _ = cut.recv() => return,
            Some(value) = outbox.recv() => {
                if sink.send(Message::text(value.to_string())).await.is_err() {
                    return;
                }
            }
            message = source.next() => {
                let Some(Ok(message)) = message else { return };
                let Ok(text) = message.to_text() else { continue };
                let Ok(request) = serde_json::from_str::<Value>(text) else { continue };
                respond(&request, &out);
            }
        }
    }
}
