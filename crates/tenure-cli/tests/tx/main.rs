//! `tenure tx` from outside: every command, and three nodes under fire.
#![cfg(feature = "tx")]

mod callers;
mod commands;
mod ends;
mod extrinsics;
mod fire;
mod group;
mod health;
mod kit;
mod secrets;
mod storm;
mod substrate;
mod substrate_chain;
mod timings;
