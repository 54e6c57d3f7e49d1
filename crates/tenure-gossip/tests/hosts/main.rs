//! Nodes within one process: the gate, TLS, credentials, and what bad peers cost.

mod credentials;
mod installing;

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure_gossip::{
    Answer, Ask, Client, ClientError, Ed25519Keys, Flood, Host, HostConfig, HostError, Kv, KvGoal,
    Outcome, Refusal, SessionError, Start, SubmitError, TlsFiles, Trust, TxId,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep, timeout};

const SOON: Duration = Duration::from_secs(10);

fn any() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

async fn start(folder: &Path, start: Start, change: impl FnOnce(&mut HostConfig)) -> Host<Kv> {
    let mut config = HostConfig::new(folder, any(), start);
    change(&mut config);
    Host::start(config).await.expect("the node starts")
}

async fn eventually<F: Future<Output = bool>>(what: &str, mut condition: impl FnMut() -> F) {
    let until = Instant::now() + Duration::from_secs(20);
    while !condition().await {
        assert!(Instant::now() < until, "not within 20 s: {what}");
        sleep(Duration::from_millis(20)).await;
    }
}

fn put(n: u8) -> Vec<u8> {
    KvGoal::Put { key: format!("k{n}"), value: n.into() }.to_bytes()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_gate_opens_on_the_committed_leader_alone_and_its_epoch_is_the_term() {
    let dir = tempfile::tempdir().unwrap();
    let a = start(&dir.path().join("a"), Start::Bootstrap, |_| ()).await;
    let b = start(&dir.path().join("b"), Start::Join(vec![a.address().to_owned()]), |_| ()).await;
    let (ga, gb) = (a.gate("main").unwrap(), b.gate("main").unwrap());
    assert!(a.gate("other").is_none());
    eventually("one acts and both vote", || async {
        let s = a.status().await.unwrap();
        ga.is_leader() && s.namespaces[0].voters.len() == 2 && s.namespaces[0].learners.is_empty()
    })
    .await;
    assert!(!gb.is_leader());
    let token = ga.require_leader().expect("it leads");
    assert_eq!(token.epoch.0 as u64, a.status().await.unwrap().namespaces[0].term);
    // Without the other, the lease cannot be renewed: the gate shuts by itself.
    drop(gb);
    b.stop().await.unwrap();
    eventually("the gate shuts without a majority", || async { !ga.is_leader() }).await;
    assert!(ga.ensure_epoch(token.epoch).is_err());
    a.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn stepping_down_shuts_the_gate_before_another_opens() {
    let dir = tempfile::tempdir().unwrap();
    // Long enough to tell a hand-over on a busy machine from a wait for the lease.
    let lease = Duration::from_secs(6);
    let change = |config: &mut HostConfig| {
        let commit = &mut config.engine.commit;
        (commit.lease, commit.heartbeat, commit.margin) = (lease, lease / 4, lease / 5);
    };
    let a = start(&dir.path().join("a"), Start::Bootstrap, change).await;
    let seed = || Start::Join(vec![a.address().to_owned()]);
    let b = start(&dir.path().join("b"), seed(), change).await;
    let c = start(&dir.path().join("c"), seed(), change).await;
    let ga = a.gate("main").unwrap();
    eventually("three vote", || async {
        let s = a.status().await.unwrap();
        ga.is_leader() && s.namespaces[0].voters.len() == 3 && s.namespaces[0].learners.is_empty()
    })
    .await;
    let epoch = ga.epoch().unwrap();
    a.step_down("main").await.unwrap();
    assert!(!ga.is_leader(), "shut when the call returns");
    let (gb, gc) = (b.gate("main").unwrap(), c.gate("main").unwrap());
    let begun = Instant::now();
    eventually("another opens", || async { gb.is_leader() || gc.is_leader() }).await;
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    assert!(gb.epoch().or(gc.epoch()).unwrap() > epoch);
}

#[tokio::test(flavor = "multi_thread")]
async fn subscribers_see_every_record_and_a_failed_goal_does_not_stall() {
    let dir = tempfile::tempdir().unwrap();
    let a = start(dir.path(), Start::Bootstrap, |_| ()).await;
    let mut records = a.subscribe("main").await.unwrap();
    a.submit("main", TxId([1; 16]), put(1)).await.unwrap();
    let failed = a.submit("main", TxId([2; 16]), b"nonsense".to_vec()).await.unwrap();
    assert!(matches!(failed.outcome, Outcome::Rejected(_)));
    let third = a.submit("main", TxId([3; 16]), put(3)).await.unwrap();
    assert_eq!(third.index, 3);
    for index in 1..=3 {
        assert_eq!(records.recv().await.unwrap().index, index);
    }
    // The same transaction again: the same record, no new one; and never another goal's.
    assert_eq!(a.submit("main", TxId([3; 16]), put(3)).await.unwrap(), third);
    assert!(matches!(
        a.submit("main", TxId([3; 16]), put(9)).await,
        Err(HostError::Refused(Refusal::Submit(SubmitError::OtherGoal)))
    ));
    assert!(matches!(
        a.submit("nowhere", TxId([4; 16]), put(1)).await,
        Err(HostError::Refused(Refusal::NoNamespace(_)))
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_is_used_by_one_node_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let _a = start(dir.path(), Start::Bootstrap, |_| ()).await;
    let second = Host::<Kv>::start(HostConfig::new(dir.path(), any(), Start::Resume)).await;
    assert!(matches!(second.err(), Some(HostError::Store(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_and_oversized_frames_cost_the_peer_its_connection_only() {
    let dir = tempfile::tempdir().unwrap();
    let a = start(dir.path(), Start::Bootstrap, |_| ()).await;
    for rubbish in
        [vec![0xff; 4_096], b"GET / HTTP/1.1\r\n\r\n".repeat(100), vec![0x7f, 0xff, 0xff, 0xff]]
    {
        let mut stream = TcpStream::connect(a.address()).await.unwrap();
        // It may hang up while we still write.
        let _ = stream.write_all(&rubbish).await;
        let mut rest = Vec::new();
        let closed = timeout(Duration::from_secs(10), stream.read_to_end(&mut rest)).await;
        assert!(closed.is_ok(), "the connection stays open");
    }
    let record = a.submit("main", TxId([1; 16]), put(1)).await.unwrap();
    assert_eq!(record.index, 1);
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_and_its_files_are_their_owners_alone() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("made").join("here");
    start(&folder, Start::Bootstrap, |_| ()).await.stop().await.unwrap();
    assert_eq!(mode(&folder), 0o700);
    for file in ["identity", "node.redb"] {
        assert_eq!(mode(&folder.join(file)), 0o600, "{file}");
    }
    // A folder, a key or a store that others may have read is refused, and the remedy is named.
    for (path, open) in [(folder.clone(), 0o755), (folder.join("identity"), 0o640)] {
        let right = mode(&path);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(open)).unwrap();
        let refused = Host::<Kv>::start(HostConfig::new(&folder, any(), Start::Resume)).await;
        let said = refused.err().expect("refused").to_string();
        assert!(said.contains(&format!("chmod {right:o} {}", path.display())), "{said}");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(right)).unwrap();
    }
    start(&folder, Start::Resume, |_| ()).await.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_refused_leaves_no_folder_behind() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("a");
    let refused = Host::<Kv>::start(HostConfig::new(&folder, any(), Start::Resume)).await;
    assert!(matches!(refused.err(), Some(HostError::NoState)));
    assert!(!folder.exists());
    let taken = tokio::net::TcpListener::bind(any()).await.unwrap();
    let config = HostConfig::new(&folder, taken.local_addr().unwrap(), Start::Bootstrap);
    assert!(matches!(Host::<Kv>::start(config).await.err(), Some(HostError::Listen { .. })));
    assert!(!folder.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_submit_without_a_majority_ends_and_says_that_it_is_undecided() {
    let dir = tempfile::tempdir().unwrap();
    let quick = |c: &mut HostConfig| c.submit_timeout = Duration::from_secs(1);
    let a = start(&dir.path().join("a"), Start::Bootstrap, quick).await;
    let b = start(&dir.path().join("b"), Start::Join(vec![a.address().to_owned()]), |_| ()).await;
    eventually("both vote", || async {
        let s = a.status().await.unwrap();
        s.namespaces[0].voters.len() == 2 && s.namespaces[0].learners.is_empty()
    })
    .await;
    b.stop().await.unwrap();
    let submitted = timeout(SOON, a.submit("main", TxId([1; 16]), put(1))).await;
    let undecided = submitted.expect("it ends by itself");
    assert!(matches!(undecided, Err(HostError::Undecided(TxId(tx))) if tx == [1; 16]));
}

async fn client(host: &Host<Kv>) -> Client {
    Client::connect(host.address(), Ed25519Keys::generate(), &Trust::default()).await.unwrap()
}

/// Asks without waiting for answers, until the connection ends or the limit is reached.
async fn flood(client: &mut Client, ask: &Ask, limit: u32) -> Option<u32> {
    for n in 0..limit {
        match client.ask(ask.clone(), Duration::ZERO).await {
            Ok(_) | Err(ClientError::Session(SessionError::Timeout)) => {}
            Err(_) => return Some(n),
        }
    }
    // All are on their way; the end may come after the last.
    loop {
        match client.next(Duration::from_secs(20)).await {
            Ok(_) => {}
            Err(ClientError::Session(SessionError::Timeout)) => return None,
            Err(_) => return Some(limit),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_floods_loses_its_connection_and_nobody_else_does() {
    let dir = tempfile::tempdir().unwrap();
    let a = start(dir.path(), Start::Bootstrap, |c| {
        c.flood = Flood { per_second: 20, burst: 200 };
    })
    .await;
    let mut patient = client(&a).await;
    let mut greedy = client(&a).await;
    let ended = flood(&mut greedy, &Ask::Status, 2_000).await;
    assert!(ended.is_some_and(|n| n >= 200), "the burst is allowed, the flood is not: {ended:?}");
    assert!(matches!(patient.ask(Ask::Status, SOON).await, Ok(Answer::Status(_))));
    assert_eq!(a.submit("main", TxId([1; 16]), put(1)).await.unwrap().index, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_that_connects_and_says_nothing_keeps_nobody_out() {
    let dir = tempfile::tempdir().unwrap();
    let a = start(dir.path(), Start::Bootstrap, |_| ()).await;
    let mut crowd = Vec::new();
    for _ in 0..300 {
        crowd.push(TcpStream::connect(a.address()).await.unwrap());
    }
    let answer = timeout(SOON, async { client(&a).await.ask(Ask::Status, SOON).await }).await;
    assert!(matches!(answer, Ok(Ok(Answer::Status(_)))), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn goals_that_cannot_be_decided_are_refused_before_they_fill_the_memory() {
    let dir = tempfile::tempdir().unwrap();
    let change = |c: &mut HostConfig| c.engine.max_pending = 50;
    let a = start(&dir.path().join("a"), Start::Bootstrap, change).await;
    let b = start(&dir.path().join("b"), Start::Join(vec![a.address().to_owned()]), change).await;
    eventually("both vote", || async {
        let s = a.status().await.unwrap();
        s.namespaces[0].voters.len() == 2 && s.namespaces[0].learners.is_empty()
    })
    .await;
    b.stop().await.unwrap();
    let refused = |tx: TxId| {
        let submitted = a.submit("main", tx, put(1));
        async move {
            // What is taken is not answered: there is no majority.
            match timeout(Duration::from_millis(200), submitted).await {
                Err(_) => false,
                Ok(Err(HostError::Refused(why))) => why == Refusal::Submit(SubmitError::Busy),
                Ok(other) => panic!("{other:?}"),
            }
        }
    };
    let different = (0..60_u8).map(|n| refused(TxId([n; 16])));
    let different = futures_util::future::join_all(different).await;
    assert_eq!(different.iter().filter(|refused| **refused).count(), 10);
    let same = (0..40).map(|_| refused(TxId([1; 16])));
    let same = futures_util::future::join_all(same).await;
    assert!(same.iter().any(|refused| *refused), "callers of one transaction are bounded as well");
    // A client that asks for the same thing over and over, and reads nothing, is bounded too.
    let mut greedy = client(&a).await;
    let ask = Ask::Submit { namespace: "main".into(), tx: TxId([1; 16]), goal: put(1) };
    flood(&mut greedy, &ask, 500).await;
    assert_eq!(a.status().await.unwrap().namespaces[0].pending, 50);
}

#[tokio::test(flavor = "multi_thread")]
async fn stepping_down_waits_for_acts_in_flight() {
    let dir = tempfile::tempdir().unwrap();
    let a = start(&dir.path().join("a"), Start::Bootstrap, |_| ()).await;
    let b = start(&dir.path().join("b"), Start::Join(vec![a.address().to_owned()]), |_| ()).await;
    eventually("both vote and one acts", || async {
        let s = a.status().await.unwrap();
        a.gate("main").unwrap().is_leader()
            && s.namespaces[0].voters.len() == 2
            && s.namespaces[0].learners.is_empty()
    })
    .await;
    let (ga, gb) = (a.gate("main").unwrap(), b.gate("main").unwrap());
    let act = ga.begin_act(Duration::from_millis(400)).expect("it leads");
    let stepping = tokio::spawn(async move {
        a.step_down("main").await.unwrap();
        a
    });
    eventually("no new act begins", || async { !ga.is_leader() }).await;
    // The other must not act while this one still does.
    let until = Instant::now() + Duration::from_millis(400);
    while Instant::now() < until {
        assert!(!gb.is_leader(), "the successor acts beside an act in flight");
        assert!(!stepping.is_finished());
        tokio::task::yield_now().await;
    }
    act.finish().expect("the act had its term to itself");
    let a = stepping.await.unwrap();
    eventually("then another acts", || async { gb.is_leader() }).await;
    // A node that does not lead says so; a stop waits in the same way.
    assert!(matches!(a.step_down("main").await, Err(HostError::Refused(Refusal::Commit(_)))));
    let act = gb.begin_act(Duration::from_millis(300)).expect("it leads");
    let stopping = tokio::spawn(b.stop());
    let until = Instant::now() + Duration::from_millis(300);
    while Instant::now() < until {
        assert!(!ga.is_leader() && !stopping.is_finished());
        tokio::task::yield_now().await;
    }
    act.finish().expect("the act had its term to itself");
    stopping.await.unwrap().unwrap();
}

/// A certificate for 127.0.0.1, signed by `issuer`.
fn certificate(
    folder: &Path,
    name: &str,
    issuer: &rcgen::Issuer<'_, rcgen::KeyPair>,
    ca: &str,
) -> TlsFiles {
    let key = rcgen::KeyPair::generate().unwrap();
    let cert = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    let cert = cert.signed_by(&key, issuer).unwrap();
    let write = |what: &str, text: &str| {
        let path = folder.join(format!("{name}-{what}.pem"));
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        path
    };
    TlsFiles {
        cert: write("cert", &cert.pem()),
        key: write("key", &key.serialize_pem()),
        ca: write("ca", ca),
    }
}

fn authority() -> (rcgen::Issuer<'static, rcgen::KeyPair>, String) {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(Vec::<String>::new()).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let pem = params.self_signed(&key).unwrap().pem();
    (rcgen::Issuer::new(params, key), pem)
}

#[tokio::test(flavor = "multi_thread")]
async fn with_mutual_tls_only_those_with_a_certificate_get_in() {
    let dir = tempfile::tempdir().unwrap();
    let (issuer, ca) = authority();
    let files = |name: &str| certificate(dir.path(), name, &issuer, &ca);
    let a = start(&dir.path().join("a"), Start::Bootstrap, |c| c.tls = Some(files("a"))).await;
    let seed = vec![a.address().to_owned()];
    let b = start(&dir.path().join("b"), Start::Join(seed), |c| c.tls = Some(files("b"))).await;
    eventually("both vote over TLS", || async {
        a.status().await.unwrap().namespaces[0].voters.len() == 2
    })
    .await;
    assert_eq!(b.submit("main", TxId([1; 16]), put(1)).await.unwrap().index, 1);

    let connect = async |files: Option<TlsFiles>| {
        let mut trust = Trust::default();
        trust.tls = files;
        Client::connect(a.address(), Ed25519Keys::generate(), &trust).await
    };
    assert!(connect(None).await.is_err());
    let (other, other_ca) = authority();
    let strange = certificate(dir.path(), "s", &other, &other_ca);
    let refused = connect(Some(strange)).await.err().expect("refused").to_string();
    assert!(refused.contains("certificate"), "{refused}");
    let mut client = connect(Some(files("client"))).await.unwrap();
    // A node's new certificate is used without a stop; sessions that are up stay up.
    let (renewed, renewed_ca) = authority();
    let old = certificate(dir.path(), "client", &issuer, &ca);
    certificate(dir.path(), "a", &renewed, &renewed_ca);
    eventually("the new authority counts", || async {
        connect(Some(certificate(dir.path(), "n", &renewed, &renewed_ca))).await.is_ok()
    })
    .await;
    assert!(connect(Some(old)).await.is_err(), "the former authority does not");
    assert!(matches!(client.ask(Ask::Status, SOON).await, Ok(Answer::Status(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watcher_has_every_record_from_the_past_into_the_present() {
    let dir = tempfile::tempdir().unwrap();
    let a = start(dir.path(), Start::Bootstrap, |_| ()).await;
    let large = |n: u8| {
        let value = "x".repeat(100_000).into();
        (TxId([n; 16]), KvGoal::Put { key: format!("k{n}"), value }.to_bytes())
    };
    for n in 1..=30 {
        let (tx, goal) = large(n);
        a.submit("main", tx, goal).await.unwrap();
    }
    let watch = |from| Ask::Watch { namespace: "main".into(), from: Some(from) };
    let mut watcher = client(&a).await;
    let mut answer = watcher.ask(watch(3), SOON).await;
    for n in 3..=40 {
        if (11..=20).contains(&n) {
            let (tx, goal) = large(n + 20);
            a.submit("main", tx, goal).await.unwrap();
        }
        assert!(matches!(&answer, Ok(Answer::Record(record)) if record.index == u64::from(n)));
        if n < 40 {
            answer = watcher.next(SOON).await;
        }
    }
    // A record of the future is waited for, and those before it are not sent.
    let none = watcher.ask(watch(42), Duration::from_millis(100)).await;
    assert!(matches!(none, Err(ClientError::Session(SessionError::Timeout))), "{none:?}");
    for n in 41..=42 {
        let (tx, goal) = large(n);
        a.submit("main", tx, goal).await.unwrap();
    }
    let next = watcher.next(SOON).await;
    assert!(matches!(next, Ok(Answer::Record(record)) if record.index == 42));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watcher_of_a_node_without_a_leader_is_told_to_watch_another() {
    let dir = tempfile::tempdir().unwrap();
    let short = |config: &mut HostConfig| config.cut_off = Duration::from_secs(1);
    let a = start(&dir.path().join("a"), Start::Bootstrap, short).await;
    let seeds = vec![a.address().to_owned()];
    let b = start(&dir.path().join("b"), Start::Join(seeds), short).await;
    eventually("both vote", || async { a.status().await.unwrap().namespaces[0].voters.len() == 2 })
        .await;
    a.submit("main", TxId([1; 16]), put(1)).await.unwrap();
    let mut watcher = client(&a).await;
    let watch = || Ask::Watch { namespace: "main".into(), from: Some(1) };
    assert!(
        matches!(watcher.ask(watch(), SOON).await, Ok(Answer::Record(record)) if record.index == 1)
    );
    // One of two voters: no leader, and no records.
    b.stop().await.unwrap();
    let told = watcher.next(SOON * 3).await.unwrap_err().to_string();
    assert!(told.contains("has heard no leader for"), "{told}");
    assert!(told.contains("watch another node: tenure gossip watch --from 2"), "{told}");
    let again = client(&a).await.ask(watch(), SOON).await.unwrap_err().to_string();
    assert!(again.contains("watch another node: tenure gossip watch --from 1"), "{again}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watcher_is_told_of_records_that_came_as_a_snapshot() {
    let dir = tempfile::tempdir().unwrap();
    let brief = |config: &mut HostConfig| {
        (config.engine.snapshot_every, config.engine.keep_history) = (16, Some(0));
    };
    let a = start(&dir.path().join("a"), Start::Bootstrap, brief).await;
    for n in 1..=40 {
        a.submit("main", TxId([n; 16]), put(n)).await.unwrap();
    }
    eventually("the first records are gone", || async {
        let ask = Ask::History { namespace: "main".into(), from: 1, upto: 1 };
        client(&a).await.ask(ask, SOON).await.is_err()
    })
    .await;
    // The way to the group is shut until the watcher has come.
    let way = TcpListener::bind(any()).await.unwrap();
    let seeds = vec![way.local_addr().unwrap().to_string()];
    let (open, group) = (Arc::new(AtomicBool::new(false)), a.address().to_owned());
    let is_open = open.clone();
    tokio::spawn(async move {
        loop {
            let (mut here, _) = way.accept().await.unwrap();
            if is_open.load(Ordering::Relaxed) {
                let mut there = TcpStream::connect(&group).await.unwrap();
                tokio::spawn(async move {
                    let _ = tokio::io::copy_bidirectional(&mut here, &mut there).await;
                });
            }
        }
    });
    let b = start(&dir.path().join("b"), Start::Join(seeds), brief).await;
    let mut watcher = client(&b).await;
    let watch = Ask::Watch { namespace: "main".into(), from: Some(1) };
    let nothing = watcher.ask(watch, Duration::from_millis(100)).await;
    assert!(matches!(nothing, Err(ClientError::Session(SessionError::Timeout))), "{nothing:?}");
    open.store(true, Ordering::Relaxed);
    let told = watcher.next(SOON * 2).await.unwrap_err().to_string();
    assert!(
        told.contains("records 1 to ") && told.contains("came to this node as a snapshot"),
        "{told}"
    );
    assert!(told.contains("watch another node: tenure gossip watch --from 1"), "{told}");
}

/// The leader has made the next snapshot, and more than one, before the newcomer has taken the last.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_joins_a_busy_group_catches_up() {
    let dir = tempfile::tempdir().unwrap();
    let often = |config: &mut HostConfig| config.engine.snapshot_every = 16;
    let a = Arc::new(start(&dir.path().join("a"), Start::Bootstrap, often).await);
    let gate = a.gate("main").unwrap();
    eventually("it acts", || async { gate.is_leader() }).await;
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..32_u8)
        .map(|writer| {
            let (a, stop) = (a.clone(), stop.clone());
            tokio::spawn(async move {
                let mut n = 0_u64;
                while !stop.load(Ordering::Relaxed) {
                    n += 1;
                    let tx = TxId((u128::from(writer) << 64 | u128::from(n)).to_be_bytes());
                    a.submit("main", tx, put(writer)).await.expect("it leads");
                }
                n
            })
        })
        .collect();
    eventually("the log has moved on", || async {
        a.status().await.unwrap().namespaces[0].index > 500
    })
    .await;
    let seeds = vec![a.address().to_owned()];
    let b = start(&dir.path().join("b"), Start::Join(seeds), often).await;
    eventually("it votes", || async { a.status().await.unwrap().namespaces[0].voters.len() == 2 })
        .await;
    stop.store(true, Ordering::Relaxed);
    let mut written = 0;
    for writer in writers {
        written += writer.await.unwrap();
    }
    eventually("both have it all", || async {
        b.status().await.unwrap().namespaces[0].index == written
    })
    .await;
}
