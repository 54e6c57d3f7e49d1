//! A database of its own and members on it.

use tenure::config::{Config, ConfigBuilder, RoleSpec};
use tenure::{LeaderLock, LockState, Member};
use tenure_testkit::Database;
pub(crate) use tenure_testkit::{PATIENCE, database};
use tokio_postgres::Client;

/// A configuration that knows the database and nothing else.
pub(crate) fn config(database: &Database) -> ConfigBuilder {
    Config::builder().dsn(database.dsn())
}

pub(crate) async fn start(builder: ConfigBuilder) -> Member {
    Member::start(builder.build().expect("a good configuration")).await.expect("a member")
}

/// A member with one role, taking part.
pub(crate) async fn candidate(database: &Database, role: RoleSpec) -> (Member, LeaderLock) {
    let member = start(config(database).role(role)).await;
    let lock = member.locks().remove(0);
    lock.start().await.expect("the role is taken");
    (member, lock)
}

pub(crate) async fn leader(database: &Database, role: &str) -> (Member, LeaderLock) {
    let (member, lock) = candidate(database, RoleSpec::named(role)).await;
    leads(&lock).await;
    (member, lock)
}

pub(crate) async fn leads(lock: &LeaderLock) {
    assert!(lock.wait_for_leadership(Some(PATIENCE)).await.is_ok(), "{lock:?} does not lead");
}

pub(crate) async fn follows(lock: &LeaderLock) {
    let mut events = lock.events();
    if lock.state() == LockState::Follower {
        return;
    }
    let follows = async {
        while lock.state() != LockState::Follower {
            let _ = events.recv().await;
        }
    };
    tokio::time::timeout(PATIENCE, follows).await.expect("it follows");
}

/// The first column of the first row, as text.
pub(crate) async fn one(client: &Client, sql: &str) -> String {
    let rows = client.simple_query(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    rows.into_iter()
        .find_map(|message| match message {
            tokio_postgres::SimpleQueryMessage::Row(row) => {
                Some(row.get(0).unwrap_or_default().to_owned())
            }
            _ => None,
        })
        .unwrap_or_default()
}

/// Asks again until the answer is that; for events that are not announced.
pub(crate) async fn until(client: &Client, sql: &str, wanted: &str) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        let got = one(client, sql).await;
        if got == wanted {
            return;
        }
        assert!(tokio::time::Instant::now() < deadline, "{sql}: {got:?}, not {wanted:?}");
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
}

pub(crate) async fn gone(member: Member) {
    member.shutdown(Some(PATIENCE)).await.expect("it leaves in good order");
}
