//! The one HTTP listener: `/metrics` for Prometheus and `/health` for whatever watches processes.
//!
//! It has no login, so a port alone means this machine alone. It is bounded in connections and time.

#![cfg_attr(
    not(any(feature = "tx", feature = "gossip")),
    allow(dead_code, reason = "the health of a node is asked by its own commands")
)]

use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use serde_json::Value;
use tenure::Member;
use tenure_agent::listener::{Limits, serve};
use tenure_agent::probes::{self, Render};
use tokio::net::TcpListener;
use tokio::time::{interval, timeout};

use crate::exit::Failure;

/// Neither Prometheus nor a supervisor needs more.
const LIMITS: Limits = Limits {
    connections: 64,
    of_one: 16,
    head: Duration::from_secs(5),
    answer: Duration::from_secs(5),
    lifetime: Duration::from_secs(60),
};
/// A histogram keeps every sample until it is told to fold them.
const UPKEEP: Duration = Duration::from_secs(5);

/// An address, a host's name with a port, or a port alone: then this machine's own. A name is looked
/// up once, here; of several addresses the first counts.
pub(crate) fn address(text: &str) -> Result<SocketAddr, String> {
    const FORMS: &str = "write a port, or an address or name with one, as localhost:9464";
    if let Ok(port) = text.parse::<u16>() {
        return Ok((Ipv4Addr::LOCALHOST, port).into());
    }
    match text.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {}
        Some(_) | None => return Err(FORMS.to_owned()),
    }
    let found = text.to_socket_addrs().map_err(|error| format!("{error}; {FORMS}"))?.next();
    found.ok_or_else(|| format!("that name has no address; {FORMS}"))
}

/// Whether the process does its work, and the details for people.
#[derive(Debug)]
pub(crate) struct Health {
    pub(crate) healthy: bool,
    pub(crate) details: Value,
}

type Answer = Pin<Box<dyn Future<Output = Health> + Send>>;
type Check = Arc<dyn Fn() -> Answer + Send + Sync>;

/// A bound port. Metrics are recorded from now on; nothing is served before [`Listener::serve`].
pub(crate) struct Listener {
    socket: TcpListener,
    address: SocketAddr,
    recorder: PrometheusHandle,
}

impl Listener {
    /// Comes first in a command: what is counted before there is a recorder is lost.
    pub(crate) async fn bind(address: SocketAddr) -> Result<Self, Failure> {
        let bound = async {
            let socket = TcpListener::bind(address).await?;
            let address = socket.local_addr()?;
            Ok::<_, std::io::Error>((socket, address))
        };
        let (socket, address) = bound.await.map_err(|error| {
            Failure::failed(format!("{address}: {error}; choose another address"))
        })?;
        let recorder = PrometheusBuilder::new()
            .install_recorder()
            .map_err(|error| Failure::failed(format!("metrics: {error}; give the address once")))?;
        Ok(Listener { socket, address, recorder })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until the program ends.
    pub(crate) fn serve<F>(self, check: impl Fn() -> F + Send + Sync + 'static)
    where
        F: Future<Output = Health> + Send + 'static,
    {
        let check: Check = Arc::new(move || Box::pin(check()));
        let router = probes::metrics(Some(self.render()));
        self.route(router.route("/health", get(health).with_state(check)));
    }

    /// Serves a member's probes and metrics until the program ends.
    pub(crate) fn probe(self, member: Weak<Member>) {
        let render = self.render();
        self.route(probes::router(member, Some(render)));
    }

    fn render(&self) -> Render {
        let recorder = self.recorder.clone();
        Arc::new(move || recorder.render())
    }

    fn route(self, router: Router) {
        let recorder = self.recorder;
        tokio::spawn(async move {
            let mut tick = interval(UPKEEP);
            loop {
                tick.tick().await;
                recorder.run_upkeep();
            }
        });
        tokio::spawn(serve(self.socket, None, router, LIMITS));
    }
}

async fn health(State(check): State<Check>) -> impl IntoResponse {
    let Health { healthy, details } = timeout(LIMITS.head, check()).await.unwrap_or_else(|_| {
        Health { healthy: false, details: serde_json::json!({"error": "the check took too long"}) }
    });
    let status = if healthy { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, [(header::CONTENT_TYPE, "application/json")], format!("{details}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_alone_is_this_machines_own() {
        let parsed = |text| address(text).map(|address| address.to_string());
        assert_eq!(parsed("9464").as_deref(), Ok("127.0.0.1:9464"));
        assert_eq!(parsed("0.0.0.0:9464").as_deref(), Ok("0.0.0.0:9464"));
        assert_eq!(parsed("[::1]:9464").as_deref(), Ok("[::1]:9464"));
        assert!(address("localhost:9464").is_ok_and(|address| address.ip().is_loopback()));
        for wrong in ["", "localhost", "70000", "127.0.0.1", ":9464", "localhost:http"] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }
}
