//! One walk: random steps, taken on both sides.

use std::collections::BTreeSet;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use tenure_core::epoch::Epoch;
use tenure_core::key::{LockKey, RoleName};
use tenure_core::lease::TakeoverPolicy;
use tenure_core::model::{Candidate, Lineage, RoleRow, Tables, UNKNOWN};
use tenure_core::protocol::{
    Beaten, Claim, ClaimRow, Claimed, Done, MarkedActing, Op, RegisterRefusal, RegisterRow,
    Registered, ReleaseRow, TermRow, Won,
};

use crate::sides::{MEMBERS, Sides, key, role, same};

const ROLES: i32 = 12;
const STEPS: usize = 60;

struct Walk<'a> {
    sides: &'a mut Sides,
    random: StdRng,
    /// The locks that members hold, by what the answers said.
    held: BTreeSet<(String, LockKey)>,
    /// What the tables were, to be found again after a crash.
    past: Vec<Tables>,
    outcomes: BTreeSet<String>,
}

/// Takes the steps of one seed; the first difference is the error. Returns what the steps came to.
pub(crate) async fn walk(sides: &mut Sides, seed: u64) -> Result<BTreeSet<String>, String> {
    sides.clear().await;
    let random = StdRng::seed_from_u64(seed);
    let (held, past, outcomes) = (BTreeSet::new(), Vec::new(), BTreeSet::new());
    let mut walk = Walk { sides, random, held, past, outcomes };
    for (member, lease_ms) in MEMBERS {
        walk.sides.take_seat(member, lease_ms).await?;
        walk.register(member).await?;
    }
    for step in 0..STEPS {
        walk.past.push(walk.sides.model.tables.clone());
        let (member, lease_ms) = *MEMBERS.choose(&mut walk.random).expect("there are some");
        let taken = match walk.random.random_range(0..103) {
            0..8 => walk.take_seat(member, lease_ms).await,
            8..16 => walk.register(member).await,
            16..46 => walk.claim(member).await,
            46..56 => walk.mark_acting(member).await,
            56..62 => walk.beat(member).await,
            62..65 => walk.inspect(member).await,
            65..75 => walk.release(member).await,
            75..79 => walk.session_dies(member).await,
            79..82 => walk.record_death(member).await,
            82..84 => walk.leave_seat(member).await,
            84..86 => walk.operate(member).await,
            86..89 => walk.stranger(member).await,
            89..94 => walk.alter().await,
            94..98 => walk.wait(),
            98..100 => walk.start_anew().await,
            _ => walk.settle().await,
        };
        taken.map_err(|difference| format!("step {step}: {difference}"))?;
        let rows = walk.sides.compare().await;
        rows.map_err(|difference| format!("after step {step}: {difference}"))?;
    }
    Ok(walk.outcomes)
}

