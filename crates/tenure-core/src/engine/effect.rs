//! Carries a lifecycle's effects out: on the gate at once, on the database by the next round trip.

use std::collections::VecDeque;

use super::role::{Errand, Role};
use super::{Context, Output};
use crate::clock::Tick;
use crate::lifecycle::{Effect, Input, NotAcquired};

impl Role {
    pub(super) fn carry_out(&mut self, effects: Vec<Effect>, now: Tick, context: &mut Context) {
        let mut queue: VecDeque<Effect> = effects.into();
        while let Some(effect) = queue.pop_front() {
            match effect {
                Effect::Join => self.registration.join(),
                Effect::Claim if self.candidacy.observer => {
                    let why = NotAcquired::Ineligible;
                    queue.extend(self.life.handle(Input::ClaimFailed { why }, now, 0.5));
                }
                Effect::Claim => match self.yield_until.filter(|until| *until > now) {
                    Some(until) => {
                        let why = NotAcquired::Held;
                        self.errand = Errand::Rest { wake_at: Some(until) };
                        queue.extend(self.life.handle(Input::ClaimFailed { why }, now, 0.5));
                    }
                    None => self.errand = Errand::Claim,
                },
                Effect::Reclaim { epoch } => self.errand = Errand::Reclaim { epoch },
                Effect::MarkActing { epoch } => self.errand = Errand::Mark { epoch },
                Effect::OpenGate { epoch } => {
                    self.insist_at = None;
                    self.waits = None;
                    self.errand = Errand::REST;
                    if self.keeper.open(epoch, context.lease_until) {
                        let name = self.candidacy.name.clone();
                        context.outputs.push_back(Output::Gate(name, Some(epoch)));
                    }
                }
                Effect::ShutGate => {
                    self.keeper.shut();
                    self.tell_shut(context);
                }
                Effect::DrainGate { .. } => {
                    // The lifecycle has its own limit; here only the end is awaited.
                    self.keeper.begin_drain();
                    self.tell_shut(context);
                    if self.keeper.in_flight() == 0 {
                        queue.extend(self.life.handle(Input::Drained, now, 0.5));
                    } else {
                        let (name, drained) = (self.candidacy.name.clone(), self.keeper.drained());
                        context.outputs.push_back(Output::AwaitDrain(name, drained));
                    }
                }
                Effect::Release { epoch, to } => {
                    if context.up.is_some() {
                        self.errand = Errand::Release { epoch, to };
                    } else {
                        // The lock went with the session.
                        self.errand = Errand::REST;
                        queue.extend(self.life.handle(Input::Released, now, 0.5));
                    }
                }
                Effect::CycleSession => {
                    if context.up.is_some() {
                        let name = &self.candidacy.name;
                        let why = format!("the session of role {name} had to be replaced");
                        context.outputs.push_back(Output::DropSeat(why));
                    }
                }
                Effect::Leave => {
                    self.registration.leave();
                    // A release goes on.
                    if !matches!(self.errand, Errand::Release { .. } | Errand::Releasing) {
                        self.errand = Errand::REST;
                    }
                }
                Effect::Notify(notice) => {
                    let name = self.candidacy.name.clone();
                    context.outputs.push_back(Output::Notice(name, notice));
                }
            }
        }
    }

    fn tell_shut(&self, context: &mut Context) {
        context.outputs.push_back(Output::Gate(self.candidacy.name.clone(), None));
    }
}
