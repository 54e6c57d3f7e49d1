//! The program, a database of its own for each test, and members that are read line by line.

use std::process::{Output, Stdio};
use std::time::Duration;

use socket2::SockRef;
use tenure_testkit::{Child, Database, Signal};
pub(crate) use tenure_testkit::{database, event, until};
use tokio::io::{AsyncReadExt, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

/// For what takes milliseconds; a busy machine may be late.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// Short enough for a test, long enough for a busy machine.
pub(crate) const LEASE: Duration = Duration::from_secs(3);
const TIMINGS: [&str; 4] = ["--heartbeat", "700ms", "--lease", "3s"];
/// So that a statement that is slow only because the machine is busy does not cost a term.
const PATIENCE: (&str, &str) = ("TENURE_STATEMENT_DEADLINE", "1s");

pub(crate) fn program() -> std::path::PathBuf {
    assert_cmd::cargo::cargo_bin!("tenure").to_owned()
}

/// The program with nothing of the caller's environment but the search path. Without warnings: the
/// patience below earns one about the lease, and what a failure says is read word for word.
pub(crate) fn tenure(args: &[&str]) -> assert_cmd::Command {
    let mut command = assert_cmd::Command::new(program());
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default()).args(args);
    command.env(PATIENCE.0, PATIENCE.1).env("TENURE_LOG", "error");
    command.timeout(Duration::from_secs(60));
    command
}

/// Runs the program to its end off the runtime's threads.
pub(crate) async fn ends(args: &[&str]) -> Output {
    let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
    tokio::task::spawn_blocking(move || {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        tenure(&args).output().expect("it runs")
    })
    .await
    .expect("joined")
}

pub(crate) fn code(output: &Output) -> i32 {
    output.status.code().unwrap_or_else(|| panic!("no code: {output:?}"))
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// An error is one line: a sentence and a remedy.
#[track_caller]
pub(crate) fn refuses(output: &Output, expected: i32, words: &str) {
    let said = stderr(output);
    assert_eq!(code(output), expected, "{said}");
    assert!(said.contains(words), "{said}");
    assert_eq!(said.trim_end().lines().count(), 1, "{said}");
}

/// `tenure run` in a process of its own; its standard output is read.
pub(crate) fn member(args: &[&str]) -> Child {
    Child::spawn(command(args)).expect("it runs")
}

pub(crate) fn command(args: &[&str]) -> tokio::process::Command {
    let mut command = tokio::process::Command::new(program());
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command.env(PATIENCE.0, PATIENCE.1);
    command.args(["run", "--output", "json"]).args(TIMINGS).args(args);
    command
}

/// Until that many members wait for the role.
pub(crate) async fn waiting(database: &Database, role: &str, count: i64) {
    let client = database.client().await.expect("a session");
    until("the waiting members", async || {
        let sql = "select count(*) from tenure.candidate c join tenure.role r on r.name = c.role \
                   where c.role = $1 and c.member is distinct from r.holder";
        client.query_one(sql, &[&role]).await.is_ok_and(|row| row.get::<_, i64>(0) == count)
    })
    .await;
}

/// The program to its end, with standard output and standard error apart.
pub(crate) async fn finish(mut command: tokio::process::Command) -> (i32, String, String) {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("it runs");
    let (mut out, mut err) = (String::new(), String::new());
    let mut stdout = child.stdout.take().expect("piped");
    let mut stderr = child.stderr.take().expect("piped");
    let (a, b) = tokio::join!(stdout.read_to_string(&mut out), stderr.read_to_string(&mut err));
    a.and(b).expect("text");
    let status = tokio::time::timeout(SOON, child.wait()).await.expect("in time").expect("status");
    (status.code().expect("a code"), out, err)
}

pub(crate) async fn terminate(child: &mut Child) -> i32 {
    child.signal(Signal::TERM);
    child.wait(SOON).await.expect("it ends").code().expect("a code")
}

/// Ends the sessions of leaders; how many there were.
pub(crate) async fn end_seats(client: &tokio_postgres::Client) -> i64 {
    let sql = "select count(pg_terminate_backend(m.backend_pid)) from tenure.member m \
               join tenure.role r on r.holder = m.identity where m.left_at is null \
               and exists (select from tenure.term t where t.role = r.name and t.epoch = r.epoch \
                           and t.acting_at is not null and t.ended_at is null) \
               and exists (select from pg_stat_activity a where a.pid = m.backend_pid)";
    client.query_one(sql, &[]).await.map_or(0, |row| row.get(0))
}

/// A client that asks many times and reads nothing.
pub(crate) async fn deaf_to(address: &str, path: &str, times: usize) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(2048).expect("set");
    // Small segments keep the other side's buffer small, too.
    SockRef::from(&socket).set_tcp_mss(536).expect("set");
    let to = address.parse().expect("an address");
    let mut stream = socket.connect(to).await.expect("a connection");
    let asked = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n").repeat(times);
    // What the other side does not take any more is not needed.
    let _ = timeout(Duration::from_millis(50), stream.write_all(asked.as_bytes())).await;
    stream
}
