//! The member's engine: pure, without I/O and without a clock.
//!
//! It owns every role's lifecycle and gate, and decides which round trip comes next. The caller
//! (the driver in `tenure`) carries round trips out and reports what became of them:
//!
//! - *inputs*: `input`, `set_candidacy` (commands), `seat_taken`, `seat_lost`, `done`, `notified`,
//!   `died`, `drained`, `timeout`;
//! - *polls*: `next_op` (one round trip at a time), `next_output`, `next_timeout`, `wants_seat`.
//!
//! Invariants:
//!
//! - **Gate closes first.** `seat_lost` shuts every gate before anything else is decided.
//! - **Measured from before the request.** A gate's deadline is the time a *successful* round trip
//!   was handed out, plus the lease. Every round trip is a beat: the database counts it as one.
//! - **An unknown outcome drops the seat.** Nothing here assumes that a failed claim left no lock.
//! - **Sightings belong to one session.** A crash of the database may have lost beats that were
//!   acknowledged, so what was seen before it proves nothing after it. A crash ends every session,
//!   and nothing else tells of every crash (the postmaster, and with it the incarnation, survives the
//!   crash of a backend): so what was seen is forgotten with the session that saw it.

mod answer;
mod batch;
mod choice;
mod effect;
mod role;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::clock::Tick;
use crate::epoch::Epoch;
use crate::gate::{Drained, GateKeeper};
use crate::key::{LockKey, RoleName};
use crate::lease::{Lease, TakeoverPolicy};
use crate::lifecycle::{Input, Lifecycle, LockState, Notice};

use crate::protocol::{Op, RegisterRefusal, Seated, TermRow};

use batch::Batch;
use role::Role;

/// Every how many beats everything we hold is looked at.
const INSPECT_EVERY: u32 = 30;
/// How long a claim waits for a role's row before it goes on to the next role.
const ROW_WAIT: Duration = Duration::from_millis(20);

/// What a role is, as its member takes part in it.
#[derive(Debug, Clone)]
pub struct Candidacy {
    pub name: RoleName,
    pub key: LockKey,
    pub policy: TakeoverPolicy,
    pub priority: i32,
    pub ready: bool,
    pub observer: bool,
    pub preempt: bool,
}

/// What the caller must do or tell.
#[derive(Debug)]
pub enum Output {
    /// A role's lifecycle says something.
    Notice(RoleName, Notice),
    /// Whether the role's registration was taken, and why not.
    Registered(RoleName, Result<(), RegisterRefusal>),
    /// The gate of a role opened (with its epoch) or shut.
    Gate(RoleName, Option<Epoch>),
    /// The database has answered: every open gate has a later deadline.
    Renewed,
    /// Wait for this, then call `drained`.
    AwaitDrain(RoleName, Drained),
    /// Close the session at once; `seat_lost` follows.
    DropSeat(String),
    /// Something stands before a claim of ours: end it, from another session.
    Unblock { role: RoleName, seat_pid: i32, age: Duration, within: Duration },
    /// We took a role over from a holder that had not released it.
    TookOver(RoleName),
    /// Whether a role's leader has been silent for longer than it should be.
    Stale(RoleName, bool),
    /// Ask the leader of a role to hand it to us.
    Preempt(RoleName),
}

/// What went with a seat.
#[derive(Debug, Clone)]
pub struct Lost {
    /// How many terms were held there.
    pub terms: usize,
    /// One of them.
    pub first: Option<TermRow>,
}

/// What all roles of the member have in common.
struct Context {
    lease: Lease,
    lock_only: bool,
    up: Option<Up>,
    /// When this seat was taken: the first contact with the server as it now is.
    contact: Tick,
    peers: BTreeMap<String, Peer>,
    /// Every open gate's deadline: the last successful round trip's sending plus the lease.
    lease_until: Tick,
    outputs: VecDeque<Output>,
    /// The random number of this round trip, one for all roles: they pause for the same time and so
    /// stay together in one claim, however many they are. Members still differ from each other.
    pace: f64,
}

/// Another member, as beats show it.
#[derive(Debug)]
struct Peer {
    beat: i64,
    first_seen: Tick,
    grace: Duration,
}

/// The seat that is taken.
struct Up {
    backend_pid: i32,
    revoked: i64,
    /// For how many more roles than we hold the rows named us at the last beat.
    surplus: i64,
    beats: u32,
    next_beat: Tick,
    inspect: bool,
}

impl Up {
    /// Everything we hold is looked at, with the next beat, now.
    fn inspect_at(&mut self, now: Tick) {
        self.inspect = true;
        self.next_beat = now;
    }
}

struct InFlight {
    op: Op,
    sent: Tick,
}

