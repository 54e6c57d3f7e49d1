//! What programs use of the agent, on a real server.

mod moves;
mod probes;
mod schedules;
mod shards;
mod shutdown;
