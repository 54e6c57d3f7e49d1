//! Where words go. A reader that has read enough (`| head`) is no error: the program ends as it
//! would have, with its own exit code, and nothing panics over a closed pipe.

use std::fmt::Arguments;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

static UNHEARD: AtomicBool = AtomicBool::new(false);

/// Writes a line to standard output.
macro_rules! say {
    ($($arg:tt)*) => { $crate::speech::to_output(format_args!($($arg)*)) };
}

/// Writes a line to standard error, under the program's name.
macro_rules! complain {
    ($($arg:tt)*) => { $crate::speech::to_error(format_args!($($arg)*)) };
}

pub(crate) use {complain, say};

pub(crate) fn to_output(words: Arguments<'_>) {
    if writeln!(std::io::stdout().lock(), "{words}").is_err() {
        UNHEARD.store(true, Ordering::Relaxed);
    }
}

pub(crate) fn to_error(words: Arguments<'_>) {
    let _ = writeln!(std::io::stderr().lock(), "tenure: {words}");
}

/// Whether nobody reads standard output any more.
pub(crate) fn is_unheard() -> bool {
    UNHEARD.load(Ordering::Relaxed)
}
