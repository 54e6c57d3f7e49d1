//! Exactly one acting leader per role, on the PostgreSQL you already run.

pub mod connect;
pub mod dsn;
pub mod tls;
