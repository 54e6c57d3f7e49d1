//! The database as the election sees it: a pure model of the tables, the sessions, the advisory
//! locks and the functions of `sql/0002_seat.sql`.
//!
//! It answers each [`Op`] as the SQL function of the same name does; a test drives both through
//! thousands of random steps and compares every answer and every row. It knows no time but what it is
//! given, and that only for manners (head starts), as in SQL.
//!
//! The tables are public: a simulation takes commits back and plants mistakes there.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::clock::Tick;
use crate::epoch::{Epoch, next_epoch};
use crate::key::{LockKey, RoleName};
use crate::lease::TakeoverPolicy;

use crate::protocol::{
    Beaten, Better, Claim, ClaimRow, Claimed, Debt, Done, MarkedActing, Op, Order, Other,
    RegisterRefusal, RegisterRow, Registered, ReleaseRow, Seated, TermRow, Won, millis,
};

mod tables;
#[cfg(test)]
mod tests;

pub use tables::{Candidate, Lineage, MemberRow, RoleRow, Tables};

/// The debtor where it is a session that is no member's.
pub const UNKNOWN: &str = "(unknown)";

/// A backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SessionId(u64);

/// A member that takes a seat.
#[derive(Debug, Clone)]
#[allow(missing_docs, reason = "the names say it")]
pub struct MemberSpec {
    pub identity: String,
    pub lease_ms: u64,
    pub grace_ms: u64,
}

impl MemberSpec {
    pub fn new(identity: &str, lease: &crate::lease::Lease) -> Self {
        MemberSpec {
            identity: identity.to_owned(),
            lease_ms: millis(lease.lease()),
            grace_ms: millis(lease.reconnect_grace().unwrap_or_default()),
        }
    }
}

/// What the next leader of a role owes.
struct Owed {
    /// Nothing: no gate can be open.
    settled: bool,
    ms: Option<u64>,
}

/// Which line of history the server is on, and which stretch of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Boot {
    lineage: Lineage,
    start: u64,
    /// Changes with every crash, also with one that the postmaster survives.
    mark: u64,
}

/// A listening session is told of a role.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    pub session: SessionId,
    pub role: RoleName,
    /// It was released to the session's member.
    pub named: bool,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct Model {
    /// The rows, as the last commit left them.
    pub tables: Tables,
    boot: Boot,
    /// Live sessions, by the member that sits there.
    sessions: BTreeMap<SessionId, String>,
    /// The session that holds a role's advisory lock.
    locks: BTreeMap<LockKey, SessionId>,
    /// The locks that sessions hold which are no member's.
    strangers: BTreeSet<LockKey>,
    told: Vec<Told>,
    last_id: u64,
}

impl Model {
    // --- getters ---

    pub fn is_alive(&self, session: SessionId) -> bool {
        self.sessions.contains_key(&session)
    }

    /// The holder of a role whose session is alive, its epoch, and whether its gate may be open.
    pub fn leader(&self, role: &RoleName) -> Option<(&str, Epoch, bool)> {
        let row = self.tables.roles.get(role)?;
        let holder = row.holder.as_ref()?;
        let is_alive = self.sessions.values().any(|member| member == holder);
        is_alive.then_some((holder, row.epoch, row.debtor.as_ref() == Some(holder)))
    }

    /// The member whose seat this session is.
    pub fn seated(&self, session: SessionId) -> Option<&str> {
        self.sessions.get(&session).map(String::as_str)
    }

    /// What was said to listeners since the last call.
    pub fn take_told(&mut self) -> Vec<Told> {
        std::mem::take(&mut self.told)
    }

    /// The server's identity between two starts.
    pub fn incarnation(&self) -> String {
        let Boot { lineage: Lineage { copy, timeline }, start, mark } = self.boot;
        format!("{copy}/{timeline}/{start}/{mark}")
    }

    pub fn lineage(&self) -> Lineage {
        self.boot.lineage
    }

    // --- sessions ---

