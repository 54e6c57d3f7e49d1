//! `tenure check`, `tenure audit`, `tenure migrate` and `tenure doctor`: is all as it should be?

use serde::Serialize;
use tenure::config::Config;
use tenure::operate::Operator;
use tenure::preflight::{self, Finding, Verdict};
use tenure::schema;

use crate::args::{Audit, Check, Doctor, Migrate};
use crate::exit::{Exit, Failure};
use crate::output::{out, print_json};
use crate::setting::Setting;
use crate::status::known;
use crate::table::{Hue, count, moment, paint, print, span, table};

/// A verdict, in colour on a terminal.
fn painted(verdict: Verdict) -> String {
    let padded = format!("{verdict:<8}");
    match verdict {
        Verdict::Good => paint(&padded, Hue::Good),
        Verdict::Refused => paint(&padded, Hue::Bad),
        // `Verdict` may grow.
        _ => paint(&padded, Hue::Care),
    }
}

pub(crate) async fn check(args: Check) -> Result<Exit, Failure> {
    let setting = Setting::asking(&args.database, &args.taking)?;
    let findings = preflight::check(&setting.config).await?;
    let has_tables = findings.refusal().is_none() && !setting.config.is_lock_only();
    let mut lines: Vec<Line> = findings.all.into_iter().map(Line::from).collect();
    if has_tables {
        let runs = Setting::plan(&args.database).is_some_and(|plan| plan.needs_schema());
        lines.extend(schedules(&setting.config, runs).await);
    }
    if args.json {
        print_json(&lines);
    } else {
        if let Some(dsn) = setting.config.dsn() {
            let which = if setting.embedded { "the private server, " } else { "" };
            out!("{which}{dsn}");
        }
        for Line { what, verdict, text } in &lines {
            out!("{} {what:<10} {text}", painted(*verdict));
        }
    }
    let refused = lines.iter().any(|line| line.verdict == Verdict::Refused);
    Ok(if refused { Exit::Refused } else { Exit::Clean })
}

/// A line of the look: of the election's, or of ours.
#[derive(Debug, Serialize)]
struct Line {
    what: &'static str,
    verdict: Verdict,
    text: String,
}

impl From<Finding> for Line {
    fn from(finding: Finding) -> Self {
        Line { what: finding.what, verdict: finding.verdict, text: finding.text }
    }
}

/// Whether this login role may run schedules and alerts, where the file has some, or the group. Without these rights
/// an agent leads, and nothing fires.
async fn schedules(config: &Config, runs: bool) -> Option<Line> {
    let what = "schedules";
    let standing = match tenure_agent::schema::standing(config).await {
        Ok(standing) => standing,
        // What was found before holds all the same.
        Err(error) => {
            let text = format!("not known whether this login role may run them: {error}");
            return Some(Line { what, verdict: Verdict::Warning, text });
        }
    };
    let (user, bad) = (&standing.user, if runs { Verdict::Refused } else { Verdict::Warning });
    let (verdict, text) = if !standing.missing.is_empty() {
        let lacks = first_few(&standing.missing);
        let text = format!(
            "{user} lacks {lacks}: an agent with schedules or alerts would lead and fire nothing; run the output of \
             `tenure migrate --agent --print-grants {user}` as an owner"
        );
        (bad, text)
    } else if standing.exists {
        (Verdict::Good, format!("{user} may run schedules and alerts"))
    } else if !runs {
        return None;
    } else if standing.may_create {
        (Verdict::Good, "the schema tenure_agent is missing; the first agent makes it".to_owned())
    } else {
        let text = format!(
            "the schema tenure_agent is missing, and {user} may not make it; an owner runs `tenure migrate --agent`, \
             and the output of `tenure migrate --agent --print-grants {user}`"
        );
        (bad, text)
    };
    Some(Line { what, verdict, text })
}

fn first_few(missing: &[String]) -> String {
    const MOST: usize = 3;
    let more = missing.len().saturating_sub(MOST);
    let named = missing.iter().take(MOST).cloned().collect::<Vec<_>>().join(", ");
    if more == 0 { named } else { format!("{named} and {more} more") }
}

