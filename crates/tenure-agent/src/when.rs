//! When a schedule fires: cron with optional seconds in a time zone, or `@every` a period.
//!
//! A slot is an instant. Two members with the same text and zone name the same slots, whatever their
//! clocks say:
//!
//! - `@every 10s` counts from the Unix epoch, so a restart moves nothing.
//! - A pattern that names its hours means wall-clock time. An hour that daylight saving skips fires once,
//!   at the end of the gap; an hour that it repeats fires once, the first time.
//! - A pattern of every hour (`*` in the hours) means a rhythm, and follows the clock through a repeated
//!   hour.

use std::time::Duration;

use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp, ToSpan, Zoned};

/// The shortest period: a claim costs a commit.
const SHORTEST: Duration = Duration::from_secs(1);
/// Longer is a slip.
const LONGEST: Duration = Duration::from_secs(366 * 86_400);
/// No zone repeats more than this; a walk backwards begins so much later.
const LONGEST_FOLD: i64 = 4;

/// When slots are.
#[derive(Debug, Clone)]
pub struct When {
    text: String,
    zone: TimeZone,
    zone_name: String,
    pattern: Pattern,
}

#[derive(Debug, Clone)]
enum Pattern {
    Every(Duration),
    /// Wall-clock times.
    Hours(Box<Cron>),
    /// A rhythm through all hours.
    Rhythm(Box<Cron>),
}

/// Why a text says no instants.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WhenError {
    /// The pattern cannot be read.
    #[error(
        "`{text}` is no cron pattern ({why}); write `m h dom mon dow`, with seconds in front if wanted, or `@every 10s`"
    )]
    Pattern {
        /// As written.
        text: String,
        /// What the parser said.
        why: String,
    },
    /// The period cannot be used.
    #[error("`{text}` is no period; write `@every` and 1s to 366d, such as `@every 10s`")]
    Period {
        /// As written.
        text: String,
    },
    /// No such zone.
    #[error("`{name}` is no time zone; write a name such as Europe/Berlin, or UTC")]
    Zone {
        /// As written.
        name: String,
    },
    /// The pattern never comes true.
    #[error("`{text}` never fires; correct its day and month")]
    Never {
        /// As written.
        text: String,
    },
}

impl When {
    /// Reads a pattern in a zone, given by its IANA name.
    ///
    /// # Errors
    /// [`WhenError`].
    pub fn new(text: &str, zone: &str) -> Result<Self, WhenError> {
        let text = text.trim().to_owned();
        let unknown = |_| WhenError::Zone { name: zone.to_owned() };
        let found = TimeZone::get(zone).map_err(unknown)?;
        let pattern = match text.strip_prefix("@every") {
            Some(period) => {
                let period = tenure::config::parse_period(period.trim())
                    .filter(|period| (SHORTEST..=LONGEST).contains(period))
                    .filter(|period| period.subsec_nanos() % 1_000_000 == 0)
                    .ok_or_else(|| WhenError::Period { text: text.clone() })?;
                Pattern::Every(period)
            }
            None => {
                let cron = CronParser::builder()
                    .seconds(Seconds::Optional)
                    .year(Year::Disallowed)
                    .build()
                    .parse(&text)
                    .map_err(|error| WhenError::Pattern {
                        text: text.clone(),
                        why: error.to_string(),
                    })?;
                if is_rhythm(&text) {
                    Pattern::Rhythm(cron.into())
                } else {
                    Pattern::Hours(cron.into())
                }
            }
        };
        let when = When { text, zone: found, zone_name: zone.to_owned(), pattern };
        // A day that no month has is found here, and not by a leader.
        let start = Timestamp::UNIX_EPOCH + SignedDuration::from_hours(24 * 365 * 55);
        match when.next(start) {
            Some(_) => Ok(when),
            None => Err(WhenError::Never { text: when.text }),
        }
    }

    /// The pattern as written.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The zone's name.
    #[must_use]
    pub fn zone(&self) -> &str {
        &self.zone_name
    }

    /// The first slot after an instant; none: there is none any more.
    #[must_use]
    pub fn next(&self, after: Timestamp) -> Option<Timestamp> {
        match &self.pattern {
            Pattern::Every(period) => {
                let period = i64::try_from(period.as_millis()).ok()?;
                let at = after.as_millisecond().div_euclid(period).checked_add(1)?;
                Timestamp::from_millisecond(at.checked_mul(period)?).ok()
            }
            Pattern::Rhythm(cron) => {
                let found = cron.find_next_occurrence(&self.zoned(after), false).ok()?;
                Some(whole(found.timestamp()))
            }
            Pattern::Hours(cron) => {
                let mut civil = self.zoned(after).datetime();
                loop {
                    civil = cron.find_next_occurrence(&civil, false).ok()?;
                    // In a repeated hour the first one has passed already.
                    if let Some(at) = self.instant(civil).filter(|at| *at > after) {
                        return Some(at);
                    }
                }
            }
        }
    }

