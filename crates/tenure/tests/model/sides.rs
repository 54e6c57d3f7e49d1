//! Both sides of the comparison: a model, and a database whose clock and incarnation a test sets.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tenure::Member;
use tenure::config::{Config, RoleSpec};
use tenure_core::clock::Tick;
use tenure_core::key::{LockKey, RoleName};
use tenure_core::model::{Lineage, MemberSpec, Model, SessionId};
use tenure_core::protocol::member_key;
use tenure_testkit::Database;
use tokio_postgres::{Client, SimpleQueryMessage};

/// The members that walk, each with a session of its own, and their leases in milliseconds.
pub(crate) const MEMBERS: [(&str, u64); 4] = [("a", 1000), ("b", 2000), ("c", 2000), ("d", 4000)];

/// The clock and the incarnation are the test's; functions find this schema before `pg_catalog`.
const STAGE: &str = "
    create schema test;
    create table test.boot (incarnation text);
    insert into test.boot values ('');
    create function test.clock_timestamp() returns timestamptz language sql volatile as
        $$ select timestamptz 'epoch' + current_setting('test.now')::bigint * interval '1 ms' $$;
    create function test.ms(timestamptz) returns bigint language sql immutable as
        $$ select (extract(epoch from $1) * 1000)::bigint $$;
    create or replace function tenure.incarnation() returns text language sql volatile as
        $$ select incarnation from test.boot $$;
    alter table tenure.member alter seen_at set default test.clock_timestamp();
    update tenure.origin set lineage = 'server.0/1';";

/// Functions that pin their search_path find the stage all the same.
const UNPIN: &str = "do $$ declare f regprocedure; begin
        for f in select oid from pg_proc where pronamespace = 'tenure'::regnamespace
                 and proconfig::text like '%search_path%' loop
            execute format('alter function %s set search_path = test, pg_catalog', f);
        end loop;
    end $$;";

const CLEAR: &str = "delete from tenure.role; delete from tenure.term; delete from tenure.candidate; \
                     delete from tenure.member; delete from tenure.event;";

/// Everything that an answer may depend on.
const DUMP: &str = "select jsonb_build_object(
    'members', (select jsonb_object_agg(identity, jsonb_build_array(beat, revoked, lease_ms,
            grace_ms, incarnation, test.ms(seen_at), test.ms(left_at))) from tenure.member),
    'roles', (select jsonb_object_agg(name, jsonb_build_array(key, pair, policy, lease_ms, epoch,
            lineage, holder, held_in, last_holder, debtor, debtor_lease_ms, acted_in, paid_in,
            successor, test.ms(successor_until), paused, order_id, order_to, waited_for, waited_ms))
        from tenure.role),
    'terms', (select jsonb_object_agg(role, epoch)
        from (select role, max(epoch) as epoch from tenure.term group by role) t),
    'candidates', (select jsonb_object_agg(role || ' ' || member,
            jsonb_build_array(priority, ready, observer)) from tenure.candidate))";

pub(crate) struct Sides {
    pub(crate) model: Model,
    /// Milliseconds, on both sides.
    pub(crate) now: u64,
    /// The members' sessions in the model, live or not.
    pub(crate) sessions: BTreeMap<String, SessionId>,
    clients: BTreeMap<String, Client>,
    admin: Client,
    operator: Client,
    _database: Database,
}

impl Sides {
    pub(crate) async fn new() -> Self {
        let database = tenure_testkit::database().await;
        // A member brings the schema.
        let config = Config::builder().dsn(database.dsn()).role(RoleSpec::named("r"));
        let member = Member::start(config.build().expect("a good configuration"));
        member.await.expect("a member").shutdown(None).await.expect("it leaves");
        let admin = database.client().await.expect("a session");
        admin.batch_execute(STAGE).await.expect("the stage");
        admin.batch_execute(UNPIN).await.expect("the functions are on the stage");
        let mut clients = BTreeMap::new();
        for (member, _) in MEMBERS {
            clients.insert(member.to_owned(), database.client().await.expect("a session"));
        }
        let operator = database.client().await.expect("a session");
        for client in clients.values().chain([&admin, &operator]) {
            client.batch_execute("set search_path = test, pg_catalog").await.expect("it is set");
        }
        let (model, sessions) = (Model::default(), BTreeMap::new());
        Sides { model, now: 0, sessions, clients, admin, operator, _database: database }
    }

