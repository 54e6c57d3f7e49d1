//! An HTTP server whose every instance answers, and one of them acts: `POST /act` is for the leader
//! alone, the others name it.
//!
//! `cargo run -p tenure --example server -- postgresql://localhost/app 127.0.0.1:8080`
#![allow(clippy::print_stdout, reason = "it is a demonstration")]

use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{get, post};
use tenure::{Leader, LeaderLock};
use tokio::sync::watch;

/// What a handler needs.
#[derive(Clone)]
struct App {
    lock: LeaderLock,
    /// Which member leads, kept up to date: no handler waits for the database.
    leader: watch::Receiver<Option<Leader>>,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let dsn = args.next().ok_or("usage: server DSN [ADDRESS]")?;
    let address = args.next().unwrap_or_else(|| "127.0.0.1:8080".to_owned());
    let (member, lock) = tenure::lead(&dsn, "server").await?;
    let app = App { leader: lock.observe(), lock };
    let routes =
        Router::new().route("/leader", get(leader)).route("/act", post(act)).with_state(app);
    let listener = tokio::net::TcpListener::bind(address).await?;
    println!("{} listens on {}", member.identity(), listener.local_addr()?);
    axum::serve(listener, routes)
        .with_graceful_shutdown(async {
            let _ = tokio::signal::ctrl_c().await;
        })
        .await?;
    // The next leader need not wait for the lease.
    member.shutdown(Some(Duration::from_secs(10))).await?;
    Ok(())
}

async fn leader(State(app): State<App>) -> String {
    app.leader.borrow().as_ref().map_or("no leader\n".to_owned(), |leader| {
        format!("{} under epoch {}\n", leader.identity, leader.epoch)
    })
}

/// Refused unless the lease covers the whole act.
async fn act(State(app): State<App>) -> (StatusCode, String) {
    let act = match app.lock.begin_act(Duration::from_millis(500)) {
        Ok(act) => act,
        Err(error) => return (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")),
    };
    let epoch = act.epoch();
    // … the effect, which takes at most half a second; `epoch` fences what is written …
    match act.finish() {
        Ok(()) => (StatusCode::OK, format!("done under epoch {epoch}\n")),
        Err(uncertain) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{uncertain}\n")),
    }
}
