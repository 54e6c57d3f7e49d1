//! The member's mind: pure, without I/O and without a clock.
//!
//! It owns every role's lifecycle and gate, and decides which round trip comes next. The caller
//! ([`crate::actor`]) carries round trips out and reports what became of them:
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
//! - **Sightings belong to an incarnation.** A crash of the database may have lost beats that were
//!   acknowledged, so what was seen before it proves nothing after it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use tenure_core::clock::Tick;
use tenure_core::epoch::Epoch;
use tenure_core::gate::{Drained, GateKeeper};
use tenure_core::key::{LockKey, RoleName};
use tenure_core::lease::{Lease, TakeoverPolicy};
use tenure_core::lifecycle::{Effect, Input, Lifecycle, LockState, NotAcquired, Notice};

use crate::seat::{
    Beaten, ClaimRow, Claimed, Done, Key, Op, Order, RegisterRow, Registered, ReleaseRow, Seated,
    TermRow,
};

/// How many roles one claim or one registration carries. A claim costs the server about 0.1 ms a
/// role, and the beat waits behind it.
const CLAIM_BATCH: usize = 1000;
const REGISTER_BATCH: usize = 200;
/// Every how many beats everything we hold is looked at.
const INSPECT_EVERY: u32 = 30;
/// How long a claim waits for a role's row before it goes on to the next role.
const ROW_WAIT: Duration = Duration::from_millis(20);

/// What a role is, as its member takes part in it.
#[derive(Debug, Clone)]
pub(crate) struct Campaign {
    pub(crate) name: RoleName,
    pub(crate) key: LockKey,
    pub(crate) policy: TakeoverPolicy,
    pub(crate) priority: i32,
    pub(crate) ready: bool,
    pub(crate) observer: bool,
    pub(crate) preempt: bool,
}

/// What the caller must do or tell.
#[derive(Debug)]
pub(crate) enum Output {
    /// A role's lifecycle says something.
    Notice(RoleName, Notice),
    /// Whether the role's registration was taken, and why not.
    Registered(RoleName, Result<(), String>),
    /// The gate of a role opened (with its epoch) or shut.
    Gate(RoleName, Option<Epoch>),
    /// Wait for this, then call `drained`.
    AwaitDrain(RoleName, Drained),
    /// Close the session at once; `seat_lost` follows.
    DropSeat(String),
    /// Something stands before a claim of ours: end it, from another session.
    Unblock { seat_pid: i32, age: Duration, within: Duration },
    /// We took a role over from a holder that had not released it.
    TookOver(RoleName),
    /// Whether a role's leader has been silent for longer than it should be.
    Stale(RoleName, bool),
    /// Ask the leader of a role to hand it to us.
    Preempt(RoleName),
}

struct Role {
    spec: Campaign,
    life: Lifecycle,
    keeper: GateKeeper,
    /// It takes part: its registration and its claims are wanted.
    joined: bool,
    /// The database knows it, on this seat.
    registered: bool,
    /// In the next claim.
    claim: bool,
    /// With this epoch only, which was ours.
    keep: Option<Epoch>,
    /// From here on it does not stand back for a better candidate any more.
    insist_at: Option<Tick>,
    try_at: Option<Tick>,
    blocked_since: Option<Tick>,
    seen: Epoch,
    holder: Option<String>,
    act: Option<Epoch>,
    release: Option<(Epoch, Option<String>)>,
    preempted_at: Option<Tick>,
    stale: bool,
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
pub(crate) struct Engine {
    lease: Lease,
    /// The longest time between two repair polls.
    poll: Duration,
    stale_after: Option<Duration>,
    lock_only: bool,
    roles: BTreeMap<RoleName, Role>,
    up: Option<Up>,
    in_flight: Option<InFlight>,
    /// When this member first heard of the incarnation it is connected to.
    contact: Option<(String, Tick)>,
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
}

impl Engine {
    pub(crate) fn new(
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
            contact: None,
            peers: BTreeMap::new(),
            lease_until: Tick::ZERO,
            late: false,
            last_beat: None,
            poll_at: Tick::ZERO,
            leaving: false,
            left: false,
            outputs: VecDeque::new(),
            random,
        }
    }

