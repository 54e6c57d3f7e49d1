//! When the guardian terminates and when it kills: pure, without a clock or a process.
//!
//! ```text
//!  Running ──stop, child exited, deadline − grace──► Terminating ──grace over, deadline − reserve──► Killing
//!     └───────────────────────────── orphaned ─────────────────────────────────────────────────────────▲
//! ```

use std::time::Duration;

use tenure_core::Tick;

/// What to do to every descendant; the later one outweighs the earlier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Order {
    Nothing,
    Terminate,
    Kill,
}

/// Why the child came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// By itself.
    Exited,
    /// Because `tenure` said so.
    Stopped,
    /// Because the lease was about to end.
    LeaseEnded,
    /// Because `tenure` was gone.
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
    why: Why,
}

impl Watch {
    /// `reserve` is what the killing itself may take.
    pub(crate) fn new(deadline: Tick, grace: Duration, reserve: Duration) -> Self {
        let grace = grace.max(reserve);
        Watch { deadline, grace, reserve, phase: Phase::Running, why: Why::Exited }
    }

    /// The reason that came first.
    pub(crate) fn why(&self) -> Why {
        self.why
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

    /// A heartbeat succeeded. Never takes time away: an older word may come late.
    pub(crate) fn extend(&mut self, deadline: Tick) {
        self.deadline = self.deadline.max(deadline);
    }

    pub(crate) fn timeout(&mut self, now: Tick) -> Order {
        match self.phase {
            Phase::Running if now >= before(self.deadline, self.grace) => {
                self.why = Why::LeaseEnded;
                // The word was given: a later deadline does not take it back.
                self.terminate(self.last_call(), now)
            }
            Phase::Terminating { kill_at } if now >= kill_at.min(self.last_call()) => {
                self.phase = Phase::Killing;
                Order::Kill
            }
            Phase::Running | Phase::Terminating { .. } => Order::Nothing,
            Phase::Killing => Order::Kill,
        }
    }

    pub(crate) fn stop(&mut self, grace: Duration, now: Tick) -> Order {
        match self.phase {
            Phase::Running => {
                self.why = Why::Stopped;
                self.terminate(now + grace, now)
            }
            Phase::Terminating { kill_at } => {
                self.phase = Phase::Terminating { kill_at: kill_at.min(now + grace) };
                self.timeout(now)
            }
            Phase::Killing => Order::Kill,
        }
    }

    /// The child ended; those it left behind get the grace it would have got.
    pub(crate) fn child_exited(&mut self, now: Tick) -> Order {
        match self.phase {
            Phase::Running => self.terminate(now + self.grace, now),
            Phase::Terminating { .. } => Order::Nothing,
            Phase::Killing => Order::Kill,
        }
    }

    pub(crate) fn orphaned(&mut self) {
        if matches!(self.phase, Phase::Running) {
            self.why = Why::Orphaned;
        }
        self.phase = Phase::Killing;
    }

    fn terminate(&mut self, kill_at: Tick, now: Tick) -> Order {
        if now >= kill_at.min(self.last_call()) {
            self.phase = Phase::Killing;
            return Order::Kill;
        }
        self.phase = Phase::Terminating { kill_at };
        Order::Terminate
    }

    /// From here on nobody may be spared.
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
        assert_eq!(watch.timeout(at(2499)), Order::Nothing);
        assert_eq!(watch.timeout(at(2500)), Order::Terminate);
        assert_eq!(watch.next(), at(2900));
        assert_eq!(watch.timeout(at(2899)), Order::Nothing);
        assert_eq!(watch.timeout(at(2900)), Order::Kill);
        assert!(watch.is_killing());
        assert_eq!(watch.why(), Why::LeaseEnded);
    }

    #[test]
    fn a_later_deadline_moves_the_end_and_an_older_one_does_not() {
        let mut watch = watch();
        watch.extend(at(4000));
        watch.extend(at(3500));
        assert_eq!(watch.timeout(at(3499)), Order::Nothing);
        assert_eq!(watch.next(), at(3500));
    }

    #[test]
    fn a_terminated_child_is_killed_even_if_the_lease_goes_on() {
        let mut watch = watch();
        assert_eq!(watch.timeout(at(2600)), Order::Terminate);
        watch.extend(at(9000));
        assert_eq!(watch.timeout(at(2900)), Order::Kill);
    }

    #[test]
    fn a_stop_gives_its_grace_but_not_beyond_the_lease() {
        let mut watch = watch();
        assert_eq!(watch.stop(ms(200), at(1000)), Order::Terminate);
        assert_eq!(watch.next(), at(1200));
        let mut late = Watch::new(at(3000), ms(500), ms(100));
        assert_eq!(late.stop(ms(5000), at(1000)), Order::Terminate);
        assert_eq!(late.next(), at(2900));
        assert_eq!(late.why(), Why::Stopped);
    }

    #[test]
    fn a_second_stop_may_only_shorten_the_grace() {
        let mut watch = watch();
        watch.stop(ms(400), at(1000));
        assert_eq!(watch.stop(ms(900), at(1100)), Order::Nothing);
        assert_eq!(watch.next(), at(1400));
        assert_eq!(watch.stop(Duration::ZERO, at(1200)), Order::Kill);
    }

    #[test]
    fn an_orphan_has_no_grace() {
        let mut watch = watch();
        watch.orphaned();
        assert!(watch.is_killing());
        assert_eq!(watch.timeout(at(1)), Order::Kill);
        assert_eq!(watch.why(), Why::Orphaned);
    }

    #[test]
    fn what_the_child_left_behind_gets_its_grace() {
        let mut watch = watch();
        assert_eq!(watch.child_exited(at(100)), Order::Terminate);
        assert_eq!(watch.next(), at(600));
        assert_eq!(watch.why(), Why::Exited);
    }

    #[test]
    fn a_grace_of_zero_still_leaves_time_to_kill() {
        let mut watch = Watch::new(at(3000), Duration::ZERO, ms(100));
        assert_eq!(watch.timeout(at(2900)), Order::Kill);
    }
}
