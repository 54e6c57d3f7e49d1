//! Whether this node can read its chain's head, told to the election.
//!
//! A node that cannot is not promoted if another can be; a leader that cannot hands over when
//! another member is ready, which says of itself that it reads its own. A head that lacks nonces which
//! the table knows to be final is no head: nothing could be done on it. Nor is one that stands still
//! while another member's goes on. A head that stands still by itself proves nothing: some chains make a
//! block only when there is something to put into it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tenure_core::clock::{Clock, Tick};
use tokio::time::sleep;

use crate::account::AccountId;
use crate::chain::{Block, Chain, Head};
use crate::election::{Election, Unready};
use crate::metrics;
use crate::store::Store;

/// What this node knows of its chain, beside what the chain says.
#[derive(Debug, Default)]
pub(crate) struct Known {
    /// How far the account's nonces are used for good, by the table's word.
    pub(super) consumed: AtomicU64,
    /// The account's first nonce that is not final, by the last head that was believed.
    pub(super) finalized: AtomicU64,
    /// The chain's head cannot be used.
    pub(crate) lost: AtomicBool,
}

pub(super) async fn watch(
    chain: Arc<dyn Chain>,
    account: AccountId,
    known: Arc<Known>,
    election: Election,
    store: Option<Store>,
    lost_after: Duration,
    clock: Arc<dyn Clock>,
) {
    let mut answered = clock.now();
    let mut lost = false;
    let mut standstill = Standstill::default();
    let mut others = Others { store: store.as_ref(), chain: None, failed: false };
    loop {
        metrics::set(metrics::CHAIN_LOST, usize::from(lost));
        known.lost.store(lost, Ordering::Relaxed);
        let head = chain.head(&account).await;
        // The account's, whichever node leads: the gauge of a former leader would keep its last value.
        if let Some(balance) = head.as_ref().ok().and_then(|head| head.balance) {
            metrics::set_amount(metrics::BALANCE, balance);
        }
        let silent = || clock.now() >= answered + lost_after;
        // Why this node has no head, and whether it has had none for long enough.
        let trouble = match head {
            Ok(head) if head.best_nonce < known.consumed.load(Ordering::Relaxed) => {
                Some(("it has not used nonces that were final".to_owned(), silent()))
            }
            Ok(head) => {
                let farthest = others.farthest(chain.as_ref(), &election, &head).await;
                let still = standstill.look(head.best, farthest, clock.now(), lost_after);
                still.map(|why| (why, true))
            }
            Err(error) => Some((error.to_string(), silent())),
        };
        match trouble {
            None => {
                answered = clock.now();
                if lost {
                    tracing::warn!(event = "tx_chain_found", "the chain's head can be used again");
                    election.set_unready(Unready::Chain, false);
                }
                lost = false;
            }
            // Not at the first look: the others learn a moment later that they lost theirs too, and
            // say so, or the role would go round among nodes none of which reaches the chain.
            Some(_) if lost => hand_over(&election, store.as_ref()).await,
            Some((error, true)) => {
                let event = "tx_chain_lost";
                tracing::error!(event, error, "THE CHAIN'S HEAD CANNOT BE USED: not ready to lead");
                election.set_unready(Unready::Chain, true);
                lost = true;
            }
            Some((_, false)) => {}
        }
        sleep(lost_after / 3).await;
    }
}

/// The other members, as they tell of themselves in the table.
struct Others<'a> {
    store: Option<&'a Store>,
    /// Which chain this node is of, once its node has said so.
    chain: Option<String>,
    /// The table could not be asked; said once.
    failed: bool,
}

impl Others<'_> {
    /// Tells the others how far this node sees its chain; the best block of the one that sees farthest.
    async fn farthest(
        &mut self,
        chain: &dyn Chain,
        election: &Election,
        head: &Head,
    ) -> Option<u64> {
        let store = self.store?;
        if self.chain.is_none() {
            self.chain = chain.identity().await.ok().map(|identity| identity.to_string());
        }
        let member = election.gate().identity().as_str();
        match store.see(member, self.chain.as_deref()?, head.best.number).await {
            Ok(farthest) => {
                self.failed = false;
                farthest
            }
            Err(error) => {
                if !std::mem::replace(&mut self.failed, true) {
                    tracing::warn!(%error, "cannot compare the chain's head with other members'");
                }
                None
            }
        }
    }
}

/// Since when another member's best block has been higher than this node's, which is the same one.
#[derive(Debug, Default)]
struct Standstill {
    best: Block,
    since: Option<Tick>,
}

impl Standstill {
    /// Says why the chain's node is of no use, if it has stood still for so long.
    fn look(
        &mut self,
        best: Block,
        farthest: Option<u64>,
        now: Tick,
        patience: Duration,
    ) -> Option<String> {
        let farthest = farthest.filter(|farthest| *farthest > best.number);
        if self.best != best || farthest.is_none() {
            *self = Standstill { best, since: None };
        }
        let (here, there) = (best.number, farthest?);
        let since = *self.since.get_or_insert(now);
        (now >= since + patience).then(|| {
            format!("it stands still at block {here}, and another member's is at block {there}")
        })
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::Hash;

    const PATIENCE: Duration = Duration::from_secs(15);

    fn block(number: u64) -> Block {
        Block { number, hash: Hash([number as u8; 32]) }
    }

    fn at(seconds: u64) -> Tick {
        Tick::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn a_head_stands_still_only_while_another_members_is_higher_for_long_enough() {
        let mut still = Standstill::default();
        let mut look = |best, farthest, seconds| {
            still.look(block(best), farthest, at(seconds), PATIENCE).is_some()
        };
        // No block comes anywhere, or this member sees farthest, or is alone.
        assert!(!look(7, Some(7), 0) && !look(7, Some(7), 100));
        assert!(!look(7, Some(6), 101) && !look(7, None, 200));
        // Another is ahead: not at once, and not while this one moves.
        assert!(!look(7, Some(8), 201) && !look(7, Some(8), 215));
        assert!(look(7, Some(8), 216) && look(7, Some(9), 217));
        assert!(!look(8, Some(20), 218) && !look(9, Some(30), 240));
        assert!(look(9, Some(30), 255));
        // It is again when the other is not ready any more.
        assert!(!look(9, None, 256) && !look(9, Some(30), 257));
    }

    #[test]
    fn a_head_of_another_fork_has_moved() {
        let mut still = Standstill::default();
        let other = Block { number: 7, hash: Hash([9; 32]) };
        assert!(still.look(block(7), Some(8), at(0), PATIENCE).is_none());
        assert!(still.look(other, Some(8), at(20), PATIENCE).is_none());
        assert!(still.look(other, Some(8), at(35), PATIENCE).is_some());
    }
}