    /// Both sides as they were at the beginning.
    pub(crate) async fn clear(&mut self) {
        self.model = Model::default();
        self.now = 1_000_000;
        self.sessions.clear();
        self.admin.batch_execute(CLEAR).await.expect("the tables are cleared");
        self.new_incarnation().await;
    }

    pub(crate) fn tick(&self) -> Tick {
        Tick::from_nanos(self.now * 1_000_000)
    }

    /// The key under which the database says that a member lives.
    pub(crate) fn key(member: &str) -> i64 {
        member_key(member)
    }

    // --- sessions ---

    pub(crate) async fn take_seat(&mut self, member: &str, lease_ms: u64) -> Result<(), String> {
        self.end(member).await;
        let spec = MemberSpec { identity: member.to_owned(), lease_ms, grace_ms: lease_ms / 2 };
        let (session, seated) = self.model.take_seat(&spec, self.tick());
        self.sessions.insert(member.to_owned(), session);
        let seat = json!({"identity": member, "host": "h", "pid": 1, "seat": "s", "lock_ms": 1000,
            "key": Self::key(member), "lease_ms": lease_ms, "grace_ms": lease_ms / 2});
        let answer = self.ask(member, &format!("tenure.take_seat('{seat}')")).await?;
        same("revoked", &json!(seated.revoked), &answer["revoked"])
    }

    /// A session ends, as far as the database can tell: its locks are gone, and it is no seat.
    pub(crate) async fn end(&mut self, member: &str) {
        if let Some(session) = self.sessions.get(member) {
            self.model.end(*session);
        }
        let end = "select pg_advisory_unlock_all(), set_config('tenure.seat', '', false)";
        self.clients[member].batch_execute(end).await.expect("locks are given back");
    }

    /// After the model's server has started anew: the same in the database.
    pub(crate) async fn new_incarnation(&mut self) {
        for (member, _) in MEMBERS {
            self.end(member).await;
        }
        let end = "select pg_advisory_unlock_all()";
        self.admin.batch_execute(end).await.expect("strangers' locks are given back");
        let incarnation = incarnation(&self.model.incarnation());
        let sql = format!("update test.boot set incarnation = '{incarnation}'");
        self.admin.batch_execute(&sql).await.expect("a new incarnation");
    }

    /// A session that is no member's takes a role's lock if it is free, or lets go of it.
    pub(crate) async fn stranger(&mut self, key: LockKey) -> Result<(), String> {
        let took = self.model.stranger_takes(key);
        let lock = format!("pg_try_advisory_lock({})", key.args());
        if took {
            return same("a stranger's lock", &json!(true), &self.order(&lock).await?);
        }
        // It may have it already, or a member has.
        self.model.stranger_leaves(key);
        let unlock = format!("pg_advisory_unlock({})", key.args());
        self.order(&unlock).await.map(drop)
    }

    // --- statements ---

    /// One function of the database, called by a member's session; an error is the database's.
    pub(crate) async fn ask(&self, member: &str, call: &str) -> Result<Value, String> {
        self.call(&self.clients[member], call).await
    }

    /// The same from a session that is no member's.
    pub(crate) async fn order(&self, call: &str) -> Result<Value, String> {
        self.call(&self.admin, call).await
    }

    /// The same from an operator's session, which holds no lock but those of the roles it settles.
    pub(crate) async fn operate(&self, call: &str) -> Result<Value, String> {
        self.call(&self.operator, call).await
    }

    async fn call(&self, client: &Client, call: &str) -> Result<Value, String> {
        let sql = format!(
            "select set_config('test.now', '{}', false); select to_jsonb({call})",
            self.now
        );
        match client.simple_query(&sql).await {
            Ok(messages) => Ok(last(messages)),
            Err(error) => Err(error.as_db_error().map_or(error.to_string(), |error| {
                format!("{}: {}", error.code().code(), error.message())
            })),
        }
    }

    // --- rows ---

