//! An operator replaces the database, or rows of it, by what they were earlier, while a leader that is
//! cut off still trusts its lease.
//!
//! The rows that the next claimant finds say that nothing is owed: they are from before the leader's
//! term. What tells it otherwise is that they are not where they were.

use std::time::Duration;

use tenure::Member;
use tenure_testkit::{Cluster, Direction, Proxy};

use crate::group::{Group, connect, number, own_server, until};
use crate::node::Setup;

/// A server on which the role was led and cleanly released: an earlier state says so for ever.
async fn released_once() -> (Cluster, Setup) {
    let (cluster, database) = own_server().await;
    let setup = Setup {
        // So long that a claimant which does not wait is surely beside the old leader.
        lease: Duration::from_secs(4),
        ..Setup::new("a", &database.dsn())
    };
    let member = Member::start(setup.config()).await.expect("a member");
    member.start_all().await.expect("it takes part");
    member.locks()[0].wait_for_leadership(Some(setup.lease)).await.expect("it leads");
    member.shutdown(Some(setup.lease)).await.expect("it releases");
    (cluster, setup)
}

/// A leader whose gate stays open for what is left of its lease: it hears nothing of what follows.
async fn cut_off_leader(cluster: &Cluster, setup: &Setup) -> (Group, Proxy) {
    let proxy = Proxy::start(cluster.addr()).await.expect("a proxy");
    let mut group = Group::default();
    group.add(Setup { dsn: proxy.dsn("app"), ..setup.clone() }).await;
    proxy.blackhole(Direction::Both);
    let admin = connect(&cluster.dsn_for("postgres", "postgres")).await;
    let end = "select count(pg_terminate_backend(pid, 5000)) from pg_stat_activity \
               where datname = 'app' and pid <> pg_backend_pid()";
    assert!(number(&admin, end).await > 0, "it had sessions");
    (group, proxy)
}

/// The next leader, in a group in which at no instant two led.
async fn next_leader(mut group: Group, setup: &Setup) -> u64 {
    group.nodes.push(crate::group::Node::start(Setup { name: "b".into(), ..setup.clone() }).await);
    let old = group.leader(0).await;
    let new = group.leader(old.epoch).await;
    assert_eq!(new.node, 1);
    group.watch_for(Duration::from_millis(300)).await;
    new.epoch
}

#[tokio::test]
async fn a_copy_that_takes_the_databases_place_is_led_only_after_the_lease_and_in_a_new_generation()
{
    let (cluster, setup) = released_once().await;
    cluster.sql("create database earlier template app").await.expect("a copy");
    let (group, _proxy) = cut_off_leader(&cluster, &setup).await;
    cluster.sql("alter database app rename to later").await.expect("renamed");
    cluster.sql("alter database earlier rename to app").await.expect("renamed");
    assert!(next_leader(group, &setup).await >= 1 << 40, "an epoch of the original's generation");
}

/// As an operator restores a backup.
#[tokio::test]
async fn a_restored_dump_that_takes_the_databases_place_is_led_only_after_the_lease() {
    let (cluster, setup) = released_once().await;
    if cluster.version() != 15 {
        return; // Only the distribution's server brings these programs.
    }
    let client = connect(&cluster.dsn_for("postgres", "postgres")).await;
    let programs = "select setting from pg_config where name = 'BINDIR'";
    let programs: String = client.query_one(programs, &[]).await.expect("a folder").get(0);
    let folder = tempfile::tempdir().expect("a folder");
    let run = async |program: &str, args: &[&str]| {
        let mut command = tokio::process::Command::new(format!("{programs}/{program}"));
        command.args(["-h", "127.0.0.1", "-U", "postgres", "-p", &cluster.port().to_string()]);
        let done = command.args(args).current_dir(folder.path()).output().await.expect("it runs");
        assert!(done.status.success(), "{program}: {}", String::from_utf8_lossy(&done.stderr));
    };
    run("pg_dump", &["-d", "app", "-f", "app.sql"]).await;
    cluster.sql("create database earlier").await.expect("an empty one");
    run("psql", &["-d", "earlier", "-q", "-v", "ON_ERROR_STOP=1", "-f", "app.sql"]).await;
    let (group, _proxy) = cut_off_leader(&cluster, &setup).await;
    cluster.sql("alter database app rename to later").await.expect("renamed");
    cluster.sql("alter database earlier rename to app").await.expect("renamed");
    assert!(next_leader(group, &setup).await >= 1 << 40, "an epoch of the original's generation");
}

#[tokio::test]
async fn rows_that_are_restored_are_led_only_after_the_lease() {
    let (cluster, setup) = released_once().await;
    let admin = connect(&setup.dsn).await;
    // A dump may leave the unlogged tables out.
    for table in ["role", "origin"] {
        let save = format!("create table public.{table} as select * from tenure.{table}");
        admin.batch_execute(&save).await.expect("saved");
    }
    drop(admin);
    let (group, _proxy) = cut_off_leader(&cluster, &setup).await;
    let admin = connect(&setup.dsn).await;
    for table in ["role", "origin"] {
        let restore = format!(
            "begin; delete from tenure.{table}; insert into tenure.{table} select * from public.{table}; commit"
        );
        admin.batch_execute(&restore).await.expect("restored");
    }
    next_leader(group, &setup).await;
}

#[tokio::test]
async fn a_role_whose_row_was_deleted_is_led_only_after_the_lease_and_above_its_history() {
    let (cluster, setup) = released_once().await;
    let (group, _proxy) = cut_off_leader(&cluster, &setup).await;
    connect(&setup.dsn).await.batch_execute("delete from tenure.role").await.expect("deleted");
    assert_eq!(next_leader(group, &setup).await, 3);
}

/// The lock says nothing of how long its holder acts: a member that found it held waits when it is free.
#[tokio::test]
async fn a_member_waits_out_a_lock_only_leader_and_a_lock_only_member_is_refused_beside_it() {
    let (cluster, database) = own_server().await;
    let proxy = Proxy::start(cluster.addr()).await.expect("a proxy");
    let setup = Setup { lease: Duration::from_secs(4), ..Setup::new("b", &database.dsn()) };
    let without = Setup { name: "a".into(), lock_only: true, ..setup.clone() };
    let mut first = Group::default();
    first.add(Setup { dsn: proxy.dsn("app"), ..without.clone() }).await;
    let mut second = Group::default();
    second.nodes.push(crate::group::Node::start(setup.clone()).await);
    let admin = connect(&setup.dsn).await;
    until("a debt to be written down", || async {
        let sql = "select count(*) from tenure.role where debtor = '(unknown)'";
        number(&admin, sql).await == 1
    })
    .await;
    proxy.blackhole(Direction::Both);
    let end = "select count(pg_terminate_backend(l.pid, 5000)) from pg_locks l join tenure.role r \
               on l.locktype = 'advisory' and l.objid = (r.key & 4294967295)::oid";
    assert_eq!(number(&admin, end).await, 1);
    // No notification tells of it: the repair poll finds it.
    let new = second.leader(0).await;
    assert!(first.nodes[0].last_yes().expect("it led") < new.at_ns, "two led at once");
    let refused = Member::start(Setup { name: "c".into(), ..without }.config()).await;
    let error = refused.expect("a member").start_all().await.expect_err("refused");
    assert!(error.to_string().contains("without lock-only"), "{error}");
}
