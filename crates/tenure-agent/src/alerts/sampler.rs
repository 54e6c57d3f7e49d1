//! From the database's answer to samples, with as much of the past as the rules look back.
//!
//! Counters of terms are rebuilt at every evaluation: their value at an instant is what is counted now, less
//! what happened since. So a successor sees the same range as its predecessor, and terms that retention
//! deletes are no reset of a counter. What only samples know is kept from one sample to the next.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::Deserialize;

use super::rule::Rule;
use super::sample::{Labels, NAME, Point, Samples, Series, labels};
use super::series::{KNOWN, Past, known};

/// A range has at most so many points.
const POINTS: i64 = 240;

/// What `tenure_agent.alerts_sample` answers; instants in microseconds since 1970.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct Answer {
    pub(crate) now: i64,
    roles: Vec<RoleRow>,
    members: Vec<MemberRow>,
    /// Role, member; claimed, acquired, released, lost, failovers.
    totals: Vec<(String, String, u64, u64, u64, u64, u64)>,
    terms: Vec<TermRow>,
    /// Role, member, instant.
    late: Vec<(String, String, i64)>,
    schedules: Vec<ScheduleRow>,
    /// Role, age of the oldest open one.
    transactions: Vec<(String, i64)>,
}

#[derive(Debug, Clone, Default, Deserialize)]
struct RoleRow {
    role: String,
    epoch: i64,
    holder: Option<String>,
    last: Option<String>,
    paused: bool,
    candidates: Vec<String>,
    leads: Option<bool>,
    silent: Option<bool>,
    acting: Option<i64>,
    violations: u64,
}

#[derive(Debug, Clone, Deserialize)]
struct MemberRow {
    member: String,
    connected: bool,
    age_ms: i64,
}

#[derive(Debug, Clone, Default, Deserialize)]
struct TermRow {
    role: String,
    member: String,
    claimed: i64,
    acting: Option<i64>,
    ended: Option<i64>,
    how: Option<String>,
    took_over: bool,
}

#[derive(Debug, Clone, Deserialize)]
struct ScheduleRow {
    schedule: String,
    role: String,
    late_ms: Option<i64>,
    dead: u64,
}

impl RoleRow {
    fn leads(&self) -> bool {
        self.leads == Some(true)
    }

    /// The members that have this role's series: its candidates, and the holder while it acts. A role
    /// without any has one series all the same: otherwise no rule would see that it is not led.
    fn instances(&self) -> BTreeSet<&str> {
        let mut found: BTreeSet<&str> = self.candidates.iter().map(String::as_str).collect();
        found.extend(self.holder.as_deref().filter(|_| self.leads()));
        if found.is_empty() {
            let last = self.holder.as_deref().or(self.last.as_deref());
            found.insert(last.unwrap_or_default());
        }
        found
    }
}

impl TermRow {
    /// When it counted for a counter, if it did.
    fn counted(&self, counter: &str) -> Option<i64> {
        let how = self.how.as_deref();
        match counter {
            "tenure_acquire_attempts_total" => Some(self.claimed),
            "tenure_acquired_total" => self.acting,
            "tenure_released_total" => self.ended.filter(|_| how == Some("released")),
            "tenure_lost_total" => self
                .ended
                .filter(|_| matches!(how, Some("replaced" | "forced")) && self.acting.is_some()),
            "tenure_failovers_total" => Some(self.claimed).filter(|_| self.took_over),
            _ => None,
        }
    }

    /// Since when it acted at an instant, if it did.
    fn acted(&self, at: i64) -> Option<i64> {
        self.acting.filter(|acting| *acting <= at && self.ended.is_none_or(|ended| ended > at))
    }
}

/// Keeps what only samples know.
#[derive(Debug, Clone)]
pub(crate) struct Sampler {
    interval: i64,
    back: i64,
    ranged: BTreeSet<&'static str>,
    kept: BTreeMap<Labels, Vec<Point>>,
    /// The first sample of this sampler.
    began: Option<i64>,
}

