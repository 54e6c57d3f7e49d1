//! Where the database is, and how a session to it is made.

#![allow(unreachable_pub, reason = "modules of one test binary")]

mod dsn;
mod login;
mod servers;
mod tls;

use std::collections::HashMap;

/// An environment of a test's own.
pub fn env<const N: usize>(pairs: [(&str, &str); N]) -> HashMap<String, String> {
    pairs.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}
