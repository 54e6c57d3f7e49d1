//! `tenure tx` from outside: every command, and three nodes under fire.
#![cfg(feature = "tx")]

mod commands;
mod group;
