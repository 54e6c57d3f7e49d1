//! What holds of the lifecycle whatever happens, in whatever order.
#![cfg(not(loom))]

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use tenure_core::{
    Effect, Epoch, FixedInterval, Input, Lifecycle, LifecycleOptions, LockState, NotAcquired,
    Notice, RetryContext, RetryStrategy, Tick,
};

/// Something that happens to a role.
#[derive(Clone, Debug)]
enum Event {
    Input(Input),
    /// Time passes, in milliseconds, and what is due is handled.
    Pass(u64),
    /// Time passes to the next timeout.
    ToTimeout,
}

#[derive(Copy, Clone, Debug, PartialEq)]
enum Gate {
    Shut,
    Open(Epoch),
    Draining,
}

/// A lifecycle and an independent account of what its effects add up to.
struct World {
    life: Lifecycle,
    now: Tick,
    gate: Gate,
    /// The term that was told and not yet ended.
    led: Option<Epoch>,
    last_term: Epoch,
    last_win: Epoch,
    /// Whether the session holds the lock, as the database would see it.
    held: bool,
    releasing: bool,
}

impl World {
    fn new(opts: LifecycleOptions) -> Self {
        World {
            life: Lifecycle::new(opts),
            now: Tick::from_nanos(1),
            gate: Gate::Shut,
            led: None,
            last_term: Epoch::ZERO,
            last_win: Epoch::ZERO,
            held: false,
            releasing: false,
        }
    }

    fn event(&mut self, event: &Event, random: f64) {
        match event {
            Event::Input(input) => {
                let input = self.plausible(input.clone());
                self.input(input, random);
            }
            Event::Pass(ms) => {
                let to = self.now + Duration::from_millis(*ms);
                let due = self.life.next_timeout().is_some_and(|at| at <= to);
                self.now = to;
                let effects = self.timeout(random);
                assert!(due || effects.is_empty(), "early: {effects:?}");
            }
            Event::ToTimeout => {
                if let Some(at) = self.life.next_timeout() {
                    self.now = self.now.max(at);
                    // One thing may lead to another at the same instant, but not for ever: grace
                    // over, drained, unlocked, tried again.
                    let due =
                        |life: &Lifecycle, now| life.next_timeout().is_some_and(|at| at <= now);
                    for _ in 0..4 {
                        self.timeout(random);
                    }
                    assert!(!due(&self.life, self.now), "stays due: {:?}", self.life);
                }
            }
        }
    }

    /// Most answers are about the term in question, and most wins are new: low numbers stand for
    /// those, high ones for answers from another time.
    fn plausible(&self, mut input: Input) -> Input {
        match &mut input {
            Input::Claimed { epoch, .. } if epoch.0 <= 25 => {
                epoch.0 = self.last_win.0 + 1 + epoch.0 % 3;
            }
            Input::MarkedActing { epoch } | Input::Reclaimed { epoch } if epoch.0 <= 20 => {
                *epoch = self.life.epoch().unwrap_or(*epoch);
            }
            _ => {}
        }
        input
    }

    fn input(&mut self, input: Input, random: f64) -> Vec<Effect> {
        match &input {
            Input::Claimed { epoch, .. } | Input::Reclaimed { epoch } => {
                self.held = true;
                self.last_win = self.last_win.max(*epoch);
            }
            Input::Released if self.releasing => {
                (self.held, self.releasing) = (false, false);
            }
            Input::SessionLost { .. } => (self.held, self.releasing) = (false, false),
            _ => {}
        }
        let before = self.life.state();
        let effects = self.life.handle(input, self.now, random);
        self.account(before, &effects);
        effects
    }

    fn timeout(&mut self, random: f64) -> Vec<Effect> {
        let before = self.life.state();
        let effects = self.life.handle_timeout(self.now, random);
        self.account(before, &effects);
        effects
    }

    fn account(&mut self, before: LockState, effects: &[Effect]) {
        let after = self.life.state();
        let mut state = before;
        let mut stopped = false;
        for effect in effects {
            match effect {
                Effect::OpenGate { epoch } => {
                    assert_eq!(after, LockState::Leader, "opened in {after}");
                    self.gate = Gate::Open(*epoch);
                }
                Effect::ShutGate => self.gate = Gate::Shut,
                Effect::DrainGate { .. } => self.gate = Gate::Draining,
                Effect::Claim => assert!(!self.held, "claims a lock it may hold"),
                Effect::Release { .. } => self.releasing = true,
                Effect::CycleSession => (self.held, self.releasing) = (false, false),
                Effect::Join
                | Effect::Leave
                | Effect::MarkActing { .. }
                | Effect::Reclaim { .. } => {}
                Effect::Notify(notice) => match notice {
                    Notice::StateChange { from, to } => {
                        assert_eq!(*from, state);
                        assert_ne!(from, to);
                        state = *to;
                    }
                    Notice::Acquired { epoch } => {
                        assert_eq!(self.led, None, "a term began before the last one ended");
                        assert!(*epoch > self.last_term, "{epoch} after {}", self.last_term);
                        (self.led, self.last_term) = (Some(*epoch), *epoch);
                    }
                    Notice::Released { epoch } | Notice::Lost { epoch, .. } => {
                        assert_eq!(self.led.take(), Some(*epoch), "an end without a beginning");
                    }
                    Notice::Late { epoch }
                    | Notice::Well { epoch }
                    | Notice::Recovered { epoch } => {
                        assert_eq!(self.led, Some(*epoch));
                    }
                    Notice::Stopped => stopped = true,
                    Notice::AcquireFailed { .. } | Notice::Error(_) => {}
                },
            }
        }
        assert_eq!(state, after, "every change of state is told");
        assert_eq!(stopped, before != after && after == LockState::Stopped);
        if before == LockState::Leader && after != LockState::Leader {
            let first = effects.first();
            assert!(
                matches!(first, Some(Effect::ShutGate | Effect::DrainGate { .. })),
                "left LEADER with {first:?} first"
            );
        }
        match self.gate {
            Gate::Shut => {}
            Gate::Open(epoch) => {
                assert_eq!((after, self.led), (LockState::Leader, Some(epoch)));
            }
            Gate::Draining => assert_eq!(after, LockState::Releasing),
        }
        let leads = matches!(after, LockState::Leader | LockState::Reconnecting);
        assert!(!leads || self.led.is_some());
        if matches!(after, LockState::Stopped | LockState::Follower) {
            assert_eq!(self.led, None, "a term goes on in {after}");
            assert!(!self.held || self.releasing, "{after} keeps a lock");
        }
        assert!(
            !self.held || self.life.holds_lock(),
            "a lock that the life does not know of: {:?}",
            self.life
        );
    }
}

