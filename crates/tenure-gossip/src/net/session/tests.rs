use tokio::io::{AsyncWriteExt as _, DuplexStream, duplex};

use super::*;
use crate::message::Message;

fn keys() -> Arc<Ed25519Keys> {
    Arc::new(Ed25519Keys::generate())
}

type Both =
    (Result<Greeted<DuplexStream>, SessionError>, Result<Greeted<DuplexStream>, SessionError>);

/// Two programs meet.
async fn meet(a: Admission, b: Admission, clusters: [Option<[u8; 16]>; 2]) -> Both {
    let (left, right) = duplex(1 << 20);
    tokio::join!(
        greet(left, keys(), &a, Role::Node, clusters[0], true),
        greet(right, keys(), &b, Role::Node, clusters[1], false),
    )
}

fn secret(n: u8) -> Admission {
    Admission { secret: [n; 32], allow: None }
}

const SOON: Duration = Duration::from_secs(5);

#[tokio::test]
async fn two_that_know_the_secret_talk_in_order() {
    let (a, b) = meet(secret(1), secret(1), [None, None]).await;
    let (mut a, mut b) = (a.expect("greeted"), b.expect("greeted"));
    for n in 0..5 {
        let sent = Envelope::Namespace(n.to_string(), Message::Enlist);
        a.sender.send(&sent).await.expect("sent");
        assert_eq!(b.receiver.next(SOON).await.expect("received"), sent);
    }
}

#[tokio::test]
async fn a_wrong_secret_is_refused_by_both() {
    let (a, b) = meet(secret(1), secret(2), [None, None]).await;
    assert!(matches!(a.err(), Some(SessionError::Unproven)));
    assert!(b.is_err());
}

#[tokio::test]
async fn one_that_is_not_on_the_list_is_refused() {
    let only = Admission { secret: [0; 32], allow: Some([PeerId([7; 32])].into()) };
    let (a, _) = meet(only, Admission::default(), [None, None]).await;
    assert!(matches!(a.err(), Some(SessionError::NotAllowed(_))));
}

#[tokio::test]
async fn members_of_two_clusters_do_not_talk() {
    let (a, b) = meet(secret(1), secret(1), [Some([1; 16]), Some([2; 16])]).await;
    assert!(matches!(a.err(), Some(SessionError::OtherCluster)));
    assert!(matches!(b.err(), Some(SessionError::OtherCluster)));
    let (a, b) = meet(secret(1), secret(1), [Some([1; 16]), None]).await;
    assert!(a.is_ok() && b.is_ok());
}

/// A session whose frames an attacker in between may change.
async fn tampered(change: impl FnOnce(&mut Vec<Vec<u8>>)) -> Vec<Result<Envelope, SessionError>> {
    let (a, b) = meet(secret(1), secret(1), [None, None]).await;
    let (mut a, mut b) = (a.expect("greeted"), b.expect("greeted"));
    // Sign three frames into a buffer of our own, then deliver what is left of them.
    let (near, far) = duplex(1 << 20);
    let (_, write) = tokio::io::split(near);
    let codec = || LengthDelimitedCodec::builder().max_frame_length(MAX_FRAME).new_codec();
    a.sender.frames = FramedWrite::new(write, codec());
    for n in 0..3 {
        a.sender.send(&Envelope::Namespace(n.to_string(), Message::Enlist)).await.expect("sent");
    }
    let (read, _) = tokio::io::split(far);
    let mut reader = FramedRead::new(read, codec());
    let mut frames = Vec::new();
    for _ in 0..3 {
        frames.push(next(&mut reader).await.expect("a frame").to_vec());
    }
    change(&mut frames);
    let (near, far) = duplex(1 << 20);
    let (_, write) = tokio::io::split(near);
    let (read, _) = tokio::io::split(far);
    let mut writer = FramedWrite::new(write, codec());
    b.receiver.frames = FramedRead::new(read, codec());
    let mut out = Vec::new();
    for frame in frames {
        writer.send(Bytes::from(frame)).await.expect("written");
        out.push(b.receiver.next(SOON).await);
    }
    out
}

