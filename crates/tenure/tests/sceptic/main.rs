//! What a sceptic tried: odd servers, bad neighbours, and combinations nobody thinks of.

mod manners;
mod server;
#[path = "../election/stage.rs"]
#[allow(dead_code, reason = "shared with the election tests; not all of it is used here")]
mod stage;
mod traffic;
