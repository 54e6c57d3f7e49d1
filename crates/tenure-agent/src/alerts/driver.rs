//! Runs the engine while this member leads `tenure:alerts`: samples, writes, sends.
//!
//! Order is what makes a message reach a person once: a change is committed under the fence, then its
//! messages are sent, then the answers are committed. A message goes on when the gate shuts in the middle of
//! it; its answer is kept in this process and written in the next term here. A successor elsewhere does not
//! know of it and sends the message again, with the same key.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use metrics::gauge;
use tenure::config::Config;
use tenure::{Epoch, LeaderLock};
use tokio::sync::{Mutex, mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until};

use crate::event::{Event, Events};
use crate::store::{Store, StoreError};

use super::engine::{ATTEMPTS, Change, Engine, Message, Outcome};
use super::rule::Rule;
use super::sample::{Labels, NAME, Samples};
use super::sampler::{Sampler, is_of_group};
use super::setup::Setup;

/// The reserved role whose leader evaluates the rules and sends the messages.
pub const ALERTS: &str = "tenure:alerts";
/// A sample of many roles may take longer than a schedule's statement.
const PATIENCE: Duration = Duration::from_secs(10);
/// Pause before a statement is sent again.
const PAUSE: Duration = Duration::from_secs(1);

/// What outlives a term.
struct AlertDriver {
    lock: LeaderLock,
    config: Config,
    setup: watch::Receiver<Arc<Setup>>,
    events: Events,
    /// Messages that are being sent: incident and notifier.
    under_way: BTreeSet<(String, String)>,
    answers: mpsc::UnboundedReceiver<Answered>,
    answering: mpsc::UnboundedSender<Answered>,
    /// Answers that no term has written down yet.
    unwritten: Vec<Answered>,
    /// The error that was told last: an error that lasts is told once.
    told: Option<String>,
}

/// The series of the group that this agent serves while it leads. Whatever ends the term, it must not go on telling
/// what it saw last.
#[derive(Default)]
struct Published(BTreeSet<Labels>);

impl Drop for Published {
    fn drop(&mut self) {
        for labels in &self.0 {
            record(labels, 0.0);
        }
    }
}

type Answered = (Message, Result<(), String>);

/// Serves until the role stops.
pub(crate) async fn serve(
    lock: LeaderLock,
    config: Config,
    setup: watch::Receiver<Arc<Setup>>,
    events: Events,
) {
    let (answering, answers) = mpsc::unbounded_channel();
    let driver = Arc::new(Mutex::new(AlertDriver {
        lock: lock.clone(),
        config,
        setup,
        events,
        under_way: BTreeSet::new(),
        answers,
        answering,
        unwritten: Vec::new(),
        told: None,
    }));
    // Dropped at an await when the gate shuts: a statement is one transaction, under the fence.
    let led = lock.while_leading(|token| {
        let driver = Arc::clone(&driver);
        async move { driver.lock().await.lead(token.epoch).await }
    });
    let _ = led.await;
}

impl AlertDriver {
    async fn lead(&mut self, epoch: Epoch) {
        // A session of its own, as long as the term: a sample must not hold up a schedule.
        let name = format!("tenure alerts {}", self.lock.identity());
        let store = match Store::new(&self.config, &name) {
            Ok(store) => store.patient(PATIENCE),
            Err(error) => return self.error(&error),
        };
        let mut published = Published::default();
        loop {
            match self.term(&store, epoch, &mut published).await {
                StoreError::Stale => break,
                error => self.error(&error),
            }
            sleep(PAUSE).await;
        }
        // Another member leads: the gate is about to shut.
        std::future::pending::<()>().await;
    }

    /// Evaluates and sends, until the database does not answer.
    async fn term(&mut self, store: &Store, epoch: Epoch, published: &mut Published) -> StoreError {
        let begun = async {
            store.migrate().await?;
            let mark = self.setup.borrow().mark.clone();
            store.load_alerts(&mark, epoch).await
        };
        let mut engine = match begun.await {
            Ok(engine) => engine,
            Err(error) => return error,
        };
        let mut setup = self.setup.borrow_and_update().clone();
        let mut sampler = sampler(&setup);
        let mut round = Instant::now();
        loop {
            // An answer stays until it is written: the gate may shut, and drop this, at the await.
            while let Some((message, answer)) = self.unwritten.first().cloned() {
                let now = store.now().unwrap_or_else(Timestamp::now);
                let change = engine.answered(&message, answer, now);
                if let Err(error) = self.write(store, epoch, &change).await {
                    return error;
                }
                let _written = self.unwritten.remove(0);
            }
            if round <= Instant::now() {
                round = Instant::now() + setup.alerting.interval();
                match store.sample(sampler.back()).await {
                    Ok(answer) => {
                        let (samples, now) = sampler.take(&answer);
                        let rules = self.outcomes(&setup, &samples, now);
                        let at = Timestamp::from_microsecond(answer.now);
                        let at = at.unwrap_or_else(|_| Timestamp::now());
                        let names = setup.notifiers.names().cloned().collect();
                        let change = engine.evaluated(&rules, &names, at);
                        if (!change.is_empty() || !engine.is_idle())
                            && let Err(error) = self.write(store, epoch, &change).await
                        {
                            return error;
                        }
                        self.say(epoch, &change);
                        publish(&samples, published);
                    }
                    // What is known stays; the gate shuts by itself if the database is away.
                    Err(error) => {
                        self.error(&error);
                        round = Instant::now() + PAUSE;
                    }
                }
            }
            let now = store.now().unwrap_or_else(Timestamp::now);
            self.send(&setup, &engine, now);
            let due = engine.next_due().map_or(Duration::MAX, |at| {
                Duration::try_from(at.duration_since(now)).unwrap_or_default()
            });
            // One that is under way is due too.
            let pause = due.clamp(Duration::from_millis(200), setup.alerting.interval());
            // Every branch is cancel-safe: they wait, and take at most one thing whole.
            tokio::select! {
                () = sleep_until(round.min(Instant::now() + pause)) => {}
                Some(answer) = self.answers.recv() => self.keep(answer, epoch),
                Ok(()) = self.setup.changed() => {
                    setup = self.setup.borrow_and_update().clone();
                    sampler = self::sampler(&setup);
                    round = Instant::now();
                }
            }
        }
    }

