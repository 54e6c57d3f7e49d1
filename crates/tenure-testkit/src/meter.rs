//! A recorder of metrics for tests.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};

/// Remembers which metrics were emitted, with which labels and values. Clones share one memory.
#[derive(Debug, Clone, Default)]
pub struct Meter {
    seen: Arc<Mutex<BTreeMap<String, BTreeSet<String>>>>,
    count: Arc<Mutex<BTreeMap<String, u32>>>,
    counters: Arc<Mutex<BTreeMap<String, Arc<AtomicU64>>>>,
    gauges: Arc<Mutex<BTreeMap<String, Arc<AtomicU64>>>>,
}

impl Meter {
    /// A meter of the whole process, for a test program with one scripted life.
    ///
    /// # Panics
    /// If the process has a recorder already.
    pub fn install() -> Self {
        let meter = Meter::default();
        metrics::set_global_recorder(meter.clone()).expect("the first recorder of this process");
        meter
    }

    /// The labels (`key=value,…`) of each metric by its name.
    pub fn seen(&self) -> BTreeMap<String, BTreeSet<String>> {
        self.seen.lock().expect("unpoisoned").clone()
    }

    /// `name`, or `name{key,…}`, of each metric.
    pub fn names(&self) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        for (name, labels) in self.seen() {
            for labels in labels {
                let keys: Vec<&str> =
                    labels.split(',').filter_map(|label| Some(label.split_once('=')?.0)).collect();
                names.insert(match keys.as_slice() {
                    [] => name.clone(),
                    keys => format!("{name}{{{}}}", keys.join(",")),
                });
            }
        }
        names
    }

    /// What a counter of that name and those labels (`key=value,…`) has counted; none before it is there.
    pub fn counted(&self, name: &str, labels: &str) -> Option<u64> {
        let counters = self.counters.lock().expect("unpoisoned");
        Some(counters.get(&format!("{name}{{{labels}}}"))?.load(Ordering::Acquire))
    }

    /// What a gauge of that name and those labels shows; none before it is there.
    pub fn gauge(&self, name: &str, labels: &str) -> Option<f64> {
        let gauges = self.gauges.lock().expect("unpoisoned");
        let bits = gauges.get(&format!("{name}{{{labels}}}"))?.load(Ordering::Acquire);
        Some(f64::from_bits(bits))
    }

    /// Waits until a metric was emitted.
    ///
    /// # Panics
    /// If it was not within that time.
    pub async fn until(&self, name: &str, within: Duration) {
        self.times(name, 1, within).await;
    }

    /// Waits until a metric was emitted so many times from now on, or ever for the first.
    ///
    /// # Panics
    /// If it was not within that time.
    pub async fn times(&self, name: &str, times: u32, within: Duration) {
        let count = || self.count.lock().expect("unpoisoned").get(name).copied().unwrap_or(0);
        let wanted = if times == 1 { 1 } else { count() + times };
        let deadline = tokio::time::Instant::now() + within;
        while count() < wanted {
            assert!(tokio::time::Instant::now() < deadline, "{name} does not come");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Returns its name with its labels.
    fn note(&self, key: &Key) -> String {
        let labels: Vec<String> =
            key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
        let whole = format!("{}{{{}}}", key.name(), labels.join(","));
        *self.count.lock().expect("unpoisoned").entry(key.name().to_owned()).or_default() += 1;
        let mut seen = self.seen.lock().expect("unpoisoned");
        seen.entry(key.name().to_owned()).or_default().insert(labels.join(","));
        whole
    }
}

impl Recorder for Meter {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        let name = self.note(key);
        Counter::from_arc(
            self.counters.lock().expect("unpoisoned").entry(name).or_default().clone(),
        )
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        let name = self.note(key);
        Gauge::from_arc(self.gauges.lock().expect("unpoisoned").entry(name).or_default().clone())
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        self.note(key);
        Histogram::noop()
    }
}
