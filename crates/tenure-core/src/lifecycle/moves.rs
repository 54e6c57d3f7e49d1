//! The moves that the rows are made of: leading, letting go, backing off, stopping.

use std::time::Duration;

use crate::clock::Tick;
use crate::epoch::Epoch;
use crate::retry::RetryContext;

use super::{
    Cycle, Effect, Ending, Lifecycle, LostReason, Next, Notice, Phase, Releasing, Stage, State,
    Step, Stray,
};

impl Lifecycle {
    /// The lock was won.
    pub(super) fn won(&mut self, epoch: Epoch, open_at: Option<Tick>, step: &mut Step) {
        if epoch <= self.highest {
            // An answer from another time. No act may begin under it, but the lock may be ours.
            let error = format!(
                "a claim won epoch {epoch}, which is not above {}: released again",
                self.highest
            );
            step.tell(Notice::Error(error.clone()));
            self.give_back(epoch, None, None, Next::Retry { error: Some(error) }, step);
            return;
        }
        self.highest = epoch;
        match open_at {
            None => self.lead(epoch, step),
            Some(open_at) if open_at > step.now => {
                self.enter(State::Acquiring(Stage::Waiting { epoch, open_at }), step);
            }
            Some(_) => self.mark_acting(epoch, step),
        }
    }

    pub(super) fn mark_acting(&mut self, epoch: Epoch, step: &mut Step) {
        self.enter(State::Acquiring(Stage::MarkingActing { epoch }), step);
        step.push(Effect::MarkActing { epoch });
    }

    pub(super) fn lead(&mut self, epoch: Epoch, step: &mut Step) {
        self.cycle = Cycle::default();
        step.push(Effect::OpenGate { epoch });
        self.enter(State::Leader { epoch, well: true }, step);
        step.tell(Notice::Acquired { epoch });
    }

    /// The leader's session is gone. The gate is shut already.
    pub(super) fn session_died(&mut self, epoch: Epoch, error: String, step: &mut Step) {
        match self.opts.reconnect_grace {
            Some(grace) if !grace.is_zero() => {
                let until = step.now + grace;
                self.enter(State::Reconnecting { epoch, until, retry_at: None }, step);
                step.push(Effect::Reclaim { epoch });
            }
            Some(_) | None => {
                step.tell(Notice::Lost { epoch, reason: LostReason::Session(error) });
                self.go(Next::Follow, step);
            }
        }
    }

    pub(super) fn reclaim_later(
        &mut self,
        epoch: Epoch,
        until: Tick,
        retry_at: Option<Tick>,
        error: String,
        step: &mut Step,
    ) {
        if retry_at.is_some() {
            return;
        }
        match self.next_delay(Some(error), step) {
            Some(delay) => {
                let retry_at = Some(step.now + delay);
                self.state = State::Reconnecting { epoch, until, retry_at };
            }
            None => {
                step.tell(Notice::Lost { epoch, reason: LostReason::GaveUp });
                self.stop(step);
            }
        }
    }

    /// The leader lets go: no new acts, then the unlock.
    pub(super) fn begin_release(
        &mut self,
        epoch: Epoch,
        to: Option<String>,
        deadline: Option<Tick>,
        then: Next,
        step: &mut Step,
    ) {
        // A quarter of the time to a deadline is kept for the unlock itself.
        let allowed = deadline.map_or(Duration::MAX, |at| at.saturating_since(step.now) / 4 * 3);
        let limit = self.opts.drain_limit.min(allowed);
        let phase = Phase::Draining { until: step.now + limit };
        let ending = Ending::Led;
        let state = State::Releasing(Releasing { epoch, to, deadline, phase, ending, then });
        if limit.is_zero() {
            step.push(Effect::ShutGate);
            self.enter(state, step);
            self.unlock(step);
        } else {
            step.push(Effect::DrainGate { limit });
            self.enter(state, step);
        }
    }

    /// Gives back a lock under which no act is in flight.
    pub(super) fn give_back(
        &mut self,
        epoch: Epoch,
        to: Option<String>,
        deadline: Option<Tick>,
        then: Next,
        step: &mut Step,
    ) {
        let phase = Phase::Unlocking { until: self.unlock_until(deadline, step) };
        let release = Effect::Release { epoch, to: to.clone() };
        let ending = Ending::Told;
        self.enter(State::Releasing(Releasing { epoch, to, deadline, phase, ending, then }), step);
        step.push(release);
    }