impl Walk<'_> {
    // --- chances ---

    fn chance(&mut self, percent: u32) -> bool {
        self.random.random_ratio(percent, 100)
    }

    fn any_member(&mut self) -> String {
        MEMBERS.choose(&mut self.random).expect("there are some").0.to_owned()
    }

    fn some_member(&mut self) -> Option<String> {
        let one = self.any_member();
        self.chance(60).then_some(one)
    }

    /// Some of the roles, in any order; often few, sometimes all.
    fn some_roles(&mut self) -> Vec<(RoleName, LockKey)> {
        let mut all: Vec<_> = (0..ROLES).map(|n| (role(&format!("r{n}")), key(n + 1))).collect();
        all.shuffle(&mut self.random);
        let few = self.random.random_range(1..4);
        let number = if self.chance(25) { all.len() } else { few };
        all.truncate(number);
        all
    }

    fn row(&self, name: &RoleName) -> Option<&RoleRow> {
        self.sides.model.tables.roles.get(name)
    }

    /// The role's epoch, mostly.
    fn epoch(&mut self, name: &RoleName) -> Epoch {
        let epoch = self.row(name).map_or(Epoch::ZERO, |row| row.epoch);
        if self.chance(15) { Epoch(epoch.0 + 1) } else { epoch }
    }

    // --- steps of a member ---

    async fn take_seat(&mut self, member: &str, lease_ms: u64) -> Result<(), String> {
        self.held.retain(|(holder, _)| holder != member);
        self.sides.take_seat(member, lease_ms).await
    }

    async fn register(&mut self, member: &str) -> Result<(), String> {
        let roles = self.some_roles();
        self.register_roles(member, roles).await
    }

    async fn register_roles(
        &mut self,
        member: &str,
        roles: Vec<(RoleName, LockKey)>,
    ) -> Result<(), String> {
        let mut rows = Vec::new();
        for (name, key) in roles {
            let number = name.as_str()[1..].parse::<i32>().expect("a role is named by number");
            let mut policy = match number % 4 {
                0 => TakeoverPolicy::Fenced,
                _ => TakeoverPolicy::Exclusive,
            };
            let mut row = (name, key);
            let is_known = self.row(&row.0).is_some();
            match self.random.random_range(0..12) {
                0 if is_known => row.1 = LockKey::Big(1000),
                1 if is_known => policy = TakeoverPolicy::Fenced,
                // Another name under the same key.
                2 if is_known => row.0 = role(&format!("x{number}")),
                _ => {}
            }
            rows.push(RegisterRow {
                role: row.0,
                key: row.1,
                policy,
                priority: self.random.random_range(0..3),
                ready: self.chance(80),
                observer: self.chance(10),
                withdraw: self.chance(5),
            });
        }
        let call = format!("tenure.register('{member}', {})", json_literal(&rows));
        let Some((done, answer)) = self.both(member, &Op::Register(rows), &call).await? else {
            return Ok(());
        };
        let Done::Registered(mut model) = done else { unreachable!("an answer to its question") };
        let mut database: Vec<Registered> = read(answer)?;
        model.sort_by(|a, b| a.role.cmp(&b.role));
        database.sort_by(|a, b| a.role.cmp(&b.role));
        for Registered { refused, .. } in &model {
            let outcome = match refused {
                None => continue,
                Some(RegisterRefusal::Collision { .. }) => "Collision",
                Some(RegisterRefusal::Key { .. }) => "Key",
                Some(RegisterRefusal::Policy { .. }) => "Policy",
                Some(RegisterRefusal::Locks { .. }) => "Locks",
                Some(RegisterRefusal::Tables) => "Tables",
                Some(RegisterRefusal::Unreadable) => "Unreadable",
                Some(RegisterRefusal::Blocked) => "Blocked",
                Some(_) => "another refusal",
            };
            self.outcomes.insert(outcome.to_owned());
        }
        equal("register", &model, &database)
    }

    async fn claim(&mut self, member: &str) -> Result<(), String> {
        let roles = self.some_roles();
        self.claim_roles(member, roles).await
    }

    async fn claim_roles(
        &mut self,
        member: &str,
        roles: Vec<(RoleName, LockKey)>,
    ) -> Result<(), String> {
        let mut rows = Vec::new();
        for (name, mut key) in roles {
            if self.held.contains(&(member.to_owned(), key)) {
                continue;
            }
            if self.chance(4) {
                key = LockKey::Big(2000 + rows.len() as i64);
            }
            let keep = self.chance(20).then(|| self.epoch(&name));
            let seen = if self.chance(20) { self.epoch(&name).0 + 3 } else { 0 };
            let insist = self.chance(40);
            rows.push(ClaimRow { role: name, key, seen: Epoch(seen), keep, insist });
        }
        let call = format!("tenure.claim('{member}', {}, 1000, 100000)", json_literal(&rows));
        let keys: Vec<_> = rows.iter().map(|row| (row.role.clone(), row.key)).collect();
        let op = Op::Claim { rows, row_wait: Duration::from_secs(1) };
        let Some((done, mut answer)) = self.both(member, &op, &call).await? else { return Ok(()) };
        let Done::Claimed(mut model) = done else { unreachable!("an answer to its question") };
        let mut database: Vec<Claimed> = read(answer["roles"].take())?;
        model.sort_by(|a, b| a.role.cmp(&b.role));
        database.sort_by(|a, b| a.role.cmp(&b.role));
        for Claimed { role, claim } in &model {
            let outcome = match claim {
                Claim::Won(Won { debt: None, .. }) => "Won at once".to_owned(),
                Claim::Won(Won { debt: Some(debt), .. }) if debt.debtor.is_none() => {
                    "Won with a debt of no member".to_owned()
                }
                Claim::Won(Won { debt: Some(debt), .. })
                    if debt.debtor.as_deref() == Some(UNKNOWN) =>
                {
                    "Won with a debt to a stranger".to_owned()
                }
                Claim::Won(Won { debt: Some(debt), .. }) if debt.waited > Duration::ZERO => {
                    "Won with a debt that was waited for".to_owned()
                }
                Claim::Won(_) => "Won with a debt".to_owned(),
                Claim::Kept { .. } => "Kept".to_owned(),
                Claim::Moved { .. } => "Moved".to_owned(),
                Claim::Held { .. } => "Held".to_owned(),
                Claim::Yield { to, .. } => format!("Yield {to:?}"),
                Claim::Paused { .. } => "Paused".to_owned(),
                Claim::Blocked { .. } => "Blocked".to_owned(),
                Claim::Unknown => "Unknown".to_owned(),
                Claim::Failed { .. } => "Failed".to_owned(),
            };
            self.outcomes.insert(outcome);
            if matches!(claim, Claim::Won(_) | Claim::Kept { .. }) {
                let (_, key) =
                    keys.iter().find(|(name, _)| name == role).expect("it was asked for");
                self.held.insert((member.to_owned(), *key));
            }
        }
        equal("claim", &model, &database)
    }

    fn terms(&mut self) -> Vec<TermRow> {
        let roles = self.some_roles();
        let terms = roles.into_iter().map(|(role, key)| {
            let epoch = self.epoch(&role);
            TermRow { role, epoch, key }
        });
        terms.collect()
    }

    async fn mark_acting(&mut self, member: &str) -> Result<(), String> {
        let rows = self.terms();
        let call = format!("tenure.mark_acting('{member}', {})", json_literal(&rows));
        let Some((done, answer)) = self.both(member, &Op::MarkActing(rows), &call).await? else {
            return Ok(());
        };
        let Done::MarkedActing(mut model) = done else { unreachable!("an answer to its question") };
        let mut database: MarkedActing = read(answer)?;
        model.marked.sort();
        database.marked.sort();
        equal("mark acting", &model, &database)
    }

    async fn beat(&mut self, member: &str) -> Result<(), String> {
        let call = format!("tenure.beat('{member}')");
        let Some((done, answer)) = self.both(member, &Op::Beat, &call).await? else {
            return Ok(());
        };
        let Done::Beaten(model) = done else { unreachable!("an answer to its question") };
        let plain = |beaten: Beaten| {
            let mut others = beaten.others.unwrap_or_default();
            others.sort_by(|a, b| a.0.cmp(&b.0));
            let mut orders = beaten.orders.unwrap_or_default();
            orders.sort_by(|a, b| a.role.cmp(&b.role));
            format!("{} {:?} {others:?} {orders:?}", beaten.revoked, beaten.held)
        };
        equal("beat", &plain(model), &plain(read(answer)?))
    }

    async fn inspect(&mut self, member: &str) -> Result<(), String> {
        let rows = self.terms();
        let call = format!("tenure.inspect('{member}', {})", json_literal(&rows));
        let Some((done, mut answer)) = self.both(member, &Op::Inspect(rows), &call).await? else {
            return Ok(());
        };
        let Done::Inspected(mut model) = done else { unreachable!("an answer to its question") };
        let mut database: Vec<RoleName> = read(answer["gone"].take())?;
        model.sort();
        database.sort();
        equal("inspect", &model, &database)
    }

    async fn release(&mut self, member: &str) -> Result<(), String> {
        let mut rows = Vec::new();
        for term in self.terms() {
            if !self.held.remove(&(member.to_owned(), term.key)) {
                continue;
            }
            let waited_ms = self.chance(50).then(|| self.random.random_range(0..2000));
            let (clean, to) = (self.chance(70), self.some_member());
            rows.push(ReleaseRow { term, clean, to, waited_ms });
        }
        let json = json_literal(&rows);
        let (now, session) = (self.sides.tick(), self.sides.sessions[member]);
        let released = self.sides.model.release(session, &rows, now);
        let answer = self.sides.ask(member, &format!("tenure.release('{member}', {json})")).await;
        self.both_fail("release", released.as_ref().err(), answer.as_ref().err())?;
        if !self.sides.model.is_alive(session) {
            return Ok(());
        }
        let released = self.sides.model.unlock(session, &rows).map(drop);
        let answer = self.sides.ask(member, &format!("tenure.unlock({json}, 'c')")).await?;
        same("unlock", &json!(released.is_ok()), &json!(answer["not_held"] == json!([])))
    }

    async fn leave_seat(&mut self, member: &str) -> Result<(), String> {
        let call = format!("tenure.leave_seat('{member}')");
        self.both(member, &Op::LeaveSeat, &call).await.map(drop)
    }

    // --- steps of the world ---

    async fn session_dies(&mut self, member: &str) -> Result<(), String> {
        self.held.retain(|(holder, _)| holder != member);
        self.sides.end(member).await;
        Ok(())
    }

    async fn record_death(&mut self, member: &str) -> Result<(), String> {
        let now = self.sides.tick();
        let model = self.sides.model.record_death(member, now);
        let call = format!("tenure.record_death('{member}', {})", Sides::key(member));
        same("record_death", &json!(model), &self.sides.order(&call).await?)
    }

    /// A session that is no member's takes a lock, a member may find it held, and the lock is free again.
    async fn stranger(&mut self, member: &str) -> Result<(), String> {
        let role = self.some_roles().remove(0);
        self.sides.stranger(role.1).await?;
        if self.chance(80) {
            self.claim_roles(member, vec![role.clone()]).await?;
            self.sides.stranger(role.1).await?;
            let other = self.any_member();
            self.claim_roles(&other, vec![role]).await?;
        }
        Ok(())
    }

    /// An operator pauses a role, orders a step-down, lowers a lease or deletes a role's row.
    async fn operate(&mut self, member: &str) -> Result<(), String> {
        let (name, _) = self.some_roles().remove(0);
        let Some(row) = self.sides.model.tables.roles.get_mut(&name) else { return Ok(()) };
        match self.random.random_range(0..5) {
            0 | 1 => {
                let paused = !row.paused;
                self.sides.model.set_paused(&name, paused);
                self.sides.order(&format!("tenure.set_paused('{name}', {paused}, 'x')")).await?;
            }
            2 => {
                row.order = Some((7, Some(member.to_owned())));
                self.sides.upload(false).await;
            }
            3 => {
                let row = self.sides.model.tables.roles.remove(&name).expect("just found");
                self.sides.upload(false).await;
                self.register_roles(member, vec![(name, row.key)]).await?;
            }
            _ => {
                // The model has no such order: it takes over what the database says.
                let answer =
                    self.sides.order(&format!("tenure.lower_lease('{name}', 'x')")).await?;
                if let Some(lease_ms) = answer["to_ms"].as_u64() {
                    let row = self.sides.model.tables.roles.get_mut(&name);
                    row.expect("just found").lease_ms = lease_ms;
                }
            }
        }
        Ok(())
    }

    /// An operator settles a role that no member takes part in, and lets it be as it was.
    async fn settle(&mut self) -> Result<(), String> {
        let (name, _) = self.some_roles().remove(0);
        let tables = &mut self.sides.model.tables;
        let Some(row) = tables.roles.get_mut(&name) else { return Ok(()) };
        let was_paused = std::mem::replace(&mut row.paused, true);
        tables.candidates.retain(|(of, _), _| *of != name);
        self.sides.upload(false).await;
        let model = self.sides.model.settle(&name);
        let answer = self.sides.operate(&format!("tenure.settle('{name}')")).await?;
        self.sides.operate(&format!("tenure.unsettle('{name}')")).await?;
        same("settle", &json!(model), &answer["wait_ms"])?;
        let outcome = match model {
            None => "Held against an operator",
            Some(0) => "Settled at once",
            Some(_) => "Settled after a wait",
        };
        self.outcomes.insert(outcome.to_owned());
        self.sides.model.tables.roles.get_mut(&name).expect("just found").paused = was_paused;
        self.sides.upload(false).await;
        Ok(())
    }

    /// A role and a candidacy get into a state that the steps may not lead to.
    async fn alter(&mut self) -> Result<(), String> {
        let (name, _) = self.some_roles().remove(0);
        let incarnations = ["0/0/7/7".to_owned(), self.sides.model.incarnation()];
        let here = self.sides.model.lineage();
        let until = self.sides.tick() + Duration::from_millis(self.random.random_range(0..3000));
        let [holder, debtor, last, successor] = [(); 4].map(|()| self.some_member());
        let [held, acted, paid] = [(); 3].map(|()| {
            let one = incarnations.choose(&mut self.random).expect("there are two").clone();
            self.random.random_ratio(4, 5).then_some(one)
        });
        let lineage = Lineage {
            copy: self.random.random_range(0..=here.copy),
            timeline: self.random.random_range(0..=here.timeline),
        };
        let candidate = Candidate {
            priority: self.random.random_range(0..3),
            ready: self.chance(70),
            observer: self.chance(10),
        };
        let (member, leaves_holder) = (self.any_member(), self.chance(60));
        let goes_back = self.chance(20);
        let waited_in = incarnations.choose(&mut self.random).expect("there are two").clone();
        let tables = &mut self.sides.model.tables;
        let Some(row) = tables.roles.get_mut(&name) else { return Ok(()) };
        if row.holder.is_some() && leaves_holder {
            // The holder owes the debt itself: from now, or from another incarnation.
            row.debtor.clone_from(&row.holder);
        } else {
            row.holder = holder;
            row.held_in = held;
            row.last_holder = last;
            row.debtor = debtor;
        }
        row.debtor_lease_ms = row.debtor.is_some().then_some(1500);
        row.acted_in = acted;
        row.paid_in = paid;
        row.successor = successor.map(|to| (to, until));
        if goes_back {
            row.epoch = Epoch(row.epoch.0 / 2);
        }
        let debtor = row.debtor.as_ref().and_then(|name| tables.members.get_key_value(name));
        row.waited_for = match debtor {
            Some((name, row)) => Some(format!("{name} {} {waited_in}", row.beat)),
            None => row.debtor.is_none().then(|| format!("- {waited_in}")),
        };
        row.waited_ms = 700;
        row.lineage = Some(lineage);
        tables.candidates.insert((name, member), candidate);
        self.sides.upload(false).await;
        Ok(())
    }

    fn wait(&mut self) -> Result<(), String> {
        self.sides.now += self.random.random_range(0..5000);
        Ok(())
    }

    /// A restart, a crash, a failover or a copy in the database's place, which may take commits back.
    async fn start_anew(&mut self) -> Result<(), String> {
        let last = self.past.len() - 1;
        let back = last - self.random.random_range(0..=last.min(6));
        let left = self.past[back].clone();
        let model = &mut self.sides.model;
        match self.random.random_range(0..5) {
            0 => model.restart(),
            1 => model.crash(left, self.random.random()),
            2 => model.replace_by_copy(left),
            _ => model.fail_over(left),
        }
        self.held.clear();
        self.sides.new_incarnation().await;
        self.sides.upload(true).await;
        Ok(())
    }

    // --- both sides ---

    /// One round trip on both sides; none: both refused it.
    async fn both(
        &mut self,
        member: &str,
        op: &Op,
        call: &str,
    ) -> Result<Option<(Done, Value)>, String> {
        let session = self.sides.sessions[member];
        let now = self.sides.tick();
        let model = self.sides.model.run(session, op, now);
        let database = self.sides.ask(member, call).await;
        self.both_fail(call, model.as_ref().err(), database.as_ref().err())?;
        Ok(model.ok().zip(database.ok()))
    }

    fn both_fail(
        &mut self,
        call: &str,
        model: Option<&String>,
        database: Option<&String>,
    ) -> Result<(), String> {
        if model.is_some() {
            self.outcomes.insert("not the seat".to_owned());
        }
        let is_proof = |error: &&String| error.starts_with("TN002");
        if model.is_some() == database.is_some() && database.is_none_or(|error| is_proof(&error)) {
            return Ok(());
        }
        Err(format!("{call}: the model fails with {model:?}, the database with {database:?}"))
    }
}

fn read<T: serde::de::DeserializeOwned>(answer: Value) -> Result<T, String> {
    let text = answer.to_string();
    serde_json::from_value(answer).map_err(|error| format!("{error} in {text}"))
}

fn equal<T: std::fmt::Debug + PartialEq>(
    what: &str,
    model: &T,
    database: &T,
) -> Result<(), String> {
    if model == database {
        return Ok(());
    }
    Err(format!("{what}: the model answers\n  {model:?}\nthe database answers\n  {database:?}"))
}

fn json_literal(value: &impl serde::Serialize) -> String {
    let text = serde_json::to_string(value).expect("rows are JSON");
    format!("'{}'::jsonb", text.replace('\'', "''"))
}
