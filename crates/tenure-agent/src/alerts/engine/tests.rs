//! What the engine promises, at chosen instants and on random histories.

use proptest::prelude::*;

use super::*;
use crate::alerts::condition::Condition;
use crate::alerts::sample::labels;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).expect("in range")
}

fn rule(hold: u64) -> Rule {
    let condition = Condition::parse("sum by (role) (tenure_is_leader) == 0").expect("valid");
    Rule::new("no_leader", condition)
        .holding(Duration::from_secs(hold))
        .severe(Severity::Critical)
        .notifying(vec!["pagerduty".to_owned()])
}

fn found(roles: &[&str]) -> Outcome {
    let element = |role: &&str| {
        let mut labels = labels("", [("role", role)]);
        labels.remove(NAME);
        Element { labels, value: 0.0 }
    };
    Some(roles.iter().map(element).collect())
}

fn notifiers() -> BTreeSet<String> {
    ["pagerduty".to_owned()].into()
}

fn step(engine: &mut Engine, hold: u64, outcome: Outcome, second: i64) -> Change {
    engine.evaluated(&[(rule(hold), outcome)], &notifiers(), at(second))
}

fn due(engine: &Engine, second: i64) -> Vec<Message> {
    engine.due(&BTreeSet::new(), at(second))
}

/// Sends what is due, and everything is acknowledged.
fn sent(engine: &mut Engine, second: i64) -> Vec<(Kind, String)> {
    let messages = due(engine, second);
    for message in &messages {
        engine.answered(message, Ok(()), at(second));
    }
    messages.into_iter().map(|message| (message.kind, message.key)).collect()
}

#[test]
fn an_alert_is_pending_until_for_is_over_and_a_condition_that_ends_before_is_forgotten() {
    let mut engine = Engine::default();
    step(&mut engine, 30, found(&["a"]), 0);
    step(&mut engine, 30, found(&["a"]), 15);
    assert!(due(&engine, 15).is_empty());
    step(&mut engine, 30, found(&[]), 29);
    step(&mut engine, 30, found(&["a"]), 30);
    step(&mut engine, 30, found(&["a"]), 59);
    assert!(due(&engine, 59).is_empty());
    step(&mut engine, 30, found(&["a"]), 60);
    assert_eq!(due(&engine, 60)[0].kind, Kind::Firing);
}

#[test]
fn an_answer_that_is_written_late_takes_nothing_back_that_was_told_since() {
    let mut engine = Engine::default();
    step(&mut engine, 0, found(&["a"]), 0);
    let first = due(&engine, 0).remove(0);
    // Another member led, sent it again, and then what had changed.
    sent(&mut engine, 1);
    step(&mut engine, 0, found(&["a", "b"]), 400);
    assert_eq!(sent(&mut engine, 400)[0].0, Kind::Update);
    let told = engine.clone();
    assert!(engine.answered(&first, Ok(()), at(401)).is_empty());
    assert!(engine.answered(&first, Err("no answer".to_owned()), at(401)).is_empty());
    assert_eq!(engine, told);
    assert!(due(&engine, 10_000).is_empty(), "nothing is told twice");
}

#[test]
fn an_answer_that_is_written_after_the_end_was_told_does_not_open_the_incident_again() {
    let names = ["pagerduty".to_owned(), "slack".to_owned()];
    let rule = rule(0).notifying(names.to_vec());
    let (names, mut engine) = (BTreeSet::from(names), Engine::default());
    engine.evaluated(&[(rule.clone(), found(&["a"]))], &names, at(0));
    let first = due(&engine, 0);
    engine.evaluated(&[(rule, found(&[]))], &names, at(10));
    let last = due(&engine, 10);
    assert!(last.iter().all(|message| message.kind == Kind::Resolved), "{last:?}");
    engine.answered(&last[0], Ok(()), at(11));
    assert!(engine.answered(&first[0], Ok(()), at(12)).is_empty());
    assert_eq!(due(&engine, 12), [last[1].clone()], "only the other notifier waits for the end");
}

#[test]
fn an_incident_that_was_over_before_its_message_got_through_is_told_and_then_its_end() {
    let mut engine = Engine::default();
    step(&mut engine, 0, found(&["a"]), 0);
    let message = due(&engine, 0).remove(0);
    engine.answered(&message, Err("503".to_owned()), at(0));
    step(&mut engine, 0, found(&[]), 10);
    let kinds =
        |told: Vec<(Kind, String)>| told.into_iter().map(|(kind, _)| kind).collect::<Vec<_>>();
    assert_eq!(kinds(sent(&mut engine, 20)), [Kind::Firing]);
    assert_eq!(kinds(sent(&mut engine, 20)), [Kind::Resolved]);
    assert!(engine.is_idle());
}

