//! Priority, readiness and step-down, combined.

use tenure::config::RoleSpec;
use tenure::{Event, NotAcquired, Notice};
use tokio::sync::broadcast;

use crate::stage::{PATIENCE, candidate, config, database, follows, gone, leads, start};

/// That no claim since was put off in favour of a better candidate.
fn never_yielded(events: &mut broadcast::Receiver<Event>) {
    while let Ok(event) = events.try_recv() {
        let yielded = Notice::AcquireFailed { why: NotAcquired::Reserved };
        assert_ne!(event.notice, yielded);
    }
}

/// A member that has just stepped down is in its cool-down: no candidate yields to it.
#[tokio::test]
async fn a_step_down_of_the_most_preferred_hands_over_at_once() {
    let database = database().await;
    let (high, best) = candidate(&database, RoleSpec::named("r").priority(10)).await;
    leads(&best).await;
    let (low, other) = candidate(&database, RoleSpec::named("r")).await;
    follows(&other).await;
    let mut events = other.events();
    best.step_down(Some(PATIENCE)).await.unwrap();
    leads(&other).await;
    never_yielded(&mut events);
    gone(high).await;
    gone(low).await;
}

/// A role that one member stopped, while it stays for others, is no reason to yield.
#[tokio::test]
async fn a_stopped_candidate_delays_no_other() {
    let database = database().await;
    let stays = start(
        config(&database).role(RoleSpec::named("r").priority(10)).role(RoleSpec::named("other")),
    )
    .await;
    stays.start_all().await.unwrap();
    leads(&stays.lock("r").unwrap()).await;
    leads(&stays.lock("other").unwrap()).await;
    let (one_member, first) = candidate(&database, RoleSpec::named("r")).await;
    let (two_member, second) = candidate(&database, RoleSpec::named("r")).await;
    stays.lock("r").unwrap().shutdown(Some(PATIENCE)).await.unwrap();
    // One of them leads, steps down, and the other one leads at once: the second race in which
    // the stopped one does not take part.
    let (leader, follower) = tokio::select! {
        _ = first.wait_for_leadership(None) => (&first, &second),
        _ = second.wait_for_leadership(None) => (&second, &first),
    };
    follows(follower).await;
    let mut events = follower.events();
    leader.step_down(Some(PATIENCE)).await.unwrap();
    leads(follower).await;
    never_yielded(&mut events);
    gone(one_member).await;
    gone(two_member).await;
    gone(stays).await;
}
