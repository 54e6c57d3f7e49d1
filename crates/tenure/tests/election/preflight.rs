//! A setup on which the promises cannot hold is refused, saying why and what to do.

use std::time::Duration;

use tenure::config::{Config, RoleSpec};
use tenure::preflight::{Refused, Verdict};
use tenure::{Member, Notice, TenureError};
use tenure_testkit::{
    Cluster, ClusterOptions, Direction, PgBouncer, PoolMode, Proxy, ReplicaOptions, shared_cluster,
};

use crate::stage::{config, database, gone, one, start, until};

async fn refused(dsn: String) -> Refused {
    let config = Config::builder().dsn(dsn).role(RoleSpec::named("r")).build().unwrap();
    match Member::start(config).await {
        Err(TenureError::Refused(refused)) => refused.as_ref().clone(),
        other => panic!("not refused: {other:?}"),
    }
}

/// No advisory lock of ours may be left in the pooler's sessions.
async fn nothing_left(cluster: &Cluster, database: &str) {
    let client = cluster.client(database).await.unwrap();
    let locks = "select count(*) from pg_locks where locktype = 'advisory' \
                 and database = (select oid from pg_database where datname = current_database())";
    assert_eq!(one(&client, locks).await, "0");
}

#[tokio::test]
async fn a_transaction_pooler_is_refused_and_keeps_no_lock() {
    let cluster = shared_cluster().await;
    for round_robin in ["0", "1"] {
        let database = database().await;
        let settings = [("server_round_robin", round_robin)];
        let pooler = PgBouncer::start(cluster, PoolMode::Transaction, &settings).await.unwrap();
        let why = refused(pooler.dsn(database.name())).await;
        assert!(matches!(why, Refused::Pooler { .. }), "round robin {round_robin}: {why}");
        assert!(why.to_string().contains("session mode"), "{why}");
        nothing_left(cluster, database.name()).await;
    }
}

#[tokio::test]
async fn a_statement_pooler_is_refused() {
    let database = database().await;
    let pooler = PgBouncer::start(shared_cluster().await, PoolMode::Statement, &[]).await.unwrap();
    let why = refused(pooler.dsn(database.name())).await;
    assert!(matches!(why, Refused::Pooler { .. }), "{why}");
}

#[tokio::test]
async fn a_session_pooler_is_good() {
    let database = database().await;
    let pooler = PgBouncer::start(shared_cluster().await, PoolMode::Session, &[]).await.unwrap();
    let builder = Config::builder().dsn(pooler.dsn(database.name())).role(RoleSpec::named("r"));
    let member = start(builder).await;
    member.start_all().await.unwrap();
    crate::stage::leads(&member.locks()[0]).await;
    gone(member).await;
}

#[tokio::test]
async fn a_hot_standby_is_refused() {
    if Cluster::start().await.unwrap().version() != 15 {
        return; // Only the distribution's server brings what a replica needs.
    }
    let primary = Cluster::start().await.unwrap();
    let standby = primary.replica(ReplicaOptions::default()).await.unwrap();
    assert!(matches!(refused(standby.dsn()).await, Refused::Standby));
}

