//! What a round trip brought, and what follows from it.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::clock::Tick;
use crate::epoch::Epoch;
use crate::key::RoleName;
use crate::lifecycle::{Input, LockState, NotAcquired, Notice};

use super::{Engine, InFlight, Output, Peer};
use crate::protocol::{
    Beaten, Better, Claim, Claimed, Debt, Done, MarkedActing, Op, Order, RegisterRefusal,
    Registered, TermRow,
};

impl Engine {
    /// What became of the round trip that `next_op` handed out.
    pub fn done(&mut self, done: Done, now: Tick) {
        let Some(InFlight { op, sent }) = self.in_flight.take() else { return };
        self.renew(sent);
        if matches!(op, Op::Beat | Op::Inspect(_)) {
            // Other round trips prove as much, but only these bring orders and others' beats. One
            // that was called for meanwhile stays called for.
            let next = self.lease.next_beat(sent, (self.random)());
            if let Some(up) = &mut self.up {
                up.next_beat = up.next_beat.min(next);
            }
        }
        match (done, op) {
            (Done::Registered(rows), _) => self.registered(rows, now),
            (Done::Claimed(rows), Op::Claim { rows: asked, .. }) => {
                // A claim that ran out of time did not come to all of them: they are in the next.
                let answered: BTreeSet<&RoleName> = rows.iter().map(|row| &row.role).collect();
                for row in asked.iter().filter(|row| !answered.contains(&row.role)) {
                    if let Some(role) = self.roles.get_mut(&row.role) {
                        role.claim = true;
                    }
                }
                for row in rows {
                    self.claimed(row, now);
                }
            }
            (Done::MarkedActing(MarkedActing { marked, blocked }), Op::MarkActing(rows)) => {
                let marked: BTreeSet<RoleName> = marked.into_iter().collect();
                let blocked: BTreeSet<RoleName> = blocked.into_iter().collect();
                for TermRow { role, epoch, .. } in rows {
                    if blocked.contains(&role) {
                        self.mark_blocked(&role, epoch, now);
                    } else if marked.contains(&role) {
                        self.unblocked(&role);
                        self.input(&role, Input::MarkedActing { epoch }, now);
                    } else {
                        self.input(&role, Input::EpochMoved, now);
                    }
                }
            }
            (Done::Beaten(beaten), _) => self.beaten(beaten, now),
            (Done::Inspected(gone), _) => {
                for role in gone {
                    self.input(&role, Input::EpochMoved, now);
                }
                // Lock and epoch are confirmed: a gate that was shut for lateness opens again.
                if now < self.lease_until {
                    self.late = false;
                    for name in self.names(|role| role.life.state() == LockState::Leader) {
                        self.input(&name, Input::BeatOk, now);
                    }
                } else if let Some(up) = &mut self.up {
                    // This answer was late itself: look again.
                    up.inspect = true;
                    up.next_beat = now;
                }
            }
            (Done::Released, Op::Release(rows)) => {
                for row in rows {
                    self.input(&row.term.role, Input::Released, now);
                }
            }
            (Done::LeftSeat, _) => {
                self.left = true;
            }
            (Done::Claimed(_) | Done::MarkedActing(_) | Done::Released, _) => {
                unreachable!("an answer belongs to its question")
            }
        }
    }

    /// A round trip that was handed out at `sent` succeeded: trust lasts until `sent` + lease.
    fn renew(&mut self, sent: Tick) {
        self.lease_until = self.lease.gate_deadline(sent);
        self.last_beat = Some(sent);
        for role in self.roles.values_mut() {
            if let Some(epoch) = role.life.epoch() {
                role.keeper.extend(epoch, self.lease_until);
            }
        }
        self.outputs.push_back(Output::Renewed);
    }

