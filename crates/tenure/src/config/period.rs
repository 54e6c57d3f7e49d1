//! A length of time as people write it.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Deserializer, de};

/// Reads `3s`, `250ms`, `1m 30s`, or a plain number of seconds (`5`, `0.5`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Period(pub(super) Duration);

pub(super) const EXPECTED: &str = "a length of time (`3s`, `250ms`, or a number of seconds)";

/// A length of time as people write it in a file, a variable or an option: `3s`, `250ms`, `1m 30s`, or a
/// plain number of seconds (`5`, `0.5`).
#[must_use]
pub fn parse_period(text: &str) -> Option<Duration> {
    Period::parse(text).map(|period| period.0)
}

impl Period {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        if let Ok(seconds) = text.parse::<f64>() {
            return Self::seconds(seconds);
        }
        humantime::parse_duration(text).ok().map(Self)
    }

    fn seconds(seconds: f64) -> Option<Self> {
        Duration::try_from_secs_f64(seconds).ok().map(Self)
    }
}

impl<'de> Deserialize<'de> for Period {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl de::Visitor<'_> for Visitor {
            type Value = Period;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(EXPECTED)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Period, E> {
                Period::parse(text)
                    .ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
            }

            fn visit_i64<E: de::Error>(self, seconds: i64) -> Result<Period, E> {
                u64::try_from(seconds)
                    .map(|seconds| Period(Duration::from_secs(seconds)))
                    .map_err(|_| E::invalid_value(de::Unexpected::Signed(seconds), &self))
            }

            fn visit_u64<E: de::Error>(self, seconds: u64) -> Result<Period, E> {
                Ok(Period(Duration::from_secs(seconds)))
            }

            fn visit_f64<E: de::Error>(self, seconds: f64) -> Result<Period, E> {
                Period::seconds(seconds)
                    .ok_or_else(|| E::invalid_value(de::Unexpected::Float(seconds), &self))
            }
        }

        deserializer.deserialize_any(Visitor)
    }
}
