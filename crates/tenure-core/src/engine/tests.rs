//! The order in which a member's news may arrive, step by step.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::{ManualClock, Tick};
use crate::epoch::Epoch;
use crate::gate::LeaderGate;
use crate::identity::Identity;
use crate::key::RoleName;
use crate::lease::{LeaseSpec, TakeoverPolicy};
use crate::lifecycle::{Input, Lifecycle, LifecycleOptions, LockState};
use crate::retry::FixedInterval;

use super::{Candidacy, Engine, Output};
use crate::protocol::{
    Beaten, Better, Claim, Claimed, Debt, Done, MarkedActing, Op, Other, Registered, Seated, Won,
};

/// One member with one role, `r`, on its seat.
struct Stage {
    engine: Engine,
    gate: LeaderGate,
    role: RoleName,
    now: Tick,
}

impl Stage {
    /// Up to the moment at which its first claim is under way.
    fn claiming() -> Self {
        Self::with_grace(None)
    }

    fn with_grace(reconnect_grace: Option<Duration>) -> Self {
        Self::with(reconnect_grace, false)
    }

    fn with(reconnect_grace: Option<Duration>, lock_only: bool) -> Self {
        let lease = LeaseSpec::default().resolve().expect("good timings");
        let role = RoleName::new("r").expect("a good name");
        let mut engine = Engine::new(lease, lease.lease(), None, lock_only, Box::new(|| 0.5));
        let now = Tick::ZERO + Duration::from_secs(60);
        let gate = Self::join(&mut engine, &role, reconnect_grace, now);
        engine.seat_taken(Seated { backend_pid: 1, revoked: 0 }, now);
        let mut stage = Stage { engine, gate, role, now };
        while !matches!(stage.step(), Op::Claim { .. }) {}
        stage
    }

    fn join(
        engine: &mut Engine,
        role: &RoleName,
        reconnect_grace: Option<Duration>,
        now: Tick,
    ) -> LeaderGate {
        let identity = Identity::generate("test").expect("an identity");
        let (keeper, gate) = LeaderGate::pair(Arc::new(ManualClock::new(Tick::ZERO)), identity);
        let life = Lifecycle::new(LifecycleOptions {
            reconnect_grace,
            retry: Arc::new(FixedInterval { interval: Duration::from_millis(200) }),
            ..LifecycleOptions::default()
        });
        let spec = Candidacy {
            key: role.key(),
            name: role.clone(),
            policy: TakeoverPolicy::Exclusive,
            priority: 0,
            ready: true,
            observer: false,
            preempt: false,
        };
        engine.add(spec, life, keeper);
        engine.input(role, Input::Start, now);
        gate
    }

    /// The next round trip; those that are not about the role's fate are answered well.
    fn step(&mut self) -> Op {
        self.now = self.now + Duration::from_micros(500);
        if self.engine.next_timeout().is_some_and(|at| at <= self.now) {
            self.engine.timeout(self.now);
        }
        // A leader's repair poll asks for nothing.
        let next = |_| {
            let op = self.engine.next_op(self.now);
            if op.is_none() {
                self.wait();
            }
            op
        };
        let op = (0..100).find_map(next).expect("something to do");
        match &op {
            Op::Register(rows) => {
                let taken = |role: &RoleName| Registered { role: role.clone(), refused: None };
                let rows = rows.iter().map(|row| taken(&row.role)).collect();
                self.engine.done(Done::Registered(rows), self.now);
            }
            Op::Beat => {
                let beaten = Beaten { revoked: 0, held: None, others: None, orders: None };
                self.engine.done(Done::Beaten(beaten), self.now);
            }
            Op::Inspect(_) => self.engine.done(Done::Inspected(Vec::new()), self.now),
            Op::Claim { .. } | Op::MarkActing(_) | Op::Release(_) | Op::LeaveSeat => {}
        }
        op
    }

    /// Time passes until the engine wants to be woken.
    fn wait(&mut self) {
        self.now = self.engine.next_timeout().expect("something is due").max(self.now);
        self.engine.timeout(self.now);
    }

    /// Time passes until the next beat, which shows another member's; claims meanwhile answer as told.
    fn beat(&mut self, after: Duration, other: &str, beat: i64, claim: &Claim) {
        self.now = self.now + after;
        self.engine.timeout(self.now);
        // A claim's answer may put the beat off for a moment, for what follows from it.
        for _ in 0..100 {
            match self.engine.next_op(self.now) {
                Some(Op::Beat) => break,
                Some(Op::Inspect(_)) => self.engine.done(Done::Inspected(Vec::new()), self.now),
                Some(Op::Claim { .. }) => self.claimed(claim),
                Some(
                    op @ (Op::Register(_) | Op::MarkActing(_) | Op::Release(_) | Op::LeaveSeat),
                ) => {
                    panic!("{op:?}")
                }
                None => self.wait(),
            }
        }
        let others = Some(vec![Other(other.to_owned(), beat, 0)]);
        let beaten = Beaten { revoked: 0, held: None, others, orders: None };
        self.engine.done(Done::Beaten(beaten), self.now);
    }