    // --- getters ---

    pub(crate) fn has_role(&self, role: &RoleName) -> bool {
        self.roles.contains_key(role)
    }

    pub(crate) fn state(&self, role: &RoleName) -> Option<(LockState, Option<Epoch>)> {
        self.roles.get(role).map(|role| (role.life.state(), role.life.epoch()))
    }

    pub(crate) fn last_beat(&self) -> Option<Tick> {
        self.last_beat
    }

    /// Whether some role takes part, so that a session is needed.
    pub(crate) fn wants_seat(&self) -> bool {
        self.is_engaged()
    }

    /// Everything was let go and said: the member may close its session.
    pub(crate) fn has_left(&self) -> bool {
        self.left || self.leaving && self.up.is_none() && !self.is_engaged()
    }

    fn is_engaged(&self) -> bool {
        self.roles.values().any(|role| role.joined || role.life.holds_lock())
    }

    // --- inputs: commands ---

    pub(crate) fn add(&mut self, spec: Campaign, life: Lifecycle, keeper: GateKeeper) {
        let role = Role {
            life,
            keeper,
            joined: false,
            registered: false,
            claim: false,
            keep: None,
            insist_at: None,
            try_at: None,
            blocked_since: None,
            seen: Epoch::ZERO,
            holder: None,
            act: None,
            release: None,
            preempted_at: None,
            stale: false,
            spec,
        };
        self.roles.insert(role.spec.name.clone(), role);
    }

    /// Feeds one input to one role's lifecycle and carries its effects out.
    pub(crate) fn input(&mut self, name: &RoleName, input: Input, now: Tick) {
        let random = (self.random)();
        if let Some(role) = self.roles.get_mut(name) {
            let effects = role.life.handle(input, now, random);
            self.carry_out(name, effects, now);
        }
    }

