//! The faulty network.

use std::{
    io::ErrorKind,
    time::{Duration, Instant},
};

use tenure_testkit::{Direction, Proxy, shared_cluster};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::timeout,
};

use crate::{connect, number};

const SOON: Duration = Duration::from_millis(300);
const LONG: Duration = Duration::from_secs(10);

/// A server that sends back what it gets, and the proxy before it.
async fn echo() -> Proxy {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let addr = listener.local_addr().expect("address");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut read, mut write) = stream.split();
                let _ = tokio::io::copy(&mut read, &mut write).await;
            });
        }
    });
    Proxy::start(addr).await.expect("proxy")
}

async fn ask(stream: &mut TcpStream, text: &[u8]) -> std::io::Result<Vec<u8>> {
    stream.write_all(text).await?;
    let mut answer = vec![0; text.len()];
    stream.read_exact(&mut answer).await?;
    Ok(answer)
}

#[tokio::test]
async fn postgresql_works_through_it_and_bytes_are_counted() {
    let cluster = shared_cluster().await;
    let proxy = Proxy::start(cluster.addr()).await.expect("proxy");
    let client = connect(&proxy.dsn("postgres")).await.expect("connect");
    assert_eq!(number(&client, "SELECT 7::bigint").await, 7);
    assert_eq!((proxy.accepted(), proxy.open()), (1, 1));
    assert!(proxy.bytes_to_server() > 20 && proxy.bytes_to_client() > 20);
}

#[tokio::test]
async fn delay_is_a_latency_not_a_throttle_and_keeps_order() {
    let proxy = echo().await;
    let mut stream = TcpStream::connect(proxy.addr()).await.expect("connect");
    let delay = Duration::from_millis(100);
    proxy.delay(delay);
    let begun = Instant::now();
    let text: Vec<u8> = (0..400_000u32).map(|n| (n % 251) as u8).collect();
    let (mut read, mut write) = stream.split();
    let mut answer = vec![0; text.len()];
    let (sent, got) = tokio::join!(write.write_all(&text), read.read_exact(&mut answer));
    sent.expect("sent");
    got.expect("got");
    let took = begun.elapsed();
    assert!(answer == text, "reordered or damaged");
    assert!(took >= delay * 2, "both ways: {took:?}");
    assert!(took < delay * 20, "a chunk waits for the chunk before it: {took:?}");
}

#[tokio::test]
async fn a_blackhole_holds_each_direction_and_healing_loses_nothing() {
    let proxy = echo().await;
    for direction in [Direction::ToServer, Direction::ToClient, Direction::Both] {
        let mut stream = TcpStream::connect(proxy.addr()).await.expect("connect");
        assert_eq!(ask(&mut stream, b"warm").await.expect("echo"), b"warm");
        let before = (proxy.bytes_to_server(), proxy.bytes_to_client());
        proxy.blackhole(direction);
        stream.write_all(b"held").await.expect("the kernel takes it");
        let mut answer = [0; 4];
        assert!(timeout(SOON, stream.read_exact(&mut answer)).await.is_err(), "{direction:?}");
        let after = (proxy.bytes_to_server(), proxy.bytes_to_client());
        let expected = match direction {
            Direction::ToClient => (before.0 + 4, before.1),
            Direction::ToServer | Direction::Both => before,
        };
        assert_eq!(after, expected, "{direction:?}");
        proxy.heal();
        timeout(LONG, stream.read_exact(&mut answer)).await.expect("in time").expect("answer");
        assert_eq!(&answer, b"held");
        assert_eq!(ask(&mut stream, b"more").await.expect("echo"), b"more");
    }
}

