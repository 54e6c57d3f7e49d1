//! Which round trip comes next: what lets go comes first, then what is timed, then what is wanted.

use crate::clock::Tick;
use crate::epoch::Epoch;
use crate::key::RoleName;
use crate::lifecycle::LockState;

use super::{BATCH, Engine, INSPECT_EVERY, Output, ROW_WAIT, Role};
use crate::protocol::{ClaimRow, Op, RegisterRow, ReleaseRow, TermRow};

impl Engine {
    pub(super) fn choose_op(&mut self, now: Tick) -> Option<Op> {
        let mut releases = Vec::new();
        for (name, role) in &mut self.roles {
            if releases.len() == BATCH {
                break;
            }
            if let Some((epoch, to)) = role.release.take() {
                releases.push(ReleaseRow {
                    term: term(name, role, epoch),
                    clean: role.keeper.in_flight() == 0,
                    to,
                });
            }
        }
        if !releases.is_empty() {
            return Some(Op::Release(releases));
        }
        let mut marks = Vec::new();
        for (name, role) in &mut self.roles {
            if marks.len() == BATCH {
                break;
            }
            if let Some(epoch) = role.mark.take_if(|_| role.write_at.is_none()) {
                marks.push(term(name, role, epoch));
            }
        }
        if !marks.is_empty() {
            return Some(Op::MarkActing(marks));
        }
        if self.leaving && !self.is_engaged() {
            return Some(Op::LeaveSeat);
        }
        let up = self.up.as_mut()?;
        if now >= up.next_beat {
            // Should it fail, there is no seat any more and so no next beat.
            up.next_beat = Tick::MAX;
            up.beats = up.beats.wrapping_add(1);
            if up.inspect || up.beats.is_multiple_of(INSPECT_EVERY) {
                up.inspect = false;
                let held: Vec<TermRow> = self
                    .roles
                    .iter()
                    .filter(|(_, role)| {
                        matches!(role.life.state(), LockState::Leader | LockState::Acquiring)
                    })
                    .filter_map(|(name, role)| Some(term(name, role, role.life.epoch()?)))
                    .collect();
                return Some(Op::Inspect(held));
            }
            return Some(Op::Beat);
        }
        let register: Vec<RegisterRow> = self
            .roles
            .values_mut()
            .filter(|role| !role.registered && (role.joined || role.candidate))
            .filter(|role| role.write_at.is_none())
            .take(BATCH)
            .map(|role| {
                // Now, and not when it is answered: what changes meanwhile must be told again.
                role.registered = true;
                role.candidate = role.joined;
                RegisterRow {
                    role: role.spec.name.clone(),
                    key: role.spec.key,
                    policy: role.spec.policy,
                    priority: role.spec.priority,
                    ready: role.spec.ready,
                    // A role that was stopped is no candidate any more: nobody stands back for it.
                    observer: role.spec.observer || !role.joined,
                }
            })
            .collect();
        if !register.is_empty() {
            return Some(Op::Register(register));
        }
        self.choose_claim(now)
    }

    fn choose_claim(&mut self, now: Tick) -> Option<Op> {
        let lease = self.lease;
        let stuck = |role: &Role| {
            role.blocked_since.is_some_and(|since| now.saturating_since(since) > lease.lease())
        };
        let row = |name: &RoleName, role: &Role| ClaimRow {
            role: name.clone(),
            key: role.spec.key,
            seen: role.seen,
            keep: role.keep,
            insist: role.insist_at.is_some_and(|at| now >= at),
        };
        let mut rows = Vec::new();
        for (name, role) in &mut self.roles {
            if rows.len() == BATCH {
                break;
            }
            if !role.life.wants_claim() && role.life.state() != LockState::Reconnecting {
                role.claim = false;
            }
            if role.claim && role.registered && !stuck(role) {
                role.claim = false;
                rows.push(row(name, role));
            }
        }
        if !rows.is_empty() {
            return Some(Op::Claim { rows, row_wait: ROW_WAIT });
        }
        // A role that stays blocked gets a claim of its own that waits longer, so that what stands
        // before it can be seen, and ended, from outside.
        let (name, role) =
            self.roles.iter_mut().find(|(_, role)| role.claim && role.registered && stuck(role))?;
        role.claim = false;
        let within = lease.statement_deadline() / 2;
        let rows = vec![row(name, role)];
        let seat_pid = self.up.as_ref()?.backend_pid;
        let (role, age) = (name.clone(), lease.lease());
        self.outputs.push_back(Output::Unblock { role, seat_pid, age, within });
        Some(Op::Claim { rows, row_wait: within })
    }
}

fn term(name: &RoleName, role: &Role, epoch: Epoch) -> TermRow {
    TermRow { role: name.clone(), epoch, key: role.spec.key }
}
