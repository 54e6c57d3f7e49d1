//! The bytes that nodes exchange and store are contract: a group is upgraded node by node. Every
//! variant of every message is encoded and compared with what was recorded; a rename leaves the
//! bytes as they are, a field or a variant in another place does not.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use rand::SeedableRng as _;
use rand::rngs::SmallRng;

use super::*;
use crate::commit::{
    CommitWrite, ConsensusMessage, Entry, EntryKind, HardState, Members, Position, SnapshotPoint,
};
use crate::credentials::{CredentialGoal, Right};
use crate::election::{Beacon, Election, ElectionConfig, Vote};
use crate::engine::{Barred, Command, Snapshot};
use crate::history::{Chain, Hash, Outcome};
use crate::identity::Ed25519Keys;
use crate::kv::{Kv, KvGoal};
use crate::net::session::encode;
use crate::spray::SprayMessage;
use tenure_core::Tick;

const RECORDED: &str = include_str!("recorded.txt");

fn peer(n: u8) -> PeerId {
    PeerId([n; 32])
}

fn at(term: u64, index: u64) -> Position {
    Position { term, index }
}

fn record() -> Record {
    Record {
        index: 300,
        prev: Hash([3; 32]),
        term: 5,
        leader: peer(1),
        tx: TxId([9; 16]),
        goal: b"goal".to_vec(),
        outcome: Outcome::Done(b"diff".to_vec()),
    }
}

fn rejected() -> Record {
    Record { outcome: Outcome::Rejected("no".to_owned()), ..record() }
}

fn members() -> Members {
    Members {
        voters: BTreeSet::from([peer(1), peer(2)]),
        next: BTreeSet::from([peer(3)]),
        learners: BTreeSet::from([peer(4)]),
    }
}

fn entries() -> Vec<Entry> {
    vec![
        Entry { position: at(5, 1), kind: EntryKind::Term },
        Entry { position: at(5, 2), kind: EntryKind::Members(members()) },
        Entry { position: at(5, 3), kind: EntryKind::Command(vec![1, 2, 3]) },
    ]
}

fn signature() -> Signature {
    Ed25519Keys::from_secret(&[7; 32]).sign(b"anything")
}

/// A vote as the election itself makes and signs it, a second after its start.
fn made_vote() -> Vote {
    let keys = Ed25519Keys::from_secret(&[7; 32]);
    let mut rng = SmallRng::seed_from_u64(1);
    let begun = Tick::ZERO + Duration::from_secs(10);
    let config = ElectionConfig::default();
    let mut election = Election::new(keys.id(), "main", config, 2, begun, &mut rng);
    election.set_term(6);
    let (_, none) = election.handle_timeout(begun + Duration::from_secs(1), &keys, &mut rng);
    assert!(none.is_none(), "a round sends its vote at the end of its election phase");
    let (_, vote) = election.handle_timeout(begun + Duration::from_millis(1_100), &keys, &mut rng);
    vote.expect("the phase is over")
}

fn consensus() -> Vec<(&'static str, ConsensusMessage)> {
    vec![
        (
            "append",
            ConsensusMessage::Append {
                term: 5,
                commit: 2,
                after: at(4, 0),
                entries: entries(),
                beat: 1_234_567_890,
                number: 77,
                lease: 1_000,
            },
        ),
        (
            "appended",
            ConsensusMessage::Appended { term: 5, last: at(5, 3), beat: 1_234_567_890, number: 77 },
        ),
        ("pre-vote", ConsensusMessage::PreVote { term: 6, last: at(5, 3) }),
        ("pre-voted", ConsensusMessage::PreVoted { term: 6, granted: true }),
        ("request-vote", ConsensusMessage::RequestVote { term: 6, last: at(5, 3) }),
        ("voted", ConsensusMessage::Voted { term: 6, granted: false }),
        ("release", ConsensusMessage::Release { term: 6, successor: Some(peer(2)) }),
    ]
}

