//! What the page shows at one instant, as plain values: read from the database's answer, compared with the
//! picture before it, and written down as JSON. Pure.
//!
//! Two forms of one content. The whole picture is compact (rows of columns, members by number), so that a
//! thousand roles stay below 200 KB. A difference names everything in full, because it is small.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// The most that a whole picture may weigh as long as its roles alone do not weigh more; older terms are left
/// out first, and the picture says from which instant on it has all of them.
const BUDGET: usize = 190_000;
/// What a term weighs at most, beside its member's name.
const TERM: usize = 64;
/// What runs of schedules leave to terms, if there are many schedules.
const FOR_TERMS: usize = 20_000;

/// A candidate of a role: member, priority, ready, observer.
type Candidate = (String, i32, bool, bool);

/// A role as it is now.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Role {
    name: String,
    state: String,
    leader: Option<String>,
    last: Option<String>,
    epoch: i64,
    since: Option<i64>,
    waited: i64,
    policy: String,
    lease: i64,
    paused: bool,
    ordered: bool,
    stranger: bool,
    candidates: Arc<Vec<Candidate>>,
}

/// A live member.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Member {
    name: String,
    host: String,
    joined: i64,
    seen: i64,
    lease: i64,
    silent: bool,
}

/// A term that led and ended.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct EndedTerm {
    role: String,
    epoch: i64,
    member: String,
    from: i64,
    waited: i64,
    until: i64,
    how: Option<String>,
}

/// Everything, as of `now` by the database's clock.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Picture {
    now: i64,
    roles: BTreeMap<String, Role>,
    members: BTreeMap<String, Member>,
    terms: BTreeMap<(String, i64), EndedTerm>,
    events: BTreeMap<i64, Value>,
    /// Parts that are sent as a whole when anything in them has changed.
    parts: BTreeMap<&'static str, Value>,
}

/// A role's row, in the order of its columns.
#[derive(Debug, Deserialize)]
struct RoleRow {
    name: String,
    state: String,
    leader: Option<String>,
    last: Option<String>,
    epoch: i64,
    since: Option<i64>,
    waited: Option<i64>,
    policy: String,
    lease: i64,
    paused: bool,
    ordered: bool,
    set: Option<usize>,
    stranger: bool,
}
type MemberRow = (String, String, i64, i64, i64, bool);
type TermRow = (String, i64, String, i64, Option<i64>, i64, Option<String>);

/// The database's answer.
#[derive(Debug, Deserialize)]
struct Answer {
    now: i64,
    /// Candidates as lines of member, priority, ready, observer.
    sets: Vec<String>,
    roles: Vec<RoleRow>,
    members: Vec<MemberRow>,
    terms: Vec<TermRow>,
    events: Vec<Value>,
    schedules: Value,
    tx: Value,
    alerts: Value,
}

/// The columns of the rows of a whole picture, in their order.
const ROLE_COLUMNS: [&str; 12] = [
    "name",
    "state",
    "leader",
    "last",
    "epoch",
    "since",
    "waited",
    "policy",
    "lease",
    "paused",
    "ordered",
    "candidates",
];
const TERM_COLUMNS: [&str; 7] = ["role", "epoch", "member", "from", "waited", "until", "how"];

