use std::time::Duration;

use super::*;

fn peer(n: u8) -> PeerId {
    PeerId([n; 32])
}

fn apply(state: &mut Credentials, goal: &CredentialGoal) -> Result<(), String> {
    let diff = state.execute(&goal.to_bytes())?;
    state.apply(&diff)
}

fn founded(open: bool) -> Credentials {
    let mut state = Credentials::initial();
    apply(&mut state, &CredentialGoal::Found { founder: peer(1), open }).expect("the first");
    state
}

fn right(state: &Credentials, n: u8) -> Option<Right> {
    Rights { state: state.clone(), ..Rights::default() }.of(&peer(n))
}

fn invite(right: Right) -> (Invitation, CredentialGoal) {
    let invitation = Invitation::new([5; 16], right, Duration::from_secs(60));
    let goal = invitation.goal();
    (invitation, goal)
}

#[test]
fn an_invitation_lets_one_key_in_once_and_not_after_its_time() {
    let mut state = founded(false);
    let (invitation, goal) = invite(Right::Client);
    apply(&mut state, &goal).unwrap();
    let redeem = |n, now| CredentialGoal::Redeem { id: invitation.id(), peer: peer(n), now };
    assert!(apply(&mut state, &redeem(2, invitation.expires)).is_err(), "expired");
    apply(&mut state, &redeem(2, unix_now())).unwrap();
    assert_eq!(right(&state, 2), Some(Right::Client));
    assert!(apply(&mut state, &redeem(3, unix_now())).is_err(), "single use");
    assert_eq!(right(&state, 3), None);
}

#[test]
fn a_right_is_given_changed_and_taken_and_a_node_always_remains() {
    let mut state = founded(false);
    assert_eq!(right(&state, 1), Some(Right::Node));
    let grant = |n, right| CredentialGoal::Grant { peer: peer(n), right };
    apply(&mut state, &grant(2, Right::Operator)).unwrap();
    assert_eq!(right(&state, 2), Some(Right::Operator));
    apply(&mut state, &CredentialGoal::Revoke { peer: peer(2) }).unwrap();
    assert_eq!(right(&state, 2), None);
    assert!(apply(&mut state, &CredentialGoal::Revoke { peer: peer(2) }).is_err());
    assert!(apply(&mut state, &CredentialGoal::Revoke { peer: peer(1) }).is_err());
    assert!(apply(&mut state, &grant(1, Right::Client)).is_err());
    assert!(apply(&mut state, &CredentialGoal::Found { founder: peer(9), open: true }).is_err());
}

#[test]
fn an_open_cluster_gives_every_right_until_it_is_closed() {
    let mut state = founded(true);
    assert_eq!(right(&state, 7), Some(Right::Node));
    apply(&mut state, &CredentialGoal::Close).unwrap();
    assert_eq!(right(&state, 7), None);
    assert_eq!(right(&state, 1), Some(Right::Node));
}

#[test]
fn until_it_knows_the_credentials_a_node_trusts_the_nodes_of_its_invitation() {
    let rights = Rights { pinned: BTreeSet::from([peer(4)]), ..Rights::default() };
    assert_eq!((rights.of(&peer(4)), rights.of(&peer(5))), (Some(Right::Node), None));
    let rights = Rights { state: founded(false), ..rights };
    assert_eq!(rights.of(&peer(4)), None, "what is replicated counts as soon as it is there");
}

#[test]
fn the_state_survives_a_snapshot_and_hides_its_keys() {
    let mut state = founded(false);
    let (invitation, goal) = invite(Right::Node);
    apply(&mut state, &goal).unwrap();
    let again = Credentials::restore(&state.snapshot()).expect("just written");
    assert_eq!(again.invitation(&invitation.id(), unix_now()), Some(invitation.key()));
    assert!(Credentials::restore(b"").is_err() && Credentials::restore(b"A").is_err());
    let shown = String::from_utf8(state.query(&[]).unwrap()).unwrap();
    assert!(!shown.contains(&hex::encode(invitation.key())) && shown.contains("\"node\""));
    assert!(!format!("{goal:?}{invitation:?}").contains(&format!("{:?}", invitation.key())));
}

#[test]
fn an_invitation_is_one_word_and_a_slip_is_noticed() {
    let (invitation, _) = invite(Right::Operator);
    let text = invitation.to_text();
    assert_eq!(Invitation::parse(&format!(" {text}\n")), Some(invitation));
    for place in [0, 25, text.len() - 1] {
        let mut slip = text.clone().into_bytes();
        slip[place] = if slip[place] == b'0' { b'1' } else { b'0' };
        assert_eq!(Invitation::parse(&String::from_utf8(slip).unwrap()), None, "{place}");
    }
    assert_eq!(Invitation::parse(&text[..text.len() - 2]), None);
}

#[test]
fn a_proof_fits_one_session_one_side_and_one_key() {
    let key = [1; 32];
    let proof = joiner_proof(&key, &[2; 32], &peer(1));
    assert_ne!(proof, joiner_proof(&key, &[3; 32], &peer(1)));
    assert_ne!(proof, joiner_proof(&key, &[2; 32], &peer(2)));
    assert_ne!(proof, node_proof(&key, &[2; 32], &peer(1)));
    assert_ne!(proof, joiner_proof(&[9; 32], &[2; 32], &peer(1)));
}
