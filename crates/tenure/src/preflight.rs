//! Looks a server over before anything is trusted to it.
//!
//! A setup on which the promises cannot hold is refused, with the reason and the remedy. What only
//! weakens an assumption is a warning. [`check`] tells everything, line by line; a starting member
//! runs the same look and stops at the first refusal.
//!
//! ```no_run
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! use tenure::config::Config;
//! use tenure::preflight::{Verdict, check};
//!
//! let findings = check(&Config::from_env()?).await?;
//! for finding in findings.all.iter().filter(|finding| finding.verdict != Verdict::Good) {
//!     println!("{}: {}", finding.what, finding.text);
//! }
//! # Ok(())
//! # }
//! ```

mod standbys;

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure_core::clock::spoken;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::config::Config;
use crate::connect::{Connector, Remedy};
use crate::error::TenureError;
use crate::line::{Line, LineError, Unasked};
use crate::schema::{self, SCHEMA};
use crate::seat::Profile;
use crate::sql::{identifier, literal, settings};
use standbys::Standbys;

/// The oldest server whose `idle_session_timeout` can carry the lease.
const OLDEST_SERVER: i32 = 140_000;

/// The line about sessions that may hold up a claim.
const BLOCKERS: &str = "blockers";

/// Why a setup cannot be used. No lock and no row is left behind.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// It speaks PostgreSQL's protocol, but its advisory locks are not PostgreSQL's.
    #[error(
        "{product} is not PostgreSQL, and its advisory locks exclude no session; \
         point the DSN at a PostgreSQL server"
    )]
    NotPostgres {
        /// What it says it is.
        product: String,
    },
    /// It cannot end an idle session, so a frozen leader would hold its lock for ever.
    #[error("PostgreSQL {version} cannot enforce the lease; use version 14 or newer")]
    TooOld {
        /// As `server_version` says it.
        version: String,
    },
    /// Locks on a standby exclude no session on the primary.
    #[error(
        "the server is a hot standby; connect to the primary (several hosts in the DSN with \
         target_session_attrs=read-write find it by themselves)"
    )]
    Standby,
    /// A lock taken through it may belong to any client.
    #[error(
        "a connection pooler that shares sessions stands before the server ({evidence}); \
         connect to the server itself, or use the pooler's session mode"
    )]
    Pooler {
        /// How that showed.
        evidence: String,
    },
    /// Notifications do not arrive, so every handover would wait for the poll.
    #[error(
        "a notification did not arrive within {}; connect without a pooler or proxy that \
         swallows NOTIFY",
        spoken(.waited)
    )]
    DeadNotify {
        /// How long was waited.
        waited: Duration,
    },
    /// There is no schema, and this member may not make it.
    #[error("the schema is missing; run `tenure migrate` as the database's owner")]
    SchemaMissing,
    /// The schema is of an older version, and this member may not bring it up to date.
    #[error("the schema is at version {have}, this program needs {need}; run `tenure migrate`")]
    SchemaOlder {
        /// In the database.
        have: i32,
        /// Needed.
        need: i32,
    },
    /// The schema is of a newer version.
    #[error(
        "the schema is at version {have}, newer than this program knows ({know}); \
         upgrade this program"
    )]
    SchemaNewer {
        /// In the database.
        have: i32,
        /// Known.
        know: i32,
    },
    /// The login role may not do what a member does.
    #[error(
        "the login role {user} lacks privileges ({missing}); run the output of \
         `tenure migrate --print-grants {user}` as the schema's owner"
    )]
    Privileges {
        /// The login role.
        user: String,
        /// The privileges that it lacks, for people.
        missing: String,
    },
    /// The login role may not call what a member calls. By default every login role may: somebody took the
    /// right away.
    #[error(
        "the login role {user} may not execute {missing}; run the output of \
         `tenure migrate --print-grants {user}` as the schema's owner"
    )]
    Execute {
        /// The login role.
        user: String,
        /// The first functions, and how many more there are.
        missing: String,
    },
    /// More roles than a quarter of the server's lock table.
    #[error(
        "{roles} roles need {roles} locks, more than a quarter of the server's lock table \
         ({capacity} locks); raise max_locks_per_transaction"
    )]
    LockTable {
        /// How many roles.
        roles: i64,
        /// How many locks the server can hold.
        capacity: i64,
    },
    /// The fence would let stale writes through.
    #[error(
        "the index tenure.role_fence is missing or not unique, complete and immediate, so the \
         fence would not hold; create it again as in migration 1"
    )]
    FenceIndex,
    /// A session would go on passing the fence with an old epoch.
    #[error(
        "a trigger of tenure.role or the sequence tenure.moves is missing, disabled or changed, so the \
         fence would not hold; create them again as in migration 4"
    )]
    FenceTriggers,
}

