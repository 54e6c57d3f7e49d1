//! What programs use of the agent, on a real server.

mod probes;
mod schedules;
mod shards;
