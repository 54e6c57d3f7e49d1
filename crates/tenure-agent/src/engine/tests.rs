//! The engine against a table that keeps the database's promises: rows by primary key, writes by the
//! latest term alone.

use proptest::prelude::*;
use tenure::RoleName;

use super::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).expect("a time")
}

fn every(seconds: u64) -> Schedule {
    let role = RoleName::new("r").expect("a name");
    Schedule::new("s", role, &format!("@every {seconds}s")).expect("valid")
}

fn slot(second: i64) -> Slot {
    Slot { schedule: "s".to_owned(), at: at(second) }
}

fn begun(schedule: Schedule, now: i64) -> Engine {
    let mut engine = Engine::default();
    assert!(engine.define(schedule, at(now), &[], at(now)).is_empty());
    engine
}

fn claims(effects: &[Effect]) -> Vec<(i64, Fate)> {
    effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::Claim { slot, fate, .. } => Some((slot.at.as_second() - 1_800_000_000, *fate)),
            Effect::Attempt { .. }
            | Effect::Start { .. }
            | Effect::Stop { .. }
            | Effect::Requeue { .. }
            | Effect::Finish { .. } => None,
        })
        .collect()
}

/// Claims as the database would grant it, and returns what starts.
fn grant(engine: &mut Engine, effects: &[Effect], now: i64) -> Vec<Effect> {
    let mut started = Vec::new();
    for effect in effects {
        if let Effect::Claim { slot, .. } = effect {
            started.extend(engine.claimed(slot, Answer::Claimed, at(now)));
        }
    }
    started
}

#[test]
fn a_slot_starts_only_after_its_claim_is_answered() {
    let mut engine = begun(every(10), 0);
    assert!(engine.tick(at(9)).is_empty());
    assert_eq!(engine.next_timeout(), Some(at(10)));
    let effects = engine.tick(at(10));
    assert_eq!(claims(&effects), [(10, Fate::Run)]);
    assert!(engine.tick(at(10)).is_empty(), "it is asked for once");
    let started = grant(&mut engine, &effects, 10);
    assert_eq!(started, [Effect::Start { slot: slot(10), number: 1 }]);
    assert!(engine.claimed(&slot(10), Answer::Claimed, at(10)).is_empty(), "and starts once");
}

#[test]
fn a_slot_that_another_term_took_does_not_start() {
    let mut engine = begun(every(10), 0);
    engine.tick(at(10));
    assert!(engine.claimed(&slot(10), Answer::Taken, at(10)).is_empty());
    assert!(engine.is_idle());
    assert!(engine.tick(at(11)).is_empty());
}

#[test]
fn a_slot_that_is_early_for_the_database_is_claimed_again() {
    let mut engine = begun(every(10), 0);
    engine.tick(at(10));
    engine.claimed(&slot(10), Answer::Early, at(9));
    assert_eq!(claims(&engine.tick(at(10))), [(10, Fate::Run)]);
}

#[test]
fn what_is_missed_is_told_run_once_or_run_all() {
    let fates = |missed| claims(&begun(every(10).missed(missed), 0).tick(at(105)));
    let fresh = [(50, Fate::Skipped), (60, Fate::Skipped)];
    let skip = fates(Missed::Skip);
    assert_eq!(skip[..2], [(40, Fate::Missed), (50, Fate::Run)]);
    assert_eq!(skip.len(), 1 + 6);
    let once = fates(Missed::RunOnce);
    assert_eq!(once[..2], [(30, Fate::Missed), (40, Fate::Run)]);
    assert_eq!(once[2..4], fresh);
    let all = fates(Missed::RunAll);
    assert_eq!(all[..2], [(10, Fate::Run), (20, Fate::Queue)]);
    assert_eq!(all[4], fresh[0]);
}

#[test]
fn a_long_absence_is_bounded() {
    let mut engine = begun(every(1).missed(Missed::RunAll), 0);
    let effects = engine.tick(at(10 * 86_400));
    let found = claims(&effects);
    let missed: Vec<_> = found.iter().filter(|(_, fate)| *fate == Fate::Missed).collect();
    assert_eq!(missed.len(), 1);
    assert!(found.iter().filter(|(_, fate)| *fate == Fate::Queue).count() <= RUN_ALL);
    assert!(found.len() <= LOOK);
    assert!(effects.iter().any(|effect| matches!(effect, Effect::Claim { more: true, .. })));
}

