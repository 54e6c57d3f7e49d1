//! One dedicated session, spoken to one simple query at a time.
//!
//! A *line* is what a member of `tenure` keeps to the database. It never pools, never retries and never
//! hides anything: an answer that came with a warning is a failure, because a statement that was
//! cancelled while it waited for a standby returns success with a warning. The one exception is the
//! first answer: what a server warns of at login (a collation version that changed with the operating
//! system) arrives with it and says nothing about a statement. So a line's first statement pins
//! settings or asks something harmless.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_postgres::{AsyncMessage, SimpleQueryMessage};

use crate::error::whole_millis;
use crate::{Connection, Remedy, Session};

/// Why a line did not answer as it should.
///
/// A closed set: a caller must decide of each error whether its statement may have happened.
#[derive(Debug, Clone, thiserror::Error)]
pub enum LineError {
    /// No answer in time. The statement may have happened.
    #[error("the database did not answer within {0:?}")]
    Deadline(Duration),
    /// There is no session any more. The statement may have happened.
    #[error("the session ended: {0}")]
    Closed(String),
    /// An answer that came with a warning, and so proves nothing.
    #[error("the database answered with a warning: {0}")]
    Warned(String),
    /// The server refused the statement. Nothing was written.
    #[error("{message} (SQLSTATE {sqlstate})")]
    #[allow(missing_docs, reason = "the names say it")]
    Refused { sqlstate: String, message: String },
    /// An answer in no form that was expected.
    #[error("the database answered something unexpected: {0}")]
    Unreadable(String),
}

impl LineError {
    /// What has to happen before the same statement can succeed, on a new session.
    pub fn remedy(&self) -> Remedy {
        match self {
            LineError::Deadline(_)
            | LineError::Closed(_)
            | LineError::Warned(_)
            | LineError::Unreadable(_) => Remedy::Time,
            LineError::Refused { sqlstate, .. } => Remedy::of_sqlstate(sqlstate),
        }
    }

    /// The code of a refusal; `None` for every other error.
    pub fn sqlstate(&self) -> Option<&str> {
        match self {
            LineError::Refused { sqlstate, .. } => Some(sqlstate),
            LineError::Deadline(_)
            | LineError::Closed(_)
            | LineError::Warned(_)
            | LineError::Unreadable(_) => None,
        }
    }
}

/// What a line says without being asked. A closed set. After `Closed`, with the reason, nothing more comes.
#[derive(Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Unasked {
    Notification { channel: String, payload: String },
    Closed(String),
}

#[derive(Default)]
struct Warnings {
    count: AtomicU64,
    last: Mutex<String>,
}

/// A session and the task that reads from it. Dropping it closes the socket at once.
pub struct Line {
    client: Option<tokio_postgres::Client>,
    reader: JoinHandle<()>,
    warnings: Arc<Warnings>,
    /// The first answer is there, and with it whatever the login warned of.
    greeted: AtomicBool,
}

impl Drop for Line {
    fn drop(&mut self) {
        // The reader owns the socket: it must not outlive the line, whatever it waits for.
        self.reader.abort();
    }
}

impl Line {
    /// Takes a session over; must be called in a tokio runtime. What it says unasked arrives at `heard`,
    /// whose receiver must be kept if notifications are listened for. It is an unbounded channel, because
    /// a session's notifications are bounded by what the group does, and a lost `Closed` would hang.
    pub fn new(session: Session, heard: mpsc::UnboundedSender<Unasked>) -> Self {
        let warnings = Arc::new(Warnings::default());
        let reader = tokio::spawn(read(session.connection, heard, warnings.clone()));
        Line { client: Some(session.client), reader, warnings, greeted: AtomicBool::new(false) }
    }

    /// Sends one message and waits for its answer: the first column of the last row.
    ///
    /// Not to be cancelled by a caller that wants to go on using the line: the statement goes on
    /// in the server. Past the deadline the caller drops the line.
    ///
    /// # Errors
    /// [`LineError`]; only after [`LineError::Refused`] it is certain that nothing was written.
    pub async fn ask(&self, sql: &str, within: Duration) -> Result<Option<String>, LineError> {
        let before = self.warnings.count.load(Ordering::Acquire);
        let client = self.client.as_ref().ok_or_else(|| LineError::Closed("closed".to_owned()))?;
        let answer = match timeout(within, client.simple_query(sql)).await {
            Err(_) => return Err(LineError::Deadline(whole_millis(within))),
            Ok(Err(error)) => return Err(explain(&error)),
            Ok(Ok(answer)) => answer,
        };
        // The reader handles a notice before it hands on the messages behind it, so whatever the
        // statement warned of has been counted by now.
        let greeted = self.greeted.swap(true, Ordering::AcqRel);
        if greeted && self.warnings.count.load(Ordering::Acquire) != before {
            return Err(LineError::Warned(
                self.warnings
                    .last
                    .lock()
                    .map_or_else(|poisoned| poisoned.into_inner().clone(), |last| last.clone()),
            ));
        }
        Ok(answer
            .into_iter()
            .rev()
            .find_map(|message| match message {
                SimpleQueryMessage::Row(row) => Some(row.get(0).map(str::to_owned)),
                _ => None,
            })
            .flatten())
    }

    /// Says goodbye and waits, for `within` at most, until the socket is closed.
    pub async fn hang_up(mut self, within: Duration) {
        self.client = None;
        let _ = timeout(within, &mut self.reader).await;
    }
}

async fn read(
    mut connection: Connection,
    heard: mpsc::UnboundedSender<Unasked>,
    warnings: Arc<Warnings>,
) {
    let end = loop {
        match std::future::poll_fn(|cx| connection.poll_message(cx)).await {
            Some(Ok(AsyncMessage::Notification(n))) => {
                let (channel, payload) = (n.channel().to_owned(), n.payload().to_owned());
                if heard.send(Unasked::Notification { channel, payload }).is_err() {
                    return;
                }
            }
            Some(Ok(AsyncMessage::Notice(notice))) => {
                // By the untranslated severity; without one, fail closed.
                use tokio_postgres::error::Severity::{Debug, Info, Log, Notice};
                if !matches!(notice.parsed_severity(), Some(Debug | Info | Log | Notice)) {
                    let mut last = match warnings.last.lock() {
                        Ok(last) => last,
                        Err(poisoned) => poisoned.into_inner(),
                    };
                    *last = notice.message().to_owned();
                    drop(last);
                    warnings.count.fetch_add(1, Ordering::Release);
                }
            }
            Some(Ok(_)) => {}
            Some(Err(error)) => break explain(&error).to_string(),
            None => break "closed".to_owned(),
        }
    };
    let _ = heard.send(Unasked::Closed(end));
}

/// The driver's own text says only "db error"; what happened stands behind it.
fn explain(error: &tokio_postgres::Error) -> LineError {
    if let Some(db) = error.as_db_error() {
        return LineError::Refused {
            sqlstate: db.code().code().to_owned(),
            message: match db.hint() {
                Some(hint) => format!("{}; {hint}", db.message()),
                None => db.message().to_owned(),
            },
        };
    }
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    LineError::Closed(text)
}
