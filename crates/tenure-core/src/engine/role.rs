//! One role: its lifecycle, its gate, and what it wants of the seat.

use std::time::Duration;

use super::{Candidacy, Context};
use crate::clock::Tick;
use crate::epoch::Epoch;
use crate::gate::GateKeeper;
use crate::lease::TakeoverPolicy;
use crate::lifecycle::{Input, Lifecycle, LockState};
use crate::protocol::TermRow;

pub(super) struct Role {
    pub(super) candidacy: Candidacy,
    pub(super) life: Lifecycle,
    pub(super) keeper: GateKeeper,
    pub(super) registration: Registration,
    pub(super) errand: Errand,
    /// Not before then is a registration or an `acting` write tried again that was held up.
    pub(super) write_at: Option<Tick>,
    /// Since then another transaction holds the role's row.
    pub(super) blocked_since: Option<Tick>,
    /// From then on it does not yield to a better candidate any more.
    pub(super) insist_at: Option<Tick>,
    /// Its holder died and may come back: until then its lock is left to it.
    pub(super) yield_until: Option<Tick>,
    /// Since then the lock of that term is held on this seat, and a debt is waited out.
    pub(super) waits: Option<(Epoch, Tick)>,
    /// The highest epoch that was ever seen of it.
    pub(super) seen: Epoch,
    pub(super) holder: Option<String>,
    pub(super) preempted_at: Option<Tick>,
    /// Its holder has been silent for too long.
    pub(super) stale: bool,
}

/// What the database knows of this member's candidacy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Registration {
    /// The role does not take part, and the database knows that.
    Absent,
    /// It takes part, and this seat has not told the database how; `known`: an earlier one has.
    Due { known: bool },
    /// It takes part, and the database was told of it as it is.
    Told,
    /// It does not take part any more, and the database must be told.
    Withdraw,
}

/// What the role wants of the seat next, or has under way there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Errand {
    /// Nothing. It is woken then at the latest.
    Rest {
        wake_at: Option<Tick>,
    },
    /// To be in the next claim.
    Claim,
    /// The claim is under way. A hint that came meanwhile makes what the claim found stale.
    Claiming {
        hinted: bool,
    },
    /// To be in the next claim, with this epoch only, which was ours.
    Reclaim {
        epoch: Epoch,
    },
    Reclaiming {
        epoch: Epoch,
    },
    /// As `Reclaim`, from then on.
    ReclaimAt {
        epoch: Epoch,
        at: Tick,
    },
    /// The durable word that its gate opens.
    Mark {
        epoch: Epoch,
    },
    Marking {
        epoch: Epoch,
    },
    Release {
        epoch: Epoch,
        to: Option<String>,
    },
    Releasing,
}

impl Errand {
    pub(super) const REST: Errand = Errand::Rest { wake_at: None };
}

impl Registration {
    pub(super) fn is_joined(self) -> bool {
        match self {
            Registration::Due { .. } | Registration::Told => true,
            Registration::Absent | Registration::Withdraw => false,
        }
    }

    pub(super) fn is_told(self) -> bool {
        self == Registration::Told
    }

    pub(super) fn join(&mut self) {
        *self = match *self {
            Registration::Absent => Registration::Due { known: false },
            Registration::Due { known } => Registration::Due { known },
            Registration::Told | Registration::Withdraw => Registration::Due { known: true },
        }
    }

    pub(super) fn leave(&mut self) {
        *self = match *self {
            Registration::Absent | Registration::Due { known: false } => Registration::Absent,
            Registration::Due { known: true } | Registration::Told | Registration::Withdraw => {
                Registration::Withdraw
            }
        }
    }

    /// The candidacy or the seat is another one: the database must be told again.
    pub(super) fn outdate(&mut self) {
        if *self == Registration::Told {
            *self = Registration::Due { known: true };
        }
    }

    /// The database will not have it.
    pub(super) fn refuse(&mut self) {
        if self.is_joined() {
            *self = Registration::Due { known: false };
        }
    }

    /// Whether the next registration carries it. What changes before the answer must be told again,
    /// so it counts as told from here on.
    pub(super) fn tell(&mut self) -> bool {
        let told = match *self {
            Registration::Due { .. } => Registration::Told,
            Registration::Withdraw => Registration::Absent,
            Registration::Absent | Registration::Told => return false,
        };
        *self = told;
        true
    }
}

impl Role {
    pub(super) fn new(candidacy: Candidacy, life: Lifecycle, keeper: GateKeeper) -> Self {
        Role {
            candidacy,
            life,
            keeper,
            registration: Registration::Absent,
            errand: Errand::REST,
            write_at: None,
            blocked_since: None,
            insist_at: None,
            yield_until: None,
            waits: None,
            seen: Epoch::ZERO,
            holder: None,
            preempted_at: None,
            stale: false,
        }
    }

    // --- getters ---

    pub(super) fn next_timeout(&self) -> Option<Tick> {
        [self.life.next_timeout(), self.errand_at(), self.write_at].into_iter().flatten().min()
    }

    fn errand_at(&self) -> Option<Tick> {
        match self.errand {
            Errand::Rest { wake_at } => wake_at,
            Errand::ReclaimAt { at, .. } => Some(at),
            Errand::Claim
            | Errand::Claiming { .. }
            | Errand::Reclaim { .. }
            | Errand::Reclaiming { .. }
            | Errand::Mark { .. }
            | Errand::Marking { .. }
            | Errand::Release { .. }
            | Errand::Releasing => None,
        }
    }

