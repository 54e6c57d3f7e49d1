//! The seat: a member's one session that holds its locks, its heartbeat and its LISTEN.
//!
//! Every statement here is one simple-query message and one implicit transaction, so that the
//! server's idle timer, which is the server's half of the lease, runs whenever the seat is silent.
//! Every function it calls first proves that it runs on the seat of record and advances the
//! member's beat: each successful answer is a heartbeat sent at the time its question was sent.

use std::time::Duration;

use serde::Deserialize;
use tenure_core::epoch::Epoch;
use tenure_core::identity::Identity;
use tenure_core::key::{LockKey, RoleName};
use tenure_core::lease::Lease;
use tenure_core::protocol::{
    Beaten, Claim, Claimed, Debt, Done, MarkedActing, Op, RegisterRefusal, Registered, Seated, Won,
    member_key, millis,
};
use tokio::sync::mpsc;

use crate::connect::Session;
use crate::connect::dsn::Host;
use crate::line::{Line, LineError, Unasked};
use crate::sql::{identifier, json, literal, settings};

/// An empty text. Where standbys must acknowledge commits, a message is written into the log on the way, so
/// that the commit of the statement waits for them: a deposed primary that still runs cannot keep a leader.
/// Without tables, every statement that renews the lease has it in it; the engine knows which ones renew.
const ACKNOWLEDGED: &str = "case when current_setting('synchronous_standby_names') = '' then '' \
     else left(pg_logical_emit_message(true, 'tenure', 'beat')::text, 0) end";

/// The member as its sessions know it.
#[derive(Debug, Clone)]
pub(crate) struct Profile {
    pub(crate) identity: Identity,
    pub(crate) host: String,
    pub(crate) pid: u32,
    pub(crate) lease: Lease,
    pub(crate) grace: Duration,
    pub(crate) channel: String,
    pub(crate) lock_only: bool,
    /// How many roles it was configured with.
    pub(crate) roles: usize,
}

/// The session itself.
pub(crate) struct Seat {
    line: Line,
    host: Host,
    profile: Profile,
    deadline: Duration,
}

impl Seat {
    /// Takes a seat on a fresh session: pins its settings, listens, joins.
    pub(crate) async fn take(
        session: Session,
        heard: mpsc::UnboundedSender<Unasked>,
        profile: Profile,
        seat_token: &str,
    ) -> Result<(Self, Seated), LineError> {
        let host = session.host.clone();
        /// What `tenure.take_seat` answers.
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Answer {
            Seated(Seated),
            /// Our own old backend has not ended yet.
            Busy {
                #[allow(dead_code, reason = "it tells the answers apart")]
                busy: bool,
            },
        }
        let line = Line::new(session, heard);
        let lease = &profile.lease;
        let deadline = lease.statement_deadline();
        let idle = lease.idle_session_timeout();
        line.ask(&settings(idle, deadline, lease.heartbeat()), deadline).await?;
        line.ask(&format!("listen {}", identifier(&profile.channel)), deadline).await?;
        let take = if profile.lock_only {
            format!(
                "select jsonb_build_object('backend_pid', pg_backend_pid(), \
                 'seat', set_config('tenure.seat', {}, false))",
                literal(seat_token)
            )
        } else {
            let member = serde_json::json!({
                "identity": profile.identity, "host": profile.host, "pid": profile.pid,
                "seat": seat_token, "key": member_key(profile.identity.as_str()),
                "lease_ms": millis(lease.lease()), "grace_ms": millis(profile.grace),
                "lock_ms": millis(deadline / 2),
            });
            format!("select tenure.take_seat({})", json(&member))
        };
        // The first statement of its kind on this session: it is given more time than the others, and
        // no gate of ours is open meanwhile.
        let seated = match answer(&line, &take, deadline * 3).await? {
            Answer::Seated(seated) => seated,
            Answer::Busy { .. } => {
                let message = "another session still holds this member's seat".to_owned();
                return Err(LineError::Refused { sqlstate: "55P03".to_owned(), message });
            }
        };
        Ok((Seat { line, host, profile, deadline }, seated))
    }

    /// The server that it is on.
    pub(crate) fn host(&self) -> &Host {
        &self.host
    }

