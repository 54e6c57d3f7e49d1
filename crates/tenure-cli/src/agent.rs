//! `tenure agent`: campaigns for the roles of a file and runs what each leader should run.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::time::Duration;

use clap::Args;
use tenure::TenureError;
use tenure::config::{Config, ConfigBuilder, ConfigError, RoleConfig, RoleSpec};
use tenure::connect::dsn::{ProcessEnv, Secret};
use tenure_agent::page::Page;
use tenure_agent::plan::{placed, preempts as preempts_error};
use tenure_agent::{Agent, Events, Plan, ScheduleStartError};
use tenure_embedded::Embedded;
use tenure_guardian::Strays;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{interval, sleep};

use crate::args::{Output, secret};
use crate::exit::{Exit, Failure};
use crate::listener::{self, Listener};
use crate::output::err;
use crate::serve;
use crate::setting::EMBEDDED;

mod journal;
mod service;

use journal::Journal;
use service::Service;

const NOTES: &str = "\
The file says what runs: [[command]] (as long as its role is led), [[schedule]], [[shards]],
[[alerts]], [[role]], [member], [database]; docs/agent.md has every key. SIGHUP reads it again and
says what needs a restart. SIGTERM and SIGINT hand every role over: commands end within their
grace, runs of schedules within their drain_limit; a second signal ends them at once. Events go to
standard error; standard output is the commands'. Under systemd (Type=notify) it tells when it is
ready and feeds the watchdog.";

/// No wait of a role may be longer.
const LONGEST_DRAIN: Duration = Duration::from_secs(3600);

#[derive(Debug, Args)]
#[command(after_help = NOTES)]
pub(crate) struct AgentArgs {
    /// The file (TOML)
    #[arg(long, value_name = "FILE", env = "TENURE_CONFIG", hide_env_values = true)]
    config: PathBuf,
    /// Connection string, as libpq takes it [default: $TENURE_DSN, or the file's]
    #[arg(long, value_name = "DSN", value_parser = secret)]
    dsn: Option<Secret>,
    /// Without a DSN, use the private PostgreSQL of this machine: one leader per MACHINE
    #[arg(long)]
    embedded: bool,
    /// What stands for the host's name in this member's identity
    #[arg(long, value_name = "NAME")]
    instance: Option<String>,
    /// Serve /metrics, /healthz, /readyz and /leader/ROLE here: an address, or a port of this machine alone
    #[arg(long, value_name = "ADDR", value_parser = listener::address)]
    http: Option<SocketAddr>,
    /// How events are written
    #[arg(long, value_enum, default_value_t, value_name = "FORM")]
    pub(crate) output: Output,
    /// Read the file, say what is wrong with it, and exit
    #[arg(long)]
    check: bool,
}

/// A file as meant.
struct Meant {
    plan: Plan,
    config: Config,
    embedded: bool,
}

