//! The program from outside: every command, every exit code, and children that must not outlive
//! the lease.

mod acquire;
mod contract;
mod demo;
mod docs;
mod embedded;
#[cfg(feature = "gossip")]
mod gossip;
mod guard;
mod health;
mod help;
mod input;
mod kit;
mod log;
mod metrics;
mod operator;
mod page;
mod run;
mod snippets;
