//! From results to alerts, incidents and messages: a pure function of state, input and now.
//!
//! ```text
//!   an element of a rule's result:   (none) ──► pending ──`for` is over──► firing ──► (none)
//!   the rule's incident:             opens with its first firing alert, is over when none fires any more
//!   what a notifier was told:        nothing ──► firing (updates under the same key) ──► resolved
//! ```
//!
//! # What it guarantees
//!
//! - One message opens an incident at each notifier, and one resolves it, under one key. Alerts that join an
//!   open incident come as an update under the same key, at most one every five minutes.
//! - A message is due only because of what was returned as a [`Change`] before: a driver that writes the
//!   change down first, and sends afterwards, loses no message when it dies. A message whose answer was not
//!   written down is due again, with the same key.
//! - `resolved` never overtakes `firing`: for each incident and notifier one message is under way at a time.
//! - A rule whose evaluation failed changes nothing.
//!
//! Time is the database's, so that a successor continues `for` where its predecessor stood. If no leader
//! evaluated for longer than [`GAP`], what was pending begins anew: its condition was not seen to hold.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use tenure::ExponentialBackoff;

use super::evaluate::Element;
use super::rule::{Rule, Severity};
use super::sample::{Labels, NAME, written};

/// After a longer pause between two evaluations what was pending begins anew.
pub const GAP: Duration = Duration::from_secs(300);
/// The least time between two messages about one incident to one notifier, if the second is an update.
pub const REGROUP: Duration = Duration::from_secs(300);
/// The pauses before a message is sent again.
const BACKOFF: ExponentialBackoff =
    ExponentialBackoff::new(Duration::from_secs(1), Duration::from_secs(300));
/// After so many attempts, about a day, a message is given up.
pub const ATTEMPTS: u32 = 300;
/// More alerts of one rule are not told apart.
pub const MOST: usize = 1000;

/// One element of a rule's result, as long as it is there.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Alert {
    /// The name of the rule that found it.
    pub rule: String,
    /// Its labels, without a series' name.
    pub labels: Labels,
    /// Its latest value.
    pub value: f64,
    /// Since when the condition holds.
    pub since: Timestamp,
    /// Since when it fires; `None`: it is pending.
    pub fired: Option<Timestamp>,
}

/// From the first alert of a rule that fires to the last one that does not any more.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Incident {
    /// The deduplication key.
    pub key: String,
    /// The name of the rule whose alerts fire.
    pub rule: String,
    /// The rule's severity when it opened.
    pub severity: Severity,
    /// The rule's own words.
    pub summary: Option<String>,
    /// When it opened.
    pub opened: Timestamp,
    /// When it was over; `None` while it is open.
    pub resolved: Option<Timestamp>,
    /// The alerts that fire, or did when it was over.
    pub alerts: Vec<Alert>,
    /// What each notifier was told, by its name.
    pub deliveries: BTreeMap<String, Delivery>,
}

/// What a notifier has acknowledged of an incident.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Delivery {
    /// What it was told last.
    pub told: Told,
    /// When it acknowledged that.
    pub told_at: Option<Timestamp>,
    /// The message that is tried now, if it failed before.
    pub trial: Option<Trial>,
}

/// What a notifier was told. A closed set: what it is told next follows from it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Told {
    /// Nothing that it acknowledged.
    #[default]
    Nothing,
    /// That these alerts fire, by [`fingerprint`].
    Firing(BTreeSet<String>),
    /// That it is over.
    Resolved,
}

/// A message that was not acknowledged yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trial {
    /// What the message says.
    pub kind: Kind,
    /// How many attempts have failed.
    pub failed: u32,
    /// Not to be sent again before.
    pub next: Timestamp,
    /// What the notifier said, without secrets.
    pub why: String,
}

impl Trial {
    /// Whether a message that something fires is sent again.
    fn goes_on(&self) -> bool {
        self.kind == Kind::Firing && self.failed < ATTEMPTS
    }
}

/// What a message says. A closed set: every notifier has words for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// An incident opened.
    Firing,
    /// More of the rule's alerts fire.
    Update,
    /// It is over.
    Resolved,
}