/// How one line of the look came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Verdict {
    /// As it should be.
    Good,
    /// It works; an assumption is weaker than it could be.
    Warning,
    /// The promises cannot hold: no member starts here.
    Refused,
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // `pad`, so that a list of findings can have columns.
        f.pad(match self {
            Verdict::Good => "good",
            Verdict::Warning => "warning",
            Verdict::Refused => "refused",
        })
    }
}

/// One line of the look.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Finding {
    /// What was looked at, in a word: `server`, `pooler`, `schema` and so on.
    pub what: &'static str,
    /// How it came out.
    pub verdict: Verdict,
    /// What was found, in a sentence, with the remedy where one is needed.
    pub text: String,
}

/// Everything that was found.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Findings {
    /// Line by line, in the order of the look. It ends at the first refusal that makes the rest
    /// pointless.
    pub all: Vec<Finding>,
    refusal: Option<Refused>,
}

impl Findings {
    /// Why the setup is refused, if it is.
    pub fn refusal(&self) -> Option<&Refused> {
        self.refusal.as_ref()
    }

    fn good(&mut self, what: &'static str, text: impl Into<String>) {
        self.all.push(Finding { what, verdict: Verdict::Good, text: text.into() });
    }

    fn warn(&mut self, what: &'static str, text: impl Into<String>) {
        self.all.push(Finding { what, verdict: Verdict::Warning, text: text.into() });
    }

    fn refuse(&mut self, what: &'static str, refused: Refused) -> Stop {
        let text = refused.to_string();
        self.all.push(Finding { what, verdict: Verdict::Refused, text });
        self.refusal = Some(refused);
        Stop::Refused
    }
}

/// Ends a look early.
enum Stop {
    Refused,
    Line(LineError),
}

impl From<LineError> for Stop {
    fn from(error: LineError) -> Self {
        Stop::Line(error)
    }
}

/// Looks over the server of a configuration and tells everything. Changes nothing: a missing schema
/// is a finding, and so is a refusal ([`Findings::refusal`]). Connecting and each question take a lease at most.
///
/// # Errors
/// If no database is named, the server cannot be reached, or a session fails.
pub async fn check(config: &Config) -> Result<Findings, TenureError> {
    let dsn = config.dsn().ok_or(TenureError::NoDatabase)?;
    let connector = Connector::new(dsn, config.tls().clone())?.with_renewal(config.renewal());
    let look = Look {
        connector: &connector,
        name: "tenure check",
        deadline: config.lease().lease(),
        lock_only: config.is_lock_only(),
        absent: Absent::Told,
        roles: i64::try_from(config.roles().len()).unwrap_or(i64::MAX),
    };
    let mut findings = look.run().await?;
    for warning in config.warnings() {
        findings.warn("timings", warning);
    }
    match clock_source() {
        Some(source) => clock_finding(&mut findings, &source),
        None => findings.warn("clock", "its source cannot be read"),
    }
    Ok(findings)
}

/// The look of a starting member; with `migrate` it also brings the schema up to date.
pub(crate) async fn prepare(
    connector: &Connector,
    profile: &Profile,
    migrate: bool,
) -> Result<(), TenureError> {
    let look = Look {
        connector,
        name: "tenure preflight",
        deadline: profile.lease.lease(),
        lock_only: profile.lock_only,
        absent: if migrate { Absent::Made } else { Absent::Refused },
        roles: i64::try_from(profile.roles).unwrap_or(i64::MAX),
    };
    let mut findings = look.run().await?;
    if let Some(source) = clock_source() {
        clock_finding(&mut findings, &source);
    }
    for finding in findings.all.iter().filter(|f| f.verdict == Verdict::Warning) {
        let Finding { what, text, .. } = finding;
        if *what == BLOCKERS {
            // It matters only where other login roles fence their writes: no line of every start.
            tracing::info!(member = %profile.identity, "{what}: {text}");
        } else {
            tracing::warn!(member = %profile.identity, "{what}: {text}");
        }
    }
    match findings.refusal {
        Some(refused) => Err(refused.into()),
        None => Ok(()),
    }
}

