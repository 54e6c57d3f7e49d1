//! What each state makes of each input: one function per state, every input named.

use crate::clock::Tick;
use crate::epoch::Epoch;

use super::{
    Claim, Cycle, Effect, Ending, Input, Lifecycle, LostReason, Next, Notice, Phase, Releasing,
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
            Input::AcquireSucceeded { epoch, .. } | Input::ReacquireSucceeded { epoch } => {
                self.release_stray(epoch, step);
            }
            Input::ReleaseSucceeded | Input::SessionLost { .. } => self.stray = None,
            Input::ReleaseFailed { error }
            | Input::DbError { error }
            | Input::HealthFailed { error } => self.stray_failed(error, step),
            Input::ReleaseTimedOut => self.stray_failed("the release timed out".to_owned(), step),
            Input::StopRequested
            | Input::AcquireAttempt
            | Input::Cleared { .. }
            | Input::AcquireFailed { .. }
            | Input::HealthOk
            | Input::HealthLate
            | Input::EpochMoved
            | Input::ReacquireFailed
            | Input::GraceExpired
            | Input::ReleaseRequested { .. }
            | Input::Drained => {}
        }
    }

    pub(super) fn when_follower(
        &mut self,
        next: Tick,
        cool_until: Option<Tick>,
        input: Input,
        step: &mut Step,
    ) {
        match input {
            Input::AcquireAttempt => {
                let cooling = cool_until.is_some_and(|until| step.now < until);
                if !cooling && self.stray.is_none() {
                    self.cycle.began.get_or_insert(step.now);
                    self.enter(State::Acquiring(Claim::Trying), step);
                    step.push(Effect::TryAcquire);
                }
            }
            Input::StopRequested => self.stop(step),
            Input::AcquireSucceeded { epoch, .. } | Input::ReacquireSucceeded { epoch } => {
                self.release_stray(epoch, step);
            }
            // The sessions could not be had: the next attempt is paced like any other.
            Input::DbError { error } if self.stray.is_none() => {
                step.tell(Notice::Error(error.clone()));
                self.back_off(Some(error), step);
                if let State::Follower { next: paced, cool_until: slot } = &mut self.state {
                    *paced = next.max(*paced);
                    *slot = cool_until;
                }
            }
            Input::ReleaseSucceeded | Input::SessionLost { .. } => self.stray = None,
            Input::ReleaseFailed { error }
            | Input::DbError { error }
            | Input::HealthFailed { error } => self.stray_failed(error, step),
            Input::ReleaseTimedOut => self.stray_failed("the release timed out".to_owned(), step),
            Input::Start
            | Input::Cleared { .. }
            | Input::AcquireFailed { .. }
            | Input::HealthOk
            | Input::HealthLate
            | Input::EpochMoved
            | Input::ReacquireFailed
            | Input::GraceExpired
            | Input::ReleaseRequested { .. }
            | Input::Drained => {}
        }
    }

    pub(super) fn when_trying(&mut self, input: Input, step: &mut Step) {
        match input {
            Input::AcquireSucceeded { epoch, open_at } => self.won(epoch, open_at, step),
            Input::ReacquireSucceeded { epoch } => self.won(epoch, None, step),
            Input::AcquireFailed { why } => {
                step.tell(Notice::AcquireFailed { why });
                self.back_off(None, step);
            }
            // The outcome is unknown, so the lock may be ours: only a new session is sure.
            Input::DbError { error } | Input::HealthFailed { error } => {
                step.push(Effect::CycleSession);
                step.tell(Notice::Error(error.clone()));
                self.go(Next::Retry { error: Some(error) }, step);
            }
            Input::SessionLost { error } => {
                step.tell(Notice::Error(error.clone()));
                self.go(Next::Retry { error: Some(error) }, step);
            }
            Input::StopRequested => self.stop(step),
            Input::Start
            | Input::AcquireAttempt
            | Input::Cleared { .. }
            | Input::HealthOk
            | Input::HealthLate
            | Input::EpochMoved
            | Input::ReacquireFailed
            | Input::GraceExpired
            | Input::ReleaseRequested { .. }
            | Input::Drained
            | Input::ReleaseSucceeded
            | Input::ReleaseFailed { .. }
            | Input::ReleaseTimedOut => {}
        }
    }

    /// The lock is ours, the gate is shut, nobody was told yet.
    pub(super) fn when_waiting(
        &mut self,
        epoch: Epoch,
        clearing: bool,
        input: Input,
        step: &mut Step,
    ) {
        match input {
            Input::Cleared { epoch: cleared } => {
                if clearing && cleared == epoch {
                    self.lead(epoch, step);
                }
            }
            Input::DbError { error } | Input::HealthFailed { error } => {
                step.tell(Notice::Error(error.clone()));
                self.give_back(epoch, None, None, Next::Retry { error: Some(error) }, step);
            }
            Input::EpochMoved => self.give_back(epoch, None, None, Next::Campaign, step),
            Input::SessionLost { error } => {
                step.tell(Notice::Error(error.clone()));
                self.go(Next::Retry { error: Some(error) }, step);
            }
            Input::StopRequested => self.give_back(epoch, None, None, Next::Stop, step),
            Input::ReleaseRequested { to, deadline } => {
                self.give_back(epoch, to, deadline, Next::CoolDown, step);
            }
            Input::AcquireSucceeded { epoch: other, .. }
            | Input::ReacquireSucceeded { epoch: other } => {
                if other != epoch {
                    let error = Self::two_wins(epoch, other);
                    step.push(Effect::CycleSession);
                    step.tell(Notice::Error(error.clone()));
                    self.highest = self.highest.max(other);
                    self.go(Next::Retry { error: Some(error) }, step);
                }
            }
            Input::Start
            | Input::AcquireAttempt
            | Input::AcquireFailed { .. }
            | Input::HealthOk
            | Input::HealthLate
            | Input::ReacquireFailed
            | Input::GraceExpired
            | Input::Drained
            | Input::ReleaseSucceeded
            | Input::ReleaseFailed { .. }
            | Input::ReleaseTimedOut => {}
        }
    }

    pub(super) fn when_leader(&mut self, epoch: Epoch, well: bool, input: Input, step: &mut Step) {
        match input {
            Input::HealthOk => {
                if !well {
                    self.state = State::Leader { epoch, well: true };
                    step.push(Effect::OpenGate { epoch });
                    step.tell(Notice::Well { epoch });
                }
            }
            Input::HealthLate => {
                if well {
                    self.state = State::Leader { epoch, well: false };
                    step.push(Effect::ShutGate);
                    step.tell(Notice::Late { epoch });
                }
            }
            Input::HealthFailed { error } | Input::DbError { error } => {
                step.push(Effect::ShutGate);
                step.push(Effect::CycleSession);
                self.session_died(epoch, error, step);
            }
            Input::SessionLost { error } => {
                step.push(Effect::ShutGate);
                self.session_died(epoch, error, step);
            }
            // No grace: somebody else's term has begun. The lock, if it is still ours, goes back.
            Input::EpochMoved => {
                step.push(Effect::ShutGate);
                step.tell(Notice::Lost { epoch, reason: LostReason::EpochMoved });
                self.give_back(epoch, None, None, Next::Campaign, step);
            }
            Input::StopRequested => self.begin_release(epoch, None, None, Next::Stop, step),
            Input::ReleaseRequested { to, deadline } => {
                self.begin_release(epoch, to, deadline, Next::CoolDown, step);
            }
            Input::AcquireSucceeded { epoch: other, .. }
            | Input::ReacquireSucceeded { epoch: other } => {
                if other != epoch {
                    step.push(Effect::ShutGate);
                    step.push(Effect::CycleSession);
                    step.tell(Notice::Error(Self::two_wins(epoch, other)));
                    step.tell(Notice::Lost { epoch, reason: LostReason::EpochMoved });
                    self.highest = self.highest.max(other);
                    self.go(Next::Campaign, step);
                }
            }
            Input::Start
            | Input::AcquireAttempt
            | Input::Cleared { .. }
            | Input::AcquireFailed { .. }
            | Input::ReacquireFailed
            | Input::GraceExpired
            | Input::Drained
            | Input::ReleaseSucceeded
            | Input::ReleaseFailed { .. }
            | Input::ReleaseTimedOut => {}
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
            Input::ReacquireSucceeded { epoch: won }
            | Input::AcquireSucceeded { epoch: won, .. }
                if won == epoch =>
            {
                self.cycle = Cycle::default();
                step.push(Effect::OpenGate { epoch });
                self.enter(State::Leader { epoch, well: true }, step);
                step.tell(Notice::Recovered { epoch });
            }
            Input::ReacquireSucceeded { epoch: won } => {
                step.tell(lost(LostReason::EpochMoved));
                self.won(won, None, step);
            }
            Input::AcquireSucceeded { epoch: won, open_at } => {
                step.tell(lost(LostReason::EpochMoved));
                self.won(won, open_at, step);
            }
            Input::ReacquireFailed | Input::AcquireFailed { .. } => {
                step.tell(lost(LostReason::Taken));
                self.go(Next::Campaign, step);
            }
            Input::EpochMoved => {
                step.tell(lost(LostReason::EpochMoved));
                self.go(Next::Campaign, step);
            }
            Input::GraceExpired => {
                step.tell(lost(LostReason::GraceExpired));
                self.go(Next::Campaign, step);
            }
            Input::DbError { error } | Input::HealthFailed { error } => {
                step.push(Effect::CycleSession);
                self.reclaim_later(epoch, until, retry_at, error, step);
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
            | Input::AcquireAttempt
            | Input::Cleared { .. }
            | Input::HealthOk
            | Input::HealthLate
            | Input::Drained
            | Input::ReleaseSucceeded
            | Input::ReleaseFailed { .. }
            | Input::ReleaseTimedOut => {}
        }
    }

    pub(super) fn when_releasing(&mut self, releasing: Releasing, input: Input, step: &mut Step) {
        let draining = matches!(releasing.phase, Phase::Draining { .. });
        match input {
            Input::Drained | Input::HealthLate => {
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
            Input::ReleaseSucceeded => {
                if !draining {
                    if releasing.ending == Ending::Led {
                        step.tell(Notice::Released { epoch: releasing.epoch });
                    }
                    self.go(releasing.then, step);
                }
            }
            Input::ReleaseFailed { error } => {
                if !draining {
                    self.force(error, true, step);
                }
            }
            Input::ReleaseTimedOut => {
                self.force("the release timed out".to_owned(), true, step);
            }
            Input::DbError { error } | Input::HealthFailed { error } => {
                self.force(error, true, step);
            }
            Input::SessionLost { error } => self.force(error, false, step),
            // A step-down under way becomes a stop; a stop never becomes a step-down.
            Input::StopRequested => {
                self.state = State::Releasing(Releasing { then: Next::Stop, ..releasing });
            }
            Input::AcquireSucceeded { epoch: other, .. }
            | Input::ReacquireSucceeded { epoch: other } => {
                if other != releasing.epoch {
                    self.highest = self.highest.max(other);
                    self.force(Self::two_wins(releasing.epoch, other), true, step);
                }
            }
            Input::Start
            | Input::AcquireAttempt
            | Input::Cleared { .. }
            | Input::AcquireFailed { .. }
            | Input::HealthOk
            | Input::ReacquireFailed
            | Input::GraceExpired
            | Input::ReleaseRequested { .. } => {}
        }
    }
}