    fn registered(&mut self, rows: Vec<Registered>, now: Tick) {
        for Registered { role: name, refused } in rows {
            let Some(role) = self.roles.get_mut(&name) else { continue };
            match refused {
                None => {
                    // Unless it changed meanwhile: then the next registration answers.
                    if role.joined && role.registered {
                        self.outputs.push_back(Output::Registered(name, Ok(())));
                    }
                }
                Some(RegisterRefusal::Blocked) => {
                    // Nobody may use a lease that is not written down: not yet a candidate.
                    role.registered = false;
                    self.blocked(&name, now);
                }
                Some(
                    why @ (RegisterRefusal::Collision { .. }
                    | RegisterRefusal::Key { .. }
                    | RegisterRefusal::Policy { .. }
                    | RegisterRefusal::Locks { .. }),
                ) => {
                    role.candidate = false;
                    role.claim = false;
                    self.outputs.push_back(Output::Registered(name.clone(), Err(why)));
                    self.input(&name, Input::StopRequested, now);
                }
            }
        }
    }

    /// Somebody holds up the role's row: what had to be written there is tried again a little later,
    /// and no other role waits for it. Returns since when.
    fn blocked(&mut self, name: &RoleName, now: Tick) -> Tick {
        let pause = self.lease.heartbeat() / 10;
        let role = self.roles.get_mut(name).expect("just found");
        role.write_at = Some(now + pause);
        *role.blocked_since.get_or_insert(now)
    }

    fn unblocked(&mut self, name: &RoleName) {
        self.roles.get_mut(name).expect("just found").blocked_since = None;
    }

    /// The lock is ours and the gate stays shut. Who is held up for a lease gives the lock back and
    /// claims anew: a claim can find out who stands before it, and end that.
    fn mark_blocked(&mut self, name: &RoleName, epoch: Epoch, now: Tick) {
        if now.saturating_since(self.blocked(name, now)) > self.lease.lease() {
            self.input(name, Input::EpochMoved, now);
            return;
        }
        let role = self.roles.get_mut(name).expect("just found");
        if role.life.state() == LockState::Acquiring && role.life.epoch() == Some(epoch) {
            role.mark = Some(epoch);
        }
    }

    fn claimed(&mut self, Claimed { role: name, claim }: Claimed, now: Tick) {
        let Some(role) = self.roles.get_mut(&name) else { return };
        let back = role.keep.is_some();
        role.seen = role.seen.max(claim.epoch().unwrap_or(Epoch::ZERO));
        role.holder = claim.holder().map(str::to_owned);
        if !matches!(claim, Claim::Blocked { .. }) {
            role.blocked_since = None;
        }
        let mut held = false;
        let input = match claim {
            Claim::Won(won) => {
                role.keep = None;
                role.insist_at = None;
                role.hinted = false;
                if won.holder.is_some() {
                    self.outputs.push_back(Output::TookOver(name.clone()));
                }
                let open_at = won.debt.map(|debt| self.open_at(&debt, now));
                Input::Claimed { epoch: won.epoch, open_at }
            }
            Claim::Kept { epoch, .. } => {
                let epoch = role.keep.take().unwrap_or(epoch);
                Input::Reclaimed { epoch }
            }
            Claim::Moved { .. } => {
                role.keep = None;
                Input::ReclaimFailed
            }
            Claim::Held { held_by_us: Some(true), .. } if back => {
                // Our own old session has not ended yet, or a stranger was faster.
                role.try_at = Some(now + self.lease.heartbeat() / 50);
                return;
            }
            Claim::Held { .. } | Claim::Paused { .. } if back => {
                role.keep = None;
                Input::ReclaimFailed
            }
            Claim::Held { .. } => {
                // Somebody took it; the next race begins with manners again.
                role.insist_at = None;
                held = true;
                Input::ClaimFailed { why: NotAcquired::Held }
            }
            Claim::Paused { .. } => Input::ClaimFailed { why: NotAcquired::Paused },
            Claim::Blocked { .. } => {
                role.blocked_since.get_or_insert(now);
                role.try_at = Some(now + self.lease.heartbeat() / 4);
                if back {
                    return;
                }
                Input::ClaimFailed { why: NotAcquired::Blocked }
            }
            Claim::Yield { to, .. } => {
                // A better candidate gets a head start; if it does not take it, we insist.
                let head_start = match to {
                    Better::Ready => self.lease.lease(),
                    Better::Successor => self.lease.heartbeat(),
                    Better::Priority => self.lease.heartbeat() / 2,
                };
                role.try_at = Some(*role.insist_at.get_or_insert(now + head_start));
                Input::ClaimFailed { why: NotAcquired::Reserved }
            }
            Claim::Unknown => {
                role.registered = false;
                Input::ClaimFailed { why: NotAcquired::Blocked }
            }
            Claim::Failed { sqlstate, error } => {
                // The database undid it and unlocked: this role's trouble, not the session's.
                let error = Notice::Error(explain_claim(&sqlstate, &error));
                self.outputs.push_back(Output::Notice(name.clone(), error));
                Input::ClaimFailed { why: NotAcquired::Blocked }
            }
        };
        let failed = matches!(input, Input::ClaimFailed { .. });
        // Whatever stood in the way, it may be gone since: a hint overtook this answer.
        let role = self.roles.get_mut(&name).expect("just found");
        if std::mem::take(&mut role.hinted) && failed {
            role.try_at = Some(now);
        }
        self.input(&name, input, now);
        if held {
            self.consider_preempting(&name, now);
        }
    }