fn messages() -> Vec<(&'static str, Message)> {
    let beacon =
        Beacon { leader: peer(1), term: 5, reign: 2, stamp: 1 << 41, signature: signature() };
    let vote = Vote {
        voter: peer(2),
        seq: 1 << 40,
        beacon: Arc::new(beacon),
        age: 250,
        hungry: true,
        signature: signature(),
    };
    let mut all = vec![
        ("spray join", Message::Spray(SprayMessage::Join)),
        ("spray forward", Message::Spray(SprayMessage::Forward(peer(1)))),
        ("spray exchange", Message::Spray(SprayMessage::Exchange(vec![peer(1), peer(2)]))),
        ("spray answer", Message::Spray(SprayMessage::Answer(vec![peer(3)]))),
        ("spray leave", Message::Spray(SprayMessage::Leave)),
        ("vote", Message::Vote(vote)),
        ("vote as made", Message::Vote(made_vote())),
        ("goal", Message::Goal { tx: TxId([9; 16]), goal: b"goal".to_vec(), hops: 3 }),
        ("processed", Message::Processed(record())),
        ("history request", Message::HistoryRequest { from: 1, upto: 256 }),
        ("history", Message::History { records: vec![record(), rejected()], last: 301 }),
        (
            "snapshot offer",
            Message::SnapshotOffer { index: 300, log: 3, length: 70_000, hash: Hash([4; 32]) },
        ),
        ("snapshot request", Message::SnapshotRequest { hash: Hash([4; 32]), offset: 65_536 }),
        (
            "snapshot piece",
            Message::SnapshotPiece { hash: Hash([4; 32]), offset: 65_536, bytes: vec![1, 2] },
        ),
        ("enlist", Message::Enlist),
        ("expelled", Message::Expelled),
    ];
    all.extend(consensus().into_iter().map(|(name, message)| (name, Message::Consensus(message))));
    all
}

fn asks() -> Vec<(&'static str, Ask)> {
    let namespace = || "main".to_owned();
    let (tx, goal) = (TxId([9; 16]), b"goal".to_vec());
    let members = |change| Ask::Members { namespace: namespace(), change };
    vec![
        ("ask submit", Ask::Submit { namespace: namespace(), tx, goal }),
        ("ask status", Ask::Status),
        ("ask history", Ask::History { namespace: namespace(), from: 1, upto: 9 }),
        ("ask watch", Ask::Watch { namespace: namespace(), from: Some(7) }),
        ("ask read", Ask::Read { namespace: namespace(), question: b"q".to_vec() }),
        ("ask learn", members(MemberChange::Learn(peer(1)))),
        ("ask promote", members(MemberChange::Promote(peer(1)))),
        ("ask remove", members(MemberChange::Remove(peer(1)))),
        ("ask replace", members(MemberChange::Replace { old: peer(1), new: peer(2) })),
        ("ask snapshot", Ask::Snapshot { namespace: namespace(), offset: 65_536 }),
        ("ask step down", Ask::StepDown { namespace: namespace() }),
        ("ask nodes", Ask::Nodes),
        ("ask redeem", Ask::Redeem { id: [6; 16], proof: [7; 32] }),
    ]
}

fn answers() -> Vec<(&'static str, Answer)> {
    vec![
        ("answer record", Answer::Record(record())),
        ("answer records", Answer::Records(vec![record(), rejected()])),
        ("answer status", Answer::Status("{}".to_owned())),
        ("answer state", Answer::State { index: 300, bytes: b"s".to_vec() }),
        (
            "answer piece",
            Answer::Piece { index: 7, hash: Hash([4; 32]), length: 9, bytes: vec![1, 2] },
        ),
        ("answer done", Answer::Done),
        ("answer nodes", Answer::Nodes(vec![peer(1)])),
        ("answer welcome", Answer::Welcome { proof: [7; 32], nodes: vec![peer(1)] }),
        ("answer refused", Answer::Refused("why".to_owned())),
        ("answer decided", Answer::Decided { index: 7, done: true }),
    ]
}

fn credential_goals() -> Vec<(&'static str, CredentialGoal)> {
    let (id, key, right) = ([6; 16], [7; 32], Right::Operator);
    let (expires, now) = (1_800_000_000, 1_700_000_000);
    vec![
        ("credentials found", CredentialGoal::Found { founder: peer(1), open: true }),
        ("credentials invite", CredentialGoal::Invite { id, key, right, expires, now }),
        ("credentials redeem", CredentialGoal::Redeem { id, peer: peer(1), now }),
        ("credentials grant", CredentialGoal::Grant { peer: peer(1), right }),
        ("credentials revoke", CredentialGoal::Revoke { peer: peer(1) }),
        ("credentials close", CredentialGoal::Close),
    ]
}

