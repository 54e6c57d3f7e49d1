//! The mistakes that the simulation must catch. Each is made by a collaborator of the member's
//! engine: by the database, whose rows or answers are altered, by a driver that does not tell the
//! truth about time, or by a configuration.

use std::collections::BTreeMap;
use std::time::Duration;

use tenure_core::clock::Tick;
use tenure_core::epoch::{Epoch, next_epoch};
use tenure_core::key::RoleName;
use tenure_core::model::{Model, RoleRow, Tables};
use tenure_core::protocol::{Claim, Claimed, Debt, Done, Op, Won};

/// One mistake, made on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mistake {
    /// A claim leads at once, whatever the last leader's gate does.
    IgnoreTheDebt,
    /// A claimant that only waits becomes the debtor: if it dies, its successor waits for the wrong
    /// gate.
    DebtMovesWithTheClaim,
    /// A debt does not say its lease: the claimant waits its own.
    ForgetTheLease,
    /// Restarts, crashes and failovers go unnoticed: clean releases outlive them.
    OneIncarnation,
    /// A clean release pays a debt of another incarnation, although a failover may have lost the
    /// member that led after it.
    PayInAnyIncarnation,
    /// A term may be taken up again after a failover.
    KeepInAnyIncarnation,
    /// Epochs count on after a failover that lost some.
    OneGeneration,
    /// A failover begins the next generation, whichever timeline it leads to.
    NextGeneration,
    /// The step that opens a gate does not count as a beat.
    QuietMark,
    /// A member remembers beats that it saw on an earlier session.
    OldSightings,
    /// The margin is below the drift of the clocks.
    NarrowMargin,
}

impl Mistake {
    /// Every mistake there is.
    pub const ALL: [Self; 11] = [
        Self::IgnoreTheDebt,
        Self::DebtMovesWithTheClaim,
        Self::ForgetTheLease,
        Self::OneIncarnation,
        Self::PayInAnyIncarnation,
        Self::KeepInAnyIncarnation,
        Self::OneGeneration,
        Self::NextGeneration,
        Self::QuietMark,
        Self::OldSightings,
        Self::NarrowMargin,
    ];

    /// The name in the file of seeds.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::IgnoreTheDebt => "ignore-the-debt",
            Self::DebtMovesWithTheClaim => "debt-moves-with-the-claim",
            Self::ForgetTheLease => "forget-the-lease",
            Self::OneIncarnation => "one-incarnation",
            Self::PayInAnyIncarnation => "pay-in-any-incarnation",
            Self::KeepInAnyIncarnation => "keep-in-any-incarnation",
            Self::OneGeneration => "one-generation",
            Self::NextGeneration => "next-generation",
            Self::QuietMark => "quiet-mark",
            Self::OldSightings => "old-sightings",
            Self::NarrowMargin => "narrow-margin",
        }
    }

    /// The margin, in place of the default one.
    pub(super) fn margin(self) -> Option<Duration> {
        // One per cent of the longest lease, the least that is allowed; the clocks differ by up to
        // eight.
        (self == Self::NarrowMargin).then_some(Duration::from_millis(40))
    }

    pub(super) fn sightings(self) -> Option<OldSightings> {
        (self == Self::OldSightings).then(OldSightings::default)
    }

    /// Alters the rows before a statement of `me` reads them.
    pub(super) fn before(self, model: &mut Model, me: &str, op: &Op) {
        let (incarnation, lineage) = (model.incarnation(), model.lineage());
        let roles = &mut model.tables.roles;
        match op {
            Op::Claim { rows, .. } => {
                for row in rows {
                    alter(roles, &row.role, |role| match self {
                        Self::OneGeneration => role.lineage = Some(lineage),
                        Self::KeepInAnyIncarnation if row.keep.is_some() => {
                            role.held_in = Some(incarnation.clone());
                        }
                        Self::KeepInAnyIncarnation
                        | Self::IgnoreTheDebt
                        | Self::DebtMovesWithTheClaim
                        | Self::ForgetTheLease
                        | Self::OneIncarnation
                        | Self::PayInAnyIncarnation
                        | Self::NextGeneration
                        | Self::QuietMark
                        | Self::OldSightings
                        | Self::NarrowMargin => {}
                    });
                }
            }
            Op::Release(rows) if self == Self::PayInAnyIncarnation => {
                for row in rows.iter().filter(|row| row.clean) {
                    alter(roles, &row.term.role, |role| {
                        let ours = role.epoch == row.term.epoch
                            && role.holder.as_deref() == Some(me)
                            && role.debtor.as_deref() == Some(me);
                        if ours {
                            role.acted_in = Some(incarnation.clone());
                        }
                    });
                }
            }
            Op::Release(_)
            | Op::Register(_)
            | Op::MarkActing(_)
            | Op::Beat
            | Op::Inspect(_)
            | Op::LeaveSeat => {}
        }
    }

    /// Alters what a statement of `me` wrote and answered; `before` are the tables that it found.
    pub(super) fn after(
        self,
        model: &mut Model,
        before: &Tables,
        me: &str,
        op: &Op,
        done: &mut Done,
    ) {
        match (op, done) {
            (Op::MarkActing(_), _) if self == Self::QuietMark => {
                model.tables.members.get_mut(me).expect("it was proved").beat -= 1;
            }
            (Op::Claim { rows: asked, .. }, Done::Claimed(claimed)) => {
                for Claimed { role, claim } in claimed {
                    let Claim::Won(won) = claim else { continue };
                    let seen = asked.iter().find(|row| row.role == *role).map(|row| row.seen);
                    let seen = seen.expect("an answer belongs to its question");
                    self.after_win(model, before, me, role, seen, won);
                }
            }
            (
                Op::Claim { .. }
                | Op::MarkActing(_)
                | Op::Register(_)
                | Op::Beat
                | Op::Inspect(_)
                | Op::Release(_)
                | Op::LeaveSeat,
                _,
            ) => {}
        }
    }

    fn after_win(
        self,
        model: &mut Model,
        before: &Tables,
        me: &str,
        role: &RoleName,
        seen: Epoch,
        won: &mut Won,
    ) {
        let old = &before.roles[role];
        match self {
            Self::IgnoreTheDebt => {
                if won.debt.take().is_some() {
                    move_debt(model, role, me);
                }
            }
            Self::DebtMovesWithTheClaim => move_debt(model, role, me),
            Self::ForgetTheLease => {
                if let Some(debt) = &mut won.debt {
                    debt.lease = None;
                }
            }
            Self::NextGeneration => {
                let moved = old.lineage.unwrap_or_default() != model.lineage();
                let epoch = next_epoch(old.epoch, seen, moved.then_some(1));
                won.epoch = epoch;
                alter(&mut model.tables.roles, role, |role| role.epoch = epoch);
            }
            Self::OneIncarnation
            | Self::PayInAnyIncarnation
            | Self::KeepInAnyIncarnation
            | Self::OneGeneration
            | Self::QuietMark
            | Self::OldSightings
            | Self::NarrowMargin => {}
        }
    }

    /// Alters the rows after the server has started anew.
    pub(super) fn started(self, model: &mut Model) {
        if self != Self::OneIncarnation {
            return;
        }
        let incarnation = model.incarnation();
        for role in model.tables.roles.values_mut() {
            for remembered in [&mut role.held_in, &mut role.acted_in, &mut role.paid_in] {
                if remembered.is_some() {
                    *remembered = Some(incarnation.clone());
                }
            }
        }
    }
}

