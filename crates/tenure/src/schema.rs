//! The schema `tenure`: numbered SQL files, applied once, in order, by whoever comes first.
//!
//! Ten nodes that boot at once apply them once: an advisory lock, held for the transaction, lets one
//! of them in; the others find the work done. A released file is never edited.

use std::time::Duration;

use crate::line::{Line, LineError};
use crate::sql::{identifier, literal};

/// One numbered file.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Migration {
    /// Its number; files are applied in this order.
    pub version: i32,
    /// Its name, without number and ending.
    pub name: &'static str,
    /// Its text.
    pub sql: &'static str,
}

macro_rules! migrations {
    ($($version:literal $name:literal),* $(,)?) => {
        &[$(Migration {
            version: $version,
            name: $name,
            sql: include_str!(concat!("../sql/000", $version, "_", $name, ".sql")),
        }),*]
    };
}

/// All files, in order.
pub const MIGRATIONS: &[Migration] = migrations![
    1 "tables", 2 "seat", 3 "watch", 4 "fence", 5 "views", 6 "operate",
];

/// The version this library speaks.
pub const VERSION: i32 = MIGRATIONS[MIGRATIONS.len() - 1].version;

/// "tenure" in ASCII, with a tail: no key a person would choose.
const MIGRATION_KEY: i64 = 0x74_65_6e_75_72_65_00_01;

/// The grants a login role needs to take part, as SQL text for the schema's owner to run.
pub fn privileges_sql(role: &str) -> String {
    include_str!("../sql/privileges.sql").replace("{role}", &identifier(role))
}

/// All migrations as one script, for people who apply SQL with a tool of their own.
pub fn script() -> String {
    let mut out = format!("begin;\nselect pg_advisory_xact_lock({MIGRATION_KEY});\n{FOUNDATION}\n");
    for migration in MIGRATIONS {
        out.push_str(&step(migration));
    }
    out.push_str("commit;\n");
    out
}

const FOUNDATION: &str = "create schema if not exists tenure;
create table if not exists tenure.migration (
    version    integer primary key,
    name       text not null,
    applied_at timestamptz not null default clock_timestamp());";

fn step(migration: &Migration) -> String {
    let Migration { version, name, sql } = migration;
    let born = if *version == 2 {
        "insert into tenure.origin (lineage) values (tenure.lineage());\n"
    } else {
        ""
    };
    format!(
        "{sql}\n{born}insert into tenure.migration (version, name) values ({version}, {});\n",
        literal(name)
    )
}

/// The version in the database, 0 if there is none.
pub(crate) async fn installed(line: &Line, within: Duration) -> Result<i32, LineError> {
    // Not `to_regclass`: inside a transaction it may answer from a cache that another node's
    // migration has made stale.
    let there = "select exists (select from pg_class c join pg_namespace n \
                 on n.oid = c.relnamespace where n.nspname = 'tenure' and c.relname = 'migration')";
    let there = line.ask(there, within).await?;
    if there.as_deref() != Some("t") {
        return Ok(0);
    }
    let version =
        line.ask("select coalesce(max(version), 0) from tenure.migration", within).await?;
    Ok(version.and_then(|v| v.parse().ok()).unwrap_or(0))
}

/// Brings the schema up to date; returns the versions applied here.
///
/// Bounded: whoever waits for another node's migration gives up after `within`. A failed migration
/// rolls back whole.
pub(crate) async fn migrate(line: &Line, within: Duration) -> Result<Vec<i32>, LineError> {
    if installed(line, within).await? >= VERSION {
        return Ok(Vec::new());
    }
    let ms = within.as_millis();
    let begin = format!(
        "begin isolation level read committed read write; \
         set local lock_timeout = {ms}; set local statement_timeout = {ms}; \
         set local search_path = pg_catalog; set local client_min_messages = warning; \
         set local synchronous_commit = on; \
         select pg_advisory_xact_lock({MIGRATION_KEY})"
    );
    let done = async {
        line.ask(&begin, within).await?;
        let have = installed(line, within).await?;
        if have == 0 {
            line.ask(FOUNDATION, within).await?;
        }
        let mut applied = Vec::new();
        for migration in MIGRATIONS.iter().filter(|m| m.version > have) {
            line.ask(&step(migration), within).await?;
            applied.push(migration.version);
        }
        line.ask("commit", within).await?;
        Ok(applied)
    }
    .await;
    if done.is_err() {
        let _ = line.ask("rollback", within).await;
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_count_up_from_one_without_a_gap() {
        for (index, migration) in MIGRATIONS.iter().enumerate() {
            assert_eq!(migration.version, i32::try_from(index).unwrap() + 1);
        }
    }

    #[test]
    fn a_role_name_cannot_break_out_of_the_grants() {
        let sql = privileges_sql("x\"; drop schema tenure; --");
        assert!(sql.contains("to \"x\"\"; drop schema tenure; --\";"));
    }
}