    /// Carries one operation out. After any error the outcome is unknown: the caller drops the seat.
    pub(crate) async fn run(&self, op: &Op) -> Result<Done, LineError> {
        if self.profile.lock_only {
            return self.run_lock_only(op).await;
        }
        let me = literal(self.profile.identity.as_str());
        Ok(match op {
            Op::Register(rows) => {
                Done::Registered(self.ask(&format!("tenure.register({me}, {})", json(rows))).await?)
            }
            Op::Claim { rows, row_wait } => {
                #[derive(Deserialize)]
                struct Claims {
                    roles: Vec<Claimed>,
                }
                let wait = millis(*row_wait).max(1);
                // The rest of the deadline is for the way there and back, and the commit.
                let all = millis(self.deadline / 2).max(1);
                let sql = format!("tenure.claim({me}, {}, {wait}, {all})", json(rows));
                Done::Claimed(self.ask::<Claims>(&sql).await?.roles)
            }
            Op::MarkActing(rows) => Done::MarkedActing(
                self.ask(&format!("tenure.mark_acting({me}, {})", json(rows))).await?,
            ),
            Op::Beat => Done::Beaten(self.ask(&format!("tenure.beat({me})")).await?),
            Op::Inspect(rows) => {
                #[derive(Deserialize)]
                struct Gone {
                    gone: Vec<RoleName>,
                }
                let sql = format!("tenure.inspect({me}, {})", json(rows));
                Done::Inspected(self.ask::<Gone>(&sql).await?.gone)
            }
            Op::Release(rows) => {
                let write = format!("select tenure.release({me}, {})", json(rows));
                let unlock = format!(
                    "select tenure.unlock({}, {})",
                    json(rows),
                    literal(&self.profile.channel)
                );
                // Pipelined: the row first, then unlock and notify in a transaction that writes
                // nothing. Should the first fail, the lock goes all the same, and the successor
                // finds a debt and waits.
                let (written, gone) = tokio::join!(
                    self.line.ask(&write, self.deadline),
                    self.line.ask(&unlock, self.deadline)
                );
                written?;
                #[derive(Deserialize)]
                struct LetGo {
                    not_held: Vec<String>,
                }
                let gone: LetGo = parse(gone?)?;
                if !gone.not_held.is_empty() {
                    return Err(LineError::Unreadable(format!(
                        "the lock of {} was not held when it was released",
                        gone.not_held.join(", ")
                    )));
                }
                Done::Released
            }
            Op::LeaveSeat => {
                self.ask::<serde_json::Value>(&format!("tenure.leave_seat({me})")).await?;
                Done::LeftSeat
            }
        })
    }

    /// Without tables: the locks themselves, and a proof that the session is the one it was.
    async fn run_lock_only(&self, op: &Op) -> Result<Done, LineError> {
        let all = |keys: Vec<(RoleName, String)>| {
            let parts: Vec<String> = keys
                .into_iter()
                .map(|(role, call)| {
                    format!("jsonb_build_array({}, {call})", literal(role.as_str()))
                })
                .collect();
            format!("select jsonb_build_array({})", parts.join(", "))
        };
        Ok(match op {
            Op::Register(rows) => {
                let known = self.keys_with_tables(rows.iter().map(|row| row.key)).await?;
                Done::Registered(
                    rows.iter()
                        .filter(|row| !row.withdraw)
                        .map(|row| Registered {
                            role: row.role.clone(),
                            refused: known.refusal(row.key),
                        })
                        .collect(),
                )
            }
            Op::Claim { rows, .. } => {
                // Members with tables may have come since: then the registration is told again, and
                // refused.
                let known = self.keys_with_tables(rows.iter().map(|row| row.key)).await?;
                let (unfit, rows): (Vec<_>, Vec<_>) =
                    rows.iter().partition(|row| known.refusal(row.key).is_some());
                let unfit: Vec<Claimed> = unfit
                    .into_iter()
                    .map(|row| Claimed { role: row.role.clone(), claim: Claim::Unknown })
                    .collect();
                if rows.is_empty() {
                    return Ok(Done::Claimed(unfit));
                }
                let sql = all(rows
                    .iter()
                    .map(|row| (row.role.clone(), lock_call("pg_try_advisory_lock", row.key)))
                    .collect());
                let won: Vec<(RoleName, bool)> = answer(&self.line, &sql, self.deadline).await?;
                Done::Claimed(
                    won.into_iter()
                        .zip(rows)
                        .map(|((role, won), row)| {
                            let claim = if won {
                                // A local count: it orders this process's own terms and no others.
                                let epoch = Epoch(row.seen.get() + 1);
                                let debt = Some(Debt::default());
                                Claim::Won(Won { epoch, holder: None, debt })
                            } else {
                                Claim::Held { epoch: None, holder: None, held_by_us: None }
                            };
                            Claimed { role, claim }
                        })
                        .chain(unfit)
                        .collect(),
                )
            }
            Op::MarkActing(rows) => {
                self.ping().await?;
                let marked = rows.iter().map(|row| row.role.clone()).collect();
                Done::MarkedActing(MarkedActing { marked, blocked: Vec::new() })
            }
            Op::Beat => {
                self.ping().await?;
                Done::Beaten(Beaten { revoked: 0, held: None, others: None, orders: None })
            }
            Op::Inspect(rows) => {
                let sql = all(rows.iter().map(|row| (row.role.clone(), holds(row.key))).collect());
                // It renews the lease as a beat does, so its commit waits as a beat's does.
                let sql = format!("select case when {ACKNOWLEDGED} = '' then ({sql}) end");
                let held: Vec<(RoleName, bool)> = answer(&self.line, &sql, self.deadline).await?;
                Done::Inspected(
                    held.into_iter().filter(|(_, ours)| !ours).map(|(role, _)| role).collect(),
                )
            }
            Op::Release(rows) => {
                let channel = literal(&self.profile.channel);
                let mut sql = all(rows
                    .iter()
                    .map(|row| {
                        (row.term.role.clone(), lock_call("pg_advisory_unlock", row.term.key))
                    })
                    .collect());
                for row in rows {
                    sql.push_str(&format!(
                        "; select pg_notify({channel}, {})",
                        literal(row.term.role.as_str())
                    ));
                }
                self.line.ask(&sql, self.deadline).await?;
                Done::Released
            }
            Op::LeaveSeat => Done::LeftSeat,
        })
    }