#[test]
fn an_incident_is_one_message_and_its_end_another_under_the_same_key() {
    let mut engine = Engine::default();
    step(&mut engine, 0, found(&["a"]), 0);
    let first = sent(&mut engine, 0);
    for second in 1..1000 {
        step(&mut engine, 0, found(&["a"]), second);
        assert!(due(&engine, second).is_empty());
    }
    step(&mut engine, 0, found(&[]), 1000);
    let last = sent(&mut engine, 1000);
    assert_eq!(first, [(Kind::Firing, first[0].1.clone())]);
    assert_eq!(last, [(Kind::Resolved, first[0].1.clone())]);
    assert!(engine.is_idle());
    step(&mut engine, 0, found(&["a"]), 1001);
    assert_ne!(sent(&mut engine, 1001)[0].1, first[0].1, "another incident has another key");
}

#[test]
fn a_late_end_of_an_incident_is_not_taken_for_that_of_the_next_one_with_its_key() {
    let mut engine = Engine::with_lasting_keys("g");
    step(&mut engine, 0, found(&["a"]), 0);
    sent(&mut engine, 0);
    step(&mut engine, 0, found(&[]), 10);
    let end = due(&engine, 10).remove(0);
    // It is still under way when the second outage begins.
    step(&mut engine, 0, found(&["a"]), 20);
    for answer in [Err("no answer".to_owned()), Ok(())] {
        assert!(engine.answered(&end, answer, at(21)).is_empty());
    }
    assert_eq!(sent(&mut engine, 21), [(Kind::Firing, end.key.clone())]);
    step(&mut engine, 0, found(&[]), 30);
    assert_eq!(sent(&mut engine, 30), [(Kind::Resolved, end.key)]);
}

#[test]
fn alerts_of_a_rule_are_one_message_and_those_that_join_are_an_update_after_a_while() {
    let mut engine = Engine::default();
    step(&mut engine, 0, found(&["a", "b"]), 0);
    assert_eq!(due(&engine, 0)[0].alerts.len(), 2);
    sent(&mut engine, 0);
    step(&mut engine, 0, found(&["a", "b", "c"]), 15);
    assert!(due(&engine, 299).is_empty());
    assert_eq!(engine.next_due(), Some(at(300)));
    let update = sent(&mut engine, 300);
    assert_eq!(update[0].0, Kind::Update);
    step(&mut engine, 0, found(&["c"]), 900);
    assert!(due(&engine, 900).is_empty(), "the others go on, and there is nothing new");
}

#[test]
fn a_failed_evaluation_changes_nothing() {
    let mut engine = Engine::default();
    step(&mut engine, 30, found(&["a"]), 0);
    assert!(step(&mut engine, 30, None, 60).is_empty());
    assert!(due(&engine, 60).is_empty());
    step(&mut engine, 30, found(&["a"]), 61);
    sent(&mut engine, 61);
    assert!(step(&mut engine, 30, None, 75).is_empty());
    assert!(due(&engine, 75).is_empty(), "not resolved either");
}

#[test]
fn a_long_pause_of_the_evaluation_breaks_for_and_a_short_one_does_not() {
    for (pause, fires) in [(200, true), (301, false)] {
        let mut engine = Engine::default();
        step(&mut engine, 30, found(&["a"]), 0);
        step(&mut engine, 30, found(&["a"]), pause);
        assert_eq!(!due(&engine, pause).is_empty(), fires, "after {pause} s");
    }
}

#[test]
fn a_message_that_fails_is_sent_again_ever_later_and_given_up_after_a_day() {
    let mut engine = Engine::default();
    step(&mut engine, 0, found(&["a"]), 0);
    let mut now = at(0);
    let mut pauses = Vec::new();
    while let Some(next) = engine.next_due() {
        pauses.push(elapsed(now, next).as_secs());
        now = next;
        let message = engine.due(&BTreeSet::new(), now).remove(0);
        engine.answered(&message, Err("503".to_owned()), now);
    }
    assert_eq!(pauses[..11], [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 300]);
    assert_eq!(pauses.len() as u32, ATTEMPTS);
    assert!((80_000..100_000).contains(&elapsed(at(0), now).as_secs()));
    // Its end is told all the same: the first message may have arrived.
    engine.evaluated(&[(rule(0), found(&[]))], &notifiers(), later(now, GAP));
    assert_eq!(engine.due(&BTreeSet::new(), later(now, GAP))[0].kind, Kind::Resolved);
}

