//! All time arithmetic of the election, in one small value.
//!
//! ```text
//!  sent            answered                          sent + lease        sent + lease + margin
//!   │ heartbeat ─────►│                                   │                      │
//!   ├─────────────────┴── the gate may be open ───────────┤ gate shut            │ server ends the
//!   │                                                     │ (holder's clock)     │ idle session
//! ```
//!
//! The holder counts from *before* it sent its beat, a claimant from *after* it first saw that beat
//! (both at their own clock), so the claimant's count always starts later; the margin pays for
//! clocks that run at different rates. No wall clock takes part.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::clock::{Tick, spoken};
use crate::lifecycle::LockState;

/// How much a heartbeat interval is spread either way.
const JITTER: f64 = 0.2;
const MIN_HEARTBEAT: Duration = Duration::from_millis(20);
const MIN_STATEMENT_DEADLINE: Duration = Duration::from_millis(5);
const MAX_LEASE: Duration = Duration::from_secs(3600);
/// A beat is also how others see that we live: with a lease only, it is never rarer than this.
const MAX_DERIVED_HEARTBEAT: Duration = Duration::from_secs(5);

/// What a new holder must wait for before it may act. A closed set: all members of a role must mean the same by it.
#[derive(
    Copy, Clone, Debug, PartialEq, Eq, Hash, Default, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum TakeoverPolicy {
    /// Until every gate that may have been open must be shut.
    #[default]
    Exclusive,
    /// Nothing: every effect carries the epoch, and the fence refuses old ones.
    Fenced,
}

impl TakeoverPolicy {
    /// Whether another member may lead already, given what this one's lifecycle says while its gate says
    /// no. Work that goes on beside the gate ends now if so, and at the deadline of its term otherwise.
    #[doc(hidden)]
    #[must_use]
    pub fn lets_another_in(self, state: LockState) -> bool {
        match (self, state) {
            (TakeoverPolicy::Fenced, _) => true,
            // A session that may be won back, or a beat that is late: the debt is waited out first.
            (TakeoverPolicy::Exclusive, LockState::Leader | LockState::Reconnecting) => false,
            (
                TakeoverPolicy::Exclusive,
                LockState::Stopped
                | LockState::Follower
                | LockState::Acquiring
                | LockState::Releasing,
            ) => true,
        }
    }
}

impl fmt::Display for TakeoverPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TakeoverPolicy::Exclusive => "exclusive",
            TakeoverPolicy::Fenced => "fenced",
        })
    }
}

/// A text that names no takeover policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[error("{text:?} is no takeover policy; write exclusive or fenced")]
pub struct PolicyError {
    /// What was given.
    pub text: String,
}

impl FromStr for TakeoverPolicy {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Self, PolicyError> {
        match text {
            "exclusive" => Ok(TakeoverPolicy::Exclusive),
            "fenced" => Ok(TakeoverPolicy::Fenced),
            _ => Err(PolicyError { text: text.to_owned() }),
        }
    }
}

/// What can happen to a leader, for [`Lease::failover_bound`].
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fault {
    /// Step-down, shutdown, SIGTERM: it let go by itself.
    StepDown,
    /// The process ended without letting go.
    Crash,
    /// Frozen, partitioned, or its host gone: the server notices only that it is silent.
    Freeze,
    /// Its backend was terminated.
    BackendTerminated,
    /// The database restarted, crashed or failed over. The bound counts from the reconnect.
    DatabaseRestart,
}

/// Timings as written; what is `None` follows from the rest.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct LeaseSpec {
    /// The interval between heartbeats, spread by ±20 %. Default 1 s, or a third of the lease (at
    /// most 5 s) if only that is given. At least 20 ms. Shorter sees faults sooner and costs the
    /// database more; longer than a third of the lease does not survive a missed beat.
    pub heartbeat: Option<Duration>,
    /// How long a gate may stay open after its last successful heartbeat was sent. Default three
    /// heartbeats. At most 1 h. Shorter fails over sooner; longer forgives longer stalls.
    pub lease: Option<Duration>,
    /// What is added to another's lease for clocks that run at different rates. Default 10 % of
    /// the lease + 250 ms; at least 1 % of the lease.
    pub margin: Option<Duration>,
    /// How long one statement of the seat may take before its session is given up. Default a sixth
    /// of the lease; at least 5 ms.
    pub statement_deadline: Option<Duration>,
    /// How long before the deadline a child process is told to end. Default a sixth of the lease;
    /// zero is allowed.
    pub kill_grace: Option<Duration>,
    /// How long a leader whose session died may try to win the role back before it is a loss.
    /// Default none: a lost session is a loss at once.
    pub reconnect_grace: Option<Duration>,
}