fn alter(roles: &mut BTreeMap<RoleName, RoleRow>, name: &RoleName, how: impl FnOnce(&mut RoleRow)) {
    if let Some(role) = roles.get_mut(name) {
        how(role);
    }
}

/// From here on `me` is the debtor.
fn move_debt(model: &mut Model, role: &RoleName, me: &str) {
    let incarnation = model.incarnation();
    let lease_ms = model.tables.members[me].lease_ms;
    alter(&mut model.tables.roles, role, |role| {
        role.debtor = Some(me.to_owned());
        role.debtor_lease_ms = Some(lease_ms);
        role.acted_in = Some(incarnation);
        role.paid_in = None;
    });
}

/// A driver that lies to the engine about time, so that beats which were seen on an earlier session
/// count as if the session had never changed.
#[derive(Debug, Default)]
pub(super) struct OldSightings {
    contact: Option<Tick>,
    seen: BTreeMap<String, (i64, Tick)>,
}

impl OldSightings {
    /// The first contact ever, in place of this one.
    pub(super) fn seat_taken(&mut self, now: Tick) -> Tick {
        *self.contact.get_or_insert(now)
    }

    /// When the engine is told that an answer came. It is not told of others' beats: they are kept
    /// here, and a debt is dated back to when its debtor's beat was first seen.
    pub(super) fn answer(&mut self, done: &mut Done, now: Tick) -> Tick {
        match done {
            Done::Beaten(beaten) => {
                for other in beaten.others.take().unwrap_or_default() {
                    let seen = self.seen.entry(other.0).or_insert((other.1, now));
                    if seen.0 != other.1 {
                        *seen = (other.1, now);
                    }
                }
                now
            }
            Done::Claimed(claimed) => {
                claimed.iter().filter_map(|row| self.seen_at(&row.claim)).min().unwrap_or(now)
            }
            Done::Registered(_)
            | Done::MarkedActing(_)
            | Done::Inspected(_)
            | Done::Released
            | Done::LeftSeat => now,
        }
    }

    fn seen_at(&self, claim: &Claim) -> Option<Tick> {
        let Claim::Won(Won { debt: Some(Debt { debtor, beat, .. }), .. }) = claim else {
            return None;
        };
        let (seen, at) = self.seen.get(debtor.as_ref()?)?;
        (Some(*seen) == *beat).then_some(*at)
    }
}
