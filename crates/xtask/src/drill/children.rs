//! The members of a drill, `tenure run -- CMD`, and what their children do: write down that they act.

use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use clap::Args;
use rustix::process::{Pid, Signal, kill_process};
use tenure_testkit::history::{self, Event, now_ns};
use tokio::process::{Child, Command};
use tokio::time::sleep;

use super::network::{address, on};

/// The role of a drill.
const ROLE: &str = "drill";
const NAMES: [&str; 3] = ["m1", "m2", "m3"];
const SERVERS: [&str; 3] = ["n1", "n2", "n3"];
/// How often a child acts.
const EVERY: Duration = Duration::from_millis(5);
/// A child that acted this recently acts.
const RECENT: Duration = Duration::from_millis(500);

/// What a child is told.
#[derive(Debug, Args)]
pub(crate) struct TickArgs {
    file: PathBuf,
    member: String,
}

/// The child: acts until it is killed.
pub(crate) fn tick(args: &TickArgs) -> anyhow::Result<()> {
    let epoch = std::env::var("TENURE_EPOCH").context("no epoch")?.parse()?;
    let mut file = std::fs::OpenOptions::new().create(true).append(true).open(&args.file)?;
    loop {
        // The clock is read before the act, and no later: a child that was stopped in between acted late.
        let event = Event::Yes(history::Instant {
            role: ROLE.to_owned(),
            epoch,
            member: args.member.clone(),
            at_ns: now_ns(),
        });
        file.write_all(format!("{}\n", serde_json::to_string(&event)?).as_bytes())?;
        std::thread::sleep(EVERY);
    }
}

pub(super) struct Members {
    program: PathBuf,
    folder: PathBuf,
    all: Vec<Member>,
    marked: [u64; NAMES.len()],
}

struct Member {
    name: &'static str,
    child: Child,
}

impl Members {
    pub(super) fn start(folder: &Path, program: &Path) -> anyhow::Result<Self> {
        let (folder, program) = (folder.to_owned(), program.to_owned());
        let mut members = Members { program, folder, all: Vec::new(), marked: [0; NAMES.len()] };
        for name in NAMES {
            let child = members.spawn(name)?;
            members.all.push(Member { name, child });
        }
        Ok(members)
    }

    /// Each lists the servers in another order.
    fn spawn(&self, name: &'static str) -> anyhow::Result<Child> {
        let first = NAMES.iter().position(|other| *other == name).unwrap_or(0);
        let hosts: Vec<String> =
            (0..SERVERS.len()).map(|n| address(SERVERS[(first + n) % SERVERS.len()])).collect();
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.folder.join(format!("{name}.log")))?;
        let mut command = on(name, &self.program);
        command
            .args([
                "run",
                "--role",
                ROLE,
                "--instance",
                name,
                "--output",
                "json",
                "--dsn",
                &dsn(&hosts),
            ])
            .arg("--")
            .arg(std::env::current_exe()?)
            .args(["tick", &self.file(name).display().to_string(), name])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .process_group(0)
            .kill_on_drop(true);
        command.spawn().with_context(|| format!("member {name}"))
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.acts"))
    }

    /// From here on is what [`Members::acts_since_mark`] tells of.
    pub(super) fn mark(&mut self) {
        self.marked = NAMES.map(|name| length(&self.file(name)));
    }

    pub(super) fn acts_since_mark(&self) -> anyhow::Result<Vec<Event>> {
        let mut events = Vec::new();
        for (name, from) in NAMES.iter().zip(self.marked) {
            events.extend(acts(&self.file(name), from)?);
        }
        Ok(events)
    }

    /// Waits until a child acts.
    pub(super) async fn acts(&self, within: Duration) -> anyhow::Result<()> {
        let begun = Instant::now();
        while self.leader()?.is_none() {
            if begun.elapsed() > within {
                bail!("no member acts after {within:?}; see {}", self.folder.display());
            }
            sleep(Duration::from_millis(200)).await;
        }
        Ok(())
    }

    /// When a child acted last.
    pub(super) fn last_act(&self) -> anyhow::Result<u64> {
        let mut last = 0;
        for name in NAMES {
            let file = self.file(name);
            let tail = acts(&file, length(&file).saturating_sub(1000))?;
            last = last.max(tail.last().map_or(0, |event| event.instant().at_ns));
        }
        Ok(last)
    }

    /// The member whose child acts.
    pub(super) fn leader(&self) -> anyhow::Result<Option<&'static str>> {
        let recently = now_ns().saturating_sub(RECENT.as_nanos() as u64);
        let mut last = (recently, None);
        for name in NAMES {
            let file = self.file(name);
            let tail = acts(&file, length(&file).saturating_sub(1000))?;
            if let Some(at) =
                tail.last().map(|event| event.instant().at_ns).filter(|at| *at > last.0)
            {
                last = (at, Some(name));
            }
        }
        Ok(last.1)
    }

    pub(super) fn kill(&mut self, name: &str) {
        self.signal(name, Signal::KILL);
    }

    /// The program, not its child or its guardian: those must end the child without it.
    pub(super) fn freeze(&self, name: &str) {
        self.signal(name, Signal::STOP);
    }

    fn signal(&self, name: &str, signal: Signal) {
        let member = self.all.iter().find(|member| member.name == name);
        let id = member.and_then(|member| member.child.id());
        if let Some(pid) = id.and_then(|id| Pid::from_raw(id.cast_signed())) {
            let _ = kill_process(pid, signal);
        }
    }

    /// Members that stand still go on, those that ended are started again.
    pub(super) fn mend(&mut self) -> anyhow::Result<()> {
        for index in 0..self.all.len() {
            let name = self.all[index].name;
            self.signal(name, Signal::CONT);
            if self.all[index].child.try_wait()?.is_some() {
                self.all[index].child = self.spawn(name)?;
            }
        }
        Ok(())
    }

    /// They release and go.
    pub(super) async fn end(mut self) {
        for name in NAMES {
            self.signal(name, Signal::TERM);
        }
        for member in &mut self.all {
            let _ = tokio::time::timeout(Duration::from_secs(10), member.child.wait()).await;
        }
    }
}

fn length(file: &Path) -> u64 {
    std::fs::metadata(file).map_or(0, |data| data.len())
}

/// What a file says from that byte on. A line that was cut in two is none.
fn acts(file: &Path, from: u64) -> anyhow::Result<Vec<Event>> {
    let Ok(mut file) = std::fs::File::open(file) else { return Ok(Vec::new()) };
    file.seek(SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(Event::parse_all(String::from_utf8_lossy(&bytes).lines()))
}

/// How a member reaches the servers.
pub(super) fn dsn(hosts: &[String]) -> String {
    let hosts = hosts.join(",");
    format!(
        "postgresql://postgres@{hosts}/postgres?target_session_attrs=read-write&sslmode=disable"
    )
}

/// A command of the program on the operator's machine.
pub(super) fn operator(program: &Path, args: &[&str]) -> Command {
    let hosts: Vec<String> = SERVERS.into_iter().map(address).collect();
    let mut command = on("op", program);
    command.args(args).args(["--dsn", &dsn(&hosts)]).stdin(Stdio::null());
    command
}