    /// What was said about the leader's silence since the last look.
    fn stale(&mut self) -> Vec<bool> {
        let mut stale = Vec::new();
        while let Some(output) = self.engine.next_output() {
            if let Output::Stale(_, silent) = output {
                stale.push(silent);
            }
        }
        stale
    }

    fn claimed(&mut self, claim: &Claim) {
        let row = Claimed { role: self.role.clone(), claim: claim.clone() };
        self.engine.done(Done::Claimed(vec![row]), self.now);
    }
}

/// Every answer that leaves the role to another member.
fn failures() -> [Claim; 4] {
    let (epoch, holder) = (Epoch(1), Some("other".to_owned()));
    [
        Claim::Held { epoch: Some(epoch), holder: holder.clone(), held_by_us: Some(false) },
        Claim::Yield { epoch, holder: None, to: Better::Successor },
        Claim::Blocked { epoch: None, holder: None },
        Claim::Paused { epoch, holder },
    ]
}

/// A server may put a notification between an answer and its end, so that it is heard first. Seen
/// as a handover of 220 ms: the answer ("stand back for the successor") was older than the hint.
#[test]
fn a_hint_that_overtakes_the_answer_of_a_claim_is_not_lost() {
    for claim in failures() {
        let mut stage = Stage::claiming();
        stage.engine.notified("r", stage.now);
        stage.claimed(&claim);
        assert_eq!(stage.engine.next_timeout(), Some(stage.now), "after {claim:?}");
        stage.engine.timeout(stage.now);
        // A beat may come first: a hint may also be an order.
        let next = [stage.step(), stage.step()];
        assert!(next.iter().any(|op| matches!(op, Op::Claim { .. })), "after {claim:?}: {next:?}");
    }
}

#[test]
fn a_named_successor_claims_before_it_does_anything_else() {
    let mut stage = Stage::claiming();
    let holder = Some("other".to_owned());
    stage.claimed(&Claim::Held { epoch: Some(Epoch(1)), holder, held_by_us: Some(false) });
    // Both come with the release, one after the other.
    stage.engine.named("r", stage.now);
    stage.engine.notified("r", stage.now);
    assert!(matches!(stage.engine.next_op(stage.now), Some(Op::Claim { .. })));
    // Once the claim is under way, a hint may be an order for the term that it begins.
    stage.engine.notified("r", stage.now);
    stage.claimed(&Claim::Won(Won { epoch: Epoch(2), holder: None, debt: None }));
    assert!(matches!(stage.engine.next_op(stage.now), Some(Op::Beat)));
}

#[test]
fn without_a_hint_a_claim_that_failed_waits_for_its_turn() {
    for claim in failures() {
        let mut stage = Stage::claiming();
        stage.claimed(&claim);
        let state = stage.engine.state(&stage.role).expect("a role").0;
        assert_eq!(state, LockState::Follower);
        assert!(!stage.gate.is_leader());
        let next = stage.engine.next_timeout().expect("it tries again");
        assert!(next > stage.now + Duration::from_millis(50), "after {claim:?}: {next:?}");
    }
}

/// The grace period ends while the reclaim is under way: its answer is about a term that is over, and
/// the claim that the role has made up its mind to must not be lost with it.
#[test]
fn the_late_answer_of_a_reclaim_does_not_cost_the_next_claim() {
    let grace = Duration::from_secs(1);
    let (epoch, holder) = (Epoch(1), None);
    for late in [
        Claim::Moved { epoch, holder: holder.clone() },
        Claim::Kept { epoch, holder: holder.clone() },
        Claim::Held { epoch: Some(epoch), holder, held_by_us: Some(true) },
    ] {
        let mut stage = Stage::with_grace(Some(grace));
        stage.claimed(&Claim::Won(Won { epoch, holder: None, debt: None }));
        assert!(stage.gate.epoch().is_some());
        stage.engine.seat_lost("gone", stage.now);
        assert_eq!(stage.gate.epoch(), None);
        stage.engine.seat_taken(Seated { backend_pid: 2, revoked: 0 }, stage.now);
        let keeps = |op: &Op| match op {
            Op::Claim { rows, .. } => Some(rows[0].keep),
            _ => None,
        };
        while keeps(&stage.step()) != Some(Some(epoch)) {}
        stage.now = stage.now + grace;
        stage.engine.timeout(stage.now);
        stage.engine.timeout(stage.now);
        assert_eq!(stage.engine.state(&stage.role).expect("a role").0, LockState::Acquiring);
        stage.claimed(&late);
        let claims = (0..10).any(|_| {
            stage.now = stage.now + Duration::from_millis(100);
            stage.engine.timeout(stage.now);
            let Some(op) = stage.engine.next_op(stage.now) else { return false };
            if let Op::Release(_) = op {
                stage.engine.done(Done::Released, stage.now);
            } else if let Op::Beat = op {
                let beaten = Beaten { revoked: 0, held: None, others: None, orders: None };
                stage.engine.done(Done::Beaten(beaten), stage.now);
            }
            keeps(&op) == Some(None)
        });
        assert!(claims, "after {late:?}");
    }
}

