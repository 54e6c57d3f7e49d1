//! The in-process choke point that every act passes just before it happens.
//!
//! # What it promises
//!
//! A gate *says yes* by comparing a tick `now` with its deadline. For every yes there is one term
//! (epoch) such that `opened ≤ now < min(deadline, shut)` of that term. Terms of different members
//! do not overlap (the lease sees to that), so neither do the ticks at which their gates said yes.
//!
//! It does not promise that the effect follows at once: a process may be paused between the yes and
//! the send. No local check can prevent that; the fence in the database can. An [`Act`] therefore
//! checks again at its end, and a failed check is *uncertain*, not *failed*.
//!
//! # The read protocol
//!
//! One word, the *turn*, carries a counter and whether the gate is shut, open or draining. There is
//! one writer ([`GateKeeper`], by `&mut`), any number of readers, no lock:
//!
//! ```text
//! keeper.open:   turn := (n+1, shut);  epoch, deadline := …;  turn := (n+1, open)
//! keeper.shut:   turn := (n+1, shut)
//! reader:        t1 := turn;  e := epoch;  d := deadline;  now := clock;  t2 := turn
//!                yes  ⇔  t1 = t2  ∧  t1 is open  ∧  now < d
//! ```
//!
//! - *The clock is read after the deadline.* Read before, a reader paused in between could find a
//!   gate that opened later and say yes for an instant before the opening.
//! - *The turn is read again after the clock.* Otherwise a clean release (shut, hand over, a
//!   successor opens) between the two reads would be missed: the old deadline still lies ahead.
//! - *Equal turns mean one term.* The counter only grows, so epoch and deadline belong together, and
//!   a shut and re-opened gate is not mistaken for one that was open all the time. A reader that
//!   sees the turn move reads again; each repetition means that the keeper made progress.
//! - An extended deadline moves within a turn: either value is right.
//!
//! A processor may still execute the last read some nanoseconds ahead of the clock read. A successor
//! opens no sooner than a round trip to the database after the shut, which is four orders of
//! magnitude longer.
//!
//! # Draining
//!
//! An act counts itself in *before* it looks at the turn; the keeper sets the turn *before* it looks
//! at the count; a sequentially consistent fence stands between on both sides. So either the act
//! sees the drain, or the keeper sees the act.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

#[cfg(not(loom))]
use atomic_waker::AtomicWaker;
#[cfg(loom)]
use loom::{
    future::AtomicWaker,
    sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering, fence},
};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering, fence};

use crate::clock::{Clock, Tick};
use crate::epoch::Epoch;
use crate::identity::Identity;

/// The low bits of a turn; the rest is its counter.
const PHASE: u64 = 0b11;
const SHUT: u64 = 0;
const OPEN: u64 = 1;
const DRAINING: u64 = 2;
const NEXT_TURN: u64 = PHASE + 1;

/// What keeper and gates share.
struct Shared {
    turn: AtomicU64,
    epoch: AtomicI64,
    deadline: AtomicU64,
    in_flight: AtomicUsize,
    drained: AtomicWaker,
    clock: Arc<dyn Clock>,
    holder: Identity,
    /// Told of every refused act, for a counter.
    refused: Option<OnRefusal>,
}

/// Called with every refusal, by the task that asked. It must return at once.
pub type OnRefusal = Box<dyn Fn() + Send + Sync>;

/// One consistent reading.
struct Reading {
    phase: u64,
    epoch: Epoch,
    deadline: Tick,
    now: Tick,
}

impl Shared {
    fn read(&self) -> Reading {
        loop {
            let turn = self.turn.load(Ordering::Acquire);
            let epoch = Epoch(self.epoch.load(Ordering::Relaxed));
            let deadline = Tick::from_nanos(self.deadline.load(Ordering::Acquire));
            let now = self.clock.now();
            // Pairs with the release fence in `open`: a reader that read a newer epoch or deadline than
            // `turn`'s must now see a newer turn.
            fence(Ordering::Acquire);
            if self.turn.load(Ordering::Acquire) == turn {
                return Reading { phase: turn & PHASE, epoch, deadline, now };
            }
        }
    }

    /// On the way of a no alone: a yes pays nothing for it.
    fn count(&self, refusal: NotLeader) -> NotLeader {
        if let Some(refused) = &self.refused {
            refused();
        }
        refusal
    }

    /// Counts an act out, and wakes the task that waits for the last act.
    fn leave(&self) {
        if self.in_flight.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.drained.wake();
        }
    }
}