/// What `check` says of a failover, with one standby that becomes another kind of standby.
#[tokio::test]
async fn the_failover_line_follows_what_a_real_standby_does() {
    if Cluster::start().await.unwrap().version() != 15 {
        return; // Only the distribution's server brings what a replica needs.
    }
    let primary = Cluster::start().await.unwrap();
    let built = Config::builder().dsn(primary.dsn()).role(RoleSpec::named("r")).build().unwrap();
    // The server takes in its settings, and a standby its new part, a moment after they were told.
    let says = async |verdict: Verdict, words: &str| {
        let until = tokio::time::Instant::now() + Duration::from_secs(20);
        loop {
            let findings = tenure::preflight::check(&built).await.unwrap();
            let line = findings.all.into_iter().find(|line| line.what == "failover");
            let line = line.expect("a line on failover");
            if line.verdict == verdict && line.text.contains(words) {
                return;
            }
            let late = tokio::time::Instant::now() > until;
            assert!(!late, "wanted {words:?}, it says {:?}: {}", line.verdict, line.text);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    says(Verdict::Good, "no standby").await;
    let standby = primary.replica(ReplicaOptions::default()).await.unwrap();
    says(Verdict::Warning, "do not acknowledge").await;
    primary.set(&[("synchronous_standby_names", &standby.standby_name())]).await.unwrap();
    says(Verdict::Good, "every connected standby acknowledges").await;
    standby.crash().await.unwrap();
    says(Verdict::Warning, "no commit can finish").await;
    primary.set(&[("synchronous_standby_names", "")]).await.unwrap();
    says(Verdict::Good, "no standby").await;
    primary.sql("select pg_create_physical_replication_slot('of_the_standby')").await.unwrap();
    says(Verdict::Warning, "a replication slot waits for one").await;
}

/// An archive of the log and a logical subscriber replicate too, and none of them can be promoted.
#[tokio::test]
async fn programs_that_replicate_and_cannot_be_promoted_are_no_standbys() {
    let options = ClusterOptions::default().set("wal_level", "logical");
    let primary = Cluster::start_with(options).await.unwrap();
    if primary.version() != 15 {
        return; // Only the distribution's server brings these programs.
    }
    let client = primary.client("postgres").await.unwrap();
    let programs = one(&client, "select setting from pg_config where name = 'BINDIR'").await;
    let folder = tempfile::tempdir().unwrap();
    let replicates = |program: &str, args: &[&str]| {
        let mut command = tokio::process::Command::new(format!("{programs}/{program}"));
        command.args(["-h", "127.0.0.1", "-U", "postgres", "-p", &primary.port().to_string()]);
        command.args(args).current_dir(folder.path()).kill_on_drop(true);
        command.spawn().expect("it runs")
    };
    let _archive = replicates("pg_receivewal", &["-D", "."]);
    let slot = ["-d", "postgres", "--slot", "s", "--create-slot", "--start", "-P", "pgoutput"];
    let more = ["-o", "proto_version=1", "-o", "publication_names=p", "-f", "changes"];
    let _subscriber = replicates("pg_recvlogical", &[&slot[..], &more[..]].concat());
    let all = "select coalesce(string_agg(application_name, ' ' order by application_name), '') \
               from pg_stat_replication where state = 'streaming'";
    until(&client, all, "pg_receivewal pg_recvlogical").await;
    let line = async |user: &str| {
        let dsn = primary.dsn_for("postgres", user);
        let built = Config::builder().dsn(dsn).role(RoleSpec::named("r")).build().unwrap();
        let findings = tenure::preflight::check(&built).await.unwrap();
        let line = findings.all.into_iter().find(|line| line.what == "failover");
        line.expect("a line on failover")
    };
    let seen = line("postgres").await;
    assert_eq!(seen.verdict, Verdict::Good, "{}", seen.text);
    // A login role that may not see what they are cannot know.
    client
        .batch_execute("create role plain login; create schema authorization plain")
        .await
        .unwrap();
    client.batch_execute("grant create on database postgres to plain").await.unwrap();
    let hidden = line("plain").await;
    assert_eq!(hidden.verdict, Verdict::Warning, "{}", hidden.text);
    assert!(hidden.text.contains("grant it pg_read_all_stats"), "{}", hidden.text);
}

#[tokio::test]
async fn a_server_before_14_is_refused() {
    let options = ClusterOptions { version: Some(13), ..ClusterOptions::default() };
    let old = Cluster::start_with(options).await.expect("`scripts/setup.sh core` brings 13");
    let why = refused(old.dsn()).await;
    assert!(matches!(why, Refused::TooOld { .. }), "{why}");
    assert!(why.to_string().contains("14 or newer"), "{why}");
}

#[tokio::test]
async fn more_roles_than_a_quarter_of_the_lock_table_are_refused() {
    let options =
        ClusterOptions::default().set("max_locks_per_transaction", 10).set("max_connections", 20);
    let cluster = Cluster::start_with(options).await.unwrap();
    let mut builder = Config::builder().dsn(cluster.dsn());
    for n in 0..60 {
        builder = builder.role(RoleSpec::named(format!("r{n}")));
    }
    let error = Member::start(builder.build().unwrap()).await.expect_err("too many");
    assert!(error.to_string().contains("raise max_locks_per_transaction"), "{error}");
}

#[tokio::test]
async fn a_fence_without_its_index_is_refused() {
    let database = database().await;
    gone(start(config(&database)).await).await;
    let client = database.client().await.unwrap();
    for spoil in [
        "drop index tenure.role_fence",
        "create index role_fence on tenure.role (name, epoch)",
        "drop index tenure.role_fence; \
         create unique index role_fence on tenure.role (name, epoch) where epoch > 0",
    ] {
        client.batch_execute(spoil).await.unwrap();
        assert!(matches!(refused(database.dsn()).await, Refused::FenceIndex), "{spoil}");
    }
}

#[tokio::test]
async fn passes_that_nothing_voids_are_refused() {
    let database = database().await;
    gone(start(config(&database)).await).await;
    let client = database.client().await.unwrap();
    for (spoil, mend) in [
        ("disable trigger epoch_moved", "enable always trigger epoch_moved"),
        ("enable trigger role_gone", "enable always trigger role_gone"),
        ("enable replica trigger roles_gone", "enable always trigger roles_gone"),
    ] {
        client.batch_execute(&format!("alter table tenure.role {spoil}")).await.unwrap();
        assert!(matches!(refused(database.dsn()).await, Refused::FenceTriggers), "{spoil}");
        client.batch_execute(&format!("alter table tenure.role {mend}")).await.unwrap();
        gone(start(config(&database)).await).await;
    }
    client.batch_execute("alter sequence tenure.moves cache 2").await.unwrap();
    assert!(matches!(refused(database.dsn()).await, Refused::FenceTriggers));
}

#[tokio::test]
async fn a_database_that_accepts_and_says_nothing_makes_a_follower_within_the_deadline() {
    let cluster = shared_cluster().await;
    let database = database().await;
    let proxy = Proxy::start(cluster.addr()).await.unwrap();
    proxy.blackhole(Direction::Both);
    let builder = Config::builder().dsn(proxy.dsn(database.name())).role(RoleSpec::named("r"));
    let member = tokio::time::timeout(Duration::from_secs(15), start(builder))
        .await
        .expect("it does not hang");
    member.start_all().await.expect("it follows");
    assert!(!member.locks()[0].gate().is_leader());
    assert!(!member.health().await.unwrap().connected);
    proxy.heal();
    crate::stage::leads(&member.locks()[0]).await;
    gone(member).await;
}

#[tokio::test]
async fn the_report_tells_every_line_with_its_verdict() {
    let database = database().await;
    let built = config(&database).build().unwrap();
    let findings = tenure::preflight::check(&built).await.unwrap();
    // This login role may make the schema, so that a member that starts here leads.
    assert!(findings.refusal().is_none(), "{findings:?}");
    let schema = findings.all.iter().find(|finding| finding.what == "schema").expect("a line");
    assert_eq!(schema.verdict, Verdict::Warning);
    let client = database.client().await.unwrap();
    // Looking changes nothing.
    assert_eq!(one(&client, "select to_regnamespace('tenure') is null").await, "t");
    gone(start(config(&database)).await).await;
    let findings = tenure::preflight::check(&built).await.unwrap();
    assert!(findings.refusal().is_none(), "{findings:?}");
    for what in ["server", "pooler", "notify", "schema", "privileges", "fence", "locks", "failover"]
    {
        let line = findings.all.iter().find(|f| f.what == what).expect(what);
        assert_eq!(line.verdict, Verdict::Good, "{what}: {}", line.text);
    }
}

/// A relay that leaves out what the server says unasked, as a proxy may that knows only questions
/// and answers.
async fn deaf_relay(server: std::net::SocketAddr) -> std::net::SocketAddr {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
    use tokio::net::{TcpListener, TcpStream};
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let server = TcpStream::connect(server).await.unwrap();
            let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
                (client.into_split(), server.into_split());
            tokio::spawn(async move { copy(&mut from_client, &mut to_server).await });
            tokio::spawn(async move {
                let mut head = [0_u8; 5];
                while from_server.read_exact(&mut head).await.is_ok() {
                    let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]);
                    let mut body = vec![0; length as usize - 4];
                    from_server.read_exact(&mut body).await?;
                    if head[0] != b'A' {
                        to_client.write_all(&head).await?;
                        to_client.write_all(&body).await?;
                    }
                }
                Ok::<_, std::io::Error>(())
            });
        }
    });
    addr
}

