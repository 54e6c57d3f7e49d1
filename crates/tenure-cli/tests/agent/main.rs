//! `tenure agent` and what belongs to it: real processes, real faults.

mod commands;
mod events;
mod files;
mod kit;
mod schedules;
mod storm;
