//! The one look at the database, however many browsers watch: every second while one does, and not at all
//! while none does.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use tenure::config::Config;
use tenure_connect::sql::literal;
use tokio::sync::{Notify, Semaphore, broadcast, watch};
use tokio::time::{Instant, sleep, timeout};

use super::picture::{EndedTerm, Picture, read_terms, read_value};
use crate::store::{Store, StoreError};

/// Between two looks.
const LOOK: Duration = Duration::from_secs(1);
/// How long looks go on after the last browser has gone: a page that is loaded again finds them fresh.
const LINGER: Duration = Duration::from_secs(10);
/// How long a request waits for a look.
const PATIENCE: Duration = Duration::from_secs(6);
/// Ended terms of a look go back so far; a longer silence makes the browsers load anew.
const RECENT: Duration = Duration::from_secs(300);
/// A look that takes longer is told as an outage, and goes on.
const SLOW: Duration = Duration::from_secs(3);
/// Questions about one role or schedule that may wait at once: all of them share one session.
const QUESTIONS: usize = 16;
/// How long a question waits for its place.
const TURN: Duration = Duration::from_secs(5);
/// How long a database without tables is no trouble.
const FRESH: Duration = Duration::from_secs(30);
/// Between two looks at which tables there are.
const PARTS: Duration = Duration::from_secs(30);
/// So many messages may wait for a slow browser; one that lost any loads anew, so that loss is safe.
const MESSAGES: usize = 64;

/// How far back a timeline goes; a few fixed ones, so that the answers can be shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Window {
    Minutes5,
    Hour,
    Day,
    Week,
}

impl Window {
    pub(super) fn parse(text: &str) -> Option<Self> {
        match text {
            "5m" => Some(Window::Minutes5),
            "1h" => Some(Window::Hour),
            "24h" => Some(Window::Day),
            "7d" => Some(Window::Week),
            _ => None,
        }
    }

    fn length(self) -> Duration {
        match self {
            Window::Minutes5 => Duration::from_secs(300),
            Window::Hour => Duration::from_secs(3_600),
            Window::Day => Duration::from_secs(86_400),
            Window::Week => Duration::from_secs(7 * 86_400),
        }
    }
}

/// A message to every browser.
#[derive(Debug, Clone)]
pub(super) struct Message {
    pub(super) event: &'static str,
    pub(super) number: u64,
    pub(super) data: Arc<str>,
}

impl Message {
    /// One that says nothing but its name.
    pub(super) fn bare(event: &'static str) -> Self {
        Message { event, number: 0, data: "{}".into() }
    }
}

/// What came of a question about one role or schedule.
#[derive(Debug, Clone)]
pub(super) enum Asked {
    /// None: the database knows nothing of it.
    Answer(Option<Value>),
    /// The tables are not there, or must not be read.
    Refused,
    /// The database does not answer.
    Away,
    /// Too many ask at once.
    Full,
}

/// What is known.
#[derive(Debug, Clone, Default)]
struct Known {
    picture: Option<Arc<Picture>>,
    /// When it was true, on our own clock.
    taken: Option<Instant>,
    /// Of the latest message.
    number: u64,
    /// Since when the database is away, and what it said.
    away: Option<(Instant, &'static str)>,
    /// How many looks there were.
    looks: u64,
    /// The latest times in which this page had no database, up to the next picture: what the tables say of them was
    /// written afterwards.
    outages: VecDeque<(i64, i64)>,
}

/// Which optional tables there are.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
struct Parts {
    schedules: bool,
    tx: bool,
    alerts: bool,
}

/// How many outages are remembered.
const OUTAGES: usize = 100;

/// Terms of a window, and when they were asked for.
type Kept = HashMap<Window, (Instant, Arc<Vec<EndedTerm>>)>;

/// Looks, remembers, and tells.
pub(super) struct Poller {
    looking: Store,
    asking: Store,
    known: watch::Sender<Known>,
    messages: broadcast::Sender<Message>,
    wanted: Notify,
    asked: Mutex<Instant>,
    windows: tokio::sync::Mutex<Kept>,
    /// Answers of the last second by their question, and the number of the picture before them: as many
    /// browsers may have one role open.
    answers: tokio::sync::Mutex<HashMap<String, (Instant, u64, Asked)>>,
    questions: Arc<Semaphore>,
    /// What the log was told last: an outage of hours is one line, not one a second.
    told: Mutex<Option<String>>,
    begun: Instant,
}

impl std::fmt::Debug for Poller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Poller")
    }
}