/// A message for one notifier.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Message {
    /// The notifier's name.
    #[serde(skip)]
    pub notifier: String,
    /// What it says.
    #[serde(rename = "status")]
    pub kind: Kind,
    /// The deduplication key.
    pub key: String,
    /// The name of the incident's rule.
    pub rule: String,
    /// The rule's severity when the incident opened.
    pub severity: Severity,
    /// The rule's own words.
    pub summary: Option<String>,
    /// When the incident opened.
    pub opened: Timestamp,
    /// When it was over.
    pub resolved: Option<Timestamp>,
    /// The alerts that fire, or did.
    pub alerts: Vec<Alert>,
}

/// What must be written down before anything is sent.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Change {
    /// Alerts as they are now, by fingerprint.
    pub alerts: BTreeMap<String, Alert>,
    /// Alerts that are not there any more.
    pub gone: Vec<String>,
    /// Incidents as they are now.
    pub incidents: Vec<Incident>,
}

impl Change {
    /// Whether nothing changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.alerts.is_empty() && self.gone.is_empty() && self.incidents.is_empty()
    }
}

/// What one rule's evaluation found; none: it failed, and nothing is known.
pub type Outcome = Option<Vec<Element>>;

/// The state of all alerts.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Engine {
    group: String,
    /// A key without an instant: every agent makes the same.
    lasting_keys: bool,
    alerts: BTreeMap<String, Alert>,
    /// Those that are open, or of which a notifier must still be told.
    incidents: BTreeMap<String, Incident>,
    evaluated: Option<Timestamp>,
}

/// The name of an alert: its rule and its labels.
#[must_use]
pub fn fingerprint(rule: &str, labels: &Labels) -> String {
    format!("{rule}{}", written(labels))
}

impl Engine {
    /// As the tables have it. `group` tells this group's keys from another's.
    #[must_use]
    pub fn restore(
        group: &str,
        alerts: Vec<Alert>,
        incidents: Vec<Incident>,
        evaluated: Option<Timestamp>,
    ) -> Self {
        let name = |alert: Alert| (fingerprint(&alert.rule, &alert.labels), alert);
        Engine {
            group: group.to_owned(),
            lasting_keys: false,
            alerts: alerts.into_iter().map(name).collect(),
            incidents: incidents.into_iter().map(|one| (one.key.clone(), one)).collect(),
            evaluated,
        }
    }

    /// For what every agent tells by itself: a rule's incidents all have one key.
    #[must_use]
    pub fn with_lasting_keys(group: &str) -> Self {
        Engine { group: group.to_owned(), lasting_keys: true, ..Engine::default() }
    }

