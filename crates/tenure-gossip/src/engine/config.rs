//! How a namespace is run.

use std::time::Duration;

use super::TICK;
use crate::commit::CommitConfig;
use crate::config::ConfigError;
use crate::election::ElectionConfig;
use crate::spray::SprayConfig;

/// How a namespace is run: the times and bounds of its election, its consensus and its goals.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct EngineConfig {
    /// The election by gossip.
    pub election: ElectionConfig,
    /// The partial view of the group.
    pub spray: SprayConfig,
    /// The times of consensus, the lease among them.
    pub commit: CommitConfig,
    /// How long a goal may go unanswered before history is asked for (10 s; 5 to 15).
    pub goal_timeout: Duration,
    /// How often an unanswered goal is sent again (1 s; at most `goal_timeout`). It commits once, however often it arrives.
    pub goal_retry: Duration,
    /// Goals waiting on this node at most (1,024; at least 1); more are refused at once ([`SubmitError::Busy`]).
    ///
    /// [`SubmitError::Busy`]: crate::SubmitError::Busy
    pub max_pending: usize,
    /// Goals in flight on the leader at most (512; at least 1); more wait at their origin.
    pub max_in_flight: usize,
    /// Records between two snapshots (8,192; at least 16). Fewer: shorter logs, more writing.
    pub snapshot_every: u64,
    /// Records that are kept behind the latest snapshot (`None`: all of them). Fewer: a smaller file; older
    /// records can then be read on no node that keeps as few.
    pub keep_history: Option<u64>,
    /// Up to how many nodes become voters by themselves (7; at least 1). Beyond, nodes follow by history.
    pub max_voters: usize,
    /// Whether this node asks to vote (yes).
    pub wants_vote: bool,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            election: ElectionConfig::default(),
            spray: SprayConfig::default(),
            commit: CommitConfig::default(),
            goal_timeout: Duration::from_secs(10),
            goal_retry: Duration::from_secs(1),
            max_pending: 1_024,
            max_in_flight: 512,
            snapshot_every: 8_192,
            keep_history: None,
            max_voters: 7,
            wants_vote: true,
        }
    }
}

impl EngineConfig {
    /// Checks the values against each other.
    ///
    /// # Errors
    /// The field, its bound and the reason.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.election.validate()?;
        self.spray.validate()?;
        self.commit.validate()?;
        let bounds = Duration::from_secs(5)..=Duration::from_secs(15);
        if !bounds.contains(&self.goal_timeout) {
            let reason = "below, an election looks like a loss";
            return Err(ConfigError::new("goal_timeout", "5 s to 15 s", reason));
        }
        if self.goal_retry < TICK || self.goal_retry > self.goal_timeout {
            let bound = format!("{TICK:?} to goal_timeout ({:?})", self.goal_timeout);
            return Err(ConfigError::new("goal_retry", bound, "a goal may be lost on its way"));
        }
        for (field, value) in [
            ("max_voters", self.max_voters),
            ("max_pending", self.max_pending),
            ("max_in_flight", self.max_in_flight),
        ] {
            if value == 0 {
                return Err(ConfigError::new(field, "at least 1", "no goal could ever be decided"));
            }
        }
        if self.snapshot_every < 16 {
            let reason = "the node would only write snapshots";
            return Err(ConfigError::new("snapshot_every", "at least 16 records", reason));
        }
        Ok(())
    }
}
