//! A relay that knows the protocol just well enough to leave a seat in the middle of something.
//!
//! It finds the seat by the application name in the startup message and passes everything on, until
//! it is told to tamper with the seat's connection.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpSocket, TcpStream},
    sync::watch,
    task::JoinHandle,
};

/// What is done to the seat.
#[derive(Debug, Clone)]
pub(crate) enum Tamper {
    /// Nothing.
    Pass,
    /// The server gets this query on the seat's session; what it answers is read and dropped.
    Inject(Arc<str>),
    /// As above, and nothing of the answer is ever read.
    InjectUnread(Arc<str>),
    /// The server gets the beginning of a message and no more.
    Half,
    /// What the server says unasked is left out, on connections up to this number.
    Deaf(usize),
}

/// The relay. Dropped: every connection through it ends.
pub(crate) struct Wire {
    addr: SocketAddr,
    tamper: watch::Sender<Tamper>,
    accepted: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Wire {
    pub(crate) async fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let addr = listener.local_addr().expect("bound");
        let (tamper, told) = watch::channel(Tamper::Pass);
        let accepted = Arc::new(AtomicUsize::new(0));
        let count = accepted.clone();
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let number = count.fetch_add(1, Ordering::SeqCst) + 1;
                tokio::spawn(relay(client, server, number, told.clone()));
            }
        });
        Wire { addr, tamper, accepted, task }
    }

    pub(crate) fn dsn(&self, database: &str) -> String {
        format!("host=127.0.0.1 port={} dbname={database} user=postgres", self.addr.port())
    }

    /// The connections that exist hear no notification any more.
    pub(crate) fn deafen(&self) {
        self.tamper(Tamper::Deaf(self.accepted.load(Ordering::SeqCst)));
    }

    pub(crate) fn tamper(&self, how: Tamper) {
        self.tamper.send_replace(how);
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn query(sql: &str) -> Vec<u8> {
    let length = u32::try_from(sql.len() + 5).expect("short");
    let mut message = vec![b'Q'];
    message.extend(length.to_be_bytes());
    message.extend(sql.as_bytes());
    message.push(0);
    message
}

async fn relay(
    mut client: TcpStream,
    server: SocketAddr,
    number: usize,
    mut told: watch::Receiver<Tamper>,
) {
    let Ok(socket) = TcpSocket::new_v4() else { return };
    // Soon full, for a client that does not read.
    let _ = socket.set_recv_buffer_size(16 * 1024);
    let Ok(mut server) = socket.connect(server).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (mut up, mut down) = (vec![0; 16384], vec![0; 16384]);
    let (mut is_seat, mut messages) = (false, Messages::default());
    loop {
        let tamper = if is_seat { told.borrow_and_update().clone() } else { Tamper::Pass };
        match tamper {
            Tamper::Pass | Tamper::Deaf(_) => {}
            Tamper::Half => {
                let half = &query("select 'never to be finished'")[..12];
                let _ = server.write_all(half).await;
                return hang(&told, &client, &server).await;
            }
            Tamper::Inject(sql) => {
                let _ = server.write_all(&query(&sql)).await;
                // Until the server ends the session.
                while server.read(&mut down).await.is_ok_and(|n| n > 0) {}
                return hang(&told, &client, &server).await;
            }
            Tamper::InjectUnread(sql) => {
                let _ = server.write_all(&query(&sql)).await;
                return hang(&told, &client, &server).await;
            }
        }
        // Every branch is cancel-safe: a read that is cancelled has read nothing.
        tokio::select! {
            read = client.read(&mut up) => {
                let Ok(n @ 1..) = read else { return };
                is_seat |= up[..n].windows(11).any(|part| part == b"tenure seat");
                if server.write_all(&up[..n]).await.is_err() { return }
            }
            read = server.read(&mut down) => {
                let Ok(n @ 1..) = read else { return };
                let quiet = is_seat && matches!(*told.borrow(), Tamper::Deaf(last) if number <= last);
                let bytes = messages.pass(&down[..n], quiet);
                if client.write_all(&bytes).await.is_err() { return }
            }
            _ = told.changed(), if is_seat => {}
        }
    }
}

/// Keeps both sockets open, and reads from neither, until the relay is dropped.
async fn hang(told: &watch::Receiver<Tamper>, _client: &TcpStream, _server: &TcpStream) {
    let _ = told.clone().wait_for(|_| false).await;
}

/// Splits what the server sends into messages, to leave notifications out.
#[derive(Default)]
struct Messages {
    partial: Vec<u8>,
}

impl Messages {
    fn pass(&mut self, bytes: &[u8], quiet: bool) -> Vec<u8> {
        if !quiet && self.partial.is_empty() {
            return bytes.to_vec();
        }
        self.partial.extend(bytes);
        let mut out = Vec::new();
        while let Some(length) = self.partial.get(1..5) {
            let length = u32::from_be_bytes(length.try_into().expect("four")) as usize + 1;
            if self.partial.len() < length {
                break;
            }
            let message: Vec<u8> = self.partial.drain(..length).collect();
            if message[0] != b'A' {
                out.extend(message);
            }
        }
        out
    }
}
