//! What a round trip brought, and what follows from it.

use std::collections::BTreeSet;
use std::time::Duration;

use super::role::{Errand, Role};
use super::{Context, Engine, InFlight, Output, Peer};
use crate::clock::Tick;
use crate::epoch::Epoch;
use crate::key::RoleName;
use crate::lifecycle::{Input, LockState, NotAcquired, Notice};
use crate::protocol::{
    Beaten, Better, Claim, Claimed, Debt, Done, MarkedActing, Op, Order, Other, RegisterRefusal,
    Registered, TermRow,
};

/// How long a member that beats no more is remembered.
const REMEMBERED: Duration = Duration::from_secs(3600);

impl Engine {
    /// What became of the round trip that `next_op` handed out.
    pub fn done(&mut self, done: Done, now: Tick) {
        let Some(InFlight { op, sent }) = self.in_flight.take() else { return };
        let renews = self.is_acknowledged(&op);
        if renews {
            self.last_beat = Some(sent);
        }
        self.batch.answered(&op, now.saturating_since(sent));
        // The gate closes first: what is gone is not renewed, and a gate whose deadline has passed does not
        // open again, not even for an instant.
        if let Done::Inspected(gone) = &done {
            for name in gone {
                self.input(name, Input::EpochMoved, now);
            }
        }
        if renews && !self.is_doubtful(&done) {
            self.renew(sent);
        }
        if matches!(op, Op::Beat | Op::Inspect(_)) {
            // Other round trips prove as much, but only these bring orders and others' beats. One
            // that was called for meanwhile stays called for.
            let next = self.context.lease.next_beat(sent, (self.random)());
            if let Some(up) = &mut self.context.up {
                up.next_beat = up.next_beat.min(next);
            }
        }
        match (done, op) {
            (Done::Registered(rows), _) => {
                for Registered { role, refused } in rows {
                    if let Some(role) = self.roles.get_mut(&role) {
                        role.registered(refused, now, &mut self.context);
                    }
                }
            }
            (Done::Claimed(rows), Op::Claim { rows: asked, .. }) => {
                // A claim that ran out of time did not come to all of them: they are in the next.
                let answered: BTreeSet<&RoleName> = rows.iter().map(|row| &row.role).collect();
                for row in asked.iter().filter(|row| !answered.contains(&row.role)) {
                    if let Some(role) = self.roles.get_mut(&row.role) {
                        role.claim_again();
                    }
                }
                for Claimed { role, claim } in rows {
                    if let Some(role) = self.roles.get_mut(&role) {
                        role.claimed(claim, now, &mut self.context);
                    }
                }
            }
            (Done::MarkedActing(MarkedActing { marked, blocked }), Op::MarkActing(rows)) => {
                let marked: BTreeSet<RoleName> = marked.into_iter().collect();
                let blocked: BTreeSet<RoleName> = blocked.into_iter().collect();
                for TermRow { role: name, epoch, .. } in rows {
                    let Some(role) = self.roles.get_mut(&name) else { continue };
                    if blocked.contains(&name) {
                        role.mark_blocked(epoch, now, &mut self.context);
                    } else if marked.contains(&name) {
                        role.blocked_since = None;
                        role.input(Input::MarkedActing { epoch }, now, &mut self.context);
                    } else {
                        role.input(Input::EpochMoved, now, &mut self.context);
                    }
                }
            }
            (Done::Beaten(beaten), _) => self.beaten(beaten, now),
            (Done::Inspected(_), _) => self.inspected(now),
            (Done::Released, Op::Release(rows)) => {
                for row in rows {
                    if let Some(role) = self.roles.get_mut(&row.term.role) {
                        role.released(now, &mut self.context);
                    }
                }
            }
            (Done::LeftSeat, _) => self.left = true,
            (Done::Claimed(_) | Done::MarkedActing(_) | Done::Released, _) => {
                unreachable!("an answer belongs to its question")
            }
        }
    }