    /// Until it is written, or another member leads. A write whose answer did not come is sent again: it is
    /// the same row by row.
    async fn write(
        &mut self,
        store: &Store,
        epoch: Epoch,
        change: &Change,
    ) -> Result<(), StoreError> {
        let member = self.lock.identity().as_str().to_owned();
        loop {
            match store.write_alerts(epoch, &member, change).await {
                Ok(()) => return Ok(()),
                Err(StoreError::Stale) => return Err(StoreError::Stale),
                Err(error) => self.error(&error),
            }
            sleep(PAUSE).await;
        }
    }

    fn outcomes(&mut self, setup: &Setup, samples: &Samples, now: i64) -> Vec<(Rule, Outcome)> {
        let mut errors = Vec::new();
        let evaluate = |rule: &Rule| {
            let outcome = match rule.condition().evaluate(samples, now) {
                Ok(found) => Some(found),
                Err(error) => {
                    errors.push(format!("rule {}: {error}", rule.name()));
                    None
                }
            };
            (rule.clone(), outcome)
        };
        let rules = setup.alerting.rules().iter().map(evaluate).collect();
        match errors.is_empty() {
            true => self.told = None,
            false => self.error(&errors.join("; ")),
        }
        rules
    }

    fn send(&mut self, setup: &Arc<Setup>, engine: &Engine, now: Timestamp) {
        for message in engine.due(&self.under_way, now) {
            self.under_way.insert((message.key.clone(), message.notifier.clone()));
            let (setup, answering) = (Arc::clone(setup), self.answering.clone());
            // It goes on when the gate shuts: a request that is cut off may have arrived. Bounded by the
            // notifiers' deadline.
            tokio::spawn(async move {
                let answer = setup.notifiers.send(&message).await;
                let _ = answering.send((message, answer));
            });
        }
    }

    fn keep(&mut self, answered: Answered, epoch: Epoch) {
        let (message, answer) = &answered;
        self.under_way.remove(&(message.key.clone(), message.notifier.clone()));
        let what = format!(
            "{} of {} to {}",
            super::message::status(message.kind),
            message.rule,
            message.notifier
        );
        match answer {
            Ok(()) => {
                self.events
                    .tell(Event::of("notified", self.lock.role(), Some(epoch)).because(what));
            }
            Err(why) => {
                let again = format!(
                    "{what} was not acknowledged: {why}; it is sent again, up to {ATTEMPTS} times"
                );
                self.error(&again);
            }
        }
        self.unwritten.push(answered);
    }

    fn say(&self, epoch: Epoch, change: &Change) {
        for incident in &change.incidents {
            let event = match incident.resolved {
                None => "alert_firing",
                Some(_) => "alert_resolved",
            };
            let alerts = incident.alerts.len();
            let what = format!("{} ({}), {alerts} firing", incident.rule, incident.severity);
            self.events.tell(Event::of(event, self.lock.role(), Some(epoch)).because(what));
        }
    }

    fn error(&mut self, error: &impl ToString) {
        let text = error.to_string();
        if self.told.as_ref() != Some(&text) {
            let event = Event::of("error", self.lock.role(), None);
            self.events.tell(event.because(format!("alerts: {text}")));
            self.told = Some(text);
        }
    }
}

/// What no member has of itself is served by the agent that leads here, so that Prometheus has it too.
fn publish(samples: &Samples, published: &mut Published) {
    let mut now = BTreeSet::new();
    for series in samples.all().filter(|series| is_of_group(&series.labels)) {
        let value = series.points.last().and_then(|point| point.value);
        record(&series.labels, value.unwrap_or(0.0));
        now.insert(series.labels.clone());
    }
    for gone in published.0.difference(&now) {
        record(gone, 0.0);
    }
    published.0 = now;
}

fn sampler(setup: &Setup) -> Sampler {
    Sampler::new(setup.alerting.rules().iter(), setup.alerting.interval())
}

fn record(labels: &Labels, value: f64) {
    let name = labels.get(NAME).cloned().unwrap_or_default();
    let rest: Vec<(String, String)> = labels
        .iter()
        .filter(|(key, _)| *key != NAME)
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    gauge!(name, &rest).set(value);
}
