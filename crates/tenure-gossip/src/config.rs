//! What a node is told before it starts, and what cannot be.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::credentials::{CREDENTIALS, Invitation, Right};
use crate::engine::EngineConfig;
use crate::net::link::Flood;
use crate::net::tls::TlsFiles;
use crate::net::wire::MAX_NAMESPACE;
use crate::net::{is_address, is_unspecified};

/// A setting has a value that cannot be. Nothing was started.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {bound}; {reason}")]
#[non_exhaustive]
pub struct ConfigError {
    /// The field's name.
    pub field: &'static str,
    /// What it must be.
    pub bound: Cow<'static, str>,
    /// What would go wrong otherwise.
    pub reason: &'static str,
}

impl ConfigError {
    pub(crate) fn new(
        field: &'static str,
        bound: impl Into<Cow<'static, str>>,
        reason: &'static str,
    ) -> Self {
        Self { field, bound: bound.into(), reason }
    }
}

/// How a node that has no state yet comes to a cluster. A node with state continues from it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Start {
    /// It founds a cluster: once, on one node.
    Bootstrap,
    /// It joins a cluster through these addresses, each `HOST:PORT`.
    Join(Vec<String>),
    /// It has been part of a cluster before; without state it does not start
    /// ([`HostError::NoState`](crate::HostError::NoState)).
    Resume,
}

/// How a node is run. Made by [`HostConfig::new`]; every field may be changed before
/// [`Host::start`](crate::Host::start), which checks them all.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct HostConfig {
    /// Where its identity and its store are; made at the first start. One process at a time.
    pub folder: PathBuf,
    /// Where it listens; port 0 takes a free one, see [`Host::address`](crate::Host::address).
    pub listen: SocketAddr,
    /// Where others reach it, as `HOST:PORT` (default: where it listens). Needed if that is every address
    /// of the machine (`0.0.0.0`, `[::]`), which no other node can call.
    pub advertise: Option<String>,
    /// How it comes to a cluster, if it has no state yet.
    pub start: Start,
    /// The namespaces it carries (default: `main`); at least one, of 1 to 64 bytes each, and none of them
    /// [`CREDENTIALS`], which every node carries.
    pub namespaces: Vec<String>,
    /// Whether the cluster that this node founds, or joins without an invitation, is open: every program that
    /// reaches a port of it may do everything (default: only if this node listens on loopback).
    pub open: bool,
    /// Lets a new node into a cluster that is not open (default: none); one for [`Right::Node`]. Used with
    /// [`Start::Join`] only.
    pub invitation: Option<Invitation>,
    /// Certificates of an authority, checked besides the keys (default: none, the keys alone). The files are
    /// read again when they change.
    pub tls: Option<TlsFiles>,
    /// How many frames one connection may send before it is closed.
    pub flood: Flood,
    /// How long [`Host::submit`](crate::Host::submit) waits for a record (30 s; at least 1 s). Longer than a
    /// failover, or a goal is given up that would have been decided.
    pub submit_timeout: Duration,
    /// How long this node may hear no leader before the clients that watch it are told to watch another (30 s; at
    /// least 1 s). Shorter than a failover, every one of them ends their subscriptions.
    pub cut_off: Duration,
    /// The protocol's times and bounds, the same for every namespace.
    pub engine: EngineConfig,
}

impl HostConfig {
    /// A node in `folder` that listens on `listen`; every other field has its default.
    #[must_use]
    pub fn new(folder: impl Into<PathBuf>, listen: SocketAddr, start: Start) -> Self {
        Self {
            folder: folder.into(),
            listen,
            advertise: None,
            start,
            namespaces: vec!["main".to_owned()],
            open: listen.ip().is_loopback(),
            invitation: None,
            tls: None,
            flood: Flood::default(),
            submit_timeout: Duration::from_secs(30),
            cut_off: Duration::from_secs(30),
            engine: EngineConfig::default(),
        }
    }

