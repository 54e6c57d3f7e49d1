//! The faults a user can inject into a group in memory. Time is virtual.

use std::time::Duration;

use tenure::memory::MemoryGroup;
use tenure::{Epoch, LeaderLock, Lease, LockState, TenureError};
use tokio::time::Instant;

const PATIENCE: Option<Duration> = Some(Duration::from_secs(60));

async fn pair() -> (MemoryGroup, LeaderLock, LeaderLock) {
    let group = MemoryGroup::new();
    let (first, second) = (group.lock("r").unwrap(), group.lock("r").unwrap());
    first.start().await.unwrap();
    assert!(first.wait_for_leadership(PATIENCE).await.is_ok());
    second.start().await.unwrap();
    (group, first, second)
}

#[tokio::test(start_paused = true)]
async fn a_crash_shuts_the_gate_and_the_other_leads_after_the_lease() {
    let (group, first, second) = pair().await;
    let crashed = Instant::now();
    group.crash(&first).await;
    assert!(!first.is_leader());
    assert_eq!(first.state(), LockState::Stopped);
    assert!(first.start().await.is_err(), "the dead do not start");
    assert!(second.wait_for_leadership(PATIENCE).await.is_ok());
    let lease = Lease::default();
    assert!(crashed.elapsed() <= lease.lease() + lease.margin() + lease.longest_interval());
    assert_eq!(second.gate().epoch(), Some(Epoch(2)));
}

#[tokio::test(start_paused = true)]
async fn a_partitioned_leader_is_shut_before_the_other_opens_and_follows_when_healed() {
    let (group, first, second) = pair().await;
    let cut = Instant::now();
    group.partition(&first);
    assert!(first.is_leader(), "it does not notice at once");
    let opened = second.wait_for_leadership(PATIENCE);
    tokio::pin!(opened);
    loop {
        tokio::select! {
            biased;
            led = &mut opened => {
                assert!(led.is_ok());
                break;
            }
            () = tokio::time::sleep(Duration::from_millis(1)) => {
                assert!(!(first.is_leader() && second.is_leader()), "at {:?}", cut.elapsed());
            }
        }
    }
    assert!(!first.is_leader());
    let lease = Lease::default();
    let bound = lease.lease() + lease.margin() * 2 + lease.longest_interval();
    assert!(cut.elapsed() <= bound, "{:?}", cut.elapsed());
    group.heal(&first);
    assert!(first.wait_for_leadership(Some(Duration::from_secs(10))).await.is_err());
    assert!(second.is_leader());
    second.shutdown(PATIENCE).await.unwrap();
    assert!(first.wait_for_leadership(PATIENCE).await.is_ok(), "it takes part again");
}

#[tokio::test(start_paused = true)]
async fn a_restarted_database_and_a_paused_role_end_terms_and_nothing_else() {
    let (group, first, second) = pair().await;
    group.restart();
    let either = async {
        tokio::select! {
            led = first.wait_for_leadership(PATIENCE) => led.is_ok(),
            led = second.wait_for_leadership(PATIENCE) => led.is_ok(),
        }
    };
    let mut ended = first.changes();
    ended.wait_for(|change| !change.is_leader).await.unwrap();
    assert!(either.await);
    group.set_paused("r", true).unwrap();
    for lock in [&first, &second] {
        let mut changes = lock.changes();
        changes.wait_for(|change| !change.is_leader).await.unwrap();
        assert!(
            lock.wait_for_leadership(Some(Duration::from_secs(20))).await.is_err(),
            "it is paused"
        );
    }
    group.set_paused("r", false).unwrap();
    tokio::select! {
        led = first.wait_for_leadership(PATIENCE) => assert!(led.is_ok()),
        led = second.wait_for_leadership(PATIENCE) => assert!(led.is_ok()),
    }
    let unknown = group.set_paused("unknown", true);
    assert!(matches!(unknown, Err(TenureError::NoSuchRole(_))), "{unknown:?}");
}
