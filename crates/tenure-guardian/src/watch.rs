//! When the guardian terminates and when it kills: pure, without a clock or a process.
//!
//! ```text
//!  Running ──stop, child exited, deadline − grace──► Terminating ──grace over, deadline − reserve──► Killing
//!     └───────────────────────────── orphaned ─────────────────────────────────────────────────────────▲
//! ```

use std::time::Duration;

use tenure_core::Tick;

/// What is done to every descendant; a later one outweighs an earlier one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Measure {
    Nothing,
    Terminate,
    Kill,
}

/// What ended the child. A closed set: a program must decide for each what it does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndedBy {
    /// It ended by itself.
    Exited,
    /// [`Guarded::stop`](crate::Guarded::stop).
    Stopped,
    /// The lease was about to end: no later deadline had come.
    LeaseEnded,
    /// The program that started the guardian was gone.
    Orphaned,
}

#[derive(Debug, Clone, Copy)]
enum Phase {
    Running,
    Terminating { kill_at: Tick },
    Killing,
}

#[derive(Debug)]
pub(crate) struct Watch {
    deadline: Tick,
    grace: Duration,
    reserve: Duration,
    phase: Phase,
    ended_by: EndedBy,
}

impl Watch {
    /// `reserve` is what the killing itself may take.
    pub(crate) fn new(deadline: Tick, grace: Duration, reserve: Duration) -> Self {
        let grace = grace.max(reserve);
        Watch { deadline, grace, reserve, phase: Phase::Running, ended_by: EndedBy::Exited }
    }

    /// The reason that came first.
    pub(crate) fn ended_by(&self) -> EndedBy {
        self.ended_by
    }

    pub(crate) fn is_killing(&self) -> bool {
        matches!(self.phase, Phase::Killing)
    }

    /// When to look again, unless something happens before.
    pub(crate) fn next(&self) -> Tick {
        match self.phase {
            Phase::Running => before(self.deadline, self.grace),
            Phase::Terminating { kill_at } => kill_at.min(self.last_call()),
            Phase::Killing => Tick::ZERO,
        }
    }

    /// Never takes time away: an older deadline may come late.
    pub(crate) fn extend(&mut self, deadline: Tick) {
        self.deadline = self.deadline.max(deadline);
    }

    pub(crate) fn timeout(&mut self, now: Tick) -> Measure {
        match self.phase {
            Phase::Running if now >= before(self.deadline, self.grace) => {
                self.ended_by = EndedBy::LeaseEnded;
                // SIGTERM was sent: a later deadline does not take it back.
                self.terminate(self.last_call(), now)
            }
            Phase::Terminating { kill_at } if now >= kill_at.min(self.last_call()) => {
                self.phase = Phase::Killing;
                Measure::Kill
            }
            Phase::Running | Phase::Terminating { .. } => Measure::Nothing,
            Phase::Killing => Measure::Kill,
        }
    }

    pub(crate) fn stop(&mut self, grace: Duration, now: Tick) -> Measure {
        match self.phase {
            Phase::Running => {
                self.ended_by = EndedBy::Stopped;
                self.terminate(now + grace, now)
            }
            Phase::Terminating { kill_at } => {
                self.phase = Phase::Terminating { kill_at: kill_at.min(now + grace) };
                self.timeout(now)
            }
            Phase::Killing => Measure::Kill,
        }
    }

    /// The child ended; the processes it left behind get the grace it would have got.
    pub(crate) fn child_exited(&mut self, now: Tick) -> Measure {
        match self.phase {
            Phase::Running => self.terminate(now + self.grace, now),
            Phase::Terminating { .. } => Measure::Nothing,
            Phase::Killing => Measure::Kill,
        }
    }

    pub(crate) fn orphaned(&mut self) {
        if matches!(self.phase, Phase::Running) {
            self.ended_by = EndedBy::Orphaned;
        }
        self.phase = Phase::Killing;
    }