    /// Writes the model's roles and candidates into the database; with `members` also those.
    pub(crate) async fn upload(&self, members: bool) {
        let tables = self.dump_model();
        let mut sql = "delete from tenure.role; delete from tenure.candidate; delete from tenure.term; \
            insert into tenure.role (name, key, pair, policy, lease_ms, epoch, lineage, holder, held_in, \
                last_holder, debtor, debtor_lease_ms, acted_in, paid_in, successor, successor_until, \
                paused, order_id, order_to, waited_for, waited_ms) \
            select k, (v->>0)::bigint, (v->>1)::boolean, v->>2, (v->>3)::int, (v->>4)::bigint, v->>5, \
                v->>6, v->>7, v->>8, v->>9, (v->>10)::int, v->>11, v->>12, v->>13, \
                timestamptz 'epoch' + (v->>14)::bigint * interval '1 ms', (v->>15)::boolean, \
                (v->>16)::bigint, v->>17, v->>18, (v->>19)::bigint from jsonb_each($1) as x(k, v); \
            insert into tenure.term (role, epoch, member) \
            select k, v::bigint, 'm' from jsonb_each($4) as x(k, v); \
            insert into tenure.candidate (role, member, priority, ready, observer) \
            select split_part(k, ' ', 1), split_part(k, ' ', 2), (v->>0)::int, (v->>1)::boolean, \
                (v->>2)::boolean from jsonb_each($2) as x(k, v);"
            .replace("$1", &literal(&tables["roles"]))
            .replace("$2", &literal(&tables["candidates"]))
            .replace("$4", &literal(&tables["terms"]));
        if members {
            sql += &"delete from tenure.member; \
                insert into tenure.member (identity, host, pid, backend_pid, backend_start, seat, key, \
                    beat, revoked, lease_ms, grace_ms, incarnation, seen_at, left_at) \
                select k, 'h', 1, 0, now(), '', 0, (v->>0)::bigint, (v->>1)::bigint, (v->>2)::int, \
                    (v->>3)::int, v->>4, timestamptz 'epoch' + (v->>5)::bigint * interval '1 ms', \
                    timestamptz 'epoch' + (v->>6)::bigint * interval '1 ms' \
                from jsonb_each($3) as x(k, v);"
                .replace("$3", &literal(&tables["members"]));
            for (member, _) in MEMBERS {
                let key = Self::key(member);
                sql +=
                    &format!("update tenure.member set key = {key} where identity = '{member}';");
            }
        }
        self.admin.batch_execute(&sql).await.expect("the rows are written");
    }

    /// Compares every row.
    pub(crate) async fn compare(&self) -> Result<(), String> {
        let database = last(self.admin.simple_query(DUMP).await.expect("the rows are read"));
        let model = self.dump_model();
        for table in ["members", "roles", "candidates", "terms"] {
            let rows = |side: &Value| side[table].as_object().cloned().unwrap_or_default();
            let (model, database) = (rows(&model), rows(&database));
            for name in model.keys().chain(database.keys()) {
                let row =
                    |side: &serde_json::Map<_, _>| side.get(name).cloned().unwrap_or_default();
                same(&format!("{table} {name}"), &row(&model), &row(&database))?;
            }
        }
        Ok(())
    }

