//! The schema `tenure_tx`: numbered SQL files, applied once, in order, by the first node that may.

use tokio_postgres::Client;

/// The files in order; the version is the position, from 1. A released file is never edited.
const MIGRATIONS: [&str; 2] =
    [include_str!("../sql/0001_pending_transactions.sql"), include_str!("../sql/0002_writers.sql")];

/// "tenuretx": nodes that boot together take turns.
const LOCK: i64 = 0x74_65_6e_75_72_65_74_78;

/// All migrations as one script, safe to run again: for operators that apply SQL with a tool of their own.
#[must_use]
pub fn script() -> String {
    let mut script = format!(
        "begin isolation level read committed read write;\n\
         set local client_min_messages = warning;\n\
         select pg_advisory_xact_lock({LOCK});\n\
         create schema if not exists tenure_tx;\n\
         create table if not exists tenure_tx.migration (version integer primary key, \
         applied_at timestamptz not null default clock_timestamp());\n"
    );
    for (version, sql) in (1..).zip(MIGRATIONS) {
        // A file's text is the body of a block that runs only if its version is not there yet.
        script.push_str(&format!(
            "do $migrate$ begin\n\
             if not exists (select from tenure_tx.migration where version = {version}) then\n\
             execute $body${sql}$body$;\n\
             insert into tenure_tx.migration (version) values ({version});\n\
             end if; end $migrate$;\n"
        ));
    }
    script.push_str("commit;\n");
    script
}

/// Brings the schema up to date. Does nothing, and needs no privilege, when it is.
pub(crate) async fn migrate(client: &Client) -> Result<(), tokio_postgres::Error> {
    let there =
        client.query_one("select to_regclass('tenure_tx.migration') is not null", &[]).await?;
    if there.get(0) {
        let newest: i32 = client
            .query_one("select coalesce(max(version), 0) from tenure_tx.migration", &[])
            .await?
            .get(0);
        if usize::try_from(newest).is_ok_and(|v| v >= MIGRATIONS.len()) {
            return Ok(());
        }
    }
    match client.batch_execute(&script()).await {
        Ok(()) => Ok(()),
        Err(error) => {
            // The failed script left its transaction open.
            let _ = client.batch_execute("rollback").await;
            Err(error)
        }
    }
}
