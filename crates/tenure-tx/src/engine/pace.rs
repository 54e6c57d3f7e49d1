//! How often a node is asked the same again: little while that is of no use, however many rows wait,
//! and everything within moments once it is.

use std::time::Duration;

use tenure_core::clock::Tick;

/// How many may be asked at once after a pause.
const BURST: u32 = 4;

/// How many may be asked at once when all is well.
const MOST: u32 = 256;

#[derive(Debug)]
pub(super) struct Pace {
    left: u32,
    since: Tick,
}

impl Pace {
    pub(super) fn new(now: Tick) -> Self {
        Pace { left: BURST, since: now }
    }

    /// Whether one more may be asked now; one is earned in each `every`.
    pub(super) fn take(&mut self, now: Tick, every: Duration) -> bool {
        let passed = now.saturating_since(self.since);
        if passed >= every {
            let earned = passed.as_nanos() / every.as_nanos().max(1);
            let earned = u32::try_from(earned).unwrap_or(BURST).min(BURST);
            self.left = self.left.max((self.left + earned).min(BURST));
            self.since = now;
        }
        let any = self.left > 0;
        self.left = self.left.saturating_sub(1);
        any
    }

    /// An answer was of use: two more may be asked for it.
    pub(super) fn answered(&mut self) {
        self.left = (self.left + 2).min(MOST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn little_is_asked_of_a_node_that_is_of_no_use_and_everything_of_one_that_is() {
        let second = Duration::from_secs(1);
        let mut now = Tick::from_nanos(1);
        let mut pace = Pace::new(now);
        let mut asked = 0;
        for _ in 0..600 {
            now = now + Duration::from_millis(200);
            while pace.take(now, second) {
                asked += 1;
            }
        }
        assert!((100..=124).contains(&asked), "{asked} in two minutes");
        // Each answer that is of use pays for two more.
        let (mut rounds, mut open) = (0, 1_000u32);
        now = now + second;
        while open > 0 {
            let mut answers = 0;
            while open > 0 && pace.take(now, second) {
                (open, answers) = (open - 1, answers + 1);
            }
            (0..answers).for_each(|_| pace.answered());
            rounds += 1;
        }
        assert!(rounds < 16, "{rounds} rounds for a thousand");
    }
}