#[test]
fn overlap_forbids_queues_or_replaces() {
    let run = |overlap| {
        let mut engine = begun(every(10).overlap(overlap), 0);
        let effects = engine.tick(at(10));
        grant(&mut engine, &effects, 10);
        let effects = engine.tick(at(20));
        let fate = claims(&effects)[0].1;
        grant(&mut engine, &effects, 20);
        (engine, fate)
    };
    assert_eq!(run(Overlap::Forbid).1, Fate::Skipped);

    let (mut engine, fate) = run(Overlap::Queue);
    assert_eq!(fate, Fate::Queue);
    let queued: Vec<Fate> = (3..=12)
        .map(|n| {
            let e = engine.tick(at(n * 10));
            grant(&mut engine, &e, n * 10);
            claims(&e)[0].1
        })
        .collect();
    assert_eq!(queued.iter().filter(|fate| **fate == Fate::Queue).count(), QUEUE - 1);
    assert_eq!(queued.last(), Some(&Fate::Skipped));
    engine.ended(&slot(10), 1, Outcome::Ended(true), at(125));
    engine.recorded(&slot(10));
    let next = engine.tick(at(125));
    assert_eq!(next, [Effect::Attempt { slot: slot(20), number: 1, order: None }]);

    // A run that is stopped while it starts may have no guardian yet: it was replaced all the same.
    for outcome in [Outcome::Stopped, Outcome::Lost] {
        let (mut engine, fate) = run(Overlap::Replace);
        assert_eq!(fate, Fate::Queue);
        let why = Why::Replaced;
        assert_eq!(engine.tick(at(21)), [Effect::Stop { slot: slot(10), number: 1, why }]);
        let ended = engine.ended(&slot(10), 1, outcome, at(22));
        let (how, then) = (How::Replaced, Then::Over);
        assert_eq!(ended, [Effect::Finish { slot: slot(10), number: 1, how, then }]);
        engine.recorded(&slot(10));
        let next = Effect::Attempt { slot: slot(20), number: 1, order: None };
        assert_eq!(engine.tick(at(22)), [next]);
    }
}

#[test]
fn a_later_slot_replaces_neither_an_ordered_run_nor_one_that_was_missed() {
    let ends = |effects: &[Effect]| {
        effects
            .iter()
            .filter(|effect| matches!(effect, Effect::Stop { .. } | Effect::Finish { .. }))
            .count()
    };
    let mut engine = begun(every(10).overlap(Overlap::Replace), 0);
    let order = RunOrder { id: 1, by: "an operator".to_owned() };
    let effects = engine.ordered("s", order, at(5), None);
    grant(&mut engine, &effects, 5);
    for second in [10, 20] {
        let effects = engine.tick(at(second));
        assert_eq!(claims(&effects), [(second, Fate::Queue)]);
        grant(&mut engine, &effects, second);
    }
    // The slot of the schedule itself takes the place of the one before it, and the order's run goes on.
    let effects = engine.tick(at(21));
    assert!(matches!(&effects[..], [Effect::Finish { slot: ended, .. }] if *ended == slot(10)));

    let mut engine = begun(every(10).overlap(Overlap::Replace).missed(Missed::RunAll), 0);
    let effects = engine.tick(at(85));
    grant(&mut engine, &effects, 85);
    // 10 and 20 were missed; of those from 30 on the latest alone is left.
    let effects = engine.tick(at(86));
    assert_eq!(ends(&effects), 5, "{effects:?}");
    engine.ended(&slot(10), 1, Outcome::Ended(true), at(87));
    engine.recorded(&slot(10));
    for second in (30..80).step_by(10) {
        engine.recorded(&slot(second));
    }
    let next = engine.tick(at(87));
    assert_eq!(next, [Effect::Attempt { slot: slot(20), number: 1, order: None }]);
}

