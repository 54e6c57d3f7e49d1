//! A schema of numbered SQL files, applied once, in order, by the program that comes first.
//!
//! Ten programs that boot at once apply them once: an advisory lock, held for the transaction, lets
//! one of them in; the others find the work done. A released file is never edited.
//!
//! | what is there | [`Schema::migrate`] |
//! |---|---|
//! | nothing, or an older version | applies the files above it, all or none |
//! | this version, or a newer one | does nothing, and needs no privilege to write |
//! | a migration under way elsewhere | waits for it, at most `within` |
//!
//! A newer version is for the caller to judge: see [`Schema::installed`].

use std::time::Duration;

use tokio::time::Instant;

use crate::line::{Line, LineError};
use crate::sql::{identifier, literal};

/// One numbered file.
#[derive(Debug, Clone, Copy)]
pub struct Migration {
    /// Files are applied in this order, from 1 on without a gap.
    pub version: i32,
    /// The file's name, without number and ending.
    pub name: &'static str,
    /// Its text. It may not contain `$migration$` or `$body$`.
    pub sql: &'static str,
}

/// The files of a schema, for [`Schema::files`]: `migrations!["../sql", 1 "tables", 2 "seat"]` reads
/// `../sql/0001_tables.sql` and `../sql/0002_seat.sql`, relative to the calling file. Versions 1 to 9.
#[macro_export]
macro_rules! migrations {
    ($folder:literal, $($version:literal $name:literal),* $(,)?) => {
        &[$($crate::migrate::Migration {
            version: $version,
            name: $name,
            sql: include_str!(concat!($folder, "/000", $version, "_", $name, ".sql")),
        }),*]
    };
}

/// A schema and the files that make it.
#[derive(Debug, Clone, Copy)]
pub struct Schema {
    /// Its name in the database; its table `migration` records what was applied.
    pub name: &'static str,
    /// The advisory key under which programs take turns; no key that a person would choose.
    pub key: i64,
    /// Its files, in order; at least one.
    pub files: &'static [Migration],
}

impl Schema {
    /// The version that the files make.
    #[must_use]
    pub const fn version(&self) -> i32 {
        self.files[self.files.len() - 1].version
    }

    /// All files as one script, safe to run again: for operators with a migration tool of their own.
    #[must_use]
    pub fn script(&self) -> String {
        let mut script = format!(
            "begin isolation level read committed read write;\n\
             set local client_min_messages = warning;\n\
             set local search_path = pg_catalog, pg_temp;\n\
             select pg_advisory_xact_lock({});\n{};\n",
            self.key,
            self.foundation()
        );
        for migration in self.files {
            let (schema, version) = (identifier(self.name), migration.version);
            // A file's text is the body of a block that runs only if its version is not there yet.
            script.push_str(&format!(
                "do $migration$ begin\n\
                 if not exists (select from {schema}.migration where version = {version}) then\n\
                 execute $body${}$body$;\nend if; end $migration$;\n",
                self.step(migration)
            ));
        }
        script.push_str("commit;\n");
        script
    }

    /// The version in the database, 0 if there is none.
    ///
    /// # Errors
    /// [`LineError`]; nothing was written. `within` bounds each of two statements.
    pub async fn installed(&self, line: &Line, within: Duration) -> Result<i32, LineError> {
        // Not `to_regclass`: inside a transaction it may answer from a cache that another program's
        // migration has made stale.
        let there = format!(
            "select exists (select from pg_class c join pg_namespace n on n.oid = c.relnamespace \
             where n.nspname = {} and c.relname = 'migration')",
            literal(self.name)
        );
        if line.ask(&there, within).await?.as_deref() != Some("t") {
            return Ok(0);
        }
        let newest =
            format!("select coalesce(max(version), 0) from {}.migration", identifier(self.name));
        let newest = line.ask(&newest, within).await?;
        Ok(newest.and_then(|version| version.parse().ok()).unwrap_or(0))
    }

    /// Brings the schema up to date; returns the versions that were applied here. `within` bounds the
    /// look at the version, and again the migration itself. Not cancel-safe: drop the line, and the
    /// server rolls back.
    ///
    /// # Errors
    /// [`LineError`]; a migration that failed is rolled back whole, and a retry is safe.
    pub async fn migrate(&self, line: &Line, within: Duration) -> Result<Vec<i32>, LineError> {
        if self.installed(line, within).await? >= self.version() {
            return Ok(Vec::new());
        }
        let applied = self.apply(line, within).await;
        if applied.is_err() {
            let _ = line.ask("rollback", within).await;
        }
        applied
    }

    async fn apply(&self, line: &Line, within: Duration) -> Result<Vec<i32>, LineError> {
        let until = Instant::now() + within;
        let left = || until.saturating_duration_since(Instant::now());
        let ms = within.as_millis();
        let begin = format!(
            "begin isolation level read committed read write; \
             set local lock_timeout = {ms}; set local statement_timeout = {ms}; \
             set local search_path = pg_catalog; set local client_min_messages = warning; \
             set local synchronous_commit = on; \
             select pg_advisory_xact_lock({})",
            self.key
        );
        line.ask(&begin, left()).await?;
        let have = self.installed(line, left()).await?;
        if have == 0 {
            line.ask(&self.foundation(), left()).await?;
        }
        let mut applied = Vec::new();
        for migration in self.files.iter().filter(|migration| migration.version > have) {
            line.ask(&self.step(migration), left()).await?;
            applied.push(migration.version);
        }
        line.ask("commit", left()).await?;
        Ok(applied)
    }

    fn foundation(&self) -> String {
        let schema = identifier(self.name);
        format!(
            "create schema if not exists {schema};\n\
             create table if not exists {schema}.migration (\n\
                 version    integer primary key,\n\
                 name       text not null,\n\
                 applied_at timestamptz not null default clock_timestamp())"
        )
    }

    fn step(&self, migration: &Migration) -> String {
        let Migration { version, name, sql } = migration;
        format!(
            "{sql}\ninsert into {}.migration (version, name) values ({version}, {});\n",
            identifier(self.name),
            literal(name)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCHEMA: Schema = Schema {
        name: "odd \"name",
        key: 7,
        files: &[
            Migration { version: 1, name: "one", sql: "select 1;" },
            Migration { version: 2, name: "it's two", sql: "select $$two$$;" },
        ],
    };

    #[test]
    fn the_version_is_the_last_files() {
        assert_eq!(SCHEMA.version(), 2);
    }

    #[test]
    fn a_name_cannot_break_out_of_the_script() {
        let script = SCHEMA.script();
        assert!(script.contains("create schema if not exists \"odd \"\"name\";"), "{script}");
        assert!(script.contains("values (2, 'it''s two');"), "{script}");
    }
}
