//! A recorder that remembers which metrics were emitted, and with which labels.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};

type Seen = BTreeMap<String, BTreeSet<String>>;

#[derive(Clone, Default)]
pub(crate) struct Meter {
    seen: Arc<Mutex<Seen>>,
    count: Arc<Mutex<BTreeMap<String, u32>>>,
}

/// For the whole process: this test binary has one scripted life.
pub(crate) fn install() -> Meter {
    let meter = Meter::default();
    metrics::set_global_recorder(meter.clone()).expect("nobody else installed one");
    meter
}

impl Meter {
    pub(crate) fn seen(&self) -> Seen {
        self.seen.lock().unwrap().clone()
    }

    pub(crate) async fn until(&self, name: &str, within: Duration) {
        self.times(name, 1, within).await;
    }

    /// Waits until a metric was emitted so many times from now on, or ever for the first.
    pub(crate) async fn times(&self, name: &str, times: u32, within: Duration) {
        let count = || self.count.lock().unwrap().get(name).copied().unwrap_or(0);
        let wanted = if times == 1 { 1 } else { count() + times };
        let deadline = tokio::time::Instant::now() + within;
        while count() < wanted {
            assert!(tokio::time::Instant::now() < deadline, "{name} does not come");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn note(&self, key: &Key) {
        let labels: Vec<String> =
            key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
        *self.count.lock().unwrap().entry(key.name().to_owned()).or_default() += 1;
        let mut seen = self.seen.lock().unwrap();
        seen.entry(key.name().to_owned()).or_default().insert(labels.join(","));
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