    /// `take_seat`: a member takes its seat, and ends its own old session first.
    pub fn take_seat(&mut self, member: &MemberSpec, now: Tick) -> (SessionId, Seated) {
        let old = self.sessions.iter().find(|(_, who)| **who == member.identity).map(|(id, _)| *id);
        if let Some(old) = old {
            self.end(old);
        }
        self.last_id += 1;
        let session = SessionId(self.last_id);
        self.sessions.insert(session, member.identity.clone());
        let incarnation = self.incarnation();
        let row = self.tables.members.entry(member.identity.clone()).or_insert(MemberRow {
            session,
            beat: -1,
            revoked: 0,
            lease_ms: member.lease_ms,
            grace_ms: member.grace_ms,
            incarnation: incarnation.clone(),
            seen_at: now,
            left_at: None,
        });
        row.session = session;
        row.beat += 1;
        row.incarnation.clone_from(&incarnation);
        row.seen_at = now;
        row.left_at = None;
        let seated = Seated { backend_pid: 0, revoked: row.revoked };
        (session, seated)
    }

    /// A session ends, and its locks with it. Returns whose it was.
    pub fn end(&mut self, session: SessionId) -> Option<String> {
        self.locks.retain(|_, holder| *holder != session);
        self.sessions.remove(&session)
    }

    /// A restart in good order: nothing is lost but the sessions.
    pub fn restart(&mut self) {
        self.boot.start += 1;
        self.end_all();
    }

    /// A crash after which the tables are `left`. With `postmaster` the server's start time is new;
    /// without it only a backend was killed.
    pub fn crash(&mut self, left: Tables, postmaster: bool) {
        self.tables = left;
        self.boot.start += u64::from(postmaster);
        self.boot.mark += 1;
        self.end_all();
    }

    /// A standby is promoted whose tables are `left`.
    pub fn fail_over(&mut self, left: Tables) {
        self.tables = left;
        self.boot.lineage.timeline += 1;
        self.boot.start += 1;
        self.boot.mark += 1;
        self.end_all();
    }

    /// The database is replaced by a copy whose tables are `left`. The server runs on, and a copy of
    /// `boot` keeps its mark.
    pub fn replace_by_copy(&mut self, left: Tables) {
        self.tables = left;
        self.boot.lineage.copy += 1;
        self.end_all();
    }

    /// A session that is no member's takes a lock, if it is free. Returns whether it did.
    pub fn stranger_takes(&mut self, key: LockKey) -> bool {
        !self.locks.contains_key(&key) && self.strangers.insert(key)
    }

    /// It lets go of it.
    pub fn stranger_leaves(&mut self, key: LockKey) {
        self.strangers.remove(&key);
    }

    fn end_all(&mut self) {
        self.sessions.clear();
        self.locks.clear();
        self.strangers.clear();
        self.told.clear();
    }

    /// `record_death`: records a death, if it is still one. Returns whether it did.
    pub fn record_death(&mut self, identity: &str, now: Tick) -> bool {
        if self.sessions.values().any(|who| who == identity) {
            return false;
        }
        let live = |row: &&mut MemberRow| row.left_at.is_none();
        let Some(member) = self.tables.members.get_mut(identity).filter(live) else {
            return false;
        };
        member.left_at = Some(now);
        self.tables.candidates.retain(|(_, member), _| member != identity);
        true
    }

    // --- what a seat says ---

    /// One round trip. An error is what the server would raise; the caller drops the seat.
    pub fn run(&mut self, session: SessionId, op: &Op, now: Tick) -> Result<Done, String> {
        if let Op::Release(rows) = op {
            self.release(session, rows, now)?;
            return self.unlock(session, rows);
        }
        let me = self.prove(session, now)?;
        Ok(match op {
            Op::Register(rows) => {
                let answers = rows.iter().filter_map(|row| self.register(&me, row));
                Done::Registered(answers.collect())
            }
            Op::Claim { rows, .. } => {
                let mut rows: Vec<&ClaimRow> = rows.iter().collect();
                rows.sort_by_key(|row| row.key);
                Done::Claimed(
                    rows.into_iter().map(|row| self.claim(session, &me, row, now)).collect(),
                )
            }
            Op::MarkActing(rows) => {
                let done = rows.iter().filter(|row| self.mark_acting(&me, row));
                let marked = done.map(|row| row.role.clone()).collect();
                Done::MarkedActing(MarkedActing { marked, blocked: Vec::new() })
            }
            Op::Beat => Done::Beaten(self.beat(&me, now)),
            Op::Inspect(rows) => Done::Inspected(self.inspect(session, &me, rows)),
            Op::Release(_) => unreachable!("carried out above, in two halves"),
            Op::LeaveSeat => {
                self.tables.candidates.retain(|(_, member), _| *member != me);
                self.member(&me).left_at = Some(now);
                Done::LeftSeat
            }
        })
    }

