//! `bench election`: how long a role is without a leader, against what it is built on and what others do.
//!
//! In one run, one after the other in every round, so that a busy machine is as busy for all of them:
//!
//! | figure | from | to |
//! |---|---|---|
//! | bare lock | SIGKILL of the process that holds `pg_advisory_lock` | the blocked `pg_advisory_lock` of another session |
//! | bare unlock | `pg_advisory_unlock` | the blocked `pg_advisory_lock` of another session |
//! | recorded | the same, if the first session writes one row before it and the second one after it | its commit: the least that a hand-over can be whose terms are known |
//! | crash | SIGKILL of a leader under `fenced` | the successor's open gate |
//! | step-down | `hand_over` in the library | the successor's open gate |
//! | program | SIGTERM of `tenure run` | the successor's event `acquired` |
//! | with a child | the end of its child (`child_gone`) after SIGTERM of `tenure run -- CMD` | the successor's event `acquired` |
//! | etcd | unlock of its lock service, over a connection that is kept | the blocked lock of another client |
//! | etcdctl | SIGTERM of `etcdctl lock` | the key that another `etcdctl lock` prints |

mod etcd;

use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use clap::Args;
use serde_json::Value;
use tenure::config::{Config, RoleSpec};
use tenure::{LeaderLock, Member, TakeoverPolicy};
use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader, Lines};
use tokio::process::{Child, Command};
use tokio_postgres::NoTls;

use super::Database;
use crate::say;

/// No key that a program would choose.
const BARE_KEY: i64 = 0x62_65_6e_63_68;
const UNLOCK_KEY: i64 = BARE_KEY + 1;
const LOCK: &str = "select pg_advisory_lock($1)";
const UNLOCK: &str = "select pg_advisory_unlock($1)";
const RECORDS: &str = "create table if not exists tenure_bench_record as select 0::bigint as epoch";
const RECORD: &str = "update tenure_bench_record set epoch = epoch + 1";
/// A child that ends at once when it is told to.
const CHILD: [&str; 3] = ["--", "sleep", "600"];
const PATIENCE: Duration = Duration::from_secs(30);
/// Until the members have taken in a change of another role.
const SETTLE: Duration = Duration::from_millis(300);

/// What to measure.
#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    #[command(flatten)]
    database: Database,
    #[arg(long, default_value_t = 30)]
    rounds: usize,
    /// The `tenure` program [default: the one beside this program]
    #[arg(long)]
    program: Option<PathBuf>,
    /// An etcd server program to compare with; without it that figure is left out
    #[arg(long)]
    etcd: Option<PathBuf>,
    /// Its client program; without it that figure is left out
    #[arg(long, requires = "etcd")]
    etcdctl: Option<PathBuf>,
    /// What this process is, if it is one of the bench's own
    #[arg(long, hide = true)]
    part: Option<Part>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// Holds the bare lock until it is killed.
    Holder,
    /// Leads the role of the crash until it is killed.
    Leader,
}

