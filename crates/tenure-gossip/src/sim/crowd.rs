//! Gossip alone, for thousands of nodes.
