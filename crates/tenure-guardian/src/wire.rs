//! What `tenure` and its guardian say to each other: frames of two 64-bit words.

use std::time::Duration;

use tenure_core::Tick;

use crate::watch::Why;

const BYTES: usize = 16;

/// From `tenure` to the guardian.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Word {
    /// The gate may be open until then.
    Deadline(Tick),
    /// End the child: SIGTERM, this grace, SIGKILL.
    Stop(Duration),
}

/// From the guardian to `tenure`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Report {
    /// The child runs.
    Started { pid: i32 },
    /// It could not be started; nothing runs.
    NotStarted { errno: i32 },
    /// Neither the child nor any of its descendants is alive.
    Gone { status: i32, why: Why },
}

/// A frame on its way in, however it is cut.
#[derive(Debug, Default)]
pub struct Frame {
    bytes: [u8; BYTES],
    full: usize,
}

impl Frame {
    /// Where the next bytes go.
    pub fn rest(&mut self) -> &mut [u8] {
        &mut self.bytes[self.full..]
    }

    /// Counts bytes that were read; the two words once they are complete.
    pub fn filled(&mut self, read: usize) -> Option<(u64, u64)> {
        self.full += read;
        if self.full < BYTES {
            return None;
        }
        self.full = 0;
        let (kind, value) = self.bytes.split_at(8);
        let number = |half: &[u8]| half.iter().rev().fold(0, |n, byte| n << 8 | u64::from(*byte));
        Some((number(kind), number(value)))
    }
}

fn frame(kind: u64, value: u64) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    bytes[..8].copy_from_slice(&kind.to_le_bytes());
    bytes[8..].copy_from_slice(&value.to_le_bytes());
    bytes
}

impl Word {
    pub fn write(self) -> [u8; BYTES] {
        match self {
            Word::Deadline(at) => frame(1, at.as_nanos()),
            Word::Stop(grace) => frame(2, u64::try_from(grace.as_nanos()).unwrap_or(u64::MAX)),
        }
    }

    pub fn read((kind, value): (u64, u64)) -> Option<Self> {
        match kind {
            1 => Some(Word::Deadline(Tick::from_nanos(value))),
            2 => Some(Word::Stop(Duration::from_nanos(value))),
            _ => None,
        }
    }
}

impl Report {
    pub fn write(self) -> [u8; BYTES] {
        let low = |n: i32| u64::from(n.cast_unsigned());
        match self {
            Report::Started { pid } => frame(1, low(pid)),
            Report::NotStarted { errno } => frame(2, low(errno)),
            Report::Gone { status, why } => frame(3, low(status) | (why as u64) << 32),
        }
    }

    pub fn read((kind, value): (u64, u64)) -> Option<Self> {
        let low = (value as u32).cast_signed();
        match kind {
            1 => Some(Report::Started { pid: low }),
            2 => Some(Report::NotStarted { errno: low }),
            3 => {
                let why = match value >> 32 {
                    0 => Why::Exited,
                    1 => Why::Stopped,
                    2 => Why::LeaseEnded,
                    _ => Why::Orphaned,
                };
                Some(Report::Gone { status: low, why })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn through(bytes: [u8; BYTES], cut: usize) -> Option<(u64, u64)> {
        let mut frame = Frame::default();
        for part in bytes.chunks(cut) {
            frame.rest()[..part.len()].copy_from_slice(part);
            if let Some(words) = frame.filled(part.len()) {
                return Some(words);
            }
        }
        None
    }

    #[test]
    fn every_word_survives_the_wire_however_it_is_cut() {
        let words = [Word::Deadline(Tick::from_nanos(u64::MAX - 7)), Word::Stop(Duration::ZERO)];
        let reports = [
            Report::Started { pid: i32::MAX },
            Report::NotStarted { errno: 2 },
            Report::Gone { status: 0x7f00, why: Why::Exited },
            Report::Gone { status: 9, why: Why::Orphaned },
            Report::Gone { status: -1, why: Why::LeaseEnded },
            Report::Gone { status: 15, why: Why::Stopped },
        ];
        for cut in [1, 5, 16] {
            for word in words {
                assert_eq!(through(word.write(), cut).and_then(Word::read), Some(word));
            }
            for report in reports {
                assert_eq!(through(report.write(), cut).and_then(Report::read), Some(report));
            }
        }
    }
}