pub(crate) async fn audit(args: Audit) -> Result<Exit, Failure> {
    let role = args.order.role.name()?;
    let setting = Setting::of(&args.order.database)?;
    let operator = Operator::connect(&setting.config).await?;
    if let Some(name) = &role {
        known(&operator, name).await?;
    }
    let audit = operator.audit(role.as_ref()).await?;
    operator.close().await;
    if args.json {
        print_json(&audit);
    } else if audit.violations.is_empty() {
        out!(
            "{} of {}: epochs strictly increase, no two terms overlap",
            count(audit.terms, "term"),
            count(audit.roles, "role")
        );
        if let Some(since) = audit.since {
            out!(
                "terms are kept since {}; what a failover of the database lost, and what a leader did on a \
                 primary that was given up, is not among them",
                moment(Some(since))
            );
        }
    } else {
        out!("{} of {} terms break a promise:", audit.broken, audit.terms);
        print(&table(
            &["role", "epoch", "member", "next epoch", "what is wrong"],
            audit.violations.iter().map(|bad| {
                vec![
                    bad.role.to_string(),
                    bad.epoch.to_string(),
                    bad.member.clone(),
                    bad.next_epoch.map_or_else(|| "-".to_owned(), |epoch| epoch.to_string()),
                    bad.why.clone(),
                ]
            }),
        ));
    }
    Ok(if audit.violations.is_empty() { Exit::Clean } else { Exit::Failed })
}

pub(crate) async fn migrate(args: Migrate) -> Result<Exit, Failure> {
    if let Some(role) = &args.print_grants {
        out!("{}", schema::privileges_sql(role).trim_end());
        if args.agent {
            out!("{}", tenure_agent::schema::privileges_sql(role).trim_end());
        }
        return Ok(Exit::Clean);
    }
    if args.print {
        out!("{}", schema::script().trim_end());
        if args.agent {
            out!("{}", tenure_agent::schema::SCHEMA.script().trim_end());
        }
        return Ok(Exit::Clean);
    }
    let setting = Setting::of(&args.database)?;
    let operator = Operator::connect(&setting.config).await?;
    let have = operator.schema_version().await?;
    if have > schema::VERSION {
        return Err(Failure::new(
            Exit::Refused,
            format!(
                "the schema is at version {have}, newer than this program knows ({}); upgrade \
                 this program",
                schema::VERSION
            ),
        ));
    }
    let applied = operator.migrate().await?;
    operator.close().await;
    if applied.is_empty() {
        out!("the schema is up to date (version {have})");
    } else {
        out!("the schema went from version {have} to {}", schema::VERSION);
    }
    if args.agent {
        let migrated = tenure_agent::schema::migrate(&setting.config).await;
        migrated
            .map_err(|error| Failure::new(Exit::Refused, format!("{error}; run it as an owner")))?;
        out!("the schema tenure_agent is up to date");
    }
    Ok(Exit::Clean)
}

/// Everything a supporter asks first. Whatever fails is a line of the bundle, not its end.
pub(crate) async fn doctor(args: Doctor) -> Result<Exit, Failure> {
    out!("tenure {} ({})", env!("CARGO_PKG_VERSION"), std::env::consts::ARCH);
    let system = rustix::system::uname();
    out!("{} {}", system.sysname().to_string_lossy(), system.release().to_string_lossy());
    let setting = match Setting::of(&args.database) {
        Ok(setting) => setting,
        Err(failure) => {
            out!("configuration: {failure}");
            return Err(failure);
        }
    };
    let config = &setting.config;
    let lease = config.lease();
    // The DSN's own Display stars the password out.
    out!(
        "database: {}{}",
        config.dsn().map(ToString::to_string).unwrap_or_default(),
        if setting.embedded { " (the private server)" } else { "" }
    );
    out!(
        "timings: heartbeat {}, lease {}, margin {}, statement deadline {}, grace {}",
        span(lease.heartbeat()),
        span(lease.lease()),
        span(lease.margin()),
        span(lease.statement_deadline()),
        span(lease.kill_grace())
    );
    for role in config.roles() {
        out!("role: {} key {} policy {}", role.name(), role.key(), role.policy());
    }
    out!("\nchecks:");
    let mut exit = Exit::Clean;
    match preflight::check(config).await {
        Ok(findings) => {
            for Finding { what, verdict, text, .. } in &findings.all {
                out!("  {verdict:<8} {what:<10} {text}");
            }
            if findings.refusal().is_some() {
                exit = Exit::Refused;
            }
        }
        Err(error) => {
            let failure = Failure::from(error);
            out!("  {failure}");
            return Ok(failure.exit);
        }
    }
    let operator = Operator::connect(config).await?;
    out!("\nschema: version {} (known: {})", operator.schema_version().await?, schema::VERSION);
    out!("\nstatus:");
    match operator.status(None).await {
        Ok(roles) => print_json(&roles),
        Err(error) => out!("{error}"),
    }
    out!("\nhistory, the latest 20 terms:");
    match operator.history(None, 20).await {
        Ok(terms) => print_json(&terms),
        Err(error) => out!("{error}"),
    }
    out!("\naudit:");
    match operator.audit(None).await {
        Ok(audit) => print_json(&audit),
        Err(error) => out!("{error}"),
    }
    operator.close().await;
    Ok(exit)
}
