//! Probes and metrics over HTTP, as a router for any program that has a [`Member`].
//!
//! | path | answer |
//! |---|---|
//! | `/healthz` | 200 while the member runs or hands its roles over, whether or not the database answers: a restart would not help; 503 once it has left |
//! | `/readyz`, `/health` | 200 while the member has its session, 503 otherwise; with its roles as JSON |
//! | `/leader/{role}` | 200 only while the gate of this process is open, else 503; 404 for a role it does not know |
//! | `/metrics` | what the program's recorder renders; 404 if it gave none |
//!
//! There is no token, and nothing secret in any answer. Serve it on the loopback interface, or where every
//! reader may know which process leads. An answer is a moment's: only the gate itself, asked in the
//! process, proves leadership.
//!
//! ```no_run
//! # async fn run(member: std::sync::Arc<tenure::Member>) -> Result<(), Box<dyn std::error::Error>> {
//! let router = tenure_agent::probes::router(std::sync::Arc::downgrade(&member), None);
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:9464").await?;
//! axum::serve(listener, router).await?;
//! # Ok(())
//! # }
//! ```

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde_json::{Value, json};
use tenure::{Health, Member, Pulse};
use tokio::time::timeout;

/// How long an answer may take; the member's task answers in microseconds.
const PATIENCE: Duration = Duration::from_secs(5);

/// Renders the metrics in Prometheus' text format.
pub type Render = Arc<dyn Fn() -> String + Send + Sync>;

#[derive(Clone)]
struct Probes {
    member: Weak<Member>,
    /// None: the member was gone before.
    pulse: Option<Pulse>,
}

impl fmt::Debug for Probes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Probes")
    }
}

/// The routes of a member: those of the [module](self). It is held weakly, so that it can be shut down; a probe
/// that is being answered holds it for 5 s at most. Without `render` there are no metrics.
pub fn router(member: Weak<Member>, render: Option<Render>) -> Router {
    let pulse = member.upgrade().map(|member| member.pulse());
    Router::new()
        .route("/healthz", get(healthz))
        .route("/health", get(readyz))
        .route("/readyz", get(readyz))
        .route("/leader/{*role}", get(leader))
        .with_state(Probes { member, pulse })
        .merge(metrics(render))
}

/// The route `/metrics` alone, for a program without a member; 404 without `render`.
pub fn metrics(render: Option<Render>) -> Router {
    Router::new().route("/metrics", get(rendered)).with_state(render)
}

/// A member's health as JSON; no secret is in it.
fn details(health: &Health) -> Value {
    let roles = health.roles.iter().map(|role| {
        json!({"role": role.role.as_str(), "state": role.state.as_str(), "is_leader": role.is_leader})
    });
    json!({
        "member": health.identity,
        "connected": health.connected,
        "heartbeat_age_ms": health.heartbeat_age.map(|age| age.as_millis()),
        "error": health.error,
        "roles": roles.collect::<Vec<_>>(),
    })
}

impl Probes {
    async fn health(&self) -> Option<Health> {
        let member = self.member.upgrade()?;
        timeout(PATIENCE, member.health()).await.ok()?.ok()
    }
}

async fn healthz(State(probes): State<Probes>) -> Response {
    // A member that is being shut down hands over, and its runs have their drain limit: no supervisor may cut it
    // short.
    let is_alive = probes.pulse.as_ref().is_some_and(Pulse::is_alive);
    if is_alive && probes.member.strong_count() == 0 {
        return answer(StatusCode::OK, &json!({"leaving": true}));
    }
    match probes.health().await {
        Some(health) => answer(StatusCode::OK, &json!({"member": health.identity})),
        None => ended(),
    }
}

async fn readyz(State(probes): State<Probes>) -> Response {
    match probes.health().await {
        Some(health) => {
            let status =
                if health.connected { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
            answer(status, &details(&health))
        }
        None => ended(),
    }
}

async fn leader(State(probes): State<Probes>, Path(role): Path<String>) -> Response {
    let Some(member) = probes.member.upgrade() else { return ended() };
    let Ok(lock) = member.lock(&role) else {
        return answer(
            StatusCode::NOT_FOUND,
            &json!({"error": "this member does not know the role"}),
        );
    };
    match lock.gate().peek() {
        Ok(token) => {
            let body = json!({"role": role, "leader": true, "epoch": token.epoch.get()});
            answer(StatusCode::OK, &body)
        }
        Err(_) => answer(StatusCode::SERVICE_UNAVAILABLE, &json!({"role": role, "leader": false})),
    }
}

async fn rendered(State(render): State<Option<Render>>) -> Response {
    match render {
        Some(render) => {
            ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], render()).into_response()
        }
        None => answer(StatusCode::NOT_FOUND, &json!({"error": "this program has no recorder"})),
    }
}

fn ended() -> Response {
    answer(StatusCode::SERVICE_UNAVAILABLE, &json!({"error": "the member has ended"}))
}

fn answer(status: StatusCode, body: &Value) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], format!("{body}\n")).into_response()
}
