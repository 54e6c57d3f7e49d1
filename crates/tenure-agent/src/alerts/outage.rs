//! An unreachable database: each agent's own alert, because no leader can be elected to tell of it.
//!
//! All agents of a group use one key, so that a service that deduplicates pages once. Nothing is written
//! down: there is no place for it. An agent that dies in the outage leaves the end to be told by the others.

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};
use std::time::Duration;

use jiff::Timestamp;
use tenure::Member;
use tokio::sync::{mpsc, watch};
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::event::{Event, Events};

use super::condition::Condition;
use super::engine::{Engine, Outcome};
use super::evaluate::Element;
use super::rule::{Rule, Severity};
use super::sample::Labels;
use super::setup::Setup;

/// The name of the rule by which each agent tells that it cannot reach the database. It needs no leader.
pub const DATABASE_UNREACHABLE: &str = "database_unreachable";
/// Between two looks; the member's own task answers, no statement is sent.
const LOOK: Duration = Duration::from_secs(1);

/// Watches the member's session until the member is gone.
pub(crate) async fn serve(
    member: Weak<Member>,
    identity: String,
    setup: watch::Receiver<Arc<Setup>>,
    events: Events,
) {
    let mark = setup.borrow().mark.clone();
    let mut engine = Engine::with_lasting_keys(&mark);
    let mut under_way = BTreeSet::new();
    let (answering, mut answers) = mpsc::unbounded_channel();
    let mut tick = interval(LOOK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        // Both branches are cancel-safe.
        tokio::select! {
            _ = tick.tick() => {}
            Some((message, answer)) = answers.recv() => {
                let message: super::engine::Message = message;
                under_way.remove(&(message.key.clone(), message.notifier.clone()));
                engine.answered(&message, answer, Timestamp::now());
            }
        }
        let Some(strong) = member.upgrade() else { return };
        let health = timeout(LOOK, strong.health()).await;
        // A shutdown must not wait for this look.
        drop(strong);
        let Ok(Ok(health)) = health else { continue };
        let setup = setup.borrow().clone();
        let names: BTreeSet<String> = setup.notifiers.names().cloned().collect();
        let change = engine.evaluated(
            &[(rule(&setup), outcome(&identity, health.connected))],
            &names,
            Timestamp::now(),
        );
        for incident in change.incidents {
            let event = if incident.resolved.is_none() { "alert_firing" } else { "alert_resolved" };
            events.tell(Event::said(event, DATABASE_UNREACHABLE));
        }
        for message in engine.due(&under_way, Timestamp::now()) {
            under_way.insert((message.key.clone(), message.notifier.clone()));
            let (setup, answering) = (Arc::clone(&setup), answering.clone());
            tokio::spawn(async move {
                let answer = setup.notifiers.send(&message).await;
                let _ = answering.send((message, answer));
            });
        }
    }
}

fn rule(setup: &Setup) -> Rule {
    // The condition is not evaluated: the member itself knows.
    let condition = Condition::parse("tenure_connected == 0").expect("a test reads it");
    Rule::new(DATABASE_UNREACHABLE, condition)
        .holding(setup.database_after())
        .severe(Severity::Critical)
        .notifying(setup.alerting.notify().to_vec())
        .saying(Some("an agent does not reach its database".to_owned()))
}

fn outcome(identity: &str, connected: bool) -> Outcome {
    let labels = Labels::from([("instance".to_owned(), identity.to_owned())]);
    let element = Element { labels, value: 0.0 };
    Some(if connected { Vec::new() } else { vec![element] })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rule_can_be_read() {
        assert!(Condition::parse("tenure_connected == 0").is_ok());
    }
}
