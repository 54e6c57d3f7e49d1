//! Exactly one acting leader per role, on the PostgreSQL you already run.

pub mod config;
pub mod connect;
pub mod dsn;
pub mod tls;
