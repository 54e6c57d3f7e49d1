//! A pooler that loses its line to the server while it waits for an answer, and tells its client so as PgBouncer
//! does: with an error of its own.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

pub(crate) struct Pooler {
    address: SocketAddr,
    loses: Arc<AtomicBool>,
}

impl Pooler {
    pub(crate) async fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let loses = Arc::new(AtomicBool::new(false));
        let lose = Arc::clone(&loses);
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let lose = Arc::clone(&lose);
                tokio::spawn(async move {
                    let Ok(far) = TcpStream::connect(server).await else { return };
                    let (mut near_read, near_write) = near.into_split();
                    let (far_read, mut far_write) = far.into_split();
                    // Either end's end is the end of both.
                    tokio::select! {
                        _ = copy(&mut near_read, &mut far_write) => {}
                        _ = answer(far_read, near_write, &lose) => {}
                    }
                });
            }
        });
        Pooler { address, loses }
    }

    pub(crate) fn dsn(&self, database: &str) -> String {
        let (host, port) = (self.address.ip(), self.address.port());
        format!("host={host} port={port} user=postgres dbname={database} sslmode=disable")
    }

    /// The server carries out what it is asked next, and its answer is lost.
    pub(crate) fn lose_next(&self) {
        self.loses.store(true, Ordering::Relaxed);
    }
}

/// Passes on what the server says.
async fn answer(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    lose: &AtomicBool,
) -> std::io::Result<()> {
    let mut bytes = vec![0; 1 << 16];
    loop {
        let length = from.read(&mut bytes).await?;
        if lose.swap(false, Ordering::Relaxed) || length == 0 {
            let fields = b"SFATAL\0C08P01\0Mserver conn crashed?\0\0";
            to.write_u8(b'E').await?;
            // The length counts itself.
            to.write_u32(u32::try_from(4 + fields.len()).expect("short")).await?;
            return to.write_all(fields).await;
        }
        to.write_all(&bytes[..length]).await?;
    }
}
