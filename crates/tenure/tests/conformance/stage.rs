//! Where the suite plays: on PostgreSQL, and in memory.

use std::ops::Deref;
use std::time::Duration;

use tenure::config::{Config, RoleSpec};
use tenure::memory::MemoryGroup;
use tenure::{LeaderLock, LeaseSpec, Member};
use tenure_testkit::Database;

pub(crate) use tenure_testkit::PATIENCE;
pub(crate) const LEASE: Duration = Duration::from_millis(1800);

fn lease() -> LeaseSpec {
    LeaseSpec { lease: Some(LEASE), ..LeaseSpec::default() }
}

/// A group that members join.
pub(crate) trait Stage: Sized + Sync {
    /// One member with one role.
    type Lock: Deref<Target = LeaderLock> + 'static;

    async fn open() -> Self;

    /// A new member with that role, not started.
    async fn candidate(&self, role: RoleSpec) -> Self::Lock;

    /// Its session ends, and nothing else does.
    async fn end_session(&self, lock: &Self::Lock);
}

pub(crate) struct Postgres(Database);

/// A member's only role, and the member where it is an object of its own.
pub(crate) struct Seated {
    member: Option<Member>,
    lock: LeaderLock,
}

impl Deref for Seated {
    type Target = LeaderLock;

    fn deref(&self) -> &LeaderLock {
        &self.lock
    }
}

impl Stage for Postgres {
    type Lock = Seated;

    async fn open() -> Self {
        Postgres(tenure_testkit::database().await)
    }

    async fn candidate(&self, role: RoleSpec) -> Seated {
        let config = Config::builder().dsn(self.0.dsn()).lease(LEASE).role(role);
        let member = Member::start(config.build().expect("a good configuration")).await;
        let member = member.expect("a member");
        let lock = member.locks().remove(0);
        Seated { member: Some(member), lock }
    }

    async fn end_session(&self, lock: &Seated) {
        let client = self.0.client().await.expect("a session");
        let sql = "select pg_terminate_backend(backend_pid) from tenure.member where identity = $1";
        let member = lock.member.as_ref().expect("a member on PostgreSQL");
        client.query_one(sql, &[&member.identity().as_str()]).await.expect("it ends");
    }
}

pub(crate) struct Memory(MemoryGroup);

impl Stage for Memory {
    type Lock = Seated;

    async fn open() -> Self {
        Memory(MemoryGroup::with_lease(lease()).expect("good timings"))
    }

    async fn candidate(&self, role: RoleSpec) -> Seated {
        Seated { member: None, lock: self.0.candidate(role).expect("a good role") }
    }

    async fn end_session(&self, lock: &Seated) {
        self.0.terminate(&lock.lock);
    }
}
