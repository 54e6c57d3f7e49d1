//! `tenure gossip` from outside: real processes, and what only they can show.
#![cfg(feature = "gossip")]

mod cases;
mod crash;
mod faults;
mod kit;
mod members;
mod orders;
mod partition;
mod repair;
mod usage;
mod witness;
