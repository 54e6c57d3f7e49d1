//! What a program and its guardian say to each other: frames of two 64-bit numbers.

use std::time::Duration;

use tenure_core::Tick;

use crate::watch::EndedBy;

const BYTES: usize = 16;

/// From the program to the guardian.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Instruction {
    /// The gate may be open until then.
    Deadline(Tick),
    /// End the child: SIGTERM, this grace, SIGKILL.
    Stop(Duration),
}

/// From the guardian to the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Announcement {
    /// The child runs.
    Started { pid: i32 },
    /// It could not be started; nothing runs.
    NotStarted { errno: i32 },
    /// Neither the child nor any of its descendants is alive.
    Gone { status: i32, by: EndedBy },
}

/// A frame on its way in, however it is cut.
#[derive(Debug, Default)]
pub(crate) struct Frame {
    bytes: [u8; BYTES],
    full: usize,
}

impl Frame {
    /// Where the next bytes go.
    pub(crate) fn rest(&mut self) -> &mut [u8] {
        &mut self.bytes[self.full..]
    }

    /// Counts bytes that were read; the two numbers once they are complete.
    pub(crate) fn filled(&mut self, read: usize) -> Option<(u64, u64)> {
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

impl Instruction {
    pub(crate) fn write(self) -> [u8; BYTES] {
        match self {
            Instruction::Deadline(at) => frame(1, at.as_nanos()),
            Instruction::Stop(grace) => {
                frame(2, u64::try_from(grace.as_nanos()).unwrap_or(u64::MAX))
            }
        }
    }

    pub(crate) fn read((kind, value): (u64, u64)) -> Option<Self> {
        match kind {
            1 => Some(Instruction::Deadline(Tick::from_nanos(value))),
            2 => Some(Instruction::Stop(Duration::from_nanos(value))),
            _ => None,
        }
    }
}

impl Announcement {
    pub(crate) fn write(self) -> [u8; BYTES] {
        let low = |n: i32| u64::from(n.cast_unsigned());
        match self {
            Announcement::Started { pid } => frame(1, low(pid)),
            Announcement::NotStarted { errno } => frame(2, low(errno)),
            Announcement::Gone { status, by } => frame(3, low(status) | (by as u64) << 32),
        }
    }

    pub(crate) fn read((kind, value): (u64, u64)) -> Option<Self> {
        let low = (value as u32).cast_signed();
        match kind {
            1 => Some(Announcement::Started { pid: low }),
            2 => Some(Announcement::NotStarted { errno: low }),
            3 => {
                let by = match value >> 32 {
                    0 => EndedBy::Exited,
                    1 => EndedBy::Stopped,
                    2 => EndedBy::LeaseEnded,
                    _ => EndedBy::Orphaned,
                };
                Some(Announcement::Gone { status: low, by })
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
            if let Some(numbers) = frame.filled(part.len()) {
                return Some(numbers);
            }
        }
        None
    }

    #[test]
    fn every_message_survives_the_wire_however_it_is_cut() {
        let instructions = [
            Instruction::Deadline(Tick::from_nanos(u64::MAX - 7)),
            Instruction::Stop(Duration::ZERO),
        ];
        let announcements = [
            Announcement::Started { pid: i32::MAX },
            Announcement::NotStarted { errno: 2 },
            Announcement::Gone { status: 0x7f00, by: EndedBy::Exited },
            Announcement::Gone { status: 9, by: EndedBy::Orphaned },
            Announcement::Gone { status: -1, by: EndedBy::LeaseEnded },
            Announcement::Gone { status: 15, by: EndedBy::Stopped },
        ];
        for cut in [1, 5, 16] {
            for instruction in instructions {
                assert_eq!(
                    through(instruction.write(), cut).and_then(Instruction::read),
                    Some(instruction)
                );
            }
            for announcement in announcements {
                assert_eq!(
                    through(announcement.write(), cut).and_then(Announcement::read),
                    Some(announcement)
                );
            }
        }
    }
}
