//! The history checker: were there ever two leaders of one role at the same instant?
//!
//! Programs under test print what their gates did as JSON lines, stamped with `CLOCK_BOOTTIME`,
//! which all processes of a machine share:
//!
//! ```json
//! {"event":"open","role":"r","epoch":7,"member":"a","at_ns":1000}
//! {"event":"yes","role":"r","epoch":7,"member":"a","at_ns":1500}
//! {"event":"shut","role":"r","epoch":7,"member":"a","at_ns":2000}
//! ```
//!
//! - `open`: from this instant on the gate may say yes.
//! - `yes`: the gate said yes, and this is the clock value *it compared*, not the time of printing.
//! - `shut`: from this instant on it says no. A gate whose deadline ran out unseen (the process was
//!   paused) shut *at its deadline*, whenever that was noticed.
//!
//! A **term** is everything one (member, epoch) reports of one role; it lasts from its first to its
//! last instant, shut instants excluded. A gate may shut and open again within its term. The
//! history is good if, per role, each epoch has one member, and terms ordered by epoch
//! follow one another without touching: that is both "never two at once" and "epochs increase with
//! time". Of a program that was killed without a `shut`, only what it said is known, so its term ends
//! with its last `yes`: have programs ask their gate often.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};

/// One thing that one gate reported.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// From now on the gate may say yes.
    Open(Instant),
    /// The gate said yes.
    Yes(Instant),
    /// From now on the gate says no.
    Shut(Instant),
}

/// What one event says: of which member, role and epoch, and at which instant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instant {
    /// The role whose gate it is.
    pub role: String,
    /// The fencing token.
    pub epoch: u64,
    /// The member whose gate it is.
    pub member: String,
    /// Nanoseconds of `CLOCK_BOOTTIME`.
    pub at_ns: u64,
}

/// What a good history looked like, per role.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedTerms {
    /// The terms of each role, in order.
    pub roles: BTreeMap<String, Vec<ObservedTerm>>,
}

/// The time one member led one role under one epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedTerm {
    /// The fencing token.
    pub epoch: u64,
    /// The member that led.
    pub member: String,
    /// The first instant it reported.
    pub first_ns: u64,
    /// The last instant at which its gate was, or may have been, open.
    pub last_ns: u64,
    /// How often the gate said yes.
    pub yes: u64,
}

/// Why a history is bad.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// Two members acted under the same token.
    #[error("role {role}: epoch {epoch} belongs to both {first} and {second}")]
    SharedEpoch {
        /// The role that was led twice.
        role: String,
        /// The token.
        epoch: u64,
        /// One member.
        first: String,
        /// The other.
        second: String,
    },
    /// A term begins before the one of the lower epoch has ended.
    #[error(
        "role {role}: {} (epoch {}) was open until {} but {} (epoch {}) from {}: {} ns at once",
        .older.member, .older.epoch, .older.last_ns, .newer.member, .newer.epoch, .newer.first_ns,
        .older.last_ns.saturating_sub(.newer.first_ns) + 1
    )]
    Overlap {
        /// The role that was led twice.
        role: String,
        /// The term of the lower epoch.
        older: Box<ObservedTerm>,
        /// The term of the higher epoch.
        newer: Box<ObservedTerm>,
    },
}

impl Event {
    /// Reads one line of output; a line that is no event (a log line, say) is `None`.
    #[must_use]
    pub fn parse(line: &str) -> Option<Self> {
        serde_json::from_str(line.trim()).ok()
    }

    /// The events among the lines.
    pub fn parse_all<S: AsRef<str>>(lines: impl IntoIterator<Item = S>) -> Vec<Self> {
        lines.into_iter().filter_map(|line| Self::parse(line.as_ref())).collect()
    }

    /// What it says, whatever its kind.
    #[must_use]
    pub fn instant(&self) -> &Instant {
        match self {
            Self::Open(i) | Self::Yes(i) | Self::Shut(i) => i,
        }
    }
}

impl ObservedTerms {
    /// The terms of one role, in order; none if no member ever led it.
    #[must_use]
    pub fn terms(&self, role: &str) -> &[ObservedTerm] {
        self.roles.get(role).map_or(&[], Vec::as_slice)
    }

    /// The times without a leader between the terms of one role.
    #[must_use]
    pub fn gaps(&self, role: &str) -> Vec<Duration> {
        let ends = self.terms(role).windows(2);
        ends.map(|two| Duration::from_nanos(two[1].first_ns - two[0].last_ns)).collect()
    }