/// What a node reads again after a restart.
fn stored() -> Vec<(&'static str, Vec<u8>)> {
    let hard = HardState { term: 5, voted_for: Some(peer(1)), lease: Duration::from_millis(1_000) };
    let mut chain = Chain::<Kv>::default();
    let goal = KvGoal::Put { key: "k".into(), value: 1.into() }.to_bytes();
    let first = chain.execute(1, peer(1), TxId([1; 16]), goal);
    chain.apply(&first).expect("the first record of a chain");
    let point = SnapshotPoint { position: at(5, 3), members: members() };
    let snapshot = Snapshot {
        index: 1,
        point: Some(point),
        barred: BTreeMap::from([(peer(5), Barred::Removed)]),
        chain: chain.freeze(),
    };
    let after = at(5, 0);
    vec![
        ("stored hard state", encode(&hard).to_vec()),
        ("stored entries", encode(&entries()).to_vec()),
        ("stored append", encode(&CommitWrite::Append { after, entries: entries() }).to_vec()),
        ("stored record", encode(&first).to_vec()),
        ("hash of a record", first.hash().0.to_vec()),
        ("stored snapshot", encode(&snapshot).to_vec()),
        ("command record", Command::Record(record()).to_bytes()),
        ("command bar", Command::Bar(peer(1)).to_bytes()),
        ("command expel", Command::Expel(peer(1)).to_bytes()),
        ("command admit", Command::Admit(peer(1)).to_bytes()),
    ]
}

fn all() -> BTreeMap<&'static str, Vec<u8>> {
    let mut all = BTreeMap::new();
    let keys = Ed25519Keys::from_secret(&[7; 32]);
    let contact = Contact::new(&keys, "host:7400".to_owned(), (3, 17));
    let hello = Hello { role: Role::Node, cluster: Some([3; 16]), signed: None };
    let signed = Some(Signed { id: peer(1), signature: signature() });
    let client = Hello { role: Role::Client, cluster: None, signed: signed.clone() };
    let welcome = Welcome { cluster: Some([3; 16]), open: true, denied: None, signed };
    let denied = |denied| Welcome { denied: Some(denied), signed: None, ..welcome.clone() };
    for (name, envelope) in
        [("ping", Envelope::Ping), ("contacts", Envelope::Contacts(vec![contact]))]
    {
        all.insert(name, encode(&envelope).to_vec());
    }
    all.insert("hello", encode(&hello).to_vec());
    all.insert("hello of a client", encode(&client).to_vec());
    all.insert("welcome", encode(&welcome).to_vec());
    for (name, why) in [
        ("denied no right", Denied::NoRight),
        ("denied other cluster", Denied::OtherCluster),
        ("denied no cluster", Denied::NoCluster),
        ("denied full", Denied::Full),
    ] {
        all.insert(name, encode(&denied(why)).to_vec());
    }
    for (name, goal) in credential_goals() {
        all.insert(name, goal.to_bytes());
    }
    for (name, message) in messages() {
        all.insert(name, encode(&Envelope::Namespace("main".to_owned(), message)).to_vec());
    }
    for (name, ask) in asks() {
        all.insert(name, encode(&Envelope::Ask(9, ask)).to_vec());
    }
    for (name, answer) in answers() {
        all.insert(name, encode(&Envelope::Answer(9, answer)).to_vec());
    }
    all.extend(stored());
    all
}

#[test]
fn every_message_and_every_stored_value_has_the_bytes_that_were_recorded() {
    let recorded: BTreeMap<_, _> =
        RECORDED.lines().filter_map(|line| line.split_once(": ")).collect();
    let all = all();
    let mut wrong = Vec::new();
    for (name, bytes) in &all {
        let hex = hex::encode(bytes);
        if recorded.get(name) != Some(&hex.as_str()) {
            wrong.push(format!("{name}: {hex}"));
        }
    }
    assert!(wrong.is_empty(), "not as recorded:\n{}", wrong.join("\n"));
    assert!(recorded.keys().all(|name| all.contains_key(name)), "recorded and no longer made");
}

#[test]
fn what_was_recorded_is_understood() {
    for (name, message) in messages() {
        let envelope = Envelope::Namespace("main".to_owned(), message);
        let back: Envelope = postcard::from_bytes(&encode(&envelope)).expect(name);
        assert_eq!(back, envelope, "{name}");
    }
}