    /// The slots after one instant and up to another, the latest `limit` of them, in order; and whether
    /// there are more.
    #[must_use]
    pub fn latest(
        &self,
        after: Timestamp,
        until: Timestamp,
        limit: usize,
    ) -> (Vec<Timestamp>, bool) {
        let mut slots = Vec::new();
        let mut walk = self.backwards(until);
        let more = loop {
            let Some(at) = walk.next().filter(|at| *at > after) else { break false };
            if slots.len() == limit {
                break true;
            }
            slots.push(at);
        };
        slots.reverse();
        (slots, more)
    }

    /// Every slot up to `until`, the latest first.
    fn backwards(&self, until: Timestamp) -> Box<dyn Iterator<Item = Timestamp> + '_> {
        match &self.pattern {
            Pattern::Every(period) => {
                let period = i64::try_from(period.as_millis()).unwrap_or(i64::MAX);
                let last = until.as_millisecond().div_euclid(period);
                Box::new(
                    (0..=last).rev().map_while(move |at| {
                        Timestamp::from_millisecond(at.checked_mul(period)?).ok()
                    }),
                )
            }
            Pattern::Rhythm(cron) => {
                let first = cron.find_previous_occurrence(&self.zoned(until), true).ok();
                let walk = std::iter::successors(first, move |at| {
                    cron.find_previous_occurrence(at, false).ok()
                });
                Box::new(walk.map(|at| whole(at.timestamp())).filter(move |at| *at <= until))
            }
            Pattern::Hours(cron) => {
                let start = self.zoned(until).datetime();
                let start = start.checked_add(LONGEST_FOLD.hours()).unwrap_or(start);
                let first = cron.find_previous_occurrence(&start, true).ok();
                let walk = std::iter::successors(first, move |at| {
                    cron.find_previous_occurrence(at, false).ok()
                });
                let mut last = None;
                Box::new(
                    walk.filter_map(|civil| self.instant(civil))
                        .filter(move |at| *at <= until)
                        // All that a gap swallowed is one slot.
                        .filter(move |at| last.replace(*at) != Some(*at)),
                )
            }
        }
    }

    /// A wall-clock time in this zone: in a gap its end, of two the first.
    fn instant(&self, civil: DateTime) -> Option<Timestamp> {
        let ambiguous = self.zone.to_ambiguous_timestamp(civil);
        match ambiguous.offset() {
            jiff::tz::AmbiguousOffset::Gap { before, .. } => {
                // The instant at which the gap begins and ends: the transition.
                let inside = before.to_timestamp(civil).ok()?;
                let transition =
                    self.zone.preceding(inside + SignedDuration::from_nanos(1)).next()?;
                Some(transition.timestamp())
            }
            jiff::tz::AmbiguousOffset::Unambiguous { .. }
            | jiff::tz::AmbiguousOffset::Fold { .. } => ambiguous.earlier().ok().map(whole),
        }
    }

    fn zoned(&self, at: Timestamp) -> Zoned {
        // Whole seconds: a pattern knows nothing below them.
        whole(at).to_zoned(self.zone.clone())
    }
}

/// A slot lies on a whole second.
fn whole(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_millisecond().div_euclid(1000)).unwrap_or(at)
}