pub(crate) async fn run(args: BenchArgs) -> anyhow::Result<ExitCode> {
    match args.part {
        Some(part) => be(part, &args.database.dsn).await?,
        None => measure(&args).await?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn be(part: Part, dsn: &str) -> anyhow::Result<()> {
    let _kept: Box<dyn std::any::Any> = match part {
        Part::Holder => {
            let client = connect(dsn).await?;
            client.execute(LOCK, &[&BARE_KEY]).await?;
            Box::new(client)
        }
        Part::Leader => {
            let (member, lock) = member(dsn, "bench:crash", TakeoverPolicy::Fenced).await?;
            lock.wait_for_leadership(Some(PATIENCE)).await?;
            Box::new(member)
        }
    };
    say("ready")?;
    std::future::pending::<()>().await;
    Ok(())
}

async fn measure(args: &BenchArgs) -> anyhow::Result<()> {
    let program = match &args.program {
        Some(program) => program.clone(),
        None => std::env::current_exe()?.with_file_name("tenure"),
    };
    let bare = connect(&args.database.dsn).await?;
    let mut bare_pair = (connect(&args.database.dsn).await?, connect(&args.database.dsn).await?);
    bare_pair.0.batch_execute(RECORDS).await?;
    bare_pair.0.execute(LOCK, &[&UNLOCK_KEY]).await?;
    let (_heir, heir) = member(&args.database.dsn, "bench:crash", TakeoverPolicy::Fenced).await?;
    let (_one, one) =
        member(&args.database.dsn, "bench:step-down", TakeoverPolicy::Exclusive).await?;
    let (_two, two) =
        member(&args.database.dsn, "bench:step-down", TakeoverPolicy::Exclusive).await?;
    one.wait_for_leadership(Some(PATIENCE)).await?;
    let mut pair = (one, two);
    let mut programs = Run::pair(&program, &args.database.dsn, &[]).await?;
    let mut parents = Run::pair(&program, &args.database.dsn, &CHILD).await?;
    let mut etcd = match &args.etcd {
        Some(server) => Some(etcd::Etcd::start(server).await?),
        None => None,
    };
    let mut figures = Figures::default();
    for _ in 0..args.rounds {
        figures.bare.push(bare_lock(&bare, &args.database.dsn).await?);
        figures.crash.push(crash(&heir, &args.database.dsn).await?);

        // The members of all roles are one group: a death is news to every one of them, and each figure is
        // of one change alone.
        tokio::time::sleep(SETTLE).await;
        figures.unlock.push(bare_unlock(&bare_pair.0, &bare_pair.1, false).await?);
        bare_pair = (bare_pair.1, bare_pair.0);
        figures.recorded.push(bare_unlock(&bare_pair.0, &bare_pair.1, true).await?);
        bare_pair = (bare_pair.1, bare_pair.0);

        tokio::time::sleep(SETTLE).await;
        let begun = Instant::now();
        let to = pair.1.identity().clone();
        let (handed, led) = tokio::join!(
            pair.0.hand_over(Some(to), None),
            pair.1.wait_for_leadership(Some(PATIENCE))
        );
        handed?;
        led?;
        figures.step_down.push(begun.elapsed());
        pair = (pair.1, pair.0);

        tokio::time::sleep(SETTLE).await;
        let begun = Instant::now();
        terminate(&programs.0.child)?;
        programs.1.leads().await?;
        figures.program.push(begun.elapsed());
        programs.0.ended().await?;
        programs = (programs.1, Run::start(&program, &args.database.dsn, &[])?);
        programs.1.follows().await?;

        tokio::time::sleep(SETTLE).await;
        terminate(&parents.0.child)?;
        let (gone, led) = tokio::join!(parents.0.says("child_gone"), parents.1.leads());
        figures.child.push(led?.saturating_sub(gone?));
        parents.0.ended().await?;
        parents = (parents.1, Run::start(&program, &args.database.dsn, &CHILD)?);
        parents.1.follows().await?;

        if let Some(etcd) = &mut etcd {
            figures.etcd.push(etcd.hand_over().await?);
            if let Some(program) = &args.etcdctl {
                figures.etcdctl.push(etcd.hand_over_of_programs(program).await?);
            }
        }
    }
    bare.batch_execute("drop table tenure_bench_record").await?;
    figures.tell()
}

#[derive(Default)]
struct Figures {
    bare: Vec<Duration>,
    unlock: Vec<Duration>,
    recorded: Vec<Duration>,
    crash: Vec<Duration>,
    step_down: Vec<Duration>,
    program: Vec<Duration>,
    child: Vec<Duration>,
    etcd: Vec<Duration>,
    etcdctl: Vec<Duration>,
}

impl Figures {
    fn tell(mut self) -> anyhow::Result<()> {
        let median = |name: &str, values: &mut Vec<Duration>| -> anyhow::Result<f64> {
            values.sort();
            let at = |part: f64| {
                let place = (values.len().saturating_sub(1) as f64 * part).round() as usize;
                values.get(place).map_or(f64::NAN, |value| value.as_secs_f64() * 1e3)
            };
            say(format!(
                "{name:<12} p50 {:>8.3} ms   p90 {:>8.3} ms   max {:>8.3} ms",
                at(0.5),
                at(0.9),
                at(1.0)
            ))?;
            Ok(at(0.5))
        };
        let bare = median("bare lock", &mut self.bare)?;
        let unlock = median("bare unlock", &mut self.unlock)?;
        let recorded = median("recorded", &mut self.recorded)?;
        let crash = median("crash", &mut self.crash)?;
        let step_down = median("step-down", &mut self.step_down)?;
        let program = median("program", &mut self.program)?;
        let child = median("with a child", &mut self.child)?;
        let etcd = median("etcd", &mut self.etcd)?;
        let etcdctl = median("etcdctl", &mut self.etcdctl)?;
        say(format!("crash / bare lock      {:.2}  (wanted: at most 2)", crash / bare))?;
        say(format!("step-down / etcd       {:.2}  (wanted: at most 0.3)", step_down / etcd))?;
        say(format!("bare unlock / etcd     {:.2}", unlock / etcd))?;
        say(format!("recorded / etcd        {:.2}", recorded / etcd))?;
        say(format!("step-down / etcdctl    {:.2}", step_down / etcdctl))?;
        say(format!("program / etcdctl      {:.2}", program / etcdctl))?;
        say(format!("program / step-down    {:.2}  (wanted: at most 2)", program / step_down))?;
        say(format!("with a child / step-down {:.2}  (wanted: at most 2)", child / step_down))
    }
}

async fn connect(dsn: &str) -> anyhow::Result<tokio_postgres::Client> {
    let (client, connection) = tokio_postgres::connect(dsn, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

async fn member(
    dsn: &str,
    role: &str,
    policy: TakeoverPolicy,
) -> anyhow::Result<(Member, LeaderLock)> {
    // A cool-down that is short, so that rounds follow each other, and long enough for a hand-over.
    let role = RoleSpec::named(role).policy(policy).cool_down(Duration::from_millis(200));
    let member = Member::start(Config::builder().dsn(dsn).role(role).build()?).await?;
    let lock = member.locks().remove(0);
    lock.start().await?;
    Ok((member, lock))
}

/// A process of the bench's own that holds or leads, once it says so.
async fn part(name: &str, dsn: &str) -> anyhow::Result<Child> {
    let mut child = Command::new(std::env::current_exe()?)
        .args(["bench", "election", "--part", name, "--dsn", dsn])
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let out = child.stdout.take().context("it is piped")?;
    let ready = tokio::time::timeout(PATIENCE, BufReader::new(out).lines().next_line()).await??;
    match ready.as_deref() {
        Some("ready") => Ok(child),
        other => bail!("the {name} said {other:?}"),
    }
}

async fn bare_lock(waits: &tokio_postgres::Client, dsn: &str) -> anyhow::Result<Duration> {
    let mut holder = part("holder", dsn).await?;
    let lock = waits.execute(LOCK, &[&BARE_KEY]);
    let kill = async {
        // It waits in the server by then.
        tokio::time::sleep(Duration::from_millis(200)).await;
        let begun = Instant::now();
        holder.start_kill().map(|()| begun)
    };
    let (locked, begun) = tokio::join!(lock, kill);
    let took = begun?.elapsed();
    locked?;
    waits.execute(UNLOCK, &[&BARE_KEY]).await?;
    holder.wait().await?;
    Ok(took)
}

/// The change of one lock between two sessions; if it is `recorded`, with one row that each of them writes.
async fn bare_unlock(
    holds: &tokio_postgres::Client,
    waits: &tokio_postgres::Client,
    recorded: bool,
) -> anyhow::Result<Duration> {
    let (lock, unlock) = (waits.prepare(LOCK).await?, holds.prepare(UNLOCK).await?);
    let (released, claimed) = (holds.prepare(RECORD).await?, waits.prepare(RECORD).await?);
    let locked = async {
        waits.execute(&lock, &[&UNLOCK_KEY]).await?;
        if recorded {
            waits.execute(&claimed, &[]).await?;
        }
        anyhow::Ok(Instant::now())
    };
    let unlocked = async {
        // It waits in the server by then.
        tokio::time::sleep(SETTLE).await;
        let begun = Instant::now();
        let record = async { if recorded { holds.execute(&released, &[]).await } else { Ok(0) } };
        // Both are on their way before the first is answered.
        let (written, unlocked) = tokio::join!(record, holds.execute(&unlock, &[&UNLOCK_KEY]));
        written?;
        unlocked?;
        anyhow::Ok(begun)
    };
    let (locked, unlocked) = tokio::join!(locked, unlocked);
    Ok(locked?.duration_since(unlocked?))
}

async fn crash(heir: &LeaderLock, dsn: &str) -> anyhow::Result<Duration> {
    let starts = part("leader", dsn);
    let gives_way = async {
        // The heir leads from the last round: the new process must be there to take it.
        tokio::time::sleep(Duration::from_millis(100)).await;
        heir.step_down(None).await
    };
    let (leader, stepped) = tokio::join!(starts, gives_way);
    stepped?;
    let mut leader = leader?;
    // Until the heir's sentinel waits for it.
    tokio::time::sleep(Duration::from_millis(2500)).await;
    let begun = Instant::now();
    leader.start_kill()?;
    heir.wait_for_leadership(Some(PATIENCE)).await?;
    let took = begun.elapsed();
    leader.wait().await?;
    Ok(took)
}

fn terminate(child: &Child) -> anyhow::Result<()> {
    let pid = rustix::process::Pid::from_raw(i32::try_from(child.id().context("it runs")?)?);
    Ok(rustix::process::kill_process(pid.context("not 0")?, rustix::process::Signal::TERM)?)
}

/// `tenure run`, with or without a child.
struct Run {
    child: Child,
    events: Lines<BufReader<Box<dyn AsyncRead + Unpin>>>,
}

impl Run {
    /// One that leads and one that waits.
    async fn pair(program: &Path, dsn: &str, command: &[&str]) -> anyhow::Result<(Self, Self)> {
        let mut first = Run::start(program, dsn, command)?;
        first.leads().await?;
        let mut second = Run::start(program, dsn, command)?;
        second.follows().await?;
        Ok((first, second))
    }

    fn start(program: &Path, dsn: &str, command: &[&str]) -> anyhow::Result<Self> {
        let role = if command.is_empty() { "bench:program" } else { "bench:child" };
        let mut child = Command::new(program)
            .args(["run", "--role", role, "--output", "json"])
            .args(command)
            .env("TENURE_DSN", dsn)
            .env("TENURE_LOG", "error")
            .stdout(Stdio::piped())
            .stderr(if command.is_empty() { Stdio::inherit() } else { Stdio::piped() })
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot run {}; give --program", program.display()))?;
        // Standard output is the child's, if there is one.
        let events: Box<dyn AsyncRead + Unpin> = if command.is_empty() {
            Box::new(child.stdout.take().context("it is piped")?)
        } else {
            Box::new(child.stderr.take().context("it is piped")?)
        };
        Ok(Run { child, events: BufReader::new(events).lines() })
    }

    /// Waits for an event; returns when it was, on the clock of all processes of this machine.
    async fn says(&mut self, event: &str) -> anyhow::Result<Duration> {
        let seen = async {
            while let Some(line) = self.events.next_line().await? {
                let said: Value = serde_json::from_str(&line).unwrap_or_default();
                if said["event"] == event {
                    return Ok(Duration::from_nanos(said["mono_ns"].as_u64().context("no time")?));
                }
            }
            bail!("it ended before it said {event}")
        };
        tokio::time::timeout(PATIENCE, seen).await?
    }

    async fn leads(&mut self) -> anyhow::Result<Duration> {
        self.says("acquired").await
    }

    /// Its claim has failed: it waits for the leader.
    async fn follows(&mut self) -> anyhow::Result<()> {
        self.says("acquire_failed").await?;
        // Until its sentinel and its LISTEN are there.
        tokio::time::sleep(Duration::from_millis(500)).await;
        Ok(())
    }

    async fn ended(&mut self) -> anyhow::Result<()> {
        tokio::time::timeout(PATIENCE, self.child.wait()).await??;
        Ok(())
    }
}