    /// Whether there is no alert and no incident: neither a `for` nor a message depends on the next evaluation.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.alerts.is_empty() && self.incidents.is_empty()
    }

    /// Takes over what every rule's evaluation found at `now`; `notifiers` are those that can be reached.
    pub fn evaluated(
        &mut self,
        rules: &[(Rule, Outcome)],
        notifiers: &BTreeSet<String>,
        now: Timestamp,
    ) -> Change {
        let mut change = Change::default();
        let broken = self.evaluated.is_some_and(|last| elapsed(last, now) > GAP);
        self.evaluated = Some(now);
        let mut there = BTreeSet::new();
        for (rule, outcome) in rules {
            match outcome {
                None => there.extend(self.of(rule.name()).map(|(name, _)| name.clone())),
                Some(found) => {
                    for element in found.iter().take(MOST) {
                        let name = self.seen(rule, element, broken, now, &mut change);
                        there.insert(name);
                    }
                }
            }
        }
        let gone: Vec<String> =
            self.alerts.keys().filter(|name| !there.contains(*name)).cloned().collect();
        for name in &gone {
            self.alerts.remove(name);
        }
        change.gone = gone;
        let known = rules.iter().map(|(rule, _)| rule);
        self.open(known, now, &mut change);
        self.close(notifiers, now, &mut change);
        change
    }

    /// The messages that are due, except those of incidents and notifiers that are `under_way`.
    #[must_use]
    pub fn due(&self, under_way: &BTreeSet<(String, String)>, now: Timestamp) -> Vec<Message> {
        let mut due = Vec::new();
        for incident in self.incidents.values() {
            for (notifier, delivery) in &incident.deliveries {
                let busy = under_way.contains(&(incident.key.clone(), notifier.clone()));
                let Some((kind, at)) = incident.owed(delivery) else { continue };
                if !busy && at <= now {
                    due.push(incident.message(notifier, kind));
                }
            }
        }
        due
    }

    /// When the next message is due, if one will be.
    #[must_use]
    pub fn next_due(&self) -> Option<Timestamp> {
        let deliveries = self.incidents.values().flat_map(|incident| {
            incident.deliveries.values().filter_map(|delivery| incident.owed(delivery))
        });
        deliveries.map(|(_, at)| at).min()
    }

    /// Takes over how a message ended: acknowledged, or why not. An answer may be written in a later term than its
    /// message: one that knows less than the notifier was told since then changes nothing.
    pub fn answered(
        &mut self,
        message: &Message,
        answer: Result<(), String>,
        now: Timestamp,
    ) -> Change {
        let Some(incident) = self.incidents.get_mut(&message.key) else { return Change::default() };
        // With lasting keys an incident has the key of the one before it, whose last message may still be under way. A
        // table has microseconds.
        if message.opened.as_microsecond() < incident.opened.as_microsecond() {
            return Change::default();
        }
        let Some(delivery) = incident.deliveries.get_mut(&message.notifier) else {
            return Change::default();
        };
        if message.is_behind(&delivery.told) {
            return Change::default();
        }
        match answer {
            Ok(()) => {
                delivery.trial = None;
                delivery.told_at = Some(now);
                delivery.told = match message.kind {
                    Kind::Resolved => Told::Resolved,
                    Kind::Firing | Kind::Update => Told::Firing(message.told()),
                };
            }
            Err(why) => {
                let before = delivery.trial.take().filter(|trial| trial.kind == message.kind);
                let failed = before.map_or(0, |trial| trial.failed) + 1;
                let next = later(now, BACKOFF.bare(failed));
                delivery.trial = Some(Trial { kind: message.kind, failed, next, why });
            }
        }
        let incident = incident.clone();
        if incident.is_over() {
            self.incidents.remove(&incident.key);
        }
        Change { incidents: vec![incident], ..Change::default() }
    }

    fn of<'a>(&'a self, rule: &'a str) -> impl Iterator<Item = (&'a String, &'a Alert)> {
        self.alerts.iter().filter(move |(_, alert)| alert.rule == rule)
    }

    /// An element is there: pending, or firing once `for` is over. Returns its fingerprint.
    fn seen(
        &mut self,
        rule: &Rule,
        element: &Element,
        broken: bool,
        now: Timestamp,
        change: &mut Change,
    ) -> String {
        let mut labels = element.labels.clone();
        labels.remove(NAME);
        let name = fingerprint(rule.name(), &labels);
        let before = self.alerts.get(&name).cloned();
        let mut alert = before.clone().unwrap_or_else(|| Alert {
            rule: rule.name().to_owned(),
            labels,
            value: storable(element.value),
            since: now,
            fired: None,
        });
        alert.value = storable(element.value);
        if alert.fired.is_none() {
            // A clock that was set back must not make `for` longer than it says.
            alert.since = if broken { now } else { alert.since.min(now) };
            if elapsed(alert.since, now) >= rule.hold() {
                alert.fired = Some(now);
            }
        }
        // A value that moves is no reason to write.
        let same = before.is_some_and(|old| old.fired == alert.fired && old.since == alert.since);
        if !same {
            change.alerts.insert(name.clone(), alert.clone());
        }
        self.alerts.insert(name.clone(), alert);
        name
    }

    /// Opens incidents of rules that fire, and brings those that are open up to date.
    fn open<'a>(
        &mut self,
        rules: impl Iterator<Item = &'a Rule>,
        now: Timestamp,
        change: &mut Change,
    ) {
        for rule in rules {
            let firing: Vec<Alert> = self
                .of(rule.name())
                .filter(|(_, alert)| alert.fired.is_some())
                .map(|(_, alert)| alert.clone())
                .collect();
            if firing.is_empty() {
                continue;
            }
            let open = self
                .incidents
                .values_mut()
                .find(|incident| incident.rule == rule.name() && incident.resolved.is_none());
            if let Some(incident) = open {
                let names = |alerts: &[Alert]| -> BTreeSet<String> {
                    alerts.iter().map(|one| fingerprint(&one.rule, &one.labels)).collect()
                };
                if names(&incident.alerts) != names(&firing) {
                    incident.alerts = firing;
                    change.incidents.push(incident.clone());
                }
                continue;
            }
            let mut key = format!("tenure-{}-{}", self.group, rule.name());
            if !self.lasting_keys {
                key += &format!("-{}", now.as_microsecond());
            }
            let nothing = |notifier: &String| (notifier.clone(), Delivery::default());
            let incident = Incident {
                key: key.clone(),
                rule: rule.name().to_owned(),
                severity: rule.severity(),
                summary: rule.summary().map(str::to_owned),
                opened: now,
                resolved: None,
                alerts: firing,
                deliveries: rule.notify().iter().map(nothing).collect(),
            };
            change.incidents.push(incident.clone());
            self.incidents.insert(key, incident);
        }
    }

    /// Resolves incidents without a firing alert; a notifier that the file does not have any more is left out.
    fn close(&mut self, notifiers: &BTreeSet<String>, now: Timestamp, change: &mut Change) {
        for incident in self.incidents.values_mut() {
            let before = incident.clone();
            incident.deliveries.retain(|notifier, _| notifiers.contains(notifier));
            let fires = self
                .alerts
                .values()
                .any(|alert| alert.rule == incident.rule && alert.fired.is_some());
            if incident.resolved.is_none() && !fires {
                incident.resolved = Some(now);
            }
            if *incident != before {
                change.incidents.retain(|other| other.key != incident.key);
                change.incidents.push(incident.clone());
            }
        }
        self.incidents.retain(|_, incident| !incident.is_over());
    }
}