    /// Whether the answer shows that this server is still the primary. With tables every round trip writes the
    /// member's row, and its commit waits for the standbys that must acknowledge it. Without tables, only
    /// these write something: the others would also be answered by a primary that was deposed long ago.
    fn is_acknowledged(&self, op: &Op) -> bool {
        match op {
            Op::Beat | Op::Inspect(_) | Op::MarkActing(_) => true,
            Op::Register(_) | Op::Claim { .. } | Op::Release(_) | Op::LeaveSeat => {
                !self.context.lock_only
            }
        }
    }

    /// A round trip that was handed out at `sent` succeeded: trust lasts until `sent` + lease.
    fn renew(&mut self, sent: Tick) {
        let lease_until = self.context.lease.gate_deadline(sent);
        self.context.lease_until = lease_until;
        for role in self.roles.values_mut() {
            if let Some(epoch) = role.life.epoch() {
                role.keeper.extend(epoch, lease_until);
            }
        }
        self.context.outputs.push_back(Output::Renewed);
    }

    /// Something we held was taken: which gate may be renewed is known once everything was looked at.
    fn is_doubtful(&self, done: &Done) -> bool {
        match (done, &self.context.up) {
            (Done::Beaten(beaten), Some(up)) => {
                beaten.revoked != up.revoked
                    || self.surplus(beaten).is_some_and(|surplus| surplus < up.surplus)
            }
            (
                Done::Beaten(_)
                | Done::Registered(_)
                | Done::Claimed(_)
                | Done::MarkedActing(_)
                | Done::Inspected(_)
                | Done::Released
                | Done::LeftSeat,
                _,
            ) => false,
        }
    }

    /// For how many more roles the rows name us than we hold locks. It falls when a row of ours is gone
    /// that names no holder any more (deleted by hand): then everything is looked at. Rows of an earlier
    /// seat of ours may name us still, so zero is not what it must be.
    fn surplus(&self, beaten: &Beaten) -> Option<i64> {
        let held = self.roles.values().filter(|role| role.life.holds_lock()).count();
        beaten.held.map(|rows| rows.saturating_sub_unsigned(held as u64))
    }

    fn inspected(&mut self, now: Tick) {
        // Lock and epoch are confirmed: a gate that was shut for lateness opens again.
        if now < self.context.lease_until {
            self.late = false;
            for role in self.roles.values_mut() {
                if role.life.state() == LockState::Leader {
                    role.input(Input::BeatOk, now, &mut self.context);
                }
            }
        } else if let Some(up) = &mut self.context.up {
            // This answer was late itself: look again.
            up.inspect_at(now);
        }
    }

    fn beaten(&mut self, beaten: Beaten, now: Tick) {
        let surplus = self.surplus(&beaten);
        if let Some(others) = beaten.others {
            for Other(identity, beat, grace_ms) in others {
                let grace = Duration::from_millis(grace_ms);
                let new = Peer { beat: -1, first_seen: now, grace };
                let peer = self.context.peers.entry(identity).or_insert(new);
                if peer.beat != beat {
                    peer.beat = beat;
                    peer.first_seen = now;
                }
            }
            // A member that restarts has a new name: those of long ago are forgotten. A debt of one of
            // them is then waited out as if it were seen for the first time.
            let peers = &mut self.context.peers;
            peers.retain(|_, peer| now.saturating_since(peer.first_seen) < REMEMBERED);
            self.look_for_silence(now);
        }
        if let Some(up) = &mut self.context.up {
            let surplus = surplus.unwrap_or(up.surplus);
            if up.revoked != beaten.revoked || surplus < up.surplus {
                // Something we held was taken: look at everything, now.
                up.inspect_at(now);
            }
            up.revoked = beaten.revoked;
            up.surplus = surplus;
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
        let Context { peers, outputs, .. } = &mut self.context;
        for (name, role) in &mut self.roles {
            let silent = role
                .holder
                .as_ref()
                .and_then(|holder| peers.get(holder))
                .is_some_and(|peer| now.saturating_since(peer.first_seen) > limit);
            if silent != role.stale {
                role.stale = silent;
                outputs.push_back(Output::Stale(name.clone(), silent));
            }
        }
    }
}

impl Context {
    /// When the gate of a role that was just won may open, if its debtor's gate may be open.
    fn open_at(&self, debt: &Debt, now: Tick) -> Tick {
        let own = self.lease.lease();
        let lease = debt.lease.unwrap_or(own).max(own);
        if self.lock_only {
            // Without tables nothing is known of the last leader.
            return self.lease.takeover_at(now, now, lease);
        }
        let contact = self.contact;
        let saw = match (&debt.debtor, debt.beat) {
            // No debtor is named; what a failover lost cannot have beaten since we met this server.
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
        // Claimants that gave up waited for this very beat, in this incarnation, one after the other and
        // each on its own clock: what is left runs from now.
        let rest = (lease + self.lease.margin_for(lease)).saturating_sub(debt.waited);
        self.lease.takeover_at(saw, contact, lease).min(now + rest)
    }
}

impl Role {
    fn registered(&mut self, refused: Option<RegisterRefusal>, now: Tick, context: &mut Context) {
        let name = self.candidacy.name.clone();
        match refused {
            None => {
                // Unless it changed meanwhile: then the next registration answers.
                if self.registration.is_told() {
                    context.outputs.push_back(Output::Registered(name, Ok(())));
                }
            }
            Some(RegisterRefusal::Blocked) => {
                // A lease that is not written down may not be used: not yet a candidate.
                self.registration.outdate();
                self.blocked(now, context);
            }
            Some(
                why @ (RegisterRefusal::Collision { .. }
                | RegisterRefusal::Key { .. }
                | RegisterRefusal::Policy { .. }
                | RegisterRefusal::Locks { .. }
                | RegisterRefusal::Tables
                | RegisterRefusal::Unreadable),
            ) => {
                self.registration.refuse();
                context.outputs.push_back(Output::Registered(name, Err(why)));
                self.input(Input::StopRequested, now, context);
            }
        }
    }

