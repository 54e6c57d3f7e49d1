//! Lines on standard output and standard error. A reader that has read enough (`| head`) is no
//! error: the program ends as it would have, with its own exit code, and nothing panics over a
//! closed pipe.

use std::fmt::Arguments;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::Serialize;

static CLOSED: AtomicBool = AtomicBool::new(false);

/// Writes a line to standard output.
macro_rules! out {
    ($($arg:tt)*) => { $crate::output::to_output(format_args!($($arg)*)) };
}

/// Writes a line to standard error, under the program's name.
macro_rules! err {
    ($($arg:tt)*) => { $crate::output::to_error(format_args!($($arg)*)) };
}

pub(crate) use {err, out};

pub(crate) fn to_output(line: Arguments<'_>) {
    let mut output = std::io::stdout().lock();
    // Flushed line by line, also into a pipe: a reader follows as it happens.
    if writeln!(output, "{line}").and_then(|()| output.flush()).is_err() {
        CLOSED.store(true, Ordering::Relaxed);
    }
}

pub(crate) fn to_error(line: Arguments<'_>) {
    let _ = std::io::stderr().lock().write_all(format!("tenure: {line}\n").as_bytes());
}

/// Whether standard output has no reader any more; a command that goes on and on ends then.
pub(crate) fn is_closed() -> bool {
    CLOSED.load(Ordering::Relaxed)
}

/// Prints an answer as JSON for people and programs: many lines.
pub(crate) fn print_json(value: &impl Serialize) {
    out!("{}", serde_json::to_string_pretty(value).expect("our answers have text for keys"));
}
