//! `tenure acquire`: leads once, or says that another member does.

use std::time::Duration;

use tenure::config::Config;
use tenure::operate::Operator;
use tenure::{LockState, NotAcquired, Notice, RoleName, TenureError};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use crate::args::{Acquire, Behaviour, Hooks, Output};
use crate::candidacy::Candidacy;
use crate::exit::{Exit, Failure};
use crate::output::{err, out};
use crate::setting::{EMBEDDED, NOT_ENABLED, Setting};
use crate::signals::Signals;
use crate::supervisor::{Course, Ended};
use crate::table::span;

/// How often the database's health is looked at: nothing may ever come of an attempt.
const LOOK: Duration = Duration::from_millis(100);
/// A claim that takes longer waits for a lease to end; that is worth a line.
const PATIENCE: Duration = Duration::from_millis(500);

pub(crate) async fn acquire(args: Acquire) -> Result<Exit, Failure> {
    let begun = Instant::now();
    let mut signals = Signals::listen()?;
    let Acquire { database, role, taking, .. } = &args;
    let setting = Setting::new(database, role, taking, &Behaviour::default(), false)?;
    let role = setting.only_role(role)?;
    if !setting.config.is_enabled() {
        return Err(Failure::usage(NOT_ENABLED));
    }
    if setting.embedded {
        err!("{EMBEDDED}");
    }
    let hooks = Hooks::default();
    let wait = args.wait.or(setting.config.acquire_timeout()).unwrap_or_default();
    let mut candidacy = tokio::select! {
        candidacy = Candidacy::join(&setting, &role, &hooks, Output::Quiet, true) => candidacy?,
        number = signals.number() => return Ok(Exit::Signal(number)),
        // Nothing is held yet.
        silence = silence(&setting.config, wait) => return Err(silence),
    };
    let exit = attempt(&mut candidacy, &args, (begun, wait), &mut signals).await;
    candidacy.leave().await;
    exit
}

/// Ends after `wait` with the failure of a database that takes sessions and never answers. A short wait is for
/// another leader: the database itself is given a lease and its margin.
pub(crate) async fn silence(config: &Config, wait: Duration) -> Failure {
    let lease = config.lease();
    let within = wait.max(lease.lease() + lease.margin());
    sleep(within).await;
    let hosts = config.dsn().map_or(&[][..], |dsn| dsn.hosts());
    let hosts: Vec<String> = hosts.iter().map(ToString::to_string).collect();
    let message = format!(
        "no database answered at {} within {}; nothing was acquired; `tenure check` may say why",
        hosts.join(", "),
        span(within)
    );
    Failure::new(Exit::Unreachable, message)
}

async fn attempt(
    candidacy: &mut Candidacy,
    args: &Acquire,
    (begun, wait): (Instant, Duration),
    signals: &mut Signals,
) -> Result<Exit, Failure> {
    tokio::select! {
        won = win(candidacy, begun, wait) => won?,
        number = signals.number() => return Ok(Exit::Signal(number)),
    }
    if args.command.is_empty() {
        let role = candidacy.lock.role();
        let epoch = candidacy.lock.gate().epoch().and_then(|epoch| candidacy.fencing(epoch));
        let under = epoch.map(|epoch| format!(" epoch {epoch}")).unwrap_or_default();
        out!("acquired {role}{under}, releasing it");
        return Ok(Exit::Clean);
    }
    match candidacy.child(&args.command, signals).await? {
        Some(Course { ended: Ended::Exited(code) | Ended::NotStarted(code), .. }) => {
            Ok(Exit::Child(code))
        }
        // A script takes 0 for "it was done": an interrupted command never says that.
        Some(Course { ended: Ended::Stopped { answer }, signal: Some(number) }) => {
            Ok(match answer {
                Some(code @ 1..) => Exit::Child(code),
                Some(0) | None => Exit::Signal(number),
            })
        }
        Some(Course { ended: Ended::Stopped { .. }, signal: None }) | None => Err(Failure::new(
            Exit::Lost,
            "leadership was lost while the command ran, and it was ended; run it again",
        )),
    }
}

