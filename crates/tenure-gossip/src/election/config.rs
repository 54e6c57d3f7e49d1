//! The parameters of the election by gossip.

use std::time::Duration;

use super::SAMPLE;
use crate::config::ConfigError;

/// What to do when the sampled votes name as many leaders as there are votes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum TieBreak {
    /// The highest (term, reign, hash of the name) among the sampled and the current leader: every node
    /// orders candidates the same way, so the order spreads like a rumour, and a node that has led for
    /// long is not displaced by a newcomer.
    #[default]
    Ranked,
    /// One of the sampled at random. It flaps.
    Random,
}

/// The parameters of the election by gossip. It only gives a hint: a bad value costs time, never safety.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ElectionConfig {
    /// Estimated diameter of the network (8; at least 1). Too low forgets living leaders, too high remembers dead ones longer.
    pub diameter: u32,
    /// Δc, tolerance for what the clocks disagree on (50 ms).
    pub delta_c: Duration,
    /// Δe, the election phase: from a round's begin to the sending of votes (100 ms).
    pub delta_e: Duration,
    /// Δd, the dissemination phase (200 ms).
    pub delta_d: Duration,
    /// Δr, a whole round (300 ms); at least Δe + Δd. A second or more: calmer, and slower to agree.
    pub delta_r: Duration,
    /// How ties are broken (by rank).
    pub tie: TieBreak,
    /// An established leader that is still seen is kept at least this long (3 s; none: off).
    pub sticky: Option<Duration>,
    /// By how many votes of the sample a challenger of a higher rank must beat an
    /// established leader (0: rank alone decides; 1 to 3: calmer, and slower to agree after a partition).
    pub hysteresis: u32,
}

impl Default for ElectionConfig {
    fn default() -> Self {
        Self {
            diameter: 8,
            delta_c: Duration::from_millis(50),
            delta_e: Duration::from_millis(100),
            delta_d: Duration::from_millis(200),
            delta_r: Duration::from_millis(300),
            tie: TieBreak::Ranked,
            sticky: Some(Duration::from_secs(3)),
            hysteresis: 0,
        }
    }
}

impl ElectionConfig {
    /// The rule of bbsvx as published (`docs/coming-from.md`): random ties, no stickiness, no hysteresis.
    #[must_use]
    pub fn documented() -> Self {
        Self { tie: TieBreak::Random, sticky: None, hysteresis: 0, ..Self::default() }
    }

    /// `Δc + 2·diameter·Δr`: how long a beacon counts.
    #[must_use]
    pub fn validity(&self) -> Duration {
        self.delta_c + self.delta_r * (2 * self.diameter)
    }

    /// Checks the parameters against each other.
    ///
    /// # Errors
    /// The field, its bound and the reason.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if self.diameter == 0 {
            return Err(ConfigError::new("diameter", "at least 1", "no beacon would ever count"));
        }
        if self.delta_e + self.delta_d > self.delta_r {
            let bound = format!("at least delta_e + delta_d = {:?}", self.delta_e + self.delta_d);
            return Err(ConfigError::new("delta_r", bound, "the phases must fit into a round"));
        }
        if self.delta_c > self.validity() / 2 {
            return Err(ConfigError::new(
                "delta_c",
                "small against 2 · diameter · delta_r",
                "dead leaders would live on",
            ));
        }
        if self.hysteresis as usize > SAMPLE {
            let bound = format!("at most {SAMPLE}");
            return Err(ConfigError::new("hysteresis", bound, "a sample has no more votes"));
        }
        Ok(())
    }
}