impl Poller {
    pub(super) fn new(config: &Config) -> Result<Self, StoreError> {
        Ok(Poller {
            looking: Store::new(config, "tenure page")?,
            asking: Store::new(config, "tenure page, questions")?,
            known: watch::Sender::default(),
            messages: broadcast::Sender::new(MESSAGES),
            wanted: Notify::new(),
            asked: Mutex::new(Instant::now()),
            windows: tokio::sync::Mutex::default(),
            answers: tokio::sync::Mutex::default(),
            questions: Arc::new(Semaphore::new(QUESTIONS)),
            told: Mutex::default(),
            begun: Instant::now(),
        })
    }

    /// Looks until it is dropped.
    pub(super) async fn run(&self) {
        let mut parts: Option<(Instant, Parts)> = None;
        loop {
            if self.messages.receiver_count() == 0 && self.asked().elapsed() > LINGER {
                self.wanted.notified().await;
            }
            let begun = Instant::now();
            let looked = {
                let look = async {
                    if parts.is_none_or(|(since, _)| since.elapsed() > PARTS) {
                        parts = self.parts().await.map(|parts| (begun, parts));
                    }
                    self.look(parts.map(|(_, parts)| parts).unwrap_or_default()).await
                };
                tokio::pin!(look);
                loop {
                    match timeout(SLOW, &mut look).await {
                        Ok(looked) => break looked,
                        Err(_) => self.missed("the database does not answer"),
                    }
                }
            };
            match looked {
                Ok(picture) => self.seen(picture, begun),
                Err(why) => {
                    parts = None;
                    self.missed(why);
                }
            }
            // A wish to see the outcome of an order comes before the next second. Cancel-safe, both.
            tokio::select! {
                () = sleep(LOOK.saturating_sub(begun.elapsed())) => {}
                () = self.wanted.notified() => sleep(Duration::from_millis(50)).await,
            }
        }
    }

    /// What browsers hear from now on, and the first thing they should.
    pub(super) fn listen(&self) -> (Message, broadcast::Receiver<Message>) {
        let receiver = self.messages.subscribe();
        let known = self.known.borrow();
        // Browsers that come and go cause no more looks than one that stays.
        if known.taken.is_none_or(|at| at.elapsed() > LOOK) {
            self.wanted.notify_one();
        }
        let now = known.picture.as_ref().map(|picture| picture.now());
        let data =
            json!({"now": now, "number": known.number, "outage": outage(&known)}).to_string();
        (Message { event: "hello", number: known.number, data: data.into() }, receiver)
    }

    /// Looks at once instead of within the second.
    pub(super) fn hurry(&self) {
        self.wanted.notify_one();
    }

