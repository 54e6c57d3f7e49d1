//! A cluster that asks for credentials: what each key may do, and how one is let in and shut out.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use tenure_gossip::{
    Answer, Ask, CREDENTIALS, Client, ClientError, CredentialGoal, Ed25519Keys, Host, HostConfig,
    HostError, Invitation, Kv, MemberChange, NamespaceStatus, Outcome, PeerId, Right, SessionError,
    Start, Trust, TxId,
};

use crate::{SOON, any, eventually, put, start};

/// A node that founds a cluster which asks for credentials.
async fn founder(folder: &Path) -> Host<Kv> {
    let host = start(folder, Start::Bootstrap, |c| c.open = false).await;
    eventually("the credentials are founded", || async {
        host.status().await.unwrap().credentials.index > 0
    })
    .await;
    host
}

async fn change(host: &Host<Kv>, goal: CredentialGoal) -> Outcome {
    host.submit(CREDENTIALS, TxId::random(), goal.to_bytes()).await.expect("decided").outcome
}

async fn invite(host: &Host<Kv>, right: Right) -> Invitation {
    let cluster = hex::decode(host.status().await.unwrap().cluster.unwrap()).unwrap();
    let invitation = Invitation::new(cluster.try_into().unwrap(), right, Duration::from_secs(60));
    assert!(matches!(change(host, invitation.goal()).await, Outcome::Done(_)));
    invitation
}

async fn connect(
    host: &Host<Kv>,
    keys: Ed25519Keys,
    nodes: &[PeerId],
) -> Result<Client, ClientError> {
    let mut trust = Trust::default();
    trust.nodes = Some(nodes.iter().copied().collect());
    Client::connect(host.address(), keys, &trust).await
}

async fn redeem(
    host: &Host<Kv>,
    keys: &Ed25519Keys,
    invitation: &Invitation,
) -> Result<BTreeSet<PeerId>, ClientError> {
    Client::redeem(host.address(), keys.clone(), invitation, None, SOON).await
}