    /// From draining to unlocking.
    pub(super) fn unlock(&mut self, step: &mut Step) {
        if let State::Releasing(releasing) = &self.state {
            let until = self.unlock_until(releasing.deadline, step);
            let mut releasing = releasing.clone();
            releasing.phase = Phase::Unlocking { until };
            step.push(Effect::ShutGate);
            let (epoch, to) = (releasing.epoch, releasing.to.clone());
            step.push(Effect::Release { epoch, to });
            self.state = State::Releasing(releasing);
        }
    }

    pub(super) fn unlock_until(&self, deadline: Option<Tick>, step: &Step) -> Tick {
        let own = step.now + self.opts.release_timeout;
        deadline.map_or(own, |at| own.min(at.max(step.now)))
    }

    /// The lock did not go back as it should: the session goes, and the lock with it.
    pub(super) fn force(&mut self, error: String, cycle: bool, step: &mut Step) {
        // Once unlocking, it is shut already.
        if matches!(&self.state, State::Releasing(r) if matches!(r.phase, Phase::Draining { .. })) {
            step.push(Effect::ShutGate);
        }
        if cycle {
            step.push(Effect::CycleSession);
        }
        step.tell(Notice::Error(error.clone()));
        self.tell_end(LostReason::ReleaseFailed(error), step);
        if let State::Releasing(releasing) = &self.state {
            let then = releasing.then.clone();
            self.go(then, step);
        }
    }

    /// Tells the loss of a term that is being released, once.
    pub(super) fn tell_end(&mut self, reason: LostReason, step: &mut Step) {
        if let State::Releasing(releasing) = &mut self.state
            && releasing.ending == Ending::Led
        {
            releasing.ending = Ending::Told;
            step.tell(Notice::Lost { epoch: releasing.epoch, reason });
        }
    }

    /// Releases a lock that the role no longer wants, without a state of its own: the user has moved on.
    pub(super) fn release_stray(&mut self, epoch: Epoch, step: &mut Step) {
        self.highest = self.highest.max(epoch);
        self.stray = Some(Stray { until: step.now + self.opts.release_timeout });
        step.push(Effect::Release { epoch, to: None });
    }

    pub(super) fn stray_failed(&mut self, error: String, step: &mut Step) {
        if self.stray.take().is_some() {
            step.push(Effect::CycleSession);
            step.tell(Notice::Error(error));
        }
    }

    /// Where a role goes that holds nothing any more.
    pub(super) fn go(&mut self, next: Next, step: &mut Step) {
        match next {
            Next::CoolDown if self.opts.auto_reacquire => {
                let until = step.now + self.opts.cool_down;
                self.enter(State::Follower { next: until, cool_until: Some(until) }, step);
            }
            Next::Follow if self.opts.auto_reacquire => {
                self.enter(State::Follower { next: step.now, cool_until: None }, step);
            }
            Next::Retry { error } if self.opts.auto_reacquire => self.back_off(error, step),
            Next::Stop | Next::CoolDown | Next::Follow | Next::Retry { .. } => self.stop(step),
        }
    }

    pub(super) fn back_off(&mut self, error: Option<String>, step: &mut Step) {
        match self.next_delay(error, step) {
            Some(delay) => {
                let next = step.now + delay;
                self.enter(State::Follower { next, cool_until: None }, step);
            }
            None => self.stop(step),
        }
    }

    pub(super) fn next_delay(
        &mut self,
        last_error: Option<String>,
        step: &Step,
    ) -> Option<Duration> {
        self.cycle.attempt = self.cycle.attempt.saturating_add(1);
        let began = *self.cycle.began.get_or_insert(step.now);
        let elapsed = step.now.saturating_since(began);
        let ctx = RetryContext { attempt: self.cycle.attempt, elapsed, last_error };
        let delay = self.opts.retry.next_delay(&ctx, self.cycle.prev, step.random);
        self.cycle.prev = delay;
        delay
    }

    pub(super) fn stop(&mut self, step: &mut Step) {
        self.enter(State::Stopped, step);
        step.push(Effect::Leave);
        step.tell(Notice::Stopped);
    }

    pub(super) fn enter(&mut self, state: State, step: &mut Step) {
        let from = self.state();
        self.state = state;
        let to = self.state();
        if from != to {
            step.tell(Notice::StateChange { from, to });
        }
    }

    pub(super) fn two_wins(held: Epoch, other: Epoch) -> String {
        format!("epoch {other} was won while epoch {held} was held; dropping the session")
    }
}
