//! The audit: the durable terms, page by page, so that no statement holds a snapshot for long.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tenure_core::epoch::Epoch;
use tenure_core::key::RoleName;

use super::{Operator, Violation, with_role};
use crate::error::TenureError;
use crate::sql::literal;

/// How many terms one statement looks at: some hundredths of a second.
const PAGE: u64 = 10_000;
/// More violations than an operator reads are counted and not listed.
const LISTED: usize = 1000;

/// What an audit found.
#[derive(Debug, Clone, Default, Serialize)]
#[non_exhaustive]
pub struct Audit {
    /// How many terms were looked at.
    pub terms: u64,
    /// Of how many roles.
    pub roles: u64,
    /// The first of them was claimed then: of earlier ones nothing is known.
    pub since: Option<Timestamp>,
    /// How many terms break a promise.
    pub broken: u64,
    /// Those terms, the first thousand.
    pub violations: Vec<Violation>,
}

#[derive(Debug, Deserialize)]
struct Page {
    terms: u64,
    roles: u64,
    since: Option<Timestamp>,
    last_role: Option<String>,
    last_epoch: Option<Epoch>,
    violations: Vec<Violation>,
}

impl Operator {
    /// Checks the durable terms: epochs strictly increase, no two terms of a role overlap.
    ///
    /// It sees what the database remembers. Terms that a failover lost, and what a leader on a primary
    /// that was given up did meanwhile, are not in it.
    ///
    /// # Errors
    /// If the session fails.
    pub async fn audit(&self, role: Option<&RoleName>) -> Result<Audit, TenureError> {
        let sql = with_role(include_str!("../../sql/audit.sql"), role)
            .replace("{limit}", &(PAGE + 1).to_string());
        let mut audit = Audit::default();
        let mut from = (String::new(), Epoch::ZERO);
        loop {
            let page = sql
                .replace("{from_role}", &literal(&from.0))
                .replace("{from_epoch}", &from.1.to_string());
            let page: Page = self.query(&page).await?;
            let is_last = page.terms <= PAGE;
            // The last term of a page is the first of the next one: whether it overlaps with its successor
            // shows there.
            audit.terms += if is_last { page.terms } else { page.terms - 1 };
            audit.roles += page.roles;
            audit.since = [audit.since, page.since].into_iter().flatten().min();
            audit.broken += page.violations.len() as u64;
            let room = LISTED.saturating_sub(audit.violations.len());
            audit.violations.extend(page.violations.into_iter().take(room));
            match (page.last_role, page.last_epoch) {
                (Some(role), Some(epoch)) if !is_last => {
                    // Its role is counted again there.
                    audit.roles -= 1;
                    from = (role, epoch);
                }
                _ => return Ok(audit),
            }
        }
    }
}