    /// Its row has been held up for longer than a lease.
    pub(super) fn is_stuck(&self, now: Tick, lease: Duration) -> bool {
        self.blocked_since.is_some_and(|since| now.saturating_since(since) > lease)
    }

    pub(super) fn term(&self, epoch: Epoch) -> TermRow {
        TermRow { role: self.candidacy.name.clone(), epoch, key: self.candidacy.key }
    }

    // --- inputs ---

    pub(super) fn input(&mut self, input: Input, now: Tick, context: &mut Context) {
        let effects = self.life.handle(input, now, context.pace);
        self.carry_out(effects, now, context);
    }

    pub(super) fn timeout(&mut self, now: Tick, context: &mut Context) {
        let due = |at: Option<Tick>| at.is_some_and(|at| at <= now);
        if due(self.life.next_timeout()) {
            let effects = self.life.handle_timeout(now, context.pace);
            self.carry_out(effects, now, context);
        }
        self.write_at.take_if(|at| *at <= now);
        match self.errand {
            Errand::Rest { wake_at } if due(wake_at) => {
                self.errand = Errand::REST;
                self.wake(now, context);
            }
            Errand::ReclaimAt { epoch, at } if at <= now => {
                if self.life.state() == LockState::Reconnecting {
                    self.errand = Errand::Reclaim { epoch };
                } else {
                    self.errand = Errand::REST;
                    self.wake(now, context);
                }
            }
            Errand::Rest { .. }
            | Errand::ReclaimAt { .. }
            | Errand::Claim
            | Errand::Claiming { .. }
            | Errand::Reclaim { .. }
            | Errand::Reclaiming { .. }
            | Errand::Mark { .. }
            | Errand::Marking { .. }
            | Errand::Release { .. }
            | Errand::Releasing => {}
        }
    }

    /// The gate is shut already.
    pub(super) fn seat_lost(&mut self, error: &str, now: Tick, context: &mut Context) {
        self.registration.outdate();
        self.waits = None;
        self.errand = match self.errand {
            // Still wanted back, on the next seat, until its grace ends.
            Errand::Reclaim { epoch }
            | Errand::Reclaiming { epoch }
            | Errand::ReclaimAt { epoch, .. }
                if self.life.state() == LockState::Reconnecting =>
            {
                self.errand = Errand::Reclaim { epoch };
                return;
            }
            Errand::Rest { wake_at } => Errand::Rest { wake_at },
            Errand::Claim
            | Errand::Claiming { .. }
            | Errand::Reclaim { .. }
            | Errand::Reclaiming { .. }
            | Errand::ReclaimAt { .. }
            | Errand::Mark { .. }
            | Errand::Marking { .. }
            | Errand::Release { .. }
            | Errand::Releasing => Errand::REST,
        };
        self.input(Input::SessionLost { error: error.to_owned() }, now, context);
    }

    /// A notification of this role, or of a death, after which the holder may come back.
    pub(super) fn hinted(&mut self, death: bool, now: Tick, context: &mut Context) {
        match self.life.state() {
            LockState::Follower if death => self.wake_after_death(now, context),
            LockState::Follower => {
                self.holder = None;
                self.yield_until = None;
                self.wake(now, context);
            }
            // Of a role that this member does not hold yet: the claim that comes next finds all there is. A
            // named successor hears of the role twice, and a beat would come before its claim.
            LockState::Acquiring if self.errand == Errand::Claim => {}
            LockState::Leader | LockState::Acquiring => {
                self.remember_hint();
                // Perhaps an order; beats bring those.
                if let Some(up) = &mut context.up {
                    up.next_beat = now;
                }
            }
            LockState::Stopped | LockState::Reconnecting | LockState::Releasing => {}
        }
    }

    /// The role was released to this member.
    pub(super) fn named(&mut self, now: Tick, context: &mut Context) {
        if self.life.state() == LockState::Follower {
            self.holder = None;
            self.yield_until = None;
            self.input(Input::Named, now, context);
        } else {
            self.hinted(false, now, context);
        }
    }

    /// What a claim under way finds may be stale already.
    pub(super) fn remember_hint(&mut self) {
        if let Errand::Claiming { hinted } = &mut self.errand {
            *hinted = true;
        }
    }

    pub(super) fn wake(&mut self, now: Tick, context: &mut Context) {
        self.input(Input::Wake, now, context);
    }

    /// Under `exclusive` a claimant has to wait out a dead holder's lease anyway: it leaves the lock
    /// free for as long as the holder may come back for it, as far as that costs nothing. Decided
    /// once, at the news of a death: a holder that lives on keeps beating, and a claimant that
    /// waited for its silence would wait for ever.
    pub(super) fn wake_after_death(&mut self, now: Tick, context: &mut Context) {
        self.yield_until = self.holder_may_return_until(now, context);
        self.wake(now, context);
    }

    fn holder_may_return_until(&self, now: Tick, context: &Context) -> Option<Tick> {
        if self.candidacy.policy != TakeoverPolicy::Exclusive {
            return None;
        }
        let peer = context.peers.get(self.holder.as_deref()?)?;
        let lease = &context.lease;
        let takeover = lease.takeover_at(peer.first_seen, context.contact, lease.lease());
        let until = (peer.first_seen + peer.grace).min(takeover);
        (peer.grace > Duration::ZERO && until > now).then_some(until)
    }
}