#[test]
fn a_failure_is_tried_again_and_then_a_dead_letter() {
    let mut engine = begun(every(1000).retries(1).expect("valid"), 0);
    let effects = engine.tick(at(1000));
    let effects = grant(&mut engine, &effects, 1000);
    let Some(Effect::Start { slot, .. }) = effects.first().cloned() else { panic!("it starts") };
    let ended = engine.ended(&slot, 1, Outcome::Ended(false), at(1001));
    let then = Then::Retry(at(1011));
    assert_eq!(ended, [Effect::Finish { slot: slot.clone(), number: 1, how: How::Failed, then }]);
    engine.recorded(&slot);
    assert!(engine.tick(at(1010)).is_empty());
    let again = engine.tick(at(1011));
    assert_eq!(again, [Effect::Attempt { slot: slot.clone(), number: 2, order: None }]);
    engine.began(&slot, 2, true, at(1011));
    let ended = engine.ended(&slot, 2, Outcome::Ended(false), at(1012));
    let then = Then::Dead;
    assert_eq!(ended, [Effect::Finish { slot, number: 2, how: How::Failed, then }]);
}

#[test]
fn a_slot_whose_work_was_not_started_waits_for_its_turn_again() {
    let mut engine = begun(every(1000), 0);
    let effects = engine.tick(at(1000));
    grant(&mut engine, &effects, 1000);
    let back = engine.ended(&slot(1000), 1, Outcome::NotStarted, at(1001));
    assert_eq!(back, [Effect::Requeue { slot: slot(1000), number: 1 }]);
    assert!(engine.tick(at(1001)).is_empty(), "its row is being taken back");
    engine.requeued(&slot(1000));
    let again = engine.tick(at(1002));
    assert_eq!(again, [Effect::Attempt { slot: slot(1000), number: 1, order: None }]);
}

#[test]
fn a_run_has_its_timeout_and_its_drain_limit() {
    let limited = every(1000).timeout(Duration::from_secs(5)).expect("valid");
    let mut engine = begun(limited, 0);
    let effects = engine.tick(at(1000));
    grant(&mut engine, &effects, 1000);
    assert_eq!(engine.next_timeout(), Some(at(1005)));
    let why = Why::Timeout;
    assert_eq!(engine.tick(at(1005)), [Effect::Stop { slot: slot(1000), number: 1, why }]);

    let mut engine = begun(every(1000), 0);
    let effects = engine.tick(at(1000));
    grant(&mut engine, &effects, 1000);
    engine.drain(at(1100));
    assert!(engine.tick(at(1699)).is_empty(), "ten minutes are its own");
    let why = Why::Drain;
    assert_eq!(engine.tick(at(1700)), [Effect::Stop { slot: slot(1000), number: 1, why }]);
    let ended = engine.ended(&slot(1000), 1, Outcome::Stopped, at(1701));
    assert!(matches!(ended[..], [Effect::Finish { how: How::Interrupted, then: Then::Dead, .. }]));
}

#[test]
fn what_an_earlier_term_left_open_was_interrupted_and_the_rest_goes_on() {
    let open = [
        Open { at: at(10), attempts: 1, stood: Stood::Running, stays: false },
        Open { at: at(20), attempts: 0, stood: Stood::Queued, stays: false },
    ];
    let mut engine = Engine::default();
    let effects = engine.define(every(10).overlap(Overlap::Queue), at(20), &open, at(25));
    let (how, then) = (How::Interrupted, Then::Dead);
    assert_eq!(effects, [Effect::Finish { slot: slot(10), number: 1, how, then }]);
    assert!(engine.tick(at(25)).is_empty(), "first the end of the other is recorded");
    engine.recorded(&slot(10));
    let next = engine.tick(at(25));
    assert_eq!(next, [Effect::Attempt { slot: slot(20), number: 1, order: None }]);
}

#[test]
fn a_schedule_that_was_removed_begins_nothing() {
    let mut engine = begun(every(10), 0);
    engine.keep_only(|_| false);
    assert!(engine.tick(at(100)).is_empty());
    assert_eq!(engine.next_timeout(), None);
}

#[test]
fn a_schedule_that_is_defined_again_loses_no_slot_unless_it_was_removed_or_its_timing_changed() {
    let again = |kept: bool, period: u64| {
        let mut engine = begun(every(10), 0);
        let effects = engine.tick(at(10));
        grant(&mut engine, &effects, 10);
        engine.keep_only(|_| kept);
        engine.keep_only(|_| true);
        engine.define(every(period), at(35), &[], at(35));
        claims(&engine.tick(at(36)))
    };
    assert_eq!(again(true, 10), [(20, Fate::Skipped), (30, Fate::Skipped)], "its row was deleted");
    assert_eq!(again(false, 10), [], "it was removed, and came back");
    assert_eq!(again(true, 9), [(36, Fate::Skipped)], "a changed timing never fires the past");
}

