//! What the leader of a role does about its schedules: pure. One engine lives for one term.
//!
//! ```text
//!  due ──claim──► running ──ended──► finish ──► succeeded, failed, interrupted, replaced
//!   │                ▲                  │
//!   ├──► queued ─────┤ attempt          └──► waiting (a retry) ──attempt──► running
//!   │      ▲─requeue─┘ its work did not start
//!   └──► missed, skipped (written down)
//! ```
//!
//! It takes inputs and the database's time, and returns effects. A driver carries them out in order.
//!
//! # Why a slot fires at most once
//!
//! Work starts ([`Effect::Start`]) only after the database answered that the attempt's row is there and
//! that this term wrote it. An answer that was lost is asked for again; the work of that attempt has not
//! begun then, because nothing but the answer lets it begin. A term's engine is dropped for good with the
//! term, and the next term's claims of the same slot meet the primary key. An attempt's row is taken back
//! ([`Effect::Requeue`]) only after the driver said that it did not start the work ([`Outcome::NotStarted`]), and
//! before the same term may ask for another attempt.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::definition::{MISSED_AFTER, Missed, Overlap, QUEUE, RUN_ALL, Schedule};

#[cfg(test)]
mod tests;

/// How many slots are looked at together: all that are not missed yet, and all that `run_all` runs.
const LOOK: usize = 200;

/// A slot of a schedule.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Slot {
    pub schedule: String,
    /// The planned instant, or that of an order.
    pub at: Timestamp,
}

/// What a slot becomes when it is claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Its first attempt starts at once.
    Run,
    /// It waits for its turn.
    Queue,
    /// It was not fired in time.
    Missed,
    /// An earlier one has not ended.
    Skipped,
}

/// How an attempt ended. A closed set: the column `how` has no other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, strum::Display)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum How {
    /// By itself, well.
    Succeeded,
    /// By itself, badly; or it could not be started.
    Failed,
    /// It took longer than its limit.
    Timeout,
    /// Its leader was gone, or had to hand over.
    Interrupted,
    /// A later slot took its place.
    Replaced,
}

/// Where a slot stands. A closed set: the column `state` has no other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, strum::Display)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum SlotState {
    /// It waits for its turn.
    Queued,
    /// An attempt has begun, and its end is not written down.
    Running,
    /// It waits to be tried again.
    Waiting,
    /// Its last attempt ended well.
    Succeeded,
    /// Its last attempt failed or took too long: a dead letter.
    Failed,
    /// Its leader was gone, or had to hand over: a dead letter.
    Interrupted,
    /// A later slot took its place.
    Replaced,
    /// It was not fired in time.
    Missed,
    /// An earlier one had not ended.
    Skipped,
}

/// What an attempt did, as its runner saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It ended by itself; true: well.
    Ended(bool),
    /// It was told to stop, and did not say that it was done.
    Stopped,
    /// It ended with the lease.
    Lost,
    /// It was not started, and never will be by this term: the role is being handed over, or the gate shut.
    NotStarted,
}

/// Why an attempt is told to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// It took longer than its limit.
    Timeout,
    /// A later slot takes its place.
    Replaced,
    /// The role is handed over, and the limit of that is reached.
    Drain,
}

/// What becomes of a slot after an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Then {
    /// It has its final outcome.
    Over,
    /// It is over, and a person should look: a dead letter.
    Dead,
    /// It is tried again.
    Retry(Timestamp),
}

