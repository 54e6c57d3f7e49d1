//! Alerts: conditions over what the tables know of every member, and messages that reach a person once.
//!
//! ```text
//!   tables ──► Samples ──► Condition::evaluate (pure) ──► Engine (pure) ──► rows, under the fence
//!                                                              └─► messages ──► notifiers
//! ```
//!
//! The leader of the reserved role [`ALERTS`] does all of it, for the whole group. What it guarantees is in
//! [`engine`]; what can be asked in [`condition`] and [`series`]; where messages go in [`notifier`].
//!
//! | what happens | what becomes of an incident's message |
//! |---|---|
//! | the leader dies before it was sent, or after its answer was committed | it is sent once |
//! | the leader dies in between | the successor sends it again, with the same key |
//! | the notifier does not answer, or refuses | it is sent again, ever later, for about a day |
//! | the database is away | each agent tells of it by itself, all under one key |
//! | no agent runs | none is sent |

pub mod condition;
pub mod desk;
mod driver;
pub mod engine;
pub mod evaluate;
mod ledger;
mod message;
pub mod notifier;
mod outage;
pub mod rule;
pub mod sample;
mod sampler;
pub mod series;
pub mod setup;

pub use condition::{Condition, ConditionError};
pub use driver::ALERTS;
pub(crate) use driver::serve;
pub use notifier::NotifierError;
pub use outage::DATABASE_UNREACHABLE;
pub(crate) use outage::serve as watch_database;
pub use rule::{Rule, Severity};
pub use setup::{Alerting, Setup};
