//! What a service manager is told: ready, reloading, stopping, and that the process is alive.
//!
//! The protocol is systemd's `sd_notify`: a datagram to the socket that `NOTIFY_SOCKET` names. Without one
//! nothing is sent.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::{Arc, Weak};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tenure::Member;
use tokio::time::{interval, timeout};

#[derive(Debug, Clone, Default)]
pub(super) struct Service {
    socket: Option<Arc<(UnixDatagram, SocketAddr)>>,
    /// How often the manager wants to hear from us.
    watchdog: Option<Duration>,
}

impl Service {
    pub(super) fn of_environment() -> Self {
        let Some(name) = std::env::var_os("NOTIFY_SOCKET") else { return Service::default() };
        let address = match name.as_bytes().strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name),
            None => SocketAddr::from_pathname(&name),
        };
        let socket = address.and_then(|address| Ok(Arc::new((UnixDatagram::unbound()?, address))));
        let period = std::env::var("WATCHDOG_USEC").ok().and_then(|text| text.parse().ok());
        let ours = std::env::var("WATCHDOG_PID")
            .ok()
            .is_none_or(|pid| pid == std::process::id().to_string());
        let watchdog = period.filter(|_| ours).map(Duration::from_micros);
        Service { socket: socket.ok(), watchdog }
    }

    pub(super) fn ready(&self) {
        self.send("READY=1");
    }

    pub(super) fn reloading(&self) {
        let now = clock_gettime(ClockId::Monotonic);
        let micros = now.tv_sec * 1_000_000 + now.tv_nsec / 1000;
        self.send(&format!("RELOADING=1\nMONOTONIC_USEC={micros}"));
    }

    pub(super) fn stopping(&self) {
        self.send("STOPPING=1");
    }

    /// Feeds the watchdog for as long as the member's task answers.
    pub(super) async fn watch(self, member: Weak<Member>) {
        let Some(period) = self.watchdog.filter(|period| !period.is_zero()) else { return };
        let mut tick = interval(period / 3);
        loop {
            tick.tick().await;
            let well = match member.upgrade() {
                Some(member) => matches!(timeout(period / 3, member.health()).await, Ok(Ok(_))),
                // It is being shut down, and a run may take its drain limit.
                None => true,
            };
            if well {
                self.send("WATCHDOG=1");
            }
        }
    }

    fn send(&self, text: &str) {
        if let Some(socket) = &self.socket {
            let (socket, address) = &**socket;
            // A manager that does not listen is none.
            let _ = socket.send_to_addr(text.as_bytes(), address);
        }
    }
}