/// What the driver is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Insert the slot's row.
    Claim {
        slot: Slot,
        fate: Fate,
        /// How many slots before it were missed with it.
        missed: usize,
        /// And more than that.
        more: bool,
        /// The order that asked for it.
        order: Option<RunOrder>,
    },
    /// Insert the row of a further attempt.
    Attempt {
        slot: Slot,
        /// Which attempt of the slot, from 1.
        number: u32,
        /// The order that asked for it.
        order: Option<RunOrder>,
    },
    /// Start the work: its row is there.
    Start {
        slot: Slot,
        /// Which attempt of the slot, from 1.
        number: u32,
    },
    /// Tell the work to stop.
    Stop {
        slot: Slot,
        /// Which attempt of the slot, from 1.
        number: u32,
        /// What ended it: it goes into the row.
        why: Why,
    },
    /// Take the attempt's row back: its work did not start. The slot waits for its turn again.
    Requeue {
        slot: Slot,
        /// Which attempt of the slot, from 1.
        number: u32,
    },
    /// Record the end.
    Finish {
        slot: Slot,
        /// The attempt's number; 0: none was made.
        number: u32,
        how: How,
        then: Then,
    },
}

/// The database's word on a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The row is there, and this term wrote it.
    Claimed,
    /// Another term has it.
    Taken,
    /// The database's clock has not come to it.
    Early,
}

/// An operator's order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunOrder {
    pub id: i64,
    pub by: String,
}

/// A slot that a term before this one left open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Open {
    pub at: Timestamp,
    /// How many attempts it had.
    pub attempts: u32,
    pub stood: Stood,
    /// No later slot takes its place: see [`Overlap::Replace`].
    pub stays: bool,
}

/// Where an open slot stood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stood {
    /// It waited for its turn.
    Queued,
    /// Its last attempt has no end.
    Running,
    /// It waits to be tried again.
    Waiting(Timestamp),
}

/// The decisions of one term.
#[derive(Debug, Default)]
pub struct Engine {
    schedules: BTreeMap<String, Planned>,
    draining: Option<Timestamp>,
}

#[derive(Debug)]
struct Planned {
    definition: Schedule,
    /// Every slot up to here is decided, or is being decided.
    watermark: Timestamp,
    slots: BTreeMap<Timestamp, Progress>,
    /// Taken out of the leader's file: what is open ends, and nothing begins.
    removed: bool,
}

#[derive(Debug)]
struct Progress {
    number: u32,
    step: Step,
    /// Ordered, or missed and run all the same: no later slot takes its place.
    stays: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// The row is being inserted.
    Claiming(Fate),
    Queued,
    Waiting(Timestamp),
    /// The attempt's row is being inserted.
    Attempting,
    Running {
        since: Timestamp,
        stopping: Option<Why>,
    },
    /// The attempt's row is being taken back.
    Requeueing,
    /// The end is being recorded.
    Finishing(Then),
}

impl Step {
    /// Whether work may run, or is about to.
    fn is_busy(self) -> bool {
        match self {
            Step::Claiming(fate) => fate == Fate::Run,
            Step::Attempting | Step::Running { .. } | Step::Requeueing | Step::Finishing(_) => true,
            Step::Queued | Step::Waiting(_) => false,
        }
    }
}

impl Engine {
    /// Adds a schedule, or changes its definition, as the database has just taken it over. What an earlier
    /// term left open goes on from there; what had begun was interrupted.
    pub fn define(
        &mut self,
        definition: Schedule,
        watermark: Timestamp,
        open: &[Open],
        now: Timestamp,
    ) -> Vec<Effect> {
        let name = definition.name().to_owned();
        if let Some(planned) = self.schedules.get_mut(&name) {
            // A row that was deleted by hand is made again with the present as its watermark: what fell due meanwhile
            // is not decided by that.
            if planned.removed || planned.definition.timing() != definition.timing() {
                planned.watermark = planned.watermark.max(watermark);
            }
            planned.definition = definition;
            planned.removed = false;
            return Vec::new();
        }
        let mut effects = Vec::new();
        let mut slots = BTreeMap::new();
        for slot in open {
            let step = match slot.stood {
                Stood::Queued => Step::Queued,
                Stood::Waiting(until) => Step::Waiting(until),
                Stood::Running => {
                    let then = after(&definition, How::Interrupted, slot.attempts, now);
                    effects.push(Effect::Finish {
                        slot: Slot { schedule: name.clone(), at: slot.at },
                        number: slot.attempts,
                        how: How::Interrupted,
                        then,
                    });
                    Step::Finishing(then)
                }
            };
            slots.insert(slot.at, Progress { number: slot.attempts, step, stays: slot.stays });
        }
        self.schedules.insert(name, Planned { definition, watermark, slots, removed: false });
        effects
    }

