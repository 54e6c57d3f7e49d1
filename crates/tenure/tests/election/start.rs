//! A member that starts while the database is away for a moment follows, and leads when it is back.

use std::time::{Duration, Instant};

use tenure::config::{Config, RoleSpec};
use tenure::connect::Remedy;
use tenure::{LeaderLock, Member};
use tenure_testkit::{Cluster, ReplicaOptions, shared_cluster};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::stage::{candidate, database, gone, leads};

/// Short enough that a preflight gives up soon.
fn quick(dsn: &str) -> Config {
    Config::builder()
        .dsn(dsn)
        .heartbeat(Duration::from_millis(250))
        .lease(Duration::from_millis(1500))
        .role(RoleSpec::named("r"))
        .build()
        .expect("a good configuration")
}

/// Starts it although the database is away, and returns its role, which does not lead.
async fn follower(config: Config) -> (Member, LeaderLock) {
    let member = Member::start(config).await.expect("what passes by itself is no error");
    let lock = member.lock("r").expect("configured");
    lock.start().await.expect("it follows");
    let health = member.health().await.expect("it runs");
    assert!(!health.connected && !lock.is_leader(), "{health:?}");
    (member, lock)
}

#[tokio::test]
async fn too_many_connections_are_waited_out() {
    let database = database().await;
    gone(candidate(&database, RoleSpec::named("other")).await.0).await;
    let client = database.client().await.unwrap();
    let user = format!("crowded_{}", std::process::id());
    let create = format!("create role {user} login connection limit 0");
    client.batch_execute(&create).await.unwrap();
    client.batch_execute(&tenure::schema::privileges_sql(&user)).await.unwrap();
    let dsn = database.dsn_for(&user);
    let (member, lock) = follower(quick(&dsn)).await;
    client.batch_execute(&format!("alter role {user} connection limit -1")).await.unwrap();
    leads(&lock).await;
    gone(member).await;
    let clean = format!("drop owned by {user}; drop role {user}");
    client.batch_execute(&clean).await.unwrap();
}

#[tokio::test]
async fn a_lock_on_our_tables_is_waited_out() {
    let database = database().await;
    gone(candidate(&database, RoleSpec::named("r")).await.0).await;
    let mut client = database.client().await.unwrap();
    let busy = client.transaction().await.unwrap();
    busy.batch_execute("lock table tenure.migration, tenure.role").await.unwrap();
    let (member, lock) = follower(quick(&database.dsn())).await;
    busy.rollback().await.unwrap();
    leads(&lock).await;
    gone(member).await;
}

/// One server of the cluster is down, the other is a standby that is not promoted yet.
#[tokio::test]
async fn a_cluster_without_a_primary_is_waited_for() {
    let primary = Cluster::start().await.expect("a server");
    let replica = primary.replica(ReplicaOptions::default()).await.expect("a replica");
    let ports = format!("{},{}", primary.port(), replica.port());
    let dsn = format!("host=127.0.0.1,127.0.0.1 port={ports} dbname=postgres user=postgres");
    primary.crash().await.expect("crashed");
    let (member, lock) = follower(quick(&dsn)).await;
    replica.promote().await.expect("promoted");
    leads(&lock).await;
    gone(member).await;
}

/// What does not pass by itself is told at once.
#[tokio::test]
async fn a_database_that_does_not_exist_is_not_waited_for() {
    let database = database().await;
    let absent = shared_cluster().await.dsn_for("absent", "postgres");
    let error = Member::start(quick(&absent)).await.expect_err("there is none");
    assert_eq!(error.remedy(), Remedy::Input, "{error}");
    let stranger = quick(&database.dsn_for("stranger"));
    let error = Member::start(stranger).await.expect_err("no such login");
    assert_eq!(error.remedy(), Remedy::Operator, "{error}");
}

/// A strategy that is written down is followed as written, from the first failure on.
#[tokio::test]
async fn an_explicit_retry_paces_the_attempts_to_connect() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let interval = Duration::from_millis(400);
    let text = "[retry]\nstrategy = 'fixed'\ninterval = '400ms'\n";
    let config = Config::builder()
        .toml(text, "tenure.toml")
        .unwrap()
        .dsn(format!("host=127.0.0.1 port={port} user=u sslmode=disable"))
        .role(RoleSpec::named("r"))
        .build()
        .unwrap();
    // Every attempt is let in and sent away.
    let attempts = tokio::spawn(async move {
        let mut at = Vec::new();
        while at.len() < 6 {
            drop(listener.accept().await.unwrap());
            at.push(Instant::now());
        }
        at
    });
    let member = Member::start(config).await.expect("it follows");
    let lock = member.lock("r").unwrap();
    lock.start().await.unwrap();
    let at =
        tokio::time::timeout(Duration::from_secs(20), attempts).await.expect("it tries").unwrap();
    // The start itself made the first one, and the role the second.
    for pair in at[1..].windows(2) {
        let pause = pair[1] - pair[0];
        assert!(pause > interval.mul_f64(0.9), "{pause:?}");
    }
    gone(member).await;
}

/// A server that starts up (57P03) lets sessions in and sends them away.
#[tokio::test]
async fn a_server_that_is_starting_up_is_waited_for() {
    let database = database().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = shared_cluster().await.addr();
    let (open, opened) = tokio::sync::watch::channel(false);
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let is_up = *opened.borrow();
            tokio::spawn(async move {
                if is_up {
                    let mut server = TcpStream::connect(server).await?;
                    return tokio::io::copy_bidirectional(&mut client, &mut server).await.map(drop);
                }
                // The whole of what the client says first, else the answer may be lost with the connection.
                let length = client.read_u32().await? as usize;
                client.read_exact(&mut vec![0; length - 4]).await?;
                let fields = b"SFATAL\0VFATAL\0C57P03\0Mthe database system is starting up\0\0";
                client.write_u8(b'E').await?;
                client.write_u32(fields.len() as u32 + 4).await?;
                client.write_all(fields).await?;
                client.shutdown().await
            });
        }
    });
    let dsn = format!(
        "host=127.0.0.1 port={port} dbname={} user=postgres sslmode=disable",
        database.name()
    );
    let (member, lock) = follower(quick(&dsn)).await;
    open.send(true).unwrap();
    leads(&lock).await;
    gone(member).await;
}