#[test]
fn a_rule_or_a_notifier_that_the_file_does_not_have_any_more_ends_what_it_began() {
    let mut engine = Engine::default();
    step(&mut engine, 0, found(&["a"]), 0);
    sent(&mut engine, 0);
    let mut other = engine.clone();
    engine.evaluated(&[], &notifiers(), at(15));
    assert_eq!(due(&engine, 15)[0].kind, Kind::Resolved);
    other.evaluated(&[(rule(0), found(&["a"]))], &BTreeSet::new(), at(15));
    other.evaluated(&[], &BTreeSet::new(), at(30));
    assert!(due(&other, 30).is_empty() && other.is_idle());
}

/// The tables, as the driver writes them.
#[derive(Default)]
struct Tables {
    alerts: BTreeMap<String, Alert>,
    incidents: BTreeMap<String, Incident>,
}

impl Tables {
    fn write(&mut self, change: Change) {
        self.alerts.extend(change.alerts);
        for name in change.gone {
            self.alerts.remove(&name);
        }
        for incident in change.incidents {
            self.incidents.insert(incident.key.clone(), incident);
        }
    }

    fn restore(&self, evaluated: i64) -> Engine {
        let alerts = self.alerts.values().cloned().collect();
        let incidents = self.incidents.values().filter(|one| !one.is_over()).cloned().collect();
        Engine::restore("g", alerts, incidents, Some(at(evaluated)))
    }
}

#[derive(Debug, Clone)]
enum Happening {
    /// An evaluation that finds these.
    Found(Vec<u8>),
    /// What is due is sent; whether the answers came.
    Sent(bool),
    /// What is due is sent, and the leader dies before it wrote the answers down.
    DiesAfterSending,
    /// The leader dies.
    Dies,
    /// Time passes.
    Later(u16),
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        4 => proptest::collection::vec(0_u8..3, 0..3).prop_map(Happening::Found),
        3 => proptest::bool::weighted(0.7).prop_map(Happening::Sent),
        1 => Just(Happening::DiesAfterSending),
        1 => Just(Happening::Dies),
        2 => (1_u16..200).prop_map(Happening::Later),
    ]
}

proptest! {
    /// Whatever happens: a notifier hears of an incident first that it fires (unless that message never
    /// got through) and last that it is over; a second `firing` only if an answer was lost; and in the end
    /// every incident is told to be over.
    #[test]
    fn successors_continue_and_no_message_is_lost_or_sent_without_need(
        happenings in proptest::collection::vec(happening(), 1..60),
    ) {
        let mut tables = Tables::default();
        let mut engine = tables.restore(0);
        let mut second = 0;
        let mut evaluated = 0;
        // By key: what was sent, and how many of the answers were lost.
        let mut log: BTreeMap<String, (Vec<Kind>, usize)> = BTreeMap::new();
        let end = [
            Happening::Found(vec![]), Happening::Later(400), Happening::Sent(true),
            Happening::Later(400), Happening::Sent(true),
        ];
        for happening in happenings.into_iter().chain(end) {
            second += 1;
            match happening {
                Happening::Later(seconds) => second += i64::from(seconds),
                Happening::Found(roles) => {
                    let roles: BTreeSet<String> = roles.iter().map(|n| format!("r{n}")).collect();
                    let roles: Vec<&str> = roles.iter().map(String::as_str).collect();
                    let change = step(&mut engine, 20, found(&roles), second);
                    evaluated = second;
                    tables.write(change);
                }
                Happening::Sent(acknowledged) => {
                    for message in due(&engine, second) {
                        let entry = log.entry(message.key.clone()).or_default();
                        entry.0.push(message.kind);
                        entry.1 += usize::from(!acknowledged);
                        let answer = if acknowledged { Ok(()) } else { Err("no answer".to_owned()) };
                        tables.write(engine.answered(&message, answer, at(second)));
                    }
                }
                Happening::DiesAfterSending => {
                    for message in due(&engine, second) {
                        let entry = log.entry(message.key).or_default();
                        entry.0.push(message.kind);
                        entry.1 += 1;
                    }
                    engine = tables.restore(evaluated);
                }
                Happening::Dies => engine = tables.restore(evaluated),
            }
            // What a successor would load is what this leader has.
            let successor = tables.restore(evaluated);
            prop_assert_eq!(
                successor.incidents.keys().collect::<Vec<_>>(),
                engine.incidents.keys().collect::<Vec<_>>()
            );
        }
        prop_assert!(engine.incidents.is_empty(), "{:?}", engine.incidents);
        for (key, (kinds, lost)) in log {
            prop_assert_eq!(kinds.last(), Some(&Kind::Resolved), "{}", key);
            let count = |kind| kinds.iter().filter(|one| **one == kind).count();
            prop_assert!(count(Kind::Firing) + count(Kind::Resolved) <= 2 + lost, "{}: {:?}", key, kinds);
            let mut sorted = kinds.clone();
            sorted.sort();
            prop_assert_eq!(sorted, kinds, "{} in the wrong order", key);
        }
    }
}
