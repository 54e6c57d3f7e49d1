//! Nonce-ordered transactions for a leader/follower group.
#![cfg_attr(not(test), warn(clippy::unwrap_used))]

pub mod account;
pub mod chain;
#[cfg(feature = "cli")]
pub mod cli;
mod engine;
pub mod events;
pub mod feed;
pub mod leadership;
pub mod manager;
pub mod metrics;
pub mod schema;
mod scribe;
pub mod service;
pub mod status;
pub mod store;
