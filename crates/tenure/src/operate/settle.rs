//! Orders that need a role at rest: to forget it, and to change what its members must agree on.
//!
//! The role is paused and no member takes part in it. The operator's session takes the role's lock and waits,
//! on its own clock, until the last leader's gate must be shut. Only then anything is written; should the
//! session, the row or the incarnation change meanwhile, nothing is.

use std::time::Duration;

use serde::Deserialize;
use tenure_core::epoch::Epoch;
use tenure_core::key::{LockKey, RoleName};
use tenure_core::lease::TakeoverPolicy;
use tenure_core::protocol::millis;

use super::{Operator, name};
use crate::error::TenureError;
use crate::sql::{json, literal};

/// What [`Operator::alter`] changes; what is none stays.
#[derive(Debug, Clone, Copy, Default)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Change {
    pub policy: Option<TakeoverPolicy>,
    pub key: Option<LockKey>,
    /// A member that comes with a longer one raises it again.
    pub lease: Option<Duration>,
}

/// What is left of a role that was forgotten.
#[derive(Debug, Clone, Copy, Deserialize)]
#[non_exhaustive]
pub struct Forgotten {
    /// Its highest epoch: the name, used again, continues above it.
    pub epoch: Epoch,
    /// How many terms of its history were deleted.
    pub terms: u64,
}

/// A role whose lock this session holds.
#[derive(Debug, Deserialize)]
struct Settled {
    epoch: Epoch,
    incarnation: String,
    wait_ms: u64,
}

impl Operator {
    /// Deletes a role and its history, and leaves its highest epoch behind. Takes up to the longest lease and
    /// the margin if the last leader did not release the role.
    ///
    /// Cancelled, it has deleted nothing; the role's lock goes with this session.
    ///
    /// # Errors
    /// If there is no such role, it is not paused, a member takes part in it, or its lock is held.
    pub async fn forget(&self, role: &RoleName) -> Result<Forgotten, TenureError> {
        // Before the wait: a member's login role may not delete.
        let may = "select has_table_privilege('tenure.role', 'delete') \
            and has_table_privilege('tenure.term', 'delete') \
            and has_table_privilege('tenure.tombstone', 'insert, update')";
        if self.ask(may).await?.as_deref() != Some("t") {
            return Err(TenureError::Order(
                "the login role may not delete a role and its history; run it as the schema's owner"
                    .to_owned(),
            ));
        }
        let at_rest = self.settle(role).await?;
        let call = format!("tenure.forget_role({}, {at_rest}, {})", name(role), self.by());
        self.settled(role, &call).await
    }

    /// Changes a role's policy, key or lease, for all its members. Takes as long as
    /// [`forget`](Operator::forget) does, under the same conditions.
    ///
    /// # Errors
    /// As `forget`; or if another role has the key.
    pub async fn alter(&self, role: &RoleName, change: Change) -> Result<(), TenureError> {
        let mut to = serde_json::Map::new();
        if let Some(policy) = change.policy {
            to.insert("policy".to_owned(), policy.to_string().into());
        }
        if let Some(key) = change.key
            && let Ok(serde_json::Value::Object(key)) = serde_json::to_value(key)
        {
            to.extend(key);
        }
        if let Some(lease) = change.lease {
            to.insert("lease_ms".to_owned(), millis(lease).into());
        }
        let at_rest = self.settle(role).await?;
        let (role_name, by, to) = (name(role), self.by(), json(&to));
        let call = format!("tenure.alter_role({role_name}, {at_rest}, {by}, {to})");
        self.settled::<serde_json::Value>(role, &call).await.map(drop)
    }

    /// Takes the role's lock and waits until no gate of it can be open. Returns what must not have changed
    /// since, as arguments.
    async fn settle(&self, role: &RoleName) -> Result<String, TenureError> {
        let call = format!("tenure.settle({})", name(role));
        let Settled { epoch, incarnation, wait_ms } = self.demand(role, &call).await?;
        let lease = Duration::from_millis(wait_ms);
        if lease > Duration::ZERO {
            // At least so long, whatever this machine does meanwhile: a sleep never ends early.
            tokio::time::sleep(lease + self.lease.margin_for(lease)).await;
        }
        Ok(format!("{epoch}, {}", literal(&incarnation)))
    }

    /// The second step; whatever comes of it, the lock goes.
    async fn settled<T: serde::de::DeserializeOwned>(
        &self,
        role: &RoleName,
        call: &str,
    ) -> Result<T, TenureError> {
        let done = self.demand(role, call).await;
        if done.is_err() {
            self.ask(&format!("select tenure.unsettle({})", name(role))).await?;
        }
        done
    }
}
