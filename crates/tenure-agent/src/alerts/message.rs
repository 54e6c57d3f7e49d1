//! Messages as each kind of notifier reads them.

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::engine::{Alert, Kind, Message};

/// So many alerts are told one by one.
const LISTED: usize = 20;
/// PagerDuty cuts a longer one.
const SUMMARY: usize = 1000;

pub(crate) fn status(kind: Kind) -> &'static str {
    match kind {
        Kind::Firing => "firing",
        Kind::Update => "update",
        Kind::Resolved => "resolved",
    }
}

/// Text from outside, on one line and not too long.
pub(crate) fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(SUMMARY).collect()
}

/// The same for the same message, however often it is sent, and another one for every other message: a lasting key is
/// that of several incidents, and an incident may have several updates.
pub(crate) fn idempotency_key(message: &Message) -> String {
    let key: String =
        message.key.chars().map(|c| if c.is_ascii_graphic() { c } else { '_' }).collect();
    let opened = message.opened.as_millisecond();
    match message.kind {
        Kind::Update => {
            let mut digest = Sha256::new();
            for alert in &message.alerts {
                digest.update(format!("{}\n{}\n", alert.since.as_millisecond(), told(alert)));
            }
            format!("{key}/{opened}/update/{}", hex::encode(&digest.finalize()[..8]))
        }
        Kind::Firing | Kind::Resolved => format!("{key}/{opened}/{}", status(message.kind)),
    }
}

fn told(alert: &Alert) -> String {
    let labels: Vec<String> =
        alert.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let labels = if labels.is_empty() { "(no labels)".to_owned() } else { labels.join(" ") };
    one_line(&labels)
}

/// What a person reads first.
pub(crate) fn headline(message: &Message, group: &str) -> String {
    let what = message.summary.as_deref().unwrap_or("its condition holds");
    let first = message.alerts.first().map(told).unwrap_or_default();
    let more = match message.alerts.len() {
        0 | 1 => String::new(),
        count => format!(" and {} more", count - 1),
    };
    one_line(&format!("{} ({group}): {what}: {first}{more}", message.rule))
}

pub(crate) fn webhook(message: &Message, group: &str) -> Value {
    let alerts: Vec<Value> = message
        .alerts
        .iter()
        .map(|alert| {
            json!({"labels": alert.labels, "value": alert.value, "since": alert.since, "fired": alert.fired})
        })
        .collect();
    json!({
        "key": message.key,
        "status": status(message.kind),
        "rule": message.rule,
        "severity": message.severity.as_str(),
        "group": group,
        "summary": headline(message, group),
        "opened": message.opened,
        "resolved": message.resolved,
        "alerts": alerts,
    })
}

pub(crate) fn pagerduty(message: &Message, group: &str, key: &str) -> Value {
    let action = match message.kind {
        // An event with the key of an open incident is added to it, and pages no second time.
        Kind::Firing | Kind::Update => "trigger",
        Kind::Resolved => "resolve",
    };
    let alerts: Vec<String> = message.alerts.iter().take(LISTED).map(told).collect();
    json!({
        "routing_key": key,
        "event_action": action,
        "dedup_key": message.key,
        "client": "Tenure",
        "payload": {
            "summary": headline(message, group),
            "source": group,
            "severity": message.severity.as_str(),
            "timestamp": message.opened,
            "component": message.rule,
            "custom_details": {"alerts": alerts, "firing": message.alerts.len()},
        },
    })
}

pub(crate) fn slack(message: &Message, group: &str, channel: &str) -> Value {
    // Slack's own marks must not come from a label.
    let plain = |text: &str| text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let word = status(message.kind).to_uppercase();
    let mut text = format!("*{word}* {} [{}]", plain(&headline(message, group)), message.severity);
    for alert in message.alerts.iter().take(LISTED) {
        text += &format!("\n• {} since {:.0}", plain(&told(alert)), alert.since);
    }
    if message.alerts.len() > LISTED {
        text += &format!("\nand {} more", message.alerts.len() - LISTED);
    }
    json!({
        "channel": channel,
        "text": text,
        "metadata": {"event_type": "tenure_alert", "event_payload": {"key": message.key}},
    })
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::alerts::rule::Severity;
    use crate::alerts::sample::Labels;

    fn message(kind: Kind, opened: i64, roles: &[&str]) -> Message {
        let at = |second| Timestamp::from_second(second).expect("an instant");
        let alert = |role: &&str| Alert {
            rule: "no_leader".to_owned(),
            labels: Labels::from([("role".to_owned(), (*role).to_owned())]),
            value: 0.0,
            since: at(opened),
            fired: Some(at(opened)),
        };
        Message {
            notifier: "webhook".to_owned(),
            kind,
            key: "group/database_unreachable".to_owned(),
            rule: "database_unreachable".to_owned(),
            severity: Severity::Critical,
            summary: None,
            opened: at(opened),
            resolved: None,
            alerts: roles.iter().map(alert).collect(),
        }
    }

    #[test]
    fn every_message_has_a_key_of_its_own_and_keeps_it() {
        let messages = [
            message(Kind::Firing, 100, &["a"]),
            message(Kind::Update, 100, &["a", "b"]),
            message(Kind::Update, 100, &["a", "c"]),
            message(Kind::Resolved, 100, &["a"]),
            // The next outage, under the same lasting key.
            message(Kind::Firing, 900, &["a"]),
            message(Kind::Resolved, 900, &["a"]),
        ];
        let keys: Vec<String> = messages.iter().map(idempotency_key).collect();
        let distinct: std::collections::BTreeSet<&String> = keys.iter().collect();
        assert_eq!(distinct.len(), keys.len(), "{keys:?}");
        assert_eq!(keys, messages.each_ref().map(idempotency_key), "the same when sent again");
        assert!(keys.iter().all(|key| key.starts_with("group/database_unreachable/")), "{keys:?}");
    }
}
