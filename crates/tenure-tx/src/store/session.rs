//! A store's session: opened when first used, dropped when in doubt.

use std::sync::Arc;

use tokio::time::timeout;
use tokio_postgres::{Client, Statement};
use tokio_util::task::AbortOnDropHandle;

use super::{Memory, Store, StoreError};

/// One connection with its statements.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) client: Client,
    _driver: AbortOnDropHandle<()>,
    pub(super) accept: Statement,
    pub(super) replace: Statement,
    pub(super) record: Statement,
}

impl Store {
    pub(super) async fn connect_bare(&self) -> Result<(Client, AbortOnDropHandle<()>), StoreError> {
        let session = self.connector()?.connect("tenure-tx", self.0.options.deadline).await?;
        let connection = session.connection;
        let driver = tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "the store's session ended");
            }
        });
        Ok((session.client, AbortOnDropHandle::new(driver)))
    }

    pub(super) async fn session(&self) -> Result<Arc<Session>, StoreError> {
        let Memory::Table { session, .. } = &self.0.memory else {
            return Err(StoreError::Journal("a journal has no table".to_owned()));
        };
        let mut slot = session.lock().await;
        if let Some(session) = slot.as_ref().filter(|s| !s.client.is_closed()) {
            return Ok(Arc::clone(session));
        }
        let (client, driver) = self.connect_bare().await?;
        let prepared = async {
            client
                .batch_execute(
                    "set default_transaction_isolation = 'read committed'; \
                     set default_transaction_read_only = off; set synchronous_commit = on; \
                     set search_path = pg_catalog",
                )
                .await?;
            let accept = "select tenure_tx.accept($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12,$13, \
                          $14,$15,$16,$17,$18,$19,$20,$21)";
            let replace = "select tenure_tx.replace($1,$2,$3,$4,$5,$6,$7,$8,$9)";
            let record = "select tenure_tx.record($1,$2,$3,$4,$5,$6,$7,$8,$9)";
            futures_util::future::try_join3(
                client.prepare(accept),
                client.prepare(replace),
                client.prepare(record),
            )
            .await
        };
        // Not `bounded`: it would wait for the lock held here.
        let (accept, replace, record) = match timeout(self.0.options.deadline, prepared).await {
            Ok(statements) => statements?,
            Err(_) => return Err(StoreError::Lost("no answer within the deadline".to_owned())),
        };
        let session = Arc::new(Session { client, _driver: driver, accept, replace, record });
        *slot = Some(Arc::clone(&session));
        Ok(session)
    }
}