    /// The longest time without a leader between two terms of any role.
    #[must_use]
    pub fn longest_gap(&self) -> Duration {
        self.roles.keys().flat_map(|role| self.gaps(role)).max().unwrap_or_default()
    }
}

/// Checks a history. The events may come in any order, from any number of processes.
///
/// # Errors
/// The first [`Violation`], by role and epoch.
pub fn check(events: &[Event]) -> Result<ObservedTerms, Violation> {
    let mut roles: BTreeMap<String, BTreeMap<u64, ObservedTerm>> = BTreeMap::new();
    for event in events {
        let Instant { role, epoch, member, at_ns } = event.instant();
        let (last_ns, yes) = match event {
            Event::Open(_) => (*at_ns, 0),
            Event::Yes(_) => (*at_ns, 1),
            // The shut instant itself is the first at which the gate said no.
            Event::Shut(_) => (at_ns.saturating_sub(1), 0),
        };
        let term =
            roles.entry(role.clone()).or_default().entry(*epoch).or_insert_with(|| ObservedTerm {
                epoch: *epoch,
                member: member.clone(),
                first_ns: last_ns,
                last_ns,
                yes: 0,
            });
        if term.member != *member {
            return Err(Violation::SharedEpoch {
                role: role.clone(),
                epoch: *epoch,
                first: term.member.clone(),
                second: member.clone(),
            });
        }
        term.first_ns = term.first_ns.min(last_ns);
        term.last_ns = term.last_ns.max(last_ns);
        term.yes += yes;
    }
    let mut observed = ObservedTerms { roles: BTreeMap::new() };
    for (role, terms) in roles {
        let terms: Vec<ObservedTerm> = terms.into_values().collect();
        for two in terms.windows(2) {
            if two[0].last_ns >= two[1].first_ns {
                let (older, newer) = (Box::new(two[0].clone()), Box::new(two[1].clone()));
                return Err(Violation::Overlap { role, older, newer });
            }
        }
        observed.roles.insert(role, terms);
    }
    Ok(observed)
}