impl Sampler {
    pub(crate) fn new<'a>(rules: impl Iterator<Item = &'a Rule>, interval: Duration) -> Self {
        let mut back = Duration::ZERO;
        let mut ranged = BTreeSet::new();
        for rule in rules {
            back = back.max(rule.condition().longest_range());
            ranged.extend(rule.condition().ranged());
        }
        let millis = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
        let (interval, back) = (millis(interval).max(1), millis(back));
        Sampler { interval, back, ranged, kept: BTreeMap::new(), began: None }
    }

    /// How far back the database is asked for terms, in milliseconds.
    pub(crate) fn back(&self) -> i64 {
        self.back + self.interval
    }

    /// Takes over an answer; the samples, and their instant in milliseconds since 1970.
    pub(crate) fn take(&mut self, answer: &Answer) -> (Samples, i64) {
        let now = answer.now / 1000;
        let began = *self.began.get_or_insert(now);
        let mut samples = Samples::default();
        let terms = by_member(answer);
        self.counters(answer, &terms, now, &mut samples);
        let present = present(answer);
        for (labels, value) in &present {
            let kept = self.kept.entry(labels.clone()).or_default();
            kept.push(Point { at: now, value: Some(*value) });
        }
        for (labels, points) in &mut self.kept {
            let gone = points.last().is_some_and(|point| point.value.is_some());
            if gone && !present.contains_key(labels) {
                points.push(Point { at: now, value: None });
            }
            let ranged = labels.get(NAME).is_some_and(|name| self.ranged.contains(name.as_str()));
            let oldest = if ranged { now - self.back - self.interval } else { now };
            points.retain(|point| point.at >= oldest);
        }
        self.kept.retain(|_, points| points.iter().any(|point| point.value.is_some()));
        let before = self.ticks(now, began);
        for (labels, points) in &self.kept {
            let ranged = labels.get(NAME).is_some_and(|name| self.ranged.contains(name.as_str()));
            let mut whole = if ranged { rebuilt(&terms, labels, &before) } else { Vec::new() };
            whole.extend(points);
            samples.add(Series { labels: labels.clone(), points: whole });
        }
        (samples, now)
    }

    /// The instants of a range that lie before `until`, oldest first.
    fn ticks(&self, now: i64, until: i64) -> Vec<i64> {
        let step = self.interval.max(self.back / POINTS);
        let count = (self.back + step - 1) / step;
        (1..=count).rev().map(|n| now - n * step).filter(|at| *at < until).collect()
    }

    fn counters(&self, answer: &Answer, terms: &Terms<'_>, now: i64, samples: &mut Samples) {
        let mut totals: BTreeMap<(&str, &str), [u64; 5]> = BTreeMap::new();
        for row in &answer.roles {
            for member in row.instances() {
                totals.insert((&row.role, member), [0; 5]);
            }
        }
        for (role, member, claimed, acquired, released, lost, failovers) in &answer.totals {
            let counts = [*claimed, *acquired, *released, *lost, *failovers];
            totals.insert((role, member), counts);
        }
        let names = [
            "tenure_acquire_attempts_total",
            "tenure_acquired_total",
            "tenure_released_total",
            "tenure_lost_total",
            "tenure_failovers_total",
        ];
        let mut late: BTreeMap<(&str, &str), Vec<i64>> = BTreeMap::new();
        for (role, member, at) in &answer.late {
            late.entry((role, member)).or_default().push(*at);
        }
        for ((role, member), counts) in &totals {
            let terms = terms.get(&(*role, *member)).map_or(&[][..], Vec::as_slice);
            for (name, total) in names.iter().zip(counts) {
                let instants = terms.iter().filter_map(|term| term.counted(name)).collect();
                samples.add(self.counter(name, role, member, *total, instants, now));
            }
            let instants = late.remove(&(*role, *member)).unwrap_or_default();
            let total = instants.len() as u64;
            samples.add(self.counter("tenure_late_total", role, member, total, instants, now));
        }
    }

    /// A counter at every instant of its range: its total, less what happened later.
    fn counter(
        &self,
        name: &str,
        role: &str,
        member: &str,
        total: u64,
        mut instants: Vec<i64>,
        now: i64,
    ) -> Series {
        instants.sort_unstable();
        let ticks = if self.ranged.contains(name) { self.ticks(now, now) } else { Vec::new() };
        let point = |at: i64| {
            let until = instants.partition_point(|instant| *instant <= at * 1000);
            let later = (instants.len() - until) as u64;
            Point { at, value: Some(total.saturating_sub(later) as f64) }
        };
        let mut points: Vec<Point> = ticks.into_iter().map(point).collect();
        points.push(Point { at: now, value: Some(total as f64) });
        Series { labels: labels(name, [("role", role), ("instance", member)]), points }
    }
}