impl Picture {
    /// Reads the answer of `page.sql`.
    pub(super) fn read(text: &str) -> Result<Self, serde_json::Error> {
        let mut value: Value = serde_json::from_str(text)?;
        round(&mut value);
        let answer: Answer = serde_json::from_value(value)?;
        let sets: Vec<_> = answer.sets.iter().map(|set| Arc::new(candidates(set))).collect();
        let role = |row: RoleRow| {
            let candidates = row.set.and_then(|set| sets.get(set).cloned()).unwrap_or_default();
            let role = Role {
                name: row.name.clone(),
                state: row.state,
                leader: row.leader,
                last: row.last,
                epoch: row.epoch,
                since: row.since,
                waited: row.waited.unwrap_or(0),
                policy: row.policy,
                lease: row.lease,
                paused: row.paused,
                ordered: row.ordered,
                stranger: row.stranger,
                candidates,
            };
            (row.name, role)
        };
        let member = |(name, host, joined, seen, lease, silent): MemberRow| {
            (name.clone(), Member { name, host, joined, seen, lease, silent })
        };
        let event = |event: Value| Some((event.get(0)?.as_i64()?, event));
        let parts = [("schedules", answer.schedules), ("tx", answer.tx), ("alerts", answer.alerts)];
        Ok(Picture {
            now: answer.now,
            roles: answer.roles.into_iter().map(role).collect(),
            members: answer.members.into_iter().map(member).collect(),
            terms: answer.terms.into_iter().map(term).collect(),
            events: answer.events.into_iter().filter_map(event).collect(),
            parts: parts.into_iter().collect(),
        })
    }

    /// The database's clock, in milliseconds since 1970.
    pub(super) fn now(&self) -> i64 {
        self.now
    }

    /// What is new against `before`, or none if nothing is: changed roles and members in full, the names of
    /// those that are gone, terms that ended, events, and the parts that changed.
    pub(super) fn differences(&self, before: &Picture) -> Option<Value> {
        let mut found = Map::new();
        let mut add = |name: &str, rows: Vec<Value>| {
            if !rows.is_empty() {
                found.insert(name.to_owned(), Value::Array(rows));
            }
        };
        add("roles", changed(&self.roles, &before.roles));
        add("members", changed(&self.members, &before.members));
        add("terms", changed(&self.terms, &before.terms));
        add("events", changed(&self.events, &before.events));
        add("roles_gone", gone(&self.roles, &before.roles));
        add("members_gone", gone(&self.members, &before.members));
        for (name, part) in &self.parts {
            let old = before.parts.get(name).unwrap_or(&Value::Null);
            if old != part {
                found.insert((*name).to_owned(), news(name, part, old));
            }
        }
        if found.is_empty() { None } else { Some(Value::Object(found)) }
    }

    /// The whole picture. `terms` are those of the window that was asked for; the ones of this picture may be
    /// newer and are added.
    pub(super) fn whole(&self, terms: &[EndedTerm], window_ms: i64) -> Map<String, Value> {
        let mut numbers = Numbers::default();
        let (mut sets, mut set_ids) = (Vec::new(), HashMap::new());
        let mut strangers = Vec::new();
        let mut roles = Vec::with_capacity(self.roles.len());
        let mut places = HashMap::new();
        for (place, role) in self.roles.values().enumerate() {
            places.insert(role.name.as_str(), place);
            let set = match set_ids.get(&role.candidates) {
                Some(set) => *set,
                None => {
                    let mut rows = Vec::with_capacity(role.candidates.len());
                    for (member, priority, ready, observer) in role.candidates.iter() {
                        // A thousand roles may have a thousand sets, each of all members.
                        let flags = usize::from(*ready) * 2 + usize::from(*observer);
                        let code = numbers.of(member) * 4 + flags;
                        rows.push(if *priority == 0 {
                            code.into()
                        } else {
                            json!([code, priority])
                        });
                    }
                    sets.push(Value::Array(rows));
                    set_ids.insert(role.candidates.clone(), sets.len() - 1);
                    sets.len() - 1
                }
            };
            if role.stranger {
                strangers.push(Value::from(role.name.as_str()));
            }
            roles.push(json!([
                role.name,
                role.state,
                role.leader.as_deref().map(|name| numbers.of(name)),
                role.last.as_deref().map(|name| numbers.of(name)),
                role.epoch,
                role.since,
                role.waited,
                role.policy,
                role.lease,
                u8::from(role.paused),
                u8::from(role.ordered),
                set
            ]));
        }
        let members: Vec<Value> = self.members.values().map(|member| json!(member)).collect();
        let mut whole = Map::new();
        whole.insert("now".into(), self.now.into());
        whole.insert("role_columns".into(), json!(ROLE_COLUMNS));
        whole.insert("roles".into(), roles.into());
        whole.insert("strangers".into(), strangers.into());
        whole.insert("members".into(), members.into());
        whole.insert("events".into(), self.events.values().cloned().collect());
        for (name, part) in &self.parts {
            whole.insert((*name).to_owned(), part.clone());
        }
        whole.insert("candidate_sets".into(), sets.into());
        let weigh = |whole: &Map<String, Value>| {
            Value::Object(whole.clone()).to_string().len() + numbers.weight()
        };
        let mut weight = weigh(&whole);
        for runs in [10, 5, 2, 1] {
            if weight + FOR_TERMS <= BUDGET || !shorten(whole.get_mut("schedules"), runs) {
                break;
            }
            weight = weigh(&whole);
        }
        // Newest first, each once: terms of the picture may be in both.
        let mut newest: BTreeMap<(i64, &str, i64), &EndedTerm> = BTreeMap::new();
        for term in self.terms.values().chain(terms) {
            newest.insert((-term.until, &term.role, term.epoch), term);
        }
        let mut rows = Vec::new();
        let mut complete = self.now - window_ms;
        for term in newest.into_values() {
            let Some(place) = places.get(term.role.as_str()) else { continue };
            weight += TERM + if numbers.has(&term.member) { 0 } else { term.member.len() + 3 };
            if weight > BUDGET && !rows.is_empty() {
                complete = complete.max(term.until);
                break;
            }
            rows.push(json!([
                place,
                term.epoch,
                numbers.of(&term.member),
                term.from,
                term.waited,
                term.until,
                term.how
            ]));
        }
        whole.insert("term_columns".into(), json!(TERM_COLUMNS));
        whole.insert("terms".into(), rows.into());
        whole.insert("complete_since".into(), complete.into());
        whole.insert("names".into(), json!(numbers.names));
        whole
    }
}

