//! The election on a real PostgreSQL, in one process: what does not need a process to die.

mod answers;
mod claims;
mod fence;
mod handles;
mod obstacles;
mod orders;
mod preference;
mod preflight;
mod quiet;
mod roles;
mod schema;
mod server;
mod stage;
mod start;
mod strangers;
mod traffic;
