//! Ports that stay ours while no server listens on them.
//!
//! A server that is restarted must come back on its port. A number of the kernel's ephemeral range
//! would not do: an outgoing connection may take it meanwhile, and a client that keeps trying it
//! may even connect to itself. So a port is taken from below that range and reserved with a file
//! lock that other test processes respect.

use std::{
    fs::{self, File},
    net::{Ipv4Addr, TcpListener},
};

use std::sync::{Mutex, PoisonError};

use crate::{KitError, home::Home};

const SPAN: u16 = 12_000;

/// A TCP port of the loopback address, reserved until dropped.
#[derive(Debug)]
pub(crate) struct Port {
    number: u16,
    _lock: File,
}

impl Port {
    pub(crate) fn reserve() -> Result<Self, KitError> {
        let ephemeral: u16 = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range")
            .ok()
            .and_then(|text| text.split_whitespace().next()?.parse().ok())
            .unwrap_or(32_768);
        let lowest = ephemeral.saturating_sub(SPAN).max(1_100);
        let span = ephemeral.saturating_sub(lowest).max(1_000);
        // Processes begin at different places, so that they seldom meet.
        let nanos = std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(0, |d| d.subsec_nanos());
        let start = nanos.wrapping_add(std::process::id().wrapping_mul(7_919));
        for step in 0..u32::from(span) {
            let offset = u16::try_from(start.wrapping_add(step) % u32::from(span)).unwrap_or(0);
            let number = lowest + offset;
            let path = Home::get()?.root().join("ports").join(number.to_string());
            let lock = fs::OpenOptions::new().create(true).append(true).open(path)?;
            if lock.try_lock().is_ok() && TcpListener::bind((Ipv4Addr::LOCALHOST, number)).is_ok() {
                return Ok(Self { number, _lock: lock });
            }
        }
        Err(KitError::Setup("no free port below the ephemeral range".into()))
    }

    pub(crate) fn number(&self) -> u16 {
        self.number
    }
}

/// A TCP port of the loopback address that no other test process takes until this one ends.
///
/// # Panics
/// If none is left.
pub fn free_port() -> u16 {
    static RESERVED: Mutex<Vec<Port>> = Mutex::new(Vec::new());
    let port = Port::reserve().expect("a port below the ephemeral range");
    let number = port.number();
    RESERVED.lock().unwrap_or_else(PoisonError::into_inner).push(port);
    number
}
