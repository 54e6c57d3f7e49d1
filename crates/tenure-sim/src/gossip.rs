//! The simulator: many nodes, one thread, one seed, one trace.
//!
//! Two worlds share the network model and the event queue:
//!
//! - [`world`]: whole nodes with disks and clocks, for safety: loss, duplication, delay, reordering,
//!   symmetric and asymmetric partitions, crashes that lose what was not synced, pauses, clocks of
//!   different rates. Invariants are checked at every step; then everything heals, and the group
//!   must become well again ([`scenario`]).
//! - [`crowd`]: gossip alone, for thousands of nodes: how fast they agree, and how long it lasts.

pub mod crowd;
mod disk;
mod keys;
pub mod mistake;
mod network;
pub mod operations;
mod queue;
pub mod scenario;
pub mod world;

pub use self::network::Faults;
