//! Agents in processes of their own, each with its file, and what they did as the database has it.

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use tenure_testkit::{Child, Database};
pub(crate) use tenure_testkit::{database, event, event_of, until};
use tokio_postgres::Client;

/// For what takes milliseconds; a busy machine may be late.
pub(crate) const SOON: Duration = Duration::from_secs(30);
/// Short enough for a test, long enough for a busy machine.
pub(crate) const MEMBER: &str =
    "[member]\nheartbeat = '500ms'\nlease = '2500ms'\nstatement_deadline = '800ms'\n";

pub(crate) fn program() -> PathBuf {
    assert_cmd::cargo::cargo_bin!("tenure").to_owned()
}

/// A folder with agents' files.
pub(crate) struct Stage {
    pub(crate) folder: TempDir,
    pub(crate) database: Database,
    pub(crate) client: Client,
}

impl Stage {
    pub(crate) async fn new() -> Self {
        let database = database().await;
        let client = database.client().await.expect("a session");
        Stage { folder: tempfile::tempdir().expect("a folder"), database, client }
    }

    /// Writes a file for agents; `text` follows the member's timings.
    pub(crate) fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, format!("{MEMBER}{text}")).expect("written");
        path
    }

    /// A path in the folder, as text for a script.
    pub(crate) fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().expect("text").to_owned()
    }

    pub(crate) fn agent(&self, file: &Path, more: &[&str]) -> Child {
        agent_at(&self.database.dsn(), file, more)
    }

    pub(crate) async fn ends(&self, args: &[&str]) -> Output {
        self.ends_at(&self.database.dsn(), args).await
    }

    pub(crate) async fn ends_at(&self, dsn: &str, args: &[&str]) -> Output {
        let mut command = bare();
        command.args(args).args(["--dsn", dsn]);
        finish(command).await
    }

    pub(crate) async fn count(&self, sql: &str) -> i64 {
        self.client.query_one(sql, &[]).await.map_or(-1, |row| row.get(0))
    }

    /// Waits until a count is at least that.
    pub(crate) async fn at_least(&self, sql: &str, least: i64) {
        until(sql, async || self.count(sql).await >= least).await;
    }

    /// Every attempt of every slot started at most once, by what the runs themselves wrote.
    pub(crate) fn starts(&self, log: &str) -> Vec<String> {
        let text = std::fs::read_to_string(self.folder.path().join(log)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}

pub(crate) fn bare() -> tokio::process::Command {
    let mut command = tokio::process::Command::new(program());
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command
}

/// An agent whose events are read as lines.
pub(crate) fn agent_at(dsn: &str, file: &Path, more: &[&str]) -> Child {
    Child::spawn(agent_command(dsn, file, more)).expect("it runs")
}

pub(crate) fn agent_command(dsn: &str, file: &Path, more: &[&str]) -> tokio::process::Command {
    let mut command = tokio::process::Command::new("/bin/sh");
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
    // Events go to standard error, which the kit does not read.
    command.args(["-c", "exec \"$@\" 2>&1", "sh"]).arg(program());
    command.args(["agent", "--output", "json", "--dsn", dsn, "--config"]).arg(file).args(more);
    command
}

pub(crate) async fn finish(mut command: tokio::process::Command) -> Output {
    command.stdin(Stdio::null()).kill_on_drop(true);
    tokio::time::timeout(Duration::from_secs(60), command.output())
        .await
        .expect("in time")
        .expect("it runs")
}

pub(crate) fn said(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}