    /// The whole picture with the terms of a window; if there never was one, why.
    pub(super) async fn whole(&self, window: Window) -> Result<Value, &'static str> {
        *self.asked.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        let mut known = self.known.subscribe();
        let stale = |known: &Known| {
            known.looks == 0
                || known.away.is_none() && known.taken.is_none_or(|at| at.elapsed() > LOOK * 3)
        };
        if stale(&known.borrow()) {
            let before = known.borrow().looks;
            self.wanted.notify_one();
            // Past the patience the last picture is shown, with its age.
            let _ = timeout(PATIENCE, known.wait_for(|known| known.looks > before)).await;
        }
        let seen = known.borrow().clone();
        let Some(picture) = &seen.picture else {
            return Err(seen.away.map_or("the database does not answer", |(_, why)| why));
        };
        let terms = self.terms(window, seen.away.is_some()).await;
        let length = i64::try_from(window.length().as_millis()).unwrap_or(i64::MAX);
        let mut whole = picture.whole(&terms, length);
        whole.insert("number".into(), seen.number.into());
        whole.insert("outage".into(), outage(&seen));
        whole.insert("outages".into(), json!(seen.outages));
        Ok(Value::Object(whole))
    }

    /// One role in full; none if there is no such role.
    pub(super) async fn role(self: Arc<Self>, name: &str) -> Asked {
        let sql =
            prepared(include_str!("../../sql/page_role.sql")).replace("{role}", &literal(name));
        self.question(sql).await
    }

    /// The latest slots of a schedule with their output.
    pub(super) async fn runs(self: Arc<Self>, schedule: &str) -> Asked {
        let sql = include_str!("../../sql/history.sql")
            .replace("{limit}", "20")
            .replace("{dead}", "false")
            .replace("{order}", "null")
            .replace("{name}", &literal(schedule));
        self.question(sql).await
    }

    /// One at a time, each shared for a second, and in a task of its own: a browser that goes away does not break
    /// the session off. An answer is shared until the next picture: a browser asks again because of what it shows.
    async fn question(self: Arc<Self>, sql: String) -> Asked {
        let place = timeout(TURN, Arc::clone(&self.questions).acquire_owned()).await;
        let Ok(Ok(place)) = place else { return Asked::Full };
        let task = tokio::spawn(async move {
            let _place = place;
            let mut answers = self.answers.lock().await;
            let (asked, number) = (Instant::now(), self.known.borrow().number);
            answers.retain(|_, (at, of, _)| at.elapsed() < LOOK && *of == number);
            if let Some((_, _, known)) = answers.get(&sql) {
                return known.clone();
            }
            let found = match self.asking.send(&sql).await {
                Ok(None) => Asked::Answer(None),
                Ok(Some(text)) => {
                    read_value(&text).map_or(Asked::Away, |value| Asked::Answer(Some(value)))
                }
                Err(StoreError::Refused(_)) => Asked::Refused,
                Err(error) => {
                    tracing::warn!("a question of the page was not answered: {error}");
                    Asked::Away
                }
            };
            answers.insert(sql, (asked, number, found.clone()));
            found
        });
        task.await.unwrap_or(Asked::Away)
    }

    fn asked(&self) -> Instant {
        *self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn parts(&self) -> Option<Parts> {
        let text = self.looking.send(include_str!("../../sql/page_parts.sql")).await.ok()??;
        serde_json::from_str(&text).ok()
    }

    async fn look(&self, parts: Parts) -> Result<Picture, &'static str> {
        let part =
            |there: bool, sql: &str| if there { sql.to_owned() } else { "null::jsonb".to_owned() };
        let sql = include_str!("../../sql/page.sql")
            .replace("{terms}", include_str!("../../sql/page_terms.sql"))
            .replace(
                "{schedules}",
                &part(parts.schedules, include_str!("../../sql/page_schedules.sql")),
            )
            .replace("{tx}", &part(parts.tx, include_str!("../../sql/page_tx.sql")))
            .replace("{alerts}", &part(parts.alerts, include_str!("../../sql/page_alerts.sql")));
        let sql = prepared(&since(&sql, RECENT));
        let text = self.looking.send(&sql).await.map_err(|error| {
            // An agent that is started on a fresh database makes the schema a moment later.
            if !error.lacks_schema() {
                self.warn(format!("the page sees nothing: {error}"));
            } else if self.begun.elapsed() < FRESH {
                tracing::debug!("the page sees nothing yet: {error}");
            } else {
                self.warn(format!(
                    "the page sees nothing: the database lacks tables of Tenure; run `tenure migrate`: {error}"
                ));
            }
            match error {
                StoreError::Refused(_) if error.lacks_schema() => {
                    "the database lacks tables of Tenure; the first member makes them, or `tenure migrate`"
                }
                StoreError::Refused(_) => {
                    "the database refused the question; `tenure check` may say why"
                }
                StoreError::Connect(_)
                | StoreError::Tls(_)
                | StoreError::NoDatabase
                | StoreError::Stale
                | StoreError::Unknown(_) => "the database does not answer",
            }
        })?;
        Picture::read(&text.unwrap_or_default()).map_err(|error| {
            self.warn(format!("the page cannot read the database's answer: {error}"));
            "the database's answer cannot be read"
        })
    }

    fn warn(&self, what: String) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.as_ref() != Some(&what) {
            tracing::warn!("{what}");
            *told = Some(what);
        }
    }

    fn seen(&self, picture: Picture, at: Instant) {
        if self.told.lock().unwrap_or_else(PoisonError::into_inner).take().is_some() {
            tracing::warn!("the page sees the database again");
        }
        let picture = Arc::new(picture);
        let mut message = None;
        self.known.send_modify(|known| {
            let recent = known.taken.is_some_and(|taken| taken.elapsed() < RECENT / 2);
            let before = known.picture.replace(picture.clone());
            let away = known.away.take();
            let was_away = away.is_some();
            if let Some((before, (since, _))) = before.as_ref().zip(away) {
                // While no browser watched there was no look: the outage did not begin with the last picture then, but
                // after the look before the first one that failed would have been.
                let unseen = (since.elapsed() + LOOK + SLOW).as_millis();
                let unseen = i64::try_from(unseen).unwrap_or(i64::MAX);
                let from = before.now().max(picture.now().saturating_sub(unseen));
                known.outages.push_back((from, picture.now()));
                let more = known.outages.len().saturating_sub(OUTAGES);
                known.outages.drain(..more);
            }
            (known.taken, known.looks) = (Some(at), known.looks + 1);
            known.number += 1;
            let (event, data) = match before {
                // What happened meanwhile may be more than a difference shows.
                Some(_) if was_away || !recent => ("reload", json!({"now": picture.now()})),
                Some(before) => {
                    let difference = picture.differences(&before).unwrap_or_else(|| json!({}));
                    ("change", with_now(difference, picture.now()))
                }
                None => ("reload", json!({"now": picture.now()})),
            };
            message = Some(Message { event, number: known.number, data: data.to_string().into() });
        });
        // Without a browser there is none to tell.
        message.map(|message| self.messages.send(message));
    }

    fn missed(&self, why: &'static str) {
        let mut message = None;
        self.known.send_modify(|known| {
            known.looks += 1;
            let since = known.away.map_or_else(Instant::now, |(since, _)| since);
            known.away = Some((since, why));
            message = Some(Message {
                event: "outage",
                number: known.number,
                data: outage(known).to_string().into(),
            });
        });
        message.map(|message| self.messages.send(message));
    }

    /// The terms of a window: one question a second for all browsers. While the database is away, what was
    /// last known.
    async fn terms(&self, window: Window, away: bool) -> Arc<Vec<EndedTerm>> {
        let mut windows = self.windows.lock().await;
        let kept = windows.get(&window);
        if let Some((at, terms)) = kept
            && (away || at.elapsed() < LOOK)
        {
            return terms.clone();
        }
        let old = kept.map(|(_, terms)| terms.clone()).unwrap_or_default();
        if away {
            return old;
        }
        let sql = prepared(&since(include_str!("../../sql/page_terms.sql"), window.length()));
        let asked = Instant::now();
        let found = match self.asking.send(&sql).await {
            Ok(Some(text)) => read_terms(&text).ok(),
            Ok(None) | Err(_) => None,
        };
        let Some(found) = found.map(Arc::new) else { return old };
        windows.insert(window, (asked, found.clone()));
        found
    }
}

