//! The application or a client that waits for an answer.

use tokio::sync::oneshot;

use super::refusal::Refusal;
use crate::history::{Outcome, Record};
use crate::net::outbox::Outbox;
use crate::net::wire::Answer;

/// Where the answer to the application goes.
pub(crate) type Answerer<T> = oneshot::Sender<Result<T, Refusal>>;

/// A caller that waits for a `T`.
pub(crate) enum Caller<T> {
    Local(Answerer<T>),
    Client(Outbox),
    /// A key that asks to be let in, and what it is told then.
    Joiner {
        out: Outbox,
        welcome: Answer,
    },
}

impl<T: Into<Answer>> Caller<T> {
    /// Whether it no longer waits.
    pub(crate) fn is_gone(&self) -> bool {
        match self {
            Self::Local(done) => done.is_closed(),
            Self::Client(out) | Self::Joiner { out, .. } => out.is_closed(),
        }
    }

    pub(crate) fn answer(self, result: Result<T, Refusal>) {
        // A caller that no longer waits needs no answer.
        match (self, result) {
            (Self::Local(done), result) => drop(done.send(result)),
            (Self::Client(out), Ok(value)) => drop(out.answer(value.into())),
            (Self::Joiner { out, welcome }, Ok(value)) => match value.into() {
                Answer::Record(Record { outcome: Outcome::Rejected(why), .. }) => {
                    let _ = out.answer(Answer::Refused(why));
                }
                _ => {
                    let _ = out.answer(welcome);
                }
            },
            (Self::Client(out), Err(Refusal::OnlyInSnapshot { index, done })) => {
                let _ = out.answer(Answer::Decided { index, done });
            }
            (Self::Client(out) | Self::Joiner { out, .. }, Err(why)) => drop(out.refuse(&why)),
        }
    }
}

impl From<Record> for Answer {
    fn from(record: Record) -> Self {
        Self::Record(record)
    }
}

impl From<()> for Answer {
    fn from((): ()) -> Self {
        Self::Done
    }
}