/// Gives up at the fifth attempt, so that giving up happens too.
#[derive(Debug)]
struct Fickle;

impl RetryStrategy for Fickle {
    fn next_delay(&self, ctx: &RetryContext, _: Option<Duration>, random: f64) -> Option<Duration> {
        (ctx.attempt < 5).then(|| Duration::from_secs(2).mul_f64(random))
    }
}

fn options() -> impl Strategy<Value = LifecycleOptions> {
    let ms = |range: std::ops::Range<u64>| range.prop_map(Duration::from_millis);
    (
        any::<bool>(),
        proptest::option::of(ms(0..5000)),
        ms(0..5000),
        ms(0..3000),
        ms(1..3000),
        any::<bool>(),
    )
        .prop_map(
            |(auto_reacquire, reconnect_grace, cool_down, drain_limit, release_timeout, fickle)| {
                let retry: Arc<dyn RetryStrategy> =
                    if fickle { Arc::new(Fickle) } else { Arc::new(FixedInterval::default()) };
                LifecycleOptions {
                    auto_reacquire,
                    reconnect_grace,
                    cool_down,
                    drain_limit,
                    release_timeout,
                    retry,
                }
            },
        )
}

fn event() -> impl Strategy<Value = Event> {
    let error = || "e".to_owned();
    let epoch = || (1i64..30).prop_map(Epoch);
    let tick =
        || proptest::option::of((0u64..60_000).prop_map(|ms| Tick::from_nanos(ms * 1_000_000)));
    let input = prop_oneof![
        2 => Just(Input::Start),
        1 => Just(Input::StopRequested),
        6 => Just(Input::Wake),
        1 => Just(Input::Named),
        8 => (epoch(), tick()).prop_map(|(epoch, open_at)| Input::Claimed { epoch, open_at }),
        4 => epoch().prop_map(|epoch| Input::MarkedActing { epoch }),
        2 => Just(Input::ClaimFailed { why: NotAcquired::Held }),
        3 => Just(Input::BeatOk),
        3 => Just(Input::BeatLate),
        2 => Just(Input::SessionLost { error: error() }),
        2 => Just(Input::EpochMoved),
        4 => epoch().prop_map(|epoch| Input::Reclaimed { epoch }),
        1 => Just(Input::ReclaimFailed),
        3 => tick().prop_map(|deadline| Input::ReleaseRequested { to: None, deadline }),
        3 => Just(Input::Drained),
        3 => Just(Input::Released),
    ];
    prop_oneof![
        6 => input.prop_map(Event::Input),
        1 => (0u64..4000).prop_map(Event::Pass),
        2 => Just(Event::ToTimeout),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn nothing_breaks_the_invariants(
        opts in options(),
        events in proptest::collection::vec((event(), 0.0..1.0f64), 0..80),
    ) {
        let mut world = World::new(opts);
        for (event, random) in &events {
            world.event(event, *random);
        }
    }

    /// Whatever happened: once the session is renewed and every request is answered as a healthy
    /// database would, a role that is meant to run leads.
    #[test]
    fn a_role_always_finds_its_way_back_to_leading(
        opts in options(),
        events in proptest::collection::vec((event(), 0.0..1.0f64), 0..40),
    ) {
        let opts = LifecycleOptions { retry: Arc::new(FixedInterval::default()), ..opts };
        let mut world = World::new(opts);
        for (event, random) in &events {
            world.event(event, *random);
        }
        let renewed = Input::SessionLost { error: "renewed".into() };
        let mut queue = world.input(renewed, 0.5);
        for _ in 0..40 {
            if world.life.state() == LockState::Leader {
                break;
            }
            let answers: Vec<Input> = queue.iter().filter_map(|effect| match effect {
                Effect::Claim => Some(Input::Claimed { epoch: Epoch(1000), open_at: None }),
                Effect::MarkActing { epoch } => Some(Input::MarkedActing { epoch: *epoch }),
                Effect::Reclaim { .. } => Some(Input::ReclaimFailed),
                Effect::DrainGate { .. } => Some(Input::Drained),
                Effect::Release { .. } => Some(Input::Released),
                _ => None,
            }).collect();
            queue.clear();
            for answer in answers {
                queue.extend(world.input(answer, 0.5));
            }
            if world.life.state() == LockState::Stopped {
                queue.extend(world.input(Input::Start, 0.5));
            } else if let Some(at) = world.life.next_timeout() {
                world.now = world.now.max(at);
                queue.extend(world.timeout(0.5));
            }
        }
        prop_assert_eq!(world.life.state(), LockState::Leader, "{:?}", world.life);
    }
}