pub(crate) async fn agent(args: AgentArgs) -> Result<Exit, Failure> {
    let mut signals = Signals::listen()?;
    let Meant { plan, config, embedded } = meant(&args)?;
    if args.check {
        return Ok(Exit::Clean);
    }
    let address = match (args.http, plan.http()) {
        (Some(address), _) => Some(address),
        (None, Some(text)) => {
            let address = listener::address(text);
            Some(
                address
                    .map_err(|why| Failure::usage(format!("`agent.http` of the file: {why}")))?,
            )
        }
        (None, None) => None,
    };
    let listener = match address {
        Some(address) => Some(Listener::bind(address).await?),
        None => None,
    };
    // Before any role is held: a page that cannot be served is a mistake in the file.
    let page = match plan.page() {
        Some(options) => Some(Page::open(&config, options).await.map_err(serve::failed)?),
        None => None,
    };
    let (events, inbox) = Events::channel();
    let started = tokio::select! {
        started = Agent::start(config, plan, events) => started,
        // Nothing is held yet.
        _ = signals.next() => return Ok(Exit::Clean),
    };
    let mut agent = started.map_err(start_failed)?;
    // From here on what keeps the agent waiting is told, and its probes answer.
    let journal = Journal::start(agent.identity().as_str(), args.output, embedded, inbox);
    if embedded {
        journal.say("warning", EMBEDDED);
    }
    if let Some(listener) = listener {
        journal.say("http", &format!("http://{}", listener.address()));
        listener.probe(agent.member());
    }
    if let Some(page) = &page {
        journal.say("page", page.url());
    }
    let service = Service::of_environment();
    let watchdog = tokio::spawn(service.clone().watch(agent.member()));
    let strays = tokio::spawn(reap_strays());
    let mut refused = None;
    let mut again = false;
    if campaign(&agent, &mut signals, &mut refused, &mut again).await {
        if again {
            reload(&mut agent, &args, &journal);
        }
        service.ready();
        loop {
            // Both branches are cancel-safe.
            tokio::select! {
                wish = signals.next() => match wish {
                    Wish::End => break,
                    Wish::Reload => {}
                },
                error = agent.refused() => {
                    refused = Some(error);
                    break;
                }
            }
            service.reloading();
            reload(&mut agent, &args, &journal);
            service.ready();
        }
    }
    service.stopping();
    let patience = agent.patience();
    let leave = async {
        let left = agent.shutdown(patience).await;
        // An order that is being given comes to its end.
        if let Some(page) = page {
            page.close().await;
        }
        left
    };
    let left = tokio::select! {
        left = leave => left,
        // A second signal: guardians end their children as soon as this process is gone.
        () = signals.end() => Ok(()),
    };
    strays.abort();
    watchdog.abort();
    journal.finish();
    if let Err(error) = left {
        err!("{error}; the server frees the roles when their lease is over");
    }
    match refused {
        Some(error) => Err(error.into()),
        None => Ok(Exit::Clean),
    }
}

/// Enters the races; false: a signal came first, or a role was refused. A file that is to be read again is read once
/// the database has answered.
async fn campaign(
    agent: &Agent,
    signals: &mut Signals,
    refused: &mut Option<TenureError>,
    again: &mut bool,
) -> bool {
    let mut campaign = pin!(agent.campaign());
    loop {
        // Every branch is cancel-safe.
        tokio::select! {
            taken = &mut campaign => {
                *refused = taken.err();
                return refused.is_none();
            }
            // A role that was taken, and is refused while others wait for their first answer.
            error = agent.refused() => {
                *refused = Some(error);
                return false;
            }
            wish = signals.next() => match wish {
                Wish::End => return false,
                Wish::Reload => *again = true,
            },
        }
    }
}

fn start_failed(error: ScheduleStartError) -> Failure {
    match error {
        ScheduleStartError::Member(error) => error.into(),
        error @ (ScheduleStartError::Notifier(_) | ScheduleStartError::SameName(_)) => {
            Failure::usage(error.to_string())
        }
        other => Failure::new(Exit::Unreachable, other.to_string()),
    }
}

fn reload(agent: &mut Agent, args: &AgentArgs, journal: &Journal) {
    // The old plan goes on if the new one is wrong.
    match meant(args) {
        Ok(Meant { plan, .. }) => {
            let left = agent.reload(plan);
            journal.say("reloaded", "commands, schedules, retention and alerts are the file's");
            if !left.is_empty() {
                let what = left.join(" and ");
                journal.say(
                    "warning",
                    &format!("{what} changed; restart the agent to take that over"),
                );
            }
        }
        Err(failure) => journal.say("error", &format!("not reloaded: {failure}")),
    }
}