impl Reading {
    /// The one place where yes is said.
    fn admit(self) -> Result<Reading, NotLeader> {
        let reason = match self.phase {
            OPEN if self.now < self.deadline => return Ok(self),
            OPEN => Refusal::Expired,
            DRAINING => Refusal::Draining,
            _ => Refusal::Shut,
        };
        Err(NotLeader { reason })
    }

    fn remaining(&self) -> Duration {
        self.deadline.saturating_since(self.now)
    }
}

/// Why a gate said no.
#[derive(Debug, Copy, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// This process does not lead.
    Shut,
    /// The last heartbeat that succeeded is longer ago than the lease.
    Expired,
    /// It is about to let go: acts in flight may end, no new one begins.
    Draining,
    /// It leads, but under another epoch than the one asked for.
    OtherEpoch {
        /// The epoch under which it leads.
        current: Epoch,
    },
    /// It leads, but the lease may end before the act does.
    LeaseTooShort {
        /// What is left of it.
        remaining: Duration,
    },
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Shut => f.write_str("this process is not the leader"),
            Refusal::Expired => f.write_str("the lease has run out without a heartbeat"),
            Refusal::Draining => f.write_str("the leader is stepping down"),
            Refusal::OtherEpoch { current } => {
                write!(f, "the current epoch is {current}; get a new token")
            }
            Refusal::LeaseTooShort { remaining } => {
                write!(f, "only {remaining:?} of the lease are left; retry after the next beat")
            }
        }
    }
}

/// The gate said no; nothing was done.
#[derive(Debug, Copy, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[error("not the leader: {reason}")]
pub struct NotLeader {
    /// Which of the conditions failed.
    pub reason: Refusal,
}

/// The lease did not provably cover the act: it may have overlapped with another leader's.
#[derive(Debug, Copy, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[error(
    "the act of epoch {epoch} outlived its lease ({reason}): its effect is uncertain; check it, \
     or write it through the fence"
)]
pub struct Uncertain {
    /// The epoch the act began under.
    pub epoch: Epoch,
    /// What the gate said at the end.
    pub reason: Refusal,
}

/// Proof that the gate was open, as of the moment it was given.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeaderToken {
    /// The fencing token: write it with every effect.
    pub epoch: Epoch,
    /// The member that leads.
    pub holder_identity: Identity,
    deadline: Tick,
}

impl LeaderToken {
    /// When the lease ends unless another heartbeat succeeds.
    pub fn deadline(&self) -> Tick {
        self.deadline
    }
}

/// The readers' side of a gate. Cheap to clone; every method is lock-free and returns at once.
///
/// | to | ask |
/// |---|---|
/// | know whether this process leads now | [`is_leader`](Self::is_leader), [`epoch`](Self::epoch), [`peek`](Self::peek): nothing is counted |
/// | build an act | [`require_leader`](Self::require_leader), whose token carries the epoch |
/// | send it | [`ensure_epoch`](Self::ensure_epoch), just before |
/// | send it and learn whether the lease covered it | [`begin_act`](Self::begin_act), then [`Act::finish`] |
#[derive(Clone)]
pub struct LeaderGate(Arc<Shared>);

impl LeaderGate {
    /// A gate that is shut, and its only keeper.
    pub fn pair(clock: Arc<dyn Clock>, identity: Identity) -> (GateKeeper, LeaderGate) {
        Self::counting(clock, identity, None)
    }

    /// As [`LeaderGate::pair`]; `refused` is called whenever an act is refused, that is by
    /// [`LeaderGate::require_leader`], [`LeaderGate::ensure_epoch`] and [`LeaderGate::begin_act`].
    pub fn counting(
        clock: Arc<dyn Clock>,
        identity: Identity,
        refused: Option<OnRefusal>,
    ) -> (GateKeeper, LeaderGate) {
        let gate = LeaderGate(Arc::new(Shared {
            turn: AtomicU64::new(SHUT),
            epoch: AtomicI64::new(0),
            deadline: AtomicU64::new(0),
            in_flight: AtomicUsize::new(0),
            drained: AtomicWaker::new(),
            clock,
            holder: identity,
            refused,
        }));
        (GateKeeper(gate.clone()), gate)
    }

    /// Whether this process leads at this instant.
    pub fn is_leader(&self) -> bool {
        self.check_at().is_some()
    }

    /// The tick at which the gate said yes, or `None` for no. Audits compare these ticks.
    pub fn check_at(&self) -> Option<Tick> {
        self.0.read().admit().ok().map(|yes| yes.now)
    }