/// Whether the field of the hours says every hour, or every so many.
fn is_rhythm(text: &str) -> bool {
    let fields: Vec<&str> = text.split_whitespace().collect();
    match fields[..] {
        [nickname] => nickname.eq_ignore_ascii_case("@hourly"),
        [_, hours, _, _, _] | [_, _, hours, _, _, _] => hours.contains('*'),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().expect("a time")
    }

    fn slots(when: &When, from: &str, count: usize) -> Vec<String> {
        std::iter::successors(when.next(at(from)), |at| when.next(*at))
            .take(count)
            .map(|at| at.to_string())
            .collect()
    }

    #[test]
    fn a_pattern_has_seconds_or_not_and_a_zone() {
        let minutes = When::new("*/20 * * * *", "UTC").expect("valid");
        assert_eq!(
            slots(&minutes, "2026-01-01T00:00:00Z", 3),
            ["2026-01-01T00:20:00Z", "2026-01-01T00:40:00Z", "2026-01-01T01:00:00Z"]
        );
        let seconds = When::new("*/30 * * * * *", "UTC").expect("valid");
        assert_eq!(
            slots(&seconds, "2026-01-01T00:00:00.5Z", 2),
            ["2026-01-01T00:00:30Z", "2026-01-01T00:01:00Z"]
        );
        let berlin = When::new("0 3 * * *", "Europe/Berlin").expect("valid");
        assert_eq!(slots(&berlin, "2026-01-01T00:00:00Z", 1), ["2026-01-01T02:00:00Z"]);
        assert_eq!(slots(&berlin, "2026-07-01T00:00:00Z", 1), ["2026-07-01T01:00:00Z"]);
    }

    #[test]
    fn every_counts_from_the_epoch() {
        let every = When::new("@every 7s", "UTC").expect("valid");
        let first = every.next(at("2026-01-01T00:00:03.2Z")).expect("a slot");
        assert_eq!(first.as_second() % 7, 0);
        assert_eq!(every.next(first).map(|next| next.as_second()), Some(first.as_second() + 7));
    }

    #[test]
    fn an_hour_that_is_skipped_fires_once_after_the_gap() {
        // In Berlin 02:00 to 03:00 did not exist on 29 March 2026.
        for text in ["30 2 * * *", "0,15,30 2 * * *", "*/5 2 * * *"] {
            let when = When::new(text, "Europe/Berlin").expect("valid");
            let found = slots(&when, "2026-03-29T00:00:00Z", 2);
            assert_eq!(found[0], "2026-03-29T01:00:00Z", "{text}");
            assert!(found[1].starts_with("2026-03-30T00:"), "{text}: {found:?}");
            let (back, more) =
                when.latest(at("2026-03-29T00:00:00Z"), at("2026-03-29T12:00:00Z"), 9);
            assert_eq!((back, more), (vec![at("2026-03-29T01:00:00Z")], false), "{text}");
        }
    }

    #[test]
    fn an_hour_that_is_repeated_fires_once() {
        // In Berlin 02:00 to 03:00 came twice on 25 October 2026.
        let when = When::new("30 2 * * *", "Europe/Berlin").expect("valid");
        assert_eq!(
            slots(&when, "2026-10-24T12:00:00Z", 2),
            ["2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"]
        );
        for now in ["2026-10-25T00:45:00Z", "2026-10-25T01:15:00Z", "2026-10-25T01:45:00Z"] {
            let (back, _) = when.latest(at("2026-10-24T12:00:00Z"), at(now), 9);
            assert_eq!(back, [at("2026-10-25T00:30:00Z")], "{now}");
            assert_eq!(when.next(at(now)), Some(at("2026-10-26T01:30:00Z")), "{now}");
        }
        // A rhythm goes on through both.
        let rhythm = When::new("0 * * * *", "Europe/Berlin").expect("valid");
        assert_eq!(
            slots(&rhythm, "2026-10-25T00:00:00Z", 2),
            ["2026-10-25T01:00:00Z", "2026-10-25T02:00:00Z"]
        );
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        for text in ["", "* * *", "61 * * * *", "@every 10ms", "@every", "@every -1s", "0 0 30 2 *"]
        {
            assert!(When::new(text, "UTC").is_err(), "{text}");
        }
        let error = When::new("* * * * *", "Mars/Base").expect_err("no zone");
        assert_eq!(error, WhenError::Zone { name: "Mars/Base".to_owned() });
    }

    #[test]
    fn the_latest_slots_are_bounded() {
        let when = When::new("@every 1s", "UTC").expect("valid");
        let (found, more) = when.latest(at("2020-01-01T00:00:00Z"), at("2026-01-01T00:00:00Z"), 3);
        assert!(more);
        assert_eq!(
            found,
            [at("2025-12-31T23:59:58Z"), at("2025-12-31T23:59:59Z"), at("2026-01-01T00:00:00Z")]
        );
    }

    proptest! {
        #[test]
        fn forwards_and_backwards_name_the_same_slots(
            text in prop::sample::select(vec![
                "@every 90s", "*/7 * * * *", "30 2 * * *", "0,30 1,2,3 * * *", "15 */3 * * *",
                "5 2 * * 0", "10 30 2 29 3 *",
            ]),
            zone in prop::sample::select(vec!["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"]),
            // Around the changes of the clock in 2026.
            start in prop::sample::select(vec![1_772_900_000_i64, 1_774_650_000, 1_775_300_000, 1_792_800_000, 1_793_400_000]),
            length in 0_i64..300_000,
        ) {
            let when = When::new(text, zone).expect("valid");
            let from = Timestamp::from_second(start).expect("a time");
            let until = Timestamp::from_second(start + length).expect("a time");
            let forwards: Vec<Timestamp> = std::iter::successors(when.next(from), |at| when.next(*at))
                .take_while(|at| *at <= until)
                .collect();
            prop_assert!(forwards.is_sorted_by(|a, b| a < b));
            let (backwards, more) = when.latest(from, until, 100_000);
            prop_assert!(!more);
            prop_assert_eq!(forwards, backwards);
        }
    }
}
