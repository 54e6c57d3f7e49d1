//! Two things that claim to be the same are: PostgreSQL and memory behind one trait, the core and
//! the SQL that computes what it computes.

mod incarnation;
mod keys;
mod memory;
mod stage;
mod suite;
