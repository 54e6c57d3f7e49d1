//! What a leader runs: commands, schedules, shards, alerts, retention; with probes for load balancers and
//! supervisors, and a page for people.
//!
//! ```text
//!   file ──► Plan ──► Agent ── Member ── seat, sentinel ──► PostgreSQL: the election
//!                       │        └ roles
//!                       ├─ Commander: a child for as long as a term
//!                       ├─ Crew ── Engine (pure): slots, overlap, retries
//!                       │    └─ runs: programs under a guardian, or closures
//!                       ├─ Shards ── placement (pure): hands over what belongs to another member
//!                       ├─ page: what people see and order
//!                       ├─ retention: the leader of `tenure:maintenance`
//!                       ├─ alerts: the leader of `tenure:alerts`
//!                       └─ Store: one session for all of it ──► PostgreSQL: schedules
//! ```
//!
//! A schedule that calls a closure, fired by the member that leads its role:
//!
//! ```no_run
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! use tenure::RoleName;
//! use tenure_agent::{Schedule, Schedules};
//!
//! let (member, _lock) = tenure::lead("postgresql://localhost/app", "scheduler").await?;
//! let nightly = Schedule::new("nightly", RoleName::new("scheduler")?, "0 3 * * *")?;
//! let serving = Schedules::new()
//!     .add(nightly, |run| async move {
//!         println!("{} of {}, epoch {}", run.schedule, run.slot, run.epoch);
//!         Ok::<(), std::io::Error>(())
//!     })
//!     .start(&member)?;
//! // … until the program ends:
//! member.shutdown(None).await?;
//! serving.finished().await;
//! # Ok(())
//! # }
//! ```
//!
//! | to | use |
//! |---|---|
//! | fire closures or programs at planned instants | [`Schedules`], [`Schedule`], [`Job`] |
//! | spread a set of roles evenly over the members | [`Shards`] |
//! | answer load balancers and supervisors | [`probes::router`] |
//! | run a whole file, as `tenure agent` does | [`Plan`], [`Agent`] |
//! | ask about schedules, order a run, read what happened | [`desk::Desk`] |
//! | serve the page | [`page::Page`] |
//! | check alert rules, and ask about alerts | [`alerts::Condition`], [`alerts::desk::AlertDesk`] |
//! | keep the history bounded | [`retention::prune`] |
//!
//! # What it guarantees
//!
//! - A command runs only while this process leads its role, and is gone, with all it started, before the
//!   lease ends: see [`tenure_guardian`].
//! - **A slot fires at most once** across crashes, freezes, partitions and failovers, unless its schedule has
//!   retries: its row, whose primary key is (schedule, planned instant), is inserted under the fence of the
//!   role's epoch and committed before the work starts.
//! - Every slot is accounted for: it ran, was missed, was skipped for an overlap, or was interrupted.
//! - Whether a slot is due is decided by the database's clock.
//! - An idle agent has one session beside its member's two, and sends one statement every two seconds while
//!   it leads a role with schedules, whatever the number of roles and schedules; and one per heartbeat for
//!   each set of shards.
//!
//! # What it does not
//!
//! - *Exactly* once: a leader that dies between the claim and the end of the work leaves an **interrupted**
//!   slot. It is reported as a dead letter, or run again if `retries` says so (then at least once).
//! - After a failover of the database that lost commits, a slot whose claim was lost fires again.
//! - A database whose clock was set back fires nothing until that clock has caught up.
//!
//! | what happens to the leader | a slot that runs | slots meanwhile |
//! |---|---|---|
//! | step-down, SIGTERM | goes on, up to its drain limit; then interrupted | late by the handover |
//! | crash, SIGKILL, freeze, partition | its processes are ended before the lease; interrupted | late by the takeover; later than 60 s: `missed` |
//! | a heartbeat is late | ended with the lease; interrupted | late |
//! | the database is away for less than the lease | goes on; its end is recorded afterwards | late |

mod agent;
pub mod alerts;
pub mod child;
mod commander;
mod crew;
#[doc(hidden)]
pub mod definition;
pub mod desk;
#[doc(hidden)]
pub mod engine;
mod event;
#[doc(hidden)]
pub mod listener;
pub mod page;
pub mod plan;
pub mod probes;
pub mod retention;
mod schedules;
pub mod schema;
#[doc(hidden)]
pub mod store;
#[doc(hidden)]
pub mod when;
mod work;

pub use agent::Agent;
pub use definition::{Missed, Overlap, Schedule, ScheduleError};
pub use event::{Event, Events};
pub use plan::{Plan, PlanError};
pub use schedules::{ScheduleStartError, Schedules, Serving};
pub use store::StoreError;
pub use tenure::shards::{Shards, Spreading, placement};
pub use work::{Job, Run};
