//! The schema `tenure_agent`: numbered SQL files, applied once, in order, by the agent that comes first.

use serde::Deserialize;
use tenure::config::Config;
use tenure_connect::migrate::Schema;
use tenure_connect::sql::identifier;

use crate::store::{Store, StoreError};

/// The files. A released file is never edited.
pub const SCHEMA: Schema = Schema {
    name: "tenure_agent",
    // "tenureag" in ASCII.
    key: 0x74_65_6e_75_72_65_61_67,
    files: tenure_connect::migrations!["../sql", 1 "schedules", 2 "alerts"],
};

/// Makes the schema, or brings it up to date. An agent does so by itself, if its login role may.
///
/// # Errors
/// [`StoreError`]; a retry is safe.
pub async fn migrate(config: &Config) -> Result<(), StoreError> {
    Store::new(config, "tenure migrate")?.migrate().await
}

/// How a login role stands to the schema.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct Standing {
    /// The login role.
    pub user: String,
    /// Whether the schema is there.
    pub exists: bool,
    /// Whether the login role may make it.
    pub may_create: bool,
    /// What it lacks of what an agent needs, for people; nothing while there is no schema.
    pub missing: Vec<String>,
}

/// What the configuration's login role may do, as far as schedules and alerts need it.
///
/// # Errors
/// [`StoreError`].
pub async fn standing(config: &Config) -> Result<Standing, StoreError> {
    Store::new(config, "tenure check")?.ask(include_str!("../sql/standing.sql")).await
}

/// The grants that an agent's login role needs beside a member's, as SQL text for the schema's owner to run.
#[must_use]
pub fn privileges_sql(role: &str) -> String {
    include_str!("../sql/privileges.sql").replace("{role}", &identifier(role))
}
