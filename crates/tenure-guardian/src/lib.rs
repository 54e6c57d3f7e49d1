//! Ends a child and every process it started before a lease ends: see [`guardian`].

pub mod child;
pub mod guardian;
pub mod kin;
mod watch;
pub mod wire;
