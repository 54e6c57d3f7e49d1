//! Runs a role's schedules: one engine for each term, carried out here.
//!
//! A term's loop ends only when nothing of the term runs any more, so that two terms of one member never
//! overlap. Each run holds an act from before its row is asked for until its end is recorded: a release waits
//! for it. So a slot that is claimed while the role begins to be handed over is put back before the release,
//! and its successor starts it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tenure::{Act, Epoch, LockState, Refusal};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep};

use crate::child::{Post, Stop};
use crate::definition::Schedule;
use crate::engine::{Answer, Effect, Engine, Fate, How, Outcome, Slot, Then, Why};
use crate::event::{Event, Events};
use crate::store::{Details, FencedTerm, Store, StoreError, WaitingOrder};
use crate::work::{Job, Run};

/// Pause after a statement that failed.
const PAUSE: Duration = Duration::from_millis(300);
/// How long to sleep at most: the gate may shut by itself.
const LOOK: Duration = Duration::from_secs(1);
/// Pause before a schedule that another role's leader still has is asked for again.
const ELSEWHERE: Duration = Duration::from_secs(5);
/// Why work whose row was committed did not start.
const GATE_SHUT: &str = "the gate had shut";
/// Why an end is not in the tables.
const NOT_RECORDED: &str = "not recorded: the schedule is another role's";
/// How many slots one statement claims at most.
const BATCH: usize = 100;

/// What runs the schedules of one role on one member.
#[derive(Debug)]
pub(crate) struct Crew {
    pub(crate) post: Post,
    pub(crate) store: Arc<Store>,
    pub(crate) jobs: watch::Receiver<Arc<Vec<Job>>>,
    pub(crate) orders: mpsc::UnboundedReceiver<WaitingOrder>,
    pub(crate) events: Events,
}

/// Where a term stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Open,
    Draining,
    /// Shut, and it may open again under the same epoch.
    Shut,
    Over,
}

/// An attempt whose work is over.
#[derive(Debug)]
struct Done {
    slot: Slot,
    number: u32,
    outcome: Outcome,
    details: Details,
    act: Act,
}

/// An end that is not recorded yet, and the act that keeps the role from being released before it is.
#[derive(Debug, Default)]
struct Unrecorded {
    details: Details,
    _act: Option<Act>,
}

/// Why an effect was not carried out, as far as this member knows.
enum Unsent {
    /// Not carried out, for certain: the gate let no act begin, or the schedule has to be defined first.
    Refused,
    /// Sent, without an answer; or refused by the database.
    InDoubt(Vec<Effect>, StoreError),
}

/// One term of the role.
struct Shift<'a> {
    crew: &'a Crew,
    term: FencedTerm,
    engine: Engine,
    /// What the database has to be told, in order.
    writes: VecDeque<Effect>,
    /// How many of the first of them were sent before, and may have been carried out.
    in_doubt: usize,
    /// The acts of slots whose rows are asked for, or taken back.
    acts: BTreeMap<Slot, Act>,
    running: BTreeMap<(Slot, u32), watch::Sender<Stop>>,
    unrecorded: BTreeMap<(Slot, u32), Unrecorded>,
    done: mpsc::UnboundedSender<Done>,
    /// Which definitions the database has.
    defined: bool,
    /// When to define again: another role's leader still has one of these schedules.
    again: Option<Instant>,
    stale: bool,
    /// The last error that was told.
    trouble: Option<String>,
}

impl Crew {
    /// Runs until the role has stopped.
    pub(crate) async fn serve(mut self) {
        loop {
            let Ok(token) = self.post.lock.led().await else {
                return;
            };
            self.shift(token.epoch).await;
        }
    }

    fn jobs(&self) -> Vec<Job> {
        let role = self.post.lock.role();
        self.jobs.borrow().iter().filter(|job| job.schedule.role() == role).cloned().collect()
    }

    fn phase(&self, epoch: Epoch) -> Phase {
        match self.post.lock.gate().peek() {
            Ok(token) if token.epoch == epoch => Phase::Open,
            Ok(_) => Phase::Over,
            Err(refused) if refused.reason == Refusal::Draining => Phase::Draining,
            Err(_) => match self.post.lock.state() {
                LockState::Leader | LockState::Reconnecting => Phase::Shut,
                LockState::Releasing
                | LockState::Stopped
                | LockState::Follower
                | LockState::Acquiring => Phase::Over,
            },
        }
    }

