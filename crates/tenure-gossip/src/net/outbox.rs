//! What waits to be written to one connection, bounded by count and by bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use tokio::sync::mpsc;

use super::session::encode;
use super::wire::{Answer, Envelope, MAX_FRAME};
use crate::driver::refusal::Refusal;

/// Frames waiting at most.
const FRAMES: usize = 1_024;
/// Bytes waiting at most: a peer that stopped reading costs no more than this.
const BYTES: usize = 8 << 20;

/// The end that is written to. What does not fit is dropped, as a network would.
#[derive(Clone)]
pub(crate) struct Outbox {
    frames: mpsc::Sender<Bytes>,
    waiting: Arc<AtomicUsize>,
    /// The question that answers put here belong to.
    number: u64,
}

/// The end the connection's writer reads.
pub(crate) struct Outgoing {
    frames: mpsc::Receiver<Bytes>,
    waiting: Arc<AtomicUsize>,
}

pub(crate) fn outbox() -> (Outbox, Outgoing) {
    let (to, from) = mpsc::channel(FRAMES);
    let waiting = Arc::new(AtomicUsize::new(0));
    (Outbox { frames: to, waiting: waiting.clone(), number: 0 }, Outgoing { frames: from, waiting })
}

impl Outbox {
    /// The same end, for the answers to the question `number`.
    pub(crate) fn for_question(&self, number: u64) -> Self {
        Self { number, ..self.clone() }
    }

    /// Whether it will be sent if the connection lives.
    pub(crate) fn put(&self, envelope: &Envelope) -> bool {
        let frame = encode(envelope);
        let size = frame.len();
        let fits = self.waiting.fetch_add(size, Ordering::Relaxed) + size <= BYTES;
        // A frame above the limit would end the connection of a peer that did nothing wrong.
        let sent = fits && size <= MAX_FRAME && self.frames.try_send(frame).is_ok();
        if !sent {
            self.waiting.fetch_sub(size, Ordering::Relaxed);
        }
        sent
    }

    /// The same, for an answer to a client.
    pub(crate) fn answer(&self, answer: Answer) -> bool {
        self.put(&Envelope::Answer(self.number, answer))
    }

    /// A refusal travels as its sentence.
    pub(crate) fn refuse(&self, why: &Refusal) -> bool {
        self.answer(Answer::Refused(why.to_string()))
    }

    /// Whether half of the room is free.
    pub(crate) fn has_room(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) <= BYTES / 2 && self.frames.capacity() >= FRAMES / 2
    }

    /// Whether another end is left: a question is not answered yet, or something is watched.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.frames.strong_count() > 1
    }

    /// Whether the connection has ended.
    pub(crate) fn is_closed(&self) -> bool {
        self.frames.is_closed()
    }
}

impl Outgoing {
    /// The next frame; `None` when every outbox is gone. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Option<Bytes> {
        let frame = self.frames.recv().await?;
        self.waiting.fetch_sub(frame.len(), Ordering::Relaxed);
        Some(frame)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(size: usize) -> Answer {
        Answer::State { index: 0, bytes: vec![0; size] }
    }

    #[tokio::test]
    async fn bytes_and_frames_are_bounded_and_room_comes_back() {
        let (out, mut outgoing) = outbox();
        assert!(!out.answer(answer(MAX_FRAME)), "a frame too large is never sent");
        let fit = (0..100).take_while(|_| out.answer(answer(1 << 20))).count();
        assert_eq!(fit, 7, "eight with their heads are above 8 MiB");
        assert!(out.answer(Answer::Done), "a small one still fits");
        assert!(outgoing.next().await.is_some());
        assert!(out.answer(answer(1 << 20)), "what was written makes room");

        let (out, outgoing) = outbox();
        assert_eq!((0..2_000).take_while(|_| out.answer(Answer::Done)).count(), FRAMES);
        drop(outgoing);
        assert!(out.is_closed() && !out.answer(Answer::Done));
    }
}
