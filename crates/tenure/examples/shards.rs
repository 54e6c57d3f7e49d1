//! Many roles in one member: each shard has one leader, and a group of processes shares them.
//!
//! Start it twice: the second process takes over what the first one releases. The first process leads all of them
//! until then: the roles are raced for, not spread. `tenure::shards::Shards` spreads them evenly.
//!
//! `cargo run -p tenure --example shards -- postgresql://localhost/app 8`
#![allow(clippy::print_stdout, reason = "it is a demonstration")]

use std::time::Duration;

use tenure::config::{Config, RoleSpec};
use tenure::{LeaderLock, Member};
use tokio::task::JoinSet;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let dsn = args.next().ok_or("usage: shards DSN [SHARDS]")?;
    let shards: u32 = args.next().map_or(Ok(8), |text| text.parse())?;
    let roles = (0..shards).map(|shard| RoleSpec::named(format!("shard:{shard}")));
    let config = roles.fold(Config::builder().dsn(&dsn), |config, role| config.role(role));
    // Two sessions and one heartbeat for all of them.
    let member = Member::start(config.build()?).await?;
    member.start_all().await?;
    let mut workers = JoinSet::new();
    for lock in member.locks() {
        workers.spawn(async move { serve(&lock).await });
    }
    tokio::signal::ctrl_c().await?;
    member.shutdown(Some(Duration::from_secs(10))).await?;
    // Every role has stopped, so every worker has returned.
    while let Some(ended) = workers.join_next().await {
        ended??;
    }
    Ok(())
}

async fn serve(lock: &LeaderLock) -> Result<(), tenure::TenureError> {
    lock.while_leading(|term| async move {
        println!("{} is ours under epoch {}", lock.role(), term.epoch);
        std::future::pending::<()>().await;
    })
    .await
}
