//! What each state makes of each input: one function per state, every input named.

use crate::clock::Tick;
use crate::epoch::Epoch;

use super::{
    Cycle, Effect, Ending, Input, Lifecycle, LostReason, Next, Notice, Phase, Releasing, Stage,
    State, Step,
};

impl Lifecycle {
    pub(super) fn when_stopped(&mut self, input: Input, step: &mut Step) {
        match input {
            Input::Start => {
                self.cycle = Cycle::default();
                step.push(Effect::Join);
                self.enter(State::Follower { next: step.now, cool_until: None }, step);
            }
            Input::Claimed { epoch, .. } | Input::Reclaimed { epoch } => {
                self.release_stray(epoch, step);
            }
            Input::Released | Input::SessionLost { .. } => self.stray = None,
            Input::StopRequested
            | Input::Wake
            | Input::Named
            | Input::MarkedActing { .. }
            | Input::ClaimFailed { .. }
            | Input::BeatOk
            | Input::BeatLate
            | Input::EpochMoved
            | Input::ReclaimFailed
            | Input::ReleaseRequested { .. }
            | Input::Drained => {}
        }
    }

    pub(super) fn when_follower(
        &mut self,
        cool_until: Option<Tick>,
        input: Input,
        step: &mut Step,
    ) {
        match input {
            Input::Wake | Input::Named => {
                // An order that names this member outranks the manners of its own last step-down.
                let cooling =
                    input == Input::Wake && cool_until.is_some_and(|until| step.now < until);
                if !cooling && self.stray.is_none() {
                    self.cycle.began.get_or_insert(step.now);
                    self.enter(State::Acquiring(Stage::Claiming), step);
                    step.push(Effect::Claim);
                }
            }
            Input::StopRequested => self.stop(step),
            Input::Claimed { epoch, .. } | Input::Reclaimed { epoch } => {
                self.release_stray(epoch, step);
            }
            Input::Released | Input::SessionLost { .. } => self.stray = None,
            Input::Start
            | Input::MarkedActing { .. }
            | Input::ClaimFailed { .. }
            | Input::BeatOk
            | Input::BeatLate
            | Input::EpochMoved
            | Input::ReclaimFailed
            | Input::ReleaseRequested { .. }
            | Input::Drained => {}
        }
    }

    pub(super) fn when_claiming(&mut self, input: Input, step: &mut Step) {
        match input {
            Input::Claimed { epoch, open_at } => self.won(epoch, open_at, step),
            Input::Reclaimed { epoch } => self.won(epoch, None, step),
            Input::ClaimFailed { why } => {
                step.tell(Notice::AcquireFailed { why });
                self.back_off(None, step);
            }
            Input::SessionLost { error } => {
                step.tell(Notice::Error(error.clone()));
                self.go(Next::Retry { error: Some(error) }, step);
            }
            Input::StopRequested => self.stop(step),
            Input::Start
            | Input::Wake
            | Input::Named
            | Input::MarkedActing { .. }
            | Input::BeatOk
            | Input::BeatLate
            | Input::EpochMoved
            | Input::ReclaimFailed
            | Input::ReleaseRequested { .. }
            | Input::Drained
            | Input::Released => {}
        }
    }

    /// The lock is ours, the gate is shut, and nothing was told yet.
    pub(super) fn when_waiting(
        &mut self,
        epoch: Epoch,
        clearing: bool,
        input: Input,
        step: &mut Step,
    ) {
        match input {
            Input::MarkedActing { epoch: cleared } => {
                if clearing && cleared == epoch {
                    self.lead(epoch, step);
                }
            }
            Input::EpochMoved => self.give_back(epoch, None, None, Next::Follow, step),
            Input::SessionLost { error } => {
                step.tell(Notice::Error(error.clone()));
                self.go(Next::Retry { error: Some(error) }, step);
            }
            Input::StopRequested => self.give_back(epoch, None, None, Next::Stop, step),
            Input::ReleaseRequested { to, deadline } => {
                self.give_back(epoch, to, deadline, Next::CoolDown, step);
            }
            Input::Claimed { epoch: other, .. } | Input::Reclaimed { epoch: other } => {
                if other != epoch {
                    let error = Self::two_wins(epoch, other);
                    step.push(Effect::CycleSession);
                    step.tell(Notice::Error(error.clone()));
                    self.highest = self.highest.max(other);
                    self.go(Next::Retry { error: Some(error) }, step);
                }
            }
            Input::Start
            | Input::Wake
            | Input::Named
            | Input::ClaimFailed { .. }
            | Input::BeatOk
            | Input::BeatLate
            | Input::ReclaimFailed
            | Input::Drained
            | Input::Released => {}
        }
    }

