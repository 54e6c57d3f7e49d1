//! The log: warnings and errors on standard error, `TENURE_LOG` for more or less.
//!
//! A line is handed to a thread that writes it. If nothing reads standard error that thread waits,
//! the queue fills, and further lines are dropped and counted: the election never waits for a log.

use std::io::IsTerminal;
use std::time::Duration;

use tracing_appender::non_blocking::{ErrorCounter, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::EnvFilter;

use crate::exit::Failure;

const USUAL: &str = "warn";
/// The same without the transitions of roles.
const WITHOUT_LOSSES: &str = "warn,tenure::metrics=error";
/// How many lines wait for a slow reader.
const QUEUE: usize = 4_096;
/// How often lost lines are looked for.
const LOOK: Duration = Duration::from_secs(10);

/// How lines are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// For people.
    Text,
    /// One object per line, where standard error is for objects only.
    Json,
}

/// Ends the log when dropped: waits for its last lines, at most a second.
#[derive(Debug)]
pub(crate) struct Log(#[allow(dead_code, reason = "its drop is what counts")] WorkerGuard);

/// Starts the log of this process. `losses_are_told`: the command's own events already tell them.
pub(crate) fn start(form: Form, losses_are_told: bool) -> Result<Log, Failure> {
    let filter = match std::env::var("TENURE_LOG") {
        Ok(text) => EnvFilter::try_new(&text).map_err(|error| {
            Failure::usage(format!("TENURE_LOG: {error}; write a level, as info, or nothing"))
        })?,
        Err(_) => EnvFilter::new(if losses_are_told { WITHOUT_LOSSES } else { USUAL }),
    };
    let (writer, guard) = NonBlockingBuilder::default()
        .lossy(true)
        .buffered_lines_limit(QUEUE)
        .thread_name("tenure-log")
        .finish(std::io::stderr());
    let lost = writer.error_counter();
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(form == Form::Text && std::io::stderr().is_terminal())
        .with_writer(writer);
    match form {
        Form::Text => log.init(),
        Form::Json => log.json().init(),
    }
    std::thread::Builder::new().name("tenure-log-lost".to_owned()).spawn(move || watch(&lost))?;
    Ok(Log(guard))
}

/// Says how many lines were lost, once the reader reads again.
fn watch(lost: &ErrorCounter) {
    let mut reported = 0;
    loop {
        std::thread::sleep(LOOK);
        let now = lost.dropped_lines();
        if now > reported {
            tracing::warn!(
                lines = now - reported,
                "standard error was not read; log lines were lost"
            );
            reported = now;
        }
    }
}