    fn dump_model(&self) -> Value {
        let ms = |at: Tick| at.as_nanos() / 1_000_000;
        let within = |text: &Option<String>| text.as_deref().map(incarnation);
        let tables = &self.model.tables;
        let members: BTreeMap<&String, Value> = tables
            .members
            .iter()
            .map(|(name, m)| {
                let (seen, left) = (ms(m.seen_at), m.left_at.map(ms));
                let within = incarnation(&m.incarnation);
                (name, json!([m.beat, m.revoked, m.lease_ms, m.grace_ms, within, seen, left]))
            })
            .collect();
        let roles: BTreeMap<&str, Value> = tables
            .roles
            .iter()
            .map(|(name, r)| {
                let key = serde_json::to_value(r.key).expect("a key is JSON");
                let lineage = r.lineage.map_or(String::new(), lineage);
                let (successor, until) = r.successor.clone().unzip();
                let (order, to) = r.order.clone().unzip();
                let row = json!([
                    key["key"],
                    key["pair"],
                    r.policy,
                    r.lease_ms,
                    r.epoch,
                    lineage,
                    r.holder,
                    within(&r.held_in),
                    r.last_holder,
                    r.debtor,
                    r.debtor_lease_ms,
                    within(&r.acted_in),
                    within(&r.paid_in),
                    successor,
                    until.map(ms),
                    r.paused,
                    order,
                    to.flatten(),
                    r.waited_for.as_deref().map(waited_for),
                    r.waited_ms
                ]);
                (name.as_str(), row)
            })
            .collect();
        let candidates: BTreeMap<String, Value> = tables
            .candidates
            .iter()
            .map(|((role, member), c)| {
                (format!("{role} {member}"), json!([c.priority, c.ready, c.observer]))
            })
            .collect();
        let terms: BTreeMap<&str, i64> =
            tables.terms.iter().map(|(role, epoch)| (role.as_str(), epoch.get())).collect();
        json!({"members": members, "roles": roles, "candidates": candidates, "terms": terms})
    }

    // --- mistakes ---

    /// Plants a mistake in a function of the database; returns the function as it was.
    pub(crate) async fn patch(&self, function: &str, part: &str, instead: &str) -> String {
        let sql = format!("select pg_get_functiondef('tenure.{function}'::regproc)");
        let sound = text(self.admin.simple_query(&sql).await.expect("the function is known"));
        let sound = sound.expect("a definition");
        let written = written(function);
        assert!(written.contains(part), "tenure.{function} has no {part:?}: {written}");
        let patched = written.replace(part, instead);
        self.admin.batch_execute(&patched).await.expect("it is patched");
        self.admin.batch_execute(UNPIN).await.expect("the function is on the stage");
        sound
    }

    pub(crate) async fn restore(&self, sound: &str) {
        self.admin.batch_execute(sound).await.expect("it is restored");
    }
}

/// A function as its file has it: the server shows a body without quotes in its own words.
fn written(function: &str) -> String {
    let script = tenure::schema::script();
    let begin = script.find(&format!("create function tenure.{function}(")).expect("it is there");
    let rest = &script[begin..];
    let end = rest.find("\n\n").unwrap_or(rest.len());
    rest[..end].replacen("create function", "create or replace function", 1)
}

pub(crate) fn same(what: &str, model: &Value, database: &Value) -> Result<(), String> {
    if model == database {
        return Ok(());
    }
    Err(format!("{what}: the model says\n  {model}\nthe database says\n  {database}"))
}

pub(crate) fn role(name: &str) -> RoleName {
    RoleName::new(name).expect("a good name")
}

/// The roles that the members know, with keys of both forms.
pub(crate) fn key(number: i32) -> LockKey {
    if number % 3 == 2 { LockKey::Pair(-number, number) } else { LockKey::Big(number.into()) }
}

/// The model's incarnation as the database writes it.
fn incarnation(model: &str) -> String {
    let mut parts = model.splitn(3, '/');
    let mut number = || parts.next().and_then(|part| part.parse().ok()).expect("a number");
    let (copy, timeline) = (number(), number());
    let rest = parts.next().expect("the start and the mark");
    format!("{}/{rest}", lineage(Lineage { copy, timeline }))
}

/// The same at the end of what was waited for.
fn waited_for(model: &str) -> String {
    let (beat, within) = model.rsplit_once(' ').expect("an incarnation is at its end");
    format!("{beat} {}", incarnation(within))
}

fn lineage(model: Lineage) -> String {
    format!("server.{}/{}", model.copy, model.timeline + 1)
}

fn literal(value: &Value) -> String {
    format!("'{}'::jsonb", value.to_string().replace('\'', "''"))
}

fn last(messages: Vec<SimpleQueryMessage>) -> Value {
    let text = text(messages);
    text.map_or(Value::Null, |text| serde_json::from_str(&text).expect("an answer is JSON"))
}

fn text(messages: Vec<SimpleQueryMessage>) -> Option<String> {
    let rows = messages.into_iter().filter_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    });
    rows.last()
}
