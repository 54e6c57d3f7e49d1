//! How the service behaves, and which settings cannot be meant.

use std::time::Duration;

use crate::engine::EngineConfig;
use crate::feed::FeedOptions;

/// How the service behaves. Change what differs from [`ServiceOptions::default`].
#[derive(Debug, Clone)]
pub struct ServiceOptions {
    /// When a transaction is sent again, replaced or given up, and how many may be open.
    pub engine: EngineConfig,
    /// How often the chain's head is read. Default 1 s; above zero.
    pub head_every: Duration,
    /// How long the chain's nodes may be silent before this node is not ready to lead, and hands over
    /// if it leads and another member is ready. Default 15 s; above zero. Too short and a node that
    /// restarts costs a change of leaders.
    pub chain_lost_after: Duration,
    /// How often waits and deadlines are looked at. Default 200 ms; 1 ms to 10 s. It bounds how exact they
    /// are; shorter costs an idle node more.
    pub tick: Duration,
    /// How many submissions may be under way at once. Default 64; at least 1.
    pub in_flight: usize,
    /// How much of the lease must be left when bytes leave. Default 500 ms; below the role's
    /// lease, or nothing would ever be sent.
    pub act: Duration,
    /// How long one call of the signer may take. Default 10 s; above zero.
    pub sign: Duration,
    /// How long a caller waits for its request to be stored before it is told that the outcome is
    /// unknown. Default 30 s; above zero. A request given up by its caller may still be stored.
    pub accept_within: Duration,
    /// The largest call or signed transaction. Default 4 MiB; 1 byte to 64 MiB.
    pub max_bytes: usize,
    /// How long ended rows stay in the table, with their bytes. Default one day.
    pub keep: Duration,
    /// How long an id and its end are remembered: for retries, and for readers that were away.
    /// Default 90 days; at least `keep`. An id that is used again after that is a new request.
    pub keep_ids: Duration,
    /// The least tip of a first attempt, per unit of work, in the chain's smallest unit (on Ethereum wei
    /// per gas). Default 0; at most the engine's `max_tip`. If recent blocks were tipped more, a first
    /// attempt follows them: up to ten times a tip above 0, and from 0 up to `max_tip`.
    pub tip: u128,
    /// How often the table is read, and when the view of it counts as stale.
    pub feed: FeedOptions,
    /// The pause between two calls of a follower's hook. Default 1 s; above zero.
    pub sync_every: Duration,
}

impl Default for ServiceOptions {
    fn default() -> Self {
        ServiceOptions {
            engine: EngineConfig::default(),
            head_every: Duration::from_secs(1),
            chain_lost_after: Duration::from_secs(15),
            tick: Duration::from_millis(200),
            in_flight: 64,
            act: Duration::from_millis(500),
            sign: Duration::from_secs(10),
            accept_within: Duration::from_secs(30),
            max_bytes: 4 << 20,
            keep: Duration::from_secs(86_400),
            keep_ids: Duration::from_secs(90 * 86_400),
            tip: 0,
            feed: FeedOptions::default(),
            sync_every: Duration::from_secs(1),
        }
    }
}

/// An option with a value that cannot be meant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field} must be {bound}: {reason}")]
#[non_exhaustive]
pub struct InvalidOption {
    /// The option, as written in [`ServiceOptions`].
    pub field: &'static str,
    /// What it may be.
    pub bound: String,
    /// What would happen otherwise.
    pub reason: &'static str,
}

