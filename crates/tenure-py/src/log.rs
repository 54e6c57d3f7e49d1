//! What the Rust library logs, kept until Python asks for it.
//!
//! Warnings and errors only; at most [`BACKLOG`] lines. No thread of the runtime runs Python code, so
//! the lines wait here until a reader of a mailbox takes them along.

use std::collections::VecDeque;
use std::fmt::Write;
use std::sync::{Mutex, Once};

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::Registry;

const BACKLOG: usize = 256;

static LINES: Mutex<VecDeque<(String, String)>> = Mutex::new(VecDeque::new());

/// Begins to listen, once in a process and its forks.
pub(crate) fn listen() {
    static LISTENS: Once = Once::new();
    LISTENS.call_once(|| {
        // Another subscriber of the same program stays in place.
        let _ = tracing::subscriber::set_global_default(Registry::default().with(Lines));
    });
}

/// The lines since the last call. None while another thread writes one: they come with the next call.
pub(crate) fn take() -> Vec<(String, String)> {
    // Never waits: a child of a fork may have inherited the lock from a thread that is not there.
    match LINES.try_lock() {
        Ok(mut lines) => lines.drain(..).collect(),
        Err(_) => Vec::new(),
    }
}

struct Lines;

impl<S: Subscriber> Layer<S> for Lines {
    fn enabled(&self, metadata: &tracing::Metadata<'_>, _: Context<'_, S>) -> bool {
        *metadata.level() <= Level::WARN && metadata.target().starts_with("tenure")
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut text = Text::default();
        event.record(&mut text);
        let line = (event.metadata().level().to_string(), format!("{}{}", text.message, text.rest));
        // As in `take`: a line that meets another one is lost, and no thread waits.
        if let Ok(mut lines) = LINES.try_lock()
            && lines.len() < BACKLOG
        {
            lines.push_back(line);
        }
    }
}

#[derive(Default)]
struct Text {
    message: String,
    rest: String,
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        // Writing to a string does not fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.rest, " {name}={value:?}"),
        };
    }
}