    /// One term, to its end.
    async fn shift(&mut self, epoch: Epoch) {
        let lock = self.post.lock.clone();
        let (role, member) = (lock.role().clone(), lock.identity().clone());
        let term = FencedTerm { role, epoch, member };
        let (done, mut ends) = mpsc::unbounded_channel();
        let mut changes = lock.changes();
        let mut jobs = self.jobs.clone();
        let mut orders = std::mem::replace(&mut self.orders, mpsc::unbounded_channel().1);
        let mut shift = Shift {
            crew: self,
            term,
            engine: Engine::default(),
            writes: VecDeque::new(),
            in_doubt: 0,
            acts: BTreeMap::new(),
            running: BTreeMap::new(),
            unrecorded: BTreeMap::new(),
            done,
            defined: false,
            again: None,
            stale: false,
            trouble: None,
        };
        loop {
            let phase = shift.crew.phase(epoch);
            // A later epoch was issued, or the role was let go: nothing more can be recorded.
            if (phase == Phase::Over || shift.stale) && shift.running.is_empty() {
                break;
            }
            let paused = match phase {
                Phase::Open | Phase::Draining if !shift.stale => shift.advance(phase).await,
                Phase::Open | Phase::Draining | Phase::Shut | Phase::Over => false,
            };
            let pause = match phase {
                _ if paused => PAUSE,
                Phase::Open if shift.defined => shift.idle(),
                Phase::Open | Phase::Draining | Phase::Shut | Phase::Over => PAUSE,
            };
            // Every branch is cancel-safe.
            tokio::select! {
                Some(done) = ends.recv() => shift.ended(done),
                Some(order) = orders.recv(), if phase == Phase::Open => shift.ordered(order),
                Ok(()) = jobs.changed() => shift.defined = false,
                Ok(()) = changes.changed() => {}
                () = sleep(pause) => {}
            }
            while let Ok(done) = ends.try_recv() {
                shift.ended(done);
            }
        }
        drop(shift);
        self.orders = orders;
    }
}