    /// The epoch under which this process leads, if it does.
    pub fn epoch(&self) -> Option<Epoch> {
        self.0.read().admit().ok().map(|yes| yes.epoch)
    }

    /// What is left of the lease; zero if this process does not lead.
    pub fn remaining(&self) -> Duration {
        self.0.read().admit().map_or(Duration::ZERO, |yes| yes.remaining())
    }

    /// A token to build an act with. Check it with [`LeaderGate::ensure_epoch`] just before the act.
    ///
    /// # Errors
    /// [`NotLeader`] if this process does not lead; it counts as a refused act.
    pub fn require_leader(&self) -> Result<LeaderToken, NotLeader> {
        self.peek().map_err(|refusal| self.0.count(refusal))
    }

    /// As [`LeaderGate::require_leader`], for a caller that only looks: no act is refused.
    ///
    /// # Errors
    /// [`NotLeader`] if this process does not lead.
    pub fn peek(&self) -> Result<LeaderToken, NotLeader> {
        let yes = self.0.read().admit()?;
        Ok(LeaderToken {
            epoch: yes.epoch,
            holder_identity: self.0.holder.clone(),
            deadline: yes.deadline,
        })
    }

    /// Yes if this process leads under exactly this epoch.
    ///
    /// # Errors
    /// [`NotLeader`] if it does not lead, or under another epoch.
    pub fn ensure_epoch(&self, epoch: Epoch) -> Result<(), NotLeader> {
        match self.0.read().admit() {
            Ok(yes) if yes.epoch == epoch => Ok(()),
            Ok(yes) => {
                let reason = Refusal::OtherEpoch { current: yes.epoch };
                Err(self.0.count(NotLeader { reason }))
            }
            Err(refusal) => Err(self.0.count(refusal)),
        }
    }

    /// Begins an act that takes at most `within`; a step-down waits for it to end.
    ///
    /// # Errors
    /// [`NotLeader`] if this process does not lead, or if its lease does not cover `within`.
    pub fn begin_act(&self, within: Duration) -> Result<Act, NotLeader> {
        // First counted, then checked: see "Draining" above. The guard counts it out on refusal.
        self.0.in_flight.fetch_add(1, Ordering::AcqRel);
        let mut act = Act { gate: self.clone(), epoch: Epoch::ZERO };
        fence(Ordering::SeqCst);
        let yes = self.0.read().admit().map_err(|refusal| self.0.count(refusal))?;
        if yes.now + within > yes.deadline {
            let reason = Refusal::LeaseTooShort { remaining: yes.remaining() };
            return Err(self.0.count(NotLeader { reason }));
        }
        act.epoch = yes.epoch;
        Ok(act)
    }

    /// How many acts have begun and not ended.
    pub fn in_flight(&self) -> usize {
        self.0.in_flight.load(Ordering::Acquire)
    }

    /// The member that leads while this gate is open.
    pub fn identity(&self) -> &Identity {
        &self.0.holder
    }
}

impl fmt::Debug for LeaderGate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaderGate")
            .field("holder", &self.0.holder.as_str())
            .field("says", &self.0.read().admit().map(|yes| yes.epoch))
            .finish()
    }
}

/// A side effect in flight. Dropping it counts it out without a verdict.
#[derive(Debug)]
#[must_use = "an act ends when it is dropped: finish() it to learn whether the lease covered it"]
pub struct Act {
    gate: LeaderGate,
    epoch: Epoch,
}

impl Act {
    /// The epoch to write with the effect.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Whether the lease still covers the act. A drain does not end it: it was there first. A gate
    /// that shut and opened again under the *same* epoch covers it too: no other member led in between.
    ///
    /// # Errors
    /// [`Uncertain`] if the lease ran out, the gate was shut, or another term began.
    pub fn check(&self) -> Result<(), Uncertain> {
        let seen = self.gate.0.read();
        let reason = if seen.phase == SHUT {
            Refusal::Shut
        } else if seen.epoch != self.epoch {
            Refusal::OtherEpoch { current: seen.epoch }
        } else if seen.now >= seen.deadline {
            Refusal::Expired
        } else {
            return Ok(());
        };
        Err(Uncertain { epoch: self.epoch, reason })
    }

    /// When the lease that covers the act ends unless another heartbeat succeeds; none once
    /// [`Act::check`] says no. Unlike a token's, it also moves while the gate drains.
    pub fn deadline(&self) -> Option<Tick> {
        let seen = self.gate.0.read();
        let covers = seen.phase != SHUT && seen.epoch == self.epoch && seen.now < seen.deadline;
        covers.then_some(seen.deadline)
    }