/// What becomes of a schema that is not there.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Absent {
    Made,
    Refused,
    /// A member that starts may make it.
    Told,
}

struct Look<'a> {
    connector: &'a Connector,
    name: &'a str,
    deadline: Duration,
    lock_only: bool,
    absent: Absent,
    roles: i64,
}

impl Look<'_> {
    async fn run(&self) -> Result<Findings, TenureError> {
        let mut findings = Findings::default();
        let (heard, mut hears) = mpsc::unbounded_channel();
        let session = self.connector.connect(self.name, self.deadline).await?;
        let host = session.host.clone();
        // A server that cannot be looked over, or is refused, is the last one that is tried next time.
        let failed = || self.connector.pass_over(&host);
        let one = Line::new(session, heard);
        let pins = settings(self.deadline * 4, self.deadline, Duration::from_secs(1));
        let end = async {
            self.product(&one, &mut findings).await?;
            one.ask(&pins, self.deadline).await?;
            Ok::<_, Stop>(())
        }
        .await;
        let end = end.inspect_err(|_| failed());
        if let Some(findings) = finish(end, &mut findings)? {
            return Ok(findings);
        }
        let (deaf, _) = mpsc::unbounded_channel();
        let two = Line::new(self.connector.connect(self.name, self.deadline).await?, deaf);
        let end = async {
            two.ask(&pins, self.deadline).await?;
            self.pooler(&one, &two, &mut findings).await?;
            self.notify(&one, &two, &mut hears, &mut findings).await?;
            let mut tables = false;
            if self.lock_only {
                findings.warn(
                    "lock-only",
                    "no tables: no epochs and no fence, no remote step-down, and every \
                     acquisition waits out a lease",
                );
            } else {
                tables = self.schema(&one, &mut findings).await?;
            }
            if tables {
                self.privileges(&one, &mut findings).await?;
                self.fence_index(&one, &mut findings).await?;
                self.prepared(&one, &mut findings).await?;
            }
            self.lock_table(&one, tables, &mut findings).await?;
            self.standbys(&one, &mut findings).await?;
            self.signals(&one, &mut findings).await?;
            self.server_log(&one, &mut findings).await?;
            Ok::<_, Stop>(())
        }
        .await;
        one.hang_up(self.deadline).await;
        two.hang_up(self.deadline).await;
        let end = end.inspect_err(|_| failed());
        Ok(finish(end, &mut findings)?.unwrap_or(findings))
    }

    async fn ask(&self, line: &Line, sql: &str) -> Result<String, LineError> {
        Ok(line.ask(sql, self.deadline).await?.unwrap_or_default())
    }

    /// A server that logs what idle members do all the time would drown in it.
    async fn server_log(&self, line: &Line, findings: &mut Findings) -> Result<(), Stop> {
        let sql = "select coalesce(string_agg('alter role ' || quote_ident(current_user) \
                || ' set ' || remedy, '; '), '') from (values \
            (extract(epoch from current_setting('log_min_duration_statement')::interval) \
                    between 0 and 0.124, 'log_min_duration_statement = ''500ms'''), \
            (current_setting('log_lock_waits')::boolean \
                and extract(epoch from current_setting('deadlock_timeout')::interval) < 0.125, \
                'log_lock_waits = off'), \
            (current_setting('log_statement') = 'all', 'log_statement = ''mod'''), \
            (current_setting('log_duration')::boolean, 'log_duration = off')) v(noisy, remedy) \
            where noisy";
        let remedy = self.ask(line, sql).await?;
        if remedy.is_empty() {
            findings.good("log", "an idle member writes no line to the server's log");
        } else {
            let text = format!(
                "the server logs what every idle member does, several lines a second; as a \
                 superuser: {remedy}"
            );
            findings.warn("log", text);
        }
        Ok(())
    }

    async fn product(&self, line: &Line, findings: &mut Findings) -> Result<(), Stop> {
        let version = self.ask(line, "select version()").await?;
        if let Some(refused) = judge_version(&version) {
            return Err(findings.refuse("server", refused));
        }
        let number = self.ask(line, "show server_version_num").await?;
        if number.parse::<i32>().unwrap_or(0) < OLDEST_SERVER {
            let version = self.ask(line, "show server_version").await?;
            return Err(findings.refuse("server", Refused::TooOld { version }));
        }
        if self.ask(line, "select pg_is_in_recovery()").await? == "t" {
            return Err(findings.refuse("server", Refused::Standby));
        }
        findings.good("server", version.split(" on ").next().unwrap_or_default());
        Ok(())
    }

    /// One client alone sees one pid through any pooler, so a second one has to be there.
    async fn pooler(&self, one: &Line, two: &Line, findings: &mut Findings) -> Result<(), Stop> {
        let key = i64::from_ne_bytes(rand::random::<[u8; 8]>());
        let pid = "select pg_backend_pid()";
        let evidence = async {
            let mine = self.ask(one, pid).await?;
            let probe = literal(&format!("{key:x}"));
            self.ask(one, &format!("select set_config('tenure.probe', {probe}, false)")).await?;
            self.ask(one, &format!("select pg_try_advisory_lock({key})")).await?;
            if self.ask(two, &format!("select pg_try_advisory_lock({key})")).await? == "t" {
                return Ok(Some("two connections got the same lock".to_owned()));
            }
            if self.ask(two, pid).await? == mine {
                return Ok(Some("two connections share one session".to_owned()));
            }
            // A transaction of the second one takes a session out of the pool: the first one gets
            // another, unless it has one of its own.
            two.ask("begin", self.deadline).await?;
            let mut moved = self.ask(two, pid).await? == mine;
            for _ in 0..4 {
                moved |= self.ask(one, pid).await? != mine;
            }
            two.ask("commit", self.deadline).await?;
            moved |= self.ask(one, pid).await? != mine;
            if moved {
                return Ok(Some("the session changed under the connection".to_owned()));
            }
            let kept = self.ask(one, "select current_setting('tenure.probe', true)").await?;
            if kept != format!("{key:x}") {
                return Ok(Some("a session setting was lost".to_owned()));
            }
            Ok::<_, LineError>(None)
        }
        .await;
        // Whatever was found, the lock goes: through a pooler it may be on either session.
        let unlock = format!("select pg_advisory_unlock({key})");
        let quiet = format!("set client_min_messages = error; {unlock}");
        let mut freed = 0;
        for line in [one, two, one, two] {
            if line.ask(&quiet, self.deadline).await.ok().flatten().as_deref() == Some("t") {
                freed += 1;
            }
        }
        let _ = one.ask("set client_min_messages = warning", self.deadline).await;
        match evidence {
            Ok(None) if freed == 1 => {
                findings.good("pooler", "the session is the server's own");
                Ok(())
            }
            Ok(None) => {
                let evidence = "a lock did not stay with its session".to_owned();
                Err(findings.refuse("pooler", Refused::Pooler { evidence }))
            }
            Ok(Some(evidence)) => Err(findings.refuse("pooler", Refused::Pooler { evidence })),
            // A statement pooler refuses transactions, with a code of class 08. A server that shuts
            // down in the middle of the look is no pooler.
            Err(LineError::Refused { sqlstate, message })
                if sqlstate.starts_with("08") || Remedy::of_sqlstate(&sqlstate) != Remedy::Time =>
            {
                let evidence = format!("{message}, SQLSTATE {sqlstate}");
                Err(findings.refuse("pooler", Refused::Pooler { evidence }))
            }
            Err(other) => Err(Stop::Line(other)),
        }
    }

    async fn notify(
        &self,
        one: &Line,
        two: &Line,
        hears: &mut mpsc::UnboundedReceiver<Unasked>,
        findings: &mut Findings,
    ) -> Result<(), Stop> {
        let wanted = format!("tenure_probe_{:016x}", rand::random::<u64>());
        one.ask(&format!("listen {}", identifier(&wanted)), self.deadline).await?;
        two.ask(&format!("select pg_notify({}, '')", literal(&wanted)), self.deadline).await?;
        let arrived = timeout(self.deadline, async {
            while let Some(heard) = hears.recv().await {
                if matches!(heard, Unasked::Notification { channel, .. } if channel == wanted) {
                    return true;
                }
            }
            false
        })
        .await;
        one.ask(&format!("unlisten {}", identifier(&wanted)), self.deadline).await?;
        if arrived != Ok(true) {
            let refused = Refused::DeadNotify { waited: self.deadline };
            return Err(findings.refuse("notify", refused));
        }
        findings.good("notify", "notifications arrive");
        Ok(())
    }

    /// Whether there is a schema to look at further.
    async fn schema(&self, line: &Line, findings: &mut Findings) -> Result<bool, Stop> {
        let mut have = match SCHEMA.installed(line, self.deadline).await {
            Ok(have) => have,
            // There is one, and we may not even read it: the next look says what is missing.
            Err(error) if error.sqlstate() == Some("42501") => return Ok(true),
            Err(error) => return Err(error.into()),
        };
        if have < schema::VERSION && self.absent == Absent::Made {
            match SCHEMA.migrate(line, self.deadline * 10).await {
                Ok(applied) => {
                    if !applied.is_empty() {
                        tracing::info!(?applied, "the schema was brought up to date");
                    }
                    have = SCHEMA.installed(line, self.deadline).await?;
                }
                // insufficient_privilege: another login role must do it.
                Err(error) if error.sqlstate() == Some("42501") => {}
                Err(error) => return Err(error.into()),
            }
        }
        let need = schema::VERSION;
        if have == 0 && self.absent == Absent::Told {
            let may = "select has_database_privilege(current_database(), 'create')";
            if self.ask(line, may).await? == "t" {
                findings.warn(
                    "schema",
                    "it is missing; the first member that starts makes it, or `tenure migrate` does",
                );
                return Ok(false);
            }
        }
        match have {
            0 => Err(findings.refuse("schema", Refused::SchemaMissing)),
            have if have < need => {
                Err(findings.refuse("schema", Refused::SchemaOlder { have, need }))
            }
            have if have > need => {
                Err(findings.refuse("schema", Refused::SchemaNewer { have, know: need }))
            }
            have => {
                findings.good("schema", format!("version {have}"));
                Ok(true)
            }
        }
    }

    async fn privileges(&self, line: &Line, findings: &mut Findings) -> Result<(), Stop> {
        #[derive(Deserialize)]
        struct Lacks {
            user: String,
            missing: Vec<String>,
            functions: Vec<String>,
        }
        // The fence is called by what leads, with a login role of its own perhaps, and an order by an operator.
        let sql = "select jsonb_build_object('user', current_user, 'functions', \
            coalesce((select jsonb_agg('tenure.' || proname || '()' order by proname) from (\
                select distinct proname from pg_proc \
                where pronamespace = to_regnamespace('tenure') \
                  and proname not in ('fence', 'fence_row', 'fenced', 'fenced_with', 'epoch_moved', \
                      'set_paused', 'lower_lease', \
                      'lock_pids', 'force_release', 'settle', 'settled', 'not_settled', 'unsettle', \
                      'forget_role', 'alter_role') \
                  and not has_function_privilege(oid, 'execute')) f), '[]'), 'missing', \
            coalesce((select jsonb_agg(w) from (\
                select 'usage on schema tenure' as w \
                    where not has_schema_privilege('tenure', 'usage') \
                union all \
                select p || ' on ' || t from (values \
                    ('tenure.member', 'select'), ('tenure.member', 'insert'), \
                    ('tenure.member', 'update'), ('tenure.member', 'delete'), \
                    ('tenure.candidate', 'select'), ('tenure.candidate', 'insert'), \
                    ('tenure.candidate', 'update'), ('tenure.candidate', 'delete'), \
                    ('tenure.role', 'select'), ('tenure.role', 'insert'), \
                    ('tenure.role', 'update'), ('tenure.term', 'select'), \
                    ('tenure.term', 'insert'), ('tenure.term', 'update'), \
                    ('tenure.event', 'insert'), ('tenure.origin', 'select'), \
                    ('tenure.origin', 'update'), \
                    ('tenure.tombstone', 'select'), ('tenure.migration', 'select'), \
                    ('tenure.boot', 'select'), ('tenure.boot', 'insert'), \
                    ('tenure.boot', 'update')) v(t, p) \
                where has_schema_privilege('tenure', 'usage') \
                  and not has_table_privilege(t, p) \
                union all \
                select 'usage on sequence tenure.moves' \
                where has_schema_privilege('tenure', 'usage') \
                  and not has_sequence_privilege('tenure.moves', 'usage')) s), '[]'))";
        let text = self.ask(line, sql).await?;
        let lacks: Lacks = serde_json::from_str(&text)
            .map_err(|error| Stop::Line(LineError::Unreadable(error.to_string())))?;
        if !lacks.missing.is_empty() {
            let refused =
                Refused::Privileges { user: lacks.user, missing: lacks.missing.join(", ") };
            return Err(findings.refuse("privileges", refused));
        }
        if !lacks.functions.is_empty() {
            let refused =
                Refused::Execute { user: lacks.user, missing: first_few(&lacks.functions) };
            return Err(findings.refuse("privileges", refused));
        }
        findings.good("privileges", format!("{} may take part", lacks.user));
        Ok(())
    }

    async fn fence_index(&self, line: &Line, findings: &mut Findings) -> Result<(), Stop> {
        let sql = "select exists (select from pg_index \
            where indexrelid = to_regclass('tenure.role_fence') \
              and indrelid = 'tenure.role'::regclass and indisunique and indisvalid \
              and indimmediate and indpred is null and indexprs is null and indnkeyatts = 2 \
              and (select array_agg(attname::text order by attname) from pg_attribute \
                   where attrelid = indrelid and attnum = any (indkey)) \
                  = array['epoch', 'name'])";
        if self.ask(line, sql).await? != "t" {
            return Err(findings.refuse("fence", Refused::FenceIndex));
        }
        // Without one of these a session's pass would outlive the epoch that it was made for.
        let sql = "select (select count(*) = 3 from pg_trigger \
                where tgrelid = 'tenure.role'::regclass and tgenabled = 'A' \
                  and tgfoid = to_regproc('tenure.epoch_moved') \
                  and tgname in ('epoch_moved', 'role_gone', 'roles_gone')) \
            and exists (select from pg_sequence \
                where seqrelid = to_regclass('tenure.moves') and seqcache = 1 and seqincrement > 0)";
        if self.ask(line, sql).await? != "t" {
            return Err(findings.refuse("fence", Refused::FenceTriggers));
        }
        findings.good("fence", "an epoch bump conflicts with every fenced transaction");
        Ok(())
    }

    async fn lock_table(
        &self,
        line: &Line,
        tables: bool,
        findings: &mut Findings,
    ) -> Result<(), Stop> {
        // Only a candidate can hold a role's lock, and no observer.
        let known = "(select count(*) from (select distinct role from tenure.candidate \
                     where not observer) c)";
        let known = if tables { known } else { "0" };
        let sql = format!(
            "select current_setting('max_locks_per_transaction')::bigint * \
             (current_setting('max_connections')::bigint + \
              current_setting('max_prepared_transactions')::bigint) || ' ' || {known}"
        );
        let text = self.ask(line, &sql).await?;
        let mut numbers = text.split(' ').map(|n| n.parse::<i64>().unwrap_or(0));
        let capacity = numbers.next().unwrap_or(0);
        let roles = numbers.next().unwrap_or(0).max(self.roles);
        if roles > capacity / 4 {
            return Err(findings.refuse("locks", Refused::LockTable { roles, capacity }));
        }
        if roles == capacity / 4 {
            let full = format!(
                "{roles} roles, a quarter of the server's lock table ({capacity} locks), and no new one is \
                 taken; raise max_locks_per_transaction"
            );
            findings.warn("locks", full);
            return Ok(());
        }
        let roles = if roles == 1 { "1 role".to_owned() } else { format!("{roles} roles") };
        findings.good("locks", format!("{roles}; the server holds {capacity} locks"));
        Ok(())
    }

    /// Whether a failover can lose what was acknowledged, as far as the server shows it.
    async fn standbys(&self, line: &Line, findings: &mut Findings) -> Result<(), Stop> {
        let text = self.ask(line, include_str!("../sql/standbys.sql")).await?;
        let seen: Standbys = serde_json::from_str(&text)
            .map_err(|error| Stop::Line(LineError::Unreadable(error.to_string())))?;
        match seen.danger() {
            None if seen.names.is_empty() => {
                findings.good("failover", "no standby: epochs and debts cannot be lost");
            }
            None => findings.good("failover", "every connected standby acknowledges commits"),
            Some(danger) => findings.warn("failover", danger),
        }
        Ok(())
    }

    /// A prepared transaction that holds a fence holds up the next leader until it is ended.
    async fn prepared(&self, line: &Line, findings: &mut Findings) -> Result<(), Stop> {
        let sql = "select string_agg(distinct quote_literal(gid), ', ') \
                   from tenure.prepared_fences()";
        let names = self.ask(line, sql).await?;
        if !names.is_empty() {
            findings.warn(
                "prepared",
                format!(
                    "prepared transactions hold fences, and no claim of those roles can succeed \
                     before they end; run `rollback prepared` or `commit prepared` with {names}"
                ),
            );
        }
        Ok(())
    }

    async fn signals(&self, line: &Line, findings: &mut Findings) -> Result<(), Stop> {
        let sql = "select pg_has_role('pg_signal_backend', 'member')";
        if self.ask(line, sql).await? == "t" {
            findings.good(BLOCKERS, "sessions that hold up a claim can be ended");
        } else {
            findings.warn(
                BLOCKERS,
                "only this login role's own sessions can be ended when they hold up a claim; \
                 grant pg_signal_backend if others fence their writes",
            );
        }
        Ok(())
    }
}

