//! Instants, and the clocks that give them.
//!
//! Every safety decision compares ticks of *one* clock of *one* machine. That clock must count the
//! time the machine was suspended: a laptop that sleeps for an hour while its lease runs out must
//! wake up with its gate shut. `CLOCK_MONOTONIC` stands still during suspend on Linux, so
//! `std::time::Instant` is not good enough.

use std::fmt;
use std::ops::Add;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A length of time as messages tell it, to the millisecond: `3s`, `1.5s`, `250ms`, `0s`.
pub fn spoken(time: &Duration) -> String {
    match *time - Duration::from_nanos(u64::from(time.subsec_nanos() % 1_000_000)) {
        Duration::ZERO => "0s".to_owned(),
        time => format!("{time:?}"),
    }
}

/// An instant on a clock that counts suspend: nanoseconds since an origin that means nothing.
///
/// Ticks of processes on one machine that use the same kind of clock may be compared; ticks of
/// different machines may not.
#[derive(
    Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, serde::Serialize, serde::Deserialize,
)]
#[serde(transparent)]
pub struct Tick(u64);

impl Tick {
    /// The origin.
    pub const ZERO: Tick = Tick(0);
    /// The end of time, which arithmetic saturates at (584 years after the origin).
    pub const MAX: Tick = Tick(u64::MAX);

    /// The tick that many nanoseconds after the origin.
    pub const fn from_nanos(nanos: u64) -> Self {
        Tick(nanos)
    }

    /// Nanoseconds since the origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The time from `earlier` to this tick; zero if `earlier` is the later one.
    pub const fn saturating_since(self, earlier: Tick) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// This tick moved later, at most to [`Tick::MAX`].
    pub fn saturating_add(self, by: Duration) -> Self {
        let nanos = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
        Tick(self.0.saturating_add(nanos))
    }

    /// This tick moved earlier, at most to [`Tick::ZERO`].
    pub fn saturating_sub(self, by: Duration) -> Self {
        let nanos = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
        Tick(self.0.saturating_sub(nanos))
    }
}

impl Add<Duration> for Tick {
    type Output = Tick;

    /// Saturates: a deadline too far away to count is the end of time, never an early one.
    fn add(self, by: Duration) -> Tick {
        self.saturating_add(by)
    }
}

impl fmt::Debug for Tick {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}s", self.0 / 1_000_000_000, self.0 % 1_000_000_000)
    }
}

/// A source of ticks that never goes backwards.
pub trait Clock: Send + Sync + fmt::Debug + 'static {
    /// The current instant.
    fn now(&self) -> Tick;
}

/// The machine's clock since boot, suspend included.
///
/// `CLOCK_BOOTTIME` on Linux and Android; elsewhere `CLOCK_MONOTONIC`, which counts suspend on
/// macOS.
#[cfg(feature = "boot-clock")]
#[derive(Copy, Clone, Debug, Default)]
pub struct BootClock;

#[cfg(feature = "boot-clock")]
impl Clock for BootClock {
    fn now(&self) -> Tick {
        use rustix::time::{ClockId, clock_gettime};
        #[cfg(any(target_os = "linux", target_os = "android"))]
        const CLOCK: ClockId = ClockId::Boottime;
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        const CLOCK: ClockId = ClockId::Monotonic;
        let t = clock_gettime(CLOCK);
        // Neither part is negative on a clock that starts at boot.
        let secs = u64::try_from(t.tv_sec).unwrap_or(0);
        let nanos = u64::try_from(t.tv_nsec).unwrap_or(0);
        Tick(secs.saturating_mul(1_000_000_000).saturating_add(nanos))
    }
}

/// A clock that moves when a test says so; clones share one time.
#[derive(Clone, Debug, Default)]
pub struct ManualClock(Arc<AtomicU64>);

impl ManualClock {
    /// A clock that stands at `at`.
    pub fn new(at: Tick) -> Self {
        ManualClock(Arc::new(AtomicU64::new(at.0)))
    }

    /// Moves the clock on.
    pub fn advance(&self, by: Duration) {
        self.set(self.now() + by);
    }

    /// Moves the clock to `to`. An earlier `to` is ignored: a [`Clock`] never goes back.
    pub fn set(&self, to: Tick) {
        self.0.fetch_max(to.0, Ordering::AcqRel);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Tick {
        Tick(self.0.load(Ordering::Acquire))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates_at_both_ends() {
        assert_eq!(Tick::MAX + Duration::from_secs(1), Tick::MAX);
        assert_eq!(Tick::ZERO + Duration::MAX, Tick::MAX);
        assert_eq!(Tick::ZERO.saturating_since(Tick::MAX), Duration::ZERO);
        let t = Tick::from_nanos(7) + Duration::from_nanos(3);
        assert_eq!(t.saturating_since(Tick::from_nanos(4)), Duration::from_nanos(6));
    }

    #[test]
    fn manual_clock_is_shared_and_never_goes_back() {
        let clock = ManualClock::new(Tick::from_nanos(5));
        let other = clock.clone();
        clock.advance(Duration::from_nanos(5));
        other.set(Tick::from_nanos(1));
        assert_eq!(other.now(), Tick::from_nanos(10));
    }

    #[cfg(feature = "boot-clock")]
    #[test]
    fn boot_clock_counts_at_least_the_uptime_without_suspend() {
        use rustix::time::{ClockId, clock_gettime};
        let mono = clock_gettime(ClockId::Monotonic);
        let floor = u64::try_from(mono.tv_sec).unwrap() * 1_000_000_000;
        let first = BootClock.now();
        assert!(first.as_nanos() >= floor);
        assert!(BootClock.now() >= first);
    }
}
