//! The command line as typed. [`crate::setting`] makes of it what is meant.

use std::convert::Infallible;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use tenure::config::parse_period;
use tenure::connect::dsn::Secret;
use tenure::{LockKey, TakeoverPolicy};

use crate::exit::TABLE;
use crate::listener;
use crate::log::Form;

const NOTES: &str = "\
The database: --dsn, else $TENURE_DSN, $PG_DSN, $PG_CONN_STRING, $SH_PENDING_DB_URL, else libpq's
own variables, else the file of --config, else a private PostgreSQL on this machine (one leader per
MACHINE; see `tenure embedded`; --no-embedded forbids it). Only `run` and `acquire` start it;
commands that ask or order use it if it runs.
Warnings and errors are logged to standard error; $TENURE_LOG=info logs more, =off nothing.";

const RUN_NOTES: &str = "\
With CMD: it starts once the gate is open, with TENURE_ROLE, TENURE_EPOCH and TENURE_MEMBER in its
environment. All its descendants are gone before the lease ends, also when tenure itself is frozen
or killed: a process called tenure-guardian sees to that. It cannot cover a pause of the whole
machine or container, processes under another user (set-uid), nor work that CMD handed to a daemon
(docker run, systemd-run). Under --policy fenced the next leader starts at once, so the old child
overlaps it by its --grace: every effect must carry the epoch.

CMD's exit ends the tenure and its code is tenure's; --restart starts it again instead. SIGTERM,
SIGINT and SIGHUP drain, release and exit 0; a second one kills the child at once. Events go to
standard output, or to standard error when there is a CMD. CMD has no terminal of its own: what
asks for a password on /dev/tty needs `script -qec CMD /dev/null`.";

const ACQUIRE_NOTES: &str = "\
Without CMD the role is released again at once: exit 0 means that it was free. With CMD, exit 0
means that CMD ended by itself with 0. A signal ends CMD; the code is then the one that CMD
answered with, or 128+n for signal n, never 0. One member at a time runs CMD, but each that asks
later gets its turn: this is mutual exclusion, not once a day.";

/// One acting leader among many processes, on PostgreSQL
#[derive(Debug, Parser)]
#[command(name = "tenure", version, after_help = format!("{TABLE}\n\n{NOTES}"), max_term_width = 100)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Take part in the election of a role, and run a program only while it leads
    Run(Run),
    /// Lead once: run a program under the lock, or see whether the role is free
    Acquire(Acquire),
    /// Lead the roles of a file, and run their commands and schedules
    Agent(crate::agent::AgentArgs),
    /// Schedules: list them, run one now, read their history and dead letters
    #[command(subcommand)]
    Schedule(crate::schedule::ScheduleCommand),
    /// Alerts: test the rules, export them for Prometheus, list what fires
    #[command(subcommand)]
    Alerts(crate::alerts::AlertsCommand),
    /// Show what happened: terms, orders, late heartbeats, ends of schedules
    Events(crate::happened::EventsArgs),
    /// Show it all in a browser, with orders for those who may
    Serve(crate::serve::Serve),
    /// Delete old terms, events and runs
    Prune(crate::prune::Prune),
    /// Show which members lead, which wait, and which other programs hold the locks
    Status(Status),
    /// Ask a role's leader, wherever it runs, to drain and hand over
    StepDown(StepDown),
    /// List the latest terms of a role
    History(History),
    /// Check the durable record: epochs increase, no two terms of a role overlap
    Audit(Audit),
    /// Look the server over, line by line, with remedies
    Check(Check),
    /// Let no member lead a role; its leader drains
    Pause(OrderArgs),
    /// End a pause
    Resume(OrderArgs),
    /// Free a role's lock by force: the last resort
    Release(Release),
    /// Shorten what a role's successors wait out, once every member's lease is shorter
    LowerLease(OrderArgs),
    /// Change a paused role's policy, key or lease, once no member takes part in it
    Alter(Alter),
    /// Delete a paused role and its history, once no member takes part in it
    Forget(OrderArgs),
    /// Write a support bundle without secrets
    Doctor(Doctor),
    /// Create the schema, or bring it up to date
    Migrate(Migrate),
    /// Show a role's lock key, and the SQL that computes it
    Key(Key),
    /// The private PostgreSQL of this machine
    Embedded(EmbeddedArgs),
    /// Watch three members survive kill, freeze, partition, handover and a database restart
    Demo(Demo),
    /// Groups of nodes without a database
    #[cfg(feature = "gossip")]
    #[command(subcommand)]
    Gossip(crate::gossip::GossipCommand),
    /// Nonce-ordered transactions of a leader and its followers
    #[cfg(feature = "tx")]
    #[command(subcommand)]
    Tx(crate::tx::TxCommand),
    /// Print a completion script for a shell
    Completions(Completions),
    /// Write the manual pages
    Man(Man),
}