/// A timing that cannot work.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum LeaseError {
    /// Below its lower bound.
    TooShort {
        /// The timing, as the configuration names it.
        field: &'static str,
        /// As given.
        value: Duration,
        /// The least it may be.
        bound: Duration,
        /// What the bound is for.
        reason: &'static str,
    },
    /// Above its upper bound.
    TooLong {
        /// The timing, as the configuration names it.
        field: &'static str,
        /// As given.
        value: Duration,
        /// The most it may be.
        bound: Duration,
        /// What the bound is for.
        reason: &'static str,
    },
    /// The parts do not fit into the lease.
    DoesNotFit {
        /// The lease that was asked for.
        lease: Duration,
        /// What it has to cover.
        needed: Duration,
    },
}

impl LeaseError {
    /// The sentence, with each timing under the name that `called` gives it: a command line calls `kill_grace`
    /// otherwise than a file does.
    #[must_use]
    pub fn with_names(&self, called: impl Fn(&'static str) -> &'static str) -> String {
        match self {
            LeaseError::TooShort { field, value, bound, reason } => {
                let (field, value, bound) = (called(field), spoken(value), spoken(bound));
                format!("{field} is {value}, below {bound}: {reason}; raise it")
            }
            LeaseError::TooLong { field, value, bound, reason } => {
                let (field, value, bound) = (called(field), spoken(value), spoken(bound));
                format!("{field} is {value}, above {bound}: {reason}; lower it")
            }
            LeaseError::DoesNotFit { lease, needed } => {
                let names = ["lease", "heartbeat", "statement_deadline", "kill_grace"].map(called);
                let [name, heartbeat, statement_deadline, kill_grace] = names;
                let (lease, needed) = (spoken(lease), spoken(needed));
                format!(
                    "{name} is {lease}, but 1.2 × {heartbeat} + {statement_deadline} + {kill_grace} is {needed}: \
                     a beat that is sent late and answered late would come after the gate has shut; raise \
                     {name} or lower the others"
                )
            }
        }
    }
}

impl fmt::Display for LeaseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.with_names(|field| field))
    }
}

impl std::error::Error for LeaseError {}

/// A timing that works, but not well.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum LeaseWarning {
    /// The gate shuts whenever one single beat is missed.
    OneMissedBeatShutsTheGate {
        /// The lease that was asked for.
        lease: Duration,
        /// From which lease on it would survive.
        needed: Duration,
    },
    /// The grace ends after every other member was allowed to take over.
    GraceOutlastsLease {
        /// The reconnect grace.
        grace: Duration,
        /// The lease and its margin.
        takeover: Duration,
    },
}

impl fmt::Display for LeaseWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LeaseWarning::OneMissedBeatShutsTheGate { lease, needed } => write!(
                f,
                "a lease of {lease:?} does not survive one missed beat; from {needed:?} on it does"
            ),
            LeaseWarning::GraceOutlastsLease { grace, takeover } => write!(
                f,
                "a reconnect_grace of {grace:?} is longer than lease + margin ({takeover:?}), \
                 after which another may have taken over anyway"
            ),
        }
    }
}

/// Timings as validated. Every deadline of the election is computed here and nowhere else.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    heartbeat: Duration,
    lease: Duration,
    margin: Duration,
    margin_is_given: bool,
    statement_deadline: Duration,
    kill_grace: Duration,
    reconnect_grace: Option<Duration>,
}

