//! Samples: what the evaluator reads.

use std::collections::BTreeMap;

/// The label that holds a series' name, as in Prometheus.
pub const NAME: &str = "__name__";

/// Labels of a series or of a result, the name among them.
pub type Labels = BTreeMap<String, String>;

/// A value at an instant.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// Milliseconds since 1970, by the database's clock.
    pub at: i64,
    /// None: the series was there before and is gone from this instant on.
    pub value: Option<f64>,
}

/// The points of one series, oldest first.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// Its labels, with its name.
    pub labels: Labels,
    /// Its points, in the order of time.
    pub points: Vec<Point>,
}

/// Series by name.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Samples {
    series: BTreeMap<String, Vec<Series>>,
}

impl Samples {
    /// Adds a series; its labels must hold its name.
    pub fn add(&mut self, series: Series) {
        let name = series.labels.get(NAME).cloned().unwrap_or_default();
        self.series.entry(name).or_default().push(series);
    }

    /// Every series of that name.
    #[must_use]
    pub fn named(&self, name: &str) -> &[Series] {
        self.series.get(name).map_or(&[], Vec::as_slice)
    }

    /// Every series, by name.
    pub fn all(&self) -> impl Iterator<Item = &Series> {
        self.series.values().flatten()
    }
}

/// The labels of a series: its name, and the pairs.
#[must_use]
pub fn labels<const N: usize>(name: &str, pairs: [(&str, &str); N]) -> Labels {
    let own = std::iter::once((NAME, name));
    own.chain(pairs).map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

/// Labels as Prometheus writes them: `name{a="b"}`.
#[must_use]
pub fn written(labels: &Labels) -> String {
    let name = labels.get(NAME).map_or("", String::as_str);
    let rest: Vec<String> = labels
        .iter()
        .filter(|(key, _)| *key != NAME)
        .map(|(key, value)| {
            let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            format!("{key}=\"{value}\"")
        })
        .collect();
    if rest.is_empty() && !name.is_empty() {
        return name.to_owned();
    }
    format!("{name}{{{}}}", rest.join(","))
}
