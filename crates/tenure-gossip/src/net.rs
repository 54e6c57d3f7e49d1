//! Real nodes: TCP between processes, a store on disk, a gate for the application.
//!
//! ```text
//!  socket ─► reader task ─► bounded queue ─► driver thread: an engine per namespace
//!                                             │ shut gates → store (sync) → open gates → send → answer
//!  socket ◄─ writer task ◄─ bounded queue ◄───┘
//! ```
//!
//! TLS 1.3 is below every connection and proves the key of each side; the credentials say what that key
//! may do. A peer that sends anything wrong (garbage, too much, too fast, what it has no right to) loses
//! its connection, and nothing else happens.

use std::net::IpAddr;

pub(crate) mod client;
pub(crate) mod link;
pub(crate) mod outbox;
pub(crate) mod places;
pub(crate) mod session;
pub(crate) mod tls;
pub(crate) mod wire;

/// Whether `text` is `HOST:PORT`.
#[doc(hidden)]
pub fn is_address(text: &str) -> bool {
    text.rsplit_once(':')
        .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok_and(|p| p > 0))
}

/// Whether the host of `address` is every address of a machine: it can be listened on, not called.
pub(crate) fn is_unspecified(address: &str) -> bool {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok_and(|ip| ip.is_unspecified())
}
