//! The signals that end the program: SIGTERM, SIGINT, and SIGHUP unless it is ignored.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Listens from its making on; a signal that comes before [`Signals::next`] is kept.
#[derive(Debug)]
pub(crate) struct Signals {
    term: Signal,
    int: Signal,
    hup: Option<Signal>,
}

impl Signals {
    pub(crate) fn listen() -> std::io::Result<Self> {
        Ok(Signals {
            term: signal(SignalKind::terminate())?,
            int: signal(SignalKind::interrupt())?,
            // Under `nohup` a hang-up stays ignored.
            hup: if ignores_hangup() { None } else { Some(signal(SignalKind::hangup())?) },
        })
    }

    /// Cancel-safe, as each of its parts is.
    pub(crate) async fn next(&mut self) {
        self.number().await;
    }

    /// As [`Signals::next`]; says which signal it was, by its number. Cancel-safe.
    pub(crate) async fn number(&mut self) -> u8 {
        let kind = tokio::select! {
            _ = self.term.recv() => SignalKind::terminate(),
            _ = self.int.recv() => SignalKind::interrupt(),
            Some(_) = async { self.hup.as_mut()?.recv().await } => SignalKind::hangup(),
        };
        u8::try_from(kind.as_raw_value()).expect("these three are below 16")
    }
}

/// Whether this process was started with hang-ups ignored: the first bit of the kernel's mask.
fn ignores_hangup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|m| m & 1 == 1)
}
