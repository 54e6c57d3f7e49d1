//! Nonce-ordered transactions for a leader/follower group.