    /// The leader's file has only these any more. What waited for its turn has been written down as missed. One that
    /// was removed before, and is back, begins again with [`Engine::define`].
    pub fn keep_only(&mut self, is_kept: impl Fn(&str) -> bool) {
        self.schedules.retain(|name, planned| {
            if is_kept(name) {
                return true;
            }
            planned.removed = true;
            planned.slots.retain(|_, progress| progress.step != Step::Queued);
            !planned.slots.is_empty()
        });
    }

    /// Decides what is due.
    pub fn tick(&mut self, now: Timestamp) -> Vec<Effect> {
        let mut effects = Vec::new();
        let draining = self.draining;
        for (name, planned) in &mut self.schedules {
            planned.stop_overdue(name, now, draining, &mut effects);
            if draining.is_none() {
                if !planned.removed {
                    planned.fire(name, now, &mut effects);
                }
                planned.replace(name, &mut effects);
                planned.start_next(name, now, &mut effects);
            }
        }
        effects
    }

    /// The role is being handed over: nothing begins any more, and what runs has its drain limit.
    pub fn drain(&mut self, now: Timestamp) {
        self.draining.get_or_insert(now);
    }

    /// An operator wants a run of its own (`again` none), or a dead letter again after so many attempts. An
    /// order is never dropped for an overlap: it waits for its turn.
    pub fn ordered(
        &mut self,
        schedule: &str,
        order: RunOrder,
        given: Timestamp,
        again: Option<(Timestamp, u32)>,
    ) -> Vec<Effect> {
        if self.draining.is_some() {
            return Vec::new();
        }
        let Some(planned) = self.schedules.get_mut(schedule).filter(|planned| !planned.removed)
        else {
            return Vec::new();
        };
        let at = again.map_or(given, |(at, _)| at);
        // The order is still in the table until its claim is answered.
        if planned.slots.contains_key(&at) {
            return Vec::new();
        }
        let slot = Slot { schedule: schedule.to_owned(), at };
        match again {
            // It keeps its place in the table until its turn comes: the order is seen again then.
            Some(_) if planned.is_busy() => Vec::new(),
            Some((_, attempts)) => {
                let number = attempts + 1;
                planned.slots.insert(at, Progress { number, step: Step::Attempting, stays: true });
                vec![Effect::Attempt { slot, number, order: Some(order) }]
            }
            None => {
                let fate = if planned.is_busy() { Fate::Queue } else { Fate::Run };
                let step = Step::Claiming(fate);
                planned.slots.insert(at, Progress { number: 0, step, stays: true });
                vec![Effect::Claim { slot, fate, missed: 0, more: false, order: Some(order) }]
            }
        }
    }

    /// The database answered a claim.
    pub fn claimed(&mut self, slot: &Slot, answer: Answer, now: Timestamp) -> Vec<Effect> {
        let Some(planned) = self.schedules.get_mut(&slot.schedule) else { return Vec::new() };
        let Some(progress) = planned.slots.get_mut(&slot.at) else { return Vec::new() };
        let Step::Claiming(fate) = progress.step else { return Vec::new() };
        match (answer, fate) {
            (Answer::Claimed, Fate::Run) => {
                progress.number = 1;
                progress.step = Step::Running { since: now, stopping: None };
                vec![Effect::Start { slot: slot.clone(), number: 1 }]
            }
            (Answer::Claimed, Fate::Queue) => {
                progress.step = Step::Queued;
                Vec::new()
            }
            (Answer::Claimed, Fate::Missed | Fate::Skipped) | (Answer::Taken, _) => {
                planned.slots.remove(&slot.at);
                Vec::new()
            }
            (Answer::Early, _) => {
                planned.slots.remove(&slot.at);
                let before = slot.at - SignedDuration::from_millis(1);
                planned.watermark = planned.watermark.min(before);
                Vec::new()
            }
        }
    }

