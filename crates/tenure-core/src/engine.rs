//! The member's mind: pure, without I/O and without a clock.
//!
//! It owns every role's lifecycle and gate, and decides which round trip comes next. The caller
//! (the driver in `tenure`) carries round trips out and reports what became of them:
//!
//! - *inputs*: `start` … `set_candidacy` (commands), `seat_taken`, `seat_lost`, `done`, `notified`,
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
mod choice;
mod effect;
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

use crate::protocol::{Op, RegisterRefusal, Seated};

/// How many roles one round trip carries: the beat waits behind it.
const BATCH: usize = 1000;
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

struct Role {
    spec: Candidacy,
    life: Lifecycle,
    keeper: GateKeeper,
    /// It takes part: its registration and its claims are wanted.
    joined: bool,
    /// The database was told of it, as it now is, on this seat.
    registered: bool,
    /// The database knows this member as a candidate for it.
    candidate: bool,
    /// In the next claim.
    claim: bool,
    /// With this epoch only, which was ours.
    keep: Option<Epoch>,
    /// From here on it does not stand back for a better candidate any more.
    insist_at: Option<Tick>,
    try_at: Option<Tick>,
    /// Not before then is a registration or an `acting` write tried again that was held up.
    write_at: Option<Tick>,
    /// Somebody has held up the role's row for as long.
    blocked_since: Option<Tick>,
    seen: Epoch,
    holder: Option<String>,
    mark: Option<Epoch>,
    release: Option<(Epoch, Option<String>)>,
    preempted_at: Option<Tick>,
    stale: bool,
    /// A hint came while a claim was under way: what the claim found may be stale.
    hinted: bool,
    /// Its holder died and may come back: until then its lock is left to it.
    yield_until: Option<Tick>,
}

#[derive(Debug)]
struct Peer {
    beat: i64,
    first_seen: Tick,
    grace: Duration,
}

struct Up {
    backend_pid: i32,
    revoked: i64,
    beats: u32,
    next_beat: Tick,
    inspect: bool,
}

struct InFlight {
    op: Op,
    sent: Tick,
}

