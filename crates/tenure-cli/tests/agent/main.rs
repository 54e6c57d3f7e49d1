//! `tenure agent` and what belongs to it: real processes, real faults.

mod alerts;
mod bare;
mod commands;
mod deploy;
mod events;
mod files;
mod kit;
mod page;
mod prometheus;
mod schedules;
mod shards;
mod storm;