    fn terminate(&mut self, kill_at: Tick, now: Tick) -> Measure {
        if now >= kill_at.min(self.last_call()) {
            self.phase = Phase::Killing;
            return Measure::Kill;
        }
        self.phase = Phase::Terminating { kill_at };
        Measure::Terminate
    }

    /// From here on no process may be spared.
    fn last_call(&self) -> Tick {
        before(self.deadline, self.reserve)
    }
}

fn before(tick: Tick, by: Duration) -> Tick {
    let nanos = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
    Tick::from_nanos(tick.as_nanos().saturating_sub(nanos))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Tick {
        Tick::from_nanos(ms * 1_000_000)
    }

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn watch() -> Watch {
        Watch::new(at(3000), ms(500), ms(100))
    }

    #[test]
    fn silence_ends_the_child_before_the_deadline() {
        let mut watch = watch();
        assert_eq!(watch.next(), at(2500));
        assert_eq!(watch.timeout(at(2499)), Measure::Nothing);
        assert_eq!(watch.timeout(at(2500)), Measure::Terminate);
        assert_eq!(watch.next(), at(2900));
        assert_eq!(watch.timeout(at(2899)), Measure::Nothing);
        assert_eq!(watch.timeout(at(2900)), Measure::Kill);
        assert!(watch.is_killing());
        assert_eq!(watch.ended_by(), EndedBy::LeaseEnded);
    }

    #[test]
    fn a_later_deadline_moves_the_end_and_an_older_one_does_not() {
        let mut watch = watch();
        watch.extend(at(4000));
        watch.extend(at(3500));
        assert_eq!(watch.timeout(at(3499)), Measure::Nothing);
        assert_eq!(watch.next(), at(3500));
    }

    #[test]
    fn a_terminated_child_is_killed_even_if_the_lease_goes_on() {
        let mut watch = watch();
        assert_eq!(watch.timeout(at(2600)), Measure::Terminate);
        watch.extend(at(9000));
        assert_eq!(watch.timeout(at(2900)), Measure::Kill);
    }

    #[test]
    fn a_stop_gives_its_grace_but_not_beyond_the_lease() {
        let mut watch = watch();
        assert_eq!(watch.stop(ms(200), at(1000)), Measure::Terminate);
        assert_eq!(watch.next(), at(1200));
        let mut late = Watch::new(at(3000), ms(500), ms(100));
        assert_eq!(late.stop(ms(5000), at(1000)), Measure::Terminate);
        assert_eq!(late.next(), at(2900));
        assert_eq!(late.ended_by(), EndedBy::Stopped);
    }

    #[test]
    fn a_second_stop_may_only_shorten_the_grace() {
        let mut watch = watch();
        watch.stop(ms(400), at(1000));
        assert_eq!(watch.stop(ms(900), at(1100)), Measure::Nothing);
        assert_eq!(watch.next(), at(1400));
        assert_eq!(watch.stop(Duration::ZERO, at(1200)), Measure::Kill);
    }

    #[test]
    fn an_orphan_has_no_grace() {
        let mut watch = watch();
        watch.orphaned();
        assert!(watch.is_killing());
        assert_eq!(watch.timeout(at(1)), Measure::Kill);
        assert_eq!(watch.ended_by(), EndedBy::Orphaned);
    }

    #[test]
    fn what_the_child_left_behind_gets_its_grace() {
        let mut watch = watch();
        assert_eq!(watch.child_exited(at(100)), Measure::Terminate);
        assert_eq!(watch.next(), at(600));
        assert_eq!(watch.ended_by(), EndedBy::Exited);
    }

    #[test]
    fn a_grace_of_zero_still_leaves_time_to_kill() {
        let mut watch = Watch::new(at(3000), Duration::ZERO, ms(100));
        assert_eq!(watch.timeout(at(2900)), Measure::Kill);
    }
}
