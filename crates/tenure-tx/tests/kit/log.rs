//! What the code under test says in its log.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use tracing::subscriber::DefaultGuard;

#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

/// Notes what is logged on this thread as long as the guard lives: on a runtime of one thread, all.
pub(crate) fn listen() -> (Log, DefaultGuard) {
    let log = Log::default();
    let writer = log.clone();
    let subscriber =
        tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    (log, tracing::subscriber::set_default(subscriber))
}

impl Log {
    pub(crate) fn lines_with(&self, words: &str) -> Vec<String> {
        let bytes = self.0.lock().expect("unpoisoned");
        let text = String::from_utf8_lossy(&bytes);
        text.lines().filter(|line| line.contains(words)).map(str::to_owned).collect()
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("unpoisoned").write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