    /// Another transaction holds the role's row: what had to be written there is tried again a
    /// little later, and no other role waits for it. Returns since when.
    fn blocked(&mut self, now: Tick, context: &Context) -> Tick {
        self.write_at = Some(now + context.lease.heartbeat() / 10);
        *self.blocked_since.get_or_insert(now)
    }

    /// The lock is ours and the gate stays shut. A role that is held up for a lease gives the lock
    /// back and claims anew: a claim can find out what stands before it, and end that.
    fn mark_blocked(&mut self, epoch: Epoch, now: Tick, context: &mut Context) {
        if now.saturating_since(self.blocked(now, context)) > context.lease.lease() {
            self.input(Input::EpochMoved, now, context);
        } else if self.errand == (Errand::Marking { epoch }) {
            self.errand = Errand::Mark { epoch };
        }
    }

    fn released(&mut self, now: Tick, context: &mut Context) {
        if self.errand == Errand::Releasing {
            self.errand = Errand::REST;
        }
        self.input(Input::Released, now, context);
    }

    /// The claim did not come to this role.
    fn claim_again(&mut self) {
        match self.errand {
            Errand::Claiming { .. } => self.errand = Errand::Claim,
            Errand::Reclaiming { epoch } => self.errand = Errand::Reclaim { epoch },
            // It has moved on since.
            Errand::Rest { .. }
            | Errand::Claim
            | Errand::Reclaim { .. }
            | Errand::ReclaimAt { .. }
            | Errand::Mark { .. }
            | Errand::Marking { .. }
            | Errand::Release { .. }
            | Errand::Releasing => {}
        }
    }

    fn claimed(&mut self, claim: Claim, now: Tick, context: &mut Context) {
        self.seen = self.seen.max(claim.epoch().unwrap_or(Epoch::ZERO));
        // A role that is ours has no other holder, whose silence would matter.
        let ours = matches!(claim, Claim::Won(_) | Claim::Kept { .. });
        self.holder = claim.holder().filter(|_| !ours).map(str::to_owned);
        if !matches!(claim, Claim::Blocked { .. }) {
            self.blocked_since = None;
        }
        match std::mem::replace(&mut self.errand, Errand::REST) {
            Errand::Reclaiming { epoch } => self.reclaimed(epoch, claim, now, context),
            Errand::Claiming { hinted } => self.judged(claim, hinted, now, context),
            // The role has moved on since: what was won goes back, what it wants now stays wanted.
            other @ (Errand::Rest { .. }
            | Errand::Claim
            | Errand::Reclaim { .. }
            | Errand::ReclaimAt { .. }
            | Errand::Mark { .. }
            | Errand::Marking { .. }
            | Errand::Release { .. }
            | Errand::Releasing) => {
                self.judged(claim, false, now, context);
                if self.errand == Errand::REST {
                    self.errand = other;
                }
            }
        }
    }

