//! Waiting for a fact: a test never sleeps in the hope that it has come true.

use std::time::Duration;

use serde_json::Value;
use tokio::time::{Instant, sleep};

use crate::Child;

/// How long a test waits for what must come: long enough for a busy machine, short enough to notice a hang.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// How often a fact is looked at that nothing announces.
const LOOK: Duration = Duration::from_millis(5);

/// Looks again and again until it is so.
///
/// # Panics
/// If it is not so within [`PATIENCE`].
pub async fn until(what: &str, mut is: impl AsyncFnMut() -> bool) {
    let begun = Instant::now();
    while !is().await {
        assert!(begun.elapsed() < PATIENCE, "waited in vain for {what}");
        sleep(LOOK).await;
    }
}

/// The next event of that name in a program's output, where each line is a JSON object.
///
/// # Panics
/// If none comes within [`PATIENCE`].
pub async fn event(child: &mut Child, name: &str) -> Value {
    event_of(child, name, |_| true).await
}

/// As [`event`], of those that `is` likes.
///
/// # Panics
/// If none comes within [`PATIENCE`].
pub async fn event_of(child: &mut Child, name: &str, is: impl Fn(&Value) -> bool) -> Value {
    let parse = |line: &str| serde_json::from_str::<Value>(line).ok();
    let wanted = |line: &str| parse(line).is_some_and(|value| value["event"] == name && is(&value));
    let line = child.wait_line(wanted, PATIENCE).await;
    let line = line.unwrap_or_else(|error| panic!("no {name}: {error}"));
    parse(&line).expect("it was parsed before")
}
