//! What a run must never show, and what became of it.

use std::collections::BTreeMap;
use std::time::Duration;

use tenure_core::epoch::Epoch;
use tenure_core::key::RoleName;
use tenure_core::lease::TakeoverPolicy;
use tenure_core::protocol::{Claim, Claimed};

/// The result of a run.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// The first thing that was wrong.
    pub wrong: Option<String>,
    /// How many terms there were.
    pub terms: u64,
    /// How long after the last fault every role was led.
    pub recovered_after: Duration,
    /// The highest epoch ever issued, whatever the database forgot of it.
    issued: BTreeMap<RoleName, Epoch>,
    /// The member that each epoch of each role belongs to.
    owners: BTreeMap<(String, Epoch), String>,
}

/// A gate that says yes.
pub(super) struct Yes<'a> {
    pub(super) member: &'a str,
    pub(super) epoch: Epoch,
}

impl Verdict {
    /// Looks at every gate of a role that says yes at one instant.
    pub(super) fn look(
        &mut self,
        at: Duration,
        role: &str,
        policy: TakeoverPolicy,
        open: &[Yes<'_>],
    ) {
        if self.wrong.is_some() {
            return;
        }
        if let [first, second, ..] = open
            && policy == TakeoverPolicy::Exclusive
        {
            self.wrong = Some(format!(
                "at {at:?} the gates of {role} of {} (epoch {}) and of {} (epoch {}) are open",
                first.member, first.epoch, second.member, second.epoch
            ));
            return;
        }
        for yes in open {
            let key = (role.to_owned(), yes.epoch);
            match self.owners.get(&key) {
                Some(owner) if owner == yes.member => {}
                Some(owner) => {
                    self.wrong = Some(format!(
                        "at {at:?} epoch {} of {role} is {}'s; it was {owner}'s",
                        yes.epoch, yes.member
                    ));
                }
                None => {
                    self.terms += 1;
                    self.owners.insert(key, yes.member.to_owned());
                }
            }
            let newest = self.newest(role);
            if newest > yes.epoch && policy == TakeoverPolicy::Exclusive {
                self.wrong = Some(format!(
                    "at {at:?} {} leads {role} with epoch {}, after {newest}",
                    yes.member, yes.epoch
                ));
            }
        }
    }

    /// Looks at what the database grants: a new term above all there ever were, or the newest again.
    pub(super) fn granted(&mut self, at: Duration, row: &Claimed) {
        let (epoch, new) = match &row.claim {
            Claim::Won(won) => (won.epoch, true),
            Claim::Kept { epoch, .. } => (*epoch, false),
            Claim::Moved { .. }
            | Claim::Held { .. }
            | Claim::Yield { .. }
            | Claim::Paused { .. }
            | Claim::Blocked { .. }
            | Claim::Unknown
            | Claim::Failed { .. } => return,
        };
        let role = &row.role;
        let issued = self.issued.entry(role.clone()).or_default();
        let fits = if new { epoch > *issued } else { epoch == *issued };
        if !fits {
            let out = if new { "won" } else { "kept" };
            self.wrong = Some(format!("at {at:?} epoch {epoch} of {role} is {out} after {issued}"));
        }
        *issued = epoch.max(*issued);
    }

    fn newest(&self, role: &str) -> Epoch {
        let of = |epoch| (role.to_owned(), epoch);
        let terms = self.owners.range(of(Epoch::ZERO)..=of(Epoch(i64::MAX)));
        terms.last().map_or(Epoch::ZERO, |((_, epoch), _)| *epoch)
    }
}
