//! Which round trip comes next: what releases comes first, then what is timed, then what is wanted.

use std::time::Duration;

use super::role::{Errand, Role};
use super::{Engine, INSPECT_EVERY, Output, ROW_WAIT};
use crate::clock::Tick;
use crate::epoch::Epoch;
use crate::lifecycle::LockState;
use crate::protocol::{ClaimRow, Op, RegisterRow, ReleaseRow, TermRow, millis};

impl Engine {
    pub(super) fn choose_op(&mut self, now: Tick) -> Option<Op> {
        let releases = self.next_batch(|role| role.next_release(now));
        if !releases.is_empty() {
            return Some(Op::Release(releases));
        }
        let marks = self.next_batch(Role::next_mark);
        if !marks.is_empty() {
            return Some(Op::MarkActing(marks));
        }
        if self.leaving && !self.is_engaged() {
            return Some(Op::LeaveSeat);
        }
        let up = self.context.up.as_mut()?;
        if now >= up.next_beat {
            // Should it fail, there is no seat any more and so no next beat.
            up.next_beat = Tick::MAX;
            up.beats = up.beats.wrapping_add(1);
            if up.inspect || up.beats.is_multiple_of(INSPECT_EVERY) {
                up.inspect = false;
                return Some(Op::Inspect(
                    self.roles.values().filter_map(|role| role.held()).collect(),
                ));
            }
            return Some(Op::Beat);
        }
        let registrations = self.next_batch(Role::next_registration);
        if !registrations.is_empty() {
            return Some(Op::Register(registrations));
        }
        self.choose_claim(now)
    }

    fn next_batch<T>(&mut self, next: impl FnMut(&mut Role) -> Option<T>) -> Vec<T> {
        let size = self.batch.size();
        self.roles.values_mut().map(Box::as_mut).filter_map(next).take(size).collect()
    }

    fn choose_claim(&mut self, now: Tick) -> Option<Op> {
        let lease = self.context.lease;
        let stuck = |role: &Role| role.is_stuck(now, lease.lease());
        let rows = self.next_batch(|role| if stuck(role) { None } else { role.next_claim(now) });
        if !rows.is_empty() {
            return Some(Op::Claim { rows, row_wait: ROW_WAIT });
        }
        // A role that stays blocked gets a claim of its own that waits longer, so that what stands
        // before it can be seen, and ended, from outside.
        let seat_pid = self.context.up.as_ref()?.backend_pid;
        let row = self.roles.values_mut().find_map(|role| role.next_claim(now))?;
        let within = claim_wait(lease.statement_deadline());
        let (role, age) = (row.role.clone(), lease.lease());
        self.context.outputs.push_back(Output::Unblock { role, seat_pid, age, within });
        Some(Op::Claim { rows: vec![row], row_wait: within })
    }
}

/// The rest of the deadline is for the way there and back.
fn claim_wait(deadline: Duration) -> Duration {
    deadline / 2
}

impl Role {
    fn next_release(&mut self, now: Tick) -> Option<ReleaseRow> {
        match &mut self.errand {
            Errand::Release { epoch, to } => {
                let (epoch, to) = (*epoch, to.take());
                self.errand = Errand::Releasing;
                let clean = self.keeper.in_flight() == 0;
                let waits = self.waits.take().filter(|(of, _)| *of == epoch);
                let waited_ms = waits.map(|(_, since)| millis(now.saturating_since(since)));
                Some(ReleaseRow { term: self.term(epoch), clean, to, waited_ms })
            }
            Errand::Rest { .. }
            | Errand::Claim
            | Errand::Claiming { .. }
            | Errand::Reclaim { .. }
            | Errand::Reclaiming { .. }
            | Errand::ReclaimAt { .. }
            | Errand::Mark { .. }
            | Errand::Marking { .. }
            | Errand::Releasing => None,
        }
    }

    fn next_mark(&mut self) -> Option<TermRow> {
        match self.errand {
            Errand::Mark { epoch } if self.write_at.is_none() => {
                self.errand = Errand::Marking { epoch };
                Some(self.term(epoch))
            }
            Errand::Mark { .. }
            | Errand::Rest { .. }
            | Errand::Claim
            | Errand::Claiming { .. }
            | Errand::Reclaim { .. }
            | Errand::Reclaiming { .. }
            | Errand::ReclaimAt { .. }
            | Errand::Marking { .. }
            | Errand::Release { .. }
            | Errand::Releasing => None,
        }
    }

    /// The term, if the lock is held and wanted.
    pub(super) fn held(&self) -> Option<TermRow> {
        match self.life.state() {
            LockState::Leader | LockState::Acquiring => Some(self.term(self.life.epoch()?)),
            LockState::Stopped
            | LockState::Follower
            | LockState::Reconnecting
            | LockState::Releasing => None,
        }
    }

    fn next_registration(&mut self) -> Option<RegisterRow> {
        if self.write_at.is_some() || !self.registration.tell() {
            return None;
        }
        let candidacy = &self.candidacy;
        Some(RegisterRow {
            role: candidacy.name.clone(),
            key: candidacy.key,
            policy: candidacy.policy,
            priority: candidacy.priority,
            ready: candidacy.ready,
            observer: candidacy.observer,
            // A role that was stopped is no candidate any more: no member yields to it.
            withdraw: !self.registration.is_joined(),
        })
    }

    /// Its row in the next claim, if it wants one and the database knows its candidacy.
    fn next_claim(&mut self, now: Tick) -> Option<ClaimRow> {
        let keep = match self.errand {
            Errand::Claim if self.life.wants_claim() => None,
            Errand::Reclaim { epoch } if self.life.state() == LockState::Reconnecting => {
                Some(epoch)
            }
            // The role has moved on since.
            Errand::Claim | Errand::Reclaim { .. } => {
                self.errand = Errand::REST;
                return None;
            }
            Errand::Rest { .. }
            | Errand::Claiming { .. }
            | Errand::Reclaiming { .. }
            | Errand::ReclaimAt { .. }
            | Errand::Mark { .. }
            | Errand::Marking { .. }
            | Errand::Release { .. }
            | Errand::Releasing => return None,
        };
        if !self.registration.is_told() {
            return None;
        }
        self.errand = keep.map_or(Errand::Claiming { hinted: false }, reclaiming);
        Some(ClaimRow {
            role: self.candidacy.name.clone(),
            key: self.candidacy.key,
            seen: self.seen,
            keep,
            insist: self.insist_at.is_some_and(|at| now >= at),
        })
    }
}

fn reclaiming(epoch: Epoch) -> Errand {
    Errand::Reclaiming { epoch }
}