    /// Those of the lock keys that members with tables know.
    async fn keys_with_tables(
        &self,
        keys: impl Iterator<Item = LockKey>,
    ) -> Result<KeysWithTables, LineError> {
        let readable = "select case when not exists (select from pg_class c \
                 join pg_namespace n on n.oid = c.relnamespace \
                 where n.nspname = 'tenure' and c.relname = 'role') then 'absent' \
             when not has_schema_privilege('tenure', 'usage') then 'unreadable' \
             when not has_table_privilege('tenure.role', 'select') then 'unreadable' \
             else 'readable' end";
        match self.line.ask(readable, self.deadline).await?.as_deref() {
            Some("readable") => {}
            Some("absent") => return Ok(KeysWithTables::Known(Vec::new())),
            // What is not known is not a no.
            Some(_) | None => return Ok(KeysWithTables::Unreadable),
        }
        let sql = format!(
            "select coalesce(jsonb_agg(x), '[]') from jsonb_array_elements({}) x join tenure.role r \
             on r.key = (x->>'key')::bigint and r.pair = (x->>'pair')::boolean",
            json(&keys.collect::<Vec<_>>())
        );
        Ok(KeysWithTables::Known(answer(&self.line, &sql, self.deadline).await?))
    }

    /// The beat without tables.
    async fn ping(&self) -> Result<(), LineError> {
        let sql = format!(
            "select to_jsonb(coalesce(current_setting('tenure.seat', true), '') || {ACKNOWLEDGED})"
        );
        let token: String = answer(&self.line, &sql, self.deadline).await?;
        if token.is_empty() {
            return Err(LineError::Unreadable("this session is not the seat".to_owned()));
        }
        Ok(())
    }

    async fn ask<T: serde::de::DeserializeOwned>(&self, call: &str) -> Result<T, LineError> {
        answer(&self.line, &format!("select {call}"), self.deadline).await
    }

    /// Closes the session in good order.
    pub(crate) async fn close(self) {
        let deadline = self.deadline;
        self.line.hang_up(deadline).await;
    }
}

/// Which lock keys members with tables use, as a member without tables sees it.
enum KeysWithTables {
    Known(Vec<LockKey>),
    /// There are tables, and this login role may not read them.
    Unreadable,
}

impl KeysWithTables {
    fn refusal(&self, key: LockKey) -> Option<RegisterRefusal> {
        match self {
            KeysWithTables::Known(keys) => keys.contains(&key).then_some(RegisterRefusal::Tables),
            KeysWithTables::Unreadable => Some(RegisterRefusal::Unreadable),
        }
    }
}

async fn answer<T: serde::de::DeserializeOwned>(
    line: &Line,
    sql: &str,
    within: Duration,
) -> Result<T, LineError> {
    parse(line.ask(sql, within).await?)
}

pub(crate) fn parse<T: serde::de::DeserializeOwned>(text: Option<String>) -> Result<T, LineError> {
    let text = text.ok_or_else(|| LineError::Unreadable("nothing".to_owned()))?;
    serde_json::from_str(&text).map_err(|error| LineError::Unreadable(error.to_string()))
}

fn lock_call(function: &str, key: LockKey) -> String {
    format!("{function}({})", key.args())
}

fn holds(key: LockKey) -> String {
    let (class, object, kind) = key.pg_locks_columns();
    format!(
        "exists (select from pg_locks where locktype = 'advisory' and pid = pg_backend_pid() \
         and granted and classid = {class} and objid = {object} and objsubid = {kind})"
    )
}
