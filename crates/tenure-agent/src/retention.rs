//! Keeps the history bounded: done by the leader of one reserved role, for the whole group.

use std::time::Duration;

use tenure::config::Config;
pub use tenure::operate::EVENTS;
use tenure::operate::{BATCH, Operator, Pruned};
use tenure::{LeaderLock, TenureError};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::event::{Event, Events};
use crate::store::{Store, StoreError};

/// The reserved role whose leader prunes, once an hour.
pub const MAINTENANCE: &str = "tenure:maintenance";
/// Between two rounds.
const ROUND: Duration = Duration::from_secs(3600);
/// Between two batches of a round: the others want the database too.
const PAUSE: Duration = Duration::from_millis(100);
/// A round that failed is tried again soon.
const AGAIN: Duration = Duration::from_secs(60);

/// How long the history is kept. A role's last two terms are always kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Older terms, events and slots are deleted. Default: 90 days; in a file 1 h at least. Of the whole group's
    /// events the latest [`EVENTS`] are kept at most.
    pub age: Duration,
    /// Of each role so many terms are kept at most, of each schedule so many slots. Default: 10,000; in a file 2 at
    /// least.
    pub terms: u32,
}

impl Default for Retention {
    fn default() -> Self {
        Retention { age: Duration::from_secs(90 * 86_400), terms: 10_000 }
    }
}

/// How much was deleted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the names say it")]
pub struct Deleted {
    pub terms: u64,
    pub events: u64,
    pub slots: u64,
    /// There are slots, and the login role may not delete them: it has a member's grants alone.
    pub slots_kept: bool,
}

/// What to do about [`Deleted::slots_kept`].
pub const SLOTS_KEPT: &str = "slots of schedules are not pruned, because the login role has no grants in the schema \
    tenure_agent; an owner gives them: tenure migrate --agent --print-grants ROLE";

/// Why a round did not end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RetentionError {
    /// Terms and events could not be deleted.
    #[error(transparent)]
    Operator(#[from] TenureError),
    /// Slots could not be deleted.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Deletes what is beyond the retention, batch by batch, while `goes_on`. Safe beside a leader that does the same,
/// and cancel-safe: a batch is one statement.
///
/// # Errors
/// [`RetentionError`]; what was deleted until then stays deleted.
pub async fn prune(
    config: &Config,
    retention: Retention,
    goes_on: impl Fn() -> bool,
) -> Result<Deleted, RetentionError> {
    let operator = Operator::connect(config).await?;
    let store = Store::new(config, "tenure retention")?;
    let mut deleted = Deleted::default();
    while goes_on() {
        let Pruned { terms, events, .. } = operator.prune(retention.age, retention.terms).await?;
        let slots = store.prune_slots(retention).await?;
        deleted.slots_kept = slots.is_none();
        let slots = slots.unwrap_or(0);
        deleted.terms += terms;
        deleted.events += events;
        deleted.slots += slots;
        if terms == 0 && events == 0 && slots == 0 {
            break;
        }
        sleep(PAUSE).await;
    }
    operator.close().await;
    Ok(deleted)
}

/// Prunes once an hour while the role is led here; ends with the role.
pub(crate) async fn serve(
    lock: LeaderLock,
    config: Config,
    retention: watch::Receiver<Option<Retention>>,
    events: Events,
) {
    let round = || async {
        let mut told = false;
        loop {
            let wanted = *retention.borrow();
            let Some(wanted) = wanted else {
                sleep(AGAIN).await;
                continue;
            };
            let gate = lock.gate();
            match prune(&config, wanted, || gate.is_leader()).await {
                Ok(Deleted { terms, events: orders, slots, slots_kept }) => {
                    if terms > 0 || orders > 0 || slots > 0 {
                        let what = format!("{terms} terms, {orders} events and {slots} slots");
                        events.tell(Event::of("pruned", lock.role(), gate.epoch()).because(what));
                    }
                    // Once a term: it does not change by itself.
                    if slots_kept && !std::mem::replace(&mut told, true) {
                        let why = SLOTS_KEPT.to_owned();
                        events.tell(Event::of("error", lock.role(), gate.epoch()).because(why));
                    }
                }
                Err(error) => {
                    let why = format!("the history was not pruned: {error}");
                    events.tell(Event::of("error", lock.role(), gate.epoch()).because(why));
                    sleep(AGAIN).await;
                    continue;
                }
            }
            sleep(ROUND).await;
        }
    };
    // It is dropped at an await when the gate shuts: a batch is one statement.
    let _ = lock.while_leading(|_| round()).await;
}

impl Store {
    /// Deletes a batch of slots with their attempts; how many, or nothing if this login role may not. A slot that is
    /// not over stays, and a group without schedules has none.
    async fn prune_slots(&self, retention: Retention) -> Result<Option<u64>, StoreError> {
        // In a schema that must not be used even the name of a table is an error.
        let may = "select case when to_regnamespace('tenure_agent') is null then 'none' \
            when not has_schema_privilege(to_regnamespace('tenure_agent'), 'usage') then 'denied' \
            when to_regclass('tenure_agent.slot') is null then 'none' \
            when has_table_privilege(to_regclass('tenure_agent.slot'), 'delete') then 'may' else 'denied' end";
        match self.send(may).await?.as_deref() {
            Some("may") => {}
            Some("none") => return Ok(Some(0)),
            _ => return Ok(None),
        }
        let sql = include_str!("../sql/prune.sql")
            .replace("{age_ms}", &retention.age.as_millis().to_string())
            .replace("{slots}", &retention.terms.to_string())
            .replace("{batch}", &BATCH.to_string());
        let count = self.send(&sql).await?;
        Ok(Some(count.and_then(|count| count.parse().ok()).unwrap_or(0)))
    }
}
