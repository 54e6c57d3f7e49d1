//! The server of a run: the product's model of the database, what it may forget, and the mistakes
//! that are planted in its answers.

use std::collections::VecDeque;
use std::time::Duration;

use tenure_core::clock::Tick;
use tenure_core::model::{MemberSpec, Model, SessionId, Tables, Told};
use tenure_core::protocol::{Done, Op, ReleaseRow, Seated};

use super::mistake::Mistake;

/// How long a commit that no session waits for may stay in memory: three rounds of the WAL writer.
const UNFLUSHED: Duration = Duration::from_millis(600);
/// How many commits a standby may be behind.
const LAG: usize = 24;

struct Version {
    tables: Tables,
    at: Tick,
    durable: bool,
}

pub(super) struct Database {
    model: Model,
    mistake: Option<Mistake>,
    /// No failover loses that a member took its seat, and with it which lease it has.
    keeps_leases: bool,
    /// The last commits, the newest last.
    past: VecDeque<Version>,
}

impl Database {
    pub(super) fn new(mistake: Option<Mistake>, keeps_leases: bool) -> Self {
        Database { model: Model::default(), mistake, keeps_leases, past: VecDeque::new() }
    }

    // --- sessions ---

    pub(super) fn is_alive(&self, session: SessionId) -> bool {
        self.model.is_alive(session)
    }

    pub(super) fn take_told(&mut self) -> Vec<Told> {
        self.model.take_told()
    }

    pub(super) fn take_seat(&mut self, spec: &MemberSpec, now: Tick) -> (SessionId, Seated) {
        let taken = self.model.take_seat(spec, now);
        self.commit(true, now);
        taken
    }

    pub(super) fn end(&mut self, session: SessionId) -> Option<String> {
        self.model.end(session)
    }

    pub(super) fn record_death(&mut self, identity: &str, now: Tick) {
        if self.model.record_death(identity, now) {
            self.commit(true, now);
        }
    }

    // --- statements ---

    /// One round trip; a release has two, see [`Database::release`].
    pub(super) fn run(&mut self, session: SessionId, op: &Op, now: Tick) -> Result<Done, String> {
        let before = self.alter_before(session, op);
        let mut done = self.model.run(session, op, now)?;
        if let (Some((mistake, me)), Some(before)) =
            (self.mistake.zip(self.seated(session)), before)
        {
            mistake.after(&mut self.model, &before, &me, op, &mut done);
        }
        self.commit(!matches!(op, Op::Beat), now);
        Ok(done)
    }

    /// The first half of a release: the rows.
    pub(super) fn release(
        &mut self,
        session: SessionId,
        rows: &[ReleaseRow],
        now: Tick,
    ) -> Result<(), String> {
        self.alter_before(session, &Op::Release(rows.to_vec()));
        self.model.release(session, rows, now)?;
        self.commit(false, now);
        Ok(())
    }

    /// The second half of a release: the locks. It writes nothing.
    pub(super) fn unlock(
        &mut self,
        session: SessionId,
        rows: &[ReleaseRow],
    ) -> Result<Done, String> {
        self.model.unlock(session, rows)
    }

    fn seated(&self, session: SessionId) -> Option<String> {
        self.model.seated(session).map(str::to_owned)
    }

    /// Plants a mistake, if there is one; returns the tables as they were before.
    fn alter_before(&mut self, session: SessionId, op: &Op) -> Option<Tables> {
        let (mistake, me) = self.mistake.zip(self.seated(session))?;
        let before = self.model.tables.clone();
        mistake.before(&mut self.model, &me, op);
        Some(before)
    }

    // --- what happens to the server ---

    pub(super) fn restart(&mut self) {
        self.model.restart();
        self.started();
    }

    /// A crash, which loses up to `lose` commits that no session waited for.
    pub(super) fn crash(&mut self, lose: usize, postmaster: bool, now: Tick) {
        let left = self
            .back(lose, |version| !version.durable && now.saturating_since(version.at) < UNFLUSHED);
        self.model.crash(left, postmaster);
        self.started();
    }

    /// A standby that was up to `lose` commits behind is promoted.
    pub(super) fn fail_over(&mut self, lose: usize) {
        let left = self.back(lose, |_| true);
        self.model.fail_over(left);
        self.started();
    }

    fn started(&mut self) {
        if let Some(mistake) = self.mistake {
            mistake.started(&mut self.model);
        }
    }

    fn commit(&mut self, durable: bool, at: Tick) {
        if self.past.len() > LAG {
            self.past.pop_front();
        }
        self.past.push_back(Version { tables: self.model.tables.clone(), at, durable });
    }

    /// Forgets up to `lose` commits, as far as `may` allows; at least one is left.
    fn back(&mut self, lose: usize, may: impl Fn(&Version) -> bool) -> Tables {
        for _ in 0..lose {
            let mut newest = self.past.iter().rev();
            let (Some(last), Some(before)) = (newest.next(), newest.next()) else { break };
            if may(last) && (!self.keeps_leases || leases(last) == leases(before)) {
                self.past.pop_back();
            }
        }
        self.past.back().map_or_else(Tables::default, |version| version.tables.clone())
    }
}

fn leases(version: &Version) -> Vec<(&String, u64)> {
    version.tables.members.iter().map(|(name, member)| (name, member.lease_ms)).collect()
}