    /// When the gate of a role that was just won may open, if a gate of its debtor may be open.
    fn open_at(&self, debt: &Debt, now: Tick) -> Tick {
        let own = self.lease.lease();
        let lease = debt.lease.unwrap_or(own).max(own);
        if self.lock_only {
            // Without tables nothing is known of whoever led before.
            return self.lease.takeover_at(now, now, lease);
        }
        let contact = self.contact;
        let saw = match (&debt.debtor, debt.beat) {
            // Nobody is named; what a failover lost cannot have beaten since we met this server.
            (None, _) => contact,
            // Exactly the beat we saw: a lower one is that of a member whose row was forgotten and
            // made anew, and what we saw of it is of another time.
            (Some(debtor), Some(beat)) => self
                .peers
                .get(debtor)
                .filter(|peer| peer.beat == beat)
                .map_or(now, |peer| peer.first_seen),
            (Some(_), None) => now,
        };
        self.lease.takeover_at(saw, contact, lease)
    }

    fn beaten(&mut self, beaten: Beaten, now: Tick) {
        if let Some(others) = beaten.others {
            let mut peers = std::mem::take(&mut self.peers);
            for other in others {
                let grace = Duration::from_millis(other.2);
                let peer =
                    peers.entry(other.0).or_insert(Peer { beat: -1, first_seen: now, grace });
                if peer.beat != other.1 {
                    peer.beat = other.1;
                    peer.first_seen = now;
                }
            }
            self.peers = peers;
            self.look_for_silence(now);
        }
        if let Some(up) = &mut self.up
            && up.revoked != beaten.revoked
        {
            // Something we held was taken: look at everything, now.
            up.revoked = beaten.revoked;
            up.inspect = true;
            up.next_beat = now;
        }
        for Order { role, paused, id, to } in beaten.orders.unwrap_or_default() {
            if paused || id.is_some() {
                self.input(&role, Input::ReleaseRequested { to, deadline: None }, now);
            }
        }
    }

    /// For alerts alone; decides nothing.
    fn look_for_silence(&mut self, now: Tick) {
        let Some(limit) = self.stale_after else { return };
        for (name, role) in &mut self.roles {
            let silent = role
                .holder
                .as_ref()
                .and_then(|holder| self.peers.get(holder))
                .is_some_and(|peer| now.saturating_since(peer.first_seen) > limit);
            if silent != role.stale {
                role.stale = silent;
                self.outputs.push_back(Output::Stale(name.clone(), silent));
            }
        }
    }

    fn consider_preempting(&mut self, name: &RoleName, now: Tick) {
        let pause = self.lease.lease();
        let role = self.roles.get_mut(name).expect("just found");
        if role.spec.preempt
            && role.spec.ready
            && role.preempted_at.is_none_or(|at| now.saturating_since(at) > pause)
        {
            role.preempted_at = Some(now);
            self.outputs.push_back(Output::Preempt(name.clone()));
        }
    }
}

fn explain_claim(sqlstate: &str, error: &str) -> String {
    if sqlstate == "53200" {
        format!("the server's lock table is full ({error}); raise max_locks_per_transaction")
    } else {
        format!("{error} (SQLSTATE {sqlstate})")
    }
}
