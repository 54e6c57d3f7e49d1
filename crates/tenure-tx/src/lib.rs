//! Nonce-ordered transactions for a leader/follower group.
#![cfg_attr(not(test), warn(clippy::unwrap_used))]

pub mod account;
pub mod chain;
pub mod feed;
pub mod manager;
pub mod schema;
pub mod status;
pub mod store;
