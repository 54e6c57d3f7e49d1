//! A line to the database that counts the statements sent over it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

pub(crate) struct Tap {
    address: SocketAddr,
    statements: Arc<AtomicUsize>,
}

impl Tap {
    pub(crate) async fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let statements = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&statements);
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let count = Arc::clone(&count);
                tokio::spawn(async move {
                    let Ok(far) = TcpStream::connect(server).await else { return };
                    let (near_read, mut near_write) = near.into_split();
                    let (mut far_read, far_write) = far.into_split();
                    // Either end's end is the end of both.
                    tokio::select! {
                        _ = copy(&mut far_read, &mut near_write) => {}
                        _ = forward(near_read, far_write, &count) => {}
                    }
                });
            }
        });
        Tap { address, statements }
    }

    pub(crate) fn dsn(&self, database: &str) -> String {
        let (host, port) = (self.address.ip(), self.address.port());
        format!("host={host} port={port} user=postgres dbname={database} sslmode=disable")
    }

    /// How many were asked to run, on all sessions together.
    pub(crate) fn statements(&self) -> usize {
        self.statements.load(Ordering::Relaxed)
    }
}

/// Passes on what a client says, message by message.
async fn forward(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    count: &AtomicUsize,
) -> std::io::Result<()> {
    // The first message has no type.
    let length = from.read_u32().await?;
    pass_on(&mut from, &mut to, length).await?;
    loop {
        let kind = from.read_u8().await?;
        // A simple query, or the execution of a prepared one.
        if matches!(kind, b'Q' | b'E') {
            count.fetch_add(1, Ordering::Relaxed);
        }
        to.write_u8(kind).await?;
        let length = from.read_u32().await?;
        pass_on(&mut from, &mut to, length).await?;
    }
}

/// The length counts itself.
async fn pass_on(
    from: &mut OwnedReadHalf,
    to: &mut OwnedWriteHalf,
    length: u32,
) -> std::io::Result<()> {
    let mut body = vec![0; length.saturating_sub(4) as usize];
    from.read_exact(&mut body).await?;
    to.write_u32(length).await?;
    to.write_all(&body).await
}
