//! How long one member takes to lead very many roles, and how much memory each of them costs.
//!
//! `cargo run --release -p tenure --example roles -- postgresql://localhost/app 10000`
//!
//! The server's lock table must have room: Tenure uses a quarter of it, so 10,000 roles need
//! `max_locks_per_transaction = 512` at 100 connections.
#![allow(clippy::print_stdout, reason = "it is a benchmark")]

use std::time::{Duration, Instant};

use tenure::Member;
use tenure::config::{Config, RoleSpec};
use tenure::operate::Operator;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing_subscriber::fmt().with_max_level(tracing::Level::WARN).init();
    let mut args = std::env::args().skip(1);
    let dsn = args.next().ok_or("usage: roles DSN [ROLES]")?;
    let roles: usize = args.next().map_or(Ok(10_000), |text| text.parse())?;
    // What a member costs without roles (TLS, sessions, buffers) is spent before it is measured.
    let alone = Config::builder().dsn(&dsn).role(RoleSpec::named("roles alone")).build()?;
    let member = Member::start(alone).await?;
    member.start_all().await?;
    member.shutdown(None).await?;
    let resident = resident_kib()?;
    let mut builder = Config::builder().dsn(&dsn);
    for n in 0..roles {
        builder = builder.role(RoleSpec::named(format!("roles:{n}")));
    }
    let member = Member::start(builder.build()?).await?;
    let added = resident_kib()?;
    let before = Instant::now();
    member.start_all().await?;
    let registered = before.elapsed();
    let locks = member.locks();
    for lock in &locks {
        lock.wait_for_leadership(None).await?;
    }
    println!("{roles} roles: registered after {registered:?}, led after {:?}", before.elapsed());
    let each = |kib: f64| (kib - resident) * 1024.0 / roles as f64;
    let (added, led) = (each(added), each(resident_kib()?));
    println!("memory: {led:.0} bytes for each role; {added:.0} before it was started");
    // A while of nothing: beats alone must keep every gate open.
    let (mut oldest, mut shut) = (Duration::ZERO, 0);
    let idle = Instant::now();
    while idle.elapsed() < Duration::from_secs(10) {
        tokio::time::sleep(Duration::from_millis(250)).await;
        oldest = oldest.max(member.health().await?.heartbeat_age.unwrap_or_default());
        shut += locks.iter().filter(|lock| !lock.is_leader()).count();
    }
    println!("10 s idle: oldest heartbeat {oldest:?}, gates found shut {shut}");
    let operator = Operator::connect(member.config()).await?;
    let before = Instant::now();
    let terms = operator.audit(None).await?.terms;
    println!("audit of {terms} terms: {:?}", before.elapsed());
    let before = Instant::now();
    member.shutdown(Some(Duration::from_secs(60))).await?;
    println!("let go after {:?}", before.elapsed());
    Ok(())
}

/// What the process has in memory, as Linux tells it.
fn resident_kib() -> Result<f64, Box<dyn std::error::Error>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    Ok(line.ok_or("no VmRSS")?.trim().trim_end_matches(" kB").parse()?)
}