impl LeaseSpec {
    /// Fills in what follows from the rest, and checks it all.
    ///
    /// # Errors
    /// [`LeaseError`] names the field, the bound and the reason.
    pub fn resolve(self) -> Result<Lease, LeaseError> {
        let (heartbeat, lease) = match (self.heartbeat, self.lease) {
            (None, None) => (Duration::from_secs(1), Duration::from_secs(3)),
            (Some(heartbeat), None) => (heartbeat, heartbeat.saturating_mul(3)),
            (None, Some(lease)) => ((lease / 3).min(MAX_DERIVED_HEARTBEAT), lease),
            (Some(heartbeat), Some(lease)) => (heartbeat, lease),
        };
        let short = |field, value, bound, reason| {
            if value < bound {
                Err(LeaseError::TooShort { field, value, bound, reason })
            } else {
                Ok(())
            }
        };
        let long = |field, value, bound, reason| {
            if value > bound {
                Err(LeaseError::TooLong { field, value, bound, reason })
            } else {
                Ok(())
            }
        };
        // A lease that is too short makes the heartbeat derived from it too short: name the lease.
        if self.heartbeat.is_none() {
            short(
                "lease",
                lease,
                MIN_HEARTBEAT * 3,
                "three heartbeats of at least 20 ms fit in it",
            )?;
        }
        short(
            "heartbeat",
            heartbeat,
            MIN_HEARTBEAT,
            "more than fifty statements a second would be all the database does",
        )?;
        if self.lease.is_none() {
            long(
                "heartbeat",
                heartbeat,
                MAX_LEASE / 3,
                "the lease is three heartbeats, at most 1 h",
            )?;
        }
        long(
            "lease",
            lease,
            MAX_LEASE,
            "a silent leader would block its role for longer than that",
        )?;
        let margin = self.margin.unwrap_or_else(|| default_margin(lease));
        short("margin", margin, lease / 100, "clock rates may differ by up to one per cent")?;
        long("margin", margin, MAX_LEASE, "it only delays failover")?;
        let statement_deadline = self.statement_deadline.unwrap_or(lease / 6);
        short(
            "statement_deadline",
            statement_deadline,
            MIN_STATEMENT_DEADLINE,
            "a healthy database may need that long for one statement",
        )?;
        let kill_grace = self.kill_grace.unwrap_or(lease / 6);
        if let Some(grace) = self.reconnect_grace {
            long("reconnect_grace", grace, MAX_LEASE, "a lost leader would wait that long")?;
        }
        let checked = Lease {
            heartbeat,
            lease,
            margin,
            margin_is_given: self.margin.is_some(),
            statement_deadline,
            kill_grace,
            reconnect_grace: self.reconnect_grace,
        };
        let needed = checked
            .longest_interval()
            .saturating_add(statement_deadline)
            .saturating_add(kill_grace);
        if needed > lease {
            return Err(LeaseError::DoesNotFit { lease, needed: typeable(needed) });
        }
        Ok(checked)
    }
}

/// To the next whole millisecond: a bound that a person can type.
fn typeable(time: Duration) -> Duration {
    let over = time.subsec_nanos() % 1_000_000;
    if over == 0 {
        time
    } else {
        time.saturating_add(Duration::from_nanos(u64::from(1_000_000 - over)))
    }
}

impl Default for Lease {
    fn default() -> Self {
        LeaseSpec::default().resolve().expect("the defaults fit each other, which a test checks")
    }
}

fn default_margin(lease: Duration) -> Duration {
    lease / 10 + Duration::from_millis(250)
}

impl Lease {
    /// The interval between heartbeats before jitter.
    pub fn heartbeat(&self) -> Duration {
        self.heartbeat
    }

    /// How long a gate may stay open after its last successful heartbeat was sent.
    pub fn lease(&self) -> Duration {
        self.lease
    }

    /// What is added for clocks that run at different rates.
    pub fn margin(&self) -> Duration {
        self.margin
    }

    /// How long one statement of the seat may take.
    pub fn statement_deadline(&self) -> Duration {
        self.statement_deadline
    }

    /// How long before the deadline a child process is told to end.
    pub fn kill_grace(&self) -> Duration {
        self.kill_grace
    }

    /// How long a leader whose session died may try to win the role back.
    pub fn reconnect_grace(&self) -> Option<Duration> {
        self.reconnect_grace
    }

    /// The longest time between two beats: 1.2 heartbeats.
    pub fn longest_interval(&self) -> Duration {
        self.heartbeat.saturating_add(self.heartbeat / 5)
    }