fn is_refused(answer: &Result<Answer, ClientError>) -> bool {
    matches!(answer, Err(ClientError::Refused(why)) if why.contains("tenure gossip grant"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_joins_by_invitation_alone_and_an_uninvited_one_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let a = founder(&dir.path().join("a")).await;
    let seeds = || Start::Join(vec![a.address().to_owned()]);
    let folder = dir.path().join("b");
    let uninvited = Host::<Kv>::start(HostConfig::new(&folder, any(), seeds())).await;
    assert!(matches!(uninvited.err(), Some(HostError::Uninvited(_))));
    assert!(!folder.exists());

    let invitation = invite(&a, Right::Node).await;
    let b = start(&folder, seeds(), |c| c.invitation = Some(invitation.clone())).await;
    eventually("both vote", || async {
        let status = a.status().await.unwrap();
        let space = &status.namespaces[0];
        space.voters.len() == 2 && space.learners.is_empty()
    })
    .await;
    assert_eq!(b.submit("main", TxId([1; 16]), put(1)).await.unwrap().index, 1);

    // It was good for one node.
    let folder = dir.path().join("c");
    let mut again = HostConfig::new(&folder, any(), seeds());
    again.invitation = Some(invitation);
    let refused = Host::<Kv>::start(again).await.err().expect("refused").to_string();
    assert!(refused.contains("used, expired or unknown"), "{refused}");
    assert!(!folder.exists());

    // A restart needs no invitation, and no node to join through.
    b.stop().await.unwrap();
    let b = start(&dir.path().join("b"), Start::Resume, |c| c.open = false).await;
    eventually("it is back", || async { a.status().await.unwrap().connected == [b.id()] }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_without_a_right_take_no_place_of_a_client() {
    let dir = tempfile::tempdir().unwrap();
    let a = founder(&dir.path().join("a")).await;
    let keys = Ed25519Keys::generate();
    redeem(&a, &keys, &invite(&a, Right::Client).await).await.unwrap();
    let mut strangers = Vec::new();
    for _ in 0..40 {
        match connect(&a, Ed25519Keys::generate(), &[a.id()]).await {
            Ok(stranger) => strangers.push(stranger),
            Err(error) => {
                assert!(matches!(error, ClientError::Session(SessionError::Full)), "{error}");
            }
        }
    }
    assert_eq!(strangers.len(), 16, "so many of one address");
    let mut client = connect(&a, keys, &[a.id()]).await.unwrap();
    assert!(matches!(client.ask(Ask::Status, SOON).await, Ok(Answer::Status(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_may_do_what_its_right_says_and_nothing_once_it_is_revoked() {
    let dir = tempfile::tempdir().unwrap();
    let a = founder(&dir.path().join("a")).await;
    let keys = Ed25519Keys::generate();
    // A stranger may ask nothing, also if it knows the node.
    let mut stranger = connect(&a, keys.clone(), &[a.id()]).await.unwrap();
    assert!(is_refused(&stranger.ask(Ask::Status, SOON).await));

    let nodes = redeem(&a, &keys, &invite(&a, Right::Client).await).await.unwrap();
    assert_eq!(nodes, BTreeSet::from([a.id()]));
    let mut client = connect(&a, keys.clone(), &[a.id()]).await.unwrap();
    let namespace = || "main".to_owned();
    let submit = Ask::Submit { namespace: namespace(), tx: TxId([1; 16]), goal: put(1) };
    assert!(matches!(client.ask(submit, SOON).await, Ok(Answer::Record(_))));
    let grant = CredentialGoal::Grant { peer: keys.public(), right: Right::Node };
    for order in [
        Ask::StepDown { namespace: namespace() },
        Ask::Members { namespace: namespace(), change: MemberChange::Remove(a.id()) },
        Ask::Read { namespace: CREDENTIALS.to_owned(), question: Vec::new() },
        Ask::History { namespace: CREDENTIALS.to_owned(), from: 1, upto: 9 },
        Ask::Submit {
            namespace: CREDENTIALS.to_owned(),
            tx: TxId([2; 16]),
            goal: grant.to_bytes(),
        },
    ] {
        let answer = client.ask(order.clone(), SOON).await;
        assert!(is_refused(&answer), "{order:?}: {answer:?}");
    }

    // A client's key is no node's, whatever it claims: its node is not let in.
    let folder = dir.path().join("b");
    let node = Host::<Kv>::start(HostConfig::new(
        &folder,
        any(),
        Start::Join(vec![a.address().to_owned()]),
    ));
    assert!(matches!(node.await.err(), Some(HostError::Uninvited(_))));

    let grant = CredentialGoal::Grant { peer: keys.public(), right: Right::Operator };
    change(&a, grant).await;
    let list = Ask::Read { namespace: CREDENTIALS.to_owned(), question: Vec::new() };
    assert!(
        matches!(client.ask(list, SOON).await, Ok(Answer::State { .. })),
        "the session gains it"
    );

    change(&a, CredentialGoal::Revoke { peer: keys.public() }).await;
    let ended = client.next(SOON).await;
    assert!(matches!(ended, Err(ClientError::Session(SessionError::Closed))), "{ended:?}");
    let mut again = connect(&a, keys, &[a.id()]).await.unwrap();
    assert!(is_refused(&again.ask(Ask::Status, SOON).await));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_node_is_shut_out() {
    let dir = tempfile::tempdir().unwrap();
    let a = founder(&dir.path().join("a")).await;
    let seeds = Start::Join(vec![a.address().to_owned()]);
    let invitation = invite(&a, Right::Node).await;
    // An observer, so that the founder decides alone.
    let b = start(&dir.path().join("b"), seeds, |c| {
        c.invitation = Some(invitation);
        c.engine.wants_vote = false;
    })
    .await;
    eventually("they are connected", || async {
        a.status().await.unwrap().connected == [b.id()]
            && b.status().await.unwrap().credentials.index > 1
    })
    .await;
    change(&a, CredentialGoal::Revoke { peer: b.id() }).await;
    eventually("no node talks to it", || async { a.status().await.unwrap().connected.is_empty() })
        .await;
    let index = a.submit("main", TxId([1; 16]), put(1)).await.unwrap().index;
    // It calls again and again, and is sent away: the record does not reach it.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert!(b.status().await.unwrap().namespaces[0].index < index);
    assert!(a.status().await.unwrap().connected.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_voter_counts_no_longer() {
    let dir = tempfile::tempdir().unwrap();
    let a = founder(&dir.path().join("a")).await;
    let mut others = Vec::new();
    for name in ["b", "c"] {
        let seeds = Start::Join(vec![a.address().to_owned()]);
        let invitation = invite(&a, Right::Node).await;
        let change = |c: &mut HostConfig| c.invitation = Some(invitation);
        others.push(start(&dir.path().join(name), seeds, change).await);
    }
    // In both: a node becomes a voter of the one before it becomes a voter of the other.
    eventually("three vote, in every namespace", || async {
        let status = a.status().await.unwrap();
        [&status.namespaces[0], &status.credentials].iter().all(|space| space.voters.len() == 3)
    })
    .await;
    let gone = others.pop().unwrap();
    change(&a, CredentialGoal::Revoke { peer: gone.id() }).await;
    eventually("two vote, in every namespace", || async {
        let status = a.status().await.unwrap();
        let without = |space: &NamespaceStatus| {
            space.voters.len() == 2 && space.removed == [gone.id()] && space.learners.is_empty()
        };
        without(&status.namespaces[0]) && without(&status.credentials)
    })
    .await;
    assert!(a.submit("main", TxId([1; 16]), put(1)).await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invitation_is_for_one_cluster_one_key_and_its_own_time() {
    let dir = tempfile::tempdir().unwrap();
    let a = founder(&dir.path().join("a")).await;
    let other = founder(&dir.path().join("other")).await;
    let keys = Ed25519Keys::generate();
    let invitation = invite(&a, Right::Client).await;
    let wrong = redeem(&other, &keys, &invitation).await;
    assert!(matches!(wrong, Err(ClientError::Session(SessionError::OtherCluster))), "{wrong:?}");
    // One that no operator made known, for the right cluster.
    let made_up = Invitation::new(invitation.cluster, Right::Node, SOON);
    let refused = redeem(&a, &keys, &made_up).await;
    assert!(matches!(refused, Err(ClientError::Refused(_))), "{refused:?}");
    redeem(&a, &keys, &invitation).await.unwrap();
    assert!(redeem(&a, &Ed25519Keys::generate(), &invitation).await.is_err(), "single use");
    // A client does not believe a node that it does not know, also if it says that it is open.
    let unknown = connect(&other, keys, &[a.id()]).await;
    assert!(
        matches!(unknown.err(), Some(ClientError::Session(SessionError::UnknownNode(id))) if id == other.id())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_cluster_is_carried_beyond_loopback_by_an_explicit_word_only() {
    let dir = tempfile::tempdir().unwrap();
    let reachable =
        HostConfig::new(dir.path().join("x"), ([0, 0, 0, 0], 0).into(), Start::Bootstrap);
    assert!(!reachable.open, "not by default");
    let a = start(&dir.path().join("a"), Start::Bootstrap, |_| ()).await;
    assert!(a.status().await.unwrap().open, "on loopback it is");
    let mut joins =
        HostConfig::new(dir.path().join("b"), any(), Start::Join(vec![a.address().to_owned()]));
    joins.open = false;
    assert!(matches!(Host::<Kv>::start(joins).await.err(), Some(HostError::OpenCluster(_))));
    assert!(!dir.path().join("b").exists());

    // Closed, it asks for credentials at once.
    eventually("founded", || async { a.status().await.unwrap().credentials.index > 0 }).await;
    let mut client =
        Client::connect(a.address(), Ed25519Keys::generate(), &Trust::default()).await.unwrap();
    change(&a, CredentialGoal::Close).await;
    let ended = client.ask(Ask::Status, SOON).await;
    assert!(ended.is_err(), "{ended:?}");
    let late = Client::connect(a.address(), Ed25519Keys::generate(), &Trust::default()).await;
    assert!(matches!(late.err(), Some(ClientError::Session(SessionError::UnknownNode(_)))));
}