/// The rows of a part by what they are known by.
fn rows<'a>(name: &str, part: &'a Value) -> BTreeMap<String, &'a Value> {
    let list = if name == "schedules" { &part["list"] } else { part };
    let text = |row: &Value, field: &str| row[field].as_str().unwrap_or_default().to_owned();
    let key = |row: &Value| match name {
        "schedules" => text(row, "name"),
        "tx" => text(row, "account"),
        _ => format!("{} {}", text(row, "name"), text(row, "key")),
    };
    list.as_array().into_iter().flatten().map(|row| (key(row), row)).collect()
}

/// What is new in a part: its changed rows in full, the keys of those that are gone; of schedules also the dead
/// letters if they are others, and the slots that ended. Null if the part is gone.
fn news(name: &str, now: &Value, before: &Value) -> Value {
    if now.is_null() {
        return Value::Null;
    }
    let (new, old) = (rows(name, now), rows(name, before));
    let mut found = Map::new();
    found.insert("list".into(), changed(&new, &old).into());
    found.insert("gone".into(), gone(&new, &old).into());
    for field in ["dead", "dead_count"] {
        if name == "schedules" && now[field] != before[field] {
            found.insert(field.into(), now[field].clone());
        }
    }
    if name == "schedules" {
        let known = before["ended"].as_array().map(Vec::as_slice).unwrap_or_default();
        let ended = now["ended"].as_array().into_iter().flatten();
        let ended: Vec<Value> = ended.filter(|row| !known.contains(row)).cloned().collect();
        found.insert("ended".into(), ended.into());
    }
    Value::Object(found)
}

/// Leaves each schedule so many of its latest runs; false if there is none.
fn shorten(schedules: Option<&mut Value>, runs: usize) -> bool {
    let list = schedules.and_then(|part| part.get_mut("list")).and_then(Value::as_array_mut);
    let Some(list) = list else { return false };
    for schedule in list.iter_mut() {
        if let Some(known) = schedule.get_mut("runs").and_then(Value::as_array_mut) {
            known.drain(..known.len().saturating_sub(runs));
        }
    }
    !list.is_empty()
}