/// The clock of the histories, now: `CLOCK_BOOTTIME` in nanoseconds (on macOS the monotonic clock).
#[must_use]
pub fn now_ns() -> u64 {
    #[cfg(target_os = "linux")]
    let id = rustix::time::ClockId::Boottime;
    #[cfg(not(target_os = "linux"))]
    let id = rustix::time::ClockId::Monotonic;
    let now = rustix::time::clock_gettime(id);
    let whole = u64::try_from(now.tv_sec).unwrap_or(0).saturating_mul(1_000_000_000);
    whole.saturating_add(u64::try_from(now.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(role: &str, member: &str, epoch: u64, at_ns: u64) -> Instant {
        Instant { role: role.into(), epoch, member: member.into(), at_ns }
    }

    fn open(member: &str, epoch: u64, ns: u64) -> Event {
        Event::Open(at("r", member, epoch, ns))
    }
    fn yes(member: &str, epoch: u64, ns: u64) -> Event {
        Event::Yes(at("r", member, epoch, ns))
    }
    fn shut(member: &str, epoch: u64, ns: u64) -> Event {
        Event::Shut(at("r", member, epoch, ns))
    }

    #[test]
    fn terms_that_follow_one_another_are_good_and_their_gap_is_told() {
        let observed = check(&[
            open("a", 1, 100),
            yes("a", 1, 150),
            shut("a", 1, 201),
            open("b", 4, 500),
            yes("b", 4, 510),
        ])
        .expect("good");
        assert_eq!(observed.gaps("r"), [Duration::from_nanos(300)]);
        assert_eq!(observed.longest_gap(), Duration::from_nanos(300));
        assert_eq!(observed.terms("r").iter().map(|t| t.yes).collect::<Vec<_>>(), [1, 1]);
        assert_eq!(observed.terms("nobody"), []);
    }

    #[test]
    fn a_gate_may_shut_and_open_again_within_its_term() {
        let events =
            [open("a", 1, 1), shut("a", 1, 5), open("a", 1, 8), shut("a", 1, 9), open("b", 2, 9)];
        assert!(check(&events).is_ok());
    }

    #[test]
    fn the_order_of_reporting_does_not_matter() {
        let events = [open("b", 2, 9), shut("a", 1, 9), yes("a", 1, 8), open("a", 1, 1)];
        assert!(check(&events).is_ok());
    }

    #[test]
    fn a_yes_after_the_successor_opened_is_caught() {
        let events = [open("a", 1, 1), yes("a", 1, 2), open("b", 2, 10), yes("a", 1, 20)];
        assert!(matches!(check(&events), Err(Violation::Overlap { .. })));
    }

    #[test]
    fn the_same_instant_is_an_overlap() {
        let events = [open("a", 1, 1), yes("a", 1, 10), open("b", 2, 10)];
        assert!(matches!(check(&events), Err(Violation::Overlap { .. })));
    }

    #[test]
    fn a_short_term_inside_a_silent_long_one_is_caught() {
        let events = [open("a", 1, 1), open("b", 2, 10), shut("b", 2, 12), shut("a", 1, 100)];
        assert!(matches!(check(&events), Err(Violation::Overlap { .. })));
    }

    #[test]
    fn an_epoch_that_goes_back_is_caught() {
        let events = [open("a", 7, 1), shut("a", 7, 5), open("b", 6, 10), shut("b", 6, 12)];
        assert!(matches!(check(&events), Err(Violation::Overlap { .. })));
    }

    #[test]
    fn an_epoch_with_two_members_is_caught() {
        let events = [open("a", 1, 1), shut("a", 1, 5), open("b", 1, 10)];
        assert!(matches!(check(&events), Err(Violation::SharedEpoch { .. })));
    }

    #[test]
    fn roles_are_judged_apart() {
        let events = [
            Event::Open(at("r", "a", 1, 1)),
            Event::Shut(at("r", "a", 1, 100)),
            Event::Open(at("s", "b", 1, 1)),
            Event::Shut(at("s", "b", 1, 100)),
        ];
        assert_eq!(check(&events).expect("good").roles.len(), 2);
    }

    #[test]
    fn lines_are_read_as_they_are_written_and_others_are_skipped() {
        let event = yes("a", 3, 99);
        let line = serde_json::to_string(&event).expect("json");
        assert_eq!(line, r#"{"event":"yes","role":"r","epoch":3,"member":"a","at_ns":99}"#);
        let lines = ["ready", &line, r#"{"event":"started"}"#, r#"{"event":"yes"}"#, ""];
        assert_eq!(Event::parse_all(lines), [event]);
    }

    #[test]
    fn the_clock_runs() {
        let first = now_ns();
        assert!(first > 0 && now_ns() >= first);
    }

    /// The definition, read word by word: every pair of instants at which gates of different terms
    /// were open, O(n²).
    fn good_by_definition(events: &[Event]) -> bool {
        let open_at = |e: &Event| match e {
            Event::Open(i) | Event::Yes(i) => i.at_ns,
            Event::Shut(i) => i.at_ns.saturating_sub(1),
        };
        events.iter().all(|a| {
            events.iter().all(|b| {
                let (x, y) = (a.instant(), b.instant());
                x.role != y.role
                    || (x.epoch == y.epoch && x.member == y.member)
                    || (x.epoch < y.epoch && open_at(a) < open_at(b))
                    || (x.epoch > y.epoch && open_at(a) > open_at(b))
            })
        })
    }

    fn any_event() -> impl Strategy<Value = Event> {
        (0..3u8, 0..3u64, 0..2u8, 1..40u64).prop_map(|(kind, epoch, member, ns)| {
            // Mostly later instants for later epochs, so that good histories occur as well.
            let i = at(
                "r",
                if (epoch + u64::from(member)) % 2 == 0 { "a" } else { "b" },
                epoch,
                ns / 4 + epoch * 9,
            );
            match kind {
                0 => Event::Open(i),
                1 => Event::Yes(i),
                _ => Event::Shut(i),
            }
        })
    }

    proptest! {
        #[test]
        fn the_checker_agrees_with_the_definition(events in prop::collection::vec(any_event(), 0..7)) {
            prop_assert_eq!(check(&events).is_ok(), good_by_definition(&events));
        }

        #[test]
        fn every_good_history_passes_and_one_late_yes_spoils_it(
            lengths in prop::collection::vec((1..1000u64, 1..1000u64), 2..20),
            pick in any::<prop::sample::Index>(),
        ) {
            let (mut events, mut now) = (Vec::new(), 0);
            for (n, (gap, length)) in lengths.iter().enumerate() {
                let (member, epoch) = (format!("m{}", n % 3), n as u64 + 1);
                now += gap;
                events.push(open(&member, epoch, now));
                now += length;
                events.push(yes(&member, epoch, now));
                events.push(shut(&member, epoch, now + 1));
                now += 1;
            }
            prop_assert!(check(&events).is_ok());
            // A member, but not the last leader, says yes once more when all is over.
            let n = pick.index(lengths.len() - 1);
            events.push(yes(&format!("m{}", n % 3), n as u64 + 1, now + 1));
            let caught = matches!(check(&events), Err(Violation::Overlap { .. }));
            prop_assert!(caught);
        }
    }
}