#[tokio::test]
async fn new_connections_hang_in_a_blackhole_and_the_server_never_sees_them() {
    let server = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let proxy = Proxy::start(server.local_addr().expect("address")).await.expect("proxy");
    proxy.blackhole(Direction::Both);
    let mut stream = TcpStream::connect(proxy.addr()).await.expect("the kernel answers");
    stream.write_all(b"hello").await.expect("the kernel takes it");
    assert!(timeout(SOON, server.accept()).await.is_err(), "the server saw it");
    proxy.heal();
    let (mut accepted, _) = timeout(LONG, server.accept()).await.expect("in time").expect("accept");
    let mut words = [0; 5];
    timeout(LONG, accepted.read_exact(&mut words)).await.expect("in time").expect("read");
    assert_eq!(&words, b"hello");
}

#[tokio::test]
async fn a_reset_cuts_old_connections_and_spares_new_ones() {
    let proxy = echo().await;
    let mut old = TcpStream::connect(proxy.addr()).await.expect("connect");
    ask(&mut old, b"warm").await.expect("echo");
    proxy.reset();
    let mut byte = [0];
    let error = timeout(LONG, old.read(&mut byte)).await.expect("in time").expect_err("cut");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    let mut new = TcpStream::connect(proxy.addr()).await.expect("connect");
    assert_eq!(ask(&mut new, b"new").await.expect("echo"), b"new");
}

#[tokio::test]
async fn a_severed_connection_stays_open_and_silent_for_ever() {
    let proxy = echo().await;
    let mut old = TcpStream::connect(proxy.addr()).await.expect("connect");
    ask(&mut old, b"warm").await.expect("echo");
    proxy.sever();
    assert!(timeout(SOON, ask(&mut old, b"gone")).await.is_err(), "silent");
    proxy.heal();
    assert!(timeout(SOON, ask(&mut old, b"gone")).await.is_err(), "for ever");
    assert_eq!(proxy.open(), 1);
    let mut new = TcpStream::connect(proxy.addr()).await.expect("connect");
    assert_eq!(ask(&mut new, b"new").await.expect("echo"), b"new");
    proxy.reset();
    let mut byte = [0];
    timeout(LONG, old.read(&mut byte)).await.expect("in time").expect_err("cut at last");
}

#[tokio::test]
async fn a_refusing_proxy_refuses_and_keeps_its_old_connections() {
    let proxy = echo().await;
    let mut old = TcpStream::connect(proxy.addr()).await.expect("connect");
    ask(&mut old, b"warm").await.expect("echo");
    proxy.refuse(true).await.expect("closed");
    let error = TcpStream::connect(proxy.addr()).await.expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    assert_eq!(ask(&mut old, b"old").await.expect("echo"), b"old");
    proxy.refuse(false).await.expect("open");
    let mut new = TcpStream::connect(proxy.addr()).await.expect("connect");
    assert_eq!(ask(&mut new, b"new").await.expect("echo"), b"new");
}

#[tokio::test]
async fn the_end_of_a_stream_passes_and_a_dead_upstream_resets() {
    let proxy = echo().await;
    let mut stream = TcpStream::connect(proxy.addr()).await.expect("connect");
    stream.write_all(b"bye").await.expect("write");
    stream.shutdown().await.expect("half closed");
    let mut answer = Vec::new();
    timeout(LONG, stream.read_to_end(&mut answer)).await.expect("in time").expect("read");
    assert_eq!(answer, b"bye");

    let nobody = {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        listener.local_addr().expect("address")
    };
    let proxy = Proxy::start(nobody).await.expect("proxy");
    let mut stream = TcpStream::connect(proxy.addr()).await.expect("connect");
    timeout(LONG, stream.read(&mut [0])).await.expect("in time").expect_err("no server is there");
}

#[tokio::test]
async fn a_dropped_proxy_cuts_everything() {
    let proxy = echo().await;
    let addr = proxy.addr();
    let mut stream = TcpStream::connect(addr).await.expect("connect");
    ask(&mut stream, b"warm").await.expect("echo");
    drop(proxy);
    timeout(LONG, stream.read(&mut [0])).await.expect("in time").expect_err("cut");
    TcpStream::connect(addr).await.expect_err("closed");
}