    /// The database answered whether an attempt's row is there.
    pub fn began(&mut self, slot: &Slot, number: u32, began: bool, now: Timestamp) -> Vec<Effect> {
        let Some(planned) = self.schedules.get_mut(&slot.schedule) else { return Vec::new() };
        let Some(progress) = planned.slots.get_mut(&slot.at) else { return Vec::new() };
        if progress.step != Step::Attempting || progress.number != number {
            return Vec::new();
        }
        if !began {
            planned.slots.remove(&slot.at);
            return Vec::new();
        }
        progress.step = Step::Running { since: now, stopping: None };
        vec![Effect::Start { slot: slot.clone(), number }]
    }

    /// The work of an attempt is over, and nothing of it runs any more.
    pub fn ended(
        &mut self,
        slot: &Slot,
        number: u32,
        outcome: Outcome,
        now: Timestamp,
    ) -> Vec<Effect> {
        let Some(planned) = self.schedules.get_mut(&slot.schedule) else { return Vec::new() };
        let Some(progress) = planned.slots.get_mut(&slot.at) else { return Vec::new() };
        let Step::Running { stopping, .. } = progress.step else { return Vec::new() };
        if progress.number != number {
            return Vec::new();
        }
        let how = match (outcome, stopping) {
            (Outcome::NotStarted, _) => {
                progress.step = Step::Requeueing;
                return vec![Effect::Requeue { slot: slot.clone(), number }];
            }
            (Outcome::Ended(true), _) => How::Succeeded,
            (Outcome::Lost, None) | (_, Some(Why::Drain)) => How::Interrupted,
            (_, Some(Why::Timeout)) => How::Timeout,
            (_, Some(Why::Replaced)) => How::Replaced,
            (Outcome::Ended(false), None) => How::Failed,
            (Outcome::Stopped, None) => How::Interrupted,
        };
        let then = after(&planned.definition, how, number, now);
        progress.step = Step::Finishing(then);
        vec![Effect::Finish { slot: slot.clone(), number, how, then }]
    }

    /// The row of an attempt that did not start is gone: the slot waits for its turn, here or in another term. Of a
    /// schedule that was removed it is over.
    pub fn requeued(&mut self, slot: &Slot) {
        let Some(planned) = self.schedules.get_mut(&slot.schedule) else { return };
        let Some(progress) = planned.slots.get_mut(&slot.at) else { return };
        if progress.step != Step::Requeueing {
            return;
        }
        if planned.removed {
            planned.slots.remove(&slot.at);
        } else {
            progress.number = progress.number.saturating_sub(1);
            progress.step = Step::Queued;
        }
    }

    /// The end of an attempt is recorded.
    pub fn recorded(&mut self, slot: &Slot) {
        let Some(planned) = self.schedules.get_mut(&slot.schedule) else { return };
        let Some(progress) = planned.slots.get_mut(&slot.at) else { return };
        let Step::Finishing(then) = progress.step else { return };
        match then {
            Then::Retry(at) if !planned.removed => progress.step = Step::Waiting(at),
            Then::Retry(_) | Then::Over | Then::Dead => {
                planned.slots.remove(&slot.at);
            }
        }
    }

    /// When [`Engine::tick`] has something to do without another input.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Timestamp> {
        self.schedules.values().filter_map(|planned| planned.next_timeout(self.draining)).min()
    }

    /// The slot after now of a schedule, for people.
    #[must_use]
    pub fn next_slot(&self, schedule: &str, now: Timestamp) -> Option<Timestamp> {
        self.schedules.get(schedule)?.definition.when().next(now)
    }

    /// Whether work runs, or is about to.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        !self.schedules.values().any(Planned::is_busy)
    }
}