fn outage(known: &Known) -> Value {
    let Some((since, why)) = known.away else { return Value::Null };
    let age =
        known.taken.map(|taken| u64::try_from(taken.elapsed().as_millis()).unwrap_or(u64::MAX));
    let away = u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX);
    json!({"why": why, "away_ms": away, "age_ms": age})
}

fn with_now(mut difference: Value, now: i64) -> Value {
    difference["now"] = now.into();
    difference
}

fn since(sql: &str, back: Duration) -> String {
    sql.replace("{since}", &format!("(clock_timestamp() - interval '{} seconds')", back.as_secs()))
}

/// Times as milliseconds since 1970.
fn prepared(sql: &str) -> String {
    sql.replace("{now}", "{ms}(clock_timestamp())").replace("{ms}(", "1000 * date_part('epoch', ")
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_outage_begins_with_the_looks_that_fail_and_not_while_no_browser_watched() {
        let config = Config::builder().dsn("postgresql://localhost:1/none").build().expect("valid");
        let poller = Poller::new(&config).expect("a poller");
        let picture = |now: i64| {
            let none: [Value; 0] = [];
            let text = json!({"now": now, "sets": none, "roles": none, "members": none, "terms": none,
                "events": none, "schedules": null, "tx": null, "alerts": null});
            Picture::read(&text.to_string()).expect("an answer")
        };
        let outages = || poller.known.borrow().outages.clone();
        poller.seen(picture(0), Instant::now());
        advance(Duration::from_secs(3_600)).await;
        poller.missed("the database does not answer");
        advance(Duration::from_secs(2)).await;
        poller.seen(picture(3_602_000), Instant::now());
        assert_eq!(outages(), [(3_596_000, 3_602_000)], "nobody looked in the hour before");
        advance(LOOK).await;
        poller.missed("the database does not answer");
        advance(Duration::from_secs(2)).await;
        poller.seen(picture(3_605_000), Instant::now());
        assert_eq!(outages().back(), Some(&(3_602_000, 3_605_000)), "from the picture before it");
    }
}
