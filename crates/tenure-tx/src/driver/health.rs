//! Whether this node reaches its chain, told to the election.
//!
//! A node that does not is not promoted if another can be; a leader that does not hands over when
//! another member is ready, which says of itself that it reaches its own.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::clock::Clock;
use tokio::time::sleep;

use crate::chain::Chain;
use crate::election::{Election, Unready};
use crate::metrics;
use crate::store::Store;

pub(super) async fn watch(
    chain: Arc<dyn Chain>,
    election: Election,
    store: Option<Store>,
    lost_after: Duration,
    clock: Arc<dyn Clock>,
) {
    let mut answered = clock.now();
    let mut lost = false;
    loop {
        metrics::set(metrics::CHAIN_LOST, usize::from(lost));
        match chain.alive().await {
            Ok(()) => {
                answered = clock.now();
                if lost {
                    tracing::warn!(event = "tx_chain_found", "the chain's node answers again");
                    election.set_unready(Unready::Chain, false);
                }
                lost = false;
            }
            // Not at the first look: the others learn a moment later that they lost theirs too, and
            // say so, or the role would go round among nodes none of which reaches the chain.
            Err(_) if lost => hand_over(&election, store.as_ref()).await,
            Err(error) if clock.now() >= answered + lost_after => {
                let event = "tx_chain_lost";
                tracing::error!(event, %error, "THE CHAIN CANNOT BE REACHED: not ready to lead");
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
                "another member reaches its chain: stepping down"
            );
            election.step_down();
        }
        Ok(false) => {}
        Err(error) => tracing::debug!(%error, "cannot see whether another member is ready"),
    }
}
