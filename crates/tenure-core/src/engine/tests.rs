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

use super::{Candidacy, Engine};
use crate::protocol::{Beaten, Better, Claim, Claimed, Done, Op, Registered, Seated};

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
        let lease = LeaseSpec::default().resolve().expect("good timings");
        let role = RoleName::new("r").expect("a good name");
        let identity = Identity::generate("test").expect("an identity");
        let (keeper, gate) = LeaderGate::pair(Arc::new(ManualClock::new(Tick::ZERO)), identity);
        let mut engine = Engine::new(lease, lease.lease(), None, false, Box::new(|| 0.5));
        let life = Lifecycle::new(LifecycleOptions {
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
        let now = Tick::ZERO + Duration::from_secs(60);
        engine.input(&role, Input::Start, now);
        engine.seat_taken(Seated { backend_pid: 1, revoked: 0 }, now);
        let mut stage = Stage { engine, gate, role, now };
        while !matches!(stage.step(), Op::Claim { .. }) {}
        stage
    }

    /// The next round trip; those that are not about the role's fate are answered well.
    fn step(&mut self) -> Op {
        self.now = self.now + Duration::from_micros(500);
        if self.engine.next_timeout().is_some_and(|at| at <= self.now) {
            self.engine.timeout(self.now);
        }
        let op = self.engine.next_op(self.now).expect("something to do");
        match &op {
            Op::Register(rows) => {
                let taken = |role: &RoleName| Registered { role: role.clone(), refused: None };
                let rows = rows.iter().map(|row| taken(&row.role)).collect();
                self.engine.done(Done::Registered(rows), self.now);
            }
            Op::Beat => {
                let beaten = Beaten { revoked: 0, others: None, orders: None };
                self.engine.done(Done::Beaten(beaten), self.now);
            }
            Op::Claim { .. }
            | Op::MarkActing(_)
            | Op::Inspect(_)
            | Op::Release(_)
            | Op::LeaveSeat => {}
        }
        op
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