    /// `prove`: that this runs on the seat of record; it also advances the beat.
    fn prove(&mut self, session: SessionId, now: Tick) -> Result<String, String> {
        let me = self.sessions.get(&session).cloned().ok_or("the session has ended")?;
        match self.tables.members.get_mut(&me) {
            Some(row) if row.session == session && row.left_at.is_none() => {
                row.beat += 1;
                row.seen_at = now;
                Ok(me)
            }
            _ => Err(format!("this session is not the seat of member {me}")),
        }
    }

    /// None: a candidacy that was withdrawn is not answered.
    fn register(&mut self, me: &str, q: &RegisterRow) -> Option<Registered> {
        if q.withdraw {
            self.tables.candidates.remove(&(q.role.clone(), me.to_owned()));
            return None;
        }
        Some(Registered { role: q.role.clone(), refused: self.register_role(me, q).err() })
    }

    fn register_role(&mut self, me: &str, q: &RegisterRow) -> Result<(), RegisterRefusal> {
        let (lease_ms, incarnation) = {
            let member = self.member(me);
            (member.lease_ms, member.incarnation.clone())
        };
        let taken =
            self.tables.roles.iter().find(|(name, row)| row.key == q.key && **name != q.role);
        if let Some((other, _)) = taken
            && !self.tables.roles.contains_key(&q.role)
        {
            return Err(RegisterRefusal::Collision { with: other.clone() });
        }
        // New on the line of history on which the schema was born: no member ever led it.
        let known = self.tables.terms.get(&q.role).copied();
        let is_new = known.is_none() && self.boot.lineage == Lineage::default();
        let fresh = is_new.then_some(incarnation);
        // Its row was deleted, and it was led: by which member is not known.
        let longest = self.tables.members.values().map(|member| member.lease_ms).max();
        let owed = known.and(longest);
        let row = self.tables.roles.entry(q.role.clone()).or_insert_with(|| RoleRow {
            key: q.key,
            policy: q.policy,
            lease_ms: owed.unwrap_or(lease_ms),
            epoch: known.unwrap_or(Epoch::ZERO),
            lineage: None,
            holder: None,
            held_in: None,
            last_holder: None,
            debtor: owed.map(|_| UNKNOWN.to_owned()),
            debtor_lease_ms: owed,
            acted_in: None,
            paid_in: fresh,
            waited_for: None,
            waited_ms: 0,
            successor: None,
            paused: false,
            order: None,
        });
        row.lease_ms = row.lease_ms.max(lease_ms);
        if row.key != q.key {
            return Err(RegisterRefusal::Key { known: row.key });
        }
        if row.policy != q.policy {
            return Err(RegisterRefusal::Policy { known: row.policy });
        }
        let candidate = Candidate { priority: q.priority, ready: q.ready, observer: q.observer };
        self.tables.candidates.insert((q.role.clone(), me.to_owned()), candidate);
        Ok(())
    }

    fn claim(&mut self, session: SessionId, me: &str, q: &ClaimRow, now: Tick) -> Claimed {
        let claim = self.outcome(session, me, q, now);
        if matches!(claim, Claim::Won(_) | Claim::Kept { .. }) {
            self.locks.insert(q.key, session);
        }
        Claimed { role: q.role.clone(), claim }
    }