/// See the module's documentation.
pub struct Engine {
    context: Context,
    /// Boxed: a tree's nodes are half empty, and there may be ten thousand roles.
    roles: BTreeMap<RoleName, Box<Role>>,
    in_flight: Option<InFlight>,
    batch: Batch,
    /// The longest time between two repair polls.
    poll: Duration,
    stale_after: Option<Duration>,
    /// No round trip succeeded in time: the gates are shut until everything was looked at.
    late: bool,
    last_beat: Option<Tick>,
    poll_at: Tick,
    leaving: bool,
    left: bool,
    random: Box<dyn FnMut() -> f64 + Send>,
}

impl Engine {
    pub fn new(
        lease: Lease,
        poll: Duration,
        stale_after: Option<Duration>,
        lock_only: bool,
        random: Box<dyn FnMut() -> f64 + Send>,
    ) -> Self {
        Engine {
            context: Context {
                lease,
                lock_only,
                up: None,
                contact: Tick::ZERO,
                peers: BTreeMap::new(),
                lease_until: Tick::ZERO,
                outputs: VecDeque::new(),
                pace: 0.5,
            },
            roles: BTreeMap::new(),
            in_flight: None,
            batch: Batch::new(lease.statement_deadline()),
            poll,
            stale_after,
            late: false,
            last_beat: None,
            poll_at: Tick::ZERO,
            leaving: false,
            left: false,
            random,
        }
    }

    // --- getters ---

    pub fn has_role(&self, role: &RoleName) -> bool {
        self.roles.contains_key(role)
    }

    pub fn state(&self, role: &RoleName) -> Option<(LockState, Option<Epoch>)> {
        self.roles.get(role).map(|role| (role.life.state(), role.life.epoch()))
    }

    /// Whether the role is released for a stop.
    pub fn is_stopping(&self, role: &RoleName) -> bool {
        self.roles.get(role).is_some_and(|role| role.life.is_stopping())
    }

    /// Whether another transaction holds the role's row.
    pub fn is_blocked(&self, role: &RoleName) -> bool {
        self.roles.get(role).is_some_and(|role| role.blocked_since.is_some())
    }

    pub fn last_beat(&self) -> Option<Tick> {
        self.last_beat
    }

    /// Whether a role takes part, so that a session is needed.
    pub fn wants_seat(&self) -> bool {
        self.is_engaged()
    }

    /// No lock is held, so that giving up the seat ends no term.
    pub fn holds_nothing(&self) -> bool {
        !self.roles.values().any(|role| role.life.holds_lock())
    }

    /// It was asked to release everything: nothing is to be started any more.
    pub fn is_leaving(&self) -> bool {
        self.leaving
    }

    /// Everything is released and said: the member may close its session.
    pub fn has_left(&self) -> bool {
        self.left || self.leaving && self.context.up.is_none() && !self.is_engaged()
    }

    fn is_engaged(&self) -> bool {
        self.roles.values().any(|role| role.registration.is_joined() || role.life.holds_lock())
    }

    // --- inputs: commands ---

    pub fn add(&mut self, candidacy: Candidacy, life: Lifecycle, keeper: GateKeeper) {
        let role = Role::new(candidacy, life, keeper);
        self.roles.insert(role.candidacy.name.clone(), Box::new(role));
    }

    /// Feeds one input to one role's lifecycle and carries its effects out.
    pub fn input(&mut self, name: &RoleName, input: Input, now: Tick) {
        if let Some(role) = self.roles.get_mut(name) {
            role.input(input, now, &mut self.context);
        }
    }

    pub fn set_candidacy(
        &mut self,
        name: &RoleName,
        ready: Option<bool>,
        priority: Option<i32>,
        now: Tick,
    ) {
        if let Some(role) = self.roles.get_mut(name) {
            role.candidacy.ready = ready.unwrap_or(role.candidacy.ready);
            role.candidacy.priority = priority.unwrap_or(role.candidacy.priority);
            role.registration.outdate();
            role.wake(now, &mut self.context);
        }
    }

    /// Releases everything and leaves the seat.
    pub fn leave(&mut self, now: Tick) {
        self.leaving = true;
        for role in self.roles.values_mut() {
            role.input(Input::StopRequested, now, &mut self.context);
        }
    }

    // --- inputs: the session ---

    pub fn seat_taken(&mut self, seated: Seated, now: Tick) {
        self.context.contact = now;
        self.context.peers.clear();
        self.context.up = Some(Up {
            backend_pid: seated.backend_pid,
            revoked: seated.revoked,
            surplus: 0,
            beats: 0,
            next_beat: now,
            inspect: false,
        });
        self.poll_at = self.next_poll(now);
        for role in self.roles.values_mut().filter(|role| role.registration.is_joined()) {
            role.registration.outdate();
            role.holder = None;
            role.yield_until = None;
            role.write_at = None;
            if role.life.state() == LockState::Follower {
                role.wake(now, &mut self.context);
            }
        }
    }