/// What becomes of a slot whose attempt ended so.
fn after(definition: &Schedule, how: How, number: u32, now: Timestamp) -> Then {
    match how {
        How::Succeeded | How::Replaced => Then::Over,
        How::Failed | How::Timeout | How::Interrupted => {
            match definition.pause_before(number.saturating_add(1)) {
                Some(pause) => Then::Retry(later(now, pause)),
                None => Then::Dead,
            }
        }
    }
}

fn later(at: Timestamp, by: Duration) -> Timestamp {
    SignedDuration::try_from(by)
        .ok()
        .and_then(|by| at.checked_add(by).ok())
        .unwrap_or(Timestamp::MAX)
}

impl Planned {
    fn is_busy(&self) -> bool {
        self.slots.values().any(|progress| progress.step.is_busy())
    }

    fn fire(&mut self, name: &str, now: Timestamp, effects: &mut Vec<Effect>) {
        if now <= self.watermark {
            return;
        }
        let (slots, mut more) = self.definition.when().latest(self.watermark, now, LOOK);
        let Some(last) = slots.last() else { return };
        self.watermark = *last;
        let old = now - MISSED_AFTER;
        let (missed, due): (Vec<Timestamp>, Vec<Timestamp>) =
            slots.into_iter().partition(|at| *at < old);
        let run = match self.definition.on_missed() {
            Missed::Skip => 0,
            Missed::RunOnce => 1,
            Missed::RunAll => RUN_ALL,
        };
        let (passed, wanted) = missed.split_at(missed.len().saturating_sub(run));
        if let Some((last, before)) = passed.split_last() {
            effects.push(self.claim(name, *last, Fate::Missed, before.len(), more, false));
            more = false;
        }
        for at in wanted {
            // One after another, whatever the overlap says: each would have had its own time.
            let fate = if self.is_free() { Fate::Run } else { Fate::Queue };
            effects.push(self.claim(name, *at, fate, 0, more, true));
            more = false;
        }
        for at in due {
            let fate = self.fate();
            effects.push(self.claim(name, at, fate, 0, more, false));
            more = false;
        }
    }

    /// Whether no slot runs or waits.
    fn is_free(&self) -> bool {
        self.slots.values().all(|progress| match progress.step {
            Step::Claiming(Fate::Missed | Fate::Skipped) => true,
            Step::Claiming(Fate::Run | Fate::Queue)
            | Step::Queued
            | Step::Waiting(_)
            | Step::Attempting
            | Step::Running { .. }
            | Step::Requeueing
            | Step::Finishing(_) => false,
        })
    }

    /// What a slot that is due becomes.
    fn fate(&self) -> Fate {
        if self.is_free() {
            return Fate::Run;
        }
        match self.definition.on_overlap() {
            Overlap::Forbid => Fate::Skipped,
            Overlap::Queue => {
                let waits = |progress: &&Progress| match progress.step {
                    Step::Claiming(fate) => fate == Fate::Queue,
                    Step::Queued | Step::Waiting(_) | Step::Requeueing => true,
                    Step::Attempting | Step::Running { .. } | Step::Finishing(_) => false,
                };
                if self.slots.values().filter(waits).count() < QUEUE {
                    Fate::Queue
                } else {
                    Fate::Skipped
                }
            }
            // It takes the place of the others once it is claimed.
            Overlap::Replace => Fate::Queue,
        }
    }

    /// Ends everything before the latest slot that waits for its turn, except what was ordered, or missed and is
    /// run all the same: that has its own turn.
    fn replace(&mut self, name: &str, effects: &mut Vec<Effect>) {
        if self.definition.on_overlap() != Overlap::Replace {
            return;
        }
        let waits = |(_, progress): &(&Timestamp, &Progress)| {
            progress.step == Step::Queued && !progress.stays
        };
        let Some(latest) = self.slots.iter().rfind(waits).map(|(at, _)| *at) else { return };
        for (at, progress) in self.slots.range_mut(..latest).filter(|(_, progress)| !progress.stays)
        {
            let slot = Slot { schedule: name.to_owned(), at: *at };
            match &mut progress.step {
                Step::Running { stopping: stopping @ None, .. } => {
                    *stopping = Some(Why::Replaced);
                    let number = progress.number;
                    effects.push(Effect::Stop { slot, number, why: Why::Replaced });
                }
                Step::Queued | Step::Waiting(_) => {
                    progress.step = Step::Finishing(Then::Over);
                    let (number, how) = (progress.number, How::Replaced);
                    effects.push(Effect::Finish { slot, number, how, then: Then::Over });
                }
                // What is on its way is ended when it has arrived.
                Step::Running { .. }
                | Step::Claiming(_)
                | Step::Attempting
                | Step::Requeueing
                | Step::Finishing(_) => {}
            }
        }
    }