/// The terms of each role and member: a history may be long, and every series asks for its own.
type Terms<'a> = BTreeMap<(&'a str, &'a str), Vec<&'a TermRow>>;

fn by_member(answer: &Answer) -> Terms<'_> {
    let mut terms = Terms::new();
    for term in &answer.terms {
        terms.entry((&term.role, &term.member)).or_default().push(term);
    }
    terms
}

/// What a series that follows from the terms was before the first sample.
fn rebuilt(terms: &Terms<'_>, labels: &Labels, ticks: &[i64]) -> Vec<Point> {
    let name = labels.get(NAME).map_or("", String::as_str);
    let follows = known(name).is_some_and(|series| series.past == Past::Terms);
    let (Some(role), Some(member)) = (labels.get("role"), labels.get("instance")) else {
        return Vec::new();
    };
    if !follows {
        return Vec::new();
    }
    let ours = terms.get(&(role.as_str(), member.as_str())).map_or(&[][..], Vec::as_slice);
    let value = |at: i64| {
        let since = ours.iter().find_map(|term| term.acted(at * 1000));
        match (name, since) {
            (_, None) => 0.0,
            ("tenure_tenure_seconds", Some(since)) => (at * 1000 - since) as f64 / 1e6,
            (_, Some(_)) => 1.0,
        }
    };
    ticks.iter().map(|at| Point { at: *at, value: Some(value(*at)) }).collect()
}

/// What is so now, but for the counters.
fn present(answer: &Answer) -> BTreeMap<Labels, f64> {
    let mut found = BTreeMap::new();
    let truth = |yes: bool| if yes { 1.0 } else { 0.0 };
    for row in &answer.roles {
        let role = row.role.as_str();
        for member in row.instances() {
            let leads = row.leads() && row.holder.as_deref() == Some(member);
            let mut add = |name: &str, value: f64| {
                found.insert(labels(name, [("role", role), ("instance", member)]), value);
            };
            add("tenure_is_leader", truth(leads));
            add("tenure_leader_stale", truth(row.silent == Some(true)));
            let since = row.acting.filter(|_| leads);
            add("tenure_tenure_seconds", since.map_or(0.0, |at| (answer.now - at) as f64 / 1e6));
            if leads {
                add("tenure_epoch", row.epoch as f64);
            }
        }
        found.insert(labels("tenure_role_paused", [("role", role)]), truth(row.paused));
        let violations = labels("tenure_audit_violations", [("role", role)]);
        found.insert(violations, row.violations as f64);
    }
    for row in &answer.members {
        let of = |name: &str| labels(name, [("instance", row.member.as_str())]);
        found.insert(of("tenure_connected"), truth(row.connected));
        found.insert(of("tenure_heartbeat_age_seconds"), row.age_ms as f64 / 1000.0);
    }
    for row in &answer.schedules {
        let pairs = [("schedule", row.schedule.as_str()), ("role", row.role.as_str())];
        let late = row.late_ms.unwrap_or(0) as f64 / 1000.0;
        found.insert(labels("tenure_schedule_late_seconds", pairs), late);
        found.insert(labels("tenure_schedule_dead_letters", pairs), row.dead as f64);
    }
    for (role, age_ms) in &answer.transactions {
        let labels = labels("tenure_tx_oldest_open_seconds", [("role", role.as_str())]);
        found.insert(labels, *age_ms as f64 / 1000.0);
    }
    found
}

