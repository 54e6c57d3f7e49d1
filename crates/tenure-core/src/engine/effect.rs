//! Carries a lifecycle's effects out: on the gate at once, on the database by the next round trip.

use std::collections::VecDeque;
use std::time::Duration;

use crate::clock::Tick;
use crate::key::RoleName;
use crate::lease::TakeoverPolicy;
use crate::lifecycle::{Effect, Input, NotAcquired};

use super::{Engine, Output, Role};

impl Engine {
    pub(super) fn wake(&mut self, name: &RoleName, now: Tick) {
        self.input(name, Input::Wake, now);
    }

    /// Under `exclusive` a claimant has to wait out a dead holder's lease anyway: it leaves the lock
    /// free for as long as the holder may come back for it, as far as that costs nothing. Decided
    /// once, at the news of a death: a holder that lives on keeps beating, and who waited for its
    /// silence would wait for ever.
    pub(super) fn wake_after_death(&mut self, name: &RoleName, now: Tick) {
        let until = self.yields_until(&self.roles[name], now);
        self.roles.get_mut(name).expect("just listed").yield_until = until;
        self.wake(name, now);
    }

    fn yields_until(&self, role: &Role, now: Tick) -> Option<Tick> {
        if role.spec.policy != TakeoverPolicy::Exclusive || role.keep.is_some() {
            return None;
        }
        let peer = self.peers.get(role.holder.as_deref()?)?;
        let until = (peer.first_seen + peer.grace).min(self.lease.takeover_at(
            peer.first_seen,
            self.contact,
            self.lease.lease(),
        ));
        (peer.grace > Duration::ZERO && until > now).then_some(until)
    }

    pub(super) fn carry_out(&mut self, name: &RoleName, effects: Vec<Effect>, now: Tick) {
        let mut queue: VecDeque<Effect> = effects.into();
        while let Some(effect) = queue.pop_front() {
            let role = self.roles.get_mut(name).expect("effects come from a role we have");
            match effect {
                Effect::Join => {
                    role.joined = true;
                    role.registered = false;
                }
                Effect::Claim if role.spec.observer => {
                    let why = NotAcquired::Ineligible;
                    let more = role.life.handle(Input::ClaimFailed { why }, now, 0.5);
                    queue.extend(more);
                }
                Effect::Claim => {
                    if let Some(until) = role.yield_until.filter(|until| *until > now) {
                        let why = NotAcquired::Held;
                        role.try_at = Some(until);
                        queue.extend(role.life.handle(Input::ClaimFailed { why }, now, 0.5));
                    } else {
                        role.claim = true;
                        role.keep = None;
                    }
                }
                Effect::MarkActing { epoch } => role.mark = Some(epoch),
                Effect::OpenGate { epoch } => {
                    role.insist_at = None;
                    role.try_at = None;
                    if role.keeper.open(epoch, self.lease_until) {
                        self.outputs.push_back(Output::Gate(name.clone(), Some(epoch)));
                    }
                }
                Effect::ShutGate => {
                    role.keeper.shut();
                    self.outputs.push_back(Output::Gate(name.clone(), None));
                }
                Effect::DrainGate { .. } => {
                    // The lifecycle has its own limit; here only the end is awaited.
                    role.keeper.begin_drain();
                    self.outputs.push_back(Output::Gate(name.clone(), None));
                    if role.keeper.in_flight() == 0 {
                        queue.extend(role.life.handle(Input::Drained, now, 0.5));
                    } else {
                        let drained = role.keeper.drained();
                        self.outputs.push_back(Output::AwaitDrain(name.clone(), drained));
                    }
                }
                Effect::Reclaim { epoch } => {
                    role.keep = Some(epoch);
                    role.claim = true;
                }
                Effect::Release { epoch, to } => {
                    role.mark = None;
                    if self.up.is_some() {
                        role.release = Some((epoch, to));
                    } else {
                        // The lock went with the session.
                        queue.extend(role.life.handle(Input::Released, now, 0.5));
                    }
                }
                Effect::CycleSession => {
                    if self.up.is_some() {
                        let why = format!("the session of role {name} had to be replaced");
                        self.outputs.push_back(Output::DropSeat(why));
                    }
                }
                Effect::Leave => {
                    role.joined = false;
                    role.registered = false;
                    role.claim = false;
                    role.keep = None;
                    role.try_at = None;
                    role.mark = None;
                }
                Effect::Notify(notice) => {
                    self.outputs.push_back(Output::Notice(name.clone(), notice));
                }
            }
        }
    }
}