impl Incident {
    /// What a notifier must be told next, and from when on.
    fn owed(&self, delivery: &Delivery) -> Option<(Kind, Timestamp)> {
        let (kind, at) = match (&delivery.told, self.resolved) {
            (Told::Resolved, _) => return None,
            // What was tried and not acknowledged is owed although it is over: else nobody hears of it.
            (Told::Nothing, Some(_)) if delivery.trial.as_ref().is_some_and(Trial::goes_on) => {
                (Kind::Firing, self.opened)
            }
            // Also if nothing was acknowledged: the message may have arrived all the same.
            (Told::Nothing | Told::Firing(_), Some(at)) => (Kind::Resolved, at),
            (Told::Nothing, None) => (Kind::Firing, self.opened),
            (Told::Firing(names), None) => {
                let new = |alert: &Alert| !names.contains(&fingerprint(&alert.rule, &alert.labels));
                if !self.alerts.iter().any(new) {
                    return None;
                }
                (Kind::Update, later(delivery.told_at.unwrap_or(self.opened), REGROUP))
            }
        };
        match &delivery.trial {
            Some(trial) if trial.kind == kind && trial.failed >= ATTEMPTS => None,
            Some(trial) if trial.kind == kind => Some((kind, at.max(trial.next))),
            Some(_) | None => Some((kind, at)),
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.resolved.is_some()
            && self.deliveries.values().all(|delivery| self.owed(delivery).is_none())
    }

    fn message(&self, notifier: &str, kind: Kind) -> Message {
        Message {
            notifier: notifier.to_owned(),
            kind,
            key: self.key.clone(),
            rule: self.rule.clone(),
            severity: self.severity,
            summary: self.summary.clone(),
            opened: self.opened,
            resolved: self.resolved,
            alerts: self.alerts.clone(),
        }
    }
}

impl Message {
    /// Whether a notifier that was `told` this has been told all that the message says.
    fn is_behind(&self, told: &Told) -> bool {
        match told {
            Told::Nothing => false,
            Told::Firing(names) => self.kind != Kind::Resolved && self.told().is_subset(names),
            Told::Resolved => true,
        }
    }

    fn told(&self) -> BTreeSet<String> {
        self.alerts.iter().map(|alert| fingerprint(&alert.rule, &alert.labels)).collect()
    }
}

/// JSON has no infinities, and no value that is not a number.
fn storable(value: f64) -> f64 {
    if value.is_nan() { 0.0 } else { value.clamp(f64::MIN, f64::MAX) }
}

/// Zero if the clock was set back.
fn elapsed(from: Timestamp, to: Timestamp) -> Duration {
    Duration::try_from(to.duration_since(from)).unwrap_or_default()
}

fn later(at: Timestamp, pause: Duration) -> Timestamp {
    let pause = SignedDuration::try_from(pause).unwrap_or(SignedDuration::MAX);
    at.saturating_add(pause).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests;