#[test]
fn a_slot_that_waits_for_its_turn_is_let_go_with_its_schedule() {
    let mut engine = begun(every(10).overlap(Overlap::Queue), 0);
    let effects = engine.tick(at(10));
    grant(&mut engine, &effects, 10);
    let effects = engine.tick(at(20));
    assert_eq!(claims(&effects), [(20, Fate::Queue)]);
    grant(&mut engine, &effects, 20);
    engine.keep_only(|_| false);
    engine.ended(&slot(10), 1, Outcome::Ended(true), at(21));
    engine.recorded(&slot(10));
    assert!(engine.tick(at(30)).is_empty(), "the database has it as missed");
    assert!(engine.is_idle());
}

/// The rows of one schedule, as the database keeps them.
#[derive(Debug, Default)]
struct Table {
    epoch: u32,
    watermark: i64,
    slots: BTreeMap<Timestamp, Row>,
    starts: BTreeMap<(Timestamp, u32), usize>,
}

#[derive(Debug)]
struct Row {
    epoch: u32,
    attempts: u32,
    state: RowState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RowState {
    Queued,
    Running,
    Waiting(Timestamp),
    Over,
}

/// A leader of one epoch, with what it has asked and not heard.
struct Leader {
    epoch: u32,
    engine: Engine,
    asked: VecDequeOf<Effect>,
    running: Vec<(Slot, u32)>,
    draining: bool,
    /// Whether the effect in front was sent before, and its answer lost.
    in_doubt: bool,
}

type VecDequeOf<T> = std::collections::VecDeque<T>;

impl Table {
    fn lead(&mut self, schedule: &Schedule, now: i64) -> Leader {
        self.epoch += 1;
        let open: Vec<Open> = self
            .slots
            .iter()
            .filter_map(|(at, row)| {
                let stood = match row.state {
                    RowState::Queued => Stood::Queued,
                    RowState::Running => Stood::Running,
                    RowState::Waiting(until) => Stood::Waiting(until),
                    RowState::Over => return None,
                };
                Some(Open { at: *at, attempts: row.attempts, stood, stays: false })
            })
            .collect();
        let mut engine = Engine::default();
        let asked = engine.define(schedule.clone(), at(self.watermark), &open, at(now)).into();
        let (draining, in_doubt) = (false, false);
        Leader { epoch: self.epoch, engine, asked, running: Vec::new(), draining, in_doubt }
    }

    /// Carries a statement out as the fence lets it; the answer may be lost.
    fn carry_out(&mut self, leader: &mut Leader, effect: &Effect, lost: bool, now: i64) {
        if leader.epoch != self.epoch {
            return;
        }
        leader.in_doubt = lost;
        let effects = match effect {
            Effect::Claim { slot, fate, .. } => {
                let state = match fate {
                    Fate::Run => RowState::Running,
                    Fate::Queue => RowState::Queued,
                    Fate::Missed | Fate::Skipped => RowState::Over,
                };
                let attempts = u32::from(*fate == Fate::Run);
                let epoch = leader.epoch;
                let row = self.slots.entry(slot.at);
                let row = row.or_insert(Row { epoch, attempts, state });
                let mine = row.epoch == epoch && row.state == state && row.attempts == attempts;
                self.watermark = self.watermark.max(slot.at.as_second() - 1_800_000_000);
                let answer = if mine { Answer::Claimed } else { Answer::Taken };
                if lost {
                    leader.asked.push_front(effect.clone());
                    return;
                }
                leader.engine.claimed(slot, answer, at(now))
            }
            Effect::Attempt { slot, number, .. } => {
                let row = self.slots.get_mut(&slot.at).expect("it was claimed");
                let first = row.attempts + 1 == *number && row.state != RowState::Running;
                let again = row.attempts == *number
                    && row.state == RowState::Running
                    && row.epoch == leader.epoch;
                if first || again {
                    *row = Row { epoch: leader.epoch, attempts: *number, state: RowState::Running };
                }
                if lost {
                    leader.asked.push_front(effect.clone());
                    return;
                }
                leader.engine.began(slot, *number, first || again, at(now))
            }
            Effect::Finish { slot, then, .. } => {
                let row = self.slots.get_mut(&slot.at).expect("it was claimed");
                row.epoch = leader.epoch;
                row.state = match then {
                    Then::Retry(until) => RowState::Waiting(*until),
                    Then::Over | Then::Dead => RowState::Over,
                };
                if lost {
                    leader.asked.push_front(effect.clone());
                    return;
                }
                leader.engine.recorded(slot);
                Vec::new()
            }
            Effect::Requeue { slot, number } => {
                let row = self.slots.get_mut(&slot.at).expect("it was claimed");
                if row.state == RowState::Running
                    && row.attempts == *number
                    && row.epoch == leader.epoch
                {
                    (row.state, row.attempts) = (RowState::Queued, number - 1);
                }
                if lost {
                    leader.asked.push_front(effect.clone());
                    return;
                }
                leader.engine.requeued(slot);
                Vec::new()
            }
            Effect::Start { .. } | Effect::Stop { .. } => Vec::new(),
        };
        self.take(leader, effects);
    }

