//! The names of what is counted. They are contract: dashboards are built on them.
//!
//! Every metric carries the label `namespace`, except the metrics of connections.

/// Counter: how often this node's gossip named another leader.
pub const LEADER_CHANGES: &str = "tenure_gossip_leader_changes_total";
/// Gauge: for how many seconds gossip has named the present leader.
pub const LEADER_TENURE: &str = "tenure_gossip_leader_tenure_seconds";
/// Counter: goals that went unanswered for the goal timeout.
pub const GOAL_TIMEOUTS: &str = "tenure_gossip_goal_result_timeouts_total";
/// Counter: histories asked for.
pub const HISTORY_REQUESTS: &str = "tenure_gossip_history_requests_total";
/// Gauge: goals that wait on this node.
pub const PENDING: &str = "tenure_gossip_pending_transactions";
/// Gauge: the last record applied.
pub const INDEX: &str = "tenure_gossip_history_index";
/// Gauge: 1 while this node's gate is open.
pub const ACTING: &str = "tenure_gossip_acting";
/// Gauge: the consensus term.
pub const TERM: &str = "tenure_gossip_term";
/// Counter, label `reason`: votes thrown away.
pub const VOTES_REJECTED: &str = "tenure_gossip_votes_rejected_total";
/// Counter, label `reason`: connections closed because of what came through them.
pub const MISCONDUCT: &str = "tenure_gossip_connections_dropped_total";
/// Counter: messages that found the peer's queue full.
pub const DROPPED: &str = "tenure_gossip_messages_dropped_total";

/// All names, for the manual and its test.
pub const ALL: [&str; 11] = [
    LEADER_CHANGES,
    LEADER_TENURE,
    GOAL_TIMEOUTS,
    HISTORY_REQUESTS,
    PENDING,
    INDEX,
    ACTING,
    TERM,
    VOTES_REJECTED,
    MISCONDUCT,
    DROPPED,
];
