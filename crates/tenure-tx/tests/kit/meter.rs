//! A recorder that remembers which metrics were emitted, and under which labels.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};

#[derive(Clone, Default)]
pub(crate) struct Meter(Arc<Mutex<BTreeSet<String>>>);

impl Meter {
    /// `name`, or `name{label}`, of all that was emitted.
    pub(crate) fn seen(&self) -> BTreeSet<String> {
        self.0.lock().expect("unpoisoned").clone()
    }

    fn note(&self, key: &Key) {
        let labels: Vec<&str> = key.labels().map(metrics::Label::key).collect();
        let name = match labels.as_slice() {
            [] => key.name().to_owned(),
            labels => format!("{}{{{}}}", key.name(), labels.join(",")),
        };
        self.0.lock().expect("unpoisoned").insert(name);
    }
}

impl Recorder for Meter {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        self.note(key);
        Counter::noop()
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        self.note(key);
        Gauge::noop()
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        self.note(key);
        Histogram::noop()
    }
}
