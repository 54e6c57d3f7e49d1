//! A store's session: opened when first used, dropped when in doubt.
//!
//! # Why nothing lands late
//! A statement whose connection broke may still be at work, or wait for a lock, in the server. If it landed after the
//! table was read again, the node would act on a table that is no more. So each session of a writer holds an advisory
//! lock that is the store's own, and the next one ends the session that holds it and has the lock before it does
//! anything: what the last session did is done by then, or never is. Sessions that only read need none.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::{sleep, timeout};
use tokio_postgres::error::{DbError, Severity, SqlState};
use tokio_postgres::{AsyncMessage, Client, Statement};
use tokio_util::task::AbortOnDropHandle;

use super::{Memory, Store, StoreError};

const LATE: &str = "no answer within the deadline";
/// Between two looks at a lock that the last session still holds.
const AGAIN: Duration = Duration::from_millis(10);

/// One connection with its statements.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) client: Client,
    _driver: AbortOnDropHandle<()>,
    deadline: Duration,
    /// The outcome of a statement is unknown: nothing more is asked here.
    lost: AtomicBool,
    /// The server gave a warning: the outcome of what runs now is unknown.
    pub(super) warned: Arc<AtomicBool>,
    pub(super) accept: Statement,
    pub(super) replace: Statement,
    pub(super) record: Statement,
    pub(super) settle: Statement,
}

/// One connection.
pub(super) struct Bare {
    client: Client,
    driver: AbortOnDropHandle<()>,
    warned: Arc<AtomicBool>,
}

fn is_warning(notice: &DbError) -> bool {
    notice.parsed_severity() == Some(Severity::Warning)
}

/// Takes the store's lock, and ends the session that has it. Returns when it is had: the caller has a deadline.
async fn alone(client: &Client, key: i64) -> Result<(), tokio_postgres::Error> {
    let end = "select pg_terminate_backend(l.pid) from pg_locks l \
               where l.locktype = 'advisory' and l.granted and l.objsubid = 1 \
                 and l.classid = (($1::bigint >> 32) & 4294967295)::oid and l.objid = ($1 & 4294967295)::oid \
                 and l.database = (select oid from pg_database where datname = current_database())";
    while !client.query_one("select pg_try_advisory_lock($1)", &[&key]).await?.get::<_, bool>(0) {
        match client.query(end, &[&key]).await {
            // Of another login role's, as a new user was given for each session: it ends by itself.
            Err(error) if error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) => {}
            ended => drop(ended?),
        }
        sleep(AGAIN).await;
    }
    Ok(())
}

impl Session {
    fn is_usable(&self) -> bool {
        !self.client.is_closed() && !self.lost.load(Ordering::Acquire)
    }

    /// A statement with its deadline. A late answer comes to no caller, so the session goes.
    pub(super) async fn bounded<T>(
        &self,
        statement: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, StoreError> {
        match timeout(self.deadline, statement).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => match StoreError::from(error) {
                StoreError::Lost(why) => Err(self.lose(&why)),
                other => Err(other),
            },
            Err(_) => Err(self.lose(LATE)),
        }
    }

    /// The outcome is unknown: the session goes, and the next statement gets another one.
    pub(super) fn lose(&self, why: &str) -> StoreError {
        self.lost.store(true, Ordering::Release);
        StoreError::Lost(why.to_owned())
    }
}

impl Store {
    pub(super) async fn connect_bare(&self) -> Result<Bare, StoreError> {
        let session = self.connector()?.connect("tenure-tx", self.0.options.deadline).await?;
        let mut connection = session.connection;
        let warned = Arc::new(AtomicBool::new(false));
        let heard = Arc::clone(&warned);
        let driver = tokio::spawn(async move {
            loop {
                match poll_fn(|cx| connection.poll_message(cx)).await {
                    // A commit whose wait for a standby was cancelled says so, and then succeeds.
                    Some(Ok(AsyncMessage::Notice(notice))) if is_warning(&notice) => {
                        tracing::warn!(warning = notice.message(), "the database warns");
                        heard.store(true, Ordering::Release);
                    }
                    Some(Ok(_)) => {}
                    Some(Err(error)) => {
                        tracing::debug!(%error, "the store's session ended");
                        return;
                    }
                    None => return,
                }
            }
        });
        Ok(Bare { client: session.client, driver: AbortOnDropHandle::new(driver), warned })
    }

    /// The present session, or a new one. All of it, the wait for another caller's attempt too, is bounded by twice
    /// the deadline: a database that is away is not tried by one caller after another.
    pub(super) async fn session(&self) -> Result<Arc<Session>, StoreError> {
        match timeout(2 * self.0.options.deadline, self.opened()).await {
            Ok(session) => session,
            Err(_) => Err(StoreError::Lost(LATE.to_owned())),
        }
    }

    async fn opened(&self) -> Result<Arc<Session>, StoreError> {
        let Memory::Table { session, key, .. } = &self.0.memory else {
            return Err(StoreError::Journal("a journal has no table".to_owned()));
        };
        let mut slot = session.lock().await;
        if let Some(session) = slot.as_ref().filter(|session| session.is_usable()) {
            return Ok(Arc::clone(session));
        }
        // Its connection ends here, unless a statement is under way.
        *slot = None;
        let Bare { client, driver, warned } = self.connect_bare().await?;
        let prepared = async {
            client
                .batch_execute(
                    "set default_transaction_isolation = 'read committed'; \
                     set default_transaction_read_only = off; set synchronous_commit = on; \
                     set search_path = pg_catalog; set jit = off",
                )
                .await?;
            if let Some(key) = key {
                alone(&client, *key).await?;
                // What was said until now was not about a write.
                warned.store(false, Ordering::Release);
            }
            let accept = "select tenure_tx.accept($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12,$13, \
                          $14,$15,$16,$17,$18,$19,$20,$21)";
            let replace = "select tenure_tx.replace($1,$2,$3,$4,$5,$6,$7,$8,$9,$10)";
            let record = "select tenure_tx.record($1,$2,$3,$4,$5,$6,$7,$8,$9)";
            let settle = "select tenure_tx.settle($1,$2,$3,$4,$5,$6,$7,$8,$9)";
            futures_util::future::try_join4(
                client.prepare(accept),
                client.prepare(replace),
                client.prepare(record),
                client.prepare(settle),
            )
            .await
        };
        let deadline = self.0.options.deadline;
        let (accept, replace, record, settle) = match timeout(deadline, prepared).await {
            Ok(statements) => statements?,
            Err(_) => return Err(StoreError::Lost(LATE.to_owned())),
        };
        let lost = AtomicBool::new(false);
        let session = Session {
            client,
            _driver: driver,
            deadline,
            lost,
            warned,
            accept,
            replace,
            record,
            settle,
        };
        let session = Arc::new(session);
        *slot = Some(Arc::clone(&session));
        Ok(session)
    }
}
