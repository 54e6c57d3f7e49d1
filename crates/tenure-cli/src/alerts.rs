//! `tenure alerts`: what the rules say now, what they would be for Prometheus, and what fires.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use jiff::Timestamp;
use serde_json::json;
use tenure::connect::dsn::ProcessEnv;
use tenure_agent::Plan;
use tenure_agent::alerts::desk::{AlertDesk, AlertDeskError, test_message};
use tenure_agent::alerts::engine::{Delivery, Incident, Kind, Told};
use tenure_agent::alerts::rule::{Rule, defaults, export as prometheus};
use tenure_agent::alerts::sample::{Labels, written};
use tenure_agent::alerts::setup::{Alerting, INTERVAL};

use crate::args::Database;
use crate::exit::{Exit, Failure};
use crate::output::{out, print_json};
use crate::setting::Setting;
use crate::table::{print, second, table_of};

#[derive(Debug, Subcommand)]
pub(crate) enum AlertsCommand {
    /// Evaluate every rule once, now, and show what it finds; nothing is notified
    Test(Test),
    /// Print the rules for Prometheus; without a file, the default rules
    Export(Export),
    /// List what is pending and firing, and the latest incidents
    List(List),
}

#[derive(Debug, Args)]
pub(crate) struct Test {
    #[command(flatten)]
    database: Database,
    /// Also send a test message, and its end, to every notifier of the file
    #[arg(long)]
    send: bool,
    /// Also print every sample, as Prometheus writes them
    #[arg(long, conflicts_with = "json")]
    samples: bool,
    /// As JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Export {
    /// The file with [alerting] and [[alerts]]
    #[arg(long, value_name = "FILE", env = "TENURE_CONFIG", hide_env_values = true)]
    config: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct List {
    #[command(flatten)]
    database: Database,
    /// How many incidents, the latest first
    #[arg(long, default_value_t = 20, value_name = "N")]
    limit: u32,
    /// As JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(command: AlertsCommand) -> Result<Exit, Failure> {
    match command {
        AlertsCommand::Test(args) => test(args).await,
        AlertsCommand::Export(args) => export(&args),
        AlertsCommand::List(args) => list(args).await,
    }
}

/// What the file says; without one, the default rules.
fn alerting(file: Option<PathBuf>) -> Result<Option<Alerting>, Failure> {
    let Some(file) = file else { return Ok(None) };
    let text = std::fs::read_to_string(&file).map_err(|error| {
        Failure::usage(format!("{}: {error}; give a file that can be read", file.display()))
    })?;
    let plan = Plan::from_toml(&text, &file).map_err(|error| Failure::usage(error.to_string()))?;
    match plan.alerting() {
        Some(alerting) => Ok(Some(alerting.clone())),
        None => Err(Failure::usage(format!(
            "{} has no [[alerts]] and no [alerting]; add one, or give no file for the default rules",
            file.display()
        ))),
    }
}

fn export(args: &Export) -> Result<Exit, Failure> {
    let alerting = alerting(args.config.clone())?;
    let (rules, interval) = match &alerting {
        Some(alerting) => (alerting.rules().to_vec(), alerting.interval()),
        None => (defaults(&[]), INTERVAL),
    };
    out!("{}", prometheus(&rules, interval).trim_end());
    Ok(Exit::Clean)
}

async fn test(args: Test) -> Result<Exit, Failure> {
    let file = args.database.config.clone();
    let file = file.or_else(|| std::env::var_os("TENURE_CONFIG").map(Into::into));
    let alerting = alerting(file)?;
    if args.send && alerting.is_none() {
        return Err(Failure::usage(
            "--send needs the file that names the notifiers; give --config",
        ));
    }
    let rules = alerting.as_ref().map_or_else(|| defaults(&[]), |one| one.rules().to_vec());
    let config = Setting::of(&args.database)?.config;
    let desk = AlertDesk::new(&config).map_err(failed)?;
    let (samples, now) = desk.sample(&rules).await.map_err(failed)?;
    let mut exit = Exit::Clean;
    let results: Vec<_> =
        rules.iter().map(|rule| (rule, rule.condition().evaluate(&samples, now))).collect();
    if results.iter().any(|(_, result)| result.is_err()) {
        exit = Exit::Failed;
    }
    if args.json {
        let rows = results.iter().map(|(rule, result)| {
            let found = result.as_ref().ok().map(|found| {
                let one = |element: &tenure_agent::alerts::evaluate::Element| {
                    json!({"labels": element.labels, "value": element.value})
                };
                found.iter().map(one).collect::<Vec<_>>()
            });
            let error = result.as_ref().err().map(ToString::to_string);
            json!({"rule": rule.name(), "condition": rule.condition().text(), "found": found, "error": error})
        });
        print_json(&rows.collect::<Vec<_>>());
    } else {
        let rows = results.iter().flat_map(|(rule, result)| match result {
            Ok(found) if found.is_empty() => vec![row(rule, "quiet", String::new())],
            Ok(found) => found
                .iter()
                .map(|one| row(rule, "holds", format!("{} = {}", written(&one.labels), one.value)))
                .collect(),
            Err(error) => vec![row(rule, "error", error.to_string())],
        });
        print(&table_of(&["rule", "severity", "for", "now", "what"], rows, false));
    }
    if args.samples {
        for series in samples.all() {
            if let Some(value) = series.points.last().and_then(|point| point.value) {
                out!("{} {value}", written(&series.labels));
            }
        }
    }
    if args.send
        && let Some(alerting) = &alerting
    {
        let setup = alerting
            .open(&config, &ProcessEnv)
            .map_err(|error| Failure::usage(error.to_string()))?;
        let key = format!("tenure-test-{}", Timestamp::now().as_microsecond());
        for notifier in setup.notifiers.names() {
            for kind in [Kind::Firing, Kind::Resolved] {
                let message = test_message(notifier, &key, kind, Timestamp::now());
                let what = if kind == Kind::Firing { "a test" } else { "its end" };
                match setup.notifiers.send(&message).await {
                    Ok(()) => out!("{notifier}: {what} was acknowledged"),
                    Err(why) => {
                        out!("{notifier}: {what} was not acknowledged: {why}");
                        exit = Exit::Failed;
                    }
                }
            }
        }
    }
    Ok(exit)
}

fn row(rule: &Rule, state: &str, what: String) -> Vec<String> {
    let hold = humantime::format_duration(rule.hold()).to_string();
    vec![rule.name().to_owned(), rule.severity().to_string(), hold, state.to_owned(), what]
}

async fn list(args: List) -> Result<Exit, Failure> {
    let config = Setting::of(&args.database)?.config;
    let overview = AlertDesk::new(&config).map_err(failed)?.overview(args.limit).await;
    let overview = overview.map_err(failed)?;
    if args.json {
        print_json(&overview);
        return Ok(Exit::Clean);
    }
    if overview.alerts.is_empty() {
        out!("no alert is pending or firing");
    } else {
        let rows = overview.alerts.iter().map(|alert| {
            let state = if alert.fired.is_some() { "firing" } else { "pending" };
            vec![alert.rule.clone(), state.to_owned(), second(Some(alert.since)), of(&alert.labels)]
        });
        print(&table_of(&["rule", "state", "since", "what"], rows, false));
    }
    if !overview.incidents.is_empty() {
        let rows = overview.incidents.iter().map(|incident| {
            let told = incident.deliveries.iter().map(|(name, one)| told(incident, name, one));
            vec![
                incident.rule.clone(),
                incident.severity.to_string(),
                second(Some(incident.opened)),
                second(incident.resolved),
                told.collect::<Vec<_>>().join(", "),
            ]
        });
        print(&table_of(&["incident", "severity", "opened", "resolved", "told"], rows, false));
    }
    Ok(Exit::Clean)
}

fn of(labels: &Labels) -> String {
    let pairs: Vec<String> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    pairs.join(" ")
}

fn told(incident: &Incident, notifier: &str, delivery: &Delivery) -> String {
    let state = match (&delivery.told, incident.resolved) {
        (Told::Nothing, _) => "not yet",
        (Told::Firing(_), None) => "yes",
        (Told::Firing(_), Some(_)) => "not of its end",
        (Told::Resolved, _) => "yes",
    };
    let why = delivery.trial.as_ref().map(|trial| format!(": {}", trial.why)).unwrap_or_default();
    format!("{notifier} {state}{why}")
}

fn failed(error: AlertDeskError) -> Failure {
    let (exit, remedy) = match &error {
        AlertDeskError::NoTables => (Exit::Failed, ""),
        AlertDeskError::Store(error) if error.needs_an_owner() => (Exit::Refused, ""),
        // It may grow; whatever it says, the database did not answer.
        _ => (Exit::Unreachable, "; try again"),
    };
    Failure::new(exit, format!("{error}{remedy}"))
}