#[test]
fn a_new_leader_is_not_stale_because_its_dead_predecessor_was() {
    let mut stage = Stage::claiming();
    stage.engine.stale_after = Some(Duration::from_secs(2));
    let [held, ..] = failures();
    stage.claimed(&held);
    stage.beat(Duration::from_secs(1), "other", 7, &held);
    assert!(stage.stale().is_empty());
    stage.beat(Duration::from_secs(3), "other", 7, &held);
    assert_eq!(stage.stale(), [true]);
    // It is dead, and this member takes over from it.
    let won = Won { epoch: Epoch(2), holder: Some("other".to_owned()), debt: None };
    stage.now = stage.now + Duration::from_secs(10);
    stage.engine.died("other", stage.now);
    while !matches!(stage.step(), Op::Claim { .. }) {}
    stage.claimed(&Claim::Won(won));
    assert!(stage.engine.state(&stage.role).is_some_and(|(state, _)| state == LockState::Leader));
    stage.beat(Duration::from_secs(1), "other", 7, &held);
    assert_eq!(stage.stale(), [false], "it leads itself");
    stage.beat(Duration::from_secs(1), "other", 7, &held);
    assert!(stage.stale().is_empty());
}

/// Claims of members that have nothing to gain take the time of the one that has.
#[test]
fn a_death_wakes_the_followers_of_the_dead_member_alone() {
    let mut stage = Stage::claiming();
    let [held, ..] = failures();
    stage.claimed(&held);
    stage.engine.died("a stranger", stage.now);
    let next = stage.engine.next_timeout().expect("it tries again");
    assert!(next > stage.now + Duration::from_millis(50), "it claims what is held: {next:?}");
    stage.engine.died("other", stage.now);
    while !matches!(stage.engine.next_op(stage.now), Some(Op::Claim { .. })) {
        assert!(stage.engine.next_timeout() <= Some(stage.now), "it does not claim");
        stage.step();
    }
}

#[test]
fn members_that_beat_no_more_are_forgotten() {
    let mut stage = Stage::claiming();
    let [held, ..] = failures();
    stage.claimed(&held);
    for n in 0..1000 {
        stage.beat(Duration::from_secs(60), &format!("other {n}"), 1, &held);
    }
    assert!(stage.engine.context.peers.len() <= 60, "{}", stage.engine.context.peers.len());
}

/// A leader whose next round trip is an inspection.
fn inspecting() -> Stage {
    let mut stage = Stage::claiming();
    stage.claimed(&Claim::Won(Won { epoch: Epoch(1), holder: None, debt: None }));
    assert_eq!(stage.gate.epoch(), Some(Epoch(1)));
    while stage.engine.next_output().is_some() {}
    stage.now = stage.now + Duration::from_secs(1);
    if let Some(up) = &mut stage.engine.context.up {
        up.inspect_at(stage.now);
    }
    assert!(matches!(stage.engine.next_op(stage.now), Some(Op::Inspect(_))));
    stage
}

#[test]
fn the_gate_of_a_term_that_is_gone_shuts_before_the_others_are_renewed() {
    let mut stage = inspecting();
    let gone = vec![stage.role.clone()];
    stage.engine.done(Done::Inspected(gone), stage.now);
    assert_eq!(stage.gate.epoch(), None);
    let outputs: Vec<Output> = std::iter::from_fn(|| stage.engine.next_output()).collect();
    let at = |wanted: fn(&Output) -> bool| outputs.iter().position(wanted).expect("it was said");
    let shut = at(|output| matches!(output, Output::Gate(_, None)));
    let renewed = at(|output| matches!(output, Output::Renewed));
    assert!(shut < renewed, "{outputs:?}");
}