    /// Ends the act with a last [`Act::check`].
    ///
    /// # Errors
    /// [`Uncertain`] if the effect may have happened after the lease had ended.
    pub fn finish(self) -> Result<(), Uncertain> {
        self.check()
    }
}

impl Drop for Act {
    fn drop(&mut self) {
        self.gate.0.leave();
    }
}

/// The writer's side of a gate. There is one; it cannot be cloned, and writing needs `&mut`.
/// Dropping it shuts the gate.
#[derive(Debug)]
pub struct GateKeeper(LeaderGate);

impl GateKeeper {
    /// Opens the gate for a term, or again for the same one after a doubt was dispelled.
    ///
    /// Returns false, and leaves the gate as it was, if `epoch` is below one it had before: epochs
    /// strictly increase, so that is an old answer.
    pub fn open(&mut self, epoch: Epoch, deadline: Tick) -> bool {
        let shared = &self.0.0;
        if epoch.0 < shared.epoch.load(Ordering::Relaxed) {
            return false;
        }
        let turn = self.next_turn();
        shared.turn.store(turn | SHUT, Ordering::Release);
        // No reader may see what follows and still the old turn.
        fence(Ordering::Release);
        shared.epoch.store(epoch.0, Ordering::Relaxed);
        shared.deadline.store(deadline.as_nanos(), Ordering::Release);
        shared.turn.store(turn | OPEN, Ordering::Release);
        true
    }

    /// Moves the deadline later after a heartbeat that succeeded. A gate whose deadline has passed
    /// opens again by this; one that was shut does not.
    ///
    /// Returns whether the deadline moved: not for another epoch, not to an earlier tick, not when
    /// shut.
    pub fn extend(&mut self, epoch: Epoch, deadline: Tick) -> bool {
        let shared = &self.0.0;
        let current = Tick::from_nanos(shared.deadline.load(Ordering::Relaxed));
        let moves = self.phase() != SHUT
            && shared.epoch.load(Ordering::Relaxed) == epoch.0
            && deadline > current;
        if moves {
            shared.deadline.store(deadline.as_nanos(), Ordering::Release);
        }
        moves
    }

    /// Shuts the gate. From here on every check says no, that of acts in flight too. Returns whether it
    /// was open or drained.
    pub fn shut(&mut self) -> bool {
        let was_open = self.phase() != SHUT;
        if was_open {
            self.0.0.turn.store(self.next_turn() | SHUT, Ordering::Release);
        }
        // What `in_flight` says from here on is final: see "Draining" above.
        fence(Ordering::SeqCst);
        was_open
    }

    /// Begins no new act; those in flight keep their term until the deadline.
    pub fn begin_drain(&mut self) {
        let turn = self.0.0.turn.load(Ordering::Relaxed);
        if turn & PHASE == OPEN {
            self.0.0.turn.store(turn & !PHASE | DRAINING, Ordering::Release);
        }
        fence(Ordering::SeqCst);
    }

    /// How many acts are in flight (and, for an instant each, refused ones).
    pub fn in_flight(&self) -> usize {
        self.0.0.in_flight.load(Ordering::Acquire)
    }

    /// Resolves once no act is in flight. Cancel-safe. Only the future polled last is woken, so
    /// await one at a time.
    pub fn drained(&self) -> Drained {
        Drained(self.0.clone())
    }

    /// The readers' side.
    pub fn gate(&self) -> LeaderGate {
        self.0.clone()
    }

    fn phase(&self) -> u64 {
        self.0.0.turn.load(Ordering::Relaxed) & PHASE
    }

    fn next_turn(&self) -> u64 {
        (self.0.0.turn.load(Ordering::Relaxed) & !PHASE).wrapping_add(NEXT_TURN)
    }
}

impl Drop for GateKeeper {
    fn drop(&mut self) {
        self.shut();
    }
}

/// What [`GateKeeper::drained`] returns.
#[derive(Debug)]
#[must_use = "futures do nothing unless awaited"]
pub struct Drained(LeaderGate);

impl Future for Drained {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let shared = &self.0.0;
        // Registered before the look, so that an act that ends in between wakes us.
        #[cfg(not(loom))]
        shared.drained.register(cx.waker());
        #[cfg(loom)]
        shared.drained.register_by_ref(cx.waker());
        if shared.in_flight.load(Ordering::Acquire) == 0 { Poll::Ready(()) } else { Poll::Pending }
    }
}
