//! What the configuration means.

#![allow(unreachable_pub, reason = "modules of one test binary")]

mod mapping;
mod secrets;
mod sources;

use std::collections::HashMap;

/// An environment of a test's own.
pub fn env<const N: usize>(pairs: [(&str, &str); N]) -> HashMap<String, String> {
    pairs.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}