#[test]
fn a_beat_that_tells_of_a_lost_term_renews_nothing_until_everything_was_looked_at() {
    let mut stage = Stage::claiming();
    stage.claimed(&Claim::Won(Won { epoch: Epoch(1), holder: None, debt: None }));
    let deadline = |stage: &Stage| stage.gate.peek().expect("it leads").deadline();
    let before = deadline(&stage);
    stage.wait();
    assert!(matches!(stage.engine.next_op(stage.now), Some(Op::Beat)));
    let beaten = Beaten { revoked: 1, held: None, others: None, orders: None };
    stage.engine.done(Done::Beaten(beaten), stage.now);
    assert_eq!(deadline(&stage), before);
    assert!(matches!(stage.engine.next_op(stage.now), Some(Op::Inspect(_))), "it looks at once");
    stage.engine.done(Done::Inspected(Vec::new()), stage.now);
    assert!(deadline(&stage) > before);
}

#[test]
fn a_lost_seat_tells_what_was_held_once_every_gate_is_shut() {
    let mut stage = Stage::claiming();
    stage.claimed(&Claim::Won(Won { epoch: Epoch(1), holder: None, debt: None }));
    let lost = stage.engine.seat_lost("gone", stage.now);
    assert_eq!(stage.gate.epoch(), None);
    assert_eq!((lost.terms, lost.first.map(|term| term.epoch)), (1, Some(Epoch(1))));
}

#[test]
fn a_beat_that_counts_fewer_rows_than_before_renews_nothing_until_everything_was_looked_at() {
    let mut stage = Stage::claiming();
    stage.claimed(&Claim::Won(Won { epoch: Epoch(1), holder: None, debt: None }));
    let deadline = |stage: &Stage| stage.gate.peek().expect("it leads").deadline();
    let beat = |stage: &mut Stage, held| {
        // A leader's repair poll asks for nothing.
        let op = std::iter::repeat_with(|| {
            stage.wait();
            stage.engine.next_op(stage.now)
        });
        assert!(matches!(op.flatten().next(), Some(Op::Beat)), "all is well");
        let beaten = Beaten { revoked: 0, held: Some(held), others: None, orders: None };
        stage.engine.done(Done::Beaten(beaten), stage.now);
    };
    // The rows of an earlier seat name it too.
    beat(&mut stage, 1);
    beat(&mut stage, 3);
    let before = deadline(&stage);
    beat(&mut stage, 2);
    assert_eq!(deadline(&stage), before);
    assert!(matches!(stage.engine.next_op(stage.now), Some(Op::Inspect(_))), "it looks at once");
    stage.engine.done(Done::Inspected(vec![stage.role.clone()]), stage.now);
    assert_eq!(stage.gate.epoch(), None);
}

/// Without tables a claim, a registration and a release write nothing that a standby could acknowledge: a
/// primary that was deposed long ago answers them too.
#[test]
fn without_tables_only_what_standbys_acknowledge_renews_the_gate() {
    let mut stage = Stage::with(None, true);
    stage.claimed(&Claim::Won(Won { epoch: Epoch(1), holder: None, debt: Some(Debt::default()) }));
    let mark = std::iter::repeat_with(|| stage.step()).find_map(|op| match op {
        Op::MarkActing(rows) => Some(rows),
        _ => None,
    });
    let marked = mark.into_iter().flatten().map(|row| row.role).collect();
    stage.engine.done(Done::MarkedActing(MarkedActing { marked, blocked: Vec::new() }), stage.now);
    let deadline = |stage: &Stage| stage.gate.peek().expect("it leads").deadline();
    let opened = deadline(&stage);

    // Another registration, as when its priority changes.
    stage.now = stage.now + Duration::from_millis(100);
    stage.engine.set_candidacy(&stage.role.clone(), None, Some(1), stage.now);
    let mut before = opened;
    while !matches!(stage.step(), Op::Register(_)) {
        before = deadline(&stage);
    }
    assert_eq!(deadline(&stage), before, "a registration renewed it");

    // A claim of another role of this member.
    let other = RoleName::new("other").expect("a good name");
    Stage::join(&mut stage.engine, &other, None, stage.now);
    while !matches!(stage.step(), Op::Claim { .. }) {}
    let before = deadline(&stage);
    stage.now = stage.now + Duration::from_millis(100);
    let claim = Claim::Held { epoch: None, holder: None, held_by_us: None };
    stage.engine.done(Done::Claimed(vec![Claimed { role: other, claim }]), stage.now);
    assert_eq!(deadline(&stage), before, "a claim renewed it");

    if let Some(up) = &mut stage.engine.context.up {
        up.inspect_at(stage.now);
    }
    assert!(matches!(stage.engine.next_op(stage.now), Some(Op::Inspect(_))));
    stage.engine.done(Done::Inspected(Vec::new()), stage.now);
    assert!(deadline(&stage) > before, "an inspection renews it");
}

/// There may be ten thousand of them; `examples/roles.rs` of `tenure` measures the whole.
#[test]
fn a_role_is_small() {
    let size = size_of::<super::role::Role>();
    assert!(size <= 640, "{size} bytes");
    let size = size_of::<Output>();
    assert!(size <= 96, "{size} bytes");
}