impl Shift<'_> {
    /// Brings the database and the work up to what the engine wants; true: a statement failed, or the schedules have to
    /// be defined first.
    async fn advance(&mut self, phase: Phase) -> bool {
        if self.again.is_some_and(|at| Instant::now() >= at) {
            self.defined = false;
        }
        if !self.defined && phase == Phase::Open && !self.define().await {
            return true;
        }
        let Some(now) = self.crew.store.now() else { return true };
        if phase == Phase::Draining {
            self.engine.drain(now);
            self.withdraw();
        }
        let effects = self.engine.tick(now);
        self.take(effects);
        while !self.writes.is_empty() {
            let sent = match self.write().await {
                Ok(()) => 0,
                Err(Unsent::Refused) => return true,
                Err(Unsent::InDoubt(effects, error)) => {
                    let sent = effects.len();
                    for effect in effects.into_iter().rev() {
                        self.writes.push_front(effect);
                    }
                    self.failed(&error);
                    sent
                }
            };
            self.in_doubt = sent;
            if sent > 0 {
                return true;
            }
            self.trouble = None;
            if !self.defined && phase == Phase::Open {
                return true;
            }
            if let Some(now) = self.crew.store.now() {
                let effects = self.engine.tick(now);
                self.take(effects);
            }
        }
        false
    }

    /// The role is being handed over: what was not sent yet is left to the successor, which finds these slots
    /// due, queued or ordered as this term did. What may have been carried out is asked again.
    fn withdraw(&mut self) {
        let mut place = 0;
        let in_doubt = self.in_doubt;
        self.writes.retain(|effect| {
            place += 1;
            place <= in_doubt || !matches!(effect, Effect::Claim { .. } | Effect::Attempt { .. })
        });
    }

    /// Begins the act of a slot before its row is asked for; false: the gate says no.
    fn hold(&mut self, slot: &Slot) -> bool {
        if self.acts.contains_key(slot) {
            return true;
        }
        let act = self.crew.post.lock.begin_act(Duration::ZERO).ok();
        match act.filter(|act| act.epoch() == self.term.epoch) {
            Some(act) => {
                self.acts.insert(slot.clone(), act);
                true
            }
            None => false,
        }
    }

    /// How long nothing is due.
    fn idle(&self) -> Duration {
        let Some((next, now)) = self.engine.next_timeout().zip(self.crew.store.now()) else {
            return LOOK;
        };
        let left = next.duration_since(now);
        Duration::try_from(left.max(SignedDuration::ZERO)).unwrap_or(LOOK).min(LOOK)
    }

    fn failed(&mut self, error: &StoreError) {
        if matches!(error, StoreError::Stale) {
            self.stale = true;
            return;
        }
        let text = error.to_string();
        if self.trouble.as_ref() != Some(&text) {
            let event = Event::of("error", &self.term.role, Some(self.term.epoch));
            self.crew
                .events
                .tell(event.because(format!("schedules wait for the database: {text}")));
            self.trouble = Some(text);
        }
    }

    /// The leader's file decides.
    async fn define(&mut self) -> bool {
        let jobs = self.crew.jobs();
        let schedules: Vec<Schedule> = jobs.iter().map(|job| job.schedule.clone()).collect();
        let known = match self.crew.store.define(&self.term, &schedules).await {
            Ok(known) => known,
            Err(error) => {
                self.failed(&error);
                return false;
            }
        };
        let Some(now) = self.crew.store.now() else { return false };
        self.engine.keep_only(|name| known.contains_key(name));
        let elsewhere = |schedule: &&Schedule| !known.contains_key(schedule.name());
        let elsewhere: Vec<&str> = schedules.iter().filter(elsewhere).map(Schedule::name).collect();
        if elsewhere.is_empty() {
            self.again = None;
        } else {
            if self.again.is_none() {
                let why = format!(
                    "{}: the leader of another role still has it; it moves here once it is over there",
                    elsewhere.join(", ")
                );
                let event = Event::of("error", &self.term.role, Some(self.term.epoch));
                self.crew.events.tell(event.because(why));
            }
            self.again = Some(Instant::now() + ELSEWHERE);
        }
        for schedule in schedules {
            let Some(known) = known.get(schedule.name()) else { continue };
            let effects = self.engine.define(schedule, known.watermark, &known.open, now);
            self.take(effects);
        }
        self.defined = true;
        true
    }

    fn ordered(&mut self, waiting: WaitingOrder) {
        let WaitingOrder { schedule, order, given, again, .. } = waiting;
        let effects = self.engine.ordered(&schedule, order, given, again);
        self.take(effects);
    }

    /// Starts and stops at once; what concerns the database waits for its turn.
    fn take(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Start { slot, number } => self.start(slot, number),
                Effect::Stop { slot, number, why } => {
                    if let Some(stop) = self.running.get(&(slot.clone(), number)) {
                        stop.send_replace(Stop::WithGrace);
                        self.tell(
                            "run_stopped",
                            &slot,
                            number,
                            match why {
                                Why::Timeout => "it took longer than its timeout",
                                Why::Replaced => "a later slot takes its place",
                                Why::Drain => {
                                    "the role is handed over, and the drain limit is reached"
                                }
                            },
                        );
                    }
                }
                Effect::Claim { .. }
                | Effect::Attempt { .. }
                | Effect::Requeue { .. }
                | Effect::Finish { .. } => {
                    self.writes.push_back(effect);
                }
            }
        }
    }

    /// The attempt's row is committed: the work starts, if the role is still led and not being handed over.
    fn start(&mut self, slot: Slot, number: u32) {
        let job = self.crew.jobs().into_iter().find(|job| job.schedule.name() == slot.schedule);
        if job.is_none() {
            // The file lost it meanwhile: without that definition the engine would ask for the slot again, for ever.
            self.defined = false;
        }
        let why =
            if job.is_some() { GATE_SHUT } else { "the file does not have its schedule any more" };
        let job = job.filter(|_| self.crew.phase(self.term.epoch) == Phase::Open);
        let (job, act) = match (job, self.acts.remove(&slot)) {
            (Some(job), Some(act)) => (job, act),
            (_, act) => return self.not_started(slot, number, act, why),
        };
        let (stop, stopped) = watch::channel(Stop::No);
        let run = Run {
            schedule: slot.schedule.clone(),
            slot: slot.at,
            attempt: number,
            role: self.term.role.clone(),
            epoch: self.term.epoch,
        };
        self.tell("run_started", &slot, number, "");
        self.running.insert((slot.clone(), number), stop);
        let (post, done, events) =
            (self.crew.post.clone(), self.done.clone(), self.crew.events.clone());
        let started = {
            let mut event = self.event("run_process", &slot, number);
            move |pid| {
                event.pid = Some(pid);
                events.tell(event);
            }
        };
        tokio::spawn(async move {
            let (outcome, details) = job.work.carry_out(&post, &act, run, stopped, started).await;
            // A receiver that is gone is a shift that is over: the act ends here then.
            let _ = done.send(Done { slot, number, outcome, details, act });
        });
    }

    /// The slot is put back; the act is held until that is recorded.
    fn not_started(&mut self, slot: Slot, number: u32, act: Option<Act>, why: &str) {
        self.tell("run_requeued", &slot, number, &format!("its work did not start: {why}"));
        let now = self.crew.store.now().unwrap_or(slot.at);
        let effects = self.engine.ended(&slot, number, Outcome::NotStarted, now);
        self.acts.extend(act.map(|act| (slot, act)));
        self.take(effects);
    }

    fn ended(&mut self, done: Done) {
        let Done { slot, number, outcome, details, act } = done;
        self.running.remove(&(slot.clone(), number));
        if outcome == Outcome::NotStarted {
            return self.not_started(slot, number, Some(act), GATE_SHUT);
        }
        let act = if details.strays {
            // In flight for ever: no release of this term may be called clean.
            std::mem::forget(act);
            None
        } else {
            Some(act)
        };
        let now = self.crew.store.now().unwrap_or(slot.at);
        let effects = self.engine.ended(&slot, number, outcome, now);
        self.unrecorded.insert((slot, number), Unrecorded { details, _act: act });
        self.take(effects);
    }

    /// Carries the first effect out; claims are collected.
    async fn write(&mut self) -> Result<(), Unsent> {
        if let Some(Effect::Attempt { slot, .. }) = self.writes.front() {
            let slot = slot.clone();
            if !self.hold(&slot) {
                return Err(Unsent::Refused);
            }
        }
        let claims = self.claims()?;
        if !claims.is_empty() {
            return self.claim(claims).await;
        }
        let Some(effect) = self.writes.pop_front() else { return Ok(()) };
        let (crew, term) = (self.crew, &self.term);
        let answered = match &effect {
            Effect::Attempt { slot, number, order } => {
                crew.store.attempt(term, slot, *number, order.as_ref()).await
            }
            Effect::Requeue { slot, number } => {
                crew.store.requeue(term, slot, *number).await.map(|()| true)
            }
            Effect::Finish { slot, number, how, then } => {
                let end = self.unrecorded.get(&(slot.clone(), *number));
                let mut details = end.map(|end| end.details.clone()).unwrap_or_default();
                // How the work took it says less than why it was stopped.
                match how {
                    How::Timeout => {
                        details.reason = Some("it took longer than its timeout".to_owned())
                    }
                    How::Replaced => {
                        details.reason = Some("a later slot took its place".to_owned())
                    }
                    How::Succeeded | How::Failed | How::Interrupted => {}
                }
                crew.store.finish(term, slot, *number, *how, *then, &details).await
            }
            Effect::Claim { .. } | Effect::Start { .. } | Effect::Stop { .. } => Ok(true),
        };
        match answered {
            Ok(yes) => self.answered(effect, yes),
            Err(error) => return Err(Unsent::InDoubt(vec![effect], error)),
        }
        Ok(())
    }

    /// The database has carried an effect out, or said no to an attempt or to an end.
    fn answered(&mut self, effect: Effect, yes: bool) {
        match effect {
            Effect::Attempt { slot, number, .. } => {
                if !yes {
                    self.acts.remove(&slot);
                }
                let now = self.crew.store.now().unwrap_or(slot.at);
                let effects = self.engine.began(&slot, number, yes, now);
                self.take(effects);
            }
            Effect::Requeue { slot, .. } => {
                self.acts.remove(&slot);
                self.engine.requeued(&slot);
            }
            Effect::Finish { slot, number, how, then } => {
                let end = self.unrecorded.remove(&(slot.clone(), number));
                let why = if yes { how.to_string() } else { NOT_RECORDED.to_owned() };
                let mut event = self.event("run_ended", &slot, number).because(why);
                event.code = end.and_then(|end| end.details.code);
                self.crew.events.tell(event);
                if yes && then == Then::Dead {
                    self.tell("dead_letter", &slot, number, &how.to_string());
                }
                self.engine.recorded(&slot);
            }
            Effect::Claim { .. } | Effect::Start { .. } | Effect::Stop { .. } => {}
        }
    }

    /// The claims in front, as many as one statement takes, with the acts of those that start at once.
    fn claims(&mut self) -> Result<Vec<Effect>, Unsent> {
        let mut claims = Vec::new();
        while claims.len() < BATCH {
            let Some(Effect::Claim { slot, fate, .. }) = self.writes.front() else { break };
            let (slot, starts) = (slot.clone(), *fate == Fate::Run);
            if starts && !self.hold(&slot) {
                if claims.is_empty() {
                    return Err(Unsent::Refused);
                }
                break;
            }
            claims.extend(self.writes.pop_front());
        }
        Ok(claims)
    }

    async fn claim(&mut self, claims: Vec<Effect>) -> Result<(), Unsent> {
        let begun = Instant::now();
        let next = |effect: &Effect| match effect {
            Effect::Claim { slot, .. } => self.engine.next_slot(&slot.schedule, slot.at),
            Effect::Attempt { .. }
            | Effect::Start { .. }
            | Effect::Stop { .. }
            | Effect::Requeue { .. }
            | Effect::Finish { .. } => None,
        };
        let rows: Vec<(Effect, Option<Timestamp>)> =
            claims.iter().map(|claim| (claim.clone(), next(claim))).collect();
        let answers = match self.crew.store.claim(&self.term, &rows).await {
            Ok(answers) => answers,
            Err(error) => return Err(Unsent::InDoubt(claims, error)),
        };
        tracing::debug!(role = %self.term.role, slots = claims.len(), took = ?begun.elapsed(), "claimed");
        let now = self.crew.store.now();
        let jobs = self.crew.jobs();
        let mut gone = Vec::new();
        for (claim, answer) in claims.into_iter().zip(answers) {
            if let Effect::Claim { slot, .. } = &claim {
                let is_named = jobs.iter().any(|job| job.schedule.name() == slot.schedule);
                // Without a row the schedule is defined again, if the file still has it.
                if answer.is_none() && is_named {
                    gone.push(claim);
                    continue;
                }
                let answer = answer.unwrap_or(Answer::Taken);
                if answer != Answer::Claimed {
                    self.acts.remove(slot);
                }
                let effects = self.engine.claimed(slot, answer, now.unwrap_or(slot.at));
                self.take(effects);
            }
        }
        if gone.is_empty() { Ok(()) } else { Err(self.define_again(gone)) }
    }

    /// Rows of schedules were deleted by hand: the leader's file decides that there are such schedules.
    fn define_again(&mut self, claims: Vec<Effect>) -> Unsent {
        let names: BTreeSet<&str> = claims
            .iter()
            .filter_map(|claim| match claim {
                Effect::Claim { slot, .. } => Some(slot.schedule.as_str()),
                Effect::Attempt { .. }
                | Effect::Start { .. }
                | Effect::Stop { .. }
                | Effect::Requeue { .. }
                | Effect::Finish { .. } => None,
            })
            .collect();
        let names = names.into_iter().collect::<Vec<_>>().join(", ");
        let why = format!(
            "{names}: the row in tenure_agent.schedule is gone, and is made again; to end a schedule, take it out of the file"
        );
        let event = Event::of("error", &self.term.role, Some(self.term.epoch));
        self.crew.events.tell(event.because(why));
        for claim in claims.into_iter().rev() {
            // A release must not wait for what was not carried out; the next try begins another act.
            if let Effect::Claim { slot, .. } = &claim {
                self.acts.remove(slot);
            }
            self.writes.push_front(claim);
        }
        self.in_doubt = 0;
        self.defined = false;
        Unsent::Refused
    }

    fn event(&self, event: &'static str, slot: &Slot, number: u32) -> Event {
        let mut event = Event::of(event, &self.term.role, Some(self.term.epoch));
        event.schedule = Some(slot.schedule.clone());
        (event.slot, event.attempt) = (Some(slot.at), Some(number));
        event
    }

    fn tell(&self, event: &'static str, slot: &Slot, number: u32, reason: &str) {
        let mut event = self.event(event, slot, number);
        event.reason = Some(reason.to_owned()).filter(|reason| !reason.is_empty());
        self.crew.events.tell(event);
    }
}