/// Members by number.
#[derive(Default)]
struct Numbers<'a> {
    names: Vec<&'a str>,
    known: HashMap<&'a str, usize>,
}

impl<'a> Numbers<'a> {
    fn of(&mut self, name: &'a str) -> usize {
        *self.known.entry(name).or_insert_with(|| {
            self.names.push(name);
            self.names.len() - 1
        })
    }

    fn has(&self, name: &str) -> bool {
        self.known.contains_key(name)
    }

    fn weight(&self) -> usize {
        self.names.iter().map(|name| name.len() + 3).sum()
    }
}

/// Reads a set; a line that is none is left out.
fn candidates(set: &str) -> Vec<Candidate> {
    let read = |line: &str| {
        let mut parts = line.rsplitn(4, '\t');
        let (observer, ready, priority) = (parts.next()?, parts.next()?, parts.next()?);
        Some((parts.next()?.to_owned(), priority.parse().ok()?, ready == "1", observer == "1"))
    };
    set.lines().filter_map(read).collect()
}

/// Reads the answer of `page_terms.sql`.
pub(super) fn read_terms(text: &str) -> Result<Vec<EndedTerm>, serde_json::Error> {
    let value = read_value(text)?;
    let rows: Vec<TermRow> = serde_json::from_value(value)?;
    Ok(rows.into_iter().map(|row| term(row).1).collect())
}

/// Reads an answer that is passed on as it is.
pub(super) fn read_value(text: &str) -> Result<Value, serde_json::Error> {
    let mut value = serde_json::from_str(text)?;
    round(&mut value);
    Ok(value)
}

fn term((role, epoch, member, from, waited, until, how): TermRow) -> ((String, i64), EndedTerm) {
    let waited = waited.unwrap_or(0);
    ((role.clone(), epoch), EndedTerm { role, epoch, member, from, waited, until, how })
}

fn changed<K: Ord, V: PartialEq + Serialize>(
    now: &BTreeMap<K, V>,
    before: &BTreeMap<K, V>,
) -> Vec<Value> {
    let new = now.iter().filter(|(key, value)| before.get(key) != Some(value));
    new.map(|(_, value)| json!(value)).collect()
}

fn gone<V>(now: &BTreeMap<String, V>, before: &BTreeMap<String, V>) -> Vec<Value> {
    let now: BTreeSet<&String> = now.keys().collect();
    before.keys().filter(|key| !now.contains(key)).map(|key| Value::from(key.as_str())).collect()
}