    pub(super) fn when_leader(&mut self, epoch: Epoch, well: bool, input: Input, step: &mut Step) {
        match input {
            Input::BeatOk => {
                if !well {
                    self.state = State::Leader { epoch, well: true };
                    step.push(Effect::OpenGate { epoch });
                    step.tell(Notice::Well { epoch });
                }
            }
            Input::BeatLate => {
                if well {
                    self.state = State::Leader { epoch, well: false };
                    step.push(Effect::ShutGate);
                    step.tell(Notice::Late { epoch });
                }
            }
            Input::SessionLost { error } => {
                step.push(Effect::ShutGate);
                step.tell(Notice::Error(error.clone()));
                self.session_died(epoch, error, step);
            }
            // No grace: another member's term has begun. The lock, if it is still ours, goes back.
            Input::EpochMoved => {
                step.push(Effect::ShutGate);
                step.tell(Notice::Lost { epoch, reason: LostReason::EpochMoved });
                self.give_back(epoch, None, None, Next::Follow, step);
            }
            Input::StopRequested => self.begin_release(epoch, None, None, Next::Stop, step),
            Input::ReleaseRequested { to, deadline } => {
                self.begin_release(epoch, to, deadline, Next::CoolDown, step);
            }
            Input::Claimed { epoch: other, .. } | Input::Reclaimed { epoch: other } => {
                if other != epoch {
                    step.push(Effect::ShutGate);
                    step.push(Effect::CycleSession);
                    step.tell(Notice::Error(Self::two_wins(epoch, other)));
                    step.tell(Notice::Lost { epoch, reason: LostReason::EpochMoved });
                    self.highest = self.highest.max(other);
                    self.go(Next::Follow, step);
                }
            }
            Input::Start
            | Input::Wake
            | Input::Named
            | Input::MarkedActing { .. }
            | Input::ClaimFailed { .. }
            | Input::ReclaimFailed
            | Input::Drained
            | Input::Released => {}
        }
    }

    pub(super) fn when_reconnecting(
        &mut self,
        epoch: Epoch,
        until: Tick,
        retry_at: Option<Tick>,
        input: Input,
        step: &mut Step,
    ) {
        let lost = |reason| Notice::Lost { epoch, reason };
        match input {
            Input::Reclaimed { epoch: won } | Input::Claimed { epoch: won, .. } if won == epoch => {
                self.cycle = Cycle::default();
                step.push(Effect::OpenGate { epoch });
                self.enter(State::Leader { epoch, well: true }, step);
                step.tell(Notice::Recovered { epoch });
            }
            Input::Reclaimed { epoch: won } => {
                step.tell(lost(LostReason::EpochMoved));
                self.won(won, None, step);
            }
            Input::Claimed { epoch: won, open_at } => {
                step.tell(lost(LostReason::EpochMoved));
                self.won(won, open_at, step);
            }
            Input::ReclaimFailed | Input::ClaimFailed { .. } => {
                step.tell(lost(LostReason::Taken));
                self.go(Next::Follow, step);
            }
            Input::EpochMoved => {
                step.tell(lost(LostReason::EpochMoved));
                self.go(Next::Follow, step);
            }
            Input::SessionLost { error } => {
                self.reclaim_later(epoch, until, retry_at, error, step);
            }
            Input::StopRequested => {
                step.tell(lost(LostReason::Stopped));
                self.stop(step);
            }
            Input::ReleaseRequested { .. } => {
                step.tell(lost(LostReason::SteppedDown));
                self.go(Next::CoolDown, step);
            }
            Input::Start
            | Input::Wake
            | Input::Named
            | Input::MarkedActing { .. }
            | Input::BeatOk
            | Input::BeatLate
            | Input::Drained
            | Input::Released => {}
        }
    }

    pub(super) fn when_releasing(&mut self, releasing: Releasing, input: Input, step: &mut Step) {
        let draining = matches!(releasing.phase, Phase::Draining { .. });
        match input {
            Input::Drained | Input::BeatLate => {
                if draining {
                    self.unlock(step);
                }
            }
            Input::EpochMoved => {
                if draining {
                    self.unlock(step);
                    self.tell_end(LostReason::EpochMoved, step);
                }
            }
            Input::Released => {
                if !draining {
                    if releasing.ending == Ending::Led {
                        step.tell(Notice::Released { epoch: releasing.epoch });
                    }
                    self.go(releasing.then, step);
                }
            }
            Input::SessionLost { error } => self.force(error, false, step),
            // A step-down under way becomes a stop; a stop never becomes a step-down.
            Input::StopRequested => {
                self.state = State::Releasing(Releasing { then: Next::Stop, ..releasing });
            }
            Input::Claimed { epoch: other, .. } | Input::Reclaimed { epoch: other } => {
                if other != releasing.epoch {
                    self.highest = self.highest.max(other);
                    self.force(Self::two_wins(releasing.epoch, other), true, step);
                }
            }
            Input::Start
            | Input::Wake
            | Input::Named
            | Input::MarkedActing { .. }
            | Input::ClaimFailed { .. }
            | Input::BeatOk
            | Input::ReclaimFailed
            | Input::ReleaseRequested { .. } => {}
        }
    }
}
