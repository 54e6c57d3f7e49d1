//! A member's way to the database that can be cut: a proxy between two unix sockets.
//!
//! A cut link *holds* bytes, as a broken network makes TCP do: nothing is lost, and what was held
//! flows on when it heals.

use std::io;
use std::path::Path;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// What PostgreSQL calls its socket.
pub(super) const SOCKET: &str = ".s.PGSQL.5432";

pub(super) struct Link {
    open: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Link {
    /// Listens in the folder `place` as a server would.
    pub(super) fn open(place: &Path, upstream: &Path) -> io::Result<Self> {
        let listener = UnixListener::bind(place.join(SOCKET))?;
        let (open, state) = watch::channel(true);
        let upstream = upstream.to_owned();
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (state, upstream) = (state.clone(), upstream.clone());
                tokio::spawn(async move {
                    // A server that is down hangs up, as its own socket would.
                    let Ok(server) = UnixStream::connect(upstream).await else { return };
                    let (from_client, to_client) = client.into_split();
                    let (from_server, to_server) = server.into_split();
                    // Whichever way ends first ends both.
                    tokio::select! {
                        () = carry(from_client, to_server, state.clone()) => {}
                        () = carry(from_server, to_client, state) => {}
                    }
                });
            }
        });
        Ok(Link { open, task })
    }

    pub(super) fn hold(&self) {
        self.open.send_replace(false);
    }

    pub(super) fn heal(&self) {
        self.open.send_replace(true);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn carry(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut open: watch::Receiver<bool>) {
    let mut buffer = vec![0; 16 * 1024];
    loop {
        let Ok(read) = from.read(&mut buffer).await else { return };
        // Also the end of a stream does not pass a cut link.
        if open.wait_for(|open| *open).await.is_err() || read == 0 {
            return;
        }
        if to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}