    /// What is allowed but unwise.
    pub fn warnings(&self) -> Vec<LeaseWarning> {
        let mut warnings = Vec::new();
        let needed = self.longest_interval() * 2 + self.statement_deadline;
        if self.lease < needed {
            let lease = self.lease;
            let needed = typeable(needed);
            warnings.push(LeaseWarning::OneMissedBeatShutsTheGate { lease, needed });
        }
        let takeover = self.lease + self.margin;
        if let Some(grace) = self.reconnect_grace.filter(|grace| *grace > takeover) {
            warnings.push(LeaseWarning::GraceOutlastsLease { grace, takeover });
        }
        warnings
    }

    /// Until when a gate may be open whose last successful beat was sent at `sent`.
    pub fn gate_deadline(&self, sent: Tick) -> Tick {
        sent + self.lease
    }

    /// After how long a silence the server ends the session.
    pub fn idle_session_timeout(&self) -> Duration {
        self.lease + self.margin
    }

    /// When to send the next beat: 0.8 to 1.2 heartbeats after the last one was sent.
    pub fn next_beat(&self, sent: Tick, unit_random: f64) -> Tick {
        let spread = 1.0 - JITTER + 2.0 * JITTER * unit_random.clamp(0.0, 1.0);
        sent + self.heartbeat.mul_f64(spread)
    }

    /// The margin for a debtor's lease, which may differ from ours.
    pub fn margin_for(&self, debtor_lease: Duration) -> Duration {
        if !self.margin_is_given {
            return default_margin(debtor_lease);
        }
        // A margin chosen for our lease covers a certain difference of clock rates; over a longer
        // lease the same difference adds up to more.
        let ratio = debtor_lease.as_secs_f64() / self.lease.as_secs_f64();
        self.margin.mul_f64(ratio.max(1.0))
    }

    /// When a claimant may open its gate although the debt was not cleanly paid: the debtor's gate
    /// must be shut by then.
    pub fn takeover_at(
        &self,
        first_saw_latest_beat: Tick,
        first_contact_with_incarnation: Tick,
        debtor_lease: Duration,
    ) -> Tick {
        first_saw_latest_beat.max(first_contact_with_incarnation)
            + debtor_lease
            + self.margin_for(debtor_lease)
    }

    /// The time to the next repair poll: half a lease to a whole one, never above it.
    pub fn repair_poll(&self, unit_random: f64) -> Duration {
        self.lease.mul_f64(0.5 + 0.5 * unit_random.clamp(0.0, 1.0)).min(self.lease)
    }