/// Ends a look: a refusal is an answer, a broken session is not.
fn finish(end: Result<(), Stop>, findings: &mut Findings) -> Result<Option<Findings>, TenureError> {
    match end {
        Ok(()) => Ok(None),
        Err(Stop::Refused) => Ok(Some(std::mem::take(findings))),
        Err(Stop::Line(error)) => Err(TenureError::session(error)),
    }
}

/// Three names, and how many more there are: a sentence has no room for thirty.
fn first_few(names: &[String]) -> String {
    let shown = names.iter().take(3).map(String::as_str).collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(3) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// Judges what `version()` says.
fn judge_version(version: &str) -> Option<Refused> {
    if version.starts_with("PostgreSQL ")
        && !version.contains("YugabyteDB")
        && !version.contains("-YB-")
    {
        return None;
    }
    let product = version.split(' ').next().unwrap_or_default();
    let product = if version.contains("-YB-") { "YugabyteDB" } else { product };
    Some(Refused::NotPostgres { product: product.to_owned() })
}

/// The one assumption that lies on this machine and not on the server.
fn clock_finding(findings: &mut Findings, source: &str) {
    match source.trim() {
        "kvm-clock" => findings.warn(
            "clock",
            "the clock may stand still while this virtual machine is paused; do not pause or \
             migrate it live while it leads, or use the fence for every effect",
        ),
        source => findings.good("clock", format!("{source}, counts suspend")),
    }
}

fn clock_source() -> Option<String> {
    std::fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource").ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cockroachdb_is_refused_by_its_own_answer() {
        let version = "CockroachDB CCL v23.1.11 (x86_64-pc-linux-gnu, built 2023/09/27, go1.19.10)";
        let refused = judge_version(version).expect("refused");
        assert!(refused.to_string().contains("CockroachDB is not PostgreSQL"), "{refused}");
    }

    #[test]
    fn a_clock_that_may_stand_still_is_warned_of() {
        for (source, verdict) in [("kvm-clock\n", Verdict::Warning), ("tsc\n", Verdict::Good)] {
            let mut findings = Findings::default();
            clock_finding(&mut findings, source);
            assert!(findings.all.iter().all(|finding| finding.verdict == verdict), "{source}");
            assert_eq!(findings.all.len(), 1);
        }
    }

    #[test]
    fn postgresql_is_taken_as_such() {
        assert!(judge_version("PostgreSQL 15.18 (Debian 15.18-0+deb12u1) on x86_64").is_none());
        assert!(judge_version("PostgreSQL 11.2-YB-2.18.0.0-b0 on x86_64").is_some());
    }
}