impl ServiceOptions {
    /// Checks every bound. [`ServiceBuilder::start`](crate::ServiceBuilder::start) does so; `lease` is that
    /// of the role, `None` for a standalone node.
    ///
    /// # Errors
    /// The first option whose value cannot be meant.
    pub fn check(&self, lease: Option<Duration>) -> Result<(), InvalidOption> {
        let engine = &self.engine;
        let must = |holds: bool, field, bound: &str, reason| match holds {
            true => Ok(()),
            false => Err(InvalidOption { field, bound: bound.to_owned(), reason }),
        };
        let positive =
            |time: Duration, field, reason| must(!time.is_zero(), field, "above zero", reason);
        positive(self.head_every, "head_every", "the chain's node would be asked without a pause")?;
        let reason = "every node would seem to have lost its chain";
        positive(self.chain_lost_after, "chain_lost_after", reason)?;
        let tick = Duration::from_millis(1)..=Duration::from_secs(10);
        let reason = "it bounds how exact every wait is, and how busy an idle node";
        must(tick.contains(&self.tick), "tick", "from 1 ms to 10 s", reason)?;
        must(self.in_flight > 0, "in_flight", "at least 1", "nothing would ever be sent")?;
        if let Some(lease) = lease {
            let reason = "no more than the lease is ever left, so nothing would ever be sent";
            must(self.act < lease, "act", &format!("below the lease of {lease:?}"), reason)?;
        }
        positive(self.sign, "sign", "no signer answers in no time")?;
        positive(self.accept_within, "accept_within", "every outcome would be unknown")?;
        let reason = "the table and the callers' line hold no more";
        let bytes = 1..=64 << 20;
        must(bytes.contains(&self.max_bytes), "max_bytes", "from 1 byte to 64 MiB", reason)?;
        let reason = "a retry whose row is gone and whose id is forgotten would pay twice";
        must(self.keep_ids >= self.keep, "keep_ids", "at least keep", reason)?;
        let reason = "a first attempt must not tip more than is ever allowed";
        must(self.tip <= engine.max_tip, "tip", "at most engine.max_tip", reason)?;
        positive(self.sync_every, "sync_every", "the hook would be called without a pause")?;
        positive(self.feed.poll, "feed.poll", "the table would be read without a pause")?;
        let reason = "every transaction would be replaced at once";
        positive(engine.stuck_after, "engine.stuck_after", reason)?;
        positive(engine.retry, "engine.retry", "a failing node would be asked without a pause")?;
        let reason = "it is the longest pause, and retry the first";
        let bound = "at least engine.retry";
        must(engine.retry_max >= engine.retry, "engine.retry_max", bound, reason)?;
        let grows = engine.min_tip_bump > 0;
        let reason =
            "a pool takes a replacement only if it tips more, and a tip of zero never grows";
        must(grows, "engine.min_tip_bump", "at least 1", reason)?;
        let reason = "the first refusal ends a request at the earliest";
        must(engine.max_refusals > 0, "engine.max_refusals", "at least 1", reason)?;
        must(engine.max_open > 0, "engine.max_open", "at least 1", "every request would be refused")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Option<Duration> = Some(Duration::from_secs(3));

    #[test]
    fn the_defaults_are_valid_in_a_group_and_alone() {
        assert_eq!(ServiceOptions::default().check(LEASE), Ok(()));
        assert_eq!(ServiceOptions::default().check(None), Ok(()));
    }

    #[test]
    fn an_act_that_no_lease_can_cover_is_refused_and_says_why() {
        let options = ServiceOptions { act: Duration::from_secs(3), ..Default::default() };
        let error = options.check(LEASE).expect_err("nothing would ever be sent");
        let text = "act must be below the lease of 3s: no more than the lease is ever left, so \
                    nothing would ever be sent";
        assert_eq!(error.to_string(), text);
        assert_eq!(options.check(None), Ok(()), "a standalone node has no lease");
    }

    #[test]
    fn every_bound_names_its_field() {
        let change = |change: fn(&mut ServiceOptions)| {
            let mut options = ServiceOptions::default();
            change(&mut options);
            options.check(LEASE).expect_err("out of bounds").field
        };
        assert_eq!(change(|o| o.head_every = Duration::ZERO), "head_every");
        assert_eq!(change(|o| o.chain_lost_after = Duration::ZERO), "chain_lost_after");
        assert_eq!(change(|o| o.tick = Duration::ZERO), "tick");
        assert_eq!(change(|o| o.tick = Duration::from_secs(11)), "tick");
        assert_eq!(change(|o| o.in_flight = 0), "in_flight");
        assert_eq!(change(|o| o.sign = Duration::ZERO), "sign");
        assert_eq!(change(|o| o.accept_within = Duration::ZERO), "accept_within");
        assert_eq!(change(|o| o.max_bytes = 0), "max_bytes");
        assert_eq!(change(|o| o.keep_ids = Duration::ZERO), "keep_ids");
        assert_eq!(change(|o| (o.tip, o.engine.max_tip) = (2, 1)), "tip");
        assert_eq!(change(|o| o.sync_every = Duration::ZERO), "sync_every");
        assert_eq!(change(|o| o.feed.poll = Duration::ZERO), "feed.poll");
        assert_eq!(change(|o| o.engine.stuck_after = Duration::ZERO), "engine.stuck_after");
        assert_eq!(change(|o| o.engine.retry = Duration::ZERO), "engine.retry");
        assert_eq!(change(|o| o.engine.retry_max = Duration::ZERO), "engine.retry_max");
        assert_eq!(change(|o| o.engine.min_tip_bump = 0), "engine.min_tip_bump");
        assert_eq!(change(|o| o.engine.max_refusals = 0), "engine.max_refusals");
        assert_eq!(change(|o| o.engine.max_open = 0), "engine.max_open");
    }
}