#[tokio::test]
async fn a_way_to_the_server_that_swallows_notifications_is_refused() {
    let database = database().await;
    let relay = deaf_relay(shared_cluster().await.addr()).await;
    let dsn = format!("postgresql://postgres@{relay}/{}?sslmode=disable", database.name());
    let why = refused(dsn).await;
    assert!(matches!(why, Refused::DeadNotify { .. }), "{why}");
    assert!(why.to_string().contains("NOTIFY"), "{why}");
}

#[tokio::test]
async fn a_lock_table_that_fills_up_later_is_told_with_the_remedy_and_survived() {
    let options =
        ClusterOptions::default().set("max_locks_per_transaction", 10).set("max_connections", 20);
    let cluster = Cluster::start_with(options).await.unwrap();
    let member = start(Config::builder().dsn(cluster.dsn()).role(RoleSpec::named("r"))).await;
    let stranger = cluster.client("postgres").await.unwrap();
    let fill = "select pg_advisory_lock(n) from generate_series(1, 1000000) n";
    stranger.batch_execute(fill).await.expect_err("the table is full now");
    let lock = member.locks().remove(0);
    let mut events = lock.events();
    lock.start().await.expect("trouble of the server is no refusal of the role");
    let told = async {
        loop {
            if let Notice::Error(error) = events.recv().await.unwrap().notice {
                break error;
            }
        }
    };
    let error = tokio::time::timeout(crate::stage::PATIENCE, told).await.expect("it is told");
    assert!(error.contains("max_locks_per_transaction"), "{error}");
    assert!(!lock.is_leader());
    stranger.batch_execute("select pg_advisory_unlock_all()").await.unwrap();
    crate::stage::leads(&lock).await;
    gone(member).await;
}