/// See the module's documentation.
pub struct Engine {
    lease: Lease,
    /// The longest time between two repair polls.
    poll: Duration,
    stale_after: Option<Duration>,
    lock_only: bool,
    roles: BTreeMap<RoleName, Role>,
    up: Option<Up>,
    in_flight: Option<InFlight>,
    /// When this seat was taken: the first contact with the server as it now is.
    contact: Tick,
    peers: BTreeMap<String, Peer>,
    /// Every open gate's deadline: the last successful round trip's sending plus the lease.
    lease_until: Tick,
    /// No round trip succeeded in time: the gates are shut until everything was looked at.
    late: bool,
    last_beat: Option<Tick>,
    poll_at: Tick,
    leaving: bool,
    left: bool,
    outputs: VecDeque<Output>,
    random: Box<dyn FnMut() -> f64 + Send>,
    /// The random number of this round trip, one for all roles: they pause for the same time and so
    /// stay together in one claim, however many they are. Members still differ from each other.
    pace: f64,
    /// A mistake that the simulation must catch.
    pub keeps_old_sightings: bool,
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
            lease,
            poll,
            stale_after,
            lock_only,
            roles: BTreeMap::new(),
            up: None,
            in_flight: None,
            contact: Tick::ZERO,
            peers: BTreeMap::new(),
            lease_until: Tick::ZERO,
            late: false,
            last_beat: None,
            poll_at: Tick::ZERO,
            leaving: false,
            left: false,
            outputs: VecDeque::new(),
            random,
            pace: 0.5,
            keeps_old_sightings: false,
        }
    }

    // --- getters ---

    pub fn has_role(&self, role: &RoleName) -> bool {
        self.roles.contains_key(role)
    }

    pub fn state(&self, role: &RoleName) -> Option<(LockState, Option<Epoch>)> {
        self.roles.get(role).map(|role| (role.life.state(), role.life.epoch()))
    }

    /// Whether somebody holds up the role's row.
    pub fn is_blocked(&self, role: &RoleName) -> bool {
        self.roles.get(role).is_some_and(|role| role.blocked_since.is_some())
    }

    pub fn last_beat(&self) -> Option<Tick> {
        self.last_beat
    }

    /// Whether some role takes part, so that a session is needed.
    pub fn wants_seat(&self) -> bool {
        self.is_engaged()
    }

    /// No lock is held, so that giving up the seat costs nobody a term.
    pub fn holds_nothing(&self) -> bool {
        !self.roles.values().any(|role| role.life.holds_lock())
    }

    /// It was asked to let everything go: nothing is to be started any more.
    pub fn is_leaving(&self) -> bool {
        self.leaving
    }

    /// Everything was let go and said: the member may close its session.
    pub fn has_left(&self) -> bool {
        self.left || self.leaving && self.up.is_none() && !self.is_engaged()
    }

    fn is_engaged(&self) -> bool {
        self.roles.values().any(|role| role.joined || role.life.holds_lock())
    }

    // --- inputs: commands ---

    pub fn add(&mut self, spec: Candidacy, life: Lifecycle, keeper: GateKeeper) {
        let role = Role {
            life,
            keeper,
            joined: false,
            registered: false,
            candidate: false,
            claim: false,
            keep: None,
            insist_at: None,
            try_at: None,
            write_at: None,
            blocked_since: None,
            seen: Epoch::ZERO,
            holder: None,
            mark: None,
            release: None,
            preempted_at: None,
            stale: false,
            hinted: false,
            yield_until: None,
            spec,
        };
        self.roles.insert(role.spec.name.clone(), role);
    }

    /// Feeds one input to one role's lifecycle and carries its effects out.
    pub fn input(&mut self, name: &RoleName, input: Input, now: Tick) {
        let pace = self.pace;
        if let Some(role) = self.roles.get_mut(name) {
            let effects = role.life.handle(input, now, pace);
            self.carry_out(name, effects, now);
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
            role.spec.ready = ready.unwrap_or(role.spec.ready);
            role.spec.priority = priority.unwrap_or(role.spec.priority);
            role.registered = false;
            self.wake(name, now);
        }
    }

    /// Lets everything go and says goodbye.
    pub fn leave(&mut self, now: Tick) {
        self.leaving = true;
        for name in self.names(|_| true) {
            self.input(&name, Input::StopRequested, now);
        }
    }

    // --- inputs: the session ---

    pub fn seat_taken(&mut self, seated: Seated, now: Tick) {
        if !self.keeps_old_sightings {
            self.contact = now;
            self.peers.clear();
        }
        self.up = Some(Up {
            backend_pid: seated.backend_pid,
            revoked: seated.revoked,
            beats: 0,
            next_beat: now,
            inspect: false,
        });
        self.poll_at = now + self.lease.repair_poll((self.random)()).min(self.poll);
        for name in self.names(|role| role.joined) {
            let role = self.roles.get_mut(&name).expect("just listed");
            role.registered = false;
            role.holder = None;
            role.yield_until = None;
            role.write_at = None;
            if role.life.state() == LockState::Follower {
                self.input(&name, Input::Wake, now);
            }
        }
    }

    /// The session is gone, or is to be thrown away: every gate shuts, then the rest.
    pub fn seat_lost(&mut self, error: &str, now: Tick) {
        for (name, role) in &mut self.roles {
            if role.keeper.gate().epoch().is_some() {
                self.outputs.push_back(Output::Gate(name.clone(), None));
            }
            role.keeper.shut();
        }
        self.up = None;
        self.in_flight = None;
        self.lease_until = Tick::ZERO;
        self.late = false;
        for name in self.names(|_| true) {
            let role = self.roles.get_mut(&name).expect("just listed");
            role.registered = false;
            role.mark = None;
            role.release = None;
            if role.life.state() == LockState::Reconnecting && role.keep.is_some() {
                // Still wanted back, on the next seat, until its grace ends.
                role.claim = true;
            } else {
                role.claim = false;
                self.input(&name, Input::SessionLost { error: error.to_owned() }, now);
            }
        }
    }

    /// A try to connect failed.
    pub fn unreachable(&mut self, error: &str, now: Tick) {
        for name in self.names(|role| role.joined && role.life.wants_claim()) {
            self.input(&name, Input::SessionLost { error: error.to_owned() }, now);
        }
    }

    // --- inputs: hints ---

    /// A notification: the name of a role, or nothing for "look again".
    pub fn notified(&mut self, payload: &str, now: Tick) {
        let names = match self.roles.get_key_value(payload) {
            Some((name, _)) => vec![name.clone()],
            None if payload.is_empty() => self.names(|_| true),
            None => return,
        };
        for name in names {
            let role = self.roles.get_mut(&name).expect("just found");
            match role.life.state() {
                // "Look again" is said after a death: whose it was may come back.
                LockState::Follower if payload.is_empty() => self.wake_after_death(&name, now),
                LockState::Follower => {
                    role.holder = None;
                    role.yield_until = None;
                    self.wake(&name, now);
                }
                LockState::Leader | LockState::Acquiring => {
                    role.hinted = role.life.wants_claim();
                    // Perhaps an order; beats bring those.
                    if let Some(up) = &mut self.up {
                        up.next_beat = now;
                    }
                }
                LockState::Stopped | LockState::Reconnecting | LockState::Releasing => {}
            }
        }
    }

    /// A member's session is gone: its roles are free.
    pub fn died(&mut self, identity: &str, now: Tick) {
        let free = |role: &Role| {
            role.life.state() == LockState::Follower
                && role.holder.as_deref().is_none_or(|holder| holder == identity)
        };
        for role in self.roles.values_mut() {
            role.hinted |= role.life.wants_claim();
        }
        for name in self.names(free) {
            self.wake_after_death(&name, now);
        }
    }

    /// What holds up a role's row cannot be ended from here: no use in trying at every turn.
    pub fn obstructed(&mut self, name: &RoleName, now: Tick) {
        let until = now + self.lease.lease();
        if let Some(role) = self.roles.get_mut(name) {
            role.yield_until = Some(until);
        }
    }

    pub fn drained(&mut self, name: &RoleName, now: Tick) {
        self.input(name, Input::Drained, now);
    }

    // --- polls ---

    pub fn next_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// When `timeout` wants to be called next.
    pub fn next_timeout(&self) -> Option<Tick> {
        let leads = self.roles.values().any(|role| role.life.state() == LockState::Leader);
        let roles = self
            .roles
            .values()
            .flat_map(|role| [role.life.next_timeout(), role.try_at, role.write_at])
            .flatten();
        // What is due on the seat waits for the round trip under way: no timer before its end.
        let idle = self.up.as_ref().filter(|_| self.in_flight.is_none());
        let seat = idle.map(|up| up.next_beat.min(self.poll_at));
        let late =
            (leads && self.lease_until > Tick::ZERO && !self.late).then_some(self.lease_until);
        roles.chain(seat).chain(late).min()
    }

    pub fn timeout(&mut self, now: Tick) {
        if self.lease_until > Tick::ZERO && now >= self.lease_until && !self.late {
            self.late = true;
            for name in self.names(|role| role.life.holds_lock()) {
                self.input(&name, Input::BeatLate, now);
            }
            if let Some(up) = &mut self.up {
                up.inspect = true;
                up.next_beat = now;
            }
        }
        let due = |at: Option<Tick>| at.is_some_and(|at| at <= now);
        for name in self.names(|r| due(r.life.next_timeout()) || due(r.try_at) || due(r.write_at)) {
            let role = self.roles.get_mut(&name).expect("just listed");
            if role.life.next_timeout().is_some_and(|at| at <= now) {
                let effects = role.life.handle_timeout(now, self.pace);
                self.carry_out(&name, effects, now);
            }
            let role = self.roles.get_mut(&name).expect("just listed");
            role.write_at.take_if(|at| *at <= now);
            if role.try_at.is_some_and(|at| at <= now) {
                role.try_at = None;
                if role.life.state() == LockState::Reconnecting && role.keep.is_some() {
                    role.claim = true;
                } else {
                    self.input(&name, Input::Wake, now);
                }
            }
        }
        if self.up.is_some() && now >= self.poll_at {
            self.poll_at = now + self.lease.repair_poll((self.random)()).min(self.poll);
            for name in self.names(|role| role.life.state() == LockState::Follower) {
                self.wake(&name, now);
            }
        }
    }

    /// The next round trip, if the seat is free and there is one. `now` counts as its sending.
    pub fn next_op(&mut self, now: Tick) -> Option<Op> {
        if self.in_flight.is_some() || self.up.is_none() || self.left {
            return None;
        }
        let op = self.choose_op(now)?;
        self.pace = (self.random)();
        self.in_flight = Some(InFlight { op: op.clone(), sent: now });
        Some(op)
    }

    fn names(&self, pick: impl Fn(&Role) -> bool) -> Vec<RoleName> {
        self.roles.iter().filter(|(_, role)| pick(role)).map(|(name, _)| name.clone()).collect()
    }
}
