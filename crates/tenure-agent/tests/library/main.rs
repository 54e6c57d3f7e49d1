//! What programs use of the agent, on a real server.

mod schedules;
mod shards;