    /// The session is gone, or is to be thrown away: every gate shuts, then the rest. Returns what was
    /// held on it.
    pub fn seat_lost(&mut self, error: &str, now: Tick) -> Lost {
        // Nothing between two gates: there may be ten thousand.
        let was_open: Vec<bool> = self.roles.values_mut().map(|role| role.keeper.shut()).collect();
        let mut held = self.roles.values().filter_map(|role| role.held());
        let first = held.next();
        let lost = Lost { terms: held.count() + usize::from(first.is_some()), first };
        for (name, _) in self.roles.keys().zip(was_open).filter(|(_, was_open)| *was_open) {
            self.context.outputs.push_back(Output::Gate(name.clone(), None));
        }
        self.context.up = None;
        if let Some(InFlight { op, .. }) = self.in_flight.take() {
            self.batch.lost(&op);
        }
        self.context.lease_until = Tick::ZERO;
        self.late = false;
        for role in self.roles.values_mut() {
            role.seat_lost(error, now, &mut self.context);
        }
        lost
    }

    /// A try to connect failed.
    pub fn unreachable(&mut self, error: &str, now: Tick) {
        for role in self.roles.values_mut() {
            if role.registration.is_joined() && role.life.wants_claim() {
                let error = error.to_owned();
                role.input(Input::SessionLost { error }, now, &mut self.context);
            }
        }
    }

    // --- inputs: hints ---

    /// A notification: the name of a role, or nothing for "look again".
    pub fn notified(&mut self, payload: &str, now: Tick) {
        if let Some(role) = self.roles.get_mut(payload) {
            role.hinted(false, now, &mut self.context);
        } else if payload.is_empty() {
            // Said after a death.
            for role in self.roles.values_mut() {
                role.hinted(true, now, &mut self.context);
            }
        }
    }

    /// A notification: a role was released with this member as its successor.
    pub fn named(&mut self, role: &str, now: Tick) {
        if let Some(role) = self.roles.get_mut(role) {
            role.named(now, &mut self.context);
        }
    }

    /// A member's session is gone: its roles are free.
    pub fn died(&mut self, identity: &str, now: Tick) {
        for role in self.roles.values_mut() {
            role.remember_hint();
            if role.life.state() == LockState::Follower
                && role.holder.as_deref().is_none_or(|holder| holder == identity)
            {
                role.wake_after_death(now, &mut self.context);
            }
        }
    }

    /// What holds up a role's row cannot be ended from here: no use in trying at every turn.
    pub fn obstructed(&mut self, name: &RoleName, now: Tick) {
        if let Some(role) = self.roles.get_mut(name) {
            role.yield_until = Some(now + self.context.lease.lease());
        }
    }

    pub fn drained(&mut self, name: &RoleName, now: Tick) {
        self.input(name, Input::Drained, now);
    }

    // --- polls ---

    pub fn next_output(&mut self) -> Option<Output> {
        let outputs = &mut self.context.outputs;
        let next = outputs.pop_front();
        if next.is_none() {
            // After an answer about a thousand roles: the next one may be long in coming.
            outputs.shrink_to(16);
        }
        next
    }

    /// When `timeout` wants to be called next.
    pub fn next_timeout(&self) -> Option<Tick> {
        let Context { up, lease_until, .. } = &self.context;
        let leads = self.roles.values().any(|role| role.life.state() == LockState::Leader);
        let roles = self.roles.values().filter_map(|role| role.next_timeout());
        // What is due on the seat waits for the round trip under way: no timer before its end.
        let idle = up.as_ref().filter(|_| self.in_flight.is_none());
        let seat = idle.map(|up| up.next_beat.min(self.poll_at));
        let late = (leads && *lease_until > Tick::ZERO && !self.late).then_some(*lease_until);
        roles.chain(seat).chain(late).min()
    }

    pub fn timeout(&mut self, now: Tick) {
        let lease_until = self.context.lease_until;
        if lease_until > Tick::ZERO && now >= lease_until && !self.late {
            self.late = true;
            for role in self.roles.values_mut().filter(|role| role.life.holds_lock()) {
                role.input(Input::BeatLate, now, &mut self.context);
            }
            if let Some(up) = &mut self.context.up {
                up.inspect_at(now);
            }
        }
        for role in self.roles.values_mut() {
            role.timeout(now, &mut self.context);
        }
        if self.context.up.is_some() && now >= self.poll_at {
            self.poll_at = self.next_poll(now);
            for role in self.roles.values_mut() {
                if role.life.state() == LockState::Follower {
                    role.wake(now, &mut self.context);
                }
            }
        }
    }

    /// The next round trip, if the seat is free and there is one. `now` counts as its sending.
    pub fn next_op(&mut self, now: Tick) -> Option<Op> {
        if self.in_flight.is_some() || self.context.up.is_none() || self.left {
            return None;
        }
        let op = self.choose_op(now)?;
        self.context.pace = (self.random)();
        self.in_flight = Some(InFlight { op: op.clone(), sent: now });
        Some(op)
    }

    fn next_poll(&mut self, now: Tick) -> Tick {
        now + self.context.lease.repair_poll((self.random)()).min(self.poll)
    }
}