    fn outcome(&mut self, session: SessionId, me: &str, q: &ClaimRow, now: Tick) -> Claim {
        let row = self.tables.roles.get(&q.role).cloned();
        let better = row.as_ref().filter(|_| q.keep.is_none() && !q.insist);
        let better = better.and_then(|row| self.better_candidate(me, &q.role, row, now));
        // Before the lock: a candidate that yields does not even try it.
        if let (Some(RoleRow { holder: None, epoch, .. }), Some(to)) = (&row, better) {
            return Claim::Yield { epoch: *epoch, holder: None, to };
        }
        let lock = self.locks.get(&q.key).copied();
        if lock.is_some() || self.strangers.contains(&q.key) {
            assert_ne!(lock, Some(session), "a role that is held is never claimed");
            if !lock.is_some_and(|session| self.is_seat(session)) {
                self.owe_a_stranger(&q.role);
            }
            let holder = row.as_ref().and_then(|row| row.holder.clone());
            let held_by_us = holder.as_deref().map(|holder| holder == me);
            return Claim::Held { epoch: row.map(|row| row.epoch), holder, held_by_us };
        }
        let Some(r) = row.filter(|row| row.key == q.key) else { return Claim::Unknown };
        let (epoch, holder) = (r.epoch, r.holder.clone());
        if r.paused {
            return Claim::Paused { epoch, holder };
        }
        let MemberRow { incarnation, lease_ms, .. } = self.member(me).clone();
        let here = Some(&incarnation);
        let mine = r.debtor.as_deref() == Some(me);
        if let Some(keep) = q.keep {
            let still = holder.as_deref() == Some(me)
                && epoch == keep
                && r.held_in.as_ref() == here
                && mine;
            return match still {
                true => Claim::Kept { epoch, holder },
                false => Claim::Moved { epoch, holder },
            };
        }
        if let Some(to) = better {
            return Claim::Yield { epoch, holder, to };
        }
        let owed = self.owed(&r, &incarnation);
        let paid = r.policy == TakeoverPolicy::Fenced
            || owed.settled
            || mine && r.acted_in.as_ref() == here;
        let lineage = self.boot.lineage;
        let moved = r.lineage.unwrap_or_default() != lineage;
        let moved_to = moved.then_some(lineage.timeline + 1);
        let terms = self.tables.terms.entry(q.role.clone()).or_default();
        let won = next_epoch(epoch.max(*terms), q.seen, moved_to);
        *terms = won;
        let debtor = r.debtor.as_ref().and_then(|debtor| self.tables.members.get_key_value(debtor));
        let waits_for = match debtor {
            Some((name, row)) => Some(format!("{name} {} {incarnation}", row.beat)),
            None => r.debtor.is_none().then(|| format!("- {incarnation}")),
        };
        let same = waits_for.is_some() && waits_for == r.waited_for;
        let waited_ms = if same { r.waited_ms } else { 0 };
        let row = self.role(&q.role);
        row.waited_for = waits_for.filter(|_| !paid);
        row.waited_ms = if paid { 0 } else { waited_ms };
        row.epoch = won;
        row.lineage = Some(lineage);
        row.last_holder = holder.clone().or(row.last_holder.take());
        row.holder = Some(me.to_owned());
        row.held_in = Some(incarnation.clone());
        row.successor = None;
        row.order = None;
        row.lease_ms = row.lease_ms.max(lease_ms);
        if paid {
            row.debtor = Some(me.to_owned());
            row.debtor_lease_ms = Some(lease_ms);
            row.acted_in = Some(incarnation.clone());
            row.paid_in = None;
        }
        if let Some(old) = holder.as_ref().filter(|old| *old != me)
            && let Some(old) = self.tables.members.get_mut(old)
        {
            old.revoked += 1;
        }
        let debtor = r.debtor.as_ref().and_then(|debtor| self.tables.members.get(debtor));
        let debt = Debt {
            beat: debtor.map(|d| d.beat),
            debtor: r.debtor,
            lease: owed.ms.map(Duration::from_millis),
            waited: Duration::from_millis(waited_ms),
        };
        Claim::Won(Won { epoch: won, holder, debt: (!paid).then_some(debt) })
    }

    /// `owed`: what the next leader of a role owes.
    fn owed(&self, r: &RoleRow, incarnation: &str) -> Owed {
        let settled = r.debtor.is_none() && r.paid_in.as_deref() == Some(incarnation);
        // In this incarnation no write was lost, so the debtor's own lease is known; otherwise the
        // debtor may have been any member that ever registered, or a member whose registration was lost.
        let ms = if r.debtor.is_some() && r.acted_in.as_deref() == Some(incarnation) {
            r.debtor_lease_ms
        } else {
            let debtor = r.debtor.as_ref().and_then(|debtor| self.tables.members.get(debtor));
            let known = r.debtor_lease_ms.max(Some(r.lease_ms)).max(debtor.map(|d| d.lease_ms));
            known.max(self.longest_unregistered(incarnation))
        };
        Owed { settled, ms }
    }

    /// The longest lease of the members that sat here in another incarnation and are candidates for
    /// nothing: a failover may have lost their registration.
    fn longest_unregistered(&self, incarnation: &str) -> Option<u64> {
        let is_candidate = |member: &str| self.tables.candidates.keys().any(|(_, of)| of == member);
        let unregistered = self
            .tables
            .members
            .iter()
            .filter(|(name, row)| row.incarnation != incarnation && !is_candidate(name));
        unregistered.map(|(_, row)| row.lease_ms).max()
    }