fn meant(args: &AgentArgs) -> Result<Meant, Failure> {
    let path = &args.config;
    let text = std::fs::read_to_string(path)
        .map_err(|source| ConfigError::Read { path: path.clone(), source })?;
    let plan = Plan::from_toml(&text, path).map_err(|error| Failure::usage(error.to_string()))?;
    let base = builder(args, &text, path)?;
    let first = build(plan.specs().fold(base.clone(), ConfigBuilder::role), &text, path)?;
    if first.is_lock_only() {
        return Err(Failure::usage("an agent needs the tables; take lock_only out of [member]"));
    }
    if plan.is_empty()
        && first.roles().iter().all(|role| role.name().as_str().starts_with("tenure:"))
    {
        return Err(Failure::usage(format!(
            "{} gives the agent nothing to do; add a [[command]], a [[schedule]] or a [[role]]",
            path.display()
        )));
    }
    if let Some(alerting) = plan.alerting() {
        let opened = alerting.open(&first, &ProcessEnv);
        opened.map_err(|error| Failure::usage(format!("{}: {error}", path.display())))?;
    }
    if args.check {
        let checked = plan.check_page_files(&text, path);
        checked.map_err(|error| Failure::usage(error.to_string()))?;
    }
    let specs = plan.roles().map(|(role, drain)| drained(&first, plan.spec(role), role, drain));
    let builder = specs.fold(base, ConfigBuilder::role);
    let config = build(builder.clone(), &text, path)?;
    let preempts = |role: &&RoleConfig| role.preempts() && plan.is_shard(role.name().as_str());
    if let Some(role) = config.roles().iter().find(preempts) {
        let error = preempts_error(role.name(), &text, path);
        return Err(Failure::usage(error.to_string()));
    }
    if config.dsn().is_some() || args.check {
        return Ok(Meant { plan, config, embedded: false });
    }
    if !args.embedded {
        return Err(Failure::usage(
            "no database is configured, and an agent uses a private one only if told --embedded; give \
             --dsn, set TENURE_DSN, or write [database] dsn in the file",
        ));
    }
    let dsn = Embedded::start_or_attach(None)?.dsn()?;
    let start = || Embedded::start_or_attach(None).map(drop).map_err(|error| error.to_string());
    let config = build(builder.dsn(dsn).revive(start), &text, path)?;
    Ok(Meant { plan, config, embedded: true })
}

fn builder(args: &AgentArgs, text: &str, path: &Path) -> Result<ConfigBuilder, Failure> {
    let mut builder = Config::builder().env(ProcessEnv).toml(text, path)?;
    if let Some(dsn) = &args.dsn {
        if dsn.reveal().trim().is_empty() {
            return Err(Failure::usage("--dsn is empty; give a connection string"));
        }
        builder = builder.dsn(dsn.reveal());
    }
    if let Some(instance) = &args.instance {
        builder = builder.instance(instance);
    }
    Ok(builder)
}

fn build(builder: ConfigBuilder, text: &str, path: &Path) -> Result<Config, Failure> {
    builder.build().map_err(|error| Failure::usage(placed(&error, text, path).to_string()))
}

/// A role whose drain is not cut off before its runs and children have had their time.
fn drained(config: &Config, spec: RoleSpec, role: &str, drain: Option<Duration>) -> RoleSpec {
    let written = config.roles().iter().find(|known| known.name().as_str() == role);
    let written = written.map_or(Duration::ZERO, |known| known.drain_limit());
    let grace = config.lease().kill_grace() * 2;
    let limit = written.max(drain.unwrap_or_default().saturating_add(grace)).min(LONGEST_DRAIN);
    spec.drain_limit(limit)
}

/// What hooks and killed guardians leave behind falls to this process.
async fn reap_strays() {
    let mut strays = Strays::default();
    let mut tick = interval(Duration::from_secs(1));
    loop {
        tick.tick().await;
        strays.reap();
    }
}

/// What a signal asks for.
enum Wish {
    Reload,
    End,
}

struct Signals {
    term: Signal,
    int: Signal,
    hup: Signal,
}

impl Signals {
    fn listen() -> std::io::Result<Self> {
        Ok(Signals {
            term: signal(SignalKind::terminate())?,
            int: signal(SignalKind::interrupt())?,
            hup: signal(SignalKind::hangup())?,
        })
    }

    /// Cancel-safe, as each of its parts is.
    async fn next(&mut self) -> Wish {
        tokio::select! {
            _ = self.term.recv() => Wish::End,
            _ = self.int.recv() => Wish::End,
            _ = self.hup.recv() => Wish::Reload,
        }
    }

    async fn end(&mut self) {
        while !matches!(self.next().await, Wish::End) {
            sleep(Duration::ZERO).await;
        }
    }
}
