use tokio::io::{AsyncWriteExt as _, DuplexStream, duplex};

use super::*;
use crate::message::Message;
use crate::net::tls::Tls;

fn keys() -> Arc<Ed25519Keys> {
    Arc::new(Ed25519Keys::generate())
}

fn tls(keys: &Ed25519Keys) -> Tls {
    Tls::new(keys, None).expect("raw keys need no file")
}

type Both = (Result<Greeted, SessionError>, Result<Greeted, SessionError>);

/// Two programs meet; the host answers `welcome`.
async fn meet(caller: &Arc<Ed25519Keys>, host_keys: &Arc<Ed25519Keys>, welcome: Welcome) -> Both {
    let (near, far) = duplex(1 << 20);
    let calls = async {
        let secured = tls(caller).connect("there:1", near).await?;
        call(secured, Caller { keys: caller, role: Role::Node, cluster: Some([1; 16]) }).await
    };
    let answers = async {
        let secured = tls(host_keys).accept(far).await?;
        let denied = welcome.denied;
        host(secured, host_keys, move |_, _| {
            (welcome, denied.map_or(Ok(()), |denied| Err(denied.into())))
        })
        .await
    };
    tokio::join!(calls, answers)
}

fn welcome(cluster: [u8; 16]) -> Welcome {
    Welcome { cluster: Some(cluster), open: false, denied: None, signed: None }
}

const SOON: Duration = Duration::from_secs(5);

#[tokio::test]
async fn each_side_learns_the_proven_key_of_the_other_and_frames_arrive_in_order() {
    let (a, b) = (keys(), keys());
    let (left, right) = meet(&a, &b, welcome([1; 16])).await;
    let (mut left, mut right) = (left.expect("greeted"), right.expect("greeted"));
    assert_eq!((left.peer, right.peer), (b.id(), a.id()));
    assert_eq!(left.exported, right.exported);
    for n in 0..5 {
        let sent = Envelope::Namespace(n.to_string(), Message::Enlist);
        left.sender.send(&sent).await.expect("sent");
        assert_eq!(right.receiver.next(SOON).await.expect("received"), sent);
    }
    let (again, _) = meet(&a, &b, welcome([1; 16])).await;
    assert_ne!(again.expect("greeted").exported, left.exported, "every session has its own secret");
}

#[tokio::test]
async fn members_of_two_clusters_do_not_talk() {
    let (left, _) = meet(&keys(), &keys(), welcome([2; 16])).await;
    assert!(matches!(left.err(), Some(SessionError::OtherCluster)));
}

#[tokio::test]
async fn a_caller_is_told_why_it_is_refused() {
    let no = Welcome { denied: Some(Denied::NoRight), ..welcome([1; 16]) };
    let (left, right) = meet(&keys(), &keys(), no).await;
    assert!(matches!(left.err(), Some(SessionError::NoRight)));
    assert!(matches!(right.err(), Some(SessionError::NoRight)));
}

#[tokio::test]
async fn a_node_that_calls_itself_notices() {
    let me = keys();
    let (_, right) = meet(&me, &me, welcome([1; 16])).await;
    assert!(matches!(right.err(), Some(SessionError::WrongPeer(peer)) if peer == me.id()));
}

/// A host that is called by a program that says `first` after TLS.
async fn after_tls(
    first: &[u8],
) -> (Result<Greeted, SessionError>, Result<BytesMut, SessionError>) {
    let (near, far) = duplex(1 << 20);
    let (a, b) = (keys(), keys());
    let calls = async {
        let secured = tls(&a).connect("there:1", near).await.expect("TLS");
        let (mut read, mut write) = split(secured.stream);
        write.send(Bytes::copy_from_slice(first)).await.expect("sent");
        next(&mut read).await
    };
    let answers = async {
        let secured = tls(&b).accept(far).await.expect("TLS");
        host(secured, &b, |_, _| (welcome([1; 16]), Ok(()))).await
    };
    let (answer, result) = tokio::join!(calls, answers);
    (result, answer)
}

#[tokio::test]
async fn another_version_is_refused_by_name_on_both_sides() {
    let (result, answer) = after_tls(&[0, 9, 1, 2, 3]).await;
    assert!(matches!(result.err(), Some(SessionError::Version(9))));
    let answer = answer.expect("it is told");
    assert_eq!(answer[..], VERSION.to_be_bytes());
    let error = unversioned::<Welcome>(&[0, 9]).expect_err("another version");
    assert!(error.to_string().contains("version 9 of the protocol, this one 3"), "{error}");
    // The former version had other snapshots: a mixed group would drop them without a word.
    let (result, _) = after_tls(&[0, 2, 1, 2, 3]).await;
    assert!(matches!(result.err(), Some(SessionError::Version(2))));
}

#[tokio::test]
async fn garbage_after_tls_and_a_borrowed_identity_are_refused() {
    let (result, _) = after_tls(&[0, 3, 0xff, 0xff]).await;
    assert!(matches!(result.err(), Some(SessionError::Garbage)));
    // Raw keys are proven by TLS: no other identity can be claimed besides.
    let other = keys();
    let signed = Some(Signed::new(&*other, &[0; 32], b"caller"));
    let hello = Hello { role: Role::Node, cluster: None, signed };
    let (result, _) = after_tls(&versioned(&hello)).await;
    assert!(matches!(result.err(), Some(SessionError::Unproven)));
}

#[tokio::test]
async fn a_program_that_does_not_speak_tls_is_named_as_such() {
    let (mut near, far): (DuplexStream, DuplexStream) = duplex(1 << 20);
    let me = keys();
    near.write_all(b"GET / HTTP/1.1\r\n\r\n").await.expect("sent");
    let refused = tls(&me).accept(far).await;
    assert!(matches!(refused.err(), Some(SessionError::NotTls)));
}

#[tokio::test]
async fn bytes_changed_on_the_way_end_the_session() {
    let (near, mut middle_near) = duplex(1 << 20);
    let (mut middle_far, far) = duplex(1 << 20);
    // A program in between passes the handshake on, then flips one bit of what follows.
    tokio::spawn(async move {
        let mut passed = 0;
        let (mut there, mut back) = ([0; 4_096], [0; 4_096]);
        loop {
            use tokio::io::AsyncReadExt as _;
            tokio::select! {
                Ok(n) = middle_near.read(&mut there) => {
                    passed += n;
                    if n == 0 { return }
                    if passed > 3_000 { there[n - 1] ^= 1 }
                    if middle_far.write_all(&there[..n]).await.is_err() { return }
                }
                Ok(n) = middle_far.read(&mut back) => {
                    if n == 0 { return }
                    if middle_near.write_all(&back[..n]).await.is_err() { return }
                }
            }
        }
    });
    let (a, b) = (keys(), keys());
    let calls = async {
        let secured = tls(&a).connect("there:1", near).await?;
        call(secured, Caller { keys: &a, role: Role::Node, cluster: None }).await
    };
    let answers = async {
        let secured = tls(&b).accept(far).await?;
        host(secured, &b, |_, _| (welcome([1; 16]), Ok(()))).await
    };
    let (left, right) = tokio::join!(calls, answers);
    let (mut left, mut right) = (left.expect("greeted"), right.expect("greeted"));
    let large = Envelope::Namespace("n".repeat(4_000), Message::Enlist);
    left.sender.send(&large).await.expect("sent");
    assert!(right.receiver.next(SOON).await.is_err());
}