impl Command {
    /// How this command's log is written: `run` keeps standard error for objects if asked to.
    pub(crate) fn log(&self) -> Form {
        match self {
            Command::Run(run) if run.form() == Output::Json => Form::Json,
            Command::Agent(agent) if agent.output == Output::Json => Form::Json,
            _ => Form::Text,
        }
    }

    /// Whether every loss is an event on standard error: the log need not say it again.
    pub(crate) fn tells_losses(&self) -> bool {
        matches!(self, Command::Agent(agent) if agent.output != Output::Quiet)
    }
}

impl Run {
    /// How events are written.
    pub(crate) fn form(&self) -> Output {
        if self.quiet { Output::Quiet } else { self.output }
    }
}

/// How a command finds its database.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Database {
    /// Connection string, as libpq takes it [default: $TENURE_DSN; see `tenure --help`]
    #[arg(help_heading = "Database", long, value_name = "DSN", value_parser = secret)]
    pub(crate) dsn: Option<Secret>,
    /// Configuration file (TOML) [default: $TENURE_CONFIG]
    #[arg(help_heading = "Database", long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Never use a private PostgreSQL: without a DSN it is an error
    #[arg(help_heading = "Database", long)]
    pub(crate) no_embedded: bool,
}

/// How a candidate behaves; the file has the same under `[[role]]`.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Behaviour {
    /// How long a step-down waits for CMD's end, or for acts in flight [default: 10s, or twice the
    /// grace]
    #[arg(help_heading = "Election", long, value_name = "TIME", value_parser = period)]
    pub(crate) drain_limit: Option<Duration>,
    /// How long to stay out of the race after a step-down [default: the lease]
    #[arg(help_heading = "Election", long, value_name = "TIME", value_parser = period)]
    pub(crate) cool_down: Option<Duration>,
    /// Ask a healthy leader of lower priority to step down
    #[arg(help_heading = "Election", long)]
    pub(crate) preempt: bool,
    /// Watch and never lead
    #[arg(help_heading = "Election", long, conflicts_with_all = ["preempt", "command"])]
    pub(crate) observer: bool,
}

/// Which role: by name, by key, or both.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct RoleArgs {
    /// The role's name (optional when a key is given)
    #[arg(long, value_name = "NAME")]
    pub(crate) role: Option<String>,
    /// Its advisory lock key: 42, 0x2a, or 1,100 [default: from the name]
    #[arg(long, value_name = "KEY", allow_hyphen_values = true, conflicts_with_all = ["key1", "key2"])]
    pub(crate) key: Option<LockKey>,
    /// First half of a key of two 32-bit integers
    #[arg(long, value_name = "INT", allow_hyphen_values = true, requires = "key2")]
    pub(crate) key1: Option<i32>,
    /// Second half
    #[arg(long, value_name = "INT", allow_hyphen_values = true, requires = "key1")]
    pub(crate) key2: Option<i32>,
}