    /// The lock is held, and by no member, whatever the row says: the next winner owes a wait.
    fn owe_a_stranger(&mut self, role: &RoleName) {
        let Some(row) = self.tables.roles.get_mut(role) else { return };
        if row.debtor.as_deref() != Some(UNKNOWN) {
            row.debtor = Some(UNKNOWN.to_owned());
            row.debtor_lease_ms = row.debtor_lease_ms.max(Some(row.lease_ms));
            row.acted_in = None;
            row.paid_in = None;
        }
    }

    /// Whether that session is the seat of record of a member.
    fn is_seat(&self, session: SessionId) -> bool {
        let member = self.sessions.get(&session).and_then(|name| self.tables.members.get(name));
        member.is_some_and(|row| row.session == session && row.left_at.is_none())
    }

    /// Why another candidate should have the role first, if one should.
    fn better_candidate(
        &self,
        me: &str,
        role: &RoleName,
        row: &RoleRow,
        now: Tick,
    ) -> Option<Better> {
        let mine = self.tables.candidates.get(&(role.clone(), me.to_owned()))?;
        let successor = row.successor.as_ref();
        self.tables
            .candidates
            .iter()
            .filter(|((of, member), c)| of == role && member != me && !c.observer)
            // A candidate that has just released the role does not want it back so soon.
            .filter(|((_, member), _)| {
                row.holder.is_some() || row.last_holder.as_ref() != Some(member)
            })
            .filter(|((_, member), _)| {
                self.tables.members.get(member).is_some_and(|other| {
                    let lease = Duration::from_millis(other.lease_ms);
                    other.left_at.is_none() && now.saturating_since(other.seen_at) < lease
                })
            })
            .filter_map(|((_, member), c)| {
                let better = (c.ready, c.priority) > (mine.ready, mine.priority);
                let named = |who: &str| successor.is_some_and(|(to, _)| to == who);
                let in_time = successor.is_some_and(|(_, until)| now < *until);
                if named(member) && (in_time || better) {
                    return Some((2, Better::Successor));
                }
                match better && !named(me) {
                    true if c.ready && !mine.ready => Some((1, Better::Ready)),
                    true => Some((0, Better::Priority)),
                    false => None,
                }
            })
            .max_by_key(|(rank, _)| *rank)
            .map(|(_, why)| why)
    }

    /// `mark_acting`: from here on this member is the debtor.
    fn mark_acting(&mut self, me: &str, q: &TermRow) -> bool {
        let (lease_ms, incarnation) = {
            let member = self.member(me);
            (member.lease_ms, member.incarnation.clone())
        };
        let Some(row) = self.tables.roles.get_mut(&q.role) else { return false };
        if row.epoch != q.epoch || row.holder.as_deref() != Some(me) {
            return false;
        }
        row.debtor = Some(me.to_owned());
        row.debtor_lease_ms = Some(lease_ms);
        row.acted_in = Some(incarnation);
        row.paid_in = None;
        row.waited_for = None;
        row.waited_ms = 0;
        true
    }

    fn beat(&mut self, me: &str, now: Tick) -> Beaten {
        // The dead too, for a while: their debts run from when their last beat was seen.
        let others = self.tables.members.iter().filter(|(name, row)| {
            let a_while = Duration::from_millis(row.lease_ms) * 4;
            *name != me && row.left_at.is_none_or(|left| now.saturating_since(left) < a_while)
        });
        let rows = self.tables.roles.values();
        let held = rows.filter(|row| row.holder.as_deref() == Some(me));
        let orders = self.tables.roles.iter().filter(|(_, row)| {
            row.holder.as_deref() == Some(me) && (row.paused || row.order.is_some())
        });
        Beaten {
            revoked: self.tables.members[me].revoked,
            held: Some(held.count() as i64),
            others: Some(
                others.map(|(name, row)| Other(name.clone(), row.beat, row.grace_ms)).collect(),
            ),
            orders: Some(
                orders
                    .map(|(name, row)| Order {
                        role: name.clone(),
                        paused: row.paused,
                        id: row.order.as_ref().map(|(id, _)| *id),
                        to: row.order.as_ref().and_then(|(_, to)| to.clone()),
                    })
                    .collect(),
            ),
        }
    }

    fn inspect(&self, session: SessionId, me: &str, rows: &[TermRow]) -> Vec<RoleName> {
        let ours = |q: &TermRow| {
            let row = self.tables.roles.get(&q.role);
            row.is_some_and(|row| row.epoch == q.epoch && row.holder.as_deref() == Some(me))
                && self.locks.get(&q.key) == Some(&session)
        };
        rows.iter().filter(|q| !ours(q)).map(|q| q.role.clone()).collect()
    }

