//! What happened to the account's transactions, as every node sees it: read from the table.
//!
//! A notification only wakes the reader; what it delivers is read by `change`, which grows in commit
//! order. So a lost notification costs time (the repair poll), never a state, and a reader that
//! reconnects after any cut goes on where it stopped.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::clock::{BootClock, Clock, Tick};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_postgres::AsyncMessage;
use tokio_util::task::AbortOnDropHandle;

use crate::store::{Store, StoreError, StoredTransaction};

/// How often the feed reads, and when it reports a stale view.
#[derive(Debug, Clone)]
pub struct FeedOptions {
    /// Read the table at least this often. Default 1 s; above zero. It bounds what a lost notification costs;
    /// one indexed query each time.
    pub poll: Duration,
    /// How long reading may fail before the view counts as stale. Default 5 s.
    pub stale_after: Duration,
}

impl Default for FeedOptions {
    fn default() -> Self {
        FeedOptions { poll: Duration::from_secs(1), stale_after: Duration::from_secs(5) }
    }
}

/// One message of the feed.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum FeedItem {
    /// A row as it is now. States between two reads may be skipped; the last never is.
    Row(Box<StoredTransaction>),
    /// The table has not been readable for a while: the view is stale.
    Stale(String),
    /// It is readable again.
    Fresh,
}

/// Starts reading after `change` (0: from the beginning; [`Store::newest_change`]: from now on). Ends
/// when the receiver is dropped. Must be called in a tokio runtime.
///
/// Remember [`StoredTransaction::change`] of the last row to go on from there after a restart: nothing is
/// missed by a reader that comes back within
/// [`ServiceOptions::keep_ids`](crate::ServiceOptions::keep_ids). The channel is bounded: a slow reader
/// delays the feed, it loses nothing. A table that cannot be read is read
/// again after [`FeedOptions::poll`], or after a second if that is shorter.
#[must_use]
pub fn feed(store: Store, change: i64, options: FeedOptions) -> mpsc::Receiver<FeedItem> {
    let (sender, receiver) = mpsc::channel(1_024);
    tokio::spawn(async move {
        let view = View::new(options.stale_after, Arc::new(BootClock));
        let mut reader = Reader { store, change, options, sender, view };
        // Ends only when the receiver is gone.
        let _ = reader.run().await;
    });
    receiver
}

/// The receiver is gone.
struct Gone;

struct Reader {
    store: Store,
    change: i64,
    options: FeedOptions,
    sender: mpsc::Sender<FeedItem>,
    view: View,
}

/// Whether the table could be read of late.
#[derive(Debug)]
pub(crate) struct View {
    stale_after: Duration,
    failing: Option<Tick>,
    stale: bool,
    clock: Arc<dyn Clock>,
}

impl View {
    pub(crate) fn new(stale_after: Duration, clock: Arc<dyn Clock>) -> Self {
        View { stale_after, failing: None, stale: false, clock }
    }

    pub(crate) fn is_stale(&self) -> bool {
        self.stale
    }

    /// The table was read. An item if the view was stale.
    pub(crate) fn read(&mut self) -> Option<FeedItem> {
        self.failing = None;
        std::mem::take(&mut self.stale).then_some(FeedItem::Fresh)
    }

    /// The table was not read. An item if that has lasted too long.
    pub(crate) fn failed(&mut self, reason: &str) -> Option<FeedItem> {
        let now = self.clock.now();
        let since = *self.failing.get_or_insert(now);
        if self.stale || now < since + self.stale_after {
            return None;
        }
        self.stale = true;
        Some(FeedItem::Stale(reason.to_owned()))
    }
}

impl Reader {
    async fn run(&mut self) -> Result<(), Gone> {
        loop {
            match self.listen().await {
                Ok(gone) => return Err(gone),
                Err(error) => self.failed(&error.to_string()).await?,
            }
            let pause = self.options.poll.min(Duration::from_secs(1));
            sleep(pause).await;
        }
    }

    /// Listens on one session until it breaks (`Err`) or the receiver is gone (`Ok`).
    async fn listen(&mut self) -> Result<Gone, StoreError> {
        let deadline = self.store.options().deadline;
        let session = self.store.connector()?.connect("tenure-tx feed", deadline).await?;
        let (client, mut connection) = (session.client, session.connection);
        let (wake, mut woken) = mpsc::channel(1);
        let _driver = AbortOnDropHandle::new(tokio::spawn(async move {
            while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
                if let AsyncMessage::Notification(_) = message {
                    // Full means that a wake-up is due already.
                    let _ = wake.try_send(());
                }
            }
        }));
        let listen = client.batch_execute("listen pending_tx_new; listen pending_tx_update");
        match timeout(deadline, listen).await {
            Ok(done) => done?,
            Err(_) => return Err(StoreError::Lost("listen got no answer".to_owned())),
        }
        loop {
            // Read after LISTEN took effect: nothing can fall between.
            if self.catch_up().await?.is_err() {
                return Ok(Gone);
            }
            tokio::select! {
                // Cancel-safe: a channel. `None` is a broken session.
                notified = woken.recv() => {
                    if notified.is_none() {
                        return Err(StoreError::Lost("the listening session ended".to_owned()));
                    }
                }
                // Cancel-safe: a timer.
                () = sleep(self.options.poll) => {}
                // Cancel-safe: only observes.
                () = self.sender.closed() => return Ok(Gone),
            }
        }
    }

    async fn catch_up(&mut self) -> Result<Result<(), Gone>, StoreError> {
        loop {
            let rows = self.store.changes(self.change).await?;
            if let Some(fresh) = self.view.read()
                && self.sender.send(fresh).await.is_err()
            {
                return Ok(Err(Gone));
            }
            if rows.is_empty() {
                return Ok(Ok(()));
            }
            for row in rows {
                let change = row.change;
                if self.sender.send(FeedItem::Row(Box::new(row))).await.is_err() {
                    return Ok(Err(Gone));
                }
                self.change = change;
            }
        }
    }

    async fn failed(&mut self, reason: &str) -> Result<(), Gone> {
        if let Some(stale) = self.view.failed(reason) {
            return self.sender.send(stale).await.map_err(|_| Gone);
        }
        if self.sender.is_closed() { Err(Gone) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use tenure_core::clock::ManualClock;

    use super::*;

    #[test]
    fn a_view_that_cannot_be_read_for_too_long_is_stale_and_says_so_once() {
        let clock = ManualClock::new(Tick::ZERO);
        let mut view = View::new(Duration::from_secs(5), Arc::new(clock.clone()));
        assert!(view.read().is_none(), "it was never stale");
        assert!(view.failed("away").is_none());
        clock.advance(Duration::from_secs(4));
        assert!(view.failed("away").is_none());
        // A suspended machine reads nothing, and its clock counts that time.
        clock.advance(Duration::from_secs(3_600));
        assert!(matches!(view.failed("away"), Some(FeedItem::Stale(_))));
        assert!(view.failed("away").is_none() && view.is_stale());
        assert!(matches!(view.read(), Some(FeedItem::Fresh)));
    }
}