/// How to take part.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Taking {
    /// exclusive: never two at once; fenced: at once, for effects that carry the epoch [default:
    /// exclusive]
    #[arg(help_heading = "Election", long, value_name = "POLICY", value_parser = policy)]
    pub(crate) policy: Option<TakeoverPolicy>,
    /// Interval between heartbeats [default: 1s]
    #[arg(help_heading = "Election", long, visible_alias = "health-interval", value_name = "TIME", value_parser = some_time)]
    pub(crate) heartbeat: Option<Duration>,
    /// How long a leader may act after its last heartbeat [default: 3 heartbeats]
    #[arg(help_heading = "Election", long, value_name = "TIME", value_parser = some_time)]
    pub(crate) lease: Option<Duration>,
    /// From SIGTERM to SIGKILL, within the lease [default: a sixth of it]
    #[arg(help_heading = "Election", long, value_name = "TIME", value_parser = period)]
    pub(crate) grace: Option<Duration>,
    /// How long to try to win a lost session's role back before it counts as lost
    #[arg(help_heading = "Election", long, value_name = "TIME", value_parser = period)]
    pub(crate) reconnect_grace: Option<Duration>,
    /// First pause between attempts on a failing database [default: 200ms]
    #[arg(help_heading = "Election", long, value_name = "TIME", value_parser = period)]
    pub(crate) retry_base: Option<Duration>,
    /// Longest pause between attempts [default: 5s]
    #[arg(help_heading = "Election", long, value_name = "TIME", value_parser = period)]
    pub(crate) retry_max: Option<Duration>,
    /// A higher one gets a head start when the role is free [default: 0]
    #[arg(help_heading = "Election", long, value_name = "INT", allow_hyphen_values = true)]
    pub(crate) priority: Option<i32>,
    /// Use the lock alone, no tables: no epochs, no fence, no remote orders
    #[arg(help_heading = "Election", long)]
    pub(crate) lock_only: bool,
    /// What stands for the host's name in this member's identity
    #[arg(help_heading = "Election", long, value_name = "NAME")]
    pub(crate) instance: Option<String>,
}

#[derive(Debug, Args)]
#[command(after_help = RUN_NOTES)]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) role: RoleArgs,
    #[command(flatten)]
    pub(crate) database: Database,
    #[command(flatten)]
    pub(crate) taking: Taking,
    #[command(flatten)]
    pub(crate) behaviour: Behaviour,
    /// Stop after the first term instead of campaigning again (a lost one: exit 4)
    #[arg(long)]
    pub(crate) no_auto_reacquire: bool,
    /// Start CMD again when it exits
    #[arg(long, requires = "command", conflicts_with = "observer")]
    pub(crate) restart: bool,
    /// How events are written
    #[arg(long, value_enum, default_value_t, value_name = "FORM")]
    pub(crate) output: Output,
    /// Write no events; errors are still said
    #[arg(short, long, conflicts_with = "output")]
    pub(crate) quiet: bool,
    /// Serve /metrics, /healthz, /readyz and /leader/ROLE here: an address, or a port of this machine alone
    #[arg(long, visible_alias = "metrics", value_name = "ADDR", value_parser = listener::address)]
    pub(crate) http: Option<SocketAddr>,
    #[command(flatten)]
    pub(crate) hooks: Hooks,
    /// The program to run while leading; `--` before it is optional
    #[arg(trailing_var_arg = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