    fn take(&mut self, leader: &mut Leader, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Start { slot, number } if leader.draining => {
                    let now = slot.at;
                    let effects = leader.engine.ended(&slot, number, Outcome::NotStarted, now);
                    leader.asked.extend(effects);
                }
                Effect::Start { slot, number } => {
                    *self.starts.entry((slot.at, number)).or_default() += 1;
                    assert!(leader.running.is_empty(), "two runs of a schedule at once");
                    leader.running.push((slot, number));
                }
                Effect::Stop { .. } => {}
                Effect::Claim { .. }
                | Effect::Attempt { .. }
                | Effect::Requeue { .. }
                | Effect::Finish { .. } => {
                    leader.asked.push_back(effect);
                }
            }
        }
    }

    /// As the driver does it: what was not sent yet is dropped, except what ends an attempt.
    fn drain(leader: &mut Leader, now: i64) {
        leader.draining = true;
        leader.engine.drain(at(now));
        let mut sent = leader.in_doubt;
        leader.asked.retain(|effect| {
            std::mem::take(&mut sent)
                || !matches!(effect, Effect::Claim { .. } | Effect::Attempt { .. })
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Whatever is lost, whenever a leader dies or hands over: an attempt starts at most once, a slot without
    /// retries has one attempt, and a hand-over that ends in order leaves no slot as running that did not start.
    #[test]
    fn an_attempt_starts_at_most_once_across_terms_and_lost_answers(
        period in 1_u64..20,
        retries in 0_u32..3,
        overlap in prop::sample::select(vec![Overlap::Forbid, Overlap::Queue, Overlap::Replace]),
        missed in prop::sample::select(vec![Missed::Skip, Missed::RunOnce, Missed::RunAll]),
        steps in prop::collection::vec((0_u8..9, any::<bool>(), 0_i64..90), 1..120),
    ) {
        let schedule = every(period).retries(retries).expect("valid").overlap(overlap).missed(missed);
        let mut table = Table::default();
        let mut now = 0;
        let mut leader = table.lead(&schedule, now);
        for (step, odd, seconds) in steps {
            match step {
                0 => {
                    // The leader dies; what ran is gone with it, and the next one begins later.
                    now += seconds;
                    if leader.draining && leader.asked.is_empty() {
                        let runs = |at: &Timestamp| leader.running.iter().any(|(slot, _)| slot.at == *at);
                        let lost = table.slots.iter().filter(|(at, row)| {
                            row.epoch == leader.epoch && row.state == RowState::Running && !runs(at)
                        });
                        prop_assert_eq!(lost.count(), 0, "a slot that did not start is not lost");
                    }
                    leader = table.lead(&schedule, now);
                }
                1 | 2 => {
                    now += if odd { seconds } else { 1 };
                    let effects = leader.engine.tick(at(now));
                    table.take(&mut leader, effects);
                }
                3..=5 => {
                    if let Some(effect) = leader.asked.pop_front() {
                        table.carry_out(&mut leader, &effect, odd && step == 3, now);
                    }
                }
                8 => Table::drain(&mut leader, now),
                _ => {
                    if let Some((slot, number)) = leader.running.pop() {
                        let outcome = if odd { Outcome::Ended(true) } else { Outcome::Ended(false) };
                        let effects = leader.engine.ended(&slot, number, outcome, at(now));
                        table.take(&mut leader, effects);
                    }
                }
            }
        }
        for ((slot, number), count) in &table.starts {
            prop_assert_eq!(*count, 1, "attempt {} of {} started {} times", number, slot, count);
            prop_assert!(*number <= retries + 1);
        }
    }
}
