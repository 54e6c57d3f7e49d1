//! A subscriber that remembers which events were told, and which fields every one of them had.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

type Told = BTreeMap<String, BTreeSet<String>>;

#[derive(Clone, Default)]
pub(crate) struct Ear(Arc<Mutex<Told>>);

/// For the whole process: this test binary has one scripted life.
pub(crate) fn install() -> Ear {
    let ear = Ear::default();
    let subscriber = tracing_subscriber::registry().with(ear.clone());
    tracing::subscriber::set_global_default(subscriber).expect("no other was installed");
    ear
}

impl Ear {
    pub(crate) fn told(&self) -> Told {
        self.0.lock().unwrap().clone()
    }
}

#[derive(Default)]
struct Fields {
    message: String,
    names: BTreeSet<String>,
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            self.message = format!("{value:?}");
        } else {
            self.names.insert(field.name().to_owned());
        }
    }
}

impl<S: Subscriber> Layer<S> for Ear {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if !event.metadata().target().starts_with("tenure") {
            return;
        }
        let mut fields = Fields::default();
        event.record(&mut fields);
        let mut told = self.0.lock().unwrap();
        // What every event of that name has.
        told.entry(fields.message)
            .and_modify(|names| *names = &*names & &fields.names)
            .or_insert(fields.names);
    }
}
