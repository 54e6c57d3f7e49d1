//! The file's `[alerting]` and `[[alerts]]`: as written, and as validated.
//!
//! ```toml
//! [alerting]
//! notify = ["pagerduty"]            # for the default rules and for an unreachable database
//!
//! [[alerts]]
//! name = "no_scheduler_leader"
//! condition = "sum(forge_leader_is_leader{role='scheduler'}) == 0"
//! for = "30s"
//! severity = "critical"
//! notify = ["pagerduty", "slack:#ops"]
//! ```

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use sha2::{Digest, Sha256};
use tenure::config::{Config, parse_period};
use tenure::connect::dsn::Env;

use super::condition::Condition;
use super::notifier::{NotifierError, Notifiers, Services, Target};
use super::rule::{Rule, Severity, defaults, is_name};

/// The time between two evaluations, if the file says nothing.
pub const INTERVAL: Duration = Duration::from_secs(15);
/// How long the database may be unreachable before an agent says so.
const DATABASE_AFTER: Duration = Duration::from_secs(60);
/// More rules are a mistake.
const RULES: usize = 200;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct WrittenAlert {
    name: String,
    condition: String,
    #[serde(rename = "for")]
    hold: Option<String>,
    severity: Option<Severity>,
    notify: Option<Vec<String>>,
    summary: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct WrittenAlerting {
    interval: Option<String>,
    group: Option<String>,
    defaults: Option<bool>,
    notify: Vec<String>,
    database_after: Option<String>,
    pagerduty: WrittenPagerDuty,
    slack: WrittenSlack,
    webhook: WrittenWebhook,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct WrittenPagerDuty {
    key_file: Option<PathBuf>,
    url: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct WrittenSlack {
    token_file: Option<PathBuf>,
    url: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct WrittenWebhook {
    token_file: Option<PathBuf>,
}

/// What is wrong, and the path of the key that it is about.
pub(crate) type Wrong = (String, String);

/// What the file says about alerts, as validated. Secrets are found later, by [`Alerting::open`].
#[derive(Debug, Clone, Default)]
pub struct Alerting {
    rules: Vec<Rule>,
    notify: Vec<String>,
    targets: BTreeMap<String, Target>,
    interval: Duration,
    database_after: Duration,
    group: Option<String>,
    services: Services,
}

impl Alerting {
    /// None: the file says nothing about alerts.
    pub(crate) fn validated(
        written: WrittenAlerting,
        alerts: Vec<WrittenAlert>,
    ) -> Result<Option<Self>, Wrong> {
        let wrong = |path: &str, why: &str| (path.to_owned(), why.to_owned());
        let mut alerting = Alerting {
            interval: INTERVAL,
            database_after: DATABASE_AFTER,
            group: written.group,
            services: Services {
                pagerduty_key: written.pagerduty.key_file,
                pagerduty_url: written.pagerduty.url,
                slack_token: written.slack.token_file,
                slack_url: written.slack.url,
                webhook_token: written.webhook.token_file,
            },
            ..Alerting::default()
        };
        if let Some(interval) = period(written.interval.as_deref(), "alerting.interval")? {
            if !(Duration::from_secs(1)..=Duration::from_secs(60)).contains(&interval) {
                return Err(wrong("alerting.interval", "1s to 60s"));
            }
            alerting.interval = interval;
        }
        let after = period(written.database_after.as_deref(), "alerting.database_after")?;
        alerting.database_after = after.unwrap_or(DATABASE_AFTER);
        if alerting.group.as_ref().is_some_and(|group| group.is_empty() || group.len() > 200) {
            return Err(wrong("alerting.group", "1 to 200 bytes"));
        }
        alerting.notify = alerting.names(&written.notify, "alerting.notify")?;
        if alerts.len() > RULES {
            return Err(wrong("alerts", "at most 200 rules"));
        }
        for (index, alert) in alerts.into_iter().enumerate() {
            let rule = alerting.rule(index, alert)?;
            alerting.rules.push(rule);
        }
        let with_defaults = written.defaults.unwrap_or(!alerting.notify.is_empty());
        if with_defaults && alerting.notify.is_empty() {
            let why = "the default rules notify `alerting.notify`, which names no notifier; write one, \
                       as notify = [\"pagerduty\"]";
            return Err(wrong("alerting.defaults", why));
        }
        if with_defaults {
            // A rule of the file stands for the default one of its name.
            let own = |rule: &Rule| alerting.rules.iter().any(|own| own.name() == rule.name());
            let mut rules: Vec<Rule> =
                defaults(&alerting.notify).into_iter().filter(|rule| !own(rule)).collect();
            rules.append(&mut alerting.rules);
            alerting.rules = rules;
        }
        let nothing = alerting.rules.is_empty() && alerting.notify.is_empty();
        Ok((!nothing).then_some(alerting))
    }

    fn rule(&mut self, index: usize, alert: WrittenAlert) -> Result<Rule, Wrong> {
        let at = |field: &str| format!("alerts[{index}].{field}");
        if !is_name(&alert.name) {
            let why = "1 to 100 letters, digits, `_` and `-`, and a letter first";
            return Err((at("name"), why.to_owned()));
        }
        if self.rules.iter().any(|rule| rule.name() == alert.name) {
            return Err((at("name"), "a rule of that name is there already".to_owned()));
        }
        let condition = Condition::parse(&alert.condition)
            .map_err(|error| (at("condition"), error.to_string()))?;
        let hold = period(alert.hold.as_deref(), &at("for"))?.unwrap_or_default();
        if hold > Duration::from_secs(86_400) {
            return Err((at("for"), "at most 24h".to_owned()));
        }
        if alert.summary.as_ref().is_some_and(|summary| summary.len() > 500) {
            return Err((at("summary"), "at most 500 bytes".to_owned()));
        }
        let notify = match &alert.notify {
            Some(notify) => self.names(notify, &at("notify"))?,
            None if self.notify.is_empty() => {
                let why = "it names no notifier; write notify = [\"pagerduty\"], or notify = [] for a rule \
                           that only the page shows";
                return Err((at("name"), why.to_owned()));
            }
            None => self.notify.clone(),
        };
        Ok(Rule::new(&alert.name, condition)
            .holding(hold)
            .severe(alert.severity.unwrap_or_default())
            .notifying(notify)
            .saying(alert.summary))
    }

    /// The names of notifiers, which are kept.
    fn names(&mut self, written: &[String], path: &str) -> Result<Vec<String>, Wrong> {
        let mut names = Vec::new();
        for (index, text) in written.iter().enumerate() {
            let target = Target::parse(text).map_err(|why| (format!("{path}[{index}]"), why))?;
            let name = target.name();
            self.targets.insert(name.clone(), target);
            if !names.contains(&name) {
                names.push(name);
            }
        }
        Ok(names)
    }

    /// Its rules, the default ones among them.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// The time between two evaluations. Default: 15 s; 1 s to 60 s.
    #[must_use]
    pub fn interval(&self) -> Duration {
        self.interval
    }

    /// The notifiers of the default rules and of an unreachable database.
    #[must_use]
    pub fn notify(&self) -> &[String] {
        &self.notify
    }

    /// Finds every secret, in files and in `env`, and makes the notifiers ready. Nothing is sent. It blocks for as
    /// long as the disk does.
    ///
    /// # Errors
    /// [`NotifierError`], for the first that cannot be used.
    pub fn open(&self, config: &Config, env: &dyn Env) -> Result<Setup, NotifierError> {
        let group = self.group.clone().unwrap_or_else(|| place(config));
        let notifiers = Notifiers::open(self.targets.values(), &self.services, &group, env)?;
        let mark = hex::encode(&Sha256::digest(&group)[..6]);
        Ok(Setup { alerting: self.clone(), notifiers, mark, group })
    }
}

/// Alerts that are ready to run.
#[derive(Debug)]
pub struct Setup {
    /// What the file says.
    pub alerting: Alerting,
    /// Where messages go.
    pub notifiers: Notifiers,
    /// What messages call this group: the file's `group`, or the database's hosts and name.
    pub group: String,
    /// What tells its keys from another group's.
    pub(crate) mark: String,
}

impl Setup {
    pub(crate) fn database_after(&self) -> Duration {
        self.alerting.database_after
    }
}

/// The database, as every member with the same file names it.
fn place(config: &Config) -> String {
    let Some(dsn) = config.dsn() else { return "embedded".to_owned() };
    let hosts: Vec<String> = dsn.hosts().iter().map(ToString::to_string).collect();
    format!("{}/{}", hosts.join(","), dsn.database())
}

fn period(text: Option<&str>, path: &str) -> Result<Option<Duration>, Wrong> {
    let Some(text) = text else { return Ok(None) };
    let wrong = || (path.to_owned(), "a time is written 15s, 10m or 1h".to_owned());
    parse_period(text).ok_or_else(wrong).map(Some)
}
