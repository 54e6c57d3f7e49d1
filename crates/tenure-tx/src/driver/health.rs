//! Whether this node can read its chain's head, told to the election.
//!
//! A node that cannot is not promoted if another can be; a leader that cannot hands over when
//! another member is ready, which says of itself that it reads its own. A head that lacks nonces which
//! the table knows to be final is no head: nothing could be done on it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tenure_core::clock::Clock;
use tokio::time::sleep;

use crate::account::AccountId;
use crate::chain::Chain;
use crate::election::{Election, Unready};
use crate::metrics;
use crate::store::Store;

/// How far the account's nonces are used for good, as far as this node knows from the table.
pub(super) type Known = Arc<AtomicU64>;

pub(super) async fn watch(
    chain: Arc<dyn Chain>,
    account: AccountId,
    known: Known,
    election: Election,
    store: Option<Store>,
    lost_after: Duration,
    clock: Arc<dyn Clock>,
) {
    let mut answered = clock.now();
    let mut lost = false;
    loop {
        metrics::set(metrics::CHAIN_LOST, usize::from(lost));
        let head = match chain.head(&account).await {
            Ok(head) if head.best_nonce < known.load(Ordering::Relaxed) => {
                Err("it has not used nonces that were final".to_owned())
            }
            Ok(head) => Ok(head),
            Err(error) => Err(error.to_string()),
        };
        match head {
            Ok(_) => {
                answered = clock.now();
                if lost {
                    tracing::warn!(event = "tx_chain_found", "the chain's head can be read again");
                    election.set_unready(Unready::Chain, false);
                }
                lost = false;
            }
            // Not at the first look: the others learn a moment later that they lost theirs too, and
            // say so, or the role would go round among nodes none of which reaches the chain.
            Err(_) if lost => hand_over(&election, store.as_ref()).await,
            Err(error) if clock.now() >= answered + lost_after => {
                let event = "tx_chain_lost";
                tracing::error!(event, error, "THE CHAIN'S HEAD CANNOT BE READ: not ready to lead");
                election.set_unready(Unready::Chain, true);
                lost = true;
            }
            Err(_) => {}
        }
        sleep(lost_after / 3).await;
    }
}

/// Steps down, if this node leads and another is ready: else nothing would be better.
async fn hand_over(election: &Election, store: Option<&Store>) {
    let Some(store) = store.filter(|_| election.gate().is_leader()) else { return };
    match store.has_ready_rival().await {
        Ok(true) => {
            tracing::warn!(
                event = "tx_hand_over",
                "another member reads its chain's head: stepping down"
            );
            election.step_down();
        }
        Ok(false) => {}
        Err(error) => tracing::debug!(%error, "cannot see whether another member is ready"),
    }
}