/// What else to run; each by `sh -c`, with TENURE_EVENT beside the child's variables.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Hooks {
    /// Run when a term begins
    #[arg(help_heading = "Hooks", long, value_name = "CMD")]
    pub(crate) on_acquired: Option<String>,
    /// Run when a term ended against the leader's will
    #[arg(help_heading = "Hooks", long, value_name = "CMD")]
    pub(crate) on_lost: Option<String>,
    /// Run when a term ended as asked for
    #[arg(help_heading = "Hooks", long, value_name = "CMD")]
    pub(crate) on_released: Option<String>,
    /// Asked while CMD runs: failing --health-failures times in a row, the leader steps down
    #[arg(help_heading = "Hooks", long, value_name = "CMD")]
    pub(crate) health: Option<String>,
    /// Asked while the member waits: one that is not ready lets a ready one lead
    #[arg(help_heading = "Hooks", long, value_name = "CMD")]
    pub(crate) ready: Option<String>,
    /// How long after CMD's start it is first asked for its health
    #[arg(help_heading = "Hooks", long, value_name = "TIME", value_parser = period, default_value = "5s")]
    pub(crate) health_start: Duration,
    /// Pause between checks
    #[arg(help_heading = "Hooks", long, value_name = "TIME", value_parser = some_time, default_value = "5s")]
    pub(crate) health_every: Duration,
    /// A check that takes longer has failed
    #[arg(help_heading = "Hooks", long, value_name = "TIME", value_parser = some_time, default_value = "5s")]
    pub(crate) health_timeout: Duration,
    /// How many health checks in a row must fail
    #[arg(help_heading = "Hooks", long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) health_failures: u32,
}

#[derive(Debug, Args)]
#[command(after_help = ACQUIRE_NOTES)]
pub(crate) struct Acquire {
    #[command(flatten)]
    pub(crate) role: RoleArgs,
    #[command(flatten)]
    pub(crate) database: Database,
    #[command(flatten)]
    pub(crate) taking: Taking,
    /// How long to wait for another leader to let go [default: acquire_timeout, else one attempt].
    /// What is left of a crashed leader's lease is waited out beyond it
    #[arg(long, value_name = "TIME", value_parser = period)]
    pub(crate) wait: Option<Duration>,
    /// The program to run once under the lock; its code is tenure's
    #[arg(trailing_var_arg = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct Status {
    #[command(flatten)]
    pub(crate) role: RoleArgs,
    #[command(flatten)]
    pub(crate) database: Database,
    /// As JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Again every second until interrupted
    #[arg(long)]
    pub(crate) watch: bool,
    /// Whole names, times to the millisecond and more columns, however wide
    #[arg(long)]
    pub(crate) wide: bool,
}

#[derive(Debug, Args)]
pub(crate) struct StepDown {
    #[command(flatten)]
    pub(crate) order: OrderArgs,
    /// Which member should lead next: its identity, or a part of it that only one has
    #[arg(long, value_name = "MEMBER")]
    pub(crate) to: Option<String>,
    /// How long to wait for the successor
    #[arg(long, value_name = "TIME", value_parser = period, default_value = "30s")]
    pub(crate) timeout: Duration,
}

#[derive(Debug, Args)]
pub(crate) struct OrderArgs {
    #[command(flatten)]
    pub(crate) role: RoleArgs,
    #[command(flatten)]
    pub(crate) database: Database,
}

#[derive(Debug, Args)]
pub(crate) struct Alter {
    #[command(flatten)]
    pub(crate) order: OrderArgs,
    /// The policy that all its members use from now on: exclusive or fenced
    #[arg(long, value_name = "POLICY", value_parser = policy)]
    pub(crate) policy: Option<TakeoverPolicy>,
    /// The lock key that all its members use from now on
    #[arg(long, value_name = "KEY", allow_hyphen_values = true)]
    pub(crate) new_key: Option<LockKey>,
    /// The lease that successors wait out; a member's longer one raises it
    #[arg(long, value_name = "TIME", value_parser = lease)]
    pub(crate) lease: Option<Duration>,
}

