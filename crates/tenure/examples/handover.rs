//! How long a role is without a leader when it is handed over: two members pass it to and fro.
//!
//! `cargo run --release -p tenure --example handover -- postgresql://localhost/app 200`
#![allow(clippy::print_stdout, reason = "it is a benchmark")]

use std::time::{Duration, Instant};

use tenure::config::{Config, RoleSpec};
use tenure::{LeaderLock, Member};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let dsn = args.next().ok_or("usage: handover DSN [TIMES]")?;
    let times: usize = args.next().map_or(Ok(200), |text| text.parse())?;
    let (one, a) = member(&dsn).await?;
    let (two, b) = member(&dsn).await?;
    a.wait_for_leadership(None).await?;
    let mut gaps = Vec::with_capacity(times);
    let mut pair = (a, b);
    for _ in 0..times {
        let mut shut = pair.0.changes();
        let began = tokio::spawn(async move {
            shut.wait_for(|change| !change.is_leader).await.map(|_| Instant::now())
        });
        let to = pair.1.identity().clone();
        pair.0.hand_over(Some(to), None).await?;
        pair.1.wait_for_leadership(None).await?;
        gaps.push(began.await??.elapsed());
        pair = (pair.1, pair.0);
    }
    gaps.sort();
    let at = |share: f64| gaps[((gaps.len() - 1) as f64 * share) as usize];
    println!("{times} handovers: p50 {:?}, p99 {:?}, max {:?}", at(0.5), at(0.99), at(1.0));
    one.shutdown(Some(Duration::from_secs(5))).await?;
    two.shutdown(Some(Duration::from_secs(5))).await?;
    Ok(())
}

async fn member(dsn: &str) -> Result<(Member, LeaderLock), Box<dyn std::error::Error>> {
    // No cool-down: the member that stepped down is in the race again at once, behind the successor.
    let role = RoleSpec::named("handover").cool_down(Duration::ZERO);
    let member = Member::start(Config::builder().dsn(dsn).role(role).build()?).await?;
    let lock = member.lock("handover")?;
    lock.start().await?;
    Ok((member, lock))
}