    /// Checks the values, each by itself and against its neighbours.
    ///
    /// # Errors
    /// The first value that cannot be.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.engine.validate()?;
        if self.namespaces.is_empty() {
            return Err(ConfigError::new(
                "namespaces",
                "at least one",
                "a node without one has nothing to do",
            ));
        }
        if let Some(bad) = self.namespaces.iter().find(|n| n.is_empty() || n.len() > MAX_NAMESPACE)
        {
            let bound = format!("{bad:?} must have 1 to {MAX_NAMESPACE} bytes");
            return Err(ConfigError::new("namespaces", bound, "it travels with every message"));
        }
        if self.namespaces.iter().any(|name| name == CREDENTIALS) {
            let bound = format!("any name but {CREDENTIALS}");
            return Err(ConfigError::new("namespaces", bound, "every node carries it already"));
        }
        if self.invitation.as_ref().is_some_and(|invitation| invitation.right != Right::Node) {
            let reason = "an operator makes one by `tenure gossip invite node`";
            return Err(ConfigError::new("invitation", "one for a node", reason));
        }
        if let Start::Join(seeds) = &self.start {
            seeds.iter().try_for_each(|seed| address("join", seed))?;
        }
        if let Some(advertised) = &self.advertise {
            address("advertise", advertised)?;
        }
        // Advertised by every node, such an address would lead each of them to itself.
        let unspecified = match &self.advertise {
            Some(advertised) => is_unspecified(advertised),
            None => self.listen.ip().is_unspecified(),
        };
        if unspecified {
            let bound =
                format!("an address that other nodes reach, because {} is none", self.listen);
            return Err(ConfigError::new("advertise", bound, "nodes call each other there"));
        }
        if self.flood.per_second == 0 || self.flood.burst == 0 {
            return Err(ConfigError::new("flood", "at least 1", "no peer could ever speak"));
        }
        if self.submit_timeout < Duration::from_secs(1) {
            let reason = "an election takes longer";
            return Err(ConfigError::new("submit_timeout", "at least 1s", reason));
        }
        if self.cut_off < Duration::from_secs(1) {
            let reason = "an election would end what is watched";
            return Err(ConfigError::new("cut_off", "at least 1s", reason));
        }
        Ok(())
    }

    /// The addresses to join through.
    pub(crate) fn seeds(&self) -> Vec<String> {
        match &self.start {
            Start::Join(seeds) => seeds.clone(),
            Start::Bootstrap | Start::Resume => Vec::new(),
        }
    }
}

fn address(field: &'static str, text: &str) -> Result<(), ConfigError> {
    if is_address(text) {
        return Ok(());
    }
    Err(ConfigError::new(field, format!("HOST:PORT, not {text:?}"), "nodes call each other there"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(change: impl FnOnce(&mut HostConfig)) -> &'static str {
        let listen = SocketAddr::from(([127, 0, 0, 1], 7_400));
        let mut config = HostConfig::new("data", listen, Start::Bootstrap);
        assert_eq!(config.validate(), Ok(()), "the defaults are good");
        change(&mut config);
        config.validate().expect_err("a value that cannot be").field
    }

    #[test]
    fn every_value_that_cannot_be_is_named() {
        assert_eq!(refused(|c| c.namespaces.clear()), "namespaces");
        assert_eq!(refused(|c| c.namespaces = vec!["n".repeat(65)]), "namespaces");
        assert_eq!(refused(|c| c.namespaces.push(CREDENTIALS.to_owned())), "namespaces");
        let client = Invitation::new([0; 16], Right::Client, Duration::from_secs(1));
        assert_eq!(refused(|c| c.invitation = Some(client)), "invitation");
        assert_eq!(refused(|c| c.advertise = Some("nowhere".into())), "advertise");
        assert_eq!(refused(|c| c.advertise = Some("0.0.0.0:7400".into())), "advertise");
        assert_eq!(refused(|c| c.advertise = Some("[::]:7400".into())), "advertise");
        assert_eq!(refused(|c| c.advertise = Some("node-1:0".into())), "advertise");
        assert_eq!(refused(|c| c.listen = SocketAddr::from(([0; 4], 7_400))), "advertise");
        assert_eq!(refused(|c| c.start = Start::Join(vec![":1".into()])), "join");
        assert_eq!(refused(|c| c.flood.burst = 0), "flood");
        assert_eq!(refused(|c| c.submit_timeout = Duration::ZERO), "submit_timeout");
        assert_eq!(refused(|c| c.cut_off = Duration::ZERO), "cut_off");
        assert_eq!(refused(|c| c.engine.max_voters = 0), "max_voters");
        assert_eq!(refused(|c| c.engine.max_pending = 0), "max_pending");
        assert_eq!(refused(|c| c.engine.max_in_flight = 0), "max_in_flight");
        assert_eq!(refused(|c| c.engine.snapshot_every = 15), "snapshot_every");
        assert_eq!(refused(|c| c.engine.goal_timeout = Duration::ZERO), "goal_timeout");
        assert_eq!(refused(|c| c.engine.goal_retry = Duration::ZERO), "goal_retry");
        assert_eq!(refused(|c| c.engine.election.diameter = 0), "diameter");
        assert_eq!(refused(|c| c.engine.election.delta_e *= 9), "delta_r");
        assert_eq!(refused(|c| c.engine.election.delta_c *= 900), "delta_c");
        assert_eq!(refused(|c| c.engine.election.hysteresis = 4), "hysteresis");
        assert_eq!(refused(|c| c.engine.spray.memory = 0), "memory");
        assert_eq!(refused(|c| c.engine.spray.patience *= 9), "patience");
        assert_eq!(refused(|c| c.engine.commit.lease = Duration::from_millis(99)), "lease");
        assert_eq!(refused(|c| c.engine.commit.heartbeat *= 2), "heartbeat");
        assert_eq!(refused(|c| c.engine.commit.margin /= 3), "margin");
        assert_eq!(refused(|c| c.engine.commit.spread /= 11), "spread");
    }

    #[test]
    fn an_error_says_field_bound_and_reason_in_one_sentence() {
        let error = ConfigError::new("lease", "at most 60s", "a failover takes that long");
        assert_eq!(error.to_string(), "lease: at most 60s; a failover takes that long");
    }
}