/// Whether only the leader of `tenure:alerts` can tell a series to Prometheus: no member has it of itself.
pub(crate) fn is_of_group(labels: &Labels) -> bool {
    let name = labels.get(NAME).map_or("", String::as_str);
    KNOWN.iter().any(|known| known.name == name && !known.labels.contains(&"instance"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alerts::condition::Condition;

    const NOW: i64 = 1_800_000_000_000_000;
    const SECOND: i64 = 1_000_000;

    fn sampler(condition: &str) -> (Sampler, Condition) {
        let condition = Condition::parse(condition).expect("valid");
        let rule = Rule::new("r", condition.clone());
        (Sampler::new([&rule].into_iter(), Duration::from_secs(15)), condition)
    }

    fn value(condition: &Condition, taken: (Samples, i64)) -> Option<f64> {
        let found = condition.evaluate(&taken.0, taken.1).expect("evaluated");
        found.first().map(|element| element.value)
    }

    /// A role that failed over twice in the last five minutes.
    fn flapping() -> Answer {
        let term = |member: &str, from: i64, until: Option<i64>| TermRow {
            role: "a".to_owned(),
            member: member.to_owned(),
            claimed: NOW - from * SECOND,
            acting: Some(NOW - from * SECOND),
            ended: until.map(|until| NOW - until * SECOND),
            how: until.map(|_| "replaced".to_owned()),
            took_over: from < 1000,
        };
        let row = |member: &str, count: u64| {
            ("a".to_owned(), member.to_owned(), count, count, 0, 0, count)
        };
        Answer {
            now: NOW,
            roles: vec![RoleRow {
                role: "a".to_owned(),
                epoch: 3,
                holder: Some("x".to_owned()),
                candidates: vec!["x".to_owned(), "y".to_owned()],
                leads: Some(true),
                acting: Some(NOW - 100 * SECOND),
                ..RoleRow::default()
            }],
            totals: vec![row("x", 41), row("y", 1)],
            terms: vec![
                term("x", 2000, Some(200)),
                term("y", 200, Some(100)),
                term("x", 100, None),
            ],
            ..Answer::default()
        }
    }

    #[test]
    fn a_successor_rebuilds_the_whole_range_of_a_counter_from_the_terms() {
        let (mut sampler, condition) = sampler("sum(increase(tenure_failovers_total[5m]))");
        let increase = value(&condition, sampler.take(&flapping())).expect("a value");
        assert!((1.5..=2.5).contains(&increase), "{increase}");
    }

    #[test]
    fn terms_that_retention_deletes_are_no_reset() {
        let (mut sampler, condition) = sampler("sum(increase(tenure_failovers_total[5m]))");
        let before = value(&condition, sampler.take(&flapping())).expect("a value");
        let mut pruned = flapping();
        pruned.now += 15 * SECOND;
        pruned.totals[0].6 = 1;
        let after = value(&condition, sampler.take(&pruned)).expect("a value");
        assert!((before - after).abs() < 0.5, "{before} became {after}");
    }

    #[test]
    fn leadership_before_the_first_sample_is_rebuilt_and_later_samples_are_kept() {
        let (mut sampler, condition) =
            sampler("sum by (instance) (sum_over_time(tenure_is_leader{instance='x'}[5m]))");
        // 300 s before now to 200 s before now, and the last 100 s: 7 and 7 ticks of 15 s.
        let first = value(&condition, sampler.take(&flapping()));
        assert_eq!(first, Some(14.0));
        let mut silent = flapping();
        silent.now += 15 * SECOND;
        silent.roles[0].leads = Some(false);
        let second = value(&condition, sampler.take(&silent));
        assert_eq!(second, Some(13.0), "a sample counts, and not what the term says");
    }

    #[test]
    fn a_role_without_candidates_has_a_series_and_is_found_without_a_leader() {
        let (mut sampler, condition) = sampler("sum by (role) (tenure_is_leader) == 0");
        let row =
            RoleRow { role: "a".to_owned(), last: Some("x".to_owned()), ..RoleRow::default() };
        let answer = Answer { now: NOW, roles: vec![row], ..Answer::default() };
        assert_eq!(value(&condition, sampler.take(&answer)), Some(0.0));
    }

    #[test]
    fn a_series_that_goes_has_no_value_any_more() {
        let (mut sampler, condition) = sampler("tenure_connected == 1");
        let member = MemberRow { member: "x".to_owned(), connected: true, age_ms: 10 };
        let mut answer = Answer { now: NOW, members: vec![member], ..Answer::default() };
        assert_eq!(value(&condition, sampler.take(&answer)), Some(1.0));
        answer.now += 15 * SECOND;
        answer.members.clear();
        assert_eq!(value(&condition, sampler.take(&answer)), None);
        assert!(sampler.kept.is_empty());
    }
}