    fn claim(
        &mut self,
        name: &str,
        at: Timestamp,
        fate: Fate,
        missed: usize,
        more: bool,
        stays: bool,
    ) -> Effect {
        self.slots.insert(at, Progress { number: 0, step: Step::Claiming(fate), stays });
        let slot = Slot { schedule: name.to_owned(), at };
        Effect::Claim { slot, fate, missed, more, order: None }
    }

    /// Starts what waits for its turn, the earliest first, if nothing runs.
    fn start_next(&mut self, name: &str, now: Timestamp, effects: &mut Vec<Effect>) {
        if self.is_busy() {
            return;
        }
        let removed = self.removed;
        let next = self.slots.iter_mut().find(|(_, progress)| match progress.step {
            Step::Queued => true,
            Step::Waiting(until) => removed || until <= now,
            Step::Claiming(_)
            | Step::Attempting
            | Step::Running { .. }
            | Step::Requeueing
            | Step::Finishing(_) => false,
        });
        let Some((at, progress)) = next else { return };
        let slot = Slot { schedule: name.to_owned(), at: *at };
        if removed {
            progress.step = Step::Finishing(Then::Dead);
            let (number, how) = (progress.number, How::Interrupted);
            effects.push(Effect::Finish { slot, number, how, then: Then::Dead });
            return;
        }
        progress.number += 1;
        progress.step = Step::Attempting;
        effects.push(Effect::Attempt { slot, number: progress.number, order: None });
    }

    fn stop_overdue(
        &mut self,
        name: &str,
        now: Timestamp,
        draining: Option<Timestamp>,
        effects: &mut Vec<Effect>,
    ) {
        let (limit, drain) = (self.definition.limit(), self.definition.drain());
        for (at, progress) in &mut self.slots {
            let Step::Running { since, stopping: stopping @ None } = &mut progress.step else {
                continue;
            };
            let why = if limit.is_some_and(|limit| later(*since, limit) <= now) {
                Why::Timeout
            } else if draining.is_some_and(|begun| later(begun, drain) <= now) {
                Why::Drain
            } else {
                continue;
            };
            *stopping = Some(why);
            let slot = Slot { schedule: name.to_owned(), at: *at };
            effects.push(Effect::Stop { slot, number: progress.number, why });
        }
    }

    fn next_timeout(&self, draining: Option<Timestamp>) -> Option<Timestamp> {
        let (limit, drain) = (self.definition.limit(), self.definition.drain());
        let busy = self.is_busy();
        let slots = self.slots.values().filter_map(|progress| match progress.step {
            Step::Running { since, stopping: None } => {
                let times =
                    [limit.map(|limit| later(since, limit)), draining.map(|at| later(at, drain))];
                times.into_iter().flatten().min()
            }
            Step::Waiting(until) if !busy && draining.is_none() => Some(until),
            Step::Queued if !busy && draining.is_none() => Some(Timestamp::MIN),
            Step::Running { .. }
            | Step::Waiting(_)
            | Step::Queued
            | Step::Claiming(_)
            | Step::Attempting
            | Step::Requeueing
            | Step::Finishing(_) => None,
        });
        let next = if draining.is_none() && !self.removed {
            self.definition.when().next(self.watermark)
        } else {
            None
        };
        slots.chain(next).min()
    }
}
