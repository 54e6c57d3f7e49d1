//! What a failover or a patient claimant leaves to the next claim.

use std::time::Duration;

use super::{MemberSpec, Model, SessionId, Tables};
use crate::clock::Tick;
use crate::epoch::Epoch;
use crate::key::RoleName;
use crate::lease::TakeoverPolicy;
use crate::protocol::{Claim, ClaimRow, Debt, Done, Op, RegisterRow, ReleaseRow, TermRow, Won};

const NOW: Tick = Tick::ZERO;

fn role() -> RoleName {
    RoleName::new("r").expect("a good name")
}

fn take_seat(model: &mut Model, identity: &str, lease_ms: u64) -> SessionId {
    let member = MemberSpec { identity: identity.to_owned(), lease_ms, grace_ms: 0 };
    model.take_seat(&member, NOW).0
}

fn register(model: &mut Model, session: SessionId) {
    let row = RegisterRow {
        role: role(),
        key: role().key(),
        policy: TakeoverPolicy::Exclusive,
        priority: 0,
        ready: true,
        observer: false,
        withdraw: false,
    };
    model.run(session, &Op::Register(vec![row]), NOW).expect("it is registered");
}

fn claim(model: &mut Model, session: SessionId) -> Won {
    let row =
        ClaimRow { role: role(), key: role().key(), seen: Epoch::ZERO, keep: None, insist: true };
    let op = Op::Claim { rows: vec![row], row_wait: Duration::ZERO };
    match model.run(session, &op, NOW).expect("it is answered") {
        Done::Claimed(mut rows) => match rows.remove(0).claim {
            Claim::Won(won) => won,
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

fn give_up(model: &mut Model, session: SessionId, epoch: Epoch, waited_ms: u64) {
    let term = TermRow { role: role(), epoch, key: role().key() };
    let row = ReleaseRow { term, clean: true, to: None, waited_ms: Some(waited_ms) };
    model.run(session, &Op::Release(vec![row]), NOW).expect("it is released");
}

fn debt(won: Won) -> Debt {
    won.debt.expect("a debt")
}

#[test]
fn a_lease_whose_registration_a_failover_lost_is_waited_out() {
    let mut model = Model::default();
    let short = take_seat(&mut model, "short", 2000);
    register(&mut model, short);
    let long = take_seat(&mut model, "long", 4000);
    let replicated: Tables = model.tables.clone();
    // From here on everything is lost: the longer lease is registered, and leads.
    register(&mut model, long);
    assert_eq!(claim(&mut model, long).debt, None);
    model.fail_over(replicated);
    let short = take_seat(&mut model, "short", 2000);
    register(&mut model, short);
    // The other member's death may be recorded while its gate is still open.
    assert!(model.record_death("long", NOW));
    assert_eq!(debt(claim(&mut model, short)).lease, Some(Duration::from_secs(4)));
}

#[test]
fn a_candidate_of_another_role_does_not_make_a_restart_longer() {
    let mut model = Model::default();
    let short = take_seat(&mut model, "short", 2000);
    register(&mut model, short);
    let long = take_seat(&mut model, "long", 60_000);
    let other = RoleName::new("other").expect("a good name");
    let row = RegisterRow {
        key: other.key(),
        role: other,
        policy: TakeoverPolicy::Exclusive,
        priority: 0,
        ready: true,
        observer: false,
        withdraw: false,
    };
    model.run(long, &Op::Register(vec![row]), NOW).expect("it is registered");
    model.restart();
    let short = take_seat(&mut model, "short", 2000);
    register(&mut model, short);
    assert_eq!(debt(claim(&mut model, short)).lease, Some(Duration::from_secs(2)));
}

#[test]
fn time_waited_is_credited_until_the_debtor_beats_again() {
    let mut model = Model::default();
    let leader = take_seat(&mut model, "leader", 3000);
    register(&mut model, leader);
    claim(&mut model, leader);
    model.end(leader);
    let first = take_seat(&mut model, "first", 3000);
    register(&mut model, first);
    let won = claim(&mut model, first);
    give_up(&mut model, first, won.epoch, 1000);
    let won = claim(&mut model, first);
    assert_eq!(debt(won.clone()).waited, Duration::from_secs(1));
    give_up(&mut model, first, won.epoch, 500);
    // It is back on a new seat, and may have led again.
    take_seat(&mut model, "leader", 3000);
    assert_eq!(debt(claim(&mut model, first)).waited, Duration::ZERO);
}
