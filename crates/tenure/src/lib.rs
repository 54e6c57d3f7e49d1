//! Exactly one acting leader per role, on the PostgreSQL you already run.