/// Returns once the gate is open. `wait` bounds the wait for another leader, and for a database that comes
/// back: at least one attempt is answered, and a lock that was won is kept although what is left of the
/// last leader's lease must be waited out first.
async fn win(candidacy: &mut Candidacy, begun: Instant, wait: Duration) -> Result<(), Failure> {
    let until = begun + wait;
    let lease = *candidacy.config().lease();
    // An attempt may be held up by another transaction and never be answered.
    let unanswered = until.max(Instant::now()) + lease.lease() + lease.margin();
    let mut changes = candidacy.lock.changes();
    let mut refused: Option<String> = None;
    let mut trouble: Option<String> = None;
    let mut claiming = Claiming::default();
    loop {
        if candidacy.lock.is_leader() {
            return Ok(());
        }
        let state = candidacy.lock.state();
        claiming.look(state, candidacy);
        if Instant::now() >= until {
            if let Some(away) = unreachable(candidacy).await? {
                return Err(away);
            }
            if let Some(why) = refused.as_ref().filter(|_| state != LockState::Acquiring) {
                return Err(not_won(candidacy, why, wait));
            }
        }
        if Instant::now() >= unanswered && state != LockState::Acquiring {
            return Err(not_won(candidacy, "no attempt was answered", wait));
        }
        // All branches are cancel-safe; the last one only wakes us.
        tokio::select! {
            _ = changes.changed() => {}
            event = candidacy.notices.recv() => match event.map(|event| event.notice) {
                // What the database said comes before the news that the claim failed.
                Ok(Notice::Error(error)) => trouble = Some(error),
                Ok(Notice::AcquireFailed { why: why @ NotAcquired::Failed }) => {
                    refused = Some(match trouble.take() {
                        Some(error) => format!("{why}: {error}"),
                        None => why.to_string(),
                    });
                }
                Ok(Notice::AcquireFailed { why }) => refused = Some(why.to_string()),
                Ok(Notice::Lost { reason, .. }) => refused = Some(reason.to_string()),
                Ok(Notice::Stopped) => {
                    if let Some(refusal) = candidacy.lock.refusal() {
                        return Err(refusal.into());
                    }
                    // A role that leads once stops when its session is lost, also before it was won.
                    if Instant::now() < until {
                        // Past the wait the answer does not matter any more.
                        timeout_at(until, candidacy.lock.start()).await.unwrap_or(Ok(()))?;
                        continue;
                    }
                    if let Some(away) = unreachable(candidacy).await? {
                        return Err(away);
                    }
                    let why = refused.unwrap_or_else(|| "the session was lost".to_owned());
                    return Err(not_won(candidacy, &why, wait));
                }
                Ok(
                    Notice::StateChange { .. }
                    | Notice::Acquired { .. }
                    | Notice::Released { .. }
                    | Notice::Late { .. }
                    | Notice::Well { .. }
                    | Notice::Recovered { .. },
                ) => {}
                // Missed events: the repair is to look again.
                Err(_) => {}
            },
            () = sleep(LOOK) => {}
            () = sleep_until(until), if Instant::now() < until => {}
        }
    }
}

/// The failure of a database that cannot be asked now, with its last trouble.
async fn unreachable(candidacy: &Candidacy) -> Result<Option<Failure>, Failure> {
    let why = candidacy.trouble().await?.filter(|why| !why.is_empty());
    Ok(why.map(|why| Failure::new(Exit::Unreachable, format!("{why}; nothing was acquired"))))
}

fn not_won(candidacy: &Candidacy, why: &str, wait: Duration) -> Failure {
    let role = candidacy.lock.role();
    Failure::failed(if wait.is_zero() {
        format!("role {role} was not acquired: {why}; --wait 30s waits for it")
    } else {
        format!("role {role} was not acquired within {}: {why}; wait longer", span(wait))
    })
}

/// A claim under way, to say once why it takes so long.
#[derive(Debug, Default)]
struct Claiming {
    since: Option<Instant>,
    says: Option<JoinHandle<()>>,
}

/// What was not said before the end of the wait is not worth a line any more.
impl Drop for Claiming {
    fn drop(&mut self) {
        if let Some(says) = &self.says {
            says.abort();
        }
    }
}

impl Claiming {
    fn look(&mut self, state: LockState, candidacy: &Candidacy) {
        if state != LockState::Acquiring {
            self.since = None;
            return;
        }
        let since = *self.since.get_or_insert_with(Instant::now);
        if self.says.is_some() || since.elapsed() < PATIENCE {
            return;
        }
        let (config, role) = (candidacy.config().clone(), candidacy.lock.role().clone());
        self.says = Some(tokio::spawn(say_why(config, role)));
    }
}

/// Says what a claim waits for. The lease that is waited out is the former leader's, which may be longer than
/// our own: the database is asked for it, in a session of its own, because the claim must not wait for that.
async fn say_why(config: Config, role: RoleName) {
    let lease = config.lease();
    if config.is_lock_only() {
        let rest = span(lease.lease() + lease.margin());
        err!("{role}: without tables every start waits out a lease, up to {rest}");
        return;
    }
    let known = async {
        let operator = Operator::connect(&config).await?;
        let roles = operator.status(Some(&role)).await?;
        operator.close().await;
        Ok::<_, TenureError>(roles.first().map(|status| status.lease.max(lease.lease())))
    };
    let rest = match known.await {
        Ok(Some(longest)) => format!("up to {}", span(longest + lease.margin_for(longest))),
        Ok(None) | Err(_) => "for as long as it may last".to_owned(),
    };
    err!("{role}: a former leader may not have released it; its lease is waited out, {rest}");
}