    /// What became of a claim for a term of our own.
    fn reclaimed(&mut self, epoch: Epoch, claim: Claim, now: Tick, context: &mut Context) {
        let heartbeat = context.lease.heartbeat();
        match claim {
            Claim::Kept { .. } => self.input(Input::Reclaimed { epoch }, now, context),
            Claim::Held { held_by_us: Some(true), .. } => {
                // Our own old session has not ended yet, or a stranger was faster.
                self.errand = Errand::ReclaimAt { epoch, at: now + heartbeat / 50 };
            }
            Claim::Blocked { .. } => {
                self.blocked_since.get_or_insert(now);
                self.errand = Errand::ReclaimAt { epoch, at: now + heartbeat / 4 };
            }
            Claim::Moved { .. } | Claim::Held { .. } | Claim::Paused { .. } => {
                self.input(Input::ReclaimFailed, now, context);
            }
            Claim::Won(_) | Claim::Yield { .. } | Claim::Unknown | Claim::Failed { .. } => {
                self.judged(claim, false, now, context);
            }
        }
    }

    /// What became of a claim. `hinted`: what stood in its way may be gone since.
    fn judged(&mut self, claim: Claim, hinted: bool, now: Tick, context: &mut Context) {
        let lease = context.lease;
        let name = self.candidacy.name.clone();
        let (why, wake_at) = match claim {
            Claim::Won(won) => {
                self.insist_at = None;
                if won.holder.is_some() {
                    context.outputs.push_back(Output::TookOver(name));
                }
                let open_at = won.debt.map(|debt| context.open_at(&debt, now));
                self.waits = open_at.map(|_| (won.epoch, now));
                self.input(Input::Claimed { epoch: won.epoch, open_at }, now, context);
                return;
            }
            Claim::Kept { epoch, .. } => {
                self.input(Input::Reclaimed { epoch }, now, context);
                return;
            }
            Claim::Moved { .. } => {
                self.input(Input::ReclaimFailed, now, context);
                return;
            }
            Claim::Held { .. } => {
                // Another session took it; the next race begins with manners again.
                self.insist_at = None;
                (NotAcquired::Held, None)
            }
            Claim::Paused { .. } => (NotAcquired::Paused, None),
            Claim::Blocked { .. } => {
                self.blocked_since.get_or_insert(now);
                (NotAcquired::Blocked, Some(now + lease.heartbeat() / 4))
            }
            Claim::Yield { to, .. } => {
                // A better candidate gets a head start; if it does not take it, we insist.
                let head_start = match to {
                    Better::Ready => lease.lease(),
                    Better::Successor => lease.heartbeat(),
                    Better::Priority => lease.heartbeat() / 2,
                };
                (NotAcquired::Reserved, Some(*self.insist_at.get_or_insert(now + head_start)))
            }
            Claim::Unknown => {
                self.registration.outdate();
                (NotAcquired::Unknown, None)
            }
            Claim::Failed { sqlstate, error } => {
                // The database undid it and unlocked: this role's trouble, not the session's.
                let error = Notice::Error(explain_claim(&sqlstate, &error));
                context.outputs.push_back(Output::Notice(name, error));
                (NotAcquired::Failed, None)
            }
        };
        self.errand = Errand::Rest { wake_at: if hinted { Some(now) } else { wake_at } };
        self.input(Input::ClaimFailed { why }, now, context);
        if why == NotAcquired::Held {
            self.consider_preempting(now, context);
        }
    }

    fn consider_preempting(&mut self, now: Tick, context: &mut Context) {
        let pause = context.lease.lease();
        let Role { candidacy, preempted_at, .. } = self;
        if candidacy.preempt
            && candidacy.ready
            && preempted_at.is_none_or(|at| now.saturating_since(at) > pause)
        {
            *preempted_at = Some(now);
            context.outputs.push_back(Output::Preempt(candidacy.name.clone()));
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
