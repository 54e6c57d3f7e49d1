//! A worker that runs in one process of many at a time: it starts when its process becomes the leader
//! and is cancelled when that ends.
//!
//! `cargo run -p tenure --example worker -- postgresql://localhost/app`
#![allow(clippy::print_stdout, reason = "it is a demonstration")]

use std::time::Duration;

use tenure::LeaderToken;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dsn = std::env::args().nth(1).ok_or("usage: worker DSN")?;
    let (member, lock) = tenure::lead(&dsn, "worker").await?;
    println!("{} takes part", member.identity());
    tokio::select! {
        // Returns when the role has stopped.
        stopped = lock.while_leading(work) => stopped?,
        _ = tokio::signal::ctrl_c() => {}
    }
    member.shutdown(Some(Duration::from_secs(10))).await?;
    Ok(())
}

/// Dropped at an `await` when the term ends. What must not happen twice is written through the fence
/// under the epoch, which also covers a pause of the whole process.
async fn work(term: LeaderToken) {
    println!("epoch {}: begins", term.epoch);
    for job in 1.. {
        tokio::time::sleep(Duration::from_secs(1)).await;
        println!("epoch {}: job {job} is done", term.epoch);
    }
}
