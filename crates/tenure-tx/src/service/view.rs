//! A node's view of the table: what changed, and whether it can be read at all.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::clock::Clock;
use tokio::sync::{broadcast, watch};
use tokio::time::sleep;

use crate::election::{Election, Unready};
use crate::feed::{FeedItem, FeedOptions, View, feed};
use crate::metrics;
use crate::store::{Store, StoredTransaction};

/// Hands the table's changes to all subscribers, and logs an error when it cannot.
///
/// While there are none, the rows are not read: only that they could be.
pub(super) async fn watch(
    store: Store,
    options: FeedOptions,
    statuses: broadcast::Sender<Arc<StoredTransaction>>,
    stale: watch::Sender<bool>,
    election: Election,
    clock: Arc<dyn Clock>,
) {
    let mut after = 0;
    let mut view = View::new(options.stale_after, clock);
    let health = |item| match item {
        FeedItem::Row(_) => {}
        FeedItem::Stale(reason) => {
            tracing::error!(
                role = %election.role(), reason,
                "THE VIEW OF THE TRANSACTIONS IS STALE AND UNRELIABLE: the database cannot be \
                 read; this node will not be promoted until it can"
            );
            metrics::set(metrics::VIEW_STALE, 1);
            election.set_unready(Unready::StaleView, true);
            stale.send_replace(true);
        }
        FeedItem::Fresh => {
            tracing::warn!(role = %election.role(), "the transactions can be read again");
            metrics::set(metrics::VIEW_STALE, 0);
            election.set_unready(Unready::StaleView, false);
            stale.send_replace(false);
        }
    };
    loop {
        // A stale view is looked after here until it is fresh: the feed would start with a view of
        // its own and never report that this one is fresh again.
        if statuses.receiver_count() == 0 || view.is_stale() {
            let news = match store.newest_change().await {
                Ok(newest) => {
                    // A subscriber that came while the table was asked is owed what it has not seen.
                    if statuses.receiver_count() == 0 {
                        after = newest;
                    }
                    view.read()
                }
                Err(error) => view.failed(&error.to_string()),
            };
            news.into_iter().for_each(health);
            sleep(options.poll.min(QUIET)).await;
            continue;
        }
        let mut items = feed(store.clone(), after, options.clone());
        while let Some(item) = items.recv().await {
            match item {
                FeedItem::Row(row) => {
                    after = row.change;
                    if statuses.send(Arc::from(row)).is_err() {
                        break;
                    }
                }
                other @ (FeedItem::Stale(_) | FeedItem::Fresh) => health(other),
            }
        }
    }
}

/// How long a first subscriber may wait for the feed to start.
const QUIET: Duration = Duration::from_millis(250);