#[tokio::test]
async fn a_changed_repeated_or_missing_frame_is_noticed() {
    assert!(tampered(|_| ()).await.iter().all(Result::is_ok));
    let changed = tampered(|f| *f[1].last_mut().expect("bytes") ^= 1).await;
    assert!(changed[0].is_ok() && matches!(changed[1], Err(SessionError::Unproven)));
    let repeated = tampered(|f| f[1] = f[0].clone()).await;
    assert!(matches!(repeated[1], Err(SessionError::Unproven)));
    let missing = tampered(|f| drop(f.remove(0))).await;
    assert!(matches!(missing[0], Err(SessionError::Unproven)));
    let short = tampered(|f| f[0].truncate(10)).await;
    assert!(matches!(short[0], Err(SessionError::Garbage)));
}

#[tokio::test]
async fn garbage_and_huge_lengths_end_the_greeting() {
    for rubbish in [b"GET / HTTP/1.1\r\n\r\n".to_vec(), vec![0xff; 64], vec![0, 0, 0, 3, 1, 2, 3]] {
        let (mut left, right) = duplex(1 << 16);
        left.write_all(&rubbish).await.expect("written");
        let result = greet(right, keys(), &Admission::default(), Role::Node, None, false).await;
        assert!(matches!(result.err(), Some(SessionError::Garbage)), "{rubbish:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn one_that_says_nothing_is_not_waited_for() {
    let (_left, right) = duplex(1 << 16);
    let result = greet(right, keys(), &Admission::default(), Role::Node, None, false).await;
    assert!(matches!(result.err(), Some(SessionError::Timeout)));
}

/// Records what one side writes.
struct Tap<S>(S, Arc<std::sync::Mutex<Vec<u8>>>);

impl<S: AsyncRead + Unpin> AsyncRead for Tap<S> {
    fn poll_read(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
        buf: &mut tokio::io::ReadBuf<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        std::pin::Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Tap<S> {
    fn poll_write(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
        buf: &[u8],
    ) -> std::task::Poll<std::io::Result<usize>> {
        let written = std::pin::Pin::new(&mut self.0).poll_write(cx, buf);
        if let std::task::Poll::Ready(Ok(n)) = written {
            self.1.lock().expect("one task at a time").extend_from_slice(&buf[..n]);
        }
        written
    }

    fn poll_flush(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        std::pin::Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        std::pin::Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

#[tokio::test]
async fn a_recorded_session_played_back_on_a_new_connection_is_refused() {
    let acceptor = keys();
    let tape = Arc::new(std::sync::Mutex::new(Vec::new()));
    let (left, right) = duplex(1 << 20);
    let admission = secret(1);
    let (a, b) = tokio::join!(
        greet(Tap(left, tape.clone()), keys(), &admission, Role::Node, None, true),
        greet(right, acceptor.clone(), &admission, Role::Node, None, false),
    );
    let (mut a, mut b) = (a.expect("greeted"), b.expect("greeted"));
    a.sender.send(&Envelope::Ping).await.expect("sent");
    assert_eq!(b.receiver.next(SOON).await.expect("received"), Envelope::Ping);

    let played = tape.lock().expect("one task at a time").clone();
    let (mut left, right) = duplex(1 << 20);
    left.write_all(&played).await.expect("written");
    let again = greet(right, acceptor, &admission, Role::Node, None, false).await;
    assert!(matches!(again.err(), Some(SessionError::Unproven)));
}

#[tokio::test]
async fn one_that_claims_the_identity_of_another_is_refused() {
    let victim = keys().id();
    let impostor = keys();
    let (left, right) = duplex(1 << 16);
    let claim = async {
        let codec = || LengthDelimitedCodec::builder().max_frame_length(MAX_GREETING).new_codec();
        let (read, write) = tokio::io::split(left);
        let (mut read, mut write) =
            (FramedRead::new(read, codec()), FramedWrite::new(write, codec()));
        let mine =
            Hello { version: 1, role: Role::Node, id: victim, nonce: [7; 32], cluster: None };
        write.send(encode(&mine)).await.expect("written");
        let theirs = next(&mut read).await.expect("a hello");
        let mut hasher = blake3::Hasher::new();
        hasher.update(b"tenure session 1");
        hasher.update(&encode(&mine));
        hasher.update(&theirs);
        let session = *hasher.finalize().as_bytes();
        // It knows the secret, and signs with the only key it has.
        let proof = Proof {
            signature: impostor.sign(&proof_text(&session, &victim)),
            mac: mac(&secret(1).secret, &session, &victim),
        };
        write.send(encode(&proof)).await.expect("written");
        (read, write)
    };
    let admission = secret(1);
    let greeting = greet(right, keys(), &admission, Role::Node, None, false);
    let (_open, result) = tokio::join!(claim, greeting);
    assert!(matches!(result.err(), Some(SessionError::Unproven)));
}
