//! Two things that claim to be the same are: a role on PostgreSQL and one in memory, the core and
//! the SQL that computes what it computes.

mod incarnation;
mod keys;
mod memory;
mod stage;
mod suite;