#[derive(Debug, Args)]
pub(crate) struct History {
    #[command(flatten)]
    pub(crate) order: OrderArgs,
    /// How many terms, the latest first
    #[arg(long, default_value_t = 20, value_name = "N")]
    pub(crate) limit: u32,
    /// Only what operators ordered, and which of them
    #[arg(long)]
    pub(crate) orders: bool,
    /// Whole names, times to the millisecond and more columns, however wide
    #[arg(long)]
    pub(crate) wide: bool,
    /// As JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Audit {
    #[command(flatten)]
    pub(crate) order: OrderArgs,
    /// As JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Check {
    #[command(flatten)]
    pub(crate) database: Database,
    #[command(flatten)]
    pub(crate) taking: Taking,
    /// As JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Release {
    #[command(flatten)]
    pub(crate) order: OrderArgs,
    /// Yes, end the session that holds the lock, of whatever program; it is recorded
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Doctor {
    #[command(flatten)]
    pub(crate) database: Database,
}

#[derive(Debug, Args)]
pub(crate) struct Migrate {
    #[command(flatten)]
    pub(crate) database: Database,
    /// Print the SQL instead of running it
    #[arg(long)]
    pub(crate) print: bool,
    /// Print the grants that a login role needs to take part
    #[arg(long, value_name = "ROLE", conflicts_with = "print")]
    pub(crate) print_grants: Option<String>,
    /// Also for agents: the schema of schedules and alerts
    #[arg(long)]
    pub(crate) agent: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Key {
    /// The role's name
    pub(crate) name: String,
    /// As JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct EmbeddedArgs {
    #[command(subcommand)]
    pub(crate) action: EmbeddedAction,
}

#[derive(Debug, Clone, Copy, Subcommand)]
pub(crate) enum EmbeddedAction {
    /// Whether it runs, and how to connect
    Status,
    /// Stop it for every program that uses it; the data stays
    Stop,
    /// The folder that holds it
    Path,
}

#[derive(Debug, Args)]
pub(crate) struct Demo {
    /// Go on for so long; it always ends with a whole round of faults
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seconds: u64,
    /// Fixes the order of the faults [default: kill, freeze, partition, handover, restart]
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Plain lines, also on a terminal
    #[arg(long)]
    pub(crate) plain: bool,
    /// Keep the page with the demo's timeline open at the end, until interrupted
    #[arg(long)]
    pub(crate) serve: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// Which shell
    pub(crate) shell: Shell,
}

#[derive(Debug, Args)]
pub(crate) struct Man {
    /// The folder to write one page per command to [default: one page to standard output]
    pub(crate) folder: Option<PathBuf>,
}

/// How events are written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// For people
    #[default]
    Text,
    /// One object per line
    Json,
    /// Nothing but errors
    Quiet,
}

/// Longer is a slip, and no clock arithmetic need fear it.
const LONGEST: Duration = Duration::from_secs(365 * 86_400);

/// `3s`, `250ms`, `1m 30s`, or a plain number of seconds.
pub(crate) fn period(text: &str) -> Result<Duration, String> {
    parse_period(text)
        .filter(|time| *time <= LONGEST)
        .ok_or_else(|| "write 3s, 250ms, or a number of seconds, at most a year".to_owned())
}

/// A [`period`] without which a loop would never rest.
pub(crate) fn some_time(text: &str) -> Result<Duration, String> {
    match period(text)? {
        Duration::ZERO => Err("write more than zero".to_owned()),
        time => Ok(time),
    }
}

/// A [`period`] that a member's lease can be.
fn lease(text: &str) -> Result<Duration, String> {
    let range = Duration::from_millis(20)..=Duration::from_secs(3600);
    let time = period(text)?;
    if range.contains(&time) { Ok(time) } else { Err("write 20ms to 1h".to_owned()) }
}

/// A text that no debug output shows: a connection string, an address with a key in it.
pub(crate) fn secret(text: &str) -> Result<Secret, Infallible> {
    Ok(Secret::new(text))
}

fn policy(text: &str) -> Result<TakeoverPolicy, String> {
    text.parse().map_err(|_| "write exclusive or fenced".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_time_is_what_people_write() {
        assert_eq!(period("3s"), Ok(Duration::from_secs(3)));
        assert_eq!(period("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(period("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(period("5"), Ok(Duration::from_secs(5)));
        for bad in ["", "-1", "soon", "inf", "NaN", "1e400", "1e19", "9999years"] {
            assert!(period(bad).is_err(), "{bad}");
        }
    }
}