    /// The longest time from a fault to the next leader's open gate, not counting the round trip
    /// of the claim itself, where every member runs with these timings.
    ///
    /// What takes only a notification is bounded by the statement deadline.
    pub fn failover_bound(&self, fault: Fault, policy: TakeoverPolicy) -> Duration {
        let silence = self.lease + self.margin;
        match (fault, policy) {
            (Fault::StepDown, TakeoverPolicy::Exclusive | TakeoverPolicy::Fenced)
            | (
                Fault::Crash | Fault::BackendTerminated | Fault::DatabaseRestart,
                TakeoverPolicy::Fenced,
            ) => self.statement_deadline,
            (Fault::Crash | Fault::BackendTerminated, TakeoverPolicy::Exclusive) => {
                silence + self.longest_interval()
            }
            (Fault::Freeze, TakeoverPolicy::Exclusive) => {
                silence + self.margin + self.longest_interval()
            }
            (Fault::Freeze, TakeoverPolicy::Fenced)
            | (Fault::DatabaseRestart, TakeoverPolicy::Exclusive) => silence,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn the_defaults_are_those_of_the_design_and_warn_of_nothing() {
        let lease = Lease::default();
        assert_eq!(
            (lease.heartbeat(), lease.lease(), lease.margin()),
            (ms(1000), ms(3000), ms(550))
        );
        assert_eq!((lease.statement_deadline(), lease.kill_grace()), (ms(500), ms(500)));
        assert_eq!(lease.reconnect_grace(), None);
        assert_eq!(lease.idle_session_timeout(), ms(3550));
        assert_eq!(lease.warnings(), []);
    }

    #[test]
    fn messages_tell_times_as_people_write_them() {
        let given = |heartbeat| LeaseSpec { heartbeat: Some(heartbeat), ..Default::default() };
        let said = |heartbeat| given(heartbeat).resolve().unwrap_err().to_string();
        assert!(said(Duration::ZERO).contains("heartbeat is 0s, below 20ms"), "{}", said(ms(0)));
        let odd = Duration::from_nanos(1_234_567);
        assert!(said(odd).contains("heartbeat is 1ms, below 20ms"), "{}", said(odd));
    }

    #[test]
    fn one_of_heartbeat_and_lease_follows_from_the_other() {
        let given = |heartbeat, lease| LeaseSpec { heartbeat, lease, ..Default::default() };
        let five = given(Some(ms(5000)), None).resolve().unwrap();
        assert_eq!(five.lease(), ms(15_000));
        let six = given(None, Some(ms(6000))).resolve().unwrap();
        assert_eq!(six.heartbeat(), ms(2000));
        // An hour's lease still beats every five seconds: others must see that we live.
        let hour = given(None, Some(MAX_LEASE)).resolve().unwrap();
        assert_eq!(hour.heartbeat(), ms(5000));
    }

    #[test]
    fn a_bad_timing_names_field_bound_and_reason() {
        type Case = (LeaseSpec, &'static str);
        let none = LeaseSpec::default();
        let cases: [Case; 9] = [
            (LeaseSpec { heartbeat: Some(ms(19)), ..none }, "heartbeat is 19ms, below 20ms"),
            (
                LeaseSpec { heartbeat: Some(ms(1_200_001)), ..none },
                "heartbeat is 1200.001s, above 1200s",
            ),
            (LeaseSpec { lease: Some(ms(59)), ..none }, "lease is 59ms, below 60ms"),
            (LeaseSpec { lease: Some(ms(3_600_001)), ..none }, "lease is 3600.001s, above 3600s"),
            (LeaseSpec { margin: Some(ms(29)), ..none }, "margin is 29ms, below 30ms"),
            (LeaseSpec { margin: Some(Duration::MAX), ..none }, "margin is "),
            (
                LeaseSpec { statement_deadline: Some(ms(4)), ..none },
                "statement_deadline is 4ms, below 5ms",
            ),
            (LeaseSpec { reconnect_grace: Some(Duration::MAX), ..none }, "reconnect_grace is "),
            (
                LeaseSpec { kill_grace: Some(Duration::MAX), ..none },
                "lease is 3s, but 1.2 × heartbeat",
            ),
        ];
        for (spec, start) in cases {
            let told = spec.resolve().unwrap_err().to_string();
            assert!(told.starts_with(start), "{told}");
            assert!(told.contains("raise") || told.contains("lower"), "no remedy: {told}");
        }
    }

    #[test]
    fn the_parts_may_fill_the_lease_but_not_exceed_it() {
        let spec = |kill_grace| LeaseSpec { kill_grace: Some(kill_grace), ..Default::default() };
        assert!(spec(ms(1300)).resolve().is_ok());
        assert_eq!(
            spec(ms(1301)).resolve(),
            Err(LeaseError::DoesNotFit { lease: ms(3000), needed: ms(3001) })
        );
    }

    #[test]
    fn an_error_is_told_under_the_names_that_a_caller_has_for_the_timings() {
        let option = |timing| if timing == "kill_grace" { "--grace" } else { timing };
        let told = |spec: LeaseSpec| spec.resolve().unwrap_err().with_names(option);
        let grace = told(LeaseSpec { kill_grace: Some(ms(1301)), ..Default::default() });
        assert!(grace.contains("1.2 × heartbeat + statement_deadline + --grace is"), "{grace}");
        let lease = told(LeaseSpec { lease: Some(MAX_LEASE * 2), ..Default::default() });
        assert!(lease.starts_with("lease is 7200s, above 3600s"), "{lease}");
    }

    #[test]
    fn unwise_timings_are_warned_of() {
        let spec = LeaseSpec {
            lease: Some(ms(2500)),
            heartbeat: Some(ms(1000)),
            reconnect_grace: Some(ms(3001)),
            ..Default::default()
        };
        let told: Vec<_> =
            spec.resolve().unwrap().warnings().iter().map(|w| w.to_string()).collect();
        assert_eq!(told.len(), 2);
        assert!(told[0].contains("does not survive one missed beat"), "{}", told[0]);
        assert!(told[1].contains("reconnect_grace"), "{}", told[1]);
    }

    #[test]
    fn failover_bounds_are_the_table_of_the_design() {
        use {Fault::*, TakeoverPolicy::*};
        let lease = Lease::default();
        let table = [
            (StepDown, 500, 500),
            (Crash, 3550 + 1200, 500),
            (Freeze, 3550 + 550 + 1200, 3550),
            (BackendTerminated, 3550 + 1200, 500),
            (DatabaseRestart, 3550, 500),
        ];
        for (fault, exclusive, fenced) in table {
            assert_eq!(lease.failover_bound(fault, Exclusive), ms(exclusive), "{fault:?}");
            assert_eq!(lease.failover_bound(fault, Fenced), ms(fenced), "{fault:?}");
        }
    }

    #[test]
    fn a_policy_survives_its_text() {
        for policy in [TakeoverPolicy::Exclusive, TakeoverPolicy::Fenced] {
            assert_eq!(policy.to_string().parse(), Ok(policy));
        }
        assert!("Exclusive".parse::<TakeoverPolicy>().is_err());
    }

    fn any_lease() -> impl Strategy<Value = Lease> {
        (20u64..1_000_000, 3u32..10, proptest::option::of(1u64..1_000)).prop_filter_map(
            "does not resolve",
            |(beat, times, margin)| {
                LeaseSpec {
                    heartbeat: Some(ms(beat)),
                    lease: Some(ms(beat) * times),
                    margin: margin.map(|per_mille| ms(beat) * times / 1000 * per_mille as u32),
                    ..Default::default()
                }
                .resolve()
                .ok()
            },
        )
    }

    proptest! {
        #[test]
        fn every_lease_that_follows_from_a_heartbeat_resolves(beat in 20u64..=1_200_000) {
            let lease = LeaseSpec { heartbeat: Some(ms(beat)), ..Default::default() }.resolve().unwrap();
            prop_assert_eq!(lease.warnings(), []);
        }

        #[test]
        fn every_heartbeat_that_follows_from_a_lease_resolves(lease in 60u64..=3_600_000) {
            let lease = LeaseSpec { lease: Some(ms(lease)), ..Default::default() }.resolve().unwrap();
            prop_assert_eq!(lease.warnings(), []);
        }

        #[test]
        fn beats_and_polls_keep_their_bounds(lease in any_lease(), sent in 0u64..1 << 60, random in 0.0..=1.0f64) {
            let sent = Tick::from_nanos(sent);
            let gap = lease.next_beat(sent, random).saturating_since(sent);
            prop_assert!(gap >= lease.heartbeat().mul_f64(0.799) && gap <= lease.longest_interval() + Duration::from_nanos(9));
            prop_assert!(lease.repair_poll(random) <= lease.lease());
            prop_assert!(lease.repair_poll(random) >= lease.lease() / 2 - Duration::from_nanos(9));
        }

        /// The argument for exclusiveness, in numbers: whatever beat of the debtor the claimant saw
        /// last, and whatever it did not see, the debtor's gate is shut before the claimant's opens,
        /// on clocks whose rates differ by less than the margin.
        #[test]
        fn a_claimant_opens_only_after_the_debtors_gate_is_shut(
            claimant in any_lease(), debtor in any_lease(),
            sent in 0u64..1 << 50, travel in 0u64..1 << 40, contact in 0u64..1 << 50, slow in 0.0..0.9f64,
        ) {
            let sent = Tick::from_nanos(sent);
            let saw = sent + Duration::from_nanos(travel);
            let opens = claimant.takeover_at(saw, Tick::from_nanos(contact), debtor.lease());
            // The debtor's clock runs slow by a part of what the margin allows.
            let allowed = claimant.margin_for(debtor.lease()).mul_f64(slow);
            prop_assert!(opens > debtor.gate_deadline(sent) + allowed);
            prop_assert!(opens >= Tick::from_nanos(contact) + debtor.lease());
        }
    }
}