/// Times come as fractions of milliseconds.
fn round(value: &mut Value) {
    match value {
        Value::Number(number) => {
            if !number.is_i64() && !number.is_u64() {
                let whole = number.as_f64().unwrap_or_default().round();
                #[allow(clippy::cast_possible_truncation, reason = "a cast saturates")]
                let whole = whole as i64;
                *value = whole.into();
            }
        }
        Value::Array(rows) => rows.iter_mut().for_each(round),
        Value::Object(fields) => fields.values_mut().for_each(round),
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An answer with so many roles, led in turn by ten members that are all candidates, and so many terms.
    fn answer(roles: usize, terms: usize) -> String {
        let member = |n: usize| {
            format!(
                "tenure-app-node-{}-12345-3f8c1c9e-6d5f-4a52-9a47-0d3b2f1e{:04}",
                n % 10,
                n % 10
            )
        };
        let candidates: Vec<_> = (0..10).map(|n| format!("{}\t0\t1\t0", member(n))).collect();
        let role = |n: usize| format!("export:tenant-{:05}", 10_000 + n);
        let at = 1_789_999_999_000_i64;
        json!({
            "now": at as f64 + 0.4,
            "sets": [candidates.join("\n")],
            "roles": (0..roles).map(|n| json!([role(n), "led", member(n), member(n + 1), 1000 + n,
                at - 1_000_000, 3, "exclusive", 3000, false, false, 0, false])).collect::<Vec<_>>(),
            "members": (0..10).map(|n| json!([member(n), "node", at - 10_000, at - 100, 3000, false])).collect::<Vec<_>>(),
            "terms": (0..terms).map(|n| json!([role(n % roles.max(1)), 900 - n / roles.max(1), member(n + 1),
                at - 2_000_000, 12, at - 1_000_000 - n as i64, "released"])).collect::<Vec<_>>(),
            "events": (0..100).map(|n| json!([n, at, "step_down", role(n), member(n), 7,
                "asked by deploy-bot at the page"])).collect::<Vec<_>>(),
            "schedules": null, "tx": null, "alerts": null,
        })
        .to_string()
    }

    fn read(text: &str) -> Picture {
        Picture::read(text).expect("it is an answer")
    }

    #[test]
    fn a_thousand_roles_weigh_less_than_200_kb_however_many_terms_there_are() {
        for terms in [0, 1_000, 5_000] {
            let picture = read(&answer(1_000, terms));
            let whole = Value::Object(picture.whole(&[], 3_600_000));
            let weight = whole.to_string().len();
            assert!(weight < 200_000, "{terms} terms: {weight} bytes");
            let shown = whole["terms"].as_array().map_or(0, Vec::len);
            assert!(shown >= terms.min(1_000), "{terms} terms: {shown} shown");
            // What was left out is said.
            let complete = whole["complete_since"].as_i64().expect("an instant");
            assert_eq!(complete > picture.now() - 3_600_000, shown < terms, "{terms}");
        }
    }

    #[test]
    fn a_thousand_sets_of_candidates_and_five_hundred_schedules_weigh_less_than_200_kb() {
        let mut value: Value = serde_json::from_str(&answer(1_000, 3_000)).expect("JSON");
        let all = value["sets"][0].as_str().expect("a set").to_owned();
        // Each role has another candidate that is not ready, or another priority.
        value["sets"] = (0..1_000)
            .map(|n| {
                let lines = all.lines().enumerate().map(|(place, line)| match n >> place & 1 {
                    0 => line.to_owned(),
                    _ => line.replace("\t0\t1\t0", "\t0\t0\t0"),
                });
                json!(lines.collect::<Vec<_>>().join("\n"))
            })
            .collect();
        for n in 0..1_000 {
            value["roles"][n][11] = n.into();
        }
        let weight = |value: &Value| {
            let whole = Value::Object(read(&value.to_string()).whole(&[], 3_600_000));
            (whole.to_string().len(), whole)
        };
        let (bytes, whole) = weight(&value);
        assert!(bytes < 200_000, "differing sets: {bytes} bytes");
        assert_eq!(whole["candidate_sets"].as_array().map(Vec::len), Some(1_000));
        // The first role's candidates are all ready, the second one's but for the first of them.
        assert_eq!(whole["candidate_sets"][0][0].as_u64().map(|code| code & 3), Some(2));
        assert_eq!(whole["candidate_sets"][1][0].as_u64().map(|code| code & 3), Some(0));
        let schedule = |n: usize| {
            let runs: Vec<_> = (0..20)
                .map(|k| json!([1_789_999_000_000_i64 + k, "succeeded", 1200, null]))
                .collect();
            json!({"name": format!("nightly-export-{n:03}"), "role": "scheduler", "cron": "*/5 * * * *",
                "timezone": null, "overlap": "forbid", "next": 1_790_000_000_000_i64, "ordered": 0, "runs": runs})
        };
        let mut value: Value = serde_json::from_str(&answer(100, 3_000)).expect("JSON");
        value["schedules"] = json!({"list": (0..500).map(schedule).collect::<Vec<_>>(), "dead": [],
            "dead_count": 0, "ended": []});
        let (bytes, whole) = weight(&value);
        assert!(bytes < 200_000, "500 schedules: {bytes} bytes");
        let runs = whole["schedules"]["list"][7]["runs"].as_array().expect("runs");
        assert!((1..20).contains(&runs.len()), "{} runs", runs.len());
        assert_eq!(
            runs.last().map(|run| &run[0]),
            Some(&json!(1_789_999_000_019_i64)),
            "the latest"
        );
        assert!(whole["terms"].as_array().is_some_and(|terms| terms.len() > 100), "and terms");
    }

    #[test]
    fn of_schedules_transactions_and_alerts_only_what_changed_is_told() {
        let mut value: Value = serde_json::from_str(&answer(3, 0)).expect("JSON");
        let schedule = |n: usize| json!({"name": format!("s{n}"), "role": "r", "runs": [[5, "running", null, null]]});
        value["schedules"] = json!({"list": (0..100).map(schedule).collect::<Vec<_>>(), "dead": [{"schedule": "s1"}],
            "dead_count": 1, "ended": [["s1", 1, "failed", "m", 1, 2, 1]]});
        value["tx"] = json!([{"account": "0xab", "open": 1}, {"account": "0xcd", "open": 2}]);
        value["alerts"] = json!([{"name": "no_leader", "key": "k", "since": 1}]);
        let before = read(&value.to_string());
        assert_eq!(
            read(&value.to_string()).differences(&before),
            None,
            "a run that goes on is no news"
        );
        value["schedules"]["list"][7]["runs"][0] = json!([5, "succeeded", 12, null]);
        value["schedules"]["list"].as_array_mut().expect("rows").remove(3);
        value["schedules"]["ended"].as_array_mut().expect("rows").push(json!([
            "s7",
            5,
            "succeeded",
            "m",
            1,
            6,
            1
        ]));
        value["tx"][1]["open"] = json!(3);
        value["alerts"] = json!([]);
        let found = read(&value.to_string()).differences(&before).expect("news");
        let schedules = &found["schedules"];
        assert_eq!(schedules["list"].as_array().map(Vec::len), Some(1), "{found}");
        assert_eq!(
            (&schedules["list"][0]["name"], &schedules["gone"]),
            (&json!("s7"), &json!(["s3"]))
        );
        assert_eq!(schedules["ended"], json!([["s7", 5, "succeeded", "m", 1, 6, 1]]));
        assert!(schedules.get("dead").is_none(), "{found}");
        assert_eq!(found["tx"], json!({"list": [{"account": "0xcd", "open": 3}], "gone": []}));
        assert_eq!(found["alerts"], json!({"list": [], "gone": ["no_leader k"]}));
        // The tables were not there before.
        let none = read(&answer(3, 0));
        let all = read(&value.to_string()).differences(&none).expect("news");
        assert_eq!(all["schedules"]["list"].as_array().map(Vec::len), Some(99));
        assert_eq!(all["schedules"]["dead_count"], 1);
        let left = none.differences(&before).expect("news");
        assert_eq!((&left["schedules"], &left["tx"]), (&Value::Null, &Value::Null));
    }

    #[test]
    fn a_picture_that_stays_the_same_has_no_difference_and_a_heartbeat_is_a_small_one() {
        let text = answer(1_000, 100);
        let before = read(&text);
        assert_eq!(read(&text).differences(&before), None);
        let mut value: Value = serde_json::from_str(&text).expect("JSON");
        value["members"][3][3] = json!(1_789_999_999_900_i64);
        let difference = read(&value.to_string()).differences(&before).expect("one");
        assert_eq!(difference["members"].as_array().map(Vec::len), Some(1));
        assert!(difference.to_string().len() < 300, "{difference}");
    }

    #[test]
    fn a_change_of_leader_is_told_with_the_term_that_ended() {
        let text = answer(3, 0);
        let mut value: Value = serde_json::from_str(&text).expect("JSON");
        value["roles"][1][1] = json!("vacant");
        value["terms"] = json!([["export:tenant-10001", 1001, "a", 5.5, 1, 9, "released"]]);
        value["roles"].as_array_mut().expect("rows").remove(2);
        let difference = read(&value.to_string()).differences(&read(&text)).expect("one");
        assert_eq!(difference["roles"][0]["state"], "vacant");
        assert_eq!(difference["terms"][0]["from"], 6);
        assert_eq!(difference["roles_gone"], json!(["export:tenant-10002"]));
    }
}