    pub(crate) fn set_candidacy(
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
    pub(crate) fn leave(&mut self, now: Tick) {
        self.leaving = true;
        for name in self.names(|_| true) {
            self.input(&name, Input::StopRequested, now);
        }
    }

    // --- inputs: the session ---

    pub(crate) fn seat_taken(&mut self, seated: Seated, now: Tick) {
        if self.contact.as_ref().is_none_or(|(known, _)| *known != seated.incarnation) {
            self.contact = Some((seated.incarnation, now));
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
            if role.life.state() == LockState::Follower {
                self.input(&name, Input::AcquireAttempt, now);
            }
        }
    }

    /// The session is gone, or is to be thrown away: every gate shuts, then the rest.
    pub(crate) fn seat_lost(&mut self, error: &str, now: Tick) {
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
            role.act = None;
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
    pub(crate) fn unreachable(&mut self, error: &str, now: Tick) {
        for name in self.names(|role| role.joined && role.life.wants_claim()) {
            self.input(&name, Input::SessionLost { error: error.to_owned() }, now);
        }
    }

    /// What became of the round trip that `next_op` handed out.
    pub(crate) fn done(&mut self, done: Done, now: Tick) {
        let Some(InFlight { op, sent }) = self.in_flight.take() else { return };
        self.renew(sent);
        match (done, op) {
            (Done::Registered(rows), _) => self.registered(rows, now),
            (Done::Claimed(rows), _) => {
                for row in rows {
                    self.claimed(row, now);
                }
            }
            (Done::Acting(written), Op::Act(rows)) => {
                let written: BTreeSet<String> = written.into_iter().collect();
                for row in rows {
                    let name = self.known(&row.role);
                    let input = if written.contains(&row.role) {
                        Input::Cleared { epoch: Epoch(row.epoch) }
                    } else {
                        Input::EpochMoved
                    };
                    if let Some(name) = name {
                        self.input(&name, input, now);
                    }
                }
            }
            (Done::Beaten(beaten), _) => self.beaten(beaten, now),
            (Done::Inspected(gone), _) => {
                for role in gone {
                    if let Some(name) = self.known(&role) {
                        self.input(&name, Input::EpochMoved, now);
                    }
                }
                // Lock and epoch are confirmed: a gate that was shut for lateness opens again.
                if now < self.lease_until {
                    self.late = false;
                    for name in self.names(|role| role.life.state() == LockState::Leader) {
                        self.input(&name, Input::HealthOk, now);
                    }
                }
            }
            (Done::Released, Op::Release(rows)) => {
                for row in rows {
                    if let Some(name) = self.known(&row.term.role) {
                        self.input(&name, Input::ReleaseSucceeded, now);
                    }
                }
            }
            (Done::Left, _) => {
                self.left = true;
            }
            (Done::Acting(_) | Done::Released, _) => {
                unreachable!("an answer belongs to its question")
            }
        }
    }

    // --- inputs: hints ---

    /// A notification: the name of a role, or nothing for "look again".
    pub(crate) fn notified(&mut self, payload: &str, now: Tick) {
        let names = match self.known(payload) {
            Some(name) => vec![name],
            None if payload.is_empty() => self.names(|_| true),
            None => return,
        };
        for name in names {
            let role = self.roles.get_mut(&name).expect("just found");
            match role.life.state() {
                LockState::Follower => {
                    role.holder = None;
                    self.wake(&name, now);
                }
                LockState::Leader | LockState::Acquiring => {
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
    pub(crate) fn died(&mut self, identity: &str, now: Tick) {
        let free = |role: &Role| {
            role.life.state() == LockState::Follower
                && role.holder.as_deref().is_none_or(|holder| holder == identity)
        };
        for name in self.names(free) {
            self.wake(&name, now);
        }
    }

    pub(crate) fn drained(&mut self, name: &RoleName, now: Tick) {
        self.input(name, Input::Drained, now);
    }

    // --- polls ---

    pub(crate) fn next_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// When `timeout` wants to be called next.
    pub(crate) fn next_timeout(&self) -> Option<Tick> {
        let leads = self.roles.values().any(|role| role.life.state() == LockState::Leader);
        let roles = self.roles.values().flat_map(|role| {
            [role.life.next_timeout(), role.try_at].into_iter().flatten()
        });
        let seat = self.up.as_ref().map(|up| up.next_beat.min(self.poll_at));
        let late = (leads && self.lease_until > Tick::ZERO && !self.late)
            .then_some(self.lease_until);
        roles.chain(seat).chain(late).min()
    }

    pub(crate) fn timeout(&mut self, now: Tick) {
        if self.lease_until > Tick::ZERO && now >= self.lease_until && !self.late {
            self.late = true;
            for name in self.names(|role| role.life.holds_lock()) {
                self.input(&name, Input::HealthLate, now);
            }
            if let Some(up) = &mut self.up {
                up.inspect = true;
                up.next_beat = now;
            }
        }
        for name in self.names(|_| true) {
            let role = self.roles.get_mut(&name).expect("just listed");
            if role.life.next_timeout().is_some_and(|at| at <= now) {
                let random = (self.random)();
                let effects = role.life.handle_timeout(now, random);
                self.carry_out(&name, effects, now);
            }
            let role = self.roles.get_mut(&name).expect("just listed");
            if role.try_at.is_some_and(|at| at <= now) {
                role.try_at = None;
                self.input(&name, Input::AcquireAttempt, now);
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
    pub(crate) fn next_op(&mut self, now: Tick) -> Option<Op> {
        if self.in_flight.is_some() || self.up.is_none() || self.left {
            return None;
        }
        let op = self.choose_op(now)?;
        self.in_flight = Some(InFlight { op: op.clone(), sent: now });
        Some(op)
    }

    fn choose_op(&mut self, now: Tick) -> Option<Op> {
        let mut releases = Vec::new();
        for (name, role) in &mut self.roles {
            if let Some((epoch, to)) = role.release.take() {
                releases.push(ReleaseRow {
                    term: term(name, role, epoch),
                    clean: role.keeper.in_flight() == 0,
                    to,
                });
            }
        }
        if !releases.is_empty() {
            return Some(Op::Release(releases));
        }
        let mut acts = Vec::new();
        for (name, role) in &mut self.roles {
            if let Some(epoch) = role.act.take() {
                acts.push(term(name, role, epoch));
            }
        }
        if !acts.is_empty() {
            return Some(Op::Act(acts));
        }
        if self.leaving && !self.is_engaged() {
            return Some(Op::Leave);
        }
        let up = self.up.as_mut()?;
        if now >= up.next_beat {
            // Should it fail, there is no seat any more and so no next beat.
            up.next_beat = Tick::MAX;
            up.beats = up.beats.wrapping_add(1);
            if up.inspect || up.beats.is_multiple_of(INSPECT_EVERY) {
                up.inspect = false;
                let held: Vec<TermRow> = self
                    .roles
                    .iter()
                    .filter(|(_, role)| {
                        matches!(role.life.state(), LockState::Leader | LockState::Acquiring)
                    })
                    .filter_map(|(name, role)| Some(term(name, role, role.life.epoch()?)))
                    .collect();
                return Some(Op::Inspect(held));
            }
            return Some(Op::Beat);
        }
        let register: Vec<RegisterRow> = self
            .roles
            .values()
            .filter(|role| role.joined && !role.registered)
            .take(REGISTER_BATCH)
            .map(|role| RegisterRow {
                role: role.spec.name.as_str().to_owned(),
                key: role.spec.key.into(),
                policy: match role.spec.policy {
                    TakeoverPolicy::Exclusive => "exclusive",
                    TakeoverPolicy::Fenced => "fenced",
                },
                priority: role.spec.priority,
                ready: role.spec.ready,
                observer: role.spec.observer,
            })
            .collect();
        if !register.is_empty() {
            return Some(Op::Register(register));
        }
        self.choose_claim(now)
    }

    fn choose_claim(&mut self, now: Tick) -> Option<Op> {
        let lease = self.lease;
        let stuck = |role: &Role| {
            role.blocked_since.is_some_and(|since| now.saturating_since(since) > lease.lease())
        };
        let row = |name: &RoleName, role: &Role| ClaimRow {
            role: name.as_str().to_owned(),
            key: role.spec.key.into(),
            seen: role.seen.get(),
            keep: role.keep.map(Epoch::get),
            insist: role.insist_at.is_some_and(|at| now >= at),
        };
        let mut rows = Vec::new();
        for (name, role) in &mut self.roles {
            if rows.len() == CLAIM_BATCH {
                break;
            }
            if !role.life.wants_claim() && role.life.state() != LockState::Reconnecting {
                role.claim = false;
            }
            if role.claim && role.registered && !stuck(role) {
                role.claim = false;
                rows.push(row(name, role));
            }
        }
        if !rows.is_empty() {
            return Some(Op::Claim { rows, row_wait: ROW_WAIT });
        }
        // A role that stays blocked gets a claim of its own that waits longer, so that what stands
        // before it can be seen, and ended, from outside.
        let (name, role) = self
            .roles
            .iter_mut()
            .find(|(_, role)| role.claim && role.registered && stuck(role))?;
        role.claim = false;
        let within = lease.statement_deadline() / 2;
        let rows = vec![row(name, role)];
        let seat_pid = self.up.as_ref()?.backend_pid;
        self.outputs.push_back(Output::Unblock { seat_pid, age: lease.lease(), within });
        Some(Op::Claim { rows, row_wait: within })
    }

    // --- answers ---

    /// A round trip that was handed out at `sent` succeeded: trust lasts until `sent` + lease.
    fn renew(&mut self, sent: Tick) {
        self.lease_until = self.lease.gate_deadline(sent);
        self.last_beat = Some(sent);
        let next = self.lease.next_beat(sent, (self.random)());
        if let Some(up) = &mut self.up {
            up.next_beat = next;
        }
        for name in self.names(|role| role.life.epoch().is_some()) {
            let role = self.roles.get_mut(&name).expect("just listed");
            if let Some(epoch) = role.life.epoch() {
                role.keeper.extend(epoch, self.lease_until);
            }
        }
    }

    fn registered(&mut self, rows: Vec<Registered>, now: Tick) {
        for Registered { role, refused } in rows {
            let Some(name) = self.known(&role) else { continue };
            let entry = self.roles.get_mut(&name).expect("just found");
            entry.registered = true;
            match refused {
                None => self.outputs.push_back(Output::Registered(name, Ok(()))),
                Some(why) => {
                    entry.claim = false;
                    self.outputs.push_back(Output::Registered(name.clone(), Err(why)));
                    self.input(&name, Input::StopRequested, now);
                }
            }
        }
    }

    fn claimed(&mut self, row: Claimed, now: Tick) {
        let Some(name) = self.known(&row.role) else { return };
        let role = self.roles.get_mut(&name).expect("just found");
        let epoch = row.epoch.map_or(Epoch::ZERO, Epoch);
        let back = role.keep.is_some();
        role.seen = role.seen.max(epoch);
        role.holder.clone_from(&row.holder);
        if row.out != "blocked" {
            role.blocked_since = None;
        }
        let input = match row.out.as_str() {
            "won" => {
                role.keep = None;
                role.insist_at = None;
                if row.holder.is_some() {
                    self.outputs.push_back(Output::TookOver(name.clone()));
                }
                let open_at = self.open_at(&row, now);
                Input::AcquireSucceeded { epoch, open_at }
            }
            "kept" => {
                let epoch = role.keep.take().unwrap_or(epoch);
                Input::ReacquireSucceeded { epoch }
            }
            "moved" => {
                role.keep = None;
                Input::ReacquireFailed
            }
            "held" if back && row.held_by_us == Some(true) => {
                // Our own old session has not ended yet.
                role.claim = true;
                role.try_at = None;
                return;
            }
            "held" if back => {
                role.keep = None;
                Input::ReacquireFailed
            }
            "held" => {
                // Somebody took it; the next race begins with manners again.
                role.insist_at = None;
                Input::AcquireFailed { why: NotAcquired::Held }
            }
            "blocked" => {
                role.blocked_since.get_or_insert(now);
                role.try_at = Some(now + self.lease.heartbeat() / 4);
                role.claim = back;
                if back {
                    return;
                }
                Input::AcquireFailed { why: NotAcquired::Blocked }
            }
            "yield" => {
                // A better candidate gets a head start; if it does not take it, we insist.
                let head_start = match row.to.as_deref() {
                    Some("ready") => self.lease.lease(),
                    Some("successor") => self.lease.heartbeat(),
                    _ => self.lease.heartbeat() / 2,
                };
                role.try_at = Some(*role.insist_at.get_or_insert(now + head_start));
                Input::AcquireFailed { why: NotAcquired::Reserved }
            }
            "paused" if back => {
                role.keep = None;
                Input::ReacquireFailed
            }
            "paused" => Input::AcquireFailed { why: NotAcquired::Paused },
            "unknown" => {
                role.registered = false;
                Input::AcquireFailed { why: NotAcquired::Blocked }
            }
            _ => {
                // The database undid it and unlocked: this role's trouble, not the session's.
                let error = Notice::Error(explain_claim(&row));
                self.outputs.push_back(Output::Notice(name.clone(), error));
                Input::AcquireFailed { why: NotAcquired::Blocked }
            }
        };
        let held = row.out == "held" && matches!(input, Input::AcquireFailed { .. });
        self.input(&name, input, now);
        if held {
            self.consider_preempting(&name, now);
        }
    }

    /// When the gate of a role that was just won may open: at once if nobody can still act.
    fn open_at(&self, row: &Claimed, now: Tick) -> Option<Tick> {
        if row.acting {
            return None;
        }
        let own = self.lease.lease();
        let lease = row.debtor_lease_ms.map_or(own, Duration::from_millis).max(own);
        if self.lock_only {
            // Without tables nothing is known of whoever led before.
            return Some(self.lease.takeover_at(now, now, lease));
        }
        let contact = self.contact.as_ref().map_or(now, |(_, at)| *at);
        let saw = match (&row.debtor, row.debtor_beat) {
            // Nobody is named; what a failover lost cannot have beaten since we met this server.
            (None, _) => contact,
            (Some(debtor), Some(beat)) => self
                .peers
                .get(debtor)
                .filter(|peer| peer.beat >= beat)
                .map_or(now, |peer| peer.first_seen),
            (Some(_), None) => now,
        };
        Some(self.lease.takeover_at(saw, contact, lease))
    }

    fn beaten(&mut self, beaten: Beaten, now: Tick) {
        if let Some(others) = beaten.others {
            let mut peers = std::mem::take(&mut self.peers);
            for other in others {
                let grace = Duration::from_millis(other.2);
                let peer = peers.entry(other.0).or_insert(Peer { beat: -1, first_seen: now, grace });
                if peer.beat != other.1 {
                    peer.beat = other.1;
                    peer.first_seen = now;
                }
            }
            self.peers = peers;
            self.look_for_silence(now);
        }
        if let Some(up) = &mut self.up
            && up.revoked != beaten.revoked
        {
            // Something we held was taken: look at everything, now.
            up.revoked = beaten.revoked;
            up.inspect = true;
            up.next_beat = now;
        }
        for Order { role, paused, id, to } in beaten.orders.unwrap_or_default() {
            if (paused || id.is_some())
                && let Some(name) = self.known(&role)
            {
                self.input(&name, Input::ReleaseRequested { to, deadline: None }, now);
            }
        }
    }

    /// For alerts alone; decides nothing.
    fn look_for_silence(&mut self, now: Tick) {
        let Some(limit) = self.stale_after else { return };
        for (name, role) in &mut self.roles {
            let silent = role
                .holder
                .as_ref()
                .and_then(|holder| self.peers.get(holder))
                .is_some_and(|peer| now.saturating_since(peer.first_seen) > limit);
            if silent != role.stale {
                role.stale = silent;
                self.outputs.push_back(Output::Stale(name.clone(), silent));
            }
        }
    }

    fn consider_preempting(&mut self, name: &RoleName, now: Tick) {
        let pause = self.lease.lease();
        let role = self.roles.get_mut(name).expect("just found");
        if role.spec.preempt
            && role.spec.ready
            && role.preempted_at.is_none_or(|at| now.saturating_since(at) > pause)
        {
            role.preempted_at = Some(now);
            self.outputs.push_back(Output::Preempt(name.clone()));
        }
    }

    // --- effects ---

    fn wake(&mut self, name: &RoleName, now: Tick) {
        self.input(name, Input::AcquireAttempt, now);
    }

    /// Under `exclusive` a claimant has to wait out a dead holder's lease anyway: it leaves the lock
    /// free for as long as the holder may come back for it, as far as that costs nothing.
    fn stand_back_until(&self, role: &Role, now: Tick) -> Option<Tick> {
        if role.spec.policy != TakeoverPolicy::Exclusive || role.keep.is_some() {
            return None;
        }
        let peer = self.peers.get(role.holder.as_deref()?)?;
        let contact = self.contact.as_ref().map_or(now, |(_, at)| *at);
        let until = (peer.first_seen + peer.grace).min(self.lease.takeover_at(
            peer.first_seen,
            contact,
            self.lease.lease(),
        ));
        (peer.grace > Duration::ZERO && until > now).then_some(until)
    }

    fn carry_out(&mut self, name: &RoleName, effects: Vec<Effect>, now: Tick) {
        let mut queue: VecDeque<Effect> = effects.into();
        while let Some(effect) = queue.pop_front() {
            let role = self.roles.get_mut(name).expect("effects come from a role we have");
            match effect {
                Effect::Join => {
                    role.joined = true;
                    role.registered = false;
                }
                Effect::TryAcquire if role.spec.observer => {
                    let why = NotAcquired::Ineligible;
                    let more = role.life.handle(Input::AcquireFailed { why }, now, 0.5);
                    queue.extend(more);
                }
                Effect::TryAcquire => {
                    let role = &self.roles[name];
                    if let Some(until) = self.stand_back_until(role, now) {
                        let why = NotAcquired::Held;
                        let role = self.roles.get_mut(name).expect("it was there");
                        role.try_at = Some(until);
                        queue.extend(role.life.handle(Input::AcquireFailed { why }, now, 0.5));
                    } else {
                        let role = self.roles.get_mut(name).expect("it was there");
                        role.claim = true;
                        role.keep = None;
                    }
                }
                Effect::WriteActing { epoch } => role.act = Some(epoch),
                Effect::OpenGate { epoch } => {
                    role.insist_at = None;
                    role.try_at = None;
                    if role.keeper.open(epoch, self.lease_until) {
                        self.outputs.push_back(Output::Gate(name.clone(), Some(epoch)));
                    }
                }
                Effect::ShutGate => {
                    role.keeper.shut();
                    self.outputs.push_back(Output::Gate(name.clone(), None));
                }
                Effect::DrainGate { .. } => {
                    // The lifecycle has its own limit; here only the end is awaited.
                    role.keeper.begin_drain();
                    self.outputs.push_back(Output::Gate(name.clone(), None));
                    if role.keeper.in_flight() == 0 {
                        queue.extend(role.life.handle(Input::Drained, now, 0.5));
                    } else {
                        let drained = role.keeper.drained();
                        self.outputs.push_back(Output::AwaitDrain(name.clone(), drained));
                    }
                }
                Effect::Reclaim { epoch } => {
                    role.keep = Some(epoch);
                    role.claim = true;
                }
                Effect::Release { epoch, to } => {
                    role.act = None;
                    if self.up.is_some() {
                        role.release = Some((epoch, to));
                    } else {
                        // The lock went with the session.
                        queue.extend(role.life.handle(Input::ReleaseSucceeded, now, 0.5));
                    }
                }
                Effect::CycleSession => {
                    if self.up.is_some() {
                        let why = format!("the session of role {name} had to be replaced");
                        self.outputs.push_back(Output::DropSeat(why));
                    }
                }
                Effect::Leave => {
                    role.joined = false;
                    role.claim = false;
                    role.keep = None;
                    role.try_at = None;
                    role.act = None;
                }
                Effect::Notify(notice) => {
                    self.outputs.push_back(Output::Notice(name.clone(), notice));
                }
            }
        }
    }

    fn known(&self, name: &str) -> Option<RoleName> {
        let name = RoleName::new(name).ok()?;
        self.roles.contains_key(&name).then_some(name)
    }

    fn names(&self, pick: impl Fn(&Role) -> bool) -> Vec<RoleName> {
        self.roles.iter().filter(|(_, role)| pick(role)).map(|(name, _)| name.clone()).collect()
    }
}

fn term(name: &RoleName, role: &Role, epoch: Epoch) -> TermRow {
    TermRow { role: name.as_str().to_owned(), epoch: epoch.get(), key: Key::from(role.spec.key) }
}

fn explain_claim(row: &Claimed) -> String {
    let error = row.error.as_deref().unwrap_or("no reason given");
    match row.sqlstate.as_deref() {
        Some("53200") => format!(
            "the server's lock table is full ({error}); raise max_locks_per_transaction"
        ),
        Some(state) => format!("{error} (SQLSTATE {state})"),
        None => error.to_owned(),
    }
}