    /// The first half of a release: the row, guarded by holder and epoch.
    pub fn release(
        &mut self,
        session: SessionId,
        rows: &[ReleaseRow],
        now: Tick,
    ) -> Result<(), String> {
        let me = self.prove(session, now)?;
        let (lease_ms, incarnation) = {
            let member = self.member(&me);
            (member.lease_ms, member.incarnation.clone())
        };
        for ReleaseRow { term, clean, to, waited_ms } in rows {
            let Some(row) = self.tables.roles.get_mut(&term.role) else { continue };
            if row.epoch != term.epoch || row.holder.as_deref() != Some(&me) {
                continue;
            }
            row.holder = None;
            row.held_in = None;
            row.last_holder = Some(me.clone());
            row.order = None;
            let lease = Duration::from_millis(lease_ms);
            row.successor = to.clone().map(|to| (to, now + lease));
            if row.waited_for.is_some() {
                row.waited_ms += waited_ms.unwrap_or(0);
            }
            // A debt from another incarnation is not ours to pay: a failover may have lost the member
            // that led after us.
            let ours = row.acted_in.as_ref() == Some(&incarnation);
            if *clean && ours && row.debtor.as_ref() == Some(&me) {
                row.debtor = None;
                row.debtor_lease_ms = None;
                row.paid_in = Some(incarnation.clone());
            }
        }
        Ok(())
    }

    /// The second half: unlock and tell. It writes nothing.
    pub fn unlock(&mut self, session: SessionId, rows: &[ReleaseRow]) -> Result<Done, String> {
        if !self.is_alive(session) {
            return Err("the session has ended".to_owned());
        }
        let mut not_held = BTreeSet::new();
        for ReleaseRow { term, to, .. } in rows {
            let lock = term.key;
            if self.locks.get(&lock) == Some(&session) {
                self.locks.remove(&lock);
            } else {
                not_held.insert(term.role.clone());
            }
            self.tell_of(&term.role, to.as_deref());
        }
        if let Some(role) = not_held.first() {
            return Err(format!("the lock of {role} was not held when it was released"));
        }
        Ok(Done::Released)
    }

    // --- what an operator says ---

    pub fn set_paused(&mut self, role: &RoleName, paused: bool) -> bool {
        let Some(row) = self.tables.roles.get_mut(role) else { return false };
        row.paused = paused;
        self.tell(role);
        true
    }

    /// How long an operator waits that settles the role, which no member takes part in; none: its lock is
    /// held.
    pub fn settle(&self, role: &RoleName) -> Option<u64> {
        let row = self.tables.roles.get(role)?;
        if self.locks.contains_key(&row.key) || self.strangers.contains(&row.key) {
            return None;
        }
        let owed = self.owed(row, &self.incarnation());
        if owed.settled { Some(0) } else { owed.ms }
    }

    /// A step-down that `to` asks for, if it stands above the holder.
    pub fn preempt(&mut self, role: &RoleName, to: &str) {
        let priority = |member: &str| {
            let key = (role.clone(), member.to_owned());
            self.tables.candidates.get(&key).map(|candidate| candidate.priority)
        };
        let holder = self.tables.roles.get(role).and_then(|row| row.holder.clone());
        let (Some(holder), Some(mine)) = (holder, priority(to)) else { return };
        if priority(&holder).is_none_or(|theirs| theirs >= mine) {
            return;
        }
        self.last_id += 1;
        let id = self.last_id as i64;
        self.role(role).order = Some((id, Some(to.to_owned())));
        self.tell(role);
    }

    fn tell(&mut self, role: &RoleName) {
        self.tell_of(role, None);
    }

    fn tell_of(&mut self, role: &RoleName, to: Option<&str>) {
        let all: Vec<SessionId> = self.sessions.keys().copied().collect();
        for session in all {
            let named = to.is_some() && self.seated(session) == to;
            self.told.push(Told { session, role: role.clone(), named });
        }
    }

    fn member(&mut self, me: &str) -> &mut MemberRow {
        self.tables.members.get_mut(me).expect("a proved member has a row")
    }

    fn role(&mut self, name: &RoleName) -> &mut RoleRow {
        self.tables.roles.get_mut(name).expect("a role that was read in this transaction")
    }
}
